//! TLS connections of the generator: 20,000 at a time to our own border, each of which carries two REGISTERs.

use super::{Bench, Bound};
use crate::process::program;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Connections, and those of the run that shows the memory without them.
const CONNECTIONS: u32 = 20_000;
const FEW: u32 = 200;
/// New connections a second: a full handshake at both ends each.
const RATE: u32 = 400;
/// Second REGISTERs a second, once all connections are open.
const REFRESH_RATE: u32 = 2_000;
/// Memory of a connection: both ends with a registration at the border and two records of attempts.
const BYTES: f64 = 64.0 * 1_024.0;

/// Figures of a run.
struct Connections {
    /// The fewest that were open during the second REGISTERs.
    open: f64,
    lost: f64,
    /// REGISTERs that were not answered with 200.
    failed: f64,
    resident_bytes: f64,
}

/// Generator and border in one process, in a network namespace of their own where the rights permit it.
pub(super) fn tls_connections(bench: &mut Bench) -> Result<(), String> {
    println!(
        "{CONNECTIONS} TLS connections, one for each subscriber, generator and border in one process"
    );
    let few = one(FEW, &bench.scratch)?;
    let many = one(CONNECTIONS, &bench.scratch)?;
    let each = (many.resident_bytes - few.resident_bytes) / f64::from(CONNECTIONS - FEW);
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

/// The experiment: every subscriber registers on a connection of its own, and again when all connections are open.
fn plan(users: u32) -> String {
    format!(
        "name = \"tls-connections\"\ntitle = \"a TLS connection for each subscriber\"\nrepeat = 1\nseed = 1\n[sut]\nmedia = \"bypass\"\n\
         [registrations]\nrate = {RATE}.0\nusers = {users}\nuser = \"{{number:6}}\"\npassword = \"\"\nexpires_seconds = 3600\n\
         refresh_rate = {REFRESH_RATE}.0\nrefreshes = 1\nremove = false\ntransport = \"tls\"\nconnections = 0\n\
         [thresholds]\nfailed_percent = 0.0\n"
    )
}

fn one(users: u32, scratch: &Path) -> Result<Connections, String> {
    let (file, json) = (scratch.join("tls.toml"), scratch.join("tls.json"));
    let out = scratch.join("tls");
    std::fs::write(&file, plan(users)).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&out);
    let ran = Command::new(program())
        .args(["lab", "run"])
        .arg(&file)
        .arg("--json")
        .arg(&json)
        .arg("--out")
        .arg(&out)
        .output()
        .map_err(|error| format!("hornwork: {error}"))?;
    // Exit codes 1 and 4: a threshold is not met, or the generator could not keep up; the figures below show it.
    if !matches!(ran.status.code(), Some(0 | 1 | 4)) {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("{users} connections failed: {said}"));
    }
    let text = std::fs::read_to_string(&json).map_err(|error| error.to_string())?;
    let told: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let figures =
        figures(&told).ok_or_else(|| format!("{}: not the figures of a run", json.display()))?;
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
        let text = plan(CONNECTIONS);
        let told: toml_edit::DocumentMut = text.parse().unwrap();
        let users = &told["registrations"];
        assert_eq!(users["connections"].as_integer(), Some(0));
        assert_eq!(users["users"].as_integer(), Some(20_000));
        assert_eq!(users["user"].as_str(), Some("{number:6}"));
    }
}
