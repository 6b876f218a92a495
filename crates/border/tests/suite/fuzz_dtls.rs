//! The fuzz target's world with DTLS, whose randomness and clock do not depend on the input.

use border::admission::Price;
use border::fuzz::explore;
use protect::dtls::{Certificate, DtlsEndpoint, Epoch, Settings};
use std::time::Instant;

/// A browser's call: the ICE check succeeds, the DTLS handshake completes, and SRTP packets are relayed.
#[test]
fn call_with_ice_and_dtls_gets_its_keys() {
    let seed =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/border/browser");
    let steps = std::fs::read(seed).expect("the seed");
    let epoch = Epoch::new(Instant::now());
    let certificate = Certificate::generate().expect("a certificate");
    let endpoint = DtlsEndpoint::new(Settings::default(), certificate, epoch).expect("settings");
    let reached = explore(&steps, Some(&endpoint));
    println!("{reached:?}");
    assert_eq!(reached.counters.answered, 1);
    assert!(reached.events.contains(&"media_security_agreed"));
    // One handshake in a second.
    assert_eq!(reached.handshake_cpu_us, Price::DTLS_HANDSHAKE.processor);
    assert!(reached.punted > 0 && reached.forwarded > 0);
}
