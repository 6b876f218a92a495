//! Arbitrary bytes as packets, keys, attributes and connectivity checks, shared by the fuzz target and the property
//! tests.

use crate::cipher::HmacSha1;
use crate::ice::{Agent, IceCandidate, IceCredentials, IceRole, LiteAgent, MAX_REMOTE};
use crate::sdes::{self, CryptoAttribute};
use crate::srtp::{ContextLimits, Inbound, MAX_OVERHEAD, MasterKey, Options, Outbound, Suite};
use crate::stun::{Builder, StunMessage, attribute, message_type};
use engine::{Entropy, Time};
use std::collections::BTreeSet;

/// Interprets `data` as a suite, its options, and steps: packets protected, altered, replayed and unprotected, keys
/// changed, unprotected bytes. Checks the invariants.
///
/// # Panics
/// An invariant is violated: the finding.
pub fn fuzz_srtp(data: &[u8]) {
    attributes(data);
    checks(data);
    fuzz_ice(data);
    let Some((&[suite, options, window], mut rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let suites = Suite::ALL;
    let Some(&suite) = suites.get(usize::from(suite) % suites.len()) else {
        return;
    };
    let mut run = SrtpRun::new(suite, options, window);
    for _ in 0..200 {
        let Some((&[step, a, b, length], behind)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let (payload, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        run.step(step, a, b, payload);
    }
}

/// A parsed attribute is written and parsed again with the same result.
fn attributes(data: &[u8]) {
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    for line in &lines {
        let Ok(read) = CryptoAttribute::parse(line) else {
            continue;
        };
        assert_eq!(
            CryptoAttribute::tag_of(read.value().as_bytes()),
            Some(read.tag)
        );
        let again = CryptoAttribute::parse(read.value().as_bytes()).expect("our own attribute");
        assert_eq!(again.value(), read.value());
        assert_eq!(again.parameters, read.parameters);
    }
    let policy = sdes::Policy {
        suites: Suite::ALL.to_vec(),
        unencrypted: true,
        unauthenticated: true,
        ..sdes::Policy::default()
    };
    if let Ok(agreed) = sdes::answer(&policy, lines, &mut Entropy::from_number(1)) {
        let offered = [agreed.remote.clone()];
        let local = agreed.local.value();
        let back = sdes::accept(&policy, &offered, [local.as_bytes()]);
        assert!(back.is_ok(), "the offerer accepts our answer: {back:?}");
        assert!(agreed.contexts(policy.limits).is_ok());
    }
}

/// The same bytes as a STUN datagram to an ICE-lite agent: every response is a STUN message, and no source without
/// the password is admitted.
fn checks(data: &[u8]) {
    let from = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
    let mut lite = LiteAgent::new(IceCredentials::generate(&mut Entropy::from_number(1)), None);
    if let Some(message) = StunMessage::parse(data) {
        let _ = (message.mapped_address(), message.error_code());
        let _ = (
            message.unknown_attributes().count(),
            message.has_integrity(),
        );
    }
    let _ = lite.feed(data, from, Time::ZERO);
    while let Some((_, answer)) = lite.next_answer() {
        assert!(
            StunMessage::parse(&answer).is_some(),
            "the response is not STUN"
        );
    }
    assert!(!lite.admits(from));
}

/// The same bytes as steps of a full agent: candidates, valid and invalid checks and responses, restarts, time. Its
/// messages are always STUN, its deadlines end, and it sends media only to addresses that have responded to its
/// checks.
///
/// # Panics
/// An invariant is violated: the finding.
pub fn fuzz_ice(data: &[u8]) {
    let mut entropy = Entropy::from_number(1);
    let role = match data.first() {
        Some(byte) if byte & 1 != 0 => IceRole::Controlled,
        _ => IceRole::Controlling,
    };
    let mut theirs = IceCredentials::generate(&mut entropy);
    let local = IceCredentials::generate(&mut entropy);
    let mut agent = Agent::new(local, role, entropy.fork());
    let place = |byte: u8| std::net::SocketAddr::from(([192, 0, 2, byte & 15], 9));
    for number in 0..2 {
        agent.add_local(place(200 + number));
    }
    let mut now = Time::ZERO;
    let mut checks_sent: Vec<(u8, std::net::SocketAddr, Vec<u8>)> = Vec::new();
    let mut responders = BTreeSet::new();
    for step in data.chunks(4).take(400) {
        let &[kind_byte, a, b, c] = step else { break };
        match kind_byte % 8 {
            0 => {
                let text = format!("{} 1 udp {} {} 9 typ host", b % 4, a, place(c).ip());
                if let Some(candidate) = IceCandidate::parse(text.as_bytes()) {
                    let _ = agent.add_remote(candidate);
                }
            }
            1 => {
                agent.set_remote(theirs.clone(), a & 1 != 0, now);
                agent.begin(now);
            }
            2 | 3 => {
                let name = format!("{}:{}", agent.local().fragment(), theirs.fragment());
                let role = match a & 1 {
                    0 => attribute::ICE_CONTROLLING,
                    _ => attribute::ICE_CONTROLLED,
                };
                let mut builder = Builder::new(message_type::BINDING_REQUEST, [b; 12])
                    .attribute(attribute::USERNAME, name.as_bytes())
                    .attribute(attribute::PRIORITY, &[0, 0, a, b])
                    .attribute(role, &[b; 8]);
                if a & 2 != 0 {
                    builder = builder.attribute(attribute::USE_CANDIDATE, &[]);
                }
                let key = match a & 4 {
                    0 => HmacSha1::new(agent.local().password().as_bytes()),
                    _ => HmacSha1::new(b"wrong"),
                };
                let done = agent.feed(a >> 7, &builder.finish(Some(&key)), place(c), now);
                assert!(done.is_err() || a & 4 == 0, "accepted without the password");
            }
            4 if !checks_sent.is_empty() => {
                let at = usize::from(a) % checks_sent.len();
                let (base, to, bytes) = checks_sent.swap_remove(at);
                let Some(check) = StunMessage::parse(&bytes) else {
                    continue;
                };
                let (kind, from) = match b % 8 {
                    0 => (message_type::BINDING_ERROR, to),
                    1 => (message_type::BINDING_SUCCESS, place(c)),
                    _ => (message_type::BINDING_SUCCESS, to),
                };
                let mut builder = Builder::new(kind, check.transaction());
                if kind == message_type::BINDING_ERROR {
                    builder = builder.error(400 + u16::from(c), "");
                } else {
                    builder = builder.mapped_address(place(c));
                    responders.insert(from);
                }
                let key = HmacSha1::new(theirs.password().as_bytes());
                let _ = agent.feed(base, &builder.finish(Some(&key)), from, now);
            }
            5 => {
                let _ = agent.feed(a & 1, data, place(c), now);
            }
            6 if a < 32 => {
                let local = IceCredentials::generate(&mut entropy);
                agent.restart(local, agent.role(), now);
                theirs = IceCredentials::generate(&mut entropy);
            }
            _ => {
                now += core::time::Duration::from_millis(u64::from(a) * u64::from(b));
                agent.timeout(now);
            }
        }
        while let Some((base, to, bytes)) = agent.next_datagram() {
            let message = StunMessage::parse(&bytes).expect("our own message is STUN");
            if message.message_type() == message_type::BINDING_REQUEST && checks_sent.len() < 64 {
                checks_sent.push((base, to, bytes));
            }
        }
        while agent.next_event().is_some() {}
        if let Some(path) = agent.selected() {
            assert!(
                responders.contains(&path.remote),
                "media to an address that never responded"
            );
        }
    }
    // Without input it becomes idle: checks end, consent expires.
    for _ in 0..MAX_REMOTE * 2 * 7 * 4 {
        let Some(due) = agent.next_deadline() else {
            assert_eq!(agent.selected(), None);
            return;
        };
        now = now.max(due);
        agent.timeout(now);
        while agent.next_datagram().is_some() {}
        while agent.next_event().is_some() {}
    }
    panic!("the agent never becomes idle: {agent:?}");
}

struct SrtpRun {
    suite: Suite,
    options: Options,
    mki: usize,
    out: Outbound,
    inn: Inbound,
    keys: u64,
    /// Unprotected packets, in their protected form.
    opened: BTreeSet<(bool, Vec<u8>)>,
    last: Vec<u8>,
}

impl SrtpRun {
    fn new(suite: Suite, flags: u8, window: u8) -> SrtpRun {
        let options = Options {
            unencrypted_srtp: flags & 1 != 0,
            unencrypted_srtcp: flags & 2 != 0,
            unauthenticated_srtp: false,
            key_derivation_rate: flags >> 6,
        };
        let mki = usize::from(flags >> 2 & 3);
        let limits = ContextLimits {
            window: usize::from(window) * 4,
            sources: 4,
        };
        let key = SrtpRun::key(suite, options, mki, 0);
        SrtpRun {
            suite,
            options,
            mki,
            out: Outbound::new(&key, limits).expect("a good key"),
            inn: Inbound::new(&key, limits).expect("a good key"),
            keys: 0,
            opened: BTreeSet::new(),
            last: Vec::new(),
        }
    }

    fn key(suite: Suite, options: Options, mki: usize, number: u64) -> MasterKey {
        let mut key = MasterKey::generate(suite, &mut Entropy::from_number(number))
            .with_options(options)
            .expect("possible options");
        if mki > 0 {
            let bytes = number.to_be_bytes();
            let (_, mki) = bytes.split_at(bytes.len() - mki);
            key = key.with_mki(mki).expect("a short identifier");
        }
        key
    }

    fn step(&mut self, step: u8, a: u8, b: u8, payload: &[u8]) {
        match step % 8 {
            0 | 1 => self.exchange(false, &rtp(a, b, payload), step),
            2 => self.exchange(true, &rtcp(a, payload), step),
            3 | 4 => {
                self.open(step % 8 == 4, payload);
            }
            5 => {
                let mut altered = self.last.clone();
                let at = usize::from(a) * 256 + usize::from(b);
                let at = at % altered.len().max(1);
                if let Some(byte) = altered.get_mut(at) {
                    *byte ^= step | 1;
                }
                self.open(step & 8 != 0, &altered);
            }
            6 => {
                let again = self.last.clone();
                self.open(step & 8 != 0, &again);
            }
            _ => self.rekey(a, b),
        }
    }

    fn rekey(&mut self, a: u8, b: u8) {
        self.keys += 1;
        let key = SrtpRun::key(self.suite, self.options, self.mki, self.keys);
        let added = self.inn.add(&key).is_ok();
        if added && a & 1 == 0 {
            self.out.rekey(&key).expect("a good key");
        }
        if b == 0 {
            self.inn.retire();
        }
    }

    /// Protects a packet and unprotects it on the other side: if both know the key, the packet is the same.
    fn exchange(&mut self, rtcp: bool, plain: &[u8], step: u8) {
        let mut buffer = plain.to_vec();
        buffer.resize(plain.len() + MAX_OVERHEAD, 0x55);
        let sealed = if rtcp {
            self.out.protect_rtcp(&mut buffer, plain.len())
        } else {
            self.out.protect_rtp(&mut buffer, plain.len())
        };
        let Ok(length) = sealed else {
            assert_eq!(buffer.get(..plain.len()), Some(plain), "unchanged");
            return;
        };
        assert!(length <= plain.len() + MAX_OVERHEAD);
        buffer.truncate(length);
        self.last = buffer;
        if step & 8 == 0 {
            let again = self.last.clone();
            if let Some(opened) = self.open(rtcp, &again) {
                assert_eq!(opened, plain);
            }
        }
    }

    /// Unprotects a packet; no packet is accepted twice.
    fn open(&mut self, rtcp: bool, packet: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = packet.to_vec();
        let opened = if rtcp {
            self.inn.unprotect_rtcp(&mut buffer)
        } else {
            self.inn.unprotect_rtp(&mut buffer)
        };
        assert!(self.inn.sources().count() <= 4);
        let length = opened.ok()?;
        assert!(length < packet.len());
        assert!(
            self.opened.insert((rtcp, packet.to_vec())),
            "the same packet was accepted twice"
        );
        buffer.truncate(length);
        Some(buffer)
    }
}

/// One of eight sources, more than the table holds, and sequence numbers near the wrap.
fn rtp(a: u8, b: u8, payload: &[u8]) -> Vec<u8> {
    let header = wire::rtp::RtpHeader {
        sequence: (i16::from(a as i8) * 24 + i16::from(b as i8)) as u16,
        ssrc: u32::from(b & 7),
        csrcs: if a & 1 == 0 { &[] } else { &[9, 8] },
        ..wire::rtp::RtpHeader::default()
    };
    header.packet(payload)
}

fn rtcp(a: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 1, 0, 0, 0, a & 7];
    packet.extend_from_slice(payload);
    packet
}
