//! Opens sockets with the options that the driver needs.

use crate::config::DriverConfig;
use engine::SocketKind;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Pauses between attempts to get an ephemeral port, milliseconds: a quarter of a second in all.
const PAUSES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Calls `open` for `local`. Without a fixed port it is retried a few times if all ports are in use and this thread
/// `waits`: next to programs with thousands of sockets, ephemeral ports are freed continually. A fixed port is tried
/// once.
fn retry_ephemeral<T>(
    local: SocketAddr,
    waits: bool,
    mut open: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    let pauses = PAUSES.iter().filter(|_| waits && local.port() == 0);
    for pause in pauses {
        match open() {
            Err(Errno::ADDRINUSE) => std::thread::sleep(Duration::from_millis(*pause)),
            done => return Ok(done?),
        }
    }
    Ok(open()?)
}

/// The local address of a socket.
pub(crate) fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SocketAddr::try_from(net::getsockname(fd)?).map_err(|_| io::Error::from(Errno::AFNOSUPPORT))
}

pub(crate) fn buffers(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<()> {
    // The forced form exceeds the system's maximum and needs CAP_NET_ADMIN; without it the kernel grants up to its
    // maximum.
    if sockopt::set_socket_recv_buffer_size_force(fd, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, bytes)?;
    }
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        sockopt::set_socket_send_buffer_size(fd, bytes)?;
    }
    Ok(())
}

/// Requests a send buffer of this size for a socket; the kernel grants up to its maximum without CAP_NET_ADMIN.
///
/// # Errors
/// The kernel refuses it.
pub fn request_send_buffer(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        sockopt::set_socket_send_buffer_size(fd, bytes)?;
    }
    Ok(())
}

fn dscp(fd: BorrowedFd<'_>, address: SocketAddr, code: u8) -> rustix::io::Result<()> {
    if code == 0 {
        return Ok(());
    }
    match address {
        SocketAddr::V4(_) => sockopt::set_ip_tos(fd, code << 2),
        SocketAddr::V6(_) => sockopt::set_ipv6_tclass(fd, u32::from(code) << 2),
    }
}

/// Binds a socket to the interface of the configuration, if it has one.
fn device(fd: BorrowedFd<'_>, config: &DriverConfig) -> rustix::io::Result<()> {
    let Some(name) = &config.device else {
        return Ok(());
    };
    // SAFETY: the name outlives the call, and its length is stated.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            u32::try_from(name.len()).unwrap_or(u32::MAX),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// A bound UDP socket. Only this program's workers share the address: SO_REUSEADDR on UDP would let another socket
/// receive our datagrams.
pub(crate) fn udp(
    local: SocketAddr,
    kind: SocketKind,
    config: &DriverConfig,
) -> io::Result<OwnedFd> {
    let fd = net::socket_with(family(local), SocketType::DGRAM, FLAGS, None)?;
    let (buffer, code) = match kind {
        SocketKind::UdpMedia => (config.media_buffer, config.media_dscp),
        _ => (config.signalling_buffer, config.signalling_dscp),
    };
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    device(fd.as_fd(), config)?;
    buffers(fd.as_fd(), buffer)?;
    dscp(fd.as_fd(), local, code)?;
    let signalling = config.signalling_timestamps && kind != SocketKind::UdpMedia;
    if config.receive_timestamps || signalling {
        set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    }
    if config.report_unreachable && kind == SocketKind::UdpSignalling {
        crate::icmp::enable(fd.as_fd(), local.is_ipv6())?;
    }
    if config.shared_ports && kind != SocketKind::UdpMedia && local.port() != 0 {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    retry_ephemeral(local, config.waits_for_ports, || net::bind(&fd, &local))?;
    Ok(fd)
}

/// A raw socket for IP protocol 50.
pub(crate) fn esp_socket(ip: IpAddr) -> rustix::io::Result<OwnedFd> {
    let protocol = net::Protocol::from_raw(
        core::num::NonZeroU32::new(libc::IPPROTO_ESP as u32).unwrap_or(core::num::NonZeroU32::MIN),
    );
    net::socket_with(
        family(SocketAddr::new(ip, 0)),
        SocketType::RAW,
        FLAGS,
        Some(protocol),
    )
}

/// Whether this process may open raw sockets for ESP (IP protocol 50) of the address's family.
///
/// # Errors
/// CAP_NET_RAW is missing, or the machine has no such family.
pub fn may_carry_esp(ip: IpAddr) -> io::Result<()> {
    esp_socket(ip)?;
    Ok(())
}

/// A raw socket for ESP (IP protocol 50) at an address. The kernel writes the headers of sent packets; received ones
/// have them in IPv4.
pub(crate) fn esp(local: SocketAddr, config: &DriverConfig) -> io::Result<OwnedFd> {
    let fd = esp_socket(local.ip())?;
    let local = SocketAddr::new(local.ip(), 0);
    buffers(fd.as_fd(), config.signalling_buffer)?;
    dscp(fd.as_fd(), local, config.signalling_dscp)?;
    if config.receive_timestamps || config.signalling_timestamps {
        set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    }
    if config.report_unreachable {
        crate::icmp::enable(fd.as_fd(), local.is_ipv6())?;
    }
    net::bind(&fd, &local)?;
    Ok(fd)
}

/// A UDP socket for datagrams that are steered to it from many ports; it reports the original destination of each.
pub(crate) fn steered(own: IpAddr, config: &DriverConfig) -> io::Result<OwnedFd> {
    let own = SocketAddr::new(own, 0);
    let fd = net::socket_with(family(own), SocketType::DGRAM, FLAGS, None)?;
    // One buffer serves all ports.
    buffers(fd.as_fd(), config.signalling_buffer)?;
    match own {
        SocketAddr::V4(_) => set_int(fd.as_fd(), libc::SOL_IP, libc::IP_RECVORIGDSTADDR, 1)?,
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_v6only(&fd, true)?;
            set_int(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)?;
        }
    }
    if config.receive_timestamps {
        set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    }
    // Only a bound socket can be steered to; the address itself is not used.
    retry_ephemeral(own, true, || net::bind(&fd, &own))?;
    Ok(fd)
}

/// A UDP socket that is never read, with the smallest buffer.
pub(crate) fn unread_socket(own: IpAddr) -> io::Result<OwnedFd> {
    let own = SocketAddr::new(own, 0);
    let fd = net::socket_with(family(own), SocketType::DGRAM, FLAGS, None)?;
    sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    if own.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    retry_ephemeral(own, true, || net::bind(&fd, &own))?;
    Ok(fd)
}

/// A socket that sends complete IP packets from one address, and the hop limit for them.
pub(crate) fn raw(own: IpAddr, config: &DriverConfig) -> io::Result<(OwnedFd, u8)> {
    let own = SocketAddr::new(own, 0);
    let protocol = net::Protocol::from_raw(
        // IPPROTO_RAW: the caller writes the headers, and nothing is received.
        core::num::NonZeroU32::new(libc::IPPROTO_RAW as u32).unwrap_or(core::num::NonZeroU32::MIN),
    );
    let fd = net::socket_with(family(own), SocketType::RAW, FLAGS, Some(protocol))?;
    buffers(fd.as_fd(), config.signalling_buffer)?;
    net::bind(&fd, &own)?;
    let hops = match own {
        SocketAddr::V4(_) => sockopt::ip_ttl(&fd)?,
        SocketAddr::V6(_) => u32::from(sockopt::ipv6_unicast_hops(&fd)?),
    };
    Ok((fd, u8::try_from(hops).unwrap_or(64)))
}

/// Default time to live of IPv4, and hop limit of IPv6.
pub(crate) fn default_hops() -> io::Result<[u8; 2]> {
    let v4 = net::socket_with(AddressFamily::INET, SocketType::DGRAM, FLAGS, None)?;
    let v4 = u8::try_from(sockopt::ip_ttl(&v4)?).unwrap_or(64);
    // A machine without IPv6 sends none.
    let v6 = net::socket_with(AddressFamily::INET6, SocketType::DGRAM, FLAGS, None);
    let v6 = v6.and_then(|fd| sockopt::ipv6_unicast_hops(&fd));
    Ok([v4, v6.unwrap_or(64)])
}

/// A UDP socket that reserves a port; with port 0 one that the kernel chooses. Fails if another program has the port,
/// or the address is not local.
pub(crate) fn reserve_port(local: SocketAddr, waits: bool) -> io::Result<OwnedFd> {
    let fd = net::socket_with(family(local), SocketType::DGRAM, FLAGS, None)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    retry_ephemeral(local, waits, || net::bind(&fd, &local))?;
    Ok(fd)
}

/// Sends one datagram through a socket that is bound to `local`, with this code point.
pub(crate) fn send_from(
    fd: BorrowedFd<'_>,
    (local, destination): (SocketAddr, SocketAddr),
    code: u8,
    bytes: &[u8],
) -> io::Result<()> {
    dscp(fd, local, code)?;
    let flags = net::SendFlags::DONTWAIT | net::SendFlags::NOSIGNAL;
    net::sendto(fd, bytes, flags, &destination)?;
    Ok(())
}

/// Whether another program has a listening port, also one that shares it (SO_REUSEPORT): workers that share ports would
/// join it, and each program would get a part of the packets. Not for ports of this program.
pub fn is_port_in_use(local: SocketAddr, is_stream: bool) -> bool {
    let bound = || {
        let kind = match is_stream {
            true => SocketType::STREAM,
            false => SocketType::DGRAM,
        };
        let fd = net::socket_with(family(local), kind, FLAGS, None)?;
        if local.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        if is_stream {
            // Connections of a former run do not count.
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        net::bind(&fd, &local)
    };
    bound() == Err(Errno::ADDRINUSE)
}

/// A listening TCP socket.
pub(crate) fn listener(local: SocketAddr, config: &DriverConfig) -> io::Result<OwnedFd> {
    // An ephemeral port may be bound by another socket before `listen`: a retry uses a new socket.
    retry_ephemeral(local, config.waits_for_ports, || {
        listener_once(local, config)
    })
}

fn listener_once(local: SocketAddr, config: &DriverConfig) -> rustix::io::Result<OwnedFd> {
    let fd = net::socket_with(family(local), SocketType::STREAM, FLAGS, None)?;
    device(fd.as_fd(), config)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    dscp(fd.as_fd(), local, config.signalling_dscp)?;
    if config.shared_ports {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    net::bind(&fd, &local)?;
    net::listen(&fd, 4_096)?;
    Ok(fd)
}

/// A TCP socket that connects to `remote`; `true` if it is connected already.
pub(crate) fn connect(
    local: Option<SocketAddr>,
    remote: SocketAddr,
    config: &DriverConfig,
) -> io::Result<(OwnedFd, bool)> {
    let fd = net::socket_with(family(remote), SocketType::STREAM, FLAGS, None)?;
    device(fd.as_fd(), config)?;
    if let Some(local) = local {
        if local.port() == 0 {
            // The port is then chosen per destination, so that one address can have more than 28,000 connections.
            set_int(
                fd.as_fd(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                1,
            )?;
        } else {
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        net::bind(&fd, &local)?;
    }
    let limit = match config.unacknowledged.is_zero() {
        true => config.keepalive * 2,
        false => config.unacknowledged,
    };
    stream_options(fd.as_fd(), (remote, limit), config)?;
    match net::connect(&fd, &remote) {
        Ok(()) => Ok((fd, true)),
        Err(Errno::INPROGRESS) => Ok((fd, false)),
        Err(error) => Err(error.into()),
    }
}

/// Options of an accepted connection.
pub(crate) fn accepted_options(
    fd: BorrowedFd<'_>,
    remote: SocketAddr,
    config: &DriverConfig,
) -> io::Result<()> {
    stream_options(fd, (remote, config.keepalive * 2), config)
}

/// Options of a connection whose peer is dead if it acknowledges nothing for `limit`.
fn stream_options(
    fd: BorrowedFd<'_>,
    (remote, limit): (SocketAddr, Duration),
    config: &DriverConfig,
) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    if !limit.is_zero() {
        // No probes are sent while data is in flight, and its retransmissions alone last 15 minutes. The user timeout
        // also ends the probes, so that theirs is the same: a probe at half of the time, and three more.
        let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(fd, milliseconds)?;
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, limit / 2)?;
        sockopt::set_tcp_keepintvl(fd, limit / 8)?;
        sockopt::set_tcp_keepcnt(fd, 4)?;
    }
    dscp(fd, remote, config.signalling_dscp)?;
    Ok(())
}

pub(crate) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option's value is an int, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as u32,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Datagrams that the kernel dropped at this socket, mainly at a full receive buffer (SO_MEMINFO).
pub(crate) fn socket_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut values = [0u32; 9];
    let mut length = size_of_val(&values) as u32;
    // SAFETY: the kernel writes at most `length` bytes into the array and sets `length` to the number written.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(values[SK_MEMINFO_DROPS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens at `port`; the first `failures` attempts fail with `error`. Returns the number of attempts and the result.
    fn tries(port: u16, failures: usize, error: Errno) -> (usize, io::Result<()>) {
        tries_of_thread(true, port, failures, error)
    }

    fn tries_of_thread(
        waits: bool,
        port: u16,
        failures: usize,
        error: Errno,
    ) -> (usize, io::Result<()>) {
        let mut tries = 0;
        let done = retry_ephemeral(SocketAddr::from(([127, 0, 0, 1], port)), waits, || {
            tries += 1;
            if tries > failures { Ok(()) } else { Err(error) }
        });
        (tries, done)
    }

    /// Other programs may have all ephemeral ports: packets must not wait for them.
    #[test]
    fn packet_thread_does_not_wait_for_an_ephemeral_port() {
        let (attempts, done) = tries_of_thread(false, 0, usize::MAX, Errno::ADDRINUSE);
        assert_eq!(attempts, 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn ephemeral_port_is_retried() {
        let (attempts, done) = tries(0, 3, Errno::ADDRINUSE);
        assert!(attempts == 4 && done.is_ok(), "{attempts} {done:?}");
        let (attempts, done) = tries(0, usize::MAX, Errno::ADDRINUSE);
        assert_eq!(attempts, PAUSES.len() + 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Other errors are returned at once.
        let (attempts, done) = tries(0, usize::MAX, Errno::ACCESS);
        assert_eq!(attempts, 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn shared_port_of_another_program_is_in_use() {
        let shares = DriverConfig {
            shared_ports: true,
            ..DriverConfig::default()
        };
        // A port of its own, which is free without these sockets.
        let first = udp(
            SocketAddr::from(([127, 0, 0, 77], 0)),
            SocketKind::UdpSignalling,
            &shares,
        );
        let local = local_address(first.unwrap().as_fd()).unwrap();
        assert!(!is_port_in_use(local, false) && !is_port_in_use(local, true));
        let datagrams = udp(local, SocketKind::UdpSignalling, &shares).unwrap();
        assert!(is_port_in_use(local, false) && !is_port_in_use(local, true));
        let streams = listener(local, &shares).unwrap();
        assert!(is_port_in_use(local, true));
        drop((datagrams, streams));
        assert!(!is_port_in_use(local, false) && !is_port_in_use(local, true));
    }

    #[test]
    fn dead_peer_is_noticed_in_the_time_of_a_transaction_on_opened_connections() {
        let config = DriverConfig::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (opened, _) = connect(None, listener.local_addr().unwrap(), &config).unwrap();
        let (accepted, remote) = listener.accept().unwrap();
        accepted_options(accepted.as_fd(), remote, &config).unwrap();
        for (fd, limit) in [(opened.as_fd(), 32), (accepted.as_fd(), 120)] {
            assert_eq!(sockopt::tcp_user_timeout(fd).unwrap(), limit * 1_000);
            // The probes take the same time in all.
            let idle = sockopt::tcp_keepidle(fd).unwrap();
            let interval = sockopt::tcp_keepintvl(fd).unwrap();
            assert_eq!(sockopt::tcp_keepcnt(fd).unwrap(), 4);
            assert_eq!((idle + interval * 4).as_secs(), u64::from(limit));
        }
    }

    #[test]
    fn sockets_are_bound_to_the_interface() {
        let on = |name: &str| DriverConfig {
            device: Some(name.to_owned()),
            ..DriverConfig::default()
        };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let none = on("hw-none");
        assert!(udp(local, SocketKind::UdpMedia, &none).is_err());
        assert!(udp(local, SocketKind::UdpSignalling, &none).is_err());
        assert!(listener(local, &none).is_err());
        assert!(connect(Some(local), local, &none).is_err());
        // Kernels before 5.7 need CAP_NET_RAW.
        match udp(local, SocketKind::UdpMedia, &on("lo")) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    #[test]
    fn fixed_port_is_tried_once() {
        let (attempts, done) = tries(5_060, 1, Errno::ADDRINUSE);
        assert_eq!(attempts, 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
