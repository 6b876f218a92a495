//! Offload of streams to a kernel relay: the forwarder selects streams, the driver has them relayed and reports
//! statistics.

use crate::{SocketId, Time};
use core::time::Duration;
use std::net::SocketAddr;

/// An RTP stream whose packets the forwarder would relay unchanged, like the last one. The kernel may relay a packet if
/// it arrives at `socket` from `source`, has no padding, extension or contributing sources, this synchronisation source
/// and payload type, and the next sequence number. Any other packet is passed to the forwarder, and so are all later
/// packets until the stream is offloaded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadedStream {
    /// The receiving socket.
    pub socket: SocketId,
    /// Source address.
    pub source: SocketAddr,
    /// The sending socket.
    pub out_socket: SocketId,
    /// Destination address.
    pub destination: SocketAddr,
    /// Synchronisation source.
    pub ssrc: u32,
    /// Payload type.
    pub payload_type: u8,
    /// Sequence number of the last packet that the forwarder processed.
    pub sequence: u16,
    /// Timestamp of that packet.
    pub timestamp: u32,
    /// Arrival time of that packet.
    pub arrived: Time,
    /// Clock rate, Hz.
    pub clock_rate: u32,
    /// The interarrival jitter after that packet (RFC 3550 section 6.4.1).
    pub jitter: Duration,
}

/// A change of offloaded streams, requested by the forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadChange {
    /// Offload the stream. There is no answer; if it fails, the forwarder continues to receive the packets.
    Open(OffloadedStream),
    /// End the offload of the stream that this socket receives. Answered by [`crate::Forward::offload_closed`] at once,
    /// also if no stream was offloaded.
    Close(SocketId),
}

/// Statistics of an offloaded stream since the offload started. All of its packets were in sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadStatistics {
    /// Number of packets; the other values are meaningless if it is zero.
    pub packets: u32,
    /// Bytes of UDP payload.
    pub bytes: u64,
    /// Timestamp of the last packet.
    pub timestamp: u32,
    /// Arrival time of the last packet.
    pub arrived: Time,
    /// The interarrival jitter after the last packet (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    /// The sum of the jitter after each packet.
    pub jitter_sum: Duration,
    /// The maximum of the jitter.
    pub jitter_max: Duration,
    /// The shortest time between two packets, including the last one that the forwarder processed.
    pub gap_min: Duration,
    /// The longest time between two packets, likewise.
    pub gap_max: Duration,
}
