//! Limits of an agent: connections at a time, those without authentication, and failed authentications of each source.

use engine::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Most connections at a time that have not proved that they know the token, and those of one source: idle ones do not take
/// the places of owners.
const MAX_PENDING: usize = 4;
const MAX_PENDING_OF_SOURCE: usize = 2;
/// Failed authentications of a source within [`WINDOW`] after which it is refused.
const MAX_FAILURES: u32 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// Most sources whose failures are remembered.
const MAX_SOURCES: usize = 1_024;

/// The gate.
#[derive(Debug, Default)]
pub(super) struct Gate {
    connections: usize,
    /// Connections without authentication, by source.
    pending: BTreeMap<IpAddr, usize>,
    failures: BTreeMap<IpAddr, (u32, Time)>,
}

impl Gate {
    /// Whether a connection from `source` is accepted; then it counts until [`Gate::leave`].
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
        let mut gate = Gate::default();
        let [bad, good] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        for _ in 0..MAX_FAILURES {
            assert!(gate.enter(bad, Time::from_secs(1)).is_ok());
            gate.failed(bad, Time::from_secs(1));
            gate.authenticated(bad);
            gate.leave();
        }
        assert!(gate.enter(bad, Time::from_secs(60)).is_err());
        assert!(gate.enter(good, Time::from_secs(60)).is_ok());
        gate.authenticated(good);
        assert!(gate.enter(bad, Time::from_secs(61)).is_ok());
    }

    #[test]
    fn tables_are_bounded() {
        let mut gate = Gate::default();
        let source = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..2 * MAX_SOURCES {
            gate.failed(source(n), Time::ZERO);
        }
        assert_eq!(gate.failures.len(), MAX_SOURCES);
        assert!(gate.enter(source(2 * MAX_SOURCES), Time::ZERO).is_err());
        let mut gate = Gate::default();
        for n in 0..MAX_CONNECTIONS {
            assert!(gate.enter(source(n), Time::ZERO).is_ok());
            gate.authenticated(source(n));
        }
        assert!(gate.enter(source(99), Time::ZERO).is_err());
        gate.leave();
        assert!(gate.enter(source(99), Time::ZERO).is_ok());
    }

    #[test]
    fn silent_connections_leave_room_for_owners() {
        let mut gate = Gate::default();
        let [silent, second, third, owner] =
            [1, 2, 3, 4].map(|last| IpAddr::from([10, 0, 0, last]));
        let now = Time::ZERO;
        assert!(gate.enter(silent, now).is_ok() && gate.enter(silent, now).is_ok());
        let refused = gate.enter(silent, now).unwrap_err();
        assert!(refused.contains("without authentication from this source"));
        // Another source gets in, and stays when it is authenticated.
        assert!(gate.enter(owner, now).is_ok());
        gate.authenticated(owner);
        assert!(gate.enter(second, now).is_ok() && gate.enter(second, now).is_ok());
        assert!(gate.enter(third, now).is_err());
        // The silence ends.
        gate.authenticated(silent);
        gate.leave();
        assert!(gate.enter(third, now).is_ok());
        assert_eq!(gate.connections, 5);
    }
}
