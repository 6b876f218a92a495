//! Arbitrary bytes as a SIPp scenario.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lab::sipp::fuzz_scenario(data));
