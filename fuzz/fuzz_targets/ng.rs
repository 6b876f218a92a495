#![no_main]
//! Messages of the "ng" protocol: bencode, and streams of it; and any replies to a border that commands nodes.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire::fuzz::fuzz_ng(data);
    border::fuzz_nodes(data);
});
