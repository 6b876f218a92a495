//! Conferences of four with G.729 on one instance: jitter of the mixes, beside the host's own, and CPU per stream.

use super::relay::Network;
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, median};
use crate::process::{build_program, program};
use std::time::Duration;

/// Conferences of four under load: 116 streams, and the probe's four.
const ROOMS: u32 = 29;
/// Seconds that are counted in a run.
const SECONDS: u32 = 15;
/// Mean of the jitter (RFC 3550), in milliseconds.
const MEAN: f64 = 0.1;
/// The 99th percentile above the host's.
const ABOVE: f64 = 0.2;

/// Jitter at a probe conference beside [`ROOMS`], and CPU time per stream: the test lab's experiment
/// `conference-jitter` against a border of its own process and core.
pub(super) fn conference(bench: &mut Bench) -> Result<(), String> {
    build_program()?;
    let file = bench.scratch.join("conference.toml");
    let text = "[[interface]]\nname = \"loopback\"\nkind = \"access\"\nlisten = \"udp:127.0.0.1:5060\"\n\
                media = { address = \"127.0.0.1\" }\n\
                [[conference]]\nname = \"bench\"\nregex = '8\\d\\d\\d'\ncodecs = [\"G729\"]\ntones = \"none\"\n";
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let network = Network::new()?;
    let program = program().display().to_string();
    let words = [program.as_str(), "run", "-c"];
    let mut subject: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    subject.push(file.display().to_string());
    let names = [
        "jitter_mean_ms",
        "jitter_p99_ms",
        "noise_jitter_p99_ms",
        "lost_percent",
        "subject_cores",
    ];
    let mut figures: [Vec<f64>; 5] = Default::default();
    println!("{ROOMS} conferences of four and the probe, G.729, {SECONDS} s a run; jitter in ms");
    for _ in 0..bench.rounds {
        let log = bench.scratch.join("conference.log");
        let running = network.start(SUBJECT_CORE, &subject, &log)?;
        std::thread::sleep(Duration::from_millis(1_500));
        let results = bench.scratch.join("conference-results");
        let _ = std::fs::remove_dir_all(&results);
        let mut words = vec![program.clone()];
        words.extend(["lab", "run", "conference-jitter", "--repeat", "1"].map(str::to_owned));
        for set in [
            "sut.address=127.0.0.1:5060".to_owned(),
            format!("sut.process_id={}", running.id()),
            format!("levels.values=[{ROOMS}]"),
            format!("conference.duration_seconds={SECONDS}"),
            // The bars below judge, over all runs.
            "thresholds=".to_owned(),
        ] {
            words.extend(["--set".to_owned(), set]);
        }
        words.extend(["--out".to_owned(), results.display().to_string()]);
        let output = bench.scratch.join("conference-load.log");
        let mut player = network.start(LOAD_CORE, &words, &output)?;
        let succeeded = player.wait(Duration::from_secs(90))?;
        let table = std::fs::read_to_string(results.join("levels.csv"));
        let Some(table) = table.ok().filter(|_| succeeded) else {
            let said = std::fs::read_to_string(&output).unwrap_or_default();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("conferences: {said}\n{log}"));
        };
        let mut line = String::new();
        for (name, figures) in names.iter().zip(&mut figures) {
            let value = column(&table, name).ok_or(format!("no {name} in: {table}"))?;
            line.push_str(&format!(" {name} {value:.4}"));
            figures.push(value);
        }
        println!(" {line}");
    }
    let [mean, p99, host, lost, core] = figures.map(median);
    let streams = (ROOMS + 1) * 4;
    let each = core * 1e6 / f64::from(streams);
    let what = format!("{streams} G.729 streams in conferences");
    println!("  {core:.2} of a core, {each:.0} us a second for each stream");
    bench.bar(
        &format!("{what}: mean jitter, ms"),
        mean,
        Bound::AtMost(MEAN),
    );
    let above = (p99 - host).max(0.0);
    bench.bar(
        &format!("{what}: p99 of the jitter above the host's own, ms"),
        above,
        Bound::AtMost(ABOVE),
    );
    bench.bar(
        &format!("{what}: packets lost, %"),
        lost,
        Bound::AtMost(0.0),
    );
    Ok(())
}

/// A figure of the first level in `levels.csv`, by its column.
fn column(table: &str, name: &str) -> Option<f64> {
    let mut lines = table.lines();
    let place = lines.next()?.split(',').position(|column| column == name)?;
    lines.next()?.split(',').nth(place)?.parse().ok()
}
