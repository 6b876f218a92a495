//! What a conference writes about its voice, and what it reads (RFC 3264, RFC 8866): codecs in the room's order, telephone
//! events, comfort noise, packet times.

use crate::config::Room;
use codec::{Format, Kind};
use media::room::Voice;
use std::io::Write;
use wire::sdp::{Codec, Direction, Media, Sdp};

/// The payload types of what has no static one, in offers of ours.
const OPUS: u8 = 96;
const EVENTS: u8 = 101;
/// Comfort noise (RFC 3389 section 4).
const NOISE: u8 = 13;

/// What is agreed of a description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Which media line has the voice.
    pub(super) line: usize,
    /// The codec with the payload types of the description.
    pub(super) voice: Voice,
    /// What we say about the codec ourselves.
    ours: Format,
    /// What we send and receive.
    direction: Direction,
    mux: bool,
}

/// A media line in which a voice may be.
fn speaks(media: &Media<'_, '_>, sealed: bool) -> bool {
    media.line.kind.eq_ignore_ascii_case(b"audio")
        && !media.is_rejected()
        && media.is_rtp()
        && (sealed || !media.is_secure())
}

fn kind_of(codec: &Codec<'_>) -> Option<Kind> {
    Kind::of_rtpmap(codec.name, codec.clock_rate, codec.channels)
}

/// The codec that would be chosen of an offer.
pub(super) fn preferred(room: &Room, offer: &[u8]) -> Option<Kind> {
    let sdp = Sdp::parse(offer).ok()?;
    Some(choose(room, &sdp, true)?.voice.sends.kind())
}

/// Chooses of an offer, in the room's order; none where there is no codec that the room takes. `sealed`: SRTP is taken.
pub(super) fn choose(room: &Room, sdp: &Sdp<'_>, sealed: bool) -> Option<Choice> {
    let mut lines = sdp.media().enumerate();
    lines.find_map(|(line, media)| {
        if !speaks(&media, sealed) {
            return None;
        }
        room.codecs.iter().find_map(|&kind| {
            let codec = media.codecs().find(|codec| kind_of(codec) == Some(kind))?;
            Some(choice(room, line, &media, &codec, kind))
        })
    })
}

/// What an answer to an offer of ours has chosen: the first of its codecs that the room takes.
pub(super) fn chosen(room: &Room, sdp: &Sdp<'_>, sealed: bool) -> Option<Choice> {
    let mut lines = sdp.media().enumerate();
    lines.find_map(|(line, media)| {
        if !speaks(&media, sealed) {
            return None;
        }
        media.codecs().find_map(|codec| {
            let kind = kind_of(&codec).filter(|kind| room.codecs.contains(kind))?;
            Some(choice(room, line, &media, &codec, kind))
        })
    })
}

fn choice(
    room: &Room,
    line: usize,
    media: &Media<'_, '_>,
    codec: &Codec<'_>,
    kind: Kind,
) -> Choice {
    let theirs = Format::parse(kind, codec.fmtp);
    let ours = theirs.answer(&Format::new(kind)).unwrap_or(theirs);
    let named = |name: &[u8]| {
        let found = media
            .codecs()
            .find(|codec| codec.name.eq_ignore_ascii_case(name) && codec.clock_rate == 8000);
        found.map(|codec| codec.payload_type)
    };
    let noise = match kind {
        Kind::G729 | Kind::Opus => None,
        // It comes at the clock of the codec (RFC 3389 section 4), which is 8000 for all of ours that need it.
        Kind::Pcma | Kind::Pcmu | Kind::G722 => named(b"CN"),
    };
    let sends = match (kind, theirs, ours) {
        // Descriptions of noise are sent only where both have them.
        (Kind::G729, _, agreed) => agreed,
        (_, theirs, _) => theirs,
    };
    let suppress = room.suppress_silence && (noise.is_some() || kind.has_own_silence());
    let most = media.section.attribute(b"maxptime").and_then(milliseconds);
    let wished = media.ptime().unwrap_or(room.packet_ms);
    Choice {
        line,
        voice: Voice {
            sends,
            payload_type: codec.payload_type,
            events: named(b"telephone-event"),
            noise,
            packet_ms: kind.packet_time_within(wished.min(most.unwrap_or(wished))),
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

/// Our descriptions in one session: each that differs from the one before counts its version on.
#[derive(Debug)]
pub(super) struct Description {
    session: u64,
    version: u64,
    last: Vec<u8>,
}

impl Description {
    pub(super) fn new(session: u64) -> Description {
        Description {
            session,
            version: 0,
            last: Vec::new(),
        }
    }

    /// Puts the beginning before media lines. Address and ports are filled in where the description is anchored; these say only
    /// that there are some.
    fn whole(&mut self, media: Vec<u8>) -> Vec<u8> {
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

    /// The answer to an offer: the chosen line, and all others rejected.
    pub(super) fn answer(&mut self, offer: &Sdp<'_>, choice: &Choice) -> Vec<u8> {
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
            // Protection is written where the description is anchored.
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
        self.whole(out)
    }

    /// An offer of all that the room takes, in media line `line`; those before it are disabled.
    pub(super) fn offer(&mut self, room: &Room, line: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..line {
            out.extend_from_slice(b"m=audio 0 RTP/AVP 0\r\n");
        }
        let number = |kind: Kind| kind.payload_type().unwrap_or(OPUS);
        let noise = room.suppress_silence.then_some(NOISE);
        let numbers = room.codecs.iter().map(|&kind| number(kind));
        media_line(&mut out, b"RTP/AVP", numbers.chain(noise).chain([EVENTS]));
        for &kind in &room.codecs {
            codec_lines(&mut out, number(kind), &Format::new(kind));
        }
        other_lines(&mut out, noise, Some(EVENTS));
        write(
            &mut out,
            format_args!("a=ptime:{}\r\na=rtcp-mux\r\na=sendrecv\r\n", room.packet_ms),
        );
        self.whole(out)
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

/// The `m=` line; the port only says that it is open.
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
