//! Any bytes at any time, on any socket or connection, into the whole border.
#![no_main]

use std::sync::OnceLock;

/// One certificate for all inputs: making one costs more than most of them.
fn endpoint() -> &'static protect::dtls::Endpoint {
    static ENDPOINT: OnceLock<protect::dtls::Endpoint> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let settings = protect::dtls::Settings::default();
        let epoch = protect::dtls::Epoch::new(std::time::Instant::now());
        let certificate = protect::dtls::Certificate::generate().expect("a certificate");
        protect::dtls::Endpoint::new(settings, certificate, epoch).expect("settings")
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| border::fuzz_border_with_dtls(data, endpoint()));
