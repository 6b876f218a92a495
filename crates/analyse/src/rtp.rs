//! Detection of RTP: by SDP where the capture has it, by a heuristic otherwise.
//!
//! A source (addresses, ports, SSRC) whose packets carry version two is a candidate. It becomes a stream at once if SDP
//! contains one of its addresses; otherwise when its sequence numbers and timestamps advance as in RTP. In DNS, STUN,
//! DTLS, RTCP and other protocols these bytes are constant or jump.

use super::calls::CallIndex;
use super::datagram::CapturedDatagram;
use super::keys::FlowKey;
use super::report::StreamReport;
use super::rtcp::RtcpReports;
use super::sdp::SdpIndex;
use super::stream::{ConfirmedStream, PacketRecord};
use engine::{BoundedMap, HashKey};
use std::net::SocketAddr;
use wire::rtp::RtpView;

/// Points that make a candidate a stream: two for each packet next in sequence, one for each after a small gap.
const CONFIRM_SCORE: i32 = 6;
/// The same with an unusual payload type or constant timestamps.
const CONFIRM_SCORE_UNUSUAL: i32 = 14;
/// Points at the end of the capture: three packets in sequence; two beside another stream of the same addresses.
const CONFIRM_SCORE_AT_END: i32 = 4;
const CONFIRM_SCORE_BESIDE: i32 = 2;
/// A candidate below this score is another protocol.
const REJECT_SCORE: i32 = -8;
/// Packets buffered of a candidate.
const MAX_BUFFERED: usize = 64;
/// Silence after which a candidate may be dropped, nanoseconds.
const STALE_NS: u64 = 10_000_000_000;
/// A larger timestamp step between neighbours is not RTP: 90 s at 90 kHz.
const MAX_TIMESTAMP_STEP: i32 = 90_000 * 90;

#[derive(Debug)]
struct StreamCandidate {
    records: Vec<PacketRecord>,
    score: i32,
    moved: bool,
}

#[derive(Debug)]
enum SourceStage {
    Candidate(StreamCandidate),
    Live(Box<ConfirmedStream>),
    Free,
}

#[derive(Debug)]
struct SourceSlot {
    serial: u64,
    ssrc: u32,
    source: SocketAddr,
    destination: SocketAddr,
    last: u64,
    state: SourceStage,
}

#[derive(Debug)]
pub(super) struct StreamFinder {
    index: BoundedMap<FlowKey, usize>,
    flows: BoundedMap<FlowKey, ()>,
    slots: Vec<SourceSlot>,
    free: Vec<usize>,
    candidates: usize,
    live: usize,
    limit_streams: usize,
    limit_candidates: usize,
    serial: u64,
    refused: u64,
}

impl StreamFinder {
    pub(super) fn new(streams: usize, candidates: usize, key: HashKey) -> StreamFinder {
        StreamFinder {
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

    /// Whether a stream runs between these endpoints or one port below, in either direction. Such a datagram may be
    /// RTCP.
    pub(super) fn knows_flow_of(&self, datagram: &CapturedDatagram<'_>) -> bool {
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
    pub(super) fn receive(&mut self, datagram: &CapturedDatagram<'_>, sdp_index: &SdpIndex) {
        let Some((ssrc, record)) = record(datagram) else {
            return;
        };
        let key = FlowKey::new(datagram.source, datagram.destination, ssrc);
        let at = match self.index.get(&key) {
            Some(at) => *at,
            None => match self.open(key, ssrc, datagram, sdp_index) {
                Some(at) => at,
                None => return,
            },
        };
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        slot.last = datagram.time;
        match &mut slot.state {
            SourceStage::Live(live) => live.receive(&record, sdp_index),
            SourceStage::Candidate(candidate) => {
                candidate.push(record);
                let in_sdp = sdp_index
                    .media(slot.source, slot.destination)
                    .is_some_and(|media| media.is_rtp());
                if in_sdp || candidate.is_confirmed() {
                    self.confirm(at, sdp_index);
                }
            }
            SourceStage::Free => {}
        }
    }

    fn open(
        &mut self,
        key: FlowKey,
        ssrc: u32,
        datagram: &CapturedDatagram<'_>,
        sdp_index: &SdpIndex,
    ) -> Option<usize> {
        if self.candidates >= self.limit_candidates {
            self.sweep(datagram.time, sdp_index);
        }
        let slot = SourceSlot {
            serial: self.serial,
            ssrc,
            source: datagram.source,
            destination: datagram.destination,
            last: datagram.time,
            state: SourceStage::Candidate(StreamCandidate {
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

    /// Turns a candidate into a stream, within the limit of streams.
    fn confirm(&mut self, at: usize, sdp_index: &SdpIndex) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let SourceStage::Candidate(candidate) = &mut slot.state else {
            return;
        };
        if self.live >= self.limit_streams {
            self.refused += candidate.records.len() as u64;
            candidate.records.clear();
            return;
        }
        let records = std::mem::take(&mut candidate.records);
        let mut live = Box::new(ConfirmedStream::new(
            slot.source,
            slot.destination,
            sdp_index,
        ));
        live.begin(records, sdp_index);
        let flow = FlowKey::new(slot.source, slot.destination, 0);
        slot.state = SourceStage::Live(live);
        self.candidates -= 1;
        self.live += 1;
        // A full table only loses the lower threshold for weak candidates beside this stream.
        let _ = self.flows.insert(flow, ());
    }

    /// Drops stale candidates; without stale ones, the older half.
    fn sweep(&mut self, now: u64, sdp_index: &SdpIndex) {
        let mut by_age: Vec<(u64, usize)> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| matches!(slot.state, SourceStage::Candidate(_)))
            .map(|(at, slot)| (slot.last, at))
            .collect();
        by_age.sort_unstable();
        let stale = by_age.partition_point(|(last, _)| last.saturating_add(STALE_NS) < now);
        let count = stale.max(by_age.len() / 2).max(1);
        for (_, at) in by_age.into_iter().take(count) {
            if self.qualifies_at_end(at, sdp_index) {
                self.confirm(at, sdp_index);
            }
            self.drop_candidate(at);
        }
    }

    fn drop_candidate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        if matches!(slot.state, SourceStage::Candidate(_)) {
            slot.state = SourceStage::Free;
            let key = FlowKey::new(slot.source, slot.destination, slot.ssrc);
            self.index.remove(&key);
            self.free.push(at);
            self.candidates -= 1;
        }
    }

    fn qualifies_at_end(&self, at: usize, sdp_index: &SdpIndex) -> bool {
        let Some(slot) = self.slots.get(at) else {
            return false;
        };
        let SourceStage::Candidate(candidate) = &slot.state else {
            return false;
        };
        let in_sdp = sdp_index
            .media(slot.source, slot.destination)
            .is_some_and(|media| media.is_rtp());
        let beside_stream = self.has_flow(slot.source, slot.destination)
            || self.has_flow(slot.destination, slot.source);
        let unusual = candidate.is_unusual();
        in_sdp && !candidate.records.is_empty()
            || beside_stream && !unusual && candidate.score >= CONFIRM_SCORE_BESIDE
            || !unusual && candidate.score >= CONFIRM_SCORE_AT_END
            || candidate.score >= CONFIRM_SCORE_UNUSUAL
    }

    /// All streams in the order of their first packets.
    pub(super) fn finish(
        mut self,
        sdp_index: &SdpIndex,
        rtcp: &RtcpReports,
        calls: &CallIndex,
    ) -> Vec<StreamReport> {
        for at in 0..self.slots.len() {
            if self.qualifies_at_end(at, sdp_index) {
                self.confirm(at, sdp_index);
            }
        }
        self.slots.sort_by_key(|slot| slot.serial);
        let mut reports = Vec::with_capacity(self.live);
        for slot in &mut self.slots {
            if let SourceStage::Live(live) = &mut slot.state {
                live.finish(sdp_index);
                let call = live
                    .media
                    .and_then(|number| calls.identifier(sdp_index.numbered(number)?.call?));
                reports.push(StreamReport::new(live, slot.ssrc, call, rtcp));
            }
        }
        reports
    }
}

impl StreamCandidate {
    fn push(&mut self, record: PacketRecord) {
        if let Some(last) = self.records.last() {
            let (points, moved) = compare(last, &record);
            self.score += points;
            self.moved |= moved;
        }
        if self.score <= REJECT_SCORE {
            self.records.clear();
            self.score = 0;
            self.moved = false;
        } else if self.records.len() >= MAX_BUFFERED {
            self.records.drain(..MAX_BUFFERED / 2);
        }
        self.records.push(record);
    }

    fn is_confirmed(&self) -> bool {
        let required = if self.is_unusual() {
            CONFIRM_SCORE_UNUSUAL
        } else {
            CONFIRM_SCORE
        };
        self.score >= required
    }

    /// An unassigned payload type, or constant timestamps without telephone events.
    fn is_unusual(&self) -> bool {
        let known_type = |record: &PacketRecord| {
            record.payload_type >= 96
                || wire::rtp::static_payload_type(record.payload_type).is_some()
        };
        let still = !self.moved && !self.records.iter().all(PacketRecord::may_be_event);
        still || !self.records.iter().all(known_type)
    }
}

/// Points for two consecutive packets, and whether the timestamp advanced.
fn compare(last: &PacketRecord, next: &PacketRecord) -> (i32, bool) {
    let step = next.sequence.wrapping_sub(last.sequence) as i16;
    let media = next.timestamp.wrapping_sub(last.timestamp) as i32;
    let fits = media.unsigned_abs() <= MAX_TIMESTAMP_STEP as u32;
    match step {
        1 if fits => (2, media > 0),
        2..=16 if fits => (1, media > 0),
        // A repeat is neutral, unless the timestamp contradicts it.
        0 => (if media == 0 { 0 } else { -2 }, false),
        -16..=-1 if fits => (0, false),
        _ => (-2, false),
    }
}

/// The fields of the packet. Of a truncated packet the twelve bytes of the fixed header are enough.
fn record(datagram: &CapturedDatagram<'_>) -> Option<(u32, PacketRecord)> {
    let payload = datagram.payload;
    let view = match RtpView::parse(payload) {
        Some(view) => view,
        None if datagram.is_truncated() => return cut_record(datagram),
        None => return None,
    };
    let body = view.payload_and_padding();
    let mut length = datagram.sent_length.saturating_sub(view.header_length());
    if let (true, Some(unpadded)) = (
        view.has_padding() && !datagram.is_truncated(),
        view.payload(),
    ) {
        length = unpadded.len();
    }
    Some((
        view.ssrc(),
        PacketRecord {
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

fn cut_record(datagram: &CapturedDatagram<'_>) -> Option<(u32, PacketRecord)> {
    let mut fixed = *datagram.payload.first_chunk::<12>()?;
    // Without CSRC list and extension: their end is not in the capture.
    fixed[0] &= 0xc0;
    let view = RtpView::parse(&fixed)?;
    Some((
        view.ssrc(),
        PacketRecord {
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

/// The first four bytes; 0xff, which is no event, if there are fewer.
fn head(body: &[u8]) -> [u8; 4] {
    body.first_chunk::<4>().copied().unwrap_or([0xff; 4])
}
