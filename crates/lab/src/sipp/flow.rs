//! Execution of the steps of a scenario.

use super::call::{PeerRoute, ScenarioCall, ScenarioCallPhase, VariableValue};
use super::engine::{CallTimer, Effect, ScenarioGenerator};
use super::perform::ExaminedMessage;
use super::program::{
    Optional, PauseLength, ReceiveStep, ScenarioProgram, ScenarioStep, SendStep, StepKind,
};
use super::stats::CallFailure;
use engine::Time;
use std::net::SocketAddr;
use std::time::Duration;

/// Most steps of a call without waiting: more is an endless loop.
const MAX_STEPS: usize = 20_000;
/// Longest pause, milliseconds.
const LONGEST_PAUSE_MS: f64 = 365.0 * 86_400_000.0;

/// Continuation after a step.
pub(super) enum Continuation {
    /// With the next step.
    GoOn,
    /// The call waits.
    Wait,
    /// The call has ended, or its slot was reassigned.
    Over,
    /// With the step of this number.
    Jump(u16),
    /// A check has failed: the further actions of the step are skipped.
    Checked,
}

impl ScenarioGenerator {
    /// Executes steps until the call waits or ends.
    pub(super) fn run(&mut self, slot: usize, now: Time) {
        let program = self.program.clone();
        for _ in 0..MAX_STEPS {
            let Some(call) = self.calls.get(slot) else {
                return;
            };
            let number = call.step;
            let Some(step) = program.steps.get(usize::from(number)) else {
                match usize::from(number) > program.steps.len() {
                    true => self.fail_jump(slot, now),
                    false => self.succeed(slot, now),
                }
                return;
            };
            if call.resumed_pause.is_some() {
                if self.restore_pause(slot, now) {
                    return;
                }
                self.proceed(step, number, slot);
                continue;
            }
            // `condexec`: the step is skipped and not counted.
            if let Some((variable, wanted)) = step.condition
                && self.context.value(call, variable).is_set() != wanted
            {
                self.move_to(slot, number + 1);
                continue;
            }
            match self.step(&program, step, number, slot, now) {
                Continuation::GoOn | Continuation::Checked => self.proceed(step, number, slot),
                Continuation::Jump(to) => self.move_to(slot, to),
                Continuation::Wait | Continuation::Over => return,
            }
        }
        self.effect(Effect::Warning(
            "a call loops without waiting; check the jumps of the scenario".to_owned(),
        ));
        self.fail(slot, CallFailure::Endless, now);
    }

    /// A jump leads beyond the end of the scenario.
    fn fail_jump(&mut self, slot: usize, now: Time) {
        let steps = self.program.steps.len();
        self.effect(Effect::Warning(format!(
            "a jump leads to no step: the scenario has the steps 0 to {}, and {steps} is its end",
            steps.saturating_sub(1)
        )));
        self.fail(slot, CallFailure::Stopped, now);
    }

    /// Resumes a pause that a message had interrupted, in place of the next step; returns whether it lasts.
    fn restore_pause(&mut self, slot: usize, now: Time) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let Some(until) = call.resumed_pause.take().filter(|until| *until > now) else {
            return false;
        };
        call.phase = ScenarioCallPhase::Pausing;
        call.wait_until = until;
        let alarm = CallTimer::Wait(slot as u32, call.generation);
        call.wait = Some(self.wheel.schedule(until, alarm));
        true
    }

    fn move_to(&mut self, slot: usize, step: u16) {
        if let Some(call) = self.calls.get_mut(slot) {
            call.step = step;
        }
    }

    /// Continues with the next step, or with the target of `next`.
    pub(super) fn proceed(&mut self, step: &ScenarioStep, number: u16, slot: usize) {
        let to = match step.next {
            Some(next) if self.branches(step, slot) => next,
            _ => number + 1,
        };
        self.move_to(slot, to);
    }

    /// Whether the branch of a step is taken.
    pub(super) fn branches(&mut self, step: &ScenarioStep, slot: usize) -> bool {
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
        program: &ScenarioProgram,
        step: &ScenarioStep,
        number: u16,
        slot: usize,
        now: Time,
    ) -> Continuation {
        match &step.kind {
            StepKind::Send(send) => {
                if let Err(failure) = self.send(send, number, slot, now) {
                    self.fail(slot, failure, now);
                    return Continuation::Over;
                }
                self.count_step(step, number, slot, now);
                self.perform_on(&step.actions, ExaminedMessage::Sent, slot, now)
            }
            StepKind::Receive(_) => {
                self.await_message(program, number, slot, now);
                Continuation::Wait
            }
            StepKind::Pause { length, linger } => {
                self.count_step(step, number, slot, now);
                let after = self.perform(&step.actions, slot, now);
                if !matches!(after, Continuation::GoOn | Continuation::Checked) {
                    return after;
                }
                self.pause(length, *linger, slot, now)
            }
            StepKind::Nothing => {
                self.count_step(step, number, slot, now);
                self.perform(&step.actions, slot, now)
            }
        }
    }

    /// Updates counters and timers of an executed step.
    pub(super) fn count_step(&mut self, step: &ScenarioStep, number: u16, slot: usize, at: Time) {
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

    /// Renders and sends the message of a step.
    fn send(
        &mut self,
        send: &SendStep,
        number: u16,
        slot: usize,
        now: Time,
    ) -> Result<(), CallFailure> {
        self.reconnect(slot);
        let context = &mut self.context;
        let Some(call) = self.calls.get_mut(slot) else {
            return Err(CallFailure::Stopped);
        };
        if send.raises_cseq {
            call.cseq = call.cseq.wrapping_add(1);
        }
        let branch_step = match send.ack_transaction {
            // The ACK of a refused INVITE has the branch of the INVITE.
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
        if call.sent.bytes.starts_with(b"ACK ") {
            std::mem::swap(&mut call.ack.bytes, &mut call.sent.bytes);
            call.ack.step = call.sent.step;
        }
        if send.ack {
            call.established |= call.accepted;
            call.acknowledged = call.last_status;
        }
        call.sent.bytes.clear();
        call.sent.bytes.extend_from_slice(message);
        call.sent.step = number;
        call.sent.invite = message.starts_with(b"INVITE ");
        call.sent.cseq = call.cseq;
        call.sent.count = 0;
        call.sent.undelivered = false;
        call.sent.interval = Duration::ZERO;
        call.answered = call.seen[0];
        if let Some(timer) = call.sent.timer.take() {
            self.wheel.cancel(timer);
        }
        let route = call.route;
        let unreliable = matches!(route, PeerRoute::Udp(..));
        if let Some(first) = send
            .retransmit
            .filter(|_| unreliable && context.settings.retransmits)
        {
            call.sent.interval = first;
            let alarm = CallTimer::Retransmit(slot as u32, call.generation);
            call.sent.timer = Some(self.wheel.schedule(now + first, alarm));
        }
        let lost = send.lost.unwrap_or(context.settings.lost);
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
    fn await_message(&mut self, program: &ScenarioProgram, number: u16, slot: usize, now: Time) {
        let default = self.context.settings.receive_timeout;
        let mut timeout: Option<(u16, Duration)> = None;
        // The timeout of any optional message applies to the group up to the first required one.
        for (index, step) in program.steps.iter().enumerate().skip(usize::from(number)) {
            let StepKind::Receive(receive) = &step.kind else {
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
        call.phase = ScenarioCallPhase::Receiving;
        if let Some((step, limit)) = timeout {
            call.wait_step = step;
            let alarm = CallTimer::Wait(slot as u32, call.generation);
            call.wait = Some(self.wheel.schedule(now + limit, alarm));
        }
    }

    fn pause(
        &mut self,
        length: &PauseLength,
        linger: bool,
        slot: usize,
        now: Time,
    ) -> Continuation {
        let milliseconds = match length {
            PauseLength::Default => self.context.settings.hold.as_secs_f64() * 1e3,
            PauseLength::Variable(variable) => self.calls.get(slot).map_or(0.0, |call| {
                VariableValue::number(self.context.value(call, *variable))
            }),
            PauseLength::Drawn(drawn) => drawn.draw(&mut self.context.entropy),
        };
        let milliseconds = match milliseconds.is_finite() {
            true => milliseconds.clamp(0.0, LONGEST_PAUSE_MS),
            false => LONGEST_PAUSE_MS,
        };
        // `timewait`: the call counts as successful before its pause ends.
        if linger {
            self.conclude(slot, None, now);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return Continuation::Over;
        };
        if milliseconds <= 0.0 {
            return Continuation::GoOn;
        }
        if call.phase != ScenarioCallPhase::Lingering {
            call.phase = ScenarioCallPhase::Pausing;
        }
        let alarm = CallTimer::Wait(slot as u32, call.generation);
        let until = now + Duration::from_secs_f64(milliseconds / 1e3);
        call.wait_until = until;
        call.wait = Some(self.wheel.schedule(until, alarm));
        Continuation::Wait
    }

    /// The timer of a wait has expired.
    pub(super) fn wait_expired(&mut self, slot: usize, now: Time) {
        let program = self.program.clone();
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        match call.phase {
            ScenarioCallPhase::Pausing | ScenarioCallPhase::Lingering => {
                let number = call.step;
                if let Some(step) = program.steps.get(usize::from(number)) {
                    self.proceed(step, number, slot);
                }
                self.run(slot, now);
            }
            ScenarioCallPhase::Receiving => {
                let number = call.wait_step;
                if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
                    count.timeouts += 1;
                }
                let label = receive_at(&program, number).and_then(|receive| receive.on_timeout);
                self.timed_out(slot, label, CallFailure::ReceiveTimeout, now);
            }
            // The timeout of the first message.
            ScenarioCallPhase::Opening => self.fail(slot, CallFailure::Connection, now),
            ScenarioCallPhase::Free => {}
        }
    }

    /// Continues at the label of a timeout. Without one the call fails, and with one at the end of the scenario, as in
    /// SIPp: nothing follows there that could make it a success.
    fn timed_out(&mut self, slot: usize, label: Option<u16>, failure: CallFailure, now: Time) {
        match label.filter(|to| usize::from(*to) < self.program.steps.len()) {
            Some(to) => self.wake(slot, to, now),
            None => self.abort(slot, failure, now),
        }
    }

    /// Retransmits the last message by timer.
    pub(super) fn retransmit(&mut self, slot: usize, now: Time) {
        let settings = &self.context.settings;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let limit = settings.retransmissions[usize::from(!call.sent.invite)];
        if call.sent.count >= limit {
            if call.phase == ScenarioCallPhase::Lingering {
                return;
            }
            // As in SIPp, exhausted retransmissions follow the timeout label of the step that sent the message, not of
            // the one that waits.
            let program = self.program.clone();
            let label = match program.steps.get(usize::from(call.sent.step)) {
                Some(ScenarioStep {
                    kind: StepKind::Send(send),
                    ..
                }) => send.on_timeout,
                _ => None,
            };
            self.timed_out(slot, label, CallFailure::Retransmissions, now);
            return;
        }
        call.sent.count += 1;
        let doubled = call.sent.interval * 2;
        call.sent.interval = match call.sent.invite {
            true => doubled,
            false => doubled.min(settings.t2.max(call.sent.interval)),
        };
        let alarm = CallTimer::Retransmit(slot as u32, call.generation);
        call.sent.timer = Some(self.wheel.schedule(now + call.sent.interval, alarm));
        self.resend(slot, now);
    }

    /// An ICMP error. `quoted` is the beginning of the datagram, which names the call by its branch. A call ends at the
    /// second error, which follows the first retransmission: a peer that is just being started misses the first message
    /// only.
    pub(super) fn undelivered(&mut self, destination: SocketAddr, quoted: &[u8], now: Time) {
        let concerns = |call: &ScenarioCall| {
            let sent = call.sent.bytes.as_slice();
            matches!(call.route, PeerRoute::Udp(_, to) if to == destination)
                && !matches!(
                    call.phase,
                    ScenarioCallPhase::Free | ScenarioCallPhase::Lingering
                )
                && !sent.is_empty()
                && !quoted.is_empty()
                && (sent.starts_with(quoted) || quoted.starts_with(sent))
        };
        let Some(slot) = self.calls.iter().position(concerns) else {
            return;
        };
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let again = std::mem::replace(&mut call.sent.undelivered, true);
        let sent = &call.sent;
        if sent.interval.is_zero() || (again && sent.timer.is_some()) {
            if !self.heard {
                self.absent = Some(destination);
            }
            self.fail(slot, CallFailure::Unreachable, now);
        }
    }

    /// Sends the last message unchanged.
    pub(super) fn resend(&mut self, slot: usize, now: Time) {
        self.repeat(slot, false, now);
    }

    /// Sends the last ACK, or the last message unchanged.
    pub(super) fn repeat(&mut self, slot: usize, is_ack: bool, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let route = call.route;
        let (message, number) = match is_ack {
            true => (&call.ack.bytes, call.ack.step),
            false => (&call.sent.bytes, call.sent.step),
        };
        if message.is_empty() {
            return;
        }
        if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
            count.retransmissions += 1;
        }
        // A step's own share holds for its retransmissions, too, as in SIPp.
        let step = self.program.steps.get(usize::from(number));
        let own = match step.map(|step| &step.kind) {
            Some(StepKind::Send(send)) => send.lost,
            _ => None,
        };
        let lost = own.unwrap_or(self.context.settings.lost);
        if lost > 0.0 && self.context.entropy.unit() * 100.0 < lost {
            self.count_lost(number);
            return;
        }
        self.outbox.send(route, message);
        if self.context.settings.trace {
            let (peer, bytes) = (self.peer_of(route), message.clone());
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

    /// Ends a call as failed, without a message to the peer.
    pub(super) fn fail(&mut self, slot: usize, failure: CallFailure, now: Time) {
        self.conclude(slot, Some(failure), now);
        self.release(slot, now);
    }

    /// Counts the outcome of a call, once. Afterwards it only lingers.
    fn conclude(&mut self, slot: usize, failure: Option<CallFailure>, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if matches!(
            call.phase,
            ScenarioCallPhase::Lingering | ScenarioCallPhase::Free
        ) {
            return;
        }
        call.phase = ScenarioCallPhase::Lingering;
        self.lingering += 1;
        // Nothing asks for the next call while the limit holds it back.
        self.schedule.note_limit(now, self.statistics.open);
        self.statistics.open = self.statistics.open.saturating_sub(1);
        let checked = call.check_failed.then_some(CallFailure::Check);
        match failure.or(checked) {
            None => {
                self.statistics.successful += 1;
                let started = call.started;
                self.statistics.lengths.add(now.since(started));
            }
            Some(failure) => {
                if let Some(count) = self.statistics.failed.get_mut(failure as usize) {
                    *count += 1;
                }
            }
        }
    }
}

/// The receive step with this number.
pub(super) fn receive_at(program: &ScenarioProgram, number: u16) -> Option<&ReceiveStep> {
    match &program.steps.get(usize::from(number))?.kind {
        StepKind::Receive(receive) => Some(receive),
        _ => None,
    }
}
