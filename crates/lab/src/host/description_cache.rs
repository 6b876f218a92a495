//! Cache of session descriptions: one that differs from the last only in the numbers of its `o=` line is neither
//! generated nor parsed again.
//!
//! Calls without media have equal descriptions, thousands per second. An entry holds the result of the general code for
//! input that is equal in everything the result depends on; other input takes the general path.

use super::sdp::{NegotiatedMedia, OfferParameters};

/// Digits of a number that every reader accepts: 18 always fit.
const DIGITS: usize = 18;

/// A description without its session identifier and version.
#[derive(Debug)]
struct DescriptionForm {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl DescriptionForm {
    fn of(text: &[u8]) -> Option<DescriptionForm> {
        let (head, tail) = around(text)?;
        Some(DescriptionForm {
            head: head.to_vec(),
            tail: tail.to_vec(),
        })
    }

    fn fits(&self, text: &[u8]) -> bool {
        around(text).is_some_and(|(head, tail)| head == self.head && tail == self.tail)
    }

    fn write(&self, ours: &OfferParameters, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.head);
        decimal(ours.id, out);
        out.push(b' ');
        decimal(ours.version, out);
        out.extend_from_slice(&self.tail);
    }
}

/// The text before the session identifier and after the version; `None` if the text does not begin in the common form.
fn around(text: &[u8]) -> Option<(&[u8], &[u8])> {
    const START: &[u8] = b"v=0\r\no=";
    let user = text.strip_prefix(START)?;
    let head = START.len() + user.iter().position(|&byte| byte == b' ')? + 1;
    let first = head + number(text.get(head..)?)?;
    let second = first + 1 + number(text.get(first + 1..)?)?;
    (text.get(first) == Some(&b' ')).then_some(())?;
    Some((text.get(..head)?, text.get(second..)?))
}

/// Length of the number at the beginning, if a blank follows.
fn number(text: &[u8]) -> Option<usize> {
    let length = text.iter().position(|byte| !byte.is_ascii_digit())?;
    ((1..=DIGITS).contains(&length) && text.get(length) == Some(&b' ')).then_some(length)
}

fn decimal(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The inputs of an answer, and the answer.
#[derive(Debug)]
struct AnswerEntry {
    ours: OfferParameters,
    offer: DescriptionForm,
    form: DescriptionForm,
    agreed: NegotiatedMedia,
}

/// The last descriptions.
#[derive(Debug, Default)]
pub(crate) struct DescriptionCache {
    offer: Option<(OfferParameters, DescriptionForm)>,
    answer: Option<AnswerEntry>,
    text: Vec<u8>,
}

impl DescriptionCache {
    /// As [`OfferParameters::offer`].
    pub(crate) fn offer(&mut self, ours: &OfferParameters) -> &[u8] {
        match &self.offer {
            Some((known, form)) if known.equals_except_version(ours) => {
                form.write(ours, &mut self.text)
            }
            _ => {
                self.text = ours.offer();
                self.offer = DescriptionForm::of(&self.text).map(|form| (*ours, form));
            }
        }
        &self.text
    }

    /// As [`OfferParameters::answer`].
    pub(crate) fn answer(
        &mut self,
        ours: &OfferParameters,
        offer: &[u8],
    ) -> Option<(&[u8], NegotiatedMedia)> {
        let known = self.answer.as_ref();
        if let Some(known) =
            known.filter(|k| k.ours.equals_except_version(ours) && k.offer.fits(offer))
        {
            known.form.write(ours, &mut self.text);
            return Some((&self.text, known.agreed));
        }
        let (text, agreed) = ours.answer(offer)?;
        let forms = DescriptionForm::of(offer).zip(DescriptionForm::of(&text));
        self.answer = forms.map(|(offer, form)| AnswerEntry {
            ours: *ours,
            offer,
            form,
            agreed,
        });
        self.text = text;
        Some((&self.text, agreed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sdp::OwnRtcp;
    use super::*;
    use codec::Format;
    use std::net::SocketAddr;
    use wire::sdp::Direction;

    fn ours(port: u16, id: u64, version: u64) -> OfferParameters {
        OfferParameters {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            id,
            version,
            direction: Direction::SendRecv,
            codecs: Format::Pcma.into(),
            secure: false,
            rtcp: OwnRtcp::Absent,
        }
    }

    #[test]
    fn cached_descriptions_equal_generated_ones() {
        let mut kept = DescriptionCache::default();
        let held = OfferParameters {
            direction: Direction::SendOnly,
            ..ours(4000, 3, 2)
        };
        let mu = OfferParameters {
            codecs: Format::Pcmu.into(),
            ..ours(4000, 3, 2)
        };
        let all = [
            ours(4000, 0, 1),
            ours(4000, 7, 1),
            ours(4000, u64::MAX, 10),
            ours(5000, 8, 1),
            ours(5000, 9, 1),
            held,
            mu,
        ];
        for offered in all {
            assert_eq!(kept.offer(&offered), offered.offer(), "{offered:?}");
        }
        for offered in all {
            for answering in all {
                let offer = offered.offer();
                let (text, agreed) = answering.answer(&offer).unwrap();
                for _ in 0..2 {
                    let (ours, known) = kept.answer(&answering, &offer).unwrap();
                    assert_eq!((ours, known), (&text[..], agreed), "{offered:?}");
                }
            }
        }
    }

    #[test]
    fn unreadable_offer_misses_the_cache() {
        let mut kept = DescriptionCache::default();
        let offer = String::from_utf8(ours(4000, 5, 1).offer()).unwrap();
        let answering = ours(6000, 1, 1);
        for other in [
            "o=- x 1 ",
            "o=- 5 ",
            "o=-  5 1 ",
            "o=- 5 1\t",
            "o=- -5 1 ",
            "o=- 99999999999999999999999 1 ",
        ] {
            assert!(kept.answer(&answering, offer.as_bytes()).is_some());
            let other = offer.replace("o=- 5 1 ", other);
            let general = answering.answer(other.as_bytes());
            let ours = kept.answer(&answering, other.as_bytes());
            assert_eq!(
                ours.map(|(text, agreed)| (text.to_vec(), agreed)),
                general,
                "{other}"
            );
        }
        assert!(kept.answer(&answering, b"nonsense").is_none());
    }
}
