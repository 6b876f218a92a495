//! Sealed packets that are sent by one system call, in buffers of their own.

use engine::DropReason;
use net::{EspSendFailure, EspSocket, OutgoingEsp};
use protect::esp::{EspGateway, SealedForPeer};
use std::net::SocketAddr;
use std::ops::Range;

pub(super) struct SealedBatch {
    /// Buffers of `stride` bytes each.
    buffers: Vec<u8>,
    stride: usize,
    outgoing: Vec<OutgoingEsp>,
    /// The tunnel of each of them.
    tunnels: Vec<usize>,
}

impl SealedBatch {
    pub(super) fn new(packets: usize, stride: usize) -> SealedBatch {
        SealedBatch {
            buffers: vec![0; stride * packets],
            stride,
            outgoing: Vec::with_capacity(packets),
            tunnels: Vec::with_capacity(packets),
        }
    }

    pub(super) fn clear(&mut self) {
        self.outgoing.clear();
        self.tunnels.clear();
    }

    /// Number of sealed packets.
    pub(super) fn len(&self) -> usize {
        self.outgoing.len()
    }

    #[cfg(test)]
    pub(super) fn outgoing(&self) -> &[OutgoingEsp] {
        &self.outgoing
    }

    /// A buffer, with its place among all of them.
    pub(super) fn slot(&mut self, number: usize) -> Option<(usize, &mut [u8])> {
        let start = number * self.stride;
        let buffer = self.buffers.get_mut(start..start + self.stride)?;
        Some((start, buffer))
    }

    /// Adds a packet that was sealed at this place.
    pub(super) fn push(&mut self, place: Range<usize>, sealed: &SealedForPeer, copies_df: bool) {
        self.outgoing.push(OutgoingEsp {
            place,
            destination: sealed.destination,
            traffic_class: sealed.traffic_class,
            dont_fragment: sealed.dont_fragment && copies_df,
        });
        self.tunnels.push(sealed.tunnel);
    }

    /// Sends the packets, and counts those that the socket refuses. Returns the tunnel and the peer of one that was too
    /// long for its path.
    pub(super) fn send(
        &self,
        socket: &mut EspSocket,
        gateway: &mut EspGateway,
    ) -> Option<(usize, SocketAddr)> {
        let (mut too_long, mut refused, mut short_path) = (0, 0, None);
        socket.send(
            &self.buffers,
            &self.outgoing,
            |index, failure| match failure {
                EspSendFailure::TooLarge => {
                    too_long += 1;
                    short_path = Some(index);
                }
                EspSendFailure::Refused => refused += 1,
            },
        );
        gateway.count_drops(DropReason::EspTooLarge, too_long);
        gateway.count_drops(DropReason::SendFailed, refused);
        let index = short_path?;
        let (tunnel, packet) = (self.tunnels.get(index)?, self.outgoing.get(index)?);
        Some((*tunnel, packet.destination))
    }
}
