//! Any bytes as what a browser sends: the request that opens a WebSocket, and frames, whole and in pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::ws::fuzz(data));
