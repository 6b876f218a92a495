//! Writing messages: header lines, defaults, templates with edits, reason phrases.

use crate::api::{Body, MessageContent, Refused};
use wire::sip::{Edit, HeaderId, Message, Method, NameAddr, Session, append_decimal, append_text};

/// Appends header lines to a buffer. CR and LF in values become blanks, so that a value cannot end its line.
pub(crate) struct Lines<'o> {
    pub(crate) out: &'o mut Vec<u8>,
}

impl Lines<'_> {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &[u8]) -> &mut Self {
        append_text(self.out, text);
        self
    }

    pub(crate) fn digits(&mut self, value: u64) -> &mut Self {
        append_decimal(self.out, value);
        self
    }

    pub(crate) fn name(&mut self, id: HeaderId) -> &mut Self {
        self.raw(id.name().as_bytes()).raw(b": ")
    }

    pub(crate) fn end(&mut self) -> &mut Self {
        self.raw(b"\r\n")
    }

    pub(crate) fn header(&mut self, id: HeaderId, value: &[u8]) -> &mut Self {
        self.name(id).text(value).end()
    }

    pub(crate) fn number(&mut self, id: HeaderId, value: u64) -> &mut Self {
        self.name(id).digits(value).end()
    }

    pub(crate) fn cseq(&mut self, number: u32, method: &[u8]) -> &mut Self {
        self.name(HeaderId::CSeq)
            .digits(u64::from(number))
            .raw(b" ")
            .text(method)
            .end()
    }

    pub(crate) fn request_line(&mut self, method: Method<'_>, uri: &[u8]) -> &mut Self {
        self.text(method.as_bytes())
            .raw(b" ")
            .text(uri)
            .raw(b" SIP/2.0\r\n")
    }

    pub(crate) fn status_line(&mut self, status: u16, reason: &[u8]) -> &mut Self {
        self.raw(b"SIP/2.0 ")
            .digits(u64::from(status))
            .raw(b" ")
            .text(reason)
            .end()
    }

    /// All fields of `message` with this identifier, byte for byte.
    pub(crate) fn copy_all(&mut self, message: &Message<'_>, id: HeaderId) -> &mut Self {
        if message.has(id) {
            for header in message.headers().filter(|header| header.id == id) {
                self.copy(header.raw);
            }
        }
        self
    }

    fn copy(&mut self, raw: &[u8]) -> &mut Self {
        match raw.ends_with(b"\r\n") {
            true => self.raw(raw),
            false => self.raw(raw.trim_ascii_end()).end(),
        }
    }

    /// Content-Type, Content-Length, blank line, body.
    pub(crate) fn body(&mut self, content: &MessageContent<'_>) {
        let (content_type, body): (&[u8], &[u8]) = match content.body {
            Body::None => (b"", b""),
            Body::New {
                content_type,
                bytes,
            } => (content_type, bytes),
            Body::Template => content.template.map_or((b"", b""), |template| {
                (
                    template.header(HeaderId::ContentType).unwrap_or_default(),
                    template.body(),
                )
            }),
        };
        if !body.is_empty() && !content_type.is_empty() {
            self.header(HeaderId::ContentType, content_type);
        }
        self.number(HeaderId::ContentLength, body.len() as u64)
            .end()
            .raw(body);
    }

    /// An empty body.
    pub(crate) fn no_body(&mut self) {
        self.raw(b"Content-Length: 0\r\n\r\n");
    }

    /// Writes the headers of `content` and the endpoint's `defaults`, which an edit may replace or remove.
    pub(crate) fn content(&mut self, content: &MessageContent<'_>, defaults: &[(HeaderId, &[u8])]) {
        let touched = EditedHeaders::by(content.edits);
        for (id, value) in defaults {
            if !value.is_empty() && touched.overridden & id.bit() == 0 {
                self.header(*id, value);
            }
        }
        if let Some(template) = content.template {
            self.template(template, content, &touched);
        }
        if !content.edits.is_empty() {
            self.added(content);
        }
    }

    fn template(
        &mut self,
        template: &Message<'_>,
        content: &MessageContent<'_>,
        touched: &EditedHeaders,
    ) {
        let mut seen: u128 = 0;
        for header in template.headers() {
            let id = header.id;
            if is_not_copied(id) || self.drops_body_header(id, content) {
                continue;
            }
            if touched.fields & id.bit() == 0 {
                self.copy(header.raw);
                continue;
            }
            let first = id != HeaderId::Other && seen & id.bit() == 0;
            seen |= id.bit();
            self.edited(template, header.raw, header.name, id, first, content.edits);
        }
    }

    /// Whether a header describes a body that is not sent.
    fn drops_body_header(&self, id: HeaderId, content: &MessageContent<'_>) -> bool {
        match content.body {
            Body::Template => false,
            Body::New { .. } => id == HeaderId::ContentEncoding,
            Body::None => matches!(
                id,
                HeaderId::ContentEncoding
                    | HeaderId::ContentDisposition
                    | HeaderId::ContentLanguage
                    | HeaderId::MimeVersion
            ),
        }
    }

    /// Writes one field of the template with the edits applied. A list whose first values are removed is written whole
    /// at its first field.
    fn edited(
        &mut self,
        template: &Message<'_>,
        raw: &[u8],
        name: &[u8],
        id: HeaderId,
        first: bool,
        edits: &[Edit<'_>],
    ) {
        let mut cut = 0;
        let mut gone = false;
        for edit in edits {
            match *edit {
                Edit::Prepend { id: which, value } if first && which == id => {
                    self.header(id, value);
                }
                Edit::RemoveFirst(which) if which == id => cut += 1,
                Edit::Remove(which) if which == id && id != HeaderId::Other => gone = true,
                Edit::RemoveNamed(which) => gone |= which.eq_ignore_ascii_case(name),
                Edit::Replace { id: which, .. } if which == id && id != HeaderId::Other => {
                    gone = true;
                }
                Edit::Lines(lines) if id != HeaderId::Other => {
                    gone |= lines.heads().replaced & id.bit() != 0;
                }
                _ => {}
            }
        }
        match (gone, cut) {
            (true, _) => {}
            (false, 0) => {
                self.copy(raw);
            }
            (false, cut) if first => {
                for value in template.values(id).skip(cut) {
                    self.header(id, value);
                }
            }
            _ => {}
        }
    }

    /// Writes the headers that the edits add, in their order. A replaced header is written here once.
    fn added(&mut self, content: &MessageContent<'_>) {
        for (at, edit) in content.edits.iter().enumerate() {
            match *edit {
                Edit::Add { id, value } => {
                    self.header(id, value);
                }
                Edit::AddNamed { name, value } => {
                    self.text(name).raw(b": ").text(value).end();
                }
                Edit::Lines(lines) => {
                    self.raw(lines.text());
                }
                Edit::Prepend { id, value } if !in_template(content, id) => {
                    self.header(id, value);
                }
                Edit::Replace { id, value } => {
                    let later = content.edits.iter().skip(at + 1);
                    if !later
                        .clone()
                        .any(|edit| matches!(edit, Edit::Replace { id: which, .. } if *which == id))
                    {
                        self.header(id, value);
                    }
                }
                _ => {}
            }
        }
    }
}

fn in_template(content: &MessageContent<'_>, id: HeaderId) -> bool {
    !is_not_copied(id) && content.template.is_some_and(|template| template.has(id))
}

/// The headers that edits touch, so that all others are skipped quickly.
#[derive(Default)]
struct EditedHeaders {
    /// Defaults that are not written.
    overridden: u128,
    /// Template fields that may change.
    fields: u128,
}

impl EditedHeaders {
    fn by(edits: &[Edit<'_>]) -> EditedHeaders {
        let mut touched = EditedHeaders::default();
        for edit in edits {
            match *edit {
                Edit::Remove(id) | Edit::Replace { id, .. } => {
                    touched.overridden |= id.bit();
                    touched.fields |= id.bit();
                }
                Edit::Lines(lines) => {
                    touched.overridden |= lines.heads().replaced;
                    touched.fields |= lines.heads().replaced;
                }
                Edit::RemoveFirst(id) | Edit::Prepend { id, .. } => touched.fields |= id.bit(),
                // A name may be that of a header with an identifier.
                Edit::RemoveNamed(name) => touched.fields |= HeaderId::from_name(name).bit(),
                Edit::Add { .. }
                | Edit::AddNamed { .. }
                | Edit::RequestUri(_)
                | Edit::Body { .. } => {}
            }
        }
        touched
    }
}

/// The set of headers that only the endpoint writes.
const ENDPOINT_ONLY: u128 = HeaderId::Via.bit()
    | HeaderId::From.bit()
    | HeaderId::To.bit()
    | HeaderId::CallId.bit()
    | HeaderId::CSeq.bit()
    | HeaderId::Route.bit()
    | HeaderId::RecordRoute.bit()
    | HeaderId::ContentLength.bit()
    | HeaderId::ContentType.bit()
    | HeaderId::RSeq.bit()
    | HeaderId::RAck.bit()
    | HeaderId::SessionExpires.bit()
    | HeaderId::MinSe.bit();

/// Whether only the endpoint writes this header.
const fn endpoint_only(id: HeaderId) -> bool {
    ENDPOINT_ONLY & id.bit() != 0
}

/// Headers of a template that are not copied.
fn is_not_copied(id: HeaderId) -> bool {
    endpoint_only(id)
        || matches!(
            id,
            HeaderId::Contact
                | HeaderId::MaxForwards
                | HeaderId::Supported
                | HeaderId::Require
                | HeaderId::ProxyRequire
                | HeaderId::Unsupported
                | HeaderId::Allow
                | HeaderId::UserAgent
                | HeaderId::Server
        )
}

/// Refuses edits that the endpoint would ignore.
pub(crate) fn check_edits(content: &MessageContent<'_>) -> Result<(), Refused> {
    for edit in content.edits {
        match *edit {
            Edit::Remove(id)
            | Edit::RemoveFirst(id)
            | Edit::Replace { id, .. }
            | Edit::Prepend { id, .. }
            | Edit::Add { id, .. }
                if endpoint_only(id) || id == HeaderId::Other =>
            {
                return Err(Refused::Edit(id));
            }
            Edit::RemoveNamed(name) | Edit::AddNamed { name, .. } => {
                let id = HeaderId::from_name(name);
                if endpoint_only(id) {
                    return Err(Refused::Edit(id));
                }
                if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) || name.contains(&b':')
                {
                    return Err(Refused::Value);
                }
            }
            Edit::Lines(lines) => {
                let heads = lines.heads();
                let refused = heads.written & ENDPOINT_ONLY
                    | heads.replaced & (ENDPOINT_ONLY | HeaderId::Other.bit());
                if refused != 0 {
                    return Err(Refused::Edit(HeaderId::first_in(refused)));
                }
            }
            Edit::Body { .. } | Edit::RequestUri(_) => return Err(Refused::Value),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the composed message has a session description.
pub(crate) fn has_sdp(content: &MessageContent<'_>) -> bool {
    match content.body {
        Body::None => false,
        Body::New {
            content_type,
            bytes,
        } => !bytes.is_empty() && is_sdp(content_type, bytes),
        Body::Template => content.template.is_some_and(message_has_sdp),
    }
}

/// Whether `message` has a session description (alone or in a multipart body).
pub(crate) fn message_has_sdp(message: &Message<'_>) -> bool {
    let body = message.body();
    !body.is_empty()
        && is_sdp(
            message.header(HeaderId::ContentType).unwrap_or_default(),
            body,
        )
}

fn is_sdp(content_type: &[u8], body: &[u8]) -> bool {
    let starts = |prefix: &[u8]| {
        content_type
            .get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    starts(b"application/sdp")
        || starts(b"multipart/") && Session::of(Some(content_type), body) != Session::None
}

/// Writes a name-addr value without its tag.
pub(crate) fn without_tag(value: &[u8], out: &mut Vec<u8>) {
    match NameAddr::parse(value) {
        Some(address) if address.params.has(b"tag") => {
            if !address.display.is_empty() {
                out.extend_from_slice(address.display);
                out.push(b' ');
            }
            out.push(b'<');
            out.extend_from_slice(address.uri);
            out.push(b'>');
            for param in address.params.iter() {
                if param.name.eq_ignore_ascii_case(b"tag") {
                    continue;
                }
                out.push(b';');
                out.extend_from_slice(param.name);
                if let Some(value) = param.value {
                    out.push(b'=');
                    out.extend_from_slice(value);
                }
            }
        }
        // Without brackets a tag added at the end would be read as a parameter of the URI.
        Some(address) if !value.contains(&b'<') && !address.params.is_empty() => {
            out.push(b'<');
            out.extend_from_slice(address.uri);
            out.extend_from_slice(b">;");
            out.extend_from_slice(address.params.as_bytes());
        }
        _ => out.extend_from_slice(value),
    }
}

/// The header lines that the edits of `content` add, for a message that is sent later.
pub(crate) fn extra_headers(content: &MessageContent<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let edits_only = MessageContent {
        edits: content.edits,
        body: Body::None,
        ..MessageContent::default()
    };
    Lines { out: &mut out }.content(&edits_only, &[]);
    out
}

/// The reason phrase of a status code (RFC 3261 section 21 and its extensions).
pub fn reason(status: u16) -> &'static [u8] {
    let text = match status {
        100 => "Trying",
        180 => "Ringing",
        181 => "Call Is Being Forwarded",
        182 => "Queued",
        183 => "Session Progress",
        199 => "Early Dialog Terminated",
        200 => "OK",
        202 => "Accepted",
        204 => "No Notification",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Moved Temporarily",
        305 => "Use Proxy",
        380 => "Alternative Service",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        410 => "Gone",
        412 => "Conditional Request Failed",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Unsupported URI Scheme",
        420 => "Bad Extension",
        421 => "Extension Required",
        422 => "Session Interval Too Small",
        423 => "Interval Too Brief",
        430 => "Flow Failed",
        433 => "Anonymity Disallowed",
        439 => "First Hop Lacks Outbound Support",
        469 => "Bad Info Package",
        480 => "Temporarily Unavailable",
        440 => "Max-Breadth Exceeded",
        481 => "Call/Transaction Does Not Exist",
        482 => "Loop Detected",
        483 => "Too Many Hops",
        484 => "Address Incomplete",
        485 => "Ambiguous",
        486 => "Busy Here",
        487 => "Request Terminated",
        488 => "Not Acceptable Here",
        489 => "Bad Event",
        491 => "Request Pending",
        493 => "Undecipherable",
        494 => "Security Agreement Required",
        500 => "Server Internal Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Server Time-out",
        505 => "Version Not Supported",
        513 => "Message Too Large",
        580 => "Precondition Failure",
        600 => "Busy Everywhere",
        603 => "Decline",
        604 => "Does Not Exist Anywhere",
        606 => "Not Acceptable",
        607 => "Unwanted",
        608 => "Rejected",
        _ => match status / 100 {
            1 => "Progress",
            2 => "OK",
            3 => "Redirection",
            4 => "Request Failure",
            5 => "Server Failure",
            _ => "Global Failure",
        },
    };
    text.as_bytes()
}

/// The reason phrase of the handler, of the template with this status, or of the status.
pub(crate) fn phrase<'a>(status: u16, content: &MessageContent<'a>) -> &'a [u8] {
    match (content.reason, content.template) {
        (Some(reason), _) => reason,
        (None, Some(template)) if template.status() == status && !template.reason().is_empty() => {
            template.reason()
        }
        _ => reason(status),
    }
}

/// To of a new dialog or request, without tag.
pub(crate) fn remote_identity(
    to: Option<&[u8]>,
    content: &MessageContent<'_>,
    uri: &[u8],
) -> Vec<u8> {
    let template = content.template.filter(|t| t.is_request());
    let to = to.or_else(|| template.and_then(|t| t.header(HeaderId::To)));
    match to {
        Some(to) => {
            let mut out = Vec::new();
            without_tag(to, &mut out);
            out
        }
        None => [b"<", uri, b">"].concat(),
    }
}

/// Max-Forwards: the template's value minus one, or 70 (section 8.1.1.6).
pub(crate) fn max_forwards<'b>(content: &MessageContent<'_>, buffer: &'b mut [u8; 3]) -> &'b [u8] {
    let hops = content
        .template
        .filter(|template| template.is_request())
        .and_then(|template| template.max_forwards().ok())
        .map_or(70, |hops| hops.saturating_sub(1));
    *buffer = [b'0' + hops / 100, b'0' + hops / 10 % 10, b'0' + hops % 10];
    let skip = usize::from(hops < 100) + usize::from(hops < 10);
    buffer.get(skip..).unwrap_or_default()
}
