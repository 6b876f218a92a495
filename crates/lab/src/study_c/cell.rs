//! One cell of the matrix: a call over a line with a protection, captured at both hosts with one clock.

use super::bench::{Bench, in_network};
use super::captures::{self, Capture, media_payload};
use super::media::{LEAD, MediaSource, MediaSrtp, RTP};
use super::model::Tunnel;
use super::record::{CellPlan, CellRecord, PacketCount};
use crate::emulator::ends::EndName;
use crate::emulator::engine::{RealTimeLink, prepare_thread};
use crate::emulator::settings::{DIRECTIONS, profile};
use crate::emulator::{LATE_MS, LatenessBound, faults, line_json};
use crate::esp::line;
use crate::figures::quantile;
use crate::raw::NoiseRecord;
use engine::{Entropy, Time};
use net::{Clock, Network, PacketSocket};
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time after the last packet: the longest queue of the slowest line, and the longest delay.
pub(super) const DRAIN: Duration = Duration::from_millis(2_600);

/// Lateness of the hosts' sending above which a cell is not judged, milliseconds (99th percentile): a part of the
/// shortest packet time.
const SENDER_LATE_MS: f64 = 10.0;

/// Runs a cell. An obstacle is part of the record.
pub fn run(plan: &CellPlan<'_>) -> CellRecord {
    let mut record = CellRecord::of(plan);
    if let Err(cause) = measure(plan, &mut record) {
        record.cause = Some(cause);
    }
    record
}

fn measure(plan: &CellPlan<'_>, record: &mut CellRecord) -> Result<(), String> {
    let clock = Clock::new();
    let stop = AtomicBool::new(false);
    let mut bench = Bench::new(plan.number, plan.dir)?;
    let settings = profile(plan.network.profile)?;
    let line_network = bench.networks[2].clone();
    let ends = ["la", "lb"].map(|name| EndName::Interface(name.to_owned()));
    let entropy = Entropy::from_number(plan.seed);
    let opened = in_network(&line_network, || {
        RealTimeLink::open(&ends, &settings, entropy, clock).map_err(|error| error.to_string())
    });
    let mut link = opened??;
    let call = std::thread::scope(|scope| {
        let (link, stop) = (&mut link, &stop);
        let forwarder = scope.spawn(move || {
            line_network.enter().map_err(|error| error.to_string())?;
            prepare_thread();
            let ran = link.run(Time::NEVER, stop, None);
            ran.map_err(|error| error.to_string())
        });
        // The tunnel is set up over the line.
        let result = bench.protect(&plan.protection).and_then(|()| {
            let called = call(plan, &bench, clock);
            // A tunnel that has ended is the cause of errors in the call.
            bench.check().and(called)
        });
        stop.store(true, Ordering::Relaxed);
        let carried = forwarder.join();
        carried.unwrap_or_else(|_| Err("the line's thread panicked".to_owned()))?;
        result
    })?;
    let captures = &call.captures;
    captures::evaluate(plan, captures, record)?;
    let figures = link.figures();
    record.faults = faults(&figures, &call.noise, LatenessBound::of_any(LATE_MS));
    record.sender_late_p99_ms = call.late_ms;
    record.faults.extend(late_sender(call.late_ms));
    record.protected = call.srtp;
    if let Some(gateways) = bench.finish_gateways()? {
        record.faults.extend(line::faults(&gateways));
        let [first, second] = gateways.map(|gateway| PacketCount {
            accepted: gateway.opened,
            refused: gateway.refused,
        });
        record.protected = Some(first.with(second));
    }
    let refused = record.protected.and_then(PacketCount::fault);
    record.faults.extend(refused);
    let lines = figures.iter().zip(DIRECTIONS);
    record.line = lines.map(|(line, name)| line_json(line, name)).collect();
    let packets: u64 = figures.iter().map(|line| line.counts.arrived).sum();
    let bytes: u64 = figures.iter().map(|line| line.bytes).sum();
    record.line_packet_bytes = (packets > 0).then(|| bytes as f64 / packets as f64 - 14.0);
    let paths = captures::store(plan, captures, record)?;
    if plan.with_tshark {
        captures::compare(&paths, &bench.media_addresses, record);
    }
    Ok(())
}

/// The reason, if a host did not send in time: packets that come together fill the queue of a slow line, which is none
/// of the protection.
fn late_sender(late_p99_ms: Option<f64>) -> Option<String> {
    let late = late_p99_ms.filter(|late| *late > SENDER_LATE_MS)?;
    Some(format!(
        "a host sent its media {late:.1} ms late (99th percentile), more than {SENDER_LATE_MS} ms"
    ))
}

/// A call that was made.
struct CapturedCall {
    /// Of both hosts.
    captures: [Capture; 2],
    /// That of the machine.
    noise: NoiseRecord,
    /// Lateness of the senders, 99th percentile, milliseconds.
    late_ms: Option<f64>,
    /// Packets of SRTP that have arrived.
    srtp: Option<PacketCount>,
}

/// SRTP of both hosts, if the cell has it.
fn security(plan: &CellPlan<'_>) -> Result<[Option<MediaSrtp>; 2], String> {
    match plan.protection.tunnel {
        Tunnel::Srtp => MediaSrtp::pair(plan.seed).map(|both| both.map(Some)),
        _ => Ok([None, None]),
    }
}

/// The call: both hosts send and capture.
fn call(plan: &CellPlan<'_>, bench: &Bench, clock: Clock) -> Result<CapturedCall, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut securities = security(plan)?.into_iter();
    let sampler = net::NoiseSampler::start(Duration::from_millis(1), None).map_err(text)?;
    let begin = clock.now() + LEAD;
    let end = begin + plan.span;
    let captures = std::thread::scope(|scope| {
        let ends = [0, 1].map(|side: usize| {
            let mut security = securities.next().flatten();
            let network = &bench.networks[side];
            let interface = &bench.media_interfaces[side];
            let capture = scope.spawn(move || capture(network, interface, clock, end + DRAIN));
            let addresses = [bench.media_addresses[side], bench.media_addresses[1 - side]];
            let sender = scope.spawn(move || {
                network.enter()?;
                let source = MediaSource::new(plan.codec, side);
                let late = send(&source, &mut security, addresses, clock, (begin, end))?;
                Ok::<_, std::io::Error>((late, security.map(|security| security.count)))
            });
            (capture, sender)
        });
        let mut captures = Vec::new();
        let mut late = Vec::new();
        let mut srtp: Option<PacketCount> = None;
        for (capture, sender) in ends {
            let panicked = |_| std::io::Error::other("a thread panicked");
            let (of_sender, count) = sender.join().map_err(panicked)??;
            late.extend(of_sender);
            srtp = match (srtp, count) {
                (Some(before), Some(count)) => Some(before.with(count)),
                (before, count) => count.or(before),
            };
            captures.push(capture.join().map_err(panicked)??);
        }
        let second = captures.pop().unwrap_or_default();
        let first = captures.pop().unwrap_or_default();
        late.sort_by(f64::total_cmp);
        Ok(([first, second], quantile(&late, 0.99), srtp))
    });
    let noise = sampler.stop().map_err(text)?;
    if net::stops() > 0 {
        return Err("interrupted".to_owned());
    }
    let (captures, late_ms, srtp) = captures.map_err(text)?;
    Ok(CapturedCall {
        captures,
        noise: noise.into(),
        late_ms,
        srtp,
    })
}

fn capture(
    network: &Network,
    interface: &str,
    clock: Clock,
    end: Time,
) -> std::io::Result<Capture> {
    network.enter()?;
    let mut socket = PacketSocket::capture(interface)?;
    let has_ethernet = socket.info().has_ethernet;
    prepare_thread();
    let mut frames = Capture::new();
    while clock.now() < end && net::stops() == 0 {
        let received = socket.receive(&clock, &mut |frame| {
            if media_payload(frame.bytes, has_ethernet).is_some() {
                frames.push((clock.unix_nanos(frame.at), frame.bytes.to_vec()));
            }
        })?;
        if received == 0 {
            net::wait_readable(&[socket.as_fd()], Duration::from_millis(10));
        }
    }
    if socket.counts().kernel_drops > 0 {
        return Err(std::io::Error::other(
            "the kernel dropped frames before the capture read them",
        ));
    }
    Ok(frames)
}

/// A packet as it leaves the host.
fn sealed(
    security: &mut Option<MediaSrtp>,
    packet: Vec<u8>,
    is_rtcp: bool,
) -> std::io::Result<Vec<u8>> {
    match security.as_mut() {
        Some(security) => security
            .seal(packet, is_rtcp)
            .map_err(std::io::Error::other),
        None => Ok(packet),
    }
}

/// Reads the packets that have arrived at the sockets of RTP and RTCP.
fn drain(sockets: [&UdpSocket; 2], security: &mut Option<MediaSrtp>) {
    let mut room = [0; 2_048];
    for (socket, is_rtcp) in sockets.into_iter().zip([false, true]) {
        while let Ok(length) = socket.recv(&mut room) {
            if let (Some(security), Some(packet)) = (security.as_mut(), room.get_mut(..length)) {
                security.open(packet, is_rtcp);
            }
        }
    }
}

/// Sends the media of a host; returns the lateness of each packet, milliseconds.
fn send(
    source: &MediaSource,
    security: &mut Option<MediaSrtp>,
    addresses: [std::net::IpAddr; 2],
    clock: Clock,
    (begin, end): (Time, Time),
) -> std::io::Result<Vec<f64>> {
    let socket = |port| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind((addresses[0], port))?;
        socket.connect((addresses[1], port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (rtp, rtcp) = (socket(RTP)?, socket(RTP + 1)?);
    prepare_thread();
    let mut late = Vec::new();
    for number in 0u32.. {
        let due = begin + source.due(number);
        if due >= end || net::stops() > 0 {
            break;
        }
        clock.sleep_until(due, Duration::ZERO);
        late.push(clock.now().since(due).as_secs_f64() * 1e3);
        // A full queue of the host is a loss before the capture: it is not sent.
        let _ = rtp.send(&sealed(security, source.packet(number), false)?);
        if let Some(report) = source.report(number) {
            let _ = rtcp.send(&sealed(security, report, true)?);
        }
        drain([&rtp, &rtcp], security);
    }
    // Packets that still arrive find their port open.
    clock.sleep_until(end + DRAIN, Duration::ZERO);
    drain([&rtp, &rtcp], security);
    Ok(late)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_c::model::{CODECS, NETWORKS, PROTECTIONS};
    use std::path::Path;
    use std::process::Command;

    /// Whether this machine permits the test bed, and has the programs.
    fn able() -> bool {
        let may = Command::new("unshare").args(["-n", "-m", "true"]).status();
        let able = may.is_ok_and(|status| status.success())
            && [
                "/usr/sbin/swanctl",
                "/usr/lib/ipsec/charon",
                "/usr/sbin/nft",
            ]
            .iter()
            .all(|program| Path::new(program).exists())
            && Path::new("/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so").exists()
            && Path::new("/dev/net/tun").exists();
        if !able {
            eprintln!(
                "skipped: no right to namespaces, or strongSwan with kernel-libipsec or nft is not installed"
            );
        }
        able
    }

    #[test]
    fn sender_that_stalls_is_a_fault_of_the_cell() {
        assert_eq!(late_sender(None), None);
        assert_eq!(late_sender(Some(9.9)), None);
        assert!(late_sender(Some(10.1)).unwrap().contains("10.1 ms late"));
        // The lateness is that of the sending: here the first packet was due 30 ms before.
        let clock = Clock::new();
        let source = MediaSource::new(CODECS[0], 0);
        let loopback = [std::net::IpAddr::from([127, 96, 0, 1]); 2];
        let sleep = Duration::from_millis(40);
        std::thread::sleep(sleep);
        let begin = clock.now() + Duration::ZERO;
        std::thread::sleep(sleep);
        let late = send(&source, &mut None, loopback, clock, (begin, begin + sleep)).unwrap();
        assert!(late[0] >= 39.0, "{late:?}");
    }

    /// A cell of two seconds in the network of 100 Mbit/s.
    fn cell(number: usize, protection: &str, dir: &Path) -> CellRecord {
        let network = NETWORKS.into_iter().find(|known| known.name == "lan-100");
        let protection = PROTECTIONS
            .into_iter()
            .find(|known| known.name == protection);
        run(&CellPlan {
            number,
            codec: CODECS[0],
            network: network.unwrap(),
            protection: protection.unwrap(),
            repetition: 0,
            span: Duration::from_secs(2),
            seed: 1,
            dir,
            with_tshark: false,
        })
    }

    #[test]
    fn srtp_and_our_esp_carry_a_call() {
        let may = Command::new("unshare").args(["-n", "true"]).status();
        let has_nft = Command::new("nft").arg("--version").output().is_ok();
        if !may.is_ok_and(|status| status.success()) || !has_nft {
            eprintln!("skipped: no right to namespaces, or nft is not installed");
            return;
        }
        let dir = std::env::temp_dir().join(format!("hornwork-own-cells-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // 64 bytes in the clear; an SRTP packet has a tag of 10, ESP adds its format.
        for (number, protection, bytes) in [
            (20, "srtp", 74.0),
            (21, "esp-aes-gcm", 120.0),
            (22, "esp-aes-cbc-sha1", 136.0),
        ] {
            let record = cell(number, protection, &dir);
            assert_eq!(record.cause, None, "{record:?}");
            let sent: u64 = record.sent.iter().sum();
            let arrived: u64 = record.arrived.iter().sum();
            assert!(sent > 120 && arrived + 6 > sent, "{protection}: {record:?}");
            // The probe of a tunnel is smaller than the media.
            let on_line = record.line_packet_bytes.unwrap();
            assert!((bytes - 2.0..bytes + 2.0).contains(&on_line), "{on_line}");
            let count = record.protected.unwrap();
            assert!(
                count.accepted >= arrived && count.refused == 0,
                "{protection}: {count:?}"
            );
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn strongswan_carries_a_call_and_leaves_nothing_behind() {
        if !able() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("hornwork-strongswan-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let record = cell(0, "strongswan", &dir);
        assert_eq!(record.cause, None, "{record:?}");
        // 2 s of packets each 30 ms, both ways; a machine that stalls loses none in the tunnel.
        let sent: u64 = record.sent.iter().sum();
        let arrived: u64 = record.arrived.iter().sum();
        assert!(sent > 120 && arrived + 6 > sent, "{record:?}");
        // The line has seen ESP in UDP: 128 bytes for the 64 of a packet in the clear.
        let bytes = record.line_packet_bytes.unwrap();
        assert!((125.0..140.0).contains(&bytes), "{bytes}");
        let own = format!("hwc-{}-0", std::process::id());
        let left = |folder: &Path| {
            std::fs::read_dir(folder).is_ok_and(|entries| {
                let mut names = entries
                    .flatten()
                    .filter_map(|entry| entry.file_name().into_string().ok());
                names.any(|name| name.starts_with(&own))
            })
        };
        assert!(!left(Path::new("/run/netns")) && !left(&std::env::temp_dir()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
