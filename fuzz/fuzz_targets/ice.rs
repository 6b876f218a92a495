//! An ICE agent: candidates, checks, responses, restarts, timers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protect::fuzz_ice(data));
