//! Conferences of four with G.729 on one instance: how regularly the mixes come, beside the host's own noise, and what a stream costs.

use super::relay::{Network, figure};
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, median};
use crate::process::{build, release};
use std::time::Duration;

/// Conferences of four: 120 streams.
const ROOMS: u32 = 30;
/// Seconds that are counted in a run.
const SECONDS: u32 = 15;
/// Mean of the deviation from 20 ms, in milliseconds.
const MEAN: f64 = 0.1;
/// The 99th percentile above the host's.
const ABOVE: f64 = 0.2;

/// Jitter at a probe conference among [`ROOMS`], and processor time per stream.
pub(super) fn conference(bench: &mut Bench) -> Result<(), String> {
    build(&["-p", "lab", "--example", "conference_load"])?;
    let file = bench.scratch.join("conference.toml");
    let text = "[[interface]]\nname = \"loopback\"\nkind = \"access\"\nlisten = \"udp:127.0.0.1:5060\"\n\
                media = { address = \"127.0.0.1\" }\n\
                [[room]]\nname = \"bench\"\nregex = '8\\d\\d\\d'\ncodecs = [\"G729\"]\ntones = \"none\"\n";
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let network = Network::new()?;
    let program = release().join("hornwork").display().to_string();
    let words = ["env", "RUST_LOG=warn", &program, "run", "-c"];
    let mut subject: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    subject.push(file.display().to_string());
    let names = ["mean", "p99", "host-p99", "lost", "core", "us/stream"];
    let mut figures: [Vec<f64>; 6] = Default::default();
    println!("{ROOMS} conferences of four, G.729, {SECONDS} s a run; deviation from 20 ms in ms");
    for _ in 0..bench.rounds {
        let log = bench.scratch.join("conference.log");
        let running = network.start(SUBJECT_CORE, &subject, &log)?;
        std::thread::sleep(Duration::from_millis(1_500));
        let load = release().join("examples/conference_load");
        let words = [
            load.display().to_string(),
            "127.0.0.1:5060".into(),
            running.id().to_string(),
            ROOMS.to_string(),
            SECONDS.to_string(),
        ];
        let output = bench.scratch.join("conference-load.log");
        let mut player = network.start(LOAD_CORE, &words, &output)?;
        let succeeded = player.wait(Duration::from_secs(90))?;
        let said = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
        let line = said.lines().find(|line| line.starts_with("rooms "));
        let Some(line) = line.filter(|_| succeeded) else {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("conferences: {said}\n{log}"));
        };
        println!("  {line}");
        for (name, figures) in names.iter().zip(&mut figures) {
            figures.push(figure(line, name).ok_or(format!("no {name} in: {line}"))?);
        }
    }
    let [mean, p99, host, lost, core, each] = figures.map(median);
    let what = format!("{} G.729 streams in conferences", ROOMS * 4);
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
    bench.bar(&format!("{what}: packets lost"), lost, Bound::AtMost(0.0));
    Ok(())
}
