//! Descriptions that differ from the last one by the numbers of their `o=` line alone: the rest is written, and read, once.
//!
//! Calls that send no media all say the same, thousands of times a second. What is kept is what the general way made of
//! something that was equal in everything the result depends on; what is not equal goes the general way.

use super::sdp::{Agreed, Ours};

/// Digits of a number that any reader of a description takes for one: 18 of them always fit.
const DIGITS: usize = 18;

/// A description without its session identifier and version.
#[derive(Debug)]
struct Form {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Form {
    fn of(text: &[u8]) -> Option<Form> {
        let (head, tail) = around(text)?;
        Some(Form {
            head: head.to_vec(),
            tail: tail.to_vec(),
        })
    }

    fn fits(&self, text: &[u8]) -> bool {
        around(text).is_some_and(|(head, tail)| head == self.head && tail == self.tail)
    }

    fn write(&self, ours: &Ours, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.head);
        decimal(ours.id, out);
        out.push(b' ');
        decimal(ours.version, out);
        out.extend_from_slice(&self.tail);
    }
}

/// What stands before the session identifier and behind the version; `None` where the text does not begin as nearly all do.
fn around(text: &[u8]) -> Option<(&[u8], &[u8])> {
    const START: &[u8] = b"v=0\r\no=";
    let user = text.strip_prefix(START)?;
    let head = START.len() + user.iter().position(|&byte| byte == b' ')? + 1;
    let first = head + number(text.get(head..)?)?;
    let second = first + 1 + number(text.get(first + 1..)?)?;
    (text.get(first) == Some(&b' ')).then_some(())?;
    Some((text.get(..head)?, text.get(second..)?))
}

/// Length of the number at the beginning, where a blank ends it.
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

/// What an answer was made of, and the answer.
#[derive(Debug)]
struct Answered {
    ours: Ours,
    offer: Form,
    form: Form,
    agreed: Agreed,
}

/// The last descriptions.
#[derive(Debug, Default)]
pub(crate) struct Descriptions {
    offer: Option<(Ours, Form)>,
    answer: Option<Answered>,
    text: Vec<u8>,
}

impl Descriptions {
    /// As [`Ours::offer`].
    pub(crate) fn offer(&mut self, ours: &Ours) -> &[u8] {
        match &self.offer {
            Some((known, form)) if known.says_as(ours) => form.write(ours, &mut self.text),
            _ => {
                self.text = ours.offer();
                self.offer = Form::of(&self.text).map(|form| (*ours, form));
            }
        }
        &self.text
    }

    /// As [`Ours::answer`].
    pub(crate) fn answer(&mut self, ours: &Ours, offer: &[u8]) -> Option<(&[u8], Agreed)> {
        let known = self.answer.as_ref();
        if let Some(known) = known.filter(|k| k.ours.says_as(ours) && k.offer.fits(offer)) {
            known.form.write(ours, &mut self.text);
            return Some((&self.text, known.agreed));
        }
        let (text, agreed) = ours.answer(offer)?;
        let forms = Form::of(offer).zip(Form::of(&text));
        self.answer = forms.map(|(offer, form)| Answered {
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
    use super::*;
    use codec::Format;
    use std::net::SocketAddr;
    use wire::sdp::Direction;

    fn ours(port: u16, id: u64, version: u64) -> Ours {
        Ours {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            id,
            version,
            direction: Direction::SendRecv,
            codec: Format::Pcma,
            secure: false,
        }
    }

    #[test]
    fn what_is_kept_says_what_the_general_way_says() {
        let mut kept = Descriptions::default();
        let held = Ours {
            direction: Direction::SendOnly,
            ..ours(4000, 3, 2)
        };
        let mu = Ours {
            codec: Format::Pcmu,
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
    fn an_offer_that_cannot_be_read_is_never_taken_for_one_that_could() {
        let mut kept = Descriptions::default();
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
