//! CPU per relayed packet, beside rtpengine in user space.

use super::{Bench, Bound, LOAD_CORE, SUBJECT_CORE, in_turn, median};
use crate::process::{Running, build, check, installed, program, release, root};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Calls, two streams of 50 packets a second each.
const CALLS: [u32; 3] = [100, 250, 500];
/// Seconds that are counted in a run.
const SECONDS: u32 = 8;
/// Arrivals of packets at the relay, as names and words of the load generator: each packet at a time of its own, as
/// from independent phones, where nearly every packet wakes the relay; and all packets of a millisecond at once, as
/// from media servers with a timer, where a relay without a batching delay has several packets to take at each wake-up.
const ARRIVALS: [(&str, Option<&str>); 2] =
    [("single", None), ("bursts of 1 ms", Some("burst=1000"))];
/// CPU per packet, in rtpengine's.
const BAR: f64 = 0.55;
/// The same with SRTP on the callers' side.
const SECURE_BAR: f64 = 0.6;
/// Microseconds of CPU per packet that SRTP on one side may add to the plain relay on the same path.
const SECURE_MORE: f64 = 0.8;

/// Runs of both at once in each round.
const MORE: usize = 3;

/// A relay under test.
#[derive(Clone)]
struct Relay {
    name: &'static str,
    /// Its name in the load generator.
    kind: &'static str,
    address: &'static str,
    arguments: Vec<String>,
}

impl Relay {
    /// The same of another build.
    fn built(&self, name: &'static str, program: &Path) -> Relay {
        let mut built = Relay {
            name,
            ..self.clone()
        };
        if let Some(first) = built.arguments.first_mut() {
            *first = program.display().to_string();
        }
        built
    }
}

/// CPU per relayed packet and delay of the border with one socket for all ports, with a socket for each, and of
/// rtpengine: interleaved, at the same rates, in a network of their own.
pub(super) fn relay(bench: &mut Bench) -> Result<(), String> {
    ready()?;
    let network = Network::new()?;
    let one = border("border, one socket", "one", &bench.scratch)?;
    let mut relays = vec![
        rtpengine(&bench.scratch)?,
        one.clone(),
        border("border, a socket per port", "per-port", &bench.scratch)?,
    ];
    if let Some(program) = bench.optimised() {
        relays.push(one.built("border, one socket, optimised", &program));
    }
    println!("relayed packets of G.729 (20 ms, both directions), {SECONDS} s a run");
    every_load(bench, &relays, false, BAR, &network)
}

/// Runs all relays with each number of calls and each kind of arrivals, and judges them beside the first one,
/// rtpengine.
fn every_load(
    bench: &mut Bench,
    relays: &[Relay],
    keys: bool,
    bar: f64,
    network: &Network,
) -> Result<(), String> {
    for (arrivals, word) in ARRIVALS {
        for calls in CALLS {
            let load = MediaLoad { calls, keys, word };
            let runs = in_turn(bench.rounds, relays.len(), |which| {
                let relay = &relays[which];
                let line = end(begin(relay, load, network, &bench.scratch)?)?;
                println!("  {:<30} {arrivals}: {line}", relay.name);
                Ok(line)
            })?;
            let [peer, ours @ ..] = &runs[..] else {
                return Err("relay: rtpengine is required beside the border".into());
            };
            for (relay, ours) in relays.iter().skip(1).zip(ours) {
                beside_peer(
                    bench,
                    &format!("{}, {calls} calls, arrivals {arrivals}", relay.name),
                    ours,
                    peer,
                    bar,
                )?;
            }
        }
    }
    Ok(())
}

/// The bars of a relay beside rtpengine, from the lines of figures of both.
fn beside_peer(
    bench: &mut Bench,
    what: &str,
    ours: &[String],
    peer: &[String],
    bar: f64,
) -> Result<(), String> {
    let medians = |name: &str| -> Result<(f64, f64), String> {
        let of = |lines: &[String]| -> Result<f64, String> {
            let all: Result<Vec<f64>, String> = lines
                .iter()
                .map(|line| figure(line, name).ok_or(format!("no {name} in: {line}")))
                .collect();
            Ok(median(all?))
        };
        Ok((of(ours)?, of(peer)?))
    };
    let (ours, peer) = medians("us/packet")?;
    bench.bar(
        &format!("{what}: CPU per packet in rtpengine's, user space ({ours:.2} and {peer:.2} us)"),
        ours / peer,
        Bound::AtMost(bar),
    );
    let (ours, peer) = medians("p50")?;
    bench.bar(
        &format!("{what}: median delay in us, at most rtpengine's"),
        ours,
        Bound::AtMost(peer),
    );
    let (ours, peer) = medians("lost")?;
    bench.bar(
        &format!("{what}: lost packets, at most rtpengine's"),
        ours,
        Bound::AtMost(peer),
    );
    Ok(())
}

/// The same with SRTP between relay and callers: border and rtpengine with keys, interleaved; and the border with keys
/// beside the plain one, both at once on one core, because SRTP adds less than the variation between two runs.
pub(super) fn srtp(bench: &mut Bench) -> Result<(), String> {
    ready()?;
    let networks = [Network::new()?, Network::new()?];
    let plain = border("border, plain", "one", &bench.scratch)?;
    let keyed = keyed_border("border, SRTP to RTP", &bench.scratch)?;
    let peer = Relay {
        name: "rtpengine, SRTP to RTP",
        ..rtpengine(&bench.scratch)?
    };
    let mut relays = vec![peer, keyed.clone()];
    if let Some(program) = bench.optimised() {
        relays.push(keyed.built("border, SRTP to RTP, optimised", &program));
    }
    println!(
        "CPU per relayed packet of G.729 (20 ms, both directions), AES_CM_128_HMAC_SHA1_80 on one side, {SECONDS} s a run"
    );
    every_load(bench, &relays, true, SECURE_BAR, &networks[0])?;
    for calls in CALLS {
        let load = |keys| MediaLoad {
            calls,
            keys,
            word: None,
        };
        if networks.iter().any(|network| network.name.is_none()) {
            println!(
                "  (the cost of SRTP above the plain relay is not measured: both at once need a network each)"
            );
            continue;
        }
        let mut more = Vec::new();
        for _ in 0..bench.rounds * MORE {
            let without = begin(&plain, load(false), &networks[0], &bench.scratch)?;
            let with = begin(&keyed, load(true), &networks[1], &bench.scratch)?;
            let (without, with) = (end(without)?, end(with)?);
            println!("  {:<28} {without}", "at once: plain");
            println!("  {:<28} {with}", "at once: SRTP to RTP");
            more.push(micros(&with)? - micros(&without)?);
        }
        bench.bar(
            &format!("SRTP to RTP, {calls} calls: microseconds per packet above the plain relay"),
            median(more),
            Bound::AtMost(SECURE_MORE),
        );
    }
    Ok(())
}

/// Checks that the programs are installed, and builds the load generator.
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

/// The border with media anchored; `sockets` as in `[media] sockets`. Admission control has no CPU limit here: the
/// price of a call is that at a low rate, and the load goes beyond.
fn border(name: &'static str, sockets: &str, scratch: &Path) -> Result<Relay, String> {
    let example = std::fs::read_to_string(root().join("examples/loopback.toml"))
        .map_err(|error| error.to_string())?;
    let file = scratch.join(format!("relay-{sockets}.toml"));
    std::fs::write(
        &file,
        format!("{example}\n[media]\nsockets = \"{sockets}\"\n[limits]\ncpu_percent = 100000\n"),
    )
    .map_err(|error| format!("{}: {error}", file.display()))?;
    let arguments = [
        &program().display().to_string(),
        "run",
        "-c",
        &file.display().to_string(),
    ];
    Ok(Relay {
        name,
        kind: "border",
        address: "127.0.0.1:5060",
        arguments: arguments.map(str::to_owned).to_vec(),
    })
}

/// rtpengine without kernel module, with one thread and a port range that holds all calls.
fn rtpengine(scratch: &Path) -> Result<Relay, String> {
    let values = [
        ("listen_ip", "127.0.0.1"),
        ("control", "127.0.0.1:2223"),
        ("media_first", "20000"),
        ("media_last", "39999"),
    ];
    Ok(Relay {
        name: "rtpengine, user space",
        kind: "rtpengine",
        address: "127.0.0.1:2223",
        arguments: crate::subjects::command("rtpengine", scratch, &values)?,
    })
}

/// A relay and its load at work.
struct Begun {
    name: &'static str,
    _subject: Running,
    player: Running,
    /// The output of relay and load generator.
    logs: [PathBuf; 2],
}

/// A load: calls, SRTP on the callers' side, and a further word of the load generator.
#[derive(Clone, Copy)]
struct MediaLoad {
    calls: u32,
    keys: bool,
    word: Option<&'static str>,
}

/// Starts a relay and the load on it.
fn begin(
    relay: &Relay,
    load: MediaLoad,
    network: &Network,
    scratch: &Path,
) -> Result<Begun, String> {
    let file = |what: &str| scratch.join(format!("relay-{what}-{}.log", network.number));
    let logs = [file("subject"), file("load")];
    let subject = network.start(SUBJECT_CORE, &relay.arguments, &logs[0])?;
    std::thread::sleep(Duration::from_millis(1_500));
    let player = release().join("examples/relay_load");
    let mut words = vec![
        player.display().to_string(),
        relay.kind.into(),
        relay.address.into(),
        subject.id().to_string(),
        load.calls.to_string(),
        SECONDS.to_string(),
    ];
    if load.keys {
        words.extend(["20".to_owned(), "srtp".to_owned()]);
    }
    words.extend(load.word.map(str::to_owned));
    let player = network.start(LOAD_CORE, &words, &logs[1])?;
    Ok(Begun {
        name: relay.name,
        _subject: subject,
        player,
        logs,
    })
}

/// The line of figures of the load, when it has ended.
fn end(mut run: Begun) -> Result<String, String> {
    let succeeded = run.player.wait(Duration::from_secs(60))?;
    let said = std::fs::read_to_string(&run.logs[1]).map_err(|error| error.to_string())?;
    let line = said
        .lines()
        .find(|line| line.starts_with("calls "))
        .map(str::to_owned);
    match line.filter(|_| succeeded) {
        Some(line) => Ok(line),
        None => {
            let subject = std::fs::read_to_string(&run.logs[0]).unwrap_or_default();
            Err(format!("{}: {said}\n{subject}", run.name))
        }
    }
}

/// Microseconds of CPU per packet.
fn micros(line: &str) -> Result<f64, String> {
    figure(line, "us/packet").ok_or(format!("no figure in: {line}"))
}

/// The number before `name` in a line of figures.
pub(super) fn figure(line: &str, name: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// A network namespace with a loopback; gone when dropped. The network of the machine where that is not allowed.
pub(super) struct Network {
    name: Option<String>,
    /// Which of this program's.
    number: u32,
}

static MADE: AtomicU32 = AtomicU32::new(0);

impl Network {
    /// Its name; none for the network of the machine.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn new() -> Result<Network, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("hornwork-bench-{}-{number}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            println!(
                "  (no network namespace is allowed here: the machine's own loopback carries the load)"
            );
            return Ok(Network { name: None, number });
        }
        let network = Network {
            name: Some(name.clone()),
            number,
        };
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
        if let Some(name) = &self.name {
            inside = format!("--net=/run/netns/{name}");
            words.splice(0..0, ["nsenter", &inside]);
        }
        let (program, arguments) = words.split_first().ok_or("nothing to start")?;
        Running::start(core, program, arguments, log)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A namespace that is left behind is visible in `ip netns`.
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}
