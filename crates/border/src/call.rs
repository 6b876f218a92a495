//! Calls: two legs, what couples them, and the plan that is being carried out.

pub(crate) mod challenged;
mod ending;
pub(crate) mod figures;
pub(crate) mod headers;
pub(crate) mod inside;
pub(crate) mod join;
pub(crate) mod offered;
pub(crate) mod outcome;
pub(crate) mod pass;
pub(crate) mod room;
pub(crate) mod try_next;

use crate::admission::Bill;
use crate::anchor::CallMedia;
use crate::config::{InterfaceId, TrunkId};
pub(crate) use crate::policy::{Place, Step};
use engine::Time;
use engine::timers::TimerKey;
use sip::{Fork, LegId, ServerTransaction, TransactionId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Which side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that called.
    Caller,
    /// The side that was called.
    Callee,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Caller, Side::Callee];

    /// The opposite side.
    pub const fn other(self) -> Side {
        match self {
            Side::Caller => Side::Callee,
            Side::Callee => Side::Caller,
        }
    }

    /// 0 for the caller, 1 for the callee.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// For events.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Caller => "caller",
            Side::Callee => "callee",
        }
    }
}

/// One value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides<T> {
    caller: T,
    callee: T,
}

impl<T> Sides<T> {
    pub(crate) const fn new(caller: T, callee: T) -> Sides<T> {
        Sides { caller, callee }
    }

    pub(crate) fn get(&self, side: Side) -> &T {
        match side {
            Side::Caller => &self.caller,
            Side::Callee => &self.callee,
        }
    }

    pub(crate) fn get_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Caller => &mut self.caller,
            Side::Callee => &mut self.callee,
        }
    }
}

/// Names a call: its slot and a number that tells it from those that had the slot before. It is the user's number of the
/// call's legs and the number of its media session; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey(pub(crate) u64);

impl CallKey {
    pub(crate) fn new(slot: usize, number: u64) -> CallKey {
        CallKey((number << 32) | (slot as u64 + 1))
    }

    /// The call's number, up to four thousand millions.
    pub(crate) fn number(self) -> u64 {
        self.0 >> 32
    }

    /// `None` for 0, which legs have that belong to no call.
    pub(crate) fn slot(self) -> Option<usize> {
        (self.0 & 0xffff_ffff)
            .checked_sub(1)
            .map(|slot| slot as usize)
    }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The called side has not answered.
    SetUp,
    /// The called side has answered; the caller has not acknowledged yet.
    Answered,
    /// Both sides talk.
    Confirmed,
    /// It ends; legs that are left are being closed.
    Ending,
}

/// A leg that is being called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    pub(crate) leg: LegId,
    /// Index into [`SetUp::hops`].
    pub(crate) hop: u16,
    /// A provisional response above 100 came.
    pub(crate) heard: bool,
    /// The call gave this branch up.
    pub(crate) cancelled: bool,
}

/// What is only needed until a call is answered.
#[derive(Debug)]
pub(crate) struct SetUp {
    /// The caller's INVITE as it came: template for every branch.
    pub(crate) invite: Box<[u8]>,
    /// Places to try, in order.
    pub(crate) hops: Vec<Step>,
    /// The next one to try.
    pub(crate) next: usize,
    /// Names that are being looked up.
    pub(crate) locating: u16,
    /// Hops that are called as soon as the media sockets are open.
    pub(crate) opening: SmallVec<[u16; 2]>,
    /// Legs that are being called.
    pub(crate) branches: SmallVec<[Branch; 1]>,
    /// Whether a provisional response went to the caller: after that no other hop is tried.
    pub(crate) progressed: bool,
    /// Whether the INVITE has an offer.
    pub(crate) offered: bool,
    /// Whether the caller takes reliable provisional responses.
    pub(crate) reliable: bool,
    /// An offer was answered in a reliable provisional response, in this early dialog.
    pub(crate) answered_by: Option<(LegId, Option<Fork>)>,
    /// The early dialog whose response went to the caller last.
    pub(crate) spoke: Option<(LegId, Fork)>,
    /// Reliable provisional responses that the caller has yet to acknowledge, in order.
    pub(crate) to_prack: VecDeque<(LegId, Fork)>,
    /// The final response to give when nothing else is left.
    pub(crate) best: Best,
    /// Max-Breadth of the INVITE (RFC 5393 section 5), and what each of the hops gets that are called at present.
    pub(crate) breadth: Option<u16>,
    pub(crate) share: Option<u16>,
    /// Name of the route that decided.
    pub(crate) route: Box<str>,
    /// Whether media goes through us.
    pub(crate) anchor: bool,
    /// The user that the caller proved to be.
    pub(crate) user: Option<Box<str>>,
    /// From where the INVITE came.
    pub(crate) source: SocketAddr,
    /// Ends the ringing.
    pub(crate) ring_timer: Option<TimerKey>,
    /// Ends the wait for a hop's first response.
    pub(crate) answer_timer: Option<TimerKey>,
}

impl SetUp {
    /// Whether something is under way that may still be answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.locating > 0
            || !self.opening.is_empty()
            || self.branches.iter().any(|branch| !branch.cancelled)
    }

    /// The early dialog to which the caller's requests belong: towards the caller there is one alone, which is that whose
    /// answer it has (RFC 3311 section 5.1), else that of which it heard last. A branch that was given up is none.
    pub(crate) fn dialog_of_caller(&self) -> Option<(LegId, Option<Fork>)> {
        let lives = |leg: LegId| {
            let mut branches = self.branches.iter();
            branches.any(|branch| branch.leg == leg && !branch.cancelled)
        };
        let answered = self.answered_by.filter(|(leg, _)| lives(*leg));
        let spoke = self.spoke.filter(|(leg, _)| lives(*leg));
        answered.or(spoke.map(|(leg, fork)| (leg, Some(fork))))
    }

    /// Whether a called leg's description was given to the caller reliably: no other leg can be called then.
    pub(crate) fn answered_reliably(&self) -> bool {
        self.answered_by.is_some()
    }
}

/// The best final response so far (RFC 3261 section 16.7 step 6).
#[derive(Debug, Default)]
pub(crate) struct Best {
    /// Its status; 0 where there is none.
    pub(crate) status: u16,
    /// The response as it came, where there was one.
    pub(crate) message: Option<Box<[u8]>>,
    /// Why, for the event.
    pub(crate) why: &'static str,
}

impl Best {
    /// Lower classes are better, but 6xx beats all; within 4xx those that say how to try again are better.
    fn rank(status: u16) -> u32 {
        match status {
            0 => u32::MAX,
            600..=699 => 0,
            401 | 407 | 415 | 420 | 484 => 4_000,
            503 => 5_999,
            408 => 4_999,
            _ => u32::from(status / 100) * 1_000 + 500,
        }
    }

    /// Keeps the better one of what is here and `status`.
    pub(crate) fn offer(&mut self, status: u16, message: Option<&[u8]>, why: &'static str) {
        if Best::rank(status) < Best::rank(self.status) {
            *self = Best {
                status,
                message: message.map(Box::from),
                why,
            };
        }
    }
}

/// A request of one side that was passed to the other and is not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Who asked.
    pub(crate) from: Side,
    /// What is to be answered.
    pub(crate) server: ServerTransaction,
    /// What was sent on.
    pub(crate) client: TransactionId,
    /// What kind of request.
    pub(crate) kind: LinkKind,
    /// Whether it has an offer.
    pub(crate) offer: bool,
}

/// Kinds of requests that are treated differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// re-INVITE
    Invite,
    /// UPDATE
    Update,
    /// PRACK
    Prack,
    /// Anything else.
    Other,
}

/// A request with an offer that passes as soon as the media sockets are open.
#[derive(Debug)]
pub(crate) struct Held {
    /// Who asked.
    pub(crate) from: Side,
    /// To which leg it passes.
    pub(crate) to: LegId,
    /// What is to be answered.
    pub(crate) server: ServerTransaction,
    /// The request as it came.
    pub(crate) request: Box<[u8]>,
}

/// A request that changes the session before the other side has acknowledged it.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    pub(crate) leg: LegId,
    pub(crate) server: ServerTransaction,
    /// The request, as header rules have left it.
    pub(crate) request: Box<[u8]>,
}

/// Requests in flight inside one call at most; more are answered 503.
pub(crate) const MAX_LINKS: usize = 16;

/// A call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Counts the calls of this border; for events and logs.
    pub(crate) number: u64,
    pub(crate) phase: Phase,
    /// The legs; the callee's is set when it has answered.
    pub(crate) legs: Sides<Option<LegId>>,
    pub(crate) interfaces: Sides<InterfaceId>,
    pub(crate) trunks: Sides<Option<TrunkId>>,
    pub(crate) set_up: Option<Box<SetUp>>,
    pub(crate) media: Option<Box<CallMedia>>,
    /// What it has at a media node, where its media goes through one.
    pub(crate) relay: Option<Box<crate::nodes::relay::Relay>>,
    pub(crate) links: Vec<Link>,
    pub(crate) held: Option<Box<Held>>,
    pub(crate) join: Option<Box<join::Join>>,
    /// The side whose 2xx the other side has yet to acknowledge; until then neither may change the session.
    pub(crate) ack_due: Option<Side>,
    /// That 2xx has our ACK: only one that brings an answer has to come from the other side.
    pub(crate) ack_sent: bool,
    /// A request of the side that has our ACK, which waits for the other side's.
    pub(crate) early_request: Option<Box<EarlyRequest>>,
    /// What it was admitted for.
    pub(crate) bill: Bill,
    /// That its speech is transcoded is in the bill.
    pub(crate) transcoded: bool,
    /// Hash of the Request-URI sent to the callee: an INVITE of ours that comes back with it has looped.
    pub(crate) mark: u64,
    pub(crate) offered_at: Time,
    pub(crate) answered_at: Option<Time>,
    /// Who ended it, and why, for the event.
    pub(crate) end: Option<(&'static str, &'static str)>,
    /// Values that header rules keep with it.
    pub(crate) tags: crate::rules::Tags,
    /// The status for the event.
    pub(crate) status: u16,
    /// Its outcome is among the counters.
    pub(crate) counted: bool,
    /// Its end was told.
    pub(crate) end_told: bool,
    /// Its seat in a conference of ours, which is the other side then.
    pub(crate) seat: Option<Box<room::Seat>>,
    /// P-Charging-Vector of the trusted side, for what comes from the other one.
    pub(crate) charging: Option<Box<[u8]>>,
}

impl Call {
    /// The side to which `leg` belongs; legs that are still being called belong to the callee's side.
    pub(crate) fn side_of(&self, leg: LegId) -> Option<Side> {
        if *self.legs.get(Side::Caller) == Some(leg) {
            return Some(Side::Caller);
        }
        if *self.legs.get(Side::Callee) == Some(leg) {
            return Some(Side::Callee);
        }
        let branches = self.set_up.as_ref().map(|set_up| &set_up.branches)?;
        branches
            .iter()
            .any(|branch| branch.leg == leg)
            .then_some(Side::Callee)
    }

    pub(crate) fn leg(&self, side: Side) -> Option<LegId> {
        *self.legs.get(side)
    }

    /// Whether every leg is gone.
    pub(crate) fn is_over(&self) -> bool {
        Side::BOTH.iter().all(|&side| self.leg(side).is_none())
            && self
                .set_up
                .as_ref()
                .is_none_or(|set_up| set_up.branches.is_empty() && set_up.locating == 0)
            && self.join.as_ref().is_none_or(|join| join.legs_are_gone())
    }

    /// Takes out the link whose request was sent on as `client`.
    pub(crate) fn take_link(&mut self, client: TransactionId) -> Option<Link> {
        let at = self.links.iter().position(|link| link.client == client)?;
        let link = self.links.swap_remove(at);
        if self.links.is_empty() {
            // A standing call keeps no room for requests that may come.
            self.links = Vec::new();
        }
        Some(link)
    }
}
