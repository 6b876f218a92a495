//! Readings of this machine during a trial: load of the processors, counters of the kernel, routes.

use crate::error::LabError;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Ticks of all processors together, and the busy ones among them: time stolen by a hypervisor is not idle.
pub(super) fn processors() -> Result<[u64; 2], LabError> {
    let cannot = |why: String| LabError::cannot_run(format!("/proc/stat: {why}"), "mount /proc");
    let text = std::fs::read_to_string("/proc/stat").map_err(|error| cannot(error.to_string()))?;
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user (proc(5)).
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [_, _, _, idle, waiting, ..] = ticks.as_slice() else {
        return Err(cannot("not in the format of proc(5)".to_owned()));
    };
    let all: u64 = ticks.iter().sum();
    Ok([all, all - idle - waiting])
}

/// Load of all processors between two readings, percent.
pub(super) fn busy_percent(before: [u64; 2], after: [u64; 2]) -> Option<f64> {
    let all = after[0].checked_sub(before[0]).filter(|all| *all > 0)?;
    Some(after[1].saturating_sub(before[1]) as f64 * 100.0 / all as f64)
}

/// Datagrams that the kernel has dropped because the buffer of a socket was full.
pub(crate) fn receive_buffer_errors() -> Result<u64, LabError> {
    net::kernel_counters()
        .map(|counters| counters.receive_buffer_errors)
        .map_err(|error| LabError::cannot_run(format!("kernel counters: {error}"), "mount /proc"))
}

/// Local address of the route to a foreign SUT.
pub(crate) fn local_ip_towards(sut: SocketAddr) -> Result<IpAddr, LabError> {
    let any: SocketAddr = match sut {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it selects the route.
    std::net::UdpSocket::bind(any)
        .and_then(|socket| socket.connect(sut).and_then(|()| socket.local_addr()))
        .map(|local| local.ip())
        .map_err(|error| {
            LabError::cannot_run(
                format!("no route to {sut}: {error}"),
                "name an address to which this machine has a route",
            )
        })
}

/// The kernel's range of ports for outgoing connections.
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Ports of that range that stay free for other programs and for connections that are still closing.
const SPARE_PORTS: u32 = 1_000;

/// Number of connections that one address of this network namespace can open to one address. In a namespace of its own (`private`)
/// the range is widened first: no other program uses it.
pub(super) fn outgoing_ports(private: bool) -> u32 {
    if private {
        // Without the right to write it, the range stays as it is.
        let _ = std::fs::write(PORT_RANGE, "2000 65535");
    }
    let text = std::fs::read_to_string(PORT_RANGE).unwrap_or_default();
    ports_of(&text)
}

/// The connections that the text of the range permits; of the kernel's default, if it is unreadable.
fn ports_of(text: &str) -> u32 {
    let mut ends = text.split_whitespace().map_while(|end| end.parse().ok());
    let (first, last): (u16, u16) = match (ends.next(), ends.next()) {
        (Some(first), Some(last)) => (first, last),
        _ => (32_768, 60_999),
    };
    let count = u32::from(last.saturating_sub(first)) + 1;
    count.saturating_sub(SPARE_PORTS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_kernel_bound_connections() {
        assert_eq!(ports_of("32768\t60999\n"), 28_232 - SPARE_PORTS);
        assert_eq!(ports_of("unreadable"), 28_232 - SPARE_PORTS);
        assert_eq!(ports_of("2000 65535"), 63_536 - SPARE_PORTS);
        assert_eq!(ports_of("5 5"), 1);
    }
}
