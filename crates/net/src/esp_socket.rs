//! The outer socket of an IPsec gateway: ESP packets in IP protocol 50 or in UDP, in batches, each with the traffic
//! class and the bit Don't Fragment of its outer header.

use crate::batch::{BATCH, Receiver, write_address};
use crate::socket;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Buffers of the kernel, bytes: 50 ms at a million small packets per second.
const BUFFER: usize = 8 << 20;

/// Room for one control message of four bytes, aligned for its header.
type ClassControl = [u64; 3];
const _: () = assert!(size_of::<ClassControl>() >= unsafe { libc::CMSG_SPACE(4) } as usize);

/// Carrier of an [`EspSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspSocketKind {
    /// UDP (RFC 3948).
    Udp,
    /// IP protocol 50; needs CAP_NET_RAW.
    Ip,
}

/// A received packet.
#[derive(Debug)]
pub struct ReceivedEsp<'a> {
    /// Source of the outer packet; port 0 in IP protocol 50.
    pub source: SocketAddr,
    /// Traffic class of the outer header.
    pub traffic_class: u8,
    /// The payload of the outer packet.
    pub bytes: &'a mut [u8],
    /// The packet was longer than the buffer.
    pub truncated: bool,
}

/// A packet to be sent.
#[derive(Clone, Debug)]
pub struct OutgoingEsp {
    /// Its place in the caller's buffer.
    pub place: Range<usize>,
    /// Destination; port 0 in IP protocol 50.
    pub destination: SocketAddr,
    /// Traffic class of the outer header.
    pub traffic_class: u8,
    /// The outer packet may not be fragmented.
    pub dont_fragment: bool,
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspSendFailure {
    /// Longer than the path MTU, and not to be fragmented.
    TooLarge,
    /// Any other reason: no route, a full buffer, a local filter.
    Refused,
}

/// The headers of an outgoing batch. Their pointers are set and used within one call.
struct Headers {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<ClassControl>,
}

// SAFETY: between calls no pointer is used; each call sets those that it uses.
unsafe impl Send for Headers {}

/// An outer socket.
pub struct EspSocket {
    fd: OwnedFd,
    kind: EspSocketKind,
    is_v6: bool,
    receiver: Receiver,
    headers: Headers,
    /// The value of the socket's option, once it is set.
    dont_fragment: Option<bool>,
}

impl std::fmt::Debug for EspSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EspSocket")
            .field("fd", &self.fd)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl EspSocket {
    /// Packets of a batch.
    pub const BATCH: usize = BATCH;

    /// Opens a socket at `local`, whose port only counts in UDP, for payloads of up to `longest` bytes.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_RAW, protocol 50 only), the address is not one of this host, or its port is in use.
    pub fn open(kind: EspSocketKind, local: SocketAddr, longest: usize) -> io::Result<EspSocket> {
        let is_v6 = local.is_ipv6();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let family = match is_v6 {
            true => AddressFamily::INET6,
            false => AddressFamily::INET,
        };
        let (fd, local) = match kind {
            EspSocketKind::Udp => {
                let fd = net::socket_with(family, SocketType::DGRAM, flags, None)?;
                if is_v6 {
                    sockopt::set_ipv6_v6only(&fd, true)?;
                } else {
                    // RFC 3948 section 2.1: the UDP checksum of IPv4 should be zero.
                    socket::set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
                }
                (fd, local)
            }
            EspSocketKind::Ip => {
                let fd = socket::esp_socket(local.ip())?;
                (fd, SocketAddr::new(local.ip(), 0))
            }
        };
        let (level, name) = match is_v6 {
            true => (libc::SOL_IPV6, libc::IPV6_RECVTCLASS),
            false => (libc::SOL_IP, libc::IP_RECVTOS),
        };
        socket::set_int(fd.as_fd(), level, name, 1)?;
        socket::buffers(fd.as_fd(), BUFFER)?;
        net::bind(&fd, &local)?;
        Ok(EspSocket {
            fd,
            kind,
            is_v6,
            receiver: Receiver::new(longest, true),
            headers: Headers::new(),
            dont_fragment: None,
        })
    }

    /// Lets the kernel take the ESP packets and keep-alives of this UDP socket (RFC 3948), which still receives IKE
    /// messages. No policy of the kernel applies to its own packets.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or the kernel has no ESP in UDP.
    pub fn hand_esp_to_kernel(&self) -> io::Result<()> {
        // linux/udp.h
        const UDP_ENCAP: i32 = 100;
        const ESP_IN_UDP: i32 = 2;
        socket::set_int(self.fd.as_fd(), libc::SOL_UDP, UDP_ENCAP, ESP_IN_UDP)?;
        crate::xfrm::bypass_policies(self.fd.as_fd(), self.is_v6)
    }

    /// Reads the next batch of at most `most` packets; returns their number, 0 if none waits.
    ///
    /// # Errors
    /// As recvmmsg(2), except for errors of earlier packets.
    pub fn receive(&mut self, most: usize) -> io::Result<usize> {
        let received = match self.receiver.receive(self.fd.as_fd(), most) {
            Ok(received) => received,
            Err(error) if is_of_earlier_packet(&error) => 0,
            Err(error) => return Err(error),
        };
        if self.kind == EspSocketKind::Ip && !self.is_v6 {
            self.receiver.strip_ipv4_headers();
        }
        Ok(received)
    }

    /// A packet of the last batch.
    pub fn received(&mut self, index: usize) -> Option<ReceivedEsp<'_>> {
        if index >= self.receiver.filled() {
            return None;
        }
        let traffic_class = self.receiver.traffic_class(index);
        let datagram = self.receiver.get(index)?;
        Some(ReceivedEsp {
            source: datagram.source,
            traffic_class,
            truncated: datagram.truncated,
            bytes: datagram.bytes(),
        })
    }

    /// Packets that the kernel has dropped because the socket was not read in time.
    ///
    /// # Errors
    /// The kernel does not tell (before Linux 4.12).
    pub fn kernel_drops(&self) -> io::Result<u64> {
        socket::socket_drops(self.fd.as_fd())
    }

    /// Sends packets of `buffer` in their order, as far as the kernel takes them without waiting; calls `failed` with
    /// the index of each that was not sent.
    pub fn send(
        &mut self,
        buffer: &[u8],
        packets: &[OutgoingEsp],
        mut failed: impl FnMut(usize, EspSendFailure),
    ) {
        let mut first = 0;
        while first < packets.len() {
            let rest = packets.get(first..).unwrap_or_default();
            let dont_fragment = rest.first().is_some_and(|packet| packet.dont_fragment);
            let alike = rest
                .iter()
                .take(BATCH)
                .take_while(|packet| packet.dont_fragment == dont_fragment);
            let run = alike.count();
            let set = self.set_dont_fragment(dont_fragment);
            self.headers
                .fill(buffer, rest.get(..run).unwrap_or_default());
            let mut at = 0;
            while at < run {
                let outcome = match &set {
                    Ok(()) => self.headers.send(self.fd.as_fd(), at..run),
                    Err(error) => Err(io::Error::from(error.kind())),
                };
                match outcome {
                    Ok(sent) => at += sent.max(1),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        let failure = match error.raw_os_error() {
                            Some(libc::EMSGSIZE) => EspSendFailure::TooLarge,
                            _ => EspSendFailure::Refused,
                        };
                        failed(first + at, failure);
                        at += 1;
                    }
                }
            }
            first += run;
        }
    }

    fn set_dont_fragment(&mut self, set: bool) -> io::Result<()> {
        if self.dont_fragment == Some(set) {
            return Ok(());
        }
        let (level, name, value) = match (self.is_v6, set) {
            (false, true) => (libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (false, false) => (libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
            (true, true) => (
                libc::SOL_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            ),
            (true, false) => (
                libc::SOL_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DONT,
            ),
        };
        socket::set_int(self.fd.as_fd(), level, name, value)?;
        self.dont_fragment = Some(set);
        Ok(())
    }
}

impl AsFd for EspSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Errors that a socket reports for a packet sent before, by ICMP.
fn is_of_earlier_packet(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EPROTO
                | libc::EMSGSIZE
                | libc::ENOPROTOOPT
                | libc::EINTR
        )
    )
}

impl Headers {
    fn new() -> Headers {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let (headers, names): (Vec<libc::mmsghdr>, Vec<libc::sockaddr_storage>) =
            unsafe { (vec![zeroed(); BATCH], vec![zeroed(); BATCH]) };
        Headers {
            headers,
            iovecs: vec![empty; BATCH],
            names,
            controls: vec![[0; 3]; BATCH],
        }
    }

    /// Describes up to [`BATCH`] packets, which the caller's buffer has.
    fn fill(&mut self, buffer: &[u8], packets: &[OutgoingEsp]) {
        let parts = self.headers.iter_mut().zip(&mut self.iovecs);
        let parts = parts.zip(self.names.iter_mut().zip(&mut self.controls));
        for (packet, ((header, iovec), (name, control))) in packets.iter().zip(parts) {
            let bytes = buffer.get(packet.place.clone()).unwrap_or_default();
            iovec.iov_base = bytes.as_ptr().cast_mut().cast();
            iovec.iov_len = bytes.len();
            let message = &mut header.msg_hdr;
            message.msg_namelen = write_address(packet.destination, name);
            message.msg_name = std::ptr::from_mut(name).cast();
            message.msg_iov = std::ptr::from_mut(iovec);
            message.msg_iovlen = 1;
            message.msg_control = std::ptr::null_mut();
            message.msg_controllen = 0;
            if packet.traffic_class != 0 {
                let (level, kind) = match packet.destination {
                    SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_TOS),
                    SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_TCLASS),
                };
                message.msg_control = std::ptr::from_mut(control).cast();
                message.msg_controllen = size_of::<ClassControl>() as _;
                // SAFETY: the control buffer has room for a message of four bytes, and is aligned for its header.
                unsafe {
                    let class = libc::CMSG_FIRSTHDR(message);
                    (*class).cmsg_level = level;
                    (*class).cmsg_type = kind;
                    (*class).cmsg_len = libc::CMSG_LEN(4) as _;
                    let value = libc::c_int::from(packet.traffic_class);
                    libc::CMSG_DATA(class)
                        .cast::<libc::c_int>()
                        .write_unaligned(value);
                }
            }
        }
    }

    /// Sends described packets; returns how many.
    fn send(&mut self, fd: BorrowedFd<'_>, packets: Range<usize>) -> io::Result<usize> {
        let Some(headers) = self.headers.get_mut(packets) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: `fill` has set every pointer of these headers within the same call of `EspSocket::send`: to vectors
        // of this value, which are never resized, and to the caller's buffer, which that call borrows.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        match sent {
            sent if sent < 0 => Err(io::Error::last_os_error()),
            sent => Ok(sent as usize),
        }
    }
}

/// The MTU of the path from a local address to a host, bytes: that of the interface, or a smaller one that routers have
/// reported and the kernel has accepted.
///
/// # Errors
/// There is no route, or the address is not one of this host.
pub fn path_mtu(local: IpAddr, to: SocketAddr) -> io::Result<usize> {
    let socket = UdpSocket::bind((local, 0))?;
    socket.connect(match to.port() {
        // A port is required, but nothing is sent.
        0 => SocketAddr::new(to.ip(), wire::esp::NAT_TRAVERSAL_PORT),
        _ => to,
    })?;
    let (level, name) = match local {
        IpAddr::V4(_) => (libc::SOL_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_MTU),
    };
    let (mut mtu, mut length): (libc::c_int, _) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: the value is an int, whose length is stated, and both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut mtu).cast(),
            &raw mut length,
        )
    };
    match done {
        0 => Ok(usize::try_from(mtu).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_are_not_read_in_time_are_counted() {
        // A free port.
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = free.local_addr().unwrap();
        drop(free);
        let mut socket = EspSocket::open(EspSocketKind::Udp, to, 2_048).unwrap();
        socket::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4_096).unwrap();
        assert_eq!(socket.kernel_drops().unwrap(), 0);
        for _ in 0..100 {
            sender.send_to(&[0; 1_000], to).unwrap();
        }
        let mut read = 0;
        loop {
            match socket.receive(EspSocket::BATCH).unwrap() {
                0 => break,
                received => read += received as u64,
            }
        }
        assert!(read < 100, "{read}");
        assert_eq!(socket.kernel_drops().unwrap(), 100 - read);
    }
}
