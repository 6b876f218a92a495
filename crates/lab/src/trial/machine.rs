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
