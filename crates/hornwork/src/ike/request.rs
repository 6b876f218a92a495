//! Requests to the thread of a key exchange.

use super::files::IkeFiles;
use net::Waker;
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

/// A request.
#[derive(Debug)]
pub(crate) enum IkeRequest {
    /// A message of a peer on the port of ESP, after the marker or a keep-alive.
    Received(SocketAddr, Vec<u8>),
    /// The association of a tunnel with this SPI needs new keys.
    Rekey(usize, u32),
    /// The association of a tunnel with this SPI, of received or of sent packets, could not be used.
    Unusable(usize, u32),
    /// The files were read again.
    Files(Box<IkeFiles>),
    /// The end.
    Stop,
}

/// The way to the key exchange.
#[derive(Clone, Debug)]
pub(crate) struct IkeRequests {
    queue: SyncSender<IkeRequest>,
    waker: Waker,
}

impl IkeRequests {
    pub(crate) fn new(queue: SyncSender<IkeRequest>, waker: Waker) -> IkeRequests {
        IkeRequests { queue, waker }
    }

    /// Sends a request; false if there is no room.
    pub(crate) fn try_send(&self, request: IkeRequest) -> bool {
        let sent = self.queue.try_send(request).is_ok();
        // Behind a full queue the thread is awake.
        if sent {
            self.waker.wake();
        }
        sent
    }

    /// Sends a request; waits while the queue is full. If the key exchange has ended, it has no effect.
    pub(crate) fn send(&self, request: IkeRequest) {
        let _ = self.queue.send(request);
        self.waker.wake();
    }
}
