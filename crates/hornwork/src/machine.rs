//! What this machine, or the control group that we are in, has.

use border::admission::{Machine, MediaCarrier, MediaWay};
use border::config::{Config, Wanted};
use std::net::IpAddr;
use std::path::Path;

/// Threads that work at a time: signalling and media share one.
const THREADS: u64 = 1;
/// Where nothing says how much memory there is, KiB.
const UNKNOWN: u64 = 1 << 20;

/// What `hornwork run` would have here.
pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own = own_group(&read("/proc/self/cgroup"));
    let group = |file: &str| {
        read(
            &Path::new("/sys/fs/cgroup")
                .join(&own)
                .join(file)
                .to_string_lossy(),
        )
    };
    machine_of(
        &read("/proc/meminfo"),
        &group("memory.max"),
        &group("cpu.max"),
    )
}

/// Ports that the kernel lends to whoever sends from any port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentPorts {
    /// The first.
    pub first: u16,
    /// The last, included.
    pub last: u16,
    /// Whether the kernel said so; else they are those that it usually lends.
    pub known: bool,
    /// Ranges that it keeps back.
    reserved: Vec<(u16, u16)>,
}

impl LentPorts {
    /// Those of this network namespace.
    pub fn here() -> LentPorts {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::read_to_string(path).unwrap_or_default()
        };
        let range = read("ip_local_port_range");
        // What a process may not see of /proc is not said to be free.
        LentPorts::read(&range, &read("ip_local_reserved_ports")).unwrap_or(LentPorts {
            first: 32_768,
            last: 60_999,
            known: false,
            reserved: Vec::new(),
        })
    }

    /// The text of `ip_local_reserved_ports` with these ports in it.
    pub fn reserved_with(&self, first: u16, last: u16) -> String {
        let ranges = self.reserved.iter().copied().chain([(first, last)]);
        let ranges = ranges.map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        ranges.collect::<Vec<String>>().join(",")
    }

    /// By the texts of `ip_local_port_range` and `ip_local_reserved_ports`; `None` where the kernel does not say.
    pub fn read(range: &str, reserved: &str) -> Option<LentPorts> {
        let mut ends = range.split_whitespace().map(str::parse);
        let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next()) else {
            return None;
        };
        let reserved = reserved
            .trim()
            .split(',')
            .filter_map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some((first.parse().ok()?, last.parse().ok()?))
            })
            .collect();
        Some(LentPorts {
            first,
            last,
            known: true,
            reserved,
        })
    }

    /// Whether a port of this range may be lent to somebody.
    pub fn overlap(&self, first: u16, last: u16) -> bool {
        let (mut at, end) = (
            u32::from(first.max(self.first)),
            u32::from(last.min(self.last)),
        );
        while at <= end {
            let held = self
                .reserved
                .iter()
                .find(|(first, last)| (u32::from(*first)..=u32::from(*last)).contains(&at));
            match held {
                Some((_, last)) => at = u32::from(*last) + 1,
                None => return true,
            }
        }
        false
    }
}

/// Rights that the faster ways of media need, by their bits in the sets of `/proc/self/status`.
const RIGHTS: [(u32, &str); 4] = [
    (39, "CAP_BPF"),
    (38, "CAP_PERFMON"),
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
];

/// The way that media would take here, as far as that can be told without trying: by the configuration, the rights of this process and
/// the kernel; and why.
pub fn assumed_path(config: &Config) -> (MediaCarrier, String) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    path_of(
        config,
        &read("/proc/self/status"),
        &read("/proc/sys/kernel/osrelease"),
    )
}

fn path_of(config: &Config, status: &str, release: &str) -> (MediaCarrier, String) {
    let (way, key, wanted, version, rights) = match (config.media.kernel, config.media.af_xdp) {
        (Wanted::Never, Wanted::Never) => {
            let why = "`[media] kernel` and `af_xdp` are \"never\"".to_owned();
            return (MediaCarrier::default(), why);
        }
        (Wanted::Never, wanted) => (MediaWay::AfXdp, "af_xdp", wanted, (5, 11), &RIGHTS[..]),
        (wanted, _) => (MediaWay::Kernel, "kernel", wanted, (6, 3), &RIGHTS[..3]),
    };
    let wanted = match wanted {
        Wanted::Require => "require",
        _ => "auto",
    };
    let asked = format!("`[media] {key} = \"{wanted}\"`");
    let sockets = |why: String| (MediaCarrier::default(), format!("{asked}, but {why}"));
    let missing = missing_rights(status, rights);
    if !missing.is_empty() {
        return sockets(format!(
            "this process lacks {}; where `run` has these rights, check with them",
            missing.join(", ")
        ));
    }
    if release_of(release).is_none_or(|own| own < version) {
        let (major, minor) = version;
        return sockets(format!(
            "it needs Linux {major}.{minor}, and this is {}",
            release.trim()
        ));
    }
    let ranges = config.media_ranges.iter().map(|range| range.address);
    let mut addresses: Vec<IpAddr> = ranges.filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return sockets("the loopback has no XDP".to_owned());
    }
    let carrier = MediaCarrier {
        way,
        addresses: addresses.into(),
    };
    (
        carrier,
        format!(
            "assumed: {asked}, and rights and kernel allow it; `run` finds out whether the interfaces do"
        ),
    )
}

/// Which of these rights are not in the effective set.
fn missing_rights(status: &str, rights: &[(u32, &'static str)]) -> Vec<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let set = set.unwrap_or(0);
    let missing = rights.iter().filter(|(bit, _)| set >> bit & 1 == 0);
    missing.map(|(_, name)| *name).collect()
}

/// Major and minor number of a kernel.
fn release_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .trim()
        .split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Our control group (version 2), relative to the root of all.
fn own_group(cgroup: &str) -> String {
    let line = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    line.unwrap_or_default().to_owned()
}

fn machine_of(meminfo: &str, memory_max: &str, cpu_max: &str) -> Machine {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(UNKNOWN);
    let group = memory_max
        .trim()
        .parse()
        .map_or(u64::MAX, |bytes: u64| bytes / 1_024);
    let mut quota = cpu_max.split_whitespace().map(str::parse::<u64>);
    let processor = match (quota.next(), quota.next()) {
        (Some(Ok(quota)), Some(Ok(period))) if period > 0 => quota * 1_000_000 / period,
        _ => u64::MAX,
    };
    Machine {
        memory: total.min(group),
        processor: processor.min(THREADS * 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_assumed_by_configuration_rights_and_kernel() {
        let config = |media: &str, address: &str| {
            let text = format!(
                "[[interface]]\nname='a'\nlisten='udp:{address}:5060'\nmedia={{address='{address}'}}\n[media]\n{media}\n"
            );
            border::config::parse(&text, "test").expect("a configuration")
        };
        let all = "CapEff:\t000001ffffffffff\n";
        let path = |media: &str, address: &str, status: &str, release: &str| {
            let (carrier, why) = path_of(&config(media, address), status, release);
            (carrier.way, why)
        };
        let (kernel, v6) = ("kernel='auto'", "6.8.0-1\n");
        let (way, why) = path("", "192.0.2.1", all, v6);
        assert!(
            way == MediaWay::Sockets && why.contains("are \"never\""),
            "{why}"
        );
        let (way, why) = path(kernel, "192.0.2.1", all, v6);
        assert!(
            way == MediaWay::Kernel && why.starts_with("assumed: "),
            "{why}"
        );
        assert_eq!(
            path("af_xdp='require'", "192.0.2.1", all, v6).0,
            MediaWay::AfXdp
        );
        // CAP_NET_RAW and CAP_NET_ADMIN alone.
        let (way, why) = path(kernel, "192.0.2.1", "CapEff:\t0000000000003000\n", v6);
        let lacks = "lacks CAP_BPF, CAP_PERFMON;";
        assert!(way == MediaWay::Sockets && why.contains(lacks), "{why}");
        let (way, why) = path(kernel, "192.0.2.1", all, "6.1.0-18\n");
        let old = "needs Linux 6.3, and this is 6.1.0-18";
        assert!(way == MediaWay::Sockets && why.contains(old), "{why}");
        let (way, why) = path(kernel, "127.0.0.1", all, v6);
        assert!(
            way == MediaWay::Sockets && why.contains("loopback"),
            "{why}"
        );
    }

    #[test]
    fn ports_that_the_kernel_lends() {
        let lent = |reserved| LentPorts::read("32768\t60999\n", reserved).unwrap();
        assert!(!lent("").overlap(20_000, 32_767));
        assert!(lent("").overlap(20_000, 39_999));
        assert!(!lent("").overlap(61_000, 65_535));
        assert!(!lent("32768-39999\n").overlap(20_000, 39_999));
        assert!(lent("32768-39998").overlap(20_000, 39_999));
        assert!(!lent("40000,32768-33000,33001-39999").overlap(20_000, 39_999));
        assert!(!lent("1-65535").overlap(2, 65_535));
        assert_eq!(LentPorts::read("", ""), None);
        let reserved = lent("8080,40000-40099\n").reserved_with(33_000, 33_999);
        assert_eq!(reserved, "8080,40000-40099,33000-33999");
        assert_eq!(lent("").reserved_with(33_000, 33_999), "33000-33999");
    }

    #[test]
    fn the_smaller_of_machine_and_group_counts() {
        let meminfo = "MemTotal:       16384000 kB\nMemFree:  1 kB\n";
        let free = machine_of(meminfo, "max\n", "max 100000\n");
        assert_eq!((free.memory, free.processor), (16_384_000, 1_000_000));
        let held = machine_of(meminfo, "1073741824\n", "25000 100000\n");
        assert_eq!((held.memory, held.processor), (1 << 20, 250_000));
        let unknown = machine_of("", "", "");
        assert_eq!((unknown.memory, unknown.processor), (UNKNOWN, 1_000_000));
        assert_eq!(
            own_group("0::/system.slice/hornwork.service\n"),
            "system.slice/hornwork.service"
        );
        assert_eq!(own_group("5:cpu:/x\n"), "");
        assert!(machine().memory > 0);
    }
}
