//! Measures sealing and opening of ESP packets in memory, one round, nanoseconds a packet.
//!
//! `cargo run --release -p protect --example esp_cost [inner packet bytes]`; `cargo xtask bench esp` runs it in turn
//! with OpenSSL's EVP and compares medians.

use engine::{Entropy, Time};
use protect::esp::{
    EspEncryption, EspIntegrity, EspKeys, EspSuite, InboundSa, MAX_HEADROOM, MAX_TAILROOM,
    OutboundSa, PacketRoom, SaSpec,
};
use std::hint::black_box;
use std::time::Instant;

/// Packets in a timed loop: their buffers stay in the second-level cache.
const PACKETS: usize = 256;
const LOOPS: usize = 200;

fn packet(length: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((length as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.resize(length, 0x5a);
    packet
}

/// The least mean of a few stretches of a round: other load of the machine only adds.
fn measure(
    name: &str,
    length: usize,
    encryption: EspEncryption,
    integrity: EspIntegrity,
    keys: (usize, usize),
) {
    let suite = EspSuite::new(encryption, integrity);
    let keys = EspKeys::new(&vec![3; keys.0], &vec![5; keys.1]);
    let spec =
        SaSpec::new(0x1234, suite, keys).tunnel([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let mut entropy = Entropy::from_number(1);
    let mut outbound =
        OutboundSa::new(spec.clone(), &mut entropy, Time::ZERO).expect("a valid description");
    let mut inbound = InboundSa::new(spec, Time::ZERO).expect("a valid description");
    let inner = packet(length);
    let mut buffers = vec![vec![0u8; MAX_HEADROOM + length + MAX_TAILROOM]; PACKETS];
    let (mut sealing, mut opening) = (f64::MAX, f64::MAX);
    for _ in 0..LOOPS {
        for buffer in &mut buffers {
            buffer[MAX_HEADROOM..][..length].copy_from_slice(&inner);
        }
        let mut rooms: Vec<PacketRoom<'_>> = buffers
            .iter_mut()
            .map(|buffer| PacketRoom::new(buffer, MAX_HEADROOM, length))
            .collect();
        let start = Instant::now();
        outbound.seal_batch(&mut rooms, Time::ZERO, |_, sealed| {
            black_box(sealed.expect("room and numbers"));
        });
        let middle = Instant::now();
        inbound.open_batch(&mut rooms, Time::ZERO, |_, opened| {
            black_box(opened.expect("our own packet"));
        });
        let end = middle.elapsed().as_nanos() as f64;
        sealing = sealing.min((middle - start).as_nanos() as f64 / PACKETS as f64);
        opening = opening.min(end / PACKETS as f64);
        assert!(rooms.iter().all(|room| room.packet() == inner));
    }
    println!("seal {name} {sealing:.1}");
    println!("open {name} {opening:.1}");
}

fn main() {
    let length = std::env::args()
        .nth(1)
        .map_or(60, |text| text.parse().expect("a number of bytes"));
    let length: usize = length;
    measure(
        "AES-128-CBC+HMAC-SHA1-96",
        length,
        EspEncryption::AesCbc,
        EspIntegrity::HmacSha1,
        (16, 20),
    );
    measure(
        "AES-128-GCM",
        length,
        EspEncryption::AesGcm16,
        EspIntegrity::None,
        (20, 0),
    );
    measure(
        "AES-128-CBC+HMAC-SHA2-256-128",
        length,
        EspEncryption::AesCbc,
        EspIntegrity::HmacSha256,
        (16, 32),
    );
    measure(
        "CHACHA20-POLY1305",
        length,
        EspEncryption::ChaCha20Poly1305,
        EspIntegrity::None,
        (36, 0),
    );
}
