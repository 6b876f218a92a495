//! Datagrams with their IP and UDP headers, for a raw socket: one `sendmmsg` then takes those of many ports.

use crate::batch::{BATCH, Sent, wait_writable, write_address};
use crate::socket;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
pub(crate) const HEADERS: usize = V6_HEADER + UDP_HEADER;
/// Up to this size, bytes of an IPv4 packet, we ask for it not to be fragmented, and it needs no identification of its own (RFC
/// 6864 section 4.1). No way that carries IPv6 as well has a smaller limit.
const ATOMIC: usize = 1_280;
const DONT_FRAGMENT: u16 = 0x4000;

/// What all datagrams of an address have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// Type of service or traffic class: the code point in its upper six bits.
    pub(crate) class: u8,
    /// Time to live, or hop limit.
    pub(crate) hops: u8,
}

/// Writes IP and UDP headers in front of `payload`; gives their length. Both addresses are of one family, and the payload fits
/// into a UDP datagram.
pub(crate) fn write_headers(
    source: SocketAddr,
    destination: SocketAddr,
    marks: Marks,
    payload: &[u8],
    headers: &mut [u8; HEADERS],
) -> usize {
    let udp_length = (UDP_HEADER + payload.len()) as u16;
    let mut sum = Sum::default();
    let start = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = V4_HEADER + usize::from(udp_length);
            // 0 leaves the choice of an identification to the kernel.
            let (identification, fragment) = match total <= ATOMIC {
                true => (1u16, DONT_FRAGMENT),
                false => (0, 0),
            };
            headers[0] = 0x45;
            headers[1] = marks.class;
            headers[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            headers[4..6].copy_from_slice(&identification.to_be_bytes());
            headers[6..8].copy_from_slice(&fragment.to_be_bytes());
            headers[8] = marks.hops;
            headers[9] = UDP;
            // The kernel fills in the header's checksum.
            headers[10..12].fill(0);
            headers[12..16].copy_from_slice(&from.octets());
            headers[16..20].copy_from_slice(&to.octets());
            sum.add(&headers[12..20]);
            V4_HEADER
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            headers[0] = 0x60 | marks.class >> 4;
            headers[1] = marks.class << 4;
            headers[2..4].fill(0);
            headers[4..6].copy_from_slice(&udp_length.to_be_bytes());
            headers[6] = UDP;
            headers[7] = marks.hops;
            headers[8..24].copy_from_slice(&octets(from));
            headers[24..40].copy_from_slice(&octets(to));
            sum.add(&headers[8..40]);
            V6_HEADER
        }
    };
    let end = start + UDP_HEADER;
    let udp = &mut headers[start..end];
    udp[0..2].copy_from_slice(&source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    udp[6..8].fill(0);
    sum.add(udp);
    sum.add(&[0, UDP]);
    sum.add(&udp_length.to_be_bytes());
    sum.add(payload);
    headers[end - 2..end].copy_from_slice(&sum.checksum().to_ne_bytes());
    end
}

/// The sum of the Internet checksum (RFC 1071), in the machine's own byte order, which only exchanges the bytes of the result.
#[derive(Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes; only the last ones may be odd in number.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            // Chunks have their size.
            let word: [u8; 4] = word.try_into().unwrap_or_default();
            self.0 += u64::from(u32::from_ne_bytes(word));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.0 += u64::from(u32::from_ne_bytes(last));
    }

    /// The checksum; never 0, which would say that there is none (RFC 768).
    pub(crate) fn checksum(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        match !(sum as u16) {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Datagrams of one address, and of many ports of it, on their way out.
pub(crate) struct RawSender {
    headers: Vec<libc::mmsghdr>,
    /// Two of each datagram: headers, payload.
    iovecs: Vec<[libc::iovec; 2]>,
    names: Vec<libc::sockaddr_storage>,
    written: Vec<[u8; HEADERS]>,
    ends: Vec<(SocketAddr, SocketAddr)>,
    count: usize,
}

// SAFETY: as for `Sender`.
unsafe impl Send for RawSender {}

impl RawSender {
    pub(crate) fn new() -> RawSender {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let (headers, names): (Vec<libc::mmsghdr>, Vec<libc::sockaddr_storage>) =
            unsafe { (vec![zeroed(); BATCH], vec![zeroed(); BATCH]) };
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut sender = RawSender {
            headers,
            iovecs: vec![[empty; 2]; BATCH],
            names,
            written: vec![[0; HEADERS]; BATCH],
            ends: vec![(nowhere, nowhere); BATCH],
            count: 0,
        };
        for i in 0..BATCH {
            let header = &mut sender.headers[i].msg_hdr;
            header.msg_name = (&raw mut sender.names[i]).cast();
            header.msg_iov = sender.iovecs[i].as_mut_ptr();
            header.msg_iovlen = 2;
        }
        sender
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == BATCH
    }

    pub(crate) fn datagrams(&self) -> usize {
        self.count
    }

    /// Their payload bytes.
    pub(crate) fn bytes(&self) -> usize {
        let waiting = &self.iovecs[..self.count];
        waiting.iter().map(|iovecs| iovecs[1].iov_len).sum()
    }

    /// Adds a datagram; there must be room, and its ends are of one family.
    ///
    /// # Safety
    /// `bytes` to `bytes + length` must stay readable until the next [`RawSender::send`] has returned.
    pub(crate) unsafe fn push(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        marks: Marks,
        bytes: *const u8,
        length: usize,
    ) {
        let i = self.count;
        // SAFETY: the caller's promise.
        let payload = unsafe { std::slice::from_raw_parts(bytes, length) };
        let headers = &mut self.written[i];
        let written = write_headers(source, destination, marks, payload, headers);
        self.iovecs[i] = [
            libc::iovec {
                iov_base: headers.as_mut_ptr().cast(),
                iov_len: written,
            },
            libc::iovec {
                iov_base: bytes.cast_mut().cast(),
                iov_len: length,
            },
        ];
        // A raw socket takes no port: it stands in what is sent.
        let mut to = destination;
        to.set_port(0);
        self.headers[i].msg_hdr.msg_namelen = write_address(to, &mut self.names[i]);
        self.ends[i] = (source, destination);
        self.count += 1;
    }

    /// Sends all that was pushed. One that the kernel refuses is left out and counted; the others go. `bound`: the socket that is
    /// bound to a source.
    pub(crate) fn send<'b>(
        &mut self,
        fd: BorrowedFd<'_>,
        marks: Marks,
        bound: impl Fn(SocketAddr) -> Option<BorrowedFd<'b>>,
    ) -> Sent {
        let mut result = Sent::default();
        let (mut from, mut waited) = (0, false);
        while from < self.count {
            result.calls += 1;
            // SAFETY: the headers `from..count` point to names and iovecs of this value, and those to headers of this value and
            // to payloads as promised to `push`.
            let n = unsafe {
                libc::sendmmsg(
                    fd.as_raw_fd(),
                    self.headers.as_mut_ptr().add(from),
                    (self.count - from) as libc::c_uint,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            if n > 0 {
                result.sent += n as usize;
                from += n as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) if !waited => {
                    waited = true;
                    wait_writable(fd);
                }
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    // As in `Sender::send`.
                    result.failed += self.count - from;
                    break;
                }
                Some(libc::EMSGSIZE) => {
                    match self.send_large(from, marks, &bound) {
                        Ok(()) => result.sent += 1,
                        Err(_) => result.failed += 1,
                    }
                    from += 1;
                }
                _ => {
                    result.failed += 1;
                    from += 1;
                }
            }
        }
        self.count = 0;
        result
    }

    /// Sends what is larger than a packet of the way, which a raw socket does not take apart, by the socket that is bound to its source.
    fn send_large<'b>(
        &self,
        i: usize,
        marks: Marks,
        bound: impl Fn(SocketAddr) -> Option<BorrowedFd<'b>>,
    ) -> io::Result<()> {
        let ends = self.ends[i];
        let fd = bound(ends.0).ok_or(io::ErrorKind::NotConnected)?;
        let payload = self.iovecs[i][1];
        // SAFETY: the payload is readable by the promise given to `push`.
        let bytes = unsafe {
            std::slice::from_raw_parts(payload.iov_base.cast_const().cast::<u8>(), payload.iov_len)
        };
        socket::send_by(fd, ends, marks.class >> 2, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let mut headers = [0; HEADERS];
        let marks = Marks {
            class: 46 << 2,
            hops: 64,
        };
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let length = write_headers(source, destination, marks, payload, &mut headers);
        [&headers[..length], payload].concat()
    }

    /// The sum of RFC 1071, word by word; 0xffff where the checksum is right.
    fn plain_sum(parts: &[&[u8]]) -> u16 {
        let mut bytes = parts.concat();
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn an_ipv4_packet_is_as_the_standards_have_it() {
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", b"odd");
        // Version and length, class, total length 31, identification 1, DF, hops, UDP, the kernel's checksum, addresses, ports.
        let expected = [
            0x45, 0xb8, 0, 31, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2, 0x0f,
            0xa0, 0x13, 0x8a, 0, 11,
        ];
        assert_eq!(packet[..26], expected);
        assert_eq!(
            plain_sum(&[&packet[12..20], &[0, 17, 0, 11], &packet[20..]]),
            0xffff
        );
        assert_eq!(&packet[28..], b"odd");
    }

    #[test]
    fn an_ipv6_packet_is_as_the_standards_have_it() {
        let packet = written("[2001:db8::1]:4000", "[2001:db8::2]:5002", &[7; 160]);
        assert_eq!(packet[..8], [0x6b, 0x80, 0, 0, 0, 168, 17, 64]);
        assert_eq!(
            plain_sum(&[&packet[8..40], &[0, 17, 0, 168], &packet[40..]]),
            0xffff
        );
    }

    #[test]
    fn a_large_packet_may_be_fragmented() {
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &[0; 1_400]);
        assert_eq!(packet[4..8], [0, 0, 0, 0]);
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_all_ones() {
        // The sum of this packet's words is all ones, so that the checksum comes out as zero.
        let mut payload = [0, 0];
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &payload);
        payload.copy_from_slice(&packet[26..28]);
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &payload);
        assert_eq!(packet[26..28], [0xff, 0xff]);
    }
}
