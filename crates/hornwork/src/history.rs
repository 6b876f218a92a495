//! The store of calls, messages and events. Packet threads copy messages and events into batches of bounded size and
//! hand them to a thread of its own through a bounded queue. That thread writes them, and sends copies by HEP. Nothing
//! blocks a packet thread: messages and events that find no room are counted at once, and logged by the thread that
//! writes.

pub(crate) mod agents;
mod collector;
pub(crate) mod location;

use crate::log::EventLog;
use agents::{AgentPacket, Agents, HepCounts, HepReports};
use border::border::Border;
use collector::HepSender;
use config::Config;
use console::{
    HistoryWriter, Losses, StoreLocation, StoreNote, StoreSettings, StoredDirection, StoredMessage,
};
use engine::{Drops, Event, EventKind, MessageBatch, Time};
use net::Clock;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of messages in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Events in one batch, at most.
const BATCH_EVENTS: usize = 8_192;
/// Calls of one worker whose end found no room, until the next batch, at most.
const MAX_LOST_ENDS: usize = 65_536;
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
        let mut text = format!(
            "store: calls and messages in {}, for {} days, {} MiB at most\n",
            location::location(&store.place),
            store.retention_days,
            store.size >> 20
        );
        if let Some((host, port)) = &store.hep.send {
            let id = store.hep.id;
            text.push_str(&format!(
                "HEP: copies of messages to udp:{host}:{port}, as agent {id}\n"
            ));
        }
        if let Some(listen) = store.hep.listen {
            let rate = store.hep.rate;
            text.push_str(&format!(
                "HEP: from capture agents at udp:{listen}, at most {rate} packets per second\n"
            ));
        }
        text
    })
}

/// Messages, events and drops of one worker.
#[derive(Default)]
struct HistoryBatch {
    worker: u8,
    messages: MessageBatch,
    events: Vec<Event>,
    /// Calls whose end is not among the events, which had no room.
    lost_ends: Vec<u64>,
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
    lost_ends: Vec<u64>,
    losses: Arc<Losses>,
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
        if self.events.len() < BATCH_EVENTS {
            self.events.push(event);
            return;
        }
        self.losses.add_events(1);
        // Without its end, the writer would keep the call in memory.
        if let EventKind::CallEnded { call, .. } = event.kind
            && self.lost_ends.len() < MAX_LOST_ENDS
        {
            self.lost_ends.push(call);
        }
    }

    /// Hands over the collected messages and events, if it is due and the writer has room. To be called after each
    /// turn.
    pub(crate) fn hand_over(&mut self, border: &mut Border, now: Time) {
        let Some(messages) = border.recorded_messages() else {
            return;
        };
        // Without an empty batch the current one fills up, and then counts the messages that find no room.
        self.losses.add_messages(messages.take_lost());
        let counts = now.since(self.drops_at) >= DROPS_INTERVAL;
        self.is_pending = !messages.is_empty() || !self.events.is_empty();
        let due = now.since(self.handed_over) >= COLLECT_TIME
            || messages.is_half_full()
            || self.events.len() >= BATCH_EVENTS / 2;
        if !(counts || self.is_pending && due) {
            return;
        }
        // The writer holds the lock for the return of a batch only; in that moment the next turn tries again.
        let empty = self.empty.try_lock().ok().and_then(|mut all| all.pop());
        let Some(mut batch) = empty else {
            return;
        };
        std::mem::swap(messages, &mut batch.messages);
        std::mem::swap(&mut self.events, &mut batch.events);
        std::mem::swap(&mut self.lost_ends, &mut batch.lost_ends);
        batch.worker = self.worker;
        batch.drops = counts.then(|| Box::new(border.drops()));
        if counts {
            self.drops_at = now;
        }
        self.handed_over = now;
        self.is_pending = false;
        // The queue has room for all batches; if the writer has ended, they are lost.
        if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
            self.full.try_send(batch)
        {
            self.losses.add_messages(batch.messages.len() as u64);
            self.losses.add_events(batch.events.len() as u64);
        }
    }

    /// Longest time until the next hand-over is due.
    pub(crate) fn wait(&self) -> Duration {
        match self.is_pending {
            true => COLLECT_TIME,
            false => DROPS_INTERVAL,
        }
    }

    /// Hands over everything that is left, at the end of the program. Items that the writer does not take in time are
    /// lost.
    pub(crate) fn finish(mut self, border: &mut Border, clock: &Clock) {
        self.drops_at = Time::ZERO;
        let until = clock.now() + END_TIMEOUT;
        loop {
            self.hand_over(border, clock.now() + DROPS_INTERVAL);
            // The writer may still have all batches.
            if !self.is_pending {
                return;
            }
            if clock.now() >= until {
                let left = border.recorded_messages().map_or(0, |left| left.len());
                self.losses.add_messages(left as u64);
                self.losses.add_events(self.events.len() as u64);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The store of a running border.
pub(crate) struct CallHistory {
    thread: JoinHandle<()>,
    folder: String,
    remedy: &'static str,
    losses: Arc<Losses>,
    hep_counts: Arc<HepCounts>,
    log: EventLog,
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
        let writer = HistoryWriter::open(settings, micros(store_nanos(&clock)));
        let writer = writer.map_err(|error| {
            io::Error::other(format!(
                "cannot open the store {shown}: {error}\n  remedy: {open_remedy}"
            ))
        })?;
        let losses = writer.losses();
        let hep_counts = Arc::new(HepCounts::default());
        let hep = HepSender::start(spec, &hep_counts, log, clock)?;
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
                lost_ends: Vec::new(),
                losses: losses.clone(),
                handed_over: Time::ZERO,
                drops_at: Time::ZERO,
                is_pending: false,
            });
        }
        let (agents, from_agents) = Agents::start(spec, clock, &hep_counts)?.unzip();
        if let Some(listen) = spec.hep.listen {
            let note = EventKind::SocketOpened {
                purpose: "hep".to_owned(),
                address: format!("udp:{listen}"),
            };
            log.event(&Event::new(clock.now(), note));
        }
        let thread = StoreThread {
            folder: shown.clone(),
            remedy,
            secure_content: spec.secure_content,
            writer,
            hep,
            inbox,
            returns,
            drops: vec![Drops::new(); usize::from(workers)],
            from_agents,
            hep_counts: hep_counts.clone(),
            hep_reports: HepReports::new(hep_counts.clone()),
            log: log.clone(),
            clock,
        };
        let watch = StoreWatch {
            folder: shown.clone(),
            losses: losses.clone(),
            log: log.clone(),
            clock,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                watch.run(|| thread.run());
            })?;
        Ok(Some(CallHistory {
            thread,
            folder: shown,
            remedy,
            losses,
            hep_counts,
            log: log.clone(),
            agents,
            sinks,
            clock,
        }))
    }

    /// The sinks of the workers, in their order; once.
    pub(crate) fn take_sinks(&mut self) -> Vec<HistorySink> {
        std::mem::take(&mut self.sinks)
    }

    /// Counts of HEP packets.
    pub(crate) fn hep_counts(&self) -> Arc<HepCounts> {
        self.hep_counts.clone()
    }

    /// Counts of everything that the store could not keep.
    pub(crate) fn losses(&self) -> Arc<Losses> {
        self.losses.clone()
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
        if !self.thread.is_finished() {
            let seconds = END_TIMEOUT.as_secs();
            let kind = EventKind::StoreFailed {
                folder: self.folder,
                reason: format!("the last messages were not written within {seconds} s of the end"),
                remedy: self.remedy.to_owned(),
            };
            self.log.event(&Event::new(self.clock.now(), kind));
            self.log.flush();
        }
    }
}

/// The time of the store, nanoseconds since 1970: that of the start, and the time since then, as in messages and
/// events. Partitions and searches by time, the end of calls in memory and the retention would fail if the clock was
/// set between two of these.
fn store_nanos(clock: &Clock) -> u64 {
    clock.unix_nanos(clock.now())
}

/// Microseconds of nanoseconds.
fn micros(nanos: u64) -> i64 {
    i64::try_from(nanos / 1_000).unwrap_or(i64::MAX)
}

/// Tells if the thread that writes panics: the border goes on, but stores nothing.
struct StoreWatch {
    folder: String,
    losses: Arc<Losses>,
    log: EventLog,
    clock: Clock,
}

impl StoreWatch {
    fn run(self, work: impl FnOnce()) {
        // Nothing that the work has changed is used after a panic.
        if catch_unwind(AssertUnwindSafe(work)).is_ok() {
            return;
        }
        self.losses.set_failing(true);
        let kind = EventKind::StoreFailed {
            folder: self.folder,
            reason: "the thread that writes has ended by a panic".to_owned(),
            remedy: "restart the border, and report the panic in the log".to_owned(),
        };
        self.log.event(&Event::new(self.clock.now(), kind));
        self.log.flush();
    }
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
    from_agents: Option<Receiver<Vec<AgentPacket>>>,
    hep_counts: Arc<HepCounts>,
    hep_reports: HepReports,
    log: EventLog,
    clock: Clock,
}

impl StoreThread {
    fn run(mut self) {
        let mut reduced = Vec::new();
        let mut wait = TICK;
        loop {
            match self.inbox.recv_timeout(wait) {
                Ok(batch) => self.batch(batch, &mut reduced),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            wait = match self.agents() {
                true => Duration::ZERO,
                false => TICK,
            };
            let wall_clock = micros(self.clock.unix_nanos_now());
            self.writer.set_wall_clock(wall_clock);
            self.writer.tick(micros(store_nanos(&self.clock)));
            self.notes();
        }
        // The thread of the agents has ended before, so that this ends.
        while self.agents() {}
        let now = micros(store_nanos(&self.clock));
        self.writer.tick(now);
        self.notes();
        let note = self.writer.end(now);
        if let Some(kind) = note.and_then(|note| note_event(note, &self.folder, self.remedy)) {
            self.log.event(&Event::new(self.clock.now(), kind));
            self.log.flush();
        }
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
        // After the messages: a BYE tells more about the end.
        for call in batch.lost_ends.drain(..) {
            self.writer.lost_end(call);
        }
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
        let now = micros(store_nanos(&self.clock));
        let Some(before) = self.drops.get_mut(usize::from(worker)) else {
            return;
        };
        for (reason, count) in drops.iter() {
            let new = count.saturating_sub(before.get(reason));
            self.writer.drops(now, reason.name(), new);
        }
        before.clone_from(drops);
    }

    /// Stores packets of agents; whether more may wait.
    fn agents(&mut self) -> bool {
        let Some(inbox) = &self.from_agents else {
            return false;
        };
        let mut taken = 0;
        for packets in inbox.try_iter().take(AGENT_BATCHES) {
            taken += 1;
            for packet in packets {
                match packet {
                    AgentPacket::Message(message) => {
                        self.writer.message(&message.stored(), &message.correlation);
                    }
                    AgentPacket::Reports(time, reports) => {
                        let is_known = reports.iter().any(|report| match report {
                            EventKind::RtcpReport { call_id, .. } => self.writer.knows(call_id),
                            _ => false,
                        });
                        if !is_known {
                            self.hep_counts.add_unknown_call();
                            continue;
                        }
                        self.hep_counts.add_received();
                        for report in reports {
                            // The store goes by the time that is passed to it.
                            let event = Event::new(Time::ZERO, report);
                            self.writer.event(&event, micros(time));
                        }
                    }
                }
            }
        }
        taken == AGENT_BATCHES
    }

    fn notes(&mut self) {
        let mut events = Vec::new();
        while let Some(note) = self.writer.next_note() {
            events.extend(note_event(note, &self.folder, self.remedy));
        }
        let now = self.clock.now();
        events.extend(self.hep_reports.take(now));
        for kind in events {
            let event = Event::new(now, kind);
            self.log.event(&event);
            self.writer
                .event(&event, micros(self.clock.unix_nanos(now)));
            self.log.flush();
        }
    }
}

/// The event that tells a note of the store; `None` for a warning of the log. `folder`: folder or database, as it is
/// shown.
fn note_event(note: StoreNote, folder: &str, remedy: &str) -> Option<EventKind> {
    let folder = folder.to_owned();
    Some(match note {
        StoreNote::ClockAhead { days } => {
            tracing::warn!("store {folder}: {}", clock_warning(days));
            return None;
        }
        StoreNote::Completed {
            messages,
            interrupted,
        } => EventKind::StoreCompleted {
            folder,
            messages,
            interrupted,
        },
        StoreNote::Failed { reason } => EventKind::StoreFailed {
            folder,
            reason,
            remedy: remedy.to_owned(),
        },
        StoreNote::Resumed { outage_s } => EventKind::StoreResumed { folder, outage_s },
        StoreNote::Lost(lost) => EventKind::StoreMessagesLost {
            folder,
            messages: lost.messages,
            events: lost.events,
            drops: lost.drops,
            calls: lost.calls,
        },
        StoreNote::Replaced { moved_to, reason } => {
            EventKind::StorePartReplaced { moved_to, reason }
        }
    })
}

/// The warning that nothing is removed for its age, with the remedy.
pub(crate) fn clock_warning(days: u64) -> String {
    format!(
        "the clock is {days} days ahead of the newest record, or of another clock: nothing is removed for its age until a day after the start; if the clock is wrong, set it and restart the border"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use agents::AgentMessage;
    use engine::{RecordedMessage, Transport};

    const CONFIGURATION: &str = "[[interface]]\nname = \"inside\"\nkind = \"core\"\n\
        listen = \"udp:127.0.0.1:5060\"\nallow = \"127.0.0.0/8\"\n";

    fn sink(batches: usize) -> (HistorySink, Receiver<HistoryBatch>) {
        let (full, inbox) = sync_channel(batches);
        let all = (0..batches).map(|_| HistoryBatch {
            messages: MessageBatch::new(BATCH_BYTES),
            ..HistoryBatch::default()
        });
        let sink = HistorySink {
            worker: 0,
            full,
            empty: Arc::new(Mutex::new(all.collect())),
            events: Vec::new(),
            lost_ends: Vec::new(),
            losses: Arc::default(),
            handed_over: Time::ZERO,
            drops_at: Time::ZERO,
            is_pending: false,
        };
        (sink, inbox)
    }

    /// More than ten times the capacity of the queue, while the writer takes nothing.
    #[test]
    fn losses_of_a_full_queue_are_counted_exactly() {
        const HANDED: u64 = 40_000;
        let config = config::parse(CONFIGURATION, "test").expect("configuration");
        let entropy = net::entropy().expect("entropy");
        let mut border = Border::worker_pool(config, 1, entropy).remove(0);
        let (mut sink, inbox) = sink(3);
        let losses = sink.losses.clone();
        sink.attach(&mut border);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 5060));
        for number in 0..HANDED {
            // Within a moment: batches are handed over when they are half full.
            let at = Time(number);
            let message = RecordedMessage {
                at,
                sent: false,
                transport: Transport::Udp,
                local: address,
                remote: address,
            };
            let recorded = border.recorded_messages().expect("recording");
            recorded.push(message, &[b'x'; 1_000]);
            let trunk = "pbx".to_owned();
            sink.event(Event::new(at, EventKind::TrunkUp { trunk }));
            if number % 10 == 0 {
                sink.hand_over(&mut border, at);
            }
        }
        // The losses are visible while the writer is blocked.
        let blocked = losses.counts();
        assert!(blocked.messages > HANDED * 8 / 10, "{blocked:?}");
        assert!(blocked.events > HANDED / 10, "{blocked:?}");
        sink.finish(&mut border, &Clock::new());
        let (mut messages, mut events) = (0, 0);
        for batch in inbox.try_iter() {
            messages += batch.messages.len() as u64;
            events += batch.events.len() as u64;
        }
        let lost = losses.counts();
        assert!(messages > 1_000 && events > 1_000, "{messages} {events}");
        assert_eq!(messages + lost.messages, HANDED);
        assert_eq!(events + lost.events, HANDED);
        assert_eq!((lost.drops, lost.calls), (0, 0));
    }

    #[test]
    fn calls_whose_end_finds_no_room_are_named_to_the_writer() {
        let config = config::parse(CONFIGURATION, "test").expect("configuration");
        let entropy = net::entropy().expect("entropy");
        let mut border = Border::worker_pool(config, 1, entropy).remove(0);
        let (mut sink, inbox) = sink(1);
        sink.attach(&mut border);
        let ended = |call: usize| {
            let kind = EventKind::CallEnded {
                call: call as u64,
                ended_by: "caller".into(),
                reason: "BYE".into(),
                status: 200,
                duration_ms: None,
                trunk: None,
                path: None,
                codec: None,
                caller_loss_percent: None,
                caller_jitter_ms: None,
                caller_mos: None,
                callee_loss_percent: None,
                callee_jitter_ms: None,
                callee_mos: None,
            };
            Event::new(Time::ZERO, kind)
        };
        for call in 0..BATCH_EVENTS + MAX_LOST_ENDS + 7 {
            sink.event(ended(call));
        }
        assert_eq!(sink.losses.counts().events, MAX_LOST_ENDS as u64 + 7);
        sink.hand_over(&mut border, Time::ZERO + COLLECT_TIME);
        let batch = inbox.try_recv().unwrap();
        let from = BATCH_EVENTS as u64;
        let lost = from..from + MAX_LOST_ENDS as u64;
        assert!(batch.lost_ends.into_iter().eq(lost));
        assert!(sink.lost_ends.is_empty());
    }

    /// Packets of agents are taken while they wait, not at the pace of the border's own batches.
    #[test]
    fn packets_of_agents_are_stored_in_rows() {
        const BATCHES: usize = AGENT_BATCHES * 3;
        let name = format!("hornwork-agents-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        let location = StoreLocation::Folder(folder.clone());
        let settings = StoreSettings {
            location: location.clone(),
            node: String::new(),
            retention_days: 1,
            size: 1 << 30,
            secure_content: false,
            full_text: false,
        };
        let clock = Clock::new();
        let writer = HistoryWriter::open(settings, micros(store_nanos(&clock))).unwrap();
        let (agents, from_agents) = sync_channel(BATCHES);
        for number in 0..BATCHES {
            let text =
                format!("OPTIONS sip:x SIP/2.0\r\nCall-ID: {number}\r\nCSeq: 1 OPTIONS\r\n\r\n");
            let message = AgentMessage::observed(text.as_bytes(), store_nanos(&clock));
            agents.send(vec![AgentPacket::Message(message)]).unwrap();
        }
        let (packets, inbox) = sync_channel(1);
        let hep_counts = Arc::new(HepCounts::default());
        let mut thread = StoreThread {
            folder: String::new(),
            remedy: FOLDER_REMEDY,
            secure_content: false,
            writer,
            hep: None,
            inbox,
            returns: Vec::new(),
            drops: Vec::new(),
            from_agents: Some(from_agents),
            hep_reports: HepReports::new(hep_counts.clone()),
            hep_counts,
            log: EventLog::unwritten(clock),
            clock,
        };
        // More wait: the next turn must not wait for a batch of the border.
        assert!(thread.agents());
        drop(packets);
        thread.run();
        let reader = console::HistoryReader::open(&location).unwrap();
        let page = reader
            .search(&console::CallFilter::default(), None, 1_000)
            .unwrap();
        assert_eq!(page.calls.len(), BATCHES);
        drop(reader);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The machine starts with a wrong clock, which is set two days forward after the border has started.
    #[test]
    fn calls_are_found_by_their_time_after_the_clock_was_set() {
        let name = format!("hornwork-clock-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        let text = format!(
            "{CONFIGURATION}[store]\nfolder = \"{}\"\n",
            folder.display()
        );
        let config = config::parse(&text, "test").expect("configuration");
        let day = Duration::from_secs(86_400).as_nanos() as u64;
        let clock = Clock::dated(Clock::new().unix_nanos_now() - 2 * day);
        let log = EventLog::unwritten(clock);
        let mut history = CallHistory::start(&config, &log, clock).unwrap().unwrap();
        let entropy = net::entropy().expect("entropy");
        let mut border = Border::worker_pool(config, 1, entropy).remove(0);
        let sink = history.take_sinks().remove(0);
        sink.attach(&mut border);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 5060));
        let message = RecordedMessage {
            at: clock.now(),
            sent: false,
            transport: Transport::Udp,
            local: address,
            remote: address,
        };
        let bytes = b"OPTIONS sip:x SIP/2.0\r\nCall-ID: a\r\nCSeq: 1 OPTIONS\r\n\r\n";
        let recorded = border.recorded_messages().expect("recording");
        recorded.push(message, bytes);
        sink.finish(&mut border, &clock);
        history.end();
        let location = StoreLocation::Folder(folder.clone());
        let reader = console::HistoryReader::open(&location).unwrap();
        let now = micros(store_nanos(&clock));
        let filter = console::CallFilter {
            from: Some(now - 60_000_000),
            until: Some(now + 60_000_000),
            ..console::CallFilter::default()
        };
        let page = reader.search(&filter, None, 10).unwrap();
        assert_eq!(page.calls.len(), 1);
        drop(reader);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_writer_that_panics_is_a_failed_store() {
        let clock = Clock::new();
        let losses = Arc::new(Losses::default());
        let watch = || StoreWatch {
            folder: "/store".to_owned(),
            losses: losses.clone(),
            log: EventLog::unwritten(clock),
            clock,
        };
        watch().run(|| {});
        assert!(!losses.is_failing());
        watch().run(|| panic!("a test"));
        assert!(losses.is_failing());
    }

    #[test]
    fn a_writer_that_has_ended_loses_whole_batches() {
        let config = config::parse(CONFIGURATION, "test").expect("configuration");
        let entropy = net::entropy().expect("entropy");
        let mut border = Border::worker_pool(config, 1, entropy).remove(0);
        let (mut sink, inbox) = sink(2);
        drop(inbox);
        let losses = sink.losses.clone();
        sink.attach(&mut border);
        for _ in 0..5 {
            let trunk = "pbx".to_owned();
            sink.event(Event::new(Time::ZERO, EventKind::TrunkUp { trunk }));
        }
        sink.finish(&mut border, &Clock::new());
        assert_eq!(losses.counts().events, 5);
    }
}
