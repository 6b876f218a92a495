//! Resources of this machine, or of the control group of this process.

use border::admission::{MediaOffload, MediaPath, MediaPaths};
use config::{Config, MachineCapacity, MediaSocketMode, OffloadMode};
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;

/// Assumed memory if the size is unknown, KiB.
const ASSUMED_KIB: u64 = 1 << 20;

/// The resources available to `hornwork run` on this machine with `workers` workers: signalling and media of a worker
/// share a thread.
pub fn machine(workers: u8) -> MachineCapacity {
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
        threads_of(workers, cpus()),
    )
}

/// Number of CPUs of this process at its start: later a worker is pinned to one of them, and so are the threads that it
/// starts to read a configuration again.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| net::allowed_cpus().len())
}

/// The kernel's range of ephemeral ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EphemeralPorts {
    /// First port.
    pub first: u16,
    /// Last port, inclusive.
    pub last: u16,
    /// Whether the range was read from the kernel; otherwise it is the kernel's default.
    pub is_read: bool,
    /// Ranges excluded by the administrator.
    reserved: Vec<(u16, u16)>,
}

impl EphemeralPorts {
    /// The range of this network namespace.
    pub fn read_from_kernel() -> EphemeralPorts {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::read_to_string(path).unwrap_or_default()
        };
        let range = read("ip_local_port_range");
        // If /proc is not readable, the default range is assumed to be in use.
        EphemeralPorts::parse(&range, &read("ip_local_reserved_ports")).unwrap_or(EphemeralPorts {
            first: 32_768,
            last: 60_999,
            is_read: false,
            reserved: Vec::new(),
        })
    }

    /// The value of `ip_local_reserved_ports` with these ports added.
    pub fn reserved_with(&self, first: u16, last: u16) -> String {
        let ranges = self.reserved.iter().copied().chain([(first, last)]);
        let ranges = ranges.map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        ranges.collect::<Vec<String>>().join(",")
    }

    /// Parses the texts of `ip_local_port_range` and `ip_local_reserved_ports`; `None` if they are unreadable.
    pub fn parse(range: &str, reserved: &str) -> Option<EphemeralPorts> {
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
        Some(EphemeralPorts {
            first,
            last,
            is_read: true,
            reserved,
        })
    }

    /// Whether a port of this range may be assigned as an ephemeral port.
    pub fn overlaps(&self, first: u16, last: u16) -> bool {
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

/// Capabilities for the faster media paths, by their bits in the sets of `/proc/self/status`.
const CAPABILITIES: [(u32, &str); 4] = [
    (39, "CAP_BPF"),
    (38, "CAP_PERFMON"),
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
];

/// Capabilities for the shared-port socket.
const SHARED_PORT_CAPABILITIES: [(u32, &str); 3] =
    [(39, "CAP_BPF"), (12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];
/// The first kernel with it.
const SHARED_PORT_KERNEL: (u32, u32) = (5, 9);

/// The media paths expected on this machine, derived without trying from the configuration, the capabilities of this
/// process and the kernel version; and the reason.
pub fn expected_paths(config: &Config) -> (MediaPaths, String) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    paths_of(
        config,
        &read("/proc/self/status"),
        &read("/proc/sys/kernel/osrelease"),
    )
}

fn paths_of(config: &Config, status: &str, release: &str) -> (MediaPaths, String) {
    let (offload, why) = offload_of(config, status, release);
    let (shared_ports, sockets) = match config.media.sockets {
        MediaSocketMode::PerPort => (false, "`sockets` is \"per-port\"".to_owned()),
        MediaSocketMode::Auto | MediaSocketMode::Shared => {
            let rights = &SHARED_PORT_CAPABILITIES;
            match hindrance(status, rights, release, SHARED_PORT_KERNEL) {
                Some(why) => (false, why),
                None => (true, "capabilities and kernel permit it".to_owned()),
            }
        }
    };
    let what = match shared_ports {
        true => "one socket for all media ports, assumed",
        false => "a socket for each media port",
    };
    let paths = MediaPaths {
        offload,
        shared_ports,
        direct_tunnels: crate::gateway::carries_media_directly(config),
    };
    (paths, format!("{why}; {what}: {sockets}"))
}

/// The obstacle to a path that needs these rights and this kernel.
fn hindrance(
    status: &str,
    rights: &[(u32, &'static str)],
    release: &str,
    version: (u32, u32),
) -> Option<String> {
    let missing = missing_capabilities(status, rights);
    if !missing.is_empty() {
        return Some(format!(
            "this process lacks {}; if `run` has these capabilities, run `check` with them",
            missing.join(", ")
        ));
    }
    release_of(release)
        .is_none_or(|own| own < version)
        .then(|| {
            let (major, minor) = version;
            format!("it needs Linux {major}.{minor}; this is {}", release.trim())
        })
}

fn offload_of(config: &Config, status: &str, release: &str) -> (MediaOffload, String) {
    let (way, key, mode, version, rights) = match (config.media.kernel_relay, config.media.af_xdp) {
        (OffloadMode::Never, OffloadMode::Never) => {
            let why = "`[media] kernel_relay` and `af_xdp` are \"never\"".to_owned();
            return (MediaOffload::default(), why);
        }
        (OffloadMode::Never, mode) => {
            (MediaPath::AfXdp, "af_xdp", mode, (5, 11), &CAPABILITIES[..])
        }
        (mode, _) => (
            MediaPath::Kernel,
            "kernel_relay",
            mode,
            (6, 3),
            &CAPABILITIES[..3],
        ),
    };
    let mode = match mode {
        OffloadMode::Require => "require",
        _ => "auto",
    };
    let setting = format!("`[media] {key} = \"{mode}\"`");
    let sockets = |why: String| (MediaOffload::default(), format!("{setting}, but {why}"));
    if let Some(why) = hindrance(status, rights, release, version) {
        return sockets(why);
    }
    let ranges = config.media_ranges.iter().map(|range| range.address);
    let mut addresses: Vec<IpAddr> = ranges.filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return sockets("the loopback interface has no XDP".to_owned());
    }
    let offload = MediaOffload {
        path: way,
        addresses: addresses.into(),
    };
    (
        offload,
        format!(
            "assumed: {setting}, and capabilities and kernel permit it; `run` determines whether the interfaces do"
        ),
    )
}

/// The capabilities of this list that are not in the effective set.
fn missing_capabilities(status: &str, rights: &[(u32, &'static str)]) -> Vec<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let set = set.unwrap_or(0);
    let missing = rights.iter().filter(|(bit, _)| set >> bit & 1 == 0);
    missing.map(|(_, name)| *name).collect()
}

/// Major and minor version of the kernel.
fn release_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .trim()
        .split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Control group (version 2) of this process, relative to the root.
fn own_group(cgroup: &str) -> String {
    let line = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    line.unwrap_or_default().to_owned()
}

/// Threads that can work at the same time; `cpus` is 0 where it is not known.
fn threads_of(workers: u8, cpus: usize) -> u64 {
    let cpus = if cpus == 0 { usize::MAX } else { cpus };
    usize::from(workers.max(1)).min(cpus) as u64
}

fn machine_of(meminfo: &str, memory_max: &str, cpu_max: &str, threads: u64) -> MachineCapacity {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(ASSUMED_KIB);
    let group = memory_max
        .trim()
        .parse()
        .map_or(u64::MAX, |bytes: u64| bytes / 1_024);
    let mut quota = cpu_max.split_whitespace().map(str::parse::<u64>);
    let processor = match (quota.next(), quota.next()) {
        (Some(Ok(quota)), Some(Ok(period))) if period > 0 => {
            quota.saturating_mul(1_000_000) / period
        }
        _ => u64::MAX,
    };
    MachineCapacity {
        memory: total.min(group),
        processor: processor.min(threads * 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the thread that reads a configuration again.
    #[test]
    fn a_pinned_thread_counts_all_cpus() {
        let before = machine(2).processor;
        let first = net::allowed_cpus()[0];
        let pinned = std::thread::spawn(move || {
            net::pin(first).expect("affinity");
            machine(2).processor
        });
        assert_eq!(pinned.join().expect("thread"), before);
    }

    #[test]
    fn media_path_is_derived_from_configuration_capabilities_and_kernel() {
        let config = |media: &str, address: &str| {
            let text = format!(
                "[[interface]]\nname='a'\nlisten='udp:{address}:5060'\nmedia={{address='{address}'}}\n[media]\n{media}\n"
            );
            config::parse(&text, "test").expect("a configuration")
        };
        let all = "CapEff:\t000001ffffffffff\n";
        let path = |media: &str, address: &str, status: &str, release: &str| {
            let (paths, why) = paths_of(&config(media, address), status, release);
            (paths.offload.path, why)
        };
        let (kernel, v6) = ("kernel_relay='auto'", "6.8.0-1\n");
        let (way, why) = path("", "192.0.2.1", all, v6);
        assert!(way.uses_sockets() && why.contains("are \"never\""), "{why}");
        let (way, why) = path(kernel, "192.0.2.1", all, v6);
        assert!(
            way == MediaPath::Kernel && why.starts_with("assumed: "),
            "{why}"
        );
        assert_eq!(
            path("af_xdp='require'", "192.0.2.1", all, v6).0,
            MediaPath::AfXdp
        );
        // CAP_NET_RAW and CAP_NET_ADMIN only.
        let some = "CapEff:\t0000000000003000\n";
        let (way, why) = path(kernel, "192.0.2.1", some, v6);
        let lacks = "lacks CAP_BPF, CAP_PERFMON;";
        assert!(way.uses_sockets() && why.contains(lacks), "{why}");
        let (way, why) = path(kernel, "192.0.2.1", all, "6.1.0-18\n");
        let old = "needs Linux 6.3; this is 6.1.0-18";
        assert!(way.uses_sockets() && why.contains(old), "{why}");
        let (way, why) = path(kernel, "127.0.0.1", all, v6);
        assert!(way.uses_sockets() && why.contains("loopback"), "{why}");

        // Sockets of media ports.
        let sockets = |media: &str, status: &str, release: &str| {
            let (paths, why) = paths_of(&config(media, "192.0.2.1"), status, release);
            (paths.sockets(), why)
        };
        let (way, why) = sockets("", all, v6);
        assert!(
            way == MediaPath::SharedPortSocket && why.contains("one socket for all"),
            "{why}"
        );
        for (media, status, release, wanted) in [
            ("sockets='per-port'", all, v6, "`sockets` is \"per-port\""),
            ("", some, v6, "lacks CAP_BPF;"),
            ("", all, "5.4.0\n", "needs Linux 5.9"),
        ] {
            let (way, why) = sockets(media, status, release);
            assert!(
                way == MediaPath::SocketPerPort && why.contains(wanted),
                "{why}"
            );
        }
    }

    #[test]
    fn ephemeral_ports_of_the_kernel() {
        let ephemeral = |reserved| EphemeralPorts::parse("32768\t60999\n", reserved).unwrap();
        assert!(!ephemeral("").overlaps(20_000, 32_767));
        assert!(ephemeral("").overlaps(20_000, 39_999));
        assert!(!ephemeral("").overlaps(61_000, 65_535));
        assert!(!ephemeral("32768-39999\n").overlaps(20_000, 39_999));
        assert!(ephemeral("32768-39998").overlaps(20_000, 39_999));
        assert!(!ephemeral("40000,32768-33000,33001-39999").overlaps(20_000, 39_999));
        assert!(!ephemeral("1-65535").overlaps(2, 65_535));
        assert_eq!(EphemeralPorts::parse("", ""), None);
        let reserved = ephemeral("8080,40000-40099\n").reserved_with(33_000, 33_999);
        assert_eq!(reserved, "8080,40000-40099,33000-33999");
        assert_eq!(ephemeral("").reserved_with(33_000, 33_999), "33000-33999");
    }

    #[test]
    fn smaller_of_machine_and_control_group_applies() {
        let meminfo = "MemTotal:       16384000 kB\nMemFree:  1 kB\n";
        let free = machine_of(meminfo, "max\n", "max 100000\n", 1);
        assert_eq!((free.memory, free.processor), (16_384_000, 1_000_000));
        let held = machine_of(meminfo, "1073741824\n", "25000 100000\n", 1);
        assert_eq!((held.memory, held.processor), (1 << 20, 250_000));
        let unknown = machine_of("", "", "", 1);
        assert_eq!(
            (unknown.memory, unknown.processor),
            (ASSUMED_KIB, 1_000_000)
        );
        assert_eq!(
            own_group("0::/system.slice/hornwork.service\n"),
            "system.slice/hornwork.service"
        );
        assert_eq!(own_group("5:cpu:/x\n"), "");
        assert!(machine(1).memory > 0);
    }

    /// Admission control divides the capacity by the workers again.
    #[test]
    fn each_worker_adds_a_processor_as_far_as_there_is_one() {
        let of = |cpu_max: &str, workers, cpus| {
            machine_of("", "", cpu_max, threads_of(workers, cpus)).processor
        };
        assert_eq!(of("max 100000\n", 4, 8), 4_000_000);
        assert_eq!(of("max 100000\n", 4, 2), 2_000_000);
        assert_eq!(of("250000 100000\n", 4, 8), 2_500_000);
        assert_eq!(of("max 100000\n", 4, 0), 4_000_000);
        assert_eq!(of("max 100000\n", 0, 8), 1_000_000);
    }
}
