//! Figures of a trial, computed from its raw records and nothing else.

use crate::error::Verdict;
use crate::experiment::Thresholds;
use crate::metrics::{self, SipMetrics};
use crate::planes::Planes;
use crate::record::{Attempt, Kind, Outcome, StreamRecord};
use crate::statistics::too_few;
use serde::{Deserialize, Serialize};

/// Upper bounds of the classes of response time, milliseconds: those of SIPp and of study U. The last class is open.
pub const CLASS_BOUNDS_MS: [f64; 8] = [10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 150.0, 200.0];

/// An answer that comes within this, milliseconds, is in time: nothing had to be sent again for it (T1 of RFC 3261).
pub const IN_TIME_MS: f64 = 500.0;

/// The workload of streams that go past the subject, so that the host's own jitter shows.
pub const NOISE: &str = "noise";
/// The workload at which jitter is measured, where there is one beside the load.
pub const PROBE: &str = "probe";

/// Names of the classes.
pub const CLASS_NAMES: [&str; 9] = [
    "<10", "10-20", "20-30", "30-40", "40-50", "50-100", "100-150", "150-200", ">=200",
];

/// Calls, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Due, whether they could start or not.
    pub attempted: u64,
    /// Answered with 2xx.
    pub established: u64,
    /// Established and ended as planned.
    pub completed: u64,
    /// Neither completed nor cancelled as planned.
    pub failed: u64,
}

/// Quantiles of a response time, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Attempts that were answered, of which both are quantiles.
    #[serde(default)]
    pub samples: u64,
    /// Whether they are too few for a 99th percentile: fewer than 300.
    #[serde(default)]
    pub p99_of_few: bool,
}

/// Jitter over all streams, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JitterFigures {
    /// Mean over all packets.
    pub mean: Option<f64>,
    /// 99th percentile over the streams of each stream's own 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
}

/// What was heard on the calls that were listened to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AudioFigures {
    /// Smallest correlation of speech heard with speech said.
    pub correlation: Option<f64>,
    /// Level heard against level said, dB: the one farthest from zero.
    pub level_db: Option<f64>,
}

/// The blocks that `demo --json` and `lab run --json` share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Calls.
    pub calls: CallCounts,
    /// INVITE to 2xx; in an experiment without calls, REGISTER to 2xx, of re-registrations at a rate where there are any.
    pub response_ms: Response,
    /// Jitter.
    pub jitter_ms: JitterFigures,
    /// Media packets lost, percent of those expected; `null` without media.
    pub lost_percent: Option<f64>,
    /// Mean opinion score, mean over the streams.
    pub mos: Option<f64>,
    /// Speech.
    pub audio: AudioFigures,
    /// CPU time of the subject per established call (per registration where there are no calls), microseconds. Media packets that the
    /// subject relayed are in it: where there were some, [`Details::planes`] has signalling and media apart.
    pub cpu_us_per_call: Option<f64>,
    /// Directory or page of the report.
    pub report: String,
}

/// Further figures of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// Registrations, refreshes and removals together; established are those accepted.
    pub registrations: CallCounts,
    /// Attempts per outcome, those above zero, in a fixed order.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Final statuses of refused attempts, in rising order.
    pub statuses: Vec<(u16, u64)>,
    /// Established calls (registrations where there are no calls) per class of response time.
    pub response_classes: [u64; 9],
    /// Attempts that could not start.
    pub not_started: u64,
    /// Most calls established at a time.
    pub peak_calls: u64,
    /// The generator's own lateness, milliseconds: median, 99th percentile, largest.
    pub lateness_ms: [Option<f64>; 3],
    /// Largest mean one-way delay of a stream, milliseconds.
    pub one_way_ms: Option<f64>,
    /// Largest mean round trip, milliseconds.
    pub round_trip_ms: Option<f64>,
    /// Delay of single packets, where they were timed: the median of the streams' medians, the 99th percentile of their 99th
    /// percentiles, the largest of all; milliseconds.
    #[serde(default)]
    pub relay_ms: [Option<f64>; 3],
    /// CPU time of the subject per media packet received by anybody, microseconds.
    #[serde(default)]
    pub cpu_us_per_packet: Option<f64>,
    /// Calls that each media node was given.
    #[serde(default)]
    pub node_calls: Vec<u64>,
    /// The same CPU time divided by plane.
    #[serde(default)]
    pub planes: Planes,
    /// The host's own jitter, milliseconds: that of streams of the laboratory's that went past the subject, from a thread of
    /// their own, in the same time.
    #[serde(default)]
    pub noise_jitter_ms: JitterFigures,
    /// Cores that the subject kept busy while it was measured.
    #[serde(default)]
    pub subject_cores: Option<f64>,
    /// How busy all processors of this machine were meanwhile, percent.
    #[serde(default)]
    pub host_cpu_percent: Option<f64>,
    /// Streams received or due; what a side only sends is another's.
    pub streams: u64,
    /// Packets received.
    pub packets: u64,
    /// Calls on which speech was compared.
    pub listened: u64,
    /// Calls (registrations where there are no calls) answered with 2xx per second of the time in which they were due.
    #[serde(default)]
    pub established_per_second: Option<f64>,
    /// The same, counting those alone that were answered within [`IN_TIME_MS`] and ended as planned: what an overload left of
    /// service to those who were served.
    #[serde(default)]
    pub in_time_per_second: Option<f64>,
    /// Median response time of the attempts due in the middle third of the trial and in the last, milliseconds: a subject
    /// that cannot keep up answers ever later.
    #[serde(default)]
    pub thirds_ms: Option<[f64; 2]>,
    /// The metrics of RFC 6076.
    #[serde(default)]
    pub sip: SipMetrics,
}

impl Details {
    /// How far the shares of the media nodes lie apart: the largest less the smallest, percent of their mean; `None` with fewer than two
    /// nodes, or without calls.
    pub fn node_spread_percent(&self) -> Option<f64> {
        let (most, least) = (self.node_calls.iter().max()?, self.node_calls.iter().min()?);
        let count = self.node_calls.len();
        let mean = self.node_calls.iter().sum::<u64>() as f64 / count as f64;
        (count > 1 && mean > 0.0).then(|| (most - least) as f64 * 100.0 / mean)
    }

    /// Attempts without an answer.
    fn timed_out(&self) -> u64 {
        let silent = |outcome| matches!(outcome, Outcome::TimedOut | Outcome::Unfinished);
        let counts = self.outcomes.iter();
        counts
            .filter(|(outcome, _)| silent(*outcome))
            .map(|(_, count)| count)
            .sum()
    }
}

/// A threshold and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Key in the experiment file.
    pub name: String,
    /// The bound.
    pub limit: f64,
    /// What was measured; `null` where there was nothing to measure.
    pub measured: Option<f64>,
    /// Whether it holds; `null` where there was nothing to measure: it neither holds nor fails then.
    pub holds: Option<bool>,
}

impl Check {
    /// Whether it was measured, and does not hold.
    pub fn failed(&self) -> bool {
        self.holds == Some(false)
    }

    /// Its verdict alone.
    pub const fn verdict(&self) -> Verdict {
        match self.holds {
            Some(true) => Verdict::Passed,
            Some(false) => Verdict::Failed,
            None => Verdict::NotMeasured,
        }
    }
}

/// The verdict over these checks: failed where one failed; else passed where one holds, whatever could not be measured beside it.
pub fn verdict<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Verdict {
    let verdicts = checks.into_iter().map(Check::verdict);
    verdicts.fold(Verdict::NotJudged, Verdict::beside)
}

/// Quantile of sorted values by linear interpolation.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let (a, b) = (sorted.get(low)?, sorted.get(place.ceil() as usize)?);
    Some(a + (b - a) * (place - low as f64))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

/// What counts as a registration.
pub(crate) const REGISTERING: [Kind; 4] = [
    Kind::Registration,
    Kind::Refresh,
    Kind::Reregistration,
    Kind::Deregistration,
];

fn count(attempts: &[&Attempt]) -> CallCounts {
    let of = |test: &dyn Fn(&Attempt) -> bool| attempts.iter().filter(|a| test(a)).count() as u64;
    CallCounts {
        attempted: attempts.len() as u64,
        established: of(&|a| a.established.is_some()),
        completed: of(&|a| a.outcome == Outcome::Completed),
        failed: of(&|a| !a.outcome.is_good()),
    }
}

/// The figures of one trial. `cpu_seconds` is the subject's.
pub fn compute(
    attempts: &[Attempt],
    streams: &[StreamRecord],
    cpu_seconds: Option<f64>,
) -> (Figures, Details) {
    let calls: Vec<&Attempt> = attempts.iter().filter(|a| a.kind == Kind::Call).collect();
    let registrations: Vec<&Attempt> = attempts
        .iter()
        .filter(|a| REGISTERING.contains(&a.kind))
        .collect();
    let main = &main_attempts(attempts);
    let (subject, _) = without_noise(streams);
    let responses = sorted(main.iter().filter_map(|a| a.response_ms()));
    let figures = Figures {
        calls: count(&calls),
        response_ms: Response {
            p50: quantile(&responses, 0.5),
            p99: quantile(&responses, 0.99),
            samples: responses.len() as u64,
            p99_of_few: too_few(responses.len() as u64, 0.99),
        },
        jitter_ms: jitter(&probed(&subject)),
        lost_percent: lost_percent(&subject),
        mos: mean(subject.iter().filter_map(|s| s.mos)),
        audio: audio(&subject),
        cpu_us_per_call: cpu_seconds
            .filter(|_| !responses.is_empty())
            .map(|seconds| seconds * 1e6 / responses.len() as f64),
        report: String::new(),
    };
    let mut details = details(attempts, main, &registrations, streams, &responses);
    details.cpu_us_per_packet = cpu_seconds
        .filter(|_| details.packets > 0)
        .map(|seconds| seconds * 1e6 / details.packets as f64);
    (figures, details)
}

/// The attempts that response times, rates and processor time are about: calls; without calls re-registrations at a rate; without
/// these all registrations. What comes before re-registrations at a rate, and after, only prepares and tidies up.
pub(crate) fn main_attempts(attempts: &[Attempt]) -> Vec<&Attempt> {
    let of = |kinds: &[Kind]| -> Vec<&Attempt> {
        let attempts = attempts.iter();
        attempts.filter(|a| kinds.contains(&a.kind)).collect()
    };
    let calls = of(&[Kind::Call]);
    if !calls.is_empty() {
        return calls;
    }
    let again = of(&[Kind::Reregistration]);
    match again.is_empty() {
        false => again,
        true => of(&REGISTERING),
    }
}

/// The streams that figures of media are about: without those that went past the subject.
pub(crate) fn measured_streams(streams: &[StreamRecord]) -> Vec<&StreamRecord> {
    without_noise(streams).0
}

fn details(
    attempts: &[Attempt],
    main: &[&Attempt],
    registrations: &[&Attempt],
    streams: &[StreamRecord],
    responses: &[f64],
) -> Details {
    let mine = || attempts.iter().filter(|a| a.kind != Kind::Answer);
    let (streams, noise) = without_noise(streams);
    let late = sorted(mine().filter_map(Attempt::lateness_ms));
    Details {
        registrations: count(registrations),
        outcomes: Outcome::ALL
            .iter()
            .map(|outcome| {
                (
                    *outcome,
                    mine().filter(|a| a.outcome == *outcome).count() as u64,
                )
            })
            .filter(|(_, count)| *count > 0)
            .collect(),
        statuses: statuses(mine()),
        response_classes: classes(responses),
        not_started: mine().filter(|a| !a.outcome.was_started()).count() as u64,
        peak_calls: peak(main),
        lateness_ms: [0.5, 0.99, 1.0].map(|q| quantile(&late, q)),
        one_way_ms: largest(streams.iter().filter_map(|s| s.one_way_mean_ms)),
        round_trip_ms: largest(streams.iter().filter_map(|s| s.round_trip_ms)),
        relay_ms: relay(&streams),
        cpu_us_per_packet: None,
        planes: Planes::default(),
        node_calls: Vec::new(),
        noise_jitter_ms: jitter(&noise),
        subject_cores: None,
        host_cpu_percent: None,
        streams: streams.iter().filter(|s| s.is_awaited()).count() as u64,
        packets: streams.iter().map(|s| s.received).sum(),
        established_per_second: per_second(main, |a| a.established.is_some()),
        in_time_per_second: per_second(main, in_time),
        thirds_ms: thirds(main),
        sip: metrics::compute(attempts),
        listened: streams.iter().filter(|s| s.correlation.is_some()).count() as u64,
    }
}

/// Medians of the middle and of the last third, by the order in which attempts were due.
fn thirds(main: &[&Attempt]) -> Option<[f64; 2]> {
    let mut timed: Vec<(u64, f64)> = main
        .iter()
        .filter_map(|a| Some((a.due, a.response_ms()?)))
        .collect();
    timed.sort_by_key(|(due, _)| *due);
    let third = timed.len() / 3;
    let median = |part: &[(u64, f64)]| quantile(&sorted(part.iter().map(|(_, ms)| *ms)), 0.5);
    let (middle, last) = (timed.get(third..2 * third)?, timed.get(2 * third..)?);
    Some([median(middle)?, median(last)?])
}

pub(crate) fn in_time(attempt: &Attempt) -> bool {
    attempt.outcome == Outcome::Completed && attempt.response_ms().is_some_and(|ms| ms < IN_TIME_MS)
}

/// The time of `n` attempts is that from the first to the last one and one gap more; a single attempt has no rate.
fn per_second(main: &[&Attempt], counts: impl Fn(&Attempt) -> bool) -> Option<f64> {
    let first = main.iter().map(|a| a.due).min()?;
    let last = main.iter().map(|a| a.due).max()?;
    let gaps = main.len().checked_sub(1).filter(|gaps| *gaps > 0)? as f64;
    let seconds = (last - first) as f64 / 1e9 * (gaps + 1.0) / gaps;
    let counted = main.iter().filter(|a| counts(a)).count();
    (seconds > 0.0).then(|| counted as f64 / seconds)
}

fn statuses<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> Vec<(u16, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for attempt in attempts.filter(|a| a.outcome == Outcome::Refused) {
        *counts.entry(attempt.status).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// Response times per class.
pub fn classes(responses_ms: &[f64]) -> [u64; 9] {
    let mut counts = [0; 9];
    for response in responses_ms {
        let class = CLASS_BOUNDS_MS
            .iter()
            .filter(|bound| *response >= **bound)
            .count();
        if let Some(count) = counts.get_mut(class) {
            *count += 1;
        }
    }
    counts
}

/// Most calls established at a time.
fn peak(calls: &[&Attempt]) -> u64 {
    let mut changes: Vec<(u64, i64)> = Vec::with_capacity(calls.len() * 2);
    for call in calls {
        let Some(established) = call.established else {
            continue;
        };
        changes.push((established, 1));
        changes.push((call.ended.unwrap_or(u64::MAX), -1));
    }
    // At the same instant an end counts before a beginning.
    changes.sort_unstable();
    let (mut open, mut most) = (0i64, 0i64);
    for (_, change) in changes {
        open += change;
        most = most.max(open);
    }
    most.max(0) as u64
}

fn jitter(streams: &[&StreamRecord]) -> JitterFigures {
    let mut weighted = (0.0, 0.0);
    for stream in streams {
        if let Some(jitter) = stream.jitter_mean_ms {
            weighted.0 += jitter * stream.received as f64;
            weighted.1 += stream.received as f64;
        }
    }
    let p99 = sorted(streams.iter().filter_map(|s| s.jitter_p99_ms));
    JitterFigures {
        mean: (weighted.1 > 0.0).then(|| weighted.0 / weighted.1),
        p99: quantile(&p99, 0.99),
        max: largest(streams.iter().filter_map(|s| s.jitter_max_ms)),
    }
}

/// Streams that went through the subject, and those that only show the host's own noise.
fn without_noise(streams: &[StreamRecord]) -> (Vec<&StreamRecord>, Vec<&StreamRecord>) {
    streams.iter().partition(|stream| stream.workload != NOISE)
}

/// Where a probe was sent along, jitter is measured at it alone.
fn probed<'a>(streams: &[&'a StreamRecord]) -> Vec<&'a StreamRecord> {
    let probe: Vec<&StreamRecord> = streams
        .iter()
        .copied()
        .filter(|stream| stream.workload == PROBE)
        .collect();
    match probe.is_empty() {
        true => streams.to_vec(),
        false => probe,
    }
}

/// Delay of single packets over all streams that were timed.
fn relay(streams: &[&StreamRecord]) -> [Option<f64>; 3] {
    let medians = sorted(streams.iter().filter_map(|s| s.relay_p50_ms));
    let p99 = sorted(streams.iter().filter_map(|s| s.relay_p99_ms));
    let most = largest(streams.iter().filter_map(|s| s.relay_max_ms));
    [quantile(&medians, 0.5), quantile(&p99, 0.99), most]
}

fn lost_percent(streams: &[&StreamRecord]) -> Option<f64> {
    let expected: u64 = streams.iter().map(|s| s.expected).sum();
    let lost: u64 = streams.iter().map(|s| s.lost).sum();
    (expected > 0).then(|| lost as f64 * 100.0 / expected as f64)
}

fn audio(streams: &[&StreamRecord]) -> AudioFigures {
    AudioFigures {
        correlation: streams
            .iter()
            .filter_map(|s| s.correlation)
            .reduce(f64::min),
        level_db: streams
            .iter()
            .filter_map(|s| s.level_db)
            .reduce(|a, b| if b.abs() > a.abs() { b } else { a }),
    }
}

/// Judges a trial. `leaks` is what the subject and the generator still hold, where that is known.
pub fn judge(
    thresholds: &Thresholds,
    figures: &Figures,
    details: &Details,
    leaks: Option<u64>,
) -> Vec<Check> {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 * 100.0 / whole as f64);
    let attempted = figures.calls.attempted + details.registrations.attempted;
    let failed = figures.calls.failed + details.registrations.failed;
    let at_most = [
        (
            "failed_percent",
            thresholds.failed_percent,
            share(failed, attempted),
        ),
        (
            "not_started_percent",
            thresholds.not_started_percent,
            share(details.not_started, attempted),
        ),
        (
            "response_p50_ms",
            thresholds.response_p50_ms,
            figures.response_ms.p50,
        ),
        (
            "response_p99_ms",
            thresholds.response_p99_ms,
            figures.response_ms.p99,
        ),
        (
            "lost_percent",
            thresholds.lost_percent,
            figures.lost_percent,
        ),
        (
            "jitter_p99_ms",
            thresholds.jitter_p99_ms,
            figures.jitter_ms.p99,
        ),
        (
            "jitter_mean_above_noise_ms",
            thresholds.jitter_mean_above_noise_ms,
            above(figures.jitter_ms.mean, details.noise_jitter_ms.mean),
        ),
        (
            "jitter_p99_above_noise_ms",
            thresholds.jitter_p99_above_noise_ms,
            above(figures.jitter_ms.p99, details.noise_jitter_ms.p99),
        ),
        (
            "host_cpu_percent",
            thresholds.host_cpu_percent,
            details.host_cpu_percent,
        ),
        ("relay_p50_ms", thresholds.relay_p50_ms, details.relay_ms[0]),
        ("relay_p99_ms", thresholds.relay_p99_ms, details.relay_ms[1]),
        ("one_way_ms", thresholds.one_way_ms, details.one_way_ms),
        (
            "round_trip_ms",
            thresholds.round_trip_ms,
            details.round_trip_ms,
        ),
        (
            "lateness_p99_ms",
            thresholds.lateness_p99_ms,
            details.lateness_ms[1],
        ),
        (
            "timed_out",
            thresholds.timed_out.map(|most| most as f64),
            Some(details.timed_out() as f64),
        ),
        (
            "leaks",
            thresholds.leaks.map(|leaks| leaks as f64),
            leaks.map(|leaks| leaks as f64),
        ),
    ];
    let at_least = [
        ("mos", thresholds.mos, figures.mos),
        (
            "correlation",
            thresholds.correlation,
            figures.audio.correlation,
        ),
    ];
    let most = at_most.into_iter().filter_map(|(name, limit, measured)| {
        check(name, limit, measured, |measured, limit| measured <= limit)
    });
    let least = at_least.into_iter().filter_map(|(name, limit, measured)| {
        check(name, limit, measured, |measured, limit| measured >= limit)
    });
    most.chain(least).collect()
}

/// By how much a figure is above the host's own, at least nothing.
fn above(figure: Option<f64>, host: Option<f64>) -> Option<f64> {
    Some((figure? - host?).max(0.0))
}

fn check(
    name: &str,
    limit: Option<f64>,
    measured: Option<f64>,
    holds: impl Fn(f64, f64) -> bool,
) -> Option<Check> {
    let limit = limit?;
    Some(Check {
        name: name.to_owned(),
        limit,
        measured,
        holds: measured.map(|measured| holds(measured, limit)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Time;

    fn call(number: u64, response_ms: Option<u64>, outcome: Outcome) -> Attempt {
        let mut attempt = Attempt::new("callers", Kind::Call, number, Time::from_millis(number));
        attempt.sent = outcome.was_started().then_some(attempt.due + 100_000);
        attempt.established = response_ms.map(|ms| attempt.due + 100_000 + ms * 1_000_000);
        attempt.ended = attempt.established.map(|at| at + 1_000_000_000);
        attempt.outcome = outcome;
        attempt
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0], 1.0), Some(2.0));
    }

    #[test]
    fn the_classes_are_half_open() {
        let counts = classes(&[0.0, 9.999, 10.0, 49.9, 50.0, 199.9, 200.0, 9e9]);
        assert_eq!(counts, [2, 1, 0, 0, 1, 1, 0, 1, 2]);
    }

    #[test]
    fn calls_are_counted_by_outcome() {
        let mut refused = call(3, None, Outcome::Refused);
        refused.status = 503;
        let attempts = [
            call(0, Some(5), Outcome::Completed),
            call(1, Some(15), Outcome::CutOff),
            call(2, None, Outcome::LimitReached),
            refused,
            call(4, None, Outcome::Cancelled),
        ];
        let (figures, details) = compute(&attempts, &[], Some(0.001));
        let expected = CallCounts {
            attempted: 5,
            established: 2,
            completed: 1,
            failed: 3,
        };
        assert_eq!(figures.calls, expected);
        assert_eq!(figures.response_ms.p50, Some(10.0));
        assert_eq!(figures.cpu_us_per_call, Some(500.0));
        assert_eq!(details.statuses, [(503, 1)]);
        assert_eq!((details.peak_calls, details.not_started), (2, 1));
        assert_eq!(details.lateness_ms, [Some(0.1); 3]);
        assert_eq!(details.response_classes[..2], [1, 1]);
        // Five in as many milliseconds: two established, one of them cut off.
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-6;
        assert!(near(details.established_per_second, 400.0));
        assert!(near(details.in_time_per_second, 200.0));
        let late = [0, 1].map(|n| call(n, Some(500 - n), Outcome::Completed));
        let (_, details) = compute(&late, &[], None);
        assert!(near(details.established_per_second, 1_000.0));
        assert!(near(details.in_time_per_second, 500.0));
    }

    #[test]
    fn a_threshold_without_a_measurement_is_neither_passed_nor_failed() {
        let (figures, details) = compute(&[call(0, Some(5), Outcome::Completed)], &[], None);
        let thresholds = Thresholds {
            failed_percent: Some(0.0),
            mos: Some(4.0),
            response_p99_ms: Some(4.0),
            leaks: Some(0),
            ..Thresholds::default()
        };
        let checks = judge(&thresholds, &figures, &details, Some(0));
        let holds: Vec<(&str, Option<bool>)> =
            checks.iter().map(|c| (c.name.as_str(), c.holds)).collect();
        let expected = [
            ("failed_percent", Some(true)),
            ("response_p99_ms", Some(false)),
            ("leaks", Some(true)),
            ("mos", None),
        ];
        assert_eq!(holds, expected);
        let of = |names: &[&str]| {
            let named = checks.iter().filter(|c| names.contains(&c.name.as_str()));
            verdict(named)
        };
        assert_eq!(of(&[]), Verdict::NotJudged);
        assert_eq!(of(&["mos"]), Verdict::NotMeasured);
        assert_eq!(of(&["mos", "leaks"]), Verdict::Passed);
        assert_eq!(of(&["mos", "leaks", "response_p99_ms"]), Verdict::Failed);
    }

    #[test]
    fn media_figures_weigh_by_packets() {
        let stream =
            |received: u64, lost: u64, jitter: f64, correlation: f64, level: f64| StreamRecord {
                received,
                expected: received + lost,
                lost,
                jitter_mean_ms: Some(jitter),
                jitter_p99_ms: Some(jitter * 2.0),
                jitter_max_ms: Some(jitter * 3.0),
                mos: Some(4.0),
                correlation: Some(correlation),
                level_db: Some(level),
                ..StreamRecord::default()
            };
        let streams = [
            stream(300, 0, 1.0, 0.99, 0.1),
            stream(100, 100, 2.0, 0.90, -0.5),
        ];
        let (figures, _) = compute(&[], &streams, None);
        assert_eq!(figures.jitter_ms.mean, Some(1.25));
        assert_eq!(figures.jitter_ms.max, Some(6.0));
        assert_eq!(figures.lost_percent, Some(20.0));
        assert_eq!(figures.audio.correlation, Some(0.90));
        assert_eq!(figures.audio.level_db, Some(-0.5));
    }
}
