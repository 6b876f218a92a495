//! A link in one direction: loss, repetition, reordering, delay, rate and queue. Pure: it says what becomes of a packet,
//! and the same link serves virtual time and, behind a real-time driver, as an emulator.

use engine::timers::Agenda;
use engine::{DropReason, Entropy, Time};
use std::time::Duration;

/// How packets are lost.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// None.
    None,
    /// Each by itself, with this probability.
    Random(f64),
    /// In bursts (Gilbert and Elliott): a good and a bad state, each with a loss of its own; per packet the state changes
    /// with the given probabilities. The share of time in the bad state is `to_bad / (to_bad + to_good)`, a burst lasts
    /// `1 / to_good` packets in the mean.
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

/// How long packets travel.
#[derive(Clone, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Constant(Duration),
    /// Equally likely between two bounds.
    Uniform(Duration, Duration),
    /// Normal distribution, cut off at a quarter of the mean below.
    Normal {
        /// Mean.
        mean: Duration,
        /// Standard deviation.
        deviation: Duration,
    },
    /// A fixed part and an exponential tail, as queues make it.
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
                // Box and Muller's transform; 1 - u keeps the logarithm's argument above zero.
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

/// What a link is like.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Travel time.
    pub delay: Delay,
    /// Loss.
    pub loss: Loss,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// How long it is then held back.
    pub reorder_by: Duration,
    /// Packets keep their order though their delays differ (as on one path); those of `reorder` excepted. Without it,
    /// differing delays reorder by themselves.
    pub ordered: bool,
    /// Bits per second; `None`: without limit.
    pub rate: Option<u64>,
    /// Bytes that may wait for the rate; more are lost.
    pub queue: usize,
}

impl Default for LinkConfig {
    /// A quiet local network: 200 us, nothing lost.
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

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive: [`DropReason::LinkLost`] or [`DropReason::LinkQueueFull`].
    Lost(DropReason),
    /// It arrives at the first time, and once more at the second where given.
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
    /// A link whose draws come from `entropy`.
    pub fn new(config: LinkConfig, entropy: Entropy) -> Link {
        Link {
            config,
            entropy,
            bad: false,
            busy_until: Time::ZERO,
            last: Time::ZERO,
        }
    }

    /// Makes it another link from now on; packets under way are not touched.
    pub fn set(&mut self, config: LinkConfig) {
        self.config = config;
        self.bad = false;
    }

    /// What it is like at present.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Says what becomes of a packet of `length` bytes (headers included) that enters now.
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

    /// When the last bit has left the queue; `None` where there is no room in it.
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
        // Nothing is drawn for what cannot happen, so that adding a fault does not move the draws of the others' absence.
        probability > 0.0 && self.entropy.unit() < probability
    }
}

/// A link with the packets that travel on it: an engine of its own for an emulator. `T` is the packet.
#[derive(Debug)]
pub struct Emulator<T> {
    link: Link,
    under_way: Agenda<T>,
    /// Packets that did not come through.
    pub lost: u64,
    limit: usize,
}

impl<T: Clone> Emulator<T> {
    /// At most `limit` packets under way; more are lost.
    pub fn new(link: Link, limit: usize) -> Emulator<T> {
        Emulator {
            link,
            under_way: Agenda::new(),
            lost: 0,
            limit,
        }
    }

    /// A packet of `length` bytes enters. Gives the reason where it is lost.
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

    /// The next packet that has arrived by `now`, with its time.
    pub fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        self.under_way.pop_due(now)
    }

    /// When the next packet arrives.
    pub fn next_at(&self) -> Option<Time> {
        self.under_way.next_at()
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}
