//! Arbitrary bytes as payloads of every codec, comfort noise, format parameters and WAV files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    codec::fuzz_codec(data);
});
