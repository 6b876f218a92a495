//! The jitter buffer of a seat: payloads by timestamp, and when they are to be played.
//!
//! The shortest time that packets take of late is followed, and how much longer the slower ones take. The buffer waits for as long as
//! those need. It grows at once where a packet comes too late, and shrinks only while nobody speaks, or where it is far too long.

use engine::{DropReason, Time};

/// Payloads that are kept at most.
const SLOTS: usize = 64;
/// A timestamp this far from what is played next is the beginning of another stream.
const RESTART_MS: u32 = 1_500;
/// How long a packet is waited for at least: our own clock meets the peer's anywhere, and hosts are late now and then.
const LEAST_US: i64 = 10_000;
/// The shortest way is that of this time, or of the same time before.
const WINDOW_US: i64 = 5_000_000;
/// How fast the wait becomes shorter again: by this part of the difference with each packet.
const FORGET: i64 = 128;
/// So much longer than needed the wait may be while nobody speaks, and while somebody does.
const SPARE_US: i64 = 30_000;
const SPARE_SPEECH_US: i64 = 120_000;
/// Without a packet for this long, the next one begins anew.
const DRY_MS: u32 = 100;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Audio,
    Noise,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    timestamp: u32,
    units: u32,
    length: u16,
    content: Option<Content>,
}

/// What is to be played next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This payload, see [`Buffer::payload`].
    Play(usize, Content),
    /// Nothing is there for so many timestamp units.
    Gap(u32),
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Buffer {
    slots: [Slot; SLOTS],
    bytes: Box<[u8]>,
    room: usize,
    clock: u32,
    most_us: i64,
    /// The timestamp that is played next; none before the first, and after a pause.
    next: Option<u32>,
    /// Made up at the end without getting on, in units.
    expanded: u32,
    /// The last timestamp that came, without its wrapping, and as it came.
    last: Option<(i64, u32)>,
    /// The shortest way in this window and the one before, in microseconds of our clock against theirs.
    shortest: [i64; 2],
    window_ends: i64,
    /// How much longer than the shortest way is waited.
    wait_us: i64,
}

impl Buffer {
    /// For payloads of at most `room` octets at `clock` timestamp units a second.
    pub(super) fn new(room: usize, clock: u32, most: core::time::Duration) -> Buffer {
        Buffer {
            slots: [Slot {
                timestamp: 0,
                units: 0,
                length: 0,
                content: None,
            }; SLOTS],
            bytes: vec![0; SLOTS * room].into_boxed_slice(),
            room,
            clock: clock.max(1),
            most_us: (most.as_micros() as i64).max(LEAST_US),
            next: None,
            expanded: 0,
            last: None,
            shortest: [i64::MAX; 2],
            window_ends: i64::MIN,
            wait_us: LEAST_US,
        }
    }

    pub(super) fn set_most(&mut self, most: core::time::Duration) {
        self.most_us = (most.as_micros() as i64).max(LEAST_US);
    }

    /// How much longer than the shortest way is waited for a packet at present, in microseconds.
    pub(super) fn wait_us(&self) -> i64 {
        self.wait_us
    }

    fn units(&self, ms: u32) -> u32 {
        self.clock / 1000 * ms
    }

    /// The timestamp's time in the peer's clock, in microseconds.
    fn theirs(&self, timestamp: u32) -> i64 {
        let (long, short) = self.last.unwrap_or((i64::from(timestamp), timestamp));
        let long = long + i64::from(timestamp.wrapping_sub(short) as i32);
        long * 1000 / i64::from(self.clock / 1000)
    }

    /// Everything anew, as with another stream.
    pub(super) fn restart(&mut self) {
        for slot in &mut self.slots {
            slot.content = None;
        }
        self.next = None;
        self.expanded = 0;
        self.last = None;
        self.shortest = [i64::MAX; 2];
        self.window_ends = i64::MIN;
    }

    /// Takes a payload that lasts `units`.
    ///
    /// # Errors
    /// [`DropReason::RoomLate`], [`DropReason::RoomOverrun`].
    pub(super) fn insert(
        &mut self,
        arrived: Time,
        timestamp: u32,
        units: u32,
        content: Content,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let far = |a: u32, b: u32| (a.wrapping_sub(b) as i32).unsigned_abs();
        let limit = self.units(RESTART_MS);
        if self.last.is_some_and(|last| far(timestamp, last.1) > limit)
            || self.next.is_some_and(|next| far(timestamp, next) > limit)
        {
            self.restart();
        }
        self.measure(arrived, timestamp);
        if payload.len() > self.room {
            return Err(DropReason::RoomOverrun);
        }
        if let Some(next) = self.next
            && (timestamp.wrapping_sub(next) as i32) < 0
        {
            return Err(DropReason::RoomLate);
        }
        let mut free = None;
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.content {
                None => free = free.or(Some(index)),
                Some(_) if slot.timestamp == timestamp => return Err(DropReason::RoomLate),
                Some(_) => {}
            }
        }
        let index = free.ok_or(DropReason::RoomOverrun)?;
        let at = index * self.room;
        if let (Some(slot), Some(place)) = (
            self.slots.get_mut(index),
            self.bytes.get_mut(at..at + payload.len()),
        ) {
            place.copy_from_slice(payload);
            *slot = Slot {
                timestamp,
                units,
                length: payload.len() as u16,
                content: Some(content),
            };
        }
        Ok(())
    }

    /// Follows how long packets take.
    fn measure(&mut self, arrived: Time, timestamp: u32) {
        let theirs = self.theirs(timestamp);
        let long = self.last.map_or(i64::from(timestamp), |(long, short)| {
            long + i64::from(timestamp.wrapping_sub(short) as i32)
        });
        if self.last.is_none_or(|last| long > last.0) {
            self.last = Some((long, timestamp));
        }
        let ours = (arrived.as_nanos() / 1000) as i64;
        let way = ours - theirs;
        if ours >= self.window_ends {
            self.shortest = [i64::MAX, self.shortest[0]];
            self.window_ends = ours + WINDOW_US;
        }
        self.shortest[0] = self.shortest[0].min(way);
        let longer = (way - self.base()).max(LEAST_US);
        let wanted = (longer + longer / 8).min(self.most_us);
        if wanted > self.wait_us {
            self.wait_us = wanted;
        } else {
            self.wait_us -= (self.wait_us - wanted) / FORGET;
        }
    }

    fn base(&self) -> i64 {
        self.shortest[0].min(self.shortest[1])
    }

    /// How much later than the shortest way allows `timestamp` would be played now.
    fn lag(&self, timestamp: u32, now: Time) -> i64 {
        (now.as_nanos() / 1000) as i64 - self.theirs(timestamp) - self.base()
    }

    fn earliest(&self) -> Option<usize> {
        let base = self.next.or(self.last.map(|last| last.1)).unwrap_or(0);
        (0..SLOTS)
            .filter(|&index| self.slots[index].content.is_some())
            .min_by_key(|&index| self.slots[index].timestamp.wrapping_sub(base) as i32)
    }

    /// Before the steps of a turn: begins a stream, lengthens or shortens the wait. `quiet`: nobody would notice. False where
    /// nothing is played in this turn.
    pub(super) fn begin(&mut self, now: Time, turn_ms: u32, quiet: bool) -> bool {
        let Some(next) = self.next else {
            let Some(first) = self.earliest() else {
                return false;
            };
            let timestamp = self.slots[first].timestamp;
            if self.lag(timestamp, now) < self.wait_us {
                return false;
            }
            self.next = Some(timestamp);
            self.expanded = 0;
            return true;
        };
        let lag = self.lag(next, now);
        let spare = match quiet {
            true => SPARE_US,
            false => SPARE_SPEECH_US,
        };
        if lag > self.wait_us + spare {
            self.skip_one(next, turn_ms);
        } else if quiet && lag + LEAST_US < self.wait_us {
            return false;
        }
        true
    }

    /// Leaves the next payload out where enough are behind it: a way that has become longer keeps nothing in store.
    fn skip_one(&mut self, next: u32, turn_ms: u32) {
        let Some(first) = self.earliest() else {
            return;
        };
        let slot = self.slots[first];
        let ends = slot.timestamp.wrapping_add(slot.units);
        let behind = self
            .slots
            .iter()
            .filter(|slot| slot.content.is_some())
            .map(|slot| slot.timestamp.wrapping_add(slot.units).wrapping_sub(ends) as i32)
            .max();
        let enough = behind.is_some_and(|behind| behind >= self.units(2 * turn_ms) as i32);
        if enough && (ends.wrapping_sub(next) as i32) > 0 {
            self.slots[first].content = None;
            self.next = Some(ends);
        }
    }

    /// The next step; gaps of at most `units`.
    pub(super) fn step(&mut self, units: u32) -> Step {
        let Some(next) = self.next else {
            return Step::Gap(units);
        };
        let Some(index) = self.earliest() else {
            // Late or lost is not known yet.
            self.expanded = self.expanded.saturating_add(units);
            if self.expanded >= self.units(DRY_MS) {
                self.next = None;
            }
            return Step::Gap(units);
        };
        let slot = self.slots[index];
        let ahead = slot.timestamp.wrapping_sub(next);
        let missing = ahead.saturating_sub(self.expanded);
        if (ahead as i32) > 0 && missing > 0 {
            let gap = missing.min(units);
            self.next = Some(next.wrapping_add(self.expanded.min(ahead) + gap));
            self.expanded = 0;
            return Step::Gap(gap);
        }
        self.expanded = 0;
        self.next = Some(slot.timestamp.wrapping_add(slot.units));
        self.slots[index].content = None;
        Step::Play(index, slot.content.unwrap_or(Content::Audio))
    }

    /// The payload that [`Buffer::step`] told to play; until the next one is inserted.
    pub(super) fn payload(&self, index: usize) -> &[u8] {
        let length = self.slots.get(index).map_or(0, |slot| slot.length);
        let at = index * self.room;
        self.bytes
            .get(at..at + usize::from(length))
            .unwrap_or_default()
    }

    /// The payload that follows a gap just told, where it is there.
    pub(super) fn following(&self) -> Option<&[u8]> {
        let next = self.next?;
        let index = self.earliest()?;
        (self.slots[index].timestamp == next && self.slots[index].content == Some(Content::Audio))
            .then(|| self.payload(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn at(ms: u64) -> Time {
        Time::from_millis(1_000 + ms)
    }

    fn buffer() -> Buffer {
        Buffer::new(4, 8000, Duration::from_millis(200))
    }

    fn put(buffer: &mut Buffer, ms: u64, number: u32) -> Result<(), DropReason> {
        // Over the end of the numbers.
        let stamp = (u32::MAX - 500).wrapping_add(number * 160);
        buffer.insert(at(ms), stamp, 160, Content::Audio, &[number as u8])
    }

    /// Plays a turn; the number of the payload, or none.
    fn play(buffer: &mut Buffer, ms: u64, quiet: bool) -> Option<u8> {
        if !buffer.begin(at(ms), 20, quiet) {
            return None;
        }
        match buffer.step(160) {
            Step::Play(index, _) => Some(buffer.payload(index)[0]),
            Step::Gap(_) => None,
        }
    }

    #[test]
    fn order_loss_and_repetition() {
        let mut buffer = buffer();
        for number in [0u32, 2, 1, 4] {
            put(&mut buffer, u64::from(number) * 20, number).unwrap();
        }
        assert_eq!(put(&mut buffer, 80, 4), Err(DropReason::RoomLate));
        let heard: Vec<_> = (0..6)
            .map(|turn| play(&mut buffer, 45 + 20 * turn, false))
            .collect();
        assert_eq!(heard, [Some(0), Some(1), Some(2), None, Some(4), None]);
        assert_eq!(put(&mut buffer, 160, 3), Err(DropReason::RoomLate));
    }

    #[test]
    fn a_late_packet_makes_the_wait_longer_and_a_lost_one_does_not() {
        let mut buffer = buffer();
        let mut heard = Vec::new();
        for turn in 0..40u64 {
            let number = turn as u32;
            match number {
                10 => {}
                // Comes 70 ms late, with those behind it.
                20..=22 => {}
                23 => (20..=23).for_each(|late| put(&mut buffer, 460, late).unwrap_or(())),
                _ => put(&mut buffer, turn * 20, number).unwrap(),
            }
            heard.push(play(&mut buffer, turn * 20 + 12, false));
        }
        // Number 10 was lost: the others keep their time.
        assert_eq!(heard[9..12], [Some(9), None, Some(11)]);
        assert_eq!(heard[19], Some(19));
        assert_eq!(heard[20..23], [None; 3]);
        // All of those that were late are played, later.
        assert_eq!(
            heard[23..28],
            [Some(20), Some(21), Some(22), Some(23), Some(24)]
        );
        assert!(buffer.wait_us() > 55_000, "{}", buffer.wait_us());
    }

    #[test]
    fn a_long_wait_becomes_shorter_in_silence() {
        let mut buffer = buffer();
        put(&mut buffer, 150, 0).unwrap();
        for number in 1..400u32 {
            let ms = (u64::from(number) * 20).max(150);
            put(&mut buffer, ms, number).unwrap_or(());
            play(&mut buffer, ms + 12, number > 350);
        }
        let last = (0..3).find_map(|turn| play(&mut buffer, 400 * 20 + 12 + 20 * turn, true));
        // What was sent 20 ms before is played.
        assert!(
            last.is_some_and(|last| last >= (396u32 & 0xff) as u8),
            "{last:?}"
        );
    }

    #[test]
    fn another_stream_begins_anew() {
        let mut buffer = buffer();
        put(&mut buffer, 0, 0).unwrap();
        assert_eq!(play(&mut buffer, 12, false), Some(0));
        buffer
            .insert(at(20), 0x4000_0000, 160, Content::Audio, &[77])
            .unwrap();
        assert_eq!(play(&mut buffer, 32, false), Some(77));
        // A datagram that is no payload of this codec's.
        assert_eq!(
            buffer.insert(at(20), 0x4000_0000, 160, Content::Audio, &[0; 5]),
            Err(DropReason::RoomOverrun)
        );
        for number in 0..SLOTS as u32 {
            buffer
                .insert(
                    at(40),
                    0x4000_00a0 + number * 160,
                    160,
                    Content::Audio,
                    &[1],
                )
                .unwrap();
        }
        let more = 0x4000_00a0 + SLOTS as u32 * 160;
        assert_eq!(
            buffer.insert(at(40), more, 160, Content::Audio, &[1]),
            Err(DropReason::RoomOverrun)
        );
    }
}
