//! Arbitrary bytes as input from a WebSocket client and from a server: opening handshake and frames, with any
//! segmentation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::ws::fuzz(data));
