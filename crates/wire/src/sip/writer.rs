//! Writing messages into a buffer, without a source or from a message and edits.

use super::feedback::is_feedback;
use super::host::HostPort;
use super::ids::{HeaderId, Method};
use super::list::{Values, skip_values};
use super::message::{Header, Message};
use super::typed::{Via, ViaParts};
use super::vector::first_of;
use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;

/// Appends one message to a `Vec` without other allocations. Dropping a writer without [`Writer::finish`] or
/// [`Writer::body`] leaves an incomplete message.
///
/// Values cannot break out of their line: CR and LF in them are written as blanks (which also unfolds them).
#[derive(Debug)]
pub struct Writer<'o> {
    pub(super) out: &'o mut Vec<u8>,
}

impl<'o> Writer<'o> {
    /// Begins a request.
    pub fn request(out: &'o mut Vec<u8>, method: Method<'_>, uri: &[u8]) -> Writer<'o> {
        let mut writer = Writer { out };
        writer.text(method.as_bytes());
        writer.out.push(b' ');
        writer.text(uri);
        writer.out.extend_from_slice(b" SIP/2.0\r\n");
        writer
    }

    /// Begins a response.
    pub fn response(out: &'o mut Vec<u8>, status: u16, reason: &[u8]) -> Writer<'o> {
        let mut writer = Writer { out };
        writer.out.extend_from_slice(b"SIP/2.0 ");
        writer.digits(u64::from(status));
        writer.out.push(b' ');
        writer.text(reason);
        writer.end_line();
        writer
    }

    /// A header line. Nothing is written for [`HeaderId::Other`]: see [`Writer::header_named`].
    pub fn header(&mut self, id: HeaderId, value: &[u8]) -> &mut Self {
        self.header_parts(id, &[value])
    }

    /// A header line with a value that is concatenated from parts.
    pub fn header_parts(&mut self, id: HeaderId, parts: &[&[u8]]) -> &mut Self {
        if id != HeaderId::Other {
            self.begin(id);
            for part in parts {
                self.text(part);
            }
            self.end_line();
        }
        self
    }

    /// A header line with a formatted value: `header_fmt(id, format_args!(...))`.
    pub fn header_fmt(&mut self, id: HeaderId, value: fmt::Arguments<'_>) -> &mut Self {
        if id != HeaderId::Other {
            self.begin(id);
            self.formatted(value);
            self.end_line();
        }
        self
    }

    /// A header line with an undeclared name.
    pub fn header_named(&mut self, name: &[u8], value: &[u8]) -> &mut Self {
        self.text(name);
        self.out.extend_from_slice(b": ");
        self.text(value);
        self.end_line();
        self
    }

    /// A header line with a number.
    pub fn number(&mut self, id: HeaderId, value: u64) -> &mut Self {
        if id != HeaderId::Other {
            self.begin(id);
            self.digits(value);
            self.end_line();
        }
        self
    }

    /// `CSeq: number method`
    pub fn cseq(&mut self, number: u32, method: Method<'_>) -> &mut Self {
        self.begin(HeaderId::CSeq);
        self.digits(u64::from(number));
        self.out.push(b' ');
        self.text(method.as_bytes());
        self.end_line();
        self
    }

    /// `name: <uri>` with an optional tag; for From, To, Contact, Route and the like.
    pub fn address(&mut self, id: HeaderId, uri: &[u8], tag: Option<&[u8]>) -> &mut Self {
        match tag {
            Some(tag) => self.header_parts(id, &[b"<", uri, b">;tag=", tag]),
            None => self.header_parts(id, &[b"<", uri, b">"]),
        }
    }

    /// A Via line.
    pub fn via(&mut self, parts: &ViaParts<'_>) -> &mut Self {
        self.begin(HeaderId::Via);
        self.out.extend_from_slice(b"SIP/2.0/");
        self.text(parts.transport.as_bytes());
        self.out.push(b' ');
        self.host_port(&parts.sent_by);
        self.out.extend_from_slice(b";branch=");
        self.text(parts.branch);
        if parts.rport {
            self.out.extend_from_slice(b";rport");
        }
        if !parts.extra.is_empty() {
            self.out.push(b';');
            self.text(parts.extra);
        }
        self.end_line();
        self
    }

    /// A copy of a header field of another message, byte for byte; a line end other than CRLF becomes CRLF.
    pub fn copy(&mut self, header: &Header<'_>) -> &mut Self {
        match header.raw.ends_with(b"\r\n") {
            true => self.out.extend_from_slice(header.raw),
            false => {
                self.out.extend_from_slice(header.raw.trim_ascii_end());
                self.end_line();
            }
        }
        self
    }

    /// All fields with this identifier of another message, byte for byte.
    pub fn copy_all(&mut self, message: &Message<'_>, id: HeaderId) -> &mut Self {
        if message.has(id) {
            for header in message.headers().filter(|header| header.id == id) {
                self.copy(&header);
            }
        }
        self
    }

    /// Ends the message without a body: `Content-Length: 0`.
    pub fn finish(mut self) {
        self.number_line(0);
        self.end_line();
    }

    /// Ends the message with a body; Content-Type and Content-Length are written here.
    pub fn body(mut self, content_type: &[u8], body: &[u8]) {
        self.header(HeaderId::ContentType, content_type);
        self.number_line(body.len());
        self.end_line();
        self.out.extend_from_slice(body);
    }

    fn number_line(&mut self, length: usize) {
        self.number(HeaderId::ContentLength, length as u64);
    }

    pub(super) fn begin(&mut self, id: HeaderId) {
        self.out.extend_from_slice(id.name().as_bytes());
        self.out.extend_from_slice(b": ");
    }

    pub(super) fn end_line(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    fn host_port(&mut self, value: &HostPort<'_>) {
        self.formatted(format_args!("{value}"));
    }

    fn digits(&mut self, value: u64) {
        append_decimal(self.out, value);
    }

    fn formatted(&mut self, value: fmt::Arguments<'_>) {
        let from = self.out.len();
        // Writing into a Vec cannot fail; a formatter that fails leaves its output up to that point.
        let _ = self.out.write_fmt(value);
        for byte in self.out.iter_mut().skip(from) {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
    }

    fn text(&mut self, text: &[u8]) {
        append_text(self.out, text);
    }
}

/// Appends `text` with blanks in place of CR and LF, so that no value breaks out of its line (which also unfolds it).
pub fn append_text(out: &mut Vec<u8>, text: &[u8]) {
    let from = out.len();
    out.extend_from_slice(text);
    if first_of([b'\r', b'\n', b'\n'], text).is_some() {
        for byte in out.iter_mut().skip(from) {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
    }
}

/// Appends the decimal digits of `value`; several times as fast as `core::fmt`.
pub fn append_decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Prepared header fields, which are written by copying: each `name: value` with its line end.
#[derive(Clone, Copy, Debug)]
pub struct FieldLines<'e> {
    text: &'e [u8],
    heads: &'e HeaderSets,
}

/// The headers that [`FieldLines`] affect, as sets of [`HeaderId::bit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderSets {
    /// Headers that the lines may contain; a superset.
    pub written: u128,
    /// Headers whose fields in the message are removed. Names without an identifier are not contained.
    pub replaced: u128,
}

/// Separator of name and value in [`FieldLines`].
pub const COLON: &[u8] = b": ";
/// Line end.
pub const CRLF: &[u8] = b"\r\n";

impl<'e> FieldLines<'e> {
    /// The lines of `text`. `None` if it does not end with a line end.
    ///
    /// The caller guarantees, once, that each name is a token followed by [`COLON`], that no value contains a CR or LF,
    /// and that `heads` covers all of the lines. None of this is checked here.
    #[inline]
    pub fn new(text: &'e [u8], heads: &'e HeaderSets) -> Option<FieldLines<'e>> {
        let lines = FieldLines { text, heads };
        debug_assert!(
            lines
                .fields()
                .all(|(id, name, _)| !name.is_empty() && heads.written & id.bit() != 0),
            "{}",
            text.escape_ascii()
        );
        text.ends_with(CRLF).then_some(lines)
    }

    /// The affected headers.
    pub const fn heads(&self) -> &'e HeaderSets {
        self.heads
    }

    /// All lines.
    pub const fn text(&self) -> &'e [u8] {
        self.text
    }

    /// Identifier, name and value of each field.
    pub fn fields(&self) -> impl Iterator<Item = (HeaderId, &'e [u8], &'e [u8])> + use<'e> {
        let mut rest = self.text;
        core::iter::from_fn(move || {
            let end = memchr::memmem::find(rest, CRLF)?;
            let line = rest.get(..end)?;
            rest = rest.get(end + CRLF.len()..)?;
            let at = memchr::memmem::find(line, COLON).unwrap_or(0);
            let name = line.get(..at)?;
            let value = line.get(at + COLON.len()..).unwrap_or_default();
            Some((HeaderId::from_name(name), name, value))
        })
    }
}

/// One change to an outgoing message.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'e> {
    /// Replace the Request-URI (requests only; responses have none).
    RequestUri(&'e [u8]),
    /// Remove all fields with this identifier.
    Remove(HeaderId),
    /// Remove all fields with this name (names without an identifier).
    RemoveNamed(&'e [u8]),
    /// Remove the first value of this identifier (the topmost Via or Route).
    RemoveFirst(HeaderId),
    /// Replace all fields with this identifier by one with this value, at the position of the first; added at the end
    /// if there is none.
    Replace {
        /// Identifier.
        id: HeaderId,
        /// The new value.
        value: &'e [u8],
    },
    /// Add a field before the first with this identifier, or before all headers if there is none.
    Prepend {
        /// Identifier.
        id: HeaderId,
        /// The value.
        value: &'e [u8],
    },
    /// Add a field after all others.
    Add {
        /// Identifier.
        id: HeaderId,
        /// The value.
        value: &'e [u8],
    },
    /// Add a field with an undeclared name after all others.
    AddNamed {
        /// Its name.
        name: &'e [u8],
        /// Its value.
        value: &'e [u8],
    },
    /// Add prepared fields after all others and remove the fields of the message that they replace.
    Lines(FieldLines<'e>),
    /// Replace the body. Content-Length is updated. Content-Type is replaced if given; otherwise it is kept, or removed
    /// with an empty body.
    Body {
        /// The new Content-Type.
        content_type: Option<&'e [u8]>,
        /// The new body.
        body: &'e [u8],
    },
}

/// Appends `message` with `edits` to `out`. Everything that is not edited stays byte for byte the same, in the same
/// order.
pub fn emit(message: &Message<'_>, edits: &[Edit<'_>], out: &mut Vec<u8>) {
    Emitter {
        message,
        edits,
        out,
    }
    .run();
}

/// State of [`emit`].
struct Emitter<'m, 'a, 'e, 'o> {
    message: &'m Message<'a>,
    edits: &'m [Edit<'e>],
    pub(super) out: &'o mut Vec<u8>,
}

impl<'e> Emitter<'_, '_, 'e, '_> {
    fn run(&mut self) {
        self.start_line();
        // Prepended fields with identifiers that the message does not have go to the top.
        let message = self.message;
        for edit in self.edits {
            if let Edit::Prepend { id, value } = *edit
                && !message.has(id)
            {
                self.line(id, value);
            }
        }
        for (index, header) in message.headers().enumerate() {
            self.field(index, &header);
        }
        self.added();
        let separator = message.raw_separator();
        match (separator, self.edits) {
            ([], [_, ..]) => self.out.extend_from_slice(b"\r\n"),
            _ => self.out.extend_from_slice(separator),
        }
        let body = self.new_body().map_or(message.body(), |(_, body)| body);
        self.out.extend_from_slice(body);
    }

    fn start_line(&mut self) {
        let uri = self.edits.iter().rev().find_map(|edit| match edit {
            Edit::RequestUri(uri) => Some(*uri),
            _ => None,
        });
        match uri.filter(|_| self.message.is_request()) {
            Some(uri) => {
                Writer::request(self.out, self.message.method(), uri);
            }
            None => self.out.extend_from_slice(self.message.raw_start_line()),
        }
    }

    fn new_body(&self) -> Option<(Option<&'e [u8]>, &'e [u8])> {
        self.edits.iter().rev().find_map(|edit| match *edit {
            Edit::Body { content_type, body } => Some((content_type, body)),
            _ => None,
        })
    }

    /// Writes one field of the message, as changed by the edits.
    fn field(&mut self, index: usize, header: &Header<'_>) {
        let id = header.id;
        let known = id != HeaderId::Other;
        let first = known && self.is_first(index, id);
        if first {
            for edit in self.edits {
                match *edit {
                    Edit::Prepend { id: which, value } if which == id => self.line(id, value),
                    _ => {}
                }
            }
        }
        if let Some(value) = self.replacement(id).filter(|_| known) {
            if first {
                self.line(id, value);
            }
            return;
        }
        if self.body_header(id, first) || self.is_removed(header) {
            return;
        }
        match self.first_removals(index, id) {
            0 => self.out.extend_from_slice(header.raw),
            cuts => {
                if let Some(rest) = skip_values(header.value, cuts).filter(|_| id.is_list()) {
                    self.line(id, rest);
                }
            }
        }
    }

    fn is_first(&self, index: usize, id: HeaderId) -> bool {
        self.message.first_field(id) == Some(index)
    }

    /// The value of the last `Replace` for this identifier.
    fn replacement(&self, id: HeaderId) -> Option<&'e [u8]> {
        self.edits.iter().rev().find_map(|edit| match *edit {
            Edit::Replace { id: which, value } if which == id => Some(value),
            _ => None,
        })
    }

    fn is_removed(&self, header: &Header<'_>) -> bool {
        self.edits.iter().any(|edit| match edit {
            Edit::Remove(id) => *id == header.id,
            Edit::Lines(lines) => {
                header.id != HeaderId::Other && lines.heads.replaced & header.id.bit() != 0
            }
            Edit::RemoveNamed(name) => name.eq_ignore_ascii_case(header.name),
            _ => false,
        })
    }

    /// Content-Length and Content-Type of a new body; returns true if the field is done.
    fn body_header(&mut self, id: HeaderId, first: bool) -> bool {
        let Some((content_type, body)) = self.new_body() else {
            return false;
        };
        match id {
            HeaderId::ContentLength => {
                if first {
                    Writer { out: self.out }.number_line(body.len());
                }
                true
            }
            HeaderId::ContentType => match content_type.filter(|_| !body.is_empty()) {
                Some(value) => {
                    if first {
                        self.line(id, value);
                    }
                    true
                }
                None => body.is_empty(),
            },
            _ => false,
        }
    }

    /// Number of values that `RemoveFirst` removes from the field at `index`: those not removed from earlier fields.
    fn first_removals(&self, index: usize, id: HeaderId) -> usize {
        let wanted = self
            .edits
            .iter()
            .filter(|edit| matches!(edit, Edit::RemoveFirst(which) if *which == id))
            .count();
        if wanted == 0 || id == HeaderId::Other {
            return 0;
        }
        let earlier = self
            .message
            .headers()
            .take(index)
            .filter(|header| header.id == id);
        let used: usize = earlier
            .map(|header| match id.is_list() {
                true => Values::list(header.value).count(),
                false => 1,
            })
            .sum();
        wanted.saturating_sub(used)
    }

    fn is_last_replace(&self, at: usize, id: HeaderId) -> bool {
        !self
            .edits
            .iter()
            .skip(at + 1)
            .any(|edit| matches!(edit, Edit::Replace { id: which, .. } if *which == id))
    }

    fn added(&mut self) {
        for (at, edit) in self.edits.iter().enumerate() {
            match *edit {
                Edit::Add { id, value } => self.line(id, value),
                Edit::AddNamed { name, value } => {
                    Writer { out: self.out }.header_named(name, value);
                }
                Edit::Lines(lines) => self.out.extend_from_slice(lines.text),
                Edit::Replace { id, value }
                    if !self.message.has(id) && self.is_last_replace(at, id) =>
                {
                    self.line(id, value);
                }
                _ => {}
            }
        }
        if let Some((content_type, body)) = self.new_body() {
            if let Some(value) = content_type.filter(|_| !body.is_empty())
                && !self.message.has(HeaderId::ContentType)
            {
                self.line(HeaderId::ContentType, value);
            }
            if !self.message.has(HeaderId::ContentLength) {
                Writer { out: self.out }.number_line(body.len());
            }
        }
    }

    fn line(&mut self, id: HeaderId, value: &[u8]) {
        Writer { out: self.out }.header(id, value);
    }
}

/// A response to a request. Via, From, To (with `to_tag` if the request's To has none and this is not a 100), Call-ID
/// and CSeq are copied from the request; malformed requests are supported as far as possible.
#[derive(Clone, Copy, Debug)]
pub struct Response<'r, 'a> {
    /// The request.
    pub request: &'r Message<'a>,
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: &'r [u8],
    /// The local tag.
    pub to_tag: Option<&'r [u8]>,
    /// Source address of the request, for `received` and `rport` of the topmost Via (RFC 3261 section 18.2.1, RFC 3581
    /// section 4). `None` leaves the Via unmodified.
    pub source: Option<SocketAddr>,
    /// Replacement of `oc` in the topmost Via (RFC 7339), as parameters; if empty, `oc` is left unmodified.
    pub feedback: &'r [u8],
    /// Whether Record-Route is copied (responses that create a dialog, RFC 3261 section 12.1.1).
    pub record_route: bool,
    /// Content-Type and body; `None`: `Content-Length: 0`.
    pub body: Option<(&'r [u8], &'r [u8])>,
}

impl<'r, 'a> Response<'r, 'a> {
    /// A response without source, Record-Route and body.
    pub fn new(request: &'r Message<'a>, status: u16, reason: &'r [u8]) -> Self {
        Response {
            request,
            status,
            reason,
            to_tag: None,
            source: None,
            feedback: b"",
            record_route: false,
            body: None,
        }
    }

    /// Appends the response to `out`; `extra` writes further headers.
    pub fn write(&self, extra: impl FnOnce(&mut Writer<'_>), out: &mut Vec<u8>) {
        let mut writer = Writer::response(out, self.status, self.reason);
        self.vias(&mut writer);
        if self.record_route {
            writer.copy_all(self.request, HeaderId::RecordRoute);
        }
        writer.copy_all(self.request, HeaderId::From);
        self.to(&mut writer);
        writer.copy_all(self.request, HeaderId::CallId);
        writer.copy_all(self.request, HeaderId::CSeq);
        extra(&mut writer);
        match self.body {
            Some((content_type, body)) => writer.body(content_type, body),
            None => writer.finish(),
        }
    }

    fn vias(&self, writer: &mut Writer<'_>) {
        let (Some(source), Ok(top)) = (self.source, self.request.via()) else {
            writer.copy_all(self.request, HeaderId::Via);
            return;
        };
        let vias = self
            .request
            .headers()
            .filter(|header| header.id == HeaderId::Via);
        for (index, header) in vias.enumerate() {
            if index > 0 {
                writer.copy(&header);
                continue;
            }
            writer.begin(HeaderId::Via);
            writer.received_via(&top, source, self.feedback);
            if let Some(rest) = skip_values(header.value, 1) {
                writer.out.extend_from_slice(b", ");
                writer.text(rest);
            }
            writer.end_line();
        }
    }

    fn to(&self, writer: &mut Writer<'_>) {
        let tagged = self.request.to().ok().is_some_and(|to| to.tag().is_some());
        match self.to_tag.filter(|_| !tagged && self.status != 100) {
            Some(tag) => {
                let value = self.request.header(HeaderId::To).unwrap_or_default();
                writer.header_parts(HeaderId::To, &[value, b";tag=", tag]);
            }
            None => {
                writer.copy_all(self.request, HeaderId::To);
            }
        }
    }
}

impl Writer<'_> {
    /// Writes the value of a Via with `received` and, if requested, `rport`.
    pub(super) fn received_via(&mut self, via: &Via<'_>, source: SocketAddr, feedback: &[u8]) {
        self.out.extend_from_slice(b"SIP/2.0/");
        self.text(via.transport);
        self.out.push(b' ');
        self.host_port(&via.sent_by());
        let requested = via.rport().is_some();
        let mut tells = false;
        for param in via.params.iter() {
            let ours = param.name.eq_ignore_ascii_case(b"received")
                || param.name.eq_ignore_ascii_case(b"rport");
            if ours || !feedback.is_empty() && is_feedback(param.name) {
                tells |= param.name.eq_ignore_ascii_case(b"oc");
                continue;
            }
            self.out.push(b';');
            self.text(param.name);
            if let Some(value) = param.value {
                self.out.push(b'=');
                self.text(value);
            }
        }
        if requested || via.host.ip() != Some(source.ip()) {
            self.formatted(format_args!(";received={}", source.ip()));
        }
        if requested {
            self.out.extend_from_slice(b";rport=");
            self.digits(u64::from(source.port()));
        }
        if tells {
            self.out.extend_from_slice(feedback);
        }
    }
}

/// Appends a response without body; `extra` writes further headers (Record-Route, if required, by
/// [`Writer::copy_all`]). See [`Response`] for a body and for `received`.
pub fn write_response(
    request: &Message<'_>,
    status: u16,
    reason: &[u8],
    to_tag: Option<&[u8]>,
    extra: impl FnOnce(&mut Writer<'_>),
    out: &mut Vec<u8>,
) {
    Response {
        to_tag,
        ..Response::new(request, status, reason)
    }
    .write(extra, out);
}
