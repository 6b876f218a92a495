//! `hornwork demo` and `hornwork lab`.

use clap::{Args, Subcommand};
use lab::{LabError, Verdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `hornwork demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Longest run in seconds, 10 to 90.
    #[arg(long, default_value_t = lab::demo::DemoOptions::default().seconds)]
    seconds: u32,
    /// Keep border and exchange running afterwards, so that a phone can register.
    #[arg(long)]
    stay: bool,
    /// Write the figures as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for raw results and report.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What `hornwork lab` can do.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// Name the built-in experiments.
    List,
    /// Print a built-in experiment's file.
    Show {
        /// Its name.
        name: String,
    },
    /// Run an experiment, or a SIPp scenario (a file that ends in .xml).
    Run(Box<Run>),
    /// Search the highest level of an experiment's sweep at which its thresholds hold, as RFC 7502 describes it.
    Search(Search),
    /// Find calls and media streams in a capture and judge them.
    Analyse {
        /// A pcap or pcapng file.
        capture: PathBuf,
        /// Write the figures as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Make the HTML report and the CSV of a run.
    Report {
        /// The run's directory.
        dir: PathBuf,
    },
    /// Compare a run with an earlier one of the same experiment; the exit code is 1 where it is worse.
    Compare {
        /// The baseline's directory.
        baseline: PathBuf,
        /// The other run's directory; compare.html is written there.
        dir: PathBuf,
        /// Write the comparison as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Differences up to so many percent are none.
        #[arg(long, value_name = "PERCENT", default_value_t = lab::report::TOLERANCE_PERCENT)]
        tolerance: f64,
    },
}

/// Options of `hornwork lab run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The name of a built-in experiment, or a file: an experiment's (.toml), or a SIPp scenario (.xml).
    experiment: String,
    #[command(flatten)]
    scenario: crate::scenario::Scenario,
    /// Change a value of the file: --set callers.rate=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Write the figures as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for the results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run in virtual time instead of on sockets.
    #[arg(long)]
    simulate: bool,
    /// The seed of everything random.
    #[arg(long)]
    seed: Option<u64>,
    /// How often to repeat it.
    #[arg(long)]
    repeat: Option<u32>,
    /// Replace the results of an earlier run in the directory of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Do not ask a system under test for a sign of life before the run.
    #[arg(long)]
    no_probe: bool,
}

/// Options of `hornwork lab search`.
#[derive(Debug, Args)]
pub struct Search {
    /// The name of a built-in experiment, or a file; its [levels] say from where to where, and how finely.
    experiment: String,
    /// Change a value of the file: --set levels.to=2000
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Write the figures as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for the results.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run in virtual time instead of on sockets.
    #[arg(long)]
    simulate: bool,
    /// The seed of everything random.
    #[arg(long)]
    seed: Option<u64>,
    /// Do not ask a system under test for a sign of life before the search.
    #[arg(long)]
    no_probe: bool,
}

/// `hornwork demo`.
pub fn demo(options: Demo) -> ExitCode {
    end(lab::demo::run(&lab::demo::DemoOptions {
        seconds: options.seconds,
        stay: options.stay,
        json: options.json,
        out: options.out,
    }))
}

/// `hornwork lab`.
pub fn run(command: Lab) -> ExitCode {
    end(match command {
        Lab::List => list(),
        Lab::Show { name } => lab::run::show(&name).map(|text| {
            print!("{text}");
            Verdict::Passed
        }),
        Lab::Run(options) => match crate::scenario::is_scenario(&options.experiment) {
            true => scenario(*options),
            false => experiment(*options),
        },
        Lab::Search(options) => search(options),
        Lab::Analyse { capture, json } => analyse(&capture, json.as_deref()),
        Lab::Report { dir } => lab::report::write(&dir).map(|path| {
            println!("{}", path.display());
            Verdict::Passed
        }),
        Lab::Compare {
            baseline,
            dir,
            json,
            tolerance,
        } => compare(&baseline, &dir, json.as_deref(), tolerance),
    })
}

fn compare(
    baseline: &Path,
    dir: &Path,
    json: Option<&Path>,
    tolerance: f64,
) -> Result<Verdict, LabError> {
    let compared = lab::report::compare(baseline, dir, tolerance)?;
    lab::run::write_json(json, &compared.json)?;
    // Standard output belongs to JSON where it was asked for there.
    if json != Some(Path::new("-")) {
        let page = compared.page.display();
        lab::terminal::print(&format!("{}page: {page}\n", compared.text));
    }
    Ok(match compared.worse {
        true => Verdict::Failed,
        false => Verdict::Passed,
    })
}

fn list() -> Result<Verdict, LabError> {
    for known in lab::run::list() {
        let about = lab::progress::duration(known.seconds);
        println!("{:<26} {about:>12}  {}", known.name, known.title);
    }
    Ok(Verdict::Passed)
}

fn scenario(options: Run) -> Result<Verdict, LabError> {
    if !options.sets.is_empty() || options.out.is_some() || options.repeat.is_some() {
        return Err(LabError::bad(
            "--set, --out and --repeat are for experiments, not for scenarios",
        ));
    }
    if options.no_probe {
        return Err(LabError::bad(
            "--no-probe is for experiments: a scenario begins without a probe",
        ));
    }
    let mut read = options.scenario.options()?;
    read.file = options.experiment.into();
    read.json = options.json;
    read.simulate = options.simulate;
    read.seed = options.seed;
    lab::sipp::run(&read)
}

fn experiment(options: Run) -> Result<Verdict, LabError> {
    options.scenario.none_given()?;
    let run = lab::run::RunOptions {
        set: options.sets,
        json: options.json,
        out: options.out,
        simulate: options.simulate,
        seed: options.seed,
        repeat: options.repeat,
        force: options.force,
        no_probe: options.no_probe,
    };
    lab::run::run(&options.experiment, &run)
}

fn search(options: Search) -> Result<Verdict, LabError> {
    let run = lab::run::RunOptions {
        set: options.sets,
        json: options.json,
        out: options.out,
        simulate: options.simulate,
        seed: options.seed,
        repeat: None,
        force: false,
        no_probe: options.no_probe,
    };
    lab::search::search(&options.experiment, &run)
}

fn analyse(capture: &Path, json: Option<&Path>) -> Result<Verdict, LabError> {
    let analysis =
        lab::analyse::analyse_file(capture).map_err(|error| LabError::bad(error.to_string()))?;
    let to_stdout = json.is_some_and(|path| path.as_os_str() == "-");
    if !to_stdout {
        print!("{}", lab::analyse::render_text(&analysis));
    }
    if let Some(path) = json {
        let text = format!("{:#}\n", analysis.to_json());
        if to_stdout {
            print!("{text}");
        } else {
            std::fs::write(path, text).map_err(|error| {
                LabError::cannot(
                    format!("{}: {error}", path.display()),
                    "choose a file that can be written",
                )
            })?;
        }
    }
    Ok(Verdict::Passed)
}

/// The exit code, with what went wrong on standard error.
fn end(outcome: Result<Verdict, LabError>) -> ExitCode {
    match outcome {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprintln!("hornwork: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
