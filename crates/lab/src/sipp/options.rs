//! Options of `hornwork lab run SCENARIO.xml`, and the files and settings that a run needs.

use super::compile::compile;
use super::engine::GeneratorParts;
use super::inject::Injection;
use super::media::{Packetization, Recording};
use super::program::{MediaAction, ScenarioAction, ScenarioProgram, Scope};
use super::schedule::CallLimits;
use super::settings::{Behaviours, ScenarioSettings};
use super::template::NameTable;
use super::xml;
use crate::error::LabError;
use crate::pace::ArrivalProcess;
use crate::tls::TlsSettings;
use engine::{Time, Transport};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most threads.
const MAX_THREADS: u64 = 256;

/// Options of the command line, uninterpreted.
#[derive(Clone, Debug)]
pub struct ScenarioOptions {
    /// The scenario.
    pub file: PathBuf,
    /// Destinations of calls: `host[:port]`; threads use them in turn.
    pub targets: Vec<String>,
    /// Calls per second; 10 without a value.
    pub rate: Option<f64>,
    /// The rate at the end of the ramp.
    pub rate_to: Option<f64>,
    /// Seconds of the ramp.
    pub ramp: f64,
    /// Exponentially distributed gaps.
    pub poisson: bool,
    /// Most open calls.
    pub limit: Option<u64>,
    /// Calls in total.
    pub calls: Option<u64>,
    /// Duration of the arrivals, seconds.
    pub duration: Option<f64>,
    /// Time limit of the run, seconds.
    pub timeout: Option<f64>,
    /// A run that reaches it fails.
    pub timeout_fails: bool,
    /// Destination of all messages of calls, `host[:port]`, in place of the target.
    pub send_to: Option<String>,
    /// Length of pauses without a length, milliseconds.
    pub hold: u64,
    /// Number of users that make the calls.
    pub users: u64,
    /// `[service]`
    pub service: String,
    /// Injection files.
    pub inject: Vec<PathBuf>,
    /// `FILE:FIELD`
    pub index: Vec<String>,
    /// `NAME=VALUE` for keywords.
    pub keys: Vec<String>,
    /// `NAME=VALUE` for variables.
    pub variables: Vec<String>,
    /// `ADDRESS[:PORT]`
    pub local: Option<String>,
    /// `ADDRESS[:PORT]`
    pub media: Option<String>,
    /// `udp`, `tcp` or `tls`, or a value of SIPp's `-t`.
    pub transport: String,
    /// Certificates and trust.
    pub tls: TlsSettings,
    /// One socket for each call.
    pub per_call: bool,
    /// User name for digest.
    pub username: Option<String>,
    /// Password for digest.
    pub password: String,
    /// URI for digest.
    pub digest_uri: Option<String>,
    /// `all`, `none`, `bye`, `abort`, `ping`, each with an optional minus sign, separated by commas.
    pub behaviour: String,
    /// Answer INFO, NOTIFY, OPTIONS and UPDATE.
    pub auto_answer: bool,
    /// Timeout of receive steps, milliseconds.
    pub receive_timeout: Option<u64>,
    /// Most retransmissions of any message.
    pub retransmissions: Option<u32>,
    /// Disables retransmissions.
    pub no_retransmissions: bool,
    /// First `[cseq]`.
    pub base_cseq: u32,
    /// Pattern of Call-IDs.
    pub call_id: String,
    /// Sends received media back.
    pub echo: bool,
    /// Share of the packets of an audio and of a video pattern whose payload did not come back from which on it has
    /// failed.
    pub tolerances: [f64; 2],
    /// Simulated loss, percent.
    pub lost: f64,
    /// Threads.
    pub threads: u64,
    /// Batching delay, microseconds.
    pub batch: u64,
    /// Permits the scenario's shell commands.
    pub allow_commands: bool,
    /// File for all messages.
    pub trace: Option<PathBuf>,
    /// File for lines of `<log>`.
    pub log: Option<PathBuf>,
    /// File for figures of each second, as CSV.
    pub csv: Option<PathBuf>,
    /// File for the result as JSON; `-` is standard output.
    pub json: Option<PathBuf>,
    /// The scenario of the other end; both run in virtual time.
    pub against: Option<PathBuf>,
    /// Runs in virtual time.
    pub simulate: bool,
    /// Seed.
    pub seed: Option<u64>,
}

impl Default for ScenarioOptions {
    fn default() -> Self {
        ScenarioOptions {
            file: PathBuf::new(),
            targets: Vec::new(),
            rate: None,
            rate_to: None,
            ramp: 0.0,
            poisson: false,
            limit: None,
            calls: None,
            duration: None,
            timeout: None,
            timeout_fails: false,
            send_to: None,
            hold: 0,
            users: 0,
            service: "service".to_owned(),
            inject: Vec::new(),
            index: Vec::new(),
            keys: Vec::new(),
            variables: Vec::new(),
            local: None,
            media: None,
            transport: "udp".to_owned(),
            tls: TlsSettings::default(),
            per_call: false,
            username: None,
            password: "password".to_owned(),
            digest_uri: None,
            behaviour: "all".to_owned(),
            auto_answer: false,
            receive_timeout: None,
            retransmissions: None,
            no_retransmissions: false,
            base_cseq: 1,
            call_id: "%u-%p@%s".to_owned(),
            echo: false,
            tolerances: [1.0; 2],
            lost: 0.0,
            threads: 1,
            batch: 500,
            allow_commands: false,
            trace: None,
            log: None,
            csv: None,
            json: None,
            against: None,
            simulate: false,
            seed: None,
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    std::fs::read(path).map_err(|error| LabError::bad_input(format!("{}: {error}", path.display())))
}

/// A scenario with the files that it uses.
#[derive(Clone, Debug)]
pub struct LoadedScenario {
    /// The program.
    pub program: ScenarioProgram,
    files: Vec<Injection>,
    recordings: Vec<Arc<Recording>>,
    sounds: BTreeMap<(u16, Packetization), Arc<Recording>>,
}

impl LoadedScenario {
    /// Inputs of one generator.
    pub fn parts(&self, settings: ScenarioSettings) -> GeneratorParts {
        GeneratorParts {
            program: self.program.clone(),
            settings,
            files: self.files.clone(),
            recordings: self.recordings.clone(),
            sounds: self.sounds.clone(),
        }
    }
}

/// Reads a scenario and the files that it names.
///
/// # Errors
/// An unreadable file, or unsupported parts of the scenario: each with file and line.
pub fn load(path: &Path, options: &ScenarioOptions) -> Result<LoadedScenario, LabError> {
    let text = read(path)?;
    let located = |errors: Vec<xml::ScenarioError>| {
        let lines: Vec<String> = errors
            .iter()
            .map(|error| format!("{}:{error}", path.display()))
            .collect();
        LabError::bad_input(lines.join("\n"))
    };
    let root = xml::read(&text).map_err(|error| located(vec![error]))?;
    let files = injections(options)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut wanted = BTreeMap::new();
    loop {
        let mut names = NameTable {
            keys: pairs(&options.keys, "--key")?.into_iter().collect(),
            wanted_files: wanted.clone(),
            users: options.users > 0,
            ..NameTable::default()
        }
        .with_files(&files);
        let compiled = compile(&root, &mut names);
        // Texts in separate files are read, and the scenario is compiled again with them.
        let missing: Vec<String> = names
            .wanted_files
            .iter()
            .filter(|(name, text)| text.is_none() && !wanted.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        if missing.is_empty() {
            let program = compiled.map_err(located)?;
            for warning in &program.warnings {
                eprintln!(
                    "{}:{}: warning: {}",
                    path.display(),
                    warning.line,
                    warning.text
                );
            }
            return finish(program, files, folder, options);
        }
        for name in missing {
            let text = find(folder, &name).and_then(|path| std::fs::read(path).ok());
            wanted.insert(name, text);
        }
    }
}

/// A file that a scenario names: in the working directory, or beside the scenario.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    [PathBuf::from(name), folder.join(name)]
        .into_iter()
        .find(|path| path.is_file())
}

fn finish(
    program: ScenarioProgram,
    files: Vec<Injection>,
    folder: &Path,
    options: &ScenarioOptions,
) -> Result<LoadedScenario, LabError> {
    if program.commands && !options.allow_commands {
        return Err(LabError::cannot_run(
            "the scenario runs shell commands (<exec command=...>)",
            "review it, then permit the commands with --allow-commands",
        ));
    }
    let changes_files = |action: &ScenarioAction| {
        matches!(
            action,
            ScenarioAction::Insert { .. } | ScenarioAction::Replace { .. }
        )
    };
    let mut actions = program.steps.iter().chain(&program.init);
    if options.threads > 1 && actions.any(|step| step.actions.iter().any(changes_files)) {
        return Err(LabError::bad_input(format!(
            "--threads {}: the scenario changes injection files (insert, replace), and each thread has its own: use --threads 1",
            options.threads
        )));
    }
    let warnings = super::inject::check_use(&files, &program, options.users);
    for warning in warnings.map_err(LabError::bad_input)? {
        eprintln!("warning: {warning}");
    }
    for (file, field) in super::survey::fields(&program) {
        let file = files.get(usize::from(file));
        if let Some(warning) = file.and_then(|file| file.missing_field(usize::from(field))) {
            eprintln!("warning: {warning}");
        }
    }
    let file = |name: &str| {
        find(folder, name)
            .ok_or_else(|| LabError::bad_input(format!("{name}: no such file")))
            .and_then(|path| read(&path))
    };
    let wrong = |name: &str, why: String| LabError::bad_input(format!("{name}: {why}"));
    let mut recordings = Vec::new();
    for name in &program.captures {
        let recording = Recording::read(&file(name)?).map_err(|why| wrong(name, why))?;
        recordings.push(Arc::new(recording));
    }
    let mut sounds = BTreeMap::new();
    let steps = program.steps.iter().chain(&program.init);
    for action in steps.flat_map(|step| &step.actions) {
        if let ScenarioAction::Media(MediaAction::Stream { sound, packing, .. }) = action {
            let name = program
                .sounds
                .get(usize::from(*sound))
                .map_or("", String::as_str);
            let recording =
                Recording::of_sound(&file(name)?, *packing).map_err(|why| wrong(name, why))?;
            sounds.insert((*sound, *packing), Arc::new(recording));
        }
    }
    for (name, _) in pairs(&options.variables, "--var")? {
        let mut known = program.variables.iter();
        let why = match known.find(|(known, _)| *known == name) {
            Some((_, Scope::Global)) => continue,
            Some(_) => format!(
                "calls and users have their own copies of this variable: declare it with <Global variables=\"{name}\"/>"
            ),
            None => "the scenario has no variable of that name".to_owned(),
        };
        return Err(LabError::bad_input(format!("--var {name}: {why}")));
    }
    Ok(LoadedScenario {
        program,
        files,
        recordings,
        sounds,
    })
}

fn injections(options: &ScenarioOptions) -> Result<Vec<Injection>, LabError> {
    let mut files = Vec::new();
    for path in &options.inject {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let file = Injection::read(&name, read(path)?)
            .map_err(|error| LabError::bad_input(format!("{}:{error}", path.display())))?;
        files.push(file);
    }
    for index in &options.index {
        let bad = || {
            LabError::bad_input(format!(
                "--index {index}: expected FILE:FIELD of an injection file"
            ))
        };
        let (name, field) = index.rsplit_once(':').ok_or_else(bad)?;
        let name = name.rsplit('/').next().unwrap_or(name);
        let field = field.parse().map_err(|_| bad())?;
        files
            .iter_mut()
            .find(|file| file.name == name)
            .ok_or_else(bad)?
            .index_by(field)
            .map_err(|why| LabError::bad_input(format!("--index {index}: {why}")))?;
    }
    Ok(files)
}

fn pairs(list: &[String], option: &str) -> Result<Vec<(String, String)>, LabError> {
    list.iter()
        .map(|pair| {
            pair.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .ok_or_else(|| LabError::bad_input(format!("{option} {pair}: NAME=VALUE")))
        })
        .collect()
}

/// Settings of the threads of a run; the runner sets the wall clock at time zero and the start of the plan.
///
/// # Errors
/// An invalid option.
pub fn settings(
    options: &ScenarioOptions,
    server: bool,
    seed: u64,
) -> Result<Vec<ScenarioSettings>, LabError> {
    let (transport, per_call) = transport(&options.transport)?;
    let per_call = options.per_call || per_call;
    if options.threads == 0 || options.threads > MAX_THREADS {
        return Err(LabError::bad_input(format!(
            "--threads: 1 to {MAX_THREADS}"
        )));
    }
    // Each thread has its part of the limit, at least one call.
    if let Some(limit) = options.limit.filter(|limit| *limit < options.threads) {
        let threads = options.threads;
        return Err(LabError::bad_input(format!(
            "--limit {limit} with --threads {threads}: at least {threads}, or fewer threads"
        )));
    }
    let targets: Vec<SocketAddr> = options
        .targets
        .iter()
        .map(|target| resolve(target))
        .collect::<Result<_, _>>()?;
    if !server && targets.is_empty() {
        return Err(LabError::bad_input(
            "the scenario makes calls: a target HOST[:PORT] is required",
        ));
    }
    let send_to = options.send_to.as_deref().map(resolve).transpose()?;
    if server && send_to.is_some() {
        return Err(LabError::bad_input(
            "--send-to has no effect on a scenario that takes calls: answers go to the source of the request",
        ));
    }
    if let Some(warning) = check_pacing(options, server)? {
        eprintln!("warning: {warning}");
    }
    let local = local(options, send_to.or(targets.first().copied()), server)?;
    let (media_ip, media_port) = match &options.media {
        None => (local.ip(), 6_000),
        Some(text) => {
            // Without an address it is the local one.
            let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
            let parsed = match port {
                Some(port) => Some(SocketAddr::new(local.ip(), port)),
                None => address(text, 6_000),
            };
            let address = parsed
                .ok_or_else(|| LabError::bad_input(format!("--media {text}: ADDRESS[:PORT]")))?;
            (address.ip(), address.port())
        }
    };
    let pace = pace(options)?;
    let seconds = |value: Option<f64>, option: &str| match value {
        None => Ok(None),
        Some(value) => Duration::try_from_secs_f64(value)
            .map(Some)
            .map_err(|_| LabError::bad_input(format!("{option} {value}: seconds"))),
    };
    let limits = CallLimits {
        total: options.calls,
        open: options.limit,
        span: seconds(options.duration, "--duration")?,
    };
    if !options
        .tolerances
        .iter()
        .all(|share| (0.0..=1.0).contains(share))
    {
        return Err(LabError::bad_input(
            "--audio-tolerance, --video-tolerance: 0 to 1",
        ));
    }
    if !(0.0..=100.0).contains(&options.lost) {
        return Err(LabError::bad_input("--loss: 0 to 100 percent"));
    }
    let defaults = ScenarioSettings::default();
    let retransmissions = match options.retransmissions {
        Some(count) => [count; 2],
        None => defaults.retransmissions,
    };
    let per = |index: u64, base: u16, step: u64| -> Result<u16, LabError> {
        if base == 0 {
            return Ok(0);
        }
        u16::try_from(u64::from(base) + index * step).map_err(|_| {
            LabError::bad_input("too few ports above the first one for this number of threads")
        })
    };
    (0..options.threads)
        .map(|index| {
            let remote = match targets.as_slice() {
                [] => None,
                targets => targets.get(index as usize % targets.len()).copied(),
            };
            let host = options.targets.get(index as usize % targets.len().max(1));
            let host = host.map(String::as_str).unwrap_or_default();
            let next_hop = options.send_to.as_deref().unwrap_or(host);
            Ok(ScenarioSettings {
                service: options.service.clone(),
                remote_host: split_port(host).0.to_owned(),
                remote,
                send_to,
                local: SocketAddr::new(local.ip(), per(index, local.port(), 1)?),
                media_ip,
                media_port: per(index, media_port, 4)?,
                transport,
                peer_name: options.tls.name_for(split_port(next_hop).0).to_owned(),
                per_call,
                hold: Duration::from_millis(options.hold),
                username: options
                    .username
                    .clone()
                    .unwrap_or_else(|| options.service.clone()),
                password: options.password.clone(),
                digest_uri: options.digest_uri.clone(),
                behaviours: behaviours(&options.behaviour)?,
                auto_answer: options.auto_answer,
                receive_timeout: options.receive_timeout.map(Duration::from_millis),
                retransmissions,
                retransmits: !options.no_retransmissions,
                base_cseq: options.base_cseq,
                call_id: options.call_id.clone(),
                users: options.users,
                echo: options.echo,
                tolerances: options.tolerances,
                remember: match transport {
                    Transport::Udp => defaults.remember,
                    _ => Duration::ZERO,
                },
                lost: options.lost,
                pid: (seed % 4_000_000) as u32 + 1,
                share: (index, options.threads),
                pace,
                limits,
                batch: Duration::from_micros(options.batch),
                trace: options.trace.is_some(),
                preset: pairs(&options.variables, "--var")?,
                start: Time::ZERO,
                ..ScenarioSettings::default()
            })
        })
        .collect()
}

/// A transport by its name, or by SIPp's; and whether each call has its own socket or connection.
fn transport(name: &str) -> Result<(Transport, bool), LabError> {
    let name = name.to_ascii_lowercase();
    let known = match name.as_str() {
        "udp" | "u1" => (Transport::Udp, false),
        "un" => (Transport::Udp, true),
        "tcp" | "t1" => (Transport::Tcp, false),
        "tn" => (Transport::Tcp, true),
        "tls" | "l1" => (Transport::Tls, false),
        "ln" => (Transport::Tls, true),
        "ws" | "wss" | "sctp" | "s1" | "sn" | "ui" | "c1" | "cn" => {
            return Err(LabError::bad_input(format!(
                "--transport {name}: scenarios support udp, tcp and tls only"
            )));
        }
        _ => {
            return Err(LabError::bad_input(format!(
                "--transport {name}: expected udp, tcp or tls, or SIPp's u1, un, t1, tn, l1 or ln"
            )));
        }
    };
    Ok(known)
}

/// Refuses options of the pace that have no effect. Those of SIPp itself are a warning for scenarios that take calls:
/// command lines for SIPp have them on both sides.
fn check_pacing(options: &ScenarioOptions, server: bool) -> Result<Option<String>, LabError> {
    let why = match (server, options.users > 0) {
        (true, true) => {
            return Err(LabError::bad_input(
                "--users has no effect on a scenario that takes calls: leave it out",
            ));
        }
        (true, false) => "on a scenario that takes calls: the peer decides when they come",
        (false, true) => "with --users: each user makes a call when the one before has ended",
        (false, false) => return Ok(None),
    };
    let of_sipp = [
        ("--rate", options.rate.is_some()),
        ("--limit", options.limit.is_some()),
    ];
    let own = [
        ("--rate-to", options.rate_to.is_some()),
        ("--ramp", options.ramp > 0.0),
        ("--poisson", options.poisson),
    ];
    let named = |list: &[(&'static str, bool)]| {
        let given = list.iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let (of_sipp, own) = (named(&of_sipp), named(&own));
    let text = |names: &[&str]| match names {
        [one] => format!("{one} has no effect {why}: leave it out"),
        several => format!(
            "{} have no effect {why}: leave them out",
            several.join(", ")
        ),
    };
    match (server, of_sipp.is_empty(), own.is_empty()) {
        (_, true, true) => Ok(None),
        (true, false, true) => Ok(Some(text(&of_sipp))),
        _ => Err(LabError::bad_input(text(&[of_sipp, own].concat()))),
    }
}

/// Highest rate, calls per second, and longest ramp, seconds.
const MAX_RATE: f64 = 1e6;

fn pace(options: &ScenarioOptions) -> Result<ArrivalProcess, LabError> {
    let rate = options.rate.unwrap_or(10.0);
    // Of a higher rate all calls would be due at the same time.
    let sound = |rate: f64| (0.0..=MAX_RATE).contains(&rate);
    if !sound(rate) || !options.rate_to.is_none_or(sound) || !sound(options.ramp) {
        return Err(LabError::bad_input(
            "--rate, --rate-to and --ramp: expected numbers from 0 to 1000000",
        ));
    }
    match (options.rate_to, options.poisson) {
        (Some(_), true) => Err(LabError::bad_input(
            "--rate-to and --poisson exclude each other",
        )),
        (Some(to), false) => Ok(ArrivalProcess::Ramp {
            from: rate,
            to,
            over: options.ramp,
        }),
        (None, _) if options.ramp > 0.0 => Err(LabError::bad_input("--ramp needs --rate-to")),
        (None, true) => Ok(ArrivalProcess::Poisson { rate }),
        (None, false) => Ok(ArrivalProcess::Constant { rate }),
    }
}

fn behaviours(text: &str) -> Result<Behaviours, LabError> {
    let mut found = Behaviours {
        bye: false,
        abort: false,
        ping: false,
    };
    for word in text.split(',').map(str::trim) {
        let (word, on) = match word.strip_prefix('-') {
            Some(word) => (word, false),
            None => (word, true),
        };
        match word {
            "all" | "none" => {
                let on = on == (word == "all");
                found = Behaviours {
                    bye: on,
                    abort: on,
                    ping: on,
                };
            }
            "bye" => found.bye = on,
            "abort" | "abortunexp" => found.abort = on,
            "ping" | "pingreply" => found.ping = on,
            other => {
                return Err(LabError::bad_input(format!(
                    "--behaviour {other}: expected all, none, bye, abort or ping, with an optional minus sign"
                )));
            }
        }
    }
    Ok(found)
}

/// Host and port of `host`, `host:port`, `[v6]:port`.
fn split_port(text: &str) -> (&str, Option<u16>) {
    if let Some(rest) = text.strip_prefix('[')
        && let Some((host, after)) = rest.split_once(']')
    {
        return (
            host,
            after.strip_prefix(':').and_then(|port| port.parse().ok()),
        );
    }
    match text.rsplit_once(':') {
        // An IPv6 address without brackets has more than one colon.
        Some((host, port)) if !host.contains(':') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (text, None),
        },
        _ => (text, None),
    }
}

fn resolve(target: &str) -> Result<SocketAddr, LabError> {
    let (host, port) = split_port(target);
    // Otherwise it would be part of a name that cannot be found, or the default would take its place.
    let after = target
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'));
    let has_port = match after {
        Some((_, after)) => !after.is_empty(),
        None => target.matches(':').count() == 1,
    };
    if has_port && port.is_none() {
        return Err(LabError::bad_input(format!(
            "{target}: expected HOST[:PORT] with a port from 0 to 65535"
        )));
    }
    (host, port.unwrap_or(5060))
        .to_socket_addrs()
        .map_err(|error| LabError::bad_input(format!("{target}: {error}")))?
        .next()
        .ok_or_else(|| LabError::bad_input(format!("{target}: the name has no address")))
}

fn address(text: &str, port: u16) -> Option<SocketAddr> {
    let (host, given) = split_port(text);
    Some(SocketAddr::new(host.parse().ok()?, given.unwrap_or(port)))
}

/// The local address: as given, or the source address of the route to the target.
fn local(
    options: &ScenarioOptions,
    target: Option<SocketAddr>,
    server: bool,
) -> Result<SocketAddr, LabError> {
    let port = if server { 5060 } else { 0 };
    if let Some(text) = &options.local {
        if let Some(only) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(SocketAddr::new(route_source(target)?, only));
        }
        return address(text, port).ok_or_else(|| {
            LabError::bad_input(format!("--local {text}: ADDRESS[:PORT] or :PORT"))
        });
    }
    Ok(SocketAddr::new(route_source(target)?, port))
}

fn route_source(target: Option<SocketAddr>) -> Result<IpAddr, LabError> {
    // Connecting a datagram socket sends nothing; it only looks up the route. Without a target, the default route is
    // used (an address of RFC 5737).
    let to = target.unwrap_or(SocketAddr::from(([192, 0, 2, 1], 9)));
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let found = UdpSocket::bind((any, 0))
        .and_then(|socket| socket.connect(to).and_then(|()| socket.local_addr()));
    match (found, target) {
        (Ok(address), _) => Ok(address.ip()),
        (Err(_), None) => Ok(Ipv4Addr::LOCALHOST.into()),
        (Err(error), Some(to)) => Err(LabError::cannot_run(
            format!("no route to {to}: {error}"),
            "name an address to which this machine has a route, or --local",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(split_port("h:5080"), ("h", Some(5080)));
        assert_eq!(split_port("[::1]:7"), ("::1", Some(7)));
        assert_eq!(split_port("::1"), ("::1", None));
        assert_eq!(split_port("h"), ("h", None));
        assert_eq!(resolve("127.0.0.1").unwrap().port(), 5060);
        assert_eq!(resolve("::1").unwrap().port(), 5060);
        for wrong in ["127.0.0.1:99999", "localhost:sip", "h:", "[::1]:99999"] {
            let error = resolve(wrong).unwrap_err().to_string();
            assert!(error.contains("a port from 0 to 65535"), "{error}");
        }
    }

    #[test]
    fn transports_by_own_names_and_those_of_sipp() {
        let known = |name| transport(name).unwrap();
        assert_eq!(known("UDP"), (Transport::Udp, false));
        assert_eq!(known("l1"), (Transport::Tls, false));
        assert_eq!(known("ln"), (Transport::Tls, true));
        assert_eq!(known("tn"), (Transport::Tcp, true));
        let one = |name: &str| {
            let options = ScenarioOptions {
                targets: vec!["127.0.0.1:5061".into()],
                transport: name.into(),
                ..ScenarioOptions::default()
            };
            settings(&options, false, 7).unwrap().remove(0)
        };
        assert!(one("ln").per_call && !one("l1").per_call);
        assert_eq!(one("tls").peer_name, "127.0.0.1");
        for wrong in ["wss", "s1", "l2", ""] {
            assert!(transport(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limit_of_open_calls_is_that_of_all_threads() {
        let of = |limit: u64| {
            let options = ScenarioOptions {
                targets: vec!["127.0.0.1:5061".into()],
                threads: 4,
                limit: Some(limit),
                ..ScenarioOptions::default()
            };
            settings(&options, false, 7)
        };
        let error = of(2).unwrap_err().to_string();
        assert_eq!(
            error,
            "--limit 2 with --threads 4: at least 4, or fewer threads"
        );
        assert_eq!(of(4).unwrap().len(), 4);
    }

    #[test]
    fn options_of_the_pace_without_effect_are_refused() {
        let of = |server: bool, change: &dyn Fn(&mut ScenarioOptions)| {
            let mut options = ScenarioOptions::default();
            change(&mut options);
            check_pacing(&options, server).map_err(|error| error.to_string())
        };
        let with_users = |change: &dyn Fn(&mut ScenarioOptions)| {
            of(false, &|options| {
                options.users = 5;
                change(options);
            })
        };
        assert_eq!(with_users(&|_| {}), Ok(None));
        assert_eq!(with_users(&|options| options.calls = Some(5)), Ok(None));
        let error = with_users(&|options| options.rate = Some(10.0)).unwrap_err();
        assert!(
            error.starts_with("--rate has no effect with --users")
                && error.ends_with("leave it out"),
            "{error}"
        );
        let error = with_users(&|options| {
            options.limit = Some(5);
            options.poisson = true;
        });
        let words = "--limit, --poisson have no effect with --users";
        assert!(error.unwrap_err().starts_with(words));
        // A scenario that takes calls: SIPp accepts its own options there.
        let both = |options: &mut ScenarioOptions| {
            (options.rate, options.limit) = (Some(20.0), Some(100));
        };
        let warning = of(true, &both).unwrap().unwrap();
        let words = "--rate, --limit have no effect on a scenario that takes calls";
        assert!(warning.starts_with(words), "{warning}");
        assert_eq!(of(true, &|_| {}), Ok(None));
        assert_eq!(of(false, &both), Ok(None));
        assert!(of(true, &|options| options.poisson = true).is_err());
        let error = of(true, &|options| options.users = 5).unwrap_err();
        assert!(error.starts_with("--users has no effect"), "{error}");
    }

    #[test]
    fn scenario_that_changes_files_has_one_thread() {
        let folder = std::env::temp_dir().join(format!("lab-changes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (scenario, lines) = (folder.join("uac.xml"), folder.join("a.csv"));
        let text = r#"<scenario name="t"><nop><action><insert file="a.csv" value="x;y"/></action></nop></scenario>"#;
        std::fs::write(&scenario, text).unwrap();
        std::fs::write(&lines, "SEQUENTIAL\na;b\n").unwrap();
        let of = |threads: u64| {
            let options = ScenarioOptions {
                inject: vec![lines.clone()],
                threads,
                ..ScenarioOptions::default()
            };
            load(&scenario, &options).map(|_| ())
        };
        let error = of(2).unwrap_err().to_string();
        assert!(error.contains("use --threads 1"), "{error}");
        assert_eq!(of(1), Ok(()));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn behaviour_words() {
        let all = behaviours("all").unwrap();
        assert!(all.bye && all.abort && all.ping);
        let some = behaviours("all,-bye").unwrap();
        assert!(!some.bye && some.abort);
        let one = behaviours("none,abortunexp").unwrap();
        assert!(!one.bye && one.abort && !one.ping);
        assert!(behaviours("al").is_err());
    }

    #[test]
    fn threads_share_ports_and_targets() {
        let options = ScenarioOptions {
            targets: vec!["127.0.0.1:5080".into(), "127.0.0.1:5081".into()],
            local: Some("127.0.0.1:6060".into()),
            threads: 3,
            ..ScenarioOptions::default()
        };
        let all = settings(&options, false, 7).unwrap();
        let ports: Vec<_> = all
            .iter()
            .map(|one| (one.local.port(), one.remote.unwrap().port(), one.media_port))
            .collect();
        assert_eq!(
            ports,
            [(6060, 5080, 6000), (6061, 5081, 6004), (6062, 5080, 6008)]
        );
        // Media at a port of the local address, and at an address of IPv6 without a port.
        for (media, wanted) in [(":7000", "127.0.0.1:7000"), ("::1", "[::1]:6000")] {
            let options = ScenarioOptions {
                media: Some(media.to_owned()),
                ..options.clone()
            };
            let all = settings(&options, false, 7).unwrap();
            let first = SocketAddr::new(all[0].media_ip, all[0].media_port);
            assert_eq!(first.to_string(), wanted);
        }
        for wrong in [
            ScenarioOptions::default(),
            ScenarioOptions {
                transport: "wss".into(),
                ..options.clone()
            },
            ScenarioOptions {
                threads: 0,
                ..options.clone()
            },
            ScenarioOptions {
                ramp: 3.0,
                ..options.clone()
            },
        ] {
            assert!(settings(&wrong, false, 7).is_err());
        }
    }
}
