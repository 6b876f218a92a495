//! UDP datagrams of a capture, as the finders of calls and streams take them.

use std::net::SocketAddr;

/// A UDP datagram with its addresses and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapturedDatagram<'a> {
    pub time: u64,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub payload: &'a [u8],
    /// Length of the payload as sent; greater than the captured length for a truncated packet.
    pub sent_length: usize,
}

impl CapturedDatagram<'_> {
    pub(super) fn is_truncated(&self) -> bool {
        self.payload.len() < self.sent_length
    }
}
