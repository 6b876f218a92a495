//! Parsers and writers of protocols and formats: SIP, SDP, RTP, RTCP, ICE-less STUN, IP, pcap, ng, WebSocket.
#![forbid(unsafe_code)]

pub mod capture;
pub mod esp;
pub mod ethernet;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod hep;
pub mod ip;
pub mod ng;
pub mod rtcp;
pub mod rtp;
pub mod sdp;
pub mod sip;
mod sip_text;
pub mod snmp;
pub mod stun;
pub mod syslog;
pub mod tcp;
pub mod udp;
pub mod ws;

#[cfg(feature = "fuzz")]
mod packets;

/// Parses `data` as a capture and as packets of every layer, for fuzzing.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn fuzz_packets(data: &[u8]) {
    packets::fuzz(data);
}
