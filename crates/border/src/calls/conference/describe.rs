//! Session descriptions of conferences (RFC 3264, RFC 8866): codecs in the configured order, telephone events,
//! comfort noise, packet times.

use codec::{Format, Kind};
use config::ConferenceSpec;
use media::conference::VoiceFormat;
use serde::{Deserialize, Serialize};
use std::io::Write;
use wire::sdp::{Codec, Direction, Media, Sdp};

/// Payload types with a dynamic assignment (RFC 3551 section 6), and those in our first offers.
const DYNAMIC_PAYLOAD_TYPES: core::ops::RangeInclusive<u8> = 96..=127;
const OPUS_PAYLOAD_TYPE: u8 = 96;
const EVENTS_PAYLOAD_TYPE: u8 = 101;
const OTHER_EVENTS_PAYLOAD_TYPE: u8 = 102;
const EVENTS: &[u8] = b"telephone-event";
/// Clock rate of telephone events where it is not that of the codec.
const EVENTS_CLOCK: u32 = 8_000;
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
    let ours = theirs.answer(&Format::of_decoder(kind)).unwrap_or(theirs);
    let named = |name: &[u8], clock: u32| {
        let found = media
            .codecs()
            .find(|codec| codec.name.eq_ignore_ascii_case(name) && codec.clock_rate == clock);
        found.map(|codec| codec.payload_type)
    };
    // Events have the clock rate of the codec beside them (RFC 4733 section 2.1); some peers know the usual one only.
    let events = [kind.rtp_clock(), EVENTS_CLOCK]
        .into_iter()
        .find_map(|clock| Some((named(EVENTS, clock)?, clock)));
    // Comfort noise has the clock rate of the codec (RFC 3389 section 4), which is 8000 for all of ours that need it.
    let noise = match kind.has_own_silence() {
        true => None,
        false => named(b"CN", 8_000),
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
            events: events.map(|(number, _)| number),
            events_clock: events.map_or(EVENTS_CLOCK, |(_, clock)| clock),
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

/// A media line of the last description.
#[derive(Debug, Serialize, Deserialize)]
struct DescribedLine {
    kind: Vec<u8>,
    protocol: Vec<u8>,
    /// The first format.
    format: Vec<u8>,
}

impl DescribedLine {
    /// The line of our first offer.
    fn audio() -> DescribedLine {
        DescribedLine {
            kind: b"audio".to_vec(),
            protocol: b"RTP/AVP".to_vec(),
            format: b"0".to_vec(),
        }
    }

    fn write_rejected(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"m=");
        out.extend_from_slice(&self.kind);
        out.extend_from_slice(b" 0 ");
        out.extend_from_slice(&self.protocol);
        out.push(b' ');
        out.extend_from_slice(&self.format);
        out.extend_from_slice(b"\r\n");
    }
}

/// Assignment of a dynamic payload type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PayloadUse {
    Codec(Kind),
    /// Telephone events with this clock rate.
    Events(u32),
    Other,
}

/// Our descriptions in one session: the version is incremented with each change. Media lines keep their order and kind
/// (RFC 3264 section 8), dynamic payload types their assignment (section 8.3.2).
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ConferenceDescription {
    session: u64,
    version: u64,
    last: Vec<u8>,
    lines: Vec<DescribedLine>,
    /// Dynamic payload types of the audio in both sides' descriptions; the agreed ones come last.
    numbers: Vec<(u8, PayloadUse)>,
}

impl ConferenceDescription {
    pub(super) fn new(session: u64) -> ConferenceDescription {
        ConferenceDescription {
            session,
            version: 0,
            last: Vec::new(),
            lines: Vec::new(),
            numbers: Vec::new(),
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

    fn assign(&mut self, number: u8, usage: PayloadUse) {
        self.numbers.retain(|(existing, _)| *existing != number);
        self.numbers.push((number, usage));
    }

    /// The dynamic payload type for `usage`: the assigned one, or else `usual` if it is free, or the next free one.
    fn number_for(&mut self, usage: PayloadUse, usual: u8) -> u8 {
        let mut known = self.numbers.iter().rev();
        if let Some((number, _)) = known.find(|(_, existing)| *existing == usage) {
            return *number;
        }
        let is_free = |number: &u8| !self.numbers.iter().any(|(existing, _)| existing == number);
        let mut candidates = core::iter::once(usual).chain(DYNAMIC_PAYLOAD_TYPES);
        let number = candidates.find(is_free).unwrap_or(usual);
        self.assign(number, usage);
        number
    }

    /// Notes the payload types of a description of the participant, and the agreed ones.
    pub(super) fn agree(&mut self, theirs: &Sdp<'_>, choice: &VoiceChoice) {
        let Some(media) = theirs.media().nth(choice.line) else {
            return;
        };
        for codec in media.codecs() {
            let usage = match kind_of(&codec) {
                Some(kind) => PayloadUse::Codec(kind),
                None if codec.name.eq_ignore_ascii_case(EVENTS) => {
                    PayloadUse::Events(codec.clock_rate)
                }
                None => PayloadUse::Other,
            };
            if DYNAMIC_PAYLOAD_TYPES.contains(&codec.payload_type) {
                self.assign(codec.payload_type, usage);
            }
        }
        let voice = &choice.voice;
        if DYNAMIC_PAYLOAD_TYPES.contains(&voice.payload_type) {
            self.assign(voice.payload_type, PayloadUse::Codec(voice.format.kind()));
        }
        if let Some(events) = voice.events {
            self.assign(events, PayloadUse::Events(voice.events_clock));
        }
    }

    /// The answer to an offer: the chosen line is accepted, all others are rejected.
    pub(super) fn answer(&mut self, offer: &Sdp<'_>, choice: &VoiceChoice) -> Vec<u8> {
        self.agree(offer, choice);
        self.lines.clear();
        let mut out = Vec::new();
        for (index, media) in offer.media().enumerate() {
            let line = &media.line;
            let is_chosen = index == choice.line;
            // The anchor writes the SRTP profile.
            let protocol: &[u8] = match is_chosen && media.is_secure() {
                true => b"RTP/AVP",
                false => line.protocol,
            };
            let described = DescribedLine {
                kind: line.kind.to_vec(),
                protocol: protocol.to_vec(),
                format: media.formats().next().unwrap_or(b"0").to_vec(),
            };
            if !is_chosen {
                described.write_rejected(&mut out);
                self.lines.push(described);
                continue;
            }
            self.lines.push(described);
            let voice = &choice.voice;
            let numbers = core::iter::once(voice.payload_type)
                .chain(voice.noise)
                .chain(voice.events);
            media_line(&mut out, protocol, numbers);
            codec_lines(&mut out, voice.payload_type, &choice.ours);
            let events = voice.events.map(|number| (number, voice.events_clock));
            other_lines(&mut out, voice.noise, events.as_slice());
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

    /// An offer of all configured codecs in media line `line`; the other lines of the session are disabled.
    pub(super) fn offer(&mut self, spec: &ConferenceSpec, line: usize) -> Vec<u8> {
        if self.lines.len() <= line {
            self.lines.resize_with(line + 1, DescribedLine::audio);
        }
        let mut codecs: Vec<(Kind, u8)> = Vec::with_capacity(spec.codecs.len());
        let mut clocks: Vec<u32> = Vec::new();
        for &kind in &spec.codecs {
            let number = match kind.payload_type() {
                Some(number) => number,
                None => self.number_for(PayloadUse::Codec(kind), OPUS_PAYLOAD_TYPE),
            };
            codecs.push((kind, number));
            clocks.push(kind.rtp_clock());
        }
        // Also for a peer that has the usual clock rate beside each codec.
        clocks.push(EVENTS_CLOCK);
        let mut events: Vec<(u8, u32)> = Vec::new();
        for clock in clocks {
            if !events.iter().any(|(_, existing)| *existing == clock) {
                let usual = match clock {
                    EVENTS_CLOCK => EVENTS_PAYLOAD_TYPE,
                    _ => OTHER_EVENTS_PAYLOAD_TYPE,
                };
                let number = self.number_for(PayloadUse::Events(clock), usual);
                events.push((number, clock));
            }
        }
        let noise = spec.suppress_silence.then_some(COMFORT_NOISE);
        let mut out = Vec::new();
        for (index, described) in self.lines.iter().enumerate() {
            if index != line {
                described.write_rejected(&mut out);
                continue;
            }
            let numbers = codecs.iter().map(|(_, number)| *number);
            let others = events.iter().map(|(number, _)| *number);
            media_line(
                &mut out,
                &described.protocol,
                numbers.chain(noise).chain(others),
            );
            for &(kind, number) in &codecs {
                codec_lines(&mut out, number, &Format::of_decoder(kind));
            }
            other_lines(&mut out, noise, &events);
            write(
                &mut out,
                format_args!(
                    "a=ptime:{}\r\na=rtcp-mux\r\na=sendrecv\r\n",
                    spec.packet_time_ms
                ),
            );
        }
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

fn other_lines(out: &mut Vec<u8>, noise: Option<u8>, events: &[(u8, u32)]) {
    if let Some(noise) = noise {
        write(out, format_args!("a=rtpmap:{noise} CN/8000\r\n"));
    }
    for (number, clock) in events {
        write(
            out,
            format_args!("a=rtpmap:{number} telephone-event/{clock}\r\na=fmtp:{number} 0-16\r\n"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn spec() -> Arc<ConferenceSpec> {
        let text = "[[interface]]\nname='a'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\n\
            media={address='192.0.2.1'}\n[[conference]]\nname='c'\nnumber=['800']\n";
        let config = config::parse(text, "test").unwrap();
        config.conferences[0].clone()
    }

    /// An offer or answer with these lines after the session part.
    fn session(lines: &str) -> Vec<u8> {
        let session = "v=0\r\no=x 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\n";
        format!("{session}{lines}").into_bytes()
    }

    fn answered(description: &mut ConferenceDescription, offer: &[u8]) -> (VoiceChoice, String) {
        let sdp = Sdp::parse(offer).unwrap();
        let choice = choose_from_offer(&spec(), &sdp, false).unwrap();
        let answer = description.answer(&sdp, &choice);
        (choice, String::from_utf8(answer).unwrap())
    }

    fn offered(description: &mut ConferenceDescription, line: usize) -> String {
        String::from_utf8(description.offer(&spec(), line)).unwrap()
    }

    fn media_lines(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.starts_with("m=")).collect()
    }

    const VIDEO: &str = "m=video 4002 RTP/AVP 98\r\na=rtpmap:98 VP8/90000\r\n";

    #[test]
    fn later_offer_keeps_media_lines_and_payload_types() {
        let audio = "m=audio 4000 RTP/AVP 107 96 97\r\na=rtpmap:107 opus/48000/2\r\n\
            a=rtpmap:96 telephone-event/48000\r\na=rtpmap:97 speex/16000\r\n";
        for (lines, line) in [
            (format!("{audio}{VIDEO}"), 0),
            (format!("{VIDEO}{audio}"), 1),
        ] {
            let mut description = ConferenceDescription::new(1);
            let (choice, _) = answered(&mut description, &session(&lines));
            assert_eq!(choice.line, line);
            for _ in 0..2 {
                let offer = offered(&mut description, line);
                let media = media_lines(&offer);
                assert_eq!(media.len(), 2, "{offer}");
                assert_eq!(media[1 - line], "m=video 0 RTP/AVP 98");
                assert!(media[line].starts_with("m=audio 9 RTP/AVP "), "{offer}");
                for kept in [
                    "a=rtpmap:107 opus/48000/2\r\n",
                    "a=rtpmap:96 telephone-event/48000\r\n",
                    "a=rtpmap:101 telephone-event/8000\r\n",
                ] {
                    assert!(offer.contains(kept), "{offer}");
                }
                assert!(!offer.contains("a=rtpmap:97 "), "{offer}");
            }
        }
    }

    /// Senders leave it out otherwise (RFC 7587 section 6.1), and the decoder of a participant uses it.
    #[test]
    fn redundancy_of_opus_is_requested() {
        let mut description = ConferenceDescription::new(1);
        let audio = "m=audio 4000 RTP/AVP 107\r\na=rtpmap:107 opus/48000/2\r\n";
        let (choice, answer) = answered(&mut description, &session(audio));
        let offer = offered(&mut description, 0);
        for ours in [answer, offer] {
            assert!(ours.contains("a=fmtp:107 useinbandfec=1\r\n"), "{ours}");
        }
        // The participant has not requested it.
        assert_eq!(choice.voice.format, Format::new(Kind::Opus));
    }

    #[test]
    fn payload_type_of_another_codec_is_not_used_for_ours() {
        let mut description = ConferenceDescription::new(1);
        let audio = "m=audio 4000 RTP/AVP 0 96 101 102\r\na=rtpmap:96 iLBC/8000\r\n\
            a=rtpmap:101 speex/8000\r\na=rtpmap:102 telephone-event/8000\r\n";
        answered(&mut description, &session(audio));
        let offer = offered(&mut description, 0);
        for assigned in [
            "a=rtpmap:97 opus/48000/2\r\n",
            "a=rtpmap:98 telephone-event/48000\r\n",
            "a=rtpmap:102 telephone-event/8000\r\n",
        ] {
            assert!(offer.contains(assigned), "{offer}");
        }
    }

    #[test]
    fn payload_types_of_the_answer_are_kept() {
        let mut description = ConferenceDescription::new(1);
        let first = offered(&mut description, 0);
        assert!(first.contains("a=rtpmap:96 opus/48000/2\r\n"), "{first}");
        let answer = session(
            "m=audio 4000 RTP/AVP 111 110\r\na=rtpmap:111 opus/48000/2\r\n\
            a=rtpmap:110 telephone-event/48000\r\n",
        );
        let sdp = Sdp::parse(&answer).unwrap();
        let choice = choose_from_answer(&spec(), &sdp, false).unwrap();
        assert_eq!(
            (choice.voice.events, choice.voice.events_clock),
            (Some(110), 48_000)
        );
        description.agree(&sdp, &choice);
        let offer = offered(&mut description, 0);
        assert!(offer.contains("a=rtpmap:111 opus/48000/2\r\n"), "{offer}");
        assert!(!offer.contains("a=rtpmap:96 "), "{offer}");
    }

    #[test]
    fn telephone_events_have_the_clock_rate_of_the_codec() {
        for (events, expected) in [
            ("102 101", Some((102, 48_000))),
            ("101 102", Some((102, 48_000))),
            ("102", Some((102, 48_000))),
            ("101", Some((101, 8_000))),
            ("", None),
        ] {
            let mut description = ConferenceDescription::new(1);
            let mut audio = format!("m=audio 4000 RTP/AVP 96 {events}\r\n");
            audio.push_str("a=rtpmap:96 opus/48000/2\r\n");
            for (number, clock) in [(101, 8_000), (102, 48_000)] {
                if events.contains(&number.to_string()) {
                    audio.push_str(&format!("a=rtpmap:{number} telephone-event/{clock}\r\n"));
                }
            }
            let (choice, answer) = answered(&mut description, &session(&audio));
            let voice = choice.voice;
            let chosen = voice.events.map(|number| (number, voice.events_clock));
            assert_eq!(chosen, expected, "{audio}");
            match expected {
                Some((number, clock)) => {
                    assert!(answer.contains(&format!(":{number} telephone-event/{clock}\r\n")));
                }
                None => assert!(!answer.contains("telephone-event")),
            }
        }
        let mut description = ConferenceDescription::new(1);
        let both = "m=audio 4000 RTP/AVP 8 102 101\r\na=rtpmap:102 telephone-event/48000\r\n\
            a=rtpmap:101 telephone-event/8000\r\n";
        let (choice, _) = answered(&mut description, &session(both));
        assert_eq!(
            choice.voice.events,
            Some(101),
            "beside a codec with 8000 Hz"
        );
    }
}
