//! Jitter buffer of a participant: payloads by timestamp, and their playout times.
//!
//! It measures the shortest recent transit time, and how much excess slower packets take. The playout delay covers
//! these. It grows at once if a packet is late, and shrinks only while the participant is silent, or if it is far too
//! long.

use engine::{DropReason, Time};

/// Maximum number of stored payloads.
const SLOTS: usize = 64;
/// A timestamp that differs this much from the playout position begins another stream.
const RESTART_MS: u32 = 1_500;
/// Minimum playout delay: our turns begin at any phase of the sender's packets, and hosts are late at times.
const MIN_WAIT_US: i64 = 10_000;
/// The shortest transit time is that of this period or the one before.
const WINDOW_US: i64 = 5_000_000;
/// Decay of the delay: this part of the difference per packet.
const DECAY: i64 = 128;
/// Excess delay that is tolerated during silence and during speech.
const SLACK_US: i64 = 30_000;
const SLACK_SPEECH_US: i64 = 120_000;
/// After this time without a packet, the next one starts the playout again.
const UNDERRUN_MS: u32 = 100;

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotContent {
    Audio,
    Noise,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    timestamp: u32,
    units: u32,
    length: u16,
    content: Option<SlotContent>,
}

/// The next item to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlayoutStep {
    /// The payload at this index, see [`JitterBuffer::payload`].
    Play(usize, SlotContent),
    /// No payload for this many timestamp units.
    Gap(u32),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct JitterBuffer {
    slots: [Slot; SLOTS],
    bytes: Box<[u8]>,
    slot_size: usize,
    clock: u32,
    max_wait_us: i64,
    /// Timestamp of the playout position; none before the first payload and after a pause.
    next: Option<u32>,
    /// Units that were concealed without moving the playout position.
    concealed_units: u32,
    /// The last timestamp, extended and as received.
    last: Option<(i64, u32)>,
    /// Shortest transit time in this period and the one before, in microseconds of our clock less the sender's.
    shortest: [i64; 2],
    window_ends: i64,
    /// Playout delay beyond the shortest transit time.
    wait_us: i64,
}

impl JitterBuffer {
    /// For payloads of at most `slot_size` octets and a clock rate of `clock` Hz.
    pub(super) fn new(
        slot_size: usize,
        clock: u32,
        max_delay: core::time::Duration,
    ) -> JitterBuffer {
        JitterBuffer {
            slots: [Slot {
                timestamp: 0,
                units: 0,
                length: 0,
                content: None,
            }; SLOTS],
            bytes: vec![0; SLOTS * slot_size].into_boxed_slice(),
            slot_size,
            clock: clock.max(1),
            max_wait_us: (max_delay.as_micros() as i64).max(MIN_WAIT_US),
            next: None,
            concealed_units: 0,
            last: None,
            shortest: [i64::MAX; 2],
            window_ends: i64::MIN,
            wait_us: MIN_WAIT_US,
        }
    }

    pub(super) fn set_max_delay(&mut self, max_delay: core::time::Duration) {
        self.max_wait_us = (max_delay.as_micros() as i64).max(MIN_WAIT_US);
    }

    /// The present playout delay beyond the shortest transit time, in microseconds.
    pub(super) fn wait_us(&self) -> i64 {
        self.wait_us
    }

    fn units(&self, ms: u32) -> u32 {
        self.clock / 1000 * ms
    }

    /// The sender's time of a timestamp, in microseconds.
    fn theirs(&self, timestamp: u32) -> i64 {
        let (long, short) = self.last.unwrap_or((i64::from(timestamp), timestamp));
        let long = long + i64::from(timestamp.wrapping_sub(short) as i32);
        long * 1000 / i64::from(self.clock / 1000)
    }

    /// Resets the buffer, for another stream.
    pub(super) fn restart(&mut self) {
        for slot in &mut self.slots {
            slot.content = None;
        }
        self.next = None;
        self.concealed_units = 0;
        self.last = None;
        self.shortest = [i64::MAX; 2];
        self.window_ends = i64::MIN;
    }

    /// Stores a payload that lasts `units`.
    ///
    /// # Errors
    /// [`DropReason::ConferenceLate`], [`DropReason::ConferenceOverrun`].
    pub(super) fn insert(
        &mut self,
        arrived: Time,
        timestamp: u32,
        units: u32,
        content: SlotContent,
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
        if payload.len() > self.slot_size {
            return Err(DropReason::ConferenceOverrun);
        }
        if let Some(next) = self.next
            && (timestamp.wrapping_sub(next) as i32) < 0
        {
            return Err(DropReason::ConferenceLate);
        }
        let mut free = None;
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.content {
                None => free = free.or(Some(index)),
                Some(_) if slot.timestamp == timestamp => return Err(DropReason::ConferenceLate),
                Some(_) => {}
            }
        }
        let index = free.ok_or(DropReason::ConferenceOverrun)?;
        let at = index * self.slot_size;
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

    /// Updates transit time and delay.
    fn measure(&mut self, arrived: Time, timestamp: u32) {
        let theirs = self.theirs(timestamp);
        let long = self.last.map_or(i64::from(timestamp), |(long, short)| {
            long + i64::from(timestamp.wrapping_sub(short) as i32)
        });
        if self.last.is_none_or(|last| long > last.0) {
            self.last = Some((long, timestamp));
        }
        let ours = (arrived.as_nanos() / 1000) as i64;
        let transit = ours - theirs;
        if ours >= self.window_ends {
            self.shortest = [i64::MAX, self.shortest[0]];
            self.window_ends = ours + WINDOW_US;
        }
        self.shortest[0] = self.shortest[0].min(transit);
        let excess = (transit - self.base()).max(MIN_WAIT_US);
        let wanted = (excess + excess / 8).min(self.max_wait_us);
        if wanted > self.wait_us {
            self.wait_us = wanted;
        } else {
            self.wait_us -= (self.wait_us - wanted) / DECAY;
        }
    }

    fn base(&self) -> i64 {
        self.shortest[0].min(self.shortest[1])
    }

    /// Delay beyond the shortest transit time at which `timestamp` would be played now.
    fn lag(&self, timestamp: u32, now: Time) -> i64 {
        (now.as_nanos() / 1000) as i64 - self.theirs(timestamp) - self.base()
    }

    fn earliest(&self) -> Option<usize> {
        let base = self.next.or(self.last.map(|last| last.1)).unwrap_or(0);
        (0..SLOTS)
            .filter(|&index| self.slots[index].content.is_some())
            .min_by_key(|&index| self.slots[index].timestamp.wrapping_sub(base) as i32)
    }

    /// Begins a turn: starts the playout, or adapts the delay. `quiet`: the participant is silent. Returns false if
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
            self.concealed_units = 0;
            return true;
        };
        let lag = self.lag(next, now);
        let spare = match quiet {
            true => SLACK_US,
            false => SLACK_SPEECH_US,
        };
        if lag > self.wait_us + spare {
            self.drop_next(next, turn_ms);
        } else if quiet && lag + MIN_WAIT_US < self.wait_us {
            return false;
        }
        true
    }

    /// Drops the next payload if enough others are stored, to shorten the delay.
    fn drop_next(&mut self, next: u32, turn_ms: u32) {
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

    /// The next step; gaps have at most `units`.
    pub(super) fn step(&mut self, units: u32) -> PlayoutStep {
        let Some(next) = self.next else {
            return PlayoutStep::Gap(units);
        };
        let Some(index) = self.earliest() else {
            // Whether the packet is late or lost is unknown yet, so the position does not move.
            self.concealed_units = self.concealed_units.saturating_add(units);
            if self.concealed_units >= self.units(UNDERRUN_MS) {
                self.next = None;
            }
            return PlayoutStep::Gap(units);
        };
        let slot = self.slots[index];
        let ahead = slot.timestamp.wrapping_sub(next);
        let missing = ahead.saturating_sub(self.concealed_units);
        if (ahead as i32) > 0 && missing > 0 {
            let gap = missing.min(units);
            self.next = Some(next.wrapping_add(self.concealed_units.min(ahead) + gap));
            self.concealed_units = 0;
            return PlayoutStep::Gap(gap);
        }
        self.concealed_units = 0;
        self.next = Some(slot.timestamp.wrapping_add(slot.units));
        self.slots[index].content = None;
        PlayoutStep::Play(index, slot.content.unwrap_or(SlotContent::Audio))
    }

    /// The payload of a [`PlayoutStep::Play`], valid until the next insertion.
    pub(super) fn payload(&self, index: usize) -> &[u8] {
        let length = self.slots.get(index).map_or(0, |slot| slot.length);
        let at = index * self.slot_size;
        self.bytes
            .get(at..at + usize::from(length))
            .unwrap_or_default()
    }

    /// The payload directly after the gap that was returned last, if it is there.
    pub(super) fn following(&self) -> Option<&[u8]> {
        let next = self.next?;
        let index = self.earliest()?;
        (self.slots[index].timestamp == next
            && self.slots[index].content == Some(SlotContent::Audio))
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

    fn buffer() -> JitterBuffer {
        JitterBuffer::new(4, 8000, Duration::from_millis(200))
    }

    fn put(buffer: &mut JitterBuffer, ms: u64, number: u32) -> Result<(), DropReason> {
        // Across the wrap of timestamps.
        let stamp = (u32::MAX - 500).wrapping_add(number * 160);
        buffer.insert(at(ms), stamp, 160, SlotContent::Audio, &[number as u8])
    }

    /// Plays a turn. Returns the number of the payload, if any.
    fn play(buffer: &mut JitterBuffer, ms: u64, quiet: bool) -> Option<u8> {
        if !buffer.begin(at(ms), 20, quiet) {
            return None;
        }
        match buffer.step(160) {
            PlayoutStep::Play(index, _) => Some(buffer.payload(index)[0]),
            PlayoutStep::Gap(_) => None,
        }
    }

    #[test]
    fn reordering_loss_and_duplicates() {
        let mut buffer = buffer();
        for number in [0u32, 2, 1, 4] {
            put(&mut buffer, u64::from(number) * 20, number).unwrap();
        }
        assert_eq!(put(&mut buffer, 80, 4), Err(DropReason::ConferenceLate));
        let played: Vec<_> = (0..6)
            .map(|turn| play(&mut buffer, 45 + 20 * turn, false))
            .collect();
        assert_eq!(played, [Some(0), Some(1), Some(2), None, Some(4), None]);
        assert_eq!(put(&mut buffer, 160, 3), Err(DropReason::ConferenceLate));
    }

    #[test]
    fn late_packet_extends_the_delay_and_a_lost_one_does_not() {
        let mut buffer = buffer();
        let mut played = Vec::new();
        for turn in 0..40u64 {
            let number = turn as u32;
            match number {
                10 => {}
                // Arrives 70 ms late, together with those behind it.
                20..=22 => {}
                23 => (20..=23).for_each(|late| put(&mut buffer, 460, late).unwrap_or(())),
                _ => put(&mut buffer, turn * 20, number).unwrap(),
            }
            played.push(play(&mut buffer, turn * 20 + 12, false));
        }
        // Number 10 was lost: the others keep their schedule.
        assert_eq!(played[9..12], [Some(9), None, Some(11)]);
        assert_eq!(played[19], Some(19));
        assert_eq!(played[20..23], [None; 3]);
        // All late payloads are played, later.
        assert_eq!(
            played[23..28],
            [Some(20), Some(21), Some(22), Some(23), Some(24)]
        );
        assert!(buffer.wait_us() > 55_000, "{}", buffer.wait_us());
    }

    #[test]
    fn delay_shrinks_in_silence() {
        let mut buffer = buffer();
        put(&mut buffer, 150, 0).unwrap();
        for number in 1..400u32 {
            let ms = (u64::from(number) * 20).max(150);
            put(&mut buffer, ms, number).unwrap_or(());
            play(&mut buffer, ms + 12, number > 350);
        }
        let last = (0..3).find_map(|turn| play(&mut buffer, 400 * 20 + 12 + 20 * turn, true));
        // A payload sent 20 ms before is played.
        assert!(
            last.is_some_and(|last| last >= (396u32 & 0xff) as u8),
            "{last:?}"
        );
    }

    #[test]
    fn another_stream_resets_the_buffer() {
        let mut buffer = buffer();
        put(&mut buffer, 0, 0).unwrap();
        assert_eq!(play(&mut buffer, 12, false), Some(0));
        buffer
            .insert(at(20), 0x4000_0000, 160, SlotContent::Audio, &[77])
            .unwrap();
        assert_eq!(play(&mut buffer, 32, false), Some(77));
        // A payload that is longer than the codec's.
        assert_eq!(
            buffer.insert(at(20), 0x4000_0000, 160, SlotContent::Audio, &[0; 5]),
            Err(DropReason::ConferenceOverrun)
        );
        for number in 0..SLOTS as u32 {
            buffer
                .insert(
                    at(40),
                    0x4000_00a0 + number * 160,
                    160,
                    SlotContent::Audio,
                    &[1],
                )
                .unwrap();
        }
        let more = 0x4000_00a0 + SLOTS as u32 * 160;
        assert_eq!(
            buffer.insert(at(40), more, 160, SlotContent::Audio, &[1]),
            Err(DropReason::ConferenceOverrun)
        );
    }
}
