//! The full agent (RFC 8445): it forms pairs, checks them, nominates or lets nominate, and keeps asking for consent (RFC 7675).
//!
//! One agent is one component of one stream, over UDP. It has host candidates; what NATs make of them the peer sees (peer-reflexive
//! candidates). A pair is a base of ours and an address of the peer's, for that is what datagrams go between: a peer-reflexive
//! candidate of ours shares its base's pair.
//!
//! No clock and no randomness of its own: times and a generator are handed in. Lists have limits, and what exceeds them is refused.

mod heard;

use super::candidate::{Candidate, Kind, priority};
use super::{CONSENT, Credentials};
use crate::cipher::HmacSha1;
use crate::stun::{Builder, Message, attribute, message_type};
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Entropy, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Addresses of ours at most.
pub const MAX_LOCAL: usize = 8;
/// Candidates of the peer at most; more are refused.
pub const MAX_REMOTE: usize = 32;
/// Pairs at most (RFC 8445 section 6.1.2.5); those of lowest priority are left out.
pub const MAX_PAIRS: usize = 100;
/// Datagrams that wait to be taken.
const DATAGRAMS: usize = 64;
/// Checks that came before the peer's credentials were known.
const EARLY: usize = 8;
/// Time between two new checks (Ta, RFC 8445 section 14.2).
pub const PACE: Duration = Duration::from_millis(50);
/// The shortest time after which a check is sent again (RFC 8445 section 14.3).
pub const RETRANSMIT: Duration = Duration::from_millis(500);
/// How often a check is sent (Rc), and how many first waits the last one has (Rm, RFC 8489 section 6.2.1).
const SENDS: u8 = 7;
const LAST_WAIT: u32 = 16;
/// How long the controlling agent waits for pairs better than the best that works.
const NOMINATION_PATIENCE: Duration = Duration::from_millis(500);
/// So long nothing has failed, whatever has: the peer may still be on its way to us (RFC 8863).
pub const FAILURE_PATIENCE: Duration = Duration::from_millis(39_500);
/// Consent is asked for about so often (RFC 7675 section 5.1).
const CONSENT_INTERVAL: Duration = Duration::from_secs(5);
/// So long the peer must not have nominated the pair in use, for a lesser one that it nominates to take its place: browsers change
/// their mind, and then keep nominating what they have chosen.
const RENOMINATION: Duration = Duration::from_secs(1);
/// Requests for consent whose answers are waited for.
const CONSENT_OPEN: usize = 8;

/// Who decides (RFC 8445 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nominates.
    Controlling,
    /// Lets nominate.
    Controlled,
}

impl Role {
    const fn other(self) -> Role {
        match self {
            Role::Controlling => Role::Controlled,
            Role::Controlled => Role::Controlling,
        }
    }

    const fn attribute(self) -> u16 {
        match self {
            Role::Controlling => attribute::ICE_CONTROLLING,
            Role::Controlled => attribute::ICE_CONTROLLED,
        }
    }
}

/// A pair over which media goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Which address of ours, by its number.
    pub base: u8,
    /// The peer's address, as we see it.
    pub remote: SocketAddr,
    /// Our address, as the peer sees it.
    pub mapped: SocketAddr,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A pair was nominated and works: media goes over it, and over no other.
    Selected(Path),
    /// The peer has not agreed to be sent to for [`CONSENT`]: nothing more may be sent over the pair, until ICE is restarted or another
    /// pair is nominated.
    ConsentLost(Path),
    /// No pair works.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Local {
    address: SocketAddr,
    preference: u16,
}

impl Local {
    fn priority(&self, kind: Kind) -> u32 {
        priority(kind, self.preference, 1)
    }
}

#[derive(Debug)]
struct Remote {
    candidate: Candidate,
    /// The first one with its foundation.
    group: u8,
    /// A check came from there that knew our credentials.
    proved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Frozen,
    Waiting,
    InProgress,
    Succeeded,
    Failed,
}

/// Numbers of the local and of the remote candidate.
type PairId = (u8, u8);

/// A request of ours: what has to be known of it when it is answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    transaction: [u8; 12],
    role: Role,
    nominates: bool,
}

#[derive(Debug)]
struct Check {
    asked: Asked,
    bytes: Vec<u8>,
    sent: u8,
    first_wait: Duration,
    wait: Duration,
    due: Time,
}

#[derive(Debug)]
struct Pair {
    id: PairId,
    state: State,
    check: Option<Check>,
    /// A check that another one took the place of; it may be answered all the same.
    earlier: Option<Asked>,
    /// Our address as the peer sees it, once a check was answered.
    mapped: Option<SocketAddr>,
    /// By us, with the next check; or by the peer, when ours has been answered.
    nominated: bool,
    /// The peer's consent was lost: not to be used again with these credentials (RFC 7675 section 5.1).
    lost: bool,
}

impl Pair {
    fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Frozen | State::Waiting | State::InProgress
        )
    }

    fn fail(&mut self) {
        self.state = State::Failed;
        self.check = None;
        self.earlier = None;
        self.mapped = None;
        self.nominated = false;
    }
}

/// The pair in use.
#[derive(Debug)]
struct Selected {
    path: Path,
    /// None: of before a restart.
    id: Option<PairId>,
    /// When it was nominated last.
    nominated: Time,
    last: Time,
    next: Time,
    asked: VecDeque<[u8; 12]>,
}

/// A check that came before the peer's credentials were known.
#[derive(Debug)]
struct Early {
    base: u8,
    source: SocketAddr,
    priority: u32,
    nominates: bool,
    fragment: Vec<u8>,
}

/// The peer's credentials.
struct Peer {
    credentials: Credentials,
    key: HmacSha1,
    name: Vec<u8>,
    lite: bool,
    /// When it may be said that nothing works.
    fails: Time,
}

/// Credentials of ours before a restart, which the peer uses until it knows the new ones.
struct Former {
    credentials: Credentials,
    key: HmacSha1,
    until: Time,
}

/// See the module's text.
pub struct Agent {
    local: Credentials,
    key: HmacSha1,
    role: Role,
    tie_breaker: u64,
    entropy: Entropy,
    locals: Vec<Local>,
    peer: Option<Peer>,
    former: Option<Former>,
    remotes: Vec<Remote>,
    pairs: Vec<Pair>,
    triggered: VecDeque<PairId>,
    early: Vec<Early>,
    next_check: Time,
    first_valid: Option<Time>,
    selected: Option<Selected>,
    failure_told: bool,
    out: VecDeque<(u8, SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
}

impl Agent {
    /// An agent with these credentials of its own; `entropy`: a generator for it alone.
    pub fn new(local: Credentials, role: Role, mut entropy: Entropy) -> Agent {
        Agent {
            key: HmacSha1::new(local.password().as_bytes()),
            local,
            role,
            tie_breaker: entropy.u64(),
            entropy,
            locals: Vec::new(),
            peer: None,
            former: None,
            remotes: Vec::new(),
            pairs: Vec::new(),
            triggered: VecDeque::new(),
            early: Vec::new(),
            next_check: Time::ZERO,
            first_valid: None,
            selected: None,
            failure_told: false,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds an address of ours, before those of the peer, the best first; its number. None: there are [`MAX_LOCAL`].
    pub fn add_local(&mut self, address: SocketAddr) -> Option<u8> {
        let number = self.locals.len();
        if number >= MAX_LOCAL {
            return None;
        }
        self.locals.push(Local {
            address,
            preference: u16::MAX - number as u16,
        });
        Some(number as u8)
    }

    /// Our candidates, for the session description.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        (1u32..).zip(&self.locals).map(|(number, local)| Candidate {
            foundation: number.to_string(),
            component: 1,
            priority: local.priority(Kind::Host),
            address: local.address,
            kind: Kind::Host,
        })
    }

    /// Our credentials.
    pub fn local(&self) -> &Credentials {
        &self.local
    }

    /// The peer's credentials, where they are known.
    pub fn remote(&self) -> Option<&Credentials> {
        self.peer.as_ref().map(|peer| &peer.credentials)
    }

    /// Whether we control.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The role that offer and answer give (RFC 8445 section 6.1.1); a conflict between the agents may change it.
    pub fn set_role(&mut self, role: Role) {
        if role != self.role {
            self.role = role;
            for pair in &mut self.pairs {
                pair.nominated = false;
            }
        }
    }

    /// The peer's credentials, as signalling has them; `lite`: it is a lite agent. Others than before begin anew: what is selected
    /// stays in use until a pair is nominated with the new ones.
    pub fn set_remote(&mut self, credentials: Credentials, lite: bool, now: Time) {
        if let Some(peer) = &mut self.peer
            && peer.credentials == credentials
        {
            peer.lite = lite;
            return;
        }
        self.forget_pairs();
        let name = format!("{}:{}", credentials.fragment(), self.local.fragment());
        self.peer = Some(Peer {
            key: HmacSha1::new(credentials.password().as_bytes()),
            name: name.into_bytes(),
            lite,
            fails: now + FAILURE_PATIENCE,
            credentials,
        });
        self.next_check = now;
    }

    /// A candidate of the peer's, now or later (RFC 8838). One that is known already, of another component, or of a family that we
    /// have no address of, changes nothing.
    ///
    /// # Errors
    /// [`DropReason::IceCandidate`]: there are [`MAX_REMOTE`] already.
    pub fn add_remote(&mut self, candidate: Candidate) -> Result<(), DropReason> {
        if candidate.component != 1 {
            return Ok(());
        }
        if let Some(known) = self.find_remote(candidate.address) {
            // What was found by a check now has its name (RFC 8445 section 7.3.1.3).
            let group = self.group(&candidate.foundation);
            if let Some(known) = self.remotes.get_mut(usize::from(known))
                && known.candidate.kind == Kind::PeerReflexive
            {
                known.candidate.foundation = candidate.foundation;
                known.group = group;
            }
            return Ok(());
        }
        let number = self.push_remote(candidate, false)?;
        for local in 0..self.locals.len() {
            self.form((local as u8, number), State::Frozen);
        }
        self.failure_told = false;
        Ok(())
    }

    /// Takes in what came early, once the peer's credentials and candidates are set.
    pub fn begin(&mut self, now: Time) {
        let Some(peer) = &self.peer else { return };
        let fragment = peer.credentials.fragment().as_bytes().to_vec();
        for early in core::mem::take(&mut self.early) {
            if early.fragment == fragment {
                let Early {
                    base,
                    source,
                    priority,
                    nominates,
                    ..
                } = early;
                self.checked(base, source, priority, nominates, now);
            }
        }
    }

    /// Starts over with new credentials of ours (RFC 8445 section 9); those of the peer come with [`Agent::set_remote`]. What is
    /// selected stays in use until a new pair is nominated, as long as the peer's consent holds.
    pub fn restart(&mut self, local: Credentials, role: Role, now: Time) {
        let key = HmacSha1::new(local.password().as_bytes());
        self.former = Some(Former {
            credentials: core::mem::replace(&mut self.local, local),
            key: core::mem::replace(&mut self.key, key),
            until: now + CONSENT,
        });
        self.peer = None;
        self.early.clear();
        self.forget_pairs();
        self.role = role;
        self.tie_breaker = self.entropy.u64();
    }

    fn forget_pairs(&mut self) {
        self.remotes.clear();
        self.pairs.clear();
        self.triggered.clear();
        self.first_valid = None;
        self.failure_told = false;
        if let Some(selected) = &mut self.selected {
            selected.id = None;
            selected.asked.clear();
        }
    }

    /// Where media goes.
    pub fn selected(&self) -> Option<Path> {
        self.selected.as_ref().map(|selected| selected.path)
    }

    /// Whether a handshake from there may be taken: a check came from it that knew our credentials.
    pub fn admits(&self, source: SocketAddr) -> bool {
        self.selected().is_some_and(|path| path.remote == source)
            || self
                .remotes
                .iter()
                .any(|known| known.proved && known.candidate.address == source)
            || self.early.iter().any(|early| early.source == source)
    }

    /// The next datagram: from which address of ours, whereto, what.
    pub fn next_datagram(&mut self) -> Option<(u8, SocketAddr, Vec<u8>)> {
        self.out.pop_front()
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes in a STUN datagram that came from `source` to the address `base` of ours.
    ///
    /// # Errors
    /// What to count it as where it is neither a good check nor an answer to one of ours. Some are answered with an error all the same.
    pub fn feed(
        &mut self,
        base: u8,
        datagram: &[u8],
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let message = Message::parse(datagram).ok_or(DropReason::StunMalformed)?;
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

    /// Tells the time: sends what is due.
    pub fn timeout(&mut self, now: Time) {
        self.ask_consent(now);
        self.retransmit(now);
        self.nominate(now);
        if now >= self.next_check
            && let Some(id) = self.next_pair()
        {
            self.triggered.retain(|known| *known != id);
            self.check(id, now);
            self.next_check = now + PACE;
        }
        if self.former.as_ref().is_some_and(|known| known.until <= now) {
            self.former = None;
        }
        if self.failure_due().is_some_and(|due| due <= now) {
            self.failure_told = true;
            self.events.push_back(Event::Failed);
        }
    }

    /// When [`Agent::timeout`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Time> {
        let check = self.next_pair().map(|_| self.next_check);
        let again = self.pairs.iter().filter_map(|pair| pair.check.as_ref());
        let again = again.map(|check| check.due).min();
        let consent = self.selected.as_ref().map(|selected| match selected.id {
            Some(_) => selected.next.min(selected.last + CONSENT),
            None => selected.last + CONSENT,
        });
        let nomination = self.nominee().and(self.first_valid);
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

    /// When it will have failed as things stand.
    fn failure_due(&self) -> Option<Time> {
        let peer = self.peer.as_ref()?;
        let hope = self.is_complete()
            || self
                .pairs
                .iter()
                .any(|pair| pair.is_open() || pair.mapped.is_some());
        (!hope && !self.failure_told).then_some(peer.fails)
    }

    fn find_remote(&self, address: SocketAddr) -> Option<u8> {
        let known = self
            .remotes
            .iter()
            .position(|remote| remote.candidate.address == address);
        known.map(|number| number as u8)
    }

    fn group(&self, foundation: &str) -> u8 {
        let same = |known: &Remote| known.candidate.foundation == foundation;
        self.remotes
            .iter()
            .position(same)
            .unwrap_or(self.remotes.len()) as u8
    }

    fn push_remote(&mut self, candidate: Candidate, proved: bool) -> Result<u8, DropReason> {
        let number = self.remotes.len();
        if number >= MAX_REMOTE {
            return Err(DropReason::IceCandidate);
        }
        self.remotes.push(Remote {
            group: self.group(&candidate.foundation),
            candidate,
            proved,
        });
        Ok(number as u8)
    }

    fn pair(&mut self, id: PairId) -> Option<&mut Pair> {
        self.pairs.iter_mut().find(|pair| pair.id == id)
    }

    /// RFC 8445 section 6.1.2.3.
    fn priority(&self, (local, remote): PairId) -> u64 {
        let local = self.locals.get(usize::from(local));
        let remote = self.remotes.get(usize::from(remote));
        let ours = local.map_or(0, |local| u64::from(local.priority(Kind::Host)));
        let theirs = remote.map_or(0, |remote| u64::from(remote.candidate.priority));
        let (controlling, controlled) = match self.role {
            Role::Controlling => (ours, theirs),
            Role::Controlled => (theirs, ours),
        };
        controlling.min(controlled) << 32
            | controlling.max(controlled) << 1
            | u64::from(controlling > controlled)
    }

    /// Local candidate, and first remote one with the same foundation.
    fn foundation(&self, (local, remote): PairId) -> (u8, u8) {
        let group = self.remotes.get(usize::from(remote));
        (local, group.map_or(remote, |remote| remote.group))
    }

    /// Whether a pair has its place.
    fn form(&mut self, id: PairId, state: State) -> bool {
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
        self.pairs.push(Pair {
            id,
            state,
            check: None,
            earlier: None,
            mapped: None,
            nominated: false,
            lost: false,
        });
        true
    }

    /// What is checked next: what was triggered first; then by priority what waits, and of each foundation with nothing under way the
    /// best (RFC 8445 section 6.1.4.2).
    fn next_pair(&self) -> Option<PairId> {
        self.peer.as_ref()?;
        let waits = |id: &&PairId| {
            let pair = self.pairs.iter().find(|pair| pair.id == **id);
            pair.is_some_and(|pair| pair.state != State::InProgress)
        };
        if let Some(id) = self.triggered.iter().find(waits) {
            return Some(*id);
        }
        if self.is_complete() {
            return None;
        }
        let best = |wanted: State, free: &dyn Fn(PairId) -> bool| {
            self.pairs
                .iter()
                .filter(|pair| pair.state == wanted && free(pair.id))
                .map(|pair| pair.id)
                .max_by_key(|id| self.priority(*id))
        };
        best(State::Waiting, &|_| true).or_else(|| {
            best(State::Frozen, &|id| {
                let foundation = self.foundation(id);
                !self.pairs.iter().any(|other| {
                    other.state == State::InProgress && self.foundation(other.id) == foundation
                })
            })
        })
    }

    /// A request of ours; its bytes.
    fn ask(&mut self, local: u8, nominates: bool) -> Option<(Asked, Vec<u8>)> {
        let mut transaction = [0; 12];
        self.entropy.fill(&mut transaction);
        let peer = self.peer.as_ref()?;
        let local = self.locals.get(usize::from(local))?;
        let reflexive = local.priority(Kind::PeerReflexive);
        let mut builder = Builder::new(message_type::BINDING_REQUEST, transaction)
            .attribute(attribute::USERNAME, &peer.name)
            .attribute(attribute::PRIORITY, &reflexive.to_be_bytes())
            .attribute(self.role.attribute(), &self.tie_breaker.to_be_bytes());
        if nominates {
            builder = builder.attribute(attribute::USE_CANDIDATE, &[]);
        }
        let asked = Asked {
            transaction,
            role: self.role,
            nominates,
        };
        Some((asked, builder.finish(Some(&peer.key))))
    }

    fn send(&mut self, local: u8, to: SocketAddr, bytes: Vec<u8>) {
        if self.out.len() < DATAGRAMS {
            self.out.push_back((local, to, bytes));
        }
    }

    /// Sends a new check of a pair.
    fn check(&mut self, id: PairId, now: Time) {
        let open = self.pairs.iter();
        let open = open.filter(|pair| matches!(pair.state, State::Waiting | State::InProgress));
        let wait = RETRANSMIT.max(PACE * open.count() as u32);
        let controlling = self.role == Role::Controlling;
        let nominates = self
            .pair(id)
            .is_some_and(|pair| controlling && pair.nominated);
        let remote = self.remotes.get(usize::from(id.1));
        let Some(to) = remote.map(|remote| remote.candidate.address) else {
            return;
        };
        let Some((asked, bytes)) = self.ask(id.0, nominates) else {
            return;
        };
        if let Some(pair) = self.pair(id) {
            pair.state = State::InProgress;
            pair.check = Some(Check {
                asked,
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
            if check.sent >= SENDS {
                pair.fail();
                continue;
            }
            check.sent += 1;
            check.wait *= 2;
            let wait = match check.sent {
                SENDS => check.first_wait * LAST_WAIT,
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

    /// The best pair that works, where it is ours to nominate it and none is nominated.
    fn nominee(&self) -> Option<PairId> {
        if self.role != Role::Controlling
            || self.is_complete()
            || self.pairs.iter().any(|pair| pair.nominated)
        {
            return None;
        }
        self.pairs
            .iter()
            .filter(|pair| pair.state == State::Succeeded)
            .map(|pair| pair.id)
            .max_by_key(|id| self.priority(*id))
    }

    /// Regular nomination (RFC 8445 section 8.1.1): of the best pair that works, when no better one may come to work soon.
    fn nominate(&mut self, now: Time) {
        let Some(id) = self.nominee() else { return };
        let own = self.priority(id);
        let mut open = self.pairs.iter().filter(|pair| pair.is_open());
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
        // Agents of RFC 5245 nominate every pair that works: of those the best is meant.
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
            asked: VecDeque::new(),
        });
        self.schedule_consent(now);
        // RFC 8445 section 8.1.2: what is not needed any more rests, in case the chosen pair dies; better ones that are under way may
        // yet be nominated.
        let own = self.priority(id);
        let worse: Vec<PairId> = self
            .pairs
            .iter()
            .filter(|pair| match pair.state {
                State::Frozen | State::Waiting => true,
                State::InProgress => self.priority(pair.id) < own,
                State::Succeeded | State::Failed => false,
            })
            .map(|pair| pair.id)
            .collect();
        for id in worse {
            if let Some(pair) = self.pair(id) {
                pair.state = State::Frozen;
                pair.check = None;
                pair.earlier = None;
            }
        }
        self.triggered.clear();
        if before != Some(path) {
            self.events.push_back(Event::Selected(path));
        }
    }

    /// The next request for consent: at random within a fifth of the interval (RFC 7675 section 5.1).
    fn schedule_consent(&mut self, now: Time) {
        let fifth = CONSENT_INTERVAL.as_millis() as u64 / 5;
        let wait = 4 * fifth + self.entropy.below(2 * fifth);
        if let Some(selected) = &mut self.selected {
            selected.next = now + Duration::from_millis(wait);
        }
    }

    fn ask_consent(&mut self, now: Time) {
        let Some(selected) = &self.selected else {
            return;
        };
        let (path, id) = (selected.path, selected.id);
        if now >= selected.last + CONSENT {
            self.selected = None;
            if let Some(pair) = id.and_then(|id| self.pair(id)) {
                pair.fail();
                pair.lost = true;
            }
            self.failure_told = false;
            if let Some(peer) = &mut self.peer {
                peer.fails = now + FAILURE_PATIENCE;
            }
            self.events.push_back(Event::ConsentLost(path));
            // Another pair may still work: those that rested are checked, and one that the peer has nominated is checked anew.
            let spare = self.pairs.iter().filter(|pair| pair.nominated);
            let spare = spare
                .map(|pair| pair.id)
                .max_by_key(|id| self.priority(*id));
            if let Some(pair) = spare.and_then(|id| self.pair(id)) {
                pair.state = State::Waiting;
                let id = pair.id;
                self.trigger(id);
            }
            return;
        }
        if id.is_none() || now < selected.next {
            return;
        }
        if let Some((asked, bytes)) = self.ask(path.base, false) {
            if let Some(selected) = &mut self.selected {
                if selected.asked.len() >= CONSENT_OPEN {
                    selected.asked.pop_front();
                }
                selected.asked.push_back(asked.transaction);
            }
            self.send(path.base, path.remote, bytes);
        }
        self.schedule_consent(now);
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("local", &self.local)
            .field("role", &self.role)
            .field("pairs", &self.pairs)
            .field("selected", &self.selected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
