//! `[[route]]`: names are resolved to indices, regular expressions compiled, contradictions and unreachable routes
//! refused.

use super::address::HostName;
use super::names::{InterfaceId, TrunkId};
use super::one_or_many::OneOrMany;
use super::sink::Sink;
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

fn one() -> u16 {
    1
}

/// Conditions on an address. All of them must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMatch {
    /// Prefixes of the user part.
    #[serde(default)]
    pub prefix: OneOrMany<String>,
    /// Regular expression for the whole user part.
    pub regex: Option<String>,
    /// Hosts.
    #[serde(default)]
    pub domain: OneOrMany<String>,
    /// User parts.
    #[serde(default)]
    pub user: OneOrMany<String>,
    /// In `to` only: service URNs (RFC 5031), each including the services below it: `urn:service:sos` includes
    /// `urn:service:sos.fire`. A service URN has neither user part nor host.
    #[serde(default)]
    pub urn: OneOrMany<String>,
}

/// A trunk of a route, with priority and weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRouteTrunkTable {
    /// Name of the trunk.
    pub name: String,
    /// Trunks of lower priority values are tried first.
    #[serde(default)]
    pub priority: u16,
    /// Share of calls among trunks of the same priority. 0: used only if no other trunk is left.
    #[serde(default = "one")]
    pub weight: u16,
}

/// A trunk of a route.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawRouteTrunk {
    /// Name; in a list, trunks are tried in order.
    Short(String),
    /// With priority and weight.
    Full(RawRouteTrunkTable),
}

/// A refusal with a reason phrase.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRejectTable {
    /// SIP status.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
    /// Reason phrase. Default: that of the status.
    pub reason: Option<String>,
}

/// A refusal.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawReject {
    /// SIP status.
    Short(#[schemars(range(min = 400, max = 699))] u16),
    /// With a reason phrase.
    Full(RawRejectTable),
}

/// A route: conditions, changes of the called number, and one of `trunk`, `registered` and `reject`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoute {
    /// Name in logs. Default: `route N`.
    pub name: Option<String>,
    /// Condition: interfaces from which the call comes.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: trunks from which the call comes.
    #[serde(default)]
    pub from_trunk: OneOrMany<String>,
    /// Conditions on the caller.
    #[serde(default)]
    pub from: RawMatch,
    /// Conditions on the called address.
    #[serde(default)]
    pub to: RawMatch,
    /// Number of leading characters removed from the called number. Applied first.
    #[serde(default)]
    #[schemars(range(max = 64))]
    pub strip: u32,
    /// Replacement for the match of `to.regex`, used instead of `strip`; `$1` is the first group. With `to.urn`: the
    /// number to call instead of the service, such as 112; without it the URN is passed unchanged.
    pub replace: Option<String>,
    /// Prefix added to the called number. Applied last.
    #[serde(default)]
    pub prefix: String,
    /// Action: send the call to this trunk, or to the first of several that accepts it. Parameters of the number
    /// (`npdi`, `rn`, `cic`, `phone-context`) pass from trunk to trunk, if the route does not change the number; those
    /// of phones are removed. `user=phone` passes always.
    pub trunk: Option<OneOrMany<RawRouteTrunk>>,
    /// Action: send the call to the contacts of the called user, registered here.
    #[serde(default)]
    pub registered: bool,
    /// Action: refuse the call with this status.
    pub reject: Option<RawReject>,
    /// Whether sources that have not authenticated may use this route, for example for emergency calls. With
    /// `authenticate = "digest"` calls without credentials that take such a route are not challenged, if the route
    /// names the interface or the call is an emergency call or one to a service; no other route, no header rule and no
    /// conference takes them. A call that a route before it would take is challenged.
    #[serde(default)]
    pub unauthenticated: bool,
    /// `anchor`: media is relayed by the border or a media node. `bypass`: SDP is passed unchanged, and the sides send
    /// media to each other.
    #[serde(default)]
    pub media: MediaMode,
}

/// Treatment of media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum MediaMode {
    /// Media is relayed by the border or a media node.
    #[default]
    Anchor,
    /// Anchored at a media node: `anchor` in a border whose `[media] anchor` is `nodes`.
    #[serde(skip)]
    Node,
    /// Media bypass: SDP is passed unchanged, and the sides send media to each other.
    Bypass,
}

/// A route of calls.
#[derive(Clone, Debug)]
pub struct RouteSpec {
    /// Name for logs; `route N`, counted from 1, if none is configured.
    pub name: String,
    /// Interfaces from which the call may come. Empty: any.
    pub interfaces: Vec<InterfaceId>,
    /// Trunks from which the call may come. Empty: any, and calls that come from no trunk.
    pub from_trunks: Vec<TrunkId>,
    /// Conditions on the caller.
    pub from: Match,
    /// Conditions on the called address.
    pub to: Match,
    /// Changes of the called number.
    pub rewrite: NumberRewrite,
    /// Destination.
    pub action: RouteAction,
    /// Whether sources that have not authenticated may use the route although a trunk authenticates.
    pub unauthenticated: bool,
    /// Treatment of media.
    pub media: MediaMode,
}

/// Conditions on an address. All of them must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Prefixes of the user part. Empty: any.
    pub prefixes: Vec<String>,
    /// Expression for the whole user part (anchored at both ends).
    pub regex: Option<Regex>,
    /// Hosts, compared without regard to case. Empty: any.
    pub domains: Vec<String>,
    /// User parts. Empty: any.
    pub users: Vec<String>,
    /// Service URNs in lower case (`urn:service:sos`), each including the services below it. Empty: any.
    pub services: Vec<String>,
}

/// Changes of the called number: strip, then replace, then prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberRewrite {
    /// Number of leading characters removed.
    pub strip: usize,
    /// Replacement for the match of `to.regex`; `$1` is the first group.
    pub replace: Option<String>,
    /// Prefix added.
    pub prefix: String,
}

/// Destination of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// The first of these trunks that accepts it.
    Trunks(Vec<RouteTrunk>),
    /// The contacts of a registered user.
    Registered,
    /// Refused.
    Reject {
        /// Status, 400 to 699.
        status: u16,
        /// Reason phrase, unless it is that of the status.
        reason: Option<String>,
    },
}

/// A trunk of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTrunk {
    /// The trunk.
    pub trunk: TrunkId,
    /// Lower values are tried first.
    pub priority: u16,
    /// Share among trunks of the same priority. 0: only if no other is left.
    pub weight: u16,
}

pub(super) fn routes(raw: &[RawRoute], sink: &mut Sink<'_>) -> Vec<RouteSpec> {
    let mut catch_all: Option<usize> = None;
    let mut routes = Vec::new();
    for (index, route) in raw.iter().enumerate() {
        let path = format!("route[{index}]");
        let checked = route_of(route, index, &path, sink);
        if let Some(earlier) = catch_all {
            let line = sink.line(&format!("route[{earlier}]"));
            sink.report(
                &path,
                format!("the route is unreachable: the route in line {line} matches every call"),
                "move it before that route, or add a condition to that route",
            );
        }
        if catch_all.is_none() && is_catch_all(&checked) {
            catch_all = Some(index);
        }
        routes.push(checked);
    }
    routes
}

fn is_catch_all(route: &RouteSpec) -> bool {
    route.interfaces.is_empty()
        && route.from_trunks.is_empty()
        && route.from.is_empty()
        && route.to.is_empty()
        // Calls to unregistered users continue with the next route.
        && route.action != RouteAction::Registered
}

fn route_of(route: &RawRoute, index: usize, path: &str, sink: &mut Sink<'_>) -> RouteSpec {
    let interfaces = names(&route.interface, &format!("{path}.interface"))
        .map(|(name, at)| sink.interface_id(name, &at))
        .collect();
    let from_trunks = names(&route.from_trunk, &format!("{path}.from_trunk"))
        .map(|(name, at)| sink.trunk_id(name, &at))
        .collect();
    let from = match_of(&route.from, &format!("{path}.from"), sink);
    let to = match_of(&route.to, &format!("{path}.to"), sink);
    services(route, path, sink);
    RouteSpec {
        name: route
            .name
            .clone()
            .unwrap_or_else(|| format!("route {}", index + 1)),
        interfaces,
        from_trunks,
        rewrite: rewrite(route, &to, path, sink),
        from,
        to,
        action: action(route, path, sink),
        unauthenticated: route.unauthenticated,
        media: route.media,
    }
}

fn names<'r>(
    names: &'r OneOrMany<String>,
    path: &'r str,
) -> impl Iterator<Item = (&'r str, String)> {
    names
        .as_slice()
        .iter()
        .enumerate()
        .map(move |(index, name)| (name.as_str(), names.path(path, index)))
}

/// Anchored at both ends: an unanchored expression for numbers is nearly always a security hole.
pub(super) fn anchored(text: &str, path: &str, sink: &mut Sink<'_>) -> Option<Regex> {
    let compile = |text: &str| regex::RegexBuilder::new(text).size_limit(1 << 20).build();
    // Alone first: in `a)|(b` the parentheses around it would end, and the anchors would hold for a part each.
    match compile(text).and_then(|_| compile(&format!("^(?:{text})$"))) {
        Ok(regex) => Some(regex),
        Err(error) => {
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().to_owned();
            sink.report(
                path,
                format!("\"{text}\" is not a valid regular expression: {why}"),
                "correct it; in TOML, '...' preserves backslashes",
            );
            None
        }
    }
}

fn match_of(raw: &RawMatch, path: &str, sink: &mut Sink<'_>) -> Match {
    let regex = raw
        .regex
        .as_ref()
        .and_then(|text| anchored(text, &format!("{path}.regex"), sink));
    for (list, key) in [
        (&raw.prefix, "prefix"),
        (&raw.user, "user"),
        (&raw.domain, "domain"),
    ] {
        for (text, at) in names(list, &format!("{path}.{key}")) {
            if text.is_empty() && key != "domain" {
                sink.report(
                    &at,
                    format!("`{key}` is empty"),
                    "write a value, or remove the key",
                );
            }
            if key == "domain" && HostName::parse(text).is_none_or(|host| host.port.is_some()) {
                sink.report(
                    &at,
                    format!("\"{text}\" is not a host"),
                    "write a name or an address, without a port",
                );
            }
        }
    }
    Match {
        prefixes: raw.prefix.as_slice().to_vec(),
        regex,
        domains: raw
            .domain
            .as_slice()
            .iter()
            .map(
                |domain| match HostName::parse(domain).and_then(|host| host.ip()) {
                    // In the form of policy, whichever is written.
                    Some(ip) => ip.to_string(),
                    None => domain.to_ascii_lowercase(),
                },
            )
            .collect(),
        users: raw.user.as_slice().to_vec(),
        services: raw
            .urn
            .as_slice()
            .iter()
            .map(|urn| urn.to_ascii_lowercase())
            .collect(),
    }
}

/// Conditions on service URNs, and conditions that cannot be combined with them.
fn services(route: &RawRoute, path: &str, sink: &mut Sink<'_>) {
    if !route.from.urn.as_slice().is_empty() {
        sink.report(
            &format!("{path}.from.urn"),
            "`urn` is not supported in `from`: callers are not services",
            "move it to `to`",
        );
    }
    let at = format!("{path}.to.urn");
    for (text, at) in names(&route.to.urn, &at) {
        if !is_service(text) {
            sink.report(
                &at,
                format!("\"{text}\" is not a service URN (RFC 5031)"),
                "write for example urn:service:sos or urn:service:sos.fire",
            );
        }
    }
    if route.to.urn.as_slice().is_empty() {
        return;
    }
    let to = &route.to;
    let of_user = [&to.prefix, &to.user, &to.domain]
        .iter()
        .any(|list| !list.as_slice().is_empty())
        || to.regex.is_some();
    if of_user {
        sink.report(
            &at,
            "the route matches no call: a service URN has neither user part nor host, which other conditions in `to` require",
            "use two routes",
        );
    }
    if route.strip != 0 || !route.prefix.is_empty() {
        sink.report(
            &at,
            "`strip` and `prefix` have no effect on a service URN",
            "set the number to call in `replace`",
        );
    }
    if route.registered {
        sink.report(
            &at,
            "a service cannot be registered",
            "set `trunk` instead of `registered`",
        );
    }
}

/// `urn:service:` with labels of letters, digits and hyphens between dots (RFC 5031 section 3).
fn is_service(urn: &str) -> bool {
    const SERVICE: &str = "urn:service:";
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    urn.get(..SERVICE.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SERVICE))
        && urn
            .get(SERVICE.len()..)
            .is_some_and(|labels| labels.split('.').all(label))
}

fn rewrite(route: &RawRoute, to: &Match, path: &str, sink: &mut Sink<'_>) -> NumberRewrite {
    if let Some(replace) = &route.replace {
        let at = format!("{path}.replace");
        match &to.regex {
            // The number to call instead of the service.
            None if !route.to.urn.as_slice().is_empty() => {}
            None if route.to.regex.is_none() => sink.report(
                &at,
                "`replace` has no effect without `to.regex`",
                "add to = { regex = \"...\" }",
            ),
            None => {}
            Some(regex) => {
                if let Some(group) = missing_group(replace, regex) {
                    sink.report(
                        &at,
                        format!("`to.regex` has no group {group}"),
                        format!("its groups are 0 to {}", regex.captures_len() - 1),
                    );
                }
            }
        }
        if route.strip != 0 {
            sink.report(
                &format!("{path}.strip"),
                "`strip` and `replace` cannot be combined",
                "do both with `replace`",
            );
        }
    }
    for (key, text) in [
        ("prefix", Some(&route.prefix)),
        ("replace", route.replace.as_ref()),
    ] {
        if text.is_some_and(|text| {
            text.bytes()
                .any(|b| b <= b' ' || b >= 0x7f || b"<>@\"".contains(&b))
        }) {
            sink.report(
                &format!("{path}.{key}"),
                format!("`{key}` contains characters that are not allowed in a called number"),
                "use digits, letters and - _ . + * #",
            );
        }
    }
    NumberRewrite {
        strip: route.strip as usize,
        replace: route.replace.clone(),
        prefix: route.prefix.clone(),
    }
}

/// The first `$N`, `${N}` or `${name}` without a group in the expression. A bare `$1abc` refers to the group `1abc`, a
/// frequent mistake that this reports.
fn missing_group(replace: &str, regex: &Regex) -> Option<String> {
    let mut rest = replace;
    while let Some(at) = rest.find('$') {
        rest = rest.get(at + 1..).unwrap_or_default();
        if let Some(behind) = rest.strip_prefix('$') {
            rest = behind;
            continue;
        }
        let name: String = match rest.strip_prefix('{') {
            Some(inner) => inner.chars().take_while(|c| *c != '}').collect(),
            None => rest
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect(),
        };
        let known = match name.parse::<usize>() {
            Ok(number) => number < regex.captures_len(),
            Err(_) => regex.capture_names().flatten().any(|known| known == name),
        };
        if !known {
            return Some(name);
        }
    }
    None
}

fn action(route: &RawRoute, path: &str, sink: &mut Sink<'_>) -> RouteAction {
    let count = usize::from(route.trunk.is_some())
        + usize::from(route.registered)
        + usize::from(route.reject.is_some());
    if count != 1 {
        let message = if count == 0 {
            "the route has no action"
        } else {
            "the route has several actions"
        };
        sink.report(
            path,
            message,
            "set exactly one of `trunk`, `registered = true` and `reject`",
        );
    }
    if let Some(reject) = &route.reject {
        let (status, reason) = match reject {
            RawReject::Short(status) => (*status, None),
            RawReject::Full(table) => (table.status, table.reason.clone()),
        };
        if reason
            .as_ref()
            .is_some_and(|reason| reason.chars().any(char::is_control))
        {
            sink.report(
                &format!("{path}.reject.reason"),
                "`reason` contains control characters",
                "write one line",
            );
        }
        return RouteAction::Reject { status, reason };
    }
    let Some(trunks) = &route.trunk else {
        return RouteAction::Registered;
    };
    let base = format!("{path}.trunk");
    if trunks.as_slice().is_empty() {
        sink.report(&base, "`trunk` is an empty list", "add at least one trunk");
    }
    let mut chosen: Vec<RouteTrunk> = Vec::new();
    for (index, trunk) in trunks.as_slice().iter().enumerate() {
        let mut at = trunks.path(&base, index);
        let (name, priority, weight) = match trunk {
            // Trunks are tried in the order of the list.
            RawRouteTrunk::Short(name) => (name, u16::try_from(index).unwrap_or(u16::MAX), 1),
            RawRouteTrunk::Full(table) => {
                at.push_str(".name");
                (&table.name, table.priority, table.weight)
            }
        };
        let trunk = sink.trunk_id(name, &at);
        if chosen.iter().any(|other| other.trunk == trunk) && sink.names.trunks.contains(name) {
            sink.report(
                &at,
                format!("trunk \"{name}\" is listed twice"),
                "remove one of the two",
            );
        }
        chosen.push(RouteTrunk {
            trunk,
            priority,
            weight,
        });
    }
    RouteAction::Trunks(chosen)
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    fn route(conditions: &str) -> Result<super::RouteSpec, String> {
        let text = format!(
            "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\n\
             [[route]]\nto={{{conditions}}}\ntrunk=\"t\"\n"
        );
        parse(&text, "f")
            .map(|config| config.routes[0].clone())
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    /// Parentheses that end the group of the anchors would leave the expression without them.
    #[test]
    fn expression_with_unbalanced_parentheses_is_refused() {
        for text in ["00|11)|(22", ")(", "(0"] {
            let why = route(&format!("regex='{text}'")).unwrap_err();
            assert!(
                why.contains("is not a valid regular expression") && why.contains("f:8:"),
                "{text}: {why}"
            );
        }
        let regex = route("regex='00|11|(22)'").unwrap().to.regex.unwrap();
        assert!(regex.is_match("22") && !regex.is_match("0049") && !regex.is_match("122"));
    }

    #[test]
    fn domains_are_compared_in_the_form_of_policy() {
        let domains = "domain=[\"2001:DB8:0::1\",\"[2001:db8::2]\",\"192.0.2.9\",\"Example.COM\"]";
        assert_eq!(
            route(domains).unwrap().to.domains,
            ["2001:db8::1", "2001:db8::2", "192.0.2.9", "example.com"]
        );
    }
}
