//! Addresses as written in a configuration.

use core::fmt;
use engine::Transport;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{Host, HostPort};

/// A host name or address with an optional port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostName {
    /// Name or address, without brackets.
    text: String,
    ip: Option<IpAddr>,
    /// The port, if one is written.
    pub port: Option<u16>,
}

impl HostName {
    /// Parses `host[:port]`. IPv6 addresses are in brackets, which are optional without a port.
    pub fn parse(text: &str) -> Option<HostName> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(HostName {
                text: text.to_owned(),
                ip: Some(ip),
                port: None,
            });
        }
        let parsed = HostPort::parse(text.as_bytes())?;
        let ip = parsed.host.ip();
        let text = match (ip, parsed.host) {
            (Some(ip), _) => ip.to_string(),
            // Digits and dots only: an invalid address, not a name (RFC 1123 section 2.1).
            (None, Host::Name(name)) if name.iter().any(|b| b.is_ascii_alphabetic()) => {
                String::from_utf8_lossy(name).into_owned()
            }
            _ => return None,
        };
        Some(HostName {
            text,
            ip,
            port: parsed.port,
        })
    }

    /// The name, or the address without brackets.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The IP address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// Appends it as [`fmt::Display`] writes it.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self.ip {
            Some(IpAddr::V6(_)) => out.extend_from_slice(self.uri_host().as_bytes()),
            _ => out.extend_from_slice(self.text.as_bytes()),
        }
        if let Some(port) = self.port {
            // Writing into a Vec cannot fail.
            let _ = write!(out, ":{port}");
        }
    }

    /// The host as it is written in a URI: IPv6 in brackets, no port.
    pub fn uri_host(&self) -> String {
        match self.ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => self.text.clone(),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri_host())?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The transport.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transport, self.address)
    }
}

/// A network: a prefix of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Parses `address/bits` or a single address.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn parse(text: &str) -> Result<Cidr, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is not an IP address"))?;
        let full = if address.is_ipv4() { 32 } else { 128 };
        // Sources are compared as IPv4 addresses.
        if address.to_canonical() != address {
            return Err(format!(
                "{address} is an IPv4-mapped address, which no source has; the address is {}",
                address.to_canonical()
            ));
        }
        let bits = match bits {
            None => full,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|&bits| bits <= full)
                .ok_or_else(|| format!("{bits:?} is no prefix length from 0 to {full}"))?,
        };
        let cidr = Cidr { address, bits };
        if cidr.masked(address) != address {
            return Err(format!(
                "{address}/{bits} has bits set behind its prefix; the network is {}/{bits}",
                cidr.masked(address)
            ));
        }
        Ok(cidr)
    }

    /// The length of the prefix.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    fn masked(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4((u32::from(ip) & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.bits))
                    .unwrap_or(0);
                IpAddr::V6((u128::from(ip) & mask).into())
            }
        }
    }

    /// Whether the network is too wide to restrict sources: shorter than /8 of IPv4 (10.0.0.0/8 is the widest private
    /// network), or /16 of IPv6, except private networks (fc00::/7).
    pub fn is_open(&self) -> bool {
        self.bits < self.shortest()
    }

    /// The shortest prefix that restricts sources.
    fn shortest(&self) -> u8 {
        match self.address {
            IpAddr::V4(_) => 8,
            // fc00::/7, the addresses that no provider routes (RFC 4193).
            IpAddr::V6(ip) if ip.octets()[0] & 0xfe == 0xfc => 7,
            IpAddr::V6(_) => 16,
        }
    }

    /// Whether the network contains `address`. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && self.masked(address) == self.address
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Splits off a transport such as `udp:`. Unsupported transports are refused by name.
///
/// # Errors
/// A description of the mistake.
pub(super) fn split_transport(text: &str) -> Result<(Option<Transport>, &str), String> {
    for (name, transport) in [
        ("udp:", Transport::Udp),
        ("tcp:", Transport::Tcp),
        ("tls:", Transport::Tls),
        ("ws:", Transport::Ws),
        ("wss:", Transport::Wss),
    ] {
        if let Some(rest) = text.strip_prefix(name) {
            return Ok((Some(transport), rest));
        }
    }
    for name in ["sctp:", "quic:"] {
        if text.starts_with(name) {
            return Err(format!(
                "transport {} is not available",
                name.trim_end_matches(':')
            ));
        }
    }
    Ok((None, text))
}

/// Parses `first-last`, both included.
///
/// # Errors
/// A description of the mistake.
pub(super) fn port_range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text
        .split_once('-')
        .ok_or_else(|| format!("{text:?} is no range of ports such as \"20000-26999\""))?;
    let port = |text: &str| {
        text.trim()
            .parse::<u16>()
            .ok()
            .filter(|&port| port != 0)
            .ok_or_else(|| format!("{text:?} is no port from 1 to 65535"))
    };
    Ok((port(first)?, port(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No source would ever be in such a network.
    #[test]
    fn networks_of_mapped_addresses_are_refused() {
        for text in ["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"] {
            let why = Cidr::parse(text).unwrap_err();
            assert!(why.contains("IPv4-mapped"), "{text}: {why}");
        }
        assert!(Cidr::parse("::/0").is_ok() && Cidr::parse("::1").is_ok());
    }
}
