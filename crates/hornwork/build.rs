//! The commit of the source and the features of the build, for `hornwork --version`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=HORNWORK_COMMIT");
    // A commit moves the branch, which is noted in the log of HEAD; a source without git has none.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|path| std::path::Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = std::env::var("HORNWORK_COMMIT")
        .ok()
        .or_else(|| git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=HORNWORK_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
