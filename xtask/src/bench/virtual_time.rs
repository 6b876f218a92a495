//! Speed of virtual time: a scenario of 100 calls beside its own duration.

use super::{Bench, Bound, interleaved};
use crate::process::program;
use std::process::Command;
use std::time::Instant;

/// Calls of the scenario, arriving within 60 s, and the length of each without and with media, seconds.
const CALLS: u32 = 100;
const ARRIVALS_S: f64 = 60.0;
const HOLD_S: [f64; 2] = [240.0, 10.0];
/// Virtual seconds in a second of this machine, without and with media.
const BAR: f64 = 1_000.0;

/// The scenario through the border, signalling alone and with G.711 both ways; the time of the whole program counts,
/// reports included.
pub(super) fn virtual_time(bench: &mut Bench) -> Result<(), String> {
    println!("virtual time, {CALLS} calls");
    let names = ["signalling", "signalling and media"];
    let speeds = interleaved(bench.rounds, &names, |which| {
        let speed = one(bench_plan(which == 1), bench)?;
        println!("  {:<22} {speed:8.0} times real time", names[which]);
        Ok(speed)
    })?;
    let rows = names.iter().zip(speeds).zip(HOLD_S);
    for ((name, speed), hold_s) in rows {
        let media = match name.contains("media") {
            true => ", G.711 both ways",
            false => "",
        };
        bench.bar(
            &format!("virtual time: {CALLS} calls of {hold_s} s{media}, times real time"),
            speed,
            Bound::AtLeast(BAR),
        );
    }
    Ok(())
}

fn bench_plan(has_media: bool) -> String {
    // The border would end calls without media if it anchored them.
    let (media, path) = match has_media {
        true => ("tone", "anchored"),
        false => ("none", "bypass"),
    };
    let hold_s = HOLD_S[usize::from(has_media)];
    format!(
        "name = \"virtual\"\ntitle = \"calls in virtual time\"\n[sut]\nmedia = \"{path}\"\n[callers]\nrate = {:.4}\ntotal = {CALLS}\nhold_seconds = {hold_s:.1}\n\
         media = \"{media}\"\n[callees]\nmedia = \"{media}\"\n[thresholds]\nfailed_percent = 0.0\n",
        f64::from(CALLS) / ARRIVALS_S
    )
}

/// Virtual seconds in a second of the program.
fn one(text: String, bench: &Bench) -> Result<f64, String> {
    let plan = bench.scratch.join("virtual.toml");
    let out = bench.scratch.join("virtual");
    std::fs::write(&plan, text).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let begin = Instant::now();
    let ran = Command::new(program())
        .args(["lab", "run", "--simulate"])
        .arg(&plan)
        .arg("--out")
        .arg(&out)
        .output()
        .map_err(|error| format!("hornwork: {error}"))?;
    let taken = begin.elapsed().as_secs_f64();
    if !ran.status.success() {
        return Err(format!(
            "virtual time failed: {}",
            String::from_utf8_lossy(&ran.stderr)
        ));
    }
    let record = out.join("run.json");
    let text = std::fs::read_to_string(&record).map_err(|error| error.to_string())?;
    let record: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let seconds = record["trials"][0]["seconds"]
        .as_f64()
        .ok_or("run.json has no seconds of its trial")?;
    Ok(seconds / taken)
}
