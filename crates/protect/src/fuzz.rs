//! Any bytes as packets, keys, attributes and connectivity checks: the fuzz target and the property tests share it.

use crate::ice::{Credentials, Lite};
use crate::sdes::{self, CryptoAttribute};
use crate::srtp::{ContextLimits, Inbound, MAX_OVERHEAD, MasterKey, Options, Outbound, Suite};
use crate::stun::Message;
use engine::{Entropy, Time};
use std::collections::BTreeSet;

/// Reads `data` as a suite, its options, and steps: packets sealed, altered, repeated and opened, keys changed, bytes that nobody
/// sealed. Checks what must always hold.
///
/// # Panics
/// Where an invariant is broken: that is the finding.
pub fn fuzz_srtp(data: &[u8]) {
    attributes(data);
    checks(data);
    let Some((&[suite, options, window], mut rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let suites = Suite::ALL;
    let Some(&suite) = suites.get(usize::from(suite) % suites.len()) else {
        return;
    };
    let mut run = Run::new(suite, options, window);
    for _ in 0..200 {
        let Some((&[step, a, b, length], behind)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let (payload, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        run.step(step, a, b, payload);
    }
}

/// An attribute that could be read is written and read as the same.
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
        let again = CryptoAttribute::parse(read.value().as_bytes()).expect("what we wrote");
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
        assert!(back.is_ok(), "the offerer takes our answer: {back:?}");
        assert!(agreed.contexts(policy.limits).is_ok());
    }
}

/// The same bytes as a STUN datagram to an ICE-lite agent: every answer is a STUN message, and nobody is let in who does not know
/// the password.
fn checks(data: &[u8]) {
    let from = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
    let mut lite = Lite::new(Credentials::generate(&mut Entropy::from_number(1)), None);
    if let Some(message) = Message::parse(data) {
        let _ = (message.mapped_address(), message.error_code());
        let _ = (
            message.unknown_attributes().count(),
            message.has_integrity(),
        );
    }
    let _ = lite.feed(data, from, Time::ZERO);
    while let Some((_, answer)) = lite.next_answer() {
        assert!(
            Message::parse(&answer).is_some(),
            "an answer that is no STUN"
        );
    }
    assert!(!lite.admits(from));
}

struct Run {
    suite: Suite,
    options: Options,
    mki: usize,
    out: Outbound,
    inn: Inbound,
    keys: u64,
    /// Packets that were opened, of the key that they were sealed with.
    opened: BTreeSet<(bool, Vec<u8>)>,
    last: Vec<u8>,
}

impl Run {
    fn new(suite: Suite, flags: u8, window: u8) -> Run {
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
        let key = Run::key(suite, options, mki, 0);
        Run {
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
        let key = Run::key(self.suite, self.options, self.mki, self.keys);
        let added = self.inn.add(&key).is_ok();
        if added && a & 1 == 0 {
            self.out.rekey(&key).expect("a good key");
        }
        if b == 0 {
            self.inn.retire();
        }
    }

    /// Seals a packet and opens it on the other side: where both know the key it is the same packet.
    fn exchange(&mut self, rtcp: bool, plain: &[u8], step: u8) {
        let mut buffer = plain.to_vec();
        buffer.resize(plain.len() + MAX_OVERHEAD, 0x55);
        let sealed = if rtcp {
            self.out.protect_rtcp(&mut buffer, plain.len())
        } else {
            self.out.protect_rtp(&mut buffer, plain.len())
        };
        let Ok(length) = sealed else {
            assert_eq!(buffer.get(..plain.len()), Some(plain), "left alone");
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

    /// Opens a packet; none is opened twice.
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
            "the same packet was opened twice"
        );
        buffer.truncate(length);
        Some(buffer)
    }
}

/// One of eight sources, so that the table fills, and sequence numbers near the wrap.
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
