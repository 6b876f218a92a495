//! Description of the machine and the kernel's UDP counters, for reports.

use std::io;
use std::path::Path;

/// The machine on which a result was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPU model as reported by the kernel.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Kernel name, release and machine type.
    pub kernel: String,
    /// Memory, bytes.
    pub memory: u64,
}

/// Space of a file system, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Space for this user: used and free.
    pub total: u64,
    /// Free space for this user.
    pub free: u64,
}

/// The space of the file system of a file or folder. A remote file system may take long to answer.
///
/// # Errors
/// The path does not exist, or the file system does not tell.
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    let all = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(all.f_frsize);
    // Some of the free blocks are reserved for root.
    let used = all.f_blocks.saturating_sub(all.f_bfree);
    Ok(DiskSpace {
        total: bytes(used.saturating_add(all.f_bavail)),
        free: bytes(all.f_bavail),
    })
}

/// Describes this machine. Values that the kernel does not report are empty or zero.
pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = rustix::system::uname();
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, Into::into),
        kernel: format!(
            "{} {} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy(),
            name.machine().to_string_lossy()
        ),
        memory: field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
            .unwrap_or(0)
            * 1_024,
    }
}

/// The value of `name: value` in a file of `/proc`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Packets and bytes of an interface since its creation. Bytes are those of IP packets, with the link-layer header if
/// the interface has one (loopback and TUN do not count one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets received.
    pub received_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets dropped in place of being sent: of a TUN device those that its program did not read in time.
    pub send_drops: u64,
}

/// The counters of an interface of the calling thread's network namespace.
///
/// # Errors
/// `/proc/thread-self/net/dev` cannot be read, or has no line of the interface.
pub fn interface_counters(name: &str) -> io::Result<InterfaceCounters> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    parse_interface(&text, name).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// A line has bytes, packets, errors, drops and four others received, and then the same sent.
fn parse_interface(text: &str, name: &str) -> Option<InterfaceCounters> {
    let line = field(text, name)?;
    let counters: Option<Vec<u64>> = line
        .split_ascii_whitespace()
        .map(|number| number.parse().ok())
        .collect();
    let counters = counters?;
    Some(InterfaceCounters {
        received_bytes: *counters.first()?,
        received_packets: *counters.get(1)?,
        sent_bytes: *counters.get(8)?,
        sent_packets: *counters.get(9)?,
        send_drops: *counters.get(11)?,
    })
}

/// UDP counters of the calling thread's network namespace since its creation, IPv4 and IPv6 together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Datagrams read by programs.
    pub in_datagrams: u64,
    /// Datagrams that could not be delivered, including those dropped at full buffers.
    pub in_errors: u64,
    /// Datagrams to ports without a socket.
    pub no_ports: u64,
    /// Datagrams sent.
    pub out_datagrams: u64,
    /// Datagrams dropped because a socket's receive buffer was full.
    pub receive_buffer_errors: u64,
    /// Datagrams dropped because a socket's send buffer was full.
    pub send_buffer_errors: u64,
}

impl KernelCounters {
    /// The increase since `earlier`.
    pub fn since(&self, earlier: &KernelCounters) -> KernelCounters {
        let less = |a: u64, b: u64| a.wrapping_sub(b);
        KernelCounters {
            in_datagrams: less(self.in_datagrams, earlier.in_datagrams),
            in_errors: less(self.in_errors, earlier.in_errors),
            no_ports: less(self.no_ports, earlier.no_ports),
            out_datagrams: less(self.out_datagrams, earlier.out_datagrams),
            receive_buffer_errors: less(self.receive_buffer_errors, earlier.receive_buffer_errors),
            send_buffer_errors: less(self.send_buffer_errors, earlier.send_buffer_errors),
        }
    }

    fn add(&mut self, name: &str, value: u64) {
        let place = match name {
            "InDatagrams" => &mut self.in_datagrams,
            "InErrors" => &mut self.in_errors,
            "NoPorts" => &mut self.no_ports,
            "OutDatagrams" => &mut self.out_datagrams,
            "RcvbufErrors" => &mut self.receive_buffer_errors,
            "SndbufErrors" => &mut self.send_buffer_errors,
            _ => return,
        };
        *place = place.wrapping_add(value);
    }
}

/// Reads the UDP counters.
///
/// # Errors
/// `/proc` is not mounted or has another format.
pub fn kernel_counters() -> io::Result<KernelCounters> {
    let mut counters = KernelCounters::default();
    let v4 = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
    read_v4(&v4, &mut counters)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/net/snmp"))?;
    match std::fs::read_to_string("/proc/thread-self/net/snmp6") {
        Ok(v6) => read_v6(&v6, &mut counters),
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(counters)
}

fn read_v4(text: &str, counters: &mut KernelCounters) -> Option<()> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let names = lines.next()?.split_ascii_whitespace().skip(1);
    let values = lines.next()?.split_ascii_whitespace().skip(1);
    for (name, value) in names.zip(values) {
        counters.add(name, value.parse().ok()?);
    }
    Some(())
}

fn read_v6(text: &str, counters: &mut KernelCounters) {
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(name), Some(value)) = (words.next(), words.next())
            && let Some(name) = name.strip_prefix("Udp6")
            && let Ok(value) = value.parse()
        {
            counters.add(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_an_interface_is_parsed() {
        let text = "Inter-|   Receive\n face |bytes    packets errs\n    lo:     504       6    0    0 0 0 0 0 7 8 0 3\n  eth0: 9 1 0\n";
        let counters = InterfaceCounters {
            received_packets: 6,
            received_bytes: 504,
            sent_packets: 8,
            sent_bytes: 7,
            send_drops: 3,
        };
        assert_eq!(parse_interface(text, "lo"), Some(counters));
        assert_eq!(parse_interface(text, "eth0"), None);
        assert_eq!(parse_interface(text, "eth1"), None);
    }

    #[test]
    fn both_formats_are_parsed() {
        let mut counters = KernelCounters::default();
        let v4 = "Ip: A\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 5 1 2 7 2 0\n";
        read_v4(v4, &mut counters).unwrap();
        read_v6(
            "Udp6InDatagrams   \t10\nUdp6RcvbufErrors 3\nUdpLite6InDatagrams 9\n",
            &mut counters,
        );
        assert_eq!(counters.in_datagrams, 15);
        assert_eq!(counters.receive_buffer_errors, 5);
        assert_eq!(counters.no_ports, 1);
    }

    #[test]
    fn sent_datagrams_are_counted() {
        let before = kernel_counters().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        socket.recv(&mut [0; 4]).unwrap();
        let after = kernel_counters().unwrap().since(&before);
        assert!(after.out_datagrams >= 1 && after.in_datagrams >= 1);
    }

    #[test]
    fn machine_is_described() {
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory > 1 << 20);
        assert!(machine.kernel.starts_with("Linux "));
    }
}
