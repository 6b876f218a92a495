//! Conferences: every participant hears all others and not himself.
//!
//! A conference has a **clock of 20 ms**. In each turn of it a seat's jitter buffer gives what its participant sent, the loudest of
//! those who speak are added up, and each listener is sent the sum without his own voice. Listeners who do not speak hear the same,
//! so those of the same codec and packet time share what is encoded. Of a seat with G.729 the gains in the frames tell who speaks;
//! who does not is not decoded.
//!
//! Encoding takes long, packets have to leave in time, and an engine knows no clock of its own. So a turn is prepared **ahead**, in small
//! pieces of work, and leaves at its deadline: deadlines are absolute, multiples of 20 ms and the offset of the conference's phase, and
//! no piece is begun that would not end before the next deadline, by how long it takes as a rule. Conferences are spread over
//! [`PHASES`] phases, so that neither work nor packets come all at once.
//!
//! Nothing is allocated per packet or per turn once a conference has found its size.

mod buffer;
mod ear;
mod mouth;
mod orders;
mod outbox;
mod plan;
mod seat;
mod talk;
mod tones;

pub use ear::HeardFigures;
pub use plan::{MAX_COMMAND, RoomTerms, SeatPlan, Voice};
pub use seat::{Muted, SeatEvent, SeatFigures, SeatOrder};

use crate::forward::sockets::{Place, SocketTable};
use crate::forward::{FlowStats, MediaEvent, PlanError, SessionStats, SideStats};
use codec::{Kind, mix};
use core::time::Duration;
use engine::{BoundedMap, Deadline, DropReason, HashKey, Packet, SocketId, Time, Verdict};
use mouth::{Likeness, Mouth};
use outbox::{Outbox, way};
use seat::{Parts, Seat};
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;
use tones::Jingle;

/// Milliseconds of a turn.
pub const TURN_MS: u32 = 20;
/// Conferences are spread over so many phases of a turn.
pub const PHASES: usize = 4;
/// Samples of a turn at most: at 48 kHz.
const MAX_TURN: usize = 960;
const TURN: Duration = Duration::from_millis(TURN_MS as u64);
/// So long before it leaves a turn is begun to be prepared.
const LEAD: Duration = Duration::from_millis(10);
/// Where packet times end in the midst of turns, every other packet leaves so much later.
const HALF: Duration = Duration::from_millis(10);
/// Between the end of a piece of work, as foreseen, and the next deadline.
const MARGIN_NS: u64 = 80_000;
/// Work at a time, in nanoseconds as foreseen: between, the driver can take packets in.
const PIECE_NS: u64 = 100_000;

/// The rate at which a codec runs in a conference.
fn rate_of(kind: Kind) -> u32 {
    kind.sample_rates().first().copied().unwrap_or(8000)
}

/// Capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomLimits {
    /// Conferences at a time.
    pub rooms: usize,
    /// Seats at a time, of all conferences.
    pub seats: usize,
    /// Highest socket number plus one.
    pub sockets: u32,
}

/// Figures since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomFigures {
    /// Conferences' turns that were sent.
    pub turns: u64,
    /// Of these, those that were not prepared when they had to leave.
    pub hurried: u64,
    /// Turns that were left out because the thread came more than one too late.
    pub missed: u64,
    /// Mixes that were encoded.
    pub encoded: u64,
    /// Packets that left.
    pub packets: u64,
}

/// Which of a room's outboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    OnTime,
    Half,
    Rtcp,
}

/// How far the next turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    /// This seat is next to be heard.
    Hear(usize),
    /// What this group hears is next to be encoded.
    Shared(usize),
    /// What this seat hears, where that is a mix of its own.
    Own(usize),
    Ready,
}

#[derive(Debug)]
struct Room {
    number: u64,
    terms: RoomTerms,
    rate: u32,
    phase: usize,
    /// Counts turns.
    turn: u64,
    clock_ms: u64,
    seats: Vec<u32>,
    shared: Vec<Mouth>,
    total: Vec<i32>,
    all: Vec<i16>,
    mix: Vec<i16>,
    tone: Option<Jingle>,
    stage: Stage,
    on_time: Outbox,
    half: Outbox,
    rtcp: Outbox,
}

impl Room {
    fn turn_samples(&self) -> usize {
        (self.rate / 1000 * TURN_MS) as usize
    }

    fn list(&self, list: List) -> &Outbox {
        match list {
            List::OnTime => &self.on_time,
            List::Half => &self.half,
            List::Rtcp => &self.rtcp,
        }
    }
}

/// Conferences that send at the same time.
#[derive(Debug, Default)]
struct Phase {
    rooms: Vec<u32>,
    /// The room whose turn is being prepared.
    next: usize,
    /// When the turn that is being prepared leaves; none where there is no room.
    leaves: Option<Time>,
    /// When the packets leave that leave half a turn later.
    half: Option<Time>,
}

/// The conferences of a forwarder. See the module's text.
#[derive(Debug)]
pub struct Rooms {
    limits: RoomLimits,
    sockets: SocketTable,
    seats: Slab<Seat>,
    by_session: BoundedMap<u64, u32>,
    rooms: Slab<Room>,
    by_number: BoundedMap<u64, u32>,
    phases: [Phase; PHASES],
    sending: VecDeque<(u32, List, u32)>,
    goodbyes: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    goodbye: Vec<u8>,
    buffer: Vec<u8>,
    /// Before this no further work is begun.
    free: Time,
    reports: VecDeque<MediaEvent>,
    figures: RoomFigures,
}

impl Rooms {
    /// None.
    pub fn new(limits: RoomLimits, key: HashKey) -> Rooms {
        Rooms {
            limits,
            sockets: SocketTable::new(limits.sockets),
            seats: Slab::new(),
            by_session: BoundedMap::new(limits.seats, key),
            rooms: Slab::new(),
            by_number: BoundedMap::new(limits.rooms, key),
            phases: Default::default(),
            sending: VecDeque::new(),
            goodbyes: VecDeque::new(),
            goodbye: Vec::new(),
            buffer: Vec::new(),
            free: Time::ZERO,
            reports: VecDeque::new(),
            figures: RoomFigures::default(),
        }
    }

    /// Conferences at present.
    pub fn rooms(&self) -> usize {
        self.rooms.len()
    }

    /// Seats at present.
    pub fn seats(&self) -> usize {
        self.seats.len()
    }

    /// Figures since the start.
    pub fn figures(&self) -> RoomFigures {
        self.figures
    }

    /// What a seat does; `None` where there is no such one.
    pub fn seat(&self, session: u64) -> Option<SeatFigures> {
        let index = *self.by_session.get(&session)?;
        self.seats.get(index as usize).map(Seat::figures)
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

    pub(crate) fn dscp(&self, socket: SocketId) -> Option<u8> {
        let place = self.sockets.get(socket)?;
        Some(self.seats.get(place.flow())?.side.dscp())
    }

    /// The figures of a seat, as those of a session whose first side is the participant.
    pub(crate) fn stats(&self, session: u64) -> Option<SessionStats> {
        let index = *self.by_session.get(&session)?;
        let seat = self.seats.get(index as usize)?;
        Some(SessionStats {
            last_packet: seat.last_packet,
            shortcuts: false,
            seat: Some(seat.figures()),
            flows: vec![FlowStats {
                line: 0,
                sides: [seat.side.stats(), SideStats::default()],
            }],
        })
    }

    fn check(&self, plan: &SeatPlan, own: Option<u32>) -> Result<(), PlanError> {
        for socket in plan.sockets() {
            if socket.0 >= self.limits.sockets {
                return Err(PlanError::SocketOutOfRange(socket));
            }
            if let Some(place) = self.sockets.get(socket)
                && own != Some(place.flow() as u32)
            {
                return Err(PlanError::SocketInUse(socket));
            }
        }
        match plan.side.rtcp {
            Some(rtcp) if rtcp == plan.side.rtp => Err(PlanError::SocketInUse(rtcp)),
            _ => Ok(()),
        }
    }

    /// A new seat; its room begins with it where there is none.
    ///
    /// # Errors
    /// [`PlanError`]; nothing has changed then.
    pub fn join(&mut self, plan: &SeatPlan, now: Time) -> Result<(), PlanError> {
        self.check(plan, None)?;
        if self.holds(plan.session) {
            return Err(PlanError::SessionExists);
        }
        if self.by_session.is_full() {
            return Err(PlanError::Full);
        }
        let known = self.by_number.get(&plan.room).copied();
        let room = known.and_then(|index| self.rooms.get(index as usize));
        match room {
            // Who waits takes none of the conference's seats: how many may is control's to say.
            Some(room)
                if !plan.waits && self.taking_part(room) >= usize::from(plan.terms.seats) =>
            {
                return Err(PlanError::RoomFull);
            }
            None if plan.terms.seats == 0 => return Err(PlanError::RoomFull),
            None if self.by_number.is_full() => return Err(PlanError::Full),
            _ => {}
        }
        let rate = rate_of(plan.voice.sends.kind()).max(room.map_or(0, |room| room.rate));
        let parts = Parts::new(plan, rate).map_err(PlanError::Codec)?;
        let shared = self.new_shared(room, plan, rate)?;
        // From here on nothing fails.
        let index = match known {
            Some(index) => index,
            None => self.open_room(plan, rate, now),
        };
        let seat = self.seats.insert(Seat::new(plan, index, parts, now)) as u32;
        // There is room: that was looked at.
        let _ = self.by_session.insert(plan.session, seat);
        self.place(seat);
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return Ok(());
        };
        room.terms.clone_from(&plan.terms);
        room.shared.extend(shared);
        room.seats.push(seat);
        if !plan.waits {
            self.greet(index);
        }
        self.set_rate(index, rate);
        Ok(())
    }

    /// The encoder that a plan's listener may share, where the room has none yet.
    fn new_shared(
        &self,
        room: Option<&Room>,
        plan: &SeatPlan,
        rate: u32,
    ) -> Result<Option<Mouth>, PlanError> {
        let likeness = Likeness::of(&plan.voice);
        let known = room.is_some_and(|room| {
            room.shared
                .iter()
                .any(|mouth| *mouth.likeness() == likeness)
        });
        if known || likeness.packet_ms() > TURN_MS {
            return Ok(None);
        }
        Mouth::new(likeness, rate)
            .map(Some)
            .map_err(PlanError::Codec)
    }

    fn place(&mut self, seat: u32) {
        let Some(record) = self.seats.get(seat as usize) else {
            return;
        };
        for (socket, component) in record.side.places() {
            self.sockets.set(socket, Place::new(seat, 0, component));
        }
    }

    fn open_room(&mut self, plan: &SeatPlan, rate: u32, now: Time) -> u32 {
        let seats = |phase: &Phase| -> usize {
            let rooms = phase.rooms.iter();
            rooms
                .filter_map(|&room| self.rooms.get(room as usize))
                .map(|room| room.seats.len())
                .sum()
        };
        let phase = (0..PHASES)
            .min_by_key(|&phase| seats(&self.phases[phase]))
            .unwrap_or(0);
        let index = self.rooms.insert(Room {
            number: plan.room,
            terms: plan.terms.clone(),
            rate,
            phase,
            turn: 1,
            clock_ms: 0,
            seats: Vec::new(),
            shared: Vec::new(),
            total: vec![0; MAX_TURN],
            all: vec![0; MAX_TURN],
            mix: vec![0; MAX_TURN],
            tone: None,
            stage: Stage::Begin,
            on_time: Outbox::default(),
            half: Outbox::default(),
            rtcp: Outbox::default(),
        }) as u32;
        // There is room: that was looked at.
        let _ = self.by_number.insert(plan.room, index);
        let record = &mut self.phases[phase];
        record.rooms.push(index);
        record.leaves.get_or_insert_with(|| {
            let turn = TURN.as_nanos() as u64;
            let offset = turn / PHASES as u64 * phase as u64;
            let earliest = now.as_nanos() + LEAD.as_nanos() as u64 * 2;
            Time((earliest - offset.min(earliest)).div_ceil(turn) * turn + offset)
        });
        index
    }

    /// Brings a room to another rate: the highest of what its codecs need.
    fn set_rate(&mut self, index: u32, rate: u32) {
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return;
        };
        if room.rate == rate {
            return;
        }
        room.rate = rate;
        // All rates are those of codecs, between which there are filters.
        for mouth in &mut room.shared {
            let _ = mouth.set_room_rate(rate);
        }
        for &seat in &room.seats {
            if let Some(seat) = self.seats.get_mut(seat as usize) {
                let _ = seat.ear.set_room_rate(rate);
                let _ = seat.own.set_room_rate(rate);
                seat.frame.clear();
                seat.speaks = false;
                seat.in_mix = false;
            }
        }
        // What is in the making has the old rate: it is left out.
        if !matches!(room.stage, Stage::Begin | Stage::Ready) {
            room.total.fill(0);
            room.all.fill(0);
        }
    }

    /// A changed plan for a seat; its room stays the same.
    ///
    /// # Errors
    /// [`PlanError`]; what was in force stays then.
    pub fn update(&mut self, plan: &SeatPlan, now: Time) -> Result<(), PlanError> {
        let index = *self
            .by_session
            .get(&plan.session)
            .ok_or(PlanError::NoSuchSession)?;
        self.check(plan, Some(index))?;
        let seat = self
            .seats
            .get(index as usize)
            .ok_or(PlanError::NoSuchSession)?;
        let room_index = seat.room;
        let room = self.rooms.get(room_index as usize);
        if room.is_none_or(|room| room.number != plan.room) {
            return Err(PlanError::OtherRoom);
        }
        let same = seat.voice.sends == plan.voice.sends
            && Likeness::of(&seat.voice) == Likeness::of(&plan.voice);
        let rate = self.rate_wanted(room_index, Some((index, rate_of(plan.voice.sends.kind()))));
        let parts = match same {
            true => None,
            false => Some(Parts::new(plan, rate).map_err(PlanError::Codec)?),
        };
        let shared = self.new_shared(room, plan, rate)?;
        // From here on nothing fails.
        if let Some(seat) = self.seats.get_mut(index as usize) {
            for (socket, _) in seat.side.places() {
                self.sockets.clear(socket);
            }
            seat.apply(plan, parts, now);
        }
        self.place(index);
        if let Some(room) = self.rooms.get_mut(room_index as usize) {
            room.terms.clone_from(&plan.terms);
            room.shared.extend(shared);
        }
        if !same {
            self.forget_unshared(room_index);
        }
        self.set_rate(room_index, rate);
        Ok(())
    }

    /// The highest rate that the seats of a room need; `instead`: this seat's is taken to be another, 0 for none.
    fn rate_wanted(&self, room: u32, instead: Option<(u32, u32)>) -> u32 {
        let Some(room) = self.rooms.get(room as usize) else {
            return 8000;
        };
        let rate = |&index: &u32| match instead {
            Some((seat, rate)) if seat == index => rate,
            _ => self
                .seats
                .get(index as usize)
                .map_or(0, |seat| rate_of(seat.voice.sends.kind())),
        };
        room.seats.iter().map(rate).max().unwrap_or(0).max(8000)
    }

    /// Gives up encoders that no listener of the room may share any more.
    fn forget_unshared(&mut self, index: u32) {
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return;
        };
        let mut at = 0;
        while let Some(mouth) = room.shared.get(at) {
            let used = room.seats.iter().any(|&seat| {
                self.seats
                    .get(seat as usize)
                    .is_some_and(|seat| Likeness::of(&seat.voice) == *mouth.likeness())
            });
            if used {
                at += 1;
                continue;
            }
            room.shared.remove(at);
            if let Stage::Shared(next) = &mut room.stage
                && at < *next
            {
                *next -= 1;
            }
        }
    }

    /// The end of a seat, with its last figures; the room ends with its last seat.
    ///
    /// # Errors
    /// [`PlanError::NoSuchSession`].
    pub fn leave(&mut self, session: u64, now: Time) -> Result<SessionStats, PlanError> {
        let stats = self.stats(session).ok_or(PlanError::NoSuchSession)?;
        let index = self
            .by_session
            .remove(&session)
            .ok_or(PlanError::NoSuchSession)?;
        let Some(mut seat) = self.seats.try_remove(index as usize) else {
            return Ok(stats);
        };
        for (socket, _) in seat.side.places() {
            self.sockets.clear(socket);
        }
        let room_index = seat.room;
        let clock = self
            .rooms
            .get(room_index as usize)
            .map_or(0, |room| room.clock_ms);
        let mut last = Outbox::default();
        let (report, _) = seat.report(now, clock, true, Vec::new());
        last.put(index, &mut seat.side, true, |bytes| {
            bytes.extend_from_slice(&report);
            true
        });
        if let Some((socket, destination)) = seat.side.rtcp_way()
            && !last.bytes.is_empty()
        {
            self.goodbyes.push_back((socket, destination, last.bytes));
        }
        let Some(room) = self.rooms.get_mut(room_index as usize) else {
            return Ok(stats);
        };
        for outbox in [&mut room.on_time, &mut room.half, &mut room.rtcp] {
            outbox.packets.retain(|packet| packet.0 != index);
        }
        if let Some(at) = room.seats.iter().position(|&other| other == index) {
            room.seats.remove(at);
            if let Stage::Hear(next) | Stage::Own(next) = &mut room.stage
                && at < *next
            {
                *next -= 1;
            }
        }
        if room.seats.is_empty() {
            self.close_room(room_index);
            return Ok(stats);
        }
        if room.terms.leave_tone && !seat.waits {
            room.tone = Some(Jingle::leave());
        }
        self.forget_unshared(room_index);
        let rate = self.rate_wanted(room_index, None);
        self.set_rate(room_index, rate);
        Ok(stats)
    }

    fn close_room(&mut self, index: u32) {
        let Some(room) = self.rooms.try_remove(index as usize) else {
            return;
        };
        self.by_number.remove(&room.number);
        self.sending.retain(|&(room, ..)| room != index);
        let phase = &mut self.phases[room.phase];
        if let Some(at) = phase.rooms.iter().position(|&other| other == index) {
            phase.rooms.remove(at);
            if at < phase.next {
                phase.next -= 1;
            }
        }
        if phase.rooms.is_empty() {
            *phase = Phase::default();
        }
    }

    /// A packet that came to a socket of a seat; `None` where the socket is none.
    pub(crate) fn take(
        &mut self,
        packet: &mut Packet<'_>,
        now: Time,
    ) -> Option<Result<Verdict, DropReason>> {
        let place = self.sockets.get(packet.socket)?;
        let seat = self.seats.get_mut(place.flow())?;
        let mute = self
            .rooms
            .get(seat.room as usize)
            .map_or(&[][..], |room| &room.terms.mute);
        let result = seat.take(place.component(), packet, now, mute, &mut self.reports);
        if let Err(reason) = result {
            seat.side.dropped(reason);
        }
        Some(result)
    }

    pub(crate) fn next_report(&mut self) -> Option<MediaEvent> {
        self.reports.pop_front()
    }

    /// The earliest deadline by which something leaves.
    fn next_due(&self) -> Option<Time> {
        let of = |phase: &Phase| match (phase.leaves, phase.half) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.phases.iter().filter_map(of).min()
    }

    /// The phase whose turn is to be prepared first, from when on, and about how long its next piece of work takes.
    fn next_work(&self) -> Option<(usize, Time, u64)> {
        let waiting = self.phases.iter().enumerate().filter_map(|(index, phase)| {
            let leaves = phase.leaves?;
            let room = *phase.rooms.get(phase.next)?;
            Some((index, leaves, room))
        });
        let (phase, leaves, room) = waiting.min_by_key(|&(_, leaves, _)| leaves)?;
        let from = Time(leaves.as_nanos().saturating_sub(LEAD.as_nanos() as u64));
        Some((phase, from.max(self.free), self.cost(room)))
    }

    fn cost(&self, room: u32) -> u64 {
        let Some(room) = self.rooms.get(room as usize) else {
            return 0;
        };
        match room.stage {
            Stage::Begin | Stage::Ready => 2_000,
            Stage::Hear(at) => {
                let seat = room
                    .seats
                    .get(at)
                    .and_then(|&seat| self.seats.get(seat as usize));
                match seat.map(|seat| seat.voice.sends.kind()) {
                    Some(Kind::G729 | Kind::Opus) => 50_000,
                    Some(_) => 8_000,
                    None => 5_000 + 2_000 * room.seats.len() as u64,
                }
            }
            Stage::Shared(at) => room
                .shared
                .get(at)
                .map_or(1_000, |mouth| mouth.likeness().cost()),
            Stage::Own(at) => room
                .seats
                .get(at)
                .and_then(|&seat| self.seats.get(seat as usize))
                .filter(|seat| seat.is_alone())
                .map_or(1_000, |seat| seat.own.likeness().cost()),
        }
    }

    /// When [`Rooms::timeout`] is wanted.
    pub fn next_deadline(&self) -> Option<Deadline> {
        let due = self.next_due()?;
        if let Some((_, from, cost)) = self.next_work()
            && from + Duration::from_nanos(cost + MARGIN_NS) <= due
        {
            return Some(Deadline::new(from, "conference work"));
        }
        Some(Deadline::new(due, "conference turn"))
    }

    /// Lets leave what is due, or else does a piece of work.
    pub fn timeout(&mut self, now: Time) {
        if self.leave_what_is_due(now) {
            self.free = now;
            return;
        }
        let mut spent = 0;
        while spent < PIECE_NS {
            let at = now + Duration::from_nanos(spent);
            let (Some(due), Some((phase, from, cost))) = (self.next_due(), self.next_work()) else {
                break;
            };
            if from > at {
                break;
            }
            if at + Duration::from_nanos(cost + MARGIN_NS) > due {
                self.free = due;
                return;
            }
            spent += cost;
            self.work(phase);
        }
        // Time passes with work, which a simulation would not see else; real work takes longer than this.
        self.free = self.free.max(now + Duration::from_nanos(spent / 8));
    }

    fn leave_what_is_due(&mut self, now: Time) -> bool {
        let mut any = false;
        for phase in 0..PHASES {
            if self.phases[phase].half.is_some_and(|at| at <= now) {
                self.phases[phase].half = None;
                self.queue(phase, List::Half);
                any = true;
            }
        }
        loop {
            let phases = self.phases.iter().enumerate();
            let due = phases
                .filter_map(|(index, phase)| Some((phase.leaves.filter(|&at| at <= now)?, index)))
                .min();
            let Some((at, phase)) = due else {
                return any;
            };
            any = true;
            self.turn(phase, at, now);
        }
    }

    /// The turn of a phase leaves.
    fn turn(&mut self, phase: usize, at: Time, now: Time) {
        let rooms = self.phases[phase].rooms.len() as u64;
        let left = rooms - (self.phases[phase].next as u64).min(rooms);
        self.figures.turns += rooms;
        self.figures.hurried += left;
        while self.phases[phase].next < self.phases[phase].rooms.len() {
            self.work(phase);
        }
        self.queue(phase, List::OnTime);
        self.queue(phase, List::Rtcp);
        // Whole turns too late: the clock goes on, and nobody is sent what is over.
        let missed = (now.since(at).as_nanos() / TURN.as_nanos()) as u64;
        self.figures.missed += missed * rooms;
        let mut halves = false;
        for &index in &self.phases[phase].rooms {
            if let Some(room) = self.rooms.get_mut(index as usize) {
                room.turn += 1 + missed;
                room.clock_ms += u64::from(TURN_MS) * (1 + missed);
                room.stage = Stage::Begin;
                halves |= !room.half.packets.is_empty();
            }
        }
        let phase = &mut self.phases[phase];
        phase.next = 0;
        phase.half = halves.then(|| at + HALF);
        phase.leaves = Some(Time(at.as_nanos() + TURN.as_nanos() as u64 * (1 + missed)));
    }

    fn queue(&mut self, phase: usize, list: List) {
        for &index in &self.phases[phase].rooms {
            if let Some(room) = self.rooms.get(index as usize) {
                let count = room.list(list).packets.len() as u32;
                self.sending
                    .extend((0..count).map(|packet| (index, list, packet)));
            }
        }
    }

    /// The next packet to be sent.
    pub fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        if let Some((socket, destination, bytes)) = self.goodbyes.pop_front() {
            self.goodbye = bytes;
            return Some((socket, destination, &self.goodbye));
        }
        let (room, list, socket, destination, start, length) = loop {
            let (room, list, packet) = self.sending.pop_front()?;
            let Some(record) = self.rooms.get(room as usize) else {
                continue;
            };
            let Some(&(seat, start, length)) = record.list(list).packets.get(packet as usize)
            else {
                continue;
            };
            let Some(seat) = self.seats.get_mut(seat as usize) else {
                continue;
            };
            let rtcp = list == List::Rtcp;
            let Some((socket, destination)) = way(&seat.side, rtcp) else {
                continue;
            };
            seat.side.count_sent(length as usize, rtcp);
            self.figures.packets += 1;
            let start = start as usize;
            break (room, list, socket, destination, start, length as usize);
        };
        let bytes = &self.rooms.get(room as usize)?.list(list).bytes;
        Some((socket, destination, bytes.get(start..start + length)?))
    }

    /// The next piece of work for a phase's turn.
    fn work(&mut self, phase: usize) {
        let Phase {
            rooms,
            next,
            leaves,
            ..
        } = &self.phases[phase];
        let (Some(&index), Some(leaves)) = (rooms.get(*next), *leaves) else {
            return;
        };
        // All of a turn is as at the time at which its preparation begins, however late that is done.
        let at = Time(leaves.as_nanos().saturating_sub(LEAD.as_nanos() as u64));
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return;
        };
        match room.stage {
            Stage::Begin => {
                room.on_time.clear();
                room.half.clear();
                room.rtcp.clear();
                room.stage = Stage::Hear(0);
            }
            Stage::Hear(next) => match room.seats.get(next).copied() {
                Some(seat) => {
                    room.stage = Stage::Hear(next + 1);
                    self.hear(index, seat, at);
                }
                None => {
                    room.stage = Stage::Shared(0);
                    self.mix(index);
                }
            },
            Stage::Shared(next) => {
                room.stage = match next < room.shared.len() {
                    true => Stage::Shared(next + 1),
                    false => Stage::Own(0),
                };
                if next < room.shared.len() {
                    self.encode_shared(index, next);
                }
            }
            Stage::Own(next) => match room.seats.get(next).copied() {
                Some(seat) => {
                    room.stage = Stage::Own(next + 1);
                    self.encode_own(index, seat);
                }
                None => room.stage = Stage::Ready,
            },
            Stage::Ready => self.phases[phase].next += 1,
        }
    }

    fn hear(&mut self, room: u32, index: u32, at: Time) {
        let (Some(room), Some(seat)) = (
            self.rooms.get_mut(room as usize),
            self.seats.get_mut(index as usize),
        ) else {
            return;
        };
        seat.hear(at, &room.terms.mute, &mut self.reports);
        let samples = room.turn_samples();
        if seat.speaks && seat.frame.len() != samples {
            // The first turn after another rate came into force.
            seat.frame.resize(samples, 0);
        }
        if let Some(since) = seat.timed_out(at) {
            self.reports.push_back(MediaEvent::Timeout {
                session: seat.session,
                since,
            });
        }
        let buffer = core::mem::take(&mut self.buffer);
        let (report, due) = seat.report(at, room.clock_ms, false, buffer);
        if due {
            room.rtcp.put(index, &mut seat.side, true, |bytes| {
                bytes.extend_from_slice(&report);
                true
            });
        }
        self.buffer = report;
    }

    /// Chooses who is heard, and adds up.
    fn mix(&mut self, index: u32) {
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return;
        };
        let seats = &mut self.seats;
        let samples = room.turn_samples();
        let total = room.total.get_mut(..samples).unwrap_or_default();
        total.fill(0);
        for &seat in &room.seats {
            if let Some(seat) = seats.get_mut(seat as usize) {
                // Who was heard keeps his place against somebody who is hardly louder.
                seat.was_in_mix = core::mem::take(&mut seat.in_mix);
            }
        }
        for _ in 0..room.terms.speakers {
            let waiting = room.seats.iter().filter_map(|&index| {
                let seat = seats.get(index as usize)?;
                let bonus = if seat.was_in_mix { 6.0 } else { 0.0 };
                (seat.speaks && !seat.in_mix).then(|| (index, seat.ear.talk().rank() + bonus))
            });
            let Some((loudest, _)) = waiting.max_by(|a, b| a.1.total_cmp(&b.1)) else {
                break;
            };
            if let Some(seat) = seats.get_mut(loudest as usize) {
                seat.in_mix = true;
                mix::add(total, &seat.frame);
            }
        }
        if let Some(tone) = &mut room.tone {
            let place = room.mix.get_mut(..samples).unwrap_or_default();
            match tone.fill(room.rate, place) {
                true => mix::add(total, place),
                false => room.tone = None,
            }
        }
        mix::clip(total, room.all.get_mut(..samples).unwrap_or_default());
    }

    fn encode_shared(&mut self, index: u32, number: usize) {
        let Some(room) = self.rooms.get_mut(index as usize) else {
            return;
        };
        let samples = room.turn_samples();
        let Some(mouth) = room.shared.get_mut(number) else {
            return;
        };
        let likeness = *mouth.likeness();
        let seats = &mut self.seats;
        let hears = |seat: &Seat| !seat.is_alone() && Likeness::of(&seat.voice) == likeness;
        let listened = room
            .seats
            .iter()
            .any(|&seat| seats.get(seat as usize).is_some_and(hears));
        if !listened {
            return;
        }
        self.figures.encoded += 1;
        let all = room.all.get(..samples).unwrap_or_default();
        let (on_time, half) = (&mut room.on_time, &mut room.half);
        // A library that fails leaves this packet out.
        let _ = mouth.feed(room.turn, room.clock_ms, all, &mut |made| {
            for &index in &room.seats {
                if let Some(seat) = seats.get_mut(index as usize).filter(|seat| hears(seat)) {
                    let outbox = if made.later {
                        &mut *half
                    } else {
                        &mut *on_time
                    };
                    let Seat {
                        side,
                        stream,
                        voice,
                        ..
                    } = seat;
                    outbox.put(index, side, false, |bytes| {
                        stream.write(voice, &made, bytes)
                    });
                }
            }
        });
    }

    fn encode_own(&mut self, room: u32, index: u32) {
        let (Some(room), Some(seat)) = (
            self.rooms.get_mut(room as usize),
            self.seats.get_mut(index as usize),
        ) else {
            return;
        };
        if !seat.is_alone() || seat.side.way().is_none() {
            return;
        }
        let samples = room.turn_samples();
        let total = room.total.get(..samples).unwrap_or_default();
        let place = room.mix.get_mut(..samples).unwrap_or_default();
        match seat.in_mix {
            _ if seat.waits => place.fill(0),
            true => mix::clip_minus(total, &seat.frame, place),
            false => mix::clip(total, place),
        }
        if let Some(signal) = &mut seat.signal {
            let sounds = room.all.get_mut(..samples).unwrap_or_default();
            match signal.fill(room.rate, sounds) {
                // He is told of his own doing alone: what the others say is not heard for that moment.
                true => place.copy_from_slice(sounds),
                false => seat.signal = None,
            }
        }
        self.figures.encoded += 1;
        let (on_time, half) = (&mut room.on_time, &mut room.half);
        let Seat {
            own,
            stream,
            voice,
            side,
            ..
        } = seat;
        let _ = own.feed(room.turn, room.clock_ms, place, &mut |made| {
            let outbox = if made.later {
                &mut *half
            } else {
                &mut *on_time
            };
            outbox.put(index, side, false, |bytes| {
                stream.write(voice, &made, bytes)
            });
        });
    }
}
