//! Routes: names are resolved to indices, regular expressions compiled, contradictions and unreachable routes refused.

use super::check::{Sink, interface_id, trunk_id};
use super::raw::*;
use super::*;

pub(super) fn check(raw: &Raw, sink: &mut Sink<'_>) -> Vec<RouteSpec> {
    let mut catch_all: Option<usize> = None;
    let mut routes = Vec::new();
    for (index, route) in raw.route.iter().enumerate() {
        let path = format!("route[{index}]");
        let checked = route_of(raw, route, index, &path, sink);
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

fn route_of(
    raw: &Raw,
    route: &RawRoute,
    index: usize,
    path: &str,
    sink: &mut Sink<'_>,
) -> RouteSpec {
    let interfaces = names(&route.interface, &format!("{path}.interface"))
        .map(|(name, at)| interface_id(raw, name, &at, sink))
        .collect();
    let from_trunks = names(&route.from_trunk, &format!("{path}.from_trunk"))
        .map(|(name, at)| trunk_id(raw, name, &at, sink))
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
        action: action(raw, route, path, sink),
        unauthenticated: route.unauthenticated,
        media: match route.media {
            RawMediaMode::Anchor => MediaMode::Anchor,
            RawMediaMode::Bypass => MediaMode::Bypass,
        },
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
    match regex::RegexBuilder::new(&format!("^(?:{text})$"))
        .size_limit(1 << 20)
        .build()
    {
        Ok(regex) => Some(regex),
        Err(error) => {
            let why = regex::Regex::new(text).err().unwrap_or(error).to_string();
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
            .map(|domain| domain.trim_matches(['[', ']']).to_ascii_lowercase())
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

fn action(raw: &Raw, route: &RawRoute, path: &str, sink: &mut Sink<'_>) -> RouteAction {
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
        let trunk = trunk_id(raw, name, &at, sink);
        if chosen.iter().any(|other| other.trunk == trunk)
            && raw.trunk.iter().any(|t| t.name == *name)
        {
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
