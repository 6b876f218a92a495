//! Reading of experiment files, overrides and sweeps.

use super::checks::{check_kernel_relay, check_nodes, check_numbers, check_subject};
use super::model::{
    CallFlow, Callers, Experiment, IpVersions, Levels, MediaKind, RegistrarLocation, Registrations,
    SutMedia, TransportName,
};
use super::remedy::with_remedy;
use super::renamed_keys::{current_path, renamed_key_warning, with_current_keys};
use crate::error::LabError;
use toml_edit::{DocumentMut, Item, Value};

/// Most levels of one run; a typing error in a step must not cause a run of years.
const MAX_LEVELS: usize = 1_000;

/// A checked experiment file with its overrides.
#[derive(Clone, Debug)]
pub struct File {
    origin: String,
    document: DocumentMut,
    experiment: Experiment,
    warnings: Vec<String>,
    /// Thresholds that an override sets.
    required: Vec<String>,
}

/// One level of the sweep.
#[derive(Clone, Debug)]
pub struct Level {
    /// The value; `None` for an experiment without a sweep.
    pub value: Option<f64>,
    /// The file of this level alone; with the seed of a trial it repeats that trial.
    pub text: String,
    /// The experiment at this level.
    pub experiment: Experiment,
    /// Names of the thresholds that an override sets: a run that does not measure them has not passed.
    pub required: Vec<String>,
}

impl Level {
    /// The file that repeats a trial of this level: one repetition with the trial's seed.
    pub fn plan(&self, seed: u64) -> String {
        let Ok(mut document) = self.text.parse::<DocumentMut>() else {
            return self.text.clone();
        };
        // These tables concern the whole run; one trial does not have them.
        document.remove("peak");
        if let Some(thresholds) = document.get_mut("thresholds").and_then(Item::as_table_mut) {
            thresholds.remove("figure");
        }
        document.insert("repeat", Item::Value(Value::from(1)));
        // Seeds of trials have 63 bits, see `trial_seed`.
        let seed = i64::try_from(seed).unwrap_or(i64::MAX);
        document.insert("seed", Item::Value(Value::from(seed)));
        document.to_string()
    }
}

impl Experiment {
    /// With the numbers that follow from durations.
    fn resolved(mut self) -> Experiment {
        self.registrations = self.registrations.map(Registrations::resolved);
        self
    }

    /// Approximate duration of one trial on sockets, seconds: its plan, and the time in which the last calls end.
    pub fn expected_seconds(&self) -> f64 {
        let experiment = self;
        let over = |total: u64, rate: f64| if rate > 0.0 { total as f64 / rate } else { 0.0 };
        let callers = experiment.callers.as_ref().map_or(0.0, |callers| {
            let arriving = match callers.total {
                0 => callers.duration_seconds,
                total if callers.duration_seconds > 0.0 => {
                    over(total, callers.rate).min(callers.duration_seconds)
                }
                total => over(total, callers.rate),
            };
            arriving + callers.hold_seconds
        });
        let streams = experiment
            .streams
            .as_ref()
            .map_or(0.0, |streams| streams.duration_seconds);
        let conference = experiment.conference.as_ref().map_or(0.0, |conference| {
            conference.warm_up_seconds + conference.duration_seconds
        });
        let registrations = experiment.registrations.as_ref();
        let registrations = registrations.map_or(0.0, Registrations::expected_seconds);
        let callers = callers.max(super::phone_load::seconds(experiment));
        callers.max(streams).max(conference).max(registrations)
    }
}

impl File {
    /// Reads `text`; `origin` names it in messages.
    ///
    /// # Errors
    /// The first error, with file and line.
    pub fn parse(origin: &str, text: &str) -> Result<File, LabError> {
        File::parse_with(origin, text, &[])
    }

    /// Reads `text` and applies overrides in order. Checks beyond the types are made once, at the end: a file that is
    /// valid only with its overrides is accepted, and so are overrides that are valid only together.
    ///
    /// # Errors
    /// As [`File::parse`] and [`File::set`].
    pub fn parse_with(origin: &str, text: &str, overrides: &[String]) -> Result<File, LabError> {
        // Lines stay the same, so errors name those of the original text.
        let (text, warnings) = with_current_keys(text);
        let text = text.as_str();
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            at(origin, text, error.span(), error.message())
        })?;
        let experiment: Experiment = toml_edit::de::from_str(text)
            .map_err(|error| at(origin, text, error.span(), &with_remedy(error.message())))?;
        let mut file = File {
            origin: origin.to_owned(),
            document,
            experiment: experiment.resolved(),
            warnings: warnings
                .iter()
                .map(|warning| format!("{origin}: {warning}"))
                .collect(),
            required: Vec::new(),
        };
        for assignment in overrides {
            file = file.with(assignment)?;
        }
        file.check()?;
        Ok(file)
    }

    /// Overrides one key: `key=value`, the key a dotted path, the value as TOML or a bare word; without a value the
    /// key, or the whole table of that name, is removed.
    ///
    /// # Errors
    /// An unknown key, or a value that does not fit.
    pub fn set(&mut self, assignment: &str) -> Result<(), LabError> {
        let changed = self.with(assignment)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Returns the file with one override, its types checked.
    fn with(&self, assignment: &str) -> Result<File, LabError> {
        let bad = |why: String| LabError::bad_input(format!("--set {assignment}: {why}"));
        let (path, value) = assignment
            .split_once('=')
            .ok_or_else(|| bad("expected key=value".to_owned()))?;
        let (path, value) = (path.trim(), value.trim());
        let mut warnings = self.warnings.clone();
        let renamed = current_path(path);
        if let Some(new) = &renamed {
            warnings.push(format!(
                "--set {assignment}: {}",
                renamed_key_warning(path, new)
            ));
        }
        let path = renamed.as_deref().unwrap_or(path);
        let mut document = self.document.clone();
        match value {
            "" => remove_key(&mut document, path).map_err(bad)?,
            value => {
                // A sweep has one of two forms: setting keys of one removes the other.
                match path {
                    "levels.values" => remove_keys(&mut document, &["from", "to", "step"]),
                    "levels.from" | "levels.to" | "levels.step" => {
                        remove_keys(&mut document, &["values"]);
                    }
                    _ => {}
                }
                set_key(&mut document, path, parse_value(value)).map_err(bad)?;
            }
        }
        // The value itself may contain old names: a list of keys for the sweep, or an inline table.
        let (text, renamed_in_value) = with_current_keys(&document.to_string());
        if !renamed_in_value.is_empty() {
            document = text
                .parse()
                .map_err(|error: toml_edit::TomlError| bad(error.to_string()))?;
            let in_value = renamed_in_value
                .iter()
                .map(|warning| format!("--set {assignment}: {warning}"));
            warnings.extend(in_value);
        }
        let experiment = match typed(&document) {
            Ok(experiment) => experiment,
            // A key of type text accepts a number: `callers.dial=600`. If that fails too, the first error is reported.
            Err(first) if !value.is_empty() => {
                set_key(&mut document, path, Value::from(value)).map_err(bad)?;
                typed(&document).map_err(|_| bad(first))?
            }
            Err(first) => return Err(bad(first)),
        };
        Ok(File {
            origin: self.origin.clone(),
            document,
            experiment,
            warnings,
            required: self.required_with(path, value),
        })
    }

    /// Names of the thresholds that overrides set, with one more override.
    fn required_with(&self, path: &str, value: &str) -> Vec<String> {
        let mut required = self.required.clone();
        if path == "thresholds" {
            required.clear();
        }
        if let Some(name) = path.strip_prefix("thresholds.") {
            required.retain(|known| known != name);
            if !value.is_empty() {
                required.push(name.to_owned());
            }
        }
        required
    }

    /// The experiment by file and overrides, before the sweep sets its keys.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// Warnings about keys of the file and of overrides that are accepted for one release.
    pub fn warnings(&self) -> Vec<String> {
        let unused = self.experiment.search.unused_key();
        let unused = unused.map(|warning| format!("{}: {warning}", self.origin));
        self.warnings.iter().cloned().chain(unused).collect()
    }

    /// The file with its overrides, as TOML.
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// The levels, in order; one without a value if there is no sweep.
    ///
    /// # Errors
    /// A sweep that is malformed, or that sets an unknown key.
    pub fn levels(&self) -> Result<Vec<Level>, LabError> {
        let Some(levels) = &self.experiment.levels else {
            return Ok(vec![Level {
                value: None,
                text: self.document.to_string(),
                experiment: self.experiment.clone(),
                required: self.required.clone(),
            }]);
        };
        values(levels)
            .map_err(|why| self.bad(&why))?
            .into_iter()
            .map(|value| self.level(levels, value))
            .collect()
    }

    /// Approximate duration of all trials on sockets, seconds, with the waiting time at the end of each.
    pub fn expected_seconds(&self) -> f64 {
        let levels = self.levels().unwrap_or_default();
        let all: f64 = levels
            .iter()
            .map(|level| level.experiment.expected_seconds())
            .sum();
        all * f64::from(self.experiment.repeat)
    }

    /// The experiment with its sweep at `value`.
    ///
    /// # Errors
    /// There is no sweep, or the value does not fit.
    pub fn level_at(&self, value: f64) -> Result<Level, LabError> {
        let levels = self.experiment.levels.as_ref();
        let levels = levels.ok_or_else(|| self.bad("no [levels]"))?;
        self.level(levels, value)
    }

    fn level(&self, levels: &Levels, value: f64) -> Result<Level, LabError> {
        let mut document = self.document.clone();
        for path in &levels.set {
            set_key(&mut document, path, number(value))
                .map_err(|why| self.bad(&format!("levels.set: {why}")))?;
        }
        let experiment =
            typed(&document).map_err(|why| self.bad(&format!("levels.set, at {value}: {why}")))?;
        document.remove("levels");
        Ok(Level {
            value: Some(value),
            text: document.to_string(),
            experiment,
            required: self.required.clone(),
        })
    }

    fn bad(&self, why: &str) -> LabError {
        LabError::bad_input(format!("{}: {why}", self.origin))
    }

    /// Checks beyond the types.
    fn check(&self) -> Result<(), LabError> {
        self.levels()?
            .iter()
            .try_for_each(|level| check_experiment(&level.experiment))
            .map_err(|why| self.bad(&why))
    }
}

fn check_experiment(experiment: &Experiment) -> Result<(), String> {
    if !(1..=super::MOST_REPETITIONS).contains(&experiment.repeat) {
        return Err(format!("repeat: expected 1 to {}", super::MOST_REPETITIONS));
    }
    if experiment.sut.direct && experiment.sut.is_external() {
        return Err("sut.direct and sut.address exclude each other".to_owned());
    }
    if experiment.sut.is_external() && experiment.sut.ip != IpVersions::Ipv4 {
        return Err("sut.ip applies to the built-in border only; an external SUT has the IP version of sut.address".to_owned());
    }
    if experiment.sut.workers > engine::Worker::MAX {
        return Err(format!("sut.workers: at most {}", engine::Worker::MAX));
    }
    if experiment.sut.direct && experiment.sut.ip.sides()[0] != experiment.sut.ip.sides()[1] {
        return Err("sut.ip: with sut.direct both sides have the same IP version".to_owned());
    }
    if let Some(study) = &experiment.study {
        study.check(experiment.peak.is_some())?;
    }
    if let Some(peak) = &experiment.peak {
        peak.check()?;
        if experiment.levels.is_none() || experiment.callers.is_none() {
            return Err(
                "[peak] measures calls at values of the sweep: add [callers] and [levels]"
                    .to_owned(),
            );
        }
    }
    for bound in &experiment.thresholds.figure {
        bound.check(experiment.peak.is_some(), experiment.levels.is_some())?;
    }
    experiment.search.check()?;
    if let Some(streams) = &experiment.streams {
        check_percent("streams.listen_percent", streams.listen_percent)?;
        let comparable = streams.media == MediaKind::Speech && streams.codec.is_g711();
        if streams.listen_percent > 0.0 && !comparable {
            return Err(
                "streams.listen_percent needs streams.media = \"speech\" and a G.711 codec"
                    .to_owned(),
            );
        }
    }
    if let Some(callers) = &experiment.callers {
        if callers.total == 0 && callers.duration_seconds <= 0.0 {
            return Err("callers: total or duration_seconds is required".to_owned());
        }
        if callers.media == MediaKind::Echo {
            return Err("callers.media: echo is only possible for callees".to_owned());
        }
        if callers.listen_percent > 0.0 && callers.media != MediaKind::Speech {
            return Err("callers.listen_percent needs callers.media = \"speech\"".to_owned());
        }
        if experiment.callees.is_none() && !experiment.sut.is_external() {
            return Err(
                "callers without callees need an external SUT: set sut.address or sut.subject"
                    .to_owned(),
            );
        }
        check_media(experiment, callers)?;
        for (name, percent) in [
            ("cancel_percent", callers.cancel_percent),
            ("hold_percent", callers.hold_percent),
            ("listen_percent", callers.listen_percent),
        ] {
            check_percent(&format!("callers.{name}"), percent)?;
        }
    }
    check_transports(experiment)?;
    check_registrations(experiment)?;
    check_numbers(experiment)?;
    check_generator(experiment)?;
    if let (Some(callers), Some(callees)) = (&experiment.callers, &experiment.callees)
        && callers.flow != callees.flow
    {
        return Err("callers.flow and callees.flow have to be the same".to_owned());
    }
    if let Some(callees) = &experiment.callees {
        check_percent("callees.busy_percent", callees.busy_percent)?;
        check_percent("callees.no_answer_percent", callees.no_answer_percent)?;
    }
    experiment.network.check()?;
    if experiment.conference.is_some() && experiment.network.heal_seconds > 0.0 {
        return Err(
            "network.heal_seconds: faults of conferences do not end: remove the key".to_owned(),
        );
    }
    if experiment.callers.is_none()
        && experiment.registrations.is_none()
        && experiment.streams.is_none()
        && !super::phone_load::has_workload_of_its_own(experiment)
    {
        return Err("nothing to do: add [callers] or another workload".to_owned());
    }
    super::protection::check_protection(experiment)?;
    check_link(experiment)?;
    check_conference(experiment)
}

/// Checks codecs, media security and measured media figures against each other.
fn check_media(experiment: &Experiment, callers: &Callers) -> Result<(), String> {
    let built_in = !experiment.sut.direct && !experiment.sut.is_external();
    let anchored = built_in && experiment.sut.media != SutMedia::Bypass;
    let callees = experiment.callees.as_ref();
    let echo = callees.is_some_and(|callees| callees.media == MediaKind::Echo);
    if callers.listen_percent > 0.0 && !callers.codec.is_g711() {
        return Err("callers.listen_percent: audio is compared in G.711 only".to_owned());
    }
    if callers.silence_suppression {
        if callers.codec.0 != codec::Kind::G729 {
            return Err("callers.silence_suppression is supported for G.729 only".to_owned());
        }
        if callers.media != MediaKind::Speech {
            return Err("callers.silence_suppression needs callers.media = \"speech\"".to_owned());
        }
    }
    if callers.srtp {
        if experiment.sut.direct || (built_in && !anchored) {
            return Err(
                "callers.srtp needs a border with anchored media, which terminates SRTP".to_owned(),
            );
        }
        if callers.hold_percent > 0.0 || callers.flow != CallFlow::Plain {
            return Err(
                "callers.srtp cannot be combined with hold_percent or the flow volte".to_owned(),
            );
        }
        if callers.media == MediaKind::None {
            return Err("callers.srtp needs callers.media".to_owned());
        }
    }
    if callers.time_packets && (echo || callers.media == MediaKind::None) {
        return Err(
            "callers.time_packets needs media that each side generates itself, not none or echo"
                .to_owned(),
        );
    }
    if let Some(other) = experiment.transcodes_to() {
        let clocks = [callers.codec, other].map(|codec| codec.0.rtp_clock());
        if callers.time_packets && clocks[0] != clocks[1] {
            return Err(format!(
                "callers.time_packets matches packets by their timestamps: {} and {} have different RTP clocks",
                callers.codec.0.name(),
                other.0.name()
            ));
        }
        if !anchored {
            return Err("callees.codec differs from callers.codec: this needs the built-in border with anchored media, which transcodes".to_owned());
        }
        if callers.listen_percent > 0.0 || echo {
            return Err("callees.codec differs from callers.codec: listen_percent and echo are not possible".to_owned());
        }
    }
    Ok(())
}

/// Checks a link with bulk traffic.
fn check_link(experiment: &Experiment) -> Result<(), String> {
    let Some(link) = &experiment.link else {
        return Ok(());
    };
    if experiment.streams.is_none() || !experiment.sut.direct {
        return Err("[link] needs [streams] and sut.direct = true".to_owned());
    }
    let within = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
    if !within(link.rate_mbit, 1.0, 10_000.0) || !within(link.bulk_percent, 0.0, 1_000.0) {
        return Err("link: expected rate_mbit 1 to 10000, bulk_percent 0 to 1000".to_owned());
    }
    if !(64..=1_472).contains(&link.bulk_bytes) || link.queue_packets == 0 || link.isolated > 1 {
        return Err(
            "link: expected bulk_bytes 64 to 1472, queue_packets at least 1, isolated 0 or 1"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks conferences.
fn check_conference(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.conference else {
        return super::phone_load::check_phone(experiment);
    };
    let others = [
        experiment.callers.is_some(),
        experiment.callees.is_some(),
        experiment.registrations.is_some(),
        experiment.streams.is_some(),
    ];
    if others.contains(&true) {
        return Err(
            "[conference] cannot be combined with other workloads: run calls in a separate experiment".to_owned(),
        );
    }
    let within =
        |name: &str, value: u64, most: u64, least: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("conference.{name}: {least} to {most}")),
        };
    within("count", plan.count, 999, 1)?;
    within("participants", plan.participants, 16, 2)?;
    within("instances", plan.instances, 64, 1)?;
    let rate = plan.rate.is_finite() && plan.rate > 0.0;
    let spans = [plan.warm_up_seconds, plan.duration_seconds];
    if !rate
        || spans.iter().any(|span| !(span.is_finite() && *span >= 0.0))
        || plan.duration_seconds < 1.0
    {
        return Err(
            "conference: expected rate above 0, duration_seconds at least 1, warm_up_seconds 0 or more"
                .to_owned(),
        );
    }
    let sut = &experiment.sut;
    if sut.direct || (sut.is_external() && plan.instances > 1) {
        return Err(
            "[conference] needs the built-in border, or one external SUT (conference.instances = 1)"
                .to_owned(),
        );
    }
    if sut.workers > 1 || experiment.generator.workers > 1 {
        return Err(
            "[conference] excludes sut.workers and generator.workers: set conference.instances"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks registrations.
fn check_registrations(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.registrations else {
        return Ok(());
    };
    plan.check_duration()?;
    if !(plan.refresh_rate >= 0.0 && plan.refresh_rate.is_finite()) {
        return Err("registrations.refresh_rate: expected 0 or more".to_owned());
    }
    if plan.refresh_rate > 0.0 {
        if plan.refresh_seconds > 0.0 {
            return Err(
                "registrations: refresh_rate and refresh_seconds exclude each other".to_owned(),
            );
        }
        if plan.refreshes == 0 {
            return Err("registrations.refresh_rate needs registrations.refreshes, the number for each user".to_owned());
        }
    }
    if plan.registrar == RegistrarLocation::Core {
        if experiment.sut.direct || experiment.sut.is_external() {
            return Err(
                "registrations.registrar = \"core\" needs the built-in border: the registrar of the test lab is behind it"
                    .to_owned(),
            );
        }
        if plan.password.contains("{number") {
            return Err("registrations.registrar = \"core\": this registrar identifies users by name: use {user} instead of {number} in registrations.password".to_owned());
        }
    }
    Ok(())
}

/// Checks a generator with several threads.
fn check_generator(experiment: &Experiment) -> Result<(), String> {
    let workers = experiment.generator.workers;
    if workers == 0 || workers > MAX_GENERATORS {
        return Err(format!("generator.workers: 1 to {MAX_GENERATORS}"));
    }
    if experiment.generator.spin_us > MAX_SPIN_US {
        return Err(format!("generator.spin_us: at most {MAX_SPIN_US}"));
    }
    if experiment.generator.batch_us > MAX_BATCH_US {
        return Err(format!("generator.batch_us: at most {MAX_BATCH_US}"));
    }
    let sut = &experiment.sut;
    for (name, priority) in [
        ("generator", experiment.generator.realtime_priority),
        ("sut", sut.realtime_priority),
    ] {
        if priority > MAX_REALTIME {
            return Err(format!("{name}.realtime_priority: at most {MAX_REALTIME}"));
        }
    }
    if sut.realtime_priority > 0 && (sut.direct || sut.is_external()) {
        return Err(
            "sut.realtime_priority applies to the built-in border only; configure the external SUT itself, and set sut.realtime_priority = 0".to_owned(),
        );
    }
    if workers > 1 && experiment.streams.is_some() {
        return Err("generator.workers: [streams] uses one sender and one receiver".to_owned());
    }
    let limits = experiment.callers.iter().map(|callers| callers.limit);
    if limits
        .into_iter()
        .any(|limit| limit > 0 && limit < u64::from(workers))
    {
        return Err("generator.workers: callers.limit must be at least as large".to_owned());
    }
    Ok(())
}

/// Longest time of polling before a deadline, microseconds: timers of a busy virtual machine are late by about as much.
const MAX_SPIN_US: u32 = 200;
/// Longest batching delay of a generator, microseconds: beyond it the figures would be those of the generator.
const MAX_BATCH_US: u32 = 10_000;
/// The highest priority under SCHED_FIFO (sched(7)).
const MAX_REALTIME: u8 = 99;
/// Most threads of a generator on each side.
const MAX_GENERATORS: u16 = 64;

/// Most connections of a workload: there are no more ports between two addresses.
const MAX_CONNECTIONS: u32 = 60_000;

/// Checks transports and certificates.
fn check_transports(experiment: &Experiment) -> Result<(), String> {
    use TransportName::{Tcp, Tls, Udp};
    check_websockets(experiment)?;
    check_nodes(experiment)?;
    check_kernel_relay(experiment)?;
    check_subject(experiment)?;
    let mut streams: Vec<TransportName> = experiment
        .transports()
        .filter(|name| *name != Udp)
        .collect();
    streams.dedup();
    if streams.len() > 1 {
        return Err(
            "callers.transport and registrations.transport: TCP, TLS and WebSocket exclude each other"
                .to_owned(),
        );
    }
    let callers = experiment.callers.as_ref();
    let counts = [
        callers.map(|w| ("callers", w.transport, w.connections)),
        (experiment.registrations.as_ref()).map(|w| ("registrations", w.transport, w.connections)),
    ];
    for (name, transport, connections) in counts.into_iter().flatten() {
        // One for each user, within the limit.
        let each = connections == 0 && name == "registrations" && transport != Udp;
        if !each && !(1..=MAX_CONNECTIONS).contains(&connections) {
            return Err(format!(
                "{name}.connections = {connections}: expected 1 to {MAX_CONNECTIONS}{}",
                match name {
                    "registrations" => ", or 0 for one per user (not over UDP)",
                    _ => "",
                }
            ));
        }
        if connections > 1 && transport == Udp {
            return Err(format!("{name}.connections: UDP has no connections"));
        }
    }
    let sut = &experiment.sut;
    let secure_stream = streams.iter().any(|stream| *stream != Tcp);
    if sut.is_external() && secure_stream && experiment.transports().any(|t| t == Udp) {
        return Err("an external SUT has one address (sut.address): use TLS or WebSocket for both callers and registrations, or for neither".to_owned());
    }
    if let (true, Some(callers), Some(callees)) = (sut.direct, callers, &experiment.callees)
        && (callers.transport == Tls) != (callees.transport == Tls)
    {
        return Err(
            "with sut.direct, use TLS for both callers and callees, or for neither".to_owned(),
        );
    }
    if sut.is_external()
        && experiment
            .callees
            .as_ref()
            .is_some_and(|callees| callees.transport == Tcp)
    {
        return Err("callees.transport: an external SUT chooses between UDP and TCP itself; use tls, or remove the key".to_owned());
    }
    let used = sut.is_external() && experiment.uses_tls();
    if !used && !experiment.tls.is_default() {
        return Err("[tls] applies to an external SUT that is called over TLS; for the built-in border certificates are generated".to_owned());
    }
    Ok(())
}

/// Checks WebSockets.
fn check_websockets(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    let callees = experiment.callees.as_ref();
    if callees.is_some_and(|callees| callees.transport.is_websocket()) {
        return Err("callees.transport: a server does not open WebSockets to the called side; use udp, tcp or tls".to_owned());
    }
    let opens = experiment.uses_websockets();
    if opens && sut.direct {
        return Err(
            "with sut.direct WebSockets are not possible: called sides listen on UDP, TCP and TLS"
                .to_owned(),
        );
    }
    let path = &sut.websocket_path;
    if path.is_empty() {
        return Ok(());
    }
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "sut.websocket_path = {path:?}: expected a path, like \"/ws\""
        ));
    }
    match opens && sut.is_external() {
        true => Ok(()),
        false => Err(
            "sut.websocket_path applies to an external SUT that is reached over ws or wss"
                .to_owned(),
        ),
    }
}

fn check_percent(name: &str, percent: f64) -> Result<(), String> {
    if (0.0..=100.0).contains(&percent) {
        Ok(())
    } else {
        Err(format!("{name} = {percent}: expected 0 to 100"))
    }
}

fn values(levels: &Levels) -> Result<Vec<f64>, String> {
    if !levels.values.is_empty() {
        if levels.from.is_some() || levels.to.is_some() || levels.step.is_some() {
            return Err("levels: values excludes from, to and step".to_owned());
        }
        return Ok(levels.values.clone());
    }
    let (Some(from), Some(to), Some(step)) = (levels.from, levels.to, levels.step) else {
        return Err("levels: values, or from, to and step, are required".to_owned());
    };
    if !(step > 0.0 && from.is_finite() && to >= from) {
        return Err(format!(
            "levels: from {from} to {to} by {step} is not a rising sweep"
        ));
    }
    let count = ((to - from) / step + 1e-9).floor() + 1.0;
    if count > MAX_LEVELS as f64 {
        return Err(format!("levels: more than {MAX_LEVELS} values"));
    }
    let value = |n: u64| crate::decimal::twelve_digits(from + n as f64 * step);
    Ok((0..count as u64).map(value).collect())
}

fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

fn parse_value(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

/// Sets the key at a dotted path; creates missing tables.
fn set_key(document: &mut DocumentMut, path: &str, value: Value) -> Result<(), String> {
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty());
    let last = last.ok_or_else(|| format!("{path:?} is not a key"))?;
    let mut table = document.as_table_mut();
    for key in keys {
        let item = table
            .entry(key)
            .or_insert_with(|| Item::Table(toml_edit::Table::new()));
        table = item
            .as_table_mut()
            .ok_or_else(|| format!("{key:?} is not a table"))?;
    }
    table.insert(last, Item::Value(value));
    Ok(())
}

/// Removes the key at a dotted path; it must exist.
fn remove_key(document: &mut DocumentMut, path: &str) -> Result<(), String> {
    let none = || format!("the key {path:?} does not exist");
    let (tables, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut table = document.as_table_mut();
    for key in tables.split('.').filter(|key| !key.is_empty()) {
        let item = table.get_mut(key).and_then(Item::as_table_mut);
        table = item.ok_or_else(none)?;
    }
    table.remove(last).map(|_| ()).ok_or_else(none)
}

/// Removes keys of the sweep, if present.
fn remove_keys(document: &mut DocumentMut, keys: &[&str]) {
    if let Some(levels) = document.get_mut("levels").and_then(Item::as_table_mut) {
        for key in keys {
            levels.remove(key);
        }
    }
}

fn typed(document: &DocumentMut) -> Result<Experiment, String> {
    toml_edit::de::from_str(&document.to_string())
        .map(Experiment::resolved)
        .map_err(|error| with_remedy(error.message()))
}

/// An error with file and line.
fn at(origin: &str, text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> LabError {
    match span {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            LabError::bad_input(format!("{origin}:{line}: {message}"))
        }
        None => LabError::bad_input(format!("{origin}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::renamed_keys::RENAMED_KEYS;
    use super::super::{BUILT_IN, built_in};
    use super::*;

    fn capacity() -> File {
        File::parse("call-capacity", built_in("call-capacity").unwrap()).unwrap()
    }

    #[test]
    fn built_in_files_are_valid_and_named() {
        for (name, text) in BUILT_IN {
            let file = File::parse(name, text).unwrap();
            assert_eq!(&file.experiment().name, name);
            assert!(!file.experiment().title.is_empty() && !file.experiment().about.is_empty());
            assert!(!file.levels().unwrap().is_empty());
        }
        assert!(BUILT_IN.is_sorted());
    }

    #[test]
    fn the_sweep_sets_its_keys() {
        let levels = capacity().levels().unwrap();
        assert_eq!(levels.len(), 12);
        let callers = levels[8].experiment.callers.as_ref().unwrap();
        assert_eq!((callers.total, callers.limit), (900, 900));
        assert_eq!(levels[8].value, Some(900.0));
    }

    #[test]
    fn overrides_are_checked_like_the_file() {
        let mut file = capacity();
        file.set("callers.hold_seconds=0.5").unwrap();
        file.set("levels.to = 200").unwrap();
        file.set("sut.address=127.0.0.1:5060").unwrap();
        file.set("callers.dial=+43 1 234").unwrap();
        let callers = file.experiment().callers.as_ref().unwrap();
        assert_eq!(
            (callers.hold_seconds, callers.dial.as_str()),
            (0.5, "+43 1 234")
        );
        assert_eq!(file.levels().unwrap().len(), 2);
        for wrong in [
            "callers.hold_secs=1",
            "callers=1",
            "callers.rate.x=1",
            "nothing",
            "callers.rate=fast",
            "sut.address=here",
            "levels.set=[\"callers.nothing\"]",
            "levels.step=0",
            "callers.cancel_percent=101",
            ".=1",
        ] {
            let error = file.set(wrong).unwrap_err();
            assert!(matches!(error, LabError::BadInput(_)), "{wrong}");
        }
        assert_eq!(
            file.levels().unwrap().len(),
            2,
            "a rejected override changes nothing"
        );
    }

    #[test]
    fn numbers_are_accepted_for_text_keys() {
        let text = built_in("small-network").unwrap();
        let set = ["callers.dial=600".to_owned()];
        let file = File::parse_with("x", text, &set).unwrap();
        assert_eq!(file.experiment().callers.as_ref().unwrap().dial, "600");
        // If both types fail, the first error is reported.
        let set = ["callers.rate=many".to_owned()];
        assert!(File::parse_with("x", text, &set).is_err());
    }

    #[test]
    fn old_names_of_keys_are_accepted_with_a_warning() {
        let current = "name = \"x\"\ntitle = \"y\"\n[sut]\ndirect = true\n[levels]\nset = [\"callers.rate\", \"link.isolated\"]\n\
            label = \"z\"\nvalues = [1.0]\n[link]\nrate_mbit = 50.0\n[streams]\nduration_seconds = 2.0\n\
            [callers]\nrate = 1.0\nduration_seconds = 1.0\n[callees]\n";
        let old = current
            .replace("[sut]", "[subject]")
            .replace("direct", "none")
            .replace("rate_mbit", "mbit")
            .replace("link.isolated", "link.shares")
            .replace("duration_seconds", "seconds");
        let [current, old] = [current, &old].map(|text| File::parse("x", text).unwrap());
        assert_eq!(old.experiment(), current.experiment());
        assert_eq!(old.text(), current.text());
        assert!(current.warnings().is_empty());
        assert_eq!(old.warnings().len(), 6, "{:?}", old.warnings());
        assert_eq!(
            old.warnings()[0],
            "x: the key subject is now called sut; the old name is accepted until the next release"
        );
    }

    #[test]
    fn every_renamed_key_is_accepted_in_overrides_and_sweeps() {
        for (old, new) in RENAMED_KEYS.iter().filter(|(old, _)| old.contains('.')) {
            let old = old.replacen("sut.", "subject.", 1);
            let value = match *new {
                "sut.direct" => "true",
                "registrations.registrar" => "core",
                _ => "1",
            };
            // Only the types are checked: the keys do not fit together in one experiment.
            let text = "name = \"x\"\ntitle = \"y\"\n[callers]\nrate = 1.0\ntotal = 1\n[callees]\n";
            let file = File::parse("x", text).unwrap();
            let [by_old, by_new] =
                [old.as_str(), new].map(|key| file.with(&format!("{key}={value}")).unwrap());
            assert_eq!(by_old.experiment(), by_new.experiment(), "{old}");
            assert_eq!(by_old.warnings().len(), 1, "{old}");
            assert!(
                by_old.warnings()[0].contains(new),
                "{:?}",
                by_old.warnings()
            );
            assert!(by_new.warnings().is_empty(), "{new}");
            let sweep = |key: &str| {
                let levels = format!("levels={{ set = [\"{key}\"], label = \"l\", values = [1] }}");
                file.with(&levels).unwrap()
            };
            assert_eq!(
                sweep(&old).experiment().levels,
                sweep(new).experiment().levels,
                "{old}"
            );
        }
    }

    #[test]
    fn unknown_keys_are_reported_with_the_nearest_name() {
        let text = built_in("small-network").unwrap();
        for (set, near) in [
            ("callers.dail=600", "did you mean `dial`?"),
            ("caller.dial=600", "did you mean `callers`?"),
            ("callers.media=speach", "did you mean `speech`?"),
        ] {
            let error = File::parse_with("x", text, &[set.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(near), "{set}: {error}");
        }
        let wrong = text.replacen("[callers]", "[callers]\ndail = \"600\"", 1);
        let error = File::parse("x", &wrong).unwrap_err().to_string();
        assert!(error.contains("did you mean `dial`?"), "{error}");
    }

    #[test]
    fn overrides_are_judged_together() {
        let text = "name = \"x\"\ntitle = \"y\"\n[callers]\nrate = 1.0\ntotal = 5\n";
        assert!(File::parse("x", text).is_err(), "no destination");
        let set = ["sut.address=127.0.0.1:5060".to_owned()];
        assert!(File::parse_with("x", text, &set).is_ok());
        let capacity = built_in("call-capacity").unwrap();
        let sets = [
            "callers.media=none",
            "callers.listen_percent=0",
            "levels.values=[100, 900]",
            "thresholds.one_way_ms=",
            "callees=",
            "sut.address=127.0.0.1:5060",
        ]
        .map(str::to_owned);
        let file = File::parse_with("x", capacity, &sets).unwrap();
        let experiment = file.experiment();
        assert_eq!(experiment.callees, None);
        assert_eq!(experiment.thresholds.one_way_ms, None);
        assert!(experiment.thresholds.round_trip_ms.is_some());
        let levels: Vec<_> = file.levels().unwrap().iter().map(|l| l.value).collect();
        assert_eq!(levels, [Some(100.0), Some(900.0)]);
        for wrong in ["thresholds.nothing=", "nothing.at.all=", "callees="] {
            let sets = ["callees=".to_owned(), wrong.to_owned()];
            assert!(File::parse_with("x", capacity, &sets).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        let text = "name = \"x\"\ntitle = \"y\"\n[callers]\nrate = 1.0\ntotl = 5\n";
        let error = File::parse("x.toml", text).unwrap_err().to_string();
        assert!(
            error.starts_with("x.toml:5:") && error.contains("totl"),
            "{error}"
        );
        let error = File::parse("x.toml", "name = \n").unwrap_err().to_string();
        assert!(error.starts_with("x.toml:1:"), "{error}");
        let error = File::parse("x.toml", "name=\"x\"\ntitle=\"y\"\n").unwrap_err();
        assert!(error.to_string().contains("nothing to do"), "{error}");
    }
}
