//! Arbitrary input at arbitrary times, on any socket or connection of a border.
#![no_main]

use std::sync::OnceLock;

/// One certificate for all inputs: generating one costs more than most inputs.
fn endpoint() -> &'static protect::dtls::DtlsEndpoint {
    static ENDPOINT: OnceLock<protect::dtls::DtlsEndpoint> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let settings = protect::dtls::Settings::default();
        let epoch = protect::dtls::Epoch::new(std::time::Instant::now());
        let certificate = protect::dtls::Certificate::generate().expect("a certificate");
        protect::dtls::DtlsEndpoint::new(settings, certificate, epoch).expect("settings")
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| border::fuzz_border_with_dtls(data, endpoint()));
