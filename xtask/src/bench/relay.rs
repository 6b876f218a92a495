//! What a packet of relayed media costs, beside rtpengine in user space.

use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, interleaved};
use crate::process::{Running, build, check, installed, release, root};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Calls, two streams of 50 packets a second each.
const CALLS: [u32; 3] = [100, 250, 500];
/// Seconds that are counted in a run.
const SECONDS: u32 = 8;
/// CPU per packet, in rtpengine's.
const BAR: f64 = 0.65;
/// The same with SRTP on the callers' side.
const SECURE_BAR: f64 = 0.6;
/// Microseconds of CPU per packet that SRTP on one side may add to the plain relay on the same path.
const SECURE_MORE: f64 = 0.8;

/// A relay that is measured.
struct Relay {
    name: &'static str,
    /// What the load calls it.
    kind: &'static str,
    address: &'static str,
    arguments: Vec<String>,
}

/// CPU per relayed packet of the border with one socket for all ports, with a socket for each, and of rtpengine: interleaved, at
/// the same rates, in a network of their own.
pub(super) fn relay(bench: &mut Bench) -> Result<(), String> {
    ready()?;
    let network = Network::new()?;
    let relays = [
        rtpengine(),
        border("border, one socket", "one", &bench.scratch)?,
        border("border, a socket per port", "per-port", &bench.scratch)?,
    ];
    let names = relays.each_ref().map(|relay| relay.name);
    println!("CPU per relayed packet of G.729 (20 ms, both directions), {SECONDS} s a run");
    for calls in CALLS {
        let medians = interleaved(bench.rounds, &names, |which| {
            let line = run(&relays[which], calls, false, &network, &bench.scratch)?;
            println!("  {:<28} {line}", names[which]);
            figure(&line, "us/packet").ok_or(format!("no figure in: {line}"))
        })?;
        for (name, value) in names.iter().zip(&medians).skip(1) {
            bench.bar(
                &format!("{name}, {calls} calls: CPU per packet in rtpengine's (user space)"),
                value / medians[0],
                Bound::AtMost(BAR),
            );
        }
    }
    Ok(())
}

/// The same with SRTP between relay and callers: the border with one socket, plain and with keys, and rtpengine with keys.
pub(super) fn srtp(bench: &mut Bench) -> Result<(), String> {
    ready()?;
    let network = Network::new()?;
    let plain = border("border, plain", "one", &bench.scratch)?;
    let keyed = keyed_border("border, SRTP to RTP", &bench.scratch)?;
    let peer = Relay {
        name: "rtpengine, SRTP to RTP",
        ..rtpengine()
    };
    let runs = [(&peer, true), (&plain, false), (&keyed, true)];
    let names = runs.map(|(relay, _)| relay.name);
    println!(
        "CPU per relayed packet of G.729 (20 ms, both directions), AES_CM_128_HMAC_SHA1_80 on one side, {SECONDS} s a run"
    );
    for calls in CALLS {
        let medians = interleaved(bench.rounds, &names, |which| {
            let (relay, keys) = runs[which];
            let line = run(relay, calls, keys, &network, &bench.scratch)?;
            println!("  {:<28} {line}", names[which]);
            figure(&line, "us/packet").ok_or(format!("no figure in: {line}"))
        })?;
        bench.bar(
            &format!("SRTP to RTP, {calls} calls: CPU per packet in rtpengine's (user space)"),
            medians[2] / medians[0],
            Bound::AtMost(SECURE_BAR),
        );
        bench.bar(
            &format!("SRTP to RTP, {calls} calls: microseconds per packet above the plain relay"),
            medians[2] - medians[1],
            Bound::AtMost(SECURE_MORE),
        );
    }
    Ok(())
}

/// Programs and the load are there.
fn ready() -> Result<(), String> {
    let missing: Vec<&str> = ["rtpengine", "ip", "nsenter"]
        .into_iter()
        .filter(|program| !installed(program))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "missing: {} (Debian: rtpengine iproute2 util-linux)",
            missing.join(", ")
        ));
    }
    build(&["-p", "lab", "--example", "relay_load"])
}

/// The border with keys towards the callers and none towards the trunk.
fn keyed_border(name: &'static str, scratch: &Path) -> Result<Relay, String> {
    let mut relay = border(name, "one", scratch)?;
    let path = relay.arguments.last().cloned().unwrap_or_default();
    let plain = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let keyed = plain.replace("kind = \"access\"", "kind = \"access\"\nsrtp = \"require\"");
    let keyed = keyed.replace("[[trunk]]", "[[trunk]]\nsrtp = \"refuse\"");
    if keyed == plain {
        return Err("examples/loopback.toml has no access interface".into());
    }
    let file = scratch.join("relay-keyed.toml");
    std::fs::write(&file, keyed).map_err(|error| format!("{}: {error}", file.display()))?;
    if let Some(last) = relay.arguments.last_mut() {
        *last = file.display().to_string();
    }
    Ok(relay)
}

/// The border with media anchored; `sockets` as in `[media] sockets`.
fn border(name: &'static str, sockets: &str, scratch: &Path) -> Result<Relay, String> {
    let example = std::fs::read_to_string(root().join("examples/loopback.toml"))
        .map_err(|error| error.to_string())?;
    let file = scratch.join(format!("relay-{sockets}.toml"));
    std::fs::write(
        &file,
        format!("{example}\n[media]\nsockets = \"{sockets}\"\n"),
    )
    .map_err(|error| format!("{}: {error}", file.display()))?;
    let program = release().join("hornwork").display().to_string();
    let words = ["env", "RUST_LOG=warn", &program, "run", "-c"];
    let mut arguments: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    arguments.push(file.display().to_string());
    Ok(Relay {
        name,
        kind: "border",
        address: "127.0.0.1:5060",
        arguments,
    })
}

fn rtpengine() -> Relay {
    // No kernel module, one thread that polls, a port range that holds all calls.
    let words = "rtpengine --foreground --log-stderr --log-level=3 --table=-1 --num-threads=1 --interface=127.0.0.1 \
                 --listen-ng=127.0.0.1:2223 --port-min=20000 --port-max=39999";
    Relay {
        name: "rtpengine, user space",
        kind: "rtpengine",
        address: "127.0.0.1:2223",
        arguments: words.split_whitespace().map(str::to_owned).collect(),
    }
}

/// One run: the line of figures of the load.
fn run(
    relay: &Relay,
    calls: u32,
    keys: bool,
    network: &Network,
    scratch: &Path,
) -> Result<String, String> {
    let log = scratch.join("relay.log");
    let subject = network.start(SUBJECT_CORE, &relay.arguments, &log)?;
    std::thread::sleep(Duration::from_millis(1_500));
    let load = release().join("examples/relay_load");
    let mut words = vec![
        load.display().to_string(),
        relay.kind.into(),
        relay.address.into(),
        subject.id().to_string(),
        calls.to_string(),
        SECONDS.to_string(),
    ];
    if keys {
        words.extend(["20".to_owned(), "srtp".to_owned()]);
    }
    let output = scratch.join("relay-load.log");
    let mut player = network.start(LOAD_CORE, &words, &output)?;
    let succeeded = player.wait(Duration::from_secs(60))?;
    let said = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
    let line = said
        .lines()
        .find(|line| line.starts_with("calls "))
        .map(str::to_owned);
    match line.filter(|_| succeeded) {
        Some(line) => Ok(line),
        None => {
            let subject = std::fs::read_to_string(&log).unwrap_or_default();
            Err(format!("{}: {said}\n{subject}", relay.name))
        }
    }
}

/// The number in front of which `name` stands in a line of figures.
pub(super) fn figure(line: &str, name: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// A network namespace with a loopback; gone when dropped. The network of the machine where that is not allowed.
pub(super) struct Network(Option<String>);

impl Network {
    pub(super) fn new() -> Result<Network, String> {
        let name = format!("hornwork-bench-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            println!(
                "  (no network namespace is allowed here: the machine's own loopback carries the load)"
            );
            return Ok(Network(None));
        }
        let network = Network(Some(name.clone()));
        check(Command::new("ip").args(["-n", &name, "link", "set", "lo", "up"]))?;
        Ok(network)
    }

    /// Starts a program there, on a core of its own.
    pub(super) fn start(
        &self,
        core: usize,
        words: &[String],
        log: &Path,
    ) -> Result<Running, String> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let inside;
        if let Some(name) = &self.0 {
            inside = format!("--net=/run/netns/{name}");
            words.splice(0..0, ["nsenter", &inside]);
        }
        let (program, arguments) = words.split_first().ok_or("nothing to start")?;
        Running::start(core, program, arguments, log)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            // What is left of it is the user's to see: `ip netns`.
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}
