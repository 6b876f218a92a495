//! A link with its packets: the queue before the line, the packet on the line, and those under way. The engine of an
//! emulator in real time, and of simulated links with active queue management.

use crate::codel::Codel;
use crate::link::{Link, LinkConfig};
use engine::timers::TimerHeap;
use engine::{DropReason, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage<T> {
    /// It arrives.
    Arrived {
        /// The packet.
        packet: T,
        /// A bit of it has to be changed.
        corrupt: bool,
    },
    /// It was lost after it had entered.
    Dropped {
        /// The packet.
        packet: T,
        /// [`DropReason::LinkLost`] or [`DropReason::LinkCodel`].
        reason: DropReason,
    },
}

/// Packets by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatorCounts {
    /// Packets offered to the link.
    pub offered: u64,
    /// Packets that arrived, duplicates included.
    pub arrived: u64,
    /// Packets that finished the line, and were exposed to random, burst or trace loss.
    pub exposed: u64,
    /// Of those, lost.
    pub lost: u64,
    /// Packets that found the queue full.
    pub queue_full: u64,
    /// Packets dropped by CoDel.
    pub codel: u64,
    /// Packets larger than the MTU.
    pub too_large: u64,
    /// Packets beyond the emulator's limit: it is too small for the settings, or the link cannot keep up.
    pub over_limit: u64,
    /// Packets that were duplicated.
    pub duplicated: u64,
    /// Packets that were corrupted.
    pub corrupted: u64,
}

#[derive(Debug)]
struct Queued<T> {
    packet: T,
    line_bytes: usize,
    at: Time,
}

#[derive(Debug)]
struct OnLine<T> {
    packet: T,
    end: Time,
}

/// A link with its packets. `T` is the packet.
#[derive(Debug)]
pub struct Emulator<T> {
    link: Link,
    queue: VecDeque<Queued<T>>,
    queued_bytes: usize,
    on_line: Option<OnLine<T>>,
    /// The line is free from this time on.
    free_at: Time,
    under_way: TimerHeap<(T, bool)>,
    dropped: VecDeque<(Time, T, DropReason)>,
    codel: Codel,
    counts: EmulatorCounts,
    limit: usize,
}

impl<T: Clone> Emulator<T> {
    /// At most `limit` packets in the link, waiting ones and duplicates included; further ones are lost.
    pub fn new(link: Link, limit: usize) -> Emulator<T> {
        Emulator {
            link,
            queue: VecDeque::new(),
            queued_bytes: 0,
            on_line: None,
            free_at: Time::ZERO,
            under_way: TimerHeap::new(),
            dropped: VecDeque::new(),
            codel: Codel::default(),
            counts: EmulatorCounts::default(),
            limit,
        }
    }

    /// An IP packet of `length` bytes enters.
    ///
    /// # Errors
    /// The packet and the reason, if it does not even enter the queue.
    pub fn push(&mut self, packet: T, length: usize, now: Time) -> Result<(), (T, DropReason)> {
        let config = self.link.config();
        let length = config.outer_bytes(length);
        if config.mtu.is_some_and(|mtu| length > mtu) {
            self.counts.offered += 1;
            self.counts.too_large += 1;
            return Err((packet, DropReason::LinkTooLarge));
        }
        let line_bytes = config.framing.line_bytes(length);
        self.push_line(packet, line_bytes, now)
    }

    /// As [`Emulator::push`] for bytes of a connection, which is divided into packets of at most the MTU that share one
    /// fate.
    pub(crate) fn push_segment(
        &mut self,
        packet: T,
        length: usize,
        now: Time,
    ) -> Result<(), (T, DropReason)> {
        let line_bytes = self.link.segment_bytes(length);
        self.push_line(packet, line_bytes, now)
    }

    fn push_line(
        &mut self,
        packet: T,
        line_bytes: usize,
        now: Time,
    ) -> Result<(), (T, DropReason)> {
        self.advance(now);
        self.counts.offered += 1;
        if self.packets() >= self.limit {
            self.counts.over_limit += 1;
            return Err((packet, DropReason::LinkQueueFull));
        }
        let config = self.link.config();
        if config.has_rate() && self.on_line.is_some() {
            let backlog = self.queued_bytes as u128 + self.link.bytes_until(self.free_at, now);
            if self.link.is_full(backlog, line_bytes, self.queue.len()) {
                self.counts.queue_full += 1;
                return Err((packet, DropReason::LinkQueueFull));
            }
        }
        self.queued_bytes += line_bytes;
        self.queue.push_back(Queued {
            packet,
            line_bytes,
            at: now,
        });
        self.advance(now);
        Ok(())
    }

    /// The next packet whose way has ended by `now`, with the time of its end.
    pub fn pop(&mut self, now: Time) -> Option<(Time, Passage<T>)> {
        self.advance(now);
        if let Some((at, packet, reason)) = self.dropped.pop_front() {
            return Some((at, Passage::Dropped { packet, reason }));
        }
        let (at, (packet, corrupt)) = self.under_way.pop_due(now)?;
        self.counts.arrived += 1;
        Some((at, Passage::Arrived { packet, corrupt }))
    }

    /// Time at which [`Emulator::pop`] has to be called next.
    pub fn next_at(&self) -> Option<Time> {
        let dropped = self.dropped.front().map(|(at, _, _)| *at);
        let line = self.on_line.as_ref().map(|on_line| on_line.end);
        let times = [dropped, line, self.under_way.next_at()];
        times.into_iter().flatten().min()
    }

    /// Replaces the settings from `now` on. The rest of the packet on the line and the waiting packets go at the new
    /// rate; packets under way keep their arrivals.
    pub fn set(&mut self, config: LinkConfig, now: Time) {
        self.advance(now);
        if let Some(on_line) = &mut self.on_line {
            on_line.end = self.link.rescaled(on_line.end, &config, now);
            self.free_at = on_line.end;
        }
        self.link.set(config, now);
        self.codel.empty();
        self.advance(now);
    }

    /// The settings.
    pub fn config(&self) -> &LinkConfig {
        self.link.config()
    }

    /// Figures until now.
    pub fn counts(&self) -> EmulatorCounts {
        self.counts
    }

    /// Packets in the link.
    pub fn packets(&self) -> usize {
        self.queue.len() + usize::from(self.on_line.is_some()) + self.under_way.len()
    }

    /// Packets that wait for the line.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Moves packets from the queue to the line and from the line on their way, as they would have moved by `now`.
    fn advance(&mut self, now: Time) {
        loop {
            if let Some(on_line) = self.on_line.take() {
                if on_line.end > now {
                    self.on_line = Some(on_line);
                    return;
                }
                self.transmit(on_line.packet, on_line.end);
            }
            let Some(head) = self.queue.front() else {
                return;
            };
            let start = self.free_at.max(head.at);
            let Some(next) = self.dequeue(start) else {
                return;
            };
            self.free_at = start + self.link.line_time(next.line_bytes);
            self.on_line = Some(OnLine {
                packet: next.packet,
                end: self.free_at,
            });
        }
    }

    /// Takes the next packet from the queue at `start`; CoDel drops packets here.
    fn dequeue(&mut self, start: Time) -> Option<Queued<T>> {
        let mut after_drop = 0;
        loop {
            let Some(head) = self.queue.pop_front() else {
                self.codel.empty();
                return None;
            };
            self.queued_bytes = self.queued_bytes.saturating_sub(head.line_bytes);
            let Some(settings) = self.link.config().codel else {
                return Some(head);
            };
            let waited = start.since(head.at);
            let state = (waited, self.queued_bytes);
            if !self.codel.drops(settings, start, state, after_drop) {
                return Some(head);
            }
            after_drop += 1;
            self.counts.codel += 1;
            self.dropped
                .push_back((start, head.packet, DropReason::LinkCodel));
        }
    }

    /// A packet has left the line at `sent`.
    fn transmit(&mut self, packet: T, sent: Time) {
        self.counts.exposed += 1;
        if self.link.loses() {
            self.counts.lost += 1;
            self.dropped.push_back((sent, packet, DropReason::LinkLost));
            return;
        }
        let corrupt = self.link.corrupts();
        self.counts.corrupted += u64::from(corrupt);
        let first = self.link.arrival(sent);
        // The duplicate counts against the limit, too.
        if self.link.duplicates() && self.packets() + 1 < self.limit {
            self.counts.duplicated += 1;
            let second = self.link.arrival(sent);
            self.under_way.push(second, (packet.clone(), corrupt));
        }
        self.under_way.push(first, (packet, corrupt));
    }
}

/// The time that `bytes` take at `rate` bits per second.
pub(crate) fn span(bytes: u128, rate: u64) -> Duration {
    let nanos = bytes * 8_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
