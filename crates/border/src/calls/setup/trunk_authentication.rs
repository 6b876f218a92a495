//! Interfaces with `authenticate = "trunk"`: wrong credentials are known by the response of the trunk, logged and
//! limited.

use crate::components::Components;
use crate::headers::is_anonymous;
use crate::registrar::{Claim, TrunkClaim, TrunkCredentials};
use crate::request::{RequestRefusal, address_of_record, user_at};
use config::{Authenticate, Register, TrunkId};
use sip::Flow;
use wire::sip::{Message, Method};

impl Components {
    /// The trunk that verifies the credentials of requests from this source.
    pub(super) fn verifying_trunk(&self, flow: Flow) -> Option<TrunkId> {
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

    /// Whether the credentials of requests outside a dialog from this source are for this trunk: it is that of the
    /// registrations, and the border does not verify them itself. A trunk with credentials of its own gets none,
    /// because the border answers its challenges.
    pub(crate) fn relays_credentials(&self, flow: Flow, to: Option<TrunkId>) -> bool {
        let Some(to) = to else { return false };
        let Some(interface) = self.listeners.interface_of(flow.local) else {
            return false;
        };
        let config = &self.ctx.config;
        config.interface(interface).is_some_and(|settings| {
            settings.register == Register::Pass(to) && settings.authenticate != Authenticate::Digest
        }) && self
            .listeners
            .trunk_at(&self.ctx, interface, &flow)
            .is_none()
            && config.trunk(to).is_some()
            && !self.has_login(Some(to))
    }

    /// Whether the border answers the challenges of this trunk with credentials of its own.
    pub(crate) fn has_login(&self, trunk: Option<TrunkId>) -> bool {
        trunk
            .and_then(|trunk| self.ctx.config.trunk(trunk))
            .is_some_and(|trunk| trunk.credentials.is_some())
    }

    /// Refuses credentials for the trunk whose source or user has failed too often.
    pub(crate) fn check_trunk_credentials(
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
            authenticated: false,
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

    /// The trunk has given its final response to a request that was forwarded to it; `authenticated`: it challenges
    /// such requests.
    pub(crate) fn trunk_answered(
        &mut self,
        (request, authenticated): (&[u8], bool),
        flow: Flow,
        response: &Message<'_>,
    ) {
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
            authenticated,
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
    pub(crate) fn claim_of(&self, request: &Message<'_>, flow: Flow) -> (String, Claim) {
        let aor = match request.method() {
            Method::Register => address_of_record(request),
            _ => {
                let from = request.from().ok();
                let withheld = from.filter(is_anonymous).and_then(|_| {
                    let authority = &self.registrar.authority;
                    authority.read(|authority| authority.withheld_aor(&self.ctx.config, request))
                });
                let from = from.and_then(|from| user_at(&from));
                withheld.unwrap_or_else(|| from.map_or_else(String::new, String::from))
            }
        };
        let stored = match request.method() {
            Method::Register => self.stored_address_of_record(request, flow),
            _ => aor.clone(),
        };
        let location = &self.registrar.location;
        let host = flow.remote.ip();
        let is_changed = stored != aor;
        let claim = Claim {
            source: flow.remote,
            registered: location.holds(&aor, flow) || is_changed && location.holds(&stored, flow),
            registered_host: location.knows_host(&aor, host)
                || is_changed && location.knows_host(&stored, host),
        };
        (aor, claim)
    }
}
