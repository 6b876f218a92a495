//! Scheduling noise of the host: the delay with which it runs a thread. Every timing result is stored with it.

use crate::clock::Clock;
use crate::process::{pin, realtime, tight_timers};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Gaps shorter than this, nanoseconds, are the sampler's own cost and do not count as lost time.
const GAP: u64 = 20_000;
const SUB: usize = 32;

/// Result of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoiseReport {
    /// Number of samples.
    pub samples: u64,
    /// Duration of the measurement, seconds.
    pub seconds: f64,
    /// Mean lateness, microseconds.
    pub mean_us: f64,
    /// 99th percentile of the lateness, microseconds (upper edge of its class, within 4 %).
    pub p99_us: f64,
    /// Largest lateness, microseconds.
    pub max_us: f64,
    /// Share of the time in which the thread was runnable and did not run, in gaps of more than 20 us each; 0 to 1.
    pub lost_share: f64,
}

/// Histogram of lateness with classes that grow by a thirty-second.
struct Histogram {
    counts: Vec<u64>,
    samples: u64,
    sum: u64,
    max: u64,
    lost: u64,
}

fn class(value: u64) -> usize {
    let value = value.max(1);
    let exponent = value.ilog2() as usize;
    let fine = if exponent >= 5 {
        (value >> (exponent - 5)) as usize - SUB
    } else {
        ((value << (5 - exponent)) as usize) - SUB
    };
    exponent * SUB + fine
}

fn upper_edge(class: usize) -> u64 {
    let (exponent, fine) = (class / SUB, (class % SUB + 1 + SUB) as u128);
    u64::try_from((fine << exponent) >> 5).unwrap_or(u64::MAX)
}

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            counts: vec![0; 64 * SUB],
            samples: 0,
            sum: 0,
            max: 0,
            lost: 0,
        }
    }

    fn add(&mut self, late: u64) {
        self.samples += 1;
        self.sum += late;
        self.max = self.max.max(late);
        if late > GAP {
            self.lost += late;
        }
        self.counts[class(late)] += 1;
    }

    fn report(&self, span: Duration) -> NoiseReport {
        if self.samples == 0 {
            return NoiseReport::default();
        }
        let rank = (self.samples * 99).div_ceil(100);
        let mut seen = 0;
        let p99 = self
            .counts
            .iter()
            .position(|&count| {
                seen += count;
                seen >= rank
            })
            .map_or(self.max, |class| upper_edge(class).min(self.max));
        NoiseReport {
            samples: self.samples,
            seconds: span.as_secs_f64(),
            mean_us: self.sum as f64 / self.samples as f64 / 1e3,
            p99_us: p99 as f64 / 1e3,
            max_us: self.max as f64 / 1e3,
            lost_share: self.lost as f64 / (span.as_nanos() as f64).max(1.0),
        }
    }
}

/// Spins on the calling thread for `window` and measures the gaps in which it did not run. It occupies a whole core:
/// for use before and after a measurement.
pub fn host_noise(window: Duration) -> NoiseReport {
    let clock = Clock::new();
    let mut histogram = Histogram::new();
    let end = clock.now() + window;
    let mut last = clock.now();
    while last < end {
        let now = clock.now();
        histogram.add((now - last).as_nanos() as u64);
        last = now;
    }
    histogram.report(last - engine::Time::ZERO)
}

/// Samples timer lateness during a measurement: a thread sleeps until points on an absolute timeline and records its
/// lateness. At 1 ms it costs less than 1 % of a core.
#[derive(Debug)]
pub struct NoiseSampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<NoiseReport>>>,
}

impl NoiseSampler {
    /// Starts sampling every `period`, on CPU `cpu` if given.
    ///
    /// # Errors
    /// No thread can be started. An invalid CPU is reported by [`NoiseSampler::stop`].
    pub fn start(period: Duration, cpu: Option<usize>) -> io::Result<NoiseSampler> {
        NoiseSampler::spawn(period, cpu, None)
    }

    /// The same with SCHED_FIFO and this priority (1 to 99): the delay of a thread that no other program delays.
    ///
    /// # Errors
    /// No thread can be started. A priority that is not permitted is reported by [`NoiseSampler::stop`].
    pub fn start_realtime(
        period: Duration,
        cpu: Option<usize>,
        priority: u32,
    ) -> io::Result<NoiseSampler> {
        NoiseSampler::spawn(period, cpu, Some(priority))
    }

    fn spawn(
        period: Duration,
        cpu: Option<usize>,
        priority: Option<u32>,
    ) -> io::Result<NoiseSampler> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("noise".into())
            .spawn(move || sample(period, (cpu, priority), &flag))?;
        Ok(NoiseSampler {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the sampling and returns its result.
    ///
    /// # Errors
    /// The thread could not be pinned, or not have its priority.
    pub fn stop(mut self) -> io::Result<NoiseReport> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(report)) => report,
            _ => Err(io::Error::other("the noise sampler panicked")),
        }
    }
}

impl Drop for NoiseSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn sample(
    period: Duration,
    (cpu, priority): (Option<usize>, Option<u32>),
    stop: &AtomicBool,
) -> io::Result<NoiseReport> {
    crate::signals::block_all()?;
    tight_timers()?;
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    if let Some(priority) = priority {
        realtime(priority)?;
    }
    let clock = Clock::new();
    let mut histogram = Histogram::new();
    let mut due = clock.now() + period;
    while !stop.load(Ordering::Acquire) {
        clock.sleep_until(due, Duration::ZERO);
        let now = clock.now();
        histogram.add((now - due).as_nanos() as u64);
        // Points that passed during the sleep are no samples: their lateness is part of this one.
        while due <= now {
            due += period.max(Duration::from_micros(1));
        }
    }
    Ok(histogram.report(clock.now() - engine::Time::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_edges_contain_their_values() {
        let mut values: Vec<u64> = (0..200).collect();
        values.extend((0..60).map(|bit| (1u64 << bit) + (1 << bit) / 3));
        for value in values {
            let edge = upper_edge(class(value));
            assert!(edge >= value, "{value} above its class's edge {edge}");
            assert!(edge as f64 <= value.max(1) as f64 * 1.04 + 1.0);
        }
    }

    #[test]
    fn report_has_percentile_and_lost_share() {
        let mut histogram = Histogram::new();
        for _ in 0..990 {
            histogram.add(1_000);
        }
        for _ in 0..10 {
            histogram.add(1_000_000);
        }
        let report = histogram.report(Duration::from_secs(1));
        assert!((report.p99_us - 1.0).abs() < 0.05, "{report:?}");
        assert_eq!(report.max_us, 1_000.0);
        assert!((report.lost_share - 0.01).abs() < 1e-9);
    }

    #[test]
    fn sampler_takes_samples() {
        let sampler = NoiseSampler::start(Duration::from_millis(1), None).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let report = sampler.stop().unwrap();
        assert!(report.samples >= 5, "{report:?}");
        if crate::may_be_realtime(1).is_ok() {
            let sampler = NoiseSampler::start_realtime(Duration::from_millis(1), None, 1).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert!(sampler.stop().unwrap().samples >= 2);
        }
        let refused = NoiseSampler::start_realtime(Duration::from_millis(1), None, 100).unwrap();
        assert!(refused.stop().is_err(), "there is no priority 100");
        let spin = host_noise(Duration::from_millis(5));
        assert!(spin.samples > 100 && spin.seconds >= 0.005);
    }
}
