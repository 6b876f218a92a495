//! Warnings of `hornwork check`: trunks and phones that are reachable without authentication, and former names of keys.

use super::interfaces::{Authenticate, InterfaceKind, InterfaceSpec, Register};
use super::model::Config;
use super::names::{InterfaceId, TrunkId};
use super::routes::{Match, RouteAction, RouteSpec};

impl Config {
    /// Warnings, one sentence each: former names of keys, and trunks and phones that unauthenticated sources reach,
    /// unless `allow`, `authenticate = "trunk"` or `unauthenticated = true` of a route permits it explicitly.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.renamed_keys.clone();
        for (index, interface) in self.interfaces.iter().enumerate() {
            let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
            if interface.authenticate != Authenticate::None || !interface.allow.is_empty() {
                continue;
            }
            let name = &interface.name;
            if interface.register == Register::Local {
                warnings.push(format!(
                    "interface {name}: any source may register as any user and then receives the calls of that user; set authenticate = \"digest\", or `allow`"
                ));
            }
            // A core interface serves only trunks, unless it registers phones.
            if interface.kind == InterfaceKind::Core && interface.register == Register::Refuse {
                continue;
            }
            if self.open_routes(id, name, &mut warnings) {
                self.open_default(interface, &mut warnings);
            }
        }
        warnings
    }

    fn trunk_name(&self, id: TrunkId) -> &str {
        self.trunk(id).map_or("", |trunk| trunk.name.as_str())
    }

    /// Adds warnings for routes of unauthenticated sources of an interface. Returns whether some calls match no route.
    fn open_routes(&self, id: InterfaceId, name: &str, warnings: &mut Vec<String>) -> bool {
        for route in &self.routes {
            let concerns = route.interfaces.is_empty() || route.interfaces.contains(&id);
            if !concerns || !route.from_trunks.is_empty() {
                continue;
            }
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
                    quoted(&route.name)
                ));
            }
            if route.matches_every_call() {
                return false;
            }
        }
        true
    }

    /// Adds warnings for the destination of requests that match no route.
    fn open_default(&self, interface: &InterfaceSpec, warnings: &mut Vec<String>) {
        let name = &interface.name;
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
fn quoted(name: &str) -> String {
    match name.strip_prefix("route ") {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => format!("route \"{name}\""),
    }
}
