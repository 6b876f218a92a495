//! Call records (CDRs). Packet threads put the events of calls into a bounded queue; a thread of its own builds the
//! records and writes them, so that a stalled or full disk blocks no packets. Records beyond the queue's capacity are
//! counted, and reported once writing works again.

mod files;
mod form;

use crate::log::EventLog;
use config::RecordsSpec;
use engine::record::{CallRecord, RecordBuilder, RecordChange};
use engine::{Event, EventKind, Time};
use files::{RecordFolder, WrittenChunk};
use net::Clock;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most queued events: those of 4 s at 4,000 calls per second.
const MAX_QUEUED: usize = 65_536;
/// Queued events above which intervals of media are not queued: the record needs them only if the program crashes.
const MAX_QUEUED_INTERVALS: usize = MAX_QUEUED / 4 * 3;
/// Most numbers of calls whose end, or another event, found no space.
const MAX_LOST_ENDS: usize = 1 << 20;
/// Time for which the writer collects events.
const COLLECT_TIME: Duration = Duration::from_millis(100);
/// Interval of retries after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of log events while writing fails.
const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Interval in which written data is passed to the disk, and the journal notes that the border runs.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks of the age of files.
const ROTATE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait at the end of the program for the last records to be written.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Most records between two entries of the journal about them.
const CHUNK: usize = 1_000;

const REMEDY: &str = "free space on the disk, or correct the permissions of the folder; calls go on, and records are written again when it works";

/// Counts of records since the start.
#[derive(Debug, Default)]
pub(crate) struct RecordCounters {
    /// Records written.
    pub(crate) written: AtomicU64,
    /// Records lost because the queue was full.
    pub(crate) lost: AtomicU64,
    /// Records with a part missing because the queue was full.
    pub(crate) incomplete: AtomicU64,
    /// Records of calls that the last run of the program did not end.
    pub(crate) cut: AtomicU64,
    /// Whether writing fails at present.
    pub(crate) failing: AtomicU64,
}

#[derive(Default)]
struct RecordQueue {
    state: Mutex<RecordQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct RecordQueueState {
    waiting: Vec<Event>,
    /// Numbers of calls whose end found no space.
    lost_ends: Vec<u64>,
    /// Numbers of calls of which another event found no space; some may occur more than once.
    lost_parts: Vec<u64>,
    /// Records without such a number.
    lost: u64,
    ending: bool,
    ended: bool,
}

impl RecordQueue {
    fn state(&self) -> MutexGuard<'_, RecordQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `limit`, or until the program ends.
    fn wait(&self, limit: Duration) -> MutexGuard<'_, RecordQueueState> {
        // Packet threads do not wake the writer: at these intervals that costs them nothing.
        let waits = |state: &mut RecordQueueState| !state.ending;
        let waited = self.changed.wait_timeout_while(self.state(), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells that the thread that collects the events has ended.
    fn set_ended(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }
}

impl RecordQueueState {
    /// Takes all events and losses.
    fn take(&mut self) -> CollectedEvents {
        CollectedEvents {
            events: std::mem::take(&mut self.waiting),
            lost_ends: std::mem::take(&mut self.lost_ends),
            lost_parts: std::mem::take(&mut self.lost_parts),
            lost: std::mem::take(&mut self.lost),
            ending: self.ending,
        }
    }
}

/// A packet thread's access to the queue.
#[derive(Clone)]
pub(crate) struct RecordSink {
    queue: Arc<RecordQueue>,
}

/// Events taken from the queue.
#[derive(Default)]
pub(crate) struct CollectedEvents {
    pub(crate) events: Vec<Event>,
    /// Numbers of calls whose end found no space.
    pub(crate) lost_ends: Vec<u64>,
    /// Numbers of calls of which another event found no space.
    lost_parts: Vec<u64>,
    /// Ends without such a number.
    pub(crate) lost: u64,
    /// Whether the program ends.
    pub(crate) ending: bool,
}

impl RecordSink {
    /// An empty queue.
    pub(crate) fn new() -> RecordSink {
        RecordSink {
            queue: Arc::default(),
        }
    }

    /// Waits for `limit`, or until the program ends, and takes all events.
    pub(crate) fn collect(&self, limit: Duration) -> CollectedEvents {
        self.queue.wait(limit).take()
    }

    /// Has the thread that collects the events end, and waits for that for a limited time.
    pub(crate) fn end(&self) {
        let mut state = self.queue.state();
        state.ending = true;
        self.queue.changed.notify_all();
        let waits = |state: &mut RecordQueueState| !state.ended;
        let waited = self
            .queue
            .changed
            .wait_timeout_while(state, END_TIMEOUT, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Tells that the thread that collects the events has ended.
    pub(crate) fn ended(&self) {
        self.queue.set_ended();
    }

    /// Moves events into the queue, as far as it has space, without waiting for the disk.
    pub(crate) fn put(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut state = self.queue.state();
        for event in events.drain(..) {
            let limit = match event.kind {
                EventKind::CallMediaInterval { .. } => MAX_QUEUED_INTERVALS,
                _ => MAX_QUEUED,
            };
            if state.waiting.len() < limit {
                state.waiting.push(event);
                continue;
            }
            match event.kind {
                EventKind::CallEnded { call, .. } if state.lost_ends.len() < MAX_LOST_ENDS => {
                    state.lost_ends.push(call);
                }
                EventKind::CallEnded { .. } | EventKind::CallRefused { .. } => state.lost += 1,
                // The record is lost only if its end is.
                EventKind::CallRouted { call, .. }
                | EventKind::CallAnswered { call, .. }
                | EventKind::LegReplaced { call, .. }
                | EventKind::CallTagged { call, .. }
                | EventKind::RuleRefused { call, .. }
                | EventKind::CallMedia { call, .. }
                    if state.lost_parts.len() < MAX_LOST_ENDS =>
                {
                    state.lost_parts.push(call);
                }
                _ => {}
            }
        }
    }
}

/// The writing thread.
pub(crate) struct CallRecords {
    sink: RecordSink,
    counters: Arc<RecordCounters>,
}

impl CallRecords {
    /// Opens the folder, writes the records of calls that the last run did not end, and starts the thread.
    ///
    /// # Errors
    /// If the folder cannot be used, or the thread not started.
    pub(crate) fn start(
        spec: &RecordsSpec,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<CallRecords> {
        let now = clock.unix_nanos_now();
        let opened = RecordFolder::open(spec, now).map_err(|error| {
            io::Error::other(format!(
                "cannot write call records to {}: {error}\n  remedy: create the folder, and give the program's user write permission; or correct `folder` in [records]",
                spec.folder.display()
            ))
        });
        let (folder, cut) = opened?;
        let sink = RecordSink::new();
        let counters = Arc::new(RecordCounters::default());
        counters.cut.store(cut.len() as u64, Relaxed);
        let run = (clock.unix_nanos(Time::ZERO) / 1_000).to_string();
        let mut writer = RecordWriter {
            queue: sink.queue.clone(),
            counters: counters.clone(),
            folder,
            path: spec.folder.display().to_string(),
            builder: RecordBuilder::new(run),
            journaled: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            pending: VecDeque::new(),
            failing: None,
            lost: 0,
            synced: clock.now(),
            rotated: clock.now(),
            log: log.clone(),
            clock,
        };
        writer.begin(&cut);
        std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                writer.run();
            })?;
        Ok(CallRecords { sink, counters })
    }

    /// A sink for one of the packet threads.
    pub(crate) fn sink(&self) -> RecordSink {
        self.sink.clone()
    }

    /// Counts since the start.
    pub(crate) fn counters(&self) -> Arc<RecordCounters> {
        self.counters.clone()
    }

    /// Waits for a limited time until everything is written.
    pub(crate) fn end(self) {
        self.sink.end();
    }
}

/// A period in which writing fails.
struct RecordOutage {
    since: Time,
    logged: Time,
}

struct RecordWriter {
    queue: Arc<RecordQueue>,
    counters: Arc<RecordCounters>,
    folder: RecordFolder,
    path: String,
    builder: RecordBuilder,
    /// Calls with an entry in the journal.
    journaled: BTreeSet<u64>,
    /// Calls in progress of which an event was lost.
    incomplete: BTreeSet<u64>,
    /// Parts that are not written yet, each with its number of records.
    pending: VecDeque<(WrittenChunk, u64)>,
    failing: Option<RecordOutage>,
    /// Records lost since the last report.
    lost: u64,
    synced: Time,
    rotated: Time,
    log: EventLog,
    clock: Clock,
}

impl RecordWriter {
    fn log_event(&self, note: EventKind) {
        self.log.event(&Event::new(self.clock.now(), note));
        self.log.flush();
    }

    /// Writes the records of cut calls. The old entries of the journal are removed after that.
    fn begin(&mut self, cut: &[serde_json::Map<String, serde_json::Value>]) {
        let interrupted = self.folder.take_interrupted();
        self.pending.push_back((interrupted, 0));
        for part in cut.chunks(CHUNK) {
            let ends: String = part
                .iter()
                .filter_map(|record| ended_entry(record.get("id")?.as_str()?).into())
                .collect();
            let chunk = self.folder.prepare(part, ends);
            self.pending.push_back((chunk, part.len() as u64));
        }
        if !cut.is_empty() {
            self.log_event(EventKind::CallsCut {
                folder: self.path.clone(),
                calls: cut.len() as u64,
            });
        }
        let written = self.write();
        let written = written.and_then(|()| self.compact());
        self.outcome(written);
    }

    fn run(mut self) {
        loop {
            let limit = match self.failing {
                Some(_) => RETRY_INTERVAL,
                None => COLLECT_TIME,
            };
            let mut state = self.queue.wait(limit);
            let taken = match self.pending.is_empty() {
                true => state.take(),
                // While writing fails, events wait in the queue, where they are limited.
                false => CollectedEvents {
                    ending: state.ending,
                    ..CollectedEvents::default()
                },
            };
            drop(state);
            // Before the ends of these calls are processed.
            self.incomplete.extend(taken.lost_parts);
            self.collect(taken.events);
            self.count_lost(&taken.lost_ends, taken.lost);
            let written = self.write().and_then(|()| self.maintain());
            self.outcome(written);
            if taken.ending {
                // Calls that the program ends without an event are in the journal, and are cut at the next start.
                let _ = self.folder.sync();
                self.queue.set_ended();
                return;
            }
        }
    }

    /// Builds records from events, in parts.
    fn collect(&mut self, events: Vec<Event>) {
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        let mut ended: Vec<Box<CallRecord>> = Vec::new();
        let mut journal = String::new();
        for event in events {
            match self.builder.add(event) {
                Some(RecordChange::Running(call)) => {
                    changed.insert(call);
                }
                Some(RecordChange::Ended(record)) => {
                    if self.incomplete.remove(&record.call) {
                        self.counters.incomplete.fetch_add(1, Relaxed);
                    }
                    ended.push(record);
                }
                Some(RecordChange::Challenged(record)) if self.journaled.remove(&record.call) => {
                    journal += &ended_entry(&record.fields.id);
                }
                Some(RecordChange::Lost) => self.lose(1),
                Some(RecordChange::Challenged(_)) | None => {}
            }
        }
        // Calls that begin and end within one collection need no entry.
        for record in changed
            .iter()
            .filter_map(|call| self.builder.running_call(*call))
        {
            self.journaled.insert(record.call);
            journal += &running_entry(record, &self.clock);
        }
        if !journal.is_empty() {
            let chunk = self.folder.prepare(&[], journal);
            self.pending.push_back((chunk, 0));
        }
        for part in ended.chunks(CHUNK) {
            let mut journal = String::new();
            for record in part {
                if self.journaled.remove(&record.call) {
                    journal += &ended_entry(&record.fields.id);
                }
            }
            let chunk = self.folder.prepare_records(part, &self.clock, journal);
            self.pending.push_back((chunk, part.len() as u64));
        }
    }

    fn lose(&mut self, records: u64) {
        self.lost += records;
        self.counters.lost.fetch_add(records, Relaxed);
    }

    fn count_lost(&mut self, ends: &[u64], more: u64) {
        // Their entries in the journal would be calls in progress at the next start, which would be cut: with a record
        // that lasts until the end of the program.
        let mut journal = String::new();
        for call in ends {
            if self.journaled.remove(call)
                && let Some(record) = self.builder.running_call(*call)
            {
                journal += &ended_entry(&record.fields.id);
            }
            self.builder.forget(*call);
        }
        if !journal.is_empty() {
            let chunk = self.folder.prepare(&[], journal);
            self.pending.push_back((chunk, 0));
        }
        // Challenged calls, and those whose begin or end was lost, have no record.
        let builder = &self.builder;
        self.incomplete
            .retain(|call| builder.running_call(*call).is_some());
        let records = ends.len() as u64 + more;
        if records > 0 {
            self.lose(records);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let now = self.clock.unix_nanos_now();
        while let Some((chunk, records)) = self.pending.front_mut() {
            self.folder.write(chunk, now)?;
            self.counters.written.fetch_add(*records, Relaxed);
            self.pending.pop_front();
        }
        Ok(())
    }

    /// Rotation, heartbeat, and passing data to the disk.
    fn maintain(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        if now.since(self.rotated) >= ROTATE_INTERVAL || self.failing.is_none() {
            self.rotated = now;
            self.folder.rotate(self.clock.unix_nanos_now())?;
        }
        if self.folder.needs_compaction() {
            self.compact()?;
        }
        if now.since(self.synced) >= SYNC_INTERVAL {
            self.synced = now;
            if !self.journaled.is_empty() {
                self.folder.heartbeat(self.record_nanos())?;
            }
            self.folder.sync()?;
        }
        Ok(())
    }

    fn compact(&mut self) -> io::Result<()> {
        let running = self.builder.running();
        let entries: String = running
            .map(|record| running_entry(record, &self.clock))
            .collect();
        self.journaled = self.builder.running().map(|record| record.call).collect();
        self.folder.compact(&entries, self.record_nanos())
    }

    /// The time in records, nanoseconds since 1970: it counts from the start of the program. The span between two of
    /// these is right also if the wall clock is set meanwhile.
    fn record_nanos(&self) -> u64 {
        self.clock.unix_nanos(self.clock.now())
    }

    /// Logs failures and recoveries.
    fn outcome(&mut self, written: io::Result<()>) {
        let now = self.clock.now();
        match written {
            Ok(()) => {
                self.counters.failing.store(0, Relaxed);
                let lost = std::mem::take(&mut self.lost);
                if let Some(outage) = self.failing.take() {
                    self.log_event(EventKind::RecordsRecovered {
                        folder: self.path.clone(),
                        outage_s: now.since(outage.since).as_secs(),
                        lost,
                    });
                } else if lost > 0 {
                    self.log_event(EventKind::RecordsLost {
                        folder: self.path.clone(),
                        lost,
                    });
                }
            }
            Err(error) => {
                self.counters.failing.store(1, Relaxed);
                let since = self.failing.as_ref().map_or(now, |outage| outage.since);
                let recently = self
                    .failing
                    .as_ref()
                    .is_some_and(|outage| now.since(outage.logged) < LOG_INTERVAL);
                if !recently {
                    self.failing = Some(RecordOutage { since, logged: now });
                    self.log_event(EventKind::RecordsFailed {
                        folder: self.path.clone(),
                        reason: error.to_string(),
                        remedy: REMEDY.to_owned(),
                    });
                }
            }
        }
    }
}

/// Entry of a running call in the journal.
fn running_entry(record: &CallRecord, clock: &Clock) -> String {
    format!("{{\"running\":{}}}\n", form::line(record, true, clock))
}

/// Entry of the end of a call in the journal.
fn ended_entry(id: &str) -> String {
    format!("{}\n", serde_json::json!({ "ended": id }))
}

/// The hint of `hornwork check` about the folder; `None` if it can be used.
pub(crate) fn hint(config: &config::Config) -> Option<String> {
    let folder = &config.records.as_ref()?.folder;
    let parent = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let exists = folder.is_dir() || parent.is_none_or(std::path::Path::is_dir);
    (!exists).then(|| {
        format!(
            "{} does not exist, nor does its parent: the border would not start here; create it for call records",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of a folder that does not exist yet.
    fn spec(name: &str) -> RecordsSpec {
        let name = format!("hornwork-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        RecordsSpec {
            folder,
            format: config::RecordFormat::Ndjson,
            rotate_bytes: 1 << 20,
            rotate_after: Duration::from_secs(3_600),
            keep: None,
            keep_bytes: None,
        }
    }

    /// Call 7 begins.
    fn offered() -> EventKind {
        EventKind::CallOffered {
            call: 7,
            interface: "access".into(),
            call_id: "a@x".into(),
            from: "sip:1@x".into(),
            to: "sip:2@x".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
        }
    }

    /// Call 7 is answered.
    fn answered() -> EventKind {
        EventKind::CallAnswered {
            call: 7,
            setup_ms: Some(1),
            call_id: None,
        }
    }

    /// Call 7 ends.
    fn ended() -> EventKind {
        EventKind::CallEnded {
            call: 7,
            ended_by: "callee".into(),
            reason: "bye".into(),
            status: 200,
            duration_ms: Some(0),
            trunk: None,
            path: None,
            codec: None,
            caller_loss_percent: None,
            caller_jitter_ms: None,
            caller_mos: None,
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        }
    }

    /// The folder at the next start, and the records of calls that were cut. The thread may still have it for a moment.
    fn reopened(
        spec: &RecordsSpec,
        wall: u64,
    ) -> (
        RecordFolder,
        Vec<serde_json::Map<String, serde_json::Value>>,
    ) {
        let clock = Clock::new();
        let begun = clock.now();
        loop {
            match RecordFolder::open(spec, wall) {
                Ok(opened) => return opened,
                Err(error) => assert!(
                    clock.now().since(begun) < Duration::from_secs(10),
                    "{error}"
                ),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The clock is set eight hours forward after the start; then the border crashes in a call.
    #[test]
    fn duration_of_a_cut_call_is_right_after_the_clock_was_set() {
        let spec = spec("cut-clock");
        let wall = Clock::new().unix_nanos_now();
        let clock = Clock::dated(wall - Duration::from_secs(8 * 3_600).as_nanos() as u64);
        let records = CallRecords::start(&spec, &EventLog::unwritten(clock), clock).unwrap();
        let event = |kind: EventKind| Event::new(clock.now(), kind);
        let mut events = vec![event(offered()), event(answered())];
        records.sink().put(&mut events);
        std::thread::sleep(2 * COLLECT_TIME);
        // A header rule stores a value with an in-dialog request; nothing follows.
        let (tag, value) = ("cost_centre".to_owned(), "47".to_owned());
        let tagged = EventKind::CallTagged {
            call: 7,
            tag,
            value,
        };
        records.sink().put(&mut vec![event(tagged)]);
        // Until after the second heartbeat from now on: a thread at idle priority may be late.
        let heartbeats = || {
            let journal = std::fs::read_to_string(spec.folder.join("running.journal"));
            journal.unwrap_or_default().matches("\"alive\"").count()
        };
        let (before, until) = (heartbeats(), clock.now() + Duration::from_secs(60));
        while heartbeats() < before + 2 {
            assert!(clock.now() < until, "no heartbeat");
            std::thread::sleep(COLLECT_TIME);
        }
        records.end();
        let (_folder, cut) = reopened(&spec, wall);
        let [record] = &cut[..] else {
            panic!("{cut:?}");
        };
        let duration = record["duration_s"].as_f64().unwrap();
        assert!((0.5..120.0).contains(&duration), "{record:?}");
        assert_eq!(record["tags"], serde_json::json!({ "cost_centre": "47" }));
        std::fs::remove_dir_all(&spec.folder).unwrap();
    }

    /// The disk stalls while a call ends: its record is lost. The next start must not find a call in progress.
    #[test]
    fn a_call_whose_end_was_lost_is_not_cut_at_the_next_start() {
        let spec = spec("lost-end");
        let clock = Clock::new();
        let records = CallRecords::start(&spec, &EventLog::unwritten(clock), clock).unwrap();
        let (sink, counters) = (records.sink(), records.counters());
        let event = |kind: EventKind| Event::new(clock.now(), kind);
        let until = clock.now() + Duration::from_secs(30);
        let wait_until_taken = || {
            while !sink.queue.state().waiting.is_empty() {
                assert!(clock.now() < until, "the events wait");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        sink.put(&mut vec![event(offered()), event(answered())]);
        wait_until_taken();
        let trunk = "pbx".to_owned();
        let others = std::iter::repeat_n(EventKind::TrunkUp { trunk }, MAX_QUEUED);
        let mut events: Vec<Event> = others.map(event).collect();
        events.push(event(ended()));
        sink.put(&mut events);
        wait_until_taken();
        records.end();
        assert_eq!(counters.lost.load(Relaxed), 1);
        let (_folder, cut) = reopened(&spec, clock.unix_nanos_now());
        assert!(cut.is_empty(), "{cut:?}");
        std::fs::remove_dir_all(&spec.folder).unwrap();
    }

    /// The disk stalls while a call is answered.
    #[test]
    fn records_without_some_of_their_events_are_counted() {
        let spec = spec("incomplete");
        let clock = Clock::new();
        let records = CallRecords::start(&spec, &EventLog::unwritten(clock), clock).unwrap();
        let (sink, counters) = (records.sink(), records.counters());
        let at = clock.now();
        let event = |kind: EventKind| Event::new(at, kind);
        let mut events = vec![event(offered())];
        let interval = EventKind::CallMediaInterval {
            call: 7,
            interval_ms: 10_000,
            caller_packets: None,
            caller_lost: None,
            caller_loss_percent: None,
            caller_jitter_ms: None,
            caller_mos: None,
            callee_packets: None,
            callee_lost: None,
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        };
        // Intervals leave space for others.
        let intervals = std::iter::repeat_n(interval, MAX_QUEUED);
        events.extend(intervals.map(event));
        let trunk = "pbx".to_owned();
        let others = std::iter::repeat_n(EventKind::TrunkUp { trunk }, MAX_QUEUED / 4 - 1);
        events.extend(others.map(event));
        let tag = |tag: &str| EventKind::CallTagged {
            call: 7,
            tag: tag.to_owned(),
            value: "x".to_owned(),
        };
        events.push(event(tag("last")));
        events.push(event(tag("lost")));
        events.push(event(answered()));
        sink.put(&mut events);
        let until = clock.now() + Duration::from_secs(20);
        while !sink.queue.state().waiting.is_empty() {
            assert!(clock.now() < until, "the events wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        events.push(event(ended()));
        sink.put(&mut events);
        records.end();
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        assert_eq!((count(&counters.written), count(&counters.lost)), (1, 0));
        assert_eq!(count(&counters.incomplete), 1);
        let text = std::fs::read_to_string(spec.folder.join("cdr.ndjson")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(record["answered"].is_string(), "{record}");
        assert_eq!(record["tags"], serde_json::json!({ "last": "x" }));
        std::fs::remove_dir_all(&spec.folder).unwrap();
    }
}
