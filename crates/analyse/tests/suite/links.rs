//! One set of impaired streams in every supported container, compared with tshark's figures for the same files.

use crate::captures::*;
use analyse::{Analysis, analyse_bytes};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use wire::capture::{PcapWriter, PcapngWriter};
use wire::ethernet::LinkType;

/// Packets, lost, mean and largest jitter in milliseconds.
type StreamFigures = (u64, i64, f64, f64);
type Rows = BTreeMap<String, StreamFigures>;
type TimedFrames = Vec<(u64, Vec<u8>)>;
type Wrap<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// tshark's table of streams; `None`, with a message, without tshark.
fn tshark(name: &str, capture: &[u8]) -> Option<Rows> {
    let path = std::env::temp_dir().join(format!("hornwork-links-{}-{name}", std::process::id()));
    std::fs::write(&path, capture).expect("a temporary file");
    let run = Command::new("tshark")
        .args(["-o", "rtp.heuristic_rtp:TRUE", "-n", "-q", "-z"])
        .args(["rtp,streams", "-r"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("the file was written above");
    let Ok(output) = run else {
        println!("skipped: not installed: tshark");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().filter_map(row).collect())
}

/// Start, end, source, port, destination, port, SSRC, payload (with blanks), packets, lost, (percent), three deltas,
/// three jitters (smallest, mean, largest).
fn row(line: &str) -> Option<(String, StreamFigures)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ssrc = words.iter().find(|word| word.starts_with("0x"))?;
    let percent = words.iter().position(|word| word.ends_with("%)"))?;
    let number = |at: usize| words.get(at)?.parse::<f64>().ok();
    let endpoint = |at: usize| {
        let ip: IpAddr = words.get(at)?.parse().ok()?;
        let port: u16 = words.get(at + 1)?.parse().ok()?;
        Some(std::net::SocketAddr::new(ip, port))
    };
    let key = format!(
        "{} > {} {}",
        endpoint(2)?,
        endpoint(4)?,
        ssrc.to_lowercase()
    );
    let figures = (
        number(percent - 2)? as u64,
        number(percent - 1)? as i64,
        number(percent + 5)?,
        number(percent + 6)?,
    );
    Some((key, figures))
}

fn ours(analysis: &Analysis) -> Rows {
    let figures = |stream: &analyse::StreamReport| {
        let jitter = stream.jitter_ms.expect("jitter");
        (
            stream.packets_received,
            stream.rfc3550_cumulative_lost,
            jitter.mean,
            jitter.max,
        )
    };
    let rows = analysis.streams.iter();
    rows.map(|s| (format!("{} > {} {}", s.src, s.dst, s.ssrc), figures(s)))
        .collect()
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= (want * 0.02).max(0.05)
}

/// Three streams with loss and jitter: both directions of a call on odd ports, and one whose numbers wrap.
fn packets(from: &str, to: &str) -> TimedFrames {
    let talks = [
        (from, to, Talk::default()),
        (
            to,
            from,
            Talk {
                payload_type: 8,
                ssrc: 0xdead_beef,
                ..Talk::default()
            },
        ),
        (
            from,
            to,
            Talk {
                payload_type: 18,
                bytes: 20,
                ssrc: 3,
                first_sequence: 65_500,
                first_timestamp: u32::MAX - 4_000,
                ..Talk::default()
            },
        ),
    ];
    let mut dice = Dice(4_711);
    let mut all = Vec::new();
    for (from, to, talk) in talks {
        let mut packets = talk.packets(400);
        // The first and the last stay, so that both tools have the same range.
        let last = packets.pop().expect("packets");
        let rest = packets.split_off(1);
        packets.extend(impair(rest, &mut dice, 30, 0, 0, 3_000));
        packets.push((last.0 + 100 * MS, last.1));
        all.extend(
            packets
                .into_iter()
                .map(|(time, rtp)| (time, udp(addr(from), addr(to), &rtp))),
        );
    }
    all.sort_by_key(|(time, _)| *time);
    all
}

/// Each IP packet in two fragments, the later one first every third time.
fn fragmented(packets: &TimedFrames) -> TimedFrames {
    let mut out = Vec::new();
    for (at, (time, packet)) in packets.iter().enumerate() {
        let (from, to): (IpAddr, IpAddr) = match packet[0] >> 4 {
            4 => {
                let octets = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap();
                (octets(12).into(), octets(16).into())
            }
            _ => {
                let octets = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap();
                (octets(8).into(), octets(24).into())
            }
        };
        let header = if from.is_ipv4() { 20 } else { 40 };
        // The G.729 datagrams are 40 bytes: a cut at 24 leaves bytes in both fragments.
        let (first, second) = packet[header..].split_at(24);
        let part = |offset: u16, more: bool, data: &[u8]| match from.is_ipv4() {
            true => {
                let flags = if more { 0x2000 } else { 0 };
                ipv4(from, to, 17, at as u16, flags | (offset / 8), data)
            }
            false => {
                let mut payload = vec![17, 0];
                payload.extend((offset | u16::from(more)).to_be_bytes());
                payload.extend((at as u32).to_be_bytes());
                payload.extend_from_slice(data);
                ipv6(from, to, 44, &payload)
            }
        };
        let mut parts = [part(0, true, first), part(24, false, second)];
        if at % 3 == 2 {
            parts.swap(0, 1);
        }
        out.extend(parts.map(|part| (*time, part)));
    }
    out
}

fn pcapng(packets: &TimedFrames, wrap: Wrap<'_>) -> Vec<u8> {
    let mut writer = PcapngWriter::new(true);
    let wired = writer.interface(LinkType::Ethernet, 9);
    let raw = writer.interface(LinkType::Raw, 6);
    for (at, (time, packet)) in packets.iter().enumerate() {
        match at % 2 {
            0 => writer.frame(wired, *time, &wrap(packet)),
            _ => writer.frame(raw, *time, packet),
        }
    }
    writer.finish()
}

fn containers(four: bool, packets: &TimedFrames) -> Vec<(String, Vec<u8>)> {
    let version = if four { 4 } else { 6 };
    let protocol: [u8; 2] = if four { [8, 0] } else { [0x86, 0xdd] };
    let family: u32 = if four { 2 } else { 30 };
    let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], &protocol].concat();
    let sll2: Vec<u8> = [
        &protocol[..],
        &[0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0],
    ]
    .concat();
    let outer: (IpAddr, IpAddr) = (
        "203.0.113.1".parse().unwrap(),
        "203.0.113.2".parse().unwrap(),
    );
    let outer6: (IpAddr, IpAddr) = (
        "2001:db8::9".parse().unwrap(),
        "2001:db8::a".parse().unwrap(),
    );
    let inner = if four { 4 } else { 41 };
    let ether = |ip: &[u8]| ethernet(&[], ip);
    let gre = |header: &[u8], frame: Vec<u8>| ip(outer.0, outer.1, 47, &[header, &frame].concat());
    let ports = ["203.0.113.1:50000", "203.0.113.2:4789"].map(addr);
    let cases: [(&str, LinkType, Wrap<'_>); 18] = [
        ("ethernet", LinkType::Ethernet, &ether),
        ("padded", LinkType::Ethernet, &|ip| {
            [ether(ip), vec![0; 12]].concat()
        }),
        ("vlan", LinkType::Ethernet, &|ip| {
            ethernet(&[(0x8100, 7)], ip)
        }),
        ("qinq", LinkType::Ethernet, &|ip| {
            ethernet(&[(0x88a8, 7), (0x8100, 9)], ip)
        }),
        ("sll", LinkType::LinuxSll, &|ip| [&sll[..], ip].concat()),
        ("sll2", LinkType::LinuxSll2, &|ip| [&sll2[..], ip].concat()),
        ("raw", LinkType::Raw, &|ip| ip.to_vec()),
        ("null-le", LinkType::Null, &|ip| {
            [&family.to_le_bytes()[..], ip].concat()
        }),
        ("null-be", LinkType::Null, &|ip| {
            [&family.to_be_bytes()[..], ip].concat()
        }),
        ("loop", LinkType::Loop, &|ip| {
            [&family.to_be_bytes()[..], ip].concat()
        }),
        ("ipip", LinkType::Ethernet, &|p| {
            ether(&ip(outer.0, outer.1, inner, p))
        }),
        ("ip-in-ipv6", LinkType::Raw, &|p| {
            ip(outer6.0, outer6.1, inner, p)
        }),
        ("gre", LinkType::Raw, &|p| {
            ip(outer.0, outer.1, 47, &[&[0, 0][..], &protocol, p].concat())
        }),
        // Two labels; the second one has the mark of the last.
        ("mpls", LinkType::Ethernet, &|p| {
            let labels = [0, 6, 0x40, 64, 0, 7, 0x41, 64];
            [&[0; 12][..], &[0x88, 0x47], &labels, p].concat()
        }),
        ("vxlan", LinkType::Raw, &|p| {
            let header = [0x08, 0, 0, 0, 0, 0, 5, 0];
            udp(ports[0], ports[1], &[&header[..], &ether(p)].concat())
        }),
        ("erspan-1", LinkType::Raw, &|p| {
            gre(&[0, 0, 0x88, 0xbe], ether(p))
        }),
        ("erspan-2", LinkType::Raw, &|p| {
            let header = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 5, 0, 0, 0, 0, 0, 1];
            gre(&header, ether(p))
        }),
        ("erspan-3", LinkType::Raw, &|p| {
            let header = [
                0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
            ];
            gre(&header, ether(p))
        }),
    ];
    let mut files: Vec<(String, Vec<u8>)> = cases
        .into_iter()
        .map(|(name, link, wrap)| (format!("{name}-{version}"), file_of(link, packets, wrap)))
        .collect();
    let pieces = fragmented(packets);
    files.push((
        format!("fragments-{version}"),
        file_of(LinkType::Ethernet, &pieces, ether),
    ));
    files.push((format!("pcapng-{version}"), pcapng(packets, &ether)));
    files
}

#[test]
fn every_container_gives_tsharks_figures() {
    for (four, from, to) in [
        (true, "192.0.2.1:4001", "198.51.100.2:6003"),
        (false, "[2001:db8::1]:4001", "[2001:db8::2]:6003"),
    ] {
        let packets = packets(from, to);
        let mut first: Option<Rows> = None;
        for (name, file) in containers(four, &packets) {
            let got = ours(&analyse_bytes(&file).expect("a capture"));
            assert_eq!(got.len(), 3, "{name}: {got:?}");
            // The container does not change a figure.
            assert_eq!(*first.get_or_insert(got.clone()), got, "{name}");
            let Some(want) = tshark(&name, &file) else {
                continue;
            };
            assert_eq!(want.len(), 3, "{name}: {want:?}");
            for (key, (received, lost, mean, max)) in want {
                let figures = got
                    .get(&key)
                    .unwrap_or_else(|| panic!("{name}: {key} in {got:?}"));
                assert_eq!((figures.0, figures.1), (received, lost), "{name} {key}");
                assert!(lost > 0, "{name} {key}: nothing was lost");
                assert!(
                    near(figures.2, mean) && near(figures.3, max),
                    "{name} {key} {figures:?} {mean} {max}"
                );
            }
        }
    }
}

/// The forms in which other tools write captures, generated by editcap if available.
#[test]
fn every_format_of_editcap() {
    let packets = packets("192.0.2.1:4001", "198.51.100.2:6003");
    let mut writer = PcapWriter::new(LinkType::Ethernet);
    for (time, packet) in &packets {
        // Whole microseconds, which every form can represent.
        writer.frame(time / 1_000 * 1_000, &ethernet(&[], packet));
    }
    let file = writer.finish();
    let want = ours(&analyse_bytes(&file).expect("a capture"));
    let folder = std::env::temp_dir();
    let path = |name: &str| folder.join(format!("hornwork-editcap-{}-{name}", std::process::id()));
    std::fs::write(path("in"), &file).expect("a temporary file");
    for form in ["pcap", "nsecpcap", "pcapng", "modpcap"] {
        let run = Command::new("editcap")
            .args(["-F", form])
            .args([path("in"), path("out")])
            .output();
        let Ok(output) = run else {
            println!("skipped: not installed: editcap (Debian: wireshark-common)");
            break;
        };
        assert!(output.status.success(), "{form}: {output:?}");
        let written = std::fs::read(path("out")).expect("editcap's file");
        let got = ours(&analyse_bytes(&written).unwrap_or_else(|e| panic!("{form}: {e}")));
        assert_eq!(got, want, "{form}");
        std::fs::remove_file(path("out")).expect("editcap's file");
    }
    std::fs::remove_file(path("in")).expect("the file was written above");
}

/// Truncation at every length: every figure is one of the packets before the cut.
#[test]
fn truncated_file_gives_its_complete_packets() {
    let packets = packets("192.0.2.1:4001", "198.51.100.2:6003");
    let file = file_of(LinkType::Ethernet, &packets, |ip| ethernet(&[], ip));
    let whole: u64 = ours(&analyse_bytes(&file).expect("a capture"))
        .values()
        .map(|f| f.0)
        .sum();
    assert_eq!(whole, packets.len() as u64);
    let mut seen = 0;
    for length in (24..file.len()).step_by(977) {
        let analysis = analyse_bytes(&file[..length]).expect("a capture");
        let received: u64 = analysis.streams.iter().map(|s| s.packets_received).sum();
        assert!(
            received >= seen && received <= whole,
            "{length}: {received} after {seen}"
        );
        assert!(
            analysis.frames >= received && analysis.frames - received <= 9,
            "{length}"
        );
        assert!(analysis.errors.len() <= 1, "{:?}", analysis.errors);
        seen = received;
    }
    assert!(seen + 8 > whole, "{seen} of {whole}");
}
