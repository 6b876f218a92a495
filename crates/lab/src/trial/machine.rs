//! Readings of this machine during a trial: load of the processors, counters of the kernel, routes.

use crate::error::LabError;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Clock ticks per second in /proc (USER_HZ, the same on every supported Linux).
const TICKS_PER_S: f64 = 100.0;

/// CPU time of this machine up to one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostTime {
    /// Ticks of all processors together.
    all: u64,
    /// Those in which they were busy: time stolen by a hypervisor is not idle.
    busy: u64,
    /// Those of programs, without interrupts.
    programs: u64,
    /// CPU time of this program and of the system under test, seconds; `None` if unknown.
    own_s: Option<f64>,
}

impl HostTime {
    /// Reads it; `subject_s`: CPU time of a system under test outside of this process, `None` if it is unknown.
    pub(super) fn now(subject_s: Option<f64>) -> Result<HostTime, LabError> {
        let own_s = subject_s.map(|subject| subject + net::process_cpu().as_secs_f64());
        let cannot =
            |why: String| LabError::cannot_run(format!("/proc/stat: {why}"), "mount /proc");
        let text =
            std::fs::read_to_string("/proc/stat").map_err(|error| cannot(error.to_string()))?;
        HostTime::of(&text, own_s).ok_or_else(|| cannot("not in the format of proc(5)".to_owned()))
    }

    fn of(text: &str, own_s: Option<f64>) -> Option<HostTime> {
        let line = text.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user (proc(5)).
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        let [user, nice, system, idle, waiting, ..] = ticks.as_slice() else {
            return None;
        };
        let all: u64 = ticks.iter().sum();
        Some(HostTime {
            all,
            busy: all - idle - waiting,
            programs: user + nice + system,
            own_s,
        })
    }

    fn ticks_until(self, after: HostTime) -> Option<f64> {
        let all = after.all.checked_sub(self.all).filter(|all| *all > 0)?;
        Some(all as f64)
    }

    /// Load of all processors from this reading to another one, percent.
    pub(super) fn busy_percent(self, after: HostTime) -> Option<f64> {
        let busy = after.busy.saturating_sub(self.busy) as f64;
        Some(busy * 100.0 / self.ticks_until(after)?)
    }

    /// Load by programs other than this one and the system under test, percent of all processors. The kernel counts
    /// interrupts that it handles in the time of a program for that program too, so it is rather too low.
    pub(super) fn others_percent(self, after: HostTime) -> Option<f64> {
        let own = (after.own_s? - self.own_s?) * TICKS_PER_S;
        let programs = after.programs.saturating_sub(self.programs) as f64;
        Some((programs - own).max(0.0) * 100.0 / self.ticks_until(after)?)
    }
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

/// Number of connections that one address of this network namespace can open to one address. In a namespace of its own
/// (`private`) the range is widened first: no other program uses it.
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

    /// The case of study V beside two compilers: 99 % of two processors in 17 s, 15 % by border and generator.
    #[test]
    fn load_of_other_programs_is_that_of_the_machine_without_the_own() {
        let at = |line: &str, own| HostTime::of(line, own).unwrap();
        let before = at("cpu  1000 0 500 9000 100 0 50 0 0 0\ncpu0 1 2", Some(40.0));
        let line = "cpu  3400 300 1100 9020 100 0 100 10 0 0";
        let after = at(line, Some(44.93));
        // 3,380 ticks: 2,400 user, 300 nice, 600 system, 20 idle, 50 by interrupts, 10 stolen; 493 are ours.
        let percent = |ticks: f64| Some(ticks * 100.0 / 3_380.0);
        assert_eq!(before.busy_percent(after), percent(3_360.0));
        let others = before.others_percent(after).unwrap();
        assert!(
            (others - 2_807.0 * 100.0 / 3_380.0).abs() < 1e-6,
            "{others}"
        );
        assert_eq!(before.others_percent(at(line, None)), None);
        // More than all programs together: interrupts in the time of ours.
        assert_eq!(before.others_percent(at(line, Some(80.0))), Some(0.0));
        assert_eq!(before.busy_percent(before), None);
        assert!(HostTime::of("cpu 1 2", None).is_none());
    }

    #[test]
    fn ports_of_the_kernel_bound_connections() {
        assert_eq!(ports_of("32768\t60999\n"), 28_232 - SPARE_PORTS);
        assert_eq!(ports_of("unreadable"), 28_232 - SPARE_PORTS);
        assert_eq!(ports_of("2000 65535"), 63_536 - SPARE_PORTS);
        assert_eq!(ports_of("5 5"), 1);
    }
}
