//! Stream events. Their cost per event has no small bound (a TLS handshake, a read full of messages), so with a
//! forwarder on the same thread they are processed in slices: arrived media is forwarded between them, and the rest of
//! a long queue is left to the next turn.

use super::{Driver, ForwarderHost};
use crate::tcp::ReadOutcome;
use engine::{ConnectionId, Control, Forward, Input, Time};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Time of stream events after which arrived media is forwarded.
const MEDIA_INTERVAL: Duration = Duration::from_micros(300);
/// Time of the stream events of one turn; datagrams and timers wait no longer for them.
const STREAM_SPAN: Duration = Duration::from_millis(2);

/// Bytes of one read. With a forwarder on this thread it is about a TLS record, because media waits for the messages of
/// a read.
pub(super) const fn read_size(forwards: bool) -> usize {
    match forwards {
        true => 16 << 10,
        false => 64 << 10,
    }
}

/// A connection that is ready.
#[derive(Debug)]
struct StreamEvent {
    index: u32,
    generation: u32,
    flags: EventFlags,
}

/// Ready connections in the order in which they are served, at most one entry for each. Those that one turn leaves are
/// first in the next one: epoll may report the same connections in the same order again.
#[derive(Debug, Default)]
pub(super) struct StreamEvents {
    queue: VecDeque<StreamEvent>,
    /// When the stream events of this turn began.
    began: Time,
    /// When arrived media was forwarded last.
    forwarded: Time,
}

impl StreamEvents {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Arrived media was forwarded at `now`.
    pub(super) fn media_forwarded(&mut self, now: Time) {
        self.forwarded = now;
    }
}

impl<F: Forward> Driver<F> {
    /// Queues a ready connection for [`Driver::process_streams`].
    pub(super) fn queue_stream(&mut self, index: u32, generation: u32, flags: EventFlags) {
        if self.streams.queue_event(index, generation) {
            self.stream_events.queue.push_back(StreamEvent {
                index,
                generation,
                flags,
            });
        }
    }

    /// Processes the queued stream events, as many as the time of one turn allows.
    pub(super) fn process_streams<C>(&mut self, control: &mut C, mut now: Time) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        if self.stream_events.is_empty() {
            return Ok(now);
        }
        self.received_signalling = true;
        // The datagrams of this turn may have taken long.
        now = self.forward_media_between(control, now)?;
        self.stream_events.began = now;
        while !self.is_stream_time_over(now)
            && let Some(event) = self.stream_events.queue.pop_front()
        {
            if self.streams.take_event(event.index, event.generation) {
                now = self.process_stream(control, &event, now)?;
            }
        }
        self.has_unread |= !self.stream_events.is_empty();
        Ok(now)
    }

    fn process_stream<C>(
        &mut self,
        control: &mut C,
        event: &StreamEvent,
        mut now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let &StreamEvent {
            index,
            generation,
            flags,
        } = event;
        if flags.intersects(EventFlags::ERR | EventFlags::HUP)
            && self.streams.end_delayed(&self.plane, index, generation)
        {
            self.pass_results(control, now)?;
            return Ok(now);
        }
        if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            self.streams
                .writable(&self.plane, index, generation, &self.config, now);
            self.pass_results(control, now)?;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            now = self.read(control, index, generation, now)?;
        }
        self.forward_media_between(control, now)
    }

    /// Whether the stream events of this turn have taken their time. An engine without a forwarder sends its media
    /// between all inputs.
    fn is_stream_time_over(&self, now: Time) -> bool {
        self.forwards_here() && now.since(self.stream_events.began) >= STREAM_SPAN
    }

    fn forwards_here(&self) -> bool {
        matches!(self.media, ForwarderHost::SameThread(_))
    }

    /// Forwards the media that has arrived, if the last time is [`MEDIA_INTERVAL`] ago. Returns the present time.
    fn forward_media_between<C>(&mut self, control: &mut C, now: Time) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        if !self.forwards_here() {
            return Ok(now);
        }
        let mut now = self.clock.now();
        if now.since(self.stream_events.forwarded) < MEDIA_INTERVAL {
            return Ok(now);
        }
        self.media_due(control, now)?;
        let ready = self.plane.poll_media()?;
        if ready > 0 {
            now = self.receive_media(control, ready, now)?;
        }
        self.stream_events.media_forwarded(now);
        Ok(now)
    }

    fn read<C>(
        &mut self,
        control: &mut C,
        index: u32,
        generation: u32,
        now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        // Taken out while its bytes are processed, because that borrows the driver.
        let mut buffer = std::mem::take(&mut self.stream_buffer);
        let result = self.read_into(control, (index, generation), &mut buffer, now);
        self.stream_buffer = buffer;
        let now = result?;
        self.pass_results(control, now)?;
        Ok(now)
    }

    fn read_into<C>(
        &mut self,
        control: &mut C,
        (index, generation): (u32, u32),
        buffer: &mut [u8],
        mut now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let mut budget = self.config.stream_budget;
        while budget > 0 {
            let outcome =
                self.streams
                    .read(&self.plane, (index, generation), buffer, &self.config, now);
            let n = match outcome {
                ReadOutcome::Done => break,
                ReadOutcome::Data(connection, n) => {
                    let bytes = buffer.get(..n).unwrap_or_default();
                    self.input(control, Input::Stream { connection, bytes }, now)?;
                    now = self.forward_media_between(control, now)?;
                    n
                }
                ReadOutcome::Layered(connection, n) => {
                    now = self.messages(control, connection, now)?;
                    self.streams
                        .finish_layers(&self.plane, index, generation, &self.config, now);
                    n
                }
            };
            budget = budget.saturating_sub(n);
            // A read that does not fill the buffer has drained the socket.
            if n < buffer.len() || self.is_stream_time_over(now) {
                break;
            }
        }
        Ok(now)
    }

    /// Passes the messages that the layers of a connection produced to control, after the pending notifications.
    fn messages<C>(
        &mut self,
        control: &mut C,
        connection: ConnectionId,
        now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        self.pass_results(control, now)?;
        let inbox = std::mem::take(&mut self.streams.inbox);
        let mut from = 0;
        let mut result = Ok(now);
        for &end in &inbox.ends {
            // Control may have closed the connection after an earlier message.
            let Some(now) = result.as_ref().ok().copied() else {
                break;
            };
            if !self.streams.has_connection(connection) {
                break;
            }
            let bytes = inbox.bytes.get(from..end).unwrap_or_default();
            from = end;
            result = self
                .input(control, Input::Stream { connection, bytes }, now)
                .and_then(|()| self.forward_media_between(control, now));
        }
        self.streams.inbox = inbox;
        result
    }
}
