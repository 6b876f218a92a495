//! What the border tells about itself, as plain values.

use super::Border;
use crate::admission::{Cost, Part};
use crate::call::{Phase, Side};
use engine::Time;

/// How calls ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered, and ended in order.
    Completed,
    /// Given up by the caller.
    Cancelled,
    /// 486, 600, 603: the called user did not want it.
    Declined,
    /// 408, 480, 487: nobody answered.
    Unanswered,
    /// 401 to 499 otherwise.
    Refused,
    /// 300 to 399.
    Redirected,
    /// 5xx and what else is left.
    Failed,
}

impl Outcome {
    /// The outcome of a call that was never answered, by its final status.
    pub fn of(status: u16) -> Outcome {
        match status {
            200..=299 => Outcome::Completed,
            300..=399 => Outcome::Redirected,
            486 | 600 | 603 => Outcome::Declined,
            408 | 480 | 487 => Outcome::Unanswered,
            400..=499 | 604..=699 => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls offered to us.
    pub offered: u64,
    /// Calls answered.
    pub answered: u64,
    /// Calls that were answered and have ended.
    pub completed: u64,
    /// Calls that the caller gave up.
    pub cancelled: u64,
    /// Calls that the called user declined.
    pub declined: u64,
    /// Calls that nobody answered.
    pub unanswered: u64,
    /// Calls refused, by us or by the target (4xx, 6xx).
    pub refused: u64,
    /// Calls redirected.
    pub redirected: u64,
    /// Calls that failed (5xx).
    pub failed: u64,
    /// Calls ended because their media had stopped.
    pub media_timeouts: u64,
    /// Calls or media lines refused for want of a port.
    pub ports_exhausted: u64,
    /// Pairs of media ports that somebody else held, wholly or by half, and that calls have replaced.
    pub ports_taken: u64,
    /// Media sessions of which the final figures came.
    pub media_sessions_ended: u64,
    /// Requests outside of calls that were passed on.
    pub relayed: u64,
    /// Calls and registrations refused because more came than the rates let in.
    pub shielded: u64,
    /// Requests whose credentials were wrong, or not judged after too many of these.
    pub authentication_failed: u64,
    /// Requests refused because those before them waited too long.
    pub shed: u64,
    /// New calls dropped unread because even their refusals were too many.
    pub unread: u64,
    /// Calls refused because the machine had no room for them.
    pub not_admitted: u64,
    /// REGISTERs of phones that the core had taken before, answered without it.
    pub refreshed: u64,
    /// Wrong PINs that were dialled for conferences.
    pub pins_wrong: u64,
    /// Calls to conferences that ended because the right PIN was not given.
    pub pins_refused: u64,
    /// Subscriptions, and REFERs outside of calls, that the other side has accepted.
    pub subscriptions: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Declined => &mut self.declined,
            Outcome::Unanswered => &mut self.unanswered,
            Outcome::Refused => &mut self.refused,
            Outcome::Redirected => &mut self.redirected,
            Outcome::Failed => &mut self.failed,
        } += 1;
    }
}

/// How much of everything the border holds: what tests watch for leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BorderCensus {
    /// The endpoint's.
    pub sip: sip::Census,
    /// Calls.
    pub calls: usize,
    /// Lookups of names.
    pub lookups: usize,
    /// Requests outside of calls that wait for their answers.
    pub outside: usize,
    /// Subscriptions that pass through.
    pub subscriptions: usize,
    /// Participants of conferences.
    pub seats: usize,
    /// Pairs of media ports that calls hold.
    pub ports: usize,
    /// Sessions in the forwarder.
    pub sessions: usize,
    /// Media sockets that calls hold.
    pub sockets_busy: usize,
    /// Media sockets that are open, those that wait for the next call included.
    pub sockets_open: usize,
    /// Calls whose media goes through media nodes, and commands about calls that wait for replies.
    pub at_nodes: usize,
    /// Timers of calls.
    pub timers: usize,
    /// Memory that calls were admitted for, KiB.
    pub admitted: u64,
    /// Processor time that calls were admitted for, microseconds in each second.
    pub working: u64,
    /// Calls counted on trunks.
    pub trunk_calls: u64,
    /// Transfers with calls of several workers, and dialogs that another worker continues than the one that began them; of all
    /// workers.
    pub moved: usize,
    /// Registered users; of several workers, those of all.
    pub registrations: usize,
}

impl BorderCensus {
    /// Whether no call, and nothing that belongs to one, is left.
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
    /// Its number.
    pub number: u64,
    /// How far it has come.
    pub phase: Phase,
    /// Call-IDs of the caller's and the callee's leg, where there are such.
    pub call_ids: [Option<String>; 2],
    /// Names of the interfaces.
    pub interfaces: [String; 2],
    /// Names of the trunks.
    pub trunks: [Option<String>; 2],
    /// When it was offered.
    pub offered_at: Time,
    /// When it was answered.
    pub answered_at: Option<Time>,
    /// Whether its media goes through us, or a media node of ours.
    pub anchored: bool,
    /// Values that header rules keep with it.
    pub tags: Vec<(String, String)>,
}

impl Border {
    /// How much is held.
    pub fn census(&self) -> BorderCensus {
        let core = &self.core;
        BorderCensus {
            sip: self.endpoint.census(),
            calls: core.calls.len(),
            lookups: core.names.waiting(),
            outside: core.asked.len(),
            subscriptions: core.subscriptions.len(),
            seats: core.conferences.seats(),
            ports: core.plane.ports_in_use(),
            sessions: core.plane.sessions,
            sockets_busy: core.plane.sockets.busy(),
            sockets_open: core.plane.sockets.open(),
            at_nodes: core.nodes.relays + core.nodes.waiting(),
            // Those of registrations of ours are no calls'.
            timers: core.timers.len().saturating_sub(core.kept.len()),
            admitted: core.admitted.taken().memory,
            working: core.admitted.taken().processor,
            trunk_calls: core.trunk_calls(),
            moved: core.open_transfers() + self.endpoint.moved(),
            registrations: core.location.len(),
        }
    }

    /// What calls, registrations and handshakes take of the machine, by what for.
    pub fn taken(&mut self, now: Time) -> [(Part, Cost); Part::ALL.len()] {
        self.core.taken(now)
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// The calls at present, in order of their numbers.
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
