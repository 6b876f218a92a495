//! Limits of an agent: connections at a time, those without authentication, and failed authentications of each source.

use engine::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Most connections at a time that have not proved that they know the token, and those of one source: idle ones do not
/// take the places of owners.
const MAX_PENDING: usize = 4;
const MAX_PENDING_OF_SOURCE: usize = 2;
/// Failed authentications of a source within [`WINDOW`] after which it is refused.
const MAX_FAILURES: u32 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// Most sources whose failures are remembered.
const MAX_SOURCES: usize = 1_024;

/// Limits connections and failed authentications.
#[derive(Debug, Default)]
pub(super) struct ConnectionLimiter {
    connections: usize,
    /// Connections without authentication, by source.
    pending: BTreeMap<IpAddr, usize>,
    failures: BTreeMap<IpAddr, (u32, Time)>,
}

impl ConnectionLimiter {
    /// Whether a connection from `source` is accepted; then it counts until [`ConnectionLimiter::leave`].
    pub fn enter(&mut self, source: IpAddr, now: Time) -> Result<(), &'static str> {
        self.failures
            .retain(|_, (_, since)| now.since(*since) < WINDOW);
        let failed = self.failures.get(&source).map_or(0, |(count, _)| *count);
        if failed >= MAX_FAILURES {
            return Err("too many failed authentications from this source");
        }
        // Sources that cannot be remembered would have no limit.
        if failed == 0 && self.failures.len() >= MAX_SOURCES {
            return Err("too many sources with failed authentications");
        }
        if self.connections >= MAX_CONNECTIONS {
            return Err("too many connections");
        }
        if self.pending.values().sum::<usize>() >= MAX_PENDING {
            return Err("too many connections without authentication");
        }
        let of_source = self.pending.entry(source).or_insert(0);
        if *of_source >= MAX_PENDING_OF_SOURCE {
            return Err("too many connections without authentication from this source");
        }
        *of_source += 1;
        self.connections += 1;
        Ok(())
    }

    /// A connection from `source` is authenticated, or has failed to be.
    pub fn authenticated(&mut self, source: IpAddr) {
        if let Some(of_source) = self.pending.get_mut(&source) {
            *of_source = of_source.saturating_sub(1);
        }
        self.pending.retain(|_, of_source| *of_source > 0);
    }

    /// The end of a connection.
    pub fn leave(&mut self) {
        self.connections = self.connections.saturating_sub(1);
    }

    /// A failed authentication.
    pub fn failed(&mut self, source: IpAddr, now: Time) {
        if self.failures.len() < MAX_SOURCES || self.failures.contains_key(&source) {
            self.failures.entry(source).or_insert((0, now)).0 += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_with_wrong_tokens_wait() {
        let mut limiter = ConnectionLimiter::default();
        let [bad, good] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        for _ in 0..MAX_FAILURES {
            assert!(limiter.enter(bad, Time::from_secs(1)).is_ok());
            limiter.failed(bad, Time::from_secs(1));
            limiter.authenticated(bad);
            limiter.leave();
        }
        assert!(limiter.enter(bad, Time::from_secs(60)).is_err());
        assert!(limiter.enter(good, Time::from_secs(60)).is_ok());
        limiter.authenticated(good);
        assert!(limiter.enter(bad, Time::from_secs(61)).is_ok());
    }

    #[test]
    fn tables_are_bounded() {
        let mut limiter = ConnectionLimiter::default();
        let source = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..2 * MAX_SOURCES {
            limiter.failed(source(n), Time::ZERO);
        }
        assert_eq!(limiter.failures.len(), MAX_SOURCES);
        assert!(limiter.enter(source(2 * MAX_SOURCES), Time::ZERO).is_err());
        let mut limiter = ConnectionLimiter::default();
        for n in 0..MAX_CONNECTIONS {
            assert!(limiter.enter(source(n), Time::ZERO).is_ok());
            limiter.authenticated(source(n));
        }
        assert!(limiter.enter(source(99), Time::ZERO).is_err());
        limiter.leave();
        assert!(limiter.enter(source(99), Time::ZERO).is_ok());
    }

    #[test]
    fn silent_connections_leave_room_for_owners() {
        let mut limiter = ConnectionLimiter::default();
        let [silent, second, third, owner] =
            [1, 2, 3, 4].map(|last| IpAddr::from([10, 0, 0, last]));
        let now = Time::ZERO;
        assert!(limiter.enter(silent, now).is_ok() && limiter.enter(silent, now).is_ok());
        let refused = limiter.enter(silent, now).unwrap_err();
        assert!(refused.contains("without authentication from this source"));
        // Another source gets in, and stays when it is authenticated.
        assert!(limiter.enter(owner, now).is_ok());
        limiter.authenticated(owner);
        assert!(limiter.enter(second, now).is_ok() && limiter.enter(second, now).is_ok());
        assert!(limiter.enter(third, now).is_err());
        // The silence ends.
        limiter.authenticated(silent);
        limiter.leave();
        assert!(limiter.enter(third, now).is_ok());
        assert_eq!(limiter.connections, 5);
    }
}
