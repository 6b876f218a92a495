//! Out-of-dialog requests and subscriptions in progress.

use crate::calls::challenge::ChallengedLeg;
use crate::carrier::Registration;
use crate::index_remap::IndexRemap;
use crate::policy::{HopStep, StepTarget, TrunkTarget};
use crate::registrar::Passing;
use crate::shared::{Alarm, Ctx};
use crate::trunks::Ping;
use config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::PagedSlab;
use engine::Transport;
use engine::timers::TimerKey;
use sip::locate::ResolvedTarget;
use sip::{DialogId, Flow, ServerTransaction, TransactionId};
use std::collections::VecDeque;
use std::net::SocketAddr;
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
    pub(crate) pending: PagedSlab<PendingRequest>,
    pub(crate) subscriptions: PagedSlab<Subscription>,
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
    /// A ping, and the further addresses of its target.
    Ping(Ping, Addresses),
    Relay(Box<RequestRelay>),
    Register(Box<RegisterRelay>),
    /// A request within a subscription.
    InDialog(ForwardedRequest),
    Carrier(Box<CarrierAttempt>),
}

/// Addresses of a target that were not tried yet, in order.
pub(super) type Addresses = VecDeque<(SocketAddr, Transport)>;

/// The addresses of a located name, in order.
pub(super) fn addresses_of(targets: &[ResolvedTarget]) -> Addresses {
    let targets = targets.iter();
    targets
        .map(|target| (target.address, target.transport))
        .collect()
}

/// A REGISTER of ours, and the further addresses of its target.
#[derive(Debug)]
pub(super) struct CarrierAttempt {
    pub(super) registration: Registration,
    pub(super) addresses: Addresses,
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
    Register(Box<RegisterRelay>),
}

/// A REGISTER that is forwarded to the core.
#[derive(Debug)]
pub(crate) struct RegisterRelay {
    pub(super) server: ServerTransaction,
    /// Flow and interface of the received request.
    pub(super) source_flow: Flow,
    pub(super) interface: InterfaceId,
    /// The received request, after header rules.
    pub(super) request: Box<[u8]>,
    pub(super) trunk: TrunkId,
    /// Hops that were not tried yet.
    pub(super) hops: VecDeque<CoreHop>,
    /// Index of the target of the current hop.
    pub(super) target: usize,
    /// The REGISTER that was sent to the current hop.
    pub(super) passing: Option<Passing>,
}

/// A destination of a forwarded REGISTER.
#[derive(Debug)]
pub(super) struct CoreHop {
    /// Index of the trunk's target.
    pub(super) target: usize,
    pub(super) place: StepTarget,
}

impl DeferredRequest {
    /// The target of a trunk whose name is resolved.
    pub(crate) fn named_target(&self) -> Option<(TrunkId, usize)> {
        match self {
            DeferredRequest::Ping(ping) => Some((ping.trunk, usize::from(ping.target))),
            DeferredRequest::Relay(relay) => {
                let current = relay.next.checked_sub(1)?;
                relay.hops.get(current)?.named_target()
            }
            DeferredRequest::Carrier(registration) => {
                Some((registration.trunk, registration.target))
            }
            DeferredRequest::Register(relay) => Some((relay.trunk, relay.target)),
        }
    }

    /// Applies the new interface and trunk indices after a reload. Returns `false` if the request is obsolete.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) -> bool {
        match self {
            // The new configuration starts its own pings and registrations.
            DeferredRequest::Ping(_) | DeferredRequest::Carrier(_) => false,
            DeferredRequest::Relay(relay) => {
                renamed.steps(&mut relay.hops);
                true
            }
            DeferredRequest::Register(relay) => {
                relay.rename(renamed);
                true
            }
        }
    }
}

impl RegisterRelay {
    /// Applies the new interface and trunk indices after a reload.
    pub(super) fn rename(&mut self, renamed: &IndexRemap) {
        self.interface = renamed.interface(self.interface);
        self.trunk = renamed.trunk(self.trunk).unwrap_or(TrunkId(u16::MAX));
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

    /// The same, unchanged.
    pub(super) fn relay(&self, user: u64) -> Option<&RequestRelay> {
        let index = (user & 0xffff_ffff).checked_sub(1)? as usize;
        let pending = self.pending.get(index)?;
        match &pending.what {
            PendingKind::Relay(relay) if u64::from(pending.serial) == user >> 32 => Some(relay),
            _ => None,
        }
    }

    /// The target of a trunk that a sent request went to.
    pub(crate) fn target_of(&self, user: u64) -> Option<TrunkTarget> {
        let index = (user & 0xffff_ffff).checked_sub(1)? as usize;
        let pending = self.pending.get(index)?;
        if u64::from(pending.serial) != user >> 32 {
            return None;
        }
        match &pending.what {
            PendingKind::Ping(ping, _) => Some((ping.trunk, ping.target)),
            PendingKind::Relay(relay) => relay.hops.get(relay.next.checked_sub(1)?)?.trunk_target(),
            PendingKind::Register(relay) => Some((relay.trunk, u16::try_from(relay.target).ok()?)),
            PendingKind::Carrier(attempt) => {
                let Registration { trunk, target, .. } = attempt.registration;
                Some((trunk, u16::try_from(target).ok()?))
            }
            PendingKind::InDialog(_) => None,
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

impl Subscription {
    /// Interface and trunk of a side.
    pub(super) fn location(&self, side: usize) -> Option<(InterfaceId, Option<TrunkId>)> {
        let interface = self.interfaces.get(side).copied()?;
        Some((interface, self.trunks.get(side).copied().flatten()))
    }
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
        for (_, subscription) in self.subscriptions.iter_mut() {
            for interface in &mut subscription.interfaces {
                *interface = renamed.interface(*interface);
            }
            for trunk in &mut subscription.trunks {
                *trunk = trunk.and_then(|trunk| renamed.trunk(trunk));
            }
        }
    }
}
