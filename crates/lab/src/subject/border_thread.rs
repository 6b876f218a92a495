//! Our border on a thread of its own, apart from the generators, so that its CPU time can be told from theirs.

use super::{DATAGRAM, Layout};
use crate::error::LabError;
use border::border::{Border, BorderCensus, Counters};
use border::config::Config;
use engine::{Entropy, Event, HashKey, Note, Time};
use media::{Forwarder, ForwarderLimits};
use net::tls::Security;
use net::{Clock, Driver, DriverConfig};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks for questions where nothing else wakes it.
const LOOK: Duration = Duration::from_millis(10);
/// Longest wait for the end of calls that are cut off by its end.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest wait for its sockets.
const OPENING: Duration = Duration::from_secs(10);

/// What the border says about itself.
#[derive(Clone, Debug)]
pub struct BorderState {
    /// What it holds.
    pub census: BorderCensus,
    /// Its counters.
    pub counters: Counters,
    /// CPU time of its thread, seconds.
    pub cpu_seconds: f64,
    /// What it, its forwarder (by verdict) and its driver dropped, by name.
    pub drops: Vec<(&'static str, u64)>,
}

enum Order {
    State(Sender<BorderState>),
    Tell(Sender<Event>),
    Stop,
}

/// What of the machine a border may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processor {
    /// CPU to which its thread is pinned.
    pub cpu: Option<usize>,
    /// Share of it, percent; 0: all.
    pub percent: f64,
    /// Priority under SCHED_FIFO; 0: none.
    pub realtime: u8,
}

/// Datagrams between two rests of a thread that may not use all of a processor: it stands still for as long as these take.
const AT_ONCE: usize = 4;

/// A thread that may not use all of a processor: each datagram, in or out, takes its time, as in simulation, however fast the build.
#[derive(Debug)]
struct Rest {
    /// What a datagram takes.
    effort: Duration,
    /// Datagrams that it was made to wait for.
    datagrams: u64,
    /// When the work of those is done.
    until: Time,
}

impl Rest {
    /// What a rest that lasted too long, by the timer of the system, is made up for.
    const LATE: Duration = Duration::from_millis(2);

    /// Waits until the work of so many datagrams in all is done, those of the turn that began to work at `began` included.
    fn take(&mut self, datagrams: u64, began: Time, clock: Clock) {
        let new = datagrams.saturating_sub(self.datagrams);
        self.datagrams = datagrams;
        let effort = self
            .effort
            .saturating_mul(u32::try_from(new).unwrap_or(u32::MAX));
        let began = Time(began.0.saturating_sub(Self::LATE.as_nanos() as u64));
        self.until = self.until.max(began) + effort;
        let rest = self.until.since(clock.now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

impl Processor {
    /// Where not all of it may be used.
    fn rest(self, clock: Clock) -> Option<Rest> {
        (self.percent > 0.0).then(|| Rest {
            effort: DATAGRAM.mul_f64(100.0 / self.percent),
            datagrams: 0,
            until: clock.now(),
        })
    }
}

/// A border that runs.
#[derive(Debug)]
pub struct BorderThread {
    orders: Sender<Order>,
    thread: Option<JoinHandle<Result<(), String>>>,
    outside: SocketAddr,
    inside: SocketAddr,
    streams: Option<SocketAddr>,
}

fn cannot(why: impl std::fmt::Display) -> LabError {
    LabError::cannot(
        format!("the border: {why}"),
        "free its ports, or raise the limit of open files (ulimit -n)",
    )
}

impl BorderThread {
    /// Starts a border and waits until it listens.
    ///
    /// # Errors
    /// Where it cannot listen.
    pub fn start(
        layout: &Layout,
        entropy: Entropy,
        clock: Clock,
        processor: Processor,
    ) -> Result<BorderThread, LabError> {
        let config = layout.config()?;
        let listeners = layout.listeners();
        let security = layout.security()?;
        let (orders, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("border".to_owned())
            .spawn(move || {
                let sockets = (listeners, security);
                serve(config, sockets, entropy, clock, processor, &inbox, &ready)
            })
            .map_err(cannot)?;
        let mut border = BorderThread {
            orders,
            thread: Some(thread),
            outside: layout.outside(),
            inside: layout.inside(),
            streams: layout.streams[0].map(|(_, address)| address),
        };
        match wait.recv_timeout(OPENING) {
            Ok(()) => Ok(border),
            Err(_) => {
                let why = border.stop().err();
                Err(why.unwrap_or_else(|| cannot("its sockets were not opened in time")))
            }
        }
    }

    /// Where callers reach it.
    pub fn address(&self) -> SocketAddr {
        self.outside
    }

    /// Where callers reach it over TLS or WebSocket, where they do.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.streams
    }

    /// Where the called side reaches it.
    pub fn inside(&self) -> SocketAddr {
        self.inside
    }

    /// What it says about itself.
    ///
    /// # Errors
    /// Where it has stopped.
    pub fn state(&self) -> Result<BorderState, LabError> {
        let (give, take) = mpsc::channel();
        let sent = self.orders.send(Order::State(give)).is_ok();
        let state = if sent { take.recv().ok() } else { None };
        state.ok_or_else(|| cannot("it stopped"))
    }

    /// What happens from now on.
    ///
    /// # Errors
    /// Where it has stopped.
    pub fn events(&self) -> Result<Receiver<Event>, LabError> {
        let (give, take) = mpsc::channel();
        match self.orders.send(Order::Tell(give)) {
            Ok(()) => Ok(take),
            Err(_) => Err(cannot("it stopped")),
        }
    }

    fn stop(&mut self) -> Result<(), LabError> {
        // Where the thread has ended by itself the order finds nobody, and joining tells why.
        let _ = self.orders.send(Order::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map_err(cannot),
            Some(Err(_)) => Err(cannot("it panicked")),
            None => Ok(()),
        }
    }

    /// Ends it; gives what it dropped, in words.
    ///
    /// # Errors
    /// Where it failed meanwhile.
    pub fn finish(mut self) -> Result<Vec<String>, LabError> {
        let state = self.state();
        self.stop()?;
        let state = state?;
        let drops: Vec<String> = state
            .drops
            .iter()
            .filter(|(reason, _)| *reason != "sip_retransmission")
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        Ok(match drops.is_empty() {
            true => Vec::new(),
            false => vec![format!("border dropped: {}", drops.join(", "))],
        })
    }
}

fn serve(
    config: Config,
    (listeners, security): (usize, Option<Security>),
    mut entropy: Entropy,
    clock: Clock,
    processor: Processor,
    inbox: &Receiver<Order>,
    ready: &Sender<()>,
) -> Result<(), String> {
    let driver_config = DriverConfig {
        pin: processor.cpu,
        realtime: Some(u32::from(processor.realtime)).filter(|priority| *priority > 0),
        unreachable: true,
        // As in service.
        coalesce: config.sip.coalesce,
        gather: config.media.gather,
        signalling_timestamps: config.sip.queue.is_some(),
        order: config
            .sip
            .trains
            .then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        datagram_budget: match processor.percent > 0.0 {
            true => AT_ONCE,
            false => DriverConfig::default().datagram_budget,
        },
        ..DriverConfig::default()
    };
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let mut border = Border::new(config, entropy);
    let mut driver =
        Driver::new(driver_config, clock, forwarder).map_err(|error| error.to_string())?;
    if let Some(security) = security {
        driver.set_security(security);
    }
    let mut opened = 0;
    let mut listener: Option<Sender<Event>> = None;
    let mut rest = processor.rest(clock);
    loop {
        let worked = net::thread_cpu();
        driver
            .turn(&mut border, LOOK)
            .map_err(|error| error.to_string())?;
        if let Some(rest) = &mut rest {
            // A turn may have waited for something to come; what it worked comes after that.
            let worked = net::thread_cpu().saturating_sub(worked);
            let began = Time(clock.now().0.saturating_sub(worked.as_nanos() as u64));
            let counters = driver.counters();
            let datagrams = counters.datagrams_in + counters.datagrams_out;
            rest.take(datagrams, began, clock);
        }
        while let Some(event) = driver.next_event() {
            match &event.note {
                Note::SocketOpened { .. } if opened < listeners => {
                    opened += 1;
                    if opened == listeners {
                        // As in service without a log: the texts of events are not made while it is measured.
                        border.set_events_wanted(false);
                        if ready.send(()).is_err() {
                            return Ok(());
                        }
                    }
                }
                Note::SocketFailed {
                    what,
                    address,
                    error,
                } if opened < listeners => {
                    return Err(format!("{what} {address}: {error}"));
                }
                _ => {
                    let gone = |to: &Sender<Event>| to.send(event.clone()).is_err();
                    if listener.as_ref().is_some_and(gone) {
                        listener = None;
                        border.set_events_wanted(false);
                    }
                }
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(Order::State(give)) => {
                    // Who asked may have gone.
                    let _ = give.send(state(&border, &driver));
                }
                Ok(Order::Tell(give)) => {
                    listener = Some(give);
                    border.set_events_wanted(true);
                }
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => {
                    return farewell(&mut border, &mut driver, clock);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
    }
}

/// Calls that are still up are ended properly: the phones are told.
fn farewell(
    border: &mut Border,
    driver: &mut Driver<Forwarder>,
    clock: Clock,
) -> Result<(), String> {
    let limit = clock.now() + FAREWELL;
    border.drain(Duration::ZERO, clock.now());
    let mut last = false;
    while !last && clock.now() < limit {
        // One more turn after the last call has ended: it takes away what that end gave out.
        last = border.is_drained();
        driver
            .turn(border, if last { Duration::ZERO } else { LOOK })
            .map_err(|error| error.to_string())?;
        while driver.next_event().is_some() {}
    }
    Ok(())
}

fn state(border: &Border, driver: &Driver<Forwarder>) -> BorderState {
    let mut drops = border.drops();
    drops.merge(&driver.counters().drops);
    BorderState {
        census: border.census(),
        counters: border.counters().clone(),
        cpu_seconds: net::thread_cpu().as_secs_f64(),
        drops: drops
            .iter()
            .map(|(reason, count)| (reason.name(), count))
            .collect(),
    }
}
