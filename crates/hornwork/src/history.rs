//! The store of calls, messages and events. Packet threads copy messages and events into batches of bounded size and
//! hand them to a thread of its own through a bounded queue. That thread writes them, and sends copies by HEP. Nothing
//! blocks a packet thread: messages that find no room are counted, and the count is logged when writing works again.

mod agents;
pub(crate) mod location;

use crate::log::EventLog;
use agents::{AgentDrops, AgentMessage, Agents, HepSender};
use border::border::Border;
use config::Config;
use console::{
    HistoryWriter, StoreLocation, StoreNote, StoreSettings, StoredDirection, StoredMessage,
};
use engine::{Drops, Event, EventKind, MessageBatch, Time};
use net::Clock;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of messages in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Events in one batch, at most.
const BATCH_EVENTS: usize = 8_192;
/// Batches of one worker, at least.
const MIN_BATCHES: usize = 4;
/// Longest time that a packet thread collects messages: a hand-off wakes the writer, which costs a system call.
const COLLECT_TIME: Duration = Duration::from_millis(50);
/// Interval of the writer's work without messages.
const TICK: Duration = Duration::from_millis(100);
/// Interval of the counts of drops.
const DROPS_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait at the end of the program for the last messages to be written.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Batches of messages of agents that are taken at once.
const AGENT_BATCHES: usize = 16;
/// Remedy if a folder cannot be written.
const FOLDER_REMEDY: &str =
    "check the space and the rights of the disk, or reduce [store] size_mib";
/// Remedy if a database cannot be written.
const DATABASE_REMEDY: &str =
    "check the database server, the network path to it, its disk and the rights of the role";

/// One line about the store; empty without one.
pub fn summary(config: &Config) -> String {
    config.store.as_ref().map_or_else(String::new, |store| {
        format!(
            "store: calls and messages in {}, for {} days, {} MiB at most\n",
            location::location(&store.place),
            store.retention_days,
            store.size >> 20
        )
    })
}

/// Messages, events and drops of one worker.
#[derive(Default)]
struct HistoryBatch {
    worker: u8,
    messages: MessageBatch,
    events: Vec<Event>,
    events_lost: u64,
    drops: Option<Box<Drops>>,
}

/// Empty batches of one worker. The last one that was returned is used first, because its memory is in the cache.
type EmptyBatches = Arc<Mutex<Vec<HistoryBatch>>>;

/// Hands the messages and events of one worker to the writer.
pub(crate) struct HistorySink {
    worker: u8,
    full: SyncSender<HistoryBatch>,
    empty: EmptyBatches,
    events: Vec<Event>,
    events_lost: u64,
    handed_over: Time,
    drops_at: Time,
    is_pending: bool,
}

impl HistorySink {
    /// Begins recording.
    pub(crate) fn attach(&self, border: &mut Border) {
        border.record_messages(Some(MessageBatch::new(BATCH_BYTES)));
    }

    /// Takes an event.
    pub(crate) fn event(&mut self, event: Event) {
        match self.events.len() < BATCH_EVENTS {
            true => self.events.push(event),
            false => self.events_lost += 1,
        }
    }

    /// Hands over the collected messages and events, if it is due and the writer has room. To be called after each turn.
    pub(crate) fn hand_over(&mut self, border: &mut Border, now: Time) {
        let Some(messages) = border.recorded_messages() else {
            return;
        };
        let counts = now.since(self.drops_at) >= DROPS_INTERVAL;
        self.is_pending = !messages.is_empty() || !self.events.is_empty();
        let due = now.since(self.handed_over) >= COLLECT_TIME
            || messages.is_half_full()
            || self.events.len() >= BATCH_EVENTS / 2;
        if !(counts || self.is_pending && due) {
            return;
        }
        // Without an empty batch the current one fills up, and then counts the messages that are lost.
        // The writer holds the lock for the return of a batch only; in that moment the next turn tries again.
        let empty = self.empty.try_lock().ok().and_then(|mut all| all.pop());
        let Some(mut batch) = empty else {
            return;
        };
        std::mem::swap(messages, &mut batch.messages);
        std::mem::swap(&mut self.events, &mut batch.events);
        batch.events_lost = std::mem::take(&mut self.events_lost);
        batch.worker = self.worker;
        batch.drops = counts.then(|| Box::new(border.drops()));
        if counts {
            self.drops_at = now;
        }
        self.handed_over = now;
        self.is_pending = false;
        // The queue has room for all batches; if the writer has ended, the program ends too.
        let _ = self.full.try_send(batch);
    }

    /// Longest time until the next hand-over is due.
    pub(crate) fn wait(&self) -> Duration {
        match self.is_pending {
            true => COLLECT_TIME,
            false => DROPS_INTERVAL,
        }
    }

    /// Hands over everything that is left, at the end of the program.
    pub(crate) fn finish(mut self, border: &mut Border, clock: &Clock) {
        self.drops_at = Time::ZERO;
        let until = clock.now() + END_TIMEOUT;
        loop {
            self.hand_over(border, clock.now() + DROPS_INTERVAL);
            // The writer may still have all batches.
            if !self.is_pending || clock.now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The store of a running border.
pub(crate) struct CallHistory {
    thread: JoinHandle<()>,
    agents: Option<Agents>,
    sinks: Vec<HistorySink>,
    clock: Clock,
}

impl CallHistory {
    /// Opens the store if one is configured, and starts its threads.
    ///
    /// # Errors
    /// The reason why it cannot be opened, with the remedy.
    pub(crate) fn start(
        config: &Config,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<Option<CallHistory>> {
        let Some(spec) = &config.store else {
            return Ok(None);
        };
        let place = location::location(&spec.place);
        let shown = place.to_string();
        let (open_remedy, remedy) = match place {
            StoreLocation::Folder(_) => (
                "correct [store] folder, or stop the other border",
                FOLDER_REMEDY,
            ),
            StoreLocation::Database(_) => (
                "correct [store] database, the password file or the rights of the role; each border needs a `node` of its own",
                DATABASE_REMEDY,
            ),
        };
        let settings = StoreSettings {
            location: place,
            node: spec.node.clone(),
            retention_days: spec.retention_days,
            size: spec.size,
            secure_content: spec.secure_content,
            full_text: spec.full_text,
        };
        let writer = HistoryWriter::open(settings, micros(clock.unix_nanos_now()));
        let writer = writer.map_err(|error| {
            io::Error::other(format!(
                "cannot open the store {shown}: {error}\n  remedy: {open_remedy}"
            ))
        })?;
        let hep = HepSender::open(spec)?;
        let workers = config.sip.workers;
        let batches = (spec.queue / BATCH_BYTES / usize::from(workers)).max(MIN_BATCHES);
        let (full, inbox) = sync_channel(batches * usize::from(workers));
        let (mut sinks, mut returns) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let all = (0..batches).map(|_| HistoryBatch {
                messages: MessageBatch::new(BATCH_BYTES),
                ..HistoryBatch::default()
            });
            let empty: EmptyBatches = Arc::new(Mutex::new(all.collect()));
            returns.push(empty.clone());
            sinks.push(HistorySink {
                worker,
                full: full.clone(),
                empty,
                events: Vec::new(),
                events_lost: 0,
                handed_over: Time::ZERO,
                drops_at: Time::ZERO,
                is_pending: false,
            });
        }
        let (agents, from_agents) = match Agents::start(spec, clock)? {
            Some((agents, messages)) => {
                let drops = agents.drops.clone();
                (Some(agents), Some((messages, drops)))
            }
            None => (None, None),
        };
        let thread = StoreThread {
            folder: shown,
            remedy,
            secure_content: spec.secure_content,
            writer,
            hep,
            inbox,
            returns,
            drops: vec![Drops::new(); usize::from(workers)],
            from_agents,
            agents_reported: Time::ZERO,
            log: log.clone(),
            clock,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                thread.run();
            })?;
        Ok(Some(CallHistory {
            thread,
            agents,
            sinks,
            clock,
        }))
    }

    /// The sinks of the workers, in their order; once.
    pub(crate) fn take_sinks(&mut self) -> Vec<HistorySink> {
        std::mem::take(&mut self.sinks)
    }

    /// Waits until the last messages are written. All sinks must be gone.
    pub(crate) fn end(self) {
        if let Some(agents) = self.agents {
            agents.stop();
        }
        let until = self.clock.now() + END_TIMEOUT;
        while !self.thread.is_finished() && self.clock.now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Microseconds of nanoseconds.
fn micros(nanos: u64) -> i64 {
    i64::try_from(nanos / 1_000).unwrap_or(i64::MAX)
}

/// The thread that writes.
struct StoreThread {
    folder: String,
    /// Remedy if it cannot be written.
    remedy: &'static str,
    secure_content: bool,
    writer: HistoryWriter,
    hep: Option<HepSender>,
    inbox: Receiver<HistoryBatch>,
    /// Returns empty batches to the workers.
    returns: Vec<EmptyBatches>,
    /// Drops of each worker at the last count.
    drops: Vec<Drops>,
    from_agents: Option<(Receiver<Vec<AgentMessage>>, Arc<AgentDrops>)>,
    agents_reported: Time,
    log: EventLog,
    clock: Clock,
}

impl StoreThread {
    fn run(mut self) {
        let mut reduced = Vec::new();
        loop {
            match self.inbox.recv_timeout(TICK) {
                Ok(batch) => self.batch(batch, &mut reduced),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.agents();
            self.writer.tick(micros(self.clock.unix_nanos_now()));
            self.notes();
        }
        self.agents();
        let now = micros(self.clock.unix_nanos_now());
        self.writer.tick(now);
        self.notes();
        self.writer.end(now);
    }

    fn batch(&mut self, mut batch: HistoryBatch, reduced: &mut Vec<u8>) {
        // Events before messages: they tell which Call-IDs belong to one call.
        for event in batch.events.drain(..) {
            let at = micros(self.clock.unix_nanos(event.at));
            self.writer.event(&event, at);
        }
        for (message, bytes) in batch.messages.iter() {
            let (source, destination) = match message.sent {
                true => (message.local, message.remote),
                false => (message.remote, message.local),
            };
            let stored = StoredMessage {
                time: self.clock.unix_nanos(message.at),
                direction: match message.sent {
                    true => StoredDirection::Sent,
                    false => StoredDirection::Received,
                },
                transport: message.transport,
                source,
                destination,
                bytes,
            };
            self.writer.message(&stored, b"");
            if let Some(hep) = &mut self.hep {
                let mut sent = stored;
                if console::is_secure(stored.transport) && !self.secure_content {
                    console::reduce(bytes, reduced);
                    sent.bytes = reduced;
                }
                hep.send(&sent, self.writer.correlation().unwrap_or_default());
            }
        }
        self.writer
            .count_lost(batch.messages.lost() + batch.events_lost);
        if let Some(drops) = batch.drops.take() {
            self.count_drops(batch.worker, &drops);
        }
        batch.messages.clear();
        if let Some(empty) = self.returns.get(usize::from(batch.worker)) {
            let mut empty = empty.lock().unwrap_or_else(PoisonError::into_inner);
            empty.push(batch);
        }
    }

    /// Stores the drops since the last count.
    fn count_drops(&mut self, worker: u8, drops: &Drops) {
        let now = micros(self.clock.unix_nanos_now());
        let Some(before) = self.drops.get_mut(usize::from(worker)) else {
            return;
        };
        for (reason, count) in drops.iter() {
            let new = count.saturating_sub(before.get(reason));
            self.writer.drops(now, reason.name(), new);
        }
        before.clone_from(drops);
    }

    fn agents(&mut self) {
        let Some((inbox, _)) = &self.from_agents else {
            return;
        };
        for messages in inbox.try_iter().take(AGENT_BATCHES) {
            for message in &messages {
                self.writer.message(&message.stored(), &message.correlation);
            }
        }
    }

    fn notes(&mut self) {
        let folder = || self.folder.clone();
        let mut events = Vec::new();
        while let Some(note) = self.writer.next_note() {
            events.push(match note {
                StoreNote::Completed {
                    messages,
                    interrupted,
                } => EventKind::StoreCompleted {
                    folder: folder(),
                    messages,
                    interrupted,
                },
                StoreNote::Failed { reason } => EventKind::StoreFailed {
                    folder: folder(),
                    reason,
                    remedy: self.remedy.to_owned(),
                },
                StoreNote::Resumed { outage_s } => EventKind::StoreResumed {
                    folder: folder(),
                    outage_s,
                },
                StoreNote::Lost { messages } => EventKind::StoreMessagesLost {
                    folder: folder(),
                    messages,
                },
                StoreNote::Replaced { moved_to, reason } => {
                    EventKind::StorePartReplaced { moved_to, reason }
                }
            });
        }
        let now = self.clock.now();
        if let Some(hep) = &mut self.hep {
            events.extend(hep.dropped(now));
        }
        if let Some((_, drops)) = &self.from_agents
            && now.since(self.agents_reported) >= DROPS_INTERVAL
        {
            self.agents_reported = now;
            events.extend(drops.take());
        }
        for kind in events {
            let event = Event::new(now, kind);
            self.log.event(&event);
            self.writer
                .event(&event, micros(self.clock.unix_nanos(now)));
            self.log.flush();
        }
    }
}
