//! `lab list`, `lab show`, `lab run`, `lab search`.

use crate::caveats;
use crate::error::{LabError, Verdict};
use crate::experiment::{BUILT_IN, File, Level, Thresholds, built_in};
use crate::figures;
use crate::peak;
use crate::progress::Display;
use crate::raw::{self, FORMAT, MachineRecord, RawWriter, RunRecord, TrialRecord};
use crate::report::{self, Published};
use crate::trial::{Outcomes, Trial, on_sockets, simulate};
use engine::Entropy;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What `hornwork lab run` was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// `key=value` with a dotted path, in order.
    pub set: Vec<String>,
    /// Write the result as JSON to this file (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Directory for raw results and report; a new one under the system's temporary directory where not given.
    pub out: Option<PathBuf>,
    /// In virtual time instead of on sockets.
    pub simulate: bool,
    /// Seed instead of the experiment's own.
    pub seed: Option<u64>,
    /// Number of repetitions instead of the experiment's own.
    pub repeat: Option<u32>,
    /// Replace results that are in `out` already.
    pub force: bool,
    /// Run without asking the system under test for a sign of life before.
    pub no_probe: bool,
}

/// A built-in experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltIn {
    /// Name, as `lab run` takes it.
    pub name: &'static str,
    /// One line about it.
    pub title: String,
    /// About how long it takes on sockets, seconds.
    pub seconds: f64,
}

/// The built-in experiments, in order of name.
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

fn unknown(name: &str) -> LabError {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let near = border::config::did_you_mean(name, names.iter().copied())
        .map(|near| format!("did you mean {near:?}? "))
        .unwrap_or_default();
    LabError::bad(format!(
        "no experiment is called {name:?}, and there is no such file; {near}built in are {}",
        names.join(", ")
    ))
}

/// The file of a built-in experiment, as TOML.
///
/// # Errors
/// Where there is none of that name.
pub fn show(name: &str) -> Result<&'static str, LabError> {
    built_in(name).ok_or_else(|| unknown(name))
}

/// The experiment that is built in under this name, or the file at this path, with the overrides of `options`.
///
/// # Errors
/// Where it does not exist, or holds a mistake.
pub fn load(name_or_file: &str, options: &RunOptions) -> Result<File, LabError> {
    let mut overrides = options.set.clone();
    if let Some(seed) = options.seed {
        // TOML integers end at 2^63 - 1.
        let seed = i64::try_from(seed)
            .map_err(|_| LabError::bad("--seed: at most 9223372036854775807"))?;
        overrides.push(format!("seed={seed}"));
    }
    if let Some(repeat) = options.repeat {
        overrides.push(format!("repeat={repeat}"));
    }
    if let Some(text) = built_in(name_or_file) {
        return File::parse_with(name_or_file, text, &overrides);
    }
    let path = Path::new(name_or_file);
    if !path.exists() {
        return Err(unknown(name_or_file));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| LabError::bad(format!("{name_or_file}: {error}")))?;
    File::parse_with(name_or_file, &text, &overrides)
}

/// Runs the experiment that is built in under this name, or the file at this path.
///
/// # Errors
/// [`LabError`] where the file is wrong, or where the machine cannot run it.
pub fn run(name_or_file: &str, options: &RunOptions) -> Result<Verdict, LabError> {
    let file = load(name_or_file, options)?;
    let levels = file.levels()?;
    let dir = out_dir(options.out.as_deref(), &file.experiment().name)?;
    make_room(&dir, options.force)?;
    probe(&file, options)?;
    let mut raw = RawWriter::create(&dir)?;
    let mut run = new_run(&file, options.simulate)?;
    run.overrides.clone_from(&options.set);
    let total = levels.len() as u32 * file.experiment().repeat;
    ready(options)?;
    // Virtual time has little to do with the time that it takes.
    let seconds = (!options.simulate).then(|| file.expected_seconds());
    let mut display = Display::new(&run.title, total, seconds);
    if let Some(plan) = &file.experiment().peak {
        run.peak = Some(peak::measure(&file, plan, options.simulate, &mut display)?);
    }
    'run: for (index, level) in levels.iter().enumerate() {
        for repetition in 0..file.experiment().repeat {
            let number = index as u32 * file.experiment().repeat + repetition;
            let record = one(
                level,
                number,
                repetition,
                run.seed,
                options.simulate,
                &mut raw,
                &mut display,
            )?;
            run.verdict = run.verdict.and(record.verdict);
            run.trials.push(record);
            if net::stops() > 0 {
                cut_short(&mut run);
                break 'run;
            }
        }
    }
    raw.finish(&run)?;
    let published = publish(&dir, &mut run)?;
    display.finish();
    write_json(options.json.as_deref(), &run_json(&run, &published))?;
    // Standard output belongs to JSON where it was asked for there.
    if options.json.as_deref() != Some(Path::new("-")) {
        let table = crate::terminal::table(&run, &published);
        let page = published.page.display();
        crate::terminal::print(&format!("{table}report: {page}\n"));
    }
    match run.cut_short {
        true => Err(LabError::Interrupted(format!(
            "interrupted: {} of {total} trials were begun; figures and report hold what was measured until then",
            run.trials.len()
        ))),
        false => Ok(run.verdict),
    }
}

/// Ctrl-C ends trials from now on, not the program.
pub(crate) fn ready(options: &RunOptions) -> Result<(), LabError> {
    if options.simulate {
        return Ok(());
    }
    net::Signals::install().map(drop).map_err(|error| {
        LabError::cannot(
            format!("no signal handler: {error}"),
            "run outside of the sandbox",
        )
    })
}

/// Asks a foreign system under test for a sign of life.
pub(crate) fn probe(file: &File, options: &RunOptions) -> Result<(), LabError> {
    if options.simulate || options.no_probe {
        return Ok(());
    }
    let mut entropy = crate::subject::system_entropy()?;
    if let Some(warning) = crate::probe::subject(file.experiment(), &mut entropy)? {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// Marks a run that the user ended; its last trial is the one that was under way.
pub(crate) fn cut_short(run: &mut RunRecord) {
    run.cut_short = true;
    run.title.push_str(" (cut short)");
    if let Some(last) = run.trials.last_mut() {
        let text = format!("cut short by the user after {:.1} s", last.seconds);
        last.remarks.push(text);
    }
}

/// Results of an earlier run stay, unless they are to be replaced.
fn make_room(dir: &Path, force: bool) -> Result<(), LabError> {
    let record = dir.join("run.json");
    if !record.exists() {
        return Ok(());
    }
    if force {
        // Without it the folder holds no run; all other files are written anew.
        return std::fs::remove_file(&record).map_err(|error| {
            LabError::cannot(
                format!("{}: {error}", record.display()),
                "choose another folder with --out",
            )
        });
    }
    let numbered = (2..1_000)
        .map(|number| format!("{}-{number}", dir.display()))
        .find(|name| !Path::new(name).exists());
    let other = numbered.map_or(String::new(), |name| {
        format!(", or --out {name} keeps them")
    });
    Err(LabError::bad(format!(
        "{}: holds the results of an earlier run\n  remedy: --force replaces them{other}",
        dir.display()
    )))
}

/// Publishes what was written, and takes the verdict over levels into the run.
pub(crate) fn publish(dir: &Path, run: &mut RunRecord) -> Result<Published, LabError> {
    let published = report::publish(dir)?;
    if published.verdict != run.verdict {
        run.verdict = published.verdict;
        raw::write_run(dir, run)?;
    }
    Ok(published)
}

/// One trial: run, written down, judged.
pub(crate) fn one(
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
    display.begin(number, level.value, repetition);
    let outcomes = if simulated {
        simulate(&trial)?
    } else {
        on_sockets(&trial, |seconds, progress| {
            display.update(seconds, progress)
        })?
    };
    raw.trial(&outcomes.attempts, &outcomes.streams)?;
    let record = judge(level, number, repetition, seed, outcomes);
    display.done(&record);
    Ok(record)
}

/// Each trial has a seed of its own, made from the run's: runs of equal seeds have equal trials.
pub(crate) fn trial_seed(run_seed: u64, number: u32) -> u64 {
    if number == 0 {
        return run_seed;
    }
    let mut entropy = Entropy::from_number(run_seed);
    (0..number).fold(run_seed, |_, _| entropy.u64() >> 1)
}

fn judge(
    level: &Level,
    number: u32,
    repetition: u32,
    seed: u64,
    outcomes: Outcomes,
) -> TrialRecord {
    let (figures, mut details) = figures::compute(
        &outcomes.attempts,
        &outcomes.streams,
        outcomes.subject_cpu_seconds,
    );
    details.node_calls.clone_from(&outcomes.node_calls);
    let calls = figures.response_ms.samples;
    details.planes = outcomes
        .samples
        .divide(outcomes.subject_cpu_seconds, calls, details.packets);
    details.subject_cores = outcomes.subject_cores;
    details.host_cpu_percent = outcomes.host_cpu_percent;
    // Where nothing divides the link, what is lost is what the experiment is about.
    let judged = level
        .experiment
        .link
        .as_ref()
        .is_none_or(|link| link.shares > 0);
    let thresholds = match judged {
        true => level.experiment.thresholds.clone(),
        false => Thresholds::default(),
    };
    let checks = figures::judge(&thresholds, &figures, &details, outcomes.leaks);
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
        remarks: outcomes.remarks,
        surroundings: outcomes.surroundings,
        digest: outcomes.digest,
    }
}

pub(crate) fn new_run(file: &File, simulated: bool) -> Result<RunRecord, LabError> {
    let experiment = file.experiment();
    let subject = match (&experiment.subject.address, experiment.subject.none) {
        (Some(address), _) => format!("foreign, at {address}"),
        (None, true) => "none: the laboratory by itself".to_owned(),
        (None, false) => {
            let media = format!("{:?}", experiment.subject.media).to_lowercase();
            format!("Hornwork's border, media {media}")
        }
    };
    let machine = (!simulated).then(|| {
        let machine = net::machine();
        MachineRecord {
            cpu: machine.cpu,
            cores: machine.cores as u64,
            kernel: machine.kernel,
            memory: machine.memory,
        }
    });
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
        what: crate::workload::words(file),
        driver: if simulated { "simulation" } else { "sockets" }.to_owned(),
        subject,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started,
        machine,
        plan: file.text(),
        trials: Vec::new(),
        verdict: Verdict::NotJudged,
        cut_short: false,
    })
}

pub(crate) fn unix_seconds() -> Result<u64, LabError> {
    let clock = net::Clock::new();
    let wall: SystemTime = clock.wall(clock.now());
    wall.duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs())
        .map_err(|_| LabError::cannot("the wall clock is before 1970", "set it"))
}

/// The directory for a run's results.
pub(crate) fn out_dir(wanted: Option<&Path>, name: &str) -> Result<PathBuf, LabError> {
    match wanted {
        Some(dir) => Ok(dir.to_owned()),
        None => {
            let mut entropy = net::entropy().map_err(|error| {
                LabError::cannot(format!("getrandom: {error}"), "run outside of the sandbox")
            })?;
            let unique = format!(
                "hornwork-{name}-{}-{:06x}",
                unix_seconds()?,
                entropy.u32() & 0xff_ffff
            );
            Ok(std::env::temp_dir().join(unique))
        }
    }
}

/// What `--json` gives: the blocks of the demo per trial, with plan, seed and verdict.
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
                into.insert("caveats".to_owned(), json!(caveats::of(trial)));
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
        "search": run.search,
        "what": run.what,
        "overrides": run.overrides,
        "peak": run.peak,
        "bounds": published.bounds,
        "report": page,
        "study": report::beside_json(run, &published.levels),
        "trials": trials,
    })
}

/// Writes JSON to a file, or to standard output for `-`.
///
/// # Errors
/// Where the file cannot be written.
pub fn write_json(path: Option<&Path>, value: &Value) -> Result<(), LabError> {
    let Some(path) = path else { return Ok(()) };
    let mut text =
        serde_json::to_string_pretty(value).map_err(|error| LabError::bad(error.to_string()))?;
    text.push('\n');
    let result = if path == Path::new("-") {
        std::io::stdout().write_all(text.as_bytes())
    } else {
        std::fs::write(path, text)
    };
    result.map_err(|error| {
        LabError::cannot(
            format!("{}: {error}", path.display()),
            "give a file that can be written to with --json",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_have_seeds_of_their_own() {
        let seeds: Vec<u64> = (0..4).map(|n| trial_seed(7, n)).collect();
        assert_eq!(seeds, (0..4).map(|n| trial_seed(7, n)).collect::<Vec<_>>());
        assert_eq!(seeds[0], 7);
        assert!(seeds[1] != seeds[2] && seeds[2] != seeds[3]);
    }

    #[test]
    fn unknown_names_are_told_with_those_that_exist() {
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
        assert!(list().iter().any(|known| known.name == "small-network"
            && !known.title.is_empty()
            && known.seconds > 1.0));
    }
}
