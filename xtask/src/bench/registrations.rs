//! Registrations beside the peer: full ones with digest, and refreshes that do not reach the core.

use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, Subject, interleaved, subjects};
use crate::process::{Running, program, root};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Subscribers.
const SUBSCRIBERS: usize = 20_000;
/// Registrations a second, each of four messages.
const RATE: u32 = 3_500;
const SECONDS: u32 = 8;
/// CPU of a full registration, microseconds, and in those of the peer.
const BAR: f64 = 30.0;
const RATIO: f64 = 0.8;

/// CPU per full registration of the border and of the peer, interleaved, by our own player.
pub(super) fn registrations(bench: &mut Bench) -> Result<(), String> {
    let scratch = bench.scratch.clone();
    let mut users = String::from("SEQUENTIAL\n");
    let mut config = String::from(
        "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\nregister = \"local\"\nauthenticate = \"digest\"\n\
         [registrar]\nnat_expires_s = 0\n",
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
    let mut all = subjects(bench)?.into_iter();
    let (Some(border), Some(peer)) = (all.next(), all.next()) else {
        return Err("registrations: no system under test".into());
    };
    let both = [
        border.with("loopback-bypass.toml", &file),
        peer.with("kamailio.cfg", &root().join("bench/kamailio-registrar.cfg")),
    ];
    println!("full registrations with digest, {RATE}/s");
    let medians = interleaved(bench.rounds, &["border", "kamailio"], |which| {
        let cost = one(&both[which], &injected, &scratch)?;
        println!("  {:<10} {cost:6.1} us", both[which].name);
        Ok(cost)
    })?;
    bench.bar(
        &format!("full registration with digest, {RATE}/s: us of CPU"),
        medians[0],
        Bound::AtMost(BAR),
    );
    bench.bar(
        &format!(
            "full registration with digest, {RATE}/s: CPU in Kamailio's ({:.1} us)",
            medians[1]
        ),
        medians[0] / medians[1],
        Bound::AtMost(RATIO),
    );
    Ok(())
}

fn one(subject: &Subject, injected: &Path, scratch: &Path) -> Result<f64, String> {
    let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
    let log = scratch.join("subject.log");
    let running = Running::start(SUBJECT_CORE, &subject.program, &arguments, &log)?;
    std::thread::sleep(Duration::from_millis(2_000));
    let before = running.cpu_nanos();
    let player = program().display().to_string();
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

/// Subscribers that refresh, and how many of them a second: 420,000 at one refresh in 70 s.
const REFRESHED: u32 = 24_000;
const REFRESH_RATE: u32 = 6_000;
/// CPU of a refresh answered from the cache, microseconds, and in that of the peer's REGISTER.
const REFRESH_BAR: f64 = 12.0;
const REFRESH_RATIO: f64 = 0.6;

/// CPU per re-registration that the border answers for the core, beside a REGISTER that the peer saves.
pub(super) fn refreshes(bench: &mut Bench) -> Result<(), String> {
    let scratch = bench.scratch.clone();
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<_, String>(path)
    };
    let core = write(
        "core.toml",
        "[[interface]]\nname = \"core\"\nlisten = \"udp:127.0.0.1:5080\"\nregister = \"local\"\n[registrar]\nnat_expires_s = 0\n",
    )?;
    let passing = write(
        "passing.toml",
        "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1:5060\"\nregister = \"pass:core\"\n\
         [[trunk]]\nname = \"core\"\ntarget = \"udp:127.0.0.1:5080\"\n[registrar]\nnat_expires_s = 0\n",
    )?;
    let seconds = REFRESHED / REFRESH_RATE;
    let load = write(
        "refreshes.toml",
        &format!(
            "name = \"refreshes\"\ntitle = \"Refreshes\"\nabout = \"Load of a benchmark.\"\nrepeat = 1\nseed = 1\n\
             [registrations]\nusers = {REFRESHED}\nrate = {REFRESH_RATE}.0\npassword = \"\"\nexpires_seconds = 3600\n\
             refresh_seconds = {seconds}.0\nrefreshes = 5\nremove = false\n"
        ),
    )?;
    let mut all = subjects(bench)?.into_iter();
    let (Some(border), Some(peer)) = (all.next(), all.next()) else {
        return Err("registrations: no system under test".into());
    };
    let mut peer = peer.with("kamailio.cfg", &root().join("bench/kamailio-registrar.cfg"));
    peer.arguments.extend(["-A".into(), "OPEN".into()]);
    let both = [border.with("loopback-bypass.toml", &passing), peer];
    println!("re-registrations, {REFRESH_RATE}/s, the border with a core behind it");
    let medians = interleaved(bench.rounds, &["border", "kamailio"], |which| {
        let cost = refreshed(&both[which], &core, &load, &scratch)?;
        println!("  {:<26} {cost:6.1} us", both[which].name);
        Ok(cost)
    })?;
    bench.bar(
        &format!("re-registration from the cache, {REFRESH_RATE}/s: us of CPU"),
        medians[0],
        Bound::AtMost(REFRESH_BAR),
    );
    bench.bar(
        &format!("re-registration from the cache, {REFRESH_RATE}/s: CPU in Kamailio's REGISTER ({:.1} us)", medians[1]),
        medians[0] / medians[1],
        Bound::AtMost(REFRESH_RATIO),
    );
    Ok(())
}

/// One run: all register once, and refresh while it is measured.
fn refreshed(subject: &Subject, core: &Path, load: &Path, scratch: &Path) -> Result<f64, String> {
    let hornwork = program().display().to_string();
    let arguments: Vec<&str> = subject.arguments.iter().map(String::as_str).collect();
    let log = scratch.join("subject.log");
    let running = Running::start(SUBJECT_CORE, &subject.program, &arguments, &log)?;
    let core = core.display().to_string();
    let core = ["run", "-c", &core];
    let core = Running::start(LOAD_CORE, &hornwork, &core, &scratch.join("core.log"))?;
    std::thread::sleep(Duration::from_millis(1_500));
    let (said, results) = (scratch.join("player.log"), scratch.join("refreshes"));
    // Those of the run before; there are none before the first.
    let _ = std::fs::remove_dir_all(&results);
    let mut player = Running::start(
        LOAD_CORE,
        &hornwork,
        &[
            "lab",
            "run",
            &load.display().to_string(),
            "--set",
            &format!("sut.address=127.0.0.1:{}", subject.port),
            "--out",
            &results.display().to_string(),
        ],
        &said,
    )?;
    // The first ones take as long as a turn of all, and the player a moment to start.
    let turn = u64::from(REFRESHED / REFRESH_RATE);
    std::thread::sleep(Duration::from_secs(turn * 2));
    let (cpu, heard, begun) = (running.cpu_nanos(), core.cpu_nanos(), Instant::now());
    std::thread::sleep(Duration::from_secs(turn * 2));
    let (cpu, heard) = (running.cpu_nanos() - cpu, core.cpu_nanos() - heard);
    // Datagrams cannot be counted by the kernel's counters, which count a GSO burst as one: their number follows from
    // the plan.
    let refreshes = f64::from(REFRESH_RATE) * begun.elapsed().as_secs_f64();
    let good = player.wait(Duration::from_secs(turn * 4 + 30))?;
    // A core that receives them works for each of them.
    if !good || heard as f64 > refreshes * 1_000.0 {
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        return Err(format!(
            "{}: refreshes failed, or reached the core ({heard} ns of work there):\n{said}",
            subject.name
        ));
    }
    Ok(cpu as f64 / 1_000.0 / refreshes)
}
