//! Any bytes: a condition in front of the first NUL, a message behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rules::fuzz_rules(data));
