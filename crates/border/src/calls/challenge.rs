//! INVITEs and requests outside of dialogs that the called side has challenged. The repeated request with credentials is forwarded
//! with the Call-ID and From tag of the first one, and the next CSeq (RFC 3261 section 22.2), although Call-ID and tag of the caller
//! are hidden: some systems bind their nonce to them.

use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use wire::sip::Message;

/// Maximum number of stored challenges.
const MOST: usize = 10_000;
/// Time for the caller to repeat the request.
const PATIENCE: Duration = Duration::from_secs(300);

/// Values of a challenged request of ours that its repetition has in common with it.
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

/// Challenged requests, by the values that are equal in the repeated one.
#[derive(Debug)]
pub(crate) struct Challenged {
    by_request: BoundedMap<u64, (Time, ChallengedLeg)>,
}

impl Challenged {
    pub(crate) fn new(key: HashKey) -> Challenged {
        Challenged {
            by_request: BoundedMap::new(MOST, key),
        }
    }

    pub(super) fn remember(&mut self, request: u64, leg: ChallengedLeg, now: Time) {
        if self.by_request.is_full() {
            self.by_request.clear();
        }
        // There is room: see above.
        let _ = self.by_request.insert(request, (now, leg));
    }

    pub(super) fn take(&mut self, request: u64, now: Time) -> Option<ChallengedLeg> {
        let (since, leg) = self.by_request.remove(&request)?;
        (now.since(since) <= PATIENCE).then_some(leg)
    }
}
