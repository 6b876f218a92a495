//! The analyser compared with tshark, on generated captures with loss, duplicates, reordering and jitter. Skipped
//! without tshark.

use crate::captures::*;
use analyse::analyse_bytes;
use std::collections::BTreeMap;
use std::process::Command;
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;

/// tshark's row of a stream.
#[derive(Debug)]
struct TsharkRow {
    packets: u64,
    lost: i64,
    max_delta: f64,
    mean_jitter: f64,
    max_jitter: f64,
}

/// Rows by "source > destination ssrc"; `None` without tshark.
fn tshark(name: &str, capture: &[u8]) -> Option<BTreeMap<String, TsharkRow>> {
    let path = std::env::temp_dir().join(format!("hornwork-{}-{name}.pcap", std::process::id()));
    std::fs::write(&path, capture).expect("a temporary file");
    let run = Command::new("tshark")
        .args([
            "-o",
            "rtp.heuristic_rtp:TRUE",
            "-n",
            "-q",
            "-z",
            "rtp,streams",
            "-r",
        ])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("the file was written above");
    let Ok(output) = run else {
        println!("skipped: not installed: tshark");
        return None;
    };
    let mut rows = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| word.starts_with("0x")) else {
            continue;
        };
        // Start, end, source, port, destination, port, SSRC, payload (with blanks), packets, lost, (percent), six
        // figures.
        let percent = words
            .iter()
            .position(|word| word.ends_with("%)"))
            .expect("a percentage");
        let number = |at: usize| words[at].parse::<f64>().expect("a number");
        let endpoint = |at: usize| match words[at].contains(':') {
            true => format!("[{}]:{}", words[at], words[at + 1]),
            false => format!("{}:{}", words[at], words[at + 1]),
        };
        let key = format!(
            "{} > {} {}",
            endpoint(2),
            endpoint(4),
            words[at].to_lowercase()
        );
        rows.insert(
            key,
            TsharkRow {
                packets: number(percent - 2) as u64,
                lost: number(percent - 1) as i64,
                max_delta: number(percent + 3),
                mean_jitter: number(percent + 5),
                max_jitter: number(percent + 6),
            },
        );
    }
    Some(rows)
}

#[test]
fn counts_loss_and_jitter_agree() {
    let streams = [
        ("192.0.2.1:4000", "198.51.100.2:6000", Talk::default()),
        (
            "198.51.100.2:6000",
            "192.0.2.1:4000",
            Talk {
                payload_type: 8,
                ..Talk::default()
            },
        ),
        (
            "[2001:db8::1]:4100",
            "[2001:db8::2]:6100",
            Talk {
                payload_type: 18,
                bytes: 20,
                ssrc: 7,
                ..Talk::default()
            },
        ),
        (
            "192.0.2.5:4000",
            "198.51.100.2:6002",
            Talk {
                first_sequence: 65_400,
                first_timestamp: u32::MAX - 90_000,
                ..Talk::default()
            },
        ),
        (
            "192.0.2.6:4000",
            "198.51.100.2:6004",
            Talk {
                payload_type: 9,
                ssrc: 0,
                ..Talk::default()
            },
        ),
    ];
    // Loss, duplicates, late packets in 1/1000; jitter in microseconds.
    let conditions = [
        (0, 0, 0, 0),
        (20, 0, 0, 3000),
        (100, 0, 0, 9000),
        (10, 20, 0, 500),
        (30, 10, 30, 4000),
    ];
    for (round, (loss, double, late, jitter)) in conditions.into_iter().enumerate() {
        let mut dice = Dice(77 + round as u64);
        let mut frames: Vec<(u64, Vec<u8>)> = Vec::new();
        for (from, to, talk) in &streams {
            // The last packet stays, so that both tools have the same end.
            let mut packets = talk.packets(600);
            let last = packets.pop().expect("600 packets");
            let mut packets = impair(packets, &mut dice, loss, double, late, jitter);
            packets.push((last.0 + 200 * MS, last.1));
            for (time, packet) in packets {
                frames.push((
                    time,
                    ethernet(&[(0x8100, 3)], &udp(addr(from), addr(to), &packet)),
                ));
            }
        }
        frames.sort_by_key(|(time, _)| *time);
        let mut writer = PcapWriter::new(LinkType::Ethernet);
        frames
            .iter()
            .for_each(|(time, frame)| writer.frame(*time, frame));
        let file = writer.finish();
        let Some(rows) = tshark(&format!("round{round}"), &file) else {
            return;
        };
        let analysis = analyse_bytes(&file).expect("a capture");
        assert_eq!(analysis.streams.len(), streams.len());
        assert_eq!(rows.len(), streams.len(), "{rows:?}");
        for stream in &analysis.streams {
            let key = format!("{} > {} {}", stream.src, stream.dst, stream.ssrc);
            let row = rows
                .get(&key)
                .unwrap_or_else(|| panic!("{key} in {rows:?}"));
            assert_eq!(stream.packets_received, row.packets, "{key}");
            assert_eq!(
                stream.rfc3550_cumulative_lost, row.lost,
                "{key} round {round}"
            );
            if double == 0 && late == 0 {
                let jitter = stream.jitter_ms.expect("jitter");
                let near = |got: f64, want: f64| (got - want).abs() <= (want * 0.02).max(0.05);
                assert!(
                    near(jitter.mean, row.mean_jitter),
                    "{key} {jitter:?} {row:?}"
                );
                assert!(near(jitter.max, row.max_jitter), "{key} {jitter:?} {row:?}");
                assert!(
                    near(stream.delta_ms.expect("delta").max, row.max_delta),
                    "{key} {row:?}"
                );
            }
        }
    }
}
