//! The driver: one control plane, with its forwarder on the same thread or on its own.

mod media_batch;
mod media_clock;
mod recording;
mod stream_events;

use crate::batch::{BATCH, MAX_QUOTE, Receiver};
use crate::batching::{MediaBatcher, SignallingBatcher};
use crate::clock::Clock;
use crate::config::DriverConfig;
use crate::counters::DriverCounters;
use crate::mailbox::WorkerMailbox;
use crate::media::{FromMedia, MediaThread, Waker};
use crate::plane::{Plane, Token, arrived};
use crate::record::Recorder;
use crate::tcp::{Pending, Streams};
use crate::tls::Security;
use crate::{process, socket};
use engine::{
    Control, Datagram, Deadline, DropReason, Engine, Event, EventKind, Forward, Input, MediaPacket,
    Output, PacketVerdict, SocketId, SocketKind, Time,
};
use media_clock::MediaClock;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stream_events::StreamEvents;

/// Longest wait without a deadline.
const MAX_WAIT: Duration = Duration::from_secs(3_600);
/// Timeouts passed to an engine in one turn: bounds an engine that always has another deadline that is due.
const TIMEOUTS_PER_TURN: usize = 64;
/// Time of the timeouts of one turn, after which their output is sent and arrived packets are read.
const TIMEOUT_SPAN: Duration = Duration::from_micros(100);
/// Queued results (opened, connected, closed) passed to the engine in one turn.
const RESULTS_PER_TURN: usize = 16_384;

/// Delivery errors read from one socket in one turn.
const ERRORS_PER_TURN: usize = 64;

/// Result of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Inputs passed to control, timeouts included. Packets that the forwarder processed are not counted.
    pub inputs: usize,
    /// Sockets that were ready.
    pub ready: usize,
}

/// The forwarder of a driver without one: media datagrams are passed to the engine.
#[derive(Debug)]
pub enum NoForward {}

impl Forward for NoForward {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, _packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        match *self {}
    }
    fn timeout(&mut self, _now: Time) {
        match *self {}
    }
    fn next_report(&mut self) -> Option<Infallible> {
        match *self {}
    }
    fn next_deadline(&self) -> Option<Deadline> {
        match *self {}
    }
}

/// A borrowed plain engine as a control plane without commands.
#[derive(Debug)]
pub struct Plain<'e, E>(pub &'e mut E);

impl<E: Engine> Engine for Plain<'_, E> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.0.handle(input, now);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.0.next_output()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.0.next_deadline()
    }
    fn media_deadline(&self) -> Option<Time> {
        self.0.media_deadline()
    }
    fn send_media(&mut self, now: Time) {
        self.0.send_media(now);
    }
    fn flushed(&mut self, now: Time) {
        self.0.flushed(now);
    }
}

impl<E: Engine> Control for Plain<'_, E> {
    type Command = Infallible;
    type Report = Infallible;
    fn next_command(&mut self) -> Option<Infallible> {
        None
    }
    fn report(&mut self, report: Infallible, _now: Time) {
        match report {}
    }
}

enum ForwarderHost<F: Forward> {
    /// No forwarder: the engine receives media.
    None,
    SameThread(F),
    OwnThread(MediaThread<F>),
}

/// Runs one control plane over the kernel's sockets. Each connection number gets exactly one [`Input::Closed`],
/// whichever side ended the connection; bytes passed to it before are still sent if the peer accepts them.
pub struct Driver<F: Forward = NoForward> {
    config: DriverConfig,
    clock: Clock,
    plane: Plane,
    streams: Streams,
    media: ForwarderHost<F>,
    signalling_buffers: Option<Receiver>,
    media_buffers: Option<Receiver>,
    stream_buffer: Vec<u8>,
    stream_events: StreamEvents,
    events: VecDeque<Event>,
    waker: Waker,
    /// Receives messages that other workers handed off to this one.
    mailbox: Option<WorkerMailbox>,
    recorder: Option<Recorder>,
    /// Recorders that were replaced, while their threads write the queued data.
    ended_recorders: Vec<Recorder>,
    thread_configured: bool,
    inputs: usize,
    /// This turn received signalling.
    received_signalling: bool,
    /// Whether the last turn left signalling unread because its budget was used up.
    has_unread: bool,
    signalling_batcher: SignallingBatcher,
    media_batcher: MediaBatcher,
    /// Media clock of an engine without a forwarder.
    media_clock: MediaClock,
}

impl<F: Forward> std::fmt::Debug for Driver<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Driver<NoForward> {
    /// A driver for plain engines, see [`Driver::turn_engine`].
    ///
    /// # Errors
    /// The system gives no epoll set, eventfd or randomness. `media_thread` is refused: there is no forwarder.
    pub fn plain(config: DriverConfig, clock: Clock) -> io::Result<Driver<NoForward>> {
        if config.media_thread {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a media thread needs a forwarder",
            ));
        }
        Driver::build(config, clock, ForwarderHost::None, Waker::new()?)
    }

    /// A [`Driver::turn`] of a plain engine.
    ///
    /// # Errors
    /// As [`Driver::turn`].
    pub fn turn_engine<E: Engine>(
        &mut self,
        engine: &mut E,
        max_wait: Duration,
    ) -> io::Result<Turn> {
        self.turn(&mut Plain(engine), max_wait)
    }
}

/// Runs a plain engine until `stop` is set (checked at least every 100 ms, and after each turn). Its events are
/// passed to `events`.
///
/// # Errors
/// As [`Driver::turn`].
pub fn run_engine<E: Engine>(
    engine: &mut E,
    config: DriverConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut events: impl FnMut(Event),
) -> io::Result<DriverCounters> {
    let mut driver = Driver::plain(config, clock)?;
    while !stop.load(Ordering::Acquire) {
        driver.turn_engine(engine, Duration::from_millis(100))?;
        while let Some(event) = driver.next_event() {
            events(event);
        }
    }
    Ok(driver.counters())
}

impl<F: Forward + Send + 'static> Driver<F> {
    /// A driver for a control plane with its forwarder, which gets a thread of its own if `config.media_thread` is
    /// set.
    ///
    /// # Errors
    /// The system gives no epoll set, eventfd, thread or randomness.
    pub fn new(config: DriverConfig, clock: Clock, forwarder: F) -> io::Result<Driver<F>> {
        let waker = Waker::new()?;
        let media = if config.media_thread {
            ForwarderHost::OwnThread(MediaThread::start(
                forwarder,
                &config,
                clock,
                waker.clone(),
            )?)
        } else {
            ForwarderHost::SameThread(forwarder)
        };
        Driver::build(config, clock, media, waker)
    }
}

impl<F: Forward> Driver<F> {
    fn build(
        config: DriverConfig,
        clock: Clock,
        mut media: ForwarderHost<F>,
        waker: Waker,
    ) -> io::Result<Driver<F>> {
        let forwards = matches!(media, ForwarderHost::SameThread(_));
        let mut plane = Plane::new(
            config.receive_timestamps,
            forwards || !config.signalling_batching_delay.is_zero(),
        )?;
        plane.set_gso_order(config.gso_order);
        plane.set_pacing(config.pacing_burst);
        plane.report_refused_sends(config.report_unreachable);
        waker.watch(&plane)?;
        let path = match &mut media {
            ForwarderHost::SameThread(forwarder) => {
                Some(media_batch::start(&mut plane, &config, clock, forwarder)?)
            }
            ForwarderHost::None => Some(media_batch::start_plain(&mut plane, &config)?),
            ForwarderHost::OwnThread(_) => {
                media_batch::check_other_thread(&config).map(|()| None)?
            }
        };
        let streams = Streams::new(&config, crate::entropy()?)?;
        Ok(Driver {
            signalling_buffers: Some(Receiver::new(
                config.signalling_datagram,
                config.receive_timestamps || config.signalling_timestamps,
            )),
            media_buffers: Some(Receiver::new(
                config.media_datagram,
                config.receive_timestamps || plane.has_shared_ports(),
            )),
            stream_buffer: vec![0; stream_events::read_size(forwards)],
            stream_events: StreamEvents::default(),
            events: path
                .flatten()
                .map(|note| Event::new(clock.now(), note))
                .into_iter()
                .collect(),
            thread_configured: false,
            inputs: 0,
            received_signalling: false,
            has_unread: false,
            signalling_batcher: SignallingBatcher::new(config.signalling_batching_delay),
            media_batcher: MediaBatcher::new(config.media_batching_delay),
            media_clock: MediaClock::default(),
            config,
            clock,
            plane,
            streams,
            media,
            waker,
            mailbox: None,
            recorder: None,
            ended_recorders: Vec::new(),
        })
    }

    /// Attaches the mailbox of a worker of a pool; to be called before the first turn.
    pub fn attach_mailbox(&mut self, mailbox: WorkerMailbox) {
        self.streams.set_worker(&mailbox);
        mailbox.set_owner(self.waker.clone());
        self.mailbox = Some(mailbox);
    }

    /// The clock of this run.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Ends the wait of this driver from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The oldest unread event. Read all of them after each turn.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counters since the start, those of the media thread included.
    pub fn counters(&self) -> DriverCounters {
        let mut total = DriverCounters::default();
        self.plane.shared.add_to(&mut total);
        if let ForwarderHost::OwnThread(thread) = &self.media {
            thread.shared().add_to(&mut total);
        }
        total
    }

    /// Replaces the settings of TLS and WebSocket for listeners and new connections; established ones keep theirs.
    pub fn set_security(&mut self, security: Security) {
        self.streams.security = security;
    }

    /// Whether all media ports of the driver's own thread share a socket, where [`crate::MediaSockets`] permits both.
    pub fn has_shared_ports(&self) -> bool {
        self.plane.has_shared_ports()
    }

    /// Number of stream connections, including those that are being closed.
    pub fn connections(&self) -> usize {
        self.streams.len()
    }

    /// Datagrams that the kernel dropped at the open sockets. One system call per socket.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn kernel_drops(&self) -> io::Result<u64> {
        self.plane.kernel_drops()
    }

    /// With AF_XDP: for each queue the name of its interface, its number and the datagrams received through it.
    pub fn af_xdp_queues(&self) -> Vec<(&str, u32, u64)> {
        self.plane.af_xdp_queues()
    }

    /// CPU time of the media thread, if there is one.
    pub fn media_cpu(&self) -> Option<Duration> {
        match &self.media {
            ForwarderHost::OwnThread(thread) => thread.cpu(),
            _ => None,
        }
    }

    /// The forwarder, if it runs on this thread.
    pub fn forwarder(&mut self) -> Option<&mut F> {
        match &mut self.media {
            ForwarderHost::SameThread(forwarder) => Some(forwarder),
            _ => None,
        }
    }

    /// Runs one turn: drains the engine's outputs and sends them, waits for events (at most `max_wait`, and not
    /// beyond a deadline), processes all of them and sends the results. Outputs of calls that the program made to the
    /// engine between two turns are processed first.
    ///
    /// # Errors
    /// The driver cannot continue: epoll fails, the media thread has ended, a configured pinning or priority is
    /// refused. Errors of single sockets and peers are not returned.
    pub fn turn<C>(&mut self, control: &mut C, max_wait: Duration) -> io::Result<Turn>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.configure_thread()?;
        self.inputs = 0;
        self.received_signalling = false;
        let now = self.clock.now();
        self.pass_results(control, now)?;
        self.flush(control)?;
        let limit = self.limit(control, max_wait)?;
        let ready = self.wait(limit)?;
        self.has_unread = false;
        self.waker.awake();
        let mut now = self.clock.now();
        let (start, before) = (now, self.inputs);
        self.plane.set_time(now);
        self.media_due(control, now)?;
        self.drain_mailbox(control, now)?;
        if matches!(self.media, ForwarderHost::SameThread(_)) {
            now = self.receive_media(control, ready, now)?;
        }
        for i in 0..ready {
            let Some((token, flags)) = self.plane.event(i) else {
                continue;
            };
            now = self.process_event(control, token, flags, now)?;
        }
        now = self.process_streams(control, now)?;
        self.media_reports(control, now)?;
        self.timeouts(control, now)?;
        self.pass_results(control, now)?;
        self.report_recordings(now);
        self.flush(control)?;
        self.end_media_turn(start);
        if !self.config.signalling_batching_delay.is_zero() {
            self.signalling_batcher.end_turn(
                start,
                self.clock.now(),
                self.inputs > before,
                self.received_signalling,
            );
        }
        Ok(Turn {
            inputs: self.inputs,
            ready,
        })
    }

    /// Waits, delayed by the batching delays that the load justifies. Returns the number of events.
    fn wait(&mut self, mut limit: Duration) -> io::Result<usize> {
        let delay = self.media_batcher.delay(self.clock.now()).min(limit);
        if !delay.is_zero() {
            let delay_start = self.clock.now();
            process::sleep(delay);
            limit = limit.saturating_sub(self.clock.now().since(delay_start));
        }
        // No batching delay if unread signalling is already queued.
        if !self.config.signalling_batching_delay.is_zero() && !limit.is_zero() && !self.has_unread
        {
            let delay_start = self.clock.now();
            let delay = self.signalling_batcher.delay(delay_start).min(limit);
            if !delay.is_zero() {
                let ready = self.plane.wait_prompt(delay)?;
                if ready > 0 || delay == limit {
                    return Ok(ready);
                }
                limit = limit.saturating_sub(self.clock.now().since(delay_start));
            }
        }
        self.plane.wait(limit)
    }

    fn configure_thread(&mut self) -> io::Result<()> {
        if !self.thread_configured {
            process::tight_timers()?;
            // Where the kernel refuses, wake-ups wait for the slices of others, as those of most programs do.
            let _ = process::short_slice();
            if let Some(cpu) = self.config.pin {
                process::pin(cpu)?;
            }
            if let Some(priority) = self.config.realtime {
                process::realtime(priority)?;
            }
            self.thread_configured = true;
        }
        Ok(())
    }

    /// Longest wait: until the next deadline of any part, zero if work is queued.
    fn limit<C: Control>(&mut self, control: &C, max_wait: Duration) -> io::Result<Duration> {
        let mut next = control.next_deadline().map(|deadline| deadline.at);
        let mut earlier = |at: Option<Time>| {
            next = match (next, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        };
        earlier(control.media_deadline());
        earlier(self.streams.next_deadline());
        earlier(self.plane.next_deadline());
        if let ForwarderHost::SameThread(forwarder) = &self.media {
            earlier(forwarder.next_deadline().map(|deadline| deadline.at));
        }
        if !self.streams.pending.is_empty()
            || !self.stream_events.is_empty()
            || self.plane.has_refused_sends()
        {
            return Ok(Duration::ZERO);
        }
        let now = self.clock.now();
        let mut limit = next.map_or(MAX_WAIT, |at| at.since(now)).min(max_wait);
        if next.is_some() && limit < max_wait {
            limit = limit.saturating_sub(self.config.spin);
        }
        if let ForwarderHost::OwnThread(thread) = &mut self.media {
            if thread.is_behind() {
                limit = limit.min(Duration::from_millis(1));
            }
            self.waker.about_to_sleep();
            if thread.poll()? {
                limit = Duration::ZERO;
            }
        }
        if let Some(mailbox) = &self.mailbox {
            self.waker.about_to_sleep();
            // A message that arrived before the sleep flag was set woke nothing.
            if mailbox.has_messages() {
                limit = Duration::ZERO;
            }
        }
        Ok(limit)
    }

    fn flush<C: Engine>(&mut self, control: &mut C) -> io::Result<()> {
        self.plane.set_time(self.clock.now());
        self.plane.flush();
        self.report_flush(control);
        self.streams.flush(&self.plane);
        if let ForwarderHost::OwnThread(thread) = &mut self.media {
            thread.flush()?;
        }
        if let Some(mailbox) = &mut self.mailbox {
            let lost = mailbox.deliver();
            self.plane
                .shared
                .dropped(DropReason::SipHandoffFailed, lost);
        }
        Ok(())
    }

    /// Passes handoff messages of other workers to control.
    fn drain_mailbox<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Some(mailbox) = self
            .mailbox
            .as_mut()
            .filter(|mailbox| mailbox.has_messages())
        else {
            return Ok(());
        };
        let bundle = mailbox.take();
        self.received_signalling = true;
        for message in bundle.messages() {
            self.input(control, Input::Handoff(message), now)?;
        }
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.recycle(bundle);
        }
        Ok(())
    }

    fn process_event<C>(
        &mut self,
        control: &mut C,
        token: Token,
        flags: EventFlags,
        now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        match token {
            Token::Wake => self.waker.clear(),
            Token::SharedPort(number) if matches!(self.media, ForwarderHost::None) => {
                return self.receive_shared_port(control, number, now);
            }
            // Already drained by the plane.
            Token::Prompt | Token::SharedPort(_) | Token::AfXdp(_) | Token::Tunnel(_) => {}
            Token::Udp(index) => {
                if self.takes_media(index) {
                    return Ok(now);
                }
                if flags.intersects(EventFlags::ERR) {
                    self.undelivered(control, index, now)?;
                }
                return self.receive(control, index, now);
            }
            Token::Listener(index) => {
                self.received_signalling = true;
                self.streams.accept(&self.plane, index, &self.config, now);
                self.pass_results(control, now)?;
            }
            Token::Stream { index, generation } => self.queue_stream(index, generation, flags),
        }
        Ok(now)
    }

    /// Reports the delivery errors of a socket to the engine.
    fn undelivered<C>(&mut self, control: &mut C, index: u32, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let mut bytes = [0; MAX_QUOTE];
        for _ in 0..ERRORS_PER_TURN {
            let Some((socket, report)) = self.plane.undelivered(index, &mut bytes) else {
                break;
            };
            if !report.fatal {
                continue;
            }
            self.plane.shared.undelivered.add(1);
            let input = Input::Unreachable {
                socket,
                destination: report.destination,
                bytes: bytes.get(..report.length).unwrap_or_default(),
            };
            self.input(control, input, now)?;
        }
        Ok(())
    }

    /// Reports the datagrams that the kernel refused to send, as those for which ICMP errors arrive.
    fn refused_sends<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        // The responses to these inputs may be refused as well, and wait for the next turn.
        for _ in 0..self.plane.refused_sends.len() {
            let Some((socket, refused)) = self.plane.refused_sends.pop_front() else {
                break;
            };
            self.plane.shared.undelivered.add(1);
            let input = Input::Unreachable {
                socket,
                destination: refused.destination,
                bytes: &refused.bytes,
            };
            self.input(control, input, now)?;
        }
        Ok(())
    }

    fn receive<C>(&mut self, control: &mut C, index: u32, mut now: Time) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let mut budget = self.config.datagram_budget;
        while let Some((id, media)) = self.plane.socket(index) {
            self.received_signalling |= !media;
            let buffers = if media {
                &mut self.media_buffers
            } else {
                &mut self.signalling_buffers
            };
            // Taken out while the batch is processed, because that borrows the driver.
            let Some(mut receiver) = buffers.take() else {
                break;
            };
            let most = budget.min(BATCH);
            let n = self.plane.receive(index, &mut receiver, most);
            let done = self.batch(control, &mut receiver, n, id, media, now);
            if media {
                self.media_clock.count_received(n);
                self.media_buffers = Some(receiver);
            } else {
                self.signalling_buffers = Some(receiver);
            }
            done?;
            budget = budget.saturating_sub(n);
            if n < most {
                break;
            }
            if budget == 0 {
                self.has_unread |= !media;
                break;
            }
            now = self.clock.now();
        }
        Ok(now)
    }

    fn batch<C>(
        &mut self,
        control: &mut C,
        receiver: &mut Receiver,
        n: usize,
        id: SocketId,
        media: bool,
        now: Time,
    ) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.plane.shared.datagrams_in.add(n);
        for i in 0..n {
            let bytes = self.datagram(control, receiver, i, id, media, now)?;
            self.plane.shared.bytes_in.add(bytes);
        }
        Ok(())
    }

    /// Passes one datagram of a batch to control; returns its length.
    fn datagram<C>(
        &mut self,
        control: &mut C,
        receiver: &mut Receiver,
        index: usize,
        socket: SocketId,
        media: bool,
        now: Time,
    ) -> io::Result<usize>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Some(received) = receiver.get(index) else {
            return Ok(0);
        };
        // The queueing delay is measured by the wall clock at this datagram, so that it includes its position in the
        // batch.
        let wall = received.stamp.map(|_| crate::plane::wall());
        // An engine that measures media itself needs the time of arrival: by the time of the turn it would be too
        // early, by the time that the datagrams before this one took.
        let now = match wall.is_some() && !self.has_forwarder() {
            true => self.clock.now(),
            false => now,
        };
        let length = received.length;
        if received.truncated {
            self.plane.shared.drop_one(if media {
                DropReason::MediaTooLarge
            } else {
                DropReason::SipTooLarge
            });
            return Ok(length);
        }
        let datagram = Datagram {
            socket,
            source: received.source,
            arrived: arrived(now, wall, received.stamp),
            bytes: received.bytes(),
        };
        self.input(control, Input::Datagram(datagram), now)?;
        Ok(length)
    }

    /// Passes one input and processes the resulting outputs.
    fn input<C>(&mut self, control: &mut C, input: Input<'_>, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.inputs += 1;
        control.handle(input, self.media_clock.advance(now));
        self.drain(control, now)?;
        self.media_between_inputs(control)
    }

    /// Processes outputs and commands, and passes on the reports of a forwarder on this thread.
    fn drain<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        loop {
            while let Some(output) = control.next_output() {
                self.process_output(output, now)?;
            }
            match &mut self.media {
                ForwarderHost::None => return Ok(()),
                ForwarderHost::OwnThread(thread) => {
                    while thread.has_room()
                        && let Some(command) = control.next_command()
                    {
                        thread.command(command);
                    }
                    return Ok(());
                }
                ForwarderHost::SameThread(forwarder) => {
                    while let Some(command) = control.next_command() {
                        forwarder.command(command, now);
                    }
                    self.plane.drain_forwarder(forwarder);
                    match forwarder.next_report() {
                        Some(report) => control.report(report, now),
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn process_output(&mut self, output: Output<'_>, now: Time) -> io::Result<()> {
        match output {
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => self.plane.queue(socket, destination, bytes),
            Output::Stream { connection, bytes } => {
                self.streams
                    .send(&self.plane, connection, bytes, &self.config);
            }
            Output::OpenSocket {
                socket,
                kind,
                local,
            } => self.open(socket, kind, local)?,
            Output::CloseSocket { socket } => self.close_socket(socket),
            Output::SocketFilter { socket, filter } => {
                let (dropped, done) = self.plane.set_socket_filter(socket, filter.as_ref());
                if let Err(error) = done {
                    let error = error.to_string();
                    self.push_event(Event::new(now, EventKind::SocketFilterFailed { error }));
                }
                self.streams
                    .pending
                    .push_back(Pending::FilterDrops { socket, dropped });
            }
            Output::Connect {
                connection,
                local,
                remote,
                tls,
                websocket,
            } => {
                let (addresses, protocols) = ((local, remote), (tls, websocket));
                self.streams.connect(
                    &self.plane,
                    connection,
                    addresses,
                    protocols,
                    &self.config,
                    now,
                );
            }
            Output::Close { connection } => {
                self.streams
                    .close(&self.plane, connection, &self.config, now);
            }
            Output::HandOff { worker, message } => {
                let mailbox = self.mailbox.as_mut();
                if !mailbox.is_some_and(|mailbox| mailbox.queue(worker, message)) {
                    self.plane.shared.drop_one(DropReason::SipHandoffFailed);
                }
            }
            Output::Recording { file, command } => self.record(file, command),
            Output::Event(event) => self.push_event(event),
        }
        Ok(())
    }

    fn push_event(&mut self, event: Event) {
        if self.events.len() < self.config.events {
            self.events.push_back(event);
        } else {
            self.plane.shared.events_lost.add(1);
        }
    }

    fn open(&mut self, id: SocketId, kind: SocketKind, local: SocketAddr) -> io::Result<()> {
        let mut opened = self.try_open(id, kind, local);
        if let Err(error) = &opened
            && error.kind() == io::ErrorKind::AddrInUse
            && let ForwarderHost::OwnThread(thread) = &mut self.media
            && thread.wait_for_removals(&self.clock)?
        {
            // The port belongs to a socket of this driver that the media thread has not closed yet.
            opened = self.try_open(id, kind, local);
        }
        self.streams.pending.push_back(match opened {
            Ok(local) => Pending::Opened { socket: id, local },
            Err(error) => Pending::OpenFailed {
                socket: id,
                error: error.to_string(),
            },
        });
        Ok(())
    }

    fn try_open(
        &mut self,
        id: SocketId,
        kind: SocketKind,
        local: SocketAddr,
    ) -> io::Result<SocketAddr> {
        if let Some(transport) = kind.stream_transport() {
            return self
                .streams
                .listen(&self.plane, id, transport, local, &self.config);
        }
        let shared =
            kind == SocketKind::UdpMedia && !matches!(self.media, ForwarderHost::OwnThread(_));
        if shared && let Some(local) = self.plane.open_shared_port(id, local, &self.config)? {
            return Ok(local);
        }
        if kind == SocketKind::Esp {
            let fd = Arc::new(socket::esp(local, &self.config)?);
            let local = SocketAddr::new(socket::local_address(fd.as_fd())?.ip(), 0);
            self.plane.add_socket(id, fd, false, true)?;
            if local.is_ipv4() {
                self.plane.mark_raw_ipv4(id);
            }
            return Ok(local);
        }
        let fd = Arc::new(socket::udp(local, kind, &self.config)?);
        let local = socket::local_address(fd.as_fd())?;
        let media = kind == SocketKind::UdpMedia;
        let on_media_thread = media && matches!(self.media, ForwarderHost::OwnThread(_));
        self.plane
            .add_socket(id, fd.clone(), media, !on_media_thread)?;
        if on_media_thread && let ForwarderHost::OwnThread(thread) = &mut self.media {
            thread.add(id, fd);
        }
        Ok(local)
    }

    fn close_socket(&mut self, id: SocketId) {
        match self.plane.remove_socket(id) {
            Some(true) => {
                if let ForwarderHost::OwnThread(thread) = &mut self.media {
                    thread.remove(id);
                }
            }
            Some(false) => {}
            None => {
                if !self.streams.close_listener(&self.plane, id) {
                    self.plane.shared.unknown_targets.add(1);
                }
            }
        }
    }

    /// Passes the queued results to the engine and processes the resulting outputs.
    fn pass_results<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.drain(control, now)?;
        while let Some(note) = self.streams.log_events.pop() {
            self.push_event(Event::new(now, note));
        }
        while let Some(note) = self.plane.log_events.pop() {
            self.push_event(Event::new(now, note));
        }
        self.refused_sends(control, now)?;
        for _ in 0..RESULTS_PER_TURN {
            let Some(pending) = self.streams.pending.pop_front() else {
                break;
            };
            let input = match &pending {
                &Pending::Opened { socket, local } => Input::Opened { socket, local },
                Pending::OpenFailed { socket, error } => Input::OpenFailed {
                    socket: *socket,
                    error,
                },
                &Pending::Accepted {
                    connection,
                    socket,
                    local,
                    remote,
                } => Input::Accepted {
                    connection,
                    socket,
                    local,
                    remote,
                },
                &Pending::Connected { connection, local } => Input::Connected { connection, local },
                Pending::Secured { connection, names } => Input::Secured {
                    connection: *connection,
                    names,
                },
                &Pending::Closed { connection, why } => Input::Closed {
                    connection,
                    reason: why,
                },
                &Pending::FilterDrops { socket, dropped } => Input::Shed { socket, dropped },
                &Pending::RecordingFailed { file } => Input::RecordingFailed { file },
            };
            self.input(control, input, now)?;
        }
        Ok(())
    }

    /// Passes reports and packets of the media thread to control.
    fn media_reports<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        for _ in 0..4_096 {
            let ForwarderHost::OwnThread(thread) = &mut self.media else {
                return Ok(());
            };
            match thread.take()? {
                None => return Ok(()),
                Some(FromMedia::Report(report)) => {
                    control.report(report, now);
                    self.drain(control, now)?;
                }
                Some(FromMedia::Punt(mut punted)) => {
                    let datagram = Datagram {
                        socket: punted.socket,
                        source: punted.source,
                        arrived: punted.arrived,
                        bytes: &mut punted.bytes,
                    };
                    self.input(control, Input::Datagram(datagram), now)?;
                }
            }
        }
        Ok(())
    }

    fn timeouts<C>(&mut self, control: &mut C, mut now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.streams.timeout(&self.plane, &self.config, now);
        self.media_due(control, now)?;
        let begin = now;
        for _ in 0..TIMEOUTS_PER_TURN {
            let deadline = control.next_deadline();
            let Some(deadline) = deadline.filter(|_| now.since(begin) < TIMEOUT_SPAN) else {
                break;
            };
            if deadline.at > now {
                now = self.clock.now();
                if deadline.at.since(now) > self.config.spin.min(Duration::from_micros(2)) {
                    break;
                }
                while now < deadline.at {
                    now = self.clock.now();
                }
            }
            if self.send_due_media(control, now)? {
                now = self.clock.now();
                continue;
            }
            self.plane.shared.timeouts.add(1);
            self.input(control, Input::Timeout, now)?;
            now = self.clock.now();
        }
        Ok(())
    }
}
