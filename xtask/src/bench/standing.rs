//! Memory of established calls.

use super::load::column;
use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, subjects};
use crate::process::Running;
use std::time::Duration;

/// Concurrent established calls where memory per call is measured, and how fast they are set up.
const STANDING: u32 = 100_000;
const STANDING_RATE: u32 = 2_500;

/// Bytes that an established call may cost.
const BAR: f64 = 4_096.0;

/// Resident memory per established call, media bypass: growth from before the first call until the last one is up and
/// the transactions that set them up have ended.
pub(super) fn standing(bench: &mut Bench) -> Result<(), String> {
    let scratch = bench.scratch.clone();
    let subjects = subjects(bench)?;
    let subject = subjects.first().ok_or("no border to measure")?;
    let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
    let log = scratch.join("subject.log");
    let running = Running::start(SUBJECT_CORE, &subject.program, &arguments, &log)?;
    let uas = [
        "-sn",
        "uas",
        "-i",
        "127.0.0.1",
        "-p",
        "5080",
        "-nostdin",
        "-buff_size",
        "4000000",
        "-l",
        "200000",
    ];
    let _uas = Running::start(LOAD_CORE, "sipp", &uas, &scratch.join("uas.log"))?;
    std::thread::sleep(Duration::from_millis(1_500));
    let before = running.resident_bytes();
    let statistics = scratch.join("standing.csv");
    let (rate, total, file) = (
        STANDING_RATE.to_string(),
        STANDING.to_string(),
        statistics.display().to_string(),
    );
    let uac = [
        "-sn",
        "uac",
        "127.0.0.1:5060",
        "-i",
        "127.0.0.1",
        "-p",
        "5061",
        "-r",
        &rate,
        "-m",
        &total,
        "-l",
        &total,
        "-d",
        "600000",
        "-nostdin",
        "-buff_size",
        "4000000",
        "-trace_stat",
        "-stf",
        &file,
        "-fd",
        "1",
    ];
    let _uac = Running::start(LOAD_CORE, "sipp", &uac, &scratch.join("uac.log"))?;
    // Timers such as J keep ended transactions for 32 s; after that only the calls remain.
    std::thread::sleep(Duration::from_secs(
        u64::from(STANDING / STANDING_RATE) + 36,
    ));
    let text =
        std::fs::read_to_string(&statistics).map_err(|e| format!("SIPp's statistics: {e}"))?;
    let current = column(&text, "CurrentCall").ok_or("SIPp's statistics lack CurrentCall")?;
    let failed = column(&text, "FailedCall(C)").unwrap_or(0);
    let growth = running.resident_bytes().saturating_sub(before);
    println!(
        "established calls, media bypass: {current} up, {failed} failed, resident memory +{} KiB",
        growth / 1024
    );
    if current == 0 {
        return Err("no call is up at the end of set-up".into());
    }
    bench.bar(
        &format!("resident bytes per established call, {current} of {STANDING} up"),
        growth as f64 / current as f64,
        Bound::AtMost(BAR),
    );
    Ok(())
}
