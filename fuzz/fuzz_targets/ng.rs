#![no_main]
//! Messages of the "ng" protocol: bencode, and streams of it.
libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::fuzz::fuzz_ng(data));
