//! Digest authentication of configured users.

use super::{AuthenticationFailures, FailureSource, LockedOut};
use crate::headers::is_anonymous;
use crate::request::user_at;
use config::{Config, DigestAlgorithm, UserSecret, UserSpec};
use core::time::Duration;
use engine::{Entropy, Reason, Time};
use protect::digest::{
    Algorithm, DigestServer, Hash, Hex, NonceKey, PresentedCredentials, Refusal, ServerConfig,
};
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message, Method};

/// Challenges and verification for the realm of a configuration.
#[derive(Debug)]
pub struct Authority {
    server: DigestServer,
    algorithms: Vec<Algorithm>,
    key: NonceKey,
    pub(super) failures: AuthenticationFailures,
    entropy: Entropy,
}

/// Result of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Authenticated user, which may use this address of record: its name, or one of its numbers.
    Authenticated(String),
    /// No usable credentials: challenge.
    Required {
        /// 401 for REGISTER, otherwise 407.
        status: u16,
        /// One challenge per algorithm.
        headers: Vec<(HeaderId, Vec<u8>)>,
    },
    /// Wrong credentials.
    Failed {
        /// Status.
        status: u16,
        /// Challenges.
        headers: Vec<(HeaderId, Vec<u8>)>,
        /// User name in the credentials.
        user: String,
        /// Reason for the log; the response does not contain it.
        why: Reason,
    },
    /// Credentials are not checked, because of previous failures.
    Delayed {
        /// User name in the credentials.
        user: String,
        /// Retry-After in seconds.
        after: Duration,
    },
}

/// Claims of a request in addition to its credentials.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Source address.
    pub source: SocketAddr,
    /// Whether the claimed address of record is registered on that flow.
    pub registered: bool,
    /// Whether it is registered from the host of that source, on this flow or another one.
    pub registered_host: bool,
}

/// Maximum number of nonces with recorded use.
const NONCES: usize = 100_000;

impl Authority {
    /// For the realm of `config`.
    pub fn new(config: &Config, mut entropy: Entropy) -> Authority {
        let mut key = [0; 32];
        entropy.fill(&mut key);
        let key = NonceKey(key);
        let algorithms = algorithms(config);
        let server = DigestServer::new(
            server_config(config, &algorithms),
            key.clone(),
            &mut entropy,
        );
        Authority {
            server,
            algorithms,
            key,
            failures: AuthenticationFailures::new(config.realm.failures, &mut entropy),
            entropy,
        }
    }

    /// Applies a new configuration. Issued nonces stay valid if the settings of the realm are unchanged.
    pub fn reload(&mut self, config: &Config, before: &Config) {
        self.failures.set_limits(config.realm.failures);
        if config.realm != before.realm {
            self.algorithms = algorithms(config);
            let settings = server_config(config, &self.algorithms);
            self.server = DigestServer::new(settings, self.key.clone(), &mut self.entropy);
        }
    }

    /// Authenticates a request. The address of record (To) of a REGISTER, or From of other requests, must belong to the
    /// user, unless it withholds its number: see [`Authority::withheld_aor`].
    pub fn check(
        &mut self,
        config: &Config,
        request: &Message<'_>,
        claim: Claim,
        now: Time,
    ) -> Authentication {
        let registers = request.method() == Method::Register;
        let (status, challenge, credentials) = match registers {
            true => (401, HeaderId::WwwAuthenticate, HeaderId::Authorization),
            false => (
                407,
                HeaderId::ProxyAuthenticate,
                HeaderId::ProxyAuthorization,
            ),
        };
        let failed = |status, user: &str, why| Authentication::Failed {
            status,
            headers: Vec::new(),
            user: user.to_owned(),
            why,
        };
        let presented = match self.server.presented(request, credentials) {
            Ok(presented) => presented,
            Err(Refusal::Malformed) => return failed(400, "", Reason::UnreadableCredentials),
            Err(_) => return self.challenge(status, challenge, false, now),
        };
        let name = String::from_utf8_lossy(&presented.username).into_owned();
        if !presented.is_for(request.request_uri()) {
            return failed(400, &name, Reason::ForeignCredentials);
        }
        let user = account_of(config, &presented);
        let address = match registers {
            true => request.to(),
            false => request.from(),
        };
        let aor = address.ok().and_then(|address| address.parse_uri()?.user);
        let aor = aor.map(wire::sip::percent_decode);
        let aor = aor.map(|aor| String::from_utf8_lossy(&aor).into_owned());
        let withheld = user.filter(|_| !registers);
        let withheld = withheld.and_then(|user| withheld_aor(user, request));
        let aor = withheld.or(aor);
        let owns = |user: &UserSpec| aor.as_deref().is_some_and(|aor| user.is_called(aor));
        let may_be = user.is_some_and(owns);
        // A flow on which the account is registered is never delayed: an attacker learns nothing new from there.
        let exempt = claim.registered && may_be;
        let source = FailureSource::new(claim.source, claim.registered_host && may_be);
        let delay = self.failures.delay(source, name.as_bytes(), now);
        if let Some(after) = delay.filter(|_| !exempt) {
            return Authentication::Delayed { user: name, after };
        }
        let secret = user.map(|user| secret(&user.secret));
        let verdict = self.server.verify(
            &presented,
            &presented.username,
            secret.as_ref(),
            request.method().as_bytes(),
            request.body(),
            now,
        );
        match verdict {
            Ok(()) => {}
            Err(Refusal::Stale) => return self.challenge(status, challenge, true, now),
            Err(_) => {
                if !exempt {
                    self.failures.failed(source, name.as_bytes(), now);
                }
                let why = match user {
                    Some(_) => Reason::WrongPassword,
                    None => Reason::UnknownUser,
                };
                return match self.challenge(status, challenge, false, now) {
                    Authentication::Required { status, headers } => Authentication::Failed {
                        status,
                        headers,
                        user: name,
                        why,
                    },
                    other => other,
                };
            }
        }
        self.failures
            .succeeded(claim.source.ip(), name.as_bytes(), now);
        match aor {
            Some(aor) if may_be => Authentication::Authenticated(aor),
            _ => failed(403, &name, Reason::ForeignAddressOfRecord),
        }
    }

    /// The address of record of a request, other than REGISTER, whose From is anonymous (RFC 3323 section 4.1.1.3):
    /// that of the account in its credentials, which are not verified here. `None`: From is not anonymous, or there is
    /// no such account.
    pub fn withheld_aor(&self, config: &Config, request: &Message<'_>) -> Option<String> {
        let presented = self
            .server
            .presented(request, HeaderId::ProxyAuthorization)
            .ok()?;
        withheld_aor(account_of(config, &presented)?, request)
    }

    /// See [`AuthenticationFailures::lockouts`].
    pub fn lockouts(&self, now: Time) -> Vec<(LockedOut, Duration)> {
        self.failures.lockouts(now)
    }

    /// See [`AuthenticationFailures::remove_lockout`].
    pub fn remove_lockout(&mut self, lockout: &LockedOut, now: Time) -> bool {
        self.failures.remove_lockout(lockout, now)
    }

    /// Whether to log a failure: see [`AuthenticationFailures::take_report`].
    pub fn report_failure(&mut self, now: Time) -> Option<u64> {
        self.failures.take_report(now)
    }

    fn challenge(&mut self, status: u16, id: HeaderId, stale: bool, now: Time) -> Authentication {
        let mut headers = Vec::with_capacity(self.algorithms.len());
        for &algorithm in &self.algorithms {
            let mut value = Vec::with_capacity(200);
            self.server
                .write_challenge(algorithm, stale, now, &mut self.entropy, &mut value);
            headers.push((id, value));
        }
        Authentication::Required { status, headers }
    }
}

/// The account that credentials name.
fn account_of<'c>(
    config: &'c Config,
    presented: &PresentedCredentials<'_>,
) -> Option<&'c UserSpec> {
    // Hashed names are not offered.
    let name = std::str::from_utf8(&presented.username).ok()?;
    config.users.get(name).filter(|_| !presented.user_hashed)
}

/// The address of record of a user whose request has an anonymous From: the first preferred identity that belongs to
/// the user (RFC 3325 section 6), otherwise its name.
fn withheld_aor(user: &UserSpec, request: &Message<'_>) -> Option<String> {
    let from = request.from().ok().filter(is_anonymous)?;
    if !from.parse_uri()?.user?.eq_ignore_ascii_case(b"anonymous") {
        return None;
    }
    let mut preferred = request
        .name_addrs(HeaderId::PPreferredIdentity)
        .flatten()
        .filter_map(|address| user_at(&address));
    let own = preferred.find(|aor| user.is_called(aor));
    Some(own.map_or_else(|| user.name.clone(), String::from))
}

fn algorithms(config: &Config) -> Vec<Algorithm> {
    let each = config.realm.algorithms.iter();
    each.map(|algorithm| match algorithm {
        DigestAlgorithm::Md5 => Algorithm::MD5,
        DigestAlgorithm::Sha256 => Algorithm::SHA256,
        DigestAlgorithm::Sha512T256 => Algorithm::SHA512_256,
        DigestAlgorithm::Md5Sess => session(Algorithm::MD5),
        DigestAlgorithm::Sha256Sess => session(Algorithm::SHA256),
        DigestAlgorithm::Sha512T256Sess => session(Algorithm::SHA512_256),
    })
    .collect()
}

/// The `-sess` variant.
fn session(algorithm: Algorithm) -> Algorithm {
    Algorithm {
        session: true,
        ..algorithm
    }
}

fn server_config(config: &Config, algorithms: &[Algorithm]) -> ServerConfig {
    ServerConfig {
        realm: config.realm.name.clone().into_bytes(),
        algorithms: algorithms.to_vec(),
        // Several challenges must fit into a response of limited size (RFC 3261 section 26.3.2.4).
        auth_int: algorithms.len() == 1,
        without_qop: false,
        nonce_lifetime: config.realm.nonce_lifetime,
        nonces: NONCES,
    }
}

fn secret(secret: &UserSecret) -> protect::digest::Secret {
    match secret {
        UserSecret::Password(password) => {
            protect::digest::Secret::Password(password.clone().into_bytes())
        }
        UserSecret::Ha1(ha1) => protect::digest::Secret::Ha1(
            Hex::from_digits(ha1.as_bytes())
                .map(|hex| (Hash::Md5, hex))
                .into_iter()
                .collect(),
        ),
    }
}
