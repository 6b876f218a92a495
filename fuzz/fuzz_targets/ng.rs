#![no_main]
//! Messages of the "ng" protocol: bencode, and streams of it; any replies to a border that commands nodes; any commands to a node with a call.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire::fuzz::fuzz_ng(data);
    border::fuzz_nodes(data);
    border::fuzz_node(data);
});
