//! Codecs of our own between the sides of a call: descriptions get them on their way to a side that has a policy for it, and where the
//! answer leaves the sides none in common, the forwarder is told how to transcode.
//!
//! RFC 3264 sections 5 to 8 bind both ends: payload types that we gave towards a side keep their meaning for the whole session, and an
//! answer names only what the offer had.

use super::sdp::words;
use crate::call::Side;
use crate::config::{TranscodeWhen, Transcoding};
use codec::format::Format;
use codec::kind::Kind;
use media::{Clocked, Events, RecodePlan};
use smallvec::SmallVec;
use std::io::Write as _;
use std::sync::Arc;
use wire::sdp::{Media, Sdp};

/// A codec under its payload type.
pub(crate) type Numbered = (u8, Format);
/// Payload types that descriptions may give a meaning of their own (RFC 3551 section 6).
const DYNAMIC: core::ops::RangeInclusive<u8> = 96..=127;
/// Milliseconds of a packet where nobody asks for others.
const PACKET_MS: u32 = 20;

/// What a line of a description speaks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Spoken {
    /// Codecs that we have, in its order.
    speech: SmallVec<[Numbered; 4]>,
    /// There is a codec that we do not have.
    foreign: bool,
    /// Telephone events (RFC 4733).
    events: SmallVec<[Clocked; 2]>,
    /// Comfort noise (RFC 3389).
    noise: Option<u8>,
    packet_ms: Option<u32>,
    /// All of its payload types.
    numbers: SmallVec<[u8; 8]>,
}

impl Spoken {
    /// `None` where the line is rejected, or no speech over RTP that we could read.
    fn of(media: &Media<'_, '_>, readable: bool) -> Option<Spoken> {
        let speech = media.line.kind == b"audio" && media.is_rtp();
        if !speech || media.is_rejected() || (media.is_secure() && !readable) {
            return None;
        }
        let mut spoken = Spoken {
            packet_ms: media.ptime(),
            ..Spoken::default()
        };
        for format in media.formats().take(128) {
            let number = core::str::from_utf8(format)
                .ok()
                .and_then(|text| text.parse::<u8>().ok())
                .filter(|number| *number < 128);
            let Some(number) = number else {
                spoken.foreign = true;
                continue;
            };
            spoken.numbers.push(number);
            let Some(codec) = media.codec(number) else {
                spoken.foreign = true;
                continue;
            };
            if codec.name.eq_ignore_ascii_case(b"telephone-event") {
                spoken.events.push((number, codec.clock_rate));
            } else if codec.name.eq_ignore_ascii_case(b"CN") {
                if codec.clock_rate == 8000 {
                    spoken.noise = Some(number);
                }
            } else {
                match Kind::of_rtpmap(codec.name, codec.clock_rate, codec.channels)
                    .filter(|kind| kind.is_available())
                {
                    Some(kind) => spoken
                        .speech
                        .push((number, Format::parse(kind, codec.fmtp))),
                    None => spoken.foreign = true,
                }
            }
        }
        Some(spoken)
    }

    fn has(&self, kind: Kind) -> bool {
        self.speech.iter().any(|(_, format)| format.kind() == kind)
    }

    /// The telephone events for speech at a clock, else any.
    fn events_at(&self, clock: u32) -> Option<Clocked> {
        let fitting = self.events.iter().find(|(_, own)| *own == clock);
        fitting.or(self.events.first()).copied()
    }
}

/// Whether a side that speaks `kind` is listened to for digits: it has no events of its own, and the other side has those under which
/// they go on. G.729 leaves too little of them.
fn listens(own: Option<Clocked>, other: Option<Clocked>, kind: Kind) -> Option<Clocked> {
    other.filter(|_| own.is_none() && kind != Kind::G729)
}

/// The speech of a description, for whoever speaks to its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speech {
    /// The line.
    pub(crate) line: u8,
    /// Its media is protected.
    pub(crate) secure: bool,
    /// Codecs that we have, in its order.
    pub(crate) codecs: SmallVec<[Numbered; 4]>,
    /// Milliseconds of a packet, where it says.
    pub(crate) packet_ms: Option<u32>,
}

impl Speech {
    /// That of the first line with a codec of ours.
    pub(crate) fn of(sdp: &[u8]) -> Option<Speech> {
        let sdp = Sdp::parse(sdp).ok()?;
        let mut lines = sdp.media().take(super::sdp::MAX_MEDIA).enumerate();
        lines.find_map(|(line, media)| {
            let spoken = Spoken::of(&media, true).filter(|spoken| !spoken.speech.is_empty())?;
            Some(Speech {
                line: u8::try_from(line).ok()?,
                secure: media.is_secure(),
                codecs: spoken.speech,
                packet_ms: spoken.packet_ms,
            })
        })
    }
}

/// How a line is changed.
#[derive(Debug, Default)]
struct Edit {
    /// Its payload types from now on.
    formats: Vec<u8>,
    /// What is said of these goes.
    dropped: SmallVec<[u8; 8]>,
    /// Lines behind all others.
    attributes: Vec<u8>,
    /// What it says of packet times goes, because the packets are ours.
    times: bool,
}

impl Edit {
    fn keep(&mut self, number: u8) {
        self.formats.push(number);
    }

    /// A codec of ours.
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

    /// Telephone events: the digits.
    fn add_events(&mut self, (number, clock): Clocked) {
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
            b"ptime" | b"maxptime" => self.times,
            _ => false,
        }
    }
}

/// Writes a description with its lines changed.
fn edit(sdp: &[u8], edits: &[Option<Edit>]) -> Vec<u8> {
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

/// An offer that has been passed on.
#[derive(Clone, Debug)]
struct Offered {
    from: Side,
    spoken: Spoken,
    /// Codecs of the offerer that were passed on.
    passed: SmallVec<[Kind; 4]>,
    /// Codecs and events of ours in it.
    added: SmallVec<[Numbered; 4]>,
    added_events: SmallVec<[Clocked; 2]>,
}

/// A line.
#[derive(Clone, Debug, Default)]
struct Line {
    offered: Option<Offered>,
    /// How the speech of each side is transcoded.
    plans: [Option<Arc<RecodePlan>>; 2],
    /// What each side spoke when the line was transcoded last: a description towards it has it again.
    spoke: [Option<Kind>; 2],
    /// What was told of it last.
    told: Option<[Kind; 2]>,
    /// Payload types that we gave a meaning towards each side.
    given: [SmallVec<[(u8, Given); 4]>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Codec(Kind),
    Events(u32),
}

impl Line {
    /// The payload type for something of ours in a description towards a side: the one it had before, its static one, or one that
    /// nothing has.
    fn number(&mut self, towards: Side, what: Given, taken: &[u8]) -> Option<u8> {
        let given = self.given.get_mut(towards.index())?;
        let before = given
            .iter()
            .find(|(number, known)| *known == what && !taken.contains(number));
        if let Some((number, _)) = before {
            return Some(*number);
        }
        if let Given::Codec(kind) = what
            && let Some(number) = kind.payload_type().filter(|number| !taken.contains(number))
        {
            return Some(number);
        }
        let number = DYNAMIC.rev().find(|number| {
            !taken.contains(number) && !given.iter().any(|(known, _)| known == number)
        })?;
        given.push((number, what));
        Some(number)
    }
}

/// The codecs of a call.
#[derive(Debug, Default)]
pub(crate) struct Codecs {
    lines: Vec<Line>,
}

impl Codecs {
    /// An offer of `from`: gives what the other side gets to see of it where that is something else. `readable`: media that is
    /// protected is opened by us.
    pub(crate) fn offer(
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
                self.lines.push(Line::default());
            }
            let line = self.lines.get_mut(index)?;
            line.offered = None;
            let spoken = Spoken::of(&media, readable).filter(|spoken| !spoken.speech.is_empty());
            edits.push(spoken.and_then(|spoken| line.extend(from, policy, spoken)));
        }
        edits
            .iter()
            .any(Option::is_some)
            .then(|| edit(offer, &edits))
    }

    /// An answer of `from` to the last offer: gives what the offerer gets to see of it where that is something else.
    pub(crate) fn answer(&mut self, from: Side, answer: &[u8], readable: bool) -> Option<Vec<u8>> {
        let sdp = Sdp::parse(answer).ok()?;
        let mut edits = Vec::new();
        for (line, media) in self.lines.iter_mut().zip(sdp.media()) {
            let spoken = Spoken::of(&media, readable);
            edits.push(match line.offered.clone() {
                Some(offered) if offered.from != from => line.settle(&offered, spoken),
                _ => None,
            });
        }
        edits
            .iter()
            .any(Option::is_some)
            .then(|| edit(answer, &edits))
    }

    /// How the speech of a side is transcoded on a line.
    pub(crate) fn plan(&self, line: usize, side: usize) -> Option<Arc<RecodePlan>> {
        self.lines.get(line)?.plans.get(side)?.clone()
    }

    /// Lines that are transcoded and were not, or otherwise, when this was asked last; with what caller and callee speak.
    pub(crate) fn news(&mut self) -> SmallVec<[(usize, [Kind; 2]); 1]> {
        let mut news = SmallVec::new();
        for (index, line) in self.lines.iter_mut().enumerate() {
            let now = match (&line.plans, line.spoke) {
                ([Some(_), Some(_)], [Some(caller), Some(callee)]) => Some([caller, callee]),
                _ => None,
            };
            if line.told != now {
                line.told = now;
                news.extend(now.map(|kinds| (index, kinds)));
            }
        }
        news
    }
}

impl Line {
    /// What of ours goes into an offer.
    fn extend(&mut self, from: Side, policy: &Transcoding, spoken: Spoken) -> Option<Edit> {
        let towards = from.other();
        let always = policy.when == TranscodeWhen::Always && !policy.codecs.is_empty();
        let spoke = self.spoke.get(towards.index()).copied().flatten();
        let wanted = policy.codecs.iter().copied();
        let wanted: SmallVec<[Kind; 4]> = wanted
            .chain(spoke.filter(|kind| !policy.codecs.contains(kind)))
            .collect();
        let passes = |kind: Kind| !always || wanted.contains(&kind);
        let mut edit = Edit::default();
        let mut offered = Offered {
            from,
            passed: SmallVec::new(),
            added: SmallVec::new(),
            added_events: SmallVec::new(),
            spoken: spoken.clone(),
        };
        let known = |number: u8| spoken.speech.iter().find(|(own, _)| *own == number);
        let lesser = |number: u8| {
            spoken.noise == Some(number) || spoken.events.iter().any(|(own, _)| *own == number)
        };
        for &number in &spoken.numbers {
            let kept = match known(number) {
                Some((_, format)) => {
                    let passed = passes(format.kind());
                    if passed {
                        offered.passed.push(format.kind());
                    }
                    passed
                }
                None => !always || lesser(number),
            };
            match kept {
                true => edit.keep(number),
                false => edit.dropped.push(number),
            }
        }
        let mut taken = spoken.numbers.clone();
        for kind in wanted {
            if spoken.has(kind) {
                continue;
            }
            let Some(number) = self.number(towards, Given::Codec(kind), &taken) else {
                continue;
            };
            taken.push(number);
            let format = Format::new(kind);
            edit.add(number, kind, format.fmtp().as_deref());
            offered.added.push((number, format));
        }
        // Events have the clock of the speech beside them (RFC 4733 section 2.1).
        let clocks: SmallVec<[u32; 2]> = offered
            .added
            .iter()
            .map(|(_, format)| format.kind().rtp_clock())
            .collect();
        for clock in clocks {
            let known = spoken.events.iter().chain(&offered.added_events);
            if known.clone().any(|(_, own)| *own == clock) {
                continue;
            }
            if let Some(number) = self.number(towards, Given::Events(clock), &taken) {
                taken.push(number);
                edit.add_events((number, clock));
                offered.added_events.push((number, clock));
            }
        }
        let changed = !offered.added.is_empty() || !edit.dropped.is_empty();
        self.offered = Some(offered);
        changed.then_some(edit)
    }

    /// What becomes of a line by an answer.
    fn settle(&mut self, offered: &Offered, answered: Option<Spoken>) -> Option<Edit> {
        self.plans = [None, None];
        let answered = answered?;
        let common = answered.foreign
            || answered
                .speech
                .iter()
                .any(|(_, format)| offered.passed.contains(&format.kind()));
        let foreign = |number: &u8| {
            offered.added.iter().any(|(own, _)| own == number)
                || offered.added_events.iter().any(|(own, _)| own == number)
        };
        if common || answered.speech.is_empty() {
            // Nothing is transcoded; the offerer does not know what we added.
            if !answered.numbers.iter().any(foreign) {
                return None;
            }
            let mut edit = Edit::default();
            for &number in &answered.numbers {
                match foreign(&number) {
                    true => edit.dropped.push(number),
                    false => edit.keep(number),
                }
            }
            return Some(edit);
        }
        let (Some(&theirs), Some(&ours)) = (offered.spoken.speech.first(), answered.speech.first())
        else {
            return None;
        };
        self.transcode(offered, theirs, &answered, ours)
    }

    /// The offerer speaks `theirs`, the answerer `ours`.
    fn transcode(
        &mut self,
        offered: &Offered,
        theirs: Numbered,
        answered: &Spoken,
        ours: Numbered,
    ) -> Option<Edit> {
        let (kind, other) = (theirs.1.kind(), ours.1.kind());
        let spoken = &offered.spoken;
        // The offerer may send events whether or not the answerer takes them: they become tones where it does not.
        let mut edit = Edit {
            times: true,
            dropped: answered.numbers.clone(),
            ..Edit::default()
        };
        let answer = theirs.1.answer(&Format::new(kind));
        let fmtp = answer.and_then(|format| format.fmtp());
        edit.add(theirs.0, kind, fmtp.as_deref());
        let pressed = spoken.events_at(kind.rtp_clock());
        if let Some(events) = pressed {
            edit.add_events(events);
        }
        if let Some(noise) = spoken.noise.filter(|_| kind.rtp_clock() == 8000) {
            edit.keep(noise);
            let _ = write!(edit.attributes, "a=rtpmap:{noise} CN/8000\r\n");
        }
        let heard = answered.events_at(other.rtp_clock());
        let becomes = |to: Option<Clocked>| to.map_or(Events::Tones, Events::Passed);
        let to_answerer = RecodePlan {
            from: SmallVec::from_iter([theirs]),
            to: ours,
            packet_ms: other.packet_time_within(answered.packet_ms.unwrap_or(PACKET_MS)),
            events: pressed
                .into_iter()
                .map(|events| (events, becomes(heard)))
                .collect(),
            noise: spoken.noise,
            digits: listens(pressed, heard, kind),
        };
        // A side sends under the numbers of the other's description (RFC 3264 section 5.1), which was ours; what it wrote itself is
        // taken as well.
        let mut from: SmallVec<[Numbered; 2]> = SmallVec::new();
        for (number, format) in offered.added.iter().chain(&answered.speech) {
            let agreed = answered.has(format.kind());
            if agreed && !from.iter().any(|(known, _)| known == number) {
                from.push((*number, *format));
            }
        }
        // What the answerer prefers comes first: events before any speech belong to it.
        from.sort_by_key(|(_, format)| format.kind() != other);
        let to_offerer = RecodePlan {
            from,
            to: theirs,
            packet_ms: kind.packet_time_within(spoken.packet_ms.unwrap_or(PACKET_MS)),
            events: answered
                .events
                .iter()
                .map(|events| (*events, becomes(pressed)))
                .collect(),
            noise: answered.noise,
            digits: listens(heard, pressed, other),
        };
        let mut plans = [Some(Arc::new(to_answerer)), Some(Arc::new(to_offerer))];
        self.spoke = [Some(kind), Some(other)];
        if offered.from.index() != 0 {
            plans.reverse();
            self.spoke.reverse();
        }
        self.plans = plans;
        Some(edit)
    }
}
