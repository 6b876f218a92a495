//! The media thread: a forwarder with its sockets, which receives commands and returns reports through queues.

use crate::batch::Receiver;
use crate::batching::MediaBatcher;
use crate::clock::Clock;
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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

const QUEUE: usize = 4_096;

/// Wakes a driver from its wait, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakerInner>);

#[derive(Debug)]
struct WakerInner {
    fd: OwnedFd,
    /// The owner sleeps, or is about to.
    sleeping: AtomicBool,
}

impl AsFd for Waker {
    /// Readable from [`Waker::wake`] to [`Waker::clear`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl Waker {
    /// A waker of a thread that waits for it by [`crate::wait_any`].
    ///
    /// # Errors
    /// Too many open files.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(WakerInner {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
        })))
    }

    /// Ends the driver's wait, or the next one if it is not waiting.
    pub fn wake(&self) {
        // An eventfd fails only when its counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
    }

    /// Wakes the owner only if it sleeps; otherwise it reads its queue before the next wait.
    pub(crate) fn nudge(&self) {
        if self.0.sleeping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Announces that the owner will sleep unless its queue holds messages.
    pub(crate) fn about_to_sleep(&self) {
        self.0.sleeping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.0.sleeping.store(false, Ordering::SeqCst);
    }

    pub(crate) fn watch(&self, plane: &Plane) -> io::Result<()> {
        plane.watch(self.0.fd.as_fd(), Token::Wake, EventFlags::IN)
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        let mut value = [0; 8];
        // The counter is empty if another event was processed first.
        let _ = rustix::io::read(&self.0.fd, &mut value);
    }
}

enum ToMedia<C> {
    Add { id: SocketId, fd: Arc<OwnedFd> },
    Remove { id: SocketId },
    Command(C),
}

/// Messages of the media thread.
pub(crate) enum FromMedia<R> {
    Report(R),
    Punt(Box<Punted>),
}

/// A packet for control.
pub(crate) struct Punted {
    pub(crate) socket: SocketId,
    pub(crate) source: SocketAddr,
    pub(crate) arrived: Time,
    pub(crate) bytes: Vec<u8>,
}

/// Control's handle of the media thread.
pub(crate) struct MediaThread<F: Forward> {
    queue: SyncSender<ToMedia<F::Command>>,
    outbox: VecDeque<ToMedia<F::Command>>,
    reports: Queue<FromMedia<F::Report>>,
    next_message: Option<FromMedia<F::Report>>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    completed_removals: Arc<AtomicU64>,
    requested_removals: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct MediaWorker<F: Forward> {
    forwarder: F,
    plane: Plane,
    receiver: Receiver,
    media_batcher: MediaBatcher,
    clock: Clock,
    config: DriverConfig,
    queue: Queue<ToMedia<F::Command>>,
    reports: SyncSender<FromMedia<F::Report>>,
    waker: Waker,
    control: Waker,
    stop: Arc<AtomicBool>,
    completed_removals: Arc<AtomicU64>,
    /// A report that did not fit into the queue.
    unsent_report: Option<FromMedia<F::Report>>,
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
        let (worker_back, reports) = sync_channel(QUEUE);
        let plane = Plane::new(config.receive_timestamps, false)?;
        let waker = Waker::new()?;
        waker.watch(&plane)?;
        let shared = plane.shared.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let completed_removals = Arc::new(AtomicU64::new(0));
        let worker = MediaWorker {
            forwarder,
            plane,
            receiver: Receiver::new(config.media_datagram, config.receive_timestamps),
            media_batcher: MediaBatcher::new(config.media_batching_delay),
            clock,
            config: config.clone(),
            queue: worker_queue,
            reports: worker_back,
            waker: waker.clone(),
            control,
            stop: stop.clone(),
            completed_removals: completed_removals.clone(),
            unsent_report: None,
        };
        let thread = std::thread::Builder::new()
            .name("media".into())
            .spawn(move || worker.run())?;
        Ok(MediaThread {
            queue,
            outbox: VecDeque::with_capacity(QUEUE),
            reports,
            next_message: None,
            waker,
            stop,
            completed_removals,
            requested_removals: 0,
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
        self.requested_removals += 1;
        self.outbox.push_back(ToMedia::Remove { id });
    }

    /// Whether another command fits; commands stay in the engine while the thread is behind.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.len() < QUEUE
    }

    pub(crate) fn command(&mut self, command: F::Command) {
        self.outbox.push_back(ToMedia::Command(command));
    }

    /// Sends the queued messages. An error if the thread has ended, which it does only on an error.
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

    /// Whether a message has arrived; it is kept for [`MediaThread::take`].
    pub(crate) fn poll(&mut self) -> io::Result<bool> {
        if self.next_message.is_none() {
            self.next_message = match self.reports.try_recv() {
                Ok(item) => Some(item),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            };
        }
        Ok(self.next_message.is_some())
    }

    pub(crate) fn take(&mut self) -> io::Result<Option<FromMedia<F::Report>>> {
        self.poll()?;
        Ok(self.next_message.take())
    }

    /// Waits until the thread has closed the removed sockets, so that their ports are free; false if there is nothing
    /// to wait for, or after a timeout of 20 ms.
    pub(crate) fn wait_for_removals(&mut self, clock: &Clock) -> io::Result<bool> {
        if self.completed_removals.load(Ordering::Acquire) == self.requested_removals {
            return Ok(false);
        }
        let end = clock.now() + Duration::from_millis(20);
        while clock.now() < end {
            self.flush()?;
            if self.completed_removals.load(Ordering::Acquire) == self.requested_removals {
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
        // SAFETY: the handle is not joined yet, so the thread's ID is valid; the clock ID is written to `id`.
        if unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t() as _, &raw mut id) } != 0 {
            return None;
        }
        // SAFETY: all zero is a valid timespec, and it outlives the call.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
            return None;
        }
        Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// The error with which the thread ended.
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
            // The driver is being dropped, so an error of the thread cannot be reported.
            let _ = thread.join();
        }
    }
}

impl<F: Forward> MediaWorker<F> {
    fn run(mut self) -> io::Result<()> {
        signals::block_all()?;
        process::tight_timers()?;
        // As in `Driver::configure_thread`.
        let _ = process::short_slice();
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
            // A command that arrived before the sleep flag was set woke nothing.
            if self.commands(now)? {
                Duration::ZERO
            } else {
                self.limit(now)
            }
        };
        let delay = self.media_batcher.delay(self.clock.now()).min(limit);
        if !delay.is_zero() {
            process::sleep(delay);
        }
        let events = self.plane.wait(limit)?;
        self.waker.awake();
        now = self.clock.now();
        self.plane.begin_media_turn();
        let (woke, mut packets) = (now, 0);
        for i in 0..events {
            match self.plane.event(i) {
                Some((Token::Udp(index), _)) => packets += self.receive(index, &mut now),
                Some((Token::Wake, _)) => self.waker.clear(),
                _ => {}
            }
        }
        if self.receiver.filled() > 0 {
            self.forward(now);
        }
        self.media_batcher.end_turn(woke, packets);
        self.reports();
        Ok(())
    }

    fn limit(&self, now: Time) -> Duration {
        // Control does not signal that its queue has room again, so an unsent report is retried.
        let most = if self.unsent_report.is_some() {
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
                    self.completed_removals.fetch_add(1, Ordering::Release);
                }
                ToMedia::Command(command) => {
                    self.forwarder.command(command, now);
                    self.plane.drain_forwarder(&mut self.forwarder);
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
            self.plane.drain_forwarder(&mut self.forwarder);
        }
        due
    }

    /// Receives from a socket; returns the number of datagrams.
    fn receive(&mut self, index: u32, now: &mut Time) -> usize {
        let (mut count, mut more) = (0, true);
        while more && count < self.config.datagram_budget {
            let before = self.receiver.filled();
            more = self.plane.receive_batch(index, &mut self.receiver);
            count += self.receiver.filled() - before;
            if self.receiver.room() == 0 {
                self.forward(*now);
                *now = self.clock.now();
            }
        }
        count
    }

    /// Forwards the batch.
    fn forward(&mut self, now: Time) {
        self.plane
            .forward_batch(&mut self.receiver, &mut self.forwarder, now);
        for i in 0..self.plane.punted.len() {
            let index = self.plane.punted[i];
            if let Some(socket) = self.plane.origin(index) {
                self.punt(socket, index, now);
            }
        }
        self.plane.clear_batch(&mut self.receiver);
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
        match self.reports.try_send(punted) {
            Ok(()) => self.control.nudge(),
            Err(_) => self.plane.shared.punts_lost.add(1),
        }
    }

    fn reports(&mut self) {
        let mut any = false;
        loop {
            let item = match self.unsent_report.take() {
                Some(item) => item,
                None => match self.forwarder.next_report() {
                    Some(report) => FromMedia::Report(report),
                    None => break,
                },
            };
            match self.reports.try_send(item) {
                Ok(()) => any = true,
                Err(TrySendError::Full(item)) => {
                    self.unsent_report = Some(item);
                    break;
                }
                // Control is gone; the stop flag follows.
                Err(TrySendError::Disconnected(_)) => break,
            }
        }
        if any {
            self.control.nudge();
        }
    }
}
