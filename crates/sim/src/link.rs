//! A link in one direction: loss, duplication, corruption, reordering, delay, rate, framing and queue. It has no IO: it
//! computes the fate of a packet in virtual time, and draws for the emulator ([`crate::Emulator`]).

use crate::codel::CodelSettings;
use crate::emulator::span;
use crate::framing::Framing;
use crate::tunnel::TunnelFormat;
use engine::{DropReason, Entropy, Time};
use std::collections::VecDeque;
use std::sync::Arc;
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
    /// As recorded: one entry for each packet, `true` if it is lost; the record is repeated. Each link starts at its
    /// beginning.
    Trace(Arc<[bool]>),
}

impl Loss {
    /// The shortest mean length of bursts, packets, with which this share of packets can be lost: at least one packet
    /// lies between two bursts. `None` for a share of nothing or of all packets.
    pub fn least_burst(share: f64) -> Option<f64> {
        // 0.9 / (1 - 0.9) is not exact.
        (share > 0.0 && share < 1.0).then(|| share / (1.0 - share) * (1.0 - 1e-9))
    }

    /// Bursts of `length` packets on average with this share of packets lost, all packets of a burst being lost. A
    /// length of at most one, or a share outside 0 to 1, is random loss. A length below [`Loss::least_burst`] loses
    /// fewer packets.
    pub fn in_bursts(share: f64, length: f64) -> Loss {
        if length <= 1.0 || !(0.0..1.0).contains(&share) || share == 0.0 {
            return match share > 0.0 {
                true => Loss::Random(share),
                false => Loss::None,
            };
        }
        let to_good = 1.0 / length;
        Loss::Bursts {
            to_bad: (to_good * share / (1.0 - share)).min(1.0),
            to_good,
            good: 0.0,
            bad: 1.0,
        }
    }

    /// The expected share of lost packets, 0 to 1.
    pub fn share(&self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Random(p) => *p,
            Loss::Bursts {
                to_bad,
                to_good,
                good,
                bad,
            } => {
                let share = match to_bad + to_good > 0.0 {
                    true => to_bad / (to_bad + to_good),
                    false => 0.0,
                };
                share * bad + (1.0 - share) * good
            }
            Loss::Trace(trace) => {
                let lost = trace.iter().filter(|lost| **lost).count();
                lost as f64 / trace.len().max(1) as f64
            }
        }
    }

    /// The mean number of packets between a change of conditions: 1 for independent losses. An interval of a loss that
    /// comes in bursts is wider by its square root, about.
    pub fn burst_packets(&self) -> f64 {
        match self {
            Loss::Bursts {
                to_good, to_bad, ..
            } if to_good + to_bad > 0.0 => {
                // Variance of the mean of a two-state chain over that of independent draws.
                ((2.0 - to_good - to_bad) / (to_good + to_bad)).max(1.0)
            }
            _ => 1.0,
        }
    }

    /// The correlation of the losses of neighbouring packets, 0 to 1: 0 for independent ones, and for a trace, which
    /// has none.
    pub fn correlation(&self) -> f64 {
        let &Loss::Bursts {
            to_bad,
            to_good,
            good,
            bad,
        } = self
        else {
            return 0.0;
        };
        let loss = self.share();
        let total = to_bad + to_good;
        if total <= 0.0 || loss <= 0.0 || loss >= 1.0 {
            return 0.0;
        }
        // Neighbours have the correlation of the states, as far as these explain the losses.
        let states = to_bad * to_good / (total * total) * (bad - good).powi(2);
        ((1.0 - total) * states / (loss * (1.0 - loss))).clamp(0.0, 1.0)
    }

    /// Reads a trace: `0` for a packet that arrives and `1` for a lost one; white space, and lines that begin with `#`,
    /// are ignored.
    ///
    /// # Errors
    /// Another character, with its line, or no entry.
    pub fn parse_trace(text: &str) -> Result<Loss, String> {
        let mut trace = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with('#') {
                continue;
            }
            for letter in line.chars().filter(|letter| !letter.is_whitespace()) {
                match letter {
                    '0' => trace.push(false),
                    '1' => trace.push(true),
                    other => {
                        let number = number + 1;
                        return Err(format!("line {number}: {other:?} is neither 0 nor 1"));
                    }
                }
            }
        }
        match trace.is_empty() {
            true => Err("no entry".to_owned()),
            false => Ok(Loss::Trace(trace.into())),
        }
    }
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
    /// Probability that a bit of a packet is changed. In virtual time the receiver refuses such a packet for its
    /// checksum.
    pub corrupt: f64,
    /// Probability that a packet is delayed further by `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// The further delay.
    pub reorder_by: Duration,
    /// Packets keep their order although their delays vary (as on one path), except those of `reorder`. If false,
    /// varying delays reorder packets.
    pub ordered: bool,
    /// Bits per second on the line; `None`: without limit.
    pub rate: Option<u64>,
    /// Bytes that a packet occupies on the line beside its own.
    pub framing: Framing,
    /// The tunnel whose packets pass the line in place of those that enter: their bytes count for rate, queue and MTU.
    pub tunnel: Option<TunnelFormat>,
    /// Bytes that the line has yet to send, at most; further packets are lost.
    pub queue: usize,
    /// Packets that wait beside the one on the line, at most; further ones are lost. `None`: only `queue` counts.
    pub queue_packets: Option<usize>,
    /// Active queue management; in virtual time such a link has a queue of its own.
    pub codel: Option<CodelSettings>,
    /// Largest IP packet, bytes; larger ones are lost. `None`: any.
    pub mtu: Option<usize>,
}

impl LinkConfig {
    /// Bytes of the IP packet on the line for one of `length` bytes that enters.
    pub(crate) fn outer_bytes(&self, length: usize) -> usize {
        self.tunnel
            .map_or(length, |tunnel| tunnel.outer_bytes(length))
    }

    pub(crate) fn has_rate(&self) -> bool {
        self.rate.is_some_and(|rate| rate > 0)
    }
}

impl Default for LinkConfig {
    /// A local network: 200 us, no loss.
    fn default() -> Self {
        LinkConfig {
            delay: Delay::Constant(Duration::from_micros(200)),
            loss: Loss::None,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(20),
            ordered: true,
            rate: None,
            framing: Framing::None,
            tunnel: None,
            queue: 256 << 10,
            queue_packets: None,
            codel: None,
            mtu: None,
        }
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive: [`DropReason::LinkLost`], [`DropReason::LinkQueueFull`], [`DropReason::LinkTooLarge`] or
    /// [`DropReason::LinkCorrupted`].
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
    /// Position in a trace of losses.
    next_in_trace: usize,
    busy_until: Time,
    /// Begin of transmission of the packets that wait, if their number is limited.
    starts: VecDeque<Time>,
    last: Time,
}

impl Link {
    /// A link with random draws from `entropy`.
    pub fn new(config: LinkConfig, entropy: Entropy) -> Link {
        Link {
            config,
            entropy,
            bad: false,
            next_in_trace: 0,
            busy_until: Time::ZERO,
            starts: VecDeque::new(),
            last: Time::ZERO,
        }
    }

    /// Replaces the settings from `now` on. Packets in transit keep their arrivals; the bytes that the line has yet to
    /// send are sent at the new rate.
    pub fn set(&mut self, config: LinkConfig, now: Time) {
        self.busy_until = self.rescaled(self.busy_until, &config, now);
        self.starts.clear();
        if config.loss != self.config.loss {
            self.bad = false;
            self.next_in_trace = 0;
        }
        self.config = config;
    }

    /// The current settings.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Computes the fate of an IP packet of `length` bytes that enters now. Its queue drops packets that find it full,
    /// so that the fate is known at once; a link with CoDel needs [`crate::Emulator`].
    pub fn offer(&mut self, length: usize, now: Time) -> Fate {
        let length = self.config.outer_bytes(length);
        if self.config.mtu.is_some_and(|mtu| length > mtu) {
            return Fate::Lost(DropReason::LinkTooLarge);
        }
        let line_bytes = self.config.framing.line_bytes(length);
        self.offer_line(line_bytes, now)
    }

    /// As [`Link::offer`] for bytes of a connection, which is divided into packets of at most the MTU. They share one
    /// fate.
    pub fn offer_segment(&mut self, length: usize, now: Time) -> Fate {
        self.offer_line(self.segment_bytes(length), now)
    }

    /// Bytes on the line of a segment of a connection, divided into packets of at most the MTU.
    pub(crate) fn segment_bytes(&self, length: usize) -> usize {
        let line_bytes = |packet| {
            self.config
                .framing
                .line_bytes(self.config.outer_bytes(packet))
        };
        let Some(mtu) = self.config.mtu.filter(|&mtu| mtu > 0 && length > mtu) else {
            return line_bytes(length);
        };
        let rest = match length % mtu {
            0 => 0,
            rest => line_bytes(rest),
        };
        length / mtu * line_bytes(mtu) + rest
    }

    fn offer_line(&mut self, line_bytes: usize, now: Time) -> Fate {
        let Some(sent) = self.serialise(line_bytes, now) else {
            return Fate::Lost(DropReason::LinkQueueFull);
        };
        if self.loses() {
            return Fate::Lost(DropReason::LinkLost);
        }
        if self.corrupts() {
            return Fate::Lost(DropReason::LinkCorrupted);
        }
        let first = self.arrival(sent);
        let second = self.duplicates().then(|| self.arrival(sent));
        Fate::Arrives(first, second)
    }

    /// Time at which the last bit leaves the line; `None` if the queue is full.
    fn serialise(&mut self, line_bytes: usize, now: Time) -> Option<Time> {
        if !self.config.has_rate() {
            return Some(now);
        }
        let start = self.busy_until.max(now);
        while self.starts.front().is_some_and(|start| *start <= now) {
            self.starts.pop_front();
        }
        let backlog = self.bytes_until(start, now);
        if start > now && self.is_full(backlog, line_bytes, self.starts.len()) {
            return None;
        }
        if self.config.queue_packets.is_some() {
            self.starts.push_back(start);
        }
        self.busy_until = start + self.line_time(line_bytes);
        Some(self.busy_until)
    }

    /// Whether the queue before a busy line is too full for a packet. An idle line takes any packet, as the queue of a
    /// Linux interface does. `backlog`: bytes that the line has yet to send; `waiting`: packets in the queue.
    pub(crate) fn is_full(&self, backlog: u128, line_bytes: usize, waiting: usize) -> bool {
        let most = self.config.queue_packets.unwrap_or(usize::MAX);
        backlog + line_bytes as u128 > self.config.queue as u128 || waiting >= most
    }

    /// The time that bytes take on the line.
    pub(crate) fn line_time(&self, line_bytes: usize) -> Duration {
        match self.config.rate.filter(|&rate| rate > 0) {
            Some(rate) => span(line_bytes as u128, rate),
            None => Duration::ZERO,
        }
    }

    /// Bytes that the line sends from `now` until `until`.
    pub(crate) fn bytes_until(&self, until: Time, now: Time) -> u128 {
        let nanos = until.since(now).as_nanos();
        nanos * u128::from(self.config.rate.unwrap_or(0)) / 8_000_000_000
    }

    /// The time until which the line is busy, if the rest of its work is done with other settings from `now` on.
    pub(crate) fn rescaled(&self, busy_until: Time, config: &LinkConfig, now: Time) -> Time {
        if busy_until <= now || config.rate == self.config.rate {
            return busy_until;
        }
        let rest = self.bytes_until(busy_until, now);
        match config.rate.filter(|&rate| rate > 0) {
            Some(rate) => now + span(rest, rate),
            None => now,
        }
    }

    pub(crate) fn loses(&mut self) -> bool {
        match &self.config.loss {
            Loss::None => false,
            &Loss::Random(p) => self.chance(p),
            &Loss::Bursts {
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
            Loss::Trace(trace) => {
                let index = self.next_in_trace.checked_rem(trace.len()).unwrap_or(0);
                self.next_in_trace = index + 1;
                trace.get(index).copied().unwrap_or(false)
            }
        }
    }

    pub(crate) fn corrupts(&mut self) -> bool {
        self.chance(self.config.corrupt)
    }

    pub(crate) fn duplicates(&mut self) -> bool {
        self.chance(self.config.duplicate)
    }

    pub(crate) fn arrival(&mut self, sent: Time) -> Time {
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
