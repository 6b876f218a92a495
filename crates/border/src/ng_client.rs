//! Media nodes that relay the media of our calls: selection, supervision and draining.
//!
//! Nodes are controlled by the "ng" protocol ([`ng::client`]), as implemented by [`ng::server`] and rtpengine. The
//! state of a call at a node is a [`relay::NodeRelay`]; [`exchange`] passes the descriptions of a call through its
//! node.

pub(crate) mod control;
mod exchange;
mod failover;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub(crate) mod relay;
mod statistics;

use crate::calls::key::CallKey;
use crate::views::NodeView;
use anchor::Side;
use config::{Config, MediaNodePolicy, MediaNodeSpec, NodeLoad};
use core::time::Duration;
use engine::{Deadline, Entropy, EventKind, SocketId, Time, Worker};
use ng::client::{CommandId, NgClient};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::SocketAddr;
use wire::ng::Value;

/// Interval between two requests for the load of a node that reports it.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two queries whether a node still has one of its calls.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// Calls in a row that a node does not have: it was restarted.
const MAX_UNKNOWN_CALLS: u8 = 3;
/// Checks in a row that a node has to answer before it is up again.
const ANSWERS_UNTIL_UP: u8 = 2;
/// Time after the restart of a node is noticed in which unknown calls are not reported as another restart.
const RESTART_WINDOW: Duration = Duration::from_secs(10);
/// Deletions kept for a node that is down, to be sent when it is up again.
const MAX_PENDING_DELETES: usize = 16_384;
/// Deletions sent at a time.
const DELETES_PER_TURN: usize = 256;
/// Shortest time between two attempts to open a socket for commands.
const SOCKET_RETRY: Duration = Duration::from_secs(1);

/// A call that was moved away from a node that is down, to be deleted there.
#[derive(Debug)]
struct PendingDelete {
    number: u64,
    call_id: String,
    first_offerer: Side,
}

/// Identifies a node; the number of a removed node is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeId(u32);

/// Purpose of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandPurpose {
    /// Checks whether the node answers, and its load.
    Check(NodeId),
    /// Passes a description of a call.
    Exchange(Exchange),
    /// Queries whether the node still has the call.
    Query(CallKey, NodeId),
    /// Deletes a call, given by its number and the node's name; the flag says whether the call has ended.
    Delete(u64, String, bool),
}

/// A description of a call that is sent to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    key: CallKey,
    node: NodeId,
    command: &'static str,
    /// Call-ID at nodes.
    call_id: String,
    /// The side that offered first.
    first_offerer: Side,
}

#[derive(Debug)]
struct NodeEntry {
    id: NodeId,
    settings: MediaNodeSpec,
    /// It was removed from the configuration.
    is_removed: bool,
    /// Time since when it does not answer.
    down_since: Option<Time>,
    /// Checks answered since then.
    check_answers: u8,
    /// Calls to delete when it is up again.
    pending_deletes: VecDeque<PendingDelete>,
    /// Time of the next query about one of its calls.
    query_at: Time,
    /// Calls in a row that it did not have.
    unknown_calls: u8,
    /// End of the time in which unknown calls belong to a reported restart.
    restart_window_end: Time,
    /// Time of the next request for its load.
    statistics_at: Time,
    /// Our calls at the node.
    calls: u32,
    /// Sessions in its last report, and our calls at that time.
    reported: Option<(u64, u32)>,
    check_at: Time,
    /// Our calls when the pending check was sent; `None` without one.
    calls_at_check: Option<u32>,
    /// Whether the end of the last call has been reported.
    drain_reported: bool,
}

impl NodeEntry {
    fn is_leaving(&self) -> bool {
        self.is_removed || self.settings.drain
    }

    fn load(&self) -> u64 {
        let own = u64::from(self.calls);
        match (self.settings.load, self.reported) {
            (NodeLoad::Reported, Some((sessions, then))) => {
                // Add the difference of our calls since the report.
                (sessions + own).saturating_sub(u64::from(then)).max(own)
            }
            _ => own,
        }
    }
}

/// State of a socket for commands.
#[derive(Clone, Copy, Debug, Default)]
enum CommandSocketState {
    /// It was not needed yet.
    #[default]
    Unused,
    Opening,
    /// It stays open.
    Open,
    /// It could not be opened; earliest time of another attempt.
    Failed(Time),
}

/// The socket for commands to the nodes of an address family.
#[derive(Clone, Copy, Debug, Default)]
struct CommandSocket {
    id: Option<SocketId>,
    state: CommandSocketState,
    /// Whether a failure was logged.
    failure_logged: bool,
}

impl CommandSocket {
    /// Whether it has to be opened now.
    fn is_due(&self, now: Time) -> bool {
        match self.state {
            CommandSocketState::Unused => true,
            CommandSocketState::Opening | CommandSocketState::Open => false,
            CommandSocketState::Failed(retry_at) => retry_at <= now,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MediaNodes {
    entries: Vec<NodeEntry>,
    policy: MediaNodePolicy,
    worker: Worker,
    next: u32,
    pub(crate) client: NgClient<CommandPurpose>,
    /// Sockets for commands by address family: IPv4, IPv6.
    sockets: [CommandSocket; 2],
    events: Vec<EventKind>,
    /// Nodes that have just failed, with the reason: their calls have to be moved.
    failed: Vec<(NodeId, &'static str)>,
    /// Calls whose node has failed.
    failovers: failover::FailoverQueue,
    /// Slot of the call in the last query.
    cursor: usize,
    /// Calls with media at nodes.
    pub(crate) relayed_calls: usize,
}

impl MediaNodes {
    pub(crate) fn new(config: &Config, worker: Worker, entropy: Entropy) -> MediaNodes {
        let mut nodes = MediaNodes {
            entries: Vec::new(),
            policy: config.media_node_policy,
            worker,
            next: 0,
            client: NgClient::new(entropy),
            sockets: [CommandSocket::default(); 2],
            events: Vec::new(),
            failed: Vec::new(),
            failovers: failover::FailoverQueue::default(),
            cursor: 0,
            relayed_calls: 0,
        };
        nodes.reload(config, Time::ZERO);
        nodes
    }

    /// The nodes of the configuration.
    pub(crate) fn views(&self) -> Vec<NodeView> {
        let present = self.entries.iter().filter(|entry| !entry.is_removed);
        let view = |entry: &NodeEntry| NodeView {
            name: entry.settings.name.clone(),
            control: entry.settings.control.to_string(),
            up: entry.down_since.is_none(),
            drain: entry.settings.drain,
            calls: entry.calls,
            sessions: entry.reported.map(|(sessions, _)| sessions),
        };
        present.map(view).collect()
    }

    /// Whether there are no nodes, including nodes of earlier configurations.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.relayed_calls == 0
    }

    /// Applies the nodes of a configuration: a node with the same name and address keeps its state.
    pub(crate) fn reload(&mut self, config: &Config, now: Time) {
        self.policy = config.media_node_policy;
        for entry in &mut self.entries {
            entry.is_removed = true;
        }
        for settings in &config.media_nodes {
            let same = |entry: &&mut NodeEntry| {
                entry.settings.name == settings.name && entry.settings.control == settings.control
            };
            match self.entries.iter_mut().find(same) {
                Some(entry) => {
                    entry.is_removed = false;
                    entry.drain_reported &= settings.drain;
                    entry.settings = settings.clone();
                }
                None => {
                    self.next += 1;
                    self.entries.push(NodeEntry {
                        id: NodeId(self.next),
                        settings: settings.clone(),
                        is_removed: false,
                        down_since: None,
                        check_answers: 0,
                        pending_deletes: VecDeque::new(),
                        query_at: now,
                        unknown_calls: 0,
                        restart_window_end: Time::ZERO,
                        statistics_at: now,
                        calls: 0,
                        reported: None,
                        check_at: now,
                        calls_at_check: None,
                        drain_reported: false,
                    });
                }
            }
        }
        self.report_drained();
    }

    /// Reports nodes whose last call has ended, and removes those that left the configuration.
    fn report_drained(&mut self) {
        for entry in &mut self.entries {
            if entry.is_leaving() && entry.calls == 0 && !entry.drain_reported {
                entry.drain_reported = true;
                self.events.push(EventKind::MediaNodeDrained {
                    node: entry.settings.name.clone(),
                });
            }
        }
        self.entries
            .retain(|entry| !entry.is_removed || entry.calls != 0);
    }

    fn entry(&self, id: NodeId) -> Option<&NodeEntry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    fn entry_mut(&mut self, id: NodeId) -> Option<&mut NodeEntry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Pending commands about calls.
    pub(crate) fn pending_commands(&self) -> usize {
        self.client
            .count(|purpose| !matches!(purpose, CommandPurpose::Check(_)))
    }

    /// Selects the node for a new call: up, not in `tried`, below its limit, and with the least load by weight.
    pub(crate) fn choose(&self, tried: &[NodeId]) -> Option<NodeId> {
        let room = |entry: &&NodeEntry| {
            let limit = entry.settings.max_calls.map(|max| {
                let share = self.worker.share(max as usize);
                u32::try_from(share.max(1)).unwrap_or(u32::MAX)
            });
            limit.is_none_or(|limit| entry.calls < limit)
        };
        let entries = self.entries.iter();
        entries
            .filter(|entry| !entry.is_leaving() && entry.down_since.is_none())
            .filter(|entry| !tried.contains(&entry.id))
            .filter(room)
            .min_by(|a, b| {
                // By load including this call; the first one of equals.
                let one = (a.load() + 1) * u64::from(b.settings.weight);
                one.cmp(&((b.load() + 1) * u64::from(a.settings.weight)))
            })
            .map(|entry| entry.id)
    }

    pub(crate) fn name(&self, id: NodeId) -> &str {
        self.entry(id).map_or("", |entry| &entry.settings.name)
    }

    pub(crate) fn is_down(&self, id: NodeId) -> bool {
        self.entry(id)
            .is_none_or(|entry| entry.down_since.is_some())
    }

    pub(crate) fn control(&self, id: NodeId) -> Option<SocketAddr> {
        Some(self.entry(id)?.settings.control)
    }

    /// Control addresses of all nodes.
    pub(crate) fn controls(&self) -> Vec<SocketAddr> {
        let entries = self.entries.iter();
        entries.map(|entry| entry.settings.control).collect()
    }

    /// Counts a call at a node.
    pub(crate) fn add_call(&mut self, id: NodeId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.calls += 1;
        }
    }

    /// Removes a call from a node.
    pub(crate) fn remove_call(&mut self, id: NodeId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.calls = entry.calls.saturating_sub(1);
        }
        self.report_drained();
    }

    /// Takes the events to report.
    pub(crate) fn take_events(&mut self) -> Vec<EventKind> {
        core::mem::take(&mut self.events)
    }

    /// Sends a command to a node.
    pub(crate) fn send_command(
        &mut self,
        id: NodeId,
        purpose: CommandPurpose,
        body: &Value,
        now: Time,
    ) -> Option<CommandId> {
        let to = self.control(id)?;
        self.client.send(to, purpose, body, now)
    }

    /// Sends the checks that are due.
    fn send_checks(&mut self, now: Time) {
        let every = self.policy.ping_interval;
        for at in 0..self.entries.len() {
            let Some(entry) = self.entries.get_mut(at) else {
                return;
            };
            if entry.calls_at_check.is_some() || entry.check_at > now {
                continue;
            }
            entry.check_at = now + every;
            // Calls that begin from now on reach the node after the check.
            entry.calls_at_check = Some(entry.calls);
            let (id, to) = (entry.id, entry.settings.control);
            let reports = entry.settings.load == NodeLoad::Reported && entry.statistics_at <= now;
            if reports {
                entry.statistics_at = now + STATISTICS_INTERVAL;
            }
            let command = if reports { "statistics" } else { "ping" };
            let body = Value::dictionary().with("command", command);
            let (purpose, timeout) = (CommandPurpose::Check(id), Some(self.policy.timeout));
            let asked = self
                .client
                .send_with_timeout(to, purpose, &body, timeout, now);
            if asked.is_none()
                && let Some(entry) = self.entry_mut(id)
            {
                entry.calls_at_check = None;
            }
        }
    }

    /// Keeps a deletion for a node that is down.
    fn defer_delete(&mut self, id: NodeId, delete: PendingDelete) {
        if let Some(entry) = self.entry_mut(id) {
            if entry.pending_deletes.len() >= MAX_PENDING_DELETES {
                entry.pending_deletes.pop_front();
            }
            entry.pending_deletes.push_back(delete);
        }
    }

    /// Takes some deletions for nodes that are up again.
    fn take_due_deletes(&mut self) -> Vec<(NodeId, PendingDelete)> {
        let mut due = Vec::new();
        for entry in &mut self.entries {
            if entry.down_since.is_some() {
                continue;
            }
            let some = entry.pending_deletes.len().min(DELETES_PER_TURN);
            due.extend(
                entry
                    .pending_deletes
                    .drain(..some)
                    .map(|delete| (entry.id, delete)),
            );
        }
        due
    }

    /// Nodes with a query due about one of their calls.
    fn nodes_to_query(&mut self, now: Time) -> Vec<NodeId> {
        let mut due = Vec::new();
        for entry in &mut self.entries {
            if entry.calls > 0 && entry.down_since.is_none() && entry.query_at <= now {
                entry.query_at = now + QUERY_INTERVAL;
                due.push(entry.id);
            }
        }
        due
    }

    /// Evaluates the answer to a query about one of our calls.
    fn record_query(&mut self, id: NodeId, existing: bool, now: Time) {
        let Some(entry) = self.entry_mut(id) else {
            return;
        };
        if existing {
            entry.unknown_calls = 0;
        }
        if existing || now < entry.restart_window_end {
            return;
        }
        entry.unknown_calls += 1;
        // Query another call at once.
        entry.query_at = now;
        if entry.unknown_calls < MAX_UNKNOWN_CALLS {
            return;
        }
        entry.unknown_calls = 0;
        entry.query_at = now + QUERY_INTERVAL;
        entry.restart_window_end = now + RESTART_WINDOW;
        let note = EventKind::MediaNodeRestarted {
            node: entry.settings.name.clone(),
            calls: u64::from(entry.calls),
        };
        self.events.push(note);
        self.failed.push((id, "restarted"));
    }

    /// Counts the answer to a check.
    fn record_check_answer(&mut self, control: SocketAddr) {
        for entry in &mut self.entries {
            if entry.settings.control != control || entry.down_since.is_none() {
                continue;
            }
            entry.check_answers += 1;
            if entry.check_answers >= ANSWERS_UNTIL_UP {
                entry.down_since = None;
                self.events.push(EventKind::MediaNodeUp {
                    node: entry.settings.name.clone(),
                });
            }
        }
    }

    /// Finishes a check, with or without a reply.
    fn finish_check(&mut self, id: NodeId, reply: Option<&Value>) {
        let sessions = reply.and_then(statistics::sessions);
        if let Some(entry) = self.entry_mut(id) {
            let then = entry.calls_at_check.take().unwrap_or(entry.calls);
            if let Some(sessions) = sessions {
                entry.reported = Some((sessions, then));
            }
        }
    }

    /// Marks a node that does not answer as down.
    fn mark_down(&mut self, control: SocketAddr, reason: &'static str, now: Time) {
        for entry in &mut self.entries {
            if entry.settings.control != control {
                continue;
            }
            entry.check_answers = 0;
            if entry.down_since.is_none() {
                entry.down_since = Some(now);
                entry.reported = None;
                entry.unknown_calls = 0;
                self.failed.push((entry.id, reason));
                self.events.push(EventKind::MediaNodeDown {
                    node: entry.settings.name.clone(),
                    calls: u64::from(entry.calls),
                    reason: reason.to_owned(),
                });
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let client = self.client.next_deadline();
        let checks = self
            .entries
            .iter()
            .filter(|entry| entry.calls_at_check.is_none());
        let checks = checks.map(|entry| entry.check_at).min();
        let samples = self
            .entries
            .iter()
            .filter(|entry| entry.calls > 0 && entry.down_since.is_none());
        let samples = samples.map(|entry| entry.query_at).min();
        let failovers = self.failovers.next_at();
        let all = [client, checks, samples, failovers];
        let at = all.into_iter().flatten().min()?;
        Some(Deadline::new(at, "media nodes"))
    }

    /// Whether a socket is one for commands.
    fn owns_socket(&self, socket: SocketId) -> bool {
        self.sockets.iter().any(|owned| owned.id == Some(socket))
    }

    /// A socket is open.
    pub(crate) fn socket_opened(&mut self, socket: SocketId) {
        for owned in &mut self.sockets {
            if owned.id == Some(socket) {
                owned.state = CommandSocketState::Open;
            }
        }
    }

    /// A socket for commands could not be opened: it is tried again. Returns the control address of a node that needs
    /// it, the first time only.
    fn socket_failed(&mut self, socket: SocketId, now: Time) -> Option<SocketAddr> {
        let mut sockets = self.sockets.iter_mut();
        let failed = sockets.find(|owned| owned.id == Some(socket))?;
        failed.state = CommandSocketState::Failed(now + SOCKET_RETRY);
        if core::mem::replace(&mut failed.failure_logged, true) {
            return None;
        }
        let mut controls = self.entries.iter().map(|entry| entry.settings.control);
        controls.find(|control| {
            let needed = self.sockets.get(usize::from(control.is_ipv6()));
            needed.is_some_and(|needed| needed.id == Some(socket))
        })
    }

    /// The socket from which the next command is to be sent. Commands wait while it is opened; without a socket they
    /// are discarded, so that they time out.
    pub(crate) fn next_socket(&mut self) -> Option<SocketId> {
        loop {
            let to = self.client.next_destination()?;
            let owned = self.sockets.get(usize::from(to.is_ipv6()))?;
            match owned.state {
                CommandSocketState::Open => return owned.id,
                CommandSocketState::Opening => return None,
                CommandSocketState::Unused | CommandSocketState::Failed(_) => {
                    self.client.next_datagram();
                }
            }
        }
    }

    /// The next command to send: destination and bytes.
    pub(crate) fn next_datagram(&mut self) -> Option<(SocketAddr, &[u8])> {
        self.client.next_datagram()
    }
}
