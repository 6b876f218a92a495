//! `[dns]`: name servers.

use super::address::HostName;
use super::sink::Sink;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// DNS servers.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDns {
    /// DNS servers as `ADDRESS[:PORT]`, in order. Empty: those of /etc/resolv.conf. Names in /etc/hosts have the
    /// addresses of that file, read at the start and at a reload. While no server answers, earlier answers are used for
    /// a day after their end (RFC 8767).
    pub servers: Vec<String>,
}

/// DNS servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Servers in order. Empty: those of the machine.
    pub servers: Vec<SocketAddr>,
    /// Names with fixed addresses, which DNS is not asked for: those of the machine.
    pub hosts: Vec<(String, IpAddr)>,
}

pub(super) fn dns(raw: &RawDns, sink: &mut Sink<'_>) -> Dns {
    Dns {
        servers: servers(raw, sink),
        hosts: Vec::new(),
    }
}

fn servers(raw: &RawDns, sink: &mut Sink<'_>) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for (index, text) in raw.servers.iter().enumerate() {
        match HostName::parse(text).and_then(|host| Some((host.ip()?, host.port))) {
            Some((ip, port)) => servers.push(SocketAddr::new(ip, port.unwrap_or(53))),
            None => sink.report(
                &format!("dns.servers[{index}]"),
                format!("\"{text}\" is not an IP address"),
                "write ADDRESS or ADDRESS:PORT, IPv6 with a port as [ADDRESS]:PORT",
            ),
        }
    }
    servers
}
