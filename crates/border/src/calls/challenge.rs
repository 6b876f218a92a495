//! INVITEs and requests outside of dialogs that the called side has challenged. The repeated request with credentials
//! is forwarded with the Call-ID and From tag of the first one, and the next CSeq (RFC 3261 section 22.2), although
//! Call-ID and tag of the caller are hidden: some systems bind their nonce to them.

use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use wire::sip::Message;

/// Maximum number of stored challenges of each generation.
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

/// Challenged requests, by the values that are equal in the repeated one. A full generation becomes the previous one,
/// so that the last [`MOST`] challenges are known also while many phones subscribe and register at once; so does one
/// that is older than [`PATIENCE`], because many callers never repeat their request.
#[derive(Debug)]
pub(crate) struct Challenged {
    /// Since when `young` is in use.
    since: Time,
    young: BoundedMap<u64, (Time, ChallengedLeg)>,
    old: BoundedMap<u64, (Time, ChallengedLeg)>,
}

impl Challenged {
    pub(crate) fn new(key: HashKey) -> Challenged {
        Challenged {
            since: Time::ZERO,
            young: BoundedMap::new(MOST, key),
            old: BoundedMap::new(MOST, key),
        }
    }

    pub(super) fn remember(&mut self, request: u64, leg: ChallengedLeg, now: Time) {
        let full = self.young.is_full() && self.young.get(&request).is_none();
        if full || now.since(self.since) > PATIENCE {
            self.since = now;
            core::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        // There is room: see above.
        let _ = self.young.insert(request, (now, leg));
    }

    pub(super) fn take(&mut self, request: u64, now: Time) -> Option<ChallengedLeg> {
        let old = self.old.remove(&request);
        let (since, leg) = self.young.remove(&request).or(old)?;
        (now.since(since) <= PATIENCE).then_some(leg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;

    fn leg(cseq: u32) -> ChallengedLeg {
        ChallengedLeg {
            call_id: b"c".as_slice().into(),
            tag: b"t".as_slice().into(),
            cseq,
        }
    }

    #[test]
    fn recent_challenges_outlast_a_full_table() {
        let mut challenged = Challenged::new(HashKey::new(&mut Entropy::from_number(1)));
        let number = |leg: Option<ChallengedLeg>| leg.map(|leg| leg.cseq);
        let last = 3 * MOST as u64;
        for request in 0..=last {
            challenged.remember(request, leg(request as u32), Time::ZERO);
        }
        for request in [last, last - 1, last - MOST as u64 + 1] {
            let found = challenged.take(request, Time::ZERO);
            assert_eq!(number(found), Some(request as u32));
            assert_eq!(number(challenged.take(request, Time::ZERO)), None);
        }
        assert_eq!(number(challenged.take(0, Time::ZERO)), None);
        // The last challenge of a request counts, in whichever generation the first one is.
        challenged.remember(7, leg(1), Time::ZERO);
        for request in 0..MOST as u64 {
            challenged.remember(1_000_000 + request, leg(0), Time::ZERO);
        }
        challenged.remember(7, leg(2), Time::ZERO);
        assert_eq!(number(challenged.take(7, Time::ZERO)), Some(2));
        assert_eq!(number(challenged.take(7, Time::ZERO)), None);
        let late = Time::ZERO + PATIENCE + Duration::from_secs(1);
        assert_eq!(number(challenged.take(1_000_001, late)), None);
    }

    #[test]
    fn challenges_that_no_caller_answers_are_forgotten() {
        let mut challenged = Challenged::new(HashKey::new(&mut Entropy::from_number(1)));
        let mut most = 0;
        for second in 0..10_000 {
            challenged.remember(second, leg(1), Time::from_secs(second));
            most = most.max(challenged.young.len() + challenged.old.len());
        }
        assert!((300..=604).contains(&most), "{most}");
        // Also those before a long time without any.
        challenged.remember(10_000, leg(1), Time::from_secs(20_000));
        challenged.remember(10_001, leg(1), Time::from_secs(20_301));
        assert_eq!(challenged.young.len() + challenged.old.len(), 2);
    }
}
