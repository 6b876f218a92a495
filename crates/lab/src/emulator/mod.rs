//! `hornwork lab link`: the link engine of `sim` in real time between two network interfaces, TUN devices or UDP ports.

pub mod control;
pub mod ends;
pub mod engine;
pub mod own_error;
pub mod settings;

use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::raw::NoiseRecord;
use crate::statistics::{Interval, has_too_few_samples};
use ::engine::{Entropy, Time};
use control::RequestQueue;
use ends::EndName;
use engine::{LineFigures, RealTimeLink, prepare_thread};
use net::{Clock, NoiseSampler};
use own_error::OwnError;
use serde_json::{Value, json};
use settings::{BothWays, DIRECTIONS};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Lateness of sending beyond the host's noise above which a link does not keep up, milliseconds (99th percentile).
pub const LATE_MS: f64 = 1.0;

/// Bound of the lateness of a link.
#[derive(Clone, Copy, Debug)]
pub struct LatenessBound {
    /// 99th percentile beyond the host's noise, milliseconds.
    pub ms: f64,
    /// Packets from which on a direction is judged: the 99th percentile of a few packets is that of the latest one.
    pub from_packets: u64,
}

impl LatenessBound {
    /// A bound for any number of packets.
    pub fn of_any(ms: f64) -> LatenessBound {
        LatenessBound {
            ms,
            from_packets: 0,
        }
    }
}
/// Loss of a run and of its settings differ if the set one is outside an interval of this normal quantile (99.9 %).
const Z999: f64 = 3.29;

/// Options of `hornwork lab link`.
#[derive(Debug)]
pub struct EmulatorOptions {
    /// Both ends.
    pub ends: [EndName; 2],
    /// Settings of both directions.
    pub settings: BothWays,
    /// Duration, seconds; `None`: until a stop signal.
    pub seconds: Option<f64>,
    /// File for the figures as JSON; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Source of requests: `-` for standard input, or the path of a Unix socket.
    pub control: Option<PathBuf>,
    /// Seed of the random draws; by default one of the operating system.
    pub seed: Option<u64>,
    /// Bound of lateness, milliseconds ([`LATE_MS`]).
    pub late_ms: f64,
}

/// Outcome of a run.
#[derive(Debug)]
struct EmulatorRun {
    seconds: f64,
    noise: NoiseRecord,
    own_error: OwnError,
    figures: [LineFigures; 2],
    /// Reasons why the link did not keep up, or is not as set.
    faults: Vec<String>,
}

/// Runs a link until its end; prints the own error before and the figures after it.
///
/// # Errors
/// A right or an interface is missing, or an interface goes away; then the figures until then are printed, too.
pub fn run(options: &EmulatorOptions) -> Result<RunVerdict, LabError> {
    crate::files::check_places(options.json.as_deref(), None)?;
    let signals = net::Signals::install()
        .map_err(|error| LabError::cannot_run(format!("signal handlers: {error}"), ""))?;
    // A link that outlives its terminal would carry each frame beside the next link between its interfaces.
    signals.stop_on_hang_up();
    let clock = Clock::new();
    let entropy = match options.seed {
        Some(seed) => Entropy::from_number(seed),
        None => net::entropy()
            .map_err(|error| LabError::cannot_run(format!("getrandom: {error}"), ""))?,
    };
    let to_stdout = options.json.as_deref() == Some(Path::new("-"));
    let say = |text: &str| match to_stdout {
        true => eprint!("{text}"),
        false => crate::output::print(text),
    };
    let mut link = RealTimeLink::open(&options.ends, &options.settings, entropy, clock)?;
    let requests = options.control.as_deref().map(RequestQueue::start);
    let requests = requests.transpose()?;
    let own_error = own_error::measure()?;
    say(&format!("{}\n", own_error.text()));
    if signals.stops() > 0 {
        return Err(LabError::Interrupted("interrupted".to_owned()));
    }
    for (name, line) in DIRECTIONS.iter().zip(&options.settings) {
        say(&format!("{name}: {}\n", line.text()));
    }
    let sampler = NoiseSampler::start(Duration::from_millis(1), None).map_err(|error| {
        LabError::cannot_run(
            format!("cannot start the noise sampler: {error}"),
            "raise the limit of threads (ulimit -u)",
        )
    })?;
    // Packets that came during the measurement would all be late.
    link.discard()?;
    let begin = clock.now();
    let end = options.seconds.map_or(Time::NEVER, |seconds| {
        begin + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    });
    say("link is up; Ctrl-C ends it\n");
    let stop = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        let (link, stop) = (&mut link, &stop);
        let forwarder = scope.spawn(move || {
            prepare_thread();
            link.run(end, stop, requests.as_ref())
        });
        forwarder.join()
    });
    let ran = ran.unwrap_or_else(|_| Err(LabError::cannot_run("the link's thread panicked", "")));
    let seconds = clock.now().since(begin).as_secs_f64();
    let noise: NoiseRecord = sampler
        .stop()
        .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?
        .into();
    let figures = link.figures();
    let mut faults = faults(&figures, &noise, LatenessBound::of_any(options.late_ms));
    faults.extend(own_error.faults());
    // The figures until then are those of a link that an interface has left, too.
    faults.extend(ran.as_ref().err().map(fault_of));
    let run = EmulatorRun {
        seconds,
        noise,
        own_error,
        figures,
        faults,
    };
    say(&text_of(&run));
    crate::files::write_json(options.json.as_deref(), &json_of(options, &run))?;
    ran?;
    Ok(match run.faults.is_empty() {
        true => RunVerdict::Passed,
        false => RunVerdict::Failed,
    })
}

/// An error as a fault, without its remedy.
fn fault_of(error: &LabError) -> String {
    match error {
        LabError::CannotRun { problem, .. } => problem.clone(),
        other => other.to_string(),
    }
}

/// Reasons why figures are not those of the settings.
pub fn faults(
    figures: &[LineFigures; 2],
    noise: &NoiseRecord,
    bound: LatenessBound,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, name) in figures.iter().zip(DIRECTIONS) {
        // Noise excuses lateness up to the bound only: above it, it is the cause.
        let noise_ms = noise.p99_us / 1e3;
        let late = line.late_us[1] / 1e3 - noise_ms.min(bound.ms);
        if line.counts.arrived >= bound.from_packets && late > bound.ms {
            let cause = match noise_ms > bound.ms {
                true => format!(
                    "; the machine was busy, its noise is {} ms",
                    plain(noise_ms)
                ),
                false => String::new(),
            };
            faults.push(format!(
                "{name}: the link cannot keep up: packets leave {} ms late (p99, beyond noise of up to {} ms), more than {} ms{cause}",
                plain(late),
                plain(bound.ms),
                plain(bound.ms)
            ));
        }
        if line.losses.kernel_drops > 0 {
            faults.push(format!(
                "{name}: the link cannot keep up: the kernel dropped {} frames before they were read",
                line.losses.kernel_drops
            ));
        }
        if line.losses.refused > 0 {
            faults.push(format!(
                "{name}: the interface refused {}: too long for its MTU, or it was down",
                counted(line.losses.refused, "packet")
            ));
        }
        if line.losses.unsupported > 0 {
            faults.push(format!(
                "{name}: {} could not be divided: turn off segmentation offload at their sender (ethtool -K INTERFACE gso off tx-udp-segmentation off)",
                counted(line.losses.unsupported, "large frame")
            ));
        }
        if line.counts.over_limit > 0 {
            faults.push(format!(
                "{name}: {} exceeded the number that the link holds; set a shorter queue",
                counted(line.counts.over_limit, "packet")
            ));
        }
        if !loss_holds(line) {
            faults.push(format!(
                "{name}: the loss of {} of {} packets is not that of the settings",
                line.exposed.1, line.exposed.0
            ));
        }
    }
    faults
}

/// Whether the measured loss agrees with that of the settings (99.9 %).
fn loss_holds(line: &LineFigures) -> bool {
    let loss = line.settings.config().loss;
    let (exposed, lost) = (line.exposed.0 as f64, line.exposed.1 as f64);
    let p = loss.share();
    let spread = Z999 * (exposed * p * (1.0 - p) * loss.burst_packets()).sqrt();
    // A trace that has not been gone through has the losses of its beginning.
    let whole = match loss {
        sim::Loss::Trace(trace) => trace.len() as f64,
        _ => 1.0 + loss.burst_packets(),
    };
    (lost - exposed * p).abs() <= spread + whole
}

/// Least number of losses that a direction has to expect for its loss to be judged: with fewer, a link without any loss
/// would pass.
const LEAST_LOSSES: f64 = 10.0;

/// Whether the packets suffice to judge the loss. Without one in the settings each lost packet is a fault.
fn judges_loss(line: &LineFigures) -> bool {
    let share = line.settings.config().loss.share();
    match share > 0.0 {
        true => line.exposed.0 as f64 * share >= LEAST_LOSSES,
        false => line.counts.arrived > 0,
    }
}

/// The figures for which a direction has too few packets, as a sentence.
fn not_judged(line: &LineFigures, name: &str) -> Option<String> {
    let arrived = line.counts.arrived;
    Some(match (arrived, judges_loss(line)) {
        (0, _) if line.exposed.0 == 0 => {
            format!("{name}: no packet arrived, so its delay and loss are not known")
        }
        (0, _) => format!("{name}: no packet arrived, so its delay is not known"),
        (_, false) => format!(
            "{name}: the loss: {} are too few for {} %",
            counted(line.exposed.0, "packet"),
            plain(line.settings.config().loss.share() * 100.0)
        ),
        (_, true) if has_too_few_samples(arrived, 0.99) => format!(
            "{name}: {} are too few for a 99th percentile: it is close to the latest one",
            counted(arrived, "packet")
        ),
        _ => return None,
    })
}

/// Interval of the loss. Losses that come in bursts are no independent events.
fn loss_interval(line: &LineFigures) -> Interval {
    loss_interval_of(line.exposed, &line.settings.config().loss)
}

fn loss_interval_of((exposed, lost): (u64, u64), loss: &sim::Loss) -> Interval {
    Interval::of_correlated_share((lost, exposed), loss.correlation(), 100.0, "packets")
}

/// The packets of the interval of the loss, where they are not those of the whole run: the settings were changed.
fn span_of_loss(line: &LineFigures, name: &str) -> Option<String> {
    let (exposed, lost) = line.exposed;
    (line.counts.exposed != exposed).then(|| {
        format!(
            "{name}: lost % is that since the settings changed last ({lost} of {exposed} packets); the other columns are those of the whole run\n"
        )
    })
}

fn text_of(run: &EmulatorRun) -> String {
    let ends = |value: Option<f64>| value.map_or("-".to_owned(), plain);
    let rows: Vec<Vec<String>> = run
        .figures
        .iter()
        .zip(DIRECTIONS)
        .map(|(line, name)| {
            let interval = loss_interval(line);
            let counts = &line.counts;
            vec![
                name.to_owned(),
                counts.offered.to_string(),
                counts.arrived.to_string(),
                counts.lost.to_string(),
                format!("{}-{}", ends(interval.low), ends(interval.high)),
                (counts.queue_full + counts.codel).to_string(),
                counts.too_large.to_string(),
                format!("{}/{}", counts.duplicated, counts.corrupted),
                plain(line.bytes as f64 * 8.0 / 1e3 / run.seconds.max(1e-9)),
                plain(line.late_us[0] / 1e3),
                plain(line.late_us[1] / 1e3),
                plain(line.late_us[2] / 1e3),
            ]
        })
        .collect();
    let mut text = crate::output::columns(
        &[
            "direction",
            "in",
            "out",
            "lost",
            "lost % (95 %)",
            "queue",
            "mtu",
            "dup/corrupt",
            "kbit/s",
            "late p50 ms",
            "p99 ms",
            "max ms",
        ],
        &rows,
    );
    text.push_str(&format!(
        "{} s; host's noise p99 {} ms\n",
        plain(run.seconds),
        plain(run.noise.p99_us / 1e3)
    ));
    for (line, name) in run.figures.iter().zip(DIRECTIONS) {
        text.extend(span_of_loss(line, name));
        if line.discarded > 0 {
            text.push_str(&format!(
                "{name}: {} from before the beginning did not enter the link\n",
                counted(line.discarded, "packet")
            ));
        }
    }
    for (line, name) in run.figures.iter().zip(DIRECTIONS) {
        let open = not_judged(line, name);
        text.extend(open.map(|open| format!("not judged: {open}\n")));
    }
    for fault in &run.faults {
        text.push_str(&format!("failed: {fault}\n"));
    }
    text
}

/// Figures of one direction as JSON.
pub fn line_json(line: &LineFigures, name: &str) -> Value {
    let interval = loss_interval(line);
    let counts = &line.counts;
    let percent = match line.exposed.0 {
        0 => None,
        exposed => Some(line.exposed.1 as f64 * 100.0 / exposed as f64),
    };
    json!({
        "direction": name,
        "settings": line.settings.to_json(),
        "offered": counts.offered,
        "arrived": counts.arrived,
        "bytes": line.bytes,
        "lost": counts.lost,
        "loss_percent": percent,
        "loss_interval": [interval.low, interval.high],
        "loss_packets": line.exposed.0,
        "loss_lost": line.exposed.1,
        "loss_holds": loss_holds(line),
        "loss_judged": judges_loss(line),
        "not_judged": not_judged(line, name),
        "queue_full": counts.queue_full,
        "codel_drops": counts.codel,
        "too_large": counts.too_large,
        "duplicated": counts.duplicated,
        "corrupted": counts.corrupted,
        "over_limit": counts.over_limit,
        "refused": line.losses.refused,
        "kernel_drops": line.losses.kernel_drops,
        "unsupported": line.losses.unsupported,
        "discarded": line.discarded,
        "late_p50_us": line.late_us[0],
        "late_p99_us": line.late_us[1],
        "late_max_us": line.late_us[2],
    })
}

fn json_of(options: &EmulatorOptions, run: &EmulatorRun) -> Value {
    let names = options.ends.iter().map(|name| match name {
        EndName::Interface(name) => name.clone(),
        EndName::Tun(name) => format!("tun:{name}"),
        EndName::Udp(local, peer) => format!("udp:{local}={peer}"),
    });
    let names: Vec<String> = names.collect();
    let lines = run.figures.iter().zip(DIRECTIONS);
    json!({
        "a": names.first(),
        "b": names.get(1),
        "seconds": run.seconds,
        "own_error": run.own_error,
        "noise": run.noise,
        "late_bound_ms": options.late_ms,
        "directions": lines.map(|(line, name)| line_json(line, name)).collect::<Vec<_>>(),
        "kept_up": run.faults.is_empty(),
        "faults": run.faults,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hops::DelayCounter;
    use ends::EndLosses;
    use settings::LineSettings;
    use sim::EmulatorCounts;

    #[test]
    fn interval_of_losses_in_bursts_contains_the_set_share() {
        const RUNS: u64 = 100;
        let contains = |loss: &sim::Loss| {
            let runs = (0..RUNS).filter(|seed| {
                let config = sim::LinkConfig {
                    loss: loss.clone(),
                    ..sim::LinkConfig::default()
                };
                let link = sim::Link::new(config, Entropy::from_number(*seed));
                let mut emulator = sim::Emulator::new(link, 1_000);
                for number in 0..8_000 {
                    let now = Time::from_millis(number);
                    let _ = emulator.push((), 200, now);
                    while emulator.pop(now).is_some() {}
                }
                let counts = emulator.counts();
                let interval = loss_interval_of((counts.exposed, counts.lost), loss);
                let percent = loss.share() * 100.0;
                interval.low.unwrap() <= percent && percent <= interval.high.unwrap()
            });
            runs.count()
        };
        // 95 % of the runs, less three standard deviations.
        for loss in [sim::Loss::Random(0.02), sim::Loss::in_bursts(0.02, 4.0)] {
            let found = contains(&loss);
            assert!(found >= 88, "{loss:?}: {found} of {RUNS}");
        }
    }

    fn line(arrived: u64, late_ms: f64) -> LineFigures {
        LineFigures {
            settings: LineSettings::default(),
            counts: EmulatorCounts {
                offered: arrived,
                arrived,
                ..EmulatorCounts::default()
            },
            bytes: 0,
            exposed: (0, 0),
            late_us: [0.0, late_ms * 1e3, late_ms * 1e3],
            discarded: 0,
            delays: DelayCounter::default(),
            losses: EndLosses::default(),
        }
    }

    #[test]
    fn loss_since_a_change_is_labelled() {
        let lost_one = |exposed: (u64, u64)| {
            let mut line = line(63, 0.1);
            (line.counts.exposed, line.counts.lost) = (64, 1);
            line.exposed = exposed;
            line
        };
        assert_eq!(span_of_loss(&lost_one((64, 1)), DIRECTIONS[0]), None);
        let changed = lost_one((31, 0));
        let label = span_of_loss(&changed, DIRECTIONS[0]).unwrap();
        assert!(
            label.starts_with("a-to-b: lost % is that since the settings changed last (0 of 31"),
            "{label}"
        );
        let json = line_json(&changed, DIRECTIONS[0]);
        assert_eq!((&json["lost"], &json["loss_lost"]), (&json!(1), &json!(0)));
        assert_eq!(json["loss_packets"], 31);
        assert_eq!(json["discarded"], 0);
    }

    #[test]
    fn few_packets_are_no_judgement() {
        let with = |arrived: u64, exposed: u64, percent: f64| {
            let mut line = line(arrived, 0.1);
            line.exposed = (exposed, 0);
            line.settings.loss = percent / 100.0;
            line
        };
        let text = |line: &LineFigures| not_judged(line, "a-to-b").unwrap_or_default();
        assert!(text(&with(0, 0, 0.0)).contains("no packet arrived"));
        let few = with(400, 400, 1.0);
        assert_eq!(
            text(&few),
            "a-to-b: the loss: 400 packets are too few for 1 %"
        );
        assert_eq!(line_json(&few, "a-to-b")["loss_judged"], false);
        assert!(
            text(&with(299, 299, 0.0)).contains("299 packets are too few for a 99th percentile")
        );
        let enough = with(1_000, 1_000, 1.0);
        assert_eq!(not_judged(&enough, "a-to-b"), None);
        assert_eq!(line_json(&enough, "a-to-b")["loss_judged"], true);
    }

    #[test]
    fn each_direction_is_judged_by_its_own_packets() {
        let noise = NoiseRecord {
            p99_us: 500.0,
            ..NoiseRecord::default()
        };
        let bound = LatenessBound {
            ms: 2.0,
            from_packets: 300,
        };
        let judged = |up: LineFigures, down: LineFigures| faults(&[up, down], &noise, bound);
        assert!(judged(line(300, 2.4), line(299, 9.0)).is_empty());
        // A direction without packets leaves the other one judged.
        let found = judged(line(300, 2.6), line(0, 0.0));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with(DIRECTIONS[0]) && found[0].contains("cannot keep up"));
        // Noise above the bound is the cause, not an excuse; a link within the bound is not affected by it.
        let busy = NoiseRecord {
            p99_us: 60_000.0,
            ..NoiseRecord::default()
        };
        let found = faults(&[line(300, 60.0), line(300, 3.9)], &busy, bound);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("its noise is 60 ms"), "{found:?}");
        // Losses that the settings do not have.
        let refusing = |losses: EndLosses| LineFigures {
            losses,
            ..line(300, 0.5)
        };
        let refused = EndLosses {
            refused: 3,
            ..EndLosses::default()
        };
        let unsupported = EndLosses {
            unsupported: 1,
            ..EndLosses::default()
        };
        let found = judged(line(300, 0.5), refusing(refused));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(DIRECTIONS[1]), "{found:?}");
        assert!(found[0].contains("refused 3 packets"), "{found:?}");
        let found = judged(refusing(unsupported), line(300, 0.5));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("1 large frame could not"), "{found:?}");
        let any = LatenessBound::of_any(2.0);
        assert_eq!(faults(&[line(1, 2.6), line(1, 2.4)], &noise, any).len(), 1);
    }
}
