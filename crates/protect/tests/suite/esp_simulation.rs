//! Two ends with a lossy, reordering and duplicating link between them, with rekeying and restarts, over many seeds.

use engine::{DropReason, Drops, Entropy, HashKey, Time};
use protect::esp::{
    EspEncryption, EspIntegrity, EspKeys, EspSuite, InboundSa, InboundState, MAX_HEADROOM,
    MAX_TAILROOM, OutboundSa, OutboundState, PacketRoom, RekeyReason, SaLifetime, SaSpec, SaTable,
};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 1_000;
const PACKETS: u32 = 400;
/// States are written this often, packets; a restart skips as many numbers.
const WRITTEN_EVERY: u64 = 16;
/// The link delays a packet by at most this many others: less than the smallest window.
const REORDERING: u64 = 40;

/// Counts of a run.
#[derive(Debug, Default)]
struct TunnelOutcome {
    sent: u32,
    arrived: u32,
    lost: u32,
    duplicates: u32,
    rekeys: u32,
    restarts: u32,
    /// Refused after a restart of the receiver: they may have been opened before it.
    skipped: u32,
}

struct Tunnel {
    entropy: Entropy,
    template: SaSpec,
    outbound: OutboundSa,
    inbound: SaTable<InboundSa>,
    drops: Drops,
    /// The state that survives a restart.
    sealing: (OutboundState, u64),
    opening: BTreeMap<u32, InboundState>,
    specs: BTreeMap<u32, SaSpec>,
    /// Numbers below this one may be refused since the last restart of the receiver, by SPI.
    doubtful: BTreeMap<u32, u64>,
    /// SPI and sequence number of every delivered packet.
    delivered: BTreeSet<u64>,
    outcome: TunnelOutcome,
}

impl Tunnel {
    fn new(seed: u64) -> Tunnel {
        let mut entropy = Entropy::from_number(seed);
        let suites: Vec<EspSuite> = EspSuite::all()
            .filter(|suite| suite.authenticates() && suite.encryption != EspEncryption::Blowfish)
            .filter(|suite| suite.integrity != EspIntegrity::HmacSha384)
            .collect();
        let suite = suites[entropy.below(suites.len() as u64) as usize];
        let mut template = SaSpec::new(0x100, suite, EspKeys::default())
            .tunnel([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        template.allow_weak = true;
        template.replay_window = 64 << entropy.below(7);
        template.extended_sequence = entropy.below(2) == 0;
        let bytes = 2_000 + entropy.below(20_000);
        template.lifetime = SaLifetime {
            soft_bytes: Some(bytes),
            hard_bytes: Some(2 * bytes + 100_000),
            ..SaLifetime::default()
        };
        let spec = keyed(&template, 0x100, &mut entropy);
        let outbound = OutboundSa::new(spec.clone(), &mut entropy, Time::ZERO).unwrap();
        let key = HashKey::new(&mut entropy);
        let mut tunnel = Tunnel {
            sealing: (outbound.state(Time::ZERO), 0),
            outbound,
            inbound: SaTable::new(64, key),
            drops: Drops::new(),
            opening: BTreeMap::new(),
            specs: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            delivered: BTreeSet::new(),
            outcome: TunnelOutcome::default(),
            template,
            entropy,
        };
        tunnel.install(spec);
        tunnel
    }

    fn install(&mut self, spec: SaSpec) {
        let inbound = InboundSa::new(spec.clone(), Time::ZERO).unwrap();
        self.opening.insert(spec.spi, inbound.state(Time::ZERO));
        self.inbound.insert(inbound).unwrap();
        self.specs.insert(spec.spi, spec);
    }

    /// A new association: the receiver has it before the sender uses it, and keeps the old one for packets on the way.
    fn rekey(&mut self) {
        let spi = 0x100 + self.specs.len() as u32;
        let spec = keyed(&self.template, spi, &mut self.entropy);
        self.install(spec.clone());
        self.outbound = OutboundSa::new(spec, &mut self.entropy, Time::ZERO).unwrap();
        self.sealing = (self.outbound.state(Time::ZERO), 0);
        self.outcome.rekeys += 1;
    }

    fn seal(&mut self, number: u32) -> Vec<u8> {
        let packet = numbered(number, self.entropy.below(200) as usize);
        let mut buffer = vec![0; MAX_HEADROOM + packet.len() + MAX_TAILROOM];
        buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(&packet);
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
        let sealed = self.outbound.seal_packet(&mut room, Time::ZERO).unwrap();
        let wire = room.packet().to_vec();
        self.sealing.1 += 1;
        if self.sealing.1 >= WRITTEN_EVERY {
            self.sealing = (self.outbound.state(Time::ZERO), 0);
        }
        if sealed.rekey == Some(RekeyReason::Bytes) {
            self.rekey();
        }
        wire
    }

    /// The sender starts again from its last written state.
    fn restart_sender(&mut self) {
        let spec = self.specs[&self.sealing.0.spi].clone();
        self.outbound = OutboundSa::resume(
            spec,
            &self.sealing.0,
            WRITTEN_EVERY,
            &mut self.entropy,
            Time::ZERO,
        )
        .unwrap();
        self.sealing = (self.outbound.state(Time::ZERO), 0);
        self.outcome.restarts += 1;
    }

    /// The receiver starts again from its last written states.
    fn restart_receiver(&mut self) {
        for (spi, state) in &mut self.opening {
            let skip = WRITTEN_EVERY + REORDERING;
            let spec = self.specs[spi].clone();
            self.inbound.remove(*spi);
            let sa = InboundSa::resume(spec, state, skip, Time::ZERO).unwrap();
            *state = sa.state(Time::ZERO);
            self.doubtful.insert(*spi, state.highest_sequence);
            self.inbound.insert(sa).unwrap();
        }
        self.outcome.restarts += 1;
    }

    /// Opens a packet; returns its number.
    fn open(&mut self, wire: &[u8], refusal_allowed: bool) -> Option<u32> {
        let spi = u32::from_be_bytes(wire[20..24].try_into().unwrap());
        let low = u32::from_be_bytes(wire[24..28].try_into().unwrap());
        let mut bytes = wire.to_vec();
        let mut room = PacketRoom::new(&mut bytes, 0, wire.len());
        let before = self.drops.total();
        let opened = self
            .inbound
            .open_packet(&mut room, Time::ZERO, &mut self.drops);
        assert_eq!(self.drops.total() - before, u64::from(opened.is_none()));
        let Some(opened) = opened else {
            let doubtful = self
                .doubtful
                .get(&spi)
                .is_some_and(|highest| u64::from(low) <= *highest);
            assert!(
                refusal_allowed || doubtful,
                "a valid packet was refused: {:?}",
                self.drops
            );
            return None;
        };
        let written = self.opening.get_mut(&spi).unwrap();
        if opened.sequence >= written.highest_sequence + WRITTEN_EVERY {
            *written = self.inbound.get(spi).unwrap().state(Time::ZERO);
        }
        let payload = &room.packet()[28..];
        Some(u32::from_be_bytes(payload[..4].try_into().unwrap()))
    }
}

fn keyed(template: &SaSpec, spi: u32, entropy: &mut Entropy) -> SaSpec {
    let suite = template.suite;
    let length = (0..64)
        .rev()
        .find(|n| suite.encryption.accepts_key_length(*n))
        .unwrap();
    let mut bytes = vec![0; length + suite.integrity.key_length()];
    entropy.fill(&mut bytes);
    let (encryption, integrity) = bytes.split_at(length);
    let mut spec = template
        .clone()
        .with_keys(EspKeys::new(encryption, integrity));
    spec.spi = spi;
    spec
}

fn numbered(number: u32, more: usize) -> Vec<u8> {
    let length = (32 + more) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0x13, 0xc4, 0x13, 0xc4]);
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(number.to_be_bytes());
    packet.resize(usize::from(length), 0x5a);
    packet
}

fn run(seed: u64) -> TunnelOutcome {
    let mut tunnel = Tunnel::new(seed);
    let mut link: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut arrived = BTreeSet::new();
    let mut serial = 0;
    let restarts = seed.is_multiple_of(2);
    for number in 0..PACKETS {
        let wire = tunnel.seal(number);
        tunnel.outcome.sent += 1;
        let copies = match tunnel.entropy.below(100) {
            0..10 => 0,
            10..15 => 2,
            _ => 1,
        };
        tunnel.outcome.lost += u32::from(copies == 0);
        for _ in 0..copies {
            serial += 1;
            let due = u64::from(number) + tunnel.entropy.below(REORDERING / 2);
            link.insert((due, serial), wire.clone());
        }
        if restarts && tunnel.entropy.below(100) == 0 {
            match tunnel.entropy.below(2) {
                0 => tunnel.restart_sender(),
                _ => tunnel.restart_receiver(),
            }
        }
        let later = link.split_off(&(u64::from(number), 0));
        for (_, wire) in std::mem::replace(&mut link, later) {
            deliver(&mut tunnel, &wire, &mut arrived);
        }
    }
    for (_, wire) in link {
        deliver(&mut tunnel, &wire, &mut arrived);
    }
    tunnel.outcome.arrived = arrived.len() as u32;
    let outcome = &tunnel.outcome;
    assert_eq!(
        outcome.arrived + outcome.lost + outcome.skipped,
        outcome.sent,
        "seed {seed}: {outcome:?} {:?}",
        tunnel.drops
    );
    if !restarts {
        assert_eq!(outcome.skipped, 0, "seed {seed}");
    }
    // A receiver that skipped more than its window takes older extended numbers for those of the next cycle.
    let mut allowed = vec![DropReason::EspReplayed, DropReason::EspTooOld];
    if restarts && tunnel.template.extended_sequence {
        allowed.push(DropReason::EspAuthentication);
    }
    let unexpected = tunnel
        .drops
        .iter()
        .find(|(reason, _)| !allowed.contains(reason));
    assert_eq!(unexpected, None, "seed {seed}");
    tunnel.outcome
}

fn deliver(tunnel: &mut Tunnel, wire: &[u8], arrived: &mut BTreeSet<u32>) {
    let sequence = u64::from_be_bytes(wire[20..28].try_into().unwrap());
    let seen = !tunnel.delivered.insert(sequence);
    match tunnel.open(wire, seen) {
        Some(number) => assert!(arrived.insert(number), "packet {number} was opened twice"),
        None if seen => tunnel.outcome.duplicates += 1,
        None => tunnel.outcome.skipped += 1,
    }
}

#[test]
fn nothing_is_opened_twice_and_nothing_valid_is_lost() {
    let mut total = TunnelOutcome::default();
    for seed in 0..SEEDS {
        let outcome = run(seed);
        total.sent += outcome.sent;
        total.arrived += outcome.arrived;
        total.lost += outcome.lost;
        total.duplicates += outcome.duplicates;
        total.rekeys += outcome.rekeys;
        total.restarts += outcome.restarts;
        total.skipped += outcome.skipped;
    }
    println!("{total:?}");
    assert!(total.rekeys > 1_000 && total.restarts > 500 && total.duplicates > 1_000);
    assert!(f64::from(total.skipped) < 0.2 * f64::from(total.sent));
}
