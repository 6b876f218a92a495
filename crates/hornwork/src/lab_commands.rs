//! `hornwork demo` and `hornwork lab`.

use clap::{Args, Subcommand};
use lab::experiment::toml_text;
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
    /// List the built-in experiments and studies.
    #[command(after_help = "Example: hornwork lab list")]
    List,
    /// Print the file of a built-in experiment.
    #[command(after_help = "Example: hornwork lab show call-capacity > mine.toml")]
    Show {
        /// Name of the experiment.
        name: String,
    },
    /// List the subjects, systems under test that an experiment starts with --subject, and whether each is installed;
    /// or print the file of one.
    #[command(after_help = "Example: hornwork lab subjects kamailio > mine.toml")]
    Subjects {
        /// Name of a built-in subject whose file is printed.
        name: Option<String>,
    },
    /// Wait for a test lab on another host, and start, measure and stop subjects of this host for it.
    Agent(LabAgentOptions),
    /// Run an experiment, a study (study-u, study-v, study-s, study-b, study-c), or a SIPp scenario (a file whose name
    /// ends in .xml).
    ///
    /// Exit status 0: every threshold that was judged holds (the last lines count the points of a study that were not),
    /// 1: one does not hold, 2: invalid input, 3: a right, a device or a program is missing, 4: nothing was judged, or
    /// a trial of a single experiment was not.
    Run(Box<LabRunOptions>),
    /// Search for the highest level of an experiment at which its thresholds hold (by brackets, or as RFC 7502).
    Search(LabSearchOptions),
    /// Measure capacities and costs of the border on this machine: one page, in 20 minutes.
    Datasheet(LabDatasheetOptions),
    /// Plan nodes, cores, memory and bandwidth for a number of subscribers, with every formula.
    Plan(Box<crate::lab_plan::PlanOptions>),
    /// Emulate a network link between two interfaces: rate, framing, delay, jitter, loss, queue.
    ///
    /// Exit status 1: it could not keep up, 2: invalid input, 3: a right or an interface is missing.
    Link(Box<crate::link_command::LinkOptions>),
    /// Analyse calls and media streams in a capture.
    ///
    /// Exit status 2: no capture, or an incomplete one (cut, or with a damaged record); the figures are then those of
    /// the packets that were read.
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
    /// Compare recorded speech with its original: mean opinion score (MOS-LQO) by the algorithm of ViSQOL.
    ///
    /// Level and delay are removed first. Exit status 2: a file is no WAV file, too short, too long (60 s), or without
    /// speech.
    #[command(
        after_help = "Example: hornwork lab speech --reference hello.wav --degraded heard.wav --json speech.json"
    )]
    Speech {
        /// The original: a WAV file at any usual sample rate.
        #[arg(long, value_name = "FILE")]
        reference: PathBuf,
        /// The recording: a WAV file at any usual sample rate.
        #[arg(long, value_name = "FILE")]
        degraded: PathBuf,
        /// Write the result as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Simulate conversations over a delay: double talk, mutual silence and talk-over by the model of ITU-T P.59.
    #[command(after_help = "Example: hornwork lab conversation --delay-ms 300 --json talk.json")]
    Conversation {
        /// One-way delay from mouth to ear, milliseconds.
        #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=10_000))]
        delay_ms: u64,
        /// Delay of the other direction [default: the same].
        #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=10_000))]
        back_ms: Option<u64>,
        /// Seed of the simulation.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Write the result as JSON to this file; - is standard output.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Write the HTML report and the CSV files of a run, or the page of a study.
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

/// Option that names the system under test.
#[derive(Debug, Args)]
pub struct SubjectOption {
    /// System under test: NAME of a subject (hornwork lab subjects) or its FILE, which each trial starts;
    /// NAME@ADDRESS:PORT of an agent on another host (hornwork lab agent), which starts it there; or ADDRESS:PORT of a
    /// system that runs already.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// File with the token of the agent.
    #[arg(long, value_name = "FILE", requires = "subject")]
    agent_token_file: Option<PathBuf>,
    /// File with the authorities (PEM) of the agent's certificate, which contains its IP address: the connection is
    /// TLS.
    #[arg(long, value_name = "FILE", requires = "agent_token_file")]
    agent_ca_file: Option<PathBuf>,
}

impl SubjectOption {
    /// The overrides of the experiment that it stands for.
    fn sets(&self) -> Result<Vec<String>, LabError> {
        let Some(text) = &self.subject else {
            return Ok(Vec::new());
        };
        let mut sets = vec![match lab::subject::place(text)? {
            lab::subject::SubjectPlace::Address(address) => format!("sut.address={address}"),
            _ => format!("sut.subject={}", toml_text(text)),
        }];
        for (option, key, file) in [
            (
                "--agent-token-file",
                "agent_token_file",
                &self.agent_token_file,
            ),
            ("--agent-ca-file", "agent_ca_file", &self.agent_ca_file),
        ] {
            let Some(file) = file else { continue };
            let file = file.to_str().ok_or_else(|| {
                LabError::bad_input(format!("{option}: the path has to be UTF-8"))
            })?;
            sets.push(format!("sut.{key}={}", toml_text(file)));
        }
        Ok(sets)
    }
}

/// Options of `hornwork lab run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab run small-network --simulate --seed 7 --out results/a"
)]
pub struct LabRunOptions {
    /// Name of a built-in experiment or study, or a file: an experiment (.toml) or a SIPp scenario (.xml).
    experiment: String,
    #[command(flatten)]
    subject: SubjectOption,
    /// Override a value of the experiment: --set callers.hold_seconds=5
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
    /// For a study: the quick setting, which takes less than 3 minutes.
    #[arg(long)]
    quick: bool,
    // The last one: its heading is that of all options that follow.
    #[command(flatten)]
    scenario: crate::scenario::Scenario,
}

/// Options of `hornwork lab agent`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork lab agent --listen 10.0.0.20:7060 --token-file token")]
pub struct LabAgentOptions {
    /// Address at which test labs connect.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: std::net::SocketAddr,
    /// File with the token that the test labs know, too: 16 to 256 characters, readable by its owner only.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Folder with subject files beside the built-in ones.
    #[arg(long, value_name = "DIR", default_value = lab::subject::FOLDER)]
    subjects: PathBuf,
    /// Certificate with its chain (PEM), which contains the address of this host: test labs connect with TLS, and name
    /// the authority with --agent-ca-file.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

/// Options of `hornwork lab search`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork lab search call-rate --simulate --set callers.duration_seconds=1 --set search.highest=800 --out results/search"
)]
pub struct LabSearchOptions {
    /// Name of a built-in experiment, or a file; its [levels] define the range and the step.
    experiment: String,
    #[command(flatten)]
    subject: SubjectOption,
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

/// Options of `hornwork lab datasheet`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork lab datasheet --out results/datasheet")]
pub struct LabDatasheetOptions {
    /// Directory for page, records and costs.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Time for all measurements, minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = lab::datasheet::MINUTES)]
    minutes: f64,
    /// One load for each measurement, in less than 3 minutes.
    #[arg(long, conflicts_with = "minutes")]
    quick: bool,
    /// Replace the results of an earlier data sheet in the directory of --out.
    #[arg(long)]
    force: bool,
    /// Write the record as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of all random values.
    #[arg(long)]
    seed: Option<u64>,
}

/// `hornwork demo`.
pub fn demo(options: Demo) -> ExitCode {
    if let Err(error) = free_memory() {
        return end(Err(error));
    }
    end(lab::demo::run(&lab::demo::DemoOptions {
        seconds: options.seconds,
        stay: options.stay,
        json: options.json,
        out: options.out,
    }))
}

/// Generators and the border of an experiment are threads of this process.
fn free_memory() -> Result<(), LabError> {
    net::free_memory_in_background().map_err(|error| {
        let problem = format!("the thread that returns memory: {error}");
        LabError::cannot_run(problem, "raise the limit of processes (ulimit -u)")
    })
}

/// `hornwork lab`.
pub fn run(command: Lab) -> ExitCode {
    if let Err(error) = free_memory() {
        return end(Err(error));
    }
    end(match command {
        Lab::List => list(),
        Lab::Subjects { name } => subjects(name.as_deref()),
        Lab::Agent(options) => lab::agent::run(&lab::agent::AgentOptions {
            listen: options.listen,
            token_file: options.token_file,
            subjects: options.subjects,
            tls: options.tls_certificate.zip(options.tls_key),
        }),
        Lab::Show { name } => lab::run::show(&name).map(|text| {
            print!("{text}");
            RunVerdict::Passed
        }),
        Lab::Run(options) => match crate::scenario::is_scenario(&options.experiment) {
            true => scenario(*options),
            false => experiment(*options),
        },
        Lab::Search(options) => search(options),
        Lab::Datasheet(options) => lab::datasheet::run(&lab::datasheet::DatasheetOptions {
            out: options.out,
            minutes: options.minutes,
            quick: options.quick,
            force: options.force,
            json: options.json,
            seed: options.seed,
        }),
        Lab::Plan(options) => crate::lab_plan::run(&options),
        Lab::Link(options) => crate::link_command::run(&options),
        Lab::Analyse {
            capture,
            json,
            keys,
        } => analyse(&capture, json.as_deref(), keys.as_deref()),
        Lab::Speech {
            reference,
            degraded,
            json,
        } => speech(&reference, &degraded, json.as_deref()),
        Lab::Conversation {
            delay_ms,
            back_ms,
            seed,
            json,
        } => conversation(
            [delay_ms, back_ms.unwrap_or(delay_ms)],
            seed,
            json.as_deref(),
        ),
        Lab::Report { dir } => report(&dir),
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
    check_results(dir)?;
    // The page of the comparison is in the directory of the other run.
    lab::run::check_places(json, None)?;
    // Studies and data sheets are compared by their rows.
    let compared = match [baseline, dir].into_iter().any(lab::raw::holds_suite) {
        true => lab::study::compare(baseline, dir, tolerance)?,
        false => lab::report::compare(baseline, dir, tolerance)?,
    };
    // Standard output is reserved for JSON if it was requested there.
    if json != Some(Path::new("-")) {
        let page = compared.page.display();
        lab::output::print(&format!("{}page: {page}\n", compared.text));
    }
    lab::run::write_json(json, &compared.json)?;
    Ok(compared.verdict)
}

fn report(dir: &Path) -> Result<RunVerdict, LabError> {
    check_results(dir)?;
    let path = lab::pages::write(dir)?;
    println!("{}", path.display());
    Ok(RunVerdict::Passed)
}

/// Checks that pages can be written into the directory of a run before its records are read. One that is missing is
/// named by its reader.
fn check_results(dir: &Path) -> Result<(), LabError> {
    match dir.is_dir() {
        true => lab::run::check_directory("DIR", dir),
        false => Ok(()),
    }
}

fn list() -> Result<RunVerdict, LabError> {
    for known in lab::run::list() {
        let about = lab::progress::duration(known.seconds);
        println!("{:<26} {about:>12}  {}", known.name, known.title);
    }
    println!("\nStudies (with --quick below 3 minutes):");
    for (name, title, seconds) in lab::study::list() {
        let about = lab::progress::duration(seconds);
        println!("{name:<26} {about:>12}  {title}");
    }
    let (name, title) = (lab::study_c::NAME, lab::study_c::TITLE);
    let about = lab::progress::duration(lab::study_c::FULL_SECONDS);
    println!("{name:<26} {about:>12}  {title}");
    Ok(RunVerdict::Passed)
}

fn subjects(name: Option<&str>) -> Result<RunVerdict, LabError> {
    if let Some(name) = name {
        print!("{}", lab::subject::show(name)?);
        return Ok(RunVerdict::Passed);
    }
    let head = ["subject", "state", "media", "description"].map(str::to_owned);
    let mut rows: Vec<[String; 4]> = vec![head];
    for listed in lab::subject::list(Path::new(lab::subject::FOLDER))? {
        rows.push(match &listed.file {
            Ok(file) => {
                let missing = file.missing();
                let state = match missing.is_empty() {
                    true => "installed".to_owned(),
                    false => format!("not installed: {}", missing.join(", ")),
                };
                let media = file.media.name().to_owned();
                [listed.name.clone(), state, media, file.title.clone()]
            }
            Err(error) => {
                let mistake = error.to_string();
                [
                    listed.name.clone(),
                    "mistake".to_owned(),
                    "-".to_owned(),
                    mistake,
                ]
            }
        });
    }
    for [name, state, media, words] in &rows {
        lab::output::print(&format!("{name:<18} {state:<28} {media:<9} {words}\n"));
    }
    Ok(RunVerdict::Passed)
}

fn scenario(options: LabRunOptions) -> Result<RunVerdict, LabError> {
    if !options.sets.is_empty() || options.out.is_some() || options.repeat.is_some() {
        return Err(LabError::bad_input(
            "--set, --out and --repeat apply to experiments only: remove them for a scenario",
        ));
    }
    if options.subject.subject.is_some() {
        return Err(LabError::bad_input(
            "--subject applies to experiments only: name the address after the scenario",
        ));
    }
    if options.no_probe {
        return Err(LabError::bad_input(
            "--no-probe applies to experiments only: a scenario has no probe",
        ));
    }
    if options.quick {
        return Err(quick_refused());
    }
    lab::run::check_apart(options.json.as_deref(), [Path::new(&options.experiment)])?;
    let mut read = options.scenario.options()?;
    read.file = options.experiment.into();
    read.json = options.json;
    read.simulate = options.simulate;
    read.seed = options.seed;
    lab::sipp::run(&read)
}

fn experiment(options: LabRunOptions) -> Result<RunVerdict, LabError> {
    options.scenario.none_given()?;
    lab::run::check_apart(options.json.as_deref(), [Path::new(&options.experiment)])?;
    let run = lab::run::RunOptions {
        set: [options.subject.sets()?, options.sets].concat(),
        json: options.json,
        out: options.out,
        simulate: options.simulate,
        seed: options.seed,
        repeat: options.repeat,
        force: options.force,
        no_probe: options.no_probe,
    };
    if options.experiment == lab::study_c::NAME {
        return lab::study_c::run(&run, options.quick);
    }
    match lab::study::is_study(&options.experiment) {
        true => lab::study::run(&options.experiment, &run, options.quick),
        false if options.quick => {
            // A mistyped study is named as such.
            if !Path::new(&options.experiment).exists() {
                lab::run::show(&options.experiment)?;
            }
            Err(quick_refused())
        }
        false => lab::run::run(&options.experiment, &run),
    }
}

fn quick_refused() -> LabError {
    LabError::bad_input("--quick applies to studies only: shorten an experiment with --set")
}

fn search(options: LabSearchOptions) -> Result<RunVerdict, LabError> {
    lab::run::check_apart(options.json.as_deref(), [Path::new(&options.experiment)])?;
    let run = lab::run::RunOptions {
        set: [options.subject.sets()?, options.sets].concat(),
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
    lab::run::check_apart(json, std::iter::once(capture).chain(keys))?;
    let mut analyser = analyse::CaptureAnalyser::default();
    if let Some(path) = keys {
        let failed = |error: String| LabError::bad_input(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let keys = protect::esp::parse_esp_capture_keys(&text);
        let keys = keys.map_err(|error| failed(error.to_string()))?;
        for note in &keys.notes {
            eprintln!("{}: {note}", path.display());
        }
        analyser = analyser.with_esp_keys(keys.lines);
    }
    // A missing capture is named first.
    if capture.exists() {
        lab::run::check_places(json, None)?;
    }
    let analysis = analyse::analyse_file_with(analyser, capture)
        .map_err(|error| LabError::bad_input(error.to_string()))?;
    if json != Some(Path::new("-")) {
        lab::output::print(&analyse::render_text(&analysis));
    }
    lab::run::write_json(json, &analysis.to_json())?;
    match &analysis.damage {
        None => Ok(RunVerdict::Passed),
        Some(damage) => Err(LabError::bad_input(format!(
            "{}: incomplete: {damage}",
            capture.display()
        ))),
    }
}

fn speech(reference: &Path, degraded: &Path, json: Option<&Path>) -> Result<RunVerdict, LabError> {
    lab::run::check_apart(json, [reference, degraded])?;
    if [reference, degraded].into_iter().all(Path::exists) {
        lab::run::check_places(json, None)?;
    }
    let comparison = lab::speech::compare_files(reference, degraded)?;
    if json != Some(Path::new("-")) {
        lab::output::print(&comparison.text());
    }
    lab::run::write_json(json, &comparison.to_json())?;
    Ok(RunVerdict::Passed)
}

fn conversation(
    delays_ms: [u64; 2],
    seed: u64,
    json: Option<&Path>,
) -> Result<RunVerdict, LabError> {
    let delays = delays_ms.map(std::time::Duration::from_millis);
    lab::run::check_places(json, None)?;
    let talk = lab::conversation::TalkOver::simulate(delays, seed);
    if json != Some(Path::new("-")) {
        lab::output::print(&talk.text());
    }
    lab::run::write_json(json, &talk.to_json())?;
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
