//! The test suite. Every test program of the workspace runs on its own; failed and skipped tests are listed at the end.
//!
//! Tests with other programs mostly wait. Their test programs ([`FIRST`]) are built and started first. At idle priority
//! beside them, unit tests are built and run, doc tests run, and so do tests that only compute. `schedule.rs` has the
//! order.
//!
//! A test that fails is run again, alone. If it passes [`RETRIES`] times in turn it is flaky: shown with its message at
//! the end of the run. Flaky tests that `xtask/flaky.txt` does not name with a reason are a failure of the run from
//! [`MAX_UNNAMED`] on: a machine that stalls makes one or two fail, a race in the program makes more.

use crate::process::{features, root};
use crate::schedule::{self, Part, Schedule, reasons, run_of};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// With this environment variable, a test that is skipped because a program is not installed is a failure.
const COMPLETE: &str = "HORNWORK_TEST_COMPLETE";
/// The known flaky tests.
const FLAKY: &str = "xtask/flaky.txt";
/// Times that a failed test must pass alone to be flaky.
const RETRIES: u32 = 3;
/// Flaky tests without a reason in [`FLAKY`] that fail a run.
const MAX_UNNAMED: usize = 3;
/// Lines of the output of a failed test that are shown again at the end: so many of its beginning and of its end.
const MESSAGE_LINES: usize = 12;
/// The line after which the output of a failed test has only the stack.
const STACK: &str = "stack backtrace:";
/// Beginning of the line that ends the stack.
const NOTE: &str = "note: ";
/// Cargo's arguments for the first build: the test programs in `tests` of each crate, and the programs that they start.
const FIRST: [&str; 2] = ["--test", "*"];
/// Cargo's arguments for the second build: the unit tests. Clippy (`cargo xtask tidy`) compiles the examples.
const REST: [&str; 2] = ["--lib", "--bins"];
/// Mark of a skipped test in its output.
const SKIPPED: &str = "skipped: ";
/// Beginning of a reason that the installation of a package removes.
const MISSING: &str = "not installed";

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// Crate and target: `border suite`.
    name: String,
    executable: PathBuf,
    /// The folder of its crate, which is its working folder.
    folder: PathBuf,
}

/// The outcome of one program, or of all.
#[derive(Debug, Default)]
struct Outcome {
    passed: u32,
    ignored: u32,
    failed: Vec<String>,
    /// Test and its output, without the stack.
    messages: Vec<(String, String)>,
    /// Test and reason.
    skipped: Vec<(String, String)>,
    /// The program ended without a summary line.
    aborted: bool,
}

/// Runs all tests of the workspace; `arguments` go to the test programs (a filter, `--test-threads=1`). With arguments,
/// no test runs apart and the number of threads is that of the test program.
///
/// # Errors
/// Tests do not build or fail; a test program aborts; a test is skipped for a missing program where [`COMPLETE`] is
/// set.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let mut run = Run {
        arguments: arguments.to_vec(),
        known_flaky: reasons(FLAKY)?,
        schedule: Schedule::read()?,
        ..Run::default()
    };
    let mut first = build(&FIRST, Priority::Normal)?;
    // The sort is stable: the others keep cargo's order.
    first.sort_by_key(|program| !schedule::is_first(&program.name));
    let idle = Idle::start(&first, &run);
    for program in &first {
        run.program(program)?;
    }
    // Tests that the load of others would decide follow when nothing else runs.
    let rest = run.join(idle)?;
    if arguments.is_empty() {
        for part in [Part::Quiet, Part::Apart] {
            for program in first.iter().chain(&rest) {
                run.later(program, part)?;
            }
        }
    } else {
        for program in &rest {
            run.program(program)?;
        }
    }
    run.end(first.len() + rest.len())
}

/// Builds and tests at idle priority, beside the tests of other programs.
struct Idle {
    builds: std::thread::JoinHandle<UnitTests>,
    /// Runs the tests that compute.
    computes: std::thread::JoinHandle<Result<Vec<Finished>, String>>,
}

/// The unit tests and the examples of the documentation.
struct UnitTests {
    programs: Result<Vec<Program>, String>,
    /// Those that have run.
    finished: Result<Vec<Finished>, String>,
    documentation: Result<(), String>,
}

/// A test program that has run at idle priority.
struct Finished {
    program: Program,
    outcome: Outcome,
    output: String,
    seconds: u64,
}

impl Idle {
    /// Starts the builds. Runs the unit tests, and the tests of these programs that compute, unless the run has
    /// arguments.
    fn start(programs: &[Program], run: &Run) -> Self {
        let has_arguments = !run.arguments.is_empty();
        let programs = match has_arguments {
            true => Vec::new(),
            false => programs.to_vec(),
        };
        let (schedule, of_units) = (run.schedule.clone(), run.schedule.clone());
        let computes = move || {
            let each = programs.iter();
            each.filter_map(|program| computed(program, &schedule))
                .collect()
        };
        Self {
            builds: std::thread::spawn(move || unit_tests(!has_arguments, &of_units)),
            computes: std::thread::spawn(computes),
        }
    }
}

/// Builds the unit tests and runs them, except those that follow later.
fn unit_tests(run: bool, schedule: &Schedule) -> UnitTests {
    let programs = build(&REST, Priority::Idle);
    let beside = |program: &Program| {
        let names = names(program)?;
        let beside = schedule.tests(&program.name, &names, Part::Beside);
        let arguments = match beside.len() == names.len() {
            true => Vec::new(),
            false => run_of(None, &beside),
        };
        at_idle_priority(program, &arguments)
    };
    let all = programs.iter().flatten().filter(|_| run);
    let finished = all.map(beside).collect();
    UnitTests {
        programs,
        finished,
        documentation: documentation(),
    }
}

/// Runs the tests of a program that compute, if it has any.
fn computed(program: &Program, schedule: &Schedule) -> Option<Result<Finished, String>> {
    let run = || {
        let names = names(program)?;
        schedule::check(&program.name, &names)?;
        let tests = schedule.tests(&program.name, &names, Part::Idle);
        match tests.is_empty() {
            true => Ok(None),
            false => at_idle_priority(program, &run_of(None, &tests)).map(Some),
        }
    };
    run().transpose()
}

/// Runs a test program at idle priority.
fn at_idle_priority(program: &Program, arguments: &[String]) -> Result<Finished, String> {
    let begin = Instant::now();
    let (outcome, output) = execute(program, arguments, Priority::Idle, false)?;
    Ok(Finished {
        program: program.clone(),
        outcome,
        output,
        seconds: begin.elapsed().as_secs(),
    })
}

/// A run of all test programs.
#[derive(Debug, Default)]
struct Run {
    arguments: Vec<String>,
    /// Tests that the list names, with the reasons.
    known_flaky: Vec<(String, String)>,
    schedule: Schedule,
    all: Outcome,
    problems: Vec<String>,
    failed: usize,
    /// Flaky tests with a reason in the list.
    named: Vec<String>,
    /// Flaky tests without one.
    unnamed: Vec<String>,
}

impl Run {
    /// Runs one test program, and its failed tests again.
    fn program(&mut self, program: &Program) -> Result<(), String> {
        if !self.arguments.is_empty() {
            let arguments = [self.arguments.clone()];
            return self.runs(program, "", &arguments);
        }
        let names = names(program)?;
        let runs = self.schedule.runs(&program.name, &names, Part::Beside);
        self.runs(program, "", &runs)
    }

    /// Runs the tests of a program that follow after all programs, in this part.
    fn later(&mut self, program: &Program, part: Part) -> Result<(), String> {
        if !self.schedule.has_later_tests(&program.name) {
            return Ok(());
        }
        let names = names(program)?;
        let runs = self.schedule.runs(&program.name, &names, part);
        let how = match part {
            Part::Apart => ", one at a time",
            Part::Idle | Part::Beside | Part::Quiet => ", on idle processors",
        };
        self.runs(program, how, &runs)
    }

    /// Runs a test program with each of the lists of arguments at the same time, if there are any.
    fn runs(&mut self, program: &Program, how: &str, runs: &[Vec<String>]) -> Result<(), String> {
        if runs.is_empty() {
            return Ok(());
        }
        println!("\n== {}{how}", program.name);
        let begin = Instant::now();
        for outcome in side_by_side(program, runs)? {
            self.add(program, outcome)?;
        }
        println!("{}{how}: {} s", program.name, begin.elapsed().as_secs());
        Ok(())
    }

    /// Adds the outcome of a program; runs its failed tests again.
    fn add(&mut self, program: &Program, outcome: Outcome) -> Result<(), String> {
        if outcome.aborted {
            self.problems.push(format!("{}: aborted", program.name));
        }
        for test in &outcome.failed {
            self.retry(program, test)?;
        }
        self.all.add(&program.name, outcome);
        Ok(())
    }

    /// Waits for the builds and tests at idle priority. The results of the programs that ran are kept in any case.
    /// Gives the programs of the unit tests.
    fn join(&mut self, idle: Idle) -> Result<Vec<Program>, String> {
        let panicked = |_| "a thread has panicked";
        let computed = idle.computes.join().map_err(panicked)?;
        let units = idle.builds.join().map_err(panicked)?;
        self.problems.extend(units.documentation.err());
        for finished in [computed, units.finished] {
            match finished {
                Ok(finished) => finished.into_iter().try_for_each(|run| self.show(run))?,
                Err(why) => self.problems.push(why),
            }
        }
        Ok(units.programs.unwrap_or_else(|why| {
            self.problems.push(why);
            Vec::new()
        }))
    }

    /// Shows the output of a test program, and adds its outcome.
    fn show(&mut self, finished: Finished) -> Result<(), String> {
        let Finished {
            program,
            outcome,
            output,
            seconds,
        } = finished;
        println!("\n== {}, at idle priority", program.name);
        print!("{output}");
        self.add(&program, outcome)?;
        println!("{}: {seconds} s at idle priority", program.name);
        Ok(())
    }

    /// Decides whether a failed test is flaky.
    fn retry(&mut self, program: &Program, test: &str) -> Result<(), String> {
        let name = format!("{} {test}", program.name);
        if !passes_alone(program, test)? {
            self.failed += 1;
            self.problems
                .push(format!("{name}: failed, and failed alone"));
            return Ok(());
        }
        match self.known_flaky.iter().find(|(known, _)| *known == name) {
            Some((_, why)) => self.named.push(format!("{name}: {why}")),
            None => self.unnamed.push(format!("{name}: no reason in {FLAKY}")),
        }
        Ok(())
    }

    /// Counts flaky tests without a reason as failures from [`MAX_UNNAMED`] on.
    fn judge_flaky(&mut self) {
        if self.unnamed.len() >= MAX_UNNAMED {
            self.failed += self.unnamed.len();
            self.problems.extend(
                self.unnamed
                    .iter()
                    .map(|test| format!("flaky, {} of them: {test}", self.unnamed.len())),
            );
        }
        self.named.append(&mut self.unnamed);
    }

    /// Prints the summary; the verdict over all test programs.
    fn end(mut self, programs: usize) -> Result<(), String> {
        self.judge_flaky();
        summary(&self.all, self.failed, &self.named, programs);
        let complete = std::env::var_os(COMPLETE).is_some_and(|value| !value.is_empty());
        for (test, why) in &self.all.skipped {
            if complete && why.starts_with(MISSING) {
                self.problems.push(format!("{test}: skipped, {why}"));
            }
        }
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(format!("failed:\n  {}", self.problems.join("\n  "))),
        }
    }
}

/// The names of the tests of a program.
fn names(program: &Program) -> Result<Vec<String>, String> {
    let fail = |error| format!("{}: {error}", program.executable.display());
    let output = Command::new(&program.executable)
        .current_dir(&program.folder)
        .args(["--list", "--format", "terse"])
        .output()
        .map_err(fail)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}

/// Runs a test program with each of the lists of arguments at the same time. The output of the second one and of
/// further ones is shown after that of the first.
fn side_by_side(program: &Program, runs: &[Vec<String>]) -> Result<Vec<Outcome>, String> {
    std::thread::scope(|scope| {
        let start = |(number, arguments): (usize, &Vec<String>)| {
            let arguments = arguments.clone();
            scope.spawn(move || execute(program, &arguments, Priority::Normal, number == 0))
        };
        let running: Vec<_> = runs.iter().enumerate().map(start).collect();
        let mut outcomes = Vec::new();
        for run in running {
            let (outcome, later) = run.join().map_err(|_| "a thread has panicked")??;
            print!("{later}");
            outcomes.push(outcome);
        }
        Ok(outcomes)
    })
}

impl Outcome {
    fn add(&mut self, program: &str, other: Outcome) {
        self.passed += other.passed;
        self.ignored += other.ignored;
        let named = |test: String| format!("{program} {test}");
        self.failed.extend(other.failed.into_iter().map(named));
        let messages = other.messages.into_iter();
        self.messages
            .extend(messages.map(|(test, text)| (named(test), text)));
        let skipped = other.skipped.into_iter();
        self.skipped
            .extend(skipped.map(|(test, why)| (named(test), why)));
    }
}

/// The beginning and the end of a message, [`MESSAGE_LINES`] each.
fn excerpt(text: &str) -> impl Iterator<Item = &str> {
    let from_end = text.lines().count().saturating_sub(MESSAGE_LINES);
    let lines = text.lines().enumerate();
    lines
        .filter(move |(number, _)| *number < MESSAGE_LINES || *number >= from_end)
        .map(|(_, line)| line)
}

fn summary(all: &Outcome, failed: usize, flaky: &[String], programs: usize) {
    println!("\n== skipped");
    for (test, why) in &all.skipped {
        println!("  {test}: {why}");
    }
    if !all.messages.is_empty() {
        println!("messages of failed and flaky tests:");
        for (test, text) in &all.messages {
            println!("  {test}:");
            excerpt(text).for_each(|line| println!("    {line}"));
        }
    }
    for test in flaky {
        println!("flaky, passed {RETRIES} times alone: {test}");
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {} passed; {failed} failed; {} flaky; {} ignored; {} skipped; {programs} test programs",
        all.passed,
        flaky.len(),
        all.ignored,
        all.skipped.len(),
    );
    println!("{} skipped", all.skipped.len());
}

/// Runs a failed test again, alone, [`RETRIES`] times; whether it passes each time.
fn passes_alone(program: &Program, test: &str) -> Result<bool, String> {
    let exact = ["--exact", test, "--test-threads=1"].map(str::to_owned);
    for retry in 1..=RETRIES {
        println!("\n== retried alone, {retry}: {} {test}", program.name);
        let (outcome, _) = execute(program, &exact, Priority::Normal, true)?;
        if outcome.aborted || !outcome.failed.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Priority of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Priority {
    Normal,
    /// SCHED_IDLE, if `chrt` is installed.
    Idle,
}

/// The command that runs a program.
fn command(program: &Path, priority: Priority) -> Command {
    let chrt = || Command::new("chrt").arg("--version").output().is_ok();
    if priority == Priority::Normal || !chrt() {
        return Command::new(program);
    }
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(program);
    command
}

fn cargo(priority: Priority) -> Command {
    let mut command = command(Path::new("cargo"), priority);
    command.current_dir(root());
    command
}

/// Builds the test programs that `targets` selects (arguments of cargo's), and gives them in cargo's order. A build at
/// idle priority shows no progress: it runs beside tests.
fn build(targets: &[&str], priority: Priority) -> Result<Vec<Program>, String> {
    let mut child = cargo(priority)
        .args(["test", "--locked", "--workspace", "--no-run"])
        .args(features())
        .args(targets)
        .args((priority == Priority::Idle).then_some("--quiet"))
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo: {error}"))?;
    let stdout = child.stdout.take().ok_or("cargo has no output")?;
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let programs: Vec<Program> = lines.filter_map(|line| artifact(&line)).collect();
    let status = child.wait().map_err(|error| error.to_string())?;
    match status.success() {
        true if programs.is_empty() => Err("cargo built no test program".into()),
        true => Ok(programs),
        false => Err("the tests do not build".into()),
    }
}

/// The test program that a message of cargo's names.
fn artifact(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let target = match message["target"]["kind"][0].as_str()? {
        "test" => message["target"]["name"].as_str()?,
        _ => "unit tests",
    };
    Some(Program {
        name: format!("{package} {target}"),
        executable: message["executable"].as_str()?.into(),
        folder,
    })
}

/// Runs one test program. Its output is shown at once or returned, except that of tests that passed.
fn execute(
    program: &Program,
    arguments: &[String],
    priority: Priority,
    show: bool,
) -> Result<(Outcome, String), String> {
    let fail = |error| format!("{}: {error}", program.executable.display());
    let mut child = command(&program.executable, priority)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .arg("--show-output")
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let mut reader = Reader::default();
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    let mut later = String::new();
    // Tests may print bytes that are not UTF-8.
    while lines.read_until(b'\n', &mut line).map_err(fail)? > 0 {
        let text = String::from_utf8_lossy(&line);
        if reader.take(text.trim_end_matches(['\n', '\r'])) {
            match show {
                true => print!("{text}"),
                false => later.push_str(&text),
            }
        }
        line.clear();
    }
    let status = child.wait().map_err(fail)?;
    let mut outcome = reader.outcome;
    outcome.aborted = !reader.ended || (!status.success() && outcome.failed.is_empty());
    if outcome.aborted {
        println!("{}: {status}", program.name);
    }
    Ok((outcome, later))
}

/// Reads the output of a test program (libtest's with `--show-output`).
#[derive(Debug, Default)]
struct Reader {
    outcome: Outcome,
    /// Within the output of passed tests.
    successes: bool,
    /// Within the output of failed tests.
    failures: bool,
    /// Within the stack of a failed test.
    stack: bool,
    /// The test whose output this is.
    test: String,
    ended: bool,
}

impl Reader {
    /// Takes one line; whether it is to be shown.
    fn take(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.successes = true;
        } else if line == "failures:" {
            self.successes = false;
            self.failures = true;
            self.test.clear();
        } else if let Some(figures) = line.strip_prefix("test result: ") {
            self.successes = false;
            self.ended = true;
            self.outcome.passed += figure(figures, " passed");
            self.outcome.ignored += figure(figures, " ignored");
        } else if self.successes {
            self.success(line);
        } else if self.failures {
            self.failure(line);
        } else if let Some(test) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            let test = test.strip_suffix(" - should panic").unwrap_or(test);
            self.outcome.failed.push(test.to_owned());
        }
        !self.successes
    }

    /// Keeps the output of a failed test.
    fn failure(&mut self, line: &str) {
        if let Some(test) = heading(line) {
            self.test = test.to_owned();
            self.outcome.messages.push((test.to_owned(), String::new()));
            self.stack = false;
            // Output of a child process may stand between the name of a test and its result.
            if !self.outcome.failed.contains(&self.test) {
                self.outcome.failed.push(self.test.clone());
            }
        } else if line == STACK {
            self.stack = true;
        } else if self.stack && line.starts_with(NOTE) {
            self.stack = false;
        } else if !self.test.is_empty()
            && !line.is_empty()
            && !self.stack
            && let Some((_, text)) = self.outcome.messages.last_mut()
        {
            text.push_str(line);
            text.push('\n');
        }
    }

    fn success(&mut self, line: &str) {
        if let Some(test) = heading(line) {
            self.test = test.to_owned();
        } else if let Some(why) = line.strip_prefix(SKIPPED) {
            let skipped = (self.test.clone(), why.to_owned());
            if !self.outcome.skipped.contains(&skipped) {
                self.outcome.skipped.push(skipped);
            }
        }
    }
}

/// The test whose output begins with this line.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The number before a word in libtest's summary: `ok. 3 passed; 0 failed; ...`.
fn figure(summary: &str, word: &str) -> u32 {
    let part = summary.split([';', '.']).find_map(|part| {
        let number = part.strip_suffix(word)?;
        number.trim().parse().ok()
    });
    part.unwrap_or(0)
}

/// Runs the examples of the documentation.
fn documentation() -> Result<(), String> {
    let output = cargo(Priority::Idle)
        .args(["test", "--locked", "--workspace", "--doc", "--quiet"])
        .args(features())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "examples of the documentation:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
running 6 tests
test mixed ... a line of a child process
FAILED
test calls::end ... ok
test calls::begin ... ok
test peers::chromium ... ok
test wrong ... FAILED
test panics - should panic ... FAILED

successes:

---- calls::begin stdout ----
failures are counted
skipped: no right to a network namespace
skipped: no right to a network namespace

---- peers::chromium stdout ----
skipped: not installed: [\"chromium\"]


successes:
    calls::begin
    calls::end
    peers::chromium

failures:

---- wrong stdout ----
thread 'wrong' panicked
stack backtrace:
   0: __rustc::rust_begin_unwind
note: Some details are omitted
left: 1

---- mixed stdout ----
thread 'mixed' panicked

failures:
    wrong
    mixed

test result: FAILED. 3 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn failed_and_skipped_tests_are_found_in_the_output() {
        let mut reader = Reader::default();
        let shown: Vec<&str> = SAID.lines().filter(|line| reader.take(line)).collect();
        assert!(reader.ended);
        let outcome = reader.outcome;
        assert_eq!((outcome.passed, outcome.ignored), (3, 1));
        assert_eq!(outcome.failed, ["wrong", "panics", "mixed"]);
        let message = |(test, more): (&str, &str)| {
            (test.to_owned(), format!("thread '{test}' panicked\n{more}"))
        };
        assert_eq!(
            outcome.messages,
            [("wrong", "left: 1\n"), ("mixed", "")].map(message)
        );
        let long: String = (0..100).map(|number| format!("{number}\n")).collect();
        let ends: Vec<&str> = excerpt(&long).collect();
        assert_eq!(ends.len(), 2 * MESSAGE_LINES);
        assert_eq!((ends[0], ends[MESSAGE_LINES]), ("0", "88"));
        assert_eq!(excerpt("one").count(), 1);
        let skipped: Vec<(&str, &str)> = outcome
            .skipped
            .iter()
            .map(|(test, why)| (test.as_str(), why.as_str()))
            .collect();
        assert_eq!(
            skipped,
            [
                ("calls::begin", "no right to a network namespace"),
                ("peers::chromium", "not installed: [\"chromium\"]"),
            ]
        );
        assert!(shown.contains(&"thread 'wrong' panicked"));
        assert!(!shown.contains(&"failures are counted"));
    }

    #[test]
    fn a_program_that_ends_without_a_summary_has_aborted() {
        let program = Program {
            name: "shell".into(),
            executable: "/bin/false".into(),
            folder: "/".into(),
        };
        let (outcome, _) = execute(&program, &[], Priority::Normal, true).expect("it starts");
        assert!(outcome.aborted);
    }

    #[test]
    fn test_programs_are_found_in_the_messages_of_cargo() {
        let line = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/lab/Cargo.toml","target":{{"kind":["{kind}"],"name":"suite"}},"profile":{{"test":{test}}},"executable":"/w/target/debug/deps/suite-1"}}"#
            )
        };
        let program = artifact(&line("test", true)).expect("a test program");
        assert_eq!(program.name, "lab suite");
        assert_eq!(program.folder, Path::new("/w/crates/lab"));
        let unit = artifact(&line("lib", true)).expect("a test program");
        assert_eq!(unit.name, "lab unit tests");
        assert_eq!(artifact(&line("bin", false)), None);
        assert_eq!(artifact("not a message"), None);
    }

    #[test]
    fn three_flaky_tests_without_a_reason_fail_the_run() {
        let judged = |flaky: usize| {
            let mut run = Run {
                unnamed: vec!["lab suite run::load: no reason".to_owned(); flaky],
                ..Run::default()
            };
            run.judge_flaky();
            assert_eq!(run.named.len(), flaky);
            (run.failed, run.problems)
        };
        assert_eq!(judged(2), (0, Vec::new()));
        let problem = "flaky, 3 of them: lab suite run::load: no reason".to_owned();
        assert_eq!(judged(3), (3, vec![problem; 3]));
        // A name that no test has would excuse nothing.
        let tests = crate::texts::tests(&crate::texts::tracked().expect("tracked files"));
        for (name, _) in reasons(FLAKY).expect("the list of this repository") {
            let test = name.rsplit([':', ' ']).next().expect("a test");
            assert!(tests.contains(test), "{name}");
        }
    }
}
