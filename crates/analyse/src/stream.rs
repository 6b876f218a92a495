//! One confirmed stream: its statistics and the meaning of its payload types.

use super::dtmf::{Dtmf, may_be_event};
use super::sdp::SdpIndex;
use super::types::{PayloadKind, TypeSource, guess_rate};
use engine::Time;
use media::stats::{ReceiveStatistics, RtpArrival};
use std::net::SocketAddr;

/// Sequence numbers within which a late packet is told from a lost one.
const WINDOW: usize = 8192;
/// Bounds on the packets buffered until an unknown clock is measured: least number, least time span (ns), most.
const BUFFER_LEAST: usize = 100;
const BUFFER_SPAN_NS: u64 = 1_000_000_000;
const BUFFER_MOST: usize = 400;
/// Payload types of a stream whose meaning is kept.
const MAX_KINDS: usize = media::stats::MAX_PAYLOAD_TYPES;

/// The fields of a buffered packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketRecord {
    pub time: u64,
    pub timestamp: u32,
    /// Length of the payload as sent.
    pub length: u32,
    pub head: [u8; 4],
    pub sequence: u16,
    pub payload_type: u8,
    pub marker: bool,
}

impl PacketRecord {
    pub(super) fn may_be_event(&self) -> bool {
        may_be_event(self.payload_type, self.length as usize, &self.head)
    }
}

/// A payload type that appeared later and whose clock is being measured.
#[derive(Debug)]
struct ClockProbe {
    payload_type: u8,
    packets: Vec<(u64, u32)>,
}

#[derive(Debug)]
pub(super) struct ConfirmedStream {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub statistics: ReceiveStatistics,
    pub kinds: Vec<PayloadKind>,
    pub dtmf: Dtmf,
    pub markers: u64,
    pub payload_bytes: u64,
    pub srtp: bool,
    /// Number of the media line in SDP that contains an address of the stream: of the time of its start, else a later
    /// one.
    pub media: Option<usize>,
    /// Smallest timestamp step between packets in sequence, in timestamp units: the packet time.
    pub step: Option<u32>,
    last: Option<(u16, u32, u8)>,
    buffered: Option<Vec<PacketRecord>>,
    probes: Vec<ClockProbe>,
}

fn is_srtp(media: Option<usize>, sdp_index: &SdpIndex) -> bool {
    media
        .and_then(|number| sdp_index.numbered(number))
        .is_some_and(super::sdp::SdpMedia::is_srtp)
}

impl ConfirmedStream {
    pub(super) fn new(
        source: SocketAddr,
        destination: SocketAddr,
        sdp_index: &SdpIndex,
    ) -> ConfirmedStream {
        let media = sdp_index.media_number(source, destination);
        ConfirmedStream {
            source,
            destination,
            statistics: ReceiveStatistics::new(WINDOW),
            kinds: Vec::new(),
            dtmf: Dtmf::default(),
            markers: 0,
            payload_bytes: 0,
            srtp: is_srtp(media, sdp_index) || sdp_index.has_dtls(source, destination),
            media,
            step: None,
            last: None,
            buffered: None,
            probes: Vec::new(),
        }
    }

    /// Takes the packets of the candidate, in arrival order.
    pub(super) fn begin(&mut self, records: Vec<PacketRecord>, sdp_index: &SdpIndex) {
        let known = |record: &PacketRecord| {
            record.may_be_event()
                || sdp_index
                    .kind(self.source, self.destination, record.payload_type)
                    .is_some()
        };
        if records.iter().all(known) {
            for record in &records {
                self.count(record, sdp_index);
            }
        } else {
            self.buffered = Some(records);
            self.resolve_when_enough(sdp_index);
        }
    }

    /// Takes the next packet.
    pub(super) fn receive(&mut self, record: &PacketRecord, sdp_index: &SdpIndex) {
        match &mut self.buffered {
            None => self.count(record, sdp_index),
            Some(buffered) => {
                buffered.push(*record);
                self.resolve_when_enough(sdp_index);
            }
        }
    }

    fn resolve_when_enough(&mut self, sdp_index: &SdpIndex) {
        let Some(buffered) = &self.buffered else {
            return;
        };
        let span = match (buffered.first(), buffered.last()) {
            (Some(first), Some(last)) => last.time.saturating_sub(first.time),
            _ => 0,
        };
        if buffered.len() >= BUFFER_MOST
            || (buffered.len() >= BUFFER_LEAST && span >= BUFFER_SPAN_NS)
        {
            self.resolve_types(sdp_index);
        }
    }

    /// Determines the meaning of payload types of the buffered packets, and counts them.
    pub(super) fn resolve_types(&mut self, sdp_index: &SdpIndex) {
        let Some(buffered) = self.buffered.take() else {
            return;
        };
        let mut numbers: Vec<u8> = buffered.iter().map(|record| record.payload_type).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers.into_iter().take(MAX_KINDS) {
            if sdp_index
                .kind(self.source, self.destination, number)
                .is_some()
            {
                continue;
            }
            let of_type = || {
                buffered
                    .iter()
                    .filter(|record| record.payload_type == number)
            };
            // The first packet of the type adds it as telephone-event, with the clock of the audio.
            if of_type().all(PacketRecord::may_be_event) {
                continue;
            }
            let packets: Vec<(u64, u32)> = of_type()
                .map(|record| (record.time, record.timestamp))
                .collect();
            if let Some((rate, source)) = guess_rate(number, &packets) {
                self.add_kind(PayloadKind {
                    payload_type: number,
                    encoding: None,
                    clock_rate: Some(rate),
                    source,
                });
            }
        }
        for record in &buffered {
            self.count(record, sdp_index);
        }
    }

    /// Completes buffered packets and measurements at the end.
    pub(super) fn finish(&mut self, sdp_index: &SdpIndex) {
        self.resolve_types(sdp_index);
        for probe in std::mem::take(&mut self.probes) {
            self.measure(&probe);
        }
        if self.media.is_none() {
            self.media = sdp_index.media_number(self.source, self.destination);
            self.srtp |= is_srtp(self.media, sdp_index);
        }
        self.srtp |= sdp_index.has_dtls(self.source, self.destination);
        // SDP later than the packets still gives a measured payload type its name.
        for kind in &mut self.kinds {
            if matches!(kind.source, TypeSource::Sdp | TypeSource::Static) {
                continue;
            }
            if let Some(declared) = sdp_index.kind(self.source, self.destination, kind.payload_type)
                && (kind.clock_rate.is_none() || declared.clock_rate == kind.clock_rate)
            {
                *kind = declared;
            }
        }
    }

    pub(super) fn kind(&self, payload_type: u8) -> Option<&PayloadKind> {
        self.kinds
            .iter()
            .find(|kind| kind.payload_type == payload_type)
    }

    fn add_kind(&mut self, kind: PayloadKind) {
        if self.kinds.len() < MAX_KINDS {
            if let Some(rate) = kind.clock_rate {
                self.statistics.set_clock_rate(kind.payload_type, rate);
            }
            self.kinds.push(kind);
        }
    }

    fn count(&mut self, record: &PacketRecord, sdp_index: &SdpIndex) {
        if self.kind(record.payload_type).is_none() {
            self.add_payload_type(record, sdp_index);
        }
        self.statistics.receive(&RtpArrival {
            time: Time(record.time),
            sequence: record.sequence,
            timestamp: record.timestamp,
            payload_type: record.payload_type,
        });
        self.markers += u64::from(record.marker);
        self.payload_bytes += u64::from(record.length);
        let is_event = self
            .kind(record.payload_type)
            .is_some_and(PayloadKind::is_event);
        if is_event && !self.srtp && record.length >= 4 {
            self.dtmf
                .receive(record.time, record.timestamp, &record.head);
        }
        self.count_step(record);
        if !self.probes.is_empty() {
            self.probe(record);
        }
    }

    fn count_step(&mut self, record: &PacketRecord) {
        if let Some((sequence, timestamp, payload_type)) = self.last
            && sequence.wrapping_add(1) == record.sequence
            && payload_type == record.payload_type
        {
            let step = record.timestamp.wrapping_sub(timestamp);
            if step > 0 && self.step.is_none_or(|known| step < known) {
                self.step = Some(step);
            }
        }
        self.last = Some((record.sequence, record.timestamp, record.payload_type));
    }

    /// The first packet of a payload type.
    fn add_payload_type(&mut self, record: &PacketRecord, sdp_index: &SdpIndex) {
        let number = record.payload_type;
        if let Some(kind) = sdp_index.kind(self.source, self.destination, number) {
            self.add_kind(kind);
        } else if record.may_be_event() && !self.srtp {
            self.add_kind(PayloadKind {
                payload_type: number,
                encoding: Some("telephone-event".to_owned()),
                clock_rate: Some(self.event_rate()),
                source: TypeSource::Custom,
            });
        } else if self.kinds.len() < MAX_KINDS {
            self.kinds.push(PayloadKind {
                payload_type: number,
                encoding: None,
                clock_rate: None,
                source: TypeSource::Measured,
            });
            self.probes.push(ClockProbe {
                payload_type: number,
                packets: Vec::new(),
            });
        }
    }

    /// Events use the clock of the audio beside them (RFC 4733 section 2.1).
    fn event_rate(&self) -> u32 {
        self.kinds
            .iter()
            .find_map(|kind| kind.clock_rate)
            .unwrap_or(8_000)
    }

    fn probe(&mut self, record: &PacketRecord) {
        let Some(at) = self
            .probes
            .iter()
            .position(|probe| probe.payload_type == record.payload_type)
        else {
            return;
        };
        let Some(probe) = self.probes.get_mut(at) else {
            return;
        };
        probe.packets.push((record.time, record.timestamp));
        if probe.packets.len() >= BUFFER_LEAST {
            let probe = self.probes.swap_remove(at);
            self.measure(&probe);
        }
    }

    /// Ends a measurement. The jitter of a payload type that appeared later is computed from here on.
    fn measure(&mut self, probe: &ClockProbe) {
        let Some((rate, source)) = guess_rate(probe.payload_type, &probe.packets) else {
            return;
        };
        self.statistics.set_clock_rate(probe.payload_type, rate);
        if let Some(kind) = self
            .kinds
            .iter_mut()
            .find(|kind| kind.payload_type == probe.payload_type)
        {
            kind.clock_rate = Some(rate);
            kind.source = source;
        }
    }
}
