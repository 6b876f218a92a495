//! Automation of the workspace: `cargo xtask test | tidy | docs | bench | release | fuzz`. It calls the tools and judges their answers;
//! nothing of the product depends on it.
#![forbid(unsafe_code)]

mod bench;
mod docs;
mod fuzz;
mod guided;
mod postlink;
mod process;
mod test;
mod texts;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  tidy            what a tool can hold: dependency direction, unsafe, clocks, lengths, names of tests in docs/conformance,
                  dead links, generated documents, fmt, clippy, licences
  test [ARGUMENT...]   all tests of the workspace, ARGUMENTs for the test programs; lists failed and skipped tests at the end. A failed test is
                  retried alone and fails the run unless xtask/flaky.txt names it. With HORNWORK_TEST_COMPLETE=1 a test that is skipped
                  for a missing program fails the run
  docs            write the generated documents anew
  bench [ROUNDS] [PART...]   CPU per call beside Kamailio, per standing call, of the load generator beside SIPp ...: all parts
                  unless named, 5 rounds unless told, every bar beside its figure at the end; fails where a bar is missed
  release         build the program by a profile of its own work (profile-guided optimisation), anew; bench does so for its second
                  column where there is no profile yet
  fuzz SECONDS [TARGET...]   run the fuzz targets, all of them unless named, SECONDS each, side by side";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("test") => test::run(&arguments[1..]),
        Some("docs") => docs::write(),
        Some("bench") => bench::run(&arguments[1..]),
        Some("release") => guided::run(),
        Some("fuzz") => fuzz::run(&arguments[1..]),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
