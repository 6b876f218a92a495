//! Links with active queue management: their packets wait in a queue of their own, because the fate of a packet depends
//! on those that come after it.

use crate::emulator::{Emulator, Passage};
use crate::host::HostId;
use crate::link::Link;
use crate::stream::{Segment, Side, StreamId};
use crate::world::{World, WorldEvent};
use engine::{DropReason, Time};
use std::net::SocketAddr;

/// Packets in one link, at most.
const LIMIT: usize = 65_536;

/// A packet in such a link.
#[derive(Clone)]
pub(crate) enum InTransit {
    Datagram {
        source: SocketAddr,
        destination: SocketAddr,
        bytes: Vec<u8>,
    },
    Segment {
        stream: StreamId,
        from: Side,
        segment: Segment,
        tries: u32,
    },
}

/// A link with its queue, and the time of its next scheduled turn.
pub(crate) struct QueuedLink {
    pub(crate) emulator: Emulator<InTransit>,
    turn: Option<Time>,
}

impl World {
    /// A packet enters such a link, or is lost at once.
    pub(crate) fn enqueue(&mut self, pair: (HostId, HostId), packet: InTransit, length: usize) {
        if !self.queues.contains_key(&pair) {
            let link = Link::new(self.link_config(pair), self.link_entropy(pair));
            let emulator = Emulator::new(link, LIMIT);
            let turn = None;
            self.queues.insert(pair, QueuedLink { emulator, turn });
        }
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&pair) else {
            return;
        };
        let is_segment = matches!(packet, InTransit::Segment { .. });
        let refused = match is_segment {
            true => queue.emulator.push_segment(packet, length, now),
            false => queue.emulator.push(packet, length, now),
        };
        self.plan_turn_of_link(pair);
        if let Err((packet, reason)) = refused {
            self.lose_in_link(packet, reason);
        }
    }

    fn plan_turn_of_link(&mut self, pair: (HostId, HostId)) {
        let Some(queue) = self.queues.get_mut(&pair) else {
            return;
        };
        let Some(next) = queue.emulator.next_at() else {
            queue.turn = None;
            return;
        };
        let at = next.max(self.now);
        if queue.turn.is_none_or(|turn| turn > at || turn < self.now) {
            queue.turn = Some(at);
            self.agenda.push(at, WorldEvent::LinkTurn { pair });
        }
    }

    /// The turn of a link: packets arrive or are dropped.
    pub(crate) fn link_turn(&mut self, pair: (HostId, HostId)) {
        let now = self.now;
        let mut ended = Vec::new();
        if let Some(queue) = self.queues.get_mut(&pair) {
            queue.turn = None;
            while let Some((_, passage)) = queue.emulator.pop(now) {
                ended.push(passage);
            }
        }
        for passage in ended {
            match passage {
                Passage::Arrived {
                    packet,
                    corrupt: false,
                } => self.leave_link(pair.1, packet),
                Passage::Arrived { packet, .. } => {
                    self.lose_in_link(packet, DropReason::LinkCorrupted);
                }
                Passage::Dropped { packet, reason } => self.lose_in_link(packet, reason),
            }
        }
        self.plan_turn_of_link(pair);
    }

    fn leave_link(&mut self, to: HostId, packet: InTransit) {
        let event = match packet {
            InTransit::Datagram {
                source,
                destination,
                bytes,
            } => WorldEvent::Datagram {
                host: to,
                source,
                destination,
                bytes,
                digest: None,
            },
            InTransit::Segment {
                stream,
                from,
                segment,
                ..
            } => WorldEvent::Segment {
                stream,
                from,
                segment,
            },
        };
        self.agenda.push(self.now, event);
    }

    pub(crate) fn lose_in_link(&mut self, packet: InTransit, reason: DropReason) {
        self.counts.drops.count(reason);
        match packet {
            InTransit::Datagram {
                source,
                destination,
                bytes,
            } => self.packet_line(reason.name(), source, destination, &bytes),
            InTransit::Segment {
                stream,
                from,
                segment,
                tries,
            } => {
                self.stream_line("tcp-lost", stream, from, &segment);
                self.retry(stream, from, segment, tries);
            }
        }
    }
}
