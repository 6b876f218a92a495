//! Ends of an emulated link: a network interface, a TUN device, or a UDP port.

use crate::error::LabError;
use engine::Time;
use net::{Clock, InterfaceInfo, PacketSocket, Readiness, TimedUdpSocket, TunDevice};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
const VLAN_TAG: usize = 4;
/// Octets of the IPv4 and UDP headers, which a datagram at a port does not have any more.
const UDP_IPV4: usize = 28;
const UDP_IPV6: usize = 48;
/// Longest IP packet, bytes.
const MAX_PACKET: usize = 65_535;
/// Datagrams and packets that are read from one end before the other is looked at.
const BATCH: usize = 64;

/// An end as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndName {
    /// `NAME`: a network interface.
    Interface(String),
    /// `tun:NAME`: a TUN device, which is created.
    Tun(String),
    /// `udp:LOCAL=PEER`: datagrams that arrive at LOCAL leave the other end; those from the other end go to PEER.
    Udp(SocketAddr, SocketAddr),
}

impl EndName {
    /// Reads a name.
    ///
    /// # Errors
    /// Neither an interface's name nor one of the other forms.
    pub fn parse(text: &str) -> Result<EndName, String> {
        let bad = || {
            format!(
                "{text:?}: expected an interface, tun:NAME, or udp:LOCAL=PEER with addresses and ports"
            )
        };
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() < 16
                && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
        };
        if let Some(ports) = text.strip_prefix("udp:") {
            let (local, peer) = ports.split_once('=').ok_or_else(bad)?;
            let (local, peer): (SocketAddr, SocketAddr) = (
                local.parse().map_err(|_| bad())?,
                peer.parse().map_err(|_| bad())?,
            );
            // A port that the system chooses is known to no sender, and nothing can be sent to port 0.
            let has_ports = local.port() != 0 && peer.port() != 0;
            return match local.is_ipv6() == peer.is_ipv6() && has_ports {
                true => Ok(EndName::Udp(local, peer)),
                false => Err(bad()),
            };
        }
        if let Some(name) = text.strip_prefix("tun:") {
            return match is_name(name) {
                true => Ok(EndName::Tun(name.to_owned())),
                false => Err(bad()),
            };
        }
        match is_name(text) {
            true => Ok(EndName::Interface(text.to_owned())),
            false => Err(bad()),
        }
    }
}

/// The form of the packets of an end; both ends of a link have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketForm {
    /// Ethernet frames.
    Ethernet,
    /// IP packets.
    Ip,
    /// Payloads of UDP.
    Datagram,
}

/// An open end.
#[derive(Debug)]
pub enum LinkEnd {
    /// A network interface.
    Interface(Box<PacketSocket>),
    /// A TUN device.
    Tun(Box<TunEnd>),
    /// A UDP port and its peer.
    Udp(TimedUdpSocket, SocketAddr),
}

/// A TUN device as an end.
#[derive(Debug)]
pub struct TunEnd {
    device: TunDevice,
    name: String,
    room: Box<[u8]>,
    /// It has taken a packet.
    was_up: bool,
    /// Packets that the device had dropped when the counters were set to zero.
    forgotten: u64,
}

impl TunEnd {
    /// Packets that the device has dropped because its queue was full: nothing read them in time.
    fn all_drops(&self) -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        dropped_of_device(&text, &self.name).unwrap_or(0)
    }
}

/// The packets that a device dropped instead of sending them, from the text of `/proc/net/dev` (proc(5)).
fn dropped_of_device(text: &str, name: &str) -> Option<u64> {
    /// Place behind the name: eight counters of reception, then bytes, packets, errors and drops of sending.
    const SEND_DROPS: usize = 8 + 3;
    let mut devices = text.lines().filter_map(|line| line.split_once(':'));
    let (_, counters) = devices.find(|(device, _)| device.trim() == name)?;
    counters.split_whitespace().nth(SEND_DROPS)?.parse().ok()
}

fn interface_error(name: &str, error: &std::io::Error) -> LabError {
    let problem = format!("interface {name}: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => LabError::cannot_run(
            problem,
            "run it as root, or with CAP_NET_RAW (TUN devices: CAP_NET_ADMIN)",
        ),
        ErrorKind::NotFound => LabError::cannot_run(
            problem,
            "TUN devices need /dev/net/tun: modprobe tun, or give the container that device",
        ),
        _ => LabError::cannot_run(problem, "`ip link` lists the interfaces of this machine"),
    }
}

impl LinkEnd {
    /// Opens an end.
    ///
    /// # Errors
    /// A right or the interface is missing, or the interface is down.
    pub fn open(name: &EndName) -> Result<LinkEnd, LabError> {
        match name {
            EndName::Interface(name) => {
                let failed = |error: std::io::Error| interface_error(name, &error);
                let mut info = InterfaceInfo::of(name).map_err(failed)?;
                // The kernel reports the carrier of an interface that was just set up after up to a second, later
                // on a busy machine.
                for _ in 0..50 {
                    if info.is_up {
                        break;
                    }
                    if net::stops() > 0 {
                        let text = format!("interrupted while {name} came up");
                        return Err(LabError::Interrupted(text));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                    info = InterfaceInfo::of(name).map_err(failed)?;
                }
                if !info.is_up {
                    return Err(LabError::cannot_run(
                        format!("interface {name} is down or has no carrier"),
                        format!("set it and its peer up: ip link set {name} up"),
                    ));
                }
                let socket = PacketSocket::open(name).map_err(failed)?;
                Ok(LinkEnd::Interface(Box::new(socket)))
            }
            EndName::Tun(name) => {
                let device = TunDevice::create(name);
                let device = device.map_err(|error| interface_error(name, &error))?;
                Ok(LinkEnd::Tun(Box::new(TunEnd {
                    device,
                    name: name.clone(),
                    room: vec![0; MAX_PACKET].into(),
                    was_up: false,
                    forgotten: 0,
                })))
            }
            EndName::Udp(local, peer) => {
                let socket = TimedUdpSocket::bind(*local).map_err(|error| {
                    LabError::cannot_run(
                        format!("udp:{local}: {error}"),
                        "name a free port of this machine",
                    )
                })?;
                Ok(LinkEnd::Udp(socket, *peer))
            }
        }
    }

    /// The form of its packets.
    pub fn form(&self) -> PacketForm {
        match self {
            LinkEnd::Interface(socket) if socket.info().has_ethernet => PacketForm::Ethernet,
            LinkEnd::Interface(_) | LinkEnd::Tun(_) => PacketForm::Ip,
            LinkEnd::Udp(..) => PacketForm::Datagram,
        }
    }

    /// Passes waiting packets, their times of arrival and their lengths as IP packets to `sink`. Returns false if the
    /// end has none left.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(
        &mut self,
        clock: &Clock,
        sink: &mut dyn FnMut(Time, &[u8], usize),
    ) -> std::io::Result<bool> {
        match self {
            LinkEnd::Interface(socket) => {
                let has_ethernet = socket.info().has_ethernet;
                let received = socket.receive(clock, &mut |frame| {
                    let length = match has_ethernet {
                        true => ip_length(frame.bytes),
                        false => frame.bytes.len(),
                    };
                    sink(frame.at, frame.bytes, length);
                })?;
                Ok(received > 0)
            }
            LinkEnd::Tun(tun) => {
                let TunEnd { device, room, .. } = &mut **tun;
                for _ in 0..BATCH {
                    let Some(packet) = device.receive(room)?.and_then(|length| room.get(..length))
                    else {
                        return Ok(false);
                    };
                    // TUN devices have no time stamps.
                    sink(clock.now(), packet, packet.len());
                }
                Ok(true)
            }
            LinkEnd::Udp(socket, peer) => {
                let headers = match peer.is_ipv6() {
                    true => UDP_IPV6,
                    false => UDP_IPV4,
                };
                let mut room = [0; 65_536];
                for _ in 0..BATCH {
                    let Some((length, at)) = socket.receive(clock, &mut room)? else {
                        return Ok(false);
                    };
                    sink(at, room.get(..length).unwrap_or_default(), length + headers);
                }
                Ok(true)
            }
        }
    }

    /// Whether received packets have the time of their arrival, not that of their reading.
    pub fn has_arrival_times(&self) -> bool {
        !matches!(self, LinkEnd::Tun(_))
    }

    /// Checks an end that a wait has found in this state. The error of a socket is that of its next reading. A TUN
    /// device that was removed has nothing to read, and would end each wait at once.
    ///
    /// # Errors
    /// The device was removed.
    pub fn check(&self, ready: Readiness) -> std::io::Result<()> {
        match self {
            LinkEnd::Tun(tun) if ready.failed => Err(std::io::Error::new(
                ErrorKind::NotFound,
                format!("the TUN device {} was removed", tun.name),
            )),
            _ => Ok(()),
        }
    }

    /// Sends packets; `unsent` is called with the place of each one that the kernel does not send.
    pub fn send(&mut self, packets: &[Vec<u8>], unsent: &mut dyn FnMut(usize, Unsent)) {
        match self {
            LinkEnd::Interface(socket) => {
                socket.send_each(packets.iter().map(Vec::as_slice), &mut |place| {
                    unsent(place, Unsent::Refused);
                });
            }
            LinkEnd::Tun(tun) => {
                for (place, packet) in packets.iter().enumerate() {
                    match tun.device.send(packet) {
                        Ok(()) => tun.was_up = true,
                        Err(error) => unsent(place, Unsent::of_tun(tun.was_up, &error)),
                    }
                }
            }
            LinkEnd::Udp(socket, peer) => {
                for (place, packet) in packets.iter().enumerate() {
                    if socket.send_to(packet, *peer).is_err() {
                        unsent(place, Unsent::Refused);
                    }
                }
            }
        }
    }

    /// Sets the counters of [`LinkEnd::losses`] to zero.
    pub fn forget_losses(&mut self) {
        match self {
            LinkEnd::Interface(socket) => socket.reset_counts(),
            LinkEnd::Tun(tun) => tun.forgotten = tun.all_drops(),
            LinkEnd::Udp(socket, _) => socket.reset_drops(),
        }
    }

    /// Packets that the kernel dropped before this program read them, and packets in a form that cannot be reproduced.
    pub fn losses(&mut self) -> EndLosses {
        match self {
            LinkEnd::Interface(socket) => {
                let counts = socket.counts();
                EndLosses {
                    refused: 0,
                    kernel_drops: counts.kernel_drops,
                    unsupported: counts.unsupported,
                }
            }
            LinkEnd::Tun(tun) => EndLosses {
                kernel_drops: tun.all_drops().saturating_sub(tun.forgotten),
                ..EndLosses::default()
            },
            LinkEnd::Udp(socket, _) => EndLosses {
                kernel_drops: socket.kernel_drops(),
                ..EndLosses::default()
            },
        }
    }
}

/// Why the kernel does not send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// It is too long, for example, or the interface has gone down.
    Refused,
    /// The TUN device has not been set up yet, which is done after the link has created it.
    NotYetUp,
}

impl Unsent {
    /// The reason of a TUN device that has taken packets before (`was_up`).
    fn of_tun(was_up: bool, error: &std::io::Error) -> Unsent {
        /// The device is down (EIO).
        const DOWN: i32 = 5;
        match !was_up && error.raw_os_error() == Some(DOWN) {
            true => Unsent::NotYetUp,
            false => Unsent::Refused,
        }
    }
}

/// Packets lost at the ends, not by the settings of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndLosses {
    /// The kernel refused to send them, although they were as they had entered.
    pub refused: u64,
    /// The receive buffer was full: the program was too slow.
    pub kernel_drops: u64,
    /// Large frames whose segments are those of a packet in a tunnel, or not described by the kernel.
    pub unsupported: u64,
}

impl AsFd for LinkEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            LinkEnd::Interface(socket) => socket.as_fd(),
            LinkEnd::Tun(tun) => tun.device.as_fd(),
            LinkEnd::Udp(socket, ..) => socket.as_fd(),
        }
    }
}

/// Length of the packet in an Ethernet frame, VLAN tags left out.
fn ip_length(frame: &[u8]) -> usize {
    let mut header = ETHERNET;
    while matches!(
        frame.get(header - 2..header),
        Some([0x81, 0x00] | [0x88, 0xa8])
    ) {
        header += VLAN_TAG;
    }
    frame.len().saturating_sub(header)
}

/// Changes one bit of a packet, behind the Ethernet header; `draw` is a random number.
pub fn corrupt(form: PacketForm, packet: &mut [u8], draw: u64) {
    let start = match form {
        PacketForm::Ethernet => packet.len() - ip_length(packet),
        PacketForm::Ip | PacketForm::Datagram => 0,
    };
    let bits = (packet.len() - start) as u64 * 8;
    if let Some(bit) = draw.checked_rem(bits) {
        let at = start + (bit / 8) as usize;
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_forms() {
        let name = |text| EndName::parse(text);
        assert_eq!(name("veth0"), Ok(EndName::Interface("veth0".to_owned())));
        assert_eq!(name("tun:hw0"), Ok(EndName::Tun("hw0".to_owned())));
        let udp = name("udp:127.0.0.1:7000=127.0.0.1:5004").unwrap();
        let address = |text: &str| text.parse().unwrap();
        assert_eq!(
            udp,
            EndName::Udp(address("127.0.0.1:7000"), address("127.0.0.1:5004"))
        );
        for bad in [
            "",
            "a/b",
            "an interface",
            "a-name-that-is-too-long",
            "tun:",
            "udp:7000",
            "udp:[::1]:1=127.0.0.1:2",
            "udp:127.0.0.1:0=127.0.0.1:5004",
            "udp:127.0.0.1:7000=127.0.0.1:0",
        ] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn drops_of_a_device_are_read() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  hw0:  0 0 0 0 0 0 0 0 0 0 0 345 0 0 0 0\n";
        assert_eq!(dropped_of_device(text, "lo"), Some(12));
        assert_eq!(dropped_of_device(text, "hw0"), Some(345));
        assert_eq!(dropped_of_device(text, "hw1"), None);
        assert_eq!(dropped_of_device("hw1: 1 2", "hw1"), None);
        assert_eq!(dropped_of_device("", "lo"), None);
    }

    #[test]
    fn packets_before_a_tun_device_is_up_are_no_losses() {
        let error = std::io::Error::from_raw_os_error;
        assert_eq!(Unsent::of_tun(false, &error(5)), Unsent::NotYetUp);
        assert_eq!(Unsent::of_tun(true, &error(5)), Unsent::Refused);
        // EINVAL: no IP packet.
        assert_eq!(Unsent::of_tun(false, &error(22)), Unsent::Refused);
    }

    #[test]
    fn corruption_changes_one_bit_of_the_packet_only() {
        let mut frame = vec![0u8; 64];
        frame[12..18].copy_from_slice(&[0x81, 0, 0, 1, 8, 0]);
        let before = frame.clone();
        for draw in 0..2_000 {
            let mut changed = before.clone();
            corrupt(PacketForm::Ethernet, &mut changed, draw);
            assert_eq!(changed[..18], before[..18]);
            let bits: u32 = changed
                .iter()
                .zip(&before)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(bits, 1);
        }
        corrupt(PacketForm::Datagram, &mut [], 5);
        corrupt(PacketForm::Ethernet, &mut [0; 5], 5);
    }
}
