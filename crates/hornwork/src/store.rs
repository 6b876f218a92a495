//! Registrations over a restart. Threads that carry packets put the ones that changed into a bounded queue; a thread of its own writes
//! them to a file in transactions, so that a disk that does not answer holds up no packet. Changes that find no room in the queue wait in
//! the border, each user once, until the queue takes some again. A file that cannot be written costs nothing but the
//! memory: the border goes on, an event says so, and everything is written once that is possible.

mod file;

use crate::log::Log;
use border::border::Border;
use border::config::{Config, Register, RegistrarStore};
use border::registrar::StoredRegistration;
use engine::{Event, Note, Time};
use file::{Batch, DISK, Database, Dates, Failure, SIGN_OF_LIFE, move_aside, probe};
use net::{Clock, Waker};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that wait at most, as far as they can be counted: some 20,000 registrations.
const ROOM: usize = 8 << 20;
/// Memory of a contact beside its texts.
const CONTACT: usize = 300;
/// Registrations that one turn of a packet thread drains at most: some 0.3 ms of work.
const TURN: usize = 256;
/// The writer collects changes for this long, so that a transaction is worth its synchronisation of the disk.
const COLLECT: Duration = Duration::from_millis(250);
/// How long a file that cannot be written is left alone.
const RETRY: Duration = Duration::from_secs(2);
/// How often it is logged that it still cannot be.
const TELL: Duration = Duration::from_secs(600);
/// A disk that takes longer over one transaction is told of.
const STALL: Duration = Duration::from_secs(5);
/// How often contacts that have ended are looked for in the file: the border removes them itself, unless it was not asked.
const SWEEP: Duration = Duration::from_secs(3_600);
/// How long the end of the program waits for the last changes to be written.
const LAST_CHANGES: Duration = Duration::from_secs(2);
/// Name of the file in the folder that systemd gives the program.
const USUAL: &str = "registrations.db";

fn takes_registrations(config: &Config) -> bool {
    let mut interfaces = config.interfaces.iter();
    interfaces.any(|interface| interface.register != Register::Refuse)
}

/// Where a configuration keeps registrations; `None`: in memory, or it has none.
fn path_of(config: &Config) -> Option<PathBuf> {
    if !takes_registrations(config) {
        return None;
    }
    match &config.registrar_store {
        RegistrarStore::None => None,
        RegistrarStore::File(path) => Some(path.clone()),
        RegistrarStore::Usual => {
            let folders = std::env::var_os("STATE_DIRECTORY")?;
            // Of several, separated by colons, the first.
            let folder = std::env::split_paths(&folders).next()?;
            folder.is_absolute().then(|| folder.join(USUAL))
        }
    }
}

/// Where registrations are kept, as one line; nothing where none are taken.
pub fn summary(config: &Config) -> String {
    match path_of(config) {
        Some(path) => format!("registrations: kept over a restart in {}\n", path.display()),
        None if takes_registrations(config) => {
            "registrations: in memory, lost at a restart unless `[registrar] store` names a file\n"
                .to_owned()
        }
        None => String::new(),
    }
}

/// Changes on their way to the file.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// The writer waits here for changes, the end of the program for the writer.
    changed: Condvar,
    /// How often all registrations were asked for.
    round: AtomicU64,
    /// Since when the writer waits for the disk, nanoseconds of engine time; 0: it does not.
    busy_since: AtomicU64,
    /// That it has done so for long was logged.
    stalled: AtomicBool,
}

#[derive(Default)]
struct State {
    waiting: Vec<StoredRegistration>,
    bytes: usize,
    /// A packet thread found no room, and is woken when there is some.
    refused: bool,
    /// Changes that were lost, so that the file has to be written anew.
    lost: u64,
    wakers: Vec<Waker>,
    ending: bool,
    /// The writer has written everything, after `ending`.
    ended: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as `waits` says, at most `limit`.
    fn wait(
        &self,
        limit: Duration,
        waits: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
        waited.0
    }

    /// Asks all packet threads for all registrations.
    fn ask_for_all(&self) {
        self.round.fetch_add(1, Ordering::AcqRel);
        let wakers = self.state().wakers.clone();
        wakers.iter().for_each(Waker::wake);
    }
}

impl State {
    fn put(&mut self, registration: StoredRegistration) {
        let texts = |contact: &border::registrar::StoredContact| {
            let texts = [
                &contact.uri,
                &contact.params,
                &contact.instance,
                &contact.call_id,
                &contact.path,
            ];
            texts.iter().map(|text| text.len()).sum::<usize>() + CONTACT
        };
        let contacts: usize = registration.contacts.iter().map(texts).sum();
        self.bytes += CONTACT + registration.user.len() + contacts;
        self.waiting.push(registration);
    }

    fn has_room(&self) -> bool {
        self.bytes < ROOM
    }
}

/// By which a thread that carries packets hands on the changes of its border.
#[derive(Clone)]
pub struct Keeper {
    queue: Arc<Queue>,
    round: u64,
    path: Arc<Path>,
    log: Log,
    clock: Clock,
}

impl Keeper {
    /// `waker` wakes this keeper's thread where the queue has room again, or all registrations are asked for.
    pub fn wake_by(&self, waker: Waker) {
        self.queue.state().wakers.push(waker);
    }

    /// Moves changes of the border into the queue; does not wait for the disk. Returns whether the next turn is wanted at once, as there
    /// are more.
    pub fn take(&mut self, border: &mut Border) -> bool {
        self.tell_of_stall();
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
        let mut left = TURN;
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

    /// The writer cannot tell that the disk does not answer.
    fn tell_of_stall(&self) {
        let since = self.queue.busy_since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let now = self.clock.now();
        if now.since(Time(since)) > STALL && !self.queue.stalled.swap(true, Ordering::AcqRel) {
            let note = Note::RegistrationsNotStored {
                store: self.path.display().to_string(),
                why: format!("its disk has not answered for {} s", STALL.as_secs()),
                remedy: DISK.to_owned(),
            };
            self.log.event(&Event::new(now, note));
        }
    }
}

/// The file of registrations, with the thread that writes there.
pub struct Store {
    keeper: Keeper,
}

impl Store {
    /// Restores the registrations of the file into the border (of several workers, into their common registry), and starts to write
    /// changes there; `None` where the configuration keeps none.
    ///
    /// # Errors
    /// Another program has the file, or there is no thread.
    pub fn start(border: &mut Border, log: &Log, clock: Clock) -> io::Result<Option<Store>> {
        let Some(path) = path_of(border.config()) else {
            return Ok(None);
        };
        border.track_registration_changes();
        let keeper = Keeper {
            queue: Arc::default(),
            round: 0,
            path: path.clone().into(),
            log: log.clone(),
            clock,
        };
        let mut writer = Writer {
            queue: keeper.queue.clone(),
            path,
            database: None,
            batch: Batch::new(),
            wipe: false,
            asks: false,
            lost: 0,
            holds: false,
            failing: None,
            swept: clock.now(),
            log: log.clone(),
            clock,
        };
        writer.begin(border)?;
        std::thread::Builder::new()
            .name("registrations".to_owned())
            .spawn(move || {
                // Signals are the first thread's; where they cannot be blocked, they are taken as they come.
                let _ = net::block_signals();
                writer.run();
            })?;
        Ok(Some(Store { keeper }))
    }

    /// For one of the threads that carry packets.
    pub fn keeper(&self) -> Keeper {
        self.keeper.clone()
    }

    /// Waits until everything is written, not for long.
    pub fn end(self) {
        let queue = &self.keeper.queue;
        queue.state().ending = true;
        queue.changed.notify_all();
        drop(queue.wait(LAST_CHANGES, |state| !state.ended));
    }
}

/// Writing fails.
struct Failing {
    since: Time,
    told: Time,
}

struct Writer {
    queue: Arc<Queue>,
    path: PathBuf,
    database: Option<Database>,
    /// Users to be written next.
    batch: Batch,
    /// All other users are to be removed from the file first.
    wipe: bool,
    /// All registrations are to be asked for when that was done.
    asks: bool,
    /// Changes that were lost since writing failed.
    lost: u64,
    /// The file has contacts, as far as is known.
    holds: bool,
    failing: Option<Failing>,
    swept: Time,
    log: Log,
    clock: Clock,
}

impl Writer {
    fn tell(&self, note: Note) {
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
            Err(Failure::InUse) => {
                let (why, remedy) = Failure::InUse.words();
                return Err(io::Error::other(format!(
                    "{}: {why}\n  remedy: {remedy}",
                    self.path.display()
                )));
            }
            Err(failure) => self.failed(failure),
        }
        Ok(())
    }

    fn restore(&mut self, border: &mut Border) -> Result<(), Failure> {
        let mut database = Database::open(&self.path)?;
        let dates = Dates::now(&self.clock);
        let now = self.clock.now();
        let (mut registrations, mut contacts) = (0, 0);
        let batch = &mut self.batch;
        let left_out = database.read(&dates, &mut |registration| {
            let taken = border.restore_registration(&registration, now);
            registrations += u64::from(taken > 0);
            contacts += taken as u64;
            // Contacts that are not taken must not come back at a later start.
            if taken == 0 {
                batch.insert(registration.user, Vec::new());
            }
            taken
        })?;
        self.holds = contacts > 0;
        if contacts + left_out > 0 {
            self.tell(Note::RegistrationsRestored {
                store: self.store(),
                registrations,
                contacts,
                left_out,
            });
        }
        // A sign of life would let those come back, too, that have ended meanwhile.
        database.sweep(&dates)?;
        self.database = Some(database);
        Ok(())
    }

    fn run(mut self) {
        loop {
            let begun = self.wipe || !self.batch.is_empty();
            let limit = match self.failing {
                Some(_) => RETRY,
                None if begun => Duration::ZERO,
                None => SIGN_OF_LIFE,
            };
            let failing = self.failing.is_some();
            let idle = |state: &mut State| {
                !state.ending && (failing || state.waiting.is_empty() && state.lost == 0)
            };
            drop(self.queue.wait(limit, idle));
            if !failing {
                drop(self.queue.wait(COLLECT, |state| !state.ending));
            }
            let (current, ending) = self.collect();
            let begun = self.clock.now();
            self.queue.busy_since.store(begun.0, Ordering::Relaxed);
            let written = self.write(current);
            self.queue.busy_since.store(0, Ordering::Relaxed);
            if self.queue.stalled.swap(false, Ordering::AcqRel) {
                self.failing.get_or_insert(Failing {
                    since: begun,
                    told: begun,
                });
            }
            match written {
                Ok(()) => self.written(),
                Err(failure) => self.failed(failure),
            }
            if ending {
                // Changes that could not be written now are lost with the program.
                drop(self.database.take());
                self.queue.state().ended = true;
                self.queue.changed.notify_all();
                return;
            }
        }
    }

    /// Takes the waiting changes, where the last batch was written; returns whether no others are left, and whether the program ends.
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
            // Any of these users may have been removed since.
            self.batch.clear();
            (self.wipe, self.asks) = (true, true);
        }
        wakers.iter().for_each(Waker::wake);
        (current, ending)
    }

    fn write(&mut self, current: bool) -> Result<(), Failure> {
        let in_place = self.database.as_ref().map(Database::is_in_place);
        if in_place == Some(false) {
            self.database = None;
            return Err(Failure::Other {
                why: "it was removed or replaced while it was in use".to_owned(),
                remedy: "leave it to the program, which writes it anew",
            });
        }
        if in_place.is_none() {
            self.reopen()?;
        }
        let dates = Dates::now(&self.clock);
        let Some(database) = &mut self.database else {
            return Ok(());
        };
        self.holds |= self.batch.values().any(|contacts| !contacts.is_empty());
        let alive = current && self.holds;
        if alive || self.wipe || !self.batch.is_empty() {
            database.write(&self.batch, self.wipe, alive, &dates)?;
            self.batch.clear();
            self.wipe = false;
        }
        if std::mem::take(&mut self.asks) {
            self.queue.ask_for_all();
        }
        if self.clock.now().since(self.swept) > SWEEP {
            self.swept = self.clock.now();
            self.holds = database.sweep(&dates)?;
        }
        Ok(())
    }

    /// Opens the file while the border runs: it is then written anew.
    fn reopen(&mut self) -> Result<(), Failure> {
        self.database = None;
        self.database = Some(Database::open(&self.path)?);
        (self.wipe, self.asks) = (true, true);
        Ok(())
    }

    /// The last batch was written.
    fn written(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        let Some(failing) = self.failing.take() else {
            return;
        };
        self.tell(Note::RegistrationsStoredAgain {
            store: self.store(),
            seconds: self.clock.now().since(failing.since).as_secs(),
            lost,
        });
    }

    fn failed(&mut self, failure: Failure) {
        let failure = match failure {
            Failure::Corrupt(why) => match self.replace(&why) {
                Ok(()) => return,
                Err(failure) => failure,
            },
            other => other,
        };
        let now = self.clock.now();
        let since = self.failing.as_ref().map_or(now, |failing| failing.since);
        if let Some(failing) = &self.failing
            && now.since(failing.told) < TELL
        {
            return;
        }
        self.failing = Some(Failing { since, told: now });
        let (why, remedy) = failure.words();
        self.tell(Note::RegistrationsNotStored {
            store: self.store(),
            why,
            remedy: remedy.to_owned(),
        });
    }

    /// Moves a file that cannot be read aside and begins a new one.
    fn replace(&mut self, why: &str) -> Result<(), Failure> {
        self.database = None;
        let aside = move_aside(&self.path)?;
        self.tell(Note::RegistrationStoreReplaced {
            store: self.store(),
            moved_to: aside.display().to_string(),
            why: why.to_owned(),
        });
        self.reopen()
    }
}

/// The warning of `hornwork check` about the file; none where it can be written.
pub fn warning(config: &Config) -> Option<String> {
    let path = path_of(config)?;
    let error = probe(&path).err()?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    Some(format!(
        "registrations would not outlive a restart: {} cannot be written: {error}; let the program's user write in {}, or name another file by `[registrar] store`",
        path.display(),
        folder.display()
    ))
}
