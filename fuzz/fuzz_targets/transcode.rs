//! Packets of a transcoded call.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| media::fuzz_transcode(data));
