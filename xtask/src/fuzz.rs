//! Fuzzing: the targets of `fuzz/`, several side by side, for a stated time, and the corpora made small afterwards.

use crate::process::{installed, root};
use std::process::{Child, Command};

/// The targets; `fuzz/Cargo.toml` has one binary for each.
pub const TARGETS: [&str; 6] = ["sip", "sdp", "media", "endpoint", "border", "capture"];

/// Runs each target for the given number of seconds, side by side, then minimises its corpus.
///
/// # Errors
/// Bad arguments, cargo-fuzz missing, or a finding.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let seconds: u64 = arguments
        .first()
        .and_then(|word| word.parse().ok())
        .ok_or("say for how many seconds: cargo xtask fuzz 3600")?;
    if !installed("cargo-fuzz") {
        return Err("cargo-fuzz is missing: cargo install cargo-fuzz --locked".into());
    }
    let named = &arguments[1..];
    if let Some(unknown) = named.iter().find(|name| !TARGETS.contains(&name.as_str())) {
        return Err(format!(
            "no such target: {unknown} (there are: {})",
            TARGETS.join(", ")
        ));
    }
    let chosen: Vec<&str> = TARGETS
        .into_iter()
        .filter(|target| named.is_empty() || named.iter().any(|name| name == target))
        .collect();
    fuzz(&["build"], &[])?
        .wait()
        .map_err(|e| e.to_string())
        .and_then(|s| {
            if s.success() {
                Ok(())
            } else {
                Err("the targets do not build".into())
            }
        })?;
    let time = format!("-max_total_time={seconds}");
    let mut children = Vec::new();
    for target in chosen {
        let options = [
            "--",
            time.as_str(),
            "-max_len=8192",
            "-timeout=10",
            "-rss_limit_mb=4096",
            "-print_final_stats=1",
        ];
        children.push((target, fuzz(&["run", target], &options)?));
    }
    let mut findings = Vec::new();
    for (target, mut child) in children {
        if !child.wait().map_err(|e| e.to_string())?.success() {
            findings.push(target);
        }
    }
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "findings in: {} (see fuzz/artifacts)",
            findings.join(", ")
        ))
    }
}

/// cargo-fuzz without a sanitizer, so that the stable compiler will do; our own assertions are the judges.
fn fuzz(command: &[&str], options: &[&str]) -> Result<Child, String> {
    let (verb, rest) = command.split_first().ok_or("no command")?;
    Command::new("cargo")
        .current_dir(root())
        .arg("fuzz")
        .arg(verb)
        .args(["--sanitizer", "none", "--fuzz-dir", "fuzz"])
        .args(rest)
        .args(options)
        .spawn()
        .map_err(|e| e.to_string())
}
