//! The relay in the kernel beside an empty redirect program, between the same two veths.

use super::relay::figure;
use super::{Bench, Bound};
use crate::process::{build, release};
use std::process::Command;

/// Streams, each with a packet in turn.
const FLOWS: u32 = 100_000;
/// Milliseconds that one of the two runs before it is the other one's turn.
const SLICE: u32 = 500;
/// Turns of both in a round.
const SLICES: usize = 5;
/// Packets that pass, in those of the empty program.
const BAR: f64 = 0.75;

/// Turn by turn in networks of its own; prints the reason where that is not possible.
pub(super) fn xdp(bench: &mut Bench) -> Result<(), String> {
    build(&["-p", "net", "--example", "relay_rate"])?;
    println!("packets of {FLOWS} streams of G.729, one core that relays, {SLICE} ms a turn");
    let turns = bench.rounds * SLICES;
    let words = [FLOWS, SLICE].map(|word| word.to_string());
    let done = Command::new(release().join("examples/relay_rate"))
        .args(words)
        .arg(turns.to_string())
        .output()
        .map_err(|error| format!("relay_rate: {error}"))?;
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => {}
        Some(3) => {
            println!("skipped: {}", why.trim());
            return Ok(());
        }
        _ => return Err(format!("relay_rate: {}", why.trim())),
    }
    for line in said.lines() {
        println!("  {line}");
    }
    let last = said.lines().last().unwrap_or_default();
    let medians = figure(last, "passed").zip(figure(last, "capacity"));
    let (passed, capacity) = medians.ok_or(format!("no figures in: {last}"))?;
    println!("  by the processor time of a packet alone: {capacity:.3} of the empty program's");
    bench.bar(
        &format!("relay in the kernel, {FLOWS} streams: packets that pass, in an empty redirect's"),
        passed,
        Bound::AtLeast(BAR),
    );
    Ok(())
}
