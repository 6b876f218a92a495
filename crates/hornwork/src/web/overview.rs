//! Figures over time, in memory: a point every five seconds, of the last hour.

use super::types::{DropRate, Overview, OverviewNow, OverviewSeries};
use crate::cpu_time::cpu_seconds;
use crate::operators::Statistics;
use engine::{DropReason, Drops, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Interval of points.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Points: those of an hour.
const MAX_POINTS: usize = 720;
/// Points over which the share of answered calls is calculated: a minute.
const ANSWERED_POINTS: usize = 12;

/// A point.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    at: i64,
    now: Figures,
    /// Calls offered and answered since the point before.
    offered: u64,
    answered: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    calls_active: u64,
    calls_per_s: f64,
    registrations: u64,
    registrations_per_s: f64,
    rtp_packets_per_s: f64,
    mos: Option<f64>,
    cpu: f64,
    memory_mib: f64,
    drops_per_s: f64,
}

/// Sums at the last point.
struct Sums {
    at: Time,
    statistics: Statistics,
    cpu_s: f64,
}

/// The points.
#[derive(Default)]
pub(super) struct OverviewHistory {
    points: VecDeque<Point>,
    last: Option<Sums>,
    /// Drops per second by reason, at the last point.
    drops: Vec<(DropReason, u64, f64)>,
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl OverviewHistory {
    /// Adds the point of `now`; `unix_s` is its time in seconds since 1970.
    pub(super) fn add(&mut self, statistics: Statistics, memory: u64, now: Time, unix_s: i64) {
        let cpu_s: f64 = cpu_seconds().values().sum();
        self.add_sums(
            Sums {
                at: now,
                statistics,
                cpu_s,
            },
            memory,
            unix_s,
        );
    }

    fn add_sums(&mut self, sums: Sums, memory: u64, unix_s: i64) {
        let new = &sums.statistics;
        let empty = Sums {
            at: sums.at,
            statistics: new.clone(),
            cpu_s: sums.cpu_s,
        };
        let last = self.last.as_ref().unwrap_or(&empty);
        let old = &last.statistics;
        let seconds = sums.at.since(last.at).as_secs_f64();
        let rate = |new: u64, old: u64| match seconds > 0.0 {
            true => rounded(new.saturating_sub(old) as f64 / seconds),
            false => 0.0,
        };
        let mos_calls = new.counts.mos_calls.saturating_sub(old.counts.mos_calls);
        let mos_sum = new.counts.mos_sum.saturating_sub(old.counts.mos_sum);
        let cpu = match seconds > 0.0 {
            true => (sums.cpu_s - last.cpu_s).max(0.0) * 100.0 / seconds,
            false => 0.0,
        };
        let point = Point {
            at: unix_s,
            now: Figures {
                calls_active: new.calls,
                calls_per_s: rate(new.counters.offered, old.counters.offered),
                registrations: new.registrations,
                registrations_per_s: rate(new.counts.registrations, old.counts.registrations),
                // Those that the kernel relays are among them.
                rtp_packets_per_s: rate(new.packets, old.packets),
                mos: (mos_calls > 0).then(|| rounded(mos_sum as f64 / mos_calls as f64 / 100.0)),
                cpu: rounded(cpu),
                memory_mib: rounded(memory as f64 / f64::from(1 << 20)),
                drops_per_s: rate(new.drops.total(), old.drops.total()),
            },
            offered: new.counters.offered.saturating_sub(old.counters.offered),
            answered: new.counters.answered.saturating_sub(old.counters.answered),
        };
        self.drops = rates_of(&new.drops, &old.drops, rate);
        if self.points.len() >= MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.last = Some(sums);
    }

    /// The newest figures.
    pub(super) fn now(&self) -> OverviewNow {
        let last = self.points.back().copied().unwrap_or_default().now;
        let newest = self.last.as_ref();
        let store = newest.and_then(|sums| sums.statistics.store);
        let minute = self.points.iter().rev().take(ANSWERED_POINTS);
        let (offered, answered) = minute.fold((0, 0), |(offered, answered), point| {
            (offered + point.offered, answered + point.answered)
        });
        OverviewNow {
            at: self.points.back().map(|point| point.at),
            calls_active: last.calls_active,
            calls_per_s: last.calls_per_s,
            registrations: last.registrations,
            registrations_per_s: last.registrations_per_s,
            rtp_packets_per_s: last.rtp_packets_per_s,
            mos: last.mos,
            cpu: last.cpu,
            memory_mib: last.memory_mib,
            drops_per_s: last.drops_per_s,
            // Calls that were offered before the minute may be answered within it.
            answered_ratio: (offered > 0)
                .then(|| rounded((answered as f64 / offered as f64).min(1.0))),
            store_lost: store.map(|store| store.lost.total()),
            store_failing: store.is_some_and(|store| store.failing),
        }
    }

    /// The newest figures, and the points of the last `seconds`.
    pub(super) fn overview(&self, seconds: u32) -> Overview {
        let newest = self.points.back().map_or(0, |point| point.at);
        let from = newest - i64::from(seconds);
        let mut series = OverviewSeries::default();
        for point in self.points.iter().filter(|point| point.at > from) {
            let figures = &point.now;
            series.at.push(point.at);
            series.calls_active.push(figures.calls_active);
            series.calls_per_s.push(figures.calls_per_s);
            series.registrations.push(figures.registrations);
            series.rtp_packets_per_s.push(figures.rtp_packets_per_s);
            series.mos.push(figures.mos);
            series.cpu.push(figures.cpu);
            series.memory_mib.push(figures.memory_mib);
            series.drops_per_s.push(figures.drops_per_s);
        }
        Overview {
            now: self.now(),
            series,
        }
    }

    /// Drops by reason, with their rate at the last point.
    pub(super) fn drops(&self) -> Vec<DropRate> {
        let rates = self.drops.iter();
        rates
            .map(|(reason, total, per_s)| DropRate {
                reason: reason.name(),
                total: *total,
                per_s: *per_s,
                help: reason.text().trim(),
            })
            .collect()
    }
}

/// Reasons with drops, the most frequent first.
fn rates_of(
    new: &Drops,
    old: &Drops,
    rate: impl Fn(u64, u64) -> f64,
) -> Vec<(DropReason, u64, f64)> {
    let all = DropReason::ALL.iter().copied();
    let mut drops: Vec<(DropReason, u64, f64)> = all
        .map(|reason| (reason, new.get(reason), old.get(reason)))
        .filter(|(_, new, _)| *new > 0)
        .map(|(reason, new, old)| (reason, new, rate(new, old)))
        .collect();
    drops.sort_by_key(|(_, total, _)| std::cmp::Reverse(*total));
    drops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::StoreState;
    use console::LossCounts;

    #[test]
    fn points_are_rates_and_bounded() {
        let mut history = OverviewHistory::default();
        assert_eq!(history.overview(3_600).series.at.len(), 0);
        assert_eq!(history.now().at, None);
        let mut statistics = Statistics::default();
        for step in 0..1_000 {
            statistics.counters.offered += 10;
            statistics.counters.answered += 5;
            statistics.calls = 3;
            statistics.counts.mos_calls += 2;
            statistics.counts.mos_sum += 800;
            statistics.packets += 500;
            statistics.relayed_in_kernel += 400;
            let sums = Sums {
                at: Time::from_secs(step * 5),
                statistics: statistics.clone(),
                cpu_s: step as f64,
            };
            history.add_sums(sums, 1 << 20, step as i64 * 5);
        }
        let overview = history.overview(3_600);
        assert_eq!(overview.series.at.len(), MAX_POINTS);
        assert_eq!(overview.series.calls_per_s.last(), Some(&2.0));
        assert_eq!(overview.now.rtp_packets_per_s, 100.0);
        assert_eq!((overview.now.cpu, overview.now.mos), (20.0, Some(4.0)));
        assert_eq!(overview.now.answered_ratio, Some(0.5));
        assert_eq!(overview.now.store_lost, None);
        statistics.store = Some(StoreState {
            lost: LossCounts {
                messages: 5,
                calls: 2,
                ..LossCounts::default()
            },
            failing: true,
            ..StoreState::default()
        });
        let sums = Sums {
            at: Time::from_secs(5_000),
            statistics,
            cpu_s: 0.0,
        };
        history.add_sums(sums, 1 << 20, 5_000);
        let now = history.now();
        assert_eq!((now.store_lost, now.store_failing), (Some(7), true));
        // Pages append it to the series: their clock may be another one.
        assert_eq!(now.at, Some(5_000));
        assert_eq!(history.overview(60).series.at.len(), 12);
    }
}
