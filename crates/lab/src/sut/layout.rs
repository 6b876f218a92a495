//! Configuration of a border as SUT: an access interface towards callers, a core interface towards the called side, a
//! trunk, and users.

use crate::error::LabError;
use crate::experiment::ConferenceLoad;
use crate::tls::TrialCredentials;
use codec::Kind;
use config::Config;
use engine::{Entropy, Transport};
use net::PortRange;
use net::tls::Security;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// Media ports of SUTs begin here, below the default ports of a border or a media node.
const FIRST_PORT: u16 = 10_000;
const PREFERRED_END: u16 = 20_000;
/// If these do not suffice, up to here: below the kernel's default range of ephemeral ports.
const LAST_END: u16 = 32_768;

/// A range of media ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpan {
    first: u16,
    count: u16,
}

impl PortSpan {
    /// `count` ports from `first` on.
    pub const fn new(first: u16, count: u16) -> PortSpan {
        PortSpan { first, count }
    }

    /// Spans for the two interfaces, with two port pairs for each of `calls` concurrent calls, at a random position, so
    /// that two runs on one machine rarely collide.
    pub fn for_calls(calls: u64, entropy: &mut Entropy) -> [PortSpan; 2] {
        let wanted = calls * 4 + 64;
        let end = match 2 * wanted <= u64::from(PREFERRED_END - FIRST_PORT) {
            true => PREFERRED_END,
            false => LAST_END,
        };
        let room = u64::from(end - FIRST_PORT);
        let count = wanted.min(room / 2);
        let start = u64::from(FIRST_PORT) + entropy.below(room - 2 * count + 1) / 2 * 2;
        [start, start + count].map(|first| PortSpan::new(first as u16, count as u16))
    }

    /// Spans as of [`PortSpan::for_calls`] of which no port is open or claimed at these addresses.
    ///
    /// # Errors
    /// If none are found.
    pub fn free_for_calls(
        calls: u64,
        addresses: [IpAddr; 2],
        entropy: &mut Entropy,
    ) -> Result<[PortSpan; 2], LabError> {
        std::iter::repeat_with(|| PortSpan::for_calls(calls, entropy))
            .take(50)
            .find(|spans| (spans.iter().zip(addresses)).all(|(span, ip)| span.is_free_at(ip)))
            .ok_or_else(|| {
                LabError::cannot_run(
                    format!(
                        "no range of free UDP ports between {FIRST_PORT} and {LAST_END} on {}",
                        addresses[0]
                    ),
                    "stop the programs that use them, or raise the limit of open files (ulimit -n)",
                )
            })
    }

    /// Whether all its ports are free on the loopback interface now, and no border or media node claims them.
    pub fn is_free(self) -> bool {
        self.is_free_at(Ipv4Addr::LOCALHOST.into())
    }

    fn is_free_at(self, address: IpAddr) -> bool {
        let own = PortRange {
            address,
            first: self.first,
            last: self.first.saturating_add(self.count.saturating_sub(1)),
        };
        // Without the list of claims, the check of open ports still applies.
        let claims = net::claims().unwrap_or_default();
        if claims.iter().any(|claim| claim.range.overlaps(&own)) {
            return false;
        }
        let mut ports = self.first..self.first.saturating_add(self.count);
        ports.all(|port| UdpSocket::bind((address, port)).is_ok())
    }

    /// Part `number` of `count` equal parts that consist of port pairs.
    #[must_use]
    pub fn part(self, number: u64, count: u64) -> PortSpan {
        let each = u64::from(self.count) / count.max(1) / 2 * 2;
        // A part lies within the span, whose port numbers have 16 bits.
        PortSpan::new(self.first + (each * number) as u16, each as u16)
    }

    fn contains(self, port: u16) -> bool {
        port.checked_sub(self.first)
            .is_some_and(|place| place < self.count)
    }

    /// Its first port.
    pub fn first(self) -> u16 {
        self.first
    }

    pub(super) fn text(self) -> String {
        format!("{}-{}", self.first, self.first + self.count - 1)
    }
}

/// Transactions of a call of a mobile network, each for the seconds that it takes: they stay for up to 32 s after their
/// end (RFC 3261, Timers H, J, L and M), those of INVITE, PRACK, UPDATE and BYE on both sides.
const TRANSACTION_SECONDS: f64 = 400.0;

/// Addresses, users and trunk of a border.
#[derive(Clone, Debug)]
pub struct Layout {
    access: SocketAddr,
    core: SocketAddr,
    ports: [PortSpan; 2],
    /// Targets of calls to unregistered users; several are used in turn.
    pub trunk: Vec<SocketAddr>,
    /// Registrations are passed on to the trunk; otherwise the border is the registrar.
    pub registrar_behind: bool,
    /// Transport to the trunk.
    pub trunk_transport: Transport,
    /// Listeners for TLS or WebSocket: towards callers, and (TLS only) towards the called side.
    pub streams: [Option<(Transport, SocketAddr)>; 2],
    /// Certificates and trust for the driver; required with TLS.
    pub credentials: Option<TrialCredentials>,
    /// Names and passwords; with passwords, calls and registrations must be authenticated.
    pub users: Vec<(String, String)>,
    /// Media bypass.
    pub bypass: bool,
    /// Plain RTP is relayed by the kernel; without it the border does not start.
    pub kernel_relay: bool,
    /// Header rules on both sides change two headers and add two in every message that is passed on.
    pub header_rules: bool,
    /// SRTP is required towards callers, and plain RTP used towards the called side.
    pub srtp: bool,
    /// Codec towards the called side if callers do not offer it.
    pub transcode: Option<Kind>,
    /// Conferences, this number and one more, at 8000 and the following extensions.
    pub conference: Option<ConferenceLoad>,
    /// Limit of new calls per second from callers; 0: none.
    pub call_limit: u32,
    /// Memory for calls and registrations, MiB; 0: no limit.
    pub memory_mib: u32,
    /// Interval after which refreshes are passed on to the registrar behind, seconds; 0: the default of the
    /// configuration.
    pub refresh_interval_s: u32,
    /// Limit of stream connections, all from one source; 0: the default of the configuration.
    pub connections: u32,
    /// Calls at a time and calls per second of the workload: the limits of calls and transactions are at least as high
    /// as these need, so that they do not decide over a rate.
    pub load: (u64, f64),
    /// Media nodes: their command addresses.
    pub nodes: Vec<SocketAddr>,
    /// Number of media nodes that get no calls.
    pub nodes_drained: usize,
    /// Program of its own, whose admission control would know the CPUs of this machine: the load sets the number of
    /// calls, as for a border without a machine.
    pub is_program: bool,
}

/// The header rules of the study on the virtualised border: on both interfaces two headers changed, two added.
const HEADER_RULES: &str = r#"[[rules]]
name = "towards the core"
interface = "core"
direction = "out"
do = [
  { set = "User-Agent", value = "Hornwork border" },
  { set = "Subject", value = "through ${interface}" },
  { add = "X-Border", value = "header rules" },
  { add = "X-Caller", value = "${from.user}" },
]

[[rules]]
name = "towards the callers"
interface = "access"
direction = "out"
do = [
  { set = "Server", value = "Hornwork border" },
  { set = "User-Agent", value = "Hornwork border" },
  { add = "X-Border", value = "header rules" },
  { add = "X-Called", value = "${to.user}" },
]

"#;

/// The driver of a border on a thread gets certificates from memory: these files are read by a program alone.
const CERTIFICATE: &str =
    "tls = { certificate = { chain = \"trial.pem\", key = \"trial.key\" } }\n";
/// Names of these files: certificate and key.
pub(super) const CERTIFICATE_FILES: [&str; 2] = ["trial.pem", "trial.key"];

impl Layout {
    /// A border at these addresses.
    pub fn new(access: SocketAddr, core: SocketAddr, ports: [PortSpan; 2]) -> Layout {
        Layout {
            access,
            core,
            ports,
            trunk: Vec::new(),
            registrar_behind: false,
            trunk_transport: Transport::Udp,
            streams: [None; 2],
            credentials: None,
            users: Vec::new(),
            bypass: false,
            kernel_relay: false,
            header_rules: false,
            srtp: false,
            transcode: None,
            conference: None,
            call_limit: 0,
            memory_mib: 0,
            refresh_interval_s: 0,
            connections: 0,
            load: (0, 0.0),
            nodes: Vec::new(),
            nodes_drained: 0,
            is_program: false,
        }
    }

    /// A border at free ports of the loopback interface.
    ///
    /// # Errors
    /// If no port is free.
    pub fn on_loopback(ports: [PortSpan; 2]) -> Result<Layout, LabError> {
        Layout::on_free_ports([Ipv4Addr::LOCALHOST.into(); 2], ports)
    }

    /// A border at free ports of these addresses of this machine: towards callers, and towards the called side.
    ///
    /// # Errors
    /// If no port is free, or an address does not belong to this machine.
    pub fn on_free_ports(addresses: [IpAddr; 2], ports: [PortSpan; 2]) -> Result<Layout, LabError> {
        // Both stay open until both are chosen, so that they differ.
        let (access, _access_sockets) = free_port(addresses[0], &ports)?;
        let (core, _core_sockets) = free_port(addresses[1], &ports)?;
        Ok(Layout::new(access, core, ports))
    }

    /// As [`Layout::on_loopback`], with `port` for callers if it is free.
    ///
    /// # Errors
    /// If no port is free.
    pub fn on_loopback_at(port: u16, ports: [PortSpan; 2]) -> Result<Layout, LabError> {
        let mut layout = Layout::on_loopback(ports)?;
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if UdpSocket::bind(wanted).is_ok() && TcpListener::bind(wanted).is_ok() {
            layout.access = wanted;
        }
        Ok(layout)
    }

    /// Address for callers.
    pub fn access(&self) -> SocketAddr {
        self.access
    }

    /// Address for the called side.
    pub fn core(&self) -> SocketAddr {
        self.core
    }

    /// Number of its signalling sockets.
    pub fn listeners(&self) -> usize {
        4 + self.streams.iter().flatten().count()
    }

    /// Adds listeners for TLS or WebSocket at free ports: towards callers, and (TLS only) towards the called side.
    ///
    /// # Errors
    /// If no port is free.
    pub fn with_streams(
        mut self,
        sides: [Option<Transport>; 2],
        credentials: Option<TrialCredentials>,
    ) -> Result<Layout, LabError> {
        let mut held = Vec::new();
        let addresses = [self.access.ip(), self.core.ip()];
        for ((stream, ip), wanted) in self.streams.iter_mut().zip(addresses).zip(sides) {
            if let Some(transport) = wanted {
                let (address, sockets) = free_port(ip, &self.ports)?;
                held.push(sockets);
                *stream = Some((transport, address));
            }
        }
        self.credentials = credentials;
        Ok(self)
    }

    /// TLS settings of its driver.
    ///
    /// # Errors
    /// If the TLS library refuses a certificate.
    pub(crate) fn security(&self) -> Result<Option<Security>, LabError> {
        let listening: Vec<(SocketAddr, bool)> = self
            .streams
            .iter()
            .flatten()
            .filter(|(transport, _)| is_secure(*transport))
            .map(|&(transport, address)| (address, transport == Transport::Wss))
            .collect();
        let credentials = self.credentials.as_ref();
        credentials
            .map(|credentials| credentials.security(&listening))
            .transpose()
    }

    fn media_nodes(&self, text: &mut String) {
        if self.nodes.is_empty() {
            return;
        }
        text.push_str("[media]\nanchor = \"nodes\"\n\n");
        let first_drained = self.nodes.len().saturating_sub(self.nodes_drained);
        for (number, control) in self.nodes.iter().enumerate() {
            let drain = number >= first_drained;
            let _ = write!(
                text,
                "[[media_node]]\nname = \"node{number}\"\ncontrol = \"udp:{control}\"\ndrain = {drain}\n\n"
            );
        }
    }

    /// The configuration, as TOML.
    pub fn toml(&self) -> String {
        let mut text = String::new();
        for (name, kind, address, ports, stream) in [
            (
                "access",
                "access",
                self.access,
                self.ports[0],
                self.streams[0],
            ),
            ("core", "core", self.core, self.ports[1], self.streams[1]),
        ] {
            let listen = stream.map_or(String::new(), |(transport, address)| {
                format!(", \"{transport}:{address}\"")
            });
            let secure = stream.is_some_and(|(transport, _)| is_secure(transport));
            let certificate = if secure { CERTIFICATE } else { "" };
            let _ = write!(
                text,
                "[[interface]]\nname = \"{name}\"\nkind = \"{kind}\"\n\
                 listen = [\"udp:{address}\", \"tcp:{address}\"{listen}]\n{certificate}"
            );
            // With media nodes no port of the range is opened; the range must not contain the ports of the listeners.
            let (ip, ports) = (address.ip(), ports.text());
            let _ = writeln!(
                text,
                "media = {{ address = \"{ip}\", ports = \"{ports}\" }}"
            );
            if !self.nodes.is_empty() {
                let _ = writeln!(text, "node_interface = \"{name}\"");
            }
            if name == "access" && self.registrar_behind {
                text.push_str("register = \"pass:far\"\n");
            } else if name == "access" && !self.users.is_empty() {
                text.push_str("register = \"local\"\n");
                if self.with_passwords().next().is_some() {
                    text.push_str("authenticate = \"digest\"\n");
                }
            }
            if self.srtp {
                let policy = if name == "access" {
                    "require"
                } else {
                    "refuse"
                };
                let _ = writeln!(text, "srtp = \"{policy}\"");
            }
            if let Some(kind) = self.transcode.filter(|_| name == "core") {
                let _ = writeln!(text, "transcode = \"{}\"", kind.name());
            }
            if name == "access" && self.call_limit > 0 {
                let limit = self.call_limit;
                let _ = writeln!(
                    text,
                    "rate_limits = {{ calls_per_s = {limit}, status = 486 }}"
                );
            }
            text.push('\n');
        }
        let defaults = engine::Limits::default();
        let (calls, per_s) = self.load;
        let calls = calls.min(u32::MAX.into());
        // The conversion of a float is bounded.
        let transactions = u64::from((per_s * TRANSACTION_SECONDS) as u32);
        let above = |needed: u64, default: usize| needed > default as u64;
        let more_calls = above(calls, defaults.calls);
        let more_transactions = above(transactions, defaults.transactions);
        let has_load_limits = self.is_program || more_calls || more_transactions;
        if self.memory_mib > 0 || self.connections > 0 || has_load_limits {
            text.push_str("[limits]\n");
            if self.is_program {
                text.push_str("cpu_percent = 100000\n");
            }
            if more_calls {
                let _ = writeln!(text, "calls = {calls}");
            }
            if more_transactions {
                let _ = writeln!(text, "transactions = {transactions}");
            }
            if self.memory_mib > 0 {
                let _ = writeln!(text, "memory_mib = {}", self.memory_mib);
            }
            if self.connections > 0 {
                let count = self.connections;
                let _ = writeln!(
                    text,
                    "connections = {count}\nconnections_per_source = {count}\nhandshakes_per_s = 0"
                );
            }
            text.push('\n');
        }
        if self.refresh_interval_s > 0 {
            let interval = self.refresh_interval_s;
            let _ = writeln!(text, "[registrar]\nrefresh_interval_s = {interval}\n");
        }
        let media = if self.bypass {
            "media = \"bypass\"\n"
        } else {
            ""
        };
        self.media_nodes(&mut text);
        if let Some(plan) = &self.conference {
            let _ = write!(
                text,
                "[[conference]]\nname = \"conference\"\nregex = '8\\d\\d\\d'\ncodecs = [\"{}\"]\n\
                 max_participants = {}\nmax_conferences = {}\ntones = \"none\"\n\n",
                plan.codec.format(false).kind().name(),
                plan.participants,
                plan.count + 1
            );
        }
        if !self.users.is_empty() {
            let _ = write!(
                text,
                "[[route]]\nname = \"phones\"\nregistered = true\n{media}\n"
            );
        }
        if !self.trunk.is_empty() {
            let transport = self.trunk_transport.uri_name();
            let targets: Vec<String> = self
                .trunk
                .iter()
                .map(|target| format!("\"{transport}:{target}\""))
                .collect();
            let tls = match (self.trunk_transport, &self.credentials) {
                (Transport::Tls, Some(credentials)) => {
                    format!(
                        "tls = {{ ca = \"trial.pem\", name = {:?} }}\n",
                        credentials.name()
                    )
                }
                _ => String::new(),
            };
            let _ = write!(
                text,
                "[[trunk]]\nname = \"far\"\ninterface = \"core\"\ntarget = [{}]\n{tls}\n\
                 [[route]]\nname = \"far\"\ntrunk = \"far\"\n{media}\n",
                targets.join(", ")
            );
        }
        for (user, password) in self.with_passwords() {
            let _ = write!(
                text,
                "[[user]]\nname = {user:?}\npassword = {password:?}\n\n"
            );
        }
        if self.header_rules {
            text.push_str(HEADER_RULES);
        }
        text
    }

    /// Users that authenticate.
    fn with_passwords(&self) -> impl Iterator<Item = &(String, String)> {
        self.users
            .iter()
            .filter(|(_, password)| !password.is_empty())
    }

    /// The checked configuration.
    ///
    /// # Errors
    /// If the border refuses it: the users of the experiment may not form a valid configuration.
    pub fn config(&self) -> Result<Config, LabError> {
        config::parse(&self.toml(), "subject").map_err(|mistakes| {
            let text: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            LabError::bad_input(format!(
                "the border rejects the experiment's configuration:\n{}",
                text.join("\n")
            ))
        })
    }
}

/// Whether the transport uses TLS.
fn is_secure(transport: Transport) -> bool {
    matches!(transport, Transport::Tls | Transport::Wss)
}

/// An address for the commands of a media node that is free now.
pub(super) fn free_control(ip: IpAddr) -> Result<SocketAddr, LabError> {
    free_port(ip, &[]).map(|(address, _)| address)
}

/// Ephemeral ports that are tried, at random, until one is no media port.
const MOST_DRAWS: usize = 1_000;

/// A port of `ip` that is free for UDP and TCP and in none of these spans of media ports, with the sockets that occupy
/// it. The kernel's range of ephemeral ports may contain the spans.
fn free_port(
    ip: IpAddr,
    media: &[PortSpan],
) -> Result<(SocketAddr, (UdpSocket, TcpListener)), LabError> {
    let cannot = |error: std::io::Error| {
        LabError::cannot_run(format!("{ip}: {error}"), "bring up the loopback interface")
    };
    let held = || -> std::io::Result<_> {
        let bound = || -> std::io::Result<_> {
            let udp = UdpSocket::bind((ip, 0))?;
            Ok((udp.local_addr()?, udp))
        };
        let is_other = |bound: &std::io::Result<(SocketAddr, UdpSocket)>| match bound {
            Ok((address, _)) => !media.iter().any(|span| span.contains(address.port())),
            Err(_) => true,
        };
        let found = std::iter::repeat_with(bound)
            .take(MOST_DRAWS)
            .find(is_other);
        let (address, udp) = found.ok_or(std::io::ErrorKind::AddrInUse)??;
        Ok((address, (udp, TcpListener::bind(address)?)))
    };
    let mut last = None;
    for wait in 0..32 {
        match held() {
            Ok(held) => return Ok(held),
            // All ports may be in use for a moment, beside tests with thousands of sockets.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(cannot(error)),
        }
        std::thread::sleep(std::time::Duration::from_millis(wait));
    }
    Err(cannot(
        last.unwrap_or_else(|| std::io::Error::other("no free port")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::CodecName;

    #[test]
    fn every_layout_gives_a_valid_configuration() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let spans = PortSpan::for_calls(100, &mut Entropy::from_number(1));
        let mut layout = Layout::new(at(5060), at(5080), spans);
        layout.trunk = vec![at(5090), at(5091)];
        for bypass in [false, true] {
            for users in [0, 3] {
                layout.bypass = bypass;
                layout.header_rules = bypass;
                layout.srtp = !bypass;
                layout.conference = bypass.then(|| ConferenceLoad {
                    codec: CodecName(Kind::G722),
                    ..ConferenceLoad::default()
                });
                layout.transcode = (!bypass).then_some(Kind::Opus);
                layout.call_limit = if bypass { 400 } else { 0 };
                layout.memory_mib = users;
                layout.streams = match (bypass, users) {
                    (_, 0) => [None; 2],
                    (true, _) => [Some((Transport::Ws, at(8080))), None],
                    (false, _) => [
                        Some((Transport::Wss, at(443))),
                        Some((Transport::Tls, at(5061))),
                    ],
                };
                layout.users = (0..users)
                    .map(|n| (format!("100{n}"), "a\"b\\c".to_owned()))
                    .collect();
                let config = layout.config().unwrap();
                assert_eq!(config.users.len(), users as usize);
                assert_eq!(
                    config.interfaces[0].rate_limits.calls_per_s,
                    layout.call_limit
                );
                assert_eq!(
                    border::admission::Price::limit(&config.admission).is_some(),
                    users > 0
                );
                assert_eq!(config.interfaces.len(), 2);
                let listen = config.interfaces.iter().map(|one| one.listen.len());
                assert_eq!(listen.sum::<usize>(), layout.listeners());
            }
        }
    }

    #[test]
    fn users_without_passwords_register_without_authentication() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let spans = PortSpan::for_calls(100, &mut Entropy::from_number(1));
        let mut layout = Layout::new(at(5060), at(5080), spans);
        layout.users = vec![("1000".to_owned(), String::new())];
        let config = layout.config().unwrap();
        assert!(config.users.is_empty());
        let text = layout.toml();
        assert!(text.contains("register = \"local\"") && !text.contains("digest"));
    }

    #[test]
    fn limits_of_calls_and_transactions_do_not_bound_a_rate() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let spans = PortSpan::for_calls(100, &mut Entropy::from_number(1));
        let mut layout = Layout::new(at(5060), at(5080), spans);
        let limits = |layout: &Layout| layout.config().unwrap().limits;
        let defaults = engine::Limits::default();
        layout.load = (1_000, 100.0);
        assert_eq!(limits(&layout).calls, defaults.calls);
        assert_eq!(limits(&layout).transactions, defaults.transactions);
        layout.load = (800_000, 20_000.0);
        assert_eq!(limits(&layout).calls, 800_000);
        assert_eq!(limits(&layout).transactions, 8_000_000);
        layout.load = (u64::MAX, f64::INFINITY);
        assert_eq!(limits(&layout).calls, u32::MAX as usize);
    }

    #[test]
    fn listeners_have_no_media_ports() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        // Most of the kernel's default range.
        let media = [PortSpan::new(32_768, 20_000), PortSpan::new(52_768, 6_000)];
        for _ in 0..20 {
            let (address, _sockets) = free_port(ip, &media).unwrap();
            assert!(!media.iter().any(|span| span.contains(address.port())));
        }
        let [first, last] =
            [32_768, 58_767].map(|port| media.iter().any(|span| span.contains(port)));
        assert!(first && last && !media[1].contains(58_768) && !media[0].contains(32_767));
    }

    #[test]
    fn parts_of_a_span_do_not_overlap() {
        let span = PortSpan::new(10_000, 1_004);
        let parts: Vec<PortSpan> = (0..3).map(|number| span.part(number, 3)).collect();
        assert_eq!(
            parts,
            [0, 334, 668].map(|at| PortSpan::new(10_000 + at, 334))
        );
    }

    #[test]
    fn ports_that_another_border_claims_are_not_free() {
        // No other program of this machine uses this address.
        let address = IpAddr::from([127, 9, 9, 9]);
        let span = PortSpan::new(15_000, 64);
        assert!(span.is_free_at(address));
        let range = |first| PortRange {
            address,
            first,
            last: first + 1,
        };
        let claimant = net::Claimant::new().unwrap();
        let _beside = claimant.claim(&[range(14_998), range(15_064)]).unwrap();
        assert!(span.is_free_at(address));
        let claimed = claimant.claim(&[range(15_062)]).unwrap();
        assert!(!span.is_free_at(address));
        drop(claimed);
        assert!(span.is_free_at(address));
    }

    #[test]
    fn spans_do_not_overlap_and_stay_in_range() {
        for seed in 0..200 {
            for calls in [0, 1, 100, 1_200, 1_000_000] {
                let [a, b] = PortSpan::for_calls(calls, &mut Entropy::from_number(seed));
                assert!(a.first >= FIRST_PORT && a.first % 2 == 0 && a.count >= 64);
                assert_eq!(a.first + a.count, b.first);
                // Beside a border or a media node with default ports.
                assert!(calls > 1_000 || b.first + b.count <= 20_000);
                assert!(u32::from(b.first) + u32::from(b.count) <= u32::from(LAST_END));
            }
        }
    }
}
