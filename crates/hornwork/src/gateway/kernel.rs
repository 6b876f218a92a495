//! Associations of the key exchange in the kernel (XFRM): they are written by netlink, and the kernel seals and opens.
//!
//! Routes into the TUN device stay: a packet that no policy takes, because its tunnel is down, arrives there and is
//! counted, and so never leaves in the clear. New keys take over in one step: the policy names the SPI that seals.

use config::GatewaySpec;
use engine::Time;
use net::{
    Xfrm, XfrmAlgorithm, XfrmCounts, XfrmDirection, XfrmPolicy, XfrmSelector, XfrmState, XfrmSuite,
};
use protect::esp::{
    AddressPrefix, EspEncryption, EspIntegrity, EspKeys, EspSuite, GatewayNotice,
    MAX_GATEWAY_TUNNELS, NegotiatedPair, RekeyReason, SaMode, SaSpec, SelectorPorts,
    TrafficSelector, TunnelPackets,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The request number of the first tunnel: the associations of other programs have others.
const FIRST_REQUEST: u32 = 0x4857_0000;
const REQUESTS: RangeInclusive<u32> = FIRST_REQUEST..=FIRST_REQUEST + MAX_GATEWAY_TUNNELS as u32;
/// Policies of a tunnel in one direction, at most: the kernel compares each new flow with them.
const MAX_POLICIES: usize = 1_024;
/// Associations of a tunnel that seal or may, at most.
const MAX_OUTBOUND: usize = 8;
/// Packets after which new keys are due: fifteen sixteenths of the sequence numbers.
const SOFT_PACKETS: u64 = (1 << 32) / 16 * 15;
/// Interval of reading the counters, and a longer one for each thousand of tunnels.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of notices that new keys are due: one may be lost.
const NOTICE_INTERVAL: Duration = Duration::from_secs(30);

/// Notices that wait; further ones come again after the interval.
const MAX_NOTICES: usize = 1_024;

/// Figures of all tunnels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelFigures {
    pub(super) sealed: XfrmCounts,
    pub(super) opened: XfrmCounts,
    pub(super) associations: usize,
    pub(super) tunnels_up: usize,
}

/// Counters of an association.
#[derive(Debug, Default)]
struct SaCounter {
    counts: XfrmCounts,
    /// Last notice that new keys are due.
    noticed: Option<Time>,
}

#[derive(Debug)]
struct KernelInbound {
    spi: u32,
    selectors: Vec<XfrmSelector>,
    soft_bytes: Option<u64>,
    removed_at: Option<Time>,
    usage: SaCounter,
}

#[derive(Debug)]
struct KernelOutbound {
    /// With its keys until the kernel has them.
    spec: SaSpec,
    selectors: Vec<XfrmSelector>,
    /// The peer, once the kernel has the association.
    peer: Option<SocketAddr>,
    usage: SaCounter,
}

#[derive(Debug, Default)]
struct KernelTunnel {
    inbound: Vec<KernelInbound>,
    outbound: Vec<KernelOutbound>,
    /// SPI of the association that seals.
    sealing: Option<u32>,
    /// Selectors of the configuration. Their policies for received packets stay as long as the gateway runs: packets of
    /// a remote network without ESP are discarded also while the tunnel is down (RFC 4301 sections 4.4.1 and 5.2).
    protected: Vec<XfrmSelector>,
    /// Selectors of all policies for received packets.
    policies_in: Vec<XfrmSelector>,
    policies_out: Vec<XfrmSelector>,
    keep_alive_at: Time,
    packets: TunnelPackets,
}

/// The associations of a gateway in the kernel. They are removed when this value is dropped.
#[derive(Debug)]
pub(super) struct KernelSas {
    kernel: Kernel,
    tunnels: Vec<KernelTunnel>,
    /// Tunnel of each SPI of received packets.
    owners: BTreeMap<u32, usize>,
    grace: Duration,
    keep_alive: Option<Duration>,
    next_counts: Time,
    notices: Vec<GatewayNotice>,
    figures: KernelFigures,
}

/// The way to the kernel, with the properties that all associations have.
#[derive(Debug)]
struct Kernel {
    xfrm: Xfrm,
    local: SocketAddr,
    clears_dont_fragment: bool,
}

/// The algorithms by the kernel's names; `None` if it has none.
pub(super) fn kernel_suite(suite: EspSuite, keys: &EspKeys) -> Option<XfrmSuite<'_>> {
    let aead = |name, icv_bits| {
        XfrmSuite::Aead(XfrmAlgorithm {
            name,
            key: keys.expose_encryption(),
            icv_bits,
        })
    };
    let cipher = match suite.encryption {
        EspEncryption::AesGcm16 => return Some(aead("rfc4106(gcm(aes))", 128)),
        EspEncryption::AesGcm12 => return Some(aead("rfc4106(gcm(aes))", 96)),
        EspEncryption::AesGcm8 => return Some(aead("rfc4106(gcm(aes))", 64)),
        EspEncryption::ChaCha20Poly1305 => {
            return Some(aead("rfc7539esp(chacha20,poly1305)", 128));
        }
        EspEncryption::AesCbc => "cbc(aes)",
        EspEncryption::AesCtr => "rfc3686(ctr(aes))",
        EspEncryption::TripleDes => "cbc(des3_ede)",
        // No key exchange of this program proposes these.
        EspEncryption::Null | EspEncryption::Des | EspEncryption::Blowfish => return None,
    };
    let (integrity, icv_bits) = match suite.integrity {
        EspIntegrity::None => return None,
        EspIntegrity::HmacMd5 => ("hmac(md5)", 96),
        EspIntegrity::HmacSha1 => ("hmac(sha1)", 96),
        EspIntegrity::HmacSha256 => ("hmac(sha256)", 128),
        EspIntegrity::HmacSha256Truncated96 => ("hmac(sha256)", 96),
        EspIntegrity::HmacSha384 => ("hmac(sha384)", 192),
        EspIntegrity::HmacSha512 => ("hmac(sha512)", 256),
    };
    Some(XfrmSuite::Pair(
        XfrmAlgorithm {
            name: cipher,
            key: keys.expose_encryption(),
            icv_bits: 0,
        },
        XfrmAlgorithm {
            name: integrity,
            key: keys.expose_integrity(),
            icv_bits,
        },
    ))
}

/// A range of ports as ports with masks, the only form of the kernel.
fn masked_ports(range: SelectorPorts) -> Vec<(u16, u16)> {
    if range == SelectorPorts::ANY {
        return vec![(0, 0)];
    }
    let (mut first, last) = (u32::from(range.first), u32::from(range.last));
    let mut found = Vec::new();
    while first <= last {
        // The largest block that begins here and does not pass the end.
        let mut size = match first {
            0 => 1 << 15,
            first => 1 << first.trailing_zeros(),
        };
        while first + size - 1 > last {
            size /= 2;
        }
        found.push((first as u16, !(size - 1) as u16));
        first += size;
    }
    found
}

/// Selectors in the form of the kernel, in order, each once.
///
/// # Errors
/// The kernel has no such selector, or they are too many.
pub(super) fn kernel_selectors(selectors: &[TrafficSelector]) -> Result<Vec<XfrmSelector>, String> {
    let mut found = BTreeSet::new();
    for selector in selectors {
        let (Some(source), Some(destination)) = (selector.source, selector.destination) else {
            return Err("a selector has no networks".to_owned());
        };
        let protocol = selector.protocol.unwrap_or(0);
        let has_ports = selector.source_ports != SelectorPorts::ANY
            || selector.destination_ports != SelectorPorts::ANY;
        if has_ports && matches!(protocol, 0 | 1 | 58) {
            return Err("the kernel has ports for protocols with ports only".to_owned());
        }
        let of = |prefix: AddressPrefix| (prefix.address(), prefix.length());
        for source_port in masked_ports(selector.source_ports) {
            for destination_port in masked_ports(selector.destination_ports) {
                found.insert(XfrmSelector {
                    source: of(source),
                    destination: of(destination),
                    protocol,
                    source_port,
                    destination_port,
                });
            }
        }
        if found.len() > MAX_POLICIES {
            return Err(format!(
                "networks and port ranges give more than {MAX_POLICIES} policies of the kernel"
            ));
        }
    }
    Ok(found.into_iter().collect())
}

fn request(tunnel: usize) -> u32 {
    FIRST_REQUEST + tunnel as u32
}

fn ends_of(spec: &SaSpec) -> Result<[IpAddr; 2], String> {
    match spec.mode {
        SaMode::Tunnel {
            source,
            destination,
        } => Ok([source, destination]),
        SaMode::Transport => Err("it is not in tunnel mode".to_owned()),
    }
}

impl Kernel {
    fn add(
        &mut self,
        tunnel: usize,
        spec: &SaSpec,
        (ends, ports): ([IpAddr; 2], [u16; 2]),
    ) -> Result<(), String> {
        let suite = kernel_suite(spec.suite, &spec.keys)
            .ok_or_else(|| format!("the kernel has no name for {}", spec.suite))?;
        let receives = ends[1] == self.local.ip();
        let state = XfrmState {
            spi: spec.spi,
            ends,
            ports,
            request: request(tunnel),
            suite,
            replay_window: match receives {
                true => u32::try_from(spec.replay_window).unwrap_or(0),
                false => 0,
            },
            clears_dont_fragment: self.clears_dont_fragment,
            hard_bytes: spec.lifetime.hard_bytes,
            hard_seconds: spec.lifetime.hard_time.map(|time| time.as_secs()),
        };
        let added = self.xfrm.add_state(&state);
        added.map_err(|error| format!("the kernel refuses the association: {error}"))
    }

    fn delete(&mut self, spi: u32, destination: IpAddr) {
        if let Err(error) = self.xfrm.delete_state(spi, destination) {
            tracing::warn!("SPI {spi:#010x}: the kernel does not delete the association: {error}");
        }
    }

    /// A policy for received packets: of any outer source, because the request number suffices.
    fn receiving(
        &self,
        tunnel: usize,
        selector: XfrmSelector,
        direction: XfrmDirection,
    ) -> XfrmPolicy {
        let any = match self.local {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        XfrmPolicy {
            direction,
            selector,
            ends: [any, self.local.ip()],
            spi: 0,
            request: request(tunnel),
        }
    }

    fn sealing(
        &self,
        (tunnel, spi): (usize, u32),
        peer: IpAddr,
        selector: XfrmSelector,
    ) -> XfrmPolicy {
        XfrmPolicy {
            direction: XfrmDirection::Out,
            selector,
            ends: [self.local.ip(), peer],
            spi,
            request: request(tunnel),
        }
    }

    fn add_policy(&mut self, policy: &XfrmPolicy) -> Result<(), String> {
        self.xfrm.add_policy(policy).map_err(|error| {
            let selector = &policy.selector;
            format!(
                "the kernel refuses a policy from {}/{} to {}/{}, another program may have one: {error}",
                selector.source.0, selector.source.1, selector.destination.0, selector.destination.1
            )
        })
    }

    /// Adds the policies for received packets of these selectors: all of them, or none.
    fn add_receiving(&mut self, tunnel: usize, selectors: &[XfrmSelector]) -> Result<(), String> {
        let mut added = Vec::new();
        for selector in selectors {
            for direction in [XfrmDirection::In, XfrmDirection::Forward] {
                let policy = self.receiving(tunnel, *selector, direction);
                if let Err(why) = self.add_policy(&policy) {
                    added.iter().for_each(|policy| self.delete_policy(policy));
                    return Err(why);
                }
                added.push(policy);
            }
        }
        Ok(())
    }

    fn delete_policy(&mut self, policy: &XfrmPolicy) {
        if let Err(error) = self.xfrm.delete_policy(policy) {
            tracing::warn!("the kernel does not delete a policy: {error}");
        }
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy) -> Result<(), String> {
        let replaced = self.xfrm.replace_policy(policy);
        replaced.map_err(|error| format!("the kernel refuses a policy: {error}"))
    }

    /// Takes back a policy that seals: `kept` are the selectors of those before, whose packets were sealed for this
    /// peer with the association of this SPI.
    fn restore(
        &mut self,
        tunnel: usize,
        policy: &XfrmPolicy,
        kept: &[XfrmSelector],
        before: Option<(SocketAddr, u32)>,
    ) {
        match before.filter(|_| kept.contains(&policy.selector)) {
            Some((peer, spi)) => {
                let former = self.sealing((tunnel, spi), peer.ip(), policy.selector);
                if let Err(why) = self.replace_policy(&former) {
                    tracing::warn!("SPI {spi:#010x}: {why}");
                }
            }
            None => self.delete_policy(policy),
        }
    }

    /// Packets since the last call.
    fn count(&mut self, usage: &mut SaCounter, spi: u32, destination: IpAddr) -> XfrmCounts {
        // An association that has ended has its last counts.
        let Ok(Some(now)) = self.xfrm.counts(spi, destination) else {
            return XfrmCounts::default();
        };
        let before = core::mem::replace(&mut usage.counts, now);
        XfrmCounts {
            packets: now.packets.saturating_sub(before.packets),
            bytes: now.bytes.saturating_sub(before.bytes),
        }
    }
}

fn add_counts(to: &mut XfrmCounts, more: XfrmCounts) {
    to.packets += more.packets;
    to.bytes += more.bytes;
}

/// Why new keys are due, if they are and there was no notice a short time ago.
fn due(usage: &mut SaCounter, soft_bytes: Option<u64>, now: Time) -> Option<RekeyReason> {
    let reason = if usage.counts.packets >= SOFT_PACKETS {
        RekeyReason::Sequence
    } else if soft_bytes.is_some_and(|soft| usage.counts.bytes >= soft) {
        RekeyReason::Bytes
    } else {
        return None;
    };
    let is_early = |at: Time| now.since(at) < NOTICE_INTERVAL;
    if usage.noticed.is_some_and(is_early) {
        return None;
    }
    usage.noticed = Some(now);
    Some(reason)
}

/// Removes associations and policies of an earlier run, which was killed.
///
/// # Errors
/// The kernel refuses.
pub(super) fn remove_earlier(xfrm: &mut Xfrm, local: IpAddr) -> io::Result<()> {
    let (policies, states) = xfrm.flush(REQUESTS, local)?;
    if policies + states > 0 {
        tracing::warn!(
            "removed {states} associations and {policies} policies of an earlier run from the kernel"
        );
    }
    Ok(())
}

impl KernelSas {
    /// No association yet, but the policies that discard packets of remote networks without ESP; those of an earlier
    /// run, which was killed, are removed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn new(xfrm: Xfrm, spec: &GatewaySpec) -> io::Result<KernelSas> {
        let mut kernel = Kernel {
            xfrm,
            local: spec.local,
            clears_dont_fragment: !spec.copies_dont_fragment,
        };
        remove_earlier(&mut kernel.xfrm, spec.local.ip())?;
        let mut sas = KernelSas {
            kernel,
            tunnels: Vec::new(),
            owners: BTreeMap::new(),
            grace: spec.rekey_grace,
            keep_alive: spec.keep_alive,
            next_counts: Time::ZERO,
            notices: Vec::new(),
            figures: KernelFigures::default(),
        };
        for (number, tunnel) in spec.tunnels.iter().enumerate() {
            let received = tunnel.selectors.iter().map(TrafficSelector::reversed);
            let received: Vec<TrafficSelector> = received.collect();
            let failed = |why: String| io::Error::other(format!("tunnel {}: {why}", tunnel.name));
            // After an error those before are removed with this value.
            let protected = kernel_selectors(&received).map_err(failed)?;
            sas.kernel
                .add_receiving(number, &protected)
                .map_err(failed)?;
            sas.tunnels.push(KernelTunnel {
                policies_in: protected.clone(),
                protected,
                ..KernelTunnel::default()
            });
        }
        Ok(sas)
    }

    /// Takes a negotiated association: it opens at once, and seals from [`KernelSas::seal_with`] on.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn install(&mut self, pair: &NegotiatedPair) -> Result<(), String> {
        let (inbound, outbound) = (pair.inbound.spec(), pair.outbound.spec());
        let Some(tunnel) = self.tunnels.get_mut(pair.tunnel) else {
            return Err("there is no such tunnel".to_owned());
        };
        let selectors = kernel_selectors(&inbound.selectors)?;
        let sealed = kernel_selectors(&outbound.selectors)?;
        let ports = inbound.encapsulation.ok_or("it has no UDP encapsulation")?;
        let ports = [ports.source_port, ports.destination_port];
        let new = selectors
            .iter()
            .filter(|selector| !tunnel.policies_in.contains(selector));
        let new: Vec<XfrmSelector> = new.copied().collect();
        self.kernel
            .add(pair.tunnel, inbound, (ends_of(inbound)?, ports))?;
        if let Err(why) = self.kernel.add_receiving(pair.tunnel, &new) {
            self.kernel.delete(inbound.spi, self.kernel.local.ip());
            return Err(why);
        }
        tunnel.policies_in.extend(new);
        tunnel.inbound.push(KernelInbound {
            spi: inbound.spi,
            selectors,
            soft_bytes: inbound.lifetime.soft_bytes,
            removed_at: None,
            usage: SaCounter::default(),
        });
        self.owners.insert(inbound.spi, pair.tunnel);
        if tunnel.outbound.len() >= MAX_OUTBOUND {
            let sealing = tunnel.sealing;
            let oldest = tunnel
                .outbound
                .iter()
                .position(|one| Some(one.spec.spi) != sealing);
            let oldest = oldest.map(|place| tunnel.outbound.remove(place));
            if let Some((spi, peer)) = oldest.and_then(|one| Some((one.spec.spi, one.peer?))) {
                self.kernel.delete(spi, peer.ip());
            }
        }
        tunnel.outbound.push(KernelOutbound {
            spec: outbound.clone(),
            selectors: sealed,
            peer: None,
            usage: SaCounter::default(),
        });
        Ok(())
    }

    /// Seals the packets of a tunnel with the association of this SPI from now on. The one before stays until it is
    /// removed.
    ///
    /// # Errors
    /// The kernel refuses, or there is no such association. The policies are as before then.
    pub(super) fn seal_with(
        &mut self,
        number: usize,
        spi: u32,
        peer: SocketAddr,
    ) -> Result<(), String> {
        let tunnel = self
            .tunnels
            .get_mut(number)
            .ok_or("there is no such tunnel")?;
        if tunnel.sealing == Some(spi) {
            return Ok(());
        }
        let before = tunnel.peer().zip(tunnel.sealing);
        let mut known = tunnel.outbound.iter_mut();
        let found = known.find(|one| one.spec.spi == spi);
        let outbound = found.ok_or("the association was not installed")?;
        let local = self.kernel.local;
        let peer = match outbound.peer {
            Some(peer) => peer,
            None => {
                let ends = [local.ip(), peer.ip()];
                let ports = [local.port(), peer.port()];
                self.kernel.add(number, &outbound.spec, (ends, ports))?;
                // The kernel counts their nonces: they must never be given to it again.
                outbound.spec.keys = EspKeys::default();
                outbound.peer = Some(peer);
                peer
            }
        };
        let selectors = outbound.selectors.clone();
        let mut changed = Vec::new();
        for selector in &selectors {
            let policy = self.kernel.sealing((number, spi), peer.ip(), *selector);
            let done = match tunnel.policies_out.contains(selector) {
                true => self.kernel.replace_policy(&policy),
                false => self.kernel.add_policy(&policy),
            };
            if let Err(why) = done {
                for policy in &changed {
                    self.kernel
                        .restore(number, policy, &tunnel.policies_out, before);
                }
                return Err(why);
            }
            changed.push(policy);
        }
        let new = selectors
            .iter()
            .filter(|selector| !tunnel.policies_out.contains(selector));
        let new: Vec<XfrmSelector> = new.copied().collect();
        tunnel.policies_out.extend(new);
        let mut kept = Vec::new();
        for selector in tunnel.policies_out.drain(..) {
            match selectors.contains(&selector) {
                true => kept.push(selector),
                false => {
                    let policy = self.kernel.sealing((number, 0), peer.ip(), selector);
                    self.kernel.delete_policy(&policy);
                }
            }
        }
        tunnel.policies_out = kept;
        tunnel.sealing = Some(spi);
        Ok(())
    }

    /// Removes an association of both directions. It opens for the grace time, for packets in flight; with `at_once`,
    /// no more.
    pub(super) fn remove(&mut self, [spi_in, spi_out]: [u32; 2], at_once: bool, now: Time) {
        let Some(&number) = self.owners.get(&spi_in) else {
            return;
        };
        let Some(tunnel) = self.tunnels.get_mut(number) else {
            return;
        };
        let place = tunnel
            .outbound
            .iter()
            .position(|one| one.spec.spi == spi_out);
        if let Some(mut outbound) = place.map(|place| tunnel.outbound.remove(place))
            && let Some(peer) = outbound.peer
        {
            if tunnel.sealing == Some(spi_out) {
                tunnel.sealing = None;
                for selector in tunnel.policies_out.drain(..) {
                    let policy = self.kernel.sealing((number, spi_out), peer.ip(), selector);
                    self.kernel.delete_policy(&policy);
                }
            }
            let last = self.kernel.count(&mut outbound.usage, spi_out, peer.ip());
            tunnel.packets.sealed += last.packets;
            add_counts(&mut self.figures.sealed, last);
            self.kernel.delete(spi_out, peer.ip());
        }
        match at_once {
            true => self.remove_inbound(number, spi_in),
            false => {
                let mut known = tunnel.inbound.iter_mut();
                if let Some(inbound) = known.find(|one| one.spi == spi_in) {
                    inbound.removed_at = Some(now + self.grace);
                }
            }
        }
    }

    /// Removes the association of this SPI, and the policies that no other needs.
    fn remove_inbound(&mut self, number: usize, spi: u32) {
        self.owners.remove(&spi);
        let Some(tunnel) = self.tunnels.get_mut(number) else {
            return;
        };
        let Some(place) = tunnel.inbound.iter().position(|one| one.spi == spi) else {
            return;
        };
        let mut inbound = tunnel.inbound.remove(place);
        let local = self.kernel.local.ip();
        let last = self.kernel.count(&mut inbound.usage, spi, local);
        tunnel.packets.opened += last.packets;
        add_counts(&mut self.figures.opened, last);
        self.kernel.delete(spi, local);
        let (others, protected) = (&tunnel.inbound, &tunnel.protected);
        let is_needed = |selector: &XfrmSelector| {
            protected.contains(selector)
                || others
                    .iter()
                    .any(|other| other.selectors.contains(selector))
        };
        let kernel = &mut self.kernel;
        tunnel.policies_in.retain(|selector| {
            let keep = is_needed(selector);
            if !keep {
                for direction in [XfrmDirection::In, XfrmDirection::Forward] {
                    let policy = kernel.receiving(number, *selector, direction);
                    kernel.delete_policy(&policy);
                }
            }
            keep
        });
    }

    /// Work that depends on time alone: the end of the grace time, keep-alives, counters.
    pub(super) fn tick(&mut self, now: Time, mut keep_alive: impl FnMut(SocketAddr)) {
        let mut ended = Vec::new();
        for (number, tunnel) in self.tunnels.iter_mut().enumerate() {
            let over = |one: &&KernelInbound| one.removed_at.is_some_and(|at| at <= now);
            ended.extend(
                tunnel
                    .inbound
                    .iter()
                    .filter(over)
                    .map(|one| (number, one.spi)),
            );
            let Some(peer) = tunnel.peer() else {
                continue;
            };
            // Whether the kernel has sent something meanwhile is not known, and one too many does no harm.
            if let Some(interval) = self.keep_alive
                && now >= tunnel.keep_alive_at
            {
                tunnel.keep_alive_at = now + interval;
                keep_alive(peer);
            }
        }
        for (number, spi) in ended {
            self.remove_inbound(number, spi);
        }
        if now >= self.next_counts {
            let thousands = u32::try_from(self.tunnels.len() / 1_000).unwrap_or(0);
            self.next_counts = now + COUNTS_INTERVAL * (1 + thousands);
            self.count(now);
        }
        self.notices.truncate(MAX_NOTICES);
    }

    /// Reads the counters, and notices associations that need new keys.
    pub(super) fn count(&mut self, now: Time) {
        let local = self.kernel.local.ip();
        let (mut associations, mut up) = (0, 0);
        for (number, tunnel) in self.tunnels.iter_mut().enumerate() {
            let mut notice = |spi, reason| {
                self.notices.push(GatewayNotice::RekeyDue {
                    tunnel: number,
                    spi,
                    reason,
                });
            };
            for inbound in &mut tunnel.inbound {
                let more = self.kernel.count(&mut inbound.usage, inbound.spi, local);
                tunnel.packets.opened += more.packets;
                add_counts(&mut self.figures.opened, more);
                if inbound.removed_at.is_none()
                    && let Some(reason) = due(&mut inbound.usage, inbound.soft_bytes, now)
                {
                    notice(inbound.spi, reason);
                }
            }
            for outbound in &mut tunnel.outbound {
                let (spi, soft_bytes) = (outbound.spec.spi, outbound.spec.lifetime.soft_bytes);
                let Some(peer) = outbound.peer else {
                    continue;
                };
                let more = self.kernel.count(&mut outbound.usage, spi, peer.ip());
                tunnel.packets.sealed += more.packets;
                add_counts(&mut self.figures.sealed, more);
                if tunnel.sealing == Some(spi)
                    && let Some(reason) = due(&mut outbound.usage, soft_bytes, now)
                {
                    notice(spi, reason);
                }
            }
            associations += tunnel.inbound.len() + tunnel.outbound.len();
            up += usize::from(tunnel.sealing.is_some());
        }
        self.figures.associations = associations;
        self.figures.tunnels_up = up;
    }

    /// Passes notices on, in their order, until `take` refuses one: that one and those behind it wait for the next
    /// call.
    pub(super) fn deliver_notices(&mut self, mut take: impl FnMut(GatewayNotice) -> bool) {
        let refused = self.notices.iter().position(|notice| !take(*notice));
        self.notices.drain(..refused.unwrap_or(self.notices.len()));
    }

    /// Figures of all tunnels, at the last reading.
    pub(super) fn figures(&self) -> KernelFigures {
        self.figures
    }

    /// Packets of each tunnel, at the last reading.
    pub(super) fn tunnel_packets(&self) -> impl Iterator<Item = TunnelPackets> + '_ {
        self.tunnels.iter().map(|tunnel| tunnel.packets)
    }
}

impl KernelTunnel {
    /// The peer to which packets are sealed.
    fn peer(&self) -> Option<SocketAddr> {
        let sealing = self.sealing?;
        let one = self.outbound.iter().find(|one| one.spec.spi == sealing)?;
        one.peer
    }
}

impl Drop for KernelSas {
    fn drop(&mut self) {
        if let Err(error) = self.kernel.xfrm.flush(REQUESTS, self.kernel.local.ip()) {
            tracing::error!("associations stay in the kernel: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_become_masks() {
        for (first, last) in [
            (5_060, 5_060),
            (10_000, 19_999),
            (1, u16::MAX),
            (0, 1_023),
            (65_535, 65_535),
        ] {
            let masked = masked_ports(SelectorPorts { first, last });
            for port in 0..=u16::MAX {
                let is_in = masked.iter().filter(|(value, mask)| port & mask == *value);
                let expected = usize::from(first <= port && port <= last);
                assert_eq!(is_in.count(), expected, "{port} of {first}-{last}");
            }
            assert!(masked.len() <= 30, "{masked:?}");
        }
        assert_eq!(masked_ports(SelectorPorts::ANY), [(0, 0)]);
    }

    /// Runs a test in a network of its own, with a device for packets in the clear. Skipped without the rights.
    fn in_network(test: impl FnOnce(net::TunDevice) + Send + 'static) {
        let Ok(network) = net::Network::with_loopback() else {
            eprintln!("skipped: no right to create a network namespace");
            return;
        };
        let tested = std::thread::spawn(move || {
            network.enter().unwrap();
            let device = net::TunDevice::create("wan0");
            let (Ok(device), Ok(_)) = (device, Xfrm::open()) else {
                eprintln!("skipped: no right to a TUN device, or a kernel without XFRM");
                return;
            };
            net::TunDevice::set_up("wan0", 1_400).unwrap();
            for name in ["all", "wan0"] {
                // The host must not filter by itself.
                let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
            }
            net::TunDevice::add_address("wan0", "10.1.0.1".parse().unwrap()).unwrap();
            test(device);
        });
        tested.join().unwrap();
    }

    fn spec() -> GatewaySpec {
        let text = "[gateway]\nlocal=\"192.0.2.1\"\n[gateway.ike]\n[[gateway.tunnel]]\nname=\"b\"\npeer=\"192.0.2.2\"\nsecret_file=\"s\"\nlocal_networks=\"10.1.0.0/24\"\nremote_networks=\"10.2.0.0/24\"\n";
        config::parse(text, "f").unwrap().gateway.unwrap()
    }

    /// A datagram of UDP from 10.2.0.9 to 10.1.0.1.
    fn datagram(port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 2, 0, 9, 10, 1, 0, 1]);
        let words = packet
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0, 9]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 9, 0, 0, 7]);
        packet
    }

    #[test]
    fn packets_in_the_clear_are_discarded_while_the_tunnel_is_down() {
        in_network(|device| {
            let socket = std::net::UdpSocket::bind("10.1.0.1:0").unwrap();
            let wait = Some(Duration::from_millis(300));
            socket.set_read_timeout(wait).unwrap();
            let port = socket.local_addr().unwrap().port();
            let arrives = || {
                device.send(&datagram(port)).unwrap();
                socket.recv(&mut [0; 10]).is_ok()
            };
            assert!(arrives(), "without a gateway");
            let sas = KernelSas::new(Xfrm::open().unwrap(), &spec()).unwrap();
            assert!(!arrives());
            drop(sas);
            assert!(arrives(), "the policies end with the gateway");
        });
    }

    #[test]
    fn policies_are_added_all_or_none() {
        in_network(|_| {
            let own = || Xfrm::open().unwrap();
            let spec = spec();
            let reversed: Vec<TrafficSelector> = spec.tunnels[0]
                .selectors
                .iter()
                .map(TrafficSelector::reversed)
                .collect();
            let selectors = kernel_selectors(&reversed).unwrap();
            let mut kernel = Kernel {
                xfrm: own(),
                local: spec.local,
                clears_dont_fragment: false,
            };
            // Another program has the policy of forwarded packets.
            let foreign = XfrmPolicy {
                request: 1,
                ..kernel.receiving(0, selectors[0], XfrmDirection::Forward)
            };
            own().add_policy(&foreign).unwrap();
            let why = kernel.add_receiving(0, &selectors).unwrap_err();
            assert!(why.contains("another program"), "{why}");
            let left = |requests| own().flush(requests, spec.local.ip()).unwrap().0;
            assert_eq!(left(REQUESTS), 0);
            let error = KernelSas::new(own(), &spec).unwrap_err().to_string();
            assert!(error.contains("tunnel b"), "{error}");
            assert_eq!(left(REQUESTS), 0);
            assert_eq!(left(1..=1), 1);
            kernel.add_receiving(0, &selectors).unwrap();
            assert_eq!(left(REQUESTS), 2);
        });
    }

    fn selector(protocol: Option<u8>, ports: SelectorPorts) -> TrafficSelector {
        TrafficSelector {
            source: "10.1.0.0/16".parse().ok(),
            destination: "10.2.0.0/16".parse().ok(),
            protocol,
            source_ports: SelectorPorts::ANY,
            destination_ports: ports,
        }
    }

    #[test]
    fn selectors_have_the_form_of_the_kernel() {
        let one = selector(Some(17), SelectorPorts::one(5_060));
        let found = kernel_selectors(&[one, one]).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].protocol, 17);
        assert_eq!(found[0].destination_port, (5_060, 0xffff));
        assert_eq!(found[0].source_port, (0, 0));
        assert!(kernel_selectors(&[TrafficSelector::ANY]).is_err());
        assert!(kernel_selectors(&[selector(Some(1), SelectorPorts::one(8))]).is_err());
        let odd: Vec<TrafficSelector> = (0..1_100)
            .map(|port| selector(Some(6), SelectorPorts::one(2 * port + 1)))
            .collect();
        let said = kernel_selectors(&odd).unwrap_err();
        assert!(said.contains("more than 1024"), "{said}");
    }

    #[test]
    fn new_keys_are_requested_again_and_again() {
        let mut usage = SaCounter::default();
        let at = |second: u64| Time::ZERO + Duration::from_secs(second);
        assert_eq!(due(&mut usage, Some(1_000), at(1)), None);
        usage.counts.bytes = 1_000;
        assert_eq!(due(&mut usage, None, at(1)), None);
        assert_eq!(
            due(&mut usage, Some(1_000), at(1)),
            Some(RekeyReason::Bytes)
        );
        assert_eq!(due(&mut usage, Some(1_000), at(30)), None);
        assert_eq!(
            due(&mut usage, Some(1_000), at(31)),
            Some(RekeyReason::Bytes)
        );
        usage.counts.packets = SOFT_PACKETS;
        assert_eq!(due(&mut usage, None, at(61)), Some(RekeyReason::Sequence));
    }

    /// Each suite that a proposal may have is one of the kernel.
    #[test]
    fn proposals_have_names_of_the_kernel() {
        let all = "aes128gcm16-aes192gcm12-aes256gcm8-chacha20poly1305-x25519";
        let pairs = "aes128-aes256-3des-md5-sha1-sha256-sha384-sha512-modp2048";
        for (proposal, count) in [(all, 4), (pairs, 15)] {
            let suites = protect::ike::proposed_suites(proposal).unwrap();
            assert_eq!(suites.len(), count);
            for (suite, length) in suites {
                let keys = EspKeys::new(&vec![1; length], &vec![2; suite.integrity.key_length()]);
                assert!(suite.encryption.accepts_key_length(length), "{suite}");
                let bits = match kernel_suite(suite, &keys).unwrap() {
                    XfrmSuite::Aead(one) | XfrmSuite::Pair(_, one) => one.icv_bits,
                };
                assert_eq!(bits as usize, suite.icv_length() * 8, "{suite}");
            }
        }
        assert!(protect::ike::proposed_suites("camellia128-sha256").is_none());
    }
}
