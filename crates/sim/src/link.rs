//! A link in one direction: loss, duplication, reordering, delay, rate and queue. It has no IO: it computes the fate of
//! a packet, and serves virtual time as well as an emulator behind a real-time driver.

use engine::timers::TimerHeap;
use engine::{DropReason, Entropy, Time};
use std::time::Duration;

/// Packet loss.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// None.
    None,
    /// Each packet independently, with this probability.
    Random(f64),
    /// In bursts (Gilbert-Elliott): a good and a bad state, each with a loss of its own. The state changes per packet
    /// with the given probabilities. The share of packets in the bad state is `to_bad / (to_bad + to_good)`, the mean
    /// length of a burst
    /// `1 / to_good` packets.
    Bursts {
        /// Probability of leaving the good state.
        to_bad: f64,
        /// Probability of leaving the bad state.
        to_good: f64,
        /// Probability of loss in the good state.
        good: f64,
        /// Probability of loss in the bad state.
        bad: f64,
    },
}

/// Packet delay.
#[derive(Clone, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Constant(Duration),
    /// Uniform distribution between two bounds.
    Uniform(Duration, Duration),
    /// Normal distribution, at least a quarter of the mean.
    Normal {
        /// Mean.
        mean: Duration,
        /// Standard deviation.
        deviation: Duration,
    },
    /// A fixed part and an exponential tail, as caused by queues.
    Tail {
        /// The fixed part.
        base: Duration,
        /// Mean of the tail.
        mean: Duration,
    },
}

impl Delay {
    fn draw(&self, entropy: &mut Entropy) -> Duration {
        match *self {
            Delay::Constant(span) => span,
            Delay::Uniform(min, max) => {
                let width = max.saturating_sub(min).as_nanos() as u64;
                min + Duration::from_nanos(entropy.below(width.saturating_add(1)))
            }
            Delay::Normal { mean, deviation } => {
                // Box-Muller transform; 1 - u keeps the argument of the logarithm above zero.
                let radius = (-2.0 * (1.0 - entropy.unit()).ln()).sqrt();
                let angle = std::f64::consts::TAU * entropy.unit();
                let value = mean.as_secs_f64() + deviation.as_secs_f64() * radius * angle.cos();
                Duration::from_secs_f64(value.max(mean.as_secs_f64() / 4.0))
            }
            Delay::Tail { base, mean } => {
                base + Duration::from_secs_f64(entropy.exponential(mean.as_secs_f64()))
            }
        }
    }
}

/// Settings of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Delay.
    pub delay: Delay,
    /// Loss.
    pub loss: Loss,
    /// Probability that a packet is duplicated.
    pub duplicate: f64,
    /// Probability that a packet is delayed further by `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// The further delay.
    pub reorder_by: Duration,
    /// Packets keep their order although their delays vary (as on one path), except those of `reorder`. If false,
    /// varying delays reorder packets.
    pub ordered: bool,
    /// Bits per second; `None`: without limit.
    pub rate: Option<u64>,
    /// Bytes that wait for the rate, at most; further ones are lost.
    pub queue: usize,
}

impl Default for LinkConfig {
    /// A local network: 200 us, no loss.
    fn default() -> Self {
        LinkConfig {
            delay: Delay::Constant(Duration::from_micros(200)),
            loss: Loss::None,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(20),
            ordered: true,
            rate: None,
            queue: 256 << 10,
        }
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive: [`DropReason::LinkLost`] or [`DropReason::LinkQueueFull`].
    Lost(DropReason),
    /// It arrives at the first time, and a duplicate at the second, if given.
    Arrives(Time, Option<Time>),
}

/// A link in one direction.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    entropy: Entropy,
    bad: bool,
    busy_until: Time,
    last: Time,
}

impl Link {
    /// A link with random draws from `entropy`.
    pub fn new(config: LinkConfig, entropy: Entropy) -> Link {
        Link {
            config,
            entropy,
            bad: false,
            busy_until: Time::ZERO,
            last: Time::ZERO,
        }
    }

    /// Replaces the settings from now on; packets in transit are not affected.
    pub fn set(&mut self, config: LinkConfig) {
        self.config = config;
        self.bad = false;
    }

    /// The current settings.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Computes the fate of a packet of `length` bytes (headers included) that enters now.
    pub fn offer(&mut self, length: usize, now: Time) -> Fate {
        let Some(sent) = self.serialise(length, now) else {
            return Fate::Lost(DropReason::LinkQueueFull);
        };
        if self.loses() {
            return Fate::Lost(DropReason::LinkLost);
        }
        let first = self.arrival(sent);
        let second = (self.chance(self.config.duplicate)).then(|| self.arrival(sent));
        Fate::Arrives(first, second)
    }

    /// Time at which the last bit leaves the queue; `None` if the queue is full.
    fn serialise(&mut self, length: usize, now: Time) -> Option<Time> {
        let Some(rate) = self.config.rate.filter(|&rate| rate > 0) else {
            return Some(now);
        };
        let start = self.busy_until.max(now);
        let waiting =
            u128::from((start - now).as_nanos() as u64) * u128::from(rate) / 8_000_000_000;
        if waiting + length as u128 > self.config.queue as u128 {
            return None;
        }
        let span = length as u128 * 8_000_000_000 / u128::from(rate);
        self.busy_until = start + Duration::from_nanos(u64::try_from(span).unwrap_or(u64::MAX));
        Some(self.busy_until)
    }

    fn loses(&mut self) -> bool {
        match self.config.loss {
            Loss::None => false,
            Loss::Random(p) => self.chance(p),
            Loss::Bursts {
                to_bad,
                to_good,
                good,
                bad,
            } => {
                if self.chance(if self.bad { to_good } else { to_bad }) {
                    self.bad = !self.bad;
                }
                self.chance(if self.bad { bad } else { good })
            }
        }
    }

    fn arrival(&mut self, sent: Time) -> Time {
        let at = sent + self.config.delay.draw(&mut self.entropy);
        if self.chance(self.config.reorder) {
            return at + self.config.reorder_by;
        }
        if !self.config.ordered {
            return at;
        }
        self.last = self.last.max(at);
        self.last
    }

    fn chance(&mut self, probability: f64) -> bool {
        // No draw for a probability of zero, so that adding a fault does not change the other draws.
        probability > 0.0 && self.entropy.unit() < probability
    }
}

/// A link with its packets in transit: the engine of an emulator. `T` is the packet.
#[derive(Debug)]
pub struct Emulator<T> {
    link: Link,
    under_way: TimerHeap<T>,
    /// Number of lost packets.
    pub lost: u64,
    limit: usize,
}

impl<T: Clone> Emulator<T> {
    /// At most `limit` packets in transit; further ones are lost.
    pub fn new(link: Link, limit: usize) -> Emulator<T> {
        Emulator {
            link,
            under_way: TimerHeap::new(),
            lost: 0,
            limit,
        }
    }

    /// A packet of `length` bytes enters. Returns the reason if it is lost.
    pub fn push(&mut self, packet: T, length: usize, now: Time) -> Option<DropReason> {
        let fate = if self.under_way.len() < self.limit {
            self.link.offer(length, now)
        } else {
            Fate::Lost(DropReason::LinkQueueFull)
        };
        match fate {
            Fate::Lost(reason) => {
                self.lost += 1;
                Some(reason)
            }
            Fate::Arrives(first, second) => {
                if let Some(second) = second {
                    self.under_way.push(second, packet.clone());
                }
                self.under_way.push(first, packet);
                None
            }
        }
    }

    /// The next packet that has arrived by `now`, with its time of arrival.
    pub fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        self.under_way.pop_due(now)
    }

    /// Time of the next arrival.
    pub fn next_at(&self) -> Option<Time> {
        self.under_way.next_at()
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}
