//! Accepted stream connections by source network.

use engine::worker::lock;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Counts of connections; copies share them. The workers of a pool have common ones: the kernel distributes the
/// connections of a source among them at random, so that a share of the limit for each would refuse some below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceCounts(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

impl SourceCounts {
    /// Counts another connection of a source, if it has less than `most`. There is an entry for each source with a
    /// connection.
    pub(crate) fn take(&self, source: IpAddr, most: usize) -> bool {
        let mut counts = lock(&self.0);
        let held = counts.get(&source).copied().unwrap_or(0);
        if held >= most {
            return false;
        }
        counts.insert(source, held + 1);
        true
    }

    /// A connection of a source is gone.
    pub(crate) fn release(&self, source: IpAddr) {
        let mut counts = lock(&self.0);
        if let Some(held) = counts.get_mut(&source) {
            *held -= 1;
            if *held == 0 {
                counts.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{WorkerMailbox, worker_mailboxes};
    use std::net::IpAddr;

    #[test]
    fn a_source_has_one_limit_at_all_workers() {
        let workers = worker_mailboxes(4);
        let counts: Vec<_> = workers.iter().map(WorkerMailbox::sources).collect();
        let source: IpAddr = "192.0.2.7".parse().unwrap();
        // All at one worker, as may happen.
        assert!((0..10).all(|_| counts[1].take(source, 10)));
        assert!(!counts[2].take(source, 10));
        assert!(counts[2].take("192.0.2.8".parse().unwrap(), 10));
        counts[1].release(source);
        assert!(counts[3].take(source, 10) && !counts[0].take(source, 10));
        for _ in 0..10 {
            counts[0].release(source);
        }
        counts[2].release("192.0.2.8".parse().unwrap());
        assert!(counts[0].0.lock().unwrap().is_empty(), "none is remembered");
    }
}
