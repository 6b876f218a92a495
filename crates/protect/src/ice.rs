//! ICE (RFC 8445): a lite agent for a border with a public address, which only responds to checks, and a full agent,
//! which also sends them.
//!
//! A lite agent ([`LiteAgent`]) has only host candidates, sends no checks and is always controlled. It responds to each
//! check with its credentials, records the source, and the controlling agent nominates the pair for media. A full
//! agent ([`Agent`]) can have either role.

mod agent;
mod candidate;

pub use agent::{Agent, FAILURE_PATIENCE, IceEvent, MAX_LOCAL, MAX_PAIRS, MAX_REMOTE, PACE, Path};
pub use agent::{IceRole, RETRANSMIT};
pub use candidate::{CandidateType, IceCandidate, priority};

use crate::cipher::HmacSha1;
use crate::stun::{Builder, StunMessage, attribute, message_type};
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Entropy, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Characters of user fragment and password (RFC 8839 section 5.4).
const ICE_CHARS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Number of sources of valid checks that are recorded.
const MAX_SOURCES: usize = 16;
/// Number of responses queued until they are read.
const MAX_RESPONSES: usize = 32;
/// After this time without a check the consent of a peer that refreshes it has expired (RFC 7675 section 5.1).
pub const CONSENT: Duration = Duration::from_secs(30);
/// A check over the selected pair so long after the first nomination refreshes consent. Agents of RFC 5245 (pjsip,
/// linphone) send no checks then, but indications, or nothing beside media.
const REFRESH: Duration = Duration::from_secs(10);
/// A nomination that was not repeated for this time does not keep another pair from being nominated, with any priority:
/// the peer has changed its pair. Agents of RFC 5245, which nominate all valid pairs, repeat all of them within it.
const NOMINATION: Duration = Duration::from_secs(5);

/// User fragment and password of one side.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IceCredentials {
    fragment: String,
    password: String,
}

impl IceCredentials {
    /// Generates credentials: 48 bits of fragment, 144 of password, more than RFC 8445 section 5.3 requires.
    pub fn generate(entropy: &mut Entropy) -> IceCredentials {
        let mut text = |length: usize| -> String {
            let mut bytes = vec![0; length];
            entropy.fill(&mut bytes);
            let chars = bytes
                .iter()
                .filter_map(|byte| ICE_CHARS.get(usize::from(byte & 63)));
            chars.map(|byte| char::from(*byte)).collect()
        };
        IceCredentials {
            fragment: text(8),
            password: text(24),
        }
    }

    /// From a session description; `None` if a length or a character is not allowed (RFC 8839 section 5.4).
    pub fn parse(fragment: &str, password: &str) -> Option<IceCredentials> {
        let allowed = |text: &str, least: usize| {
            (least..=256).contains(&text.len())
                && text.bytes().all(|byte| ICE_CHARS.contains(&byte))
        };
        (allowed(fragment, 4) && allowed(password, 22)).then(|| IceCredentials {
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

impl fmt::Debug for IceCredentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.fragment)
    }
}

/// The value of an `a=candidate` attribute for a local address (RFC 8839 section 5.1).
pub fn host_candidate(
    foundation: u32,
    component: u8,
    preference: u16,
    address: SocketAddr,
) -> String {
    let candidate = IceCandidate {
        foundation: foundation.to_string(),
        component,
        priority: priority(CandidateType::Host, preference, component),
        address,
        kind: CandidateType::Host,
    };
    candidate.to_string()
}

/// Credentials with the key of their password, which is derived again when a saved agent is read back.
struct KeyedCredentials {
    credentials: IceCredentials,
    key: HmacSha1,
}

impl KeyedCredentials {
    fn new(credentials: IceCredentials) -> KeyedCredentials {
        KeyedCredentials {
            key: HmacSha1::new(credentials.password.as_bytes()),
            credentials,
        }
    }
}

impl Serialize for KeyedCredentials {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.credentials.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeyedCredentials {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeyedCredentials, D::Error> {
        IceCredentials::deserialize(deserializer).map(KeyedCredentials::new)
    }
}

/// Authenticates a request and rejects unknown mandatory attributes (RFC 8489 section 9.1.3).
///
/// # Errors
/// The status of the error response.
fn authenticate(
    message: &StunMessage<'_>,
    local: &KeyedCredentials,
    remote: Option<&IceCredentials>,
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
    let addressed = ours == Some(local.credentials.fragment.as_bytes())
        && remote.is_none_or(|remote| theirs == Some(remote.fragment.as_bytes()));
    if !addressed || !message.is_authentic(&local.key) {
        return Err(401);
    }
    match message.unknown_attributes().next() {
        Some(_) => Err(420),
        None => Ok(()),
    }
}

/// An error response with this status.
fn error_response(message: &StunMessage<'_>, code: u16, key: &HmacSha1) -> Vec<u8> {
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
    // Only an authenticated request gets an authenticated response.
    let proved = matches!(code, 420 | 487);
    answer.finish(proved.then_some(key))
}

/// Source of an authenticated check.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CheckSource {
    address: SocketAddr,
    /// Priority of the peer's candidate, from the check.
    priority: u32,
    last: Time,
    /// When it was nominated last.
    nominated_at: Option<Time>,
}

impl CheckSource {
    fn is_nominated_within(&self, time: Duration, now: Time) -> bool {
        self.nominated_at.is_some_and(|at| now.since(at) <= time)
    }
}

/// A lite agent for one component of one stream.
#[derive(Serialize, Deserialize)]
pub struct LiteAgent {
    local: KeyedCredentials,
    remote: Option<IceCredentials>,
    sources: Vec<CheckSource>,
    selected: Option<SocketAddr>,
    /// When the peer nominated a pair first, with its present credentials.
    first_nomination: Option<Time>,
    /// Whether the peer refreshes its consent (RFC 7675): only then silence means that it has expired.
    refreshes_consent: bool,
    answers: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl LiteAgent {
    /// An agent with the given credentials. Those of the peer may be set later, with the answer.
    pub fn new(local: IceCredentials, remote: Option<IceCredentials>) -> LiteAgent {
        LiteAgent {
            local: KeyedCredentials::new(local),
            remote,
            sources: Vec::new(),
            selected: None,
            first_nomination: None,
            refreshes_consent: false,
            answers: VecDeque::new(),
        }
    }

    /// Our credentials.
    pub fn local(&self) -> &IceCredentials {
        &self.local.credentials
    }

    /// The peer's credentials, if known.
    pub fn remote(&self) -> Option<&IceCredentials> {
        self.remote.as_ref()
    }

    /// Sets the peer's signalled credentials. Other ones are those of another agent (another phone of a fork): checks
    /// and nominations of the former one do not count any more, and the selected pair stays in use until the next
    /// nomination.
    pub fn set_remote(&mut self, remote: IceCredentials) {
        if (self.remote.as_ref()).is_some_and(|existing| *existing != remote) {
            self.sources.clear();
            self.first_nomination = None;
            self.refreshes_consent = false;
        }
        self.remote = Some(remote);
    }

    /// Restarts with new credentials (RFC 8445 section 9). The selected pair stays in use until the peer nominates
    /// again.
    pub fn restart(&mut self, local: IceCredentials, remote: Option<IceCredentials>) {
        self.local = KeyedCredentials::new(local);
        self.remote = remote;
        self.sources.clear();
        self.first_nomination = None;
        self.refreshes_consent = false;
    }

    /// Stops using the nominated pair, whose consent has expired; `true` if there was one.
    pub fn forget(&mut self) -> bool {
        self.selected.take().is_some()
    }

    /// Processes a STUN datagram from `source`; [`LiteAgent::next_answer`] returns the response.
    ///
    /// # Errors
    /// The drop reason of an invalid check. Some of these also get an error response.
    pub fn feed(
        &mut self,
        datagram: &[u8],
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let message = StunMessage::parse(datagram).ok_or(DropReason::StunMalformed)?;
        match message.message_type() {
            message_type::BINDING_REQUEST => {}
            // A keep-alive (RFC 8445 section 11), which needs no response.
            message_type::BINDING_INDICATION => return Ok(()),
            _ => return Err(DropReason::StunUnexpected),
        }
        let Err(code) = self.authenticate(&message) else {
            self.record_source(&message, source, now);
            let answer = Builder::new(message_type::BINDING_SUCCESS, message.transaction())
                .mapped_address(source)
                .finish(Some(&self.local.key));
            self.answer(source, answer);
            return Ok(());
        };
        let answer = error_response(&message, code, &self.local.key);
        self.answer(source, answer);
        Err(DropReason::StunUnauthenticated)
    }

    /// The next response and its destination.
    pub fn next_answer(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.answers.pop_front()
    }

    /// Destination of media: the peer's address of the nominated pair.
    pub fn selected(&self) -> Option<SocketAddr> {
        self.selected
    }

    /// Whether media from this source is accepted: it has sent an authenticated check.
    pub fn admits(&self, source: SocketAddr) -> bool {
        self.selected == Some(source)
            || self
                .sources
                .iter()
                .any(|existing| existing.address == source)
    }

    /// Whether media may be sent to the selected address: the peer has sent a check from there, and within [`CONSENT`]
    /// if it refreshes its consent. Consent is that of a pair: checks from other addresses do not count (RFC 7675
    /// section 5.1). A lite agent cannot ask a peer that does not (RFC 7675 section 3): its silence means nothing.
    pub fn consents(&self, now: Time) -> bool {
        self.sources.iter().any(|source| {
            Some(source.address) == self.selected
                && (!self.refreshes_consent || now.since(source.last) <= CONSENT)
        })
    }

    /// Selects the best of the other pairs that were nominated within [`CONSENT`]; `false` if there is none.
    pub fn select_other(&mut self, now: Time) -> bool {
        let others = self.sources.iter().filter(|source| {
            Some(source.address) != self.selected && source.is_nominated_within(CONSENT, now)
        });
        let best = others.max_by_key(|source| (source.priority, source.nominated_at));
        let Some(address) = best.map(|source| source.address) else {
            return false;
        };
        self.selected = Some(address);
        true
    }

    /// RFC 8489 section 9.1.3, RFC 8445 section 7.3.
    fn authenticate(&self, message: &StunMessage<'_>) -> Result<(), u16> {
        authenticate(message, &self.local, self.remote.as_ref())?;
        match message.attribute(attribute::ICE_CONTROLLED) {
            Some(_) => Err(487),
            None => Ok(()),
        }
    }

    /// Records the source of a valid check, and its nomination.
    fn record_source(&mut self, message: &StunMessage<'_>, address: SocketAddr, now: Time) {
        let priority = message.number(attribute::PRIORITY).unwrap_or(0);
        let nominates = message.attribute(attribute::USE_CANDIDATE).is_some();
        let existing = self
            .sources
            .iter()
            .position(|source| source.address == address);
        if existing.is_none() && self.sources.len() >= MAX_SOURCES {
            // The source that was silent for longest is evicted, but not the selected one.
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
        let fresh = CheckSource {
            address,
            priority,
            last: now,
            nominated_at: nominates.then_some(now),
        };
        match existing.and_then(|at| self.sources.get_mut(at)) {
            Some(source) => {
                *source = CheckSource {
                    nominated_at: fresh.nominated_at.or(source.nominated_at),
                    ..fresh
                }
            }
            None => self.sources.push(fresh),
        }
        if nominates {
            self.select(address, priority, now);
            self.first_nomination.get_or_insert(now);
        }
        let is_refresh = nominates || self.selected == Some(address);
        let first = self.first_nomination.filter(|_| is_refresh);
        self.refreshes_consent |= first.is_some_and(|first| now.since(first) >= REFRESH);
    }

    /// Selects among several nominated pairs the one of highest priority (agents of RFC 5245 nominate every valid
    /// pair); among equals, and when the selected one was evicted or is not nominated any more, the latest.
    fn select(&mut self, address: SocketAddr, priority: u32, now: Time) {
        let former = self.sources.iter().find(|source| {
            Some(source.address) == self.selected && source.is_nominated_within(NOMINATION, now)
        });
        if former.is_none_or(|former| priority >= former.priority) {
            self.selected = Some(address);
        }
    }

    fn answer(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        if self.answers.len() < MAX_RESPONSES {
            self.answers.push_back((to, bytes));
        }
    }
}

impl fmt::Debug for LiteAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lite")
            .field("local", &self.local.credentials)
            .field("selected", &self.selected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestPeer {
        key: HmacSha1,
        name: String,
    }

    fn pair() -> (LiteAgent, TestPeer) {
        let mut entropy = Entropy::from_number(1);
        let local = IceCredentials::generate(&mut entropy);
        let remote = IceCredentials::generate(&mut entropy);
        let peer = TestPeer {
            key: HmacSha1::new(local.password().as_bytes()),
            name: format!("{}:{}", local.fragment(), remote.fragment()),
        };
        (LiteAgent::new(local, Some(remote)), peer)
    }

    impl TestPeer {
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

    fn code(lite: &mut LiteAgent) -> Option<u16> {
        let (_, answer) = lite.next_answer()?;
        StunMessage::parse(&answer).unwrap().error_code()
    }

    #[test]
    fn check_is_answered_and_pair_nominated() {
        let (mut lite, peer) = pair();
        let now = Time::from_secs(1);
        lite.feed(&peer.check(100, false), address(1), now).unwrap();
        let (to, answer) = lite.next_answer().unwrap();
        let answer = StunMessage::parse(&answer).unwrap();
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
        assert_eq!(lite.selected(), Some(address(1)), "lower priority");
        lite.feed(&peer.check(200, true), address(3), now).unwrap();
        assert_eq!(lite.selected(), Some(address(3)));
        let later = now + REFRESH;
        lite.feed(&peer.check(200, false), address(3), later)
            .unwrap();
        assert!(lite.consents(later + CONSENT));
        assert!(!lite.consents(later + CONSENT + Duration::from_millis(1)));
        let mut entropy = Entropy::from_number(2);
        lite.restart(IceCredentials::generate(&mut entropy), None);
        assert_eq!(lite.selected(), Some(address(3)), "media continues");
        let old = lite.feed(&peer.check(200, true), address(3), now);
        assert_eq!(
            old,
            Err(DropReason::StunUnauthenticated),
            "the old credentials are invalid"
        );
    }

    #[test]
    fn a_pair_of_lower_priority_replaces_one_that_is_not_nominated_any_more() {
        let (mut lite, peer) = pair();
        let at = Time::from_secs;
        lite.feed(&peer.check(200, true), address(1), at(0))
            .unwrap();
        lite.feed(&peer.check(100, true), address(2), at(3))
            .unwrap();
        assert_eq!(lite.selected(), Some(address(1)), "nominated just now");
        lite.feed(&peer.check(200, false), address(1), at(6))
            .unwrap();
        lite.feed(&peer.check(100, true), address(2), at(6))
            .unwrap();
        assert_eq!(lite.selected(), Some(address(2)), "the peer has changed");
        lite.feed(&peer.check(200, true), address(1), at(7))
            .unwrap();
        assert_eq!(lite.selected(), Some(address(1)));
    }

    #[test]
    fn nominations_of_a_former_peer_do_not_count() {
        let (mut lite, former) = pair();
        let now = Time::from_secs(1);
        lite.feed(&former.check(200, true), address(1), now)
            .unwrap();
        let remote = IceCredentials::generate(&mut Entropy::from_number(5));
        let peer = TestPeer {
            key: HmacSha1::new(lite.local().password().as_bytes()),
            name: format!("{}:{}", lite.local().fragment(), remote.fragment()),
        };
        lite.set_remote(remote.clone());
        assert_eq!(lite.selected(), Some(address(1)), "until the next one");
        lite.feed(&peer.check(100, true), address(2), now).unwrap();
        assert_eq!(lite.selected(), Some(address(2)), "of any priority");
        assert!(!lite.admits(address(1)));
        lite.set_remote(remote);
        assert!(lite.admits(address(2)), "the same peer");
    }

    #[test]
    fn consent_is_that_of_the_selected_pair() {
        let (mut lite, peer) = pair();
        let at = Time::from_secs;
        lite.feed(&peer.check(200, true), address(1), at(0))
            .unwrap();
        lite.feed(&peer.check(200, true), address(1), at(10))
            .unwrap();
        lite.feed(&peer.check(100, true), address(2), at(11))
            .unwrap();
        for second in 12..=41 {
            lite.feed(&peer.check(50, false), address(3), at(second))
                .unwrap();
        }
        assert_eq!(lite.selected(), Some(address(1)));
        assert!(lite.consents(at(40)) && !lite.consents(at(41)));
        // Another nominated pair that has consent takes over; a pair that was only checked does not.
        assert!(lite.select_other(at(41)));
        assert_eq!(lite.selected(), Some(address(2)));
        assert!(lite.consents(at(41)) && !lite.consents(at(42)));
        assert!(!lite.select_other(at(42)));
    }

    /// After its nomination an agent of RFC 5245 sends indications at most (section 10).
    #[test]
    fn peer_that_does_not_refresh_its_consent_keeps_its_pair() {
        let (mut lite, peer) = pair();
        let at = Time::from_secs;
        // Its nomination and a retransmission; checks of another pair that it does not use are repeated for longer.
        for second in [0, 1] {
            lite.feed(&peer.check(200, true), address(1), at(second))
                .unwrap();
        }
        lite.feed(&peer.check(50, false), address(2), at(31))
            .unwrap();
        let indication = Builder::new(message_type::BINDING_INDICATION, [2; 12]).finish(None);
        for second in [15, 30, 45] {
            lite.feed(&indication, address(1), at(second)).unwrap();
        }
        assert!(lite.consents(at(3_600)), "its silence means nothing");
        // Not after a restart that it has not followed: the pair has no check with the new credentials.
        let mut entropy = Entropy::from_number(3);
        lite.restart(IceCredentials::generate(&mut entropy), None);
        assert!(!lite.consents(at(3_600)));
    }

    #[test]
    fn invalid_checks_are_rejected() {
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
                Err(DropReason::StunUnauthenticated)
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
    fn sources_and_answers_are_bounded() {
        let (mut lite, peer) = pair();
        lite.feed(&peer.check(1, true), address(1), Time::ZERO)
            .unwrap();
        for port in 2..200 {
            let at = Time::from_millis(u64::from(port));
            lite.feed(&peer.check(1, false), address(port), at).unwrap();
        }
        assert!(lite.sources.len() <= MAX_SOURCES && lite.answers.len() <= MAX_RESPONSES);
        assert!(lite.admits(address(1)) && lite.admits(address(199)));
        assert!(!lite.admits(address(100)));
    }

    #[test]
    fn attributes_of_the_session_description() {
        assert_eq!(
            host_candidate(1, 2, 65_535, address(9)),
            "1 2 UDP 2130706430 192.0.2.7 9 typ host"
        );
        assert!(IceCredentials::parse("abc", "0123456789012345678901").is_none());
        assert!(IceCredentials::parse("abcd", "012345678901234567890").is_none());
        assert!(IceCredentials::parse("ab d", "0123456789012345678901").is_none());
        assert!(IceCredentials::parse("ab+/", "0123456789012345678901").is_some());
        let credentials = IceCredentials::generate(&mut Entropy::from_number(3));
        assert!(IceCredentials::parse(credentials.fragment(), credentials.password()).is_some());
        assert!(!format!("{credentials:?}").contains(credentials.password()));
    }
}
