//! Clock skew: least-squares regression of media time against arrival time.

use engine::Time;

/// A difference between media time and arrival time that grows by more than this at one packet is a new timeline, not skew.
const JUMP_SECONDS: f64 = 5.0;
/// Fewer packets, or a shorter time, give no figure: the estimate would be jitter.
const MIN_PACKETS: u64 = 50;
const MIN_SECONDS: f64 = 5.0;

/// Running sums of the regression; media seconds over arrival seconds, kept as means and central moments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skew {
    previous: Option<(Time, u32)>,
    arrival: f64,
    media: f64,
    packets: u64,
    mean_arrival: f64,
    mean_media: f64,
    variance: f64,
    covariance: f64,
}

impl Skew {
    /// Takes a packet.
    pub fn receive(&mut self, time: Time, timestamp: u32, clock_rate: u32) {
        if let Some((last_time, last_timestamp)) = self.previous.replace((time, timestamp)) {
            let arrival = super::signed_nanos(last_time, time) as f64 / 1e9;
            let media =
                f64::from(timestamp.wrapping_sub(last_timestamp) as i32) / f64::from(clock_rate);
            if (arrival - media).abs() > JUMP_SECONDS {
                *self = Skew {
                    previous: self.previous,
                    ..Skew::default()
                };
            } else {
                self.arrival += arrival;
                self.media += media;
            }
        }
        self.packets += 1;
        let from_mean = self.arrival - self.mean_arrival;
        self.mean_arrival += from_mean / self.packets as f64;
        self.mean_media += (self.media - self.mean_media) / self.packets as f64;
        self.variance += from_mean * (self.arrival - self.mean_arrival);
        self.covariance += from_mean * (self.media - self.mean_media);
    }

    /// Parts per million by which the sender's clock is faster than ours; `None` with too little to tell.
    pub fn ppm(&self) -> Option<f64> {
        let enough =
            self.packets >= MIN_PACKETS && self.arrival >= MIN_SECONDS && self.variance > 0.0;
        enough.then(|| (self.covariance / self.variance - 1.0) * 1e6)
    }
}
