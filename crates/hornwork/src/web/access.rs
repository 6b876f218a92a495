//! The caller of a request: a user with a session, a program with a token, or any program of this machine.

use super::oidc::OidcClient;
use super::problem::Problem;
use super::sessions::{SessionKey, Sessions, key_of, secret};
use crate::control::bearer;
use crate::http_client::HttpCredentials;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST};
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use border::registrar::AuthenticationFailures;
use config::{ConsoleRole, ConsoleSpec, ConsoleUser};
use engine::{Entropy, Time, network_of};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq as _;

/// Requests per second of one source, which is also the burst.
const REQUESTS_PER_S: u64 = 100;
/// Sources whose rate is known.
const MAX_SOURCES: usize = 1_024;
/// Longest name and password in a login, characters; in a hash, octets.
pub(super) const MAX_CREDENTIAL: usize = 256;

/// Access rules of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct ConsolePolicy {
    pub(super) users: Vec<ConsoleUser>,
    pub(super) hosts: Vec<String>,
    pub(super) redact_numbers: bool,
    pub(super) session_times: (Duration, Duration),
    pub(super) failures: config::FailureLimits,
    /// Whether the console is served over TLS.
    pub(super) is_secure: bool,
    /// Login by OpenID Connect.
    pub(super) oidc: Option<Arc<OidcClient>>,
}

impl ConsolePolicy {
    pub(super) fn new(spec: &ConsoleSpec, files: &HttpCredentials) -> ConsolePolicy {
        ConsolePolicy {
            users: spec.users.clone(),
            hosts: spec.hosts.clone(),
            redact_numbers: spec.redact_numbers,
            session_times: (spec.session_idle, spec.session_longest),
            failures: spec.failures,
            is_secure: spec.certificate.is_some(),
            oidc: spec
                .oidc
                .as_ref()
                .map(|oidc| Arc::new(OidcClient::new(oidc, files))),
        }
    }

    /// Whether requests need a login; otherwise each program and user of this machine is an operator.
    pub(super) fn has_login(&self) -> bool {
        !self.users.is_empty() || self.oidc.is_some()
    }

    /// Name of the cookie of a session at the console that this request names.
    pub(super) fn cookie_name(&self, headers: &HeaderMap) -> String {
        cookie_name("hornwork", self.is_secure, headers)
    }

    /// The value of `Set-Cookie` for a session; an empty cookie ends it. `headers`: those of the request.
    pub(super) fn set_cookie(&self, cookie: &str, headers: &HeaderMap) -> String {
        let name = self.cookie_name(headers);
        let secure = if self.is_secure { "; Secure" } else { "" };
        let age = match cookie {
            "" => 0,
            _ => self.session_times.1.as_secs(),
        };
        format!("{name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
    }
}

/// Name of a cookie. The prefix has browsers accept it over TLS and for this host only. The port is part of it, because
/// browsers send the cookies of a host to all its ports (RFC 6265 section 8.5): logins at tunnels to two borders would
/// end each other's sessions.
pub(super) fn cookie_name(name: &str, is_secure: bool, headers: &HeaderMap) -> String {
    let prefix = if is_secure { "__Host-" } else { "" };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let port = host
        .and_then(|host| host.rsplit_once(':'))
        .map(|(_, port)| port);
    // The end of an IPv6 address has a bracket.
    let is_port = |port: &&str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.filter(is_port) {
        Some(port) => format!("{prefix}{name}-{port}"),
        None => format!("{prefix}{name}"),
    }
}

/// The user or program behind a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) user: String,
    pub(super) role: ConsoleRole,
    /// Whether numbers are masked.
    pub(super) redact: bool,
    /// CSRF token; `None`: the request has a token of its own and needs none.
    pub(super) csrf: Option<String>,
    pub(super) session: Option<SessionKey>,
}

impl Caller {
    /// Whether bodies, keys and credentials may be shown.
    pub(super) fn sees_bodies(&self) -> bool {
        self.role >= ConsoleRole::Operator
    }
}

/// Names in the client certificate of a connection, which was verified in its handshake; empty without one.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientNames(pub(super) Arc<[String]>);

/// Credentials of a request.
pub(super) struct Presented<'r> {
    pub(super) headers: &'r HeaderMap,
    /// The last input of the user; `None`: the request tells of none.
    pub(super) input: Option<Time>,
    pub(super) certificate: ClientNames,
}

/// Token bucket of a source.
struct SourceRate {
    thousandths: u64,
    at: Time,
}

/// Credentials whose failures are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Credentials<'c> {
    /// The password of a user.
    Password(&'c str),
    /// A token.
    Token,
    /// A login by OpenID Connect.
    SingleSignOn,
}

/// Sessions, failures and rates.
pub(super) struct Access {
    pub(super) sessions: Sessions,
    failures: AuthenticationFailures,
    /// Failures of credentials that name no user, by source only: those of one source must not lock out all others.
    source_failures: AuthenticationFailures,
    rates: BTreeMap<IpAddr, SourceRate>,
    /// CSRF token of requests without login.
    local_csrf: String,
}

/// The limits without that of an account.
fn by_source(limits: config::FailureLimits) -> config::FailureLimits {
    config::FailureLimits { user: 0, ..limits }
}

fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs() + u64::from(delay.subsec_nanos() > 0)
}

impl Access {
    pub(super) fn new(limits: config::FailureLimits, mut entropy: Entropy) -> Access {
        Access {
            failures: AuthenticationFailures::new(limits, &mut entropy),
            source_failures: AuthenticationFailures::new(by_source(limits), &mut entropy),
            local_csrf: secret(&mut entropy),
            sessions: Sessions::new(entropy),
            rates: BTreeMap::new(),
        }
    }

    /// Whether a source may send a further request now.
    pub(super) fn admit(&mut self, source: IpAddr, now: Time) -> bool {
        const FULL: u64 = REQUESTS_PER_S * 1_000;
        let source = network_of(source);
        if self.rates.len() >= MAX_SOURCES && !self.rates.contains_key(&source) {
            // Full buckets tell nothing; if there are none, all sources begin anew.
            self.rates
                .retain(|_, rate| now.since(rate.at) < Duration::from_secs(1));
            if self.rates.len() >= MAX_SOURCES {
                self.rates.clear();
            }
        }
        let rate = self.rates.entry(source).or_insert(SourceRate {
            thousandths: FULL,
            at: now,
        });
        let since = u64::try_from(now.since(rate.at).as_millis()).unwrap_or(u64::MAX);
        let gained = since.saturating_mul(REQUESTS_PER_S);
        if gained > 0 {
            rate.thousandths = rate.thousandths.saturating_add(gained).min(FULL);
            rate.at = now;
        }
        let passes = rate.thousandths >= 1_000;
        rate.thousandths -= if passes { 1_000 } else { 0 };
        passes
    }

    /// The failures of credentials, and the account in them.
    fn failures_of<'c>(
        &mut self,
        credentials: Credentials<'c>,
    ) -> (&mut AuthenticationFailures, &'c [u8]) {
        match credentials {
            Credentials::Password(user) => (&mut self.failures, user.as_bytes()),
            Credentials::Token => (&mut self.source_failures, b"token"),
            Credentials::SingleSignOn => (&mut self.source_failures, b"oidc"),
        }
    }

    /// Seconds for which such credentials from this source are not checked.
    pub(super) fn locked_out(
        &mut self,
        policy: &ConsolePolicy,
        source: IpAddr,
        credentials: Credentials<'_>,
        now: Time,
    ) -> Option<u64> {
        self.failures.set_limits(policy.failures);
        self.source_failures.set_limits(by_source(policy.failures));
        let (failures, account) = self.failures_of(credentials);
        failures.delay(source, account, now).map(whole_seconds)
    }

    /// Counts the outcome of a login or token.
    pub(super) fn judged(
        &mut self,
        good: bool,
        source: IpAddr,
        credentials: Credentials<'_>,
        now: Time,
    ) {
        let (failures, account) = self.failures_of(credentials);
        match good {
            true => failures.succeeded(source, account, now),
            false => failures.failed(source, account, now),
        }
    }

    /// The caller of a request.
    ///
    /// # Errors
    /// No or wrong credentials, or too many wrong ones before.
    pub(super) fn identify(
        &mut self,
        policy: &ConsolePolicy,
        presented: &Presented<'_>,
        source: IpAddr,
        now: Time,
    ) -> Result<Caller, Problem> {
        let headers = presented.headers;
        if !policy.has_login() {
            return Ok(Caller {
                user: "local".to_owned(),
                role: ConsoleRole::Operator,
                redact: false,
                csrf: Some(self.local_csrf.clone()),
                session: None,
            });
        }
        let caller = |user: &ConsoleUser, csrf, session| Caller {
            user: user.name.clone(),
            role: user.role,
            redact: policy.redact_numbers && user.role == ConsoleRole::Viewer,
            csrf,
            session,
        };
        if headers.contains_key(AUTHORIZATION) {
            if let Some(seconds) = self.locked_out(policy, source, Credentials::Token, now) {
                return Err(Problem::later("too many wrong tokens", seconds));
            }
            let digest: [u8; 32] = Sha256::digest(bearer(headers).unwrap_or_default()).into();
            // All tokens are compared, so that the time tells nothing.
            let mut found = None;
            for user in &policy.users {
                let hash = user.token_hash.unwrap_or_default();
                if bool::from(hash.ct_eq(&digest)) && user.token_hash.is_some() {
                    found = Some(caller(user, None, None));
                }
            }
            self.judged(found.is_some(), source, Credentials::Token, now);
            return found
                .ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "token", "wrong token"));
        }
        if let Some(key) = cookie(headers, &policy.cookie_name(headers)).map(key_of)
            && let Some(session) =
                self.sessions
                    .find(&key, policy.session_times, now, presented.input)
        {
            if let Some(role) = session.granted
                && let Some(oidc) = &policy.oidc
                && oidc.fingerprint() == session.password_hash
            {
                return Ok(Caller {
                    user: session.user,
                    role,
                    redact: policy.redact_numbers && role == ConsoleRole::Viewer,
                    csrf: Some(session.csrf),
                    session: Some(key),
                });
            }
            let user = policy.users.iter().find(|user| {
                user.name == session.user
                    && session.granted.is_none()
                    && user.password_hash.as_deref() == Some(&*session.password_hash)
            });
            if let Some(user) = user {
                return Ok(caller(user, Some(session.csrf), Some(key)));
            }
            self.sessions.end(&key);
        }
        let user = policy.users.iter().find(|user| {
            let wanted = user.certificate.as_ref();
            wanted.is_some_and(|wanted| presented.certificate.0.contains(wanted))
        });
        // Browsers present a certificate with forged requests too, so that these need a CSRF token.
        let login = || Problem::new(StatusCode::UNAUTHORIZED, "login", "login required");
        user.map(|user| caller(user, Some(self.certificate_csrf(&user.name)), None))
            .ok_or_else(login)
    }

    /// Random texts for a login.
    pub(super) fn secrets(&mut self) -> [String; 3] {
        self.sessions.secrets()
    }

    /// CSRF token of a user with a certificate, which has no session.
    fn certificate_csrf(&self, user: &str) -> String {
        let keyed = [self.local_csrf.as_bytes(), b" ", user.as_bytes()].concat();
        let digest = Sha256::digest(keyed);
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest)
    }
}

/// The value of a cookie.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let mut pairs = pairs.flat_map(|line| line.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Compares a CSRF token in constant time.
pub(super) fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn policy(users: Vec<ConsoleUser>) -> ConsolePolicy {
        let second = Duration::from_secs(1);
        ConsolePolicy {
            users,
            hosts: Vec::new(),
            redact_numbers: true,
            session_times: (second * 60, second * 600),
            failures: config::FailureLimits {
                source: 3,
                user: 3,
                delay: second * 30,
                longest: second * 3_600,
            },
            is_secure: false,
            oidc: None,
        }
    }

    fn user(name: &str, role: ConsoleRole, token: &str) -> ConsoleUser {
        ConsoleUser {
            name: name.to_owned(),
            role,
            password_hash: Some("hash".to_owned()),
            certificate: (!name.is_empty()).then(|| format!("cn:{name}")),
            token_hash: (!token.is_empty()).then(|| Sha256::digest(token).into()),
        }
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn tokens_cookies_and_changed_users() {
        let source: IpAddr = "127.0.0.1".parse().unwrap();
        let mut policy = policy(vec![
            user("ann", ConsoleRole::Viewer, ""),
            user("bot", ConsoleRole::Admin, "secret"),
        ]);
        let mut access = Access::new(policy.failures, Entropy::from_number(1));
        let status = |access: &mut Access, policy: &ConsolePolicy, headers: &HeaderMap| {
            let presented = Presented {
                headers,
                input: Some(Time::ZERO),
                certificate: ClientNames::default(),
            };
            let found = access.identify(policy, &presented, source, Time::ZERO);
            found
                .map(|caller| (caller.user, caller.role, caller.redact))
                .map_err(|problem| problem.status().as_u16())
        };
        let token = with("authorization", "Bearer secret");
        let bot = ("bot".to_owned(), ConsoleRole::Admin, false);
        assert_eq!(status(&mut access, &policy, &token), Ok(bot));
        assert_eq!(status(&mut access, &policy, &HeaderMap::new()), Err(401));
        let (cookie, _) = access.sessions.begin("ann", "hash", Time::ZERO);
        let cookie = with("cookie", &format!("a=b; hornwork={cookie}"));
        let ann = ("ann".to_owned(), ConsoleRole::Viewer, true);
        assert_eq!(status(&mut access, &policy, &cookie), Ok(ann));
        // A new password ends the session.
        policy.users[0].password_hash = Some("new".to_owned());
        assert_eq!(status(&mut access, &policy, &cookie), Err(401));
        let wrong = with("authorization", "Bearer wrong");
        // A source from which the right token came is not delayed.
        let all: Vec<_> = (0..5)
            .map(|_| status(&mut access, &policy, &wrong).unwrap_err())
            .collect();
        assert_eq!(all, [401; 5]);
    }

    /// A token names no user: failures of one client must not lock out the programs of others.
    #[test]
    fn wrong_tokens_lock_out_their_own_source_only() {
        let policy = policy(vec![user("bot", ConsoleRole::Admin, "secret")]);
        let mut access = Access::new(policy.failures, Entropy::from_number(1));
        let mut status = |token: &str, source: &str| {
            let headers = with("authorization", &format!("Bearer {token}"));
            let presented = Presented {
                headers: &headers,
                input: Some(Time::ZERO),
                certificate: ClientNames::default(),
            };
            let found = access.identify(&policy, &presented, source.parse().unwrap(), Time::ZERO);
            found.map_or_else(|problem| problem.status().as_u16(), |_| 200)
        };
        let all: Vec<u16> = (0..5).map(|_| status("wrong", "192.0.2.1")).collect();
        assert_eq!(all, [401, 401, 401, 429, 429]);
        assert_eq!(status("secret", "192.0.2.2"), 200);
        assert_eq!(status("secret", "192.0.2.1"), 429);
    }

    #[test]
    fn certificates_are_users_and_need_csrf_tokens() {
        let source: IpAddr = "127.0.0.1".parse().unwrap();
        let policy = policy(vec![
            user("ann", ConsoleRole::Admin, ""),
            user("bob", ConsoleRole::Viewer, "secret"),
        ]);
        let mut access = Access::new(policy.failures, Entropy::from_number(1));
        let mut found = |headers: &HeaderMap, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let presented = Presented {
                headers,
                input: Some(Time::ZERO),
                certificate: ClientNames(names.into()),
            };
            let found = access.identify(&policy, &presented, source, Time::ZERO);
            found.map(|caller| (caller.user, caller.csrf)).ok()
        };
        let none = HeaderMap::new();
        let (user, ann) = found(&none, &["dns:x", "cn:ann"]).unwrap();
        assert_eq!(user, "ann");
        let (user, bob) = found(&none, &["cn:bob"]).unwrap();
        assert_eq!(user, "bob");
        assert!(ann.is_some() && bob.is_some() && ann != bob);
        // The kind of the name counts, and a token stands before the certificate.
        assert_eq!(found(&none, &["email:ann", "cn:Ann", "cn:ann "]), None);
        let token = with("authorization", "Bearer secret");
        assert_eq!(found(&token, &["cn:ann"]), Some(("bob".to_owned(), None)));
        let wrong = with("authorization", "Bearer wrong");
        assert_eq!(found(&wrong, &["cn:ann"]), None);
    }

    #[test]
    fn sources_have_rates_of_their_own() {
        let policy = policy(Vec::new());
        let mut access = Access::new(policy.failures, Entropy::from_number(1));
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let admitted = |access: &mut Access, source, ms| {
            let now = Time::from_millis(ms);
            (0..300).filter(|_| access.admit(source, now)).count()
        };
        assert_eq!(admitted(&mut access, one, 0), 100);
        assert_eq!(admitted(&mut access, one, 100), 10);
        for number in 0..5_000_u32 {
            let source = std::net::Ipv4Addr::from(number).into();
            assert!(access.admit(source, Time::ZERO));
        }
        assert!(access.rates.len() <= MAX_SOURCES);
    }

    #[test]
    fn cookie_has_its_attributes() {
        let mut policy = policy(Vec::new());
        let no_port = with("host", "sbc.example.com");
        assert_eq!(
            policy.set_cookie("x", &no_port),
            "hornwork=x; Path=/; HttpOnly; SameSite=Strict; Max-Age=600"
        );
        policy.is_secure = true;
        let ended = policy.set_cookie("", &no_port);
        assert!(ended.starts_with("__Host-hornwork=;"), "{ended}");
        assert!(ended.ends_with("Max-Age=0; Secure"), "{ended}");
    }

    /// Two tunnels to borders, whose consoles have the same host name in a browser.
    #[test]
    fn consoles_at_two_ports_of_a_host_have_cookies_of_their_own() {
        let policy = policy(vec![user("ann", ConsoleRole::Viewer, "")]);
        let mut access = Access::new(policy.failures, Entropy::from_number(1));
        let (cookie, _) = access.sessions.begin("ann", "hash", Time::ZERO);
        let mut is_known = |host: &str, cookies: &str| {
            let mut headers = with("host", host);
            headers.insert(COOKIE, HeaderValue::from_str(cookies).unwrap());
            let presented = Presented {
                headers: &headers,
                input: Some(Time::ZERO),
                certificate: ClientNames::default(),
            };
            let source = "127.0.0.1".parse().unwrap();
            access
                .identify(&policy, &presented, source, Time::ZERO)
                .is_ok()
        };
        // The browser has a session at the other one, too.
        let both = format!("hornwork-8081=x; hornwork-8080={cookie}");
        for host in ["localhost:8080", "[::1]:8080"] {
            assert!(is_known(host, &both), "{host}");
        }
        assert!(!is_known("localhost:8081", &both) && !is_known("localhost", &both));
        assert!(is_known("[::1]", &format!("hornwork={cookie}")));
        let other = with("host", "localhost:8081");
        let set = policy.set_cookie("y", &other);
        assert!(set.starts_with("hornwork-8081=y;"), "{set}");
    }
}
