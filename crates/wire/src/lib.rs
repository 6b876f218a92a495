//! Bytes to messages and back: SIP, SDP, RTP, RTCP, IP, pcap.
#![forbid(unsafe_code)]
