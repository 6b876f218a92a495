//! Two legs that are being connected.

use crate::calls::key::CallKey;
use crate::index_remap::IndexRemap;
use crate::policy::{HopStep, StepTarget, TrunkTarget};
use crate::shared::Ctx;
use anchor::Side;
use config::{InterfaceId, TrunkId};
use engine::timers::TimerKey;
use serde::{Deserialize, Serialize};
use sip::{LegId, ServerTransaction, TransactionId};

/// Purpose of connecting two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// Refresh of the session of this side.
    Refresh,
    /// Move of the media of the call to another media node, or to another port of the border.
    Reanchor {
        /// Whether the other side was asked for an offer before, without success.
        swapped: bool,
    },
    /// Transfer: the new leg replaces the referrer.
    Transfer {
        /// The replaced leg.
        referrer: LegId,
        /// The call with the referrer that ends (attended transfer).
        consultation: Option<ConsultationCall>,
    },
    /// INVITE with Replaces: the new leg, which waits for its answer, replaces this one.
    Replace {
        /// The replaced leg.
        replaced: LegId,
    },
}

/// The consultation call of an attended transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConsultationCall {
    /// A call of this worker.
    Local(CallKey),
    /// A call of another worker, by the number of the transfer.
    Remote(u64),
}

/// The event that connecting two legs awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AwaitedStep {
    /// Another worker was asked for the new leg.
    Leg,
    /// The new leg is being called.
    Target,
    /// The description of a side was repeated to refresh its session; the other side is not involved.
    Confirmation,
    /// The offerer was asked for an offer.
    Offer,
    /// The offer was sent to the answerer.
    Answer,
    /// Glare: the re-INVITE with the offer is repeated after a delay.
    AnswerRetry,
    /// Glare: the offerer is asked again after a delay.
    OfferRetry,
}

/// Two legs that are being connected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) purpose: Purpose,
    pub(crate) stage: AwaitedStep,
    /// The side of the new leg (of a refresh: the refreshed side).
    pub(super) side: Side,
    /// The leg that is not part of the call yet.
    pub(super) new: Option<LegId>,
    /// The REFER that waits for the response of another worker.
    pub(super) refer_transaction: Option<ServerTransaction>,
    /// Deadline of that response.
    pub(super) response_timer: Option<TimerKey>,
    /// Our pending re-INVITE.
    pub(super) waiting: Option<TransactionId>,
    /// The offer for the answerer, while it may have to be repeated.
    pub(super) offer: Vec<u8>,
    pub(super) hops: Vec<HopStep>,
    pub(super) next: usize,
    /// Ring timeout of the target.
    pub(super) ring_timer: Option<TimerKey>,
    /// Headers of the transferred call.
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
    pub(super) referred_by: Vec<u8>,
    /// Replaces for the target: a dialog that the transferor's system has, and not we. Empty without one.
    pub(super) replaces: Vec<u8>,
    pub(super) hop: usize,
    /// The trunk that counts the new leg until it is part of the call.
    pub(super) on_trunk: Option<TrunkId>,
    pub(super) tries: u8,
}

impl Join {
    /// Whether the new leg is this one.
    pub(crate) fn is_new(&self, leg: LegId) -> bool {
        self.new == Some(leg)
    }

    /// The target of a trunk that the new leg calls.
    pub(crate) fn target_of_new(&self) -> Option<TrunkTarget> {
        self.hops.get(self.hop)?.trunk_target()
    }

    /// The target of a trunk whose name a hop has.
    pub(crate) fn named_target(&self, hop: usize) -> Option<(TrunkId, usize)> {
        self.hops.get(hop)?.named_target()
    }

    pub(super) fn new(purpose: Purpose, stage: AwaitedStep, side: Side) -> Join {
        Join {
            purpose,
            stage,
            side,
            new: None,
            refer_transaction: None,
            response_timer: None,
            waiting: None,
            offer: Vec::new(),
            hops: Vec::new(),
            next: 0,
            ring_timer: None,
            from: Vec::new(),
            to: Vec::new(),
            referred_by: Vec::new(),
            replaces: Vec::new(),
            hop: 0,
            on_trunk: None,
            tries: 0,
        }
    }

    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) {
        renamed.steps(&mut self.hops);
        self.on_trunk = self.on_trunk.and_then(|trunk| renamed.trunk(trunk));
    }

    /// The target has answered, or the transfer ends.
    pub(super) fn stop_ring_timer(&mut self, ctx: &mut Ctx) {
        if let Some(timer) = self.ring_timer.take() {
            ctx.timers.cancel(timer);
        }
    }

    /// The consultation call of an attended transfer.
    pub(super) fn consultation(&self) -> Option<ConsultationCall> {
        match self.purpose {
            Purpose::Transfer { consultation, .. } => consultation,
            _ => None,
        }
    }

    /// The leg that has requested a transfer.
    pub(crate) fn referrer(&self) -> Option<LegId> {
        match self.purpose {
            Purpose::Transfer { referrer, .. } => Some(referrer),
            _ => None,
        }
    }

    /// Legs of a transfer besides those of its call.
    pub(crate) fn legs(&self) -> impl Iterator<Item = LegId> {
        let lent = match self.purpose {
            Purpose::Transfer { referrer, .. } => Some(referrer),
            Purpose::Replace { replaced } => Some(replaced),
            Purpose::Refresh | Purpose::Reanchor { .. } => None,
        };
        self.new.into_iter().chain(lent)
    }

    /// Whether no leg exists in addition to the two of the call.
    pub(crate) fn has_no_new_leg(&self) -> bool {
        self.new.is_none()
    }
}

/// A step for an existing leg.
pub(crate) fn existing_leg_step(interface: InterfaceId, trunk: Option<TrunkId>) -> HopStep {
    HopStep {
        group: 0,
        interface,
        trunk,
        target: 0,
        label: String::new(),
        uri: Vec::new(),
        routes: Vec::new(),
        place: StepTarget::Address(
            std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
            engine::Transport::Udp,
        ),
        redirected: false,
        foreign: false,
        begins_contact: false,
    }
}
