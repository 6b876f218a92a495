//! Streams over a link of this machine that others fill: two networks of their own with a pair of virtual interfaces between them,
//! whose rate the kernel holds down, divided into shares by `hornwork isolate` or not at all.

use super::sockets::{drop_remarks, kernel, watch};
use super::{Cast, HostThread, Outcomes, Patience, Place, Trial, from_start, held, merge};
use crate::error::LabError;
use crate::experiment::Link;
use crate::host::Progress;
use crate::raw::Surroundings;
use engine::{Entropy, Time};
use net::{Clock, Network, NoiseSampler};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LEAD: Duration = Duration::from_millis(200);
/// The two ends; their networks know nobody else.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
/// The interface through which streams leave, and its other end.
const OUT: &str = "voice0";
const IN: &str = "voice1";
const STREAM_PORT: u16 = 20_000;
const BULK_PORT: u16 = 9_000;
/// Expedited forwarding (RFC 3246): what `hornwork isolate` knows voice by.
const VOICE_POINT: u8 = 46;
/// Octets of Ethernet, IPv4 and UDP around a payload.
const AROUND: usize = 14 + 20 + 8;
/// Bulk is sent in trains, one each millisecond.
const TRAIN: Duration = Duration::from_millis(1);

fn refused(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::cannot(
        format!("a link of its own: {what}: {error}"),
        "run it as root (CAP_SYS_ADMIN, CAP_NET_ADMIN) on a kernel with veth, HTB and TBF, with ip and tc (Debian: iproute2)",
    )
}

/// Does something in a network, on a thread of its own.
fn inside<R: Send>(
    network: &Network,
    job: impl FnOnce() -> Result<R, LabError> + Send,
) -> Result<R, LabError> {
    let whole = || {
        network.enter().map_err(|error| refused("setns", error))?;
        job()
    };
    std::thread::scope(|scope| scope.spawn(whole).join())
        .unwrap_or_else(|_| Err(refused("a thread", "it panicked")))
}

/// Carries out commands in a network; each line is one.
fn commands(network: &Network, lines: &[String]) -> Result<(), LabError> {
    inside(network, || {
        for line in lines {
            let mut words = line.split(' ');
            let program = words.next().unwrap_or_default();
            let output = Command::new(program).args(words).output();
            let output = output.map_err(|error| refused(program, error))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(refused(line, why));
            }
        }
        Ok(())
    })
}

/// The program that divides an interface: `hornwork`, which is what runs here.
fn program() -> Result<PathBuf, LabError> {
    let path = std::env::current_exe().map_err(|error| refused("the program", error))?;
    match path.file_name().is_some_and(|name| name == "hornwork") {
        true => Ok(path),
        false => Err(LabError::cannot(
            "[link]: hornwork isolate divides it, and this is another program",
            "run it as hornwork lab run",
        )),
    }
}

/// The two networks with the link between them.
fn networks(link: &Link, program: &Path) -> Result<[Arc<Network>; 2], LabError> {
    let make = || Network::new().map_err(|error| refused("unshare", error));
    let (near, far) = (Arc::new(make()?), Arc::new(make()?));
    let rate = link.mbit;
    let mut lines = vec![
        format!("ip link add {OUT} type veth peer name {IN}"),
        format!("ip link set {IN} netns {}", far.path().display()),
        format!("ip addr add {NEAR}/24 dev {OUT}"),
        format!("ip link set {OUT} up"),
    ];
    commands(&near, &lines)?;
    lines = vec![
        format!("ip addr add {FAR}/24 dev {IN}"),
        format!("ip link set {IN} up"),
    ];
    commands(&far, &lines)?;
    lines = match link.shares {
        // A bucket of 2 ms; what it does not let through waits in one queue for all.
        0 => vec![
            format!(
                "tc qdisc add dev {OUT} root handle 1: tbf rate {rate}mbit burst {} limit 1000000",
                (rate * 1e6 / 8.0 * 0.002).max(16_384.0) as u64
            ),
            format!(
                "tc qdisc add dev {OUT} parent 1:1 pfifo limit {}",
                link.queue
            ),
        ],
        _ => {
            let program = program.display().to_string();
            if program.contains(' ') {
                return Err(refused("the program", "its path has a space in it"));
            }
            vec![format!(
                "{program} isolate {OUT} --rate {}kbit --do apply",
                (rate * 1e3) as u64
            )]
        }
    };
    commands(&near, &lines)?;
    Ok([near, far])
}

/// Traffic that fills the link, and what came of it.
struct Bulk {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    came: Arc<AtomicU64>,
    clock: Clock,
    begun: Time,
    threads: Vec<std::thread::JoinHandle<Result<(), String>>>,
}

impl Bulk {
    fn start(link: &Link, [near, far]: &[Arc<Network>; 2], clock: Clock) -> Result<Bulk, LabError> {
        let over = Arc::new(AtomicBool::new(false));
        let (sent, came) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let length = link.bulk_bytes as usize;
        let rate = link.mbit * 1e6 * link.bulk_percent / 100.0 / 8.0 / (length + AROUND) as f64;
        let say = |error: std::io::Error| error.to_string();
        let (network, stop, count) = (far.clone(), over.clone(), came.clone());
        let receiver = move || -> Result<(), String> {
            network.enter().map_err(say)?;
            let socket = UdpSocket::bind((FAR, BULK_PORT)).map_err(say)?;
            let wait = Some(Duration::from_millis(100));
            socket.set_read_timeout(wait).map_err(say)?;
            let mut room = vec![0; 65_536];
            while !stop.load(Ordering::Relaxed) {
                if socket.recv(&mut room).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let (network, stop, count) = (near.clone(), over.clone(), sent.clone());
        let sender = move || -> Result<(), String> {
            network.enter().map_err(say)?;
            let socket = UdpSocket::bind((NEAR, 0)).map_err(say)?;
            // What a full queue has no room for is lost: bulk that waited for room would not press.
            socket.set_nonblocking(true).map_err(say)?;
            let to = SocketAddr::new(FAR, BULK_PORT);
            let payload = vec![0; length];
            let begun = clock.now();
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let due = (clock.now().since(begun).as_secs_f64() * rate) as u64;
                // Who was kept from running does not catch up with more than a tenth of a second.
                number = number.max(due.saturating_sub((rate / 10.0) as u64));
                while number < due {
                    let _ = socket.send_to(&payload, to);
                    number += 1;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(TRAIN);
            }
            Ok(())
        };
        let cannot = |error: std::io::Error| refused("a thread", error);
        let threads = vec![
            std::thread::Builder::new()
                .name("bulk in".to_owned())
                .spawn(receiver)
                .map_err(cannot)?,
            std::thread::Builder::new()
                .name("bulk out".to_owned())
                .spawn(sender)
                .map_err(cannot)?,
        ];
        Ok(Bulk {
            over,
            sent,
            came,
            clock,
            begun: clock.now(),
            threads,
        })
    }

    /// Ends it: packets sent, packets that came, and how long it was there.
    fn stop(mut self) -> Result<([u64; 2], Duration), LabError> {
        self.over.store(true, Ordering::Relaxed);
        let span = self.clock.now().since(self.begun);
        for thread in std::mem::take(&mut self.threads) {
            let done = thread
                .join()
                .unwrap_or_else(|_| Err("it panicked".to_owned()));
            done.map_err(|why| refused("bulk traffic", why))?;
        }
        let counts = [&self.sent, &self.came].map(|count| count.load(Ordering::Relaxed));
        Ok((counts, span))
    }
}

impl Drop for Bulk {
    /// A trial that broke off leaves no traffic behind.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Runs a trial.
///
/// # Errors
/// Where this machine cannot run it, or the program that divides the link is not known.
pub(super) fn on_sockets(
    trial: &Trial,
    mut progress: impl FnMut(f64, &Progress),
) -> Result<Outcomes, LabError> {
    let experiment = &trial.experiment;
    let link = experiment
        .link
        .as_ref()
        .ok_or_else(|| LabError::bad("no [link]"))?;
    let streams = experiment
        .streams
        .as_ref()
        .ok_or_else(|| LabError::bad("[link] needs [streams]"))?;
    let program = program()?;
    let networks = networks(link, &program)?;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let cast = Cast::of(experiment, NEAR, FAR, STREAM_PORT)?;
    let (near_plans, far_plans) = cast.shared(&experiment.generator, entropy.u64())?;
    let mut start_all = |plans: Vec<_>,
                         network: &Arc<Network>|
     -> Result<Vec<HostThread>, LabError> {
        let place = Place {
            network: Some(network.clone()),
            media_dscp: VOICE_POINT,
        };
        let start = |plan| HostThread::start_in(place.clone(), plan, None, entropy.fork(), clock);
        plans.into_iter().map(start).collect()
    };
    let far = start_all(far_plans, &networks[1])?;
    let near = start_all(near_plans, &networks[0])?;
    let sampler = NoiseSampler::start(Duration::from_millis(1), None)
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let kernel_before = inside(&networks[1], kernel)?;
    let bulk = Bulk::start(link, &networks, clock)?;
    let begin = clock.now() + LEAD;
    for host in far.iter().chain(&near) {
        host.begin(SocketAddr::new(FAR, STREAM_PORT), begin)?;
    }
    watch(
        Patience::of(experiment),
        &near,
        clock,
        begin,
        |seconds, seen| {
            progress(seconds, seen);
            Ok(())
        },
    )?;
    let end = clock.now();
    // What stands in the queue still comes.
    std::thread::sleep(Duration::from_millis(300));
    let (counts, span) = bulk.stop()?;
    let noise = sampler
        .stop()
        .map_err(|error| LabError::cannot(format!("noise sampler: {error}"), ""))?;
    let kernel_after = inside(&networks[1], kernel)?;
    let finish = |hosts: Vec<HostThread>| -> Result<Vec<_>, LabError> {
        hosts.into_iter().map(HostThread::finish).collect()
    };
    let (near, far) = (finish(near)?, finish(far)?);
    let mut remarks = vec![words(link, streams.count, counts, span)];
    let asked = link.mbit * 1e6 * link.bulk_percent / 100.0 / 8.0 * span.as_secs_f64();
    if ((counts[0] as usize * (link.bulk_bytes as usize + AROUND)) as f64) < asked * 0.95 {
        remarks.push("this machine could not send all the bulk that was asked for".to_owned());
    }
    if link.shares == 0 {
        remarks.push(
            "nothing divides the link here: what is lost is shown, and not judged".to_owned(),
        );
    }
    remarks.extend(drop_remarks(&near, &far));
    let all = || near.iter().chain(&far);
    let generator_cpu = all().map(|host| host.cpu_seconds).sum();
    let callers_cpu = near.iter().map(|host| host.cpu_seconds).sum();
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near.into_iter().chain(far).map(|host| host.results);
    let (attempts, streams) = merge(trial.number, results.collect());
    let (attempts, streams) = from_start(attempts, streams, begin);
    Ok(Outcomes {
        attempts,
        streams,
        seconds: end.since(begin).as_secs_f64(),
        leaks: Some(held(&holdings)),
        remarks,
        surroundings: Some(Surroundings {
            noise: noise.into(),
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            subject_cpu_seconds: None,
            subject_grew_bytes: None,
            generator_cpu_seconds: generator_cpu,
            callers_cpu_seconds: callers_cpu,
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot(format!("/proc: {error}"), ""))?,
        }),
        ..Outcomes::default()
    })
}

/// What the link was, and what filled it.
fn words(link: &Link, streams: u64, [sent, came]: [u64; 2], span: Duration) -> String {
    let second = |count: u64| count as f64 / span.as_secs_f64().max(0.001);
    let mbit = |count: u64| second(count) * (link.bulk_bytes as usize + AROUND) as f64 * 8.0 / 1e6;
    format!(
        "link emulated at {} Mbit/s ({} of the study's 1 Gbit/s); voice {} packets/s; bulk of {} bytes: {:.0} packets/s offered ({:.0} Mbit/s), {:.0} came ({:.0} Mbit/s)",
        crate::report::plain(link.mbit),
        crate::report::plain(link.mbit / 1e3),
        streams * 50,
        link.bulk_bytes,
        second(sent),
        mbit(sent),
        second(came),
        mbit(came)
    )
}
