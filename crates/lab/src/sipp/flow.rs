//! Going through the steps of a scenario.

use super::call::{Phase, Value};
use super::engine::{Alarm, Effect, Generator};
use super::perform::Subject;
use super::program::{Kind, Length, Optional, Program, Receive, Send, Step};
use super::stats::Failure;
use engine::Time;
use std::time::Duration;

/// Steps that a call may go through without waiting: more is a circle.
const STEPS: usize = 20_000;
/// Longest pause.
const LONGEST: f64 = 365.0 * 86_400_000.0;

/// What comes after a step.
pub(super) enum After {
    /// The next step.
    GoOn,
    /// The call waits.
    Wait,
    /// It is over, or its place given away.
    Over,
    /// A step by its number.
    Jump(u16),
}

impl Generator {
    /// Goes on until the call waits or is over.
    pub(super) fn run(&mut self, slot: usize, now: Time) {
        let program = self.program.clone();
        for _ in 0..STEPS {
            let Some(call) = self.calls.get(slot) else {
                return;
            };
            let number = call.step;
            let Some(step) = program.steps.get(usize::from(number)) else {
                self.succeed(slot, now);
                return;
            };
            if call.restored.is_some() {
                if self.restore_pause(slot, now) {
                    return;
                }
                self.proceed(step, number, slot);
                continue;
            }
            if let Some((variable, wanted)) = step.condition
                && self.context.value(call, variable).is_set() != wanted
            {
                self.move_to(slot, number + 1);
                continue;
            }
            match self.step(&program, step, number, slot, now) {
                After::GoOn => self.proceed(step, number, slot),
                After::Jump(to) => self.move_to(slot, to),
                After::Wait | After::Over => return,
            }
        }
        self.effect(Effect::Warning(
            "a call went in a circle without waiting".to_owned(),
        ));
        self.fail(slot, Failure::Endless, now);
    }

    /// The pause that a message had interrupted goes on in place of the next step; whether it lasts yet.
    fn restore_pause(&mut self, slot: usize, now: Time) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let Some(until) = call.restored.take().filter(|until| *until > now) else {
            return false;
        };
        call.phase = Phase::Pausing;
        call.wait_until = until;
        let alarm = Alarm::Wait(slot as u32, call.generation);
        call.wait = Some(self.wheel.schedule(until, alarm));
        true
    }

    fn move_to(&mut self, slot: usize, step: u16) {
        if let Some(call) = self.calls.get_mut(slot) {
            call.step = step;
        }
    }

    /// To the step behind this one, or to where its `next` leads.
    pub(super) fn proceed(&mut self, step: &Step, number: u16, slot: usize) {
        let to = match step.next {
            Some(next) if self.branches(step, slot) => next,
            _ => number + 1,
        };
        self.move_to(slot, to);
    }

    /// Whether a step's `next` is taken.
    pub(super) fn branches(&mut self, step: &Step, slot: usize) -> bool {
        if step.next.is_none() {
            return false;
        }
        if let Some(variable) = step.test {
            let set = self
                .calls
                .get(slot)
                .is_some_and(|call| self.context.value(call, variable).is_set());
            if !set {
                return false;
            }
        }
        step.chance >= 1.0 || self.context.entropy.unit() < step.chance
    }

    fn step(
        &mut self,
        program: &Program,
        step: &Step,
        number: u16,
        slot: usize,
        now: Time,
    ) -> After {
        match &step.kind {
            Kind::Send(send) => {
                if let Err(failure) = self.send(send, number, slot, now) {
                    self.fail(slot, failure, now);
                    return After::Over;
                }
                self.mark(step, number, slot, now);
                self.perform_on(&step.actions, Subject::Sent, slot, now)
            }
            Kind::Receive(_) => {
                self.expect(program, number, slot, now);
                After::Wait
            }
            Kind::Pause { length, linger } => {
                self.mark(step, number, slot, now);
                let after = self.perform(&step.actions, slot, now);
                if !matches!(after, After::GoOn) {
                    return after;
                }
                self.pause(length, *linger, slot, now)
            }
            Kind::Nothing => {
                self.mark(step, number, slot, now);
                self.perform(&step.actions, slot, now)
            }
        }
    }

    /// Counters and timers of a step that was gone through.
    pub(super) fn mark(&mut self, step: &Step, number: u16, slot: usize, at: Time) {
        if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
            count.messages += 1;
        }
        if let Some(counter) = step.counter
            && let Some(count) = self.statistics.counters.get_mut(usize::from(counter))
        {
            *count += 1;
        }
        if step.starts | step.stops == 0 {
            return;
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        for (index, started) in call.timers.iter_mut().enumerate() {
            let bit = 1 << index;
            if step.stops & bit != 0 && call.stopped & bit == 0 {
                if let Some(times) = self.statistics.responses.get_mut(index) {
                    times.add(at.since(*started));
                }
                if !step.repeats {
                    call.stopped |= bit;
                }
            }
            if step.starts & bit != 0 {
                *started = at;
                call.stopped &= !bit;
            }
        }
    }

    /// Writes and sends the message of a step.
    fn send(&mut self, send: &Send, number: u16, slot: usize, now: Time) -> Result<(), Failure> {
        self.reconnect(slot);
        let context = &mut self.context;
        let Some(call) = self.calls.get_mut(slot) else {
            return Err(Failure::Stopped);
        };
        if send.request && !send.ack {
            call.cseq = call.cseq.wrapping_add(1);
        }
        let branch_step = match send.ack_transaction {
            // The ACK of a refused INVITE has the INVITE's branch.
            Some(transaction) if call.last_status >= 300 => call
                .branches
                .get(usize::from(transaction))
                .and_then(|branch| branch.rsplit(|byte| *byte == b'-').next())
                .and_then(|step| std::str::from_utf8(step).ok()?.parse().ok())
                .unwrap_or(number),
            _ => number,
        };
        let start = self.outbox.bytes.len();
        let written = context.write(call, &send.text, branch_step, now, &mut self.outbox.bytes);
        if let Err(failure) = written {
            self.outbox.bytes.truncate(start);
            return Err(failure);
        }
        let message = self.outbox.bytes.get(start..).unwrap_or_default();
        if let Some(transaction) = send.start_transaction
            && let Some(kept) = call.branches.get_mut(usize::from(transaction))
        {
            kept.clear();
            kept.extend_from_slice(super::replies::branch_of(message));
        }
        if send.ack && call.accepted {
            call.established = true;
        }
        call.sent.bytes.clear();
        call.sent.bytes.extend_from_slice(message);
        call.sent.step = number;
        call.sent.invite = message.starts_with(b"INVITE ");
        call.sent.cseq = call.cseq;
        call.sent.count = 0;
        call.answered = call.seen[0];
        if let Some(timer) = call.sent.timer.take() {
            self.wheel.cancel(timer);
        }
        let route = call.route;
        let unreliable = matches!(route, super::call::Route::Udp(..));
        if let Some(first) = send
            .retransmit
            .filter(|_| unreliable && context.settings.retransmits)
        {
            call.sent.interval = first;
            let alarm = Alarm::Retransmit(slot as u32, call.generation);
            call.sent.timer = Some(self.wheel.schedule(now + first, alarm));
        }
        let lost = send.lost + context.settings.lost;
        if lost > 0.0 && context.entropy.unit() * 100.0 < lost {
            self.outbox.bytes.truncate(start);
            self.count_lost(number);
            return Ok(());
        }
        if context.settings.trace {
            let bytes = message.to_vec();
            let peer = self.peer_of(route);
            self.effect(Effect::Message {
                at: now,
                sent: true,
                peer,
                bytes,
            });
        }
        self.outbox.send_from(route, start);
        Ok(())
    }

    pub(super) fn count_lost(&mut self, number: u16) {
        if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
            count.lost += 1;
        }
    }

    /// Waits for the message of step `number`, or for one of the optional ones from there on.
    fn expect(&mut self, program: &Program, number: u16, slot: usize, now: Time) {
        let default = self.context.settings.receive_timeout;
        let mut timeout: Option<(u16, Duration)> = None;
        for (index, step) in program.steps.iter().enumerate().skip(usize::from(number)) {
            let Kind::Receive(receive) = &step.kind else {
                break;
            };
            if let Some(limit) = receive.timeout {
                timeout = Some((index as u16, limit));
                break;
            }
            if receive.optional == Optional::No {
                break;
            }
        }
        let timeout = timeout.or(default.map(|limit| (number, limit)));
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.phase = Phase::Receiving;
        if let Some((step, limit)) = timeout {
            call.wait_step = step;
            let alarm = Alarm::Wait(slot as u32, call.generation);
            call.wait = Some(self.wheel.schedule(now + limit, alarm));
        }
    }

    fn pause(&mut self, length: &Length, linger: bool, slot: usize, now: Time) -> After {
        let milliseconds = match length {
            Length::Default => self.context.settings.hold.as_secs_f64() * 1e3,
            Length::Variable(variable) => self.calls.get(slot).map_or(0.0, |call| {
                Value::number(self.context.value(call, *variable))
            }),
            Length::Drawn(drawn) => drawn.draw(&mut self.context.entropy),
        };
        let milliseconds = match milliseconds.is_finite() {
            true => milliseconds.clamp(0.0, LONGEST),
            false => LONGEST,
        };
        if linger {
            self.conclude(slot, None, now);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return After::Over;
        };
        if milliseconds <= 0.0 {
            return After::GoOn;
        }
        if call.phase != Phase::Lingering {
            call.phase = Phase::Pausing;
        }
        let alarm = Alarm::Wait(slot as u32, call.generation);
        let until = now + Duration::from_secs_f64(milliseconds / 1e3);
        call.wait_until = until;
        call.wait = Some(self.wheel.schedule(until, alarm));
        After::Wait
    }

    /// Time has passed for which a call waited.
    pub(super) fn waited(&mut self, slot: usize, now: Time) {
        let program = self.program.clone();
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        match call.phase {
            Phase::Pausing | Phase::Lingering => {
                let number = call.step;
                if let Some(step) = program.steps.get(usize::from(number)) {
                    self.proceed(step, number, slot);
                }
                self.run(slot, now);
            }
            Phase::Receiving => {
                let number = call.wait_step;
                if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
                    count.timeouts += 1;
                }
                match receive_at(&program, number).and_then(|receive| receive.on_timeout) {
                    Some(to) => {
                        call.step = to;
                        self.run(slot, now);
                    }
                    None => self.abort(slot, Failure::ReceiveTimeout, now),
                }
            }
            // The first message's timeout.
            Phase::Opening => self.fail(slot, Failure::Connection, now),
            Phase::Free => {}
        }
    }

    /// Sends the last message again.
    pub(super) fn retransmit(&mut self, slot: usize, now: Time) {
        let settings = &self.context.settings;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let limit = settings.retransmissions[usize::from(!call.sent.invite)];
        if call.sent.count >= limit {
            let program = self.program.clone();
            match receive_at(&program, call.step).and_then(|receive| receive.on_timeout) {
                Some(to) if call.phase == Phase::Receiving => {
                    if let Some(timer) = call.wait.take() {
                        self.wheel.cancel(timer);
                    }
                    call.step = to;
                    self.run(slot, now);
                }
                _ if call.phase == Phase::Lingering => {}
                _ => self.abort(slot, Failure::Retransmissions, now),
            }
            return;
        }
        call.sent.count += 1;
        let doubled = call.sent.interval * 2;
        call.sent.interval = match call.sent.invite {
            true => doubled,
            false => doubled.min(settings.t2.max(call.sent.interval)),
        };
        let alarm = Alarm::Retransmit(slot as u32, call.generation);
        call.sent.timer = Some(self.wheel.schedule(now + call.sent.interval, alarm));
        self.send_again(slot, now);
    }

    /// Sends the last message as it is.
    pub(super) fn send_again(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let (route, number) = (call.route, call.sent.step);
        if call.sent.bytes.is_empty() {
            return;
        }
        if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
            count.retransmissions += 1;
        }
        let lost = self.context.settings.lost;
        if lost > 0.0 && self.context.entropy.unit() * 100.0 < lost {
            self.count_lost(number);
            return;
        }
        self.outbox.send(route, &call.sent.bytes);
        if self.context.settings.trace {
            let (peer, bytes) = (self.peer_of(route), call.sent.bytes.clone());
            self.effect(Effect::Message {
                at: now,
                sent: true,
                peer,
                bytes,
            });
        }
    }

    fn succeed(&mut self, slot: usize, now: Time) {
        self.conclude(slot, None, now);
        self.release(slot, now);
    }

    /// Ends a call as failed, without a word to the peer.
    pub(super) fn fail(&mut self, slot: usize, failure: Failure, now: Time) {
        self.conclude(slot, Some(failure), now);
        self.release(slot, now);
    }

    /// Counts how a call ended, once. It then only lingers.
    fn conclude(&mut self, slot: usize, failure: Option<Failure>, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if matches!(call.phase, Phase::Lingering | Phase::Free) {
            return;
        }
        call.phase = Phase::Lingering;
        self.lingering += 1;
        self.statistics.open = self.statistics.open.saturating_sub(1);
        match failure {
            None => {
                self.statistics.successful += 1;
                let begun = call.begun;
                self.statistics.lengths.add(now.since(begun));
            }
            Some(failure) => {
                if let Some(count) = self.statistics.failed.get_mut(failure as usize) {
                    *count += 1;
                }
            }
        }
    }
}

/// The receiving step of this number.
pub(super) fn receive_at(program: &Program, number: u16) -> Option<&Receive> {
    match &program.steps.get(usize::from(number))?.kind {
        Kind::Receive(receive) => Some(receive),
        _ => None,
    }
}
