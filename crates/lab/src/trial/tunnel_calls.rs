//! Calls through an ESP tunnel in virtual time: callers behind the softphone's ESP layer, a link with loss, duplicates
//! and reordering, the core of the IPsec gateway, a border and callees. Keys change under traffic, in the order of
//! messages of IKEv2, and the gateway of some seeds restarts without its associations.

use super::{TrialHosts, merge, total_held};
use crate::experiment::{Experiment, File};
use crate::host::{Holdings, LabHost};
use crate::record::{AttemptKind, AttemptOutcome};
use crate::sut::{Simulated, simulated_addresses};
use engine::{
    Datagram, Deadline, DropReason, Drops, Engine, Entropy, HashKey, Input, Output, SocketId,
    SocketKind, Time,
};
use protect::esp::{
    EndpointKeys, EspCarrier, EspEncryption, EspEndpoint, EspEndpointPlan, EspGateway,
    EspIntegrity, EspKeys, EspSuite, GatewaySettings, GatewayTunnel, InboundSa, MAX_HEADROOM,
    MAX_TAILROOM, NegotiatedPair, OutboundSa, PacketRoom, SaSpec,
};
use sim::{Delay, HostId, LinkConfig, Loss, TapPoint, World};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use wire::ip::{internet_checksum, protocol};

const CALLS: &str = r#"
name = "tunnel-calls"
title = "Calls through a tunnel"
[callers]
rate = 1.0
total = 2
hold_seconds = 6.0
media = "tone"
[callees]
media = "tone"
"#;

/// The ends of the tunnel: the softphone's layer, the gateway.
const PHONE: usize = 0;
const GATEWAY: usize = 1;
/// Number of the outer socket of the gateway; the others are at addresses of the phone.
const OUTER: SocketId = SocketId(0);
/// The gateway's work that depends on time alone.
const TICK: Duration = Duration::from_millis(500);
const HEADERS: usize = 28;

fn outer(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8 + 1], 4_500))
}

/// SPI of the packets that an end receives with keys of this number.
fn spi(number: u32, end: usize) -> u32 {
    0x1000 + number * 2 + end as u32
}

/// The association of an end, with keys of this number.
fn pair(seed: u64, number: u32, end: usize, now: Time) -> NegotiatedPair {
    let mut entropy = Entropy::from_number(seed << 16 | u64::from(number));
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    let [to_phone, to_gateway] = [PHONE, GATEWAY].map(|to| {
        let mut key = [0; 20];
        entropy.fill(&mut key);
        let spec = SaSpec::new(spi(number, to), suite, EspKeys::new(&key, &[]));
        spec.tunnel(outer(1 - to).ip(), outer(to).ip())
    });
    let (received, sent) = match end {
        PHONE => (to_phone, to_gateway),
        _ => (to_gateway, to_phone),
    };
    NegotiatedPair {
        tunnel: 0,
        inbound: InboundSa::new(received, now).unwrap(),
        outbound: OutboundSa::new(sent, &mut entropy, now).unwrap(),
    }
}

/// The gateway's host: its outer socket, and in place of the host's kernel a socket at each address and port of the
/// phone from which packets have come out of the tunnel.
struct SimulatedGateway {
    esp: EspGateway,
    /// Local addresses, the outer one first, and whether they are open.
    sockets: Vec<(SocketAddr, bool)>,
    /// How many of them were requested.
    requested: usize,
    queue: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    current: Vec<u8>,
    /// Identifications of the phone's packets, each of which is another one.
    accepted: BTreeSet<u16>,
    ticked: Time,
}

fn gateway(phone: IpAddr, now: Time) -> EspGateway {
    let tunnel = GatewayTunnel {
        name: "phone".to_owned(),
        peer: Some(outer(PHONE)),
        peer_behind_nat: false,
        remote: vec![phone.into()],
    };
    let settings = GatewaySettings {
        carrier: EspCarrier::Udp,
        local: outer(GATEWAY).ip(),
        keep_alive: None,
        rekey_delay: Duration::from_secs(10),
        rekey_grace: Duration::from_secs(5),
    };
    let tunnels = vec![(tunnel, None)];
    EspGateway::new(settings, tunnels, Vec::new(), HashKey::default(), now).unwrap()
}

impl SimulatedGateway {
    fn new(phone: IpAddr) -> SimulatedGateway {
        SimulatedGateway {
            esp: gateway(phone, Time::ZERO),
            sockets: vec![(outer(GATEWAY), false)],
            requested: 0,
            queue: VecDeque::new(),
            current: Vec::new(),
            accepted: BTreeSet::new(),
            ticked: Time::ZERO,
        }
    }

    /// A packet from the tunnel leaves from a socket with its source.
    fn open(&mut self, source: SocketAddr, bytes: &mut [u8], now: Time) {
        let Some(place) = self.esp.open(source, 0, bytes, now) else {
            return;
        };
        let inner = &bytes[place];
        let number = u16::from_be_bytes([inner[4], inner[5]]);
        assert!(
            self.accepted.insert(number),
            "packet {number} was accepted twice"
        );
        let end = |address: usize, port: usize| {
            let ip: [u8; 4] = inner[address..address + 4].try_into().unwrap();
            let port = u16::from_be_bytes([inner[port], inner[port + 1]]);
            SocketAddr::from((ip, port))
        };
        let (from, to) = (end(12, 20), end(16, 22));
        let known = self.sockets.iter().position(|(local, _)| *local == from);
        let socket = known.unwrap_or(self.sockets.len());
        if known.is_none() {
            self.sockets.push((from, false));
        }
        let payload = inner[HEADERS..].to_vec();
        self.queue.push_back((SocketId(socket as u32), to, payload));
    }

    /// A packet for the phone goes into the tunnel.
    fn seal(&mut self, datagram: &Datagram<'_>, now: Time) {
        let (local, _) = self.sockets[datagram.socket.0 as usize];
        let (IpAddr::V4(from), IpAddr::V4(to)) = (datagram.source.ip(), local.ip()) else {
            panic!("the inside is IPv4");
        };
        let length = HEADERS + datagram.bytes.len();
        let mut header = [0; HEADERS];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        header[8] = 64;
        header[9] = protocol::UDP;
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let sum = internet_checksum(&[&header[..20]]).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        header[20..22].copy_from_slice(&datagram.source.port().to_be_bytes());
        header[22..24].copy_from_slice(&local.port().to_be_bytes());
        header[24..26].copy_from_slice(&((length - 20) as u16).to_be_bytes());
        let mut buffer = vec![0; MAX_HEADROOM];
        buffer.extend_from_slice(&header);
        buffer.extend_from_slice(datagram.bytes);
        buffer.resize(MAX_HEADROOM + length + MAX_TAILROOM, 0);
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, length);
        if let Ok(sealed) = self.esp.seal(&mut room, now) {
            let packet = room.packet().to_vec();
            self.queue.push_back((OUTER, sealed.destination, packet));
        }
    }
}

impl Engine for SimulatedGateway {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Opened { socket, .. } => self.sockets[socket.0 as usize].1 = true,
            Input::Datagram(datagram) if datagram.socket == OUTER => {
                self.open(datagram.source, datagram.bytes, now);
            }
            Input::Datagram(datagram) => self.seal(&datagram, now),
            Input::Timeout => {
                self.ticked = now;
                self.esp.tick(now, |_| ());
            }
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((local, _)) = self.sockets.get(self.requested) {
            let socket = SocketId(self.requested as u32);
            self.requested += 1;
            return Some(Output::OpenSocket {
                socket,
                kind: SocketKind::UdpSignalling,
                local: *local,
            });
        }
        let is_open = |socket: SocketId| self.sockets[socket.0 as usize].1;
        let ready = self.queue.iter().position(|(socket, ..)| is_open(*socket));
        let (socket, destination, bytes) = self.queue.remove(ready?)?;
        self.current = bytes;
        Some(Output::Datagram {
            socket,
            destination,
            bytes: &self.current,
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        Some(Deadline::new(self.ticked + TICK, "gateway"))
    }
}

/// An act of the key exchange at an end, for keys of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAct {
    /// The association opens.
    Install,
    /// It seals.
    Seal,
    /// It opens for the grace time only.
    Remove,
    /// Keys of all numbers before are forgotten at once: the other end has said that it has none.
    Forget,
    /// The end restarts without its associations.
    Restart,
}

#[derive(Clone, Copy, Debug)]
struct KeyStep {
    at: Time,
    end: usize,
    act: KeyAct,
    number: u32,
}

/// The acts of a seed: new keys again and again, and in every third seed a restart of the gateway.
fn steps(seed: u64) -> Vec<KeyStep> {
    let mut entropy = Entropy::from_number(!seed);
    let mut millis = |from: u64, to: u64| Duration::from_millis(from + entropy.below(to - from));
    // Time of a message of an exchange, a lost one included.
    let message = (5, 150);
    let mut restart = (seed.is_multiple_of(3)).then(|| Time::ZERO + millis(1_500, 8_000));
    let mut at = Time::from_millis(2);
    let mut steps = Vec::new();
    let step = |at: Time, end: usize, act: KeyAct, number: u32| KeyStep {
        at,
        end,
        act,
        number,
    };
    for end in [GATEWAY, PHONE] {
        steps.push(step(at, end, KeyAct::Install, 0));
        steps.push(step(at, end, KeyAct::Seal, 0));
    }
    let mut number = 0;
    while at < Time::from_secs(10) {
        at += millis(1_500, 2_500);
        number += 1;
        if let Some(time) = restart.take_if(|time| *time <= at) {
            // An exchange that is under way ends with the restart.
            steps.retain(|step| step.at <= time);
            steps.push(step(time, GATEWAY, KeyAct::Restart, number));
            at = time + millis(300, 1_200);
            steps.push(step(at, PHONE, KeyAct::Install, number));
            steps.push(step(at, PHONE, KeyAct::Seal, number));
            steps.push(step(at, PHONE, KeyAct::Forget, number));
            at += millis(message.0, message.1);
            steps.push(step(at, GATEWAY, KeyAct::Install, number));
            steps.push(step(at, GATEWAY, KeyAct::Seal, number));
            continue;
        }
        // The end that answers opens first, and seals when the other one deletes the old keys.
        let begins = Entropy::from_number(seed ^ u64::from(number) << 32).below(2) as usize;
        let answers = 1 - begins;
        steps.push(step(at, answers, KeyAct::Install, number));
        at += millis(message.0, message.1);
        steps.push(step(at, begins, KeyAct::Install, number));
        steps.push(step(at, begins, KeyAct::Seal, number));
        at += millis(message.0, message.1);
        steps.push(step(at, answers, KeyAct::Seal, number));
        steps.push(step(at, answers, KeyAct::Remove, number - 1));
        at += millis(message.0, message.1);
        steps.push(step(at, begins, KeyAct::Remove, number - 1));
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// The hosts of a seed.
struct TunnelWorld {
    world: World,
    phone: HostId,
    gateway: HostId,
    far: HostId,
    sut: Simulated,
    seed: u64,
    phone_ip: IpAddr,
    /// Packets of the tunnel that left the link at each end.
    arrived: Rc<[Cell<u64>; 2]>,
}

type Phone = EspEndpoint<LabHost>;

impl TunnelWorld {
    fn new(seed: u64, experiment: &Experiment) -> TunnelWorld {
        let mut world = World::new(seed);
        let [phone_ip, far_ip] = simulated_addresses(experiment, 1);
        let cast = TrialHosts::of(experiment, phone_ip, far_ip, 31_000).unwrap();
        let entropy = world.entropy();
        let far = LabHost::new(cast.far.unwrap(), entropy);
        let far = world.add_engine("far", &[far_ip], far);
        world.run_until(Time::from_millis(1));
        let address = world.with_engine(far, |host: &mut LabHost, _| host.address());
        let far_address = address.flatten();
        let sut = Simulated::add(&mut world, experiment, 0, far_address).unwrap();
        let plan = EspEndpointPlan {
            carrier: EspCarrier::Udp,
            local: outer(PHONE),
            peer: outer(GATEWAY),
            keys: EndpointKeys::Negotiated,
            shortcut: None,
            offers: false,
        };
        let entropy = world.entropy();
        let engine = EspEndpoint::new(LabHost::new(cast.near, entropy), plan);
        let phone = world.add_engine("phone", &[outer(PHONE).ip()], engine);
        let inside = SimulatedGateway::new(phone_ip);
        let gateway = world.add_engine("gateway", &[outer(GATEWAY).ip(), phone_ip], inside);
        let link = LinkConfig {
            delay: Delay::Uniform(Duration::from_millis(10), Duration::from_millis(40)),
            loss: Loss::Random(0.02),
            duplicate: 0.05,
            reorder: 0.05,
            reorder_by: Duration::from_millis(60),
            ordered: false,
            ..LinkConfig::default()
        };
        world.set_link(phone, gateway, link.clone());
        world.set_link(gateway, phone, link);
        let arrived: Rc<[Cell<u64>; 2]> = Rc::default();
        let counts = Rc::clone(&arrived);
        world.add_tap(move |packet| {
            for end in [PHONE, GATEWAY] {
                let is_here = matches!(packet.point, TapPoint::Delivered(_));
                if is_here && packet.destination == outer(end) {
                    counts[end].set(counts[end].get() + 1);
                }
            }
        });
        TunnelWorld {
            world,
            phone,
            gateway,
            far,
            sut,
            seed,
            phone_ip,
            arrived,
        }
    }

    fn with_phone<R>(&mut self, work: impl FnOnce(&mut Phone, Time) -> R) -> R {
        self.world.with_engine(self.phone, work).expect("the phone")
    }

    fn with_gateway<R>(&mut self, work: impl FnOnce(&mut SimulatedGateway, Time) -> R) -> R {
        let done = self.world.with_engine(self.gateway, work);
        done.expect("the gateway")
    }

    fn perform(&mut self, step: KeyStep) {
        self.world.run_until(step.at);
        let KeyStep {
            end, act, number, ..
        } = step;
        let (seed, now, phone_ip) = (self.seed, self.world.now(), self.phone_ip);
        let spis = |number: u32| [spi(number, end), spi(number, 1 - end)];
        let peer = outer(1 - end);
        match (end, act) {
            (PHONE, KeyAct::Install) => self
                .with_phone(|phone, now| phone.install(pair(seed, number, end, now), now))
                .expect("installed"),
            (PHONE, KeyAct::Seal) => {
                let is_known = self.with_phone(|phone, _| phone.seal_with(spis(number)[1], peer));
                assert!(is_known, "{step:?}");
            }
            (PHONE, KeyAct::Remove) => {
                self.with_phone(|phone, now| phone.remove(spis(number), false, now));
            }
            (PHONE, _) => self.with_phone(|phone, now| {
                for before in 0..number {
                    phone.remove(spis(before), true, now);
                }
            }),
            (_, KeyAct::Install) => self
                .with_gateway(|host, now| host.esp.install(pair(seed, number, end, now)))
                .expect("installed"),
            (_, KeyAct::Seal) => {
                let sealing = spis(number)[1];
                let is_known = self.with_gateway(|host, _| host.esp.seal_with(0, sealing, peer));
                assert!(is_known, "{step:?}");
            }
            (_, KeyAct::Remove) => {
                let [received, sent] = spis(number);
                let is_down =
                    self.with_gateway(|host, now| host.esp.remove_pair(received, sent, false, now));
                assert!(!is_down, "{step:?}: another association seals");
            }
            (_, _) => self.with_gateway(|host, _| host.esp = gateway(phone_ip, now)),
        }
    }
}

/// Counts over seeds: that they have tested something.
#[derive(Debug, Default)]
struct SeedCounts {
    rekeyed: u64,
    replayed: u64,
    lost_by_restarts: u64,
}

/// Only these reasons may occur at an end.
fn check_drops(seed: u64, drops: &Drops, allowed: &[DropReason]) {
    for (reason, count) in drops.iter() {
        assert!(
            allowed.contains(&reason),
            "seed {seed}: {count} packets were lost by {reason:?}"
        );
    }
}

fn judge_seed(seed: u64, counts: &mut SeedCounts) {
    let file = File::parse("tunnel-calls", CALLS).unwrap();
    let experiment = file.experiment();
    let mut tunnel = TunnelWorld::new(seed, experiment);
    let mut steps = steps(seed);
    let restarts = steps.iter().any(|step| step.act == KeyAct::Restart);
    // The phone's sockets open with the first association.
    for step in steps.drain(..4).collect::<Vec<_>>() {
        tunnel.perform(step);
    }
    let start = Time::from_millis(200);
    tunnel.world.run_until(Time::from_millis(150));
    let target = tunnel.sut.address().expect("border");
    tunnel.with_phone(|phone, _| phone.engine().begin(target, start));
    tunnel
        .world
        .with_engine(tunnel.far, |host: &mut LabHost, _| {
            host.begin(target, start)
        });
    for step in steps {
        tunnel.perform(step);
    }
    // Calls and transactions end.
    tunnel.world.run_until(Time::from_secs(100));
    let (held, near) = tunnel.with_phone(|phone, now| {
        let host = phone.engine();
        (host.holdings(), host.finish(now))
    });
    let far = tunnel
        .world
        .with_engine(tunnel.far, |host: &mut LabHost, now| {
            (host.holdings(), host.finish(now))
        });
    let (far_held, far) = far.expect("far");
    let holdings: [Holdings; 2] = [held, far_held];
    assert_eq!(total_held(&holdings), 0, "seed {seed}: {holdings:?}");
    let (leaks, census) = tunnel.sut.leaks(&mut tunnel.world);
    assert_eq!(leaks, 0, "seed {seed}: {census:?}");
    let (attempts, streams) = merge(0, vec![near, far]);
    let calls = attempts.iter().filter(|a| a.kind == AttemptKind::Call);
    assert_eq!(calls.clone().count(), 2, "seed {seed}");
    for call in calls {
        assert_eq!(
            call.outcome,
            AttemptOutcome::Completed,
            "seed {seed}: {call:?}"
        );
    }
    assert_eq!(streams.len(), 4, "seed {seed}");
    for stream in &streams {
        assert_eq!(stream.duplicates, 0, "seed {seed}: {stream:?}");
        // Of six seconds a restart takes less than two.
        let least = if restarts { 180 } else { 270 };
        assert!(stream.received > least, "seed {seed}: {stream:?}");
    }
    check_tunnel(&mut tunnel, restarts, counts);
}

/// Packets that arrived were opened, or were repeated by the link: a change of keys has lost none.
fn check_tunnel(tunnel: &mut TunnelWorld, restarts: bool, counts: &mut SeedCounts) {
    let seed = tunnel.seed;
    let arrived = [PHONE, GATEWAY].map(|end| tunnel.arrived[end].get());
    let allowed: &[DropReason] = match restarts {
        false => &[DropReason::EspReplayed],
        true => &[
            DropReason::EspReplayed,
            DropReason::EspUnknownSpi,
            DropReason::EspNoAssociation,
        ],
    };
    let (opened, drops, rekeyed) = tunnel.with_phone(|phone, _| {
        let counters = phone.counters();
        (counters.opened, phone.drops().clone(), counters.rekeyed)
    });
    check_drops(seed, &drops, allowed);
    let received = opened + drops.total() - drops.get(DropReason::EspNoAssociation);
    assert_eq!(received, arrived[PHONE], "seed {seed}: {drops:?}");
    let (opened, at_gateway) = tunnel.with_gateway(|host, _| {
        let counters = host.esp.counters();
        let opened = counters.opened + counters.keep_alives_received;
        (opened, host.esp.drops().clone())
    });
    check_drops(seed, &at_gateway, allowed);
    if !restarts {
        // A gateway that restarts counts from zero.
        assert_eq!(
            opened + at_gateway.total(),
            arrived[GATEWAY],
            "seed {seed}: {at_gateway:?}"
        );
    }
    assert!(rekeyed >= 3, "seed {seed}: {rekeyed}");
    counts.rekeyed += rekeyed;
    for drops in [&drops, &at_gateway] {
        counts.replayed += drops.get(DropReason::EspReplayed);
        counts.lost_by_restarts += drops.get(DropReason::EspUnknownSpi);
    }
}

/// Seeds by `HORNWORK_SEEDS`, 18 by default; 1,000 take minutes.
#[test]
fn no_call_is_lost_by_new_keys_and_no_packet_accepted_twice() {
    let wanted = std::env::var("HORNWORK_SEEDS").ok();
    let seeds: u64 = wanted.and_then(|text| text.parse().ok()).unwrap_or(18);
    let mut counts = SeedCounts::default();
    for seed in 1..=seeds {
        judge_seed(seed, &mut counts);
    }
    eprintln!("{seeds} seeds: {counts:?}");
    assert!(counts.replayed > seeds, "{counts:?}");
    assert!(seeds < 3 || counts.lost_by_restarts > 0, "{counts:?}");
}
