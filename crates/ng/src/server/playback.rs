//! Playback of sounds to parties of a call, from files or from the command itself.
//!
//! Files are read by the driver's thread ([`NgServer::next_sound_request`], [`NgServer::sound_read`]), so that a slow
//! disk delays nothing; the command is answered when its sound has been parsed.

use super::NgServer;
use super::access::Requester;
use super::branches::NgBranch;
use super::commands::CommandResult;
use super::options::{CommandError, CommandOptions};
use super::replies::{error, ok};
use anchor::Side;
use codec::Sound;
use core::time::Duration;
use engine::{EventKind, Time};
use media::{
    MediaCommand, PlaybackEncoding, PlaybackPlan, PlaybackResult, PlaybackTarget, can_play,
};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Component, Path};
use std::sync::Arc;
use wire::ng::Value;

/// Files that are read at a time.
const MAX_FETCHES: usize = 256;
/// Default packet time in milliseconds.
const PACKET_MS: u32 = 20;

/// A request to read a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoundRequest {
    /// Number for the result ([`NgServer::sound_read`]).
    pub number: u64,
    /// Name relative to the folder for sounds: never absolute, never with `..`.
    pub name: String,
}

/// Playback options of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlayOptions<'a> {
    pub(super) file: Option<&'a [u8]>,
    pub(super) blob: Option<&'a [u8]>,
    /// In samples.
    pub(super) start: Option<usize>,
    pub(super) times: Option<u32>,
    pub(super) span: Option<Duration>,
}

/// Repetitions, maximum duration and start.
#[derive(Clone, Copy, Debug)]
struct PlaybackTerms {
    start: usize,
    times: u32,
    span: Option<Duration>,
}

impl From<&PlayOptions<'_>> for PlaybackTerms {
    fn from(options: &PlayOptions<'_>) -> PlaybackTerms {
        // A duration without repetitions means as many as it takes.
        let often = match options.span {
            Some(_) => u32::MAX,
            None => 1,
        };
        PlaybackTerms {
            start: options.start.unwrap_or(0),
            times: options.times.unwrap_or(often),
            span: options.span,
        }
    }
}

#[derive(Debug)]
struct PendingFile {
    requester: Requester,
    name: String,
    targets: Vec<(u64, Side)>,
    terms: PlaybackTerms,
}

/// A playback whose end has not been reported.
#[derive(Debug)]
struct StartedPlayback {
    session: u64,
    side: Side,
    /// Number of the call in events.
    call: u64,
}

/// A command that waits for the end of the playbacks that it has stopped.
#[derive(Debug)]
struct PendingStop {
    requester: Requester,
    missing: SmallVec<[u64; 2]>,
    position: Option<u64>,
}

/// All current and requested playbacks.
#[derive(Debug, Default)]
pub(super) struct Playbacks {
    last: u64,
    file_requests: VecDeque<SoundRequest>,
    pending_files: BTreeMap<u64, PendingFile>,
    started: BTreeMap<u64, StartedPlayback>,
    stops: Vec<PendingStop>,
}

impl Playbacks {
    /// Playbacks, files being read, and pending stops.
    pub(super) fn len(&self) -> usize {
        self.started.len() + self.pending_files.len() + self.stops.len()
    }
}

/// Current playback towards a side of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentPlayback {
    number: u64,
    line: u8,
    encoding: PlaybackEncoding,
}

/// The name of a file relative to the folder for sounds.
fn name_in_folder(folder: &Path, file: &[u8]) -> Result<String, CommandError> {
    let outside = || "the file is outside the folder for sounds".to_owned();
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

/// The encoding for playback to a side: its first codec that both sides support.
fn encoding_for(branch: &NgBranch, side: Side) -> Result<(u8, PlaybackEncoding), CommandError> {
    let descriptions = |side: Side| branch.descriptions.get(side.index())?.audio.as_ref();
    let silent = "the party has no audio with a supported codec";
    let own = descriptions(side).ok_or(silent)?;
    if own.secure && !branch.media.has_media_security() {
        return Err("the media of the party is encrypted end to end".to_owned());
    }
    if !branch
        .media
        .line_views()
        .any(|(line, _)| line == usize::from(own.line))
    {
        return Err(silent.to_owned());
    }
    let shared = descriptions(side.other()).filter(|other| other.line == own.line);
    let common = own.codecs.iter().find(|(_, format)| {
        shared.is_none_or(|other| {
            let mut theirs = other.codecs.iter();
            theirs.any(|(_, other)| other.kind() == format.kind())
        })
    });
    let (payload_type, format) = *common.or(own.codecs.first()).ok_or(silent)?;
    let packet_ms = own.packet_ms.unwrap_or(PACKET_MS);
    let encoding = PlaybackEncoding {
        payload_type,
        format,
        packet_ms: format.kind().packet_time_within(packet_ms),
    };
    Ok((own.line, encoding))
}

impl NgServer {
    /// The next file to read. [`NgServer::sound_read`] has to be called for each.
    pub fn next_sound_request(&mut self) -> Option<SoundRequest> {
        self.playbacks.file_requests.pop_front()
    }

    /// Passes the content of a file, or the error. Outputs have to be drained afterwards, as after an input.
    pub fn sound_read(&mut self, number: u64, file: Result<Arc<[u8]>, String>, now: Time) {
        self.begin(now);
        let Some(pending_files) = self.playbacks.pending_files.remove(&number) else {
            return;
        };
        let reply = file
            .and_then(|file| {
                self.play_file(
                    file,
                    &pending_files.name,
                    &pending_files.targets,
                    pending_files.terms,
                )
            })
            .unwrap_or_else(|reason| {
                self.counters.refused += 1;
                error(&reason)
            });
        self.reply_to(&pending_files.requester, &reply);
        self.process_media_notices();
    }

    /// The parties that a command addresses: each once, in the established branch if it has several.
    fn playback_targets(
        &self,
        options: &CommandOptions<'_>,
    ) -> Result<Vec<(u64, Side)>, CommandError> {
        let tag = match (options.from_tag, options.all) {
            (_, true) => None,
            (Some(tag), false) => Some(tag),
            (None, false) => return Err("needs from-tag, or the flag all".to_owned()),
        };
        let sessions = self.select_branches(options)?;
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
                match parties.iter_mut().find(|(existing, ..)| *existing == own) {
                    Some(existing) if whole || !existing.3 => {
                        *existing = (own, branch.session, side, whole)
                    }
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

    /// The command `play media`.
    pub(super) fn play(
        &mut self,
        requester: &Requester,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let targets = self.playback_targets(options)?;
        for (session, side) in &targets {
            if let Some(branch) = self.branches.get(*session) {
                encoding_for(branch, *side)?;
            }
        }
        let terms = PlaybackTerms::from(&options.play);
        let file = match (options.play.file, options.play.blob) {
            (Some(file), None) => file,
            (None, Some(blob)) => {
                let reply = self.play_file(blob.into(), "", &targets, terms)?;
                return Ok(CommandResult::Now(reply));
            }
            (None, None) => return Err("No media file specified".to_owned()),
            (Some(_), Some(_)) => return Err("\"file\" and \"blob\" exclude each other".to_owned()),
        };
        let folder = self.settings.sounds.as_deref();
        let folder = folder.ok_or("no folder for sounds is configured")?;
        let name = name_in_folder(folder, file)?;
        if self.playbacks.pending_files.len() >= MAX_FETCHES {
            return Err("too many files are being read, try again later".to_owned());
        }
        self.playbacks.last += 1;
        let number = self.playbacks.last;
        self.playbacks.file_requests.push_back(SoundRequest {
            number,
            name: name.clone(),
        });
        self.playbacks.pending_files.insert(
            number,
            PendingFile {
                requester: requester.clone(),
                name,
                targets,
                terms,
            },
        );
        Ok(CommandResult::Deferred)
    }

    fn play_file(
        &mut self,
        file: Arc<[u8]>,
        name: &str,
        targets: &[(u64, Side)],
        terms: PlaybackTerms,
    ) -> Result<Value, CommandError> {
        let sound = Sound::parse(file).map_err(|reason| reason.to_string())?;
        if terms.start > 0 && terms.start >= sound.frames() {
            return Err("\"start-pos\" is beyond the end of the file".to_owned());
        }
        let mut plans = Vec::new();
        for &(session, side) in targets {
            let Some(branch) = self.branches.get(session) else {
                continue;
            };
            let (line, encoding) = encoding_for(branch, side)?;
            if !can_play(&sound, &encoding) {
                return Err(match sound.frames() {
                    0 => "the file has no samples".to_owned(),
                    _ => format!(
                        "a file with {} samples a second cannot be played as {}",
                        sound.rate(),
                        encoding.format.kind().name()
                    ),
                });
            }
            plans.push((session, side, line, encoding, branch.number));
        }
        if plans.is_empty() {
            return Err("the call has ended".to_owned());
        }
        for (session, side, line, encoding, call) in plans {
            self.playbacks.last += 1;
            let number = self.playbacks.last;
            self.plane
                .commands
                .push_back(MediaCommand::Play(Box::new(PlaybackPlan {
                    session,
                    line,
                    side: side.index() as u8,
                    number,
                    sound: sound.clone(),
                    encoding,
                    start: terms.start,
                    repetitions: terms.times,
                    max_duration: terms.span,
                    seed: self.entropy.u64(),
                })));
            let existing = StartedPlayback {
                session,
                side,
                call,
            };
            self.playbacks.started.insert(number, existing);
            let playing = CurrentPlayback {
                number,
                line,
                encoding,
            };
            if let Some(branch) = self.branches.get_mut(session)
                && let Some(slot) = branch.playing.get_mut(side.index())
            {
                *slot = Some(playing);
            }
            self.tell(EventKind::PlaybackStarted {
                call,
                side: side.name().to_owned(),
                file: name.to_owned(),
            });
        }
        let duration = Value::dictionary().with("duration", sound.duration_ms());
        Ok(ok(duration))
    }

    /// The command `stop media`.
    pub(super) fn stop(
        &mut self,
        requester: &Requester,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let mut missing = SmallVec::new();
        for (session, side) in self.playback_targets(options)? {
            let branch = self.branches.get(session);
            let playing = branch.and_then(|branch| *branch.playing.get(side.index())?);
            if let Some(playing) = playing {
                missing.push(playing.number);
                self.stop_playing(session, side, playing.line);
            }
        }
        if missing.is_empty() {
            return Ok(CommandResult::Now(ok(Value::dictionary())));
        }
        self.playbacks.stops.push(PendingStop {
            requester: requester.clone(),
            missing,
            position: None,
        });
        Ok(CommandResult::Deferred)
    }

    fn stop_playing(&mut self, session: u64, side: Side, line: u8) {
        let target = PlaybackTarget {
            session,
            line,
            side: side.index() as u8,
        };
        self.plane
            .commands
            .push_back(MediaCommand::StopPlayback(target));
    }

    /// Continues playback with the encoding of a new answer.
    pub(super) fn update_playback(&mut self, session: u64) {
        for side in Side::BOTH {
            let Some(branch) = self.branches.get(session) else {
                return;
            };
            let Some(playing) = branch.playing.get(side.index()).copied().flatten() else {
                continue;
            };
            let encoding = encoding_for(branch, side);
            match encoding {
                Ok((line, encoding)) if line == playing.line => {
                    if encoding == playing.encoding {
                        continue;
                    }
                    let target = PlaybackTarget {
                        session,
                        line,
                        side: side.index() as u8,
                    };
                    let command = MediaCommand::ChangePlayback(target, encoding);
                    self.plane.commands.push_back(command);
                    if let Some(branch) = self.branches.get_mut(session)
                        && let Some(slot) = branch.playing.get_mut(side.index())
                    {
                        *slot = Some(CurrentPlayback {
                            encoding,
                            ..playing
                        });
                    }
                }
                _ => self.stop_playing(session, side, playing.line),
            }
        }
    }

    /// Processes the end of a playback.
    pub(super) fn playback_ended(&mut self, played: &PlaybackResult) {
        let Some(existing) = self.playbacks.started.remove(&played.number) else {
            return;
        };
        if let Some(branch) = self.branches.get_mut(existing.session)
            && let Some(slot) = branch.playing.get_mut(existing.side.index())
            && slot.is_some_and(|playing| playing.number == played.number)
        {
            *slot = None;
        }
        self.tell(EventKind::PlaybackEnded {
            call: existing.call,
            side: existing.side.name().to_owned(),
            reason: played.end.name().to_owned(),
            position_samples: played.position,
            packets: played.packets,
        });
        for stop in &mut self.playbacks.stops {
            if stop.missing.contains(&played.number) {
                stop.missing.retain(|number| *number != played.number);
                stop.position.get_or_insert(played.position);
            }
        }
        let (done, waiting) = core::mem::take(&mut self.playbacks.stops)
            .into_iter()
            .partition(|stop| stop.missing.is_empty());
        self.playbacks.stops = waiting;
        let done: Vec<PendingStop> = done;
        for stop in done {
            let position = stop.position.unwrap_or(0);
            let reply = ok(Value::dictionary().with("last-frame-pos", position));
            self.reply_to(&stop.requester, &reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stay_inside_the_folder() {
        let folder = Path::new("/sounds");
        for (name, found) in [
            ("a.wav", "a.wav"),
            ("de/a.wav", "de/a.wav"),
            ("/sounds/de/a.wav", "de/a.wav"),
            ("/sounds//a.wav", "a.wav"),
        ] {
            assert_eq!(
                name_in_folder(folder, name.as_bytes()).as_deref(),
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
            assert!(name_in_folder(folder, name.as_bytes()).is_err(), "{name}");
        }
        assert!(name_in_folder(folder, b"a\xff.wav").is_err());
    }
}
