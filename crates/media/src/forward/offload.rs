//! Offload of streams to the kernel relay: which streams qualify, and when they return to the forwarder.
//!
//! An offload entry is valid while the forwarder would treat the next packet of the stream exactly as the last one. It
//! is requested after a packet that continued the previous one. It ends with any other packet on the socket, when the
//! other side's address changes, and before a command about the session is executed: commands are deferred until the
//! relayed packets are counted.

use super::MediaCommand;
use super::statistics::Counters;
use crate::stats::Arrival;
use engine::{OffloadStatistics, SocketId, Time};
use std::collections::VecDeque;
use wire::rtp::RtpView;

/// State of an offload entry, as agreed with the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OffloadState {
    #[default]
    Closed,
    /// To be requested from the driver.
    Requested,
    /// Requested; the driver may have opened it.
    Open,
    /// Its end was requested and is not confirmed.
    Closing,
}

/// The last packet of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPacket {
    pub(crate) ssrc: u32,
    pub(crate) payload_type: u8,
    pub(crate) sequence: u16,
    pub(crate) timestamp: u32,
    pub(crate) arrived: Time,
}

/// Offload state of the stream received from one side.
#[derive(Debug, Default)]
pub(crate) struct OffloadStream {
    state: OffloadState,
    last: Option<LastPacket>,
    /// Whether the last packet directly continued the one before it.
    steady: bool,
    offloaded: Counters,
    opened: u64,
}

impl OffloadStream {
    /// A packet reached the socket, so the driver has closed the entry of this stream.
    pub(crate) fn packet_received(&mut self) {
        if self.state == OffloadState::Open {
            self.state = OffloadState::Closed;
        }
    }

    /// Notes a counted RTP packet. `fixed_header`: it has no padding, extension or contributing sources.
    pub(crate) fn observe(
        &mut self,
        view: &RtpView<'_>,
        fixed_header: bool,
        arrival: Option<Arrival>,
        arrived: Time,
    ) {
        let now = LastPacket {
            ssrc: view.ssrc(),
            payload_type: view.payload_type(),
            sequence: view.sequence(),
            timestamp: view.timestamp(),
            arrived,
        };
        self.steady = fixed_header
            && arrival == Some(Arrival::Advance)
            && self.last.is_some_and(|last| {
                last.ssrc == now.ssrc
                    && last.payload_type == now.payload_type
                    && last.sequence.wrapping_add(1) == now.sequence
            });
        self.last = Some(now);
    }

    /// The last packet, if an offload may begin after it.
    pub(crate) fn offload_candidate(&self) -> Option<LastPacket> {
        self.last.filter(|_| self.steady)
    }

    /// Number of offload entries requested so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether no entry exists, so that one may be requested.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == OffloadState::Closed
    }

    fn add(&mut self, offloaded: &OffloadStatistics) {
        self.offloaded.add_offloaded(offloaded);
        if let Some(last) = self.last.as_mut().filter(|_| offloaded.packets > 0) {
            last.sequence = last.sequence.wrapping_add(offloaded.packets as u16);
            last.timestamp = offloaded.timestamp;
            last.arrived = offloaded.arrived;
        }
    }

    /// Packets that the kernel relayed, and the number of entries.
    pub(crate) fn figures(&self) -> (Counters, u64) {
        (self.offloaded, self.opened)
    }
}

/// Work that is deferred until offload entries are closed.
#[derive(Debug)]
pub(crate) enum Deferred {
    Command(Box<MediaCommand>),
    /// Inactivity check of a session: its index and its number.
    Check(u32, u64),
}

/// A request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadRequest {
    Open,
    Close,
}

/// Offload requests of a forwarder and work deferred by them.
#[derive(Debug, Default)]
pub(crate) struct Offloads {
    pub(crate) allowed: bool,
    /// Sockets with a request for the driver, oldest first.
    requests: VecDeque<SocketId>,
    /// Number of entries that are being closed.
    closing: usize,
    pub(crate) deferred: VecDeque<Deferred>,
}

impl Offloads {
    /// Requests an entry.
    pub(crate) fn request(&mut self, socket: SocketId, stream: &mut OffloadStream) {
        stream.state = OffloadState::Requested;
        self.requests.push_back(socket);
    }

    /// Requests the end of an entry, if there is one.
    pub(crate) fn close(&mut self, socket: SocketId, stream: &mut OffloadStream) {
        match stream.state {
            OffloadState::Requested => stream.state = OffloadState::Closed,
            OffloadState::Open => {
                stream.state = OffloadState::Closing;
                self.closing += 1;
                self.requests.push_back(socket);
            }
            OffloadState::Closed | OffloadState::Closing => {}
        }
    }

    /// The driver has closed an entry and reported the packets that it relayed.
    pub(crate) fn closed(&mut self, stream: &mut OffloadStream, offloaded: &OffloadStatistics) {
        if stream.state == OffloadState::Closing {
            self.closing -= 1;
        }
        if stream.state != OffloadState::Requested {
            stream.state = OffloadState::Closed;
        }
        stream.add(offloaded);
    }

    /// Whether no entry is being closed, so that commands can be executed.
    pub(crate) fn is_settled(&self) -> bool {
        self.closing == 0
    }

    /// The next socket with a request, see [`Offloads::next_request`].
    pub(crate) fn next(&mut self) -> Option<SocketId> {
        self.requests.pop_front()
    }

    /// The request for the stream of such a socket. `possible`: whether it still qualifies for an entry.
    pub(crate) fn next_request(
        stream: &mut OffloadStream,
        possible: bool,
    ) -> Option<OffloadRequest> {
        match (stream.state, possible) {
            (OffloadState::Requested, true) => {
                stream.state = OffloadState::Open;
                stream.opened += 1;
                Some(OffloadRequest::Open)
            }
            (OffloadState::Requested, false) => {
                stream.state = OffloadState::Closed;
                None
            }
            (OffloadState::Closing, _) => Some(OffloadRequest::Close),
            (OffloadState::Open | OffloadState::Closed, _) => None,
        }
    }
}
