//! Full registrations with digest, beside the peer.

use super::{LOAD_CORE, SUBJECT_CORE, Subject, median, subjects};
use crate::process::{Running, root};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Subscribers.
const SUBSCRIBERS: usize = 20_000;
/// Registrations a second, each of four messages.
const RATE: u32 = 3_500;
const SECONDS: u32 = 8;
/// CPU of a full registration, microseconds, and in those of the peer.
const BAR: f64 = 30.0;
const RATIO: f64 = 0.8;

/// CPU per full registration of the border and of the peer, interleaved, by our own player.
pub(super) fn registrations(rounds: usize, scratch: &Path) -> Result<(), String> {
    let mut users = String::from("SEQUENTIAL\n");
    let mut config = String::from(
        "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\nregister = \"local\"\nauthenticate = \"digest\"\n\
         [registrar]\nnat_expires = 0\n",
    );
    for number in 0..SUBSCRIBERS {
        let (name, password) = (
            format!("subscriber{number:07}"),
            format!("password{number:07}"),
        );
        // Writing into a String cannot fail.
        let _ = writeln!(users, "{name};{password}");
        let _ = write!(
            config,
            "[[user]]\nname = \"{name}\"\npassword = \"{password}\"\n"
        );
    }
    let (file, injected) = (scratch.join("registrar.toml"), scratch.join("users.csv"));
    std::fs::write(&file, config).map_err(|e| format!("{}: {e}", file.display()))?;
    std::fs::write(&injected, users).map_err(|e| format!("{}: {e}", injected.display()))?;
    let instead = |mut subject: Subject, old: &str, new: &Path| {
        for argument in &mut subject.arguments {
            if argument.ends_with(old) {
                *argument = new.display().to_string();
            }
        }
        subject
    };
    let mut all = subjects(scratch).into_iter();
    let (Some(border), Some(peer)) = (all.next(), all.next()) else {
        return Err("no subjects".into());
    };
    let both = [
        instead(border, "loopback-bypass.toml", &file),
        instead(
            peer,
            "kamailio.cfg",
            &root().join("bench/kamailio-registrar.cfg"),
        ),
    ];
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (subject, costs) in both.iter().zip(&mut costs) {
            costs.push(one(subject, &injected, scratch)?);
        }
    }
    let [ours, theirs] = costs.map(median);
    println!(
        "\nfull registrations with digest at {RATE} a second, us CPU each: border {ours:.1} (at most {BAR}), kamailio {theirs:.1}, ratio {:.2} (at most {RATIO})",
        ours / theirs
    );
    Ok(())
}

fn one(subject: &Subject, injected: &Path, scratch: &Path) -> Result<f64, String> {
    let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
    let log = scratch.join("subject.log");
    let running = Running::start(SUBJECT_CORE, &subject.program, &arguments, &log)?;
    std::thread::sleep(Duration::from_millis(2_000));
    let before = running.cpu_nanos();
    let player = root().join("target/release/hornwork").display().to_string();
    let scenario = root().join("scenarios/sipp/register.xml");
    let calls = RATE * SECONDS;
    let load = [
        "lab",
        "run",
        &scenario.display().to_string(),
        &format!("127.0.0.1:{}", subject.port),
        "--inject",
        &injected.display().to_string(),
        "--rate",
        &RATE.to_string(),
        "--calls",
        &calls.to_string(),
    ];
    let said = scratch.join("player.log");
    let mut player = Running::start(LOAD_CORE, &player, &load, &said)?;
    let good = player.wait(Duration::from_secs(u64::from(SECONDS) + 60))?;
    let spent = running.cpu_nanos() - before;
    if !good {
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        return Err(format!("{}: registrations failed:\n{said}", subject.name));
    }
    Ok(spent as f64 / 1_000.0 / f64::from(calls))
}
