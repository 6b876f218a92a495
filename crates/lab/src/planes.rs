//! Divides the CPU time of a SUT by plane: signalling per call, media per relayed packet.
//!
//! Control plane and forwarder of a border share one thread, and a foreign SUT is one process, so their CPU times are
//! not counted separately. But calls begin and end at other times than packets flow: during the ramp there are more
//! call set-ups per packet, and while calls are held there are packets alone. A linear model
//! `CPU = a * calls + b * packets` is fitted to samples over the trial by least squares; a set-up and a tear-down count
//! half a call each. If the two are correlated, or if the fit is uncertain, the time is not divided, and the reason is
//! recorded.

use serde::{Deserialize, Serialize};

/// Most samples of a trial; beyond that every second one is discarded.
const MAX_SAMPLES: usize = 4_096;
/// Least number of intervals between samples for a fit.
const MIN_STEPS: usize = 8;
/// Squared correlation of calls and packets above which they cannot be separated.
const MAX_SQUARED_CORRELATION: f64 = 0.9;
/// Largest relative standard error of a reported figure.
const MAX_RELATIVE_ERROR: f64 = 0.3;

/// State of SUT and load at one moment, counted from the start of the trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// CPU time, seconds.
    pub cpu_seconds: f64,
    /// Calls begun plus calls ended.
    pub half_calls: u64,
    /// Media packets received at all hosts.
    pub packets: u64,
}

/// Samples over a trial.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    samples: Vec<Sample>,
    /// One of `stride` samples is kept.
    stride: u64,
    count: u64,
}

/// CPU time by plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Planes {
    /// Signalling of one call from its INVITE to the response to its BYE, microseconds; `null` if unknown.
    pub signalling_us_per_call: Option<f64>,
    /// Media path of one relayed packet, microseconds; `null` if unknown.
    pub media_us_per_packet: Option<f64>,
    /// Reason why the CPU time was not divided; empty if it was, or if there is only one plane.
    pub undivided: String,
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, sample: Sample) {
        let stride = self.stride.max(1);
        if self.count.is_multiple_of(stride) {
            self.samples.push(sample);
        }
        self.count += 1;
        if self.samples.len() > MAX_SAMPLES {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride = stride * 2;
        }
    }

    /// Divides the CPU time of a trial with these numbers of calls and packets.
    pub fn divide(&self, cpu_seconds: Option<f64>, calls: u64, packets: u64) -> Planes {
        let Some(cpu_seconds) = cpu_seconds else {
            return Planes::default();
        };
        let each = |count: u64| Some(cpu_seconds * 1e6 / count as f64);
        match (calls, packets) {
            (0, 0) => Planes::default(),
            (calls, 0) => Planes {
                signalling_us_per_call: each(calls),
                ..Planes::default()
            },
            (0, packets) => Planes {
                media_us_per_packet: each(packets),
                ..Planes::default()
            },
            _ => match self.fit() {
                Ok([half_call, packet]) => Planes {
                    signalling_us_per_call: Some(half_call * 2e6),
                    media_us_per_packet: Some(packet * 1e6),
                    undivided: String::new(),
                },
                Err(why) => Planes {
                    undivided: why.to_owned(),
                    ..Planes::default()
                },
            },
        }
    }

    /// Fits seconds per half call and per packet.
    fn fit(&self) -> Result<[f64; 2], &'static str> {
        let steps: Vec<[f64; 3]> = self
            .samples
            .windows(2)
            .filter_map(|pair| {
                let [from, to] = pair else { return None };
                let halves = to.half_calls.checked_sub(from.half_calls)? as f64;
                let packets = to.packets.checked_sub(from.packets)? as f64;
                let cpu = to.cpu_seconds - from.cpu_seconds;
                (halves > 0.0 || packets > 0.0).then_some([halves, packets, cpu])
            })
            .collect();
        if steps.len() < MIN_STEPS {
            return Err("the trial was too short for samples");
        }
        let sum = |of: fn(&[f64; 3]) -> f64| steps.iter().map(of).sum::<f64>();
        let (xx, yy, xy) = (
            sum(|step| step[0] * step[0]),
            sum(|step| step[1] * step[1]),
            sum(|step| step[0] * step[1]),
        );
        let (xc, yc) = (sum(|step| step[0] * step[2]), sum(|step| step[1] * step[2]));
        if xx == 0.0 || yy == 0.0 || xy * xy > MAX_SQUARED_CORRELATION * xx * yy {
            return Err("calls and packets are correlated");
        }
        let determinant = xx * yy - xy * xy;
        let a = (yy * xc - xy * yc) / determinant;
        let b = (xx * yc - xy * xc) / determinant;
        let rest: f64 = steps
            .iter()
            .map(|[x, y, cpu]| (cpu - a * x - b * y).powi(2))
            .sum();
        let spread = rest / (steps.len() - 2) as f64;
        let errors = [spread * yy / determinant, spread * xx / determinant].map(f64::sqrt);
        let certain = |value: f64, error: f64| value > 0.0 && error <= MAX_RELATIVE_ERROR * value;
        match certain(a, errors[0]) && certain(b, errors[1]) {
            true => Ok([a, b]),
            false => Err("the CPU time varied too much between samples"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial of `seconds`: calls rise for a third, are held for a third, and end.
    fn trial(half_call: f64, packet: f64, noise: f64) -> Samples {
        let mut samples = Samples::default();
        let (mut sample, mut up) = (Sample::default(), 0u64);
        for tick in 0..90u64 {
            let (begun, ended) = match tick {
                0..30 => (4, 0),
                60..90 => (0, 4),
                _ => (0, 0),
            };
            up = up + begun - ended;
            let packets = up * 50;
            sample.half_calls += begun + ended;
            sample.packets += packets;
            let disturbed = if tick % 2 == 0 { noise } else { -noise };
            sample.cpu_seconds +=
                (begun + ended) as f64 * half_call + packets as f64 * packet * (1.0 + disturbed);
            samples.add(sample);
        }
        samples
    }

    #[test]
    fn known_costs_are_recovered() {
        for noise in [0.0, 0.02] {
            let samples = trial(300e-6, 4e-6, noise);
            let last = samples.samples.last().unwrap();
            let planes = samples.divide(Some(last.cpu_seconds), 120, last.packets);
            let signalling = planes.signalling_us_per_call.unwrap();
            let media = planes.media_us_per_packet.unwrap();
            assert!((signalling - 600.0).abs() < 60.0, "{planes:?}");
            assert!((media - 4.0).abs() < 0.2, "{planes:?}");
            assert_eq!(planes.undivided, "");
            // The parts add up to the whole.
            let whole = 120.0 * signalling + last.packets as f64 * media;
            assert!(
                (whole / 1e6 / last.cpu_seconds - 1.0).abs() < 0.05,
                "{planes:?}"
            );
        }
    }

    #[test]
    fn reason_is_given_if_cpu_time_cannot_be_divided() {
        let mut together = Samples::default();
        for tick in 1..50u64 {
            together.add(Sample {
                cpu_seconds: tick as f64 * 1e-3,
                half_calls: tick * 2,
                packets: tick * 100,
            });
        }
        let planes = together.divide(Some(0.05), 49, 4_900);
        assert_eq!(planes.signalling_us_per_call, None);
        assert!(planes.undivided.contains("correlated"), "{planes:?}");
        let wild = trial(1e-6, 4e-6, 0.9);
        let planes = wild.divide(Some(1.0), 120, 1_000);
        assert!(planes.undivided.contains("varied"), "{planes:?}");
        let short = Samples::default().divide(Some(1.0), 10, 10);
        assert!(short.undivided.contains("short"), "{short:?}");
    }

    #[test]
    fn single_plane_gets_all_cpu_time() {
        let none = Samples::default();
        let calls = none.divide(Some(1.0), 1_000, 0);
        assert_eq!(calls.signalling_us_per_call, Some(1_000.0));
        assert_eq!(calls.media_us_per_packet, None);
        let media = none.divide(Some(1.0), 0, 100_000);
        assert_eq!(media.media_us_per_packet, Some(10.0));
        assert_eq!(none.divide(None, 10, 10), Planes::default());
    }

    #[test]
    fn long_trials_keep_fewer_samples() {
        let mut samples = Samples::default();
        for tick in 0..20_000 {
            samples.add(Sample {
                packets: tick,
                ..Sample::default()
            });
        }
        assert!(samples.samples.len() <= MAX_SAMPLES);
        assert!(
            samples
                .samples
                .windows(2)
                .all(|pair| pair[0].packets < pair[1].packets)
        );
    }
}
