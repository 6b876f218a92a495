//! The media thread: a forwarder with its sockets, fed by a queue of commands, answering by a queue of reports.

use crate::batch::Receiver;
use crate::clock::Clock;
use crate::coalesce::Gather;
use crate::config::DriverConfig;
use crate::counters::Shared;
use crate::plane::{Plane, Token, arrived};
use crate::{process, signals};
use engine::{Forward, SocketId, Time};
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

const QUEUE: usize = 4_096;

/// Wakes a driver out of its wait, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakerInner>);

#[derive(Debug)]
struct WakerInner {
    fd: OwnedFd,
    /// The owner sleeps, or is about to.
    sleeping: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(WakerInner {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
        })))
    }

    /// Ends the driver's wait, or the next one where it does not wait at present.
    pub fn wake(&self) {
        // The only failure of an eventfd is a full counter, and then it is readable already.
        let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
    }

    /// Wakes the owner only where it sleeps: what was put into its queue before is seen otherwise.
    pub(crate) fn nudge(&self) {
        if self.0.sleeping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Says that the owner will sleep unless its queue turns out to hold something.
    pub(crate) fn about_to_sleep(&self) {
        self.0.sleeping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.0.sleeping.store(false, Ordering::SeqCst);
    }

    pub(crate) fn watch(&self, plane: &Plane) -> io::Result<()> {
        plane.watch(self.0.fd.as_fd(), Token::Wake, EventFlags::IN)
    }

    pub(crate) fn clear(&self) {
        let mut value = [0; 8];
        // Nothing to read only means that another event came first.
        let _ = rustix::io::read(&self.0.fd, &mut value);
    }
}

enum ToMedia<C> {
    Add { id: SocketId, fd: Arc<OwnedFd> },
    Remove { id: SocketId },
    Command(C),
}

/// What comes back from the media thread.
pub(crate) enum FromMedia<R> {
    Report(R),
    Punt(Box<Punted>),
}

/// A packet that control has to see.
pub(crate) struct Punted {
    pub(crate) socket: SocketId,
    pub(crate) source: SocketAddr,
    pub(crate) arrived: Time,
    pub(crate) bytes: Vec<u8>,
}

/// Control's end of the media thread.
pub(crate) struct MediaThread<F: Forward> {
    queue: SyncSender<ToMedia<F::Command>>,
    outbox: VecDeque<ToMedia<F::Command>>,
    back: Queue<FromMedia<F::Report>>,
    ahead: Option<FromMedia<F::Report>>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    removed: Arc<AtomicU64>,
    asked_to_remove: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct Worker<F: Forward> {
    forwarder: F,
    plane: Plane,
    receiver: Receiver,
    gather: Gather,
    clock: Clock,
    config: DriverConfig,
    queue: Queue<ToMedia<F::Command>>,
    back: SyncSender<FromMedia<F::Report>>,
    waker: Waker,
    control: Waker,
    stop: Arc<AtomicBool>,
    removed: Arc<AtomicU64>,
    /// A report for which there was no room.
    held: Option<FromMedia<F::Report>>,
}

impl<F> MediaThread<F>
where
    F: Forward + Send + 'static,
{
    pub(crate) fn start(
        forwarder: F,
        config: &DriverConfig,
        clock: Clock,
        control: Waker,
    ) -> io::Result<MediaThread<F>> {
        let (queue, worker_queue) = sync_channel(QUEUE);
        let (worker_back, back) = sync_channel(QUEUE);
        let plane = Plane::new(config.receive_timestamps, false)?;
        let waker = Waker::new()?;
        waker.watch(&plane)?;
        let shared = plane.shared.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let removed = Arc::new(AtomicU64::new(0));
        let worker = Worker {
            forwarder,
            plane,
            receiver: Receiver::new(config.media_datagram, config.receive_timestamps),
            gather: Gather::new(config.gather),
            clock,
            config: config.clone(),
            queue: worker_queue,
            back: worker_back,
            waker: waker.clone(),
            control,
            stop: stop.clone(),
            removed: removed.clone(),
            held: None,
        };
        let thread = std::thread::Builder::new()
            .name("media".into())
            .spawn(move || worker.run())?;
        Ok(MediaThread {
            queue,
            outbox: VecDeque::with_capacity(QUEUE),
            back,
            ahead: None,
            waker,
            stop,
            removed,
            asked_to_remove: 0,
            shared,
            thread: Some(thread),
        })
    }
}

impl<F: Forward> MediaThread<F> {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn add(&mut self, id: SocketId, fd: Arc<OwnedFd>) {
        self.outbox.push_back(ToMedia::Add { id, fd });
    }

    pub(crate) fn remove(&mut self, id: SocketId) {
        self.asked_to_remove += 1;
        self.outbox.push_back(ToMedia::Remove { id });
    }

    /// Whether a further command can be taken; commands wait in the engine while the thread is behind.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.len() < QUEUE
    }

    pub(crate) fn command(&mut self, command: F::Command) {
        self.outbox.push_back(ToMedia::Command(command));
    }

    /// Hands over what waits. An error where the thread has ended, which it does not do of itself.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let mut moved = false;
        while let Some(item) = self.outbox.pop_front() {
            match self.queue.try_send(item) {
                Ok(()) => moved = true,
                Err(TrySendError::Full(item)) => {
                    self.outbox.push_front(item);
                    break;
                }
                Err(TrySendError::Disconnected(_)) => return Err(self.ended()),
            }
        }
        if moved {
            self.waker.nudge();
        }
        Ok(())
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether something came back; it is kept for [`MediaThread::take`].
    pub(crate) fn poll(&mut self) -> io::Result<bool> {
        if self.ahead.is_none() {
            self.ahead = match self.back.try_recv() {
                Ok(item) => Some(item),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            };
        }
        Ok(self.ahead.is_some())
    }

    pub(crate) fn take(&mut self) -> io::Result<Option<FromMedia<F::Report>>> {
        self.poll()?;
        Ok(self.ahead.take())
    }

    /// Waits until the thread has let go of the sockets that it was told to close, so that their ports are free; false
    /// where there is nothing to wait for, or it takes too long.
    pub(crate) fn settle(&mut self, clock: &Clock) -> io::Result<bool> {
        if self.removed.load(Ordering::Acquire) == self.asked_to_remove {
            return Ok(false);
        }
        let end = clock.now() + Duration::from_millis(20);
        while clock.now() < end {
            self.flush()?;
            if self.removed.load(Ordering::Acquire) == self.asked_to_remove {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// CPU time of the thread.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let thread = self.thread.as_ref()?;
        let mut id = 0;
        // SAFETY: the handle is not joined yet, so the thread's identity is valid; the kernel's clock id is written to `id`.
        if unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut id) } != 0 {
            return None;
        }
        // SAFETY: all zero is a valid timespec, and it lives through the call.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
            return None;
        }
        Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// The reason for which the thread is gone.
    fn ended(&mut self) -> io::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => io::Error::other("the media thread panicked"),
            _ => io::Error::other("the media thread has ended"),
        }
    }
}

impl<F: Forward> Drop for MediaThread<F> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Its error, if it had one, no longer has anybody to go to: the driver is being given up.
            let _ = thread.join();
        }
    }
}

impl<F: Forward> Worker<F> {
    fn run(mut self) -> io::Result<()> {
        signals::block_all()?;
        process::tight_timers()?;
        if let Some(cpu) = self.config.media_pin {
            process::pin(cpu)?;
        }
        if let Some(priority) = self.config.realtime {
            process::realtime(priority)?;
        }
        while !self.stop.load(Ordering::Acquire) {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut now = self.clock.now();
        let mut busy = self.commands(now)?;
        busy |= self.timeouts(now);
        self.reports();
        self.plane.flush();
        let limit = if busy {
            Duration::ZERO
        } else {
            self.waker.about_to_sleep();
            // A command that came before the flag was up would wake nobody.
            if self.commands(now)? {
                Duration::ZERO
            } else {
                self.limit(now)
            }
        };
        let pause = self.gather.pause(self.clock.now()).min(limit);
        if !pause.is_zero() {
            process::sleep(pause);
        }
        let events = self.plane.wait(limit)?;
        self.waker.awake();
        now = self.clock.now();
        self.plane.begin_gathering();
        let (woke, mut packets) = (now, 0);
        for i in 0..events {
            match self.plane.event(i) {
                Some((Token::Udp(index), _)) => packets += self.gather(index, &mut now),
                Some((Token::Wake, _)) => self.waker.clear(),
                _ => {}
            }
        }
        if self.receiver.filled() > 0 {
            self.forward(now);
        }
        self.gather.turn(woke, packets);
        self.reports();
        Ok(())
    }

    fn limit(&self, now: Time) -> Duration {
        // With a report that found no room there is nobody to tell when there is room again.
        let most = if self.held.is_some() {
            Duration::from_millis(1)
        } else {
            Duration::from_millis(500)
        };
        match self.forwarder.next_deadline() {
            Some(deadline) => deadline.at.since(now).min(most),
            None => most,
        }
    }

    fn commands(&mut self, now: Time) -> io::Result<bool> {
        let mut any = false;
        for _ in 0..QUEUE {
            let Ok(item) = self.queue.try_recv() else {
                break;
            };
            any = true;
            match item {
                ToMedia::Add { id, fd } => self.plane.add_socket(id, fd, true, true)?,
                ToMedia::Remove { id } => {
                    self.plane.remove_socket(id);
                    self.removed.fetch_add(1, Ordering::Release);
                }
                ToMedia::Command(command) => {
                    self.forwarder.command(command, now);
                    self.plane.packets_of(&mut self.forwarder);
                }
            }
        }
        Ok(any)
    }

    fn timeouts(&mut self, now: Time) -> bool {
        let due = self
            .forwarder
            .next_deadline()
            .is_some_and(|deadline| deadline.at <= now);
        if due {
            self.plane.shared.timeouts.add(1);
            self.forwarder.timeout(now);
            self.plane.packets_of(&mut self.forwarder);
        }
        due
    }

    /// Takes what waits on a socket; tells how much.
    fn gather(&mut self, index: u32, now: &mut Time) -> usize {
        let (mut taken, mut more) = (0, true);
        while more && taken < self.config.datagram_budget {
            let before = self.receiver.filled();
            more = self.plane.gather(index, &mut self.receiver);
            taken += self.receiver.filled() - before;
            if self.receiver.room() == 0 {
                self.forward(*now);
                *now = self.clock.now();
            }
        }
        taken
    }

    /// Forwards what was gathered.
    fn forward(&mut self, now: Time) {
        self.plane
            .forward_gathered(&mut self.receiver, &mut self.forwarder, now);
        for i in 0..self.plane.punted.len() {
            let index = self.plane.punted[i];
            if let Some(socket) = self.plane.origin(index) {
                self.punt(socket, index, now);
            }
        }
        self.plane.end_gathering(&mut self.receiver);
    }

    fn punt(&mut self, socket: SocketId, index: usize, now: Time) {
        let wall = self.plane.wall();
        let Some(received) = self.receiver.get(index) else {
            return;
        };
        let punted = FromMedia::Punt(Box::new(Punted {
            socket,
            source: received.source,
            arrived: arrived(now, wall, received.stamp),
            bytes: received.bytes().to_vec(),
        }));
        match self.back.try_send(punted) {
            Ok(()) => self.control.nudge(),
            Err(_) => self.plane.shared.punts_lost.add(1),
        }
    }

    fn reports(&mut self) {
        let mut any = false;
        loop {
            let item = match self.held.take() {
                Some(item) => item,
                None => match self.forwarder.next_report() {
                    Some(report) => FromMedia::Report(report),
                    None => break,
                },
            };
            match self.back.try_send(item) {
                Ok(()) => any = true,
                Err(TrySendError::Full(item)) => {
                    self.held = Some(item);
                    break;
                }
                // Control is gone, and with it the one who asks; the stop flag follows.
                Err(TrySendError::Disconnected(_)) => break,
            }
        }
        if any {
            self.control.nudge();
        }
    }
}
