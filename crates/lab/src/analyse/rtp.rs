//! Finding RTP: by SDP where there is some, by its looks elsewhere.
//!
//! A source (addresses, ports, SSRC) whose packets carry version two is a candidate. It becomes a stream at once where SDP
//! names one of its addresses; else when its sequence numbers and timestamps move as RTP's do. DNS, STUN, DTLS, RTCP and
//! other protocols keep these bytes still or let them jump.

use super::calls::CallIndex;
use super::keys::FlowKey;
use super::network::Datagram;
use super::report::StreamReport;
use super::rtcp::Reports;
use super::sdp::Learned;
use super::stream::{Live, Record};
use engine::{BoundedMap, HashKey};
use std::net::SocketAddr;
use wire::rtp::RtpView;

/// Points that make a candidate a stream: two for each packet next in sequence, one for each after a small gap.
const ENOUGH: i32 = 6;
/// The same where payload type or timestamps are unusual.
const ENOUGH_FOR_UNUSUAL: i32 = 14;
/// At the end of the capture, three packets in sequence will do; two beside another stream of the same addresses.
const ENOUGH_AT_END: i32 = 4;
const ENOUGH_BESIDE: i32 = 2;
/// Below this a candidate is something else.
const TOO_BAD: i32 = -8;
/// Packets held of a candidate.
const MAX_HELD: usize = 64;
/// Candidates silent for this long may be dropped.
const STALE: u64 = 10_000_000_000;
/// A step of the timestamp beyond this between neighbours is not RTP's: 90 s at 90 kHz.
const MAX_STEP: i32 = 90_000 * 90;

#[derive(Debug)]
struct Candidate {
    records: Vec<Record>,
    score: i32,
    moved: bool,
}

#[derive(Debug)]
enum State {
    Candidate(Candidate),
    Live(Box<Live>),
    Free,
}

#[derive(Debug)]
struct Slot {
    serial: u64,
    ssrc: u32,
    source: SocketAddr,
    destination: SocketAddr,
    last: u64,
    state: State,
}

#[derive(Debug)]
pub(super) struct Finder {
    index: BoundedMap<FlowKey, usize>,
    flows: BoundedMap<FlowKey, ()>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    candidates: usize,
    live: usize,
    limit_streams: usize,
    limit_candidates: usize,
    serial: u64,
    refused: u64,
}

impl Finder {
    pub(super) fn new(streams: usize, candidates: usize, key: HashKey) -> Finder {
        Finder {
            index: BoundedMap::new(streams.saturating_add(candidates), key),
            flows: BoundedMap::new(streams, key),
            slots: Vec::new(),
            free: Vec::new(),
            candidates: 0,
            live: 0,
            limit_streams: streams,
            limit_candidates: candidates.max(1),
            serial: 0,
            refused: 0,
        }
    }

    pub(super) fn confirmed(&self) -> usize {
        self.live
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether a stream runs between these endpoints or one port below, in either direction (so RTCP may).
    pub(super) fn knows_flow_of(&self, datagram: &Datagram<'_>) -> bool {
        let below = |endpoint: SocketAddr| SocketAddr::new(endpoint.ip(), endpoint.port() & !1);
        let pairs = [
            (datagram.source, datagram.destination),
            (below(datagram.source), below(datagram.destination)),
        ];
        pairs
            .into_iter()
            .any(|(a, b)| self.has_flow(a, b) || self.has_flow(b, a))
    }

    fn has_flow(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        self.flows
            .get(&FlowKey::new(source, destination, 0))
            .is_some()
    }

    /// Takes a datagram with version two that is not RTCP.
    pub(super) fn receive(&mut self, datagram: &Datagram<'_>, learned: &Learned) {
        let Some((ssrc, record)) = record(datagram) else {
            return;
        };
        let key = FlowKey::new(datagram.source, datagram.destination, ssrc);
        let at = match self.index.get(&key) {
            Some(at) => *at,
            None => match self.open(key, ssrc, datagram, learned) {
                Some(at) => at,
                None => return,
            },
        };
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        slot.last = datagram.time;
        match &mut slot.state {
            State::Live(live) => live.receive(&record, learned),
            State::Candidate(candidate) => {
                candidate.take(record);
                let said = learned
                    .media(slot.source, slot.destination)
                    .is_some_and(|media| media.is_rtp());
                if said || candidate.is_convincing() {
                    self.confirm(at, learned);
                }
            }
            State::Free => {}
        }
    }

    fn open(
        &mut self,
        key: FlowKey,
        ssrc: u32,
        datagram: &Datagram<'_>,
        learned: &Learned,
    ) -> Option<usize> {
        if self.candidates >= self.limit_candidates {
            self.sweep(datagram.time, learned);
        }
        let slot = Slot {
            serial: self.serial,
            ssrc,
            source: datagram.source,
            destination: datagram.destination,
            last: datagram.time,
            state: State::Candidate(Candidate {
                records: Vec::new(),
                score: 0,
                moved: false,
            }),
        };
        let at = self.free.pop().unwrap_or(self.slots.len());
        if self.index.insert(key, at).is_err() {
            self.refused += 1;
            return None;
        }
        match self.slots.get_mut(at) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        self.serial += 1;
        self.candidates += 1;
        Some(at)
    }

    /// A candidate becomes a stream, unless there are too many.
    fn confirm(&mut self, at: usize, learned: &Learned) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let State::Candidate(candidate) = &mut slot.state else {
            return;
        };
        if self.live >= self.limit_streams {
            self.refused += candidate.records.len() as u64;
            candidate.records.clear();
            return;
        }
        let records = std::mem::take(&mut candidate.records);
        let mut live = Box::new(Live::new(slot.source, slot.destination, learned));
        live.begin(records, learned);
        let flow = FlowKey::new(slot.source, slot.destination, 0);
        slot.state = State::Live(live);
        self.candidates -= 1;
        self.live += 1;
        // Full: only the help for weak candidates beside this stream is lost.
        let _ = self.flows.insert(flow, ());
    }

    /// Makes room: stale candidates go, and where none is stale the older half.
    fn sweep(&mut self, now: u64, learned: &Learned) {
        let mut waiting: Vec<(u64, usize)> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| matches!(slot.state, State::Candidate(_)))
            .map(|(at, slot)| (slot.last, at))
            .collect();
        waiting.sort_unstable();
        let stale = waiting.partition_point(|(last, _)| last.saturating_add(STALE) < now);
        let count = stale.max(waiting.len() / 2).max(1);
        for (_, at) in waiting.into_iter().take(count) {
            if self.is_good_enough_at_end(at, learned) {
                self.confirm(at, learned);
            }
            self.drop_candidate(at);
        }
    }

    fn drop_candidate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        if matches!(slot.state, State::Candidate(_)) {
            slot.state = State::Free;
            let key = FlowKey::new(slot.source, slot.destination, slot.ssrc);
            self.index.remove(&key);
            self.free.push(at);
            self.candidates -= 1;
        }
    }

    fn is_good_enough_at_end(&self, at: usize, learned: &Learned) -> bool {
        let Some(slot) = self.slots.get(at) else {
            return false;
        };
        let State::Candidate(candidate) = &slot.state else {
            return false;
        };
        let said = learned
            .media(slot.source, slot.destination)
            .is_some_and(|media| media.is_rtp());
        let beside = self.has_flow(slot.source, slot.destination)
            || self.has_flow(slot.destination, slot.source);
        let unusual = candidate.is_unusual();
        said && !candidate.records.is_empty()
            || beside && !unusual && candidate.score >= ENOUGH_BESIDE
            || !unusual && candidate.score >= ENOUGH_AT_END
            || candidate.score >= ENOUGH_FOR_UNUSUAL
    }

    /// All streams in the order of their first packets.
    pub(super) fn finish(
        mut self,
        learned: &Learned,
        rtcp: &Reports,
        calls: &CallIndex,
    ) -> Vec<StreamReport> {
        for at in 0..self.slots.len() {
            if self.is_good_enough_at_end(at, learned) {
                self.confirm(at, learned);
            }
        }
        self.slots.sort_by_key(|slot| slot.serial);
        let mut reports = Vec::with_capacity(self.live);
        for slot in &mut self.slots {
            if let State::Live(live) = &mut slot.state {
                live.finish(learned);
                let call = live
                    .media
                    .and_then(|number| calls.identifier(learned.numbered(number)?.call?));
                reports.push(StreamReport::new(live, slot.ssrc, call, rtcp));
            }
        }
        reports
    }
}

impl Candidate {
    fn take(&mut self, record: Record) {
        if let Some(last) = self.records.last() {
            let (points, moved) = compare(last, &record);
            self.score += points;
            self.moved |= moved;
        }
        if self.score <= TOO_BAD {
            self.records.clear();
            self.score = 0;
            self.moved = false;
        } else if self.records.len() >= MAX_HELD {
            self.records.drain(..MAX_HELD / 2);
        }
        self.records.push(record);
    }

    fn is_convincing(&self) -> bool {
        let enough = if self.is_unusual() {
            ENOUGH_FOR_UNUSUAL
        } else {
            ENOUGH
        };
        self.score >= enough
    }

    /// A payload type that nobody assigns, or timestamps that stand still without being an event's.
    fn is_unusual(&self) -> bool {
        let known_type = |record: &Record| {
            record.payload_type >= 96
                || wire::rtp::static_payload_type(record.payload_type).is_some()
        };
        let still = !self.moved && !self.records.iter().all(Record::may_be_event);
        still || !self.records.iter().all(known_type)
    }
}

/// Points for a packet after another, and whether the timestamp moved on.
fn compare(last: &Record, next: &Record) -> (i32, bool) {
    let step = next.sequence.wrapping_sub(last.sequence) as i16;
    let media = next.timestamp.wrapping_sub(last.timestamp) as i32;
    let fits = media.unsigned_abs() <= MAX_STEP as u32;
    match step {
        1 if fits => (2, media > 0),
        2..=16 if fits => (1, media > 0),
        // A repeat says nothing, unless the timestamp contradicts it.
        0 => (if media == 0 { 0 } else { -2 }, false),
        -16..=-1 if fits => (0, false),
        _ => (-2, false),
    }
}

/// The packet's fields. Where the capture cut it, the twelve bytes of the fixed header are enough.
fn record(datagram: &Datagram<'_>) -> Option<(u32, Record)> {
    let payload = datagram.payload;
    let view = match RtpView::parse(payload) {
        Some(view) => view,
        None if datagram.is_cut() => return cut_record(datagram),
        None => return None,
    };
    let body = view.payload_and_padding();
    let mut length = datagram.sent_length.saturating_sub(view.header_length());
    if let (true, Some(unpadded)) = (view.has_padding() && !datagram.is_cut(), view.payload()) {
        length = unpadded.len();
    }
    Some((
        view.ssrc(),
        Record {
            time: datagram.time,
            timestamp: view.timestamp(),
            length: length as u32,
            head: head(body),
            sequence: view.sequence(),
            payload_type: view.payload_type(),
            marker: view.marker(),
        },
    ))
}

fn cut_record(datagram: &Datagram<'_>) -> Option<(u32, Record)> {
    let mut fixed = *datagram.payload.first_chunk::<12>()?;
    // Without CSRC list and extension, whose end is not there.
    fixed[0] &= 0xc0;
    let view = RtpView::parse(&fixed)?;
    Some((
        view.ssrc(),
        Record {
            time: datagram.time,
            timestamp: view.timestamp(),
            length: datagram.sent_length.saturating_sub(12) as u32,
            head: [0xff; 4],
            sequence: view.sequence(),
            payload_type: view.payload_type(),
            marker: view.marker(),
        },
    ))
}

/// The first four bytes; 0xff, which is no event, where there are fewer.
fn head(body: &[u8]) -> [u8; 4] {
    body.first_chunk::<4>().copied().unwrap_or([0xff; 4])
}
