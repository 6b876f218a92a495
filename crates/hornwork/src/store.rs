//! Persistence of registrations. Packet threads put changes into a bounded queue; a thread of its own writes them to a
//! file in transactions, so that a stalled disk blocks no packets. Changes beyond the queue's capacity wait in the
//! border, once per user, until the queue has room. If the file cannot be written the border continues, logs an event,
//! and writes all registrations once that is possible.

mod file;

use crate::log::EventLog;
use border::border::Border;
use border::registrar::StoredRegistration;
use config::{Config, Register, RegistrarStore};
use engine::{Event, EventKind, Time};
use file::{
    Batch, DISK_REMEDY, Database, Dates, HEARTBEAT_INTERVAL, StoreFailure, move_aside, probe,
};
use net::{Clock, Waker};
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
    wakers: Vec<Waker>,
    ending: bool,
    /// After `ending`: the writer has written everything.
    ended: bool,
}

impl RegistrationQueue {
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
        self.round.fetch_add(1, Ordering::AcqRel);
        let wakers = self.state().wakers.clone();
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
}

/// A packet thread's access to the queue.
#[derive(Clone)]
pub struct RegistrationSink {
    queue: Arc<RegistrationQueue>,
    round: u64,
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
        let round = self.queue.round.load(Ordering::Acquire);
        if round != self.round {
            self.round = round;
            border.mark_all_registrations_changed();
        }
        if !border.has_registration_changes() {
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
        drop(state);
        if was_empty {
            self.queue.changed.notify_all();
        }
        more && !full
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
        border.track_registration_changes();
        let sink = RegistrationSink {
            queue: Arc::default(),
            round: 0,
            path: path.clone().into(),
            log: log.clone(),
            clock,
        };
        let mut writer = StoreWriter {
            queue: sink.queue.clone(),
            path,
            database: None,
            batch: Batch::new(),
            wipe: false,
            request_all: false,
            lost: 0,
            has_contacts: false,
            failing: None,
            swept: clock.now(),
            log: log.clone(),
            clock,
        };
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

struct StoreWriter {
    queue: Arc<RegistrationQueue>,
    path: PathBuf,
    database: Option<Database>,
    /// Users to write next.
    batch: Batch,
    /// Remove all other users from the file first.
    wipe: bool,
    /// Request all registrations after that.
    request_all: bool,
    /// Number of changes lost since writing failed.
    lost: u64,
    /// Whether the file may contain contacts.
    has_contacts: bool,
    failing: Option<WriteOutage>,
    swept: Time,
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
        Ok(())
    }

    fn run(mut self) {
        loop {
            let begun = self.wipe || !self.batch.is_empty();
            let limit = match self.failing {
                Some(_) => RETRY_INTERVAL,
                None if begun => Duration::ZERO,
                None => HEARTBEAT_INTERVAL,
            };
            let failing = self.failing.is_some();
            let idle = |state: &mut RegistrationQueueState| {
                !state.ending && (failing || state.waiting.is_empty() && state.lost == 0)
            };
            drop(self.queue.wait(limit, idle));
            if !failing {
                drop(self.queue.wait(COLLECT_TIME, |state| !state.ending));
            }
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
        let wakers = match wakes {
            true => state.wakers.clone(),
            false => Vec::new(),
        };
        drop(state);
        let waiting = waiting.into_iter();
        self.batch
            .extend(waiting.map(|registration| (registration.user, registration.contacts)));
        if lost > 0 && !ending {
            // Users of the old batch may have been removed since.
            self.batch.clear();
            (self.wipe, self.request_all) = (true, true);
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
        let Some(database) = &mut self.database else {
            return Ok(());
        };
        self.has_contacts |= self.batch.values().any(|contacts| !contacts.is_empty());
        let alive = current && self.has_contacts;
        if alive || self.wipe || !self.batch.is_empty() {
            database.write(&self.batch, self.wipe, alive, &dates)?;
            self.batch.clear();
            self.wipe = false;
        }
        if std::mem::take(&mut self.request_all) {
            self.queue.request_all();
        }
        if self.clock.now().since(self.swept) > SWEEP_INTERVAL {
            self.swept = self.clock.now();
            self.has_contacts = database.sweep(&dates)?;
        }
        Ok(())
    }

    /// Opens the file again while the border runs; it is then rewritten.
    fn reopen(&mut self) -> Result<(), StoreFailure> {
        self.database = None;
        self.database = Some(Database::open(&self.path)?);
        (self.wipe, self.request_all) = (true, true);
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
    let folder = path.parent().unwrap_or(Path::new("/"));
    Some(format!(
        "registrations would be lost at a restart: cannot write {}: {error}; give the program's user write permission in {}, or set another file in `[registrar] store`",
        path.display(),
        folder.display()
    ))
}
