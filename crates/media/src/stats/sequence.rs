//! Sequence numbers of one source: wraps, duplicates, reordering, loss and loss runs, restarts (RFC 3550 A.1 and A.3).

use engine::Time;

/// A larger jump forward is a loss only if enough time has passed (RFC 3550 A.1: MAX_DROPOUT).
const MAX_DROPOUT: i64 = 3000;
/// A packet that is late by more is stray (RFC 3550 A.1: MAX_MISORDER). Not for captures, in whose window the missing
/// packets of the past have a place.
const MAX_MISORDER: i64 = 100;
/// Packets in sequence after which a source is valid (RFC 3550 A.1: MIN_SEQUENTIAL).
const MIN_SEQUENTIAL: u8 = 2;

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// First arrival of its number, above all earlier ones.
    Advance,
    /// First arrival of its number, below the highest.
    OutOfOrder,
    /// Duplicate of a packet.
    Duplicate,
    /// Far outside the sequence. A following packet in sequence with it indicates a restart.
    Stray,
    /// The sender began a new sequence: this packet confirmed the stray packet before it.
    Restart,
}

/// Sequence number state of a source. It takes one bit of memory per number of the window.
#[derive(Clone, Debug)]
pub struct Sequence {
    started: bool,
    lowest: i64,
    highest: i64,
    first: i64,
    seen: Box<[u64]>,
    received: u64,
    unique: u64,
    duplicates: u64,
    out_of_order: u64,
    strays: u64,
    restarts: u64,
    /// Figures of the sequences before the last restart.
    expected_before: u64,
    cycles_before: u64,
    probation: u8,
    /// The number that would confirm a restart after a stray packet.
    restart_candidate: Option<u16>,
    runs: LossRuns,
    first_time: Time,
    last_time: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct LossRuns {
    current: u64,
    runs: u64,
    lost: u64,
}

impl LossRuns {
    fn count(&mut self, arrived: bool) {
        if arrived {
            self.current = 0;
            return;
        }
        self.runs += u64::from(self.current == 0);
        self.current += 1;
        self.lost += 1;
    }
}

impl Sequence {
    /// Reads the data that the next number will change: this record, or with `deep` its bit in the window.
    pub(super) fn prefetch(&self, deep: bool) -> u64 {
        if !deep {
            return self.highest as u64 ^ self.unique ^ self.runs.current ^ u64::from(self.started);
        }
        let at = (self.highest as u64).wrapping_add(1) / 64;
        let at = at as usize & self.seen.len().wrapping_sub(1);
        self.seen.get(at).copied().unwrap_or(0)
    }

    /// Window for live flows: 20 s of speech at 20 ms.
    pub const LIVE_WINDOW: usize = 1024;
    /// Window in which every 16-bit distance is resolved exactly, for captures.
    pub const EXACT_WINDOW: usize = 32_768;

    /// A sequence without packets. `window` is rounded up to a power of two from 64 to [`Sequence::EXACT_WINDOW`].
    pub fn new(window: usize) -> Sequence {
        let window = window.clamp(64, Self::EXACT_WINDOW).next_power_of_two();
        Sequence {
            started: false,
            lowest: 0,
            highest: 0,
            first: 0,
            seen: vec![0; window / 64].into_boxed_slice(),
            received: 0,
            unique: 0,
            duplicates: 0,
            out_of_order: 0,
            strays: 0,
            restarts: 0,
            expected_before: 0,
            cycles_before: 0,
            probation: MIN_SEQUENTIAL,
            restart_candidate: None,
            runs: LossRuns::default(),
            first_time: Time::ZERO,
            last_time: Time::ZERO,
        }
    }

    /// Counts a packet.
    pub fn receive(&mut self, number: u16, time: Time) -> Arrival {
        self.received += 1;
        if !self.started {
            self.started = true;
            self.first_time = time;
            self.last_time = time;
            self.begin(i64::from(number));
            return Arrival::Advance;
        }
        let distance = i64::from(number.wrapping_sub(self.highest as u16) as i16);
        let arrival = if self.is_implausible(distance, time) && !self.is_missing(distance) {
            self.receive_implausible(number)
        } else if distance > 0 {
            self.advance(self.highest + distance);
            Arrival::Advance
        } else {
            self.receive_older(self.highest + distance)
        };
        if arrival != Arrival::Stray {
            self.restart_candidate = None;
            self.last_time = time;
        }
        arrival
    }

    /// Counts packets that followed the highest number without a gap, the last of them at `time`.
    pub fn add_in_order(&mut self, packets: u32, time: Time) {
        let packets = i64::from(packets);
        if packets == 0 || !self.started {
            return;
        }
        self.received += packets as u64;
        self.restart_candidate = None;
        self.last_time = time;
        // Once the window is full of received packets, further ones do not change it.
        let shown = packets.min(self.window());
        for _ in 0..shown {
            self.advance(self.highest + 1);
        }
        let rest = packets - shown;
        self.unique += rest as u64;
        self.highest += rest;
    }

    /// Packets received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Distinct numbers.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Duplicates.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// First arrivals below the highest.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Packets far outside the sequence.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// New sequences of the same source.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Lowest extended number since the last restart; below zero if a packet from before the first wrap was late.
    pub fn lowest(&self) -> i64 {
        self.lowest
    }

    /// Highest extended number since the last restart.
    pub fn highest(&self) -> i64 {
        self.highest
    }

    /// Wraps.
    pub fn cycles(&self) -> u64 {
        self.cycles_before + self.cycles_now()
    }

    /// Whether two packets in sequence were received since the start or the last restart.
    pub fn is_valid(&self) -> bool {
        self.probation == 0
    }

    /// Highest - lowest + 1, over all restarts.
    pub fn expected(&self) -> u64 {
        if self.started {
            self.expected_before + self.expected_now()
        } else {
            0
        }
    }

    /// Mean length of loss runs divided by the mean length under random loss, 1 / (1 - loss). It is 1 without loss.
    pub fn burst_ratio(&self) -> f64 {
        let mut runs = self.runs;
        for number in self.window_start()..=self.highest {
            runs.count(self.has(number));
        }
        let expected = self.expected();
        if runs.runs == 0 || expected == 0 {
            return 1.0;
        }
        let mean = runs.lost as f64 / runs.runs as f64;
        let loss = runs.lost as f64 / expected as f64;
        mean * (1.0 - loss)
    }

    fn window(&self) -> i64 {
        self.seen.len() as i64 * 64
    }

    fn window_start(&self) -> i64 {
        self.lowest.max(self.highest - self.window() + 1)
    }

    fn expected_now(&self) -> u64 {
        (self.highest - self.lowest + 1) as u64
    }

    fn cycles_now(&self) -> u64 {
        ((self.highest >> 16) - (self.first >> 16)).max(0) as u64
    }

    fn begin(&mut self, number: i64) {
        self.lowest = number;
        self.highest = number;
        self.first = number;
        self.probation = MIN_SEQUENTIAL - 1;
        self.seen.fill(0);
        self.mark(number);
        self.unique += 1;
    }

    fn max_misorder(&self) -> i64 {
        match self.window() {
            window if window < Self::EXACT_WINDOW as i64 => window.min(MAX_MISORDER),
            window => window,
        }
    }

    /// Whether a packet this far back is one that the window of a capture lacks: it is late by any time. One that was
    /// received may be the first of a new sequence.
    fn is_missing(&self, distance: i64) -> bool {
        let number = self.highest + distance;
        distance < 0
            && self.window() > Self::LIVE_WINDOW as i64
            && number >= self.window_start()
            && !self.has(number)
    }

    /// Whether a jump is not explained by loss or reordering: too far back, or too far ahead for the elapsed time at a
    /// quarter of the mean packet distance so far.
    fn is_implausible(&self, distance: i64, time: Time) -> bool {
        if distance <= -self.max_misorder() {
            return true;
        }
        if distance <= MAX_DROPOUT {
            return false;
        }
        let passed = time.since(self.last_time).as_nanos();
        let span = self.last_time.since(self.first_time).as_nanos();
        let packets = u128::from(self.received.saturating_sub(2).max(1));
        passed * packets * 4 < distance as u128 * span.max(packets * 1_000_000)
    }

    /// Handles a number that is not explained by loss: a stray packet, or the second one of a new sequence.
    fn receive_implausible(&mut self, number: u16) -> Arrival {
        let confirmed = self.restart_candidate == Some(number);
        self.restart_candidate = Some(number.wrapping_add(1));
        if !confirmed {
            self.strays += 1;
            return Arrival::Stray;
        }
        for number in self.window_start()..=self.highest {
            let arrived = self.has(number);
            self.runs.count(arrived);
        }
        self.runs.current = 0;
        self.expected_before += self.expected_now();
        self.cycles_before += self.cycles_now();
        self.restarts += 1;
        self.strays -= 1;
        let base = ((self.highest >> 16) + 1) << 16;
        let previous = number.wrapping_sub(1);
        self.begin(base + i64::from(previous));
        let distance = i64::from(number.wrapping_sub(previous));
        self.advance(self.highest + distance);
        Arrival::Restart
    }

    /// Handles a number above the highest. Numbers that leave the window are added to the loss runs.
    fn advance(&mut self, number: i64) {
        self.probation = match number - self.highest {
            1 => self.probation.saturating_sub(1),
            _ if self.probation > 0 => MIN_SEQUENTIAL - 1,
            _ => 0,
        };
        for next in self.highest + 1..=number {
            let leaving = next - self.window();
            if leaving >= self.lowest {
                let arrived = self.has(leaving);
                self.runs.count(arrived);
            }
            self.clear(next);
        }
        self.highest = number;
        self.mark(number);
        self.unique += 1;
    }

    fn receive_older(&mut self, number: i64) -> Arrival {
        if number >= self.lowest && self.has(number) {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        self.lowest = self.lowest.min(number);
        self.mark(number);
        self.unique += 1;
        self.out_of_order += 1;
        Arrival::OutOfOrder
    }

    fn slot(&self, number: i64) -> (usize, u64) {
        let index = number.rem_euclid(self.window()) as usize;
        (index / 64, 1 << (index % 64))
    }

    fn has(&self, number: i64) -> bool {
        let (word, bit) = self.slot(number);
        self.seen.get(word).is_some_and(|seen| seen & bit != 0)
    }

    fn mark(&mut self, number: i64) {
        let (word, bit) = self.slot(number);
        if let Some(seen) = self.seen.get_mut(word) {
            *seen |= bit;
        }
    }

    fn clear(&mut self, number: i64) {
        let (word, bit) = self.slot(number);
        if let Some(seen) = self.seen.get_mut(word) {
            *seen &= !bit;
        }
    }
}
