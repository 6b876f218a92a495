//! The test bed of a cell: two hosts and the line between them in named network namespaces, their firewall and tunnel.

mod strongswan;

use super::media::RTP;
use super::model::{StudyProtection, Tunnel};
use crate::error::LabError;
use crate::esp::line::{INNER_MTU, LineGatewayCount, LineGateways};
use crate::esp::{EspCarriage, EspCase};
use engine::Entropy;
use net::{Network, PacketSocket, TunDevice};
use std::fs::DirBuilder;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Begin of the names of our namespaces; then the process and the number of the cell.
const PREFIX: &str = "hwc-";
/// Addresses of the hosts of study C on the line, and in the tunnel.
pub const LINE: [&str; 2] = ["10.96.0.1", "10.96.0.2"];
const INNER: [&str; 2] = ["10.97.0.1", "10.97.0.2"];
/// Interfaces of the line's namespace towards both hosts.
pub const LINE_ENDS: [&str; 2] = ["la", "lb"];
/// Interface of the hosts on the line, and that of OpenVPN.
pub const LINE_INTERFACE: &str = "eth0";
const TUN: &str = "tun0";
/// Device of the inner packets of our own ESP.
const ESP_DEVICE: &str = "esp0";
/// Ports of OpenVPN and WireGuard.
const OPENVPN: u16 = 1_194;
const WIREGUARD: u16 = 51_820;
/// Longest start of a tunnel.
const START: Duration = Duration::from_secs(15);

/// Cause of a set-up that the user ended.
const INTERRUPTED: &str = "interrupted";

/// Folder for files with keys: in memory, and gone after a restart.
const KEYS: &str = "/run";
/// Folder of the sockets of wireguard-go.
const WIREGUARD_SOCKETS: &str = "/var/run/wireguard";

/// Programs with the purpose and the Debian package of each.
fn remedy(program: &str) -> String {
    let package = match program {
        "nft" => "nftables",
        "wg" => "wireguard-tools",
        "swanctl" => "strongswan-swanctl",
        "wireguard-go" => "wireguard-go, or a kernel with WireGuard",
        "ip" => "iproute2",
        other => other,
    };
    format!("install {package}")
}

fn failed(what: &str, error: impl std::fmt::Display) -> String {
    format!("{what}: {error}")
}

/// Runs a program to its end.
fn program(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is not installed: {}", remedy(name)),
        _ => failed(name, error),
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // The signal of Ctrl-C has ended it, too.
        false if net::stops() > 0 => Err(INTERRUPTED.to_owned()),
        false => Err(failed(
            &format!("{name} {}", arguments.join(" ")),
            String::from_utf8_lossy(&output.stderr).trim(),
        )),
    }
}

/// Runs lines of a shell that ends at the first failure.
fn script(text: &str) -> Result<(), String> {
    program("sh", &["-ec", text]).map(|_| ())
}

/// Settings of a test bed.
#[derive(Debug)]
pub struct BenchPlan<'a> {
    /// Number in the names of its namespaces.
    pub number: usize,
    /// Folder for logs.
    pub logs: &'a Path,
    /// Addresses of the hosts on the line.
    pub line: [&'static str; 2],
    /// Addresses in the tunnel.
    pub inner: [&'static str; 2],
    /// UDP ports that the firewall opens on the interface of the media, as nftables writes them.
    pub udp_ports: String,
    /// TCP ports; empty: none.
    pub tcp_ports: String,
}

/// The test bed.
#[derive(Debug)]
pub struct Bench {
    /// Gateways of our own ESP.
    gateways: Option<LineGateways>,
    line: [&'static str; 2],
    inner: [&'static str; 2],
    /// Ports that the firewall opens: UDP and TCP.
    ports: [String; 2],
    /// Names of the namespaces: first host, second host, line.
    names: [String; 3],
    /// The namespaces.
    pub networks: [Arc<Network>; 3],
    /// Interface on which media passes unprotected, at each host.
    pub media_interfaces: [String; 2],
    /// Addresses of media.
    pub media_addresses: [std::net::IpAddr; 2],
    children: Vec<Child>,
    /// Their logs.
    child_logs: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
    /// Folders outside of the results.
    folders: Vec<PathBuf>,
    /// Files with keys, as long as a program reads them.
    keys: Vec<PathBuf>,
    logs: PathBuf,
}

impl Bench {
    /// Makes hosts and line of cell `number`, with its logs in `logs`.
    ///
    /// # Errors
    /// A right or a program is missing.
    pub fn new(number: usize, logs: &Path) -> Result<Bench, String> {
        Bench::of(BenchPlan {
            number,
            logs,
            line: LINE,
            inner: INNER,
            udp_ports: format!("{RTP}, {}", RTP + 1),
            tcp_ports: String::new(),
        })
    }

    /// As [`Bench::new`], with addresses and ports of its own.
    ///
    /// # Errors
    /// A right or a program is missing.
    pub fn of(plan: BenchPlan<'_>) -> Result<Bench, String> {
        let (number, line_addresses) = (plan.number, plan.line);
        let base = format!("{PREFIX}{}-{number}", std::process::id());
        let names = ["a", "b", "l"].map(|end| format!("{base}-{end}"));
        let [a, b, l] = &names;
        let made = script(&format!(
            "ip netns add {a}; ip netns add {b}; ip netns add {l}
             ip link add eth0 netns {a} address 02:00:00:00:00:01 type veth peer name la netns {l}
             ip link add eth0 netns {b} address 02:00:00:00:00:02 type veth peer name lb netns {l}
             ip -n {l} link set la addrgenmode none up; ip -n {l} link set lb addrgenmode none up
             ip -n {a} link set lo up; ip -n {b} link set lo up
             ip -n {a} link set eth0 addrgenmode none up; ip -n {b} link set eth0 addrgenmode none up
             ip -n {a} addr add {0}/24 dev eth0; ip -n {b} addr add {1}/24 dev eth0
             ip -n {a} neigh add {1} lladdr 02:00:00:00:00:02 dev eth0 nud permanent
             ip -n {b} neigh add {0} lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
            line_addresses[0], line_addresses[1]
        ));
        let opened = made.and_then(|()| {
            let open = |name: &str| Network::named(name).map_err(|error| failed(name, error));
            Ok([open(a)?, open(b)?, open(l)?].map(Arc::new))
        });
        let networks = match opened {
            Ok(networks) => networks,
            Err(error) => {
                for name in &names {
                    remove_namespace(name);
                }
                return Err(error);
            }
        };
        let line = || LINE_INTERFACE.to_owned();
        Ok(Bench {
            gateways: None,
            line: plan.line,
            inner: plan.inner,
            ports: [plan.udp_ports, plan.tcp_ports],
            names,
            networks,
            media_interfaces: [line(), line()],
            media_addresses: addresses(line_addresses),
            children: Vec::new(),
            child_logs: Vec::new(),
            sockets: Vec::new(),
            folders: Vec::new(),
            keys: Vec::new(),
            logs: plan.logs.to_owned(),
        })
    }

    /// Sets up a protection and checks that it works.
    ///
    /// # Errors
    /// A program or a right is missing, or it does not start.
    pub fn protect(&mut self, protection: &StudyProtection) -> Result<(), String> {
        if protection.has_firewall {
            self.firewall(&self.media_interfaces_of(protection.tunnel))?;
        }
        match protection.tunnel {
            // The hosts protect the media themselves.
            Tunnel::None | Tunnel::Srtp => Ok(()),
            Tunnel::OpenVpn(cipher) => self.openvpn(cipher, protection.name),
            Tunnel::WireGuard => self.wireguard(),
            Tunnel::StrongSwan => self.strongswan(),
            Tunnel::Esp(name) => {
                let case = EspCase::of(name).ok_or_else(|| format!("no ESP case {name}"))?;
                let mut entropy = net::entropy().map_err(|error| failed("getrandom", error))?;
                self.esp((case, EspCarriage::Tunnel), &mut entropy)?;
                self.reach()
            }
        }
    }

    /// Interface on which media passes unprotected at each host with this tunnel.
    fn media_interfaces_of(&self, tunnel: Tunnel) -> [String; 2] {
        match tunnel {
            Tunnel::None | Tunnel::Srtp => [LINE_INTERFACE, LINE_INTERFACE].map(str::to_owned),
            Tunnel::Esp(_) => [ESP_DEVICE, ESP_DEVICE].map(str::to_owned),
            Tunnel::OpenVpn(_) => [TUN, TUN].map(str::to_owned),
            Tunnel::WireGuard => {
                let number = self.names[0]
                    .trim_start_matches(PREFIX)
                    .trim_end_matches("-a")
                    .replace('-', "w");
                [format!("a{number}"), format!("b{number}")]
            }
            Tunnel::StrongSwan => [strongswan::DEVICE, strongswan::DEVICE].map(str::to_owned),
        }
    }

    /// Stateful: answers, the tunnel on the line, and the media on the interface of the media; everything else is
    /// dropped, media beside the tunnel included.
    fn firewall(&self, media: &[String; 2]) -> Result<(), String> {
        let [ike, esp] = strongswan::PORTS;
        let [udp, tcp] = &self.ports;
        for (name, interface) in self.names[..2].iter().zip(media) {
            let rules = format!(
                "table inet hornwork {{ chain input {{ type filter hook input priority 0; policy drop; \
                 iifname \"lo\" accept; ct state established,related accept; ct state invalid drop; \
                 iifname \"{LINE_INTERFACE}\" udp dport {{ {OPENVPN}, {WIREGUARD}, {ike}, {esp} }} accept; \
                 iifname \"{interface}\" udp dport {{ {udp} }} accept; {}}}; }}",
                match tcp.as_str() {
                    "" => String::new(),
                    tcp => format!("iifname \"{interface}\" tcp dport {{ {tcp} }} accept; "),
                }
            );
            program("ip", &["netns", "exec", name, "nft", &rules]).map_err(|error| match error
                .contains("No such file")
            {
                true => format!("{error}; {}", remedy("nft")),
                false => error,
            })?;
            let set = program(
                "ip",
                &[
                    "netns", "exec", name, "nft", "list", "table", "inet", "hornwork",
                ],
            )?;
            if !set.contains("policy drop") || !set.contains("established") {
                return Err("the firewall is not set up".to_owned());
            }
        }
        Ok(())
    }

    fn spawn(&mut self, side: usize, words: &[&str], log: &str) -> Result<PathBuf, String> {
        let path = self.logs.join(format!("{}-{log}.log", self.names[side]));
        let file = std::fs::File::create(&path);
        let file = file.map_err(|error| failed(&path.display().to_string(), error))?;
        let errors = file.try_clone().map_err(|error| failed("log", error))?;
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[side]])
            .args(words)
            .env("WG_PROCESS_FOREGROUND", "1")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        // Ctrl-C on a terminal signals the foreground group: calls that go on until their end need their tunnel.
        command.process_group(0);
        // A killed run leaves namespaces, which the next one removes, but no program that runs.
        net::end_with_parent(&mut command);
        let child = command.spawn();
        self.children
            .push(child.map_err(|error| failed(words[0], error))?);
        self.child_logs.push(path.clone());
        Ok(path)
    }

    /// Passes frames between both ends of the line as they are, in place of an emulated link.
    ///
    /// # Errors
    /// A right, or the kernel's bridge is missing.
    pub fn bridge(&self) -> Result<(), String> {
        let line = &self.names[2];
        let [a, b] = LINE_ENDS;
        script(&format!(
            "ip -n {line} link add line type bridge; ip -n {line} link set line up
             ip -n {line} link set {a} master line; ip -n {line} link set {b} master line"
        ))
    }

    /// Folder of a test bed that has none of its own, for its user alone; it is removed with it, or by the next run.
    ///
    /// # Errors
    /// It cannot be made, or exists: in the temporary directory another user may have made it, with links to files that
    /// the logs would overwrite.
    pub fn private_logs(number: usize) -> Result<PathBuf, String> {
        let name = format!("{PREFIX}{}-{number}-logs", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| {
            let remedy = match error.kind() {
                std::io::ErrorKind::AlreadyExists => "; remove it",
                _ => "",
            };
            format!("{}: {error}{remedy}", folder.display())
        })?;
        Ok(folder)
    }

    /// Removes a folder with the test bed.
    pub fn owns(&mut self, folder: PathBuf) {
        self.folders.push(folder);
    }

    /// Puts two gateways of this program on the line, with these algorithms and random keys. The addresses in the
    /// tunnel are those of their devices.
    ///
    /// # Errors
    /// A right, or TUN is missing.
    pub(crate) fn esp(
        &mut self,
        (case, carriage): (&EspCase, EspCarriage),
        entropy: &mut Entropy,
    ) -> Result<(), String> {
        let open = |network: &Network| -> Result<(TunDevice, PacketSocket), String> {
            in_network(network, || -> Result<(TunDevice, PacketSocket), String> {
                let tun = TunDevice::create(ESP_DEVICE).map_err(|error| failed("TUN", error))?;
                let socket = PacketSocket::open(LINE_INTERFACE)
                    .map_err(|error| failed(LINE_INTERFACE, error))?;
                Ok((tun, socket))
            })?
        };
        let ends = [open(&self.networks[0])?, open(&self.networks[1])?];
        for (name, address) in self.names.iter().zip(self.inner) {
            script(&format!(
                "ip -n {name} link set {ESP_DEVICE} addrgenmode none
                 ip -n {name} addr add {address}/24 dev {ESP_DEVICE}
                 ip -n {name} link set {ESP_DEVICE} mtu {INNER_MTU} txqueuelen 10000 up"
            ))?;
        }
        let outer = self
            .line
            .map(|text| text.parse().unwrap_or(Ipv4Addr::LOCALHOST));
        let gateways = LineGateways::start(ends, (case, carriage), outer, entropy);
        self.gateways = Some(gateways.map_err(|error| error.to_string())?);
        self.media_interfaces = [ESP_DEVICE, ESP_DEVICE].map(str::to_owned);
        self.media_addresses = addresses(self.inner);
        Ok(())
    }

    /// Ends the gateways of our own ESP; returns their counts.
    ///
    /// # Errors
    /// One has ended before.
    pub(crate) fn finish_gateways(&mut self) -> Result<Option<[LineGatewayCount; 2]>, String> {
        let Some(gateways) = self.gateways.take() else {
            return Ok(None);
        };
        // The devices end with the gateways.
        let drops = [0, 1].map(|side: usize| {
            let counters = in_network(&self.networks[side], || net::interface_counters(ESP_DEVICE));
            // Without its device a gateway has failed, and says why.
            let counters = counters.ok().and_then(Result::ok);
            counters.map_or(0, |counters| counters.send_drops)
        });
        let mut counts = gateways.finish()?;
        for (count, drops) in counts.iter_mut().zip(drops) {
            count.kernel_drops += drops;
        }
        Ok(Some(counts))
    }

    /// Checks that the programs of the tunnel still run: a tunnel without them loses every packet, which is none of its
    /// cipher.
    ///
    /// # Errors
    /// One has ended, with its last words.
    pub fn check(&mut self) -> Result<(), String> {
        if self.gateways.as_ref().is_some_and(LineGateways::has_ended) {
            let why = self.finish_gateways().err();
            let why = why.unwrap_or_else(|| "without an error".to_owned());
            return Err(format!("an ESP gateway ended during the call: {why}"));
        }
        let mut ended = Vec::new();
        for (index, (child, log)) in self.children.iter_mut().zip(&self.child_logs).enumerate() {
            let status = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => status.to_string(),
                Err(error) => error.to_string(),
            };
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let last = text.lines().last().unwrap_or("nothing in its log");
            ended.push(format!(
                "program {} of the tunnel: {status}: {last}",
                index + 1
            ));
        }
        match ended.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the tunnel ended during the call: {}",
                ended.join("; ")
            )),
        }
    }

    /// Waits until `done`, or one of the programs has ended.
    fn wait_for(
        &mut self,
        what: &str,
        logs: &[PathBuf],
        mut done: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let clock = net::Clock::new();
        while !done() {
            if net::stops() > 0 {
                return Err(INTERRUPTED.to_owned());
            }
            let ended = self
                .children
                .iter_mut()
                .any(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || clock.now().since(engine::Time::ZERO) > START {
                let text: Vec<String> = logs
                    .iter()
                    .filter_map(|path| std::fs::read_to_string(path).ok())
                    .collect();
                let last = text.iter().flat_map(|text| text.lines().rev().take(2));
                let last: Vec<&str> = last.collect();
                return Err(format!("{what} did not start: {}", last.join("; ")));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(())
    }

    /// A file for a key of a host, in memory and not beside the results, where the next run finds those of a killed
    /// one.
    fn key_file(&mut self, side: usize, name: &str) -> PathBuf {
        let path = Path::new(KEYS).join(format!("{}-{name}.key", self.names[side]));
        self.keys.push(path.clone());
        path
    }

    fn remove_keys(&mut self) {
        for key in self.keys.drain(..) {
            let _ = std::fs::remove_file(key);
        }
    }

    fn openvpn(&mut self, cipher: &str, name: &str) -> Result<(), String> {
        let (line, inner) = (self.line, self.inner);
        let key = self.key_file(0, name);
        let key_text = key.display().to_string();
        program("openvpn", &["--genkey", "secret", &key_text])?;
        let port = OPENVPN.to_string();
        let mut logs = Vec::new();
        for side in [0, 1] {
            let other = 1 - side;
            let direction = side.to_string();
            let words = [
                "openvpn",
                "--dev",
                TUN,
                "--dev-type",
                "tun",
                "--proto",
                "udp",
                "--port",
                &port,
                "--local",
                line[side],
                "--remote",
                line[other],
                "--ifconfig",
                inner[side],
                inner[other],
                "--secret",
                &key_text,
                &direction,
                "--cipher",
                cipher,
                "--auth",
                "SHA1",
                "--providers",
                "legacy",
                "default",
                "--verb",
                "3",
            ];
            logs.push(self.spawn(side, &words, name)?);
        }
        let networks = self.networks.clone();
        self.wait_for("openvpn", &logs, move || {
            let mut hosts = networks[..2].iter();
            hosts.all(|network| has_interface(network, TUN))
        })?;
        self.remove_keys();
        self.media_interfaces = [TUN, TUN].map(str::to_owned);
        self.media_addresses = addresses(self.inner);
        self.reach()?;
        // It could have chosen another cipher; its log names the one in use.
        let used = format!("Data Channel: cipher '{cipher}'");
        self.wait_for(&format!("{cipher} in openvpn"), &logs.clone(), move || {
            let names_it =
                |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|t| t.contains(&used));
            logs.iter().all(names_it)
        })
    }

    fn wireguard(&mut self) -> Result<(), String> {
        let mut keys = Vec::new();
        for side in [0, 1] {
            let path = self.key_file(side, "wg");
            let text = path.display().to_string();
            script(&format!("umask 077; wg genkey > '{text}'"))
                .map_err(|error| format!("{error}; {}", remedy("wg")))?;
            let public = program("sh", &["-ec", &format!("wg pubkey < '{text}'")])?;
            keys.push((path, public.trim().to_owned()));
        }
        let interfaces = self.media_interfaces_of(Tunnel::WireGuard);
        for (side, interface) in interfaces.iter().enumerate() {
            let name = self.names[side].clone();
            let in_kernel = program(
                "ip",
                &["-n", &name, "link", "add", interface, "type", "wireguard"],
            );
            if in_kernel.is_err() {
                program("wireguard-go", &["--version"])?;
                let log = self.spawn(side, &["wireguard-go", "-f", interface], "wireguard")?;
                self.sockets.push(PathBuf::from(format!(
                    "{WIREGUARD_SOCKETS}/{interface}.sock"
                )));
                let network = self.networks[side].clone();
                let socket = self.sockets.last().cloned().unwrap_or_default();
                let interface = interface.clone();
                self.wait_for("wireguard-go", &[log], move || {
                    socket.exists() && has_interface_down(&network, &interface)
                })?;
            }
        }
        for side in [0, 1] {
            let other = 1 - side;
            let (name, interface) = (&self.names[side], &interfaces[side]);
            let (key, peer) = (keys[side].0.display(), &keys[other].1);
            script(&format!(
                "ip netns exec {name} wg set {interface} private-key '{key}' listen-port {WIREGUARD} \
                 peer '{peer}' allowed-ips {}/32 endpoint {}:{WIREGUARD}
                 ip -n {name} addr add {}/24 dev {interface}
                 ip -n {name} link set {interface} up",
                self.inner[other], self.line[other], self.inner[side]
            ))?;
        }
        self.remove_keys();
        self.media_interfaces = interfaces;
        self.media_addresses = addresses(self.inner);
        self.reach()
    }

    /// A socket at the media address of a host, which a tunnel gets a moment after its interface is up.
    fn bind(&self, side: usize, port: u16) -> Result<std::net::UdpSocket, String> {
        let clock = net::Clock::new();
        loop {
            let address = (self.media_addresses[side], port);
            let bound = in_network(&self.networks[side], || std::net::UdpSocket::bind(address))?;
            match bound {
                Ok(socket) => return Ok(socket),
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                    if net::stops() > 0 {
                        return Err(INTERRUPTED.to_owned());
                    }
                    if clock.now().since(engine::Time::ZERO) > START {
                        return Err(failed("the tunnel", error));
                    }
                    std::thread::sleep(Duration::from_millis(30));
                }
                Err(error) => return Err(failed("the tunnel", error)),
            }
        }
    }

    /// Checks that the other host is reached through tunnel and firewall.
    fn reach(&self) -> Result<(), String> {
        let socket = self.bind(0, RTP + 10)?;
        let receiver = self.bind(1, RTP)?;
        receiver
            .set_read_timeout(Some(Duration::from_millis(400)))
            .map_err(|error| failed("the tunnel", error))?;
        let to = (self.media_addresses[1], RTP);
        let mut room = [0; 64];
        for _ in 0..25 {
            if net::stops() > 0 {
                return Err(INTERRUPTED.to_owned());
            }
            let _ = socket.send_to(b"hornwork", to);
            if receiver.recv(&mut room).is_ok() {
                // Answers to handshakes and further probes leave the slow line.
                std::thread::sleep(Duration::from_millis(100));
                return Ok(());
            }
        }
        Err("the other host is not reached through the tunnel".to_owned())
    }
}

fn addresses(texts: [&str; 2]) -> [std::net::IpAddr; 2] {
    texts.map(|text| {
        text.parse()
            .unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST))
    })
}

/// Runs a closure in a namespace, on a thread of its own.
pub fn in_network<R: Send>(network: &Network, job: impl FnOnce() -> R + Send) -> Result<R, String> {
    std::thread::scope(|scope| {
        let whole = || {
            network.enter().map_err(|error| failed("setns", error))?;
            Ok(job())
        };
        let done = scope.spawn(whole).join();
        done.unwrap_or_else(|_| Err("a thread panicked".to_owned()))
    })
}

fn has_interface(network: &Network, name: &str) -> bool {
    let info = in_network(network, || net::InterfaceInfo::of(name));
    matches!(info, Ok(Ok(info)) if info.is_up)
}

fn has_interface_down(network: &Network, name: &str) -> bool {
    matches!(
        in_network(network, || net::InterfaceInfo::of(name)),
        Ok(Ok(_))
    )
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.gateways = None;
        for child in &self.children {
            // In order, so that it removes its interface and socket.
            let _ = net::request_end(child);
        }
        let clock = net::Clock::new();
        let limit = engine::Time::from_secs(2);
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && clock.now() < limit {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        self.remove_keys();
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
        for folder in &self.folders {
            let _ = std::fs::remove_dir_all(folder);
        }
        for name in &self.names {
            remove_namespace(name);
        }
    }
}

fn remove_namespace(name: &str) {
    if Path::new("/run/netns").join(name).exists() {
        // A second Ctrl-C does not end it.
        let _ = Command::new("ip")
            .args(["netns", "del", name])
            .process_group(0)
            .output();
    }
}

/// Whether a process of this number is this program, or one of its tests.
fn runs(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    let own = std::fs::read_link("/proc/self/exe").ok();
    program.is_ok_and(|program| is_ours(&program, own.as_deref()))
}

/// Whether a program is this one, whose path is `own` and may have another name, or one of its tests.
fn is_ours(program: &Path, own: Option<&Path>) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let folder = program.parent().and_then(Path::file_name);
    own == Some(program)
        || name.starts_with("hornwork")
        || folder.is_some_and(|folder| folder == "deps")
}

/// The run that a name belongs to: `hwc-PROCESS-...`, or `aPROCESSwCELL.sock` of WireGuard.
fn owner(name: &str) -> Option<u32> {
    let rest = match name.strip_prefix(PREFIX) {
        Some(rest) => rest.split('-').next()?,
        None => {
            let interface = name.strip_suffix(".sock")?;
            let (process, cell) = interface.strip_prefix(['a', 'b'])?.split_once('w')?;
            cell.parse::<u32>().ok()?;
            process
        }
    };
    rest.parse().ok()
}

/// Whether a name is one of ours, and the run that gave it is over.
fn is_left_over(name: &str) -> bool {
    name.starts_with(PREFIX) && owner(name).is_some_and(|owner| !runs(owner))
}

/// Removes folders of killed runs from the temporary directory. One that stays is harmless.
fn remove_folders() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let is_own = entry
            .metadata()
            .is_ok_and(|about| about.is_dir() && about.uid() == net::user_id());
        if is_own && entry.file_name().to_str().is_some_and(is_left_over) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the files of killed runs in a folder; returns their names.
fn remove_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut removed = Vec::new();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.ends_with(".key") || name.ends_with(".sock");
        let is_left = is_ours && owner(&name).is_some_and(|owner| !runs(owner));
        if is_left && std::fs::remove_file(entry.path()).is_ok() {
            removed.push(name);
        }
    }
    removed
}

/// Removes namespaces that killed runs have left, with the programs in them, and their files with keys; returns their
/// names.
///
/// # Errors
/// `ip` is missing, or may not change namespaces.
pub fn remove_left_overs() -> Result<Vec<String>, LabError> {
    remove_folders();
    let missing = |error: String| LabError::cannot_run(error, "run it as root, with ip installed");
    let list = program("ip", &["netns", "list"]).map_err(missing)?;
    let mut removed = Vec::new();
    for name in list.lines().filter_map(|line| line.split(' ').next()) {
        if !is_left_over(name) {
            continue;
        }
        let inside = program("ip", &["netns", "pids", name]).map_err(missing)?;
        for process in inside.lines().filter_map(|line| line.parse().ok()) {
            let _ = net::kill(process);
        }
        program("ip", &["netns", "del", name]).map_err(missing)?;
        removed.push(name.to_owned());
    }
    for folder in [KEYS, WIREGUARD_SOCKETS] {
        removed.extend(remove_files(Path::new(folder)));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether media that one host sends beside the tunnel arrives at the other one.
    fn clear_media_arrives(bench: &Bench) -> bool {
        let bind = |side: usize, port: u16| {
            let address = (LINE[side], port);
            in_network(&bench.networks[side], || std::net::UdpSocket::bind(address))
                .unwrap()
                .unwrap()
        };
        let (sender, receiver) = (bind(0, RTP + 10), bind(1, RTP));
        let wait = Some(Duration::from_millis(100));
        receiver.set_read_timeout(wait).unwrap();
        let mut room = [0; 64];
        (0..5).any(|_| {
            sender.send_to(b"media", (LINE[1], RTP)).unwrap();
            receiver.recv(&mut room).is_ok()
        })
    }

    #[test]
    fn firewall_drops_media_beside_the_tunnel() {
        let may = Command::new("unshare").args(["-n", "true"]).status();
        let has_nft = Command::new("nft").arg("--version").output().is_ok();
        if !may.is_ok_and(|status| status.success()) || !has_nft {
            eprintln!("skipped: no right to namespaces, or nft is not installed");
            return;
        }
        let dir = std::env::temp_dir();
        for (number, tunnel, arrives) in [
            (901, Tunnel::None, true),
            (902, Tunnel::OpenVpn("AES-128-CBC"), false),
            (903, Tunnel::WireGuard, false),
            (904, Tunnel::StrongSwan, false),
            (905, Tunnel::Srtp, true),
            (906, Tunnel::Esp("aes-gcm"), false),
        ] {
            let bench = Bench::new(number, &dir).unwrap();
            bench.bridge().unwrap();
            assert!(clear_media_arrives(&bench), "{tunnel:?} without a firewall");
            let media = bench.media_interfaces_of(tunnel);
            bench.firewall(&media).unwrap();
            assert_eq!(
                clear_media_arrives(&bench),
                arrives,
                "{tunnel:?}: {media:?}"
            );
        }
    }

    #[test]
    fn folder_of_logs_is_made_for_its_user_alone() {
        const NUMBER: usize = 4_194_305;
        let folder = Bench::private_logs(NUMBER).unwrap();
        let mode = std::fs::metadata(&folder).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        // One that exists may be another user's, with links in it.
        let error = Bench::private_logs(NUMBER).unwrap_err();
        assert!(error.ends_with("; remove it"), "{error}");
        assert!(error.starts_with(&folder.display().to_string()), "{error}");
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn runs_of_a_program_with_another_name_are_ours() {
        let is_ours = |program: &str| is_ours(Path::new(program), Some(Path::new("/opt/sbc-lab")));
        assert!(is_ours("/opt/sbc-lab"));
        assert!(is_ours("/usr/bin/hornwork (deleted)"));
        assert!(is_ours("/src/target/debug/deps/suite-0123456789abcdef"));
        assert!(!is_ours("/usr/sbin/openvpn"));
        assert!(runs(std::process::id()));
    }

    #[test]
    fn files_of_killed_runs_are_removed_and_others_are_not() {
        let folder = std::env::temp_dir().join(format!("lab-left-over-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // Beyond the largest process number of Linux.
        let left = [
            "hwc-4194305-3-a-wg.key",
            "hwc-4194305-3-a-aes-128.key",
            "b4194305w3.sock",
        ];
        let others = [
            "wg0.sock",
            "hwc-x-a-wg.key",
            "a12.sock",
            "hwc-4194305-3.log",
        ];
        for name in left.iter().chain(&others) {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let mut removed = remove_files(&folder);
        removed.sort();
        let mut expected = left.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(removed, expected);
        assert!(others.iter().all(|name| folder.join(name).exists()));
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(owner("hwc-17-3-l"), Some(17));
    }
}
