//! Rows, tables and plots of the study, and the records to which their numbers link.

use super::model::{
    CODECS, COMMON_DIFFERS, DIFFERS, FIGURES, NETWORKS, NOT_OF_STUDY, PROTECTIONS,
    SIMULATION_DIFFERS, study_speed, study_value,
};
use super::pooled::Pooled;
use super::record::CellRecord;
use super::{Found, MATRIX, cause_of, cells_of, low_loss, write_json};
use crate::error::LabError;
use crate::report::plain;
use crate::statistics::Interval;
use crate::study::{BarRecord, PlotRecord, Reading, StudyRow, TableRecord};
use serde_json::json;
use std::path::Path;

const RANKING: &str = "ranking.json";
const SPEEDS: &str = "cipher_speed.json";
const OWN_ERROR: &str = "own_error.json";

/// A file of the part, relative to the study's directory.
fn file(name: &str) -> String {
    format!("{MATRIX}/{name}")
}

/// Name of the file with the pooled figures of a codec, network and protection.
fn pooled_name(codec: &str, network: &str, protection: &str) -> String {
    format!("cells/{codec}-{network}-{protection}.json")
}

/// Cells of a codec, a network and a protection.
fn cells_with<'a>(
    cells: &'a [CellRecord],
    codec: &str,
    network: &str,
    protection: &str,
) -> Vec<&'a CellRecord> {
    let matching = cells.iter().filter(|cell| {
        cell.codec == codec && cell.network == network && cell.protection == protection
    });
    matching.collect()
}

/// Writes the records beside those of the cells: pooled figures with the names of their cells, ranking, ciphers, own
/// error.
pub(super) fn write(dir: &Path, found: &Found) -> Result<(), LabError> {
    for codec in CODECS {
        for network in NETWORKS {
            for protection in PROTECTIONS {
                let cells = cells_with(&found.cells, codec.name, network.name, protection.name);
                if cells.is_empty() {
                    continue;
                }
                let pooled = Pooled::of(&cells);
                let names: Vec<String> = cells
                    .iter()
                    .map(|cell| format!("{}.json", cell.name))
                    .collect();
                let figures: serde_json::Map<String, serde_json::Value> = FIGURES
                    .iter()
                    .map(|(name, unit)| {
                        let figure = pooled.figure(name);
                        let value = figure.map(|(value, _)| *value);
                        let interval = figure.map(|(_, interval)| interval);
                        let entry = json!({ "value": value, "unit": unit, "interval": interval });
                        ((*name).to_owned(), entry)
                    })
                    .collect();
                let record = json!({ "cells": names, "figures": figures });
                let name = pooled_name(codec.name, network.name, protection.name);
                write_json(&dir.join(name), &record)?;
            }
        }
    }
    let ranking = json!({
        "ranking": found.ranking,
        "among_the_study": found.study_ranking,
        "recommendations": found.recommendations,
    });
    write_json(&dir.join(RANKING), &ranking)?;
    write_json(&dir.join(SPEEDS), &found.cipher_speed)?;
    let own = json!({ "own_error": found.own_error, "left_overs": found.left_overs });
    write_json(&dir.join(OWN_ERROR), &own)
}

fn differs(found: &Found) -> Vec<String> {
    let own = match found.own_error {
        Some(_) => &DIFFERS[..],
        None => &SIMULATION_DIFFERS[..],
    };
    own.iter()
        .chain(&COMMON_DIFFERS)
        .map(|text| (*text).to_owned())
        .collect()
}

/// Rows C1 to C5.
pub(super) fn rows(found: &Found) -> Vec<StudyRow> {
    let mut rows = vec![protections(found)];
    rows.extend(figures(found));
    rows.extend(ranks(found));
    rows.extend(speeds(found));
    rows
}

fn protections(found: &Found) -> StudyRow {
    let is_measured = |name: &str| {
        let mut cells = found.cells.iter();
        cells.any(|cell| cell.protection == name && cell.is_valid())
    };
    let absent: Vec<&str> = PROTECTIONS
        .iter()
        .filter(|protection| !is_measured(protection.name))
        .map(|protection| protection.label)
        .collect();
    let of_study = PROTECTIONS
        .iter()
        .filter(|protection| protection.is_of_study());
    let measured = of_study
        .filter(|protection| is_measured(protection.name))
        .count();
    StudyRow {
        row: "C1".to_owned(),
        what: "protections measured: none, firewall, firewall and VPN with each cipher".to_owned(),
        study: Some(Reading::Number(8.0)),
        here: Some(measured as f64),
        samples: found.cells.len() as u64,
        differs: differs(found),
        unit: "protections".to_owned(),
        figure: "protections".to_owned(),
        remark: match absent.is_empty() {
            true => {
                let beside = PROTECTIONS
                    .iter()
                    .filter(|protection| !protection.is_of_study());
                let beside: Vec<&str> = beside.map(|protection| protection.label).collect();
                format!("and {}, which the study does not have", beside.join(", "))
            }
            false => format!("not measured: {}", absent.join(", ")),
        },
        ..StudyRow::default()
    }
}

fn figures(all: &Found) -> Vec<StudyRow> {
    let mut rows = Vec::new();
    for network in NETWORKS {
        for protection in PROTECTIONS {
            let cells = cells_of(&all.cells, network.name, protection.name);
            let pooled = Pooled::of(&cells);
            for (figure, unit) in FIGURES {
                let found = pooled.figure(figure);
                let name = pooled_name(CODECS[0].name, network.name, protection.name);
                rows.push(StudyRow {
                    row: if figure == "loss" { "C2" } else { "C3" }.to_owned(),
                    what: format!("{figure}, {}, {}", network.label, protection.label),
                    study: study_value(network.name, protection.name, figure),
                    here: found.map(|(value, _)| *value),
                    interval: found.map(|(_, interval)| interval.clone()),
                    samples: found.map_or(0, |(_, interval)| interval.samples),
                    differs: differs(all),
                    unit: unit.to_owned(),
                    figure: figure.to_owned(),
                    remark: match found {
                        Some((_, interval)) if figure == "loss" => {
                            let study = study_value(network.name, protection.name, figure);
                            low_loss(&network, &cells, study.as_ref(), interval.high)
                        }
                        Some(_) => String::new(),
                        None => cause_of(&cells),
                    },
                    record: found.map_or(String::new(), |_| file(&name)),
                    ..StudyRow::default()
                });
            }
        }
    }
    rows
}

fn ranks(found: &Found) -> Vec<StudyRow> {
    let mut rows = Vec::new();
    for row in &found.study_ranking {
        let names = ["security", "latency", "jitter", "loss"];
        for (index, ((name, study), here)) in names.iter().zip(row.study).zip(row.here).enumerate()
        {
            let shared = found.study_ranking.iter();
            let shared = shared.filter(|other| here.is_some() && other.here[index] == here);
            let is_shared = shared.count() > 1;
            rows.push(StudyRow {
                row: "C4".to_owned(),
                what: format!(
                    "rank of {} by {name} among the ciphers of the study (1 is best)",
                    row.label
                ),
                study: Some(Reading::Number(f64::from(study))),
                here: here.map(f64::from),
                interval: row.rank_interval(index),
                samples: row.rank_interval(index).map_or(0, |ranks| ranks.samples),
                differs: differs(found),
                unit: "rank".to_owned(),
                figure: (*name).to_owned(),
                remark: match here {
                    Some(_) if *name == "security" => {
                        "by key and block length: not measured, so without uncertainty".to_owned()
                    }
                    Some(_) if is_shared => "shared rank: the intervals overlap".to_owned(),
                    Some(_) => String::new(),
                    None => "not measured in all networks".to_owned(),
                },
                record: here.map_or(String::new(), |_| file(RANKING)),
                ..StudyRow::default()
            });
        }
    }
    rows
}

fn speeds(found: &Found) -> Vec<StudyRow> {
    let row = |speed: &super::CipherSpeed| StudyRow {
        row: "C5".to_owned(),
        what: format!("speed of {} in memory", speed.protection),
        study: study_speed(speed.protection),
        here: speed.mb_per_s,
        interval: speed.interval.clone(),
        samples: speed.rounds.len() as u64,
        differs: vec!["openssl speed with blocks of 64 bytes; the study cites Java".to_owned()],
        unit: "MB/s".to_owned(),
        figure: "speed".to_owned(),
        remark: speed.cause.clone().unwrap_or_default(),
        record: speed.mb_per_s.map_or(String::new(), |_| file(SPEEDS)),
        ..StudyRow::default()
    };
    found.cipher_speed.iter().map(row).collect()
}

/// The ranking, the recommendations, the matrix of each figure, and today's codecs.
pub(super) fn tables(found: &Found) -> Vec<TableRecord> {
    let mut tables = vec![ranking(found), recommendations(found)];
    tables.extend(FIGURES.map(|(figure, unit)| matrix(&found.cells, figure, unit)));
    tables.push(todays_codecs(&found.cells));
    tables
}

/// Words on the mark.
fn not_of_study() -> String {
    format!("{NOT_OF_STUDY} not of the study")
}

/// A word with a capital letter.
fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn ends(interval: &Interval) -> String {
    match (interval.low, interval.high) {
        (Some(low), Some(high)) => format!(" ({} to {})", plain(low), plain(high)),
        _ => String::new(),
    }
}

fn head(first: &str, others: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(others).collect()
}

fn ranking(found: &Found) -> TableRecord {
    let units = ["ms", "ms", "%"];
    let rows = found.ranking.iter().map(|row| {
        let mut cells = vec![row.marked()];
        for (index, (here, study)) in row.here.iter().zip(row.study).enumerate() {
            let mut text = here.map_or("not measured".to_owned(), |rank| rank.to_string());
            if let Some([best, worst]) = row.rank_intervals[index].filter(|[low, high]| low < high)
            {
                text.push_str(&format!(" [{best} to {worst}]"));
            }
            if study > 0 {
                text.push_str(&format!(" (study {study})"));
            }
            let detail = index.checked_sub(1);
            if let Some((mean, [low, high], unit)) =
                detail.and_then(|at| Some((row.means[at]?, row.intervals[at]?, units[at])))
            {
                let (mean, low, high) = (plain(mean), plain(low), plain(high));
                text.push_str(&format!(": {mean} {unit} ({low} to {high})"));
            }
            cells.push(text);
        }
        cells.push(row.mb_per_s.map_or("-".to_owned(), plain));
        cells.push(row.reason.to_owned());
        cells
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let link = [
        String::new(),
        String::new(),
        file(RANKING),
        file(RANKING),
        file(RANKING),
        file(SPEEDS),
    ];
    TableRecord {
        title: "Ranking".to_owned(),
        note: format!(
            "1 is best, among all protections; in brackets the ranks that the intervals allow; means over the networks with their 95 % \
             intervals. Protections whose intervals overlap have the same rank. {}.",
            not_of_study()
        ),
        head: head(
            "protection",
            [
                "security",
                "latency",
                "jitter",
                "loss",
                "cipher, MB/s",
                "reason of the rank of security",
            ]
            .map(str::to_owned),
        ),
        links: vec![link.to_vec(); rows.len()],
        rows,
    }
}

fn recommendations(found: &Found) -> TableRecord {
    let row = |advice: &super::Recommendation| {
        let protection = advice.named();
        vec![
            advice.need.to_owned(),
            protection.to_owned(),
            advice.reason.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = found.recommendations.iter().map(row).collect();
    TableRecord {
        title: "Recommendations".to_owned(),
        note: "Only protections that are advised for new use; none is named for a need in which they do not differ.".to_owned(),
        head: head("need", ["protection", "reason"].map(str::to_owned)),
        links: vec![vec![String::new(), file(RANKING)]; rows.len()],
        rows,
    }
}

fn matrix(cells: &[CellRecord], figure: &str, unit: &str) -> TableRecord {
    let mut table = TableRecord {
        title: format!("{} by protection and network, {unit}", capital(figure)),
        note: format!(
            "With the 95 % interval and the study's figure. {}.",
            not_of_study()
        ),
        head: head(
            "protection",
            NETWORKS.map(|network| network.label.to_owned()),
        ),
        ..TableRecord::default()
    };
    for protection in PROTECTIONS {
        let mut row = vec![protection.marked()];
        let mut links = vec![String::new()];
        for network in NETWORKS {
            let of_cell = cells_of(cells, network.name, protection.name);
            let pooled = Pooled::of(&of_cell);
            let mut text = match pooled.figure(figure) {
                Some((value, interval)) => format!("{}{}", plain(*value), ends(interval)),
                None => format!("not measured: {}", cause_of(&of_cell)),
            };
            if let Some(study) = study_value(network.name, protection.name, figure) {
                text.push_str(&format!("; study: {}", study.text()));
            }
            row.push(text);
            let name = pooled_name(CODECS[0].name, network.name, protection.name);
            links.push(match of_cell.is_empty() {
                true => String::new(),
                false => file(&name),
            });
        }
        table.rows.push(row);
        table.links.push(links);
    }
    table
}

fn todays_codecs(cells: &[CellRecord]) -> TableRecord {
    let mut table = TableRecord {
        title: "Today's codecs".to_owned(),
        note: format!(
            "The same lines with frames of G.729 and Opus each 20 ms: loss in %, latency in ms, jitter in ms. {}.",
            not_of_study()
        ),
        head: head(
            "codec, protection",
            NETWORKS.map(|network| network.label.to_owned()),
        ),
        ..TableRecord::default()
    };
    for codec in &CODECS[1..] {
        for protection in PROTECTIONS {
            let of = |network: &str| cells_with(cells, codec.name, network, protection.name);
            if NETWORKS.iter().all(|network| of(network.name).is_empty()) {
                continue;
            }
            let mut row = vec![format!("{}, {}", codec.label, protection.marked())];
            let mut links = vec![String::new()];
            for network in NETWORKS {
                let cells = of(network.name);
                let pooled = Pooled::of(&cells);
                let figures: Vec<String> = FIGURES
                    .iter()
                    .filter_map(|(figure, _)| pooled.figure(figure))
                    .map(|(value, interval)| format!("{}{}", plain(*value), ends(interval)))
                    .collect();
                row.push(match figures.is_empty() {
                    true => format!("not measured: {}", cause_of(&cells)),
                    false => figures.join(", "),
                });
                links.push(match cells.is_empty() {
                    true => String::new(),
                    false => file(&pooled_name(codec.name, network.name, protection.name)),
                });
            }
            table.rows.push(row);
            table.links.push(links);
        }
    }
    table
}

/// Bars by protection, one for each network; the long distance has plots of its own where its scale is another.
pub(super) fn plots(cells: &[CellRecord]) -> Vec<PlotRecord> {
    let [near @ .., far] = NETWORKS;
    let mut plots = vec![bars(cells, "loss", "loss, %", &NETWORKS, "")];
    for figure in ["latency", "jitter"] {
        let y = format!("{figure}, ms");
        plots.push(bars(cells, figure, &y, &near, ", lines and LAN"));
        plots.push(bars(cells, figure, &y, &[far], ", long distance"));
    }
    plots
}

fn bars(
    cells: &[CellRecord],
    figure: &str,
    y: &str,
    networks: &[super::StudyNetwork],
    which: &str,
) -> PlotRecord {
    let bar = |network: &super::StudyNetwork| {
        let mut bar = BarRecord {
            name: network.label.to_owned(),
            ..BarRecord::default()
        };
        for protection in PROTECTIONS {
            let of_bar = cells_of(cells, network.name, protection.name);
            let pooled = Pooled::of(&of_bar);
            let found = pooled.figure(figure);
            let name = pooled_name(CODECS[0].name, network.name, protection.name);
            bar.links.push(match of_bar.is_empty() {
                true => String::new(),
                false => file(&name),
            });
            bar.values.push(found.map(|(value, _)| *value));
            let spread = found.and_then(|(_, interval)| interval.low.zip(interval.high));
            bar.spread.push(spread);
        }
        bar
    };
    PlotRecord::Bars {
        title: format!("{} by protection{which}", capital(figure)),
        x: format!("protection ({})", not_of_study()),
        y: y.to_owned(),
        categories: PROTECTIONS.map(|protection| protection.marked()).to_vec(),
        bars: networks.iter().map(bar).collect(),
        stacked: false,
    }
}
