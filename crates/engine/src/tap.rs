//! Copies of SIP messages for recording: an engine appends them to a batch of bounded size, and its host exchanges the
//! batch for an empty one after a turn. Nothing blocks: messages beyond the bound are counted as lost.

use crate::io::Transport;
use crate::time::Time;
use std::net::SocketAddr;

/// Expected size of a message, for the reservation of its descriptions.
const USUAL_MESSAGE: usize = 512;

/// Description of a recorded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMessage {
    /// Time at which it was processed or sent.
    pub at: Time,
    /// Whether it was sent; otherwise it was received.
    pub sent: bool,
    /// Transport.
    pub transport: Transport,
    /// Address of our listener.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
}

/// Recorded messages in order of processing.
#[derive(Debug, Default)]
pub struct MessageBatch {
    /// Each with the end of its bytes.
    messages: Vec<(RecordedMessage, u32)>,
    bytes: Vec<u8>,
    capacity: usize,
    lost: u64,
}

impl MessageBatch {
    /// An empty batch for `capacity` bytes of messages, which are reserved.
    pub fn new(capacity: usize) -> MessageBatch {
        MessageBatch {
            messages: Vec::with_capacity(capacity / USUAL_MESSAGE),
            bytes: Vec::with_capacity(capacity),
            capacity,
            lost: 0,
        }
    }

    /// Appends a copy of a message, or counts it as lost if there is no room.
    pub fn push(&mut self, message: RecordedMessage, bytes: &[u8]) {
        let room = self.bytes.len() + bytes.len() <= self.capacity
            && self.messages.len() < self.messages.capacity();
        if !room {
            self.lost += 1;
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.messages.push((message, self.bytes.len() as u32));
    }

    /// The messages with their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (RecordedMessage, &[u8])> {
        let mut from = 0;
        self.messages.iter().map(move |&(message, end)| {
            let bytes = self.bytes.get(from..end as usize).unwrap_or_default();
            from = end as usize;
            (message, bytes)
        })
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether it has neither messages nor lost ones.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.lost == 0
    }

    /// Whether half of its room is used.
    pub fn is_half_full(&self) -> bool {
        self.bytes.len() * 2 >= self.capacity || self.messages.len() * 2 >= self.messages.capacity()
    }

    /// Number of messages that found no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of messages that found no room since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Empties it; the reserved memory stays.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.bytes.clear();
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_the_room_are_counted() {
        let mut batch = MessageBatch::new(1_024);
        let address = SocketAddr::from(([192, 0, 2, 1], 5060));
        let message = RecordedMessage {
            at: Time(7),
            sent: true,
            transport: Transport::Tls,
            local: address,
            remote: address,
        };
        assert!(batch.is_empty() && !batch.is_half_full());
        batch.push(message, b"one");
        batch.push(message, &[0; 600]);
        batch.push(message, &[0; 600]);
        assert!(batch.is_half_full());
        let kept: Vec<usize> = batch.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!((kept, batch.lost(), batch.len()), (vec![3, 600], 1, 2));
        assert_eq!(batch.iter().next(), Some((message, &b"one"[..])));
        assert_eq!((batch.take_lost(), batch.take_lost()), (1, 0));
        assert!(!batch.is_empty());
        batch.clear();
        assert!(batch.is_empty());
    }
}
