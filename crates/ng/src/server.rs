//! ng server: media for an external SIP server, controlled by the "ng" protocol of rtpengine.
//!
//! Offers and answers arrive as commands and are returned with the ng server's own addresses; ports, forwarder
//! sessions and media security are those of the border's own calls ([`anchor`]). It has no SIP. Every key and flag of
//! a command is carried out, or the command is refused with the name of the flag.

mod access;
mod branches;
mod commands;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod offer_answer;
mod options;
mod playback;
mod recording;
mod replies;
mod sdp;
mod sides;
mod statistics;

use access::{ControlConnection, ControlSockets, OPEN_INTERVAL, ReplyCache, ReplyPath};
use anchor::security::call::unexpected_reason;
use anchor::sockets::{MEDIA_BASE, MEDIA_SOCKETS, SocketWork};
use anchor::{MediaPlane, MediaPool, PortReplacement};
use branches::{BranchTable, Draining};
use config::{Config, NgServerSpec};
use core::time::Duration;
use engine::timers::TimerWheel;
use engine::{
    ConnectionId, Control, Deadline, DropReason, Drops, Engine, Entropy, Event, EventKind, HashKey,
    Input, Output, SocketId, Time,
};
use media::ports::PortPool;
use media::{MediaCommand, MediaEvent};
use playback::Playbacks;
pub use playback::SoundRequest;
use recording::Recordings;
use replies::Replies;
use statistics::WallClock;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::ng::NgStreamFramer;

/// A timer of the ng server.
#[derive(Clone, Copy, Debug)]
enum NgAlarm {
    /// Keying of a session has requested a timeout.
    Keying(u64),
    /// The delay of a deletion is over.
    Delete(u64),
    /// No other answer to the offer of a session follows.
    ReleaseRejected(u64),
    /// Listeners that could not be opened are tried again.
    OpenListeners,
    /// The time limit for draining has passed.
    DrainTimeout,
}

/// Counters of an ng server since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NgCounters {
    /// Commands that were carried out or refused, by name.
    pub commands: std::collections::BTreeMap<&'static str, u64>,
    /// Commands that were refused.
    pub refused: u64,
    /// Repeated commands that were answered from the cache.
    pub repeated: u64,
    /// Calls (pairs of parties) that were started.
    pub started: u64,
    /// Calls that ended by media timeout.
    pub media_timeouts: u64,
    /// Offers that were refused because no port was left.
    pub ports_exhausted: u64,
    /// Port pairs that were in use by another program.
    pub ports_taken: u64,
    /// Packets and octets received in calls that have ended: RTP, RTCP.
    pub relayed: [(u64, u64); 2],
    /// Dropped media packets of calls that have ended.
    pub errors: u64,
}

/// Number of objects that an ng server holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NgCensus {
    /// Calls, by Call-ID.
    pub calls: usize,
    /// Pairs of parties.
    pub branches: usize,
    /// Port pairs.
    pub ports: usize,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Media sockets in use.
    pub sockets_busy: usize,
    /// Commands whose reply is pending.
    pub waiting: usize,
    /// Cached replies for repeated commands.
    pub replies: usize,
    /// Control connections.
    pub connections: usize,
    /// Timers.
    pub timers: usize,
    /// Recordings.
    pub recordings: usize,
    /// Sounds that are played, read or being stopped.
    pub sounds: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct NgServer {
    config: Arc<Config>,
    /// The `[ng_server]` table of the configuration.
    settings: Arc<NgServerSpec>,
    plane: MediaPlane,
    /// Code point of all media, which changes at a start only.
    dscp: u8,
    /// Pools by port range of the configuration.
    pools: Vec<u16>,
    entropy: Entropy,
    control: ControlSockets,
    reply_cache: ReplyCache,
    replies: Replies,
    branches: BranchTable,
    recordings: Recordings,
    playbacks: Playbacks,
    timers: TimerWheel<NgAlarm>,
    events: VecDeque<Event>,
    drops: Drops,
    counters: NgCounters,
    draining: Option<Draining>,
    clock: WallClock,
    /// Mark by which our own descriptions are recognised.
    mark: Vec<u8>,
    now: Time,
}

impl NgServer {
    /// An ng server by the `[ng_server]` table of `config`; `None` without one. It opens its sockets with its first
    /// outputs.
    /// `epoch`: wall clock at the driver's time zero, nanoseconds since 1970.
    pub fn new(
        config: impl Into<Arc<Config>>,
        clock: u64,
        mut entropy: Entropy,
    ) -> Option<NgServer> {
        let config = config.into();
        let settings = Arc::new(config.ng_server.clone()?);
        let mut key = || HashKey::new(&mut entropy);
        let control = ControlSockets::new(key());
        let reply_cache = ReplyCache::new(key());
        let branches = BranchTable::new(config.limits.calls, key());
        let sockets = key();
        let mark = entropy.u64().to_string().into_bytes();
        let plane = MediaPlane::new(MEDIA_SOCKETS, sockets, entropy.fork());
        let mut node = NgServer {
            dscp: config.media.dscp,
            config,
            settings,
            plane,
            pools: Vec::new(),
            control,
            reply_cache,
            replies: Replies::default(),
            branches,
            recordings: Recordings::default(),
            playbacks: Playbacks::default(),
            timers: TimerWheel::new(),
            events: VecDeque::new(),
            drops: Drops::new(),
            counters: NgCounters::default(),
            draining: None,
            clock: WallClock(clock),
            mark,
            now: Time::ZERO,
            entropy,
        };
        node.open_pools();
        node.control.open(&node.settings, &mut node.plane.work);
        Some(node)
    }

    /// Sets the number of files that the process may have open: idle media sockets take a part of them at most.
    pub fn set_open_files(&mut self, files: u64) {
        self.plane.sockets.set_open_files(files);
    }

    /// Sets the DTLS certificate and settings for media, as `Border::set_dtls` of the border.
    pub fn set_dtls(&mut self, endpoint: protect::dtls::DtlsEndpoint) {
        self.plane.keying.dtls = Some(endpoint);
    }

    /// Applies a checked configuration; established calls are not changed. Returns `false` and changes nothing
    /// without a `[ng_server]` table.
    pub fn reload(&mut self, config: impl Into<Arc<Config>>, now: Time) -> bool {
        let config = config.into();
        let Some(settings) = config.ng_server.clone() else {
            return false;
        };
        self.now = now;
        let moves_recordings = self.settings.recordings != settings.recordings;
        let changes = match *self.settings == settings && self.config.media == config.media {
            true => "nothing",
            false => "node",
        };
        self.settings = Arc::new(settings);
        self.config = config;
        self.open_pools();
        self.control.open(&self.settings, &mut self.plane.work);
        let config = self.config.clone();
        let mut work = VecDeque::new();
        self.plane.sockets.close_outside_ranges(
            |address: SocketAddr| {
                config.media_ranges.iter().any(|range| {
                    range.address == address.ip()
                        && (range.first..=range.last).contains(&address.port())
                })
            },
            &mut work,
        );
        self.plane.work.append(&mut work);
        self.branches.set_limit(self.config.limits.calls);
        self.tell(EventKind::ConfigurationReloaded {
            changes: changes.to_owned(),
        });
        if moves_recordings {
            self.move_recordings();
        }
        true
    }

    /// Refuses new calls from now on. When the last one has ended, at the latest after `limit` when the remaining
    /// calls are terminated, [`NgServer::is_drained`] is true. A repeated call sets a new limit.
    pub fn drain(&mut self, limit: Duration, now: Time) {
        self.now = now;
        let timer = self.timers.schedule(now + limit, NgAlarm::DrainTimeout);
        match &mut self.draining {
            Some(draining) => {
                let before = core::mem::replace(&mut draining.timer, timer);
                self.timers.cancel(before);
            }
            None => {
                self.draining = Some(Draining {
                    timer,
                    terminated: 0,
                    is_reported: false,
                });
                let calls = self.branches.len() as u64;
                self.tell(EventKind::DrainStarted { calls });
            }
        }
        self.finish_drain_if_idle();
    }

    /// Whether a drain has finished.
    pub fn is_drained(&self) -> bool {
        self.draining.is_some()
            && self.branches.len() == 0
            && self.replies.pending_count() == 0
            && self.playbacks.len() == 0
    }

    /// The current configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Packets dropped at control sockets and by the control plane, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counters since the start.
    pub fn counters(&self) -> &NgCounters {
        &self.counters
    }

    /// Number of objects held.
    pub fn census(&self) -> NgCensus {
        NgCensus {
            calls: self.branches.calls(),
            branches: self.branches.len(),
            ports: self.plane.ports_in_use(),
            sessions: self.plane.sessions,
            sockets_busy: self.plane.sockets.busy(),
            waiting: self.replies.pending_count(),
            replies: self.reply_cache.len(),
            connections: self.control.connections.len(),
            timers: self.timers.len(),
            recordings: self.recordings.len(),
            sounds: self.playbacks.len(),
        }
    }

    fn tell(&mut self, notice: EventKind) {
        self.events.push_back(Event::new(self.now, notice));
    }

    /// Adds the pools of the configuration; existing pools stay, with the ports that calls hold.
    fn open_pools(&mut self) {
        self.pools.clear();
        for range in &self.config.media_ranges {
            let existing = self.plane.pools.iter().position(|pool| {
                (pool.ports.address(), pool.first, pool.last)
                    == (range.address, range.first, range.last)
            });
            let index = existing.unwrap_or_else(|| {
                let entropy = self.entropy.fork();
                match PortPool::new(range.address, range.first, range.last, entropy) {
                    Ok(ports) => {
                        self.plane.pools.push(MediaPool {
                            first: range.first,
                            last: range.last,
                            ports,
                        });
                        self.plane.pools.len() - 1
                    }
                    // The configuration was checked: a range has a pair. An index beyond all pools refuses calls.
                    Err(_) => usize::from(u16::MAX),
                }
            });
            self.pools.push(u16::try_from(index).unwrap_or(u16::MAX));
        }
        self.plane.inactivity = self.config.media.timeout;
        self.plane.hold_inactivity = self.config.media.hold_timeout;
    }

    fn process_input(&mut self, input: Input<'_>) {
        match input {
            Input::Datagram(datagram) if datagram.socket.0 >= MEDIA_BASE => {
                let done =
                    self.handle_media_datagram(datagram.socket, datagram.source, datagram.bytes);
                if let Err(reason) = done {
                    self.drops.count(reason);
                }
            }
            Input::Datagram(datagram) => {
                if self.settings.allows(datagram.source.ip()) {
                    let path = ReplyPath::Datagram(datagram.socket, datagram.source);
                    self.command(path, datagram.bytes);
                } else {
                    self.drops.count(DropReason::NgSourceNotAllowed);
                }
            }
            Input::Accepted {
                connection,
                socket,
                remote,
                ..
            } => self.accepted(connection, socket, remote),
            Input::Stream { connection, bytes } => self.stream(connection, bytes),
            Input::Closed { connection, .. } => {
                self.control.connections.remove(&connection);
            }
            Input::Opened { socket, local } if socket.0 < MEDIA_BASE => {
                if let Some(listener) = self.control.listener(socket) {
                    let purpose = format!("ng {}", listener.listen.transport);
                    let address = local.to_string();
                    self.tell(EventKind::SocketOpened { purpose, address });
                }
            }
            Input::Opened { socket, .. } => {
                let plane = &mut self.plane;
                let waiter = plane.sockets.opened(socket, self.now, &mut plane.work);
                if let Some(session) = waiter {
                    self.resume_offer(session);
                }
            }
            Input::OpenFailed { socket, error } => self.open_failed(socket, error),
            Input::RecordingFailed { file } => self.recording_failed(file),
            Input::Timeout => self.handle_timers(),
            // An ng server opens no connections, has no socket filter and no siblings; unreachable peers show as a
            // media timeout.
            Input::Connected { .. }
            | Input::Secured { .. }
            | Input::Shed { .. }
            | Input::Unreachable { .. }
            | Input::Handoff(_) => {}
        }
    }

    fn accepted(&mut self, connection: ConnectionId, socket: SocketId, remote: SocketAddr) {
        let listener = self
            .control
            .listener(socket)
            .map(|listener| listener.listen.transport);
        let connection_state = ControlConnection {
            framer: (listener == Some(engine::Transport::Tcp)).then(NgStreamFramer::default),
        };
        if !self.settings.allows(remote.ip())
            || self
                .control
                .connections
                .insert(connection, connection_state)
                .is_err()
        {
            self.drops.count(DropReason::NgSourceNotAllowed);
            self.replies.close(connection);
        }
    }

    fn stream(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let Some(connection_state) = self.control.connections.get_mut(&connection) else {
            return;
        };
        let Some(mut framer) = connection_state.framer.take() else {
            return self.command(ReplyPath::Stream(connection), bytes);
        };
        framer.push(bytes);
        loop {
            match framer.next_message() {
                Ok(Some(message)) => self.command(ReplyPath::Stream(connection), message),
                Ok(None) => break,
                Err(_) => {
                    // Message boundaries are lost.
                    self.drops.count(DropReason::NgMalformed);
                    self.control.connections.remove(&connection);
                    return self.replies.close(connection);
                }
            }
        }
        if let Some(connection_state) = self.control.connections.get_mut(&connection) {
            connection_state.framer = Some(framer);
        }
    }

    /// Processes STUN or DTLS from a media port.
    fn handle_media_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let owner = self.plane.sockets.owner(socket);
        let owner = owner.ok_or_else(|| unexpected_reason(bytes))?;
        let branch = self.branches.get_mut(owner);
        let branch = branch.ok_or_else(|| unexpected_reason(bytes))?;
        branch
            .media
            .handle_datagram(&mut self.plane, socket, source, bytes)
    }

    fn open_failed(&mut self, socket: SocketId, error: &str) {
        if socket.0 < MEDIA_BASE {
            // Otherwise the listener was removed in the meantime.
            if let Some((address, starts_timer)) = self.control.open_failed(socket) {
                if starts_timer {
                    self.timers
                        .schedule(self.now + OPEN_INTERVAL, NgAlarm::OpenListeners);
                }
                self.tell(EventKind::SocketFailed {
                    purpose: "ng".to_owned(),
                    address: address.to_string(),
                    error: error.to_owned(),
                });
            }
            return;
        }
        let (address, waiter) = self.plane.sockets.failed(socket).unzip();
        let text = address.map_or_else(String::new, |address: SocketAddr| address.to_string());
        let failed = || EventKind::SocketFailed {
            purpose: "media".to_owned(),
            address: text.clone(),
            error: error.to_owned(),
        };
        let session = waiter
            .flatten()
            .or_else(|| self.branches.session_of(socket));
        let Some(branch) = session.and_then(|session| self.branches.get_mut(session)) else {
            return self.tell(failed());
        };
        let (session, number) = (branch.session, branch.number);
        let logged = branch.media.has_replaced_pairs();
        let replaced = branch.media.replace_pair(&mut self.plane, socket, error);
        // One line is logged for a call, with the first port that failed.
        if !logged {
            self.tell(match &replaced {
                PortReplacement::By(instead) => EventKind::MediaPortInUse {
                    call: number,
                    address: text.clone(),
                    error: error.to_owned(),
                    replacement: instead.to_string(),
                },
                _ => failed(),
            });
        }
        match replaced {
            PortReplacement::Foreign | PortReplacement::WithoutRtcp => {}
            PortReplacement::By(_) => {
                self.counters.ports_taken += 1;
                self.resume_offer(session);
            }
            PortReplacement::Exhausted(pool) => {
                self.ports_exhausted(pool, String::new());
                self.refuse_ports(session);
            }
            PortReplacement::AllFail => {
                self.counters.ports_exhausted += 1;
                self.refuse_ports(session);
            }
            // The proxy has the description already, and the protocol has no command to it.
            PortReplacement::Announced | PortReplacement::Reannounced(_) => {
                self.counters.ports_exhausted += 1;
                self.end_branch(session, "media port");
            }
        }
    }

    fn handle_timers(&mut self) {
        while let Some(alarm) = self.timers.pop_due(self.now) {
            match alarm {
                NgAlarm::Keying(session) => {
                    if let Some(branch) = self.branches.get_mut(session) {
                        branch.media.handle_keying_timeout(&mut self.plane);
                    }
                }
                NgAlarm::Delete(session) => {
                    if let Some(branch) = self.branches.get_mut(session) {
                        branch.deleting = None;
                        self.end_branch(session, "deleted");
                    }
                }
                NgAlarm::ReleaseRejected(session) => {
                    if let Some(branch) = self.branches.get_mut(session) {
                        branch.releasing = None;
                        branch.media.release_rejected_lines(&mut self.plane);
                    }
                }
                NgAlarm::OpenListeners => self.control.retry(&mut self.plane.work),
                NgAlarm::DrainTimeout => self.expire_drain(),
            }
        }
        self.plane.close_idle(self.now);
    }

    /// Schedules requested timeouts, writes events, and ends calls whose keying has failed.
    fn process_media_notices(&mut self) {
        while let Some((session, at)) = self.plane.keying.next_timeout_request() {
            // The call may have ended in the meantime.
            let Some(branch) = self.branches.get_mut(session) else {
                continue;
            };
            let timer = self.timers.schedule(at, NgAlarm::Keying(session));
            if let Some(later) = branch.media.keying_timer.replace(timer) {
                self.timers.cancel(later);
            }
        }
        self.plane.keying.count_drops(&mut self.drops);
        while let Some(notice) = self.plane.keying.next_notice() {
            self.tell(notice.event());
            if notice.is_fatal {
                self.end_branch(notice.session, "media keys");
            }
        }
    }

    fn begin(&mut self, now: Time) {
        self.now = now;
        self.plane.keying.now = now;
    }
}

impl Engine for NgServer {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.begin(now);
        self.process_input(input);
        self.process_media_notices();
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(work) = self.plane.work.pop_front() {
            return Some(match work {
                SocketWork::Open {
                    socket,
                    kind,
                    local,
                } => Output::OpenSocket {
                    socket,
                    kind,
                    local,
                },
                SocketWork::Shut(socket) => Output::CloseSocket { socket },
            });
        }
        if let Some((socket, destination, bytes)) = self.plane.keying.next_datagram() {
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Output::Event(event));
        }
        if self.recordings.has_output() {
            return self.recordings.next_output();
        }
        self.replies.next_output(&self.control)
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let timers = self.timers.next_at();
        let timers = timers.map(|at| Deadline::new(at, "media node"));
        Deadline::earlier(timers, self.plane.next_deadline())
    }
}

impl Control for NgServer {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn next_command(&mut self) -> Option<MediaCommand> {
        self.plane.commands.pop_front()
    }

    fn report(&mut self, report: MediaEvent, now: Time) {
        self.begin(now);
        match report {
            MediaEvent::Timeout { session, .. } => self.end_by_media_timeout(session),
            MediaEvent::Latched {
                session,
                side,
                address,
                ..
            } => self.latched(session, side, address),
            MediaEvent::Stats {
                session,
                last,
                stats,
            } => self.add_stats(session, last, Some(stats)),
            MediaEvent::Refused { session, .. } => {
                self.add_stats(session, false, None);
                self.end_branch(session, "media refused");
            }
            // An ng server has no conferences.
            MediaEvent::Participant { .. } => {}
            MediaEvent::PlaybackEnded { result, .. } => self.playback_ended(&result),
            MediaEvent::Recorded {
                session,
                line,
                side,
                rtcp,
                source,
                received_at,
                bytes,
            } => self.record_packet(session, (line, side, rtcp), source, received_at, &bytes),
        }
        self.process_media_notices();
    }
}
