//! Routes that are open to sources that have not authenticated.

use super::{Facts, Plan, Router, RoutingState, decide};
use config::{Authenticate, Config, RouteAction, RouteSpec};

impl Router<'_> {
    /// Whether this source may use a route. If the trunk of registrations authenticates, an unregistered source reaches
    /// that trunk alone. Calls that need no digest take the routes that permit them alone.
    pub(super) fn open_to(&self, route: &RouteSpec) -> bool {
        if self.facts.authenticated || route.unauthenticated {
            return true;
        }
        let interface = self.config.interface(self.facts.interface);
        let by_trunk = interface.is_some_and(|i| i.authenticate == Authenticate::Trunk);
        match &route.action {
            _ if self.facts.exempt => false,
            _ if !by_trunk => true,
            RouteAction::Reject { .. } => true,
            RouteAction::Registered => false,
            RouteAction::Trunks(trunks) => {
                let passing = self.passing_trunk();
                trunks.iter().all(|entry| Some(entry.trunk) == passing)
            }
        }
    }
}

/// Whether a route with `unauthenticated` decides about a call whose source would have to authenticate by digest.
pub(crate) fn permits_unauthenticated(
    config: &Config,
    facts: &Facts<'_>,
    state: &dyn RoutingState,
) -> bool {
    // Most configurations have no such route.
    if !config.routes.iter().any(|route| route.unauthenticated) {
        return false;
    }
    let facts = Facts {
        authenticated: false,
        exempt: true,
        ..*facts
    };
    match decide(config, &facts, state) {
        Plan::Call(_) => true,
        Plan::Refuse(refusal) => refusal.route.is_some(),
    }
}
