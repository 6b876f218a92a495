//! Pacing: bounds the signalling bytes that are sent at once to one peer over UDP.
//!
//! After a stall of the host, a fast sender emits its backlog faster than the peer can read it, and the receive
//! buffer of the peer overflows. Datagrams above the bound are held and sent later, in order, at twice the average
//! rate of that peer.

use engine::{SocketId, Time};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

/// Number of token buckets. Peers that share a bucket share its bound.
const BUCKETS: usize = 1_024;
/// Lowest rate of held datagrams, bytes per second: three quarters of the rate at which SIPp reads on half a core.
const MIN_RELEASE_RATE: f64 = 12_000_000.0;
/// Rate of held datagrams, as a multiple of the average rate of the peer.
const RELEASE_FACTOR: f64 = 2.0;
/// Interval over which the rate is measured, and weight of a new interval in the average. A rate that has risen for two
/// intervals applies at once: new load would otherwise wait for the average. The backlog of a stall is offered within
/// one.
const MEASURING_INTERVAL: Duration = Duration::from_millis(100);
const AVERAGE_WEIGHT: f64 = 0.1;
/// Intervals without datagrams after which the old average is meaningless.
const IDLE_INTERVALS: u32 = 20;
/// Bound of the held bytes of all buckets; datagrams above it are sent at once.
const MAX_HELD_BYTES: usize = 8 << 20;
/// Share of the bound that must be free before held datagrams are sent, so that not every datagram wakes the thread.
const RELEASE_SHARE: f64 = 0.25;

/// A datagram that is held.
#[derive(Debug)]
pub(crate) struct PacedDatagram {
    pub(crate) socket: SocketId,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Box<[u8]>,
}

#[derive(Debug)]
struct Bucket {
    /// Bytes that may be sent now.
    tokens: f64,
    /// Time of the last refill.
    filled_at: Time,
    /// Average, bytes per second.
    rate: f64,
    /// Rate of the last interval, bytes per second.
    last_measured: f64,
    /// Start of the present measuring interval, and the bytes sent in it.
    since: Time,
    bytes: usize,
    held: VecDeque<PacedDatagram>,
}

/// Token buckets of the peers.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Bytes that may be sent at once to one peer.
    burst: f64,
    hasher: RandomState,
    buckets: Vec<Bucket>,
    /// Indices of buckets that hold datagrams.
    waiting: Vec<usize>,
    held_bytes: usize,
    /// The destination that was looked up last, and its bucket.
    last: Option<(SocketAddr, usize)>,
}

impl Pacer {
    /// `burst`: bytes that may be sent at once to one peer, greater than zero.
    pub(crate) fn new(burst: usize) -> Pacer {
        let bucket = || Bucket {
            tokens: burst as f64,
            filled_at: Time::ZERO,
            rate: 0.0,
            last_measured: 0.0,
            since: Time::ZERO,
            bytes: 0,
            held: VecDeque::new(),
        };
        Pacer {
            burst: burst as f64,
            hasher: RandomState::new(),
            buckets: (0..BUCKETS).map(|_| bucket()).collect(),
            waiting: Vec::new(),
            held_bytes: 0,
            last: None,
        }
    }

    /// Whether a datagram of this length may be sent now. Otherwise the caller passes it to [`Pacer::hold`].
    pub(crate) fn admit(&mut self, destination: SocketAddr, length: usize, now: Time) -> bool {
        let index = self.index(destination);
        let (burst, room) = (self.burst, self.held_bytes + length <= MAX_HELD_BYTES);
        let bucket = &mut self.buckets[index];
        bucket.refill(burst, now);
        bucket.bytes += length;
        // A datagram that is larger than the bound is sent when the bucket is full.
        let enough = bucket.tokens >= (length as f64).min(burst);
        if bucket.held.is_empty() && enough || !room {
            bucket.tokens -= length as f64;
            return true;
        }
        false
    }

    /// Holds a datagram back.
    pub(crate) fn hold(&mut self, held: PacedDatagram) {
        let index = self.index(held.destination);
        self.held_bytes += held.bytes.len();
        let bucket = &mut self.buckets[index];
        if bucket.held.is_empty() {
            self.waiting.push(index);
        }
        bucket.held.push_back(held);
    }

    /// Time of the next release; `None` if no datagram is held.
    pub(crate) fn next_release(&self) -> Option<Time> {
        let times = self.waiting.iter().map(|&index| {
            let bucket = &self.buckets[index];
            let first = bucket.held.front().map_or(0, |held| held.bytes.len()) as f64;
            let required = first.max(self.burst * RELEASE_SHARE).min(self.burst);
            let missing = (required - bucket.tokens).max(0.0) / bucket.release_rate();
            bucket.filled_at + Duration::from_secs_f64(missing)
        });
        times.min()
    }

    /// Passes the held datagrams that may be sent now to `send`, oldest first for each peer; all of them if `all` is
    /// set.
    pub(crate) fn release(&mut self, now: Time, all: bool, mut send: impl FnMut(PacedDatagram)) {
        let (burst, buckets, held_bytes) = (self.burst, &mut self.buckets, &mut self.held_bytes);
        self.waiting.retain(|&index| {
            let bucket = &mut buckets[index];
            bucket.refill(burst, now);
            while let Some(first) = bucket.held.front() {
                let length = first.bytes.len();
                if !all && bucket.tokens < (length as f64).min(burst) {
                    break;
                }
                bucket.tokens -= length as f64;
                *held_bytes -= length;
                if let Some(held) = bucket.held.pop_front() {
                    send(held);
                }
            }
            !bucket.held.is_empty()
        });
    }

    /// Passes all held datagrams of one socket to `send`, oldest first for each peer.
    pub(crate) fn release_of(&mut self, socket: SocketId, mut send: impl FnMut(PacedDatagram)) {
        let (buckets, held_bytes) = (&mut self.buckets, &mut self.held_bytes);
        self.waiting.retain(|&index| {
            let bucket = &mut buckets[index];
            for held in std::mem::take(&mut bucket.held) {
                if held.socket != socket {
                    bucket.held.push_back(held);
                    continue;
                }
                bucket.tokens -= held.bytes.len() as f64;
                *held_bytes -= held.bytes.len();
                send(held);
            }
            !bucket.held.is_empty()
        });
    }

    pub(crate) fn is_holding(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn index(&mut self, destination: SocketAddr) -> usize {
        match self.last {
            Some((last, index)) if last == destination => index,
            _ => {
                let index = self.hasher.hash_one(destination) as usize % BUCKETS;
                self.last = Some((destination, index));
                index
            }
        }
    }
}

impl Bucket {
    fn release_rate(&self) -> f64 {
        (self.rate * RELEASE_FACTOR).max(MIN_RELEASE_RATE)
    }

    fn refill(&mut self, burst: f64, now: Time) {
        let span = now.since(self.since);
        if span >= MEASURING_INTERVAL {
            let measured = self.bytes as f64 / span.as_secs_f64();
            let weight = if span > MEASURING_INTERVAL * IDLE_INTERVALS {
                1.0
            } else {
                AVERAGE_WEIGHT
            };
            self.rate += weight * (measured - self.rate);
            self.rate = self.rate.max(measured.min(self.last_measured));
            self.last_measured = measured;
            (self.since, self.bytes) = (now, 0);
        }
        let gained = now.since(self.filled_at).as_secs_f64() * self.release_rate();
        self.tokens = (self.tokens + gained).min(burst);
        self.filled_at = self.filled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: usize = 16 << 10;
    const LENGTH: usize = 500;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn offer(pacer: &mut Pacer, number: u32, now: Time) -> bool {
        let admitted = pacer.admit(peer(5060), LENGTH, now);
        if !admitted {
            let mut bytes = vec![0; LENGTH];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            pacer.hold(PacedDatagram {
                socket: SocketId(1),
                destination: peer(5060),
                bytes: bytes.into(),
            });
        }
        admitted
    }

    #[test]
    fn burst_is_bounded_and_held_datagrams_keep_their_order() {
        let mut pacer = Pacer::new(BURST);
        let mut now = Time::ZERO + Duration::from_secs(1);
        let at_once = (0..1_000).filter(|&i| offer(&mut pacer, i, now)).count();
        assert_eq!(at_once, BURST / LENGTH);
        assert!(
            pacer.admit(peer(5070), LENGTH, now)
                || pacer.index(peer(5070)) == pacer.index(peer(5060))
        );
        let mut numbers = Vec::new();
        let begun = now;
        while let Some(at) = pacer.next_release() {
            assert!(at > now, "no progress");
            now = at;
            let before = numbers.len();
            pacer.release(now, false, |held| {
                numbers.push(u32::from_be_bytes(held.bytes[..4].try_into().unwrap()));
            });
            assert!((numbers.len() - before) * LENGTH <= BURST);
        }
        let expected: Vec<u32> = (at_once as u32..1_000).collect();
        assert_eq!(numbers, expected);
        let least = (1_000 - at_once) as f64 * LENGTH as f64 / MIN_RELEASE_RATE;
        let took = now.since(begun).as_secs_f64();
        assert!(
            took > least * 0.8 && took < least * 1.3,
            "{took} s, {least}"
        );
        assert!(!pacer.is_holding());
        assert_eq!(pacer.held_bytes, 0);
    }

    #[test]
    fn steady_rate_above_the_lowest_builds_no_backlog() {
        let mut pacer = Pacer::new(BURST);
        let mut now = Time::ZERO + Duration::from_secs(1);
        let mut refused_count = 0;
        // 40 datagrams a millisecond: 20 MB/s.
        for turn in 0..4_000u32 {
            now += Duration::from_millis(1);
            while let Some(at) = pacer.next_release().filter(|at| *at <= now) {
                pacer.release(at, false, |_| ());
            }
            let refused = (0..40).filter(|&i| !offer(&mut pacer, i, now)).count();
            if turn > 1_500 {
                refused_count += refused;
            }
        }
        // Bursts above the bound are spread over the next millisecond, and no backlog grows.
        assert!(pacer.held_bytes < 2 * BURST, "{}", pacer.held_bytes);
        assert!(refused_count > 0);
    }

    /// Longest time in which datagrams of a load that begins at once are held, and the backlog after a second.
    fn begin(bytes_per_ms: usize) -> (Duration, usize) {
        let mut pacer = Pacer::new(BURST);
        let mut now = Time::ZERO + Duration::from_secs(1);
        let begun = now;
        let mut longest = Duration::ZERO;
        for turn in 0..1_000u32 {
            now += Duration::from_millis(1);
            while let Some(at) = pacer.next_release().filter(|at| *at <= now) {
                pacer.release(at, false, |held| {
                    let offered = u32::from_be_bytes(held.bytes[..4].try_into().unwrap());
                    let offered = begun + Duration::from_millis(1 + u64::from(offered));
                    longest = longest.max(at.since(offered));
                });
            }
            for _ in 0..bytes_per_ms / LENGTH {
                offer(&mut pacer, turn, now);
            }
        }
        (longest, pacer.held_bytes)
    }

    #[test]
    fn load_that_begins_is_held_for_two_intervals_at_most() {
        // 20 and 30 MB/s.
        for bytes_per_ms in [20_000, 30_000] {
            let (longest, held) = begin(bytes_per_ms);
            assert!(longest < MEASURING_INTERVAL * 2, "{longest:?}");
            assert!(held < 3 * bytes_per_ms, "{held}");
        }
    }

    #[test]
    fn backlog_of_a_stall_is_released_at_no_higher_rate() {
        let mut pacer = Pacer::new(BURST);
        let mut now = Time::ZERO + Duration::from_secs(1);
        let offer_all = |pacer: &mut Pacer, count: u32, now: Time| {
            while let Some(at) = pacer.next_release().filter(|at| *at <= now) {
                pacer.release(at, false, |_| ());
            }
            (0..count).for_each(|number| {
                offer(pacer, number, now);
            });
        };
        // 5 MB/s for two seconds.
        for _ in 0..2_000 {
            now += Duration::from_millis(1);
            offer_all(&mut pacer, 10, now);
        }
        // The datagrams of 200 ms are offered within 30 ms.
        now += Duration::from_millis(200);
        for _ in 0..30 {
            now += Duration::from_millis(1);
            offer_all(&mut pacer, 70, now);
        }
        let rate = |pacer: &mut Pacer| {
            let index = pacer.index(peer(5060));
            pacer.buckets[index].release_rate()
        };
        for _ in 0..150 {
            now += Duration::from_millis(1);
            offer_all(&mut pacer, 10, now);
            assert!(rate(&mut pacer) <= MIN_RELEASE_RATE * 1.2, "{now:?}");
        }
    }

    #[test]
    fn datagrams_above_the_hold_limit_are_sent_at_once() {
        let mut pacer = Pacer::new(BURST);
        let now = Time::ZERO + Duration::from_secs(1);
        let count = (2 * MAX_HELD_BYTES / LENGTH) as u32;
        let at_once = (0..count).filter(|&i| offer(&mut pacer, i, now)).count();
        let mut released = 0;
        pacer.release(now, true, |_| released += 1);
        assert_eq!(at_once + released, count as usize);
        assert!(released * LENGTH <= MAX_HELD_BYTES);
    }

    #[test]
    fn release_of_a_socket_leaves_the_datagrams_of_others_held() {
        let mut pacer = Pacer::new(BURST);
        let now = Time::ZERO + Duration::from_secs(1);
        while offer(&mut pacer, 0, now) {}
        for number in 0..20u32 {
            pacer.hold(PacedDatagram {
                socket: SocketId(1 + number % 2),
                destination: peer(5060),
                bytes: number.to_be_bytes().into(),
            });
        }
        let numbers = |held: &PacedDatagram| held.bytes[..4].to_vec();
        let mut released = Vec::new();
        pacer.release_of(SocketId(2), |held| released.push(numbers(&held)));
        let expected: Vec<Vec<u8>> = (0..20u32)
            .filter(|number| number % 2 == 1)
            .map(|number| number.to_be_bytes().to_vec())
            .collect();
        assert_eq!(released, expected);
        assert!(pacer.is_holding());
        pacer.release(now, true, |held| assert_eq!(held.socket, SocketId(1)));
        assert_eq!((pacer.is_holding(), pacer.held_bytes), (false, 0));
    }

    #[test]
    fn datagram_larger_than_the_bound_is_sent_alone() {
        let mut pacer = Pacer::new(1_000);
        let now = Time::ZERO + Duration::from_secs(1);
        assert!(pacer.admit(peer(1), 5_000, now));
        assert!(!pacer.admit(peer(1), 100, now));
        assert!(pacer.admit(peer(1), 100, now + Duration::from_millis(1)));
    }
}
