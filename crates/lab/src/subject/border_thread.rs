//! Our border on a thread of its own, apart from the generators, so that its CPU time can be told from theirs.

use super::{DATAGRAM, Layout};
use crate::error::LabError;
use border::border::{Border, BorderCensus, Counters};
use border::config::Config;
use engine::{Control, Deadline, Engine, Entropy, Event, HashKey, Input, Note, Output, Time};
use media::{Forwarder, ForwarderLimits};
use net::tls::Security;
use net::{ClaimError, Claimant, Clock, Driver, DriverConfig, PortClaims, PortRange};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Drops that belong to every good run: repetitions, and the ACK of a stateless challenge (RFC 3261 section 26.3.2.4).
const USUAL: [&str; 2] = ["sip_retransmission", "sip_refused_ack"];

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
    /// How it was kept from running, where it may not use all of a processor.
    stood: Option<Stood>,
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
///
/// A datagram's work begins when it comes, or when that of the ones before it is done. A thread that the machine kept from
/// running is behind that, and makes up for it, as a process does that a control group bounds: for [`Rest::PERIOD`] at most. What it
/// had no work for is gone.
#[derive(Debug)]
struct Rest {
    /// What a datagram takes.
    effort: Duration,
    /// Datagrams of which it is known when their work began.
    counted: u64,
    /// Datagrams, in or out, that it was made to wait for.
    datagrams: u64,
    /// When the work of those is done.
    until: Time,
    /// How far the work was behind when the last datagram was read.
    behind: Duration,
    stood: Stood,
}

/// How a thread that may not use all of a processor was kept from running.
#[derive(Clone, Copy, Debug, Default)]
struct Stood {
    /// How often the work fell behind by more than [`Rest::NOTICED`].
    times: u64,
    /// The furthest that it was behind.
    longest: Duration,
    /// What was not made up for.
    lost: Duration,
}

impl Stood {
    fn told(self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "the machine kept the border's thread from its share of a processor: {} times it was behind by more than {:.0} ms, at most \
             by {:.1} ms; it made up for that but for {:.1} ms, which are lost capacity",
            self.times,
            ms(Rest::NOTICED),
            ms(self.longest),
            ms(self.lost),
        )
    }
}

impl Rest {
    /// What the time that the machine took is made up for: the period in which Linux grants a control group its share of a
    /// processor, where nothing else is said (`cpu.max`).
    const PERIOD: Duration = Duration::from_millis(100);
    /// A standstill that is told: the timer of the system is not as late as that.
    const NOTICED: Duration = Duration::from_millis(2);

    fn new(effort: Duration, now: Time) -> Rest {
        Rest {
            effort,
            counted: 0,
            datagrams: 0,
            until: now,
            behind: Duration::ZERO,
            stood: Stood::default(),
        }
    }

    /// A datagram that came at `arrived` is read.
    fn reads(&mut self, arrived: Time, now: Time) {
        let due = self.until.max(arrived);
        let behind = now.since(due);
        if behind > Self::NOTICED && self.behind <= Self::NOTICED {
            self.stood.times += 1;
        }
        self.stood.longest = self.stood.longest.max(behind);
        let lost = behind.saturating_sub(Self::PERIOD);
        self.stood.lost += lost;
        self.behind = behind - lost;
        self.until = due + lost + self.effort;
        self.counted += 1;
    }

    /// When the work of so many datagrams in all is done; what was sent in the turn that began to work at `began` is among them.
    fn done(&mut self, datagrams: u64, began: Time) -> Time {
        let new = datagrams.saturating_sub(self.datagrams);
        self.datagrams = datagrams;
        if self.counted == 0 {
            // What nothing was read for begins now.
            self.until = self.until.max(began);
        }
        let rest = new.saturating_sub(core::mem::take(&mut self.counted));
        let effort = self.effort;
        self.until += effort.saturating_mul(u32::try_from(rest).unwrap_or(u32::MAX));
        self.until
    }

    /// Waits for that.
    fn take(&mut self, datagrams: u64, began: Time, clock: Clock) {
        let rest = self.done(datagrams, began).since(clock.now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}

/// The border, and what it may not use of a processor: when a datagram came decides when its work begins.
struct Slowed<'b> {
    border: &'b mut Border,
    rest: Option<&'b mut Rest>,
}

impl Engine for Slowed<'_> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        if let (Some(rest), Input::Datagram(datagram)) = (&mut self.rest, &input) {
            rest.reads(datagram.arrived, now);
        }
        self.border.handle(input, now);
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        self.border.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        self.border.next_deadline()
    }
}

impl Control for Slowed<'_> {
    type Command = <Border as Control>::Command;
    type Report = <Border as Control>::Report;

    fn next_command(&mut self) -> Option<Self::Command> {
        self.border.next_command()
    }

    fn report(&mut self, report: Self::Report, now: Time) {
        self.border.report(report, now);
    }
}

impl Processor {
    /// Where not all of it may be used.
    fn rest(self, clock: Clock) -> Option<Rest> {
        (self.percent > 0.0).then(|| Rest::new(DATAGRAM.mul_f64(100.0 / self.percent), clock.now()))
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

    /// Ends it; gives what it dropped, and how it was kept from running, in words.
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
            .filter(|(reason, _)| !USUAL.contains(reason))
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let mut remarks = Vec::new();
        if !drops.is_empty() {
            remarks.push(format!("border dropped: {}", drops.join(", ")));
        }
        remarks.extend(state.stood.map(|stood| stood.told()));
        Ok(remarks)
    }
}

/// Claims the media ports, so that another Hornwork leaves them alone.
fn claim(config: &Config) -> Result<PortClaims, String> {
    let ranges = config.media_ranges.iter().map(|range| PortRange {
        address: range.address,
        first: range.first,
        last: range.last,
    });
    let ranges: Vec<PortRange> = ranges.collect();
    let claimant = Claimant::new().map_err(|error| error.to_string())?;
    match claimant.claim(&ranges) {
        // Its ports are free, as was looked before.
        Err(ClaimError::Unsupported(_)) => Ok(PortClaims::default()),
        claimed => claimed.map_err(|error| error.to_string()),
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
        burst: config.sip.burst_bytes,
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
    let _claimed = claim(&config)?;
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
        let mut slowed = Slowed {
            border: &mut border,
            rest: rest.as_mut(),
        };
        driver
            .turn(&mut slowed, LOOK)
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
                    let _ = give.send(state(&border, &driver, rest.as_ref()));
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

fn state(border: &Border, driver: &Driver<Forwarder>, rest: Option<&Rest>) -> BorderState {
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
        stood: rest.map(|rest| rest.stood),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Duration = Duration::from_micros(100);

    fn us(number: u64) -> Time {
        Time::from_secs(1) + Duration::from_micros(number)
    }

    fn rest() -> Rest {
        Rest::new(EFFORT, us(0))
    }

    /// One datagram each millisecond, in and out: the work of each begins when it comes.
    #[test]
    fn what_there_was_no_work_for_is_gone() {
        let mut rest = rest();
        for number in 1..=50 {
            let came = us(number * 1_000);
            rest.reads(came, came);
            let done = rest.done(number * 2, came);
            assert_eq!(done, came + EFFORT * 2);
        }
        assert_eq!(rest.stood.times, 0);
        // Afterwards a heap takes as long as it has to.
        for _ in 0..100 {
            rest.reads(us(900_000), us(900_000));
        }
        assert_eq!(rest.done(200, us(900_000)), us(900_000) + EFFORT * 100);
    }

    /// The thread reads nothing for 40 ms, in which 400 datagrams come: their work would have been done meanwhile.
    #[test]
    fn a_standstill_is_made_up_for() {
        let mut rest = rest();
        for number in 0..400 {
            rest.reads(us(number * 100), us(40_000));
        }
        assert_eq!(rest.done(400, us(40_000)), us(40_000));
        let stood = rest.stood;
        assert_eq!(stood.longest, Duration::from_millis(40));
        assert_eq!(stood.times, 1);
        assert_eq!(stood.lost, Duration::ZERO);
        let told = stood.told();
        assert!(
            told.contains("1 times it was behind by more than 2 ms, at most by 40.0 ms"),
            "{told}"
        );
    }

    /// Of three times a period two are lost.
    #[test]
    fn a_long_standstill_is_lost_capacity() {
        let mut rest = rest();
        let late = us(300_000);
        for number in 0..3_000 {
            rest.reads(us(number * 100), late);
        }
        let lost = Duration::from_millis(200);
        assert_eq!(rest.done(3_000, late), late + lost);
        assert_eq!(rest.stood.lost, lost);
        assert_eq!(rest.stood.longest, Duration::from_millis(300));
    }

    /// What timers send was not waited for by anybody: its work begins now, and delays what comes after it.
    #[test]
    fn what_nothing_was_read_for_takes_its_time_too() {
        let mut rest = rest();
        assert_eq!(rest.done(3, us(5_000)), us(5_000) + EFFORT * 3);
        rest.reads(us(5_100), us(5_100));
        assert_eq!(rest.done(4, us(5_100)), us(5_000) + EFFORT * 4);
        assert_eq!(rest.stood.times, 0);
    }
}
