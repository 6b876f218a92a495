//! Datagrams with their IP and UDP headers, for a raw socket: one `sendmmsg` sends those of many ports.

use crate::batch::{BATCH, SendSummary, wait_writable, write_address};
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
/// Up to this size of an IPv4 packet, bytes, fragmentation is forbidden and no unique identification is needed (RFC
/// 6864 section 4.1). Every path that carries IPv6 has at least this MTU.
const ATOMIC: usize = 1_280;
const DONT_FRAGMENT: u16 = 0x4000;

/// IP header fields that all datagrams of an address share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpMarks {
    /// Type of service or traffic class: the code point is in the upper six bits.
    pub(crate) class: u8,
    /// Time to live, or hop limit.
    pub(crate) hops: u8,
}

/// Writes IP and UDP headers for `payload` and returns their length. Both addresses are of one family, and the
/// payload fits into a UDP datagram.
pub(crate) fn write_headers(
    source: SocketAddr,
    destination: SocketAddr,
    marks: IpMarks,
    payload: &[u8],
    headers: &mut [u8; HEADERS],
) -> usize {
    let udp_length = (UDP_HEADER + payload.len()) as u16;
    let mut sum = Sum::default();
    let start = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = V4_HEADER + usize::from(udp_length);
            // With 0 the kernel chooses the identification.
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

/// The sum of the Internet checksum (RFC 1071) in native byte order, which only swaps the bytes of the result.
#[derive(Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes; only the last slice may have an odd length.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            // The chunks have exactly this size.
            let word: [u8; 4] = word.try_into().unwrap_or_default();
            self.0 += u64::from(u32::from_ne_bytes(word));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.0 += u64::from(u32::from_ne_bytes(last));
    }

    fn folded(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Whether bytes with a checksum among them are unchanged.
    pub(crate) fn is_all_ones(&self) -> bool {
        self.folded() == 0xffff
    }

    /// The checksum; never 0, which means "no checksum" (RFC 768).
    pub(crate) fn checksum(&self) -> u16 {
        match !self.folded() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Outgoing datagrams of one address and many of its ports.
pub(crate) struct RawSender {
    headers: Vec<libc::mmsghdr>,
    /// Two for each datagram: headers, payload.
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

    /// Payload bytes queued.
    pub(crate) fn bytes(&self) -> usize {
        let waiting = &self.iovecs[..self.count];
        waiting.iter().map(|iovecs| iovecs[1].iov_len).sum()
    }

    /// Adds a datagram; there must be room, and both addresses are of one family.
    ///
    /// # Safety
    /// `bytes` to `bytes + length` must stay readable until the next [`RawSender::send`] has returned.
    pub(crate) unsafe fn push(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        marks: IpMarks,
        bytes: *const u8,
        length: usize,
    ) {
        let i = self.count;
        // SAFETY: the contract of this function.
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
        // A raw socket takes no port: it is in the UDP header.
        let mut to = destination;
        to.set_port(0);
        self.headers[i].msg_hdr.msg_namelen = write_address(to, &mut self.names[i]);
        self.ends[i] = (source, destination);
        self.count += 1;
    }

    /// Sends all queued datagrams. A refused one is skipped and counted. `bound` returns the socket that is bound to
    /// a source.
    pub(crate) fn send<'b>(
        &mut self,
        fd: BorrowedFd<'_>,
        marks: IpMarks,
        bound: impl Fn(SocketAddr) -> Option<BorrowedFd<'b>>,
    ) -> SendSummary {
        let mut result = SendSummary::default();
        let (mut from, mut waited) = (0, false);
        while from < self.count {
            result.calls += 1;
            // SAFETY: the headers `from..count` point to names and iovecs of this value, and those to headers of this
            // value and to payloads under the contract of `push`.
            let n = unsafe {
                libc::sendmmsg(
                    fd.as_raw_fd(),
                    self.headers.as_mut_ptr().add(from),
                    (self.count - from) as libc::c_uint,
                    (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
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

    /// Sends a datagram that exceeds the path's MTU through the socket that is bound to its source, because a raw
    /// socket does not fragment.
    fn send_large<'b>(
        &self,
        i: usize,
        marks: IpMarks,
        bound: impl Fn(SocketAddr) -> Option<BorrowedFd<'b>>,
    ) -> io::Result<()> {
        let ends = self.ends[i];
        let fd = bound(ends.0).ok_or(io::ErrorKind::NotConnected)?;
        let payload = self.iovecs[i][1];
        // SAFETY: the payload is readable by the contract of `push`.
        let bytes = unsafe {
            std::slice::from_raw_parts(payload.iov_base.cast_const().cast::<u8>(), payload.iov_len)
        };
        socket::send_from(fd, ends, marks.class >> 2, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let mut headers = [0; HEADERS];
        let marks = IpMarks {
            class: 46 << 2,
            hops: 64,
        };
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let length = write_headers(source, destination, marks, payload, &mut headers);
        [&headers[..length], payload].concat()
    }

    /// The sum of RFC 1071, computed word by word; 0xffff for a correct checksum.
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
    fn ipv4_headers_follow_rfc_791_and_768() {
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", b"odd");
        // Version and length, class, total length 31, identification 1, DF, hops, UDP, a checksum of zero (set by the
        // kernel), addresses, ports.
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
    fn ipv6_headers_follow_rfc_8200_and_768() {
        let packet = written("[2001:db8::1]:4000", "[2001:db8::2]:5002", &[7; 160]);
        assert_eq!(packet[..8], [0x6b, 0x80, 0, 0, 0, 168, 17, 64]);
        assert_eq!(
            plain_sum(&[&packet[8..40], &[0, 17, 0, 168], &packet[40..]]),
            0xffff
        );
    }

    #[test]
    fn large_packet_may_be_fragmented() {
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &[0; 1_400]);
        assert_eq!(packet[4..8], [0, 0, 0, 0]);
    }

    #[test]
    fn zero_checksum_is_sent_as_all_ones() {
        // The payload makes the sum of this packet all ones, so that the checksum is zero.
        let mut payload = [0, 0];
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &payload);
        payload.copy_from_slice(&packet[26..28]);
        let packet = written("192.0.2.1:4000", "198.51.100.2:5002", &payload);
        assert_eq!(packet[26..28], [0xff, 0xff]);
    }
}
