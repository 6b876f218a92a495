//! HEP to a collector: copies of messages. A thread of its own resolves the name of the collector, again and again, and
//! hands over connected sockets, so that the thread of the store never waits for a name server and the border starts
//! without one.

use super::agents::{HepCounts, HepOutcome};
use crate::log::EventLog;
use config::StoreSpec;
use console::StoredMessage;
use engine::{Event, EventKind, Time, Transport};
use net::Clock;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use wire::hep::{HepPacket, ip_protocol, payload_type};

/// Pauses after failed attempts to resolve the name: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time after which a resolved name is resolved again: a collector may move.
const RESOLVE_AGAIN: Duration = Duration::from_secs(300);
/// The error of Linux for a datagram that is too long.
const EMSGSIZE: i32 = 90;

/// Sends copies of messages to a collector.
pub(crate) struct HepSender {
    /// `None` until the name is resolved.
    socket: Option<UdpSocket>,
    resolved: Receiver<UdpSocket>,
    /// Its end ends the thread that resolves.
    _running: SyncSender<()>,
    agent: u32,
    key: Vec<u8>,
    buffer: Vec<u8>,
    counts: Arc<HepCounts>,
}

/// A socket for the collector at this address.
fn socket_to(target: SocketAddr) -> io::Result<UdpSocket> {
    let local: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Resolves the name of the collector.
struct Resolver<R> {
    /// The first address of the name.
    resolve: R,
    /// Name in events.
    name: String,
    sockets: SyncSender<UdpSocket>,
    /// Ends when the sender is gone.
    running: Receiver<()>,
    target: Option<SocketAddr>,
    failing_since: Option<Time>,
    log: EventLog,
    clock: Clock,
}

impl<R: FnMut() -> io::Result<SocketAddr>> Resolver<R> {
    /// Runs until the sender is gone. `first`, `longest`: pauses after failures; `again`: after a success.
    fn run(mut self, [first, longest, again]: [Duration; 3]) {
        let mut pause = first;
        loop {
            let wait = match self.attempt() {
                Ok(()) => {
                    pause = first;
                    again
                }
                Err(error) => {
                    self.failed(&error);
                    let wait = pause;
                    pause = (pause * 2).min(longest);
                    wait
                }
            };
            if self.running.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn attempt(&mut self) -> io::Result<()> {
        let target = (self.resolve)()?;
        if self.target != Some(target) {
            // The sender takes it before its next message; a full queue has an older one, which it takes first.
            match self.sockets.try_send(socket_to(target)?) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => self.target = Some(target),
                Err(TrySendError::Full(_)) => {}
            }
        }
        if let Some(since) = self.failing_since.take() {
            self.tell(EventKind::ReceiverRecovered {
                receiver: self.name.clone(),
                outage_s: self.clock.now().since(since).as_secs(),
            });
        }
        Ok(())
    }

    fn failed(&mut self, error: &io::Error) {
        // Until it is resolved again, the last address is used: a name server may be down for a while.
        if self.failing_since.is_none() {
            self.failing_since = Some(self.clock.now());
            self.tell(EventKind::ReceiverFailed {
                receiver: self.name.clone(),
                reason: error.to_string(),
            });
        }
    }

    fn tell(&self, kind: EventKind) {
        self.log.event(&Event::new(self.clock.now(), kind));
        self.log.flush();
    }
}

impl HepSender {
    /// Starts sending if a collector is configured. A name that cannot be resolved yet is no error: it is tried again,
    /// and messages are counted meanwhile.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        spec: &StoreSpec,
        counts: &Arc<HepCounts>,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<Option<HepSender>> {
        let Some((host, port)) = spec.hep.send.clone() else {
            return Ok(None);
        };
        let literal: Option<IpAddr> = host.parse().ok();
        let literal = literal.map(|ip| SocketAddr::new(ip, port));
        // The first messages are not lost where no name has to be resolved.
        let socket = literal.and_then(|target| socket_to(target).ok());
        let (sockets, resolved) = sync_channel(1);
        let (running, ended) = sync_channel(0);
        let resolver = Resolver {
            name: format!("HEP collector udp:{host}:{port}"),
            target: literal.filter(|_| socket.is_some()),
            resolve: move || {
                let mut addresses = (host.as_str(), port).to_socket_addrs()?;
                let none = || io::Error::other("the name has no address");
                addresses.next().ok_or_else(none)
            },
            sockets,
            running: ended,
            failing_since: None,
            log: log.clone(),
            clock,
        };
        if socket.is_none() {
            std::thread::Builder::new()
                .name("hep-name".to_owned())
                .spawn(move || {
                    // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them
                    // too.
                    let _ = net::block_signals();
                    resolver.run([FIRST_PAUSE, LONGEST_PAUSE, RESOLVE_AGAIN]);
                })?;
        }
        Ok(Some(HepSender {
            socket,
            resolved,
            _running: running,
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
        if let Ok(socket) = self.resolved.try_recv() {
            self.socket = Some(socket);
        }
        let Some(socket) = &self.socket else {
            self.counts.add(HepOutcome::Socket, 1);
            return;
        };
        // An error may belong to an earlier datagram: an absent collector is reported by ICMP.
        let sent = socket.send(&self.buffer).or_else(|error| {
            match error.kind() == ErrorKind::ConnectionRefused {
                true => socket.send(&self.buffer),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is not resolved at first, and later leads to another address.
    #[test]
    fn messages_reach_a_collector_that_is_resolved_late_and_moves() {
        let collectors = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        for collector in &collectors {
            let limit = Some(Duration::from_secs(20));
            collector.set_read_timeout(limit).unwrap();
        }
        let [first, second] = collectors.each_ref().map(|one| one.local_addr().unwrap());
        let (answers, asked) = std::sync::mpsc::channel::<io::Result<SocketAddr>>();
        let (sockets, resolved) = sync_channel(1);
        let (running, ended) = sync_channel(0);
        let log = EventLog::unwritten(Clock::new());
        let resolver = Resolver {
            resolve: move || {
                asked
                    .recv()
                    .unwrap_or_else(|_| Err(io::Error::other("end")))
            },
            name: "HEP collector".into(),
            sockets,
            running: ended,
            target: None,
            failing_since: None,
            log: log.clone(),
            clock: Clock::new(),
        };
        let thread = std::thread::spawn(|| resolver.run([Duration::from_millis(1); 3]));
        let counts = Arc::new(HepCounts::default());
        let mut sender = HepSender {
            socket: None,
            resolved,
            _running: running,
            agent: 1,
            key: Vec::new(),
            buffer: Vec::new(),
            counts: counts.clone(),
        };
        let message = StoredMessage {
            time: 1,
            direction: console::StoredDirection::Sent,
            transport: Transport::Udp,
            source: first,
            destination: second,
            bytes: b"OPTIONS sip:x SIP/2.0\r\n\r\n",
        };
        let count = |result: &str| {
            let mut all = counts.counts().into_iter();
            let found = all.find(|(direction, name, _)| (*direction, *name) == ("sent", result));
            found.unwrap().2
        };
        let fail = || Err(io::Error::other("no such name"));
        answers.send(fail()).unwrap();
        answers.send(fail()).unwrap();
        sender.send(&message, "");
        assert_eq!((count("ok"), count("socket")), (0, 1));
        let mut bytes = [0; 1_000];
        for (target, collector) in [first, second].into_iter().zip(&collectors) {
            answers.send(Ok(target)).unwrap();
            // The resolver asks again once it has handed over the socket.
            answers.send(Ok(target)).unwrap();
            answers.send(Ok(target)).unwrap();
            while sender.socket.as_ref().and_then(|one| one.peer_addr().ok()) != Some(target) {
                sender.send(&message, "");
                std::thread::sleep(Duration::from_millis(1));
            }
            collector.recv(&mut bytes).unwrap();
        }
        let alarms = log.alarms().list();
        assert_eq!(alarms.len(), 1, "{alarms:?}");
        assert_eq!(alarms[0].object, "HEP collector");
        drop((sender, answers));
        thread.join().unwrap();
    }
}
