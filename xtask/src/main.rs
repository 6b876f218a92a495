//! Automation of the workspace: `cargo xtask test | tidy | docs | bench | release | fuzz | additions | sbom`. The
//! product does not depend on it.
#![forbid(unsafe_code)]

mod additions;
mod bench;
mod benchmarks;
mod costs;
mod docs;
mod fuzz;
mod guided;
mod language;
mod methods;
mod pages;
mod postlink;
mod process;
mod prose;
mod sbom;
mod schedule;
mod structure;
mod subjects;
mod test;
mod texts;
mod tidy;
mod tunnel_load;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  tidy            check dependency direction, unsafe, clocks, language, structure, names of tests in docs/conformance, dead links,
                  length of lines of prose, generated documents, built pages of the console, places of additions, commit
                  subjects, fmt, clippy, licences
  test [ARGUMENT...]   all tests of the workspace, ARGUMENTs for the test programs; lists failed and skipped tests at the end. A failed test is
                  flaky if it then passes three times alone; three flaky tests that xtask/flaky.txt does not name fail the run.
                  Tests of xtask/quiet.txt follow three at a time, those of xtask/apart.txt one at a time.
                  With HORNWORK_TEST_COMPLETE=1 a test that is skipped for a missing program fails the run
  docs            regenerate the documents, wrap the prose of all pages and comments
  bench [ROUNDS] [PART...]   CPU per call beside Kamailio, memory per call, load generator beside SIPp ...: all parts
                  and 5 rounds by default, every bar beside its figure at the end; fails if a bar is missed.
                  HORNWORK_PROGRAM=PATH measures that program in place of a release build
  release         build the program with profile-guided optimisation and a new profile; bench does so for its second column
                  if there is no profile yet
  fuzz SECONDS [TARGET...]   run the fuzz targets, all by default, SECONDS each, in parallel
  additions       add a key, an event, a refusal reason, a codec and a rule action to a copy of the tree, build it, and use them
  sbom [FILE]     write the software bill of materials (CycloneDX 1.5, JSON) to FILE, by default target/hornwork.cdx.json; - is
                  standard output
  tunnel-load     one end of the load of `bench gateway`, which starts it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("test") => test::run(&arguments[1..]),
        Some("docs") => docs::write().and_then(|()| prose::write()),
        Some("bench") => bench::run(&arguments[1..]),
        Some("release") => guided::run(),
        Some("fuzz") => fuzz::run(&arguments[1..]),
        Some("additions") => additions::run(),
        Some("tunnel-load") => tunnel_load::run(&arguments[1..]),
        Some("sbom") => sbom::write(&arguments.get(1).cloned().unwrap_or_else(sbom::default_file)),
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
