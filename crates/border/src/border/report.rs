//! State and counters of the border, as plain values.

use super::Border;
use crate::admission::{CostPart, Price};
use crate::call::CallPhase;
use anchor::Side;
use engine::Time;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Answered, and ended by either side.
    Completed,
    /// Cancelled by the caller.
    Cancelled,
    /// 486, 600, 603: declined by the callee.
    Declined,
    /// 408, 480, 487: no answer.
    Unanswered,
    /// Other statuses from 401 to 499.
    Refused,
    /// 300 to 399.
    Redirected,
    /// 5xx and all others.
    Failed,
}

impl CallOutcome {
    /// The outcome of an unanswered call by its final status.
    pub fn of(status: u16) -> CallOutcome {
        match status {
            200..=299 => CallOutcome::Completed,
            300..=399 => CallOutcome::Redirected,
            486 | 600 | 603 => CallOutcome::Declined,
            408 | 480 | 487 => CallOutcome::Unanswered,
            400..=499 | 604..=699 => CallOutcome::Refused,
            _ => CallOutcome::Failed,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BorderCounters {
    /// Calls received.
    pub offered: u64,
    /// Calls answered.
    pub answered: u64,
    /// Answered calls that have ended.
    pub completed: u64,
    /// Calls cancelled by the caller.
    pub cancelled: u64,
    /// Calls declined by the callee.
    pub declined: u64,
    /// Calls without answer.
    pub unanswered: u64,
    /// Calls refused by us or the target (4xx, 6xx).
    pub refused: u64,
    /// Calls redirected.
    pub redirected: u64,
    /// Calls that failed (5xx).
    pub failed: u64,
    /// Calls ended because their media stopped.
    pub media_timeouts: u64,
    /// Calls or media lines refused for lack of ports.
    pub ports_exhausted: u64,
    /// Media port pairs that other programs held in part or whole, and that calls replaced.
    pub ports_taken: u64,
    /// Media sessions with final statistics.
    pub media_sessions_ended: u64,
    /// Forwarded out-of-dialog requests.
    pub relayed: u64,
    /// Calls and registrations refused by rate limits.
    pub shielded: u64,
    /// Requests with wrong credentials, and requests during the lockout that follows them.
    pub authentication_failed: u64,
    /// Requests refused because of the queueing delay.
    pub shed: u64,
    /// New calls dropped unread because of the limit of refusals.
    pub unread: u64,
    /// Calls refused by admission control.
    pub not_admitted: u64,
    /// REGISTERs confirmed without the core, because it was unreachable.
    pub refreshed: u64,
    /// Wrong PINs entered in conferences.
    pub pins_wrong: u64,
    /// Calls to conferences that ended without the right PIN.
    pub pins_refused: u64,
    /// Accepted subscriptions and out-of-dialog REFERs.
    pub subscriptions: u64,
}

impl BorderCounters {
    pub(crate) fn count(&mut self, outcome: CallOutcome) {
        *match outcome {
            CallOutcome::Completed => &mut self.completed,
            CallOutcome::Cancelled => &mut self.cancelled,
            CallOutcome::Declined => &mut self.declined,
            CallOutcome::Unanswered => &mut self.unanswered,
            CallOutcome::Refused => &mut self.refused,
            CallOutcome::Redirected => &mut self.redirected,
            CallOutcome::Failed => &mut self.failed,
        } += 1;
    }
}

/// Sizes of all tables of the border. Tests check them for leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BorderCensus {
    /// Tables of the endpoint.
    pub sip: sip::Census,
    /// Calls.
    pub calls: usize,
    /// Name lookups in progress.
    pub lookups: usize,
    /// Out-of-dialog requests that await a response.
    pub outside: usize,
    /// Forwarded subscriptions.
    pub subscriptions: usize,
    /// Participants of conferences.
    pub seats: usize,
    /// Media port pairs held by calls.
    pub ports: usize,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Media sockets held by calls.
    pub sockets_busy: usize,
    /// Open media sockets, including idle ones.
    pub sockets_open: usize,
    /// Calls with media at media nodes, and pending commands about calls.
    pub at_nodes: usize,
    /// Timers of calls.
    pub timers: usize,
    /// Memory of admitted calls in KiB.
    pub admitted: u64,
    /// CPU time of admitted calls in microseconds per second.
    pub working: u64,
    /// Calls counted on trunks.
    pub trunk_calls: u64,
    /// Transfers between workers, and dialogs that moved to another worker; of all workers.
    pub moved: usize,
    /// Registered users of all workers.
    pub registrations: usize,
}

impl BorderCensus {
    /// Whether no call and nothing that belongs to a call is left.
    pub fn is_quiet(&self) -> bool {
        self.sip.is_quiet()
            && *self
                == BorderCensus {
                    sip: self.sip,
                    sockets_open: self.sockets_open,
                    registrations: self.registrations,
                    ..BorderCensus::default()
                }
    }
}

/// A call, as a plain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// Number.
    pub number: u64,
    /// State.
    pub phase: CallPhase,
    /// Call-IDs of the caller's and the callee's leg, if they exist.
    pub call_ids: [Option<String>; 2],
    /// Names of the interfaces.
    pub interfaces: [String; 2],
    /// Names of the trunks.
    pub trunks: [Option<String>; 2],
    /// When the INVITE arrived.
    pub offered_at: Time,
    /// When it was answered.
    pub answered_at: Option<Time>,
    /// Whether its media is anchored at the border or a media node.
    pub anchored: bool,
    /// Values stored by header rules.
    pub tags: Vec<(String, String)>,
}

impl Border {
    /// Sizes of all tables.
    pub fn census(&self) -> BorderCensus {
        let core = &self.core;
        BorderCensus {
            sip: self.endpoint.census(),
            calls: core.calls.len(),
            lookups: core.resolver.waiting(),
            outside: core.pending_requests.len(),
            subscriptions: core.subscriptions.len(),
            seats: core.conferences.participants(),
            ports: core.plane.ports_in_use(),
            sessions: core.plane.sessions,
            sockets_busy: core.plane.sockets.busy(),
            sockets_open: core.plane.sockets.open(),
            at_nodes: core.media_nodes.relayed_calls + core.media_nodes.pending_commands(),
            // Timers of our registrations do not belong to calls.
            timers: core
                .timers
                .len()
                .saturating_sub(core.keep_alive_flows.len()),
            admitted: core.reservations.reserved().memory,
            working: core.reservations.reserved().processor,
            trunk_calls: core.trunk_calls(),
            moved: core.open_transfers() + self.endpoint.moved_dialogs(),
            registrations: core.location.len(),
        }
    }

    /// Use of memory and CPU time by calls, registrations and handshakes.
    pub fn taken(&mut self, now: Time) -> [(CostPart, Price); CostPart::ALL.len()] {
        self.core.reserved(now)
    }

    /// Counters since the start.
    pub fn counters(&self) -> &BorderCounters {
        &self.core.counters
    }

    /// The calls in progress, ordered by number.
    pub fn calls(&self) -> Vec<CallInfo> {
        let core = &self.core;
        let mut calls: Vec<CallInfo> = core
            .calls
            .iter()
            .map(|(_, call)| {
                let call_id = |side| {
                    let leg = call.leg(side)?;
                    let id = self.endpoint.call_id_of(leg)?;
                    Some(String::from_utf8_lossy(id).into_owned())
                };
                let interface = |side| {
                    core.config
                        .interface(*call.interfaces.get(side))
                        .map_or_else(String::new, |interface| interface.name.clone())
                };
                let trunk = |side| {
                    let trunk = core.config.trunk((*call.trunks.get(side))?)?;
                    Some(trunk.name.clone())
                };
                CallInfo {
                    number: call.number,
                    phase: call.phase,
                    call_ids: Side::BOTH.map(call_id),
                    interfaces: Side::BOTH.map(interface),
                    trunks: Side::BOTH.map(trunk),
                    offered_at: call.offered_at,
                    answered_at: call.answered_at,
                    anchored: call.media.is_some() || call.relay.is_some(),
                    tags: call
                        .tags
                        .iter()
                        .flat_map(|tags| tags.iter())
                        .map(|(name, value)| (name.to_string(), value.to_string()))
                        .collect(),
                }
            })
            .collect();
        calls.sort_by_key(|call| call.number);
        calls
    }
}
