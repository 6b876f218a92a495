//! Requests for new keys, repeated until there are some.

use engine::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval of the requests of a tunnel.
const INTERVAL: Duration = Duration::from_secs(30);

/// Tunnels that need new keys: the SPI of their association, and the time of the next request.
#[derive(Debug, Default)]
pub(super) struct RekeyRequests {
    wanted: BTreeMap<usize, (u32, Time)>,
}

impl RekeyRequests {
    /// The association of a tunnel with this SPI needs new keys. Another one than before keeps the interval, so that
    /// keys which are refused again and again cause no negotiation without end.
    pub(super) fn add(&mut self, tunnel: usize, spi: u32, now: Time) {
        let (wanted, _) = self.wanted.entry(tunnel).or_insert((spi, now));
        *wanted = spi;
    }

    /// The tunnels whose request is due. `is_in_use`: whether a tunnel still uses the association of this SPI;
    /// otherwise it has new keys.
    pub(super) fn due(&mut self, now: Time, is_in_use: impl Fn(usize, u32) -> bool) -> Vec<usize> {
        let mut due = Vec::new();
        self.wanted.retain(|tunnel, (spi, at)| {
            let is_wanted = is_in_use(*tunnel, *spi);
            if is_wanted && now >= *at {
                *at = now + INTERVAL;
                due.push(*tunnel);
            }
            is_wanted
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(second)
    }

    #[test]
    fn requests_are_repeated_until_there_are_new_keys() {
        let mut requests = RekeyRequests::default();
        requests.add(3, 1, at(0));
        assert_eq!(requests.due(at(0), |_, _| true), [3]);
        assert!(requests.due(at(29), |_, _| true).is_empty());
        assert_eq!(requests.due(at(30), |_, _| true), [3]);
        assert!(requests.due(at(60), |_, spi| spi != 1).is_empty());
        assert!(requests.due(at(90), |_, _| true).is_empty(), "new keys");
    }

    /// The entry of former keys does not take the place of that of the keys in use.
    #[test]
    fn new_keys_that_are_refused_are_requested_after_the_interval() {
        let mut requests = RekeyRequests::default();
        requests.add(3, 1, at(0));
        assert_eq!(requests.due(at(0), |_, _| true), [3]);
        requests.add(3, 2, at(10));
        assert!(requests.due(at(10), |_, spi| spi == 2).is_empty());
        assert_eq!(requests.due(at(30), |_, spi| spi == 2), [3]);
    }
}
