//! Shortcuts of voice between two ends of this program: voice without UDP, and voice that ESP hands to the media
//! handler without the layers between. They are negotiated inside of the association, so that only the peer with its
//! keys can agree.
//!
//! Both use the next header values for experiments (RFC 3692, RFC 4303 section 2.6): 253 for RTP in the place of UDP,
//! 254 for the messages of the negotiation and for voice of the second kind.

use super::EspFailure;
use core::time::Duration;
use engine::{Datagram, Engine, Time};

/// Next header of RTP in the place of UDP: in transport mode of the ESP packet, in tunnel mode of the inner IP packet.
pub const RTP_WITHOUT_UDP: u8 = 253;
/// Next header, in both modes, of messages of the negotiation and of RTP without IP and UDP.
pub const DIRECT: u8 = 254;

/// Beginning of a message; RTP begins with the bits 10.
const MAGIC: [u8; 4] = *b"HWvs";
/// Length of a message: magic, kind, shortcut, two bytes of zero.
const LENGTH: usize = 8;
const OFFER_INTERVAL: Duration = Duration::from_millis(250);
/// Offers until the peer counts as one that does not know them.
const OFFERS: u32 = 12;

/// An engine that takes voice without the layers between.
pub trait VoiceReceiver: Engine {
    /// Processes an RTP packet of a media socket at once, as far as its media handler does: timers and everything else
    /// run at the next deadline. Outputs are read as after [`Engine::handle`].
    fn receive_voice(&mut self, packet: Datagram<'_>, now: Time);
}

/// A shortcut of voice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoiceShortcut {
    /// RTP without a UDP header.
    WithoutUdp,
    /// RTP without IP and UDP headers, handed to the media handler as soon as it is opened.
    Direct,
}

impl VoiceShortcut {
    /// Its name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            VoiceShortcut::WithoutUdp => "rtp",
            VoiceShortcut::Direct => "direct",
        }
    }

    const fn number(self) -> u8 {
        match self {
            VoiceShortcut::WithoutUdp => 1,
            VoiceShortcut::Direct => 2,
        }
    }
}

/// Kinds of messages.
const OFFER: u8 = 1;
const ACCEPT: u8 = 2;
const REFUSE: u8 = 3;

/// A message for the peer.
pub(super) type Message = [u8; LENGTH];

const fn message(kind: u8, shortcut: u8) -> Message {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, kind, shortcut, 0, 0]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was agreed; offers are answered.
    Idle,
    /// Offers are sent until one is answered.
    Offering {
        due: Time,
        left: u32,
    },
    Agreed,
    Failed(&'static str),
}

/// The negotiation of one end.
#[derive(Debug)]
pub(super) struct Negotiation {
    requested: Option<VoiceShortcut>,
    stage: Stage,
}

impl Negotiation {
    pub fn new(requested: Option<VoiceShortcut>) -> Negotiation {
        Negotiation {
            requested,
            stage: Stage::Idle,
        }
    }

    /// Begins to offer.
    pub fn start(&mut self, now: Time) {
        if self.requested.is_some() {
            self.stage = Stage::Offering {
                due: now,
                left: OFFERS,
            };
        }
    }

    /// The shortcut in use.
    pub fn agreed(&self) -> Option<VoiceShortcut> {
        self.requested.filter(|_| self.stage == Stage::Agreed)
    }

    /// Whether an offer is not answered yet.
    pub fn waits(&self) -> bool {
        self.due().is_some()
    }

    pub fn due(&self) -> Option<Time> {
        match self.stage {
            Stage::Offering { due, .. } => Some(due),
            _ => None,
        }
    }

    pub fn failure(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// The offer that is due.
    pub fn timeout(&mut self, now: Time) -> Option<Message> {
        let Stage::Offering { due, left } = self.stage else {
            return None;
        };
        if due > now {
            return None;
        }
        if left == 0 {
            self.stage = Stage::Failed(
                "the peer did not answer its offer in 3 s: it is another program, has other keys, or is not reachable",
            );
            return None;
        }
        self.stage = Stage::Offering {
            due: now + OFFER_INTERVAL,
            left: left - 1,
        };
        let requested = self.requested?;
        Some(message(OFFER, requested.number()))
    }

    /// Processes a message; returns the answer to an offer.
    ///
    /// # Errors
    /// [`EspFailure::Malformed`] if it is none.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Message>, EspFailure> {
        let Some((&MAGIC, &[kind, number, 0, 0])) = bytes
            .split_first_chunk::<4>()
            .and_then(|(magic, rest)| Some((magic, rest.as_array::<4>()?)))
        else {
            return Err(EspFailure::Malformed);
        };
        let same = self
            .requested
            .is_some_and(|requested| requested.number() == number);
        let offering = matches!(self.stage, Stage::Offering { .. });
        match kind {
            OFFER if same => {
                self.stage = Stage::Agreed;
                Ok(Some(message(ACCEPT, number)))
            }
            OFFER => Ok(Some(message(REFUSE, number))),
            ACCEPT if same && offering => {
                self.stage = Stage::Agreed;
                Ok(None)
            }
            REFUSE if same && offering => {
                self.stage = Stage::Failed("the peer refused it: it is switched off there");
                Ok(None)
            }
            // Answers to earlier offers.
            ACCEPT | REFUSE => Ok(None),
            _ => Err(EspFailure::Malformed),
        }
    }
}

/// Whether a datagram of a media socket is RTP, and no RTCP (RFC 5761 section 4).
pub(super) fn is_rtp(bytes: &[u8]) -> bool {
    matches!(bytes, [first, second, ..] if first >> 6 == 2 && !matches!(second, 192..=223))
        && bytes.len() >= 12
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(
        near: Option<VoiceShortcut>,
        far: Option<VoiceShortcut>,
    ) -> (Negotiation, Negotiation) {
        let (mut near, mut far) = (Negotiation::new(near), Negotiation::new(far));
        near.start(Time::ZERO);
        let offer = near.timeout(Time::ZERO).expect("an offer");
        let answer = far.receive(&offer).unwrap().expect("an answer");
        assert_eq!(near.receive(&answer), Ok(None));
        (near, far)
    }

    #[test]
    fn equal_requests_agree_and_others_are_refused() {
        use VoiceShortcut::{Direct, WithoutUdp};
        for shortcut in [Direct, WithoutUdp] {
            let (near, far) = exchange(Some(shortcut), Some(shortcut));
            assert_eq!([near.agreed(), far.agreed()], [Some(shortcut); 2]);
            assert!(!near.waits());
        }
        for far in [None, Some(WithoutUdp)] {
            let (near, far) = exchange(Some(Direct), far);
            assert_eq!([near.agreed(), far.agreed()], [None; 2]);
            assert!(near.failure().unwrap().contains("refused"));
        }
    }

    #[test]
    fn offers_are_repeated_and_end() {
        let mut near = Negotiation::new(Some(VoiceShortcut::Direct));
        near.start(Time::ZERO);
        let mut offers = 0;
        while let Some(due) = near.due() {
            offers += u32::from(near.timeout(due).is_some());
            assert_eq!(near.timeout(due), None, "before it is due again");
        }
        assert_eq!(offers, OFFERS);
        assert!(near.failure().unwrap().contains("did not answer"));
    }

    #[test]
    fn other_messages_are_malformed() {
        let mut far = Negotiation::new(None);
        let offer = message(OFFER, 1);
        for bytes in [
            &b""[..],
            &offer[..7],
            b"HWvs\x09\x01\0\0",
            b"XWvs\x01\x01\0\0",
            b"HWvs\x01\x01\0\0\0",
        ] {
            assert_eq!(far.receive(bytes), Err(EspFailure::Malformed));
        }
        // An answer without an offer changes nothing.
        assert_eq!(far.receive(&message(ACCEPT, 1)), Ok(None));
        assert_eq!(far.agreed(), None);
        assert!(is_rtp(&[0x80; 12]) && !is_rtp(&[0x80, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!is_rtp(&[0x80; 11]) && !is_rtp(&[0; 20]));
    }
}
