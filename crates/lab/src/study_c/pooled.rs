//! Figures of the repetitions of a cell with their intervals.

use super::captures::mean;
use super::record::{CellFigure, CellRecord};
use crate::statistics::Interval;

/// Repetitions from which on their spread gives the interval; with fewer ones it is that within the calls.
const REPETITIONS: usize = 3;

/// Interval of the loss. Losses of one call are no independent events, and calls differ: the wider one of both
/// intervals counts.
fn loss_interval(records: &[&&CellRecord], (lost, sent): (u64, u64)) -> Interval {
    let n = records.len().max(1) as f64;
    let correlation = records.iter().map(|r| r.loss_correlation).sum::<f64>() / n;
    let within = Interval::of_correlated_share((lost, sent), correlation, 100.0, "packets");
    if records.len() < REPETITIONS {
        return within;
    }
    let losses: Vec<f64> = records.iter().filter_map(|r| r.loss_percent).collect();
    let mut between = Interval::of_mean(&losses, "calls");
    between.centre(lost as f64 * 100.0 / sent.max(1) as f64);
    between.high = between.high.map(|high| high.min(100.0));
    let width = |interval: &Interval| Some(interval.high? - interval.low?);
    match width(&between) > width(&within) {
        true => between,
        false => within,
    }
}

/// Whether both have exactly the same figures: in virtual time, on a line without losses and jitter, each repetition is
/// the first one again, whatever its seed.
fn is_same(a: &CellRecord, b: &CellRecord) -> bool {
    (a.sent, a.arrived, a.loss_percent) == (b.sent, b.arrived, b.loss_percent)
        && (&a.latency_ms, &a.jitter_ms) == (&b.latency_ms, &b.jitter_ms)
}

/// Records without repetitions of others: they are no further samples.
fn distinct<'a>(records: Vec<&'a &'a CellRecord>) -> Vec<&'a &'a CellRecord> {
    let mut kept: Vec<&&CellRecord> = Vec::with_capacity(records.len());
    for record in records {
        let timed = record
            .latency_ms
            .blocks
            .iter()
            .any(|times| !times.is_empty());
        if !timed || !kept.iter().any(|known| is_same(known, record)) {
            kept.push(record);
        }
    }
    kept
}

/// Pools the figures of several repetitions of a cell.
#[derive(Clone, Debug, Default)]
pub struct Pooled {
    /// Loss, percent, with its interval and packets.
    pub loss: Option<(f64, Interval)>,
    /// Latency, milliseconds.
    pub latency: Option<(f64, Interval)>,
    /// Jitter, milliseconds.
    pub jitter: Option<(f64, Interval)>,
}

impl Pooled {
    /// Of the valid ones of these records.
    pub fn of(records: &[&CellRecord]) -> Pooled {
        let valid = distinct(records.iter().filter(|record| record.is_valid()).collect());
        let sent: u64 = valid.iter().flat_map(|record| record.sent).sum();
        let arrived: u64 = valid.iter().flat_map(|record| record.arrived).sum();
        if sent == 0 {
            return Pooled::default();
        }
        let lost = sent - arrived.min(sent);
        let share = lost as f64 * 100.0 / sent as f64;
        let loss = (share, loss_interval(&valid, (lost, sent)));
        let figure = |of: fn(&CellRecord) -> &CellFigure| {
            let values: Vec<f64> = valid.iter().filter_map(|record| of(record).value).collect();
            let blocks: Vec<&[f64]> = valid
                .iter()
                .flat_map(|record| of(record).blocks.iter().map(Vec::as_slice))
                .collect();
            let value = mean(&values)?;
            let mut interval = match values.len() >= REPETITIONS {
                true => Interval::of_mean(&values, "calls"),
                false => Interval::of_series(&blocks, "blocks of 1 s"),
            };
            interval.centre(value);
            Some((value, interval))
        };
        Pooled {
            loss: Some(loss),
            latency: figure(|record| &record.latency_ms),
            jitter: figure(|record| &record.jitter_ms),
        }
    }

    /// The figure of this name.
    pub fn figure(&self, name: &str) -> Option<&(f64, Interval)> {
        match name {
            "loss" => self.loss.as_ref(),
            "latency" => self.latency.as_ref(),
            _ => self.jitter.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(loss: f64, latency: f64, blocks: Vec<Vec<f64>>) -> CellRecord {
        let lost = (loss * 100.0) as u64;
        CellRecord {
            sent: [5_000, 5_000],
            arrived: [5_000 - lost, 5_000],
            loss_percent: Some(loss),
            latency_ms: CellFigure {
                value: Some(latency),
                blocks,
            },
            ..CellRecord::default()
        }
    }

    #[test]
    fn one_call_has_the_spread_of_its_blocks_and_several_that_of_the_calls() {
        // A queue that grows: neighbouring blocks are alike, so that six are fewer samples.
        let growing = vec![vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0]];
        let one = call(1.0, 35.0, growing.clone());
        let pooled = Pooled::of(&[&one]);
        let (value, interval) = pooled.latency.unwrap();
        let plain = Interval::of_mean(&growing[0], "blocks of 1 s");
        assert_eq!(value, 35.0);
        let width = |interval: &Interval| interval.high.unwrap() - interval.low.unwrap();
        assert!(width(&interval) > width(&plain), "{interval:?} {plain:?}");
        // Three calls that agree: the trend within them is no uncertainty.
        let [a, b] = [34.9, 35.1].map(|latency| call(1.0, latency, growing.clone()));
        let (_, interval) = Pooled::of(&[&one, &a, &b]).latency.unwrap();
        assert!(width(&interval) < 1.0, "{interval:?}");
        assert_eq!(interval.source(), "3 calls, Student's t");
    }

    #[test]
    fn repetitions_of_a_deterministic_cell_are_one_sample() {
        let blocks = vec![vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0]];
        let one = call(1.0, 35.0, blocks.clone());
        let again = [one.clone(), one.clone(), one.clone(), one.clone()];
        let all: Vec<&CellRecord> = again.iter().collect();
        let (once, five) = (Pooled::of(&[&one]), Pooled::of(&all));
        assert_eq!(once.latency, five.latency);
        assert_eq!(once.loss, five.loss);
        // Another latency is another call.
        let other = call(1.0, 35.5, blocks);
        assert_ne!(Pooled::of(&[&one, &other]).loss, once.loss);
    }

    #[test]
    fn loss_has_the_wider_interval_of_packets_and_calls() {
        let width = |pooled: &Pooled| {
            let (_, interval) = pooled.loss.as_ref().unwrap();
            interval.high.unwrap() - interval.low.unwrap()
        };
        let alike = [1.0, 1.0, 1.0].map(|loss| call(loss, 1.0, Vec::new()));
        let all: Vec<&CellRecord> = alike.iter().collect();
        let pooled = Pooled::of(&all);
        assert_eq!(pooled.loss.as_ref().unwrap().1.of, "packets");
        assert!(width(&pooled) > 0.1);
        let apart = [0.0, 1.0, 5.0].map(|loss| call(loss, 1.0, Vec::new()));
        let all: Vec<&CellRecord> = apart.iter().collect();
        let pooled = Pooled::of(&all);
        assert_eq!(pooled.loss.as_ref().unwrap().1.of, "calls");
        // Losses of a full queue come together: fewer independent events.
        let mut bursts = call(2.0, 1.0, Vec::new());
        let independent = width(&Pooled::of(&[&bursts]));
        bursts.loss_correlation = 0.8;
        assert!(width(&Pooled::of(&[&bursts])) > independent * 2.0);
    }
}
