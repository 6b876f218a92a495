//! Parameters of Via by which neighbours tell each other how much they can take: overload control (RFC 7339), by loss or by rate
//! (RFC 7415).

use super::params::unquote;
use super::typed::Via;

/// Behind a Via of ours: we obey what the other side tells, by either algorithm.
pub const ASKED: &[u8] = b";oc;oc-algo=\"loss,rate\"";
/// How long feedback counts that does not say it, milliseconds (RFC 7339 section 4.3).
const USUAL: u32 = 500;

/// How much less is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// Percent of the requests are not to be sent (RFC 7339 section 7).
    Loss(u8),
    /// Requests a second may be sent at most (RFC 7415).
    Rate(u32),
}

/// What a neighbour tells in the Via of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// How much less.
    pub throttle: Throttle,
    /// For how long, milliseconds; 0: no more at all.
    pub validity: u32,
    /// Later feedback has a larger one (RFC 7339 section 4.4); `None`: not said.
    pub sequence: Option<(u64, u64)>,
}

/// Whether a parameter of Via is one of these.
pub fn is_feedback(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'o' | b'O'))
        && [&b"oc"[..], b"oc-algo", b"oc-validity", b"oc-seq"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
}

impl Via<'_> {
    /// Whether its writer obeys feedback, and wants to have it in the response.
    pub fn takes_feedback(&self) -> bool {
        self.params.has(b"oc")
    }

    /// What its reader told; `None` where it tells nothing, or by an algorithm that we do not have.
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
            Some((whole.parse().ok()?, part.parse().ok()?))
        });
        Some(Feedback {
            throttle,
            validity: match self.params.get(b"oc-validity") {
                Some(text) => number(text)?,
                None => USUAL,
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
    fn feedback_is_read_as_the_examples_write_it() {
        // RFC 7339 section 6.
        let told = of(
            ";received=192.0.2.111;oc=20;oc-algo=\"loss\";oc-validity=500;oc-seq=1282321615.782",
        );
        let expected = Feedback {
            throttle: Throttle::Loss(20),
            validity: 500,
            sequence: Some((1_282_321_615, 782)),
        };
        assert_eq!(told, Some(expected));
        // RFC 7415 section 4.
        let told = of(";oc=150;oc-algo=\"rate\";oc-validity=1000;oc-seq=1282321615.782").unwrap();
        assert_eq!((told.throttle, told.validity), (Throttle::Rate(150), 1_000));
        let told = of(";oc=0").unwrap();
        assert_eq!(
            (told.throttle, told.validity, told.sequence),
            (Throttle::Loss(0), USUAL, None)
        );
    }

    #[test]
    fn what_is_no_feedback_is_none() {
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
            ASKED.escape_ascii().to_string().replace("\\\"", "\"")
        );
        assert!(Via::parse(asks.as_bytes()).unwrap().takes_feedback());
    }
}
