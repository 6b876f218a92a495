//! `lab list`, `lab show`, `lab run`, `lab search`.

use crate::agent::{self, AgentAccess, Described};
use crate::caveats::{self, OfferedLoad};
use crate::decimal::counted;
use crate::error::{LabError, RunVerdict};
use crate::experiment::{BUILT_IN, Experiment, File, Level, Sut, Thresholds, built_in, toml_text};
use crate::figures::{self, ThresholdCheck};
pub(crate) use crate::files::out_dir;
use crate::files::unix_seconds;
pub use crate::files::{check_apart, check_directory, check_places, write_json};
use crate::hops::{self, DelaySplit};
use crate::link;
use crate::not_judged::{NOT_JUDGED, NotJudged};
use crate::peak;
use crate::progress::Display;
use crate::raw::{self, CUT_SHORT, FORMAT, MachineRecord, RawWriter, RunRecord, TrialRecord};
use crate::refusal::UniformRefusal;
use crate::report::{self, Published};
use crate::subject::{self, AcceptedLoad, SubjectPlace};
use crate::trial::{Outcomes, Trial, on_sockets, simulate};
use engine::Entropy;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options of `hornwork lab run`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// `key=value` with a dotted path, in order.
    pub set: Vec<String>,
    /// Write the result as JSON to this file (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Directory for raw results and report; without it a new one in the system's temporary directory.
    pub out: Option<PathBuf>,
    /// Run in virtual time instead of on sockets.
    pub simulate: bool,
    /// Seed instead of the experiment's own.
    pub seed: Option<u64>,
    /// Number of repetitions instead of the experiment's own.
    pub repeat: Option<u32>,
    /// Replace results that already exist in `out`.
    pub force: bool,
    /// Run without probing the system under test first.
    pub no_probe: bool,
}

/// A built-in experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltIn {
    /// Name for `lab run`.
    pub name: &'static str,
    /// One-line description.
    pub title: String,
    /// Approximate duration on sockets, seconds.
    pub seconds: f64,
}

/// The built-in experiments, sorted by name.
pub fn list() -> Vec<BuiltIn> {
    BUILT_IN
        .iter()
        .map(|(name, text)| {
            let file = File::parse(name, text);
            BuiltIn {
                name,
                title: file
                    .as_ref()
                    .map(|file| file.experiment().title.clone())
                    .unwrap_or_default(),
                seconds: file.map_or(0.0, |file| file.expected_seconds()),
            }
        })
        .collect()
}

fn unknown_experiment(name: &str) -> LabError {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let mut studies: Vec<&str> = crate::study_names::NAMES.to_vec();
    studies.push(crate::study_names::STUDY_C);
    if studies.contains(&name) {
        return LabError::bad_input(format!(
            "{name} is a study of several experiments: hornwork lab run {name}"
        ));
    }
    let near = config::did_you_mean(name, names.iter().chain(&studies).copied())
        .map(|near| format!("did you mean {near:?}? "))
        .unwrap_or_default();
    let studies = studies.join(", ");
    LabError::bad_input(match name.starts_with("study") {
        true => format!("no study {name:?}; {near}studies: {studies}"),
        false => format!(
            "no built-in experiment, study or file {name:?}; {near}studies: {studies}; built-in experiments: {}",
            names.join(", ")
        ),
    })
}

/// The file of a built-in experiment, as TOML.
///
/// # Errors
/// If there is no experiment of this name.
pub fn show(name: &str) -> Result<&'static str, LabError> {
    built_in(name).ok_or_else(|| unknown_experiment(name))
}

/// Loads the built-in experiment of this name, or the file at this path, with the overrides of `options`.
///
/// # Errors
/// If it does not exist, or contains a mistake.
pub fn load(name_or_file: &str, options: &RunOptions) -> Result<File, LabError> {
    let text = match built_in(name_or_file) {
        Some(text) => text.to_owned(),
        None => read(name_or_file)?,
    };
    let mut overrides = for_other_system(&text, &options.set);
    overrides.extend(options.set.iter().cloned());
    check_seed(options)?;
    if let Some(seed) = options.seed {
        overrides.push(format!("seed={seed}"));
    }
    if let Some(repeat) = options.repeat {
        overrides.push(format!("repeat={repeat}"));
    }
    let file = File::parse_with(name_or_file, &text, &overrides)?;
    if let Some(key) = set_by_levels(file.experiment(), &options.set) {
        return Err(LabError::bad_input(format!(
            "--set {key} has no effect: each level of this experiment sets {key}\n  remedy: --set levels.values=[...] for a run, --set search.start=... for a search"
        )));
    }
    for warning in file.warnings() {
        eprintln!("warning: {warning}");
    }
    Ok(file)
}

/// Checks the seed of the command line: it becomes a TOML integer, which ends at 2^63 - 1.
///
/// # Errors
/// A higher one.
pub(crate) fn check_seed(options: &RunOptions) -> Result<(), LabError> {
    match options.seed {
        Some(seed) if i64::try_from(seed).is_err() => Err(LabError::bad_input(format!(
            "--seed {seed}: expected at most {}",
            i64::MAX
        ))),
        _ => Ok(()),
    }
}

/// A key that the user sets although the levels of the experiment replace its value.
fn set_by_levels<'s>(experiment: &Experiment, overrides: &'s [String]) -> Option<&'s str> {
    let levels = experiment.levels.as_ref()?;
    let keys = overrides.iter().filter_map(|set| set.split_once('='));
    let mut keys = keys.map(|(key, _)| key.trim());
    keys.find(|key| levels.set.iter().any(|known| known == key))
}

/// Overrides for a run at another system than that of the file: its list of differences from a study describes the
/// system of the file.
fn for_other_system(text: &str, overrides: &[String]) -> Vec<String> {
    let other = overrides.iter().filter_map(|set| set.split_once('='));
    let other = other
        .filter(|(key, _)| matches!(*key, "sut.address" | "sut.subject"))
        .map(|(_, value)| value.trim_matches(['"', '\'']))
        .rfind(|value| !value.is_empty());
    let has_study = text.lines().any(|line| line.trim() == "[study]");
    match other.filter(|_| has_study) {
        None => Vec::new(),
        Some(other) => {
            let differs = format!(
                "The system under test is another one ({other}): how it, its machine and its load differ from those of the study is not known here"
            );
            vec![format!("study.differs=[{}]", toml_text(&differs))]
        }
    }
}

/// Reads an experiment file.
fn read(name_or_file: &str) -> Result<String, LabError> {
    let path = Path::new(name_or_file);
    if !path.exists() {
        return Err(unknown_experiment(name_or_file));
    }
    std::fs::read_to_string(path)
        .map_err(|error| LabError::bad_input(format!("{name_or_file}: {error}")))
}

/// Results of an experiment that ran, published in its directory.
#[derive(Debug)]
pub(crate) struct Executed {
    /// The record.
    pub record: RunRecord,
    /// Its report.
    pub published: Published,
    /// Number of planned trials.
    pub planned: u32,
    /// Why the run ended before all trials, with the remedy.
    pub refused: Option<String>,
}

/// Runs the built-in experiment of this name, or the file at this path.
///
/// # Errors
/// [`LabError`] if the file is invalid, or if the machine cannot run it.
pub fn run(name_or_file: &str, options: &RunOptions) -> Result<RunVerdict, LabError> {
    let file = load(name_or_file, options)?;
    check_places(options.json.as_deref(), options.out.as_deref())?;
    let dir = out_dir(options.out.as_deref(), &file.experiment().name)?;
    let Executed {
        record: run,
        published,
        planned,
        refused,
    } = execute(&file, options, &dir)?;
    // Standard output is reserved for JSON if it was requested there.
    if options.json.as_deref() != Some(Path::new("-")) {
        let table = crate::terminal::table(&run, &published);
        let page = published.page.display();
        crate::output::print(&format!("{table}report: {page}\n"));
    }
    if let Some(refused) = refused {
        eprintln!("{refused}");
    }
    write_json(options.json.as_deref(), &run_json(&run, &published))?;
    match run.cut_short {
        true => Err(LabError::Interrupted(format!(
            "interrupted: {} of {} started; figures and report cover the measurements until then",
            run.trials.len(),
            counted(planned, "trial")
        ))),
        false => Ok(run.verdict),
    }
}

/// Runs an experiment, and writes records and report into `dir`.
pub(crate) fn execute(file: &File, options: &RunOptions, dir: &Path) -> Result<Executed, LabError> {
    let levels = file.levels()?;
    check_subject(file, options)?;
    probe_and_keep(file, options, dir)?;
    let mut raw = RawWriter::open(dir, options.force)?;
    let mut run = new_run(file, options.simulate)?;
    run.overrides.clone_from(&options.set);
    let planned = levels.len() as u32 * file.experiment().repeat;
    handle_interrupts(options)?;
    // The duration of a simulation does not follow from its virtual time.
    let seconds = (!options.simulate).then(|| file.expected_seconds());
    let mut display = Display::new(&run.title, planned, seconds);
    if let Some(plan) = &file.experiment().peak {
        run.peak = Some(peak::measure(file, plan, options.simulate, &mut display)?);
        display.restart();
    }
    let mut refused = None;
    // The levels take turns: a machine that becomes slower or faster affects all of them.
    'run: for repetition in 0..file.experiment().repeat {
        for (index, level) in levels.iter().enumerate() {
            // Where the trial stands in the record: the runs of a level follow each other there.
            let number = index as u32 * file.experiment().repeat + repetition;
            let trial = run_trial(
                level,
                number,
                repetition,
                run.seed,
                options.simulate,
                &mut raw,
                &mut display,
            );
            match trial {
                Ok(mut record) => {
                    run.verdict = run.verdict.and(record.verdict);
                    refused = refused_by_all(&level.experiment, &mut record);
                    let trials = &mut run.trials;
                    let place = trials.partition_point(|before| before.trial < number);
                    trials.insert(place, record);
                }
                Err(error) if run.trials.is_empty() => return Err(error),
                // The trials before it stay.
                Err(error) => {
                    mark_ended_by(&mut run, number, &error);
                    raw.finish(&run)?;
                    publish(dir, &mut run)?;
                    display.finish();
                    return Err(error.after(run.trials.len(), dir));
                }
            }
            if net::stops() > 0 {
                mark_interrupted(&mut run, number);
                // The trials that are missing might have failed.
                let failed = run
                    .trials
                    .iter()
                    .any(|trial| trial.verdict == RunVerdict::Failed);
                run.verdict = match failed {
                    true => RunVerdict::Failed,
                    false => RunVerdict::NotJudged,
                };
                break 'run;
            }
            if refused.is_some() {
                break 'run;
            }
        }
    }
    let refused = refused.map(|why| stopped_by_refusal(&mut run, planned, &why));
    // Trials with a protected access side run in virtual time where the machine permits no link.
    let simulated = |trial: &TrialRecord| trial.digest.is_some();
    if run.driver == "sockets" && !run.trials.is_empty() && run.trials.iter().all(simulated) {
        "simulation".clone_into(&mut run.driver);
    }
    raw.finish(&run)?;
    let published = publish(dir, &mut run)?;
    display.finish();
    Ok(Executed {
        record: run,
        published,
        planned,
        refused,
    })
}

/// The reason and the remedy, if the SUT refused every attempt of a trial with one status, or answered none.
fn refused_by_all(experiment: &Experiment, record: &mut TrialRecord) -> Option<String> {
    let refusal = UniformRefusal::of(experiment, record)?;
    Some(remark_refusal(refusal, experiment, record))
}

/// Adds the refusal to the remarks of its trial; returns reason and remedy.
pub(crate) fn remark_refusal(
    refusal: UniformRefusal,
    experiment: &Experiment,
    record: &mut TrialRecord,
) -> String {
    let (text, remedy) = (refusal.text(), refusal.remedy(experiment));
    record.remarks.push(format!("{text}: {remedy}"));
    format!("{text}\n  remedy: {remedy}")
}

/// Marks a run whose further trials were omitted, because the SUT would refuse them like the last one.
pub(crate) fn stopped_by_refusal(run: &mut RunRecord, planned: u32, why: &str) -> String {
    let done = run.trials.len();
    if done as u32 >= planned {
        return why.to_owned();
    }
    run.title.push_str(" (stopped: every attempt failed alike)");
    format!("stopped after trial {done} of {planned}: {why}")
}

/// From now on Ctrl-C ends trials, not the program.
pub(crate) fn handle_interrupts(options: &RunOptions) -> Result<(), LabError> {
    if options.simulate {
        return Ok(());
    }
    net::Signals::install().map(drop).map_err(|error| {
        LabError::cannot_run(
            format!("cannot install a signal handler: {error}"),
            "run it outside the sandbox",
        )
    })
}

/// Checks that the subject of an experiment can be started here, before anything else is done.
pub(crate) fn check_subject(file: &File, options: &RunOptions) -> Result<(), LabError> {
    let experiment = file.experiment();
    let name = &experiment.sut.subject;
    if name.is_empty() {
        return Ok(());
    }
    if options.simulate {
        return Err(LabError::bad_input(format!(
            "subject {name} is a program, which cannot be simulated: remove --simulate"
        )));
    }
    let subject = resolve(&experiment.sut)?;
    let loads = [
        ("calls", AcceptedLoad::Calls, experiment.callers.is_some()),
        (
            "registrations",
            AcceptedLoad::Registrations,
            experiment.registrations.is_some(),
        ),
    ];
    for (word, load, wanted) in loads {
        if wanted && !subject.file.takes(load) {
            return Err(LabError::bad_input(format!(
                "subject {name} takes no {word}: choose another experiment or subject (hornwork lab subjects)"
            )));
        }
    }
    subject.file.check_missing(&subject.missing)
}

/// The subject of an experiment, on this host or at an agent.
fn resolve(sut: &Sut) -> Result<Described, LabError> {
    match subject::place(&sut.subject)? {
        SubjectPlace::Agent(name, agent) => {
            let access = AgentAccess::new(agent, &sut.agent_token_file, &sut.agent_ca_file)?;
            agent::describe(&name, &access)
        }
        SubjectPlace::Here(_) | SubjectPlace::Address(_) => {
            let file = subject::find(&sut.subject)?;
            let missing: Vec<String> = file.missing().into_iter().map(str::to_owned).collect();
            Ok(Described {
                version: match missing.is_empty() {
                    true => file.version(),
                    false => String::new(),
                },
                missing,
                file,
                machine: None,
            })
        }
    }
}

/// Refuses results of an earlier run in `dir` that may not be replaced, without the wait for an answer, and probes a
/// foreign system under test. Those that may be replaced stay until the run ends ([`RawWriter::finish`]).
pub(crate) fn probe_and_keep(
    file: &File,
    options: &RunOptions,
    dir: &Path,
) -> Result<(), LabError> {
    if !options.force {
        clear_results(dir, false)?;
    }
    probe(file, options)
}

/// Probes a foreign system under test.
fn probe(file: &File, options: &RunOptions) -> Result<(), LabError> {
    if options.simulate || options.no_probe {
        return Ok(());
    }
    let mut entropy = crate::sut::system_entropy()?;
    if let Some(warning) = crate::probe::probe_sut(file.experiment(), &mut entropy)? {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// Records that the user ended a run during one of its trials. That trial is not judged, and attempts that were open at
/// the interruption did not fail.
pub(crate) fn mark_interrupted(run: &mut RunRecord, trial: u32) {
    run.cut_short = true;
    run.title.push_str(" (interrupted)");
    if let Some(last) = run.trials.iter_mut().find(|record| record.trial == trial) {
        let text = format!("interrupted by the user after {:.1} s", last.seconds);
        last.remarks.push(text);
        let mut open = 0;
        for counts in [&mut last.figures.calls, &mut last.details.registrations] {
            open += counts.unfinished;
            counts.failed = counts.failed.saturating_sub(counts.unfinished);
            counts.unfinished = 0;
        }
        if open > 0 {
            let text = format!("{open} attempts were open then; they do not count as failed");
            last.remarks.push(text);
        }
        last.remarks.push(CUT_SHORT.to_owned());
        for check in &mut last.checks {
            check.measured = None;
            check.holds = None;
        }
        last.leaks = None;
        last.verdict = RunVerdict::NotJudged;
    }
}

/// Records that a run ended because this trial could not run, or the user interrupted it before it began.
pub(crate) fn mark_ended_by(run: &mut RunRecord, trial: u32, error: &LabError) {
    match error {
        LabError::Interrupted(_) => mark_interrupted(run, trial),
        LabError::BadInput(_) | LabError::CannotRun { .. } => run.cut_short = true,
    }
}

/// Keeps the results of an earlier run unless they may be replaced.
pub(crate) fn clear_results(dir: &Path, force: bool) -> Result<(), LabError> {
    let record = dir.join("run.json");
    if !record.exists() {
        return Ok(());
    }
    if force {
        // The comparison was of the earlier run.
        for name in raw::COMPARED {
            let _ = std::fs::remove_file(dir.join(name));
        }
        // Without this file the directory contains no run; all other files are overwritten.
        return std::fs::remove_file(&record).map_err(|error| {
            LabError::cannot_run(
                format!("{}: {error}", record.display()),
                "name another directory with --out",
            )
        });
    }
    let numbered = (2..1_000)
        .map(|number| format!("{}-{number}", dir.display()))
        .find(|name| !Path::new(name).exists());
    let other = numbered.map_or(String::new(), |name| {
        format!(", or keep them and use --out {name}")
    });
    Err(LabError::bad_input(format!(
        "{}: holds the results of an earlier run\n  remedy: --force replaces them{other}",
        dir.display()
    )))
}

/// Writes the report, and takes the verdict over levels into the run.
pub(crate) fn publish(dir: &Path, run: &mut RunRecord) -> Result<Published, LabError> {
    let published = report::publish(dir)?;
    if published.verdict != run.verdict {
        run.verdict = published.verdict;
        raw::write_run(dir, run)?;
        // The records page shows the record as it is now.
        return report::publish(dir);
    }
    Ok(published)
}

/// Runs one trial, writes its records, and judges it.
pub(crate) fn run_trial(
    level: &Level,
    number: u32,
    repetition: u32,
    run_seed: u64,
    simulated: bool,
    raw: &mut RawWriter,
    display: &mut Display,
) -> Result<TrialRecord, LabError> {
    let seed = trial_seed(run_seed, number);
    let trial = Trial {
        experiment: level.experiment.clone(),
        number,
        seed,
    };
    display.begin(level.value, repetition);
    let outcomes = if simulated {
        simulate(&trial)?
    } else {
        on_sockets(&trial, |seconds, progress| {
            display.update(seconds, progress)
        })?
    };
    raw.trial(&outcomes.attempts, &outcomes.streams)?;
    raw.measures(&outcomes.measures)?;
    let record = judge(level, number, repetition, seed, outcomes);
    display.done(&record);
    Ok(record)
}

/// Derives the seed of a trial from that of the run: runs with equal seeds have equal trials.
pub(crate) fn trial_seed(run_seed: u64, number: u32) -> u64 {
    if number == 0 {
        return run_seed;
    }
    let mut entropy = Entropy::from_number(run_seed);
    (0..number).fold(run_seed, |_, _| entropy.u64() >> 1)
}

/// The delay by hop of a trial on sockets.
fn split_on_sockets(outcomes: &Outcomes) -> Option<DelaySplit> {
    let around = outcomes.surroundings.as_ref()?;
    hops::on_sockets(
        &figures::measured_streams(&outcomes.streams),
        around.send_lateness.as_ref(),
        &outcomes.links,
        outcomes.protection_ms,
    )
}

fn judge(
    level: &Level,
    number: u32,
    repetition: u32,
    seed: u64,
    mut outcomes: Outcomes,
) -> TrialRecord {
    let (figures, mut details) = figures::compute(
        &outcomes.attempts,
        &outcomes.streams,
        outcomes.subject_cpu_seconds,
    );
    details.node_calls.clone_from(&outcomes.node_calls);
    details.kernel_relay_percent = outcomes
        .kernel_relayed
        .filter(|_| details.packets > 0)
        .map(|relayed| relayed as f64 * 100.0 / details.packets as f64);
    details.connections = outcomes.connections.map(|users| users.open);
    details.connections_lost = outcomes.connections.map(|users| users.lost);
    details.passed_on = outcomes.passed_on;
    details.measures = crate::measure::summarise(&outcomes.measures);
    let calls = figures.response_ms.samples;
    details.planes = outcomes
        .samples
        .divide(outcomes.subject_cpu_seconds, calls, details.packets);
    details.subject_cores = outcomes.subject_cores;
    details.delay_split = outcomes
        .delay_split
        .take()
        .or_else(|| split_on_sockets(&outcomes));
    details.talk_over = link::talk_over(&figures::measured_streams(&outcomes.streams), seed);
    details.host_cpu_percent = outcomes.host_cpu_percent;
    // On an undivided link the loss is the result of the experiment and not judged.
    let judged = level
        .experiment
        .link
        .as_ref()
        .is_none_or(|link| link.isolated > 0);
    let thresholds = match judged {
        true => level.experiment.thresholds.clone(),
        false => Thresholds::default(),
    };
    let mut checks = figures::judge(&thresholds, &figures, &details, outcomes.leaks);
    for check in &mut checks {
        check.required = level.required.contains(&check.name);
    }
    let mut remarks = outcomes.remarks;
    match details.is_empty() {
        true => remarks.push(format!("{NOT_JUDGED}{}", figures::NO_ATTEMPT)),
        false => {
            remarks.extend(figures::unjudged_leaks(&checks, outcomes.leaks).map(str::to_owned));
        }
    }
    remarks.extend(link::clipped_remark(&outcomes.streams));
    let ended = outcomes.subject_ended.is_some();
    remarks.extend(outcomes.subject_ended);
    let around = outcomes.surroundings.as_ref();
    let offered = OfferedLoad::of(around, &details, &checks);
    let starved = offered.and_then(|offered| offered.fault());
    let link_faults = outcomes.links.iter().flat_map(|link| &link.faults);
    for fault in link_faults.chain(&starved) {
        remarks.push(format!("{NOT_JUDGED}{fault}"));
        // Figures of another network or load say nothing of the SUT.
        for check in &mut checks {
            check.measured = None;
            check.holds = None;
        }
    }
    // A crash is a failure at any load: it may itself have disturbed the machine.
    checks.extend(ended.then(ThresholdCheck::subject_ended));
    let verdict = figures::verdict(&checks);
    TrialRecord {
        trial: number,
        level: level.value,
        repetition,
        seed,
        plan: level.plan(seed),
        seconds: outcomes.seconds,
        figures,
        details,
        checks,
        leaks: outcomes.leaks,
        verdict,
        remarks,
        short: false,
        surroundings: outcomes.surroundings,
        digest: outcomes.digest,
        links: outcomes.links,
    }
}

pub(crate) fn new_run(file: &File, simulated: bool) -> Result<RunRecord, LabError> {
    let experiment = file.experiment();
    let subject = match experiment.sut.subject.as_str() {
        "" => None,
        _ => Some(resolve(&experiment.sut)?),
    };
    let described = match (&experiment.sut.address, experiment.sut.direct) {
        _ if experiment.esp.is_some() => "ESP of this program".to_owned(),
        _ if subject.is_some() => subject.as_ref().map_or(String::new(), |subject| {
            let described = subject.file.described(&subject.version);
            match experiment.sut.agent() {
                Some(agent) => format!("{described}; at the agent {agent}"),
                None => described,
            }
        }),
        (Some(address), _) => format!("foreign, at {address}"),
        (None, true) => "none: the load generator alone".to_owned(),
        (None, false) => {
            let media = format!("{:?}", experiment.sut.media).to_lowercase();
            format!("Hornwork's border, media {media}")
        }
    };
    // Measurements in memory use the clock of this machine.
    let in_memory = match &experiment.esp {
        Some(plan) => plan.is_in_memory() || simulated,
        None => false,
    };
    let machine = (!simulated || in_memory).then(MachineRecord::here);
    let started = match simulated {
        true => 0,
        false => unix_seconds()?,
    };
    Ok(RunRecord {
        format: FORMAT,
        experiment: experiment.name.clone(),
        title: experiment.title.clone(),
        about: experiment.about.clone(),
        level_label: experiment
            .levels
            .as_ref()
            .map(|levels| levels.label.clone())
            .unwrap_or_default(),
        seed: experiment.seed,
        study: experiment.study.clone(),
        search: None,
        peak: None,
        bounds: experiment.thresholds.figure.clone(),
        overrides: Vec::new(),
        what: crate::workload::description(file),
        driver: match (in_memory, simulated) {
            (true, _) => "memory",
            (false, true) => "simulation",
            (false, false) => "sockets",
        }
        .to_owned(),
        subject: described,
        subject_machine: subject.as_ref().and_then(|subject| subject.machine.clone()),
        subject_file: subject.map_or(String::new(), |subject| subject.file.text),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started,
        machine,
        plan: file.text(),
        trials: Vec::new(),
        verdict: RunVerdict::NotJudged,
        cut_short: false,
    })
}

/// The JSON output of `--json`: per trial the blocks of the demo, with plan, seed and verdict.
pub(crate) fn run_json(run: &RunRecord, published: &Published) -> Value {
    let page = published.page.display().to_string();
    let trials: Vec<Value> = run
        .trials
        .iter()
        .map(|trial| {
            let mut figures = trial.figures.clone();
            figures.report.clone_from(&page);
            let mut value = json!({
                "trial": trial.trial,
                "level": trial.level,
                "repetition": trial.repetition,
                "plan": trial.plan,
                "seed": trial.seed,
                "verdict": trial.verdict,
            });
            if let (Some(into), Ok(Value::Object(from))) =
                (value.as_object_mut(), serde_json::to_value(&figures))
            {
                into.extend(from);
                into.insert("details".to_owned(), json!(trial.details));
                into.insert("checks".to_owned(), json!(trial.checks));
                into.insert("leaks".to_owned(), json!(trial.leaks));
                into.insert("surroundings".to_owned(), json!(trial.surroundings));
                into.insert("digest".to_owned(), json!(trial.digest));
                into.insert("remarks".to_owned(), json!(trial.remarks));
                into.insert("caveats".to_owned(), json!(caveats::for_trial(trial)));
            }
            value
        })
        .collect();
    json!({
        "experiment": run.experiment,
        "subject": run.subject,
        "driver": run.driver,
        "plan": run.plan,
        "seed": run.seed,
        "verdict": run.verdict,
        "cut_short": run.cut_short,
        "not_judged": NotJudged::of_trials(&run.trials),
        "search": run.search,
        "what": run.what,
        "overrides": run.overrides,
        "peak": run.peak,
        "bounds": published.bounds,
        "report": page,
        "study": report::comparison_json(run, &published.levels),
        "protection": report::protection_json(run, &published.levels),
        "trials": trials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trial_has_its_own_seed() {
        let seeds: Vec<u64> = (0..4).map(|n| trial_seed(7, n)).collect();
        assert_eq!(seeds, (0..4).map(|n| trial_seed(7, n)).collect::<Vec<_>>());
        assert_eq!(seeds[0], 7);
        assert!(seeds[1] != seeds[2] && seeds[2] != seeds[3]);
    }

    #[test]
    fn settings_that_the_levels_replace_are_refused() {
        let options = |set: &str| RunOptions {
            set: vec![set.to_owned()],
            ..RunOptions::default()
        };
        let error = load("call-rate", &options("callers.rate=5")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("levels.values"), "{error}");
        assert!(load("call-rate", &options("callers.hold_seconds=5")).is_ok());
        assert!(load("small-network", &options("callers.rate=5")).is_ok());
    }

    #[test]
    fn trial_that_the_user_interrupts_is_not_judged() {
        use crate::record::AttemptOutcome;
        let text = "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 5.0\ntotal = 3\n\
                    hold_seconds = 1.0\n[callees]\n[thresholds]\nleaks = 0\n";
        let file = File::parse("t", text).unwrap();
        let level = file.levels().unwrap().remove(0);
        let trial = Trial {
            experiment: level.experiment.clone(),
            number: 0,
            seed: 1,
        };
        let mut outcomes = simulate(&trial).unwrap();
        outcomes.leaks = Some(3);
        let record = judge(&level, 0, 0, 1, outcomes);
        assert_eq!(record.verdict, RunVerdict::Failed);
        let mut run = new_run(&file, true).unwrap();
        run.trials.push(record);
        let calls = &mut run.trials[0].figures.calls;
        (calls.failed, calls.unfinished) = (3, 2);
        run.trials[0].details.outcomes = vec![
            (AttemptOutcome::Unfinished, 2),
            (AttemptOutcome::TimedOut, 1),
        ];
        mark_interrupted(&mut run, 0);
        let trial = &run.trials[0];
        assert_eq!(trial.figures.calls.failed, 1, "open calls did not fail");
        assert!(run.cut_short && trial.leaks.is_none());
        assert_eq!(trial.verdict, RunVerdict::NotJudged);
        assert!(trial.checks.iter().all(|check| check.holds.is_none()));
        let published = Published {
            page: PathBuf::new(),
            bounds: Vec::new(),
            verdict: RunVerdict::NotJudged,
            levels: report::summarise(&run.trials),
        };
        let text = crate::terminal::table(&run, &published);
        assert!(text.contains("verdict: not judged (cut short)"), "{text}");
        assert!(
            text.contains("no answer in time") && !text.contains("unfinished"),
            "{text}"
        );
    }

    #[test]
    fn threshold_that_is_set_has_to_be_measured() {
        let folder = std::env::temp_dir().join(format!("lab-required-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let plan = folder.join("plan.toml");
        // Calls without media have no MOS.
        let text = "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 5.0\ntotal = 3\n\
                    hold_seconds = 1.0\n[callees]\n[thresholds]\nfailed_percent = 0.0\nmos = 4.0\n\
                    [[thresholds.figure]]\nname = \"completed\"\nleast = 3\n";
        std::fs::write(&plan, text).unwrap();
        let verdict = |sets: &[&str]| {
            let options = RunOptions {
                set: sets.iter().map(|&set| set.to_owned()).collect(),
                simulate: true,
                force: true,
                out: Some(folder.join("out")),
                ..RunOptions::default()
            };
            run(plan.to_str().unwrap(), &options).unwrap()
        };
        assert_eq!(verdict(&[]), RunVerdict::Passed);
        assert_eq!(verdict(&["thresholds.mos=3.5"]), RunVerdict::NotMeasured);
        let removed = ["thresholds.mos=3.5", "thresholds.mos="];
        assert_eq!(verdict(&removed), RunVerdict::Passed);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn earlier_results_stay_if_the_system_under_test_does_not_answer() {
        let folder = std::env::temp_dir().join(format!("lab-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let plan = folder.join("plan.toml");
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\naddress = \"{address}\"\n[callers]\nrate = 5.0\ntotal = 1\n"
        );
        std::fs::write(&plan, text).unwrap();
        let record = folder.join("run.json");
        std::fs::write(&record, "earlier").unwrap();
        let options = RunOptions {
            force: true,
            out: Some(folder.clone()),
            ..RunOptions::default()
        };
        let error = run(plan.to_str().unwrap(), &options).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        assert_eq!(std::fs::read_to_string(&record).unwrap(), "earlier");
        let kept = RunOptions {
            force: false,
            ..options
        };
        let error = run(plan.to_str().unwrap(), &kept).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn trial_without_the_planned_load_is_not_judged() {
        let text = "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 5.0\ntotal = 3\n\
                    hold_seconds = 1.0\n[callees]\n[thresholds]\nfailed_percent = 0.0\n";
        let level = File::parse("t", text).unwrap().levels().unwrap().remove(0);
        let trial = Trial {
            experiment: level.experiment.clone(),
            number: 0,
            seed: 1,
        };
        let mut outcomes = simulate(&trial).unwrap();
        let record = judge(&level, 0, 0, 1, outcomes.clone());
        assert_eq!(record.verdict, RunVerdict::Passed);
        let mut starved = outcomes.clone();
        outcomes.links.push(crate::raw::LinkRecord {
            name: "callers".to_owned(),
            faults: vec!["callers: up: the link cannot keep up".to_owned()],
            ..crate::raw::LinkRecord::default()
        });
        let record = judge(&level, 0, 0, 1, outcomes);
        assert_eq!(record.verdict, RunVerdict::NotMeasured);
        assert!(record.has_faulty_link());
        let named = |remark: &String| remark.contains("callers: up: the link cannot keep up");
        assert!(record.remarks.iter().any(named), "{:?}", record.remarks);
        starved.surroundings = Some(crate::raw::Surroundings {
            send_lateness: Some(crate::raw::SendLateness {
                packets: 1_000,
                p99_ms: 25.0,
                ..crate::raw::SendLateness::default()
            }),
            ..crate::raw::Surroundings::default()
        });
        let record = judge(&level, 0, 0, 1, starved.clone());
        assert_eq!(record.verdict, RunVerdict::NotMeasured);
        let named = |remark: &String| {
            remark.contains("the generator could not keep up: RTP packets were sent 25.0 ms late")
        };
        assert!(record.remarks.iter().any(named), "{:?}", record.remarks);
        // The system under test ended, and its end disturbed the machine.
        starved.subject_ended = Some("asterisk: signal 11 (core dumped)".to_owned());
        let record = judge(&level, 0, 0, 1, starved);
        assert_eq!(record.verdict, RunVerdict::Failed);
        assert!(!record.is_load_invalid());
        let failed: Vec<&str> = (record.checks.iter())
            .filter(|check| check.failed())
            .map(|check| check.name.as_str())
            .collect();
        assert_eq!(failed, ["subject_ended"]);
    }

    #[test]
    fn unknown_experiment_error_lists_existing_names() {
        let error = load("nothing", &RunOptions::default()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("call-capacity"));
        let error = load("small-netwrok", &RunOptions::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("did you mean \"small-network\"?"),
            "{error}"
        );
        let error = show("study-c").unwrap_err();
        assert!(
            error.to_string().starts_with("study-c is a study"),
            "{error}"
        );
        assert!(list().iter().any(|known| known.name == "small-network"
            && !known.title.is_empty()
            && known.seconds > 1.0));
    }
}
