//! Runs a Hornwork border on a thread of its own, apart from the generators, so that its CPU time is counted
//! separately.

use super::{DATAGRAM_COST, Layout};
use crate::error::LabError;
use border::admission::{MediaOffload, MediaPath};
use border::border::{Border, BorderCensus, BorderCounters};
use config::{Config, MediaSocketMode};
use engine::{Control, Deadline, Engine, Entropy, Event, EventKind, HashKey, Input, Output, Time};
use media::{Forwarder, ForwarderLimits};
use net::tls::Security;
use net::{
    ClaimError, Claimant, Clock, Driver, DriverConfig, KernelRelay, MediaSockets, PortClaims,
    PortRange,
};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Drops that occur in every good run: retransmissions, and the ACK of a stateless challenge (RFC 3261 section
/// 26.3.2.4).
pub(super) const EXPECTED_DROPS: [&str; 2] = ["sip_retransmission", "sip_refused_ack"];

/// Longest time between two polls of the request channel.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait at the stop for the end of the calls that it cuts off.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the sockets to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the border.
#[derive(Clone, Debug)]
pub struct BorderState {
    /// Objects in its tables.
    pub census: BorderCensus,
    /// Its counters.
    pub counters: BorderCounters,
    /// CPU time of its thread, seconds.
    pub cpu_seconds: f64,
    /// Time in which its thread was ready to run and had no processor, seconds; `None` if unknown.
    pub waited_seconds: Option<f64>,
    /// Drops of the border, its forwarder (by verdict) and its driver, by name.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets that the kernel relay forwarded in ended calls; `None` without it.
    pub kernel_relayed: Option<u64>,
    /// Times without CPU, if the border is limited to a share of a processor.
    starvation: Option<Starvation>,
}

enum BorderRequest {
    State(Sender<BorderState>),
    Subscribe(Sender<Event>),
    Stop,
}

/// Limits of the CPU use of a border.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuLimits {
    /// CPU to which its thread is pinned.
    pub cpu: Option<usize>,
    /// Share of it, percent; 0: all.
    pub percent: f64,
    /// Priority under SCHED_FIFO; 0: none.
    pub realtime: u8,
}

/// Datagrams per driver turn of a throttled thread, which then sleeps for the cost of these datagrams.
const DATAGRAMS_PER_TURN: usize = 4;

/// Throttles the thread to a share of a processor: each datagram, in or out, has a fixed cost as in simulation,
/// independent of the speed of the build.
///
/// The work on a datagram begins when it arrives, or when that on the earlier ones is complete. A thread that was not
/// scheduled is behind and may catch up by at most [`CpuThrottle::MAX_BACKLOG`], as a process in a control group with a
/// limit does. Idle time is not credited.
#[derive(Debug)]
struct CpuThrottle {
    /// Cost of a datagram.
    cost: Duration,
    /// Received datagrams whose start of work is already accounted.
    unaccounted: u64,
    /// Datagrams, in or out, that were accounted so far.
    datagrams: u64,
    /// End of the work on these.
    until: Time,
    /// Backlog of the work when the last datagram was read.
    behind: Duration,
    starvation: Starvation,
}

/// Periods in which a throttled thread was not scheduled.
#[derive(Clone, Copy, Debug, Default)]
struct Starvation {
    /// Number of times that the work fell behind by more than [`CpuThrottle::REPORTED_BACKLOG`].
    count: u64,
    /// Largest backlog.
    longest_backlog: Duration,
    /// Time that was not caught up.
    lost: Duration,
}

impl Starvation {
    fn description(self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "the border's thread did not get its share of a processor: {} times it was behind by more than {:.0} ms, at most \
             by {:.1} ms; it caught up except for {:.1} ms, which are lost capacity",
            self.count,
            ms(CpuThrottle::REPORTED_BACKLOG),
            ms(self.longest_backlog),
            ms(self.lost),
        )
    }
}

impl CpuThrottle {
    /// Longest backlog that is caught up: the default period of the CPU limit of a Linux control group (`cpu.max`).
    const MAX_BACKLOG: Duration = Duration::from_millis(100);
    /// Shortest backlog that is reported; the timer of the system is more exact than this.
    const REPORTED_BACKLOG: Duration = Duration::from_millis(2);

    fn new(cost: Duration, now: Time) -> CpuThrottle {
        CpuThrottle {
            cost,
            unaccounted: 0,
            datagrams: 0,
            until: now,
            behind: Duration::ZERO,
            starvation: Starvation::default(),
        }
    }

    /// Accounts a datagram that arrived at `arrived` and is read at `now`.
    fn account_received(&mut self, arrived: Time, now: Time) {
        let due = self.until.max(arrived);
        let behind = now.since(due);
        if behind > Self::REPORTED_BACKLOG && self.behind <= Self::REPORTED_BACKLOG {
            self.starvation.count += 1;
        }
        self.starvation.longest_backlog = self.starvation.longest_backlog.max(behind);
        let lost = behind.saturating_sub(Self::MAX_BACKLOG);
        self.starvation.lost += lost;
        self.behind = behind - lost;
        self.until = due + lost + self.cost;
        self.unaccounted += 1;
    }

    /// Accounts all `datagrams` up to now, including those sent in the turn whose work began at `began`; returns the
    /// end of the work.
    fn end_of_work(&mut self, datagrams: u64, began: Time) -> Time {
        let new = datagrams.saturating_sub(self.datagrams);
        self.datagrams = datagrams;
        if self.unaccounted == 0 {
            // Work without a received datagram, such as that of timers, begins now.
            self.until = self.until.max(began);
        }
        let unread = new.saturating_sub(core::mem::take(&mut self.unaccounted));
        let cost = self.cost;
        self.until += cost.saturating_mul(u32::try_from(unread).unwrap_or(u32::MAX));
        self.until
    }

    /// Sleeps until the end of the work.
    fn wait(&mut self, datagrams: u64, began: Time, clock: Clock) {
        let wait = self.end_of_work(datagrams, began).since(clock.now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }
}

/// A border with its throttle, which needs the arrival time of each datagram.
struct ThrottledBorder<'b> {
    border: &'b mut Border,
    throttle: Option<&'b mut CpuThrottle>,
}

impl Engine for ThrottledBorder<'_> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        if let (Some(throttle), Input::Datagram(datagram)) = (&mut self.throttle, &input) {
            throttle.account_received(datagram.arrived, now);
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

impl Control for ThrottledBorder<'_> {
    type Command = <Border as Control>::Command;
    type Report = <Border as Control>::Report;

    fn next_command(&mut self) -> Option<Self::Command> {
        self.border.next_command()
    }

    fn report(&mut self, report: Self::Report, now: Time) {
        self.border.report(report, now);
    }
}

impl CpuLimits {
    /// The throttle; `None` without a limit.
    fn throttle(self, clock: Clock) -> Option<CpuThrottle> {
        (self.percent > 0.0)
            .then(|| CpuThrottle::new(DATAGRAM_COST.mul_f64(100.0 / self.percent), clock.now()))
    }
}

/// A running border.
#[derive(Debug)]
pub struct BorderThread {
    requests: Sender<BorderRequest>,
    thread: Option<JoinHandle<Result<(), String>>>,
    access: SocketAddr,
    core: SocketAddr,
    streams: Option<SocketAddr>,
}

fn cannot(why: impl std::fmt::Display) -> LabError {
    LabError::cannot_run(
        format!("the border: {why}"),
        "free its ports, or raise the limit of open files (ulimit -n)",
    )
}

impl BorderThread {
    /// Starts a border and waits until it listens.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(
        layout: &Layout,
        entropy: Entropy,
        clock: Clock,
        processor: CpuLimits,
    ) -> Result<BorderThread, LabError> {
        let config = layout.config()?;
        let setup = BorderSetup {
            listeners: layout.listeners(),
            security: layout.security()?,
            kernel_relay: layout.kernel_relay,
            processor,
        };
        let (requests, inbox) = mpsc::channel();
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("border".to_owned())
            .spawn(move || serve(config, setup, entropy, clock, (&inbox, &ready)))
            .map_err(cannot)?;
        let mut border = BorderThread {
            requests,
            thread: Some(thread),
            access: layout.access(),
            core: layout.core(),
            streams: layout.streams[0].map(|(_, address)| address),
        };
        match wait.recv_timeout(OPEN_TIMEOUT) {
            Ok(()) => Ok(border),
            Err(_) => {
                let why = border.stop().err();
                Err(why.unwrap_or_else(|| cannot("its sockets did not open in time")))
            }
        }
    }

    /// Address for callers.
    pub fn address(&self) -> SocketAddr {
        self.access
    }

    /// Address for callers over TLS or WebSocket, if configured.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.streams
    }

    /// Address for the called side.
    pub fn core(&self) -> SocketAddr {
        self.core
    }

    /// The state of the border.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn state(&self) -> Result<BorderState, LabError> {
        let (reply, receiver) = mpsc::channel();
        let sent = self.requests.send(BorderRequest::State(reply)).is_ok();
        let state = if sent { receiver.recv().ok() } else { None };
        state.ok_or_else(|| cannot("it has stopped"))
    }

    /// Subscribes to the events from now on.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn events(&self) -> Result<Receiver<Event>, LabError> {
        let (reply, receiver) = mpsc::channel();
        match self.requests.send(BorderRequest::Subscribe(reply)) {
            Ok(()) => Ok(receiver),
            Err(_) => Err(cannot("it has stopped")),
        }
    }

    fn stop(&mut self) -> Result<(), LabError> {
        // If the thread has ended by itself the send fails, and joining returns the reason.
        let _ = self.requests.send(BorderRequest::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map_err(cannot),
            Some(Err(_)) => Err(cannot("it panicked")),
            None => Ok(()),
        }
    }

    /// Stops the border; returns remarks about its drops and times without CPU.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(mut self) -> Result<Vec<String>, LabError> {
        let state = self.state();
        self.stop()?;
        let state = state?;
        let drops: Vec<String> = state
            .drops
            .iter()
            .filter(|(reason, _)| !EXPECTED_DROPS.contains(reason))
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let mut remarks = Vec::new();
        if !drops.is_empty() {
            remarks.push(format!("border dropped: {}", drops.join(", ")));
        }
        remarks.extend(state.starvation.map(|starvation| starvation.description()));
        Ok(remarks)
    }
}

/// Claims the media ports, so that another Hornwork does not use them.
fn claim(config: &Config) -> Result<PortClaims, String> {
    let ranges = config.media_ranges.iter().map(|range| PortRange {
        address: range.address,
        first: range.first,
        last: range.last,
    });
    let ranges: Vec<PortRange> = ranges.collect();
    let claimant = Claimant::new().map_err(|error| error.to_string())?;
    match claimant.claim(&ranges) {
        // The ports are free, as was checked before.
        Err(ClaimError::Unsupported(_)) => Ok(PortClaims::default()),
        claimed => claimed.map_err(|error| error.to_string()),
    }
}

/// Settings of a border beside its configuration.
struct BorderSetup {
    /// Number of its signalling sockets.
    listeners: usize,
    security: Option<Security>,
    kernel_relay: bool,
    processor: CpuLimits,
}

/// Loads the kernel relay for all media addresses.
fn kernel_relay(config: &Config) -> Result<(KernelRelay, MediaOffload), String> {
    let addresses = config.media_addresses();
    let cannot = |why: String| format!("cannot start the kernel relay: {why}");
    let relay = KernelRelay::start(&addresses, config.media.dscp)
        .map_err(|error| cannot(error.to_string()))?;
    match relay.state() {
        (true, why) if why.is_empty() => {
            let offload = MediaOffload {
                path: MediaPath::Kernel,
                addresses: relay.served_addresses().into(),
            };
            Ok((relay, offload))
        }
        (_, why) => Err(cannot(why)),
    }
}

fn serve(
    config: Config,
    setup: BorderSetup,
    mut entropy: Entropy,
    clock: Clock,
    (inbox, ready): (&Receiver<BorderRequest>, &Sender<()>),
) -> Result<(), String> {
    let BorderSetup {
        listeners,
        security,
        processor,
        ..
    } = setup;
    let (relay, offload) = match setup.kernel_relay {
        true => kernel_relay(&config).map(|(relay, offload)| (Some(relay), Some(offload)))?,
        false => (None, None),
    };
    let relays_in_kernel = relay.is_some();
    let driver_config = DriverConfig {
        relay,
        pin: processor.cpu,
        realtime: Some(u32::from(processor.realtime)).filter(|priority| *priority > 0),
        report_unreachable: true,
        connections: config.limits.connections,
        connections_per_source: config.limits.connections_per_source,
        // As in production.
        media_sockets: match config.media.sockets {
            MediaSocketMode::Auto => MediaSockets::Auto,
            MediaSocketMode::Shared => MediaSockets::One,
            MediaSocketMode::PerPort => MediaSockets::PerPort,
        },
        media_addresses: u8::try_from(config.media_addresses().len()).unwrap_or(u8::MAX),
        signalling_batching_delay: config.sip.batching_delay,
        pacing_burst: config.sip.burst_bytes,
        media_batching_delay: config.media.batching_delay,
        signalling_timestamps: config.sip.queueing_delay.is_some(),
        gso_order: config
            .sip
            .gso
            .then_some(wire::sip::call_number as fn(&[u8]) -> u32),
        datagram_budget: match processor.percent > 0.0 {
            true => DATAGRAMS_PER_TURN,
            false => DriverConfig::default().datagram_budget,
        },
        ..DriverConfig::default()
    };
    let _claimed = claim(&config)?;
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::new(&mut entropy));
    let mut border = Border::new(config, entropy);
    border.set_open_files(net::open_files().0);
    if let Some(offload) = offload {
        border.set_media_offload(offload);
    }
    let mut driver =
        Driver::new(driver_config, clock, forwarder).map_err(|error| error.to_string())?;
    border.set_shared_ports(driver.has_shared_ports());
    if let Some(security) = security {
        driver.set_security(security);
    }
    let mut opened = 0;
    let mut subscriber: Option<Sender<Event>> = None;
    let mut throttle = processor.throttle(clock);
    loop {
        let worked = net::thread_cpu();
        let mut throttled = ThrottledBorder {
            border: &mut border,
            throttle: throttle.as_mut(),
        };
        driver
            .turn(&mut throttled, POLL_INTERVAL)
            .map_err(|error| error.to_string())?;
        if let Some(throttle) = &mut throttle {
            // The turn may have waited for input; the CPU time was spent after the wait.
            let worked = net::thread_cpu().saturating_sub(worked);
            let began = Time(clock.now().0.saturating_sub(worked.as_nanos() as u64));
            let counters = driver.counters();
            let datagrams = counters.datagrams_in + counters.datagrams_out;
            throttle.wait(datagrams, began, clock);
        }
        while let Some(event) = driver.next_event() {
            match &event.kind {
                EventKind::SocketOpened { .. } if opened < listeners => {
                    opened += 1;
                    if opened == listeners {
                        // As in production without a log: event texts are not built during the measurement.
                        border.set_events_wanted(false);
                        if ready.send(()).is_err() {
                            return Ok(());
                        }
                    }
                }
                EventKind::SocketFailed {
                    purpose: what,
                    address,
                    error,
                } if opened < listeners => {
                    return Err(format!("{what} {address}: {error}"));
                }
                _ => {
                    let gone = |to: &Sender<Event>| to.send(event.clone()).is_err();
                    if subscriber.as_ref().is_some_and(gone) {
                        subscriber = None;
                        border.set_events_wanted(false);
                    }
                }
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(BorderRequest::State(reply)) => {
                    // The requester may have stopped waiting.
                    let mut state = state(&border, &driver, throttle.as_ref());
                    state.kernel_relayed =
                        relays_in_kernel.then(|| driver.counters().relayed_in_kernel);
                    let _ = reply.send(state);
                }
                Ok(BorderRequest::Subscribe(reply)) => {
                    subscriber = Some(reply);
                    border.set_events_wanted(true);
                }
                Ok(BorderRequest::Stop) | Err(TryRecvError::Disconnected) => {
                    return end_calls(&mut border, &mut driver, clock);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
    }
}

/// Ends the calls that are still up properly, with a BYE to each phone.
fn end_calls(
    border: &mut Border,
    driver: &mut Driver<Forwarder>,
    clock: Clock,
) -> Result<(), String> {
    let limit = clock.now() + STOP_TIMEOUT;
    border.drain(Duration::ZERO, clock.now());
    let mut last = false;
    while !last && clock.now() < limit {
        // One more turn after the last call has ended sends its last messages.
        last = border.is_drained();
        driver
            .turn(border, if last { Duration::ZERO } else { POLL_INTERVAL })
            .map_err(|error| error.to_string())?;
        while driver.next_event().is_some() {}
    }
    Ok(())
}

fn state(
    border: &Border,
    driver: &Driver<Forwarder>,
    throttle: Option<&CpuThrottle>,
) -> BorderState {
    let mut drops = border.drops();
    drops.merge(&driver.counters().drops);
    BorderState {
        census: border.census(),
        counters: border.counters().clone(),
        cpu_seconds: net::thread_cpu().as_secs_f64(),
        waited_seconds: net::thread_cpu_wait().map(|waited| waited.as_secs_f64()),
        drops: drops
            .iter()
            .map(|(reason, count)| (reason.name(), count))
            .collect(),
        kernel_relayed: None,
        starvation: throttle.map(|throttle| throttle.starvation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Duration = Duration::from_micros(100);

    fn us(number: u64) -> Time {
        Time::from_secs(1) + Duration::from_micros(number)
    }

    fn throttle() -> CpuThrottle {
        CpuThrottle::new(COST, us(0))
    }

    /// One datagram each millisecond, in and out: the work on each begins when it arrives.
    #[test]
    fn idle_time_is_not_credited() {
        let mut throttle = throttle();
        for number in 1..=50 {
            let came = us(number * 1_000);
            throttle.account_received(came, came);
            let done = throttle.end_of_work(number * 2, came);
            assert_eq!(done, came + COST * 2);
        }
        assert_eq!(throttle.starvation.count, 0);
        // A burst afterwards takes its full time.
        for _ in 0..100 {
            throttle.account_received(us(900_000), us(900_000));
        }
        assert_eq!(
            throttle.end_of_work(200, us(900_000)),
            us(900_000) + COST * 100
        );
    }

    /// The thread reads nothing for 40 ms, in which 400 datagrams arrive: their work would have been complete by then.
    #[test]
    fn short_backlog_is_caught_up() {
        let mut throttle = throttle();
        for number in 0..400 {
            throttle.account_received(us(number * 100), us(40_000));
        }
        assert_eq!(throttle.end_of_work(400, us(40_000)), us(40_000));
        let starvation = throttle.starvation;
        assert_eq!(starvation.longest_backlog, Duration::from_millis(40));
        assert_eq!(starvation.count, 1);
        assert_eq!(starvation.lost, Duration::ZERO);
        let text = starvation.description();
        assert!(
            text.contains("1 times it was behind by more than 2 ms, at most by 40.0 ms"),
            "{text}"
        );
    }

    /// Of a backlog of three periods, two are lost.
    #[test]
    fn long_backlog_is_lost_capacity() {
        let mut throttle = throttle();
        let late = us(300_000);
        for number in 0..3_000 {
            throttle.account_received(us(number * 100), late);
        }
        let lost = Duration::from_millis(200);
        assert_eq!(throttle.end_of_work(3_000, late), late + lost);
        assert_eq!(throttle.starvation.lost, lost);
        assert_eq!(
            throttle.starvation.longest_backlog,
            Duration::from_millis(300)
        );
    }

    /// Messages sent by timers begin now, and delay the work after them.
    #[test]
    fn datagrams_sent_without_input_are_accounted() {
        let mut throttle = throttle();
        assert_eq!(throttle.end_of_work(3, us(5_000)), us(5_000) + COST * 3);
        throttle.account_received(us(5_100), us(5_100));
        assert_eq!(throttle.end_of_work(4, us(5_100)), us(5_000) + COST * 4);
        assert_eq!(throttle.starvation.count, 0);
    }
}
