//! Credentials that the trunk of an interface verifies (`authenticate = "trunk"`). The border forwards them; the
//! response of the trunk tells whether they were right, so that wrong ones are logged and limited like those that the
//! border verifies itself.

use super::{Authority, Claim, FailureSource};
use core::time::Duration;
use engine::{Reason, Time};
use smallvec::SmallVec;
use wire::sip::{HeaderId, Message, Method, unquote};

/// Maximum number of credentials in a request; each counts.
const MAX_USERS: usize = 8;

#[derive(Debug)]
struct TrunkUser {
    name: Box<[u8]>,
    nonce: Box<[u8]>,
}

/// Digest credentials of a request for a trunk.
#[derive(Debug)]
pub struct TrunkCredentials {
    users: SmallVec<[TrunkUser; 1]>,
    registers: bool,
}

/// Credentials for a trunk and the claims of their request.
#[derive(Clone, Copy, Debug)]
pub struct TrunkClaim<'a> {
    /// The credentials.
    pub credentials: &'a TrunkCredentials,
    /// The address of record: that in To of a REGISTER, otherwise that in From.
    pub aor: &'a str,
    /// Source and registrations.
    pub claim: Claim,
    /// Whether the trunk authenticates the request: it has challenged the same one before. A 2xx to a request that a
    /// trunk accepts from any sender tells nothing about its credentials, which may be invented.
    pub authenticated: bool,
}

impl TrunkCredentials {
    /// The digest credentials of a request; `None` if it has none.
    ///
    /// # Errors
    /// More credentials than one request needs.
    pub fn of(request: &Message<'_>) -> Result<Option<TrunkCredentials>, Reason> {
        let all = [HeaderId::Authorization, HeaderId::ProxyAuthorization]
            .into_iter()
            .flat_map(|id| request.credentials(id))
            .flatten()
            .filter(|credentials| credentials.is_digest());
        let mut users = SmallVec::new();
        for credentials in all {
            if users.len() == MAX_USERS {
                return Err(Reason::UnreadableCredentials);
            }
            let value = |name: &[u8]| {
                let value = credentials.params.get(name).map(unquote);
                value.unwrap_or_default().into_owned().into_boxed_slice()
            };
            users.push(TrunkUser {
                name: value(b"username"),
                nonce: value(b"nonce"),
            });
        }
        Ok((!users.is_empty()).then(|| TrunkCredentials {
            users,
            registers: request.method() == Method::Register,
        }))
    }
}

/// Verdict of a trunk about credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrunkVerdict {
    Accepted,
    Refused,
    /// The response does not depend on them, or the nonce has expired.
    Unknown,
}

impl TrunkClaim<'_> {
    /// A flow on which the user itself is registered is never delayed, as where the border verifies.
    fn is_exempt(&self, user: &TrunkUser) -> bool {
        self.claim.registered && *user.name == *self.aor.as_bytes()
    }

    /// Users have other names than their addresses of record at many systems. So a host from which the address of
    /// record is registered has a count of its own for each user, which failures elsewhere do not exhaust.
    fn source(&self) -> FailureSource {
        FailureSource::new(self.claim.source, self.claim.registered_host)
    }

    fn verdict(&self, response: &Message<'_>) -> TrunkVerdict {
        match response.status() {
            200..=299 if self.authenticated => TrunkVerdict::Accepted,
            401 | 407 if !is_stale(response) => TrunkVerdict::Refused,
            // FreeSWITCH answers wrong passwords so. To an INVITE of a registered phone it also means a barred number.
            403 if self.credentials.registers || !self.claim.registered => TrunkVerdict::Refused,
            _ => TrunkVerdict::Unknown,
        }
    }
}

/// Whether the response challenges because the nonce has expired.
fn is_stale(response: &Message<'_>) -> bool {
    [HeaderId::WwwAuthenticate, HeaderId::ProxyAuthenticate]
        .into_iter()
        .flat_map(|id| response.credentials(id))
        .flatten()
        .filter_map(|challenge| challenge.params.get(b"stale").map(unquote))
        .any(|stale| stale.eq_ignore_ascii_case(b"true"))
}

impl Authority {
    /// User and remaining delay of credentials that are not forwarded because of previous failures.
    pub fn trunk_delay(&self, of: TrunkClaim<'_>, now: Time) -> Option<(String, Duration)> {
        let mut users = of.credentials.users.iter();
        users.find_map(|user| {
            let delay = self.failures.delay(of.source(), &user.name, now)?;
            (!of.is_exempt(user)).then(|| (text(&user.name), delay))
        })
    }

    /// Counts the result of credentials by the response of the trunk. Returns the user if they were refused.
    pub fn trunk_answered(
        &mut self,
        of: TrunkClaim<'_>,
        response: &Message<'_>,
        now: Time,
    ) -> Option<String> {
        let (source, registers) = (of.claim.source.ip(), of.credentials.registers);
        let users = of.credentials.users.iter();
        match of.verdict(response) {
            TrunkVerdict::Accepted => {
                for user in users {
                    let accepted = (&*user.nonce, registers);
                    self.failures.accepted(source, &user.name, accepted, now);
                }
                None
            }
            TrunkVerdict::Unknown => None,
            TrunkVerdict::Refused => {
                // A nonce that this user was accepted with has expired; not every system says so by `stale`.
                let wrong = users.filter(|user| {
                    let nonce = (&*user.nonce, registers);
                    !self.failures.has_accepted(source, &user.name, nonce)
                });
                let wrong: SmallVec<[&TrunkUser; 1]> = wrong.collect();
                for user in wrong.iter().filter(|user| !of.is_exempt(user)) {
                    self.failures.failed(of.source(), &user.name, now);
                }
                wrong.first().map(|user| text(&user.name))
            }
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
