//! Losses that `ping` reports, in the scripts of the tests.

/// A function of the scripts: `loss FILE` prints the summary of a ping, whose output the file has, and the sequence
/// numbers without a reply. The last ones do not count, five of twenty and more, otherwise one: ping waits for their
/// replies only for the interval, or for twice the longest round trip, which a busy machine exceeds.
pub const LOSS: &str = r#"
loss() {
  awk -v name="$1" '
    / bytes from / && split($0, parts, "icmp_seq=") == 2 { seen[parts[2] + 0] = 1 }
    /packets transmitted/ {
      last = $1 >= 20 ? $1 - 5 : $1 - 1
      for (number = 1; number <= last; number++) if (!(number in seen)) missing = missing " " number
      print name ": " $0; print name ": no reply before the last: " (missing == "" ? "none" : missing)
    }' "$1"
}
"#;

/// Requires that `loss` printed this number of packets for a file, and that no reply before the last is missing.
pub fn lossless(said: &str, log: &str, packets: u32) {
    let sent = format!("{log}: {packets} packets transmitted, ");
    let none = format!("{log}: no reply before the last: none\n");
    assert!(
        said.contains(&sent) && said.contains(&none),
        "{log}: {said}"
    );
}
