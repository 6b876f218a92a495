//! Transcoding between the sides of a call: our codecs are added to offers towards a side with a transcoding policy,
//! and if the answer leaves no common codec, the forwarder gets a transcoding plan.
//!
//! RFC 3264 sections 5 to 8 bind both sides: a payload type that we assigned towards a side keeps its meaning for the
//! whole session, and an answer contains only payload types of the offer.

use crate::Side;
use crate::sdp::words;
use codec::format::Format;
use codec::kind::Kind;
use config::{TranscodeWhen, Transcoding};
use media::{EventMapping, PayloadClock, TranscodePlan};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::io::Write as _;
use std::sync::Arc;
use wire::sdp::{Media, Sdp};

/// A codec with its payload type.
pub type Numbered = (u8, Format);
/// Dynamic payload types (RFC 3551 section 6).
const DYNAMIC: core::ops::RangeInclusive<u8> = 96..=127;
/// Default packet time in milliseconds.
const PACKET_MS: u32 = 20;
/// Encodings that carry or repair those of codecs (RFC 2198, RFC 4588, RFC 5109, RFC 6682, RFC 8627): no audio without
/// one.
pub(crate) const REDUNDANCY: [&[u8]; 6] = [
    b"red",
    b"rtx",
    b"ulpfec",
    b"parityfec",
    b"1d-interleaved-parityfec",
    b"flexfec",
];

/// Codecs in a line of a description.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct LineCodecs {
    /// Supported codecs, in the order of the line.
    known: SmallVec<[Numbered; 4]>,
    /// Whether the line has an unsupported codec.
    has_unknown: bool,
    /// The first payload type of a codec, supported or not.
    first: Option<u8>,
    /// Telephone events (RFC 4733).
    events: SmallVec<[PayloadClock; 2]>,
    /// Comfort noise (RFC 3389).
    noise: Option<u8>,
    packet_ms: Option<u32>,
    /// All payload types.
    payload_types: SmallVec<[u8; 8]>,
}

impl LineCodecs {
    /// `None` for a rejected line, and for lines other than audio over RTP that we can decrypt.
    fn of(media: &Media<'_, '_>, readable: bool) -> Option<LineCodecs> {
        let speech = media.line.kind == b"audio" && media.is_rtp();
        if !speech || media.is_rejected() || (media.is_secure() && !readable) {
            return None;
        }
        let mut codecs = LineCodecs {
            packet_ms: media.ptime(),
            ..LineCodecs::default()
        };
        for format in media.formats().take(128) {
            let number = core::str::from_utf8(format)
                .ok()
                .and_then(|text| text.parse::<u8>().ok())
                .filter(|number| *number < 128);
            let Some(number) = number else {
                codecs.has_unknown = true;
                continue;
            };
            codecs.payload_types.push(number);
            let Some(codec) = media.codec(number) else {
                codecs.has_unknown = true;
                codecs.first.get_or_insert(number);
                continue;
            };
            if codec.name.eq_ignore_ascii_case(b"telephone-event") {
                codecs.events.push((number, codec.clock_rate));
            } else if codec.name.eq_ignore_ascii_case(b"CN") {
                if codec.clock_rate == 8000 {
                    codecs.noise = Some(number);
                }
            } else if !REDUNDANCY
                .iter()
                .any(|name| codec.name.eq_ignore_ascii_case(name))
            {
                codecs.first.get_or_insert(number);
                match Kind::of_rtpmap(codec.name, codec.clock_rate, codec.channels)
                    .filter(|kind| kind.is_available())
                {
                    Some(kind) => codecs.known.push((number, Format::parse(kind, codec.fmtp))),
                    None => codecs.has_unknown = true,
                }
            }
        }
        Some(codecs)
    }

    fn has(&self, kind: Kind) -> bool {
        self.known.iter().any(|(_, format)| format.kind() == kind)
    }

    /// The telephone events at a clock rate, or else the first ones.
    fn events_at(&self, clock: u32) -> Option<PayloadClock> {
        let fitting = self.events.iter().find(|(_, own)| *own == clock);
        fitting.or(self.events.first()).copied()
    }
}

/// The telephone events that replace detected DTMF tones, for a side that has no telephone events while the other
/// side has. G.729 distorts tones too much for detection.
fn detect_digits_for(
    own: Option<PayloadClock>,
    other: Option<PayloadClock>,
    kind: Kind,
) -> Option<PayloadClock> {
    other.filter(|_| own.is_none() && kind.spec().carries_tones)
}

/// A codec with our parameters. A side that pauses in silence would leave the other one, which did not agree to that,
/// without packets: Annex B of G.729 is refused.
fn without_pauses(kind: Kind) -> Format {
    match Format::of_decoder(kind) {
        Format::G729 { .. } => Format::G729 { annex_b: false },
        format => format,
    }
}

/// Codecs of a description, for a sender of media to its side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AudioDescription {
    /// Index of the line.
    pub line: u8,
    /// Whether the line uses SRTP.
    pub secure: bool,
    /// Supported codecs, in the order of the line.
    pub codecs: SmallVec<[Numbered; 4]>,
    /// Packet time in milliseconds, if stated.
    pub packet_ms: Option<u32>,
}

impl AudioDescription {
    /// The first line with a supported codec.
    pub fn of(sdp: &[u8]) -> Option<AudioDescription> {
        let sdp = Sdp::parse(sdp).ok()?;
        let mut lines = sdp.media().take(super::sdp::MAX_MEDIA).enumerate();
        lines.find_map(|(line, media)| {
            let codecs = LineCodecs::of(&media, true).filter(|codecs| !codecs.known.is_empty())?;
            Some(AudioDescription {
                line: u8::try_from(line).ok()?,
                secure: media.is_secure(),
                codecs: codecs.known,
                packet_ms: codecs.packet_ms,
            })
        })
    }
}

/// Changes to a line.
#[derive(Debug, Default)]
struct LineEdit {
    /// The new payload types.
    formats: Vec<u8>,
    /// Payload types whose attributes are removed.
    dropped: SmallVec<[u8; 8]>,
    /// Attributes that are appended.
    attributes: Vec<u8>,
    /// Whether packet times are removed, because the packets are ours.
    drops_packet_time: bool,
}

impl LineEdit {
    fn keep(&mut self, number: u8) {
        self.formats.push(number);
    }

    /// Adds a codec.
    fn add(&mut self, number: u8, kind: Kind, fmtp: Option<&str>) {
        self.formats.push(number);
        let (name, clock) = (kind.name(), kind.rtp_clock());
        // Writing to a Vec cannot fail.
        let _ = match kind.sdp_channels() {
            1 => write!(self.attributes, "a=rtpmap:{number} {name}/{clock}\r\n"),
            channels => write!(
                self.attributes,
                "a=rtpmap:{number} {name}/{clock}/{channels}\r\n"
            ),
        };
        if let Some(fmtp) = fmtp {
            let _ = write!(self.attributes, "a=fmtp:{number} {fmtp}\r\n");
        }
    }

    /// Adds telephone events with the sixteen digits and flash.
    fn add_events(&mut self, (number, clock): PayloadClock) {
        self.formats.push(number);
        let _ = write!(
            self.attributes,
            "a=rtpmap:{number} telephone-event/{clock}\r\na=fmtp:{number} 0-16\r\n"
        );
    }

    fn drops(&self, attribute: &[u8]) -> bool {
        let (name, value) = match attribute.iter().position(|byte| *byte == b':') {
            Some(colon) => attribute.split_at(colon),
            None => (attribute, &b""[..]),
        };
        match name {
            b"rtpmap" | b"fmtp" | b"rtcp-fb" => {
                let number = words(value.get(1..).unwrap_or_default()).next();
                let number = number.and_then(|word| core::str::from_utf8(word).ok());
                number
                    .and_then(|word| word.parse().ok())
                    .is_some_and(|number: u8| self.dropped.contains(&number))
            }
            b"ptime" | b"maxptime" => self.drops_packet_time,
            _ => false,
        }
    }
}

/// Writes a description with its lines changed.
fn edit(sdp: &[u8], edits: &[Option<LineEdit>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sdp.len() + 128);
    let mut at: Option<usize> = None;
    let edit_of = |at: Option<usize>| at.and_then(|at| edits.get(at)?.as_ref());
    let close = |at: Option<usize>, out: &mut Vec<u8>| {
        if let Some(edit) = edit_of(at).filter(|edit| !edit.attributes.is_empty()) {
            if !out.ends_with(b"\n") {
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(&edit.attributes);
        }
    };
    for raw in sdp.split_inclusive(|&byte| byte == b'\n') {
        let line = raw.trim_ascii_end();
        let end = raw.get(line.len()..).unwrap_or_default();
        match line {
            [b'm', b'=', rest @ ..] => {
                close(at, &mut out);
                at = Some(at.map_or(0, |at| at + 1));
                match edit_of(at) {
                    Some(edit) => {
                        out.extend_from_slice(b"m=");
                        for (count, word) in words(rest).take(3).enumerate() {
                            if count > 0 {
                                out.push(b' ');
                            }
                            out.extend_from_slice(word);
                        }
                        for number in &edit.formats {
                            let _ = write!(out, " {number}");
                        }
                    }
                    None => out.extend_from_slice(line),
                }
            }
            [b'a', b'=', rest @ ..] if edit_of(at).is_some_and(|edit| edit.drops(rest)) => continue,
            _ => out.extend_from_slice(line),
        }
        out.extend_from_slice(end);
    }
    close(at, &mut out);
    out
}

/// An offer that has been forwarded.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ForwardedOffer {
    from: Side,
    codecs: LineCodecs,
    /// Codecs of the offerer that were kept.
    forwarded: SmallVec<[Kind; 4]>,
    /// Codecs and events that we added.
    added: SmallVec<[Numbered; 4]>,
    added_events: SmallVec<[PayloadClock; 2]>,
}

/// Payload types in the descriptions of a side, with their meaning; `None`: another codec.
type DescribedTypes = SmallVec<[(u8, Option<AssignedType>); 8]>;

/// Codec state of a line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct CodecLine {
    offered: Option<ForwardedOffer>,
    /// Transcoding plan for the media of each side.
    plans: [Option<Arc<TranscodePlan>>; 2],
    /// The answerer's payload types that the offerer does not know, if nothing is transcoded.
    refused: Option<(Side, SmallVec<[u8; 4]>)>,
    /// Codec of each side when the line was last transcoded: a description towards it contains it again.
    last_codecs: [Option<Kind>; 2],
    /// Codecs in the last report.
    reported: Option<[Kind; 2]>,
    /// Payload types that we assigned towards each side.
    assigned: [SmallVec<[(u8, AssignedType); 4]>; 2],
    /// Those of each side.
    described: [DescribedTypes; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum AssignedType {
    Codec(Kind),
    Events(u32),
}

impl CodecLine {
    /// Notes the payload types of a side's description: they keep their meaning in our further offers to it (RFC 3264
    /// section 8.3.2).
    fn describe(&mut self, side: Side, codecs: &LineCodecs) {
        let Some(described) = self.described.get_mut(side.index()) else {
            return;
        };
        for &number in &codecs.payload_types {
            let codec = codecs.known.iter().find(|(known, _)| *known == number);
            let codec = codec.map(|(_, format)| AssignedType::Codec(format.kind()));
            let events = codecs.events.iter().find(|(known, _)| *known == number);
            let events = events.map(|(_, clock)| AssignedType::Events(*clock));
            let meaning = codec.or(events);
            match described.iter_mut().find(|(known, _)| *known == number) {
                Some(known) => known.1 = meaning,
                None => described.push((number, meaning)),
            }
        }
    }

    /// Payload type for an addition of ours towards a side: the one assigned before, the side's own one, the static
    /// one, or an unused one.
    fn payload_type_for(
        &mut self,
        towards: Side,
        meaning: AssignedType,
        used: &[u8],
    ) -> Option<u8> {
        let assigned = self.assigned.get_mut(towards.index())?;
        let described = self.described.get(towards.index())?;
        let own = described
            .iter()
            .filter_map(|&(number, known)| Some((number, known?)));
        let mut before = assigned.iter().copied().chain(own);
        let before = before.find(|(number, known)| *known == meaning && !used.contains(number));
        if let Some((number, _)) = before {
            return Some(number);
        }
        if let AssignedType::Codec(kind) = meaning
            && let Some(number) = kind.payload_type().filter(|number| !used.contains(number))
        {
            return Some(number);
        }
        let is_free = |number: &u8| {
            !used.contains(number) && !assigned.iter().any(|(known, _)| known == number)
        };
        let is_unknown = |number: &u8| !described.iter().any(|(known, _)| known == number);
        let number = DYNAMIC
            .rev()
            .find(|number| is_free(number) && is_unknown(number))
            .or_else(|| DYNAMIC.rev().find(is_free))?;
        assigned.push((number, meaning));
        Some(number)
    }
}

/// Codec state of a call.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CallCodecs {
    lines: Vec<CodecLine>,
}

impl CallCodecs {
    /// Processes an offer of `from`; returns the offer for the other side if it differs. `readable`: encrypted media
    /// is decrypted by us.
    pub fn offer(
        &mut self,
        from: Side,
        policy: &Transcoding,
        offer: &[u8],
        readable: bool,
    ) -> Option<Vec<u8>> {
        let sdp = Sdp::parse(offer).ok()?;
        let mut edits = Vec::new();
        for (index, media) in sdp.media().enumerate() {
            if self.lines.len() <= index {
                self.lines.push(CodecLine::default());
            }
            let line = self.lines.get_mut(index)?;
            line.offered = None;
            let codecs = LineCodecs::of(&media, readable).filter(|codecs| !codecs.known.is_empty());
            edits.push(codecs.and_then(|codecs| line.extend_offer(from, policy, codecs)));
        }
        edits
            .iter()
            .any(Option::is_some)
            .then(|| edit(offer, &edits))
    }

    /// Processes an answer of `from` to the last offer; returns the answer for the offerer if it differs.
    pub fn answer(&mut self, from: Side, answer: &[u8], readable: bool) -> Option<Vec<u8>> {
        let sdp = Sdp::parse(answer).ok()?;
        let mut edits = Vec::new();
        for (line, media) in self.lines.iter_mut().zip(sdp.media()) {
            let codecs = LineCodecs::of(&media, readable);
            edits.push(match line.offered.clone() {
                Some(offered) if offered.from != from => line.evaluate_answer(&offered, codecs),
                Some(_) => None,
                None => {
                    // The offer had no supported codec: nothing is transcoded any more.
                    line.plans = [None, None];
                    line.refused = None;
                    None
                }
            });
        }
        edits
            .iter()
            .any(Option::is_some)
            .then(|| edit(answer, &edits))
    }

    /// Transcoding plan for the media of a side on a line.
    pub fn plan(&self, line: usize, side: usize) -> Option<Arc<TranscodePlan>> {
        self.lines.get(line)?.plans.get(side)?.clone()
    }

    /// Payload types of a side that the other side does not know.
    pub fn refused(&self, line: usize, side: usize) -> SmallVec<[u8; 4]> {
        let refused = self.lines.get(line).and_then(|line| line.refused.as_ref());
        refused
            .filter(|(of, _)| of.index() == side)
            .map(|(_, types)| types.clone())
            .unwrap_or_default()
    }

    /// Lines whose transcoding has begun or changed since the last call, with the codecs of caller and callee.
    pub fn take_changes(&mut self) -> SmallVec<[(usize, [Kind; 2]); 1]> {
        let mut changes = SmallVec::new();
        for (index, line) in self.lines.iter_mut().enumerate() {
            let now = match (&line.plans, line.last_codecs) {
                ([Some(_), Some(_)], [Some(caller), Some(callee)]) => Some([caller, callee]),
                _ => None,
            };
            if line.reported != now {
                line.reported = now;
                changes.extend(now.map(|kinds| (index, kinds)));
            }
        }
        changes
    }
}

impl CodecLine {
    /// Changes to a line of an offer.
    fn extend_offer(
        &mut self,
        from: Side,
        policy: &Transcoding,
        codecs: LineCodecs,
    ) -> Option<LineEdit> {
        let towards = from.other();
        self.describe(from, &codecs);
        let always = policy.when == TranscodeWhen::Always && !policy.codecs.is_empty();
        let last_codecs = self.last_codecs.get(towards.index()).copied().flatten();
        let kinds = policy.codecs.iter().copied();
        let kinds: SmallVec<[Kind; 4]> = kinds
            .chain(last_codecs.filter(|kind| !policy.codecs.contains(kind)))
            .collect();
        let is_allowed = |kind: Kind| !always || kinds.contains(&kind);
        // Comfort noise is of use with a codec of the offerer only: what we send for it has no pauses.
        let may_relay = codecs
            .known
            .iter()
            .any(|(_, format)| is_allowed(format.kind()));
        let mut edit = LineEdit::default();
        let mut offered = ForwardedOffer {
            from,
            forwarded: SmallVec::new(),
            added: SmallVec::new(),
            added_events: SmallVec::new(),
            codecs: codecs.clone(),
        };
        let known = |number: u8| codecs.known.iter().find(|(own, _)| *own == number);
        let is_auxiliary = |number: u8| {
            (codecs.noise == Some(number) && may_relay)
                || codecs.events.iter().any(|(own, _)| *own == number)
        };
        for &number in &codecs.payload_types {
            let is_kept = match known(number) {
                Some((_, format)) => {
                    let forwarded = is_allowed(format.kind());
                    if forwarded {
                        offered.forwarded.push(format.kind());
                    }
                    forwarded
                }
                None => !always || is_auxiliary(number),
            };
            match is_kept {
                true => edit.keep(number),
                false => edit.dropped.push(number),
            }
        }
        let mut used = codecs.payload_types.clone();
        for kind in kinds {
            if codecs.has(kind) {
                continue;
            }
            let Some(number) = self.payload_type_for(towards, AssignedType::Codec(kind), &used)
            else {
                continue;
            };
            used.push(number);
            let format = without_pauses(kind);
            edit.add(number, kind, format.fmtp().as_deref());
            offered.added.push((number, format));
        }
        // Telephone events have the clock rate of the audio codec beside them (RFC 4733 section 2.1).
        let clocks: SmallVec<[u32; 2]> = offered
            .added
            .iter()
            .map(|(_, format)| format.kind().rtp_clock())
            .collect();
        for clock in clocks {
            let known = codecs.events.iter().chain(&offered.added_events);
            if known.clone().any(|(_, own)| *own == clock) {
                continue;
            }
            if let Some(number) = self.payload_type_for(towards, AssignedType::Events(clock), &used)
            {
                used.push(number);
                edit.add_events((number, clock));
                offered.added_events.push((number, clock));
            }
        }
        let changed = !offered.added.is_empty() || !edit.dropped.is_empty();
        self.offered = Some(offered);
        changed.then_some(edit)
    }

    /// Changes to a line of an answer.
    fn evaluate_answer(
        &mut self,
        offered: &ForwardedOffer,
        answered: Option<LineCodecs>,
    ) -> Option<LineEdit> {
        self.plans = [None, None];
        self.refused = None;
        let answered = answered?;
        self.describe(offered.from.other(), &answered);
        // The answerer prefers a codec that the offerer does not have, and will send it (RFC 3264 section 6.1).
        let preferred = answered
            .first
            .and_then(|first| answered.known.iter().find(|(number, _)| *number == first))
            .filter(|(_, format)| {
                let mut added = offered.added.iter();
                added.any(|(_, own)| own.kind() == format.kind())
            });
        let has_common = answered.has_unknown
            || answered
                .known
                .iter()
                .any(|(_, format)| offered.forwarded.contains(&format.kind()));
        let is_added = |number: &u8| {
            offered.added.iter().any(|(own, _)| own == number)
                || offered.added_events.iter().any(|(own, _)| own == number)
        };
        if preferred.is_none() && (has_common || answered.known.is_empty()) {
            // Nothing is transcoded; the offerer must not see our additions, nor get their packets.
            let mut refused: SmallVec<[u8; 4]> = SmallVec::new();
            refused.extend(answered.payload_types.iter().copied().filter(is_added));
            if refused.is_empty() {
                return None;
            }
            self.refused = Some((offered.from.other(), refused));
            let mut edit = LineEdit::default();
            for &number in &answered.payload_types {
                match is_added(&number) {
                    true => edit.dropped.push(number),
                    false => edit.keep(number),
                }
            }
            return Some(edit);
        }
        let (Some(&offerer_codec), Some(&answerer_codec)) = (
            offered.codecs.known.first(),
            preferred.or(answered.known.first()),
        ) else {
            return None;
        };
        self.transcode(offered, offerer_codec, &answered, answerer_codec)
    }

    /// Sets up transcoding between the offerer's and the answerer's codec.
    fn transcode(
        &mut self,
        offered: &ForwardedOffer,
        offerer_codec: Numbered,
        answered: &LineCodecs,
        answerer_codec: Numbered,
    ) -> Option<LineEdit> {
        let (kind, other) = (offerer_codec.1.kind(), answerer_codec.1.kind());
        let codecs = &offered.codecs;
        // The offerer may send telephone events even if the answerer does not support them: they become tones then.
        // Comfort noise is not agreed, so that the offerer does not pause: the answerer would get no packets. It is
        // understood if it is sent nevertheless.
        let mut edit = LineEdit {
            drops_packet_time: true,
            dropped: answered.payload_types.clone(),
            ..LineEdit::default()
        };
        let answer = offerer_codec.1.answer(&without_pauses(kind));
        let fmtp = answer.and_then(|format| format.fmtp());
        edit.add(offerer_codec.0, kind, fmtp.as_deref());
        let offerer_events = codecs.events_at(kind.rtp_clock());
        if let Some(events) = offerer_events {
            edit.add_events(events);
        }
        let answerer_events = answered.events_at(other.rtp_clock());
        let mapping =
            |to: Option<PayloadClock>| to.map_or(EventMapping::Tones, EventMapping::Relayed);
        let to_answerer = TranscodePlan {
            from: SmallVec::from_iter([offerer_codec]),
            to: answerer_codec,
            packet_ms: other.packet_time_within(answered.packet_ms.unwrap_or(PACKET_MS)),
            events: offerer_events
                .into_iter()
                .map(|events| (events, mapping(answerer_events)))
                .collect(),
            noise: codecs.noise,
            digits: detect_digits_for(offerer_events, answerer_events, kind),
        };
        // A side sends by the description that it received (RFC 3264 section 5.1), which was ours; payload types of
        // its own description are accepted as well.
        let mut from: SmallVec<[Numbered; 2]> = SmallVec::new();
        for (number, format) in offered.added.iter().chain(&answered.known) {
            let agreed = answered.has(format.kind());
            if agreed && !from.iter().any(|(known, _)| known == number) {
                from.push((*number, *format));
            }
        }
        // The answerer's preferred codec comes first: telephone events before any audio belong to it.
        from.sort_by_key(|(_, format)| format.kind() != other);
        let to_offerer = TranscodePlan {
            from,
            to: offerer_codec,
            packet_ms: kind.packet_time_within(codecs.packet_ms.unwrap_or(PACKET_MS)),
            events: answered
                .events
                .iter()
                .map(|events| (*events, mapping(offerer_events)))
                .collect(),
            noise: answered.noise,
            digits: detect_digits_for(answerer_events, offerer_events, other),
        };
        let mut plans = [Some(Arc::new(to_answerer)), Some(Arc::new(to_offerer))];
        self.last_codecs = [Some(kind), Some(other)];
        if offered.from.index() != 0 {
            plans.reverse();
            self.last_codecs.reverse();
        }
        self.plans = plans;
        Some(edit)
    }
}
