//! A cell in virtual time: the same media over the same line, with the protection's computed bytes and time. It needs
//! no right, and the same seed gives the same bytes.

use super::captures::{self, Capture};
use super::media::{LEAD, MediaSource, MediaSrtp, RTP};
use super::model::Tunnel;
use super::overhead;
use super::record::{CellPlan, CellRecord, PacketCount};
use crate::emulator::settings::{DIRECTIONS, LineSettings, profile};
use engine::{Entropy, Time};
use serde_json::{Value, json};
use sim::{Emulator, EmulatorCounts, Link, Passage};
use std::net::Ipv4Addr;
use std::time::Duration;
use wire::ip::internet_checksum;

/// Addresses of the hosts.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 97, 0, 1), Ipv4Addr::new(10, 97, 0, 2)];
/// IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Time within which the last packet arrives: far beyond queue and delay of each line.
const DRAIN: Duration = Duration::from_secs(120);

/// A packet on its way.
#[derive(Clone, Debug)]
struct Tunnelled {
    inner: Vec<u8>,
    outer_bytes: usize,
}

/// One direction after its call.
struct Direction {
    sent: Capture,
    arrived: Capture,
    counts: EmulatorCounts,
    outer_bytes: u64,
    /// Packets of SRTP that have arrived.
    srtp: Option<PacketCount>,
}

/// Runs a cell. An obstacle is part of the record.
pub fn run(plan: &CellPlan<'_>) -> CellRecord {
    let mut record = CellRecord::of(plan);
    if let Err(cause) = measure(plan, &mut record) {
        record.cause = Some(cause);
    }
    record
}

fn measure(plan: &CellPlan<'_>, record: &mut CellRecord) -> Result<(), String> {
    let settings = profile(plan.network.profile)?;
    let mut entropy = Entropy::from_number(plan.seed);
    let mut draws = || entropy.fork();
    let [there, back] = [0, 1].map(|side| (side, draws()));
    let [there, back] = [there, back].map(|(side, draws)| {
        let link = Link::new(settings[side].config(), draws);
        direction(plan, side, Emulator::new(link, usize::MAX))
    });
    let (there, back) = (there?, back?);
    record.protected = there.srtp.zip(back.srtp).map(|(a, b)| a.with(b));
    let refused = record.protected.and_then(PacketCount::fault);
    record.faults.extend(refused);
    let lines = [&there, &back].into_iter().zip(&settings).zip(DIRECTIONS);
    record.line = lines
        .map(|((of, line), name)| line_json(of, line, name))
        .collect();
    let packets = there.counts.arrived + back.counts.arrived;
    let bytes = there.outer_bytes + back.outer_bytes;
    record.line_packet_bytes = (packets > 0).then(|| bytes as f64 / packets as f64);
    let captures = [
        in_order(there.sent, back.arrived),
        in_order(back.sent, there.arrived),
    ];
    captures::store(plan, &captures, record)?;
    captures::evaluate(plan, &captures, record)
}

/// The capture of a host: both directions by time.
fn in_order(out: Capture, incoming: Capture) -> Capture {
    let mut all = out;
    all.extend(incoming);
    all.sort_by_key(|(time, _)| *time);
    all
}

/// A call in one direction. Captures are taken outside of the tunnel, as in real time; they contain SRTP as it is.
fn direction(
    plan: &CellPlan<'_>,
    side: usize,
    mut line: Emulator<Tunnelled>,
) -> Result<Direction, String> {
    let source = MediaSource::new(plan.codec, side);
    let tunnel = plan.protection.tunnel;
    let mut security = match tunnel {
        Tunnel::Srtp => Some(MediaSrtp::pair(plan.seed)?),
        _ => None,
    };
    let begin = Time::ZERO + LEAD;
    let end = begin + plan.span;
    let mut sent = Capture::new();
    // Packets wait for the end of the one before at both ends.
    let mut encrypted = Time::ZERO;
    let mut identification = 0u16;
    for number in 0u32.. {
        let due = begin + source.due(number);
        if due >= end {
            break;
        }
        let rtp = Some((RTP, source.packet(number)));
        let rtcp = source.report(number).map(|report| (RTP + 1, report));
        for (port, payload) in rtp.into_iter().chain(rtcp) {
            identification = identification.wrapping_add(1);
            let payload = match &mut security {
                Some(ends) => ends[side].seal(payload, port != RTP)?,
                None => payload,
            };
            let inner = udp_packet(side, port, identification, &payload);
            if port == RTP {
                sent.push((due.as_nanos(), inner.clone()));
            }
            encrypted = encrypted.max(due) + overhead::cipher_time(tunnel, inner.len());
            let outer_bytes = overhead::outer_bytes(tunnel, inner.len());
            // A packet that finds the queue full is counted by the line.
            let _ = line.push(Tunnelled { inner, outer_bytes }, outer_bytes, encrypted);
        }
    }
    let mut arrived = Capture::new();
    let mut decrypted = Time::ZERO;
    let mut outer_bytes = 0;
    while let Some((at, passage)) = line.pop(end + DRAIN) {
        // A receiver refuses a packet with a changed bit.
        let Passage::Arrived {
            packet,
            corrupt: false,
        } = passage
        else {
            continue;
        };
        outer_bytes += packet.outer_bytes as u64;
        decrypted = decrypted.max(at) + overhead::cipher_time(tunnel, packet.inner.len());
        let is_rtp = captures::media_payload(&packet.inner, false).is_some();
        if let Some(ends) = &mut security {
            let mut payload = packet.inner.get(HEADERS..).unwrap_or_default().to_vec();
            ends[1 - side].open(&mut payload, !is_rtp);
        }
        if is_rtp {
            arrived.push((decrypted.as_nanos(), packet.inner));
        }
    }
    Ok(Direction {
        sent,
        arrived,
        counts: line.counts(),
        outer_bytes,
        srtp: security.map(|ends| ends[1 - side].count),
    })
}

fn line_json(of: &Direction, line: &LineSettings, name: &str) -> Value {
    json!({
        "direction": name,
        "settings": line.to_json(),
        "offered": of.counts.offered,
        "arrived": of.counts.arrived,
        "bytes": of.outer_bytes,
        "lost": of.counts.lost,
        "loss_packets": of.counts.exposed,
        "queue_full": of.counts.queue_full,
        "too_large": of.counts.too_large,
        "duplicated": of.counts.duplicated,
        "corrupted": of.counts.corrupted,
    })
}

/// An IPv4 packet with UDP of a host to the other one.
fn udp_packet(side: usize, port: u16, identification: u16, payload: &[u8]) -> Vec<u8> {
    let addresses = [HOSTS[side].octets(), HOSTS[1 - side].octets()].concat();
    let udp_length = (8 + payload.len()) as u16;
    let mut udp = [
        port.to_be_bytes(),
        port.to_be_bytes(),
        udp_length.to_be_bytes(),
        [0, 0],
    ]
    .concat();
    let pseudo = [[0, 17], udp_length.to_be_bytes()].concat();
    // Zero means no checksum (RFC 768).
    let sum = match internet_checksum(&[&addresses, &pseudo, &udp, payload]) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut header = vec![0x45, 0];
    header.extend((20 + udp_length).to_be_bytes());
    header.extend(identification.to_be_bytes());
    header.extend([0, 0, 64, 17, 0, 0]);
    header.extend(&addresses);
    let sum = internet_checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [header, udp, payload.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_c::model::{CODECS, NETWORKS, PROTECTIONS};
    use std::path::Path;

    fn cell(network: &str, protection: &str, dir: &Path, seconds: u64) -> CellRecord {
        let network = NETWORKS.into_iter().find(|known| known.name == network);
        let protection = PROTECTIONS
            .into_iter()
            .find(|known| known.name == protection);
        run(&CellPlan {
            number: 0,
            codec: CODECS[0],
            network: network.unwrap(),
            protection: protection.unwrap(),
            repetition: 0,
            span: Duration::from_secs(seconds),
            seed: 7,
            dir,
            with_tshark: false,
        })
    }

    #[test]
    fn packets_have_valid_checksums() {
        let packet = udp_packet(0, RTP, 3, &[1, 2, 3]);
        let view = wire::ip::Ipv4View::parse(&packet).unwrap();
        assert!(view.has_valid_checksum());
        assert_eq!(view.payload().len(), 11);
        let udp = view.payload();
        let pseudo = [&packet[12..20], &[0, 17], &udp[4..6]].concat();
        assert_eq!(internet_checksum(&[&pseudo, udp]), 0);
    }

    /// 64 kbit/s with HDLC: 7 bytes of framing, and 1 ms of delay.
    #[test]
    fn srtp_and_our_esp_have_their_bytes_on_the_line() {
        let dir = std::env::temp_dir().join(format!("hornwork-study-c-own-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (protection, bytes) in [
            ("srtp", 74),
            ("esp-aes-gcm", 120),
            ("esp-aes-cbc-sha1", 136),
        ] {
            let record = cell("wan-64", protection, &dir, 10);
            assert!(record.is_valid(), "{record:?}");
            let expected = f64::from(bytes + 7) * 8.0 / 64.0 + 1.0;
            let latency = record.latency_ms.value.unwrap();
            assert!(
                (expected..expected + 0.15).contains(&latency),
                "{protection}: {latency}, expected {expected}"
            );
            let line = record.line_packet_bytes.unwrap();
            assert!(
                (f64::from(bytes)..f64::from(bytes) + 1.0).contains(&line),
                "{protection}: {line}"
            );
            // Of 667 packets of RTP and four of RTCP all were accepted.
            let accepted = PacketCount {
                accepted: 671,
                refused: 0,
            };
            let wanted = (protection == "srtp").then_some(accepted);
            assert_eq!(record.protected, wanted, "{protection}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn latency_and_loss_are_those_of_the_line() {
        let dir = std::env::temp_dir().join(format!("hornwork-study-c-sim-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // In the clear: 71 bytes with HDLC at 64 kbit/s take 8.875 ms, and 1 ms is the delay of the line. RTCP adds to
        // some.
        let clear = cell("wan-64", "none", &dir, 10);
        assert!(clear.is_valid(), "{clear:?}");
        let latency = clear.latency_ms.value.unwrap();
        assert!((9.875..9.95).contains(&latency), "{latency}");
        assert_eq!(clear.loss_percent, Some(0.0));
        let lost = |cell: &CellRecord| cell.analyser[1].as_ref().map(|stream| stream.lost);
        assert_eq!((clear.sent, lost(&clear)), ([334, 333], Some(0)));
        // AES needs 40.3 of 38.4 kbit/s: the queue of 40 packets is full after 25 s, then about 5 % are lost.
        let full = cell("wan-38", "aes-256", &dir, 120);
        let loss = full.loss_percent.unwrap();
        assert!((2.0..6.0).contains(&loss), "{loss}");
        assert!(lost(&full).unwrap() > 40);
        assert!(full.latency_p99_ms.unwrap() > 1_200.0);
        // The same seed gives the same captures.
        let first = std::fs::read(dir.join(&full.captures[1])).unwrap();
        let again = cell("wan-38", "aes-256", &dir, 120);
        assert_eq!(std::fs::read(dir.join(&again.captures[1])).unwrap(), first);
        // Our analyser finds the same in the file.
        let found = analyse::analyse_bytes(&first).unwrap();
        let stream = found
            .streams
            .iter()
            .find(|s| Some(s.lost_unique as i64) == lost(&full));
        assert!(stream.is_some(), "{:?}", full.analyser);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
