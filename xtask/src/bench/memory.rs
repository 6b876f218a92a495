//! The parts' own benchmarks.

use super::Bench;
use crate::guided::Guide;
use crate::process::{check, root};
use std::path::PathBuf;

/// Examples that measure in memory and print the result.
pub(super) fn in_memory(_: &mut Bench) -> Result<(), String> {
    let examples: [(&str, &str); 6] = [
        ("wire", "parse_cost"),
        ("sip", "call_cost"),
        ("border", "standing_cost"),
        ("border", "registered_cost"),
        ("border", "volte_cost"),
        ("net", "echo_cost"),
    ];
    for (package, example) in examples {
        let source: PathBuf = root()
            .join("crates")
            .join(package)
            .join("examples")
            .join(format!("{example}.rs"));
        if !source.is_file() {
            return Err(format!("{} is gone", source.display()));
        }
        println!("\n{package}: {example}");
        check(Guide::none().cargo().args([
            "run",
            "--release",
            "--locked",
            "--quiet",
            "-p",
            package,
            "--example",
            example,
        ]))?;
    }
    Ok(())
}
