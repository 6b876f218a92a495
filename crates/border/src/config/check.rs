//! From what is written to what makes sense: names to indices, texts to addresses, contradictions refused.

use super::address::{self, Cidr, HostName, ListenAddress};
use super::mistake::{Mistake, did_you_mean};
use super::node::Node;
use super::raw::*;
use super::{routes, schema, *};
use engine::Transport;
use std::collections::BTreeMap;

pub(super) fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    let document = toml_edit::ImDocument::parse(text).map_err(|error| {
        vec![Mistake::new(
            text,
            file,
            error.span().unwrap_or(0..0),
            format!("this is not TOML: {}", error.message().trim().replace('\n', ", ")),
            "correct the line; texts stand in quotes, lists in [ ], tables begin with [name] or [[name]]".into(),
        )]
    })?;
    let node = Node::document(document.as_table(), text.len());
    let schema = schema::schema();
    let mut sink = Sink {
        text,
        file,
        node: &node,
        mistakes: Vec::new(),
    };
    for violation in schema::violations(&schema, &node) {
        sink.mistakes.push(Mistake::new(
            text,
            file,
            violation.span,
            violation.message,
            violation.remedy,
        ));
    }
    if !sink.mistakes.is_empty() {
        return Err(sink.sorted());
    }
    let raw: Raw = serde_json::from_value(node.to_json()).map_err(|error| {
        vec![Mistake::new(
            text,
            file,
            0..0,
            error.to_string(),
            "compare with docs/configuration.md".into(),
        )]
    })?;
    let config = check(&raw, &mut sink);
    if sink.mistakes.is_empty() {
        Ok(config)
    } else {
        Err(sink.sorted())
    }
}

/// Collects mistakes; places are named by path.
pub(super) struct Sink<'t> {
    text: &'t str,
    file: &'t str,
    node: &'t Node,
    mistakes: Vec<Mistake>,
}

impl Sink<'_> {
    pub(super) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.mistakes.push(Mistake::new(
            self.text,
            self.file,
            self.node.span_of(path),
            message.into(),
            remedy.into(),
        ));
    }

    /// For other messages: the line of a path.
    pub(super) fn line(&self, path: &str) -> usize {
        let start = self.node.span_of(path).start.min(self.text.len());
        self.text
            .bytes()
            .take(start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }

    fn sorted(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| mistake.span.start);
        self.mistakes
    }
}

fn check(raw: &Raw, sink: &mut Sink<'_>) -> Config {
    let mut config = Config {
        interfaces: Vec::new(),
        trunks: Vec::new(),
        routes: Vec::new(),
        users: users(raw, sink),
        realm: Realm {
            name: raw.realm.name.clone(),
            algorithms: algorithms(raw, sink),
            nonce_lifetime: seconds(raw.realm.nonce_lifetime),
        },
        registrar: registrar(raw, sink),
        media: Media {
            timeout: optional_seconds(raw.media.timeout),
            hold_timeout: optional_seconds(raw.media.hold_timeout),
            dscp: raw.media.dscp,
        },
        media_ranges: Vec::new(),
        sip: Sip {
            agent: raw.sip.agent.clone(),
            dscp: raw.sip.dscp,
            ring_timeout: seconds(raw.sip.ring_timeout),
        },
        session_timer: session_timer(raw, sink),
        limits: limits(raw),
        dns: Dns {
            servers: servers(raw, sink),
        },
        drain: Drain {
            timeout: seconds(raw.drain.timeout),
        },
        log: Log {
            level: match raw.log.level {
                RawLevel::Error => "error",
                RawLevel::Warn => "warn",
                RawLevel::Info => "info",
                RawLevel::Debug => "debug",
                RawLevel::Trace => "trace",
            }
            .to_owned(),
            json: raw.log.format == RawFormat::Json,
        },
    };
    if !one_line(&raw.sip.agent) {
        sink.report("sip.agent", "`agent` has control characters in it", "write one line of text");
    }
    if !one_line(&raw.realm.name) || raw.realm.name.contains(['"', '\\']) {
        sink.report(
            "realm.name",
            "`name` of the realm has quotes or control characters in it",
            "write a plain text such as a domain",
        );
    }
    unique_names(raw, sink);
    let mut placed = Vec::new();
    for (index, interface) in raw.interface.iter().enumerate() {
        let checked = interface_of(raw, interface, index, &mut config.media_ranges, &mut placed, sink);
        config.interfaces.push(checked);
    }
    if config.interfaces.is_empty() {
        sink.report("interface", "there is no interface", "add an [[interface]] with name and listen");
    }
    listening_clashes(&config.interfaces, raw, sink);
    for (index, trunk) in raw.trunk.iter().enumerate() {
        let checked = trunk_of(raw, trunk, index, &config.interfaces, sink);
        config.trunks.push(checked);
    }
    config.routes = routes::check(raw, sink);
    config
}

pub(super) fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

fn optional_seconds(value: u32) -> Option<Duration> {
    (value > 0).then(|| seconds(value))
}

fn one_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn users(raw: &Raw, sink: &mut Sink<'_>) -> BTreeMap<String, User> {
    let mut users = BTreeMap::new();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, user) in raw.user.iter().enumerate() {
        let path = format!("user[{index}]");
        let name_path = format!("{path}.name");
        if let Some(&earlier) = first.get(user.name.as_str()) {
            let line = sink.line(&format!("user[{earlier}].name"));
            sink.report(
                &name_path,
                format!("user \"{}\" is there already, in line {line}", user.name),
                "take one of the two out",
            );
            continue;
        }
        first.insert(&user.name, index);
        if user.name.bytes().any(|b| b <= b' ' || b >= 0x7f || b"\"<>@:;?\\".contains(&b)) {
            sink.report(
                &name_path,
                format!("\"{}\" cannot be the user part of a SIP address", user.name),
                "use letters, digits and - _ . + *",
            );
        }
        let secret = match (&user.password, &user.ha1) {
            (Some(_), Some(_)) => {
                sink.report(
                    &format!("{path}.ha1"),
                    "both `password` and `ha1` are there",
                    "take one of the two out",
                );
                continue;
            }
            (Some(password), None) if password.is_empty() => {
                sink.report(
                    &format!("{path}.password"),
                    "the password is empty",
                    "write a password",
                );
                continue;
            }
            (Some(password), None) => Secret::Password(password.clone()),
            (None, Some(ha1)) => {
                if ha1.len() != 32 || !ha1.bytes().all(|b| b.is_ascii_hexdigit()) {
                    sink.report(
                        &format!("{path}.ha1"),
                        "`ha1` must be 32 hexadecimal digits",
                        format!("write MD5 of \"{}:{}:PASSWORD\"", user.name, raw.realm.name),
                    );
                }
                Secret::Ha1(ha1.to_ascii_lowercase())
            }
            (None, None) => {
                sink.report(
                    &path,
                    format!("user \"{}\" has no password", user.name),
                    "add `password` or `ha1`",
                );
                continue;
            }
        };
        let name = user.name.clone();
        users.insert(name.clone(), User { name, secret });
    }
    users
}

fn algorithms(raw: &Raw, sink: &mut Sink<'_>) -> Vec<DigestAlgorithm> {
    let mut algorithms = Vec::new();
    for (index, algorithm) in raw.realm.algorithms.iter().enumerate() {
        let algorithm = match algorithm {
            RawAlgorithm::Md5 => DigestAlgorithm::Md5,
            RawAlgorithm::Sha256 => DigestAlgorithm::Sha256,
            RawAlgorithm::Sha512T256 => DigestAlgorithm::Sha512T256,
        };
        if algorithms.contains(&algorithm) {
            sink.report(
                &format!("realm.algorithms[{index}]"),
                format!("{} is there twice", algorithm.name()),
                "take one of the two out",
            );
        }
        algorithms.push(algorithm);
    }
    // Of a hash only MD5 can be checked, and who is asked is not known when the challenge is made.
    if raw.user.iter().any(|user| user.ha1.is_some()) {
        if !algorithms.contains(&DigestAlgorithm::Md5) {
            sink.report(
                "realm.algorithms",
                "users have `ha1`, with which only MD5 can be checked, and MD5 is not offered",
                "add \"MD5\", or give those users a password",
            );
        }
        algorithms.retain(|algorithm| *algorithm == DigestAlgorithm::Md5);
    }
    algorithms
}

fn registrar(raw: &Raw, sink: &mut Sink<'_>) -> Registrar {
    let r = &raw.registrar;
    if r.min_expires > r.max_expires {
        sink.report(
            "registrar.min_expires",
            format!("min_expires ({}) is above max_expires ({})", r.min_expires, r.max_expires),
            "lower it, or raise max_expires",
        );
    }
    if !(r.min_expires..=r.max_expires.max(r.min_expires)).contains(&r.default_expires) {
        sink.report(
            "registrar.default_expires",
            format!(
                "default_expires ({}) is not from min_expires ({}) to max_expires ({})",
                r.default_expires, r.min_expires, r.max_expires
            ),
            "set all three so that they fit",
        );
    }
    if r.nat_expires != 0 && r.nat_expires < r.min_expires {
        sink.report(
            "registrar.nat_expires",
            format!("nat_expires ({}) is below min_expires ({})", r.nat_expires, r.min_expires),
            "raise it, or lower min_expires, or set it to 0",
        );
    }
    Registrar {
        min_expires: r.min_expires,
        max_expires: r.max_expires,
        default_expires: r.default_expires,
        max_contacts: r.max_contacts as usize,
        nat_expires: r.nat_expires,
        flow_timer: r.flow_timer,
    }
}

fn session_timer(raw: &Raw, sink: &mut Sink<'_>) -> SessionTimer {
    let timer = &raw.session_timer;
    if timer.expires != 0 && timer.expires < timer.min {
        sink.report(
            "session_timer.expires",
            format!("expires ({}) is below min ({})", timer.expires, timer.min),
            "raise it, or set it to 0",
        );
    }
    SessionTimer {
        expires: optional_seconds(timer.expires),
        min: seconds(timer.min),
    }
}

fn limits(raw: &Raw) -> Limits {
    Limits {
        calls: raw.limits.calls as usize,
        transactions: raw.limits.transactions as usize,
        registrations: raw.limits.registrations as usize,
        contacts_per_aor: raw.registrar.max_contacts as usize,
        connections: raw.limits.connections as usize,
        connections_per_source: raw.limits.connections_per_source as usize,
        message_bytes: raw.limits.message_bytes as usize,
        ..Limits::default()
    }
}

fn servers(raw: &Raw, sink: &mut Sink<'_>) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for (index, text) in raw.dns.servers.iter().enumerate() {
        match HostName::parse(text).and_then(|host| Some((host.ip()?, host.port))) {
            Some((ip, port)) => servers.push(SocketAddr::new(ip, port.unwrap_or(53))),
            None => sink.report(
                &format!("dns.servers[{index}]"),
                format!("\"{text}\" is no IP address"),
                "write ADDRESS or ADDRESS:PORT, IPv6 with a port as [ADDRESS]:PORT",
            ),
        }
    }
    servers
}

fn unique_names(raw: &Raw, sink: &mut Sink<'_>) {
    let interfaces: Vec<&str> = raw.interface.iter().map(|i| i.name.as_str()).collect();
    let trunks: Vec<&str> = raw.trunk.iter().map(|t| t.name.as_str()).collect();
    for (what, names) in [("interface", interfaces), ("trunk", trunks)] {
        for (index, name) in names.iter().enumerate() {
            if let Some(earlier) = names.iter().take(index).position(|other| other == name) {
                let line = sink.line(&format!("{what}[{earlier}].name"));
                sink.report(
                    &format!("{what}[{index}].name"),
                    format!("{what} \"{name}\" is there already, in line {line}"),
                    "give it another name",
                );
            }
        }
        // Indices are 16 bits wide.
        if names.len() > 10_000 {
            sink.report(
                &format!("{what}[10000]"),
                format!("more than 10000 of [[{what}]]"),
                "divide them among several borders",
            );
        }
    }
}

/// The trunk of this name; a mistake at `path` where there is none.
pub(super) fn trunk_id(raw: &Raw, name: &str, path: &str, sink: &mut Sink<'_>) -> TrunkId {
    let names = || raw.trunk.iter().map(|trunk| trunk.name.as_str());
    match names().position(|known| known == name) {
        Some(at) => TrunkId(u16::try_from(at).unwrap_or(u16::MAX)),
        None => {
            unknown("trunk", name, names().collect(), path, sink);
            TrunkId(0)
        }
    }
}

/// The interface of this name; a mistake at `path` where there is none.
pub(super) fn interface_id(raw: &Raw, name: &str, path: &str, sink: &mut Sink<'_>) -> InterfaceId {
    let names = || raw.interface.iter().map(|interface| interface.name.as_str());
    match names().position(|known| known == name) {
        Some(at) => InterfaceId(u16::try_from(at).unwrap_or(u16::MAX)),
        None => {
            unknown("interface", name, names().collect(), path, sink);
            InterfaceId(0)
        }
    }
}

fn unknown(what: &str, name: &str, known: Vec<&str>, path: &str, sink: &mut Sink<'_>) {
    let remedy = match did_you_mean(name, known.iter().copied()) {
        Some(word) => format!("did you mean \"{word}\"?"),
        None if known.is_empty() => format!("add a [[{what}]] with name = \"{name}\""),
        None => format!("there are: {}", known.join(", ")),
    };
    sink.report(path, format!("there is no {what} \"{name}\""), remedy);
}

pub(super) fn cidrs(texts: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<Cidr> {
    let mut networks = Vec::new();
    for (index, text) in texts.as_slice().iter().enumerate() {
        match Cidr::parse(text) {
            Ok(network) => networks.push(network),
            Err(why) => sink.report(
                &texts.path(path, index),
                why,
                "write a network such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
            ),
        }
    }
    networks
}

fn host(text: &str, path: &str, sink: &mut Sink<'_>) -> Option<HostName> {
    let host = HostName::parse(text);
    if host.is_none() {
        sink.report(
            path,
            format!("\"{text}\" is neither a host name nor an address"),
            "write HOST or HOST:PORT, IPv6 with a port as [ADDRESS]:PORT",
        );
    }
    host
}

fn interface_of(
    raw: &Raw,
    interface: &RawInterface,
    index: usize,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Interface {
    let path = format!("interface[{index}]");
    let listen = listen(interface, &format!("{path}.listen"), sink);
    let advertise = interface
        .advertise
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.advertise"), sink));
    if interface.advertise.is_none() && listen.iter().any(|l| l.address.ip().is_unspecified()) {
        sink.report(
            &format!("{path}.listen"),
            "listening on every address, so that it is not known which one to tell others",
            "add `advertise` with the address at which others reach this interface, or listen on that address",
        );
    }
    let authenticate = match interface.authenticate {
        RawAuthenticate::None => Authenticate::None,
        RawAuthenticate::Digest => Authenticate::Digest,
    };
    if authenticate == Authenticate::Digest && raw.user.is_empty() {
        sink.report(
            &format!("{path}.authenticate"),
            "digest is demanded, but there is no user who could prove anything",
            "add a [[user]] with name and password, or set authenticate = \"none\"",
        );
    }
    Interface {
        name: interface.name.clone(),
        kind: match interface.kind {
            RawKind::Access => InterfaceKind::Access,
            RawKind::Core => InterfaceKind::Core,
        },
        allow: cidrs(&interface.allow, &format!("{path}.allow"), sink),
        authenticate,
        register: register(raw, interface, &path, sink),
        media: media_addresses(interface, &listen, &path, ranges, placed, sink),
        listen,
        advertise,
    }
}

fn listen(interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Vec<ListenAddress> {
    let mut listen = Vec::new();
    if interface.listen.as_slice().is_empty() {
        sink.report(path, "`listen` is empty", "add for example \"udp:192.0.2.1:5060\"");
    }
    for (index, text) in interface.listen.as_slice().iter().enumerate() {
        let at = interface.listen.path(path, index);
        let (transport, rest) = match address::split_transport(text) {
            Ok((Some(transport), rest)) => (transport, rest),
            Ok((None, _)) => {
                sink.report(
                    &at,
                    format!("\"{text}\" does not say which transport"),
                    format!("write \"udp:{text}\" or \"tcp:{text}\""),
                );
                continue;
            }
            Err(why) => {
                sink.report(&at, why, "this build carries SIP over udp and tcp");
                continue;
            }
        };
        let parsed = HostName::parse(rest);
        match parsed.as_ref().and_then(|host| Some((host.ip()?, host.port))) {
            Some((ip, port)) => {
                let address = SocketAddr::new(ip, port.unwrap_or(5060));
                listen.push(ListenAddress { transport, address });
            }
            None if parsed.is_some() => sink.report(
                &at,
                format!("\"{rest}\" is a name; an interface listens on an IP address"),
                "write the address, and the name as `advertise`",
            ),
            None => sink.report(
                &at,
                format!("\"{rest}\" is no address and port"),
                "write udp:ADDRESS:PORT with a port from 1 to 65535, IPv6 as udp:[ADDRESS]:PORT",
            ),
        }
    }
    listen
}

fn register(raw: &Raw, interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Register {
    let at = format!("{path}.register");
    match interface.register.as_deref() {
        None if raw.user.is_empty() => Register::Refuse,
        None => Register::Local,
        Some("local") => Register::Local,
        Some("refuse") => Register::Refuse,
        Some(text) => match text.strip_prefix("pass:") {
            Some(name) => Register::Pass(trunk_id(raw, name, &at, sink)),
            None => {
                let remedy = "write \"local\", \"pass:TRUNK\" or \"refuse\"";
                sink.report(&at, format!("\"{text}\" is no value of `register`"), remedy);
                Register::Refuse
            }
        },
    }
}

fn media_addresses(
    interface: &RawInterface,
    listen: &[ListenAddress],
    path: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Vec<MediaAddress> {
    let base = format!("{path}.media");
    let default = [RawMediaAddress {
        address: None,
        advertise: None,
        ports: default_ports(),
    }];
    let (written, entries): (bool, &[RawMediaAddress]) = match interface.media.as_slice() {
        [] => (false, &default),
        entries => (true, entries),
    };
    let mut addresses: Vec<MediaAddress> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = if written { interface.media.path(&base, index) } else { path.to_owned() };
        let Some(address) = media_address(entry, listen, &at, sink) else {
            continue;
        };
        let Some((first, last)) = media_ports(&entry.ports, &format!("{at}.ports"), sink) else {
            continue;
        };
        if addresses.iter().any(|other| other.address.is_ipv4() == address.is_ipv4()) {
            sink.report(
                &at,
                "a second media address of the same address family",
                "keep one for IPv4 and one for IPv6",
            );
            continue;
        }
        let range = MediaRange { address, first, last };
        let Some(range) = place_range(range, &at, ranges, placed, sink) else {
            continue;
        };
        let advertise = entry.advertise.as_ref().and_then(|text| {
            let at = format!("{at}.advertise");
            let ip = ip_address(text, &at, sink)?;
            if ip.is_ipv4() != address.is_ipv4() {
                sink.report(
                    &at,
                    format!("{ip} is of another address family than {address}"),
                    "advertise an address of the same family",
                );
            }
            Some(ip)
        });
        addresses.push(MediaAddress {
            range,
            address,
            advertise,
        });
    }
    for listen in listen {
        let ports = addresses.iter().filter_map(|media| ranges.get(media.range));
        for range in ports {
            let inside = (range.first..=range.last).contains(&listen.address.port());
            if listen.transport == Transport::Udp
                && range.address == listen.address.ip()
                && inside
            {
                sink.report(
                    &format!("{path}.listen"),
                    format!(
                        "port {} of udp:{} lies in the media ports {}-{}",
                        listen.address.port(),
                        listen.address.ip(),
                        range.first,
                        range.last
                    ),
                    "move the listening port or the range `media.ports`",
                );
            }
        }
    }
    addresses
}

fn media_address(
    entry: &RawMediaAddress,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) -> Option<IpAddr> {
    if let Some(text) = &entry.address {
        let at = format!("{at}.address");
        let ip = ip_address(text, &at, sink)?;
        if ip.is_unspecified() {
            sink.report(
                &at,
                "media cannot be told to come to every address",
                "write the one address that others reach; behind NAT, the true one as `advertise`",
            );
            return None;
        }
        return Some(ip);
    }
    // Where nothing could be read of `listen`, that was reported.
    let ip = listen.first()?.address.ip();
    if ip.is_unspecified() {
        sink.report(
            at,
            "it is not known on which address media is to be anchored",
            "add media = { address = \"ADDRESS\" }",
        );
        return None;
    }
    Some(ip)
}

fn ip_address(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<IpAddr> {
    let ip = text.trim_matches(['[', ']']).parse().ok();
    if ip.is_none() {
        sink.report(
            at,
            format!("\"{text}\" is no IP address"),
            "write an address such as \"192.0.2.1\" or \"2001:db8::1\", without a port",
        );
    }
    ip
}

fn media_ports(text: &str, at: &str, sink: &mut Sink<'_>) -> Option<(u16, u16)> {
    let remedy = "write FIRST-LAST with an even first and an odd last port, for example \"20000-39999\"";
    let (first, last) = match address::port_range(text) {
        Ok(range) => range,
        Err(why) => {
            sink.report(at, why, remedy);
            return None;
        }
    };
    if first > last {
        sink.report(at, format!("the range {first}-{last} ends before it begins"), remedy);
        return None;
    }
    if first % 2 == 1 || last % 2 == 0 {
        sink.report(
            at,
            format!("{first}-{last} does not consist of whole pairs of an even and an odd port"),
            format!("write \"{}-{}\"", first & !1, last | 1),
        );
        return None;
    }
    if last - first < 3 {
        sink.report(
            at,
            format!("{first}-{last} is too small: a call takes one pair on each side"),
            "give at least four ports",
        );
        return None;
    }
    if first < 1024 {
        sink.report(
            at,
            format!("{first}-{last} holds ports below 1024, which an unprivileged user may not open"),
            "begin at 1024 or above",
        );
        return None;
    }
    Some((first, last))
}

/// The index of this range; ranges that overlap without being the same are refused.
fn place_range(
    range: MediaRange,
    at: &str,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> Option<usize> {
    if let Some(known) = ranges.iter().position(|known| *known == range) {
        return Some(known);
    }
    let clash = ranges.iter().position(|known| {
        known.address == range.address && known.first <= range.last && range.first <= known.last
    });
    if let Some(clash) = clash {
        let other = ranges[clash];
        let line = placed.get(clash).map_or(1, |path| sink.line(path));
        sink.report(
            at,
            format!(
                "media ports {}-{} of {} overlap with {}-{} in line {line}",
                range.first, range.last, range.address, other.first, other.last
            ),
            "give both interfaces the same range (they then share it), or ranges apart",
        );
        return None;
    }
    ranges.push(range);
    placed.push(at.to_owned());
    Some(ranges.len() - 1)
}

fn listening_clashes(interfaces: &[Interface], raw: &Raw, sink: &mut Sink<'_>) {
    let mut seen: Vec<(ListenAddress, String)> = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        for (place, listen) in interface.listen.iter().enumerate() {
            let base = format!("interface[{index}].listen");
            let at = raw
                .interface
                .get(index)
                .map_or(base.clone(), |raw| raw.listen.path(&base, place));
            let clash = seen.iter().find(|(other, _)| {
                other.transport == listen.transport
                    && other.address.port() == listen.address.port()
                    && same_place(other.address.ip(), listen.address.ip())
            });
            if let Some((other, path)) = clash {
                let line = sink.line(path);
                sink.report(
                    &at,
                    format!("{listen} is taken already by {other} in line {line}"),
                    "choose another port or address",
                );
            }
            seen.push((*listen, at));
        }
    }
}

/// Whether sockets on both addresses and one port exclude each other.
fn same_place(a: IpAddr, b: IpAddr) -> bool {
    a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()))
}

fn trunk_of(
    raw: &Raw,
    trunk: &RawTrunk,
    index: usize,
    interfaces: &[Interface],
    sink: &mut Sink<'_>,
) -> Trunk {
    let path = format!("trunk[{index}]");
    let interface = match (&trunk.interface, raw.interface.len()) {
        (Some(name), _) => interface_id(raw, name, &format!("{path}.interface"), sink),
        (None, 0 | 1) => InterfaceId(0),
        (None, _) => {
            sink.report(
                &path,
                format!("trunk \"{}\" does not say through which interface it is reached", trunk.name),
                format!(
                    "add interface = \"{}\"",
                    raw.interface.last().map_or("", |i| i.name.as_str())
                ),
            );
            InterfaceId(0)
        }
    };
    let listen = interfaces
        .get(usize::from(interface.0))
        .map_or(&[][..], |interface| interface.listen.as_slice());
    let targets = targets(trunk, &path, listen, sink);
    let domain = trunk
        .domain
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.domain"), sink));
    if let Some(user) = &trunk.from_user
        && (user.is_empty() || user.bytes().any(|b| b <= b' ' || b"<>@\"".contains(&b)))
    {
        sink.report(
            &format!("{path}.from_user"),
            format!("\"{user}\" cannot be the user part of a SIP address"),
            "write a number or a name",
        );
    }
    let register = trunk
        .register
        .as_ref()
        .and_then(|account| carrier(trunk, account, &domain, &targets, &path, sink));
    Trunk {
        name: trunk.name.clone(),
        interface,
        sources: cidrs(&trunk.sources, &format!("{path}.sources"), sink),
        credentials: credentials(trunk, &path, sink),
        register,
        targets,
        domain,
        ping: optional_seconds(trunk.ping),
        ping_failures: trunk.ping_failures,
        max_calls: trunk.max_calls,
        answer_timeout: seconds(trunk.answer_timeout),
        identity: match trunk.identity {
            RawIdentity::Pass => Identity::Pass,
            RawIdentity::Remove => Identity::Remove,
        },
        from_user: trunk.from_user.clone(),
        refer: match trunk.refer {
            RawRefer::Pass => Refer::Pass,
            RawRefer::Act => Refer::Act,
        },
        redirect: match trunk.redirect {
            RawRedirect::Pass => Redirect::Pass,
            RawRedirect::Follow => Redirect::Follow,
        },
    }
}

fn targets(
    trunk: &RawTrunk,
    path: &str,
    listen: &[ListenAddress],
    sink: &mut Sink<'_>,
) -> Vec<Target> {
    let base = format!("{path}.target");
    let mut targets = Vec::new();
    if trunk.target.as_slice().is_empty() {
        sink.report(&base, "`target` is empty", "add for example \"udp:192.0.2.1:5060\"");
    }
    for (index, target) in trunk.target.as_slice().iter().enumerate() {
        let mut at = trunk.target.path(&base, index);
        let (text, priority, weight) = match target {
            RawTarget::Short(text) => (text, 0, 1),
            RawTarget::Full(table) => {
                at.push_str(".address");
                (&table.address, table.priority, table.weight)
            }
        };
        let (transport, rest) = match address::split_transport(text) {
            Ok(parts) => parts,
            Err(why) => {
                sink.report(&at, why, "this build carries SIP over udp and tcp");
                continue;
            }
        };
        let Some(host) = host(rest, &at, sink) else {
            continue;
        };
        check_target(&host, transport, listen, &at, sink);
        targets.push(Target {
            host,
            transport,
            priority,
            weight,
        });
    }
    targets
}

/// A target must be reachable from its interface, and must not be the interface itself.
fn check_target(
    host: &HostName,
    transport: Option<Transport>,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) {
    let wanted = transport.unwrap_or(Transport::Udp);
    let usable: Vec<&ListenAddress> = listen
        .iter()
        .filter(|listen| listen.transport == wanted)
        .collect();
    if !listen.is_empty() && usable.is_empty() && (transport.is_some() || host.ip().is_some()) {
        sink.report(
            at,
            format!("the trunk's interface has no listening point for {wanted}"),
            format!("add \"{wanted}:ADDRESS:PORT\" to `listen` of the interface, or change the transport"),
        );
        return;
    }
    let Some(ip) = host.ip() else {
        return;
    };
    if !usable.is_empty() && !usable.iter().any(|listen| listen.address.is_ipv4() == ip.is_ipv4()) {
        sink.report(
            at,
            format!("{ip} is of another address family than its interface"),
            "let the interface listen on an address of that family too",
        );
    }
    let own = SocketAddr::new(ip, host.port.unwrap_or(5060));
    if usable.iter().any(|listen| listen.address == own) {
        sink.report(
            at,
            format!("{own} is this border itself: calls would run in a circle"),
            "write the address of the other system",
        );
    }
}

fn credentials(trunk: &RawTrunk, path: &str, sink: &mut Sink<'_>) -> Option<Credentials> {
    match (&trunk.username, &trunk.password) {
        (Some(username), Some(password)) => Some(Credentials {
            username: username.clone(),
            password: password.clone(),
            realm: trunk.realm.clone(),
        }),
        (None, None) => {
            if trunk.realm.is_some() {
                sink.report(
                    &format!("{path}.realm"),
                    "`realm` without `username` and `password` does nothing",
                    "add both, or take it out",
                );
            }
            None
        }
        (Some(_), None) => {
            sink.report(&format!("{path}.username"), "`username` without `password`", "add `password`");
            None
        }
        (None, Some(_)) => {
            sink.report(&format!("{path}.password"), "`password` without `username`", "add `username`");
            None
        }
    }
}

fn carrier(
    trunk: &RawTrunk,
    account: &RawCarrier,
    domain: &Option<HostName>,
    targets: &[Target],
    path: &str,
    sink: &mut Sink<'_>,
) -> Option<CarrierAccount> {
    let at = format!("{path}.register");
    let Some(user) = account.user.clone().or_else(|| trunk.username.clone()) else {
        sink.report(
            &at,
            "it is not said as whom to register",
            "add `user` here, or `username` and `password` to the trunk",
        );
        return None;
    };
    let domain = match &account.domain {
        Some(text) => host(text, &format!("{at}.domain"), sink)?,
        None => match domain {
            Some(domain) => domain.clone(),
            None => targets.first()?.host.clone(),
        },
    };
    Some(CarrierAccount {
        contact_user: account.contact_user.clone().unwrap_or_else(|| user.clone()),
        user,
        domain,
        expires: seconds(account.expires),
    })
}
