//! Sounds: files, or what a command brings itself, are played to parties of a call.
//!
//! Files are read by whoever drives the node ([`Node::next_sound`], [`Node::sound`]), so that a slow disk holds nothing up; the
//! command is answered when its sound is known to be one.

use super::Node;
use super::access::Asker;
use super::branches::Branch;
use super::carry::Outcome;
use super::replies::{error, ok};
use super::wishes::{Refusal, Wishes};
use crate::call::Side;
use codec::Sound;
use core::time::Duration;
use engine::{Note, Time};
use media::{MediaCommand, PlayPlace, PlayPlan, PlayVoice, Played, can_play};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Component, Path};
use std::sync::Arc;
use wire::ng::Value;

/// Files that are being read at a time.
const MAX_FETCHES: usize = 256;
/// Milliseconds of a packet where the party does not say.
const PACKET_MS: u32 = 20;

/// A file that the node wants to have read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoundWanted {
    /// Names it in the answer ([`Node::sound`]).
    pub number: u64,
    /// Its name below the folder for sounds: never absolute, never with `..`.
    pub name: String,
}

/// What a command says of how a sound is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlayWishes<'a> {
    pub(super) file: Option<&'a [u8]>,
    pub(super) blob: Option<&'a [u8]>,
    /// Samples.
    pub(super) start: Option<usize>,
    pub(super) times: Option<u32>,
    pub(super) span: Option<Duration>,
}

/// How often, how long, and from where on.
#[derive(Clone, Copy, Debug)]
struct Terms {
    start: usize,
    times: u32,
    span: Option<Duration>,
}

impl From<&PlayWishes<'_>> for Terms {
    fn from(wishes: &PlayWishes<'_>) -> Terms {
        // How long alone means: as often as that takes.
        let often = match wishes.span {
            Some(_) => u32::MAX,
            None => 1,
        };
        Terms {
            start: wishes.start.unwrap_or(0),
            times: wishes.times.unwrap_or(often),
            span: wishes.span,
        }
    }
}

#[derive(Debug)]
struct Fetching {
    asker: Asker,
    name: String,
    targets: Vec<(u64, Side)>,
    terms: Terms,
}

/// A playing whose end was not told yet.
#[derive(Debug)]
struct Known {
    session: u64,
    side: Side,
    /// The call's number in events.
    call: u64,
}

/// A command that waits for what it has stopped.
#[derive(Debug)]
struct Stop {
    asker: Asker,
    missing: SmallVec<[u64; 2]>,
    position: Option<u64>,
}

/// Everything that is played, or will be.
#[derive(Debug, Default)]
pub(super) struct Plays {
    last: u64,
    wanted: VecDeque<SoundWanted>,
    fetching: BTreeMap<u64, Fetching>,
    known: BTreeMap<u64, Known>,
    stops: Vec<Stop>,
}

impl Plays {
    /// What is played, read or being stopped.
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.fetching.len() + self.stops.len()
    }
}

/// What is played to a side of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Playing {
    number: u64,
    line: u8,
    voice: PlayVoice,
}

/// The name of a file below the folder for sounds.
fn below(folder: &Path, file: &[u8]) -> Result<String, Refusal> {
    let outside = || "the file does not lie in the folder for sounds".to_owned();
    let text = core::str::from_utf8(file).map_err(|_| outside())?;
    let path = Path::new(text);
    let path = match path.is_absolute() {
        true => path.strip_prefix(folder).map_err(|_| outside())?,
        false => path,
    };
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    match path.to_str() {
        Some(name) if plain && !name.is_empty() && !name.contains('\0') => Ok(name.to_owned()),
        _ => Err(outside()),
    }
}

/// How a side of a branch hears what is played to it: the codec that it names first of those that both have.
fn voice_of(branch: &Branch, side: Side) -> Result<(u8, PlayVoice), Refusal> {
    let heard = |side: Side| branch.heard.get(side.index())?.speech.as_ref();
    let silent = "the party has no audio with a codec of ours";
    let own = heard(side).ok_or(silent)?;
    if own.secure && !branch.media.is_protected() {
        return Err("the media of the party is protected from end to end".to_owned());
    }
    if !branch
        .media
        .places()
        .any(|(line, _)| line == usize::from(own.line))
    {
        return Err(silent.to_owned());
    }
    let shared = heard(side.other()).filter(|other| other.line == own.line);
    let common = own.codecs.iter().find(|(_, format)| {
        shared.is_none_or(|other| {
            let mut theirs = other.codecs.iter();
            theirs.any(|(_, other)| other.kind() == format.kind())
        })
    });
    let (payload_type, format) = *common.or(own.codecs.first()).ok_or(silent)?;
    let packet_ms = own.packet_ms.unwrap_or(PACKET_MS);
    let voice = PlayVoice {
        payload_type,
        format,
        packet_ms: format.kind().packet_time_within(packet_ms),
    };
    Ok((own.line, voice))
}

impl Node {
    /// The next file that is to be read. Each is answered by [`Node::sound`].
    pub fn next_sound(&mut self) -> Option<SoundWanted> {
        self.plays.wanted.pop_front()
    }

    /// A file was read, or could not be: why. Outputs are to be drained then, as after an input.
    pub fn sound(&mut self, number: u64, file: Result<Arc<[u8]>, String>, now: Time) {
        self.begin(now);
        let Some(fetching) = self.plays.fetching.remove(&number) else {
            return;
        };
        let reply = file
            .and_then(|file| {
                self.play_file(file, &fetching.name, &fetching.targets, fetching.terms)
            })
            .unwrap_or_else(|why| {
                self.counters.refused += 1;
                error(&why)
            });
        self.answer_to(&fetching.asker, &reply);
        self.settle();
    }

    /// The parties that a command names: each once, in the branch that stands where it has several.
    fn audience(&self, wishes: &Wishes<'_>) -> Result<Vec<(u64, Side)>, Refusal> {
        let tag = match (wishes.from_tag, wishes.all) {
            (_, true) => None,
            (Some(tag), false) => Some(tag),
            (None, false) => return Err("needs from-tag, or the flag all".to_owned()),
        };
        let sessions = self.chosen(wishes)?;
        let mut parties: Vec<(&[u8], u64, Side, bool)> = Vec::new();
        for branch in sessions
            .iter()
            .filter_map(|session| self.branches.get(*session))
        {
            let whole = !branch.tag(Side::Callee).is_empty();
            for side in Side::BOTH {
                let own = branch.tag(side);
                if tag.is_some_and(|tag| tag != own) || (own.is_empty() && !whole) {
                    continue;
                }
                match parties.iter_mut().find(|(known, ..)| *known == own) {
                    Some(known) if whole || !known.3 => *known = (own, branch.session, side, whole),
                    Some(_) => {}
                    None => parties.push((own, branch.session, side, whole)),
                }
            }
        }
        match parties.is_empty() {
            true => Err("Unknown call-id, or no party with this tag".to_owned()),
            false => Ok(parties
                .into_iter()
                .map(|(_, session, side, _)| (session, side))
                .collect()),
        }
    }

    /// `play media`.
    pub(super) fn play(&mut self, asker: &Asker, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let targets = self.audience(wishes)?;
        for (session, side) in &targets {
            if let Some(branch) = self.branches.get(*session) {
                voice_of(branch, *side)?;
            }
        }
        let terms = Terms::from(&wishes.play);
        let file = match (wishes.play.file, wishes.play.blob) {
            (Some(file), None) => file,
            (None, Some(blob)) => {
                let reply = self.play_file(blob.into(), "", &targets, terms)?;
                return Ok(Outcome::Now(reply));
            }
            (None, None) => return Err("No media file specified".to_owned()),
            (Some(_), Some(_)) => return Err("either \"file\" or \"blob\"".to_owned()),
        };
        let folder = self.spec.sounds.as_deref();
        let folder = folder.ok_or("there is no folder for sounds in the configuration")?;
        let name = below(folder, file)?;
        if self.plays.fetching.len() >= MAX_FETCHES {
            return Err("too many files are being read".to_owned());
        }
        self.plays.last += 1;
        let number = self.plays.last;
        self.plays.wanted.push_back(SoundWanted {
            number,
            name: name.clone(),
        });
        self.plays.fetching.insert(
            number,
            Fetching {
                asker: asker.clone(),
                name,
                targets,
                terms,
            },
        );
        Ok(Outcome::Later)
    }

    fn play_file(
        &mut self,
        file: Arc<[u8]>,
        name: &str,
        targets: &[(u64, Side)],
        terms: Terms,
    ) -> Result<Value, Refusal> {
        let sound = Sound::parse(file).map_err(|why| why.to_string())?;
        if terms.start > 0 && terms.start >= sound.frames() {
            return Err("\"start-pos\" lies behind the end of the file".to_owned());
        }
        let mut plans = Vec::new();
        for &(session, side) in targets {
            let Some(branch) = self.branches.get(session) else {
                continue;
            };
            let (line, voice) = voice_of(branch, side)?;
            if !can_play(&sound, &voice) {
                return Err(match sound.frames() {
                    0 => "the file has no samples".to_owned(),
                    _ => format!(
                        "a file with {} samples a second cannot be played as {}",
                        sound.rate(),
                        voice.format.kind().name()
                    ),
                });
            }
            plans.push((session, side, line, voice, branch.number));
        }
        if plans.is_empty() {
            return Err("the call has ended".to_owned());
        }
        for (session, side, line, voice, call) in plans {
            self.plays.last += 1;
            let number = self.plays.last;
            self.plane
                .commands
                .push_back(MediaCommand::Play(Box::new(PlayPlan {
                    session,
                    line,
                    side: side.index() as u8,
                    number,
                    sound: sound.clone(),
                    voice,
                    start: terms.start,
                    times: terms.times,
                    span: terms.span,
                    seed: self.entropy.u64(),
                })));
            let known = Known {
                session,
                side,
                call,
            };
            self.plays.known.insert(number, known);
            let playing = Playing {
                number,
                line,
                voice,
            };
            if let Some(branch) = self.branches.get_mut(session)
                && let Some(slot) = branch.playing.get_mut(side.index())
            {
                *slot = Some(playing);
            }
            self.tell(Note::PlayBegun {
                call,
                side: side.name().to_owned(),
                file: name.to_owned(),
            });
        }
        let duration = Value::dictionary().with("duration", sound.duration_ms());
        Ok(ok(duration))
    }

    /// `stop media`.
    pub(super) fn stop(&mut self, asker: &Asker, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let mut missing = SmallVec::new();
        for (session, side) in self.audience(wishes)? {
            let branch = self.branches.get(session);
            let playing = branch.and_then(|branch| *branch.playing.get(side.index())?);
            if let Some(playing) = playing {
                missing.push(playing.number);
                self.stop_playing(session, side, playing.line);
            }
        }
        if missing.is_empty() {
            return Ok(Outcome::Now(ok(Value::dictionary())));
        }
        self.plays.stops.push(Stop {
            asker: asker.clone(),
            missing,
            position: None,
        });
        Ok(Outcome::Later)
    }

    fn stop_playing(&mut self, session: u64, side: Side, line: u8) {
        let place = PlayPlace {
            session,
            line,
            side: side.index() as u8,
        };
        self.plane
            .commands
            .push_back(MediaCommand::StopPlaying(place));
    }

    /// Another answer counts: what is played goes on as the parties now want it.
    pub(super) fn retune(&mut self, session: u64) {
        for side in Side::BOTH {
            let Some(branch) = self.branches.get(session) else {
                return;
            };
            let Some(playing) = branch.playing.get(side.index()).copied().flatten() else {
                continue;
            };
            let voice = voice_of(branch, side);
            match voice {
                Ok((line, voice)) if line == playing.line => {
                    if voice == playing.voice {
                        continue;
                    }
                    let place = PlayPlace {
                        session,
                        line,
                        side: side.index() as u8,
                    };
                    let command = MediaCommand::Tune(place, voice);
                    self.plane.commands.push_back(command);
                    if let Some(branch) = self.branches.get_mut(session)
                        && let Some(slot) = branch.playing.get_mut(side.index())
                    {
                        *slot = Some(Playing { voice, ..playing });
                    }
                }
                _ => self.stop_playing(session, side, playing.line),
            }
        }
    }

    /// The forwarder plays a sound no more.
    pub(super) fn played(&mut self, played: &Played) {
        let Some(known) = self.plays.known.remove(&played.number) else {
            return;
        };
        if let Some(branch) = self.branches.get_mut(known.session)
            && let Some(slot) = branch.playing.get_mut(known.side.index())
            && slot.is_some_and(|playing| playing.number == played.number)
        {
            *slot = None;
        }
        self.tell(Note::PlayEnded {
            call: known.call,
            side: known.side.name().to_owned(),
            why: played.end.name().to_owned(),
            position: played.position,
            packets: played.packets,
        });
        for stop in &mut self.plays.stops {
            if stop.missing.contains(&played.number) {
                stop.missing.retain(|number| *number != played.number);
                stop.position.get_or_insert(played.position);
            }
        }
        let (done, waiting) = core::mem::take(&mut self.plays.stops)
            .into_iter()
            .partition(|stop| stop.missing.is_empty());
        self.plays.stops = waiting;
        let done: Vec<Stop> = done;
        for stop in done {
            let position = stop.position.unwrap_or(0);
            let reply = ok(Value::dictionary().with("last-frame-pos", position));
            self.answer_to(&stop.asker, &reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_below_the_folder() {
        let folder = Path::new("/sounds");
        for (name, found) in [
            ("a.wav", "a.wav"),
            ("de/a.wav", "de/a.wav"),
            ("/sounds/de/a.wav", "de/a.wav"),
            ("/sounds//a.wav", "a.wav"),
        ] {
            assert_eq!(
                below(folder, name.as_bytes()).as_deref(),
                Ok(found),
                "{name}"
            );
        }
        for name in [
            "",
            "/sounds",
            "/sounds/",
            "/etc/passwd",
            "../a.wav",
            "a/../../b",
            "/sounds/../b",
            "/soundsfar/a",
            ".",
            "./a",
            "a\0b",
        ] {
            assert!(below(folder, name.as_bytes()).is_err(), "{name}");
        }
        assert!(below(folder, b"a\xff.wav").is_err());
    }
}
