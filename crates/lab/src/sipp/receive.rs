//! Processing of received messages.

use super::call::{PeerRoute, ScenarioCallMedia, ScenarioCallPhase};
use super::digest::PendingChallenge;
use super::engine::{CallTimer, Effect, ScenarioGenerator};
use super::flow::receive_at;
use super::incoming::{Incoming, fingerprint, uri, values};
use super::program::{ExpectedMessage, Optional, ReceiveStep, ScenarioProgram};
use super::replies;
use super::stats::CallFailure;
use engine::Time;
use std::net::SocketAddr;
use wire::sdp::Sdp;

/// Bytes of a message that a warning quotes.
const MAX_QUOTED: usize = 400;

impl ScenarioGenerator {
    /// Processes a message from the network. `arrived` is the kernel's receive time.
    pub(super) fn message(
        &mut self,
        bytes: &[u8],
        route: PeerRoute,
        peer: SocketAddr,
        arrived: Time,
        now: Time,
    ) {
        let Some(incoming) = Incoming::read(bytes) else {
            // A keep-alive is neither a message nor an error.
            if !bytes.trim_ascii().is_empty() {
                self.statistics.garbage += 1;
            }
            return;
        };
        let known = self.find(incoming.call_id);
        if self.loses(known.and_then(Result::ok), &incoming) {
            return;
        }
        self.heard = true;
        if self.context.settings.trace {
            self.effect(Effect::Message {
                at: arrived,
                sent: false,
                peer: Some(peer),
                bytes: bytes.to_vec(),
            });
        }
        let slot = match known {
            Some(Ok(slot)) => slot,
            Some(Err(())) => {
                self.statistics.late += 1;
                return;
            }
            None => match self.begin_incoming(&incoming, route, peer, now) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.process(slot, &incoming, route, arrived, now);
    }

    /// Whether the simulated loss of all messages takes this one. A share of the step it belongs to replaces it, as
    /// in SIPp.
    fn loses(&mut self, slot: Option<usize>, incoming: &Incoming<'_>) -> bool {
        let percent = self.context.settings.lost;
        if percent <= 0.0 {
            return false;
        }
        let program = self.program.clone();
        let number = match slot {
            Some(slot) => self
                .expected_at(&program, slot, incoming)
                .map(|(number, _)| number),
            // A new call: the message belongs to the first step that waits for one.
            None => (0..program.steps.len() as u16).find(|at| receive_at(&program, *at).is_some()),
        };
        let receive = number.and_then(|number| receive_at(&program, number));
        if receive.is_some_and(|receive| receive.lost.is_some()) {
            return false;
        }
        self.context.entropy.unit() * 100.0 < percent
    }

    /// A message without a call: it starts one if calls come from the peer.
    fn begin_incoming(
        &mut self,
        incoming: &Incoming<'_>,
        route: PeerRoute,
        peer: SocketAddr,
        now: Time,
    ) -> Option<usize> {
        // A ping of the peer must not become a call that waits for ever.
        let is_ping = self.is_answered_automatically(incoming) && !self.is_expected_first(incoming);
        let begins = self.program.server
            && incoming.status.is_none()
            && incoming.method != b"ACK"
            && !is_ping;
        if !begins {
            self.statistics.out_of_call += 1;
            if self.is_answered_automatically(incoming) {
                self.reply(incoming, route, b"SIP/2.0 200 OK\r\n");
            }
            return None;
        }
        let slot = self.accept(incoming.call_id, now)?;
        let call = self.calls.get_mut(slot)?;
        call.route = route;
        call.remote = peer;
        // Execute the steps before the first message.
        self.run(slot, now);
        // The call may have ended in these steps.
        (self.find(incoming.call_id) == Some(Ok(slot))).then_some(slot)
    }

    /// Whether a new call waits for this message first.
    fn is_expected_first(&self, incoming: &Incoming<'_>) -> bool {
        let program = &self.program;
        let receive = |number: usize| receive_at(program, number as u16);
        let first = (0..program.steps.len()).find(|number| receive(*number).is_some());
        for receive in first
            .into_iter()
            .flat_map(|first| (first..).map_while(receive))
        {
            if is_expected(program, receive, incoming, &[]) {
                return true;
            }
            if receive.optional == Optional::No {
                break;
            }
        }
        false
    }

    /// Whether a request is answered automatically when it is not expected.
    fn is_answered_automatically(&self, incoming: &Incoming<'_>) -> bool {
        incoming.status.is_none()
            && ((self.context.settings.auto_answer
                && matches!(
                    incoming.method,
                    b"INFO" | b"NOTIFY" | b"OPTIONS" | b"UPDATE"
                ))
                || (self.context.settings.behaviours.ping && incoming.method == b"PING"))
    }

    fn reply(&mut self, incoming: &Incoming<'_>, route: PeerRoute, line: &[u8]) {
        let start = self.outbox.bytes.len();
        replies::response(incoming, line, &mut self.outbox.bytes);
        self.outbox.send_from(route, start);
        self.statistics.answered += 1;
    }

    fn process(
        &mut self,
        slot: usize,
        incoming: &Incoming<'_>,
        route: PeerRoute,
        arrived: Time,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let hash = fingerprint(incoming.bytes);
        // Only UDP has retransmissions; equal messages over a connection are intended by the peer's scenario.
        if matches!(route, PeerRoute::Udp(..)) && call.seen.contains(&hash) {
            if !self.repeat_ack(slot, incoming, now) {
                self.repeat_answer(slot, hash, now);
            }
            return;
        }
        if self.program.server {
            // Answers go to the source of the request.
            call.route = route;
        }
        let program = self.program.clone();
        let Some((number, from_old)) = self.expected_at(&program, slot, incoming) else {
            self.unexpected(&program, slot, incoming, route, hash, now);
            return;
        };
        let Some(receive) = receive_at(&program, number) else {
            return;
        };
        let lost = receive.lost.unwrap_or(0.0);
        if lost > 0.0 && self.context.entropy.unit() * 100.0 < lost {
            self.count_lost(number);
            return;
        }
        self.keep_parts(&program, receive, slot, incoming, hash);
        self.stop_retransmission(slot, incoming, now);
        let Some(step) = program.steps.get(usize::from(number)) else {
            return;
        };
        self.count_step(step, number, slot, arrived);
        match self.perform(&step.actions, slot, now) {
            super::flow::Continuation::GoOn | super::flow::Continuation::Checked => {}
            super::flow::Continuation::Jump(to) => {
                self.wake(slot, to, now);
                return;
            }
            super::flow::Continuation::Wait | super::flow::Continuation::Over => return,
        }
        if receive.optional == Optional::No && !from_old {
            self.proceed(step, number, slot);
            let to = self.calls.get(slot).map_or(0, |call| call.step);
            self.wake(slot, to, now);
        } else if !receive.advances {
            // The call stays at its step.
        } else if self.branches(step, slot)
            && let Some(to) = step.next
        {
            self.wake(slot, to, now);
        } else if !from_old && usize::from(number) + 1 == program.steps.len() {
            // The message was the last, optional step: nothing is left to wait for.
            self.wake(slot, number + 1, now);
        }
    }

    /// Continues at a step after the awaited message.
    pub(super) fn wake(&mut self, slot: usize, to: u16, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if let Some(timer) = call.wait.take() {
            self.wheel.cancel(timer);
        }
        call.step = to;
        self.run(slot, now);
    }

    /// A retransmission: its answer is sent again.
    fn repeat_answer(&mut self, slot: usize, hash: u64, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let answered = call.answered == hash;
        let step = usize::from(call.step);
        if let Some(count) = self.statistics.steps.get_mut(step) {
            count.retransmissions += 1;
        }
        if answered {
            self.resend(slot, now);
        }
    }

    /// A final response to an INVITE comes again, because its ACK was lost: the ACK is sent again, also after further
    /// messages (RFC 3261 section 13.2.2.4). Returns whether there is one for it.
    fn repeat_ack(&mut self, slot: usize, incoming: &Incoming<'_>, now: Time) -> bool {
        let Some(call) = self.calls.get(slot) else {
            return false;
        };
        let is_final = incoming.method == b"INVITE" && incoming.status >= Some(200);
        if !is_final || incoming.status != Some(call.acknowledged) {
            return false;
        }
        let acknowledges = |message: &[u8]| {
            let number = values(message, b"CSeq").next().unwrap_or_default();
            let number = number.split(|byte| *byte == b' ').next();
            let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            message.starts_with(b"ACK ") && number == Some(incoming.cseq)
        };
        let is_last = acknowledges(&call.sent.bytes);
        let has_ack = is_last || acknowledges(&call.ack.bytes);
        let step = usize::from(call.step);
        if has_ack {
            if let Some(count) = self.statistics.steps.get_mut(step) {
                count.retransmissions += 1;
            }
            self.repeat(slot, !is_last, now);
        }
        has_ack
    }

    /// The step that a message belongs to, and whether the call is past it.
    fn expected_at(
        &self,
        program: &ScenarioProgram,
        slot: usize,
        incoming: &Incoming<'_>,
    ) -> Option<(u16, bool)> {
        let call = self.calls.get(slot)?;
        let fits = |number: usize| {
            let receive = receive_at(program, number as u16)?;
            is_expected(program, receive, incoming, &call.branches).then_some(receive)
        };
        let here = usize::from(call.step);
        // From here on to the first required message.
        for number in here..program.steps.len() {
            if fits(number).is_some() {
                return Some((number as u16, false));
            }
            match receive_at(program, number as u16) {
                Some(receive) if receive.optional != Optional::No => {}
                _ => break,
            }
        }
        // Skipped optional messages that arrive late.
        let mut near = true;
        for number in (0..here).rev() {
            let receive = receive_at(program, number as u16);
            if receive.is_none_or(|receive| receive.optional == Optional::No) {
                near = false;
            }
            if let Some(receive) = fits(number)
                && (near || receive.optional == Optional::Global)
            {
                return Some((number as u16, true));
            }
        }
        None
    }

    /// Keeps the parts of a message that later steps need.
    fn keep_parts(
        &mut self,
        program: &ScenarioProgram,
        receive: &ReceiveStep,
        slot: usize,
        incoming: &Incoming<'_>,
        hash: u64,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.remember(hash);
        // Provisional responses are copied only if the scenario reads them.
        if program.keeps_last || incoming.status.is_none() || incoming.status >= Some(200) {
            call.last.clear();
            call.last.extend_from_slice(incoming.bytes);
        }
        let tag = match incoming.status {
            Some(_) => incoming.to_tag,
            None if call.peer_tag.is_empty() => incoming.from_tag,
            None => b"",
        };
        if !tag.is_empty() {
            call.peer_tag.clear();
            call.peer_tag.extend_from_slice(tag);
        }
        match incoming.status {
            Some(status) => {
                call.last_status = status;
                if (200..300).contains(&status) && incoming.method == b"INVITE" {
                    call.accepted = true;
                }
            }
            None if program.server => call.cseq = incoming.cseq,
            None => {}
        }
        if receive.challenge && matches!(incoming.status, Some(401 | 407)) {
            match PendingChallenge::read(incoming.bytes) {
                Some(challenge) => call.challenge = Some(Box::new(challenge)),
                None => {
                    let text = "a response with auth=\"true\" has no supported challenge";
                    self.effect(Effect::Warning(text.to_owned()));
                }
            }
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if receive.routes {
            replies::route_set(incoming, &mut call.routes, &mut call.next_url);
        }
        if program.media && !receive.ignores_media && !incoming.body().is_empty() {
            media_of(incoming, &mut call.media);
            self.follow_echo(slot);
        }
    }

    /// A response, or any request, ends the retransmission of the message that it answers.
    fn stop_retransmission(&mut self, slot: usize, incoming: &Incoming<'_>, now: Time) {
        let t2 = self.context.settings.t2;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(timer) = call.sent.timer else {
            return;
        };
        let sent_response = call.sent.bytes.starts_with(b"SIP/2.0 ");
        let answers = match incoming.status {
            None => true,
            Some(_) => {
                !sent_response
                    && call
                        .sent
                        .bytes
                        .strip_prefix(incoming.method)
                        .is_some_and(|rest| rest.first() == Some(&b' '))
            }
        };
        if !answers {
            return;
        }
        match incoming.status {
            // RFC 3261 section 17.1.2.2: in state Proceeding, intervals of T2.
            Some(100..200) if !call.sent.invite => {
                self.wheel.cancel(timer);
                call.sent.interval = t2;
                let alarm = CallTimer::Retransmit(slot as u32, call.generation);
                call.sent.timer = Some(self.wheel.schedule(now + t2, alarm));
            }
            _ => {
                self.wheel.cancel(timer);
                call.sent.timer = None;
            }
        }
    }

    fn unexpected(
        &mut self,
        program: &ScenarioProgram,
        slot: usize,
        incoming: &Incoming<'_>,
        route: PeerRoute,
        hash: u64,
        now: Time,
    ) {
        if self.is_answered_automatically(incoming) {
            if let Some(call) = self.calls.get_mut(slot) {
                call.remember(hash);
            }
            self.reply(incoming, route, b"SIP/2.0 200 OK\r\n");
            return;
        }
        if self.repeat_ack(slot, incoming, now) {
            return;
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.step;
        if call.phase == ScenarioCallPhase::Lingering {
            self.statistics.late += 1;
            return;
        }
        if let Some(count) = self.statistics.steps.get_mut(usize::from(number)) {
            count.unexpected += 1;
        }
        let line = program
            .steps
            .get(usize::from(number))
            .map_or(0, |step| step.line);
        let quoted = incoming.bytes.get(..incoming.bytes.len().min(MAX_QUOTED));
        let remark = format!(
            "call {}: unexpected message in line {line}: {}",
            call.number,
            String::from_utf8_lossy(quoted.unwrap_or_default()).trim_end()
        );
        call.remember(hash);
        if self.jump_to_handler(program, slot, incoming, now) {
            // The handler may begin with the <recv> of this message.
            let waits = self
                .calls
                .get(slot)
                .is_some_and(|call| call.phase == ScenarioCallPhase::Receiving);
            if waits
                && self.find(incoming.call_id) == Some(Ok(slot))
                && self.expected_at(program, slot, incoming).is_some()
                && let Some(call) = self.calls.get_mut(slot)
            {
                call.seen[0] = 0;
                self.process(slot, incoming, route, now, now);
            }
            return;
        }
        self.effect(Effect::Warning(remark));
        let behaviours = self.context.settings.behaviours;
        match (incoming.status, incoming.method) {
            (None, b"BYE" | b"CANCEL") if behaviours.bye => {
                self.reply(incoming, route, b"SIP/2.0 200 OK\r\n");
                self.fail(slot, CallFailure::EndedByPeer, now);
            }
            _ if behaviours.abort => {
                if let Some(call) = self.calls.get_mut(slot) {
                    call.last.clear();
                    call.last.extend_from_slice(incoming.bytes);
                    call.last_status = incoming.status.unwrap_or(0);
                    let answers_invite = incoming.method == b"INVITE" && incoming.status.is_some();
                    call.accepted |= answers_invite && matches!(incoming.status, Some(200..300));
                    let tag = incoming.to_tag;
                    if incoming.status.is_some() && !tag.is_empty() {
                        call.peer_tag.clear();
                        call.peer_tag.extend_from_slice(tag);
                    }
                }
                self.abort(slot, CallFailure::Unexpected, now);
            }
            _ => {}
        }
    }

    /// Jumps to the step after `_unexp.main`, unless the call is in the handler already; returns whether it jumped.
    fn jump_to_handler(
        &mut self,
        program: &ScenarioProgram,
        slot: usize,
        incoming: &Incoming<'_>,
        now: Time,
    ) -> bool {
        let (Some(to), Some(variable)) = (program.unexpected, program.return_address) else {
            return false;
        };
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        if self.context.value(call, variable).number() != 0.0 {
            return false;
        }
        call.last.clear();
        call.last.extend_from_slice(incoming.bytes);
        let back = super::call::VariableValue::Number(f64::from(call.step));
        self.context.set(call, variable, back);
        if let Some(variable) = program.pause_address {
            let until = match call.phase {
                ScenarioCallPhase::Pausing => call.wait_until.as_millis(),
                _ => 0,
            };
            let until = super::call::VariableValue::Number(until as f64);
            self.context.set(call, variable, until);
        }
        self.wake(slot, to, now);
        true
    }

    /// Aborts a call; sends BYE or CANCEL if it is outgoing and the behaviour permits it.
    pub(super) fn abort(&mut self, slot: usize, failure: CallFailure, now: Time) {
        if self.context.settings.behaviours.bye
            && !self.program.server
            && let Some(call) = self.calls.get(slot)
        {
            let route = call.route;
            let mut messages: Vec<Vec<u8>> = Vec::new();
            replies::ending(call, self.context.settings.pid, &mut messages);
            for message in messages {
                self.outbox.send(route, &message);
                self.statistics.answered += 1;
            }
        }
        self.fail(slot, failure, now);
    }
}

fn is_expected(
    program: &ScenarioProgram,
    receive: &ReceiveStep,
    incoming: &Incoming<'_>,
    branches: &[Vec<u8>],
) -> bool {
    let fits = |wanted: u16, status: u16| {
        wanted == status && answers_own_request(program, receive, incoming, branches)
    };
    match (&receive.expected, incoming.status) {
        (ExpectedMessage::Status(wanted) | ExpectedMessage::Either(wanted, _), Some(status)) => {
            fits(*wanted, status)
        }
        (ExpectedMessage::Method(method) | ExpectedMessage::Either(_, method), None) => {
            method == incoming.method
        }
        (ExpectedMessage::Methods(regex), None) => regex.is_match(incoming.method),
        _ => false,
    }
}

/// Whether a response belongs to a request that the scenario has sent.
fn answers_own_request(
    program: &ScenarioProgram,
    receive: &ReceiveStep,
    incoming: &Incoming<'_>,
    branches: &[Vec<u8>],
) -> bool {
    if let Some(transaction) = receive.transaction {
        return branches
            .get(usize::from(transaction))
            .is_some_and(|branch| !branch.is_empty() && branch == incoming.branch);
    }
    let mut methods = program.methods.iter().take(63).enumerate();
    receive.methods == 0
        || methods
            .any(|(bit, method)| receive.methods & (1 << bit) != 0 && method == incoming.method)
}

/// Keeps the peer's media addresses and its payload type of telephone events.
fn media_of(incoming: &Incoming<'_>, known: &mut ScenarioCallMedia) {
    let Ok(sdp) = Sdp::parse(incoming.body()) else {
        return;
    };
    let of = |kind: &[u8]| {
        sdp.media()
            .find(|media| media.line.kind == kind && !media.is_rejected())
    };
    let events = of(b"audio").and_then(|media| {
        media
            .rtpmaps()
            .find(|map| map.name.eq_ignore_ascii_case(b"telephone-event"))
            .map(|map| map.payload_type)
    });
    let address = |kind: &[u8]| of(kind).and_then(|media| media.rtp_address());
    known.audio = address(b"audio").or(known.audio);
    known.video = address(b"video").or(known.video);
    known.image = address(b"image").or(known.image);
    known.events = events.or(known.events);
}

/// The URI of the first Contact.
pub(super) fn contact(message: &[u8]) -> &[u8] {
    uri(values(message, b"Contact").next().unwrap_or_default())
}
