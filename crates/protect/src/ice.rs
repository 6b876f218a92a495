//! ICE (RFC 8445): the lite agent of a border, which has a public address and answers checks, and the full one, which sends them.
//!
//! A lite agent ([`Lite`]) has host candidates only, sends no checks and is always the controlled one. It answers each check that knows
//! its credentials, remembers where those came from, and lets the controlling agent nominate the pair that media takes.
//! A full agent ([`Agent`]) may be of either role.

mod agent;
mod candidate;

pub use agent::{Agent, Event, FAILURE_PATIENCE, MAX_LOCAL, MAX_PAIRS, MAX_REMOTE, PACE, Path};
pub use agent::{RETRANSMIT, Role};
pub use candidate::{Candidate, Kind, priority};

use crate::cipher::HmacSha1;
use crate::stun::{Builder, Message, attribute, message_type};
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Entropy, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Characters of user fragment and password (RFC 8839 section 5.4).
const ICE_CHARS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Addresses whose checks were right that are kept.
const SOURCES: usize = 16;
/// Answers that wait to be taken.
const ANSWERS: usize = 32;
/// Without a check for so long the peer's consent is gone (RFC 7675 section 5.1).
pub const CONSENT: Duration = Duration::from_secs(30);

/// User fragment and password of one side.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    fragment: String,
    password: String,
}

impl Credentials {
    /// New ones: 48 bits of fragment, 144 of password, more than RFC 8445 section 5.3 asks for.
    pub fn generate(entropy: &mut Entropy) -> Credentials {
        let mut text = |length: usize| -> String {
            let mut bytes = vec![0; length];
            entropy.fill(&mut bytes);
            let chars = bytes
                .iter()
                .filter_map(|byte| ICE_CHARS.get(usize::from(byte & 63)));
            chars.map(|byte| char::from(*byte)).collect()
        };
        Credentials {
            fragment: text(8),
            password: text(24),
        }
    }

    /// Those of a session description: `None` where a length or a character is not allowed (RFC 8839 section 5.4).
    pub fn parse(fragment: &str, password: &str) -> Option<Credentials> {
        let allowed = |text: &str, least: usize| {
            (least..=256).contains(&text.len())
                && text.bytes().all(|byte| ICE_CHARS.contains(&byte))
        };
        (allowed(fragment, 4) && allowed(password, 22)).then(|| Credentials {
            fragment: fragment.to_owned(),
            password: password.to_owned(),
        })
    }

    /// For `a=ice-ufrag`.
    pub fn fragment(&self) -> &str {
        &self.fragment
    }

    /// For `a=ice-pwd`. Secret.
    pub fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.fragment)
    }
}

/// The value of an `a=candidate` attribute for an address of ours (RFC 8839 section 5.1).
pub fn host_candidate(
    foundation: u32,
    component: u8,
    preference: u16,
    address: SocketAddr,
) -> String {
    let candidate = Candidate {
        foundation: foundation.to_string(),
        component,
        priority: priority(Kind::Host, preference, component),
        address,
        kind: Kind::Host,
    };
    candidate.to_string()
}

/// Whether a request knows our credentials and says nothing that we do not know (RFC 8489 section 9.1.3).
///
/// # Errors
/// The status to answer it with.
fn judge(
    message: &Message<'_>,
    local: &Credentials,
    key: &HmacSha1,
    remote: Option<&Credentials>,
) -> Result<(), u16> {
    let Some(name) = message.attribute(attribute::USERNAME) else {
        return Err(400);
    };
    if !message.has_integrity() {
        return Err(400);
    }
    let colon = name.iter().position(|byte| *byte == b':');
    let (ours, theirs) = match colon {
        Some(at) => (name.get(..at), name.get(at + 1..)),
        None => (None, None),
    };
    let known = ours == Some(local.fragment.as_bytes())
        && remote.is_none_or(|remote| theirs == Some(remote.fragment.as_bytes()));
    if !known || !message.is_authentic(key) {
        return Err(401);
    }
    match message.unknown_attributes().next() {
        Some(_) => Err(420),
        None => Ok(()),
    }
}

/// The error response with this status.
fn refusal(message: &Message<'_>, code: u16, key: &HmacSha1) -> Vec<u8> {
    let reason = match code {
        400 => "Bad Request",
        401 => "Unauthorized",
        420 => "Unknown Attribute",
        _ => "Role Conflict",
    };
    let mut answer = Builder::new(message_type::BINDING_ERROR, message.transaction());
    answer = answer.error(code, reason);
    if code == 420 {
        let unknown: Vec<u8> = message
            .unknown_attributes()
            .take(16)
            .flat_map(u16::to_be_bytes)
            .collect();
        answer = answer.attribute(attribute::UNKNOWN_ATTRIBUTES, &unknown);
    }
    // Only who proved to know the password gets an answer that proves that we do.
    let proved = matches!(code, 420 | 487);
    answer.finish(proved.then_some(key))
}

/// Where a check came from that knew our credentials.
#[derive(Clone, Copy, Debug)]
struct Source {
    address: SocketAddr,
    /// What the peer says its candidate's priority is.
    priority: u32,
    last: Time,
    nominated: bool,
}

/// A lite agent for one component of one stream.
pub struct Lite {
    local: Credentials,
    key: HmacSha1,
    remote: Option<Credentials>,
    sources: Vec<Source>,
    selected: Option<SocketAddr>,
    answers: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Lite {
    /// An agent with the given credentials. Those of the peer may come later, with the answer.
    pub fn new(local: Credentials, remote: Option<Credentials>) -> Lite {
        Lite {
            key: HmacSha1::new(local.password.as_bytes()),
            local,
            remote,
            sources: Vec::new(),
            selected: None,
            answers: VecDeque::new(),
        }
    }

    /// Our credentials.
    pub fn local(&self) -> &Credentials {
        &self.local
    }

    /// The peer's credentials, where they are known.
    pub fn remote(&self) -> Option<&Credentials> {
        self.remote.as_ref()
    }

    /// The peer's credentials, as signalling has them.
    pub fn set_remote(&mut self, remote: Credentials) {
        self.remote = Some(remote);
    }

    /// Starts over with new credentials (RFC 8445 section 9). What was selected stays in use until the peer nominates again.
    pub fn restart(&mut self, local: Credentials, remote: Option<Credentials>) {
        self.key = HmacSha1::new(local.password.as_bytes());
        self.local = local;
        self.remote = remote;
        self.sources.clear();
    }

    /// Sends nothing more to the pair that was nominated, whose consent has expired; `true`: there was one.
    pub fn forget(&mut self) -> bool {
        self.selected.take().is_some()
    }

    /// Takes in a STUN datagram that came from `source`; the answer comes out of [`Lite::next_answer`].
    ///
    /// # Errors
    /// What to count it as where it is no good check. Some of these are answered with an error all the same.
    pub fn feed(
        &mut self,
        datagram: &[u8],
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let message = Message::parse(datagram).ok_or(DropReason::StunMalformed)?;
        match message.message_type() {
            message_type::BINDING_REQUEST => {}
            // A keep-alive (RFC 8445 section 11): nothing to do, nothing to answer.
            message_type::BINDING_INDICATION => return Ok(()),
            _ => return Err(DropReason::StunUnexpected),
        }
        let Err(code) = self.judge(&message) else {
            self.note(&message, source, now);
            let answer = Builder::new(message_type::BINDING_SUCCESS, message.transaction())
                .mapped_address(source)
                .finish(Some(&self.key));
            self.answer(source, answer);
            return Ok(());
        };
        let answer = refusal(&message, code, &self.key);
        self.answer(source, answer);
        Err(DropReason::StunUnauthorised)
    }

    /// The next answer and where to.
    pub fn next_answer(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.answers.pop_front()
    }

    /// Where media goes: the peer's address of the nominated pair.
    pub fn selected(&self) -> Option<SocketAddr> {
        self.selected
    }

    /// Whether media from there may be taken: a check came from it that knew our credentials.
    pub fn admits(&self, source: SocketAddr) -> bool {
        self.selected == Some(source) || self.sources.iter().any(|known| known.address == source)
    }

    /// Whether the peer has sent a check within [`CONSENT`]; without one nothing more may be sent to it (RFC 7675).
    pub fn consents(&self, now: Time) -> bool {
        self.sources
            .iter()
            .any(|source| now.since(source.last) <= CONSENT)
    }

    /// RFC 8489 section 9.1.3, RFC 8445 section 7.3.
    fn judge(&self, message: &Message<'_>) -> Result<(), u16> {
        judge(message, &self.local, &self.key, self.remote.as_ref())?;
        match message.attribute(attribute::ICE_CONTROLLED) {
            Some(_) => Err(487),
            None => Ok(()),
        }
    }

    /// Remembers where a good check came from, and whether it nominates.
    fn note(&mut self, message: &Message<'_>, address: SocketAddr, now: Time) {
        let priority = message.number(attribute::PRIORITY).unwrap_or(0);
        let nominates = message.attribute(attribute::USE_CANDIDATE).is_some();
        let known = self
            .sources
            .iter()
            .position(|source| source.address == address);
        if known.is_none() && self.sources.len() >= SOURCES {
            // The one that was silent for longest goes; the selected one stays.
            let oldest = self
                .sources
                .iter()
                .enumerate()
                .filter(|(_, source)| Some(source.address) != self.selected)
                .min_by_key(|(_, source)| source.last)
                .map(|(at, _)| at);
            if let Some(at) = oldest {
                self.sources.remove(at);
            }
        }
        let fresh = Source {
            address,
            priority,
            last: now,
            nominated: nominates,
        };
        match known.and_then(|at| self.sources.get_mut(at)) {
            Some(source) => {
                *source = Source {
                    nominated: nominates || source.nominated,
                    ..fresh
                }
            }
            None => self.sources.push(fresh),
        }
        if nominates {
            self.select(address, priority);
        }
    }

    /// Of several nominated pairs the one of highest priority is used (agents of RFC 5245 nominate every pair that works); among
    /// equals, and when the former fell silent, the latest.
    fn select(&mut self, address: SocketAddr, priority: u32) {
        let former = self
            .sources
            .iter()
            .find(|source| Some(source.address) == self.selected && source.nominated);
        if former.is_none_or(|former| priority >= former.priority) {
            self.selected = Some(address);
        }
    }

    fn answer(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        if self.answers.len() < ANSWERS {
            self.answers.push_back((to, bytes));
        }
    }
}

impl fmt::Debug for Lite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lite")
            .field("local", &self.local)
            .field("selected", &self.selected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer {
        key: HmacSha1,
        name: String,
    }

    fn pair() -> (Lite, Peer) {
        let mut entropy = Entropy::from_number(1);
        let local = Credentials::generate(&mut entropy);
        let remote = Credentials::generate(&mut entropy);
        let peer = Peer {
            key: HmacSha1::new(local.password().as_bytes()),
            name: format!("{}:{}", local.fragment(), remote.fragment()),
        };
        (Lite::new(local, Some(remote)), peer)
    }

    impl Peer {
        fn check(&self, priority: u32, nominate: bool) -> Vec<u8> {
            let mut builder = Builder::new(message_type::BINDING_REQUEST, [9; 12])
                .attribute(attribute::USERNAME, self.name.as_bytes())
                .attribute(attribute::PRIORITY, &priority.to_be_bytes())
                .attribute(attribute::ICE_CONTROLLING, &[1; 8]);
            if nominate {
                builder = builder.attribute(attribute::USE_CANDIDATE, &[]);
            }
            builder.finish(Some(&self.key))
        }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], port))
    }

    fn code(lite: &mut Lite) -> Option<u16> {
        let (_, answer) = lite.next_answer()?;
        Message::parse(&answer).unwrap().error_code()
    }

    #[test]
    fn a_check_is_answered_and_a_pair_nominated() {
        let (mut lite, peer) = pair();
        let now = Time::from_secs(1);
        lite.feed(&peer.check(100, false), address(1), now).unwrap();
        let (to, answer) = lite.next_answer().unwrap();
        let answer = Message::parse(&answer).unwrap();
        assert_eq!(
            (to, answer.mapped_address()),
            (address(1), Some(address(1)))
        );
        assert_eq!(answer.message_type(), message_type::BINDING_SUCCESS);
        assert_eq!(answer.transaction(), [9; 12]);
        assert!(answer.is_authentic(&peer.key));
        assert_eq!(lite.selected(), None);
        assert!(lite.admits(address(1)) && !lite.admits(address(2)));
        lite.feed(&peer.check(100, true), address(1), now).unwrap();
        assert_eq!(lite.selected(), Some(address(1)));
        lite.feed(&peer.check(50, true), address(2), now).unwrap();
        assert_eq!(lite.selected(), Some(address(1)), "of lower priority");
        lite.feed(&peer.check(200, true), address(3), now).unwrap();
        assert_eq!(lite.selected(), Some(address(3)));
        assert!(lite.consents(now + CONSENT));
        assert!(!lite.consents(now + CONSENT + Duration::from_millis(1)));
        let mut entropy = Entropy::from_number(2);
        lite.restart(Credentials::generate(&mut entropy), None);
        assert_eq!(lite.selected(), Some(address(3)), "media goes on");
        let old = lite.feed(&peer.check(200, true), address(3), now);
        assert_eq!(
            old,
            Err(DropReason::StunUnauthorised),
            "the old credentials are gone"
        );
    }

    #[test]
    fn bad_checks() {
        let (mut lite, peer) = pair();
        let now = Time::ZERO;
        let from = address(1);
        let request = || Builder::new(message_type::BINDING_REQUEST, [1; 12]);
        let named = || request().attribute(attribute::USERNAME, peer.name.as_bytes());
        let wrong = HmacSha1::new(b"wrong");
        for (bytes, expected) in [
            (request().finish(Some(&peer.key)), 400),
            (named().finish(None), 400),
            (named().finish(Some(&wrong)), 401),
            (
                request()
                    .attribute(attribute::USERNAME, b"other:name")
                    .finish(Some(&peer.key)),
                401,
            ),
            (
                request()
                    .attribute(attribute::USERNAME, b"noname")
                    .finish(Some(&peer.key)),
                401,
            ),
            (
                named().attribute(0x7000, b"new").finish(Some(&peer.key)),
                420,
            ),
            (
                named()
                    .attribute(attribute::ICE_CONTROLLED, &[0; 8])
                    .finish(Some(&peer.key)),
                487,
            ),
        ] {
            assert_eq!(
                lite.feed(&bytes, from, now),
                Err(DropReason::StunUnauthorised)
            );
            assert_eq!(code(&mut lite), Some(expected));
        }
        assert!(!lite.admits(from));
        let answer = Builder::new(message_type::BINDING_SUCCESS, [1; 12]).finish(None);
        assert_eq!(
            lite.feed(&answer, from, now),
            Err(DropReason::StunUnexpected)
        );
        let kept = Builder::new(message_type::BINDING_INDICATION, [1; 12]).finish(None);
        assert_eq!(lite.feed(&kept, from, now), Ok(()));
        assert_eq!(
            lite.feed(&kept[..19], from, now),
            Err(DropReason::StunMalformed)
        );
        assert!(lite.next_answer().is_none());
    }

    #[test]
    fn everything_has_a_limit() {
        let (mut lite, peer) = pair();
        lite.feed(&peer.check(1, true), address(1), Time::ZERO)
            .unwrap();
        for port in 2..200 {
            let at = Time::from_millis(u64::from(port));
            lite.feed(&peer.check(1, false), address(port), at).unwrap();
        }
        assert!(lite.sources.len() <= SOURCES && lite.answers.len() <= ANSWERS);
        assert!(lite.admits(address(1)) && lite.admits(address(199)));
        assert!(!lite.admits(address(100)));
    }

    #[test]
    fn words_for_the_session_description() {
        assert_eq!(
            host_candidate(1, 2, 65_535, address(9)),
            "1 2 UDP 2130706430 192.0.2.7 9 typ host"
        );
        assert!(Credentials::parse("abc", "0123456789012345678901").is_none());
        assert!(Credentials::parse("abcd", "012345678901234567890").is_none());
        assert!(Credentials::parse("ab d", "0123456789012345678901").is_none());
        assert!(Credentials::parse("ab+/", "0123456789012345678901").is_some());
        let made = Credentials::generate(&mut Entropy::from_number(3));
        assert!(Credentials::parse(made.fragment(), made.password()).is_some());
        assert!(!format!("{made:?}").contains(made.password()));
    }
}
