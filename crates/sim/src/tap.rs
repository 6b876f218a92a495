//! A tap receives every packet, so that a run can be written as a capture.

use crate::host::HostId;
use engine::Time;
use std::net::SocketAddr;

/// Position of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapPoint {
    /// At the sending host, before the link (and its losses).
    Sent(HostId),
    /// At the receiving host, after the link.
    Delivered(HostId),
}

/// Transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapTransport {
    /// UDP.
    Udp,
    /// TCP, with the fields of its header. Acknowledgements are not separate packets here.
    Tcp {
        /// Sequence number of the first byte (of the SYN or FIN itself on those).
        sequence: u32,
        /// Next byte expected from the other side, if its SYN was received.
        acknowledgement: Option<u32>,
        /// SYN flag.
        syn: bool,
        /// FIN flag.
        fin: bool,
        /// RST flag.
        rst: bool,
    },
}

/// One packet at one position.
#[derive(Clone, Copy, Debug)]
pub struct TapRecord<'a> {
    /// Time.
    pub at: Time,
    /// Position.
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
