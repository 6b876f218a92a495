//! Execution of the actions of a call.

use super::call::{ScenarioCall, VariableValue, leading_number};
use super::digest::verify;
use super::engine::{AUDIO, Effect, ScenarioGenerator, VIDEO};
use super::flow::Continuation;
use super::incoming::{HeaderLines, Incoming};
use super::inject::LineChange;
use super::media::{Recording, RecordingPlayback, RtpNumbering};
use super::program::{
    ComparisonOperator, MatchTarget, MediaAction, Operand, Operation, PeerMediaLine, ScenarioAction,
};
use super::render::Context;
use super::stats::CallFailure;
use engine::{SocketId, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The payload type of telephone events if the peer declares none, as in SIPp.
const EVENTS: u8 = 96;

impl ScenarioGenerator {
    /// Executes the actions of a step in order.
    pub(super) fn perform(
        &mut self,
        actions: &[ScenarioAction],
        slot: usize,
        now: Time,
    ) -> Continuation {
        self.perform_on(actions, ExaminedMessage::Received, slot, now)
    }

    /// The same; regular expressions match the given message.
    pub(super) fn perform_on(
        &mut self,
        actions: &[ScenarioAction],
        examined: ExaminedMessage,
        slot: usize,
        now: Time,
    ) -> Continuation {
        // The further actions follow a jump, too, and another one replaces it, as in SIPp.
        let mut jump = None;
        for action in actions {
            match self.act(action, examined, slot, now) {
                Continuation::GoOn => {}
                Continuation::Jump(to) => jump = Some(to),
                Continuation::Checked => {
                    return jump.map_or(Continuation::Checked, Continuation::Jump);
                }
                after => return after,
            }
        }
        jump.map_or(Continuation::GoOn, Continuation::Jump)
    }

    /// A check of the scenario has failed. As in SIPp the call goes on, so that its peer is not left without an answer,
    /// and fails at its end.
    fn fail_check(&mut self, slot: usize, what: &str, why: &str) -> Continuation {
        let Some(call) = self.calls.get_mut(slot) else {
            return Continuation::Over;
        };
        call.check_failed = true;
        let text = format!("call {}: {what} {why}", call.number);
        self.effect(Effect::Warning(text));
        Continuation::Checked
    }

    fn act(
        &mut self,
        action: &ScenarioAction,
        examined: ExaminedMessage,
        slot: usize,
        now: Time,
    ) -> Continuation {
        let context = &mut self.context;
        let Some(call) = self.calls.get_mut(slot) else {
            return Continuation::Over;
        };
        match action {
            ScenarioAction::Match {
                regex,
                target,
                check,
                assign,
            } => {
                let text = examined_text(context, call, examined, target);
                let matched = matches(context, call, regex, &text, assign);
                if check.is_some_and(|wanted| wanted != matched) {
                    let why = match matched {
                        true => "matched unexpectedly",
                        false => "did not match",
                    };
                    return self.fail_check(slot, "a regular expression", why);
                }
            }
            ScenarioAction::Log(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Log(line));
            }
            ScenarioAction::Warning(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Warning(String::from_utf8_lossy(&line).into_owned()));
            }
            ScenarioAction::Error(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Warning(String::from_utf8_lossy(&line).into_owned()));
                return self.stop_now(now);
            }
            ScenarioAction::Command(text) => {
                let line = context.text(call, text, now);
                self.effect(Effect::Command(line));
            }
            ScenarioAction::StopCall => {
                self.abort(slot, CallFailure::Stopped, now);
                return Continuation::Over;
            }
            ScenarioAction::StopGracefully => self.stop(),
            ScenarioAction::StopNow => return self.stop_now(now),
            ScenarioAction::Jump(operand) => {
                let to = value_of(context, call, *operand);
                // No scenario has so many steps: the jump fails.
                let nowhere = u16::MAX;
                return Continuation::Jump(match to >= 0.0 {
                    true => to.min(f64::from(nowhere)) as u16,
                    false => nowhere,
                });
            }
            ScenarioAction::Redirect {
                host,
                port,
                protocol,
            } => {
                let texts = [host, port, protocol].map(|text| {
                    String::from_utf8_lossy(&context.text(call, text, now)).into_owned()
                });
                return self.act_redirect(slot, &texts, now);
            }
            ScenarioAction::Media(media) => self.act_media(*media, slot, now),
            ScenarioAction::Digits(text) => {
                let text = context.text(call, text, now);
                self.play_digits(&text, slot, now);
            }
            ScenarioAction::EchoAll(operand) => {
                self.echoing = context.settings.echo && value_of(context, call, *operand) != 0.0;
            }
            ScenarioAction::RestorePause(operand) => {
                let until = value_of(context, call, *operand).max(0.0);
                call.resumed_pause = (until > 0.0).then(|| Time::from_millis(until as u64));
            }
            ScenarioAction::CloseConnection => self.close_own_connection(slot),
            ScenarioAction::Test { check, .. } | ScenarioAction::CompareText { check, .. } => {
                let holds = compare(context, call, action, now);
                if check.is_some_and(|wanted| wanted != holds) {
                    let why = match holds {
                        true => "held unexpectedly",
                        false => "did not hold",
                    };
                    return self.fail_check(slot, "a comparison", why);
                }
            }
            ScenarioAction::Insert { file, value } => {
                let line = context.text(call, value, now);
                self.change_file(*file, None, &line);
            }
            ScenarioAction::Replace { file, line, value } => {
                let number = context.text(call, line, now);
                let place = leading_number(&number);
                let line = context.text(call, value, now);
                // Below zero is the line of a key that `lookup` has not found.
                if place < 0.0 || !self.change_file(*file, Some(place as u64), &line) {
                    let number = String::from_utf8_lossy(&number).into_owned();
                    self.effect(Effect::Warning(format!(
                        "replace: the file has no line {number}; the call ends"
                    )));
                    self.abort(slot, CallFailure::Stopped, now);
                    return Continuation::Over;
                }
            }
            other => compute(context, call, other, now),
        }
        Continuation::GoOn
    }

    fn stop_now(&mut self, now: Time) -> Continuation {
        self.stopped = true;
        self.end(now);
        Continuation::Over
    }

    /// Appends a line to an injection file in memory, or replaces one; returns whether there is one to replace.
    fn change_file(&mut self, file: u16, place: Option<u64>, line: &[u8]) -> bool {
        let Some(file) = self.context.files.get_mut(usize::from(file)) else {
            return false;
        };
        let change = match place {
            Some(number) => file.replace(number, line),
            None => file.insert(line),
        };
        let warning = match change {
            LineChange::Full => file.full_warning(),
            LineChange::Done | LineChange::NoLine => None,
        };
        if let Some(warning) = warning {
            self.effect(Effect::Warning(warning));
        }
        change != LineChange::NoLine
    }

    fn act_redirect(&mut self, slot: usize, texts: &[String; 3], now: Time) -> Continuation {
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
                Continuation::GoOn
            }
            _ => {
                self.effect(Effect::Warning(format!(
                    "setdest: {host}:{port} over {protocol} is not supported: expected an IP address and UDP"
                )));
                self.fail(slot, CallFailure::Connection, now);
                Continuation::Over
            }
        }
    }

    fn act_media(&mut self, media: MediaAction, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (to, recording, video, times) = match media {
            MediaAction::Play { capture, line } => {
                let to = match line {
                    PeerMediaLine::Audio => call.media.audio,
                    PeerMediaLine::Video => call.media.video,
                    PeerMediaLine::Image => call.media.image,
                };
                let recording = self.recordings.get(usize::from(capture)).cloned();
                (to, recording, line == PeerMediaLine::Video, 1)
            }
            MediaAction::Stream {
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
            MediaAction::Pattern { octet, packing } => {
                let recording = Recording::of_pattern(octet, packing);
                let to = call.media.of(packing.video);
                let check = &mut call.media.patterns[usize::from(packing.video)];
                check.is_without_address |= to.is_none();
                (to, Some(Arc::new(recording)), packing.video, -1)
            }
            MediaAction::Pause(lines) => return call.media.pause_streams(lines, true),
            MediaAction::Resume(lines) => return call.media.pause_streams(lines, false),
            MediaAction::Echo { on, video } => {
                let wanted = call.media.of(video).filter(|_| on);
                return self.set_echo(slot, video, wanted);
            }
        };
        let playing = recording
            .zip(to)
            .map(|(recording, to)| RecordingPlayback::new(recording, to, video, times, now));
        self.start_playing(playing, usize::from(video), slot, now);
        self.expect_pattern(slot, video);
    }

    fn play_digits(&mut self, text: &[u8], slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let mut parts = text.split(|byte| *byte == b',');
        let digits = parts.next().unwrap_or_default().trim_ascii();
        let tone_ms = parts
            .next()
            .map(|tone| leading_number(tone) as u64)
            .filter(|tone| (50..=2_000).contains(tone))
            .unwrap_or(200);
        let payload_type = call.media.events.unwrap_or(EVENTS);
        let tone = Duration::from_millis(tone_ms);
        let recording = Recording::of_digits(digits, tone, payload_type);
        let playing = call
            .media
            .audio
            .map(|to| RecordingPlayback::new(Arc::new(recording), to, false, 1, now));
        self.start_playing(playing, 2, slot, now);
    }

    fn start_playing(
        &mut self,
        playing: Option<RecordingPlayback>,
        place: usize,
        slot: usize,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(playing) = playing else {
            let number = call.number;
            self.effect(Effect::Warning(format!(
                "call {number}: the peer has sent no media address"
            )));
            return;
        };
        if let Some(current) = call.media.playing.get_mut(place) {
            *current = Some(playing);
        }
        if let Some(numbering) = call.media.numbering.get_mut(place) {
            let entropy = &mut self.context.entropy;
            numbering.get_or_insert_with(|| RtpNumbering::drawn(entropy, now));
        }
        // Surplus entries of the agenda find nothing due and do nothing.
        self.agenda.push(now, (slot as u32, call.generation));
    }

    /// Sends due media of a call.
    pub(super) fn play(&mut self, slot: usize, generation: u32, now: Time) {
        let mut next: Option<Time> = None;
        for place in 0..3 {
            let Some(call) = self.calls.get_mut(slot) else {
                return;
            };
            if call.generation != generation {
                return;
            }
            let media = &mut call.media;
            let paused = media.paused.get(place).is_some_and(|paused| *paused);
            let mut check = media.patterns.get_mut(place);
            let (Some(playing), Some(numbering)) =
                (media.playing.get_mut(place), media.numbering.get_mut(place))
            else {
                continue;
            };
            if paused && let Some(playing) = playing {
                if playing.next_at().is_some_and(|at| at <= now) {
                    playing.shift(Duration::from_millis(20));
                }
            } else if let (Some(playing), Some(numbering)) = (playing.as_mut(), numbering) {
                let socket: SocketId = if playing.is_video() { VIDEO } else { AUDIO };
                // Packets missed by a late wake-up are sent at once, up to a batch.
                for _ in 0..64 {
                    if playing.next_at().is_none_or(|at| at > now) {
                        break;
                    }
                    let start = self.outbox.bytes.len();
                    if let Some(to) = playing.write_next(numbering, &mut self.outbox.bytes) {
                        self.outbox
                            .send_from(super::call::PeerRoute::Udp(socket, to), start);
                        self.statistics.media[0] += 1;
                        if let (Some(_), Some(check)) = (playing.pattern(), &mut check) {
                            check.sent += 1;
                        }
                    }
                }
            }
            match playing.as_ref().and_then(RecordingPlayback::next_at) {
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
fn compute(context: &mut Context, call: &mut ScenarioCall, action: &ScenarioAction, now: Time) {
    let (to, value) = match action {
        ScenarioAction::AssignText(to, text) => {
            (*to, VariableValue::Text(context.text(call, text, now)))
        }
        ScenarioAction::Compute(operation, to, operand) => {
            let left = context.value(call, *to).number();
            let right = value_of(context, call, *operand);
            let result = match operation {
                Operation::Assign => right,
                Operation::Add => left + right,
                Operation::Subtract => left - right,
                Operation::Multiply => left * right,
                // SIPp leaves the variable unchanged.
                Operation::Divide if right == 0.0 => left,
                Operation::Divide => left / right,
            };
            (*to, VariableValue::Number(result))
        }
        ScenarioAction::Sample(to, distribution) => (
            *to,
            VariableValue::Number(distribution.draw(&mut context.entropy)),
        ),
        // Without a number the variable keeps its value, as in SIPp.
        ScenarioAction::ToNumber { to, from } => match context.value(call, *from).converted() {
            Some(number) => (*to, VariableValue::Number(number)),
            None => return,
        },
        ScenarioAction::Url { variable, encode } => {
            let mut text = Vec::new();
            context.value(call, *variable).write(&mut text);
            (*variable, VariableValue::Text(url(&text, *encode)))
        }
        ScenarioAction::StepIndex(to) => (*to, VariableValue::Number(f64::from(call.step))),
        ScenarioAction::Trim(variable) => {
            let text = context.value(call, *variable).text().trim_ascii();
            (*variable, VariableValue::Text(text.to_vec()))
        }
        ScenarioAction::Clock(seconds, microseconds) => {
            let nanos = context.settings.wall.saturating_add(now.0);
            let whole = VariableValue::Number((nanos / 1_000_000_000) as f64);
            context.set(call, *seconds, whole);
            let rest = (nanos / 1_000 % 1_000_000) as f64;
            (*microseconds, VariableValue::Number(rest))
        }
        ScenarioAction::Verify {
            to,
            username,
            password,
        } => {
            let username = context.text(call, username, now);
            let password = context.text(call, password, now);
            let right = Incoming::read(&call.last)
                .is_some_and(|request| verify(&request, &username, &password));
            (*to, VariableValue::Truth(right))
        }
        ScenarioAction::Lookup { to, file, key } => {
            let key = context.text(call, key, now);
            let line = context
                .files
                .get(usize::from(*file))
                .and_then(|file| file.find(&key));
            (
                *to,
                VariableValue::Number(line.map_or(-1.0, |line| line as f64)),
            )
        }
        _ => return,
    };
    context.set(call, to, value);
}

/// Compares numbers or texts and assigns the result to its variable. Returns whether the comparison holds, for texts
/// equality.
fn compare(
    context: &mut Context,
    call: &mut ScenarioCall,
    action: &ScenarioAction,
    now: Time,
) -> bool {
    let (to, value, holds) = match action {
        ScenarioAction::Test {
            to,
            left,
            compare,
            right,
            ..
        } => {
            let left = context.value(call, *left).number();
            let right = value_of(context, call, *right);
            let holds = match compare {
                ComparisonOperator::Equal => left == right,
                ComparisonOperator::NotEqual => left != right,
                ComparisonOperator::Greater => left > right,
                ComparisonOperator::Less => left < right,
                ComparisonOperator::GreaterEqual => left >= right,
                ComparisonOperator::LessEqual => left <= right,
            };
            (*to, VariableValue::Truth(holds), holds)
        }
        ScenarioAction::CompareText {
            to, left, right, ..
        } => {
            let other = context.text(call, right, now);
            let order = difference(context.value(call, *left).text(), &other);
            (*to, VariableValue::Number(f64::from(order)), order == 0)
        }
        _ => return false,
    };
    if let Some(to) = to {
        context.set(call, to, value);
    }
    holds
}

/// The difference of the first octets that differ, as of C's `strcmp`.
fn difference(left: &[u8], right: &[u8]) -> i16 {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    let [left, right] = [left, right].map(|text| text.get(common).copied().map_or(0, i16::from));
    left - right
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

fn value_of(context: &Context, call: &ScenarioCall, operand: Operand) -> f64 {
    match operand {
        Operand::Number(number) => number,
        Operand::Variable(variable) => context.value(call, variable).number(),
    }
}

/// The message that the actions of a step examine: the sent one, or the last received one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExaminedMessage {
    Sent,
    Received,
}

/// The text that an expression matches against.
fn examined_text(
    context: &Context,
    call: &ScenarioCall,
    examined: ExaminedMessage,
    target: &MatchTarget,
) -> Vec<u8> {
    let message = match examined {
        ExaminedMessage::Sent => &call.sent.bytes,
        ExaminedMessage::Received => &call.last,
    };
    match target {
        MatchTarget::Message => message.clone(),
        MatchTarget::Body => {
            let mut lines = HeaderLines::of(message);
            lines.by_ref().for_each(drop);
            message.get(lines.body..).unwrap_or_default().to_vec()
        }
        MatchTarget::Header {
            name,
            any_case,
            line_start,
            occurrence,
        } => rest_of_line(message, name, (*any_case, *line_start), *occurrence).to_vec(),
        MatchTarget::Variable(variable) => context.value(call, *variable).text().to_vec(),
    }
}

/// Whether an expression matches. Its groups are assigned to the variables, up to the first one that takes no part in
/// the match; without a match all variables keep their values. Both as in SIPp.
fn matches(
    context: &mut Context,
    call: &mut ScenarioCall,
    regex: &regex::bytes::Regex,
    examined: &[u8],
    assign: &[u16],
) -> bool {
    let Some(captures) = regex.captures(examined) else {
        return false;
    };
    for (index, variable) in assign.iter().enumerate() {
        let Some(group) = captures.get(index) else {
            break;
        };
        let value = VariableValue::Text(group.as_bytes().to_vec());
        context.set(call, *variable, value);
    }
    true
}

/// The rest of the line after the n-th occurrence of a text, with its spaces, as in SIPp; empty without one.
fn rest_of_line<'m>(
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
            let end = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
            rest.get(..end).unwrap_or_default()
        })
        .unwrap_or_default()
}
