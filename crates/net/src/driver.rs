//! The driver: one control plane, with its forwarder on the same thread or on its own.

mod gather;
mod recording;

use crate::batch::{BATCH, Receiver};
use crate::clock::Clock;
use crate::coalesce::{Coalesce, Gather};
use crate::config::DriverConfig;
use crate::counters::{Counters, Shared};
use crate::exchange::Desk;
use crate::media::{FromMedia, MediaThread, Waker};
use crate::plane::{Plane, Token, arrived};
use crate::record::Recorder;
use crate::tcp::{Pending, ReadOutcome, Streams};
use crate::tls::Security;
use crate::{process, socket};
use engine::{
    ConnectionId, Control, Datagram, Deadline, DropReason, Engine, Event, Forward, Input, Note,
    Output, Packet, SocketId, SocketKind, Time, Verdict,
};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait where nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);
/// Timeouts given to an engine in one turn: one that always has another is thereby told apart from one that is late.
const TIMEOUTS_PER_TURN: usize = 64;
/// Answers to outputs (opened, connected, closed) given in one turn.
const ANSWERS_PER_TURN: usize = 16_384;

/// What the network says about undelivered datagrams is taken from one socket in one turn this often.
const ERRORS_PER_TURN: usize = 64;
/// So much of an undelivered datagram is looked at, bytes: what ICMP quotes (RFC 1812 section 4.3.2.3).
const QUOTED: usize = 576;

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Inputs given to control, timeouts included. Packets that the forwarder dealt with are not among them.
    pub inputs: usize,
    /// Sockets that had something.
    pub ready: usize,
}

/// The forwarder of a driver that has none: media datagrams then go to the engine itself.
#[derive(Debug)]
pub enum NoForward {}

impl Forward for NoForward {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, _packet: &mut Packet<'_>, _now: Time) -> Verdict {
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

/// A plain engine, lent, as a control plane that commands nothing.
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

enum Media<F: Forward> {
    /// The engine itself takes the media.
    None,
    Here(F),
    There(MediaThread<F>),
}

/// Runs one control plane over the kernel's sockets. For each connection number the engine is told exactly one
/// [`Input::Closed`], whoever ended it; bytes given to it before are still sent where the peer takes them.
pub struct Driver<F: Forward = NoForward> {
    config: DriverConfig,
    clock: Clock,
    plane: Plane,
    streams: Streams,
    media: Media<F>,
    signalling_buffers: Option<Receiver>,
    media_buffers: Option<Receiver>,
    stream_buffer: Vec<u8>,
    events: VecDeque<Event>,
    waker: Waker,
    /// Where other workers leave what is ours.
    desk: Option<Desk>,
    recorder: Option<Recorder>,
    settled: bool,
    inputs: usize,
    /// This turn took in signalling.
    signalled: bool,
    /// Whether the last turn left signalling behind that it had no time for.
    more: bool,
    coalesce: Coalesce,
    gather: Gather,
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
    /// Where the system gives no epoll set, eventfd or randomness. `media_thread` is refused: there is no forwarder.
    pub fn plain(config: DriverConfig, clock: Clock) -> io::Result<Driver<NoForward>> {
        if config.media_thread {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a media thread needs a forwarder",
            ));
        }
        Driver::build(config, clock, Media::None, Waker::new()?)
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

/// Runs a plain engine until `stop` is set (looked at every 100 ms at least, and after each turn). Its events are given to
/// `events`.
///
/// # Errors
/// As [`Driver::turn`].
pub fn run_engine<E: Engine>(
    engine: &mut E,
    config: DriverConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut events: impl FnMut(Event),
) -> io::Result<Counters> {
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
    /// A driver for a control plane with its forwarder, which moves to a thread of its own where `config.media_thread`
    /// says so.
    ///
    /// # Errors
    /// Where the system gives no epoll set, eventfd, thread or randomness.
    pub fn new(config: DriverConfig, clock: Clock, forwarder: F) -> io::Result<Driver<F>> {
        let waker = Waker::new()?;
        let media = if config.media_thread {
            Media::There(MediaThread::start(
                forwarder,
                &config,
                clock,
                waker.clone(),
            )?)
        } else {
            Media::Here(forwarder)
        };
        Driver::build(config, clock, media, waker)
    }
}

impl<F: Forward> Driver<F> {
    fn build(
        config: DriverConfig,
        clock: Clock,
        mut media: Media<F>,
        waker: Waker,
    ) -> io::Result<Driver<F>> {
        let mut plane = Plane::new(config.receive_timestamps, !config.coalesce.is_zero())?;
        plane.couple(config.order);
        plane.pace(config.burst);
        waker.watch(&plane)?;
        let path = match &mut media {
            Media::Here(forwarder) => Some(gather::begin(&mut plane, &config, clock, forwarder)?),
            _ => gather::elsewhere(&config).map(|()| None)?,
        };
        let streams = Streams::new(&config, crate::entropy()?)?;
        Ok(Driver {
            signalling_buffers: Some(Receiver::new(
                config.signalling_datagram,
                config.receive_timestamps || config.signalling_timestamps,
            )),
            media_buffers: Some(Receiver::new(
                config.media_datagram,
                config.receive_timestamps || plane.shares_ports(),
            )),
            stream_buffer: vec![0; 64 << 10],
            events: path
                .flatten()
                .map(|note| Event::new(clock.now(), note))
                .into_iter()
                .collect(),
            settled: false,
            inputs: 0,
            signalled: false,
            more: false,
            coalesce: Coalesce::new(config.coalesce),
            gather: Gather::new(config.gather),
            config,
            clock,
            plane,
            streams,
            media,
            waker,
            desk: None,
            recorder: None,
        })
    }

    /// Makes this the driver of one of several workers, whose desk this is; before the first turn.
    pub fn join(&mut self, desk: Desk) {
        self.streams.belong_to(desk.number());
        desk.open(self.waker.clone());
        self.desk = Some(desk);
    }

    /// The clock of this run.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Wakes this driver out of its wait, from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The oldest event that was not taken yet. Take them all after each turn.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Figures since the start, the media thread's included.
    pub fn counters(&self) -> Counters {
        let mut total = Counters::default();
        self.plane.shared.add_to(&mut total);
        if let Media::There(thread) = &self.media {
            thread.shared().add_to(&mut total);
        }
        total
    }

    /// What listeners and new connections do for TLS and WebSocket from now on; those that stand are left alone.
    pub fn set_security(&mut self, security: Security) {
        self.streams.security = security;
    }

    /// Stream connections that exist, those that are being closed included.
    pub fn connections(&self) -> usize {
        self.streams.len()
    }

    /// Datagrams that the kernel dropped at the sockets that are open now. One system call per socket.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn kernel_drops(&self) -> io::Result<u64> {
        self.plane.kernel_drops()
    }

    /// Where AF_XDP carries media: how many datagrams have come by each queue, with the name of its interface and its number.
    pub fn express_queues(&self) -> Vec<(&str, u32, u64)> {
        self.plane.express_queues()
    }

    /// CPU time of the media thread, where there is one.
    pub fn media_cpu(&self) -> Option<Duration> {
        match &self.media {
            Media::There(thread) => thread.cpu(),
            _ => None,
        }
    }

    /// The forwarder, where it runs on this thread.
    pub fn forwarder(&mut self) -> Option<&mut F> {
        match &mut self.media {
            Media::Here(forwarder) => Some(forwarder),
            _ => None,
        }
    }

    /// One turn: hands over what the engine has to say, sends it, waits until something happens (at most `max_wait`, and
    /// not beyond a deadline), deals with all of it and sends the answers. What the program itself told the engine
    /// between two turns is carried out first.
    ///
    /// # Errors
    /// Where the driver can no longer work: epoll fails, the media thread has ended, a wanted pinning or priority is
    /// refused. Errors of single sockets and peers are not among them.
    pub fn turn<C>(&mut self, control: &mut C, max_wait: Duration) -> io::Result<Turn>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.settle_thread()?;
        self.inputs = 0;
        self.signalled = false;
        let now = self.clock.now();
        self.answer(control, now)?;
        self.flush()?;
        let limit = self.limit(control, max_wait)?;
        let ready = self.wait(limit)?;
        self.more = false;
        self.waker.awake();
        let mut now = self.clock.now();
        let (woke, before) = (now, self.inputs);
        self.plane.set_time(now);
        self.media_due(control, now)?;
        self.collect(control, now)?;
        if matches!(self.media, Media::Here(_)) {
            now = self.gathered(control, ready, now)?;
        }
        for i in 0..ready {
            let Some((token, flags)) = self.plane.event(i) else {
                continue;
            };
            now = self.serve(control, token, flags, now)?;
        }
        self.media_reports(control, now)?;
        self.timeouts(control, now)?;
        self.answer(control, now)?;
        self.flush()?;
        if !self.config.coalesce.is_zero() {
            self.coalesce
                .turn(woke, self.clock.now(), self.inputs > before, self.signalled);
        }
        Ok(Turn {
            inputs: self.inputs,
            ready,
        })
    }

    /// Waits, with signalling held up for as long as the load justifies. Gives the number of events.
    fn wait(&mut self, mut limit: Duration) -> io::Result<usize> {
        let pause = self.gather.pause(self.clock.now()).min(limit);
        if !pause.is_zero() {
            let begun = self.clock.now();
            process::sleep(pause);
            limit = limit.saturating_sub(self.clock.now().since(begun));
        }
        // What is known to be there already waits for no company.
        if !self.config.coalesce.is_zero() && !limit.is_zero() && !self.more {
            let begun = self.clock.now();
            let pause = self.coalesce.pause(begun).min(limit);
            if !pause.is_zero() {
                let ready = self.plane.wait_prompt(pause)?;
                if ready > 0 || pause == limit {
                    return Ok(ready);
                }
                limit = limit.saturating_sub(self.clock.now().since(begun));
            }
        }
        self.plane.wait(limit)
    }

    fn settle_thread(&mut self) -> io::Result<()> {
        if !self.settled {
            process::tight_timers()?;
            if let Some(cpu) = self.config.pin {
                process::pin(cpu)?;
            }
            if let Some(priority) = self.config.realtime {
                process::realtime(priority)?;
            }
            self.settled = true;
        }
        Ok(())
    }

    /// How long to wait: to the next deadline of any part, none at all where there is still something to do.
    fn limit<C: Control>(&mut self, control: &C, max_wait: Duration) -> io::Result<Duration> {
        let mut next = control.next_deadline().map(|deadline| deadline.at);
        let mut earlier = |at: Option<Time>| {
            next = match (next, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        };
        earlier(self.streams.next_deadline());
        earlier(self.plane.next_release());
        if let Media::Here(forwarder) = &self.media {
            earlier(forwarder.next_deadline().map(|deadline| deadline.at));
        }
        if !self.streams.pending.is_empty() {
            return Ok(Duration::ZERO);
        }
        let now = self.clock.now();
        let mut limit = next.map_or(IDLE, |at| at.since(now)).min(max_wait);
        if next.is_some() && limit < max_wait {
            limit = limit.saturating_sub(self.config.spin);
        }
        if let Media::There(thread) = &mut self.media {
            if thread.is_behind() {
                limit = limit.min(Duration::from_millis(1));
            }
            self.waker.about_to_sleep();
            if thread.poll()? {
                limit = Duration::ZERO;
            }
        }
        if let Some(desk) = &self.desk {
            self.waker.about_to_sleep();
            // What came before the flag was up woke nobody.
            if desk.has_come() {
                limit = Duration::ZERO;
            }
        }
        Ok(limit)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.plane.set_time(self.clock.now());
        self.plane.flush();
        self.streams.flush(&self.plane);
        if let Media::There(thread) = &mut self.media {
            thread.flush()?;
        }
        if let Some(desk) = &mut self.desk {
            let lost = desk.post();
            self.plane.shared.dropped(DropReason::SipNotHanded, lost);
        }
        Ok(())
    }

    /// Gives control what other workers have left for it.
    fn collect<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Some(desk) = self.desk.as_mut().filter(|desk| desk.has_come()) else {
            return Ok(());
        };
        let bundle = desk.take();
        self.signalled = true;
        for parcel in bundle.parcels() {
            self.input(control, Input::Handed(parcel), now)?;
        }
        if let Some(desk) = &mut self.desk {
            desk.done(bundle);
        }
        Ok(())
    }

    fn serve<C>(
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
            // Opened up by the plane, and read, already.
            Token::Prompt | Token::Range(_) | Token::Express(_) => {}
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
                self.signalled = true;
                self.streams.accept(&self.plane, index, &self.config, now);
                self.answer(control, now)?;
            }
            Token::Stream { index, generation } => {
                self.signalled = true;
                if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                    self.streams
                        .writable(&self.plane, index, generation, &self.config, now);
                    self.answer(control, now)?;
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.read(control, index, generation, now)?;
                }
            }
        }
        Ok(now)
    }

    /// Tells the engine what the network says about datagrams of a socket.
    fn undelivered<C>(&mut self, control: &mut C, index: u32, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let mut bytes = [0; QUOTED];
        for _ in 0..ERRORS_PER_TURN {
            let Some((socket, told)) = self.plane.undelivered(index, &mut bytes) else {
                break;
            };
            if !told.fatal {
                continue;
            }
            self.plane.shared.undelivered.add(1);
            let input = Input::Unreachable {
                socket,
                destination: told.destination,
                bytes: bytes.get(..told.length).unwrap_or_default(),
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
            self.signalled |= !media;
            let buffers = if media {
                &mut self.media_buffers
            } else {
                &mut self.signalling_buffers
            };
            // Taken out for the time of the batch, because handling it borrows the driver.
            let Some(mut receiver) = buffers.take() else {
                break;
            };
            let most = budget.min(BATCH);
            let n = self.plane.receive(index, &mut receiver, most);
            let done = self.batch(control, &mut receiver, n, id, media, now);
            if media {
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
                self.more |= !media;
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

    /// Gives one datagram of a batch to control; tells its length.
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
        // How long it waited is told by the wall clock, also for its place in the batch.
        let wall = received.stamp.map(|_| crate::plane::wall());
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

    fn read<C>(&mut self, control: &mut C, index: u32, generation: u32, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let mut buffer = std::mem::take(&mut self.stream_buffer);
        let mut budget = self.config.stream_budget;
        let mut result = Ok(());
        while budget > 0 {
            let outcome = self.streams.read(
                &self.plane,
                index,
                generation,
                &mut buffer,
                &self.config,
                now,
            );
            let n = match outcome {
                ReadOutcome::Done => break,
                ReadOutcome::Data(connection, n) => {
                    let bytes = &buffer[..n];
                    result = self.input(control, Input::Stream { connection, bytes }, now);
                    n
                }
                ReadOutcome::Layered(connection, n) => {
                    result = self.messages(control, connection, now);
                    self.streams
                        .settle(&self.plane, index, generation, &self.config, now);
                    n
                }
            };
            budget = budget.saturating_sub(n);
            // A read that does not fill the buffer has emptied the socket.
            if result.is_err() || n < buffer.len() {
                break;
            }
        }
        self.stream_buffer = buffer;
        result?;
        self.answer(control, now)
    }

    /// Gives control what was taken out of its layers just now, after what it has to know before.
    fn messages<C>(
        &mut self,
        control: &mut C,
        connection: ConnectionId,
        now: Time,
    ) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.answer(control, now)?;
        let inbox = std::mem::take(&mut self.streams.inbox);
        let mut from = 0;
        let mut result = Ok(());
        for &end in &inbox.ends {
            // Control may have closed the connection after an earlier one.
            if result.is_err() || !self.streams.knows(connection) {
                break;
            }
            let bytes = inbox.bytes.get(from..end).unwrap_or_default();
            from = end;
            result = self.input(control, Input::Stream { connection, bytes }, now);
        }
        self.streams.inbox = inbox;
        result
    }

    /// One input, and all that follows from it at once.
    fn input<C>(&mut self, control: &mut C, input: Input<'_>, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.inputs += 1;
        control.handle(input, now);
        self.drain(control, now)
    }

    /// Carries out outputs and commands, and gives the reports of a forwarder on this thread.
    fn drain<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        loop {
            while let Some(output) = control.next_output() {
                self.perform(output, now)?;
            }
            match &mut self.media {
                Media::None => return Ok(()),
                Media::There(thread) => {
                    while thread.has_room()
                        && let Some(command) = control.next_command()
                    {
                        thread.command(command);
                    }
                    return Ok(());
                }
                Media::Here(forwarder) => {
                    while let Some(command) = control.next_command() {
                        forwarder.command(command, now);
                    }
                    self.plane.packets_of(forwarder);
                    match forwarder.next_report() {
                        Some(report) => control.report(report, now),
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn perform(&mut self, output: Output<'_>, now: Time) -> io::Result<()> {
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
            Output::Open {
                socket,
                kind,
                local,
            } => self.open(socket, kind, local)?,
            Output::Shut { socket } => self.shut(socket),
            Output::Sieve { socket, sieve } => {
                let (dropped, done) = self.plane.sieve(socket, sieve.as_ref());
                if let Err(error) = done {
                    let error = error.to_string();
                    self.tell(Event::new(now, Note::SieveRefused { error }));
                }
                self.streams
                    .pending
                    .push_back(Pending::Sifted { socket, dropped });
            }
            Output::Connect {
                connection,
                local,
                remote,
                secure,
                websocket,
            } => {
                let (ends, above) = ((local, remote), (secure, websocket));
                self.streams
                    .connect(&self.plane, connection, ends, above, &self.config, now);
            }
            Output::Close { connection } => {
                self.streams
                    .close(&self.plane, connection, &self.config, now);
            }
            Output::Hand { worker, parcel } => {
                let desk = self.desk.as_mut();
                if !desk.is_some_and(|desk| desk.put(worker, parcel)) {
                    self.plane.shared.drop_one(DropReason::SipNotHanded);
                }
            }
            Output::Record { file, record } => self.record(file, record, now),
            Output::Event(event) => self.tell(event),
        }
        Ok(())
    }

    fn tell(&mut self, event: Event) {
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
            && let Media::There(thread) = &mut self.media
            && thread.settle(&self.clock)?
        {
            // The port was one of ours that the media thread had not let go of yet.
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
        if let Some(transport) = kind.stream() {
            return self
                .streams
                .listen(&self.plane, id, transport, local, &self.config);
        }
        let shared = kind == SocketKind::UdpMedia && matches!(self.media, Media::Here(_));
        if shared && self.plane.open_shared(id, local, &self.config)? {
            return Ok(local);
        }
        let fd = Arc::new(socket::udp(local, kind, &self.config)?);
        let local = socket::local_address(fd.as_fd())?;
        let media = kind == SocketKind::UdpMedia;
        let elsewhere = media && matches!(self.media, Media::There(_));
        self.plane.add_socket(id, fd.clone(), media, !elsewhere)?;
        if elsewhere && let Media::There(thread) = &mut self.media {
            thread.add(id, fd);
        }
        Ok(local)
    }

    fn shut(&mut self, id: SocketId) {
        match self.plane.remove_socket(id) {
            Some(true) => {
                if let Media::There(thread) = &mut self.media {
                    thread.remove(id);
                }
            }
            Some(false) => {}
            None => {
                if !self.streams.shut(&self.plane, id) {
                    self.plane.shared.strays.add(1);
                }
            }
        }
    }

    /// Gives the engine the answers that wait for it, and what follows from them.
    fn answer<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.drain(control, now)?;
        while let Some(note) = self.streams.notes.pop() {
            self.tell(Event::new(now, note));
        }
        for _ in 0..ANSWERS_PER_TURN {
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
                &Pending::Closed { connection, why } => Input::Closed { connection, why },
                &Pending::Sifted { socket, dropped } => Input::Sifted { socket, dropped },
            };
            self.input(control, input, now)?;
        }
        Ok(())
    }

    /// Gives control what came back from the media thread.
    fn media_reports<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        for _ in 0..4_096 {
            let Media::There(thread) = &mut self.media else {
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
        for _ in 0..TIMEOUTS_PER_TURN {
            let Some(deadline) = control.next_deadline() else {
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
            self.plane.shared.timeouts.add(1);
            self.input(control, Input::Timeout, now)?;
        }
        Ok(())
    }
}

/// The media thread's figures are shared; keep them shareable.
const _: fn() = || {
    fn shareable<T: Sync + Send>() {}
    shareable::<Shared>();
};
