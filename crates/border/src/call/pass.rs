//! Passing a message from one leg to the other: the body by the call's media, the headers by a few rules.
//!
//! The endpoint writes what belongs to a leg (Via, From, To, Call-ID, CSeq, Contact, routes); everything else is copied
//! byte for byte. Rules here: option tags that are not ours to promise are added beside the endpoint's, Allow is the
//! peer's own, identities pass as RFC 3325 has it, and Refer-To leads back to us.

use super::headers::address_with_host;
use super::{Call, Phase, Side};
use crate::anchor::{AnchorError, CallMedia, MediaPlane};
use crate::border::Core;
use crate::config::Identity;
use crate::identity::{self, Boundary};
use crate::private_headers::{EarlyMedia, is_charged};
use crate::rules::EditList;
use ::rules::Effects;
use sip::{Body, Content, Endpoint};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, Session};

/// What a session description is, in its exchange (RFC 3264).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Offer,
    Answer,
    /// An answer of one early dialog; others may follow.
    EarlyAnswer,
}

/// What became of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// It passes as it came.
    Untouched,
    /// The description in the buffer takes its place.
    Rewritten,
    /// It does not pass.
    Nothing,
}

/// Where the session description of a message is. A Content-Type that cannot be read counts as none.
pub(crate) fn session_of(message: &Message<'_>) -> Session {
    if message.body().is_empty() {
        return Session::None;
    }
    let kind = message
        .header(HeaderId::ContentType)
        .filter(|_| message.content_type().is_ok());
    Session::of(kind, message.body())
}

/// Whether the message has a session description.
pub(crate) fn has_sdp(message: &Message<'_>) -> bool {
    session_of(message) != Session::None
}

/// Whether its session description stands among other parts.
pub(crate) fn is_multipart(message: &Message<'_>) -> bool {
    matches!(session_of(message), Session::Part(_))
}

/// The body of a passed message.
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

/// Writes the offer that is open once more, for another target or for when the sockets are open.
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

/// Option tags about which both ends of a leg agree among themselves, or that the endpoint writes by itself.
const HOP_TAGS: [&[u8]; 6] = [
    b"timer",
    b"100rel",
    b"replaces",
    b"path",
    b"outbound",
    b"gruu",
];

/// What we support whoever is at the other end: it is settled on each leg by itself.
const OWN_TAGS: &[u8] = b"100rel, timer, replaces";

/// Whether Supported in this message is relied upon (RFC 3261 section 20.37): then it names what both of us have.
fn promises(message: &Message<'_>) -> bool {
    matches!(message.method(), Method::Invite | Method::Update)
        && (message.is_request() || (200..300).contains(&message.status()))
}

/// Collects into `out` the option tags of `id` that go from end to end.
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

/// Collects into `out` what a request says is supported from end to end.
pub(crate) fn promised_end_to_end(message: &Message<'_>, out: &mut Vec<u8>) {
    end_to_end_tags(message, HeaderId::Supported, out);
}

/// Headers that tell of the network of whoever wrote them and are meant for others of the same network: charging (RFC 7315
/// sections 4.5 and 4.6), the visited network (4.3), and the way to its registrar (RFC 3608), which is ours to take.
const NETWORK: [HeaderId; 3] = [
    HeaderId::PChargingVector,
    HeaderId::PVisitedNetworkId,
    HeaderId::ServiceRoute,
];
/// The same, for a name that has no identifier.
const CHARGING_ADDRESSES: &[u8] = b"P-Charging-Function-Addresses";
/// In the place of the host in Warning: a pseudonym (RFC 3261 section 20.43).
const WARN_AGENT: &[u8] = b"hornwork";

/// The values of Warning without the hosts that they name.
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

/// Takes out what tells of a network; `warnings` are those of [`warnings`].
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

/// Header changes of a passed message, and the buffers that they are written in.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) texts: Texts,
    /// What header rules add.
    pub(crate) effects: Effects,
}

/// Buffers of what the border itself changes.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    own: OwnTexts,
    identity: identity::Texts,
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

/// What becomes of the body of a response that refuses something: a description in it would tell addresses that media which is
/// anchored does not go to.
pub(crate) fn refusal_body(call: &Call, response: &Message<'_>) -> Carried {
    let anchored = call.media.is_some() || call.relay.is_some();
    match anchored && has_sdp(response) {
        true => Carried::Nothing,
        false => Carried::Untouched,
    }
}

impl Core {
    /// Sees to the body of `message`, which came from `from`: the body for the other side is appended to `out`. Parts beside
    /// the session description stay as they came.
    ///
    /// # Errors
    /// [`AnchorError`]; the call's media is as before then.
    pub(crate) fn carry_body(
        &mut self,
        slot: usize,
        from: Side,
        message: &Message<'_>,
        role: Role,
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

    /// The same for the description alone, without the parts beside it.
    ///
    /// # Errors
    /// As [`Core::carry_body`].
    pub(crate) fn carry_sdp(
        &mut self,
        slot: usize,
        from: Side,
        message: &Message<'_>,
        role: Role,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let relayed = |call: &Call| call.relay.is_some();
        if self.calls.get(slot).is_some_and(relayed) {
            return self.relay_carry(slot, from, message, role, out);
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
            Role::Offer => media.offer(plane, from, sdp, out)?,
            Role::Answer => media.answer(plane, from, sdp, false, out)?,
            Role::EarlyAnswer => media.answer(plane, from, sdp, true, out)?,
        }
        Ok(Carried::Rewritten)
    }

    /// Forgets an offer that was refused.
    pub(crate) fn abandon_offer(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if let Some(media) = call.media.as_deref_mut() {
            media.abandon(&mut self.plane);
        }
        if let Some(relay) = call.relay.as_deref_mut() {
            relay.open = None;
        }
    }

    /// The open offer came to nothing, and so did that somebody else takes a side of the call.
    pub(crate) fn abandon_change(&mut self, slot: usize) {
        self.abandon_offer(slot);
        let call = self.calls.get_mut(slot);
        if let Some(media) = call.and_then(|call| call.media.as_deref_mut()) {
            media.go_home(&mut self.plane);
        }
    }

    /// What a message of `from` says of early media moves the call's gate, where there is one and `from` may say so.
    pub(crate) fn early_media(&mut self, slot: usize, from: Side, message: &Message<'_>) {
        if from != Side::Callee || !message.has(HeaderId::PEarlyMedia) {
            return;
        }
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let gated = call.media.as_deref().is_some_and(CallMedia::is_gated);
        let early = EarlyMedia::of(message);
        if call.phase != Phase::SetUp || !gated || early.is_none() || !self.believes(call, from) {
            return;
        }
        self.set_gate(slot, early);
    }

    /// Moves the gate of early media, or takes it away.
    pub(crate) fn set_gate(&mut self, slot: usize, gate: Option<EarlyMedia>) {
        if let Some(media) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut())
        {
            media.set_gate(&mut self.plane, gate);
        }
    }

    /// Whether an offer of `side` waits for its answer, as far as anchoring knows.
    pub(crate) fn open_offer(&self, slot: usize) -> Option<Side> {
        let call = self.calls.get(slot)?;
        match call.relay.as_deref() {
            Some(relay) => relay.open,
            None => call.media.as_deref()?.open_offer(),
        }
    }

    /// How identities pass between two sides of a call.
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
            from: self.believes(call, from),
            to: self.believes(call, to),
            wanted: trunk.is_none_or(|trunk| trunk.identity == Identity::Pass),
            proven,
            anchored: call.media.is_some()
                || call.relay.is_some()
                || call.set_up.as_ref().is_some_and(|set_up| set_up.anchor),
            hiding: self.config.hiding(*call.interfaces.get(to)),
        }
    }

    /// Refer-To with our address on the other side, where it names ours on this one: whoever follows it comes to us.
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

    /// The edits with which a message of `from` passes to the other side inside a dialog, those of header rules included;
    /// `host` is ours there where it is known already.
    pub(crate) fn pass_edits<'e>(
        &self,
        endpoint: &Endpoint,
        call: &'e Call,
        from: Side,
        message: &Message<'e>,
        host: Option<&[u8]>,
        changes: &'e mut Changes,
    ) -> Edits<'e> {
        let Changes { texts, effects } = changes;
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

    /// Adds the border's own edits to `edits`: written where they stay, for the list is large.
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
        // Where else to try, and what was not understood, belong to the answer itself.
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
            // What its own side wrote was taken out just now.
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

    /// Content that passes `message`.
    pub(crate) fn passed<'e>(
        message: &'e Message<'e>,
        edits: &'e [Edit<'e>],
        body: Body<'e>,
    ) -> Content<'e> {
        Content {
            template: Some(message),
            edits,
            body,
            reason: None,
        }
    }
}
