//! TUN devices (Linux, networking/tuntap): IP packets that the host routes to an interface of this program, and packets
//! from it. Packets have no header before that of IP.

use crate::packet::{InterfaceInfo, named_request};
use crate::relay::netlink::Netlink;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

/// Packets that the device keeps for this program: more than a turn of a border sends, which fills the device and reads
/// it on one thread. The kernel's default is 500.
const QUEUE: libc::c_int = 4_096;

/// A TUN device; the kernel removes it when this value is dropped.
#[derive(Debug)]
pub struct TunDevice {
    file: File,
}

impl TunDevice {
    /// Creates a TUN device of this name in the network namespace of the calling thread, down and without an address,
    /// or attaches to an existing persistent one, which needs no right if it belongs to this user.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), no TUN in the kernel (`/dev/net/tun`), a name of more than 15 bytes, or one that
    /// is in use.
    pub fn create(name: &str) -> io::Result<TunDevice> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut request = named_request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request is initialised, outlives the call, and holds the flags that TUNSETIFF reads.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        match done {
            0 => Ok(TunDevice { file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The device that another process has created, by its open file.
    pub fn from_descriptor(descriptor: OwnedFd) -> TunDevice {
        TunDevice {
            file: File::from(descriptor),
        }
    }

    /// Gives the device an address.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or there is no device of this name.
    pub fn add_address(name: &str, address: IpAddr) -> io::Result<()> {
        let index = InterfaceInfo::of(name)?.index;
        Netlink::routes()?.add_address(index, address)
    }

    /// Sets the MTU of the device and sets it up, unless it is so already. Its queue is made longer, where that is
    /// permitted.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or the kernel refuses the MTU.
    pub fn set_up(name: &str, mtu: usize) -> io::Result<()> {
        let info = InterfaceInfo::of(name)?;
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
        let control = |what: libc::c_ulong, request: &mut libc::ifreq| {
            // SAFETY: the request is initialised and outlives the call; its member is that of the operation.
            match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, request) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let mut request = named_request(name)?;
        // The kernel reads the length in the place of the MTU.
        request.ifr_ifru.ifru_mtu = QUEUE;
        // Without the right the device keeps the length that its owner has given it.
        let _ = control(libc::SIOCSIFTXQLEN as _, &mut request);
        if info.mtu == mtu && info.is_up {
            return Ok(());
        }
        let mut request = named_request(name)?;
        request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
        control(libc::SIOCSIFMTU as _, &mut request)?;
        let mut request = named_request(name)?;
        control(libc::SIOCGIFFLAGS as _, &mut request)?;
        // SAFETY: the kernel has filled the flags.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        control(libc::SIOCSIFFLAGS as _, &mut request)
    }

    /// Adds a route to a network, its first address and the length of its prefix, through the device. `source` is the
    /// address of this host's own packets on it.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), there is such a route, or the source is not an address of this host.
    pub fn add_route(name: &str, network: (IpAddr, u8), source: Option<IpAddr>) -> io::Result<()> {
        let index = InterfaceInfo::of(name)?.index;
        Netlink::routes()?.add_route(index, network, source)
    }

    /// Whether packets from a local address to another host leave through the interface.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses the query.
    pub fn is_route(name: &str, own: IpAddr, to: IpAddr) -> io::Result<bool> {
        let index = InterfaceInfo::of(name)?.index;
        let route = Netlink::routes()?.route(own, to)?;
        Ok(route.is_some_and(|route| route.interface == index))
    }

    /// Reads the next packet that the host has sent to the device, and returns its length; `None` if none waits.
    ///
    /// # Errors
    /// The device is gone.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(packet) {
            Ok(length) => Ok(Some(length)),
            Err(error) if would_block(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`TunDevice::receive`]; waits for a packet, at most as long as `wait`.
    ///
    /// # Errors
    /// The device is gone.
    pub fn receive_within(&self, packet: &mut [u8], wait: Duration) -> io::Result<Option<usize>> {
        if let Some(length) = self.receive(packet)? {
            return Ok(Some(length));
        }
        let wait = Timespec::try_from(wait).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut waiting = [PollFd::new(&self.file, PollFlags::IN)];
        match poll(&mut waiting, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => self.receive(packet),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the host a packet as if it had arrived at the device.
    ///
    /// # Errors
    /// The device is down, or this is no IP packet.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write_all(packet)
    }
}

fn would_block(error: &io::Error) -> bool {
    // A device that is down has nothing to read.
    let down = Errno::BADFD.raw_os_error();
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    ) || error.raw_os_error() == Some(down)
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
