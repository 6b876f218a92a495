//! Calls: two legs, the state that couples them, and the plan of the set-up.

pub(crate) mod challenge;
pub(crate) mod conference;
mod dispatch;
pub(crate) mod ended;
pub(crate) mod ending;
pub(crate) mod in_dialog;
pub(crate) mod key;
pub(crate) mod media;
pub(crate) mod quality;
pub(crate) mod quality_intervals;
pub(crate) mod rated_line;
pub(crate) mod relay;
mod reservations;
mod routing;
pub mod saved;
pub(crate) mod setup;
pub(crate) mod table;
pub(crate) mod transfer;

use crate::admission::Reservation;
use crate::calls::conference::state::ParticipantState;
use crate::calls::ended::EndedBy;
use crate::calls::transfer::join::Join;
use crate::headers::has_credentials;
use crate::ng_client::relay::NodeRelay;
use crate::policy::{HopStep, TrunkTarget};
use crate::request::{PeerLocation, RequestOrigin};
use crate::responses::StatusLine;
use crate::rules::Tags;
use crate::shared::Alarm;
use anchor::{CallMedia, Side};
use config::{InterfaceId, TrunkId};
use engine::timers::{TimerKey, TimerWheel};
use engine::{Reason, Time};
use serde::{Deserialize, Serialize};
use sip::{Endpoint, Flow, Fork, LegId, ServerTransaction, TransactionId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use wire::sip::Message;

/// One value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Stage of a call, by the message that it awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallStage {
    /// The callee has not answered.
    ExpectAnswer,
    /// The callee has answered; the caller has not acknowledged yet.
    ExpectAck,
    /// The dialog of each side is confirmed.
    ExpectBye,
    /// The call has ended; its remaining legs are being closed.
    ExpectLegsClosed,
}

/// An outgoing leg that is not answered yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Branch {
    pub(crate) leg: LegId,
    /// Index into [`SetUp::hops`].
    pub(crate) hop: u16,
    /// Whether a provisional response above 100 was received.
    pub(crate) heard: bool,
    /// Whether the call has given up this branch.
    pub(crate) cancelled: bool,
}

/// State that is needed only until a call is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetUp {
    /// The received INVITE, template of each branch.
    pub(crate) invite: Box<[u8]>,
    /// Hops to try, in order.
    pub(crate) hops: Vec<HopStep>,
    /// Index of the next hop.
    pub(crate) next: usize,
    /// Number of pending name lookups.
    pub(crate) locating: u16,
    /// Hops to call when the media sockets are open.
    pub(crate) opening: SmallVec<[u16; 2]>,
    /// Legs that are being called.
    pub(crate) branches: SmallVec<[Branch; 1]>,
    /// Whether the INVITE has an offer.
    pub(crate) offered: bool,
    pub(crate) early: EarlyDialogs,
    /// The best final response so far.
    pub(crate) best: Best,
    pub(crate) breadth: ForkingBreadth,
    /// Name of the route.
    pub(crate) route: Box<str>,
    /// Whether media is anchored.
    pub(crate) anchor: bool,
    /// The authenticated user of the caller.
    pub(crate) user: Option<Box<str>>,
    /// Origin of the INVITE.
    pub(crate) source: SocketAddr,
    /// A peer has challenged the same INVITE before: it authenticates the call.
    pub(crate) was_challenged: bool,
    pub(crate) timers: SetUpTimers,
}

/// Early dialogs of a call, and the provisional responses that were sent to the caller.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct EarlyDialogs {
    /// Whether a provisional response was sent to the caller; no other hop is tried after that.
    pub(crate) progressed: bool,
    /// Whether the caller supports reliable provisional responses.
    pub(crate) reliable: bool,
    /// The early dialog in which an offer was answered by a reliable provisional response.
    pub(crate) answered_by: Option<(LegId, Option<Fork>)>,
    /// The early dialog of the last response to the caller.
    pub(crate) last_heard: Option<(LegId, Fork)>,
    /// The answer of that early dialog as the caller got it; empty if media is not anchored.
    pub(crate) answer: Box<[u8]>,
    /// Answers in reliable responses that the caller got unreliably.
    pub(crate) unconfirmed: Vec<UnconfirmedAnswer>,
    /// Reliable provisional responses of callees without a PRACK of the caller: the RSeq for the caller, and the early
    /// dialog.
    pub(crate) to_prack: VecDeque<(u32, LegId, Fork)>,
}

/// An answer in a reliable provisional response that the caller got unreliably, because it does not support reliable
/// ones. For the callee it is final, so that its 2xx may have none (RFC 3262 section 5); for the caller it is no answer
/// before the 2xx (RFC 3261 section 13.2.1).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnconfirmedAnswer {
    dialog: (LegId, Fork),
    /// The received response.
    pub(crate) response: Box<[u8]>,
    /// The SDP that the caller got.
    pub(crate) forwarded: Box<[u8]>,
}

/// Unconfirmed answers of one call, at most; the endpoint tracks fewer forks of an INVITE.
const MAX_UNCONFIRMED: usize = 32;

impl EarlyDialogs {
    /// Keeps an answer until the 2xx of its dialog, in place of an earlier one.
    pub(crate) fn keep_unconfirmed(
        &mut self,
        dialog: (LegId, Fork),
        response: &Message<'_>,
        forwarded: &[u8],
    ) {
        self.unconfirmed.retain(|answer| answer.dialog != dialog);
        if self.unconfirmed.len() < MAX_UNCONFIRMED {
            self.unconfirmed.push(UnconfirmedAnswer {
                dialog,
                response: response.bytes().into(),
                forwarded: forwarded.into(),
            });
        }
    }

    /// The unconfirmed answer of a dialog.
    pub(crate) fn unconfirmed_of(
        &self,
        (leg, fork): (LegId, Option<Fork>),
    ) -> Option<&UnconfirmedAnswer> {
        let dialog = (leg, fork?);
        let mut answers = self.unconfirmed.iter();
        answers.find(|answer| answer.dialog == dialog)
    }

    /// The unconfirmed answer of a dialog, which is being confirmed by its 2xx.
    pub(crate) fn take_unconfirmed(
        &mut self,
        (leg, fork): (LegId, Option<Fork>),
    ) -> Option<UnconfirmedAnswer> {
        let dialog = (leg, fork?);
        let mut answers = std::mem::take(&mut self.unconfirmed).into_iter();
        answers.find(|answer| answer.dialog == dialog)
    }

    /// Whether an offer was answered reliably, in another early dialog than this one.
    pub(crate) fn answered_by_another(&self, dialog: (LegId, Option<Fork>)) -> bool {
        self.answered_by.is_some_and(|answered| answered != dialog)
    }

    /// The index in `to_prack` of the response that a PRACK acknowledges (RFC 3262 section 3). The border may send more
    /// responses reliably than callees do, because some callers require it.
    pub(crate) fn acknowledged_by(&self, prack: &Message<'_>) -> Option<usize> {
        let rseq = prack.rack().ok()?.rseq;
        self.to_prack.iter().position(|sent| sent.0 == rseq)
    }
}

/// Limit of parallel forking (RFC 5393 section 5).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ForkingBreadth {
    /// Max-Breadth of the INVITE.
    pub(crate) limit: Option<u16>,
    /// The share of each hop that is being called.
    pub(crate) share: Option<u16>,
}

/// Timers of a set-up.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SetUpTimers {
    /// The ring timeout.
    pub(crate) ring: Option<TimerKey>,
    /// The answer timeout of a hop.
    pub(crate) answer: Option<TimerKey>,
}

impl SetUpTimers {
    /// Cancels both.
    pub(crate) fn cancel(&mut self, timers: &mut TimerWheel<Alarm>) {
        for timer in [self.ring.take(), self.answer.take()].into_iter().flatten() {
            timers.cancel(timer);
        }
    }
}

impl SetUp {
    /// Whether the INVITE of the caller has credentials.
    pub(crate) fn has_credentials(&self) -> bool {
        Message::parse(&self.invite).is_ok_and(|invite| has_credentials(&invite))
    }

    /// Whether a branch or lookup is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.locating > 0
            || !self.opening.is_empty()
            || self.branches.iter().any(|branch| !branch.cancelled)
    }

    /// The early dialog of requests from the caller. Towards the caller there is one early dialog: that of the answer
    /// it got (RFC 3311 section 5.1), otherwise that of the last response. Branches that were given up are excluded.
    pub(crate) fn dialog_of_caller(&self) -> Option<(LegId, Option<Fork>)> {
        let lives = |leg: LegId| {
            let mut branches = self.branches.iter();
            branches.any(|branch| branch.leg == leg && !branch.cancelled)
        };
        let answered = self.early.answered_by.filter(|(leg, _)| lives(*leg));
        let last = self.early.last_heard.filter(|(leg, _)| lives(*leg));
        answered.or(last.map(|(leg, fork)| (leg, Some(fork))))
    }

    /// Whether the SDP of a called leg was sent to the caller reliably; no other leg can be called after that.
    pub(crate) fn answered_reliably(&self) -> bool {
        self.early.answered_by.is_some()
    }
}

/// The best final response so far (RFC 3261 section 16.7 step 6).
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Best {
    /// Status; 0 if there is none.
    pub(crate) status: u16,
    /// The received response, if there was one.
    pub(crate) message: Option<Box<[u8]>>,
    /// Reason in the event.
    pub(crate) why: Option<Reason>,
    /// The reason phrase of the header rule that refused the call.
    pub(crate) phrase: Option<Box<str>>,
}

impl Best {
    /// Rank of a status: lower classes are better, but 6xx beats all; within 4xx, statuses that permit a retry are
    /// better.
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

    /// Keeps the better of this and `status`.
    pub(crate) fn offer(&mut self, status: u16, message: Option<&[u8]>, why: Reason) {
        if Best::rank(status) < Best::rank(self.status) {
            *self = Best {
                status,
                message: message.map(Box::from),
                why: Some(why),
                phrase: None,
            };
        }
    }

    /// The same for the refusal of a header rule.
    pub(crate) fn offer_refusal(&mut self, line: StatusLine) {
        if Best::rank(line.status) < Best::rank(self.status) {
            *self = Best {
                status: line.status,
                message: None,
                why: Some(Reason::RefusedByRule),
                phrase: line.reason,
            };
        }
    }
}

/// A forwarded request without a final response.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedLink {
    /// The side that sent it.
    pub(crate) from: Side,
    /// The transaction to answer.
    pub(crate) server: ServerTransaction,
    /// The transaction of the forwarded request.
    pub(crate) client: TransactionId,
    /// The kind of request.
    pub(crate) kind: LinkKind,
    /// Whether it has an offer.
    pub(crate) offer: bool,
}

/// Kinds of requests with different handling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LinkKind {
    /// re-INVITE
    Invite,
    /// UPDATE
    Update,
    /// PRACK
    Prack,
    /// Other requests.
    Other,
}

/// A request with an offer that waits for media sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QueuedRequest {
    /// The side that sent it.
    pub(crate) from: Side,
    /// The leg to forward it to.
    pub(crate) to: LegId,
    /// The transaction to answer.
    pub(crate) server: ServerTransaction,
    /// The received request.
    pub(crate) request: Box<[u8]>,
}

/// A request that changes the session before the other side has sent its ACK.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EarlyRequest {
    pub(crate) leg: LegId,
    pub(crate) server: ServerTransaction,
    /// The request after header rules.
    pub(crate) request: Box<[u8]>,
}

/// Maximum number of pending requests within a call; further ones are answered with 503.
pub(crate) const MAX_LINKS: usize = 16;

/// An admitted INVITE.
#[derive(Debug)]
pub(crate) struct NewCall<'c, 'm> {
    pub(crate) leg: LegId,
    /// The request after header rules.
    pub(crate) request: &'c Message<'m>,
    pub(crate) flow: Flow,
    pub(crate) origin: RequestOrigin,
    /// Values stored by header rules.
    pub(crate) tags: Tags,
    /// The authenticated user.
    pub(crate) user: Option<Box<str>>,
}

/// A P-Charging-Vector. Its own allocation, because few calls have one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChargingVector(pub(crate) Box<[u8]>);

/// The acknowledgement that a 2xx to INVITE waits for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PendingAck {
    /// The side whose 2xx is not acknowledged by the other side yet; until then neither side may change the session.
    pub(crate) due: Option<Side>,
    /// Whether we have acknowledged that 2xx: only an ACK with an answer must come from the other side.
    pub(crate) sent: bool,
    /// A request of the acknowledged side that waits for the ACK of the other side.
    pub(crate) request: Option<Box<EarlyRequest>>,
    /// The caller has another answer than that of the callee: both agree on a session after the ACK.
    pub(crate) renegotiates: bool,
}

/// Times, status and end of a call, for events and statistics.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallSummary {
    pub(crate) offered_at: Time,
    pub(crate) answered_at: Option<Time>,
    /// Status of the final response to the caller, 0 before it.
    pub(crate) status: u16,
    /// The side that ended the call, and the reason.
    pub(crate) end: Option<(EndedBy, Reason)>,
    /// The codec that the last answer has chosen; caller/callee where they differ.
    pub(crate) codec: Option<Box<str>>,
    /// Whether the statistics have counted it.
    pub(crate) counted: bool,
    /// Whether the end of the call was logged.
    pub(crate) logged: bool,
}

impl CallSummary {
    /// That of a call that was offered at this time.
    pub(crate) fn offered(now: Time) -> CallSummary {
        CallSummary {
            offered_at: now,
            answered_at: None,
            status: 0,
            end: None,
            codec: None,
            counted: false,
            logged: false,
        }
    }
}

/// Kind of a call: the system at the other side of the caller.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum CallKind {
    /// A callee.
    Bridged(Bridge),
    /// A conference, in which the call has a participant.
    Conference(Box<ParticipantState>),
    /// A conference whose participant was removed; the leg is being closed.
    LeftConference,
}

/// State of a call to a callee that exists at certain stages only.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bridge {
    /// Until all branches have their final responses.
    set_up: Option<Box<SetUp>>,
    /// While two legs are being connected.
    join: Option<Box<Join>>,
}

impl CallKind {
    /// A call to a callee that is being set up.
    pub(crate) fn hunting(set_up: SetUp) -> CallKind {
        CallKind::Bridged(Bridge {
            set_up: Some(Box::new(set_up)),
            join: None,
        })
    }

    fn bridge(&self) -> Option<&Bridge> {
        match self {
            CallKind::Bridged(bridge) => Some(bridge),
            CallKind::Conference(_) | CallKind::LeftConference => None,
        }
    }

    fn bridge_mut(&mut self) -> Option<&mut Bridge> {
        match self {
            CallKind::Bridged(bridge) => Some(bridge),
            CallKind::Conference(_) | CallKind::LeftConference => None,
        }
    }

    /// The state of the set-up.
    pub(crate) fn set_up(&self) -> Option<&SetUp> {
        self.bridge()?.set_up.as_deref()
    }

    pub(crate) fn set_up_mut(&mut self) -> Option<&mut SetUp> {
        self.bridge_mut()?.set_up.as_deref_mut()
    }

    pub(crate) fn take_set_up(&mut self) -> Option<Box<SetUp>> {
        self.bridge_mut()?.set_up.take()
    }

    /// Two legs that are being connected: transfer, refresh or move to another media node.
    pub(crate) fn join(&self) -> Option<&Join> {
        self.bridge()?.join.as_deref()
    }

    pub(crate) fn join_mut(&mut self) -> Option<&mut Join> {
        self.bridge_mut()?.join.as_deref_mut()
    }

    /// Begins to connect two legs. A call to a conference has one leg, so that there is nothing to connect.
    pub(crate) fn set_join(&mut self, join: Join) {
        if let Some(bridge) = self.bridge_mut() {
            bridge.join = Some(Box::new(join));
        }
    }

    pub(crate) fn take_join(&mut self) -> Option<Box<Join>> {
        self.bridge_mut()?.join.take()
    }

    /// The participant in a conference, which replaces the callee.
    pub(crate) fn participant(&self) -> Option<&ParticipantState> {
        match self {
            CallKind::Conference(participant) => Some(participant),
            CallKind::Bridged(_) | CallKind::LeftConference => None,
        }
    }

    pub(crate) fn participant_mut(&mut self) -> Option<&mut ParticipantState> {
        match self {
            CallKind::Conference(participant) => Some(participant),
            CallKind::Bridged(_) | CallKind::LeftConference => None,
        }
    }

    /// Takes the participant out of the call, for its removal from the conference.
    pub(crate) fn take_participant(&mut self) -> Option<Box<ParticipantState>> {
        match std::mem::replace(self, CallKind::LeftConference) {
            CallKind::Conference(participant) => Some(participant),
            kind => {
                *self = kind;
                None
            }
        }
    }
}

/// The system that anchors the media of a call.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) enum MediaAnchor {
    /// None: media bypass, or there is no offer yet.
    #[default]
    None,
    /// The forwarder of the border.
    Border(Box<CallMedia>),
    /// A media node.
    Node(Box<NodeRelay>),
}

impl MediaAnchor {
    /// Whether the media of the call is anchored.
    pub(crate) fn is_some(&self) -> bool {
        !matches!(self, MediaAnchor::None)
    }

    /// The media that the border anchors.
    pub(crate) fn anchored(&self) -> Option<&CallMedia> {
        match self {
            MediaAnchor::Border(media) => Some(media),
            MediaAnchor::None | MediaAnchor::Node(_) => None,
        }
    }

    pub(crate) fn anchored_mut(&mut self) -> Option<&mut CallMedia> {
        match self {
            MediaAnchor::Border(media) => Some(media),
            MediaAnchor::None | MediaAnchor::Node(_) => None,
        }
    }

    /// Takes the media out of the call, for its release.
    pub(crate) fn take_anchored(&mut self) -> Option<Box<CallMedia>> {
        match std::mem::take(self) {
            MediaAnchor::Border(media) => Some(media),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The state of the call at a media node.
    pub(crate) fn node(&self) -> Option<&NodeRelay> {
        match self {
            MediaAnchor::Node(relay) => Some(relay),
            MediaAnchor::None | MediaAnchor::Border(_) => None,
        }
    }

    pub(crate) fn node_mut(&mut self) -> Option<&mut NodeRelay> {
        match self {
            MediaAnchor::Node(relay) => Some(relay),
            MediaAnchor::None | MediaAnchor::Border(_) => None,
        }
    }

    /// Takes the state out of the call, for its release.
    pub(crate) fn take_node(&mut self) -> Option<Box<NodeRelay>> {
        match std::mem::take(self) {
            MediaAnchor::Node(relay) => Some(relay),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// In-dialog requests in progress.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct InDialogRequests {
    /// Forwarded requests without a final response.
    pub(crate) links: Vec<ForwardedLink>,
    /// A request with an offer that waits for media sockets.
    pub(crate) held: Option<Box<QueuedRequest>>,
    /// The acknowledgement of a 2xx to INVITE.
    pub(crate) ack: PendingAck,
}

/// Values for headers of forwarded messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallHeaders {
    /// Values stored by header rules.
    pub(crate) tags: Tags,
    /// P-Charging-Vector of the trusted side, for messages of the other one.
    pub(crate) charging: Option<Box<ChargingVector>>,
    /// Whether a redirect has led to a callee outside of its trunk, which is not trusted.
    pub(crate) foreign_callee: bool,
    /// The authenticated user of the caller, for header rules.
    pub(crate) user: Option<Box<str>>,
}

/// A call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    /// Number among the calls of this border; for events and logs.
    pub(crate) number: u64,
    pub(crate) stage: CallStage,
    pub(crate) kind: CallKind,
    /// The legs; that of the callee is set by its answer.
    pub(crate) legs: Sides<Option<LegId>>,
    pub(crate) interfaces: Sides<InterfaceId>,
    pub(crate) trunks: Sides<Option<TrunkId>>,
    /// Trunk of the target tried last.
    pub(crate) last_trunk: Option<TrunkId>,
    /// Hash of the Request-URI sent to the callee: an INVITE of ours that returns with it has looped.
    pub(crate) uri_hash: u64,
    pub(crate) media: MediaAnchor,
    pub(crate) requests: InDialogRequests,
    /// Capacity that admission control has reserved.
    pub(crate) reservation: Reservation,
    pub(crate) headers: CallHeaders,
    pub(crate) summary: CallSummary,
}

impl Call {
    /// The side of a leg; legs that are not answered yet belong to the callee's side.
    pub(crate) fn side_of(&self, leg: LegId) -> Option<Side> {
        if *self.legs.get(Side::Caller) == Some(leg) {
            return Some(Side::Caller);
        }
        if *self.legs.get(Side::Callee) == Some(leg) {
            return Some(Side::Callee);
        }
        self.has_branch(leg).then_some(Side::Callee)
    }

    /// Interface and trunk of the peer of a leg of `side`. Of several targets that are called at the same time, each
    /// has its own.
    pub(crate) fn location_of(&self, side: Side, leg: Option<LegId>) -> PeerLocation {
        let hop = self.kind.set_up().and_then(|set_up| {
            let mut branches = set_up.branches.iter();
            let branch = branches.find(|branch| Some(branch.leg) == leg)?;
            set_up.hops.get(usize::from(branch.hop))
        });
        match hop.filter(|_| side == Side::Callee) {
            Some(hop) => (hop.interface, hop.trunk),
            None => (*self.interfaces.get(side), *self.trunks.get(side)),
        }
    }

    /// The authenticated user of a side, for header rules; empty if there is none.
    pub(crate) fn user_of(&self, side: Side) -> &str {
        let user = self.headers.user.as_deref();
        user.filter(|_| side == Side::Caller).unwrap_or_default()
    }

    /// The target of a trunk that this leg calls, unless a redirect has led to it.
    pub(crate) fn trunk_target_of(&self, leg: LegId) -> Option<TrunkTarget> {
        if let Some(join) = self.kind.join().filter(|join| join.is_new(leg)) {
            return join.target_of_new();
        }
        let set_up = self.kind.set_up()?;
        let branch = set_up.branches.iter().find(|branch| branch.leg == leg)?;
        let hop = set_up.hops.get(usize::from(branch.hop))?;
        hop.trunk_target()
    }

    /// Whether a leg is a branch of the set-up.
    pub(crate) fn has_branch(&self, leg: LegId) -> bool {
        let branches = self.kind.set_up().map(|set_up| &set_up.branches);
        let mut branches = branches.into_iter().flatten();
        branches.any(|branch| branch.leg == leg)
    }

    /// Whether a transfer requested by this leg is in progress.
    pub(crate) fn is_referred_by(&self, leg: LegId) -> bool {
        let join = self.kind.join();
        join.and_then(Join::referrer) == Some(leg)
    }

    pub(crate) fn leg(&self, side: Side) -> Option<LegId> {
        *self.legs.get(side)
    }

    /// The peer's address of the connection of a side. A phone that has moved to another network continues the call on
    /// a new connection, and its media comes from the new address, too. Over UDP the address does not change during a
    /// call.
    pub(crate) fn address_of_connection(&self, endpoint: &Endpoint, side: Side) -> Option<IpAddr> {
        let flow = endpoint.flow_of(self.leg(side)?)?;
        flow.connection.map(|_| flow.remote.ip())
    }

    /// Whether all legs are gone.
    pub(crate) fn is_over(&self) -> bool {
        Side::BOTH.iter().all(|&side| self.leg(side).is_none())
            && self
                .kind
                .set_up()
                .is_none_or(|set_up| set_up.branches.is_empty() && set_up.locating == 0)
            && self.kind.join().is_none_or(Join::has_no_new_leg)
    }

    /// Removes the link whose forwarded request is `client`.
    pub(crate) fn take_link(&mut self, client: TransactionId) -> Option<ForwardedLink> {
        let links = &mut self.requests.links;
        let at = links.iter().position(|link| link.client == client)?;
        let link = links.swap_remove(at);
        if links.is_empty() {
            // Established calls keep no memory for future requests.
            *links = Vec::new();
        }
        Some(link)
    }
}
