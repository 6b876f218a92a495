//! The shared session descriptions and the fuzz seeds: every line is kept.

use std::path::{Path, PathBuf};
use wire::sdp::{MediaRewrite, Rewrite, RtcpPort, Sdp, SdpError, rewrite};

fn testdata() -> Option<PathBuf> {
    let path = std::env::var_os("HORNWORK_TESTDATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/testdata"),
        PathBuf::from,
    );
    if !path.is_dir() {
        println!("skipped: testdata absent");
        return None;
    }
    Some(path)
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("folder of the test data");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("entry").path())
        .map(|path| {
            let name = path
                .file_name()
                .expect("name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(&path).expect("readable"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn corpus_is_parsed_and_keeps_every_line() {
    let Some(root) = testdata() else { return };
    let corpus = files(&root.join("sdp-corpus/sdp-transform"));
    assert!(corpus.len() >= 25);
    for (name, bytes) in corpus {
        let sdp = Sdp::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"m="))
            .count();
        assert_eq!(sdp.media_count(), written, "{name}");
        assert!(sdp.origin().is_some(), "{name}");
        wire::fuzz::fuzz_sdp(&bytes);
    }
}

#[test]
fn anchoring_changes_addresses_and_ice_only() {
    let Some(root) = testdata() else { return };
    let address = "203.0.113.9:30000".parse().expect("address");
    for (name, bytes) in files(&root.join("sdp-corpus/sdp-transform")) {
        let sdp = Sdp::parse(&bytes).expect("sound");
        let anchors = vec![MediaRewrite::anchor(address, RtcpPort::Mux); sdp.media_count()];
        let mut out = Vec::new();
        rewrite(
            &sdp,
            &Rewrite {
                origin: None,
                media: &anchors,
                drop: None,
            },
            &mut out,
        );
        let untouched = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let sdp = Sdp::parse(bytes).expect("sound");
            sdp.lines()
                .filter(|line| !matches!(line.kind, b'm' | b'c'))
                .filter(|line| {
                    let name = line.attribute().map_or(&b""[..], |(name, _)| name);
                    !wire::sdp::is_ice(name) && !matches!(name, b"rtcp" | b"rtcp-mux")
                })
                .map(|line| line.value.to_vec())
                .collect()
        };
        assert_eq!(untouched(&bytes), untouched(&out), "{name}");
    }
}

#[test]
fn seeds() {
    let Some(root) = testdata() else { return };
    for (name, bytes) in files(&root.join("fuzz-seeds/pjsip-sdp")) {
        wire::fuzz::fuzz_sdp(&bytes);
        assert_ne!(Sdp::parse(&bytes).err(), Some(SdpError::TooMany), "{name}");
    }
}
