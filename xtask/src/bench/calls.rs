//! Calls of seven messages beside the peer, and calls at a rate that has to be held.

use super::load::{Run, beside, plain, played};
use super::{
    Bench, Bound, LOAD_CORE, RATES, SECONDS, SUBJECT_CORE, Subject, in_turn, median, subjects,
};
use crate::process::root;

/// CPU per call of the border, in that of the peer: the build of `make build`, and the optimised one.
const BAR: f64 = 0.75;
const OPTIMISED_BAR: f64 = 0.65;
/// Retransmissions above those of the peer, in calls.
const RETRANSMITTED: f64 = 0.001;
/// Response time above that of the peer, milliseconds: median and 99th percentile.
const MEDIAN_MORE: f64 = 1.0;
const LATE_MORE: f64 = 3.0;
/// Calls a second through each of both at once: together as many as SIPp's default buffers take.
const AT_ONCE: [u32; 1] = [2_000];
/// Where the border listens beside the peer, which has the address that its file names.
const OURS: &str = "127.0.0.2";
const PEERS: &str = "127.0.0.1";
/// CPU per call with media anchored, in that with media bypass.
const ANCHORED_BAR: f64 = 1.3;
/// The rate that has to be held without a failed call, and for how many seconds.
const HELD_RATE: u32 = 5_000;
const HELD_SECONDS: u32 = 60;

/// Calls beside Kamailio at each rate, turn by turn: CPU, failed calls, retransmissions, response time.
pub(super) fn calls(bench: &mut Bench) -> Result<(), String> {
    let mut subjects = subjects(bench)?;
    if let Some(anchored) = subjects.last_mut() {
        *anchored = unlimited(anchored.clone(), bench)?;
    }
    let optimised = bench.optimised();
    if let (Some(program), Some(border)) = (optimised, subjects.first()) {
        subjects.push(border.built("border, media bypass, optimised", &program));
    }
    println!(
        "7-message calls, {SECONDS} s a run, system under test on core {SUBJECT_CORE}, SIPp with its default buffers on core {LOAD_CORE}"
    );
    for rate in RATES {
        let runs = in_turn(bench.rounds, subjects.len(), |subject| {
            let run = plain(&subjects[subject], rate, &bench.scratch)?;
            run.print(&format!("{rate}/s {}", subjects[subject].name));
            Ok(run)
        })?;
        let of: Vec<Medians> = runs.iter().map(|runs| Medians::of(runs)).collect();
        let [passed_by, peer, anchored, optimised @ ..] = &of[..] else {
            return Err("calls: three systems under test are required".into());
        };
        let columns = [("make build", passed_by, BAR)].into_iter();
        let columns = columns.chain(
            optimised
                .iter()
                .map(|figures| ("make release", figures, OPTIMISED_BAR)),
        );
        for (build, ours, bar) in columns {
            beside_peer(bench, &format!("{rate}/s, {build}"), rate, ours, peer, bar);
        }
        bench.bar(
            &format!(
                "call, media anchored, {rate}/s: CPU in that of media bypass ({:.1} us)",
                anchored.micros
            ),
            anchored.micros / passed_by.micros,
            Bound::AtMost(ANCHORED_BAR),
        );
    }
    Ok(())
}

/// Medians of the runs of a system; failed calls of all runs together.
struct Medians {
    micros: f64,
    failed: u64,
    retransmitted: f64,
    response: (f64, f64),
}

impl Medians {
    fn of(runs: &[Run]) -> Medians {
        let all = |of: fn(&Run) -> f64| median(runs.iter().map(of).collect());
        // A run without response times makes a figure that holds no bar.
        let response = |run: &Run| run.response.unwrap_or((f64::NAN, f64::NAN));
        Medians {
            micros: all(|run| run.micros_per_call),
            failed: runs.iter().map(|run| run.failed).sum(),
            retransmitted: all(|run| run.retransmitted as f64),
            response: (
                median(runs.iter().map(|run| response(run).0).collect()),
                median(runs.iter().map(|run| response(run).1).collect()),
            ),
        }
    }
}

/// The bars of a call beside the peer.
fn beside_peer(bench: &mut Bench, what: &str, rate: u32, ours: &Medians, peer: &Medians, bar: f64) {
    bench.bar(
        &format!(
            "call, {what}: CPU in Kamailio's ({:.1} and {:.1} us)",
            ours.micros, peer.micros
        ),
        ours.micros / peer.micros,
        Bound::AtMost(bar),
    );
    bench.bar(
        &format!(
            "call, {what}: failed in all rounds (Kamailio {})",
            peer.failed
        ),
        ours.failed as f64,
        Bound::AtMost(0.0),
    );
    bench.bar(
        &format!(
            "call, {what}: retransmitted (Kamailio {})",
            peer.retransmitted
        ),
        ours.retransmitted,
        Bound::AtMost(peer.retransmitted + RETRANSMITTED * f64::from(rate * SECONDS)),
    );
    for (name, ours, peer, more) in [
        ("p50", ours.response.0, peer.response.0, MEDIAN_MORE),
        ("p99", ours.response.1, peer.response.1, LATE_MORE),
    ] {
        bench.bar(
            &format!("call, {what}: {name} of the response in ms (Kamailio {peer:.1})"),
            ours,
            Bound::AtMost(peer + more),
        );
    }
}

/// CPU per call of two systems at once on one core at the same rate: the noise of the machine affects both alike. The
/// border beside Kamailio, and with media anchored beside itself with media bypass.
pub(super) fn calls_beside(bench: &mut Bench) -> Result<(), String> {
    let [border, peer] = &subjects(bench)?[..2] else {
        return Err("calls: two systems under test are required".into());
    };
    println!("CPU per 7-message call, two at once on core {SUBJECT_CORE}");
    let border = listening_at(OURS, border, "loopback-bypass.toml", bench)?;
    for rate in AT_ONCE {
        let mut ratios = Vec::new();
        for _ in 0..bench.rounds {
            let pair = [(&border, OURS), (peer, PEERS)];
            ratios.push(ratio(pair, rate, bench)?);
        }
        bench.bar(
            &format!("call, media bypass, {rate}/s, both at once: CPU in Kamailio's"),
            median(ratios),
            Bound::AtMost(BAR),
        );
    }
    for rate in AT_ONCE {
        let mut ratios = Vec::new();
        // Each at each address: where it listens makes no difference then.
        for (first, second) in [(OURS, PEERS), (PEERS, OURS)] {
            let all = subjects(bench)?;
            let (Some(passed_by), Some(anchored)) = (all.first(), all.last()) else {
                return Err("calls: two systems under test are required".into());
            };
            let passed_by = listening_at(second, passed_by, "loopback-bypass.toml", bench)?;
            let anchored = unlimited(anchored.clone(), bench)?;
            let anchored = listening_at(first, &anchored, "anchored.toml", bench)?;
            for _ in 0..bench.rounds {
                ratios.push(ratio(
                    [(&anchored, first), (&passed_by, second)],
                    rate,
                    bench,
                )?);
            }
        }
        bench.bar(
            &format!("call, media anchored, {rate}/s, both at once: CPU in that of media bypass"),
            median(ratios),
            Bound::AtMost(ANCHORED_BAR),
        );
    }
    Ok(())
}

/// CPU per call of the first of two programs that run at once, in that of the second.
fn ratio(pair: [(&Subject, &str); 2], rate: u32, bench: &Bench) -> Result<f64, String> {
    let runs = beside(pair, rate, SECONDS, &bench.scratch)?;
    for (run, (subject, _)) in runs.iter().zip(pair) {
        run.print(&format!("{rate}/s {}", subject.name));
    }
    let [one, other] = runs;
    Ok(one.micros_per_call / other.micros_per_call)
}

/// The border with everything at this address of the loopback, by a copy of its file, whose name ends with `file`.
fn listening_at(
    address: &str,
    border: &Subject,
    file: &str,
    bench: &Bench,
) -> Result<Subject, String> {
    let path = border
        .arguments
        .iter()
        .find(|argument| argument.ends_with(file));
    let path = path.ok_or_else(|| format!("{file} is no file of {}", border.name))?;
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let copy = bench.scratch.join(format!("at-{address}-{file}"));
    std::fs::write(&copy, text.replace(PEERS, address)).map_err(|error| error.to_string())?;
    Ok(border.clone().with(file, &copy))
}

/// The border with media anchored and no CPU limit of admission control: these calls carry no media, and after a stall
/// of the host more of them exist at a time than the price of media admits.
fn unlimited(border: Subject, bench: &Bench) -> Result<Subject, String> {
    let example = root().join("examples/loopback.toml");
    let text = std::fs::read_to_string(example).map_err(|error| error.to_string())?;
    let path = bench.scratch.join("anchored.toml");
    std::fs::write(&path, format!("{text}\n[limits]\ncpu_percent = 100000\n"))
        .map_err(|error| error.to_string())?;
    Ok(border.with("loopback.toml", &path))
}

/// A minute at a high rate: how many calls failed.
pub(super) fn held(bench: &mut Bench) -> Result<(), String> {
    let subjects = subjects(bench)?;
    let border = subjects.first().ok_or("no border to measure")?;
    let (uac, uas) = (["-sn", "uac"], ["-sn", "uas"]);
    let run = played(border, HELD_RATE, HELD_SECONDS, &uac, &uas, &bench.scratch)?;
    run.print(&format!("{HELD_RATE}/s for {HELD_SECONDS} s"));
    bench.bar(
        &format!("failed calls at {HELD_RATE}/s in {HELD_SECONDS} s"),
        run.failed as f64,
        Bound::AtMost(0.0),
    );
    Ok(())
}
