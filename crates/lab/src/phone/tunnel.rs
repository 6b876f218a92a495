//! ESP below the kernel, for a phone whose SIP needs connections: a TUN device has the phone's address of the inside, the
//! kernel's TCP carries its connections, and a thread seals and opens the packets of the device. Without connections the phone's
//! sockets are inside of [`protect::esp::EspEndpoint`], which needs no right and no kernel.

use super::esp::{EspEnd, EspFigures};
use crate::error::LabError;
use crate::sut::system_entropy;
use engine::{DropReason, HashKey, Time};
use net::{Clock, EspSendFailure, EspSocket, EspSocketKind, OutgoingEsp, TunDevice};
use protect::esp::{
    AddressPrefix, ChangedState, EndpointKeys, EspCarrier, EspEndpointPlan, EspGateway,
    GatewayNotice, GatewaySettings, GatewayTunnel, MAX_HEADROOM, MAX_TAILROOM, NotSealed,
    PacketRoom, TOO_BIG_ROOM, write_too_big,
};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::esp::NAT_KEEP_ALIVE;

/// Longest wait for a packet; then keep-alives and the end are looked at.
const WAIT: Duration = Duration::from_millis(50);
/// A keep-alive for the NAT's binding follows after this time without a packet (RFC 3948 section 4).
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// MTU of the path to the peer where the kernel knows none, and the largest that is used.
const ETHERNET: usize = 1_500;
/// Outer headers, initialisation vector, padding and ICV of the largest suite, and those of IPv6.
const OVERHEAD: usize = 140;
/// Packets of the device between two looks at the socket.
const BATCH: usize = 64;
const ROOM: usize = MAX_HEADROOM + ETHERNET + MAX_TAILROOM;

/// The tunnel of a phone, which ends with this value.
pub(super) struct PhoneTunnel {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<EspEnd, String>>>,
}

fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("ESP below SIP over TCP or TLS: {what}: {error}"),
        "run it as root or with CAP_NET_ADMIN, as it needs a TUN device; --transport udp needs no right",
    )
}

/// Networks behind the tunnel: those of the options, else the called host.
///
/// # Errors
/// There is none, or one contains an address of ESP packets, which would then be sent into the tunnel.
pub(super) fn networks(
    remote: &[AddressPrefix],
    called: Option<IpAddr>,
    outer: [IpAddr; 2],
) -> Result<Vec<AddressPrefix>, LabError> {
    let networks = match (remote, called) {
        ([], Some(called)) => vec![AddressPrefix::from(called)],
        ([], None) => {
            return Err(LabError::bad_input(
                "ESP below SIP over TCP or TLS: name the addresses of callers inside of the tunnel with --esp-remote NETWORK",
            ));
        }
        (networks, _) => networks.to_vec(),
    };
    let inside = |ip: &IpAddr| networks.iter().any(|network| network.contains(*ip));
    if let Some(ip) = outer.iter().find(|ip| inside(ip)) {
        return Err(LabError::bad_input(format!(
            "ESP below SIP over TCP or TLS: {ip} is an address of ESP packets, and cannot be one inside of the tunnel: use other addresses for --local, the called host and --esp-remote"
        )));
    }
    Ok(networks)
}

impl PhoneTunnel {
    /// Makes the device and starts the thread.
    ///
    /// # Errors
    /// A right is missing, or an address cannot be used.
    pub(super) fn start(
        plan: EspEndpointPlan,
        phone: IpAddr,
        networks: Vec<AddressPrefix>,
    ) -> Result<PhoneTunnel, LabError> {
        let EndpointKeys::Manual(pair) = plan.keys else {
            return Err(LabError::bad_input(
                "ESP below SIP over TCP or TLS has manual keys only: --esp KEYFILE",
            ));
        };
        let (outbound, inbound) = *pair;
        let device = format!("hwp{}", std::process::id());
        let tun = TunDevice::create(&device).map_err(|error| cannot("TUN device", error))?;
        let path = net::path_mtu(plan.local.ip(), plan.peer).unwrap_or(ETHERNET);
        let path = path.min(ETHERNET);
        let least = if phone.is_ipv4() { 576 } else { 1_280 };
        let mtu = path.saturating_sub(OVERHEAD).max(least);
        TunDevice::set_up(&device, mtu).map_err(|error| cannot("TUN device", error))?;
        TunDevice::add_address(&device, phone)
            .map_err(|error| cannot(&format!("address {phone}"), error))?;
        for network in &networks {
            let to = (network.address(), network.length());
            TunDevice::add_route(&device, to, Some(phone))
                .map_err(|error| cannot(&format!("route to {network}"), error))?;
        }
        let kind = match plan.carrier {
            EspCarrier::Udp => EspSocketKind::Udp,
            EspCarrier::Ip => EspSocketKind::Ip,
        };
        let socket = EspSocket::open(kind, plan.local, ROOM).map_err(|error| {
            LabError::cannot_run(
                format!(
                    "ESP over {} at {}: {error}",
                    plan.carrier.name(),
                    plan.local
                ),
                "compare --esp-local, --esp-peer and --esp-over of both ends",
            )
        })?;
        let tunnel = GatewayTunnel {
            name: "phone".to_owned(),
            peer: Some(plan.peer),
            peer_behind_nat: plan.carrier == EspCarrier::Udp,
            remote: networks,
        };
        let settings = GatewaySettings {
            carrier: plan.carrier,
            local: plan.local.ip(),
            keep_alive: Some(KEEP_ALIVE),
            rekey_delay: Duration::ZERO,
            rekey_grace: Duration::ZERO,
        };
        let key = HashKey::new(&mut system_entropy()?);
        let tunnels = vec![(tunnel, Some(outbound))];
        let clock = Clock::new();
        let mut gateway = EspGateway::new(settings, tunnels, vec![(0, inbound)], key, clock.now())
            .map_err(|error| LabError::bad_input(error.to_string()))?;
        gateway.set_path_mtu(0, Some(path));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let carrier = PacketCarrier {
            gateway,
            tun,
            socket,
            clock,
            buffer: vec![0; ROOM],
            peer: plan.peer,
            peer_changes: 0,
            keep_alives_sent: 0,
        };
        let thread = std::thread::Builder::new()
            .name("phone-tunnel".to_owned())
            .spawn(move || carrier.run(&stopped))
            .map_err(|error| LabError::cannot_run(format!("thread: {error}"), ""))?;
        Ok(PhoneTunnel {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the thread, and returns its figures and the states of the associations.
    ///
    /// # Errors
    /// The device or the socket has failed.
    pub(super) fn end(mut self) -> Result<EspEnd, LabError> {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        let ended = ended.and_then(Result::ok);
        ended
            .unwrap_or_else(|| Err("its thread has stopped".to_owned()))
            .map_err(|why| LabError::cannot_run(format!("ESP tunnel: {why}"), ""))
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

/// Carries packets between the device and the outer socket.
struct PacketCarrier {
    gateway: EspGateway,
    tun: TunDevice,
    socket: EspSocket,
    clock: Clock,
    buffer: Vec<u8>,
    peer: SocketAddr,
    peer_changes: u64,
    keep_alives_sent: u64,
}

impl PacketCarrier {
    fn run(mut self, stop: &AtomicBool) -> Result<EspEnd, String> {
        let text = |error: std::io::Error| error.to_string();
        net::block_signals().map_err(text)?;
        while !stop.load(Ordering::Acquire) {
            let [device, socket] = net::wait_any([self.tun.as_fd(), self.socket.as_fd()], WAIT);
            let now = self.clock.now();
            if device.failed {
                return Err("the TUN device is gone".to_owned());
            }
            if device.readable {
                self.seal(now).map_err(text)?;
            }
            if socket.readable || socket.failed {
                self.open(now).map_err(text)?;
            }
            self.tick(now);
        }
        // The last packets of the phone may still wait.
        let now = self.clock.now();
        self.seal(now).map_err(text)?;
        Ok(self.ended(now))
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
                    let reason = failed.map(|failure| match failure {
                        EspSendFailure::TooLarge => DropReason::EspTooLarge,
                        EspSendFailure::Refused => DropReason::SendFailed,
                    });
                    if let Some(reason) = reason {
                        self.gateway.count_drops(reason, 1);
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

    /// Opens the packets that wait at the socket, and gives them to the device.
    fn open(&mut self, now: Time) -> std::io::Result<()> {
        let PacketCarrier {
            gateway,
            tun,
            socket,
            ..
        } = self;
        for index in 0..socket.receive()? {
            let packet = socket.received(index).filter(|packet| !packet.truncated);
            let Some(packet) = packet else {
                gateway.count_drops(DropReason::EspMalformed, 1);
                continue;
            };
            let bytes = packet.bytes;
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
            peer,
            peer_changes,
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
        gateway.deliver_notices(|notice| {
            if let GatewayNotice::PeerMoved { address, .. } = notice {
                *peer = address;
                *peer_changes += 1;
            }
            true
        });
    }

    fn ended(&mut self, now: Time) -> EspEnd {
        let counters = self.gateway.counters();
        let (mut outbound, mut inbound) = (None, None);
        for state in self.gateway.states(now) {
            match state {
                ChangedState::Outbound(state) => outbound = Some(state),
                ChangedState::Inbound(state) => inbound = Some(state),
            }
        }
        let drops = self.gateway.drops().iter().filter(|(_, count)| *count > 0);
        EspEnd {
            states: outbound.zip(inbound),
            figures: EspFigures {
                peer: Some(self.peer),
                sealed: counters.sealed,
                opened: counters.opened,
                keep_alives: [self.keep_alives_sent, counters.keep_alives_received],
                ike_messages: counters.ike_messages,
                peer_changes: self.peer_changes,
                drops: drops
                    .map(|(reason, count)| (reason.name(), count))
                    .collect(),
                ..EspFigures::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_the_options_and_have_no_outer_address() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let network = |text: &str| text.parse::<AddressPrefix>().unwrap();
        let outer = [ip("192.0.2.1"), ip("192.0.2.2")];
        let called = Some(ip("10.2.0.1"));
        assert_eq!(
            networks(&[], called, outer).unwrap(),
            [network("10.2.0.1/32")]
        );
        let named = [network("10.2.0.0/24")];
        assert_eq!(networks(&named, called, outer).unwrap(), named);
        let none = networks(&[], None, outer).unwrap_err();
        assert!(none.to_string().contains("--esp-remote"), "{none}");
        for wrong in ["0.0.0.0/0", "192.0.2.2/32"] {
            let error = networks(&[network(wrong)], called, outer).unwrap_err();
            assert!(error.to_string().contains("192.0.2."), "{error}");
        }
        assert!(networks(&[], Some(outer[1]), outer).is_err());
    }
}
