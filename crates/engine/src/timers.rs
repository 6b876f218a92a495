//! Timers: a timing wheel for the many coarse timers of signalling, a heap for the few exact ones of media.

use crate::paged_slab::PagedSlab;
use crate::time::Time;
use core::cmp::Reverse;
use serde::{Deserialize, Serialize};
use std::collections::BinaryHeap;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 7;
/// Log2 of a tick in nanoseconds: 2^20 ns, about 1.05 ms.
const TICK_BITS: u32 = 20;
const NONE: u32 = u32::MAX;

/// Identifies a timer in a [`TimerWheel`]. The key of a timer that has fired or was cancelled is detected by its
/// generation and has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

#[derive(Debug, Clone)]
struct Entry<T> {
    tick: u64,
    value: T,
    generation: u32,
    next: u32,
    previous: u32,
    level: u8,
    slot: u8,
}

/// A hierarchical timing wheel: scheduling and cancelling in constant time, resolution about 1 ms, never early.
///
/// Timers of the same tick fire in an order that depends only on the calls made, so runs can be replayed.
#[derive(Debug, Clone)]
pub struct TimerWheel<T> {
    entries: PagedSlab<Entry<T>>,
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    /// All ticks up to and including this one have been processed.
    done: u64,
    due: Vec<u32>,
    generation: u32,
}

impl<T> Default for TimerWheel<T> {
    fn default() -> Self {
        TimerWheel::new()
    }
}

impl<T> TimerWheel<T> {
    /// No timers.
    pub fn new() -> Self {
        TimerWheel {
            entries: PagedSlab::new(),
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            done: 0,
            due: Vec::new(),
            generation: 0,
        }
    }

    /// Number of pending timers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Schedules `value` for `at`; it fires then or up to a tick later.
    pub fn schedule(&mut self, at: Time, value: T) -> TimerKey {
        let tick = at.0.div_ceil(1 << TICK_BITS).max(self.done + 1);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.entries.insert(Entry {
            tick,
            value,
            generation,
            next: NONE,
            previous: NONE,
            level: 0,
            slot: 0,
        }) as u32;
        self.link(index);
        TimerKey { index, generation }
    }

    /// Cancels a timer; `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        if entry.level == u8::MAX {
            self.due.retain(|&index| index != key.index);
        } else {
            self.unlink(key.index);
        }
        self.entries
            .try_remove(key.index as usize)
            .map(|entry| entry.value)
    }

    /// The next timer that is due at `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<T> {
        let target = now.0 >> TICK_BITS;
        loop {
            if let Some(index) = self.due.pop() {
                return self
                    .entries
                    .try_remove(index as usize)
                    .map(|entry| entry.value);
            }
            if self.done >= target {
                return None;
            }
            self.advance(target);
        }
    }

    /// The time of the next call to [`TimerWheel::pop_due`]; it may be early for distant timers, never late.
    pub fn next_at(&self) -> Option<Time> {
        if !self.due.is_empty() {
            return Some(Time(self.done << TICK_BITS));
        }
        self.next_tick()
            .map(|tick| Time(tick.saturating_mul(1 << TICK_BITS)))
    }

    /// The earliest tick at which a slot has to be opened.
    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| self.next_tick_of(level))
            .min()
    }

    fn next_tick_of(&self, level: usize) -> Option<u64> {
        let occupied = self.occupied[level];
        if occupied == 0 {
            return None;
        }
        let shift = SLOT_BITS * level as u32;
        let position = self.done >> shift;
        let current = (position % SLOTS as u64) as u32;
        // The search starts at the slot after the current one; the current one, if occupied, is a full rotation away.
        let ahead = occupied
            .rotate_right((current + 1) % SLOTS as u32)
            .trailing_zeros() as u64
            + 1;
        Some((position + ahead) << shift)
    }

    /// Opens the next occupied slot at or before `target`, or moves to `target`.
    fn advance(&mut self, target: u64) {
        let Some(tick) = self.next_tick().filter(|&tick| tick <= target) else {
            self.done = target;
            return;
        };
        // Distances are relative to the tick being opened. Relative to the tick before, a timer at the end of a slot's
        // span would be linked into the slot that is being emptied.
        self.done = tick;
        // From the top level down, so that a lower level processes the timers that cascade into it.
        for level in (1..LEVELS).rev() {
            let shift = SLOT_BITS * level as u32;
            if tick & ((1 << shift) - 1) == 0 {
                let slot = ((tick >> shift) % SLOTS as u64) as usize;
                self.cascade(level, slot, tick);
            }
        }
        let slot = (tick % SLOTS as u64) as usize;
        let mut index = self.take_slot(0, slot);
        while index != NONE {
            let entry = &mut self.entries[index as usize];
            entry.level = u8::MAX;
            let next = entry.next;
            self.due.push(index);
            index = next;
        }
    }

    fn cascade(&mut self, level: usize, slot: usize, tick: u64) {
        let mut index = self.take_slot(level, slot);
        while index != NONE {
            let next = self.entries[index as usize].next;
            debug_assert!(self.entries[index as usize].tick >= tick);
            self.link(index);
            index = next;
        }
    }

    fn take_slot(&mut self, level: usize, slot: usize) -> u32 {
        self.occupied[level] &= !(1 << slot);
        core::mem::replace(&mut self.heads[level][slot], NONE)
    }

    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick;
        let distance = tick - self.done;
        let mut level = 0;
        while level + 1 < LEVELS && distance >= 1 << (SLOT_BITS * (level as u32 + 1)) {
            level += 1;
        }
        let shift = SLOT_BITS * level as u32;
        // A timer beyond the range of the last level is put into its most distant slot, and linked again when that slot
        // is opened.
        let reach = (SLOTS as u64 - 1) << shift;
        let position = if distance > reach && level + 1 == LEVELS {
            self.done + reach
        } else {
            tick
        };
        let slot = ((position >> shift) % SLOTS as u64) as usize;
        let head = self.heads[level][slot];
        {
            let entry = &mut self.entries[index as usize];
            entry.level = level as u8;
            entry.slot = slot as u8;
            entry.next = head;
            entry.previous = NONE;
        }
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let (level, slot, next, previous) = {
            let entry = &self.entries[index as usize];
            (
                entry.level as usize,
                entry.slot as usize,
                entry.next,
                entry.previous,
            )
        };
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NONE {
            self.entries[previous as usize].next = next;
        } else {
            self.heads[level][slot] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        }
    }
}

/// Exact timers in a heap, for media clocks and arrivals. Timers of equal time fire in the order of insertion.
#[derive(Debug, Clone)]
pub struct TimerHeap<T> {
    heap: BinaryHeap<Reverse<Item<T>>>,
    count: u64,
}

#[derive(Debug, Clone)]
struct Item<T> {
    at: Time,
    number: u64,
    value: T,
}

impl<T> PartialEq for Item<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl<T> Eq for Item<T> {}
impl<T> PartialOrd for Item<T> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Item<T> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> Default for TimerHeap<T> {
    fn default() -> Self {
        TimerHeap::new()
    }
}

impl<T> TimerHeap<T> {
    /// No timers.
    pub fn new() -> Self {
        TimerHeap {
            heap: BinaryHeap::new(),
            count: 0,
        }
    }

    /// Schedules `value` for `at`.
    pub fn push(&mut self, at: Time, value: T) {
        self.count += 1;
        self.heap.push(Reverse(Item {
            at,
            number: self.count,
            value,
        }));
    }

    /// The earliest timer, if it is due at `now`, with its scheduled time.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        if self.heap.peek()?.0.at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(item)| (item.at, item.value))
    }

    /// The time of the earliest timer.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(item)| item.at)
    }

    /// Number of pending timers.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}
