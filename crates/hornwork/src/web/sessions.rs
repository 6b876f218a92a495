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
    /// The last input of its user.
    used: Time,
}

impl Session {
    fn is_over(&self, (idle, longest): (Duration, Duration), now: Time) -> bool {
        now.since(self.used) > idle || now.since(self.begun) > longest
    }
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

    /// The session of a cookie; one beyond the idle or longest time is ended. `input`: the last input of its user,
    /// which counts as use unless it came after the idle time; `None`: the request tells of none.
    pub(super) fn find(
        &mut self,
        key: &SessionKey,
        times: (Duration, Duration),
        now: Time,
        input: Option<Time>,
    ) -> Option<Session> {
        let session = self.all.get_mut(key)?;
        if let Some(at) = input.filter(|at| at.since(session.used) <= times.0) {
            session.used = session.used.max(at);
        }
        if session.is_over(times, now) {
            self.all.remove(key);
            return None;
        }
        Some(session.clone())
    }

    /// Ends the sessions beyond the idle or longest time; returns them.
    pub(super) fn expire(&mut self, times: (Duration, Duration), now: Time) -> Vec<SessionKey> {
        let over = self.all.iter().filter(|(_, one)| one.is_over(times, now));
        let over: Vec<SessionKey> = over.map(|(key, _)| *key).collect();
        for key in &over {
            self.all.remove(key);
        }
        over
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
        let at = |second| (Time::from_secs(second), Some(Time::from_secs(second)));
        for second in [50, 100] {
            let (now, input) = at(second);
            let found = sessions.find(&key, times, now, input);
            assert_eq!(found.map(|session| session.user).as_deref(), Some("ann"));
        }
        let (now, input) = at(101);
        assert!(sessions.find(&key, times, now, input).is_none());
        let (cookie, _) = sessions.begin("ann", "h", Time::ZERO);
        let key = key_of(&cookie);
        let (now, input) = at(61);
        assert!(sessions.find(&key, times, now, input).is_none());
        let (cookie, _) = sessions.begin("ann", "h", Time::ZERO);
        sessions.end(&key_of(&cookie));
        let (now, input) = at(0);
        assert!(sessions.find(&key_of(&cookie), times, now, input).is_none());
        for second in 0..2 * MAX_SESSIONS as u64 {
            sessions.begin("ann", "h", Time::from_secs(second));
        }
        assert_eq!(sessions.all.len(), MAX_SESSIONS);
    }

    /// A page that refreshes itself asks every few seconds.
    #[test]
    fn session_ends_without_input_although_its_page_asks() {
        let mut sessions = Sessions::new(Entropy::from_number(1));
        let times = (Duration::from_secs(60), Duration::from_secs(1_000));
        let second = |second: u64| Time::from_secs(second);
        let (cookie, _) = sessions.begin("ann", "h", second(0));
        let key = key_of(&cookie);
        let mut ask = |now, input: Option<u64>| {
            let found = sessions.find(&key, times, second(now), input.map(second));
            found.is_some()
        };
        // The last input was at 59; the stream of figures tells of none.
        assert!(ask(30, Some(0)) && ask(58, None) && ask(75, Some(59)));
        assert!(ask(119, Some(59)) && ask(119, None));
        // An input after the idle time does not bring it back: that may be another person.
        assert!(!ask(120, Some(120)) && !ask(121, Some(121)));
        let begin = |sessions: &mut Sessions, at| key_of(&sessions.begin("ann", "h", second(at)).0);
        let (old, new) = (begin(&mut sessions, 200), begin(&mut sessions, 230));
        assert!(sessions.expire(times, second(260)).is_empty());
        assert_eq!(sessions.expire(times, second(261)), [old]);
        assert!(sessions.find(&new, times, second(261), None).is_some());
    }
}
