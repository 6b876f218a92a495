//! Arbitrary bytes as a session description.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::fuzz::fuzz_sdp(data));
