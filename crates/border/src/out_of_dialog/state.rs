//! Out-of-dialog requests and subscriptions in progress.

use crate::calls::challenge::ChallengedLeg;
use crate::carrier::Registration;
use crate::index_remap::IndexRemap;
use crate::policy::HopStep;
use crate::registrar::Passing;
use crate::request::RequestOrigin;
use crate::shared::{Alarm, Ctx};
use crate::trunks::Ping;
use config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::timers::TimerKey;
use sip::{DialogId, Flow, ServerTransaction, TransactionId};
use slab::Slab;
use wire::sip::Message;

/// Maximum number of forwarded requests that await a response.
pub(super) const MAX_PENDING_REQUESTS: usize = 100_000;

/// An out-of-dialog request sent by us.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(super) serial: u32,
    pub(super) what: PendingKind,
}

/// Out-of-dialog requests and subscriptions in progress.
#[derive(Debug, Default)]
pub(crate) struct OutOfDialog {
    /// Requests that await a response.
    pub(crate) pending: Slab<PendingRequest>,
    pub(crate) subscriptions: Slab<Subscription>,
    pub(super) serial: u32,
}

impl OutOfDialog {
    pub(super) fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}

#[derive(Debug)]
pub(super) enum PendingKind {
    Ping(Ping),
    Relay(Box<RequestRelay>),
    Register(Box<ForwardedRegister>),
    /// A request within a subscription.
    InDialog(ForwardedRequest),
    /// A registration of ours: its trunk, and its serial number.
    Carrier(TrunkId, u32),
}

/// A forwarded request.
#[derive(Debug)]
pub(crate) struct RequestRelay {
    pub(super) server: ServerTransaction,
    /// Flow of the received request.
    pub(super) source_flow: Flow,
    /// Whether that side is trusted with identities, and its authenticated user.
    pub(super) trusted: bool,
    pub(super) user: Option<Box<str>>,
    pub(super) request: Box<[u8]>,
    pub(super) hops: Vec<HopStep>,
    pub(super) next: usize,
    /// The request at the last hop.
    pub(super) sent: Option<TransactionId>,
    /// Timeout of its first response, if there is another hop.
    pub(super) timer: Option<TimerKey>,
    /// The challenged request that this one repeats with credentials.
    pub(super) repeats: Option<ChallengedLeg>,
    /// Subscription that is created if the request is accepted.
    pub(super) subscription: Option<u64>,
}

/// A request that waits for name resolution.
#[derive(Debug)]
pub(crate) enum DeferredRequest {
    Ping(Ping),
    Relay(Box<RequestRelay>),
    Carrier(Box<Registration>),
    Register(Box<DeferredRegister>),
}

/// A REGISTER that waits for the name resolution of its core.
#[derive(Debug)]
pub(crate) struct DeferredRegister {
    pub(super) server: ServerTransaction,
    pub(super) request: Box<[u8]>,
    pub(super) origin: RequestOrigin,
    pub(super) trunk: TrunkId,
    pub(super) flow: Flow,
}

/// A forwarded REGISTER.
#[derive(Debug)]
pub(super) struct ForwardedRegister {
    pub(super) server: ServerTransaction,
    /// Flow of the received request.
    pub(super) source_flow: Flow,
    pub(super) passing: Passing,
}

impl DeferredRequest {
    /// Applies the new interface and trunk indices after a reload. Returns `false` if the request is obsolete.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) -> bool {
        match self {
            // The new configuration starts its own pings and registrations.
            DeferredRequest::Ping(_) | DeferredRequest::Carrier(_) => false,
            DeferredRequest::Relay(relay) => {
                renamed.steps(&mut relay.hops);
                true
            }
            DeferredRequest::Register(waiting) => {
                waiting.origin.interface = renamed.interface(waiting.origin.interface);
                waiting.origin.trunk = waiting.origin.trunk.and_then(|trunk| renamed.trunk(trunk));
                waiting.trunk = renamed.trunk(waiting.trunk).unwrap_or(TrunkId(u16::MAX));
                true
            }
        }
    }
}

impl OutOfDialog {
    /// Stores a sent request. Returns the identifier that its response will carry.
    pub(super) fn store_pending(&mut self, what: PendingKind) -> Option<u64> {
        if self.pending.len() >= MAX_PENDING_REQUESTS {
            return None;
        }
        let serial = self.next_serial();
        let index = self.pending.insert(PendingRequest { serial, what });
        Some((u64::from(serial) << 32) | (index as u64 + 1))
    }

    pub(super) fn take_pending(&mut self, user: u64) -> Option<PendingKind> {
        let index = (user & 0xffff_ffff).checked_sub(1)? as usize;
        let pending = self.pending.get(index)?;
        if u64::from(pending.serial) != user >> 32 {
            return None;
        }
        self.pending.try_remove(index).map(|pending| pending.what)
    }

    /// The forwarded request that was sent with this identifier.
    pub(super) fn relay_mut(&mut self, user: u64) -> Option<&mut RequestRelay> {
        let index = (user & 0xffff_ffff).checked_sub(1)? as usize;
        let pending = self.pending.get_mut(index)?;
        match &mut pending.what {
            PendingKind::Relay(relay) if u64::from(pending.serial) == user >> 32 => Some(relay),
            _ => None,
        }
    }

    /// Stores a request within a subscription. Returns the identifier that its response will carry.
    pub(crate) fn store_subscription_request(&mut self, passed: ForwardedRequest) -> Option<u64> {
        self.store_pending(PendingKind::InDialog(passed))
    }

    /// Removes a request that could not be sent.
    pub(crate) fn remove_pending(&mut self, user: u64) {
        self.take_pending(user);
    }
}

/// Two coupled dialogs: of the subscriber and of the notifier.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(super) serial: u32,
    pub(super) dialogs: [Option<DialogId>; 2],
    pub(super) interfaces: [InterfaceId; 2],
    pub(super) trunks: [Option<TrunkId>; 2],
    /// Whether the last request of a side within the subscription was challenged by the other one.
    pub(super) challenged: [bool; 2],
    pub(super) timer: Option<TimerKey>,
}

/// A forwarded request within a subscription.
#[derive(Debug)]
pub(crate) struct ForwardedRequest {
    pub(super) server: ServerTransaction,
    /// Flow of the received request.
    pub(super) source_flow: Flow,
    pub(super) key: u64,
    /// Side of its sender.
    pub(super) from: usize,
    /// The received request, if its credentials were forwarded.
    pub(super) request: Option<Box<[u8]>>,
    /// Whether the request before it was challenged.
    pub(super) challenged: bool,
    /// Whether the border answers challenges of the receiver with credentials of its own.
    pub(super) own_login: bool,
    pub(super) subscribes: bool,
    /// Whether the subscription ends with this request.
    pub(super) last: bool,
}

/// Longest lifetime of a subscription in seconds.
pub(super) const LONGEST: u32 = 7 * 86_400;

/// Time for which an expired subscription is kept for messages in transit: 64*T1.
pub(super) const LINGER: Duration = Duration::from_secs(33);

impl OutOfDialog {
    pub(super) fn subscription(&mut self, key: u64) -> Option<&mut Subscription> {
        let index = (key & 0xffff_ffff).checked_sub(1)? as usize;
        let subscription = self.subscriptions.get_mut(index)?;
        (u64::from(subscription.serial) == key >> 32).then_some(subscription)
    }

    /// A 2xx states the lifetime of a subscription.
    pub(super) fn subscription_granted(&mut self, ctx: &mut Ctx, key: u64, response: &Message<'_>) {
        if let Ok(seconds) = response.expires() {
            self.subscription_lasts(ctx, key, seconds);
        }
    }

    pub(super) fn subscription_lasts(&mut self, ctx: &mut Ctx, key: u64, seconds: u32) {
        let now = ctx.now;
        let span = Duration::from_secs(u64::from(seconds.min(LONGEST)));
        let alarm = Alarm::Subscription(key);
        let timer = ctx.timers.schedule(now + span + LINGER, alarm);
        let old = match self.subscription(key) {
            Some(subscription) => subscription.timer.replace(timer),
            None => Some(timer),
        };
        if let Some(old) = old {
            ctx.timers.cancel(old);
        }
    }

    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn remap_subscriptions(&mut self, renamed: &IndexRemap) {
        for (_, subscription) in &mut self.subscriptions {
            for interface in &mut subscription.interfaces {
                *interface = renamed.interface(*interface);
            }
            for trunk in &mut subscription.trunks {
                *trunk = trunk.and_then(|trunk| renamed.trunk(trunk));
            }
        }
    }
}
