//! A tap sees every packet, so that a run can be turned into a capture.

use crate::host::HostId;
use engine::Time;
use std::net::SocketAddr;

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapPoint {
    /// As its host sent it, before the link (and its losses).
    Sent(HostId),
    /// As it came to its host, after the link.
    Delivered(HostId),
}

/// What carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapTransport {
    /// UDP.
    Udp,
    /// TCP, with what its header needs. Acknowledgements are not packets of their own here.
    Tcp {
        /// Sequence number of the first byte (of the SYN or FIN itself on those).
        sequence: u32,
        /// Next byte awaited from the other side, where its SYN was seen.
        acknowledgement: Option<u32>,
        /// SYN flag.
        syn: bool,
        /// FIN flag.
        fin: bool,
        /// RST flag.
        rst: bool,
    },
}

/// One packet at one point.
#[derive(Clone, Copy, Debug)]
pub struct TapRecord<'a> {
    /// When.
    pub at: Time,
    /// Where it was seen.
    pub point: TapPoint,
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// UDP or TCP.
    pub transport: TapTransport,
    /// Payload.
    pub bytes: &'a [u8],
}
