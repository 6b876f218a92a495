//! `host` and `hostport` of RFC 3261 section 25.1, with the IPv6 forms of RFC 5118 and RFC 5954.

use super::plain::after_host;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A host: an address or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host<'a> {
    /// A dotted IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address (in brackets on the wire).
    V6(Ipv6Addr),
    /// A host name, unmodified.
    Name(&'a [u8]),
}

impl<'a> Host<'a> {
    /// Parses a host; IPv6 addresses require brackets. `None` for other text.
    pub fn parse(text: &'a [u8]) -> Option<Host<'a>> {
        if let [b'[', inner @ .., b']'] = text {
            return Some(Host::V6(parse_v6(inner)?));
        }
        if text.first()?.is_ascii_digit()
            && let Some(address) = parse_v4(text)
        {
            return Some(Host::V4(address));
        }
        is_name(text).then_some(Host::Name(text))
    }

    /// The address; `None` for a name.
    pub fn ip(&self) -> Option<IpAddr> {
        match *self {
            Host::V4(address) => Some(address.into()),
            Host::V6(address) => Some(address.into()),
            Host::Name(_) => None,
        }
    }

    /// Equality of RFC 3261: names without regard to case and to a final dot, addresses by value.
    pub fn same(&self, other: &Host<'_>) -> bool {
        match (self, other) {
            (Host::Name(a), Host::Name(b)) => {
                let bare = |name: &'a [u8]| name.strip_suffix(b".").unwrap_or(name);
                bare(a).eq_ignore_ascii_case(b.strip_suffix(b".").unwrap_or(b))
            }
            _ => self.ip().is_some() && self.ip() == other.ip(),
        }
    }
}

impl From<IpAddr> for Host<'_> {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Host::V4(address),
            IpAddr::V6(address) => Host::V6(address),
        }
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::V4(address) => write!(f, "{address}"),
            Host::V6(address) => write!(f, "[{address}]"),
            Host::Name(name) => write!(f, "{}", name.escape_ascii()),
        }
    }
}

/// A host with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostPort<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The port, if present.
    pub port: Option<u16>,
}

impl<'a> HostPort<'a> {
    /// Parses `host [ ":" port ]`. White space around the colon is not accepted.
    pub fn parse(text: &'a [u8]) -> Option<HostPort<'a>> {
        let after_bracket = match text.first()? {
            b'[' => memchr::memchr(b']', text)? + 1,
            b'0'..=b'9' => match v4_port(text) {
                Some(target) => return Some(target),
                None => 0,
            },
            _ => 0,
        };
        let tail = text.get(after_bracket..)?;
        match tail.iter().position(|byte| *byte == b':') {
            None => Some(HostPort {
                host: Host::parse(text)?,
                port: None,
            }),
            Some(colon) => Some(HostPort {
                host: Host::parse(text.get(..after_bracket + colon)?)?,
                port: Some(parse_port(tail.get(colon + 1..)?)?),
            }),
        }
    }

    /// Whether the text is a host without brackets, with or without a port, that [`HostPort::parse`] accepts. `false`
    /// decides nothing.
    pub fn is_plain(text: &[u8]) -> bool {
        after_host(text).is_some_and(<[u8]>::is_empty)
    }

    /// The socket address of a host that is an address, with `default` in place of an absent port.
    pub fn socket_addr(&self, default: u16) -> Option<SocketAddr> {
        Some(SocketAddr::new(
            self.host.ip()?,
            self.port.unwrap_or(default),
        ))
    }
}

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// A port number, 1 to 65535 in at most five digits.
pub(super) fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 {
        return None;
    }
    let mut port = 0u32;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        port = port * 10 + u32::from(digit);
    }
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// The usual target in one pass: an IPv4 address and an optional port. `None` decides nothing.
fn v4_port<'a>(text: &[u8]) -> Option<HostPort<'a>> {
    let (a, rest) = octet(text)?;
    let (b, rest) = octet(rest.strip_prefix(b".")?)?;
    let (c, rest) = octet(rest.strip_prefix(b".")?)?;
    let (d, rest) = octet(rest.strip_prefix(b".")?)?;
    let port = match rest {
        [] => None,
        [b':', port @ ..] => Some(parse_port(port)?),
        _ => return None,
    };
    Some(HostPort {
        host: Host::V4(Ipv4Addr::new(a, b, c, d)),
        port,
    })
}

/// One number of an address, and the text after it. No leading zeros, see [`parse_v4`].
#[inline]
fn octet(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(u16::from(digit))
    };
    let (first, rest) = text.split_first()?;
    let first = digit(*first)?;
    let Some((second, after)) = rest.split_first().and_then(|(b, r)| Some((digit(*b)?, r))) else {
        return Some((first as u8, rest));
    };
    if first == 0 {
        return None;
    }
    let value = first * 10 + second;
    let Some((third, last)) = after.split_first().and_then(|(b, r)| Some((digit(*b)?, r))) else {
        return Some((value as u8, after));
    };
    // A fourth digit is no separator and makes the caller refuse the text.
    Some((u8::try_from(value * 10 + third).ok()?, last))
}

/// Parses an IPv4 address; leading zeros are refused, because systems read them as octal or as decimal.
fn parse_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut index = 0;
    let mut value = 0u16;
    let mut digits = 0;
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                if digits == 3 || (digits == 1 && value == 0) {
                    return None;
                }
                value = value * 10 + u16::from(byte - b'0');
                digits += 1;
            }
            b'.' => {
                *octets.get_mut(index)? = u8::try_from(value).ok().filter(|_| digits > 0)?;
                index += 1;
                value = 0;
                digits = 0;
            }
            _ => return None,
        }
    }
    octets[3] = u8::try_from(value).ok().filter(|_| digits > 0)?;
    (index == 3).then_some(Ipv4Addr::from(octets))
}

/// Parses an IPv6 address without brackets; a zone is not accepted, as it is meaningless on another host.
fn parse_v6(text: &[u8]) -> Option<Ipv6Addr> {
    if text.len() > 45 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether this is a name: letters, digits, hyphen, dot, and underscore, which exists in real networks.
fn is_name(text: &[u8]) -> bool {
    text.len() <= 255
        && text
            .first()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        && text.iter().all(|byte| is_name_letter(*byte))
}

/// Characters of host names.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] =
            (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'-' | b'.' | b'_');
        byte += 1;
    }
    table
};

fn is_name_letter(byte: u8) -> bool {
    NAME[usize::from(byte)]
}

/// Parses an address in SDP or `received`: with or without brackets.
pub(super) fn parse_ip(text: &[u8]) -> Option<IpAddr> {
    match text {
        [b'[', inner @ .., b']'] => Some(parse_v6(inner)?.into()),
        _ if memchr::memchr(b':', text).is_some() => Some(parse_v6(text)?.into()),
        _ => Some(parse_v4(text)?.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The fast parser of `address:port` agrees with the full one.
        #[test]
        fn fast_parser_agrees_with_full_parser(text in "[0-9]{1,4}(\\.[0-9]{0,3}){2,4}(:[0-9]{0,6})?") {
            let quick = v4_port(text.as_bytes());
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text.as_str(), None),
            };
            let careful = parse_v4(host.as_bytes()).and_then(|address| {
                Some(HostPort {
                    host: Host::V4(address),
                    port: match port {
                        Some(port) => Some(parse_port(port.as_bytes())?),
                        None => None,
                    },
                })
            });
            prop_assert_eq!(quick, careful);
        }
    }
}
