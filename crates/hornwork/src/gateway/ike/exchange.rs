//! The thread of the key exchange.

use super::children::{ChildFacts, Children, children_of};
use super::client::{ViciClient, ViciFact};
use super::daemon::Daemon;
use super::files::IkeFiles;
use crate::gateway::cannot;
use crate::gateway::packets::{Command, Commands};
use crate::log::EventLog;
use config::{GatewaySpec, IkeSpec};
use engine::{Entropy, Event, EventKind, Time};
use net::{Clock, Waker};
use protect::ike::{
    CHILD_NAME, DaemonLine, DaemonLog, IkeConnection, NegotiatedChild, ViciPacket, ViciSection,
    connection_name, connection_number,
};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use wire::esp::NAT_TRAVERSAL_PORT;
use wire::ip::UdpPacket;
use zeroize::Zeroizing;

/// Port of IKE (RFC 7296 section 2).
const IKE_PORT: u16 = 500;
/// Longest wait for something to do.
const TICK: Duration = Duration::from_millis(100);
/// Longest time until the daemon has its connections: a thousand take less than a second.
const SET_UP: Duration = Duration::from_secs(30);
/// Longest time for deleting associations at peers at the end.
const END: Duration = Duration::from_secs(2);
/// Interval of looking for associations that are not used.
const UNUSED_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of attempts to set up a tunnel that is down: the daemon gives an attempt up after 26 s.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of looking for such tunnels.
const DOWN_INTERVAL: Duration = Duration::from_secs(1);
/// Wait before the daemon is started again; doubled each time, up to the second one.
const RESTART: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Messages that are passed on before the other descriptors are looked at again.
const BATCH: usize = 64;
/// Longest message, bytes: an IP packet.
const LONGEST: usize = 65_535;
/// Problems that are logged in [`PROBLEM_INTERVAL`]: strangers can cause them.
const MAX_PROBLEMS: u64 = 10;
const PROBLEM_INTERVAL: Duration = Duration::from_secs(10);

/// Parts of lines of the daemon's log that tell about a problem.
const PROBLEMS: [&str; 16] = [
    "failed to establish CHILD_SA",
    "unable to install",
    "AUTHENTICATION_FAILED",
    "NO_PROPOSAL_CHOSEN",
    "TS_UNACCEPTABLE",
    "no IKE config found",
    "no matching peer config found",
    "no acceptable proposal found",
    "no acceptable traffic selectors found",
    "no shared key found",
    "no private key found",
    "no trusted",
    "MAC mismatched",
    "giving up after",
    "peer not responding",
    "constraint check failed",
];

/// A request to the thread.
#[derive(Debug)]
pub(in super::super) enum IkeRequest {
    /// A message of a peer on the port of ESP, after the marker or a keep-alive.
    Received(SocketAddr, Vec<u8>),
    /// A tunnel needs new keys.
    Rekey(usize),
    /// The files were read again.
    Files(Box<IkeFiles>),
    /// The end.
    Stop,
}

/// The parts of the thread.
pub(in super::super) struct IkeParts {
    pub(in super::super) spec: GatewaySpec,
    pub(in super::super) ike: IkeSpec,
    pub(in super::super) files: IkeFiles,
    pub(in super::super) commands: Commands,
    pub(in super::super) inbox: Receiver<IkeRequest>,
    /// Wakes this thread.
    pub(in super::super) waker: Waker,
    pub(in super::super) log: EventLog,
    pub(in super::super) clock: Clock,
}

/// The daemon and the connection to it.
struct Running {
    daemon: Daemon,
    reader: DaemonLog,
    vici: Option<ViciClient>,
    since: Time,
}

pub(in super::super) struct IkeExchange {
    parts: IkeParts,
    /// Port 500; none with another port than 4500.
    exchange: Option<UdpSocket>,
    running: Option<Running>,
    children: Children,
    entropy: Entropy,
    buffer: Zeroizing<Vec<u8>>,
    restart_at: Option<Time>,
    restart_wait: Duration,
    /// The end of the daemon was requested.
    is_ending: bool,
    next_unused: Time,
    next_down: Time,
    /// Last attempt to set up each tunnel, or the time at which it went down.
    attempts: Vec<Time>,
    problems: Problems,
    /// Commands that were refused, during the set-up.
    refused: Vec<String>,
}

/// Bounds the events about problems.
#[derive(Debug, Default)]
struct Problems {
    since: Time,
    logged: u64,
    suppressed: u64,
}

impl Problems {
    /// Whether one may be logged now, with the number of those that were not.
    fn allow(&mut self, now: Time) -> Option<u64> {
        if now.since(self.since) >= PROBLEM_INTERVAL {
            self.since = now;
            self.logged = 0;
        }
        if self.logged >= MAX_PROBLEMS {
            self.suppressed += 1;
            return None;
        }
        self.logged += 1;
        Some(core::mem::take(&mut self.suppressed))
    }
}

/// What the daemon's log and events mean for the tunnels.
enum Fact {
    Negotiated(Result<NegotiatedChild, String>),
    Problem(Option<String>, String),
}

impl IkeExchange {
    /// Opens the port of IKE and starts the daemon.
    ///
    /// # Errors
    /// The port is in use or needs a right; the daemon does not start.
    pub(in super::super) fn new(parts: IkeParts) -> io::Result<IkeExchange> {
        let local = parts.spec.local;
        let exchange = match local.port() == NAT_TRAVERSAL_PORT {
            true => Some(open_port(local)?),
            false => None,
        };
        let now = parts.clock.now();
        let mut this = IkeExchange {
            exchange,
            running: None,
            children: Children::default(),
            entropy: net::entropy()?,
            buffer: Zeroizing::new(vec![0; LONGEST]),
            restart_at: None,
            restart_wait: RESTART[0],
            is_ending: false,
            next_unused: now + UNUSED_INTERVAL,
            next_down: now + DOWN_INTERVAL,
            attempts: vec![now; parts.spec.tunnels.len()],
            problems: Problems::default(),
            refused: Vec::new(),
            parts,
        };
        this.start_daemon()?;
        Ok(this)
    }

    fn now(&self) -> Time {
        self.parts.clock.now()
    }

    fn log(&self, kind: EventKind) {
        self.parts.log.event(&Event::new(self.now(), kind));
    }

    fn start_daemon(&mut self) -> io::Result<()> {
        let daemon = Daemon::start(&self.parts.spec)?;
        self.running = Some(Running {
            daemon,
            reader: DaemonLog::new(),
            vici: None,
            since: self.now(),
        });
        Ok(())
    }

    /// Waits until the daemon has taken all connections.
    ///
    /// # Errors
    /// It refuses one, or does not answer in time.
    pub(in super::super) fn set_up(&mut self) -> io::Result<()> {
        let until = self.now() + SET_UP;
        loop {
            self.turn();
            if !self.refused.is_empty() {
                return Err(cannot(
                    format!("[gateway.ike] {}", self.refused.join("; ")),
                    "correct the proposals, identities and files of [gateway.ike] and its tunnels",
                ));
            }
            let running = self.running.as_ref();
            match running.and_then(|running| running.vici.as_ref()) {
                Some(vici) if vici.open() == 0 => return Ok(()),
                _ if running.is_none() => {
                    return Err(io::Error::other("[gateway.ike] the daemon has ended"));
                }
                _ if self.now() >= until => {
                    return Err(io::Error::other("[gateway.ike] the daemon does not answer"));
                }
                _ => {}
            }
        }
    }

    /// Works until the end is requested.
    pub(in super::super) fn run(mut self) {
        // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
        let _ = net::block_signals();
        while self.turn() {}
        if let Some(running) = &self.running {
            running.daemon.request_end();
        }
        self.is_ending = true;
        let until = self.now() + END;
        while self.now() < until && self.running.is_some() {
            self.turn();
        }
    }

    /// One wait and what follows from it; false if the end is requested.
    fn turn(&mut self) -> bool {
        self.wait();
        self.parts.waker.clear();
        let goes_on = self.requests();
        if let Err(error) = self.daemon_turn() {
            self.daemon_failed(&error);
        }
        self.receive_exchange();
        let now = self.now();
        if now >= self.next_unused {
            self.next_unused = now + UNUSED_INTERVAL;
            for child in self.children.unused(now) {
                self.parts
                    .commands
                    .send(Command::Remove([child.spi_in, child.spi_out], true));
            }
        }
        if now >= self.next_down {
            self.next_down = now + DOWN_INTERVAL;
            self.attempt(now, ATTEMPT_INTERVAL);
        }
        if goes_on && self.restart_at.is_some_and(|at| now >= at) {
            self.restart_at = None;
            if let Err(error) = self.start_daemon() {
                self.daemon_failed(&error);
            }
        }
        goes_on
    }

    /// Sets up the tunnels that are down and had no attempt within the interval.
    fn attempt(&mut self, now: Time, interval: Duration) {
        let is_due = |connection: &IkeConnection| {
            let last = self.attempts.get(connection.number);
            connection.initiates
                && !self.children.is_up(connection.number)
                && last.is_some_and(|last| now.since(*last) >= interval)
        };
        let due: Vec<_> = self.connections().filter(is_due).collect();
        for connection in due {
            if let Some(last) = self.attempts.get_mut(connection.number) {
                *last = now;
            }
            let what = format!("initiate {}", self.name(connection.number));
            self.ask(what, &connection.initiate());
        }
    }

    fn wait(&self) {
        let waker = self.parts.waker.as_fd();
        let exchange = self.exchange.as_ref().map_or(waker, |socket| socket.as_fd());
        let Some(running) = &self.running else {
            net::wait_any([waker, exchange], TICK);
            return;
        };
        let vici = running.vici.as_ref().map(ViciClient::descriptor);
        net::wait_any(
            [
                waker,
                exchange,
                running.daemon.tun().as_fd(),
                running.daemon.log(),
                vici.unwrap_or(waker),
            ],
            TICK,
        );
    }

    /// False if the end is requested.
    fn requests(&mut self) -> bool {
        for _ in 0..BATCH {
            match self.parts.inbox.try_recv() {
                Ok(IkeRequest::Received(source, bytes)) => {
                    self.to_daemon(source, NAT_TRAVERSAL_PORT, &bytes);
                }
                Ok(IkeRequest::Rekey(tunnel)) => {
                    let message = ViciSection::new()
                        .with("ike", connection_name(tunnel))
                        .with("child", CHILD_NAME);
                    self.ask(
                        format!("rekey {}", self.name(tunnel)),
                        &ViciPacket::Command("rekey".to_owned(), message),
                    );
                }
                Ok(IkeRequest::Files(files)) => {
                    self.parts.files = *files;
                    self.load();
                    self.attempt(self.now(), Duration::ZERO);
                }
                Ok(IkeRequest::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
        // The rest follows in the next turn.
        self.parts.waker.wake();
        true
    }

    fn name(&self, tunnel: usize) -> String {
        let tunnels = &self.parts.spec.tunnels;
        tunnels
            .get(tunnel)
            .map_or_else(String::new, |tunnel| tunnel.name.clone())
    }

    /// Gives the daemon a message of a peer.
    fn to_daemon(&mut self, source: SocketAddr, port: u16, payload: &[u8]) {
        let destination = SocketAddr::new(self.parts.spec.local.ip(), port);
        let packet = UdpPacket {
            source,
            destination,
            payload,
        };
        if let (Some(running), Some(packet)) = (&self.running, packet.to_packet()) {
            // A full queue of the daemon loses it as a network would; the peer sends it again.
            let _ = running.daemon.tun().send(&packet);
        }
    }

    fn receive_exchange(&mut self) {
        let mut buffer = core::mem::take(&mut self.buffer);
        for _ in 0..BATCH {
            let Some(socket) = &self.exchange else {
                break;
            };
            // Nothing is there, or an ICMP error about a message of ours, which the daemon sends again.
            let Ok((length, source)) = socket.recv_from(&mut buffer) else {
                break;
            };
            self.to_daemon(source, IKE_PORT, buffer.get(..length).unwrap_or_default());
        }
        self.buffer = buffer;
    }

    /// The daemon's messages, log and events.
    fn daemon_turn(&mut self) -> io::Result<()> {
        self.connect()?;
        self.read_log()?;
        self.read_vici()?;
        self.send_messages()?;
        let ended = self.running.as_mut().and_then(|running| running.daemon.ended());
        match ended {
            Some(status) => Err(io::Error::other(format!("the daemon has ended: {status}"))),
            None => Ok(()),
        }
    }

    fn daemon_failed(&mut self, error: &io::Error) {
        self.running = None;
        if self.is_ending {
            return;
        }
        let now = self.now();
        self.restart_at = Some(now + self.restart_wait);
        self.restart_wait = (self.restart_wait * 2).min(RESTART[1]);
        self.log(EventKind::GatewayIkeFailed {
            reason: error.to_string(),
        });
    }

    /// Connects to VICI once the daemon listens, and gives it all connections.
    fn connect(&mut self) -> io::Result<()> {
        let now = self.now();
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        if running.vici.is_some() {
            return Ok(());
        }
        match running.daemon.connect() {
            Ok(stream) => running.vici = Some(ViciClient::new(stream)?),
            Err(_) if now.since(running.since) < SET_UP => {
                // It does not listen yet; its log wakes this thread.
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        for event in ["child-updown", "child-rekey"] {
            self.ask(
                format!("event {event}"),
                &ViciPacket::Register(event.to_owned()),
            );
        }
        self.load();
        Ok(())
    }

    /// Gives the daemon secrets, certificates and connections.
    fn load(&mut self) {
        if let Some(certificate) = self.parts.files.certificate.clone() {
            let key = ViciSection::new()
                .with("type", "any")
                .with("data", &certificate.key);
            self.ask(
                "private_key".to_owned(),
                &ViciPacket::Command("load-key".to_owned(), key),
            );
            let authority = ViciSection::new()
                .with("type", "x509")
                .with("flag", "ca")
                .with("data", &certificate.authority);
            self.ask(
                "authority".to_owned(),
                &ViciPacket::Command("load-cert".to_owned(), authority),
            );
        }
        let connections: Vec<_> = self.connections().collect();
        for connection in connections {
            let what = format!("tunnel {}", self.name(connection.number));
            if let Some(secret) = connection.load_secret() {
                self.ask(what.clone(), &secret);
            }
            self.ask(what, &connection.load());
        }
    }

    fn connections(&self) -> impl Iterator<Item = IkeConnection> + '_ {
        let (spec, ike) = (&self.parts.spec, &self.parts.ike);
        let tunnels = spec.tunnels.iter().zip(&self.parts.files.authentications);
        tunnels
            .enumerate()
            .filter_map(move |(number, (tunnel, authentication))| {
                let of_tunnel = tunnel.ike.as_ref()?;
                Some(IkeConnection {
                    number,
                    local: spec.local.ip(),
                    has_own_port: spec.local.port() != NAT_TRAVERSAL_PORT,
                    peer: tunnel.peer,
                    local_id: ike.local_id.clone(),
                    remote_id: of_tunnel.remote_id.clone(),
                    authentication: authentication.clone(),
                    local_networks: tunnel.local_networks.iter().map(ToString::to_string).collect(),
                    remote_networks: tunnel
                        .remote_networks
                        .iter()
                        .map(ToString::to_string)
                        .collect(),
                    initiates: of_tunnel.initiates,
                    dead_peer: ike.dead_peer,
                    rekey: ike.rekey,
                    ike_rekey: ike.ike_rekey,
                    proposals: ike.proposals.clone(),
                })
            })
    }

    /// Sends a command; without a connection to the daemon it is not sent: everything is loaded when there is one.
    fn ask(&mut self, what: String, packet: &ViciPacket) {
        let vici = self.running.as_mut().and_then(|running| running.vici.as_mut());
        if let Some(vici) = vici
            && let Err(error) = vici.ask(what, packet)
        {
            self.daemon_failed(&error);
        }
    }

    /// Reads the log to its present end.
    fn read_log(&mut self) -> io::Result<()> {
        let mut facts = Vec::new();
        if let Some(running) = &mut self.running {
            loop {
                let [ready] = net::wait_any([running.daemon.log()], Duration::ZERO);
                if !ready.readable {
                    break;
                }
                let length = running.daemon.read_log(&mut self.buffer)?;
                if length == 0 {
                    break;
                }
                let bytes = self.buffer.get(..length).unwrap_or_default();
                let facts = core::cell::RefCell::new(&mut facts);
                running.reader.read(
                    bytes,
                    |line| {
                        tracing::debug!(connection = line.connection, "charon: {}", line.text);
                        facts.borrow_mut().extend(problem(line));
                    },
                    |child| facts.borrow_mut().push(Fact::Negotiated(child)),
                );
            }
        }
        for fact in facts {
            match fact {
                Fact::Negotiated(Ok(child)) => self.install(&child),
                Fact::Negotiated(Err(why)) => self.problem(None, why),
                Fact::Problem(connection, text) => self.problem(connection.as_deref(), text),
            }
        }
        Ok(())
    }

    fn problem(&mut self, connection: Option<&str>, problem: String) {
        let now = self.now();
        if let Some(suppressed) = self.problems.allow(now) {
            let number = connection.and_then(connection_number);
            self.log(EventKind::GatewayIkeProblem {
                tunnel: number.map_or_else(String::new, |number| self.name(number)),
                problem,
                suppressed,
            });
        }
    }

    /// Opens packets with a negotiated association from now on.
    fn install(&mut self, child: &NegotiatedChild) {
        let now = self.now();
        let of = (&self.parts.spec, &self.parts.ike);
        match self.children.add(of, child, &mut self.entropy, now) {
            Ok(pair) => self.parts.commands.send(Command::Install(Box::new(pair))),
            Err(why) => self.problem(Some(&child.connection), why),
        }
    }

    fn read_vici(&mut self) -> io::Result<()> {
        let mut facts = Vec::new();
        let vici = self.running.as_mut().and_then(|running| running.vici.as_mut());
        if let Some(vici) = vici {
            let [ready] = net::wait_any([vici.descriptor()], Duration::ZERO);
            if ready.readable {
                vici.read(|fact| facts.push(fact))?;
                // It works: the next failure is a new one.
                self.restart_wait = RESTART[0];
            }
        }
        if facts.is_empty() {
            return Ok(());
        }
        // The associations of the events are in the log already.
        self.read_log()?;
        for fact in facts {
            match fact {
                ViciFact::Refused(what, why) => {
                    let reason = format!("{what}: {why}");
                    self.refused.push(reason.clone());
                    self.log(EventKind::GatewayIkeFailed { reason });
                }
                ViciFact::Event(name, message) => self.event(&name, &message),
            }
        }
        Ok(())
    }

    fn event(&mut self, name: &str, message: &ViciSection) {
        match (name, message.text("up")) {
            ("child-updown", Some("yes")) => {
                for facts in children_of(message, None) {
                    self.seal(&facts, true);
                }
            }
            ("child-updown", _) => {
                for facts in children_of(message, None) {
                    self.remove(&facts, true);
                }
            }
            ("child-rekey", _) => {
                for facts in children_of(message, Some("new")) {
                    self.seal(&facts, false);
                }
                for facts in children_of(message, Some("old")) {
                    self.remove(&facts, false);
                }
            }
            _ => {}
        }
    }

    /// Seals with an association from now on.
    fn seal(&mut self, facts: &ChildFacts, is_new: bool) {
        let (Some(child), Some(peer)) = (self.children.of(facts).cloned(), facts.peer) else {
            return;
        };
        let (tunnel, spi) = (child.tunnel, child.spi_out);
        self.parts.commands.send(Command::SealWith { tunnel, spi, peer });
        let is_first = self.children.seals(tunnel, spi);
        let spi = format!("{spi:#010x}");
        let event = match is_new || is_first {
            true => EventKind::GatewayTunnelUp {
                tunnel: self.name(tunnel),
                peer: peer.to_string(),
                identity: facts.identity.clone(),
                algorithms: child.algorithms,
                spi,
            },
            false => EventKind::GatewayRekeyed {
                tunnel: self.name(tunnel),
                spi,
                reason: "key_exchange".to_owned(),
            },
        };
        self.log(event);
    }

    fn remove(&mut self, facts: &ChildFacts, at_once: bool) {
        let Some((child, is_down)) = self.children.remove(facts) else {
            return;
        };
        let spis = [child.spi_in, child.spi_out];
        self.parts.commands.send(Command::Remove(spis, at_once));
        if is_down {
            let now = self.now();
            if let Some(last) = self.attempts.get_mut(child.tunnel) {
                *last = now;
            }
            let tunnel = self.name(child.tunnel);
            self.log(EventKind::GatewayTunnelDown { tunnel });
        }
    }

    /// Sends the daemon's messages to peers.
    fn send_messages(&mut self) -> io::Result<()> {
        let mut buffer = core::mem::take(&mut self.buffer);
        let mut sent = Ok(());
        for _ in 0..BATCH {
            let Some(running) = &self.running else {
                break;
            };
            let length = match running.daemon.tun().receive(&mut buffer) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                Err(error) => {
                    sent = Err(error);
                    break;
                }
            };
            let bytes = buffer.get(..length).unwrap_or_default();
            // Others are of the kernel there: router solicitations, multicast.
            let Some(packet) = UdpPacket::parse(bytes) else {
                continue;
            };
            let (port, to) = (packet.source.port(), packet.destination);
            let payload = packet.payload.to_vec();
            // What the daemon logged before it sent this message takes effect before the peer has it.
            self.buffer = core::mem::take(&mut buffer);
            sent = self.read_log();
            buffer = core::mem::take(&mut self.buffer);
            if sent.is_err() {
                break;
            }
            match port {
                NAT_TRAVERSAL_PORT => self.parts.commands.send(Command::Send(payload, to)),
                IKE_PORT => {
                    if let Some(socket) = &self.exchange {
                        // A lost message is sent again by the daemon.
                        let _ = socket.send_to(&payload, to);
                    }
                }
                _ => {}
            }
        }
        self.buffer = buffer;
        sent
    }
}

fn open_port(local: SocketAddr) -> io::Result<UdpSocket> {
    let at = SocketAddr::new(local.ip(), IKE_PORT);
    let socket = UdpSocket::bind(at).map_err(|error| {
        cannot(
            format!("[gateway.ike] cannot open UDP {at}: {error}"),
            "give the program CAP_NET_BIND_SERVICE, correct `local`, or stop the program that uses the port (strongSwan and others use 500)",
        )
    })?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A line about a problem of a peer or of a message.
fn problem(line: DaemonLine<'_>) -> Option<Fact> {
    let is_problem = PROBLEMS.iter().any(|part| line.text.contains(part));
    is_problem.then(|| Fact::Problem(line.connection.map(str::to_owned), line.text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_that_strangers_cause_are_bounded() {
        let mut problems = Problems::default();
        let at = |second| Time::ZERO + Duration::from_secs(second);
        let allowed = (0..100).filter(|_| problems.allow(at(20)).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(problems.allow(at(29)), None);
        assert_eq!(problems.allow(at(30)), Some(91));
        assert_eq!(problems.allow(at(31)), Some(0));
        let line = |text| DaemonLine {
            connection: None,
            text,
        };
        assert!(problem(line("no IKE config found for 192.0.2.1...192.0.2.9, sending NO_PROPOSAL_CHOSEN")).is_some());
        assert!(problem(line("IKE_SA tunnel-0[1] established")).is_none());
    }
}
