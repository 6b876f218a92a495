//! The table of calls, with state that outlives a call or belongs to none yet.

use crate::calls::challenge::{Challenged, ChallengedLeg};
use crate::calls::ended::EndedCall;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::transfer::join::Join;
use crate::calls::{Call, SetUp};
use crate::headers::has_credentials;
use crate::index_remap::IndexRemap;
use crate::ng_client::relay::DeferredMessage;
use crate::shared::Ctx;
use anchor::{CallMedia, Side};
use engine::PagedSlab;
use engine::{Entropy, HashKey, Time};
use sip::{Endpoint, LegId};
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash as _;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use wire::sip::Message;

/// Buffers for composing messages, reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) sdp: Vec<u8>,
}

/// The calls of this worker.
#[derive(Debug)]
pub(crate) struct OngoingCalls {
    slots: PagedSlab<Call>,
    /// Number of calls so far.
    sequence: u64,
    pub(crate) hash_key: HashKey,
    pub(crate) buffers: Buffers,
    /// Challenged INVITEs and requests outside of dialogs, which are repeated.
    pub(crate) challenged: Challenged,
    /// Ended calls whose statistics are pending, by call number.
    pub(crate) ended: BTreeMap<u64, Box<EndedCall>>,
    /// Messages that waited for a media node in calls that have ended.
    pub(crate) deferred_messages: VecDeque<DeferredMessage>,
    /// Whether the indication being dispatched had waited for its media node.
    pub(crate) replaying: bool,
}

impl OngoingCalls {
    pub(crate) fn new(hash_key: HashKey) -> OngoingCalls {
        OngoingCalls {
            slots: PagedSlab::new(),
            sequence: 0,
            hash_key,
            buffers: Buffers::default(),
            challenged: Challenged::new(hash_key),
            ended: BTreeMap::new(),
            deferred_messages: VecDeque::new(),
            replaying: false,
        }
    }

    pub(crate) fn get(&self, slot: CallSlot) -> Option<&Call> {
        self.slots.get(slot.0)
    }

    pub(crate) fn get_mut(&mut self, slot: CallSlot) -> Option<&mut Call> {
        self.slots.get_mut(slot.0)
    }

    /// The set-up of a call that is not answered.
    pub(crate) fn set_up_mut(&mut self, slot: CallSlot) -> Option<&mut SetUp> {
        self.get_mut(slot)?.kind.set_up_mut()
    }

    /// The anchored media of a call.
    pub(crate) fn media_mut(&mut self, slot: CallSlot) -> Option<&mut CallMedia> {
        self.get_mut(slot)?.media.anchored_mut()
    }

    /// The transfer or refresh of a call.
    pub(crate) fn join(&self, slot: CallSlot) -> Option<&Join> {
        self.get(slot)?.kind.join()
    }

    pub(crate) fn join_mut(&mut self, slot: CallSlot) -> Option<&mut Join> {
        self.get_mut(slot)?.kind.join_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallSlot, &Call)> {
        self.slots.iter().map(|(slot, call)| (CallSlot(slot), call))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.slots.iter_mut().map(|(_, call)| call)
    }

    /// The slots in use. They are copied, because the table changes while calls are processed.
    pub(crate) fn slots(&self) -> Vec<CallSlot> {
        self.iter().map(|(slot, _)| slot).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of slots, used or not.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// The slot that [`OngoingCalls::insert`] will use next.
    pub(crate) fn next_slot(&self) -> CallSlot {
        CallSlot(self.slots.vacant_key())
    }

    pub(crate) fn insert(&mut self, call: Call) -> CallSlot {
        CallSlot(self.slots.insert(call))
    }

    pub(crate) fn remove(&mut self, slot: CallSlot) -> Option<Call> {
        self.slots.try_remove(slot.0)
    }

    /// A new call number, unique among all workers.
    pub(crate) fn next_number(&mut self, endpoint: &Endpoint) -> u64 {
        let worker = endpoint.worker();
        let number = self.sequence * u64::from(worker.count) + u64::from(worker.number) + 1;
        self.sequence += 1;
        number
    }

    /// The key of the call in a slot.
    pub(crate) fn key_of(&self, slot: CallSlot) -> CallKey {
        CallKey::new(slot, self.get(slot).map_or(0, |call| call.number))
    }

    /// The slot of a call, if the call still exists.
    pub(crate) fn slot_of(&self, key: CallKey) -> Option<CallSlot> {
        let slot = key.slot()?;
        (self.slots.contains(slot.0) && self.key_of(slot) == key).then_some(slot)
    }

    pub(crate) fn slot_of_leg(&self, endpoint: &Endpoint, leg: LegId) -> Option<CallSlot> {
        self.slot_of(CallKey(endpoint.user_of(leg)?))
    }

    /// A keyed hash of a Request-URI.
    pub(crate) fn mark_of(&self, uri: &[u8]) -> u64 {
        let mut hasher: SipHasher13 = self.hash_key.build_hasher();
        hasher.write(uri);
        hasher.finish()
    }

    /// Composes a Call-ID for a leg of the call. [`OngoingCalls::call_of_id`] recognises it.
    pub(crate) fn call_id(
        &self,
        entropy: &mut Entropy,
        endpoint: &Endpoint,
        key: CallKey,
        out: &mut Vec<u8>,
    ) {
        let random = endpoint.with_worker_number(entropy.u64());
        let masked = key.0 ^ self.hash_of(&[random, 1]);
        let tag = self.hash_of(&[random, key.0, 2]);
        for part in [random, masked, tag] {
            out.extend_from_slice(&sip::hex_digits(part));
        }
    }

    /// The call of a Call-ID that we composed.
    pub(crate) fn call_of_id(&self, call_id: &[u8]) -> Option<CallKey> {
        let text = std::str::from_utf8(call_id)
            .ok()
            .filter(|id| id.len() == 48)?;
        let number = |range| u64::from_str_radix(text.get(range)?, 16).ok();
        let (random, masked, tag) = (number(0..16)?, number(16..32)?, number(32..48)?);
        let key = masked ^ self.hash_of(&[random, 1]);
        (self.hash_of(&[random, key, 2]) == tag).then_some(CallKey(key))
    }

    /// The slot of the call whose leg has the Call-ID of a request, if we composed it.
    pub(crate) fn slot_of_call_id(&self, request: &Message<'_>) -> Option<CallSlot> {
        let key = self.call_of_id(request.call_id().ok()?)?;
        self.slot_of(key)
    }

    fn hash_of(&self, values: &[u64]) -> u64 {
        let mut hasher: SipHasher13 = self.hash_key.build_hasher();
        for value in values {
            hasher.write_u64(*value);
        }
        hasher.finish()
    }

    /// Logs the end of all calls with pending statistics.
    pub(crate) fn log_all_pending_ends(&mut self, ctx: &mut Ctx) {
        for (number, ended) in core::mem::take(&mut self.ended) {
            ended.report(ctx, number, None, Default::default());
        }
    }

    /// Hash of the values that are equal in a request and its repetition: method, Request-URI, Call-ID, From without
    /// its name, and source address. A request with the credentials of another user, or to a destination that needs
    /// none, repeats no challenged one.
    pub(crate) fn request_mark(&self, request: &Message<'_>, source: IpAddr) -> u64 {
        let mut hasher = self.hash_key.build_hasher();
        request.method().as_bytes().hash(&mut hasher);
        request.request_uri().hash(&mut hasher);
        request.call_id().unwrap_or_default().hash(&mut hasher);
        let from = request.from().ok();
        from.map_or(&b""[..], |from| from.uri).hash(&mut hasher);
        let tag = from.and_then(|from| from.tag());
        tag.unwrap_or_default().hash(&mut hasher);
        source.hash(&mut hasher);
        hasher.finish()
    }

    /// Stores the values of a challenged INVITE for its repetition, taken from `response`.
    pub(crate) fn store_challenge(&mut self, ctx: &Ctx, slot: CallSlot, response: &Message<'_>) {
        let Some(set_up) = self.get(slot).and_then(|call| call.kind.set_up()) else {
            return;
        };
        let source = set_up.source.ip();
        let (Some(leg), Ok(invite)) = (ChallengedLeg::of(response), Message::parse(&set_up.invite))
        else {
            return;
        };
        let mark = self.request_mark(&invite, source);
        self.challenged.remember(mark, leg, ctx.now);
    }

    /// Stores the values of a challenged request outside a dialog for its repetition, taken from `response`.
    pub(crate) fn store_challenged_request(
        &mut self,
        request: &Message<'_>,
        source: IpAddr,
        response: &Message<'_>,
        now: Time,
    ) {
        if let Some(leg) = ChallengedLeg::of(response) {
            let mark = self.request_mark(request, source);
            self.challenged.remember(mark, leg, now);
        }
    }

    /// The values of the challenged request, if this one repeats it with credentials.
    pub(crate) fn challenged_request(
        &mut self,
        request: &Message<'_>,
        source: IpAddr,
        now: Time,
    ) -> Option<ChallengedLeg> {
        if !has_credentials(request) {
            return None;
        }
        let mark = self.request_mark(request, source);
        self.challenged.take(mark, now)
    }

    /// The first INVITE, if this one repeats it with credentials.
    pub(crate) fn challenged_leg(
        &mut self,
        ctx: &Ctx,
        slot: CallSlot,
        invite: &Message<'_>,
    ) -> Option<ChallengedLeg> {
        let source = self.get(slot)?.kind.set_up()?.source.ip();
        self.challenged_request(invite, source, ctx.now)
    }

    /// Maps the indices of interfaces and trunks after a reload; references to removed objects are cleared.
    pub(crate) fn remap_indices(&mut self, renamed: &IndexRemap) {
        for call in self.values_mut() {
            for side in Side::BOTH {
                let interface = call.interfaces.get_mut(side);
                *interface = renamed.interface(*interface);
                let trunk = call.trunks.get_mut(side);
                *trunk = trunk.and_then(|trunk| renamed.trunk(trunk));
            }
            call.last_trunk = call.last_trunk.and_then(|trunk| renamed.trunk(trunk));
            if let Some(set_up) = call.kind.set_up_mut() {
                renamed.steps(&mut set_up.hops);
            }
            if let Some(join) = call.kind.join_mut() {
                join.rename(renamed);
            }
        }
    }
}
