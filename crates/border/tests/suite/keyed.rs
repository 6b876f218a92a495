//! The fuzzer's world with DTLS, whose randomness and clock are not the input's.

use border::admission::Cost;
use border::fuzz::explore;
use protect::dtls::{Certificate, Endpoint, Epoch, Settings};
use std::time::Instant;

/// A browser's call: the path is checked, hands are shaken, and what is sealed passes.
#[test]
fn a_call_with_ice_and_dtls_gets_its_keys() {
    let seed =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/border/browser");
    let steps = std::fs::read(seed).expect("the seed");
    let epoch = Epoch::new(Instant::now());
    let certificate = Certificate::generate().expect("a certificate");
    let endpoint = Endpoint::new(Settings::default(), certificate, epoch).expect("settings");
    let reached = explore(&steps, Some(&endpoint));
    println!("{reached:?}");
    assert_eq!(reached.counters.answered, 1);
    assert!(reached.events.contains(&"media_keyed"));
    // One handshake, for a second.
    assert_eq!(reached.shaking, Cost::DTLS_HANDSHAKE.processor);
    assert!(reached.punted > 0 && reached.forwarded > 0);
}
