//! `cargo xtask tidy`: the rules of the project that a tool can check.

use crate::docs;
use crate::process::{check, features, installed, root};
use crate::{additions, language, pages, prose, structure, texts};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Allowed dependencies between our crates. None points upward.
const LAYERS: [(&str, &[&str]); 19] = [
    ("engine", &[]),
    ("wire", &[]),
    ("protect", &["engine", "wire"]),
    ("bcg729", &[]),
    ("codec", &["bcg729"]),
    ("sip", &["engine", "wire", "protect"]),
    ("media", &["engine", "wire", "protect", "codec"]),
    ("rules", &["engine", "wire"]),
    (
        "config",
        &["engine", "wire", "protect", "codec", "media", "rules"],
    ),
    (
        "anchor",
        &["engine", "wire", "protect", "codec", "media", "config"],
    ),
    (
        "ng",
        &[
            "engine", "wire", "protect", "codec", "media", "config", "anchor",
        ],
    ),
    (
        "border",
        &[
            "engine", "wire", "protect", "codec", "sip", "media", "rules", "config", "anchor", "ng",
        ],
    ),
    ("net", &["engine", "wire"]),
    ("sim", &["engine", "wire"]),
    (
        "analyse",
        &["engine", "wire", "protect", "codec", "sip", "media", "net"],
    ),
    ("console", &["engine", "wire"]),
    (
        "lab",
        &[
            "engine", "wire", "protect", "codec", "sip", "media", "rules", "config", "border",
            "ng", "net", "sim", "analyse",
        ],
    ),
    (
        "hornwork",
        &[
            "engine", "wire", "protect", "codec", "sip", "media", "rules", "config", "border",
            "ng", "net", "sim", "lab", "analyse", "console",
        ],
    ),
    ("xtask", &["engine"]),
];

/// Crates that may be unsafe: the driver, and the thin wrapper of a C library (docs/decisions has the reason).
const UNSAFE: [&str; 2] = ["net", "bcg729"];

/// Words that only the driver (and automation) may use: clocks, and the randomness of the operating system.
const DRIVER_ONLY: [&str; 7] = [
    "Instant::now",
    "SystemTime::now",
    "thread_rng",
    "getrandom(",
    "getrandom::",
    "OsRng",
    "RandomState",
];

/// Crates of engines: input and time in, outputs out, and nothing else.
const ENGINES: [&str; 13] = [
    "engine", "wire", "protect", "bcg729", "codec", "sip", "media", "rules", "config", "anchor",
    "ng", "border", "sim",
];

/// Standard library items that engines must not use.
const NO_ENGINE: [&str; 7] = [
    "std::thread",
    "std::fs",
    "std::env",
    "std::process",
    "UdpSocket::",
    "TcpStream::",
    "HashMap::new",
];

/// Runs every rule and names each breach.
///
/// # Errors
/// The breaches.
pub fn run() -> Result<(), String> {
    let mut breaches = Vec::new();
    breaches.extend(dependencies()?);
    breaches.extend(unused()?);
    breaches.extend(sources()?);
    let files = texts::tracked()?;
    breaches.extend(texts::breaches(&files));
    breaches.extend(language::breaches(&files));
    breaches.extend(prose::breaches(&files));
    breaches.extend(structure::breaches(&files));
    breaches.extend(additions::breaches(&files));
    breaches.extend(pages::stale());
    breaches.extend(subjects());
    // Clippy reports code that does not build; the other rules are checked all the same.
    breaches.extend(docs::stale().unwrap_or_else(|why| vec![why]));
    for (what, mut command) in tools() {
        let component = Command::new("cargo").args([what, "--version"]).output();
        if !component.is_ok_and(|said| said.status.success()) {
            let package = if what == "fmt" { "rustfmt" } else { what };
            breaches.push(format!(
                "{what} is not installed: rustup component add {package}"
            ));
            continue;
        }
        if let Err(why) = check(&mut command) {
            breaches.push(format!("{what}: {why}"));
        }
    }
    if installed("cargo-deny") {
        let mut deny = Command::new("cargo");
        deny.current_dir(root()).args([
            "deny",
            "--offline",
            "check",
            "licenses",
            "bans",
            "sources",
        ]);
        if let Err(why) = check(&mut deny) {
            breaches.push(format!("cargo-deny: {why}"));
        }
    } else {
        println!("skipped: cargo-deny is not installed (cargo install cargo-deny --locked)");
    }
    if breaches.is_empty() {
        println!("tidy: all rules hold");
        Ok(())
    } else {
        Err(breaches.join("\n"))
    }
}

fn tools() -> Vec<(&'static str, Command)> {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(root()).args(arguments);
        command
    };
    vec![
        ("fmt", cargo(&["fmt", "--all", "--", "--check"])),
        (
            "clippy",
            cargo(
                &[
                    &["clippy", "--locked", "--workspace", "--all-targets"],
                    features(),
                    &["--", "-D", "warnings"],
                ]
                .concat(),
            ),
        ),
    ]
}

/// Commits from which on subjects have a bound.
const SUBJECTS_SINCE: &str = "6432eeb";
/// Longest subject of a commit, in characters.
const SUBJECT: usize = 72;

/// Subjects of commits that are too long. A shallow clone that lacks the first commit is skipped, with a printed
/// reason.
fn subjects() -> Vec<String> {
    let range = format!("{SUBJECTS_SINCE}..HEAD");
    let log = Command::new("git")
        .current_dir(root())
        .args(["log", "--format=%h %s", &range])
        .output();
    match log {
        Ok(log) if log.status.success() => String::from_utf8_lossy(&log.stdout)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(_, subject)| subject.chars().count() > SUBJECT)
            .map(|(commit, subject)| {
                format!("commit {commit}: subject longer than {SUBJECT} characters: {subject}")
            })
            .collect(),
        _ => {
            println!("skipped: subjects of commits (git has no {SUBJECTS_SINCE})");
            Vec::new()
        }
    }
}

/// The `[dependencies]` of each crate against [`LAYERS`].
fn dependencies() -> Result<Vec<String>, String> {
    let mut breaches = Vec::new();
    for (name, allowed) in LAYERS {
        let folder = if name == "xtask" {
            root().join(name)
        } else {
            root().join("crates").join(name)
        };
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml"))
            .map_err(|e| format!("{name}: {e}"))?;
        for used in ours(&manifest) {
            if !allowed.contains(&used.as_str()) {
                breaches.push(format!("{name} may not depend on {used}"));
            }
        }
    }
    let known = std::fs::read_dir(root().join("crates")).map_err(|e| e.to_string())?;
    for folder in known.flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        if !LAYERS.iter().any(|(known, _)| *known == name) {
            breaches.push(format!(
                "crates/{name} has no row in xtask's table of layers"
            ));
        }
    }
    Ok(breaches)
}

/// Dependencies of the workspace that no member has.
fn unused() -> Result<Vec<String>, String> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut members = read(root().join("xtask/Cargo.toml"))?;
    let folders = std::fs::read_dir(root().join("crates")).map_err(|error| error.to_string())?;
    for folder in folders.flatten() {
        members.push_str(&read(folder.path().join("Cargo.toml"))?);
    }
    let workspace = read(root().join("Cargo.toml"))?;
    let named = |line: &str| Some(line.split_once('=')?.0.trim().to_owned());
    Ok(workspace
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(named)
        .filter(|name| {
            let is_name = |line: &str| line.split(['.', '=', ' ']).next() == Some(name.as_str());
            !members.lines().any(is_name)
        })
        .map(|name| format!("Cargo.toml: no member depends on {name}"))
        .collect())
}

/// Our own crates among the normal dependencies of a manifest.
fn ours(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside
            && let Some(name) = line.split(['.', '=', ' ']).next()
            && LAYERS.iter().any(|(known, _)| *known == name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// Rules on the text of the sources.
fn sources() -> Result<Vec<String>, String> {
    let mut breaches = Vec::new();
    for (name, _) in LAYERS {
        let folder = if name == "xtask" {
            root().join(name)
        } else {
            root().join("crates").join(name)
        };
        let head = ["src/lib.rs", "src/main.rs"]
            .iter()
            .find_map(|file| std::fs::read_to_string(folder.join(file)).ok());
        let head = head.ok_or_else(|| format!("{name} has neither lib.rs nor main.rs"))?;
        if !UNSAFE.contains(&name) && !head.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("{name} does not forbid unsafe code"));
        }
        for file in rust_files(&folder.join("src")) {
            let text =
                std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let mut words: Vec<&str> = Vec::new();
            if name != "net" && name != "xtask" {
                words.extend(DRIVER_ONLY);
            }
            // Tests beside the code are exempt.
            if ENGINES.contains(&name) && !file.ends_with("tests.rs") {
                words.extend(NO_ENGINE);
            }
            breaches.extend(
                words
                    .iter()
                    .filter(|word| text.contains(**word))
                    .map(|word| {
                        format!("{}: {word} is not allowed in crate {name}", file.display())
                    }),
            );
        }
    }
    Ok(breaches)
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return files;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
