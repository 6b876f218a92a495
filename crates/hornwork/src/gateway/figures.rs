//! Figures of the gateway, which the packet thread publishes and metrics and log read.

use engine::DropReason;
use protect::esp::EspGateway;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the start.
#[derive(Debug)]
pub(crate) struct GatewayFigures {
    pub(crate) sealed: AtomicU64,
    pub(crate) sealed_bytes: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) opened_bytes: AtomicU64,
    pub(crate) associations: AtomicU64,
    /// Tunnels with keys.
    pub(crate) tunnels_up: AtomicU64,
    /// Notices that did not reach the log.
    pub(crate) notices_lost: AtomicU64,
    drops: Vec<AtomicU64>,
}

impl GatewayFigures {
    pub(super) fn new() -> GatewayFigures {
        let zero = AtomicU64::default;
        GatewayFigures {
            sealed: zero(),
            sealed_bytes: zero(),
            opened: zero(),
            opened_bytes: zero(),
            associations: zero(),
            tunnels_up: zero(),
            notices_lost: zero(),
            drops: DropReason::ALL.iter().map(|_| zero()).collect(),
        }
    }

    /// Publishes the counters of the packet thread.
    pub(super) fn publish(&self, gateway: &EspGateway) {
        let counters = gateway.counters();
        self.sealed.store(counters.sealed, Relaxed);
        self.sealed_bytes.store(counters.sealed_bytes, Relaxed);
        self.opened.store(counters.opened, Relaxed);
        self.opened_bytes.store(counters.opened_bytes, Relaxed);
        self.associations
            .store(gateway.associations() as u64, Relaxed);
        self.tunnels_up
            .store(gateway.tunnels_up() as u64, Relaxed);
        self.notices_lost.store(counters.notices_lost, Relaxed);
        for (reason, count) in gateway.drops().iter() {
            if let Some(figure) = self.drops.get(reason as usize) {
                figure.store(count, Relaxed);
            }
        }
    }

    /// Dropped packets by reason, those above zero.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let counts = self.drops.iter().map(|count| count.load(Relaxed));
        let reasons = DropReason::ALL.iter().copied().zip(counts);
        reasons.filter(|(_, count)| *count > 0)
    }
}
