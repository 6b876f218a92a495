//! Tables of the delay by hop and of its effect on a conversation, a row for each trial.

use super::data::RunResults;
use super::html_table::{HtmlTable, TableRow, number};
use super::tables::{FOLD, trial_cell};
use crate::conversation::TalkShares;
use crate::hops::HopDelay;
use crate::raw::TrialRecord;
use crate::records_page::link;
use crate::statistics::Interval;
use std::fmt::Write as _;

/// Trials with their place in the record.
fn trials(results: &RunResults) -> impl Iterator<Item = (usize, &TrialRecord)> {
    let trials = results.raw.run.trials.iter();
    trials.filter_map(|trial| Some((results.place(trial.trial)?, trial)))
}

/// Both tables.
pub(super) fn tables(html: &mut String, results: &RunResults) {
    by_hop(html, results);
    conversation(html, results);
}

fn by_hop(html: &mut String, results: &RunResults) {
    let mut rows = Vec::new();
    for (place, trial) in trials(results) {
        let Some(split) = &trial.details.delay_split else {
            continue;
        };
        let record = format!("run.json#/trials/{place}/details/delay_split");
        let cell =
            |path: &str, value: Option<f64>| link(&format!("{record}/{path}"), &number(value));
        let row = |path: String, hop: &HopDelay| {
            let mut cells = vec![
                trial_cell(results, trial),
                link(&format!("{record}/{path}/hop"), &hop.hop),
            ];
            let figures = hop.figures();
            cells.extend(figures.map(|(name, value)| cell(&format!("{path}/{name}"), value)));
            cells.push(link(&format!("{record}/{path}/from"), &hop.from));
            TableRow::from(cells)
        };
        let hops = split.hops.iter().enumerate();
        rows.extend(hops.map(|(n, hop)| row(format!("hops/{n}"), hop)));
        rows.push(TableRow::from(vec![
            trial_cell(results, trial),
            "sum".to_owned(),
            cell("sum_ms", Some(split.sum_ms)),
            number(None),
            number(None),
            String::new(),
        ]));
        rows.push(row("end_to_end".to_owned(), &split.end_to_end));
    }
    HtmlTable {
        title: "Delay by hop",
        note: "Of media packets, from the due time to the arrival, both ends on one clock. Generator: its lateness. Link: time in the emulated link of [network]. Protection: time in the gateways. SUT: the system under test with the network around it. Stamps: of each media packet (packets), of all packets of the hop with its signalling (all packets), or the delay that the other hops leave (rest), which has a mean only. Means can be added, medians and percentiles cannot.",
        columns: vec!["trial", "hop", "mean, ms", "p50, ms", "p99, ms", "stamps"],
        words: &[1, 5],
        folded: rows.len() > 2 * FOLD,
        rows,
        ..HtmlTable::default()
    }
    .write(html);
}

fn conversation(html: &mut String, results: &RunResults) {
    let mut rows = Vec::new();
    for (place, trial) in trials(results) {
        let Some(talk) = &trial.details.talk_over else {
            continue;
        };
        let record = format!("run.json#/trials/{place}/details/talk_over");
        let cases: [(&str, &TalkShares); 2] =
            [("delayed", &talk.delayed), ("undelayed", &talk.undelayed)];
        for (case, shares) in cases {
            let mut cells = vec![trial_cell(results, trial)];
            for (n, delay) in talk.delay_ms.into_iter().enumerate() {
                cells.push(match case {
                    "delayed" => link(&format!("{record}/delay_ms/{n}"), &number(Some(delay))),
                    _ => "none".to_owned(),
                });
            }
            for (name, value, interval) in [
                (
                    "double_talk",
                    shares.double_talk_percent,
                    &shares.double_talk,
                ),
                (
                    "mutual_silence",
                    shares.mutual_silence_percent,
                    &shares.mutual_silence,
                ),
                (
                    "talk_overs",
                    shares.talk_overs_per_minute,
                    &shares.talk_overs,
                ),
            ] {
                let unit = if name == "talk_overs" {
                    "_per_minute"
                } else {
                    "_percent"
                };
                cells.push(link(
                    &format!("{record}/{case}/{name}{unit}"),
                    &number(Some(value)),
                ));
                cells.push(ends(&format!("{record}/{case}/{name}"), interval));
            }
            rows.push(TableRow::from(cells));
        }
    }
    HtmlTable {
        title: "Effect of the delay on a conversation",
        note: "Simulated conversations of two parties with the mean one-way delays of the trial, 20 ms of packet time and 60 ms of jitter buffer included: model of ITU-T P.59, in which each party reacts to the speech that it hears. Double talk and mutual silence: share of the time at the ends. Talk-overs: beginnings of speech while the other party talks already and is not heard yet. With its delay and without; 95 % intervals over 20 conversations of ten minutes. A model: real talkers adapt to a delay.",
        columns: vec![
            "trial",
            "delay to the caller, ms",
            "to the called side, ms",
            "double talk, %",
            "95 %",
            "mutual silence, %",
            "95 %",
            "talk-overs a minute",
            "95 %",
        ],
        folded: rows.len() > FOLD,
        rows,
        ..HtmlTable::default()
    }
    .write(html);
}

/// An interval as two numbers that lead to their record.
fn ends(record: &str, interval: &Interval) -> String {
    let mut out = link(&format!("{record}/low"), &number(interval.low));
    let _ = write!(
        out,
        " to {}",
        link(&format!("{record}/high"), &number(interval.high))
    );
    out
}
