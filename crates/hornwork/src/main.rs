//! The hornwork program: the command line. All behaviour is reachable by tests through it.
#![forbid(unsafe_code)]

// First, because its macros apply to the modules after it.
#[macro_use]
mod output;

mod alarms;
mod announcement;
mod background_read;
mod bearer_token;
mod call_tap;
mod capacity;
mod configuration;
mod control;
mod cpu_time;
mod ctl;
mod driver_setup;
mod event_output;
mod findings;
mod full_disk;
mod gateway;
mod history;
mod http;
mod http_client;
mod ike;
mod isolate;
mod lab_commands;
mod lab_plan;
mod link_command;
mod log;
mod machine;
mod media_node;
mod media_path;
mod metrics;
mod name_service;
mod next_start;
mod notify;
mod operators;
mod phone;
mod phone_ike;
mod ports;
mod records;
mod reload_waiters;
mod rules;
mod scenario;
mod secret_file;
mod security;
mod service;
mod shell;
mod sipp_flags;
mod sound_card;
mod sounds;
mod store;
mod threads;
mod top;
mod trace;
mod traces;
mod web;
mod workers;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::sync::LazyLock;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Session border controller with test lab
#[derive(Debug, Parser)]
#[command(version = VERSION.as_str(), about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

/// Version, commit, and the parts of the build that depend on the machine that built it.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let feature = |name: &str, present: bool| format!("{}{name}", if present { '+' } else { '-' });
    format!(
        "{}\ncommit {}\n{} {} {}",
        env!("CARGO_PKG_VERSION"),
        env!("HORNWORK_COMMIT"),
        feature("bpf", net::BPF_PRESENT),
        feature("g729", codec::Kind::G729.is_available()),
        std::env::consts::ARCH,
    )
});

/// The same in one line.
static VERSION_LINE: LazyLock<String> = LazyLock::new(|| VERSION.replace('\n', ", "));

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the border or media node; SIGHUP reloads the configuration, SIGTERM drains, a second SIGTERM stops at once.
    Run(service::ServeOptions),
    /// Operate a running border: calls, registrations, trunks, limits, alarms.
    Ctl(ctl::ControlOptions),
    /// Watch a running border: rates, calls, media, CPU, drops, alarms.
    Top(top::TopOptions),
    /// Check a configuration; prints a summary, or every mistake with its line and remedy.
    Check(configuration::CheckOptions),
    /// Print the JSON Schema of the configuration.
    Schema(configuration::Schema),
    /// Test header rules on a message.
    #[command(
        subcommand,
        after_help = "Example: hornwork rules try examples/header-rules.toml < message"
    )]
    Rules(rules::Rules),
    /// Reserve shares of a network interface for voice and signalling, by code point.
    ///
    /// Prints the commands unless --do apply is given. Exit status 2: invalid input, 3: a right, a program or the
    /// interface is missing.
    Isolate(isolate::Isolate),
    /// Demonstrate border, PBX, phones and calls with speech on this machine, with a report.
    Demo(lab_commands::Demo),
    /// Test lab: run experiments, write reports, analyse captures.
    #[command(
        subcommand,
        after_help = "Example: hornwork lab run small-network --simulate --seed 7 --out results/a"
    )]
    Lab(lab_commands::Lab),
    /// Softphone: register a user, call, answer; audio from and to WAV files.
    #[command(subcommand, after_help = "Example: hornwork phone speech hello.wav")]
    Phone(phone::PhoneSubcommand),
    /// Find calls and messages in the store of a border; with a Call-ID, print the ladder of the call.
    Trace(Box<trace::Trace>),
    /// Prepare users of the web console: hashes of passwords and tokens.
    #[command(subcommand, after_help = "Example: hornwork console token")]
    Console(web::ConsoleCommand),
    /// Print completions for a shell.
    Completions(shell::Completions),
    /// Write manual pages, one for each command.
    Man(shell::Man),
}

impl Command {
    /// Whether the command only prints, and accepts no connections.
    fn only_prints(&self) -> bool {
        match self {
            Command::Check(_)
            | Command::Schema(_)
            | Command::Ctl(_)
            | Command::Top(_)
            | Command::Rules(_)
            | Command::Trace(_)
            | Command::Console(_)
            | Command::Completions(_)
            | Command::Man(_) => true,
            Command::Lab(lab) => !matches!(
                lab,
                lab_commands::Lab::Run(_)
                    | lab_commands::Lab::Search(_)
                    | lab_commands::Lab::Datasheet(_)
                    | lab_commands::Lab::Link(_)
            ),
            Command::Run(_) | Command::Isolate(_) | Command::Demo(_) | Command::Phone(_) => false,
        }
    }
}

/// Exit codes: 0 success and no failed threshold, 1 failed threshold, 2 invalid input, 3 cannot run or standard output
/// lost, 4 no figure with a threshold was measured, 130 interrupted.
fn main() -> ExitCode {
    // This process is to become the daemon of the key exchange; it has one thread until then.
    if let Some(code) = ike::ike_daemon() {
        return code;
    }
    let arguments = match sipp_flags::translate(std::env::args_os().collect()) {
        Ok(arguments) => Arguments::try_parse_from(arguments),
        Err(text) => {
            eprintln!("hornwork: {text}");
            return ExitCode::from(2);
        }
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => error.exit(),
        Err(text) => return output::help(&text),
    };
    let Some(command) = arguments.command else {
        return shell::next_steps();
    };
    if command.only_prints() {
        net::end_on_closed_pipe();
    }
    output::end(run(command))
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Run(options) => service::run(&options),
        Command::Ctl(options) => ctl::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Check(options) => configuration::check(&options),
        Command::Schema(options) if options.has_metrics() => {
            print!("{}", metrics::markdown());
            ExitCode::SUCCESS
        }
        Command::Schema(options) => configuration::schema(&options),
        Command::Rules(command) => rules::run(&command),
        Command::Isolate(options) => isolate::run(&options),
        Command::Demo(demo) => lab_commands::demo(demo),
        Command::Lab(lab) => lab_commands::run(lab),
        Command::Phone(command) => lab_commands::end(phone::run(command)),
        Command::Trace(options) => trace::run(&options),
        Command::Console(command) => web::run(&command),
        Command::Completions(options) => shell::completions::<Arguments>(&options),
        Command::Man(options) => shell::man::<Arguments>(&options, &VERSION_LINE),
    }
}
