//! Media of an engine without a forwarder: its packets leave when they are due, before and between received packets.

use super::{Driver, ForwarderHost};
use engine::{Control, DropReason, Engine, Forward, Time};
use std::io;

/// Inputs that are processed between two looks at the media clock: some 10 to 50 us.
const INPUTS_BETWEEN: usize = 8;
/// Batches of due packets that are sent in a row: a sender that is far behind still receives.
const BATCHES_IN_A_ROW: usize = 8;

/// The state of the media clock.
#[derive(Debug, Default)]
pub(super) struct MediaClock {
    /// The latest time that the engine has had.
    latest: Time,
    /// Inputs since the last look at the clock.
    inputs: usize,
    /// Media datagrams received in this turn.
    received: usize,
}

impl MediaClock {
    /// The time of a call to the engine at `now`: packets that were sent or measured within a turn have a later time
    /// than the turn, and an engine's time never runs backwards.
    pub(super) fn advance(&mut self, now: Time) -> Time {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Counts received media datagrams.
    pub(super) fn count_received(&mut self, datagrams: usize) {
        self.received += datagrams;
    }
}

impl<F: Forward> Driver<F> {
    pub(super) fn has_forwarder(&self) -> bool {
        !matches!(self.media, ForwarderHost::None)
    }

    /// Sends the media packets of an engine without a forwarder that are due at `now`, in bounded batches; returns
    /// whether there were any.
    pub(super) fn send_due_media<C>(&mut self, control: &mut C, now: Time) -> io::Result<bool>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        if self.has_forwarder() {
            return Ok(false);
        }
        // Timers run at the latest time, at which a stream may end: its packets until then come first.
        let mut now = self.media_clock.advance(now);
        let mut sent = false;
        for _ in 0..BATCHES_IN_A_ROW {
            if control.media_deadline().is_none_or(|at| at > now) {
                break;
            }
            sent = true;
            self.plane.shared.timeouts.add(1);
            control.send_media(now);
            self.drain(control, now)?;
            self.plane.flush();
            self.report_flush(control);
            now = self.media_clock.advance(self.clock.now());
        }
        Ok(sent)
    }

    /// As [`Driver::send_due_media`], after every few inputs of a turn.
    pub(super) fn media_between_inputs<C>(&mut self, control: &mut C) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        if self.has_forwarder() {
            return Ok(());
        }
        self.media_clock.inputs += 1;
        if self.media_clock.inputs < INPUTS_BETWEEN {
            return Ok(());
        }
        self.media_clock.inputs = 0;
        if control.media_deadline().is_some() {
            let now = self.clock.now();
            self.send_due_media(control, now)?;
        }
        Ok(())
    }

    /// Reports to an engine without a forwarder that its outputs have been sent.
    pub(super) fn report_flush<C: Engine>(&self, control: &mut C) {
        if !self.has_forwarder() {
            control.flushed(self.clock.now());
        }
    }

    /// Ends a turn that began at `start`: the number of received packets determines the batching delay.
    pub(super) fn end_media_turn(&mut self, start: Time) {
        let received = std::mem::take(&mut self.media_clock.received);
        if !self.has_forwarder() {
            self.media_batcher.end_turn(start, received);
        }
    }

    /// Receives from a shared-port socket for an engine without a forwarder.
    pub(super) fn receive_shared_port<C>(
        &mut self,
        control: &mut C,
        number: u32,
        mut now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        // Taken out while the batches are processed, because that borrows the driver.
        let Some(mut receiver) = self.media_buffers.take() else {
            return Ok(now);
        };
        let mut budget = self.config.datagram_budget;
        let (mut more, mut done) = (true, Ok(()));
        while more && budget > 0 && done.is_ok() {
            more = self.plane.receive_shared_port(number, &mut receiver);
            let count = receiver.filled();
            self.media_clock.count_received(count);
            self.plane.shared.datagrams_in.add(count);
            budget = budget.saturating_sub(count);
            for index in 0..count {
                let Some(socket) = self.plane.origin(index) else {
                    self.plane.shared.drop_one(DropReason::MediaNoFlow);
                    continue;
                };
                match self.datagram(control, &mut receiver, index, socket, true, now) {
                    Ok(length) => self.plane.shared.bytes_in.add(length),
                    Err(error) => {
                        done = Err(error);
                        break;
                    }
                }
            }
            self.plane.clear_batch(&mut receiver);
            now = self.clock.now();
        }
        self.media_buffers = Some(receiver);
        done.map(|()| now)
    }
}
