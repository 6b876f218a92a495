//! Conversion of the raw types to the checked configuration: names are resolved to indices and texts to addresses, and
//! contradictions are refused.

use super::address::{Cidr, HostName};
use super::document::DocumentNode;
use super::interfaces::{interface_of, listening_clashes};
use super::mistake::{Mistake, did_you_mean};
use super::raw::*;
use super::trunks::trunk_of;
use super::{renamed, routes, schema, *};
use std::collections::BTreeMap;

/// Maximum number of reported syntax errors of a file.
const SYNTAX_MISTAKES: usize = 10;

/// All mistakes of a text that are independent of each other, and the configuration if it can be interpreted.
///
/// Lines that are not TOML are skipped; then the structure is validated. Keys that the schema does not allow are
/// removed; if the rest is complete, its meaning is checked, except in tables from which keys were removed.
pub(super) fn judge(text: &str, file: &str) -> CheckedConfig {
    let (sound, mut mistakes) = without_syntax_mistakes(text, file);
    let Ok(document) = toml_edit::ImDocument::parse(sound.as_str()) else {
        return CheckedConfig::of(None, mistakes);
    };
    let partial = !mistakes.is_empty();
    let mut whole = DocumentNode::document(document.as_table(), text.len());
    let (renamed_keys, duplicates) = renamed::apply(&mut whole, text, file);
    mistakes.extend(duplicates);
    let schema = schema::schema();
    let mistake = |violation: schema::Violation| {
        let schema::Violation {
            span,
            message,
            remedy,
            ..
        } = violation;
        Mistake::new(text, file, span, message, remedy)
    };
    let found = schema::violations(&schema, &whole);
    let node = whole.without(&found.iter().map(|one| one.span.clone()).collect::<Vec<_>>());
    let incomplete = schema::violations(&schema, &node);
    let pruned = !found.is_empty();
    // A skipped line may contain the missing key.
    let told = found.into_iter().filter(|one| !(partial && one.missing));
    mistakes.extend(told.map(mistake));
    if partial || !incomplete.is_empty() {
        return CheckedConfig::of(None, mistakes);
    }
    let raw: Raw = match serde_json::from_value(node.to_json()) {
        Ok(raw) => raw,
        Err(error) => {
            if mistakes.is_empty() {
                let remedy = "compare with docs/configuration.md".into();
                mistakes.push(Mistake::new(text, file, 0..0, error.to_string(), remedy));
            }
            return CheckedConfig::of(None, mistakes);
        }
    };
    let mut sink = Sink {
        text,
        file,
        node: &node,
        mistakes: Vec::new(),
    };
    let mut config = check(&raw, &mut sink);
    config.renamed_keys = renamed_keys;
    let changed = match pruned {
        true => whole.changed_tables(&node),
        false => Vec::new(),
    };
    let of_meaning = sink.mistakes.into_iter();
    mistakes.extend(of_meaning.filter(|one| !changed.contains(&one.span)));
    CheckedConfig::of(Some(config), mistakes)
}

impl CheckedConfig {
    fn of(config: Option<Config>, mut mistakes: Vec<Mistake>) -> CheckedConfig {
        mistakes.sort_by_key(|mistake| mistake.span.start);
        CheckedConfig { config, mistakes }
    }
}

/// The text with invalid lines blanked, which keeps the positions of the others, and a mistake for each of them.
fn without_syntax_mistakes(text: &str, file: &str) -> (String, Vec<Mistake>) {
    let mut sound = text.to_owned();
    let mut mistakes: Vec<Mistake> = Vec::new();
    while let Err(error) = toml_edit::ImDocument::parse(sound.as_str()) {
        let mistake = Mistake::new(
            text,
            file,
            error.span().unwrap_or(0..0),
            format!("this is not TOML: {}", error.message().trim().replace('\n', ", ")),
            "correct the line; strings are in quotes, lists in [ ], tables begin with [name] or [[name]]".into(),
        );
        let line = mistake.line;
        // A mistake that remains after blanking spans several lines: further messages would be unreliable.
        if mistakes.iter().any(|known| known.line == line) || mistakes.len() >= SYNTAX_MISTAKES {
            break;
        }
        mistakes.push(mistake);
        let lines = sound.split_inclusive('\n').enumerate();
        sound = lines
            .map(|(number, text)| match number + 1 == line {
                true => blank(text),
                false => text.to_owned(),
            })
            .collect();
    }
    (sound, mistakes)
}

/// A blank line of the same number of bytes.
fn blank(line: &str) -> String {
    line.bytes()
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect()
}

pub(super) fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    let document = toml_edit::ImDocument::parse(text).map_err(|error| {
        vec![Mistake::new(
            text,
            file,
            error.span().unwrap_or(0..0),
            format!("this is not TOML: {}", error.message().trim().replace('\n', ", ")),
            "correct the line; strings are in quotes, lists in [ ], tables begin with [name] or [[name]]".into(),
        )]
    })?;
    let mut node = DocumentNode::document(document.as_table(), text.len());
    let (renamed_keys, mistakes) = renamed::apply(&mut node, text, file);
    let schema = schema::schema();
    let mut sink = Sink {
        text,
        file,
        node: &node,
        mistakes,
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
    let mut config = check(&raw, &mut sink);
    config.renamed_keys = renamed_keys;
    if sink.mistakes.is_empty() {
        Ok(config)
    } else {
        Err(sink.sorted())
    }
}

/// Collects mistakes; positions are given by path.
pub(super) struct Sink<'t> {
    text: &'t str,
    file: &'t str,
    node: &'t DocumentNode,
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

    /// The bytes of the text at a path.
    pub(super) fn span(&self, path: &str) -> core::ops::Range<usize> {
        self.node.span_of(path)
    }

    /// The line of a path, for use in other messages.
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
        ng_server: None,
        media_nodes: super::ng_client::nodes(raw, sink),
        media_node_policy: super::ng_client::policy(raw),
        trunks: Vec::new(),
        routes: Vec::new(),
        conferences: Vec::new(),
        rules: ::rules::RuleSet::default(),
        identity: super::rules::identity_policy(&raw.identity),
        numbered: raw
            .user
            .iter()
            .filter(|user| !user.numbers.as_slice().is_empty())
            .map(|user| user.name.clone())
            .collect(),
        users: users(raw, sink),
        realm: Realm {
            name: raw.realm.name.clone(),
            algorithms: algorithms(raw, sink),
            nonce_lifetime: seconds(raw.realm.nonce_lifetime_s),
            failures: failures(raw, sink),
        },
        registrar: registrar(raw, sink),
        registrar_store: registrar_store(raw, sink),
        media: MediaSpec {
            at_nodes: raw.media.anchor == RawMediaAnchor::Nodes,
            timeout: optional_seconds(raw.media.timeout_s),
            hold_timeout: optional_seconds(raw.media.hold_timeout_s),
            dscp: raw.media.dscp,
            batching_delay: Duration::from_millis(raw.media.batching_delay_ms.into()),
            sockets: match raw.media.sockets {
                RawMediaSockets::Auto => MediaSocketMode::Auto,
                RawMediaSockets::Shared => MediaSocketMode::Shared,
                RawMediaSockets::PerPort => MediaSocketMode::PerPort,
            },
            kernel_relay: wanted(raw.media.kernel_relay),
            af_xdp: wanted(raw.media.af_xdp),
        },
        media_ranges: Vec::new(),
        media_places: Vec::new(),
        sip: Sip {
            agent: raw.sip.agent.clone(),
            dscp: raw.sip.dscp,
            ring_timeout: seconds(raw.sip.ring_timeout_s),
            gso: raw.sip.gso,
            burst_bytes: raw.sip.burst_bytes as usize,
            queueing_delay: queueing_delay(raw, sink),
            refusals_percent: (raw.sip.refusals_percent != 0).then_some(raw.sip.refusals_percent),
            overload_feedback: raw.sip.overload_feedback,
            batching_delay: Duration::from_millis(raw.sip.batching_delay_ms.into()),
            workers: raw.sip.workers,
        },
        threads: super::threads::threads(raw, sink),
        session_timer: session_timer(raw, sink),
        limits: limits(raw),
        admission: AdmissionLimits {
            memory: (raw.limits.memory_mib != 0).then_some(u64::from(raw.limits.memory_mib) << 10),
            processor: (raw.limits.cpu_percent != 0)
                .then_some(u64::from(raw.limits.cpu_percent) * 10_000),
            status: raw.limits.status,
            machine: None,
        },
        dns: Dns {
            servers: servers(raw, sink),
        },
        control: super::control::control(raw, sink),
        store: super::store::store(raw, sink),
        records: super::records::records(raw, sink),
        metrics: super::metrics::metrics(raw, sink),
        renamed_keys: Vec::new(),
        drain: Drain {
            timeout: seconds(raw.drain.timeout_s),
        },
        log: LogSpec {
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
        sink.report(
            "sip.agent",
            "`agent` contains control characters",
            "write one line of text",
        );
    }
    if !one_line(&raw.realm.name) || raw.realm.name.contains(['"', '\\']) {
        sink.report(
            "realm.name",
            "`name` of the realm contains quotes or control characters",
            "write plain text such as a domain",
        );
    }
    unique_names(raw, sink);
    let mut placed = Vec::new();
    for (index, interface) in raw.interface.iter().enumerate() {
        let checked = interface_of(
            raw,
            interface,
            index,
            &mut config.media_ranges,
            &mut placed,
            sink,
        );
        config.interfaces.push(checked);
    }
    config.ng_server =
        super::ng_server::ng_server(raw, &mut config.media_ranges, &mut placed, sink);
    config.media_places = placed
        .iter()
        .map(|path| sink.span(&format!("{path}.ports")))
        .collect();
    if config.interfaces.is_empty() && config.ng_server.is_none() {
        sink.report(
            "interface",
            "there is no interface",
            "add an [[interface]] with name and listen, or [ng_server] for a media node",
        );
    }
    listening_clashes(&config.interfaces, raw, sink);
    for (index, trunk) in raw.trunk.iter().enumerate() {
        let checked = trunk_of(raw, trunk, index, &config.interfaces, sink);
        config.trunks.push(checked);
    }
    super::tls::known_by_certificate(raw, &config.interfaces, &config.trunks, sink);
    config.routes = routes::check(raw, sink);
    config.conferences = super::conferences::check(raw, &config.interfaces, sink);
    config.rules = super::rules::rules(raw, sink);
    super::ng_client::check(&config, raw, sink);
    super::ng_client::without_nodes(raw, sink);
    super::workers::check(&config, sink);
    if config.media.kernel_relay != OffloadMode::Never && config.media.af_xdp != OffloadMode::Never
    {
        sink.report(
            "media.af_xdp",
            "a network interface supports either AF_XDP or the kernel relay",
            "set `kernel_relay` or `af_xdp` of [media] to \"never\"",
        );
    }
    config
}

fn wanted(raw: RawOffloadMode) -> OffloadMode {
    match raw {
        RawOffloadMode::Never => OffloadMode::Never,
        RawOffloadMode::Auto => OffloadMode::Auto,
        RawOffloadMode::Require => OffloadMode::Require,
    }
}

pub(super) fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

pub(super) fn optional_seconds(value: u32) -> Option<Duration> {
    (value > 0).then(|| seconds(value))
}

fn one_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn failures(raw: &Raw, sink: &mut Sink<'_>) -> FailureLimits {
    let realm = &raw.realm;
    if realm.failure_delay_s > realm.failure_delay_max_s {
        sink.report(
            "realm.failure_delay_s",
            format!(
                "failure_delay_s ({}) is above failure_delay_max_s ({})",
                realm.failure_delay_s, realm.failure_delay_max_s
            ),
            "lower failure_delay_s, or raise failure_delay_max_s",
        );
    }
    FailureLimits {
        source: realm.source_failures,
        user: realm.user_failures,
        delay: seconds(realm.failure_delay_s),
        longest: seconds(realm.failure_delay_max_s),
    }
}

fn users(raw: &Raw, sink: &mut Sink<'_>) -> BTreeMap<String, UserSpec> {
    let mut users = BTreeMap::new();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, user) in raw.user.iter().enumerate() {
        let path = format!("user[{index}]");
        let name_path = format!("{path}.name");
        if let Some(&earlier) = first.get(user.name.as_str()) {
            let line = sink.line(&format!("user[{earlier}].name"));
            sink.report(
                &name_path,
                format!("user \"{}\" exists already in line {line}", user.name),
                "remove one of the two",
            );
            continue;
        }
        first.insert(&user.name, index);
        if user
            .name
            .bytes()
            .any(|b| b <= b' ' || b >= 0x7f || b"\"<>@:;?\\".contains(&b))
        {
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
                    "both `password` and `ha1` are set",
                    "remove one of the two",
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
            (Some(password), None) => UserSecret::Password(password.clone()),
            (None, Some(ha1)) => {
                if ha1.len() != 32 || !ha1.bytes().all(|b| b.is_ascii_hexdigit()) {
                    sink.report(
                        &format!("{path}.ha1"),
                        "`ha1` must be 32 hexadecimal digits",
                        format!("write MD5 of \"{}:{}:PASSWORD\"", user.name, raw.realm.name),
                    );
                }
                UserSecret::Ha1(ha1.to_ascii_lowercase())
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
        let numbers = numbers(user, &path, sink);
        let user = UserSpec {
            name: name.clone(),
            secret,
            numbers,
        };
        clashes(&user, &users, &path, sink);
        users.insert(name, user);
    }
    users
}

fn numbers(user: &RawUser, path: &str, sink: &mut Sink<'_>) -> Vec<Number> {
    let at = format!("{path}.numbers");
    let mut numbers = Vec::new();
    for (index, text) in user.numbers.as_slice().iter().enumerate() {
        let (number, prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text.as_str(), false),
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+#".contains(&byte);
        if number.is_empty() || !number.bytes().all(good) {
            sink.report(
                &user.numbers.path(&at, index),
                format!("\"{text}\" is not a number"),
                "write it as in From and To, such as \"+43123450\", or a prefix with a star: \"+4312345*\"",
            );
            continue;
        }
        numbers.push(match prefix {
            true => Number::Prefix(number.to_owned()),
            false => Number::One(number.to_owned()),
        });
    }
    numbers
}

/// Refuses numbers that belong to several users.
fn clashes(user: &UserSpec, others: &BTreeMap<String, UserSpec>, path: &str, sink: &mut Sink<'_>) {
    for other in others.values() {
        let theirs = |number: &Number| {
            number.takes(&other.name) || other.numbers.iter().any(|theirs| number.meets(theirs))
        };
        let clash = user.numbers.iter().any(theirs)
            || other.numbers.iter().any(|number| number.takes(&user.name));
        if clash {
            sink.report(
                &format!("{path}.name"),
                format!(
                    "users \"{}\" and \"{}\" have a number in common",
                    other.name, user.name
                ),
                "give each number to one user",
            );
        }
    }
}

fn algorithms(raw: &Raw, sink: &mut Sink<'_>) -> Vec<DigestAlgorithm> {
    let mut algorithms = Vec::new();
    for (index, algorithm) in raw.realm.algorithms.iter().enumerate() {
        let algorithm = match algorithm {
            RawAlgorithm::Md5 => DigestAlgorithm::Md5,
            RawAlgorithm::Sha256 => DigestAlgorithm::Sha256,
            RawAlgorithm::Sha512T256 => DigestAlgorithm::Sha512T256,
            RawAlgorithm::Md5Sess => DigestAlgorithm::Md5Sess,
            RawAlgorithm::Sha256Sess => DigestAlgorithm::Sha256Sess,
            RawAlgorithm::Sha512T256Sess => DigestAlgorithm::Sha512T256Sess,
        };
        if algorithms.contains(&algorithm) {
            sink.report(
                &format!("realm.algorithms[{index}]"),
                format!("{} is listed twice", algorithm.name()),
                "remove one of the two",
            );
        }
        algorithms.push(algorithm);
    }
    // `ha1` can be verified with MD5 only, and the user is unknown when the challenge is composed.
    if raw.user.iter().any(|user| user.ha1.is_some()) {
        let md5 = |algorithm: &DigestAlgorithm| {
            matches!(algorithm, DigestAlgorithm::Md5 | DigestAlgorithm::Md5Sess)
        };
        if !algorithms.iter().any(md5) {
            sink.report(
                "realm.algorithms",
                "users with `ha1` require MD5, which is not offered",
                "add \"MD5\", or give those users a password",
            );
        }
        algorithms.retain(md5);
    }
    algorithms
}

fn queueing_delay(raw: &Raw, sink: &mut Sink<'_>) -> Option<Duration> {
    let sip = &raw.sip;
    let limit = sip
        .queueing_delay_ms
        .unwrap_or(sip.batching_delay_ms.saturating_mul(3).max(25));
    if limit != 0 && limit < sip.batching_delay_ms.saturating_mul(2) {
        sink.report(
            "sip.queueing_delay_ms",
            format!(
                "queueing_delay_ms ({}) is less than twice batching_delay_ms ({}): batching alone would count as overload",
                limit, sip.batching_delay_ms
            ),
            "raise queueing_delay_ms, lower batching_delay_ms, or set queueing_delay_ms to 0",
        );
    }
    (limit != 0).then(|| Duration::from_millis(limit.into()))
}

fn registrar(raw: &Raw, sink: &mut Sink<'_>) -> Registrar {
    let r = &raw.registrar;
    let (min, max) = (r.min_expires_s, r.max_expires_s);
    if min > max {
        sink.report(
            "registrar.min_expires_s",
            format!("min_expires_s ({min}) is above max_expires_s ({max})"),
            "lower min_expires_s, or raise max_expires_s",
        );
    }
    if !(min..=max.max(min)).contains(&r.default_expires_s) {
        sink.report(
            "registrar.default_expires_s",
            format!(
                "default_expires_s ({}) is not between min_expires_s ({min}) and max_expires_s ({max})",
                r.default_expires_s
            ),
            "choose a value between min_expires_s and max_expires_s",
        );
    }
    let nat_expires_s = r.nat_expires_s.unwrap_or(min.max(30));
    if nat_expires_s != 0 && nat_expires_s < min {
        sink.report(
            "registrar.nat_expires_s",
            format!("nat_expires_s ({nat_expires_s}) is below min_expires_s ({min})"),
            "raise nat_expires_s, lower min_expires_s, or set nat_expires_s to 0",
        );
    }
    Registrar {
        min_expires_s: min,
        max_expires_s: max,
        default_expires_s: r.default_expires_s,
        max_contacts: r.max_contacts as usize,
        nat_expires_s,
        flow_timer_s: r.flow_timer_s,
        refresh_interval_s: r.refresh_interval_s,
        registrations_per_s: r.registrations_per_s,
    }
}

fn registrar_store(raw: &Raw, sink: &mut Sink<'_>) -> RegistrarStore {
    match raw.registrar.store.as_deref() {
        None => RegistrarStore::Usual,
        Some("none") => RegistrarStore::None,
        Some(path) => {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                sink.report(
                    "registrar.store",
                    "`store` is not an absolute path",
                    "write store = \"/DIRECTORY/FILE\", or \"none\"",
                );
            }
            RegistrarStore::File(path)
        }
    }
}

fn session_timer(raw: &Raw, sink: &mut Sink<'_>) -> SessionTimer {
    let timer = &raw.session_timer;
    if timer.expires_s == 0 && timer.min_se_s != RawSessionTimer::default().min_se_s {
        sink.report(
            "session_timer.min_se_s",
            "`min_se_s` has no effect without `expires_s`",
            "set `expires_s`, or remove `min_se_s`",
        );
    }
    if timer.expires_s != 0 && timer.expires_s < timer.min_se_s {
        sink.report(
            "session_timer.expires_s",
            format!(
                "expires_s ({}) is below min_se_s ({})",
                timer.expires_s, timer.min_se_s
            ),
            "raise expires_s, or set it to 0",
        );
    }
    SessionTimer {
        expires: optional_seconds(timer.expires_s),
        min_se: seconds(timer.min_se_s),
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
        connection_idle: seconds(raw.limits.connection_idle_s),
        handshake: seconds(raw.limits.handshake_timeout_s),
        connection_queue: raw.limits.connection_queue_bytes as usize,
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
                format!("\"{text}\" is not an IP address"),
                "write ADDRESS or ADDRESS:PORT, IPv6 with a port as [ADDRESS]:PORT",
            ),
        }
    }
    servers
}

fn unique_names(raw: &Raw, sink: &mut Sink<'_>) {
    let interfaces: Vec<&str> = raw.interface.iter().map(|i| i.name.as_str()).collect();
    let trunks: Vec<&str> = raw.trunk.iter().map(|t| t.name.as_str()).collect();
    let conferences: Vec<&str> = raw.conference.iter().map(|r| r.name.as_str()).collect();
    for (what, names) in [
        ("interface", interfaces),
        ("trunk", trunks),
        ("conference", conferences),
    ] {
        for (index, name) in names.iter().enumerate() {
            if let Some(earlier) = names.iter().take(index).position(|other| other == name) {
                let line = sink.line(&format!("{what}[{earlier}].name"));
                sink.report(
                    &format!("{what}[{index}].name"),
                    format!("{what} \"{name}\" exists already in line {line}"),
                    "choose another name",
                );
            }
        }
        // Indices are 16 bits wide.
        if names.len() > 10_000 {
            sink.report(
                &format!("{what}[10000]"),
                format!("more than 10000 [[{what}]] tables"),
                "divide them among several borders",
            );
        }
    }
}

/// The trunk of this name; reports a mistake at `path` if there is none.
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

/// The interface of this name; reports a mistake at `path` if there is none.
pub(super) fn interface_id(raw: &Raw, name: &str, path: &str, sink: &mut Sink<'_>) -> InterfaceId {
    let names = || {
        raw.interface
            .iter()
            .map(|interface| interface.name.as_str())
    };
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
        None => format!("use one of: {}", known.join(", ")),
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

pub(super) fn host(text: &str, path: &str, sink: &mut Sink<'_>) -> Option<HostName> {
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
