//! Parts of addresses and URIs: reading one, and writing the address with another.

use crate::grammar::is_token;
use std::borrow::Cow;
use wire::sip::{
    Host, HostPort, NameAddr, Param, Scheme, Uri, percent_decode, plain_user, unquote,
};

/// A part of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole URI.
    Uri,
    Scheme,
    User,
    Host,
    Port,
    /// The display name, without quotes.
    Display,
    /// A header parameter, behind the URI.
    Param(Box<[u8]>),
    /// A URI parameter.
    UriParam(Box<[u8]>),
}

impl Part {
    /// Parses the name of a part in a configuration.
    pub(crate) fn parse(text: &str) -> Option<Part> {
        let param = |name: &str| {
            let token = !name.is_empty() && name.bytes().all(is_token);
            token.then(|| name.as_bytes().into())
        };
        Some(match text {
            "uri" => Part::Uri,
            "scheme" => Part::Scheme,
            "user" => Part::User,
            "host" => Part::Host,
            "port" => Part::Port,
            "display" => Part::Display,
            _ => match text.split_once('.')? {
                ("params", name) => Part::Param(param(name)?),
                ("uri-params", name) => Part::UriParam(param(name)?),
                _ => return None,
            },
        })
    }

    pub(crate) const NAMES: &'static str =
        "user, host, port, scheme, display, params.NAME, uri-params.NAME";

    /// Whether a bare URI can have this part.
    pub(crate) fn is_of_uri(&self) -> bool {
        !matches!(self, Part::Display | Part::Param(_))
    }

    /// Whether the part may be absent.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(
            self,
            Part::Port | Part::Display | Part::Param(_) | Part::UriParam(_)
        )
    }
}

/// The text with the line ends of folded header values replaced.
pub(crate) fn unfolded(value: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(value);
    match memchr::memchr2(b'\r', b'\n', text.as_bytes()) {
        None => text,
        Some(_) => Cow::Owned(text.replace(['\r', '\n'], " ")),
    }
}

fn decoded(text: &[u8]) -> Cow<'_, str> {
    match percent_decode(text) {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// The user part, unescaped, without its parameters; of tel URIs the number without visual separators.
pub(crate) fn user_of<'a>(uri: &Uri<'a>) -> Cow<'a, str> {
    let user = uri.user.unwrap_or_default();
    let user = user.split(|byte| *byte == b';').next().unwrap_or(user);
    let user = decoded(user);
    match uri.scheme {
        Scheme::Tel if user.contains(['-', '.', '(', ')']) => {
            Cow::Owned(user.replace(['-', '.', '(', ')'], ""))
        }
        _ => user,
    }
}

/// The host in lower case, IPv6 without brackets; empty if the scheme has none.
pub(crate) fn host_of<'a>(uri: &Uri<'a>) -> Cow<'a, str> {
    match uri.host {
        Host::Name(name) => {
            let name = String::from_utf8_lossy(name);
            match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                true => Cow::Owned(name.to_ascii_lowercase()),
                false => name,
            }
        }
        Host::V4(ip) => Cow::Owned(ip.to_string()),
        Host::V6(ip) => Cow::Owned(ip.to_string()),
    }
}

pub(crate) fn scheme_of(uri: &Uri<'_>) -> Cow<'static, str> {
    match uri.scheme {
        Scheme::Sip => Cow::Borrowed("sip"),
        Scheme::Sips => Cow::Borrowed("sips"),
        Scheme::Tel => Cow::Borrowed("tel"),
        Scheme::Urn => Cow::Borrowed("urn"),
        Scheme::Other(name) => Cow::Owned(String::from_utf8_lossy(name).to_ascii_lowercase()),
    }
}

/// A part of an address value; `None` if absent.
pub(crate) fn part_of<'a>(value: &'a [u8], part: &Part) -> Option<Cow<'a, str>> {
    part_of_address(&NameAddr::parse(value)?, part)
}

/// A part of an address; `None` if absent.
pub(crate) fn part_of_address<'a>(address: &NameAddr<'a>, part: &Part) -> Option<Cow<'a, str>> {
    match part {
        Part::Display if address.display.is_empty() => None,
        Part::Display => Some(match unquote(address.display) {
            Cow::Borrowed(bytes) => unfolded(bytes),
            Cow::Owned(bytes) => Cow::Owned(unfolded(&bytes).into_owned()),
        }),
        Part::Param(name) => address.params.get(name).map(|value| match unquote(value) {
            Cow::Borrowed(bytes) => unfolded(bytes),
            Cow::Owned(bytes) => Cow::Owned(unfolded(&bytes).into_owned()),
        }),
        part => part_of_uri(address.uri, part),
    }
}

/// A part of a URI; `None` if absent.
pub(crate) fn part_of_uri<'a>(uri: &'a [u8], part: &Part) -> Option<Cow<'a, str>> {
    match part {
        Part::Uri => return Some(unfolded(uri)),
        Part::User => {
            if let Some(user) = plain_user(uri) {
                return core::str::from_utf8(user).ok().map(Cow::Borrowed);
            }
        }
        _ => {}
    }
    let uri = Uri::parse(uri)?;
    match part {
        Part::Scheme => Some(scheme_of(&uri)),
        Part::User => uri.user.map(|_| user_of(&uri)),
        Part::Host => uri.is_sip().then(|| host_of(&uri)),
        Part::Port => uri.port.map(|port| Cow::Owned(port.to_string())),
        Part::UriParam(name) => uri.params.get(name).map(decoded),
        Part::Uri | Part::Display | Part::Param(_) => None,
    }
}

/// The port of a URI; 0 if absent.
pub(crate) fn port_of(uri: &[u8]) -> u16 {
    Uri::parse(uri).and_then(|uri| uri.port).unwrap_or(0)
}

/// Characters that a user part may have unescaped (RFC 3261 section 25.1).
fn is_user(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.!~*'()&=+$,;?/".contains(&byte)
}

/// Characters that a URI parameter may have unescaped.
fn is_uri_param(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.!~*'()[]/:&+$".contains(&byte)
}

/// Appends text with all characters escaped that may not be plain.
fn escape(text: &str, plain: fn(u8) -> bool, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text.as_bytes() {
        if plain(byte) {
            out.push(byte);
        } else {
            out.push(b'%');
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
        }
    }
}

/// A host in URI syntax, with IPv6 in brackets. `None` if it is neither a name nor an address.
fn host_text(text: &str) -> Option<String> {
    let text = match text.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => format!("[{ip}]"),
        Err(_) => text.to_owned(),
    };
    let sound = Host::parse(text.as_bytes()).is_some();
    sound.then_some(text)
}

/// `uri` with one part changed, or removed if `new` is `None`. `None` if the result would not be a URI.
pub(crate) fn uri_with(uri: &[u8], part: &Part, new: Option<&str>) -> Option<Vec<u8>> {
    let parsed = Uri::parse(uri)?;
    let mut out = Vec::with_capacity(uri.len() + 32);
    match (part, new) {
        (Part::Uri, Some(new)) => out.extend_from_slice(new.as_bytes()),
        (Part::Scheme, Some(scheme)) => with_scheme(&parsed, scheme, &mut out)?,
        (Part::UriParam(name), new) => {
            write_front(&parsed, None, None, &mut out)?;
            write_params(
                parsed.params.iter(),
                name,
                new.map(|new| {
                    let mut value = Vec::new();
                    escape(new, is_uri_param, &mut value);
                    value
                }),
                &mut out,
            );
            write_headers(&parsed, &mut out);
        }
        (Part::User, Some(user)) => {
            if user.is_empty() {
                return None;
            }
            let mut escaped = Vec::with_capacity(user.len());
            escape(user, is_user, &mut escaped);
            // The number of a tel URI cannot be escaped.
            if parsed.scheme == Scheme::Tel && !user.bytes().all(is_tel) {
                return None;
            }
            write_front(&parsed, Some(&escaped), None, &mut out)?;
            match parsed.scheme == Scheme::Tel && is_global(&escaped) {
                true => {
                    write_params(parsed.params.iter(), PHONE_CONTEXT, None, &mut out);
                    write_headers(&parsed, &mut out);
                }
                false => write_tail(&parsed, &mut out),
            }
        }
        (Part::Host, Some(host)) => {
            let host = host_text(host)?;
            let text = match parsed.port {
                Some(port) => format!("{host}:{port}"),
                None => host,
            };
            write_front(&parsed, None, Some(&text), &mut out)?;
            write_tail(&parsed, &mut out);
        }
        (Part::Port, new) => {
            let host = HostPort {
                host: parsed.host,
                port: match new {
                    Some(text) => Some(text.parse().ok().filter(|port: &u16| *port != 0)?),
                    None => None,
                },
            };
            write_front(&parsed, None, Some(&host.to_string()), &mut out)?;
            write_tail(&parsed, &mut out);
        }
        _ => return None,
    }
    Uri::parse(&out).map(|_| ())?;
    Some(out)
}

/// The parameter that says where a local number is valid (RFC 3966 section 5.1.5). A global number, which begins with
/// `+`, has none.
const PHONE_CONTEXT: &[u8] = b"phone-context";

fn is_global(user: &[u8]) -> bool {
    user.first() == Some(&b'+')
}

/// The value of a parameter in the user part of a SIP URI if it is `phone-context`.
fn context_of(param: &[u8]) -> Option<&[u8]> {
    let (name, value) = param.split_at_checked(PHONE_CONTEXT.len())?;
    let value = value.strip_prefix(b"=")?;
    name.eq_ignore_ascii_case(PHONE_CONTEXT).then_some(value)
}

/// The country code or other global prefix of the local number in a URI, without `+`: that of `phone-context`.
pub(crate) fn country_of(uri: &[u8]) -> Option<String> {
    let parsed = Uri::parse(uri)?;
    let context = match parsed.scheme {
        Scheme::Tel => parsed.params.get(PHONE_CONTEXT)?,
        _ => {
            let mut params = parsed.user?.split(|byte| *byte == b';').skip(1);
            params.find_map(context_of)?
        }
    };
    let context = decoded(context);
    let digits = context.strip_prefix('+')?;
    let plain: String = digits.chars().filter(|c| !"-.()".contains(*c)).collect();
    let is_number = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(plain)
}

fn is_tel(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || b"+*#-.()".contains(&byte)
}

/// Appends the URI with another scheme. A tel URI is made from the user part only if that is a number.
fn with_scheme(uri: &Uri<'_>, scheme: &str, out: &mut Vec<u8>) -> Option<()> {
    match (scheme, uri.is_sip()) {
        ("sip" | "sips", true) => {
            out.extend_from_slice(scheme.as_bytes());
            let colon = memchr::memchr(b':', uri.raw)?;
            out.extend_from_slice(uri.raw.get(colon..)?);
            Some(())
        }
        ("tel", true) => {
            let user = user_of(uri);
            if user.is_empty() || !user.bytes().all(is_tel) {
                return None;
            }
            out.extend_from_slice(b"tel:");
            out.extend_from_slice(user.as_bytes());
            Some(())
        }
        ("tel", false) if uri.scheme == Scheme::Tel => {
            out.extend_from_slice(uri.raw);
            Some(())
        }
        _ => None,
    }
}

/// Writes scheme, user, host and port. `None` if the URI has no host to change.
fn write_front(
    uri: &Uri<'_>,
    user: Option<&[u8]>,
    host: Option<&str>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let colon = memchr::memchr(b':', uri.raw)?;
    out.extend_from_slice(uri.raw.get(..=colon)?);
    match uri.scheme {
        Scheme::Sip | Scheme::Sips => {}
        Scheme::Tel if host.is_none() => {
            out.extend_from_slice(user.or(uri.user)?);
            return Some(());
        }
        _ => return None,
    }
    match (user, uri.user) {
        (Some(user), old) => {
            out.extend_from_slice(user);
            // Parameters within the user part belong to the number and are kept.
            let params = old.unwrap_or_default().split(|byte| *byte == b';').skip(1);
            let is_kept = |param: &&[u8]| !is_global(user) || context_of(param).is_none();
            for param in params.filter(is_kept) {
                out.push(b';');
                out.extend_from_slice(param);
            }
            out.push(b'@');
        }
        (None, Some(old)) => {
            out.extend_from_slice(old);
            if let Some(password) = uri.password {
                out.push(b':');
                out.extend_from_slice(password);
            }
            out.push(b'@');
        }
        (None, None) => {}
    }
    match host {
        Some(host) => out.extend_from_slice(host.as_bytes()),
        None => out.extend_from_slice(uri.host_port().to_string().as_bytes()),
    }
    Some(())
}

fn write_tail(uri: &Uri<'_>, out: &mut Vec<u8>) {
    if !uri.params.as_bytes().is_empty() {
        out.push(b';');
        out.extend_from_slice(uri.params.as_bytes());
    }
    write_headers(uri, out);
}

fn write_headers(uri: &Uri<'_>, out: &mut Vec<u8>) {
    if !uri.headers.is_empty() {
        out.push(b'?');
        out.extend_from_slice(uri.headers);
    }
}

/// Writes parameters with one of them changed, removed (`None`) or added (without `=` if the value is empty).
fn write_params<'p>(
    params: impl Iterator<Item = Param<'p>>,
    name: &[u8],
    new: Option<Vec<u8>>,
    out: &mut Vec<u8>,
) {
    let mut new = new;
    for param in params {
        let ours = param.name.eq_ignore_ascii_case(name);
        let value: Option<Cow<'_, [u8]>> = match (ours, param.value) {
            (true, _) => match new.take() {
                Some(value) if value.is_empty() => None,
                Some(value) => Some(Cow::Owned(value)),
                None => continue,
            },
            (false, value) => value.map(Cow::Borrowed),
        };
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = value {
            out.push(b'=');
            out.extend_from_slice(&value);
        }
    }
    if let Some(value) = new {
        out.push(b';');
        out.extend_from_slice(name);
        if !value.is_empty() {
            out.push(b'=');
            out.extend_from_slice(&value);
        }
    }
}

/// An address value with one part changed; `None` if the result would not be an address. The tag of From or To is kept.
pub(crate) fn address_with(value: &[u8], part: &Part, new: Option<&str>) -> Option<Vec<u8>> {
    let address = NameAddr::parse(value).filter(|address| !address.is_star())?;
    let mut out = Vec::with_capacity(value.len() + 32);
    match (part, new) {
        (Part::Display, Some(text)) if !text.is_empty() => {
            quote(text, &mut out);
            out.push(b' ');
        }
        (Part::Display, _) => {}
        _ if !address.display.is_empty() => {
            out.extend_from_slice(address.display);
            out.push(b' ');
        }
        _ => {}
    }
    out.push(b'<');
    match part.is_of_uri() {
        true => out.extend_from_slice(&uri_with(address.uri, part, new)?),
        false => out.extend_from_slice(address.uri),
    }
    out.push(b'>');
    match part {
        Part::Param(name) => {
            let new = new.map(|text| {
                let mut value = Vec::new();
                match text.bytes().all(is_token) {
                    true => value.extend_from_slice(text.as_bytes()),
                    false => quote(text, &mut value),
                }
                value
            });
            write_params(address.params.iter(), name, new, &mut out);
        }
        _ => {
            if !address.params.is_empty() {
                out.push(b';');
                out.extend_from_slice(address.params.as_bytes());
            }
        }
    }
    Some(out)
}

/// A quoted string (RFC 3261 section 25.1).
fn quote(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::sip::plain_user_of;

    #[test]
    fn plain_user_agrees_with_the_parser() {
        let uris = [
            "sip:alice@example.org",
            "sip:+4930123@192.0.2.1:5060",
            "sip:a.b-c_d@h",
            "sip:@h",
            "sip:a@",
            "sip:a@-h",
            "sip:a@h:0",
            "sip:a@h:70000",
            "sip:a@999.1.1.1",
            "sip:a@h..x",
            "sip:a@h;x=y",
            "sip:a:b@h",
            "sip:a%41@h",
            "sip:a;x@h",
            "sip:a@b@c",
            "sip:h",
            "SIP:a@h",
            "sips:a@h",
            "tel:+1-2",
        ];
        let mut plain = 0;
        for uri in uris {
            let parsed = Uri::parse(uri.as_bytes());
            let user = parsed.and_then(|uri| uri.user.map(|_| user_of(&uri)));
            if let Some(found) = plain_user(uri.as_bytes()) {
                assert_eq!(user.as_deref().map(str::as_bytes), Some(found), "{uri}");
                plain += 1;
            }
            let part = part_of_uri(uri.as_bytes(), &Part::User);
            assert_eq!(part, user, "{uri}");
        }
        assert!(plain >= 3, "{plain}");
        let mut plain = 0;
        for value in [
            "<sip:alice@example.org>",
            "Alice Doe <sip:alice@example.org>;tag=a-1.x",
            "\"A <sip:x@y>\" <sip:alice@example.org>",
            "Alice <sip:alice@example.org>;tag=x;y",
            "Alice <sip:alice@example.org> ;tag=x",
            "sip:alice@example.org",
            "<sip:alice@example.org",
            "<<sip:alice@example.org>",
            "Alice\r\n <sip:alice@example.org>",
        ] {
            let user = part_of(value.as_bytes(), &Part::User);
            if let Some(found) = plain_user_of(value.as_bytes()) {
                assert_eq!(user.as_deref().map(str::as_bytes), Some(found), "{value}");
                plain += 1;
            }
        }
        assert!(plain >= 2, "{plain}");
        // Malformed text outside the brackets is refused when the message is received; the user is the same.
        for value in [
            "A,b <sip:alice@h>",
            "<sip:alice@h>;tag=",
            "<sip:alice@h>, x",
        ] {
            assert_eq!(
                plain_user_of(value.as_bytes()),
                Some(&b"alice"[..]),
                "{value}"
            );
        }
    }

    fn with(value: &str, part: &str, new: Option<&str>) -> Option<String> {
        let part = Part::parse(part).unwrap();
        let out = address_with(value.as_bytes(), &part, new)?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn changing_one_part_keeps_the_others() {
        let from = "\"A, <x>\" <sips:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"";
        for (part, new, expected) in [
            (
                "user",
                Some("b c"),
                "\"A, <x>\" <sips:b%20c;n=1@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "host",
                Some("2001:db8::1"),
                "\"A, <x>\" <sips:a;n=1:pw@[2001:db8::1]:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "port",
                Some("5080"),
                "\"A, <x>\" <sips:a;n=1:pw@B.example:5080;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "port",
                None,
                "\"A, <x>\" <sips:a;n=1:pw@B.example;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "scheme",
                Some("sip"),
                "\"A, <x>\" <sip:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "display",
                Some("Q \"W\""),
                "\"Q \\\"W\\\"\" <sips:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "display",
                None,
                "<sips:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "uri-params.transport",
                Some("udp"),
                "\"A, <x>\" <sips:a;n=1:pw@B.example:5071;transport=udp;lr?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "uri-params.LR",
                None,
                "\"A, <x>\" <sips:a;n=1:pw@B.example:5071;transport=tcp?x=y>;tag=1;p=\"q;r\"",
            ),
            (
                "params.p",
                Some("a b"),
                "\"A, <x>\" <sips:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"a b\"",
            ),
            (
                "params.z",
                Some("7"),
                "\"A, <x>\" <sips:a;n=1:pw@B.example:5071;transport=tcp;lr?x=y>;tag=1;p=\"q;r\";z=7",
            ),
        ] {
            assert_eq!(with(from, part, new).as_deref(), Some(expected), "{part}");
        }
        assert_eq!(
            with("sip:a@b;tag=1", "user", Some("c")).as_deref(),
            Some("<sip:c@b>;tag=1")
        );
        assert_eq!(
            with("<tel:+1-2;ext=3>", "user", Some("+49")).as_deref(),
            Some("<tel:+49;ext=3>")
        );
        // A global number has no context.
        for (value, changed) in [
            (
                "<tel:030123;phone-context=+49;ext=3>",
                "<tel:+4930123;ext=3>",
            ),
            (
                "<sip:030123;Phone-Context=+49;x=1@h;user=phone>",
                "<sip:+4930123;x=1@h;user=phone>",
            ),
        ] {
            let new = with(value, "user", Some("+4930123"));
            assert_eq!(new.as_deref(), Some(changed));
        }
        assert_eq!(
            with("<tel:030;phone-context=+49>", "user", Some("31")).as_deref(),
            Some("<tel:31;phone-context=+49>")
        );
        assert_eq!(
            with("<sip:+49;x=1@h>", "scheme", Some("tel")).as_deref(),
            Some("<tel:+49>")
        );
    }

    #[test]
    fn country_of_a_local_number_is_its_global_context() {
        for (uri, country) in [
            ("tel:030;phone-context=+49", Some("49")),
            ("tel:8631234;phone-context=+1-914-555", Some("1914555")),
            ("sip:030;phone-context=+43@h;user=phone", Some("43")),
            ("sip:030;x;phone-context=%2B43@h", Some("43")),
            ("tel:030;phone-context=example.com", None),
            ("tel:030;phone-context=+", None),
            ("sip:030@h;phone-context=+43", None),
            ("sip:h", None),
        ] {
            assert_eq!(country_of(uri.as_bytes()).as_deref(), country, "{uri}");
        }
    }

    #[test]
    fn invalid_parts_are_refused() {
        for (value, part, new) in [
            ("<sip:a@b>", "port", Some("70000")),
            ("<sip:a@b>", "port", Some("0")),
            ("<sip:a@b>", "host", Some("a b")),
            ("<sip:a@b>", "host", Some("")),
            ("<sip:a@b>", "user", Some("")),
            ("<sip:a@b>", "scheme", Some("http")),
            ("<sip:alice@b>", "scheme", Some("tel")),
            ("<tel:+1>", "host", Some("b")),
            ("<tel:+1>", "scheme", Some("sip")),
            ("<urn:service:sos>", "user", Some("x")),
            ("*", "display", Some("x")),
            ("a b c", "user", Some("x")),
        ] {
            assert_eq!(with(value, part, new), None, "{value} {part} {new:?}");
        }
    }

    #[test]
    fn parts_are_read_as_in_policy() {
        let value = b"\"A \\\"B\\\"\" <sip:%61l%69ce;x=1@EXAMPLE.com:5070;user=phone>;Tag=9";
        for (part, expected) in [
            ("user", Some("alice")),
            ("host", Some("example.com")),
            ("port", Some("5070")),
            ("scheme", Some("sip")),
            ("display", Some("A \"B\"")),
            ("params.tag", Some("9")),
            ("uri-params.user", Some("phone")),
            ("uri-params.lr", None),
        ] {
            let part = Part::parse(part).unwrap();
            assert_eq!(part_of(value, &part).as_deref(), expected, "{part:?}");
        }
        let tel = part_of(b"<tel:+1-201-(555)>", &Part::User);
        assert_eq!(tel.as_deref(), Some("+1201555"));
    }
}
