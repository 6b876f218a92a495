//! `[realm]`: digest authentication of requests.

use super::sink::{Sink, one_line, seconds};
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Digest authentication of requests.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRealm {
    /// Realm in our challenges. Default: `hornwork`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Offered algorithms, best first (RFC 8760). All phones support MD5 alone; many, baresip 1.0 among them, fail if
    /// another algorithm is offered beside it. If your phones do not, use `["SHA-256", "MD5"]`.
    /// Over UDP a response to an unauthenticated source has at most twice the bytes of its request: of several
    /// challenges the last are omitted then (drop reason `sip_challenge_omitted`), and `hornwork check` warns. Keep the
    /// realm short.
    #[schemars(length(min = 1))]
    pub algorithms: Vec<DigestAlgorithm>,
    /// Lifetime of a nonce in seconds.
    #[schemars(range(min = 10, max = 86400))]
    pub nonce_lifetime_s: u32,
    /// Failed authentications from one source (of IPv6, its /64) after which its credentials are no longer checked but
    /// answered with 503 and Retry-After until a delay is over. The delay doubles with each further failure. Successes
    /// in between do not reset the count, because an attacker may have an account; it is forgotten after
    /// `failure_delay_max_s` without a failure. 0: no limit.
    pub source_failures: u32,
    /// The same for one user, from all sources. A flow on which the user is registered is never delayed. A source from
    /// which the user has authenticated in the last seven days, or is registered, has a count of its own for this user:
    /// failures of other sources, and of other users at the same address (phones behind one NAT), do not delay the user
    /// there. Each port of such a source has a third of this number, so that an attacker behind the same NAT stops
    /// itself before it delays the phone. 0: no limit.
    pub user_failures: u32,
    /// First delay in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_s: u32,
    /// Longest delay in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_max_s: u32,
}

impl Default for RawRealm {
    fn default() -> Self {
        RawRealm {
            name: "hornwork".to_owned(),
            algorithms: vec![DigestAlgorithm::Md5],
            nonce_lifetime_s: 300,
            source_failures: 20,
            user_failures: 10,
            failure_delay_s: 30,
            failure_delay_max_s: 3600,
        }
    }
}

/// Digest algorithms.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub enum DigestAlgorithm {
    /// MD5 (RFC 2617).
    #[serde(rename = "MD5")]
    Md5,
    /// SHA-256 (RFC 7616, RFC 8760).
    #[serde(rename = "SHA-256")]
    Sha256,
    /// SHA-512/256 (RFC 7616, RFC 8760).
    #[serde(rename = "SHA-512-256")]
    Sha512T256,
    /// MD5-sess (RFC 2617).
    #[serde(rename = "MD5-sess")]
    Md5Sess,
    /// SHA-256-sess (RFC 7616).
    #[serde(rename = "SHA-256-sess")]
    Sha256Sess,
    /// SHA-512/256-sess (RFC 7616).
    #[serde(rename = "SHA-512-256-sess")]
    Sha512T256Sess,
}

impl DigestAlgorithm {
    /// The name in a challenge.
    pub const fn name(self) -> &'static str {
        match self {
            DigestAlgorithm::Md5 => "MD5",
            DigestAlgorithm::Sha256 => "SHA-256",
            DigestAlgorithm::Sha512T256 => "SHA-512-256",
            DigestAlgorithm::Md5Sess => "MD5-sess",
            DigestAlgorithm::Sha256Sess => "SHA-256-sess",
            DigestAlgorithm::Sha512T256Sess => "SHA-512-256-sess",
        }
    }
}

/// Digest authentication of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm {
    /// The realm in our challenges.
    pub name: String,
    /// Offered algorithms, best first; at least one.
    pub algorithms: Vec<DigestAlgorithm>,
    /// Lifetime of a nonce.
    pub nonce_lifetime: Duration,
    /// Limits of failed authentications.
    pub failures: FailureLimits,
}

/// Bytes of a usual request without credentials, and of a challenge response without its challenges (Via, From, To,
/// Call-ID, CSeq).
const USUAL_REQUEST: usize = 300;
const USUAL_HEAD: usize = 250;

impl Realm {
    /// Bytes of one challenge for each algorithm, as `DigestServer` writes them.
    fn challenge_bytes(&self) -> usize {
        let fixed =
            "WWW-Authenticate: Digest realm=\"\", nonce=\"\", qop=\"auth\", algorithm=\r\n".len();
        let nonce = 32;
        let each = self.algorithms.iter();
        each.map(|algorithm| fixed + nonce + self.name.len() + algorithm.name().len())
            .sum()
    }

    /// The warning for challenges that are too large together: clients that only support the last get none over UDP.
    pub(super) fn omitted_challenges(&self) -> Option<String> {
        let bytes = USUAL_HEAD + self.challenge_bytes();
        (self.algorithms.len() > 1 && bytes > 2 * USUAL_REQUEST).then(|| {
            format!(
                "realm: a response with {} challenges has about {bytes} bytes, more than twice a usual request of {USUAL_REQUEST}; over UDP the last of `algorithms` are omitted then, and clients that support no other cannot authenticate; use fewer `algorithms`, or a shorter `name`",
                self.algorithms.len()
            )
        })
    }
}

/// Limits of failed authentications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureLimits {
    /// Failures of one source that are checked, also with successes in between; 0: no limit.
    pub source: u32,
    /// The same of one account.
    pub user: u32,
    /// First delay; it doubles with each further failure.
    pub delay: Duration,
    /// Longest delay. Failures older than this and the delay are forgotten.
    pub longest: Duration,
}

/// The realm; `has_ha1`: a user has `ha1` instead of a password.
pub(super) fn realm(raw: &RawRealm, has_ha1: bool, sink: &mut Sink<'_>) -> Realm {
    if !one_line(&raw.name) || raw.name.contains(['"', '\\']) {
        sink.report(
            "realm.name",
            "`name` of the realm contains quotes or control characters",
            "write plain text such as a domain",
        );
    }
    Realm {
        name: raw.name.clone(),
        algorithms: algorithms(raw, has_ha1, sink),
        nonce_lifetime: seconds(raw.nonce_lifetime_s),
        failures: failures(raw, sink),
    }
}

fn failures(realm: &RawRealm, sink: &mut Sink<'_>) -> FailureLimits {
    if realm.failure_delay_s > realm.failure_delay_max_s {
        sink.report(
            "realm.failure_delay_s",
            format!(
                "failure_delay_s ({}) is above failure_delay_max_s ({})",
                realm.failure_delay_s, realm.failure_delay_max_s
            ),
            "lower failure_delay_s, or raise failure_delay_max_s",
        );
    }
    FailureLimits {
        source: realm.source_failures,
        user: realm.user_failures,
        delay: seconds(realm.failure_delay_s),
        longest: seconds(realm.failure_delay_max_s),
    }
}

fn algorithms(raw: &RawRealm, has_ha1: bool, sink: &mut Sink<'_>) -> Vec<DigestAlgorithm> {
    let mut algorithms = Vec::new();
    for (index, &algorithm) in raw.algorithms.iter().enumerate() {
        if algorithms.contains(&algorithm) {
            sink.report(
                &format!("realm.algorithms[{index}]"),
                format!("{} is listed twice", algorithm.name()),
                "remove one of the two",
            );
        }
        algorithms.push(algorithm);
    }
    // `ha1` can be verified with MD5 only, and the user is unknown when the challenge is composed.
    if has_ha1 {
        let md5 = |algorithm: &DigestAlgorithm| {
            matches!(algorithm, DigestAlgorithm::Md5 | DigestAlgorithm::Md5Sess)
        };
        if !algorithms.iter().any(md5) {
            sink.report(
                "realm.algorithms",
                "users with `ha1` require MD5, which is not offered",
                "add \"MD5\", or give those users a password",
            );
        }
        algorithms.retain(md5);
    }
    algorithms
}

#[cfg(test)]
mod tests {
    #[test]
    fn challenges_that_are_too_large_together_are_a_warning() {
        let warned = |realm: &str| {
            let text = format!(
                "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\nauthenticate=\"digest\"\n[realm]\n{realm}\n[[user]]\nname=\"1000\"\npassword=\"geheim\"\n"
            );
            let config =
                crate::parse(&text, "t").unwrap_or_else(|error| panic!("{realm}: {error:?}"));
            let warnings = config.warnings();
            warnings.iter().any(|line| line.starts_with("realm: "))
        };
        let long = "name=\"registrar.of-the-long-name.voice.example.com\"\n";
        assert!(!warned(""));
        assert!(!warned("algorithms=[\"SHA-256\",\"MD5\"]"));
        assert!(!warned(&format!("{long}algorithms=[\"SHA-256\",\"MD5\"]")));
        assert!(warned(&format!(
            "{long}algorithms=[\"SHA-512-256\",\"SHA-256\",\"MD5\"]"
        )));
        assert!(warned(
            "algorithms=[\"SHA-256-sess\",\"MD5-sess\",\"SHA-256\",\"MD5\"]"
        ));
    }
}
