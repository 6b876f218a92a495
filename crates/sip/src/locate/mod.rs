//! Locating SIP servers (RFC 3263): from a URI to an ordered list of addresses, ports and transports.
//!
//! [`Resolver`] does no IO: it gives queries as bytes for name servers and takes their answers as bytes. A lookup is
//! evaluated against the known answers; missing answers are queried, and when they have arrived the evaluation is
//! repeated.

mod dns;
mod evaluate;
mod resolver;

pub use resolver::{
    IgnoredAnswer, LookupId, LookupOutcome, LookupStart, Query, Resolver, ResolverConfig,
    StreamWork,
};

use engine::Transport;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{Host, Scheme, Uri};

/// A resolved address of a SIP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedTarget {
    /// Address and port.
    pub address: SocketAddr,
    /// Transport.
    pub transport: Transport,
}

/// A host to locate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest {
    /// The host.
    pub host: LocateHost,
    /// The port, if given: then neither NAPTR nor SRV is queried.
    pub port: Option<u16>,
    /// The transport, if given: then NAPTR is not queried.
    pub transport: Option<Transport>,
    /// Whether only secure transports are allowed (`sips:`).
    pub secure: bool,
    /// The transports that the request can be sent over, where these are fewer than those of the resolver; empty: all.
    /// Services with others are ignored (RFC 3263 section 4.1).
    pub usable: Vec<Transport>,
    /// Draws among SRV records of equal priority follow from this number, so that a repeated request has the same
    /// order; `None`: at random.
    pub seed: Option<u64>,
}

/// The host of a [`LocateRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocateHost {
    /// An address.
    Address(IpAddr),
    /// A name.
    Name(Box<str>),
}

impl LocateRequest {
    /// The request for a sip or sips URI, from its host or `maddr`, port and `transport`.
    pub fn from_uri(uri: &Uri<'_>) -> Result<LocateRequest, LocateError> {
        let secure = match uri.scheme {
            Scheme::Sip => false,
            Scheme::Sips => true,
            _ => return Err(LocateError::Unsupported),
        };
        let host = match uri.params.get(b"maddr") {
            Some(maddr) => Host::parse(maddr).ok_or(LocateError::BadName)?,
            None => uri.host,
        };
        let transport = uri.transport().map(transport_named).transpose()?;
        Ok(LocateRequest {
            host: LocateHost::from_host(&host)?,
            port: uri.port,
            transport,
            secure,
            usable: Vec::new(),
            seed: None,
        })
    }
}

impl LocateHost {
    /// From a parsed host.
    pub fn from_host(host: &Host<'_>) -> Result<LocateHost, LocateError> {
        match (host.ip(), host) {
            (Some(address), _) => Ok(LocateHost::Address(address)),
            (None, Host::Name(name)) => {
                let name = dns::DnsName::parse(name).ok_or(LocateError::BadName)?;
                Ok(LocateHost::Name(name.as_str().into()))
            }
            (None, _) => Err(LocateError::BadName),
        }
    }
}

/// The transport of a `transport` parameter.
fn transport_named(name: &[u8]) -> Result<Transport, LocateError> {
    [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
        Transport::Wss,
    ]
    .into_iter()
    .find(|transport| transport.uri_name().as_bytes().eq_ignore_ascii_case(name))
    .ok_or(LocateError::Unsupported)
}

/// Reason why a lookup has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocateError {
    /// The host is not a domain name.
    BadName,
    /// The transport or scheme is not supported.
    Unsupported,
    /// The name does not exist or has no address.
    NotFound,
    /// The domain does not offer the service (SRV target `.`).
    Refused,
    /// No name server gave a usable answer in time.
    NoAnswer,
    /// A loop of aliases, or too long a chain of them.
    Aliases,
    /// The limit of pending lookups is reached.
    Busy,
}

impl fmt::Display for LocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocateError::BadName => "not a domain name",
            LocateError::Unsupported => "transport or scheme not supported",
            LocateError::NotFound => "no such host",
            LocateError::Refused => "the domain does not offer the service",
            LocateError::NoAnswer => "no answer from name servers",
            LocateError::Aliases => "too many aliases",
            LocateError::Busy => "too many pending lookups",
        })
    }
}

impl std::error::Error for LocateError {}

/// Targets in the order of trying: take the next one when one fails (RFC 3263 section 4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    list: Vec<ResolvedTarget>,
    next: usize,
}

impl Targets {
    fn new(list: Vec<ResolvedTarget>) -> Targets {
        Targets { list, next: 0 }
    }

    /// The targets that were not taken yet.
    pub fn remaining(&self) -> &[ResolvedTarget] {
        self.list.get(self.next..).unwrap_or_default()
    }
}

impl Iterator for Targets {
    type Item = ResolvedTarget;

    fn next(&mut self) -> Option<ResolvedTarget> {
        let target = self.list.get(self.next).copied();
        self.next += usize::from(target.is_some());
        target
    }
}

#[cfg(test)]
mod tests;
