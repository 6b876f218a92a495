//! Jitter in answers of the API, with the decimals of its source.

use console::SideQuality;
use engine::ReportedJitter;
use serde::Serialize;

/// Milliseconds of jitter, a number in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum JitterMs {
    /// In whole milliseconds, as rtpengine reports it.
    Whole(u64),
    /// With two decimals.
    Measured(f64),
}

impl From<ReportedJitter> for JitterMs {
    fn from(jitter: ReportedJitter) -> JitterMs {
        match jitter {
            ReportedJitter::Whole(ms) => JitterMs::Whole(ms),
            ReportedJitter::Measured(jitter) => JitterMs::Measured(jitter.0 as f64 / 100.0),
        }
    }
}

impl JitterMs {
    /// That of a side of an ended call.
    pub(super) fn of_side(quality: &SideQuality) -> Option<JitterMs> {
        let hundredths = quality.jitter?;
        Some(match quality.jitter_whole_ms {
            true => JitterMs::Whole(hundredths / 100),
            false => JitterMs::Measured(hundredths as f64 / 100.0),
        })
    }

    /// The field of an event: whole milliseconds are written without a point.
    pub(super) fn of_field(text: &str) -> Option<JitterMs> {
        match text.contains('.') {
            true => text.parse().ok().map(JitterMs::Measured),
            false => text.parse().ok().map(JitterMs::Whole),
        }
    }

    /// A mean of figures; `is_whole`: all of them were whole milliseconds.
    pub(super) fn of_mean(mean_ms: f64, is_whole: bool) -> JitterMs {
        match is_whole {
            // A cast from a float saturates.
            true => JitterMs::Whole(mean_ms.round() as u64),
            false => JitterMs::Measured(mean_ms),
        }
    }

    /// The value, without its precision.
    pub(super) fn value(self) -> f64 {
        match self {
            JitterMs::Whole(ms) => ms as f64,
            JitterMs::Measured(ms) => ms,
        }
    }

    /// Whether the source reports whole milliseconds.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, JitterMs::Whole(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_milliseconds_have_no_decimals_in_json() {
        let text = |jitter: JitterMs| serde_json::to_string(&jitter).unwrap();
        assert_eq!(text(ReportedJitter::Whole(2).into()), "2");
        assert_eq!(text(ReportedJitter::measured(2.0).into()), "2.0");
        let fields = ["2", "2.00", "0.34"].map(JitterMs::of_field);
        let wanted = [
            JitterMs::Whole(2),
            JitterMs::Measured(2.0),
            JitterMs::Measured(0.34),
        ];
        assert_eq!(fields, wanted.map(Some));
        assert_eq!(JitterMs::of_field("-1"), None);
        let side = |jitter_whole_ms| SideQuality {
            jitter: Some(200),
            jitter_whole_ms,
            ..SideQuality::default()
        };
        assert_eq!(JitterMs::of_side(&side(true)), Some(JitterMs::Whole(2)));
        assert_eq!(
            JitterMs::of_side(&side(false)),
            Some(JitterMs::Measured(2.0))
        );
        assert_eq!(JitterMs::of_mean(1.6, true), JitterMs::Whole(2));
        assert_eq!(JitterMs::of_mean(1.6, false), JitterMs::Measured(1.6));
    }
}
