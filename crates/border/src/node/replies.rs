//! Replies on their way, and those that wait for the forwarder's figures.

use super::access::{Access, Asker, Way};
use super::figures::CallView;
use engine::{ConnectionId, Output};
use media::forward::SessionStats;
use std::collections::VecDeque;
use wire::ng::Value;

/// A reply that needs figures.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) asker: Asker,
    pub(super) view: CallView,
    /// Sessions whose figures have yet to come.
    pub(super) missing: usize,
}

#[derive(Debug)]
enum Going {
    Reply(Way, Vec<u8>),
    Close(ConnectionId),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Replies {
    going: VecDeque<Going>,
    saying: Vec<u8>,
    questions: VecDeque<Question>,
}

impl Replies {
    pub(super) fn say(&mut self, way: Way, bytes: Vec<u8>) {
        self.going.push_back(Going::Reply(way, bytes));
    }

    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.going.push_back(Going::Close(connection));
    }

    pub(super) fn ask(&mut self, question: Question) {
        self.questions.push_back(question);
    }

    /// Commands that wait for figures.
    pub(super) fn waiting(&self) -> usize {
        self.questions.len()
    }

    /// Figures came, or word that there are none; the questions that are answered with them.
    pub(super) fn counted(&mut self, session: u64, stats: Option<&SessionStats>) -> Vec<Question> {
        let mut done = Vec::new();
        for question in &mut self.questions {
            for (branch, known) in &mut question.view.branches {
                // The figures that come first are those that were asked for first, and stand for all who wait.
                if branch.session == session && known.is_none() && question.missing > 0 {
                    *known = Some(Box::new(stats.cloned().unwrap_or_default()));
                    question.missing -= 1;
                }
            }
        }
        while let Some(at) = self.questions.iter().position(|q| q.missing == 0) {
            done.extend(self.questions.remove(at));
        }
        done
    }

    pub(super) fn next_output(&mut self, access: &Access) -> Option<Output<'_>> {
        loop {
            match self.going.pop_front()? {
                Going::Close(connection) => return Some(Output::Close { connection }),
                Going::Reply(Way::Datagram(socket, destination), bytes) => {
                    self.saying = bytes;
                    return Some(Output::Datagram {
                        socket,
                        destination,
                        bytes: &self.saying,
                    });
                }
                Going::Reply(Way::Stream(connection), bytes) => {
                    if access.links.get(&connection).is_some() {
                        self.saying = bytes;
                        return Some(Output::Stream {
                            connection,
                            bytes: &self.saying,
                        });
                    }
                }
            }
        }
    }
}

/// `result: ok`, beside what `value` says.
pub(super) fn ok(value: Value) -> Value {
    value.with("result", "ok")
}

/// `result: error`, and why.
pub(super) fn error(why: &str) -> Value {
    Value::dictionary()
        .with("result", "error")
        .with("error-reason", why)
}
