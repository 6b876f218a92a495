//! Ways by which a source that has not authenticated reaches a trunk or a registered phone: what `hornwork check` warns of.

use super::*;

impl Config {
    /// Each way by which an unauthenticated source reaches a trunk or a registered phone, one sentence each. Networks in
    /// `allow`, `authenticate = "trunk"` and `unauthenticated = true` of a route are consent. Keys by their former names, too.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.node_care.former_key {
            warnings.push(
                "media.node_check is the former name of media.node_check_ms and will be refused by the next release; set node_check_ms, in milliseconds".to_owned(),
            );
        }
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
            // On a core interface trunks alone are served, unless it registers phones.
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

    /// Routes that unauthenticated sources of an interface take; whether some of their calls match no route.
    fn open_routes(&self, id: InterfaceId, name: &str, warnings: &mut Vec<String>) -> bool {
        for route in &self.routes {
            let concerns = route.interfaces.is_empty() || route.interfaces.contains(&id);
            if !concerns || !route.from_trunks.is_empty() {
                continue;
            }
            let reached = match &route.action {
                Action::Reject { .. } => None,
                Action::Registered => Some("registered phones".to_owned()),
                Action::Trunks(trunks) => {
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
            if route.takes_all() {
                return false;
            }
        }
        true
    }

    /// Where requests go that no route takes.
    fn open_default(&self, interface: &Interface, warnings: &mut Vec<String>) {
        let name = &interface.name;
        match interface.register {
            Register::Pass(trunk) => warnings.push(format!(
                "interface {name}: any source reaches trunk {} without authentication; set authenticate = \"trunk\" where that trunk authenticates, else \"digest\" or `allow`",
                self.trunk_name(trunk)
            )),
            Register::Local | Register::Refuse if self.routes.is_empty() => {
                let names: Vec<&str> = self.trunks.iter().map(|trunk| trunk.name.as_str()).collect();
                if !names.is_empty() {
                    warnings.push(format!(
                        "interface {name}: any source reaches trunk {} without authentication, as there is no route; set `authenticate` or `allow`",
                        names.join(", ")
                    ));
                }
            }
            Register::Local | Register::Refuse => {}
        }
    }
}

impl Route {
    /// Whether no call of its interfaces goes past it.
    fn takes_all(&self) -> bool {
        self.from.is_empty() && self.to.is_empty() && self.action != Action::Registered
    }
}

impl Match {
    /// Whether every address meets it.
    pub(super) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
            && self.regex.is_none()
            && self.domains.is_empty()
            && self.users.is_empty()
            && self.services.is_empty()
    }
}

/// `route 3`, or a name of its own in quotes.
fn quoted(name: &str) -> String {
    match name.strip_prefix("route ") {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => format!("route \"{name}\""),
    }
}
