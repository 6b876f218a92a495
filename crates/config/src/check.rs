//! From text to the checked configuration: structure by the schema, then each table by its own file, then the rules for
//! several tables.

use super::document::DocumentNode;
use super::interfaces::interface_of;
use super::mistake::Mistake;
use super::model::Config;
use super::names::Names;
use super::raw::Raw;
use super::renamed::RenamedKeyWarning;
use super::sink::Sink;
use super::trunks::{known_by_certificate, trunk_of};
use super::{
    alarms, conferences, console, control, dns, gateway, limits, listener_clashes, log, media,
    metrics, ng_client, ng_server, realm, records, registrar, renamed, routes, rules, schema,
    session_timer, sip, store, threads, traces, users, workers,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Result of [`judge`].
#[derive(Clone, Debug)]
pub struct CheckedConfig {
    /// The configuration, if the text can be interpreted; with mistakes it is usable only for the names of files in it.
    pub config: Option<Config>,
    /// All mistakes that are independent of each other, in the order of the text.
    pub mistakes: Vec<Mistake>,
    /// Keys and values under their former names, also if there are mistakes.
    pub renamed_keys: Vec<RenamedKeyWarning>,
}

/// Maximum number of reported syntax errors of a file.
const SYNTAX_MISTAKES: usize = 10;

/// All mistakes of a text that are independent of each other, and the configuration if it can be interpreted.
///
/// Lines that are not TOML are skipped; then the structure is validated. Keys that the schema does not allow are
/// removed; if the rest is complete, its meaning is checked, except in tables from which keys were removed.
pub(super) fn judge(text: &str, file: &str) -> CheckedConfig {
    let (sound, mut mistakes) = without_syntax_mistakes(text, file);
    let Ok(document) = toml_edit::ImDocument::parse(sound.as_str()) else {
        return CheckedConfig::of(None, mistakes, Vec::new());
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
    let reported = found.into_iter().filter(|one| !(partial && one.missing));
    mistakes.extend(reported.map(mistake));
    if partial || !incomplete.is_empty() {
        return CheckedConfig::of(None, mistakes, renamed_keys);
    }
    let raw: Raw = match serde_json::from_value(node.to_json()) {
        Ok(raw) => raw,
        Err(error) => {
            if mistakes.is_empty() {
                let remedy = "compare with docs/configuration.md".into();
                mistakes.push(Mistake::new(text, file, 0..0, error.to_string(), remedy));
            }
            return CheckedConfig::of(None, mistakes, renamed_keys);
        }
    };
    let mut sink = Sink::new(text, file, &node);
    let mut config = check(&raw, &mut sink);
    config.renamed_keys.clone_from(&renamed_keys);
    let changed = match pruned {
        true => whole.changed_tables(&node),
        false => Vec::new(),
    };
    let of_meaning = sink.mistakes.into_iter();
    mistakes.extend(of_meaning.filter(|one| !changed.contains(&one.span)));
    CheckedConfig::of(Some(config), mistakes, renamed_keys)
}

impl CheckedConfig {
    fn of(
        config: Option<Config>,
        mut mistakes: Vec<Mistake>,
        renamed_keys: Vec<RenamedKeyWarning>,
    ) -> CheckedConfig {
        mistakes.sort_by_key(|mistake| mistake.span.start);
        CheckedConfig {
            config,
            mistakes,
            renamed_keys,
        }
    }
}

/// Line and column of the `[[table]]` with this name.
pub(super) fn place_of_table(text: &str, table: &str, name: &str) -> Option<(usize, usize)> {
    let document = toml_edit::ImDocument::parse(text).ok()?;
    let mut tables = document.as_table().get(table)?.as_array_of_tables()?.iter();
    let is_named = |table: &&toml_edit::Table| {
        table.get("name").and_then(toml_edit::Item::as_str) == Some(name)
    };
    let span = tables.find(is_named)?.span()?;
    let place = Mistake::new(text, "", span, String::new(), String::new());
    Some((place.line, place.column))
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

/// The document of a text.
pub(super) fn document(text: &str, file: &str) -> Result<DocumentNode, Vec<Mistake>> {
    let document = toml_edit::ImDocument::parse(text).map_err(|error| {
        vec![Mistake::new(
            text,
            file,
            error.span().unwrap_or(0..0),
            format!("this is not TOML: {}", error.message().trim().replace('\n', ", ")),
            "correct the line; strings are in quotes, lists in [ ], tables begin with [name] or [[name]]".into(),
        )]
    })?;
    Ok(DocumentNode::document(document.as_table(), text.len()))
}

/// The values of a document; mistakes if it violates the schema, or if the sink has some.
pub(super) fn values<R: DeserializeOwned>(
    (text, file): (&str, &str),
    (node, schema): (&DocumentNode, &Value),
    (sink, reference): (&mut Sink<'_>, &str),
) -> Result<R, Vec<Mistake>> {
    for violation in schema::violations(schema, node) {
        sink.mistakes.push(Mistake::new(
            text,
            file,
            violation.span,
            violation.message,
            violation.remedy,
        ));
    }
    if !sink.mistakes.is_empty() {
        return Err(core::mem::take(&mut sink.mistakes));
    }
    serde_json::from_value(node.to_json()).map_err(|error| {
        vec![Mistake::new(
            text,
            file,
            0..0,
            error.to_string(),
            format!("compare with {reference}"),
        )]
    })
}

pub(super) fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    let mut node = document(text, file)?;
    let (renamed_keys, mistakes) = renamed::apply(&mut node, text, file);
    let schema = schema::schema();
    let mut sink = Sink::new(text, file, &node);
    sink.mistakes = mistakes;
    let of = (&mut sink, "docs/configuration.md");
    let raw: Raw = values((text, file), (&node, &schema), of).map_err(in_order)?;
    let mut config = check(&raw, &mut sink);
    config.renamed_keys = renamed_keys;
    if sink.mistakes.is_empty() {
        Ok(config)
    } else {
        Err(sink.sorted())
    }
}

/// In the order of the file.
fn in_order(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort_by_key(|mistake| mistake.span.start);
    mistakes
}

fn check(raw: &Raw, sink: &mut Sink<'_>) -> Config {
    let interfaces = raw.interface.iter();
    let trunks = raw.trunk.iter();
    sink.names = Names {
        interfaces: interfaces.map(|table| table.name.clone()).collect(),
        trunks: trunks.map(|table| table.name.clone()).collect(),
    };
    let has_ha1 = raw.user.iter().any(|user| user.ha1.is_some());
    let (users, number_owners) = users::users(&raw.user, &raw.realm.name, sink);
    let mut config = Config {
        interfaces: Vec::new(),
        ng_server: None,
        media_nodes: ng_client::nodes(&raw.media_node, sink),
        media_node_policy: ng_client::policy(&raw.media),
        trunks: Vec::new(),
        routes: Vec::new(),
        conferences: Vec::new(),
        rules: ::rules::RuleSet::default(),
        identity: rules::identity_policy(&raw.identity),
        number_owners,
        users,
        realm: realm::realm(&raw.realm, has_ha1, sink),
        registrar: registrar::registrar(&raw.registrar, sink),
        registrar_store: registrar::store(&raw.registrar, sink),
        media: media::media(&raw.media, sink),
        media_ranges: Vec::new(),
        media_places: Vec::new(),
        sip: sip::sip(&raw.sip, sink),
        threads: threads::threads(&raw.threads, raw.sip.workers, sink),
        session_timer: session_timer::session_timer(&raw.session_timer, sink),
        limits: limits::limits(&raw.limits),
        admission: limits::admission(&raw.limits),
        dns: dns::dns(&raw.dns, sink),
        control: control::control(raw.control.as_ref(), sink),
        store: store::store(raw.store.as_ref(), sink),
        records: records::records(raw.records.as_ref(), sink),
        metrics: metrics::metrics(raw.metrics.as_ref(), sink),
        alarms: alarms::alarms(raw.alarms.as_ref(), sink),
        traces: traces::traces(raw.traces.as_ref(), sink),
        console: console::console(raw.console.as_ref(), sink),
        gateway: gateway::gateway(raw.gateway.as_ref(), sink),
        renamed_keys: Vec::new(),
        drain: raw.drain,
        log: log::log(&raw.log),
    };
    unique_names(raw, sink);
    let mut placed = Vec::new();
    for (index, interface) in raw.interface.iter().enumerate() {
        let checked = interface_of(
            interface,
            index,
            !raw.user.is_empty(),
            &mut config.media_ranges,
            &mut placed,
            sink,
        );
        config.interfaces.push(checked);
    }
    let ranges = &mut config.media_ranges;
    config.ng_server = ng_server::ng_server(raw.ng_server.as_ref(), ranges, &mut placed, sink);
    config.media_places = placed
        .iter()
        .map(|path| sink.span(&format!("{path}.ports")))
        .collect();
    if config.interfaces.is_empty() && config.ng_server.is_none() && config.gateway.is_none() {
        sink.report(
            "interface",
            "there is no interface",
            "add an [[interface]] with name and listen, [ng_server] for a media node, or [gateway] for an IPsec gateway",
        );
    }
    listener_clashes::check(&config, raw, sink);
    for (index, trunk) in raw.trunk.iter().enumerate() {
        let checked = trunk_of(trunk, index, &config.interfaces, sink);
        config.trunks.push(checked);
    }
    known_by_certificate(&config.interfaces, &config.trunks, sink);
    config.routes = routes::routes(&raw.route, sink);
    config.conferences = conferences::check(&raw.conference, &config.interfaces, sink);
    config.rules = rules::rules(&raw.rules, sink);
    ng_client::check(&config, raw, sink);
    ng_client::without_nodes(raw, sink);
    workers::check(&config, sink);
    config
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
