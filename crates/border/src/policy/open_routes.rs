//! Routes that are open to sources that have not authenticated.

use super::{Facts, Plan, RoutingState, decide};
use crate::emergency::is_emergency;
use config::{Authenticate, Config, RouteAction, RouteSpec, TrunkId};

/// Whether a source may use a route. If the trunk of registrations authenticates, an unregistered source reaches that
/// trunk (`passing`) alone. A call that digest exempts takes the routes that permit it alone.
pub(super) fn is_open(
    route: &RouteSpec,
    config: &Config,
    facts: &Facts<'_>,
    passing: Option<TrunkId>,
) -> bool {
    let permits = route.unauthenticated && (!facts.exempt || replaces_digest(route, config, facts));
    if facts.authenticated || permits {
        return true;
    }
    let interface = config.interface(facts.interface);
    let by_trunk = interface.is_some_and(|i| i.authenticate == Authenticate::Trunk);
    match &route.action {
        _ if facts.exempt => false,
        _ if !by_trunk => true,
        RouteAction::Reject { .. } => true,
        RouteAction::Registered => false,
        RouteAction::Trunks(trunks) => trunks.iter().all(|entry| Some(entry.trunk) == passing),
    }
}

/// Whether a route with `unauthenticated` concerns a call on an interface with digest: it names the interface, or the
/// call is one to a service or an emergency number. Other such routes were opened for interfaces without digest.
fn replaces_digest(route: &RouteSpec, config: &Config, facts: &Facts<'_>) -> bool {
    route.interfaces.contains(&facts.interface)
        || !route.to.services.is_empty()
        || is_emergency(config, facts.to)
}

/// Whether a call whose source would have to authenticate by digest needs no credentials: a route that permits it
/// decides.
pub(crate) fn permits_unauthenticated(
    config: &Config,
    facts: &Facts<'_>,
    view: &dyn RoutingState,
) -> bool {
    let facts = Facts {
        authenticated: false,
        exempt: true,
        ..*facts
    };
    // Most configurations have no such route.
    config.routes.iter().any(|route| route.unauthenticated)
        && match decide(config, &facts, view) {
            Plan::Call(_) => true,
            Plan::Refuse(refusal) => refusal.route.is_some(),
        }
}
