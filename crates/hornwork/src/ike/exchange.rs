//! The thread of the key exchange.

use super::cannot;
use super::children::{Child, Children, children_of};
use super::client::{ViciClient, ViciFact};
use super::daemon::Daemon;
use super::duplicates::{Duplicates, Listed};
use super::files::IkeFiles;
use super::lists::Lists;
use super::plan::{ExchangePlan, SaEvent, SaSink};
use super::port::{IKE_PORT, is_first_message, open_port};
use super::problems::{Problems, TERMINATE, is_gone_already, is_problem};
use super::rekeys::RekeyRequests;
use super::request::IkeRequest;
use engine::{Entropy, Time};
use net::{Clock, Waker};
use protect::esp::{AddressPrefix, SelectorLimits, SelectorPorts};
use protect::ike::{
    DaemonFact, DaemonLog, IkeConnection, NegotiatedChild, ViciPacket, ViciSection,
    connection_name, connection_number, daemon_selectors,
};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use wire::esp::NAT_TRAVERSAL_PORT;
use wire::ip::UdpPacket;
use zeroize::Zeroizing;

/// Longest wait for something to do.
const TICK: Duration = Duration::from_millis(100);
/// Longest time until the daemon has its connections.
const SET_UP: Duration = Duration::from_secs(30);
/// Longest time for deleting associations at peers at the end.
const END: Duration = Duration::from_secs(2);
/// The traffic selector that is the peer's address alone, in strongSwan's notation.
const PEER_ALONE: &str = "dynamic";
/// The command for a list of all associations.
const LIST: &str = "list-sas";
/// Events of the daemon.
const EVENTS: [&str; 3] = ["child-updown", "ike-updown", "list-sa"];
/// Interval of attempts to set up a tunnel that is down: the daemon gives an attempt up after 26 s.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of the work that depends on time.
const DUE_INTERVAL: Duration = Duration::from_secs(1);
/// Wait before the daemon is started again; doubled each time, up to the second one.
const RESTART: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Messages that are passed on before the other descriptors are looked at again.
const BATCH: usize = 64;
/// Longest message, bytes: an IP packet.
const LONGEST: usize = 65_535;
/// The parts of the thread.
pub(crate) struct IkeParts {
    pub(crate) plan: ExchangePlan,
    pub(crate) files: IkeFiles,
    /// The user of the associations.
    pub(crate) sink: Box<dyn SaSink>,
    pub(crate) inbox: Receiver<IkeRequest>,
    /// Wakes this thread.
    pub(crate) waker: Waker,
    pub(crate) clock: Clock,
}

/// The daemon and the connection to it.
struct Running {
    daemon: Daemon,
    reader: DaemonLog,
    vici: Option<ViciClient>,
    since: Time,
    /// It has had all connections once. Before, it would refuse peers for good (NO_PROPOSAL_CHOSEN).
    is_loaded: bool,
}

pub(crate) struct IkeExchange {
    parts: IkeParts,
    /// Port 500; none if the plan does not use it.
    exchange: Option<UdpSocket>,
    running: Option<Running>,
    children: Children,
    entropy: Entropy,
    buffer: Zeroizing<Vec<u8>>,
    restart_at: Option<Time>,
    restart_wait: Duration,
    /// The end of the daemon was requested.
    is_ending: bool,
    lists: Lists,
    next_due: Time,
    duplicates: Duplicates,
    /// Tunnels that need new keys.
    rekeys: RekeyRequests,
    /// Time of the next attempt to set up each tunnel, unless it is up.
    attempts: Vec<Time>,
    /// Problems of tunnels, and those of strangers.
    problems: [Problems; 2],
    is_set_up: bool,
    /// Commands that were refused during the set-up.
    refused: Vec<String>,
}

/// A fact of the daemon's log.
enum Fact {
    Known(DaemonFact),
    Problem(Option<String>, String),
}

impl IkeExchange {
    /// Opens the port of IKE and starts the daemon.
    ///
    /// # Errors
    /// The port is in use or needs a right; the daemon does not start.
    pub(crate) fn new(parts: IkeParts) -> io::Result<IkeExchange> {
        let exchange = match parts.plan.uses_port_500 {
            true => Some(open_port(&parts.plan)?),
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
            lists: Lists::new(now),
            next_due: now + DUE_INTERVAL,
            duplicates: Duplicates::default(),
            rekeys: RekeyRequests::default(),
            attempts: vec![now + ATTEMPT_INTERVAL; parts.plan.tunnels.len()],
            problems: Default::default(),
            is_set_up: false,
            refused: Vec::new(),
            parts,
        };
        this.start_daemon()?;
        Ok(this)
    }

    fn now(&self) -> Time {
        self.parts.clock.now()
    }

    fn tell(&mut self, event: SaEvent) {
        self.parts.sink.take(event);
    }

    fn start_daemon(&mut self) -> io::Result<()> {
        let daemon = Daemon::start(&self.parts.plan)?;
        self.running = Some(Running {
            daemon,
            reader: DaemonLog::new(),
            vici: None,
            since: self.now(),
            is_loaded: false,
        });
        Ok(())
    }

    /// Waits until the daemon has taken all connections.
    ///
    /// # Errors
    /// It refuses one, or does not answer in time.
    pub(crate) fn set_up(&mut self) -> io::Result<()> {
        let until = self.now() + SET_UP;
        loop {
            self.turn();
            if !self.refused.is_empty() {
                return Err(cannot(
                    format!("{}: {}", self.parts.plan.name, self.refused.join("; ")),
                    "correct the proposals, identities and files of the key exchange and its tunnels",
                ));
            }
            match &self.running {
                Some(running) if running.is_loaded => {
                    self.is_set_up = true;
                    return Ok(());
                }
                None => return Err(self.failure("the daemon has ended")),
                Some(_) if self.now() >= until => {
                    return Err(self.failure("the daemon does not answer"));
                }
                Some(_) => {}
            }
        }
    }

    fn failure(&self, what: &str) -> io::Error {
        io::Error::other(format!("{}: {what}", self.parts.plan.name))
    }

    /// Works until the end is requested.
    pub(crate) fn run(mut self) {
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

    /// One wait and the work after it; false if the end is requested.
    fn turn(&mut self) -> bool {
        self.wait();
        self.parts.waker.clear();
        let goes_on = self.requests();
        if let Err(error) = self.daemon_turn() {
            self.daemon_failed(&error);
        }
        self.receive_exchange();
        let now = self.now();
        if now >= self.next_due {
            self.next_due = now + DUE_INTERVAL;
            self.due(now);
        }
        if goes_on && self.restart_at.is_some_and(|at| now >= at) {
            self.restart_at = None;
            if let Err(error) = self.start_daemon() {
                self.daemon_failed(&error);
            }
        }
        goes_on
    }

    /// Work that depends on time alone.
    fn due(&mut self, now: Time) {
        self.attempt(now, false);
        self.request_keys(now);
        let vici = self
            .running
            .as_ref()
            .and_then(|running| running.vici.as_ref());
        if let Some(what) = vici.and_then(|vici| vici.overdue(now)) {
            let error = io::Error::other(format!("the daemon does not answer: {what}"));
            self.daemon_failed(&error);
        }
        if self.lists.is_due(now) {
            self.list(now);
        }
    }

    /// Requests a list of all associations. A daemon that has no connections yet has none, as if it had ended.
    fn list(&mut self, now: Time) {
        self.lists.begin(now);
        let running = self.running.as_ref();
        if running.is_some_and(|running| running.vici.is_some()) {
            let command = ViciPacket::Command(LIST.to_owned(), ViciSection::new());
            self.ask(LIST.to_owned(), &command);
        } else if let Some(listed) = self.lists.finish() {
            self.remove_gone(&listed, now);
        }
    }

    /// Requests new keys until there are some.
    fn request_keys(&mut self, now: Time) {
        let children = &self.children;
        let due = self.rekeys.due(now, |tunnel, spi| {
            let sealing = children.sealing(tunnel);
            sealing.is_some_and(|child| child.spi_in == spi || child.spi_out == spi)
        });
        for tunnel in due {
            let what = format!("rekey {}", self.name(tunnel));
            self.ask(what, &IkeConnection::rekey(tunnel));
        }
    }

    /// An association could not be used, although the daemon has negotiated it. It is deleted at the peer, and another
    /// one of its tunnel takes its place, or the tunnel is down and is set up again.
    fn refused(&mut self, tunnel: usize, spi: u32) {
        let Some(child) = self.children.with_any_spi(tunnel, spi).cloned() else {
            return;
        };
        if let Some(number) = child.daemon_number() {
            let what = format!("{TERMINATE}{number}");
            self.ask(what, &IkeConnection::terminate(number));
        }
        self.remove(tunnel, child.spi_in, true);
        // The next one may be refused, too.
        self.postpone_attempt(tunnel, self.now());
    }

    /// Removes associations that the daemon does not have.
    fn remove_gone(&mut self, listed: &Listed, now: Time) {
        let listed = (&listed.children, listed.asked);
        let gone = self.children.gone(listed, &self.parts.plan.ike, now);
        for (tunnel, spi_in) in gone {
            self.remove(tunnel, spi_in, false);
        }
        if self.children.lacks() {
            self.lists.repeat(now);
        }
    }

    /// Of two associations of a tunnel that both ends have set up at the same time one is deleted. Packets are sealed
    /// with the other one before the peer is told, so that none is lost.
    fn remove_duplicates(&mut self, listed: &Listed, now: Time) {
        let (removals, is_open) = self.duplicates.decide(listed, &self.children);
        for removal in removals {
            let (tunnel, number) = (removal.duplicate.tunnel, removal.duplicate.surplus);
            let spis = &removal.duplicate.kept.children;
            let sealing = self.children.sealing(tunnel);
            if sealing.is_none_or(|child| !spis.contains(&child.spi_in)) {
                let kept = &removal.sealing;
                self.seal(kept, kept.peer, None);
            }
            tracing::debug!(tunnel, number, "both ends have set up the tunnel");
            let what = format!("{TERMINATE}IKE {number}");
            self.ask(what, &IkeConnection::terminate_exchange(number));
        }
        if is_open {
            self.lists.repeat(now);
        }
    }

    /// Sets up the tunnels that are down and whose time has come, or all that are down.
    fn attempt(&mut self, now: Time, at_once: bool) {
        if self.is_ending {
            return;
        }
        // A connection has copies of secrets and certificates: it is made for tunnels that are due.
        let is_due = |number: usize| {
            let next = self.attempts.get(number);
            !self.children.is_up(number) && next.is_some_and(|next| at_once || now >= *next)
        };
        let due = self
            .connections(is_due)
            .filter(|connection| connection.initiates);
        let due: Vec<_> = due.collect();
        for connection in due {
            self.postpone_attempt(connection.number, now);
            let what = format!("initiate {}", self.name(connection.number));
            self.ask(what, &connection.initiate());
        }
    }

    /// The next attempt to set up a tunnel follows after the interval.
    fn postpone_attempt(&mut self, tunnel: usize, now: Time) {
        if let Some(next) = self.attempts.get_mut(tunnel) {
            *next = now + ATTEMPT_INTERVAL;
        }
    }

    fn wait(&self) {
        let waker = self.parts.waker.as_fd();
        let exchange = self
            .exchange
            .as_ref()
            .map_or(waker, |socket| socket.as_fd());
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
                    self.pass_to_daemon(source, NAT_TRAVERSAL_PORT, &bytes);
                }
                Ok(IkeRequest::Rekey(tunnel, spi)) => {
                    let now = self.now();
                    self.rekeys.add(tunnel, spi, now);
                    self.request_keys(now);
                }
                Ok(IkeRequest::Unusable(tunnel, spi)) => self.refused(tunnel, spi),
                Ok(IkeRequest::Files(files)) => {
                    self.parts.files = *files;
                    self.load();
                    self.attempt(self.now(), true);
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
        let tunnels = &self.parts.plan.tunnels;
        tunnels
            .get(tunnel)
            .map_or_else(String::new, |tunnel| tunnel.name.clone())
    }

    /// Gives the daemon a message of a peer.
    fn pass_to_daemon(&mut self, source: SocketAddr, port: u16, payload: &[u8]) {
        let Some(running) = &self.running else {
            return;
        };
        if !running.is_loaded && is_first_message(port, payload) {
            // The peer repeats it after some seconds.
            return;
        }
        let destination = SocketAddr::new(self.parts.plan.local.ip(), port);
        let packet = UdpPacket {
            source,
            destination,
            payload,
        };
        if let Some(packet) = packet.to_packet() {
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
            self.pass_to_daemon(source, IKE_PORT, buffer.get(..length).unwrap_or_default());
        }
        self.buffer = buffer;
    }

    /// The daemon's messages, log and events.
    fn daemon_turn(&mut self) -> io::Result<()> {
        self.connect()?;
        self.read_log()?;
        self.read_vici()?;
        self.send_messages()?;
        let ended = self
            .running
            .as_mut()
            .and_then(|running| running.daemon.ended());
        match ended {
            Some(status) => Err(io::Error::other(format!("the daemon has ended: {status}"))),
            None => Ok(()),
        }
    }

    fn daemon_failed(&mut self, error: &io::Error) {
        self.running = None;
        self.lists.abandon();
        self.duplicates.clear();
        if self.is_ending {
            return;
        }
        let now = self.now();
        self.children.orphan();
        self.restart_at = Some(now + self.restart_wait);
        self.restart_wait = (self.restart_wait * 2).min(RESTART[1]);
        // A service manager stops the daemon together with this program: that is no failure.
        if net::stops() == 0 {
            self.tell(SaEvent::Failed {
                reason: error.to_string(),
            });
        }
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
        for event in EVENTS {
            self.ask(
                format!("event {event}"),
                &ViciPacket::Register(event.to_owned()),
            );
        }
        self.load();
        // The daemon sets up the tunnels as it gets them.
        self.attempts.fill(now + ATTEMPT_INTERVAL);
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
            let authorities = certificate.authorities.iter();
            let authorities = authorities.map(|one| ("authority", "ca", one));
            let intermediate = certificate.intermediate.iter();
            let intermediate = intermediate.map(|one| ("certificate", "none", one));
            for (name, flag, bytes) in authorities.chain(intermediate) {
                let message = ViciSection::new()
                    .with("type", "x509")
                    .with("flag", flag)
                    .with("data", bytes);
                self.ask(
                    name.to_owned(),
                    &ViciPacket::Command("load-cert".to_owned(), message),
                );
            }
        }
        let connections: Vec<_> = self.connections(|_| true).collect();
        for connection in connections {
            let what = format!("tunnel {}", self.name(connection.number));
            if let Some(secret) = connection.load_secret() {
                self.ask(what.clone(), &secret);
            }
            self.ask(what, &connection.load());
        }
    }

    fn connections<'a>(
        &'a self,
        is_wanted: impl Fn(usize) -> bool + 'a,
    ) -> impl Iterator<Item = IkeConnection> + 'a {
        let plan = &self.parts.plan;
        let tunnels = plan.tunnels.iter().zip(&self.parts.files.authentications);
        let texts =
            |networks: &[AddressPrefix], limits: &SelectorLimits, ports: &[SelectorPorts]| {
                daemon_selectors(networks, limits.protocol, ports)
            };
        tunnels
            .enumerate()
            .filter(move |(number, _)| is_wanted(*number))
            .map(move |(number, (tunnel, authentication))| IkeConnection {
                number,
                local: plan.local.ip(),
                has_own_port: !plan.uses_port_500,
                peer: tunnel.peer,
                local_id: plan.ike.local_id.clone(),
                remote_id: tunnel.ike.remote_id.clone(),
                authentication: authentication.clone(),
                local_networks: texts(
                    &tunnel.local_networks,
                    &tunnel.limits,
                    &tunnel.limits.local_ports,
                ),
                remote_networks: match tunnel.remote_networks.is_empty() {
                    true => vec![PEER_ALONE.to_owned()],
                    false => texts(
                        &tunnel.remote_networks,
                        &tunnel.limits,
                        &tunnel.limits.remote_ports,
                    ),
                },
                initiates: tunnel.ike.initiates,
                dead_peer: plan.ike.dead_peer,
                rekey: plan.ike.rekey,
                ike_rekey: plan.ike.ike_rekey,
                proposals: plan.ike.proposals.clone(),
            })
    }

    /// Sends a command; without a connection to the daemon it is not sent: everything is loaded when there is one.
    fn ask(&mut self, what: String, packet: &ViciPacket) {
        let now = self.now();
        let vici = self
            .running
            .as_mut()
            .and_then(|running| running.vici.as_mut());
        if let Some(vici) = vici
            && let Err(error) = vici.ask(what, packet, now)
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
                        if is_problem(line.text) {
                            let connection = line.connection.map(str::to_owned);
                            let problem = Fact::Problem(connection, line.text.to_owned());
                            facts.borrow_mut().push(problem);
                        }
                    },
                    |fact| facts.borrow_mut().push(Fact::Known(fact)),
                );
            }
        }
        for fact in facts {
            match fact {
                Fact::Known(DaemonFact::Negotiated(child)) => self.install(&child),
                Fact::Known(DaemonFact::Unusable { id, why }) => self.unusable(id, None, why),
                Fact::Known(DaemonFact::Seals { connection, spi_in }) => {
                    let tunnel = connection_number(&connection);
                    let child = tunnel.and_then(|tunnel| self.children.with_spi(tunnel, spi_in));
                    if let Some(child) = child.cloned() {
                        self.seal(&child, child.peer, None);
                    }
                }
                Fact::Known(DaemonFact::Closes { connection, spi_in }) => {
                    let tunnel = connection_number(&connection);
                    let closed = tunnel.and_then(|tunnel| self.children.closes(tunnel, spi_in));
                    if let Some(closed) = closed {
                        self.tell_deleted(&closed, false);
                    }
                }
                Fact::Problem(connection, text) => self.problem(connection.as_deref(), text),
            }
        }
        Ok(())
    }

    fn problem(&mut self, connection: Option<&str>, problem: String) {
        let now = self.now();
        let number = connection.and_then(connection_number);
        let [of_tunnels, of_strangers] = &mut self.problems;
        let problems = match number {
            Some(_) => of_tunnels,
            None => of_strangers,
        };
        if let Some(suppressed) = problems.allow(now) {
            self.tell(SaEvent::Problem {
                tunnel: number,
                problem,
                suppressed,
            });
        }
    }

    /// Opens packets with a negotiated association from now on.
    fn install(&mut self, child: &NegotiatedChild) {
        let now = self.now();
        let plan = &self.parts.plan;
        match self.children.add(plan, child, &mut self.entropy, now) {
            Ok((pair, replaced)) => {
                for old in replaced {
                    self.tell_deleted(&old, true);
                    // The peer shall not use it any more.
                    if let Some(number) = old.daemon_number() {
                        let what = format!("{TERMINATE}{number}");
                        self.ask(what, &IkeConnection::terminate(number));
                    }
                }
                self.tell(SaEvent::Installed(Box::new(pair)));
            }
            Err(why) => self.unusable(Some(child.id), Some(&child.connection), why),
        }
    }

    /// Deletes an association that cannot be used: its packets would be lost.
    fn unusable(&mut self, id: Option<u32>, connection: Option<&str>, why: String) {
        self.problem(connection, why);
        // Of new keys that cannot be used the old ones may have ended.
        self.lists.repeat(self.now());
        if let Some(id) = id {
            self.ask(format!("{TERMINATE}{id}"), &IkeConnection::terminate(id));
        }
    }

    fn read_vici(&mut self) -> io::Result<()> {
        let now = self.now();
        let mut facts = Vec::new();
        if let Some(running) = &mut self.running
            && let Some(vici) = &mut running.vici
        {
            let [ready] = net::wait_any([vici.descriptor()], Duration::ZERO);
            if ready.readable {
                vici.read(now, |fact| facts.push(fact))?;
                running.is_loaded |= vici.open() == 0;
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
                ViciFact::Refused(what, why) => self.command_refused(&what, &why),
                ViciFact::Done(what) if what == LIST => {
                    if let Some(listed) = self.lists.finish() {
                        self.remove_gone(&listed, now);
                        self.remove_duplicates(&listed, now);
                    }
                }
                ViciFact::Done(_) => {}
                ViciFact::Event(name, message) => self.event(&name, &message),
            }
        }
        Ok(())
    }

    /// The daemon has refused a command: the end of the set-up, or a problem of a tunnel.
    fn command_refused(&mut self, what: &str, why: &str) {
        if is_gone_already(what, why) {
            tracing::debug!("charon: {what}: {why}");
            return;
        }
        if what == LIST {
            self.lists.abandon();
        }
        let reason = format!("{what}: {why}");
        if !self.is_set_up {
            self.refused.push(reason.clone());
            self.tell(SaEvent::Failed { reason });
            return;
        }
        let tunnels = &self.parts.plan.tunnels;
        let name = what.split_once(' ').map(|(_, name)| name);
        let number = name.and_then(|name| tunnels.iter().position(|tunnel| tunnel.name == name));
        match number {
            Some(number) => self.problem(Some(&connection_name(number)), reason),
            None => self.tell(SaEvent::Failed { reason }),
        }
    }

    fn event(&mut self, name: &str, message: &ViciSection) {
        match (name, message.text("up")) {
            ("child-updown", Some("yes")) => {
                for facts in children_of(message) {
                    if let Some(child) = self.children.of(&facts).cloned() {
                        let peer = facts.peer.unwrap_or(child.peer);
                        let tunnel = child.tunnel;
                        let other = self.children.sealing(tunnel).map(|child| child.spi_in);
                        if self.children.is_up(tunnel) && other != Some(child.spi_in) {
                            // Both ends may have set it up.
                            self.lists.await_duplicate(self.now());
                        }
                        self.seal(&child, peer, Some(&facts.identity));
                    }
                }
            }
            ("child-updown", _) => {
                for facts in children_of(message) {
                    self.remove(facts.tunnel, facts.spi_in, false);
                }
            }
            // Associations in the middle of a change of keys end without an event of their own.
            ("ike-updown", None) => self.lists.repeat(self.now()),
            ("list-sa", _) => self.lists.add(message),
            _ => {}
        }
    }

    /// Seals with an association from now on, in the place of the one before, which opens until the daemon deletes it.
    /// `identity`: that of the peer, if this is no change of keys.
    fn seal(&mut self, child: &Child, peer: SocketAddr, identity: Option<&str>) {
        let tunnel = child.tunnel;
        self.tell(SaEvent::Sealing {
            tunnel,
            spi: child.spi_out,
            peer,
            algorithms: child.algorithms.clone(),
            identity: identity.map(str::to_owned),
        });
        if let Some(old) = self.children.seals(tunnel, child.spi_in) {
            self.tell_deleted(&old, false);
        }
    }

    fn tell_deleted(&mut self, child: &Child, at_once: bool) {
        self.tell(SaEvent::Deleted {
            spis: [child.spi_in, child.spi_out],
            at_once,
        });
    }

    /// Removes an association that is there no more; another one of its tunnel takes its place. Then packets that the
    /// peer sent before it knew about the end are still opened, unless this association cannot be used.
    fn remove(&mut self, tunnel: usize, spi_in: u32, is_unusable: bool) {
        let Some(removed) = self.children.remove(tunnel, spi_in) else {
            return;
        };
        if let Some(instead) = removed.instead {
            self.seal(&instead, instead.peer, None);
        }
        self.tell_deleted(&removed.child, removed.is_down || is_unusable);
        if removed.is_down {
            // The peer was dead or has deleted its keys: the next turn sets the tunnel up again.
            let now = self.now();
            if let Some(next) = self.attempts.get_mut(tunnel) {
                *next = now;
            }
            self.duplicates.forget(tunnel);
            self.tell(SaEvent::Down { tunnel });
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
            // Associations that the daemon logged before it sent this message open before the peer has it.
            self.buffer = core::mem::take(&mut buffer);
            sent = self.read_log();
            buffer = core::mem::take(&mut self.buffer);
            if sent.is_err() {
                break;
            }
            if !self.parts.sink.may_send_to(to.ip()) {
                continue;
            }
            match port {
                NAT_TRAVERSAL_PORT => self.tell(SaEvent::Message(payload, to)),
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
