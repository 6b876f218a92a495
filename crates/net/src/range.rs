//! One socket for all media ports of a thread, in place of one for each: a BPF program leads the datagrams of open ports into
//! it ([`crate::steer`]), their original destination tells them apart, and a raw socket for each address sends from any port.
//! To a peer, a port that is open or closed is the same either way.
//!
//! An open port is bound as well, by a socket that receives nothing and sends only what is too large for the raw socket: the
//! program overrules the kernel's own lookup, so that another program with the port would be deaf. While it is bound, no other
//! program can have it, and the kernel does not lend it.

use crate::config::DriverConfig;
use crate::raw::Marks;
use crate::socket;
use crate::steer::Steering;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

const PORTS: usize = 1 << 16;
const NONE: u32 = u32::MAX;
/// Addresses in the table of the program at most.
const MOST_ADDRESSES: u32 = 64;

/// A port of an address.
struct Port {
    /// Index of the plane's socket that has it.
    socket: u32,
    /// Keeps the port from other programs while it is open.
    bound: Option<OwnedFd>,
    /// How often the socket had been seen empty when the port was closed, or opened anew soon after that.
    closed: u32,
}

struct Address {
    ip: IpAddr,
    /// Sends from all ports of the address.
    raw: OwnedFd,
    marks: Marks,
    /// Place of port 0 in the program's table.
    first: u32,
    ports: Box<[Port]>,
}

/// The sockets.
pub(crate) struct Range {
    steering: Steering,
    sockets: [Option<Arc<OwnedFd>>; 2],
    addresses: Vec<Address>,
    /// How often each socket was seen empty.
    emptied: [u32; 2],
}

/// Why a port could not be had in the range.
pub(crate) enum Unopened {
    /// Somebody else has it.
    Taken(io::Error),
    /// The address cannot be had this way; a socket of its own may do.
    NotHere,
}

fn family(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

impl Range {
    /// The sockets and the program, with room for ports of `config.media_addresses` addresses.
    ///
    /// # Errors
    /// The kernel cannot do it, or the rights for it are missing (CAP_BPF and CAP_NET_ADMIN for the program, CAP_NET_RAW
    /// for sending).
    pub(crate) fn start(config: &DriverConfig) -> io::Result<Range> {
        let room = u32::from(config.media_addresses).clamp(1, MOST_ADDRESSES);
        // Where raw sockets are refused nothing else need be tried.
        socket::raw(IpAddr::V4(Ipv4Addr::LOCALHOST), config)
            .map_err(|error| io::Error::other(format!("a raw socket is refused: {error}")))?;
        let v4 = socket::steered(Ipv4Addr::LOCALHOST.into(), config)?;
        let sink = socket::sink(Ipv4Addr::LOCALHOST.into())?;
        // A machine without IPv6 has no ports of it either.
        let v6 = socket::steered(Ipv6Addr::LOCALHOST.into(), config).ok();
        let sink6 = socket::sink(Ipv6Addr::LOCALHOST.into()).ok();
        let sockets = [Some(v4.as_fd()), v6.as_ref().map(|fd| fd.as_fd())];
        let steering = Steering::start(room, sockets, [Some(sink), sink6])?;
        Ok(Range {
            steering,
            sockets: [Some(Arc::new(v4)), v6.map(Arc::new)],
            addresses: Vec::new(),
            emptied: [1; 2],
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

    /// The sockets in which floods end.
    pub(crate) fn sinks(&self) -> &[OwnedFd] {
        self.steering.sinks()
    }

    /// Opens a port for the plane's socket `index`; gives the number of its address.
    pub(crate) fn open(
        &mut self,
        local: SocketAddr,
        index: u32,
        config: &DriverConfig,
    ) -> Result<u8, Unopened> {
        if local.port() == 0 || local.ip().is_unspecified() {
            return Err(Unopened::NotHere);
        }
        let number = self.address(local.ip(), config).ok_or(Unopened::NotHere)?;
        let known = self.addresses.get(usize::from(number));
        let port = known.and_then(|address| address.ports.get(usize::from(local.port())));
        if port.is_none_or(|port| port.socket != NONE) {
            return Err(Unopened::Taken(io::ErrorKind::AddrInUse.into()));
        }
        // Before the program steers the port: datagrams of another program that has it would come to us from then on.
        let bound = socket::hold(local).map_err(Unopened::Taken)?;
        let emptied = self.emptied[family(local.ip())];
        let Some(address) = self.addresses.get_mut(usize::from(number)) else {
            return Err(Unopened::NotHere);
        };
        let port = &mut address.ports[usize::from(local.port())];
        let place = address.first + u32::from(local.port());
        self.steering.open(place).map_err(|_| Unopened::NotHere)?;
        port.socket = index;
        port.bound = Some(bound);
        if port.closed != emptied {
            port.closed = 0;
        }
        Ok(number)
    }

    /// The number of an address, which is taken in when it is first asked for.
    fn address(&mut self, ip: IpAddr, config: &DriverConfig) -> Option<u8> {
        if let Some(known) = self.addresses.iter().position(|address| address.ip == ip) {
            return u8::try_from(known).ok();
        }
        self.sockets[family(ip)].as_ref()?;
        let (raw, hops) = socket::raw(ip, config).ok()?;
        let first = self.steering.add(ip).ok()?;
        let unused = || Port {
            socket: NONE,
            bound: None,
            closed: 0,
        };
        self.addresses.push(Address {
            ip,
            raw,
            marks: Marks {
                class: config.media_dscp << 2,
                hops,
            },
            first,
            ports: std::iter::repeat_with(unused).take(PORTS).collect(),
        });
        u8::try_from(self.addresses.len() - 1).ok()
    }

    /// Closes a port; gives how many datagrams were kept away from it because they were too many.
    pub(crate) fn close(&mut self, number: u8, port: u16) -> u32 {
        let Some(address) = self.addresses.get_mut(usize::from(number)) else {
            return 0;
        };
        let entry = &mut address.ports[usize::from(port)];
        entry.socket = NONE;
        entry.closed = self.emptied[family(address.ip)];
        // Where the table cannot be written the port stays open to the kernel, and what comes there has no socket here.
        let place = address.first + u32::from(port);
        let bound = entry.bound.take();
        let flooded = self.steering.close(place).unwrap_or_default();
        // After the program has let go of the port: its next holder gets all that is sent there.
        drop(bound);
        flooded
    }

    /// The plane's socket to which a datagram came; none where its port is closed, or where it may have come for an earlier
    /// holder of the port.
    pub(crate) fn find(&self, local: SocketAddr) -> Option<u32> {
        let address = self
            .addresses
            .iter()
            .find(|address| address.ip == local.ip())?;
        let port = &address.ports[usize::from(local.port())];
        let stale = port.closed == self.emptied[family(local.ip())];
        (port.socket != NONE && !stale).then_some(port.socket)
    }

    /// The socket that is bound to an open port.
    pub(crate) fn bound(&self, local: SocketAddr) -> Option<BorrowedFd<'_>> {
        let mut addresses = self.addresses.iter();
        let address = addresses.find(|address| address.ip == local.ip())?;
        let port = &address.ports[usize::from(local.port())];
        Some(port.bound.as_ref()?.as_fd())
    }

    /// Nothing waits in a receiving socket any more: what comes from now on came after all that has happened so far.
    pub(crate) fn empty(&mut self, number: u32) {
        if let Some(count) = self.emptied.get_mut(number as usize) {
            // 0 is no count: it stands for "long ago".
            *count = count.wrapping_add(1).max(1);
        }
    }

    /// What sends from an address, and its marks.
    pub(crate) fn sender(&self, number: u8) -> Option<(BorrowedFd<'_>, Marks)> {
        let address = self.addresses.get(usize::from(number))?;
        Some((address.raw.as_fd(), address.marks))
    }
}
