//! Calls by their Call-IDs, and in each the pairs of parties between which media goes.

use super::access::Asker;
use super::figures::{BranchView, PartyView};
use super::play::Playing;
use super::text::Finish;
use crate::anchor::CallMedia;
use crate::anchor::codecs::Speech;
use crate::anchor::protected::Transport;
use crate::call::Side;
use engine::timers::TimerKey;
use engine::{BoundedMap, HashKey, SocketId, Time};
use slab::Slab;
use smallvec::SmallVec;

/// Pairs of parties of one call at most: each takes ports.
const MAX_BRANCHES: usize = 64;

/// A drain that is under way.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) timer: TimerKey,
    pub(super) cut: u64,
    /// That it has ended was told.
    pub(super) finished: bool,
}

/// What a side's last description said.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// How its media is carried; `None`: it has not said anything yet.
    pub(super) transport: Option<Transport>,
    pub(super) ice: bool,
    pub(super) kinds: Vec<(Vec<u8>, Vec<u8>)>,
    /// What it speaks, where we can.
    pub(super) speech: Option<Speech>,
}

/// An offer that waits for its sockets.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) asker: Asker,
    pub(super) sdp: Vec<u8>,
    pub(super) finish: Finish,
}

/// Two parties, one of whom offered; media goes between them.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) session: u64,
    /// In events.
    pub(super) number: u64,
    pub(super) call: Vec<u8>,
    /// Of whoever offered first, and of whoever answered; empty until that is known.
    pub(super) tags: [Vec<u8>; 2],
    pub(super) via: Option<Vec<u8>>,
    pub(super) media: Box<CallMedia>,
    pub(super) held: Option<Held>,
    pub(super) heard: [Heard; 2],
    /// Names of the interfaces on which its sides are.
    pub(super) interfaces: [String; 2],
    /// Nothing of what these sides send passes.
    pub(super) blocked: [bool; 2],
    /// Both parties were known before the open offer came.
    pub(super) established: bool,
    pub(super) deleting: Option<TimerKey>,
    /// Number of its recording.
    pub(super) recording: Option<u64>,
    /// What is played to each side.
    pub(super) playing: [Option<Playing>; 2],
    pub(super) created: Time,
}

impl Branch {
    pub(super) fn tag(&self, side: Side) -> &[u8] {
        let [first, second] = &self.tags;
        match side {
            Side::Caller => first,
            Side::Callee => second,
        }
    }

    /// Which of the parties has this tag.
    pub(super) fn side_of(&self, tag: &[u8]) -> Option<Side> {
        Side::BOTH.into_iter().find(|side| self.tag(*side) == tag)
    }

    pub(super) fn view(&self) -> BranchView {
        let party = |side: Side| PartyView {
            tag: self.tag(side).to_vec(),
            kinds: self
                .heard
                .get(side.index())
                .map(|heard| heard.kinds.clone())
                .unwrap_or_default(),
        };
        BranchView {
            session: self.session,
            created: self.created,
            parties: [party(Side::Caller), party(Side::Callee)],
            lines: self.media.places().collect(),
            blocked: self.blocked,
            recording: self.recording.is_some(),
            encodings: self.media.encodings(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) created: Time,
    pub(super) signalled: Time,
    /// In the order in which they came.
    pub(super) sessions: SmallVec<[u64; 1]>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Branches {
    slots: Slab<Branch>,
    calls: BoundedMap<Vec<u8>, Call>,
    serial: u32,
    limit: usize,
    numbers: u64,
}

impl Branches {
    pub(super) fn new(limit: usize, key: HashKey) -> Branches {
        Branches {
            slots: Slab::new(),
            calls: BoundedMap::new(limit, key),
            serial: 0,
            limit,
            numbers: 0,
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.calls.set_limit(limit);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    fn slot(&self, session: u64) -> Option<usize> {
        let slot = (session & 0xffff_ffff).checked_sub(1)? as usize;
        self.slots
            .get(slot)
            .is_some_and(|branch| branch.session == session)
            .then_some(slot)
    }

    pub(super) fn get(&self, session: u64) -> Option<&Branch> {
        self.slots.get(self.slot(session)?)
    }

    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut Branch> {
        let slot = self.slot(session)?;
        self.slots.get_mut(slot)
    }

    /// Adds a branch that `make` makes of its session and number; `None`: there is no room.
    pub(super) fn add(
        &mut self,
        call: &[u8],
        now: Time,
        make: impl FnOnce(u64, u64) -> Branch,
    ) -> Option<u64> {
        if self.slots.len() >= self.limit {
            return None;
        }
        match self.calls.get_mut(call) {
            Some(known) if known.sessions.len() >= MAX_BRANCHES => return None,
            Some(_) => {}
            None => {
                let fresh = Call {
                    created: now,
                    signalled: now,
                    sessions: SmallVec::new(),
                };
                self.calls.insert(call.to_vec(), fresh).ok()?;
            }
        }
        self.serial = self.serial.wrapping_add(1);
        self.numbers += 1;
        let number = self.numbers;
        let entry = self.slots.vacant_entry();
        let session = (u64::from(self.serial) << 32) | (entry.key() as u64 + 1);
        entry.insert(make(session, number));
        if let Some(known) = self.calls.get_mut(call) {
            known.sessions.push(session);
        }
        Some(session)
    }

    /// Takes a branch out, and its call with the last one.
    pub(super) fn remove(&mut self, session: u64) -> Option<Branch> {
        let slot = self.slot(session)?;
        let branch = self.slots.try_remove(slot)?;
        if let Some(call) = self.calls.get_mut(&branch.call) {
            call.sessions.retain(|known| *known != session);
            if call.sessions.is_empty() {
                self.calls.remove(&branch.call);
            }
        }
        Some(branch)
    }

    pub(super) fn call(&self, id: &[u8]) -> Option<&Call> {
        self.calls.get(id)
    }

    pub(super) fn call_mut(&mut self, id: &[u8]) -> Option<&mut Call> {
        self.calls.get_mut(id)
    }

    /// The branches of a call, in the order in which they came.
    pub(super) fn of_call(&self, id: &[u8]) -> impl Iterator<Item = &Branch> {
        self.calls
            .get(id)
            .into_iter()
            .flat_map(|call| &call.sessions)
            .filter_map(|session| self.get(*session))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Branch> {
        self.slots.iter().map(|(_, branch)| branch)
    }

    /// Whose a media socket is.
    pub(super) fn user_of(&self, socket: SocketId) -> Option<u64> {
        self.iter()
            .find(|branch| branch.media.uses(socket))
            .map(|branch| branch.session)
    }
}
