//! Lockout after failed authentications: counted per source and account, with a growing delay during which credentials
//! are not checked.
//!
//! A source from which an account has authenticated before, or is registered, has its own count for that account:
//! failures of other sources, and of other accounts at the same source (phones behind one NAT), do not delay it. A
//! smaller budget for each port of such a source stops an attacker behind the same NAT before it delays the phone,
//! which uses another port. All tables are bounded.

use crate::shared::ReportLimit;
use config::FailureLimits;
use core::fmt;
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::{BoundedMap, Entropy, HashKey, Time, network_of};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of entries of each table.
const ENTRIES: usize = 65_536;
/// Maximum number of names of locked accounts in each table.
const NAMES: usize = 4_096;
/// Characters of a name that are kept.
const NAME: usize = 64;
/// Text before the name of an account where a source or an account can stand. No address begins with it.
const USER: &str = "user:";
/// How long after an authentication a source counts as one of the account: longer than a weekend.
const OWN_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// Budget of a port of such a source, as a part of that of the account.
const PORT_SHARE: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FailureKey {
    Source(IpAddr),
    Account(u64),
    /// A source from which the account has authenticated.
    Own(IpAddr, u64),
    /// A port of such a source.
    OwnPort(IpAddr, u16, u64),
}

/// The source of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureSource {
    ip: IpAddr,
    /// `None`: ports are not distinguished.
    port: Option<u16>,
    registered: bool,
}

impl FailureSource {
    /// An address; `registered`: the account is registered from its host.
    pub fn new(address: SocketAddr, registered: bool) -> FailureSource {
        FailureSource {
            registered,
            ..FailureSource::from(address)
        }
    }
}

impl From<SocketAddr> for FailureSource {
    fn from(address: SocketAddr) -> FailureSource {
        FailureSource {
            port: Some(address.port()),
            ..FailureSource::from(address.ip())
        }
    }
}

impl From<IpAddr> for FailureSource {
    fn from(ip: IpAddr) -> FailureSource {
        FailureSource {
            ip,
            port: None,
            registered: false,
        }
    }
}

/// The last authentication of an account from a source.
#[derive(Clone, Copy, Debug)]
struct AcceptedLogin {
    at: Time,
    /// Hashes of the nonces that a trunk accepted last: of a REGISTER, and of another request. 0: none.
    nonces: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    failures: u32,
    last: Time,
    until: Time,
}

/// A source or an account whose credentials are not checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockedOut {
    /// A source; of IPv6, its /64.
    Source(IpAddr),
    /// The user name in the credentials, at most 64 characters of it. Such a user need not exist.
    Account(String),
}

impl LockedOut {
    /// Reads an address, or `user:NAME`.
    pub fn parse(text: &str) -> Option<LockedOut> {
        match text.strip_prefix(USER) {
            Some("") => None,
            Some(name) => Some(LockedOut::Account(name.to_owned())),
            None => text.parse().ok().map(LockedOut::Source),
        }
    }
}

impl fmt::Display for LockedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockedOut::Source(source) => source.fmt(f),
            LockedOut::Account(name) => write!(f, "{USER}{name}"),
        }
    }
}

/// Failures of sources and accounts.
#[derive(Debug)]
pub struct AuthenticationFailures {
    limits: FailureLimits,
    young: BoundedMap<FailureKey, Meter>,
    old: BoundedMap<FailureKey, Meter>,
    /// The last authentication of an account from a source.
    own: BoundedMap<(IpAddr, u64), AcceptedLogin>,
    own_before: BoundedMap<(IpAddr, u64), AcceptedLogin>,
    accounts: HashKey,
    /// Names of locked accounts, for operators.
    names: BoundedMap<u64, Box<str>>,
    names_before: BoundedMap<u64, Box<str>>,
    reports: ReportLimit,
}

impl AuthenticationFailures {
    /// No failures.
    pub fn new(limits: FailureLimits, entropy: &mut Entropy) -> AuthenticationFailures {
        let key = HashKey::new(entropy);
        AuthenticationFailures {
            limits,
            young: BoundedMap::new(ENTRIES, key),
            old: BoundedMap::new(ENTRIES, key),
            own: BoundedMap::new(ENTRIES, key),
            own_before: BoundedMap::new(ENTRIES, key),
            accounts: HashKey::new(entropy),
            names: BoundedMap::new(NAMES, key),
            names_before: BoundedMap::new(NAMES, key),
            reports: ReportLimit::default(),
        }
    }

    /// Applies new limits; counts stay.
    pub fn set_limits(&mut self, limits: FailureLimits) {
        self.limits = limits;
    }

    /// Whether the account has authenticated from this source.
    fn is_own(&self, own: &(IpAddr, u64), now: Time) -> bool {
        let last = self.last_login(own);
        last.is_some_and(|last| now.since(last.at) <= OWN_LIFETIME)
    }

    fn last_login(&self, own: &(IpAddr, u64)) -> Option<AcceptedLogin> {
        let last = self.own.get(own).or_else(|| self.own_before.get(own));
        last.copied()
    }

    /// The meters of this source and account, each with its limit.
    fn keys(
        &self,
        from: FailureSource,
        account: &[u8],
        now: Time,
    ) -> [Option<(FailureKey, u32)>; 2] {
        let source = network_of(from.ip);
        let account = self.accounts.hash_one(account);
        let limit = self.limits.user;
        if from.registered || self.is_own(&(source, account), now) {
            let of_port = |port| {
                let key = FailureKey::OwnPort(source, port, account);
                (key, limit.div_ceil(PORT_SHARE))
            };
            return [
                Some((FailureKey::Own(source, account), limit)),
                from.port.map(of_port),
            ];
        }
        [
            Some((FailureKey::Source(source), self.limits.source)),
            Some((FailureKey::Account(account), limit)),
        ]
    }

    fn meter(&self, key: &FailureKey, now: Time) -> Option<Meter> {
        let meter = self.young.get(key).or_else(|| self.old.get(key)).copied();
        meter.filter(|meter| now.since(meter.last.max(meter.until)) <= self.limits.longest)
    }

    /// Remaining delay for credentials of this account from this source; `None`: they are checked.
    pub fn delay(
        &self,
        source: impl Into<FailureSource>,
        account: &[u8],
        now: Time,
    ) -> Option<Duration> {
        let keys = self.keys(source.into(), account, now).into_iter().flatten();
        let meters = keys
            .filter(|(_, limit)| *limit != 0)
            .filter_map(|(key, _)| self.meter(&key, now));
        let until = meters.map(|meter| meter.until).max()?;
        (until > now).then(|| until.since(now))
    }

    /// Sources and accounts whose credentials are not checked at present, with the remaining time; sorted. Of locked
    /// accounts, the last 4,096 at least have a name and are listed.
    pub fn lockouts(&self, now: Time) -> Vec<(LockedOut, Duration)> {
        let mut all: BTreeMap<LockedOut, Duration> = BTreeMap::new();
        for (key, meter) in self.locked(now) {
            let locked = match key {
                FailureKey::Source(source)
                | FailureKey::Own(source, _)
                | FailureKey::OwnPort(source, ..) => LockedOut::Source(source),
                FailureKey::Account(account) => match self.name(account) {
                    Some(name) => LockedOut::Account(name.to_owned()),
                    None => continue,
                },
            };
            let left = all.entry(locked).or_default();
            *left = (*left).max(meter.until.since(now));
        }
        all.into_iter().collect()
    }

    /// Meters of present lockouts. A key may occur twice.
    fn locked(&self, now: Time) -> impl Iterator<Item = (FailureKey, Meter)> {
        let tables = [&self.young, &self.old].into_iter();
        let entries = tables.flat_map(|table| table.iter_unordered());
        // First by the entry itself: a look-up of each of many is slow, and no credentials are checked meanwhile.
        let entries = entries.filter(move |(_, entry)| entry.until > now);
        entries.filter_map(move |(key, _)| {
            let meter = self.meter(key, now).filter(|meter| meter.until > now)?;
            Some((*key, meter))
        })
    }

    fn name(&self, account: u64) -> Option<&str> {
        let name = self.names.get(&account);
        name.or_else(|| self.names_before.get(&account))
            .map(|name| &**name)
    }

    /// Forgets the failures of a source, or those of an account at all sources. Returns whether it was locked out. An
    /// account is found by its full name, also if it is not listed, and by its listed name.
    pub fn remove_lockout(&mut self, lockout: &LockedOut, now: Time) -> bool {
        let (source, account) = match lockout {
            LockedOut::Source(source) => (Some(network_of(*source)), None),
            LockedOut::Account(name) => (None, Some(name.as_str())),
        };
        let hash = account.map(|name| self.accounts.hash_one(name.as_bytes()));
        // A look-up of the name of each account would be slow.
        let names = [&self.names, &self.names_before].into_iter();
        let names = names.flat_map(|table| table.iter_unordered());
        let listed = names.filter(|(_, name)| account == Some(&***name));
        let listed: Vec<u64> = listed.map(|(account, _)| *account).collect();
        let concerns = |key: &FailureKey| match key {
            FailureKey::Source(own) => Some(*own) == source,
            FailureKey::Own(own, account) | FailureKey::OwnPort(own, _, account) => {
                Some(*own) == source || Some(*account) == hash
            }
            FailureKey::Account(own) => Some(*own) == hash || listed.contains(own),
        };
        let removed = |table: &BoundedMap<FailureKey, Meter>| -> Vec<FailureKey> {
            let keys = table.iter_unordered().map(|(key, _)| *key);
            keys.filter(concerns).collect()
        };
        let removed = [removed(&self.young), removed(&self.old)].concat();
        let locked = self.locked(now).any(|(key, _)| concerns(&key));
        for key in removed {
            self.young.remove(&key);
            self.old.remove(&key);
            if let FailureKey::Account(account) = key {
                self.names.remove(&account);
                self.names_before.remove(&account);
            }
        }
        locked
    }

    /// Keeps the name of a locked account.
    fn keep_name(&mut self, account: &[u8]) {
        let hash = self.accounts.hash_one(account);
        if self.names.get(&hash).is_some() {
            return;
        }
        if self.names.is_full() {
            core::mem::swap(&mut self.names, &mut self.names_before);
            self.names.clear();
        }
        let name: String = String::from_utf8_lossy(account)
            .chars()
            .take(NAME)
            .collect();
        // There is a free entry: see above.
        let _ = self.names.insert(hash, name.into_boxed_str());
    }

    /// Counts wrong credentials.
    pub fn failed(&mut self, source: impl Into<FailureSource>, account: &[u8], now: Time) {
        for (key, limit) in self.keys(source.into(), account, now).into_iter().flatten() {
            let mut meter = self.meter(&key, now).unwrap_or(Meter {
                failures: 0,
                last: now,
                until: Time::ZERO,
            });
            meter.failures = meter.failures.saturating_add(1);
            meter.last = now;
            if limit != 0 && meter.failures >= limit {
                let doubled = (meter.failures - limit).min(20);
                let delay = self.limits.delay.saturating_mul(1 << doubled);
                meter.until = now + delay.min(self.limits.longest);
                if matches!(key, FailureKey::Account(_)) {
                    self.keep_name(account);
                }
            }
            if self.young.is_full() && self.young.get(&key).is_none() {
                core::mem::swap(&mut self.young, &mut self.old);
                self.young.clear();
            }
            // There is a free entry: see above.
            let _ = self.young.insert(key, meter);
        }
    }

    /// The account has authenticated from this source.
    pub fn succeeded(&mut self, source: IpAddr, account: &[u8], now: Time) {
        let own = (network_of(source), self.accounts.hash_one(account));
        self.keep_login(own, |_| {}, now);
    }

    /// A trunk has accepted credentials of the account with this nonce, in a REGISTER or another request.
    pub fn accepted(
        &mut self,
        source: IpAddr,
        account: &[u8],
        (nonce, registers): (&[u8], bool),
        now: Time,
    ) {
        let own = (network_of(source), self.accounts.hash_one(account));
        let hash = self.accounts.hash_one(nonce);
        let set = |[register, other]: &mut [u64; 2]| match registers {
            true => *register = hash,
            false => *other = hash,
        };
        self.keep_login(own, set, now);
    }

    /// Whether [`AuthenticationFailures::accepted`] was called last with this nonce, for such a request.
    pub fn has_accepted(
        &self,
        source: IpAddr,
        account: &[u8],
        (nonce, registers): (&[u8], bool),
    ) -> bool {
        let own = (network_of(source), self.accounts.hash_one(account));
        let hash = self.accounts.hash_one(nonce);
        self.last_login(&own).is_some_and(|last| {
            let [register, other] = last.nonces;
            hash == if registers { register } else { other }
        })
    }

    fn keep_login(&mut self, own: (IpAddr, u64), set: impl FnOnce(&mut [u64; 2]), now: Time) {
        let mut login = AcceptedLogin {
            at: now,
            nonces: self.last_login(&own).map_or([0; 2], |last| last.nonces),
        };
        set(&mut login.nonces);
        if self.own.is_full() && self.own.get(&own).is_none() {
            core::mem::swap(&mut self.own, &mut self.own_before);
            self.own.clear();
        }
        // There is a free entry: see above.
        let _ = self.own.insert(own, login);
    }

    /// Whether to log a failure; the value is the number of failures that were not logged since the last one.
    pub fn take_report(&mut self, now: Time) -> Option<u64> {
        self.reports.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FailureLimits = FailureLimits {
        source: 20,
        user: 10,
        delay: Duration::from_secs(30),
        longest: Duration::from_secs(3_600),
    };

    fn failures() -> AuthenticationFailures {
        AuthenticationFailures::new(LIMITS, &mut Entropy::from_number(1))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Sends wrong credentials as fast as possible, once per second for `seconds`. Returns the number of checks.
    fn judged(
        failures: &mut AuthenticationFailures,
        source: &str,
        account: impl Fn(u64) -> String,
        seconds: u64,
    ) -> u64 {
        let mut judged = 0;
        for second in 0..seconds {
            let (now, account) = (Time::from_secs(second), account(second));
            if failures
                .delay(ip(source), account.as_bytes(), now)
                .is_none()
            {
                judged += 1;
                failures.failed(ip(source), account.as_bytes(), now);
            }
        }
        judged
    }

    #[test]
    fn failure_delay_of_an_account_grows() {
        let one = |_| "1000".to_owned();
        assert_eq!(judged(&mut failures(), "203.0.113.1", one, 39), 10);
        // One more each after 30, 60, 120 ... 3,600 seconds.
        let day = judged(&mut failures(), "203.0.113.1", one, 86_400);
        assert!((30..=45).contains(&day), "{day}");
        // Many sources, one account.
        let mut failures = failures();
        let mut judged = 0;
        for number in 0..300u32 {
            let source = IpAddr::from(std::net::Ipv4Addr::from(0xcb00_7100 + number));
            if failures
                .delay(source, b"1000", Time::from_secs(1))
                .is_none()
            {
                judged += 1;
                failures.failed(source, b"1000", Time::from_secs(1));
            }
        }
        assert_eq!(judged, 10);
    }

    #[test]
    fn failures_of_a_source_are_limited_over_all_accounts() {
        let each = |number: u64| number.to_string();
        assert_eq!(judged(&mut failures(), "203.0.113.1", each, 49), 20);
        assert_eq!(judged(&mut failures(), "2001:db8::1", each, 49), 20);
        let mut failures = failures();
        judged(&mut failures, "2001:db8::1", each, 49);
        let now = Time::from_secs(48);
        assert!(
            failures.delay(ip("2001:db8::2"), b"x", now).is_some(),
            "the same network"
        );
        assert!(failures.delay(ip("2001:db8:0:1::2"), b"x", now).is_none());
    }

    #[test]
    fn failures_of_other_sources_do_not_delay_a_known_source() {
        let mut failures = failures();
        failures.succeeded(ip("198.51.100.7"), b"1000", Time::ZERO);
        judged(&mut failures, "203.0.113.1", |_| "1000".to_owned(), 30);
        let now = Time::from_secs(30);
        assert!(failures.delay(ip("203.0.113.1"), b"1000", now).is_some());
        assert!(failures.delay(ip("203.0.113.2"), b"1000", now).is_some());
        assert!(failures.delay(ip("198.51.100.7"), b"1000", now).is_none());
        // Failures of other accounts behind the same NAT do not delay it either.
        judged(
            &mut failures,
            "198.51.100.7",
            |number| format!("x{number}"),
            30,
        );
        assert!(failures.delay(ip("198.51.100.7"), b"y", now).is_some());
        assert!(failures.delay(ip("198.51.100.7"), b"1000", now).is_none());
        // Its own failures do.
        for _ in 0..10 {
            failures.failed(ip("198.51.100.7"), b"1000", now);
        }
        assert!(failures.delay(ip("198.51.100.7"), b"1000", now).is_some());
    }

    /// Wrong credentials for an account from a port, until they are not checked any more; returns the number of checks.
    fn exhaust(
        failures: &mut AuthenticationFailures,
        (ip, port): (IpAddr, u16),
        account: &[u8],
        now: Time,
    ) -> u32 {
        let source = SocketAddr::new(ip, port);
        let mut judged = 0;
        while failures.delay(source, account, now).is_none() && judged < 100 {
            judged += 1;
            failures.failed(source, account, now);
        }
        judged
    }

    #[test]
    fn attacker_behind_the_same_nat_does_not_delay_a_rebooted_phone() {
        let mut failures = failures();
        let office = ip("198.51.100.7");
        failures.succeeded(office, b"1000", Time::ZERO);
        let now = Time::from_secs(86_400);
        // The attacker tries many users, and the phone's own user from its own port.
        for number in 0..40u32 {
            exhaust(&mut failures, (office, 7_000), &number.to_be_bytes(), now);
        }
        assert!(failures.delay(office, b"2000", now).is_some());
        assert_eq!(exhaust(&mut failures, (office, 7_000), b"1000", now), 4);
        // The phone comes back from another port.
        let phone = SocketAddr::new(office, 5_062);
        assert!(failures.delay(phone, b"1000", now).is_none());
        // With ever new ports the attacker has the budget of the account.
        let more: u32 = (7_001..7_100)
            .map(|port| exhaust(&mut failures, (office, port), b"1000", now))
            .sum();
        assert_eq!(more, 6);
        assert!(failures.delay(phone, b"1000", now).is_some());
        // A source that was used long ago is like any other.
        let late = now + OWN_LIFETIME;
        assert_eq!(exhaust(&mut failures, (office, 7_000), b"1000", late), 10);
    }

    /// An attacker may have an account of its own.
    #[test]
    fn successes_do_not_reset_the_count_of_a_source() {
        let mut failures = failures();
        let office = ip("198.51.100.7");
        let now = Time::from_secs(1);
        for number in 0..20u32 {
            assert!(failures.delay(office, b"new", now).is_none());
            failures.failed(office, &number.to_be_bytes(), now);
            failures.succeeded(office, b"own", now);
        }
        assert!(failures.delay(office, b"new", now).is_some());
        assert!(failures.delay(office, b"own", now).is_none());
    }

    /// Its account is delayed so much that the failures of its source are forgotten in between.
    #[test]
    fn one_phone_with_a_wrong_password_does_not_delay_its_source() {
        let mut failures = failures();
        let office = ip("198.51.100.7");
        let mut judged = 0;
        for number in 0..2_000u64 {
            let now = Time::from_secs(61 * number);
            failures.succeeded(office, b"good", now);
            if failures.delay(office, b"wrong", now).is_none() {
                judged += 1;
                failures.failed(office, b"wrong", now);
            }
            assert!(failures.delay(office, b"new", now).is_none(), "{number}");
        }
        assert!(judged > 20, "{judged}");
    }

    #[test]
    fn source_of_a_registration_is_that_of_its_account() {
        let mut failures = failures();
        let office = ip("198.51.100.7");
        let each = |number: u64| number.to_string();
        judged(&mut failures, "198.51.100.7", each, 30);
        let now = Time::from_secs(30);
        let phone = SocketAddr::new(office, 5_062);
        assert!(failures.delay(phone, b"1000", now).is_some());
        // As after a restart with stored registrations.
        let known = FailureSource::new(phone, true);
        assert!(failures.delay(known, b"1000", now).is_none());
        for _ in 0..4 {
            failures.failed(known, b"1000", now);
        }
        assert!(failures.delay(known, b"1000", now).is_some());
    }

    #[test]
    fn failure_events_are_rate_limited_and_counted() {
        let mut failures = failures();
        let (mut logged, mut unlogged) = (0, 0);
        for tenth in 0..3_000u64 {
            let now = Time::ZERO + Duration::from_millis(tenth * 100);
            if let Some(more) = failures.take_report(now) {
                logged += 1;
                unlogged += more;
            }
        }
        assert_eq!(logged, 600);
        let rest = failures.take_report(Time::from_secs(300)).unwrap();
        assert_eq!(logged + unlogged + rest, 3_000);
    }

    #[test]
    fn locked_accounts_are_listed_and_removable_by_name() {
        let mut failures = failures();
        let long = "x".repeat(300);
        for name in ["1001", long.as_str(), ""] {
            for number in 0..10u32 {
                let source = IpAddr::from(std::net::Ipv4Addr::from(0xcb00_7100 + number));
                failures.failed(source, name.as_bytes(), Time::from_secs(1));
            }
        }
        let now = Time::from_secs(2);
        let listed = |failures: &AuthenticationFailures| -> Vec<String> {
            let all = failures.lockouts(now);
            all.iter().map(|(who, _)| who.to_string()).collect()
        };
        let short = format!("user:{}", "x".repeat(NAME));
        assert_eq!(listed(&failures), ["user:", "user:1001", &short]);
        let left = failures.lockouts(now)[1].1;
        assert_eq!(left, Duration::from_secs(29));
        assert!(failures.delay(ip("192.0.2.1"), b"1001", now).is_some());
        // Listed names can be removed.
        for text in ["user:1001", &short] {
            let lockout = LockedOut::parse(text).unwrap();
            assert!(failures.remove_lockout(&lockout, now), "{text}");
            assert!(!failures.remove_lockout(&lockout, now), "{text}");
        }
        assert!(failures.delay(ip("192.0.2.1"), b"1001", now).is_none());
        assert!(
            failures
                .delay(ip("192.0.2.1"), long.as_bytes(), now)
                .is_none()
        );
        let other = LockedOut::parse("user:1002").unwrap();
        assert!(!failures.remove_lockout(&other, now));
        // An account at its usual source is locked out there only: the source is listed, and either finds it.
        failures.succeeded(ip("198.51.100.7"), b"1003", Time::ZERO);
        for removed in ["user:1003", "198.51.100.7"] {
            for _ in 0..10 {
                failures.failed(ip("198.51.100.7"), b"1003", now);
            }
            assert!(listed(&failures).contains(&"198.51.100.7".to_owned()));
            assert!(failures.remove_lockout(&LockedOut::parse(removed).unwrap(), now));
            assert!(failures.delay(ip("198.51.100.7"), b"1003", now).is_none());
        }
        for bad in ["", "user:", "nobody", "203.0.113.1:5060"] {
            assert_eq!(LockedOut::parse(bad), None, "{bad}");
        }
        assert_eq!(
            LockedOut::parse("2001:db8::1").map(|one| one.to_string()),
            Some("2001:db8::1".to_owned())
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut failures = failures();
        for number in 0..200_000u32 {
            let source = IpAddr::from(std::net::Ipv4Addr::from(number));
            failures.failed(source, &number.to_be_bytes(), Time::from_secs(1));
            failures.succeeded(source, b"1000", Time::from_secs(1));
        }
        for number in 0..10_000u32 {
            failures.keep_name(&number.to_be_bytes());
        }
        assert!(failures.names.len() <= NAMES && failures.names_before.len() <= NAMES);
        assert!(failures.young.len() <= ENTRIES && failures.old.len() <= ENTRIES);
        assert!(failures.own.len() <= ENTRIES && failures.own_before.len() <= ENTRIES);
    }
}
