//! Topology hiding of headers in messages to a side with `headers = "known"`. The list of known headers is that of
//! [`config::headers`].
//!
//! Pure functions for one message that is forwarded from one side to the other.

use config::headers::{NAMED, Treatment, treatment};
use core::cell::OnceCell;
use smallvec::SmallVec;
use wire::sip::{
    Edit, HeaderId, Message, NameAddr, Scheme, TokenValue, Uri, is_feature_tag, percent_decode,
};

/// Those of [`config::headers::HEADERS`] that are rewritten or removed here.
const WRITTEN: [HeaderId; 11] = [
    HeaderId::AcceptContact,
    HeaderId::AlertInfo,
    HeaderId::CallInfo,
    HeaderId::ErrorInfo,
    HeaderId::Geolocation,
    HeaderId::InReplyTo,
    HeaderId::Reason,
    HeaderId::ReferredBy,
    HeaderId::RejectContact,
    HeaderId::ReplyTo,
    HeaderId::RetryAfter,
];

/// Parameters of RFC 3841 beside feature tags.
const PREFERENCES: [&[u8]; 2] = [b"explicit", b"require"];

/// Values of a rewritten header that are relayed, at most; a list has no other limit than the size of the message.
const MAX_VALUES: usize = 64;
/// Parts of a body that values may name, at most.
const MAX_PARTS: usize = 16;
/// Length of the Content-ID of a part, at most.
const MAX_CONTENT_ID: usize = 256;

/// The names (Content-ID, RFC 2392) of the parts of a body, read once for each message.
#[derive(Debug)]
struct PartNames<'m> {
    body: &'m [u8],
    names: OnceCell<SmallVec<[&'m [u8]; 4]>>,
}

impl<'m> PartNames<'m> {
    fn new(message: &Message<'m>) -> PartNames<'m> {
        PartNames {
            body: message.body(),
            names: OnceCell::new(),
        }
    }

    fn contain(&self, name: &[u8]) -> bool {
        let names = self.names.get_or_init(|| {
            let lines = self.body.split_inclusive(|byte| *byte == b'\n');
            let mut start = 0;
            let starts = lines.map(|line| {
                let at = start;
                start += line.len();
                at
            });
            let found = starts.filter_map(|at| content_id(self.body.get(at..)?));
            found.take(MAX_PARTS).collect()
        });
        names.contains(&name)
    }
}

/// The name in the field Content-ID at the start of `text`, which may be folded.
fn content_id(text: &[u8]) -> Option<&[u8]> {
    const FIELD: &[u8] = b"content-id:";
    let (name, value) = text.split_at_checked(FIELD.len())?;
    if !name.eq_ignore_ascii_case(FIELD) {
        return None;
    }
    let value = value.get(..MAX_CONTENT_ID.min(value.len()))?;
    let value = value.trim_ascii_start().strip_prefix(b"<")?;
    let end = value.iter().position(|byte| *byte == b'>')?;
    value.get(..end)
}

/// Names of headers that operators pass unchanged in practice.
pub(crate) type PassHeaders = [Box<str>];

/// Buffers of header values of one message.
#[derive(Debug, Default)]
pub(crate) struct HidingTexts([Vec<u8>; WRITTEN.len()]);

/// Appends the edits that hide the originating network of a message. Headers already in `edits` are skipped.
pub(crate) fn edits<'e, const N: usize>(
    message: &Message<'e>,
    passes: &PassHeaders,
    host: impl Fn() -> Vec<u8>,
    texts: &'e mut HidingTexts,
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    let parts = PartNames::new(message);
    for (id, text) in WRITTEN.into_iter().zip(&mut texts.0) {
        if !message.has(id) || is_listed(passes, id.name().as_bytes()) || is_edited(edits, id) {
            continue;
        }
        text.clear();
        write((message, &parts), id, &host, text);
        let value: &'e [u8] = text;
        edits.push(match value {
            [] => Edit::Remove(id),
            value => Edit::Replace { id, value },
        });
    }
    if !message.has(HeaderId::Other) {
        return;
    }
    for header in message.headers() {
        let name = header.name;
        if header.id != HeaderId::Other
            || is_passed(name, header.value)
            || is_listed(passes, name)
            || is_removed(edits, name)
        {
            continue;
        }
        edits.push(Edit::RemoveNamed(name));
    }
}

/// The value of Reason: see [`Treatment::Text`].
pub(crate) fn reason(value: &[u8], out: &mut Vec<u8>) {
    let Some(reason) = TokenValue::parse(value) else {
        return;
    };
    separate(out);
    out.extend_from_slice(reason.token);
    for param in reason.params.iter() {
        let text = param.name.eq_ignore_ascii_case(b"text");
        if !text && is_harmless(param.name) && param.value.is_none_or(is_harmless) {
            parameter(param.name, param.value, out);
        }
    }
}

/// An address: see [`Treatment::Host`].
pub(crate) fn address(value: &[u8], host: &[u8], out: &mut Vec<u8>) {
    let Some(address) = NameAddr::parse(value) else {
        return;
    };
    // URIs of other schemes have the host at a position that only their syntax defines.
    let sip = address.parse_uri().filter(Uri::is_sip);
    if sip.is_none() && !has_scheme(address.uri, b"tel:") {
        return;
    }
    separate(out);
    if !address.display.is_empty() {
        out.extend_from_slice(address.display);
        out.push(b' ');
    }
    out.push(b'<');
    match sip {
        // Parameters and headers of the URI may contain a host too.
        Some(uri) => at_host(&uri, host, out),
        None => out.extend_from_slice(address.uri),
    }
    out.push(b'>');
    harmless_parameters(&address, out);
}

/// Appends a sip or sips URI at another host, without its parameters and headers.
pub(crate) fn at_host(uri: &Uri<'_>, host: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(match uri.scheme {
        Scheme::Sips => b"sips:",
        _ => b"sip:",
    });
    if let Some(user) = uri.user {
        out.extend_from_slice(user);
        out.push(b'@');
    }
    out.extend_from_slice(host);
}

/// Whether a header without identifier is one of [`NAMED`] and is passed.
fn is_passed(name: &[u8], value: &[u8]) -> bool {
    let mut known = NAMED.iter();
    let known = known.find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
    known.is_some_and(|(_, treatment)| *treatment == Treatment::Passes || is_hexadecimal(value))
}

/// Whether a value and those of its parameters are hexadecimal, as a session identifier (RFC 7989 section 5).
fn is_hexadecimal(value: &[u8]) -> bool {
    let digits = |text: &[u8]| {
        let mut bytes = text.iter();
        bytes.all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
    };
    TokenValue::parse(value).is_some_and(|value| {
        let mut params = value.params.iter().filter_map(|param| param.value);
        digits(value.token) && params.all(digits)
    })
}

fn is_edited(edits: &[Edit<'_>], id: HeaderId) -> bool {
    edits.iter().any(|edit| match edit {
        Edit::Remove(other) | Edit::Replace { id: other, .. } => *other == id,
        _ => false,
    })
}

fn is_removed(edits: &[Edit<'_>], name: &[u8]) -> bool {
    edits
        .iter()
        .any(|edit| matches!(edit, Edit::RemoveNamed(other) if other.eq_ignore_ascii_case(name)))
}

pub(crate) fn is_listed(passes: &PassHeaders, name: &[u8]) -> bool {
    passes
        .iter()
        .any(|passed| passed.as_bytes().eq_ignore_ascii_case(name))
}

/// Writes the values of a header in the form in which they are forwarded; nothing if none is.
fn write(
    (message, parts): (&Message<'_>, &PartNames<'_>),
    id: HeaderId,
    host: &impl Fn() -> Vec<u8>,
    out: &mut Vec<u8>,
) {
    let treatment = treatment(id);
    let own = match treatment {
        Treatment::Host | Treatment::Uri => host(),
        _ => Vec::new(),
    };
    for value in message.values(id).take(MAX_VALUES) {
        match treatment {
            Treatment::Text => reason(value, out),
            Treatment::Host => address(value, &own, out),
            Treatment::Uri => uri(value, parts, &own, out),
            Treatment::Urn => urn(value, parts, out),
            Treatment::Features => features(value, out),
            Treatment::Comment => without_comments(value, out),
            _ => {}
        }
    }
}

fn separate(out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.extend_from_slice(b", ");
    }
}

pub(crate) fn parameter(name: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(b';');
    out.extend_from_slice(name);
    if let Some(value) = value {
        out.push(b'=');
        out.extend_from_slice(value);
    }
}

/// Whether the name or value of a parameter cannot contain a host: a number, or a word without characters of host names
/// and addresses.
pub(crate) fn is_harmless(text: &[u8]) -> bool {
    let names = |byte: &u8| matches!(byte, b'.' | b':' | b'@' | b'"' | b'/' | b'%' | b'<');
    !text.iter().any(names)
}

/// Parameters that cannot contain a host.
fn harmless_parameters(address: &NameAddr<'_>, out: &mut Vec<u8>) {
    for param in address.params.iter() {
        let tag = param.name.eq_ignore_ascii_case(b"tag");
        if !tag && is_harmless(param.name) && param.value.is_none_or(is_harmless) {
            parameter(param.name, param.value, out);
        }
    }
}

fn has_scheme(uri: &[u8], scheme: &[u8]) -> bool {
    uri.get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// A URN, which contains no host, or the name of a part of this body, which is relayed unchanged: `cid` has a host (RFC
/// 2392).
fn is_name(uri: &[u8], parts: &PartNames<'_>) -> bool {
    let is_part = || parts.contain(&percent_decode(uri.get(4..).unwrap_or_default()));
    has_scheme(uri, b"urn:") || has_scheme(uri, b"cid:") && is_part()
}

/// See [`Treatment::Uri`].
fn uri(value: &[u8], parts: &PartNames<'_>, host: &[u8], out: &mut Vec<u8>) {
    let Some(address) = NameAddr::parse(value) else {
        return;
    };
    let is_name = is_name(address.uri, parts);
    if address.params.has(b"purpose") && !is_name {
        return;
    }
    separate(out);
    out.push(b'<');
    match is_name {
        true => out.extend_from_slice(address.uri),
        false => {
            out.extend_from_slice(b"sip:");
            out.extend_from_slice(host);
        }
    }
    out.push(b'>');
    harmless_parameters(&address, out);
}

/// See [`Treatment::Urn`].
fn urn(value: &[u8], parts: &PartNames<'_>, out: &mut Vec<u8>) {
    let named = NameAddr::parse(value).filter(|address| is_name(address.uri, parts));
    if let Some(address) = named {
        separate(out);
        out.push(b'<');
        out.extend_from_slice(address.uri);
        out.push(b'>');
        harmless_parameters(&address, out);
    }
}

/// See [`Treatment::Features`].
fn features(value: &[u8], out: &mut Vec<u8>) {
    let Some(features) = TokenValue::parse(value) else {
        return;
    };
    separate(out);
    out.extend_from_slice(b"*");
    for param in features.params.iter() {
        let is_preference = |name: &&[u8]| name.eq_ignore_ascii_case(param.name);
        if is_feature_tag(param.name) || PREFERENCES.iter().any(is_preference) {
            parameter(param.name, param.value, out);
        }
    }
}

/// See [`Treatment::Comment`]: the seconds and parameters of Retry-After (RFC 3261 section 20.33).
fn without_comments(value: &[u8], out: &mut Vec<u8>) {
    let (mut depth, mut escaped) = (0u32, false);
    let start = out.len();
    for &byte in value {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if depth > 0 => escaped = true,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            // Digits, names and separators; a comment is the only place for text.
            _ if depth == 0 && (byte.is_ascii_alphanumeric() || b";=-".contains(&byte)) => {
                out.push(byte);
            }
            _ => {}
        }
    }
    let digits = out.get(start..).unwrap_or_default();
    if !digits.first().is_some_and(u8::is_ascii_digit) {
        out.truncate(start);
    }
}

#[cfg(test)]
mod tests;
