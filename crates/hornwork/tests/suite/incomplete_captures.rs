//! `lab analyse` of captures that are cut or damaged.

use crate::common::scratch;
use std::process::Command;
use wire::capture::{PcapWriter, PcapngWriter};
use wire::ethernet::LinkType;

/// An empty file, a record that is cut, a broken block: exit status 2 and the number of packets, with and without JSON.
#[test]
fn incomplete_capture_is_invalid_input() {
    let folder = scratch("incomplete");
    let packet = [0u8; 60];
    let mut pcap = PcapWriter::new(LinkType::Raw);
    let mut pcapng = PcapngWriter::new(false);
    pcapng.interface(LinkType::Raw, 9);
    for time in 0..5 {
        pcap.frame(time, &packet);
        pcapng.frame(0, time, &packet);
    }
    let (pcap, pcapng) = (pcap.finish(), pcapng.finish());
    // The last record has 16 and 60 bytes, a packet block 32 and 60.
    let cut = pcap.len() - 7;
    let (last, block) = (pcap.len() - 76, pcapng.len() - 92);
    let mut broken = pcapng.clone();
    broken[block + 4..block + 8].copy_from_slice(&7u32.to_le_bytes());
    for (name, bytes, frames, words) in [
        ("whole", &pcap[..], Some(5), None),
        (
            "empty",
            b"",
            None,
            Some("0 packets were read, the file ends at byte 0".to_owned()),
        ),
        (
            "cut",
            &pcap[..cut],
            Some(4),
            Some(format!(
                "the capture ends inside a record: 4 packets were read before byte {last}, the file ends at byte {cut}"
            )),
        ),
        (
            "broken",
            &broken,
            Some(4),
            Some(format!(
                "a record has an invalid length of 7 bytes: 4 packets were read before byte {block}"
            )),
        ),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("a scratch folder");
        let path = path.display().to_string();
        let none: &[&str] = &[];
        for more in [none, &["--json", "-"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
                .args(["lab", "analyse", path.as_str()])
                .args(more)
                .output()
                .expect("the program starts");
            let log = String::from_utf8_lossy(&output.stderr);
            let status = words.as_ref().map_or(0, |_| 2);
            assert_eq!(output.status.code(), Some(status), "{name}: {log}");
            let expected = words.as_deref().unwrap_or_default();
            assert!(log.contains(expected), "{name}: {log}");
            if let (Some(frames), false) = (frames, more.is_empty()) {
                let figures: serde_json::Value =
                    serde_json::from_slice(&output.stdout).expect("JSON only on standard output");
                assert_eq!(figures["frames"], frames, "{name}");
                assert_eq!(figures["damage"].is_null(), words.is_none(), "{name}");
            }
        }
    }
}
