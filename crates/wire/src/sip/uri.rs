//! URIs: sip, sips (RFC 3261 section 19.1), tel (RFC 3966), urn (RFC 5031 services); of other schemes only the name is
//! parsed.

use super::host::{Host, HostPort};
use super::params::Params;
use super::vector::first;
use std::borrow::Cow;

/// A URI's scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme<'a> {
    /// `sip:`
    Sip,
    /// `sips:`
    Sips,
    /// `tel:`
    Tel,
    /// `urn:`
    Urn,
    /// Another scheme, unmodified.
    Other(&'a [u8]),
}

impl<'a> Scheme<'a> {
    fn from_bytes(name: &'a [u8]) -> Scheme<'a> {
        match name {
            [b's' | b'S', b'i' | b'I', b'p' | b'P'] => Scheme::Sip,
            [b's' | b'S', b'i' | b'I', b'p' | b'P', b's' | b'S'] => Scheme::Sips,
            [b't' | b'T', b'e' | b'E', b'l' | b'L'] => Scheme::Tel,
            [b'u' | b'U', b'r' | b'R', b'n' | b'N'] => Scheme::Urn,
            _ => Scheme::Other(name),
        }
    }
}

/// A parsed URI; all parts unmodified (percent escapes included, see [`percent_decode`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uri<'a> {
    /// The whole URI.
    pub raw: &'a [u8],
    /// Its scheme.
    pub scheme: Scheme<'a>,
    /// sip, sips: the user, if present; tel: the number; others: all text after the scheme.
    pub user: Option<&'a [u8]>,
    /// The password; its use is deprecated (RFC 3261 section 19.1.1).
    pub password: Option<&'a [u8]>,
    /// sip, sips: the host; an empty name for other schemes.
    pub host: Host<'a>,
    /// sip, sips: the port, if present.
    pub port: Option<u16>,
    /// Parameters after host and port (sip, sips) or after the number (tel).
    pub params: Params<'a>,
    /// The text after `?`.
    pub headers: &'a [u8],
}

/// The meaning of a byte for the single pass over a URI.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    Plain,
    /// White space, control characters, angle brackets, quotes: not allowed in a URI.
    Bad,
    Colon,
    At,
    Semicolon,
    Question,
    Percent,
}

const BYTE_CLASSES: [ByteClass; 256] = {
    let mut table = [ByteClass::Plain; 256];
    let mut i = 0;
    while i <= b' ' as usize {
        table[i] = ByteClass::Bad;
        i += 1;
    }
    table[b'<' as usize] = ByteClass::Bad;
    table[b'>' as usize] = ByteClass::Bad;
    table[b'"' as usize] = ByteClass::Bad;
    table[0x7f] = ByteClass::Bad;
    table[b':' as usize] = ByteClass::Colon;
    table[b'@' as usize] = ByteClass::At;
    table[b';' as usize] = ByteClass::Semicolon;
    table[b'?' as usize] = ByteClass::Question;
    table[b'%' as usize] = ByteClass::Percent;
    table
};

/// Offsets at which the parts of a URI may divide; found in one pass.
struct Marks {
    /// The first colon: it ends the scheme.
    scheme: usize,
    /// The first colon after the scheme's and before `@`: it ends the user.
    password: Option<usize>,
    /// The first `@`.
    at: Option<usize>,
    /// The first `;` or `?` after `@`, or after the scheme if there is no `@`.
    tail: usize,
    /// Whether there is a percent escape.
    escapes: bool,
}

impl Marks {
    fn find(raw: &[u8]) -> Option<Marks> {
        let mut scheme = None;
        let mut colon = None;
        let mut at = None;
        let mut tail = None;
        let mut escapes = false;
        for (index, byte) in raw.iter().enumerate() {
            let letter = BYTE_CLASSES[usize::from(*byte)];
            // Nearly all bytes are plain: one comparison for those.
            if letter == ByteClass::Plain {
                continue;
            }
            match letter {
                ByteClass::Plain => {}
                ByteClass::Bad => return None,
                ByteClass::Colon if scheme.is_none() => scheme = Some(index),
                ByteClass::Colon => colon = colon.or(Some(index)),
                // The presumed tail belongs to the user.
                ByteClass::At if at.is_none() => (at, tail) = (Some(index), None),
                ByteClass::At => {}
                ByteClass::Semicolon | ByteClass::Question => tail = tail.or(Some(index)),
                ByteClass::Percent => escapes = true,
            }
        }
        Some(Marks {
            scheme: scheme?,
            password: colon.filter(|colon| at.is_some_and(|at| *colon < at)),
            at,
            tail: tail.unwrap_or(raw.len()),
            escapes,
        })
    }
}

impl<'a> Uri<'a> {
    /// Parses a URI. `None` for white space, control characters or angle brackets, a malformed escape in a SIP URI, a
    /// missing scheme, or a host that is neither name nor address (an IPv6 address requires brackets).
    pub fn parse(raw: &'a [u8]) -> Option<Uri<'a>> {
        let marks = Marks::find(raw)?;
        let name = raw.get(..marks.scheme)?;
        let rest = raw.get(marks.scheme + 1..)?;
        let scheme = Scheme::from_bytes(name);
        match scheme {
            Scheme::Sip | Scheme::Sips => Self::parse_sip(raw, scheme, &marks),
            Scheme::Tel => Self::parse_tel(raw, rest),
            _ => is_scheme(name).then_some(Uri {
                raw,
                scheme,
                user: Some(rest),
                password: None,
                host: Host::Name(b""),
                port: None,
                params: Params::default(),
                headers: b"",
            }),
        }
    }

    /// Whether [`Uri::parse`] accepts it; cheaper than parsing.
    pub fn is_well_formed(raw: &[u8]) -> bool {
        let rest = match raw {
            [b's' | b'S', b'i' | b'I', b'p' | b'P', b':', rest @ ..] => rest,
            _ => return Uri::parse(raw).is_some(),
        };
        // Usually a user without escapes and a host without brackets; all other forms are parsed in full.
        let Some(end) = rest.iter().position(|byte| !is_user(*byte)) else {
            return HostPort::is_plain(rest) || Uri::parse(raw).is_some();
        };
        let (user, behind) = rest.split_at(end);
        let plain = match behind {
            [b'@', host @ ..] => !user.is_empty() && has_plain_end(host),
            _ => has_plain_end(rest),
        };
        plain || Uri::parse(raw).is_some()
    }

    fn parse_sip(raw: &'a [u8], scheme: Scheme<'a>, marks: &Marks) -> Option<Uri<'a>> {
        let start = marks.scheme + 1;
        let (user, password) = match (marks.at, marks.password) {
            (Some(at), Some(colon)) => (raw.get(start..colon), raw.get(colon + 1..at)),
            (at, _) => (at.and_then(|at| raw.get(start..at)), None),
        };
        if user.is_some_and(|user| user.is_empty() || (marks.escapes && !escapes_whole(user))) {
            return None;
        }
        let host_start = marks.at.map_or(start, |at| at + 1);
        let target = HostPort::parse(raw.get(host_start..marks.tail)?)?;
        let (params, headers) = tail(raw.get(marks.tail..)?);
        Some(Uri {
            raw,
            scheme,
            user,
            password,
            host: target.host,
            port: target.port,
            params,
            headers,
        })
    }

    fn parse_tel(raw: &'a [u8], rest: &'a [u8]) -> Option<Uri<'a>> {
        let end = first(b';', rest).unwrap_or(rest.len());
        let number = rest.get(..end).filter(|number| !number.is_empty())?;
        Some(Uri {
            raw,
            scheme: Scheme::Tel,
            user: Some(number),
            password: None,
            host: Host::Name(b""),
            port: None,
            params: Params::new(rest.get(end + 1..).unwrap_or_default()),
            headers: b"",
        })
    }

    /// Whether the scheme is sip or sips.
    pub fn is_sip(&self) -> bool {
        matches!(self.scheme, Scheme::Sip | Scheme::Sips)
    }

    /// The `transport` parameter.
    pub fn transport(&self) -> Option<&'a [u8]> {
        self.params.get(b"transport")
    }

    /// Whether the `lr` parameter is present (a loose router).
    pub fn is_loose_router(&self) -> bool {
        self.params.has(b"lr")
    }

    /// Host and port as one value.
    pub fn host_port(&self) -> HostPort<'a> {
        HostPort {
            host: self.host,
            port: self.port,
        }
    }

    /// sip, sips: host and port, unmodified.
    pub fn raw_host_port(&self) -> &'a [u8] {
        let scheme = match self.scheme {
            Scheme::Sip => 4,
            Scheme::Sips => 5,
            _ => return b"",
        };
        let before = |part: Option<&[u8]>| part.map_or(0, |part| part.len() + 1);
        let start = scheme + before(self.user) + before(self.password);
        let target = self.raw.get(start..).unwrap_or_default();
        let end = target
            .iter()
            .position(|byte| matches!(byte, b';' | b'?'))
            .unwrap_or(target.len());
        target.get(..end).unwrap_or_default()
    }

    /// Headers of the URI, as (name, value) pairs, escapes kept.
    pub fn header_pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        self.headers
            .split(|byte| *byte == b'&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| match first(b'=', pair) {
                Some(equals) => (
                    pair.get(..equals).unwrap_or_default(),
                    pair.get(equals + 1..).unwrap_or_default(),
                ),
                None => (pair, &b""[..]),
            })
    }

    /// Whether both lead to the same resource, although parameters, a password or the default port of the scheme may
    /// have been added or removed in transit: users, hosts and ports are equal.
    pub fn same_target(&self, other: &Uri<'_>) -> bool {
        let port = |uri: &Uri<'_>| {
            uri.port.unwrap_or(match uri.scheme {
                Scheme::Sips => 5061,
                _ => 5060,
            })
        };
        match (self.scheme, other.scheme) {
            (Scheme::Sip, Scheme::Sip) | (Scheme::Sips, Scheme::Sips) => {
                option_same(self.user, other.user)
                    && self.host.same(&other.host)
                    && port(self) == port(other)
            }
            _ => self.equivalent(other),
        }
    }

    /// Equivalence of RFC 3261 section 19.1.4; other schemes without regard to the case of the scheme, tel numbers
    /// without visual separators (RFC 3966 section 4).
    pub fn equivalent(&self, other: &Uri<'_>) -> bool {
        match (self.scheme, other.scheme) {
            (Scheme::Sip, Scheme::Sip) | (Scheme::Sips, Scheme::Sips) => {
                option_same(self.user, other.user)
                    && option_same(self.password, other.password)
                    && self.host.same(&other.host)
                    && self.port == other.port
                    && same_params(self.params, other.params)
                    && same_headers(self, other)
            }
            (Scheme::Tel, Scheme::Tel) => {
                digits(self.user).eq(digits(other.user)) && same_params(self.params, other.params)
            }
            (Scheme::Urn, Scheme::Urn) => self
                .user
                .unwrap_or_default()
                .eq_ignore_ascii_case(other.user.unwrap_or_default()),
            (Scheme::Other(a), Scheme::Other(b)) => {
                a.eq_ignore_ascii_case(b) && self.user == other.user
            }
            _ => false,
        }
    }
}

/// Bytes that separate nothing, neither in a user nor in parameters.
fn is_user(byte: u8) -> bool {
    BYTE_CLASSES[usize::from(byte)] == ByteClass::Plain
}

/// Whether the text is host and port, then parameters of plain characters only. `false` decides nothing.
fn has_plain_end(text: &[u8]) -> bool {
    let end = first(b';', text).unwrap_or(text.len());
    let (target, params) = text.split_at(end);
    HostPort::is_plain(target) && params.iter().all(|byte| is_user(*byte) || *byte == b';')
}

/// Parameters and headers from the text after host and port.
fn tail(rest: &[u8]) -> (Params<'_>, &[u8]) {
    let question = first(b'?', rest).unwrap_or(rest.len());
    let params = rest.get(..question).unwrap_or_default();
    (
        Params::new(params.get(1..).unwrap_or_default()),
        rest.get(question + 1..).unwrap_or_default(),
    )
}

fn is_scheme(name: &[u8]) -> bool {
    name.first().is_some_and(u8::is_ascii_alphabetic)
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// Every `%` is followed by two hexadecimal digits.
fn escapes_whole(text: &[u8]) -> bool {
    first(b'%', text).is_none()
        || memchr::memchr_iter(b'%', text).all(|at| hex_pair(text, at).is_some())
}

fn hex_pair(text: &[u8], percent: usize) -> Option<u8> {
    let digit = |at: usize| (*text.get(at)? as char).to_digit(16);
    Some((digit(percent + 1)? * 16 + digit(percent + 2)?) as u8)
}

/// Decodes percent escapes; borrowed if there is none. Malformed escapes stay as they are.
pub fn percent_decode(text: &[u8]) -> Cow<'_, [u8]> {
    if first(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match hex_pair(text, at).filter(|_| *byte == b'%') {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

/// The bytes of `text` for comparison: (byte, whether it is an escape of a reserved character).
/// Escaped reserved characters differ from plain ones; other escapes equal their characters (RFC 3261 section 19.1.4).
fn units(text: &[u8]) -> impl Iterator<Item = (u8, bool)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *text.get(at)?;
        match hex_pair(text, at).filter(|_| byte == b'%') {
            Some(value) => {
                at += 3;
                Some((value, b";/?:@&=+$,%".contains(&value)))
            }
            None => {
                at += 1;
                Some((byte, false))
            }
        }
    })
}

fn text_same(a: &[u8], b: &[u8]) -> bool {
    units(a).eq(units(b))
}

fn text_same_any_case(a: &[u8], b: &[u8]) -> bool {
    let fold = |(byte, reserved): (u8, bool)| (byte.to_ascii_lowercase(), reserved);
    units(a).map(fold).eq(units(b).map(fold))
}

fn option_same(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => text_same(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Maximum number of compared parameters, to bound the cost.
const MAX_COMPARED: usize = 32;

/// Parameters present in both must be equal; these present in only one never match: user, ttl, method, maddr,
/// transport.
fn same_params(a: Params<'_>, b: Params<'_>) -> bool {
    let one_way = |a: Params<'_>, b: Params<'_>| {
        a.iter()
            .take(MAX_COMPARED)
            .all(|param| match b.find(param.name) {
                Some(value) => {
                    text_same_any_case(param.value.unwrap_or_default(), value.unwrap_or_default())
                }
                None => ![&b"user"[..], b"ttl", b"method", b"maddr", b"transport"]
                    .iter()
                    .any(|name| param.name.eq_ignore_ascii_case(name)),
            })
    };
    one_way(a, b) && one_way(b, a)
}

/// Every header of one is present in the other with the same value, in any order.
fn same_headers(a: &Uri<'_>, b: &Uri<'_>) -> bool {
    let one_way = |a: &Uri<'_>, b: &Uri<'_>| {
        a.header_pairs().take(MAX_COMPARED).all(|(name, value)| {
            b.header_pairs()
                .take(MAX_COMPARED)
                .any(|(other, other_value)| {
                    text_same_any_case(name, other) && text_same(value, other_value)
                })
        })
    };
    one_way(a, b) && one_way(b, a)
}

/// A telephone number without its visual separators.
fn digits(number: Option<&[u8]>) -> impl Iterator<Item = u8> + '_ {
    number
        .unwrap_or_default()
        .iter()
        .filter(|byte| !matches!(byte, b'-' | b'.' | b'(' | b')'))
        .map(u8::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// The fast check agrees with the parser.
        #[test]
        fn fast_check_agrees_with_parser(
            scheme in "(sip|SIPS|sip|sip|tel)?:?",
            rest in "([a-c%<\" :@.;?-]|1|2|9|\\[|::|%41|b@|@c|:5060|10\\.0\\.0\\.1){0,9}",
        ) {
            let text = format!("{scheme}{rest}");
            let parsed = Uri::parse(text.as_bytes());
            prop_assert_eq!(Uri::is_well_formed(text.as_bytes()), parsed.is_some(), "{}", text);
            if let Some(uri) = parsed.filter(Uri::is_sip) {
                prop_assert_eq!(HostPort::parse(uri.raw_host_port()), Some(uri.host_port()));
            }
        }
    }
}
