//! Figures for the live display of a run: small enough for ten copies per second, and additive over threads.

use crate::record::{Attempt, StreamRecord};

/// Classes of response times; each edge is 25 % above the previous one.
const CLASSES: usize = 64;
/// The first edge, milliseconds.
const FIRST_MS: f64 = 0.1;
const RATIO: f64 = 1.25;

/// Response times in classes, and sums over the ended streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveFigures {
    classes: [u32; CLASSES],
    streams: u32,
    jitter_sum_ms: f64,
    mos_sum: f64,
}

impl Default for LiveFigures {
    fn default() -> Self {
        LiveFigures {
            classes: [0; CLASSES],
            streams: 0,
            jitter_sum_ms: 0.0,
            mos_sum: 0.0,
        }
    }
}

impl LiveFigures {
    /// Counts an ended attempt.
    pub(crate) fn attempt(&mut self, attempt: &Attempt) {
        let Some(ms) = attempt.response_ms() else {
            return;
        };
        let class = ((ms / FIRST_MS).max(1.0).ln() / RATIO.ln()) as usize;
        if let Some(count) = self.classes.get_mut(class.min(CLASSES - 1)) {
            *count += 1;
        }
    }

    /// Counts an ended stream.
    pub(crate) fn stream(&mut self, stream: &StreamRecord) {
        if !stream.is_incoming() {
            return;
        }
        let jitter_ms = stream.jitter_mean_ms.unwrap_or(0.0);
        let lost = stream.lost as f64 / stream.expected.max(1) as f64;
        self.streams += 1;
        self.jitter_sum_ms += jitter_ms;
        self.mos_sum += rough_mos(lost, jitter_ms);
    }

    /// The sum of the figures of two hosts.
    #[must_use]
    pub fn and(&self, other: &LiveFigures) -> LiveFigures {
        let mut sum = *self;
        for (count, more) in sum.classes.iter_mut().zip(&other.classes) {
            *count += more;
        }
        sum.streams += other.streams;
        sum.jitter_sum_ms += other.jitter_sum_ms;
        sum.mos_sum += other.mos_sum;
        sum
    }

    /// A quantile of the response times, milliseconds, with the resolution of the classes (25 %).
    pub fn response_ms(&self, q: f64) -> Option<f64> {
        let all: u64 = self.classes.iter().map(|count| u64::from(*count)).sum();
        let wanted = (q * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let class = self.classes.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        })?;
        Some(FIRST_MS * RATIO.powf(class as f64 + 0.5))
    }

    /// Mean jitter of the ended streams, milliseconds.
    pub fn jitter_ms(&self) -> Option<f64> {
        (self.streams > 0).then(|| self.jitter_sum_ms / f64::from(self.streams))
    }

    /// Approximate mean opinion score of these streams.
    pub fn mos(&self) -> Option<f64> {
        (self.streams > 0).then(|| self.mos_sum / f64::from(self.streams))
    }
}

/// G.107 with the parameters of G.711 and concealment, from random loss and a jitter buffer of twice the jitter: enough
/// for the range of a run. The report computes each stream's with its codec, its bursts and its delay.
fn rough_mos(lost: f64, jitter_ms: f64) -> f64 {
    let percent = lost * 100.0;
    let delay_ms = 20.0 + 2.0 * jitter_ms;
    let delay = 0.024 * delay_ms + 0.11 * (delay_ms - 177.3).max(0.0);
    let r = (93.2 - delay - 95.0 * percent / (percent + 25.1)).clamp(0.0, 100.0);
    1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AttemptKind;
    use engine::Time;

    #[test]
    fn quantiles_follow_the_classes() {
        let mut live = LiveFigures::default();
        assert_eq!((live.response_ms(0.5), live.mos()), (None, None));
        for number in 0..100u64 {
            let mut attempt = Attempt::new("a", AttemptKind::Call, number, Time::ZERO);
            attempt.sent = Some(0);
            attempt.established = Some(if number < 90 { 4_000_000 } else { 300_000_000 });
            live.attempt(&attempt);
        }
        let near = |found: Option<f64>, wanted: f64| {
            let found = found.unwrap();
            assert!((wanted / 1.25..wanted * 1.25).contains(&found), "{found}");
        };
        near(live.response_ms(0.5), 4.0);
        near(live.response_ms(0.99), 300.0);
        near(live.and(&live).response_ms(0.5), 4.0);
        let stream = |lost| StreamRecord {
            received: 100 - lost,
            expected: 100,
            lost,
            jitter_mean_ms: Some(1.0),
            ..StreamRecord::default()
        };
        live.stream(&stream(0));
        let good = live.mos().unwrap();
        live.stream(&stream(10));
        assert!(good > 4.3 && live.mos().unwrap() < good);
        assert_eq!(live.jitter_ms(), Some(1.0));
    }
}
