//! Session descriptions of conferences (RFC 3264, RFC 8866): codecs in the configured order, telephone events,
//! comfort noise, packet times.

use codec::{Format, Kind};
use config::ConferenceSpec;
use media::conference::VoiceFormat;
use serde::{Deserialize, Serialize};
use std::io::Write;
use wire::sdp::{Codec, Direction, Media, Sdp};

/// Dynamic payload types in our offers.
const OPUS_PAYLOAD_TYPE: u8 = 96;
const EVENTS_PAYLOAD_TYPE: u8 = 101;
/// Payload type of comfort noise (RFC 3389 section 4).
const COMFORT_NOISE: u8 = 13;

/// Result of offer and answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct VoiceChoice {
    /// Index of the media line with the audio.
    pub(super) line: usize,
    /// The codec with the payload types of the description.
    pub(super) voice: VoiceFormat,
    /// Our format parameters of the codec.
    ours: Format,
    /// Our direction.
    direction: Direction,
    mux: bool,
}

/// Whether a media line can carry the audio.
fn is_usable_audio(media: &Media<'_, '_>, accepts_srtp: bool) -> bool {
    media.line.kind.eq_ignore_ascii_case(b"audio")
        && !media.is_rejected()
        && media.is_rtp()
        && (accepts_srtp || !media.is_secure())
}

fn kind_of(codec: &Codec<'_>) -> Option<Kind> {
    Kind::of_rtpmap(codec.name, codec.clock_rate, codec.channels)
}

/// The codec that would be chosen from an offer.
pub(super) fn preferred_codec(spec: &ConferenceSpec, offer: &[u8]) -> Option<Kind> {
    let sdp = Sdp::parse(offer).ok()?;
    Some(choose_from_offer(spec, &sdp, true)?.voice.format.kind())
}

/// Chooses from an offer, in the configured order; `None` without a common codec. `accepts_srtp`: SRTP is acceptable.
pub(super) fn choose_from_offer(
    spec: &ConferenceSpec,
    sdp: &Sdp<'_>,
    accepts_srtp: bool,
) -> Option<VoiceChoice> {
    let mut lines = sdp.media().enumerate();
    lines.find_map(|(line, media)| {
        if !is_usable_audio(&media, accepts_srtp) {
            return None;
        }
        spec.codecs.iter().find_map(|&kind| {
            let codec = media.codecs().find(|codec| kind_of(codec) == Some(kind))?;
            Some(choice(spec, line, &media, &codec, kind))
        })
    })
}

/// Evaluates an answer to our offer: its first codec that is configured.
pub(super) fn choose_from_answer(
    spec: &ConferenceSpec,
    sdp: &Sdp<'_>,
    accepts_srtp: bool,
) -> Option<VoiceChoice> {
    let mut lines = sdp.media().enumerate();
    lines.find_map(|(line, media)| {
        if !is_usable_audio(&media, accepts_srtp) {
            return None;
        }
        media.codecs().find_map(|codec| {
            let kind = kind_of(&codec).filter(|kind| spec.codecs.contains(kind))?;
            Some(choice(spec, line, &media, &codec, kind))
        })
    })
}

fn choice(
    spec: &ConferenceSpec,
    line: usize,
    media: &Media<'_, '_>,
    codec: &Codec<'_>,
    kind: Kind,
) -> VoiceChoice {
    let theirs = Format::parse(kind, codec.fmtp);
    let ours = theirs.answer(&Format::new(kind)).unwrap_or(theirs);
    let named = |name: &[u8]| {
        let found = media
            .codecs()
            .find(|codec| codec.name.eq_ignore_ascii_case(name) && codec.clock_rate == 8000);
        found.map(|codec| codec.payload_type)
    };
    // Comfort noise has the clock rate of the codec (RFC 3389 section 4), which is 8000 for all of ours that need it.
    let noise = match kind.has_own_silence() {
        true => None,
        false => named(b"CN"),
    };
    let sends = theirs.to_receiver(&ours).unwrap_or(theirs);
    let suppress = spec.suppress_silence && (noise.is_some() || kind.has_own_silence());
    let max = media.section.attribute(b"maxptime").and_then(milliseconds);
    let requested = media.ptime().unwrap_or(spec.packet_time_ms);
    VoiceChoice {
        line,
        voice: VoiceFormat {
            format: sends,
            payload_type: codec.payload_type,
            events: named(b"telephone-event"),
            noise,
            packet_ms: kind.packet_time_within(requested.min(max.unwrap_or(requested))),
            suppress_silence: suppress,
        },
        ours,
        direction: media.effective_direction().answer(Direction::SendRecv),
        mux: media.has_rtcp_mux(),
    }
}

fn milliseconds(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Our descriptions in one session: the version is incremented with each change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ConferenceDescription {
    session: u64,
    version: u64,
    last: Vec<u8>,
}

impl ConferenceDescription {
    pub(super) fn new(session: u64) -> ConferenceDescription {
        ConferenceDescription {
            session,
            version: 0,
            last: Vec::new(),
        }
    }

    /// Prepends the session part to media lines. Address and ports are placeholders; the anchor replaces them.
    fn complete(&mut self, media: Vec<u8>) -> Vec<u8> {
        if media != self.last {
            self.version += 1;
            self.last = media;
        }
        let mut sdp = format!(
            "v=0\r\no=- {} {} IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n",
            self.session, self.version
        )
        .into_bytes();
        sdp.extend_from_slice(&self.last);
        sdp
    }

    /// The answer to an offer: the chosen line is accepted, all others are rejected.
    pub(super) fn answer(&mut self, offer: &Sdp<'_>, choice: &VoiceChoice) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, media) in offer.media().enumerate() {
            let line = &media.line;
            if index != choice.line {
                out.extend_from_slice(b"m=");
                out.extend_from_slice(line.kind);
                out.extend_from_slice(b" 0 ");
                out.extend_from_slice(line.protocol);
                out.push(b' ');
                out.extend_from_slice(media.formats().next().unwrap_or(b"0"));
                out.extend_from_slice(b"\r\n");
                continue;
            }
            let voice = &choice.voice;
            let numbers = core::iter::once(voice.payload_type)
                .chain(voice.noise)
                .chain(voice.events);
            // The anchor writes the SRTP profile.
            let protocol = if media.is_secure() {
                b"RTP/AVP"
            } else {
                line.protocol
            };
            media_line(&mut out, protocol, numbers);
            codec_lines(&mut out, voice.payload_type, &choice.ours);
            other_lines(&mut out, voice.noise, voice.events);
            write(&mut out, format_args!("a=ptime:{}\r\n", voice.packet_ms));
            if let Some(mid) = media.mid() {
                out.extend_from_slice(b"a=mid:");
                out.extend_from_slice(mid);
                out.extend_from_slice(b"\r\n");
            }
            if choice.mux {
                out.extend_from_slice(b"a=rtcp-mux\r\n");
            }
            write(
                &mut out,
                format_args!("a={}\r\n", direction(choice.direction)),
            );
        }
        self.complete(out)
    }

    /// An offer of all configured codecs in media line `line`; the lines before it are disabled.
    pub(super) fn offer(&mut self, spec: &ConferenceSpec, line: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..line {
            out.extend_from_slice(b"m=audio 0 RTP/AVP 0\r\n");
        }
        let number = |kind: Kind| kind.payload_type().unwrap_or(OPUS_PAYLOAD_TYPE);
        let noise = spec.suppress_silence.then_some(COMFORT_NOISE);
        let numbers = spec.codecs.iter().map(|&kind| number(kind));
        media_line(
            &mut out,
            b"RTP/AVP",
            numbers.chain(noise).chain([EVENTS_PAYLOAD_TYPE]),
        );
        for &kind in &spec.codecs {
            codec_lines(&mut out, number(kind), &Format::new(kind));
        }
        other_lines(&mut out, noise, Some(EVENTS_PAYLOAD_TYPE));
        write(
            &mut out,
            format_args!(
                "a=ptime:{}\r\na=rtcp-mux\r\na=sendrecv\r\n",
                spec.packet_time_ms
            ),
        );
        self.complete(out)
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::SendRecv => "sendrecv",
        Direction::SendOnly => "sendonly",
        Direction::RecvOnly => "recvonly",
        Direction::Inactive => "inactive",
    }
}

fn write(out: &mut Vec<u8>, text: core::fmt::Arguments<'_>) {
    // Writing to a Vec cannot fail.
    let _ = out.write_fmt(text);
}

/// The `m=` line with a placeholder port.
fn media_line(out: &mut Vec<u8>, protocol: &[u8], numbers: impl Iterator<Item = u8>) {
    out.extend_from_slice(b"m=audio 9 ");
    out.extend_from_slice(protocol);
    for number in numbers {
        write(out, format_args!(" {number}"));
    }
    out.extend_from_slice(b"\r\n");
}

fn codec_lines(out: &mut Vec<u8>, number: u8, format: &Format) {
    let kind = format.kind();
    write(
        out,
        format_args!("a=rtpmap:{number} {}/{}", kind.name(), kind.rtp_clock()),
    );
    match kind.sdp_channels() {
        1 => out.extend_from_slice(b"\r\n"),
        channels => write(out, format_args!("/{channels}\r\n")),
    }
    if let Some(fmtp) = format.fmtp() {
        write(out, format_args!("a=fmtp:{number} {fmtp}\r\n"));
    }
}

fn other_lines(out: &mut Vec<u8>, noise: Option<u8>, events: Option<u8>) {
    if let Some(noise) = noise {
        write(out, format_args!("a=rtpmap:{noise} CN/8000\r\n"));
    }
    if let Some(events) = events {
        write(
            out,
            format_args!("a=rtpmap:{events} telephone-event/8000\r\na=fmtp:{events} 0-16\r\n"),
        );
    }
}
