//! Interfaces with `authenticate = "trunk"`: wrong credentials are known by the response of the trunk, logged and limited.

use crate::calls::key::CallSlot;
use crate::components::{Calls, Components};
use crate::registrar::{Claim, TrunkClaim, TrunkCredentials};
use crate::request::{RequestRefusal, address_of_record, user_at};
use anchor::Side;
use config::{Authenticate, Register, TrunkId};
use sip::Flow;
use wire::sip::{Message, Method};

impl Calls<'_> {
    /// A target has given its final response to an INVITE with or without credentials.
    pub(super) fn invite_answered(&mut self, slot: CallSlot, hop: u16, response: &Message<'_>) {
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let flow = call
            .leg(Side::Caller)
            .and_then(|leg| self.endpoint.flow_of(leg));
        let set_up = call.kind.set_up();
        let hop = set_up.and_then(|set_up| set_up.hops.get(usize::from(hop)));
        let (Some(flow), Some(trunk)) = (flow, hop.and_then(|hop| hop.trunk)) else {
            return;
        };
        if self.parts.verifying_trunk(flow) != Some(trunk) {
            return;
        }
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let invite = std::mem::take(&mut set_up.invite);
        self.parts.trunk_answered(&invite, flow, response);
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.invite = invite;
        }
    }
}

impl Components {
    /// The trunk that verifies the credentials of requests from this source.
    fn verifying_trunk(&self, flow: Flow) -> Option<TrunkId> {
        let interface = self.listeners.interface_of(flow.local)?;
        let settings = self.ctx.config.interface(interface)?;
        let verifies = settings.authenticate == Authenticate::Trunk;
        match settings.register {
            Register::Pass(trunk) if verifies => self
                .listeners
                .trunk_at(&self.ctx, interface, &flow)
                .is_none()
                .then_some(trunk),
            _ => None,
        }
    }

    /// Refuses credentials for the trunk whose source or user has failed too often.
    pub(super) fn check_trunk_credentials(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(), RequestRefusal> {
        if self.verifying_trunk(flow).is_none() {
            return Ok(());
        }
        let Some(credentials) = TrunkCredentials::of(request).map_err(RequestRefusal::new)? else {
            return Ok(());
        };
        let (aor, claim) = self.claim_of(request, flow);
        let of = TrunkClaim {
            credentials: &credentials,
            aor: &aor,
            claim,
        };
        let delay = self
            .registrar
            .authority
            .lock()
            .trunk_delay(of, self.ctx.now);
        match delay {
            Some((user, after)) => Err(self.delayed(flow, (&aor, &user), after)),
            None => Ok(()),
        }
    }

    /// The trunk has given its final response to a request that was forwarded to it.
    pub(crate) fn trunk_answered(&mut self, request: &[u8], flow: Flow, response: &Message<'_>) {
        let now = self.ctx.now;
        let Some(trunk) = self.verifying_trunk(flow) else {
            return;
        };
        let Ok(request) = Message::parse(request) else {
            return;
        };
        let Ok(Some(credentials)) = TrunkCredentials::of(&request) else {
            return;
        };
        let (aor, claim) = self.claim_of(&request, flow);
        let of = TrunkClaim {
            credentials: &credentials,
            aor: &aor,
            claim,
        };
        let refused = self
            .registrar
            .authority
            .lock()
            .trunk_answered(of, response, now);
        if let Some(user) = refused {
            let trunk = self.ctx.config.name_of_trunk(Some(trunk));
            let reason = format!("refused by trunk {}", trunk.unwrap_or_default());
            self.report_failure(flow, (&aor, &user), &reason);
        }
    }

    /// The address of record of a request, and its claims.
    pub(super) fn claim_of(&self, request: &Message<'_>, flow: Flow) -> (String, Claim) {
        let aor = match request.method() {
            Method::Register => address_of_record(request),
            _ => {
                let from = request.from().ok().and_then(|from| user_at(&from));
                from.map_or_else(String::new, String::from)
            }
        };
        let claim = Claim {
            source: flow.remote,
            registered: self.registrar.location.holds(&aor, flow),
            registered_host: self.registrar.location.knows_host(&aor, flow.remote.ip()),
        };
        (aor, claim)
    }
}
