//! Credentials for digest challenges (RFC 3261 section 22, RFC 7616, RFC 8760).

use crate::api::Login;
use crate::compose::Lines;
use engine::Entropy;
use protect::digest::{Challenge, ClientSession, Secret, answer_header};
use serde::{Deserialize, Serialize};
use wire::sip::{HeaderId, Message};

/// Realms that are answered in one request, at most.
const MAX_REALMS: usize = 4;

/// A user name, a password, and the challenges answered so far.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredLogin {
    user: Vec<u8>,
    secret: Secret,
    sessions: Vec<(HeaderId, ClientSession)>,
}

impl core::fmt::Debug for StoredLogin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "StoredLogin({}, ...)", self.user.escape_ascii())
    }
}

impl StoredLogin {
    pub(crate) fn new(login: &Login<'_>) -> StoredLogin {
        StoredLogin {
            user: login.user.to_vec(),
            secret: Secret::Password(login.password.to_vec()),
            sessions: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.user.len() + self.sessions.len() * size_of::<ClientSession>()
    }

    /// Stores the challenges of a 401 or 407. `false`: a retry is of no use, because no challenge is supported or the
    /// credentials were refused.
    pub(crate) fn challenged(&mut self, response: &Message<'_>, entropy: &mut Entropy) -> bool {
        let mut accepted = false;
        for id in [HeaderId::WwwAuthenticate, HeaderId::ProxyAuthenticate] {
            for challenge in Challenge::choose(response, id, &self.secret) {
                let header = answer_header(id);
                let old = self.sessions.iter().position(|(which, session)| {
                    *which == header && session.challenge().realm == challenge.realm
                });
                match old.and_then(|at| self.sessions.get(at)) {
                    Some((_, session)) if !session.may_retry(&challenge) => return false,
                    _ => {}
                }
                let Some(session) =
                    ClientSession::new(challenge, &self.user, &self.secret, entropy)
                else {
                    continue;
                };
                accepted = true;
                let has_room = self.sessions.len() < MAX_REALMS;
                match old.and_then(|at| self.sessions.get_mut(at)) {
                    Some(entry) => entry.1 = session,
                    None if has_room => self.sessions.push((header, session)),
                    None => return false,
                }
            }
        }
        accepted
    }

    /// Writes Authorization and Proxy-Authorization for a request.
    pub(crate) fn write(&mut self, method: &[u8], uri: &[u8], body: &[u8], lines: &mut Lines<'_>) {
        for (header, session) in &mut self.sessions {
            lines.name(*header);
            session.write_credentials(method, uri, body, lines.out);
            lines.end();
        }
    }
}
