//! Sessions of logged-in users: bounded, with an idle time and a longest time. Cookies are stored as hashes only.

use config::ConsoleRole;
use engine::{Entropy, Time};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most sessions; the one unused for longest is ended for a new one.
const MAX_SESSIONS: usize = 1_000;
/// Random bytes of a cookie or CSRF token.
const SECRET_BYTES: usize = 32;

/// Hash of a cookie.
pub(super) type SessionKey = [u8; 32];

/// A session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) user: String,
    /// The password hash with which it began, or the settings of the login: a change of these ends the session.
    pub(super) password_hash: String,
    /// Role granted by a provider; `None`: that of the user of the configuration.
    pub(super) granted: Option<ConsoleRole>,
    pub(super) csrf: String,
    begun: Time,
    used: Time,
}

/// All sessions.
pub(super) struct Sessions {
    all: BTreeMap<SessionKey, Session>,
    entropy: Entropy,
}

/// A random text of letters, digits, `-` and `_`.
pub(super) fn secret(entropy: &mut Entropy) -> String {
    use base64::Engine as _;
    let mut bytes = [0; SECRET_BYTES];
    entropy.fill(&mut bytes);
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// The hash of a cookie.
pub(super) fn key_of(cookie: &str) -> SessionKey {
    Sha256::digest(cookie).into()
}

impl Sessions {
    pub(super) fn new(entropy: Entropy) -> Sessions {
        Sessions {
            all: BTreeMap::new(),
            entropy,
        }
    }

    /// Random texts, as of cookies.
    pub(super) fn secrets(&mut self) -> [String; 3] {
        std::array::from_fn(|_| secret(&mut self.entropy))
    }

    /// Begins a session; returns its cookie and CSRF token.
    pub(super) fn begin(&mut self, user: &str, password_hash: &str, now: Time) -> (String, String) {
        self.start((user, None), password_hash, now)
    }

    /// As [`Sessions::begin`], with a role that a provider has granted.
    pub(super) fn begin_granted(
        &mut self,
        (user, role): (&str, ConsoleRole),
        settings: &str,
        now: Time,
    ) -> (String, String) {
        self.start((user, Some(role)), settings, now)
    }

    fn start(
        &mut self,
        (user, granted): (&str, Option<ConsoleRole>),
        password_hash: &str,
        now: Time,
    ) -> (String, String) {
        if self.all.len() >= MAX_SESSIONS {
            let oldest = self.all.iter().min_by_key(|(_, session)| session.used);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.all.remove(&key);
            }
        }
        let (cookie, csrf) = (secret(&mut self.entropy), secret(&mut self.entropy));
        let session = Session {
            user: user.to_owned(),
            password_hash: password_hash.to_owned(),
            granted,
            csrf: csrf.clone(),
            begun: now,
            used: now,
        };
        self.all.insert(key_of(&cookie), session);
        (cookie, csrf)
    }

    /// The session of a cookie, which counts as used now; those beyond the idle or longest time are ended.
    pub(super) fn find(
        &mut self,
        key: &SessionKey,
        (idle, longest): (Duration, Duration),
        now: Time,
    ) -> Option<Session> {
        let session = self.all.get_mut(key)?;
        if now.since(session.used) > idle || now.since(session.begun) > longest {
            self.all.remove(key);
            return None;
        }
        session.used = now;
        Some(session.clone())
    }

    /// Ends a session.
    pub(super) fn end(&mut self, key: &SessionKey) {
        self.all.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let mut sessions = Sessions::new(Entropy::from_number(1));
        let times = (Duration::from_secs(60), Duration::from_secs(100));
        let (cookie, csrf) = sessions.begin("ann", "h", Time::ZERO);
        assert!(cookie.len() == 43 && csrf.len() == 43 && cookie != csrf);
        let key = key_of(&cookie);
        for second in [50, 100] {
            let found = sessions.find(&key, times, Time::from_secs(second));
            assert_eq!(found.map(|session| session.user).as_deref(), Some("ann"));
        }
        assert!(sessions.find(&key, times, Time::from_secs(101)).is_none());
        let (cookie, _) = sessions.begin("ann", "h", Time::ZERO);
        let key = key_of(&cookie);
        assert!(sessions.find(&key, times, Time::from_secs(61)).is_none());
        let (cookie, _) = sessions.begin("ann", "h", Time::ZERO);
        sessions.end(&key_of(&cookie));
        assert!(sessions.find(&key_of(&cookie), times, Time::ZERO).is_none());
        for second in 0..2 * MAX_SESSIONS as u64 {
            sessions.begin("ann", "h", Time::from_secs(second));
        }
        assert_eq!(sessions.all.len(), MAX_SESSIONS);
    }
}
