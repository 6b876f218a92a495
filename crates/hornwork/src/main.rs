//! The hornwork program: the command line, and nothing that a test could not reach through it.
#![forbid(unsafe_code)]

mod configuration;
mod control;
mod findings;
mod isolate;
mod laboratory;
mod log;
mod machine;
mod node;
mod notify;
mod ports;
mod reading;
mod rules;
mod scenario;
mod security;
mod service;
mod sipp_flags;
mod sounds;
mod store;
mod threads;
mod workers;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Session border controller, UC edge, and the laboratory that measures them.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the border. SIGHUP reads the configuration again, SIGTERM drains, a second one ends at once.
    Run(service::Run),
    /// Check a configuration and say what it does; every mistake with line and remedy.
    Check(configuration::Check),
    /// Print the JSON Schema of the configuration.
    Schema(configuration::Schema),
    /// Header rules: what they make of a message.
    #[command(subcommand)]
    Rules(rules::Rules),
    /// Give voice and signalling a guaranteed share of a network interface, by their code points; prints the commands, unless told
    /// to carry them out. 2: bad input, 3: a right, a program or the interface is missing.
    Isolate(isolate::Isolate),
    /// The main job from end to end on this machine: border, exchange, phones, speech, report.
    Demo(laboratory::Demo),
    /// Experiments, reports, and the analysis of captures.
    #[command(subcommand)]
    Lab(laboratory::Lab),
}

impl Command {
    /// It prints and opens no sockets for others.
    fn only_prints(&self) -> bool {
        match self {
            Command::Check(_) | Command::Schema(_) | Command::Rules(_) => true,
            Command::Lab(lab) => {
                !matches!(lab, laboratory::Lab::Run(_) | laboratory::Lab::Search(_))
            }
            Command::Run(_) | Command::Isolate(_) | Command::Demo(_) => false,
        }
    }
}

/// How a command ends: 0 done and no threshold failed, 1 a threshold failed, 2 bad input, 3 it could not run, 4 nothing that has a
/// threshold was measured, 130 interrupted.
fn main() -> ExitCode {
    let arguments = match sipp_flags::translate(std::env::args_os().collect()) {
        Ok(arguments) => Arguments::parse_from(arguments),
        Err(text) => {
            eprintln!("hornwork: {text}");
            return ExitCode::from(2);
        }
    };
    if arguments.command.only_prints() {
        net::end_on_closed_pipe();
    }
    match arguments.command {
        Command::Run(options) => service::run(&options),
        Command::Check(options) => configuration::check(&options),
        Command::Schema(options) => configuration::schema(&options),
        Command::Rules(command) => rules::run(&command),
        Command::Isolate(options) => isolate::run(&options),
        Command::Demo(demo) => laboratory::demo(demo),
        Command::Lab(lab) => laboratory::run(lab),
    }
}
