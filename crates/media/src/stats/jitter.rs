//! Interarrival jitter (RFC 3550 sections 6.4.1 and A.8), in real numbers and in the integer form.

use super::histogram::LogHistogram;
use core::time::Duration;
use engine::{OffloadStatistics, Time};

/// A larger difference of transit times, in nanoseconds, is a break if it is due to the media clock, see [`is_break`].
const CLOCK_STEP: f64 = 0.5e9;
/// A larger difference is always a break: the sender has paused with its media clock stopped, as on hold.
const PAUSE: f64 = 5e9;
/// The longest audio of a packet in a continuous stream, in nanoseconds.
const LONGEST_PACKET: f64 = 0.24e9;

/// Whether the media clock of a source broke between two packets: the timestamp step is explained neither by the
/// elapsed time nor by the number of packets (`step`, from sequence numbers). RFC 3550 A.8 assumes a continuous clock.
/// A sender that changes its timestamps without changing the source (a new talkspurt of a gateway, a re-INVITE, a
/// transfer) would otherwise show as seconds of jitter, which decay over hundreds of packets. A network delay is no
/// break: then the arrival made the step.
pub(super) fn is_break(arrival: f64, media: f64, step: i16) -> bool {
    let difference = arrival - media;
    if difference.abs() > PAUSE {
        return true;
    }
    let forward = media > f64::from(step) * LONGEST_PACKET;
    difference.abs() > CLOCK_STEP && step > 0 && (media < 0.0 || (difference < 0.0 && forward))
}

/// The running jitter J += (|D| - J) / 16 of one payload type, real-valued, starting at zero.
#[derive(Clone, Debug, Default)]
pub struct Jitter {
    previous: Option<(Time, u32)>,
    /// Nanoseconds.
    current: f64,
    samples: u64,
    sum: f64,
    max: f64,
    histogram: LogHistogram,
}

/// Figures over the running jitter at each packet but the first, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JitterSummary {
    /// Number of packets but the first of each timeline.
    pub samples: u64,
    /// At the last packet.
    pub last: f64,
    /// Mean.
    pub mean: f64,
    /// 99th percentile, within a bucket of [`LogHistogram`], never above `max`.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Jitter {
    /// No packet yet.
    pub fn new() -> Jitter {
        Jitter::default()
    }

    /// Reads the data that the next packet will change. Its jitter is close to that of the last one, so it is in the
    /// same bucket.
    pub(super) fn prefetch(&self) -> u64 {
        self.samples ^ self.histogram.total() ^ self.histogram.prefetch(self.current as u64)
    }

    /// Takes a packet in arrival order.
    pub fn receive(&mut self, time: Time, timestamp: u32, clock_rate: u32) {
        let Some(last) = self.previous.replace((time, timestamp)) else {
            return;
        };
        let (arrival, media) = elapsed(last, (time, timestamp), clock_rate);
        self.current += ((arrival - media).abs() - self.current) / 16.0;
        self.samples += 1;
        self.sum += self.current;
        self.max = self.max.max(self.current);
        self.histogram.add(self.current as u64);
    }

    /// Detects a break of the media clock before a packet that is `step` sequence numbers after the last one, and
    /// starts a new timeline then.
    pub(super) fn detect_break(
        &mut self,
        time: Time,
        timestamp: u32,
        clock_rate: u32,
        step: i16,
    ) -> bool {
        let broke = self.previous.is_some_and(|previous| {
            let (arrival, media) = elapsed(previous, (time, timestamp), clock_rate);
            is_break(arrival, media, step)
        });
        if broke {
            self.interrupt();
        }
        broke
    }

    /// Starts a new timeline: the next packet is compared with none.
    pub(super) fn interrupt(&mut self) {
        self.previous = None;
    }

    /// Adds packets whose jitter the kernel relay computed, starting from [`Jitter::current`]. The distribution gets
    /// their mean.
    pub fn add_offloaded(&mut self, offloaded: &OffloadStatistics) {
        let nanos = |span: Duration| span.as_nanos() as f64;
        self.previous = Some((offloaded.arrived, offloaded.timestamp));
        self.current = nanos(offloaded.jitter);
        self.samples += u64::from(offloaded.packets);
        self.sum += nanos(offloaded.jitter_sum);
        self.max = self.max.max(nanos(offloaded.jitter_max));
        let mean = offloaded.jitter_sum.as_nanos() as u64 / u64::from(offloaded.packets.max(1));
        self.histogram.add_many(mean, u64::from(offloaded.packets));
    }

    /// The present jitter in nanoseconds.
    pub fn current(&self) -> f64 {
        self.current
    }

    /// The figures; `None` with fewer than two packets.
    pub fn summary(&self) -> Option<JitterSummary> {
        let p99 = self.histogram.quantile(0.99)?;
        Some(JitterSummary {
            samples: self.samples,
            last: self.current / 1e6,
            mean: self.sum / self.samples as f64 / 1e6,
            p99: p99.min(self.max) / 1e6,
            max: self.max / 1e6,
        })
    }
}

/// Nanoseconds between two packets by arrival and by timestamp.
fn elapsed(last: (Time, u32), next: (Time, u32), clock_rate: u32) -> (f64, f64) {
    let arrival = super::signed_nanos(last.0, next.0) as f64;
    let media = f64::from(next.1.wrapping_sub(last.1) as i32) * 1e9 / f64::from(clock_rate);
    (arrival, media)
}

/// The integer form of A.8: stores sixteen times the jitter; arrival times are whole timestamp units.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntegerJitter {
    transit: Option<u32>,
    scaled: u32,
}

impl IntegerJitter {
    /// Takes a packet that arrived at `time`.
    pub fn receive(&mut self, time: Time, timestamp: u32, clock_rate: u32) {
        let units = u128::from(time.as_nanos()) * u128::from(clock_rate) / 1_000_000_000;
        self.receive_units(units as u32, timestamp);
    }

    /// Takes a packet that arrived at `arrival`, in timestamp units.
    pub fn receive_units(&mut self, arrival: u32, timestamp: u32) {
        let transit = arrival.wrapping_sub(timestamp);
        if let Some(last) = self.transit.replace(transit) {
            let difference = (transit.wrapping_sub(last) as i32).unsigned_abs();
            let decay = (self.scaled.saturating_add(8)) >> 4;
            self.scaled = self.scaled.saturating_add(difference).saturating_sub(decay);
        }
    }

    /// Starts a new timeline: the next packet is compared with none.
    pub(super) fn interrupt(&mut self) {
        self.transit = None;
    }

    /// As [`Jitter::add_offloaded`].
    pub fn add_offloaded(&mut self, offloaded: &OffloadStatistics, clock_rate: u32) {
        let units = |nanos: u128| nanos * u128::from(clock_rate) / 1_000_000_000;
        let arrival = units(u128::from(offloaded.arrived.as_nanos())) as u32;
        self.transit = Some(arrival.wrapping_sub(offloaded.timestamp));
        let scaled = units(offloaded.jitter.as_nanos() * 16);
        self.scaled = u32::try_from(scaled).unwrap_or(u32::MAX);
    }

    /// The jitter in timestamp units, as stated in reports.
    pub fn value(&self) -> u32 {
        self.scaled >> 4
    }
}
