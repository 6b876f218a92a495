//! `hornwork demo` and `hornwork lab`.

use clap::{Args, Subcommand};
use lab::{LabError, RunVerdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `hornwork demo`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork demo --stay --seconds 10")]
pub struct Demo {
    /// Longest run in seconds, 10 to 90.
    #[arg(long, default_value_t = lab::demo::DemoOptions::default().seconds)]
    seconds: u32,
    /// Keep border and PBX running after the demo, so that phones can register, until Ctrl-C.
    #[arg(long)]
    stay: bool,
    /// Write the figures as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for raw results and report [default: a new one in the temporary directory].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Subcommands of `hornwork lab`.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// List the built-in experiments.
    #[command(after_help = "Example: hornwork lab list")]
    List,
    /// Print the file of a built-in experiment.
    #[command(after_help = "Example: hornwork lab show call-capacity > mine.toml")]
    Show {
        /// Name of the experiment.
        name: String,
    },
    /// Run an experiment, or a SIPp scenario (a file whose name ends in .xml).
    Run(Box<LabRunOptions>),
    /// Search for the highest level of an experiment at which its thresholds hold (RFC 7502).
    Search(LabSearchOptions),
    /// Analyse calls and media streams in a capture.
    #[command(after_help = "Example: hornwork lab analyse call.pcap --json figures.json")]
    Analyse {
        /// A pcap or pcapng file.
        capture: PathBuf,
        /// Write the figures as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Open ESP with the keys of this file, which has the lines of Wireshark's esp_sa table.
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
    },
    /// Write the HTML report and the CSV files of a run.
    #[command(after_help = "Example: hornwork lab report results/b")]
    Report {
        /// Directory of the run.
        dir: PathBuf,
    },
    /// Compare a run with an earlier one of the same experiment; the exit code is 1 if it is worse.
    #[command(after_help = "Example: hornwork lab compare results/a results/b --tolerance 5")]
    Compare {
        /// Directory of the baseline run.
        baseline: PathBuf,
        /// Directory of the other run; compare.html is written there.
        dir: PathBuf,
        /// Write the comparison as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Ignore differences up to this percentage.
        #[arg(long, value_name = "PERCENT", default_value_t = lab::report::TOLERANCE_PERCENT)]
        tolerance: f64,
    },
}

/// Options of `hornwork lab run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab run small-network --simulate --seed 7 --out results/a"
)]
pub struct LabRunOptions {
    /// Name of a built-in experiment, or a file: an experiment (.toml) or a SIPp scenario (.xml).
    experiment: String,
    #[command(flatten)]
    scenario: crate::scenario::Scenario,
    /// Override a value of the experiment: --set callers.rate=5
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
    /// Seed of all random values.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of repetitions.
    #[arg(long)]
    repeat: Option<u32>,
    /// Replace the results of an earlier run in the directory of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Do not probe the system under test before the run.
    #[arg(long)]
    no_probe: bool,
}

/// Options of `hornwork lab search`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab search call-rate --simulate --set callers.duration_seconds=1 --set levels.to=400 --out results/search"
)]
pub struct LabSearchOptions {
    /// Name of a built-in experiment, or a file; its [levels] define the range and the step.
    experiment: String,
    /// Override a value of the experiment: --set levels.to=2000
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
    /// Seed of all random values.
    #[arg(long)]
    seed: Option<u64>,
    /// Replace the results of an earlier search in the directory of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Do not probe the system under test before the search.
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
            RunVerdict::Passed
        }),
        Lab::Run(options) => match crate::scenario::is_scenario(&options.experiment) {
            true => scenario(*options),
            false => experiment(*options),
        },
        Lab::Search(options) => search(options),
        Lab::Analyse {
            capture,
            json,
            keys,
        } => analyse(&capture, json.as_deref(), keys.as_deref()),
        Lab::Report { dir } => lab::report::write(&dir).map(|path| {
            println!("{}", path.display());
            RunVerdict::Passed
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
) -> Result<RunVerdict, LabError> {
    let compared = lab::report::compare(baseline, dir, tolerance)?;
    lab::run::write_json(json, &compared.json)?;
    // Standard output is reserved for JSON if it was requested there.
    if json != Some(Path::new("-")) {
        let page = compared.page.display();
        lab::terminal::print(&format!("{}page: {page}\n", compared.text));
    }
    Ok(match compared.worse {
        true => RunVerdict::Failed,
        false => RunVerdict::Passed,
    })
}

fn list() -> Result<RunVerdict, LabError> {
    for known in lab::run::list() {
        let about = lab::progress::duration(known.seconds);
        println!("{:<26} {about:>12}  {}", known.name, known.title);
    }
    Ok(RunVerdict::Passed)
}

fn scenario(options: LabRunOptions) -> Result<RunVerdict, LabError> {
    if !options.sets.is_empty() || options.out.is_some() || options.repeat.is_some() {
        return Err(LabError::bad_input(
            "--set, --out and --repeat apply to experiments only: remove them for a scenario",
        ));
    }
    if options.no_probe {
        return Err(LabError::bad_input(
            "--no-probe applies to experiments only: a scenario has no probe",
        ));
    }
    let mut read = options.scenario.options()?;
    read.file = options.experiment.into();
    read.json = options.json;
    read.simulate = options.simulate;
    read.seed = options.seed;
    lab::sipp::run(&read)
}

fn experiment(options: LabRunOptions) -> Result<RunVerdict, LabError> {
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

fn search(options: LabSearchOptions) -> Result<RunVerdict, LabError> {
    let run = lab::run::RunOptions {
        set: options.sets,
        json: options.json,
        out: options.out,
        simulate: options.simulate,
        seed: options.seed,
        repeat: None,
        force: options.force,
        no_probe: options.no_probe,
    };
    lab::search::search(&options.experiment, &run)
}

fn analyse(
    capture: &Path,
    json: Option<&Path>,
    keys: Option<&Path>,
) -> Result<RunVerdict, LabError> {
    let mut analyser = analyse::CaptureAnalyser::default();
    if let Some(path) = keys {
        let failed = |error: String| LabError::bad_input(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let lines = protect::esp::parse_esp_sa_file(&text);
        analyser = analyser.with_esp_keys(lines.map_err(|error| failed(error.to_string()))?);
    }
    let analysis = analyse::analyse_file_with(analyser, capture)
        .map_err(|error| LabError::bad_input(error.to_string()))?;
    let to_stdout = json.is_some_and(|path| path.as_os_str() == "-");
    if !to_stdout {
        print!("{}", analyse::render_text(&analysis));
    }
    if let Some(path) = json {
        let text = format!("{:#}\n", analysis.to_json());
        if to_stdout {
            print!("{text}");
        } else {
            std::fs::write(path, text).map_err(|error| {
                LabError::cannot_run(
                    format!("{}: {error}", path.display()),
                    "name a writable file",
                )
            })?;
        }
    }
    Ok(RunVerdict::Passed)
}

/// The exit code; prints an error to standard error.
pub fn end(outcome: Result<RunVerdict, LabError>) -> ExitCode {
    match outcome {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprintln!("hornwork: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
