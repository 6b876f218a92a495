//! The forwarder of media: packets move by table between the two sides of each media line.
//!
//! Control describes a session by a [`SessionPlan`] of plain values; the forwarder compiles it to records that are found by
//! the socket's number, without a hash. For a packet it decides whether its sender may send here ([`latch`](self), symmetric
//! RTP), whether its contents fit the place, and where it goes. It never asks, never waits, and in the steady state asks for
//! no memory.
//!
//! **Latching.** A side is heard only from its address. The signalled address counts at once. Another address is learned,
//! where the plan allows it, by [`LATCH_PACKETS`] packets that continue one another, and is locked then: later strangers
//! are counted drops, however long the right sender is silent, until a new offer or answer signals a change. Only the
//! signalled address itself takes precedence over a learned one.
//!
//! **Transcoding.** Where the sides have no codec in common, what a side sends is decoded and encoded anew ([`RecodePlan`]); such packets
//! come out of [`Forward::next_packet`], and RTCP is rewritten to them.
//!
//! **Protection.** A side may be protected by SRTP ([`Protection`]): what comes from it is opened, what goes to it is sealed, in
//! place. Nothing of such a side counts, its address least of all, before its tag was right. DTLS on such a side, and STUN on any, is
//! control's affair.

mod digits;
pub(crate) mod flow;
pub(crate) mod fuzz;
mod latch;
mod made;
mod plan;
mod play;
mod recode;
mod secure;
mod shortcut;
pub(crate) mod sockets;
mod statistics;

pub use latch::LATCH_PACKETS;
pub use plan::{
    Carriage, Component, FlowPlan, Latching, MAX_FLOWS, PlanError, SessionPlan, SidePlan,
};
pub use play::{PlayEnd, PlayPlan, PlayVoice, Played, can_play};
pub use recode::{Clocked, Events, RecodePlan};
pub use secure::{Keys, Protection};
pub use statistics::{Counters, FlowStats, MAX_SOURCES, SessionStats, SideStats, SourceStats};

use crate::room::{RoomLimits, Rooms, SeatEvent, SeatOrder, SeatPlan};
use core::time::Duration;
use engine::timers::{Agenda, TimerKey, Wheel};
use engine::{
    BoundedMap, Deadline, DropReason, Drops, Forward, HashKey, Packet, Passed, ShortcutChange,
    SocketId, Time, Verdict,
};
use flow::{Flow, Outcome};
use made::Outbox;
use shortcut::{Deferred, Shortcuts, Wish};
use slab::Slab;
use smallvec::SmallVec;
use sockets::{Place, SocketTable};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The largest datagram taken for media, in bytes.
pub const MAX_PACKET: usize = 4096;
/// Packets that are read ahead for at a time: what they need has to stay in the second cache meanwhile.
const AHEAD: usize = 32;
/// Packets of recordings that wait for control at most.
const MAX_TAKEN: usize = 4096;

/// What control tells the forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaCommand {
    /// A new session.
    Add(Box<SessionPlan>),
    /// A new plan for a session: lines keep their statistics, and their latches where nothing changed that bears on them.
    Update(Box<SessionPlan>),
    /// A participant of a conference.
    Join(Box<SeatPlan>),
    /// A new plan for a participant.
    Change(Box<SeatPlan>),
    /// Something is wanted of a participant's seat.
    Seat(u64, SeatOrder),
    /// The end of a session, or of a participant's seat. Answered by [`MediaEvent::Stats`] with `last` set.
    Remove(u64),
    /// Asks for [`MediaEvent::Stats`].
    Query(u64),
    /// Whether what is accepted from the sides of a session is told packet by packet ([`MediaEvent::Taken`]). It costs a copy of
    /// each packet.
    Record(u64, bool),
    /// Plays a sound to a side, in the place of what the other side sends and of what was played before. Answered by
    /// [`MediaEvent::Played`] when it has ended, whatever the reason.
    Play(Box<PlayPlan>),
    /// What is played to a side goes on as this wants it.
    Tune(PlayPlace, PlayVoice),
    /// Ends what is played to a side.
    StopPlaying(PlayPlace),
}

/// A side of a line of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayPlace {
    /// Session.
    pub session: u64,
    /// Media line.
    pub line: u8,
    /// Side, 0 or 1.
    pub side: u8,
}

/// What the forwarder tells control.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaEvent {
    /// A side is locked to an address.
    Latched {
        /// Session.
        session: u64,
        /// Media line.
        line: u8,
        /// Side, 0 or 1.
        side: u8,
        /// RTP or RTCP.
        component: Component,
        /// The address.
        address: SocketAddr,
    },
    /// Nothing acceptable came from any side of the session for as long as its plan allows.
    Timeout {
        /// Session.
        session: u64,
        /// When the last packet was accepted, or the session was added.
        since: Time,
    },
    /// Statistics, asked for or at the end.
    Stats {
        /// Session.
        session: u64,
        /// Whether the session has ended.
        last: bool,
        /// The figures.
        stats: Box<SessionStats>,
    },
    /// A packet of a session that is recorded, in the clear.
    Taken {
        /// Session.
        session: u64,
        /// Media line.
        line: u8,
        /// The side from which it came, 0 or 1.
        side: u8,
        /// It came to the port for RTCP.
        rtcp: bool,
        /// Who sent it.
        source: SocketAddr,
        /// When it came.
        at: Time,
        /// RTP, RTCP, or whatever the line carries.
        bytes: Vec<u8>,
    },
    /// A sound is played no more.
    Played {
        /// To whom it was.
        place: PlayPlace,
        /// What was played of it.
        played: Played,
    },
    /// A participant of a conference did something.
    Seat {
        /// His session.
        session: u64,
        /// What.
        event: SeatEvent,
    },
    /// A command was refused; nothing has changed.
    Refused {
        /// Session.
        session: u64,
        /// Why.
        why: PlanError,
    },
}

/// Capacities of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwarderLimits {
    /// Sessions at a time; seats in conferences, too.
    pub sessions: usize,
    /// Conferences at a time.
    pub rooms: usize,
    /// Highest socket number plus one.
    pub sockets: u32,
}

impl Default for ForwarderLimits {
    fn default() -> Self {
        ForwarderLimits {
            sessions: 200_000,
            rooms: 10_000,
            sockets: 1 << 22,
        }
    }
}

#[derive(Debug)]
struct Session {
    id: u64,
    /// Flows by index, in order of their lines.
    flows: SmallVec<[u32; 2]>,
    inactivity: Option<Duration>,
    last_packet: Time,
    timer: Option<TimerKey>,
    /// Lines that a later plan no longer has.
    retired: Vec<FlowStats>,
    /// Its packets are told.
    recorded: bool,
}

/// The forwarder. See the module's text.
#[derive(Debug)]
pub struct Forwarder {
    limits: ForwarderLimits,
    sockets: SocketTable,
    flows: Slab<Flow>,
    sessions: Slab<Session>,
    by_id: BoundedMap<u64, u32>,
    timers: Wheel<u32>,
    /// Sides that are played to: flow, side, number of the playing.
    plays: Agenda<(u32, u8, u64)>,
    drops: Drops,
    reports: VecDeque<MediaEvent>,
    outbox: Outbox,
    /// Packets of recordings among the reports.
    taken: usize,
    rooms: Rooms,
    shortcuts: Shortcuts,
}

impl Forwarder {
    /// An empty one.
    pub fn new(limits: ForwarderLimits, key: HashKey) -> Forwarder {
        Forwarder {
            limits,
            sockets: SocketTable::new(limits.sockets),
            flows: Slab::new(),
            sessions: Slab::new(),
            by_id: BoundedMap::new(limits.sessions, key),
            timers: Wheel::new(),
            plays: Agenda::new(),
            drops: Drops::new(),
            reports: VecDeque::with_capacity(16),
            outbox: Outbox::new(),
            taken: 0,
            shortcuts: Shortcuts::default(),
            rooms: Rooms::new(
                RoomLimits {
                    rooms: limits.rooms,
                    seats: limits.sessions,
                    sockets: limits.sockets,
                },
                key,
            ),
        }
    }

    /// Sessions at present, seats in conferences included.
    pub fn sessions(&self) -> usize {
        self.sessions.len() + self.rooms.seats()
    }

    /// The conferences.
    pub fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Sockets with a flow or a seat at present.
    pub fn sockets(&self) -> usize {
        self.sockets.len() + self.rooms.socket_count()
    }

    /// Everything dropped so far, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The code point (DSCP) with which packets leave by `socket`.
    pub fn dscp(&self, socket: SocketId) -> Option<u8> {
        let Some(place) = self.sockets.get(socket) else {
            return self.rooms.dscp(socket);
        };
        let flow = self.flows.get(place.flow())?;
        Some(flow.side(place.side()).dscp())
    }

    /// The figures of a session as they are now, without what takes a shortcut at present: [`MediaCommand::Query`] has that, too.
    pub fn stats(&self, session: u64) -> Option<SessionStats> {
        let Some(&index) = self.by_id.get(&session) else {
            return self.rooms.stats(session);
        };
        Some(self.stats_of(self.sessions.get(index as usize)?))
    }

    fn stats_of(&self, session: &Session) -> SessionStats {
        let current = session
            .flows
            .iter()
            .filter_map(|&flow| self.flows.get(flow as usize))
            .map(Flow::stats);
        let mut flows: Vec<FlowStats> = session.retired.clone();
        flows.extend(current);
        SessionStats {
            last_packet: session.last_packet,
            shortcuts: self.shortcuts.allowed,
            seat: None,
            flows,
        }
    }

    fn add(&mut self, plan: &SessionPlan, now: Time) -> Result<(), PlanError> {
        plan.check(self.limits.sockets)?;
        if self.by_id.get(&plan.session).is_some() || self.rooms.holds(plan.session) {
            return Err(PlanError::SessionExists);
        }
        if self.by_id.is_full() {
            return Err(PlanError::Full);
        }
        self.check_sockets(plan, &[])?;
        let index = self.sessions.insert(Session {
            id: plan.session,
            flows: SmallVec::new(),
            inactivity: None,
            last_packet: now,
            timer: None,
            retired: Vec::new(),
            recorded: false,
        }) as u32;
        if self.by_id.insert(plan.session, index).is_err() {
            self.sessions.try_remove(index as usize);
            return Err(PlanError::Full);
        }
        self.apply(index, plan, now);
        Ok(())
    }

    fn update(&mut self, plan: &SessionPlan, now: Time) -> Result<(), PlanError> {
        plan.check(self.limits.sockets)?;
        let index = *self
            .by_id
            .get(&plan.session)
            .ok_or(PlanError::NoSuchSession)?;
        let own = self
            .sessions
            .get(index as usize)
            .map(|session| session.flows.clone())
            .unwrap_or_default();
        self.check_sockets(plan, &own)?;
        self.apply(index, plan, now);
        Ok(())
    }

    /// Every socket of the plan has to be free, or to belong to the session already.
    fn check_sockets(&self, plan: &SessionPlan, own: &[u32]) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if self.rooms.uses(socket) {
                return Err(PlanError::SocketInUse(socket));
            }
            if let Some(place) = self.sockets.get(socket)
                && !own.contains(&(place.flow() as u32))
            {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        Ok(())
    }

    /// Puts a checked plan in force.
    fn apply(&mut self, index: u32, plan: &SessionPlan, now: Time) {
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return;
        };
        let mut old = core::mem::take(&mut session.flows);
        for &flow in &old {
            if let Some(flow) = self.flows.get(flow as usize) {
                flow.sockets().for_each(|socket| self.sockets.clear(socket));
            }
        }
        for flow_plan in &plan.flows {
            let known = old.iter().position(|&flow| {
                self.flows
                    .get(flow as usize)
                    .is_some_and(|flow| flow.line() == flow_plan.line)
            });
            let flow = match known {
                Some(at) => old.remove(at),
                None => self.flows.insert(Flow::new(index, flow_plan)) as u32,
            };
            if let Some(slot) = self.flows.get_mut(flow as usize) {
                slot.apply(flow_plan);
                slot.set_recorded(session.recorded);
                for (socket, side, component) in slot.places() {
                    self.sockets.set(socket, Place::new(flow, side, component));
                }
            }
            session.flows.push(flow);
        }
        for flow in old {
            if let Some(flow) = self.flows.get_mut(flow as usize) {
                hush(flow, plan.session, &mut self.reports);
            }
            if let Some(flow) = self.flows.try_remove(flow as usize)
                && session.retired.len() < MAX_FLOWS
            {
                session.retired.push(flow.stats());
            }
        }
        session.inactivity = if plan.is_held() {
            plan.hold_inactivity
        } else {
            plan.inactivity
        };
        // A new plan is a sign of life: hold and its end begin the time anew.
        session.last_packet = now;
        self.arm(index, now);
    }

    /// A new seat, or with `change` a new plan for one.
    fn seat(&mut self, plan: &SeatPlan, change: bool, now: Time) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if self.sockets.get(socket).is_some() {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        match change {
            true => self.rooms.update(plan, now),
            false if self.by_id.get(&plan.session).is_some() => Err(PlanError::SessionExists),
            false => self.rooms.join(plan, now),
        }
    }

    fn remove(&mut self, id: u64, now: Time) -> Result<(), PlanError> {
        if self.rooms.holds(id) {
            let stats = Box::new(self.rooms.leave(id, now)?);
            self.reports.push_back(MediaEvent::Stats {
                session: id,
                last: true,
                stats,
            });
            return Ok(());
        }
        let index = self.by_id.remove(&id).ok_or(PlanError::NoSuchSession)?;
        let Some(session) = self.sessions.try_remove(index as usize) else {
            return Err(PlanError::NoSuchSession);
        };
        let stats = Box::new(self.stats_of(&session));
        if let Some(timer) = session.timer {
            self.timers.cancel(timer);
        }
        for flow in session.flows {
            if let Some(mut flow) = self.flows.try_remove(flow as usize) {
                hush(&mut flow, id, &mut self.reports);
                flow.sockets().for_each(|socket| self.sockets.clear(socket));
            }
        }
        self.reports.push_back(MediaEvent::Stats {
            session: id,
            last: true,
            stats,
        });
        Ok(())
    }

    fn record(&mut self, id: u64, recorded: bool) -> Result<(), PlanError> {
        let index = *self.by_id.get(&id).ok_or(PlanError::NoSuchSession)?;
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return Err(PlanError::NoSuchSession);
        };
        session.recorded = recorded;
        for flow in &session.flows {
            if let Some(flow) = self.flows.get_mut(*flow as usize) {
                flow.set_recorded(recorded);
            }
        }
        Ok(())
    }

    /// The flow of a line.
    fn flow_of(&self, session: u64, line: u8) -> Option<u32> {
        let index = *self.by_id.get(&session)?;
        let session = self.sessions.get(index as usize)?;
        let mut flows = session.flows.iter().copied();
        flows.find(|&flow| {
            self.flows
                .get(flow as usize)
                .is_some_and(|flow| flow.line() == line)
        })
    }

    fn play(&mut self, plan: Box<PlayPlan>, now: Time) {
        let place = PlayPlace {
            session: plan.session,
            line: plan.line,
            side: plan.side,
        };
        let (number, start) = (plan.number, plan.start as u64);
        let index = self.flow_of(place.session, place.line);
        let flow = index.and_then(|index| Some((index, self.flows.get_mut(index as usize)?)));
        let begun = match flow {
            Some((index, flow)) if place.side < 2 => {
                let begun = flow.play(plan, now);
                if begun.is_ok() {
                    self.plays.push(now, (index, place.side, number));
                }
                begun
            }
            _ => Err(PlayEnd::Gone),
        };
        let played = begun.unwrap_or_else(|end| {
            Some(Played {
                number,
                end,
                position: start,
                packets: 0,
            })
        });
        self.tell_played(place, played);
    }

    fn tell_played(&mut self, place: PlayPlace, played: Option<Played>) {
        let report = played.map(|played| MediaEvent::Played { place, played });
        self.reports.extend(report);
    }

    /// Sends what is due of what is played.
    fn play_due(&mut self, now: Time) {
        while let Some((_, (index, side, number))) = self.plays.pop_due(now) {
            let Some(flow) = self.flows.get_mut(index as usize) else {
                continue;
            };
            // Stopped or replaced in the meantime, or another flow in the same place.
            if flow.playing(side.into()) != Some(number) {
                continue;
            }
            match flow.play_due(side.into(), now, &mut self.outbox) {
                Ok(Some(due)) => self.plays.push(due, (index, side, number)),
                Ok(None) => {}
                Err(played) => {
                    let line = flow.line();
                    let session = self.sessions.get(flow.session() as usize);
                    if let Some(session) = session.map(|session| session.id) {
                        let place = PlayPlace {
                            session,
                            line,
                            side,
                        };
                        self.tell_played(place, Some(played));
                    }
                }
            }
        }
    }

    fn tune(&mut self, place: PlayPlace, voice: Option<PlayVoice>) {
        let index = self.flow_of(place.session, place.line);
        let flow = index.and_then(|index| self.flows.get_mut(index as usize));
        let played = flow.and_then(|flow| match voice {
            Some(voice) => flow.tune(place.side.into(), voice),
            None => flow.end_play(place.side.into(), PlayEnd::Stopped),
        });
        self.tell_played(place, played);
    }

    fn query(&mut self, id: u64) -> Result<(), PlanError> {
        let stats = self.stats(id).ok_or(PlanError::NoSuchSession)?;
        self.reports.push_back(MediaEvent::Stats {
            session: id,
            last: false,
            stats: Box::new(stats),
        });
        Ok(())
    }

    /// (Re)starts the timer of inactivity, `from` on.
    fn arm(&mut self, index: u32, from: Time) {
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return;
        };
        if let Some(timer) = session.timer.take() {
            self.timers.cancel(timer);
        }
        session.timer = session
            .inactivity
            .map(|span| self.timers.schedule(from + span, index));
    }

    /// The timer of a session fired: either its time is up, or packets came since and it waits for the rest. Packets do
    /// not touch the timer, so a standing call costs one look per span.
    fn check_activity(&mut self, index: u32, now: Time) {
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return;
        };
        session.timer = None;
        let Some(span) = session.inactivity else {
            return;
        };
        if session.last_packet + span > now {
            let from = session.last_packet;
            self.arm(index, from);
            return;
        }
        let id = session.id;
        if !self.close_shortcuts(index) {
            self.shortcuts
                .deferred
                .push_back(Deferred::Check(index, id));
            return;
        }
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return;
        };
        self.reports.push_back(MediaEvent::Timeout {
            session: session.id,
            since: session.last_packet,
        });
        // Control decides; where it lets the session stand, it is told again after another span.
        self.arm(index, now);
    }

    /// Asks for the end of all shortcuts of a session; whether there was none.
    fn close_shortcuts(&mut self, index: u32) -> bool {
        if let Some(session) = self.sessions.get(index as usize) {
            for &flow in &session.flows {
                if let Some(flow) = self.flows.get_mut(flow as usize) {
                    for side in 0..2 {
                        let (socket, stream) = flow.stream(side);
                        self.shortcuts.close(socket, stream);
                    }
                }
            }
        }
        self.shortcuts.is_settled()
    }

    /// Proposes a shortcut for the stream that comes to a socket, where there can be one.
    fn propose(&mut self, socket: SocketId) {
        let Some(place) = self.sockets.get(socket) else {
            return;
        };
        if place.component() != Component::Rtp {
            return;
        }
        let Some(flow) = self.flows.get_mut(place.flow()) else {
            return;
        };
        if flow.stream(place.side()).1.is_closed() && flow.shortcut(place.side()).is_some() {
            let (socket, stream) = flow.stream(place.side());
            self.shortcuts.want(socket, stream);
        }
    }

    /// Carries a command out once what it concerns has no shortcut.
    fn take(&mut self, command: MediaCommand, now: Time) {
        let concerned = match &command {
            MediaCommand::Update(plan) => Some(plan.session),
            MediaCommand::Remove(id) | MediaCommand::Query(id) | MediaCommand::Record(id, _) => {
                Some(*id)
            }
            // The other side's media must come to us, to be held back.
            MediaCommand::Play(plan) => Some(plan.session),
            MediaCommand::Add(_)
            | MediaCommand::Join(_)
            | MediaCommand::Change(_)
            | MediaCommand::Seat(..)
            | MediaCommand::Tune(..)
            | MediaCommand::StopPlaying(_) => None,
        };
        if let Some(&index) = concerned.and_then(|id| self.by_id.get(&id))
            && !self.close_shortcuts(index)
        {
            self.shortcuts
                .deferred
                .push_front(Deferred::Command(Box::new(command)));
            return;
        }
        self.carry_out(command, now);
    }

    /// Does what waited for shortcuts to be closed.
    fn settle(&mut self, now: Time) {
        while self.shortcuts.is_settled() {
            match self.shortcuts.deferred.pop_front() {
                Some(Deferred::Command(command)) => self.take(*command, now),
                Some(Deferred::Check(index, id)) => {
                    let session = self.sessions.get(index as usize);
                    if session.is_some_and(|session| session.id == id) {
                        self.check_activity(index, now);
                    }
                }
                None => return,
            }
        }
    }

    fn carry_out(&mut self, command: MediaCommand, now: Time) {
        let command = match command {
            // Whatever becomes of these is told as the end of a playing.
            MediaCommand::Play(plan) => return self.play(plan, now),
            MediaCommand::Tune(place, voice) => return self.tune(place, Some(voice)),
            MediaCommand::StopPlaying(place) => return self.tune(place, None),
            command => command,
        };
        let (session, result) = match &command {
            MediaCommand::Add(plan) => (plan.session, self.add(plan, now)),
            MediaCommand::Update(plan) => (plan.session, self.update(plan, now)),
            MediaCommand::Join(plan) => (plan.session, self.seat(plan, false, now)),
            MediaCommand::Change(plan) => (plan.session, self.seat(plan, true, now)),
            MediaCommand::Seat(id, order) => (*id, self.rooms.order(*id, *order)),
            MediaCommand::Remove(id) => (*id, self.remove(*id, now)),
            MediaCommand::Query(id) => (*id, self.query(*id)),
            MediaCommand::Record(id, recorded) => (*id, self.record(*id, *recorded)),
            MediaCommand::Play(_) | MediaCommand::Tune(..) | MediaCommand::StopPlaying(_) => return,
        };
        if let Err(why) = result {
            self.reports.push_back(MediaEvent::Refused { session, why });
        }
    }

    fn decide(&mut self, packet: &mut Packet<'_>, now: Time) -> Result<Verdict, DropReason> {
        let Some(place) = self.sockets.get(packet.socket) else {
            let seat = self.rooms.take(packet, now);
            return seat.unwrap_or(Err(DropReason::MediaNoFlow));
        };
        let flow = self
            .flows
            .get_mut(place.flow())
            .ok_or(DropReason::MediaNoFlow)?;
        let session = flow.session();
        let mut copy = Vec::new();
        let outcome = flow.forward(
            place.side(),
            place.component(),
            packet,
            &mut self.outbox,
            &mut copy,
        )?;
        if !copy.is_empty()
            && let Some(session) = self.sessions.get(session as usize)
        {
            if self.taken < MAX_TAKEN {
                self.taken += 1;
                self.reports.push_back(MediaEvent::Taken {
                    session: session.id,
                    line: flow.line(),
                    side: place.side() as u8,
                    rtcp: place.component() == Component::Rtcp,
                    source: packet.source,
                    at: packet.arrived,
                    bytes: copy,
                });
            } else {
                self.drops.count(DropReason::RecordOverflow);
            }
        }
        match outcome {
            Outcome::Punt(why) => Ok(Verdict::Punt(why)),
            Outcome::Accepted { latched, result } => {
                if let Some(session) = self.sessions.get_mut(session as usize) {
                    session.last_packet = now;
                    if let Some((component, address)) = latched {
                        if component == Component::Rtp {
                            // What goes to this side goes elsewhere from now on.
                            let (socket, stream) = flow.stream(1 - place.side());
                            self.shortcuts.close(socket, stream);
                        }
                        self.reports.push_back(MediaEvent::Latched {
                            session: session.id,
                            line: flow.line(),
                            side: place.side() as u8,
                            component,
                            address,
                        });
                    }
                }
                Ok(match result? {
                    Some((socket, destination)) => Verdict::Forward {
                        socket,
                        destination,
                    },
                    None => Verdict::Consumed,
                })
            }
        }
    }
}

/// Ends what is played to the sides of a flow that goes.
fn hush(flow: &mut Flow, session: u64, reports: &mut VecDeque<MediaEvent>) {
    let line = flow.line();
    for side in 0..2u8 {
        let place = PlayPlace {
            session,
            line,
            side,
        };
        let played = flow.end_play(side.into(), PlayEnd::Gone);
        reports.extend(played.map(|played| MediaEvent::Played { place, played }));
    }
}

impl Forward for Forwarder {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn command(&mut self, command: MediaCommand, now: Time) {
        if self.shortcuts.is_settled() && self.shortcuts.deferred.is_empty() {
            self.take(command, now);
        } else {
            self.shortcuts
                .deferred
                .push_back(Deferred::Command(Box::new(command)));
        }
    }

    fn expect(&mut self, sockets: &[Option<SocketId>]) {
        let mut read = 0;
        for sockets in sockets.chunks(AHEAD) {
            let places: SmallVec<[Place; AHEAD]> = sockets
                .iter()
                .filter_map(|socket| self.sockets.get((*socket)?))
                .collect();
            // Step by step along the pointers for all packets: within a step no read waits for another.
            for step in 0..3 {
                for place in &places {
                    if let Some(flow) = self.flows.get(place.flow()) {
                        read ^= flow.read_ahead(place.side(), step);
                        if step > 0
                            && let Some(session) = self.sessions.get(flow.session() as usize)
                        {
                            read ^= session.id;
                        }
                    }
                }
            }
        }
        // It has to look as if somebody wanted it, or the compiler leaves the reading out.
        core::hint::black_box(read);
    }

    fn forward(&mut self, packet: &mut Packet<'_>, now: Time) -> Verdict {
        let socket = packet.socket;
        let decided = self.decide(packet, now);
        if self.shortcuts.allowed {
            self.propose(socket);
        }
        match decided {
            Ok(verdict) => verdict,
            Err(reason) => {
                self.drops.count(reason);
                Verdict::Drop(reason)
            }
        }
    }

    fn timeout(&mut self, now: Time) {
        while let Some(index) = self.timers.pop_due(now) {
            self.check_activity(index, now);
        }
        self.play_due(now);
        self.rooms.timeout(now);
    }

    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let conference = self.rooms.next_packet();
        conference.or_else(|| self.outbox.next())
    }

    fn next_report(&mut self) -> Option<MediaEvent> {
        let Some(report) = self.reports.pop_front() else {
            return self.rooms.next_report();
        };
        if let MediaEvent::Taken { .. } = report {
            self.taken -= 1;
        }
        Some(report)
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let inactivity = self.timers.next_at();
        let inactivity = inactivity.map(|at| Deadline::new(at, "media inactivity"));
        let play = self.plays.next_at();
        let play = play.map(|at| Deadline::new(at, "sound"));
        Deadline::earlier(
            Deadline::earlier(inactivity, play),
            self.rooms.next_deadline(),
        )
    }

    fn allow_shortcuts(&mut self, allowed: bool) {
        self.shortcuts.allowed = allowed;
    }

    fn next_shortcut(&mut self) -> Option<ShortcutChange> {
        while let Some(socket) = self.shortcuts.next() {
            let Some(place) = self.sockets.get(socket) else {
                continue;
            };
            let Some(flow) = self.flows.get_mut(place.flow()) else {
                continue;
            };
            let shortcut = flow.shortcut(place.side());
            let (_, stream) = flow.stream(place.side());
            match (Shortcuts::wish(stream, shortcut.is_some()), shortcut) {
                (Some(Wish::Open), Some(shortcut)) => return Some(ShortcutChange::Open(shortcut)),
                (Some(Wish::Close), _) => return Some(ShortcutChange::Close(socket)),
                _ => {}
            }
        }
        None
    }

    fn shortcut_closed(&mut self, socket: SocketId, passed: &Passed, now: Time) {
        let Some(place) = self.sockets.get(socket) else {
            return;
        };
        let Some(flow) = self.flows.get_mut(place.flow()) else {
            return;
        };
        flow.passed(place.side(), passed);
        self.shortcuts.closed(flow.stream(place.side()).1, passed);
        if passed.packets > 0
            && let Some(session) = self.sessions.get_mut(flow.session() as usize)
        {
            session.last_packet = session.last_packet.max(passed.arrived);
        }
        self.settle(now);
    }
}
