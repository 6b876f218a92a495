//! Calls that the callee's side has challenged. The repeated INVITE with credentials is forwarded with the Call-ID and From tag of
//! the first one, and the next CSeq (RFC 3261 section 22.2), although Call-ID and tag of the caller are hidden: some systems bind
//! their nonce to them.

use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use wire::sip::Message;

/// Maximum number of stored challenges.
const MOST: usize = 10_000;
/// Time for the caller to repeat the INVITE.
const PATIENCE: Duration = Duration::from_secs(300);

/// Values of a challenged INVITE of ours that its repetition has in common with it.
#[derive(Clone, Debug)]
pub(crate) struct ChallengedLeg {
    pub(crate) call_id: Box<[u8]>,
    /// Our tag in From.
    pub(crate) tag: Box<[u8]>,
    pub(crate) cseq: u32,
}

impl ChallengedLeg {
    /// From the challenge.
    pub(super) fn of(response: &Message<'_>) -> Option<ChallengedLeg> {
        Some(ChallengedLeg {
            call_id: response.call_id().ok()?.into(),
            tag: response.from().ok()?.tag()?.into(),
            cseq: response.cseq().ok()?.number,
        })
    }
}

/// Challenged calls, by the values that are equal in the repeated INVITE.
#[derive(Debug)]
pub(crate) struct Challenged {
    by_invite: BoundedMap<u64, (Time, ChallengedLeg)>,
}

impl Challenged {
    pub(crate) fn new(key: HashKey) -> Challenged {
        Challenged {
            by_invite: BoundedMap::new(MOST, key),
        }
    }

    pub(super) fn remember(&mut self, invite: u64, leg: ChallengedLeg, now: Time) {
        if self.by_invite.is_full() {
            self.by_invite.clear();
        }
        // There is room: see above.
        let _ = self.by_invite.insert(invite, (now, leg));
    }

    pub(super) fn take(&mut self, invite: u64, now: Time) -> Option<ChallengedLeg> {
        let (since, leg) = self.by_invite.remove(&invite)?;
        (now.since(since) <= PATIENCE).then_some(leg)
    }
}
