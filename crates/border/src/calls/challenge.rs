//! Call-IDs of calls that the callee's side has challenged. The repeated INVITE with credentials is forwarded with the
//! Call-ID of the first one (RFC 3261 section 8.1.3.5), although the Call-ID of the caller is hidden.

use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};

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

    pub(super) fn remember(&mut self, invite: u64, call_id: &[u8], now: Time) {
        if self.by_invite.is_full() {
            self.by_invite.clear();
        }
        // There is room: see above.
        let _ = self.by_invite.insert(invite, (now, call_id.into()));
    }

    pub(super) fn take(&mut self, invite: u64, now: Time) -> Option<Box<[u8]>> {
        let (since, call_id) = self.by_invite.remove(&invite)?;
        (now.since(since) <= PATIENCE).then_some(call_id)
    }
}
