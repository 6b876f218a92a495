//! Clock skew: least-squares regression of media time against arrival time.

use engine::Time;

/// A step of media time that differs from its arrival step by more than this starts a new timeline.
const JUMP_SECONDS: f64 = 5.0;
/// Minimum number of packets for a result.
const MIN_PACKETS: u64 = 50;
/// A result with a larger standard error is due to jitter, not skew.
const MAX_ERROR_PPM: f64 = 50.0;

/// Running sums of the regression of media seconds over arrival seconds, as means and central moments. A new segment
/// begins at each break of the timeline (silence, events, a new sequence); all segments have a common slope.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skew {
    previous: Option<(Time, u32)>,
    arrival: f64,
    media: f64,
    /// Of the present segment.
    packets: u64,
    mean_arrival: f64,
    mean_media: f64,
    /// Central moments of all segments.
    arrivals: f64,
    medias: f64,
    covariance: f64,
    total: u64,
    segments: u64,
}

impl Skew {
    /// Reads the data that the next packet will change.
    pub(super) fn prefetch(&self) -> u64 {
        self.packets ^ self.segments
    }

    /// Ends the segment: the next packet begins a new one.
    pub fn interrupt(&mut self) {
        self.previous = None;
        self.arrival = 0.0;
        self.media = 0.0;
        self.packets = 0;
        self.mean_arrival = 0.0;
        self.mean_media = 0.0;
    }

    /// Takes a packet.
    pub fn receive(&mut self, time: Time, timestamp: u32, clock_rate: u32) {
        if let Some((last_time, last_timestamp)) = self.previous {
            let arrival = super::signed_nanos(last_time, time) as f64 / 1e9;
            let media =
                f64::from(timestamp.wrapping_sub(last_timestamp) as i32) / f64::from(clock_rate);
            if (arrival - media).abs() > JUMP_SECONDS {
                self.interrupt();
            } else {
                self.arrival += arrival;
                self.media += media;
            }
        }
        self.previous = Some((time, timestamp));
        self.segments += u64::from(self.packets == 0);
        self.packets += 1;
        self.total += 1;
        let arrival = self.arrival - self.mean_arrival;
        let media = self.media - self.mean_media;
        self.mean_arrival += arrival / self.packets as f64;
        self.mean_media += media / self.packets as f64;
        self.arrivals += arrival * (self.arrival - self.mean_arrival);
        self.medias += media * (self.media - self.mean_media);
        self.covariance += arrival * (self.media - self.mean_media);
    }

    /// Parts per million by which the sender's clock is faster than ours; `None` if the standard error exceeds 50.
    pub fn ppm(&self) -> Option<f64> {
        let free = self.total.checked_sub(self.segments + 1)?;
        if self.total < MIN_PACKETS || free == 0 || self.arrivals <= 0.0 {
            return None;
        }
        let slope = self.covariance / self.arrivals;
        let residual = (self.medias - slope * self.covariance).max(0.0) / free as f64;
        let error = (residual / self.arrivals).sqrt() * 1e6;
        (error <= MAX_ERROR_PPM).then_some((slope - 1.0) * 1e6)
    }
}
