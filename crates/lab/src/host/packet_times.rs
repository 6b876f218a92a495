//! Send and arrival time of each packet of a stream: four bytes for each ten milliseconds.

use engine::Time;

/// Entries per second of media: one for each 10 ms, the shortest packet time.
const ENTRIES_PER_SECOND: u32 = 100;
/// Entries kept of a stream: five hours. Packets with timestamps beyond it are not timed.
const MAX_ENTRIES: usize = 1 << 21;
/// Marks an entry without a packet.
const NO_PACKET: i32 = i32::MIN;

/// Transit of packets, by the media clock of their sender; delays follow once the sender's timeline is available.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transit {
    /// Timestamp of the first packet.
    pub first_timestamp: u32,
    /// Its arrival.
    pub first_arrival: Time,
    /// Packets.
    pub count: u64,
    /// Sum of (arrival - first arrival) - (timestamp - first timestamp), nanoseconds.
    pub sum: f64,
    /// Largest of these differences.
    pub max: f64,
}

impl Transit {
    /// A packet arrived; `clock_rate`: timestamp units per second.
    pub(crate) fn receive(&mut self, timestamp: u32, arrived: Time, clock_rate: u32) {
        if self.count == 0 {
            self.first_timestamp = timestamp;
            self.first_arrival = arrived;
        }
        self.count += 1;
        let media = f64::from(timestamp.wrapping_sub(self.first_timestamp) as i32)
            * (1e9 / f64::from(clock_rate));
        let wall = arrived.0 as f64 - self.first_arrival.0 as f64;
        self.sum += wall - media;
        self.max = self.max.max(wall - media);
    }
}

/// Deviations of the packets of a stream from a timeline that begins with a timestamp at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketTimes {
    timestamp: u32,
    at: Time,
    /// Timestamp units per second.
    clock_rate: u32,
    nanos: Vec<i32>,
}

/// Duration of these timestamp units, nanoseconds.
pub(crate) fn media_ns(units: i32, clock_rate: u32) -> i64 {
    i64::from(units) * 1_000_000_000 / i64::from(clock_rate.max(1))
}

impl PacketTimes {
    /// A timeline on which `timestamp` corresponds to the time `at`. `clock_rate`: timestamp units per second.
    pub fn new(timestamp: u32, at: Time, clock_rate: u32) -> PacketTimes {
        PacketTimes {
            timestamp,
            at,
            clock_rate,
            nanos: Vec::new(),
        }
    }

    /// Timestamp units of an entry.
    fn unit(&self) -> i32 {
        i32::try_from(self.clock_rate / ENTRIES_PER_SECOND)
            .unwrap_or(i32::MAX)
            .max(1)
    }

    /// Records that the packet with `timestamp` was sent or arrived at `at`. Of two with the same timestamp the later
    /// counts.
    pub fn note(&mut self, timestamp: u32, at: Time) {
        let units = timestamp.wrapping_sub(self.timestamp) as i32;
        let Ok(place) = usize::try_from(units / self.unit()) else {
            return;
        };
        if units < 0 || place >= MAX_ENTRIES {
            return;
        }
        if self.nanos.len() <= place {
            self.nanos.resize(place + 1, NO_PACKET);
        }
        let wall = at.0.wrapping_sub(self.at.0) as i64;
        let off = (wall - media_ns(units, self.clock_rate))
            .clamp(i64::from(NO_PACKET) + 1, i64::from(i32::MAX));
        if let Some(entry) = self.nanos.get_mut(place) {
            *entry = off as i32;
        }
    }

    /// Delays in milliseconds of these arrival times from a schedule on which the packet with `timestamp` is due at
    /// `at`, in rising order.
    pub fn delays_from_ms(&self, timestamp: u32, at: Time) -> Vec<f64> {
        let units = self.timestamp.wrapping_sub(timestamp) as i32;
        let media = media_ns(units, self.clock_rate);
        let base = (self.at.0 as i64).wrapping_sub(at.0 as i64) - media;
        let came = self.nanos.iter().filter(|came| **came != NO_PACKET);
        let mut delays: Vec<f64> = came
            .map(|came| (base + i64::from(*came)) as f64 / 1e6)
            .collect();
        delays.sort_by(f64::total_cmp);
        delays
    }

    /// Delays in milliseconds between the send times in `sent` and these arrival times, in rising order; none if the
    /// timestamps are of different clocks.
    pub fn delays_ms(&self, sent: &PacketTimes) -> Vec<f64> {
        if self.clock_rate != sent.clock_rate {
            return Vec::new();
        }
        let units = self.timestamp.wrapping_sub(sent.timestamp) as i32;
        // Offset of the two timelines at zero delay.
        let base =
            (self.at.0 as i64).wrapping_sub(sent.at.0 as i64) - media_ns(units, self.clock_rate);
        let shift = i64::from(units).div_euclid(i64::from(self.unit()));
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
    use std::time::Duration;

    #[test]
    fn delay_is_independent_of_sender_lateness() {
        for clock_rate in [8_000, 48_000] {
            let ms = |ms: u64| Time::from_millis(ms);
            let start = u32::MAX - 200;
            let mut sent = PacketTimes::new(start, ms(1_000), clock_rate);
            let mut came: Option<PacketTimes> = None;
            for packet in 0..10u32 {
                let timestamp = start.wrapping_add(packet * (clock_rate / 50));
                let sent_ms = 1_000 + u64::from(packet) * 20 + u64::from(packet % 3);
                sent.note(timestamp, ms(sent_ms));
                // The first two and the sixth are lost.
                if packet < 2 || packet == 5 {
                    continue;
                }
                let arrived = ms(sent_ms + 5 + u64::from(packet == 9) * 40);
                came.get_or_insert_with(|| PacketTimes::new(timestamp, arrived, clock_rate))
                    .note(timestamp, arrived);
            }
            let delays = came.as_ref().unwrap().delays_ms(&sent);
            assert_eq!(delays, [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 45.0], "{clock_rate}");
            // From the schedule, the lateness of the sender counts: packets 2, 3, 4, 6, 7, 8, 9 were 2, 0, 1, 0, 1, 2,
            // 0 ms late.
            let delays = came.unwrap().delays_from_ms(start, ms(1_000));
            assert_eq!(delays, [5.0, 5.0, 6.0, 6.0, 7.0, 7.0, 45.0], "{clock_rate}");
        }
    }

    #[test]
    fn delays_of_a_wide_band_stream_follow_its_own_clock() {
        // 100 packets of 20 ms at 48 kHz, each on time; the last 50 arrive 40 ms late.
        let at = |packet: u32| Time::from_millis(1_000 + 20 * u64::from(packet));
        let mut sent = PacketTimes::new(7, at(0), 48_000);
        let mut came = PacketTimes::new(7, at(0) + Duration::from_millis(3), 48_000);
        for packet in 0..100 {
            let timestamp = 7 + packet * 960;
            sent.note(timestamp, at(packet));
            let late = Duration::from_millis(if packet < 50 { 3 } else { 43 });
            came.note(timestamp, at(packet) + late);
        }
        let expected: Vec<f64> = [3.0; 50].into_iter().chain([43.0; 50]).collect();
        assert_eq!(came.delays_ms(&sent), expected);
        assert_eq!(came.delays_from_ms(7, at(0)), expected);
        let other = PacketTimes::new(7, at(0), 8_000);
        assert!(came.delays_ms(&other).is_empty());
    }

    #[test]
    fn packets_out_of_range_are_not_timed() {
        let mut times = PacketTimes::new(1_000, Time::from_secs(5), 8_000);
        times.note(0, Time::from_secs(5));
        times.note(1_000 + MAX_ENTRIES as u32 * 80, Time::from_secs(5));
        assert!(times.nanos.is_empty());
        times.note(1_000, Time::from_secs(50));
        assert_eq!(times.nanos, [i32::MAX]);
    }
}
