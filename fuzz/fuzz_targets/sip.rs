//! Any bytes as a SIP message: index, judgement, every typed header, edits, framing.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::fuzz::fuzz_sip(data));
