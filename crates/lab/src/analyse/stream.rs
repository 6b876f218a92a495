//! One confirmed stream: its statistics and what its payload types mean.

use super::dtmf::{Dtmf, may_be_event};
use super::sdp::Learned;
use super::types::{PayloadKind, TypeSource, guess_rate};
use engine::Time;
use media::stats::{ReceiveStatistics, RtpArrival};
use std::net::SocketAddr;

/// Duplicates and reordering are told exactly within this many sequence numbers.
const WINDOW: usize = 8192;
/// Packets of a stream with an unknown clock that are held until the clock is measured, and the time that they must span.
const HELD_ENOUGH: usize = 100;
const HELD_SPAN: u64 = 1_000_000_000;
const HELD_MOST: usize = 400;
/// Payload types whose meaning is kept of one stream.
const MAX_KINDS: usize = media::stats::MAX_PAYLOAD_TYPES;

/// What is kept of a packet while it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub time: u64,
    pub timestamp: u32,
    /// Length of the payload as sent.
    pub length: u32,
    pub head: [u8; 4],
    pub sequence: u16,
    pub payload_type: u8,
    pub marker: bool,
}

impl Record {
    pub(super) fn may_be_event(&self) -> bool {
        may_be_event(self.payload_type, self.length as usize, &self.head)
    }
}

/// A payload type that turned up later, whose clock is being measured.
#[derive(Debug)]
struct Probe {
    payload_type: u8,
    packets: Vec<(u64, u32)>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub statistics: ReceiveStatistics,
    pub kinds: Vec<PayloadKind>,
    pub dtmf: Dtmf,
    pub markers: u64,
    pub payload_bytes: u64,
    pub srtp: bool,
    /// Number of the media line in SDP that names an address of the stream: of the time when it began, else a later one.
    pub media: Option<usize>,
    /// Smallest step of the main timeline between packets in sequence, in timestamp units: the packet time.
    pub step: Option<u32>,
    last: Option<(u16, u32, u8)>,
    held: Option<Vec<Record>>,
    probes: Vec<Probe>,
}

fn is_srtp(media: Option<usize>, learned: &Learned) -> bool {
    media
        .and_then(|number| learned.numbered(number))
        .is_some_and(super::sdp::Media::is_srtp)
}

impl Live {
    pub(super) fn new(source: SocketAddr, destination: SocketAddr, learned: &Learned) -> Live {
        let media = learned.media_number(source, destination);
        Live {
            source,
            destination,
            statistics: ReceiveStatistics::new(WINDOW),
            kinds: Vec::new(),
            dtmf: Dtmf::default(),
            markers: 0,
            payload_bytes: 0,
            srtp: is_srtp(media, learned) || learned.has_dtls(source, destination),
            media,
            step: None,
            last: None,
            held: None,
            probes: Vec::new(),
        }
    }

    /// Takes the packets that made the stream, in arrival order.
    pub(super) fn begin(&mut self, records: Vec<Record>, learned: &Learned) {
        let known = |record: &Record| {
            record.may_be_event()
                || learned
                    .kind(self.source, self.destination, record.payload_type)
                    .is_some()
        };
        if records.iter().all(known) {
            for record in &records {
                self.count(record, learned);
            }
        } else {
            self.held = Some(records);
            self.settle_when_enough(learned);
        }
    }

    /// Takes the next packet.
    pub(super) fn receive(&mut self, record: &Record, learned: &Learned) {
        match &mut self.held {
            None => self.count(record, learned),
            Some(held) => {
                held.push(*record);
                self.settle_when_enough(learned);
            }
        }
    }

    fn settle_when_enough(&mut self, learned: &Learned) {
        let Some(held) = &self.held else { return };
        let span = match (held.first(), held.last()) {
            (Some(first), Some(last)) => last.time.saturating_sub(first.time),
            _ => 0,
        };
        if held.len() >= HELD_MOST || (held.len() >= HELD_ENOUGH && span >= HELD_SPAN) {
            self.settle(learned);
        }
    }

    /// Decides what the payload types of the held packets mean, and counts them.
    pub(super) fn settle(&mut self, learned: &Learned) {
        let Some(held) = self.held.take() else { return };
        let mut numbers: Vec<u8> = held.iter().map(|record| record.payload_type).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers.into_iter().take(MAX_KINDS) {
            if learned
                .kind(self.source, self.destination, number)
                .is_some()
            {
                continue;
            }
            let of_type = || held.iter().filter(|record| record.payload_type == number);
            if of_type().all(Record::may_be_event) {
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
        for record in &held {
            self.count(record, learned);
        }
    }

    /// At the end: what is still held or being measured.
    pub(super) fn finish(&mut self, learned: &Learned) {
        self.settle(learned);
        for probe in std::mem::take(&mut self.probes) {
            self.measure(&probe);
        }
        if self.media.is_none() {
            self.media = learned.media_number(self.source, self.destination);
            self.srtp |= is_srtp(self.media, learned);
        }
        self.srtp |= learned.has_dtls(self.source, self.destination);
        // SDP that came later than the packets still names what was measured.
        for kind in &mut self.kinds {
            if matches!(kind.source, TypeSource::Sdp | TypeSource::Static) {
                continue;
            }
            if let Some(said) = learned.kind(self.source, self.destination, kind.payload_type)
                && (kind.clock_rate.is_none() || said.clock_rate == kind.clock_rate)
            {
                *kind = said;
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

    fn count(&mut self, record: &Record, learned: &Learned) {
        if self.kind(record.payload_type).is_none() {
            self.meet(record, learned);
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

    fn count_step(&mut self, record: &Record) {
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
    fn meet(&mut self, record: &Record, learned: &Learned) {
        let number = record.payload_type;
        if let Some(kind) = learned.kind(self.source, self.destination, number) {
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
            self.probes.push(Probe {
                payload_type: number,
                packets: Vec::new(),
            });
        }
    }

    /// Events run on the clock of the audio beside them (RFC 4733 section 2.1).
    fn event_rate(&self) -> u32 {
        self.kinds
            .iter()
            .find_map(|kind| kind.clock_rate)
            .unwrap_or(8_000)
    }

    fn probe(&mut self, record: &Record) {
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
        if probe.packets.len() >= HELD_ENOUGH {
            let probe = self.probes.swap_remove(at);
            self.measure(&probe);
        }
    }

    /// The jitter of a payload type that turned up late is computed from here on, when its clock is known.
    fn measure(&mut self, probe: &Probe) {
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
