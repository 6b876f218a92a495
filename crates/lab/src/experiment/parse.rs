//! Reading an experiment file, overrides, and the sweep.

use super::model::{
    CallFlow, Callers, CodecName, Experiment, IpVersions, Levels, MediaKind, RegistrarPlace,
    SubjectMedia, TransportName,
};
use crate::error::LabError;
use toml_edit::{DocumentMut, Item, Value};

/// Most trials that one run may have; a typing mistake in a step must not run for years.
const MAX_LEVELS: usize = 1_000;

/// A checked experiment file with its overrides.
#[derive(Clone, Debug)]
pub struct File {
    origin: String,
    document: DocumentMut,
    experiment: Experiment,
}

/// One level of the sweep.
#[derive(Clone, Debug)]
pub struct Level {
    /// The value; `None` for an experiment without a sweep.
    pub value: Option<f64>,
    /// The file of this level alone: with the seed of a trial it runs that trial again.
    pub text: String,
    /// The experiment at this level.
    pub experiment: Experiment,
}

impl Level {
    /// The file that runs a trial of this level again: one repetition with the trial's seed.
    pub fn plan(&self, seed: u64) -> String {
        let Ok(mut document) = self.text.parse::<DocumentMut>() else {
            return self.text.clone();
        };
        // Of the whole run, which one trial says nothing about.
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
    /// About how long one trial takes on sockets, seconds: its plan, and the time in which the last calls end.
    pub fn expected_seconds(&self) -> f64 {
        let experiment = self;
        let over = |total: u64, rate: f64| if rate > 0.0 { total as f64 / rate } else { 0.0 };
        let callers = experiment.callers.as_ref().map_or(0.0, |callers| {
            let arriving = match callers.total {
                0 => callers.seconds,
                total if callers.seconds > 0.0 => over(total, callers.rate).min(callers.seconds),
                total => over(total, callers.rate),
            };
            arriving + callers.hold_seconds
        });
        let streams = experiment
            .streams
            .as_ref()
            .map_or(0.0, |streams| streams.seconds);
        let conference = experiment.conference.as_ref().map_or(0.0, |conference| {
            conference.warm_up_seconds + conference.seconds
        });
        let registrations = experiment.registrations.as_ref().map_or(0.0, |plan| {
            over(plan.users, plan.rate) + plan.refresh_seconds * f64::from(plan.refreshes)
        });
        callers.max(streams).max(conference).max(registrations)
    }
}

impl File {
    /// Reads `text`; `origin` names it in messages.
    ///
    /// # Errors
    /// Names file and line of the first mistake.
    pub fn parse(origin: &str, text: &str) -> Result<File, LabError> {
        File::parse_with(origin, text, &[])
    }

    /// Reads `text` and applies overrides in their order. What types cannot say is judged once, at the end: a file that
    /// makes sense only with its overrides is right, and so are overrides that make sense only together.
    ///
    /// # Errors
    /// As [`File::parse`] and [`File::set`].
    pub fn parse_with(origin: &str, text: &str, overrides: &[String]) -> Result<File, LabError> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            at(origin, text, error.span(), error.message())
        })?;
        let experiment: Experiment = toml_edit::de::from_str(text)
            .map_err(|error| at(origin, text, error.span(), &with_remedy(error.message())))?;
        let mut file = File {
            origin: origin.to_owned(),
            document,
            experiment,
        };
        for assignment in overrides {
            file = file.with(assignment)?;
        }
        file.check()?;
        Ok(file)
    }

    /// Overrides one key: `key=value`, the key a dotted path, the value as TOML or a bare word; without a value the key, or
    /// the whole table of that name, is taken away.
    ///
    /// # Errors
    /// Where the key is unknown or the value does not fit.
    pub fn set(&mut self, assignment: &str) -> Result<(), LabError> {
        let changed = self.with(assignment)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// With one override, its types checked.
    fn with(&self, assignment: &str) -> Result<File, LabError> {
        let bad = |why: String| LabError::bad(format!("--set {assignment}: {why}"));
        let (path, value) = assignment
            .split_once('=')
            .ok_or_else(|| bad("expected key=value".to_owned()))?;
        let (path, value) = (path.trim(), value.trim());
        let mut document = self.document.clone();
        match value {
            "" => take(&mut document, path).map_err(bad)?,
            value => {
                // A sweep has one of two forms: the one that is asked for replaces the other.
                match path {
                    "levels.values" => forget(&mut document, &["from", "to", "step"]),
                    "levels.from" | "levels.to" | "levels.step" => {
                        forget(&mut document, &["values"]);
                    }
                    _ => {}
                }
                put(&mut document, path, parse_value(value)).map_err(bad)?;
            }
        }
        let experiment = match typed(&document) {
            Ok(experiment) => experiment,
            // A key that takes text may be given a number: `callers.dial=600`. Where that does not help, the first error is told.
            Err(first) if !value.is_empty() => {
                put(&mut document, path, Value::from(value)).map_err(bad)?;
                typed(&document).map_err(|_| bad(first))?
            }
            Err(first) => return Err(bad(first)),
        };
        Ok(File {
            origin: self.origin.clone(),
            document,
            experiment,
        })
    }

    /// The experiment as the file and the overrides say, before the sweep sets anything.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The file with its overrides, as TOML.
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// The levels, in order; one without a value where there is no sweep.
    ///
    /// # Errors
    /// Where the sweep makes no sense, or sets a key that does not exist.
    pub fn levels(&self) -> Result<Vec<Level>, LabError> {
        let Some(levels) = &self.experiment.levels else {
            return Ok(vec![Level {
                value: None,
                text: self.document.to_string(),
                experiment: self.experiment.clone(),
            }]);
        };
        values(levels)
            .map_err(|why| self.bad(&why))?
            .into_iter()
            .map(|value| self.level(levels, value))
            .collect()
    }

    /// About how long all trials take on sockets, seconds: as planned, with what a trial waits for at its end.
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
    /// Where there is no sweep, or the value does not fit.
    pub fn level_at(&self, value: f64) -> Result<Level, LabError> {
        let levels = self.experiment.levels.as_ref();
        let levels = levels.ok_or_else(|| self.bad("no [levels]"))?;
        self.level(levels, value)
    }

    fn level(&self, levels: &Levels, value: f64) -> Result<Level, LabError> {
        let mut document = self.document.clone();
        for path in &levels.set {
            put(&mut document, path, number(value))
                .map_err(|why| self.bad(&format!("levels.set: {why}")))?;
        }
        let experiment =
            typed(&document).map_err(|why| self.bad(&format!("levels.set, at {value}: {why}")))?;
        document.remove("levels");
        Ok(Level {
            value: Some(value),
            text: document.to_string(),
            experiment,
        })
    }

    fn bad(&self, why: &str) -> LabError {
        LabError::bad(format!("{}: {why}", self.origin))
    }

    /// What types cannot say.
    fn check(&self) -> Result<(), LabError> {
        self.levels()?
            .iter()
            .try_for_each(|level| sense(&level.experiment))
            .map_err(|why| self.bad(&why))
    }
}

fn sense(experiment: &Experiment) -> Result<(), String> {
    if experiment.repeat == 0 {
        return Err("repeat: at least 1".to_owned());
    }
    if experiment.subject.none && experiment.subject.address.is_some() {
        return Err("subject.none and subject.address exclude each other".to_owned());
    }
    if experiment.subject.address.is_some() && experiment.subject.ip != IpVersions::Ipv4 {
        return Err("subject.ip is for our border; a foreign subject's address says it".to_owned());
    }
    if experiment.subject.workers > engine::Worker::MOST {
        return Err(format!("subject.workers: at most {}", engine::Worker::MOST));
    }
    if experiment.subject.none
        && experiment.subject.ip.sides()[0] != experiment.subject.ip.sides()[1]
    {
        return Err("subject.ip: with nothing in between, both sides speak one version".to_owned());
    }
    if let Some(study) = &experiment.study {
        study.check(experiment.peak.is_some())?;
    }
    if let Some(peak) = &experiment.peak {
        peak.check()?;
        if experiment.levels.is_none() || experiment.callers.is_none() {
            return Err(
                "[peak] is of calls, at values of the sweep: state [callers] and [levels]"
                    .to_owned(),
            );
        }
    }
    for bound in &experiment.thresholds.figure {
        bound.check(experiment.peak.is_some())?;
    }
    experiment.search.check()?;
    if let Some(streams) = &experiment.streams {
        share("streams.listen_percent", streams.listen_percent)?;
        let heard = streams.media == MediaKind::Speech && streams.codec.is_g711();
        if streams.listen_percent > 0.0 && !heard {
            return Err(
                "streams.listen_percent needs streams.media = \"speech\", in G.711".to_owned(),
            );
        }
    }
    if let Some(callers) = &experiment.callers {
        if callers.total == 0 && callers.seconds <= 0.0 {
            return Err("callers: state total, or seconds, or both".to_owned());
        }
        if callers.media == MediaKind::Echo {
            return Err("callers.media: echo is for callees".to_owned());
        }
        if callers.listen_percent > 0.0 && callers.media != MediaKind::Speech {
            return Err("callers.listen_percent needs callers.media = \"speech\"".to_owned());
        }
        if experiment.callees.is_none() && experiment.subject.address.is_none() {
            return Err(
                "callers without callees need a foreign subject (subject.address)".to_owned(),
            );
        }
        medial(experiment, callers)?;
        for (name, percent) in [
            ("cancel_percent", callers.cancel_percent),
            ("hold_percent", callers.hold_percent),
            ("listen_percent", callers.listen_percent),
        ] {
            share(&format!("callers.{name}"), percent)?;
        }
    }
    transports(experiment)?;
    registering(experiment)?;
    generator(experiment)?;
    if let (Some(callers), Some(callees)) = (&experiment.callers, &experiment.callees)
        && callers.flow != callees.flow
    {
        return Err("callers.flow and callees.flow have to be the same".to_owned());
    }
    if let Some(callees) = &experiment.callees {
        share("callees.busy_percent", callees.busy_percent)?;
        share("callees.no_answer_percent", callees.no_answer_percent)?;
    }
    for (name, percent) in [
        ("loss_percent", experiment.network.loss_percent),
        ("duplicate_percent", experiment.network.duplicate_percent),
        ("reorder_percent", experiment.network.reorder_percent),
    ] {
        share(&format!("network.{name}"), percent)?;
    }
    if experiment.callers.is_none()
        && experiment.registrations.is_none()
        && experiment.streams.is_none()
        && experiment.conference.is_none()
    {
        return Err(
            "nothing to do: state [callers], [registrations], [streams] or [conference]".to_owned(),
        );
    }
    linking(experiment)?;
    conferring(experiment)
}

/// What has to fit together of codecs, protection and what is measured of media.
fn medial(experiment: &Experiment, callers: &Callers) -> Result<(), String> {
    let ours = !experiment.subject.none && experiment.subject.address.is_none();
    let anchored = ours && experiment.subject.media == SubjectMedia::Anchored;
    let callees = experiment.callees.as_ref();
    let echo = callees.is_some_and(|callees| callees.media == MediaKind::Echo);
    if callers.listen_percent > 0.0 && !callers.codec.is_g711() {
        return Err("callers.listen_percent: G.711 alone is listened to".to_owned());
    }
    if callers.silence_suppression {
        if callers.codec != CodecName::G729 {
            return Err("callers.silence_suppression: G.729 alone has it here".to_owned());
        }
        if callers.media != MediaKind::Speech {
            return Err("callers.silence_suppression needs callers.media = \"speech\"".to_owned());
        }
    }
    if callers.srtp {
        if experiment.subject.none || (ours && !anchored) {
            return Err(
                "callers.srtp: nobody would take it off; it needs a border with media anchored"
                    .to_owned(),
            );
        }
        if callers.hold_percent > 0.0 || callers.flow != CallFlow::Plain {
            return Err(
                "callers.srtp: neither with hold_percent, nor with the flow volte".to_owned(),
            );
        }
        if callers.media == MediaKind::None {
            return Err("callers.srtp needs callers.media".to_owned());
        }
    }
    if callers.time_packets && (echo || callers.media == MediaKind::None) {
        return Err("callers.time_packets: both sides have to speak for themselves".to_owned());
    }
    if experiment.transcodes_to().is_some() {
        if !anchored {
            return Err("callees.codec: with another codec than the callers', our border has to stand between, with media anchored".to_owned());
        }
        if callers.listen_percent > 0.0 || echo {
            return Err("callees.codec: with another codec than the callers', nothing is listened to, and nothing echoed".to_owned());
        }
    }
    Ok(())
}

/// What has to fit together of a link that is filled.
fn linking(experiment: &Experiment) -> Result<(), String> {
    let Some(link) = &experiment.link else {
        return Ok(());
    };
    if experiment.streams.is_none() || !experiment.subject.none {
        return Err("[link] needs [streams], and subject.none = true".to_owned());
    }
    let within = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
    if !within(link.mbit, 1.0, 10_000.0) || !within(link.bulk_percent, 0.0, 1_000.0) {
        return Err("link: mbit 1 to 10000, bulk_percent 0 to 1000".to_owned());
    }
    if !(64..=1_472).contains(&link.bulk_bytes) || link.queue == 0 || link.shares > 1 {
        return Err("link: bulk_bytes 64 to 1472, queue at least 1, shares 0 or 1".to_owned());
    }
    Ok(())
}

/// What has to fit together of conferences.
fn conferring(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.conference else {
        return Ok(());
    };
    let others = [
        experiment.callers.is_some(),
        experiment.callees.is_some(),
        experiment.registrations.is_some(),
        experiment.streams.is_some(),
    ];
    if others.contains(&true) {
        return Err(
            "[conference] stands alone: run calls in an experiment of their own".to_owned(),
        );
    }
    let within =
        |name: &str, value: u64, most: u64, least: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("conference.{name}: {least} to {most}")),
        };
    within("rooms", plan.rooms, 999, 1)?;
    within("seats", plan.seats, 16, 2)?;
    within("instances", plan.instances, 64, 1)?;
    let rate = plan.rate.is_finite() && plan.rate > 0.0;
    let spans = [plan.warm_up_seconds, plan.seconds];
    if !rate || spans.iter().any(|span| !(span.is_finite() && *span >= 0.0)) || plan.seconds < 1.0 {
        return Err(
            "conference: rate more than 0, seconds at least 1, warm_up_seconds 0 or more"
                .to_owned(),
        );
    }
    let subject = &experiment.subject;
    if subject.none || (subject.address.is_some() && plan.instances > 1) {
        return Err(
            "[conference] needs our border, or one foreign subject (conference.instances = 1)"
                .to_owned(),
        );
    }
    if subject.workers > 1 || experiment.generator.workers > 1 {
        return Err(
            "[conference]: neither subject.workers nor generator.workers; say conference.instances"
                .to_owned(),
        );
    }
    Ok(())
}

/// What has to fit together of registrations.
fn registering(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.registrations else {
        return Ok(());
    };
    if !(plan.refresh_rate >= 0.0 && plan.refresh_rate.is_finite()) {
        return Err("registrations.refresh_rate: 0 or more".to_owned());
    }
    if plan.refresh_rate > 0.0 {
        if plan.refresh_seconds > 0.0 {
            return Err("registrations: either refresh_rate, or refresh_seconds".to_owned());
        }
        if plan.refreshes == 0 {
            return Err("registrations.refresh_rate: state refreshes, of each user".to_owned());
        }
        if plan.rate.is_nan() || plan.rate <= 0.0 {
            return Err("registrations.rate: more than 0".to_owned());
        }
    }
    if plan.at == RegistrarPlace::Core {
        if experiment.subject.none || experiment.subject.address.is_some() {
            return Err(
                "registrations.at: a core of the laboratory's stands behind our own border alone"
                    .to_owned(),
            );
        }
        if plan.password.contains("{number") {
            return Err("registrations.at = \"core\": that registrar knows users by name; say {user} instead of {number} in registrations.password".to_owned());
        }
    }
    Ok(())
}

/// What has to fit together where several threads generate.
fn generator(experiment: &Experiment) -> Result<(), String> {
    let workers = experiment.generator.workers;
    if workers == 0 || workers > MOST_GENERATORS {
        return Err(format!("generator.workers: 1 to {MOST_GENERATORS}"));
    }
    if experiment.generator.batch_us > MOST_BATCH_US {
        return Err(format!("generator.batch_us: at most {MOST_BATCH_US}"));
    }
    let subject = &experiment.subject;
    for (name, priority) in [
        ("generator", experiment.generator.realtime),
        ("subject", subject.realtime),
    ] {
        if priority > MOST_REALTIME {
            return Err(format!("{name}.realtime: at most {MOST_REALTIME}"));
        }
    }
    if subject.realtime > 0 && (subject.none || subject.address.is_some()) {
        return Err(
            "subject.realtime is for our border; a foreign one has its own settings; say subject.realtime = 0".to_owned(),
        );
    }
    if workers > 1 && experiment.streams.is_some() {
        return Err("generator.workers: [streams] has one sender and one receiver".to_owned());
    }
    let limits = experiment.callers.iter().map(|callers| callers.limit);
    if limits
        .into_iter()
        .any(|limit| limit > 0 && limit < u64::from(workers))
    {
        return Err("generator.workers: callers.limit has to be as many at least".to_owned());
    }
    Ok(())
}

/// Longest time for which a generator may gather, microseconds: beyond it figures would be its own.
const MOST_BATCH_US: u32 = 10_000;
/// The highest priority under SCHED_FIFO (sched(7)).
const MOST_REALTIME: u8 = 99;
/// Threads of a generator on each side, at most.
const MOST_GENERATORS: u16 = 64;

/// Connections of a workload at most: more do not fit between two addresses, a port for each.
const MOST_CONNECTIONS: u32 = 60_000;

/// Media nodes beside our border, at most.
const MOST_NODES: u8 = 16;

/// What has to fit together of media nodes.
fn nodes(experiment: &Experiment) -> Result<(), String> {
    let subject = &experiment.subject;
    if subject.nodes > MOST_NODES || subject.nodes_drained > subject.nodes {
        return Err(format!(
            "subject.nodes = {}, subject.nodes_drained = {}: at most {MOST_NODES} nodes, and no more drained than there are",
            subject.nodes, subject.nodes_drained
        ));
    }
    let others = subject.address.is_some()
        || subject.none
        || subject.media == SubjectMedia::Bypass
        || experiment.conference.is_some()
        || subject.ip != IpVersions::Ipv4;
    if subject.nodes > 0 && others {
        return Err(
            "subject.nodes: beside our border, with IPv4, media anchored and no conference"
                .to_owned(),
        );
    }
    Ok(())
}

/// What has to fit together of transports and certificates.
fn transports(experiment: &Experiment) -> Result<(), String> {
    use TransportName::{Tcp, Tls, Udp};
    websockets(experiment)?;
    nodes(experiment)?;
    let mut streams: Vec<TransportName> = experiment
        .transports()
        .filter(|name| *name != Udp)
        .collect();
    streams.dedup();
    if streams.len() > 1 {
        return Err(
            "callers.transport and registrations.transport: TCP and TLS not both, nor WebSocket beside another stream"
                .to_owned(),
        );
    }
    let callers = experiment.callers.as_ref();
    let counts = [
        callers.map(|w| ("callers", w.transport, w.connections)),
        (experiment.registrations.as_ref()).map(|w| ("registrations", w.transport, w.connections)),
    ];
    for (name, transport, connections) in counts.into_iter().flatten() {
        // One for each user, as far as it goes.
        let each = connections == 0 && name == "registrations" && transport != Udp;
        if !each && !(1..=MOST_CONNECTIONS).contains(&connections) {
            return Err(format!(
                "{name}.connections = {connections}: expected 1 to {MOST_CONNECTIONS}{}",
                match name {
                    "registrations" => ", or 0 for one of each user's own (not over UDP)",
                    _ => "",
                }
            ));
        }
        if connections > 1 && transport == Udp {
            return Err(format!("{name}.connections: UDP has none"));
        }
    }
    let subject = &experiment.subject;
    let elsewhere = streams.iter().any(|stream| *stream != Tcp);
    if subject.address.is_some() && elsewhere && experiment.transports().any(|t| t == Udp) {
        return Err("a foreign subject has one address (subject.address): TLS, or WebSocket, for callers and registrations, or for neither".to_owned());
    }
    if let (true, Some(callers), Some(callees)) = (subject.none, callers, &experiment.callees)
        && (callers.transport == Tls) != (callees.transport == Tls)
    {
        return Err(
            "with nothing in between, TLS is for callers and callees, or for neither".to_owned(),
        );
    }
    if subject.address.is_some()
        && experiment
            .callees
            .as_ref()
            .is_some_and(|callees| callees.transport == Tcp)
    {
        return Err("callees.transport: a foreign subject chooses between UDP and TCP by itself; say tls, or nothing".to_owned());
    }
    let of_use = subject.address.is_some() && experiment.speaks_tls();
    if !of_use && !experiment.tls.is_default() {
        return Err("[tls] is for a foreign subject that is called over TLS; for our own border, certificates are made for the trial".to_owned());
    }
    Ok(())
}

/// What has to fit together of WebSockets.
fn websockets(experiment: &Experiment) -> Result<(), String> {
    let subject = &experiment.subject;
    let callees = experiment.callees.as_ref();
    if callees.is_some_and(|callees| callees.transport.is_websocket()) {
        return Err("callees.transport: WebSockets are opened towards us, never by us towards a called side; say udp, tcp or tls".to_owned());
    }
    let opens = experiment.opens_websockets();
    if opens && subject.none {
        return Err("with nothing in between nobody takes WebSockets: called sides listen for UDP, TCP and TLS".to_owned());
    }
    let path = &subject.websocket_path;
    if path.is_empty() {
        return Ok(());
    }
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "subject.websocket_path = {path:?}: expected a path, like \"/ws\""
        ));
    }
    match opens && subject.address.is_some() {
        true => Ok(()),
        false => Err(
            "subject.websocket_path is for a foreign subject that is reached over ws or wss"
                .to_owned(),
        ),
    }
}

fn share(name: &str, percent: f64) -> Result<(), String> {
    if (0.0..=100.0).contains(&percent) {
        Ok(())
    } else {
        Err(format!("{name} = {percent}: expected 0 to 100"))
    }
}

fn values(levels: &Levels) -> Result<Vec<f64>, String> {
    if !levels.values.is_empty() {
        if levels.from.is_some() || levels.to.is_some() || levels.step.is_some() {
            return Err("levels: either values, or from, to and step".to_owned());
        }
        return Ok(levels.values.clone());
    }
    let (Some(from), Some(to), Some(step)) = (levels.from, levels.to, levels.step) else {
        return Err("levels: state values, or from, to and step".to_owned());
    };
    if !(step > 0.0 && from.is_finite() && to >= from) {
        return Err(format!(
            "levels: from {from} to {to} by {step} is no rising sweep"
        ));
    }
    let count = ((to - from) / step + 1e-9).floor() + 1.0;
    if count > MAX_LEVELS as f64 {
        return Err(format!("levels: more than {MAX_LEVELS} of them"));
    }
    Ok((0..count as u64).map(|n| from + n as f64 * step).collect())
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

/// Puts `value` at a dotted path; tables on the way are made.
fn put(document: &mut DocumentMut, path: &str, value: Value) -> Result<(), String> {
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty());
    let last = last.ok_or_else(|| format!("{path:?} is no key"))?;
    let mut table = document.as_table_mut();
    for key in keys {
        let item = table
            .entry(key)
            .or_insert_with(|| Item::Table(toml_edit::Table::new()));
        table = item
            .as_table_mut()
            .ok_or_else(|| format!("{key:?} is no table"))?;
    }
    table.insert(last, Item::Value(value));
    Ok(())
}

/// Takes the key at a dotted path away; it has to be there.
fn take(document: &mut DocumentMut, path: &str) -> Result<(), String> {
    let none = || format!("there is no {path:?} to take away");
    let (tables, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut table = document.as_table_mut();
    for key in tables.split('.').filter(|key| !key.is_empty()) {
        let item = table.get_mut(key).and_then(Item::as_table_mut);
        table = item.ok_or_else(none)?;
    }
    table.remove(last).map(|_| ()).ok_or_else(none)
}

/// Takes keys of the sweep away, where they are there.
fn forget(document: &mut DocumentMut, keys: &[&str]) {
    if let Some(levels) = document.get_mut("levels").and_then(Item::as_table_mut) {
        for key in keys {
            levels.remove(key);
        }
    }
}

fn typed(document: &DocumentMut) -> Result<Experiment, String> {
    toml_edit::de::from_str(&document.to_string()).map_err(|error| with_remedy(error.message()))
}

/// An error of the TOML reader; where it is about an unknown key or word, with the nearest of those that exist.
fn with_remedy(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"]
        .into_iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split_once('`'));
    let Some((word, known)) = unknown else {
        return message.to_owned();
    };
    // The names that exist stand between back quotes: every second piece.
    let known = known.split('`').skip(1).step_by(2);
    match border::config::did_you_mean(word, known) {
        Some(near) => format!("{message}; did you mean `{near}`?"),
        None => message.to_owned(),
    }
}

/// An error with file and line.
fn at(origin: &str, text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> LabError {
    match span {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            LabError::bad(format!("{origin}:{line}: {message}"))
        }
        None => LabError::bad(format!("{origin}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BUILT_IN, built_in};
    use super::*;

    fn capacity() -> File {
        File::parse("call-capacity", built_in("call-capacity").unwrap()).unwrap()
    }

    #[test]
    fn every_built_in_file_is_right_and_bears_its_name() {
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
        file.set("subject.address=127.0.0.1:5060").unwrap();
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
            "subject.address=here",
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
            "a refused override changes nothing"
        );
    }

    #[test]
    fn a_number_is_taken_for_text_where_the_key_wants_text() {
        let text = built_in("small-network").unwrap();
        let set = ["callers.dial=600".to_owned()];
        let file = File::parse_with("x", text, &set).unwrap();
        assert_eq!(file.experiment().callers.as_ref().unwrap().dial, "600");
        // What is neither is told as it was at first.
        let set = ["callers.rate=many".to_owned()];
        assert!(File::parse_with("x", text, &set).is_err());
    }

    #[test]
    fn unknown_keys_are_told_with_the_nearest() {
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
        assert!(File::parse("x", text).is_err(), "nobody to call");
        let set = ["subject.address=127.0.0.1:5060".to_owned()];
        assert!(File::parse_with("x", text, &set).is_ok());
        let capacity = built_in("call-capacity").unwrap();
        let sets = [
            "callers.media=none",
            "callers.listen_percent=0",
            "levels.values=[100, 900]",
            "thresholds.one_way_ms=",
            "callees=",
            "subject.address=127.0.0.1:5060",
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
    fn mistakes_name_their_line() {
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
