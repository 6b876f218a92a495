//! A media node: media for somebody else's signalling, commanded by the "ng" protocol of rtpengine.
//!
//! The node takes offers and answers as commands and gives them back as they are to go on, with its own addresses in them: ports,
//! sessions of the forwarder and protection are those of the border's own calls ([`crate::anchor`]). It has no SIP. Every key and
//! flag of a command is carried out, or the command is refused and the flag is named.

mod access;
mod branches;
mod carry;
mod exchange;
mod figures;
pub(crate) mod fuzz;
mod play;
mod record;
mod replies;
mod sides;
mod text;
mod wishes;

use crate::anchor::secured::unexpected;
use crate::anchor::{MediaPlane, MediaPool, Replaced};
use crate::border::sockets::{MEDIA_BASE, SocketWork};
use crate::config::{Config, MediaNode};
use access::{Access, Cookies, Link, Way};
use branches::{Branches, Draining};
use core::time::Duration;
use engine::timers::Wheel;
use engine::{
    ConnectionId, Control, Deadline, DropReason, Drops, Engine, Entropy, Event, HashKey, Input,
    Note, Output, SocketId, Time,
};
use figures::Epoch;
use media::ports::PortPool;
use media::{MediaCommand, MediaEvent};
use play::Plays;
pub use play::SoundWanted;
use record::Records;
use replies::Replies;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::ng::StreamFramer;

/// What is due at some time.
#[derive(Clone, Copy, Debug)]
enum Alarm {
    /// A session's keying wants to be told.
    Keying(u64),
    /// The delay of a deletion is over.
    Delete(u64),
    /// The time for draining is over.
    DrainOver,
}

/// Counters of a node since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Commands that were carried out or refused, by what they asked for.
    pub commands: std::collections::BTreeMap<&'static str, u64>,
    /// Commands that were refused.
    pub refused: u64,
    /// Commands that came again and were not carried out again.
    pub repeated: u64,
    /// Calls (pairs of parties) that were begun.
    pub begun: u64,
    /// Calls whose media stopped.
    pub media_timeouts: u64,
    /// Offers refused for want of a port.
    pub ports_exhausted: u64,
    /// Pairs of ports that somebody else held.
    pub ports_taken: u64,
    /// Packets and octets of media received in calls that have ended: RTP, RTCP.
    pub relayed: [(u64, u64); 2],
    /// Drops at media ports of calls that have ended.
    pub errors: u64,
}

/// How much of everything a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCensus {
    /// Calls, by their Call-IDs.
    pub calls: usize,
    /// Pairs of parties.
    pub branches: usize,
    /// Pairs of ports.
    pub ports: usize,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Media sockets in use.
    pub sockets_busy: usize,
    /// Commands that wait for something before they are answered.
    pub waiting: usize,
    /// Replies that are kept for commands that are sent again.
    pub replies: usize,
    /// Connections of commanders.
    pub connections: usize,
    /// Timers.
    pub timers: usize,
    /// Recordings.
    pub recordings: usize,
    /// Sounds that are played, read or being stopped.
    pub sounds: usize,
}

/// See the module's text.
#[derive(Debug)]
pub struct Node {
    config: Arc<Config>,
    /// The node of the configuration.
    spec: Arc<MediaNode>,
    plane: MediaPlane,
    /// By ranges of the configuration.
    pools: Vec<u16>,
    entropy: Entropy,
    access: Access,
    cookies: Cookies,
    replies: Replies,
    branches: Branches,
    records: Records,
    plays: Plays,
    timers: Wheel<Alarm>,
    events: VecDeque<Event>,
    drops: Drops,
    counters: NodeCounters,
    draining: Option<Draining>,
    epoch: Epoch,
    /// By this descriptions of ours are known when they come back.
    mark: Vec<u8>,
    now: Time,
}

impl Node {
    /// A node by the `[node]` of `config`; `None` where it has none. It opens its sockets with its first outputs. `epoch`: what the
    /// wall clock said when the driver's time was zero, nanoseconds since 1970.
    pub fn new(config: impl Into<Arc<Config>>, epoch: u64, mut entropy: Entropy) -> Option<Node> {
        let config = config.into();
        let spec = Arc::new(config.node.clone()?);
        let mut key = || HashKey::new(&mut entropy);
        let access = Access::new(key());
        let cookies = Cookies::new(key());
        let branches = Branches::new(config.limits.calls, key());
        let sockets = key();
        let mark = entropy.u64().to_string().into_bytes();
        let plane = MediaPlane::new(crate::border::MEDIA_SOCKETS, sockets, entropy.fork());
        let mut node = Node {
            config,
            spec,
            plane,
            pools: Vec::new(),
            access,
            cookies,
            replies: Replies::default(),
            branches,
            records: Records::default(),
            plays: Plays::default(),
            timers: Wheel::new(),
            events: VecDeque::new(),
            drops: Drops::new(),
            counters: NodeCounters::default(),
            draining: None,
            epoch: Epoch(epoch),
            mark,
            now: Time::ZERO,
            entropy,
        };
        node.open_pools();
        node.access.open(&node.spec, &mut node.plane.work);
        Some(node)
    }

    /// With what DTLS in media paths needs, as [`crate::border::Border::set_dtls`].
    pub fn set_dtls(&mut self, endpoint: protect::dtls::Endpoint) {
        self.plane.keyer.dtls = Some(endpoint);
    }

    /// Takes over a checked configuration; `false`, and nothing has changed, where it has no `[node]`. Calls go on as they are.
    pub fn reload(&mut self, config: impl Into<Arc<Config>>, now: Time) -> bool {
        let config = config.into();
        let Some(spec) = config.node.clone() else {
            return false;
        };
        self.now = now;
        let changes = match *self.spec == spec && self.config.media == config.media {
            true => "nothing",
            false => "node",
        };
        self.spec = Arc::new(spec);
        self.config = config;
        self.open_pools();
        self.access.open(&self.spec, &mut self.plane.work);
        let config = self.config.clone();
        let mut work = VecDeque::new();
        self.plane.sockets.shut_unwanted(
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
        self.tell(Note::ConfigurationReloaded {
            changes: changes.to_owned(),
        });
        true
    }

    /// Takes no new calls from now on. When the last one has ended, at the latest after `limit` when what is left is ended by us,
    /// [`Node::is_drained`] is true. Said again, it sets a new limit.
    pub fn drain(&mut self, limit: Duration, now: Time) {
        self.now = now;
        let timer = self.timers.schedule(now + limit, Alarm::DrainOver);
        match &mut self.draining {
            Some(draining) => {
                let before = core::mem::replace(&mut draining.timer, timer);
                self.timers.cancel(before);
            }
            None => {
                self.draining = Some(Draining {
                    timer,
                    cut: 0,
                    finished: false,
                });
                let calls = self.branches.len() as u64;
                self.tell(Note::DrainStarted { calls });
            }
        }
        self.after_call();
    }

    /// Whether a drain has come to its end.
    pub fn is_drained(&self) -> bool {
        self.draining.is_some()
            && self.branches.len() == 0
            && self.replies.waiting() == 0
            && self.plays.len() == 0
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Everything dropped so far at the doors and by control, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counters since the start.
    pub fn counters(&self) -> &NodeCounters {
        &self.counters
    }

    /// How much of everything it holds.
    pub fn census(&self) -> NodeCensus {
        NodeCensus {
            calls: self.branches.calls(),
            branches: self.branches.len(),
            ports: self.plane.ports_in_use(),
            sessions: self.plane.sessions,
            sockets_busy: self.plane.sockets.busy(),
            waiting: self.replies.waiting(),
            replies: self.cookies.len(),
            connections: self.access.links.len(),
            timers: self.timers.len(),
            recordings: self.records.len(),
            sounds: self.plays.len(),
        }
    }

    fn tell(&mut self, note: Note) {
        self.events.push_back(Event::new(self.now, note));
    }

    /// The pools of the configuration: those that are there stay as they are, with the ports that calls hold.
    fn open_pools(&mut self) {
        self.pools.clear();
        for range in &self.config.media_ranges {
            let known = self.plane.pools.iter().position(|pool| {
                (pool.ports.address(), pool.first, pool.last)
                    == (range.address, range.first, range.last)
            });
            let index = known.unwrap_or_else(|| {
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

    fn take(&mut self, input: Input<'_>) {
        match input {
            Input::Datagram(datagram) if datagram.socket.0 >= MEDIA_BASE => {
                let done = self.media_datagram(datagram.socket, datagram.source, datagram.bytes);
                if let Err(reason) = done {
                    self.drops.count(reason);
                }
            }
            Input::Datagram(datagram) => {
                if self.spec.allows(datagram.source.ip()) {
                    let way = Way::Datagram(datagram.socket, datagram.source);
                    self.command(way, datagram.bytes);
                } else {
                    self.drops.count(DropReason::NgUnauthorised);
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
                self.access.links.remove(&connection);
            }
            Input::Opened { socket, local } if socket.0 < MEDIA_BASE => {
                if let Some(door) = self.access.door(socket) {
                    door.open = Some(local);
                    let what = format!("ng {}", door.listen.transport);
                    let address = local.to_string();
                    self.tell(Note::SocketOpened { what, address });
                }
            }
            Input::Opened { socket, .. } => {
                let plane = &mut self.plane;
                let waiter = plane.sockets.opened(socket, self.now, &mut plane.work);
                if let Some(session) = waiter {
                    self.go_on(session);
                }
            }
            Input::OpenFailed { socket, error } => self.open_failed(socket, error),
            Input::Timeout => self.alarms(),
            // The node opens no connections, has no sieve and is alone; what the network says of its datagrams shows in media.
            Input::Connected { .. }
            | Input::Secured { .. }
            | Input::Sifted { .. }
            | Input::Unreachable { .. }
            | Input::Handed(_) => {}
        }
    }

    fn accepted(&mut self, connection: ConnectionId, socket: SocketId, remote: SocketAddr) {
        let door = self.access.door(socket).map(|door| door.listen.transport);
        let link = Link {
            framer: (door == Some(engine::Transport::Tcp)).then(StreamFramer::default),
        };
        if !self.spec.allows(remote.ip()) || self.access.links.insert(connection, link).is_err() {
            self.drops.count(DropReason::NgUnauthorised);
            self.replies.close(connection);
        }
    }

    fn stream(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let Some(link) = self.access.links.get_mut(&connection) else {
            return;
        };
        let Some(mut framer) = link.framer.take() else {
            return self.command(Way::Stream(connection), bytes);
        };
        framer.push(bytes);
        loop {
            match framer.next_message() {
                Ok(Some(message)) => self.command(Way::Stream(connection), message),
                Ok(None) => break,
                Err(_) => {
                    // Where the next message begins is not known any more.
                    self.drops.count(DropReason::NgMalformed);
                    self.access.links.remove(&connection);
                    return self.replies.close(connection);
                }
            }
        }
        if let Some(link) = self.access.links.get_mut(&connection) {
            link.framer = Some(framer);
        }
    }

    /// STUN or DTLS on a media port.
    fn media_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let owner = self.plane.sockets.owner(socket);
        let owner = owner.ok_or_else(|| unexpected(bytes))?;
        let branch = self.branches.get_mut(owner);
        let branch = branch.ok_or_else(|| unexpected(bytes))?;
        branch
            .media
            .datagram(&mut self.plane, socket, source, bytes)
    }

    fn open_failed(&mut self, socket: SocketId, error: &str) {
        if socket.0 < MEDIA_BASE {
            let door = self.access.door(socket);
            let address = door.map_or_else(String::new, |door| door.listen.address.to_string());
            return self.tell(Note::SocketFailed {
                what: "ng".to_owned(),
                address,
                error: error.to_owned(),
            });
        }
        let (address, waiter) = self.plane.sockets.failed(socket).unzip();
        let text = address.map_or_else(String::new, |address: SocketAddr| address.to_string());
        self.tell(Note::SocketFailed {
            what: "media".to_owned(),
            address: text.clone(),
            error: error.to_owned(),
        });
        let session = waiter.flatten().or_else(|| self.branches.user_of(socket));
        let Some(branch) = session.and_then(|session| self.branches.get_mut(session)) else {
            return;
        };
        let (session, number) = (branch.session, branch.number);
        match branch.media.replace(&mut self.plane, socket) {
            Replaced::Foreign | Replaced::Without => {}
            Replaced::By(instead) => {
                self.counters.ports_taken += 1;
                self.tell(Note::MediaPortTaken {
                    call: number,
                    address: text,
                    instead: instead.to_string(),
                });
                self.go_on(session);
            }
            Replaced::Exhausted | Replaced::Told => {
                self.counters.ports_exhausted += 1;
                self.end(session, "media port");
            }
        }
    }

    fn alarms(&mut self) {
        while let Some(alarm) = self.timers.pop_due(self.now) {
            match alarm {
                Alarm::Keying(session) => {
                    if let Some(branch) = self.branches.get_mut(session) {
                        branch.media.keying_due(&mut self.plane);
                    }
                }
                Alarm::Delete(session) => {
                    if let Some(branch) = self.branches.get_mut(session) {
                        branch.deleting = None;
                        self.end(session, "deleted");
                    }
                }
                Alarm::DrainOver => self.drain_over(),
            }
        }
        self.plane.close_idle(self.now);
    }

    /// Tells what came of protecting media, and ends the calls that cannot have it.
    fn settle(&mut self) {
        while let Some((session, at)) = self.plane.keyer.next_wake() {
            // A call that has ended in the meantime needs no waking.
            let Some(branch) = self.branches.get_mut(session) else {
                continue;
            };
            let timer = self.timers.schedule(at, Alarm::Keying(session));
            if let Some(later) = branch.media.wake_timer.replace(timer) {
                self.timers.cancel(later);
            }
        }
        self.plane.keyer.count_drops(&mut self.drops);
        while let Some(note) = self.plane.keyer.next_told() {
            self.tell(note.event());
            if note.ends {
                self.end(note.session, "media keys");
            }
        }
    }

    fn begin(&mut self, now: Time) {
        self.now = now;
        self.plane.keyer.now = now;
    }
}

impl Engine for Node {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.begin(now);
        self.take(input);
        self.settle();
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(work) = self.plane.work.pop_front() {
            return Some(match work {
                SocketWork::Open {
                    socket,
                    kind,
                    local,
                } => Output::Open {
                    socket,
                    kind,
                    local,
                },
                SocketWork::Shut(socket) => Output::Shut { socket },
            });
        }
        if let Some((socket, destination, bytes)) = self.plane.keyer.next_datagram() {
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Output::Event(event));
        }
        if self.records.has_output() {
            return self.records.next_output();
        }
        self.replies.next_output(&self.access)
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let timers = self.timers.next_at();
        let timers = timers.map(|at| Deadline::new(at, "media node"));
        Deadline::earlier(timers, self.plane.next_deadline())
    }
}

impl Control for Node {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn next_command(&mut self) -> Option<MediaCommand> {
        self.plane.commands.pop_front()
    }

    fn report(&mut self, report: MediaEvent, now: Time) {
        self.begin(now);
        match report {
            MediaEvent::Timeout { session, .. } => self.timed_out(session),
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
            } => self.counted(session, last, Some(stats)),
            MediaEvent::Refused { session, .. } => {
                self.counted(session, false, None);
                self.end(session, "media refused");
            }
            // A node has no conferences.
            MediaEvent::Seat { .. } => {}
            MediaEvent::Played { played, .. } => self.played(&played),
            MediaEvent::Taken {
                session,
                line,
                side,
                rtcp,
                source,
                at,
                bytes,
            } => self.taken(session, (line, side, rtcp), source, at, &bytes),
        }
        self.settle();
    }
}
