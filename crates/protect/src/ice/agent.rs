//! The full agent (RFC 8445): it forms pairs, checks them, nominates or accepts nominations, and maintains consent
//! (RFC 7675).
//!
//! One agent serves one component of one stream, over UDP. It has host candidates; the peer discovers their NAT
//! mappings as peer-reflexive candidates. A pair consists of a local base and a remote address, since datagrams
//! travel between these: local peer-reflexive candidates share the pair of their base.
//!
//! It has no clock and no random number generator of its own: both are passed in. Lists are bounded, and excess
//! entries are rejected.

mod receive;

use super::candidate::{CandidateType, IceCandidate, priority};
use super::{CONSENT, IceCredentials, KeyedCredentials};
use crate::stun::{Builder, StunMessage, attribute, message_type};
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Entropy, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Largest number of local addresses.
pub const MAX_LOCAL: usize = 8;
/// Largest number of remote candidates; more are rejected.
pub const MAX_REMOTE: usize = 32;
/// Largest number of pairs (RFC 8445 section 6.1.2.5); those of lowest priority are removed.
pub const MAX_PAIRS: usize = 100;
/// Number of datagrams queued until they are read.
const MAX_DATAGRAMS: usize = 64;
/// Number of checks recorded before the peer's credentials are known.
const MAX_EARLY: usize = 8;
/// Interval between two new checks (Ta, RFC 8445 section 14.2).
pub const PACE: Duration = Duration::from_millis(50);
/// Shortest time to the first retransmission of a check (RFC 8445 section 14.3).
pub const RETRANSMIT: Duration = Duration::from_millis(500);
/// Number of transmissions of a check (Rc), and the wait after the last one as a multiple of the first (Rm, RFC 8489
/// section 6.2.1).
const MAX_SENDS: u8 = 7;
const LAST_WAIT_FACTOR: u32 = 16;
/// Time that the controlling agent waits for better pairs than the best valid one.
const NOMINATION_PATIENCE: Duration = Duration::from_millis(500);
/// Shortest time before failure is reported: the peer may still start its checks (RFC 8863).
pub const FAILURE_PATIENCE: Duration = Duration::from_millis(39_500);
/// Mean interval of consent checks (RFC 7675 section 5.1).
const CONSENT_INTERVAL: Duration = Duration::from_secs(5);
/// A lower pair that the peer nominates replaces the selected one only if the peer has not nominated that for this
/// time: browsers may renominate, and then repeat the nomination of the new pair.
const RENOMINATION: Duration = Duration::from_secs(1);
/// Number of consent checks with an outstanding response.
const MAX_CONSENT_CHECKS: usize = 8;

/// Role of the agent (RFC 8445 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IceRole {
    /// Nominates the pair.
    Controlling,
    /// Accepts the nomination.
    Controlled,
}

impl IceRole {
    const fn other(self) -> IceRole {
        match self {
            IceRole::Controlling => IceRole::Controlled,
            IceRole::Controlled => IceRole::Controlling,
        }
    }

    const fn attribute(self) -> u16 {
        match self {
            IceRole::Controlling => attribute::ICE_CONTROLLING,
            IceRole::Controlled => attribute::ICE_CONTROLLED,
        }
    }
}

/// A pair used for media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Number of the local address.
    pub base: u8,
    /// The peer's address, as seen locally.
    pub remote: SocketAddr,
    /// The local address, as seen by the peer.
    pub mapped: SocketAddr,
}

/// Events of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IceEvent {
    /// A pair was nominated and is valid: media uses it exclusively.
    Selected(Path),
    /// The peer's consent has expired ([`CONSENT`]): nothing may be sent over the pair until ICE is restarted or
    /// another pair is nominated.
    ConsentLost(Path),
    /// No pair is valid.
    Failed,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct LocalAddress {
    address: SocketAddr,
    preference: u16,
}

impl LocalAddress {
    fn priority(&self, kind: CandidateType) -> u32 {
        priority(kind, self.preference, 1)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RemoteCandidate {
    candidate: IceCandidate,
    /// Index of the first remote candidate with the same foundation.
    group: u8,
    /// It has sent an authenticated check.
    authenticated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PairState {
    Frozen,
    Waiting,
    InProgress,
    Succeeded,
    Failed,
}

/// Indices of the local and the remote candidate.
type PairId = (u8, u8);

/// A sent request, as needed to process its response.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SentRequest {
    transaction: [u8; 12],
    role: IceRole,
    nominates: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Check {
    request: SentRequest,
    bytes: Vec<u8>,
    sent: u8,
    first_wait: Duration,
    wait: Duration,
    due: Time,
}

#[derive(Debug, Serialize, Deserialize)]
struct CandidatePair {
    id: PairId,
    state: PairState,
    check: Option<Check>,
    /// A check that was replaced by another one; its response is still accepted.
    replaced_check: Option<SentRequest>,
    /// The local address as seen by the peer, once a check has succeeded.
    mapped: Option<SocketAddr>,
    /// Nominated: by us, with the next check; or by the peer, effective when our check succeeds.
    nominated: bool,
    /// The peer's consent has expired: not to be used again with these credentials (RFC 7675 section 5.1).
    consent_lost: bool,
}

impl CandidatePair {
    fn is_unfinished(&self) -> bool {
        matches!(
            self.state,
            PairState::Frozen | PairState::Waiting | PairState::InProgress
        )
    }

    fn fail(&mut self) {
        self.state = PairState::Failed;
        self.check = None;
        self.replaced_check = None;
        self.mapped = None;
        self.nominated = false;
    }
}

/// The selected pair.
#[derive(Debug, Serialize, Deserialize)]
struct Selected {
    path: Path,
    /// `None`: selected before a restart.
    id: Option<PairId>,
    /// Time of its last nomination.
    nominated: Time,
    last: Time,
    next: Time,
    consent_checks: VecDeque<[u8; 12]>,
}

/// A check received before the peer's credentials are known.
#[derive(Debug, Serialize, Deserialize)]
struct EarlyCheck {
    base: u8,
    source: SocketAddr,
    priority: u32,
    nominates: bool,
    fragment: Vec<u8>,
}

/// The peer's credentials.
#[derive(Serialize, Deserialize)]
struct RemotePeer {
    keyed: KeyedCredentials,
    name: Vec<u8>,
    lite: bool,
    /// Earliest time to report failure.
    fails_at: Time,
}

/// Our credentials before a restart, which the peer uses until it has the new ones.
#[derive(Serialize, Deserialize)]
struct PreviousCredentials {
    keyed: KeyedCredentials,
    until: Time,
}

/// A full ICE agent; see the module documentation.
#[derive(Serialize, Deserialize)]
pub struct Agent {
    local: KeyedCredentials,
    role: IceRole,
    tie_breaker: u64,
    entropy: Entropy,
    locals: Vec<LocalAddress>,
    peer: Option<RemotePeer>,
    previous: Option<PreviousCredentials>,
    remotes: Vec<RemoteCandidate>,
    pairs: Vec<CandidatePair>,
    triggered: VecDeque<PairId>,
    early: Vec<EarlyCheck>,
    next_check: Time,
    first_valid: Option<Time>,
    selected: Option<Selected>,
    failure_reported: bool,
    out: VecDeque<(u8, SocketAddr, Vec<u8>)>,
    events: VecDeque<IceEvent>,
}

impl Agent {
    /// An agent with these local credentials; `entropy` must be used by it alone.
    pub fn new(local: IceCredentials, role: IceRole, mut entropy: Entropy) -> Agent {
        Agent {
            local: KeyedCredentials::new(local),
            role,
            tie_breaker: entropy.u64(),
            entropy,
            locals: Vec::new(),
            peer: None,
            previous: None,
            remotes: Vec::new(),
            pairs: Vec::new(),
            triggered: VecDeque::new(),
            early: Vec::new(),
            next_check: Time::ZERO,
            first_valid: None,
            selected: None,
            failure_reported: false,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds a local address, preferred first, before the remote candidates; returns its number. `None`: there are
    /// [`MAX_LOCAL`] already.
    pub fn add_local(&mut self, address: SocketAddr) -> Option<u8> {
        let number = self.locals.len();
        if number >= MAX_LOCAL {
            return None;
        }
        self.locals.push(LocalAddress {
            address,
            preference: u16::MAX - number as u16,
        });
        Some(number as u8)
    }

    /// The local candidates for the session description.
    pub fn candidates(&self) -> impl Iterator<Item = IceCandidate> {
        (1u32..)
            .zip(&self.locals)
            .map(|(number, local)| IceCandidate {
                foundation: number.to_string(),
                component: 1,
                priority: local.priority(CandidateType::Host),
                address: local.address,
                kind: CandidateType::Host,
            })
    }

    /// Our credentials.
    pub fn local(&self) -> &IceCredentials {
        &self.local.credentials
    }

    /// The peer's credentials, if known.
    pub fn remote(&self) -> Option<&IceCredentials> {
        self.peer.as_ref().map(|peer| &peer.keyed.credentials)
    }

    /// Our role.
    pub fn role(&self) -> IceRole {
        self.role
    }

    /// Sets the role from offer and answer (RFC 8445 section 6.1.1); a role conflict may change it.
    pub fn set_role(&mut self, role: IceRole) {
        if role != self.role {
            self.role = role;
            for pair in &mut self.pairs {
                pair.nominated = false;
            }
        }
    }

    /// Sets the peer's signalled credentials; `lite`: it is a lite agent. Changed credentials restart the checks: the
    /// selected pair stays in use until a pair is nominated with the new ones.
    pub fn set_remote(&mut self, credentials: IceCredentials, lite: bool, now: Time) {
        if let Some(peer) = &mut self.peer
            && peer.keyed.credentials == credentials
        {
            peer.lite = lite;
            return;
        }
        self.clear_pairs();
        let name = format!(
            "{}:{}",
            credentials.fragment(),
            self.local.credentials.fragment()
        );
        self.peer = Some(RemotePeer {
            name: name.into_bytes(),
            lite,
            fails_at: now + FAILURE_PATIENCE,
            keyed: KeyedCredentials::new(credentials),
        });
        self.next_check = now;
    }

    /// Adds a remote candidate, also later (RFC 8838). A candidate that is known already, of another component, or of
    /// a family without a local address, is ignored.
    ///
    /// # Errors
    /// [`DropReason::IceTooManyCandidates`]: there are [`MAX_REMOTE`] already.
    pub fn add_remote(&mut self, candidate: IceCandidate) -> Result<(), DropReason> {
        if candidate.component != 1 {
            return Ok(());
        }
        if let Some(existing) = self.find_remote(candidate.address) {
            // A candidate found by a check now gets its foundation (RFC 8445 section 7.3.1.3).
            let group = self.group(&candidate.foundation);
            if let Some(existing) = self.remotes.get_mut(usize::from(existing))
                && existing.candidate.kind == CandidateType::PeerReflexive
            {
                existing.candidate.foundation = candidate.foundation;
                existing.group = group;
            }
            return Ok(());
        }
        let number = self.push_remote(candidate, false)?;
        for local in 0..self.locals.len() {
            self.add_pair((local as u8, number), PairState::Frozen);
        }
        self.failure_reported = false;
        Ok(())
    }

    /// Processes the early checks, once the peer's credentials and candidates are set.
    pub fn begin(&mut self, now: Time) {
        let Some(peer) = &self.peer else { return };
        let fragment = peer.keyed.credentials.fragment().as_bytes().to_vec();
        for early in core::mem::take(&mut self.early) {
            if early.fragment == fragment {
                let EarlyCheck {
                    base,
                    source,
                    priority,
                    nominates,
                    ..
                } = early;
                self.on_valid_check(base, source, priority, nominates, now);
            }
        }
    }

    /// Restarts with new local credentials (RFC 8445 section 9); those of the peer follow with [`Agent::set_remote`].
    /// The selected pair stays in use until a new pair is nominated, as long as the peer's consent holds.
    pub fn restart(&mut self, local: IceCredentials, role: IceRole, now: Time) {
        self.previous = Some(PreviousCredentials {
            keyed: core::mem::replace(&mut self.local, KeyedCredentials::new(local)),
            until: now + CONSENT,
        });
        self.peer = None;
        self.early.clear();
        self.clear_pairs();
        self.role = role;
        self.tie_breaker = self.entropy.u64();
    }

    fn clear_pairs(&mut self) {
        self.remotes.clear();
        self.pairs.clear();
        self.triggered.clear();
        self.first_valid = None;
        self.failure_reported = false;
        if let Some(selected) = &mut self.selected {
            selected.id = None;
            selected.consent_checks.clear();
        }
    }

    /// The pair for media.
    pub fn selected(&self) -> Option<Path> {
        self.selected.as_ref().map(|selected| selected.path)
    }

    /// Whether a handshake from this source is accepted: it has sent an authenticated check.
    pub fn admits(&self, source: SocketAddr) -> bool {
        self.selected().is_some_and(|path| path.remote == source)
            || self
                .remotes
                .iter()
                .any(|existing| existing.authenticated && existing.candidate.address == source)
            || self.early.iter().any(|early| early.source == source)
    }

    /// The next datagram: number of the local address, destination, bytes.
    pub fn next_datagram(&mut self) -> Option<(u8, SocketAddr, Vec<u8>)> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<IceEvent> {
        self.events.pop_front()
    }

    /// Processes a STUN datagram from `source` to the local address `base`.
    ///
    /// # Errors
    /// The drop reason if it is neither a valid check nor a response to one of ours. Some also get an error response.
    pub fn feed(
        &mut self,
        base: u8,
        datagram: &[u8],
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let message = StunMessage::parse(datagram).ok_or(DropReason::StunMalformed)?;
        let done = match message.message_type() {
            message_type::BINDING_REQUEST => self.request(base, &message, source, now),
            message_type::BINDING_SUCCESS | message_type::BINDING_ERROR => {
                self.response(base, &message, source, now)
            }
            // A keep-alive (RFC 8445 section 11).
            message_type::BINDING_INDICATION => Ok(()),
            _ => Err(DropReason::StunUnexpected),
        };
        self.nominate(now);
        done
    }

    /// Advances the time: sends checks and retransmissions that are due.
    pub fn timeout(&mut self, now: Time) {
        self.check_consent(now);
        self.retransmit(now);
        self.nominate(now);
        if now >= self.next_check
            && let Some(id) = self.next_pair()
        {
            self.triggered.retain(|existing| *existing != id);
            self.check(id, now);
            self.next_check = now + PACE;
        }
        if self
            .previous
            .as_ref()
            .is_some_and(|existing| existing.until <= now)
        {
            self.previous = None;
        }
        if self.failure_due().is_some_and(|due| due <= now) {
            self.failure_reported = true;
            self.events.push_back(IceEvent::Failed);
        }
    }

    /// Time of the next call of [`Agent::timeout`].
    pub fn next_deadline(&self) -> Option<Time> {
        let check = self.next_pair().map(|_| self.next_check);
        let again = self.pairs.iter().filter_map(|pair| pair.check.as_ref());
        let again = again.map(|check| check.due).min();
        let consent = self.selected.as_ref().map(|selected| match selected.id {
            Some(_) => selected.next.min(selected.last + CONSENT),
            None => selected.last + CONSENT,
        });
        let nomination = self.best_valid_pair().and(self.first_valid);
        let nomination = nomination.map(|first| first + NOMINATION_PATIENCE);
        [check, again, consent, nomination, self.failure_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn is_complete(&self) -> bool {
        self.selected
            .as_ref()
            .is_some_and(|selected| selected.id.is_some())
    }

    /// Time at which failure is reported, if nothing changes.
    fn failure_due(&self) -> Option<Time> {
        let peer = self.peer.as_ref()?;
        let hope = self.is_complete()
            || self
                .pairs
                .iter()
                .any(|pair| pair.is_unfinished() || pair.mapped.is_some());
        (!hope && !self.failure_reported).then_some(peer.fails_at)
    }

    fn find_remote(&self, address: SocketAddr) -> Option<u8> {
        let existing = self
            .remotes
            .iter()
            .position(|remote| remote.candidate.address == address);
        existing.map(|number| number as u8)
    }

    fn group(&self, foundation: &str) -> u8 {
        let same = |existing: &RemoteCandidate| existing.candidate.foundation == foundation;
        self.remotes
            .iter()
            .position(same)
            .unwrap_or(self.remotes.len()) as u8
    }

    fn push_remote(
        &mut self,
        candidate: IceCandidate,
        authenticated: bool,
    ) -> Result<u8, DropReason> {
        let number = self.remotes.len();
        if number >= MAX_REMOTE {
            return Err(DropReason::IceTooManyCandidates);
        }
        self.remotes.push(RemoteCandidate {
            group: self.group(&candidate.foundation),
            candidate,
            authenticated,
        });
        Ok(number as u8)
    }

    fn pair(&mut self, id: PairId) -> Option<&mut CandidatePair> {
        self.pairs.iter_mut().find(|pair| pair.id == id)
    }

    /// RFC 8445 section 6.1.2.3.
    fn priority(&self, (local, remote): PairId) -> u64 {
        let local = self.locals.get(usize::from(local));
        let remote = self.remotes.get(usize::from(remote));
        let ours = local.map_or(0, |local| u64::from(local.priority(CandidateType::Host)));
        let theirs = remote.map_or(0, |remote| u64::from(remote.candidate.priority));
        let (controlling, controlled) = match self.role {
            IceRole::Controlling => (ours, theirs),
            IceRole::Controlled => (theirs, ours),
        };
        controlling.min(controlled) << 32
            | controlling.max(controlled) << 1
            | u64::from(controlling > controlled)
    }

    /// Local candidate, and the first remote one with the same foundation.
    fn foundation(&self, (local, remote): PairId) -> (u8, u8) {
        let group = self.remotes.get(usize::from(remote));
        (local, group.map_or(remote, |remote| remote.group))
    }

    /// Adds a pair; false if it does not fit or the list is full of better ones.
    fn add_pair(&mut self, id: PairId, state: PairState) -> bool {
        let family = |address: SocketAddr| address.ip().to_canonical().is_ipv6();
        let local = self.locals.get(usize::from(id.0));
        let remote = self.remotes.get(usize::from(id.1));
        let fits = local.zip(remote).is_some_and(|(local, remote)| {
            family(local.address) == family(remote.candidate.address)
        });
        if !fits {
            return false;
        }
        if self.pairs.len() >= MAX_PAIRS {
            let used = self.selected.as_ref().and_then(|selected| selected.id);
            let spare = self
                .pairs
                .iter()
                .enumerate()
                .filter(|(_, pair)| Some(pair.id) != used && pair.mapped.is_none())
                .map(|(at, pair)| (self.priority(pair.id), at))
                .min();
            match spare {
                Some((least, at)) if least < self.priority(id) => {
                    self.pairs.swap_remove(at);
                }
                _ => return false,
            }
        }
        self.pairs.push(CandidatePair {
            id,
            state,
            check: None,
            replaced_check: None,
            mapped: None,
            nominated: false,
            consent_lost: false,
        });
        true
    }

    /// The next pair to check: triggered checks first, then waiting pairs by priority, then the best frozen pair of
    /// each foundation without a check in progress (RFC 8445 section 6.1.4.2).
    fn next_pair(&self) -> Option<PairId> {
        self.peer.as_ref()?;
        let waits = |id: &&PairId| {
            let pair = self.pairs.iter().find(|pair| pair.id == **id);
            pair.is_some_and(|pair| pair.state != PairState::InProgress)
        };
        if let Some(id) = self.triggered.iter().find(waits) {
            return Some(*id);
        }
        if self.is_complete() {
            return None;
        }
        let best = |required: PairState, free: &dyn Fn(PairId) -> bool| {
            self.pairs
                .iter()
                .filter(|pair| pair.state == required && free(pair.id))
                .map(|pair| pair.id)
                .max_by_key(|id| self.priority(*id))
        };
        best(PairState::Waiting, &|_| true).or_else(|| {
            best(PairState::Frozen, &|id| {
                let foundation = self.foundation(id);
                !self.pairs.iter().any(|other| {
                    other.state == PairState::InProgress && self.foundation(other.id) == foundation
                })
            })
        })
    }

    /// Creates a request; returns its record and its bytes.
    fn build_request(&mut self, local: u8, nominates: bool) -> Option<(SentRequest, Vec<u8>)> {
        let mut transaction = [0; 12];
        self.entropy.fill(&mut transaction);
        let peer = self.peer.as_ref()?;
        let local = self.locals.get(usize::from(local))?;
        let reflexive = local.priority(CandidateType::PeerReflexive);
        let mut builder = Builder::new(message_type::BINDING_REQUEST, transaction)
            .attribute(attribute::USERNAME, &peer.name)
            .attribute(attribute::PRIORITY, &reflexive.to_be_bytes())
            .attribute(self.role.attribute(), &self.tie_breaker.to_be_bytes());
        if nominates {
            builder = builder.attribute(attribute::USE_CANDIDATE, &[]);
        }
        let request = SentRequest {
            transaction,
            role: self.role,
            nominates,
        };
        Some((request, builder.finish(Some(&peer.keyed.key))))
    }

    fn send(&mut self, local: u8, to: SocketAddr, bytes: Vec<u8>) {
        if self.out.len() < MAX_DATAGRAMS {
            self.out.push_back((local, to, bytes));
        }
    }

    /// Sends a new check of a pair.
    fn check(&mut self, id: PairId, now: Time) {
        let open = self.pairs.iter();
        let open =
            open.filter(|pair| matches!(pair.state, PairState::Waiting | PairState::InProgress));
        let wait = RETRANSMIT.max(PACE * open.count() as u32);
        let controlling = self.role == IceRole::Controlling;
        let nominates = self
            .pair(id)
            .is_some_and(|pair| controlling && pair.nominated);
        let remote = self.remotes.get(usize::from(id.1));
        let Some(to) = remote.map(|remote| remote.candidate.address) else {
            return;
        };
        let Some((request, bytes)) = self.build_request(id.0, nominates) else {
            return;
        };
        if let Some(pair) = self.pair(id) {
            pair.state = PairState::InProgress;
            pair.check = Some(Check {
                request,
                bytes: bytes.clone(),
                sent: 1,
                first_wait: wait,
                wait,
                due: now + wait,
            });
        }
        self.send(id.0, to, bytes);
    }

    fn retransmit(&mut self, now: Time) {
        let mut again: Vec<(PairId, Vec<u8>)> = Vec::new();
        for pair in &mut self.pairs {
            let Some(check) = pair.check.as_mut().filter(|check| check.due <= now) else {
                continue;
            };
            if check.sent >= MAX_SENDS {
                pair.fail();
                continue;
            }
            check.sent += 1;
            check.wait *= 2;
            let wait = match check.sent {
                MAX_SENDS => check.first_wait * LAST_WAIT_FACTOR,
                _ => check.wait,
            };
            check.due = now + wait;
            again.push((pair.id, check.bytes.clone()));
        }
        for (id, bytes) in again {
            if let Some(remote) = self.remotes.get(usize::from(id.1)) {
                let to = remote.candidate.address;
                self.send(id.0, to, bytes);
            }
        }
    }

    /// The best valid pair, if we control and none is nominated.
    fn best_valid_pair(&self) -> Option<PairId> {
        if self.role != IceRole::Controlling
            || self.is_complete()
            || self.pairs.iter().any(|pair| pair.nominated)
        {
            return None;
        }
        self.pairs
            .iter()
            .filter(|pair| pair.state == PairState::Succeeded)
            .map(|pair| pair.id)
            .max_by_key(|id| self.priority(*id))
    }

    /// Regular nomination (RFC 8445 section 8.1.1): of the best valid pair, when no better one is likely to become
    /// valid soon.
    fn nominate(&mut self, now: Time) {
        let Some(id) = self.best_valid_pair() else {
            return;
        };
        let own = self.priority(id);
        let mut open = self.pairs.iter().filter(|pair| pair.is_unfinished());
        let better = open.any(|pair| self.priority(pair.id) > own);
        let patient = self
            .first_valid
            .is_some_and(|first| now < first + NOMINATION_PATIENCE);
        if better && patient {
            return;
        }
        if let Some(pair) = self.pair(id) {
            pair.nominated = true;
        }
        self.triggered.push_front(id);
    }

    fn select(&mut self, id: PairId, now: Time) {
        let Some(mapped) = self.pair(id).and_then(|pair| pair.mapped) else {
            return;
        };
        let current = self.selected.as_ref().and_then(|selected| selected.id);
        // Agents of RFC 5245 nominate every valid pair: the best of them is used.
        let fresh = self
            .selected
            .as_ref()
            .is_some_and(|selected| now < selected.nominated + RENOMINATION);
        if current == Some(id)
            || current.is_some_and(|current| fresh && self.priority(current) > self.priority(id))
        {
            return;
        }
        let Some(remote) = self.remotes.get(usize::from(id.1)) else {
            return;
        };
        let path = Path {
            base: id.0,
            remote: remote.candidate.address,
            mapped,
        };
        let before = self.selected();
        self.selected = Some(Selected {
            path,
            id: Some(id),
            nominated: now,
            last: now,
            next: now,
            consent_checks: VecDeque::new(),
        });
        self.schedule_consent(now);
        // RFC 8445 section 8.1.2: checks of worse pairs are suspended, to be resumed if the selected pair fails;
        // better ones in progress may still be nominated.
        let own = self.priority(id);
        let worse: Vec<PairId> = self
            .pairs
            .iter()
            .filter(|pair| match pair.state {
                PairState::Frozen | PairState::Waiting => true,
                PairState::InProgress => self.priority(pair.id) < own,
                PairState::Succeeded | PairState::Failed => false,
            })
            .map(|pair| pair.id)
            .collect();
        for id in worse {
            if let Some(pair) = self.pair(id) {
                pair.state = PairState::Frozen;
                pair.check = None;
                pair.replaced_check = None;
            }
        }
        self.triggered.clear();
        if before != Some(path) {
            self.events.push_back(IceEvent::Selected(path));
        }
    }

    /// Schedules the next consent check, randomised by a fifth of the interval (RFC 7675 section 5.1).
    fn schedule_consent(&mut self, now: Time) {
        let fifth = CONSENT_INTERVAL.as_millis() as u64 / 5;
        let wait = 4 * fifth + self.entropy.below(2 * fifth);
        if let Some(selected) = &mut self.selected {
            selected.next = now + Duration::from_millis(wait);
        }
    }

    fn check_consent(&mut self, now: Time) {
        let Some(selected) = &self.selected else {
            return;
        };
        let (path, id) = (selected.path, selected.id);
        if now >= selected.last + CONSENT {
            self.selected = None;
            if let Some(pair) = id.and_then(|id| self.pair(id)) {
                pair.fail();
                pair.consent_lost = true;
            }
            self.failure_reported = false;
            if let Some(peer) = &mut self.peer {
                peer.fails_at = now + FAILURE_PATIENCE;
            }
            self.events.push_back(IceEvent::ConsentLost(path));
            // Another pair may still work: suspended ones are checked, and one that the peer has nominated is checked
            // again.
            let spare = self.pairs.iter().filter(|pair| pair.nominated);
            let spare = spare
                .map(|pair| pair.id)
                .max_by_key(|id| self.priority(*id));
            if let Some(pair) = spare.and_then(|id| self.pair(id)) {
                pair.state = PairState::Waiting;
                let id = pair.id;
                self.trigger(id);
            }
            return;
        }
        if id.is_none() || now < selected.next {
            return;
        }
        if let Some((request, bytes)) = self.build_request(path.base, false) {
            if let Some(selected) = &mut self.selected {
                if selected.consent_checks.len() >= MAX_CONSENT_CHECKS {
                    selected.consent_checks.pop_front();
                }
                selected.consent_checks.push_back(request.transaction);
            }
            self.send(path.base, path.remote, bytes);
        }
        self.schedule_consent(now);
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("local", &self.local.credentials)
            .field("role", &self.role)
            .field("pairs", &self.pairs)
            .field("selected", &self.selected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
