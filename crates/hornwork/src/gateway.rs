//! The IPsec gateway (`[gateway]`). Packets pass between a TUN device and the outer socket on a thread of its own, or
//! on that of media, where media of calls takes the direct path. The keeper is a thread for everything that may block:
//! keys, files, log, path MTU. With `[gateway.ike]` a third one connects the daemon of the key exchange.

mod batch;
mod data_path;
mod direct;
mod exchange;
mod figures;
mod keeper;
mod kernel;
mod keys;
mod loops;
mod numbers;
mod packets;
mod role;

pub(crate) use figures::GatewayFigures;
pub(crate) use keys::GatewayKeys;
pub(crate) use role::run;

use crate::ike::{self, ExchangePlan, ExchangeThread, IKE_PORT, IkeParts, IkeRequests, cannot};
use crate::log::EventLog;
use config::{Config, GatewayKeySource, GatewaySpec};
use direct::Carrying;
use engine::{Event, EventKind};
use exchange::{GatewaySink, exchange_plan};
use keeper::{Keeper, KeeperParts};
use loops::PeerRoutes;
use net::{
    Clock, EspSocket, EspSocketKind, SourceGuard, TunDevice, TunnelPath, TunnelRoutes, Waker,
};
use numbers::NumbersFile;
use packets::{Commands, PacketLoop};
use protect::esp::{EspCarrier, EspGateway, GatewaySettings, GatewayTunnel};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// Commands and reports between the two threads that may wait.
const QUEUE: usize = 256;
/// Name of the numbers file in the state directory of the service.
const NUMBERS: &str = "gateway.numbers";
const TUN: &str = "/dev/net/tun";

/// Requests to the keeper, and its state.
#[derive(Debug, Default)]
struct Flags {
    reload: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
}

/// The running gateway. It ends in order with this value, also where its program ends by an error: unused sequence
/// numbers are returned, and negotiated associations deleted at the peers.
#[derive(Debug)]
pub(crate) struct Gateway {
    flags: Arc<Flags>,
    figures: Arc<GatewayFigures>,
    /// Turns of the packet thread at the last check of its progress.
    checked_turns: u64,
    /// The thread that stores sequence numbers; none once it has ended.
    keeper: Option<JoinHandle<()>>,
    exchange: Option<ExchangeThread>,
    carrying: Carrying,
    /// The thread of media drives the packet loop.
    is_direct: bool,
    /// Discards packets of remote networks that do not come from the device.
    _guard: Option<SourceGuard>,
}

const ADMIN_REMEDY: &str = "give the program CAP_NET_ADMIN (packaging/hornwork-gateway.conf), or create the device for its user: ip tuntap add dev DEVICE mode tun user USER";

/// Whether the device exists and belongs to this user: attaching to it needs no right.
fn owns_device(device: &str) -> bool {
    let owner = std::fs::read_to_string(format!("/sys/class/net/{device}/owner"));
    let owner = owner.ok().and_then(|text| text.trim().parse::<u32>().ok());
    owner == Some(net::user_id())
}

/// Checks the rights that the gateway of a configuration needs; there is no error without a gateway. A device that is
/// in use by a running gateway is not touched.
///
/// # Errors
/// The right that is missing, with its remedy.
pub(crate) fn check_rights(config: &Config) -> io::Result<()> {
    let Some(spec) = &config.gateway else {
        return Ok(());
    };
    let open = std::fs::File::options().read(true).write(true).open(TUN);
    open.map_err(|error| tun_error(&spec.device, &error))?;
    if !owns_device(&spec.device) {
        // The kernel puts a number in the place of %d.
        TunDevice::create("hwtun%d").map_err(|error| tun_error(&spec.device, &error))?;
    }
    if matches!(spec.keys, GatewayKeySource::Ike(_)) {
        ike::check()?;
    }
    if spec.carrier == EspCarrier::Ip {
        net::may_carry_esp(spec.local.ip()).map_err(|error| raw_error(&error))?;
    }
    data_path::choose(spec)?;
    Ok(())
}

fn tun_error(device: &str, error: &io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => cannot(
            format!(
                "[gateway] device {device}: creating a TUN device was denied ({error}): CAP_NET_ADMIN"
            ),
            ADMIN_REMEDY,
        ),
        io::ErrorKind::NotFound => cannot(
            format!("[gateway] device {device}: {TUN} does not exist"),
            "load the module: modprobe tun; in a container or a service with private devices, pass the device in",
        ),
        io::ErrorKind::ResourceBusy => cannot(
            format!("[gateway] device {device} is in use by another program"),
            "stop that program, or choose another `device`",
        ),
        _ => cannot(
            format!("[gateway] device {device}: {error}"),
            "choose another `device`; an existing one must be a TUN device without other users",
        ),
    }
}

fn raw_error(error: &io::Error) -> io::Error {
    cannot(
        format!("[gateway] a raw socket for IP protocol 50 was denied ({error}): CAP_NET_RAW"),
        "give the program CAP_NET_RAW (packaging/hornwork-gateway.conf), or set encapsulation = \"udp\" at both ends",
    )
}

/// Why media of calls in tunnels passes the TUN device and the kernel, in a border; `None` if it passes directly, or if
/// there is no gateway.
pub(crate) fn media_through_kernel(config: &Config) -> Option<String> {
    let spec = config.gateway.as_ref()?;
    if let Some(reason) = direct::needs_kernel(config, spec) {
        return Some(reason.to_owned());
    }
    match data_path::choose(spec) {
        Ok(chosen) if chosen.name() == "kernel" => Some("ESP is in the kernel".to_owned()),
        // An error is one of the start.
        _ => None,
    }
}

/// Whether media of calls in tunnels passes directly, in a border.
pub(crate) fn carries_media_directly(config: &Config) -> bool {
    config.gateway.is_some() && media_through_kernel(config).is_none()
}

/// Summary of the gateway of a configuration in a few lines; empty without one.
pub(crate) fn summary(config: &Config) -> String {
    let Some(spec) = &config.gateway else {
        return String::new();
    };
    let carrier = match spec.carrier {
        EspCarrier::Udp => format!("UDP {}", spec.local),
        EspCarrier::Ip => format!("IP protocol 50 at {}", spec.local.ip()),
    };
    let keys = match &spec.keys {
        GatewayKeySource::File(file) => format!("keys of {}", file.path().display()),
        GatewayKeySource::Ike(_) => "key exchange by IKEv2".to_owned(),
    };
    let mut text = format!("IPsec gateway: device {}, {carrier}, {keys}\n", spec.device);
    // A kernel that cannot do it although it must is an error of `check_rights`.
    if matches!(spec.keys, GatewayKeySource::Ike(_))
        && let Ok(chosen) = data_path::choose(spec)
    {
        text.push_str(&format!("data path: {}\n", chosen.describe()));
    }
    // A gateway alone has no calls.
    if !config.interfaces.is_empty() {
        text.push_str(&match media_through_kernel(config) {
            None => "media of calls: direct\n".to_owned(),
            Some(reason) => format!("media of calls: through the kernel ({reason})\n"),
        });
    }
    // Longer lists are of no use on a terminal.
    for tunnel in spec.tunnels.iter().take(20) {
        let limits = &tunnel.limits;
        let networks = protect::ike::daemon_selectors(
            &tunnel.remote_networks,
            limits.protocol,
            &limits.remote_ports,
        );
        let ports: Vec<String> = limits.local_ports.iter().map(ToString::to_string).collect();
        let local = match ports.is_empty() {
            true => String::new(),
            false => format!(", local ports {}", ports.join(", ")),
        };
        let peer = tunnel
            .peer
            .map_or_else(|| "any".to_owned(), |peer| peer.to_string());
        text.push_str(&format!(
            "tunnel {}: peer {peer}, networks {}{local}\n",
            tunnel.name,
            networks.join(", ")
        ));
    }
    if spec.tunnels.len() > 20 {
        text.push_str(&format!("and {} more tunnels\n", spec.tunnels.len() - 20));
    }
    text
}

/// The file with the used sequence numbers of keys of a file.
fn numbers_path(spec: &GatewaySpec, key_file: &Path) -> PathBuf {
    if let Some(path) = &spec.numbers_file {
        return path.clone();
    }
    // STATE_DIRECTORY may list several, separated by colons; the first one is used.
    let folders = std::env::var_os("STATE_DIRECTORY").unwrap_or_default();
    let folder = std::env::split_paths(&folders).next();
    match folder.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.join(NUMBERS),
        None => beside(key_file),
    }
}

fn beside(key_file: &Path) -> PathBuf {
    let mut path = key_file.as_os_str().to_owned();
    path.push(".numbers");
    PathBuf::from(path)
}

fn open_device(spec: &GatewaySpec) -> io::Result<TunDevice> {
    let device = &spec.device;
    let tun = TunDevice::create(device).map_err(|error| tun_error(device, &error))?;
    TunDevice::set_up(device, spec.mtu).map_err(|error| {
        cannot(
            format!(
                "[gateway] device {device}: cannot set its MTU to {} and set it up: {error}",
                spec.mtu
            ),
            "give the program CAP_NET_ADMIN, or do it before: ip link set dev DEVICE mtu MTU up",
        )
    })?;
    if !spec.routes {
        return Ok(tun);
    }
    for network in spec
        .tunnels
        .iter()
        .flat_map(|tunnel| &tunnel.remote_networks)
    {
        let of_family = |ip: &&std::net::IpAddr| ip.is_ipv4() == network.address().is_ipv4();
        let source = spec.route_sources.iter().find(of_family).copied();
        let to = (network.address(), network.length());
        TunDevice::add_route(device, to, source).map_err(|error| {
            cannot(
                format!("[gateway] cannot add a route to {network} through {device}: {error}"),
                "remove a route to the same network, correct `route_source`, give the program CAP_NET_ADMIN, or set routes = false and add routes yourself",
            )
        })?;
    }
    check_peer_routes(spec)?;
    Ok(tun)
}

/// Discards packets of the networks behind peers that do not come from the device: they were in no tunnel (RFC 4301
/// section 5.2). In the kernel's ESP its policies do that, and its decrypted packets come from the outer interface.
fn guard_sources(spec: &GatewaySpec) -> Option<SourceGuard> {
    // Messages of peers that cannot be peers are refused and logged, not lost.
    SourceGuard::install(&spec.device, spec.local.ip(), &[spec.local.port(), IKE_PORT])
        .inspect_err(|error| {
            tracing::warn!(
                "[gateway] packets in the clear with addresses of remote networks are not filtered ({error}); remedy: load nf_tables and nft_fib_inet, or have the firewall of this host discard them (docs/how-to/ipsec-gateway.md)"
            );
        })
        .ok()
}

/// The packets to peers do not go through the device: they would be sealed again and again. Without this check only
/// `esp_selector` would count.
fn check_peer_routes(spec: &GatewaySpec) -> io::Result<()> {
    let routes = PeerRoutes::of(spec);
    for tunnel in &spec.tunnels {
        let Some(peer) = tunnel.peer.map(|peer| peer.ip()) else {
            continue;
        };
        if let Some(network) = routes.looping(peer) {
            return Err(cannot(
                format!(
                    "[gateway] tunnel {}: remote_networks {network} contains the outer address of `peer`, {peer}, and there is no longer route to it: its ESP packets would be routed into {}",
                    tunnel.name, spec.device
                ),
                &format!(
                    "add a route to the peer outside of the tunnel (ip route add {peer} via GATEWAY), or leave its address out of remote_networks"
                ),
            ));
        }
    }
    Ok(())
}

fn open_socket(spec: &GatewaySpec) -> io::Result<EspSocket> {
    let (kind, what) = match spec.carrier {
        EspCarrier::Udp => (EspSocketKind::Udp, format!("UDP {}", spec.local)),
        EspCarrier::Ip => (
            EspSocketKind::Ip,
            format!("IP protocol 50 at {}", spec.local.ip()),
        ),
    };
    EspSocket::open(kind, spec.local, packets::longest_packet(spec)).map_err(|error| {
        match (spec.carrier, error.kind()) {
            (EspCarrier::Ip, io::ErrorKind::PermissionDenied) => raw_error(&error),
            _ => cannot(
                format!("[gateway] cannot open {what}: {error}"),
                "correct `local`, or stop the program that uses the port (strongSwan and others use 4500)",
            ),
        }
    })
}

/// The tunnels, with the keys of a file where they have them. Their sequence numbers are not stored yet.
fn gateway_of(
    spec: &GatewaySpec,
    keys: &GatewayKeys,
    mut numbers: Option<&mut NumbersFile>,
    clock: Clock,
) -> io::Result<EspGateway> {
    let now = clock.now();
    let mut entropy = net::entropy()?;
    let (mut tunnels, mut inbound) = (Vec::new(), Vec::new());
    for (number, tunnel) in spec.tunnels.iter().enumerate() {
        let plan = GatewayTunnel {
            name: tunnel.name.clone(),
            peer: tunnel.peer,
            peer_behind_nat: tunnel.peer_behind_nat,
            remote: tunnel.remote_networks.clone(),
        };
        let mut sealing = None;
        if let (Some(keys), Some(numbers)) = (keys.tunnels.get(number), &mut numbers) {
            let spec = (number, &keys.outbound);
            sealing = Some(numbers.outbound(spec, &mut entropy, now)?);
            for spec in &keys.inbound {
                inbound.push((number, numbers.inbound(spec, now)?));
            }
        }
        tunnels.push((plan, sealing));
    }
    let settings = GatewaySettings {
        carrier: spec.carrier,
        local: spec.local.ip(),
        keep_alive: spec.keep_alive,
        rekey_delay: spec.rekey_delay,
        rekey_grace: spec.rekey_grace,
    };
    let key = engine::HashKey::new(&mut entropy);
    EspGateway::new(settings, tunnels, inbound, key, now).map_err(|error| {
        cannot(
            format!("[gateway]: {error}"),
            "correct the key file or the tunnels",
        )
    })
}

/// The packet thread could not be started: no packet was sealed, so all numbers are unused.
fn not_begun(numbers: Option<&mut NumbersFile>, error: io::Error) -> io::Error {
    let Some(numbers) = numbers else {
        return error;
    };
    numbers.release_all();
    match numbers.write() {
        Ok(()) => error,
        Err(unwritten) => io::Error::other(format!("{error}; {unwritten}")),
    }
}

/// Logs the start, and weak algorithms.
fn log_start(
    spec: &GatewaySpec,
    keys: &GatewayKeys,
    (associations, data_path, media): (usize, &str, &str),
    (log, clock): (&EventLog, Clock),
) {
    let weak = keys.weak_algorithms();
    if !weak.is_empty() {
        let algorithms = weak.join(", ");
        log.event(&Event::new(
            clock.now(),
            EventKind::GatewayWeakAlgorithms { algorithms },
        ));
    }
    log.event(&Event::new(
        clock.now(),
        EventKind::GatewayStarted {
            device: spec.device.clone(),
            local: match spec.carrier {
                EspCarrier::Udp => spec.local.to_string(),
                EspCarrier::Ip => spec.local.ip().to_string(),
            },
            encapsulation: spec.carrier.name().to_owned(),
            data_path: data_path.to_owned(),
            media: media.to_owned(),
            tunnels: spec.tunnels.len() as u64,
            associations: associations as u64,
        },
    ));
}

impl Gateway {
    /// Starts the gateway of a configuration, if it has one with its keys. `with_media`: there is a thread that carries
    /// media of calls and drives the packet loop ([`Gateway::media_path`]), where the configuration allows it.
    ///
    /// # Errors
    /// A right, the device, the address or the numbers file.
    pub(crate) fn of(
        config: &Config,
        keys: Option<&GatewayKeys>,
        with_media: bool,
        (log, clock): (&EventLog, Clock),
    ) -> io::Result<Option<Gateway>> {
        let (Some(spec), Some(keys)) = (&config.gateway, keys) else {
            return Ok(None);
        };
        let is_direct = with_media && direct::needs_kernel(config, spec).is_none();
        Gateway::start(spec, keys.clone(), is_direct, (log, clock)).map(Some)
    }

    fn start(
        spec: &GatewaySpec,
        keys: GatewayKeys,
        is_direct: bool,
        (log, clock): (&EventLog, Clock),
    ) -> io::Result<Gateway> {
        // Rights are checked before a file is written.
        let tun = open_device(spec)?;
        let socket = open_socket(spec)?;
        let chosen = data_path::choose(spec)?;
        let mut numbers = match &spec.keys {
            GatewayKeySource::File(file) => {
                Some(NumbersFile::open(&numbers_path(spec, file.path()))?)
            }
            GatewayKeySource::Ike(_) => None,
        };
        let gateway = gateway_of(spec, &keys, numbers.as_mut(), clock)?;
        let (associations, data_path) = (gateway.associations(), chosen.name());
        let kernel = chosen.into_kernel(spec)?;
        let routes = match is_direct && kernel.is_none() {
            true => Some(TunnelRoutes::of(&spec.device)?),
            false => None,
        };
        let is_direct = routes.is_some();
        if kernel.is_some() {
            socket.hand_esp_to_kernel().map_err(|error| {
                cannot(
                    format!(
                        "[gateway] the kernel does not take ESP at UDP {}: {error}",
                        spec.local
                    ),
                    "give the program CAP_NET_ADMIN, or set data_path = \"user\"",
                )
            })?;
        }
        let guard = match kernel {
            Some(_) => None,
            None => guard_sources(spec),
        };
        let figures = Arc::new(GatewayFigures::new(spec, &keys, clock.now()));
        let flags = Arc::new(Flags::default());
        let waker = Waker::new()?;
        let (queue, inbox) = sync_channel(QUEUE);
        let commands = Commands::new(queue, waker.clone());
        let (reports, outbox) = sync_channel(QUEUE);
        let (requests, ike) = match (&spec.keys, &keys.ike) {
            (GatewayKeySource::Ike(ike), Some(files)) => {
                let (queue, inbox) = sync_channel(QUEUE);
                let waker = Waker::new()?;
                let sink = GatewaySink {
                    routes: PeerRoutes::of(spec),
                    names: spec.tunnels.iter().map(|one| one.name.clone()).collect(),
                    commands: commands.clone(),
                    figures: figures.clone(),
                    log: log.clone(),
                    clock,
                    weak: BTreeSet::new(),
                };
                let parts = IkeParts {
                    plan: ExchangePlan {
                        has_kernel_policies: kernel.is_some(),
                        ..exchange_plan(spec, ike)
                    },
                    files: files.clone(),
                    sink: Box::new(sink),
                    inbox,
                    waker: waker.clone(),
                    clock,
                };
                (Some(IkeRequests::new(queue, waker)), Some(parts))
            }
            _ => (None, None),
        };
        let packets = PacketLoop::new(
            packets::Parts {
                gateway,
                tun,
                socket,
                inbox,
                reports,
                waker,
                ike: requests.clone(),
                kernel,
                routes,
                clock,
            },
            spec,
            figures.clone(),
        );
        // The last step before the first packet, because each start that ends earlier would use numbers up.
        if let Some(numbers) = &numbers {
            numbers.write()?;
        }
        let media = if is_direct { "direct" } else { "kernel" };
        log_start(spec, &keys, (associations, data_path, media), (log, clock));
        let carrying = match is_direct {
            true => Carrying::on_media_thread(packets),
            false => Carrying::on_own_thread(packets)
                .map_err(|error| not_begun(numbers.as_mut(), error))?,
        };
        let keeper = Keeper::new(KeeperParts {
            spec: spec.clone(),
            keys,
            numbers,
            commands,
            ike: requests.clone(),
            outbox,
            carrying: carrying.clone(),
            flags: flags.clone(),
            figures: figures.clone(),
            log: log.clone(),
            clock,
        });
        let keeper = std::thread::Builder::new()
            .name("gateway-keeper".to_owned())
            .spawn(move || keeper.run())?;
        let mut gateway = Gateway {
            checked_turns: 0,
            flags,
            figures,
            keeper: Some(keeper),
            exchange: None,
            is_direct,
            carrying,
            _guard: guard,
        };
        let carrying = gateway.carrying.clone();
        let turn = || carrying.turn(clock.now());
        let exchange = ike
            .zip(requests)
            .map(|(parts, requests)| ExchangeThread::start("gateway-ike", parts, requests, turn))
            .transpose();
        gateway.exchange = exchange?;
        Ok(gateway)
    }

    /// Figures for metrics.
    pub(crate) fn figures(&self) -> Arc<GatewayFigures> {
        self.figures.clone()
    }

    /// The packet loop for the thread that carries media, if media passes directly. No packet passes the gateway before
    /// that thread drives it.
    pub(crate) fn media_path(&self) -> Option<Box<dyn TunnelPath>> {
        self.is_direct.then(|| self.carrying.path())
    }

    /// Whether the thread of media drives the packet loop.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the packet thread has made a turn since the last call that returned true, for the watchdog. It turns at
    /// least ten times a second.
    pub(crate) fn check_progress(&mut self) -> bool {
        self.figures.check_progress(&mut self.checked_turns)
    }

    /// Requests that the key file is read again.
    pub(crate) fn reload(&self) {
        self.flags.reload.store(true, Relaxed);
    }

    /// Whether it still carries packets.
    ///
    /// # Errors
    /// It has ended; the log has the reason.
    pub(crate) fn check(&self) -> io::Result<()> {
        let exchange_ended = self
            .exchange
            .as_ref()
            .is_some_and(ExchangeThread::has_ended);
        let keeper_ended = self.keeper.as_ref().is_none_or(JoinHandle::is_finished);
        match self.flags.failed.load(Relaxed) || keeper_ended || exchange_ended {
            true => Err(io::Error::other(
                "the IPsec gateway has ended; the log has the reason",
            )),
            false => Ok(()),
        }
    }

    /// Ends it: deletes negotiated associations at the peers, and writes the last sequence numbers.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The thread of media waits here, and the last messages to peers must pass.
        self.carrying.detach();
        if let Some(exchange) = self.exchange.take() {
            exchange.stop();
        }
        self.flags.stop.store(true, Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // A panic of the thread is logged by its hook.
            let _ = keeper.join();
        }
    }
}
