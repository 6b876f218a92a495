//! What a received message does to its call.

use super::call::{CallMedia, Phase, Route};
use super::digest::Challenged;
use super::engine::{Alarm, Effect, Generator};
use super::flow::receive_at;
use super::incoming::{Incoming, fingerprint, uri, values};
use super::program::{Expected, Optional, Program, Receive};
use super::replies;
use super::stats::Failure;
use engine::{Datagram, Time};
use std::net::SocketAddr;
use wire::sdp::Sdp;

/// Bytes of a message that a remark quotes.
const QUOTED: usize = 400;

impl Generator {
    /// A message from the network. `arrived` is when the kernel had it.
    pub(super) fn message(
        &mut self,
        bytes: &[u8],
        route: Route,
        peer: SocketAddr,
        arrived: Time,
        now: Time,
    ) {
        let lost = self.context.settings.lost;
        if lost > 0.0 && self.context.entropy.unit() * 100.0 < lost {
            return;
        }
        let Some(incoming) = Incoming::read(bytes) else {
            // A keep-alive is no message, and no mistake.
            if !bytes.trim_ascii().is_empty() {
                self.statistics.garbage += 1;
            }
            return;
        };
        if self.context.settings.trace {
            self.effect(Effect::Message {
                at: arrived,
                sent: false,
                peer: Some(peer),
                bytes: bytes.to_vec(),
            });
        }
        let slot = match self.find(incoming.call_id) {
            Some(Ok(slot)) => slot,
            Some(Err(())) => {
                self.statistics.late += 1;
                return;
            }
            None => match self.first_message(&incoming, route, peer, now) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.process(slot, &incoming, route, arrived, now);
    }

    /// A message of no call: it begins one where calls come from the peer.
    fn first_message(
        &mut self,
        incoming: &Incoming<'_>,
        route: Route,
        peer: SocketAddr,
        now: Time,
    ) -> Option<usize> {
        let begins = self.program.server && incoming.status.is_none() && incoming.method != b"ACK";
        if !begins {
            self.statistics.out_of_call += 1;
            if self.answers_itself(incoming) {
                self.reply(incoming, route, b"SIP/2.0 200 OK\r\n");
            }
            return None;
        }
        let slot = self.take(incoming.call_id, now)?;
        let call = self.calls.get_mut(slot)?;
        call.route = route;
        call.remote = peer;
        // Steps before the first message are gone through now.
        self.run(slot, now);
        (self.find(incoming.call_id) == Some(Ok(slot))).then_some(slot)
    }

    /// A request that is answered wherever it is not expected.
    fn answers_itself(&self, incoming: &Incoming<'_>) -> bool {
        incoming.status.is_none()
            && ((self.context.settings.auto_answer
                && matches!(
                    incoming.method,
                    b"INFO" | b"NOTIFY" | b"OPTIONS" | b"UPDATE"
                ))
                || (self.context.settings.behaviours.ping && incoming.method == b"PING"))
    }

    fn reply(&mut self, incoming: &Incoming<'_>, route: Route, line: &[u8]) {
        let start = self.outbox.bytes.len();
        replies::response(incoming, line, &mut self.outbox.bytes);
        self.outbox.send_from(route, start);
        self.statistics.answered += 1;
    }

    fn process(
        &mut self,
        slot: usize,
        incoming: &Incoming<'_>,
        route: Route,
        arrived: Time,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let mark = fingerprint(incoming.bytes);
        if matches!(route, Route::Udp(..)) && call.seen.contains(&mark) {
            self.seen_before(slot, mark, now);
            return;
        }
        if self.program.server {
            // Answers go where the request came from.
            call.route = route;
        }
        let program = self.program.clone();
        let Some((number, from_old)) = self.expected_at(&program, slot, incoming) else {
            self.unexpected(&program, slot, incoming, route, mark, now);
            return;
        };
        let Some(receive) = receive_at(&program, number) else {
            return;
        };
        if receive.lost > 0.0 && self.context.entropy.unit() * 100.0 < receive.lost {
            self.count_lost(number);
            return;
        }
        self.keep(&program, receive, slot, incoming, mark);
        self.stop_retransmission(slot, incoming, now);
        let Some(step) = program.steps.get(usize::from(number)) else {
            return;
        };
        self.mark(step, number, slot, arrived);
        match self.perform(&step.actions, slot, now) {
            super::flow::After::GoOn => {}
            super::flow::After::Jump(to) => {
                self.wake(slot, to, now);
                return;
            }
            super::flow::After::Wait | super::flow::After::Over => return,
        }
        if receive.optional == Optional::No && !from_old {
            self.proceed(step, number, slot);
            let to = self.calls.get(slot).map_or(0, |call| call.step);
            self.wake(slot, to, now);
        } else if !receive.advances {
            // The call stays where it is.
        } else if self.branches(step, slot)
            && let Some(to) = step.next
        {
            self.wake(slot, to, now);
        } else if !from_old && usize::from(number) + 1 == program.steps.len() {
            // Nothing is left to wait for: the last step has come, although it might have stayed out.
            self.wake(slot, number + 1, now);
        }
    }

    /// Goes on at a step: what the call waited for has come.
    fn wake(&mut self, slot: usize, to: u16, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if let Some(timer) = call.wait.take() {
            self.wheel.cancel(timer);
        }
        call.step = to;
        self.run(slot, now);
    }

    /// A message that was received before: what answered it is sent again.
    fn seen_before(&mut self, slot: usize, mark: u64, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let answered = call.answered == mark;
        let step = usize::from(call.step);
        if let Some(count) = self.statistics.steps.get_mut(step) {
            count.retransmissions += 1;
        }
        if answered {
            self.send_again(slot, now);
        }
    }

    /// The step that a message belongs to, and whether the call has gone past it.
    fn expected_at(
        &self,
        program: &Program,
        slot: usize,
        incoming: &Incoming<'_>,
    ) -> Option<(u16, bool)> {
        let call = self.calls.get(slot)?;
        let fits = |number: usize| {
            let receive = receive_at(program, number as u16)?;
            is_expected(program, receive, incoming, &call.branches).then_some(receive)
        };
        let here = usize::from(call.step);
        // From here on to the first message that must come.
        for number in here..program.steps.len() {
            if fits(number).is_some() {
                return Some((number as u16, false));
            }
            match receive_at(program, number as u16) {
                Some(receive) if receive.optional != Optional::No => {}
                _ => break,
            }
        }
        // Optional ones that were passed by and come late.
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

    /// Keeps of a message what later steps need.
    fn keep(
        &mut self,
        program: &Program,
        receive: &Receive,
        slot: usize,
        incoming: &Incoming<'_>,
        mark: u64,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.see(mark);
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
        if receive.challenge {
            match Challenged::read(incoming.bytes) {
                Some(challenge) => call.challenge = Some(Box::new(challenge)),
                None => {
                    let text = "a response with auth=\"true\" has no challenge that we can answer";
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
        }
    }

    /// A response, or any request, ends the retransmission of what it answers.
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
            // RFC 3261 section 17.1.2.2: while proceeding, T2 apart.
            Some(100..200) if !call.sent.invite => {
                self.wheel.cancel(timer);
                call.sent.interval = t2;
                let alarm = Alarm::Retransmit(slot as u32, call.generation);
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
        program: &Program,
        slot: usize,
        incoming: &Incoming<'_>,
        route: Route,
        mark: u64,
        now: Time,
    ) {
        if self.answers_itself(incoming) {
            if let Some(call) = self.calls.get_mut(slot) {
                call.see(mark);
            }
            self.reply(incoming, route, b"SIP/2.0 200 OK\r\n");
            return;
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.step;
        if call.phase == Phase::Lingering {
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
        let quoted = incoming.bytes.get(..incoming.bytes.len().min(QUOTED));
        let remark = format!(
            "call {}: not expected in line {line}: {}",
            call.number,
            String::from_utf8_lossy(quoted.unwrap_or_default()).trim_end()
        );
        call.see(mark);
        if self.jump_to_handler(program, slot, incoming, now) {
            // The handler may begin with the <recv> of the very message.
            let waits = self
                .calls
                .get(slot)
                .is_some_and(|call| call.phase == Phase::Receiving);
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
                self.fail(slot, Failure::EndedByPeer, now);
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
                self.abort(slot, Failure::Unexpected, now);
            }
            _ => {}
        }
    }

    /// To the step behind `_unexp.main`, unless the call is in there already; whether it went.
    fn jump_to_handler(
        &mut self,
        program: &Program,
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
        let back = super::call::Value::Number(f64::from(call.step));
        self.context.set(call, variable, back);
        if let Some(variable) = program.pause_address {
            let until = match call.phase {
                Phase::Pausing => call.wait_until.as_millis(),
                _ => 0,
            };
            let until = super::call::Value::Number(until as f64);
            self.context.set(call, variable, until);
        }
        self.wake(slot, to, now);
        true
    }

    /// Ends a call that cannot go on, with BYE or CANCEL where it is ours and the behaviour says so.
    pub(super) fn abort(&mut self, slot: usize, failure: Failure, now: Time) {
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

    /// A media packet.
    pub(super) fn heard(&mut self, datagram: &Datagram<'_>) {
        self.statistics.media[1] += 1;
        let echoes = self.echoing || self.echoes.contains_key(&datagram.source);
        if echoes {
            self.statistics.media[2] += 1;
            let route = Route::Udp(datagram.socket, datagram.source);
            self.outbox.send(route, datagram.bytes);
        }
    }
}

fn is_expected(
    program: &Program,
    receive: &Receive,
    incoming: &Incoming<'_>,
    branches: &[Vec<u8>],
) -> bool {
    let fits = |wanted: u16, status: u16| {
        wanted == status && answers_ours(program, receive, incoming, branches)
    };
    match (&receive.expected, incoming.status) {
        (Expected::Status(wanted) | Expected::Either(wanted, _), Some(status)) => {
            fits(*wanted, status)
        }
        (Expected::Method(method) | Expected::Either(_, method), None) => method == incoming.method,
        (Expected::Methods(regex), None) => regex
            .find(incoming.method)
            .is_some_and(|found| found.start() == 0),
        _ => false,
    }
}

/// Whether a response belongs to what the scenario has sent so far.
fn answers_ours(
    program: &Program,
    receive: &Receive,
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

/// Keeps where a peer wants its media, and how it names telephone events.
fn media_of(incoming: &Incoming<'_>, known: &mut CallMedia) {
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

/// The value of the first Contact's URI.
pub(super) fn contact(message: &[u8]) -> &[u8] {
    uri(values(message, b"Contact").next().unwrap_or_default())
}
