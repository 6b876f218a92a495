//! ESP in memory beside OpenSSL's EVP, interleaved.

use super::{Bench, Bound, median};
use crate::guided::Guide;
use crate::process::{check, installed, root};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Nanoseconds of a packet and the share of EVP's, for AES-128-CBC with HMAC-SHA1-96.
const CBC_BAR: (f64, f64) = (450.0, 0.7);
/// Nanoseconds of a packet with AES-128-GCM.
const GCM_BAR: f64 = 250.0;
/// Rounds for each of the command: one takes less than a second.
const MORE: usize = 5;

/// Sealing and opening of a 60-byte packet in a tunnel.
pub(super) fn esp(bench: &mut Bench) -> Result<(), String> {
    let guide = Guide::none();
    let example = ["-p", "protect", "--example", "esp_cost"];
    check(
        guide
            .cargo()
            .args(["build", "--release", "--locked", "--quiet"])
            .args(example),
    )?;
    let ours = crate::process::release().join("examples/esp_cost");
    let theirs = bench.scratch.join("evp_esp");
    if !installed("cc") || !Path::new("/usr/include/openssl/evp.h").is_file() {
        return Err("OpenSSL's headers are missing: install gcc and libssl-dev".to_owned());
    }
    let source = root().join("bench/evp_esp.c");
    check(
        Command::new("cc")
            .args(["-O2", "-o"])
            .arg(&theirs)
            .arg(&source)
            .arg("-lcrypto"),
    )?;
    let mut figures: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    for round in 0..bench.rounds * MORE {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let program = [&ours, &theirs][which];
            for (name, nanos) in figures_of(program)? {
                figures.entry(name).or_default()[which].push(nanos);
            }
        }
    }
    println!("ESP, 60-byte packet in a tunnel, in memory, ns a packet: ours, EVP, ratio");
    for (name, [ours, theirs]) in figures {
        let (ours, theirs) = (median(ours), median(theirs));
        println!("{name:<42} {ours:8.1} {theirs:8.1} {:6.2}", ours / theirs);
        if name.ends_with("HMAC-SHA1-96") {
            bench.bar(&format!("ESP, {name}: ns"), ours, Bound::AtMost(CBC_BAR.0));
            bench.bar(
                &format!("ESP, {name}: in that of OpenSSL's EVP"),
                ours / theirs,
                Bound::AtMost(CBC_BAR.1),
            );
        } else if name.ends_with("AES-128-GCM") {
            bench.bar(&format!("ESP, {name}: ns"), ours, Bound::AtMost(GCM_BAR));
        }
    }
    Ok(())
}

/// The lines of a program: operation and algorithm, nanoseconds.
fn figures_of(program: &Path) -> Result<Vec<(String, f64)>, String> {
    let output = Command::new(program)
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {text}", program.display()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| {
            let (name, nanos) = line.rsplit_once(' ').ok_or("a line without a figure")?;
            let nanos = nanos
                .parse::<f64>()
                .map_err(|_| "a figure that is no number")?;
            Ok((name.to_owned(), nanos))
        })
        .collect()
}
