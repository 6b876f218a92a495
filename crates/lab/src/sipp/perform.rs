//! The actions of a call.

use super::call::{Call, Value};
use super::digest::verify;
use super::engine::{AUDIO, Effect, Generator, VIDEO};
use super::flow::After;
use super::incoming::{HeaderLines, Incoming};
use super::media::{Playing, Recording};
use super::program::{Action, Compare, Line, Media, Operand, Operation, Where};
use super::render::Context;
use super::stats::Failure;
use engine::{SocketId, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The payload type of telephone events where the peer names none, as SIPp has it.
const EVENTS: u8 = 96;
/// Synchronisation source of digits.
const DIGITS_SSRC: u32 = 0x5349_4454;
/// Synchronisation source of patterns.
const PATTERN_SSRC: u32 = 0x5349_5054;

impl Generator {
    /// Does the actions of a step in order.
    pub(super) fn perform(&mut self, actions: &[Action], slot: usize, now: Time) -> After {
        self.perform_on(actions, Subject::Received, slot, now)
    }

    /// The same, where regular expressions look at this message.
    pub(super) fn perform_on(
        &mut self,
        actions: &[Action],
        subject: Subject,
        slot: usize,
        now: Time,
    ) -> After {
        for action in actions {
            match self.act(action, subject, slot, now) {
                After::GoOn => {}
                after => return after,
            }
        }
        After::GoOn
    }

    fn act(&mut self, action: &Action, subject: Subject, slot: usize, now: Time) -> After {
        let context = &mut self.context;
        let Some(call) = self.calls.get_mut(slot) else {
            return After::Over;
        };
        match action {
            Action::Match {
                regex,
                place,
                check,
                assign,
            } => {
                let text = looked_at(context, call, subject, place);
                let matched = matches(context, call, regex, &text, assign);
                if check.is_some_and(|wanted| wanted != matched) {
                    let text = format!(
                        "call {}: a regular expression {}",
                        call.number,
                        match matched {
                            true => "matched that must not",
                            false => "did not match that must",
                        }
                    );
                    self.effect(Effect::Warning(text));
                    self.abort(slot, Failure::Check, now);
                    return After::Over;
                }
            }
            Action::Log(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Log(line));
            }
            Action::Warning(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Warning(String::from_utf8_lossy(&line).into_owned()));
            }
            Action::Error(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Warning(String::from_utf8_lossy(&line).into_owned()));
                return self.stop_now(now);
            }
            Action::Command(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Command(line));
            }
            Action::StopCall => {
                self.abort(slot, Failure::Stopped, now);
                return After::Over;
            }
            Action::StopGracefully => self.stop(),
            Action::StopNow => return self.stop_now(now),
            Action::Jump(operand) => {
                let to = value_of(context, call, *operand);
                return After::Jump(to.clamp(0.0, f64::from(u16::MAX)) as u16);
            }
            Action::Redirect {
                host,
                port,
                protocol,
            } => {
                let texts = [host, port, protocol].map(|text| {
                    String::from_utf8_lossy(&context.text(call, text, now)).into_owned()
                });
                return self.act_redirect(slot, &texts, now);
            }
            Action::Media(media) => self.act_media(*media, slot, now),
            Action::Digits(text) => {
                let text = context.text(call, text, now);
                self.play_digits(&text, slot, now);
            }
            Action::EchoAll(operand) => {
                self.echoing = context.settings.echo && value_of(context, call, *operand) != 0.0;
            }
            Action::RestorePause(operand) => {
                let until = value_of(context, call, *operand).max(0.0);
                call.restored = (until > 0.0).then(|| Time::from_millis(until as u64));
            }
            Action::CloseConnection => self.close_own_connection(slot),
            Action::Test { check, .. } | Action::CompareText { check, .. } => {
                let holds = compare(context, call, action, now);
                if check.is_some_and(|wanted| wanted != holds) {
                    let text = format!(
                        "call {}: a comparison {}",
                        call.number,
                        match holds {
                            true => "held that must not",
                            false => "did not hold that must",
                        }
                    );
                    self.effect(Effect::Warning(text));
                    self.abort(slot, Failure::Check, now);
                    return After::Over;
                }
            }
            other => compute(context, call, other, now),
        }
        After::GoOn
    }

    fn stop_now(&mut self, now: Time) -> After {
        self.stopped = true;
        self.end(now);
        After::Over
    }

    fn act_redirect(&mut self, slot: usize, texts: &[String; 3], now: Time) -> After {
        let [host, port, protocol] = texts;
        let wanted = self.context.settings.transport.uri_name();
        let address = host
            .trim()
            .parse()
            .ok()
            .zip(port.trim().parse().ok())
            .map(|(host, port)| SocketAddr::new(host, port));
        let stream = wanted != "udp";
        match address {
            Some(to) if protocol.trim().eq_ignore_ascii_case(wanted) && !stream => {
                self.redirect(slot, to);
                After::GoOn
            }
            _ => {
                self.effect(Effect::Warning(format!(
                    "setdest: {host}:{port} over {protocol} cannot be used: an address, over UDP"
                )));
                self.fail(slot, Failure::Connection, now);
                After::Over
            }
        }
    }

    fn act_media(&mut self, media: Media, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (to, recording, video, times) = match media {
            Media::Play { capture, line } => {
                let to = match line {
                    Line::Audio => call.media.audio,
                    Line::Video => call.media.video,
                    Line::Image => call.media.image,
                };
                let recording = self.recordings.get(usize::from(capture)).cloned();
                (to, recording, line == Line::Video, 1)
            }
            Media::Stream {
                sound,
                times,
                packing,
            } => {
                let recording = self.sounds.get(&(sound, packing)).cloned();
                (
                    call.media.of(packing.video),
                    recording,
                    packing.video,
                    times,
                )
            }
            Media::Pattern { octet, packing } => {
                let recording = Recording::of_pattern(octet, packing, PATTERN_SSRC);
                let to = call.media.of(packing.video);
                (to, Some(Arc::new(recording)), packing.video, -1)
            }
            Media::Pause(lines) => return call.media.hold(lines, true),
            Media::Resume(lines) => return call.media.hold(lines, false),
            Media::Echo { on, video } => {
                call.media.echo[usize::from(video)] = on;
                if let Some(address) = call.media.of(video) {
                    match on {
                        true => self.echoes.insert(address, slot as u32),
                        false => self.echoes.remove(&address),
                    };
                }
                return;
            }
        };
        let playing = recording
            .zip(to)
            .map(|(recording, to)| Playing::new(recording, to, video, times, now));
        self.start_playing(playing, usize::from(video), slot, now);
    }

    fn play_digits(&mut self, text: &[u8], slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let mut parts = text.split(|byte| *byte == b',');
        let digits = parts.next().unwrap_or_default().trim_ascii();
        let tone_ms = parts
            .next()
            .map(|tone| Value::Text(tone.to_vec()).number() as u64)
            .filter(|tone| (50..=2_000).contains(tone))
            .unwrap_or(200);
        let payload_type = call.media.events.unwrap_or(EVENTS);
        let tone = Duration::from_millis(tone_ms);
        let recording = Recording::of_digits(digits, tone, payload_type, DIGITS_SSRC);
        let playing = call
            .media
            .audio
            .map(|to| Playing::new(Arc::new(recording), to, false, 1, now));
        self.start_playing(playing, 2, slot, now);
    }

    fn start_playing(&mut self, playing: Option<Playing>, place: usize, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(playing) = playing else {
            let number = call.number;
            self.effect(Effect::Warning(format!(
                "call {number}: the peer has not said where it wants media"
            )));
            return;
        };
        if let Some(playing_there) = call.media.playing.get_mut(place) {
            *playing_there = Some(playing);
        }
        // Of several entries the ones that find nothing due do nothing.
        self.agenda.push(now, (slot as u32, call.generation));
    }

    /// Sends the media of a call that is due.
    pub(super) fn play(&mut self, slot: usize, generation: u32, now: Time) {
        let mut next: Option<Time> = None;
        for place in 0..3 {
            let Some(call) = self.calls.get_mut(slot) else {
                return;
            };
            if call.generation != generation {
                return;
            }
            let held = call.media.held.get(place).is_some_and(|held| *held);
            let Some(playing) = call.media.playing.get_mut(place) else {
                continue;
            };
            if held && let Some(playing) = playing {
                if playing.next_at().is_some_and(|at| at <= now) {
                    playing.shift(Duration::from_millis(20));
                }
            } else if let Some(playing) = playing {
                let socket: SocketId = if playing.is_video() { VIDEO } else { AUDIO };
                // Packets that a late wake-up has missed go out at once, as far as a batch.
                for _ in 0..64 {
                    if playing.next_at().is_none_or(|at| at > now) {
                        break;
                    }
                    let start = self.outbox.bytes.len();
                    if let Some(to) = playing.take(&mut self.outbox.bytes) {
                        self.outbox
                            .send_from(super::call::Route::Udp(socket, to), start);
                        self.statistics.media[0] += 1;
                    }
                }
            }
            match playing.as_ref().and_then(Playing::next_at) {
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => *playing = None,
            }
        }
        if let Some(at) = next
            && let Some(call) = self.calls.get_mut(slot)
            && call
                .media
                .next_play
                .is_none_or(|known| known <= now || at < known)
        {
            call.media.next_play = Some(at);
            self.agenda.push(at, (slot as u32, generation));
        }
    }
}

/// Actions on variables.
fn compute(context: &mut Context, call: &mut Call, action: &Action, now: Time) {
    let (to, value) = match action {
        Action::AssignText(to, text) => (*to, Value::Text(context.text(call, text, now))),
        Action::Compute(operation, to, operand) => {
            let left = context.value(call, *to).number();
            let right = value_of(context, call, *operand);
            let result = match operation {
                Operation::Assign => right,
                Operation::Add => left + right,
                Operation::Subtract => left - right,
                Operation::Multiply => left * right,
                // SIPp leaves the variable as it is.
                Operation::Divide if right == 0.0 => left,
                Operation::Divide => left / right,
            };
            (*to, Value::Number(result))
        }
        Action::Sample(to, distribution) => {
            (*to, Value::Number(distribution.draw(&mut context.entropy)))
        }
        Action::ToNumber { to, from } => (*to, Value::Number(context.value(call, *from).number())),
        Action::Url { variable, encode } => {
            let mut text = Vec::new();
            context.value(call, *variable).write(&mut text);
            (*variable, Value::Text(url(&text, *encode)))
        }
        Action::StepIndex(to) => (*to, Value::Number(f64::from(call.step))),
        Action::Insert { file, value } => {
            let line = context.text(call, value, now);
            if let Some(file) = context.files.get_mut(usize::from(*file)) {
                file.insert(line);
            }
            return;
        }
        Action::Replace { file, line, value } => {
            let number = Value::Text(context.text(call, line, now)).number().max(0.0);
            let line = context.text(call, value, now);
            if let Some(file) = context.files.get_mut(usize::from(*file)) {
                file.replace(number as u64, line);
            }
            return;
        }
        Action::Trim(variable) => {
            let mut text = Vec::new();
            context.value(call, *variable).write(&mut text);
            (*variable, Value::Text(text.trim_ascii().to_vec()))
        }
        Action::Clock(seconds, microseconds) => {
            let nanos = context.settings.wall.saturating_add(now.0);
            let whole = Value::Number((nanos / 1_000_000_000) as f64);
            context.set(call, *seconds, whole);
            let rest = (nanos / 1_000 % 1_000_000) as f64;
            (*microseconds, Value::Number(rest))
        }
        Action::Verify {
            to,
            username,
            password,
        } => {
            let username = context.text(call, username, now);
            let password = context.text(call, password, now);
            let right = Incoming::read(&call.last)
                .is_some_and(|request| verify(&request, &username, &password));
            (*to, Value::Truth(right))
        }
        Action::Lookup { to, file, key } => {
            let key = context.text(call, key, now);
            let line = context
                .files
                .get(usize::from(*file))
                .and_then(|file| file.find(&key));
            (*to, Value::Number(line.map_or(-1.0, |line| line as f64)))
        }
        _ => return,
    };
    context.set(call, to, value);
}

/// Compares numbers or texts; the outcome goes to its variable. Whether it holds, for texts whether they are equal.
fn compare(context: &mut Context, call: &mut Call, action: &Action, now: Time) -> bool {
    let (to, value, holds) = match action {
        Action::Test {
            to,
            left,
            compare,
            right,
            ..
        } => {
            let left = context.value(call, *left).number();
            let right = value_of(context, call, *right);
            let holds = match compare {
                Compare::Equal => left == right,
                Compare::NotEqual => left != right,
                Compare::Greater => left > right,
                Compare::Less => left < right,
                Compare::GreaterEqual => left >= right,
                Compare::LessEqual => left <= right,
            };
            (*to, Value::Truth(holds), holds)
        }
        Action::CompareText {
            to, left, right, ..
        } => {
            let mut text = Vec::new();
            context.value(call, *left).write(&mut text);
            let other = context.text(call, right, now);
            let order = text.cmp(&other) as i8;
            (*to, Value::Number(f64::from(order)), order == 0)
        }
        _ => return false,
    };
    if let Some(to) = to {
        context.set(call, to, value);
    }
    holds
}

/// A text encoded for a URL (RFC 3986 section 2), or decoded.
fn url(text: &[u8], encode: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        match (encode, byte) {
            (true, byte) if !plain => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            (false, b'%') => {
                let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
                match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
                    Some(code) => {
                        out.push(code);
                        rest = tail.get(2..).unwrap_or_default();
                    }
                    None => out.push(b'%'),
                }
            }
            (_, byte) => out.push(*byte),
        }
    }
    out
}

fn value_of(context: &Context, call: &Call, operand: Operand) -> f64 {
    match operand {
        Operand::Number(number) => number,
        Operand::Variable(variable) => context.value(call, variable).number(),
    }
}

/// The message that the actions of a step look at: what it sent, or what came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Sent,
    Received,
}

/// The text that an expression looks at.
fn looked_at(context: &Context, call: &Call, subject: Subject, place: &Where) -> Vec<u8> {
    let message = match subject {
        Subject::Sent => &call.sent.bytes,
        Subject::Received => &call.last,
    };
    match place {
        Where::Message => message.clone(),
        Where::Body => {
            let mut lines = HeaderLines::of(message);
            lines.by_ref().for_each(drop);
            message.get(lines.body..).unwrap_or_default().to_vec()
        }
        Where::Header {
            name,
            any_case,
            line_start,
            occurrence,
        } => behind(message, name, (*any_case, *line_start), *occurrence).to_vec(),
        Where::Variable(variable) => {
            let mut text = Vec::new();
            context.value(call, *variable).write(&mut text);
            text
        }
    }
}

/// Whether an expression matches; its groups go to the variables.
fn matches(
    context: &mut Context,
    call: &mut Call,
    regex: &regex::bytes::Regex,
    subject: &[u8],
    assign: &[u16],
) -> bool {
    let captures = regex.captures(subject);
    let matched = captures.is_some();
    for (index, variable) in assign.iter().enumerate() {
        let group = captures.as_ref().and_then(|captures| captures.get(index));
        let value = match (matched, group) {
            (true, Some(group)) => Value::Text(group.as_bytes().to_vec()),
            (true, None) => Value::Text(Vec::new()),
            (false, _) => Value::Unset,
        };
        context.set(call, *variable, value);
    }
    matched
}

/// The rest of the line behind the n-th occurrence of a text, without the space around it; empty where there is none.
fn behind<'m>(
    message: &'m [u8],
    text: &[u8],
    (any_case, line_start): (bool, bool),
    occurrence: u32,
) -> &'m [u8] {
    if text.is_empty() {
        return b"";
    }
    let (folded, wanted);
    let (haystack, needle) = match any_case {
        true => {
            folded = message.to_ascii_lowercase();
            wanted = text.to_ascii_lowercase();
            (folded.as_slice(), wanted.as_slice())
        }
        false => (message, text),
    };
    let nth = occurrence.saturating_sub(1) as usize;
    memchr::memmem::find_iter(haystack, needle)
        .filter(|at| {
            let before = at.checked_sub(1).and_then(|before| haystack.get(before));
            !line_start || before.is_none_or(|byte| *byte == b'\n')
        })
        .nth(nth)
        .map(|at| {
            let rest = message.get(at + text.len()..).unwrap_or_default();
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            rest.get(..end).unwrap_or_default().trim_ascii()
        })
        .unwrap_or_default()
}
