//! An RTP receiver: statistics, telephone events, and the audio as played to a listener.

use crate::dtmf::EventReceiver;
use crate::stats::{ReceiveStatistics, RtpArrival, Sequence};
use codec::g711::Law;
use core::time::Duration;
use engine::Time;
use wire::rtp::{RtpView, TelephoneEvent};

/// Settings of a sink.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// Payload types that carry G.711, with their law.
    pub laws: Vec<(u8, Law)>,
    /// Payload type of telephone events.
    pub event_payload_type: Option<u8>,
    /// Clock rates in Hz of other payload types; static ones have a default.
    pub clock_rates: Vec<(u8, u32)>,
    /// Time from the arrival of the first packet to its playout. A packet that arrives after its playout time is late.
    pub playout: Duration,
    /// Seconds of audio that are kept, the latest ones; 0: none, and nothing is decoded.
    pub capture_s: u32,
}

impl Default for SinkConfig {
    /// Both laws, 60 ms of playout delay, 20 s of capture.
    fn default() -> Self {
        SinkConfig {
            laws: vec![(0, Law::Mu), (8, Law::A)],
            event_payload_type: None,
            clock_rates: Vec::new(),
            playout: Duration::from_millis(60),
            capture_s: 20,
        }
    }
}

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Audio, played.
    Audio,
    /// Audio after its playout time.
    Late,
    /// The first received part of a telephone event: the last of [`RtpSink::events`].
    EventBegin,
    /// A further part of a telephone event, or an unreadable one.
    Event,
    /// RTP of a payload type that is not decoded.
    Undecoded,
    /// Not RTP; not counted in the statistics.
    NotRtp,
}

/// Counters beside the statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Packets played.
    pub played: u64,
    /// Packets after their playout time.
    pub late: u64,
    /// Packets of payload types that are not decoded.
    pub undecoded: u64,
    /// Datagrams that were no RTP.
    pub not_rtp: u64,
    /// Changes of the synchronisation source.
    pub source_changes: u64,
}

/// Sums over the sources before the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedSources {
    /// Arrival of the first packet.
    pub first: Option<Time>,
    /// Packets received.
    pub received: u64,
    /// Packets sent by the sources, from the first to the last one that arrived of each.
    pub expected: u64,
    /// Packets of these that are missing.
    pub lost: u64,
    /// Packets received before.
    pub duplicates: u64,
    /// First arrivals out of order.
    pub out_of_order: u64,
}

impl EndedSources {
    fn add(&mut self, statistics: &ReceiveStatistics) {
        let sequence = statistics.sequence();
        self.first = self.first.or(statistics.first_at());
        self.received += sequence.received();
        self.expected += sequence.expected();
        self.lost += sequence.expected().saturating_sub(sequence.unique());
        self.duplicates += sequence.duplicates();
        self.out_of_order += sequence.out_of_order();
    }
}

/// Origin of the present source's timeline.
#[derive(Clone, Copy, Debug)]
struct Base {
    ssrc: u32,
    timestamp: u32,
    /// Position of `timestamp` in the audio.
    position: u64,
    arrived: Time,
}

const RATE: u32 = 8000;
/// A larger jump of the timestamp begins a new timeline (10 s).
const MAX_JUMP: i64 = 10 * RATE as i64;

/// Consecutive late packets after which a new timeline begins: the clocks have drifted apart, or the delay has grown.
const MAX_LATE_RUN: u32 = 10;

/// An RTP receiver.
#[derive(Clone, Debug)]
pub struct RtpSink {
    config: SinkConfig,
    statistics: ReceiveStatistics,
    ended: EndedSources,
    ssrc: Option<u32>,
    events: EventReceiver,
    base: Option<Base>,
    ring: Vec<i16>,
    /// Position after the last sample; the latest `ring.len()` samples are kept.
    end: u64,
    late_run: u32,
    counts: SinkCounts,
}

impl RtpSink {
    /// A sink. Memory for the audio is allocated as audio arrives.
    pub fn new(mut config: SinkConfig) -> RtpSink {
        config.capture_s = config.capture_s.min(3600);
        RtpSink {
            config,
            statistics: ReceiveStatistics::default(),
            ended: EndedSources::default(),
            ssrc: None,
            events: EventReceiver::default(),
            base: None,
            ring: Vec::new(),
            end: 0,
            late_run: 0,
            counts: SinkCounts::default(),
        }
    }

    /// Sets the payload type of telephone events and the clock rates of payload types, as negotiated.
    pub fn set_payload_types(&mut self, events: Option<u8>, clock_rates: &[(u8, u32)]) {
        self.config.event_payload_type = events;
        self.config.clock_rates = clock_rates.to_vec();
        self.set_clock_rates();
    }

    fn set_clock_rates(&mut self) {
        for &(payload_type, rate) in &self.config.clock_rates {
            self.statistics.set_clock_rate(payload_type, rate);
        }
    }

    /// Takes a datagram that arrived at `arrived`.
    pub fn receive(&mut self, datagram: &[u8], arrived: Time) -> Received {
        let Some(view) = RtpView::parse(datagram) else {
            self.counts.not_rtp += 1;
            return Received::NotRtp;
        };
        self.set_source(view.ssrc());
        self.statistics.receive(&RtpArrival {
            time: arrived,
            sequence: view.sequence(),
            timestamp: view.timestamp(),
            payload_type: view.payload_type(),
        });
        let payload = view.payload().unwrap_or_default();
        if self.config.event_payload_type == Some(view.payload_type()) {
            let event = TelephoneEvent::parse(payload);
            let begins = event.is_some_and(|event| self.events.receive(view.timestamp(), event));
            return match begins {
                true => Received::EventBegin,
                false => Received::Event,
            };
        }
        let law = self
            .config
            .laws
            .iter()
            .find(|law| law.0 == view.payload_type());
        let Some(&(_, law)) = law else {
            self.counts.undecoded += 1;
            return Received::Undecoded;
        };
        let played = self.play(&view, payload, law, arrived);
        match played {
            Received::Late => self.counts.late += 1,
            _ => self.counts.played += 1,
        }
        played
    }

    /// A new source begins new statistics and a new timeline; the audio continues after the previous one.
    fn set_source(&mut self, ssrc: u32) {
        if self.ssrc == Some(ssrc) {
            return;
        }
        if self.ssrc.is_some() {
            self.counts.source_changes += 1;
            self.ended.add(&self.statistics);
            self.statistics = ReceiveStatistics::new(Sequence::LIVE_WINDOW);
            self.base = None;
        }
        self.ssrc = Some(ssrc);
        if let Some(event) = self.config.event_payload_type {
            self.statistics.set_clock_rate(event, RATE);
        }
        for &(payload_type, _) in &self.config.laws {
            if wire::rtp::static_payload_type(payload_type).is_none() {
                self.statistics.set_clock_rate(payload_type, RATE);
            }
        }
        self.set_clock_rates();
    }

    /// Places a packet's audio at its playout position, unless it is late.
    fn play(&mut self, view: &RtpView<'_>, payload: &[u8], law: Law, arrived: Time) -> Received {
        let new_base = Base {
            ssrc: view.ssrc(),
            timestamp: view.timestamp(),
            position: self.end,
            arrived,
        };
        let mut base = *self.base.get_or_insert(new_base);
        let mut offset = i64::from(view.timestamp().wrapping_sub(base.timestamp) as i32);
        // The origin moves with packets far from it, so that offsets remain small.
        let expected = self.end as i64 - base.position as i64;
        if base.ssrc != new_base.ssrc || (offset - expected).abs() > MAX_JUMP {
            base = new_base;
            offset = 0;
            self.base = Some(base);
        }
        let Some(position) = base.position.checked_add_signed(offset) else {
            return Received::Late;
        };
        let span = offset.max(0) as u64 * 1_000_000_000 / u64::from(RATE);
        let playout = base.arrived + self.config.playout + Duration::from_nanos(span);
        if offset < 0 || arrived > playout {
            self.late_run += 1;
            if self.late_run >= MAX_LATE_RUN {
                self.late_run = 0;
                self.base = None;
            }
            return Received::Late;
        }
        self.late_run = 0;
        self.write(position, payload, law);
        if offset > MAX_JUMP {
            self.base = Some(Base {
                timestamp: view.timestamp(),
                position,
                arrived: base.arrived + Duration::from_nanos(span),
                ..base
            });
        }
        Received::Audio
    }

    fn capacity(&self) -> usize {
        (self.config.capture_s * RATE) as usize
    }

    /// Writes audio at `position`, with silence for missing audio before it.
    fn write(&mut self, position: u64, payload: &[u8], law: Law) {
        let capacity = self.capacity();
        if capacity == 0 {
            self.end = self.end.max(position + payload.len() as u64);
            return;
        }
        let payload = payload.get(..capacity).unwrap_or(payload);
        let last = position + payload.len() as u64;
        if last + (capacity as u64) < self.end {
            return;
        }
        let wanted = (last.min(capacity as u64)) as usize;
        if self.ring.len() < wanted {
            self.ring.resize(wanted, 0);
        }
        // Writing silence to the whole ring once is enough.
        let from = self.end.max(position.saturating_sub(capacity as u64));
        for gap in from..position {
            self.put(gap, 0);
        }
        // Samples that are older than the kept ones are left out.
        let oldest = self.end.saturating_sub(capacity as u64);
        let old = oldest.saturating_sub(position) as usize;
        let mut at = ((position + old as u64) % capacity as u64) as usize;
        for &code in payload.get(old..).unwrap_or_default() {
            if let Some(place) = self.ring.get_mut(at) {
                *place = law.decode_sample(code);
            }
            at += 1;
            if at == capacity {
                at = 0;
            }
        }
        self.end = self.end.max(last);
    }

    fn put(&mut self, position: u64, sample: i16) {
        let at = (position % self.capacity() as u64) as usize;
        if let Some(place) = self.ring.get_mut(at) {
            *place = sample;
        }
    }

    /// The latest audio in order, with silence for lost and late packets.
    pub fn audio(&self) -> Vec<i16> {
        let capacity = self.capacity() as u64;
        let start = self.end.saturating_sub(capacity);
        (start..self.end)
            .map(|at| {
                self.ring
                    .get((at % capacity) as usize)
                    .copied()
                    .unwrap_or(0)
            })
            .collect()
    }

    /// Samples of all audio so far, lost ones included.
    pub fn samples(&self) -> u64 {
        self.end
    }

    /// Statistics of the present source.
    pub fn statistics(&self) -> &ReceiveStatistics {
        &self.statistics
    }

    /// The same, mutable, for reception reports.
    pub fn statistics_mut(&mut self) -> &mut ReceiveStatistics {
        &mut self.statistics
    }

    /// Sums over the sources before the present one.
    pub fn ended_sources(&self) -> EndedSources {
        self.ended
    }

    /// The present synchronisation source.
    pub fn ssrc(&self) -> Option<u32> {
        self.ssrc
    }

    /// Received telephone events.
    pub fn events(&self) -> &EventReceiver {
        &self.events
    }

    /// Counts beside the statistics.
    pub fn counts(&self) -> SinkCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::rtp::RtpHeader;

    #[test]
    fn losses_of_a_source_outlast_a_change_of_the_source() {
        let mut sink = RtpSink::new(SinkConfig::default());
        let mut receive = |ssrc: u32, sequence: u16, ms: u64| {
            let header = RtpHeader {
                sequence,
                timestamp: u32::from(sequence) * 160,
                ssrc,
                ..RtpHeader::default()
            };
            sink.receive(&header.packet(&[0xff; 160]), Time::from_millis(ms));
        };
        // Every second packet of the first source, and one of them twice.
        for number in (0..21).step_by(2) {
            receive(1, number, u64::from(number) * 20);
        }
        receive(1, 20, 401);
        for number in 0..10 {
            receive(2, 500 + number, 420 + u64::from(number) * 20);
        }
        let ended = EndedSources {
            first: Some(Time::ZERO),
            received: 12,
            expected: 21,
            lost: 10,
            duplicates: 1,
            out_of_order: 0,
        };
        assert_eq!(sink.ended_sources(), ended);
        let present = sink.statistics().summary();
        assert_eq!((present.expected, present.lost_unique), (10, 0));
    }
}
