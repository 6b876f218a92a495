//! Arbitrary bytes as SRTP and SRTCP packets, their keys and `a=crypto` attributes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protect::fuzz_srtp(data));
