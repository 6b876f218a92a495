//! The loop that carries packets between the TUN device and the outer socket, and media between tunnels and the
//! forwarder: in batches, in place, without an allocation per packet. It has a thread of its own, or that of media
//! drives it (`direct.rs`). It never waits for another thread: its queues are bounded, and reports that do not fit are
//! dropped.

use super::batch::SealedBatch;
use super::figures::{DirectPackets, GatewayFigures};
use super::kernel::KernelSas;
use super::numbers::ReservedNumbers;
use crate::ike::{IkeRequest, IkeRequests};
use config::GatewaySpec;
use engine::{DropReason, Time};
use net::{Clock, EspSocket, OutgoingEsp, TunDevice, TunnelRoutes, Waker};
use protect::esp::{
    ChangedState, EspGateway, GatewayNotice, GatewayRekey, MAX_HEADROOM, MAX_TAILROOM,
    NegotiatedPair, NotSealed, PacketRoom, TOO_BIG_ROOM, write_too_big,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;
use wire::esp::{NAT_KEEP_ALIVE, NatTraversalDatagram, is_ike_v2};

/// Interval of commands, keep-alives and published figures, and longest wait for a packet.
const TICK: Duration = Duration::from_millis(100);
/// Interval of reported sequence numbers.
const NUMBERS_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest interval of requests for the path MTU after packets that were too long.
const PATH_INTERVAL: Duration = Duration::from_millis(500);
/// Longest inner packet of an Ethernet behind a peer.
const ETHERNET: usize = 1_500;
/// Refused associations that wait for room in the queue to the key exchange.
const MAX_UNUSABLE: usize = 1_024;
/// Packets of a batch from the device.
const BATCH: usize = EspSocket::BATCH;

/// A command to the packet thread.
#[derive(Debug)]
pub(super) enum Command {
    Rekey(Box<GatewayRekey>),
    /// Sequence numbers that are stored.
    Reserve(Vec<ReservedNumbers>),
    /// MTU of the path of a tunnel.
    PathMtu(usize, usize),
    /// A negotiated association, which opens.
    Install(Box<NegotiatedPair>),
    /// A negotiated association seals, for a peer at this address.
    SealWith {
        tunnel: usize,
        spi: u32,
        peer: SocketAddr,
    },
    /// A peer gets no packets at this address.
    RefusePeer(usize, SocketAddr),
    /// The SPIs of a deleted association: of received and of sent packets. It opens no more if the second value is
    /// true.
    Remove([u32; 2], bool),
    /// A message of the key exchange to a peer.
    Send(Vec<u8>, SocketAddr),
    /// The end.
    Stop,
}

/// The way to the packet thread.
#[derive(Clone, Debug)]
pub(super) struct Commands {
    queue: SyncSender<Command>,
    waker: Waker,
}

impl Commands {
    pub(super) fn new(queue: SyncSender<Command>, waker: Waker) -> Commands {
        Commands { queue, waker }
    }

    /// Sends a command; waits while the queue is full. If the packet thread has ended, its result is read at the end.
    pub(super) fn send(&self, command: Command) {
        let _ = self.queue.send(command);
        self.waker.wake();
    }
}

/// A report of the packet thread.
#[derive(Debug)]
pub(super) enum Report {
    Notice(GatewayNotice),
    Numbers(Vec<ChangedState>),
    /// The MTU of the path to this peer is to be asked for: packets to it were too long, or it has the tunnel now.
    AskPath(usize, SocketAddr),
}

/// Longest payload of the outer socket, bytes.
pub(super) fn longest_packet(spec: &GatewaySpec) -> usize {
    spec.mtu.max(ETHERNET) + MAX_HEADROOM + MAX_TAILROOM
}

/// The parts of the thread.
pub(super) struct Parts {
    pub(super) gateway: EspGateway,
    pub(super) tun: TunDevice,
    pub(super) socket: EspSocket,
    pub(super) inbox: Receiver<Command>,
    pub(super) reports: SyncSender<Report>,
    /// Wakes this thread for commands.
    pub(super) waker: Waker,
    /// The key exchange, if there is one.
    pub(super) ike: Option<IkeRequests>,
    /// The associations, if they are in the kernel. `gateway` has none then.
    pub(super) kernel: Option<KernelSas>,
    /// The routes of the device, if media takes the direct path.
    pub(super) routes: Option<TunnelRoutes>,
    pub(super) clock: Clock,
}

pub(super) struct PacketLoop {
    parts: Parts,
    figures: Arc<GatewayFigures>,
    /// The outer bit Don't Fragment is that of the inner header; otherwise it is not set.
    copies_dont_fragment: bool,
    /// MTU of the device, bytes.
    mtu: usize,
    /// Packets from the device.
    from_device: SealedBatch,
    /// Media of the direct path, in the order of its sequence numbers until the next flush.
    media: SealedBatch,
    direct: DirectPackets,
    next_tick: Time,
    next_numbers: Time,
    next_path: Time,
    /// Negotiated associations that were refused, by tunnel and SPI, until the key exchange is told.
    unusable: Vec<(usize, u32)>,
}

/// The end of a run.
pub(super) struct CarryingEnd {
    /// The last states of all associations.
    pub(super) states: Vec<ChangedState>,
    /// The device was gone, or the socket failed.
    pub(super) result: io::Result<()>,
}

impl PacketLoop {
    pub(super) fn new(
        parts: Parts,
        spec: &GatewaySpec,
        figures: Arc<GatewayFigures>,
    ) -> PacketLoop {
        // An odd number of cache lines apart, so that the buffers do not all map to the same cache sets.
        let stride = (longest_packet(spec).div_ceil(64) | 1) * 64;
        let now = parts.clock.now();
        let media_packets = if parts.routes.is_some() { BATCH } else { 0 };
        PacketLoop {
            parts,
            figures,
            copies_dont_fragment: spec.copies_dont_fragment,
            mtu: spec.mtu,
            from_device: SealedBatch::new(BATCH, stride),
            media: SealedBatch::new(media_packets, stride),
            direct: DirectPackets::default(),
            next_tick: now,
            next_numbers: now + NUMBERS_INTERVAL,
            next_path: now,
            unusable: Vec::new(),
        }
    }

    /// Carries packets until the command to stop, or until the device is gone or the socket fails.
    pub(super) fn run(mut self) -> CarryingEnd {
        let result = self.carry();
        self.end(result)
    }

    /// Ends with this result.
    pub(super) fn end(mut self, result: io::Result<()>) -> CarryingEnd {
        let now = self.parts.clock.now();
        if let Some(kernel) = &mut self.parts.kernel {
            kernel.count(now);
        }
        // All of them: an earlier report may have had no room.
        let states = self.parts.gateway.states(now);
        self.publish(now);
        CarryingEnd { states, result }
    }

    fn carry(&mut self) -> io::Result<()> {
        // Signals belong to the first thread.
        net::block_signals()?;
        loop {
            let wait = self.next_tick.since(self.parts.clock.now());
            let fds = [
                self.parts.tun.as_fd(),
                self.parts.socket.as_fd(),
                self.parts.waker.as_fd(),
            ];
            let ready = net::wait_any(fds, wait);
            let now = self.parts.clock.now();
            self.figures.count_turn();
            if ready[0].failed || ready[0].readable {
                self.seal_from_device(ready[0].failed, now)?;
            }
            if ready[1].readable || ready[1].failed {
                self.open_batch(BATCH, now, &mut |_| false)?;
            }
            if (ready[2].readable && self.execute(now)) || self.tick_if_due(now) {
                return Ok(());
            }
        }
    }

    /// Copies of the descriptors to wait for: device, outer socket, commands.
    pub(super) fn descriptors(&self) -> io::Result<[OwnedFd; 3]> {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        Ok([
            copy(self.parts.tun.as_fd())?,
            copy(self.parts.socket.as_fd())?,
            copy(self.parts.waker.as_fd())?,
        ])
    }

    pub(super) fn next_tick(&self) -> Time {
        self.next_tick
    }

    /// Executes commands, and the work of a tick, if it is due; whether this is the end.
    pub(super) fn tick_if_due(&mut self, now: Time) -> bool {
        if now < self.next_tick {
            return false;
        }
        self.figures.count_turn();
        if self.commands(now) {
            return true;
        }
        self.next_tick = now + TICK;
        self.tick(now);
        false
    }

    /// Executes the commands that the waker has announced; whether this is the end.
    pub(super) fn execute(&mut self, now: Time) -> bool {
        self.parts.waker.clear();
        self.commands(now)
    }

    /// Seals the packets that wait at the device, at most a batch, and sends them. Returns the number of those read.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn seal_from_device(&mut self, failed: bool, now: Time) -> io::Result<usize> {
        if failed {
            return Err(io::Error::other("the TUN device is gone"));
        }
        let batch = &mut self.from_device;
        batch.clear();
        let mut read = 0;
        for slot in 0..BATCH {
            let Some((start, buffer)) = batch.slot(slot) else {
                break;
            };
            let longest = buffer.len() - MAX_HEADROOM - MAX_TAILROOM;
            let Some(room) = buffer.get_mut(MAX_HEADROOM..MAX_HEADROOM + longest) else {
                break;
            };
            let Some(length) = self.parts.tun.receive(room)? else {
                break;
            };
            read += 1;
            let mut room = PacketRoom::new(buffer, MAX_HEADROOM, length);
            match self.parts.gateway.seal(&mut room, now) {
                Ok(sealed) => {
                    let place = start + room.start..start + room.end;
                    batch.push(place, &sealed, self.copies_dont_fragment);
                }
                Err(NotSealed::TooLarge { mtu }) => {
                    let mut error = [0; TOO_BIG_ROOM];
                    if let Some(length) = write_too_big(room.packet(), mtu, &mut error) {
                        let bytes = error.get(..length).unwrap_or_default();
                        // The sender will repeat the packet, and be told again.
                        let _ = self.parts.tun.send(bytes);
                    }
                }
                Err(NotSealed::Dropped(_)) => {}
            }
        }
        let short_path = batch.send(&mut self.parts.socket, &mut self.parts.gateway);
        self.report_path(short_path, now);
        Ok(read)
    }

    /// Requests the MTU of a path to which a packet was too long.
    fn report_path(&mut self, short_path: Option<(usize, SocketAddr)>, now: Time) {
        if let Some((tunnel, peer)) = short_path
            && now >= self.next_path
        {
            self.next_path = now + PATH_INTERVAL;
            // Without room for it, a later packet reports it.
            let _ = self.parts.reports.try_send(Report::AskPath(tunnel, peer));
        }
    }

    /// Seals a packet that `write` writes for the next flush. False if the kernel must send it: its route leads
    /// elsewhere, or it is too long for the device or the path.
    pub(super) fn seal_media(
        &mut self,
        (own, to): (IpAddr, IpAddr),
        now: Time,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let Parts {
            gateway, routes, ..
        } = &mut self.parts;
        // The kernel would send packets of another route in the clear; only it knows the routes.
        let leads = gateway.is_remote(to)
            && routes
                .as_mut()
                .is_some_and(|routes| routes.lead_to(own, to, now));
        if !leads {
            return false;
        }
        if self.media.len() == BATCH {
            self.flush_media(now);
        }
        let (batch, gateway) = (&mut self.media, &mut self.parts.gateway);
        let Some((start, buffer)) = batch.slot(batch.len()) else {
            return false;
        };
        let longest = self.mtu.min(buffer.len() - MAX_HEADROOM - MAX_TAILROOM);
        let room = buffer.get_mut(MAX_HEADROOM..MAX_HEADROOM + longest);
        let Some(length) = room.and_then(write) else {
            return false;
        };
        let mut room = PacketRoom::new(buffer, MAX_HEADROOM, length);
        match gateway.seal_if_fits(&mut room, now) {
            Ok(sealed) => {
                let place = start + room.start..start + room.end;
                batch.push(place, &sealed, self.copies_dont_fragment);
                self.direct.sealed += 1;
                true
            }
            // The kernel fragments it, or learns the path by ICMP.
            Err(NotSealed::TooLarge { .. }) => false,
            Err(NotSealed::Dropped(_)) => true,
        }
    }

    /// Sends the sealed media.
    pub(super) fn flush_media(&mut self, now: Time) {
        let Parts {
            gateway, socket, ..
        } = &mut self.parts;
        let short_path = self.media.send(socket, gateway);
        self.media.clear();
        self.report_path(short_path, now);
    }

    /// Opens at most `most` packets that wait at the socket, and gives those that `take` does not take to the device.
    /// Returns their number.
    ///
    /// # Errors
    /// The socket has failed.
    pub(super) fn open_batch(
        &mut self,
        most: usize,
        now: Time,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<usize> {
        let Parts {
            gateway,
            tun,
            socket,
            ike,
            ..
        } = &mut self.parts;
        let received = socket.receive(most)?;
        for index in 0..received {
            let Some(packet) = socket.received(index) else {
                gateway.count_drops(DropReason::EspMalformed, 1);
                continue;
            };
            if packet.truncated {
                gateway.count_drops(DropReason::EspMalformed, 1);
                continue;
            }
            let bytes = packet.bytes;
            if let Some(ike) = ike
                && let NatTraversalDatagram::Ike(message) = NatTraversalDatagram::parse(bytes)
            {
                if !is_ike_v2(message) {
                    gateway.count_drops(DropReason::EspMalformed, 1);
                    continue;
                }
                // With the marker, as the daemon expects it on this port.
                if !ike.try_send(IkeRequest::Received(packet.source, bytes.to_vec())) {
                    gateway.count_drops(DropReason::IkeOverrun, 1);
                }
                continue;
            }
            let opened = gateway.open(packet.source, packet.traffic_class, bytes, now);
            let Some(inner) = opened.and_then(|place| bytes.get(place)) else {
                continue;
            };
            if take(inner) {
                self.direct.opened += 1;
            } else if tun.send(inner).is_err() {
                gateway.count_drops(DropReason::SendFailed, 1);
            }
        }
        Ok(received)
    }

    /// Counts a turn of the thread that drives this loop.
    pub(super) fn count_turn(&self) {
        self.figures.count_turn();
    }

    /// Executes commands; whether the thread is to end.
    fn commands(&mut self, now: Time) -> bool {
        loop {
            match self.parts.inbox.try_recv() {
                Ok(Command::Rekey(rekey)) => {
                    // The keeper has checked it against all associations; a refused one changes nothing.
                    if let Err(error) = self.parts.gateway.rekey(*rekey, now) {
                        tracing::error!(
                            "[gateway] new keys: {error}; those before stay in use (remedy: load keys with new SPIs after rekey_grace_s)"
                        );
                    }
                }
                Ok(Command::Reserve(numbers)) => {
                    for ReservedNumbers { tunnel, spi, last } in numbers {
                        self.parts.gateway.reserve(tunnel, spi, last);
                    }
                }
                Ok(Command::PathMtu(tunnel, mtu)) => {
                    self.parts.gateway.set_path_mtu(tunnel, Some(mtu));
                }
                Ok(Command::Install(pair)) => self.install(*pair),
                Ok(Command::SealWith { tunnel, spi, peer }) => self.seal_with(tunnel, spi, peer),
                Ok(Command::RefusePeer(tunnel, address)) => {
                    self.parts.gateway.refuse_peer(tunnel, address.ip());
                }
                Ok(Command::Remove(spis, at_once)) => match &mut self.parts.kernel {
                    Some(kernel) => kernel.remove(spis, at_once, now),
                    None => {
                        let gateway = &mut self.parts.gateway;
                        gateway.remove_pair(spis[0], spis[1], at_once, now);
                    }
                },
                Ok(Command::Send(message, destination)) => self.send_message(&message, destination),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Takes a negotiated association.
    fn install(&mut self, pair: NegotiatedPair) {
        let (tunnel, spi) = (pair.tunnel, pair.inbound.spec().spi);
        let done = match &mut self.parts.kernel {
            Some(kernel) => kernel.install(&pair),
            None => self
                .parts
                .gateway
                .install(pair)
                .map_err(|error| error.to_string()),
        };
        if let Err(error) = done {
            tracing::error!("SPI {spi:#010x}: {error}; it is deleted");
            self.refuse(tunnel, spi);
        }
    }

    /// Tells the key exchange that an association cannot be used; without room for it, at a later tick.
    fn refuse(&mut self, tunnel: usize, spi: u32) {
        if self.unusable.len() < MAX_UNUSABLE && !self.unusable.contains(&(tunnel, spi)) {
            self.unusable.push((tunnel, spi));
        }
        self.report_unusable();
    }

    fn report_unusable(&mut self) {
        if let Some(ike) = &self.parts.ike {
            self.unusable
                .retain(|(tunnel, spi)| !ike.try_send(IkeRequest::Unusable(*tunnel, *spi)));
        }
    }

    /// Seals with a negotiated association.
    fn seal_with(&mut self, tunnel: usize, spi: u32, peer: SocketAddr) {
        let Some(kernel) = &mut self.parts.kernel else {
            if self.parts.gateway.seal_with(tunnel, spi, peer) {
                // Without room for it, the first packet that is too long reports it.
                let _ = self.parts.reports.try_send(Report::AskPath(tunnel, peer));
            }
            return;
        };
        if let Err(error) = kernel.seal_with(tunnel, spi, peer) {
            tracing::error!("SPI {spi:#010x}: {error}; it is deleted");
            self.refuse(tunnel, spi);
        }
    }

    /// Sends a message of the key exchange.
    fn send_message(&mut self, message: &[u8], destination: SocketAddr) {
        let packet = OutgoingEsp {
            place: 0..message.len(),
            destination,
            traffic_class: 0,
            dont_fragment: false,
        };
        let mut refused = 0;
        self.parts
            .socket
            .send(message, &[packet], |_, _| refused += 1);
        self.parts
            .gateway
            .count_drops(DropReason::SendFailed, refused);
    }

    /// Work that depends on time.
    fn tick(&mut self, now: Time) {
        self.report_unusable();
        let Parts {
            gateway,
            socket,
            reports,
            ike,
            kernel,
            ..
        } = &mut self.parts;
        let mut keep_alive = |destination| {
            let packet = OutgoingEsp {
                place: 0..NAT_KEEP_ALIVE.len(),
                destination,
                traffic_class: 0,
                dont_fragment: false,
            };
            // A keep-alive that is not sent is repeated after the interval.
            socket.send(&NAT_KEEP_ALIVE, &[packet], |_, _| {});
        };
        let mut report = |notice| reports.try_send(Report::Notice(notice)).is_ok();
        gateway.tick(now, &mut keep_alive);
        gateway.deliver_notices(&mut report);
        if let Some(kernel) = kernel {
            kernel.tick(now, &mut keep_alive);
            kernel.deliver_notices(&mut report);
        }
        if ike.is_none() && now >= self.next_numbers {
            self.next_numbers = now + NUMBERS_INTERVAL;
            let changed = gateway.take_changed_states(now);
            if !changed.is_empty() {
                // States without room are reported with the next packets, or at the end; until then the reserved
                // numbers suffice.
                let _ = reports.try_send(Report::Numbers(changed));
            }
        }
        self.publish(now);
    }

    fn publish(&self, now: Time) {
        let Parts {
            gateway, kernel, ..
        } = &self.parts;
        self.figures.publish(gateway, kernel.as_ref(), now);
        self.figures.publish_direct(self.direct);
    }
}

#[cfg(test)]
mod tests {
    use super::super::direct::Carrying;
    use super::super::keys::GatewayKeys;
    use super::*;
    use engine::{Entropy, HashKey};
    use net::EspSocketKind;
    use protect::esp::{
        EspCarrier, EspEncryption, EspIntegrity, EspKeys, EspSuite, GatewaySettings, GatewayTunnel,
        OutboundSa, SaSpec,
    };
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc::sync_channel;

    /// An IP packet of 40 bytes with Don't Fragment.
    fn inner_packet() -> [u8; 40] {
        let mut packet = [0; 40];
        packet[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17]);
        packet[12..20].copy_from_slice(&[10, 1, 0, 9, 10, 2, 0, 9]);
        packet
    }

    /// A loop with one tunnel and room for one command, the commands, and the other end of its device.
    fn packet_loop(setting: &str) -> (PacketLoop, SyncSender<Command>, UnixDatagram) {
        let text = format!(
            "[gateway]\nlocal=\"192.0.2.1\"\nkey_file=\"k\"\ndont_fragment=\"{setting}\"\n[[gateway.tunnel]]\nname=\"b\"\npeer=\"192.0.2.2\"\nlocal_networks=\"10.1.0.0/24\"\nremote_networks=\"10.2.0.0/24\"\n"
        );
        let spec = config::parse(&text, "f").unwrap().gateway.unwrap();
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let peer = UdpSocket::bind((local, 0)).unwrap();
        let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
        let sa = SaSpec::new(0x1000, suite, EspKeys::new(&[1; 20], &[])).tunnel(local, local);
        let sealing = OutboundSa::new(sa, &mut Entropy::from_number(1), Time::ZERO).unwrap();
        let tunnel = GatewayTunnel {
            name: "b".to_owned(),
            peer: peer.local_addr().ok(),
            peer_behind_nat: false,
            remote: vec!["10.2.0.0/24".parse().unwrap()],
        };
        let settings = GatewaySettings {
            carrier: EspCarrier::Udp,
            local,
            keep_alive: None,
            rekey_delay: Duration::ZERO,
            rekey_grace: Duration::ZERO,
        };
        let tunnels = vec![(tunnel, Some(sealing))];
        let key = HashKey::default();
        let gateway = EspGateway::new(settings, tunnels, Vec::new(), key, Time::ZERO).unwrap();
        let (device, host) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        let at = SocketAddr::new(local, 0);
        let (commands, inbox) = sync_channel(1);
        let (reports, _outbox) = sync_channel(1);
        let parts = Parts {
            gateway,
            tun: TunDevice::from_descriptor(device.into()),
            socket: EspSocket::open(EspSocketKind::Udp, at, longest_packet(&spec)).unwrap(),
            inbox,
            reports,
            waker: Waker::new().unwrap(),
            ike: None,
            kernel: None,
            routes: None,
            clock: Clock::new(),
        };
        let keys = GatewayKeys {
            tunnels: Vec::new(),
            ike: None,
        };
        let figures = Arc::new(GatewayFigures::new(&spec, &keys, Time::ZERO));
        (PacketLoop::new(parts, &spec, figures), commands, host)
    }

    /// The outer bit Don't Fragment of an inner packet that has it.
    fn outer_dont_fragment(setting: &str) -> bool {
        let (mut packets, _commands, host) = packet_loop(setting);
        host.send(&inner_packet()).unwrap();
        assert_eq!(packets.seal_from_device(false, Time::ZERO).unwrap(), 1);
        assert_eq!(packets.from_device.len(), 1, "{setting}");
        packets.from_device.outgoing()[0].dont_fragment
    }

    /// At the start the thread of media waits for the key exchange, which may wait for room for its commands.
    #[test]
    fn commands_are_executed_while_the_thread_of_media_waits() {
        let (packets, commands, host) = packet_loop("copy");
        let carrying = Carrying::on_media_thread(packets);
        let sender = std::thread::spawn(move || {
            for _ in 0..10 {
                commands.send(Command::Reserve(Vec::new())).unwrap();
            }
        });
        let clock = Clock::new();
        while !sender.is_finished() {
            carrying.turn(clock.now());
            std::thread::sleep(Duration::from_millis(1));
        }
        sender.join().unwrap();
        drop(host);
    }

    #[test]
    fn the_outer_bit_dont_fragment_is_copied_or_clear() {
        assert!(outer_dont_fragment("copy"));
        assert!(!outer_dont_fragment("clear"));
    }
}
