//! `make bench`: the border beside its peer, interleaved, at the same rate, one core each.

mod registrations;

use crate::process::{Running, check, installed, root};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Calls a second at which CPU per call is compared.
const RATES: [u32; 2] = [2_000, 4_000];
/// Seconds of load per run.
const SECONDS: u32 = 10;
const SUBJECT_CORE: usize = 0;
const LOAD_CORE: usize = 1;

/// One of the systems that are measured.
struct Subject {
    name: &'static str,
    program: String,
    arguments: Vec<String>,
    port: u16,
}

/// What one run gave.
struct Run {
    micros_per_call: f64,
    failed: u64,
    receive_buffer_errors: u64,
}

/// Runs the comparison and prints the table.
///
/// # Errors
/// A program is missing, or a run could not be made.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let rounds: usize = match arguments.first() {
        Some(word) => word
            .parse()
            .map_err(|_| format!("not a number of rounds: {word}"))?,
        None => 3,
    };
    let missing: Vec<&str> = ["sipp", "kamailio", "taskset"]
        .into_iter()
        .filter(|p| !installed(p))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "missing for the comparison: {} (Debian: sip-tester kamailio util-linux)",
            missing.join(", ")
        ));
    }
    check(Command::new("cargo").current_dir(root()).args([
        "build",
        "--release",
        "--locked",
        "-p",
        "hornwork",
    ]))?;
    let scratch = std::env::temp_dir().join(format!("hornwork-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    let outcome = calls(rounds, &scratch)
        .and_then(|()| volte(rounds, &scratch))
        .and_then(|()| transports(rounds, &scratch))
        .and_then(|()| header_rules(rounds, &scratch))
        .and_then(|()| generator(rounds, &scratch))
        .and_then(|()| registrations::registrations(rounds, &scratch))
        .and_then(|()| standing(&scratch))
        .and_then(|()| in_memory());
    let _ = std::fs::remove_dir_all(&scratch);
    outcome
}

fn subjects(scratch: &Path) -> Vec<Subject> {
    let hornwork = root().join("target/release/hornwork").display().to_string();
    let example = |name: &str| root().join("examples").join(name).display().to_string();
    // Without a line in the log for each call, as the peer is: writing three of them costs about 5 us.
    let border = |name, file: &str| Subject {
        name,
        program: "env".into(),
        arguments: vec![
            "RUST_LOG=warn".into(),
            hornwork.clone(),
            "run".into(),
            "-c".into(),
            example(file),
        ],
        port: 5060,
    };
    let kamailio: Vec<String> = [
        "-x",
        "fm",
        "-X",
        "fm",
        "-m",
        "2048",
        "-M",
        "64",
        "-DD",
        "-E",
        "-f",
        &root().join("bench/kamailio.cfg").display().to_string(),
        "-Y",
        &scratch.display().to_string(),
    ]
    .iter()
    .map(|word| (*word).to_owned())
    .collect();
    vec![
        border("border, media passed by", "loopback-bypass.toml"),
        Subject {
            name: "kamailio",
            program: "kamailio".into(),
            arguments: kamailio,
            port: 5070,
        },
        border("border, media anchored", "loopback.toml"),
    ]
}

fn calls(rounds: usize, scratch: &Path) -> Result<(), String> {
    let subjects = subjects(scratch);
    println!(
        "CPU per 7-message call, {SECONDS} s a run, {rounds} interleaved rounds, subject on core {SUBJECT_CORE}, SIPp on core {LOAD_CORE}"
    );
    for rate in RATES {
        let mut results: Vec<Vec<Run>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (subject, runs) in subjects.iter().zip(&mut results) {
                let run = one(subject, rate, scratch)?;
                println!(
                    "  {rate}/s round {} {:<26} {:7.1} us/call, {} failed, RcvbufErrors +{}",
                    round + 1,
                    subject.name,
                    run.micros_per_call,
                    run.failed,
                    run.receive_buffer_errors
                );
                runs.push(run);
            }
        }
        let medians: Vec<f64> = results
            .iter()
            .map(|runs| median(runs.iter().map(|r| r.micros_per_call).collect()))
            .collect();
        println!("{rate}/s, medians:");
        for (subject, value) in subjects.iter().zip(&medians) {
            println!(
                "  {:<26} {value:7.1} us/call   {:5.2} of kamailio",
                subject.name,
                value / medians[1]
            );
        }
    }
    Ok(())
}

/// One run: subject up, SIPp's built-in UAS behind it, SIPp's built-in UAC before it.
fn one(subject: &Subject, rate: u32, scratch: &Path) -> Result<Run, String> {
    played(subject, rate, &["-sn", "uac"], &["-sn", "uas"], scratch)
}

/// The same with other scenarios.
fn played(
    subject: &Subject,
    rate: u32,
    uac: &[&str],
    uas: &[&str],
    scratch: &Path,
) -> Result<Run, String> {
    let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
    let running = Running::start(
        SUBJECT_CORE,
        &subject.program,
        &arguments,
        &scratch.join("subject.log"),
    )?;
    let more = ["-nostdin", "-buff_size", "4000000", "-l", "200000"];
    let uas = [uas, &["-i", "127.0.0.1", "-p", "5080"], &more].concat();
    let _uas = Running::start(LOAD_CORE, "sipp", &uas, &scratch.join("uas.log"))?;
    std::thread::sleep(Duration::from_millis(1_500));
    let before = receive_buffer_errors();
    let cpu = running.cpu_nanos();
    let total = rate * SECONDS;
    let target = format!("127.0.0.1:{}", subject.port);
    let (rate_text, total_text) = (rate.to_string(), total.to_string());
    let load = ["-i", "127.0.0.1", "-p", "5061", "-r", &rate_text];
    let uac = [uac, &[&target], &load, &["-m", &total_text], &more].concat();
    let log = scratch.join("uac.log");
    let mut caller = Running::start(LOAD_CORE, "sipp", &uac, &log)?;
    caller.wait(Duration::from_secs(u64::from(SECONDS) + 60))?;
    let spent = running.cpu_nanos() - cpu;
    let text =
        String::from_utf8_lossy(&std::fs::read(&log).map_err(|e| e.to_string())?).into_owned();
    let successful = figure(&text, "Successful call")
        .ok_or_else(|| format!("{}: SIPp gave no figures", subject.name))?;
    if successful == 0 {
        let said = std::fs::read_to_string(scratch.join("subject.log")).unwrap_or_default();
        return Err(format!(
            "{}: no call succeeded; it said:\n{said}",
            subject.name
        ));
    }
    Ok(Run {
        micros_per_call: spent as f64 / 1_000.0 / successful as f64,
        failed: u64::from(total) - successful,
        receive_buffer_errors: receive_buffer_errors() - before,
    })
}

/// Calls a second of both flows where they are compared: SIPp reads the answers of the longer one with regular expressions.
const VOLTE_RATE: u32 = 1_000;
/// What a call of mobile networks may cost, in plain calls.
const VOLTE_BAR: f64 = 2.6;

/// CPU per call of twenty messages beside that of seven, interleaved, at one rate, media passed by.
fn volte(rounds: usize, scratch: &Path) -> Result<(), String> {
    let subjects = subjects(scratch);
    let border = subjects.first().ok_or("no border to measure")?;
    let scenario = |name: &str| {
        root()
            .join("scenarios/sipp")
            .join(name)
            .display()
            .to_string()
    };
    let (uac, uas) = (scenario("volte-uac.xml"), scenario("volte-uas.xml"));
    println!(
        "\nVoLTE calls (20 messages) beside plain ones (7), {VOLTE_RATE}/s, media passed by, {rounds} interleaved rounds"
    );
    let flows = [
        ("plain", ["-sn", "uac"], ["-sn", "uas"]),
        ("volte", ["-sf", &uac], ["-sf", &uas]),
    ];
    let mut results = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for ((name, uac, uas), runs) in flows.iter().zip(&mut results) {
            let run = played(border, VOLTE_RATE, uac, uas, scratch)?;
            println!(
                "  round {} {name} {:7.1} us/call, {} failed, RcvbufErrors +{}",
                round + 1,
                run.micros_per_call,
                run.failed,
                run.receive_buffer_errors
            );
            runs.push(run.micros_per_call);
        }
    }
    let [plain, volte] = results.map(median);
    let ratio = volte / plain;
    let verdict = if ratio <= VOLTE_BAR {
        "within"
    } else {
        "ABOVE"
    };
    println!(
        "medians: plain {plain:.1}, volte {volte:.1} us/call: {ratio:.2} ({verdict} the bar of {VOLTE_BAR})"
    );
    Ok(())
}

/// What a call over TLS on both sides may cost, in calls over UDP.
const TLS_BAR: f64 = 1.4;

/// CPU per 7-message call, TLS on both sides beside UDP on both sides, interleaved, by our own callers (SIPp has no TLS).
fn transports(rounds: usize, scratch: &Path) -> Result<(), String> {
    let build = [
        "build",
        "--release",
        "--locked",
        "-p",
        "lab",
        "--example",
        "transport_calls",
    ];
    check(Command::new("cargo").current_dir(root()).args(build))?;
    let load = root().join("target/release/examples/transport_calls");
    let folder = scratch.display().to_string();
    check(Command::new(&load).args(["certificates", &folder]))?;
    println!(
        "\nTLS on both sides beside UDP on both sides, media passed by, {rounds} interleaved rounds"
    );
    for rate in RATES {
        let mut results = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for (transport, runs) in ["udp", "tls"].into_iter().zip(&mut results) {
                let micros = transport_run(transport, rate, &load, scratch)?;
                println!(
                    "  {rate}/s round {} {transport} {micros:7.1} us/call",
                    round + 1
                );
                runs.push(micros);
            }
        }
        let [udp, tls] = results.map(median);
        let ratio = tls / udp;
        let verdict = if ratio <= TLS_BAR { "within" } else { "ABOVE" };
        println!(
            "{rate}/s, medians: udp {udp:.1}, tls {tls:.1} us/call: {ratio:.2} ({verdict} the bar of {TLS_BAR})"
        );
    }
    Ok(())
}

/// One run of [`transports`]: microseconds of the border's CPU per call. Every call must succeed.
fn transport_run(transport: &str, rate: u32, load: &Path, scratch: &Path) -> Result<f64, String> {
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
    let program = root().join("target/release/hornwork").display().to_string();
    let file = file.display().to_string();
    let border = ["RUST_LOG=warn", &program, "run", "-c", &file];
    let border = Running::start(SUBJECT_CORE, "env", &border, &scratch.join("subject.log"))?;
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

/// Two headers changed and two added in every message that is passed on, towards callers and towards the called side.
const HEADER_RULES: &str = r#"
[[rules]]
trunk = "server"
direction = "out"
do = [{ set = "User-Agent", value = "Border" }, { set = "Subject", value = "Changed" },
  { add = "X-Border", value = "one" }, { add = "X-Caller", value = "${from.user}" }]
[[rules]]
kind = "access"
direction = "out"
do = [{ set = "Server", value = "Border" }, { set = "User-Agent", value = "Border" },
  { add = "X-Border", value = "one" }, { add = "X-Called", value = "${to.user}" }]
"#;

/// What header rules cost: the border with and without them in turn, media passed by.
fn header_rules(rounds: usize, scratch: &Path) -> Result<(), String> {
    let plain = std::fs::read_to_string(root().join("examples/loopback-bypass.toml"))
        .map_err(|error| error.to_string())?;
    let hornwork = root().join("target/release/hornwork").display().to_string();
    let mut subjects = Vec::new();
    for (name, file, rules) in [
        ("without header rules", "plain.toml", ""),
        ("2 changed, 2 added", "rules.toml", HEADER_RULES),
    ] {
        let path = scratch.join(file);
        std::fs::write(&path, format!("{plain}{rules}")).map_err(|error| error.to_string())?;
        subjects.push(Subject {
            name,
            program: hornwork.clone(),
            arguments: vec!["run".into(), "-c".into(), path.display().to_string()],
            port: 5060,
        });
    }
    println!("\nheader rules, CPU per 7-message call, {rounds} interleaved rounds");
    for rate in RATES {
        let mut results: Vec<Vec<f64>> = subjects.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (subject, runs) in subjects.iter().zip(&mut results) {
                runs.push(one(subject, rate, scratch)?.micros_per_call);
            }
        }
        let medians: Vec<f64> = results.into_iter().map(median).collect();
        for (subject, value) in subjects.iter().zip(&medians) {
            println!(
                "  {rate}/s {:<26} {value:7.1} us/call   {:5.3} of none",
                subject.name,
                value / medians[0]
            );
        }
    }
    Ok(())
}

/// Calls a second at which generators are compared, and for how long.
const GENERATOR_RATE: u32 = 14_000;
const GENERATOR_SECONDS: u64 = 6;

/// Our load generator beside SIPp's, both with SIPp's own scenarios, interleaved, at one rate: CPU time per call of the caller
/// against SIPp as callee, and of the callee against SIPp as caller.
fn generator(rounds: usize, scratch: &Path) -> Result<(), String> {
    for name in ["uac", "uas"] {
        let output = Command::new("sipp")
            .args(["-sd", name])
            .output()
            .map_err(|error| format!("sipp: {error}"))?;
        std::fs::write(scratch.join(format!("{name}.xml")), output.stdout)
            .map_err(|error| error.to_string())?;
    }
    println!("\nload generators, {GENERATOR_RATE} calls/s:");
    for (caller_is_measured, side) in [(true, "caller"), (false, "callee")] {
        let players = ["sipp", "hornwork"];
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); players.len()];
        for _ in 0..rounds {
            for (costs, player) in costs.iter_mut().zip(players) {
                costs.push(generator_cost(player, caller_is_measured, scratch)?);
            }
        }
        let medians: Vec<f64> = costs.into_iter().map(median).collect();
        for (player, cost) in players.iter().zip(&medians) {
            println!(
                "  {side} {player:<10} {cost:6.1} us/call   {:5.2} x sipp's calls per CPU second",
                medians[0] / cost
            );
        }
    }
    Ok(())
}

/// One run of a generator: CPU microseconds per call that the kernel saw go by.
fn generator_cost(player: &str, caller: bool, scratch: &Path) -> Result<f64, String> {
    let hornwork = root().join("target/release/hornwork").display().to_string();
    let rate = GENERATOR_RATE.to_string();
    let start = |core, player: &str, caller: bool| {
        let scenario = scratch.join(if caller { "uac.xml" } else { "uas.xml" });
        let scenario = scenario.display().to_string();
        let mut words: Vec<&str> = Vec::new();
        let program = match player {
            "sipp" => {
                words.extend(["-sf", &scenario, "-i", "127.0.0.1", "-nostdin"]);
                words.extend(["-buff_size", "4000000", "-l", "200000"]);
                match caller {
                    true => words.extend(["-p", "6060", "-r", &rate, "127.0.0.1:5080"]),
                    false => words.extend(["-p", "5080"]),
                }
                "sipp"
            }
            _ => {
                words.extend(["lab", "run", &scenario]);
                match caller {
                    true => {
                        words.extend(["127.0.0.1:5080", "--local", "127.0.0.1:6060"]);
                        words.extend(["--rate", &rate, "--limit", "200000"]);
                    }
                    false => words.extend(["--local", "127.0.0.1:5080"]),
                }
                &hornwork
            }
        };
        let log = scratch.join(if caller { "caller.log" } else { "callee.log" });
        Running::start(core, program, &words, &log)
    };
    let pause = Duration::from_millis(500);
    let callee = start(
        if caller { LOAD_CORE } else { SUBJECT_CORE },
        if caller { "sipp" } else { player },
        false,
    )?;
    std::thread::sleep(pause);
    let calling = start(
        if caller { SUBJECT_CORE } else { LOAD_CORE },
        if caller { player } else { "sipp" },
        true,
    )?;
    std::thread::sleep(pause * 4);
    let measured = if caller { &calling } else { &callee };
    let (cpu, sent) = (measured.cpu_nanos(), datagrams_sent());
    std::thread::sleep(Duration::from_secs(GENERATOR_SECONDS));
    let (cpu, sent) = (measured.cpu_nanos() - cpu, datagrams_sent() - sent);
    // Six messages make a call of these scenarios.
    let calls = sent / 6;
    let wanted = u64::from(GENERATOR_RATE) * GENERATOR_SECONDS;
    if calls < wanted * 9 / 10 {
        return Err(format!("{player}: {calls} calls in place of {wanted}"));
    }
    Ok(cpu as f64 / 1_000.0 / calls as f64)
}

/// Datagrams that this network namespace has sent.
fn datagrams_sent() -> u64 {
    udp_counter("OutDatagrams")
}

/// Calls that stand at once where memory per call is measured, and how fast they are set up.
const STANDING: u32 = 100_000;
const STANDING_RATE: u32 = 2_500;

/// Resident memory per standing call, media passed by: growth from before the first call until the last one stands and
/// the transactions that set them up have ended.
fn standing(scratch: &Path) -> Result<(), String> {
    let subject = &subjects(scratch)[0];
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
    // Timer J and its like hold ended transactions for 32 s; what remains after that is the calls.
    std::thread::sleep(Duration::from_secs(
        u64::from(STANDING / STANDING_RATE) + 36,
    ));
    let text =
        std::fs::read_to_string(&statistics).map_err(|e| format!("SIPp's statistics: {e}"))?;
    let current = column(&text, "CurrentCall").ok_or("SIPp's statistics lack CurrentCall")?;
    let failed = column(&text, "FailedCall(C)").unwrap_or(0);
    let growth = running.resident_bytes().saturating_sub(before);
    println!(
        "\nstanding calls, media passed by: {current} stand, {failed} failed, resident memory +{} KiB",
        growth / 1024
    );
    if current == 0 {
        return Err("no call stands".into());
    }
    println!(
        "  {:.0} bytes per standing call",
        growth as f64 / current as f64
    );
    Ok(())
}

/// The last value of a column of SIPp's statistics file.
fn column(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let place = lines.next()?.split(';').position(|word| word == name)?;
    lines
        .next_back()?
        .split(';')
        .nth(place)?
        .trim()
        .parse()
        .ok()
}

/// The cumulative figure of the last screen that SIPp printed.
fn figure(screen: &str, name: &str) -> Option<u64> {
    screen
        .lines()
        .rev()
        .find(|line| line.contains(name))?
        .split('|')
        .nth(2)?
        .trim()
        .parse()
        .ok()
}

/// Datagrams that the kernel dropped for want of room in a socket's buffer.
fn receive_buffer_errors() -> u64 {
    udp_counter("RcvbufErrors")
}

/// One of the kernel's counters for UDP.
fn udp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(known, _)| *known == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

/// The parts' own benchmarks: examples that print what they measure in memory.
fn in_memory() -> Result<(), String> {
    let examples: [(&str, &str); 7] = [
        ("wire", "parse_cost"),
        ("sip", "call_cost"),
        ("border", "standing_cost"),
        ("border", "registered_cost"),
        ("border", "rules_cost"),
        ("border", "volte_cost"),
        ("net", "echo_cost"),
    ];
    for (package, example) in examples {
        let source: PathBuf = root()
            .join("crates")
            .join(package)
            .join("examples")
            .join(format!("{example}.rs"));
        if !source.is_file() {
            return Err(format!("{} is gone", source.display()));
        }
        println!("\n{package}: {example}");
        check(Command::new("cargo").current_dir(root()).args([
            "run",
            "--release",
            "--locked",
            "--quiet",
            "-p",
            package,
            "--example",
            example,
        ]))?;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
