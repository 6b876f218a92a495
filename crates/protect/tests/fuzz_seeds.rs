//! Replays the seeds of the fuzz target.

use std::path::PathBuf;

#[test]
fn seeds() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/srtp");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        protect::fuzz_srtp(&bytes);
        // Every beginning of it as well: a step cut off.
        for length in 0..bytes.len() {
            protect::fuzz_srtp(&bytes[..length]);
        }
        seeds += 1;
    }
    assert!(seeds >= 15);
}
