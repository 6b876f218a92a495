//! Texts with keywords, split in advance: parts that are equal in all calls become one piece.

use super::inject::Injection;
use super::program::{Scope, Variable};
use std::collections::BTreeMap;

/// Most pieces of one text.
const MAX_PIECES: usize = 4_096;
/// Deepest nesting of keywords.
const MAX_DEPTH: usize = 4;

/// A value that is the same in all calls of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// `[service]`
    Service,
    /// `[remote_host]`
    RemoteHost,
    /// `[transport]`
    Transport,
    /// `[local_ip]`, `[server_ip]`
    LocalIp,
    /// `[local_ip_type]`
    LocalIpType,
    /// `[media_ip]`
    MediaIp,
    /// `[media_ip_type]`
    MediaIpType,
    /// `[media_port]` and its like.
    MediaPort,
    /// `[pid]`
    Pid,
    /// `[sipp_version]`
    Version,
    /// `[users]`
    Users,
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum TextPiece {
    /// Literal text.
    Text(Vec<u8>),
    /// A constant of the run, with an offset to a number.
    Constant(Constant, i64),
    /// `[remote_ip]`
    RemoteIp,
    /// `[remote_port]`
    RemotePort(i64),
    /// `[local_port]`
    LocalPort(i64),
    /// `[call_number]`
    CallNumber,
    /// `[call_id]`
    CallId,
    /// `[cseq]`
    Cseq(i64),
    /// `[branch]`
    Branch(i64),
    /// `[len]`
    Length(i64),
    /// `[msg_index]`
    StepIndex,
    /// `[clock_tick]`
    ClockTick,
    /// `[timestamp]`
    Timestamp,
    /// `[date]`
    Date,
    /// `[dynamic_id]`
    DynamicId,
    /// `[userid]`
    UserId,
    /// `[peer_tag_param]`
    PeerTag,
    /// `[routes]`
    Routes,
    /// `[next_url]`
    NextUrl,
    /// `[last_Name:]`
    Last {
        /// The header's name.
        name: Vec<u8>,
        /// Whether the name is omitted.
        bare: bool,
    },
    /// `[last_message]`
    LastMessage,
    /// `[last_cseq_number]`
    LastCseq(i64),
    /// `[last_Request_URI]`
    LastRequestUri,
    /// `[$name]`
    Variable(Variable),
    /// `[field0]`
    Field {
        /// Injection file.
        file: u16,
        /// Field.
        field: u16,
        /// The line, if the text selects one.
        line: Option<Box<TextTemplate>>,
    },
    /// `[authentication]`
    Authentication {
        /// User name; by default that of the command line.
        username: Option<Box<TextTemplate>>,
        /// Password; by default that of the command line.
        password: Option<Box<TextTemplate>>,
        /// Whether the line already has the header name.
        bare: bool,
    },
    /// `[fill]`
    Fill {
        /// Length.
        variable: Variable,
        /// The repeated text.
        text: Vec<u8>,
    },
}

/// A text: of a message in head and body, of anything else in the head alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextTemplate {
    /// Start line, headers and the empty line; or the whole text.
    pub head: Vec<TextPiece>,
    /// The body.
    pub body: Vec<TextPiece>,
    /// Whether the head needs the length or bytes of the body.
    pub needs_body: bool,
}

impl TextTemplate {
    /// A text without keywords.
    pub fn plain(text: &[u8]) -> TextTemplate {
        TextTemplate {
            head: vec![TextPiece::Text(text.to_vec())],
            ..TextTemplate::default()
        }
    }

    /// The text, if it has no keywords.
    pub fn as_plain(&self) -> Option<&[u8]> {
        match self.head.as_slice() {
            [] => Some(b""),
            [TextPiece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Visits all pieces, including nested ones.
    pub fn each(&self, visit: &mut dyn FnMut(&TextPiece)) {
        for piece in self.head.iter().chain(&self.body) {
            visit(piece);
            for inner in piece.inner().into_iter().flatten() {
                inner.each(visit);
            }
        }
    }

    /// Resolves constants and joins adjacent literals.
    pub fn bind(&mut self, value: &dyn Fn(&TextPiece) -> Option<Vec<u8>>) {
        bind(&mut self.head, value);
        bind(&mut self.body, value);
        // The length of a literal body is constant.
        if let [] | [TextPiece::Text(_)] = self.body.as_slice() {
            let length = match self.body.first() {
                Some(TextPiece::Text(text)) => text.len() as i64,
                _ => 0,
            };
            bind(&mut self.head, &|piece| match piece {
                TextPiece::Length(offset) => Some((length + offset).to_string().into_bytes()),
                _ => None,
            });
        }
        self.needs_body = self.head.iter().any(|piece| {
            matches!(
                piece,
                TextPiece::Length(_) | TextPiece::Authentication { .. } | TextPiece::Field { .. }
            )
        });
    }
}

fn bind(pieces: &mut Vec<TextPiece>, value: &dyn Fn(&TextPiece) -> Option<Vec<u8>>) {
    let mut bound: Vec<TextPiece> = Vec::with_capacity(pieces.len());
    for mut piece in pieces.drain(..) {
        if let Some(text) = value(&piece) {
            piece = TextPiece::Text(text);
        }
        for inner in piece.inner_mut().into_iter().flatten() {
            inner.bind(value);
        }
        match (bound.last_mut(), piece) {
            (Some(TextPiece::Text(before)), TextPiece::Text(text)) => {
                before.extend_from_slice(&text)
            }
            (_, piece) => bound.push(piece),
        }
    }
    *pieces = bound;
}

impl TextPiece {
    fn inner(&self) -> [Option<&TextTemplate>; 2] {
        match self {
            TextPiece::Field { line, .. } => [line.as_deref(), None],
            TextPiece::Authentication {
                username, password, ..
            } => [username.as_deref(), password.as_deref()],
            _ => [None, None],
        }
    }

    fn inner_mut(&mut self) -> [Option<&mut TextTemplate>; 2] {
        match self {
            TextPiece::Field { line, .. } => [line.as_deref_mut(), None],
            TextPiece::Authentication {
                username, password, ..
            } => [username.as_deref_mut(), password.as_deref_mut()],
            _ => [None, None],
        }
    }

    /// Whether its line is left out if it is empty and alone there, as in SIPp: an empty line would end the headers.
    pub fn drops_its_line(&self) -> bool {
        matches!(self, TextPiece::Variable(_) | TextPiece::Field { .. })
    }

    /// Whether it may be empty, which removes the rest of its line.
    pub fn may_be_empty(&self) -> bool {
        matches!(
            self,
            TextPiece::Last { .. } | TextPiece::Routes | TextPiece::Authentication { .. }
        )
    }
}

/// Names that texts refer to, numbered in order of appearance.
#[derive(Debug, Default)]
pub struct NameTable {
    /// Variables with their scopes.
    pub variables: Vec<(String, Scope)>,
    /// How often each variable is named; those that are declared count twice.
    pub uses: Vec<u32>,
    /// Keywords of the command line.
    pub keys: BTreeMap<String, String>,
    /// Injection files, by name.
    pub files: Vec<String>,
    /// Contents for `[file name=...]`; `None`: to be read.
    pub wanted_files: BTreeMap<String, Option<Vec<u8>>>,
    /// Whether calls are made by users.
    pub users: bool,
}

impl NameTable {
    /// The number of a variable.
    ///
    /// # Errors
    /// Too many variables, or no name.
    pub fn variable(&mut self, name: &str) -> Result<Variable, String> {
        if let Some(at) = self.variables.iter().position(|(known, _)| known == name) {
            self.count_use(at);
            return Ok(at as Variable);
        }
        if self.variables.len() >= 1_000 {
            return Err("more than 1000 variables".to_owned());
        }
        if name.is_empty() {
            return Err("a variable without a name".to_owned());
        }
        self.variables.push((name.to_owned(), Scope::Call));
        self.count_use(self.variables.len() - 1);
        Ok((self.variables.len() - 1) as Variable)
    }

    /// Counts a use of a variable.
    pub fn count_use(&mut self, at: usize) {
        self.uses.resize(self.variables.len(), 0);
        if let Some(count) = self.uses.get_mut(at) {
            *count += 1;
        }
    }

    /// Variables that are named only once, which is a slip of the pen: SIPp refuses them.
    pub fn used_once(&self) -> impl Iterator<Item = &str> {
        let named = self.variables.iter().zip(&self.uses);
        named.filter_map(|((name, _), count)| {
            (*count == 1 && !name.starts_with("_unexp.")).then_some(name.as_str())
        })
    }

    /// The number of an injection file; the first without a name.
    ///
    /// # Errors
    /// There is no such file.
    pub fn file(&self, name: Option<&str>) -> Result<u16, String> {
        let found = match name {
            None if self.files.is_empty() => {
                return Err("a field needs an injection file (--inject FILE)".to_owned());
            }
            None => Some(0),
            Some(name) => {
                let last = name.rsplit('/').next().unwrap_or(name);
                self.files.iter().position(|known| known == last)
            }
        };
        found.map(|at| at as u16).ok_or_else(|| {
            format!(
                "no injection file is called {:?} (--inject FILE)",
                name.unwrap_or_default()
            )
        })
    }

    /// Adds the names of the injection files.
    pub fn with_files(mut self, files: &[Injection]) -> NameTable {
        self.files = files.iter().map(|file| file.name.clone()).collect();
        self
    }
}

/// Splits a text that is no message.
///
/// # Errors
/// An unknown keyword; the text names it.
pub fn text(source: &[u8], names: &mut NameTable) -> Result<TextTemplate, String> {
    cut(source, names, MAX_DEPTH).map(|head| TextTemplate {
        head,
        ..TextTemplate::default()
    })
}

/// Splits a message as written in a `<send>`: space around lines is removed, line ends become CRLF, an empty line ends
/// the head. A body whose last line has no end in the file has none in the message, as in SIPp.
///
/// # Errors
/// As [`text`].
pub fn message(source: &[u8], names: &mut NameTable) -> Result<TextTemplate, String> {
    let mut lines: Vec<&[u8]> = source
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .skip_while(|line| line.is_empty())
        .collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    if lines.is_empty() {
        return Err("a message without text".to_owned());
    }
    let end = lines
        .iter()
        .position(|line| line.is_empty())
        .unwrap_or(lines.len());
    let join = |lines: &[&[u8]]| {
        let mut joined = Vec::new();
        for line in lines {
            joined.extend_from_slice(line);
            joined.extend_from_slice(b"\r\n");
        }
        joined
    };
    let mut head = join(lines.get(..end).unwrap_or_default());
    head.extend_from_slice(b"\r\n");
    let mut body = join(lines.get(end + 1..).unwrap_or_default());
    let trailing = source.iter().rev();
    let mut trailing = trailing.take_while(|byte| byte.is_ascii_whitespace());
    if !trailing.any(|byte| *byte == b'\n') {
        body.truncate(body.len().saturating_sub(2));
    }
    Ok(TextTemplate {
        head: cut(&head, names, MAX_DEPTH)?,
        body: cut(&body, names, MAX_DEPTH)?,
        needs_body: true,
    })
}

/// Splits a text at its keywords.
fn cut(source: &[u8], names: &mut NameTable, depth: usize) -> Result<Vec<TextPiece>, String> {
    let mut pieces = Vec::new();
    let mut plain = Vec::new();
    let mut rest = source;
    while let Some(&byte) = rest.first() {
        if byte == b'\\'
            && let Some(code) = hexadecimal(rest)
        {
            plain.push(code);
            rest = rest.get(4..).unwrap_or_default();
            continue;
        }
        let inside = match byte {
            b'[' => enclosed(rest),
            _ => None,
        };
        let Some(inside) = inside else {
            plain.push(byte);
            rest = rest.get(1..).unwrap_or_default();
            continue;
        };
        let bare = line_has_authorization(&plain);
        let piece = match keyword(inside, names, depth, bare) {
            Ok(piece) => piece,
            // A bracket in front of a keyword's own is literal, as in SIPp: `[[local_ip]]`.
            Err(_) if inside.contains(&b'[') => {
                plain.push(byte);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            Err(text) => return Err(text),
        };
        if !plain.is_empty() {
            pieces.push(TextPiece::Text(std::mem::take(&mut plain)));
        }
        pieces.push(piece);
        if pieces.len() > MAX_PIECES {
            return Err(format!("more than {MAX_PIECES} keywords in one text"));
        }
        rest = rest.get(inside.len() + 2..).unwrap_or_default();
    }
    if !plain.is_empty() {
        pieces.push(TextPiece::Text(plain));
    }
    Ok(pieces)
}

/// `\x5b`
fn hexadecimal(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\x")?.get(..2)?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The text between a bracket and the one that closes it, on one line.
fn enclosed(text: &[u8]) -> Option<&[u8]> {
    let mut depth = 0usize;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' if depth == 1 => return text.get(1..at),
            b']' => depth -= 1,
            b'\n' => return None,
            _ => {}
        }
    }
    None
}

/// Whether the line so far is the name of a header for credentials.
fn line_has_authorization(plain: &[u8]) -> bool {
    let line = plain
        .rsplit(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    [&b"Authorization:"[..], b"Proxy-Authorization:"]
        .iter()
        .any(|name| line.eq_ignore_ascii_case(name))
}

/// A keyword with its offset: `local_port+2`.
fn with_offset(word: &str) -> (&str, i64) {
    let at = word.rfind(['+', '-']).filter(|at| *at > 0);
    if let Some((name, number)) = at.map(|at| word.split_at(at))
        && let Ok(offset) = number.parse::<i32>()
    {
        return (name, i64::from(offset));
    }
    (word, 0)
}

fn keyword(
    inside: &[u8],
    names: &mut NameTable,
    depth: usize,
    bare: bool,
) -> Result<TextPiece, String> {
    let whole = String::from_utf8_lossy(inside).into_owned();
    if depth == 0 {
        return Err(format!("[{whole}]: keywords nested too deeply"));
    }
    if let Some(name) = whole.strip_prefix('$') {
        return names.variable(name.trim()).map(TextPiece::Variable);
    }
    if let Some(value) = names.keys.get(whole.trim()) {
        return Ok(TextPiece::Text(value.clone().into_bytes()));
    }
    let (word, parameters) = match whole.find(char::is_whitespace) {
        Some(at) => whole.split_at(at),
        None => (whole.as_str(), ""),
    };
    let parameters = Parameters::read(&whole, parameters)?;
    match word {
        "authentication" => return authentication(parameters, names, depth, bare),
        "fill" => return fill(parameters, names),
        "file" => return file(parameters, names),
        _ => {}
    }
    let (name, offset) = with_offset(word);
    if let Some(field) = word
        .strip_prefix("field")
        .and_then(|digits| digits.parse::<u16>().ok())
    {
        return injected(field, parameters, names, depth);
    }
    parameters.none()?;
    if let Some(piece) = simple(name, offset) {
        return Ok(piece);
    }
    if let Some(header) = word.strip_prefix("last_") {
        return Ok(last(header));
    }
    Err(format!("the keyword [{whole}] is not supported"))
}

/// Keywords that are one word.
fn simple(name: &str, offset: i64) -> Option<TextPiece> {
    let numbered = match name {
        "remote_port" => Some(TextPiece::RemotePort(offset)),
        "local_port" => Some(TextPiece::LocalPort(offset)),
        "media_port" | "auto_media_port" | "rtpstream_audio_port" => {
            Some(TextPiece::Constant(Constant::MediaPort, offset))
        }
        "rtpstream_video_port" => Some(TextPiece::Constant(Constant::MediaPort, offset + 2)),
        "cseq" => Some(TextPiece::Cseq(offset)),
        "branch" => Some(TextPiece::Branch(offset)),
        "len" => Some(TextPiece::Length(offset)),
        "last_cseq_number" => Some(TextPiece::LastCseq(offset)),
        _ => None,
    };
    if numbered.is_some() {
        return numbered;
    }
    // SIPp accepts an offset after any keyword and applies it to numbers only.
    Some(match name {
        "service" => TextPiece::Constant(Constant::Service, 0),
        "remote_host" => TextPiece::Constant(Constant::RemoteHost, 0),
        "remote_ip" => TextPiece::RemoteIp,
        "transport" => TextPiece::Constant(Constant::Transport, 0),
        "local_ip" | "server_ip" => TextPiece::Constant(Constant::LocalIp, 0),
        "local_ip_type" => TextPiece::Constant(Constant::LocalIpType, 0),
        "media_ip" => TextPiece::Constant(Constant::MediaIp, 0),
        "media_ip_type" => TextPiece::Constant(Constant::MediaIpType, 0),
        "pid" => TextPiece::Constant(Constant::Pid, 0),
        "sipp_version" => TextPiece::Constant(Constant::Version, 0),
        "users" => TextPiece::Constant(Constant::Users, 0),
        "call_number" => TextPiece::CallNumber,
        "call_id" => TextPiece::CallId,
        "msg_index" => TextPiece::StepIndex,
        "clock_tick" => TextPiece::ClockTick,
        "timestamp" => TextPiece::Timestamp,
        "date" => TextPiece::Date,
        "dynamic_id" => TextPiece::DynamicId,
        "userid" => TextPiece::UserId,
        "peer_tag_param" => TextPiece::PeerTag,
        "routes" => TextPiece::Routes,
        "next_url" => TextPiece::NextUrl,
        "last_message" => TextPiece::LastMessage,
        "last_Request_URI" => TextPiece::LastRequestUri,
        _ => return None,
    })
}

fn last(header: &str) -> TextPiece {
    let (name, bare) = match header.strip_suffix(".value") {
        Some(name) => (name, true),
        None => (header, false),
    };
    TextPiece::Last {
        name: name.trim_end_matches(':').trim().as_bytes().to_vec(),
        bare,
    }
}

fn injected(
    field: u16,
    mut parameters: Parameters,
    names: &mut NameTable,
    depth: usize,
) -> Result<TextPiece, String> {
    let file = names.file(parameters.take("file").as_deref())?;
    let line = match parameters.take("line") {
        Some(line) => Some(Box::new(inner(&line, names, depth)?)),
        None => None,
    };
    parameters.none()?;
    Ok(TextPiece::Field { file, field, line })
}

fn inner(source: &str, names: &mut NameTable, depth: usize) -> Result<TextTemplate, String> {
    Ok(TextTemplate {
        head: cut(source.as_bytes(), names, depth - 1)?,
        ..TextTemplate::default()
    })
}

fn authentication(
    mut parameters: Parameters,
    names: &mut NameTable,
    depth: usize,
    bare: bool,
) -> Result<TextPiece, String> {
    let mut part = |name: &str| {
        parameters
            .take(name)
            .map(|value| inner(&value, names, depth).map(Box::new))
            .transpose()
    };
    let piece = TextPiece::Authentication {
        username: part("username")?,
        password: part("password")?,
        bare,
    };
    parameters.none()?;
    Ok(piece)
}

fn fill(mut parameters: Parameters, names: &mut NameTable) -> Result<TextPiece, String> {
    let variable = parameters
        .take("variable")
        .ok_or("[fill] needs variable=NAME")?;
    let text = parameters.take("text").unwrap_or_else(|| "X".to_owned());
    parameters.none()?;
    if text.is_empty() {
        return Err("[fill] with an empty text".to_owned());
    }
    Ok(TextPiece::Fill {
        variable: names.variable(&variable)?,
        text: text.into_bytes(),
    })
}

fn file(mut parameters: Parameters, names: &mut NameTable) -> Result<TextPiece, String> {
    let name = parameters.take("name").ok_or("[file] needs name=FILE")?;
    parameters.none()?;
    match names.wanted_files.get(&name) {
        Some(Some(text)) => Ok(TextPiece::Text(text.clone())),
        Some(None) => Err(format!("[file name={name}]: the file cannot be read")),
        None => {
            // The caller reads it and compiles again.
            names.wanted_files.insert(name, None);
            Ok(TextPiece::Text(Vec::new()))
        }
    }
}

/// Parameters of a keyword, `name=value` with or without quotes; a value may contain keywords.
struct Parameters {
    keyword: String,
    list: Vec<(String, String)>,
}

impl Parameters {
    fn read(keyword: &str, text: &str) -> Result<Parameters, String> {
        let mut list = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (name, value) = rest
                .split_once('=')
                .ok_or_else(|| format!("[{keyword}]: {rest:?} is not name=value"))?;
            let value = value.trim_start();
            let (value, after) = value_of(value);
            list.push((name.trim().to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        Ok(Parameters {
            keyword: keyword.to_owned(),
            list,
        })
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.list.iter().position(|(known, _)| known == name)?;
        Some(self.list.remove(at).1)
    }

    /// Fails on unused parameters.
    fn none(&self) -> Result<(), String> {
        match self.list.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "the parameter {name} of [{}] is not supported",
                self.keyword
            )),
        }
    }
}

/// A value and the rest after it.
fn value_of(text: &str) -> (&str, &str) {
    let text = text.strip_prefix('\\').unwrap_or(text);
    if let Some(quoted) = text.strip_prefix('"')
        && let Some(end) = quoted.find('"')
    {
        let (value, rest) = quoted.split_at(end);
        return (value.strip_suffix('\\').unwrap_or(value), &rest[1..]);
    }
    let mut depth = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ if character.is_whitespace() && depth == 0 => return text.split_at(at),
            _ => {}
        }
    }
    (text, "")
}

/// User name and password, if present.
pub type FieldCredentials = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The parameters of an `[authentication ...]` from an injection file.
pub fn authentication_of_field(text: &[u8]) -> Option<FieldCredentials> {
    let inside = text.trim_ascii().strip_prefix(b"[authentication")?;
    let inside = String::from_utf8_lossy(inside.strip_suffix(b"]")?).into_owned();
    let mut parameters = Parameters::read("authentication", &inside).ok()?;
    let mut take = |name: &str| parameters.take(name).map(String::into_bytes);
    Some((take("username"), take("password")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> NameTable {
        NameTable {
            files: vec!["a.csv".into(), "b.csv".into()],
            keys: [("realm".to_owned(), "home".to_owned())].into(),
            ..NameTable::default()
        }
    }

    #[test]
    fn message_is_normalized() {
        let source = b"\n\n   INVITE sip:[service]@x SIP/2.0  \n  Call-ID: a///[call_id]\n Content-Length: [len]\n\n  v=0\n  s=-\n\n  ";
        let text = message(source, &mut names()).unwrap();
        assert_eq!(
            text.head,
            [
                TextPiece::Text(b"INVITE sip:".to_vec()),
                TextPiece::Constant(Constant::Service, 0),
                TextPiece::Text(b"@x SIP/2.0\r\nCall-ID: a///".to_vec()),
                TextPiece::CallId,
                TextPiece::Text(b"\r\nContent-Length: ".to_vec()),
                TextPiece::Length(0),
                TextPiece::Text(b"\r\n\r\n".to_vec()),
            ]
        );
        assert_eq!(text.body, [TextPiece::Text(b"v=0\r\ns=-\r\n".to_vec())]);
        let mut bound = text;
        bound.bind(&|piece| match piece {
            TextPiece::Constant(Constant::Service, _) => Some(b"bob".to_vec()),
            _ => None,
        });
        assert_eq!(bound.head.len(), 3);
        assert_eq!(
            bound.head[2],
            TextPiece::Text(b"\r\nContent-Length: 10\r\n\r\n".to_vec())
        );
        assert!(!bound.needs_body);
    }

    #[test]
    fn keywords() {
        let mut names = names();
        let mut one = |source: &str| {
            let text = text(source.as_bytes(), &mut names).unwrap();
            assert_eq!(text.head.len(), 1, "{source}");
            text.head.into_iter().next().unwrap()
        };
        assert_eq!(one("[local_port+2]"), TextPiece::LocalPort(2));
        assert_eq!(one("[branch-3]"), TextPiece::Branch(-3));
        assert_eq!(one("[call_number+1]"), TextPiece::CallNumber);
        assert_eq!(one("[realm]"), TextPiece::Text(b"home".to_vec()));
        assert_eq!(one("\\x5bx]"), TextPiece::Text(b"[x]".to_vec()));
        assert_eq!(one("[::"), TextPiece::Text(b"[::".to_vec()));
        assert_eq!(
            one("[last_Record-Route:]"),
            TextPiece::Last {
                name: b"Record-Route".to_vec(),
                bare: false
            }
        );
        assert_eq!(
            one("[last_To.value]"),
            TextPiece::Last {
                name: b"To".to_vec(),
                bare: true
            }
        );
        assert_eq!(
            one("[field2 file=\"b.csv\" line=[$n]]"),
            TextPiece::Field {
                file: 1,
                field: 2,
                line: Some(Box::new(TextTemplate {
                    head: vec![TextPiece::Variable(0)],
                    ..TextTemplate::default()
                }))
            }
        );
        assert_eq!(
            one("[authentication username=[field0] password=\"a b\"]"),
            TextPiece::Authentication {
                username: Some(Box::new(TextTemplate {
                    head: vec![TextPiece::Field {
                        file: 0,
                        field: 0,
                        line: None
                    }],
                    ..TextTemplate::default()
                })),
                password: Some(Box::new(TextTemplate::plain(b"a b"))),
                bare: false
            }
        );
        assert_eq!(
            one("[fill variable=n text=\"ab\"]"),
            TextPiece::Fill {
                variable: 0,
                text: b"ab".to_vec()
            }
        );
    }

    #[test]
    fn unknown_keywords_are_reported_by_name() {
        for source in [
            "[tdmmap]",
            "[frobnicate]",
            "[field0 file=c.csv]",
            "[authentication aka_OP=1]",
            "[fill]",
            "[len x=1]",
            "[1-100]",
        ] {
            let error = text(source.as_bytes(), &mut names()).unwrap_err();
            assert!(!error.is_empty(), "{source}");
        }
        let error = text(b"[tdmmap]", &mut names()).unwrap_err();
        assert!(error.contains("[tdmmap]"), "{error}");
    }

    #[test]
    fn credentials_from_an_injection_field() {
        let (user, password) =
            authentication_of_field(b"[authentication username=joe password=schmo]").unwrap();
        assert_eq!(user.unwrap(), b"joe");
        assert_eq!(password.unwrap(), b"schmo");
        assert!(authentication_of_field(b"joe").is_none());
    }
}
