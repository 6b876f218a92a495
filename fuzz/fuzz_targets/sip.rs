//! Arbitrary bytes as a SIP message: index, validation, typed headers, edits, framing.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::fuzz::fuzz_sip(data));
