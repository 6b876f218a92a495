//! Sequence numbers of one source: wraps, duplicates, reordering, loss and loss runs, restarts (RFC 3550 A.1 and A.3).

use engine::Time;

/// A jump forward beyond this is a loss only where enough time has passed (RFC 3550 A.1: MAX_DROPOUT).
const MAX_DROPOUT: i64 = 3000;
/// Packets in sequence that make a source valid (RFC 3550 A.1: MIN_SEQUENTIAL).
const MIN_SEQUENTIAL: u8 = 2;

/// What a packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The first of its number, above all before it.
    Advance,
    /// The first of its number, below the highest.
    OutOfOrder,
    /// Seen before.
    Duplicate,
    /// Far outside the sequence; a next packet in line with it would mean a restart.
    Stray,
    /// The sender began a new sequence: this packet confirmed the stray before it.
    Restart,
}

/// The state of a source's sequence numbers. Memory is one bit per number of the window.
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
    /// Of the sequences before the last restart.
    expected_before: u64,
    cycles_before: u64,
    probation: u8,
    /// The stray that the next packet may confirm.
    suspect: Option<u16>,
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
    /// Reads what the next number will change; with `deep` its place in the window.
    pub(super) fn read_ahead(&self, deep: bool) -> u64 {
        if !deep {
            return self.highest as u64 ^ self.unique ^ self.runs.current ^ u64::from(self.started);
        }
        let at = (self.highest as u64).wrapping_add(1) / 64;
        let at = at as usize & self.seen.len().wrapping_sub(1);
        self.seen.get(at).copied().unwrap_or(0)
    }

    /// Window for live flows: 20 s of speech at 20 ms.
    pub const LIVE_WINDOW: usize = 1024;
    /// Window in which every 16-bit distance is told exactly, for captures.
    pub const EXACT_WINDOW: usize = 32_768;

    /// Nothing received. `window` is rounded up to a power of two from 64 to [`Sequence::EXACT_WINDOW`].
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
            suspect: None,
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
        let arrival = if self.is_strange(distance, time) {
            self.strange(number)
        } else if distance > 0 {
            self.advance(self.highest + distance);
            Arrival::Advance
        } else {
            self.below(self.highest + distance)
        };
        if arrival != Arrival::Stray {
            self.suspect = None;
            self.last_time = time;
        }
        arrival
    }

    /// Counts packets that followed the highest one without a gap, the last of them at `time`.
    pub fn pass(&mut self, packets: u32, time: Time) {
        let packets = i64::from(packets);
        if packets == 0 || !self.started {
            return;
        }
        self.received += packets as u64;
        self.suspect = None;
        self.last_time = time;
        // Once the window is full of packets that came, further ones change nothing in it.
        let shown = packets.min(self.window());
        for _ in 0..shown {
            self.advance(self.highest + 1);
        }
        let rest = packets - shown;
        self.unique += rest as u64;
        self.highest += rest;
    }

    /// Packets seen.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Distinct numbers.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Repeats.
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

    /// Lowest extended number since the last restart; below zero where a packet from before the first wrap came late.
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

    /// Whether two packets in sequence were seen since the start or the last restart.
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

    /// Mean length of loss runs divided by the mean length under random loss, 1 / (1 - loss). One where nothing is lost.
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

    /// A jump that loss does not explain: too far back for the window, or too far ahead for the time that passed at a
    /// quarter of the mean distance between packets so far.
    fn is_strange(&self, distance: i64, time: Time) -> bool {
        if distance <= -self.window() {
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

    fn strange(&mut self, number: u16) -> Arrival {
        let confirmed = self.suspect == Some(number);
        self.suspect = Some(number.wrapping_add(1));
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

    fn below(&mut self, number: i64) -> Arrival {
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
