//! Arbitrary bytes as ESP packets, steps between two ends, and key files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protect::fuzz_esp(data));
