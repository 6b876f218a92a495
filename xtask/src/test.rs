//! The suite. Many of its tests run real programs against each other in real time, on machines that take a processor away for
//! longer than any limit that would still mean something. So what fails beside all the others is asked once more, alone: a
//! mistake fails again. What only failed in company is named at the end, for it may still be a race.

use crate::process::root;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// More than so many failing programs are not noise; they are not asked again.
const DOUBTS: usize = 4;

/// Runs all tests of the workspace; `arguments` go to `cargo test`.
///
/// # Errors
/// What does not build, and the test programs that failed twice.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let Err(failed) = cargo(&["--workspace", "--no-fail-fast"], arguments, &[])? else {
        return Ok(());
    };
    if failed.is_empty() {
        return Err("the tests do not build".into());
    }
    if failed.len() > DOUBTS {
        return Err(format!("{} test programs failed", failed.len()));
    }
    let mut twice = Vec::new();
    for program in &failed {
        println!("asked again, alone: {program}");
        if cargo(&again(program), arguments, &["--test-threads=1"])?.is_err() {
            twice.push(program.as_str());
        }
    }
    for program in &failed {
        if !twice.contains(&program.as_str()) {
            println!("unsteady: {program} failed beside the others and passed alone");
        }
    }
    match twice.is_empty() {
        true => Ok(()),
        false => Err(format!("failed twice: {}", twice.join(", "))),
    }
}

/// The words that have one program run. A test by its name stays among the whole workspace: for its package alone, cargo would
/// choose other features of the libraries and build them anew.
fn again(program: &str) -> Vec<&str> {
    let words: Vec<&str> = program.split_whitespace().collect();
    match words.as_slice() {
        ["-p", _, "--test", name] => vec!["--workspace", "--test", name],
        _ => words,
    }
}

/// Runs `cargo test`, shown as it runs. Gives the programs that failed, as cargo would be asked for them.
fn cargo(
    which: &[&str],
    arguments: &[String],
    tests: &[&str],
) -> Result<Result<(), Vec<String>>, String> {
    let mut command = Command::new("cargo");
    command
        .current_dir(root())
        .arg("test")
        .arg("--locked")
        .args(which)
        .args(arguments);
    if !tests.is_empty() {
        command.arg("--").args(tests);
    }
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo test: {error}"))?;
    let mut said = Vec::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            eprintln!("{line}");
            said.push(line);
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(match status.success() {
        true => Ok(()),
        false => Err(failures(&said)),
    })
}

/// The programs that cargo names as failed: ``error: test failed, to rerun pass `-p lab --test run` ``.
fn failures(said: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in said {
        let named = line
            .split_once("to rerun pass `")
            .and_then(|(_, rest)| rest.split_once('`'));
        if let Some((program, _)) = named
            && !found.iter().any(|known| known == program)
        {
            found.push(program.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_programs_are_found_in_what_cargo_says() {
        let said = [
            "   Compiling lab v0.1.0",
            "     Running tests/run.rs (target/debug/deps/run-0123456789abcdef)",
            "error: test failed, to rerun pass `-p lab --test run`",
            "error: doctest failed, to rerun pass `-p engine --doc`",
            "error: 2 targets failed:",
            "    `-p lab --test run`",
            "    `-p engine --doc`",
        ];
        let said: Vec<String> = said.iter().map(ToString::to_string).collect();
        assert_eq!(failures(&said), ["-p lab --test run", "-p engine --doc"]);
        assert_eq!(again("-p lab --test run"), ["--workspace", "--test", "run"]);
        assert_eq!(again("-p engine --doc"), ["-p", "engine", "--doc"]);
        assert!(failures(&["error: could not compile `lab`".to_owned()]).is_empty());
    }
}
