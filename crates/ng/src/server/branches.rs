//! Calls by Call-ID, and in each the pairs of parties (branches) between which media is relayed.

use super::access::Requester;
use super::playback::CurrentPlayback;
use super::sdp::SdpFinish;
use super::statistics::{BranchView, PartyView};
use anchor::Side;
use anchor::codecs::AudioDescription;
use anchor::security::sdp::ProfileTransport;
use anchor::{CallMedia, MediaPlane};
use engine::timers::TimerKey;
use engine::{BoundedMap, HashKey, SocketId, Time};
use slab::Slab;
use smallvec::SmallVec;
use std::net::IpAddr;

/// Branches per call at most: each allocates ports.
const MAX_BRANCHES: usize = 64;

/// State of a drain.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) timer: TimerKey,
    pub(super) terminated: u64,
    /// Whether its end has been reported.
    pub(super) is_reported: bool,
}

/// Parameters of a party's last description.
#[derive(Clone, Debug, Default)]
pub(super) struct PartyDescription {
    /// Transport of its media; `None` before its first description.
    pub(super) transport: Option<ProfileTransport>,
    pub(super) ice: bool,
    pub(super) kinds: Vec<(Vec<u8>, Vec<u8>)>,
    /// Audio with supported codecs.
    pub(super) audio: Option<AudioDescription>,
}

/// An offer whose reply waits for sockets.
#[derive(Debug)]
pub(super) struct DeferredOffer {
    pub(super) requester: Requester,
    pub(super) sdp: Vec<u8>,
    pub(super) finish: SdpFinish,
}

/// Two parties, one of which has offered, with the media between them.
#[derive(Debug)]
pub(super) struct NgBranch {
    pub(super) session: u64,
    /// Number in events.
    pub(super) number: u64,
    pub(super) call: Vec<u8>,
    /// Tags of the first offerer and of the answerer; empty while unknown.
    pub(super) tags: [Vec<u8>; 2],
    pub(super) via: Option<Vec<u8>>,
    /// The hosts from which the sides signalled last (`received-from`).
    pub(super) sources: [Option<IpAddr>; 2],
    pub(super) media: Box<CallMedia>,
    pub(super) deferred: Option<DeferredOffer>,
    pub(super) descriptions: [PartyDescription; 2],
    /// Interfaces of both sides.
    pub(super) interfaces: [String; 2],
    /// Those of the previous ports, while media still needs them.
    pub(super) interfaces_before: Option<Box<[String; 2]>>,
    /// Sides whose media is blocked.
    pub(super) blocked: [bool; 2],
    /// Whether both parties were known before the open offer.
    pub(super) established: bool,
    /// Whether an offer was answered, which is logged once.
    pub(super) answered: bool,
    pub(super) deleting: Option<TimerKey>,
    /// Timer for the ports of lines that an answer has rejected.
    pub(super) releasing: Option<TimerKey>,
    /// Number of the recording.
    pub(super) recording: Option<u64>,
    /// Current playback towards each side.
    pub(super) playing: [Option<CurrentPlayback>; 2],
    pub(super) created: Time,
    /// The last offer.
    pub(super) offered: Time,
}

impl NgBranch {
    pub(super) fn tag(&self, side: Side) -> &[u8] {
        let [first, second] = &self.tags;
        match side {
            Side::Caller => first,
            Side::Callee => second,
        }
    }

    /// The side with this tag.
    pub(super) fn side_of(&self, tag: &[u8]) -> Option<Side> {
        Side::BOTH.into_iter().find(|side| self.tag(*side) == tag)
    }

    /// Notes where a side signals from: media of a phone that has moved, or of another phone that answers, may come
    /// from another NAT, although the description has the same private address.
    pub(super) fn note_source(&mut self, side: Side, source: Option<IpAddr>, is_other: bool) {
        let Some(place) = self.sources.get_mut(side.index()) else {
            return;
        };
        let moved = source.is_some() && place.is_some() && *place != source;
        *place = source.or(*place);
        if moved || is_other {
            self.media.relearn_address(side);
        }
    }

    /// Undoes a change of ports by an offer that was not answered.
    pub(super) fn undo_change(&mut self, plane: &mut MediaPlane) {
        if self.media.is_changing() {
            self.media.abandon(plane);
            self.media.restore_side(plane);
        }
        if let Some(before) = self.interfaces_before.take() {
            self.interfaces = *before;
        }
    }

    pub(super) fn view(&self) -> BranchView {
        let party = |side: Side| PartyView {
            tag: self.tag(side).to_vec(),
            kinds: self
                .descriptions
                .get(side.index())
                .map(|descriptions| descriptions.kinds.clone())
                .unwrap_or_default(),
        };
        BranchView {
            session: self.session,
            created: self.created,
            parties: [party(Side::Caller), party(Side::Callee)],
            lines: self.media.line_views().collect(),
            blocked: self.blocked,
            recording: self.recording.is_some(),
            encodings: self.media.encodings(),
        }
    }
}

#[derive(Debug)]
pub(super) struct NgCall {
    pub(super) created: Time,
    pub(super) signalled: Time,
    /// In order of creation.
    pub(super) sessions: SmallVec<[u64; 1]>,
}

/// All calls and branches.
#[derive(Debug)]
pub(super) struct BranchTable {
    slots: Slab<NgBranch>,
    calls: BoundedMap<Vec<u8>, NgCall>,
    serial: u32,
    limit: usize,
    numbers: u64,
}

impl BranchTable {
    pub(super) fn new(limit: usize, key: HashKey) -> BranchTable {
        BranchTable {
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

    pub(super) fn get(&self, session: u64) -> Option<&NgBranch> {
        self.slots.get(self.slot(session)?)
    }

    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut NgBranch> {
        let slot = self.slot(session)?;
        self.slots.get_mut(slot)
    }

    /// Adds a branch that `make` creates from its session and number; `None` at the limit.
    pub(super) fn add(
        &mut self,
        call: &[u8],
        now: Time,
        make: impl FnOnce(u64, u64) -> NgBranch,
    ) -> Option<u64> {
        if self.slots.len() >= self.limit {
            return None;
        }
        match self.calls.get_mut(call) {
            Some(existing) if existing.sessions.len() >= MAX_BRANCHES => return None,
            Some(_) => {}
            None => {
                let new_call = NgCall {
                    created: now,
                    signalled: now,
                    sessions: SmallVec::new(),
                };
                self.calls.insert(call.to_vec(), new_call).ok()?;
            }
        }
        self.serial = self.serial.wrapping_add(1);
        self.numbers += 1;
        let number = self.numbers;
        let entry = self.slots.vacant_entry();
        let session = (u64::from(self.serial) << 32) | (entry.key() as u64 + 1);
        entry.insert(make(session, number));
        if let Some(existing) = self.calls.get_mut(call) {
            existing.sessions.push(session);
        }
        Some(session)
    }

    /// Removes a branch, and its call with the last one.
    pub(super) fn remove(&mut self, session: u64) -> Option<NgBranch> {
        let slot = self.slot(session)?;
        let branch = self.slots.try_remove(slot)?;
        if let Some(call) = self.calls.get_mut(&branch.call) {
            call.sessions.retain(|existing| *existing != session);
            if call.sessions.is_empty() {
                self.calls.remove(&branch.call);
            }
        }
        Some(branch)
    }

    pub(super) fn call(&self, id: &[u8]) -> Option<&NgCall> {
        self.calls.get(id)
    }

    pub(super) fn call_mut(&mut self, id: &[u8]) -> Option<&mut NgCall> {
        self.calls.get_mut(id)
    }

    /// Branches of a call, in order of creation.
    pub(super) fn of_call(&self, id: &[u8]) -> impl Iterator<Item = &NgBranch> {
        self.calls
            .get(id)
            .into_iter()
            .flat_map(|call| &call.sessions)
            .filter_map(|session| self.get(*session))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NgBranch> {
        self.slots.iter().map(|(_, branch)| branch)
    }

    /// The session that uses a media socket.
    pub(super) fn session_of(&self, socket: SocketId) -> Option<u64> {
        self.iter()
            .find(|branch| branch.media.uses(socket))
            .map(|branch| branch.session)
    }
}
