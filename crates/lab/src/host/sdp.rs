//! Session descriptions of lab hosts: one audio line with the codecs in order of preference, telephone events.

use codec::{Format, Kind};
use sip::{Preconditions, Unmet};
use std::net::SocketAddr;
use wire::sdp::offer::{MediaPlan, Plan, write_answer, write_offer};
use wire::sdp::{Codec, Direction, Media, Sdp};

/// Offered payload type of telephone events at 8 kHz.
const EVENTS: u8 = 101;
/// The same at the clock rate of Opus (RFC 4733 section 2.1: the clock rate is that of the audio).
const EVENTS_48K: u8 = 102;
/// Offered payload type of Opus, which has no static one.
const OPUS: u8 = 107;

/// Codecs in order of preference, each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodecOrder([Option<Format>; Kind::ALL.len()]);

impl CodecOrder {
    /// These codecs; repetitions are left out.
    pub(crate) fn new(formats: impl IntoIterator<Item = Format>) -> CodecOrder {
        let mut order = CodecOrder([None; Kind::ALL.len()]);
        for format in formats {
            let known = order.iter().any(|known| known.kind() == format.kind());
            let free = order.0.iter_mut().find(|place| place.is_none() && !known);
            if let Some(place) = free {
                *place = Some(format);
            }
        }
        order
    }

    fn iter(&self) -> impl Iterator<Item = Format> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl From<Format> for CodecOrder {
    /// One codec; of G.711 both laws, with this one preferred.
    fn from(first: Format) -> CodecOrder {
        let second = match first {
            Format::Pcma => Some(Format::Pcmu),
            Format::Pcmu => Some(Format::Pcma),
            _ => None,
        };
        CodecOrder::new([first].into_iter().chain(second))
    }
}

/// RTCP of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRtcp {
    /// Its address: that of `a=rtcp` (RFC 3605), or the port above RTP's.
    pub(crate) address: SocketAddr,
    /// It is on the port of RTP at both ends (RFC 5761).
    pub(crate) is_mux: bool,
}

/// RTCP of the peer's media line; `is_mux`: both sides have agreed on rtcp-mux.
fn peer_rtcp(media: &Media<'_, '_>, is_mux: bool) -> Option<PeerRtcp> {
    let address = match is_mux {
        true => media.rtp_address()?,
        false => media.rtcp_address()?,
    };
    Some(PeerRtcp { address, is_mux })
}

/// Result of offer and answer, for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiatedMedia {
    /// Media address of the peer.
    pub(crate) remote: SocketAddr,
    /// Format to send.
    pub(crate) format: Format,
    /// Its payload type.
    pub(crate) payload_type: u8,
    /// Payload type of telephone events at the clock rate of the format.
    pub(crate) events: Option<u8>,
    /// Whether sending is permitted.
    pub(crate) send: bool,
    /// Whether the peer may send.
    pub(crate) receive: bool,
    /// RTCP of the peer, for a side that has RTCP.
    pub(crate) rtcp: Option<PeerRtcp>,
}

fn line(format: Format) -> Codec<'static> {
    let kind = format.kind();
    Codec {
        payload_type: kind.payload_type().unwrap_or(OPUS),
        name: kind.name().as_bytes(),
        clock_rate: kind.rtp_clock(),
        channels: kind.sdp_channels(),
        fmtp: match format {
            Format::G729 { annex_b: false } => Some(b"annexb=no"),
            // A parameter of the receiver alone, in offers and answers (RFC 7587 section 7.1).
            Format::Opus(parameters) if parameters.inband_fec => Some(b"useinbandfec=1"),
            _ => None,
        },
    }
}

/// Telephone events at a clock rate.
fn events(payload_type: u8, clock_rate: u32) -> Codec<'static> {
    Codec {
        payload_type,
        name: b"telephone-event",
        clock_rate,
        channels: 1,
        fmtp: Some(b"0-16"),
    }
}

/// The lines of these codecs, and telephone events at each of their clock rates.
fn codecs(order: &CodecOrder) -> Vec<Codec<'static>> {
    let mut codecs: Vec<Codec<'static>> = order.iter().map(line).collect();
    let has = |rate| order.iter().any(|format| format.kind().rtp_clock() == rate);
    let (narrow, wide) = (has(8000), has(48_000));
    codecs.extend(narrow.then(|| events(EVENTS, 8000)));
    codecs.extend(wide.then(|| events(EVENTS_48K, 48_000)));
    codecs
}

/// Parameters of an own description, besides its codecs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferParameters {
    /// Own media address.
    pub(crate) address: SocketAddr,
    /// Session identifier.
    pub(crate) id: u64,
    /// Version: incremented with each change.
    pub(crate) version: u64,
    /// Requested direction.
    pub(crate) direction: Direction,
    /// The codecs.
    pub(crate) codecs: CodecOrder,
    /// With SRTP.
    pub(crate) secure: bool,
    /// The own RTCP.
    pub(crate) rtcp: OwnRtcp,
}

/// RTCP of an own description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnRtcp {
    /// None.
    #[default]
    Absent,
    /// On the port of RTP only, if the peer agrees.
    Mux,
    /// On this port, or on that of RTP if the peer agrees.
    Port(u16),
}

impl OwnRtcp {
    /// The lines of an offer, or of the answer to an offer.
    fn lines(self, offered_mux: Option<bool>) -> Vec<String> {
        let mux = || "a=rtcp-mux".to_owned();
        let port = match self {
            OwnRtcp::Absent => return Vec::new(),
            OwnRtcp::Mux => None,
            OwnRtcp::Port(port) => Some(format!("a=rtcp:{port}")),
        };
        match offered_mux {
            None => port.into_iter().chain([mux()]).collect(),
            Some(true) => vec![mux()],
            Some(false) => port.into_iter().collect(),
        }
    }
}

impl OfferParameters {
    /// Whether both are equal except for identifier and version.
    pub(crate) fn equals_except_version(&self, other: &OfferParameters) -> bool {
        let parameters = |ours: &OfferParameters| {
            (
                ours.address,
                ours.direction,
                ours.codecs,
                (ours.secure, ours.rtcp),
            )
        };
        parameters(self) == parameters(other)
    }

    fn with_plan<T>(&self, extra: &[String], make: impl FnOnce(&Plan<'_>) -> T) -> T {
        let extra: Vec<&[u8]> = extra.iter().map(String::as_bytes).collect();
        let codecs = codecs(&self.codecs);
        let media = [MediaPlan {
            kind: "audio",
            port: self.address.port(),
            protocol: if self.secure { "RTP/SAVP" } else { "RTP/AVP" },
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

    /// An offer with further lines of its media line, each without line end.
    pub(crate) fn offer_with(&self, extra: &[String]) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let lines = [&self.rtcp.lines(None), extra].concat();
        self.with_plan(&lines, |plan| write_offer(plan, &mut out));
        out
    }

    /// The answer to `offer`, and its result; `None` without a common codec.
    pub(crate) fn answer(&self, offer: &[u8]) -> Option<(Vec<u8>, NegotiatedMedia)> {
        self.answer_with(offer, &[])
    }

    /// The answer with further lines of its media line, each without line end.
    pub(crate) fn answer_with(
        &self,
        offer: &[u8],
        extra: &[String],
    ) -> Option<(Vec<u8>, NegotiatedMedia)> {
        let sdp = Sdp::parse(offer).ok()?;
        let mut out = Vec::with_capacity(512);
        let mut agreed = None;
        let mut all = sdp.media();
        let audio = all.find(|media| media.line.kind == b"audio" && !media.is_rejected());
        let is_mux = audio.is_some_and(|media| media.has_rtcp_mux());
        let lines = [&self.rtcp.lines(Some(is_mux)), extra].concat();
        self.with_plan(&lines, |plan| {
            write_answer(
                &sdp,
                plan,
                |accepted| agreed = agreed.or(Some(accepted)),
                &mut out,
            );
        });
        let accepted = agreed?;
        let media = sdp.media_at(accepted.index)?;
        let agreed = NegotiatedMedia {
            remote: media.rtp_address()?,
            format: format_of(&accepted.codec, &self.codecs)?,
            payload_type: accepted.codec.payload_type,
            events: accepted.events,
            send: accepted.direction.sends(),
            receive: accepted.direction.receives(),
            rtcp: peer_rtcp(&media, is_mux),
        };
        Some((out, agreed))
    }
}

/// The codec of a description, restricted to the parameters in common.
fn format_of(codec: &Codec<'_>, ours: &CodecOrder) -> Option<Format> {
    let kind = Kind::of_rtpmap(codec.name, codec.clock_rate, codec.channels)?;
    let theirs = Format::parse(kind, codec.fmtp);
    let ours = ours.iter().find(|format| format.kind() == kind)?;
    theirs.to_receiver(&ours)
}

/// The result of an answer to an own offer; `None` if the line was refused or has no supported codec.
pub(crate) fn agreed(answer: &[u8], ours: impl Into<CodecOrder>) -> Option<NegotiatedMedia> {
    let ours = ours.into();
    let sdp = Sdp::parse(answer).ok()?;
    let media = sdp
        .media()
        .find(|media| media.line.kind == b"audio" && !media.is_rejected())?;
    let (format, payload_type) = media
        .codecs()
        .find_map(|codec| Some((format_of(&codec, &ours)?, codec.payload_type)))?;
    let events = media.codecs().find(|codec| {
        codec.name.eq_ignore_ascii_case(b"telephone-event")
            && codec.clock_rate == format.kind().rtp_clock()
    });
    Some(NegotiatedMedia {
        remote: media.rtp_address()?,
        format,
        payload_type,
        events: events.map(|codec| codec.payload_type),
        send: media.effective_direction().receives(),
        receive: media.effective_direction().sends(),
        // Rtcp-mux in an answer follows that of the offer (RFC 5761 section 5.1.1).
        rtcp: peer_rtcp(&media, media.has_rtcp_mux()),
    })
}

/// Reads the preconditions of the peer's audio line.
///
/// # Errors
/// As [`Preconditions::apply_remote`].
pub(crate) fn read_preconditions(
    table: &mut Preconditions,
    description: &[u8],
) -> Result<(), Unmet> {
    let Ok(sdp) = Sdp::parse(description) else {
        return Ok(());
    };
    let audio = sdp.media().find(|media| media.line.kind == b"audio");
    match audio {
        Some(media) => table.apply_remote(media.section.preconditions()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(port: u16, codec: Format, direction: Direction) -> OfferParameters {
        OfferParameters {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            id: 7,
            version: 1,
            direction,
            codecs: codec.into(),
            secure: false,
            rtcp: OwnRtcp::Absent,
        }
    }

    #[test]
    fn rtcp_has_the_port_that_both_sides_agreed_on() {
        let with = |port, rtcp| OfferParameters {
            rtcp,
            ..ours(port, Format::Pcma, Direction::SendRecv)
        };
        let peer = |port: u16, is_mux| {
            let address = SocketAddr::from(([192, 0, 2, 1], port));
            Some(PeerRtcp { address, is_mux })
        };
        for (offers, answers, to_answerer, to_offerer) in [
            (
                OwnRtcp::Port(4009),
                OwnRtcp::Port(5009),
                peer(5000, true),
                peer(4000, true),
            ),
            (
                OwnRtcp::Mux,
                OwnRtcp::Mux,
                peer(5000, true),
                peer(4000, true),
            ),
            // The answer has no rtcp-mux.
            (
                OwnRtcp::Port(4009),
                OwnRtcp::Absent,
                peer(5001, false),
                peer(4000, true),
            ),
        ] {
            let offer = with(4000, offers).offer();
            let (answer, callee) = with(5000, answers).answer(&offer).unwrap();
            let caller = agreed(&answer, Format::Pcma).unwrap();
            assert_eq!((caller.rtcp, callee.rtcp), (to_answerer, to_offerer));
        }
        let offer = with(4000, OwnRtcp::Port(4009)).offer();
        let offer = String::from_utf8(offer).unwrap();
        assert!(offer.contains("a=rtcp:4009\r\n"), "{offer}");
        // A peer without rtcp-mux gets the own port.
        let plain = offer.replace("a=rtcp-mux\r\n", "");
        let answering = with(5000, OwnRtcp::Port(5009));
        let (answer, callee) = answering.answer(plain.as_bytes()).unwrap();
        let caller = agreed(&answer, Format::Pcma).unwrap();
        assert_eq!(
            (caller.rtcp, callee.rtcp),
            (peer(5009, false), peer(4009, false))
        );
    }

    #[test]
    fn offer_and_answer_agree() {
        let offer = ours(4000, Format::Pcma, Direction::SendRecv).offer();
        let (answer, callee) = ours(5000, Format::Pcmu, Direction::SendRecv)
            .answer(&offer)
            .unwrap();
        let caller = agreed(&answer, Format::Pcma).unwrap();
        assert_eq!(callee.remote.port(), 4000);
        assert_eq!(caller.remote.port(), 5000);
        // The order of the offer decides.
        assert_eq!((caller.format, callee.format), (Format::Pcma, Format::Pcma));
        assert!(caller.send && callee.send);
    }

    #[test]
    fn hold_stops_the_peer() {
        let offer = ours(4000, Format::Pcma, Direction::SendOnly).offer();
        let (answer, callee) = ours(5000, Format::Pcma, Direction::SendRecv)
            .answer(&offer)
            .unwrap();
        assert!(!callee.send);
        assert!(agreed(&answer, Format::Pcma).unwrap().send);
        assert!(String::from_utf8(answer).unwrap().contains("a=recvonly"));
    }

    #[test]
    fn missing_common_codec_is_reported() {
        let offer = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 18\r\n";
        assert!(
            ours(1, Format::Pcma, Direction::SendRecv)
                .answer(offer)
                .is_none()
        );
        assert!(agreed(b"nonsense", Format::Pcma).is_none());
    }

    #[test]
    fn codecs_keep_their_order_and_events_have_the_clock_of_the_codec() {
        let opus = Format::new(Kind::Opus);
        let mut offering = ours(4000, Format::Pcma, Direction::SendRecv);
        offering.codecs = CodecOrder::new([opus, Format::G722, Format::Pcma, Format::G722]);
        let offer = offering.offer();
        let text = String::from_utf8(offer.clone()).unwrap();
        assert!(
            text.contains("m=audio 4000 RTP/AVP 107 9 8 101 102\r\n"),
            "{text}"
        );
        for (answers, format, events) in [
            (opus, opus, 102),
            (Format::G722, Format::G722, 101),
            (Format::Pcmu, Format::Pcma, 101),
        ] {
            let answering = ours(5000, answers, Direction::SendRecv);
            let (answer, callee) = answering.answer(&offer).unwrap();
            let caller = agreed(&answer, offering.codecs).unwrap();
            assert_eq!((callee.format, callee.events), (format, Some(events)));
            assert_eq!((caller.format, caller.events), (format, Some(events)));
        }
    }

    /// Each side says what its own decoder can use, and sends as the other one has said (RFC 7587 section 7.1).
    #[test]
    fn redundancy_of_opus_is_declared_by_its_receiver() {
        let (plain, redundant) = (Format::new(Kind::Opus), Format::of_decoder(Kind::Opus));
        for (offers, answers) in [
            (redundant, redundant),
            (redundant, plain),
            (plain, redundant),
        ] {
            let offer = ours(4000, offers, Direction::SendRecv).offer();
            let answering = ours(5000, answers, Direction::SendRecv);
            let (answer, callee) = answering.answer(&offer).unwrap();
            let caller = agreed(&answer, offers).unwrap();
            assert_eq!((caller.format, callee.format), (answers, offers));
            for (text, format) in [(offer, offers), (answer, answers)] {
                let text = String::from_utf8(text).unwrap();
                let declared = text.contains("a=fmtp:107 useinbandfec=1\r\n");
                assert_eq!(declared, format == redundant, "{text}");
            }
        }
    }

    #[test]
    fn annex_b_needs_both_sides_and_other_codecs_are_single() {
        let g729 = |annex_b| Format::G729 { annex_b };
        for (offers, answers) in [(true, true), (true, false), (false, true)] {
            let offer = ours(4000, g729(offers), Direction::SendRecv).offer();
            let (answer, callee) = ours(5000, g729(answers), Direction::SendRecv)
                .answer(&offer)
                .unwrap();
            assert_eq!(callee.format, g729(offers && answers));
            assert_eq!(callee.payload_type, 18);
            let caller = agreed(&answer, g729(offers)).unwrap();
            assert_eq!(caller.format, g729(offers && answers));
        }
        let offer = ours(4000, Format::G722, Direction::SendRecv).offer();
        assert!(
            ours(5000, Format::Pcma, Direction::SendRecv)
                .answer(&offer)
                .is_none()
        );
        let mut secure = ours(4000, Format::Pcma, Direction::SendRecv);
        secure.secure = true;
        let text = String::from_utf8(secure.offer_with(&["a=crypto:1 x".to_owned()])).unwrap();
        assert!(text.contains("RTP/SAVP 8 0 101") && text.contains("a=crypto:1 x"));
    }
}
