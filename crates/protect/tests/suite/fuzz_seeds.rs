//! Replays the seeds of the fuzz target and its minimised corpus.

use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz")
        .join(name)
}

#[test]
fn seeds() {
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder("seeds/srtp")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        protect::fuzz_srtp(&bytes);
        // Every prefix of it, too: a truncated step.
        for length in 0..bytes.len() {
            protect::fuzz_srtp(&bytes[..length]);
        }
        seeds += 1;
    }
    assert!(seeds >= 15);
}

#[test]
fn esp_seeds() {
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder("seeds/esp")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for length in 0..=bytes.len() {
            protect::fuzz_esp(&bytes[..length]);
        }
        seeds += 1;
    }
    assert!(seeds >= 9);
}

/// Each input of a packed corpus follows its length in four bytes, big-endian.
#[test]
fn minimised_corpus() {
    let packed = std::fs::read(folder("corpus/srtp.pack")).unwrap();
    let mut rest = packed.as_slice();
    let mut inputs = 0;
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (input, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
        protect::fuzz_srtp(input);
        rest = behind;
        inputs += 1;
    }
    assert!(inputs > 100 && rest.is_empty());
}
