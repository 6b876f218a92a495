//! Our load generator beside SIPp.

use super::load::SIPP;
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, interleaved};
use crate::process::{Running, release};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Calls a second at which generators are compared, and for how long.
const RATE: u32 = 14_000;
const SECONDS: u32 = 6;
/// Calls a second at which lateness is told, and how much of it beyond the host's own is allowed, milliseconds.
const LATENESS_RATE: u32 = 5_000;
const LATENESS_MS: f64 = 1.0;
/// Our calls per CPU second, in SIPp's.
const BAR: f64 = 1.7;

/// Both with SIPp's own scenarios, interleaved, at one rate: CPU time per call of the caller against SIPp as callee, and of the
/// callee against SIPp as caller.
pub(super) fn generator(bench: &mut Bench) -> Result<(), String> {
    for name in ["uac", "uas"] {
        let output = Command::new("sipp")
            .args(["-sd", name])
            .output()
            .map_err(|error| format!("sipp: {error}"))?;
        std::fs::write(bench.scratch.join(format!("{name}.xml")), output.stdout)
            .map_err(|error| error.to_string())?;
    }
    println!("load generators, {RATE} calls/s");
    let players = ["sipp", "hornwork"];
    let mut both_of_sipp = 0.0;
    for (caller_is_measured, side) in [(true, "caller"), (false, "callee")] {
        let medians = interleaved(bench.rounds, &players, |player| {
            let cost = one(players[player], caller_is_measured, &bench.scratch)?;
            println!("  {side} {:<10} {cost:6.1} us/call", players[player]);
            Ok(cost)
        })?;
        bench.bar(
            &format!("load generator, {side}: calls per CPU second in SIPp's ({:.1} and {:.1} us a call)", medians[1], medians[0]),
            medians[0] / medians[1],
            Bound::AtLeast(BAR),
        );
        both_of_sipp += medians[0];
    }
    let native = interleaved(bench.rounds, &["own workloads"], |_| {
        let cost = own_workloads(RATE, &bench.scratch)?.0;
        println!("  both sides of our own workloads {cost:6.1} us/call");
        Ok(cost)
    })?;
    bench.bar(
        &format!(
            "own workloads, both sides: calls per CPU second in SIPp's ({:.1} and {both_of_sipp:.1} us a call)",
            native[0]
        ),
        both_of_sipp / native[0],
        Bound::AtLeast(BAR),
    );
    let late = interleaved(bench.rounds, &["lateness"], |_| {
        let (_, late, noise) = own_workloads(LATENESS_RATE, &bench.scratch)?;
        println!(
            "  lateness at {LATENESS_RATE} calls/s {late:.2} ms (99th percentile), of a bare timer {noise:.2}"
        );
        Ok((late - noise).max(0.0))
    })?;
    bench.bar(
        &format!("own workloads: ms of lateness (99th percentile) at {LATENESS_RATE} calls/s beyond a bare timer's"),
        late[0],
        Bound::AtMost(LATENESS_MS),
    );
    Ok(())
}

/// Calls from our own callers straight to our own called side, each on a thread of one process: CPU microseconds per call of
/// both together, the callers' lateness and that of a bare timer, milliseconds at the 99th percentile.
fn own_workloads(rate: u32, scratch: &Path) -> Result<(f64, f64, f64), String> {
    let (json, out) = (scratch.join("own.json"), scratch.join("own"));
    let plan = scratch.join("own.toml");
    let text = format!(
        "name = \"own\"\ntitle = \"calls with nothing in between\"\n[subject]\nnone = true\n[callers]\nrate = {rate}.0\n\
         seconds = {SECONDS}.0\nhold_seconds = 0.0\n[callees]\n[thresholds]\nfailed_percent = 0.0\n"
    );
    std::fs::write(&plan, text).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let ran = Command::new(release().join("hornwork"))
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
        number("generator_cpu_seconds"),
        list("lateness_ms", 1),
        number("p99_us"),
    ) {
        (Some(cpu), Some(late), Some(noise)) => Ok((cpu * 1e6 / calls, late, noise / 1e3)),
        _ => Err(format!("{}: not the figures of a run", json.display())),
    }
}

/// One run of a generator: CPU microseconds per call.
fn one(player: &str, caller: bool, scratch: &Path) -> Result<f64, String> {
    let hornwork = release().join("hornwork").display().to_string();
    let (rate, total) = (RATE.to_string(), (RATE * SECONDS).to_string());
    let start = |core, player: &str, caller: bool| {
        let scenario = scratch.join(if caller { "uac.xml" } else { "uas.xml" });
        let scenario = scenario.display().to_string();
        let mut words: Vec<&str> = Vec::new();
        let program = match player {
            "sipp" => {
                words.extend(["-sf", &scenario, "-i", "127.0.0.1", "-nostdin"]);
                words.extend(&SIPP[1..]);
                match caller {
                    true => {
                        words.extend(["-p", "6060", "-r", &rate, "-m", &total, "127.0.0.1:5080"])
                    }
                    false => words.extend(["-p", "5080"]),
                }
                "sipp"
            }
            _ => {
                words.extend(["lab", "run", &scenario]);
                match caller {
                    true => {
                        words.extend(["127.0.0.1:5080", "--local", "127.0.0.1:6060"]);
                        words.extend(["--rate", &rate, "--calls", &total, "--limit", "200000"]);
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
    // A processor's account is read while the process lives, so just before its last calls: what it has done by then is known
    // from the rate, which it must have kept.
    std::thread::sleep(wanted.mul_f64(0.95));
    let measured = if caller { &calling } else { &callee };
    let (cpu, lasted) = (measured.cpu_nanos(), begun.elapsed());
    let cpu = if caller { cpu } else { cpu - idle };
    let good = calling.wait(wanted + Duration::from_secs(30))?;
    let took = begun.elapsed();
    if !good || took > wanted.mul_f64(1.1) + Duration::from_secs(1) {
        return Err(format!(
            "{player}: {} calls were to take {wanted:?}, and took {took:?}; all good: {good}",
            RATE * SECONDS
        ));
    }
    Ok(cpu as f64 / 1_000.0 / (f64::from(RATE) * lasted.as_secs_f64()))
}
