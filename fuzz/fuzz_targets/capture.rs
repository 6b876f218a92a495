//! Arbitrary bytes as a capture file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| analyse::fuzz_capture(data));
