//! Media nodes that relay our calls' media: which of them a call gets, whether they answer, how one is taken out of service.
//!
//! Nodes are commanded by the "ng" protocol ([`client`]), as [`crate::node`] obeys it, or rtpengine does. What a call has at a node is
//! a [`relay::Relay`]; how it follows the messages of a call is in [`carry`].

mod carry;
pub(crate) mod client;
mod failure;
mod figures;
pub(crate) mod fuzz;
mod origin;
pub(crate) mod relay;
mod terms;

use crate::call::{CallKey, Side};
use crate::config::{Config, NodeCare, NodeLoad, RemoteNode};
use client::{AskId, Client};
use core::time::Duration;
use engine::{Deadline, Entropy, Note, SocketId, Time, Worker};
use std::collections::VecDeque;
use std::net::SocketAddr;
use wire::ng::Value;

/// How long between two questions for the load of a node that reports it.
const REPORTS: Duration = Duration::from_secs(1);
/// How long between two looks at whether a node still knows one of its calls.
const SAMPLES: Duration = Duration::from_secs(1);
/// So many calls one after the other that a node does not know: it was started anew.
const UNKNOWN: u8 = 3;
/// So many checks in a row a node that was down answers before it is up.
const ANSWERS: u8 = 2;
/// Time after the restart of a node is noticed in which unknown calls are not reported as another restart.
const RESTART: Duration = Duration::from_secs(10);
/// Calls kept for a node that is down, to be deleted there when it is up again.
const MAX_OWED: usize = 16_384;
/// Of which so many are deleted with each check.
const PAID: usize = 256;

/// A call that has left a node which could not be told so.
#[derive(Debug)]
struct Owed {
    number: u64,
    call_id: String,
    began: Side,
}

/// Names a node; that of one that has left the configuration is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

/// What a command is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Whether the node answers, and what its load is.
    Check(NodeId),
    /// A description of a call.
    Exchange(Exchange),
    /// Whether the node still knows the call.
    Look(CallKey, NodeId),
    /// The end of what a call has there, by its number and the node's name; whether the call itself has ended.
    Delete(u64, String, bool),
}

/// A description of a call that a node is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    key: CallKey,
    node: NodeId,
    command: &'static str,
    /// The call's name at nodes.
    call_id: String,
    /// Who offered first.
    began: Side,
}

#[derive(Debug)]
struct Member {
    id: NodeId,
    spec: RemoteNode,
    /// It is not in the configuration any more.
    gone: bool,
    /// When it was found not to answer.
    down: Option<Time>,
    /// Checks that it has answered since then.
    answers: u8,
    /// Calls to be deleted there when it is up again.
    owed: VecDeque<Owed>,
    /// Whether it knows one of its calls is looked at next.
    sample_at: Time,
    /// Calls one after the other that it did not know.
    unknown: u8,
    /// Its restart was reported; until then unknown calls are not another one.
    restarted: Time,
    /// Its load is asked for next.
    report_at: Time,
    /// Calls of ours.
    calls: u32,
    /// Sessions as it told last, and calls of ours then.
    reported: Option<(u64, u32)>,
    check_at: Time,
    /// A check is under way; calls of ours when it was sent.
    checking: Option<u32>,
    /// That the last call has ended was told.
    drained: bool,
}

impl Member {
    fn leaves(&self) -> bool {
        self.gone || self.spec.drain
    }

    fn load(&self) -> u64 {
        let own = u64::from(self.calls);
        match (self.spec.load, self.reported) {
            (NodeLoad::Reported, Some((sessions, then))) => {
                // What came and went since it told.
                (sessions + own).saturating_sub(u64::from(then)).max(own)
            }
            _ => own,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Nodes {
    members: Vec<Member>,
    care: NodeCare,
    worker: Worker,
    next: u32,
    pub(crate) client: Client<What>,
    /// For commands, by family: IPv4, IPv6.
    sockets: [Option<SocketId>; 2],
    saying: Vec<u8>,
    notes: Vec<Note>,
    /// Nodes that have failed just now, and why: their calls are to be looked after.
    failed: Vec<(NodeId, &'static str)>,
    /// Calls whose node has failed.
    failures: failure::Failures,
    /// The slot of the call that a node was asked about last.
    cursor: usize,
    /// Calls whose media goes through nodes.
    pub(crate) relays: usize,
}

impl Nodes {
    pub(crate) fn new(config: &Config, worker: Worker, entropy: Entropy) -> Nodes {
        let mut nodes = Nodes {
            members: Vec::new(),
            care: config.node_care,
            worker,
            next: 0,
            client: Client::new(entropy),
            sockets: [None; 2],
            saying: Vec::new(),
            notes: Vec::new(),
            failed: Vec::new(),
            failures: failure::Failures::default(),
            cursor: 0,
            relays: 0,
        };
        nodes.reload(config, Time::ZERO);
        nodes
    }

    /// Whether there are none, and none are left of an earlier configuration.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.relays == 0
    }

    /// Takes over the nodes of a configuration: those with the name and address of one before are that one.
    pub(crate) fn reload(&mut self, config: &Config, now: Time) {
        self.care = config.node_care;
        for member in &mut self.members {
            member.gone = true;
        }
        for spec in &config.media_nodes {
            let same = |member: &&mut Member| {
                member.spec.name == spec.name && member.spec.control == spec.control
            };
            match self.members.iter_mut().find(same) {
                Some(member) => {
                    member.gone = false;
                    member.drained &= spec.drain;
                    member.spec = spec.clone();
                }
                None => {
                    self.next += 1;
                    self.members.push(Member {
                        id: NodeId(self.next),
                        spec: spec.clone(),
                        gone: false,
                        down: None,
                        answers: 0,
                        owed: VecDeque::new(),
                        sample_at: now,
                        unknown: 0,
                        restarted: Time::ZERO,
                        report_at: now,
                        calls: 0,
                        reported: None,
                        check_at: now,
                        checking: None,
                        drained: false,
                    });
                }
            }
        }
        self.tidy();
    }

    /// Tells of nodes whose last call has ended, and forgets those that are gone.
    fn tidy(&mut self) {
        for member in &mut self.members {
            if member.leaves() && member.calls == 0 && !member.drained {
                member.drained = true;
                self.notes.push(Note::MediaNodeDrained {
                    node: member.spec.name.clone(),
                });
            }
        }
        self.members
            .retain(|member| !member.gone || member.calls != 0);
    }

    fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    fn member_mut(&mut self, id: NodeId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Commands about calls under way.
    pub(crate) fn waiting(&self) -> usize {
        self.client.count(|what| !matches!(what, What::Check(_)))
    }

    /// The node for a new call: of those that are up, not yet `tried` and have room, the one with the least load for its weight.
    pub(crate) fn choose(&self, tried: &[NodeId]) -> Option<NodeId> {
        let room = |member: &&Member| {
            let limit = member.spec.max_calls.map(|max| {
                let share = self.worker.share(max as usize);
                u32::try_from(share.max(1)).unwrap_or(u32::MAX)
            });
            limit.is_none_or(|limit| member.calls < limit)
        };
        let members = self.members.iter();
        members
            .filter(|member| !member.leaves() && member.down.is_none())
            .filter(|member| !tried.contains(&member.id))
            .filter(room)
            .min_by(|a, b| {
                // By load after this call; the first of equals.
                let one = (a.load() + 1) * u64::from(b.spec.weight);
                one.cmp(&((b.load() + 1) * u64::from(a.spec.weight)))
            })
            .map(|member| member.id)
    }

    pub(crate) fn name(&self, id: NodeId) -> &str {
        self.member(id).map_or("", |member| &member.spec.name)
    }

    pub(crate) fn is_down(&self, id: NodeId) -> bool {
        self.member(id).is_none_or(|member| member.down.is_some())
    }

    pub(crate) fn control(&self, id: NodeId) -> Option<SocketAddr> {
        Some(self.member(id)?.spec.control)
    }

    /// Where all of them take commands.
    pub(crate) fn controls(&self) -> Vec<SocketAddr> {
        let members = self.members.iter();
        members.map(|member| member.spec.control).collect()
    }

    /// A call is at this node from now on.
    pub(crate) fn begin(&mut self, id: NodeId) {
        if let Some(member) = self.member_mut(id) {
            member.calls += 1;
        }
    }

    /// It is not any more.
    pub(crate) fn end(&mut self, id: NodeId) {
        if let Some(member) = self.member_mut(id) {
            member.calls = member.calls.saturating_sub(1);
        }
        self.tidy();
    }

    /// What is to be told.
    pub(crate) fn take_notes(&mut self) -> Vec<Note> {
        core::mem::take(&mut self.notes)
    }

    /// Sends a command to a node.
    pub(crate) fn ask(&mut self, id: NodeId, what: What, body: &Value, now: Time) -> Option<AskId> {
        let to = self.control(id)?;
        self.client.ask(to, what, body, now)
    }

    /// Asks nodes whether they are there, where that is due.
    fn check(&mut self, now: Time) {
        let every = self.care.check;
        for at in 0..self.members.len() {
            let Some(member) = self.members.get_mut(at) else {
                return;
            };
            if member.checking.is_some() || member.check_at > now {
                continue;
            }
            member.check_at = now + every;
            // What is begun from now on comes to the node behind the check.
            member.checking = Some(member.calls);
            let (id, to) = (member.id, member.spec.control);
            let reports = member.spec.load == NodeLoad::Reported && member.report_at <= now;
            if reports {
                member.report_at = now + REPORTS;
            }
            let command = if reports { "statistics" } else { "ping" };
            let body = Value::dictionary().with("command", command);
            let (what, within) = (What::Check(id), Some(self.care.timeout));
            let asked = self.client.ask_within(to, what, &body, within, now);
            if asked.is_none()
                && let Some(member) = self.member_mut(id)
            {
                member.checking = None;
            }
        }
    }

    /// A call has left a node that is down.
    fn owe(&mut self, id: NodeId, owed: Owed) {
        if let Some(member) = self.member_mut(id) {
            if member.owed.len() >= MAX_OWED {
                member.owed.pop_front();
            }
            member.owed.push_back(owed);
        }
    }

    /// Some of the calls that have left nodes which are up again.
    fn take_owed(&mut self) -> Vec<(NodeId, Owed)> {
        let mut due = Vec::new();
        for member in &mut self.members {
            if member.down.is_some() {
                continue;
            }
            let some = member.owed.len().min(PAID);
            due.extend(member.owed.drain(..some).map(|owed| (member.id, owed)));
        }
        due
    }

    /// Nodes of which one call is to be looked at.
    fn samples(&mut self, now: Time) -> Vec<NodeId> {
        let mut due = Vec::new();
        for member in &mut self.members {
            if member.calls > 0 && member.down.is_none() && member.sample_at <= now {
                member.sample_at = now + SAMPLES;
                due.push(member.id);
            }
        }
        due
    }

    /// A node knows a call of ours, or does not.
    fn looked(&mut self, id: NodeId, known: bool, now: Time) {
        let Some(member) = self.member_mut(id) else {
            return;
        };
        if known {
            member.unknown = 0;
        }
        if known || now < member.restarted {
            return;
        }
        member.unknown += 1;
        // Another one, at once.
        member.sample_at = now;
        if member.unknown < UNKNOWN {
            return;
        }
        member.unknown = 0;
        member.sample_at = now + SAMPLES;
        member.restarted = now + RESTART;
        let note = Note::MediaNodeRestarted {
            node: member.spec.name.clone(),
            calls: u64::from(member.calls),
        };
        self.notes.push(note);
        self.failed.push((id, "started anew"));
    }

    /// A node has answered a check.
    fn has_answered(&mut self, control: SocketAddr) {
        for member in &mut self.members {
            if member.spec.control != control || member.down.is_none() {
                continue;
            }
            member.answers += 1;
            if member.answers >= ANSWERS {
                member.down = None;
                self.notes.push(Note::MediaNodeUp {
                    node: member.spec.name.clone(),
                });
            }
        }
    }

    /// A check came to its end, with a reply or without one.
    fn checked(&mut self, id: NodeId, reply: Option<&Value>) {
        let sessions = reply.and_then(figures::sessions);
        if let Some(member) = self.member_mut(id) {
            let then = member.checking.take().unwrap_or(member.calls);
            if let Some(sessions) = sessions {
                member.reported = Some((sessions, then));
            }
        }
    }

    /// A node does not answer.
    fn is_silent(&mut self, control: SocketAddr, why: &'static str, now: Time) {
        for member in &mut self.members {
            if member.spec.control != control {
                continue;
            }
            member.answers = 0;
            if member.down.is_none() {
                member.down = Some(now);
                member.reported = None;
                member.unknown = 0;
                self.failed.push((member.id, why));
                self.notes.push(Note::MediaNodeDown {
                    node: member.spec.name.clone(),
                    calls: u64::from(member.calls),
                    why: why.to_owned(),
                });
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let client = self.client.next_deadline();
        let checks = self
            .members
            .iter()
            .filter(|member| member.checking.is_none());
        let checks = checks.map(|member| member.check_at).min();
        let samples = self
            .members
            .iter()
            .filter(|member| member.calls > 0 && member.down.is_none());
        let samples = samples.map(|member| member.sample_at).min();
        let failures = self.failures.next_at();
        let all = [client, checks, samples, failures];
        let at = all.into_iter().flatten().min()?;
        Some(Deadline::new(at, "media nodes"))
    }

    /// Whether a command is to leave.
    pub(crate) fn has_output(&self) -> bool {
        self.client.has_output()
    }

    /// The next command to leave: its socket, where to, its bytes. Sockets are opened before.
    pub(crate) fn next_datagram(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        loop {
            let (to, bytes) = self.client.next_datagram()?;
            let socket = self.sockets.get(usize::from(to.is_ipv6())).copied();
            if let Some(Some(socket)) = socket {
                self.saying.clear();
                self.saying.extend_from_slice(bytes);
                return Some((socket, to, &self.saying));
            }
        }
    }
}
