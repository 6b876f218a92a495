//! Forwarding of messages from one leg to the other: the body by the media of the call, the headers by a few rules.
//!
//! The endpoint composes the headers of a leg (Via, From, To, Call-ID, CSeq, Contact, routes); other headers are copied
//! byte for byte, with these exceptions: end-to-end option tags are added to those of the endpoint, Allow is that of
//! the peer, identities follow RFC 3325, and Refer-To refers to us.

use super::headers::address_with_host;
use super::{Call, CallPhase};
use crate::border::Core;
use crate::identity::{self, Boundary};
use crate::private_headers::is_charged;
use crate::rules::EditList;
use ::rules::Effects;
use anchor::EarlyMedia;
use anchor::Side;
use anchor::{AnchorError, CallMedia, MediaPlane};
use config::IdentityPassing;
use sip::{Body, Endpoint, MessageContent};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, Session};

/// The role of an SDP in its exchange (RFC 3264).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SdpRole {
    Offer,
    Answer,
    /// An answer of one early dialog; others may follow.
    EarlyAnswer,
}

/// The body of a forwarded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Unchanged.
    Untouched,
    /// With the SDP in the buffer.
    Rewritten,
    /// Removed.
    Nothing,
}

/// The SDP in a message. An unreadable Content-Type counts as none.
pub(crate) fn session_of(message: &Message<'_>) -> Session {
    if message.body().is_empty() {
        return Session::None;
    }
    let kind = message
        .header(HeaderId::ContentType)
        .filter(|_| message.content_type().is_ok());
    Session::of(kind, message.body())
}

/// Whether the message has an SDP.
pub(crate) fn has_sdp(message: &Message<'_>) -> bool {
    session_of(message) != Session::None
}

/// Whether the SDP is part of a multipart body.
pub(crate) fn is_multipart(message: &Message<'_>) -> bool {
    matches!(session_of(message), Session::Part(_))
}

/// The body of a forwarded message.
pub(crate) fn body_of<'b>(carried: Carried, body: &'b [u8], message: &'b Message<'_>) -> Body<'b> {
    match carried {
        Carried::Untouched => Body::Template,
        Carried::Nothing => Body::None,
        Carried::Rewritten => Body::New {
            content_type: message
                .header(HeaderId::ContentType)
                .filter(|_| is_multipart(message))
                .unwrap_or(b"application/sdp"),
            bytes: body,
        },
    }
}

/// Composes the pending offer again, for another target or after the sockets were opened.
pub(crate) fn offer_again(
    media: &mut CallMedia,
    plane: &mut MediaPlane,
    message: &Message<'_>,
    out: &mut Vec<u8>,
) {
    let session = session_of(message);
    let body = message.body();
    let offer = session.bytes(body).unwrap_or_default();
    session.replace(body, |out| media.offer_again(plane, offer, out), out);
}

/// Option tags that the ends of a leg negotiate between themselves, or that the endpoint writes.
const HOP_TAGS: [&[u8]; 6] = [
    b"timer",
    b"100rel",
    b"replaces",
    b"path",
    b"outbound",
    b"gruu",
];

/// Option tags that we support on each leg independently.
const OWN_TAGS: &[u8] = b"100rel, timer, replaces";

/// Whether Supported in this message matters (RFC 3261 section 20.37): then it must contain only tags that both sides
/// support.
fn promises(message: &Message<'_>) -> bool {
    matches!(message.method(), Method::Invite | Method::Update)
        && (message.is_request() || (200..300).contains(&message.status()))
}

/// Appends the end-to-end option tags of header `id` to `out`.
fn end_to_end_tags(message: &Message<'_>, id: HeaderId, out: &mut Vec<u8>) {
    if !message.has(id) {
        return;
    }
    for tag in message.values(id) {
        if HOP_TAGS.iter().any(|hop| hop.eq_ignore_ascii_case(tag)) {
            continue;
        }
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(tag);
    }
}

/// Appends the option tags to `out` that a request declares as supported end to end.
pub(crate) fn promised_end_to_end(message: &Message<'_>, out: &mut Vec<u8>) {
    end_to_end_tags(message, HeaderId::Supported, out);
}

/// Headers about the network of their sender that are meant for the same network: charging (RFC 7315 sections 4.5 and
/// 4.6), the visited network (4.3), and the route to its registrar (RFC 3608), which is ours to use.
const NETWORK: [HeaderId; 3] = [
    HeaderId::PChargingVector,
    HeaderId::PVisitedNetworkId,
    HeaderId::ServiceRoute,
];
/// The same, for a name without identifier.
const CHARGING_ADDRESSES: &[u8] = b"P-Charging-Function-Addresses";
/// Pseudonym in place of the host in Warning (RFC 3261 section 20.43).
const WARN_AGENT: &[u8] = b"hornwork";

/// The values of Warning without their hosts.
pub(crate) fn warnings(message: &Message<'_>, out: &mut Vec<u8>) {
    if !message.has(HeaderId::Warning) {
        return;
    }
    for value in message.values(HeaderId::Warning) {
        let mut words = value.splitn(3, |byte| byte.is_ascii_whitespace());
        let (Some(code), Some(_), Some(text)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        for part in [code, b" ", WARN_AGENT, b" ", text] {
            out.extend_from_slice(part);
        }
    }
}

/// Removes headers that reveal the network; `warnings` is the result of [`warnings`].
pub(crate) fn hide_network<'e, const N: usize>(
    message: &Message<'e>,
    warnings: &'e [u8],
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    for id in NETWORK {
        if message.has(id) {
            edits.push(Edit::Remove(id));
        }
    }
    if message.has(HeaderId::Other) && message.header_named(CHARGING_ADDRESSES).is_some() {
        edits.push(Edit::RemoveNamed(CHARGING_ADDRESSES));
    }
    hide_warn_agents(message, warnings, edits);
}

fn hide_warn_agents<'e, const N: usize>(
    message: &Message<'e>,
    warnings: &'e [u8],
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    match (message.has(HeaderId::Warning), warnings) {
        (false, _) => {}
        (true, []) => edits.push(Edit::Remove(HeaderId::Warning)),
        (true, value) => edits.push(Edit::Replace {
            id: HeaderId::Warning,
            value,
        }),
    }
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
    supported: Vec<u8>,
    require: Vec<u8>,
    refer_to: Vec<u8>,
    warnings: Vec<u8>,
}

/// Edits of one message.
#[derive(Debug)]
pub(crate) struct Edits<'e> {
    list: EditList<'e>,
    /// A header rule refuses the request with this status.
    pub(crate) refused: Option<u16>,
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
            supported,
            require,
            refer_to,
            warnings,
        } = &mut self.own;
        for text in [supported, require, refer_to, warnings] {
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

/// The body of a forwarded refusal: an SDP in it would reveal addresses although media is anchored.
pub(crate) fn refusal_body(call: &Call, response: &Message<'_>) -> Carried {
    let anchored = call.media.is_some() || call.relay.is_some();
    match anchored && has_sdp(response) {
        true => Carried::Nothing,
        false => Carried::Untouched,
    }
}

impl Core {
    /// Processes the body of `message` of side `from`, and appends the body for the other side to `out`. Body parts
    /// other than the SDP are unchanged.
    ///
    /// # Errors
    /// [`AnchorError`]; the media of the call is then unchanged.
    pub(crate) fn carry_body(
        &mut self,
        slot: usize,
        from: Side,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        if !is_multipart(message) {
            return self.carry_sdp(slot, from, message, role, out);
        }
        let mut sdp = Vec::new();
        let carried = self.carry_sdp(slot, from, message, role, &mut sdp)?;
        if carried == Carried::Rewritten {
            let write = |out: &mut Vec<u8>| out.extend_from_slice(&sdp);
            session_of(message).replace(message.body(), write, out);
        }
        Ok(carried)
    }

    /// The same for the SDP alone.
    ///
    /// # Errors
    /// See [`Core::carry_body`].
    pub(crate) fn carry_sdp(
        &mut self,
        slot: usize,
        from: Side,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let relayed = |call: &Call| call.relay.is_some();
        if self.calls.get(slot).is_some_and(relayed) {
            return self.apply_node_description(slot, from, message, role, out);
        }
        let Some(media) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut())
        else {
            return Ok(Carried::Untouched);
        };
        let session = session_of(message);
        if session == Session::Encoded {
            return Err(AnchorError::Encoded);
        }
        let Some(sdp) = session.bytes(message.body()) else {
            return Ok(Carried::Untouched);
        };
        let plane = &mut self.plane;
        match role {
            SdpRole::Offer => media.offer(plane, from, sdp, out)?,
            SdpRole::Answer => media.answer(plane, from, sdp, false, out)?,
            SdpRole::EarlyAnswer => media.answer(plane, from, sdp, true, out)?,
        }
        Ok(Carried::Rewritten)
    }

    /// Discards a refused offer.
    pub(crate) fn abandon_offer(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if let Some(media) = call.media.as_deref_mut() {
            media.abandon(&mut self.plane);
        }
        if let Some(relay) = call.relay.as_deref_mut() {
            relay.open_offer = None;
        }
    }

    /// Discards the pending offer, and a pending transfer.
    pub(crate) fn abandon_change(&mut self, slot: usize) {
        self.abandon_offer(slot);
        let call = self.calls.get_mut(slot);
        if let Some(media) = call.and_then(|call| call.media.as_deref_mut()) {
            media.restore_side(&mut self.plane);
        }
    }

    /// Applies P-Early-Media in a message of `from` to the limit of early media, if the call has one and `from` is
    /// trusted.
    pub(crate) fn early_media(&mut self, slot: usize, from: Side, message: &Message<'_>) {
        if from != Side::Callee || !message.has(HeaderId::PEarlyMedia) {
            return;
        }
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let gated = call
            .media
            .as_deref()
            .is_some_and(CallMedia::limits_early_media);
        let early = EarlyMedia::of(message);
        if call.phase != CallPhase::SetUp
            || !gated
            || early.is_none()
            || !self.trusts_side(call, from)
        {
            return;
        }
        self.set_early_media(slot, early);
    }

    /// Changes or removes the limit of early media.
    pub(crate) fn set_early_media(&mut self, slot: usize, gate: Option<EarlyMedia>) {
        if let Some(media) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut())
        {
            media.set_early_media(&mut self.plane, gate);
        }
    }

    /// The side with a pending offer, as far as anchoring knows.
    pub(crate) fn open_offer(&self, slot: usize) -> Option<Side> {
        let call = self.calls.get(slot)?;
        match call.relay.as_deref() {
            Some(relay) => relay.open_offer,
            None => call.media.as_deref()?.open_offer(),
        }
    }

    /// The boundary of trust between two sides of a call.
    pub(crate) fn boundary<'a>(
        &'a self,
        call: &'a Call,
        from: Side,
        proven: Option<&'a str>,
    ) -> Boundary<'a> {
        let to = from.other();
        let trunk = call
            .trunks
            .get(to)
            .and_then(|trunk| self.config.trunk(trunk));
        Boundary {
            policy: &self.config.identity,
            from: self.trusts_side(call, from),
            to: self.trusts_side(call, to),
            wanted: trunk.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
            proven,
            anchored: call.media.is_some()
                || call.relay.is_some()
                || call.set_up.as_ref().is_some_and(|set_up| set_up.anchor),
            hiding: self.config.hiding(*call.interfaces.get(to)),
        }
    }

    /// Refer-To with our address on the other side, if it contains our address on this side: the target is reached
    /// through us.
    fn refer_to(
        &self,
        endpoint: &Endpoint,
        call: &Call,
        from: Side,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) {
        let Ok(refer_to) = message.refer_to() else {
            return;
        };
        let ours = refer_to
            .parse_uri()
            .is_some_and(|uri| self.is_ours(uri.host_port().to_string().as_bytes()));
        if ours {
            let host = self.own_host(call, from.other(), endpoint);
            address_with_host(&refer_to, Some(&host), out);
        }
    }

    /// The edits of an in-dialog message of `from`, including those of header rules; `host` is our host on the other
    /// side if known.
    pub(crate) fn pass_edits<'e>(
        &self,
        endpoint: &Endpoint,
        call: &'e Call,
        from: Side,
        message: &Message<'e>,
        host: Option<&[u8]>,
        changes: &'e mut HeaderChanges,
    ) -> Edits<'e> {
        let HeaderChanges { texts, effects } = changes;
        let boundary = self.boundary(call, from, None);
        let mut edits = Edits {
            list: EditList::new(),
            refused: None,
        };
        let list = &mut edits.list;
        self.own_edits(endpoint, call, from, message, &boundary, host, texts, list);
        edits.refused = self.rules_out(endpoint, call, from, message, list, effects);
        edits
    }

    /// Adds the edits of the border to `edits`, in place because the list is large.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn own_edits<'e>(
        &self,
        endpoint: &Endpoint,
        call: &'e Call,
        from: Side,
        message: &Message<'e>,
        boundary: &Boundary<'_>,
        host: Option<&[u8]>,
        changes: &'e mut Texts,
        edits: &mut EditList<'e>,
    ) {
        changes.clear();
        let Texts { own, identity } = changes;
        if promises(message) {
            own.supported.extend_from_slice(OWN_TAGS);
            end_to_end_tags(message, HeaderId::Supported, &mut own.supported);
        }
        end_to_end_tags(message, HeaderId::Require, &mut own.require);
        if message.method() == Method::Refer {
            self.refer_to(endpoint, call, from, message, &mut own.refer_to);
        }
        warnings(message, &mut own.warnings);
        let own = &*own;
        if let Some(value) = message.header(HeaderId::Allow) {
            edits.push(Edit::Replace {
                id: HeaderId::Allow,
                value,
            });
        }
        own.tags(edits);
        // Contacts of a redirect, and unsupported option tags, belong to the response itself.
        let content: &[HeaderId] = match message.status() {
            300..=399 | 485 => &[HeaderId::Contact],
            420 => &[HeaderId::Unsupported],
            _ => &[],
        };
        for &id in content {
            for value in message.all(id) {
                edits.push(Edit::Add { id, value });
            }
        }
        let own_host = || match host {
            Some(host) => host.to_vec(),
            None => self.own_host(call, from.other(), endpoint),
        };
        boundary.edits(message, own_host, identity, edits);
        match boundary.from && boundary.to {
            true => hide_warn_agents(message, &own.warnings, edits),
            false => hide_network(message, &own.warnings, edits),
        }
        if let Some(value) = &call.charging
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
        if message.is_request() && self.consumes_credentials(call, from) {
            for id in [HeaderId::Authorization, HeaderId::ProxyAuthorization] {
                if message.has(id) {
                    edits.push(Edit::Remove(id));
                }
            }
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
}
