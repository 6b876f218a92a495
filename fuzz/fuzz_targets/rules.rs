//! Arbitrary bytes: a condition up to the first NUL, a message after it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rules::fuzz_rules(data));
