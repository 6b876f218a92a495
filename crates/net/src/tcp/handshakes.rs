//! The rate limit of TLS handshakes of accepted connections. A handshake takes most of a millisecond of the thread and
//! costs an unauthenticated peer almost nothing; above the rate its first bytes stay in the kernel.

use super::layers::StreamLayers;
use super::{StreamState, StreamTimer, Streams};
use crate::plane::Plane;
use engine::{CloseReason, Time};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// Number of token buckets of sources. Sources that share a bucket share its rate.
const BUCKETS: usize = 1_024;
/// Share of the rate that one source network may use: others can connect during its flood.
const SOURCE_SHARE: f64 = 0.5;
/// Interval at which delayed connections are resumed.
const RESUME_INTERVAL: Duration = Duration::from_millis(10);
/// Delayed connections that are checked at once.
const MAX_CHECKED: usize = 1_024;

/// Whether a connection may begin its TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeTurn {
    /// It has no handshake that is limited, or has been admitted.
    Admitted,
    /// An accepted connection that has sent nothing yet.
    Required,
    /// It waits, and is not read meanwhile.
    Delayed,
}

impl HandshakeTurn {
    pub(super) fn of(accepted: bool, layers: Option<&StreamLayers>) -> HandshakeTurn {
        match layers {
            Some(layers) if accepted && layers.layer.is_tls_handshaking() => {
                HandshakeTurn::Required
            }
            _ => HandshakeTurn::Admitted,
        }
    }
}

/// The handshakes of one second, at most, are admitted at once.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    filled_at: Time,
}

impl TokenBucket {
    fn refill(&mut self, rate: f64, now: Time) {
        let gained = now.since(self.filled_at).as_secs_f64() * rate;
        self.tokens = (self.tokens + gained).min(rate.max(1.0));
        self.filled_at = self.filled_at.max(now);
    }
}

/// Token buckets, and the connections that wait for one.
#[derive(Debug)]
pub(super) struct HandshakeLimiter {
    /// Handshakes per second; zero: no limit.
    rate: f64,
    total: TokenBucket,
    sources: Vec<TokenBucket>,
    hasher: RandomState,
    /// Index and generation of each.
    delayed: VecDeque<(u32, u32)>,
}

impl HandshakeLimiter {
    pub(super) fn new(per_second: u32) -> HandshakeLimiter {
        let rate = f64::from(per_second);
        let bucket = |rate: f64| TokenBucket {
            tokens: rate.max(1.0),
            filled_at: Time::ZERO,
        };
        let buckets = match per_second {
            0 => 0,
            _ => BUCKETS,
        };
        HandshakeLimiter {
            rate,
            total: bucket(rate),
            sources: vec![bucket(rate * SOURCE_SHARE); buckets],
            hasher: RandomState::new(),
            delayed: VecDeque::new(),
        }
    }

    /// Whether a handshake with this source may begin now.
    fn admit(&mut self, source: IpAddr, now: Time) -> bool {
        if self.rate == 0.0 {
            return true;
        }
        let index = self.hasher.hash_one(source) as usize % self.sources.len().max(1);
        let Some(bucket) = self.sources.get_mut(index) else {
            return true;
        };
        self.total.refill(self.rate, now);
        bucket.refill(self.rate * SOURCE_SHARE, now);
        let admitted = self.total.tokens >= 1.0 && bucket.tokens >= 1.0;
        if admitted {
            self.total.tokens -= 1.0;
            bucket.tokens -= 1.0;
        }
        admitted
    }
}

impl Streams {
    /// Whether the connection at `index` may be read: its TLS handshake is admitted. Otherwise it is not watched for
    /// bytes until [`Streams::resume_handshakes`].
    pub(super) fn may_shake_hands(&mut self, plane: &Plane, index: u32, now: Time) -> bool {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return false;
        };
        let Some(source) = connection.source else {
            return true;
        };
        match connection.handshake {
            HandshakeTurn::Admitted => return true,
            HandshakeTurn::Delayed => return false,
            HandshakeTurn::Required => {}
        }
        // Those that wait already are first.
        if self.handshakes.delayed.is_empty() && self.handshakes.admit(source, now) {
            connection.handshake = HandshakeTurn::Admitted;
            return true;
        }
        connection.handshake = HandshakeTurn::Delayed;
        let generation = connection.generation;
        let interest = connection.watched & EventFlags::OUT;
        plane.shared.handshakes_delayed.add(1);
        if self.handshakes.delayed.is_empty() {
            self.timers
                .schedule(now + RESUME_INTERVAL, StreamTimer::Handshakes);
        }
        self.handshakes.delayed.push_back((index, generation));
        self.watch_for(plane, index, interest);
        false
    }

    /// Resumes delayed connections, as many as the rate allows.
    pub(super) fn resume_handshakes(&mut self, plane: &Plane, now: Time) {
        for _ in 0..self.handshakes.delayed.len().min(MAX_CHECKED) {
            let Some((index, generation)) = self.handshakes.delayed.pop_front() else {
                break;
            };
            if !self.is_current(index, generation) {
                continue;
            }
            let Some(connection) = self.connections.get_mut(index as usize) else {
                continue;
            };
            let Some(source) = connection
                .source
                .filter(|_| connection.handshake == HandshakeTurn::Delayed)
            else {
                continue;
            };
            if !self.handshakes.admit(source, now) {
                // Others of its source, or all, have used up the rate.
                self.handshakes.delayed.push_back((index, generation));
                continue;
            }
            connection.handshake = HandshakeTurn::Admitted;
            let interest = connection.watched | EventFlags::IN;
            if connection.state == StreamState::Open {
                self.watch_for(plane, index, interest);
            }
        }
        if !self.handshakes.delayed.is_empty() {
            self.timers
                .schedule(now + RESUME_INTERVAL, StreamTimer::Handshakes);
        }
    }

    /// Ends a delayed connection that its peer has reset: it would be reported as ready again and again. Returns
    /// whether it was one.
    pub(crate) fn end_delayed(&mut self, plane: &Plane, index: u32, generation: u32) -> bool {
        let delayed = self.is_current(index, generation)
            && self
                .connections
                .get(index as usize)
                .is_some_and(|connection| {
                    connection.state == StreamState::Open
                        && connection.handshake == HandshakeTurn::Delayed
                });
        if delayed {
            self.abort(plane, index, CloseReason::Error);
        }
        delayed
    }

    /// Reports that a delayed connection has waited for its whole handshake timeout. Returns whether it was one.
    pub(super) fn report_delayed(&mut self, plane: &Plane, index: u32, now: Time) -> bool {
        let Some(connection) = self.connections.get(index as usize) else {
            return false;
        };
        let Some(layers) = connection.layers.as_deref() else {
            return false;
        };
        if connection.state != StreamState::Open || connection.handshake != HandshakeTurn::Delayed {
            return false;
        }
        let (remote, listening) = (layers.remote, layers.listening);
        let why = format!(
            "more than {} TLS handshakes per second",
            self.handshakes.rate
        );
        self.refused(plane, remote, listening, "", why, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn admitted(limiter: &mut HandshakeLimiter, from: IpAddr, now: Time) -> usize {
        (0..1_000).filter(|_| limiter.admit(from, now)).count()
    }

    #[test]
    fn one_source_gets_half_of_the_rate_and_all_together_the_rate() {
        let mut limiter = HandshakeLimiter::new(100);
        let mut now = Time::ZERO + Duration::from_secs(5);
        assert_eq!(admitted(&mut limiter, source(1), now), 50);
        // Another source: one with a bucket of its own, of which there are enough.
        let others: usize = (2..=20)
            .map(|last| admitted(&mut limiter, source(last), now))
            .sum();
        assert_eq!(others, 50);
        now += Duration::from_millis(100);
        assert_eq!(admitted(&mut limiter, source(1), now), 5);
        let others: usize = (2..=20)
            .map(|last| admitted(&mut limiter, source(last), now))
            .sum();
        assert_eq!(others, 5);
        // Without a limit.
        let mut limiter = HandshakeLimiter::new(0);
        assert_eq!(admitted(&mut limiter, source(1), now), 1_000);
    }
}
