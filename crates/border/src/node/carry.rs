//! Commands: taken in, carried out, answered; and the ends of calls.

use super::access::{Asker, Seen, Way};
use super::branches::Branch;
use super::figures::{CallView, ended};
use super::play::PlayWishes;
use super::replies::{Question, error, ok};
use super::wishes::{Refusal, Wishes};
use super::{Alarm, Node};
use crate::call::Side;
use crate::private_headers::EarlyMedia;
use core::time::Duration;
use engine::{DropReason, Note};
use media::MediaCommand;
use media::forward::SessionStats;
use std::net::SocketAddr;
use wire::ng::{Message, Value};

/// Octets of a reply in a datagram at most (RFC 768 over IPv4).
const MAX_REPLY: usize = 65_507;
/// Calls named by `list` where it does not say how many.
const LISTED: usize = 32;

/// What became of a command.
pub(super) enum Outcome {
    Now(Value),
    /// The reply comes when something else has happened.
    Later,
}

/// Commands that are carried out.
const COMMANDS: [&str; 13] = [
    "ping",
    "offer",
    "answer",
    "delete",
    "query",
    "list",
    "statistics",
    "block media",
    "unblock media",
    "start recording",
    "stop recording",
    "play media",
    "stop media",
];

/// Commands of rtpengine's that are refused by name.
const REFUSED: [&str; 15] = [
    "block DTMF",
    "unblock DTMF",
    "silence media",
    "unsilence media",
    "start forwarding",
    "stop forwarding",
    "pause recording",
    "play DTMF",
    "publish",
    "subscribe request",
    "subscribe answer",
    "unsubscribe",
    "connect",
    "transform",
    "cli",
];

impl Node {
    /// A command came.
    pub(super) fn command(&mut self, way: Way, bytes: &[u8]) {
        let Some(cookie) = Message::cookie_of(bytes) else {
            return self.drops.count(DropReason::NgMalformed);
        };
        match self.cookies.meet(way, cookie, self.now) {
            Seen::New => {}
            Seen::Pending => {
                self.counters.repeated += 1;
                return;
            }
            Seen::Answered(reply) => {
                self.counters.repeated += 1;
                return self.replies.say(way, reply);
            }
        }
        let asker = Asker {
            way,
            cookie: cookie.to_vec(),
        };
        let done = match Message::parse(bytes) {
            Ok(message) => self.carry_out(&asker, &message),
            Err(why) => {
                self.drops.count(DropReason::NgMalformed);
                Err(why.to_string())
            }
        };
        match done {
            Ok(Outcome::Now(reply)) => self.answer_to(&asker, &reply),
            Ok(Outcome::Later) => {}
            Err(why) => {
                self.counters.refused += 1;
                self.answer_to(&asker, &error(&why));
            }
        }
    }

    /// Sends a reply, and keeps it for a while.
    pub(super) fn answer_to(&mut self, asker: &Asker, reply: &Value) {
        let mut bytes = Vec::new();
        Message::write(&asker.cookie, reply, &mut bytes);
        if matches!(asker.way, Way::Datagram(..)) && bytes.len() > MAX_REPLY {
            bytes.clear();
            let refusal = error("the reply is too large for a datagram");
            Message::write(&asker.cookie, &refusal, &mut bytes);
        }
        self.cookies.answered(asker, &bytes);
        self.replies.say(asker.way, bytes);
    }

    fn carry_out(&mut self, asker: &Asker, message: &Message<'_>) -> Result<Outcome, Refusal> {
        let command = message.body.get("command").and_then(|item| item.text());
        let command = command.ok_or("Dictionary contains no key \"command\"")?;
        let Some(&known) = COMMANDS.iter().find(|known| **known == command) else {
            return Err(match REFUSED.contains(&command) {
                true => format!("command \"{command}\" is not supported"),
                false => "Unrecognized command".to_owned(),
            });
        };
        *self.counters.commands.entry(known).or_default() += 1;
        let wishes = Wishes::read(message.body)?;
        if known != "play media" && wishes.play != PlayWishes::default() {
            return Err(format!("\"{known}\" plays no sound"));
        }
        match known {
            "ping" => Ok(Outcome::Now(Value::dictionary().with("result", "pong"))),
            "offer" => self.offer(asker, &wishes),
            "answer" => self.answer(&wishes),
            "delete" => self.delete(asker, &wishes),
            "query" => self.query(asker, &wishes),
            "list" => Ok(Outcome::Now(self.list(&wishes))),
            "statistics" => Ok(Outcome::Now(self.statistics())),
            "block media" => self.block(&wishes, true),
            "unblock media" => self.block(&wishes, false),
            "start recording" => self.record(&wishes, true),
            "play media" => self.play(asker, &wishes),
            "stop media" => self.stop(asker, &wishes),
            _ => self.record(&wishes, false),
        }
    }

    /// The branches that a command is about: of the call, with the parties that it names.
    pub(super) fn chosen(&self, wishes: &Wishes<'_>) -> Result<Vec<u64>, Refusal> {
        let call = wishes.call_id.ok_or("No call-id in message")?;
        let fits = |branch: &&Branch| {
            let from = wishes.from_tag.filter(|_| !wishes.all);
            let to = wishes.to_tag.filter(|_| !wishes.all);
            let has = |tag: &[u8]| branch.side_of(tag).is_some();
            let via = wishes.via_branch.filter(|_| !wishes.all);
            from.is_none_or(has)
                // Whoever gave up before an answer knows a tag that we never heard.
                && to.is_none_or(|tag| {
                    tag.is_empty() || has(tag) || branch.tag(Side::Callee).is_empty()
                })
                && via.is_none_or(|via| {
                    branch.via.as_deref() == Some(via) || branch.via.is_none()
                })
        };
        let sessions = self.branches.of_call(call).filter(fits);
        Ok(sessions.map(|branch| branch.session).collect())
    }

    fn view(&self, sessions: &[u64], call: &[u8]) -> CallView {
        let (created, signalled) = self
            .branches
            .call(call)
            .map_or((self.now, self.now), |call| (call.created, call.signalled));
        let branches = sessions
            .iter()
            .filter_map(|session| self.branches.get(*session))
            .map(|branch| (branch.view(), None));
        CallView {
            created,
            signalled,
            branches: branches.collect(),
        }
    }

    fn delete(&mut self, asker: &Asker, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let sessions = self.chosen(wishes)?;
        let call = wishes.call_id.unwrap_or_default();
        if sessions.is_empty() {
            let why = "Call-ID not found or tags didn't match";
            return match wishes.fatal {
                true => Err(why.to_owned()),
                false => Ok(Outcome::Now(ok(Value::dictionary().with("warning", why)))),
            };
        }
        let view = self.view(&sessions, call);
        let delay = match wishes.delete_delay {
            Some(seconds) => Duration::from_secs(seconds.min(86_400)),
            None => self.spec.delete_delay,
        };
        self.replies.ask(Question {
            asker: asker.clone(),
            missing: sessions.len(),
            view,
        });
        for session in sessions {
            if delay.is_zero() {
                self.end(session, "deleted");
                continue;
            }
            self.plane.commands.push_back(MediaCommand::Query(session));
            let timer = self
                .timers
                .schedule(self.now + delay, Alarm::Delete(session));
            if let Some(branch) = self.branches.get_mut(session)
                && let Some(before) = branch.deleting.replace(timer)
            {
                self.timers.cancel(before);
            }
        }
        Ok(Outcome::Later)
    }

    fn query(&mut self, asker: &Asker, wishes: &Wishes<'_>) -> Result<Outcome, Refusal> {
        let call = wishes.call_id.ok_or("No call-id in message")?;
        if self.branches.call(call).is_none() {
            return Err("Unknown call-id".to_owned());
        }
        let sessions = self.chosen(wishes)?;
        if sessions.is_empty() {
            return Err("no party of the call has these tags".to_owned());
        }
        let view = self.view(&sessions, call);
        self.replies.ask(Question {
            asker: asker.clone(),
            missing: sessions.len(),
            view,
        });
        for session in sessions {
            self.plane.commands.push_back(MediaCommand::Query(session));
        }
        Ok(Outcome::Later)
    }

    fn list(&self, wishes: &Wishes<'_>) -> Value {
        let mut calls: Vec<&[u8]> = Vec::new();
        let limit = wishes.limit.unwrap_or(LISTED);
        for branch in self.branches.iter() {
            let first = self
                .branches
                .call(&branch.call)
                .is_some_and(|call| call.sessions.first() == Some(&branch.session));
            if first && calls.len() < limit {
                calls.push(&branch.call);
            }
        }
        let calls: Vec<Value> = calls.into_iter().map(Value::from).collect();
        ok(Value::dictionary().with("calls", calls))
    }

    fn statistics(&self) -> Value {
        let calls = self.branches.calls() as u64;
        let current = Value::dictionary()
            .with("sessionsown", calls)
            .with("sessionsforeign", 0u64)
            .with("sessionstotal", calls)
            .with("mediasessions", self.plane.sessions as u64);
        let [rtp, rtcp] = self.counters.relayed;
        let totals = Value::dictionary()
            .with("uptime", self.now.as_millis() / 1_000)
            .with("managedsessions", self.counters.begun)
            .with("timeoutsessions", self.counters.media_timeouts)
            .with("relayedpackets", rtp.0 + rtcp.0)
            .with("relayedbytes", rtp.1 + rtcp.1)
            .with("relayedpacketerrors", self.counters.errors)
            .with("portsexhausted", self.counters.ports_exhausted);
        let mut control = Value::dictionary()
            .with("errorcount", self.counters.refused)
            .with("repeatedcount", self.counters.repeated);
        for (command, count) in &self.counters.commands {
            let key: String = command.split(' ').collect();
            control.set(&format!("total{key}count"), *count);
        }
        let mut interfaces = Vec::new();
        for interface in &self.spec.interfaces {
            for media in &interface.media {
                let pool = self
                    .pools
                    .get(media.range)
                    .and_then(|pool| self.plane.pools.get(usize::from(*pool)));
                let Some(pool) = pool else { continue };
                let (used, total) = (2 * pool.ports.in_use(), 2 * pool.ports.capacity());
                let ports = Value::dictionary()
                    .with("min", u64::from(pool.first))
                    .with("max", u64::from(pool.last))
                    .with("used", used as u64)
                    .with("free", total.saturating_sub(used) as u64)
                    .with("totals", total as u64);
                let one = Value::dictionary()
                    .with("name", interface.name.as_str())
                    .with("address", media.address.to_string())
                    .with("ports", ports);
                interfaces.push(one);
            }
        }
        let mut drops = Value::dictionary();
        for (reason, count) in self.drops.iter() {
            drops.set(reason.name(), count);
        }
        let statistics = Value::dictionary()
            .with("currentstatistics", current)
            .with("totalstatistics", totals)
            .with("controlstatistics", control)
            .with("interfaces", interfaces)
            .with("drops", drops);
        ok(Value::dictionary().with("statistics", statistics))
    }

    fn block(&mut self, wishes: &Wishes<'_>, blocked: bool) -> Result<Outcome, Refusal> {
        let sessions = self.chosen(wishes)?;
        if sessions.is_empty() {
            return Err("Unknown call-id".to_owned());
        }
        for session in sessions {
            let Some(branch) = self.branches.get_mut(session) else {
                continue;
            };
            let one = wishes
                .from_tag
                .filter(|_| !wishes.all)
                .and_then(|tag| branch.side_of(tag));
            for side in Side::BOTH {
                if one.is_none_or(|one| one == side)
                    && let Some(slot) = branch.blocked.get_mut(side.index())
                {
                    *slot = blocked;
                }
            }
            let [caller, callee] = branch.blocked;
            let gate = (caller || callee).then_some(EarlyMedia {
                forward: !caller,
                backward: !callee,
            });
            branch.media.set_gate(&mut self.plane, gate);
        }
        Ok(Outcome::Now(ok(Value::dictionary())))
    }

    /// A branch ends, and with it whatever it holds; the forwarder tells its last figures.
    pub(super) fn end(&mut self, session: u64, why: &str) {
        let Some(mut branch) = self.branches.remove(session) else {
            return;
        };
        let timers = [branch.deleting.take(), branch.media.wake_timer.take()];
        for timer in timers.into_iter().flatten() {
            self.timers.cancel(timer);
        }
        if let Some(file) = branch.recording.take() {
            self.records.end(file);
        }
        let held = branch.held.take();
        branch.media.release(&mut self.plane);
        if let Some(held) = held {
            let text = match why {
                "media port" => "no media port left",
                why => why,
            };
            self.answer_to(&held.asker, &error(text));
        }
        self.tell(ended(branch.number, why));
        self.after_call();
    }

    /// Nothing came on the media ports of a branch for too long.
    pub(super) fn timed_out(&mut self, session: u64) {
        let Some(branch) = self.branches.get(session) else {
            return;
        };
        let call = branch.number;
        self.counters.media_timeouts += 1;
        self.tell(Note::MediaTimeout { call });
        self.end(session, "media timeout");
    }

    /// A side is locked to an address.
    pub(super) fn latched(&mut self, session: u64, side: u8, address: SocketAddr) {
        let Some(branch) = self.branches.get(session) else {
            return;
        };
        let call = branch.number;
        let side = match side {
            0 => Side::Caller,
            _ => Side::Callee,
        };
        self.tell(Note::MediaLatched {
            call,
            side: side.name().to_owned(),
            address: address.to_string(),
        });
    }

    /// Figures of a session, or word that there are none.
    pub(super) fn counted(&mut self, session: u64, last: bool, stats: Option<Box<SessionStats>>) {
        if let Some(stats) = stats.as_deref().filter(|_| last) {
            let [rtp, rtcp] = &mut self.counters.relayed;
            for side in stats.flows.iter().flat_map(|flow| &flow.sides) {
                rtp.0 += side.received.packets;
                rtp.1 += side.received.bytes;
                rtcp.0 += side.received_rtcp.packets;
                rtcp.1 += side.received_rtcp.bytes;
                let errors: u64 = side.drops.iter().map(|(_, count)| count).sum();
                self.counters.errors += errors;
            }
        }
        let epoch = self.epoch;
        for question in self.replies.counted(session, stats.as_deref()) {
            let reply = ok(question.view.value(epoch));
            self.answer_to(&question.asker, &reply);
        }
    }

    /// A call has ended: was it the last one of a drain?
    pub(super) fn after_call(&mut self) {
        if self.branches.len() > 0 {
            return;
        }
        if let Some(draining) = self.draining.as_mut()
            && !draining.finished
        {
            draining.finished = true;
            let cut = draining.cut;
            self.timers.cancel(draining.timer);
            self.tell(Note::DrainFinished { cut });
        }
    }

    /// The time for draining is over: what is left ends.
    pub(super) fn drain_over(&mut self) {
        let left: Vec<u64> = self.branches.iter().map(|branch| branch.session).collect();
        if let Some(draining) = self.draining.as_mut() {
            draining.cut = left.len() as u64;
        }
        for session in left {
            self.end(session, "drained");
        }
        self.after_call();
    }
}
