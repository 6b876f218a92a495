//! Selection of the worker for a call to a conference: all participants belong to one worker. It is selected before
//! the INVITE is processed, by the number that is called after header rules.

use crate::components::Components;
use crate::request::{RequestOrigin, user_at};
use ::rules::RuleDirection;
use sip::Flow;
use wire::sip::{Message, Method, request_uri};

impl Components {
    /// The worker that owns an INVITE, or the CANCEL of one; `None` where no conference is called.
    pub(crate) fn conference_owner(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        let siblings = self.worker.siblings.as_ref()?;
        if self.ctx.config.conferences.is_empty() {
            return None;
        }
        let interface = self.listeners.interface_of(flow.local)?;
        let trunk = self.listeners.trunk_at(&self.ctx, interface, flow);
        let origin = RequestOrigin {
            interface,
            trunk,
            authenticated: trunk.is_some(),
        };
        let rules = &self.ctx.config.rules;
        let invites = bytes.trim_ascii_start().starts_with(b"INVITE ");
        let called = match invites && rules.applies_to(RuleDirection::In, true, &Method::Invite) {
            true => self.called_after_rules(bytes, origin, flow)?,
            // Rules do not apply to a CANCEL.
            false => self.called_conference(request_uri(bytes)?, origin)?,
        };
        Some(siblings.conference_owner(&called.number))
    }

    /// The conference that is called after header rules.
    fn called_after_rules(
        &self,
        bytes: &[u8],
        origin: RequestOrigin,
        flow: &Flow,
    ) -> Option<crate::calls::conference::state::CalledConference> {
        // Datagrams that are dropped unread must not cost rules.
        let socket = self.listeners.point(flow.local)?.socket;
        if flow.connection.is_none()
            && !self
                .listeners
                .is_source_allowed(&self.ctx, socket, flow.remote)
        {
            return None;
        }
        let request = Message::parse(bytes).ok()?;
        let user = match origin.requires_authentication(&self.ctx.config) {
            // A user other than that of From is refused after authentication, and without credentials the request is
            // repeated.
            true => request.from().ok().and_then(|from| user_at(&from)),
            false => self.registered_user(origin, &request, *flow),
        };
        let outcome = self.apply_first_rules(&request, origin, *flow, user.as_deref());
        let uri = outcome.uri().unwrap_or(request.request_uri());
        let passes = outcome.refusal.is_none() && outcome.route.is_none();
        passes.then(|| self.called_conference(uri, origin))?
    }
}
