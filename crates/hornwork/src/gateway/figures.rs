//! Figures of the gateway, which the packet thread publishes and metrics and log read.

use super::kernel::KernelSas;
use super::keys::GatewayKeys;
use config::GatewaySpec;
use engine::worker::lock;
use engine::{DropReason, Time};
use protect::esp::{EspGateway, TunnelPackets};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A tunnel as operators see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelState {
    /// It has keys that seal.
    pub(crate) up: bool,
    /// Since when it is up or down.
    pub(crate) since: Time,
    /// Outer address of the peer, where it is known.
    pub(crate) peer: Option<SocketAddr>,
    /// Identity of the peer; empty with manual keys.
    pub(crate) identity: String,
    /// Algorithms of the association that seals.
    pub(crate) algorithms: String,
}

/// Figures of a tunnel.
#[derive(Debug)]
pub(crate) struct TunnelFigures {
    pub(crate) name: String,
    pub(crate) sealed: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Its association seals: lifetime and sequence numbers are left.
    seals: AtomicBool,
    /// Not used by the packet thread.
    state: Mutex<TunnelState>,
}

impl TunnelFigures {
    pub(crate) fn state(&self) -> TunnelState {
        let mut state = lock(&self.state).clone();
        state.up &= self.seals.load(Relaxed);
        state
    }

    /// Notes at `now` that the association of manual keys has ended, or seals again.
    pub(super) fn note_keys(&self, now: Time) {
        let seals = self.seals.load(Relaxed);
        self.change(|state| {
            if state.up != seals {
                state.up = seals;
                state.since = now;
            }
        });
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut TunnelState)) {
        change(&mut lock(&self.state));
    }
}

/// Media packets that passed between tunnels and forwarder directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectPackets {
    pub(super) sealed: u64,
    pub(super) opened: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct GatewayFigures {
    pub(crate) sealed: AtomicU64,
    pub(crate) sealed_bytes: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) opened_bytes: AtomicU64,
    /// Of these packets, media that did not pass the TUN device.
    pub(crate) direct_sealed: AtomicU64,
    pub(crate) direct_opened: AtomicU64,
    pub(crate) associations: AtomicU64,
    /// Tunnels with keys that seal.
    pub(crate) tunnels_up: AtomicU64,
    /// Turns of the packet thread.
    turns: AtomicU64,
    /// Notices that did not reach the log.
    pub(crate) notices_lost: AtomicU64,
    drops: Vec<AtomicU64>,
    /// In the order of the configuration.
    pub(crate) tunnels: Vec<TunnelFigures>,
}

impl GatewayFigures {
    /// The figures of a gateway that starts now.
    pub(super) fn new(spec: &GatewaySpec, keys: &GatewayKeys, now: Time) -> GatewayFigures {
        let tunnels = spec.tunnels.iter().enumerate().map(|(number, tunnel)| {
            let manual = keys.tunnels.get(number);
            TunnelFigures {
                name: tunnel.name.clone(),
                sealed: AtomicU64::default(),
                opened: AtomicU64::default(),
                seals: AtomicBool::new(true),
                state: Mutex::new(TunnelState {
                    up: manual.is_some(),
                    since: now,
                    peer: tunnel.peer,
                    identity: String::new(),
                    algorithms: manual
                        .map_or_else(String::new, |keys| keys.outbound.suite.to_string()),
                }),
            }
        });
        let zero = AtomicU64::default;
        GatewayFigures {
            sealed: zero(),
            sealed_bytes: zero(),
            opened: zero(),
            opened_bytes: zero(),
            direct_sealed: zero(),
            direct_opened: zero(),
            associations: zero(),
            tunnels_up: zero(),
            turns: zero(),
            notices_lost: zero(),
            drops: DropReason::ALL.iter().map(|_| zero()).collect(),
            tunnels: tunnels.collect(),
        }
    }

    /// Publishes the counters of the packet thread; those of packets are the kernel's where the associations are there.
    pub(super) fn publish(&self, gateway: &EspGateway, kernel: Option<&KernelSas>, now: Time) {
        match kernel {
            Some(kernel) => self.publish_kernel(kernel),
            None => self.publish_own(gateway, now),
        }
        let lost = gateway.counters().notices_lost;
        self.notices_lost.store(lost, Relaxed);
        for (reason, count) in gateway.drops().iter() {
            if let Some(figure) = self.drops.get(reason as usize) {
                figure.store(count, Relaxed);
            }
        }
    }

    fn publish_own(&self, gateway: &EspGateway, now: Time) {
        let counters = gateway.counters();
        self.sealed.store(counters.sealed, Relaxed);
        self.sealed_bytes.store(counters.sealed_bytes, Relaxed);
        self.opened.store(counters.opened, Relaxed);
        self.opened_bytes.store(counters.opened_bytes, Relaxed);
        let associations = gateway.associations() as u64;
        self.associations.store(associations, Relaxed);
        let mut up = 0;
        for (figures, seals) in self.tunnels.iter().zip(gateway.sealing_tunnels(now)) {
            figures.seals.store(seals, Relaxed);
            up += u64::from(seals);
        }
        self.tunnels_up.store(up, Relaxed);
        self.publish_tunnels(gateway.tunnel_packets());
    }

    fn publish_kernel(&self, kernel: &KernelSas) {
        let figures = kernel.figures();
        self.sealed.store(figures.sealed.packets, Relaxed);
        self.sealed_bytes.store(figures.sealed.bytes, Relaxed);
        self.opened.store(figures.opened.packets, Relaxed);
        self.opened_bytes.store(figures.opened.bytes, Relaxed);
        let associations = figures.associations as u64;
        self.associations.store(associations, Relaxed);
        self.tunnels_up.store(figures.tunnels_up as u64, Relaxed);
        self.publish_tunnels(kernel.tunnel_packets());
    }

    fn publish_tunnels(&self, packets: impl Iterator<Item = TunnelPackets>) {
        for (figures, packets) in self.tunnels.iter().zip(packets) {
            figures.sealed.store(packets.sealed, Relaxed);
            figures.opened.store(packets.opened, Relaxed);
        }
    }

    pub(super) fn publish_direct(&self, packets: DirectPackets) {
        self.direct_sealed.store(packets.sealed, Relaxed);
        self.direct_opened.store(packets.opened, Relaxed);
    }

    /// Counts a turn of the packet thread.
    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Relaxed);
    }

    /// Whether the packet thread has made a turn since `checked`, which is advanced then.
    pub(super) fn check_progress(&self, checked: &mut u64) -> bool {
        let turns = self.turns.load(Relaxed);
        let turned = turns != *checked;
        *checked = turns;
        turned
    }

    /// Changes a tunnel as operators see it.
    pub(super) fn change_tunnel(&self, number: usize, change: impl FnOnce(&mut TunnelState)) {
        if let Some(tunnel) = self.tunnels.get(number) {
            tunnel.change(change);
        }
    }

    /// Dropped packets by reason, those above zero.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let counts = self.drops.iter().map(|count| count.load(Relaxed));
        let reasons = DropReason::ALL.iter().copied().zip(counts);
        reasons.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_turns_makes_no_progress() {
        let (figures, mut checked) = (GatewayFigures::default(), 0);
        assert!(!figures.check_progress(&mut checked));
        figures.count_turn();
        assert!(figures.check_progress(&mut checked));
        assert!(!figures.check_progress(&mut checked), "no turn since");
    }
}
