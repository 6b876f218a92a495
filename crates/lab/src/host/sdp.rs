//! The session descriptions of laboratory hosts: one audio line, G.711 of either law, telephone events.

use codec::g711::Law;
use sip::{Preconditions, Unmet};
use std::net::SocketAddr;
use wire::sdp::offer::{MediaPlan, Plan, write_answer, write_offer};
use wire::sdp::{Codec, Direction, Sdp};

/// Payload type that we offer for telephone events.
const EVENTS: u8 = 101;

/// What both sides agreed on, as we need it to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Where the other side receives.
    pub(crate) remote: SocketAddr,
    /// What we send.
    pub(crate) law: Law,
    /// Its payload type.
    pub(crate) payload_type: u8,
    /// Whether we may send.
    pub(crate) send: bool,
}

fn law_codec(law: Law) -> Codec<'static> {
    Codec {
        payload_type: law.payload_type(),
        name: match law {
            Law::A => b"PCMA",
            Law::Mu => b"PCMU",
        },
        clock_rate: 8000,
        channels: 1,
        fmtp: None,
    }
}

fn codecs(first: Law) -> [Codec<'static>; 3] {
    let second = match first {
        Law::A => Law::Mu,
        Law::Mu => Law::A,
    };
    let events = Codec {
        payload_type: EVENTS,
        name: b"telephone-event",
        clock_rate: 8000,
        channels: 1,
        fmtp: Some(b"0-16"),
    };
    [law_codec(first), law_codec(second), events]
}

/// What a description of ours says besides its codecs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours {
    /// Where we receive.
    pub(crate) address: SocketAddr,
    /// Session identifier.
    pub(crate) id: u64,
    /// Version: counts up with each change.
    pub(crate) version: u64,
    /// Direction as we want it.
    pub(crate) direction: Direction,
    /// The law that we prefer.
    pub(crate) law: Law,
}

impl Ours {
    /// Whether both say the same but for identifier and version.
    pub(crate) fn says_as(&self, other: &Ours) -> bool {
        (self.address, self.direction, self.law) == (other.address, other.direction, other.law)
    }

    fn with_plan<T>(&self, extra: &[String], make: impl FnOnce(&Plan<'_>) -> T) -> T {
        let extra: Vec<&[u8]> = extra.iter().map(String::as_bytes).collect();
        let codecs = codecs(self.law);
        let media = [MediaPlan {
            kind: "audio",
            port: self.address.port(),
            protocol: "RTP/AVP",
            codecs: &codecs,
            direction: self.direction,
            ptime: Some(20),
            extra: &extra,
        }];
        make(&Plan {
            username: "-",
            session_id: self.id,
            version: self.version,
            address: self.address.ip(),
            media: &media,
        })
    }

    /// An offer.
    pub(crate) fn offer(&self) -> Vec<u8> {
        self.offer_with(&[])
    }

    /// The same with further lines of its media line, each without line end.
    pub(crate) fn offer_with(&self, extra: &[String]) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        self.with_plan(extra, |plan| write_offer(plan, &mut out));
        out
    }

    /// The answer to `offer`, and what was agreed; `None` where there is nothing in common.
    pub(crate) fn answer(&self, offer: &[u8]) -> Option<(Vec<u8>, Agreed)> {
        self.answer_with(offer, &[])
    }

    /// The same with further lines of its media line, each without line end.
    pub(crate) fn answer_with(&self, offer: &[u8], extra: &[String]) -> Option<(Vec<u8>, Agreed)> {
        let sdp = Sdp::parse(offer).ok()?;
        let mut out = Vec::with_capacity(512);
        let mut agreed = None;
        self.with_plan(extra, |plan| {
            write_answer(
                &sdp,
                plan,
                |accepted| {
                    agreed = agreed.or(Some((accepted.index, accepted.codec, accepted.direction)))
                },
                &mut out,
            );
        });
        let (index, codec, direction) = agreed?;
        let agreed = Agreed {
            remote: sdp.media_at(index)?.rtp_address()?,
            law: law_of(&codec)?,
            payload_type: codec.payload_type,
            send: direction.sends(),
        };
        Some((out, agreed))
    }
}

fn law_of(codec: &Codec<'_>) -> Option<Law> {
    if codec.name.eq_ignore_ascii_case(b"PCMA") {
        Some(Law::A)
    } else if codec.name.eq_ignore_ascii_case(b"PCMU") {
        Some(Law::Mu)
    } else {
        None
    }
}

/// What an answer to an offer of ours agreed on; `None` where the line was refused or is nothing that we speak.
pub(crate) fn agreed(answer: &[u8]) -> Option<Agreed> {
    let sdp = Sdp::parse(answer).ok()?;
    let media = sdp
        .media()
        .find(|media| media.line.kind == b"audio" && !media.is_rejected())?;
    let (law, payload_type) = media
        .codecs()
        .find_map(|codec| Some((law_of(&codec)?, codec.payload_type)))?;
    Some(Agreed {
        remote: media.rtp_address()?,
        law,
        payload_type,
        send: media.effective_direction().receives(),
    })
}

/// Takes the preconditions of the other side's audio line.
///
/// # Errors
/// As [`Preconditions::hear`].
pub(crate) fn hear_preconditions(
    table: &mut Preconditions,
    description: &[u8],
) -> Result<(), Unmet> {
    let Ok(sdp) = Sdp::parse(description) else {
        return Ok(());
    };
    let audio = sdp.media().find(|media| media.line.kind == b"audio");
    match audio {
        Some(media) => table.hear(media.section.preconditions()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(port: u16, law: Law, direction: Direction) -> Ours {
        Ours {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            id: 7,
            version: 1,
            direction,
            law,
        }
    }

    #[test]
    fn offer_and_answer_agree() {
        let offer = ours(4000, Law::A, Direction::SendRecv).offer();
        let (answer, callee) = ours(5000, Law::Mu, Direction::SendRecv)
            .answer(&offer)
            .unwrap();
        let caller = agreed(&answer).unwrap();
        assert_eq!(callee.remote.port(), 4000);
        assert_eq!(caller.remote.port(), 5000);
        // The offerer's order decides.
        assert_eq!((caller.law, callee.law), (Law::A, Law::A));
        assert!(caller.send && callee.send);
    }

    #[test]
    fn hold_stops_the_other_side() {
        let offer = ours(4000, Law::A, Direction::SendOnly).offer();
        let (answer, callee) = ours(5000, Law::A, Direction::SendRecv)
            .answer(&offer)
            .unwrap();
        assert!(!callee.send);
        assert!(agreed(&answer).unwrap().send);
        assert!(String::from_utf8(answer).unwrap().contains("a=recvonly"));
    }

    #[test]
    fn nothing_in_common_is_told() {
        let offer = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 18\r\n";
        assert!(ours(1, Law::A, Direction::SendRecv).answer(offer).is_none());
        assert!(agreed(b"nonsense").is_none());
    }
}
