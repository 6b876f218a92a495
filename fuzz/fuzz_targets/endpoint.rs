//! Arbitrary input at arbitrary times of a SIP endpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sip::fuzz::fuzz_endpoint(data));
