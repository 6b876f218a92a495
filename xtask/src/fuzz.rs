//! Fuzzing: the targets of `fuzz/`, several side by side, for a stated time; then each corpus is made small and packed
//! into one file, which the tests replay. Corpora grow from `fuzz/seeds`, which we wrote; third-party messages are
//! excluded.

use crate::process::{installed, root};
use std::path::PathBuf;
use std::process::{Child, Command};

/// The targets; `fuzz/Cargo.toml` has one binary for each.
pub const TARGETS: [&str; 16] = [
    "sip",
    "sdp",
    "media",
    "endpoint",
    "border",
    "capture",
    "srtp",
    "esp",
    "ike",
    "codec",
    "rules",
    "ws",
    "scenario_xml",
    "ng",
    "ice",
    "transcode",
];

/// Runs each target for the given number of seconds, side by side, then minimises its corpus.
///
/// # Errors
/// Bad arguments, cargo-fuzz missing, or a finding.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let seconds: u64 = arguments
        .first()
        .and_then(|word| word.parse().ok())
        .ok_or("fuzz: the number of seconds is missing: cargo xtask fuzz 3600")?;
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
    for target in &chosen {
        unpack(target)?;
    }
    let time = format!("-max_total_time={seconds}");
    let mut children = Vec::new();
    for target in chosen.iter().copied() {
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
    for target in chosen {
        minimise(target)?;
        pack(target)?;
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

/// cargo-fuzz without a sanitizer, so that the stable compiler suffices; our own assertions detect the errors.
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

fn folder(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

/// Writes the packed corpus and the seeds into the folder that the fuzzer works in.
fn unpack(target: &str) -> Result<(), String> {
    let folder = folder(target);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let packed = std::fs::read(folder.with_extension("pack")).unwrap_or_default();
    for (number, input) in inputs(&packed).enumerate() {
        std::fs::write(folder.join(format!("packed-{number:05}")), input)
            .map_err(|e| e.to_string())?;
    }
    let seeds = std::fs::read_dir(root().join("fuzz/seeds").join(target))
        .map_err(|e| format!("seeds of {target}: {e}"))?;
    for seed in seeds.flatten() {
        std::fs::copy(seed.path(), folder.join(seed.file_name())).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn minimise(target: &str) -> Result<(), String> {
    let done = fuzz(&["cmin", target], &[])?
        .wait()
        .map_err(|e| e.to_string())?;
    if done.success() {
        Ok(())
    } else {
        Err(format!("{target}: its corpus could not be made small"))
    }
}

/// Inputs of a packed corpus: each behind its length in four octets, big-endian.
fn inputs(mut packed: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = packed.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let input = rest.get(..length)?;
        packed = &rest[length..];
        Some(input)
    })
}

/// Packs the files of the folder, in order of name.
fn pack(target: &str) -> Result<(), String> {
    let folder = folder(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(|e| e.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let mut packed = Vec::new();
    for file in files {
        let input = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        packed.extend_from_slice(&(input.len() as u32).to_be_bytes());
        packed.extend_from_slice(&input);
    }
    std::fs::write(folder.with_extension("pack"), packed).map_err(|e| e.to_string())
}
