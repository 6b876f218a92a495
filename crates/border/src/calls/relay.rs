//! Forwarding of messages from one leg to the other: the body by the media of the call, the headers by a few rules.
//!
//! The endpoint composes the headers of a leg (Via, From, To, Call-ID, CSeq, Contact, routes); other headers are copied
//! byte for byte, with these exceptions: end-to-end option tags are added to those of the endpoint, Allow is that of
//! the peer, identities follow RFC 3325, and Refer-To refers to us.

use crate::bodies::{Carried, SdpRole, has_sdp, is_multipart, session_of};
use crate::calls::ended::codec_of;
use crate::calls::key::{CallSlot, SideKey};
use crate::calls::{Call, CallStage};
use crate::components::Calls;
use crate::headers::{
    EditList, address_with_host, end_to_end_tags, hide_hops, hide_network, joined, own_tags,
    promises, proposes_targets, required_end_to_end, response_headers, warnings,
};
use crate::identity;
use crate::identity::Boundary;
use crate::identity::private_headers::is_charged;
use crate::responses::StatusLine;
use crate::targets::{OwnAddress, TargetHosts};
use ::rules::Effects;
use anchor::encodings::chosen_codec;
use anchor::{AnchorError, CallMedia, EarlyMedia, Side};
use config::{Config, IdentityPassing, Refer, Register};
use engine::Transport;
use sip::{Body, LegId, MessageContent};
use wire::sip::{Edit, HeaderId, Message, Method, NameAddr, Session};

/// A message that is forwarded from a side of a call to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forwarded<'m, 'e> {
    pub(crate) call: &'e Call,
    pub(crate) from: Side,
    pub(crate) message: &'m Message<'e>,
    /// Our host on the other side, if known, with the transport there.
    pub(crate) host: Option<(&'m [u8], Transport)>,
}

/// Header edits of a forwarded message, and their buffers.
#[derive(Debug, Default)]
pub(crate) struct HeaderChanges {
    pub(crate) texts: Texts,
    /// Edits of header rules.
    pub(crate) effects: Effects,
}

/// Buffers of the edits of the border.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    own: OwnTexts,
    identity: identity::IdentityTexts,
}

#[derive(Debug, Default)]
struct OwnTexts {
    allow: Vec<u8>,
    supported: Vec<u8>,
    require: Vec<u8>,
    refer_to: Vec<u8>,
    contacts: Vec<u8>,
    warnings: Vec<u8>,
}

/// Edits of one message.
#[derive(Debug)]
pub(crate) struct Edits<'e> {
    list: EditList<'e>,
    /// A header rule refuses the request.
    pub(crate) refused: Option<StatusLine>,
    /// Whether the reason phrase of a response is replaced by that of its status.
    hides: bool,
}

impl Edits<'_> {
    /// The reason phrase of a forwarded response; `None`: that of the response.
    pub(crate) fn phrase(&self, status: u16) -> Option<&'static [u8]> {
        self.hides.then(|| sip::reason_phrase(status))
    }
}

impl<'e> core::ops::Deref for Edits<'e> {
    type Target = [Edit<'e>];

    fn deref(&self) -> &[Edit<'e>] {
        &self.list
    }
}

impl Texts {
    fn clear(&mut self) {
        let OwnTexts {
            allow,
            supported,
            require,
            refer_to,
            contacts,
            warnings,
        } = &mut self.own;
        for text in [allow, supported, require, refer_to, contacts, warnings] {
            text.clear();
        }
    }
}

impl OwnTexts {
    fn tags<'e>(&'e self, edits: &mut EditList<'e>) {
        if !self.supported.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::Supported,
                value: &self.supported,
            });
        }
        if !self.require.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Require,
                value: &self.require,
            });
        }
    }
}

/// The body of a forwarded response whose SDP is neither an offer nor an answer, as in refusals and in provisional
/// responses to a re-INVITE: it would reveal addresses although media is anchored. The 2xx to a re-INVITE has the
/// answer.
pub(crate) fn body_without_sdp(call: &Call, response: &Message<'_>) -> Carried {
    match call.media.is_some() && has_sdp(response) {
        true => Carried::Nothing,
        false => Carried::Untouched,
    }
}

impl Call {
    /// Whether a side is trusted with asserted identities (RFC 3325).
    pub(crate) fn is_trusted(&self, config: &Config, side: Side) -> bool {
        !self.is_foreign(side) && config.trusts(*self.interfaces.get(side), *self.trunks.get(side))
    }

    /// Whether a redirect has led to this side, outside of its trunk.
    fn is_foreign(&self, side: Side) -> bool {
        side == Side::Callee && self.headers.foreign_callee
    }

    /// Whether digest credentials in requests of this side are consumed by us.
    pub(crate) fn consumes_credentials(&self, config: &Config, side: Side) -> bool {
        self.trunks.get(side).is_none()
            && config
                .interface(*self.interfaces.get(side))
                .is_some_and(|interface| interface.authenticate == config::Authenticate::Digest)
    }

    /// Whether digest credentials in requests of this side are for the other one. Those of a phone whose registrations
    /// are forwarded are for the trunk of the registrations: another peer could try passwords against them.
    fn credentials_are_for_other(&self, config: &Config, side: Side) -> bool {
        let interface = config.interface(*self.interfaces.get(side));
        match interface.map(|interface| interface.register) {
            Some(Register::Pass(trunk)) if self.trunks.get(side).is_none() => {
                *self.trunks.get(side.other()) == Some(trunk)
            }
            _ => true,
        }
    }

    /// The boundary of trust between two sides of the call.
    pub(crate) fn boundary<'a>(
        &'a self,
        config: &'a Config,
        from: Side,
        proven: Option<&'a str>,
    ) -> Boundary<'a> {
        let to = from.other();
        let trunk = self.trunks.get(to).and_then(|trunk| config.trunk(trunk));
        Boundary {
            policy: &config.identity,
            from: self.is_trusted(config, from),
            to: self.is_trusted(config, to),
            wanted: !self.is_foreign(to)
                && trunk.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
            proven,
            anchored: self.media.is_some()
                || self.kind.set_up().is_some_and(|set_up| set_up.anchor),
            hiding: config.hiding(*self.interfaces.get(to)),
        }
    }

    /// Whether we carry out a REFER of this side.
    pub(crate) fn acts_on_refer(&self, config: &Config, from: Side) -> bool {
        self.trunks
            .get(from)
            .and_then(|trunk| config.trunk(trunk))
            .is_some_and(|trunk| trunk.refer == Refer::Act)
    }

    /// The side with a pending offer, as far as anchoring knows.
    pub(crate) fn open_offer(&self) -> Option<Side> {
        match self.media.node() {
            Some(relay) => relay.open_offer,
            None => self.media.anchored()?.open_offer(),
        }
    }
}

impl Calls<'_> {
    /// Our host towards a side: the domain of the trunk, otherwise our address there.
    pub(crate) fn own_host(&self, call: &Call, side: Side) -> Vec<u8> {
        let domain = self.own_domain(call, side);
        domain.unwrap_or_else(|| self.own_address(call, side).0)
    }

    /// The domain of the trunk at a side.
    fn own_domain(&self, call: &Call, side: Side) -> Option<Vec<u8>> {
        let trunk = self.parts.ctx.config.trunk((*call.trunks.get(side))?)?;
        Some(trunk.domain.as_ref()?.to_string().into_bytes())
    }

    /// Our address towards a side.
    fn own_address(&self, call: &Call, side: Side) -> OwnAddress {
        let flow = call.leg(side).and_then(|leg| self.endpoint.flow_of(leg));
        flow.map_or((Vec::new(), Transport::Udp), |flow| {
            let host = self.parts.listeners.advertised_host(flow.local);
            (host, flow.transport)
        })
    }

    /// The hosts of side `from` in targets that its messages propose to the other side.
    fn target_hosts<'c>(
        &'c self,
        call: &Call,
        from: Side,
        boundary: &Boundary<'c>,
    ) -> TargetHosts<'c> {
        let trunk_of = |side| {
            let trunk = *call.trunks.get(side);
            trunk.and_then(|trunk| self.parts.ctx.config.trunk(trunk))
        };
        let trunks = [from, from.other()].map(trunk_of);
        TargetHosts::new(&self.parts.listeners, trunks, boundary.hiding)
    }

    /// Refer-To with our address on the other side, if it contains our address on this side or that of a hidden system:
    /// the target is reached through us. Replaces in it names the dialog of the other side.
    fn refer_to(
        &self,
        (call, from): (&Call, Side),
        hosts: TargetHosts<'_>,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) {
        let Ok(refer_to) = message.refer_to() else {
            return;
        };
        let trunk = *call.trunks.get(from.other());
        let calls = &self.parts.calls;
        let named = trunk.and_then(|id| calls.refer_to_at_trunk(self.endpoint, &refer_to, id));
        let uri = named.as_deref().unwrap_or(refer_to.uri);
        let domain = self.own_domain(call, from.other());
        let moved = hosts.refer_to(uri, domain, || self.own_address(call, from.other()));
        if let Some(uri) = moved.as_deref().or(named.as_deref()) {
            address_with_host(&NameAddr { uri, ..refer_to }, None, out);
        }
    }

    /// The edits of an in-dialog message of `from`, including those of header rules.
    pub(crate) fn pass_edits<'e>(
        &self,
        call: &'e Call,
        from: Side,
        message: &Message<'e>,
        changes: &'e mut HeaderChanges,
    ) -> Edits<'e> {
        let forwarded = Forwarded {
            call,
            from,
            message,
            host: None,
        };
        self.edits_of(forwarded, changes)
    }

    /// The same for a message that may know our host on the other side.
    pub(crate) fn edits_of<'e>(
        &self,
        forwarded: Forwarded<'_, 'e>,
        changes: &'e mut HeaderChanges,
    ) -> Edits<'e> {
        let HeaderChanges { texts, effects } = changes;
        let config = &self.parts.ctx.config;
        let boundary = forwarded.call.boundary(config, forwarded.from, None);
        let mut edits = Edits {
            list: EditList::new(),
            refused: None,
            hides: boundary.hiding.is_some(),
        };
        let list = &mut edits.list;
        self.own_edits(forwarded, &boundary, texts, list);
        edits.refused = self
            .parts
            .rules_out(self.endpoint, forwarded, list, effects);
        edits
    }

    /// Adds the edits of the border to `edits`, in place because the list is large.
    pub(crate) fn own_edits<'e>(
        &self,
        forwarded: Forwarded<'_, 'e>,
        boundary: &Boundary<'_>,
        changes: &'e mut Texts,
        edits: &mut EditList<'e>,
    ) {
        let Forwarded {
            call,
            from,
            message,
            host,
        } = forwarded;
        changes.clear();
        let Texts { own, identity } = changes;
        if promises(message) {
            own.supported.extend_from_slice(own_tags(message));
            end_to_end_tags(message, HeaderId::Supported, &mut own.supported);
        }
        required_end_to_end(message, &mut own.require);
        if message.method() == Method::Refer && message.is_request() {
            let hosts = self.target_hosts(call, from, boundary);
            self.refer_to((call, from), hosts, message, &mut own.refer_to);
        }
        if proposes_targets(message) {
            let hosts = self.target_hosts(call, from, boundary);
            let own_address = || match host {
                Some((host, transport)) => (host.to_vec(), transport),
                None => self.own_address(call, from.other()),
            };
            hosts.contacts(message, own_address, &mut own.contacts);
        }
        warnings(message, boundary.hiding.is_some(), &mut own.warnings);
        let is_split = message.is_repeated(HeaderId::Allow);
        if is_split {
            joined(message, HeaderId::Allow, &mut own.allow);
        }
        let own = &*own;
        if let Some(first) = message.header(HeaderId::Allow) {
            edits.push(Edit::Replace {
                id: HeaderId::Allow,
                value: if is_split { &own.allow } else { first },
            });
        }
        own.tags(edits);
        response_headers(message, &own.contacts, edits);
        let own_host = || match host {
            Some((host, _)) => host.to_vec(),
            None => self.own_host(call, from.other()),
        };
        boundary.edits(message, own_host, identity, edits);
        match boundary.from && boundary.to {
            true => hide_hops(message, &own.warnings, edits),
            false => hide_network(message, &own.warnings, edits),
        }
        if let Some(value) = call.headers.charging.as_deref().map(|vector| &vector.0)
            && boundary.to
            && !boundary.from
            && is_charged(message)
        {
            // Values written by its own side were removed before.
            edits.retain(|edit| !matches!(edit, Edit::Remove(HeaderId::PChargingVector)));
            edits.push(Edit::Replace {
                id: HeaderId::PChargingVector,
                value,
            });
        }
        if !own.refer_to.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::ReferTo,
                value: &own.refer_to,
            });
        }
        let config = &self.parts.ctx.config;
        let removes_credentials = call.consumes_credentials(config, from)
            || !call.credentials_are_for_other(config, from);
        if message.is_request() && removes_credentials {
            for id in [HeaderId::Authorization, HeaderId::ProxyAuthorization] {
                if message.has(id) {
                    edits.push(Edit::Remove(id));
                }
            }
        }
    }

    /// Processes the body of `message` of side `from`, and appends the body for the other side to `out`. Body parts
    /// other than the SDP are unchanged.
    ///
    /// # Errors
    /// [`AnchorError`]; the media of the call is then unchanged.
    pub(crate) fn carry_body(
        &mut self,
        from: SideKey,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        if !is_multipart(message) {
            return self.carry_sdp(from, message, role, out);
        }
        let mut sdp = Vec::new();
        let carried = self.carry_sdp(from, message, role, &mut sdp)?;
        if carried == Carried::Rewritten {
            let write = |out: &mut Vec<u8>| out.extend_from_slice(&sdp);
            session_of(message).replace(message.body(), write, out);
        }
        Ok(carried)
    }

    /// The same for the SDP alone.
    ///
    /// # Errors
    /// See [`Calls::carry_body`].
    pub(crate) fn carry_sdp(
        &mut self,
        from: SideKey,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let start = out.len();
        let carried = self.carry_description(from, message, role, out)?;
        if role != SdpRole::Offer {
            let forwarded = out.get(start..).filter(|_| carried == Carried::Rewritten);
            self.record_codec(from, message, forwarded);
        }
        Ok(carried)
    }

    /// Keeps the codec of an answer of `from`, for the event at the end of the call. With transcoding the answer that
    /// was `forwarded` names another one, which the other side sends; `None`: it was not rewritten.
    pub(crate) fn record_codec(
        &mut self,
        SideKey { slot, side }: SideKey,
        message: &Message<'_>,
        forwarded: Option<&[u8]>,
    ) {
        let received = session_of(message).bytes(message.body());
        let own = received.and_then(chosen_codec);
        let other = match forwarded {
            Some(answer) => chosen_codec(answer),
            None => own.clone(),
        };
        let codec = match side {
            Side::Caller => codec_of(own, other),
            Side::Callee => codec_of(other, own),
        };
        if let (Some(codec), Some(call)) = (codec, self.parts.calls.get_mut(slot)) {
            call.summary.codec = Some(codec.into());
        }
    }

    fn carry_description(
        &mut self,
        from: SideKey,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let relayed = |call: &Call| call.media.node().is_some();
        let SideKey { slot, side } = from;
        if self.parts.calls.get(slot).is_some_and(relayed) {
            return self.parts.apply_node_description(from, message, role, out);
        }
        let call = self.parts.calls.get(slot);
        let address = call.and_then(|call| call.address_of_connection(self.endpoint, side));
        let Some(media) = self.parts.calls.media_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        let session = session_of(message);
        if session == Session::Encoded {
            return Err(AnchorError::Encoded);
        }
        let Some(sdp) = session.bytes(message.body()) else {
            return Ok(Carried::Untouched);
        };
        if let Some(address) = address {
            media.follow_address(side, address);
        }
        let plane = &mut self.parts.media.plane;
        match role {
            SdpRole::Offer => media.offer(plane, side, sdp, out)?,
            SdpRole::Answer => media.answer(plane, side, sdp, false, out)?,
            SdpRole::EarlyAnswer => media.answer(plane, side, sdp, true, out)?,
        }
        Ok(Carried::Rewritten)
    }

    /// Discards a refused offer.
    pub(crate) fn abandon_offer(&mut self, slot: CallSlot) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if let Some(media) = call.media.anchored_mut() {
            media.abandon(&mut self.parts.media.plane);
        }
        if let Some(relay) = call.media.node_mut() {
            relay.open_offer = None;
        }
    }

    /// Discards the pending offer, and a pending transfer.
    pub(crate) fn abandon_change(&mut self, slot: CallSlot) {
        self.abandon_offer(slot);
        let call = self.parts.calls.get_mut(slot);
        if let Some(media) = call.and_then(|call| call.media.anchored_mut()) {
            media.restore_side(&mut self.parts.media.plane);
        }
    }

    /// Applies P-Early-Media in a message of `from` to the limit of early media, if the call has one and `from` is
    /// trusted.
    pub(crate) fn early_media(&mut self, slot: CallSlot, from: Side, message: &Message<'_>) {
        if from != Side::Callee || !message.has(HeaderId::PEarlyMedia) {
            return;
        }
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let gated = call
            .media
            .anchored()
            .is_some_and(CallMedia::limits_early_media);
        let early = EarlyMedia::of(message);
        if call.stage != CallStage::ExpectAnswer
            || !gated
            || early.is_none()
            || !call.is_trusted(&self.parts.ctx.config, from)
        {
            return;
        }
        self.set_early_media(slot, early);
    }

    /// Changes or removes the limit of early media.
    pub(crate) fn set_early_media(&mut self, slot: CallSlot, early: Option<EarlyMedia>) {
        if let Some(media) = self.parts.calls.media_mut(slot) {
            media.set_early_media(&mut self.parts.media.plane, early);
        }
    }

    /// Content that forwards a response; `phrase` is [`Edits::phrase`].
    pub(crate) fn passed_response<'e>(
        response: &'e Message<'e>,
        edits: &'e [Edit<'e>],
        phrase: Option<&'e [u8]>,
        body: Body<'e>,
    ) -> MessageContent<'e> {
        MessageContent {
            reason: phrase,
            ..Self::passed(response, edits, body)
        }
    }

    /// Content that forwards `message`.
    pub(crate) fn passed<'e>(
        message: &'e Message<'e>,
        edits: &'e [Edit<'e>],
        body: Body<'e>,
    ) -> MessageContent<'e> {
        MessageContent {
            template: Some(message),
            edits,
            body,
            reason: None,
        }
    }

    /// A 2xx of `side` was forwarded, and the ACK of the other side is pending. The 2xx is acknowledged at once, so
    /// that a lost or invalid ACK of the other side does not cause retransmissions for 32 s (RFC 3261 section
    /// 13.3.1.4); except if that ACK must contain the answer.
    pub(crate) fn await_ack(
        &mut self,
        slot: CallSlot,
        (side, leg): (Side, LegId),
        offers: bool,
        response: &Message<'_>,
    ) {
        // While the host in its Contact is being resolved, the destination of the ACK is unknown.
        let at_once = !offers && !self.parts.resolver.is_locating(leg);
        if at_once {
            self.ack_at_once(slot, (side, leg), response);
        }
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.requests.ack.due = Some(side);
            call.requests.ack.sent = at_once;
        }
    }

    fn ack_at_once(&mut self, slot: CallSlot, (side, leg): (Side, LegId), response: &Message<'_>) {
        let now = self.parts.ctx.now;
        let outgoing = ::rules::RuleDirection::Out;
        let ruled = self
            .parts
            .ctx
            .config
            .rules
            .applies_to(outgoing, true, &Method::Ack);
        let bytes = if ruled { ack_of(response) } else { Vec::new() };
        let mut effects = ::rules::Effects::default();
        let ack = Message::parse(&bytes).ok();
        let mut edits = EditList::new();
        if let (Some(call), Some(ack)) = (self.parts.calls.get(slot), &ack) {
            let forwarded = Forwarded {
                call,
                from: side.other(),
                message: ack,
                host: None,
            };
            self.parts
                .rules_out(self.endpoint, forwarded, &mut edits, &mut effects);
        }
        let content = MessageContent::default().with(&edits);
        if self.endpoint.ack(leg, &content, now).is_err() {
            let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
        }
    }
}

/// The ACK of a 2xx, as input of header rules.
fn ack_of(response: &Message<'_>) -> Vec<u8> {
    let mut ack =
        b"ACK sip:hornwork.invalid SIP/2.0\r\nVia: SIP/2.0/UDP hornwork.invalid\r\n".to_vec();
    for (id, name) in [
        (HeaderId::From, "From"),
        (HeaderId::To, "To"),
        (HeaderId::CallId, "Call-ID"),
    ] {
        let value = response.header(id).unwrap_or_default();
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            ack.extend_from_slice(part);
        }
    }
    ack.extend_from_slice(b"CSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n");
    ack
}
