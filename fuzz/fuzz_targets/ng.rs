#![no_main]
//! The "ng" protocol: bencode and message streams, arbitrary replies to an ng client, arbitrary commands to an ng
//! server with a call.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire::fuzz::fuzz_ng(data);
    border::fuzz_ng_client(data);
    ng::fuzz_ng_server(data);
});
