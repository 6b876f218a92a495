//! How much of an overload is taken, how much is refused, and how much is not read at all, for each socket.
//!
//! New calls stand in a row by the place that their own bytes give them ([`Sieve::place`]). The first of them are taken, those
//! behind are refused, the rest is dropped before it is read. Both borders move: the first so that messages wait as long as
//! is wanted and no longer, the second so that refusals cost no more than a share of what is taken. Between both there is
//! always a margin of calls that were answered: where the first border rises into it nobody gets in late.

use core::time::Duration;
use engine::{Prefix, Sieve, SocketId, Time};

/// Everything comes through.
pub(super) const ALL: u32 = 65_536;
/// The least that is taken: one of a thousand, so that it shows when the flood is over.
const LEAST: f64 = 0.001;
/// Refusals that may always be said between two looks.
const FREE: u64 = 2;
/// How often calls taken and refused are held against each other.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A call that was dropped comes again after 0.5, 1, 2, 4, 8 and 16 seconds, each counted from the time before (Timer A of RFC
/// 3261 section 17.1.1.2, with T1 of 500 ms): looks in the longest of them.
const AGAIN: u8 = 160;
/// And in the first of them.
const FIRST: u8 = 5;
/// What may be taken grows by this between two looks where nothing waits at all.
const RISE: f64 = 0.01;
/// How much of a change of the wait, in seconds a second, is answered at once.
const DAMPING: f64 = 0.5;
/// What a refusal costs of what a call costs.
const REFUSAL: f64 = 0.15;
/// Weight of one look in averages over some seconds.
const SMOOTH: f64 = 0.05;
/// No less is taken than this much of what was taken on average.
const LOWEST: f64 = 0.75;
/// After so many looks without a queue the rise is steeper: it is over.
const OVER: u32 = 4;

/// What is known of the queue of one socket.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) socket: SocketId,
    /// Since when every message has waited too long.
    pub(super) above: Option<Time>,
    /// New calls taken since the last look.
    pub(super) taken: u64,
    /// New calls refused since the last look because they had waited too long, though less was taken already when they came.
    waited: u64,
    /// And for another reason.
    beyond: u64,
    /// When what is taken was last made less for those who had waited too long.
    cut: Time,
    /// What messages have waited since the last look, and how many they were.
    waits: (Duration, u32),
    sifting: Option<Sifting>,
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
}

impl Sifting {
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
        let factor = match late > free {
            // A queue that was a little too long for a moment is no reason for much.
            true if late < taken / 2.0 => fair.max(0.95),
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
        // More for a while, and as much as there is room for: who was refused has been answered, and comes no more.
        let most = may.max(self.peak);
        let factor = match self.idle > OVER {
            true => 1.1,
            false if refused > most && late > free => (most / refused).max(0.5),
            false if refused > may => 0.97,
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
    pub(super) fn new(socket: SocketId) -> Queue {
        Queue {
            socket,
            above: None,
            taken: 0,
            waited: 0,
            beyond: 0,
            cut: Time::ZERO,
            waits: (Duration::ZERO, 0),
            sifting: None,
        }
    }

    /// A message came that had waited so long.
    pub(super) fn comes_after(&mut self, waited: Duration) {
        self.waits.0 += waited;
        self.waits.1 += 1;
    }

    /// A new call that came at `arrived` was refused because it had waited too long. Of those who wait since before less was
    /// taken nothing is to be learnt.
    pub(super) fn refused_late(&mut self, arrived: Time) {
        match arrived >= self.cut {
            true => self.waited += 1,
            false => self.beyond += 1,
        }
    }

    /// A new call was refused because of its place.
    pub(super) fn refused_beyond(&mut self) {
        self.beyond += 1;
    }

    /// New calls since the last look, with those that were dropped unread as far as can be told.
    pub(super) fn offered(&self) -> u64 {
        let share = self.sifting.as_ref().map_or(ALL, |sifting| sifting.share);
        let read = self.taken + self.waited + self.beyond;
        read * u64::from(ALL) / u64::from(share.max(1))
    }

    /// Whether not everything is taken at present.
    pub(super) fn sifts(&self) -> bool {
        self.sifting
            .as_ref()
            .is_some_and(|sifting| sifting.takes < ALL || sifting.share < ALL)
    }

    /// Whether anything is dropped unread at present.
    pub(super) fn drops(&self) -> bool {
        self.sifting
            .as_ref()
            .is_some_and(|sifting| sifting.share < ALL)
    }

    /// Whether a new call is too far behind in the row, or was perhaps dropped when it was sent before, by others too
    /// (`clean`: below this place they dropped nobody who comes again).
    pub(super) fn is_beyond(&self, bytes: &[u8], clean: u32) -> bool {
        self.sifting.as_ref().is_some_and(|sifting| {
            let takes = sifting.takes.min(clean);
            takes < ALL
                && sifting
                    .sieve
                    .place(bytes)
                    .is_some_and(|place| u32::from(place) >= takes)
        })
    }

    /// Makes a row of those who come, where there is none yet.
    pub(super) fn line_up<'c>(&mut self, salt: u32, contact: impl FnOnce() -> &'c [u8]) {
        self.sifting
            .get_or_insert_with(|| Sifting::new(salt, contact()));
    }

    /// Below this place nobody was dropped who comes again.
    pub(super) fn clean(&self) -> u32 {
        self.sifting.as_ref().map_or(ALL, |sifting| sifting.clean)
    }

    /// Judges by what came since the last look: messages are to wait for `wanted` at most, and refusals may be `percent` of
    /// the calls taken (`None`: any number). Gives what is to come through from now on, of [`ALL`]; `None`: nothing was ever
    /// too much here.
    pub(super) fn look<'c>(
        &mut self,
        wanted: Duration,
        percent: Option<u32>,
        contact: impl FnOnce() -> &'c [u8],
        salt: u32,
        now: Time,
    ) -> Option<u32> {
        let taken = core::mem::take(&mut self.taken) as f64;
        let late = core::mem::take(&mut self.waited) as f64;
        let beyond = core::mem::take(&mut self.beyond) as f64;
        let (waited, came) = core::mem::take(&mut self.waits);
        if self.sifting.is_none() && late <= FREE as f64 {
            return None;
        }
        let sifting = self
            .sifting
            .get_or_insert_with(|| Sifting::new(salt, contact()));
        let wait = waited.checked_div(came).unwrap_or_default();
        let (wait, wanted) = (wait.as_secs_f64(), wanted.as_secs_f64());
        if sifting.take((taken, late, beyond), wait, wanted) {
            self.cut = now;
        }
        sifting.refuse(taken, (late, late + beyond), percent);
        sifting.remember();
        sifting.takes = of_all(sifting.could).min(sifting.clean);
        Some(ALL.min(sifting.takes + of_all(sifting.width)))
    }

    /// So much comes through from now on. Gives what stands before the socket, where that changes.
    pub(super) fn let_through(&mut self, share: u32) -> Option<Option<Sieve>> {
        let sifting = self.sifting.as_mut()?;
        let old = core::mem::replace(&mut sifting.share, share);
        sifting.sieve.share = u16::try_from(share).unwrap_or(u16::MAX);
        (share != old).then(|| (share < ALL).then_some(sifting.sieve))
    }
}

#[cfg(test)]
mod tests;
