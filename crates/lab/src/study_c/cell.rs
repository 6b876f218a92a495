//! One cell of the matrix: a call over a line with a protection, captured at both hosts with one clock.

use super::bench::{Bench, RTP, in_network};
use super::model::{StudyCodec, StudyNetwork, StudyProtection};
use crate::emulator::ends::EndName;
use crate::emulator::engine::{RealTimeLink, prepare_thread};
use crate::emulator::settings::{DIRECTIONS, profile};
use crate::emulator::{LATE_MS, faults, line_json};
use crate::figures::quantile;
use crate::raw::NoiseRecord;
use crate::statistics::Interval;
use engine::{Entropy, Time};
use net::{Clock, Network, PacketSocket};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;
use wire::rtp::{RtpHeader, RtpView};

/// Synchronisation sources of both directions.
const SSRC: [u32; 2] = [0x0c0a_0001, 0x0c0a_0002];
/// Time between two RTCP reports (RFC 3550 section 6.2).
const RTCP: Duration = Duration::from_secs(5);
/// Time after the last packet: the longest queue of the slowest line, and the longest delay.
const DRAIN: Duration = Duration::from_millis(2_600);
/// Time before the first packet.
const LEAD: Duration = Duration::from_millis(150);
/// Blocks over which a mean is taken for the intervals of latency and jitter, seconds: neighbouring packets wait in the same
/// queue, and are no independent samples.
const BLOCK_S: f64 = 1.0;

/// Plan of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellPlan<'a> {
    /// Number in the run.
    pub number: usize,
    /// Codec.
    pub codec: StudyCodec,
    /// Network.
    pub network: StudyNetwork,
    /// Protection.
    pub protection: StudyProtection,
    /// Repetition, from 0.
    pub repetition: u32,
    /// Duration of the call.
    pub span: Duration,
    /// Seed of the line.
    pub seed: u64,
    /// Directory for captures and logs.
    pub dir: &'a Path,
    /// Whether tshark measures the capture, too.
    pub with_tshark: bool,
}

impl CellPlan<'_> {
    /// Name of its files.
    pub fn name(&self) -> String {
        format!(
            "{}-{}-{}-{}",
            self.codec.name, self.network.name, self.protection.name, self.repetition
        )
    }
}

/// A mean with its interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CellFigure {
    /// Value; `null` without one.
    pub value: Option<f64>,
    /// Means of the blocks.
    pub blocks: Vec<f64>,
}

/// Figures of tshark.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TsharkFigures {
    /// Packets lost, of the stream from the first to the second host.
    pub lost: i64,
    /// Mean jitter, milliseconds.
    pub jitter_ms: f64,
    /// Largest time between two packets, milliseconds.
    pub delta_max_ms: f64,
}

/// Figures of a cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CellRecord {
    /// Name: codec, network, protection, repetition.
    pub name: String,
    /// Codec.
    pub codec: &'static str,
    /// Network.
    pub network: &'static str,
    /// Protection.
    pub protection: &'static str,
    /// Repetition.
    pub repetition: u32,
    /// Duration of the call, seconds.
    pub seconds: f64,
    /// The obstacle, if it was not measured.
    pub cause: Option<String>,
    /// Reasons why the line was not the configured one: figures are not judged.
    pub faults: Vec<String>,
    /// Packets that left the first and the second host.
    pub sent: [u64; 2],
    /// Packets that arrived at the other one.
    pub arrived: [u64; 2],
    /// Loss between the captures, percent, of both directions.
    pub loss_percent: Option<f64>,
    /// One-way latency between the captures, milliseconds, of both directions.
    pub latency_ms: CellFigure,
    /// Its 99th percentile.
    pub latency_p99_ms: Option<f64>,
    /// Jitter at the receivers (RFC 3550), milliseconds: the mean of our analyser.
    pub jitter_ms: CellFigure,
    /// Loss by the sequence numbers at the second host (our analyser), packets.
    pub analyser_lost: Option<u64>,
    /// Mean jitter and largest delta at the second host (our analyser), milliseconds.
    pub analyser_jitter_ms: Option<f64>,
    /// Largest time between two packets there.
    pub analyser_delta_max_ms: Option<f64>,
    /// The same by tshark; `null` if it was not run.
    pub tshark: Option<TsharkFigures>,
    /// Both directions of the line.
    pub line: Vec<serde_json::Value>,
    /// Bytes of an IP packet with media on the line.
    pub line_packet_bytes: Option<f64>,
    /// Captures, relative to the directory.
    pub captures: Vec<String>,
}

impl CellRecord {
    /// Whether its figures count.
    pub fn is_valid(&self) -> bool {
        self.cause.is_none() && self.faults.is_empty() && self.loss_percent.is_some()
    }

    /// Whether tshark measured another loss, mean jitter or largest delta (by more than 0.01 ms) in the same capture.
    pub fn differs_from_tshark(&self) -> bool {
        let Some(tshark) = &self.tshark else {
            return false;
        };
        let near =
            |ours: Option<f64>, theirs: f64| ours.is_some_and(|ours| (ours - theirs).abs() <= 0.01);
        self.analyser_lost.map(|lost| lost as i64) != Some(tshark.lost)
            || !near(self.analyser_jitter_ms, tshark.jitter_ms)
            || !near(self.analyser_delta_max_ms, tshark.delta_max_ms)
    }
}

/// Runs a cell. An obstacle is part of the record.
pub fn run(plan: &CellPlan<'_>) -> CellRecord {
    let mut record = CellRecord {
        name: plan.name(),
        codec: plan.codec.name,
        network: plan.network.name,
        protection: plan.protection.name,
        repetition: plan.repetition,
        seconds: plan.span.as_secs_f64(),
        ..CellRecord::default()
    };
    if let Err(cause) = measure(plan, &mut record) {
        record.cause = Some(cause);
    }
    record
}

/// Frames with media, with their times (nanoseconds since 1970).
type Capture = Vec<(u64, Vec<u8>)>;

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
    let (captures, noise) = std::thread::scope(|scope| {
        let (link, stop) = (&mut link, &stop);
        let carrier = scope.spawn(move || {
            line_network.enter().map_err(|error| error.to_string())?;
            prepare_thread();
            let ran = link.run(Time::NEVER, stop, None);
            ran.map_err(|error| error.to_string())
        });
        // The tunnel is set up over the line.
        let result = bench
            .protect(&plan.protection)
            .and_then(|()| call(plan, &bench, clock));
        stop.store(true, Ordering::Relaxed);
        let carried = carrier.join();
        carried.unwrap_or_else(|_| Err("the line's thread panicked".to_owned()))?;
        result
    })?;
    evaluate(plan, &captures, record)?;
    let figures = link.figures();
    record.faults = faults(&figures, &noise, LATE_MS);
    let lines = figures.iter().zip(DIRECTIONS);
    record.line = lines.map(|(line, name)| line_json(line, name)).collect();
    let packets: u64 = figures.iter().map(|line| line.counts.arrived).sum();
    let bytes: u64 = figures.iter().map(|line| line.bytes).sum();
    record.line_packet_bytes = (packets > 0).then(|| bytes as f64 / packets as f64 - 14.0);
    store(plan, &bench, &captures, record)
}

/// The call: both hosts send and capture.
fn call(
    plan: &CellPlan<'_>,
    bench: &Bench,
    clock: Clock,
) -> Result<([Capture; 2], NoiseRecord), String> {
    let text = |error: std::io::Error| error.to_string();
    let sampler = net::NoiseSampler::start(Duration::from_millis(1), None).map_err(text)?;
    let begin = clock.now() + LEAD;
    let end = begin + plan.span;
    let captures = std::thread::scope(|scope| {
        let ends = [0, 1].map(|side: usize| {
            let network = &bench.networks[side];
            let interface = &bench.media_interfaces[side];
            let capture = scope.spawn(move || capture(network, interface, clock, end + DRAIN));
            let addresses = [bench.media_addresses[side], bench.media_addresses[1 - side]];
            let sender = scope.spawn(move || {
                network.enter()?;
                send(plan.codec, side, addresses, clock, (begin, end))
            });
            (capture, sender)
        });
        let mut captures = Vec::new();
        for (capture, sender) in ends {
            let panicked = |_| std::io::Error::other("a thread panicked");
            sender.join().map_err(panicked)??;
            captures.push(capture.join().map_err(panicked)??);
        }
        let second = captures.pop().unwrap_or_default();
        let first = captures.pop().unwrap_or_default();
        Ok([first, second])
    });
    let noise = sampler.stop().map_err(text)?;
    if net::stops() > 0 {
        return Err("interrupted".to_owned());
    }
    Ok((captures.map_err(text)?, noise.into()))
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

/// The UDP payload of a frame to the port of RTP.
fn media_payload(frame: &[u8], has_ethernet: bool) -> Option<&[u8]> {
    let packet = match has_ethernet {
        true => frame.get(14..)?,
        false => frame,
    };
    let header = usize::from(packet.first()? & 0xf) * 4;
    if packet[0] >> 4 != 4 || *packet.get(9)? != 17 {
        return None;
    }
    let udp = packet.get(header..)?;
    let port = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
    (port == RTP).then(|| udp.get(8..)).flatten()
}

fn send(
    codec: StudyCodec,
    side: usize,
    addresses: [std::net::IpAddr; 2],
    clock: Clock,
    (begin, end): (Time, Time),
) -> std::io::Result<()> {
    let socket = |port| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind((addresses[0], port))?;
        socket.connect((addresses[1], port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (rtp, rtcp) = (socket(RTP)?, socket(RTP + 1)?);
    prepare_thread();
    let step = codec.clock_hz / 1_000 * codec.packet_ms;
    let interval = Duration::from_millis(u64::from(codec.packet_ms));
    // Both sides do not send at the same moment, as two clocks would not.
    let shift = interval / 2 * side as u32;
    let mut room = [0; 2_048];
    let mut next_report = begin + RTCP / 2;
    let payload: Vec<u8> = (0..codec.bytes).map(|n| (n * 37) as u8 ^ 0x5a).collect();
    for number in 0u32.. {
        let due = begin + shift + interval * number;
        if due >= end || net::stops() > 0 {
            break;
        }
        clock.sleep_until(due, Duration::ZERO);
        let header = RtpHeader {
            marker: number == 0,
            payload_type: codec.payload_type,
            sequence: number as u16,
            timestamp: step.wrapping_mul(number),
            ssrc: SSRC[side],
            ..RtpHeader::default()
        };
        // A full queue of the host is a loss before the capture: it is not sent.
        let _ = rtp.send(&header.packet(&payload));
        if due >= next_report {
            next_report += RTCP;
            let _ = rtcp.send(&report(SSRC[side], step.wrapping_mul(number), number));
        }
        while rtp.recv(&mut room).is_ok() || rtcp.recv(&mut room).is_ok() {}
    }
    // Packets that still arrive find their port open.
    clock.sleep_until(end + DRAIN, Duration::ZERO);
    Ok(())
}

/// A sender report with a canonical name (RFC 3550 sections 6.4.1 and 6.5).
fn report(ssrc: u32, timestamp: u32, packets: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, 200, 0, 6];
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(timestamp.to_be_bytes());
    bytes.extend(packets.to_be_bytes());
    bytes.extend([0; 4]);
    // One chunk: source, CNAME "hornwork@lab", padding.
    bytes.extend([0x81, 202, 0, 5]);
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([1, 12]);
    bytes.extend(b"hornwork@lab");
    bytes.extend([0, 0]);
    bytes
}

/// Send times of the packets of a source at one end, and arrivals at the other, by sequence number.
fn times(capture: &[(u64, Vec<u8>)], has_ethernet: bool, ssrc: u32) -> BTreeMap<u16, u64> {
    let mut times = BTreeMap::new();
    for (time, frame) in capture {
        let view = media_payload(frame, has_ethernet).and_then(RtpView::parse);
        if let Some(view) = view.filter(|view| view.ssrc() == ssrc) {
            times.entry(view.sequence()).or_insert(*time);
        }
    }
    times
}

fn is_ethernet(capture: &[(u64, Vec<u8>)]) -> bool {
    // The first octet of a packet of the IP interfaces is its version; addresses of our hosts begin with 2.
    capture
        .first()
        .is_some_and(|(_, frame)| frame.first().is_some_and(|first| first >> 4 != 4))
}

fn evaluate(
    plan: &CellPlan<'_>,
    captures: &[Capture; 2],
    record: &mut CellRecord,
) -> Result<(), String> {
    let ethernet = is_ethernet(&captures[0]);
    let mut latencies = Vec::new();
    let (mut latency_blocks, mut jitter_blocks) = (Vec::new(), Vec::new());
    let mut own_jitter = Vec::new();
    for side in [0, 1] {
        let sent = times(&captures[side], ethernet, SSRC[side]);
        let arrived = times(&captures[1 - side], ethernet, SSRC[side]);
        record.sent[side] = sent.len() as u64;
        let pairs: Vec<(u16, u64, u64)> = sent
            .iter()
            .filter_map(|(number, at)| Some((*number, *at, *arrived.get(number)?)))
            .collect();
        record.arrived[side] = pairs.len() as u64;
        let Some(first) = sent.values().min().copied() else {
            return Err("no packet of the call was captured".to_owned());
        };
        let block = |at: u64| ((at - first) as f64 / 1e9 / BLOCK_S) as usize;
        let delays = pairs
            .iter()
            .map(|(_, at, arrived)| (block(*at), (*arrived as f64 - *at as f64) / 1e6));
        latencies.extend(delays.clone().map(|(_, delay)| delay));
        latency_blocks.extend(block_means(delays));
        let step = f64::from(plan.codec.packet_ms);
        let jitters = jitter(&pairs, step);
        own_jitter.extend(jitters.iter().map(|(_, jitter)| *jitter));
        let placed = jitters.iter().map(|(at, jitter)| (block(*at), *jitter));
        jitter_blocks.extend(block_means(placed));
    }
    let (sent, arrived): (u64, u64) = (record.sent.iter().sum(), record.arrived.iter().sum());
    record.loss_percent = Some((sent - arrived.min(sent)) as f64 * 100.0 / sent.max(1) as f64);
    latencies.sort_by(f64::total_cmp);
    record.latency_p99_ms = quantile(&latencies, 0.99);
    record.latency_ms = CellFigure {
        value: mean(&latencies),
        blocks: latency_blocks,
    };
    record.jitter_ms = CellFigure {
        value: analysed(captures, ethernet, record).or_else(|| mean(&own_jitter)),
        blocks: jitter_blocks,
    };
    Ok(())
}

/// Passes the arriving packets of both hosts through our analyser; returns the mean of their jitters.
fn analysed(captures: &[Capture; 2], ethernet: bool, record: &mut CellRecord) -> Option<f64> {
    let mut jitters = Vec::new();
    for (side, capture) in captures.iter().enumerate() {
        let mut analyser = analyse::CaptureAnalyser::default();
        let link = link_type(ethernet);
        for (time, frame) in capture {
            let view = media_payload(frame, ethernet).and_then(RtpView::parse);
            if view.is_some_and(|view| view.ssrc() == SSRC[1 - side]) {
                analyser.frame(*time, link, frame, frame.len());
            }
        }
        let analysis = analyser.finish();
        let stream = analysis.streams.first()?;
        let jitter = stream.jitter_ms.map(|jitter| jitter.mean);
        if side == 1 {
            record.analyser_lost = Some(stream.lost_unique);
            record.analyser_jitter_ms = jitter;
            record.analyser_delta_max_ms = stream.delta_ms.map(|delta| delta.max);
        }
        // Without a session description the clock of a dynamic payload type is unknown.
        jitters.push(jitter?);
    }
    mean(&jitters)
}

fn link_type(ethernet: bool) -> LinkType {
    match ethernet {
        true => LinkType::Ethernet,
        false => LinkType::Raw,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn block_means(values: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
    let mut sums: BTreeMap<usize, (f64, u64)> = BTreeMap::new();
    for (block, value) in values {
        let sum = sums.entry(block).or_default();
        sum.0 += value;
        sum.1 += 1;
    }
    sums.values().map(|(sum, n)| sum / *n as f64).collect()
}

/// The jitter after each packet (RFC 3550 section 6.4.1) with its time of sending, in order of arrival; timestamps advance
/// with the sequence numbers.
fn jitter(pairs: &[(u16, u64, u64)], packet_ms: f64) -> Vec<(u64, f64)> {
    let mut in_order: Vec<&(u16, u64, u64)> = pairs.iter().collect();
    in_order.sort_by_key(|(_, _, arrived)| *arrived);
    let mut jitter = 0.0;
    let mut all = Vec::with_capacity(in_order.len());
    for pair in in_order.windows(2) {
        let [a, b] = [pair[0], pair[1]];
        let arrival = (b.2 as f64 - a.2 as f64) / 1e6;
        let media = f64::from(b.0.wrapping_sub(a.0) as i16) * packet_ms;
        jitter += ((arrival - media).abs() - jitter) / 16.0;
        all.push((b.1, jitter));
    }
    all
}

/// Writes the captures, and lets tshark measure that of the second host.
fn store(
    plan: &CellPlan<'_>,
    bench: &Bench,
    captures: &[Capture; 2],
    record: &mut CellRecord,
) -> Result<(), String> {
    let ethernet = is_ethernet(&captures[0]);
    let mut paths: Vec<PathBuf> = Vec::new();
    for (capture, end) in captures.iter().zip(["a", "b"]) {
        let mut writer = PcapWriter::new(link_type(ethernet));
        for (time, frame) in capture {
            writer.frame(*time, frame);
        }
        let name = format!("{}-{end}.pcap", plan.name());
        let path = plan.dir.join(&name);
        std::fs::write(&path, writer.finish())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        record.captures.push(name);
        paths.push(path);
    }
    if plan.with_tshark
        && let Some(path) = paths.get(1)
    {
        record.tshark = tshark(path, &bench.media_addresses[0].to_string());
    }
    Ok(())
}

/// The stream from `source` as tshark measures it; `None` if tshark is missing or does not find it.
fn tshark(path: &Path, source: &str) -> Option<TsharkFigures> {
    let port = format!("udp.port=={RTP},rtp");
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(path)
        .args(["-d", &port, "-q", "-z", "rtp,streams"])
        .output()
        .ok()?;
    parse_tshark(&String::from_utf8_lossy(&output.stdout), source)
}

/// A row: times, addresses and ports, SSRC, payload, packets, lost (percent), three deltas, three jitters.
fn parse_tshark(text: &str, source: &str) -> Option<TsharkFigures> {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().any(|word| word == source) && line.contains("0x"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    // The source is the third column.
    if words.get(2) != Some(&source) {
        return None;
    }
    let at = words.iter().position(|word| word.starts_with('('))?;
    let number = |index: usize| words.get(index)?.parse::<f64>().ok();
    Some(TsharkFigures {
        lost: words.get(at.checked_sub(1)?)?.parse().ok()?,
        delta_max_ms: number(at + 3)?,
        jitter_ms: number(at + 5)?,
    })
}

/// Pools the figures of several repetitions of a cell.
#[derive(Clone, Debug, Default)]
pub struct Pooled {
    /// Loss, percent, with its interval and packets.
    pub loss: Option<(f64, Interval)>,
    /// Latency, milliseconds.
    pub latency: Option<(f64, Interval)>,
    /// Jitter, milliseconds.
    pub jitter: Option<(f64, Interval)>,
}

impl Pooled {
    /// Of the valid ones of these records.
    pub fn of(records: &[&CellRecord]) -> Pooled {
        let valid: Vec<_> = records.iter().filter(|record| record.is_valid()).collect();
        let sent: u64 = valid.iter().flat_map(|record| record.sent).sum();
        let arrived: u64 = valid.iter().flat_map(|record| record.arrived).sum();
        if sent == 0 {
            return Pooled::default();
        }
        let lost = sent - arrived.min(sent);
        let loss = (
            lost as f64 * 100.0 / sent as f64,
            Interval::of_share(lost, sent, 100.0, "packets"),
        );
        let figure = |of: fn(&CellRecord) -> &CellFigure| {
            let values: Vec<f64> = valid.iter().filter_map(|record| of(record).value).collect();
            let blocks: Vec<f64> = valid
                .iter()
                .flat_map(|record| of(record).blocks.iter().copied())
                .collect();
            let value = mean(&values)?;
            let mut interval = Interval::of_mean(&blocks, "blocks of 1 s");
            interval.centre(value);
            Some((value, interval))
        };
        Pooled {
            loss: Some(loss),
            latency: figure(|record| &record.latency_ms),
            jitter: figure(|record| &record.jitter_ms),
        }
    }

    /// The figure of this name.
    pub fn figure(&self, name: &str) -> Option<&(f64, Interval)> {
        match name {
            "loss" => self.loss.as_ref(),
            "latency" => self.latency.as_ref(),
            _ => self.jitter.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_tshark_are_read() {
        let text = "========== RTP Streams ==========\n   Start time  End time Src IP addr Port Dest IP addr Port SSRC Payload Pkts Lost Min Delta(ms)\n\
                    0.000001   5.970001       10.96.0.1  5004       10.96.0.2  5004 0x0C0A0001 G.723             190    10 (5.0%)  29.100  30.200  61.000   0.000   0.412   1.020 X\n\
                    0.015001   5.985001       10.96.0.2  5004       10.96.0.1  5004 0x0C0A0002 G.723             200     0 (0.0%)  29.900  30.000  30.100   0.000   0.010   0.020\n";
        let found = parse_tshark(text, "10.96.0.1").unwrap();
        assert_eq!(
            (found.lost, found.jitter_ms, found.delta_max_ms),
            (10, 0.412, 61.0)
        );
        assert_eq!(parse_tshark("nothing", "10.96.0.1"), None);
    }

    #[test]
    fn jitter_follows_rfc_3550_and_skips_lost_packets() {
        let ms = 1_000_000;
        // Packet 2 is lost; the last one is 16 ms late.
        let pairs = [
            (0, 0, 10 * ms),
            (1, 30 * ms, 40 * ms),
            (3, 90 * ms, 116 * ms),
        ];
        let jitters = jitter(&pairs, 30.0);
        assert_eq!(jitters, [(30 * ms, 0.0), (90 * ms, 1.0)]);
    }

    #[test]
    fn report_is_a_valid_compound() {
        let bytes = report(7, 240, 3);
        assert!(wire::rtcp::is_compound(&bytes), "{bytes:?}");
        assert_eq!(bytes.len(), 28 + 24);
    }
}
