//! Processing of commands and replies, and the end of calls.

use super::access::{CommandState, ReplyPath, Requester};
use super::branches::NgBranch;
use super::options::{CommandError, CommandOptions};
use super::playback::PlayOptions;
use super::replies::{PendingReply, error, ok};
use super::statistics::{CallView, ended_event};
use super::{NgAlarm, NgServer};
use anchor::EarlyMedia;
use anchor::Side;
use core::time::Duration;
use engine::{DropReason, EventKind};
use media::MediaCommand;
use media::forward::SessionStats;
use std::net::SocketAddr;
use wire::ng::{NgMessage, Value};

/// Octets of a reply in a datagram at most (RFC 768 over IPv4).
const MAX_REPLY: usize = 65_507;
/// Calls in a reply to `list` without a limit.
const DEFAULT_LIST_LIMIT: usize = 32;

/// Result of a command.
pub(super) enum CommandResult {
    Now(Value),
    /// The reply follows later.
    Deferred,
}

/// Supported commands.
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

/// Commands of rtpengine that are refused by name.
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

impl NgServer {
    /// Processes a command.
    pub(super) fn command(&mut self, path: ReplyPath, bytes: &[u8]) {
        let Some(cookie) = NgMessage::cookie_of(bytes) else {
            return self.drops.count(DropReason::NgMalformed);
        };
        match self.reply_cache.check(path, cookie, self.now) {
            CommandState::New => {}
            CommandState::Pending => {
                self.counters.repeated += 1;
                return;
            }
            CommandState::Answered(reply) => {
                self.counters.repeated += 1;
                return self.replies.send(path, reply);
            }
        }
        let requester = Requester {
            path,
            cookie: cookie.to_vec(),
        };
        let done = match NgMessage::parse(bytes) {
            Ok(message) => self.execute(&requester, &message),
            Err(reason) => {
                self.drops.count(DropReason::NgMalformed);
                Err(reason.to_string())
            }
        };
        match done {
            Ok(CommandResult::Now(reply)) => self.reply_to(&requester, &reply),
            Ok(CommandResult::Deferred) => {}
            Err(reason) => {
                self.counters.refused += 1;
                self.reply_to(&requester, &error(&reason));
            }
        }
    }

    /// Sends a reply, and caches it.
    pub(super) fn reply_to(&mut self, requester: &Requester, reply: &Value) {
        let mut bytes = Vec::new();
        NgMessage::write(&requester.cookie, reply, &mut bytes);
        if matches!(requester.path, ReplyPath::Datagram(..)) && bytes.len() > MAX_REPLY {
            bytes.clear();
            let refusal = error("the reply is too large for a datagram");
            NgMessage::write(&requester.cookie, &refusal, &mut bytes);
        }
        self.reply_cache.store(requester, &bytes);
        self.replies.send(requester.path, bytes);
    }

    fn execute(
        &mut self,
        requester: &Requester,
        message: &NgMessage<'_>,
    ) -> Result<CommandResult, CommandError> {
        let command = message.body.get("command").and_then(|item| item.text());
        let command = command.ok_or("Dictionary contains no key \"command\"")?;
        let Some(&existing) = COMMANDS.iter().find(|existing| **existing == command) else {
            return Err(match REFUSED.contains(&command) {
                true => format!("command \"{command}\" is not supported"),
                false => "Unrecognized command".to_owned(),
            });
        };
        *self.counters.commands.entry(existing).or_default() += 1;
        let options = CommandOptions::read(message.body, self.dscp)?;
        if existing != "play media" && options.play != PlayOptions::default() {
            return Err(format!("\"{existing}\" does not take playback options"));
        }
        match existing {
            "ping" => Ok(CommandResult::Now(
                Value::dictionary().with("result", "pong"),
            )),
            "offer" => self.offer(requester, &options),
            "answer" => self.answer(&options),
            "delete" => self.delete(requester, &options),
            "query" => self.query(requester, &options),
            "list" => Ok(CommandResult::Now(self.list(&options))),
            "statistics" => Ok(CommandResult::Now(self.statistics())),
            "block media" => self.block(&options, true),
            "unblock media" => self.block(&options, false),
            "start recording" => self.record(&options, true),
            "play media" => self.play(requester, &options),
            "stop media" => self.stop(requester, &options),
            _ => self.record(&options, false),
        }
    }

    /// The branches that a command addresses: of the call, with the named parties.
    pub(super) fn select_branches(
        &self,
        options: &CommandOptions<'_>,
    ) -> Result<Vec<u64>, CommandError> {
        let call = options.call_id.ok_or("No call-id in message")?;
        let fits = |branch: &&NgBranch| {
            let from = options.from_tag.filter(|_| !options.all);
            let to = options.to_tag.filter(|_| !options.all);
            let has = |tag: &[u8]| branch.side_of(tag).is_some();
            let via = options.via_branch.filter(|_| !options.all);
            from.is_none_or(has)
                // A caller that gives up before an answer has a tag that we have not received.
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

    fn delete(
        &mut self,
        requester: &Requester,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let sessions = self.select_branches(options)?;
        let call = options.call_id.unwrap_or_default();
        if sessions.is_empty() {
            let reason = "Call-ID not found or tags didn't match";
            return match options.fatal {
                true => Err(reason.to_owned()),
                false => Ok(CommandResult::Now(ok(
                    Value::dictionary().with("warning", reason)
                ))),
            };
        }
        let view = self.view(&sessions, call);
        let delay = match options.delete_delay {
            Some(seconds) => Duration::from_secs(seconds.min(86_400)),
            None => self.settings.delete_delay,
        };
        self.replies.defer(PendingReply {
            requester: requester.clone(),
            missing: sessions.len(),
            view,
        });
        for session in sessions {
            if delay.is_zero() {
                self.end_branch(session, "deleted");
                continue;
            }
            self.plane.commands.push_back(MediaCommand::Query(session));
            let timer = self
                .timers
                .schedule(self.now + delay, NgAlarm::Delete(session));
            if let Some(branch) = self.branches.get_mut(session)
                && let Some(before) = branch.deleting.replace(timer)
            {
                self.timers.cancel(before);
            }
        }
        Ok(CommandResult::Deferred)
    }

    fn query(
        &mut self,
        requester: &Requester,
        options: &CommandOptions<'_>,
    ) -> Result<CommandResult, CommandError> {
        let call = options.call_id.ok_or("No call-id in message")?;
        if self.branches.call(call).is_none() {
            return Err("Unknown call-id".to_owned());
        }
        let sessions = self.select_branches(options)?;
        if sessions.is_empty() {
            return Err("the call has no party with these tags".to_owned());
        }
        let view = self.view(&sessions, call);
        self.replies.defer(PendingReply {
            requester: requester.clone(),
            missing: sessions.len(),
            view,
        });
        for session in sessions {
            self.plane.commands.push_back(MediaCommand::Query(session));
        }
        Ok(CommandResult::Deferred)
    }

    fn list(&self, options: &CommandOptions<'_>) -> Value {
        let mut calls: Vec<&[u8]> = Vec::new();
        let limit = options.limit.unwrap_or(DEFAULT_LIST_LIMIT);
        for branch in self.branches.iter() {
            // The rest would cost the packets of this thread time.
            if calls.len() >= limit {
                break;
            }
            let first = self
                .branches
                .call(&branch.call)
                .is_some_and(|call| call.sessions.first() == Some(&branch.session));
            if first {
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
            .with("managedsessions", self.counters.started)
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
        for interface in &self.settings.interfaces {
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

    fn block(
        &mut self,
        options: &CommandOptions<'_>,
        blocked: bool,
    ) -> Result<CommandResult, CommandError> {
        let sessions = self.select_branches(options)?;
        if sessions.is_empty() {
            return Err("Unknown call-id".to_owned());
        }
        for session in sessions {
            let Some(branch) = self.branches.get_mut(session) else {
                continue;
            };
            let one = options
                .from_tag
                .filter(|_| !options.all)
                .and_then(|tag| branch.side_of(tag));
            for side in Side::BOTH {
                if one.is_none_or(|one| one == side)
                    && let Some(slot) = branch.blocked.get_mut(side.index())
                {
                    *slot = blocked;
                }
            }
            let [caller, callee] = branch.blocked;
            let early = (caller || callee).then_some(EarlyMedia {
                forward: !caller,
                backward: !callee,
            });
            branch.media.set_early_media(&mut self.plane, early);
        }
        Ok(CommandResult::Now(ok(Value::dictionary())))
    }

    /// Ends a branch and releases its resources; the forwarder reports the final figures.
    pub(super) fn end_branch(&mut self, session: u64, reason: &str) {
        let Some(mut branch) = self.branches.remove(session) else {
            return;
        };
        let timers = [
            branch.deleting.take(),
            branch.releasing.take(),
            branch.media.keying_timer.take(),
        ];
        for timer in timers.into_iter().flatten() {
            self.timers.cancel(timer);
        }
        if let Some(file) = branch.recording.take() {
            self.recordings.end(file);
        }
        let deferred = branch.deferred.take();
        branch.media.release(&mut self.plane);
        if let Some(deferred) = deferred {
            let text = match reason {
                "media port" => "no media port left",
                reason => reason,
            };
            self.reply_to(&deferred.requester, &error(text));
        }
        self.tell(ended_event(branch.number, reason));
        self.finish_drain_if_idle();
    }

    /// No media arrived at a branch's ports for too long.
    pub(super) fn end_by_media_timeout(&mut self, session: u64) {
        let Some(branch) = self.branches.get(session) else {
            return;
        };
        // A call that rings without early media is not over: the forwarder reports it again after another period.
        if !branch.answered && self.now < branch.offered + self.settings.offer_timeout {
            return;
        }
        let call = branch.number;
        self.counters.media_timeouts += 1;
        self.tell(EventKind::MediaTimeout { call });
        self.end_branch(session, "media timeout");
    }

    /// A side was latched to an address.
    pub(super) fn latched(&mut self, session: u64, side: u8, address: SocketAddr) {
        let Some(branch) = self.branches.get(session) else {
            return;
        };
        let call = branch.number;
        let side = match side {
            0 => Side::Caller,
            _ => Side::Callee,
        };
        self.tell(EventKind::MediaLatched {
            call,
            side: side.name().to_owned(),
            address: address.to_string(),
        });
    }

    /// Figures of a session, or `None` without any.
    pub(super) fn add_stats(&mut self, session: u64, last: bool, stats: Option<Box<SessionStats>>) {
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
        let clock = self.clock;
        for pending in self.replies.add_stats(session, stats.as_deref()) {
            let reply = ok(pending.view.value(clock));
            self.reply_to(&pending.requester, &reply);
        }
    }

    /// Reports the end of a drain when the last call has ended.
    pub(super) fn finish_drain_if_idle(&mut self) {
        if self.branches.len() > 0 {
            return;
        }
        if let Some(draining) = self.draining.as_mut()
            && !draining.is_reported
        {
            draining.is_reported = true;
            let terminated = draining.terminated;
            self.timers.cancel(draining.timer);
            self.tell(EventKind::DrainFinished { terminated });
        }
    }

    /// Ends the remaining calls at the time limit of a drain.
    pub(super) fn expire_drain(&mut self) {
        let left: Vec<u64> = self.branches.iter().map(|branch| branch.session).collect();
        if let Some(draining) = self.draining.as_mut() {
            draining.terminated = left.len() as u64;
        }
        for session in left {
            self.end_branch(session, "drained");
        }
        self.finish_drain_if_idle();
    }
}
