//! `hornwork check` and `hornwork schema`, and reading configuration files.

use crate::findings::{self, Finding, FindingLevel};
use crate::gateway;
use crate::ports;
use crate::security::{EXPIRED, LoadedFiles};
use clap::Args;
use config::{
    Authenticate, ConferenceSpec, Config, InterfaceId, InterfaceKind, InterfaceSpec, MediaMode,
    Mistake, Register, RenamedKeyWarning, RouteAction, RouteSpec, Trunk, TrunkId,
};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Configuration file of a packaged installation.
pub const DEFAULT_PATH: &str = "/etc/hornwork/hornwork.toml";

/// Options of `hornwork check`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork check -c examples/pbx.toml")]
pub struct CheckOptions {
    /// Configuration file.
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    /// Configuration file, as an alternative to -c.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Exit with status 2 if there are warnings.
    #[arg(long)]
    strict: bool,
    /// Print the findings as a JSON array of objects with level, file, line, message and remedy.
    #[arg(long)]
    json: bool,
}

/// Options of `hornwork schema`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork schema > hornwork.schema.json")]
pub struct Schema {
    /// Print the reference page (Markdown) instead of the JSON Schema.
    #[arg(long)]
    markdown: bool,
    /// Print the reference page (Markdown) of metrics and alarms.
    #[arg(long, conflicts_with = "markdown")]
    metrics: bool,
}

/// Reads a configuration, but not the files that it names; prints every mistake to standard error.
///
/// # Errors
/// The exit code: 2.
pub fn load(path: &Path) -> Result<Config, ExitCode> {
    parse(path).map(|(config, _)| config)
}

/// Why a configuration is refused.
pub(crate) enum RefusedConfig {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The text of the file and its mistakes.
    Mistakes(String, Vec<Mistake>),
}

impl RefusedConfig {
    /// The reason in one line, with the first mistakes and their number.
    pub(crate) fn reason(&self) -> String {
        match self {
            RefusedConfig::Unreadable(path, error) => format!("{}: {error}", path.display()),
            RefusedConfig::Mistakes(_, mistakes) => findings::mistakes_line(mistakes),
        }
    }

    /// Prints every mistake to standard error; returns the exit code, 2.
    pub(crate) fn print(&self) -> ExitCode {
        match self {
            RefusedConfig::Unreadable(path, error) => return unreadable(path, error),
            RefusedConfig::Mistakes(text, mistakes) => print_mistakes(text, mistakes),
        }
        ExitCode::from(2)
    }
}

/// Reads a configuration and the files that it names; a reload passes the files in use. Nothing is printed: the running
/// service reports a refusal in its log.
///
/// # Errors
/// The file cannot be read, or has mistakes.
pub(crate) fn load_all(
    path: &Path,
    before: Option<&LoadedFiles>,
) -> Result<(Config, LoadedFiles), RefusedConfig> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| RefusedConfig::Unreadable(path.to_owned(), error))?;
    parse_and_read(path, &text, before).map_err(|mistakes| RefusedConfig::Mistakes(text, mistakes))
}

/// Parses a configuration and reads the files that it names, or collects the mistakes of both; with mistakes in the
/// configuration only as far as the file names can be determined.
fn parse_and_read(
    path: &Path,
    text: &str,
    before: Option<&LoadedFiles>,
) -> Result<(Config, LoadedFiles), Vec<Mistake>> {
    let name = path.display().to_string();
    let mut judged = config::judge(text, &name);
    let Some(mut config) = judged.config else {
        return Err(judged.mistakes);
    };
    config.admission.machine = Some(crate::machine::machine(config.sip.workers));
    judged
        .mistakes
        .extend(ports::mistakes(&config, text, &name));
    match (
        LoadedFiles::read(&config, text, &name, before),
        judged.mistakes.is_empty(),
    ) {
        (Ok(loaded), true) => Ok((config, loaded)),
        (read, _) => {
            judged.mistakes.extend(read.err().unwrap_or_default());
            judged.mistakes.sort_by_key(|mistake| mistake.span.start);
            judged.mistakes.dedup();
            Err(judged.mistakes)
        }
    }
}

fn read(path: &Path) -> Result<String, ExitCode> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> ExitCode {
    let remedy = unreadable_remedy(error);
    eprintln!("hornwork: {}: {error}\n  remedy: {remedy}", path.display());
    ExitCode::from(2)
}

/// The remedy for a configuration file that cannot be read.
fn unreadable_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => {
            "name your file with -c; examples are in /usr/share/doc/hornwork/examples, or in examples/ of the source"
        }
        ErrorKind::PermissionDenied => {
            "run the command as root or as the user of the service, or name another file with -c"
        }
        ErrorKind::InvalidData => "save the file as UTF-8, or name another file with -c",
        _ => "name a readable file with -c",
    }
}

/// The configuration and its text.
fn parse(path: &Path) -> Result<(Config, String), ExitCode> {
    let text = read(path)?;
    match config::parse(&text, &path.display().to_string()) {
        Ok(mut config) => {
            config.admission.machine = Some(crate::machine::machine(config.sip.workers));
            Ok((config, text))
        }
        Err(mistakes) => {
            print_mistakes(&text, &mistakes);
            Err(ExitCode::from(2))
        }
    }
}

/// Prints each mistake with its line.
fn print_mistakes(text: &str, mistakes: &[Mistake]) {
    let colours = findings::colours(&std::io::stderr());
    eprint!("{}", findings::mistakes_text(text, mistakes, colours));
}

/// `hornwork check`: prints a summary of the configuration, or its mistakes.
pub fn check(options: &CheckOptions) -> ExitCode {
    let path = options.file.as_ref().unwrap_or(&options.config);
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if options.json => {
            let remedy = unreadable_remedy(&error);
            let unread = Finding::new(FindingLevel::Mistake, format!("{error}; {remedy}"));
            print_json(vec![unread.json(&path.display().to_string())]);
            return ExitCode::from(2);
        }
        Err(error) => return unreadable(path, &error),
    };
    let (config, loaded) = match parse_and_read(path, &text, None) {
        Ok(read) => read,
        Err(mistakes) => {
            // Former names are named at once, too: they do not depend on the rest.
            let file = path.display().to_string();
            let renamed = renamed_findings(&config::judge(&text, &file).renamed_keys);
            if options.json {
                let warnings = renamed.iter().map(|finding| finding.json(&file));
                let mistakes = mistakes.iter().map(findings::mistake_json);
                let mut all: Vec<serde_json::Value> = mistakes.chain(warnings).collect();
                // In the order of the file, as text.
                all.sort_by_key(|one| one["line"].as_u64());
                print_json(all);
            } else {
                let colours = findings::colours(&std::io::stderr());
                for finding in &renamed {
                    eprintln!("{}", finding.line(&file, colours));
                }
                print_mistakes(&text, &mistakes);
            }
            return ExitCode::from(2);
        }
    };
    let found = findings_of(&config, &text, &loaded);
    let rights = gateway::check_rights(&config);
    if options.json {
        let file = path.display().to_string();
        let lacking = rights.as_ref().err().map(|error| {
            // In one line, with the remedy after a semicolon.
            let text = error.to_string().replace("\n  remedy: ", "; ");
            Finding::new(FindingLevel::Mistake, text)
        });
        let all = lacking.iter().chain(&found);
        print_json(all.map(|finding| finding.json(&file)).collect());
    } else {
        if !config.interfaces.is_empty() {
            print!("{}", summary(&config));
            let (paths, why) = crate::machine::expected_paths(&config);
            let path = match paths.offload.path {
                path if path.uses_sockets() => "sockets",
                path => path.name(),
            };
            println!("media path: {path} ({why})");
            print!("{}", crate::capacity::of_process(&config, &paths));
        }
        print!("{}", node_summary(&config));
        print!("{}", gateway::summary(&config));
        let colours = findings::colours(&std::io::stdout());
        for finding in &found {
            println!("{}", finding.line(&path.display().to_string(), colours));
        }
    }
    if let Err(error) = rights {
        eprintln!("hornwork: {error}");
        return ExitCode::from(3);
    }
    let warned = found
        .iter()
        .any(|finding| finding.level() == FindingLevel::Warning);
    match options.strict && warned {
        true => ExitCode::from(2),
        false => ExitCode::SUCCESS,
    }
}

fn print_json(found: Vec<serde_json::Value>) {
    println!("{:#}", serde_json::Value::Array(found));
}

/// Warnings about keys and values under their former names.
fn renamed_findings(renamed: &[RenamedKeyWarning]) -> Vec<Finding> {
    let warning = |key: &RenamedKeyWarning| {
        Finding::new(FindingLevel::Warning, key.message.clone()).at(key.line, key.column)
    };
    renamed.iter().map(warning).collect()
}

/// Warnings, hints and remarks about a valid configuration.
fn findings_of(config: &Config, text: &str, loaded: &LoadedFiles) -> Vec<Finding> {
    let mut found = renamed_findings(&config.renamed_keys);
    for warning in config
        .warnings()
        .into_iter()
        .chain(crate::store::warning(config))
    {
        let place = config::place_of_warning(text, &warning);
        let finding = Finding::new(FindingLevel::Warning, warning);
        found.push(match place {
            Some((line, column)) => finding.at(line, column),
            None => finding,
        });
    }
    for invalid in &loaded.warnings {
        let text = format!("{}; {}", invalid.message, invalid.remedy);
        let finding = Finding::new(FindingLevel::Warning, text);
        found.push(finding.at(invalid.line, invalid.column));
    }
    let mut add = |level, text: String| found.push(Finding::new(level, text));
    for hint in config
        .hints()
        .into_iter()
        .chain(crate::records::hint(config))
    {
        add(FindingLevel::Hint, hint);
    }
    for event in loaded.expiry_events() {
        if let engine::EventKind::CertificateExpires {
            certificate,
            valid_until: until,
            state,
            ..
        } = event
            && state != EXPIRED
        {
            let text = format!("{certificate} expires on {until}; renew it");
            add(FindingLevel::Hint, text);
        }
    }
    for note in ports::remarks(config) {
        if let engine::EventKind::MediaPortsEphemeral {
            address,
            ports,
            ephemeral_ports: ephemeral,
            remedy,
        } = note
        {
            let text = format!(
                "media ports {ports} of {address} overlap with the ephemeral ports {ephemeral} of other programs; {remedy}"
            );
            add(FindingLevel::Remark, text);
        }
    }
    for address in foreign_addresses(config) {
        let text =
            format!("{address} is not an address of this machine: the border would not start here");
        add(FindingLevel::Hint, text);
    }
    found
}

/// Addresses of listeners and media that do not belong to this machine; each once.
fn foreign_addresses(config: &Config) -> Vec<IpAddr> {
    let interfaces = config.interfaces.iter();
    let node = config.ng_server.iter().flat_map(|node| {
        let listens = node.listen.iter().map(|point| point.address.ip());
        let media = node
            .interfaces
            .iter()
            .flat_map(|interface| &interface.media);
        listens.chain(media.map(|media| media.address))
    });
    let control = config.control.iter().filter_map(|control| control.listen);
    let metrics = config.metrics.iter().filter_map(|metrics| metrics.listen);
    let gateway = config.gateway.iter().map(|gateway| gateway.local);
    let console = config.console.iter().map(|console| console.listen);
    let hep = config.store.iter().filter_map(|store| store.hep.listen);
    let control = control
        .chain(metrics)
        .chain(gateway)
        .chain(console)
        .chain(hep);
    let control = control.map(|listen| listen.ip());
    let mut addresses: Vec<IpAddr> = interfaces
        .flat_map(|interface| {
            let listens = interface.listen.iter().map(|point| point.address.ip());
            listens.chain(interface.media.iter().map(|media| media.address))
        })
        .chain(node)
        .chain(control)
        .filter(|ip| {
            let bound = UdpSocket::bind((*ip, 0));
            bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Summary of the media node of a configuration in a few lines; empty without one.
pub fn node_summary(config: &Config) -> String {
    let Some(node) = &config.ng_server else {
        return String::new();
    };
    let listens: Vec<String> = node.listen.iter().map(ToString::to_string).collect();
    let mut text = format!("media node: commands on {}", listens.join(", "));
    if let Some(folder) = &node.recordings {
        text.push_str(&format!("; recordings in {}", folder.display()));
    }
    if let Some(folder) = &node.sounds {
        text.push_str(&format!("; sounds from {}", folder.display()));
    }
    text.push('\n');
    for interface in &node.interfaces {
        let media: Vec<String> = interface
            .media
            .iter()
            .filter_map(|media| {
                let range = config.media_ranges.get(media.range)?;
                Some(format!("{} {}-{}", media.address, range.first, range.last))
            })
            .collect();
        text.push_str(&format!(
            "ng server interface {}: media {}\n",
            interface.name,
            media.join(", ")
        ));
    }
    text
}

/// Summary of a configuration in a few lines.
pub fn summary(config: &Config) -> String {
    let mut text = String::new();
    for interface in &config.interfaces {
        text.push_str(&interface_line(config, interface));
    }
    for trunk in &config.trunks {
        text.push_str(&trunk_line(config, trunk));
    }
    for conference in &config.conferences {
        text.push_str(&conference_line(config, conference));
    }
    for route in &config.routes {
        text.push_str(&route_line(config, route));
    }
    if config.routes.is_empty() {
        for (id, interface) in (0..).map(InterfaceId).zip(&config.interfaces) {
            text.push_str(&default_line(config, id, interface));
        }
    }
    for node in &config.media_nodes {
        let most = match node.max_calls {
            Some(calls) => format!("at most {calls} calls"),
            None => "no limit of calls".to_owned(),
        };
        let drained = if node.drain {
            "; draining: no new calls"
        } else {
            ""
        };
        text.push_str(&format!(
            "media node {}: commanded at udp:{}, weight {}, {most}{drained}\n",
            node.name, node.control, node.weight
        ));
    }
    if let Some(control) = &config.control {
        let token = match control.token {
            Some(_) => "with a token",
            None => "any user of this machine",
        };
        if let Some(listen) = control.listen {
            text.push_str(&format!(
                "control: http:{listen}, {token}; at most {} connections, {} per source\n",
                control.connections, control.connections_per_source
            ));
        }
        if let Some(socket) = &control.socket {
            let path = socket.display();
            text.push_str(&format!(
                "control: {path}, its owner and group; for hornwork ctl\n"
            ));
        }
    }
    if let Some(records) = &config.records {
        let folder = records.folder.display();
        text.push_str(&format!("call records: in {folder}\n"));
    }
    if let Some(listen) = config.metrics.as_ref().and_then(|metrics| metrics.listen) {
        text.push_str(&format!("metrics: http://{listen}/metrics\n"));
    }
    text.push_str(&crate::store::summary(config));
    text.push_str(&crate::history::summary(config));
    text.push_str(&crate::web::summary(config));
    text.push_str(&crate::alarms::summary(config));
    text.push_str(&crate::traces::summary(config));
    if !config.users.is_empty() {
        text.push_str(&format!("users: {}\n", config.users.len()));
    }
    text
}

fn interface_line(config: &Config, interface: &InterfaceSpec) -> String {
    let listens: Vec<String> = interface.listen.iter().map(ToString::to_string).collect();
    let kind = match interface.kind {
        InterfaceKind::Access => "access",
        InterfaceKind::Core => "core",
    };
    let mut parts = vec![format!("listens on {}", listens.join(", "))];
    if let Some(host) = &interface.advertise {
        parts.push(format!("advertised as {host}"));
    }
    match (interface.authenticate, interface.register) {
        (Authenticate::Digest, _) => parts.push("digest authentication".to_owned()),
        (Authenticate::Trunk, Register::Pass(trunk)) => {
            parts.push(format!("authentication by {}", trunk_name(config, trunk)));
        }
        (Authenticate::Trunk | Authenticate::None, _) => {}
    }
    parts.push(match interface.register {
        Register::Local => "local registrar".to_owned(),
        Register::Pass(trunk) => format!("registrations passed to {}", trunk_name(config, trunk)),
        Register::Refuse => "registrations refused".to_owned(),
    });
    for media in &interface.media {
        if let Some(range) = config.media_ranges.get(media.range) {
            parts.push(format!(
                "media {} {}-{}",
                media.address, range.first, range.last
            ));
        }
    }
    format!(
        "interface {} ({kind}): {}\n",
        interface.name,
        parts.join("; ")
    )
}

fn trunk_line(config: &Config, trunk: &Trunk) -> String {
    let targets: Vec<String> = trunk
        .targets
        .iter()
        .map(|target| match target.transport {
            Some(transport) => format!("{transport}:{}", target.host),
            None => target.host.to_string(),
        })
        .collect();
    let interface = config
        .interface(trunk.interface)
        .map_or("", |i| i.name.as_str());
    let mut parts = vec![format!("{} through {interface}", targets.join(", "))];
    if let Some(account) = &trunk.register {
        parts.push(format!("registered as {}@{}", account.user, account.domain));
    }
    if let Some(ping) = trunk.ping_interval {
        parts.push(format!("pinged every {} s", ping.as_secs()));
    }
    if let Some(most) = trunk.max_calls {
        parts.push(format!("at most {most} calls"));
    }
    format!("trunk {}: {}\n", trunk.name, parts.join("; "))
}

fn conference_line(config: &Config, conference: &ConferenceSpec) -> String {
    let mut called = conference.numbers.clone();
    called.extend(
        conference
            .regex
            .as_ref()
            .map(|regex| format!("numbers like {regex}")),
    );
    let codecs: Vec<&str> = conference.codecs.iter().map(|kind| kind.name()).collect();
    let mut parts = vec![format!(
        "conferences at {}, at most {} with {} participants each",
        called.join(", "),
        conference.max_conferences,
        conference.settings.max_participants
    )];
    let names = conference
        .interfaces
        .iter()
        .filter_map(|id| config.interface(*id));
    let names: Vec<&str> = names.map(|interface| interface.name.as_str()).collect();
    if !names.is_empty() {
        parts.push(format!("from {}", names.join(", ")));
    }
    let trunks = conference
        .from_trunks
        .iter()
        .map(|trunk| trunk_name(config, *trunk));
    let trunks: Vec<&str> = trunks.collect();
    if !trunks.is_empty() {
        parts.push(format!("from {}", trunks.join(", ")));
    }
    parts.push(codecs.join(", "));
    if conference.pin.is_some() {
        parts.push("with a PIN".to_owned());
    }
    format!("conference {}: {}\n", conference.name, parts.join("; "))
}

/// The destination of calls from an interface without routes.
fn default_line(config: &Config, id: InterfaceId, interface: &InterfaceSpec) -> String {
    let keeps = |interface: &InterfaceSpec| interface.register == Register::Local;
    let kept = config.interfaces.iter().any(keeps);
    let passing = match interface.register {
        Register::Pass(trunk) => Some(trunk),
        Register::Local | Register::Refuse => None,
    };
    let otherwise = |registered: bool, trunks: Vec<&str>| match (registered, &trunks[..]) {
        (true, []) => "to the registered user, otherwise refused".to_owned(),
        (true, names) => format!("to the registered user, otherwise to {}", names.join(", ")),
        (false, []) => "refused".to_owned(),
        (false, names) => format!("to {}", names.join(", ")),
    };
    let others = |from: Option<TrunkId>| -> Vec<&str> {
        let trunks = (0..).map(TrunkId).zip(&config.trunks);
        let trunks = trunks.filter(|(id, _)| Some(*id) != from);
        trunks.map(|(_, trunk)| trunk.name.as_str()).collect()
    };
    let mut parts: Vec<String> = Vec::new();
    for (trunk, spec) in (0..).map(TrunkId).zip(&config.trunks) {
        if spec.interface == id {
            let forwarded = |other: &InterfaceSpec| other.register == Register::Pass(trunk);
            let registered = kept || config.interfaces.iter().any(forwarded);
            let target = otherwise(registered, others(Some(trunk)));
            parts.push(format!("from trunk {} {target}", spec.name));
        }
    }
    // A core interface without `allow` serves only trunks, unless it registers phones.
    let open = interface.authenticate == Authenticate::None;
    let core = interface.kind == InterfaceKind::Core;
    let refuses = interface.register == Register::Refuse;
    let target = match core && open && refuses && interface.allow.is_empty() {
        true => otherwise(false, Vec::new()),
        false => {
            // Other sources cannot authenticate there.
            let registered = kept && (keeps(interface) || core || !open || !refuses);
            let trunks = passing.map_or_else(|| others(None), |id| vec![trunk_name(config, id)]);
            otherwise(registered, trunks)
        }
    };
    parts.push(match parts.is_empty() {
        true => target,
        false => format!("from other sources {target}"),
    });
    format!("calls from {}: {}\n", interface.name, parts.join("; "))
}

fn route_line(config: &Config, route: &RouteSpec) -> String {
    let action = match &route.action {
        RouteAction::Registered => "to the registered user".to_owned(),
        RouteAction::Reject { status, .. } => format!("refused with {status}"),
        RouteAction::Trunks(trunks) => {
            let names: Vec<&str> = trunks.iter().map(|t| trunk_name(config, t.trunk)).collect();
            format!("to {}", names.join(", "))
        }
    };
    let media = match route.media {
        MediaMode::Anchor if config.media.at_nodes => "media at media nodes",
        MediaMode::Anchor => "media anchored",
        MediaMode::Node => "media at media nodes",
        MediaMode::Bypass => "media bypass",
    };
    format!("{}: {action}; {media}\n", route.name)
}

fn trunk_name(config: &Config, trunk: TrunkId) -> &str {
    config.trunk(trunk).map_or("", |trunk| trunk.name.as_str())
}

impl Schema {
    /// Whether the page of metrics and alarms is requested.
    pub fn has_metrics(&self) -> bool {
        self.metrics
    }
}

/// `hornwork schema`.
pub fn schema(options: &Schema) -> ExitCode {
    if options.markdown {
        print!("{}", config::markdown());
    } else {
        println!("{}", config::json_schema());
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_are_found_in_every_listener() {
        let text = format!(
            "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1\"\n\
             [control]\nlisten = \"http:203.0.113.1:8080\"\ntoken_file = \"t\"\n\
             [metrics]\nlisten = \"203.0.113.2:9464\"\n\
             [store]\nfolder = \"/x\"\nhep = {{ listen = \"udp:203.0.113.3\" }}\n\
             [console]\nlisten = \"203.0.113.4:8443\"\ncertificate = {{ chain = \"c\", key = \"k\" }}\n\
             [[console.user]]\nname = \"a\"\nrole = \"viewer\"\ntoken_hash = \"{}\"\n",
            "0".repeat(64)
        );
        let config = config::parse(&text, "f").unwrap();
        let found = foreign_addresses(&config);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"]
        );
    }
}
