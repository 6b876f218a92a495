//! Arbitrary bytes as VICI packets, as the log of the key exchange's daemon, and as proposals.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protect::fuzz_ike(data));
