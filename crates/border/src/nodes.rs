//! Media nodes that relay our calls' media: which of them a call gets, whether they answer, how one is taken out of service.
//!
//! Nodes are commanded by the "ng" protocol ([`client`]), as [`crate::node`] obeys it, or rtpengine does. What a call has at a node is
//! a [`relay::Relay`]; how it follows the messages of a call is in [`carry`].

mod carry;
pub(crate) mod client;
mod figures;
pub(crate) mod fuzz;
pub(crate) mod relay;
mod terms;

use crate::call::{CallKey, Side};
use crate::config::{Config, NodeCare, NodeLoad, RemoteNode};
use client::{AskId, Client};
use core::time::Duration;
use engine::{Deadline, Entropy, Note, SocketId, Time, Worker};
use std::net::SocketAddr;
use wire::ng::Value;

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
    /// Its calls were ended for that.
    ended: bool,
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
                        ended: false,
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
            let command = match member.spec.load {
                NodeLoad::Calls => "ping",
                NodeLoad::Reported => "statistics",
            };
            let body = Value::dictionary().with("command", command);
            if self.client.ask(to, What::Check(id), &body, now).is_none()
                && let Some(member) = self.member_mut(id)
            {
                member.checking = None;
            }
        }
    }

    /// A node has said something.
    fn is_up(&mut self, control: SocketAddr) {
        for member in &mut self.members {
            if member.spec.control == control && member.down.take().is_some() {
                member.ended = false;
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
            member.reported = sessions.map(|sessions| (sessions, then));
        }
    }

    /// A node does not answer. Whether that is new.
    fn is_silent(&mut self, control: SocketAddr, why: &str, now: Time) -> bool {
        let mut new = false;
        for member in &mut self.members {
            if member.spec.control == control && member.down.is_none() {
                new = true;
                member.down = Some(now);
                member.reported = None;
                self.notes.push(Note::MediaNodeDown {
                    node: member.spec.name.clone(),
                    calls: u64::from(member.calls),
                    why: why.to_owned(),
                });
            }
        }
        new
    }

    /// Nodes that have not answered for so long that their calls end.
    fn lost(&mut self, now: Time) -> Vec<NodeId> {
        let Some(keep) = self.care.keep else {
            return Vec::new();
        };
        let mut lost = Vec::new();
        for member in &mut self.members {
            if !member.ended && member.down.is_some_and(|down| down + keep <= now) {
                member.ended = true;
                lost.push(member.id);
            }
        }
        lost
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let client = self.client.next_deadline();
        let checks = self
            .members
            .iter()
            .filter(|member| member.checking.is_none());
        let checks = checks.map(|member| member.check_at).min();
        let losses = self.care.keep.and_then(|keep: Duration| {
            let open = self.members.iter().filter(|member| !member.ended);
            open.filter_map(|member| Some(member.down? + keep)).min()
        });
        let at = [client, checks, losses].into_iter().flatten().min()?;
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
