//! The additional workers: each runs a border of its own on sockets at the same addresses, and executes the requests of
//! the first worker.

use crate::driver_setup::{driver_config, opened};
use crate::event_output::EventOutput;
use crate::history::HistorySink;
use crate::operators::{self, OperatorInbox, OperatorLine, WorkerContext};
use crate::store::RegistrationSink;
use crate::threads::ThreadSettings;
use border::admission::MediaOffload;
use border::border::Border;
use border::conferences::{ConferenceName, ConferenceReply, ConferenceRequest};
use config::Config;
use engine::{HashKey, Worker};
use media::forward::{Forwarder, ForwarderLimits};
use net::tls::Security;
use net::{Clock, Driver, DriverConfig, Waker, WorkerMailbox};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep of an idle worker.
const IDLE_WAIT: Duration = Duration::from_secs(60);
/// Longest sleep while a response of the border is pending.
const PENDING_WAIT: Duration = Duration::from_millis(1);

enum WorkerRequest {
    Reload(Arc<Config>, Security),
    Drain(Duration),
    SetOffload(MediaOffload),
    Conference(u64, ConferenceName, ConferenceRequest),
    Stop,
}

/// An additional worker.
struct SiblingWorker {
    requests: Sender<WorkerRequest>,
    waker: Waker,
    drained: Arc<AtomicBool>,
    /// Number of its turns, and the number at the last check of all workers.
    turns: Arc<AtomicU64>,
    checked_turns: u64,
    thread: JoinHandle<io::Result<()>>,
}

/// The additional workers.
#[derive(Default)]
pub(crate) struct SiblingWorkers {
    /// The first entry is the second worker.
    siblings: Vec<SiblingWorker>,
    /// Their queues of operator jobs.
    lines: Vec<OperatorLine>,
    /// Their responses to conference requests.
    replies: Option<Receiver<(u64, ConferenceReply)>>,
}

/// Driver settings for one of several workers; `cpus` are the processors that the program may use.
pub(crate) fn worker_driver_config(
    config: DriverConfig,
    worker: &Worker,
    cpus: &[usize],
) -> DriverConfig {
    if worker.is_alone() {
        return config;
    }
    let enough = cpus.len() >= usize::from(worker.count);
    let cpu = cpus.get(usize::from(worker.number)).copied();
    DriverConfig {
        shared_ports: true,
        // That of a source is common to all: see `SourceCounts` of net.
        connections: worker.share(config.connections),
        // Zero is no limit, and a share is at least 1.
        handshakes_per_second: match config.handshakes_per_second {
            0 => 0,
            all => u32::try_from(worker.share(all as usize)).unwrap_or(u32::MAX),
        },
        pin: cpu.filter(|_| enough),
        ..config
    }
}

impl SiblingWorkers {
    /// Starts a thread for each of these; `first` wakes the first worker if there is a response for it.
    ///
    /// # Errors
    /// If the system provides no thread, epoll set or entropy.
    pub(crate) fn start(
        borders: Vec<(
            Border,
            WorkerMailbox,
            Option<RegistrationSink>,
            Option<HistorySink>,
        )>,
        relay: Option<&net::KernelRelay>,
        placing: &ThreadSettings,
        security: &Security,
        events: &EventOutput,
        clock: Clock,
        first: &Waker,
    ) -> io::Result<SiblingWorkers> {
        let cpus = net::allowed_cpus();
        let (said, replies) = channel();
        let mut siblings = Vec::new();
        let mut lines = Vec::new();
        for (mut border, mailbox, sink, history) in borders {
            let worker = *border.worker();
            let settings =
                worker_driver_config(driver_config(border.config(), relay), &worker, &cpus);
            let settings = placing.apply(worker.number, settings);
            let forwarder = Forwarder::new(
                ForwarderLimits::default(),
                HashKey::new(&mut net::entropy()?),
            );
            let mut driver = Driver::new(settings, clock, forwarder)?;
            border.set_shared_ports(driver.has_shared_ports());
            driver.set_security(security.clone());
            driver.attach_mailbox(mailbox);
            let waker = driver.waker();
            if let Some(history) = &history {
                history.attach(&mut border);
            }
            if let Some(sink) = &sink {
                sink.wake_by(waker.clone());
            }
            let (line, operators) = operators::line(waker.clone());
            lines.push(line);
            let (requests, inbox) = channel();
            let drained = Arc::new(AtomicBool::new(false));
            let turns = Arc::new(AtomicU64::new(0));
            let thread = WorkerLoop {
                border,
                driver,
                sink,
                history,
                events: events.for_thread(),
                clock,
                inbox,
                operators,
                pending: 0,
                replies: said.clone(),
                first: first.clone(),
                drained: drained.clone(),
                turns: turns.clone(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("worker {}", worker.number))
                .spawn(move || thread.run())?;
            siblings.push(SiblingWorker {
                requests,
                waker,
                drained,
                turns,
                checked_turns: 0,
                thread,
            });
        }
        Ok(SiblingWorkers {
            siblings,
            lines,
            replies: Some(replies),
        })
    }

    /// Their queues of operator jobs, once.
    pub(crate) fn take_lines(&mut self) -> Vec<OperatorLine> {
        std::mem::take(&mut self.lines)
    }

    fn send_all(&self, request: impl Fn() -> WorkerRequest) {
        for sibling in &self.siblings {
            sibling.send(request());
        }
    }

    /// Sends a conference request to a worker ([`Border::request_conference`]); nothing for the first or a nonexistent
    /// worker.
    pub(crate) fn request_conference(
        &self,
        worker: u8,
        number: u64,
        name: &ConferenceName,
        command: &ConferenceRequest,
    ) {
        let sibling = usize::from(worker).checked_sub(1);
        if let Some(sibling) = sibling.and_then(|at| self.siblings.get(at)) {
            sibling.send(WorkerRequest::Conference(
                number,
                name.clone(),
                command.clone(),
            ));
        }
    }

    /// The next response of any worker.
    pub(crate) fn next_conference_reply(&self) -> Option<(u64, ConferenceReply)> {
        self.replies.as_ref()?.try_recv().ok()
    }

    /// Sends a new configuration to all workers.
    pub(crate) fn reload(&self, config: &Arc<Config>, security: &Security) {
        self.send_all(|| WorkerRequest::Reload(config.clone(), security.clone()));
    }

    /// Informs all workers of the current media paths.
    pub(crate) fn set_media_offload(&self, offload: &MediaOffload) {
        self.send_all(|| WorkerRequest::SetOffload(offload.clone()));
    }

    /// Drains all workers.
    pub(crate) fn drain(&self, limit: Duration) {
        self.send_all(|| WorkerRequest::Drain(limit));
    }

    /// Whether all workers have drained.
    pub(crate) fn are_drained(&self) -> bool {
        let mut siblings = self.siblings.iter();
        siblings.all(|sibling| sibling.drained.load(Ordering::Acquire))
    }

    /// Checks that all workers are running.
    ///
    /// # Errors
    /// The error of a worker that has ended.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        let mut siblings = self.siblings.iter();
        let Some(ended) = siblings.position(|sibling| sibling.thread.is_finished()) else {
            return Ok(());
        };
        match self.siblings.swap_remove(ended).thread.join() {
            Ok(Err(error)) => Err(error),
            _ => Err(io::Error::other("a worker has ended")),
        }
    }

    /// Whether each has made a turn since the last call that returned true; sleeping workers are woken for one.
    pub(crate) fn all_have_turned(&mut self) -> bool {
        let turned = |sibling: &SiblingWorker| {
            sibling.turns.load(Ordering::Relaxed) != sibling.checked_turns
        };
        for sibling in self.siblings.iter().filter(|sibling| !turned(sibling)) {
            sibling.waker.wake();
        }
        if !self.siblings.iter().all(turned) {
            return false;
        }
        for sibling in &mut self.siblings {
            sibling.checked_turns = sibling.turns.load(Ordering::Relaxed);
        }
        true
    }

    /// Stops all workers.
    pub(crate) fn stop(self) {
        self.send_all(|| WorkerRequest::Stop);
        for sibling in self.siblings {
            // Its errors are already logged, and the program ends.
            let _ = sibling.thread.join();
        }
    }
}

impl SiblingWorker {
    fn send(&self, request: WorkerRequest) {
        // A thread that has ended is detected by [`SiblingWorkers::check`].
        let _ = self.requests.send(request);
        self.waker.wake();
    }
}

struct WorkerLoop {
    border: Border,
    driver: Driver<Forwarder>,
    sink: Option<RegistrationSink>,
    history: Option<HistorySink>,
    events: EventOutput,
    clock: Clock,
    inbox: Receiver<WorkerRequest>,
    operators: OperatorInbox,
    /// Number of requests that the border has not answered.
    pending: usize,
    replies: Sender<(u64, ConferenceReply)>,
    first: Waker,
    drained: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
}

impl WorkerLoop {
    fn run(mut self) -> io::Result<()> {
        // Signals belong to the first thread.
        net::block_signals()?;
        let mut ready = false;
        let mut at_once = true;
        loop {
            let wait = match (at_once, self.pending) {
                (true, _) => Duration::ZERO,
                (false, 0) => self.history.as_ref().map_or(IDLE_WAIT, HistorySink::wait),
                (false, _) => PENDING_WAIT,
            };
            self.driver.turn(&mut self.border, wait)?;
            self.turns.fetch_add(1, Ordering::Relaxed);
            while let Some(event) = self.driver.next_event() {
                if !ready {
                    opened(&event.kind)?;
                }
                self.events.take(&event);
                if let Some(history) = &mut self.history {
                    history.event(event);
                }
            }
            if let Some(history) = &mut self.history {
                history.hand_over(&mut self.border, self.clock.now());
            }
            self.events.flush();
            let stored = self.history.is_some();
            self.border
                .set_debug_events(stored || self.events.has_debug());
            while let Some(reply) = self.border.next_conference_reply() {
                self.pending = self.pending.saturating_sub(1);
                // If the receiver is gone, the program is ending.
                let _ = self.replies.send(reply);
                self.first.wake();
            }
            ready = true;
            let sink = self.sink.as_mut();
            at_once = sink.is_some_and(|sink| sink.drain_from(&mut self.border));
            at_once |= self.operators.process(&mut WorkerContext {
                border: &mut self.border,
                driver: &mut self.driver,
                counts: self.events.counts(),
                now: self.clock.now(),
            });
            while let Ok(request) = self.inbox.try_recv() {
                let now = self.clock.now();
                match request {
                    WorkerRequest::Reload(config, security) => {
                        // Before the border opens new listeners, which need their certificates.
                        self.driver.set_security(security);
                        self.border.reload(config, now);
                    }
                    WorkerRequest::Drain(limit) => self.border.drain(limit, now),
                    WorkerRequest::SetOffload(offload) => self.border.set_media_offload(offload),
                    WorkerRequest::Conference(number, name, command) => {
                        self.pending += 1;
                        self.border.request_conference(number, &name, &command, now);
                    }
                    WorkerRequest::Stop => {
                        self.driver.turn(&mut self.border, Duration::ZERO)?;
                        while let Some(event) = self.driver.next_event() {
                            self.events.take(&event);
                        }
                        self.events.flush();
                        if let Some(sink) = &mut self.sink {
                            while sink.drain_from(&mut self.border) {}
                        }
                        if let Some(history) = self.history.take() {
                            history.finish(&mut self.border, &self.clock);
                        }
                        return Ok(());
                    }
                }
                at_once = true;
            }
            self.drained
                .store(self.border.is_drained(), Ordering::Release);
        }
    }
}
