//! Packet sockets (packet(7)): frames of a network interface, in batches, with the kernel's time of arrival.

use crate::clock::{Clock, nanos};
use crate::offload::{VNET_HEADER, VnetHeader, wire_frames};
use engine::Time;
use rustix::time::ClockId;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Frames per system call.
const BATCH: usize = 32;
/// A frame with all its segments: 64 KiB, link-layer header, VLAN tags.
const FRAME: usize = 65_536 + 64;
/// Control messages: a time stamp (32 bytes) and auxiliary data (40), in words of eight bytes.
const CONTROL: usize = 12;
/// Receive buffer of the kernel, bytes: half a second of small frames at the highest rate that a link is made for.
pub(crate) const RECEIVE_BUFFER: libc::c_int = 16 << 20;
/// Options of packet sockets (linux/if_packet.h). Ignoring outgoing frames needs Linux 4.20.
const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// `sll_pkttype` of such a frame.
const PACKET_OUTGOING: u8 = 4;
/// `sa_family` of interfaces whose frames are IP packets without a link-layer header.
const ARPHRD_NONE: u16 = 0xfffe;
/// Point-to-point interfaces, also without one.
const ARPHRD_PPP: u16 = 512;

/// Properties of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Its number in the network namespace.
    pub index: u32,
    /// Largest packet, bytes.
    pub mtu: usize,
    /// It is set up, and has a carrier.
    pub is_up: bool,
    /// Its frames have an Ethernet header; otherwise they are IP packets.
    pub has_ethernet: bool,
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// The name of an interface in a request (netdevice(7)).
pub(crate) fn named_request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no name of an interface",
        ));
    }
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (into, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *into = byte as libc::c_char;
    }
    Ok(request)
}

impl InterfaceInfo {
    /// Reads the properties of an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn of(name: &str) -> io::Result<InterfaceInfo> {
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
        let ask = |what: libc::c_ulong| -> io::Result<libc::ifreq> {
            let mut request = named_request(name)?;
            // SAFETY: the request is initialised, outlives the call, and is large enough for the answers used here.
            check(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) })?;
            Ok(request)
        };
        // SAFETY: the kernel has filled the member that belongs to each request.
        unsafe {
            let index = ask(libc::SIOCGIFINDEX as _)?.ifr_ifru.ifru_ifindex;
            let mtu = ask(libc::SIOCGIFMTU as _)?.ifr_ifru.ifru_mtu;
            let flags = libc::c_int::from(ask(libc::SIOCGIFFLAGS as _)?.ifr_ifru.ifru_flags);
            let kind = ask(libc::SIOCGIFHWADDR as _)?
                .ifr_ifru
                .ifru_hwaddr
                .sa_family;
            let up = libc::IFF_UP | libc::IFF_RUNNING;
            Ok(InterfaceInfo {
                index: u32::try_from(index).unwrap_or(0),
                mtu: usize::try_from(mtu).unwrap_or(0),
                is_up: flags & up == up,
                has_ethernet: kind != ARPHRD_NONE && kind != ARPHRD_PPP,
            })
        }
    }
}

/// A received frame.
#[derive(Debug)]
pub struct ReceivedFrame<'a> {
    /// Arrival, from the kernel's time stamp.
    pub at: Time,
    /// The frame as on the wire: checksums complete, one segment, VLAN tags in place.
    pub bytes: &'a [u8],
    /// The interface has sent it.
    pub is_outgoing: bool,
}

/// Counters of a packet socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Frames received, on the wire.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that the kernel dropped because its receive buffer was full.
    pub kernel_drops: u64,
    /// Frames that the kernel refused to send: too long for the interface, or the interface is down.
    pub refused: u64,
    /// Received frames in a form that cannot be reproduced: segments of a packet in a tunnel, or segments that the
    /// kernel does not describe.
    pub unsupported: u64,
}

/// A packet socket of an interface.
pub struct PacketSocket {
    receiver: OwnedFd,
    sender: OwnedFd,
    info: InterfaceInfo,
    buffers: Vec<Vec<u8>>,
    // The kernel reaches these vectors through the pointers in `headers`; they are never resized.
    _iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_ll>,
    controls: Vec<[u64; CONTROL]>,
    headers: Vec<libc::mmsghdr>,
    scratch: Vec<u8>,
    counts: PacketCounts,
}

// SAFETY: the raw pointers in `headers` and `_iovecs` point only into the other vectors of the same value, which move
// with it.
unsafe impl Send for PacketSocket {}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSocket")
            .field("info", &self.info)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Without a protocol it receives nothing until it is bound to its interface.
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn set_option<T>(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the value is initialised, has the given length, and outlives the call.
    check(unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, value, length) })?;
    Ok(())
}

fn bind(fd: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as libc::c_int;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is initialised, has the given length, and outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

impl PacketSocket {
    /// A socket that receives the frames that arrive at an interface, also those for other hosts, and sends frames.
    /// Frames that it sends do not come back.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_RAW), or no such interface.
    pub fn open(name: &str) -> io::Result<PacketSocket> {
        let socket = PacketSocket::new(name)?;
        let fd = &socket.receiver;
        set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
        // The kernel ends it with the socket.
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut promiscuous: libc::packet_mreq = unsafe { zeroed() };
        promiscuous.mr_ifindex = socket.info.index as libc::c_int;
        promiscuous.mr_type = libc::PACKET_MR_PROMISC as u16;
        let add = libc::PACKET_ADD_MEMBERSHIP;
        set_option(fd, libc::SOL_PACKET, add, &promiscuous)?;
        bind(fd, socket.info.index, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    /// A socket that receives the frames that an interface receives for its host and sends, for a capture.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn capture(name: &str) -> io::Result<PacketSocket> {
        let socket = PacketSocket::new(name)?;
        bind(&socket.receiver, socket.info.index, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    fn new(name: &str) -> io::Result<PacketSocket> {
        let info = InterfaceInfo::of(name)?;
        let (receiver, sender) = (packet_socket()?, packet_socket()?);
        let (packet, socket) = (libc::SOL_PACKET, libc::SOL_SOCKET);
        set_option(&receiver, packet, PACKET_VNET_HDR, &1i32)?;
        set_option(&receiver, packet, PACKET_AUXDATA, &1i32)?;
        set_option(&receiver, socket, libc::SO_TIMESTAMPNS, &1i32)?;
        if set_option(&receiver, socket, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER).is_err() {
            set_option(&receiver, socket, libc::SO_RCVBUF, &RECEIVE_BUFFER)?;
        }
        bind(&sender, info.index, 0)?;
        let mut buffers = vec![vec![0; FRAME]; BATCH];
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let (mut names, mut headers): (Vec<libc::sockaddr_ll>, Vec<libc::mmsghdr>) =
            unsafe { (vec![zeroed(); BATCH], vec![zeroed(); BATCH]) };
        let mut controls = vec![[0; CONTROL]; BATCH];
        let iovec = |buffer: &mut Vec<u8>| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: FRAME,
        };
        let mut iovecs: Vec<libc::iovec> = buffers.iter_mut().map(iovec).collect();
        let parts = names.iter_mut().zip(&mut iovecs).zip(&mut controls);
        for (header, ((name, iovec), control)) in headers.iter_mut().zip(parts) {
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut *name).cast();
            header.msg_iov = &raw mut *iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
        }
        Ok(PacketSocket {
            receiver,
            sender,
            info,
            buffers,
            _iovecs: iovecs,
            names,
            controls,
            headers,
            scratch: Vec::new(),
            counts: PacketCounts::default(),
        })
    }

    /// Properties of the interface when the socket was opened.
    pub fn info(&self) -> &InterfaceInfo {
        &self.info
    }

    /// Counters until now.
    pub fn counts(&mut self) -> PacketCounts {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut new: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the value has the given length and outlives the call, which resets the kernel's counters.
        let done = unsafe {
            libc::getsockopt(
                self.receiver.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                (&raw mut new).cast(),
                &raw mut length,
            )
        };
        if done == 0 {
            self.counts.kernel_drops += u64::from(new.tp_drops);
        }
        self.counts
    }

    /// Sets the counters to zero.
    pub fn reset_counts(&mut self) {
        self.counts();
        self.counts = PacketCounts::default();
    }

    /// Passes the frames of one batch to `sink`; returns their number, 0 if none waits.
    ///
    /// # Errors
    /// The interface is gone or down.
    pub fn receive(
        &mut self,
        clock: &Clock,
        sink: &mut dyn FnMut(ReceivedFrame<'_>),
    ) -> io::Result<usize> {
        for i in 0..BATCH {
            let header = &mut self.headers[i].msg_hdr;
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_controllen = size_of::<[u64; CONTROL]>() as _;
        }
        // SAFETY: the headers point to vectors of this value with the given lengths, which outlive the call.
        let received = unsafe {
            libc::recvmmsg(
                self.receiver.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let received = match check(received) {
            Ok(received) => received as usize,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                    // The kernel has discarded a frame whose segments its header has no kind for: of UDP before Linux
                    // 6.2, of SCTP. The socket goes on.
                    Some(libc::EINVAL) => {
                        self.counts.unsupported += 1;
                        Ok(0)
                    }
                    _ => Err(error),
                };
            }
        };
        let now = clock.now();
        // The wall clock may be set meanwhile: its distance is read anew for each batch.
        let wall = nanos(ClockId::Realtime);
        for i in 0..received {
            let (stamp, tag) = self.control(i);
            let age = stamp.map_or(0, |stamp| wall.saturating_sub(stamp));
            let at = Time(now.0.saturating_sub(age));
            let is_outgoing = self.names[i].sll_pkttype == PACKET_OUTGOING;
            let length = (self.headers[i].msg_len as usize).min(FRAME);
            let bytes = &mut self.buffers[i][..length];
            let Some(header) = VnetHeader::read(bytes) else {
                continue;
            };
            let mut frames = 0;
            let mut pass = |bytes: &[u8]| {
                frames += 1;
                sink(ReceivedFrame {
                    at,
                    bytes,
                    is_outgoing,
                });
            };
            let frame = &mut bytes[VNET_HEADER..];
            if !wire_frames(frame, header, tag, &mut self.scratch, &mut pass) {
                self.counts.unsupported += 1;
            }
            self.counts.received += frames;
        }
        Ok(received)
    }

    /// Time stamp (nanoseconds since 1970) and removed VLAN tag of frame `i` of the batch.
    fn control(&self, i: usize) -> (Option<u64>, Option<[u8; 4]>) {
        let (mut stamp, mut tag) = (None, None);
        let header = &raw const self.headers[i].msg_hdr;
        debug_assert_eq!(
            self.headers[i].msg_hdr.msg_control.cast_const(),
            self.controls[i].as_ptr().cast()
        );
        // SAFETY: the kernel has filled the control buffer of this header and set its length; the macros stay within
        // it, and data are read unaligned with the size that the kind of message has.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                let data = libc::CMSG_DATA(message);
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let time: libc::timespec = data.cast::<libc::timespec>().read_unaligned();
                        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                        stamp = Some(seconds * 1_000_000_000 + time.tv_nsec as u64);
                    }
                    (libc::SOL_PACKET, PACKET_AUXDATA) => {
                        let auxiliary: libc::tpacket_auxdata =
                            data.cast::<libc::tpacket_auxdata>().read_unaligned();
                        tag = removed_tag(&auxiliary);
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        (stamp, tag)
    }

    /// Sends frames; a frame that the kernel refuses is counted.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        self.send_each(frames, &mut |_| {});
    }

    /// As [`PacketSocket::send`]; `refused` is called with the place of each frame that the kernel refuses.
    pub fn send_each<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a [u8]>,
        refused: &mut dyn FnMut(usize),
    ) {
        let mut iovecs: [libc::iovec; BATCH] = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        let mut frames = frames.peekable();
        let mut first = 0;
        while frames.peek().is_some() {
            let mut count = 0;
            for (iovec, frame) in iovecs.iter_mut().zip(frames.by_ref()) {
                iovec.iov_base = frame.as_ptr().cast_mut().cast();
                iovec.iov_len = frame.len();
                count += 1;
                if count == BATCH {
                    break;
                }
            }
            self.send_batch(&mut iovecs[..count], &mut |place| refused(first + place));
            first += count;
        }
    }

    fn send_batch(&mut self, iovecs: &mut [libc::iovec], refused: &mut dyn FnMut(usize)) {
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { [zeroed(); BATCH] };
        for (header, iovec) in headers.iter_mut().zip(iovecs.iter_mut()) {
            header.msg_hdr.msg_iov = &raw mut *iovec;
            header.msg_hdr.msg_iovlen = 1;
        }
        let (mut from, mut waited) = (0, false);
        while from < iovecs.len() {
            // SAFETY: the headers `from..` point to the iovecs, and those to frames that the caller lends for this
            // call, from which the kernel only reads.
            let sent = unsafe {
                libc::sendmmsg(
                    self.sender.as_raw_fd(),
                    headers.as_mut_ptr().add(from),
                    (iovecs.len() - from) as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            };
            if sent > 0 {
                self.counts.sent += sent as u64;
                from += sent as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) if !waited => {
                    waited = true;
                    crate::batch::wait_writable(self.sender.as_fd());
                }
                _ => {
                    self.counts.refused += 1;
                    refused(from);
                    from += 1;
                }
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// The VLAN tag that the kernel keeps beside a frame.
fn removed_tag(auxiliary: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    if auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let protocol = match auxiliary.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => 0x8100,
        _ => auxiliary.tp_vlan_tpid,
    };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), auxiliary.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// State of a descriptor after a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Something waits to be read.
    pub readable: bool,
    /// It has an error: a pending one of a socket, or a device that is gone.
    pub failed: bool,
}

/// As [`wait_readable`], without an allocation; returns the state of each.
pub fn wait_any<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    timeout: Duration,
) -> [Readiness; N] {
    use rustix::event::{PollFd, PollFlags};
    let mut set = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    if rustix::event::poll(&mut set, Some(&timeout)).is_err() {
        // A signal: nothing is known to be ready.
        return [Readiness::default(); N];
    }
    set.map(|fd| Readiness {
        readable: fd.revents().contains(PollFlags::IN),
        failed: fd.revents().contains(PollFlags::ERR),
    })
}

/// Waits until one of the descriptors is readable, at most `timeout`, to the nanosecond. A signal ends the wait.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) {
    let mut set: Vec<rustix::event::PollFd<'_>> = descriptors
        .iter()
        .map(|fd| rustix::event::PollFd::from_borrowed_fd(*fd, rustix::event::PollFlags::IN))
        .collect();
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // The caller looks at the sockets and the clock in any case.
    let _ = rustix::event::poll(&mut set, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;
    use std::net::UdpSocket;

    /// The kernel refuses a frame with EINVAL when its header has no place, as it does when it has no kind for the
    /// segments of a frame.
    #[test]
    fn frame_that_the_kernel_does_not_describe_is_counted() {
        let Ok(network) = Network::with_loopback() else {
            eprintln!("skipped: no right to a network namespace");
            return;
        };
        let job = move || {
            network.enter().unwrap();
            let mut socket = PacketSocket::open("lo").unwrap();
            let clock = Clock::new();
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = receiver.local_addr().unwrap();
            let mut frames = 0;
            let mut receive_one = |socket: &mut PacketSocket| {
                receiver.send_to(b"frame", to).unwrap();
                wait_readable(&[socket.as_fd()], Duration::from_secs(5));
                frames += socket.receive(&clock, &mut |_| ()).unwrap();
                frames
            };
            let whole: Vec<usize> = socket._iovecs.iter().map(|room| room.iov_len).collect();
            for room in &mut socket._iovecs {
                room.iov_len = VNET_HEADER - 1;
            }
            assert_eq!(receive_one(&mut socket), 0);
            assert_eq!(socket.counts().unsupported, 1);
            // The frames after it arrive.
            for (room, length) in socket._iovecs.iter_mut().zip(whole) {
                room.iov_len = length;
            }
            assert_eq!(receive_one(&mut socket), 1);
            assert_eq!(
                (socket.counts().received, socket.counts().unsupported),
                (1, 1)
            );
        };
        std::thread::spawn(job).join().unwrap();
    }
}
