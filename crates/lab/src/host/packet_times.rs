//! Send and arrival time of each packet of a stream: four bytes for each ten milliseconds.

use engine::Time;

/// Timestamp units of an entry: 10 ms, the shortest packet time.
const UNIT: u32 = 80;
/// Nanoseconds of a timestamp unit.
const NANOS: i64 = 125_000;
/// Entries kept of a stream: five hours. Packets with timestamps beyond it are not timed.
const MAX_ENTRIES: usize = 1 << 21;
/// Marks an entry without a packet.
const NO_PACKET: i32 = i32::MIN;

/// Deviations of the packets of a stream from a timeline that begins with a timestamp at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketTimes {
    timestamp: u32,
    at: Time,
    nanos: Vec<i32>,
}

impl PacketTimes {
    /// A timeline on which `timestamp` corresponds to the time `at`.
    pub fn new(timestamp: u32, at: Time) -> PacketTimes {
        PacketTimes {
            timestamp,
            at,
            nanos: Vec::new(),
        }
    }

    /// Records that the packet with `timestamp` was sent or arrived at `at`. Of two with the same timestamp the later
    /// counts.
    pub fn note(&mut self, timestamp: u32, at: Time) {
        let units = timestamp.wrapping_sub(self.timestamp) as i32;
        let Ok(place) = usize::try_from(units / UNIT as i32) else {
            return;
        };
        if units < 0 || place >= MAX_ENTRIES {
            return;
        }
        if self.nanos.len() <= place {
            self.nanos.resize(place + 1, NO_PACKET);
        }
        let wall = at.0.wrapping_sub(self.at.0) as i64;
        let off =
            (wall - i64::from(units) * NANOS).clamp(i64::from(NO_PACKET) + 1, i64::from(i32::MAX));
        if let Some(entry) = self.nanos.get_mut(place) {
            *entry = off as i32;
        }
    }

    /// Delays in milliseconds of these arrival times from a schedule on which the packet with `timestamp` is due at `at`, in rising
    /// order.
    pub fn delays_from_ms(&self, timestamp: u32, at: Time) -> Vec<f64> {
        let media = i64::from(self.timestamp.wrapping_sub(timestamp) as i32) * NANOS;
        let base = (self.at.0 as i64).wrapping_sub(at.0 as i64) - media;
        let came = self.nanos.iter().filter(|came| **came != NO_PACKET);
        let mut delays: Vec<f64> = came
            .map(|came| (base + i64::from(*came)) as f64 / 1e6)
            .collect();
        delays.sort_by(f64::total_cmp);
        delays
    }

    /// Delays in milliseconds between the send times in `sent` and these arrival times, in rising order.
    pub fn delays_ms(&self, sent: &PacketTimes) -> Vec<f64> {
        let timestamp_offset = i64::from(self.timestamp.wrapping_sub(sent.timestamp) as i32);
        // Offset of the two timelines at zero delay.
        let base = (self.at.0 as i64).wrapping_sub(sent.at.0 as i64) - timestamp_offset * NANOS;
        let shift = timestamp_offset.div_euclid(i64::from(UNIT));
        let mut delays: Vec<f64> = (0i64..)
            .zip(&self.nanos)
            .filter(|(_, came)| **came != NO_PACKET)
            .filter_map(|(place, came)| {
                let place = usize::try_from(place + shift).ok()?;
                let sent_ns = *sent
                    .nanos
                    .get(place)
                    .filter(|sent_ns| **sent_ns != NO_PACKET)?;
                Some((base + i64::from(*came) - i64::from(sent_ns)) as f64 / 1e6)
            })
            .collect();
        delays.sort_by(f64::total_cmp);
        delays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_independent_of_sender_lateness() {
        let ms = |ms: u64| Time::from_millis(ms);
        let start = u32::MAX - 200;
        let mut sent = PacketTimes::new(start, ms(1_000));
        let mut came: Option<PacketTimes> = None;
        for packet in 0..10u32 {
            let timestamp = start.wrapping_add(packet * 160);
            let sent_ns = 1_000 + u64::from(packet) * 20 + u64::from(packet % 3);
            sent.note(timestamp, ms(sent_ns));
            // The first two and the sixth are lost.
            if packet < 2 || packet == 5 {
                continue;
            }
            let arrived = ms(sent_ns + 5 + u64::from(packet == 9) * 40);
            came.get_or_insert_with(|| PacketTimes::new(timestamp, arrived))
                .note(timestamp, arrived);
        }
        let delays = came.as_ref().unwrap().delays_ms(&sent);
        assert_eq!(delays, [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 45.0]);
        // From the schedule, the lateness of the sender counts: packets 2, 3, 4, 6, 7, 8, 9 were 2, 0, 1, 0, 1, 2, 0 ms late.
        let delays = came.unwrap().delays_from_ms(start, ms(1_000));
        assert_eq!(delays, [5.0, 5.0, 6.0, 6.0, 7.0, 7.0, 45.0]);
    }

    #[test]
    fn packets_out_of_range_are_not_timed() {
        let mut times = PacketTimes::new(1_000, Time::from_secs(5));
        times.note(0, Time::from_secs(5));
        times.note(1_000 + MAX_ENTRIES as u32 * UNIT, Time::from_secs(5));
        assert!(times.nanos.is_empty());
        times.note(1_000, Time::from_secs(50));
        assert_eq!(times.nanos, [i32::MAX]);
    }
}
