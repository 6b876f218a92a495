//! Operator commands and conference control over HTTP and a Unix socket (docs/control.md). A thread of its own serves
//! the requests and puts commands for the border into a queue, which the border's thread drains after each turn;
//! responses return the same way, so that no HTTP client delays a call. With several workers the first one drains the
//! queue and asks the worker that owns the conference.

mod access;
mod api;
mod commands;
mod former_paths;
mod server;

pub(crate) use access::{ControlPolicy, bearer, own_host, same_origin};

use crate::bearer_token::BearerToken;
use crate::driver_setup::SIGNAL_WAIT;
use crate::operators::Operators;
use crate::workers::SiblingWorkers;
use api::ApiState;
use border::border::Border;
use border::conferences::{
    ConferenceName, ConferenceReply, ConferenceRequest, ConferenceView, worker_of,
};
use config::ControlSpec;
use engine::{Event, EventKind, Time};
use net::Waker;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Most requests in the queue; further ones get 503.
const MAX_QUEUED: usize = 64;

fn bind_tcp(listen: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(listen).map_err(|error| {
        io::Error::other(format!(
            "cannot listen on {listen} (control): {error}\n  remedy: stop the program that uses the port, or correct `listen` in [control]"
        ))
    })
}

/// Binds the Unix socket for its owner and group; one that no program serves is replaced.
fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let failed = |error: io::Error| {
        io::Error::other(format!(
            "cannot listen on {} (control): {error}\n  remedy: stop the program that serves the socket, create its folder, or correct `socket` in [control]",
            path.display()
        ))
    };
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let socket = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(socket)
}

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
    listen: Option<SocketAddr>,
    socket: Option<PathBuf>,
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
        operators: &Operators,
    ) -> io::Result<ConferenceControl> {
        let (log, clock) = (&operators.log, operators.clock);
        let listener = spec.listen.map(bind_tcp).transpose()?;
        let socket = spec.socket.as_deref().map(bind_socket).transpose()?;
        let (requests, receiver) = sync_channel(MAX_QUEUED);
        let (access, current) = watch::channel(access);
        let shared = Arc::new(ApiState::new(requests, waker, current, operators.clone()));
        server::start(listener, socket, spec, shared)?;
        let tcp = spec
            .listen
            .map(|listen| ("control http", listen.to_string()));
        let local = spec.socket.as_ref();
        let local = local.map(|path| ("control socket", path.display().to_string()));
        for (purpose, address) in tcp.into_iter().chain(local) {
            let note = EventKind::SocketOpened {
                purpose: purpose.to_owned(),
                address,
            };
            log.event(&Event::new(clock.now(), note));
        }
        Ok(ConferenceControl {
            listen: spec.listen,
            socket: spec.socket.clone(),
            requests: receiver,
            pending: BTreeMap::new(),
            last_number: 0,
            access,
        })
    }

    /// Removes the Unix socket at the end of the program.
    pub(crate) fn end(&self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }

    /// Longest sleep of the border's thread: short while responses are pending.
    pub(crate) fn wait(&self) -> Duration {
        match self.pending.is_empty() {
            true => SIGNAL_WAIT,
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
