//! Any bytes as what a browser sends, and as what a server answers: the opening of a WebSocket, and frames, whole and in pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire::ws::fuzz(data));
