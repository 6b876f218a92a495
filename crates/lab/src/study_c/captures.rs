//! Figures of a cell from the captures of both hosts.

use super::media::{RTP, SSRC};
use super::record::{ArrivedStream, CellFigure, CellPlan, CellRecord};
use crate::figures::quantile;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;
use wire::rtp::RtpView;

/// Blocks over which a mean is taken for the intervals of latency and jitter, seconds: neighbouring packets wait in the
/// same queue, and are no independent samples.
const BLOCK_S: f64 = 1.0;

/// Frames with media, with their times (nanoseconds since 1970).
pub type Capture = Vec<(u64, Vec<u8>)>;

/// The UDP payload of a frame to the port of RTP.
pub fn media_payload(frame: &[u8], has_ethernet: bool) -> Option<&[u8]> {
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

/// Latency, loss and jitter of both directions.
///
/// # Errors
/// A host sent nothing.
pub fn evaluate(
    plan: &CellPlan<'_>,
    captures: &[Capture; 2],
    record: &mut CellRecord,
) -> Result<(), String> {
    let ethernet = is_ethernet(&captures[0]);
    let mut latencies = Vec::new();
    let (mut latency_blocks, mut jitter_blocks) = (Vec::new(), Vec::new());
    let mut own_jitter = Vec::new();
    let mut fates: Vec<Vec<bool>> = Vec::new();
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
        latency_blocks.push(block_means(delays));
        let step = f64::from(plan.codec.packet_ms);
        let jitters = jitter(&pairs, step);
        own_jitter.extend(jitters.iter().map(|(_, jitter)| *jitter));
        let placed = jitters.iter().map(|(at, jitter)| (block(*at), *jitter));
        jitter_blocks.push(block_means(placed));
        fates.push(
            sent.keys()
                .map(|number| !arrived.contains_key(number))
                .collect(),
        );
    }
    let (sent, arrived): (u64, u64) = (record.sent.iter().sum(), record.arrived.iter().sum());
    record.loss_percent = Some((sent - arrived.min(sent)) as f64 * 100.0 / sent.max(1) as f64);
    record.loss_correlation = loss_correlation(&fates);
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
        record.analyser[side] =
            jitter
                .zip(stream.delta_ms)
                .map(|(jitter_ms, delta)| ArrivedStream {
                    lost: stream.lost_unique as i64,
                    jitter_ms,
                    delta_max_ms: delta.max,
                });
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

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Correlation of the fates of neighbouring packets (lag 1), 0 to 1; 0 without losses.
fn loss_correlation(fates: &[Vec<bool>]) -> f64 {
    let all = fates.iter().flatten();
    let (lost, packets) = all.fold((0u64, 0u64), |(lost, n), is_lost| {
        (lost + u64::from(*is_lost), n + 1)
    });
    let share = lost as f64 / packets.max(1) as f64;
    let apart = |is_lost: bool| f64::from(u8::from(is_lost)) - share;
    let pairs = fates.iter().flat_map(|fates| fates.windows(2));
    let products: f64 = pairs.map(|pair| apart(pair[0]) * apart(pair[1])).sum();
    let squares = packets as f64 * share * (1.0 - share);
    match squares > 0.0 {
        true => (products / squares).clamp(0.0, 1.0),
        false => 0.0,
    }
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

/// The jitter after each packet (RFC 3550 section 6.4.1) with its time of sending, in order of arrival; timestamps
/// advance with the sequence numbers.
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

/// Writes the captures; returns their paths.
///
/// # Errors
/// The directory is not writable, or its disk is full.
pub fn store(
    plan: &CellPlan<'_>,
    captures: &[Capture; 2],
    record: &mut CellRecord,
) -> Result<[PathBuf; 2], String> {
    let ethernet = is_ethernet(&captures[0]);
    let mut paths = [PathBuf::new(), PathBuf::new()];
    for (index, (capture, end)) in captures.iter().zip(["a", "b"]).enumerate() {
        let mut writer = PcapWriter::new(link_type(ethernet));
        for (time, frame) in capture {
            writer.frame(*time, frame);
        }
        let name = format!("{}-{end}.pcap", plan.name());
        let path = plan.dir.join(&name);
        std::fs::write(&path, writer.finish())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        record.captures.push(name);
        paths[index] = path;
    }
    Ok(paths)
}

/// Lets tshark measure the media that arrived in the captures of both hosts, whose addresses are `hosts`.
pub fn compare(paths: &[PathBuf; 2], hosts: &[IpAddr; 2], record: &mut CellRecord) {
    for side in [0, 1] {
        // Where our analyser has no stream, none arrived.
        if record.analyser[side].is_none() {
            continue;
        }
        match tshark(&paths[side], &hosts[1 - side].to_string()) {
            Ok(stream) => record.tshark[side] = Some(stream),
            Err(why) => record.not_compared.push(why),
        }
    }
}

/// The stream from `source` as tshark measures it.
fn tshark(path: &Path, source: &str) -> Result<ArrivedStream, String> {
    let name = path.display();
    let port = format!("udp.port=={RTP},rtp");
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(path)
        .args(["-d", &port, "-q", "-z", "rtp,streams"])
        .output()
        .map_err(|error| format!("tshark: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().last().unwrap_or("no message").to_owned();
        return Err(format!("tshark: {name}: {}: {last}", output.status));
    }
    parse_tshark(&String::from_utf8_lossy(&output.stdout), source)
        .ok_or_else(|| format!("tshark: {name}: no stream from {source}"))
}

/// A row: times, addresses and ports, SSRC, payload, packets, lost (percent), three deltas, three jitters.
fn parse_tshark(text: &str, source: &str) -> Option<ArrivedStream> {
    let mut rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<&str>>());
    // The source is the third column; both directions have a row.
    let is_row = |words: &Vec<&str>| {
        words.get(2) == Some(&source) && words.iter().any(|w| w.starts_with("0x"))
    };
    let words = rows.find(is_row)?;
    let at = words.iter().position(|word| word.starts_with('('))?;
    let number = |index: usize| words.get(index)?.parse::<f64>().ok();
    Some(ArrivedStream {
        lost: words.get(at.checked_sub(1)?)?.parse().ok()?,
        delta_max_ms: number(at + 3)?,
        jitter_ms: number(at + 5)?,
    })
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
        let other = parse_tshark(text, "10.96.0.2").unwrap();
        assert_eq!((other.lost, other.delta_max_ms), (0, 30.1));
        assert_eq!(parse_tshark("nothing", "10.96.0.1"), None);
    }

    #[test]
    fn capture_that_tshark_cannot_read_is_not_compared() {
        let stream = ArrivedStream::default();
        let mut record = CellRecord {
            analyser: [None, Some(stream)],
            ..CellRecord::default()
        };
        let missing = PathBuf::from("/nonexistent/capture.pcap");
        let hosts = ["10.96.0.1", "10.96.0.2"].map(|host| host.parse().unwrap());
        compare(&[missing.clone(), missing], &hosts, &mut record);
        assert_eq!(record.not_compared.len(), 1, "{record:?}");
        assert!(record.not_compared[0].contains("tshark"));
        assert!(record.compared() == 0 && !record.differs_from_tshark());
        // Another loss at either host is a difference.
        record.tshark[1] = Some(ArrivedStream {
            lost: 1,
            ..ArrivedStream::default()
        });
        assert!(record.differs_from_tshark());
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
    fn losses_that_come_together_are_correlated() {
        let alternating: Vec<bool> = (0..1_000).map(|n| n % 20 == 0).collect();
        assert_eq!(loss_correlation(&[alternating]), 0.0);
        // Bursts of 10: a lost packet is followed by a lost one nine times of ten.
        let bursts: Vec<bool> = (0..10_000).map(|n| n % 200 < 10).collect();
        let found = loss_correlation(&[bursts.clone(), bursts]);
        assert!((found - 0.9).abs() < 0.02, "{found}");
        assert_eq!(loss_correlation(&[vec![false; 9]]), 0.0);
        assert_eq!(loss_correlation(&[]), 0.0);
    }
}
