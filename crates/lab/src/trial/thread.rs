//! A laboratory host on a thread of its own, over sockets.

use crate::error::LabError;
use crate::host::{Holdings, Host, HostPlan, Progress, Results};
use engine::{Entropy, Note, Time};
use net::tls::Security;
use net::{Clock, Driver, DriverConfig, Network};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread looks for orders where nothing else wakes it.
const LOOK: Duration = Duration::from_millis(10);
/// Longest wait for sockets to be opened.
const OPENING: Duration = Duration::from_secs(20);
/// Bytes that may wait on a connection: one may carry the calls of all callers, and a subject that pauses reads none of them.
const STREAM_BUFFER: usize = 64 << 20;
/// Reasons for which connections did not come about that are kept apart.
const REASONS: usize = 8;

/// What did not come about, and why.
type Refusal = (&'static str, String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

enum Order {
    Begin(SocketAddr, Time),
    Stop,
    Deregister,
    /// Results so far; the host goes on, or ends.
    Collect(Sender<Finished>, Then),
}

/// Where a host lives, and how its media is marked.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// A network of its own; `None`: that of this process.
    pub network: Option<Arc<Network>>,
    /// Differentiated services code point of its media.
    pub media_dscp: u8,
}

/// What a host leaves behind.
#[derive(Debug)]
pub struct Finished {
    /// Raw results.
    pub results: Results,
    /// What it still held.
    pub holdings: Holdings,
    /// Figures.
    pub progress: Progress,
    /// CPU time of its thread since it began, seconds.
    pub cpu_seconds: f64,
    /// What its endpoint and its driver dropped, by name.
    pub drops: Vec<(&'static str, u64)>,
    /// Why TLS, or a WebSocket, did not come about, and how often: each reason once.
    pub refused: Vec<(Refusal, u64)>,
}

/// Where a host is reached.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// By datagrams.
    address: SocketAddr,
    /// By streams.
    streams: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    progress: Progress,
    done: bool,
}

/// A running host.
#[derive(Debug)]
pub struct HostThread {
    name: String,
    orders: Sender<Order>,
    seen: Arc<Mutex<Seen>>,
    failure: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
    places: Places,
}

fn cannot(name: &str, why: impl std::fmt::Display) -> LabError {
    LabError::cannot(
        format!("{name}: {why}"),
        "free the port, raise the limit of open files (ulimit -n), or make fewer calls at a time",
    )
}

impl HostThread {
    /// Starts a host and waits until its sockets are open. `security`: certificates and trust, where it speaks TLS.
    ///
    /// # Errors
    /// Where a socket or the thread cannot be had.
    pub fn start(
        plan: HostPlan,
        security: Option<Security>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<HostThread, LabError> {
        HostThread::start_in(Place::default(), plan, security, entropy, clock)
    }

    /// The same in a network of its own, and with marks on what it sends.
    ///
    /// # Errors
    /// As [`HostThread::start`], and where the network cannot be entered.
    pub fn start_in(
        place: Place,
        plan: HostPlan,
        security: Option<Security>,
        entropy: Entropy,
        clock: Clock,
    ) -> Result<HostThread, LabError> {
        let name = plan.name.clone();
        let (orders, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let failure = Arc::new(Mutex::new(None));
        let (shared, failed) = (seen.clone(), failure.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let batch = plan.batch;
                let realtime = Some(u32::from(plan.realtime)).filter(|priority| *priority > 0);
                let mut host = Host::new(plan, entropy);
                // Records tell the same; on sockets nobody keeps a log.
                host.set_events_wanted(false);
                let settings = (place, security, batch, realtime);
                if let Err(error) = serve(host, settings, clock, &inbox, &ready, &shared) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            })
            .map_err(|error| cannot(&name, error))?;
        let mut host = HostThread {
            name,
            orders,
            seen,
            failure,
            thread: Some(thread),
            places: Places {
                address: SocketAddr::from(([0, 0, 0, 0], 0)),
                streams: None,
            },
        };
        host.places = match wait.recv_timeout(OPENING) {
            Ok(Ok(places)) => places,
            Ok(Err(why)) => return Err(cannot(&host.name, why)),
            Err(RecvTimeoutError::Timeout) => {
                return Err(cannot(&host.name, "sockets were not opened in time"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                host.join();
                return Err(host.failure("it stopped"));
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
        self.places.address
    }

    /// Where it takes streams, where it does.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.places.streams
    }

    fn order(&self, order: Order) -> Result<(), LabError> {
        self.orders
            .send(order)
            .map_err(|_| self.failure("it stopped"))
    }

    /// Begins its work at `start`, towards `target`.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn begin(&self, target: SocketAddr, start: Time) -> Result<(), LabError> {
        self.order(Order::Begin(target, start))
    }

    /// Nothing new is started.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn stop(&self) -> Result<(), LabError> {
        self.order(Order::Stop)
    }

    /// Registrations are taken back.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn deregister(&self) -> Result<(), LabError> {
        self.order(Order::Deregister)
    }

    /// Figures so far.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn progress(&self) -> Result<Progress, LabError> {
        self.alive()?;
        Ok(self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .progress)
    }

    /// Whether all that was planned is over.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn is_done(&self) -> Result<bool, LabError> {
        self.alive()?;
        Ok(self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .done)
    }

    fn alive(&self) -> Result<(), LabError> {
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err(self.failure("it stopped")),
        }
    }

    fn results(&self, then: Then) -> Result<Finished, LabError> {
        let (give, take) = mpsc::channel();
        self.order(Order::Collect(give, then))?;
        take.recv().map_err(|_| self.failure("it stopped"))
    }

    /// Ends what is open as unfinished and gives the results; the host goes on answering.
    ///
    /// # Errors
    /// Where the thread has ended.
    pub fn collect(&self) -> Result<Finished, LabError> {
        self.results(Then::GoOn)
    }

    /// Ends it and gives what it leaves behind.
    ///
    /// # Errors
    /// Where the thread has ended before.
    pub fn finish(mut self) -> Result<Finished, LabError> {
        let finished = self.results(Then::End);
        self.join();
        finished
    }
}

fn serve(
    mut host: Host,
    (place, security, batch, realtime): (Place, Option<Security>, Duration, Option<u32>),
    clock: Clock,
    inbox: &Receiver<Order>,
    ready: &Sender<Result<Places, String>>,
    seen: &Mutex<Seen>,
) -> Result<(), String> {
    if let Some(network) = &place.network {
        network.enter().map_err(|error| format!("setns: {error}"))?;
    }
    let config = DriverConfig {
        media_dscp: place.media_dscp,
        receive_timestamps: true,
        coalesce: batch,
        realtime,
        order: (!batch.is_zero()).then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        stream_buffer: STREAM_BUFFER,
        ..DriverConfig::default()
    };
    let mut driver = Driver::plain(config, clock).map_err(|error| error.to_string())?;
    if let Some(security) = security {
        driver.set_security(security);
    }
    let mut refused: BTreeMap<Refusal, u64> = BTreeMap::new();
    let mut told = false;
    let mut begun = false;
    let cpu_before = net::thread_cpu();
    loop {
        driver
            .turn_engine(&mut host, LOOK)
            .map_err(|error| error.to_string())?;
        while let Some(event) = driver.next_event() {
            let reason = match event.note {
                Note::TlsRefused { side, why, .. } => ("TLS", format!("{side}: {why}")),
                Note::WebsocketRefused { why, .. } => ("WebSocket", why),
                _ => continue,
            };
            if refused.len() < REASONS || refused.contains_key(&reason) {
                *refused.entry(reason).or_default() += 1;
            }
        }
        if let Some(why) = host.fatal() {
            let why = why.to_owned();
            // Whoever starts the host hears it there; later it ends the thread.
            if !told && ready.send(Err(why.clone())).is_ok() {
                return Ok(());
            }
            return Err(why);
        }
        if let (false, true, Some(address)) = (told, host.is_ready(), host.address()) {
            told = true;
            let streams = host.stream_address();
            if ready.send(Ok(Places { address, streams })).is_err() {
                return Ok(());
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(Order::Begin(target, start)) => {
                    host.begin(target, start);
                    begun = true;
                }
                Ok(Order::Stop) => host.stop(),
                Ok(Order::Deregister) => host.deregister(clock.now()),
                Ok(Order::Collect(give, then)) => {
                    let mut finished = finish(&mut host, &driver, clock, cpu_before);
                    finished.refused = std::mem::take(&mut refused).into_iter().collect();
                    // The receiver may have given up waiting; there is nobody else to tell.
                    let _ = give.send(finished);
                    if then == Then::End {
                        return Ok(());
                    }
                }
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.progress = host.progress();
        seen.done = begun && host.is_done();
    }
}

fn finish(host: &mut Host, driver: &Driver, clock: Clock, cpu_before: Duration) -> Finished {
    let holdings = host.holdings();
    let progress = host.progress();
    let results = host.finish(clock.now());
    let mut drops = host.drops().clone();
    drops.merge(&driver.counters().drops);
    Finished {
        results,
        holdings,
        progress,
        cpu_seconds: net::thread_cpu().saturating_sub(cpu_before).as_secs_f64(),
        drops: drops
            .iter()
            .map(|(reason, count)| (reason.name(), count))
            .collect(),
        refused: Vec::new(),
    }
}
