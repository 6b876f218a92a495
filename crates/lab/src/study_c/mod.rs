//! Study C, "The impact of security on VoIP call quality" (2011): the same call in the clear, behind a firewall and
//! through VPNs with several ciphers, over lines of several rates, captured at both ends with one clock.

pub(crate) mod bench;
mod captures;
mod cell;
mod media;
mod model;
pub(crate) mod overhead;
mod pooled;
mod ranking;
mod record;
mod results;
mod simulated;
mod speed;

pub use model::{CODECS, NETWORKS, PROTECTIONS, StudyProtection, Tunnel};
pub use ranking::{RankRow, Recommendation};
pub use record::{ArrivedStream, CellRecord};
pub use speed::CipherSpeed;

use crate::emulator::own_error::{self, OwnError};
use crate::emulator::settings::{QueueLength, profile};
use crate::error::{LabError, RunVerdict};
use crate::experiment::MOST_REPETITIONS;
use crate::files::{cannot_write, replace};
use crate::not_judged::NotJudged;
use crate::run::{RunOptions, trial_seed};
use crate::study::{
    self, OwnPart, Part, PartContext, Reading, Setting as StudySetting, StudyPlan, StudyRow,
};
use model::{BESIDE_THE_STUDY, StudyCodec, StudyNetwork};
use record::CellPlan;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub use crate::study_names::STUDY_C as NAME;
/// One line about it.
pub const TITLE: &str =
    "Study C: impact of firewall and VPN ciphers on call quality over four networks";
/// Its only part, the folder of its records.
const MATRIX: &str = "matrix";
/// Expected duration of the quick setting, seconds.
const QUICK_SECONDS: f64 = 150.0;
/// Set-up of tunnels, drain of the queues and evaluation of a batch of the full setting, seconds, as runs took.
const BATCH_SECONDS: usize = 27;
/// Batches of a repetition with the study's codec: in the clear, six ciphers, and two groups beside the study.
const BATCHES: usize = 9;
/// Expected duration of the full setting, seconds: five repetitions of the batches, and ten rounds of the ciphers. The
/// page, the run and `lab list` name it.
pub const FULL_SECONDS: f64 = (5
    * ((60 + BATCH_SECONDS) * BATCHES + (30 + BATCH_SECONDS) * WITH_TODAYS_CODECS.len())
    + 10 * 6) as f64;

/// Everything that was measured.
struct Found {
    /// The own error of the line; `None` in virtual time.
    own_error: Option<OwnError>,
    cells: Vec<CellRecord>,
    cipher_speed: Vec<CipherSpeed>,
    ranking: Vec<RankRow>,
    /// Ranks of the study's protections among each other.
    study_ranking: Vec<RankRow>,
    recommendations: Vec<Recommendation>,
    left_overs: Vec<String>,
}

/// The study.
pub fn plan() -> StudyPlan {
    StudyPlan {
        name: NAME,
        title: TITLE,
        source: "Radmand, Singh, Talevski, Domingo-Prieto, Arnedo-Moreno: The impact of security on VoIP call quality (2011)",
        about: "The same call in the clear, behind a firewall and through VPNs with several ciphers, over four networks, captured at \
                both hosts with one clock. Frames of G.723.1 (24 bytes each 30 ms, without a codec) stand for the codec that the study \
                does not name; G.729 and Opus are today's. Protections whose intervals overlap have the same rank.",
        parts: vec![Part::own(MATRIX, "C1", measure, QUICK_SECONDS).lasting(FULL_SECONDS)],
        absent: Vec::new(),
        plots: Vec::new(),
        compares: true,
        publish_more: None,
    }
}

/// Runs the study.
///
/// # Errors
/// Options that do not apply, a missing right or program, or if the user interrupted it.
pub fn run(options: &RunOptions, quick: bool) -> Result<RunVerdict, LabError> {
    if !options.set.is_empty() || options.no_probe {
        return Err(LabError::bad_input(
            "study-c has a matrix of its own: --set, --subject and --no-probe do not apply",
        ));
    }
    let given = options
        .repeat
        .filter(|repeat| !(1..=MOST_REPETITIONS).contains(repeat));
    if let Some(repeat) = given {
        return Err(LabError::bad_input(format!(
            "--repeat {repeat}: expected 1 to {MOST_REPETITIONS}"
        )));
    }
    let setting = match quick {
        true => StudySetting::quick(),
        false => StudySetting::full(),
    };
    study::run_plan(&plan(), options, &setting)
}

/// Durations of a setting: of a call of the study's codec and of today's, repetitions, rounds of the ciphers' speed.
struct Setting {
    call: Duration,
    today: Duration,
    repetitions: u32,
    rounds: u32,
}

impl Setting {
    fn of(context: &PartContext<'_>) -> Setting {
        let (call, today, repetitions, rounds) = match context.quick {
            true => (6, 4, 1, 3),
            false => (60, 30, 5, 10),
        };
        Setting {
            call: Duration::from_secs(call),
            today: Duration::from_secs(today),
            repetitions: context.repeat.unwrap_or(repetitions),
            rounds,
        }
    }
}

/// Protections that are measured with today's codecs, too.
const WITH_TODAYS_CODECS: [&str; 3] = ["none", "aes-256", "wireguard"];

/// Bits per second of the fastest line whose load is compared with its rate.
const SLOW_LINE: u64 = 100_000;

/// Cells that run at the same time: all networks with a group of protections.
type Batch = Vec<(StudyCodec, StudyNetwork, StudyProtection, u32, Duration)>;

/// Protections whose cells run at the same time: those in the clear, which need no program; each cipher of the study
/// alone; and the two groups beside the study.
fn groups() -> Vec<Vec<StudyProtection>> {
    let (clear, tunnels): (Vec<_>, Vec<_>) = PROTECTIONS
        .into_iter()
        .filter(StudyProtection::is_of_study)
        .partition(|protection| protection.tunnel == Tunnel::None);
    let beside = BESIDE_THE_STUDY.iter().map(|names| {
        let all = PROTECTIONS.into_iter();
        all.filter(|protection| names.contains(&protection.name))
            .collect::<Vec<_>>()
    });
    std::iter::once(clear)
        .chain(tunnels.into_iter().map(|protection| vec![protection]))
        .chain(beside)
        .collect()
}

fn batches(setting: &Setting) -> Vec<Batch> {
    let mut batches = Vec::new();
    let [first, today @ ..] = CODECS;
    for repetition in 0..setting.repetitions {
        let cells = |protection| {
            NETWORKS.map(|network| (first, network, protection, repetition, setting.call))
        };
        batches.extend(
            groups()
                .into_iter()
                .map(|group| -> Batch { group.into_iter().flat_map(cells).collect() }),
        );
        for protection in PROTECTIONS
            .into_iter()
            .filter(|protection| WITH_TODAYS_CODECS.contains(&protection.name))
        {
            let mut batch = Batch::new();
            for codec in today {
                batch.extend(
                    NETWORKS.map(|network| (codec, network, protection, repetition, setting.today)),
                );
            }
            batches.push(batch);
        }
    }
    batches
}

/// Writes a record as JSON.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let json = serde_json::to_vec_pretty(value).map_err(std::io::Error::from);
    let json = json.map_err(|error| cannot_write(path, &error))?;
    replace(path, &json)
}

/// Measures the matrix of networks and protections: a file for each cell, the captures, and files for the ranking, the
/// ciphers and the link's own error.
///
/// # Errors
/// A right or `ip` is missing, or the directory is not writable.
fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    let cells_dir = context.dir.join("cells");
    fs::create_dir_all(&cells_dir).map_err(|error| cannot_write(&cells_dir, &error))?;
    let (mut left_overs, mut own_error) = (Vec::new(), None);
    if !context.simulate {
        left_overs = bench::remove_left_overs()?;
        let measured = own_error::measure()?;
        eprintln!("{}", measured.text());
        own_error = Some(measured);
    }
    let setting = Setting::of(context);
    let runner = BatchRunner {
        dir: &cells_dir,
        // The captures of a simulation are the same on each machine; so are its records.
        has_tshark: !context.simulate && is_installed("tshark"),
        simulate: context.simulate,
        seed: context.seed.unwrap_or(1),
    };
    let batches = batches(&setting);
    let total = batches.len();
    let total_cells = batches.iter().map(Vec::len).sum();
    let mut cells: Vec<CellRecord> = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        if net::stops() > 0 {
            break;
        }
        let mut done = runner.run(&batch, cells.len());
        let faults = own_error.as_ref().map(OwnError::faults);
        for fault in faults.into_iter().flatten() {
            done.iter_mut()
                .for_each(|cell| cell.faults.push(fault.clone()));
        }
        eprint!("{}", batch_text(index + 1, total, &done));
        for cell in &done {
            write_json(&cells_dir.join(format!("{}.json", cell.name)), cell)?;
        }
        cells.extend(done);
    }
    let cipher_speed = match (context.simulate, net::stops() > 0) {
        (true, _) => speed::not_measured(
            "a simulation measures no cipher; it calculates with the speeds in the remarks",
        ),
        (false, true) => speed::not_measured("interrupted"),
        (false, false) => speed::measure(setting.rounds),
    };
    let ranking = ranking::rank(&cells, &cipher_speed);
    let found = Found {
        own_error,
        recommendations: ranking::recommend(&ranking),
        study_ranking: ranking::rank_of_study(&cells, &cipher_speed),
        ranking,
        cells,
        cipher_speed,
        left_overs,
    };
    results::write(context.dir, &found)?;
    eprint!("{}", ranking::text(&found.ranking, &found.recommendations));
    let rows = results::rows(&found);
    let notes = notes(&found, &rows, runner.has_tshark);
    let differs = found.cells.iter().any(CellRecord::differs_from_tshark);
    let uncompared = found.cells.iter().any(|cell| !cell.not_compared.is_empty());
    Ok(OwnPart {
        plots: results::plots(&found.cells),
        tables: results::tables(&found),
        rows,
        notes,
        verdict: match found.cells.iter().any(CellRecord::is_valid) {
            true if differs => RunVerdict::Failed,
            true if uncompared => RunVerdict::NotMeasured,
            true => RunVerdict::NotJudged,
            false => RunVerdict::NotMeasured,
        },
        remarks: Vec::new(),
        not_judged: cells_not_judged(&found.cells, total_cells),
    })
}

/// The cells whose figures do not count, or were not compared, with the reasons; those that an interrupted run did not
/// begin are among them.
fn cells_not_judged(cells: &[CellRecord], planned: usize) -> Option<NotJudged> {
    let open = cells.iter().filter_map(|cell| {
        let compared = cell.not_compared.first();
        match cell.is_valid() {
            true => compared.map(|why| format!("not compared with tshark: {why}")),
            false => Some(cause_of(&[cell])),
        }
    });
    let mut causes: Vec<String> = open.collect();
    let missing = planned.saturating_sub(cells.len());
    causes.extend((0..missing).map(|_| cause_of(&[])));
    NotJudged::of("cell", planned, causes)
}

/// Runs the cells of a batch: at the same time, or one after the other in virtual time.
struct BatchRunner<'a> {
    dir: &'a Path,
    has_tshark: bool,
    simulate: bool,
    seed: u64,
}

impl BatchRunner<'_> {
    fn plans(&self, batch: &Batch, first: usize) -> Vec<CellPlan<'_>> {
        let cells = batch.iter().enumerate();
        cells
            .map(
                |(index, &(codec, network, protection, repetition, span))| CellPlan {
                    number: first + index,
                    codec,
                    network,
                    protection,
                    repetition,
                    span,
                    seed: trial_seed(self.seed, (first + index) as u32),
                    dir: self.dir,
                    with_tshark: self.has_tshark && codec == CODECS[0],
                },
            )
            .collect()
    }

    fn run(&self, batch: &Batch, first: usize) -> Vec<CellRecord> {
        let plans = self.plans(batch, first);
        if self.simulate {
            return plans.iter().map(simulated::run).collect();
        }
        std::thread::scope(|scope| {
            let start = |plan| (plan, scope.spawn(move || cell::run(plan)));
            let running: Vec<_> = plans.iter().map(start).collect();
            let finished = running.into_iter().map(|(plan, cell)| {
                cell.join().unwrap_or_else(|_| CellRecord {
                    cause: Some("the cell's thread panicked".to_owned()),
                    ..CellRecord::of(plan)
                })
            });
            finished.collect()
        })
    }
}

fn batch_text(index: usize, total: usize, cells: &[CellRecord]) -> String {
    let mut text = String::new();
    for cell in cells {
        let figure = |value: Option<f64>| value.map_or("-".to_owned(), crate::report::plain);
        let line = match (&cell.cause, cell.faults.first()) {
            (Some(cause), _) => format!("not measured: {cause}"),
            (None, Some(fault)) => format!("not judged: {fault}"),
            (None, None) => format!(
                "loss {} %, latency {} ms, jitter {} ms",
                figure(cell.loss_percent),
                figure(cell.latency_ms.value),
                figure(cell.jitter_ms.value)
            ),
        };
        text.push_str(&format!("[{index}/{total}] {}: {line}\n", cell.name));
    }
    text
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok()
}

/// Records of the cells of a network and a protection with the study's codec.
fn cells_of<'a>(record: &'a [CellRecord], network: &str, protection: &str) -> Vec<&'a CellRecord> {
    let matching = record.iter().filter(|cell| {
        cell.codec == CODECS[0].name && cell.network == network && cell.protection == protection
    });
    matching.collect()
}

/// The reason for a missing figure.
fn cause_of(cells: &[&CellRecord]) -> String {
    let cause = cells.iter().find_map(|cell| cell.cause.clone());
    let fault = || cells.iter().find_map(|cell| cell.faults.first().cloned());
    cause
        .or_else(fault)
        .unwrap_or_else(|| "the run ended before it".to_owned())
}

/// Media of the study's codec on a slow line.
struct SlowLineLoad {
    /// Rate of the line, kbit/s.
    rate: f64,
    /// Offered in one direction with framing, kbit/s.
    offered: f64,
    /// Time after which the queue is full, seconds; `None`: the line carries the media, or the queue is bounded in
    /// bytes.
    full_after_s: Option<f64>,
}

/// The load of cells on a slow line, from the bytes that were counted there; `None` on a fast one, or without figures.
fn slow_line_load(network: &StudyNetwork, cells: &[&CellRecord]) -> Option<SlowLineLoad> {
    let [line, _] = profile(network.profile).ok()?;
    let rate = line.rate.filter(|rate| *rate <= SLOW_LINE)? as f64 / 1e3;
    let bytes: Vec<f64> = cells.iter().filter_map(|c| c.line_packet_bytes).collect();
    if bytes.is_empty() {
        return None;
    }
    let packet = bytes.iter().sum::<f64>() / bytes.len() as f64;
    let bits = line.framing.line_bytes(packet.round() as usize) as f64 * 8.0;
    let interval_ms = f64::from(CODECS[0].packet_ms);
    let offered = bits / interval_ms;
    let full_after_s = match line.queue {
        QueueLength::Packets(packets) if offered > rate => {
            Some(packets as f64 * bits / ((offered - rate) * 1e3))
        }
        _ => None,
    };
    Some(SlowLineLoad {
        rate,
        offered,
        full_after_s,
    })
}

/// Rate of the media on a slow line by protection, beside the rate of the line.
fn offered(found: &Found, network: &StudyNetwork) -> Option<String> {
    let mut rates = Vec::new();
    let mut above = Vec::new();
    let mut rate = 0.0;
    for protection in PROTECTIONS {
        let cells = cells_of(&found.cells, network.name, protection.name);
        let Some(load) = slow_line_load(network, &cells) else {
            continue;
        };
        rate = load.rate;
        rates.push(format!("{} {:.1}", protection.label, load.offered));
        if load.offered > rate {
            above.push(protection.label);
        }
    }
    if rates.is_empty() {
        return None;
    }
    let above = match above.is_empty() {
        true => "none is above the rate".to_owned(),
        false => format!(
            "above the rate: {}: the queue grows for the whole call, and packets are lost once it is full",
            above.join(", ")
        ),
    };
    Some(format!(
        "{}: the line carries {rate} kbit/s; offered in one direction, with framing: {} kbit/s; {above}",
        network.label,
        rates.join(", ")
    ))
}

/// Why a slow line lost less than the study's one; empty if it did not.
fn low_loss(
    network: &StudyNetwork,
    cells: &[&CellRecord],
    study: Option<&Reading>,
    high: Option<f64>,
) -> String {
    let Some(load) = slow_line_load(network, cells) else {
        return String::new();
    };
    let lowest = study.and_then(lowest);
    if lowest.zip(high).is_none_or(|(lowest, high)| high >= lowest) {
        return String::new();
    }
    let seconds = cells.iter().map(|cell| cell.seconds).fold(0.0, f64::max);
    let (rate, offered) = (load.rate, load.offered);
    match load.full_after_s {
        Some(after) if after > seconds => format!(
            "less than the study: {offered:.1} kbit/s fill the queue of the line ({rate} kbit/s) after {after:.0} s, and the call took \
             {seconds:.0} s; the full setting has calls of 60 s"
        ),
        Some(after) => format!(
            "less than the study: the queue of the line ({rate} kbit/s) is full after {after:.0} s of {seconds:.0} s"
        ),
        None => format!(
            "less than the study: {offered:.1} kbit/s with framing are below the rate of the line ({rate} kbit/s), so that no queue \
             grows; the study names neither codec nor packet time"
        ),
    }
}

/// Smallest value that the study's figure allows; `None` if it is an upper bound.
fn lowest(study: &Reading) -> Option<f64> {
    match study {
        Reading::Number(value) => Some(*value),
        Reading::Words(words) => {
            let words = words.strip_prefix("more than ").unwrap_or(words);
            words.split(' ').next()?.parse().ok()
        }
    }
}

/// Losses whose interval is below the study's figure: the set-up does not explain them.
fn lower_losses(rows: &[StudyRow]) -> Option<String> {
    let lower: Vec<&str> = rows
        .iter()
        .filter(|row| row.row == "C2")
        .filter(|row| {
            let study = row.study.as_ref().and_then(lowest);
            let high = row.interval.as_ref().and_then(|interval| interval.high);
            study.zip(high).is_some_and(|(study, high)| high < study)
        })
        .map(|row| row.what.as_str())
        .collect();
    (!lower.is_empty()).then(|| format!("below the study's figure: {}", lower.join("; ")))
}

/// Words on a simulation, with the time that its ciphers take.
fn simulation_note() -> String {
    let inner = 20 + 8 + 12 + CODECS[0].bytes;
    let times = PROTECTIONS.iter().filter_map(|protection| {
        let speed = overhead::cipher_mb_s(protection.tunnel)?;
        let tag = match protection.tunnel {
            Tunnel::Srtp => 10,
            _ => 0,
        };
        let micros = overhead::cipher_time(protection.tunnel, inner + tag).as_nanos() as f64 / 1e3;
        let (speed, micros) = (crate::report::plain(speed), crate::report::plain(micros));
        Some(format!("{} {micros} us ({speed} MB/s)", protection.label))
    });
    let times: Vec<String> = times.collect();
    format!(
        "This is a simulation in virtual time. Bytes are computed from the format of each protection; SRTP protects each packet. Time of cipher and HMAC for a packet \
         at one end: {}; from {}.",
        times.join(", "),
        overhead::SPEEDS_FROM
    )
}

fn notes(found: &Found, rows: &[StudyRow], has_tshark: bool) -> Vec<String> {
    let mut remarks: Vec<String> = vec![match &found.own_error {
        Some(own_error) => own_error.text(),
        None => simulation_note(),
    }];
    if !found.left_overs.is_empty() {
        remarks.push(format!(
            "removed left-overs of killed runs: {}",
            found.left_overs.join(", ")
        ));
    }
    let lines = NETWORKS
        .iter()
        .filter_map(|network| offered(found, network));
    remarks.extend(lines);
    remarks.extend(lower_losses(rows));
    let unmeasured: Vec<&CellRecord> = found.cells.iter().filter(|c| c.cause.is_some()).collect();
    for cell in &unmeasured {
        let cause = cell.cause.as_deref().unwrap_or_default();
        remarks.push(format!("not measured: {}: {cause}", cell.name));
    }
    if !has_tshark && found.own_error.is_some() {
        remarks.push("tshark is not installed: no comparison with it".to_owned());
    }
    let compared: usize = found.cells.iter().map(CellRecord::compared).sum();
    let differ: Vec<&str> = found
        .cells
        .iter()
        .filter(|cell| cell.differs_from_tshark())
        .map(|cell| cell.name.as_str())
        .collect();
    if compared > 0 {
        remarks.push(match differ.is_empty() {
            true => format!(
                "tshark measures the same loss, mean jitter and largest delta in all {compared} captures compared"
            ),
            false => format!("tshark differs in: {}", differ.join(", ")),
        });
    }
    let causes = found.cells.iter().flat_map(|cell| &cell.not_compared);
    remarks.extend(causes.map(|cause| format!("not compared: {cause}")));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_out_of_range_are_refused_before_anything_runs() {
        for repeat in [0, 4_000_000_000] {
            let options = RunOptions {
                repeat: Some(repeat),
                simulate: true,
                ..RunOptions::default()
            };
            let error = run(&options, true).unwrap_err();
            let words = format!("--repeat {repeat}: expected 1 to 1000");
            assert_eq!((error.exit_code(), error.to_string()), (2, words));
            // Those of an experiment number its trials.
            let error = crate::run::load("call-rate", &options).unwrap_err();
            assert!(
                error.to_string().contains("repeat: expected 1 to 1000"),
                "{error}"
            );
        }
    }

    #[test]
    fn cells_without_figures_are_counted_with_their_causes() {
        let valid = CellRecord {
            loss_percent: Some(0.0),
            ..CellRecord::default()
        };
        assert_eq!(cells_not_judged(std::slice::from_ref(&valid), 1), None);
        let without = |cause: &str| CellRecord {
            cause: Some(cause.to_owned()),
            ..CellRecord::default()
        };
        let faulty = CellRecord {
            faults: vec!["own error: too late".to_owned()],
            ..valid.clone()
        };
        let cells = [valid, without("no openvpn"), without("no openvpn"), faulty];
        let found = cells_not_judged(&cells, 6).unwrap();
        let words = "5 of 6 cells: no openvpn; own error: too late; the run ended before it";
        assert_eq!(found.text(), words);
    }

    #[test]
    fn quick_setting_is_planned_within_its_time() {
        let context = PartContext {
            dir: Path::new("."),
            quick: true,
            simulate: false,
            seed: None,
            repeat: None,
        };
        let setting = Setting::of(&context);
        // Set-up of the tunnels, and the drain of the queues.
        let beside = cell::DRAIN + media::LEAD + Duration::from_secs(2);
        let calls = batches(&setting).into_iter().map(|batch| {
            let longest = batch.iter().map(|(.., span)| *span).max();
            longest.unwrap_or_default() + beside
        });
        let calls: Duration = calls.sum();
        // Six ciphers, each round a second.
        let ciphers = f64::from(setting.rounds) * 6.0;
        assert!(calls.as_secs_f64() + ciphers <= QUICK_SECONDS, "{calls:?}");
        let limit = StudySetting::quick().limit_s.unwrap();
        assert!(QUICK_SECONDS <= limit);
        let of_study = batches(&setting);
        let of_study = of_study.iter().filter(|batch| batch[0].0 == CODECS[0]);
        assert_eq!(of_study.count(), BATCHES);
        let mut cells: Vec<(&str, &str)> = batches(&setting)
            .iter()
            .flatten()
            .filter(|(codec, ..)| *codec == CODECS[0])
            .map(|(_, network, protection, ..)| (network.name, protection.name))
            .collect();
        cells.sort_unstable();
        cells.dedup();
        assert_eq!(cells.len(), NETWORKS.len() * PROTECTIONS.len());
    }
}
