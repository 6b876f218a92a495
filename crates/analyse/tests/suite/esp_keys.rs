//! ESP that is opened with key files, judged by tshark with the same keys.

use analyse::{Analysis, CaptureAnalyser, analyse_file_with};
use engine::{Entropy, Time};
use protect::esp::{
    EspEncryption, EspIntegrity, EspKeys, EspSuite, MAX_HEADROOM, MAX_TAILROOM, OutboundSa,
    PacketRoom, SaSpec, UdpEncapsulation, parse_esp_capture_keys, parse_esp_sa_file,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;

fn encryption_name(encryption: EspEncryption) -> &'static str {
    match encryption {
        EspEncryption::Null => "NULL",
        EspEncryption::AesCbc => "AES-CBC [RFC3602]",
        EspEncryption::AesCtr => "AES-CTR [RFC3686]",
        EspEncryption::AesGcm16 => "AES-GCM with 16 octet ICV [RFC4106]",
        EspEncryption::AesGcm12 => "AES-GCM with 12 octet ICV [RFC4106]",
        EspEncryption::AesGcm8 => "AES-GCM with 8 octet ICV [RFC4106]",
        EspEncryption::ChaCha20Poly1305 => "ChaCha20 with Poly1305 [RFC7634]",
        EspEncryption::TripleDes => "TripleDES-CBC [RFC2451]",
        EspEncryption::Des => "DES-CBC [RFC2405]",
        EspEncryption::Blowfish => "BLOWFISH-CBC [RFC2451]",
    }
}

fn integrity_name(integrity: EspIntegrity) -> &'static str {
    match integrity {
        EspIntegrity::None => "NULL",
        EspIntegrity::HmacMd5 => "HMAC-MD5-96 [RFC2403]",
        EspIntegrity::HmacSha1 => "HMAC-SHA-1-96 [RFC2404]",
        EspIntegrity::HmacSha256 => "HMAC-SHA-256-128 [RFC4868]",
        EspIntegrity::HmacSha256Truncated96 => "HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]",
        EspIntegrity::HmacSha384 => "HMAC-SHA-384-192 [RFC4868]",
        EspIntegrity::HmacSha512 => "HMAC-SHA-512-256 [RFC4868]",
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

fn line(v6: bool, spec: &SaSpec) -> String {
    let optional = |bytes: &[u8]| {
        if bytes.is_empty() {
            String::new()
        } else {
            hex(bytes)
        }
    };
    format!(
        "\"{}\",\"*\",\"*\",\"{:#010x}\",\"{}\",\"{}\",\"{}\",\"{}\"",
        if v6 { "IPv6" } else { "IPv4" },
        spec.spi,
        encryption_name(spec.suite.encryption),
        optional(spec.keys.expose_encryption()),
        integrity_name(spec.suite.integrity),
        optional(spec.keys.expose_integrity()),
    )
}

/// Every suite with every length of key.
fn specs() -> Vec<SaSpec> {
    let mut specs = Vec::new();
    for suite in EspSuite::all() {
        let lengths: &[usize] = match suite.encryption {
            EspEncryption::AesCbc => &[16, 24, 32],
            EspEncryption::AesCtr
            | EspEncryption::AesGcm16
            | EspEncryption::AesGcm12
            | EspEncryption::AesGcm8 => &[20, 28, 36],
            EspEncryption::ChaCha20Poly1305 => &[36],
            EspEncryption::TripleDes => &[24],
            EspEncryption::Des => &[8],
            EspEncryption::Blowfish => &[16],
            EspEncryption::Null => &[0],
        };
        for length in lengths {
            let mut bytes = vec![0; length + suite.integrity.key_length()];
            Entropy::from_number(specs.len() as u64).fill(&mut bytes);
            let (encryption, integrity) = bytes.split_at(*length);
            let keys = EspKeys::new(encryption, integrity);
            let mut spec = SaSpec::new(0x1000 + specs.len() as u32, suite, keys);
            spec.allow_weak = true;
            specs.push(spec);
        }
    }
    specs
}

/// An IPv4 packet with UDP.
fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let checksum = wire::ip::internet_checksum(&[&packet]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(source.to_be_bytes());
    packet.extend(destination.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}

fn options(number: usize) -> Vec<u8> {
    let text = format!(
        "OPTIONS sip:b@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number}\r\n\
         From: <sip:a@192.0.2.1>;tag=1\r\nTo: <sip:b@192.0.2.2>\r\nCall-ID: esp-{number}\r\n\
         CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    udp(5060, 5060, text.as_bytes())
}

fn seal(sa: &mut OutboundSa, packet: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; MAX_HEADROOM + packet.len() + MAX_TAILROOM];
    buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(packet);
    let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
    sa.seal_packet(&mut room, Time::ZERO).unwrap();
    room.packet().to_vec()
}

fn outbound(spec: &SaSpec) -> OutboundSa {
    OutboundSa::new(spec.clone(), &mut Entropy::from_number(1), Time::ZERO).unwrap()
}

/// A file in a folder of the test's own.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hornwork-esp-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn analyse(capture: &Path, keys: &str) -> Analysis {
    let lines = parse_esp_sa_file(keys).unwrap();
    let analyser = CaptureAnalyser::default().with_esp_keys(lines);
    analyse_file_with(analyser, capture).unwrap()
}

/// Every algorithm with every length of key, in both modes: tshark reads the SIP request in our sealed packets, and
/// finds the ICV right. The analyser reads all of them, too.
#[test]
fn tshark_opens_every_algorithm() {
    let (mut keys, mut capture) = (Vec::new(), PcapWriter::new(LinkType::Raw));
    let specs = specs();
    let all: Vec<SaSpec> = specs
        .iter()
        .cloned()
        .chain(specs.iter().map(|spec| {
            let mut spec = spec.clone();
            spec.spi += 0x1000;
            spec.tunnel([203, 0, 113, 1].into(), [203, 0, 113, 2].into())
        }))
        .collect();
    for (number, spec) in all.iter().enumerate() {
        keys.push(line(false, spec));
        capture.frame(number as u64, &seal(&mut outbound(spec), &options(number)));
    }
    let path = file("algorithms.pcap", &capture.finish());
    let analysis = analyse(&path, &keys.join("\n"));
    assert_eq!(analysis.sip_messages, all.len() as u64);
    assert_eq!(
        analysis.esp.iter().map(|esp| esp.opened).sum::<u64>(),
        all.len() as u64
    );
    assert!(analysis.esp.iter().all(|esp| esp.failed == 0));

    if !installed("tshark") {
        println!("skipped: tshark is not installed");
        return;
    }
    // A version may not know an algorithm: 4.0 has no ChaCha20. It then refuses the whole table.
    let known = |key: &String| {
        let table = format!("uat:esp_sa:{key}");
        let probe = Command::new("tshark")
            .args(["-o", &table, "-c", "1", "-r"])
            .arg(&path)
            .output();
        probe.is_ok_and(|output| output.status.success())
    };
    let mut algorithms = std::collections::BTreeMap::new();
    for (key, spec) in keys.iter().zip(&all) {
        algorithms
            .entry(spec.suite.to_string())
            .or_insert_with(|| known(key));
    }
    let unknown: Vec<&String> = algorithms
        .iter()
        .filter(|(_, known)| !**known)
        .map(|(name, _)| name)
        .collect();
    println!("tshark does not know {unknown:?}");
    assert!(unknown.len() <= 1, "{unknown:?}");
    let is_known = |spec: &SaSpec| algorithms[&spec.suite.to_string()];
    let keys: Vec<&String> = keys
        .iter()
        .zip(&all)
        .filter(|(_, spec)| is_known(spec))
        .map(|(key, _)| key)
        .collect();
    let mut command = Command::new("tshark");
    command.args(["-o", "esp.enable_encryption_decode:TRUE"]);
    command.args(["-o", "esp.enable_authentication_check:TRUE"]);
    for key in &keys {
        command.args(["-o", &format!("uat:esp_sa:{key}")]);
    }
    command.arg("-r").arg(&path);
    command.args([
        "-T",
        "fields",
        "-e",
        "esp.spi",
        "-e",
        "sip.Call-ID",
        "-e",
        "esp.icv_bad",
    ]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(
        rows.len(),
        all.len(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut unread = Vec::new();
    for (number, (row, spec)) in rows.iter().zip(&all).enumerate() {
        let fields: Vec<&str> = row.split('\t').collect();
        let read = fields.get(1) == Some(&format!("esp-{number}").as_str());
        let bad = fields
            .get(2)
            .is_some_and(|bad| *bad == "1" || *bad == "True");
        if is_known(spec) && (!read || bad) {
            unread.push(format!("{} {row}", spec.suite));
        }
    }
    assert!(unread.is_empty(), "{unread:#?}");
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// A stream of RTP in ESP, in ESP behind a NAT, and in IPv6, beside a call that is analysed as if it were in the clear.
#[test]
fn media_in_esp_is_analysed() {
    let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
    for (v6, encapsulated) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut spec = SaSpec::new(0x8000_1234, suite, EspKeys::new(&[7; 20], &[]));
        let ends: [IpAddr; 2] = if v6 {
            [
                "2001:db8::1".parse().unwrap(),
                "2001:db8::2".parse().unwrap(),
            ]
        } else {
            [[203, 0, 113, 1].into(), [203, 0, 113, 2].into()]
        };
        spec = spec.tunnel(ends[0], ends[1]);
        spec.encapsulation = encapsulated.then_some(UdpEncapsulation {
            source_port: 4500,
            destination_port: 4500,
        });
        let mut sa = outbound(&spec);
        let mut capture = PcapWriter::new(LinkType::Raw);
        for number in 0..200u16 {
            let mut rtp = vec![0x80, 0];
            rtp.extend(number.to_be_bytes());
            rtp.extend((u32::from(number) * 160).to_be_bytes());
            rtp.extend(0x1122_3344u32.to_be_bytes());
            rtp.extend([0xd5; 160]);
            let time = u64::from(number) * 20_000_000;
            let sealed = seal(&mut sa, &udp(4000, 4002, &rtp));
            // Every tenth is lost, one is altered.
            match number {
                55 => {
                    let mut altered = sealed;
                    *altered.last_mut().unwrap() ^= 1;
                    capture.frame(time, &altered);
                }
                number if number % 10 == 3 => {}
                _ => capture.frame(time, &sealed),
            }
        }
        let path = file(
            &format!("media-{v6}-{encapsulated}.pcap"),
            &capture.finish(),
        );
        let analysis = analyse(&path, &line(v6, &spec));
        assert_eq!(analysis.streams.len(), 1, "{v6} {encapsulated}");
        let stream = &analysis.streams[0];
        assert_eq!((stream.packets_received, stream.lost_unique), (179, 21));
        assert_eq!((analysis.esp[0].opened, analysis.esp[0].failed), (179, 1));
        assert!(
            analysis
                .notes
                .iter()
                .any(|note| note.contains("do not open"))
        );
        assert!(analyse::render_text(&analysis).contains("opened"));
        let without = analyse(&path, "");
        assert!(
            without
                .streams
                .iter()
                .all(|stream| stream.ssrc != analysis.streams[0].ssrc)
        );
    }
}

/// Keys of one direction only: a note has the address pair and the SPI of the other one.
#[test]
fn other_direction_without_a_key_is_noted() {
    let specs = specs();
    let encrypted = |spec: &&SaSpec| spec.suite.encryption == EspEncryption::AesGcm16;
    let mut specs = specs.iter().filter(encrypted);
    let (there, back) = (specs.next().unwrap(), specs.next().unwrap());
    let mut capture = PcapWriter::new(LinkType::Raw);
    capture.frame(0, &seal(&mut outbound(there), &options(1)));
    let mut packet = seal(&mut outbound(back), &options(2));
    // Source and destination swapped, which leaves the checksum as it is.
    packet[12..20].rotate_left(4);
    capture.frame(1, &packet);
    let path = file("one-way.pcap", &capture.finish());
    let (one, both) = (
        line(false, there),
        line(false, there) + "\n" + &line(false, back),
    );
    let analysis = analyse(&path, &one);
    assert_eq!(analysis.esp[0].opened, 1);
    let note = format!(
        "ESP from 192.0.2.2 to 192.0.2.1, SPI {:#010x}: no key fits, while the other direction is opened",
        back.spi
    );
    assert_eq!(analysis.notes, [note]);
    let noted = parse_esp_capture_keys(&one).unwrap().notes;
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert!(analyse(&path, &both).notes.is_empty());
    assert!(parse_esp_capture_keys(&both).unwrap().notes.is_empty());
}

/// tcpdump's tunnels in a tunnel, with keys without integrity keys, as Wireshark opens them.
#[test]
fn tcpdump_captures_open() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/testdata");
    let root = std::env::var("HORNWORK_TESTDATA").unwrap_or_else(|_| beside.into());
    let folder = Path::new(&root).join("captures/esp");
    if !folder.is_dir() {
        println!("skipped: testdata absent");
        return;
    }
    for (name, encryption) in [
        ("tcpdump-3des-tunnel", "TripleDES-CBC [RFC2451]"),
        ("tcpdump-aes256-tunnel", "AES-CBC [RFC3602]"),
    ] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.expected.json"))).unwrap();
        let oracle: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut keys = std::collections::BTreeSet::new();
        let mut layers = 0;
        for layer in oracle["packets"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|packet| packet["layers"].as_array().unwrap())
        {
            let (spi, key) = (
                layer["spi"].as_str().unwrap(),
                layer["key"].as_str().unwrap(),
            );
            let key = oracle["keys"][key].as_str().unwrap();
            keys.insert(format!(
                "\"IPv4\",\"*\",\"*\",\"{spi}\",\"{encryption}\",\"0x{key}\",\"ANY 96 bit authentication [no checking]\",\"\""
            ));
            layers += 1;
        }
        let keys: Vec<String> = keys.into_iter().collect();
        let analysis = analyse(&folder.join(format!("{name}.pcap")), &keys.join("\n"));
        assert_eq!(
            analysis.esp.iter().map(|esp| esp.opened).sum::<u64>(),
            layers
        );
        assert_eq!(analysis.esp.iter().map(|esp| esp.failed).sum::<u64>(), 0);
    }
}

#[test]
fn lines_match_by_address_and_spi() {
    let parse = |addresses: &str, spi: &str| {
        let line = format!("{addresses},\"{spi}\",\"NULL\",\"\",\"NULL\",\"\"");
        parse_esp_sa_file(&line).unwrap().remove(0)
    };
    let source: IpAddr = [192, 0, 2, 1].into();
    let destination: IpAddr = [198, 51, 100, 7].into();
    let v6: IpAddr = "2001:db8::7".parse().unwrap();
    for (addresses, spi, expected) in [
        ("\"IPv4\",\"*\",\"*\"", "*", true),
        (
            "\"IPv4\",\"192.0.2.1\",\"198.51.100.7\"",
            "0x00001234",
            true,
        ),
        ("\"IPv4\",\"192.0.2.1\",\"198.51.100.7\"", "0x1234", true),
        ("\"IPv4\",\"192.0.2.1\",\"198.51.100.7\"", "4660", true),
        ("\"IPv4\",\"192.0.2.*\",\"198.*.*.7\"", "0x0000123*", true),
        ("\"IPv4\",\"192.0.2.0/24\",\"*\"", "0x*", true),
        ("\"IPv4\",\"192.0.3.*\",\"*\"", "*", false),
        ("\"IPv4\",\"*\",\"192.0.2.1\"", "*", false),
        ("\"IPv4\",\"*\",\"*\"", "0x00001235", false),
        ("\"IPv4\",\"*\",\"*\"", "0x0000*235", false),
        ("\"IPv6\",\"*\",\"*\"", "*", false),
    ] {
        let line = parse(addresses, spi);
        assert_eq!(
            line.matches(source, destination, 0x1234),
            expected,
            "{addresses} {spi}"
        );
    }
    assert!(parse("\"IPv6\",\"2001:db8::7\",\"*\"", "*").matches(v6, v6, 1));
    assert!(parse("\"IPv6\",\"2001:db8:*:*:*:*:*:7\",\"*\"", "*").matches(v6, v6, 1));
    assert!(!parse("\"IPv6\",\"2001:db8:*:*:*:*:*:8\",\"*\"", "*").matches(v6, v6, 1));
    // As tshark: wildcards beside ::, wildcard digits, hexadecimal addresses.
    for (address, expected) in [
        ("2001:db8::*", true),
        ("2001:db9::*", false),
        ("*::7", false),
        ("2001:db*::7", true),
        ("0x20010db800000000000000000000000*", true),
        ("0x20010db8000000000000000000000008", false),
    ] {
        let line = parse(&format!("\"IPv6\",\"{address}\",\"*\""), "*");
        assert_eq!(line.matches(v6, v6, 1), expected, "{address}");
    }
    for (address, expected) in [
        ("0xC0000201", true),
        ("0xC00002**", true),
        ("0xC0000202", false),
    ] {
        let line = parse(&format!("\"IPv4\",\"{address}\",\"*\""), "*");
        assert_eq!(line.matches(source, destination, 1), expected, "{address}");
    }
}

/// Lines with other algorithms are left out with a note; HMAC without a key is not verified; NULL is not encrypted.
#[test]
fn other_lines_of_a_key_file_are_used() {
    let suite = EspSuite::new(EspEncryption::Null, EspIntegrity::HmacSha1);
    let mut spec = SaSpec::new(0x1000, suite, EspKeys::new(b"", &[7; 20]));
    spec.allow_weak = true;
    let good = line(false, &spec);
    let other = good.replace("\"NULL\",\"\"", "\"CAST5-CBC [RFC2144]\",\"0x00\"");
    let other = other.replace("0x00001000", "*");
    let keyless = good.replace(&hex(&[7; 20]), "");
    let mut capture = PcapWriter::new(LinkType::Raw);
    let packet = seal(&mut outbound(&spec), &options(1));
    capture.frame(0, &packet);
    let path = file("null.pcap", &capture.finish());
    for (keys, notes) in [
        // One of them: no line for the other direction.
        (format!("{other}\n{good}\n"), 2),
        (format!("{other}\n{keyless}\n"), 3),
    ] {
        assert_eq!(parse_esp_sa_file(&keys).unwrap_err().line, 1);
        let read = parse_esp_capture_keys(&keys).unwrap();
        assert_eq!((read.lines.len(), read.notes.len()), (1, notes), "{keys}");
        let note = read.notes[0].to_string();
        assert!(note.contains("line 1") && note.contains("CAST5"), "{note}");
        let analyser = CaptureAnalyser::default().with_esp_keys(read.lines);
        let analysis = analyse_file_with(analyser, &path).unwrap();
        let esp = &analysis.esp[0];
        assert_eq!((esp.opened, esp.failed, esp.encrypted), (1, 0, false));
    }
    // Other mistakes are errors as before.
    assert_eq!(parse_esp_capture_keys("\"IPv5\"").unwrap_err().line, 1);
}

#[test]
fn mistakes_are_named_with_their_line() {
    let good = "\"IPv4\",\"*\",\"*\",\"*\",\"AES-CBC [RFC3602]\",\"0x00112233445566778899aabbccddeeff\",\"NULL\",\"\"";
    let with = |from: &str, to: &str| good.replace(from, to);
    for (bad, says) in [
        (
            with("AES-CBC [RFC3602]", "AES"),
            "unknown encryption \"AES\"",
        ),
        (
            with("AES-CBC [RFC3602]", "TWOFISH-CBC"),
            "\"TWOFISH-CBC\" is not supported",
        ),
        (
            with("\"NULL\",\"\"", "\"SHA1\",\"0x00\""),
            "unknown authentication \"SHA1\"",
        ),
        (with("ff\"", "f\""), "even number"),
        (with("eeff\"", "ee\""), "15 bytes does not fit AES-CBC"),
        (with("IPv4", "IPv5"), "neither IPv4 nor IPv6"),
        (
            with("\"*\",\"*\",\"*\"", "\"1.2.3\",\"*\",\"*\""),
            "is no IPv4 address",
        ),
        (with("\"*\",\"AES", "\"0xzz\",\"AES"), "SPI \"0xzz\""),
        (with(",\"\"", ""), "8 fields"),
        (with(",\"\"", ",\""), "closing quotation mark"),
        (format!("{good},\"48-bit\",\"0\""), "32-bit"),
        (format!("{good},\"64-bit\",\"x\""), "upper half"),
    ] {
        let text = format!("# keys\n\n{good}\n{bad}\n");
        let error = parse_esp_sa_file(&text).unwrap_err();
        assert_eq!(error.line, 4, "{bad}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(
            !error.to_string().contains("00112233"),
            "a key is printed: {error}"
        );
    }
    let fields = format!("{good},\"64-bit\",\"0x00000001\"");
    let read = parse_esp_sa_file(&fields).unwrap();
    assert_eq!(read[0].extended_sequence, Some(1));
    let text = with("0x00112233445566778899aabbccddeeff", "sixteen \\x22bytes!!");
    assert_eq!(
        parse_esp_sa_file(&text).unwrap()[0]
            .keys
            .expose_encryption(),
        b"sixteen \"bytes!!"
    );
}
