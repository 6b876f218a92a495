//! Typed views of single headers, parsed on demand.

use super::host::{Host, HostPort, parse_ip, parse_port};
use super::ids::{HeaderId, Method};
use super::list::{Values, closing_quote, find_outside, trim};
use super::message::{Message, is_lws, is_token, number};
use super::params::{AuthParams, Params};
use super::uri::Uri;
use super::vector::first;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// The reason why there is no typed view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// The message has no such header.
    Missing(HeaderId),
    /// The value of the header does not match its grammar.
    Malformed(HeaderId),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Missing(id) => write!(f, "no {} header", id.name()),
            ParseError::Malformed(id) => write!(f, "malformed {} header", id.name()),
        }
    }
}

impl std::error::Error for ParseError {}

/// One Via value (RFC 3261 section 20.42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via<'a> {
    /// The whole value.
    pub raw: &'a [u8],
    /// The protocol version, `2.0` except for a future peer: the 505 for its request still follows its Via.
    pub version: &'a [u8],
    /// The transport, unmodified, for example `UDP`.
    pub transport: &'a [u8],
    /// The sent-by host.
    pub host: Host<'a>,
    /// The sent-by port, if present.
    pub port: Option<u16>,
    /// The parameters.
    pub params: Params<'a>,
}

/// The parts of a Via to write: see [`super::Writer::via`].
#[derive(Clone, Copy, Debug)]
pub struct ViaParts<'a> {
    /// For example `UDP`.
    pub transport: &'a str,
    /// The sent-by.
    pub sent_by: HostPort<'a>,
    /// The branch with its magic cookie.
    pub branch: &'a [u8],
    /// Whether to request `rport` (RFC 3581).
    pub rport: bool,
    /// Further parameters, without the first semicolon; may be empty.
    pub extra: &'a [u8],
}

impl<'a> Via<'a> {
    /// Parses one Via value.
    pub fn parse(raw: &'a [u8]) -> Option<Via<'a>> {
        let (name, rest) = token_then(raw, b'/')?;
        let (version, rest) = token_then(rest, b'/')?;
        if !name.eq_ignore_ascii_case(b"SIP") {
            return None;
        }
        let rest = trim(rest);
        let transport_end = rest.iter().position(|byte| !is_token(*byte))?;
        let transport = rest.get(..transport_end).filter(|t| !t.is_empty())?;
        let rest = rest.get(transport_end..)?;
        if !is_lws(*rest.first()?) {
            return None;
        }
        let semicolon = first(b';', rest).unwrap_or(rest.len());
        let (host, port) = sent_by(trim(rest.get(..semicolon)?))?;
        Some(Via {
            raw,
            version,
            transport,
            host,
            port,
            params: Params::new(rest.get(semicolon + 1..).unwrap_or_default()),
        })
    }

    /// The branch; empty if absent (RFC 2543).
    pub fn branch(&self) -> &'a [u8] {
        self.params.get(b"branch").unwrap_or_default()
    }

    /// The address in `received`, with or without brackets (RFC 5118 section 4.5).
    pub fn received(&self) -> Option<IpAddr> {
        parse_ip(self.params.get(b"received")?)
    }

    /// `rport`: absent, requested (`Some(None)`), or filled in. A value that is no port counts as requested.
    pub fn rport(&self) -> Option<Option<u16>> {
        self.params
            .find(b"rport")
            .map(|value| value.and_then(parse_port))
    }

    /// The `maddr` parameter.
    pub fn maddr(&self) -> Option<Host<'a>> {
        Host::parse(self.params.get(b"maddr")?)
    }

    /// Sent-by host and port.
    pub fn sent_by(&self) -> HostPort<'a> {
        HostPort {
            host: self.host,
            port: self.port,
        }
    }
}

/// A token, white space, then `separator`: returns the token and the text after the separator.
fn token_then(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = first(separator, text)?;
    let token = trim(text.get(..at)?);
    (!token.is_empty() && token.iter().all(|byte| is_token(*byte)))
        .then_some((token, text.get(at + 1..)?))
}

/// sent-by allows white space around its colon.
fn sent_by(text: &[u8]) -> Option<(Host<'_>, Option<u16>)> {
    if let Some(plain) = HostPort::parse(text) {
        return Some((plain.host, plain.port));
    }
    let colon = memchr::memrchr(b':', text)?;
    let host = Host::parse(trim(text.get(..colon)?))?;
    let port = parse_port(trim(text.get(colon + 1..)?))?;
    Some((host, Some(port)))
}

/// `name-addr` or `addr-spec` with header parameters: From, To, Contact, Route, Refer-To ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameAddr<'a> {
    /// The whole value.
    pub raw: &'a [u8],
    /// The display name, unmodified, with its quotes; may be empty.
    pub display: &'a [u8],
    /// The URI; `*` for the Contact that removes all bindings.
    pub uri: &'a [u8],
    /// The header parameters (not those of the URI).
    pub params: Params<'a>,
}

impl<'a> NameAddr<'a> {
    /// Parses one value. The URI is delimited but not parsed: see [`NameAddr::parse_uri`].
    pub fn parse(raw: &'a [u8]) -> Option<NameAddr<'a>> {
        let text = trim(raw);
        let (display, rest) = match text.first()? {
            b'"' => {
                let end = 2 + closing_quote(text.get(1..)?)?;
                (text.get(..end)?, trim(text.get(end..)?))
            }
            _ => match first(b'<', text).filter(|at| !header_params_before(text, *at)) {
                Some(at) => (trim(text.get(..at)?), text.get(at..)?),
                None => (&b""[..], text),
            },
        };
        if let [b'<', inner @ ..] = rest {
            let end = first(b'>', inner)?;
            let uri = inner.get(..end).filter(|uri| !uri.is_empty())?;
            let params = match trim(inner.get(end + 1..)?) {
                [] => Params::default(),
                [b';', params @ ..] => Params::new(params),
                _ => return None,
            };
            let plain = |byte: &u8| is_token(*byte) || is_lws(*byte) || *byte >= 0x80;
            if !display.starts_with(b"\"") && !display.iter().all(plain) {
                return None;
            }
            return Some(NameAddr {
                raw,
                display,
                uri,
                params,
            });
        }
        if !display.is_empty() {
            return None;
        }
        // Without brackets a semicolon ends the URI: the parameters belong to the header (RFC 3261 section 20).
        let end = first(b';', rest).unwrap_or(rest.len());
        let uri = trim(rest.get(..end)?);
        let clean = !uri.is_empty()
            && !uri
                .iter()
                .any(|byte| is_lws(*byte) || *byte == b'"' || *byte == b'>');
        clean.then_some(NameAddr {
            raw,
            display: b"",
            uri,
            params: Params::new(rest.get(end + 1..).unwrap_or_default()),
        })
    }

    /// The `tag` parameter.
    pub fn tag(&self) -> Option<&'a [u8]> {
        self.params.get(b"tag").filter(|tag| !tag.is_empty())
    }

    /// The URI, parsed.
    pub fn parse_uri(&self) -> Option<Uri<'a>> {
        Uri::parse(self.uri)
    }

    /// Whether this is the `*` of a Contact that removes all bindings.
    pub fn is_star(&self) -> bool {
        self.uri == b"*"
    }

    /// The `expires` parameter in seconds; `None` if absent or malformed.
    pub fn expires(&self) -> Option<u32> {
        delta_seconds(self.params.get(b"expires")?)
    }

    /// The `q` parameter in thousandths, 0 to 1000; `None` if absent or malformed.
    pub fn q_thousandths(&self) -> Option<u16> {
        let q = self.params.get(b"q")?;
        let (whole, fraction) = match first(b'.', q) {
            Some(dot) => (q.get(..dot)?, q.get(dot + 1..)?),
            None => (q, &b""[..]),
        };
        if fraction.len() > 3 {
            return None;
        }
        let scale = [1000, 100, 10, 1][fraction.len()];
        let fraction = if fraction.is_empty() {
            0
        } else {
            number(fraction)?
        };
        u16::try_from(
            number(whole)?
                .checked_mul(1000)?
                .checked_add(fraction * scale)?,
        )
        .ok()
        .filter(|q| *q <= 1000)
    }
}

/// Whether there is a semicolon before `at`, so that `<` at `at` is part of a parameter and starts no address.
fn header_params_before(text: &[u8], at: usize) -> bool {
    first(b';', text.get(..at).unwrap_or_default()).is_some()
}

/// Seconds; values beyond 32 bits are malformed.
fn delta_seconds(digits: &[u8]) -> Option<u32> {
    u32::try_from(number(digits)?).ok()
}

/// CSeq (RFC 3261 section 20.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CSeq<'a> {
    /// Below 2^31.
    pub number: u32,
    /// The method.
    pub method: Method<'a>,
}

impl<'a> CSeq<'a> {
    /// Parses the value.
    pub fn parse(value: &'a [u8]) -> Option<CSeq<'a>> {
        let end = value.iter().position(|byte| is_lws(*byte))?;
        let number = delta_seconds(value.get(..end)?).filter(|number| *number < 1 << 31)?;
        let method = trim(value.get(end..)?);
        let token = !method.is_empty() && method.iter().all(|byte| is_token(*byte));
        token.then_some(CSeq {
            number,
            method: Method::from_bytes(method),
        })
    }
}

/// RAck (RFC 3262 section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RAck<'a> {
    /// RSeq of the acknowledged response.
    pub rseq: u32,
    /// CSeq of the acknowledged response.
    pub cseq: CSeq<'a>,
}

/// The side that refreshes a session (RFC 4028).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refresher {
    /// `refresher=uac`
    Uac,
    /// `refresher=uas`
    Uas,
}

/// Session-Expires (RFC 4028 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionExpires {
    /// The interval in seconds.
    pub seconds: u32,
    /// The refresher, if specified.
    pub refresher: Option<Refresher>,
}

/// Replaces (RFC 3891), from a header or decoded from a Refer-To URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaces<'a> {
    /// Call-ID of the dialog.
    pub call_id: &'a [u8],
    /// Its `to-tag`.
    pub to_tag: &'a [u8],
    /// Its `from-tag`.
    pub from_tag: &'a [u8],
    /// Whether only an early dialog may be replaced.
    pub early_only: bool,
}

impl<'a> Replaces<'a> {
    /// Parses the value.
    pub fn parse(value: &'a [u8]) -> Option<Replaces<'a>> {
        let value = TokenValue::parse(value)?;
        Some(Replaces {
            call_id: value.token,
            to_tag: value.params.get(b"to-tag")?,
            from_tag: value.params.get(b"from-tag")?,
            early_only: value.params.has(b"early-only"),
        })
    }
}

/// A value with parameters: Event, Retry-After, Reason, Subscription-State ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenValue<'a> {
    /// The text before the first semicolon, trimmed.
    pub token: &'a [u8],
    /// The parameters.
    pub params: Params<'a>,
}

impl<'a> TokenValue<'a> {
    /// Parses the value; `None` if there is no text before the parameters.
    pub fn parse(value: &'a [u8]) -> Option<TokenValue<'a>> {
        let end = find_outside(value, 0, b';').unwrap_or(value.len());
        let token = trim(value.get(..end)?);
        (!token.is_empty()).then_some(TokenValue {
            token,
            params: Params::new(value.get(end + 1..).unwrap_or_default()),
        })
    }
}

/// Content-Type (RFC 3261 section 20.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaType<'a> {
    /// For example `application`.
    pub kind: &'a [u8],
    /// For example `sdp`.
    pub subtype: &'a [u8],
    /// For example the boundary.
    pub params: Params<'a>,
}

impl<'a> MediaType<'a> {
    /// Parses the value.
    pub fn parse(value: &'a [u8]) -> Option<MediaType<'a>> {
        let value = TokenValue::parse(value)?;
        let (kind, subtype) = token_then(value.token, b'/')?;
        let subtype = trim(subtype);
        (!subtype.is_empty() && subtype.iter().all(|byte| is_token(*byte))).then_some(MediaType {
            kind,
            subtype,
            params: value.params,
        })
    }

    /// Whether it is this type, without regard to case.
    pub fn is(&self, kind: &str, subtype: &str) -> bool {
        // In nearly all messages the spelling is the usual one, so that one comparison is sufficient.
        let same = |found: &[u8], name: &[u8]| found == name || found.eq_ignore_ascii_case(name);
        same(self.kind, kind.as_bytes()) && same(self.subtype, subtype.as_bytes())
    }
}

/// A challenge or credentials: scheme and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// For example `Digest`.
    pub scheme: &'a [u8],
    /// The parameters of the scheme.
    pub params: AuthParams<'a>,
}

impl<'a> Credentials<'a> {
    /// Parses the value of one Authorization, Proxy-Authorization, WWW-Authenticate or Proxy-Authenticate field.
    pub fn parse(value: &'a [u8]) -> Option<Credentials<'a>> {
        let end = value
            .iter()
            .position(|byte| !is_token(*byte))
            .unwrap_or(value.len());
        let scheme = value.get(..end).filter(|scheme| !scheme.is_empty())?;
        Some(Credentials {
            scheme,
            params: AuthParams::new(trim(value.get(end..)?)),
        })
    }

    /// Whether the scheme is Digest.
    pub fn is_digest(&self) -> bool {
        self.scheme.eq_ignore_ascii_case(b"Digest")
    }
}

/// Typed accessors.
impl<'a> Message<'a> {
    fn required_header(&self, id: HeaderId) -> Result<&'a [u8], ParseError> {
        self.header(id).ok_or(ParseError::Missing(id))
    }

    fn typed<T>(
        &self,
        id: HeaderId,
        parse: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Result<T, ParseError> {
        parse(self.required_header(id)?).ok_or(ParseError::Malformed(id))
    }

    fn addresses(
        &self,
        id: HeaderId,
    ) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> + Clone + '_ {
        self.values(id)
            .map(move |value| NameAddr::parse(value).ok_or(ParseError::Malformed(id)))
    }

    /// The topmost Via.
    pub fn via(&self) -> Result<Via<'a>, ParseError> {
        self.cache.via.get(self.bytes(), || {
            self.typed(HeaderId::Via, |value| {
                Via::parse(Values::list(value).next()?)
            })
        })
    }

    /// All Via values, topmost first.
    pub fn vias(&self) -> impl Iterator<Item = Result<Via<'a>, ParseError>> + Clone + '_ {
        self.values(HeaderId::Via)
            .map(|value| Via::parse(value).ok_or(ParseError::Malformed(HeaderId::Via)))
    }

    /// From.
    pub fn from(&self) -> Result<NameAddr<'a>, ParseError> {
        self.cache
            .from
            .get(self.bytes(), || self.typed(HeaderId::From, NameAddr::parse))
    }

    /// To.
    pub fn to(&self) -> Result<NameAddr<'a>, ParseError> {
        self.cache
            .to
            .get(self.bytes(), || self.typed(HeaderId::To, NameAddr::parse))
    }

    /// Call-ID: not empty, without white space inside.
    pub fn call_id(&self) -> Result<&'a [u8], ParseError> {
        self.cache.call_id.get(self.bytes(), || {
            self.typed(HeaderId::CallId, |value| {
                (!value.is_empty() && !value.iter().any(|byte| is_lws(*byte))).then_some(value)
            })
        })
    }

    /// CSeq.
    pub fn cseq(&self) -> Result<CSeq<'a>, ParseError> {
        self.cache
            .cseq
            .get(self.bytes(), || self.typed(HeaderId::CSeq, CSeq::parse))
    }

    /// Contacts of all Contact fields.
    pub fn contacts(&self) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> + Clone + '_ {
        self.addresses(HeaderId::Contact)
    }

    /// The first Contact.
    pub fn contact(&self) -> Result<NameAddr<'a>, ParseError> {
        self.cache.contact.get(self.bytes(), || {
            self.contacts()
                .next()
                .unwrap_or(Err(ParseError::Missing(HeaderId::Contact)))
        })
    }

    /// Routes, topmost first.
    pub fn routes(&self) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> + Clone + '_ {
        self.addresses(HeaderId::Route)
    }

    /// Record-Route values, topmost first.
    pub fn record_routes(
        &self,
    ) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> + Clone + '_ {
        self.addresses(HeaderId::RecordRoute)
    }

    /// Addresses of any other header of this grammar: Path, Service-Route, P-Asserted-Identity, Diversion ...
    pub fn name_addrs(
        &self,
        id: HeaderId,
    ) -> impl Iterator<Item = Result<NameAddr<'a>, ParseError>> + Clone + '_ {
        self.addresses(id)
    }

    /// Max-Forwards, 0 to 255.
    pub fn max_forwards(&self) -> Result<u8, ParseError> {
        self.typed(HeaderId::MaxForwards, |value| {
            u8::try_from(number(value)?).ok()
        })
    }

    /// Expires in seconds.
    pub fn expires(&self) -> Result<u32, ParseError> {
        self.typed(HeaderId::Expires, delta_seconds)
    }

    /// Min-Expires in seconds.
    pub fn min_expires(&self) -> Result<u32, ParseError> {
        self.typed(HeaderId::MinExpires, delta_seconds)
    }

    /// Content-Length as received; [`Message::body`] is already delimited by it.
    pub fn content_length(&self) -> Result<u64, ParseError> {
        self.typed(HeaderId::ContentLength, number)
    }

    /// Content-Type.
    pub fn content_type(&self) -> Result<MediaType<'a>, ParseError> {
        self.typed(HeaderId::ContentType, MediaType::parse)
    }

    /// Option tags of Require.
    pub fn require(&self) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        self.values(HeaderId::Require)
    }

    /// Option tags of Proxy-Require.
    pub fn proxy_require(&self) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        self.values(HeaderId::ProxyRequire)
    }

    /// Option tags of Supported.
    pub fn supported(&self) -> impl Iterator<Item = &'a [u8]> + Clone + '_ {
        self.values(HeaderId::Supported)
    }

    /// Methods of Allow.
    pub fn allow(&self) -> impl Iterator<Item = Method<'a>> + Clone + '_ {
        self.values(HeaderId::Allow).map(Method::from_bytes)
    }

    /// Whether the list header `id` contains `token`, without regard to case: `lists(Supported, b"100rel")`.
    pub fn lists(&self, id: HeaderId, token: &[u8]) -> bool {
        self.values(id)
            .any(|value| value.eq_ignore_ascii_case(token))
    }

    /// Session-Expires (RFC 4028).
    pub fn session_expires(&self) -> Result<SessionExpires, ParseError> {
        self.typed(HeaderId::SessionExpires, |value| {
            let value = TokenValue::parse(value)?;
            let refresher = match value.params.get(b"refresher") {
                Some(side) if side.eq_ignore_ascii_case(b"uac") => Some(Refresher::Uac),
                Some(side) if side.eq_ignore_ascii_case(b"uas") => Some(Refresher::Uas),
                _ => None,
            };
            Some(SessionExpires {
                seconds: delta_seconds(value.token)?,
                refresher,
            })
        })
    }

    /// Min-SE in seconds (RFC 4028).
    pub fn min_se(&self) -> Result<u32, ParseError> {
        self.typed(HeaderId::MinSe, |value| {
            delta_seconds(TokenValue::parse(value)?.token)
        })
    }

    /// RAck (RFC 3262).
    pub fn rack(&self) -> Result<RAck<'a>, ParseError> {
        self.typed(HeaderId::RAck, |value| {
            let end = value.iter().position(|byte| is_lws(*byte))?;
            let cseq = trim(value.get(end..)?);
            Some(RAck {
                rseq: delta_seconds(value.get(..end)?)?,
                cseq: CSeq::parse(cseq).or_else(|| {
                    // Some clients append the method to a copy of the whole CSeq, so that it occurs twice.
                    let end = cseq.iter().rposition(|byte| is_lws(*byte))?;
                    let method = cseq.get(end + 1..)?;
                    CSeq::parse(trim(cseq.get(..end)?))
                        .filter(|cseq| cseq.method.as_bytes() == method)
                })?,
            })
        })
    }

    /// RSeq (RFC 3262): 1 to 2^32 - 1.
    pub fn rseq(&self) -> Result<u32, ParseError> {
        self.typed(HeaderId::RSeq, |value| {
            delta_seconds(value).filter(|rseq| *rseq > 0)
        })
    }

    /// Refer-To (RFC 3515).
    pub fn refer_to(&self) -> Result<NameAddr<'a>, ParseError> {
        self.typed(HeaderId::ReferTo, NameAddr::parse)
    }

    /// Replaces (RFC 3891).
    pub fn replaces(&self) -> Result<Replaces<'a>, ParseError> {
        self.typed(HeaderId::Replaces, Replaces::parse)
    }

    /// Event (RFC 6665): package and parameters.
    pub fn event(&self) -> Result<TokenValue<'a>, ParseError> {
        self.typed(HeaderId::Event, TokenValue::parse)
    }

    /// Subscription-State (RFC 6665).
    pub fn subscription_state(&self) -> Result<TokenValue<'a>, ParseError> {
        self.typed(HeaderId::SubscriptionState, TokenValue::parse)
    }

    /// Retry-After in seconds; comment and parameters are ignored.
    pub fn retry_after(&self) -> Result<u32, ParseError> {
        self.typed(HeaderId::RetryAfter, |value| {
            let end = value
                .iter()
                .position(|byte| !byte.is_ascii_digit())
                .unwrap_or(value.len());
            delta_seconds(value.get(..end)?)
        })
    }

    /// Credentials or challenges: [`HeaderId::Authorization`], [`HeaderId::ProxyAuthorization`],
    /// [`HeaderId::WwwAuthenticate`] or [`HeaderId::ProxyAuthenticate`], one for each field.
    pub fn credentials(
        &self,
        id: HeaderId,
    ) -> impl Iterator<Item = Result<Credentials<'a>, ParseError>> + Clone + '_ {
        self.all(id)
            .map(move |value| Credentials::parse(value).ok_or(ParseError::Malformed(id)))
    }
}
