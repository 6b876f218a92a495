//! Replay protection: a window over the packet indices that were received.

use smallvec::SmallVec;

/// Smallest window (RFC 3711 section 3.3.2; RFC 4303 section 3.4.3 prefers it to 32).
pub const MIN_WINDOW: usize = 64;
/// Largest window: the index estimate of SRTP reaches no further back.
pub const MAX_WINDOW: usize = 1 << 15;

/// Reason for which an index is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// It was received before.
    Replayed,
    /// It is below the window.
    TooOld,
}

/// The highest received index, and a bitmap of the received ones below it (RFC 3711 section 3.3.2, RFC 4303
/// section 3.4.3).
#[derive(Clone, Debug)]
pub(crate) struct Window {
    highest: u64,
    /// One bit for each index of the window, at the index modulo the window size.
    seen: SmallVec<[u64; 2]>,
}

impl Window {
    /// A window of `size` packets, rounded up to a multiple of 64, in which `first` was received.
    pub fn new(size: usize, first: u64) -> Window {
        let words = size.clamp(MIN_WINDOW, MAX_WINDOW).div_ceil(64);
        let mut window = Window {
            highest: first,
            seen: SmallVec::from_elem(0, words),
        };
        window.mark(first);
        window
    }

    /// A window that rejects `highest` and all lower indices: for restored state.
    pub fn restored(size: usize, highest: u64) -> Window {
        let mut window = Window::new(size, highest);
        window.seen.fill(u64::MAX);
        window
    }

    /// The highest received index.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The state, to be written out: the highest index, and the bitmap of received ones.
    pub fn parts(&self) -> (u64, &[u64]) {
        (self.highest, &self.seen)
    }

    /// A window of these parts; `None` if the bitmap is empty or larger than the largest window.
    pub fn from_parts(highest: u64, seen: &[u64]) -> Option<Window> {
        if seen.is_empty() || seen.len() > MAX_WINDOW / 64 {
            return None;
        }
        let mut window = Window {
            highest,
            seen: SmallVec::from_slice(seen),
        };
        window.mark(highest);
        Some(window)
    }

    /// Size in packets.
    pub fn size(&self) -> u64 {
        self.seen.len() as u64 * 64
    }

    fn place(&self, index: u64) -> (usize, u64) {
        let at = index % self.size();
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn mark(&mut self, index: u64) {
        let (word, bit) = self.place(index);
        if let Some(word) = self.seen.get_mut(word) {
            *word |= bit;
        }
    }

    fn clear(&mut self, index: u64) {
        let (word, bit) = self.place(index);
        if let Some(word) = self.seen.get_mut(word) {
            *word &= !bit;
        }
    }

    /// Whether `index` is acceptable. It changes nothing, because the tag is not verified yet.
    pub fn check(&self, index: u64) -> Result<(), Stale> {
        if index > self.highest {
            return Ok(());
        }
        if self.highest - index >= self.size() {
            return Err(Stale::TooOld);
        }
        let (word, bit) = self.place(index);
        match self.seen.get(word) {
            Some(word) if word & bit == 0 => Ok(()),
            _ => Err(Stale::Replayed),
        }
    }

    /// Records `index`, whose tag was verified.
    pub fn accept(&mut self, index: u64) {
        if index > self.highest {
            if index - self.highest >= self.size() {
                self.seen.fill(0);
            } else {
                for skipped in self.highest + 1..index {
                    self.clear(skipped);
                }
            }
            self.highest = index;
        }
        self.mark(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_rejects_indices_below_it() {
        for size in [64, 128, 1000, MAX_WINDOW] {
            let mut window = Window::new(size, 10);
            let size = window.size();
            assert_eq!(window.check(10), Err(Stale::Replayed));
            assert_eq!(window.check(9), Ok(()));
            window.accept(9);
            assert_eq!(window.check(9), Err(Stale::Replayed));
            window.accept(10 + size);
            assert_eq!(window.check(10), Err(Stale::TooOld));
            for index in 11..10 + size {
                assert_eq!(window.check(index), Ok(()), "{index}");
            }
            window.accept(10 + 3 * size);
            assert_eq!(window.check(10 + 2 * size), Err(Stale::TooOld));
            assert_eq!(window.check(11 + 2 * size), Ok(()));
        }
    }

    #[test]
    fn window_agrees_with_a_set() {
        let mut window = Window::new(64, 1000);
        let mut accepted = std::collections::BTreeSet::from([1000u64]);
        let mut highest = 1000u64;
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let index = (highest + 20).saturating_sub(state >> 57);
            let right = if index + 64 <= highest {
                Err(Stale::TooOld)
            } else if accepted.contains(&index) {
                Err(Stale::Replayed)
            } else {
                Ok(())
            };
            assert_eq!(window.check(index), right);
            if right.is_ok() {
                window.accept(index);
                accepted.insert(index);
                highest = highest.max(index);
            }
        }
    }
}
