//! Our load generator beside SIPp.

use super::load::ROOMY_SIPP as SIPP;
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, interleaved, median};
use crate::process::{Running, program};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Calls a second of the run that shows the cost of SIPp, and seconds of each run.
const FIRST_RATE: u32 = 5_000;
const SECONDS: u32 = 6;
/// Share of a core that SIPp takes at the rate at which generators are compared: near the limit of both, as the bar is
/// about room. At a fixed rate the processor would decide how many messages a wake-up takes.
const SIPP_LOAD: f64 = 0.7;
/// A rate that SIPp does not keep is lowered so often, by this factor.
const MAX_LOWERED: u32 = 3;
const LOWERED: f64 = 0.9;
/// Calls a second at which lateness is measured, and its bound above the host's own, milliseconds.
const LATENESS_RATE: u32 = 5_000;
const LATENESS_MS: f64 = 1.0;
/// Our calls per CPU second, in SIPp's.
const BAR: f64 = 1.7;
const SIDES: [&str; 2] = ["caller", "callee"];
/// Calls a second of two threads on each side, on all cores, in those of one core: offered, and the minimum that they
/// keep.
const TWO_CORES_OFFERED: f64 = 1.25;
const TWO_CORES: f64 = 1.2;
/// A plan is kept where starts are late by no more than this (99th percentile), milliseconds.
const KEPT_MS: f64 = 100.0;

/// Result of a run of our own workloads.
struct Own {
    /// CPU microseconds per call of callers and called side.
    sides: [f64; 2],
    /// Lateness of the callers, milliseconds at the 99th percentile.
    late: f64,
    /// That of a bare timer.
    noise: f64,
}

/// Both with SIPp's own scenarios, interleaved, at one rate: CPU time per call of the caller against SIPp as callee,
/// and of the callee against SIPp as caller.
pub(super) fn generator(bench: &mut Bench) -> Result<(), String> {
    for name in ["uac", "uas"] {
        let output = Command::new("sipp")
            .args(["-sd", name])
            .output()
            .map_err(|error| format!("sipp: {error}"))?;
        std::fs::write(bench.scratch.join(format!("{name}.xml")), output.stdout)
            .map_err(|error| error.to_string())?;
    }
    // The cost of a call falls with the rate.
    let mut rate = FIRST_RATE;
    for _ in 0..2 {
        let cost = one("sipp", true, rate, &bench.scratch)?;
        rate = whole(SIPP_LOAD * 1e6 / cost).max(FIRST_RATE);
    }
    // SIPp may not keep the rate that its cost permits.
    for _ in 0..MAX_LOWERED {
        let Err(error) = one("sipp", true, rate, &bench.scratch) else {
            break;
        };
        rate = whole(f64::from(rate) * LOWERED);
        println!("  {error}: {rate} calls/s instead");
    }
    println!("load generators, {rate} calls/s: at most {SIPP_LOAD} of a core for SIPp");
    let players = ["sipp", "hornwork"];
    let mut of_sipp = [0.0; 2];
    for (caller_is_measured, side) in [(true, SIDES[0]), (false, SIDES[1])] {
        let medians = interleaved(bench.rounds, &players, |player| {
            let cost = one(players[player], caller_is_measured, rate, &bench.scratch)?;
            println!("  {side} {:<10} {cost:6.1} us/call", players[player]);
            Ok(cost)
        })?;
        bench.bar(
            &format!("load generator, scenario of SIPp, {side}: calls per CPU second in SIPp's ({:.1} and {:.1} us a call)", medians[1], medians[0]),
            medians[0] / medians[1],
            Bound::AtLeast(BAR),
        );
        of_sipp[usize::from(!caller_is_measured)] = medians[0];
    }
    let mut callee = Vec::new();
    let caller = interleaved(bench.rounds, &["own workloads"], |_| {
        let own = own_workloads(rate, 1, &bench.scratch)?;
        let [calling, called] = own.sides;
        println!("  own workloads {calling:6.1} us/call calling, {called:6.1} called");
        callee.push(called);
        Ok(calling)
    })?;
    let ours = [caller[0], median(callee)];
    for ((side, ours), sipp) in SIDES.iter().zip(ours).zip(of_sipp) {
        bench.bar(
            &format!("load generator, own workloads, {side}: calls per CPU second in SIPp's ({ours:.1} and {sipp:.1} us a call)"),
            sipp / ours,
            Bound::AtLeast(BAR),
        );
    }
    let one_core = 1e6 / (ours[0] + ours[1]);
    let full_rate = whole(one_core * TWO_CORES_OFFERED);
    let kept = interleaved(bench.rounds, &["two cores"], |_| {
        let own = own_workloads(full_rate, 2, &bench.scratch)?;
        let cost: f64 = own.sides.iter().sum();
        println!(
            "  two threads a side, {full_rate} calls/s: {cost:6.1} us/call both sides, {:.1} ms late",
            own.late
        );
        // Every call was good, or the run would have failed.
        Ok(if own.late <= KEPT_MS {
            f64::from(full_rate)
        } else {
            0.0
        })
    })?;
    bench.bar(
        &format!("own workloads, two threads a side on all cores: calls a second in those that one core could make ({one_core:.0})"),
        kept[0] / one_core,
        Bound::AtLeast(TWO_CORES),
    );
    let late = interleaved(bench.rounds, &["lateness"], |_| {
        let own = own_workloads(LATENESS_RATE, 1, &bench.scratch)?;
        println!(
            "  lateness at {LATENESS_RATE} calls/s {:.2} ms (99th percentile), of a bare timer {:.2}",
            own.late, own.noise
        );
        Ok((own.late - own.noise).max(0.0))
    })?;
    bench.bar(
        &format!("own workloads: ms of lateness (99th percentile) at {LATENESS_RATE} calls/s beyond a bare timer's"),
        late[0],
        Bound::AtMost(LATENESS_MS),
    );
    Ok(())
}

/// A rate in whole hundreds of calls a second.
fn whole(rate: f64) -> u32 {
    (rate / 100.0).floor().max(1.0) as u32 * 100
}

/// Calls from our callers directly to our called side, each on the same number of threads of one process: CPU time of
/// both and lateness of the callers.
fn own_workloads(rate: u32, workers: u32, scratch: &Path) -> Result<Own, String> {
    let (json, out) = (scratch.join("own.json"), scratch.join("own"));
    let plan = scratch.join("own.toml");
    let text = format!(
        "name = \"own\"\ntitle = \"calls with nothing in between\"\n[generator]\nworkers = {workers}\n[sut]\ndirect = true\n\
         [callers]\nrate = {rate}.0\nduration_seconds = {SECONDS}.0\nhold_seconds = 0.0\n[callees]\n[thresholds]\nfailed_percent = 0.0\n"
    );
    std::fs::write(&plan, text).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let ran = Command::new(program())
        .args(["lab", "run"])
        .arg(&plan)
        .arg("--json")
        .arg(&json)
        .arg("--out")
        .arg(&out)
        .output()
        .map_err(|error| format!("hornwork: {error}"))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("own workloads failed: {said}"));
    }
    let told = std::fs::read_to_string(&json).map_err(|error| error.to_string())?;
    let number = |name: &str| {
        let after = told.split(&format!("\"{name}\":")).nth(1)?;
        let end = after.find([',', '\n', '}'])?;
        after[..end].trim().parse::<f64>().ok()
    };
    let list = |name: &str, place: usize| {
        let after = told.split(&format!("\"{name}\": [")).nth(1)?;
        let one = after.split(']').next()?.split(',').nth(place)?;
        one.trim().parse::<f64>().ok()
    };
    let calls = f64::from(rate * SECONDS);
    match (
        number("generator_cpu_seconds").zip(number("callers_cpu_seconds")),
        list("lateness_ms", 1),
        number("p99_us"),
    ) {
        (Some((all, calling)), Some(late), Some(noise)) => Ok(Own {
            sides: [calling, all - calling].map(|seconds| seconds * 1e6 / calls),
            late,
            noise: noise / 1e3,
        }),
        _ => Err(format!("{}: not the figures of a run", json.display())),
    }
}

/// One run of a generator at `calls_per_second`: CPU microseconds per call.
fn one(player: &str, caller: bool, calls_per_second: u32, scratch: &Path) -> Result<f64, String> {
    let hornwork = program().display().to_string();
    let total = calls_per_second * SECONDS;
    let (rate, all) = (calls_per_second.to_string(), total.to_string());
    let start = |core, player: &str, caller: bool| {
        let scenario = scratch.join(if caller { "uac.xml" } else { "uas.xml" });
        let scenario = scenario.display().to_string();
        let mut words: Vec<&str> = Vec::new();
        let program = match player {
            "sipp" => {
                words.extend(["-sf", &scenario, "-i", "127.0.0.1", "-nostdin"]);
                words.extend(&SIPP[1..]);
                match caller {
                    true => words.extend(["-p", "6060", "-r", &rate, "-m", &all, "127.0.0.1:5080"]),
                    false => words.extend(["-p", "5080"]),
                }
                "sipp"
            }
            _ => {
                words.extend(["lab", "run", &scenario]);
                match caller {
                    true => {
                        words.extend(["127.0.0.1:5080", "--local", "127.0.0.1:6060"]);
                        words.extend(["--rate", &rate, "--calls", &all, "--limit", "200000"]);
                    }
                    false => words.extend(["--local", "127.0.0.1:5080"]),
                }
                &hornwork
            }
        };
        let log = scratch.join(if caller { "caller.log" } else { "callee.log" });
        Running::start(core, program, &words, &log)
    };
    let callee = start(
        if caller { LOAD_CORE } else { SUBJECT_CORE },
        if caller { "sipp" } else { player },
        false,
    )?;
    std::thread::sleep(Duration::from_millis(500));
    let idle = callee.cpu_nanos();
    let mut calling = start(
        if caller { SUBJECT_CORE } else { LOAD_CORE },
        if caller { player } else { "sipp" },
        true,
    )?;
    let begun = Instant::now();
    let wanted = Duration::from_secs(u64::from(SECONDS));
    // CPU time must be read while the process lives, so before its last calls; their number follows from the rate,
    // which must have been kept.
    std::thread::sleep(wanted.mul_f64(0.95));
    let measured = if caller { &calling } else { &callee };
    let (cpu, lasted) = (measured.cpu_nanos(), begun.elapsed());
    let cpu = if caller { cpu } else { cpu - idle };
    let good = calling.wait(wanted + Duration::from_secs(30))?;
    let took = begun.elapsed();
    if !good || took > wanted.mul_f64(1.1) + Duration::from_secs(1) {
        return Err(format!(
            "{player}: {} calls were to take {wanted:?}, and took {took:?}; all good: {good}",
            total
        ));
    }
    Ok(cpu as f64 / 1_000.0 / (f64::from(calls_per_second) * lasted.as_secs_f64()))
}
