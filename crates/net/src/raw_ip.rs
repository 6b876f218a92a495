//! A raw socket of one IPv4 protocol, such as ESP (raw(7)): the kernel writes and reads the IP header.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto,
    socket_with, sockopt,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A raw socket that is bound to one local address.
#[derive(Debug)]
pub struct RawIpSocket {
    socket: OwnedFd,
}

impl RawIpSocket {
    /// Opens a socket of this IP protocol; a call of [`RawIpSocket::receive`] ends after `wait` without a packet.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_RAW), protocol 0, or the address is not one of this host.
    pub fn open(protocol: u8, address: Ipv4Addr, wait: Duration) -> io::Result<RawIpSocket> {
        let protocol = NonZeroU32::new(u32::from(protocol))
            .map(Protocol::from_raw)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(wait))?;
        bind(&socket, &SocketAddrV4::new(address, 0))?;
        Ok(RawIpSocket { socket })
    }

    /// Sends the payload of an IP packet.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send_to(&self, payload: &[u8], to: Ipv4Addr) -> io::Result<()> {
        let to = SocketAddrV4::new(to, 0);
        sendto(&self.socket, payload, SendFlags::empty(), &to)?;
        Ok(())
    }

    /// Receives a packet with its IPv4 header; returns its length.
    ///
    /// # Errors
    /// As recv(2); `WouldBlock` without a packet in time.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<usize> {
        let (_, length) = recv(&self.socket, packet, RecvFlags::empty())?;
        Ok(length)
    }
}
