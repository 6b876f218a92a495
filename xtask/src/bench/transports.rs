//! TLS on both sides beside UDP on both sides.

use super::{Bench, Bound, LOAD_CORE, RATES, SECONDS, SUBJECT_CORE, interleaved};
use crate::process::{Running, build, check, program, release};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// CPU time of a call over TLS on both sides at most, in that of a call over UDP.
const BAR: f64 = 1.4;

/// CPU per 7-message call, media bypass, by our own callers (Debian's SIPp has no TLS).
pub(super) fn transports(bench: &mut Bench) -> Result<(), String> {
    build(&["-p", "lab", "--example", "transport_calls"])?;
    let load = release().join("examples/transport_calls");
    let folder = bench.scratch.display().to_string();
    check(Command::new(&load).args(["certificates", &folder]))?;
    println!("TLS on both sides beside UDP on both sides, media bypass");
    let transports = ["udp", "tls"];
    for rate in RATES {
        let medians = interleaved(bench.rounds, &transports, |transport| {
            let transport = transports[transport];
            let micros = one(transport, rate, &load, &bench.scratch)?;
            println!("  {rate}/s {transport} {micros:7.1} us/call");
            Ok(micros)
        })?;
        bench.bar(
            &format!(
                "call over TLS, {rate}/s: CPU in that over UDP ({:.1} and {:.1} us)",
                medians[1], medians[0]
            ),
            medians[1] / medians[0],
            Bound::AtMost(BAR),
        );
    }
    Ok(())
}

/// One run of a transport: microseconds of the border's CPU per call. Every call must succeed.
fn one(transport: &str, rate: u32, load: &Path, scratch: &Path) -> Result<f64, String> {
    let tls = |rest: &str| match transport {
        "tls" => rest.replace("FOLDER", &scratch.display().to_string()),
        _ => String::new(),
    };
    let certificate = tls(
        "tls = { certificate = { chain = \"FOLDER/bench.pem\", key = \"FOLDER/bench.key\" } }\n",
    );
    let believed = tls("tls = { ca = \"FOLDER/ca.pem\", name = \"bench.example.com\" }\n");
    let text = format!(
        "[[interface]]\nname = \"both\"\nkind = \"core\"\nlisten = \"{transport}:127.0.0.1:5060\"\n{certificate}[[trunk]]\nname = \"server\"\ntarget = \"{transport}:127.0.0.1:5080\"\n{believed}[[route]]\ntrunk = \"server\"\nmedia = \"bypass\"\n"
    );
    let file = scratch.join("transport.toml");
    std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    let program = program().display().to_string();
    let file = file.display().to_string();
    let border = ["run", "-c", &file];
    let log = scratch.join("subject.log");
    let border = Running::start(SUBJECT_CORE, &program, &border, &log)?;
    let (load, folder) = (load.display().to_string(), scratch.display().to_string());
    let uas = ["uas", transport, "127.0.0.1:5080", &folder];
    let _uas = Running::start(LOAD_CORE, &load, &uas, &scratch.join("uas.log"))?;
    std::thread::sleep(Duration::from_millis(1_500));
    let before = border.cpu_nanos();
    let total = rate * SECONDS;
    let (rate, total_text) = (rate.to_string(), total.to_string());
    let uac = [
        "uac",
        transport,
        "127.0.0.1:5090",
        "127.0.0.1:5060",
        &rate,
        &total_text,
        &folder,
    ];
    let log = scratch.join("uac.log");
    let mut uac = Running::start(LOAD_CORE, &load, &uac, &log)?;
    uac.wait(Duration::from_secs(u64::from(SECONDS) + 60))?;
    let spent = border.cpu_nanos() - before;
    let said = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    match said.contains(&format!("succeeded {total} failed 0")) {
        true => Ok(spent as f64 / 1_000.0 / f64::from(total)),
        false => {
            let border = std::fs::read_to_string(scratch.join("subject.log")).unwrap_or_default();
            Err(format!(
                "{transport}: not every call succeeded: {said}\n{border}"
            ))
        }
    }
}
