//! Rendering of texts: pieces in sequence into one buffer.

use super::call::{ScenarioCall, VariableValue, leading_number};
use super::digest::DigestRequest;
use super::incoming::{HeaderLines, uri, values};
use super::inject::Injection;
use super::program::{Scope, Variable};
use super::settings::ScenarioSettings;
use super::stats::CallFailure;
use super::template::{TextPiece, TextTemplate, authentication_of_field};
use engine::{Entropy, Time};
use std::net::IpAddr;

/// Largest text, bytes: the limit of a datagram.
const MAX_TEXT_BYTES: usize = 65_000;

/// Inputs of texts, besides the call.
#[derive(Debug)]
pub struct Context {
    /// Settings.
    pub settings: ScenarioSettings,
    /// Injection files.
    pub files: Vec<Injection>,
    /// Randomness.
    pub entropy: Entropy,
    /// Scopes of the variables.
    pub scopes: Vec<Scope>,
    /// Variables of all calls.
    pub globals: Vec<VariableValue>,
    /// Variables of users.
    pub users: Vec<Vec<VariableValue>>,
    /// The next `[dynamic_id]`.
    pub dynamic: u64,
    /// The local port.
    pub local_port: u16,
    /// Whether the text had an `[authentication]` without a challenge.
    lacks_challenge: bool,
    /// Buffer for bodies, which are rendered first.
    body: Vec<u8>,
    scratch: Vec<u8>,
}

impl Context {
    /// A context with these settings and files.
    pub fn new(
        settings: ScenarioSettings,
        files: Vec<Injection>,
        variables: &[(String, Scope)],
        entropy: Entropy,
    ) -> Context {
        let mut globals = vec![VariableValue::Unset; variables.len()];
        for (name, value) in &settings.preset {
            let place = variables.iter().position(|(known, _)| known == name);
            // A text, also if it is a number: a telephone number is written as it was given.
            if let Some(global) = place.and_then(|at| globals.get_mut(at)) {
                *global = VariableValue::Text(value.clone().into_bytes());
            }
        }
        let users = settings.users.min(10_000_000) as usize;
        Context {
            files,
            entropy,
            scopes: variables.iter().map(|(_, scope)| *scope).collect(),
            users: match variables.iter().any(|(_, scope)| *scope == Scope::User) {
                true => vec![vec![VariableValue::Unset; variables.len()]; users],
                false => Vec::new(),
            },
            globals,
            dynamic: settings.share.0 + 1,
            local_port: settings.local.port(),
            settings,
            lacks_challenge: false,
            body: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The value of a variable.
    pub fn value<'v>(&'v self, call: &'v ScenarioCall, variable: Variable) -> &'v VariableValue {
        let at = usize::from(variable);
        match self.scopes.get(at) {
            Some(Scope::Global) => self.globals.get(at).unwrap_or(&VariableValue::Unset),
            Some(Scope::User) => call
                .user
                .and_then(|user| self.users.get(user as usize)?.get(at))
                .unwrap_or(&VariableValue::Unset),
            _ => call.variable(variable),
        }
    }

    /// Assigns a variable.
    pub fn set(&mut self, call: &mut ScenarioCall, variable: Variable, value: VariableValue) {
        let at = usize::from(variable);
        let place = match self.scopes.get(at) {
            Some(Scope::Global) => self.globals.get_mut(at),
            Some(Scope::User) => call
                .user
                .and_then(|user| self.users.get_mut(user as usize)?.get_mut(at)),
            _ => {
                if call.variables.len() <= at {
                    call.variables
                        .resize(self.scopes.len(), VariableValue::Unset);
                }
                call.variables.get_mut(at)
            }
        };
        if let Some(place) = place {
            *place = value;
        }
    }

    /// Appends a message or another text of step `step`.
    ///
    /// # Errors
    /// The text is too long, or there is no challenge for its `[authentication]`.
    pub fn write(
        &mut self,
        call: &mut ScenarioCall,
        text: &TextTemplate,
        step: u16,
        now: Time,
        out: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let start = out.len();
        // A text for a parameter of another one is written meanwhile.
        let outer = std::mem::take(&mut self.lacks_challenge);
        if !text.needs_body {
            self.pieces(call, &text.head, (step, start, now), b"", out);
            self.pieces(call, &text.body, (step, start, now), b"", out);
        } else {
            let mut body = std::mem::take(&mut self.body);
            body.clear();
            self.pieces(call, &text.body, (step, 0, now), b"", &mut body);
            self.pieces(call, &text.head, (step, start, now), &body, out);
            out.extend_from_slice(&body);
            self.body = body;
        }
        let lacks_challenge = std::mem::replace(&mut self.lacks_challenge, outer);
        match out.len() - start > MAX_TEXT_BYTES {
            true => Err(CallFailure::Unwritable),
            false if lacks_challenge => Err(CallFailure::NoChallenge),
            false => Ok(()),
        }
    }

    /// Renders a text by itself.
    pub fn text(&mut self, call: &mut ScenarioCall, text: &TextTemplate, now: Time) -> Vec<u8> {
        let mut out = Vec::new();
        let step = call.step;
        // Text beyond the size of a datagram is truncated.
        if self.write(call, text, step, now, &mut out).is_err() {
            out.truncate(MAX_TEXT_BYTES);
        }
        out
    }

    fn pieces(
        &mut self,
        call: &mut ScenarioCall,
        pieces: &[TextPiece],
        at: (u16, usize, Time),
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        let (mut skipping, mut drops_line_end) = (false, false);
        for piece in pieces {
            if skipping {
                if let TextPiece::Text(text) = piece
                    && let Some(end) = memchr::memchr(b'\n', text)
                {
                    out.extend_from_slice(text.get(end + 1..).unwrap_or_default());
                    skipping = false;
                }
                continue;
            }
            if let TextPiece::Text(text) = piece {
                let drops = std::mem::take(&mut drops_line_end);
                out.extend_from_slice(if drops { after_line_end(text) } else { text });
                continue;
            }
            let before = out.len();
            let begins_line = before == at.1 || out.last() == Some(&b'\n');
            self.piece(call, piece, at, body, out);
            drops_line_end =
                out.len() == before && (drops_line_end || begins_line && piece.drops_its_line());
            if out.len() == before && piece.may_be_empty() {
                if let TextPiece::Authentication { bare: true, .. } = piece {
                    let line = out
                        .iter()
                        .rposition(|byte| *byte == b'\n')
                        .map_or(0, |at| at + 1);
                    out.truncate(line.max(at.1));
                }
                skipping = out.len() == at.1 || out.last() == Some(&b'\n');
                drops_line_end &= !skipping;
            }
            if out.len() - at.1 > MAX_TEXT_BYTES {
                return;
            }
        }
    }

    fn piece(
        &mut self,
        call: &mut ScenarioCall,
        piece: &TextPiece,
        (step, start, now): (u16, usize, Time),
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        match piece {
            TextPiece::Text(text) => out.extend_from_slice(text),
            // Constants were resolved when the sockets were open.
            TextPiece::Constant(..) => {}
            TextPiece::RemoteIp => ip(call.remote.ip(), out),
            TextPiece::RemotePort(offset) => signed(i64::from(call.remote.port()) + offset, out),
            TextPiece::LocalPort(offset) => {
                let port = call.local_port.unwrap_or(self.local_port);
                signed(i64::from(port) + offset, out);
            }
            TextPiece::CallNumber => decimal(call.number, out),
            TextPiece::CallId => out.extend_from_slice(&call.id),
            TextPiece::Cseq(offset) => signed(i64::from(call.cseq) + offset, out),
            TextPiece::Branch(offset) => {
                branch(
                    self.settings.pid,
                    call.number,
                    i64::from(step) + offset,
                    out,
                );
            }
            TextPiece::Length(offset) => signed(body.len() as i64 + offset, out),
            TextPiece::StepIndex => decimal(u64::from(step), out),
            TextPiece::ClockTick => decimal(now.as_millis(), out),
            TextPiece::Timestamp => timestamp(self.settings.wall.saturating_add(now.0), out),
            TextPiece::Date => date(self.settings.wall.saturating_add(now.0), out),
            TextPiece::DynamicId => {
                decimal(self.dynamic, out);
                // Those of the threads of a run differ.
                self.dynamic += self.settings.share.1.max(1);
            }
            // Users count from 1; 0 is a call without one.
            TextPiece::UserId => decimal(call.user.map_or(0, |user| user + 1), out),
            TextPiece::PeerTag => {
                if !call.peer_tag.is_empty() {
                    out.extend_from_slice(b";tag=");
                    out.extend_from_slice(&call.peer_tag);
                }
            }
            TextPiece::Routes => {
                if !call.routes.is_empty() {
                    out.extend_from_slice(b"Route: ");
                    out.extend_from_slice(&call.routes);
                }
            }
            TextPiece::NextUrl => out.extend_from_slice(&call.next_url),
            TextPiece::Last { name, bare } => last_header(&call.last, name, *bare, out),
            TextPiece::LastMessage => out.extend_from_slice(&call.last),
            TextPiece::LastCseq(offset) => {
                let value = values(&call.last, b"CSeq").next().unwrap_or_default();
                signed(leading_number(value) as i64 + offset, out);
            }
            TextPiece::LastRequestUri => {
                let value = values(&call.last, b"To").next().unwrap_or_default();
                out.extend_from_slice(uri(value));
            }
            TextPiece::Variable(variable) => self.value(call, *variable).write(out),
            TextPiece::Field { file, field, line } => {
                self.field(
                    call,
                    (*file, *field, line.as_deref()),
                    (start, now),
                    body,
                    out,
                );
            }
            TextPiece::Authentication {
                username,
                password,
                bare,
            } => {
                let username = username.as_ref().map(|text| self.text(call, text, now));
                let password = password.as_ref().map(|text| self.text(call, text, now));
                self.credentials(call, (username, password, *bare), start, body, out);
            }
            TextPiece::Fill { variable, text } => {
                let length = self
                    .value(call, *variable)
                    .number()
                    .clamp(0.0, MAX_TEXT_BYTES as f64);
                out.extend(text.iter().cycle().take(length as usize));
            }
        }
    }

    fn field(
        &mut self,
        call: &mut ScenarioCall,
        (file, field, line): (u16, u16, Option<&TextTemplate>),
        (start, now): (usize, Time),
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        let named = line.map(|text| leading_number(&self.text(call, text, now)));
        let Some(injection) = self.files.get(usize::from(file)) else {
            return;
        };
        let line = match named {
            // A line that the file does not have is empty, as in SIPp: -1 is that of a key that was not found.
            Some(line) if !(0.0..injection.len() as f64).contains(&line) => return,
            Some(line) => line as u64,
            None => call.lines.get(usize::from(file)).copied().unwrap_or(0) % injection.len(),
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        injection.write_field(line, usize::from(field), &mut scratch);
        match authentication_of_field(&scratch) {
            Some((username, password)) => {
                self.credentials(call, (username, password, false), start, body, out);
            }
            None => out.extend_from_slice(&scratch),
        }
        self.scratch = scratch;
    }

    fn credentials(
        &mut self,
        call: &mut ScenarioCall,
        (username, password, bare): (Option<Vec<u8>>, Option<Vec<u8>>, bool),
        start: usize,
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        let Some(challenge) = call.challenge.take() else {
            self.lacks_challenge = true;
            return;
        };
        let settings = &self.settings;
        let username = username.unwrap_or_else(|| settings.username.clone().into_bytes());
        let password = password.unwrap_or_else(|| settings.password.clone().into_bytes());
        let head = HeaderLines::of(out.get(start..).unwrap_or_default()).start;
        let mut words = head.split(|byte| *byte == b' ');
        let method = words.next().unwrap_or_default().to_vec();
        let target = match &settings.digest_uri {
            Some(target) => target.clone().into_bytes(),
            None => words.next().unwrap_or_default().to_vec(),
        };
        if !bare {
            out.extend_from_slice(challenge.header());
            out.extend_from_slice(b": ");
        }
        let request = DigestRequest {
            method: &method,
            uri: &target,
            body,
        };
        challenge.write(
            &username,
            &password,
            &request,
            &mut call.session,
            &mut self.entropy,
            out,
        );
        call.challenge = Some(challenge);
    }
}

/// The text behind the line end with which it begins; the whole text if its line has further characters.
fn after_line_end(text: &[u8]) -> &[u8] {
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r');
    let spaces = text.iter().take_while(is_space).count();
    match text.get(spaces) {
        Some(b'\n') => text.get(spaces + 1..).unwrap_or_default(),
        _ => text,
    }
}

/// A header of the last message as the value of a keyword: several occurrences in one line.
fn last_header(last: &[u8], name: &[u8], bare: bool, out: &mut Vec<u8>) {
    for (index, value) in values(last, name).enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        } else if !bare {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
        }
        out.extend_from_slice(value);
    }
}

/// `[branch]`: the magic cookie, process, call and step.
pub fn branch(pid: u32, call: u64, step: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"z9hG4bK-");
    decimal(u64::from(pid), out);
    out.push(b'-');
    decimal(call, out);
    out.push(b'-');
    signed(step, out);
}

/// Appends a number.
pub fn decimal(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

fn signed(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    decimal(number.unsigned_abs(), out);
}

/// Appends an address in SIP notation: an IPv6 one in brackets.
pub fn ip(ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => {
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                decimal(u64::from(octet), out);
            }
        }
        IpAddr::V6(ip) => out.extend_from_slice(format!("[{ip}]").as_bytes()),
    }
}

/// Year, month and day of a day number since 1970 (proleptic Gregorian; eras of 400 years from March).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

fn timestamp(nanos: u64, out: &mut Vec<u8>) {
    let seconds = nanos / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = nanos / 1_000 % 1_000_000;
    out.extend_from_slice(
        format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
            .as_bytes(),
    );
}

fn date(nanos: u64, out: &mut Vec<u8>) {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let seconds = nanos / 1_000_000_000;
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let week = DAYS.get((days % 7) as usize).unwrap_or(&"");
    let name = MONTHS.get(month as usize - 1).unwrap_or(&"");
    out.extend_from_slice(
        format!("{week}, {day:02} {name} {year} {hour:02}:{minute:02}:{second:02} GMT").as_bytes(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sipp::template::{NameTable, message};

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn dates() {
        // 2021-10-25 07:20:55 UTC was a Monday.
        let nanos = 1_635_146_455_000_250_000;
        assert_eq!(
            written(|out| date(nanos, out)),
            "Mon, 25 Oct 2021 07:20:55 GMT"
        );
        assert_eq!(
            written(|out| timestamp(nanos, out)),
            "2021-10-25 07:20:55.000250"
        );
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }

    #[test]
    fn numbers() {
        assert_eq!(written(|out| decimal(u64::MAX, out)), u64::MAX.to_string());
        assert_eq!(written(|out| signed(-30, out)), "-30");
        assert_eq!(
            written(|out| ip("10.0.200.1".parse().unwrap(), out)),
            "10.0.200.1"
        );
        assert_eq!(
            written(|out| ip("2001:db8::1".parse().unwrap(), out)),
            "[2001:db8::1]"
        );
    }

    #[test]
    fn empty_keywords_remove_their_line() {
        let mut names = NameTable::default();
        let source = b"SIP/2.0 200 OK\n[last_Via:]\n[last_To:];tag=[call_number]x\n[last_X:];y\n[routes]\nA: [last_From.value]z\nAuthorization: [authentication]\nContent-Length: [len]\n\n[$v]";
        let text = message(source, &mut names).unwrap();
        let mut context = Context::new(
            ScenarioSettings::default(),
            Vec::new(),
            &names.variables,
            Entropy::from_number(1),
        );
        let mut call = ScenarioCall::new();
        call.number = 7;
        call.last = b"BYE x SIP/2.0\r\nv: a\r\nTo: <sip:b>\r\nVia: c\r\nFrom: f\r\n\r\n".to_vec();
        context.set(&mut call, 0, VariableValue::Text(b"four".to_vec()));
        let got = context.text(&mut call, &text, Time::ZERO);
        assert_eq!(
            String::from_utf8(got).unwrap(),
            "SIP/2.0 200 OK\r\nVia: a, c\r\nTo: <sip:b>;tag=7x\r\nA: fz\r\nContent-Length: 4\r\n\r\nfour"
        );
    }
}
