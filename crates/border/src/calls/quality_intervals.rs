//! Quality of media in intervals, while calls are stored.
//!
//! Forwarder and media nodes count from the begin of a call. Their figures are queried once in an interval, and an
//! event has the difference. Each tick looks at a part of the table of calls, so that queries and answers do not come
//! in bursts.

use crate::calls::key::CallKey;
use crate::calls::rated_line::{PACKET_MS, rated_line, round_trip_of};
use crate::shared::{Alarm, Ctx};
use anchor::encodings::encoding_of;
use anchor::{Encodings, Side};
use core::time::Duration;
use engine::{EventKind, Hundredths, ReportedJitter, Time};
use media::forward::{SessionStats, SideStats, SourceStats};
use media::quality::{Observation, codec_quality, rate};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Time between two parts of the table.
const TICK: Duration = Duration::from_millis(100);
/// Shortest interval while the configuration has none any more.
const SHORTEST: Duration = Duration::from_secs(1);

/// Figures of a source at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceTotals {
    pub(crate) ssrc: u32,
    pub(crate) received: u64,
    pub(crate) expected: u64,
    pub(crate) lost: u64,
    pub(crate) jitter_samples: u64,
    /// Sum of the running jitter at each packet, milliseconds.
    pub(crate) jitter_sum: f64,
}

/// Figures of a side at a media node, counted since the node has the call.
#[derive(Clone, Debug)]
pub(crate) struct NodeFigures {
    pub(crate) totals: SourceTotals,
    /// Round-trip time between the node and the side; 0 if it was not measured.
    pub(crate) round_trip_ms: f64,
    /// The last RTCP report about it, at a node that keeps them.
    pub(crate) report: Option<NodeReport>,
    /// Name of the codec.
    pub(crate) codec: Option<String>,
}

/// An RTCP report about a side at a media node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeReport {
    /// Time by the clock of the node, seconds.
    pub(crate) at: u64,
    /// Interarrival jitter, milliseconds.
    pub(crate) jitter_ms: u64,
    /// Ten times the MOS.
    pub(crate) mos: u64,
}

impl SourceTotals {
    fn of(source: &SourceStats) -> SourceTotals {
        let jitter = source.summary.jitter_ms.unwrap_or_default();
        SourceTotals {
            ssrc: source.ssrc,
            received: source.summary.received,
            expected: source.summary.expected,
            lost: source.summary.lost_unique,
            jitter_samples: jitter.samples,
            jitter_sum: jitter.mean * jitter.samples as f64,
        }
    }

    fn add(&mut self, other: &SourceTotals) {
        self.received += other.received;
        self.expected += other.expected;
        self.lost += other.lost;
        self.jitter_samples += other.jitter_samples;
        self.jitter_sum += other.jitter_sum;
    }

    /// The difference. A packet that arrives late is no longer lost, so an interval can have fewer lost packets than
    /// none; then it has none.
    fn since(&self, before: Option<&SourceTotals>) -> SourceTotals {
        let Some(before) = before else {
            return *self;
        };
        SourceTotals {
            ssrc: self.ssrc,
            received: self.received.saturating_sub(before.received),
            expected: self.expected.saturating_sub(before.expected),
            lost: self.lost.saturating_sub(before.lost),
            jitter_samples: self.jitter_samples.saturating_sub(before.jitter_samples),
            jitter_sum: (self.jitter_sum - before.jitter_sum).max(0.0),
        }
    }
}

/// The sources of both sides.
type SideTotals = [SmallVec<[SourceTotals; 1]>; 2];

/// The end of the last interval of a call.
#[derive(Debug)]
struct Baseline {
    since: Time,
    intervals: u32,
    encodings: Encodings,
    totals: SideTotals,
    latest: [IntervalQuality; 2],
}

/// The end of the last interval of a call at a media node.
#[derive(Debug)]
struct NodeBaseline {
    since: Time,
    intervals: u32,
    /// The figures were queried for an interval; nodes are queried for other purposes, too.
    is_due: bool,
    /// Name of the node that counted; another one counts from its own begin.
    node: String,
    totals: SideTotals,
    /// Times of the last reports.
    reported: [u64; 2],
    latest: [IntervalQuality; 2],
}

/// Quality of one side in an interval.
#[derive(Debug, Default)]
pub(crate) struct IntervalQuality {
    packets: Option<u64>,
    lost: Option<u64>,
    /// Name of the codec of the source with most packets.
    pub(crate) codec: Option<String>,
    pub(crate) loss_percent: Option<Hundredths>,
    pub(crate) jitter_ms: Option<ReportedJitter>,
    pub(crate) mos: Option<Hundredths>,
}

/// The sources of a side in an interval.
struct Difference {
    received: u64,
    lost: u64,
    loss_percent: Option<f64>,
    /// The source with most packets, if there were any, and its mean jitter in milliseconds.
    main: Option<SourceTotals>,
    jitter_ms: Option<f64>,
}

impl Difference {
    /// `None` without a source.
    fn between(before: &[SourceTotals], now: &[SourceTotals]) -> Option<Difference> {
        let differences: SmallVec<[SourceTotals; 1]> = now
            .iter()
            .map(|totals| totals.since(before.iter().find(|before| before.ssrc == totals.ssrc)))
            .collect();
        let main = differences.iter().max_by_key(|source| source.received)?;
        let main = Some(*main).filter(|source| source.received > 0);
        let expected: u64 = differences.iter().map(|source| source.expected).sum();
        let lost: u64 = differences.iter().map(|source| source.lost).sum();
        Some(Difference {
            received: differences.iter().map(|source| source.received).sum(),
            lost,
            loss_percent: (expected > 0).then(|| lost as f64 * 100.0 / expected as f64),
            main,
            jitter_ms: main
                .filter(|source| source.jitter_samples > 0)
                .map(|source| source.jitter_sum / source.jitter_samples as f64),
        })
    }

    /// MOS for a codec, and a network delay in milliseconds in one direction.
    fn mos(&self, codec: &str, burst_ratio: f64, network_ms: f64) -> Option<Hundredths> {
        let jitter = self.jitter_ms?;
        let observed = Observation {
            loss_percent: self.loss_percent?,
            burst_ratio,
            delay_ms: network_ms + PACKET_MS + (4.0 * jitter).max(PACKET_MS),
        };
        Some(Hundredths::of(rate(codec_quality(codec)?, &observed).mos))
    }

    fn quality(&self, codec: Option<&str>, mos: Option<Hundredths>) -> IntervalQuality {
        IntervalQuality {
            packets: Some(self.received),
            lost: Some(self.lost),
            codec: codec.map(str::to_owned),
            loss_percent: self.loss_percent.map(Hundredths::of),
            jitter_ms: self.jitter_ms.map(ReportedJitter::measured),
            mos,
        }
    }
}

/// Intervals of the calls of this worker.
#[derive(Debug, Default)]
pub(crate) struct QualityIntervals {
    is_running: bool,
    /// Number of the next tick within an interval.
    tick: usize,
    /// By session in the forwarder.
    baselines: BTreeMap<u64, Baseline>,
    /// By number of the call.
    at_nodes: BTreeMap<u64, NodeBaseline>,
}

impl QualityIntervals {
    /// Starts the ticks, which go on while there are calls, if intervals are configured. To be called when a call is
    /// answered.
    pub(crate) fn start(&mut self, ctx: &mut Ctx) {
        if !self.is_running && interval(ctx).is_some() {
            self.is_running = true;
            ctx.timers.schedule(ctx.now + TICK, Alarm::QualityTick);
        }
    }

    /// Begins a tick, and the next one if there are calls. Returns its number within an interval and the number of
    /// ticks in one; `None` without intervals.
    pub(crate) fn tick(&mut self, ctx: &mut Ctx, has_calls: bool) -> Option<(usize, usize)> {
        self.is_running = false;
        if has_calls {
            self.start(ctx);
        }
        let ticks = (interval(ctx)?.as_millis() / TICK.as_millis()).max(1) as usize;
        let tick = self.tick % ticks;
        self.tick = tick + 1;
        Some((tick, ticks))
    }

    /// The end of the last interval of a session.
    pub(crate) fn since(&self, session: u64) -> Option<Time> {
        self.baselines.get(&session).map(|baseline| baseline.since)
    }

    /// The figures of a session are queried: its first interval began at `since`.
    pub(crate) fn query(&mut self, session: u64, since: Time, encodings: Encodings) {
        let baseline = self.baselines.entry(session).or_insert_with(|| Baseline {
            since,
            intervals: 0,
            encodings: Encodings::new(),
            totals: SideTotals::default(),
            latest: Default::default(),
        });
        baseline.encodings = encodings;
    }

    /// The end of the last interval of a call at a media node.
    pub(crate) fn since_at_node(&self, call: u64) -> Option<Time> {
        self.at_nodes.get(&call).map(|baseline| baseline.since)
    }

    /// The figures of a call are queried at a media node: its first interval began at `since`.
    pub(crate) fn query_node(&mut self, call: u64, since: Time) {
        let baseline = self.at_nodes.entry(call).or_insert_with(|| NodeBaseline {
            since,
            intervals: 0,
            is_due: true,
            node: String::new(),
            totals: SideTotals::default(),
            reported: [0; 2],
            latest: Default::default(),
        });
        baseline.is_due = true;
    }

    /// Quality of both sides of a call in its last interval; the call is given by its session in the forwarder and its
    /// number.
    pub(crate) fn latest(&self, session: u64, call: u64) -> Option<&[IntervalQuality; 2]> {
        let at_node = || Some(&self.at_nodes.get(&call)?.latest);
        let here = self.baselines.get(&session);
        here.map(|baseline| &baseline.latest).or_else(at_node)
    }

    /// Number of calls with intervals.
    pub(crate) fn len(&self) -> usize {
        self.baselines.len() + self.at_nodes.len()
    }

    /// Removes a call at a media node without figures.
    pub(crate) fn remove_at_node(&mut self, call: u64) {
        self.at_nodes.remove(&call);
    }

    /// Removes a session without figures.
    pub(crate) fn remove(&mut self, session: u64) {
        self.baselines.remove(&session);
    }

    /// Logs the interval that ends with these figures; `last`: the call has ended.
    pub(crate) fn report(&mut self, ctx: &mut Ctx, key: CallKey, last: bool, stats: &SessionStats) {
        let (session, call) = (key.0, key.number());
        let Some(baseline) = self.baselines.get_mut(&session) else {
            return;
        };
        let (now, span) = (ctx.now, ctx.now.since(baseline.since));
        if span >= shortest(ctx, last, baseline.intervals) {
            let totals = totals_of(stats, &baseline.encodings);
            let sides = Side::BOTH.map(|side| baseline.quality(stats, &totals, side));
            log(ctx, call, span, &sides);
            baseline.latest = sides;
            baseline.totals = totals;
            baseline.since = now;
            baseline.intervals += 1;
        }
        if last {
            self.remove(session);
        }
    }

    /// Logs the interval that ends with these figures of a media node, given by its name; `last`: the call has ended.
    pub(crate) fn report_node(
        &mut self,
        ctx: &mut Ctx,
        (call, node): (u64, &str),
        last: bool,
        figures: &[Option<NodeFigures>; 2],
    ) {
        let Some(baseline) = self.at_nodes.get_mut(&call) else {
            return;
        };
        let (now, span) = (ctx.now, ctx.now.since(baseline.since));
        let is_due = core::mem::take(&mut baseline.is_due) || last;
        if is_due && span >= shortest(ctx, last, baseline.intervals) {
            if baseline.node != node || baseline.is_counted_anew(figures) {
                baseline.node = node.to_owned();
                baseline.totals = SideTotals::default();
            }
            let round_trips = figures.iter().flatten().map(|side| side.round_trip_ms);
            let network_ms = round_trips.sum::<f64>() / 2.0;
            let sides = Side::BOTH.map(|side| baseline.quality(figures, network_ms, side));
            log(ctx, call, span, &sides);
            baseline.latest = sides;
            baseline.reported = figures.each_ref().map(|side| {
                let report = side.as_ref().and_then(|side| side.report);
                report.map_or(0, |report| report.at)
            });
            for (totals, side) in baseline.totals.iter_mut().zip(figures) {
                // A side without figures keeps those that it had.
                if let Some(side) = side {
                    *totals = smallvec::smallvec![side.totals];
                }
            }
            baseline.since = now;
            baseline.intervals += 1;
        }
        if last {
            self.remove_at_node(call);
        }
    }
}

/// The shortest interval that is logged: figures are queried for other purposes, too. `last`: the call has ended.
fn shortest(ctx: &Ctx, last: bool, intervals: u32) -> Duration {
    match (last, interval(ctx)) {
        (true, _) if intervals == 0 => Duration::MAX,
        // With the rest, the intervals add up to the call.
        (true, _) => Duration::from_millis(1),
        (false, None) => SHORTEST,
        (false, Some(interval)) => interval / 2,
    }
}

fn log(ctx: &mut Ctx, call: u64, span: Duration, [caller, callee]: &[IntervalQuality; 2]) {
    ctx.events.tell(ctx.now, || EventKind::CallMediaInterval {
        call,
        interval_ms: span.as_millis() as u64,
        caller_packets: caller.packets,
        caller_lost: caller.lost,
        caller_loss_percent: caller.loss_percent,
        caller_jitter_ms: caller.jitter_ms,
        caller_mos: caller.mos,
        callee_packets: callee.packets,
        callee_lost: callee.lost,
        callee_loss_percent: callee.loss_percent,
        callee_jitter_ms: callee.jitter_ms,
        callee_mos: callee.mos,
    });
}

/// The configured interval, while calls are stored.
fn interval(ctx: &Ctx) -> Option<Duration> {
    let store = ctx.config.store.as_ref().filter(|_| ctx.events.edits)?;
    store.quality_interval
}

fn sides_of_line<'s>(
    stats: &'s SessionStats,
    encodings: &Encodings,
    side: Side,
) -> impl Iterator<Item = (u8, &'s SideStats)> + use<'s> {
    let line = rated_line(stats, encodings);
    let flows = stats.flows.iter();
    let flows = flows.filter(move |flow| Some(flow.line) == line);
    flows.filter_map(move |flow| Some((flow.line, flow.sides.get(side.index())?)))
}

/// Totals of the sources of both sides. A source whose line was replaced is there twice, and is one here.
fn totals_of(stats: &SessionStats, encodings: &Encodings) -> SideTotals {
    Side::BOTH.map(|side| {
        let sides = sides_of_line(stats, encodings, side);
        let mut all: SmallVec<[SourceTotals; 1]> = SmallVec::new();
        for source in sides.flat_map(|(_, side)| &side.sources) {
            let totals = SourceTotals::of(source);
            match all.iter_mut().find(|known| known.ssrc == totals.ssrc) {
                Some(known) => known.add(&totals),
                None => all.push(totals),
            }
        }
        all
    })
}

impl Baseline {
    fn quality(&self, stats: &SessionStats, totals: &SideTotals, side: Side) -> IntervalQuality {
        let before = self.totals.get(side.index());
        let sides = before.zip(totals.get(side.index()));
        let difference = sides.and_then(|(before, now)| Difference::between(before, now));
        let Some(difference) = difference else {
            return IntervalQuality::default();
        };
        let main = difference.main.and_then(|main| {
            let (line, source) = sides_of_line(stats, &self.encodings, side)
                .flat_map(|(line, side)| side.sources.iter().map(move |source| (line, source)))
                .find(|(_, source)| source.ssrc == main.ssrc)?;
            let codec = encoding_of(source, line, side, &self.encodings)?;
            let network_ms = round_trip_of(stats, line) / 2.0;
            let mos = difference.mos(codec, source.summary.burst_ratio, network_ms);
            Some((codec, mos))
        });
        difference.quality(main.map(|(codec, _)| codec), main.and_then(|(_, mos)| mos))
    }
}

impl NodeBaseline {
    /// Whether the node has counted from zero since the last interval: it was restarted, and got the call again.
    fn is_counted_anew(&self, figures: &[Option<NodeFigures>; 2]) -> bool {
        self.totals.iter().zip(figures).any(|(before, now)| {
            let now = now.as_ref().map(|now| now.totals);
            let known = before
                .iter()
                .find(|before| now.is_some_and(|now| now.ssrc == before.ssrc));
            known
                .zip(now)
                .is_some_and(|(before, now)| now.received < before.received)
        })
    }

    fn quality(
        &self,
        figures: &[Option<NodeFigures>; 2],
        network_ms: f64,
        side: Side,
    ) -> IntervalQuality {
        let before = self.totals.get(side.index());
        let sides = before.zip(figures.get(side.index()).and_then(Option::as_ref));
        let difference = sides.and_then(|(before, now)| {
            Some((
                now,
                Difference::between(before, core::slice::from_ref(&now.totals))?,
            ))
        });
        let Some((now, difference)) = difference else {
            return IntervalQuality::default();
        };
        let codec = now.codec.as_deref().filter(|_| difference.main.is_some());
        // Nodes do not report whether losses come in bursts.
        let mos = codec.and_then(|codec| difference.mos(codec, 1.0, network_ms));
        let mut quality = difference.quality(codec, mos);
        // rtpengine has no sums of the jitter, but the last report of the interval.
        let before = self.reported.get(side.index());
        if let Some(report) = now.report.filter(|report| before != Some(&report.at))
            && quality.jitter_ms.is_none()
            && difference.main.is_some()
        {
            quality.jitter_ms = Some(ReportedJitter::Whole(report.jitter_ms));
            quality.mos = Some(Hundredths(report.mos * 10));
        }
        quality
    }
}
