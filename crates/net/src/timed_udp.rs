//! A UDP port whose datagrams have the kernel's time of arrival, and whose drops in the kernel are known: the end of an
//! emulated link.

use crate::clock::{Clock, nanos};
use crate::packet::{RECEIVE_BUFFER, check, set_option};
use engine::Time;
use rustix::time::ClockId;
use std::io::{self, ErrorKind};
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Option with counters of a socket's memory (linux/sock_diag.h), and the place of dropped datagrams among them.
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_DROPS: usize = 8;
/// A control message with a time stamp takes 32 bytes; in words of eight.
const CONTROL: usize = 8;

/// A UDP port with times of arrival.
#[derive(Debug)]
pub struct TimedUdpSocket {
    socket: UdpSocket,
    /// Drops that are not counted any more.
    forgotten: u32,
}

impl TimedUdpSocket {
    /// Opens a port.
    ///
    /// # Errors
    /// The port is in use, or the address is not one of this machine.
    pub fn bind(local: SocketAddr) -> io::Result<TimedUdpSocket> {
        let socket = UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        let level = libc::SOL_SOCKET;
        set_option(&socket, level, libc::SO_TIMESTAMPNS, &1i32)?;
        if set_option(&socket, level, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER).is_err() {
            set_option(&socket, level, libc::SO_RCVBUF, &RECEIVE_BUFFER)?;
        }
        Ok(TimedUdpSocket {
            socket,
            forgotten: 0,
        })
    }

    /// The next datagram: its length, and when the kernel received it; `None` if none waits. The rest of a datagram
    /// longer than `room` is cut off.
    ///
    /// # Errors
    /// The socket fails. An ICMP error for an earlier datagram is no failure.
    pub fn receive(&self, clock: &Clock, room: &mut [u8]) -> io::Result<Option<(usize, Time)>> {
        let mut control = [0u64; CONTROL];
        let mut iovec = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        loop {
            // SAFETY: a plain C structure for which all zero bytes are a valid value.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_iov = &raw mut iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; CONTROL]>() as _;
            // SAFETY: the header points to a buffer and a control buffer of the given lengths, which outlive the call.
            let length = unsafe {
                libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT)
            };
            let Ok(length) = usize::try_from(length) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    // Reading it has removed it.
                    ErrorKind::ConnectionRefused | ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                }
            };
            let now = clock.now();
            let age =
                stamp(&header).map_or(0, |stamp| nanos(ClockId::Realtime).saturating_sub(stamp));
            return Ok(Some((length, Time(now.0.saturating_sub(age)))));
        }
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn send_to(&self, bytes: &[u8], peer: SocketAddr) -> io::Result<()> {
        self.socket.send_to(bytes, peer).map(drop)
    }

    /// Datagrams that the kernel dropped because the program did not read them in time.
    pub fn kernel_drops(&self) -> u64 {
        u64::from(self.all_drops().saturating_sub(self.forgotten))
    }

    /// Sets that counter to zero.
    pub fn reset_drops(&mut self) {
        self.forgotten = self.all_drops();
    }

    fn all_drops(&self) -> u32 {
        let mut counters = [0u32; MEMINFO_DROPS + 1];
        let mut length = size_of::<[u32; MEMINFO_DROPS + 1]>() as libc::socklen_t;
        // SAFETY: the array has the given length and outlives the call.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_MEMINFO,
                counters.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        // Kernels before 4.12 do not have the option: nothing is known there.
        match check(done) {
            Ok(_) => counters[MEMINFO_DROPS],
            Err(_) => 0,
        }
    }
}

/// The time stamp of a received datagram, nanoseconds since 1970.
fn stamp(header: &libc::msghdr) -> Option<u64> {
    let header = std::ptr::from_ref(header);
    // SAFETY: the kernel has filled the control buffer of this header and set its length; the macros stay within it,
    // and the value is read unaligned with the size that this kind of message has.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let kind = ((*message).cmsg_level, (*message).cmsg_type);
            if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                let time = libc::CMSG_DATA(message).cast::<libc::timespec>();
                let time: libc::timespec = time.read_unaligned();
                let seconds = u64::try_from(time.tv_sec).ok()?;
                return Some(seconds * 1_000_000_000 + time.tv_nsec as u64);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

impl AsFd for TimedUdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn datagrams_have_their_time_of_arrival() {
        let port = TimedUdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = port.socket.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let clock = Clock::new();
        let mut room = [0; 16];
        assert_eq!(port.receive(&clock, &mut room).unwrap(), None);
        // The kernel switches time stamps on a moment after the first socket wants them.
        std::thread::sleep(Duration::from_millis(200));
        let before = clock.now();
        sender.send_to(b"one", to).unwrap();
        let after = clock.now();
        // Read late: the time is that of the arrival.
        std::thread::sleep(Duration::from_millis(60));
        let (length, at) = port.receive(&clock, &mut room).unwrap().unwrap();
        assert_eq!(&room[..length], b"one");
        let slack = Duration::from_millis(1);
        assert!(
            at + slack >= before && at <= after + slack,
            "{before:?} {at:?} {after:?}"
        );
        // The port of the destination is closed: its ICMP error does not end the port.
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nowhere = closed.local_addr().unwrap();
        drop(closed);
        port.send_to(b"two", nowhere).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        sender.send_to(b"three", to).unwrap();
        assert_eq!(port.receive(&clock, &mut room).unwrap().unwrap().0, 5);
    }

    #[test]
    fn datagrams_that_are_not_read_in_time_are_counted() {
        let mut port = TimedUdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let small: libc::c_int = 4_096;
        set_option(&port, libc::SOL_SOCKET, libc::SO_RCVBUF, &small).unwrap();
        let to = port.socket.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(port.kernel_drops(), 0);
        for _ in 0..100 {
            sender.send_to(&[0; 1_000], to).unwrap();
        }
        let clock = Clock::new();
        let mut room = [0; 2_000];
        let mut read = 0;
        while port.receive(&clock, &mut room).unwrap().is_some() {
            read += 1;
        }
        assert!(read < 100);
        assert_eq!(port.kernel_drops(), 100 - read);
        port.reset_drops();
        assert_eq!(port.kernel_drops(), 0);
    }
}
