//! Operator jobs: short tasks that the control interface runs on the packet threads between two turns, through one
//! bounded queue for each thread. Replies return over one-shot channels, so that a client that does not read delays
//! nothing.

mod commands;

pub(crate) use commands::{CommandError, NamedRegistration};

use crate::alarms::AlarmBoard;
use crate::event_output::EventCounts;
use crate::gateway::GatewayFigures;
use crate::history::agents::HepCounts;
use crate::log::EventLog;
use crate::records::RecordCounters;
use crate::traces::TraceCounters;
use border::border::{Border, BorderCounters};
use border::views::{NodeView, OverloadView};
use console::{LossCounts, Losses};
use engine::{Drops, Time};
use media::forward::Forwarder;
use net::{Clock, Driver, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Most jobs in the queue of a thread; further ones are refused.
const MAX_QUEUED: usize = 64;
/// Most jobs between two turns.
const MAX_PER_TURN: usize = 4;
/// Longest time for the reply of a thread.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a packet thread, lent to a job.
pub(crate) struct WorkerContext<'a> {
    pub(crate) border: &'a mut Border,
    pub(crate) driver: &'a mut Driver<Forwarder>,
    pub(crate) counts: &'a EventCounts,
    pub(crate) now: Time,
}

type OperatorJob = Box<dyn FnOnce(&mut WorkerContext<'_>) + Send>;

/// The queue of one packet thread, as seen by the control interface.
#[derive(Clone)]
pub(crate) struct OperatorLine {
    jobs: SyncSender<OperatorJob>,
    waker: Waker,
}

/// The other end of the queue.
pub(crate) struct OperatorInbox(Receiver<OperatorJob>);

/// A queue for the thread that `waker` wakes.
pub(crate) fn line(waker: Waker) -> (OperatorLine, OperatorInbox) {
    let (jobs, inbox) = sync_channel(MAX_QUEUED);
    (OperatorLine { jobs, waker }, OperatorInbox(inbox))
}

impl OperatorInbox {
    /// Runs queued jobs. Returns whether the next turn should follow at once.
    pub(crate) fn process(&self, context: &mut WorkerContext<'_>) -> bool {
        for _ in 0..MAX_PER_TURN {
            match self.0.try_recv() {
                Ok(job) => job(context),
                Err(_) => return false,
            }
        }
        true
    }
}

/// A request to the main thread.
pub(crate) enum ServiceRequest {
    /// Reload the configuration; the reply is the error.
    Reload(oneshot::Sender<Result<(), String>>),
    /// Drain, with a limit other than the configured one.
    Drain(Option<Duration>),
}

/// The reason why a job has no reply.
pub(crate) const NO_REPLY: &str = "the border did not respond in time";

/// Access to all packet threads.
#[derive(Clone)]
pub(crate) struct Operators {
    lines: Arc<[OperatorLine]>,
    requests: Arc<(AtomicBool, Mutex<Vec<ServiceRequest>>)>,
    pub(crate) records: Option<Arc<RecordCounters>>,
    pub(crate) traces: Option<Arc<TraceCounters>>,
    /// Losses of the store of calls and messages.
    pub(crate) store: Option<Arc<Losses>>,
    /// Counts of HEP packets.
    pub(crate) hep: Option<Arc<HepCounts>>,
    /// Figures of the IPsec gateway.
    pub(crate) gateway: Option<Arc<GatewayFigures>>,
    pub(crate) alarms: AlarmBoard,
    pub(crate) log: EventLog,
    pub(crate) clock: Clock,
}

impl Operators {
    /// `lines` begins with that of the main thread.
    pub(crate) fn new(
        lines: Vec<OperatorLine>,
        (records, traces): (Option<Arc<RecordCounters>>, Option<Arc<TraceCounters>>),
        log: &EventLog,
        clock: Clock,
    ) -> Operators {
        Operators {
            lines: lines.into(),
            requests: Arc::default(),
            records,
            traces,
            store: None,
            hep: None,
            gateway: None,
            alarms: log.alarms(),
            log: log.clone(),
            clock,
        }
    }

    /// Number of packet threads.
    pub(crate) fn workers(&self) -> usize {
        self.lines.len()
    }

    /// Requests to the main thread since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ServiceRequest> {
        let (any, requests) = &*self.requests;
        if !any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a request to the main thread.
    pub(crate) fn request(&self, request: ServiceRequest) {
        let (any, requests) = &*self.requests;
        let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(request);
        any.store(true, Ordering::Release);
        drop(requests);
        if let Some(first) = self.lines.first() {
            first.waker.wake();
        }
    }

    /// Runs a job on one thread.
    ///
    /// # Errors
    /// If its queue is full, or it does not reply in time.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        worker: usize,
        job: impl FnOnce(&mut WorkerContext<'_>) -> T + Send + 'static,
    ) -> Result<T, &'static str> {
        let (reply, answer) = oneshot::channel();
        let line = self.lines.get(worker).ok_or(NO_REPLY)?;
        let job: OperatorJob = Box::new(move |context| {
            // The client may have gone.
            let _ = reply.send(job(context));
        });
        line.jobs.try_send(job).map_err(|_| NO_REPLY)?;
        line.waker.wake();
        match timeout(REPLY_TIMEOUT, answer).await {
            Ok(Ok(value)) => Ok(value),
            _ => Err(NO_REPLY),
        }
    }

    /// Runs a job on all threads; the replies are in their order.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn ask_all<T: Send + 'static>(
        &self,
        job: impl Fn(&mut WorkerContext<'_>) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, &'static str> {
        let mut replies = Vec::new();
        for worker in 0..self.lines.len() {
            replies.push(self.ask(worker, job.clone()).await?);
        }
        Ok(replies)
    }

    /// Figures of all threads, without those of each trunk: there may be thousands.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn statistics(&self) -> Result<Statistics, &'static str> {
        let workers = self.ask_all(WorkerStatistics::of).await?;
        let mut total = Statistics::default();
        for worker in workers {
            total.add(worker);
        }
        total.store = self.store.as_deref().map(StoreState::of);
        Ok(total)
    }
}

/// Figures of one thread.
struct WorkerStatistics {
    counters: BorderCounters,
    drops: Drops,
    calls: usize,
    registrations: usize,
    packets: u64,
    relayed_in_kernel: u64,
    events_lost: u64,
    draining: bool,
    overload: OverloadView,
    counts: EventCounts,
    nodes: Vec<NodeView>,
}

impl WorkerStatistics {
    fn of(context: &mut WorkerContext<'_>) -> WorkerStatistics {
        let border = &mut *context.border;
        let driver = context.driver.counters();
        let mut drops = border.drops();
        drops.merge(&driver.drops);
        WorkerStatistics {
            counters: border.counters().clone(),
            drops,
            calls: border.call_count(),
            registrations: border.registration_count(),
            packets: context
                .driver
                .forwarder()
                .map_or(0, |forwarder| forwarder.packets()),
            relayed_in_kernel: driver.relayed_in_kernel,
            events_lost: driver.events_lost,
            draining: border.is_draining(),
            overload: border.overload_view(),
            counts: context.counts.sums(),
            nodes: border.node_views(),
        }
    }
}

/// Figures of the border.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    /// Sums of the counters that metrics use, by name.
    pub(crate) counters: BorderCounters,
    pub(crate) drops: Drops,
    pub(crate) calls: u64,
    pub(crate) registrations: u64,
    pub(crate) packets: u64,
    pub(crate) relayed_in_kernel: u64,
    pub(crate) events_lost: u64,
    pub(crate) draining: bool,
    pub(crate) overload: OverloadView,
    /// Without those of trunks ([`Operators::trunk_outcomes`]).
    pub(crate) counts: EventCounts,
    pub(crate) nodes: Vec<NodeView>,
    /// The store of calls and messages; `None`: there is none.
    pub(crate) store: Option<StoreState>,
}

/// State of the store of calls and messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreState {
    /// Lost items since the start.
    pub(crate) lost: LossCounts,
    /// Messages that are in its files and that no search finds.
    pub(crate) unindexed: u64,
    /// Whether writing fails.
    pub(crate) failing: bool,
}

impl StoreState {
    fn of(losses: &Losses) -> StoreState {
        StoreState {
            lost: losses.counts(),
            unindexed: losses.unindexed(),
            failing: losses.is_failing(),
        }
    }
}

impl Statistics {
    fn add(&mut self, worker: WorkerStatistics) {
        self.counters.merge(&worker.counters);
        self.drops.merge(&worker.drops);
        self.calls += worker.calls as u64;
        // Registrations are shared by all workers.
        self.registrations = worker.registrations as u64;
        self.packets += worker.packets;
        self.relayed_in_kernel += worker.relayed_in_kernel;
        self.events_lost += worker.events_lost;
        self.draining |= worker.draining;
        self.overload.active |= worker.overload.active;
        self.overload.queue_delay = self.overload.queue_delay.max(worker.overload.queue_delay);
        self.counts.merge(&worker.counts);
        match self.nodes.is_empty() {
            true => self.nodes = worker.nodes,
            false => {
                for (mine, theirs) in self.nodes.iter_mut().zip(worker.nodes) {
                    mine.calls += theirs.calls;
                    mine.up &= theirs.up;
                }
            }
        }
    }
}
