//! TLS connections of the generator: 20,000 at a time to a border in a process of its own, each of which carries two
//! REGISTERs.

use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE};
use crate::process::{Running, build, check, program, release};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Connections, and those of the run that shows the memory without them.
const CONNECTIONS: u32 = 20_000;
const FEW: u32 = 200;
/// File descriptors of a process that are no connections of the run, with room.
const OTHER_DESCRIPTORS: u32 = 100;
/// New connections a second: a full handshake at both ends each, below the limit of the border for one source (half of
/// 500).
const RATE: u32 = 200;
/// Second REGISTERs a second, once all connections are open.
const REFRESH_RATE: u32 = 2_000;
/// Memory of a connection: both ends with a registration at the border and two records of attempts.
const BYTES: f64 = 64.0 * 1_024.0;
/// Address of the border.
const BORDER: &str = "127.0.0.1:5061";

/// Figures of a run.
struct Connections {
    /// The fewest that were open during the second REGISTERs.
    open: f64,
    lost: f64,
    /// REGISTERs that were not answered with 200.
    failed: f64,
    /// Of generator and border.
    resident_bytes: f64,
}

/// Generator and border on a core each.
pub(super) fn tls_connections(bench: &mut Bench) -> Result<(), String> {
    build(&["-p", "lab", "--example", "transport_calls"])?;
    let folder = bench.scratch.display().to_string();
    let load = release().join("examples/transport_calls");
    check(Command::new(load).args(["certificates", &folder]))?;
    let limit = descriptors(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default());
    let connections = CONNECTIONS
        .min(limit.saturating_sub(OTHER_DESCRIPTORS))
        .max(FEW + 1);
    println!(
        "{connections} TLS connections, one for each subscriber, generator and border in a process each"
    );
    if connections < CONNECTIONS {
        println!(
            "  a process has {limit} file descriptors here: {CONNECTIONS} connections are not possible"
        );
    }
    let few = one(FEW, &bench.scratch)?;
    let many = one(connections, &bench.scratch)?;
    let each = (many.resident_bytes - few.resident_bytes) / f64::from(connections - FEW);
    println!(
        "  {:.0} open, {:.0} lost, {:.0} REGISTERs failed, {each:.0} bytes for each connection (both ends)",
        many.open, many.lost, many.failed
    );
    let bars = [
        (
            "TLS connections of the generator: open at a time",
            many.open,
            Bound::AtLeast(f64::from(CONNECTIONS)),
        ),
        (
            "TLS connections of the generator: lost",
            many.lost,
            Bound::AtMost(0.0),
        ),
        (
            "TLS connections of the generator: failed REGISTERs",
            many.failed,
            Bound::AtMost(0.0),
        ),
        (
            "TLS connections of the generator: bytes of both ends",
            each,
            Bound::AtMost(BYTES),
        ),
    ];
    for (what, measured, bound) in bars {
        bench.bar(what, measured, bound);
    }
    Ok(())
}

/// The hard limit of file descriptors of a process, from `/proc/PID/limits`; that of the connections if it has none.
fn descriptors(limits: &str) -> u32 {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let hard = line.and_then(|line| line.split_whitespace().nth(1));
    hard.and_then(|hard| hard.parse().ok())
        .unwrap_or(CONNECTIONS + OTHER_DESCRIPTORS)
}

/// The border: registrar without authentication.
fn border(folder: &str) -> String {
    format!(
        "[[interface]]\nname = \"access\"\nlisten = \"tls:{BORDER}\"\nregister = \"local\"\n\
         tls = {{ certificate = {{ chain = \"{folder}/bench.pem\", key = \"{folder}/bench.key\" }} }}\n\
         [limits]\nregistrations = {CONNECTIONS}\nconnections = {CONNECTIONS}\nconnections_per_source = {CONNECTIONS}\n\
         transactions = {transactions}\n\
         [registrar]\nnat_expires_s = 0\n",
        transactions = 4 * CONNECTIONS
    )
}

/// The experiment: every subscriber registers on a connection of its own, and again when all connections are open.
fn plan(users: u32, folder: &str) -> String {
    format!(
        "name = \"tls-connections\"\ntitle = \"a TLS connection for each subscriber\"\nrepeat = 1\nseed = 1\n\
         [sut]\naddress = \"{BORDER}\"\n\
         [tls]\nca = \"{folder}/ca.pem\"\nname = \"bench.example.com\"\n\
         [registrations]\nrate = {RATE}.0\nusers = {users}\nuser = \"{{number:6}}\"\npassword = \"\"\nexpires_seconds = 3600\n\
         refresh_rate = {REFRESH_RATE}.0\nrefreshes = 1\nremove = false\ntransport = \"tls\"\nconnections = 0\nregistrar = \"border\"\n\
         [thresholds]\nfailed_percent = 0.0\n"
    )
}

fn one(users: u32, scratch: &Path) -> Result<Connections, String> {
    let (file, json) = (scratch.join("tls.toml"), scratch.join("tls.json"));
    let out = scratch.join("tls");
    let folder = scratch.display().to_string();
    std::fs::write(&file, plan(users, &folder)).map_err(|error| error.to_string())?;
    let configuration = scratch.join("tls-border.toml");
    std::fs::write(&configuration, border(&folder)).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let program = program().display().to_string();
    let arguments = ["run", "-c", &configuration.display().to_string()];
    let border = Running::start(
        SUBJECT_CORE,
        &program,
        &arguments,
        &scratch.join("subject.log"),
    )?;
    std::thread::sleep(Duration::from_millis(1_500));
    let (file, told, out) = (
        file.display().to_string(),
        json.display().to_string(),
        out.display().to_string(),
    );
    let load = ["lab", "run", &file, "--json", &told, "--out", &out];
    let log = scratch.join("load.log");
    let mut generator = Running::start(LOAD_CORE, &program, &load, &log)?;
    let seconds = users / RATE + users / REFRESH_RATE;
    let code = generator.wait_for_code(Duration::from_secs(u64::from(seconds) + 120))?;
    let border_bytes = border.resident_bytes() as f64;
    // Exit codes 1 and 4: a threshold is not met, or the generator could not keep up; the figures below show it.
    if !matches!(code, Some(0 | 1 | 4)) {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("{users} connections failed: {said}"));
    }
    let text = std::fs::read_to_string(&json).map_err(|error| error.to_string())?;
    let told: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut figures =
        figures(&told).ok_or_else(|| format!("{}: not the figures of a run", json.display()))?;
    figures.resident_bytes += border_bytes;
    if figures.open < f64::from(users) {
        // File descriptors or ports did not suffice: the remarks have the numbers.
        println!("  {}", told["trials"][0]["remarks"]);
    }
    Ok(figures)
}

/// The figures of the only trial.
fn figures(told: &Value) -> Option<Connections> {
    let trial = &told["trials"][0];
    let details = &trial["details"];
    Some(Connections {
        open: details["connections"].as_f64()?,
        lost: details["connections_lost"].as_f64()?,
        failed: details["registrations"]["failed"].as_f64()?,
        resident_bytes: trial["surroundings"]["resident_bytes"].as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Bar;
    use super::*;
    use serde_json::json;

    #[test]
    fn shared_and_lost_connections_miss_their_bars() {
        let told = json!({"trials": [{
            "details": {
                "registrations": {"failed": 2},
                "connections": 150, "connections_lost": 3,
            },
            "surroundings": {"resident_bytes": 1_000_000},
        }]});
        let found = figures(&told).unwrap();
        assert_eq!((found.open, found.lost, found.failed), (150.0, 3.0, 2.0));
        let holds = |measured, bound| {
            let what = String::new();
            Bar {
                what,
                measured,
                bound,
            }
            .holds()
        };
        assert!(!holds(found.open, Bound::AtLeast(200.0)));
        assert!(!holds(found.lost, Bound::AtMost(0.0)));
        assert!(figures(&json!({"trials": []})).is_none());
    }

    #[test]
    fn each_subscriber_has_a_connection() {
        let told: toml_edit::DocumentMut = plan(CONNECTIONS, "/tmp").parse().unwrap();
        assert!(border("/tmp").parse::<toml_edit::DocumentMut>().is_ok());
        let users = &told["registrations"];
        assert_eq!(users["connections"].as_integer(), Some(0));
        assert_eq!(users["users"].as_integer(), Some(20_000));
        assert_eq!(users["user"].as_str(), Some("{number:6}"));
    }

    #[test]
    fn the_hard_limit_of_open_files_is_read() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 20000                files\n";
        assert_eq!(descriptors(limits), 20_000);
        assert_eq!(
            descriptors("Max open files 1024 unlimited files"),
            CONNECTIONS + OTHER_DESCRIPTORS
        );
        assert_eq!(descriptors(""), CONNECTIONS + OTHER_DESCRIPTORS);
    }
}
