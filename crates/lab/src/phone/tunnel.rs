//! ESP below the kernel, for a phone whose SIP needs connections: a TUN device has the phone's address of the inside,
//! the kernel's TCP carries its connections, and a thread seals and opens the packets of the device. Without
//! connections the phone's sockets are inside of [`protect::esp::EspEndpoint`], which needs no right and no kernel.
//!
//! The phone's sockets are bound to the device: nothing of the phone leaves in the clear, also if a peer names an
//! address that is not behind the tunnel.

use super::esp::{EspEnd, EspFigures};
use super::exchange::{ExchangeEnd, NegotiatedEsp, StartedExchange};
use super::thread::PhoneMessage;
use crate::error::LabError;
use crate::sut::system_entropy;
use engine::{DropReason, HashKey, Time};
use net::{Clock, EspSendFailure, EspSocket, EspSocketKind, OutgoingEsp, TunDevice};
use protect::esp::{
    AddressPrefix, ChangedState, EndpointKeys, EspCarrier, EspEndpointPlan, EspGateway,
    GatewayNotice, GatewaySettings, GatewayTunnel, MAX_HEADROOM, MAX_TAILROOM, NegotiatedPair,
    NotSealed, PacketRoom, SaError, TOO_BIG_ROOM, write_too_big,
};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::esp::{NAT_KEEP_ALIVE, NatTraversalDatagram, is_ike_v2};

/// Longest wait for a packet; then keep-alives and the end are looked at.
const WAIT: Duration = Duration::from_millis(50);
/// The same with a key exchange, whose events are looked at, too.
const EXCHANGE_WAIT: Duration = Duration::from_millis(5);
/// Longest time for the end of a key exchange, which deletes its associations at the peer.
const EXCHANGE_END: Duration = Duration::from_secs(3);
/// A deleted association opens packets on their way for this time.
const GRACE: Duration = Duration::from_secs(10);
/// A keep-alive for the NAT's binding follows after this time without a packet (RFC 3948 section 4).
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Shortest interval of requests for the path MTU after packets that were too long.
const PATH_INTERVAL: Duration = Duration::from_millis(500);
/// MTU of the path to the peer where the kernel knows none, and the largest that is used.
const ETHERNET: usize = 1_500;
/// Outer headers, initialisation vector, padding and ICV of the largest suite, and those of IPv6.
const OVERHEAD: usize = 140;
/// Packets of the device between two looks at the socket.
const BATCH: usize = 64;
/// Messages of a key exchange that wait for their reader.
const MAX_MESSAGES: usize = 64;
/// Messages to the phone's thread.
const QUEUE: usize = 256;
const ROOM: usize = MAX_HEADROOM + ETHERNET + MAX_TAILROOM;

/// The tunnel of a phone, which ends with this value.
pub(super) struct PhoneTunnel {
    device: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<TunnelEnd>>,
    link: Option<TunnelLink>,
}

/// The end of a tunnel, and why its device or socket has failed: used sequence numbers must be stored then, too.
type TunnelEnd = (EspEnd, Result<(), String>);

/// A tunnel, for the thread of its phone.
pub(super) struct TunnelLink {
    /// Messages of the tunnel and of its key exchange.
    pub(super) messages: Receiver<PhoneMessage>,
    /// There are keys; otherwise [`PhoneMessage::Negotiated`] tells so.
    pub(super) has_keys: bool,
}

/// Addresses behind a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TunnelNetworks<'a> {
    /// Those that are named.
    pub(super) named: &'a [AddressPrefix],
    /// The setting that names them.
    pub(super) setting: &'static str,
}

fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("ESP below SIP over TCP or TLS: {what}: {error}"),
        "run it as root or with CAP_NET_ADMIN, as it needs a TUN device; --transport udp needs no right",
    )
}

/// The error of a route that the kernel refuses.
fn cannot_route(network: &AddressPrefix, error: &std::io::Error) -> LabError {
    let what = format!("route to {network}");
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => LabError::cannot_run(
            format!("ESP below SIP over TCP or TLS: {what}: there is one already ({error})"),
            "end the other phone or gateway that has this network behind its tunnel, remove the route (ip route), or name a narrower network",
        ),
        _ => cannot(&what, error),
    }
}

/// Networks behind the tunnel: those that are named, else the called host.
///
/// # Errors
/// There is none, the called host is in none, or one contains an address of ESP packets, which would then be sent into
/// the tunnel.
pub(super) fn networks(
    TunnelNetworks { named, setting }: TunnelNetworks<'_>,
    called: Option<IpAddr>,
    outer: [IpAddr; 2],
) -> Result<Vec<AddressPrefix>, LabError> {
    let networks = match (named, called) {
        ([], Some(called)) => vec![AddressPrefix::from(called)],
        ([], None) => {
            return Err(LabError::bad_input(format!(
                "ESP below SIP over TCP or TLS: name the addresses inside of the tunnel, of callers too, with {setting}"
            )));
        }
        (networks, _) => networks.to_vec(),
    };
    let inside = |ip: &IpAddr| networks.iter().any(|network| network.contains(*ip));
    if let Some(ip) = outer.iter().find(|ip| inside(ip)) {
        return Err(LabError::bad_input(format!(
            "ESP below SIP over TCP or TLS: {ip} is an address of ESP packets, and cannot be one inside of the tunnel: use other addresses for --local, the called host and {setting}"
        )));
    }
    if let Some(called) = called.filter(|called| !inside(called)) {
        return Err(LabError::bad_input(format!(
            "ESP below SIP over TCP or TLS: the called host {called} is not behind the tunnel: add its address to {setting}"
        )));
    }
    Ok(networks)
}

/// The MTU of the path to the peer, as far as the kernel knows it.
fn path_mtu(local: IpAddr, peer: Option<SocketAddr>) -> usize {
    let path = peer.and_then(|peer| net::path_mtu(local, peer).ok());
    path.unwrap_or(ETHERNET).min(ETHERNET)
}

/// Makes the device, with the phone's address and the routes to the networks.
fn make_device(
    device: &str,
    mtu: usize,
    phone: IpAddr,
    networks: &[AddressPrefix],
) -> Result<TunDevice, LabError> {
    let tun = TunDevice::create(device).map_err(|error| cannot("TUN device", error))?;
    TunDevice::set_up(device, mtu).map_err(|error| cannot("TUN device", error))?;
    TunDevice::add_address(device, phone)
        .map_err(|error| cannot(&format!("address {phone}"), error))?;
    for network in networks {
        let to = (network.address(), network.length());
        TunDevice::add_route(device, to, Some(phone))
            .map_err(|error| cannot_route(network, &error))?;
    }
    Ok(tun)
}

/// The tunnel of a phone in its gateway.
fn tunnel_of(
    carrier: EspCarrier,
    peer: Option<SocketAddr>,
    remote: Vec<AddressPrefix>,
) -> GatewayTunnel {
    GatewayTunnel {
        name: "phone".to_owned(),
        peer,
        // Also with a key exchange: its daemon does not say that a NAT has another mapping.
        peer_behind_nat: carrier == EspCarrier::Udp,
        remote,
    }
}

impl PhoneTunnel {
    /// Makes the device and starts the thread, with the key exchange of negotiated keys.
    ///
    /// # Errors
    /// A right is missing, or an address cannot be used.
    pub(super) fn start(
        plan: EspEndpointPlan,
        phone: IpAddr,
        networks: Vec<AddressPrefix>,
        exchange: Option<StartedExchange>,
    ) -> Result<PhoneTunnel, LabError> {
        // It ends in order also if there will be no tunnel.
        let exchange = exchange.map(ExchangeEnd::new);
        let (sealing, opening) = match plan.keys {
            EndpointKeys::Manual(pair) => {
                let (outbound, inbound) = *pair;
                (Some(outbound), vec![(0, inbound)])
            }
            EndpointKeys::Negotiated => (None, Vec::new()),
        };
        let negotiates = exchange.is_some();
        // A phone that waits for any peer knows none.
        let peer = (!plan.peer.ip().is_unspecified()).then_some(plan.peer);
        let path = path_mtu(plan.local.ip(), peer);
        let least = if phone.is_ipv4() { 576 } else { 1_280 };
        let mtu = path.saturating_sub(OVERHEAD).max(least);
        let device = format!("hwp{}", std::process::id());
        let tun = make_device(&device, mtu, phone, &networks)?;
        let kind = match plan.carrier {
            EspCarrier::Udp => EspSocketKind::Udp,
            EspCarrier::Ip => EspSocketKind::Ip,
        };
        let socket = EspSocket::open(kind, plan.local, ROOM).map_err(|error| {
            let (what, local) = (plan.carrier.name(), plan.local);
            LabError::cannot_run(
                format!("ESP over {what} at {local}: {error}"),
                "compare the outer addresses, ports and carriers of both ends; another program may have the port",
            )
        })?;
        let tunnel = tunnel_of(plan.carrier, peer, networks.clone());
        let settings = GatewaySettings {
            carrier: plan.carrier,
            local: plan.local.ip(),
            keep_alive: Some(KEEP_ALIVE),
            rekey_delay: Duration::ZERO,
            rekey_grace: GRACE,
        };
        let key = HashKey::new(&mut system_entropy()?);
        let clock = Clock::new();
        let tunnels = vec![(tunnel, sealing)];
        let mut gateway = EspGateway::new(settings, tunnels, opening, key, clock.now())
            .map_err(|error| LabError::bad_input(error.to_string()))?;
        gateway.set_path_mtu(0, Some(path));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (sender, messages) = sync_channel(QUEUE);
        let carrier = PacketCarrier {
            gateway,
            tun,
            socket,
            clock,
            buffer: vec![0; ROOM],
            local: plan.local.ip(),
            peer,
            networks,
            next_path: clock.now(),
            received: VecDeque::new(),
            messages: sender,
            negotiated: NegotiatedFigures::default(),
            peer_changes: 0,
            keep_alives_sent: 0,
        };
        let thread = std::thread::Builder::new()
            .name("phone-tunnel".to_owned())
            .spawn(move || {
                let messages = carrier.messages.clone();
                let (end, result) = carrier.run(exchange, &stopped);
                if let Err(why) = &result {
                    let why = format!("ESP tunnel: {why}");
                    let _ = messages.try_send(PhoneMessage::Fatal(why, None));
                }
                (end, result)
            })
            .map_err(|error| LabError::cannot_run(format!("thread: {error}"), ""))?;
        Ok(PhoneTunnel {
            device,
            stop,
            thread: Some(thread),
            link: Some(TunnelLink {
                messages,
                has_keys: !negotiates,
            }),
        })
    }

    /// The name of the device.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Takes the link for the phone's thread, once.
    pub(super) fn take_link(&mut self) -> Option<TunnelLink> {
        self.link.take()
    }

    /// Ends the thread, and returns its figures and the states of the associations, unless it has panicked. The result
    /// is an error if the device or the socket has failed.
    pub(super) fn end(mut self) -> (Option<EspEnd>, Result<(), LabError>) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        let (end, result) = match ended.and_then(Result::ok) {
            Some((end, result)) => (Some(end), result),
            None => (None, Err("its thread has stopped".to_owned())),
        };
        let failed = |why| LabError::cannot_run(format!("ESP tunnel: {why}"), "");
        (end, result.map_err(failed))
    }
}

impl Drop for PhoneTunnel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Figures of negotiated associations.
#[derive(Debug, Default)]
struct NegotiatedFigures {
    ike_messages: u64,
    installed: u64,
    rekeyed: u64,
    /// SPI of the association that seals.
    sealing: Option<u32>,
}

/// Carries packets between the device and the outer socket.
struct PacketCarrier {
    gateway: EspGateway,
    tun: TunDevice,
    socket: EspSocket,
    clock: Clock,
    buffer: Vec<u8>,
    local: IpAddr,
    peer: Option<SocketAddr>,
    networks: Vec<AddressPrefix>,
    next_path: Time,
    /// Received messages of the key exchange, with their sources.
    received: VecDeque<(SocketAddr, Vec<u8>)>,
    messages: SyncSender<PhoneMessage>,
    negotiated: NegotiatedFigures,
    peer_changes: u64,
    keep_alives_sent: u64,
}

impl PacketCarrier {
    fn run(mut self, mut exchange: Option<ExchangeEnd>, stop: &AtomicBool) -> TunnelEnd {
        let mut result = self.carry(exchange.as_mut(), stop);
        let mut end = self.ended(self.clock.now());
        if let Some(exchange) = &mut exchange {
            end.states = None;
            end.figures.ike_overruns = exchange.overruns();
            result = result.and_then(|()| self.end_exchange(exchange));
        }
        (end, result)
    }

    /// Carries packets until it is stopped.
    fn carry(
        &mut self,
        mut exchange: Option<&mut ExchangeEnd>,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        net::block_signals().map_err(|error| error.to_string())?;
        while !stop.load(Ordering::Acquire) {
            self.turn(exchange.as_deref_mut())?;
        }
        // The last packets of the phone may still wait.
        let now = self.clock.now();
        self.seal(now).map_err(|error| error.to_string())
    }

    /// Waits for packets and carries them. False once the key exchange has ended.
    fn turn(&mut self, exchange: Option<&mut ExchangeEnd>) -> Result<bool, String> {
        let text = |error: std::io::Error| error.to_string();
        let wait = match exchange {
            Some(_) => EXCHANGE_WAIT,
            None => WAIT,
        };
        let [device, socket] = net::wait_any([self.tun.as_fd(), self.socket.as_fd()], wait);
        let now = self.clock.now();
        if device.failed {
            return Err("the TUN device is gone".to_owned());
        }
        if socket.readable || socket.failed {
            self.open(now, exchange.is_some()).map_err(text)?;
        }
        let goes_on = exchange.is_some_and(|exchange| {
            let messages = self.messages.clone();
            exchange.turn(self, &messages, now)
        });
        if device.readable {
            self.seal(now).map_err(text)?;
        }
        self.tick(now);
        Ok(goes_on)
    }

    /// Has the key exchange delete its associations at the peer.
    fn end_exchange(&mut self, exchange: &mut ExchangeEnd) -> Result<(), String> {
        let until = self.clock.now() + EXCHANGE_END;
        let mut requested = false;
        while self.clock.now() < until {
            requested = requested || exchange.request_end();
            if !self.turn(Some(&mut *exchange))? {
                break;
            }
        }
        Ok(())
    }

    /// Seals and sends the packets that wait at the device.
    fn seal(&mut self, now: Time) -> std::io::Result<()> {
        for _ in 0..BATCH {
            let room = self.buffer.get_mut(MAX_HEADROOM..MAX_HEADROOM + ETHERNET);
            let Some(length) = self.tun.receive(room.unwrap_or_default())? else {
                return Ok(());
            };
            let mut room = PacketRoom::new(&mut self.buffer, MAX_HEADROOM, length);
            match self.gateway.seal(&mut room, now) {
                Ok(sealed) => {
                    let packet = OutgoingEsp {
                        place: room.start..room.end,
                        destination: sealed.destination,
                        traffic_class: sealed.traffic_class,
                        dont_fragment: sealed.dont_fragment,
                    };
                    let mut failed = None;
                    self.socket
                        .send(&self.buffer, &[packet], |_, failure| failed = Some(failure));
                    match failed {
                        Some(EspSendFailure::TooLarge) => self.measure_path(now),
                        Some(EspSendFailure::Refused) => {
                            self.gateway.count_drops(DropReason::SendFailed, 1);
                        }
                        None => {}
                    }
                }
                Err(NotSealed::TooLarge { mtu }) => {
                    let mut error = [0; TOO_BIG_ROOM];
                    if let Some(length) = write_too_big(room.packet(), mtu, &mut error) {
                        // The kernel repeats the packet, and is told again.
                        let _ = self.tun.send(error.get(..length).unwrap_or_default());
                    }
                }
                Err(NotSealed::Dropped(_)) => {}
            }
        }
        Ok(())
    }

    /// A packet was too long for the path: later ones are refused with the new MTU, so that the kernel's TCP sends
    /// shorter ones.
    fn measure_path(&mut self, now: Time) {
        self.gateway.count_drops(DropReason::EspTooLarge, 1);
        if now >= self.next_path {
            self.next_path = now + PATH_INTERVAL;
            let path = path_mtu(self.local, self.peer);
            self.gateway.set_path_mtu(0, Some(path));
        }
    }

    /// Opens the packets that wait at the socket, and gives them to the device.
    fn open(&mut self, now: Time, negotiates: bool) -> std::io::Result<()> {
        let PacketCarrier {
            gateway,
            tun,
            socket,
            received,
            negotiated,
            ..
        } = self;
        for index in 0..socket.receive(EspSocket::BATCH)? {
            let packet = socket.received(index).filter(|packet| !packet.truncated);
            let Some(packet) = packet else {
                gateway.count_drops(DropReason::EspMalformed, 1);
                continue;
            };
            let bytes = packet.bytes;
            if negotiates
                && let NatTraversalDatagram::Ike(message) = NatTraversalDatagram::parse(bytes)
            {
                negotiated.ike_messages += 1;
                match (is_ike_v2(message), received.len() < MAX_MESSAGES) {
                    (false, _) => gateway.count_drops(DropReason::EspMalformed, 1),
                    // The peer repeats a message that is dropped.
                    (true, false) => gateway.count_drops(DropReason::IkeOverrun, 1),
                    (true, true) => received.push_back((packet.source, bytes.to_vec())),
                }
                continue;
            }
            let opened = gateway.open(packet.source, packet.traffic_class, bytes, now);
            if let Some(inner) = opened.and_then(|place| bytes.get(place))
                && tun.send(inner).is_err()
            {
                gateway.count_drops(DropReason::SendFailed, 1);
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Time) {
        let PacketCarrier {
            gateway,
            socket,
            keep_alives_sent,
            ..
        } = self;
        gateway.tick(now, |destination| {
            *keep_alives_sent += 1;
            let packet = OutgoingEsp {
                place: 0..NAT_KEEP_ALIVE.len(),
                destination,
                traffic_class: 0,
                dont_fragment: false,
            };
            // A keep-alive that is not sent is repeated after the interval.
            socket.send(&NAT_KEEP_ALIVE, &[packet], |_, _| {});
        });
        let mut moved = None;
        gateway.deliver_notices(|notice| {
            if let GatewayNotice::PeerMoved { address, .. } = notice {
                moved = Some(address);
            }
            true
        });
        if let Some(address) = moved {
            self.follow_peer(address);
        }
    }

    /// Authenticated packets of the peer come from another address: a NAT has another mapping.
    fn follow_peer(&mut self, address: SocketAddr) {
        if self.refuses_peer(address) || self.peer == Some(address) {
            return;
        }
        self.peer_changes += u64::from(self.peer.is_some());
        self.peer = Some(address);
        let path = path_mtu(self.local, self.peer);
        self.gateway.set_path_mtu(0, Some(path));
    }

    /// Whether an address is inside of the tunnel: packets to it would be routed into the tunnel. Its own are opened.
    fn refuses_peer(&mut self, address: SocketAddr) -> bool {
        let inside = |network: &AddressPrefix| network.contains(address.ip());
        if !self.networks.iter().any(inside) {
            return false;
        }
        let note = format!(
            "ESP: {} is an address inside of the tunnel, and cannot be that of the peer",
            address.ip()
        );
        let _ = self.messages.try_send(PhoneMessage::Note(note));
        self.gateway.refuse_peer(0, address.ip());
        true
    }

    fn ended(&mut self, now: Time) -> EspEnd {
        let counters = self.gateway.counters();
        let (mut outbound, mut inbound) = (None, None);
        for state in self.gateway.states(now) {
            match state {
                ChangedState::Outbound { state, .. } => outbound = Some(state),
                ChangedState::Inbound(state) => inbound = Some(state),
            }
        }
        let drops = self.gateway.drops().iter().filter(|(_, count)| *count > 0);
        EspEnd {
            states: outbound.zip(inbound),
            figures: EspFigures {
                peer: self.peer,
                sealed: counters.sealed,
                opened: counters.opened,
                keep_alives: [self.keep_alives_sent, counters.keep_alives_received],
                ike_messages: counters.ike_messages + self.negotiated.ike_messages,
                installed: self.negotiated.installed,
                rekeyed: self.negotiated.rekeyed,
                peer_changes: self.peer_changes,
                drops: drops
                    .map(|(reason, count)| (reason.name(), count))
                    .collect(),
                ..EspFigures::default()
            },
        }
    }
}

impl NegotiatedEsp for PacketCarrier {
    fn next_message(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.received.pop_front()
    }

    fn is_open(&self) -> bool {
        true
    }

    fn install(&mut self, pair: NegotiatedPair, _: Time) -> Result<(), SaError> {
        self.gateway.install(pair)?;
        self.negotiated.installed += 1;
        Ok(())
    }

    fn seal_with(&mut self, spi: u32, peer: SocketAddr) {
        if self.refuses_peer(peer) {
            return;
        }
        if !self.gateway.seal_with(0, spi, peer) {
            return;
        }
        let before = self.negotiated.sealing.replace(spi);
        self.negotiated.rekeyed += u64::from(before.is_some_and(|before| before != spi));
        if self.peer != Some(peer) {
            self.peer_changes += u64::from(before.is_some());
            self.peer = Some(peer);
            let path = path_mtu(self.local, self.peer);
            self.gateway.set_path_mtu(0, Some(path));
        }
    }

    fn remove(&mut self, spis: [u32; 2], at_once: bool, now: Time) {
        if self.gateway.remove_pair(spis[0], spis[1], at_once, now) {
            self.negotiated.sealing = None;
        }
    }

    fn send_message(&mut self, message: Vec<u8>, to: SocketAddr) {
        let packet = OutgoingEsp {
            place: 0..message.len(),
            destination: to,
            traffic_class: 0,
            dont_fragment: false,
        };
        let mut refused = 0;
        self.socket.send(&message, &[packet], |_, _| refused += 1);
        self.gateway.count_drops(DropReason::SendFailed, refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;
    use protect::esp::{
        EspEncryption, EspIntegrity, EspKeys, EspSuite, InboundSa, OutboundSa, SaSpec,
        TrafficSelector,
    };
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn networks_are_those_of_the_options_and_have_no_outer_address() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let network = |text: &str| text.parse::<AddressPrefix>().unwrap();
        let outer = [ip("192.0.2.1"), ip("192.0.2.2")];
        let called = Some(ip("10.2.0.1"));
        let networks = |named: &[AddressPrefix], called| {
            let setting = "--esp-remote NETWORK";
            networks(TunnelNetworks { named, setting }, called, outer)
        };
        assert_eq!(networks(&[], called).unwrap(), [network("10.2.0.1/32")]);
        let named = [network("10.2.0.0/24")];
        assert_eq!(networks(&named, called).unwrap(), named);
        assert_eq!(networks(&named, None).unwrap(), named);
        let none = networks(&[], None).unwrap_err();
        assert!(none.to_string().contains("--esp-remote"), "{none}");
        for wrong in ["0.0.0.0/0", "192.0.2.2/32"] {
            let error = networks(&[network(wrong)], called).unwrap_err();
            assert!(error.to_string().contains("192.0.2."), "{error}");
        }
        assert!(networks(&[], Some(outer[1])).is_err());
        // The call would pass beside the tunnel.
        let beside = networks(&[network("10.3.0.0/24")], called).unwrap_err();
        assert!(beside.to_string().contains("10.2.0.1 is not behind"));
    }

    #[test]
    fn a_route_of_another_phone_is_named() {
        let network = "10.2.0.0/24".parse().unwrap();
        let error = |number| {
            let error = std::io::Error::from_raw_os_error(number);
            cannot_route(&network, &error).to_string()
        };
        let exists = error(17);
        assert!(
            exists.contains("route to 10.2.0.0/24: there is one already"),
            "{exists}"
        );
        assert!(exists.contains("the other phone") && !exists.contains("root"));
        assert!(error(1).contains("CAP_NET_ADMIN"));
    }

    /// An association from the network of `from` to that of `to`, both ends at the loopback address.
    fn spec(spi: u32, from: &str, to: &str) -> SaSpec {
        let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
        let end = IpAddr::from(Ipv4Addr::LOCALHOST);
        let key = EspKeys::new(&[spi as u8; 20], &[]);
        let mut spec = SaSpec::new(spi, suite, key).tunnel(end, end);
        spec.selectors = vec![TrafficSelector {
            source: from.parse().ok(),
            destination: to.parse().ok(),
            ..TrafficSelector::ANY
        }];
        spec
    }

    /// Keys are those of a key exchange, and the packets of the peer come from another port than before.
    #[test]
    fn tunnel_follows_the_peer_to_another_mapping_of_a_nat() {
        let (phone, remote) = ("10.1.0.1/32", "10.2.0.0/24");
        let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let [before, after] = [socket(), socket()];
        let local = socket().local_addr().unwrap();
        let now = Time::ZERO;
        let mut entropy = Entropy::from_number(1);
        let mut outbound = |spec| OutboundSa::new(spec, &mut entropy, now).unwrap();
        let networks = vec![remote.parse::<AddressPrefix>().unwrap()];
        let settings = GatewaySettings {
            carrier: EspCarrier::Udp,
            local: local.ip(),
            keep_alive: None,
            rekey_delay: Duration::ZERO,
            rekey_grace: GRACE,
        };
        let peer = before.local_addr().unwrap();
        let plan = tunnel_of(EspCarrier::Udp, Some(peer), networks.clone());
        let tunnels = vec![(plan, None)];
        let gateway = EspGateway::new(settings, tunnels, Vec::new(), HashKey::default(), now);
        let (device, far) = UnixDatagram::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        device.set_nonblocking(true).unwrap();
        let (messages, notes) = sync_channel(QUEUE);
        let mut carrier = PacketCarrier {
            gateway: gateway.unwrap(),
            tun: TunDevice::from_descriptor(device.into()),
            socket: EspSocket::open(EspSocketKind::Udp, local, ROOM).unwrap(),
            clock: Clock::new(),
            buffer: vec![0; ROOM],
            local: local.ip(),
            peer: Some(peer),
            networks,
            next_path: now,
            received: VecDeque::new(),
            messages,
            negotiated: NegotiatedFigures::default(),
            peer_changes: 0,
            keep_alives_sent: 0,
        };
        let pair = NegotiatedPair {
            tunnel: 0,
            inbound: InboundSa::new(spec(0x1001, remote, phone), now).unwrap(),
            outbound: outbound(spec(0x1000, phone, remote)),
        };
        carrier.install(pair, now).unwrap();
        carrier.seal_with(0x1000, peer);
        let mut sealing = outbound(spec(0x1001, remote, phone));
        for from in [&before, &after] {
            let mut packet = [0; 40];
            packet[0] = 0x45;
            packet[3] = 40;
            packet[9] = 17;
            packet[12..16].copy_from_slice(&[10, 2, 0, 9]);
            packet[16..20].copy_from_slice(&[10, 1, 0, 1]);
            let mut buffer = vec![0; ROOM];
            buffer[MAX_HEADROOM..MAX_HEADROOM + 40].copy_from_slice(&packet);
            let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, 40);
            sealing.seal_payload(&mut room, 4, now).unwrap();
            from.send_to(room.packet(), local).unwrap();
            let mut read = [0; 100];
            let arrived = (0..1_000).any(|_| {
                carrier.turn(None).unwrap();
                far.recv(&mut read).is_ok()
            });
            assert!(arrived, "{:?}", carrier.gateway.drops());
            assert_eq!(carrier.peer, from.local_addr().ok());
        }
        assert_eq!(carrier.peer_changes, 1);
        // An address inside of the tunnel is refused, and the phone keeps the one that it has.
        carrier.follow_peer("10.2.0.7:4500".parse().unwrap());
        assert_eq!(carrier.peer, after.local_addr().ok());
        assert!(matches!(notes.try_recv(), Ok(PhoneMessage::Note(_))));
    }
}
