//! The media forwarder: it relays packets between the two sides of each media line by table lookup. It also transcodes,
//! plays sounds and hosts conferences.
//!
//! Control describes a session by a [`SessionPlan`] of plain values. The forwarder compiles the plan to records that
//! are found by socket number, without a hash. For each packet it checks the sender's address ([`latch`](self),
//! symmetric RTP) and the packet's format, and determines the destination. It never waits for control, and does not
//! allocate in the steady state.
//!
//! **Latching.** Packets are accepted from a side's latched address only. The signalled address is valid at once.
//! Another address is learned, where the plan allows it, from [`LATCH_PACKETS`] packets in sequence, and is locked
//! then. Packets from further addresses are dropped and counted until a new offer or answer signals a change, even
//! while the locked address is silent. Only the signalled address takes precedence over a learned one. When a side
//! sends or receives again after hold, another permitted address may take the place of the locked one, because mappings
//! of a NAT end during silence.
//!
//! **Transcoding.** If the sides have no common codec, packets of a side are decoded and encoded again
//! ([`TranscodePlan`]). The resulting packets are returned by [`Forward::next_packet`], and RTCP is rewritten to match
//! them.
//!
//! **SRTP.** A side may use SRTP ([`Protection`]): packets from it are unprotected and packets to it are protected, in
//! place. No packet of such a side has any effect, on the latch least of all, before its authentication tag is
//! verified. DTLS on such a side and STUN on any side are punted to control.

mod digits;
pub(crate) mod flow;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod generated;
mod latch;
mod messages;
mod numbering;
mod offload;
mod plan;
mod playback;
mod pseudonyms;
pub(crate) mod sockets;
mod srtp;
mod statistics;
mod transcode;

pub use latch::LATCH_PACKETS;
pub use messages::{MAX_PACKET, MediaCommand, MediaEvent, PlaybackTarget};
pub use plan::{
    Carriage, Component, FlowPlan, Latching, MAX_FLOWS, PlanError, SessionPlan, SidePlan,
};
pub use playback::{PlaybackEncoding, PlaybackEnd, PlaybackPlan, PlaybackResult, can_play};
pub use srtp::{Keys, Protection};
pub use statistics::{
    Counters, FlowStats, LossTotals, MAX_SOURCES, SessionStats, SideStats, SourceStats,
};
pub use transcode::{EventMapping, PayloadClock, TranscodePlan};

use crate::conference::{BridgeLimits, ConferenceBridge, ParticipantPlan};
use core::time::Duration;
use engine::PagedSlab;
use engine::timers::{TimerHeap, TimerKey, TimerWheel};
use engine::{
    BoundedMap, Deadline, DropReason, Drops, Forward, HashKey, MediaPacket, OffloadChange,
    OffloadStatistics, PacketVerdict, SocketId, Time,
};
use flow::{FlowVerdict, MediaFlow};
use generated::PacketOutbox;
use offload::{Deferred, OffloadRequest, Offloads};
use pseudonyms::CnamePseudonyms;
use smallvec::SmallVec;
use sockets::{SocketOwner, SocketTable};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Packets that are prefetched for at a time: their records have to stay in the second-level cache until they are
/// handled.
const PREFETCH_CHUNK: usize = 32;
/// Recorded packets that wait for control at most.
const MAX_QUEUED_RECORDED: usize = 4096;

/// Capacities of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwarderLimits {
    /// Sessions at a time, participants of conferences included.
    pub sessions: usize,
    /// Conferences at a time.
    pub conferences: usize,
    /// Highest socket number plus one.
    pub sockets: u32,
}

impl Default for ForwarderLimits {
    fn default() -> Self {
        ForwarderLimits {
            sessions: 200_000,
            conferences: 10_000,
            sockets: 1 << 22,
        }
    }
}

#[derive(Debug)]
struct MediaSession {
    id: u64,
    /// Indices of the flows, in the order of their media lines.
    flows: SmallVec<[u32; 2]>,
    inactivity: Option<Duration>,
    last_packet: Time,
    timer: Option<TimerKey>,
    /// Statistics of lines that a later plan removed.
    retired: Vec<FlowStats>,
    /// Whether accepted packets are reported by [`MediaEvent::Recorded`].
    recorded: bool,
}

/// The forwarder, see the module's documentation.
#[derive(Debug)]
pub struct Forwarder {
    limits: ForwarderLimits,
    sockets: SocketTable,
    flows: PagedSlab<MediaFlow>,
    sessions: PagedSlab<MediaSession>,
    by_id: BoundedMap<u64, u32>,
    timers: TimerWheel<u32>,
    /// Running playbacks by due time: flow, side, playback number.
    due_playbacks: TimerHeap<(u32, u8, u64)>,
    drops: Drops,
    reports: VecDeque<MediaEvent>,
    outbox: PacketOutbox,
    /// RTP packets of ended sessions.
    ended_packets: u64,
    /// Recorded packets among the reports.
    queued_recorded: usize,
    bridge: ConferenceBridge,
    offloads: Offloads,
    /// Key of the pseudonyms of CNAMEs.
    cname_key: HashKey,
}

/// RTP packets received from both sides of a media line.
fn received_packets(flow: &FlowStats) -> u64 {
    flow.sides.iter().map(|side| side.received.packets).sum()
}

impl Forwarder {
    /// A forwarder without sessions.
    pub fn new(limits: ForwarderLimits, key: HashKey) -> Forwarder {
        Forwarder {
            limits,
            sockets: SocketTable::new(limits.sockets),
            flows: PagedSlab::new(),
            sessions: PagedSlab::new(),
            by_id: BoundedMap::new(limits.sessions, key),
            timers: TimerWheel::new(),
            due_playbacks: TimerHeap::new(),
            drops: Drops::new(),
            reports: VecDeque::with_capacity(16),
            outbox: PacketOutbox::new(),
            ended_packets: 0,
            queued_recorded: 0,
            offloads: Offloads::default(),
            cname_key: key,
            bridge: ConferenceBridge::new(
                BridgeLimits {
                    conferences: limits.conferences,
                    participants: limits.sessions,
                    sockets: limits.sockets,
                },
                key,
            ),
        }
    }

    /// Number of sessions, participants of conferences included.
    pub fn sessions(&self) -> usize {
        self.sessions.len() + self.bridge.participants()
    }

    /// The conferences of this forwarder.
    pub fn bridge(&self) -> &ConferenceBridge {
        &self.bridge
    }

    /// RTP packets accepted from any side since the start: of all sessions; of participants of conferences once they
    /// have left; of streams relayed by the kernel as far as it has reported them.
    pub fn packets(&self) -> u64 {
        let retired = self
            .sessions
            .iter()
            .flat_map(|(_, session)| &session.retired);
        let retired: u64 = retired.map(received_packets).sum();
        let current: u64 = self.flows.iter().map(|(_, flow)| flow.packets()).sum();
        self.ended_packets + retired + current
    }

    /// Number of sockets in use by flows and participants.
    pub fn sockets(&self) -> usize {
        self.sockets.len() + self.bridge.socket_count()
    }

    /// All drops so far, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Statistics of a session. Packets that the kernel relays at present are missing; [`MediaCommand::Query`] includes
    /// them.
    pub fn stats(&self, session: u64) -> Option<SessionStats> {
        let Some(&index) = self.by_id.get(&session) else {
            return self.bridge.stats(session);
        };
        Some(self.stats_of(self.sessions.get(index as usize)?))
    }

    fn stats_of(&self, session: &MediaSession) -> SessionStats {
        let current = session
            .flows
            .iter()
            .filter_map(|&flow| self.flows.get(flow as usize))
            .map(MediaFlow::stats);
        let mut flows: Vec<FlowStats> = session.retired.clone();
        flows.extend(current);
        SessionStats {
            last_packet: session.last_packet,
            offload_allowed: self.offloads.allowed,
            participant: None,
            flows,
        }
    }

    /// Adds a session.
    fn add(&mut self, plan: &SessionPlan, now: Time) -> Result<(), PlanError> {
        plan.check(self.limits.sockets)?;
        if self.by_id.get(&plan.session).is_some() || self.bridge.holds(plan.session) {
            return Err(PlanError::SessionExists);
        }
        if self.by_id.is_full() {
            return Err(PlanError::Full);
        }
        self.check_sockets(plan, &[])?;
        let index = self.sessions.insert(MediaSession {
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

    /// Changes the plan of a session.
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

    /// Checks that every socket of the plan is free or belongs to the session already.
    fn check_sockets(&self, plan: &SessionPlan, own: &[u32]) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if self.bridge.uses(socket) {
                return Err(PlanError::SocketInUse(socket));
            }
            if let Some(owner) = self.sockets.get(socket)
                && !own.contains(&(owner.flow() as u32))
            {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        Ok(())
    }

    /// Applies a checked plan.
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
                None => {
                    let names = CnamePseudonyms::new(self.cname_key, plan.session);
                    self.flows.insert(MediaFlow::new(index, flow_plan, names)) as u32
                }
            };
            if let Some(slot) = self.flows.get_mut(flow as usize) {
                slot.apply(flow_plan);
                slot.set_recorded(session.recorded);
                for (socket, side, component) in slot.socket_roles() {
                    self.sockets
                        .set(socket, SocketOwner::new(flow, side, component));
                }
            }
            session.flows.push(flow);
        }
        for flow in old {
            if let Some(flow) = self.flows.get_mut(flow as usize) {
                end_playbacks(flow, plan.session, &mut self.reports);
            }
            if let Some(flow) = self.flows.try_remove(flow as usize) {
                retire(&mut session.retired, flow.stats());
            }
        }
        session.inactivity = if plan.is_held() {
            plan.hold_inactivity
        } else {
            plan.inactivity
        };
        // A new plan restarts the inactivity timer, so that hold and its end begin a new period.
        session.last_packet = now;
        self.arm(index, now);
    }

    /// Adds a participant, or with `change` applies a new plan to one.
    fn apply_participant(
        &mut self,
        plan: &ParticipantPlan,
        change: bool,
        now: Time,
    ) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if self.sockets.get(socket).is_some() {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        match change {
            true => self.bridge.update(plan, now),
            false if self.by_id.get(&plan.session).is_some() => Err(PlanError::SessionExists),
            false => self.bridge.join(plan, now),
        }
    }

    /// Ends a session or removes a participant, and reports its final statistics.
    fn remove(&mut self, id: u64, now: Time) -> Result<(), PlanError> {
        if self.bridge.holds(id) {
            let stats = Box::new(self.bridge.leave(id, now)?);
            self.ended_packets += stats.flows.iter().map(received_packets).sum::<u64>();
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
                end_playbacks(&mut flow, id, &mut self.reports);
                flow.sockets().for_each(|socket| self.sockets.clear(socket));
            }
        }
        self.ended_packets += stats.flows.iter().map(received_packets).sum::<u64>();
        self.reports.push_back(MediaEvent::Stats {
            session: id,
            last: true,
            stats,
        });
        Ok(())
    }

    /// Turns the recording of a session on or off.
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

    /// The flow of a media line.
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

    /// Starts a playback. A failure is reported as its end.
    fn play(&mut self, plan: Box<PlaybackPlan>, now: Time) {
        let target = PlaybackTarget {
            session: plan.session,
            line: plan.line,
            side: plan.side,
        };
        let (number, start) = (plan.number, plan.start as u64);
        let index = self.flow_of(target.session, target.line);
        let flow = index.and_then(|index| Some((index, self.flows.get_mut(index as usize)?)));
        let begun = match flow {
            Some((index, flow)) if target.side < 2 => {
                let begun = flow.play(plan, now);
                if begun.is_ok() {
                    self.due_playbacks.push(now, (index, target.side, number));
                }
                begun
            }
            _ => Err(PlaybackEnd::Gone),
        };
        let result = begun.unwrap_or_else(|end| {
            Some(PlaybackResult {
                number,
                end,
                position: start,
                packets: 0,
            })
        });
        self.report_playback(target, result);
    }

    fn report_playback(&mut self, target: PlaybackTarget, result: Option<PlaybackResult>) {
        let report = result.map(|result| MediaEvent::PlaybackEnded { target, result });
        self.reports.extend(report);
    }

    /// Sends the packets of all playbacks that are due.
    fn send_due_playback(&mut self, now: Time) {
        while let Some((_, (index, side, number))) = self.due_playbacks.pop_due(now) {
            let Some(flow) = self.flows.get_mut(index as usize) else {
                continue;
            };
            // The playback was stopped or replaced in the meantime, or another flow has this index now.
            if flow.playback_number(side.into()) != Some(number) {
                continue;
            }
            match flow.send_due_playback(side.into(), now, &mut self.outbox) {
                Ok(Some(due)) => self.due_playbacks.push(due, (index, side, number)),
                Ok(None) => {}
                Err(result) => {
                    let line = flow.line();
                    let session = self.sessions.get(flow.session() as usize);
                    if let Some(session) = session.map(|session| session.id) {
                        let target = PlaybackTarget {
                            session,
                            line,
                            side,
                        };
                        self.report_playback(target, Some(result));
                    }
                }
            }
        }
    }

    fn change_playback(&mut self, target: PlaybackTarget, encoding: Option<PlaybackEncoding>) {
        let index = self.flow_of(target.session, target.line);
        let flow = index.and_then(|index| self.flows.get_mut(index as usize));
        let result = flow.and_then(|flow| match encoding {
            Some(encoding) => flow.change_playback(target.side.into(), encoding),
            None => flow.end_playback(target.side.into(), PlaybackEnd::Stopped),
        });
        self.report_playback(target, result);
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

    /// Restarts the inactivity timer; the period begins at `from`.
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

    /// Handles the inactivity timer: either the period is over, or packets were received and the timer is armed for the
    /// rest. Packets do not touch the timer, so an active call costs one check per period.
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
        if !self.close_offloads(index) {
            self.offloads.deferred.push_back(Deferred::Check(index, id));
            return;
        }
        let Some(session) = self.sessions.get_mut(index as usize) else {
            return;
        };
        self.reports.push_back(MediaEvent::Timeout {
            session: session.id,
            since: session.last_packet,
        });
        // Control decides about the session. If it is kept, the timeout is reported again after another period.
        self.arm(index, now);
    }

    /// Requests the end of all offloads of a session. Returns whether none is left.
    fn close_offloads(&mut self, index: u32) -> bool {
        if let Some(session) = self.sessions.get(index as usize) {
            for &flow in &session.flows {
                if let Some(flow) = self.flows.get_mut(flow as usize) {
                    for side in 0..2 {
                        let (socket, stream) = flow.stream(side);
                        self.offloads.close(socket, stream);
                    }
                }
            }
        }
        self.offloads.is_settled()
    }

    /// Requests the offload of the stream received on a socket, if it qualifies.
    fn request_offload(&mut self, socket: SocketId) {
        let Some(owner) = self.sockets.get(socket) else {
            return;
        };
        if owner.component() != Component::Rtp {
            return;
        }
        let Some(flow) = self.flows.get_mut(owner.flow()) else {
            return;
        };
        if flow.stream(owner.side()).1.is_closed() && flow.offload(owner.side()).is_some() {
            let (socket, stream) = flow.stream(owner.side());
            self.offloads.request(socket, stream);
        }
    }

    /// Executes a command once no stream of its session is offloaded; defers it until then.
    fn execute_when_settled(&mut self, command: MediaCommand, now: Time) {
        let concerned = match &command {
            MediaCommand::Update(plan) => Some(plan.session),
            MediaCommand::Remove(id) | MediaCommand::Query(id) | MediaCommand::Record(id, _) => {
                Some(*id)
            }
            // Packets of the other side have to reach the forwarder, which drops them during a playback.
            MediaCommand::Play(plan) => Some(plan.session),
            MediaCommand::Add(_)
            | MediaCommand::AddParticipant(_)
            | MediaCommand::UpdateParticipant(_)
            | MediaCommand::ControlParticipant(..)
            | MediaCommand::ChangePlayback(..)
            | MediaCommand::StopPlayback(_) => None,
        };
        if let Some(&index) = concerned.and_then(|id| self.by_id.get(&id))
            && !self.close_offloads(index)
        {
            self.offloads
                .deferred
                .push_front(Deferred::Command(Box::new(command)));
            return;
        }
        self.execute(command, now);
    }

    /// Executes commands and checks that were deferred until offloads had ended.
    fn run_deferred(&mut self, now: Time) {
        while self.offloads.is_settled() {
            match self.offloads.deferred.pop_front() {
                Some(Deferred::Command(command)) => self.execute_when_settled(*command, now),
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

    /// Executes a command whose session has no offloaded streams.
    fn execute(&mut self, command: MediaCommand, now: Time) {
        let command = match command {
            // The result of these is always reported by `PlaybackEnded`.
            MediaCommand::Play(plan) => return self.play(plan, now),
            MediaCommand::ChangePlayback(target, encoding) => {
                return self.change_playback(target, Some(encoding));
            }
            MediaCommand::StopPlayback(target) => return self.change_playback(target, None),
            command => command,
        };
        let (session, result) = match &command {
            MediaCommand::Add(plan) => (plan.session, self.add(plan, now)),
            MediaCommand::Update(plan) => (plan.session, self.update(plan, now)),
            MediaCommand::AddParticipant(plan) => {
                (plan.session, self.apply_participant(plan, false, now))
            }
            MediaCommand::UpdateParticipant(plan) => {
                (plan.session, self.apply_participant(plan, true, now))
            }
            MediaCommand::ControlParticipant(id, command) => {
                (*id, self.bridge.control(*id, *command))
            }
            MediaCommand::Remove(id) => (*id, self.remove(*id, now)),
            MediaCommand::Query(id) => (*id, self.query(*id)),
            MediaCommand::Record(id, recorded) => (*id, self.record(*id, *recorded)),
            MediaCommand::Play(_)
            | MediaCommand::ChangePlayback(..)
            | MediaCommand::StopPlayback(_) => return,
        };
        if let Err(error) = result {
            self.reports
                .push_back(MediaEvent::Refused { session, error });
        }
    }

    /// Processes a packet: a participant's, or one of a flow.
    fn handle_packet(
        &mut self,
        packet: &mut MediaPacket<'_>,
        now: Time,
    ) -> Result<PacketVerdict, DropReason> {
        let Some(owner) = self.sockets.get(packet.socket) else {
            let result = self.bridge.receive(packet, now);
            return result.unwrap_or(Err(DropReason::MediaNoFlow));
        };
        let flow = self
            .flows
            .get_mut(owner.flow())
            .ok_or(DropReason::MediaNoFlow)?;
        let session = flow.session();
        let mut recorded_bytes = Vec::new();
        let outcome = flow.forward(
            owner.side(),
            owner.component(),
            packet,
            &mut self.outbox,
            &mut recorded_bytes,
        )?;
        if !recorded_bytes.is_empty()
            && let Some(session) = self.sessions.get(session as usize)
        {
            if self.queued_recorded < MAX_QUEUED_RECORDED {
                self.queued_recorded += 1;
                self.reports.push_back(MediaEvent::Recorded {
                    session: session.id,
                    line: flow.line(),
                    side: owner.side() as u8,
                    rtcp: owner.component() == Component::Rtcp,
                    source: packet.source,
                    received_at: packet.arrived,
                    bytes: recorded_bytes,
                });
            } else {
                self.drops.count(DropReason::RecordingOverflow);
            }
        }
        match outcome {
            FlowVerdict::Punt(reason) => Ok(PacketVerdict::Punt(reason)),
            FlowVerdict::Accepted { latched, result } => {
                if let Some(session) = self.sessions.get_mut(session as usize) {
                    session.last_packet = now;
                    if let Some((component, address)) = latched {
                        if component == Component::Rtp {
                            // Media towards this side has another destination from now on.
                            let (socket, stream) = flow.stream(1 - owner.side());
                            self.offloads.close(socket, stream);
                        }
                        self.reports.push_back(MediaEvent::Latched {
                            session: session.id,
                            line: flow.line(),
                            side: owner.side() as u8,
                            component,
                            address,
                        });
                    }
                }
                Ok(match result? {
                    Some((socket, destination)) => PacketVerdict::Forward {
                        socket,
                        destination,
                    },
                    None => PacketVerdict::Consumed,
                })
            }
        }
    }
}

/// Keeps the statistics of a removed line. With too many of them, those of a line are added up.
fn retire(retired: &mut Vec<FlowStats>, stats: FlowStats) {
    if retired.len() < MAX_FLOWS {
        retired.push(stats);
    } else if let Some(same) = retired.iter_mut().find(|flow| flow.line == stats.line) {
        same.add(&stats);
    } else if let Some(last) = retired.last_mut() {
        last.add(&stats);
    }
}

/// Ends the playbacks of a flow that is removed.
fn end_playbacks(flow: &mut MediaFlow, session: u64, reports: &mut VecDeque<MediaEvent>) {
    let line = flow.line();
    for side in 0..2u8 {
        let target = PlaybackTarget {
            session,
            line,
            side,
        };
        let result = flow.end_playback(side.into(), PlaybackEnd::Gone);
        reports.extend(result.map(|result| MediaEvent::PlaybackEnded { target, result }));
    }
}

impl Forward for Forwarder {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn command(&mut self, command: MediaCommand, now: Time) {
        if self.offloads.is_settled() && self.offloads.deferred.is_empty() {
            self.execute_when_settled(command, now);
        } else {
            self.offloads
                .deferred
                .push_back(Deferred::Command(Box::new(command)));
        }
    }

    fn prefetch(&mut self, sockets: &[Option<SocketId>]) {
        let mut touched = 0;
        for sockets in sockets.chunks(PREFETCH_CHUNK) {
            let owners: SmallVec<[SocketOwner; PREFETCH_CHUNK]> = sockets
                .iter()
                .filter_map(|socket| self.sockets.get((*socket)?))
                .collect();
            // Follow the pointers one level at a time for all packets, so that the cache misses of one level overlap.
            for step in 0..3 {
                for owner in &owners {
                    if let Some(flow) = self.flows.get(owner.flow()) {
                        touched ^= flow.prefetch(owner.side(), step);
                        if step > 0
                            && let Some(session) = self.sessions.get(flow.session() as usize)
                        {
                            touched ^= session.id;
                        }
                    }
                }
            }
        }
        // Without a use of the value the compiler would remove the reads.
        core::hint::black_box(touched);
    }

    fn forward(&mut self, packet: &mut MediaPacket<'_>, now: Time) -> PacketVerdict {
        let socket = packet.socket;
        let decided = self.handle_packet(packet, now);
        if self.offloads.allowed {
            self.request_offload(socket);
        }
        match decided {
            Ok(verdict) => verdict,
            Err(reason) => {
                self.drops.count(reason);
                PacketVerdict::Drop(reason)
            }
        }
    }

    fn timeout(&mut self, now: Time) {
        while let Some(index) = self.timers.pop_due(now) {
            self.check_activity(index, now);
        }
        self.send_due_playback(now);
        self.bridge.timeout(now);
    }

    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let conference = self.bridge.next_packet();
        conference.or_else(|| self.outbox.next())
    }

    fn next_report(&mut self) -> Option<MediaEvent> {
        let Some(report) = self.reports.pop_front() else {
            return self.bridge.next_report();
        };
        if let MediaEvent::Recorded { .. } = report {
            self.queued_recorded -= 1;
        }
        Some(report)
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let inactivity = self.timers.next_at();
        let inactivity = inactivity.map(|at| Deadline::new(at, "media inactivity"));
        let play = self.due_playbacks.next_at();
        let play = play.map(|at| Deadline::new(at, "playback"));
        Deadline::earlier(
            Deadline::earlier(inactivity, play),
            self.bridge.next_deadline(),
        )
    }

    fn allow_offload(&mut self, allowed: bool) {
        self.offloads.allowed = allowed;
    }

    fn next_offload_change(&mut self) -> Option<OffloadChange> {
        while let Some(socket) = self.offloads.next() {
            let Some(owner) = self.sockets.get(socket) else {
                continue;
            };
            let Some(flow) = self.flows.get_mut(owner.flow()) else {
                continue;
            };
            let entry = flow.offload(owner.side());
            let (_, stream) = flow.stream(owner.side());
            match (Offloads::next_request(stream, entry.is_some()), entry) {
                (Some(OffloadRequest::Open), Some(entry)) => {
                    return Some(OffloadChange::Open(entry));
                }
                (Some(OffloadRequest::Close), _) => return Some(OffloadChange::Close(socket)),
                _ => {}
            }
        }
        None
    }

    fn offload_closed(&mut self, socket: SocketId, offloaded: &OffloadStatistics, now: Time) {
        let Some(owner) = self.sockets.get(socket) else {
            return;
        };
        let Some(flow) = self.flows.get_mut(owner.flow()) else {
            return;
        };
        flow.add_offloaded(owner.side(), offloaded);
        self.offloads.closed(flow.stream(owner.side()).1, offloaded);
        if offloaded.packets > 0
            && let Some(session) = self.sessions.get_mut(flow.session() as usize)
        {
            session.last_packet = session.last_packet.max(offloaded.arrived);
        }
        self.run_deferred(now);
    }
}
