//! Header fields of forwarded out-of-dialog requests and their responses, and refusals.

use crate::headers::{
    EditList, address_with_host, hide_network, promised_end_to_end, proposes_targets,
    required_end_to_end, response_headers, warnings, without_credentials,
};
use crate::identity::{Boundary, IdentityTexts};
use crate::out_of_dialog::OutOfDialogControl;
use crate::request::{PeerLocation, RequestRefusal};
use crate::rules::apply::RuledAnswer;
use crate::targets::TargetHosts;
use ::rules::Effects;
use config::{Config, IdentityPassing, TrunkId};
use sip::{Flow, MessageContent, ServerTransaction};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, NameAddr};

/// Changes to header fields of an out-of-dialog request that is forwarded; empty values stay as they are.
#[derive(Debug, Default)]
pub(super) struct ForwardedFields {
    warnings: Vec<u8>,
    supported: Vec<u8>,
    require: Vec<u8>,
    refer_to: Vec<u8>,
    /// Credentials are for the target.
    keeps_credentials: bool,
}

impl ForwardedFields {
    /// Appends the changes: nothing about our network or our peer's, no credentials for others.
    pub(super) fn edits<'e>(&'e self, request: &Message<'e>, edits: &mut EditList<'e>) {
        hide_network(request, &self.warnings, edits);
        if !self.keeps_credentials {
            without_credentials(request, edits);
        }
        if !self.supported.is_empty() {
            edits.push(Edit::Add {
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
        if !self.refer_to.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::ReferTo,
                value: &self.refer_to,
            });
        }
    }
}

impl OutOfDialogControl<'_> {
    /// The header fields of a request of `sender` that is forwarded to `target`, whose credentials are for it or not.
    pub(super) fn forwarded_fields(
        &self,
        request: &Message<'_>,
        (sender, target): (Option<TrunkId>, Flow),
        keeps_credentials: bool,
    ) -> ForwardedFields {
        let mut fields = ForwardedFields {
            keeps_credentials,
            ..ForwardedFields::default()
        };
        warnings(request, self.hides_from(target), &mut fields.warnings);
        promised_end_to_end(request, &mut fields.supported);
        required_end_to_end(request, &mut fields.require);
        self.refer_to_at(request, (sender, target), &mut fields.refer_to);
        fields
    }

    /// Refer-To with our address on the side of `target`, if it contains our address on the side of the request or that
    /// of a hidden system there, and with the dialog that the trunk of `target` has in place of the one in Replaces.
    fn refer_to_at(
        &self,
        request: &Message<'_>,
        (sender, target): (Option<TrunkId>, Flow),
        out: &mut Vec<u8>,
    ) {
        if request.method() != Method::Refer {
            return;
        }
        let Ok(refer_to) = request.refer_to() else {
            return;
        };
        let there = self.parts.origin_of_flow(target);
        let trunk = there.and_then(|(_, trunk)| trunk);
        let calls = &self.parts.calls;
        let named = trunk.and_then(|id| calls.refer_to_at_trunk(self.endpoint, &refer_to, id));
        let uri = named.as_deref().unwrap_or(refer_to.uri);
        let hosts = self.target_hosts(sender, there);
        let address = || {
            let host = self.parts.listeners.advertised_host(target.local);
            (host, target.transport)
        };
        let moved = hosts.refer_to(uri, None, address);
        if let Some(uri) = moved.as_deref().or(named.as_deref()) {
            address_with_host(&NameAddr { uri, ..refer_to }, None, out);
        }
    }

    /// The hosts of a sender in targets that its messages propose to `receiver`.
    fn target_hosts(
        &self,
        sender: Option<TrunkId>,
        receiver: Option<PeerLocation>,
    ) -> TargetHosts<'_> {
        let config = &self.parts.ctx.config;
        let trunks = [sender, receiver.and_then(|(_, trunk)| trunk)];
        let trunks = trunks.map(|trunk| config.trunk(trunk?));
        let hiding = receiver.and_then(|(interface, _)| config.hiding(interface));
        TargetHosts::new(&self.parts.listeners, trunks, hiding)
    }

    /// Logs the refusal of a request, and answers it.
    pub(super) fn refuse_out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        let now = self.parts.ctx.now;
        self.calls()
            .send_refusal(request, flow, refused, |endpoint, content| {
                let _ = endpoint.respond(transaction, refused.status, content, now);
            });
    }

    /// Forwards a response of `responder` to an out-of-dialog request, with the identities that its sender may see and
    /// with topology hiding. An unknown responder is not trusted.
    pub(super) fn relay_response(
        &mut self,
        (server, source_flow): (ServerTransaction, Flow),
        responder: Option<PeerLocation>,
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let requester = self.parts.origin_of_flow(source_flow);
        let boundary = response_boundary(&config, responder, requester);
        let hides = boundary.hiding.is_some();
        let (mut relayed_warnings, mut required) = (Vec::new(), Vec::new());
        warnings(response, hides, &mut relayed_warnings);
        required_end_to_end(response, &mut required);
        let mut contacts = Vec::new();
        if proposes_targets(response) {
            let trunk = responder.and_then(|(_, trunk)| trunk);
            let hosts = self.target_hosts(trunk, requester);
            let address = || {
                let host = self.parts.listeners.advertised_host(source_flow.local);
                (host, source_flow.transport)
            };
            hosts.contacts(response, address, &mut contacts);
        }
        let (mut effects, mut texts) = (Effects::default(), IdentityTexts::default());
        let mut edits: EditList<'_> = SmallVec::new();
        hide_network(response, &relayed_warnings, &mut edits);
        response_headers(response, &contacts, &mut edits);
        if !required.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Require,
                value: &required,
            });
        }
        let host = || self.host_towards(requester, source_flow);
        boundary.edits(response, host, &mut texts, &mut edits);
        let answer = RuledAnswer {
            example: Some(response),
            ..RuledAnswer::own(source_flow, response.method(), response.status())
        };
        self.parts.rules_answer(answer, &mut edits, &mut effects);
        let content = MessageContent {
            reason: hides.then(|| sip::reason_phrase(response.status())),
            ..MessageContent::from_template(response).with(&edits)
        };
        // The transaction may have ended in the meantime.
        let _ = self
            .endpoint
            .respond(server, response.status(), &content, now);
    }

    /// Whether other networks are hidden from the peer of a flow.
    pub(super) fn hides_from(&self, flow: Flow) -> bool {
        let interface = self.parts.listeners.interface_of(flow.local);
        interface.is_some_and(|interface| self.parts.ctx.config.hiding(interface).is_some())
    }

    /// Our host towards the peer of a flow: the domain of its trunk, otherwise our address there.
    pub(super) fn host_towards(&self, peer: Option<PeerLocation>, flow: Flow) -> Vec<u8> {
        let trunk = peer
            .and_then(|(_, trunk)| trunk)
            .and_then(|trunk| self.parts.ctx.config.trunk(trunk));
        match trunk.and_then(|trunk| trunk.domain.as_ref()) {
            Some(domain) => domain.to_string().into_bytes(),
            None => self.parts.listeners.advertised_host(flow.local),
        }
    }
}

/// The boundary of trust of a response to a request outside of calls.
pub(crate) fn response_boundary(
    config: &Config,
    responder: Option<PeerLocation>,
    requester: Option<PeerLocation>,
) -> Boundary<'_> {
    let trusts = |peer: Option<PeerLocation>| {
        peer.is_some_and(|(interface, trunk)| config.trusts(interface, trunk))
    };
    let trunk = requester.and_then(|(_, trunk)| config.trunk(trunk?));
    Boundary {
        policy: &config.identity,
        from: trusts(responder),
        to: trusts(requester),
        wanted: trunk.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
        proven: None,
        anchored: false,
        hiding: requester.and_then(|(interface, _)| config.hiding(interface)),
    }
}
