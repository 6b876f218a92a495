//! Arbitrary bytes as VICI packets and as the daemon's log, shared by the fuzz target and the tests.

use super::{DaemonLog, ViciPacket, check_proposal};

/// Interprets `data` as a VICI packet, as lines of the daemon's log and as a proposal. Checks the invariants.
///
/// # Panics
/// An invariant is violated: the finding.
pub fn fuzz_ike(data: &[u8]) {
    if let Ok(packet) = ViciPacket::parse(data) {
        let bytes = packet.to_bytes().expect("a parsed packet can be written");
        let again = bytes.get(4..).map(ViciPacket::parse);
        assert_eq!(again, Some(Ok(packet)));
    }
    let mut log = DaemonLog::new();
    let mut children = 0;
    for part in data.chunks(97) {
        log.read(part, |_| {}, |_| children += 1);
    }
    assert!(children <= data.len() / 40);
    if let Ok(text) = core::str::from_utf8(data) {
        let _ = check_proposal(text, false);
    }
}
