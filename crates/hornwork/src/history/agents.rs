//! HEP: copies of messages to a collector, and messages of capture agents.

use config::StoreSpec;
use console::{StoredDirection, StoredMessage};
use engine::{EventKind, Time, Transport};
use net::Clock;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::hep::{HepPacket, ip_protocol, payload_type};

/// Longest datagram.
const DATAGRAM: usize = 65_535;
/// Messages of agents that are handed over at once.
const HANDOVER: usize = 64;
/// Batches of messages of agents that may wait for the writer.
const WAITING: usize = 256;
/// Longest wait for a datagram, so that the end of the program is noticed.
const RECEIVE_WAIT: Duration = Duration::from_millis(100);
/// Interval of the reports of drops.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Difference between the clock of an agent and ours to which its times are believed, nanoseconds.
const CLOCK_TOLERANCE: u64 = 1_000_000_000;
/// Age to which times of agents are believed, nanoseconds.
const AGE_TOLERANCE: u64 = 1_500_000_000;
/// The error of Linux for a datagram that is too long.
const EMSGSIZE: i32 = 90;
/// Longest correlation id of an agent.
const MAX_CORRELATION: usize = 256;

/// Sends copies of messages to a collector.
pub(crate) struct HepSender {
    socket: UdpSocket,
    agent: u32,
    key: Vec<u8>,
    buffer: Vec<u8>,
    counts: Arc<HepCounts>,
}

impl HepSender {
    /// Opens the socket if a collector is configured.
    ///
    /// # Errors
    /// Its name cannot be resolved, or the system gives no socket.
    pub(crate) fn open(spec: &StoreSpec, counts: &Arc<HepCounts>) -> io::Result<Option<HepSender>> {
        let Some((host, port)) = &spec.hep.send else {
            return Ok(None);
        };
        let failed = |error: io::Error| {
            io::Error::other(format!(
                "cannot send HEP to {host}:{port}: {error}\n  remedy: correct `send` of [store] hep"
            ))
        };
        let mut addresses = (host.as_str(), *port).to_socket_addrs().map_err(failed)?;
        let target = addresses
            .next()
            .ok_or_else(|| failed(io::Error::other("the name has no address")))?;
        let local: SocketAddr = match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local).map_err(failed)?;
        socket.connect(target).map_err(failed)?;
        socket.set_nonblocking(true)?;
        Ok(Some(HepSender {
            socket,
            agent: spec.hep.id,
            key: spec.hep.password.clone().into_bytes(),
            buffer: Vec::new(),
            counts: counts.clone(),
        }))
    }

    /// Sends a message. `correlation`: an id that both legs of a call have in common.
    pub(crate) fn send(&mut self, message: &StoredMessage<'_>, correlation: &str) {
        let packet = HepPacket {
            source: message.source,
            destination: message.destination,
            protocol: match message.transport {
                Transport::Udp => ip_protocol::UDP,
                _ => ip_protocol::TCP,
            },
            time: message.time,
            kind: payload_type::SIP,
            agent: self.agent,
            key: &self.key,
            correlation: correlation.as_bytes(),
            payload: message.bytes,
        };
        if !packet.write(&mut self.buffer) {
            self.counts.add(HepOutcome::TooLong, 1);
            return;
        }
        // An error may belong to an earlier datagram: an absent collector is reported by ICMP.
        let sent = self.socket.send(&self.buffer).or_else(|error| {
            match error.kind() == ErrorKind::ConnectionRefused {
                true => self.socket.send(&self.buffer),
                false => Err(error),
            }
        });
        let outcome = match sent {
            Ok(_) => HepOutcome::Sent,
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) => HepOutcome::TooLong,
            Err(_) => HepOutcome::Socket,
        };
        self.counts.add(outcome, 1);
    }
}

/// Outcomes of HEP packets.
#[derive(Clone, Copy, Debug)]
enum HepOutcome {
    Sent,
    /// The socket refused it.
    Socket,
    TooLong,
    Received,
    Malformed,
    NoSip,
    RateLimit,
    /// The writer of the store is too slow.
    QueueFull,
}

/// Direction and name of each outcome, in the order of declaration.
const OUTCOMES: [(&str, &str); 8] = [
    ("sent", "ok"),
    ("sent", "socket"),
    ("sent", "too long"),
    ("received", "ok"),
    ("received", "malformed"),
    ("received", "no SIP"),
    ("received", "rate limit"),
    ("received", "queue full"),
];

/// Counts of HEP packets since the start. Counting never waits.
#[derive(Debug, Default)]
pub(crate) struct HepCounts([AtomicU64; OUTCOMES.len()]);

impl HepCounts {
    fn add(&self, outcome: HepOutcome, packets: u64) {
        if let Some(count) = self.0.get(outcome as usize) {
            count.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Direction, result and number of packets.
    pub(crate) fn counts(&self) -> [(&'static str, &'static str, u64); OUTCOMES.len()] {
        let mut counts = OUTCOMES.map(|(direction, result)| (direction, result, 0));
        for (count, (_, _, packets)) in self.0.iter().zip(&mut counts) {
            *packets = count.load(Ordering::Relaxed);
        }
        counts
    }
}

/// Reports packets that were dropped.
pub(crate) struct HepReports {
    counts: Arc<HepCounts>,
    /// Counts of the last report, and its time.
    before: [u64; OUTCOMES.len()],
    reported: Option<Time>,
}

impl HepReports {
    pub(crate) fn new(counts: Arc<HepCounts>) -> HepReports {
        HepReports {
            counts,
            before: [0; OUTCOMES.len()],
            reported: None,
        }
    }

    /// Events about packets that were dropped since the last report: the first ones at once, further ones after
    /// [`REPORT_INTERVAL`].
    pub(crate) fn take(&mut self, now: Time) -> Vec<EventKind> {
        if self
            .reported
            .is_some_and(|reported| now.since(reported) < REPORT_INTERVAL)
        {
            return Vec::new();
        }
        let mut events = Vec::new();
        for ((direction, reason, packets), before) in
            self.counts.counts().into_iter().zip(&mut self.before)
        {
            let new = packets.saturating_sub(std::mem::replace(before, packets));
            if new > 0 && reason != "ok" {
                events.push(EventKind::HepPacketsDropped {
                    direction: direction.to_owned(),
                    reason: reason.to_owned(),
                    packets: new,
                });
            }
        }
        if !events.is_empty() {
            self.reported = Some(now);
        }
        events
    }
}

/// A message of a capture agent.
pub(crate) struct AgentMessage {
    time: u64,
    transport: Transport,
    source: SocketAddr,
    destination: SocketAddr,
    pub(crate) correlation: Vec<u8>,
    bytes: Vec<u8>,
}

impl AgentMessage {
    /// The message for the store.
    pub(crate) fn stored(&self) -> StoredMessage<'_> {
        StoredMessage {
            time: self.time,
            direction: StoredDirection::Observed,
            transport: self.transport,
            source: self.source,
            destination: self.destination,
            bytes: &self.bytes,
        }
    }
}

/// The thread that receives messages of capture agents.
pub(crate) struct Agents {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Agents {
    /// Starts it if an address is configured.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn start(
        spec: &StoreSpec,
        clock: Clock,
        counts: &Arc<HepCounts>,
    ) -> io::Result<Option<(Agents, Receiver<Vec<AgentMessage>>)>> {
        let Some(listen) = spec.hep.listen else {
            return Ok(None);
        };
        let socket = UdpSocket::bind(listen).map_err(|error| {
            io::Error::other(format!(
                "cannot listen for HEP on {listen}: {error}\n  remedy: stop the program that uses the port, or correct `listen` of [store] hep"
            ))
        })?;
        socket.set_read_timeout(Some(RECEIVE_WAIT))?;
        let (queue, messages) = sync_channel(WAITING);
        let stopping = Arc::new(AtomicBool::new(false));
        let receiver = AgentReceiver {
            socket,
            clock,
            queue,
            stopping: stopping.clone(),
            counts: counts.clone(),
            rate: spec.hep.rate,
            second: 0,
            accepted: 0,
            waiting: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("hep".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                receiver.run();
            })?;
        let agents = Agents { stopping, thread };
        Ok(Some((agents, messages)))
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // It ends within 100 ms.
        let _ = self.thread.join();
    }
}

struct AgentReceiver {
    socket: UdpSocket,
    clock: Clock,
    queue: SyncSender<Vec<AgentMessage>>,
    stopping: Arc<AtomicBool>,
    counts: Arc<HepCounts>,
    /// Messages per second.
    rate: u32,
    second: u64,
    /// Messages of this second.
    accepted: u32,
    waiting: Vec<AgentMessage>,
}

impl AgentReceiver {
    fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM];
        while !self.stopping.load(Ordering::Acquire) {
            match self.socket.recv(&mut buffer) {
                Ok(length) => self.packet(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.hand_over(),
                // An ICMP error of an agent, or a signal.
                Err(_) => {}
            }
            if self.waiting.len() >= HANDOVER {
                self.hand_over();
            }
        }
        self.hand_over();
    }

    fn packet(&mut self, bytes: &[u8]) {
        let now = self.clock.unix_nanos_now();
        let second = now / 1_000_000_000;
        if second != self.second {
            (self.second, self.accepted) = (second, 0);
        }
        if self.accepted >= self.rate {
            self.counts.add(HepOutcome::RateLimit, 1);
            return;
        }
        // Malformed packets count too: parsing them takes time.
        self.accepted += 1;
        let Ok(packet) = HepPacket::parse(bytes) else {
            self.counts.add(HepOutcome::Malformed, 1);
            return;
        };
        if packet.kind != payload_type::SIP {
            self.counts.add(HepOutcome::NoSip, 1);
            return;
        }
        let is_plausible =
            packet.time <= now + CLOCK_TOLERANCE && packet.time + AGE_TOLERANCE >= now;
        let correlation = packet.correlation.get(..MAX_CORRELATION);
        self.waiting.push(AgentMessage {
            time: if is_plausible { packet.time } else { now },
            transport: match packet.protocol {
                ip_protocol::UDP => Transport::Udp,
                _ => Transport::Tcp,
            },
            source: packet.source,
            destination: packet.destination,
            correlation: correlation.unwrap_or(packet.correlation).to_vec(),
            bytes: packet.payload.to_vec(),
        });
    }

    fn hand_over(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let messages = std::mem::take(&mut self.waiting);
        let count = messages.len() as u64;
        let outcome = match self.queue.try_send(messages) {
            Ok(()) => HepOutcome::Received,
            Err(_) => HepOutcome::QueueFull,
        };
        self.counts.add(outcome, count);
    }
}
