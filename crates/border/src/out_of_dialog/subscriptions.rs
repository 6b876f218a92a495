//! Subscriptions, and dialogs created by out-of-dialog REFER (RFC 6665, RFC 3515): two dialogs are coupled like the
//! legs of a call, with topology hiding. Requests and responses are passed unchanged, except the headers of the dialog.

use crate::headers::{EditList, has_credentials};
use crate::identity::{Boundary, IdentityTexts};
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::state::{ForwardedRequest, Subscription};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::responses::{StatusLine, refuse};
use ::rules::{Effects, MessageContext};
use config::{IdentityPassing, InterfaceId, InterfaceKind, TrunkId};
use engine::Reason;
use sip::{DialogId, Failure, Flow, Login, MessageContent, ServerTransaction};
use smallvec::SmallVec;
use wire::sip::{HeaderId, Message, Method, TokenValue};

/// Lifetime in seconds of a subscription without a stated expiry.
const UNSAID: u32 = 180;
/// States in the response to REFER that there is no subscription (RFC 4488).
const REFER_SUB: &[u8] = b"Refer-Sub";

/// Whether a final response ends the subscription of its request (RFC 6665 section 4.2.2, RFC 5057).
fn ends(status: u16) -> bool {
    matches!(status, 404 | 405 | 410 | 416 | 480..=485 | 489 | 501 | 604)
}

impl OutOfDialogControl<'_> {
    /// Couples the dialog of the sender of `request` with a future one. Returns the key of both.
    ///
    /// # Errors
    /// The refusal of the request.
    pub(crate) fn subscription_asked(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        (origin, flow): (RequestOrigin, Flow),
    ) -> Result<u64, RequestRefusal> {
        let serial = self.parts.out_of_dialog.next_serial();
        let index = self.parts.out_of_dialog.subscriptions.insert(Subscription {
            serial,
            dialogs: [None; 2],
            interfaces: [origin.interface; 2],
            trunks: [origin.trunk, None],
            challenged: [false; 2],
            timer: None,
        });
        let key = (u64::from(serial) << 32) | (index as u64 + 1);
        // Phones behind NAT write unreachable addresses in Contact: they are reached on their flow.
        let access = self
            .parts
            .ctx
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Access);
        match self
            .endpoint
            .open_dialog(transaction, request, flow, access, key)
        {
            Ok(dialog) => {
                if let Some(subscription) = self.parts.out_of_dialog.subscriptions.get_mut(index) {
                    subscription.dialogs = [Some(dialog), None];
                }
                self.parts
                    .out_of_dialog
                    .subscription_lasts(&mut self.parts.ctx, key, UNSAID);
                Ok(key)
            }
            Err(refused) => {
                self.parts.out_of_dialog.subscriptions.try_remove(index);
                Err(match refused {
                    sip::Refused::Full => RequestRefusal::new(Reason::TooManySubscriptions),
                    _ => RequestRefusal::new(Reason::NoContact),
                })
            }
        }
    }

    /// The request was sent to the other side, in `dialog`.
    pub(crate) fn subscription_sent(
        &mut self,
        key: u64,
        dialog: DialogId,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) {
        let Some(subscription) = self.parts.out_of_dialog.subscription(key) else {
            return self.endpoint.close_dialog(dialog);
        };
        let [source_flow, before] = subscription.dialogs;
        subscription.dialogs = [source_flow, Some(dialog)];
        subscription.interfaces[1] = interface;
        subscription.trunks[1] = trunk;
        if let Some(before) = before {
            self.endpoint.close_dialog(before);
        }
    }

    /// The final response of the other side was forwarded.
    pub(crate) fn subscription_answered(&mut self, key: u64, response: &Message<'_>) {
        let none = response
            .header_named(REFER_SUB)
            .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"false"));
        if !(200..300).contains(&response.status()) || none {
            return self.end_subscription(key);
        }
        self.parts.ctx.counters.subscriptions += 1;
        self.parts
            .out_of_dialog
            .subscription_granted(&mut self.parts.ctx, key, response);
    }

    /// Ends a subscription.
    pub(crate) fn end_subscription(&mut self, key: u64) {
        if self.parts.out_of_dialog.subscription(key).is_none() {
            return;
        }
        let index = (key & 0xffff_ffff) as usize - 1;
        let Some(subscription) = self.parts.out_of_dialog.subscriptions.try_remove(index) else {
            return;
        };
        for dialog in subscription.dialogs.into_iter().flatten() {
            self.endpoint.close_dialog(dialog);
        }
        if let Some(timer) = subscription.timer {
            self.parts.ctx.timers.cancel(timer);
        }
    }

    /// Forwards a request within a subscription to the other side.
    pub(crate) fn in_dialog(
        &mut self,
        (dialog, key): (DialogId, u64),
        transaction: ServerTransaction,
        request: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
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
            return refuse(self.endpoint, transaction, status, now);
        }
        let Some(subscription) = self.parts.out_of_dialog.subscription(key) else {
            return refuse(self.endpoint, transaction, 481, now);
        };
        let from = usize::from(subscription.dialogs.first() != Some(&Some(dialog)));
        let other = subscription.dialogs.get(1 - from).copied().flatten();
        let trunk = subscription.trunks.get(1 - from).copied().flatten();
        let challenged = subscription.challenged.get(from) == Some(&true);
        let (Some(other), Some(source_flow)) = (other, self.endpoint.flow_of_dialog(dialog)) else {
            return refuse(self.endpoint, transaction, 481, now);
        };
        let authenticates =
            has_credentials(request) && self.parts.relays_credentials(source_flow, trunk);
        if authenticates
            && let Err(refused) = self.parts.check_trunk_credentials(request, source_flow)
        {
            return self.refuse_out_of_dialog(transaction, request, source_flow, &refused);
        }
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
                self.parts
                    .out_of_dialog
                    .subscription_lasts(&mut self.parts.ctx, key, seconds);
            }
        }
        let passed = ForwardedRequest {
            server: transaction,
            source_flow,
            key,
            from,
            request: authenticates.then(|| request.bytes().into()),
            challenged,
            own_login: self.parts.has_login(trunk),
            subscribes: method == Method::Subscribe,
            last,
        };
        let Some(user) = self.parts.out_of_dialog.store_subscription_request(passed) else {
            return refuse(self.endpoint, transaction, 503, now);
        };
        let sent = self.pass_in_dialog(key, (from, other), request, user);
        if let Err(line) = sent {
            self.parts.out_of_dialog.remove_pending(user);
            line.refuse(self.endpoint, transaction, None, now);
        }
    }

    fn pass_in_dialog(
        &mut self,
        key: u64,
        (from, other): (usize, DialogId),
        request: &Message<'_>,
        user: u64,
    ) -> Result<(), StatusLine> {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let subscription = self.parts.out_of_dialog.subscription(key).ok_or(481u16)?;
        let (interfaces, trunks) = (subscription.interfaces, subscription.trunks);
        let source = subscription.dialogs.get(from).copied().flatten();
        let place = |at: usize| {
            let interface = interfaces.get(at).copied().unwrap_or(InterfaceId(u16::MAX));
            (interface, trunks.get(at).copied().flatten())
        };
        let (here, there) = (place(from), place(1 - from));
        let target = self.endpoint.flow_of_dialog(other).ok_or(481u16)?;
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
        let (mut texts, mut effects) = (IdentityTexts::default(), Effects::default());
        let source_flow = source.and_then(|dialog| self.endpoint.flow_of_dialog(dialog));
        let keeps_credentials =
            source_flow.is_some_and(|flow| self.parts.relays_credentials(flow, there.1));
        let fields = self.forwarded_fields(request, (here.1, target), keeps_credentials);
        let mut edits: EditList<'_> = SmallVec::new();
        fields.edits(request, &mut edits);
        let host = || self.parts.listeners.advertised_host(target.local);
        boundary.edits(request, host, &mut texts, &mut edits);
        let scene = MessageContext {
            initial: false,
            edits: &edits,
            ..self.parts.first_scene(there, target, request)
        };
        self.parts.rules_out_first(&scene, None, &mut effects);
        if let Some(refusal) = &effects.refusal {
            return Err(refusal.into());
        }
        effects.merge(&mut edits);
        let content = MessageContent::from_template(request).with(&edits);
        let login = trunk
            .and_then(|trunk| trunk.credentials.as_ref())
            .map(|login| Login {
                user: login.username.as_bytes(),
                password: login.password.as_bytes(),
            });
        self.endpoint
            .dialog_request(other, request.method(), &content, user, login.as_ref(), now)
            .map(|_| ())
            .map_err(|refused| {
                let status: u16 = match refused {
                    sip::Refused::Gone => 481,
                    sip::Refused::Full => 503,
                    sip::Refused::TooLarge => 513,
                    _ => 500,
                };
                status.into()
            })
    }

    /// A final response to a request within a subscription.
    pub(crate) fn in_dialog_answered(&mut self, passed: &ForwardedRequest, response: &Message<'_>) {
        let (status, now) = (response.status(), self.parts.ctx.now);
        let challenges = matches!(status, 401 | 407);
        if let Some(request) = passed.request.as_deref() {
            let request = (request, passed.challenged);
            self.parts
                .trunk_answered(request, passed.source_flow, response);
        }
        let mut responder = None;
        if let Some(subscription) = self.parts.out_of_dialog.subscription(passed.key) {
            responder = subscription.location(1 - passed.from);
            if let Some(challenged) = subscription.challenged.get_mut(passed.from) {
                *challenged = challenges;
            }
        }
        let requester = (passed.server, passed.source_flow);
        match challenges && passed.own_login {
            // The sender does not know our credentials at this trunk.
            true => refuse(self.endpoint, passed.server, 403, now),
            false => self.relay_response(requester, responder, response),
        }
        if passed.subscribes && (200..300).contains(&status) {
            self.parts.out_of_dialog.subscription_granted(
                &mut self.parts.ctx,
                passed.key,
                response,
            );
        }
        if passed.last || ends(status) {
            self.end_subscription(passed.key);
        }
    }

    /// A request within a subscription got no response: the subscription has ended. If it could not be sent, only the
    /// request has failed (RFC 5057 section 5: 503), because the peer may be reached again by the next one.
    pub(crate) fn in_dialog_failed(&mut self, passed: &ForwardedRequest, why: Failure) {
        let now = self.parts.ctx.now;
        let is_gone = why == Failure::TimedOut;
        refuse(
            self.endpoint,
            passed.server,
            if is_gone { 481 } else { 500 },
            now,
        );
        if is_gone || passed.last {
            self.end_subscription(passed.key);
        }
    }
}
