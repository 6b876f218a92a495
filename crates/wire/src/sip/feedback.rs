//! Via parameters of overload control between neighbours (RFC 7339), loss-based or rate-based (RFC 7415).

use super::params::unquote;
use super::typed::Via;

/// Parameters for the Via of an outgoing request: the sender applies feedback, by either algorithm.
pub const OC_PARAMETERS: &[u8] = b";oc;oc-algo=\"loss,rate\"";
/// Default validity of feedback, milliseconds (RFC 7339 section 4.3).
const DEFAULT_VALIDITY_MS: u32 = 500;

/// The requested reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// Percent of the requests to hold back (RFC 7339 section 7).
    Loss(u8),
    /// Maximum number of requests a second (RFC 7415).
    Rate(u32),
}

/// Overload feedback in the Via of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The requested reduction.
    pub throttle: Throttle,
    /// Validity, milliseconds; 0 ends the reduction.
    pub validity: u32,
    /// Sequence number, larger in later feedback (RFC 7339 section 4.4): whole part and billionths; `None` if absent.
    pub sequence: Option<(u64, u64)>,
}

/// Whether a Via parameter belongs to overload control.
pub fn is_feedback(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'o' | b'O'))
        && [&b"oc"[..], b"oc-algo", b"oc-validity", b"oc-seq"]
            .iter()
            .any(|candidate| candidate.eq_ignore_ascii_case(name))
}

/// The digits after a decimal point: `.8` is more than `.782`.
fn billionths(digits: &str) -> Option<u64> {
    let missing = 9u32.checked_sub(u32::try_from(digits.len()).ok()?)?;
    digits.parse::<u64>().ok()?.checked_mul(10u64.pow(missing))
}

impl Via<'_> {
    /// Whether the sender of the request applies feedback and requests it in the response.
    pub fn requests_feedback(&self) -> bool {
        self.params.has(b"oc")
    }

    /// The feedback of the responding neighbour; `None` without feedback, or with an unknown algorithm.
    pub fn feedback(&self) -> Option<Feedback> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
        let value = number(self.params.get(b"oc").filter(|value| !value.is_empty())?)?;
        let algorithm = self.params.get(b"oc-algo").map(unquote);
        let throttle = match algorithm.as_deref() {
            None => Throttle::Loss(u8::try_from(value).ok().filter(|loss| *loss <= 100)?),
            Some(name) if name.eq_ignore_ascii_case(b"loss") => {
                Throttle::Loss(u8::try_from(value).ok().filter(|loss| *loss <= 100)?)
            }
            Some(name) if name.eq_ignore_ascii_case(b"rate") => Throttle::Rate(value),
            Some(_) => return None,
        };
        let sequence = self.params.get(b"oc-seq").and_then(|text| {
            let text = std::str::from_utf8(text).ok()?;
            let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
            Some((whole.parse().ok()?, billionths(part)?))
        });
        Some(Feedback {
            throttle,
            validity: match self.params.get(b"oc-validity") {
                Some(text) => number(text)?,
                None => DEFAULT_VALIDITY_MS,
            },
            sequence,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(params: &str) -> Option<Feedback> {
        let text = format!("SIP/2.0/UDP h;branch=z9hG4bKx{params}");
        Via::parse(text.as_bytes()).unwrap().feedback()
    }

    #[test]
    fn feedback_of_the_rfc_examples_is_parsed() {
        // RFC 7339 section 6.
        let feedback = of(
            ";received=192.0.2.111;oc=20;oc-algo=\"loss\";oc-validity=500;oc-seq=1282321615.782",
        );
        let expected = Feedback {
            throttle: Throttle::Loss(20),
            validity: 500,
            sequence: Some((1_282_321_615, 782_000_000)),
        };
        assert_eq!(feedback, Some(expected));
        // RFC 7415 section 4.
        let feedback =
            of(";oc=150;oc-algo=\"rate\";oc-validity=1000;oc-seq=1282321615.782").unwrap();
        assert_eq!(
            (feedback.throttle, feedback.validity),
            (Throttle::Rate(150), 1_000)
        );
        // The later of two is the larger number, not the longer text.
        let sequence = |text: &str| of(&format!(";oc=0;oc-seq={text}")).unwrap().sequence;
        assert!(sequence("1282321615.8") > sequence("1282321615.782"));
        assert!(sequence("1282321616") > sequence("1282321615.99999"));
        let feedback = of(";oc=0").unwrap();
        assert_eq!(
            (feedback.throttle, feedback.validity, feedback.sequence),
            (Throttle::Loss(0), DEFAULT_VALIDITY_MS, None)
        );
    }

    #[test]
    fn malformed_feedback_is_ignored() {
        for params in [
            "",
            ";oc",
            ";oc=",
            ";oc=x",
            ";oc=101",
            ";oc=1;oc-algo=\"other\"",
            ";oc=1;oc-validity=x",
        ] {
            assert_eq!(of(params), None, "{params}");
        }
        let asks = format!(
            "SIP/2.0/UDP h;branch=z9hG4bKx{}",
            OC_PARAMETERS
                .escape_ascii()
                .to_string()
                .replace("\\\"", "\"")
        );
        assert!(Via::parse(asks.as_bytes()).unwrap().requests_feedback());
    }
}
