//! Conference control over HTTP (docs/control.md). A thread of its own serves the requests and puts commands for the
//! border into a queue, which the border's thread drains after each turn; responses return the same way, so that no
//! HTTP client delays a call. With several workers the first one drains the queue and asks the worker that owns the
//! conference.

mod access;
mod api;
mod server;

pub(crate) use access::{BearerToken, ControlPolicy};

use crate::log::EventLog;
use crate::workers::SiblingWorkers;
use api::ApiState;
use border::border::Border;
use border::conferences::{
    ConferenceName, ConferenceReply, ConferenceRequest, ConferenceView, worker_of,
};
use config::ControlSpec;
use engine::{Event, EventKind, Time};
use net::{Clock, Waker};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Most requests in the queue; further ones get 503.
const MAX_QUEUED: usize = 64;

/// A command for the border.
#[derive(Debug)]
struct ControlRequest {
    name: ConferenceName,
    command: ConferenceRequest,
    reply: oneshot::Sender<ConferenceReply>,
}

/// A command whose response is pending.
#[derive(Debug)]
struct PendingQuery {
    reply: oneshot::Sender<ConferenceReply>,
    /// Number of workers that have not answered yet.
    unanswered: u8,
    /// Conferences listed by the workers so far.
    conferences: Vec<ConferenceView>,
}

/// The border's end of the queue.
#[derive(Debug)]
pub(crate) struct ConferenceControl {
    listen: SocketAddr,
    requests: Receiver<ControlRequest>,
    pending: BTreeMap<u64, PendingQuery>,
    last_number: u64,
    access: watch::Sender<ControlPolicy>,
}

impl ConferenceControl {
    /// Listens and starts the serving thread, which wakes `waker` with each command.
    ///
    /// # Errors
    /// If the address cannot be bound, or the thread not started.
    pub(crate) fn start(
        spec: &ControlSpec,
        access: ControlPolicy,
        waker: Waker,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<ConferenceControl> {
        let listener = TcpListener::bind(spec.listen).map_err(|error| {
            io::Error::other(format!(
                "cannot listen on {} (control): {error}\n  remedy: stop the program that uses the port, or correct `listen` in [control]",
                spec.listen
            ))
        })?;
        let (requests, receiver) = sync_channel(MAX_QUEUED);
        let (access, current) = watch::channel(access);
        let shared = Arc::new(ApiState::new(requests, waker, current, log.clone(), clock));
        server::start(listener, spec, shared)?;
        let note = EventKind::SocketOpened {
            purpose: "control http".to_owned(),
            address: spec.listen.to_string(),
        };
        log.event(&Event::new(clock.now(), note));
        Ok(ConferenceControl {
            listen: spec.listen,
            requests: receiver,
            pending: BTreeMap::new(),
            last_number: 0,
            access,
        })
    }

    /// Longest sleep of the border's thread: short while responses are pending.
    pub(crate) fn wait(&self) -> Duration {
        match self.pending.is_empty() {
            true => crate::service::SIGNAL_WAIT,
            false => Duration::from_millis(1),
        }
    }

    /// Passes commands to the border and its responses to the pending requests; called after each turn.
    pub(crate) fn process(&mut self, border: &mut Border, siblings: &SiblingWorkers, now: Time) {
        while let Some((number, reply)) = border
            .next_conference_reply()
            .or_else(|| siblings.next_conference_reply())
        {
            self.handle_reply(number, reply);
        }
        if !self.pending.is_empty() {
            self.pending.retain(|_, query| !query.reply.is_closed());
        }
        while let Ok(ControlRequest {
            name,
            command,
            reply,
        }) = self.requests.try_recv()
        {
            self.last_number += 1;
            let workers = border.worker().count;
            let targets = match command {
                ConferenceRequest::List => 0..workers,
                _ => {
                    let owner = worker_of(&name.number, workers);
                    owner..owner + 1
                }
            };
            let query = PendingQuery {
                reply,
                unanswered: targets.len() as u8,
                conferences: Vec::new(),
            };
            self.pending.insert(self.last_number, query);
            for worker in targets {
                match worker {
                    0 => border.request_conference(self.last_number, &name, &command, now),
                    _ => siblings.request_conference(worker, self.last_number, &name, &command),
                }
            }
        }
    }

    /// Handles a worker's response; the request is answered when all workers have responded.
    fn handle_reply(&mut self, number: u64, reply: ConferenceReply) {
        let Some(mut query) = self.pending.remove(&number) else {
            return;
        };
        let reply = match reply {
            ConferenceReply::Conferences(conferences) => {
                query.unanswered -= 1;
                query.conferences.extend(conferences);
                if query.unanswered > 0 {
                    self.pending.insert(number, query);
                    return;
                }
                let mut conferences = query.conferences;
                conferences.sort_by(|one, other| one.name.cmp(&other.name));
                ConferenceReply::Conferences(conferences)
            }
            reply => reply,
        };
        // The request may have been given up.
        let _ = query.reply.send(reply);
    }

    /// Applies a new configuration: token and names take effect at once, but only at the unchanged listening address.
    pub(crate) fn reload(&self, spec: &ControlSpec, token: Option<BearerToken>) {
        if spec.listen == self.listen {
            self.access.send_replace(ControlPolicy::new(spec, token));
        }
    }
}
