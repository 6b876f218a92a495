//! Receive statistics of RTP (RFC 3550 appendix A): one type for live flows, for the sinks of the test lab and for
//! captures.
//!
//! Counting starts with the first packet; the validity of a source (two packets in sequence, A.1) is tracked
//! separately. Loss is stated in two ways: [`Summary::lost_unique`] is the loss at a listener,
//! [`Summary::cumulative_lost`] is that of RFC 3550, in which duplicates count as received. Jitter is computed per
//! payload type, without duplicates, in arrival order, in floating point starting at zero (the formula of A.8 without
//! its integer rounding); [`IntegerJitter`] is the integer form for reports. If timestamps or sequence numbers of a
//! source are reset, jitter and skew continue after the break.

mod histogram;
mod jitter;
mod sequence;
mod skew;

pub use histogram::LogHistogram;
pub use jitter::{IntegerJitter, Jitter, JitterSummary};
pub use sequence::{Arrival, Sequence};
pub use skew::Skew;

use core::time::Duration;
use engine::{OffloadStatistics, Time};
use wire::rtcp::ReportBlock;

/// Payload types that one [`ReceiveStatistics`] tracks; packets of further ones are counted, without jitter.
pub const MAX_PAYLOAD_TYPES: usize = 8;

/// The fields of a packet that the statistics use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpArrival {
    /// Time of arrival.
    pub time: Time,
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp.
    pub timestamp: u32,
    /// Payload type.
    pub payload_type: u8,
}

/// Figures of one payload type.
#[derive(Clone, Debug)]
struct PayloadStatistics {
    payload_type: u8,
    packets: u64,
    /// Packets up to the last report block.
    reported: u64,
    /// Sequence number of the last packet.
    sequence: u16,
    clock_rate: Option<u32>,
    jitter: Jitter,
    integer: IntegerJitter,
    skew: Skew,
}

/// Statistics of one source at one receiver.
///
/// [`ReceiveStatistics::receive`] allocates only when a payload type is seen for the first time.
#[derive(Clone, Debug)]
pub struct ReceiveStatistics {
    sequence: Sequence,
    payload_types: Vec<PayloadStatistics>,
    other_packets: u64,
    last_payload_type: Option<u8>,
    first: Option<Time>,
    last: Time,
    delta_min: i64,
    delta_max: i64,
    expected_prior: u64,
    received_prior: u64,
}

impl Default for ReceiveStatistics {
    fn default() -> Self {
        ReceiveStatistics::new(Sequence::LIVE_WINDOW)
    }
}

impl ReceiveStatistics {
    /// Statistics without packets. Duplicates are detected exactly within `window` sequence numbers (see
    /// [`Sequence::new`]).
    pub fn new(window: usize) -> ReceiveStatistics {
        ReceiveStatistics {
            sequence: Sequence::new(window),
            payload_types: Vec::with_capacity(2),
            other_packets: 0,
            last_payload_type: None,
            first: None,
            last: Time::ZERO,
            delta_min: i64::MAX,
            delta_max: i64::MIN,
            expected_prior: 0,
            received_prior: 0,
        }
    }

    /// Sets the clock rate of a payload type in Hz. Static payload types have a default (RFC 3551). Without a clock
    /// rate there is no jitter. The figures of the type are reset if the rate changes.
    pub fn set_clock_rate(&mut self, payload_type: u8, clock_rate: u32) {
        let clock_rate = (clock_rate > 0).then_some(clock_rate);
        if let Some(statistics) = self.entry(payload_type)
            && statistics.clock_rate != clock_rate
        {
            statistics.clock_rate = clock_rate;
            statistics.jitter = Jitter::new();
            statistics.integer = IntegerJitter::default();
            statistics.skew = Skew::default();
        }
    }

    /// Reads the data that the next packet of the source will change, see [`engine::Forward::prefetch`]: this record,
    /// or with `deep` the data behind its pointers. The returned value is meaningless.
    pub(crate) fn prefetch(&self, deep: bool) -> u64 {
        let Some(first) = self.payload_types.first().filter(|_| deep) else {
            return self.sequence.prefetch(false)
                ^ self.other_packets
                ^ self.last.as_nanos()
                ^ self.payload_types.len() as u64;
        };
        self.sequence.prefetch(true)
            ^ first.packets
            ^ first.jitter.prefetch()
            ^ first.skew.prefetch()
    }

    /// Counts a packet.
    pub fn receive(&mut self, packet: &RtpArrival) -> Arrival {
        self.count_delta(packet.time);
        let arrival = self.sequence.receive(packet.sequence, packet.time);
        let changed =
            self.last_payload_type.replace(packet.payload_type) != Some(packet.payload_type);
        let Some(statistics) = self.entry(packet.payload_type) else {
            self.other_packets += 1;
            return arrival;
        };
        statistics.packets += 1;
        // The media clock of many senders stops during events and comfort noise.
        if changed || arrival == Arrival::Restart {
            statistics.skew.interrupt();
        }
        if arrival == Arrival::Restart {
            // A new sequence has a new timeline (RFC 3550 section 5.1: both begin at random values).
            statistics.jitter.interrupt();
            statistics.integer.interrupt();
        }
        if let Some(rate) = statistics.clock_rate
            && !matches!(arrival, Arrival::Duplicate | Arrival::Stray)
        {
            let (time, timestamp) = (packet.time, packet.timestamp);
            let step = packet.sequence.wrapping_sub(statistics.sequence) as i16;
            statistics.sequence = packet.sequence;
            if statistics.jitter.detect_break(time, timestamp, rate, step) {
                statistics.integer.interrupt();
                statistics.skew.interrupt();
            }
            statistics.jitter.receive(time, timestamp, rate);
            statistics.integer.receive(time, timestamp, rate);
            statistics.skew.receive(packet.time, packet.timestamp, rate);
        }
        arrival
    }

    /// Adds packets that the kernel relayed after the last packet, of its payload type, without loss and duplicates.
    /// Jitter is exact; its distribution gets the mean, the skew gets the last packet.
    pub fn add_offloaded(&mut self, offloaded: &OffloadStatistics) {
        let Some(payload_type) = self.last_payload_type.filter(|_| offloaded.packets > 0) else {
            return;
        };
        let nanos = |span: Duration| span.as_nanos() as i64;
        self.delta_min = self.delta_min.min(nanos(offloaded.gap_min));
        self.delta_max = self.delta_max.max(nanos(offloaded.gap_max));
        self.last = offloaded.arrived;
        self.sequence
            .add_in_order(offloaded.packets, offloaded.arrived);
        let Some(statistics) = self.entry(payload_type) else {
            self.other_packets += u64::from(offloaded.packets);
            return;
        };
        statistics.packets += u64::from(offloaded.packets);
        statistics.sequence = statistics.sequence.wrapping_add(offloaded.packets as u16);
        if let Some(rate) = statistics.clock_rate {
            statistics.jitter.add_offloaded(offloaded);
            statistics.integer.add_offloaded(offloaded, rate);
            statistics
                .skew
                .receive(offloaded.arrived, offloaded.timestamp, rate);
        }
    }

    /// The present jitter of a payload type, and its clock rate in Hz; `None` if the clock rate is unknown.
    pub fn jitter(&self, payload_type: u8) -> Option<(Duration, u32)> {
        let known = self.payload_types.iter();
        let statistics = known
            .filter(|statistics| statistics.payload_type == payload_type)
            .find_map(|statistics| Some((statistics, statistics.clock_rate?)))?;
        let jitter = Duration::from_nanos(statistics.0.jitter.current() as u64);
        Some((jitter, statistics.1))
    }

    /// Packets by payload type, in order of appearance.
    pub fn payload_types(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.payload_types
            .iter()
            .filter(|statistics| statistics.packets > 0)
            .map(|statistics| (statistics.payload_type, statistics.packets))
    }

    /// The most frequent payload type; of equally frequent ones the earlier.
    pub fn main_payload_type(&self) -> Option<u8> {
        self.main().map(|statistics| statistics.payload_type)
    }

    /// The clock rate used for a payload type.
    pub fn clock_rate(&self, payload_type: u8) -> Option<u32> {
        self.payload_types
            .iter()
            .find(|statistics| statistics.payload_type == payload_type)?
            .clock_rate
    }

    /// Sequence number figures.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Arrival of the first packet.
    pub fn first_at(&self) -> Option<Time> {
        self.first
    }

    /// Arrival of the last packet.
    pub fn last_at(&self) -> Option<Time> {
        self.first.map(|_| self.last)
    }

    /// All figures.
    pub fn summary(&self) -> Summary {
        let sequence = &self.sequence;
        let main = self.main();
        let received = sequence.received();
        let (expected, unique) = (sequence.expected(), sequence.unique());
        let lost_unique = expected.saturating_sub(unique);
        let span = self.first.map_or(0, |first| signed_nanos(first, self.last));
        Summary {
            received,
            unique,
            duplicates: sequence.duplicates(),
            out_of_order: sequence.out_of_order(),
            strays: sequence.strays(),
            restarts: sequence.restarts(),
            lowest: sequence.lowest(),
            highest: sequence.highest(),
            cycles: sequence.cycles(),
            expected,
            lost_unique,
            cumulative_lost: expected as i64 - received as i64,
            lost_percent: percent(lost_unique, expected),
            burst_ratio: sequence.burst_ratio(),
            duration_s: span as f64 / 1e9,
            delta_ms: (received >= 2).then(|| MinMeanMax {
                min: self.delta_min as f64 / 1e6,
                mean: span as f64 / 1e6 / (received - 1) as f64,
                max: self.delta_max as f64 / 1e6,
            }),
            other_packets: self.other_packets,
            clock_rate: main.and_then(|main| main.clock_rate),
            jitter_ms: main.and_then(|main| main.jitter.summary()),
            skew_ppm: main.and_then(|main| main.skew.ppm()),
        }
    }

    /// Whether packets were received since the last report block.
    pub fn received_since_report(&self) -> bool {
        self.sequence.received() != self.received_prior
    }

    /// A reception report block about `ssrc` with the figures since the previous call (RFC 3550 A.3). The fields about
    /// the last sender report remain zero. The jitter is that of the payload type most frequent since then: a stream
    /// may have changed its codec.
    pub fn report_block(&mut self, ssrc: u32) -> ReportBlock {
        let (expected, received) = (self.sequence.expected(), self.sequence.received());
        let expected_since = expected.saturating_sub(self.expected_prior);
        let received_since = received.saturating_sub(self.received_prior);
        self.expected_prior = expected;
        self.received_prior = received;
        let lost_since = expected_since.saturating_sub(received_since);
        let fraction = (lost_since * 256).checked_div(expected_since).unwrap_or(0);
        let recent = self.payload_types.iter().rev();
        let recent = recent.max_by_key(|recent| (recent.packets - recent.reported, recent.packets));
        let jitter = recent.map_or(0, |recent| recent.integer.value());
        for statistics in &mut self.payload_types {
            statistics.reported = statistics.packets;
        }
        ReportBlock {
            ssrc,
            fraction_lost: fraction.min(255) as u8,
            cumulative_lost: (expected as i64 - received as i64).clamp(-0x80_0000, 0x7f_ffff)
                as i32,
            highest_sequence: self.sequence.highest() as u32,
            jitter,
            ..ReportBlock::default()
        }
    }

    fn main(&self) -> Option<&PayloadStatistics> {
        self.payload_types
            .iter()
            .filter(|statistics| statistics.packets > 0)
            .rev()
            .max_by_key(|statistics| statistics.packets)
    }

    /// The figures of a payload type, created if new; `None` if too many types are tracked.
    fn entry(&mut self, payload_type: u8) -> Option<&mut PayloadStatistics> {
        let known = self
            .payload_types
            .iter()
            .position(|statistics| statistics.payload_type == payload_type);
        let index = match known {
            Some(index) => index,
            None if self.payload_types.len() >= MAX_PAYLOAD_TYPES => return None,
            None => {
                self.payload_types.push(PayloadStatistics {
                    payload_type,
                    packets: 0,
                    reported: 0,
                    sequence: 0,
                    clock_rate: wire::rtp::static_payload_type(payload_type)
                        .map(|(_, rate, _)| rate),
                    jitter: Jitter::new(),
                    integer: IntegerJitter::default(),
                    skew: Skew::default(),
                });
                self.payload_types.len() - 1
            }
        };
        self.payload_types.get_mut(index)
    }

    fn count_delta(&mut self, time: Time) {
        if self.first.is_none() {
            self.first = Some(time);
        } else {
            let delta = signed_nanos(self.last, time);
            self.delta_min = self.delta_min.min(delta);
            self.delta_max = self.delta_max.max(delta);
        }
        self.last = time;
    }
}

/// Nanoseconds from `from` to `to`, negative if the clock of a capture was set back.
fn signed_nanos(from: Time, to: Time) -> i64 {
    to.as_nanos().wrapping_sub(from.as_nanos()) as i64
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// Minimum, mean and maximum, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MinMeanMax {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: f64,
}

/// The figures of a [`ReceiveStatistics`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Packets received.
    pub received: u64,
    /// Distinct extended sequence numbers.
    pub unique: u64,
    /// Packets with a number that was received before.
    pub duplicates: u64,
    /// First arrivals below the highest seen so far.
    pub out_of_order: u64,
    /// Packets far outside the sequence that no following packet confirmed; neither unique nor duplicate.
    pub strays: u64,
    /// New sequences with the same source identifier (RFC 3550 A.1).
    pub restarts: u64,
    /// Lowest extended sequence number since the last restart.
    pub lowest: i64,
    /// Highest extended sequence number since the last restart.
    pub highest: i64,
    /// Wraps of the sequence number.
    pub cycles: u64,
    /// Number of packets sent by the source: highest - lowest + 1, over all restarts.
    pub expected: u64,
    /// Expected less unique.
    pub lost_unique: u64,
    /// Expected less received (RFC 3550): negative if duplicates outnumber losses.
    pub cumulative_lost: i64,
    /// `lost_unique` of `expected`, in percent.
    pub lost_percent: f64,
    /// Mean length of loss runs over the mean length under random loss (G.107 section 7.5): 1 is random.
    pub burst_ratio: f64,
    /// Time from the first to the last packet, in seconds.
    pub duration_s: f64,
    /// Time between consecutive packets; `None` with fewer than two.
    pub delta_ms: Option<MinMeanMax>,
    /// Packets of payload types beyond [`MAX_PAYLOAD_TYPES`], which are in no figure by payload type.
    pub other_packets: u64,
    /// Clock rate of the most frequent payload type, in Hz.
    pub clock_rate: Option<u32>,
    /// Jitter of the most frequent payload type; `None` without a clock rate or with fewer than two packets.
    pub jitter_ms: Option<JitterSummary>,
    /// Skew of the sender's media clock, positive if faster than ours, in parts per million.
    pub skew_ppm: Option<f64>,
}

/// Treats arbitrary bytes as a sequence of RTP and RTCP packets, for fuzzing. Each packet is preceded by its length
/// (one byte) and the milliseconds since the last one (one byte).
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn fuzz_rtp_rtcp(mut data: &[u8]) {
    let mut statistics = ReceiveStatistics::new(256);
    let mut time = 0u64;
    while let [length, gap, rest @ ..] = data {
        let (packet, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        time += u64::from(*gap);
        if wire::rtcp::is_rtcp(packet) {
            for part in wire::rtcp::Compound::new(packet) {
                let _ = (
                    part.sender(),
                    part.sender_info(),
                    part.goodbye_reason(),
                    part.feedback(),
                );
                let _ = part.reports().count() + part.descriptions().count();
                let _ = part.goodbye_sources().count() + part.extended_blocks().count();
            }
        } else if let Some(view) = wire::rtp::RtpView::parse(packet) {
            let _ = (
                view.payload(),
                view.csrcs().count(),
                view.extension_elements().count(),
            );
            statistics.receive(&RtpArrival {
                time: Time::from_millis(time),
                sequence: view.sequence(),
                timestamp: view.timestamp(),
                payload_type: view.payload_type(),
            });
        }
    }
    let summary = statistics.summary();
    assert_eq!(
        summary.received,
        summary.unique + summary.duplicates + summary.strays,
        "every packet is counted once"
    );
    assert!(summary.expected >= summary.unique);
    let _ = statistics.report_block(1);
}
