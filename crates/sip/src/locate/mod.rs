//! Locating SIP servers (RFC 3263): from a URI to an ordered list of addresses, ports and transports.
//!
//! [`Resolver`] does no IO: it gives queries as bytes for name servers and takes their answers as bytes. What a lookup
//! needs is found by evaluating it against what is known; what is missing is asked, and when it has come the evaluation
//! runs again.

mod dns;
mod evaluate;
mod resolver;

pub use resolver::{
    Ignored, LookupId, Outcome, Query, Resolver, ResolverConfig, Started, StreamWork,
};

use engine::Transport;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{Host, Scheme, Uri};

/// Where a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// Transport.
    pub transport: Transport,
}

/// What is to be located.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The host.
    pub host: WantedHost,
    /// The port, where one is given: then neither NAPTR nor SRV is asked.
    pub port: Option<u16>,
    /// The transport, where one is given: then NAPTR is not asked.
    pub transport: Option<Transport>,
    /// Whether only secured transports will do (`sips:`).
    pub secure: bool,
}

/// The host of a [`Wanted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedHost {
    /// An address.
    Address(IpAddr),
    /// A name.
    Name(Box<str>),
}

impl Wanted {
    /// What a sip or sips URI wants, `maddr` and `transport` heeded.
    pub fn from_uri(uri: &Uri<'_>) -> Result<Wanted, LocateError> {
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
        Ok(Wanted {
            host: WantedHost::from_host(&host)?,
            port: uri.port,
            transport,
            secure,
        })
    }
}

impl WantedHost {
    /// From a parsed host.
    pub fn from_host(host: &Host<'_>) -> Result<WantedHost, LocateError> {
        match (host.ip(), host) {
            (Some(address), _) => Ok(WantedHost::Address(address)),
            (None, Host::Name(name)) => {
                let name = dns::Name::parse(name).ok_or(LocateError::BadName)?;
                Ok(WantedHost::Name(name.as_str().into()))
            }
            (None, _) => Err(LocateError::BadName),
        }
    }
}

/// A `transport` parameter's value.
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

/// Why nothing was located.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocateError {
    /// The host is no domain name.
    BadName,
    /// The transport or the scheme is not one of ours.
    Unsupported,
    /// There is no such name, or it has no address.
    NotFound,
    /// The domain says that it offers no such service (SRV target `.`).
    Refused,
    /// No name server gave a usable answer in time.
    NoAnswer,
    /// Aliases in a circle, or too long a chain of them.
    Aliases,
    /// As many lookups as may be are under way.
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
            LocateError::Busy => "too many lookups under way",
        })
    }
}

impl std::error::Error for LocateError {}

/// Targets in the order in which they are to be tried: take the next where one fails (RFC 3263 section 4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    list: Vec<Target>,
    next: usize,
}

impl Targets {
    fn new(list: Vec<Target>) -> Targets {
        Targets { list, next: 0 }
    }

    /// Those not yet taken.
    pub fn remaining(&self) -> &[Target] {
        self.list.get(self.next..).unwrap_or_default()
    }
}

impl Iterator for Targets {
    type Item = Target;

    fn next(&mut self) -> Option<Target> {
        let target = self.list.get(self.next).copied();
        self.next += usize::from(target.is_some());
        target
    }
}

/// The port where none is given.
fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Udp | Transport::Tcp => 5060,
        Transport::Tls => 5061,
        Transport::Ws => 80,
        Transport::Wss => 443,
    }
}

#[cfg(test)]
mod tests;
