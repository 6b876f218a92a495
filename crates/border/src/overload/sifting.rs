//! How much of an overload is taken, how much is refused, and how much is not read at all, for each address.
//!
//! New calls stand in a row by the place that their own bytes give them ([`Sieve::place`]). The first of them are taken, those
//! behind are refused, the rest is dropped before it is read. Both borders move: the first so that messages wait as long as
//! is wanted and no longer, the second so that refusals cost no more than a share of what is taken. Between both there is
//! always a margin of calls that were answered: where the first border rises into it nobody gets in late. Some of them are taken
//! where there is time for it at the moment, so that the thread always has something to do.

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
/// Weight of one look in what is remembered of the last half second.
const QUICK: f64 = 0.2;
/// And of the last second, and the last two.
const SOON: f64 = 0.1;
const SLOW: f64 = 0.05;
/// Looks at the beginning of a flood, when what can be taken is known badly: it was measured while calls began and none ended.
const BEGINNING: u32 = 10;
/// So many calls tell how fast they come; fewer may have come together by chance.
const ENOUGH: f64 = 20.0;
/// It is a flood where calls come this many times as fast as they can be taken, beyond what chance may do.
const FLOOD: f64 = 1.15;
/// Of calls that come in heaps the mean is off by this much of what is possible.
const HEAPS: f64 = 0.05;
/// And at most this much less is taken at once.
const AT_ONCE: f64 = 0.02;
/// Of what late calls ask to be taken less, this much is done at each look: a queue that was too long by chance is no reason for
/// more.
const CLOSING: f64 = 0.1;
/// More late calls between two looks than this much of what is usually taken tell of a thread that was kept from running.
const MOMENT: f64 = 0.15;
/// Late calls, of those that are to be taken: where there are so many the processor has always something to do.
const EDGE: f64 = 0.02;
/// What may be taken grows by this between two looks where nothing waits at all.
const RISE: f64 = 0.01;
/// And where nothing has waited for a while.
const STEEP: f64 = 0.075;
/// Where messages wait for this much of what they are to wait there is no room for more.
const FILLED: f64 = 0.6;
/// So many who stand behind those who are taken tell, between two looks.
const MARGIN: f64 = 0.5;
/// What a refusal costs of what a call costs, about.
const REFUSAL: f64 = 0.3;
/// What a call costs that is dropped when it is read.
const GLANCE: f64 = 0.12;
/// While nothing waits there may be more refusals at each look, until something does.
const SPARE: f64 = 1.2;
/// What is refused behind those who are taken when a flood begins, of these: what is known of so few moments may be wrong by so
/// much, and whoever is dropped cannot be taken for a while.
const DOUBT: f64 = 0.2;
/// What remains at each look of the most that was taken.
const LASTS: f64 = 0.9995;
/// Refusals between two looks, at most, of that.
const MOST: f64 = 3.0;
/// What too many refusals ask for, this power of it is done at each look.
const NARROWING: f64 = 0.15;
/// Where fewer calls come than this much of what can be taken the flood may be over.
const FEWER: f64 = 0.85;
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
    /// Taken though they are behind those who are, because there was time; refused there, because there was none.
    filled: u64,
    left: u64,
    /// Those among the refused who came before less was taken.
    old: u64,
    /// What messages have waited, and how many they were.
    waited: Duration,
    came: u32,
    /// Dropped when they were read.
    unread: u64,
    /// How fast calls came, by when they came, and how fast calls can be taken, a second, of those workers that knew both.
    offered: f64,
    possible: f64,
    /// Of those that came, the standard deviation by chance of those that are to be taken.
    chance: f64,
    /// Calls a second that could be taken by how fast messages are dealt with, where that is known.
    work: f64,
    /// Who stood behind those who are taken, and the part of them that there was time for, 0 to 1, both on average of half a
    /// second; of several workers the part of the one that had least.
    behind: f64,
    room: f64,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.taken += other.taken;
        self.late += other.late;
        self.beyond += other.beyond;
        self.filled += other.filled;
        self.left += other.left;
        self.old += other.old;
        self.waited += other.waited;
        self.came += other.came;
        self.unread += other.unread;
        self.offered += other.offered;
        self.possible += other.possible;
        self.chance += other.chance;
        self.work += other.work;
        if other.behind > 0.0 {
            self.room = match self.behind > 0.0 {
                true => self.room.min(other.room),
                false => other.room,
            };
            self.behind += other.behind;
        }
    }
}

/// What is known of the queue of one socket.
#[derive(Debug)]
pub(super) struct Queue {
    pub(crate) socket: SocketId,
    /// Since when every message has waited too long.
    pub(crate) above: Option<Time>,
    /// When the last message that had waited too long was dealt with.
    pub(crate) dealt: Option<Time>,
    seen: Seen,
    view: Option<View>,
    pace: Pace,
    /// Who was taken behind those who are, and refused there, between two looks, on average of half a second.
    filled: f64,
    left: f64,
}

/// How fast calls come, and how fast they can be taken.
#[derive(Debug)]
struct Pace {
    /// When it was last looked at.
    since: Time,
    /// When the first and the last call came that were to be taken, of those read since then, how many they were, and of how many
    /// that came.
    first: Time,
    last: Time,
    number: u64,
    all: f64,
    /// All calls that came a second, as far as those tell who were to be taken, on average of some seconds.
    offered: f64,
    /// How many calls told that at the beginning, and when the last of them came.
    told: f64,
    until: Option<Time>,
    /// Calls that were taken a second before.
    usual: f64,
    /// Calls that can be taken a second; 0: not known.
    possible: f64,
    /// Looks so far.
    looks: u32,
}

impl Pace {
    fn new(usual: f64, now: Time) -> Pace {
        Pace {
            since: now,
            offered: 0.0,
            told: 0.0,
            until: None,
            usual,
            first: Time::ZERO,
            last: Time::ZERO,
            number: 0,
            all: 0.0,
            possible: 0.0,
            looks: 0,
        }
    }

    /// A call that came at `arrived` is to be taken, as `part` of those that come are.
    fn comes(&mut self, arrived: Time, part: f64) {
        if self.number == 0 {
            (self.first, self.last) = (arrived, arrived);
        }
        self.last = self.last.max(arrived);
        self.number += 1;
        self.all += 1.0 / part;
    }

    /// Brings what can be taken up to date with what was done since the last look, and adds both to that.
    ///
    /// `part` of all that come is to be taken; `work` calls a second can be taken by how fast messages are dealt
    /// with, 0 where that is not known.
    fn look(&mut self, seen: &mut Seen, part: f64, work: f64, now: Time) {
        let past = now.since(self.since).as_secs_f64();
        // Too soon: a look that tells little.
        if past * 8.0 < LOOK.as_secs_f64() {
            return;
        }
        self.since = now;
        self.looks = self.looks.saturating_add(1);
        let refusals = (seen.late + seen.beyond) as f64 * REFUSAL;
        let rate = (seen.taken as f64 + refusals + seen.unread as f64 * GLANCE) / past;
        // Where there were more INVITEs than what follows them, the calls taken have cost only a part so far: how fast
        // messages are dealt with tells more.
        let rate = match work > 0.0 && self.looks < BEGINNING {
            true => rate.min(work.max(self.usual)),
            false => rate,
        };
        self.possible = match self.possible > 0.0 {
            false => rate.max(self.usual),
            true if rate > self.possible => self.possible + (rate - self.possible) * SOON,
            true if self.looks < BEGINNING => self.possible + (rate - self.possible) * QUICK,
            // A thread that was kept from running could have taken more.
            true => self.possible + (rate - self.possible) * SLOW,
        };
        let number = self.number as f64;
        let all = core::mem::take(&mut self.all);
        self.number = 0;
        // By when they came, and not by when they were read.
        let from = self.until.unwrap_or(self.first).min(self.first);
        let span = self.last.since(from).as_secs_f64();
        if self.looks >= BEGINNING {
            // Calls come in heaps, too: the mean of some seconds counts, however they came and were read in them.
            self.offered += (all / past - self.offered) * SLOW;
            seen.offered = self.offered;
            seen.chance = (self.offered * part).sqrt() + self.possible * HEAPS;
            seen.possible = self.possible;
        } else if number >= ENOUGH && span > LOOK.as_secs_f64() / 20.0 {
            self.until = Some(self.last);
            self.told += number;
            self.offered += (all / span - self.offered) * number / self.told;
            seen.offered = self.offered;
            seen.chance = self.offered * part / self.told.sqrt();
            seen.possible = self.possible;
        }
    }
}

/// What a worker knows of a row.
#[derive(Clone, Copy, Debug)]
struct View {
    /// With what comes through, at the last look.
    sieve: Sieve,
    share: u32,
    /// What is taken: places below this, of [`ALL`].
    takes: u32,
    /// What is taken where there is time: places below this.
    fills: u32,
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
    /// What messages waited, of what they are to wait, on average of half a second.
    wait: f64,
    /// Calls taken between two looks, and late ones among those that were to be, on average of half a second.
    taken: f64,
    late: f64,
    /// Calls taken between two looks, on average of some seconds.
    usual: f64,
    /// Most calls taken between two looks, of late.
    peak: f64,
    /// Refusals between two looks for which there is time beside.
    spare: f64,
    /// All refusals between two looks, on average of half a second.
    refused: f64,
    /// Looks without a queue.
    idle: u32,
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
            taken: 0.0,
            late: 0.0,
            usual: 0.0,
            peak: 0.0,
            spare: 0.0,
            refused: 0.0,
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

    /// Moves the first border by what was seen, `wait` of what messages are to wait. Whether it was moved because many more
    /// calls come than can be taken.
    ///
    /// Those who are not taken any more are dropped, at no cost; but whoever is to be taken again has first to be refused, with
    /// all who were dropped beside and come again, at the cost of many calls. So the border comes from above, in one step by how fast
    /// calls come, and from there on slowly; and it goes up again only where nothing else helps.
    fn take(&mut self, seen: Seen, wait: f64) -> bool {
        let [taken, late] = [seen.taken, seen.late].map(|count| count as f64);
        let free = (FREE as f64).max(taken / 50.0);
        self.wait += (wait - self.wait) * QUICK;
        let known = self.usual > 0.0;
        match known {
            true => {
                self.taken += (taken - self.taken) * QUICK;
                self.usual += (taken - self.usual) * SLOW;
            }
            // It may be more than a look that tells this.
            false => {
                let most = match seen.possible > 0.0 {
                    true => seen.possible * LOOK.as_secs_f64(),
                    false => taken,
                };
                (self.taken, self.usual) = (taken.min(most), taken.min(most));
            }
        }
        let most = MOMENT * self.most_taken().max(1.0);
        self.late += (late.min(most) - self.late) * QUICK;
        // Where as many come as can be taken it is not over, though nothing waits yet: calls that began will end, too.
        let fewer = self.taken < FEWER * seen.work * LOOK.as_secs_f64() || seen.work == 0.0;
        self.idle = match late == 0.0 && wait < 0.4 && fewer {
            true => self.idle + 1,
            false => 0,
        };
        let margin = seen.behind;
        // When calls came does not depend on when they were read: a thread that was kept from running is no flood. A worker that
        // has only just heard what is taken has counted others, too.
        let arriving = seen.offered * f64::from(self.takes.max(1)) / f64::from(ALL);
        let flood = (late > free || !known)
            && seen.possible > 0.0
            && arriving - 2.0 * seen.chance > FLOOD * seen.possible;
        let late = self.late / (self.taken + self.late).max(1.0);
        let factor = if flood {
            self.late = 0.0;
            (seen.possible / (arriving - seen.chance * 0.5)).max(AT_ONCE)
        } else if late > EDGE {
            1.0 - CLOSING * (late - EDGE) * (1.0 - REFUSAL)
        } else if self.idle > OVER {
            1.0 + (1.0 - self.wait / FILLED).max(0.0) * STEEP
        } else if margin > MARGIN {
            // Half of those who are next are to be taken, too.
            1.0 + (seen.room - 0.5).max(0.0) * 2.0 * RISE
        } else {
            1.0 + (1.0 - self.wait / FILLED).max(0.0) * RISE
        };
        let before = self.could;
        self.could = (self.could * factor).clamp(LEAST, 1.0);
        // What comes through at all is for refusals to say.
        if !flood && self.idle <= OVER {
            self.width += (before - self.could).max(0.0);
        }
        // What cannot be taken for another reason says nothing of what could be.
        let takes = f64::from(self.takes) / f64::from(ALL);
        self.could = self.could.min((takes * 1.03).max(LEAST));
        flood
    }

    /// What is taken where there is time: where nobody was dropped who could come late, of those who come through.
    fn fills(&self) -> u32 {
        self.clean.min(self.share).max(self.takes)
    }

    /// Calls taken between two looks where nothing keeps the threads from it.
    fn most_taken(&self) -> f64 {
        self.taken.max(self.usual)
    }

    /// Moves the second border: there were so many refusals, which may be `percent` of the calls taken; so many calls came a
    /// second in all, where the first border was moved for that.
    fn refuse(&mut self, refused: f64, offered: Option<f64>, percent: Option<u32>) {
        let Some(percent) = percent else {
            self.width = 1.0;
            return;
        };
        let wanted = (FREE as f64).max(self.most_taken() * f64::from(percent) / 100.0);
        self.refused += (refused - self.refused) * QUICK;
        if let Some(offered) = offered {
            self.refused = 0.0;
            // How many come is known: so is how many of them are too many refusals.
            let enough = wanted / (offered * LOOK.as_secs_f64()).max(1.0);
            self.width = self.width.min(enough.max(self.could * DOUBT));
            return;
        }
        // Where nothing waits there is time for more: who was dropped and comes again is answered the sooner.
        let idle = self.idle > OVER;
        self.spare = match idle {
            true => self.spare * SPARE + FREE as f64,
            false => self.spare * 0.9,
        };
        self.peak = self.taken.max(self.peak * LASTS);
        self.spare = self.spare.min(self.peak * MOST);
        let may = wanted + self.spare;
        // Those who were refused for a while are soon all known: the border goes back only where their refusals hold others up.
        if self.refused > may && self.wait > 0.4 {
            self.width *= (may / self.refused).powf(NARROWING);
        } else if self.refused <= may * 0.5 {
            let takes = f64::from(self.takes) / f64::from(ALL);
            self.width = match idle {
                true => self.width * 1.3 + takes / 20.0,
                false => self.width * 1.02 + 0.0001,
            };
        }
        self.width = self.width.min(1.0);
    }
}

fn of_all(part: f64) -> u32 {
    (part * f64::from(ALL)) as u32
}

impl Queue {
    /// Before it was too long `usual` calls a second were taken.
    pub(crate) fn new(socket: SocketId, usual: f64, now: Time) -> Queue {
        Queue {
            socket,
            above: None,
            dealt: None,
            seen: Seen::default(),
            view: None,
            pace: Pace::new(usual, now),
            filled: 0.0,
            left: 0.0,
        }
    }

    /// A message came that had waited so long.
    pub(crate) fn comes_after(&mut self, waited: Duration) {
        self.seen.waited += waited;
        self.seen.came += 1;
    }

    /// A new call that came at `arrived` was taken.
    pub(crate) fn takes(&mut self, bytes: &[u8], arrived: Time) {
        self.seen.taken += 1;
        match self.place(bytes) {
            Some((place, view)) if place >= view.takes => self.seen.filled += 1,
            _ => {
                let part = self.part();
                self.pace.comes(arrived, part);
            }
        }
    }

    /// How many of all that come are to be taken, as far as this worker knows.
    fn part(&self) -> f64 {
        self.view
            .map_or(1.0, |view| f64::from(view.takes.max(1)) / f64::from(ALL))
    }

    /// Where a new call stands, while not everything is taken.
    fn place(&self, bytes: &[u8]) -> Option<(u32, View)> {
        let view = self.view.filter(|view| view.takes < ALL)?;
        Some((u32::from(view.sieve.place(bytes)?), view))
    }

    /// A new call was dropped when it was read, see [`Queue::is_behind_sieve`].
    pub(crate) fn drops_unread(&mut self) {
        self.seen.unread += 1;
    }

    /// Whether a new call would have been dropped before the socket, had it come later.
    pub(crate) fn is_behind_sieve(&self, bytes: &[u8]) -> bool {
        self.view.is_some_and(|view| {
            view.share < ALL
                && view
                    .sieve
                    .place(bytes)
                    .is_some_and(|place| u32::from(place) >= view.share)
        })
    }

    /// A new call that came at `arrived` was refused because it had waited too long. Of those who wait since before less was
    /// taken nothing is to be learnt.
    pub(crate) fn refused_late(&mut self, arrived: Time) {
        match self.view.is_none_or(|view| arrived >= view.cut) {
            true => self.seen.late += 1,
            false => (self.seen.beyond, self.seen.old) = (self.seen.beyond + 1, self.seen.old + 1),
        }
        let part = self.part();
        self.pace.comes(arrived, part);
    }

    /// A new call was refused because of its place.
    pub(crate) fn refused_beyond(&mut self, bytes: &[u8], arrived: Time) {
        self.seen.beyond += 1;
        if self.view.is_some_and(|view| arrived < view.cut) {
            self.seen.old += 1;
        } else if self
            .place(bytes)
            .is_some_and(|(place, view)| place < view.fills)
        {
            self.seen.left += 1;
        }
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

    /// Whether a new call is too far behind in the row, or was perhaps dropped when it was sent before; `early`: there is time
    /// for some more.
    pub(crate) fn is_beyond(&self, bytes: &[u8], early: bool) -> bool {
        self.place(bytes).is_some_and(|(place, view)| match early {
            true => place >= view.fills,
            false => place >= view.takes,
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
        work: f64,
        wanted: Option<Duration>,
        percent: Option<u32>,
        now: Time,
    ) -> Option<Option<Sieve>> {
        let mut seen = core::mem::take(&mut self.seen);
        seen.work = work;
        self.filled += (seen.filled as f64 - self.filled) * QUICK;
        self.left += (seen.left as f64 - self.left) * QUICK;
        seen.behind = self.filled + self.left;
        seen.room = self.filled / seen.behind.max(f64::MIN_POSITIVE);
        let part = self.part();
        self.pace.look(&mut seen, part, work, now);
        let mut all = lock(&rows.rows);
        let at = match all.iter().position(|row| *row.contact == *contact) {
            Some(at) => at,
            // Another worker has seen that it is over, and forgotten the row: everything is taken here, too.
            None if seen.late == 0 || (self.view.is_some() && seen.late <= FREE) => {
                let dropped = self.drops();
                self.view = None;
                self.pace = Pace::new(0.0, now);
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
        let wait = wait.as_secs_f64() / wanted.as_secs_f64().max(f64::MIN_POSITIVE);
        let sifting = &mut self.sifting;
        let flood = sifting.take(seen, wait);
        if flood {
            self.cut = now;
        }
        let offered = flood.then_some(seen.offered);
        sifting.refuse(
            (seen.late + seen.beyond - seen.old) as f64,
            offered,
            percent,
        );
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
            fills: self.sifting.fills(),
            cut: self.cut,
        }
    }
}

#[cfg(test)]
mod tests;
