//! Opening sockets with the options that we want.

use crate::config::DriverConfig;
use engine::SocketKind;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long is waited before the system is asked again for a port of its choice: 1, 2, 4 ... ms, a quarter of a second in all.
const PAUSES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Opens at `local`. A port of the system's choice is asked for again a few times where all are taken at this moment: beside
/// programs with thousands of sockets they come and go. A port that somebody chose is taken or it is not.
fn patiently<T>(
    local: SocketAddr,
    mut open: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    let pauses = PAUSES.iter().filter(|_| local.port() == 0);
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

fn buffers(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<()> {
    // The forced form goes beyond the system's maximum and needs a right; without it the kernel takes what it allows.
    if sockopt::set_socket_recv_buffer_size_force(fd, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, bytes)?;
    }
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

/// A bound UDP socket. The address is ours alone, or our workers': SO_REUSEADDR on UDP would let a second socket take our
/// datagrams.
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
    buffers(fd.as_fd(), buffer)?;
    dscp(fd.as_fd(), local, code)?;
    let signalling = config.signalling_timestamps && kind != SocketKind::UdpMedia;
    if config.receive_timestamps || signalling {
        set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    }
    if config.unreachable && kind == SocketKind::UdpSignalling {
        crate::icmp::ask(fd.as_fd(), local.is_ipv6())?;
    }
    if config.shared_ports && kind != SocketKind::UdpMedia && local.port() != 0 {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    patiently(local, || net::bind(&fd, &local))?;
    Ok(fd)
}

/// A UDP socket for the datagrams of many ports, which it is given by other means than its own address; it tells with each
/// where that was sent.
pub(crate) fn steered(own: IpAddr, config: &DriverConfig) -> io::Result<OwnedFd> {
    let own = SocketAddr::new(own, 0);
    let fd = net::socket_with(family(own), SocketType::DGRAM, FLAGS, None)?;
    // One buffer for all ports.
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
    // Only a bound socket can be steered to; nobody else is meant to reach this address.
    patiently(own, || net::bind(&fd, &own))?;
    Ok(fd)
}

/// A UDP socket that nobody will read, with the smallest buffer.
pub(crate) fn sink(own: IpAddr) -> io::Result<OwnedFd> {
    let own = SocketAddr::new(own, 0);
    let fd = net::socket_with(family(own), SocketType::DGRAM, FLAGS, None)?;
    sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    if own.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    patiently(own, || net::bind(&fd, &own))?;
    Ok(fd)
}

/// A socket that sends IP packets of our making from one address, and the hop limit that they should have.
pub(crate) fn raw(own: IpAddr, config: &DriverConfig) -> io::Result<(OwnedFd, u8)> {
    let own = SocketAddr::new(own, 0);
    let protocol = net::Protocol::from_raw(
        // IPPROTO_RAW: headers come with what is sent, and nothing is received.
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

/// What packets begin with as time to live of IPv4, and as hop limit of IPv6, where nobody says otherwise.
pub(crate) fn default_hops() -> io::Result<[u8; 2]> {
    let v4 = net::socket_with(AddressFamily::INET, SocketType::DGRAM, FLAGS, None)?;
    let v4 = u8::try_from(sockopt::ip_ttl(&v4)?).unwrap_or(64);
    // A machine without IPv6 sends none.
    let v6 = net::socket_with(AddressFamily::INET6, SocketType::DGRAM, FLAGS, None);
    let v6 = v6.and_then(|fd| sockopt::ipv6_unicast_hops(&fd));
    Ok([v4, v6.unwrap_or(64)])
}

/// A UDP socket that holds a port. Fails where another program has the address, or this machine has not.
pub(crate) fn hold(local: SocketAddr) -> io::Result<OwnedFd> {
    let fd = net::socket_with(family(local), SocketType::DGRAM, FLAGS, None)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    net::bind(&fd, &local)?;
    Ok(fd)
}

/// Sends one datagram by a socket that is bound to `local`, with this code point.
pub(crate) fn send_by(
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

/// A listening TCP socket.
pub(crate) fn listener(local: SocketAddr, config: &DriverConfig) -> io::Result<OwnedFd> {
    // A port that the system chose can be another one's by the time we listen: then it takes a socket that has none yet.
    patiently(local, || listener_once(local, config))
}

fn listener_once(local: SocketAddr, config: &DriverConfig) -> rustix::io::Result<OwnedFd> {
    let fd = net::socket_with(family(local), SocketType::STREAM, FLAGS, None)?;
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

/// A TCP socket on its way to `remote`; `true` where it stands already.
pub(crate) fn connect(
    local: Option<SocketAddr>,
    remote: SocketAddr,
    config: &DriverConfig,
) -> io::Result<(OwnedFd, bool)> {
    let fd = net::socket_with(family(remote), SocketType::STREAM, FLAGS, None)?;
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
    stream_options(fd.as_fd(), remote, config)?;
    match net::connect(&fd, &remote) {
        Ok(()) => Ok((fd, true)),
        Err(Errno::INPROGRESS) => Ok((fd, false)),
        Err(error) => Err(error.into()),
    }
}

/// Options of every connection.
pub(crate) fn stream_options(
    fd: BorrowedFd<'_>,
    remote: SocketAddr,
    config: &DriverConfig,
) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    if !config.keepalive.is_zero() {
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, config.keepalive)?;
        sockopt::set_tcp_keepintvl(fd, config.keepalive.div_f64(4.0))?;
        sockopt::set_tcp_keepcnt(fd, 4)?;
    }
    dscp(fd, remote, config.signalling_dscp)?;
    Ok(())
}

fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option's value is an int, which lives through the call.
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

/// Datagrams that the kernel dropped at this socket, for a full receive buffer above all (SO_MEMINFO).
pub(crate) fn socket_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut values = [0u32; 9];
    let mut length = size_of_val(&values) as u32;
    // SAFETY: the kernel writes at most `length` bytes into the array and sets `length` to what it wrote.
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

    /// Opens at `port`, where the first `taken` tries find it taken; how often was tried, and what came of it.
    fn tries(port: u16, taken: usize, error: Errno) -> (usize, io::Result<()>) {
        let mut tries = 0;
        let done = patiently(SocketAddr::from(([127, 0, 0, 1], port)), || {
            tries += 1;
            if tries > taken { Ok(()) } else { Err(error) }
        });
        (tries, done)
    }

    #[test]
    fn a_port_of_the_systems_choice_is_asked_for_again() {
        let (asked, done) = tries(0, 3, Errno::ADDRINUSE);
        assert!(asked == 4 && done.is_ok(), "{asked} {done:?}");
        let (asked, done) = tries(0, usize::MAX, Errno::ADDRINUSE);
        assert_eq!(asked, PAUSES.len() + 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // What is no matter of ports is told at once.
        let (asked, done) = tries(0, usize::MAX, Errno::ACCESS);
        assert_eq!(asked, 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_port_that_somebody_chose_is_asked_for_once() {
        let (asked, done) = tries(5_060, 1, Errno::ADDRINUSE);
        assert_eq!(asked, 1);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
