//! Warnings of `hornwork check`: trunks, phones and conferences that are reachable without authentication, and
//! challenges that are too large.

use super::address::Cidr;
use super::interfaces::{Authenticate, InterfaceKind, InterfaceSpec, Register};
use super::model::Config;
use super::names::{InterfaceId, TrunkId};
use super::routes::{Match, RouteAction, RouteSpec};
use super::trunks::Trunk;
use ::rules::PeerKind;

impl Config {
    /// Warnings, one sentence each: trunks, phones and conferences that unauthenticated sources reach, unless `allow`,
    /// `authenticate = "trunk"`, `unauthenticated = true` of a route or the PIN of a conference permits it explicitly.
    /// Networks as wide as [`Cidr::is_open`] do not restrict sources.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_digest = |interface: &InterfaceSpec| interface.authenticate == Authenticate::Digest;
        if self.interfaces.iter().any(is_digest) {
            warnings.extend(self.realm.omitted_challenges());
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
            let restricted =
                !interface.allow.is_empty() && !interface.allow.iter().any(Cidr::is_open);
            if restricted {
                continue;
            }
            let trunks = self.trunks.iter().filter(|trunk| trunk.interface == id);
            warnings.extend(trunks.filter_map(|trunk| self.open_trunk(interface, trunk)));
            // A core interface without `allow` serves only trunks, unless it registers phones.
            let closed_core = interface.kind == InterfaceKind::Core
                && interface.register == Register::Refuse
                && interface.allow.is_empty();
            if interface.authenticate == Authenticate::Digest || closed_core {
                continue;
            }
            self.open_rules(id, interface, &mut warnings);
            warnings.extend(self.answered_challenges(interface));
            if interface.authenticate == Authenticate::None {
                self.open_interface(id, interface, &mut warnings);
            }
        }
        warnings
    }

    /// The warning for a trunk whose requests come from any source.
    fn open_trunk(&self, interface: &InterfaceSpec, trunk: &Trunk) -> Option<String> {
        let network = trunk.sources.iter().find(|network| network.is_open())?;
        Some(format!(
            "trunk {}: any source of {network} counts as this trunk and needs no authentication; set `sources` to the addresses of the trunk, or `allow` of interface {}",
            trunk.name, interface.name
        ))
    }

    /// The warning for a trunk that is to authenticate the sources of an interface, but whose challenges the border
    /// answers itself.
    fn answered_challenges(&self, interface: &InterfaceSpec) -> Option<String> {
        let (Authenticate::Trunk, Register::Pass(trunk)) =
            (interface.authenticate, interface.register)
        else {
            return None;
        };
        let trunk = self
            .trunk(trunk)
            .filter(|trunk| trunk.credentials.is_some())?;
        let (name, interface) = (&trunk.name, &interface.name);
        Some(format!(
            "interface {interface}: any source reaches trunk {name} without authentication, because the border answers its challenges; remove `username` and `password` of the trunk, or set authenticate = \"digest\""
        ))
    }

    /// Adds warnings for header rules that send requests of unauthenticated sources to a trunk.
    fn open_rules(&self, id: InterfaceId, interface: &InterfaceSpec, warnings: &mut Vec<String>) {
        let kind = match interface.kind {
            InterfaceKind::Access => PeerKind::Access,
            InterfaceKind::Core => PeerKind::Core,
        };
        for (rule, trunk) in self.rules.routes_of(id.0, kind) {
            // The trunk of registrations authenticates.
            let authenticates = matches!(
                (interface.authenticate, interface.register),
                (Authenticate::Trunk, Register::Pass(passing)) if self.trunk_name(passing) == trunk
            );
            if !authenticates {
                warnings.push(format!(
                    "interface {}: any source reaches trunk {trunk} by {} without authentication; set `authenticate` or `allow` of the interface, or `kind` or `trunk` of the rule",
                    interface.name,
                    quoted("rule", rule)
                ));
            }
        }
    }

    /// Adds warnings for an interface without authentication.
    fn open_interface(
        &self,
        id: InterfaceId,
        interface: &InterfaceSpec,
        warnings: &mut Vec<String>,
    ) {
        let name = &interface.name;
        if interface.register == Register::Local {
            warnings.push(format!(
                "interface {name}: any source may register as any user and then receives the calls of that user; set authenticate = \"digest\", or `allow`"
            ));
        }
        for conference in &self.conferences {
            let concerns = conference.from_trunks.is_empty()
                && (conference.interfaces.is_empty() || conference.interfaces.contains(&id));
            if concerns && conference.pin.is_none() {
                warnings.push(format!(
                    "interface {name}: any source reaches conference {} without authentication; set `pin`, `interface` or `from_trunk` of the conference, or `authenticate` or `allow` of the interface",
                    conference.name
                ));
            }
        }
        if self.open_routes(id, name, warnings) {
            self.open_default(interface, warnings);
        } else if let Register::Pass(trunk) = interface.register
            && !self.routes_lead_to(id, trunk)
        {
            warnings.push(format!(
                "interface {name}: REGISTER of any source reaches trunk {} without authentication; set authenticate = \"trunk\" if that trunk authenticates, otherwise \"digest\" or `allow`",
                self.trunk_name(trunk)
            ));
        }
    }

    fn trunk_name(&self, id: TrunkId) -> &str {
        self.trunk(id).map_or("", |trunk| trunk.name.as_str())
    }

    /// The routes of sources of an interface that are no trunks.
    fn routes_of(&self, id: InterfaceId) -> impl Iterator<Item = &RouteSpec> {
        let concerns = move |route: &&RouteSpec| {
            let listed = route.interfaces.is_empty() || route.interfaces.contains(&id);
            listed && route.from_trunks.is_empty()
        };
        self.routes.iter().filter(concerns)
    }

    /// Whether [`Config::open_routes`] warns of this trunk.
    fn routes_lead_to(&self, id: InterfaceId, trunk: TrunkId) -> bool {
        let leads_there = |route: &RouteSpec| match &route.action {
            RouteAction::Trunks(trunks) if !route.unauthenticated => {
                trunks.iter().any(|entry| entry.trunk == trunk)
            }
            _ => false,
        };
        for route in self.routes_of(id) {
            if leads_there(route) {
                return true;
            }
            if route.matches_every_call() {
                return false;
            }
        }
        false
    }

    /// Adds warnings for routes of unauthenticated sources of an interface. Returns whether some calls match no route.
    fn open_routes(&self, id: InterfaceId, name: &str, warnings: &mut Vec<String>) -> bool {
        for route in self.routes_of(id) {
            let reached = match &route.action {
                RouteAction::Reject { .. } => None,
                RouteAction::Registered => Some("registered phones".to_owned()),
                RouteAction::Trunks(trunks) => {
                    let names: Vec<&str> = trunks
                        .iter()
                        .map(|entry| self.trunk_name(entry.trunk))
                        .collect();
                    Some(format!("trunk {}", names.join(", ")))
                }
            };
            if let Some(reached) = reached.filter(|_| !route.unauthenticated) {
                warnings.push(format!(
                    "interface {name}: any source reaches {reached} by {} without authentication; set `authenticate` or `allow` of the interface, or unauthenticated = true in the route",
                    quoted("route", &route.name)
                ));
            }
            if route.matches_every_call() {
                return false;
            }
        }
        true
    }

    /// Adds warnings for the destinations of requests that match no route.
    fn open_default(&self, interface: &InterfaceSpec, warnings: &mut Vec<String>) {
        let name = &interface.name;
        if interface.register == Register::Local {
            warnings.push(format!(
                "interface {name}: any source reaches the phones that are registered there without authentication; set authenticate = \"digest\", or `allow`"
            ));
        }
        match interface.register {
            Register::Pass(trunk) => warnings.push(format!(
                "interface {name}: any source reaches trunk {} without authentication; set authenticate = \"trunk\" if that trunk authenticates, otherwise \"digest\" or `allow`",
                self.trunk_name(trunk)
            )),
            Register::Local | Register::Refuse if self.routes.is_empty() => {
                let names: Vec<&str> = self.trunks.iter().map(|trunk| trunk.name.as_str()).collect();
                if !names.is_empty() {
                    warnings.push(format!(
                        "interface {name}: any source reaches trunk {} without authentication, because there is no route; set `authenticate` or `allow`",
                        names.join(", ")
                    ));
                }
            }
            Register::Local | Register::Refuse => {}
        }
    }
}

impl RouteSpec {
    /// Whether it matches every call.
    pub fn matches_every_call_anywhere(&self) -> bool {
        self.matches_every_call() && self.interfaces.is_empty() && self.from_trunks.is_empty()
    }

    /// Whether it matches every call of its interfaces.
    fn matches_every_call(&self) -> bool {
        self.from.is_empty() && self.to.is_empty() && self.action != RouteAction::Registered
    }
}

impl Match {
    /// Whether every address matches.
    pub(super) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
            && self.regex.is_none()
            && self.domains.is_empty()
            && self.users.is_empty()
            && self.services.is_empty()
    }
}

/// `route 3`, or the configured name in quotes.
pub(super) fn quoted(table: &str, name: &str) -> String {
    let number = name
        .strip_prefix(table)
        .and_then(|rest| rest.strip_prefix(' '));
    match number {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => format!("{table} \"{name}\""),
    }
}

#[cfg(test)]
mod tests;
