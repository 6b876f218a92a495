//! Figures of a trial, computed from its raw records alone.

use crate::conversation::TalkOver;
use crate::error::RunVerdict;
use crate::experiment::Thresholds;
use crate::hops::DelaySplit;
use crate::measure::MeasuredCase;
use crate::metrics::{self, REGISTRATION_KINDS, SipMetrics};
use crate::planes::Planes;
use crate::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
pub use crate::report::CLASS_NAMES;
pub use crate::statistics::quantile;

use crate::statistics::has_too_few_samples;
use serde::{Deserialize, Serialize};

/// Upper bounds of the response-time classes, milliseconds, as in SIPp and in study U. The last class has no upper
/// bound.
pub const CLASS_BOUNDS_MS: [f64; 8] = [10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 150.0, 200.0];

/// A response within this time, milliseconds, is in time: no retransmission was needed for it (T1 of RFC 3261).
pub const IN_TIME_MS: f64 = 500.0;

/// Workload of the streams that bypass the SUT and so show the jitter of the host itself.
pub const NOISE: &str = "noise";
/// Workload at which jitter is measured if it runs beside the load.
pub const PROBE: &str = "probe";

/// Counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Due, whether they could be started or not.
    pub attempted: u64,
    /// Answered with 2xx.
    pub established: u64,
    /// Established and ended as planned.
    pub completed: u64,
    /// Neither completed nor cancelled as planned.
    pub failed: u64,
    /// Of these, the ones that were open at the end of the trial.
    #[serde(default)]
    pub unfinished: u64,
}

/// Quantiles of a response time, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseTimes {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Number of answered attempts, from which both quantiles are computed.
    #[serde(default)]
    pub samples: u64,
    /// Whether there are too few of them for a 99th percentile: fewer than 300.
    #[serde(default)]
    pub p99_of_few: bool,
}

/// Jitter over all streams, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JitterFigures {
    /// Mean over all packets.
    pub mean: Option<f64>,
    /// 99th percentile over the streams of the 99th percentile of each stream.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Longest time between two packets of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_max: Option<f64>,
}

/// Speech quality of the calls whose audio was analysed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AudioFigures {
    /// Smallest correlation of received with sent speech.
    pub correlation: Option<f64>,
    /// Level of received against sent speech, dB: the value farthest from zero.
    pub level_db: Option<f64>,
}

/// The blocks that `demo --json` and `lab run --json` have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Calls.
    pub calls: CallCounts,
    /// INVITE to 2xx; in an experiment without calls REGISTER to 2xx, counting re-registrations at a rate if there are
    /// any.
    pub response_ms: ResponseTimes,
    /// Jitter.
    pub jitter_ms: JitterFigures,
    /// Media packets lost, percent of those expected; `null` without media.
    pub lost_percent: Option<f64>,
    /// Mean opinion score, mean over the streams.
    pub mos: Option<f64>,
    /// Speech.
    pub audio: AudioFigures,
    /// CPU time of the SUT per established call (per registration if there are no calls), microseconds. It includes the
    /// relayed media packets; [`Details::planes`] divides it into signalling and media.
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
    pub outcomes: Vec<(AttemptOutcome, u64)>,
    /// Final statuses of refused attempts, in ascending order.
    pub statuses: Vec<(u16, u64)>,
    /// Established calls (registrations if there are no calls) per response-time class.
    pub response_classes: [u64; 9],
    /// Attempts that could not be started.
    pub not_started: u64,
    /// Most concurrent established calls.
    pub peak_calls: u64,
    /// Lateness of the generator, milliseconds: median, 99th percentile, largest.
    pub lateness_ms: [Option<f64>; 3],
    /// Largest mean one-way delay of a stream, milliseconds.
    pub one_way_ms: Option<f64>,
    /// Largest mean round trip, milliseconds.
    pub round_trip_ms: Option<f64>,
    /// Delay of single packets, if measured, milliseconds: the median of the streams' medians, the 99th percentile of
    /// their 99th percentiles, and the largest of all.
    #[serde(default)]
    pub relay_ms: [Option<f64>; 3],
    /// CPU time of the SUT per media packet received at either side, microseconds.
    #[serde(default)]
    pub cpu_us_per_packet: Option<f64>,
    /// The delay of media packets by hop, for trials that have the stamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_split: Option<DelaySplit>,
    /// Effect of the delay on a conversation, if both directions have a one-way delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub talk_over: Option<TalkOver>,
    /// Number of calls per media node.
    #[serde(default)]
    pub node_calls: Vec<u64>,
    /// Share of the received media packets that the kernel relay forwarded, percent, if it was in use.
    #[serde(default)]
    pub kernel_relay_percent: Option<f64>,
    /// Connections of registered users: fewest at a time during re-registrations at a rate; otherwise at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Of the connections opened, those that were closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_lost: Option<u64>,
    /// REGISTERs that the registrar behind the SUT accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_on: Option<u64>,
    /// CPU time of the SUT divided by plane.
    #[serde(default)]
    pub planes: Planes,
    /// Jitter of the host, milliseconds: that of streams which bypass the SUT, sent by a thread of their own at the
    /// same time.
    #[serde(default)]
    pub noise_jitter_ms: JitterFigures,
    /// Number of cores that the SUT kept busy during the measurement.
    #[serde(default)]
    pub subject_cores: Option<f64>,
    /// Load of all processors of this machine during the measurement, percent.
    #[serde(default)]
    pub host_cpu_percent: Option<f64>,
    /// Streams received or due; a side that only sends has none.
    pub streams: u64,
    /// Packets received.
    pub packets: u64,
    /// Number of calls whose speech was compared.
    pub listened: u64,
    /// Calls (registrations if there are no calls) answered with 2xx, per second of the time in which they were due.
    #[serde(default)]
    pub established_per_second: Option<f64>,
    /// Of these only the ones that were answered within [`IN_TIME_MS`] and ended as planned: the goodput under
    /// overload.
    #[serde(default)]
    pub in_time_per_second: Option<f64>,
    /// Median response time of the attempts due in the middle third and in the last third of the trial, milliseconds.
    /// They grow at a SUT that cannot keep up.
    #[serde(default)]
    pub thirds_ms: Option<[f64; 2]>,
    /// The same of the first third.
    #[serde(default)]
    pub first_third_ms: Option<f64>,
    /// The metrics of RFC 6076.
    #[serde(default)]
    pub sip: SipMetrics,
    /// Figures that the experiment measures itself, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<MeasuredCase>,
}

impl Details {
    /// Spread of the calls over the media nodes: the largest share less the smallest, percent of their mean; `None`
    /// with fewer than two nodes, or without calls.
    pub fn node_spread_percent(&self) -> Option<f64> {
        let (most, least) = (self.node_calls.iter().max()?, self.node_calls.iter().min()?);
        let count = self.node_calls.len();
        let mean = self.node_calls.iter().sum::<u64>() as f64 / count as f64;
        (count > 1 && mean > 0.0).then(|| (most - least) as f64 * 100.0 / mean)
    }

    /// Number of attempts of any kind.
    pub(crate) fn attempted(&self) -> u64 {
        self.outcomes.iter().map(|(_, count)| count).sum()
    }

    /// Whether nothing was due in the trial. Those that only measure in memory have no attempts.
    pub(crate) fn is_empty(&self) -> bool {
        self.attempted() == 0 && self.streams == 0 && self.measures.is_empty()
    }

    /// Number of attempts without a response.
    fn timed_out(&self) -> u64 {
        let silent = |outcome| {
            matches!(
                outcome,
                AttemptOutcome::TimedOut | AttemptOutcome::Unfinished
            )
        };
        let counts = self.outcomes.iter();
        counts
            .filter(|(outcome, _)| silent(*outcome))
            .map(|(_, count)| count)
            .sum()
    }
}

/// A threshold and the value measured for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdCheck {
    /// Key in the experiment file.
    pub name: String,
    /// The bound.
    pub limit: f64,
    /// Measured value; `null` if there was nothing to measure.
    pub measured: Option<f64>,
    /// Whether the threshold holds; `null` if there was nothing to measure.
    pub holds: Option<bool>,
    /// An override sets it: without a measurement in any trial the run has not passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// Remark on a trial in which nothing was due.
pub(crate) const NO_ATTEMPT: &str = "no attempt was due in the trial";
/// Name of the threshold on the share of failed attempts.
pub(crate) const FAILED_PERCENT: &str = "failed_percent";
/// Name of the check that fails if the SUT ended during the trial.
const SUBJECT_ENDED: &str = "subject_ended";

impl ThresholdCheck {
    /// The check of a trial during which the SUT ended.
    pub(crate) fn subject_ended() -> ThresholdCheck {
        ThresholdCheck {
            name: SUBJECT_ENDED.to_owned(),
            limit: 0.0,
            measured: Some(1.0),
            holds: Some(false),
            required: false,
        }
    }

    /// Whether the SUT ended during the trial of these checks.
    pub(crate) fn has_subject_ended(checks: &[ThresholdCheck]) -> bool {
        let mut checks = checks.iter();
        checks.any(|check| check.name == SUBJECT_ENDED && check.failed())
    }

    /// Whether the value was measured and the threshold does not hold.
    pub fn failed(&self) -> bool {
        self.holds == Some(false)
    }

    /// The verdict of this threshold alone.
    pub const fn verdict(&self) -> RunVerdict {
        RunVerdict::of(self.holds)
    }
}

/// The verdict over these checks: failed if one failed, else passed if one holds; thresholds without a measurement are
/// ignored beside others ([`missing`] has those that may not).
pub fn verdict<'a>(checks: impl IntoIterator<Item = &'a ThresholdCheck>) -> RunVerdict {
    let verdicts = checks.into_iter().map(ThresholdCheck::verdict);
    verdicts.fold(RunVerdict::NotJudged, RunVerdict::or_measured)
}

/// Names of the thresholds that an override sets, and that none of these checks measured; empty without any.
pub(crate) fn missing<'a>(checks: impl IntoIterator<Item = &'a ThresholdCheck>) -> Vec<&'a str> {
    let (open, measured): (Vec<_>, Vec<_>) = checks
        .into_iter()
        .filter(|check| check.required)
        .partition(|check| check.holds.is_none());
    let mut names: Vec<&str> = Vec::new();
    for check in open {
        let is_measured = measured.iter().any(|other| other.name == check.name);
        if !is_measured && !names.contains(&check.name.as_str()) {
            names.push(&check.name);
        }
    }
    names
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

fn count(attempts: &[&Attempt]) -> CallCounts {
    let of = |test: &dyn Fn(&Attempt) -> bool| attempts.iter().filter(|a| test(a)).count() as u64;
    CallCounts {
        attempted: attempts.len() as u64,
        established: of(&|a| a.established.is_some()),
        completed: of(&|a| a.outcome == AttemptOutcome::Completed),
        failed: of(&|a| !a.outcome.is_good()),
        unfinished: of(&|a| a.outcome == AttemptOutcome::Unfinished),
    }
}

/// The figures of one trial. `cpu_seconds` is the CPU time of the SUT.
pub fn compute(
    attempts: &[Attempt],
    streams: &[StreamRecord],
    cpu_seconds: Option<f64>,
) -> (Figures, Details) {
    let calls: Vec<&Attempt> = attempts
        .iter()
        .filter(|a| a.kind == AttemptKind::Call)
        .collect();
    let registrations: Vec<&Attempt> = attempts
        .iter()
        .filter(|a| REGISTRATION_KINDS.contains(&a.kind))
        .collect();
    let main = &main_attempts(attempts);
    let (measured, _) = split_noise(streams);
    let responses = sorted(main.iter().filter_map(|a| a.response_ms()));
    let figures = Figures {
        calls: count(&calls),
        response_ms: ResponseTimes {
            p50: quantile(&responses, 0.5),
            p99: quantile(&responses, 0.99),
            samples: responses.len() as u64,
            p99_of_few: has_too_few_samples(responses.len() as u64, 0.99),
        },
        jitter_ms: jitter(&probe_streams(&measured)),
        lost_percent: lost_percent(&measured),
        mos: mean(measured.iter().filter_map(|s| s.mos)),
        audio: audio(&measured),
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

/// The attempts on which response times, rates and CPU time are based: calls; without calls re-registrations at a rate;
/// without these all registrations. Registrations before and after a phase of re-registrations only set up and clean
/// up.
pub(crate) fn main_attempts(attempts: &[Attempt]) -> Vec<&Attempt> {
    let of = |kinds: &[AttemptKind]| -> Vec<&Attempt> {
        let attempts = attempts.iter();
        attempts.filter(|a| kinds.contains(&a.kind)).collect()
    };
    let calls = of(&[AttemptKind::Call]);
    if !calls.is_empty() {
        return calls;
    }
    let again = of(&[AttemptKind::Reregistration]);
    match again.is_empty() {
        false => again,
        true => of(&REGISTRATION_KINDS),
    }
}

/// The streams on which media figures are based: all but those that bypass the SUT.
pub(crate) fn measured_streams(streams: &[StreamRecord]) -> Vec<&StreamRecord> {
    split_noise(streams).0
}

fn details(
    attempts: &[Attempt],
    main: &[&Attempt],
    registrations: &[&Attempt],
    streams: &[StreamRecord],
    responses: &[f64],
) -> Details {
    let mine = || attempts.iter().filter(|a| a.kind != AttemptKind::Answer);
    let (streams, noise) = split_noise(streams);
    let late = sorted(mine().filter_map(Attempt::lateness_ms));
    let thirds = third_medians(main);
    Details {
        registrations: count(registrations),
        outcomes: AttemptOutcome::ALL
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
        delay_split: None,
        talk_over: None,
        cpu_us_per_packet: None,
        planes: Planes::default(),
        node_calls: Vec::new(),
        kernel_relay_percent: None,
        connections: None,
        connections_lost: None,
        passed_on: None,
        noise_jitter_ms: jitter(&noise),
        subject_cores: None,
        host_cpu_percent: None,
        streams: streams.iter().filter(|s| s.is_incoming()).count() as u64,
        packets: streams.iter().map(|s| s.received).sum(),
        established_per_second: per_second(main, |a| a.established.is_some()),
        in_time_per_second: per_second(main, in_time),
        measures: Vec::new(),
        thirds_ms: thirds.map(|[_, middle, last]| [middle, last]),
        first_third_ms: thirds.map(|[first, ..]| first),
        sip: metrics::compute(attempts),
        listened: streams.iter().filter(|s| s.correlation.is_some()).count() as u64,
    }
}

/// Median response times of each third, in the order in which attempts were due.
fn third_medians(main: &[&Attempt]) -> Option<[f64; 3]> {
    let mut timed: Vec<(u64, f64)> = main
        .iter()
        .filter_map(|a| Some((a.due, a.response_ms()?)))
        .collect();
    timed.sort_by_key(|(due, _)| *due);
    let third = timed.len() / 3;
    let median = |part: &[(u64, f64)]| quantile(&sorted(part.iter().map(|(_, ms)| *ms)), 0.5);
    let (first, rest) = timed.split_at_checked(third)?;
    let (middle, last) = rest.split_at_checked(third)?;
    Some([median(first)?, median(middle)?, median(last)?])
}

pub(crate) fn in_time(attempt: &Attempt) -> bool {
    attempt.outcome == AttemptOutcome::Completed
        && attempt.response_ms().is_some_and(|ms| ms < IN_TIME_MS)
}

/// `n` attempts take the time from the first to the last one plus one gap; a single attempt has no rate.
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
    for attempt in attempts.filter(|a| a.outcome == AttemptOutcome::Refused) {
        *counts.entry(attempt.status).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// Number of response times per class.
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

/// Most concurrent established calls.
fn peak(calls: &[&Attempt]) -> u64 {
    let mut changes: Vec<(u64, i64)> = Vec::with_capacity(calls.len() * 2);
    for call in calls {
        let Some(established) = call.established else {
            continue;
        };
        changes.push((established, 1));
        changes.push((call.ended.unwrap_or(u64::MAX), -1));
    }
    // At the same instant an end sorts before a beginning.
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
        delta_max: largest(streams.iter().filter_map(|s| s.delta_max_ms)),
    }
}

/// Splits streams into those through the SUT and those that bypass it.
fn split_noise(streams: &[StreamRecord]) -> (Vec<&StreamRecord>, Vec<&StreamRecord>) {
    streams.iter().partition(|stream| stream.workload != NOISE)
}

/// With a probe, jitter is measured at the probe alone.
pub(crate) fn probe_streams<'a>(streams: &[&'a StreamRecord]) -> Vec<&'a StreamRecord> {
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

/// Delay of single packets over all streams for which it was measured.
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

/// Judges a trial. `leaks` is the number of objects that the SUT and the generator still have at the end, if known. No
/// threshold holds in a trial in which nothing was due.
pub fn judge(
    thresholds: &Thresholds,
    figures: &Figures,
    details: &Details,
    leaks: Option<u64>,
) -> Vec<ThresholdCheck> {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 * 100.0 / whole as f64);
    let attempted = figures.calls.attempted + details.registrations.attempted;
    let failed = figures.calls.failed + details.registrations.failed;
    let at_most = [
        (
            FAILED_PERCENT,
            thresholds.failed_percent,
            share(failed, attempted),
        ),
        (
            "not_started_percent",
            thresholds.not_started_percent,
            share(details.not_started, details.attempted()),
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
            excess(figures.jitter_ms.mean, details.noise_jitter_ms.mean),
        ),
        (
            "jitter_p99_above_noise_ms",
            thresholds.jitter_p99_above_noise_ms,
            excess(figures.jitter_ms.p99, details.noise_jitter_ms.p99),
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
            judged_leaks(&figures.calls, leaks),
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
    let mut checks: Vec<ThresholdCheck> = most.chain(least).collect();
    if details.is_empty() {
        let held = checks.iter_mut().filter(|check| !check.failed());
        held.for_each(|check| (check.measured, check.holds) = (None, None));
    }
    checks
}

/// Number of objects that are judged as leaks. Where every call failed before it was established, nothing existed that
/// could be left: no leak is then no measurement, but any that there are count.
fn judged_leaks(calls: &CallCounts, leaks: Option<u64>) -> Option<f64> {
    let is_none_established =
        calls.attempted > 0 && calls.established == 0 && calls.failed == calls.attempted;
    let judged = leaks.filter(|leaks| *leaks > 0 || !is_none_established);
    judged.map(|leaks| leaks as f64)
}

/// A remark on a trial whose threshold of leaks is not judged, although they are known.
pub(crate) fn unjudged_leaks(
    checks: &[ThresholdCheck],
    leaks: Option<u64>,
) -> Option<&'static str> {
    let mut checks = checks.iter();
    let is_unjudged = checks.any(|check| check.name == "leaks" && check.measured.is_none());
    (is_unjudged && leaks.is_some()).then_some("leaks are not judged: no call was established")
}

/// Excess of a figure over that of the host, at least zero.
fn excess(figure: Option<f64>, host: Option<f64>) -> Option<f64> {
    Some((figure? - host?).max(0.0))
}

/// The check that no attempt failed, for trials of which any failure counts; `None` without attempts.
pub(crate) fn no_failures(details: &Details) -> Option<ThresholdCheck> {
    let attempted = details.attempted();
    let failed = details.outcomes.iter();
    let failed = failed.filter(|(outcome, _)| !outcome.is_good());
    let failed: u64 = failed.map(|(_, count)| count).sum();
    let measured = (attempted > 0).then(|| failed as f64 * 100.0 / attempted as f64)?;
    check(
        FAILED_PERCENT,
        Some(0.0),
        Some(measured),
        |measured, limit| measured <= limit,
    )
}

fn check(
    name: &str,
    limit: Option<f64>,
    measured: Option<f64>,
    holds: impl Fn(f64, f64) -> bool,
) -> Option<ThresholdCheck> {
    let limit = limit?;
    Some(ThresholdCheck {
        name: name.to_owned(),
        limit,
        measured,
        holds: measured.map(|measured| holds(measured, limit)),
        required: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Time;

    fn call(number: u64, response_ms: Option<u64>, outcome: AttemptOutcome) -> Attempt {
        let mut attempt = Attempt::new(
            "callers",
            AttemptKind::Call,
            number,
            Time::from_millis(number),
        );
        attempt.sent = outcome.was_started().then_some(attempt.due + 100_000);
        attempt.established = response_ms.map(|ms| attempt.due + 100_000 + ms * 1_000_000);
        attempt.ended = attempt.established.map(|at| at + 1_000_000_000);
        attempt.outcome = outcome;
        attempt
    }

    #[test]
    fn response_time_classes_are_half_open() {
        let counts = classes(&[0.0, 9.999, 10.0, 49.9, 50.0, 199.9, 200.0, 9e9]);
        assert_eq!(counts, [2, 1, 0, 0, 1, 1, 0, 1, 2]);
    }

    #[test]
    fn calls_are_counted_by_outcome() {
        let mut refused = call(3, None, AttemptOutcome::Refused);
        refused.status = 503;
        let attempts = [
            call(0, Some(5), AttemptOutcome::Completed),
            call(1, Some(15), AttemptOutcome::CutOff),
            call(2, None, AttemptOutcome::LimitReached),
            refused,
            call(4, None, AttemptOutcome::Cancelled),
        ];
        let (figures, details) = compute(&attempts, &[], Some(0.001));
        let expected = CallCounts {
            attempted: 5,
            established: 2,
            completed: 1,
            failed: 3,
            unfinished: 0,
        };
        assert_eq!(figures.calls, expected);
        assert_eq!(figures.response_ms.p50, Some(10.0));
        assert_eq!(figures.cpu_us_per_call, Some(500.0));
        assert_eq!(details.statuses, [(503, 1)]);
        assert_eq!((details.peak_calls, details.not_started), (2, 1));
        assert_eq!(details.lateness_ms, [Some(0.1); 3]);
        assert_eq!(details.response_classes[..2], [1, 1]);
        // Five attempts within 5 ms: two established, one of them cut off.
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-6;
        assert!(near(details.established_per_second, 400.0));
        assert!(near(details.in_time_per_second, 200.0));
        let late = [0, 1].map(|n| call(n, Some(500 - n), AttemptOutcome::Completed));
        let (_, details) = compute(&late, &[], None);
        assert!(near(details.established_per_second, 1_000.0));
        assert!(near(details.in_time_per_second, 500.0));
    }

    #[test]
    fn threshold_without_measurement_has_no_verdict() {
        let (figures, details) = compute(&[call(0, Some(5), AttemptOutcome::Completed)], &[], None);
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
        assert_eq!(of(&[]), RunVerdict::NotJudged);
        assert_eq!(of(&["mos"]), RunVerdict::NotMeasured);
        assert_eq!(of(&["mos", "leaks"]), RunVerdict::Passed);
        assert_eq!(of(&["mos", "leaks", "response_p99_ms"]), RunVerdict::Failed);
        // Those that the user has set are named, unless another trial has measured them.
        let mut required = checks.clone();
        required.iter_mut().for_each(|check| check.required = true);
        assert_eq!(
            (missing(&required), missing(&checks)),
            (vec!["mos"], vec![])
        );
        let mut measured = required[3].clone();
        measured.holds = Some(true);
        required.push(measured);
        assert!(missing(&required).is_empty());
    }

    #[test]
    fn leaks_are_not_judged_without_an_established_call() {
        let thresholds = Thresholds {
            leaks: Some(0),
            ..Thresholds::default()
        };
        let judged = |outcomes: &[(Option<u64>, AttemptOutcome)], leaks| {
            let attempts: Vec<Attempt> = outcomes
                .iter()
                .map(|(answer, outcome)| call(0, *answer, *outcome))
                .collect();
            let (figures, details) = compute(&attempts, &[], None);
            let checks = judge(&thresholds, &figures, &details, leaks);
            let has_remark = unjudged_leaks(&checks, leaks).is_some();
            (verdict(&checks), has_remark)
        };
        let refused = (None, AttemptOutcome::Refused);
        let all_refused = [refused, refused];
        let one_refused = [refused, (Some(5), AttemptOutcome::Completed)];
        let not_measured = (RunVerdict::NotMeasured, true);
        assert_eq!(judged(&all_refused, Some(0)), not_measured);
        assert_eq!(judged(&all_refused, Some(1)), (RunVerdict::Failed, false));
        assert_eq!(judged(&one_refused, Some(0)), (RunVerdict::Passed, false));
        // Cancelled as planned.
        let cancelled = [(None, AttemptOutcome::Cancelled)];
        assert_eq!(judged(&cancelled, Some(0)), (RunVerdict::Passed, false));
        // Those of another program are unknown, which needs no remark.
        let unknown = (RunVerdict::NotMeasured, false);
        assert_eq!(judged(&one_refused, None), unknown);
    }

    #[test]
    fn attempts_that_could_not_start_are_a_share_of_all_attempts() {
        let thresholds = Thresholds {
            not_started_percent: Some(40.0),
            ..Thresholds::default()
        };
        let stream = |outcome| Attempt {
            kind: AttemptKind::Stream,
            ..call(1, None, outcome)
        };
        let measured = |attempts: &[Attempt]| {
            let (figures, details) = compute(attempts, &[], None);
            judge(&thresholds, &figures, &details, None)[0].measured
        };
        let streams = [AttemptOutcome::CouldNotStart, AttemptOutcome::Completed].map(stream);
        assert_eq!(measured(&streams), Some(50.0));
        let calls = [0, 1].map(|n| call(n, Some(5), AttemptOutcome::Completed));
        assert_eq!(measured(&[calls, streams].concat()), Some(25.0));
    }

    #[test]
    fn trial_in_which_nothing_was_due_has_not_passed() {
        let thresholds = Thresholds {
            failed_percent: Some(0.0),
            timed_out: Some(0),
            leaks: Some(0),
            ..Thresholds::default()
        };
        let judged = |attempts: &[Attempt], streams: &[StreamRecord], leaks| {
            let (figures, details) = compute(attempts, streams, None);
            verdict(&judge(&thresholds, &figures, &details, Some(leaks)))
        };
        assert_eq!(judged(&[], &[], 0), RunVerdict::NotMeasured);
        assert_eq!(judged(&[], &[], 1), RunVerdict::Failed);
        let made = [call(0, Some(5), AttemptOutcome::Completed)];
        assert_eq!(judged(&made, &[], 0), RunVerdict::Passed);
        // Media without calls.
        let stream = StreamRecord {
            expected: 50,
            received: 50,
            ..StreamRecord::default()
        };
        assert_eq!(judged(&[], &[stream], 0), RunVerdict::Passed);
    }

    #[test]
    fn media_figures_are_weighted_by_packets() {
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
