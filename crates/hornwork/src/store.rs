//! Persistence of registrations. Packet threads put changes into a bounded queue; a thread of its own writes them to a
//! file in transactions, so that a stalled disk blocks no packets. Changes beyond the queue's capacity wait in the
//! border, once per user, until the queue has room. If the file cannot be written the border continues, logs an event,
//! and writes all registrations once that is possible.
//!
//! When all registrations are written, the file keeps its rows until the end of this round: then those of users that
//! are not registered any more are removed. A crash meanwhile loses nothing. A file that could not be read at the start
//! is read as soon as it can be, before that.

mod file;

use crate::log::EventLog;
use border::border::Border;
use border::registrar::StoredRegistration;
use config::{Config, Register, RegistrarStore};
use engine::{Event, EventKind, HashKey, Time};
use file::{
    Batch, DISK_REMEDY, Database, Dates, HEARTBEAT_INTERVAL, StoreFailure, move_aside, probe,
};
use net::{Clock, Waker};
use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most queued bytes, estimated: about 20,000 registrations.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Memory of a contact without its texts.
const CONTACT_BYTES: usize = 300;
/// Most registrations drained from the border per turn: about 0.3 ms of work.
const MAX_PER_TURN: usize = 256;
/// Time for which the writer collects changes, so that each synchronisation of the disk covers many.
const COLLECT_TIME: Duration = Duration::from_millis(250);
/// Interval of retries after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of log events while writing fails.
const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Duration of a transaction from which the disk is reported as stalled.
const STALL_TIME: Duration = Duration::from_secs(5);
/// Interval of removing expired contacts from the file; the border removes them itself, except while writing failed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3_600);
/// Change of the distance between wall clock and engine time from which on the dates in the file are wrong.
const CLOCK_STEP: Duration = Duration::from_secs(2);
/// Longest wait at the end of the program for the last changes to be written.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// File name in the state directory provided by systemd.
const DEFAULT_FILE: &str = "registrations.db";

fn takes_registrations(config: &Config) -> bool {
    let mut interfaces = config.interfaces.iter();
    interfaces.any(|interface| interface.register != Register::Refuse)
}

/// Path of the registrations file; `None` if they are kept in memory, or none are taken.
pub(crate) fn path_of(config: &Config) -> Option<PathBuf> {
    if !takes_registrations(config) {
        return None;
    }
    match &config.registrar_store {
        RegistrarStore::None => None,
        RegistrarStore::File(path) => Some(path.clone()),
        RegistrarStore::Usual => {
            let folders = std::env::var_os("STATE_DIRECTORY")?;
            // STATE_DIRECTORY may list several, separated by colons; the first one is used.
            let folder = std::env::split_paths(&folders).next()?;
            folder.is_absolute().then(|| folder.join(DEFAULT_FILE))
        }
    }
}

/// One line about the storage of registrations; empty if none are taken.
pub fn summary(config: &Config) -> String {
    match path_of(config) {
        Some(path) => format!("registrations: stored in {}\n", path.display()),
        None if takes_registrations(config) => {
            let remedy = match config.registrar_store {
                RegistrarStore::Usual => {
                    "a service with StateDirectory= keeps them there, `[registrar] store` in a file of yours"
                }
                _ => "set `[registrar] store` to a file to keep them",
            };
            format!("registrations: in memory, lost at a restart; {remedy}\n")
        }
        None => String::new(),
    }
}

/// Queue of changes for the file.
#[derive(Default)]
struct RegistrationQueue {
    state: Mutex<RegistrationQueueState>,
    /// Signals changes to the writer, and completion to the end of the program.
    changed: Condvar,
    /// Number of requests for all registrations.
    round: AtomicU64,
    /// Whether there are registrations of the file to restore.
    restores: AtomicBool,
    /// Number of packet threads.
    threads: usize,
    /// Time since which the writer waits for the disk, nanoseconds of engine time; 0: not waiting.
    busy_since: AtomicU64,
    /// Whether the stall has been logged.
    stalled: AtomicBool,
}

#[derive(Default)]
struct RegistrationQueueState {
    waiting: Vec<StoredRegistration>,
    bytes: usize,
    /// A packet thread found no room, and is to be woken when there is.
    refused: bool,
    /// Number of lost changes; if not zero the file must be rewritten.
    lost: u64,
    /// Packet threads that have passed on all registrations of the present round.
    drained: usize,
    /// Registrations of the file that the border is to take over.
    to_restore: Vec<StoredRegistration>,
    restored: RestoreCounts,
    wakers: Vec<Waker>,
    ending: bool,
    /// After `ending`: the writer has written everything.
    ended: bool,
}

/// Registrations of the file that are taken over after the start.
#[derive(Clone, Copy, Debug, Default)]
struct RestoreCounts {
    /// Registrations that no packet thread has taken over yet.
    left: usize,
    registrations: u64,
    contacts: u64,
    /// Contacts that were not restored.
    discarded: u64,
}

impl RegistrationQueue {
    fn new(threads: usize) -> RegistrationQueue {
        RegistrationQueue {
            threads,
            ..RegistrationQueue::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistrationQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `waits` returns true, at most `limit`.
    fn wait(
        &self,
        limit: Duration,
        waits: impl FnMut(&mut RegistrationQueueState) -> bool,
    ) -> MutexGuard<'_, RegistrationQueueState> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
        waited.0
    }

    /// Requests all registrations from all packet threads.
    fn request_all(&self) {
        let mut state = self.state();
        state.drained = 0;
        // While locked: a thread that has drained the round before does not count for this one.
        self.round.fetch_add(1, Ordering::AcqRel);
        let wakers = state.wakers.clone();
        drop(state);
        wakers.iter().for_each(Waker::wake);
    }

    /// Has the packet threads take over registrations of the file.
    fn restore(&self, registrations: Vec<StoredRegistration>, discarded: u64) {
        let mut state = self.state();
        state.restored = RestoreCounts {
            left: registrations.len(),
            discarded,
            ..RestoreCounts::default()
        };
        let is_empty = registrations.is_empty();
        state.to_restore = registrations;
        self.restores.store(!is_empty, Ordering::Release);
        let wakers = state.wakers.clone();
        drop(state);
        wakers.iter().for_each(Waker::wake);
    }
}

impl RegistrationQueueState {
    fn put(&mut self, registration: StoredRegistration) {
        let texts = |contact: &border::registrar::StoredContact| {
            let texts = [
                &contact.uri,
                &contact.params,
                &contact.instance,
                &contact.call_id,
                &contact.path,
            ];
            texts.iter().map(|text| text.len()).sum::<usize>() + CONTACT_BYTES
        };
        let contacts: usize = registration.contacts.iter().map(texts).sum();
        self.bytes += CONTACT_BYTES + registration.user.len() + contacts;
        self.waiting.push(registration);
    }

    fn has_room(&self) -> bool {
        self.bytes < MAX_QUEUED_BYTES
    }

    /// Whether all packet threads have passed on their registrations.
    fn is_drained(&self, threads: usize) -> bool {
        self.drained >= threads
    }
}

/// A packet thread's access to the queue.
#[derive(Clone)]
pub struct RegistrationSink {
    queue: Arc<RegistrationQueue>,
    round: u64,
    /// Not all registrations of the round are passed on.
    in_round: bool,
    path: Arc<Path>,
    log: EventLog,
    clock: Clock,
}

impl RegistrationSink {
    /// Registers the waker for this thread, used when the queue has room again, or all registrations are requested.
    pub fn wake_by(&self, waker: Waker) {
        self.queue.state().wakers.push(waker);
    }

    /// Moves changes of the border into the queue without waiting for the disk. Returns whether there are more, so that
    /// the next turn should follow at once.
    pub fn drain_from(&mut self, border: &mut Border) -> bool {
        self.log_stall();
        if self.queue.restores.load(Ordering::Acquire) && self.restore_into(border) {
            return true;
        }
        let round = self.queue.round.load(Ordering::Acquire);
        if round != self.round {
            (self.round, self.in_round) = (round, true);
            border.mark_all_registrations_changed();
        }
        if !border.has_registration_changes() && !self.in_round {
            return false;
        }
        let mut state = self.queue.state();
        if !state.has_room() {
            state.refused = true;
            return false;
        }
        let was_empty = state.waiting.is_empty();
        let mut left = MAX_PER_TURN;
        let more = border.drain_registration_changes(&mut |registration| {
            state.put(registration);
            left -= 1;
            left > 0 && state.has_room()
        });
        state.lost += border.take_lost_registration_changes();
        let full = more && !state.has_room();
        state.refused |= full;
        let ends_round = !more && std::mem::take(&mut self.in_round);
        if ends_round {
            state.drained += usize::from(self.round == self.queue.round.load(Ordering::Acquire));
        }
        drop(state);
        if was_empty || ends_round {
            self.queue.changed.notify_all();
        }
        more && !full
    }

    /// Takes over a part of the registrations of the file; returns whether there were any. Users that have registered
    /// meanwhile keep their contacts.
    fn restore_into(&self, border: &mut Border) -> bool {
        let mut state = self.queue.state();
        let rest = state.to_restore.len().saturating_sub(MAX_PER_TURN);
        let part = state.to_restore.split_off(rest);
        drop(state);
        if part.is_empty() {
            return false;
        }
        let now = self.clock.now();
        let (mut registrations, mut contacts, mut discarded) = (0, 0, 0);
        for registration in &part {
            let accepted = border.restore_registration(registration, now);
            registrations += u64::from(accepted > 0);
            contacts += accepted as u64;
            discarded += registration.contacts.len().saturating_sub(accepted) as u64;
        }
        let mut state = self.queue.state();
        let counts = &mut state.restored;
        counts.left = counts.left.saturating_sub(part.len());
        counts.registrations += registrations;
        counts.contacts += contacts;
        counts.discarded += discarded;
        if counts.left == 0 {
            self.queue.restores.store(false, Ordering::Release);
            self.queue.changed.notify_all();
        }
        true
    }

    /// Logs a stalled disk, which the blocked writer cannot do itself.
    fn log_stall(&self) {
        let since = self.queue.busy_since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let now = self.clock.now();
        if now.since(Time(since)) > STALL_TIME && !self.queue.stalled.swap(true, Ordering::AcqRel) {
            let note = EventKind::RegistrationStoreFailed {
                store: self.path.display().to_string(),
                reason: format!("its disk has not responded for {} s", STALL_TIME.as_secs()),
                remedy: DISK_REMEDY.to_owned(),
            };
            self.log.event(&Event::new(now, note));
        }
    }
}

/// The registrations file and its writing thread.
pub struct Store {
    sink: RegistrationSink,
}

impl Store {
    /// Restores the registrations of the file into the border (with several workers into their common registry), and
    /// starts writing changes; `None` if the configuration has no file.
    ///
    /// # Errors
    /// If another program uses the file, or the thread cannot be started.
    pub fn start(border: &mut Border, log: &EventLog, clock: Clock) -> io::Result<Option<Store>> {
        let Some(path) = path_of(border.config()) else {
            return Ok(None);
        };
        let (sink, mut writer) = Store::parts(border, path, log, clock);
        writer.begin(border)?;
        std::thread::Builder::new()
            .name("registrations".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                writer.run();
            })?;
        Ok(Some(Store { sink }))
    }

    fn parts(
        border: &mut Border,
        path: PathBuf,
        log: &EventLog,
        clock: Clock,
    ) -> (RegistrationSink, StoreWriter) {
        border.track_registration_changes();
        let threads = usize::from(border.worker().count);
        let sink = RegistrationSink {
            queue: Arc::new(RegistrationQueue::new(threads)),
            round: 0,
            in_round: false,
            path: path.clone().into(),
            log: log.clone(),
            clock,
        };
        let writer = StoreWriter {
            queue: sink.queue.clone(),
            path,
            database: None,
            batch: Batch::new(),
            is_read: false,
            is_restoring: false,
            request_all: false,
            round: None,
            lost: 0,
            has_contacts: false,
            failing: None,
            swept: clock.now(),
            clock_offset: Dates::now(&clock).offset(),
            log: log.clone(),
            clock,
        };
        (sink, writer)
    }

    /// A sink for one of the packet threads.
    pub fn sink(&self) -> RegistrationSink {
        self.sink.clone()
    }

    /// Waits for a limited time until everything is written.
    pub fn end(self) {
        let queue = &self.sink.queue;
        queue.state().ending = true;
        queue.changed.notify_all();
        drop(queue.wait(END_TIMEOUT, |state| !state.ended));
    }
}

/// A period in which writing fails.
struct WriteOutage {
    since: Time,
    logged: Time,
}

/// A request for all registrations. The file keeps the rows of other users until it is complete.
#[derive(Default)]
struct RewriteRound {
    /// Hashes of the users that were passed on since the request. A collision keeps a user that is not registered any
    /// more, until its contacts expire.
    seen: HashSet<u64>,
    key: HashKey,
    is_complete: bool,
}

impl RewriteRound {
    /// The key against chosen collisions is random where the system gives randomness.
    fn new() -> RewriteRound {
        let key = net::entropy().map(|mut entropy| HashKey::new(&mut entropy));
        RewriteRound {
            key: key.unwrap_or_default(),
            ..RewriteRound::default()
        }
    }

    fn see(&mut self, user: &str) {
        self.seen.insert(self.key.hash_one(user));
    }

    fn has_seen(&self, user: &str) -> bool {
        self.seen.contains(&self.key.hash_one(user))
    }
}

struct StoreWriter {
    queue: Arc<RegistrationQueue>,
    path: PathBuf,
    database: Option<Database>,
    /// Users to write next.
    batch: Batch,
    /// The registrations of the file have been read.
    is_read: bool,
    /// The packet threads take over the registrations of the file.
    is_restoring: bool,
    /// Request all registrations, after they have been taken over.
    request_all: bool,
    round: Option<RewriteRound>,
    /// Number of changes lost since writing failed.
    lost: u64,
    /// Whether the file may contain contacts.
    has_contacts: bool,
    failing: Option<WriteOutage>,
    swept: Time,
    /// [`Dates::offset`] of the dates in the file.
    clock_offset: u64,
    log: EventLog,
    clock: Clock,
}

impl StoreWriter {
    fn log_event(&self, note: EventKind) {
        self.log.event(&Event::new(self.clock.now(), note));
        self.log.flush();
    }

    fn store(&self) -> String {
        self.path.display().to_string()
    }

    /// Opens the file and restores its registrations.
    fn begin(&mut self, border: &mut Border) -> io::Result<()> {
        match self.restore(border) {
            Ok(()) => {}
            Err(StoreFailure::InUse) => {
                let (why, remedy) = StoreFailure::InUse.reason_and_remedy();
                return Err(io::Error::other(format!(
                    "{}: {why}\n  remedy: {remedy}",
                    self.path.display()
                )));
            }
            Err(failure) => self.failed(failure),
        }
        Ok(())
    }

    fn restore(&mut self, border: &mut Border) -> Result<(), StoreFailure> {
        let mut database = Database::open(&self.path)?;
        let dates = Dates::now(&self.clock);
        let now = self.clock.now();
        let (mut registrations, mut contacts) = (0, 0);
        let batch = &mut self.batch;
        let left_out = database.read(&dates, &mut |registration| {
            let accepted = border.restore_registration(&registration, now);
            registrations += u64::from(accepted > 0);
            contacts += accepted as u64;
            // Rejected contacts must not reappear at a later start.
            if accepted == 0 {
                batch.insert(registration.user, Vec::new());
            }
            accepted
        })?;
        self.has_contacts = contacts > 0;
        if contacts + left_out > 0 {
            self.log_event(EventKind::RegistrationsRestored {
                store: self.store(),
                registrations,
                contacts,
                discarded: left_out,
            });
        }
        // The first heartbeat would make expired contacts valid again, so they are removed before.
        database.sweep(&dates)?;
        self.database = Some(database);
        self.is_read = true;
        Ok(())
    }

    /// Reads a file that could not be read at the start, and has the packet threads take over its registrations.
    fn read_late(&mut self, database: &mut Database) -> Result<(), StoreFailure> {
        let dates = Dates::now(&self.clock);
        let mut found = Vec::new();
        let read = database.read(&dates, &mut |registration| {
            let contacts = registration.contacts.len();
            found.push(registration);
            contacts
        });
        let discarded = match read {
            Ok(discarded) => {
                // As in `restore`.
                database.sweep(&dates)?;
                discarded
            }
            // The readable part is restored.
            Err(StoreFailure::Corrupt(_)) => 0,
            Err(failure) => return Err(failure),
        };
        self.is_read = true;
        self.is_restoring = discarded > 0 || !found.is_empty();
        self.has_contacts = !found.is_empty();
        self.queue.restore(found, discarded);
        read.map(drop)
    }

    /// Whether the border has taken over the registrations of the file.
    fn restored(&mut self) {
        let counts = self.queue.state().restored;
        if !self.is_restoring || counts.left > 0 {
            return;
        }
        self.is_restoring = false;
        self.log_event(EventKind::RegistrationsRestored {
            store: self.store(),
            registrations: counts.registrations,
            contacts: counts.contacts,
            discarded: counts.discarded,
        });
    }

    fn run(mut self) {
        loop {
            let is_complete = self.round.as_ref().is_some_and(|round| round.is_complete);
            let limit = match self.failing {
                Some(_) => RETRY_INTERVAL,
                None if is_complete || !self.batch.is_empty() => Duration::ZERO,
                None => HEARTBEAT_INTERVAL,
            };
            let failing = self.failing.is_some();
            let (in_round, is_restoring) = (self.round.is_some(), self.is_restoring);
            let threads = self.queue.threads;
            let idle = |state: &mut RegistrationQueueState| {
                let is_due = !state.waiting.is_empty()
                    || state.lost > 0
                    || in_round && state.is_drained(threads)
                    || is_restoring && state.restored.left == 0;
                !state.ending && (failing || !is_due)
            };
            drop(self.queue.wait(limit, idle));
            if !failing {
                drop(self.queue.wait(COLLECT_TIME, |state| !state.ending));
            }
            self.restored();
            let (current, ending) = self.collect();
            let begun = self.clock.now();
            self.queue.busy_since.store(begun.0, Ordering::Relaxed);
            let written = self.write(current);
            self.queue.busy_since.store(0, Ordering::Relaxed);
            if self.queue.stalled.swap(false, Ordering::AcqRel) {
                self.failing.get_or_insert(WriteOutage {
                    since: begun,
                    logged: begun,
                });
            }
            match written {
                Ok(()) => self.written(),
                Err(failure) => self.failed(failure),
            }
            if ending {
                // Changes that cannot be written now are lost at the end of the program.
                drop(self.database.take());
                self.queue.state().ended = true;
                self.queue.changed.notify_all();
                return;
            }
        }
    }

    /// Takes the queued changes if the last batch is written; returns whether the queue is empty, and whether the
    /// program ends.
    fn collect(&mut self) -> (bool, bool) {
        let queue = self.queue.clone();
        let mut state = queue.state();
        let lost = std::mem::take(&mut state.lost);
        self.lost += lost;
        let ending = state.ending;
        if !self.batch.is_empty() && lost == 0 && !ending {
            return (false, false);
        }
        let current = !state.refused && lost == 0;
        let wakes = std::mem::take(&mut state.refused) || lost > 0;
        state.bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        let is_drained = state.is_drained(queue.threads);
        let wakers = match wakes {
            true => state.wakers.clone(),
            false => Vec::new(),
        };
        drop(state);
        if let Some(round) = &mut self.round {
            waiting
                .iter()
                .for_each(|registration| round.see(&registration.user));
            round.is_complete = is_drained;
        }
        let waiting = waiting.into_iter();
        self.batch
            .extend(waiting.map(|registration| (registration.user, registration.contacts)));
        if lost > 0 && !ending {
            // Users of the old batch may have been removed since.
            self.batch.clear();
            (self.round, self.request_all) = (None, true);
        }
        wakers.iter().for_each(Waker::wake);
        (current, ending)
    }

    fn write(&mut self, current: bool) -> Result<(), StoreFailure> {
        let in_place = self.database.as_ref().map(Database::is_in_place);
        if in_place == Some(false) {
            self.database = None;
            return Err(StoreFailure::Other {
                why: "it was removed or replaced while in use".to_owned(),
                remedy: "do not move it while the program runs; it is written again",
            });
        }
        if in_place.is_none() {
            self.reopen()?;
        }
        let dates = Dates::now(&self.clock);
        self.follow_clock(&dates);
        let Some(database) = &mut self.database else {
            return Ok(());
        };
        self.has_contacts |= self.batch.values().any(|contacts| !contacts.is_empty());
        // In a round too: its rows need a sign of life more than users that are gone need to be forgotten after a
        // crash.
        let alive = current && self.has_contacts;
        let complete = self.round.as_ref().filter(|round| round.is_complete);
        if alive || complete.is_some() || !self.batch.is_empty() {
            let is_complete = complete.is_some();
            let keep = complete.map(|round| move |user: &str| round.has_seen(user));
            let keep = keep.as_ref().map(|keep| keep as &dyn Fn(&str) -> bool);
            database.write(&self.batch, keep, alive, &dates)?;
            self.batch.clear();
            if is_complete {
                self.round = None;
            }
        }
        if self.request_all && !self.is_restoring {
            (self.request_all, self.round) = (false, Some(RewriteRound::new()));
            self.queue.request_all();
        }
        if self.clock.now().since(self.swept) > SWEEP_INTERVAL {
            self.swept = self.clock.now();
            self.has_contacts = database.sweep(&dates)?;
        }
        Ok(())
    }

    /// Has all registrations written again if the wall clock was set, as after a start with a wrong one: by the dates
    /// of the clock before, a restart would take contacts for expired.
    fn follow_clock(&mut self, dates: &Dates) {
        let step = dates.offset().abs_diff(self.clock_offset);
        if u128::from(step) > CLOCK_STEP.as_nanos() {
            self.clock_offset = dates.offset();
            (self.round, self.request_all) = (None, true);
            // Not before they are written.
            self.swept = self.clock.now();
        }
    }

    /// Opens the file again while the border runs; it is then rewritten.
    fn reopen(&mut self) -> Result<(), StoreFailure> {
        self.database = None;
        let mut database = Database::open(&self.path)?;
        if !self.is_read {
            self.read_late(&mut database)?;
        }
        self.database = Some(database);
        (self.round, self.request_all) = (None, true);
        Ok(())
    }

    /// Completes a written batch.
    fn written(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        let Some(failing) = self.failing.take() else {
            return;
        };
        self.log_event(EventKind::RegistrationStoreRecovered {
            store: self.store(),
            outage_s: self.clock.now().since(failing.since).as_secs(),
            overflowed: lost,
        });
    }

    fn failed(&mut self, failure: StoreFailure) {
        let failure = match failure {
            StoreFailure::Corrupt(why) => match self.replace(&why) {
                Ok(()) => return,
                Err(failure) => failure,
            },
            other => other,
        };
        let now = self.clock.now();
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        if let Some(failing) = &self.failing
            && now.since(failing.logged) < LOG_INTERVAL
        {
            return;
        }
        self.failing = Some(WriteOutage { since, logged: now });
        let (why, remedy) = failure.reason_and_remedy();
        self.log_event(EventKind::RegistrationStoreFailed {
            store: self.store(),
            reason: why,
            remedy: remedy.to_owned(),
        });
    }

    /// Moves an unreadable file aside and creates a new one.
    fn replace(&mut self, why: &str) -> Result<(), StoreFailure> {
        self.database = None;
        let aside = move_aside(&self.path)?;
        self.log_event(EventKind::RegistrationStoreReplaced {
            store: self.store(),
            moved_to: aside.display().to_string(),
            reason: why.to_owned(),
        });
        self.reopen()
    }
}

/// The warning of `hornwork check` about the file; `None` if it can be written.
pub fn warning(config: &Config) -> Option<String> {
    let path = path_of(config)?;
    let error = probe(&path).err()?;
    let folder = crate::full_disk::folder_of(&path);
    Some(format!(
        "registrations would be lost at a restart: cannot write {}: {error}; give the program's user write permission in {}, or set another file in `[registrar] store`",
        path.display(),
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use border::registrar::StoredContact;
    use engine::Transport;

    const ADDRESS: &str = "127.0.0.1:5060";

    struct Scene {
        folder: PathBuf,
        border: Border,
        clock: Clock,
    }

    impl Scene {
        /// A border with a registrar, whose file has this many users that are registered.
        fn new(name: &str, users: usize) -> Scene {
            let folder = format!("hornwork-registrations-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            let clock = Clock::new();
            let scene = Scene {
                border: border(&folder),
                folder,
                clock,
            };
            let until = clock.now() + Duration::from_secs(3_600);
            let contact = StoredContact {
                uri: b"sip:a@192.168.3.3".to_vec(),
                params: Vec::new(),
                instance: Vec::new(),
                call_id: b"c".to_vec(),
                path: Vec::new(),
                transport: Transport::Udp,
                local: ADDRESS.parse().unwrap(),
                remote: "127.0.0.2:5060".parse().unwrap(),
                q: 1_000,
                cseq: 1,
                reg_id: 0,
                lifetime: 3_600,
                until,
                written: until,
                core: None,
            };
            let users = (0..users).map(|number| (format!("{number}"), vec![contact.clone()]));
            let mut database = Database::open(&scene.path()).unwrap();
            let dates = Dates::now(&clock);
            let batch = users.collect();
            database.write(&batch, None, true, &dates).unwrap();
            scene
        }

        fn path(&self) -> PathBuf {
            self.folder.join("r.db")
        }

        /// Number of users in the file.
        fn stored(&self) -> usize {
            let mut database = Database::open(&self.path()).unwrap();
            let mut users = 0;
            database
                .read(&Dates::now(&self.clock), &mut |registration| {
                    users += 1;
                    registration.contacts.len()
                })
                .unwrap();
            users
        }

        fn writer(&mut self) -> (RegistrationSink, StoreWriter) {
            let (path, log) = (self.path(), EventLog::unwritten(self.clock));
            let (sink, mut writer) = Store::parts(&mut self.border, path, &log, self.clock);
            writer.begin(&mut self.border).unwrap();
            (sink, writer)
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn border(folder: &Path) -> Border {
        let text = format!(
            "[[interface]]\nname = \"out\"\nkind = \"access\"\nlisten = \"udp:{ADDRESS}\"\nregister = \"local\"\n\
             [[route]]\nregistered = true\n[sip]\nworkers = 1\n[registrar]\nstore = \"{}\"\n",
            folder.join("r.db").display()
        );
        let config = config::parse(&text, "test").expect("configuration");
        let entropy = net::entropy().expect("entropy");
        Border::worker_pool(config, 1, entropy).remove(0)
    }

    fn turn(writer: &mut StoreWriter) {
        writer.restored();
        let (current, _) = writer.collect();
        writer.write(current).unwrap();
    }

    #[test]
    fn crash_while_the_file_is_rewritten_loses_no_registration() {
        let mut scene = Scene::new("rewritten", 1_000);
        let (mut sink, mut writer) = scene.writer();
        // Changes were lost, after a storm on a slow disk.
        writer.queue.state().lost = 1;
        turn(&mut writer);
        assert!(writer.queue.round.load(Ordering::Acquire) > 0);
        assert!(sink.drain_from(&mut scene.border), "the first of them");
        turn(&mut writer);
        drop(writer);
        assert_eq!(scene.stored(), 1_000);
    }

    #[test]
    fn users_that_are_gone_leave_the_file_when_it_is_rewritten() {
        let mut scene = Scene::new("gone", 1_000);
        let (mut sink, mut writer) = scene.writer();
        // Two that the border does not know: their removal was lost.
        let contacts = contacts_of_one(&mut scene);
        for user in ["gone", "too"] {
            writer.batch.insert(user.to_owned(), contacts.clone());
        }
        turn(&mut writer);
        writer.queue.state().lost = 1;
        turn(&mut writer);
        while sink.drain_from(&mut scene.border) {}
        turn(&mut writer);
        assert!(writer.round.is_none());
        drop(writer);
        assert_eq!(scene.stored(), 1_000);
    }

    /// The machine began with a clock eight hours behind, which is set while the border runs.
    #[test]
    fn registrations_are_written_again_when_the_clock_was_set() {
        let mut scene = Scene::new("clock", 600);
        let (mut sink, mut writer) = scene.writer();
        let dates = Dates::now(&scene.clock).set_back(Duration::from_secs(8 * 3_600));
        let mut all = Batch::new();
        scene.border.mark_all_registrations_changed();
        scene
            .border
            .drain_registration_changes(&mut |registration| {
                all.insert(registration.user, registration.contacts);
                true
            });
        assert_eq!(all.len(), 600);
        let database = writer.database.as_mut().unwrap();
        database.write(&all, None, true, &dates).unwrap();
        writer.clock_offset = dates.offset();
        turn(&mut writer);
        while sink.drain_from(&mut scene.border) {}
        turn(&mut writer);
        assert!(writer.round.is_none(), "complete");
        // The clock is not set again.
        turn(&mut writer);
        assert!(writer.round.is_none() && !writer.request_all);
        drop(writer);
        assert_eq!(scene.stored(), 600);
    }

    /// The contacts of a user.
    fn contacts_of_one(scene: &mut Scene) -> Vec<StoredContact> {
        let mut contacts = Vec::new();
        scene.border.mark_all_registrations_changed();
        scene
            .border
            .drain_registration_changes(&mut |registration| {
                contacts.clone_from(&registration.contacts);
                false
            });
        assert_eq!(contacts.len(), 1);
        contacts
    }

    /// The file system is mounted, or the permission given, after the start.
    #[test]
    fn file_that_cannot_be_read_at_the_start_is_restored_later() {
        let mut scene = Scene::new("late", 600);
        let (path, aside) = (scene.path(), scene.folder.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::create_dir(&path).unwrap();
        let (mut sink, mut writer) = scene.writer();
        assert!(writer.failing.is_some());
        let (current, _) = writer.collect();
        assert!(writer.write(current).is_err());
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        for _ in 0..2 {
            turn(&mut writer);
            while sink.drain_from(&mut scene.border) {}
        }
        assert!(!writer.is_restoring && writer.round.is_some());
        turn(&mut writer);
        assert!(writer.round.is_none(), "complete");
        drop(writer);
        assert_eq!(scene.stored(), 600);
        // The border has them.
        let mut known = 0;
        scene.border.mark_all_registrations_changed();
        scene
            .border
            .drain_registration_changes(&mut |registration| {
                known += registration.contacts.len();
                true
            });
        assert_eq!(known, 600);
    }
}
