//! Offer and answer (RFC 3264): matching and writing.

use super::{Codec, Direction, Media, Sdp};
use std::fmt;
use std::io::Write as _;
use std::net::IpAddr;

/// The reason why an answer does not match its offer (RFC 3264 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// A different number of media lines.
    Count,
    /// A media line of a different kind or protocol family.
    Kind {
        /// Index of the line.
        index: usize,
    },
    /// An accepted line without a format of the offer.
    Formats {
        /// Index of the line.
        index: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Count => write!(
                f,
                "answer with a different number of media lines than the offer"
            ),
            Mismatch::Kind { index } => {
                write!(f, "media line {index} of a different kind than offered")
            }
            Mismatch::Formats { index } => {
                write!(f, "media line {index} without any offered format")
            }
        }
    }
}

impl std::error::Error for Mismatch {}

/// One line of an offer with its answer.
#[derive(Clone, Copy, Debug)]
pub struct MatchedLine<'s, 'a> {
    /// The offered line.
    pub offered: Media<'s, 'a>,
    /// The answering line.
    pub answered: Media<'s, 'a>,
    /// Whether both ports are other than 0.
    pub accepted: bool,
    /// The direction from the offerer's view.
    pub direction: Direction,
    /// Whether both sides allow RTP and RTCP on one port.
    pub rtcp_mux: bool,
}

/// The lines of an offer, each with that of the answer, in order.
pub fn match_answer<'s, 'a>(
    offer: &'s Sdp<'a>,
    answer: &'s Sdp<'a>,
) -> Result<impl ExactSizeIterator<Item = MatchedLine<'s, 'a>> + use<'s, 'a>, Mismatch> {
    if offer.media_count() != answer.media_count() {
        return Err(Mismatch::Count);
    }
    for (index, (offered, answered)) in offer.media().zip(answer.media()).enumerate() {
        if offered.line.kind != answered.line.kind {
            return Err(Mismatch::Kind { index });
        }
        let accepted = !offered.is_rejected() && !answered.is_rejected();
        if accepted && offered.is_rtp() && !shares_format(&offered, &answered) {
            return Err(Mismatch::Formats { index });
        }
    }
    Ok(offer
        .media()
        .zip(answer.media())
        .map(|(offered, answered)| MatchedLine {
            offered,
            answered,
            accepted: !offered.is_rejected() && !answered.is_rejected(),
            direction: answered
                .effective_direction()
                .reversed()
                .intersect(offered.effective_direction()),
            rtcp_mux: offered.has_rtcp_mux() && answered.has_rtcp_mux(),
        }))
}

impl Direction {
    /// The directions that both allow.
    #[must_use]
    pub const fn intersect(self, other: Direction) -> Direction {
        Direction::from_flags(
            self.sends() && other.sends(),
            self.receives() && other.receives(),
        )
    }
}

/// Whether the lines have a format in common. Bounded by 128 formats each, the number of payload types.
fn shares_format(offered: &Media<'_, '_>, answered: &Media<'_, '_>) -> bool {
    let mut seen = [false; 128];
    for codec in offered
        .formats()
        .take(128)
        .filter_map(crate::sip_text::number)
    {
        if let Some(slot) = seen.get_mut(codec as usize) {
            *slot = true;
        }
    }
    let by_number = answered
        .formats()
        .take(128)
        .filter_map(crate::sip_text::number)
        .any(|format| seen.get(format as usize) == Some(&true));
    // Some answerers use other payload types: RFC 3264 section 6.1 allows it if the encoding is the same.
    by_number || {
        let codecs: Vec<_> = offered.codecs().collect();
        answered
            .codecs()
            .any(|codec| codecs.iter().any(|other| other.same_encoding(&codec)))
    }
}

/// A media line to write.
#[derive(Clone, Copy, Debug)]
pub struct MediaPlan<'p> {
    /// For example `audio`.
    pub kind: &'p str,
    /// Local receive port; 0 refuses the line.
    pub port: u16,
    /// For example `RTP/AVP`.
    pub protocol: &'p str,
    /// Formats, in order of preference.
    pub codecs: &'p [Codec<'p>],
    /// Direction.
    pub direction: Direction,
    /// Packet time in milliseconds.
    pub ptime: Option<u32>,
    /// Further lines, without line ends.
    pub extra: &'p [&'p [u8]],
}

/// A session description to write.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'p> {
    /// User name of `o=`; `-` for none.
    pub username: &'p str,
    /// Session identifier.
    pub session_id: u64,
    /// Session version.
    pub version: u64,
    /// Local address.
    pub address: IpAddr,
    /// The media lines.
    pub media: &'p [MediaPlan<'p>],
}

/// Appends an offer.
pub fn write_offer(plan: &Plan<'_>, out: &mut Vec<u8>) {
    write_session(plan, out);
    for media in plan.media {
        write_media(media, out);
    }
}

fn write_session(plan: &Plan<'_>, out: &mut Vec<u8>) {
    let family = super::rewrite::family(plan.address);
    // Writing into a Vec cannot fail.
    let _ = write!(
        out,
        "v=0\r\no={} {} {} IN {family} {}\r\ns=-\r\nc=IN {family} {}\r\nt=0 0\r\n",
        plan.username, plan.session_id, plan.version, plan.address, plan.address
    );
}

fn write_media(media: &MediaPlan<'_>, out: &mut Vec<u8>) {
    write_media_line(
        media.kind.as_bytes(),
        media.port,
        media.protocol.as_bytes(),
        out,
    );
    for codec in media.codecs {
        let _ = write!(out, " {}", codec.payload_type);
    }
    out.extend_from_slice(b"\r\n");
    for codec in media.codecs {
        write_codec(codec, out);
    }
    write_tail(media.direction, media.ptime, media.extra, out);
}

fn write_media_line(kind: &[u8], port: u16, protocol: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"m=");
    out.extend_from_slice(kind);
    let _ = write!(out, " {port} ");
    out.extend_from_slice(protocol);
}

fn write_codec(codec: &Codec<'_>, out: &mut Vec<u8>) {
    let _ = write!(out, "a=rtpmap:{} ", codec.payload_type);
    out.extend_from_slice(codec.name);
    let _ = write!(out, "/{}", codec.clock_rate);
    if codec.channels != 1 {
        let _ = write!(out, "/{}", codec.channels);
    }
    out.extend_from_slice(b"\r\n");
    if let Some(fmtp) = codec.fmtp {
        let _ = write!(out, "a=fmtp:{} ", codec.payload_type);
        out.extend_from_slice(fmtp);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_tail(direction: Direction, ptime: Option<u32>, extra: &[&[u8]], out: &mut Vec<u8>) {
    if let Some(ptime) = ptime {
        let _ = write!(out, "a=ptime:{ptime}\r\n");
    }
    let _ = write!(out, "a={}\r\n", direction.name());
    for line in extra {
        out.extend_from_slice(line);
        out.extend_from_slice(b"\r\n");
    }
}

/// A media line accepted in an answer: the first common codec, which is sent, and the payload type of DTMF events (RFC
/// 4733) at its clock rate, if both sides support it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedLine<'a> {
    /// Index of the line in the offer.
    pub index: usize,
    /// The codec, with the offerer's payload type.
    pub codec: Codec<'a>,
    /// Payload type of `telephone-event`.
    pub events: Option<u8>,
    /// Local direction.
    pub direction: Direction,
}

/// Appends an answer to `offer`. `plan.media` are the supported lines; each takes the first offered line of its kind
/// and protocol that is not taken. Codecs keep the offerer's order and payload types; lines without a common codec, and
/// unsupported lines, are refused with port 0. Calls `accepted` for each accepted line.
pub fn write_answer<'a>(
    offer: &Sdp<'a>,
    plan: &Plan<'_>,
    mut accepted: impl FnMut(AcceptedLine<'a>),
    out: &mut Vec<u8>,
) {
    write_session(plan, out);
    let mut used = [false; super::MAX_MEDIA];
    for (index, offered) in offer.media().enumerate() {
        let ours = plan
            .media
            .iter()
            .enumerate()
            .take(used.len())
            .find(|(at, ours)| {
                !used[*at]
                    && !offered.is_rejected()
                    && ours.port != 0
                    && ours.kind.as_bytes() == offered.line.kind
                    && ours.protocol.as_bytes() == offered.line.protocol
                    && common(&offered, ours).any(|codec| !is_event(&codec))
            });
        match ours {
            Some((at, ours)) => {
                used[at] = true;
                if let Some(agreed) = answer_media(index, &offered, ours, out) {
                    accepted(agreed);
                }
            }
            None => refuse_media(&offered, out),
        }
    }
}

fn is_event(codec: &Codec<'_>) -> bool {
    codec.name.eq_ignore_ascii_case(b"telephone-event") || codec.name.eq_ignore_ascii_case(b"CN")
}

/// The offered codecs that are supported.
fn common<'s, 'a>(
    offered: &Media<'s, 'a>,
    ours: &MediaPlan<'s>,
) -> impl Iterator<Item = Codec<'a>> + use<'s, 'a> {
    let codecs = ours.codecs;
    offered
        .codecs()
        .filter(move |codec| codecs.iter().any(|ours| ours.same_encoding(codec)))
}

fn answer_media<'a>(
    index: usize,
    offered: &Media<'_, 'a>,
    ours: &MediaPlan<'_>,
    out: &mut Vec<u8>,
) -> Option<AcceptedLine<'a>> {
    let codec = common(offered, ours).find(|codec| !is_event(codec))?;
    let events = common(offered, ours).find(|event| {
        event.name.eq_ignore_ascii_case(b"telephone-event") && event.clock_rate == codec.clock_rate
    });
    write_media_line(offered.line.kind, ours.port, offered.line.protocol, out);
    // The answer has one codec and its events, so that the offerer sends nothing else.
    let _ = write!(out, " {}", codec.payload_type);
    if let Some(event) = events {
        let _ = write!(out, " {}", event.payload_type);
    }
    out.extend_from_slice(b"\r\n");
    for codec in [Some(codec), events].into_iter().flatten() {
        // Format parameters are declarative: those of the answerer, not of the offerer.
        let fmtp = ours
            .codecs
            .iter()
            .find(|ours| ours.same_encoding(&codec))
            .and_then(|ours| ours.fmtp);
        write_codec(&Codec { fmtp, ..codec }, out);
    }
    let direction = offered.effective_direction().answer(ours.direction);
    write_tail(direction, ours.ptime, ours.extra, out);
    if let Some(mid) = offered.mid() {
        out.extend_from_slice(b"a=mid:");
        out.extend_from_slice(mid);
        out.extend_from_slice(b"\r\n");
    }
    Some(AcceptedLine {
        index,
        codec,
        events: events.map(|event| event.payload_type),
        direction,
    })
}

fn refuse_media(offered: &Media<'_, '_>, out: &mut Vec<u8>) {
    write_media_line(offered.line.kind, 0, offered.line.protocol, out);
    for format in offered.formats() {
        out.push(b' ');
        out.extend_from_slice(format);
    }
    out.extend_from_slice(b"\r\n");
}
