//! Exact times of sent RTP packets: those that the generator records, and those of a capture beside it.

use super::{Bench, Bound, interleaved, median};
use crate::process::program;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Streams of one sending thread: 50 packets/s each, 100,000 packets/s together.
const STREAMS: u32 = 2_000;
const SECONDS: u32 = 10;
/// Lateness beyond the host's noise, milliseconds (99th percentile).
const LATE_MS: f64 = 0.2;
/// Packets that a second of CPU time of the sending thread must suffice for.
const PER_CPU_SECOND: f64 = 100_000.0;
const PACKET_MS: f64 = 20.0;
/// Captures one port in 64, so that the capture costs little: RTP ports are even.
const SAMPLE: &str = "udp[2:2] & 127 = 16";
/// Bytes kept of a captured packet.
const SNAPLEN: &str = "64";

/// Lateness in milliseconds at the 99th percentile, and packets for each CPU second of the sending thread.
struct Late {
    recorded: f64,
    noise: f64,
    captured: f64,
    per_cpu_second: f64,
}

/// One thread of the generator sends all streams to another one; tshark captures a sample of them on loopback.
pub(super) fn pacing(bench: &mut Bench) -> Result<(), String> {
    let (mut captured, mut per_cpu_second) = (Vec::new(), Vec::new());
    let rate = STREAMS * 50;
    let recorded = interleaved(bench.rounds, &["pacing"], |_| {
        let late = one(&bench.scratch)?;
        println!(
            "  {rate} packets/s: {:.3} ms late (99th percentile), {:.3} in the capture, host's noise {:.3}; {:.0} packets for each CPU second",
            late.recorded, late.captured, late.noise, late.per_cpu_second
        );
        per_cpu_second.push(late.per_cpu_second);
        captured.push((late.captured - late.noise).max(0.0));
        Ok((late.recorded - late.noise).max(0.0))
    })?;
    for (by, late) in [
        ("recorded", recorded[0]),
        ("in a capture", median(captured)),
    ] {
        bench.bar(
            &format!("RTP generator: ms of lateness (99th percentile), {by}, at {rate} packets/s of one thread beyond the host's noise"),
            late,
            Bound::AtMost(LATE_MS),
        );
    }
    bench.bar(
        "RTP generator: packets for each second of CPU time of the sending thread",
        median(per_cpu_second),
        Bound::AtLeast(PER_CPU_SECOND),
    );
    Ok(())
}

fn one(scratch: &Path) -> Result<Late, String> {
    let (json, plan) = (scratch.join("pacing.json"), scratch.join("pacing.toml"));
    let (out, capture) = (scratch.join("pacing"), scratch.join("pacing.pcapng"));
    let text = format!(
        "name = \"pacing\"\ntitle = \"streams with nothing in between\"\n[sut]\ndirect = true\n[streams]\ncount = {STREAMS}\n\
         rate = {STREAMS}.0\nduration_seconds = {SECONDS}.0\nmedia = \"speech\"\ncodec = \"PCMA\"\n[thresholds]\nlost_percent = 0.0\n"
    );
    std::fs::write(&plan, text).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let mut tshark = Command::new("tshark")
        .args(["-q", "-i", "lo", "-s", SNAPLEN, "-f", SAMPLE, "-w"])
        .arg(&capture)
        .args(["-a", &format!("duration:{}", SECONDS + 5)])
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("tshark: {error}"))?;
    // The capture must have begun before the first packet.
    std::thread::sleep(Duration::from_secs(1));
    let ran = generator()
        .args(["lab", "run"])
        .arg(&plan)
        .arg("--json")
        .arg(&json)
        .arg("--out")
        .arg(&out)
        .output();
    let ended = tshark.wait().map_err(|error| format!("tshark: {error}"))?;
    let ran = ran.map_err(|error| format!("hornwork: {error}"))?;
    // Exit code 4: the generator could not keep up, which the figures below show.
    if !ended.success() || !matches!(ran.status.code(), Some(0 | 1 | 4)) {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("pacing failed (tshark {ended}): {said}"));
    }
    let told = std::fs::read_to_string(&json).map_err(|error| error.to_string())?;
    let of = |block: &str, name: &str| {
        let block = told.split(&format!("\"{block}\":")).nth(1)?;
        let after = block.split(&format!("\"{name}\":")).nth(1)?;
        let end = after.find([',', '\n', '}'])?;
        after[..end].trim().parse::<f64>().ok()
    };
    let figures = (of("send_lateness", "p99_ms"), of("noise", "p99_us"));
    let work = (
        of("send_lateness", "packets"),
        of("surroundings", "callers_cpu_seconds"),
    );
    match (figures, work) {
        ((Some(recorded), Some(noise)), (Some(packets), Some(cpu_seconds))) => Ok(Late {
            recorded,
            noise: noise / 1e3,
            captured: captured_lateness(&capture)?,
            per_cpu_second: packets / cpu_seconds.max(1e-3),
        }),
        _ => Err(format!("{}: not the figures of a run", json.display())),
    }
}

/// The program of the test lab, without the right to a network namespace of its own: the capture must see its packets.
fn generator() -> Command {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root {
        return Command::new(program());
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]);
    command.arg(program());
    command
}

/// Lateness of captured packets behind a timeline of 20 ms for each stream, which begins at its earliest packet.
fn captured_lateness(capture: &Path) -> Result<f64, String> {
    let read = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args([
            "-T",
            "fields",
            "-e",
            "udp.dstport",
            "-e",
            "frame.time_epoch",
        ])
        .output()
        .map_err(|error| format!("tshark: {error}"))?;
    let text = String::from_utf8_lossy(&read.stdout);
    let mut streams: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let Some((port, at)) = line.split_once('\t') else {
            continue;
        };
        // Whole seconds are cut, because a float of them all has no microseconds.
        let at = at.get(at.len().saturating_sub(14)..).unwrap_or(at);
        let seconds: f64 = at.parse().map_err(|_| format!("time {at}"))?;
        streams.entry(port).or_default().push(seconds * 1e3);
    }
    let mut all = Vec::new();
    for arrivals in streams.values().filter(|arrivals| arrivals.len() > 100) {
        let first = arrivals[0];
        let offsets = (0u32..).zip(arrivals);
        let offsets = offsets.map(|(n, at)| at - first - f64::from(n) * PACKET_MS);
        let offsets: Vec<f64> = offsets.collect();
        let earliest = offsets.iter().copied().fold(f64::INFINITY, f64::min);
        all.extend(offsets.iter().map(|offset| offset - earliest));
    }
    all.sort_by(f64::total_cmp);
    let place = all.len() * 99 / 100;
    all.get(place)
        .copied()
        .ok_or_else(|| "no captured streams".to_owned())
}
