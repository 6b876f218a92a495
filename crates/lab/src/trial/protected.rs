//! A protected access side: callers in a network namespace of their own, and between them and the border either a link,
//! or a tunnel to the border's own gateway (`tunnel_to_border.rs`), or two gateways of this program that seal and open
//! every packet (ESP, RFC 4303) and reach the kernel by TUN, or the line of `tunnelled.rs` with firewall, tunnel or
//! ESP, and the link of `[network]`.

use super::tunnel_to_border::{TunnelToBorder, TunnelToBorderEnd, gateway_drops};
use super::tunnelled::{Tunnelled, TunnelledEnd};
use super::{HostPlacement, Outcomes, Trial};
use crate::error::LabError;
use crate::esp::{self, EspCarriage, EspCase, EspEnds};
use crate::experiment::{Experiment, Protection};
use crate::hops::DelayCounter;
use crate::measure::MeasureRecord;
use crate::raw::{LinkRecord, NoiseRecord};
use crate::record::{Attempt, AttemptKind};
use crate::sut::{PROTECTED_BORDER as BORDER, ProgramPlan, RunningSut};
use engine::{Entropy, Time};
use net::{Clock, Network, TunDevice, interface_counters};
use protect::esp::{InboundSa, MAX_HEADROOM, MAX_TAILROOM, OutboundSa, PacketRoom};
use sim::{TapPoint, TapTransport, World};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Address of the callers.
pub(super) const CALLERS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
/// Interfaces of the two sides.
pub(super) const NAMES: [&str; 2] = ["callers0", "border0"];
/// Longest wait of a gateway thread, after which it looks whether the trial has ended.
const WAIT: Duration = Duration::from_millis(50);
/// MTU of the interfaces, bytes: the outer packet is not longer than 1,500.
pub(super) const MTU: usize = 1_400;
const ROOM: usize = 2_048;
/// Reason why a figure is missing.
const NO_GATEWAY_TIME: &str = "esp.gateway_us: not measured: with protection.gateway = \"direct\" the border's thread seals and opens between its other work";
const ETHERNET: u64 = 14;

pub(super) fn cannot(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("cannot set up the protected link: {what}: {error}"),
        "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN) on a kernel with veth and TUN, with ip (Debian: iproute2), or use --simulate",
    )
}

/// Counts of a gateway thread.
#[derive(Clone, Debug, Default)]
struct GatewayCount {
    packets: u64,
    /// Bytes of the sealed IP packets.
    bytes: u64,
    refused: u64,
    cpu_seconds: f64,
    /// From the TUN device of one gateway to that of the other; counted where packets are opened.
    delays: Option<Box<DelayCounter>>,
}

type GatewayThread = JoinHandle<Result<GatewayCount, String>>;

/// The two gateways: of the callers, and of the border; each seals in one thread and opens in another.
struct Gateways {
    stopped: Arc<AtomicBool>,
    /// Sealing and opening, callers' side.
    callers: [GatewayThread; 2],
    /// Sealing and opening, border's side.
    border: [GatewayThread; 2],
}

/// The access side of a trial.
pub(super) struct ProtectedLink {
    /// Namespace of the callers.
    network: Arc<Network>,
    gateways: Option<Gateways>,
    handshake: Option<esp::HandshakeCost>,
    before: u64,
    tunnelled: Option<Tunnelled>,
    protection: Protection,
    /// The border is a program of its own.
    has_border_program: bool,
    /// The tunnel to its gateway.
    border: Option<TunnelToBorder>,
}

/// Figures of the access side for the record of the trial.
#[derive(Debug, Default)]
pub(super) struct AccountedLink {
    /// CPU time of the SUT with that of its gateway.
    pub(super) cpu_seconds: Option<f64>,
    /// Figures.
    pub(super) measures: Vec<MeasureRecord>,
    /// Time of packets in the gateways, milliseconds: mean, median, 99th percentile.
    pub(super) delay_ms: Option<[Option<f64>; 3]>,
    /// The link of `[network]`.
    pub(super) links: Vec<LinkRecord>,
    /// Remarks on it.
    pub(super) remarks: Vec<String>,
}

/// Cost of the protected link.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkCost {
    /// CPU time of the border's gateway and of handshakes that are not part of the border's own, seconds.
    pub(super) cpu_seconds: f64,
    /// Bytes of IP packets, both ways.
    bytes: u64,
    refused: u64,
    /// CPU time of the border's gateway alone.
    gateway_seconds: f64,
    gateway_packets: u64,
    /// Packets on the wire that are none of the border's gateway.
    clear: Option<u64>,
    /// Packets of media that passed straight between ESP and the border's forwarder.
    direct: Option<u64>,
    /// Time of packets in both gateways, milliseconds: mean, median, 99th percentile.
    delay_ms: Option<[Option<f64>; 3]>,
}

impl ProtectedLink {
    /// Sets up the access side; the calling thread is in the namespace of the border.
    pub(super) fn open(
        experiment: &Experiment,
        protection: &Protection,
        seed: u64,
    ) -> Result<ProtectedLink, LabError> {
        let has_border_program = protection.has_border_program(experiment);
        if has_border_program {
            crate::sut::program()?;
        }
        let tunnelled = match protection.has_line(experiment.network.is_set()) {
            true => Some(Tunnelled::open(experiment, protection, seed)?),
            false => None,
        };
        let network = match &tunnelled {
            Some(tunnelled) => {
                let [callers, _] = tunnelled.networks();
                callers
            }
            None => {
                let network = Network::with_loopback().map_err(|error| cannot("unshare", error))?;
                Arc::new(network)
            }
        };
        let mut link = ProtectedLink {
            network: network.clone(),
            gateways: None,
            handshake: None,
            before: 0,
            tunnelled,
            protection: protection.clone(),
            has_border_program,
            border: None,
        };
        let border = link.border_network();
        let mut entropy = Entropy::from_number(seed);
        link.border = TunnelToBorder::open(protection, &network, border.as_deref(), &mut entropy)?;
        match protection.esp() {
            _ if link.tunnelled.is_some() => {}
            _ if link.border.is_some() => link.before = wire_bytes()?,
            Some((case, carriage)) => {
                link.gateways = Some(Gateways::start(&network, case, carriage, seed)?);
            }
            None => {
                run(&[
                    &format!("link add {} type veth peer name {}", NAMES[1], NAMES[0]),
                    &format!("link set {} netns {}", NAMES[0], network.path().display()),
                ])?;
                address(NAMES[1], BORDER)?;
                in_network(&network, || address(NAMES[0], CALLERS))?;
                link.before = wire_bytes()?;
            }
        }
        if protection.has_dtls() {
            link.handshake = Some(esp::handshake_cost()?);
        }
        Ok(link)
    }

    /// Whether other programs carry its packets: those of a tunnel.
    pub(super) fn has_programs(&self) -> bool {
        self.protection.module().is_some()
    }

    /// The namespace in which the border runs; `None`: that of the calling thread.
    pub(super) fn border_network(&self) -> Option<Arc<Network>> {
        self.tunnelled.as_ref().map(|tunnelled| {
            let [_, border] = tunnelled.networks();
            border
        })
    }

    /// Parts of the border's configuration, if it is a program of its own.
    pub(super) fn border_program(&self) -> Option<ProgramPlan<'_>> {
        let plan = self.border.as_ref().map(TunnelToBorder::plan);
        self.has_border_program.then(|| plan.unwrap_or_default())
    }

    /// Border and gateway, for the remarks of the trial.
    pub(super) fn border_name(&self) -> String {
        match (&self.border, self.has_border_program) {
            (Some(border), _) => format!(
                "the border is `hornwork run` with [gateway], media = {:?}",
                border.media()
            ),
            (None, true) if self.protection.esp().is_some() => {
                "the border is `hornwork run` behind a gateway of the test lab".to_owned()
            }
            (None, true) => "the border is `hornwork run`".to_owned(),
            (None, false) => "the border is a thread of the test lab".to_owned(),
        }
    }

    /// Reads the counts of the border's gateway before the border ends.
    pub(super) fn read_border(&mut self, sut: &RunningSut) -> Result<(), LabError> {
        match &mut self.border {
            Some(border) => border.read(sut),
            None => Ok(()),
        }
    }

    /// Ends the faults of the link of `[network]` at their time.
    pub(super) fn heal_at(&self, seconds: f64) {
        if let Some(tunnelled) = &self.tunnelled {
            tunnelled.heal_at(seconds);
        }
    }

    /// Placement of the callers' hosts.
    pub(super) fn placement(link: Option<&ProtectedLink>) -> HostPlacement {
        HostPlacement {
            network: link.map(|link| link.network.clone()),
            ..HostPlacement::default()
        }
    }

    /// Ends the link.
    pub(super) fn account(
        link: Option<ProtectedLink>,
        (trial, attempts): (u32, &[Attempt]),
        cpu_seconds: Option<f64>,
        noise: &NoiseRecord,
    ) -> Result<AccountedLink, LabError> {
        let Some(mut link) = link else {
            return Ok(AccountedLink {
                cpu_seconds,
                ..AccountedLink::default()
            });
        };
        let calls = attempts
            .iter()
            .filter(|a| a.kind == AttemptKind::Call && a.established.is_some());
        let has_direct_media = (link.border.as_ref()).is_some_and(|one| one.media() == "direct");
        // The devices end with their gateways.
        let mut faults = link.device_drops()?;
        let border = link.border.take().map(TunnelToBorder::finish).transpose()?;
        let tunnelled = link.tunnelled.take();
        let ended = tunnelled.map(|tunnelled| tunnelled.finish(&link.protection, noise));
        let ended = ended.transpose()?;
        let cost = link.close(calls.count() as u64, ended.as_ref(), border)?;
        let (mut links, mut remarks) =
            ended.map_or_else(Default::default, |end| (end.links, end.remarks));
        if has_direct_media {
            remarks.push(NO_GATEWAY_TIME.to_owned());
        }
        faults.extend(border.iter().flat_map(TunnelToBorderEnd::faults));
        add_faults(&mut links, &faults);
        let cpu_seconds = cpu_seconds.map(|seconds| seconds + cost.cpu_seconds);
        Ok(AccountedLink {
            cpu_seconds,
            measures: cost.records(trial, attempts),
            delay_ms: cost.delay_ms,
            links,
            remarks,
        })
    }

    /// Packets that the kernel dropped because a gateway of the test lab did not read its TUN device in time, in words.
    /// The devices of a line are those of the test bed.
    fn device_drops(&self) -> Result<Vec<String>, LabError> {
        // Without its device a gateway has failed, and says why at its end.
        let drops = |name: &str| interface_counters(name).map_or(0, |counters| counters.send_drops);
        let mut faults = Vec::new();
        if self.border.is_some() || self.gateways.is_some() {
            let packets = in_network(&self.network, || Ok(drops(NAMES[0])))?;
            faults.extend(gateway_drops("callers", packets));
        }
        if self.gateways.is_some() {
            faults.extend(gateway_drops("border", drops(NAMES[1])));
        }
        Ok(faults)
    }

    /// Ends the gateways; `calls` were made, and `line` and the tunnel to the border's gateway have ended, if there
    /// were any.
    fn close(
        mut self,
        calls: u64,
        line: Option<&TunnelledEnd>,
        border: Option<TunnelToBorderEnd>,
    ) -> Result<LinkCost, LabError> {
        let mut cost = LinkCost::default();
        match self.gateways.take() {
            Some(gateways) => {
                gateways.stopped.store(true, Ordering::Relaxed);
                let [callers_seal, callers_open] = gateways.callers.map(join);
                let [border_seal, border_open] = gateways.border.map(join);
                let all = [callers_seal?, callers_open?, border_seal?, border_open?];
                let mut delays = DelayCounter::default();
                all.iter()
                    .filter_map(|count| count.delays.as_deref())
                    .for_each(|counter| delays.add(counter));
                cost.delay_ms = Some(delays.figures());
                let [callers_seal, _, border_seal, border_open] = &all;
                cost.bytes = callers_seal.bytes + border_seal.bytes;
                cost.refused = all.iter().map(|count| count.refused).sum();
                cost.gateway_seconds = border_seal.cpu_seconds + border_open.cpu_seconds;
                cost.gateway_packets = border_seal.packets + border_open.packets;
                cost.cpu_seconds = cost.gateway_seconds;
            }
            None => {
                cost.bytes = match line {
                    Some(line) => line.bytes,
                    None => wire_bytes()?.saturating_sub(self.before),
                };
                if let Some([callers, border]) = line.and_then(|line| line.gateways.as_ref()) {
                    let mut delays = callers.delays.clone();
                    delays.add(&border.delays);
                    cost.delay_ms = Some(delays.figures());
                    cost.refused = callers.refused + border.refused;
                    cost.gateway_seconds = border.cpu_seconds;
                    cost.gateway_packets = border.sealed + border.opened;
                    cost.cpu_seconds = cost.gateway_seconds;
                }
            }
        }
        // Its CPU time is part of that of the border.
        if let Some(border) = border {
            cost.refused = border.refused;
            cost.clear = border.clear;
            cost.direct = Some(border.direct);
            (cost.gateway_seconds, cost.gateway_packets) = border.work.unwrap_or_default();
        }
        if let Some(handshake) = self.handshake {
            cost.cpu_seconds += handshake.cpu_us * calls as f64 / 1e6;
            cost.bytes += handshake.bytes * calls;
        }
        Ok(cost)
    }
}

/// Name of the record of the gateways' faults, where no link has one.
const GATEWAYS: &str = "ESP gateways";

/// Adds faults of the gateways to the record of the link, or as a record of their own: the trial is not judged.
fn add_faults(links: &mut Vec<LinkRecord>, faults: &[String]) {
    if faults.is_empty() {
        return;
    }
    if links.is_empty() {
        links.push(LinkRecord {
            name: GATEWAYS.to_owned(),
            ..LinkRecord::default()
        });
    }
    for link in links {
        link.faults.extend_from_slice(faults);
    }
}

impl LinkCost {
    /// The figures of a trial.
    pub(super) fn records(&self, trial: u32, attempts: &[Attempt]) -> Vec<MeasureRecord> {
        let record = |figure: &str, value: f64| MeasureRecord {
            trial,
            figure: format!("esp.{figure}"),
            of: "runs".to_owned(),
            samples: vec![value],
        };
        let calls = attempts.iter().filter(|a| a.kind == AttemptKind::Call);
        let talked: f64 = calls.filter_map(Attempt::talk_seconds).sum();
        let mut records = vec![record("refused_packets", self.refused as f64)];
        let counts = [
            ("clear_packets", self.clear),
            ("direct_packets", self.direct),
        ];
        for (figure, count) in counts {
            records.extend(count.map(|count| record(figure, count as f64)));
        }
        if talked > 0.0 {
            let kbit = self.bytes as f64 * 8.0 / 1e3 / talked / 2.0;
            records.push(record("call_kbit", kbit));
        }
        if self.gateway_packets > 0 {
            let each = self.gateway_seconds * 1e6 / self.gateway_packets as f64;
            records.push(record("gateway_us", each));
        }
        records
    }
}

fn join(thread: GatewayThread) -> Result<GatewayCount, LabError> {
    thread
        .join()
        .unwrap_or_else(|_| Err("it panicked".to_owned()))
        .map_err(|why| cannot("a gateway", why))
}

/// Bytes of IP packets that passed the border's end of the link, both ways.
fn wire_bytes() -> Result<u64, LabError> {
    let counters = interface_counters(NAMES[1]).map_err(|error| cannot("counters", error))?;
    let packets = counters.received_packets + counters.sent_packets;
    let bytes = counters.received_bytes + counters.sent_bytes;
    Ok(bytes.saturating_sub(packets * ETHERNET))
}

/// Runs `ip` with these arguments.
pub(super) fn run(lines: &[&str]) -> Result<(), LabError> {
    for line in lines {
        let output = Command::new("ip").args(line.split(' ')).output();
        let output = output.map_err(|error| cannot("ip", error))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(cannot(&format!("ip {line}"), why));
        }
    }
    Ok(())
}

pub(super) fn address(name: &str, address: IpAddr) -> Result<(), LabError> {
    run(&[
        &format!("addr add {address}/24 dev {name}"),
        &format!("link set {name} mtu {MTU} txqueuelen 10000 up"),
    ])
}

fn in_network<T: Send>(
    network: &Network,
    job: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    super::in_network(network, job)
}

/// Runs a job in a namespace; `None`: in that of the calling thread.
pub(super) fn in_network_of<T: Send>(
    network: Option<&Network>,
    job: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    match network {
        Some(network) => in_network(network, job),
        None => job(),
    }
}

impl Gateways {
    fn start(
        network: &Network,
        case: &EspCase,
        carriage: EspCarriage,
        seed: u64,
    ) -> Result<Gateways, LabError> {
        let tun = |name: &'static str, ip: IpAddr| {
            let tun = TunDevice::create(name).map_err(|error| cannot("TUN", error))?;
            address(name, ip)?;
            Ok(Arc::new(tun))
        };
        let callers = in_network(network, || tun(NAMES[0], CALLERS))?;
        let border = tun(NAMES[1], BORDER)?;
        let mut entropy = Entropy::from_number(seed);
        let outward = EspEnds::new(case, carriage, &mut entropy)?;
        let inward = EspEnds::new(case, carriage, &mut entropy)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let pair = || UnixDatagram::pair().map_err(|error| cannot("socket pair", error));
        let (to_border, at_border) = pair()?;
        let (to_callers, at_callers) = pair()?;
        for socket in [&to_border, &at_border, &to_callers, &at_callers] {
            let set = socket.set_read_timeout(Some(WAIT));
            set.and_then(|()| socket.set_write_timeout(Some(WAIT)))
                .map_err(|error| cannot("socket pair", error))?;
        }
        // The socket pairs keep all datagrams in order: the time of each is that at the same place of the other queue.
        let (outward_times, outward_read) = std::sync::mpsc::channel();
        let (inward_times, inward_read) = std::sync::mpsc::channel();
        let clock = Clock::new();
        let sealer = |name, tun: &Arc<TunDevice>, socket, sa, times| {
            let (tun, stop) = (tun.clone(), stopped.clone());
            let stamps = SealStamps { clock, times };
            spawn(name, move || seal_all(&tun, &socket, sa, &stamps, &stop))
        };
        let opener = |name, tun: &Arc<TunDevice>, socket, sa, times| {
            let (tun, stop) = (tun.clone(), stopped.clone());
            let stamps = OpenStamps { clock, times };
            spawn(name, move || open_all(&tun, &socket, sa, &stamps, &stop))
        };
        Ok(Gateways {
            callers: [
                sealer(
                    "callers seal",
                    &callers,
                    to_border,
                    outward.outbound,
                    outward_times,
                )?,
                opener(
                    "callers open",
                    &callers,
                    at_callers,
                    inward.inbound,
                    inward_read,
                )?,
            ],
            border: [
                sealer(
                    "border seal",
                    &border,
                    to_callers,
                    inward.outbound,
                    inward_times,
                )?,
                opener(
                    "border open",
                    &border,
                    at_border,
                    outward.inbound,
                    outward_read,
                )?,
            ],
            stopped,
        })
    }
}

impl Drop for ProtectedLink {
    /// An aborted trial leaves no thread behind.
    fn drop(&mut self) {
        if let Some(gateways) = &self.gateways {
            gateways.stopped.store(true, Ordering::Relaxed);
        }
    }
}

fn spawn(
    name: &str,
    work: impl FnOnce() -> Result<GatewayCount, String> + Send + 'static,
) -> Result<GatewayThread, LabError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| cannot("a thread", error))
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

/// Passes on the time at which each sealed packet was read.
struct SealStamps {
    clock: Clock,
    times: Sender<Time>,
}

/// Receives these times.
struct OpenStamps {
    clock: Clock,
    times: Receiver<Time>,
}

/// Seals the packets that the kernel sends, until the trial ends.
fn seal_all(
    tun: &TunDevice,
    socket: &UnixDatagram,
    mut sa: OutboundSa,
    stamps: &SealStamps,
    stopped: &AtomicBool,
) -> Result<GatewayCount, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut count = GatewayCount::default();
    let mut buffer = vec![0u8; ROOM];
    while !stopped.load(Ordering::Relaxed) {
        let space = buffer
            .get_mut(MAX_HEADROOM..ROOM - MAX_TAILROOM)
            .unwrap_or_default();
        let Some(length) = tun.receive_within(space, WAIT).map_err(text)? else {
            continue;
        };
        let read = stamps.clock.now();
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, length);
        // The kernel's own packets of IPv6 (router solicitations) are not part of the experiment.
        if room.packet().first().is_none_or(|first| first >> 4 != 4) {
            continue;
        }
        if sa.seal_packet(&mut room, Time::ZERO).is_err() {
            count.refused += 1;
            continue;
        }
        // Ahead of the packet, so that its time is there when the packet is. Without a receiver the trial is over.
        let _ = stamps.times.send(read);
        loop {
            match socket.send(room.packet()) {
                Ok(_) => break,
                Err(error) if is_timeout(&error) && !stopped.load(Ordering::Relaxed) => {}
                Err(error) if is_timeout(&error) => return Ok(finished(count)),
                Err(error) => return Err(error.to_string()),
            }
        }
        count.packets += 1;
        count.bytes += room.packet().len() as u64;
    }
    Ok(finished(count))
}

/// Opens the packets of the other gateway, until the trial ends.
fn open_all(
    tun: &TunDevice,
    socket: &UnixDatagram,
    mut sa: InboundSa,
    stamps: &OpenStamps,
    stopped: &AtomicBool,
) -> Result<GatewayCount, String> {
    let mut count = GatewayCount::default();
    let mut delays = Box::new(DelayCounter::default());
    let mut buffer = vec![0u8; ROOM];
    while !stopped.load(Ordering::Relaxed) {
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error.to_string()),
        };
        let read = stamps.times.try_recv();
        let mut room = PacketRoom::new(&mut buffer, 0, length);
        if sa.open_packet(&mut room, Time::ZERO).is_err() {
            count.refused += 1;
            continue;
        }
        count.packets += 1;
        count.bytes += length as u64;
        tun.send(room.packet()).map_err(|error| error.to_string())?;
        if let Ok(read) = read {
            delays.record(stamps.clock.now().since(read).as_nanos() as u64);
        }
    }
    count.delays = Some(delays);
    Ok(finished(count))
}

fn finished(mut count: GatewayCount) -> GatewayCount {
    count.cpu_seconds = net::thread_cpu().as_secs_f64();
    count
}

/// The experiment with the means of its protection: SRTP and TLS are settings of the callers.
pub(super) fn applied(experiment: &Experiment) -> Option<Experiment> {
    let protection = experiment.protection.as_ref()?;
    let mut experiment = experiment.clone();
    if let Some(callers) = &mut experiment.callers {
        protection.apply(callers);
    }
    Some(experiment)
}

/// Hosts of a simulated conference whose streams bypass the SUT (`conference.rs`).
const BYPASSING: [u8; 2] = [3, 4];

/// Runs a trial in virtual time: the packets of the access side are counted, and sealed and opened in memory.
pub(super) fn in_world(trial: &Trial, mut world: World) -> Result<(Outcomes, World), LabError> {
    let plan = trial.experiment.protection.as_ref();
    let plan = plan.ok_or_else(|| LabError::bad_input("no [protection]"))?;
    if plan.has_tls() {
        let outcomes = Outcomes {
            remarks: vec![format!(
                "{}: not measured, TLS does not exist in virtual time",
                plan.name()
            )],
            ..Outcomes::default()
        };
        return Ok((outcomes, world));
    }
    let experiment = applied(&trial.experiment);
    let experiment = experiment.ok_or_else(|| LabError::bad_input("no [protection]"))?;
    let [access, _] = crate::sut::simulated_addresses(&experiment, 1);
    let meter = Rc::new(RefCell::new(esp::AccessMeter::new(plan.esp(), trial.seed)));
    let watching = meter.clone();
    // Bytes that the format of a tunnel adds; ESP is sealed in memory.
    let format = plan.module().and_then(|_| plan.format());
    let added = Rc::new(Cell::new(0u64));
    let adding = added.clone();
    let direct = experiment.sut.direct;
    world.set_tap(move |packet| {
        let on_access = |address: SocketAddr| match (address.ip(), access) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                let (one, other) = (one.octets(), other.octets());
                direct || (one[..3] == other[..3] && !BYPASSING.contains(&one[3]))
            }
            _ => false,
        };
        if matches!(packet.point, TapPoint::Sent(_))
            && on_access(packet.source)
            && on_access(packet.destination)
        {
            let is_tcp = packet.transport != TapTransport::Udp;
            let ends = (packet.source, packet.destination);
            let mut meter = watching.borrow_mut();
            let before = meter.bytes;
            meter.take(ends, is_tcp, packet.bytes);
            if let Some(format) = format {
                let inner = meter.bytes - before;
                let outer = format.outer_bytes(inner as usize) as u64;
                adding.set(adding.get() + outer.saturating_sub(inner));
            }
        }
    });
    let trial = Trial {
        experiment,
        ..trial.clone()
    };
    let (mut outcomes, world) = super::simulated::in_plain_world(&trial, world)?;
    let meter = meter.borrow();
    let bytes = meter.bytes + added.get();
    // Without the cost of ciphers, which only a clock of this machine has: the same seed gives the same record.
    let mut cost = LinkCost {
        bytes,
        refused: meter.refused,
        ..LinkCost::default()
    };
    if plan.has_dtls() {
        let calls = outcomes.attempts.iter();
        let calls = calls.filter(|a| a.kind == AttemptKind::Call && a.established.is_some());
        cost.bytes += esp::handshake_cost()?.bytes * calls.count() as u64;
    }
    outcomes.measures = cost.records(trial.number, &outcomes.attempts);
    let how = match plan.module() {
        Some(_) => "its packets have the bytes of its format; programs and ciphers take no time",
        None => "ESP seals and opens every packet in memory; a simulation measures no cipher",
    };
    outcomes.remarks.push(format!(
        "access side: {}, in virtual time; {how}",
        plan.name()
    ));
    Ok((outcomes, world))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::TrialRecord;

    #[test]
    fn trial_whose_gateways_lost_packets_is_not_judged_without_a_link_either() {
        let mut links = Vec::new();
        add_faults(&mut links, &[]);
        assert!(links.is_empty());
        let faults: Vec<String> = gateway_drops("callers", 7).into_iter().collect();
        add_faults(&mut links, &faults);
        let trial = TrialRecord {
            links: links.clone(),
            ..TrialRecord::default()
        };
        let fault = trial.load_fault().unwrap();
        assert!(
            fault.contains("the ESP gateway of the callers cannot keep up"),
            "{fault}"
        );
        // With a link it is one of the link's faults.
        let mut links = vec![LinkRecord::default()];
        add_faults(&mut links, &faults);
        assert_eq!((links.len(), links[0].faults.len()), (1, 1));
    }
}
