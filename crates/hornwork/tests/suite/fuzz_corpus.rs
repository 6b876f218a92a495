//! Replays the fuzzing corpora and all seeds: no panic, no hang.

use crate::common;

use common::{root, testdata};
use std::path::{Path, PathBuf};

/// A fuzz target as a function.
type Target = fn(&[u8]);

/// Every target with its function, the same as in `fuzz/fuzz_targets`.
const TARGETS: &[(&str, Target)] = &[
    ("sip", wire::fuzz::fuzz_sip),
    ("sdp", wire::fuzz::fuzz_sdp),
    ("media", media),
    ("endpoint", sip::fuzz::fuzz_endpoint),
    ("capture", analyse::fuzz_capture),
    ("scenario_xml", lab::sipp::fuzz_scenario),
    ("border", border),
    ("rules", rules::fuzz_rules),
    ("ng", ng),
    ("ice", protect::fuzz_ice),
    ("transcode", media::fuzz_transcode),
    ("esp", protect::fuzz_esp),
    ("ike", protect::fuzz_ike),
];

fn media(data: &[u8]) {
    media::fuzz_forward(data);
    media::stats::fuzz_rtp_rtcp(data);
    wire::fuzz_packets(data);
}

fn ng(data: &[u8]) {
    wire::fuzz::fuzz_ng(data);
    border::fuzz_ng_client(data);
    ng::fuzz_ng_server(data);
}

fn border(data: &[u8]) {
    use protect::dtls::{Certificate, DtlsEndpoint, Epoch, Settings};
    static ENDPOINT: std::sync::OnceLock<DtlsEndpoint> = std::sync::OnceLock::new();
    let endpoint = ENDPOINT.get_or_init(|| {
        let epoch = Epoch::new(std::time::Instant::now());
        DtlsEndpoint::new(Settings::default(), Certificate::generate().unwrap(), epoch).unwrap()
    });
    border::fuzz_border_with_dtls(data, endpoint);
}

/// Inputs of a packed corpus: each after its length in four octets, big-endian.
fn packed(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut inputs = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (input, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        inputs.push(input);
        bytes = rest;
    }
    inputs
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn minimised_corpora() {
    for (name, target) in TARGETS {
        let path = root().join("fuzz/corpus").join(format!("{name}.pack"));
        let bytes =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let inputs = packed(&bytes);
        assert!(!inputs.is_empty(), "{name}: an empty corpus proves nothing");
        inputs.iter().for_each(|input| target(input));
        println!("{name}: {} inputs", inputs.len());
    }
}

#[test]
fn own_seeds() {
    for (name, target) in TARGETS {
        let seeds = files(&root().join("fuzz/seeds").join(name));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            target(&std::fs::read(&seed).expect("seed"));
        }
    }
}

/// Every shared message, description and packet into every target: SIP for one target is arbitrary data for another.
#[test]
fn shared_seeds() {
    let Some(data) = testdata() else { return };
    let mut count = 0;
    for folder in ["fuzz-seeds", "sip-corpus", "sip-torture", "sdp-corpus"] {
        for file in files(&data.join(folder)) {
            let bytes = std::fs::read(&file).expect("seed");
            TARGETS.iter().for_each(|(_, target)| target(&bytes));
            count += 1;
        }
    }
    assert!(count > 90, "{count} seeds");
}
