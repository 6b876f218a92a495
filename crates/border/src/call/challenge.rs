//! Call-IDs of calls that the callee's side has challenged. The repeated INVITE with credentials is forwarded with the
//! Call-ID of the first one (RFC 3261 section 8.1.3.5), although the Call-ID of the caller is hidden.

use crate::border::Core;
use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::net::IpAddr;
use wire::sip::{HeaderId, Message};

/// Maximum number of stored challenges.
const MOST: usize = 10_000;
/// Time for the caller to repeat the INVITE.
const PATIENCE: Duration = Duration::from_secs(300);

/// Challenged calls, by the values that are equal in the repeated INVITE.
#[derive(Debug)]
pub(crate) struct Challenged {
    by_invite: BoundedMap<u64, (Time, Box<[u8]>)>,
}

impl Challenged {
    pub(crate) fn new(key: HashKey) -> Challenged {
        Challenged {
            by_invite: BoundedMap::new(MOST, key),
        }
    }

    fn remember(&mut self, invite: u64, call_id: &[u8], now: Time) {
        if self.by_invite.is_full() {
            self.by_invite.clear();
        }
        // There is room: see above.
        let _ = self.by_invite.insert(invite, (now, call_id.into()));
    }

    fn take(&mut self, invite: u64, now: Time) -> Option<Box<[u8]>> {
        let (since, call_id) = self.by_invite.remove(&invite)?;
        (now.since(since) <= PATIENCE).then_some(call_id)
    }
}

impl Core {
    /// Hash of the values that are equal in both INVITEs: Call-ID, From tag and source address.
    fn invite_mark(&self, invite: &Message<'_>, source: IpAddr) -> u64 {
        let mut hasher = self.hash_key.build_hasher();
        invite.call_id().unwrap_or_default().hash(&mut hasher);
        let tag = invite.from().ok().and_then(|from| from.tag());
        tag.unwrap_or_default().hash(&mut hasher);
        source.hash(&mut hasher);
        hasher.finish()
    }

    /// Stores the Call-ID of a challenged INVITE, taken from `response`.
    pub(crate) fn store_challenge(&mut self, slot: usize, response: &Message<'_>, now: Time) {
        let set_up = self.calls.get(slot).and_then(|call| call.set_up.as_deref());
        let (Some(set_up), Ok(call_id)) = (set_up, response.call_id()) else {
            return;
        };
        let Ok(invite) = Message::parse(&set_up.invite) else {
            return;
        };
        let mark = self.invite_mark(&invite, set_up.source.ip());
        self.challenged.remember(mark, call_id, now);
    }

    /// The Call-ID of the first INVITE, if this one repeats it with credentials.
    pub(crate) fn challenged_call_id(
        &mut self,
        slot: usize,
        invite: &Message<'_>,
        now: Time,
    ) -> Option<Box<[u8]>> {
        let brings = [HeaderId::Authorization, HeaderId::ProxyAuthorization];
        if !brings.into_iter().any(|id| invite.has(id)) {
            return None;
        }
        let source = self.calls.get(slot)?.set_up.as_deref()?.source.ip();
        let mark = self.invite_mark(invite, source);
        self.challenged.take(mark, now)
    }
}
