//! Studies: several experiments by one command, with the figures of a published study beside ours.
//!
//! A study has a directory with `run.json`, `report.html` and one directory for each part. The page is made from these
//! records alone. A part that cannot run is reported with its cause; the others run nevertheless.

mod compare;
mod page;
mod plan;
mod plans;
mod plots;
mod reading;
mod record;
mod records;
mod rows;

pub use compare::compare;
pub use plan::{
    AbsentRow, Action, BarSpec, OwnAction, Part, PartContext, PlotSpec, PublishMore, RowSpec,
    Setting, StudyPlan,
};
pub use plans::NAMES;
pub use reading::Reading;
pub use record::{
    BarRecord, FORMAT, LineRecord, NotRun, OwnPart, PartMode, PartRecord, PlotRecord, StudyRow,
    SuiteRecord, TableRecord,
};

use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::experiment::{CAPACITY, File, built_in};
use crate::figures::ThresholdCheck;
use crate::not_judged::{NO_FIGURE, NotJudged};
use crate::output;
use crate::progress::duration;
use crate::raw::{MachineRecord, RunRecord};
use crate::run::{self, RunOptions};
use crate::statistics::INTERVAL_COLUMN;
pub use rows::Measured;
use std::path::{Path, PathBuf};

/// Name of the data sheet, which is a command of its own.
pub const DATASHEET: &str = "datasheet";

/// Set-up and tear-down of a trial, seconds, beside its expected duration.
const TRIAL_SECONDS: f64 = 0.7;

/// Whether this is the name of a study.
pub fn is_study(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Name, title and approximate duration in seconds of each study in the full setting (searches at their most trials).
pub fn list() -> Vec<(&'static str, &'static str, f64)> {
    let plans = NAMES.iter().filter_map(|name| plans::find(name));
    plans
        .map(|plan| {
            let seconds = plan.parts.iter().map(|part| expected(part, false)).sum();
            (plan.name, plan.title, seconds)
        })
        .collect()
}

/// Written page of a study.
#[derive(Debug)]
pub struct PublishedStudy {
    /// Path of the page.
    pub page: PathBuf,
    /// The record, with rows and verdict.
    pub record: SuiteRecord,
}

/// Expected duration of a part, seconds.
pub(crate) fn expected(part: &Part, quick: bool) -> f64 {
    let sets = if quick { &part.quick } else { &part.full };
    let file =
        built_in(&part.experiment).and_then(|text| File::parse_with(&part.name, text, sets).ok());
    let Some(file) = file else {
        return match quick || part.full_seconds <= 0.0 {
            true => part.quick_seconds,
            false => part.full_seconds,
        };
    };
    let experiment = file.experiment();
    let search = matches!(part.action, Action::Search | Action::FullSearch(_)) && !quick;
    if search {
        return crate::search::expected_seconds(&file).unwrap_or_default();
    }
    let trials =
        file.levels().map_or(1, |levels| levels.len()) as f64 * f64::from(experiment.repeat);
    // Callers of an overloaded border wait for their timers.
    let peak = experiment.peak.as_ref().map_or(0.0, |peak| {
        (peak.trial_seconds + 3.0) * f64::from(peak.trials) + experiment.settle_seconds
    });
    file.expected_seconds() + peak + trials * TRIAL_SECONDS
}

/// Runs a study: `lab run study-u` and so on. In the quick setting each part is short.
///
/// # Errors
/// [`LabError`] for wrong options, if nothing of it can run here, or if the user interrupted it.
pub fn run(name: &str, options: &RunOptions, quick: bool) -> Result<RunVerdict, LabError> {
    let plan = plans::find(name)
        .ok_or_else(|| LabError::bad_input(format!("no study {name:?}: {}", NAMES.join(", "))))?;
    if !options.set.is_empty() || options.repeat.is_some() || options.no_probe {
        return Err(LabError::bad_input(format!(
            "--set, --subject, --repeat and --no-probe apply to single experiments: remove them for {name}, or run one of its experiments"
        )));
    }
    let setting = if quick {
        Setting::quick()
    } else {
        Setting::full()
    };
    run_plan(&plan, options, &setting)
}

/// Runs the parts of a plan, and publishes their results.
///
/// # Errors
/// As for [`run()`].
pub(crate) fn run_plan(
    plan: &StudyPlan,
    options: &RunOptions,
    setting: &Setting,
) -> Result<RunVerdict, LabError> {
    let quick = setting.quick;
    run::check_seed(options)?;
    run::check_places(options.json.as_deref(), options.out.as_deref())?;
    let dir = run::out_dir(options.out.as_deref(), plan.name)?;
    run::clear_results(&dir, options.force)?;
    for part in &plan.parts {
        run::clear_results(&dir.join(&part.name), options.force)?;
    }
    let mut record = new_record(plan, options, setting)?;
    record.write(&dir)?;
    run::handle_interrupts(options)?;
    let seconds: f64 = plan
        .parts
        .iter()
        .filter(|part| rows::left_out(part, quick).is_none())
        .map(|part| expected(part, quick))
        .sum();
    let about = match options.simulate {
        true => "in virtual time".to_owned(),
        false => {
            let limit = setting.limit_s.unwrap_or(f64::INFINITY);
            format!("about {}", duration(seconds.min(limit)))
        }
    };
    let parts = counted(plan.parts.len(), "part");
    eprintln!("{}: {parts}, {about}", plan.title);
    if let Some(text) = announced(plan, setting, options.simulate) {
        eprintln!("{text}");
    }
    let clock = net::Clock::new();
    let start = clock.now();
    let mut remaining_s = seconds;
    for (number, part) in plan.parts.iter().enumerate() {
        eprintln!("part {} of {}: {}", number + 1, plan.parts.len(), part.name);
        let before = clock.now();
        let elapsed = (before - start).as_secs_f64();
        let late = setting
            .limit_s
            .is_some_and(|limit| elapsed + expected(part, quick) > limit && !options.simulate);
        let mut of_part = match rows::left_out(part, quick) {
            Some(why) => cause(part, why),
            None if late => cause(part, LATE),
            None => {
                let spare = match options.simulate {
                    true => None,
                    false => setting.limit_s.map(|limit| limit - elapsed - remaining_s),
                };
                run_part(&extended(part, spare, quick), &dir, options, quick)
            }
        };
        if rows::left_out(part, quick).is_none() {
            remaining_s -= expected(part, quick);
        }
        // The same seed gives the same record in virtual time.
        of_part.seconds = match options.simulate {
            true => 0.0,
            false => (clock.now() - before).as_secs_f64(),
        };
        if let (Some(cause), false) = (&of_part.cause, of_part.measured) {
            eprintln!("  not measured: {cause}");
        }
        record.parts.push(of_part);
        record.cut_short = net::stops() > 0;
        record.write(&dir)?;
        if record.cut_short {
            break;
        }
    }
    let published = publish(&dir, plan, &mut record)?;
    finish(&published, options)
}

/// Cause of a part that would exceed the time of the setting.
const LATE: &str = "not started: the time of this setting was used up";

/// Time at the end of a setting that no search gets, seconds: single trials may take longer than expected.
const RESERVE_S: f64 = 10.0;
/// Largest extension of the time limit of a search, as a share of it: later searches get their part.
const MOST_EXTENSION: f64 = 0.5;

/// A part whose search gets the time that earlier parts did not use: `spare_s` is the time of the setting beside this
/// part and all that follow.
fn extended(part: &Part, spare_s: Option<f64>, quick: bool) -> Part {
    let mut part = part.clone();
    let is_search = matches!(part.action, Action::Search | Action::FullSearch(_)) && !quick;
    let spare_s = spare_s.map_or(0.0, |spare| spare - RESERVE_S);
    if !is_search || spare_s < 1.0 {
        return part;
    }
    for set in &mut part.full {
        let limit = set.strip_prefix("search.limit_seconds=");
        if let Some(limit) = limit.and_then(|limit| limit.parse::<f64>().ok()) {
            let more = spare_s.min(limit * MOST_EXTENSION).floor();
            *set = format!("search.limit_seconds={}", limit + more);
        }
    }
    part
}

/// The parts that the setting leaves out, and those for which its time is too short, as far as the plan tells; `None`:
/// all are run.
fn announced(plan: &StudyPlan, setting: &Setting, simulate: bool) -> Option<String> {
    let quick = setting.quick;
    let mut elapsed = 0.0;
    let (mut left_out, mut late) = (Vec::new(), Vec::new());
    for part in &plan.parts {
        if rows::left_out(part, quick).is_some() {
            left_out.push(part.name.as_str());
            continue;
        }
        let seconds = expected(part, quick);
        let exceeds = setting
            .limit_s
            .is_some_and(|limit| elapsed + seconds > limit);
        match exceeds && !simulate {
            true => late.push(part.name.as_str()),
            false => elapsed += seconds,
        }
    }
    let mut texts = Vec::new();
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        texts.push(format!("not in this setting: {names}"));
    }
    if !late.is_empty() {
        let names = late.join(", ");
        texts.push(format!(
            "time for about {} of {} (searches may end earlier); probably not started: {names}",
            plan.parts.len() - late.len() - left_out.len(),
            counted(plan.parts.len(), "part")
        ));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Prints the results, and gives the verdict or the error.
fn finish(published: &PublishedStudy, options: &RunOptions) -> Result<RunVerdict, LabError> {
    let record = &published.record;
    let value = serde_json::to_value(record)
        .map_err(|error| LabError::bad_input(format!("run.json: {error}")))?;
    if options.json.as_deref() != Some(Path::new("-")) {
        let page = published.page.display();
        output::print(&format!("{}report: {page}\n", table(record)));
    }
    run::write_json(options.json.as_deref(), &value)?;
    let ran = record.parts.iter().filter(|part| part.measured).count();
    if record.cut_short {
        return Err(LabError::Interrupted(format!(
            "interrupted in part {} ({ran} with results); figures and page cover the measurements until then",
            record.parts.len()
        )));
    }
    if ran == 0 {
        let causes: Vec<String> = record
            .parts
            .iter()
            .filter_map(|part| Some(format!("{}: {}", part.name, part.cause.as_ref()?)))
            .collect();
        return Err(LabError::cannot_run(
            format!("nothing could be measured: {}", causes.join("; ")),
            "see the causes above",
        ));
    }
    Ok(record.verdict)
}

/// Version of the program; figures of a development build are not those of the product.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match cfg!(debug_assertions) {
        true => format!("{version} (development build)"),
        false => version.to_owned(),
    }
}

fn new_record(
    plan: &StudyPlan,
    options: &RunOptions,
    setting: &Setting,
) -> Result<SuiteRecord, LabError> {
    let machine = (!options.simulate).then(MachineRecord::here);
    Ok(SuiteRecord {
        format: FORMAT,
        suite: plan.name.to_owned(),
        title: plan.title.to_owned(),
        about: plan.about.to_owned(),
        source: plan.source.to_owned(),
        setting: setting.name.clone(),
        driver: if options.simulate {
            "simulation"
        } else {
            "sockets"
        }
        .to_owned(),
        version: version(),
        started: match options.simulate {
            true => 0,
            false => crate::files::unix_seconds()?,
        },
        machine,
        seed: options.seed,
        ..SuiteRecord::default()
    })
}

/// A part that did not run.
fn cause(part: &Part, why: &str) -> PartRecord {
    PartRecord {
        name: part.name.clone(),
        experiment: part.experiment.clone(),
        cause: Some(why.to_owned()),
        ..PartRecord::default()
    }
}

/// The part of an error that fits in a table.
fn short(error: &LabError) -> String {
    error.to_string().replace("\n  remedy:", "; remedy:")
}

fn run_part(part: &Part, dir: &Path, options: &RunOptions, quick: bool) -> PartRecord {
    let sets = if quick { &part.quick } else { &part.full };
    let mut record = PartRecord {
        name: part.name.clone(),
        experiment: part.experiment.clone(),
        overrides: sets.clone(),
        ..PartRecord::default()
    };
    let search = match part.action {
        Action::Own(action) => return run_own(action, record, dir, options, quick),
        Action::Run | Action::FullRun(_) => false,
        Action::Search | Action::FullSearch(_) => !quick,
    };
    record.mode = if search {
        PartMode::Search
    } else {
        PartMode::Run
    };
    if built_in(&part.experiment).is_none() {
        record.cause = Some(format!(
            "the experiment {} is not available in this build",
            part.experiment
        ));
        return record;
    }
    let of_part = RunOptions {
        set: sets.clone(),
        out: Some(dir.join(&part.name)),
        json: None,
        ..options.clone()
    };
    let target = dir.join(&part.name);
    let executed = run::load(&part.experiment, &of_part).and_then(|file| match search {
        true => crate::search::execute(file, &of_part, &target),
        false => run::execute(&file, &of_part, &target),
    });
    match executed {
        Ok(executed) => {
            record.measured = true;
            record.verdict = executed.published.verdict;
            if executed.record.cut_short {
                record.cause = Some("interrupted by the user".to_owned());
            }
        }
        Err(error) => record.cause = Some(short(&error)),
    }
    record
}

fn run_own(
    action: OwnAction,
    mut record: PartRecord,
    dir: &Path,
    options: &RunOptions,
    quick: bool,
) -> PartRecord {
    record.mode = PartMode::Own;
    let dir = dir.join(&record.name);
    let context = PartContext {
        dir: &dir,
        quick,
        simulate: options.simulate,
        seed: options.seed,
        repeat: options.repeat,
    };
    let result = std::fs::create_dir_all(&dir)
        .map_err(|error| crate::files::cannot_write(&dir, &error))
        .and_then(|()| action(&context))
        .and_then(|part| part.write(&dir).map(|()| part));
    match result {
        Ok(part) => {
            record.measured = true;
            record.verdict = part.verdict;
            if !part.remarks.is_empty() {
                record.cause = Some(part.remarks.join("; "));
            }
        }
        Err(error) => record.cause = Some(short(&error)),
    }
    record
}

/// The plan of the study of this name.
pub fn plan(name: &str) -> Option<StudyPlan> {
    plans::find(name)
}

/// Makes rows, verdict and page of a study from its records: `run.json`, `report.html` and `records.html` in `dir`.
///
/// # Errors
/// If the records are broken, or `dir` is not writable.
pub(crate) fn publish(
    dir: &Path,
    plan: &StudyPlan,
    record: &mut SuiteRecord,
) -> Result<PublishedStudy, LabError> {
    let mut parts: Vec<(PartRecord, Option<Measured>)> = Vec::new();
    for part in &record.parts {
        let measured = rows::read(dir, part)?;
        let mut part = part.clone();
        match &measured {
            Some(Measured::Experiment(run, _)) => part.verdict = verdict_of(plan, run),
            Some(Measured::Own(own)) => part.verdict = own.verdict,
            None => {}
        }
        parts.push((part, measured));
    }
    record.parts = parts.iter().map(|(part, _)| part.clone()).collect();
    record.verdict = record
        .parts
        .iter()
        .filter(|part| part.measured)
        .fold(RunVerdict::NotJudged, |all, part| {
            all.or_measured(part.verdict)
        });
    record.not_run = not_run(plan, record);
    let open = parts.iter();
    record.not_judged = open
        .filter_map(|(part, measured)| not_judged(part, measured.as_ref()?))
        .collect();
    record.study = rows::all(plan, &parts, record.setting == "quick");
    if !plan.compares {
        // The experiments' own comparisons are those of the studies.
        for row in &mut record.study {
            row.study = None;
            row.differs.clear();
            let own = parts
                .iter()
                .any(|(part, _)| part.name == row.part && part.experiment.is_empty());
            if !own && row.figure != CAPACITY && !row.part.is_empty() {
                row.what = format!("{}: {}", row.part, row.what);
            }
            "X1".clone_into(&mut row.row);
        }
    }
    let plots = plots::all(dir, plan, &parts, &record.study)?;
    record.write(dir)?;
    if let Some(more) = plan.publish_more {
        more(dir, record, &parts)?;
    }
    let files = records::files(dir, &parts);
    let content = page::Page {
        record,
        parts: &parts,
        plots: &plots,
        files: &files,
    };
    records::write(dir, &content)?;
    let page = dir.join("report.html");
    crate::files::replace(&page, page::render(&content).as_bytes())?;
    compare::write_again(dir)?;
    Ok(PublishedStudy {
        page,
        record: record.clone(),
    })
}

/// The verdict of a part. A capacity is no threshold: on a page without comparison a search that found none missed
/// none, unless the system under test ended.
fn verdict_of(plan: &StudyPlan, run: &RunRecord) -> RunVerdict {
    let ended = || {
        let mut trials = run.trials.iter();
        trials.any(|trial| ThresholdCheck::has_subject_ended(&trial.checks))
    };
    match &run.search {
        Some(search) if !plan.compares && search.result.is_none() && !ended() => {
            RunVerdict::NotMeasured
        }
        _ => run.verdict,
    }
}

/// The points of a part that were not judged; `None` if all were.
fn not_judged(part: &PartRecord, measured: &Measured) -> Option<NotJudged> {
    let found = match measured {
        Measured::Experiment(run, _) => NotJudged::of_trials(&run.trials),
        Measured::Own(own) => own.not_judged.clone(),
    };
    let whole = || {
        let cause = part.cause.clone();
        NotJudged::whole(cause.unwrap_or_else(|| NO_FIGURE.to_owned()))
    };
    let is_open = part.verdict == RunVerdict::NotMeasured;
    let mut found = found.or_else(|| is_open.then(whole))?;
    found.part.clone_from(&part.name);
    Some(found)
}

/// The parts of the plan without measurement; in an interrupted study those after the last one, too.
fn not_run(plan: &StudyPlan, record: &SuiteRecord) -> Vec<NotRun> {
    let of_part = |part: &Part| {
        let found = record.parts.iter().find(|found| found.name == part.name);
        let cause = match found {
            Some(found) if found.measured => return None,
            Some(found) => found.cause.clone(),
            None => None,
        };
        Some(NotRun {
            part: part.name.clone(),
            cause: cause.unwrap_or_else(|| "interrupted before".to_owned()),
        })
    };
    plan.parts.iter().filter_map(of_part).collect()
}

/// The rows as text for the terminal.
fn table(record: &SuiteRecord) -> String {
    let rows: Vec<Vec<String>> = record
        .study
        .iter()
        .map(|row| {
            let here = row.here.map_or(row.missing(), plain);
            vec![
                format!("{:<4} {}", row.row, row.what),
                row.study.as_ref().map_or(String::new(), Reading::text),
                here,
                row.interval_text(),
                row.unit.clone(),
            ]
        })
        .collect();
    let headings = ["figure", "study", "here", INTERVAL_COLUMN, "unit"];
    let mut text = output::columns(&headings, &rows);
    for part in &record.parts {
        if let Some(cause) = &part.cause {
            text.push_str(&format!("{}: {cause}\n", part.name));
        }
    }
    let gaps = record
        .gaps()
        .map_or(String::new(), |gaps| format!("; {gaps}"));
    text.push_str(&format!("verdict: {}{gaps}\n", record.verdict.name()));
    text.push_str(&record.open_points());
    text
}

#[cfg(test)]
mod tests;
