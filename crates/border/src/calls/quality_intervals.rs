//! Quality of media in intervals, while calls are stored.
//!
//! The forwarder counts from the begin of a call. Its figures are queried once in an interval, and an event has the
//! difference. Each tick looks at a part of the table of calls, so that queries and answers do not come in bursts.

use crate::calls::key::CallKey;
use crate::calls::rated_line::{PACKET_MS, rated_line, round_trip_of};
use crate::shared::{Alarm, Ctx};
use anchor::encodings::encoding_of;
use anchor::{Encodings, Side};
use core::time::Duration;
use engine::{EventKind, Hundredths, Time};
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
struct SourceTotals {
    ssrc: u32,
    received: u64,
    expected: u64,
    lost: u64,
    jitter_samples: u64,
    /// Sum of the running jitter at each packet, milliseconds.
    jitter_sum: f64,
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

    /// The difference. A packet that arrives late is no longer lost, so an interval can have fewer lost packets than none;
    /// then it has none.
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
}

/// Quality of one side in an interval.
#[derive(Debug, Default)]
struct IntervalQuality {
    packets: Option<u64>,
    lost: Option<u64>,
    loss_percent: Option<Hundredths>,
    jitter_ms: Option<Hundredths>,
    mos: Option<Hundredths>,
}

/// Intervals of the calls of this worker.
#[derive(Debug, Default)]
pub(crate) struct QualityIntervals {
    is_running: bool,
    /// Number of the next tick within an interval.
    tick: usize,
    /// By session in the forwarder.
    baselines: BTreeMap<u64, Baseline>,
}

impl QualityIntervals {
    /// Starts the ticks, which go on while there are calls, if intervals are configured. To be called when a call is answered.
    pub(crate) fn start(&mut self, ctx: &mut Ctx) {
        if !self.is_running && interval(ctx).is_some() {
            self.is_running = true;
            ctx.timers.schedule(ctx.now + TICK, Alarm::QualityTick);
        }
    }

    /// Begins a tick, and the next one if there are calls. Returns its number within an interval and the number of ticks in one; `None`
    /// without intervals.
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
        });
        baseline.encodings = encodings;
    }

    /// Number of calls with intervals.
    pub(crate) fn len(&self) -> usize {
        self.baselines.len()
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
        // Figures are queried for other purposes, too.
        let shortest = match (last, interval(ctx)) {
            (true, _) if baseline.intervals == 0 => Duration::MAX,
            // With the rest, the intervals add up to the call.
            (true, _) => Duration::from_millis(1),
            (false, None) => SHORTEST,
            (false, Some(interval)) => interval / 2,
        };
        if span >= shortest {
            let totals = totals_of(stats, &baseline.encodings);
            let [caller, callee] = Side::BOTH.map(|side| baseline.quality(stats, &totals, side));
            ctx.events.tell(now, || EventKind::CallMediaInterval {
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
            baseline.totals = totals;
            baseline.since = now;
            baseline.intervals += 1;
        }
        if last {
            self.remove(session);
        }
    }
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
        let now = totals.get(side.index());
        let (Some(before), Some(now)) = (before, now) else {
            return IntervalQuality::default();
        };
        let differences: SmallVec<[SourceTotals; 1]> = now
            .iter()
            .map(|totals| totals.since(before.iter().find(|before| before.ssrc == totals.ssrc)))
            .collect();
        if differences.is_empty() {
            return IntervalQuality::default();
        }
        let received = differences.iter().map(|source| source.received).sum();
        let expected: u64 = differences.iter().map(|source| source.expected).sum();
        let lost: u64 = differences.iter().map(|source| source.lost).sum();
        let loss_percent = (expected > 0).then(|| lost as f64 * 100.0 / expected as f64);
        let main = differences.iter().max_by_key(|source| source.received);
        let main = main.filter(|source| source.received > 0);
        let jitter = main
            .filter(|source| source.jitter_samples > 0)
            .map(|source| source.jitter_sum / source.jitter_samples as f64);
        let mos = main
            .zip(jitter)
            .zip(loss_percent)
            .and_then(|((main, jitter), loss)| {
                let (line, source) = sides_of_line(stats, &self.encodings, side)
                    .flat_map(|(line, side)| side.sources.iter().map(move |source| (line, source)))
                    .find(|(_, source)| source.ssrc == main.ssrc)?;
                let quality = codec_quality(encoding_of(source, line, side, &self.encodings)?)?;
                let observed = Observation {
                    loss_percent: loss,
                    burst_ratio: source.summary.burst_ratio,
                    delay_ms: round_trip_of(stats, line) / 2.0
                        + PACKET_MS
                        + (4.0 * jitter).max(PACKET_MS),
                };
                Some(Hundredths::of(rate(quality, &observed).mos))
            });
        IntervalQuality {
            packets: Some(received),
            lost: Some(lost),
            loss_percent: loss_percent.map(Hundredths::of),
            jitter_ms: jitter.map(Hundredths::of),
            mos,
        }
    }
}
