//! The thread beside the packet thread, for everything that may block: it reads keys, stores sequence numbers, asks for
//! path MTUs and logs.

use super::Flags;
use super::direct::Carrying;
use super::figures::GatewayFigures;
use super::keys::{GatewayKeys, TunnelKeys};
use super::loops::PeerRoutes;
use super::numbers::NumbersFile;
use super::packets::{CarryingEnd, Command, Commands, Report};
use crate::ike::{IkeRequest, IkeRequests};
use crate::log::EventLog;
use config::GatewaySpec;
use engine::{Event, EventKind, Time};
use net::Clock;
use protect::esp::{GatewayNotice, GatewayRekey, MAX_GATEWAY_INBOUND, RekeyReason, SaSpec};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Longest delay of a request.
const WAIT: Duration = Duration::from_millis(100);
/// Interval at which ended keys of tunnels are noted: each time all tunnels are looked at.
const KEYS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which path MTUs are asked for: an increase is noticed within it (RFC 1191 section 6.3 allows minutes).
const PATH_INTERVAL: Duration = Duration::from_secs(60);

/// The parts of the thread.
pub(super) struct KeeperParts {
    pub(super) spec: GatewaySpec,
    /// Keys in use.
    pub(super) keys: GatewayKeys,
    /// Used sequence numbers; none with a key exchange, whose keys are used by one run only.
    pub(super) numbers: Option<NumbersFile>,
    pub(super) commands: Commands,
    /// The key exchange, if there is one.
    pub(super) ike: Option<IkeRequests>,
    pub(super) outbox: Receiver<Report>,
    /// The packet loop.
    pub(super) carrying: Carrying,
    pub(super) flags: Arc<Flags>,
    pub(super) figures: Arc<GatewayFigures>,
    pub(super) log: EventLog,
    pub(super) clock: Clock,
}

pub(super) struct Keeper {
    parts: KeeperParts,
    /// Known MTU of each tunnel's path, bytes; 0: not known yet.
    paths: Vec<usize>,
    /// Address of each peer, where it is known.
    peers: Vec<Option<SocketAddr>>,
    routes: PeerRoutes,
    /// SPIs that are no longer in the file, and open until this time.
    removed: HashMap<u32, Time>,
    /// SPIs with which tunnels, by number, have sealed.
    sealed: HashMap<(usize, u32), FormerSa>,
    /// The last write of sequence numbers has failed, which is logged once.
    numbers_fail: bool,
    next_path: Time,
    next_keys: Time,
    next_statistics: Option<Time>,
}

impl Keeper {
    pub(super) fn new(parts: KeeperParts) -> Keeper {
        let now = parts.clock.now();
        let peers = parts.spec.tunnels.iter().map(|tunnel| tunnel.peer);
        Keeper {
            paths: vec![0; parts.spec.tunnels.len()],
            peers: peers.collect(),
            routes: PeerRoutes::of(&parts.spec),
            removed: HashMap::new(),
            sealed: HashMap::new(),
            numbers_fail: false,
            next_path: now,
            next_keys: now,
            next_statistics: parts.spec.statistics.map(|interval| now + interval),
            parts,
        }
    }

    /// Works until the gateway is stopped or fails.
    pub(super) fn run(mut self) {
        // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
        let _ = net::block_signals();
        self.work();
        // The thread of media may wait for this one.
        self.parts.carrying.detach();
        // The packet thread ends at its next tick, if it has not ended before.
        self.parts.commands.send(Command::Stop);
        let CarryingEnd { states, result } = self.parts.carrying.join();
        let stored = match &mut self.parts.numbers {
            Some(numbers) => {
                numbers.release(states);
                numbers.write()
            }
            None => Ok(()),
        };
        let (log, now) = (&self.parts.log, self.parts.clock.now());
        log.event(&Event::new(now, statistics(&self.parts.figures)));
        if let Err(error) = result.and(stored) {
            let reason = error.to_string();
            log.event(&Event::new(now, EventKind::GatewayFailed { reason }));
            self.parts.flags.failed.store(true, Relaxed);
        }
    }

    fn log(&self, kind: EventKind) {
        let now = self.parts.clock.now();
        self.parts.log.event(&Event::new(now, kind));
    }

    fn work(&mut self) {
        loop {
            match self.parts.outbox.recv_timeout(WAIT) {
                Ok(report) => self.report(report),
                Err(RecvTimeoutError::Timeout) => {}
                // The packet thread has ended; its result is read by the caller.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.parts.flags.stop.load(Relaxed) {
                return;
            }
            if self.parts.flags.reload.swap(false, Relaxed)
                && let Err(reason) = self.reload()
            {
                self.log(EventKind::GatewayKeysRefused { reason });
            }
            let now = self.parts.clock.now();
            if self.parts.ike.is_none() && now >= self.next_keys {
                self.next_keys = now + KEYS_INTERVAL;
                for tunnel in &self.parts.figures.tunnels {
                    tunnel.note_keys(now);
                }
            }
            if now >= self.next_path {
                self.next_path = now + PATH_INTERVAL;
                for tunnel in 0..self.peers.len() {
                    self.ask_path(tunnel);
                }
            }
            if let (Some(at), Some(interval)) = (self.next_statistics, self.parts.spec.statistics)
                && now >= at
            {
                self.next_statistics = Some(now + interval);
                self.log(statistics(&self.parts.figures));
            }
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Notice(notice) => self.notice(notice),
            Report::Numbers(changed) => {
                let Some(numbers) = &mut self.parts.numbers else {
                    return;
                };
                let reserved = numbers.reserve(changed);
                match numbers.write() {
                    Ok(()) => {
                        self.numbers_fail = false;
                        self.command(Command::Reserve(reserved));
                    }
                    // Sealing goes on as long as reserved numbers are left; the next report tries again.
                    Err(error) if !self.numbers_fail => {
                        self.numbers_fail = true;
                        tracing::error!("{error}");
                    }
                    Err(_) => {}
                }
            }
            Report::AskPath(tunnel, peer) => {
                if let Some(known) = self.peers.get_mut(tunnel) {
                    *known = Some(peer);
                }
                self.ask_path(tunnel);
            }
        }
    }

    fn command(&self, command: Command) {
        self.parts.commands.send(command);
    }

    fn name(&self, tunnel: usize) -> String {
        let tunnels = &self.parts.spec.tunnels;
        tunnels
            .get(tunnel)
            .map_or_else(String::new, |tunnel| tunnel.name.clone())
    }

    fn notice(&mut self, notice: GatewayNotice) {
        let spi_text = |spi: u32| format!("{spi:#010x}");
        if let (GatewayNotice::RekeyDue { tunnel, spi, .. }, Some(ike)) = (notice, &self.parts.ike)
        {
            ike.send(IkeRequest::Rekey(tunnel, spi));
            return;
        }
        let event = match notice {
            GatewayNotice::RekeyDue {
                tunnel,
                spi,
                reason,
            } => EventKind::GatewayRekeyDue {
                tunnel: self.name(tunnel),
                spi: spi_text(spi),
                reason: match reason {
                    RekeyReason::Bytes => "bytes",
                    RekeyReason::Time => "time",
                    RekeyReason::Sequence => "sequence",
                }
                .to_owned(),
            },
            GatewayNotice::SealsWith {
                tunnel,
                spi,
                reason,
            } => {
                let keys = self.parts.keys.tunnels.get(tunnel);
                if let Some(keys) = keys.filter(|keys| keys.outbound.spi == spi) {
                    let algorithms = keys.outbound.suite.to_string();
                    let figures = &self.parts.figures;
                    figures.change_tunnel(tunnel, |state| state.algorithms = algorithms);
                }
                EventKind::GatewayRekeyed {
                    tunnel: self.name(tunnel),
                    spi: spi_text(spi),
                    reason: reason.name().to_owned(),
                }
            }
            GatewayNotice::PeerMoved { tunnel, address } => {
                if let Some(network) = self.routes.looping(address.ip()) {
                    self.command(Command::RefusePeer(tunnel, address));
                    let (name, now) = (self.name(tunnel), self.parts.clock.now());
                    let refused = (address.ip(), network);
                    if let Some(event) = self.routes.refused(name, refused, now) {
                        self.log(event);
                    }
                    return;
                }
                if let Some(known) = self.peers.get_mut(tunnel) {
                    *known = Some(address);
                }
                self.parts
                    .figures
                    .change_tunnel(tunnel, |state| state.peer = Some(address));
                EventKind::GatewayPeerMoved {
                    tunnel: self.name(tunnel),
                    address: address.to_string(),
                }
            }
        };
        self.log(event);
    }

    /// Asks the kernel for the MTU of a tunnel's path; a change is passed on and logged. With `dont_fragment = "clear"`
    /// no packet is too long for the path.
    fn ask_path(&mut self, tunnel: usize) {
        if !self.parts.spec.copies_dont_fragment {
            return;
        }
        let peer = self.peers.get(tunnel).copied().flatten();
        let (Some(peer), Some(known)) = (peer, self.paths.get_mut(tunnel)) else {
            return;
        };
        // Without a route the packets are counted as not sent.
        let Ok(mtu) = net::path_mtu(self.parts.spec.local.ip(), peer) else {
            return;
        };
        if mtu == *known || mtu == 0 {
            return;
        }
        let first = *known == 0;
        *known = mtu;
        self.command(Command::PathMtu(tunnel, mtu));
        if !first {
            let tunnel = self.name(tunnel);
            self.log(EventKind::GatewayPathMtu {
                tunnel,
                mtu: mtu as u64,
            });
        }
    }

    /// Reads the key file again, and takes new keys into use.
    ///
    /// # Errors
    /// The reason; the keys in use stay.
    fn reload(&mut self) -> Result<(), String> {
        let mut keys = GatewayKeys::read(&self.parts.spec)
            .map_err(|(why, remedy)| format!("{why} (remedy: {remedy})"))?;
        if let (Some(files), Some(ike)) = (keys.ike.take(), &self.parts.ike) {
            ike.send(IkeRequest::Files(Box::new(files)));
        }
        let Some(numbers) = &mut self.parts.numbers else {
            return Ok(());
        };
        let now = self.parts.clock.now();
        self.removed.retain(|_, until| *until > now);
        self.sealed.retain(|_, former| former.until > now);
        let change = KeyChange::of(&self.parts.keys, &keys, &self.removed, &self.sealed)?;
        let made = numbers.make_all(|numbers| -> io::Result<GatewayRekey> {
            let rekey = change.associations(&keys, numbers, now)?;
            numbers.write()?;
            Ok(rekey)
        });
        let mut rekey = made.map_err(|error| error.to_string())?;
        // One more second, because the packet thread counts from its next tick.
        let until = now + self.parts.spec.rekey_grace + Duration::from_secs(1);
        self.removed
            .extend(change.removed.iter().map(|spi| (*spi, until)));
        rekey.removed = change.removed;
        let sealed = change.outbound.iter().filter_map(|&tunnel| {
            let old = self.parts.keys.tunnels.get(tunnel)?;
            let former = FormerSa {
                keys: old.outbound.keys.check_value(),
                until: until + self.parts.spec.rekey_delay,
            };
            Some(((tunnel, old.outbound.spi), former))
        });
        self.sealed.extend(sealed);
        let event = EventKind::GatewayKeysLoaded {
            outbound_added: rekey.outbound.len() as u64,
            inbound_added: rekey.inbound.len() as u64,
            inbound_removed: rekey.removed.len() as u64,
        };
        self.command(Command::Rekey(Box::new(rekey)));
        let before = self.parts.keys.weak_algorithms();
        let mut weak = keys.weak_algorithms();
        weak.retain(|algorithms| !before.contains(algorithms));
        self.parts.keys = keys;
        self.log(event);
        if !weak.is_empty() {
            let algorithms = weak.join(", ");
            self.log(EventKind::GatewayWeakAlgorithms { algorithms });
        }
        Ok(())
    }
}

/// An association that has sealed, and is no longer in the file.
#[derive(Debug)]
struct FormerSa {
    /// Check value of its keys.
    keys: [u8; 8],
    /// The peer may have it until this time.
    until: Time,
}

/// Differences between the keys in use and those of the file.
#[derive(Debug, Default)]
struct KeyChange {
    /// Tunnels with a new association that seals.
    outbound: Vec<usize>,
    /// New SPIs that open.
    inbound: Vec<u32>,
    /// SPIs that are no longer there.
    removed: Vec<u32>,
}

impl KeyChange {
    fn of(
        old: &GatewayKeys,
        new: &GatewayKeys,
        removed: &HashMap<u32, Time>,
        sealed: &HashMap<(usize, u32), FormerSa>,
    ) -> Result<KeyChange, String> {
        let again = |spi: u32| {
            format!("SPI {spi:#010x} has other keys than before; new keys need a new SPI")
        };
        let too_early = |spi: u32| {
            format!("SPI {spi:#010x} was removed within rekey_grace_s; use a new SPI, or wait")
        };
        // With the keys that it had an SPI may come back: its sequence numbers go on.
        let is_taken = |tunnel: usize, keys: &[u8; 8], spi: u32| {
            let former = sealed.get(&(tunnel, spi));
            former.is_some_and(|former| former.keys != *keys)
        };
        let mut change = KeyChange::default();
        let mut before: HashMap<u32, [u8; 8]> = HashMap::new();
        let inbound = |tunnels: &'_ [TunnelKeys]| -> Vec<(u32, [u8; 8])> {
            let specs = tunnels.iter().flat_map(|tunnel| &tunnel.inbound);
            specs
                .map(|spec| (spec.spi, spec.keys.check_value()))
                .collect()
        };
        before.extend(inbound(&old.tunnels));
        let in_use = before.len();
        for (tunnel, (old, new)) in old.tunnels.iter().zip(&new.tunnels).enumerate() {
            let (old, new) = (&old.outbound, &new.outbound);
            match (old.spi == new.spi, old.keys == new.keys) {
                (true, true) => {}
                (true, false) => return Err(again(new.spi)),
                (false, true) => {
                    return Err(format!(
                        "SPI {:#010x} has the keys of SPI {:#010x}; a new SPI needs new keys",
                        new.spi, old.spi
                    ));
                }
                (false, false) if is_taken(tunnel, &new.keys.check_value(), new.spi) => {
                    return Err(too_early(new.spi));
                }
                (false, false) => change.outbound.push(tunnel),
            }
        }
        for (spi, keys) in inbound(&new.tunnels) {
            match before.remove(&spi) {
                Some(known) if known != keys => return Err(again(spi)),
                Some(_) => {}
                None if removed.contains_key(&spi) => return Err(too_early(spi)),
                None => change.inbound.push(spi),
            }
        }
        let open = in_use + removed.len() + change.inbound.len();
        if open > MAX_GATEWAY_INBOUND {
            return Err(format!(
                "{open} associations would open packets, {} of them removed ones within rekey_grace_s; at most {MAX_GATEWAY_INBOUND} may (remedy: a shorter rekey_grace_s, or load new keys less often)",
                removed.len()
            ));
        }
        change.removed = before.into_keys().collect();
        change.removed.sort_unstable();
        Ok(change)
    }

    /// The new associations of `keys`, with reserved sequence numbers.
    fn associations(
        &self,
        keys: &GatewayKeys,
        numbers: &mut NumbersFile,
        now: Time,
    ) -> io::Result<GatewayRekey> {
        let mut entropy = net::entropy()?;
        let mut rekey = GatewayRekey::default();
        for (tunnel, keys) in keys.tunnels.iter().enumerate() {
            if self.outbound.contains(&tunnel) {
                let sa = numbers.outbound((tunnel, &keys.outbound), &mut entropy, now)?;
                rekey.outbound.push((tunnel, sa));
            }
            let new = |spec: &&SaSpec| self.inbound.contains(&spec.spi);
            for spec in keys.inbound.iter().filter(new) {
                rekey.inbound.push((tunnel, numbers.inbound(spec, now)?));
            }
        }
        Ok(rekey)
    }
}

/// The event with the figures.
fn statistics(figures: &GatewayFigures) -> EventKind {
    let (mut dropped, mut reasons) = (0, Vec::new());
    for (reason, count) in figures.drops() {
        dropped += count;
        reasons.push(format!("{}={count}", reason.name()));
    }
    EventKind::GatewayStatistics {
        sealed: figures.sealed.load(Relaxed),
        opened: figures.opened.load(Relaxed),
        dropped,
        reasons: reasons.join(","),
        associations: figures.associations.load(Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protect::esp::{EspEncryption, EspIntegrity, EspKeys, EspSuite};

    /// A tunnel that seals with this SPI and key.
    fn keys(spi: u32, key: u8) -> GatewayKeys {
        let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
        let spec = |spi, key: u8| SaSpec::new(spi, suite, EspKeys::new(&[key; 20], &[]));
        GatewayKeys {
            tunnels: vec![TunnelKeys {
                outbound: spec(spi, key),
                inbound: vec![spec(0x9001, 0x99)],
            }],
            ike: None,
        }
    }

    #[test]
    fn a_former_spi_gets_no_other_keys_within_the_grace_time() {
        let old = keys(0x1002, 2);
        let former = FormerSa {
            keys: keys(0x1001, 1).tunnels[0].outbound.keys.check_value(),
            until: Time::ZERO + Duration::from_secs(5),
        };
        let sealed = HashMap::from([((0, 0x1001), former)]);
        let change = |new: &GatewayKeys, sealed: &HashMap<(usize, u32), FormerSa>| {
            KeyChange::of(&old, new, &HashMap::new(), sealed)
        };
        let refused = change(&keys(0x1001, 3), &sealed).unwrap_err();
        assert!(
            refused.contains("0x00001001 was removed within rekey_grace_s"),
            "{refused}"
        );
        // Its own keys, another SPI, and any after the grace time are accepted.
        for (new, sealed) in [
            (keys(0x1001, 1), &sealed),
            (keys(0x1003, 3), &sealed),
            (keys(0x1001, 3), &HashMap::new()),
        ] {
            assert_eq!(change(&new, sealed).unwrap().outbound, [0]);
        }
        assert!(change(&keys(0x1002, 3), &sealed).is_err());
        assert!(change(&keys(0x1003, 2), &sealed).is_err());
    }

    #[test]
    fn a_reload_beyond_the_most_associations_is_refused() {
        let old = keys(0x1001, 1);
        let mut new = old.clone();
        for spi in [0x9002, 0x9003] {
            let inbound = &mut new.tunnels[0].inbound;
            let mut spec = inbound[0].clone();
            spec.spi = spi;
            inbound.push(spec);
        }
        let change = |removed: u32| {
            let removed = (0..removed).map(|number| (0x10_0000 + number, Time::ZERO));
            KeyChange::of(&old, &new, &removed.collect(), &HashMap::new())
        };
        let refused = change(39_999).unwrap_err();
        assert!(refused.contains("at most 40000"), "{refused}");
        assert!(refused.contains("rekey_grace_s"), "{refused}");
        assert_eq!(change(39_997).unwrap().inbound, [0x9002, 0x9003]);
    }
}
