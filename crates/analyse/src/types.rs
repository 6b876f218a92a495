//! The meaning of a payload type: from SDP, RFC 3551, convention or measurement.

/// Source of the meaning of a payload type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeSource {
    /// SDP for this stream's address.
    Sdp,
    /// Assigned by RFC 3551.
    Static,
    /// Other SDP in the capture, if all of it agrees on this number.
    OtherSdp,
    /// The usual meaning in common software; the stream was too short to measure.
    Custom,
    /// The rate of the timestamps against the arrival times.
    Measured,
}

/// A payload type's meaning.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PayloadKind {
    pub payload_type: u8,
    /// Encoding name, where known.
    pub encoding: Option<String>,
    pub clock_rate: Option<u32>,
    pub source: TypeSource,
}

impl PayloadKind {
    pub(super) fn is_event(&self) -> bool {
        self.named("telephone-event")
    }

    pub(super) fn named(&self, name: &str) -> bool {
        self.encoding
            .as_deref()
            .is_some_and(|encoding| encoding.eq_ignore_ascii_case(name))
    }
}

/// Clock rates that dynamic payload types use in practice.
const USUAL_RATES: [u32; 4] = [8_000, 16_000, 48_000, 90_000];
/// Further registered clock rates (RFC 3551 section 4.5, RFC 5391, RFC 5577, RFC 4867 and others). They are close to
/// the usual ones: only a long and steady stream is assigned one.
const FURTHER_RATES: [u32; 7] = [11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 96_000];
/// The duration of a long stream, and the tolerance of the measured rate.
const LONG_SECONDS: f64 = 1.9;
const NEAR: f64 = 1.02;
/// A shorter stream gives too little evidence about its clock: convention has priority.
const SHORT_SECONDS: f64 = 1.0;

/// The clock rate that browsers and PBXs use with a dynamic number: 107 and 111 Opus, 120 VP8.
fn custom_rate(payload_type: u8) -> Option<u32> {
    match payload_type {
        107 | 111 => Some(48_000),
        120 => Some(90_000),
        _ => None,
    }
}

/// Clock rate of an unknown payload type from its packets: (arrival in nanoseconds, timestamp) in arrival order.
pub(super) fn guess_rate(payload_type: u8, packets: &[(u64, u32)]) -> Option<(u32, TypeSource)> {
    let (mut media, mut arrival) = (0i64, 0i64);
    for pair in packets.windows(2) {
        let [(t0, m0), (t1, m1)] = pair else { continue };
        let step = i64::from(m1.wrapping_sub(*m0) as i32);
        // A jump starts a new timeline and does not count.
        if step.abs() < 90_000 * 30 {
            media += step;
            arrival += t1.wrapping_sub(*t0) as i64;
        }
    }
    let seconds = arrival as f64 / 1e9;
    if seconds < SHORT_SECONDS
        && let Some(rate) = custom_rate(payload_type)
    {
        return Some((rate, TypeSource::Custom));
    }
    if media <= 0 || arrival <= 0 || packets.len() < 5 {
        return None;
    }
    let measured = media as f64 / seconds;
    let distance = |rate: &u32| (measured / f64::from(*rate)).ln().abs();
    if seconds >= LONG_SECONDS
        && let Some(rate) = FURTHER_RATES
            .into_iter()
            .chain(USUAL_RATES)
            .find(|rate| distance(rate) < NEAR.ln())
    {
        return Some((rate, TypeSource::Measured));
    }
    let nearest = USUAL_RATES
        .into_iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    let tolerance = if seconds < SHORT_SECONDS {
        1.5f64
    } else {
        1.25
    };
    (distance(&nearest) < tolerance.ln()).then_some((nearest, TypeSource::Measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(count: u64, rate: u64, step_ms: u64) -> Vec<(u64, u32)> {
        (0..count)
            .map(|at| {
                (
                    at * step_ms * 1_000_000 + at % 3 * 500_000,
                    (at * step_ms * rate / 1000) as u32,
                )
            })
            .collect()
    }

    #[test]
    fn rates_are_measured() {
        for rate in USUAL_RATES {
            let guess = guess_rate(97, &packets(100, u64::from(rate), 20));
            assert_eq!(guess, Some((rate, TypeSource::Measured)));
        }
        for rate in FURTHER_RATES {
            let guess = guess_rate(97, &packets(200, u64::from(rate), 20));
            assert_eq!(guess, Some((rate, TypeSource::Measured)));
        }
        // Within a second, clocks of 44,100 and 48,000 are indistinguishable.
        assert_eq!(
            guess_rate(97, &packets(60, 44_100, 20)),
            Some((48_000, TypeSource::Measured))
        );
        assert_eq!(guess_rate(97, &packets(100, 27_000, 20)), None);
        assert_eq!(guess_rate(97, &packets(400, 27_000, 20)), None);
        assert_eq!(guess_rate(97, &packets(3, 8_000, 20)), None);
    }

    #[test]
    fn custom_has_priority_for_short_streams_only() {
        assert_eq!(
            guess_rate(120, &packets(7, 48_000, 20)),
            Some((90_000, TypeSource::Custom))
        );
        assert_eq!(
            guess_rate(120, &packets(100, 48_000, 20)),
            Some((48_000, TypeSource::Measured))
        );
    }
}
