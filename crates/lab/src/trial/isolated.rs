//! Voice streams over a link that bulk traffic fills: two network namespaces with a pair of virtual interfaces between
//! them, whose rate the kernel limits, either divided into shares by `hornwork isolate` or undivided.

use super::machine::receive_buffer_errors;
use super::namespaces::{commands, in_namespace, link_error};
use super::progress::{drop_remarks, kernel_drops, unparsable, watch};
use super::{
    HostPlacement, HostThread, Outcomes, Trial, TrialHosts, WaitLimits, from_start, merge,
    total_held,
};
use crate::error::LabError;
use crate::experiment::LinkSettings;
use crate::host::HostProgress;
use crate::raw::{LinkRecord, SendLateness, SocketShortage, Surroundings};
use engine::{Entropy, Time};
use net::{Clock, Network, NoiseSampler};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LEAD: Duration = Duration::from_millis(200);
/// Addresses of the two ends; their namespaces contain no other hosts.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
/// The sending interface, and its other end.
const OUT: &str = "voice0";
const IN: &str = "voice1";
const STREAM_PORT: u16 = 20_000;
const BULK_PORT: u16 = 9_000;
/// Code point of expedited forwarding (RFC 3246), by which `hornwork isolate` classifies voice.
const VOICE_DSCP: u8 = 46;
/// Octets of the Ethernet, IPv4 and UDP headers.
const HEADER_OCTETS: usize = 14 + 20 + 8;
/// Bulk is sent in bursts, one per millisecond.
const BURST_INTERVAL: Duration = Duration::from_millis(1);
/// Memory of a bulk packet in the kernel, with its administration, at most.
const PACKET_MEMORY: usize = 4 << 10;
/// Packets beside those of the queue for which the sender has a buffer.
const SPARE_PACKETS: usize = 64;
/// Share of the planned bulk, and of the rate of an undivided link, below which voice had no contention.
const LEAST_SHARE: f64 = 0.95;

/// Path of the program that divides the interface: `hornwork`, the running program.
fn program() -> Result<PathBuf, LabError> {
    let path = std::env::current_exe().map_err(|error| link_error("the program", error))?;
    match path.file_name().is_some_and(|name| name == "hornwork") {
        true => Ok(path),
        false => Err(LabError::cannot_run(
            "[link] needs `hornwork isolate`, but this is another program",
            "run it as hornwork lab run",
        )),
    }
}

/// The two namespaces with the link between them.
fn networks(link: &LinkSettings, program: &Path) -> Result<[Arc<Network>; 2], LabError> {
    let make = || Network::new().map_err(|error| link_error("unshare", error));
    let (near, far) = (Arc::new(make()?), Arc::new(make()?));
    let rate = link.rate_mbit;
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
    lines = match link.isolated {
        // A bucket of 2 ms; the excess waits in one queue for all traffic.
        0 => vec![
            format!(
                "tc qdisc add dev {OUT} root handle 1: tbf rate {rate}mbit burst {} limit 1000000",
                (rate * 1e6 / 8.0 * 0.002).max(16_384.0) as u64
            ),
            format!(
                "tc qdisc add dev {OUT} parent 1:1 pfifo limit {}",
                link.queue_packets
            ),
        ],
        _ => {
            let program = program.display().to_string();
            if program.contains(' ') {
                return Err(link_error("the program", "its path contains a space"));
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

/// Bulk packets each second of the plan.
fn bulk_rate(link: &LinkSettings) -> f64 {
    let packet = (link.bulk_bytes as usize + HEADER_OCTETS) as f64;
    link.rate_mbit * 1e6 * link.bulk_percent / 100.0 / 8.0 / packet
}

/// Packets of the bulk traffic, and all bytes on the link meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct BulkCounts {
    /// Taken by the kernel; its queue drops those in excess.
    sent: u64,
    /// Refused by the kernel, because the buffer of the sending socket was full.
    refused: u64,
    received: u64,
    /// Voice included.
    carried_bytes: u64,
}

/// Why the link had no contention for `span`, if so: without it, voice that is not lost says nothing of the shares.
fn shortage(link: &LinkSettings, counts: &BulkCounts, span: Duration) -> Option<String> {
    let seconds = span.as_secs_f64().max(0.001);
    let planned = bulk_rate(link) * seconds;
    let offered = (counts.sent + counts.refused) as f64;
    if offered < planned * LEAST_SHARE {
        return Some(format!(
            "this machine sent {offered:.0} of {planned:.0} packets of bulk traffic"
        ));
    }
    // An undivided link is full if bulk alone fills it.
    let fills = link.isolated == 0 && link.bulk_percent >= 100.0;
    let mbit = counts.carried_bytes as f64 * 8.0 / 1e6 / seconds;
    (fills && mbit < link.rate_mbit * LEAST_SHARE).then(|| {
        format!(
            "the link was not full: it carried {mbit:.1} of {} Mbit/s",
            crate::decimal::plain(link.rate_mbit)
        )
    })
}

/// The record of bulk traffic that did not fill the link.
fn bulk_record(link: &LinkSettings, counts: &BulkCounts, span: Duration) -> Option<LinkRecord> {
    let fault = shortage(link, counts, span)?;
    Some(LinkRecord {
        name: "bulk".to_owned(),
        faults: vec![format!("bulk: {fault}")],
        ..LinkRecord::default()
    })
}

/// Bytes that have arrived at the other end.
fn carried_bytes(far: &Network) -> Result<u64, LabError> {
    in_namespace(far, || {
        net::interface_counters(IN)
            .map(|counters| counters.received_bytes)
            .map_err(|error| link_error("/proc/thread-self/net/dev", error))
    })
}

/// Traffic that fills the link, and its counters.
struct Bulk {
    stopped: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    clock: Clock,
    begun: Time,
    threads: Vec<std::thread::JoinHandle<Result<(), String>>>,
}

impl Bulk {
    fn start(
        link: &LinkSettings,
        [near, far]: &[Arc<Network>; 2],
        clock: Clock,
    ) -> Result<Bulk, LabError> {
        let stopped = Arc::new(AtomicBool::new(false));
        let [sent, refused, received]: [Arc<AtomicU64>; 3] = Default::default();
        let length = link.bulk_bytes as usize;
        let rate = bulk_rate(link);
        // With a smaller buffer than the link's queue the socket would refuse packets before the queue is full.
        let buffer = (link.queue_packets as usize)
            .saturating_add(SPARE_PACKETS)
            .saturating_mul(PACKET_MEMORY);
        let text_of = |error: std::io::Error| error.to_string();
        let (network, stop, count) = (far.clone(), stopped.clone(), received.clone());
        let receiver = move || -> Result<(), String> {
            network.enter().map_err(text_of)?;
            let socket = UdpSocket::bind((FAR, BULK_PORT)).map_err(text_of)?;
            let wait = Some(Duration::from_millis(100));
            socket.set_read_timeout(wait).map_err(text_of)?;
            let mut room = vec![0; 65_536];
            while !stop.load(Ordering::Relaxed) {
                if socket.recv(&mut room).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let (network, stop) = (near.clone(), stopped.clone());
        let (taken, not_taken) = (sent.clone(), refused.clone());
        let sender = move || -> Result<(), String> {
            network.enter().map_err(text_of)?;
            let socket = UdpSocket::bind((NEAR, 0)).map_err(text_of)?;
            // Bulk beyond a full queue is dropped; a blocking sender would not fill the link.
            socket.set_nonblocking(true).map_err(text_of)?;
            net::request_send_buffer(socket.as_fd(), buffer).map_err(text_of)?;
            let to = SocketAddr::new(FAR, BULK_PORT);
            let payload = vec![0; length];
            let begun = clock.now();
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let due = (clock.now().since(begun).as_secs_f64() * rate) as u64;
                // A sender that was not scheduled catches up by at most a tenth of a second.
                number = number.max(due.saturating_sub((rate / 10.0) as u64));
                while number < due {
                    let count = match socket.send_to(&payload, to) {
                        Ok(_) => &taken,
                        Err(_) => &not_taken,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    number += 1;
                }
                std::thread::sleep(BURST_INTERVAL);
            }
            Ok(())
        };
        let cannot = |error: std::io::Error| link_error("a thread", error);
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
            stopped,
            sent,
            refused,
            received,
            clock,
            begun: clock.now(),
            threads,
        })
    }

    /// Stops it; returns its packets, and the duration.
    fn stop(mut self) -> Result<(BulkCounts, Duration), LabError> {
        self.stopped.store(true, Ordering::Relaxed);
        let span = self.clock.now().since(self.begun);
        for thread in std::mem::take(&mut self.threads) {
            let done = thread
                .join()
                .unwrap_or_else(|_| Err("it panicked".to_owned()));
            done.map_err(|why| link_error("bulk traffic", why))?;
        }
        let [sent, refused, received] =
            [&self.sent, &self.refused, &self.received].map(|count| count.load(Ordering::Relaxed));
        let counts = BulkCounts {
            sent,
            refused,
            received,
            carried_bytes: 0,
        };
        Ok((counts, span))
    }
}

impl Drop for Bulk {
    /// An aborted trial leaves no traffic behind.
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Runs a trial.
///
/// # Errors
/// If this machine cannot run it, or the path of the program that divides the link is unknown.
pub(super) fn on_sockets(
    trial: &Trial,
    mut progress: impl FnMut(f64, &HostProgress),
) -> Result<Outcomes, LabError> {
    let experiment = &trial.experiment;
    let link = experiment
        .link
        .as_ref()
        .ok_or_else(|| LabError::bad_input("no [link]"))?;
    let streams = experiment
        .streams
        .as_ref()
        .ok_or_else(|| LabError::bad_input("[link] needs [streams]"))?;
    let program = program()?;
    let networks = networks(link, &program)?;
    let clock = Clock::new();
    let mut entropy = Entropy::from_number(trial.seed);
    let cast = TrialHosts::of(experiment, NEAR, FAR, STREAM_PORT)?;
    let (near_plans, far_plans) = cast.split(&experiment.generator, entropy.u64())?;
    let mut start_all = |plans: Vec<_>,
                         network: &Arc<Network>|
     -> Result<Vec<HostThread>, LabError> {
        let place = HostPlacement {
            network: Some(network.clone()),
            media_dscp: VOICE_DSCP,
        };
        let start = |plan| HostThread::start_in(place.clone(), plan, None, entropy.fork(), clock);
        plans.into_iter().map(start).collect()
    };
    let far = start_all(far_plans, &networks[1])?;
    let near = start_all(near_plans, &networks[0])?;
    let sampler = NoiseSampler::start(Duration::from_millis(1), None).map_err(|error| {
        LabError::cannot_run(
            format!("cannot start the noise sampler: {error}"),
            "raise the limit of threads (ulimit -u)",
        )
    })?;
    let kernel_before = in_namespace(&networks[1], receive_buffer_errors)?;
    let carried_before = carried_bytes(&networks[1])?;
    let bulk = Bulk::start(link, &networks, clock)?;
    let begin = clock.now() + LEAD;
    for host in far.iter().chain(&near) {
        host.begin(SocketAddr::new(FAR, STREAM_PORT), begin)?;
    }
    watch(
        WaitLimits::of(experiment),
        &near,
        clock,
        begin,
        |seconds, seen| {
            progress(seconds, seen);
            Ok(ControlFlow::Continue(()))
        },
    )?;
    let end = clock.now();
    // Queued packets still arrive.
    std::thread::sleep(Duration::from_millis(300));
    let (mut counts, span) = bulk.stop()?;
    counts.carried_bytes = carried_bytes(&networks[1])?.saturating_sub(carried_before);
    let noise = sampler
        .stop()
        .map_err(|error| LabError::cannot_run(format!("noise sampler: {error}"), ""))?;
    let kernel_after = in_namespace(&networks[1], receive_buffer_errors)?;
    let finish = |hosts: Vec<HostThread>| -> Result<Vec<_>, LabError> {
        hosts.into_iter().map(HostThread::finish).collect()
    };
    let (near, far) = (finish(near)?, finish(far)?);
    let mut remarks = vec![describe(link, streams.count, &counts, span)];
    if link.isolated == 0 {
        remarks.push("the link is not divided: losses are shown but not judged".to_owned());
    }
    remarks.extend(drop_remarks(&near, &far));
    let all = || near.iter().chain(&far);
    let generator_cpu = all().map(|host| host.cpu_seconds).sum();
    let callers_cpu = near.iter().map(|host| host.cpu_seconds).sum();
    let generator_drops = kernel_drops(all());
    let generator_unparsable = unparsable(all());
    let generator_shortage = SocketShortage::of_all(all().map(|host| &host.results.shortage));
    let send_lateness = SendLateness::of(all().map(|host| &host.results.send_times));
    let holdings: Vec<_> = all().map(|host| host.holdings).collect();
    let results = near.into_iter().chain(far).map(|host| host.results);
    let (attempts, streams) = merge(trial.number, results.collect());
    let (attempts, streams) = from_start(attempts, streams, begin);
    Ok(Outcomes {
        attempts,
        streams,
        seconds: end.since(begin).as_secs_f64(),
        leaks: Some(total_held(&holdings)),
        remarks,
        links: bulk_record(link, &counts, span).into_iter().collect(),
        surroundings: Some(Surroundings {
            noise: noise.into(),
            own_noise: None,
            receive_buffer_errors_before: kernel_before,
            receive_buffer_errors_after: kernel_after,
            generator_drops,
            generator_unparsable,
            generator_shortage,
            subject_cpu_seconds: None,
            subject_waited_seconds: None,
            subject_grew_bytes: None,
            generator_cpu_seconds: generator_cpu,
            callers_cpu_seconds: callers_cpu,
            send_lateness,
            generator_is_realtime: false,
            other_programs_percent: None,
            resident_bytes: net::resident_bytes()
                .map_err(|error| LabError::cannot_run(format!("/proc: {error}"), ""))?,
        }),
        ..Outcomes::default()
    })
}

/// Description of the link and of the traffic on it.
fn describe(link: &LinkSettings, streams: u64, counts: &BulkCounts, span: Duration) -> String {
    let second = |count: u64| count as f64 / span.as_secs_f64().max(0.001);
    let mbit =
        |count: u64| second(count) * (link.bulk_bytes as usize + HEADER_OCTETS) as f64 * 8.0 / 1e6;
    let refused = match counts.refused {
        0 => String::new(),
        refused => format!(", {:.0} refused by the socket", second(refused)),
    };
    let (sent, received) = (counts.sent, counts.received);
    format!(
        "link emulated at {} Mbit/s ({} of the study's 1 Gbit/s); voice {} packets/s; bulk of {} bytes: {:.0} packets/s offered ({:.0} Mbit/s){refused}, {:.0} received ({:.0} Mbit/s)",
        crate::decimal::plain(link.rate_mbit),
        crate::decimal::plain(link.rate_mbit / 1e3),
        streams * 50,
        link.bulk_bytes,
        second(sent),
        mbit(sent),
        second(received),
        mbit(received)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::TrialRecord;

    #[test]
    fn voice_without_contention_is_not_judged() {
        // 1,042 bytes on the link: 13,196 packets each second at 110 % of 100 Mbit/s.
        let link = |isolated: u8| LinkSettings {
            isolated,
            ..LinkSettings::default()
        };
        let span = Duration::from_secs(10);
        let counts = |sent: u64, refused: u64, mbit: f64| BulkCounts {
            sent,
            refused,
            received: 100_000,
            carried_bytes: (mbit * 1e6 / 8.0 * 10.0) as u64,
        };
        let why = |isolated: u8, counts: &BulkCounts| {
            shortage(&link(isolated), counts, span).unwrap_or_default()
        };
        for isolated in [0, 1] {
            assert_eq!(why(isolated, &counts(131_000, 0, 99.0)), "");
            assert_eq!(why(isolated, &counts(100_000, 31_000, 99.0)), "");
            let slow = why(isolated, &counts(60_000, 10_000, 99.0));
            assert!(slow.contains("70000 of 131"), "{slow}");
        }
        // The socket refused so much that the link never had a queue.
        let starved = counts(50_000, 81_000, 45.0);
        assert!(why(0, &starved).contains("carried 45.0 of 100 Mbit/s"));
        // Bulk that does not fill the link is as planned.
        let half = LinkSettings {
            bulk_percent: 50.0,
            ..link(0)
        };
        assert_eq!(shortage(&half, &counts(60_000, 0, 53.0), span), None);
        let trial = TrialRecord {
            links: bulk_record(&link(0), &starved, span).into_iter().collect(),
            ..TrialRecord::default()
        };
        assert!(trial.is_load_invalid());
        assert!(trial.load_fault().unwrap().contains("bulk: the link was"));
    }

    #[test]
    fn bulk_of_the_experiment_is_named_beside_that_of_the_study() {
        let text = crate::experiment::built_in("isolation").unwrap();
        let file = crate::experiment::File::parse("isolation", text).unwrap();
        let experiment = file.experiment();
        let link = experiment.link.as_ref().unwrap();
        assert_eq!((link.bulk_bytes, link.bulk_percent as u32), (1_000, 110));
        let differs = experiment.study.as_ref().unwrap().differs.join("; ");
        assert!(differs.contains("1,000 bytes at 110 %"), "{differs}");
    }
}
