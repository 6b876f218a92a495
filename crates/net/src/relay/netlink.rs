//! Queries of addresses, interfaces, routes and neighbours (rtnetlink), and of the XDP features of interfaces
//! (generic netlink, "netdev").

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use zeroize::{Zeroize as _, Zeroizing};

const HEADER: usize = 16;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
const REQUEST: u16 = 1;
pub(crate) const ACKNOWLEDGE: u16 = 4;
pub(crate) const DUMP: u16 = 0x300;

// linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/neighbour.h
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
/// IFA_F_NODAD: no other host can have the address.
const WITHOUT_DETECTION: u8 = 2;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const LINK_ADDRESS: u16 = 1;
const LINK_MTU: u16 = 4;
const LINK_RECEIVE_QUEUES: u16 = 32;
const ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_SOURCE: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_PREFERRED_SOURCE: u16 = 7;
/// The main table, a route by an administrator's program, to a host on the link.
const MAIN_TABLE: u8 = 254;
const BY_ADMINISTRATOR: u8 = 4;
const ON_LINK: u8 = 253;
/// NLM_F_CREATE and NLM_F_EXCL: an existing route is not replaced.
const CREATE: u16 = 0x600;
const NEIGHBOUR_DESTINATION: u16 = 1;
const NEIGHBOUR_ADDRESS: u16 = 2;
const UNICAST: u8 = 1;
const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;
const ETHERNET: u16 = 1;
const UP: u32 = 1;
const USE: u8 = 1;
const GROUPS: u32 = 0x1 | 0x40 | 0x400; // links, routes of IPv4 and of IPv6

/// Neighbour states with a valid address: permanent, without ARP, reachable, stale, delayed, probed.
const VALID_STATES: u16 = 0x80 | 0x40 | 0x02 | 0x04 | 0x08 | 0x10;
/// Neighbour states that the kernel revalidates at the next use.
const STALE_STATES: u16 = 0x04;

// linux/genetlink.h, linux/netdev.h
const CONTROL_FAMILY: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INTERFACE: u16 = 1;
const DEVICE_FEATURES: u16 = 3;
/// The interface transmits frames that an XDP program of another interface redirects to it.
const SENDS_FRAMES: u64 = 4;

/// An Ethernet interface that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EthernetInterface {
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    /// Largest number of receive queues; 0 if the kernel does not report it.
    pub(crate) queues: u32,
}

/// The next hop of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface: u32,
    pub(crate) next: IpAddr,
}

/// A netlink socket in the network namespace of the thread that opened it.
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    response: Vec<u8>,
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_ne_bytes)
}

pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u16::from_ne_bytes)
}

/// The attributes of a message, after its header.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0));
        let value = bytes.get(4..length)?;
        let kind = half(bytes, 2) & 0x3fff;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn octets(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.try_into().ok()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// The family of an address, and its length in bits.
fn family(of: IpAddr) -> (u8, u8) {
    match of {
        IpAddr::V4(_) => (INET, 32),
        IpAddr::V6(_) => (INET6, 128),
    }
}

fn push_address(message: &mut Vec<u8>, kind: u16, value: IpAddr) {
    match value {
        IpAddr::V4(value) => push_attribute(message, kind, &value.octets()),
        IpAddr::V6(value) => push_attribute(message, kind, &value.octets()),
    }
}

impl Netlink {
    /// A socket of this protocol of netlink.
    pub(crate) fn open(protocol: i32) -> io::Result<Netlink> {
        let protocol = core::num::NonZeroU32::new(protocol as u32).map(net::Protocol::from_raw);
        let fd = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        let second = Some(std::time::Duration::from_secs(1));
        net::sockopt::set_socket_timeout(&fd, net::sockopt::Timeout::Recv, second)?;
        Ok(Netlink {
            fd,
            sequence: 0,
            response: vec![0; 32 << 10],
        })
    }

    /// A socket for addresses, interfaces, routes and neighbours.
    pub(crate) fn routes() -> io::Result<Netlink> {
        // NETLINK_ROUTE is 0, which selects the default protocol of the family: the same one.
        Netlink::open(libc::NETLINK_ROUTE)
    }

    /// Sends a request and passes each message of the response to `each`: type and body.
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence += 1;
        // Requests to XFRM have keys.
        let mut message = Zeroizing::new(Vec::with_capacity(HEADER + body.len()));
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&0u32.to_ne_bytes());
        message.extend_from_slice(body);
        net::send(&self.fd, &message, SendFlags::empty())?;
        loop {
            let (_, length) = net::recv(&self.fd, &mut self.response[..], RecvFlags::empty())?;
            let mut rest = self.response.get(..length).unwrap_or_default();
            while rest.len() >= HEADER {
                let length = word(rest, 0) as usize;
                let Some(part) = rest.get(HEADER..length) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let (kind, sequence) = (half(rest, 4), word(rest, 8));
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                // A late response to an earlier request.
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    MESSAGE_DONE => return Ok(()),
                    MESSAGE_ERROR => {
                        let code = word(part, 0) as i32;
                        return match code {
                            0 => Ok(()),
                            _ => Err(io::Error::from_raw_os_error(-code)),
                        };
                    }
                    _ => each(kind, part),
                }
            }
        }
    }

    /// Sends a batch of messages, complete with their headers, of which the one with this sequence number requests an
    /// acknowledgement, and waits for it.
    ///
    /// # Errors
    /// The first one of any message.
    pub(crate) fn batch(&mut self, messages: &[u8], acknowledged: u32) -> io::Result<()> {
        net::send(&self.fd, messages, SendFlags::empty())?;
        loop {
            let (_, length) = net::recv(&self.fd, &mut self.response[..], RecvFlags::empty())?;
            let mut rest = self.response.get(..length).unwrap_or_default();
            while rest.len() >= HEADER {
                let length = word(rest, 0) as usize;
                let Some(part) = rest.get(HEADER..length) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let (kind, sequence) = (half(rest, 4), word(rest, 8));
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                match (kind, word(part, 0) as i32) {
                    (MESSAGE_ERROR, 0) if sequence == acknowledged => return Ok(()),
                    (MESSAGE_ERROR, 0) => {}
                    (MESSAGE_ERROR, code) => return Err(io::Error::from_raw_os_error(-code)),
                    _ => {}
                }
            }
        }
    }

    /// Overwrites the last response, which may have had keys.
    pub(crate) fn wipe(&mut self) {
        self.response.as_mut_slice().zeroize();
    }

    /// The interface of a local address.
    pub(crate) fn interface_of(&mut self, own: IpAddr) -> io::Result<Option<u32>> {
        let mut found = None;
        self.request(
            GET_ADDRESS,
            DUMP,
            &[family(own).0, 0, 0, 0, 0, 0, 0, 0],
            |_, part| {
                let rest = part.get(8..).unwrap_or_default();
                for (kind, value) in attributes(rest) {
                    // With IPv4 the first attribute may hold the address of the peer; IPv6 often has only that one.
                    let local = kind == ADDRESS_LOCAL || own.is_ipv6() && kind == ADDRESS;
                    if local && address(value) == Some(own) {
                        found = Some(word(part, 4));
                    }
                }
            },
        )?;
        Ok(found)
    }

    /// An interface; `None` if it is not Ethernet, or down.
    pub(crate) fn interface(&mut self, number: u32) -> io::Result<Option<EthernetInterface>> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&number.to_ne_bytes());
        let mut found = None;
        self.request(GET_LINK, ACKNOWLEDGE, &body, |_, part| {
            let (mut mac, mut mtu, mut queues) = (None, 0, 0);
            for (kind, value) in attributes(part.get(16..).unwrap_or_default()) {
                match kind {
                    LINK_ADDRESS => mac = octets(value),
                    LINK_MTU => mtu = word(value, 0),
                    LINK_RECEIVE_QUEUES => queues = word(value, 0),
                    _ => {}
                }
            }
            if half(part, 2) == ETHERNET && word(part, 8) & UP != 0 {
                found = mac.map(|mac| EthernetInterface { mac, mtu, queues });
            }
        })?;
        Ok(found)
    }

    /// The route from a local address to another host; `None` if there is none, or the destination is local.
    pub(crate) fn route(&mut self, own: IpAddr, to: IpAddr) -> io::Result<Option<Route>> {
        let mut body = vec![0; 12];
        let (family, bits) = family(to);
        body[..3].copy_from_slice(&[family, bits, bits]);
        push_address(&mut body, ROUTE_DESTINATION, to);
        push_address(&mut body, ROUTE_SOURCE, own);
        let mut found = None;
        self.request(GET_ROUTE, ACKNOWLEDGE, &body, |_, part| {
            let (mut interface, mut next) = (0, to);
            for (kind, value) in attributes(part.get(12..).unwrap_or_default()) {
                match kind {
                    ROUTE_INTERFACE => interface = word(value, 0),
                    ROUTE_GATEWAY => next = address(value).unwrap_or(to),
                    _ => {}
                }
            }
            if part.get(7) == Some(&UNICAST) && interface != 0 {
                found = Some(Route { interface, next });
            }
        })?;
        Ok(found)
    }

    /// Adds a route to a network through an interface; `source` is the address of packets of this host on it.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or there is such a route.
    pub(crate) fn add_route(
        &mut self,
        interface: u32,
        (network, length): (IpAddr, u8),
        source: Option<IpAddr>,
    ) -> io::Result<()> {
        let (family, _) = family(network);
        let mut body = vec![family, length, 0, 0, MAIN_TABLE, BY_ADMINISTRATOR, ON_LINK];
        body.extend_from_slice(&[UNICAST, 0, 0, 0, 0]);
        push_address(&mut body, ROUTE_DESTINATION, network);
        push_attribute(&mut body, ROUTE_INTERFACE, &interface.to_ne_bytes());
        if let Some(source) = source {
            push_address(&mut body, ROUTE_PREFERRED_SOURCE, source);
        }
        self.request(NEW_ROUTE, ACKNOWLEDGE | CREATE, &body, |_, _| {})
    }

    /// Gives an interface an address, as that of a single host.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or it has the address.
    pub(crate) fn add_address(&mut self, interface: u32, own: IpAddr) -> io::Result<()> {
        let (family, bits) = family(own);
        let mut body = vec![family, bits, WITHOUT_DETECTION, 0];
        body.extend_from_slice(&interface.to_ne_bytes());
        push_address(&mut body, ADDRESS_LOCAL, own);
        push_address(&mut body, ADDRESS, own);
        self.request(NEW_ADDRESS, ACKNOWLEDGE | CREATE, &body, |_, _| {})
    }

    /// The link-layer address of a neighbour; `None` while it is unknown. The entry is marked as used, so that the
    /// kernel revalidates it in time.
    pub(crate) fn neighbour(&mut self, route: Route) -> io::Result<Option<[u8; 6]>> {
        let body = |state: u16, flags: u8| {
            let mut body = vec![family(route.next).0, 0, 0, 0];
            body.extend_from_slice(&route.interface.to_ne_bytes());
            body.extend_from_slice(&state.to_ne_bytes());
            body.extend_from_slice(&[flags, 0]);
            push_address(&mut body, NEIGHBOUR_DESTINATION, route.next);
            body
        };
        let (mut found, mut state) = (None, 0);
        let result = self.request(GET_NEIGHBOUR, ACKNOWLEDGE, &body(0, 0), |_, part| {
            state = half(part, 8);
            for (kind, value) in attributes(part.get(12..).unwrap_or_default()) {
                if kind == NEIGHBOUR_ADDRESS && state & VALID_STATES != 0 {
                    found = octets(value);
                }
            }
        });
        match result {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
        if found.is_none() || state & STALE_STATES != 0 {
            let uses = body(0, USE);
            // 0x500: NLM_F_CREATE and NLM_F_REPLACE.
            self.request(NEW_NEIGHBOUR, ACKNOWLEDGE | 0x500, &uses, |_, _| {})?;
        }
        Ok(found)
    }
}

/// Queries the XDP features of interfaces.
pub(crate) struct Devices {
    netlink: Netlink,
    family: u16,
}

impl Devices {
    /// # Errors
    /// The kernel (before 6.3) does not report them.
    pub(crate) fn open() -> io::Result<Devices> {
        let mut netlink = Netlink::open(libc::NETLINK_GENERIC)?;
        let mut body = vec![GET_FAMILY, 1, 0, 0];
        push_attribute(&mut body, FAMILY_NAME, b"netdev\0");
        let mut family = 0;
        netlink.request(CONTROL_FAMILY, ACKNOWLEDGE, &body, |_, part| {
            for (kind, value) in attributes(part.get(4..).unwrap_or_default()) {
                if kind == FAMILY_NUMBER {
                    family = half(value, 0);
                }
            }
        })?;
        match family {
            0 => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(Devices { netlink, family }),
        }
    }

    /// Whether the interface transmits redirected frames.
    pub(crate) fn sends_frames(&mut self, interface: u32) -> io::Result<bool> {
        let mut body = vec![GET_DEVICE, 1, 0, 0];
        push_attribute(&mut body, DEVICE_INTERFACE, &interface.to_ne_bytes());
        let mut features = 0;
        self.netlink
            .request(self.family, ACKNOWLEDGE, &body, |_, part| {
                for (kind, value) in attributes(part.get(4..).unwrap_or_default()) {
                    if kind == DEVICE_FEATURES {
                        let value = value.try_into().unwrap_or_default();
                        features = u64::from_ne_bytes(value);
                    }
                }
            })?;
        Ok(features & SENDS_FRAMES != 0)
    }
}

/// Receives notifications about changed interfaces and routes.
pub(crate) struct Changes(OwnedFd);

impl Changes {
    pub(crate) fn open() -> io::Result<Changes> {
        let fd = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // SAFETY: all zero is a valid address, of which the relevant fields are set.
        let mut own: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        own.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        own.nl_groups = GROUPS;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: an address of the stated length, which outlives the call.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const own).cast(), length) };
        match done {
            0 => Ok(Changes(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether a notification arrived since the last call.
    pub(crate) fn take(&self) -> bool {
        let (mut any, mut bytes) = (false, [0; 4_096]);
        loop {
            match net::recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}
