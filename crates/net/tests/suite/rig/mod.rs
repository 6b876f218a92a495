//! Drivers on every media path, and networks to test them in.
#![allow(dead_code, reason = "each test program uses the parts that it needs")]

use engine::{
    Control, Deadline, DropReason, Engine, EventKind, HashKey, Input, Output, SocketId, SocketKind,
    Time,
};
use media::forward::SessionStats;
use media::{
    Carriage, Forwarder, ForwarderLimits, Latching, MediaCommand, MediaEvent, SessionPlan, SidePlan,
};
use net::{AfXdp, Clock, Driver, DriverConfig, KernelRelay, MediaSockets};
use std::collections::VecDeque;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::rtcp::CompoundBuilder;
use wire::rtp::RtpHeader;

pub const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
pub const DSCP: u8 = 46;
/// Expedited forwarding, as in the IP header.
pub const CLASS: i32 = 46 << 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    PerPort,
    Thread,
    SharedPort,
    /// The kernel relay with one socket per port, and with the shared-port socket.
    KernelRelay,
    KernelRelaySharedPort,
    /// AF_XDP with one socket per port, and with the shared-port socket.
    AfXdp,
    AfXdpSharedPort,
}

impl Path {
    pub fn is_kernel(self) -> bool {
        matches!(self, Path::KernelRelay | Path::KernelRelaySharedPort)
    }

    pub fn is_af_xdp(self) -> bool {
        matches!(self, Path::AfXdp | Path::AfXdpSharedPort)
    }

    pub fn is_shared_port(self) -> bool {
        matches!(
            self,
            Path::SharedPort | Path::KernelRelaySharedPort | Path::AfXdpSharedPort
        )
    }
}

/// Serialises the tests of a program: a child process that one of them starts briefly holds copies of the sockets of
/// all, so that closed ports are not free yet.
pub fn serialised() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves this thread into a new network namespace whose loopback has small packets; false, with a message, if that is
/// not permitted.
pub fn enter_private_network(test: &str) -> bool {
    // SAFETY: changes only the namespace of this thread and its children.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = std::io::Error::last_os_error();
        eprintln!("skipped: {test} needs a network namespace: {error}");
        return false;
    }
    let done = Command::new("ip")
        .args("link set lo up mtu 1400".split(' '))
        .status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("skipped: not installed: ip (Debian: iproute2), for {test}");
        return false;
    }
    // Ephemeral ports of phones must not collide with the ports that tests open.
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "50000 60999").unwrap();
    true
}

/// A control plane that opens ports, sends commands to the forwarder, and records reports.
#[derive(Default)]
pub struct TestControl {
    pub out: VecDeque<Output<'static>>,
    pub commands: VecDeque<MediaCommand>,
    pub opened: Vec<(SocketId, Result<SocketAddr, String>)>,
    pub latched: usize,
    pub refused: usize,
    pub timeouts: usize,
    pub stats: Vec<(bool, SessionStats)>,
}

impl Engine for TestControl {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { socket, local } => self.opened.push((socket, Ok(local))),
            Input::OpenFailed { socket, error } => {
                self.opened.push((socket, Err(error.to_owned())))
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.pop_front()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for TestControl {
    type Command = MediaCommand;
    type Report = MediaEvent;
    fn next_command(&mut self) -> Option<MediaCommand> {
        self.commands.pop_front()
    }
    fn report(&mut self, report: MediaEvent, _now: Time) {
        match report {
            MediaEvent::Latched { .. } => self.latched += 1,
            MediaEvent::Refused { .. } => self.refused += 1,
            MediaEvent::Stats { stats, last, .. } => self.stats.push((last, *stats)),
            MediaEvent::Timeout { .. } => self.timeouts += 1,
            _ => {}
        }
    }
}

pub struct Rig {
    pub path: Path,
    /// The AF_XDP mode, if used.
    pub modes: String,
    pub driver: Driver<Forwarder>,
    pub operator: TestControl,
}

impl Rig {
    /// `None`, with a message, if the machine or the permissions do not allow the path.
    pub fn start(path: Path, world: &TestWorld, test: &str) -> Option<Rig> {
        let relay = match path.is_kernel().then(|| world.relay()) {
            Some(Err(error)) => {
                eprintln!("skipped: {test} through the kernel: {error}");
                return None;
            }
            Some(Ok(relay)) => Some(relay),
            None => None,
        };
        let af_xdp = match path.is_af_xdp().then(|| world.af_xdp()) {
            Some(Err(error)) => {
                eprintln!("skipped: {test} by AF_XDP: {error}");
                return None;
            }
            Some(Ok(af_xdp)) => Some(af_xdp),
            None => None,
        };
        let (modes, unserved) = af_xdp.as_ref().map(AfXdp::state).unwrap_or_default();
        assert_eq!(unserved, "");
        let config = DriverConfig {
            relay,
            af_xdp,
            media_thread: path == Path::Thread,
            media_sockets: match path {
                _ if path.is_shared_port() => MediaSockets::Auto,
                _ => MediaSockets::PerPort,
            },
            media_addresses: 2,
            media_dscp: DSCP,
            media_batching_delay: Duration::from_millis(1),
            ..DriverConfig::default()
        };
        let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
        let mut driver = Driver::new(config, Clock::new(), forwarder).unwrap();
        if path.is_shared_port() {
            let event = driver.next_event().expect("the path is reported");
            let EventKind::MediaPath { path, reason: why } = event.kind else {
                panic!("{event:?}");
            };
            assert_eq!(driver.has_shared_ports(), path == "shared_port_socket");
            if path != "shared_port_socket" {
                assert_eq!(path, "socket_per_port");
                assert!(!why.is_empty());
                eprintln!("skipped: {test} through one socket: {why}");
                return None;
            }
        } else {
            assert!(driver.next_event().is_none());
            assert!(!driver.has_shared_ports());
        }
        Some(Rig {
            path,
            modes,
            driver,
            operator: TestControl::default(),
        })
    }

    /// Runs turns for this time.
    pub fn run(&mut self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            self.turn();
        }
    }

    pub fn turn(&mut self) {
        self.driver
            .turn(&mut self.operator, Duration::from_millis(1))
            .unwrap();
    }

    /// Runs turns until no packets arrive any more.
    pub fn drain(&mut self) {
        let mut before = u64::MAX;
        while before != self.driver.counters().datagrams_in {
            before = self.driver.counters().datagrams_in;
            for _ in 0..20 {
                self.turn();
            }
        }
    }

    /// Runs turns until a condition holds.
    pub fn until(&mut self, mut condition: impl FnMut(&mut Rig) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.path);
            self.turn();
        }
    }

    pub fn open(&mut self, id: u32, local: SocketAddr) -> Result<SocketAddr, String> {
        self.operator.out.push_back(Output::OpenSocket {
            socket: SocketId(id),
            kind: SocketKind::UdpMedia,
            local,
        });
        self.until(|rig| rig.operator.opened.iter().any(|(known, _)| known.0 == id));
        let at = self
            .operator
            .opened
            .iter()
            .position(|(known, _)| known.0 == id)
            .unwrap();
        self.operator.opened.remove(at).1
    }

    pub fn shut(&mut self, id: u32) {
        self.operator.out.push_back(Output::CloseSocket {
            socket: SocketId(id),
        });
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.driver.counters().drops.get(reason)
    }

    /// The next packet at a peer, running turns meanwhile: bytes, sender, traffic class.
    pub fn take(&mut self, peer: &Peer) -> (Vec<u8>, SocketAddr, i32) {
        let begun = Instant::now();
        loop {
            if let Some(got) = peer.receive() {
                return got;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "nothing came: {:?}",
                self.path
            );
            self.turn();
        }
    }
}

/// Location of the phones.
pub enum TestWorld {
    /// On the same host.
    Loopback(IpAddr),
    /// Behind two interfaces, in separate network namespaces.
    Wired([FarEnd; 2]),
}

/// Receive path of our interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// One queue, and a driver with XDP.
    Queue,
    /// Four queues, over which the far end distributes its streams.
    Queues,
    /// Fewer queues than the far end uses, and a driver without XDP: the kernel runs the program in generic mode.
    Fewer,
    /// A bridge, whose driver has no XDP, with the wire as its port.
    Bridge,
}

/// A network namespace at the far end of a wire, with a thread that runs functions in it.
pub struct FarEnd {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
    /// The thread's ID, by which its namespace is found.
    thread: i64,
    number: u8,
    pub own: IpAddr,
    pub phone: IpAddr,
}

fn ip(words: &str) {
    let done = Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {words}: {message}");
}

/// Changes a setting of an interface in this thread's namespace (linux/ethtool.h).
pub fn ethtool(interface: &str, command: u32, value: u32) {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        value: *mut [u32; 2],
        rest: [u8; 16],
    }
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut value = [command, value];
    let mut request = Request {
        name: [0; 16],
        value: &raw mut value,
        rest: [0; 16],
    };
    request.name[..interface.len()].copy_from_slice(interface.as_bytes());
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: a request of the kernel's size, with a value that outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Opens an AF_XDP socket of "another program" at a queue of an interface in this thread's namespace. It receives
/// nothing.
pub fn hold_queue(interface: &CStr, queue: u32) -> OwnedFd {
    const FRAMES: u32 = 64;
    // SAFETY: calls with values of the stated sizes, which outlive them; the memory belongs to the socket from then
    // on.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        let length = FRAMES as usize * 2_048;
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let memory = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
        assert!(memory != libc::MAP_FAILED);
        let mut region: libc::xdp_umem_reg = std::mem::zeroed();
        region.addr = memory as u64;
        region.len = length as u64;
        region.chunk_size = 2_048;
        let frames = FRAMES;
        let set = |name, value: *const libc::c_void, size: usize| {
            let done = libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value, size as u32);
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        };
        set(
            libc::XDP_UMEM_REG,
            (&raw const region).cast(),
            size_of_val(&region),
        );
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
        ] {
            set(ring, (&raw const frames).cast(), 4);
        }
        let mut own: libc::sockaddr_xdp = std::mem::zeroed();
        own.sxdp_family = libc::AF_XDP as u16;
        own.sxdp_flags = libc::XDP_COPY;
        own.sxdp_ifindex = libc::if_nametoindex(interface.as_ptr());
        own.sxdp_queue_id = queue;
        let size = size_of_val(&own) as u32;
        let done = libc::bind(fd.as_raw_fd(), (&raw const own).cast(), size);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        fd
    }
}

impl FarEnd {
    fn start(number: u8, six: bool) -> FarEnd {
        let (jobs, job_receiver) = channel::<Box<dyn FnOnce() + Send>>();
        let (answer, answered) = channel();
        let at = |host: u8| match six {
            false => IpAddr::V4(Ipv4Addr::new(10, 77, number, host)),
            true => IpAddr::V6(Ipv6Addr::new(
                0xfd77,
                number.into(),
                0,
                0,
                0,
                0,
                0,
                host.into(),
            )),
        };
        std::thread::spawn(move || {
            // SAFETY: as in `enter_private_network`.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            // SAFETY: only reads an ID.
            answer
                .send(unsafe { libc::syscall(libc::SYS_gettid) })
                .unwrap();
            while let Ok(work) = job_receiver.recv() {
                work();
            }
        });
        FarEnd {
            jobs,
            thread: answered.recv().unwrap(),
            number,
            own: at(1),
            phone: at(2),
        }
    }

    /// Runs a function in that namespace.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (answer, answered) = channel();
        let work = move || answer.send(work()).unwrap();
        self.jobs.send(Box::new(work)).unwrap();
        answered.recv().unwrap()
    }

    /// Creates the wire from this thread's namespace: `wire0` here, `far0` there, and so on. `ready`: the far end
    /// accepts XDP frames.
    fn wire(&self, number: u8, ready: bool, wiring: Wiring) {
        let (near, here, there) = match wiring {
            Wiring::Queue => ("wire", 1, 1),
            Wiring::Queues => ("wire", 4, 4),
            Wiring::Fewer => ("wire", 1, 4),
            Wiring::Bridge => ("port", 1, 1),
        };
        ip(&format!(
            "link add {near}{number} numrxqueues {here} numtxqueues {here} type veth \
             peer name far{number} numrxqueues {there} numtxqueues {there} netns {}",
            self.thread
        ));
        if wiring == Wiring::Bridge {
            // Without the delay of the spanning tree protocol.
            ip(&format!(
                "link add wire{number} type bridge forward_delay 0"
            ));
            ip(&format!(
                "link set port{number} up mtu 1400 master wire{number}"
            ));
        }
        // IPv6 without duplicate address detection, which takes seconds.
        let rest = if self.own.is_ipv6() {
            "/64 nodad"
        } else {
            "/24"
        };
        ip(&format!("addr add {}{rest} dev wire{number}", self.own));
        ip(&format!("link set wire{number} up mtu 1400"));
        let phone = self.phone;
        self.run(move || {
            ip("link set lo up");
            ip(&format!("addr add {phone}{rest} dev far{number}"));
            ip(&format!("link set far{number} up mtu 1400"));
            let far = format!("far{number}");
            // Checksums in software, because there is no network card; GRO, without which a veth accepts no XDP
            // frames.
            ethtool(&far, 0x17, 0);
            ethtool(&far, 0x2c, u32::from(ready));
        });
    }
}

impl Drop for FarEnd {
    /// Removes the interface, so that its name is free at once and not only when the far namespace is removed.
    fn drop(&mut self) {
        for near in ["wire", "port"] {
            let words = format!("link del {near}{}", self.number);
            let _ = Command::new("ip").args(words.split(' ')).output();
        }
    }
}

impl TestWorld {
    /// Two namespaces connected to this thread's, which must be its own.
    pub fn wired() -> TestWorld {
        TestWorld::wired_with(true, false)
    }

    /// `ready`: the far ends accept XDP frames; `six`: IPv6.
    pub fn wired_with(ready: bool, six: bool) -> TestWorld {
        TestWorld::wired_by(ready, six, Wiring::Queue)
    }

    pub fn wired_by(ready: bool, six: bool, wiring: Wiring) -> TestWorld {
        let ends = [FarEnd::start(1, six), FarEnd::start(2, six)];
        // As on the loopback, without rate limits.
        for family in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            std::fs::write(format!("/proc/sys/net/{family}"), "0").unwrap();
        }
        // IPv6 addresses stay when an interface goes down, as IPv4 addresses do.
        let keep = "/proc/sys/net/ipv6/conf/all/keep_addr_on_down";
        std::fs::write(keep, "1").unwrap();
        ends[0].wire(1, ready, wiring);
        ends[1].wire(2, ready, wiring);
        TestWorld::Wired(ends)
    }

    pub fn own(&self, side: usize) -> IpAddr {
        match self {
            TestWorld::Loopback(ip) => *ip,
            TestWorld::Wired(ends) => ends[side].own,
        }
    }

    pub fn phone(&self, side: usize) -> Peer {
        match self {
            TestWorld::Loopback(ip) => Peer::new(*ip),
            TestWorld::Wired(ends) => {
                let ip = ends[side].phone;
                ends[side].run(move || Peer::new(ip))
            }
        }
    }

    pub fn phone_at(&self, side: usize, address: SocketAddr) -> Peer {
        match self {
            TestWorld::Loopback(_) => Peer::at(address),
            TestWorld::Wired(ends) => ends[side].run(move || Peer::at(address)),
        }
    }

    /// RTP and RTCP ports of two phones.
    pub fn phones(&self) -> [Peer; 4] {
        [0, 0, 1, 1].map(|side| self.phone(side))
    }

    pub fn relay(&self) -> std::io::Result<KernelRelay> {
        KernelRelay::start(&[self.own(0), self.own(1)], DSCP)
    }

    pub fn af_xdp(&self) -> std::io::Result<AfXdp> {
        AfXdp::start(&[self.own(0), self.own(1)], DSCP)
    }
}

/// A port of a phone.
pub struct Peer(pub UdpSocket);

impl Peer {
    pub fn new(ip: IpAddr) -> Peer {
        Peer::at(SocketAddr::new(ip, 0))
    }

    pub fn at(address: SocketAddr) -> Peer {
        let begun = Instant::now();
        // A child process of another thread briefly holds copies of all sockets, including closed ones.
        let socket = loop {
            match UdpSocket::bind(address) {
                Err(error)
                    if error.kind() == std::io::ErrorKind::AddrInUse
                        && begun.elapsed() < Duration::from_secs(10) =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                socket => break socket.unwrap(),
            }
        };
        socket.set_nonblocking(true).unwrap();
        let (level, name) = match address.is_ipv6() {
            false => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            true => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        };
        let on: libc::c_int = 1;
        // SAFETY: the option's value is an int that outlives the call.
        let done =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), 4) };
        assert_eq!(done, 0);
        Peer(socket)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub fn send(&self, bytes: &[u8], to: SocketAddr) {
        self.0.send_to(bytes, to).unwrap();
    }

    pub fn receive(&self) -> Option<(Vec<u8>, SocketAddr, i32)> {
        let mut bytes = [0u8; 4_096];
        let mut control = [0u64; 8];
        let mut iovec = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all zero is a valid header; its pointers are set to buffers that outlive the calls.
        let (length, class) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = 64;
            let peeked = self.0.peek_from(&mut [0; 1]).ok();
            let from = peeked?.1;
            let length = libc::recvmsg(self.0.as_raw_fd(), &raw mut header, 0);
            assert!(length >= 0);
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            assert!(!message.is_null());
            // One byte for IPv4, an int for IPv6: the class is small, so either byte order works.
            let class = match (*message).cmsg_level {
                libc::IPPROTO_IP => i32::from(*libc::CMSG_DATA(message)),
                _ => libc::CMSG_DATA(message).cast::<i32>().read_unaligned(),
            };
            ((length as usize, from), class)
        };
        Some((bytes[..length.0].to_vec(), length.1, class))
    }
}

pub fn rtp(ssrc: u32, sequence: u16, length: usize) -> Vec<u8> {
    RtpHeader {
        payload_type: 8,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ssrc,
        ..RtpHeader::default()
    }
    .packet(&vec![0xd5; length])
}

pub fn rtcp(ssrc: u32) -> Vec<u8> {
    CompoundBuilder::new()
        .receiver_report(ssrc, &[])
        .cname(ssrc, "a@b")
        .finish()
}

/// A call: our four ports from `port` on, and two phones with an RTP and an RTCP port each.
pub fn call(
    rig: &mut Rig,
    session: u64,
    world: &TestWorld,
    port: u16,
    phones: [&Peer; 4],
) -> [SocketAddr; 4] {
    let id = session as u32 * 10;
    let ours = [0, 1, 2, 3].map(|n| SocketAddr::new(world.own(n / 2), port + n as u16));
    for (n, local) in (0..).zip(ours) {
        assert_eq!(rig.open(id + n, local), Ok(local), "{:?}", rig.path);
    }
    let ip = world.own(0);
    let side = |n: usize| {
        let mut side = SidePlan::new(SocketId(id + n as u32));
        side.rtcp = Some(SocketId(id + n as u32 + 1));
        side.ipv6 = ip.is_ipv6();
        side.signalled_rtp = Some(phones[n].address());
        side.signalled_rtcp = Some(phones[n + 1].address());
        side.latching = Latching::Signalled;
        side
    };
    let plan = SessionPlan::single(session, Carriage::Rtp, [side(0), side(2)]);
    rig.operator
        .commands
        .push_back(MediaCommand::Add(Box::new(plan)));
    rig.run(5);
    assert_eq!(rig.operator.refused, 0);
    ours
}

/// Sends raw frames from the far end of the first wire.
pub struct RawWire {
    socket: OwnedFd,
    interface: i32,
    head: Vec<u8>,
}

fn mac_of(interface: &str) -> Vec<u8> {
    let done = Command::new("ip")
        .args(["-o", "link", "show", interface])
        .output()
        .unwrap();
    let message = String::from_utf8(done.stdout).unwrap();
    let mac = message.split("link/ether ").nth(1).unwrap();
    let mac = mac.split(' ').next().unwrap().split(':');
    mac.map(|octet| u8::from_str_radix(octet, 16).unwrap())
        .collect()
}

impl RawWire {
    pub fn new(world: &TestWorld) -> RawWire {
        let TestWorld::Wired(ends) = world else {
            unreachable!()
        };
        let mut head = mac_of("wire1");
        let (socket, interface, from) = ends[0].run(|| {
            // SAFETY: opens a socket; the name is NUL-terminated.
            unsafe {
                let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
                assert!(fd >= 0, "{}", std::io::Error::last_os_error());
                let interface = libc::if_nametoindex(c"far1".as_ptr());
                (OwnedFd::from_raw_fd(fd), interface as i32, mac_of("far1"))
            }
        });
        head.extend(from);
        RawWire {
            socket,
            interface,
            head,
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: all zero is a valid address; the frame outlives the call.
        unsafe {
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_ifindex = self.interface;
            let length = size_of::<libc::sockaddr_ll>() as u32;
            let sent = libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                length,
            );
            assert_eq!(sent, frame.len() as isize);
        }
    }

    /// A complete frame with an RTP packet.
    pub fn frame(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let mut frame = self.head.clone();
        let length = (8 + payload.len() as u16).to_be_bytes();
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((28 + payload.len() as u16).to_be_bytes());
                frame.extend([0, 7, 0x40, 0, 64, 17, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(length);
                frame.extend([17, 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => unreachable!(),
        }
        frame.extend(from.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend(length);
        frame.extend([0, 0]);
        frame.extend(payload);
        summed(frame, from.is_ipv6())
    }
}

pub fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The same with valid checksums.
pub fn summed(mut frame: Vec<u8>, six: bool) -> Vec<u8> {
    let (addresses, udp) = if six { (22, 54) } else { (26, 34) };
    let length = (frame.len() - udp) as u32;
    if !six {
        frame[24..26].fill(0);
        let ip = !sum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&ip.to_be_bytes());
    }
    frame[udp + 6..udp + 8].fill(0);
    let check = !sum(&frame[addresses..], 17 + length);
    let check = if check == 0 { 0xffff } else { check };
    frame[udp + 6..udp + 8].copy_from_slice(&check.to_be_bytes());
    frame
}
