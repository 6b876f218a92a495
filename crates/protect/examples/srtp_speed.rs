//! Measures protection and unprotection of packets, and compares the implementations of each cipher at several sizes.
//!
//! `cargo run --release -p protect --example srtp_speed [part of a name]`: medians over rounds, nanoseconds.

use aes_gcm::{AeadInOut, KeyInit};
use aws_lc_rs::hmac;
use engine::{Entropy, Time};
use protect::cipher::{Backend, CounterKey, GcmKey, HmacSha1, PacketAead, PacketCipher, PacketMac};
use protect::dtls::{
    Certificate, DtlsEndpoint, DtlsEvent, DtlsSession, Epoch, HashFunction, Role, Settings,
};
use protect::srtp::{ContextLimits, Inbound, MAX_OVERHEAD, MasterKey, Outbound, Suite};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 41;
const OPERATIONS: u32 = 5_000;

fn measure(filter: &str, name: &str, mut operation: impl FnMut()) {
    if !name.contains(filter) {
        return;
    }
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..OPERATIONS {
                operation();
            }
            start.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{name:<52} median {:8.1}   least {:8.1}",
        rounds[ROUNDS / 2],
        rounds[0]
    );
}

fn ciphers(filter: &str, size: usize) {
    let mut data = vec![7u8; size];
    let (key, iv) = ([3u8; 16], [5u8; 16]);
    for backend in [Backend::RustCrypto, Backend::AwsLc] {
        let cipher = CounterKey::with_backend(backend, &key).expect("16 bytes");
        measure(filter, &format!("AES-128-CTR {backend:?} {size}"), || {
            cipher.encrypt(black_box(&iv), black_box(&mut data));
        });
    }
    let ours = HmacSha1::new(&[1; 20]);
    measure(filter, &format!("HMAC-SHA1 saved states {size}"), || {
        black_box(ours.tag(black_box(&data), &[0; 4]));
    });
    let theirs = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &[1; 20]);
    measure(filter, &format!("HMAC-SHA1 AwsLc {size}"), || {
        let mut context = hmac::Context::with_key(&theirs);
        context.update(black_box(&data));
        context.update(&[0; 4]);
        black_box(context.sign());
    });
    let aws = GcmKey::new(&key).expect("16 bytes");
    measure(filter, &format!("AES-128-GCM AwsLc {size}"), || {
        let _ = black_box(aws.encrypt([9; 12], &[1; 12], black_box(&mut data)));
    });
    let rust = aes_gcm::Aes128Gcm::new(&key.into());
    measure(filter, &format!("AES-128-GCM RustCrypto {size}"), || {
        let sealed =
            rust.encrypt_inout_detached(&[9; 12].into(), &[1; 12], black_box(&mut data[..]).into());
        let _ = black_box(sealed);
    });
}

fn packets(filter: &str, suite: Suite, payload: usize) {
    let key = MasterKey::generate(suite, &mut Entropy::from_number(1));
    let limits = ContextLimits::default();
    let mut outbound = Outbound::new(&key, limits).expect("a key of the suite");
    let mut inbound = Inbound::new(&key, limits).expect("a key of the suite");
    let mut buffer = vec![0u8; 12 + payload + MAX_OVERHEAD];
    buffer[0] = 0x80;
    buffer[1] = 18;
    let mut sequence = 0u16;
    measure(
        filter,
        &format!("seal and open {suite} 12+{payload}"),
        || {
            sequence = sequence.wrapping_add(1);
            buffer[2..4].copy_from_slice(&sequence.to_be_bytes());
            let sealed = outbound
                .protect_rtp(&mut buffer, 12 + payload)
                .expect("a fresh sequence number");
            let opened = inbound
                .unprotect_rtp(&mut buffer[..sealed])
                .expect("our own packet");
            assert_eq!(opened, 12 + payload);
        },
    );
}

/// Resident memory of the process, bytes.
fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0);
    pages * 4096.0
}

fn memory(filter: &str) {
    const CONTEXTS: usize = 20_000;
    // Measured first, before freed memory can be reused unnoticed.
    if "memory of a DTLS association".contains(filter) {
        let ends = associations(500);
        println!(
            "{:<52} {ends:8.0} bytes",
            "memory of a DTLS association, established"
        );
    }
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm] {
        let name = format!("memory of both directions {suite}");
        if !name.contains(filter) {
            continue;
        }
        let key = MasterKey::generate(suite, &mut Entropy::from_number(1));
        let limits = ContextLimits::default();
        let before = resident_bytes();
        let contexts: Vec<(Outbound, Inbound)> = (0..CONTEXTS)
            .map(|_| {
                let mut outbound = Outbound::new(&key, limits).expect("a key of the suite");
                let mut inbound = Inbound::new(&key, limits).expect("a key of the suite");
                let mut buffer = vec![0x80; 60];
                let sealed = outbound.protect_rtp(&mut buffer, 12);
                buffer.truncate(sealed.expect("room"));
                inbound.unprotect_rtp(&mut buffer).expect("our own packet");
                (outbound, inbound)
            })
            .collect();
        println!(
            "{name:<52} {:8.0} bytes",
            (resident_bytes() - before) / contexts.len() as f64
        );
    }
}

/// Memory of one end of an established association, bytes.
fn associations(count: usize) -> f64 {
    let start = Instant::now();
    let certificate = Certificate::generate().expect("a certificate");
    let prints = vec![certificate.fingerprint(HashFunction::Sha256)];
    let endpoint = DtlsEndpoint::new(Settings::default(), certificate, Epoch::new(start));
    let endpoint = endpoint.expect("good settings");
    let before = resident_bytes();
    let mut pairs = Vec::new();
    for _ in 0..count {
        let mut ends = [Role::Client, Role::Server]
            .map(|role| DtlsSession::new(&endpoint, role, Some(prints.clone()), Time::ZERO));
        let mut done = 0;
        while done < 2 {
            for side in 0..2 {
                let mut datagrams = Vec::new();
                while let Some(event) = ends[side].next_event() {
                    match event {
                        DtlsEvent::Send(datagram) => datagrams.push(datagram.to_vec()),
                        DtlsEvent::Established(_) => done += 1,
                        other => panic!("{other:?}"),
                    }
                }
                for datagram in datagrams {
                    ends[1 - side]
                        .feed(&datagram, Time::ZERO)
                        .expect("in course");
                }
            }
        }
        pairs.push(ends);
    }
    println!(
        "a DTLS handshake, both ends                          {:8.2} ms",
        start.elapsed().as_secs_f64() * 1e3 / count as f64
    );
    (resident_bytes() - before) / (2 * count) as f64
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    memory(&filter);
    for payload in [20, 160] {
        for suite in Suite::ALL {
            packets(&filter, suite, payload);
        }
    }
    for size in [20, 32, 80, 160, 172, 332, 652, 1_212] {
        ciphers(&filter, size);
    }
}
