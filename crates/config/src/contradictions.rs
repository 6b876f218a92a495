//! Conditions of routes and header rules that exclude each other, so that they never apply.

use super::interfaces::InterfaceKind;
use super::model::Config;
use super::names::{InterfaceId, TrunkId};
use super::warnings::quoted;
use ::rules::{PeerKind, RuleSpec};

impl Config {
    /// Hints about routes and rules that no message matches.
    pub(super) fn contradictions(&self) -> Vec<String> {
        let routes = self.routes.iter().filter(|route| {
            let at = |trunk: &TrunkId| self.is_at(*trunk, &route.interfaces);
            !route.interfaces.is_empty()
                && !route.from_trunks.is_empty()
                && !route.from_trunks.iter().any(at)
        });
        let routes = routes.map(|route| {
            format!(
                "{}: it takes no call, because the trunks of `from_trunk` have other interfaces than `interface`; correct one of them",
                quoted("route", &route.name)
            )
        });
        let rules = self.rules.specs().iter();
        let rules = rules.filter(|rule| !self.has_peer(rule)).map(|rule| {
            format!(
                "{}: it applies to no message, because `interface`, `kind` and `trunk` exclude each other; correct one of them",
                quoted("rule", &rule.name)
            )
        });
        routes.chain(rules).collect()
    }

    /// Whether a trunk is reached through one of these interfaces.
    fn is_at(&self, trunk: TrunkId, interfaces: &[InterfaceId]) -> bool {
        self.trunk(trunk)
            .is_some_and(|trunk| interfaces.contains(&trunk.interface))
    }

    /// Whether any peer fulfils the conditions of a rule on peers.
    fn has_peer(&self, rule: &RuleSpec) -> bool {
        let interfaces: Vec<InterfaceId> = match rule.interfaces.is_empty() {
            true => (0..).take(self.interfaces.len()).map(InterfaceId).collect(),
            false => rule.interfaces.iter().copied().map(InterfaceId).collect(),
        };
        let is_kind = |kind: PeerKind| rule.kinds.is_empty() || rule.kinds.contains(&kind);
        if !rule.trunks.is_empty() {
            let mut trunks = rule.trunks.iter().copied().map(TrunkId);
            return is_kind(PeerKind::Trunk) && trunks.any(|trunk| self.is_at(trunk, &interfaces));
        }
        // A trunk may be added behind each interface.
        is_kind(PeerKind::Trunk)
            || interfaces
                .iter()
                .filter_map(|id| self.interface(*id))
                .any(|interface| {
                    is_kind(match interface.kind {
                        InterfaceKind::Access => PeerKind::Access,
                        InterfaceKind::Core => PeerKind::Core,
                    })
                })
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn conditions_that_exclude_each_other_are_hinted_at() {
        let hints = |more: &str| {
            let text = format!(
                "[[interface]]\nname=\"out\"\nlisten=\"udp:192.0.2.1\"\n\
                 [[interface]]\nname=\"in\"\nkind=\"core\"\nlisten=\"udp:198.51.100.1\"\n\
                 [[trunk]]\nname=\"t\"\ninterface=\"in\"\ntarget=\"198.51.100.2\"\n{more}\n"
            );
            parse(&text, "f").unwrap().hints().join("\n")
        };
        let route = |conditions: &str| hints(&format!("[[route]]\n{conditions}\ntrunk=\"t\"\n"));
        let found = route("interface=\"out\"\nfrom_trunk=\"t\"");
        assert!(found.contains("route 1: it takes no call"), "{found}");
        for conditions in [
            "interface=[\"out\",\"in\"]\nfrom_trunk=\"t\"",
            "interface=\"out\"",
            "from_trunk=\"t\"",
        ] {
            assert_eq!(route(conditions), "", "{conditions}");
        }
        let rule = |conditions: &str| {
            hints(&format!(
                "[[rules]]\ndirection=\"in\"\n{conditions}\ndo=[{{log=\"x\"}}]\n"
            ))
        };
        for conditions in [
            "kind=\"access\"\ntrunk=\"t\"",
            "interface=\"out\"\ntrunk=\"t\"",
            "interface=\"in\"\nkind=\"access\"",
        ] {
            let found = rule(conditions);
            assert!(
                found.contains("rule 1: it applies to no message"),
                "{conditions}: {found}"
            );
        }
        for conditions in [
            "",
            "kind=\"trunk\"",
            "kind=[\"access\",\"trunk\"]\ntrunk=\"t\"",
            "interface=\"out\"\nkind=\"access\"",
            "interface=\"out\"\nkind=\"trunk\"",
        ] {
            assert_eq!(rule(conditions), "", "{conditions}");
        }
    }
}
