//! A name server with one zone.

/// The response to a query: all matching records of the zone, or an empty response.
pub fn zone_answer(zone: &[(&'static str, u16, Vec<u8>)], query: &[u8]) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..=at + length]).to_lowercase());
        at += 1 + length;
    }
    let name = labels.join(".");
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let found: Vec<&Vec<u8>> = zone
        .iter()
        .filter(|record| record.0 == name && record.1 == kind)
        .map(|record| &record.2)
        .collect();
    let mut answer = query[..at + 5].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[6..12].copy_from_slice(&[0, found.len() as u8, 0, 0, 0, 0]);
    for data in found {
        answer.extend([0xc0, 12]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 60]);
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }
    answer
}

/// A name in DNS format.
pub fn dns_name(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}
