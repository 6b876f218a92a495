//! Calls of seven messages beside the peer, and calls at a rate that has to be held.

use super::load::{beside, plain, played};
use super::{
    Bench, Bound, LOAD_CORE, SECONDS, SUBJECT_CORE, Subject, interleaved, median, subjects,
};
use crate::process::root;

/// Calls a second. Waking a processor is dear, so that a call costs less the more of them come.
const CALLS: [u32; 3] = [2_000, 4_000, 8_000];
/// CPU per call of the border, in that of the peer.
const BAR: f64 = 0.4;
/// Calls a second through each of both at once: as many as one core takes.
const AT_ONCE: [u32; 2] = [2_000, 4_000];
/// Where the border listens beside the peer, which has the address that its file says.
const OURS: &str = "127.0.0.2";
const PEERS: &str = "127.0.0.1";
/// CPU per call with media anchored, in that with media passed by.
const ANCHORED_BAR: f64 = 1.3;
/// The rate that has to be held without a failed call, and for how many seconds.
const HELD_RATE: u32 = 5_000;
const HELD_SECONDS: u32 = 60;

/// CPU per call beside Kamailio at each rate of [`CALLS`], turn by turn.
pub(super) fn calls(bench: &mut Bench) -> Result<(), String> {
    let mut subjects = subjects(bench);
    if let Some(anchored) = subjects.last_mut() {
        *anchored = unlimited(anchored.clone(), bench)?;
    }
    println!(
        "CPU per 7-message call, {SECONDS} s a run, subject on core {SUBJECT_CORE}, SIPp on core {LOAD_CORE}"
    );
    for rate in CALLS {
        let names: Vec<&str> = subjects.iter().map(|subject| subject.name).collect();
        let medians = interleaved(bench.rounds, &names, |subject| {
            let run = plain(&subjects[subject], rate, &bench.scratch)?;
            run.print(&format!("{rate}/s {}", subjects[subject].name));
            Ok(run.micros_per_call)
        })?;
        let [passed_by, peer, anchored] = medians[..] else {
            return Err("three subjects were to be measured".into());
        };
        bench.bar(
            &format!("call, media passed by, {rate}/s: CPU in Kamailio's ({passed_by:.1} and {peer:.1} us)"),
            passed_by / peer,
            Bound::AtMost(BAR),
        );
        bench.bar(
            &format!(
                "call, media anchored, {rate}/s: CPU in that of media passed by ({anchored:.1} us)"
            ),
            anchored / passed_by,
            Bound::AtMost(ANCHORED_BAR),
        );
    }
    Ok(())
}

/// CPU per call of two subjects at once on one core at the same rate: whatever else the machine does meets both alike. The border beside
/// Kamailio, and with media anchored beside itself with media passed by.
pub(super) fn calls_beside(bench: &mut Bench) -> Result<(), String> {
    let [border, peer] = &subjects(bench)[..2] else {
        return Err("two subjects were to be measured".into());
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
            &format!("call, media passed by, {rate}/s, both at once: CPU in Kamailio's"),
            median(ratios),
            Bound::AtMost(BAR),
        );
    }
    for rate in AT_ONCE {
        let mut ratios = Vec::new();
        // Each at each address: where it listens makes no difference then.
        for (first, second) in [(OURS, PEERS), (PEERS, OURS)] {
            let all = subjects(bench);
            let (Some(passed_by), Some(anchored)) = (all.first(), all.last()) else {
                return Err("two subjects were to be measured".into());
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
            &format!(
                "call, media anchored, {rate}/s, both at once: CPU in that of media passed by"
            ),
            median(ratios),
            Bound::AtMost(ANCHORED_BAR),
        );
    }
    Ok(())
}

/// What a call costs the first of two at once, in what it costs the second.
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

/// The border with media anchored, and no limit by what media may cost: these calls last no time and have none, and a border that
/// counts on it refuses those that stand at once after a standstill.
fn unlimited(border: Subject, bench: &Bench) -> Result<Subject, String> {
    let example = root().join("examples/loopback.toml");
    let text = std::fs::read_to_string(example).map_err(|error| error.to_string())?;
    let path = bench.scratch.join("anchored.toml");
    std::fs::write(&path, format!("{text}\n[limits]\nprocessor = 100000\n"))
        .map_err(|error| error.to_string())?;
    Ok(border.with("loopback.toml", &path))
}

/// A minute at a high rate: how many calls failed.
pub(super) fn held(bench: &mut Bench) -> Result<(), String> {
    let subjects = subjects(bench);
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
