//! Conferences: every participant receives the mix of the others.
//!
//! A conference has a **clock of 20 ms**. In each turn, every participant decoder supplies the participant's audio, the
//! loudest speakers are mixed, and each participant is sent the mix without its own audio. Participants that do not
//! speak receive the same mix, so those with the same codec and packet time share one encoder. With G.729, speech is
//! detected from the gains in the frames, and frames without speech are not decoded.
//!
//! Encoding takes long, packets have to be sent on time, and an engine has no clock. So a turn is prepared **ahead**,
//! in small steps, and sent at its deadline. Deadlines are absolute: multiples of 20 ms plus the offset of the
//! conference's phase. A step is started only if by its estimated cost it ends before the next deadline. Conferences
//! are spread over [`PHASES`] phases, which spreads CPU load and packets over time.
//!
//! In the steady state nothing is allocated per packet or per turn.

mod commands;
pub(crate) mod decoder;
mod jitter_buffer;
mod messages;
mod mix_encoder;
mod outbox;
mod participant;
mod plan;
mod speech;
mod tones;

pub use messages::{
    DecoderFigures, MuteState, ParticipantCommand, ParticipantEvent, ParticipantFigures,
};
pub use plan::{ConferenceSettings, MAX_MUTE_DIGITS, ParticipantPlan, VoiceFormat};

use crate::forward::sockets::{SocketOwner, SocketTable};
use crate::forward::{FlowStats, MediaEvent, PlanError, SessionStats, SideStats};
use codec::{Kind, mix};
use core::time::Duration;
use engine::PagedSlab;
use engine::{
    BoundedMap, Deadline, DropReason, HashKey, MediaPacket, PacketVerdict, SocketId, Time,
};
use mix_encoder::{EncodingKey, MixEncoder};
use outbox::{TurnOutbox, destination};
use participant::{CodecState, Participant};
use std::collections::VecDeque;
use std::net::SocketAddr;
use tones::ToneSequence;

/// Duration of a turn in milliseconds.
pub const TURN_MS: u32 = 20;
/// Number of phases in a turn over which conferences are spread.
pub const PHASES: usize = 4;
/// Samples of a turn at 48 kHz, the highest rate.
const MAX_TURN: usize = 960;
const TURN: Duration = Duration::from_millis(TURN_MS as u64);
/// Time before its deadline at which the preparation of a turn begins.
const PREPARATION: Duration = Duration::from_millis(10);
/// If packet times end in the middle of turns, every other packet is sent this much later.
const HALF_TURN: Duration = Duration::from_millis(10);
/// Margin between the estimated end of a step and the next deadline.
const MARGIN_NS: u64 = 80_000;
/// Estimated cost of the steps that one timeout may run; between timeouts the driver receives packets.
const MAX_BATCH_NS: u64 = 100_000;

/// The sampling rate of a codec in a conference, in Hz.
pub(crate) fn rate_of(kind: Kind) -> u32 {
    kind.sample_rates().first().copied().unwrap_or(8000)
}

/// Limits of the conferences of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeLimits {
    /// Conferences at a time.
    pub conferences: usize,
    /// Participants at a time, of all conferences.
    pub participants: usize,
    /// Highest socket number plus one.
    pub sockets: u32,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeFigures {
    /// Turns sent, of all conferences.
    pub turns: u64,
    /// Turns that were not completely prepared at their deadline.
    pub unprepared: u64,
    /// Turns that were skipped, because the thread was late by more than a turn.
    pub missed: u64,
    /// Mixes encoded.
    pub encoded: u64,
    /// Packets sent.
    pub packets: u64,
}

/// Selects an outbox of a conference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboxKind {
    OnTime,
    HalfTurn,
    Rtcp,
}

/// Progress of the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnStage {
    Begin,
    /// Decode this participant next.
    Decode(usize),
    /// Encode the mix for this shared encoder next.
    EncodeShared(usize),
    /// Encode the mix of this participant next, if it needs its own.
    EncodeOwn(usize),
    Ready,
}

#[derive(Debug)]
/// State of one conference.
struct ConferenceMixer {
    number: u64,
    settings: ConferenceSettings,
    /// Mixing rate in Hz: the highest rate of the participants' codecs.
    rate: u32,
    /// Index of the phase in which its turns are sent.
    phase: usize,
    /// Number of the next turn.
    turn: u64,
    /// Time of the next turn on the conference's clock.
    clock_ms: u64,
    participants: Vec<u32>,
    /// One encoder per encoding key, for all participants that receive the full mix.
    shared_encoders: Vec<MixEncoder>,
    /// Sum of all speakers, not clipped, from which own mixes are derived.
    sum: Vec<i32>,
    /// The clipped sum.
    full_mix: Vec<i16>,
    /// Buffer for own mixes and tones.
    mix: Vec<i16>,
    /// The entry or leave tone that all participants receive.
    tone: Option<ToneSequence>,
    stage: TurnStage,
    /// Packets for the deadline of the turn.
    on_time: TurnOutbox,
    /// Packets for half a turn later.
    half: TurnOutbox,
    rtcp: TurnOutbox,
}

impl ConferenceMixer {
    fn turn_samples(&self) -> usize {
        (self.rate / 1000 * TURN_MS) as usize
    }

    fn outbox(&self, outbox: OutboxKind) -> &TurnOutbox {
        match outbox {
            OutboxKind::OnTime => &self.on_time,
            OutboxKind::HalfTurn => &self.half,
            OutboxKind::Rtcp => &self.rtcp,
        }
    }
}

/// Conferences that send at the same time.
#[derive(Debug, Default)]
struct Phase {
    conferences: Vec<u32>,
    /// Index of the conference whose turn is being prepared.
    next: usize,
    /// Deadline of the turn that is being prepared; none without conferences.
    departs_at: Option<Time>,
    /// Deadline of the packets that are sent half a turn later.
    half_at: Option<Time>,
}

/// The conferences of a forwarder, see the module's documentation.
#[derive(Debug)]
pub struct ConferenceBridge {
    limits: BridgeLimits,
    sockets: SocketTable,
    participants: PagedSlab<Participant>,
    by_session: BoundedMap<u64, u32>,
    conferences: PagedSlab<ConferenceMixer>,
    by_number: BoundedMap<u64, u32>,
    phases: [Phase; PHASES],
    /// Packets to be returned by [`ConferenceBridge::next_packet`].
    sending: VecDeque<(u32, OutboxKind, u32)>,
    final_reports: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    final_report: Vec<u8>,
    buffer: Vec<u8>,
    /// No preparation step is started before this time.
    next_work_at: Time,
    reports: VecDeque<MediaEvent>,
    figures: BridgeFigures,
}

impl ConferenceBridge {
    /// A bridge without conferences.
    pub fn new(limits: BridgeLimits, key: HashKey) -> ConferenceBridge {
        ConferenceBridge {
            limits,
            sockets: SocketTable::new(limits.sockets),
            participants: PagedSlab::new(),
            by_session: BoundedMap::new(limits.participants, key),
            conferences: PagedSlab::new(),
            by_number: BoundedMap::new(limits.conferences, key),
            phases: Default::default(),
            sending: VecDeque::new(),
            final_reports: VecDeque::new(),
            final_report: Vec::new(),
            buffer: Vec::new(),
            next_work_at: Time::ZERO,
            reports: VecDeque::new(),
            figures: BridgeFigures::default(),
        }
    }

    /// Number of conferences.
    pub fn conferences(&self) -> usize {
        self.conferences.len()
    }

    /// Number of participants.
    pub fn participants(&self) -> usize {
        self.participants.len()
    }

    /// Counters since the start.
    pub fn figures(&self) -> BridgeFigures {
        self.figures
    }

    /// State of a participant; `None` if there is none with this session number.
    pub fn participant(&self, session: u64) -> Option<ParticipantFigures> {
        let index = *self.by_session.get(&session)?;
        self.participants
            .get(index as usize)
            .map(Participant::figures)
    }

    pub(crate) fn holds(&self, session: u64) -> bool {
        self.by_session.get(&session).is_some()
    }

    pub(crate) fn uses(&self, socket: SocketId) -> bool {
        self.sockets.get(socket).is_some()
    }

    pub(crate) fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// Statistics of a participant, as those of a session whose first side is the participant.
    pub(crate) fn stats(&self, session: u64) -> Option<SessionStats> {
        let index = *self.by_session.get(&session)?;
        let participant = self.participants.get(index as usize)?;
        Some(SessionStats {
            last_packet: participant.last_packet,
            offload_allowed: false,
            participant: Some(participant.figures()),
            flows: vec![FlowStats {
                line: 0,
                sides: [participant.side.stats(), SideStats::default()],
            }],
        })
    }

    /// Checks that the sockets of a plan are valid, and free or owned by participant `own`.
    fn check(&self, plan: &ParticipantPlan, own: Option<u32>) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if socket.0 >= self.limits.sockets {
                return Err(PlanError::SocketOutOfRange(socket));
            }
            if let Some(owner) = self.sockets.get(socket)
                && own != Some(owner.flow() as u32)
            {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        match plan.side.rtcp {
            Some(rtcp) if rtcp == plan.side.rtp => Err(PlanError::SocketInUse(rtcp)),
            _ => Ok(()),
        }
    }

    /// Adds a participant. The first one creates the conference.
    ///
    /// # Errors
    /// [`PlanError`]; the state is unchanged then.
    pub fn join(&mut self, plan: &ParticipantPlan, now: Time) -> Result<(), PlanError> {
        self.check(plan, None)?;
        if self.holds(plan.session) {
            return Err(PlanError::SessionExists);
        }
        if self.by_session.is_full() {
            return Err(PlanError::Full);
        }
        let known = self.by_number.get(&plan.conference).copied();
        let conference = known.and_then(|index| self.conferences.get(index as usize));
        match conference {
            // Participants in the lobby take no place of the conference; control limits their number.
            Some(conference)
                if !plan.in_lobby
                    && self.admitted_count(conference)
                        >= usize::from(plan.settings.max_participants) =>
            {
                return Err(PlanError::ConferenceFull);
            }
            None if plan.settings.max_participants == 0 => return Err(PlanError::ConferenceFull),
            None if self.by_number.is_full() => return Err(PlanError::Full),
            _ => {}
        }
        let rate = rate_of(plan.voice.format.kind())
            .max(conference.map_or(0, |conference| conference.rate));
        let codecs = CodecState::new(plan, rate).map_err(PlanError::Codec)?;
        let shared = self.new_shared_encoder(conference, plan, rate)?;
        // No failure is possible from here on.
        let index = match known {
            Some(index) => index,
            None => self.open_conference(plan, rate, now),
        };
        let participant = self
            .participants
            .insert(Participant::new(plan, index, codecs, now)) as u32;
        // Cannot fail: the limit was checked above.
        let _ = self.by_session.insert(plan.session, participant);
        self.register_sockets(participant);
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return Ok(());
        };
        conference.settings.clone_from(&plan.settings);
        conference.shared_encoders.extend(shared);
        conference.participants.push(participant);
        if !plan.in_lobby {
            self.play_entry_tone(index);
        }
        self.set_rate(index, rate);
        Ok(())
    }

    /// Creates the encoder that a participant with this plan may share, unless the conference has one.
    fn new_shared_encoder(
        &self,
        conference: Option<&ConferenceMixer>,
        plan: &ParticipantPlan,
        rate: u32,
    ) -> Result<Option<MixEncoder>, PlanError> {
        let key = EncodingKey::of(&plan.voice);
        let known = conference.is_some_and(|conference| {
            conference
                .shared_encoders
                .iter()
                .any(|encoder| *encoder.key() == key)
        });
        if known || key.packet_ms() > TURN_MS {
            return Ok(None);
        }
        MixEncoder::new(key, rate)
            .map(Some)
            .map_err(PlanError::Codec)
    }

    fn register_sockets(&mut self, participant: u32) {
        let Some(record) = self.participants.get(participant as usize) else {
            return;
        };
        for (socket, component) in record.side.sockets() {
            self.sockets
                .set(socket, SocketOwner::new(participant, 0, component));
        }
    }

    /// Creates a conference in the phase with the fewest participants.
    fn open_conference(&mut self, plan: &ParticipantPlan, rate: u32, now: Time) -> u32 {
        let participants = |phase: &Phase| -> usize {
            let conferences = phase.conferences.iter();
            conferences
                .filter_map(|&conference| self.conferences.get(conference as usize))
                .map(|conference| conference.participants.len())
                .sum()
        };
        let phase = (0..PHASES)
            .min_by_key(|&phase| participants(&self.phases[phase]))
            .unwrap_or(0);
        let index = self.conferences.insert(ConferenceMixer {
            number: plan.conference,
            settings: plan.settings.clone(),
            rate,
            phase,
            turn: 1,
            clock_ms: 0,
            participants: Vec::new(),
            shared_encoders: Vec::new(),
            sum: vec![0; MAX_TURN],
            full_mix: vec![0; MAX_TURN],
            mix: vec![0; MAX_TURN],
            tone: None,
            stage: TurnStage::Begin,
            on_time: TurnOutbox::default(),
            half: TurnOutbox::default(),
            rtcp: TurnOutbox::default(),
        }) as u32;
        // Cannot fail: the limit was checked above.
        let _ = self.by_number.insert(plan.conference, index);
        let record = &mut self.phases[phase];
        record.conferences.push(index);
        record.departs_at.get_or_insert_with(|| {
            let turn = TURN.as_nanos() as u64;
            let offset = turn / PHASES as u64 * phase as u64;
            // Two preparation times from now, so that the first turn is prepared completely.
            let earliest = now.as_nanos() + PREPARATION.as_nanos() as u64 * 2;
            Time((earliest - offset.min(earliest)).div_ceil(turn) * turn + offset)
        });
        index
    }

    /// Changes the mixing rate of a conference, which is the highest rate of its codecs.
    fn set_rate(&mut self, index: u32, rate: u32) {
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return;
        };
        if conference.rate == rate {
            return;
        }
        conference.rate = rate;
        // Cannot fail: filters exist between all codec rates.
        for encoder in &mut conference.shared_encoders {
            let _ = encoder.set_mix_rate(rate);
        }
        for &participant in &conference.participants {
            if let Some(participant) = self.participants.get_mut(participant as usize) {
                let _ = participant.decoder.set_mix_rate(rate);
                let _ = participant.own_encoder.set_mix_rate(rate);
                participant.frame.clear();
                participant.audible = false;
                participant.in_mix = false;
            }
        }
        // A mix in preparation has the old rate and is discarded.
        if !matches!(conference.stage, TurnStage::Begin | TurnStage::Ready) {
            conference.sum.fill(0);
            conference.full_mix.fill(0);
        }
    }

    /// Applies a changed plan to a participant, which stays in its conference.
    ///
    /// # Errors
    /// [`PlanError`]; the previous plan remains in force then.
    pub fn update(&mut self, plan: &ParticipantPlan, now: Time) -> Result<(), PlanError> {
        let index = *self
            .by_session
            .get(&plan.session)
            .ok_or(PlanError::NoSuchSession)?;
        self.check(plan, Some(index))?;
        let participant = self
            .participants
            .get(index as usize)
            .ok_or(PlanError::NoSuchSession)?;
        let conference_index = participant.conference;
        let conference = self.conferences.get(conference_index as usize);
        if conference.is_none_or(|conference| conference.number != plan.conference) {
            return Err(PlanError::OtherConference);
        }
        let same = participant.voice.format == plan.voice.format
            && EncodingKey::of(&participant.voice) == EncodingKey::of(&plan.voice);
        let rate = self.required_rate(
            conference_index,
            Some((index, rate_of(plan.voice.format.kind()))),
        );
        let codecs = match same {
            true => None,
            false => Some(CodecState::new(plan, rate).map_err(PlanError::Codec)?),
        };
        let shared = self.new_shared_encoder(conference, plan, rate)?;
        // No failure is possible from here on.
        if let Some(participant) = self.participants.get_mut(index as usize) {
            for (socket, _) in participant.side.sockets() {
                self.sockets.clear(socket);
            }
            participant.apply(plan, codecs, now);
        }
        self.register_sockets(index);
        if let Some(conference) = self.conferences.get_mut(conference_index as usize) {
            conference.shared_encoders.extend(shared);
        }
        if !same {
            self.remove_unused_encoders(conference_index);
        }
        self.set_rate(conference_index, rate);
        Ok(())
    }

    /// The highest rate that the participants of a conference need. `instead` replaces the rate of one participant.
    fn required_rate(&self, conference: u32, instead: Option<(u32, u32)>) -> u32 {
        let Some(conference) = self.conferences.get(conference as usize) else {
            return 8000;
        };
        let rate = |&index: &u32| match instead {
            Some((participant, rate)) if participant == index => rate,
            _ => self
                .participants
                .get(index as usize)
                .map_or(0, |participant| rate_of(participant.voice.format.kind())),
        };
        conference
            .participants
            .iter()
            .map(rate)
            .max()
            .unwrap_or(0)
            .max(8000)
    }

    /// Removes shared encoders that no participant of the conference uses any more.
    fn remove_unused_encoders(&mut self, index: u32) {
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return;
        };
        let mut at = 0;
        while let Some(encoder) = conference.shared_encoders.get(at) {
            let used = conference.participants.iter().any(|&participant| {
                self.participants
                    .get(participant as usize)
                    .is_some_and(|participant| {
                        EncodingKey::of(&participant.voice) == *encoder.key()
                    })
            });
            if used {
                at += 1;
                continue;
            }
            conference.shared_encoders.remove(at);
            if let TurnStage::EncodeShared(next) = &mut conference.stage
                && at < *next
            {
                *next -= 1;
            }
        }
    }

    /// Removes a participant and returns its statistics. The conference ends with its last participant.
    ///
    /// # Errors
    /// [`PlanError::NoSuchSession`].
    pub fn leave(&mut self, session: u64, now: Time) -> Result<SessionStats, PlanError> {
        let stats = self.stats(session).ok_or(PlanError::NoSuchSession)?;
        let index = self
            .by_session
            .remove(&session)
            .ok_or(PlanError::NoSuchSession)?;
        let Some(mut participant) = self.participants.try_remove(index as usize) else {
            return Ok(stats);
        };
        for (socket, _) in participant.side.sockets() {
            self.sockets.clear(socket);
        }
        let conference_index = participant.conference;
        let clock = self
            .conferences
            .get(conference_index as usize)
            .map_or(0, |conference| conference.clock_ms);
        let mut last = TurnOutbox::default();
        let (report, _) = participant.report(now, clock, true, Vec::new());
        last.put(index, &mut participant.side, true, |bytes| {
            bytes.extend_from_slice(&report);
            true
        });
        if let Some((socket, destination)) = participant.side.rtcp_destination()
            && !last.bytes.is_empty()
        {
            self.final_reports
                .push_back((socket, destination, last.bytes));
        }
        let Some(conference) = self.conferences.get_mut(conference_index as usize) else {
            return Ok(stats);
        };
        for outbox in [
            &mut conference.on_time,
            &mut conference.half,
            &mut conference.rtcp,
        ] {
            outbox.packets.retain(|packet| packet.0 != index);
        }
        if let Some(at) = conference
            .participants
            .iter()
            .position(|&other| other == index)
        {
            conference.participants.remove(at);
            if let TurnStage::Decode(next) | TurnStage::EncodeOwn(next) = &mut conference.stage
                && at < *next
            {
                *next -= 1;
            }
        }
        if conference.participants.is_empty() {
            self.close_conference(conference_index);
            return Ok(stats);
        }
        if conference.settings.leave_tone && !participant.in_lobby {
            conference.tone = Some(ToneSequence::leave());
        }
        self.remove_unused_encoders(conference_index);
        let rate = self.required_rate(conference_index, None);
        self.set_rate(conference_index, rate);
        Ok(stats)
    }

    /// Removes a conference without participants.
    fn close_conference(&mut self, index: u32) {
        let Some(conference) = self.conferences.try_remove(index as usize) else {
            return;
        };
        self.by_number.remove(&conference.number);
        self.sending.retain(|&(conference, ..)| conference != index);
        let phase = &mut self.phases[conference.phase];
        if let Some(at) = phase.conferences.iter().position(|&other| other == index) {
            phase.conferences.remove(at);
            if at < phase.next {
                phase.next -= 1;
            }
        }
        if phase.conferences.is_empty() {
            *phase = Phase::default();
        }
    }

    /// Handles a packet; `None` if its socket belongs to no participant.
    pub(crate) fn receive(
        &mut self,
        packet: &mut MediaPacket<'_>,
        now: Time,
    ) -> Option<Result<PacketVerdict, DropReason>> {
        let owner = self.sockets.get(packet.socket)?;
        let participant = self.participants.get_mut(owner.flow())?;
        let mute_digits = self
            .conferences
            .get(participant.conference as usize)
            .map_or(&[][..], |conference| &conference.settings.mute_digits);
        let result = participant.receive(
            owner.component(),
            packet,
            now,
            mute_digits,
            &mut self.reports,
        );
        if let Err(reason) = result {
            participant.side.count_drop(reason);
        }
        Some(result)
    }

    pub(crate) fn next_report(&mut self) -> Option<MediaEvent> {
        self.reports.pop_front()
    }

    /// The earliest deadline at which packets are sent.
    fn next_due(&self) -> Option<Time> {
        let of = |phase: &Phase| match (phase.departs_at, phase.half_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.phases.iter().filter_map(of).min()
    }

    /// The phase to prepare next, the start time of its next step, and the estimated cost of that step in nanoseconds.
    fn next_work(&self) -> Option<(usize, Time, u64)> {
        let waiting = self.phases.iter().enumerate().filter_map(|(index, phase)| {
            let departs_at = phase.departs_at?;
            let conference = *phase.conferences.get(phase.next)?;
            Some((index, departs_at, conference))
        });
        let (phase, departs_at, conference) =
            waiting.min_by_key(|&(_, departs_at, _)| departs_at)?;
        let from = Time(
            departs_at
                .as_nanos()
                .saturating_sub(PREPARATION.as_nanos() as u64),
        );
        Some((
            phase,
            from.max(self.next_work_at),
            self.estimated_cost_ns(conference),
        ))
    }

    /// Estimated cost of the next step of a conference, in nanoseconds.
    fn estimated_cost_ns(&self, conference: u32) -> u64 {
        let Some(conference) = self.conferences.get(conference as usize) else {
            return 0;
        };
        match conference.stage {
            TurnStage::Begin | TurnStage::Ready => 2_000,
            TurnStage::Decode(at) => {
                let participant = conference
                    .participants
                    .get(at)
                    .and_then(|&participant| self.participants.get(participant as usize));
                match participant.map(|participant| participant.voice.format.kind()) {
                    Some(kind) => kind.spec().decoding_ns,
                    None => 5_000 + 2_000 * conference.participants.len() as u64,
                }
            }
            TurnStage::EncodeShared(at) => {
                let encoder = conference.shared_encoders.get(at);
                let all = conference.participants.len();
                encoder.map_or(1_000, |encoder| encoder.key().estimated_cost_ns(all))
            }
            TurnStage::EncodeOwn(at) => conference
                .participants
                .get(at)
                .and_then(|&participant| self.participants.get(participant as usize))
                .filter(|participant| participant.needs_own_mix())
                .map_or(1_000, |participant| {
                    participant.own_encoder.key().estimated_cost_ns(1)
                }),
        }
    }

    /// When [`ConferenceBridge::timeout`] is to be called.
    pub fn next_deadline(&self) -> Option<Deadline> {
        let due = self.next_due()?;
        if let Some((_, from, cost)) = self.next_work()
            && from + Duration::from_nanos(cost + MARGIN_NS) <= due
        {
            return Some(Deadline::new(from, "conference work"));
        }
        Some(Deadline::new(due, "conference turn"))
    }

    /// Sends the packets that are due, or else runs preparation steps.
    pub fn timeout(&mut self, now: Time) {
        if self.send_due(now) {
            self.next_work_at = now;
            return;
        }
        let mut spent = 0;
        while spent < MAX_BATCH_NS {
            let at = now + Duration::from_nanos(spent);
            let (Some(due), Some((phase, from, cost))) = (self.next_due(), self.next_work()) else {
                break;
            };
            if from > at {
                break;
            }
            if at + Duration::from_nanos(cost + MARGIN_NS) > due {
                self.next_work_at = due;
                return;
            }
            spent += cost;
            self.run_step(phase);
        }
        // Steps take no time in a simulation; advancing by a part of their cost makes it return to the driver. Real
        // steps take longer.
        self.next_work_at = self.next_work_at.max(now + Duration::from_nanos(spent / 8));
    }

    /// Queues the packets of all phases that are due. Returns whether there were any.
    fn send_due(&mut self, now: Time) -> bool {
        let mut sent = false;
        for phase in 0..PHASES {
            if self.phases[phase].half_at.is_some_and(|at| at <= now) {
                self.phases[phase].half_at = None;
                self.queue_outbox(phase, OutboxKind::HalfTurn);
                sent = true;
            }
        }
        if sent {
            // A turn that is due as well would replace these packets before they are taken: the next call sends it.
            return true;
        }
        loop {
            let phases = self.phases.iter().enumerate();
            let due = phases
                .filter_map(|(index, phase)| {
                    Some((phase.departs_at.filter(|&at| at <= now)?, index))
                })
                .min();
            let Some((at, phase)) = due else {
                return sent;
            };
            sent = true;
            self.finish_turn(phase, at, now);
        }
    }

    /// Completes and sends the turn of a phase.
    fn finish_turn(&mut self, phase: usize, at: Time, now: Time) {
        let conferences = self.phases[phase].conferences.len() as u64;
        let unprepared = conferences - (self.phases[phase].next as u64).min(conferences);
        self.figures.turns += conferences;
        self.figures.unprepared += unprepared;
        while self.phases[phase].next < self.phases[phase].conferences.len() {
            self.run_step(phase);
        }
        self.queue_outbox(phase, OutboxKind::OnTime);
        self.queue_outbox(phase, OutboxKind::Rtcp);
        // Turns that are late by a whole turn or more are skipped: their audio would be late, too.
        let missed = (now.since(at).as_nanos() / TURN.as_nanos()) as u64;
        self.figures.missed += missed * conferences;
        let mut has_half_turn = false;
        for &index in &self.phases[phase].conferences {
            if let Some(conference) = self.conferences.get_mut(index as usize) {
                conference.turn += 1 + missed;
                conference.clock_ms += u64::from(TURN_MS) * (1 + missed);
                conference.stage = TurnStage::Begin;
                has_half_turn |= !conference.half.packets.is_empty();
            }
        }
        let phase = &mut self.phases[phase];
        phase.next = 0;
        phase.half_at = has_half_turn.then(|| at + HALF_TURN);
        phase.departs_at = Some(Time(at.as_nanos() + TURN.as_nanos() as u64 * (1 + missed)));
    }

    fn queue_outbox(&mut self, phase: usize, outbox: OutboxKind) {
        for &index in &self.phases[phase].conferences {
            if let Some(conference) = self.conferences.get(index as usize) {
                let count = conference.outbox(outbox).packets.len() as u32;
                self.sending
                    .extend((0..count).map(|packet| (index, outbox, packet)));
            }
        }
    }

    /// The next packet to send.
    pub fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        if let Some((socket, destination, bytes)) = self.final_reports.pop_front() {
            self.final_report = bytes;
            return Some((socket, destination, &self.final_report));
        }
        let (conference, outbox, socket, destination, start, length) = loop {
            let (conference, outbox, packet) = self.sending.pop_front()?;
            let Some(record) = self.conferences.get(conference as usize) else {
                continue;
            };
            let Some(&(participant, start, length)) =
                record.outbox(outbox).packets.get(packet as usize)
            else {
                continue;
            };
            let Some(participant) = self.participants.get_mut(participant as usize) else {
                continue;
            };
            let rtcp = outbox == OutboxKind::Rtcp;
            let Some((socket, destination)) = destination(&participant.side, rtcp) else {
                continue;
            };
            participant.side.count_sent(length as usize, rtcp);
            self.figures.packets += 1;
            let start = start as usize;
            break (
                conference,
                outbox,
                socket,
                destination,
                start,
                length as usize,
            );
        };
        let bytes = &self
            .conferences
            .get(conference as usize)?
            .outbox(outbox)
            .bytes;
        Some((socket, destination, bytes.get(start..start + length)?))
    }

    /// Runs the next step of a phase's turn.
    fn run_step(&mut self, phase: usize) {
        let Phase {
            conferences,
            next,
            departs_at,
            ..
        } = &self.phases[phase];
        let (Some(&index), Some(departs_at)) = (conferences.get(*next), *departs_at) else {
            return;
        };
        // The steps of a turn use the nominal start of its preparation, however late they run, so that the result does
        // not depend on load.
        let at = Time(
            departs_at
                .as_nanos()
                .saturating_sub(PREPARATION.as_nanos() as u64),
        );
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return;
        };
        match conference.stage {
            TurnStage::Begin => {
                conference.on_time.clear();
                conference.half.clear();
                conference.rtcp.clear();
                conference.stage = TurnStage::Decode(0);
            }
            TurnStage::Decode(next) => match conference.participants.get(next).copied() {
                Some(participant) => {
                    conference.stage = TurnStage::Decode(next + 1);
                    self.decode_turn(index, participant, at);
                }
                None => {
                    conference.stage = TurnStage::EncodeShared(0);
                    self.mix(index);
                }
            },
            TurnStage::EncodeShared(next) => {
                conference.stage = match next < conference.shared_encoders.len() {
                    true => TurnStage::EncodeShared(next + 1),
                    false => TurnStage::EncodeOwn(0),
                };
                if next < conference.shared_encoders.len() {
                    self.encode_shared_mix(index, next);
                }
            }
            TurnStage::EncodeOwn(next) => match conference.participants.get(next).copied() {
                Some(participant) => {
                    conference.stage = TurnStage::EncodeOwn(next + 1);
                    self.encode_own_mix(index, participant);
                }
                None => conference.stage = TurnStage::Ready,
            },
            TurnStage::Ready => self.phases[phase].next += 1,
        }
    }

    /// Decodes a participant's turn, and writes its RTCP report if one is due.
    fn decode_turn(&mut self, conference: u32, index: u32, at: Time) {
        let (Some(conference), Some(participant)) = (
            self.conferences.get_mut(conference as usize),
            self.participants.get_mut(index as usize),
        ) else {
            return;
        };
        participant.decode_turn(at, &conference.settings.mute_digits, &mut self.reports);
        let samples = conference.turn_samples();
        if participant.audible && participant.frame.len() != samples {
            // First turn after a change of the mixing rate.
            participant.frame.resize(samples, 0);
        }
        if let Some(since) = participant.timed_out(at) {
            self.reports.push_back(MediaEvent::Timeout {
                session: participant.session,
                since,
            });
        }
        let buffer = core::mem::take(&mut self.buffer);
        let (report, due) = participant.report(at, conference.clock_ms, false, buffer);
        if due {
            conference
                .rtcp
                .put(index, &mut participant.side, true, |bytes| {
                    bytes.extend_from_slice(&report);
                    true
                });
        }
        self.buffer = report;
    }

    /// Selects the loudest speakers and mixes them.
    fn mix(&mut self, index: u32) {
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return;
        };
        let participants = &mut self.participants;
        let samples = conference.turn_samples();
        let sum = conference.sum.get_mut(..samples).unwrap_or_default();
        sum.fill(0);
        for &participant in &conference.participants {
            if let Some(participant) = participants.get_mut(participant as usize) {
                // A speaker of the last turn has a bonus of 6 dB, so that speakers of similar loudness do not
                // alternate.
                participant.was_in_mix = core::mem::take(&mut participant.in_mix);
            }
        }
        for _ in 0..conference.settings.max_speakers {
            let waiting = conference.participants.iter().filter_map(|&index| {
                let participant = participants.get(index as usize)?;
                let bonus = if participant.was_in_mix { 6.0 } else { 0.0 };
                (participant.audible && !participant.in_mix)
                    .then(|| (index, participant.decoder.speech().rank() + bonus))
            });
            let Some((loudest, _)) = waiting.max_by(|a, b| a.1.total_cmp(&b.1)) else {
                break;
            };
            if let Some(participant) = participants.get_mut(loudest as usize) {
                participant.in_mix = true;
                mix::add(sum, &participant.frame);
            }
        }
        if let Some(tone) = &mut conference.tone {
            let mixed = conference.mix.get_mut(..samples).unwrap_or_default();
            match tone.fill(conference.rate, mixed) {
                true => mix::add(sum, mixed),
                false => conference.tone = None,
            }
        }
        mix::clip(
            sum,
            conference.full_mix.get_mut(..samples).unwrap_or_default(),
        );
    }

    /// Encodes the full mix with a shared encoder, for the participants with its key.
    fn encode_shared_mix(&mut self, index: u32, number: usize) {
        let Some(conference) = self.conferences.get_mut(index as usize) else {
            return;
        };
        let samples = conference.turn_samples();
        let Some(encoder) = conference.shared_encoders.get_mut(number) else {
            return;
        };
        let key = *encoder.key();
        let participants = &mut self.participants;
        let shares = |participant: &Participant| {
            !participant.needs_own_mix() && EncodingKey::of(&participant.voice) == key
        };
        let has_listeners = conference
            .participants
            .iter()
            .any(|&participant| participants.get(participant as usize).is_some_and(shares));
        if !has_listeners {
            return;
        }
        self.figures.encoded += 1;
        let full_mix = conference.full_mix.get(..samples).unwrap_or_default();
        let (on_time, half) = (&mut conference.on_time, &mut conference.half);
        // If the codec library fails, this packet is missing.
        let _ = encoder.feed(
            conference.turn,
            conference.clock_ms,
            full_mix,
            &mut |packet| {
                for &index in &conference.participants {
                    if let Some(participant) = participants
                        .get_mut(index as usize)
                        .filter(|participant| shares(participant))
                    {
                        let outbox = if packet.half_turn_late {
                            &mut *half
                        } else {
                            &mut *on_time
                        };
                        let Participant {
                            side,
                            stream,
                            voice,
                            ..
                        } = participant;
                        outbox.put(index, side, false, |bytes| {
                            stream.write(voice, &packet, bytes)
                        });
                    }
                }
            },
        );
    }

    /// Encodes the own mix of a participant, if it needs one.
    fn encode_own_mix(&mut self, conference: u32, index: u32) {
        let (Some(conference), Some(participant)) = (
            self.conferences.get_mut(conference as usize),
            self.participants.get_mut(index as usize),
        ) else {
            return;
        };
        if !participant.needs_own_mix() || !participant.can_receive() {
            return;
        }
        let samples = conference.turn_samples();
        let sum = conference.sum.get(..samples).unwrap_or_default();
        let mixed = conference.mix.get_mut(..samples).unwrap_or_default();
        // The participant's own audio is subtracted before clipping, otherwise a loud mix would leave traces of it.
        match participant.in_mix {
            _ if participant.in_lobby => mixed.fill(0),
            true => mix::clip_minus(sum, &participant.frame, mixed),
            false => mix::clip(sum, mixed),
        }
        if let Some(private_tone) = &mut participant.private_tone {
            let sounds = conference.full_mix.get_mut(..samples).unwrap_or_default();
            match private_tone.fill(conference.rate, sounds) {
                // A private tone replaces the mix for its duration.
                true => mixed.copy_from_slice(sounds),
                false => participant.private_tone = None,
            }
        }
        self.figures.encoded += 1;
        let (on_time, half) = (&mut conference.on_time, &mut conference.half);
        let Participant {
            own_encoder,
            stream,
            voice,
            side,
            ..
        } = participant;
        let _ = own_encoder.feed(conference.turn, conference.clock_ms, mixed, &mut |packet| {
            let outbox = if packet.half_turn_late {
                &mut *half
            } else {
                &mut *on_time
            };
            outbox.put(index, side, false, |bytes| {
                stream.write(voice, &packet, bytes)
            });
        });
    }
}
