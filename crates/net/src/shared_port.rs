//! One socket for all media ports of a thread, instead of one for each. A BPF program steers the datagrams of open
//! ports into it ([`crate::steer`]), the original destination identifies the port, and one raw socket per address
//! sends from any port. A peer sees no difference between the two forms.
//!
//! Each open port is also bound by a socket that receives nothing and sends only datagrams that are too large for the
//! raw socket. While it is bound, no other program can bind the port and the kernel does not assign it as an
//! ephemeral port. Without it, another program could bind the port and would receive nothing, because the BPF program
//! overrides the kernel's socket lookup.

use crate::config::DriverConfig;
use crate::raw::IpMarks;
use crate::socket;
use crate::steer::Steering;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

const PORTS: usize = 1 << 16;
const NONE: u32 = u32::MAX;
/// Largest number of addresses in the program's table.
pub(crate) const MOST_ADDRESSES: u32 = 64;

/// A port of an address.
struct SharedPort {
    /// Index of the plane's socket that owns it.
    socket: u32,
    /// Reserves the port while it is open.
    bound: Option<OwnedFd>,
    /// Value of the drain count when the port was closed; kept when it is reopened before the socket was drained
    /// again.
    drained_at_close: u32,
}

struct SharedAddress {
    ip: IpAddr,
    /// Sends from all ports of the address.
    raw: OwnedFd,
    marks: IpMarks,
    /// Index of port 0 in the program's table.
    first: u32,
    ports: Box<[SharedPort]>,
}

/// The receiving sockets, the steering program and the addresses.
pub(crate) struct SharedPorts {
    steering: Steering,
    sockets: [Option<Arc<OwnedFd>>; 2],
    addresses: Vec<SharedAddress>,
    /// Number of times that each receiving socket was drained.
    drain_counts: [u32; 2],
}

/// Reason for which a port cannot be opened on the shared socket.
pub(crate) enum OpenPortError {
    /// The port is in use.
    InUse(io::Error),
    /// The address is not supported; a socket per port may be.
    Unavailable,
    /// The same, for a reason that the operator has to know.
    Unserved(io::Error),
}

fn family(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

impl SharedPorts {
    /// Opens the sockets and loads the program, with room for ports of `config.media_addresses` addresses.
    ///
    /// # Errors
    /// The kernel lacks a feature, or permissions are missing (CAP_BPF and CAP_NET_ADMIN for the program, CAP_NET_RAW
    /// for sending).
    pub(crate) fn start(config: &DriverConfig) -> io::Result<SharedPorts> {
        let room = u32::from(config.media_addresses).clamp(1, MOST_ADDRESSES);
        // Checked first: without raw sockets the other steps are useless.
        socket::raw(IpAddr::V4(Ipv4Addr::LOCALHOST), config)
            .map_err(|error| io::Error::other(format!("a raw socket is refused: {error}")))?;
        let v4 = socket::steered(Ipv4Addr::LOCALHOST.into(), config)?;
        let sink = socket::unread_socket(Ipv4Addr::LOCALHOST.into())?;
        // A machine without IPv6 has no IPv6 ports.
        let v6 = socket::steered(Ipv6Addr::LOCALHOST.into(), config).ok();
        let sink6 = socket::unread_socket(Ipv6Addr::LOCALHOST.into()).ok();
        let sockets = [Some(v4.as_fd()), v6.as_ref().map(|fd| fd.as_fd())];
        let steering = Steering::start(room, sockets, [Some(sink), sink6])?;
        Ok(SharedPorts {
            steering,
            sockets: [Some(Arc::new(v4)), v6.map(Arc::new)],
            addresses: Vec::new(),
            drain_counts: [1; 2],
        })
    }

    /// The receiving sockets, IPv4 and IPv6.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (u32, &Arc<OwnedFd>)> {
        (0..)
            .zip(&self.sockets)
            .filter_map(|(number, fd)| Some((number, fd.as_ref()?)))
    }

    /// A receiving socket.
    pub(crate) fn socket(&self, number: u32) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.get(number as usize)?.as_ref()?.as_fd())
    }

    /// The sockets that receive the excess of floods.
    pub(crate) fn sinks(&self) -> &[OwnedFd] {
        self.steering.sinks()
    }

    /// Opens a port for the plane's socket `index`; returns the number of its address, and the address with its port,
    /// which the kernel chooses for port 0.
    pub(crate) fn open(
        &mut self,
        local: SocketAddr,
        index: u32,
        config: &DriverConfig,
    ) -> Result<(u8, SocketAddr), OpenPortError> {
        if local.ip().is_unspecified() {
            return Err(OpenPortError::Unavailable);
        }
        let number = self
            .address(local.ip(), config)
            .map_err(OpenPortError::Unserved)?
            .ok_or(OpenPortError::Unavailable)?;
        if local.port() != 0 && !self.is_free(number, local.port()) {
            return Err(OpenPortError::InUse(io::ErrorKind::AddrInUse.into()));
        }
        // Bound before the program steers the port: otherwise datagrams of another program that owns the port would
        // be taken from it.
        let bound = socket::reserve_port(local, config.waits_for_ports);
        let bound = bound.map_err(OpenPortError::InUse)?;
        let local = socket::local_address(bound.as_fd()).map_err(OpenPortError::InUse)?;
        let drain_count = self.drain_counts[family(local.ip())];
        let Some(address) = self.addresses.get_mut(usize::from(number)) else {
            return Err(OpenPortError::Unavailable);
        };
        let port = &mut address.ports[usize::from(local.port())];
        let table_index = address.first + u32::from(local.port());
        self.steering
            .open(table_index)
            .map_err(OpenPortError::Unserved)?;
        port.socket = index;
        port.bound = Some(bound);
        if port.drained_at_close != drain_count {
            port.drained_at_close = 0;
        }
        Ok((number, local))
    }

    fn is_free(&self, number: u8, port: u16) -> bool {
        let address = self.addresses.get(usize::from(number));
        address
            .and_then(|address| address.ports.get(usize::from(port)))
            .is_some_and(|port| port.socket == NONE)
    }

    /// The number of an address; it is added at its first use. `None`: the machine has no such address family.
    fn address(&mut self, ip: IpAddr, config: &DriverConfig) -> io::Result<Option<u8>> {
        if let Some(existing) = self.addresses.iter().position(|address| address.ip == ip) {
            return Ok(u8::try_from(existing).ok());
        }
        if self.sockets[family(ip)].is_none() {
            return Ok(None);
        }
        let (raw, hops) = socket::raw(ip, config)?;
        let first = self.steering.add(ip)?;
        let unused = || SharedPort {
            socket: NONE,
            bound: None,
            drained_at_close: 0,
        };
        self.addresses.push(SharedAddress {
            ip,
            raw,
            marks: IpMarks {
                class: config.media_dscp << 2,
                hops,
            },
            first,
            ports: std::iter::repeat_with(unused).take(PORTS).collect(),
        });
        Ok(u8::try_from(self.addresses.len() - 1).ok())
    }

    /// Closes a port; returns the number of datagrams that flood protection diverted from it.
    pub(crate) fn close(&mut self, number: u8, port: u16) -> u32 {
        let Some(address) = self.addresses.get_mut(usize::from(number)) else {
            return 0;
        };
        let entry = &mut address.ports[usize::from(port)];
        entry.socket = NONE;
        entry.drained_at_close = self.drain_counts[family(address.ip)];
        // If the table cannot be written, the port stays open in the kernel; its datagrams then have no socket here
        // and are dropped.
        let table_index = address.first + u32::from(port);
        let bound = entry.bound.take();
        let flooded = self.steering.close(table_index).unwrap_or_default();
        // Unbound after the program has released the port, so that the next owner gets all its datagrams.
        drop(bound);
        flooded
    }

    /// The plane's socket for a received datagram; `None` if its port is closed, or if the datagram may have been
    /// sent to an earlier owner of the port.
    pub(crate) fn find(&self, local: SocketAddr) -> Option<u32> {
        let address = self
            .addresses
            .iter()
            .find(|address| address.ip == local.ip())?;
        let port = &address.ports[usize::from(local.port())];
        let stale = port.drained_at_close == self.drain_counts[family(local.ip())];
        (port.socket != NONE && !stale).then_some(port.socket)
    }

    /// The socket that is bound to an open port.
    pub(crate) fn bound(&self, local: SocketAddr) -> Option<BorrowedFd<'_>> {
        let mut addresses = self.addresses.iter();
        let address = addresses.find(|address| address.ip == local.ip())?;
        let port = &address.ports[usize::from(local.port())];
        Some(port.bound.as_ref()?.as_fd())
    }

    /// Records that a receiving socket is drained: datagrams received later were sent to the present owners of the
    /// ports.
    pub(crate) fn mark_drained(&mut self, number: u32) {
        if let Some(count) = self.drain_counts.get_mut(number as usize) {
            // 0 is reserved: it means "before all drains".
            *count = count.wrapping_add(1).max(1);
        }
    }

    /// The raw socket of an address, and the marks of its packets.
    pub(crate) fn sender(&self, number: u8) -> Option<(BorrowedFd<'_>, IpMarks)> {
        let address = self.addresses.get(usize::from(number))?;
        Some((address.raw.as_fd(), address.marks))
    }
}
