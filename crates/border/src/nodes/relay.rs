//! What a call has at a media node, and the messages of it that wait for the node's word.

use super::NodeId;
use super::client::AskId;
use super::failure::Failing;
use super::origin::Origin;
use crate::anchor::AnchorError;
use crate::anchor::protected::Profile;
use crate::call::Side;
use engine::timers::TimerKey;
use sip::{Fork, Indication, LegId, ServerTransaction};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::ng::Value;
use wire::sip::Message;

/// Messages of one call that wait at most.
pub(super) const MAX_WAITING: usize = 64;

/// A message that waits until the node has said something about it, or about one before it.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(super) kind: WaitingKind,
    pub(super) leg: LegId,
    pub(super) bytes: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WaitingKind {
    Progressed(Option<Fork>, bool),
    Answered,
    Acked,
    Pracked(ServerTransaction),
    Request(ServerTransaction),
    Response(sip::TransactionId),
}

impl Waiting {
    /// An indication that carries a message of a leg; others never wait.
    pub(super) fn of(indication: &Indication<'_>) -> Option<Waiting> {
        let (kind, leg, message): (_, LegId, &Message<'_>) = match *indication {
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => (WaitingKind::Progressed(fork, reliable), leg, response),
            Indication::Answered { leg, response } => (WaitingKind::Answered, leg, response),
            Indication::Acked { leg, request } => (WaitingKind::Acked, leg, request),
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => (WaitingKind::Pracked(transaction), leg, request),
            Indication::Request {
                leg,
                transaction,
                request,
            } => (WaitingKind::Request(transaction), leg, request),
            Indication::Response {
                leg,
                transaction,
                response,
            } => (WaitingKind::Response(transaction), leg, response),
            _ => return None,
        };
        Some(Waiting {
            kind,
            leg,
            bytes: message.bytes().into(),
        })
    }

    /// The leg of an indication that may have to wait.
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

    /// The indication once more.
    pub(super) fn indication<'m>(&self, message: &'m Message<'m>) -> Indication<'m> {
        let leg = self.leg;
        match self.kind {
            WaitingKind::Progressed(fork, reliable) => Indication::Progressed {
                leg,
                fork,
                response: message,
                reliable,
            },
            WaitingKind::Answered => Indication::Answered {
                leg,
                response: message,
            },
            WaitingKind::Acked => Indication::Acked {
                leg,
                request: message,
            },
            WaitingKind::Pracked(transaction) => Indication::Pracked {
                leg,
                transaction,
                request: message,
            },
            WaitingKind::Request(transaction) => Indication::Request {
                leg,
                transaction,
                request: message,
            },
            WaitingKind::Response(transaction) => Indication::Response {
                leg,
                transaction,
                response: message,
            },
        }
    }
}

/// A description that the node is being asked about.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) id: AskId,
    /// It is the INVITE's own, in these terms; else the first message's that waits.
    pub(super) first: Option<Value>,
}

/// What the node made of the INVITE's offer.
#[derive(Debug)]
pub(super) struct First {
    pub(super) terms: Value,
    pub(super) sdp: Vec<u8>,
}

/// An answer, as it came and as it goes on; whose it was.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) from: Side,
    pub(super) came: Box<[u8]>,
    pub(super) goes: Box<[u8]>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The call's name at nodes.
    pub(super) call_id: String,
    pub(super) node: Option<NodeId>,
    /// Nodes that did not take it.
    pub(super) tried: SmallVec<[NodeId; 2]>,
    /// The node has taken a description.
    pub(super) established: bool,
    /// Who offered first.
    pub(super) began: Side,
    pub(super) asking: Option<Asking>,
    /// Why nothing can come of the INVITE's offer.
    pub(super) failed: Option<AnchorError>,
    pub(super) first: Option<First>,
    /// A hop waits for the node's word.
    pub(crate) holds: bool,
    pub(super) queue: VecDeque<Waiting>,
    /// For the first message that waits.
    pub(super) result: Option<Result<Vec<u8>, AnchorError>>,
    /// Whose offer waits for its answer.
    pub(crate) open: Option<Side>,
    pub(super) last_answer: Option<Known>,
    /// The profile of each side's first line of RTP, as it said last.
    pub(super) profiles: [Option<Profile>; 2],
    pub(super) look: Option<TimerKey>,
    /// Its node has failed.
    pub(super) failing: Option<Box<Failing>>,
    /// It is not at its first node any more.
    pub(super) moved: bool,
    /// Sides whose last description lets nothing come to them: they have put the other one on hold.
    pub(super) holding: [bool; 2],
    /// The origin that each side was told last.
    pub(super) origins: [Option<Box<Origin>>; 2],
}

impl Relay {
    pub(crate) fn new(call_id: String) -> Relay {
        Relay {
            call_id,
            node: None,
            tried: SmallVec::new(),
            established: false,
            began: Side::Caller,
            asking: None,
            failed: None,
            first: None,
            holds: false,
            queue: VecDeque::new(),
            result: None,
            open: None,
            last_answer: None,
            profiles: [None; 2],
            look: None,
            failing: None,
            moved: false,
            holding: [false; 2],
            origins: [None, None],
        }
    }

    /// What only the set-up needed.
    pub(crate) fn forget_set_up(&mut self) {
        self.first = None;
        self.last_answer = None;
    }

    /// A description for a side, with the origin that the side knows where the call has moved.
    pub(super) fn for_side(&mut self, to: Side, sdp: Vec<u8>) -> Vec<u8> {
        let known = self.origins.get_mut(to.index()).and_then(Option::as_mut);
        match known.filter(|_| self.moved) {
            Some(origin) => origin.follow(&sdp),
            None => {
                self.set_origin(to, Origin::of(&sdp).map(Box::new));
                sdp
            }
        }
    }

    pub(super) fn set_origin(&mut self, to: Side, origin: Option<Box<Origin>>) {
        if let Some(known) = self.origins.get_mut(to.index()) {
            *known = origin;
        }
    }

    /// Whether messages have to wait.
    pub(super) fn is_busy(&self) -> bool {
        self.asking.is_some() || !self.queue.is_empty()
    }
}

/// How sides are called at nodes.
pub(super) fn tag(side: Side) -> &'static str {
    side.name()
}
