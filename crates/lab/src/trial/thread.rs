//! Runs a host of the load generator on a thread of its own, over sockets.

use crate::error::LabError;
use crate::host::{Holdings, HostPlan, HostProgress, LabHost, Results};
use engine::{Entropy, EventKind, Time};
use net::tls::Security;
use net::{Clock, Driver, DriverConfig, MediaSockets, Network};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time between two polls of the request channel.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Shortest time between two of them: a turn may take a few microseconds.
const POLL_PAUSE: Duration = Duration::from_millis(1);
/// Media ports from which on they share one socket, if the rights permit it: a call that sends or receives the packets
/// of many ports then replaces one for each packet.
const SHARED_SOCKET_FROM: usize = 64;
/// Buffer of that socket, bytes, which the driver requests as for signalling: almost a second of 100,000 packets a
/// second, so that a thread that was taken off its processor loses nothing.
const SHARED_SOCKET_BUFFER: usize = 32 << 20;
/// Longest time by which a host that only receives streams collects packets, so that it does not wake up for each of
/// them. Their arrival is the kernel's time stamp.
const RECEIVE_DELAY: Duration = Duration::from_millis(1);
/// Longest wait for the sockets to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Send buffer of a connection, bytes: one connection may carry all calls, and a SUT that pauses does not read it.
const STREAM_BUFFER: usize = 64 << 20;
/// Most distinct reasons of failed connections that are recorded.
const MAX_REASONS: usize = 8;

/// Kind of a failed connection, and the reason.
type ConnectionFailure = (&'static str, String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterCollect {
    Continue,
    End,
}

enum HostRequest {
    Begin(SocketAddr, Time),
    Stop,
    Deregister,
    /// Returns the results so far; the host continues or ends.
    Collect(Sender<HostResults>, AfterCollect),
}

/// Network namespace of a host, and the marking of its media.
#[derive(Clone, Debug, Default)]
pub struct HostPlacement {
    /// A namespace of its own; `None`: that of this process.
    pub network: Option<Arc<Network>>,
    /// Differentiated services code point of its media.
    pub media_dscp: u8,
}

/// Results of a host at its end.
#[derive(Debug)]
pub struct HostResults {
    /// Raw results.
    pub results: Results,
    /// Objects that it still had.
    pub holdings: Holdings,
    /// Figures.
    pub progress: HostProgress,
    /// CPU time of its thread since it began, seconds.
    pub cpu_seconds: f64,
    /// Drops of its endpoint and its driver, by name.
    pub drops: Vec<(&'static str, u64)>,
    /// Datagrams that the kernel dropped at its sockets, which it did not read in time; 0 where the kernel does not
    /// report them.
    pub kernel_drops: u64,
    /// Stream connections that it opened.
    pub connected: u64,
    /// Reasons why TLS or WebSocket connections failed, each once with its count.
    pub failed_connections: Vec<(ConnectionFailure, u64)>,
}

/// Addresses of a host.
#[derive(Clone, Copy, Debug)]
struct HostAddresses {
    /// For datagrams.
    address: SocketAddr,
    /// For streams.
    streams: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HostStatus {
    progress: HostProgress,
    done: bool,
}

/// A running host.
#[derive(Debug)]
pub struct HostThread {
    name: String,
    requests: Sender<HostRequest>,
    status: Arc<Mutex<HostStatus>>,
    failure: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
    addresses: HostAddresses,
}

fn cannot(name: &str, why: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("{name}: {why}"),
        "free the port, raise the limit of open files (ulimit -n), or make fewer calls at a time",
    )
}

impl HostThread {
    /// Starts a host and waits until its sockets are open. `security`: certificates and trust, if it uses TLS.
    ///
    /// # Errors
    /// If a socket or the thread cannot be created.
    pub fn start(
        plan: HostPlan,
        security: Option<Security>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<HostThread, LabError> {
        HostThread::start_in(HostPlacement::default(), plan, security, entropy, clock)
    }

    /// As [`HostThread::start`], in a network namespace and with marked media.
    ///
    /// # Errors
    /// As for [`HostThread::start`], and if the namespace cannot be entered.
    pub fn start_in(
        placement: HostPlacement,
        plan: HostPlan,
        security: Option<Security>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<HostThread, LabError> {
        let name = plan.name.clone();
        let (requests, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let status = Arc::new(Mutex::new(HostStatus::default()));
        let failure = Arc::new(Mutex::new(None));
        let (shared, failed) = (status.clone(), failure.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let config = driver_config(&plan, &placement);
                let mut host = LabHost::new(plan, entropy);
                // The records have the same content; on sockets no event log is kept.
                host.set_emits_events(false);
                host.record_send_times();
                let settings = (placement, security, config);
                if let Err(error) = serve(host, settings, clock, &inbox, &ready, &shared) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            })
            .map_err(|error| cannot(&name, error))?;
        let mut host = HostThread {
            name,
            requests,
            status,
            failure,
            thread: Some(thread),
            addresses: HostAddresses {
                address: SocketAddr::from(([0, 0, 0, 0], 0)),
                streams: None,
            },
        };
        host.addresses = match wait.recv_timeout(OPEN_TIMEOUT) {
            Ok(Ok(places)) => places,
            Ok(Err(why)) => return Err(cannot(&host.name, why)),
            Err(RecvTimeoutError::Timeout) => {
                return Err(cannot(&host.name, "sockets were not opened in time"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                host.join();
                return Err(host.failure("it has stopped"));
            }
        };
        Ok(host)
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                Some("it panicked".to_owned());
        }
    }

    fn failure(&self, default: &str) -> LabError {
        let failure = self
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        cannot(&self.name, failure.unwrap_or_else(|| default.to_owned()))
    }

    /// Its SIP address for datagrams.
    pub fn address(&self) -> SocketAddr {
        self.addresses.address
    }

    /// Its address for streams, if it has one.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.addresses.streams
    }

    fn send_request(&self, request: HostRequest) -> Result<(), LabError> {
        self.requests
            .send(request)
            .map_err(|_| self.failure("it has stopped"))
    }

    /// Starts its workloads at `start`, towards `target`.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn begin(&self, target: SocketAddr, start: Time) -> Result<(), LabError> {
        self.send_request(HostRequest::Begin(target, start))
    }

    /// Starts no further attempts.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn stop(&self) -> Result<(), LabError> {
        self.send_request(HostRequest::Stop)
    }

    /// Removes its registrations.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn deregister(&self) -> Result<(), LabError> {
        self.send_request(HostRequest::Deregister)
    }

    /// Figures so far.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn progress(&self) -> Result<HostProgress, LabError> {
        self.check_running()?;
        Ok(self
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .progress)
    }

    /// Whether all planned attempts are complete.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn is_done(&self) -> Result<bool, LabError> {
        self.check_running()?;
        Ok(self
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .done)
    }

    fn check_running(&self) -> Result<(), LabError> {
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err(self.failure("it has stopped")),
        }
    }

    fn results(&self, after: AfterCollect) -> Result<HostResults, LabError> {
        let (reply, receiver) = mpsc::channel();
        self.send_request(HostRequest::Collect(reply, after))?;
        receiver.recv().map_err(|_| self.failure("it has stopped"))
    }

    /// Ends open attempts as unfinished and returns the results; the host keeps answering.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn collect(&self) -> Result<HostResults, LabError> {
        self.results(AfterCollect::Continue)
    }

    /// Stops the host and returns its results.
    ///
    /// # Errors
    /// If the thread has ended before.
    pub fn finish(mut self) -> Result<HostResults, LabError> {
        let finished = self.results(AfterCollect::End);
        self.join();
        finished
    }
}

/// The settings of a host's driver.
fn driver_config(plan: &HostPlan, placement: &HostPlacement) -> DriverConfig {
    let connections = plan.stream_connections();
    let shares_socket = plan.media_sockets >= SHARED_SOCKET_FROM;
    let default = DriverConfig::default();
    DriverConfig {
        media_dscp: placement.media_dscp,
        receive_timestamps: true,
        signalling_batching_delay: plan.batch,
        realtime: Some(u32::from(plan.realtime)).filter(|priority| *priority > 0),
        spin: plan.spin,
        gso_order: (!plan.batch.is_zero()).then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        stream_buffer: STREAM_BUFFER,
        connections,
        // A system under test is one source.
        connections_per_source: connections,
        media_sockets: match shares_socket {
            true => MediaSockets::Auto,
            false => MediaSockets::PerPort,
        },
        signalling_buffer: match shares_socket {
            true => SHARED_SOCKET_BUFFER,
            false => default.signalling_buffer,
        },
        media_batching_delay: match plan.only_receives_streams() {
            true => RECEIVE_DELAY,
            false => Duration::ZERO,
        },
        ..default
    }
}

fn serve(
    mut host: LabHost,
    (placement, security, config): (HostPlacement, Option<Security>, DriverConfig),
    clock: Clock,
    inbox: &Receiver<HostRequest>,
    ready: &Sender<Result<HostAddresses, String>>,
    status: &Mutex<HostStatus>,
) -> Result<(), String> {
    if let Some(network) = &placement.network {
        network.enter().map_err(|error| format!("setns: {error}"))?;
    }
    let mut driver = Driver::plain(config, clock).map_err(|error| error.to_string())?;
    if let Some(security) = security {
        driver.set_security(security);
    }
    let mut failed_connections: BTreeMap<ConnectionFailure, u64> = BTreeMap::new();
    let mut reported = false;
    let mut begun = false;
    let cpu_before = net::thread_cpu();
    let mut dropped_before = 0;
    let mut polled = Time::ZERO;
    loop {
        driver
            .turn_engine(&mut host, POLL_INTERVAL)
            .map_err(|error| error.to_string())?;
        let now = clock.now();
        if reported && now.since(polled) < POLL_PAUSE {
            continue;
        }
        polled = now;
        while let Some(event) = driver.next_event() {
            let reason = match event.kind {
                EventKind::TlsHandshakeFailed {
                    side, reason: why, ..
                } => ("TLS", format!("{side}: {why}")),
                EventKind::WebsocketFailed { reason: why, .. } => ("WebSocket", why),
                _ => continue,
            };
            if failed_connections.len() < MAX_REASONS || failed_connections.contains_key(&reason) {
                *failed_connections.entry(reason).or_default() += 1;
            }
        }
        if let Some(why) = host.fatal() {
            let why = why.to_owned();
            // During the start the error is returned to the caller; later it ends the thread.
            if !reported && ready.send(Err(why.clone())).is_ok() {
                return Ok(());
            }
            return Err(why);
        }
        if let (false, true, Some(address)) = (reported, host.is_ready(), host.address()) {
            reported = true;
            let streams = host.stream_address();
            if ready.send(Ok(HostAddresses { address, streams })).is_err() {
                return Ok(());
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(HostRequest::Begin(target, start)) => {
                    host.begin(target, start);
                    begun = true;
                }
                Ok(HostRequest::Stop) => host.stop(),
                Ok(HostRequest::Deregister) => host.deregister(clock.now()),
                Ok(HostRequest::Collect(reply, then)) => {
                    let mut finished = finish(&mut host, &driver, clock, cpu_before);
                    // Sockets count from their opening: a host that continues reports each drop once.
                    let dropped = std::mem::replace(&mut dropped_before, finished.kernel_drops);
                    finished.kernel_drops = finished.kernel_drops.saturating_sub(dropped);
                    finished.failed_connections = std::mem::take(&mut failed_connections)
                        .into_iter()
                        .collect();
                    // The receiver may have stopped waiting.
                    let _ = reply.send(finished);
                    if then == AfterCollect::End {
                        return Ok(());
                    }
                }
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
        let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
        status.progress = host.progress();
        status.done = begun && host.is_done();
    }
}

fn finish(host: &mut LabHost, driver: &Driver, clock: Clock, cpu_before: Duration) -> HostResults {
    let kernel_drops = driver.kernel_drops().unwrap_or_default();
    let holdings = host.holdings();
    let progress = host.progress();
    let results = host.finish(clock.now());
    // A host that continues starts a new record.
    host.record_send_times();
    let mut drops = host.drops().clone();
    drops.merge(&driver.counters().drops);
    HostResults {
        results,
        holdings,
        progress,
        cpu_seconds: net::thread_cpu().saturating_sub(cpu_before).as_secs_f64(),
        drops: drops
            .iter()
            .map(|(reason, count)| (reason.name(), count))
            .collect(),
        kernel_drops,
        connected: driver.counters().connected,
        failed_connections: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::RegistrationPlan;
    use std::net::UdpSocket;

    #[test]
    fn datagrams_that_a_host_did_not_read_in_time_are_counted() {
        let plan = HostPlan::new("callees", SocketAddr::from(([127, 0, 0, 1], 0)));
        let config = DriverConfig {
            signalling_buffer: 1,
            ..driver_config(&plan, &HostPlacement::default())
        };
        let clock = Clock::new();
        let mut host = LabHost::new(plan, Entropy::from_number(1));
        host.record_send_times();
        let mut driver = Driver::plain(config, clock).unwrap();
        while !host.is_ready() || host.address().is_none() {
            driver.turn_engine(&mut host, POLL_INTERVAL).unwrap();
        }
        let address = host.address().unwrap();
        let before = finish(&mut host, &driver, clock, Duration::ZERO);
        assert_eq!(before.kernel_drops, 0);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..1_000 {
            sender.send_to(&[0; 1_000], address).unwrap();
        }
        let after = finish(&mut host, &driver, clock, Duration::ZERO);
        assert!(after.kernel_drops > 900, "{}", after.kernel_drops);
    }

    #[test]
    fn driver_permits_the_connections_of_the_plan() {
        let mut plan = HostPlan::new("callers", SocketAddr::from(([127, 0, 0, 1], 0)));
        let placement = HostPlacement::default();
        let least = DriverConfig::default().connections;
        assert!(driver_config(&plan, &placement).connections >= least);
        plan.registrations = Some(RegistrationPlan {
            connections: 20_000,
            ..registrations()
        });
        let config = driver_config(&plan, &placement);
        assert!(config.connections > 20_000 && config.connections_per_source > 20_000);
    }

    fn registrations() -> RegistrationPlan {
        RegistrationPlan {
            name: "users".to_owned(),
            pace: crate::pace::ArrivalProcess::Constant { rate: 500.0 },
            users: 20_000,
            login: crate::host::LoginTemplates {
                user: "{number:5}".to_owned(),
                password: String::new(),
            },
            domain: String::new(),
            expires: 3_600,
            refresh: None,
            follows_expiry: false,
            refreshes: 0,
            refresh_rate: 0.0,
            remove: false,
            transport: engine::Transport::Tls,
            connections: 1,
        }
    }
}
