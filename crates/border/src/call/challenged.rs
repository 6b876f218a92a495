//! Call-IDs of calls that the called side has challenged: the INVITE that comes again with credentials goes on under the Call-ID of
//! the first (RFC 3261 section 8.1.3.5), though the caller's own Call-ID is hidden.

use crate::border::Core;
use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::net::IpAddr;
use wire::sip::{HeaderId, Message};

/// Challenged calls that are remembered.
const MOST: usize = 10_000;
/// How long a caller may take to come again.
const PATIENCE: Duration = Duration::from_secs(300);

/// Challenged calls, by what is the same in the INVITE that comes again.
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
    /// What is the same in both INVITEs of a call that is challenged: Call-ID, the tag of From, and where they come from.
    fn invite_mark(&self, invite: &Message<'_>, source: IpAddr) -> u64 {
        let mut hasher = self.marks.build_hasher();
        invite.call_id().unwrap_or_default().hash(&mut hasher);
        let tag = invite.from().ok().and_then(|from| from.tag());
        tag.unwrap_or_default().hash(&mut hasher);
        source.hash(&mut hasher);
        hasher.finish()
    }

    /// The called side has challenged the INVITE of a call, which went there under the Call-ID of `response`.
    pub(crate) fn was_challenged(&mut self, slot: usize, response: &Message<'_>, now: Time) {
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

    /// The Call-ID under which an INVITE with credentials went on before it had them.
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
