//! Addresses and port ranges of media, of interfaces and of the ng server.

use super::address::{self, ListenAddress};
use super::one_or_many::OneOrMany;
use super::sink::Sink;
use engine::Worker;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;

/// An address and port range for media.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMediaAddress {
    /// IP address that media sockets are bound to. Default: the first listening address of the interface.
    pub address: Option<String>,
    /// IP address in SDP instead of `address`, for a border behind NAT.
    pub advertise: Option<String>,
    /// Port range, both ends included. A call uses one pair (even and odd) per media line and side. Ports in the
    /// ephemeral range of the kernel (net.ipv4.ip_local_port_range, usually 32768-60999) are refused, unless they are
    /// reserved (net.ipv4.ip_local_reserved_ports) or `[media] sockets` is `per-port`. Two programs on one host cannot
    /// use the same ports of an address. Default: 20000-26999; of an ng server 27000-32767.
    pub ports: Option<String>,
}

/// A media address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaAddress {
    /// Index into [`Config::media_ranges`].
    pub range: usize,
    /// Address that sockets are bound to.
    pub address: IpAddr,
    /// Address in SDP instead (behind NAT).
    pub advertise: Option<IpAddr>,
}

impl MediaAddress {
    /// The address in SDP.
    pub fn signalled(&self) -> IpAddr {
        self.advertise.unwrap_or(self.address)
    }
}

/// A range of media ports on one address. Interfaces with the same range share its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaRange {
    /// The address.
    pub address: IpAddr,
    /// First port.
    pub first: u16,
    /// Last port, included.
    pub last: u16,
}

impl MediaRange {
    /// First and last port of the part of a worker. Parts begin at even ports.
    pub fn part(&self, worker: &Worker) -> (u16, u16) {
        if worker.is_alone() {
            return (self.first, self.last);
        }
        let first = u32::from(self.first) + u32::from(self.first & 1);
        let ports = (u32::from(self.last) + 1).saturating_sub(first);
        let size = (ports / u32::from(worker.count)) & !1;
        let at = first + size * u32::from(worker.number);
        let port = |port: u32| u16::try_from(port).unwrap_or(u16::MAX);
        (port(at), port((at + size).saturating_sub(1)))
    }
}

/// Default media ports. Those of a border, an ng server and the test lab (10000-19999) on one host do not overlap, and
/// are outside of the ephemeral range of the kernel.
const BORDER_PORTS: &str = "20000-26999";
const NODE_PORTS: &str = "27000-32767";

pub(super) fn media_addresses(
    media: &OneOrMany<RawMediaAddress>,
    listen: &[ListenAddress],
    path: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Vec<MediaAddress> {
    let base = format!("{path}.media");
    let default = [RawMediaAddress {
        address: None,
        advertise: None,
        ports: None,
    }];
    let (written, entries): (bool, &[RawMediaAddress]) = match media.as_slice() {
        [] => (false, &default),
        entries => (true, entries),
    };
    let mut addresses: Vec<MediaAddress> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = if written {
            media.path(&base, index)
        } else {
            path.to_owned()
        };
        let Some(address) = media_address(entry, listen, &at, sink) else {
            continue;
        };
        let written = entry.ports.as_deref();
        let ports = written.unwrap_or(match path.starts_with("ng_server.") {
            true => NODE_PORTS,
            false => BORDER_PORTS,
        });
        let Some((first, last)) = media_ports(ports, &format!("{at}.ports"), sink) else {
            continue;
        };
        if addresses
            .iter()
            .any(|other| other.address.is_ipv4() == address.is_ipv4())
        {
            sink.report(
                &at,
                "a second media address of the same address family",
                "keep one for IPv4 and one for IPv6",
            );
            continue;
        }
        let range = MediaRange {
            address,
            first,
            last,
        };
        let Some(range) = place_range(range, &at, ranges, placed, sink) else {
            continue;
        };
        let advertise = entry.advertise.as_ref().and_then(|text| {
            let at = format!("{at}.advertise");
            let ip = ip_address(text, &at, sink)?;
            if ip.is_ipv4() != address.is_ipv4() {
                sink.report(
                    &at,
                    format!("{ip} and {address} are of different address families"),
                    "advertise an address of the same family",
                );
            }
            Some(ip)
        });
        addresses.push(MediaAddress {
            range,
            address,
            advertise,
        });
    }
    addresses
}

fn media_address(
    entry: &RawMediaAddress,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) -> Option<IpAddr> {
    if let Some(text) = &entry.address {
        let at = format!("{at}.address");
        let ip = ip_address(text, &at, sink)?;
        if ip.is_unspecified() {
            sink.report(
                &at,
                "media needs one address, not all addresses",
                "write the local address; behind NAT, add the public one as `advertise`",
            );
            return None;
        }
        return Some(ip);
    }
    // An unreadable `listen` was reported already; an ng server has its own addresses.

    let node = at.starts_with("ng_server.");
    let ip = match listen.first() {
        Some(listen) => listen.address.ip(),
        None if node => IpAddr::from([0u8; 4]),
        None => return None,
    };
    if ip.is_unspecified() {
        sink.report(
            at,
            "the media address is unknown",
            "add media = { address = \"ADDRESS\" }",
        );
        return None;
    }
    Some(ip)
}

fn ip_address(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<IpAddr> {
    let ip = text.trim_matches(['[', ']']).parse().ok();
    if ip.is_none() {
        sink.report(
            at,
            format!("\"{text}\" is not an IP address"),
            "write an address such as \"192.0.2.1\" or \"2001:db8::1\", without a port",
        );
    }
    ip
}

fn media_ports(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<(u16, u16)> {
    let remedy =
        "write FIRST-LAST with an even first and an odd last port, for example \"20000-26999\"";
    let (first, last) = match address::port_range(text) {
        Ok(range) => range,
        Err(why) => {
            sink.report(at, why, remedy);
            return None;
        }
    };
    if first > last {
        sink.report(
            at,
            format!("the port range {first}-{last} is empty"),
            remedy,
        );
        return None;
    }
    // The corrected range is checked further, so that a mistake in it is not reported only after the correction.
    let (written_first, written_last) = (first, last);
    let (first, last) = (first & !1, last | 1);
    if (first, last) != (written_first, written_last) {
        sink.report(
            at,
            format!(
                "{written_first}-{written_last} does not consist of pairs of an even and an odd port"
            ),
            format!("write \"{first}-{last}\""),
        );
    }
    if last - first < 3 {
        sink.report(
            at,
            format!("{first}-{last} is too small: a call uses one pair on each side"),
            "use at least four ports",
        );
        return None;
    }
    if first < 1024 {
        sink.report(
            at,
            format!("{first}-{last} includes ports below 1024, which require privileges"),
            "begin at 1024 or higher",
        );
        return None;
    }
    Some((first, last))
}

/// The index of a range. Ranges that overlap but differ are refused.
fn place_range(
    range: MediaRange,
    at: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Option<usize> {
    if let Some(known) = ranges.iter().position(|known| *known == range) {
        return Some(known);
    }
    let clash = ranges.iter().position(|known| {
        known.address == range.address && known.first <= range.last && range.first <= known.last
    });
    if let Some(clash) = clash {
        let other = ranges[clash];
        let line = placed.get(clash).map_or(1, |path| sink.line(path));
        sink.report(
            at,
            format!(
                "media ports {}-{} of {} overlap with {}-{} in line {line}",
                range.first, range.last, range.address, other.first, other.last
            ),
            "use the same range for both interfaces, which then share it, or separate ranges",
        );
        return None;
    }
    ranges.push(range);
    placed.push(at.to_owned());
    Some(ranges.len() - 1)
}
