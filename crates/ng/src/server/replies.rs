//! Outgoing replies, and replies that wait for figures of the forwarder.

use super::access::{ControlSockets, ReplyPath, Requester};
use super::statistics::CallView;
use engine::{ConnectionId, Output};
use media::forward::SessionStats;
use std::collections::VecDeque;
use wire::ng::Value;

/// A reply that needs figures.
#[derive(Debug)]
pub(super) struct PendingReply {
    pub(super) requester: Requester,
    pub(super) view: CallView,
    /// Sessions whose figures are missing.
    pub(super) missing: usize,
}

#[derive(Debug)]
enum Outgoing {
    Reply(ReplyPath, Vec<u8>),
    Close(ConnectionId),
}

/// All outgoing and pending replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    outgoing: VecDeque<Outgoing>,
    buffer: Vec<u8>,
    pending: VecDeque<PendingReply>,
}

impl Replies {
    pub(super) fn send(&mut self, path: ReplyPath, bytes: Vec<u8>) {
        self.outgoing.push_back(Outgoing::Reply(path, bytes));
    }

    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.outgoing.push_back(Outgoing::Close(connection));
    }

    pub(super) fn defer(&mut self, pending: PendingReply) {
        self.pending.push_back(pending);
    }

    /// Commands that wait for figures.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Adds the figures of a session, or `None` without any; returns the replies that are complete.
    pub(super) fn add_stats(
        &mut self,
        session: u64,
        stats: Option<&SessionStats>,
    ) -> Vec<PendingReply> {
        let mut done = Vec::new();
        for pending in &mut self.pending {
            for (branch, existing) in &mut pending.view.branches {
                // The first figures complete all pending replies of the session.
                if branch.session == session && existing.is_none() && pending.missing > 0 {
                    *existing = Some(Box::new(stats.cloned().unwrap_or_default()));
                    pending.missing -= 1;
                }
            }
        }
        while let Some(at) = self.pending.iter().position(|q| q.missing == 0) {
            done.extend(self.pending.remove(at));
        }
        done
    }

    pub(super) fn next_output(&mut self, access: &ControlSockets) -> Option<Output<'_>> {
        loop {
            match self.outgoing.pop_front()? {
                Outgoing::Close(connection) => return Some(Output::Close { connection }),
                Outgoing::Reply(ReplyPath::Datagram(socket, destination), bytes) => {
                    self.buffer = bytes;
                    return Some(Output::Datagram {
                        socket,
                        destination,
                        bytes: &self.buffer,
                    });
                }
                Outgoing::Reply(ReplyPath::Stream(connection), bytes) => {
                    if access.connections.get(&connection).is_some() {
                        self.buffer = bytes;
                        return Some(Output::Stream {
                            connection,
                            bytes: &self.buffer,
                        });
                    }
                }
            }
        }
    }
}

/// Adds `result: ok` to `value`.
pub(super) fn ok(value: Value) -> Value {
    value.with("result", "ok")
}

/// `result: error` with its reason.
pub(super) fn error(reason: &str) -> Value {
    Value::dictionary()
        .with("result", "error")
        .with("error-reason", reason)
}
