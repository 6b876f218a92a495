//! How much of an overload is taken, how much is refused, and how much is not read at all, for each address.
//!
//! New calls stand in a row by the place that their own bytes give them ([`Sieve::place`]). The first of them are taken, those
//! behind are refused, the rest is dropped before it is read. Both borders move: the first so that messages wait as long as
//! is wanted and no longer, the second so that refusals cost no more than a share of what is taken. Between both there is
//! always a margin of calls that were answered: where the first border rises into it nobody gets in late.

use core::time::Duration;
use engine::worker::lock;
use engine::{Prefix, Sieve, SocketId, Time};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything comes through.
pub(crate) const ALL: u32 = 65_536;
/// The least that is taken: one of a thousand, so that it shows when the flood is over.
const LEAST: f64 = 0.001;
/// Refusals that may always be said between two looks.
const FREE: u64 = 2;
/// How often calls taken and refused are held against each other.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// A call that was dropped comes again after 0.5, 1, 2, 4, 8 and 16 seconds, each counted from the time before (Timer A of RFC
/// 3261 section 17.1.1.2, with T1 of 500 ms): looks in the longest of them.
const AGAIN: u8 = 160;
/// And in the first of them.
const FIRST: u8 = 5;
/// What may be taken grows by this between two looks where nothing waits at all.
const RISE: f64 = 0.015;
/// Of what too many late calls ask to be taken less, this power is done at each look: a queue that was too long by chance is no
/// reason for much, and one that stays too long is made shorter in a second.
const EASE: f64 = 0.15;
/// And this power of what too many refusals ask for.
const CLOSING: f64 = 0.08;
/// Refusals are held to this much of what they may be at most.
const AIM: f64 = 0.8;
/// How much of a change of the wait, in seconds a second, is answered at once.
const DAMPING: f64 = 0.5;
/// What a refusal costs of what a call costs.
const REFUSAL: f64 = 0.15;
/// Weight of one look in averages over some seconds.
const SMOOTH: f64 = 0.05;
/// No less is taken than this much of what was taken on average.
const LOWEST: f64 = 0.75;
/// After more looks in a row than this with more than half as many late calls as others it is a flood.
const FLOOD: u32 = 1;
/// After so many looks without a queue the rise is steeper: it is over.
const OVER: u32 = 4;

/// What was seen of new calls and of queues between two looks.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Taken.
    taken: u64,
    /// Refused because they had waited too long, though less was taken already when they came.
    late: u64,
    /// Refused for another reason.
    beyond: u64,
    /// What messages have waited, and how many they were.
    waited: Duration,
    came: u32,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.taken += other.taken;
        self.late += other.late;
        self.beyond += other.beyond;
        self.waited += other.waited;
        self.came += other.came;
    }
}

/// What is known of the queue of one socket.
#[derive(Debug)]
pub(super) struct Queue {
    pub(crate) socket: SocketId,
    /// Since when every message has waited too long.
    pub(crate) above: Option<Time>,
    seen: Seen,
    view: Option<View>,
}

/// What a worker knows of a row.
#[derive(Clone, Copy, Debug)]
struct View {
    /// With what comes through, at the last look.
    sieve: Sieve,
    share: u32,
    /// What is taken: places below this, of [`ALL`].
    takes: u32,
    /// When what is taken was last made less for those who had waited too long.
    cut: Time,
}

/// Those who come to one address, whichever worker's socket they come to.
#[derive(Debug)]
struct Row {
    /// Our Contact there, by which rows are told apart.
    contact: Box<[u8]>,
    /// By all workers, since the last look.
    seen: Seen,
    looked: Time,
    /// When what is taken was last made less for those who had waited too long.
    cut: Time,
    sifting: Sifting,
}

/// The rows of all addresses, in common to all workers: a call that comes again by another way fares as before.
#[derive(Debug)]
pub(crate) struct Rows {
    rows: Mutex<Vec<Row>>,
    /// Whether not everything is taken at some address.
    sifts: AtomicBool,
    /// By what calls are put into a row.
    salt: u32,
}

impl Rows {
    pub(crate) fn new(salt: u32) -> Rows {
        Rows {
            rows: Mutex::default(),
            sifts: AtomicBool::new(false),
            salt,
        }
    }

    /// Whether not everything is taken at some address.
    pub(super) fn sifts(&self) -> bool {
        self.sifts.load(Ordering::Relaxed)
    }

    /// Forgets rows that are no longer needed.
    pub(super) fn calm(&self) {
        let mut rows = lock(&self.rows);
        rows.retain(|row| row.sifting.sifts());
        self.sifts.store(!rows.is_empty(), Ordering::Relaxed);
    }
}

/// Length of the parts of the row of which it is known whether somebody was dropped there.
const PART: u32 = 64;

/// A part of the row.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// For how many looks the first of those who were dropped here has been coming; 0: there is none.
    coming: u8,
    /// Looks since when nobody is dropped here.
    open: u8,
}

/// Who is taken at a socket, and what stands before it.
#[derive(Debug)]
struct Sifting {
    sieve: Sieve,
    /// What could be taken, 0 to 1, of all that come.
    could: f64,
    /// What is refused behind that, 0 to 1, of all that come.
    width: f64,
    /// What is taken: places below this, of [`ALL`].
    takes: u32,
    /// Below this place nobody was dropped who comes again.
    clean: u32,
    /// What comes through, of [`ALL`], from the last look on.
    share: u32,
    /// Who of the row may come again, in equal parts.
    parts: Box<[Part; (ALL / PART) as usize]>,
    /// What messages waited on average before the last look, seconds.
    wait: f64,
    /// Most calls that were taken between two looks.
    peak: f64,
    /// Calls taken between two looks, and those that came, on average of some seconds.
    taken: f64,
    offered: f64,
    /// Looks without a queue.
    idle: u32,
    /// Looks in a row before which more than half as many as were taken had waited too long.
    flooded: u32,
}

impl Sifting {
    fn sifts(&self) -> bool {
        self.takes < ALL || self.share < ALL
    }

    fn new(salt: u32, contact: &[u8]) -> Sifting {
        Sifting {
            sieve: Sieve {
                sifted: Prefix::new(b"INVITE "),
                // Requests inside of dialogs are addressed to our Contact; calls for help to a service.
                spared: [
                    Prefix::new(&[b"INVITE ", contact].concat()),
                    Prefix::new(b"INVITE urn:"),
                ],
                share: u16::MAX,
                salt,
            },
            could: 1.0,
            width: 1.0,
            takes: ALL,
            clean: ALL,
            share: ALL,
            parts: Box::new([Part::default(); (ALL / PART) as usize]),
            wait: 0.0,
            peak: 0.0,
            taken: 0.0,
            offered: 0.0,
            idle: 0,
            flooded: 0,
        }
    }

    /// So much came through since the last look. A call that is dropped comes again within as long as it has been coming, and
    /// half a second, and is answered then; nobody waits for longer than [`AGAIN`].
    fn remember(&mut self) {
        let mut clean = ALL;
        for (place, part) in (0..).step_by(PART as usize).zip(self.parts.iter_mut()) {
            if self.share < place + PART {
                let coming = part.coming.saturating_add(part.open).saturating_add(1);
                part.coming = coming.min(AGAIN);
                part.open = 0;
            } else if part.coming > 0 {
                part.open += 1;
                if part.open >= AGAIN.min(part.coming + FIRST) {
                    *part = Part::default();
                }
            }
            if part.coming > 0 {
                clean = clean.min(place);
            }
        }
        self.clean = clean;
    }

    /// Moves the first border: of calls not too late `taken` were taken, though `late` more had waited too long.
    /// Whether it was moved because of them.
    fn take(&mut self, (taken, late, beyond): (f64, f64, f64), wait: f64, wanted: f64) -> bool {
        let free = (FREE as f64).max(taken / 50.0);
        let slope = (wait - self.wait) / LOOK.as_secs_f64();
        self.wait = wait;
        self.idle = match late == 0.0 && wait < wanted * 0.4 {
            true => self.idle + 1,
            false => 0,
        };
        // While a queue is worked off nothing is taken: what was refused tells what could have been.
        let could = taken + (late + beyond) * REFUSAL;
        let fair = (could.max(free) / (taken + late)).min(1.0);
        let much = late >= taken / 2.0;
        let factor = match late > free {
            // One look with many of them may tell of a thread that was kept from running; more tell of a flood.
            true if !much || self.flooded < FLOOD => fair.powf(EASE),
            true => fair.max(0.2),
            false => {
                let room = ((wanted - wait) / wanted).max(-3.0);
                let rise = match self.idle > OVER {
                    true => 5.0 * RISE,
                    false => RISE,
                };
                1.0 + (room * rise - DAMPING * slope).clamp(-0.1, 0.05)
            }
        };
        self.flooded = match much && late > free {
            true => self.flooded + 1,
            false => 0,
        };
        self.could = (self.could * factor).clamp(LEAST, 1.0);
        // What cannot be taken for another reason says nothing of what could be.
        let takes = f64::from(self.takes) / f64::from(ALL);
        self.could = self.could.min((takes * 1.1).max(LEAST));
        // The ends of calls that were too many make a queue a while later: that is no measure of what can be taken for long.
        let share = f64::from(self.share) / f64::from(ALL);
        let offered = (taken + late + beyond) / share;
        match self.offered > 0.0 {
            true => {
                self.taken += (taken - self.taken) * SMOOTH;
                self.offered += (offered - self.offered) * SMOOTH;
            }
            false => (self.taken, self.offered) = (could, offered),
        }
        if self.offered > 0.0 {
            let mean = (self.taken / self.offered).min(takes);
            self.could = self.could.max(LOWEST * mean);
        }
        late > free
    }

    /// Moves the second border: there were so many refusals, which may be `percent` of the calls taken.
    fn refuse(&mut self, taken: f64, (late, refused): (f64, f64), percent: Option<u32>) {
        self.peak = taken.max(self.peak * 0.998);
        let Some(percent) = percent else {
            self.width = 1.0;
            return;
        };
        let free = FREE as f64;
        let may = free.max(self.peak * f64::from(percent) / 100.0);
        let aim = free.max(may * AIM);
        // More for a while, and as much as there is room for: who was refused has been answered, and comes no more.
        let most = may.max(self.peak);
        let factor = match self.idle > OVER {
            true => 1.1,
            false if refused > most && late > free => (most / refused).max(0.5),
            false if refused > aim => (aim / refused).powf(CLOSING).max(0.8),
            false => 1.02,
        };
        // What was closed too far is opened again by as much as is taken, in a second or so.
        let least = match self.idle > OVER {
            true => 0.02 * f64::from(self.takes) / f64::from(ALL),
            false => 0.0001,
        };
        self.width = (self.width * factor + least).min(1.0);
    }
}

fn of_all(part: f64) -> u32 {
    (part * f64::from(ALL)) as u32
}

impl Queue {
    pub(crate) fn new(socket: SocketId) -> Queue {
        Queue {
            socket,
            above: None,
            seen: Seen::default(),
            view: None,
        }
    }

    /// A message came that had waited so long.
    pub(crate) fn comes_after(&mut self, waited: Duration) {
        self.seen.waited += waited;
        self.seen.came += 1;
    }

    /// A new call was taken.
    pub(crate) fn takes(&mut self) {
        self.seen.taken += 1;
    }

    /// A new call that came at `arrived` was refused because it had waited too long. Of those who wait since before less was
    /// taken nothing is to be learnt.
    pub(crate) fn refused_late(&mut self, arrived: Time) {
        match self.view.is_none_or(|view| arrived >= view.cut) {
            true => self.seen.late += 1,
            false => self.seen.beyond += 1,
        }
    }

    /// A new call was refused because of its place.
    pub(crate) fn refused_beyond(&mut self) {
        self.seen.beyond += 1;
    }

    /// New calls taken since the last look, and those that came, with those that were dropped unread as far as can be told.
    pub(crate) fn taken_of(&self) -> (u64, u64) {
        let share = self.view.map_or(ALL, |view| view.share);
        let read = self.seen.taken + self.seen.late + self.seen.beyond;
        (
            self.seen.taken,
            read * u64::from(ALL) / u64::from(share.max(1)),
        )
    }

    /// Whether not everything is taken at present.
    pub(super) fn sifts(&self) -> bool {
        self.view
            .is_some_and(|view| view.takes < ALL || view.share < ALL)
    }

    /// Whether anything is dropped unread at present.
    pub(crate) fn drops(&self) -> bool {
        self.view.is_some_and(|view| view.share < ALL)
    }

    /// Whether a new call is too far behind in the row, or was perhaps dropped when it was sent before.
    pub(crate) fn is_beyond(&self, bytes: &[u8]) -> bool {
        self.view.is_some_and(|view| {
            view.takes < ALL
                && view
                    .sieve
                    .place(bytes)
                    .is_some_and(|place| u32::from(place) >= view.takes)
        })
    }

    /// Whether the row is known here.
    pub(crate) fn is_in_row(&self) -> bool {
        self.view.is_some()
    }

    /// Tells the row what was seen here since the last look, and looks at it where that is due: messages are to wait for
    /// `wanted` (`None`: for as long as they like), and refusals may be `percent` of the calls taken (`None`: any number).
    /// Gives what is to stand before the socket from now on, where that changes.
    pub(crate) fn look(
        &mut self,
        rows: &Rows,
        contact: &[u8],
        wanted: Option<Duration>,
        percent: Option<u32>,
        now: Time,
    ) -> Option<Option<Sieve>> {
        let seen = core::mem::take(&mut self.seen);
        let mut all = lock(&rows.rows);
        let at = match all.iter().position(|row| *row.contact == *contact) {
            Some(at) => at,
            // Another worker has seen that it is over, and forgotten the row: everything is taken here, too.
            None if seen.late <= FREE => {
                let dropped = self.drops();
                self.view = None;
                return dropped.then_some(None);
            }
            None => {
                all.push(Row {
                    contact: contact.into(),
                    seen: Seen::default(),
                    looked: Time::ZERO,
                    cut: Time::ZERO,
                    sifting: Sifting::new(rows.salt, contact),
                });
                all.len() - 1
            }
        };
        let row = all.get_mut(at)?;
        row.seen.add(seen);
        if now.since(row.looked) + LOOK / 8 >= LOOK {
            row.look(wanted, percent, now);
            let sifts = all.iter().any(|row| row.sifting.sifts());
            rows.sifts.store(sifts, Ordering::Relaxed);
        }
        let row = all.get(at)?;
        let old = self.view.map_or(ALL, |view| view.share);
        let view = row.view();
        self.view = Some(view);
        (view.share != old).then(|| (view.share < ALL).then_some(view.sieve))
    }
}

impl Row {
    fn look(&mut self, wanted: Option<Duration>, percent: Option<u32>, now: Time) {
        self.looked = now;
        let seen = core::mem::take(&mut self.seen);
        let Some(wanted) = wanted else {
            // The configuration has changed since: nothing is too much any more.
            (self.sifting.takes, self.sifting.share) = (ALL, ALL);
            return;
        };
        let wait = seen.waited.checked_div(seen.came).unwrap_or_default();
        let (wait, wanted) = (wait.as_secs_f64(), wanted.as_secs_f64());
        let sifting = &mut self.sifting;
        let [taken, late, beyond] = [seen.taken, seen.late, seen.beyond].map(|count| count as f64);
        if sifting.take((taken, late, beyond), wait, wanted) {
            self.cut = now;
        }
        sifting.refuse(taken, (late, late + beyond), percent);
        sifting.remember();
        sifting.takes = of_all(sifting.could).min(sifting.clean);
        sifting.share = ALL.min(sifting.takes + of_all(sifting.width));
    }

    fn view(&self) -> View {
        let share = self.sifting.share;
        View {
            sieve: Sieve {
                share: u16::try_from(share).unwrap_or(u16::MAX),
                ..self.sifting.sieve
            },
            share,
            takes: self.sifting.takes,
            cut: self.cut,
        }
    }
}

#[cfg(test)]
mod tests;
