//! Delivery errors of UDP sockets, reported by ICMP (IP_RECVERR).

use crate::batch::read_address;
use libc::{c_int, c_void};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for control messages, in words of eight bytes: the error with the address of its sender, and a time stamp.
const CONTROL: usize = 64;

/// An ICMP report about one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    /// Destination of the datagram.
    pub(crate) destination: SocketAddr,
    /// Bytes of the datagram in the buffer.
    pub(crate) length: usize,
    /// The destination is unreachable, as opposed to other ICMP reports.
    pub(crate) fatal: bool,
}

/// Reads the oldest entry of the socket's error queue; `None` if it is empty.
pub(crate) fn next(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<Undelivered>> {
    let mut iovec = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast::<c_void>(),
        iov_len: bytes.len(),
    };
    let mut control = [0u64; CONTROL];
    // SAFETY: these are plain C structures for which all zero bytes are a valid value.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (zeroed(), zeroed()) };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
    header.msg_iov = &raw mut iovec;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<[u64; CONTROL]>() as _;
    // SAFETY: the header points to a name, an iovec and a control buffer that outlive the call, with their lengths.
    let n = unsafe {
        libc::recvmsg(
            fd.as_raw_fd(),
            &raw mut header,
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    if n < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        };
    }
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    Ok(Some(Undelivered {
        destination: read_address(&name).unwrap_or(unknown),
        length: (n as usize).min(bytes.len()),
        fatal: is_fatal(&header),
    }))
}

/// Host, network, port or protocol unreachable, or parameter problem (RFC 3261 section 18.4).
fn is_fatal(header: &libc::msghdr) -> bool {
    // SAFETY: the kernel filled msg_control, which the caller owns, and set msg_controllen to the length that it
    // wrote; the CMSG functions stay inside these bounds.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let place = ((*message).cmsg_level, (*message).cmsg_type);
            let long = (*message).cmsg_len as usize
                >= libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) as usize;
            if long
                && matches!(
                    place,
                    (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                )
            {
                let error = libc::CMSG_DATA(message)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned();
                return is_unreachable(error.ee_origin, error.ee_type, error.ee_code);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    false
}

fn is_unreachable(origin: u8, kind: u8, code: u8) -> bool {
    match origin {
        // Destination unreachable except "fragmentation needed", and parameter problem (RFC 792).
        libc::SO_EE_ORIGIN_ICMP => (kind == 3 && code != 4) || kind == 12,
        // The same (RFC 4443 sections 3.1 and 3.4).
        libc::SO_EE_ORIGIN_ICMP6 => kind == 1 || kind == 4,
        _ => false,
    }
}

/// Enables the error queue of a socket.
pub(crate) fn enable(fd: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let one: c_int = 1;
    let (level, name) = match ipv6 {
        true => (libc::SOL_IPV6, libc::IPV6_RECVERR),
        false => (libc::SOL_IP, libc::IP_RECVERR),
    };
    // SAFETY: the option's value is an int, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const one).cast(),
            size_of::<c_int>() as u32,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreachable_reports_are_fatal() {
        assert!(is_unreachable(libc::SO_EE_ORIGIN_ICMP, 3, 3));
        assert!(is_unreachable(libc::SO_EE_ORIGIN_ICMP, 3, 1));
        assert!(is_unreachable(libc::SO_EE_ORIGIN_ICMP, 12, 0));
        assert!(!is_unreachable(libc::SO_EE_ORIGIN_ICMP, 3, 4), "too long");
        assert!(!is_unreachable(libc::SO_EE_ORIGIN_ICMP, 11, 0), "time");
        assert!(!is_unreachable(libc::SO_EE_ORIGIN_ICMP, 4, 0), "quench");
        assert!(is_unreachable(libc::SO_EE_ORIGIN_ICMP6, 1, 4));
        assert!(!is_unreachable(libc::SO_EE_ORIGIN_ICMP6, 2, 0));
        assert!(!is_unreachable(libc::SO_EE_ORIGIN_LOCAL, 3, 3));
    }
}
