//! The analyser against the oracle files of the shared captures: counts exactly, jitter within 0.05 ms or 2 %.

use analyse::{Analysis, analyse_bytes, analyse_file};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn captures() -> Option<PathBuf> {
    let root = std::env::var("HORNWORK_TESTDATA").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/testdata").into()
    });
    let captures = Path::new(&root).join("captures");
    if !captures.is_dir() {
        println!("skipped: testdata absent");
        return None;
    }
    Some(captures)
}

fn files(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, ends, found);
        } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
            found.push(path);
        }
    }
}

fn analyse(path: &Path) -> (Analysis, Value) {
    let analysis = analyse_file(path).unwrap_or_else(|error| panic!("{error}"));
    let json = analysis.to_json();
    (analysis, json)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("{name} in {value}"))
}

fn near(got: &Value, want: &Value, context: &str) {
    let got = got
        .as_f64()
        .unwrap_or_else(|| panic!("{context}: no figure"));
    let want = want
        .as_f64()
        .unwrap_or_else(|| panic!("{context}: no oracle"));
    let tolerance = (want.abs() * 0.02).max(0.05);
    assert!(
        (got - want).abs() <= tolerance,
        "{context}: {got}, the oracle says {want}"
    );
}

fn compare(got: &Value, want: &Value, context: &str) {
    let same = [
        "packets_received",
        "unique",
        "duplicates",
        "out_of_order",
        "lowest_ext_seq",
        "highest_ext_seq",
        "seq_cycles",
        "expected",
        "lost_unique",
        "rfc3550_cumulative_lost",
        "payload_types",
        "markers",
        "clock_rate",
    ];
    for name in same {
        assert_eq!(got[name], want[name], "{context}: {name}");
    }
    near(
        &got["lost_percent"],
        &want["lost_percent"],
        &format!("{context}: lost_percent"),
    );
    near(
        &got["duration_s"],
        &want["duration_s"],
        &format!("{context}: duration_s"),
    );
    for figure in ["min", "mean", "max"] {
        near(
            &got["delta_ms"][figure],
            &want["interarrival_ms"][figure],
            &format!("{context}: delta {figure}"),
        );
    }
    let stated = match &want["jitter_ms_rfc3550_main_pt_without_duplicates"] {
        Value::String(_) => &want["jitter_ms_rfc3550_all_packets"],
        figures => figures,
    };
    for figure in ["last", "mean", "max"] {
        near(
            &got["jitter_ms"][figure],
            &stated[figure],
            &format!("{context}: jitter {figure}"),
        );
    }
    let p99 = got["jitter_ms"]["p99"].as_f64().expect("p99");
    assert!(
        p99 <= stated["max"].as_f64().unwrap() * 1.04 + 1e-3,
        "{context}: p99 {p99}"
    );
    if text(want, "src").len() > 3 && want["tshark_4_0_17"]["packets"].is_u64() {
        assert_eq!(
            got["packets_received"], want["tshark_4_0_17"]["packets"],
            "{context}: tshark"
        );
    }
}

#[test]
fn every_oracle() {
    let Some(captures) = captures() else { return };
    let mut oracles = Vec::new();
    files(&captures, &[".expected.json"], &mut oracles);
    let mut compared = 0;
    for path in &oracles {
        let oracle: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON");
        let Some(streams) = ["streams", "rtp_streams", "rtp"]
            .iter()
            .find_map(|name| oracle[*name].as_array())
        else {
            continue;
        };
        let default = path.to_string_lossy().replace(".expected.json", ".pcap");
        let mut by_capture: BTreeMap<PathBuf, Vec<&Value>> = BTreeMap::new();
        if let Some(name) = oracle["capture"].as_str() {
            by_capture.insert(path.with_file_name(name), Vec::new());
        }
        for stream in streams {
            let capture = match (stream["capture"].as_str(), oracle["capture"].as_str()) {
                (Some(name), _) | (None, Some(name)) => path.with_file_name(name),
                (None, None) => PathBuf::from(&default),
            };
            by_capture.entry(capture).or_default().push(stream);
        }
        for (capture, wanted) in by_capture {
            let (_, json) = analyse(&capture);
            let got = json["streams"].as_array().expect("streams");
            let key = |stream: &Value| {
                format!(
                    "{} > {} {}",
                    text(stream, "src"),
                    text(stream, "dst"),
                    text(stream, "ssrc")
                )
            };
            let mut got_keys: Vec<String> = got.iter().map(key).collect();
            let mut want_keys: Vec<String> = wanted.iter().map(|stream| key(stream)).collect();
            got_keys.sort();
            want_keys.sort();
            assert_eq!(got_keys, want_keys, "{}", capture.display());
            for want in wanted {
                let got = got
                    .iter()
                    .find(|got| key(got) == key(want))
                    .expect("found above");
                compare(got, want, &format!("{} {}", capture.display(), key(want)));
                compared += 1;
            }
            assert_eq!(
                json["errors"],
                Value::Array(vec![]),
                "{}",
                capture.display()
            );
        }
    }
    assert!(compared >= 17, "only {compared} streams compared");
}

#[test]
fn dtmf_digits() {
    let Some(captures) = captures() else { return };
    for (name, digit) in [
        ("0", "0"),
        ("1", "1"),
        ("2", "2"),
        ("3", "3"),
        ("4", "4"),
        ("star", "*"),
    ] {
        let (analysis, _) = analyse(&captures.join(format!("dtmf/sipp-dtmf_2833_{name}.pcap")));
        assert_eq!(analysis.streams.len(), 1, "{name}");
        assert_eq!(analysis.streams[0].dtmf, [digit]);
        let stream = &analysis.streams[0];
        assert_eq!(
            (stream.packets_received, stream.unique, stream.duplicates),
            (10, 8, 2)
        );
    }
    for name in ["asterisk-ulaw-dtmf-a.pcap", "asterisk-opus-dtmf-a.pcap"] {
        let (analysis, _) = analyse(&captures.join("rtp").join(name));
        // The file names contain the dialled digits.
        assert_eq!(analysis.streams[0].dtmf.concat(), "2013785496", "{name}");
    }
}

#[test]
fn calls_of_the_sip_captures() {
    let Some(captures) = captures() else { return };
    let (analysis, _) = analyse(&captures.join("sip/zeek-wireshark.pcap"));
    let outcomes: Vec<_> = analysis.calls.iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, ["cancelled", "rejected", "rejected", "no_answer"]);
    assert_eq!(analysis.calls[0].from, "sip:816666@voip.brurjula.net");
    assert_eq!(analysis.calls[0].outcome, "cancelled");
    assert!(analysis.calls[0].retransmissions >= 2);
    let (analysis, _) = analyse(&captures.join("sip/suricata-sip-sdp.pcap"));
    assert_eq!(analysis.calls.len(), 1);
    assert_eq!(
        (analysis.calls[0].outcome, analysis.calls[0].messages),
        ("established", 2)
    );
    let (analysis, _) = analyse(&captures.join("sip/suricata-sip-tcp.pcap"));
    assert_eq!(
        (analysis.sip_messages, analysis.calls.len()),
        (2, 0),
        "a REGISTER in two segments and its answer"
    );
    let (analysis, _) = analyse(&captures.join("sip/ndpi-sip_hello.pcapng"));
    assert_eq!(analysis.sip_messages, 8);
}

#[test]
fn esp_and_encryption() {
    let Some(captures) = captures() else { return };
    let path = captures.join("ims/ipsec_reg.pcapng");
    let oracle =
        std::fs::read_to_string(path.with_file_name("ipsec_reg.expected.json")).expect("readable");
    let oracle: Value = serde_json::from_str(&oracle).expect("JSON");
    let (analysis, _) = analyse(&path);
    assert!(analysis.streams.is_empty(), "{:?}", analysis.streams);
    let wanted = oracle["esp"]["security_associations"]
        .as_object()
        .expect("associations");
    assert_eq!(analysis.esp.len(), wanted.len());
    for esp in &analysis.esp {
        let want = &wanted[&format!("{}>{} {}", esp.src, esp.dst, esp.spi)];
        assert_eq!(Value::from(esp.packets), want["packets"]);
        let numbers = want["seqs"].as_array().expect("numbers");
        assert_eq!(
            (&Value::from(esp.lowest_seq), &Value::from(esp.highest_seq)),
            (&numbers[0], &numbers[numbers.len() - 1])
        );
        assert!(!esp.encrypted, "ESP with null encryption is read");
    }
    let (analysis, _) = analyse(&captures.join("esp/tcpdump-aes256-tunnel.pcap"));
    assert!(
        analysis
            .esp
            .iter()
            .all(|esp| esp.encrypted && esp.packets == 8)
    );
    let (analysis, _) = analyse(&captures.join("dtls/ndpi-stun_dtls_rtp.pcapng"));
    assert_eq!(analysis.streams.len(), 1);
    let stream = &analysis.streams[0];
    assert!(stream.srtp && stream.packets_received == 11 && stream.lost_unique == 0);
}

#[test]
fn captures_without_media_have_no_streams() {
    let Some(captures) = captures() else { return };
    let mut all = Vec::new();
    files(&captures, &[".pcap", ".pcapng"], &mut all);
    assert!(all.len() > 25);
    for path in all {
        let (analysis, json) = analyse(&path);
        assert!(
            analysis.errors.is_empty(),
            "{}: {:?}",
            path.display(),
            analysis.errors
        );
        // The folder in which the sources lie may have any name.
        let inside = path.strip_prefix(&captures).expect("a capture");
        let name = format!("/{}", inside.display());
        if [
            "/esp/", "/ike/", "/ims/", "zeek", "pcpp", "suricata", "hello",
        ]
        .iter()
        .any(|part| name.contains(part))
        {
            assert!(analysis.streams.is_empty(), "{name}: {:?}", json["streams"]);
        }
        let text = analyse::render_text(&analysis);
        assert!(text.lines().count() > analysis.streams.len());
        assert_eq!(
            analyse_bytes(&std::fs::read(&path).expect("readable"))
                .expect("a capture")
                .to_json(),
            json
        );
    }
}

#[test]
fn damaged_captures_give_their_readable_part() {
    let Some(captures) = captures() else { return };
    let mut all = Vec::new();
    files(&captures, &[".pcap", ".pcapng"], &mut all);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for path in all {
        let whole = std::fs::read(&path).expect("readable");
        let frames = analyse_bytes(&whole).expect("a capture").frames;
        let cut = analyse_bytes(&whole[..whole.len() - 5]).expect("still a capture");
        assert!(
            cut.frames == frames || cut.frames + 1 == frames,
            "{}",
            path.display()
        );
        let half = analyse_bytes(&whole[..whole.len() / 2 + 1]).expect("still a capture");
        assert!(
            half.frames < frames && (half.frames > 0 || frames < 4),
            "{}",
            path.display()
        );
        assert_eq!(cut.errors.len(), 1, "{}: {:?}", path.display(), cut.errors);
        let rounds = (20_000_000 / whole.len()).clamp(20, 500);
        for _ in 0..rounds {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 30 {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
            if next() % 4 == 0 {
                bytes.truncate(next() as usize % bytes.len());
            }
            analyse::fuzz_capture(&bytes);
        }
    }
}
