//! Any bytes at any time, on any socket or connection, into the whole border.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| border::fuzz_border(data));
