//! Study C, "The impact of security on VoIP call quality" (2011): the same call in the clear, behind a firewall and through
//! VPNs with several ciphers, over lines of several rates, captured at both ends with one clock.

mod bench;
mod cell;
mod model;
mod ranking;
mod results;

pub use cell::{CellRecord, TsharkFigures};
pub use model::{CODECS, NETWORKS, PROTECTIONS};
pub use ranking::{RankRow, Recommendation};

use crate::emulator::own_error::{self, OwnError};
use crate::emulator::settings::profile;
use crate::error::{LabError, RunVerdict};
use crate::run::RunOptions;
use crate::study::{
    self, OwnPart, Part, PartContext, Reading, Setting as StudySetting, StudyPlan, StudyRow,
};
use cell::CellPlan;
use model::{StudyCodec, StudyNetwork, StudyProtection};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Name of the study on the command line.
pub const NAME: &str = "study-c";
/// One line about it.
pub const TITLE: &str =
    "Study C: impact of firewall and VPN ciphers on call quality over four networks";
/// Its only part, the folder of its records.
const MATRIX: &str = "matrix";
/// Duration of the quick setting without set-up, seconds.
const QUICK_SECONDS: f64 = 150.0;
/// Duration of the full setting without set-up, seconds.
pub const FULL_SECONDS: f64 =
    (5 * (60 * PROTECTIONS.len() + 30 * (CODECS.len() - 1) * WITH_TODAYS_CODECS.len())) as f64;

/// Speed of a cipher.
#[derive(Clone, Debug, Serialize)]
pub struct CipherSpeed {
    /// Protection.
    pub protection: &'static str,
    /// Megabytes per second with blocks of the given size.
    pub mb_per_s: Option<f64>,
    /// Reason if it was not measured.
    pub cause: Option<String>,
}

/// Everything that was measured.
struct Found {
    own_error: OwnError,
    cells: Vec<CellRecord>,
    cipher_speed: Vec<CipherSpeed>,
    ranking: Vec<RankRow>,
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
    if options.simulate || !options.set.is_empty() || options.no_probe {
        return Err(LabError::bad_input(
            "study-c measures programs and the kernel of this machine: --simulate, --set, --subject and --no-probe do not apply",
        ));
    }
    let setting = match quick {
        true => StudySetting::quick(),
        false => StudySetting::full(),
    };
    study::run_plan(&plan(), options, &setting)
}

/// Durations of a setting: of a call of the study's codec and of today's, repetitions.
struct Setting {
    call: Duration,
    today: Duration,
    repetitions: u32,
}

impl Setting {
    fn of(context: &PartContext<'_>) -> Setting {
        let (call, today, repetitions) = match context.quick {
            true => (6, 4, 1),
            false => (60, 30, 5),
        };
        Setting {
            call: Duration::from_secs(call),
            today: Duration::from_secs(today),
            repetitions: context.repeat.unwrap_or(repetitions),
        }
    }
}

/// Protections that are measured with today's codecs, too.
const WITH_TODAYS_CODECS: [&str; 3] = ["none", "aes-256", "wireguard"];

/// Bits per second of the fastest line whose load is compared with its rate.
const SLOW_LINE: u64 = 100_000;

/// Cells that run at the same time: all networks with one protection.
type Batch = Vec<(StudyCodec, StudyNetwork, StudyProtection, u32, Duration)>;

fn batches(setting: &Setting) -> Vec<Batch> {
    let mut batches = Vec::new();
    let [first, today @ ..] = CODECS;
    for repetition in 0..setting.repetitions {
        for protection in PROTECTIONS {
            let cell = |network| (first, network, protection, repetition, setting.call);
            batches.push(NETWORKS.map(cell).to_vec());
        }
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

fn cannot_write(path: &Path, error: &std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("{}: {error}", path.display()),
        "name a writable directory with --out",
    )
}

/// Writes a record as JSON.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let json = serde_json::to_vec_pretty(value).map_err(std::io::Error::from);
    json.and_then(|json| fs::write(path, json))
        .map_err(|error| cannot_write(path, &error))
}

/// Measures the matrix of networks and protections: a file for each cell, the captures, and files for the ranking, the ciphers
/// and the link's own error.
///
/// # Errors
/// A right or `ip` is missing, or the directory is not writable.
fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    if context.simulate {
        return Err(LabError::cannot_run(
            "the matrix measures programs and the kernel of this machine",
            "run it without --simulate",
        ));
    }
    let cells_dir = context.dir.join("cells");
    fs::create_dir_all(&cells_dir).map_err(|error| cannot_write(&cells_dir, &error))?;
    let left_overs = bench::remove_left_overs()?;
    let own_error = own_error::measure()?;
    eprintln!("{}", own_error.text());
    let setting = Setting::of(context);
    let seed = context.seed.unwrap_or(1);
    let has_tshark = is_installed("tshark");
    let batches = batches(&setting);
    let total = batches.len();
    let mut cells: Vec<CellRecord> = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        if net::stops() > 0 {
            break;
        }
        let done = run_batch(&batch, cells.len(), &cells_dir, has_tshark, seed);
        eprint!("{}", batch_text(index + 1, total, &done));
        for cell in &done {
            write_json(&cells_dir.join(format!("{}.json", cell.name)), cell)?;
        }
        cells.extend(done);
    }
    let cipher_speed = match net::stops() > 0 {
        true => Vec::new(),
        false => cipher_speeds(),
    };
    let ranking = ranking::rank(&cells, &cipher_speed);
    let found = Found {
        own_error,
        recommendations: ranking::recommend(&ranking),
        ranking,
        cells,
        cipher_speed,
        left_overs,
    };
    results::write(context.dir, &found)?;
    eprint!("{}", ranking::text(&found.ranking, &found.recommendations));
    let rows = results::rows(&found);
    let notes = notes(&found, &rows, has_tshark);
    let differs = found.cells.iter().any(CellRecord::differs_from_tshark);
    Ok(OwnPart {
        plots: results::plots(&found.cells),
        tables: results::tables(&found),
        rows,
        notes,
        verdict: match found.cells.iter().any(CellRecord::is_valid) {
            true if differs => RunVerdict::Failed,
            true => RunVerdict::NotJudged,
            false => RunVerdict::NotMeasured,
        },
        remarks: Vec::new(),
    })
}

fn run_batch(
    batch: &Batch,
    number: usize,
    dir: &Path,
    with_tshark: bool,
    seed: u64,
) -> Vec<CellRecord> {
    std::thread::scope(|scope| {
        let running: Vec<_> = batch
            .iter()
            .enumerate()
            .map(|(index, &(codec, network, protection, repetition, span))| {
                let number = number + index;
                let plan = CellPlan {
                    number,
                    codec,
                    network,
                    protection,
                    repetition,
                    span,
                    seed: seed.wrapping_add(number as u64),
                    dir,
                    with_tshark: with_tshark && codec == CODECS[0],
                };
                (plan, scope.spawn(move || cell::run(&plan)))
            })
            .collect();
        let finished = running.into_iter().map(|(plan, cell)| {
            cell.join().unwrap_or_else(|_| CellRecord {
                name: plan.name(),
                codec: plan.codec.name,
                network: plan.network.name,
                protection: plan.protection.name,
                cause: Some("the cell's thread panicked".to_owned()),
                ..CellRecord::default()
            })
        });
        finished.collect()
    })
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

/// Speed of the study's ciphers by `openssl speed`, one second each.
fn cipher_speeds() -> Vec<CipherSpeed> {
    let ciphers = PROTECTIONS.iter().filter_map(|protection| {
        let model::Tunnel::OpenVpn(cipher) = protection.tunnel else {
            return None;
        };
        let measured = match net::stops() > 0 {
            true => Err("interrupted".to_owned()),
            false => openssl_speed(cipher),
        };
        Some(CipherSpeed {
            protection: protection.name,
            mb_per_s: measured.as_ref().ok().copied(),
            cause: measured.err(),
        })
    });
    ciphers.collect()
}

fn openssl_speed(cipher: &str) -> Result<f64, String> {
    let output = Command::new("openssl")
        .args(["speed", "-mr", "-seconds", "1", "-bytes", "64"])
        .args(["-provider", "legacy", "-provider", "default", "-evp"])
        .arg(cipher)
        .output()
        .map_err(|error| format!("openssl: {error}; install openssl"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // +F:25:RC2-CBC:49674819.05: bytes per second.
    let rate = text
        .lines()
        .filter(|line| line.starts_with("+F:"))
        .find_map(|line| line.rsplit(':').next()?.parse::<f64>().ok());
    rate.map(|rate| rate / 1e6)
        .ok_or_else(|| format!("openssl speed does not know {cipher}"))
}

/// Rate of the media on a slow line by protection, beside the rate of the line, from the bytes that were counted there.
fn offered(found: &Found, network: &StudyNetwork) -> Option<String> {
    let [line, _] = profile(network.profile).ok()?;
    let rate = line.rate.filter(|rate| *rate <= SLOW_LINE)? as f64 / 1e3;
    let mut rates = Vec::new();
    let mut above = Vec::new();
    for protection in PROTECTIONS {
        let cells = cells_of(&found.cells, network.name, protection.name);
        let bytes: Vec<f64> = cells.iter().filter_map(|c| c.line_packet_bytes).collect();
        if bytes.is_empty() {
            continue;
        }
        let packet = bytes.iter().sum::<f64>() / bytes.len() as f64;
        let on_line = line.framing.line_bytes(packet.round() as usize) as f64;
        let offered = on_line * 8.0 / f64::from(CODECS[0].packet_ms);
        rates.push(format!("{} {offered:.1}", protection.label));
        if offered > rate {
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

fn notes(found: &Found, rows: &[StudyRow], has_tshark: bool) -> Vec<String> {
    let mut remarks: Vec<String> = vec![found.own_error.text()];
    if !found.left_overs.is_empty() {
        remarks.push(format!(
            "removed namespaces of killed runs: {}",
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
    if !has_tshark {
        remarks.push("tshark is not installed: no comparison with it".to_owned());
    }
    let compared: Vec<(&CellRecord, &TsharkFigures)> = found
        .cells
        .iter()
        .filter_map(|cell| Some((cell, cell.tshark.as_ref()?)))
        .collect();
    let differ: Vec<&str> = compared
        .iter()
        .filter(|(cell, _)| cell.differs_from_tshark())
        .map(|(cell, _)| cell.name.as_str())
        .collect();
    if !compared.is_empty() {
        remarks.push(match differ.is_empty() {
            true => format!(
                "tshark measures the same loss, mean jitter and largest delta in all {} captures compared",
                compared.len()
            ),
            false => format!("tshark differs in: {}", differ.join(", ")),
        });
    }
    remarks
}
