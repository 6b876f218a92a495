//! Subscriptions, and dialogs created by out-of-dialog REFER (RFC 6665, RFC 3515): two dialogs are coupled like the
//! legs of a call, with topology hiding. Requests and responses are passed unchanged, except the headers of the dialog.

use super::out_of_dialog::without_credentials;
use super::{Alarm, Core};
use crate::call::headers::address_with_host;
use crate::call::in_dialog::refuse;
use crate::call::relay::{hide_network, promised_end_to_end, warnings};
use crate::call::setup::{RequestOrigin, RequestRefusal};
use crate::identity::{Boundary, IdentityTexts};
use crate::operate::IndexRemap;
use crate::rules::EditList;
use ::rules::{Effects, MessageContext};
use config::{IdentityPassing, InterfaceId, InterfaceKind, TrunkId};
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use sip::{DialogId, Endpoint, Flow, Login, MessageContent, ServerTransaction};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, TokenValue};

/// Lifetime in seconds of a subscription without a stated expiry.
const UNSAID: u32 = 180;
/// Longest lifetime of a subscription in seconds.
const LONGEST: u32 = 7 * 86_400;
/// Time for which an expired subscription is kept for messages in transit: 64*T1.
const LINGER: Duration = Duration::from_secs(33);
/// States in the response to REFER that there is no subscription (RFC 4488).
const REFER_SUB: &[u8] = b"Refer-Sub";

/// Two coupled dialogs: of the subscriber and of the notifier.
#[derive(Debug)]
pub(crate) struct Subscription {
    serial: u32,
    dialogs: [Option<DialogId>; 2],
    interfaces: [InterfaceId; 2],
    trunks: [Option<TrunkId>; 2],
    timer: Option<TimerKey>,
}

/// A forwarded request within a subscription.
#[derive(Debug)]
pub(crate) struct ForwardedRequest {
    server: ServerTransaction,
    /// Flow of the received request.
    source_flow: Flow,
    key: u64,
    subscribes: bool,
    /// Whether the subscription ends with this request.
    last: bool,
}

/// Whether a final response ends the subscription of its request (RFC 6665 section 4.2.2, RFC 5057).
fn ends(status: u16) -> bool {
    matches!(status, 404 | 405 | 410 | 416 | 480..=485 | 489 | 501 | 604)
}

impl Core {
    /// Couples the dialog of the sender of `request` with a future one. Returns the key of both.
    ///
    /// # Errors
    /// The refusal of the request.
    pub(crate) fn subscription_asked(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        (origin, flow): (RequestOrigin, Flow),
        now: Time,
    ) -> Result<u64, RequestRefusal> {
        self.request_serial = self.request_serial.wrapping_add(1);
        let serial = self.request_serial;
        let index = self.subscriptions.insert(Subscription {
            serial,
            dialogs: [None; 2],
            interfaces: [origin.interface; 2],
            trunks: [origin.trunk, None],
            timer: None,
        });
        let key = (u64::from(serial) << 32) | (index as u64 + 1);
        // Phones behind NAT write unreachable addresses in Contact: they are reached on their flow.
        let access = self
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Access);
        match endpoint.open_dialog(transaction, request, flow, access, key) {
            Ok(dialog) => {
                if let Some(subscription) = self.subscriptions.get_mut(index) {
                    subscription.dialogs = [Some(dialog), None];
                }
                self.subscription_lasts(key, UNSAID, now);
                Ok(key)
            }
            Err(refused) => {
                self.subscriptions.try_remove(index);
                Err(match refused {
                    sip::Refused::Full => RequestRefusal::new(503, "too many subscriptions"),
                    _ => RequestRefusal::new(400, "no Contact"),
                })
            }
        }
    }

    fn subscription(&mut self, key: u64) -> Option<&mut Subscription> {
        let index = (key & 0xffff_ffff).checked_sub(1)? as usize;
        let subscription = self.subscriptions.get_mut(index)?;
        (u64::from(subscription.serial) == key >> 32).then_some(subscription)
    }

    /// The request was sent to the other side, in `dialog`.
    pub(crate) fn subscription_sent(
        &mut self,
        endpoint: &mut Endpoint,
        key: u64,
        dialog: DialogId,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) {
        let Some(subscription) = self.subscription(key) else {
            return endpoint.close_dialog(dialog);
        };
        let [source_flow, before] = subscription.dialogs;
        subscription.dialogs = [source_flow, Some(dialog)];
        subscription.interfaces[1] = interface;
        subscription.trunks[1] = trunk;
        if let Some(before) = before {
            endpoint.close_dialog(before);
        }
    }

    /// The final response of the other side was forwarded.
    pub(crate) fn subscription_answered(
        &mut self,
        endpoint: &mut Endpoint,
        key: u64,
        response: &Message<'_>,
        now: Time,
    ) {
        let none = response
            .header_named(REFER_SUB)
            .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"false"));
        if !(200..300).contains(&response.status()) || none {
            return self.end_subscription(endpoint, key);
        }
        self.counters.subscriptions += 1;
        self.subscription_granted(key, response, now);
    }

    /// A 2xx states the lifetime of a subscription.
    fn subscription_granted(&mut self, key: u64, response: &Message<'_>, now: Time) {
        if let Ok(seconds) = response.expires() {
            self.subscription_lasts(key, seconds, now);
        }
    }

    fn subscription_lasts(&mut self, key: u64, seconds: u32, now: Time) {
        let span = Duration::from_secs(u64::from(seconds.min(LONGEST)));
        let alarm = Alarm::Subscription(key);
        let timer = self.timers.schedule(now + span + LINGER, alarm);
        let old = match self.subscription(key) {
            Some(subscription) => subscription.timer.replace(timer),
            None => Some(timer),
        };
        if let Some(old) = old {
            self.timers.cancel(old);
        }
    }

    /// Ends a subscription.
    pub(crate) fn end_subscription(&mut self, endpoint: &mut Endpoint, key: u64) {
        if self.subscription(key).is_none() {
            return;
        }
        let index = (key & 0xffff_ffff) as usize - 1;
        let Some(subscription) = self.subscriptions.try_remove(index) else {
            return;
        };
        for dialog in subscription.dialogs.into_iter().flatten() {
            endpoint.close_dialog(dialog);
        }
        if let Some(timer) = subscription.timer {
            self.timers.cancel(timer);
        }
    }

    /// Forwards a request within a subscription to the other side.
    pub(crate) fn in_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        (dialog, key): (DialogId, u64),
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let method = request.method();
        if !matches!(
            method,
            Method::Subscribe | Method::Notify | Method::Refer | Method::Message | Method::Info
        ) {
            let status = match method {
                Method::Options => 200,
                Method::Invite | Method::Bye | Method::Update | Method::Prack => 481,
                _ => 405,
            };
            return refuse(endpoint, transaction, status, now);
        }
        let Some(subscription) = self.subscription(key) else {
            return refuse(endpoint, transaction, 481, now);
        };
        let from = usize::from(subscription.dialogs.first() != Some(&Some(dialog)));
        let other = subscription.dialogs.get(1 - from).copied().flatten();
        let (Some(other), Some(source_flow)) = (other, endpoint.flow_of_dialog(dialog)) else {
            return refuse(endpoint, transaction, 481, now);
        };
        let mut last = false;
        if method == Method::Notify {
            let state = request
                .header(HeaderId::SubscriptionState)
                .and_then(TokenValue::parse);
            last = state.is_some_and(|state| state.token.eq_ignore_ascii_case(b"terminated"));
            let seconds = state
                .and_then(|state| state.params.get(b"expires"))
                .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            if let Some(seconds) = seconds.filter(|_| !last) {
                self.subscription_lasts(key, seconds, now);
            }
        }
        let passed = ForwardedRequest {
            server: transaction,
            source_flow,
            key,
            subscribes: method == Method::Subscribe,
            last,
        };
        let Some(user) = self.store_subscription_request(passed) else {
            return refuse(endpoint, transaction, 503, now);
        };
        let sent = self.pass_in_dialog(endpoint, key, from, other, request, user, now);
        if let Err(status) = sent {
            self.remove_pending(user);
            refuse(endpoint, transaction, status, now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn pass_in_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        key: u64,
        from: usize,
        other: DialogId,
        request: &Message<'_>,
        user: u64,
        now: Time,
    ) -> Result<(), u16> {
        let config = self.config.clone();
        let subscription = self.subscription(key).ok_or(481u16)?;
        let (interfaces, trunks) = (subscription.interfaces, subscription.trunks);
        let place = |at: usize| {
            let interface = interfaces.get(at).copied().unwrap_or(InterfaceId(u16::MAX));
            (interface, trunks.get(at).copied().flatten())
        };
        let (here, there) = (place(from), place(1 - from));
        let target = endpoint.flow_of_dialog(other).ok_or(481u16)?;
        let trunk = there.1.and_then(|trunk| config.trunk(trunk));
        let boundary = Boundary {
            policy: &config.identity,
            from: config.trusts(here.0, here.1),
            to: config.trusts(there.0, there.1),
            wanted: trunk.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
            proven: None,
            anchored: false,
            hiding: config.hiding(there.0),
        };
        let (mut told, mut supported, mut refer_to) = (Vec::new(), Vec::new(), Vec::new());
        let (mut texts, mut effects) = (IdentityTexts::default(), Effects::default());
        warnings(request, &mut told);
        promised_end_to_end(request, &mut supported);
        self.refer_to_at(request, target, &mut refer_to);
        let mut edits: EditList<'_> = SmallVec::new();
        hide_network(request, &told, &mut edits);
        without_credentials(request, &mut edits);
        if !supported.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Supported,
                value: &supported,
            });
        }
        if !refer_to.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::ReferTo,
                value: &refer_to,
            });
        }
        let host = || self.advertised_host(target.local);
        boundary.edits(request, host, &mut texts, &mut edits);
        let scene = MessageContext {
            initial: false,
            edits: &edits,
            ..self.first_scene(there, target, request)
        };
        self.rules_out_first(&scene, None, &mut effects);
        if let Some(refusal) = &effects.refusal {
            return Err(refusal.status);
        }
        effects.merge(&mut edits);
        let content = MessageContent::from_template(request).with(&edits);
        let login = trunk
            .and_then(|trunk| trunk.credentials.as_ref())
            .map(|login| Login {
                user: login.username.as_bytes(),
                password: login.password.as_bytes(),
            });
        endpoint
            .dialog_request(other, request.method(), &content, user, login.as_ref(), now)
            .map(|_| ())
            .map_err(|refused| match refused {
                sip::Refused::Gone => 481,
                sip::Refused::Full => 503,
                sip::Refused::TooLarge => 513,
                _ => 500,
            })
    }

    /// Refer-To with our address on the side of `onward`, if it contains our address on the side of the request.
    pub(crate) fn refer_to_at(&self, request: &Message<'_>, target: Flow, out: &mut Vec<u8>) {
        if request.method() != Method::Refer {
            return;
        }
        let Ok(refer_to) = request.refer_to() else {
            return;
        };
        let ours = refer_to
            .parse_uri()
            .is_some_and(|uri| self.is_ours(uri.host_port().to_string().as_bytes()));
        if ours {
            let host = self.advertised_host(target.local);
            address_with_host(&refer_to, Some(&host), out);
        }
    }

    /// A final response to a request within a subscription.
    pub(crate) fn in_dialog_answered(
        &mut self,
        endpoint: &mut Endpoint,
        passed: &ForwardedRequest,
        response: &Message<'_>,
        now: Time,
    ) {
        let status = response.status();
        self.relay_response(endpoint, passed.server, passed.source_flow, response, now);
        if passed.subscribes && (200..300).contains(&status) {
            self.subscription_granted(passed.key, response, now);
        }
        if passed.last || ends(status) {
            self.end_subscription(endpoint, passed.key);
        }
    }

    /// A request within a subscription got no response: the subscription has ended.
    pub(crate) fn in_dialog_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        passed: &ForwardedRequest,
        now: Time,
    ) {
        refuse(endpoint, passed.server, 481, now);
        self.end_subscription(endpoint, passed.key);
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
