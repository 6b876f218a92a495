//! Arbitrary bytes as RTP, RTCP and other packets on media ports.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    media::fuzz_forward(data);
    media::stats::fuzz_rtp_rtcp(data);
    wire::fuzz_packets(data);
});
