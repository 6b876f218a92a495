//! The life of an ICE agent: candidates, checks, answers, restarts, time.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protect::fuzz_ice(data));
