//! State of a call at a media node, and its messages that are deferred until the node replies.

use crate::ng_client::NodeId;
use anchor::security::sdp::Profile;
use anchor::{AnchorError, Side};
use engine::Time;
use engine::timers::TimerKey;
use ng::client::CommandId;
use ng::origin::SdpOrigin;
use serde::{Deserialize, Serialize};
use sip::{Fork, Indication, LegId, ServerTransaction};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::ng::Value;
use wire::sip::Message;
/// Deferred messages per call at most.
pub(super) const MAX_DEFERRED: usize = 64;

/// A message that is deferred until the node replies to it, or to one before it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DeferredMessage {
    pub(super) kind: DeferredKind,
    pub(super) leg: LegId,
    pub(super) bytes: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum DeferredKind {
    Progressed(Option<Fork>, bool),
    Answered(Option<Fork>),
    Acked,
    Pracked(ServerTransaction),
    Request(ServerTransaction),
    Response(sip::TransactionId),
}

impl DeferredMessage {
    /// Copies an indication with a message of a leg; others are never deferred.
    pub(super) fn of(indication: &Indication<'_>) -> Option<DeferredMessage> {
        let (kind, leg, message): (_, LegId, &Message<'_>) = match *indication {
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => (DeferredKind::Progressed(fork, reliable), leg, response),
            Indication::Answered {
                leg,
                fork,
                response,
            } => (DeferredKind::Answered(fork), leg, response),
            Indication::Acked { leg, request } => (DeferredKind::Acked, leg, request),
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => (DeferredKind::Pracked(transaction), leg, request),
            Indication::Request {
                leg,
                transaction,
                request,
            } => (DeferredKind::Request(transaction), leg, request),
            Indication::Response {
                leg,
                transaction,
                response,
            } => (DeferredKind::Response(transaction), leg, response),
            _ => return None,
        };
        Some(DeferredMessage {
            kind,
            leg,
            bytes: message.bytes().into(),
        })
    }

    /// The leg of an indication that may be deferred.
    pub(super) fn leg_of(indication: &Indication<'_>) -> Option<LegId> {
        match *indication {
            Indication::Progressed { leg, .. }
            | Indication::Answered { leg, .. }
            | Indication::Acked { leg, .. }
            | Indication::Pracked { leg, .. }
            | Indication::Request { leg, .. }
            | Indication::Response { leg, .. } => Some(leg),
            _ => None,
        }
    }

    /// Restores the indication.
    pub(super) fn indication<'m>(&self, message: &'m Message<'m>) -> Indication<'m> {
        let leg = self.leg;
        match self.kind {
            DeferredKind::Progressed(fork, reliable) => Indication::Progressed {
                leg,
                fork,
                response: message,
                reliable,
            },
            DeferredKind::Answered(fork) => Indication::Answered {
                leg,
                fork,
                response: message,
            },
            DeferredKind::Acked => Indication::Acked {
                leg,
                request: message,
            },
            DeferredKind::Pracked(transaction) => Indication::Pracked {
                leg,
                transaction,
                request: message,
            },
            DeferredKind::Request(transaction) => Indication::Request {
                leg,
                transaction,
                request: message,
            },
            DeferredKind::Response(transaction) => Indication::Response {
                leg,
                transaction,
                response: message,
            },
        }
    }
}

/// A description that was sent to the node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PendingExchange {
    pub(super) id: CommandId,
    /// The options, if it is the INVITE's offer; otherwise it is that of the first deferred message.
    pub(super) first: Option<Value>,
}

/// The node's description for the INVITE's offer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OfferResult {
    pub(super) terms: Value,
    pub(super) sdp: Vec<u8>,
}

/// An answer as received and as forwarded, with its side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ForwardedAnswer {
    pub(super) from: Side,
    pub(super) received: Box<[u8]>,
    pub(super) forwarded: Box<[u8]>,
}

/// Failover of one call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failover {
    /// The failed node, and its name, which may leave the configuration in the meantime.
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) since: Time,
    /// The node answers, but does not have the call.
    pub(super) is_unknown: bool,
    /// Both sides had agreed on that node.
    pub(super) was_agreed: bool,
    /// The call has been removed from that node.
    pub(super) has_left: bool,
    /// Number of nodes that the call has left.
    pub(super) tries: u8,
    /// Renegotiations that failed for temporary reasons.
    pub(super) retries: u8,
}

/// See the module's documentation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeRelay {
    /// Call-ID at nodes.
    pub(super) call_id: String,
    pub(super) node: Option<NodeId>,
    /// Nodes that refused the call.
    pub(super) tried: SmallVec<[NodeId; 2]>,
    /// The node has accepted a description.
    pub(super) established: bool,
    /// The side that offered first.
    pub(super) first_offerer: Side,
    pub(super) pending: Option<PendingExchange>,
    /// Reason why the INVITE's offer has failed.
    pub(super) failure: Option<AnchorError>,
    pub(super) offer_result: Option<OfferResult>,
    /// A target is deferred until the node replies.
    pub(crate) defers_hop: bool,
    pub(super) queue: VecDeque<DeferredMessage>,
    /// The result for the first deferred message.
    pub(super) result: Option<Result<Vec<u8>, AnchorError>>,
    /// The side whose offer is open.
    pub(crate) open_offer: Option<Side>,
    pub(super) last_answer: Option<ForwardedAnswer>,
    /// Profile of each side's first RTP line in its last description.
    pub(super) profiles: [Option<Profile>; 2],
    pub(super) query_timer: Option<TimerKey>,
    /// Present while its node has failed.
    pub(super) failover: Option<Box<Failover>>,
    /// It has left its first node.
    pub(super) moved: bool,
    /// Sides that have put the other side on hold in their last description.
    pub(super) holding: [bool; 2],
    /// The last `o=` line sent to each side.
    pub(super) origins: [Option<Box<SdpOrigin>>; 2],
}

impl NodeRelay {
    /// The node that has the call, unless the call is being moved.
    pub(crate) fn established_node(&self) -> Option<NodeId> {
        self.node
            .filter(|_| self.established && self.failover.is_none())
    }

    pub(crate) fn new(call_id: String) -> NodeRelay {
        NodeRelay {
            call_id,
            node: None,
            tried: SmallVec::new(),
            established: false,
            first_offerer: Side::Caller,
            pending: None,
            failure: None,
            offer_result: None,
            defers_hop: false,
            queue: VecDeque::new(),
            result: None,
            open_offer: None,
            last_answer: None,
            profiles: [None; 2],
            query_timer: None,
            failover: None,
            moved: false,
            holding: [false; 2],
            origins: [None, None],
        }
    }

    /// Discards state that only the set-up needs.
    pub(crate) fn discard_set_up(&mut self) {
        self.offer_result = None;
        self.last_answer = None;
    }

    /// A description for a side, with the session that the side knows if the call has moved.
    pub(super) fn for_side(&mut self, to: Side, sdp: Vec<u8>) -> Vec<u8> {
        let existing = self.origins.get_mut(to.index()).and_then(Option::as_mut);
        match existing.filter(|_| self.moved) {
            Some(origin) => origin.rewrite(&sdp),
            None => {
                self.set_origin(to, SdpOrigin::of(&sdp).map(Box::new));
                sdp
            }
        }
    }

    pub(super) fn set_origin(&mut self, to: Side, origin: Option<Box<SdpOrigin>>) {
        if let Some(existing) = self.origins.get_mut(to.index()) {
            *existing = origin;
        }
    }

    /// Whether messages have to be deferred.
    pub(super) fn is_busy(&self) -> bool {
        self.pending.is_some() || !self.queue.is_empty()
    }
}

/// Tag of a side at nodes.
pub(super) fn tag(side: Side) -> &'static str {
    side.name()
}
