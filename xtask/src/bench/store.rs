//! The price of call records and of the store of messages: the same border with and without them, turn by turn.

use super::load::{Load, Run, settle};
use super::{Bench, Bound, Subject, in_turn, median, subjects};
use crate::process::root;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RATE: u32 = 2_000;
const SECONDS: u32 = 60;
/// Messages of a call that the border receives or sends: seven at the caller, and six at the callee, which sends
/// no 100.
const MESSAGES: u64 = 13;
/// Address of the metrics of both borders.
const METRICS: &str = "127.0.0.1:9464";
/// Growth of the CPU time per call: threads with packets, and the whole program.
const PACKETS_BAR: f64 = 1.1;
const WHOLE_BAR: f64 = 1.6;
/// Growth of the 99th percentile of the response time, milliseconds.
const LATE_MORE: f64 = 2.0;

/// A run and the items of it that are missing afterwards.
struct Kept {
    run: Run,
    records_missing: u64,
    messages_missing: u64,
    lost: u64,
}

/// 2,000 calls/s for a minute with records and store on and off: CPU, response time, and whether every call and message
/// is kept.
pub(super) fn store(bench: &mut Bench) -> Result<(), String> {
    let folder = bench.scratch.join("store");
    let all = subjects(bench)?;
    let border = all.first().ok_or("no border to measure")?;
    let metrics = format!("[metrics]\nlisten = \"{METRICS}\"\n");
    let keeping = format!(
        "{metrics}[records]\nfolder = \"{0}/records\"\n[store]\nfolder = \"{0}/store\"\n",
        folder.display()
    );
    let with = |name, file: &str, more: &str| -> Result<Subject, String> {
        let path = bench.scratch.join(file);
        let example = std::fs::read_to_string(root().join("examples/loopback-bypass.toml"));
        let example = example.map_err(|error| error.to_string())?;
        std::fs::write(&path, format!("{example}\n{more}")).map_err(|error| error.to_string())?;
        let subject = border.clone().with("loopback-bypass.toml", &path);
        Ok(Subject { name, ..subject })
    };
    let borders = [
        with("border", "store-off.toml", &metrics)?,
        with("border with records and store", "store-on.toml", &keeping)?,
    ];
    println!("{RATE} calls/s for {SECONDS} s, media bypass");
    let runs = in_turn(bench.rounds, borders.len(), |which| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let kept = measured(&borders[which], &folder, which == 1, &bench.scratch)?;
        kept.run.print(borders[which].name);
        println!(
            "    packet threads {:.1} us/call",
            kept.run.packet_micros_per_call
        );
        Ok(kept)
    })?;
    let _ = std::fs::remove_dir_all(&folder);
    let [off, on] = &runs[..] else {
        return Err("two borders are required".into());
    };
    judge(bench, off, on);
    Ok(())
}

fn judge(bench: &mut Bench, off: &[Kept], on: &[Kept]) {
    let middle = |runs: &[Kept], of: fn(&Run) -> f64| {
        median(runs.iter().map(|kept| of(&kept.run)).collect())
    };
    let late = |run: &Run| run.response.map_or(f64::NAN, |(_, late)| late);
    for (what, of, bar) in [
        (
            "packet threads",
            (|run| run.packet_micros_per_call) as fn(&Run) -> f64,
            PACKETS_BAR,
        ),
        ("whole program", |run| run.micros_per_call, WHOLE_BAR),
    ] {
        let (without, with) = (middle(off, of), middle(on, of));
        bench.bar(
            &format!("records and store, {what}: CPU per call in that without ({with:.1} and {without:.1} us)"),
            with / without,
            Bound::AtMost(bar),
        );
    }
    let without = middle(off, late);
    bench.bar(
        &format!("records and store: p99 of the response in ms (without {without:.1})"),
        middle(on, late),
        Bound::AtMost(without + LATE_MORE),
    );
    for (what, of) in [
        ("calls failed", (|kept| kept.run.failed) as fn(&Kept) -> u64),
        ("records missing", |kept| kept.records_missing),
        ("messages missing in the files", |kept| {
            kept.messages_missing
        }),
        ("items lost by the store's own count", |kept| kept.lost),
    ] {
        bench.bar(
            &format!("records and store: {what} in all rounds"),
            on.iter().map(of).sum::<u64>() as f64,
            Bound::AtMost(0.0),
        );
    }
}

/// One run, with the contents of its folder.
fn measured(border: &Subject, folder: &Path, keeps: bool, scratch: &Path) -> Result<Kept, String> {
    let mut load = Load::start(border, "127.0.0.1", &["-sn", "uas"], scratch)?;
    settle();
    let begun = load.call(RATE, SECONDS, &["-sn", "uac"])?;
    let run = load.end(begun)?;
    let mut kept = Kept {
        run,
        records_missing: 0,
        messages_missing: 0,
        lost: 0,
    };
    if keeps {
        let calls = u64::from(RATE * SECONDS);
        // Both are written behind queues.
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            kept.records_missing = calls.saturating_sub(records(&folder.join("records"))?);
            kept.messages_missing = (MESSAGES * (calls - kept.run.failed))
                .saturating_sub(messages(&folder.join("store"))?);
            if kept.records_missing + kept.messages_missing == 0 || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        kept.lost = lost()?;
    }
    Ok(kept)
}

/// Lines of the call records.
fn records(folder: &Path) -> Result<u64, String> {
    let mut lines = 0;
    for path in files(folder, "ndjson") {
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        lines += bytes.iter().filter(|&&octet| octet == b'\n').count() as u64;
    }
    Ok(lines)
}

/// Packets in the pcapng files of the store, counted by their blocks.
fn messages(folder: &Path) -> Result<u64, String> {
    const ENHANCED_PACKET_BLOCK: u32 = 6;
    let mut packets = 0;
    for path in files(folder, "pcapng") {
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut rest = &bytes[..];
        while let Some((kind, length)) = block(rest) {
            packets += u64::from(kind == ENHANCED_PACKET_BLOCK);
            let Some(next) = rest.get(length..) else {
                break;
            };
            rest = next;
        }
    }
    Ok(packets)
}

/// Type and length of the block at the beginning; none at the end of the file.
fn block(bytes: &[u8]) -> Option<(u32, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let length = word(4)? as usize;
    (length >= 12).then_some((word(0)?, length))
}

/// The files with this extension, in the folder and the folders in it.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|named| named == extension) {
            found.push(path);
        }
    }
    found
}

/// Items that the store could not keep, by its own metric.
fn lost() -> Result<u64, String> {
    let error = |error: std::io::Error| format!("{METRICS}: {error}");
    let mut stream = TcpStream::connect(METRICS).map_err(error)?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: border\r\nConnection: close\r\n\r\n")
        .map_err(error)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(error)?;
    let values: Vec<u64> = text
        .lines()
        .filter(|line| line.starts_with("hornwork_store_lost_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    if values.is_empty() {
        return Err(format!("{METRICS} has no hornwork_store_lost_total"));
    }
    Ok(values.into_iter().sum())
}
