//! Batches of datagrams: `recvmmsg` into fixed buffers, `sendmmsg` from a fixed arena or straight from a receive
//! buffer. One receiver can be filled from several sockets in turn, so that their datagrams are processed as one
//! batch.

use engine::MediaPacket;
use libc::{c_int, c_uint, c_void};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams per system call.
pub(crate) const BATCH: usize = 64;
/// Size of the control message buffer, in words of eight bytes: an original destination (48 bytes with its header)
/// and a time stamp (32).
const CONTROL: usize = 12;

/// Receive buffers and the headers that describe them to the kernel.
pub(crate) struct Receiver {
    headers: Vec<libc::mmsghdr>,
    // The kernel reaches these vectors through the pointers in `headers`; they are never resized.
    _iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<[u64; CONTROL]>,
    bytes: Vec<u8>,
    stride: usize,
    size: usize,
    /// Datagrams in the batch.
    filled: usize,
    /// Headers from this index on are still initialised for the kernel.
    dirty: usize,
    with_control: bool,
}

// SAFETY: the raw pointers in `headers` and `_iovecs` point only into the other vectors of the same value, which move
// with it.
unsafe impl Send for Receiver {}

/// A datagram of the batch.
pub(crate) struct ReceivedDatagram<'a> {
    pub(crate) source: SocketAddr,
    /// The datagram, followed by spare room.
    pub(crate) buffer: &'a mut [u8],
    /// Length of the datagram, bytes.
    pub(crate) length: usize,
    /// The datagram was longer than the buffer.
    pub(crate) truncated: bool,
    /// Kernel receive time, nanoseconds of CLOCK_REALTIME.
    pub(crate) stamp: Option<u64>,
}

impl<'a> ReceivedDatagram<'a> {
    /// The datagram.
    pub(crate) fn bytes(self) -> &'a mut [u8] {
        self.buffer.get_mut(..self.length).unwrap_or_default()
    }
}

impl Receiver {
    /// Buffers for [`BATCH`] datagrams of up to `size` bytes. `with_control` allocates room for time stamps and
    /// addresses.
    pub(crate) fn new(size: usize, with_control: bool) -> Receiver {
        // An odd number of cache lines apart, so that the buffers do not all map to the same cache sets.
        let stride = ((size + MediaPacket::TAILROOM).div_ceil(64) | 1) * 64;
        let mut bytes = vec![0; stride * BATCH];
        let mut iovecs = Vec::with_capacity(BATCH);
        for i in 0..BATCH {
            iovecs.push(libc::iovec {
                iov_base: bytes[i * stride..].as_mut_ptr().cast(),
                iov_len: size,
            });
        }
        // SAFETY: these are plain C structures for which all zero bytes are a valid value.
        let mut names: Vec<libc::sockaddr_storage> = vec![unsafe { zeroed() }; BATCH];
        let mut controls = vec![[0; CONTROL]; BATCH];
        // SAFETY: as above.
        let mut headers: Vec<libc::mmsghdr> = vec![unsafe { zeroed() }; BATCH];
        for (i, header) in headers.iter_mut().enumerate() {
            header.msg_hdr.msg_name = (&raw mut names[i]).cast();
            header.msg_hdr.msg_iov = &raw mut iovecs[i];
            header.msg_hdr.msg_iovlen = 1;
            if with_control {
                header.msg_hdr.msg_control = (&raw mut controls[i]).cast();
            }
        }
        Receiver {
            headers,
            _iovecs: iovecs,
            names,
            controls,
            bytes,
            stride,
            size,
            filled: 0,
            dirty: BATCH,
            with_control,
        }
    }

    /// Replaces the batch with at most `most` datagrams that are queued on `fd`. `Ok(0)` if the queue is empty.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        self.clear();
        self.add(fd, most)
    }

    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Number of datagrams in the batch.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Number of datagrams that still fit.
    pub(crate) fn room(&self) -> usize {
        BATCH - self.filled
    }

    /// Appends at most `most` queued datagrams of `fd`, as far as there is room. `Ok(0)` if the queue is empty.
    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        let count = most.min(self.room());
        let (from, to) = (self.filled, self.filled + count);
        for header in &mut self.headers[from..to.min(self.dirty).max(from)] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
            let control = if self.with_control { CONTROL * 8 } else { 0 };
            header.msg_hdr.msg_controllen = control as _;
            header.msg_hdr.msg_flags = 0;
            header.msg_len = 0;
        }
        let n = match count {
            0 => return Ok(0),
            1 => {
                let header = &mut self.headers[from];
                // SAFETY: the header points to a name, a control buffer and an iovec of this value, with their true
                // lengths.
                let length = unsafe {
                    libc::recvmsg(fd.as_raw_fd(), &raw mut header.msg_hdr, libc::MSG_DONTWAIT)
                };
                header.msg_len = length.max(0) as u32;
                if length < 0 { -1 } else { 1 }
            }
            // SAFETY: every header points to a name, a control buffer and an iovec of this value, with their true
            // lengths.
            _ => unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    self.headers[from..].as_mut_ptr(),
                    count as c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            },
        };
        let received = n.max(0) as usize;
        self.filled += received;
        if to >= self.dirty {
            // The call that found the queue empty may have changed the header behind the last received one.
            self.dirty = (self.filled + 1).min(to);
        }
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(0),
                _ => Err(error),
            };
        }
        Ok(received)
    }

    /// Appends a datagram that another receive path delivered; there must be room.
    pub(crate) fn put(&mut self, source: SocketAddr, bytes: &[u8]) {
        let i = self.filled;
        let (Some(header), Some(name)) = (self.headers.get_mut(i), self.names.get_mut(i)) else {
            return;
        };
        let length = bytes.len().min(self.size);
        let Some(place) = self
            .bytes
            .get_mut(i * self.stride..i * self.stride + length)
        else {
            return;
        };
        place.copy_from_slice(&bytes[..length]);
        header.msg_hdr.msg_namelen = write_address(source, name);
        header.msg_hdr.msg_controllen = 0;
        header.msg_hdr.msg_flags = match length < bytes.len() {
            true => libc::MSG_TRUNC,
            false => 0,
        };
        header.msg_len = length as u32;
        self.filled += 1;
        // Marks the header as changed: it is initialised again before the kernel gets it.
        self.dirty = self.dirty.max(self.filled);
    }

    /// Removes the IPv4 header from each datagram of the batch: raw sockets deliver it.
    pub(crate) fn strip_ipv4_headers(&mut self) {
        let datagrams = self.headers.iter_mut().take(self.filled);
        for (header, buffer) in datagrams.zip(self.bytes.chunks_exact_mut(self.stride)) {
            let length = (header.msg_len as usize).min(self.size);
            let first = buffer.first().copied().unwrap_or_default();
            let ip_header = (usize::from(first & 15) * 4).min(length);
            buffer.copy_within(ip_header..length, 0);
            header.msg_len = (length - ip_header) as u32;
        }
    }

    /// Original destination of the datagram `index`; only sockets of [`crate::socket::steered`] report it.
    pub(crate) fn destination(&self, index: usize) -> Option<SocketAddr> {
        match self.with_control {
            true => destination_of(&self.headers.get(index)?.msg_hdr, &self.controls),
            false => None,
        }
    }

    /// Traffic class of the datagram `index`; 0 without the option that reports it (IP_RECVTOS, IPV6_RECVTCLASS).
    pub(crate) fn traffic_class(&self, index: usize) -> u8 {
        self.headers
            .get(index)
            .and_then(|header| traffic_class_of(&header.msg_hdr, &self.controls))
            .unwrap_or(0)
    }

    /// The datagram `index` of the last batch; `None` if its sender's address is of an unsupported family.
    pub(crate) fn get(&mut self, index: usize) -> Option<ReceivedDatagram<'_>> {
        let header = self.headers.get(index)?;
        let source = read_address(self.names.get(index)?)?;
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let stamp = if self.with_control {
            stamp_of(&header.msg_hdr, &self.controls)
        } else {
            None
        };
        let length = (header.msg_len as usize).min(self.size);
        let start = index * self.stride;
        let buffer = self.bytes.get_mut(start..start + self.stride)?;
        Some(ReceivedDatagram {
            source,
            buffer,
            length,
            truncated,
            stamp,
        })
    }
}

/// The original destination among the control messages.
fn destination_of(header: &libc::msghdr, _alive: &[[u64; CONTROL]]) -> Option<SocketAddr> {
    // SAFETY: as in `stamp_of`; a socket address among the messages is copied into a storage that is at least as large.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let size = match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_IP, libc::IP_ORIGDSTADDR) => size_of::<libc::sockaddr_in>(),
                (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => size_of::<libc::sockaddr_in6>(),
                _ => 0,
            };
            if size > 0 && (*message).cmsg_len as usize >= libc::CMSG_LEN(size as u32) as usize {
                let mut storage: libc::sockaddr_storage = zeroed();
                let from: *const u8 = libc::CMSG_DATA(message);
                std::ptr::copy_nonoverlapping(from, (&raw mut storage).cast::<u8>(), size);
                return read_address(&storage);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// The traffic class among the control messages: a byte of IPv4, an int of IPv6.
fn traffic_class_of(header: &libc::msghdr, _alive: &[[u64; CONTROL]]) -> Option<u8> {
    // SAFETY: as in `stamp_of`; no more bytes are read than the message has.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let place = ((*message).cmsg_level, (*message).cmsg_type);
            let length = (*message).cmsg_len as usize;
            let data = libc::CMSG_DATA(message);
            if place == (libc::SOL_IP, libc::IP_TOS) && length > libc::CMSG_LEN(0) as usize {
                return Some(data.read());
            }
            if place == (libc::SOL_IPV6, libc::IPV6_TCLASS) && length >= libc::CMSG_LEN(4) as usize
            {
                return Some(data.cast::<c_int>().read_unaligned() as u8);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// The kernel's time stamp among the control messages.
fn stamp_of(header: &libc::msghdr, _alive: &[[u64; CONTROL]]) -> Option<u64> {
    // SAFETY: the kernel filled msg_control (alive: the vector is borrowed by the caller) and set msg_controllen to
    // the length that it wrote; the CMSG functions stay inside these bounds.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET
                && (*message).cmsg_type == libc::SCM_TIMESTAMPNS
                && (*message).cmsg_len as usize
                    >= libc::CMSG_LEN(size_of::<libc::timespec>() as u32) as usize
            {
                let time = libc::CMSG_DATA(message)
                    .cast::<libc::timespec>()
                    .read_unaligned();
                return Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

pub(crate) fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let base: *const libc::sockaddr_storage = storage;
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: sockaddr_storage is large and aligned enough for every socket address; the family says which it
            // is.
            let v4 = unsafe { &*base.cast::<libc::sockaddr_in>() };
            Some(SocketAddr::V4(SocketAddrV4::new(
                Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)),
                u16::from_be(v4.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*base.cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
                0,
                // The scope matters for link-local addresses alone; for others it would make equal addresses differ.
                if v6.sin6_addr.s6_addr[..2] == [0xfe, 0x80] {
                    v6.sin6_scope_id
                } else {
                    0
                },
            )))
        }
        _ => None,
    }
}

/// Writes `address` as a C structure and returns its length.
pub(crate) fn write_address(address: SocketAddr, storage: &mut libc::sockaddr_storage) -> u32 {
    let base: *mut libc::sockaddr_storage = storage;
    match address.ip() {
        IpAddr::V4(ip) => {
            // SAFETY: sockaddr_storage is large and aligned enough for sockaddr_in, which has no invalid values.
            let v4 = unsafe { &mut *base.cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as u16;
            v4.sin_port = address.port().to_be();
            v4.sin_addr.s_addr = u32::from(ip).to_be();
            size_of::<libc::sockaddr_in>() as u32
        }
        IpAddr::V6(ip) => {
            // SAFETY: as above, for sockaddr_in6.
            let v6 = unsafe { &mut *base.cast::<libc::sockaddr_in6>() };
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_port = address.port().to_be();
            v6.sin6_flowinfo = 0;
            v6.sin6_addr.s6_addr = ip.octets();
            v6.sin6_scope_id = match address {
                SocketAddr::V6(full) => full.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            size_of::<libc::sockaddr_in6>() as u32
        }
    }
}

/// Largest datagram of a GSO burst, bytes: each segment must fit into one packet of the path (Ethernet's 1500 less
/// the larger IP header and UDP's).
pub(crate) const MAX_GSO_SEGMENT: usize = 1_452;
/// Largest GSO burst, bytes; with its headers it must fit into one IP packet.
pub(crate) const MAX_GSO_BYTES: usize = 60_000;
/// After this number of consecutive refusals GSO is not tried for some time: the outgoing devices do not support it.
const GSO_REFUSALS: u32 = 16;

/// A datagram is retried up to this number of times if the socket returned a pending error of an earlier one instead
/// of sending it.
const PENDING_ERROR_RETRIES: u32 = 8;

/// Room for the control message with the GSO segment size, aligned for its header.
type SegmentControl = [u64; 3];
const _: () = assert!(size_of::<SegmentControl>() >= unsafe { libc::CMSG_SPACE(2) } as usize);

/// Headers for the outgoing datagrams of one socket. Datagrams of one size to one destination may share a header:
/// they pass the kernel as one GSO burst (UDP_SEGMENT), which is segmented at the end of the transmit path.
pub(crate) struct Sender {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<SegmentControl>,
    /// Headers in use.
    count: usize,
    /// Datagrams in use.
    datagrams: usize,
    refusals: u32,
    /// Destinations and segment lengths of bursts that the path refused.
    too_long: Vec<(SocketAddr, usize)>,
    /// Collects [`RefusedDatagram`]s.
    reports: bool,
    refused: Vec<RefusedDatagram>,
}

/// A datagram that the kernel refused to send for good: no route, a packet filter, an impossible source. No ICMP error
/// follows.
#[derive(Debug)]
pub(crate) struct RefusedDatagram {
    pub(crate) destination: SocketAddr,
    /// Its beginning.
    pub(crate) bytes: Vec<u8>,
}

/// Bytes of a refused datagram that are reported: the length that ICMP quotes (RFC 1812 section 4.3.2.3).
pub(crate) const MAX_QUOTE: usize = 576;
/// Refused datagrams of one batch that are reported; the others are counted.
const MAX_REFUSED: usize = BATCH;

// SAFETY: the raw pointers point only into the vectors of the value and, between `push` and `send`, to payloads that
// the caller of `push` keeps alive.
unsafe impl Send for Sender {}

/// Outcome of sending a batch.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SendSummary {
    pub(crate) calls: usize,
    pub(crate) sent: usize,
    pub(crate) failed: usize,
    /// Datagrams of those sent that were part of a GSO burst.
    pub(crate) gso_datagrams: usize,
}

impl Sender {
    pub(crate) fn new() -> Sender {
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let (headers, names): (Vec<libc::mmsghdr>, Vec<libc::sockaddr_storage>) =
            unsafe { (vec![zeroed(); BATCH], vec![zeroed(); BATCH]) };
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut sender = Sender {
            headers,
            iovecs: vec![empty; BATCH],
            names,
            controls: vec![[0; 3]; BATCH],
            count: 0,
            datagrams: 0,
            refusals: 0,
            too_long: Vec::new(),
            reports: false,
            refused: Vec::new(),
        };
        for i in 0..BATCH {
            let header = &mut sender.headers[i].msg_hdr;
            header.msg_name = (&raw mut sender.names[i]).cast();
        }
        sender
    }

    /// Whether the next batch collects the datagrams that are refused, see [`Sender::refused`].
    pub(crate) fn set_reports(&mut self, reports: bool) {
        self.reports = reports;
    }

    /// The collected refused datagrams.
    pub(crate) fn refused(&mut self) -> std::vec::Drain<'_, RefusedDatagram> {
        self.refused.drain(..)
    }

    /// Counts the datagrams of a header from `first` on as refused, and collects them.
    fn refuse(&mut self, header: usize, first: usize, result: &mut SendSummary) {
        let message = self.headers[header].msg_hdr;
        result.failed += segments(&message) - first;
        if !self.reports {
            return;
        }
        let Some(destination) = read_address(&self.names[header]) else {
            return;
        };
        for i in first..segments(&message) {
            if self.refused.len() >= MAX_REFUSED {
                break;
            }
            // SAFETY: the iovecs of a header are adjacent, and the payload is readable by the contract of `push`.
            let bytes = unsafe {
                let iovec = *message.msg_iov.add(i);
                let length = iovec.iov_len.min(MAX_QUOTE);
                std::slice::from_raw_parts(iovec.iov_base.cast::<u8>(), length).to_vec()
            };
            self.refused.push(RefusedDatagram { destination, bytes });
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.datagrams == BATCH
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Datagrams queued for [`Sender::send`].
    pub(crate) fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Payload bytes queued for [`Sender::send`].
    pub(crate) fn bytes(&self) -> usize {
        let waiting = &self.iovecs[..self.datagrams];
        waiting.iter().map(|iovec| iovec.iov_len).sum()
    }

    /// Allows one more burst although GSO was refused.
    pub(crate) fn retry_gso(&mut self) {
        self.refusals = GSO_REFUSALS - 1;
    }

    /// The collected destinations and lengths of segments that are too long for their path.
    pub(crate) fn too_long(&mut self) -> std::vec::Drain<'_, (SocketAddr, usize)> {
        self.too_long.drain(..)
    }

    /// Segments that exceed the MTU of their path give EINVAL; other codes concern the device.
    fn note_refused_burst(&mut self, burst: usize, code: i32) {
        if !matches!(code, libc::EINVAL | libc::EMSGSIZE) {
            self.refusals = self.refusals.saturating_add(1);
            return;
        }
        // SAFETY: the header has at least one iovec, in `iovecs`.
        let length = unsafe { (*self.headers[burst].msg_hdr.msg_iov).iov_len };
        if let Some(destination) = read_address(&self.names[burst]) {
            self.too_long.push((destination, length));
        }
    }

    /// Whether GSO is used: true until [`GSO_REFUSALS`] bursts in a row were refused.
    pub(crate) fn gso_available(&self) -> bool {
        self.refusals < GSO_REFUSALS
    }

    /// Adds a datagram; there must be room.
    ///
    /// # Safety
    /// `bytes` to `bytes + length` must stay readable until the next [`Sender::send`] has returned.
    pub(crate) unsafe fn push(&mut self, destination: SocketAddr, bytes: *const u8, length: usize) {
        let i = self.count;
        self.iovecs[self.datagrams] = libc::iovec {
            iov_base: bytes.cast_mut().cast::<c_void>(),
            iov_len: length,
        };
        let header = &mut self.headers[i].msg_hdr;
        header.msg_namelen = write_address(destination, &mut self.names[i]);
        header.msg_iov = &raw mut self.iovecs[self.datagrams];
        header.msg_iovlen = 1;
        header.msg_control = std::ptr::null_mut();
        header.msg_controllen = 0;
        self.count += 1;
        self.datagrams += 1;
    }

    /// Appends a datagram to the GSO burst of the last pushed one: same destination, same length.
    ///
    /// # Safety
    /// As for [`Sender::push`].
    pub(crate) unsafe fn append_segment(&mut self, bytes: *const u8, length: usize) {
        let i = self.count - 1;
        self.iovecs[self.datagrams] = libc::iovec {
            iov_base: bytes.cast_mut().cast::<c_void>(),
            iov_len: length,
        };
        self.datagrams += 1;
        let header = &mut self.headers[i].msg_hdr;
        header.msg_iovlen += 1;
        if header.msg_iovlen == 2 {
            header.msg_control = (&raw mut self.controls[i]).cast();
            // SAFETY: the control buffer has room for one message of two bytes (asserted above) and is aligned for it.
            unsafe {
                header.msg_controllen = libc::CMSG_SPACE(2) as _;
                let message = libc::CMSG_FIRSTHDR(header);
                (*message).cmsg_level = libc::SOL_UDP;
                (*message).cmsg_type = libc::UDP_SEGMENT;
                (*message).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(message)
                    .cast::<u16>()
                    .write_unaligned(length as u16);
            }
        }
    }

    /// Sends all queued datagrams. A refused one is skipped and counted.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>) -> SendSummary {
        let mut result = SendSummary::default();
        let mut from = 0;
        let mut waited = false;
        let mut pending = PendingErrors::default();
        while from < self.count {
            result.calls += 1;
            match self.send_from(fd, from) {
                Ok(n) => {
                    pending = PendingErrors::default();
                    for header in &self.headers[from..from + n] {
                        let segments = segments(&header.msg_hdr);
                        result.sent += segments;
                        if segments > 1 {
                            result.gso_datagrams += segments;
                            self.refusals = 0;
                        }
                    }
                    from += n;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS) if !waited => {
                        waited = true;
                        wait_writable(fd);
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS) => {
                        // The socket's buffer stays full: the rest of this batch is lost, as in a router with a full
                        // queue.
                        result.failed += self.datagrams - result.sent - result.failed;
                        break;
                    }
                    Some(code) if pending.may_retry(code) => {}
                    Some(code)
                        if self.headers[from].msg_hdr.msg_iovlen > 1 && !is_unroutable(code) =>
                    {
                        self.note_refused_burst(from, code);
                        self.send_segments_singly(fd, from, &mut result);
                        from += 1;
                        pending = PendingErrors::default();
                    }
                    code => {
                        match code.is_some_and(is_undeliverable) {
                            true => self.refuse(from, 0, &mut result),
                            false => result.failed += segments(&self.headers[from].msg_hdr),
                        }
                        from += 1;
                        pending = PendingErrors::default();
                    }
                },
            }
        }
        self.count = 0;
        self.datagrams = 0;
        result
    }

    /// Sends the datagrams of a refused GSO burst one by one.
    fn send_segments_singly(&mut self, fd: BorrowedFd<'_>, burst: usize, result: &mut SendSummary) {
        let header = self.headers[burst].msg_hdr;
        let mut pending = PendingErrors::default();
        let mut i = 0;
        while i < segments(&header) {
            // SAFETY: the iovecs of a header are adjacent; name and payload as in `send_from`.
            let n = unsafe {
                let iovec = *header.msg_iov.add(i);
                libc::sendto(
                    fd.as_raw_fd(),
                    iovec.iov_base,
                    iovec.iov_len,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                    header.msg_name.cast(),
                    header.msg_namelen,
                )
            };
            result.calls += 1;
            let code = io::Error::last_os_error().raw_os_error();
            match n {
                0.. => result.sent += 1,
                _ if code.is_some_and(|code| pending.may_retry(code)) => continue,
                // One destination: the others are refused too.
                _ if code.is_some_and(is_undeliverable) => {
                    self.refuse(burst, i, result);
                    return;
                }
                _ => result.failed += 1,
            }
            i += 1;
            pending = PendingErrors::default();
        }
    }

    fn send_from(&mut self, fd: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let header = &self.headers[from].msg_hdr;
        let n = if self.count - from == 1 && header.msg_iovlen == 1 {
            // SAFETY: the header's only iovec is in `iovecs`, the name in `names`; the payload is readable by the
            // contract of `push`.
            let n = unsafe {
                libc::sendto(
                    fd.as_raw_fd(),
                    (*header.msg_iov).iov_base,
                    (*header.msg_iov).iov_len,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                    header.msg_name.cast(),
                    header.msg_namelen,
                )
            };
            if n < 0 { -1 } else { 1 }
        } else {
            // SAFETY: the headers `from..count` point to names, controls and iovecs of this value and to payloads
            // under the contract of `push`.
            unsafe {
                libc::sendmmsg(
                    fd.as_raw_fd(),
                    self.headers.as_mut_ptr().add(from),
                    (self.count - from) as c_uint,
                    (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
                )
            }
        };
        if n < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(n as usize)
        }
    }
}

/// Segments of a burst. The type of their number differs between C libraries.
#[allow(clippy::unnecessary_cast)]
fn segments(header: &libc::msghdr) -> usize {
    header.msg_iovlen as usize
}

/// Whether the error may concern an earlier datagram (an ICMP message) instead of the current one.
fn may_be_pending_error(code: i32) -> bool {
    matches!(
        code,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
    )
}

/// Whether there is no route for a datagram, or a packet filter drops it. The first three may also be pending errors.
fn is_unroutable(code: i32) -> bool {
    matches!(
        code,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EPERM
    )
}

/// Whether the error is final for datagrams to this destination (RFC 3261 section 18.4): no route, or no address of
/// ours for it.
fn is_undeliverable(code: i32) -> bool {
    is_unroutable(code) || matches!(code, libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETDOWN)
}

/// The errors that a socket has returned instead of sending a header. A pending error (an ICMP message for an earlier
/// datagram) is returned once; further ones may arrive in the meantime.
#[derive(Debug, Default)]
struct PendingErrors {
    retries: u32,
    last: Option<i32>,
}

impl PendingErrors {
    /// Whether the header is sent again: the error may be a pending one. Without a route the same error returns at
    /// once, and is then that of the datagram itself.
    fn may_retry(&mut self, code: i32) -> bool {
        let repeated = self.last.replace(code) == Some(code);
        self.retries += 1;
        may_be_pending_error(code)
            && self.retries <= PENDING_ERROR_RETRIES
            && !(repeated && is_unroutable(code))
    }
}

/// Waits up to one millisecond for room in a full send buffer.
pub(crate) fn wait_writable(fd: BorrowedFd<'_>) {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one pollfd, which is valid for the call. The result is ignored: the retried send returns the error.
    unsafe { libc::poll(&raw mut poll, 1, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    /// Sends bursts of the given (count, length) and returns (length, first byte) of each received datagram.
    fn send_bursts(bursts: &[(usize, usize)]) -> (Vec<(usize, u8)>, SendSummary, bool) {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let destination = to.local_addr().unwrap();
        let payloads: Vec<Vec<u8>> = (0..BATCH).map(|i| vec![i as u8; 2_000]).collect();
        let mut sender = Sender::new();
        let mut number = 0;
        for &(count, length) in bursts {
            for segment in 0..count {
                let bytes = payloads[number].as_ptr();
                // SAFETY: the payloads are valid to the end of this function.
                unsafe {
                    match segment {
                        0 => sender.push(destination, bytes, length),
                        _ => sender.append_segment(bytes, length),
                    }
                }
                number += 1;
            }
        }
        assert_eq!(sender.datagrams(), number);
        let sent = sender.send(from.as_fd());
        let mut bytes = [0; 4_096];
        let mut got = Vec::new();
        while got.len() < number
            && let Ok(length) = to.recv(&mut bytes)
        {
            got.push((length, bytes[0]));
        }
        (got, sent, sender.gso_available())
    }

    #[test]
    fn gso_burst_arrives_as_single_datagrams() {
        let (got, sent, _) = send_bursts(&[(1, 100), (5, 300), (1, 100), (20, 1_400)]);
        assert_eq!(got.len(), 27);
        assert!(
            got.iter()
                .enumerate()
                .all(|(i, (_, mark))| *mark == i as u8)
        );
        assert!(got[1..6].iter().all(|(length, _)| *length == 300));
        assert!(got[7..].iter().all(|(length, _)| *length == 1_400));
        assert_eq!((sent.sent, sent.failed), (27, 0));
    }

    #[test]
    fn refused_gso_burst_is_sent_as_single_datagrams() {
        // 50 segments of 1,400 bytes exceed the size of one IP packet.
        let (got, sent, more) = send_bursts(&[(1, 50), (50, 1_400), (1, 50)]);
        assert_eq!(got.len(), 52);
        assert!(
            got.iter()
                .enumerate()
                .all(|(i, (_, mark))| *mark == i as u8)
        );
        assert_eq!((sent.sent, sent.failed), (52, 0));
        assert!(more, "one refusal disabled GSO");
    }
}
