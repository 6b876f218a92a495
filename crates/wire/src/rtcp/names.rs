//! Removal of the names of hosts and persons from a compound packet, in place (RFC 3550 sections 6.5 and 6.6).

use super::{is_compound, packet_type};
use core::ops::Range;

/// The item type of the canonical name.
const CNAME: u8 = 1;
/// Item types that identify streams, without names of hosts and persons: RtpStreamId and RepairedRtpStreamId (RFC
/// 8852), MID (RFC 8843).
const STREAM_IDS: [u8; 3] = [12, 13, 15];
/// Version 2 in the first byte of a packet.
const VERSION: u8 = 0x80;

/// Removes names from a compound packet. Each CNAME becomes the pseudonym that `pseudonym` writes over its text: it
/// returns the new length. Other items of source descriptions, except identifiers of streams, and the reasons of BYE
/// are removed; a malformed source description loses all its chunks. Returns the length of the result, which is at most
/// that of the datagram. A datagram that is no compound stays as it is.
pub fn hide_names(datagram: &mut [u8], pseudonym: &mut dyn FnMut(&mut [u8]) -> usize) -> usize {
    if !is_compound(datagram) {
        return datagram.len();
    }
    // The result of a packet is never longer than the packet, so the unread rest is never overwritten.
    let (mut read, mut write) = (0, 0);
    while let Some(&[head, kind, high, low]) = datagram.get(read..read + 4) {
        let end = read + 4 * (usize::from(u16::from_be_bytes([high, low])) + 1);
        let last = end.checked_sub(1).and_then(|last| datagram.get(last));
        let Some(&last) = last else { break };
        let padding = if head & 0x20 == 0 {
            0
        } else {
            usize::from(last)
        };
        let contents = read + 4..end.saturating_sub(padding).max(read + 4);
        let count = head & 0x1f;
        write = match kind {
            packet_type::SDES => describe(datagram, contents, write, count, pseudonym),
            packet_type::BYE => say_goodbye(datagram, contents, write, count),
            _ => {
                datagram.copy_within(read..end, write);
                write + end - read
            }
        };
        read = end;
    }
    write
}

/// Writes the header of the packet that begins at `start` and ends at `end`. Returns its end.
fn finish(datagram: &mut [u8], start: usize, end: usize, (kind, count): (u8, u8)) -> usize {
    let words = ((end - start) / 4).saturating_sub(1) as u16;
    let [high, low] = words.to_be_bytes();
    if let Some(header) = datagram.get_mut(start..start + 4) {
        header.copy_from_slice(&[VERSION | count, kind, high, low]);
    }
    end
}

/// Writes a BYE without its reason. Returns its end.
fn say_goodbye(datagram: &mut [u8], contents: Range<usize>, write: usize, count: u8) -> usize {
    let sources = usize::from(count).min(contents.len() / 4);
    let start = contents.start;
    datagram.copy_within(start..start + 4 * sources, write + 4);
    let header = (packet_type::BYE, sources as u8);
    finish(datagram, write, write + 4 + 4 * sources, header)
}

/// Whether the chunks of a source description are complete.
fn is_complete(contents: &[u8], count: u8) -> bool {
    let mut at = 0;
    for _ in 0..count {
        at += 4;
        loop {
            match contents.get(at..) {
                None | Some([]) => return false,
                // The list ends with zero bytes up to a word boundary.
                Some([0, ..]) => break,
                Some([_]) => return false,
                Some([_, length, ..]) => at += 2 + usize::from(*length),
            }
        }
        at = (at / 4 + 1) * 4;
        if at > contents.len() {
            return false;
        }
    }
    true
}

/// Writes a source description without names. Returns its end.
fn describe(
    datagram: &mut [u8],
    contents: Range<usize>,
    write: usize,
    count: u8,
    pseudonym: &mut dyn FnMut(&mut [u8]) -> usize,
) -> usize {
    let complete = datagram
        .get(contents.clone())
        .is_some_and(|contents| is_complete(contents, count));
    let count = if complete { count } else { 0 };
    let (mut at, mut to) = (contents.start, write + 4);
    for _ in 0..count {
        datagram.copy_within(at..at + 4, to);
        (at, to) = (at + 4, to + 4);
        while let Some(&[kind, length]) = datagram.get(at..at + 2) {
            if kind == 0 {
                break;
            }
            let text = at + 2..at + 2 + usize::from(length);
            let kept = match kind {
                CNAME => datagram.get_mut(text.clone()).map_or(0, |text| {
                    let room = text.len();
                    pseudonym(text).min(room)
                }),
                kind if STREAM_IDS.contains(&kind) => text.len(),
                _ => {
                    at = text.end;
                    continue;
                }
            };
            datagram.copy_within(text.start..text.start + kept, to + 2);
            if let Some(header) = datagram.get_mut(to..to + 2) {
                header.copy_from_slice(&[kind, kept as u8]);
            }
            (at, to) = (text.end, to + 2 + kept);
        }
        at = (at / 4 + 1) * 4;
        let end = (to / 4 + 1) * 4;
        if let Some(zeros) = datagram.get_mut(to..end) {
            zeros.fill(0);
        }
        to = end;
    }
    finish(datagram, write, to, (packet_type::SDES, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtcp::{Compound, CompoundBuilder, SenderInfo};
    use proptest::prelude::*;

    /// Hides with the pseudonym `xxxx`, or as much of it as there is room for.
    fn hidden(datagram: &[u8]) -> Vec<u8> {
        let mut bytes = datagram.to_vec();
        let length = hide_names(&mut bytes, &mut |text| {
            let room = text.len().min(4);
            text[..room].fill(b'x');
            room
        });
        bytes.truncate(length);
        bytes
    }

    /// A source description of chunks of items.
    fn description(chunks: &[(u32, &[(u8, &str)])]) -> Vec<u8> {
        let mut bytes = vec![0x80 | chunks.len() as u8, packet_type::SDES, 0, 0];
        for (source, items) in chunks {
            bytes.extend_from_slice(&source.to_be_bytes());
            for (kind, text) in *items {
                bytes.extend_from_slice(&[*kind, text.len() as u8]);
                bytes.extend_from_slice(text.as_bytes());
            }
            bytes.push(0);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let words = (bytes.len() / 4 - 1) as u16;
        bytes[2..4].copy_from_slice(&words.to_be_bytes());
        bytes
    }

    #[test]
    fn names_are_hidden_and_reports_stay() {
        let info = SenderInfo {
            ntp: 5,
            rtp_timestamp: 160,
            packets: 9,
            octets: 1_440,
        };
        let report = CompoundBuilder::new().sender_report(7, &info, &[]).finish();
        let names = description(&[
            (
                7,
                &[
                    (1, "alice@pbx.example.com"),
                    (2, "Alice"),
                    (15, "mid0"),
                    (6, "Phone 1.0 on pbx"),
                ],
            ),
            (8, &[(7, "in a meeting"), (8, "\u{3}abcsecret"), (1, "me")]),
            (9, &[(3, "a@b"), (4, "600"), (5, "Wien")]),
        ]);
        let goodbye = CompoundBuilder::new()
            .goodbye(&[7, 8], "pbx goes down")
            .finish();
        let feedback = [0x81, 205, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 5, 0, 0];
        let compound = [&report[..], &names, &goodbye, &feedback].concat();
        let expected = [
            &report[..],
            &description(&[
                (7, &[(1, "xxxx"), (15, "mid0")]),
                (8, &[(1, "xx")]),
                (9, &[]),
            ]),
            &CompoundBuilder::new().goodbye(&[7, 8], "").finish(),
            &feedback,
        ]
        .concat();
        assert_eq!(hidden(&compound), expected);
        let packets: Vec<_> = Compound::new(&expected).collect();
        let items: Vec<_> = packets[1].descriptions().collect();
        let expected = [
            (7, 1, &b"xxxx"[..]),
            (7, 15, &b"mid0"[..]),
            (8, 1, &b"xx"[..]),
        ];
        assert_eq!(items, expected);
        assert_eq!(packets[2].goodbye_reason(), None);
    }

    #[test]
    fn malformed_descriptions_lose_their_chunks() {
        let report = CompoundBuilder::new().receiver_report(7, &[]).finish();
        for malformed in [
            // The text is longer than the packet.
            &[0x81, 202, 0, 2, 0, 0, 0, 7, 1, 9, b'a', b'b'][..],
            // The list has no end.
            &[0x81, 202, 0, 2, 0, 0, 0, 7, 1, 2, b'a', b'b'],
            // There is one chunk of two.
            &[0x82, 202, 0, 3, 0, 0, 0, 7, 1, 2, b'a', b'b', 0, 0, 0, 0],
            &[0x81, 202, 0, 0],
        ] {
            let compound = [&report[..], malformed].concat();
            assert!(is_compound(&compound));
            let expected = [&report[..], &[0x80, 202, 0, 0]].concat();
            assert_eq!(hidden(&compound), expected, "{malformed:?}");
        }
        // A BYE with fewer sources than it counts, a padded one, and datagrams that are no compound.
        let short = [&report[..], &[0x83, 203, 0, 1, 0, 0, 0, 7]].concat();
        let one = CompoundBuilder::new().goodbye(&[7], "").finish();
        assert_eq!(hidden(&short), [&report[..], &one].concat());
        let padded = [0xa1, 203, 0, 3, 0, 0, 0, 7, 1, b'p', 0, 0, 0, 0, 0, 4];
        assert_eq!(
            hidden(&[&report[..], &padded].concat()),
            [&report[..], &one].concat()
        );
        let cut = &[&report[..], &[0x81, 202, 0, 9, 0, 0, 0, 7]].concat();
        assert_eq!(hidden(cut), *cut);
        assert!(hidden(&[]).is_empty());
    }

    /// Packets of random contents with valid lengths.
    fn compounds() -> impl Strategy<Value = Vec<u8>> {
        let kinds = prop_oneof![Just(202u8), Just(203), Just(200), 192..=223u8];
        let body = proptest::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..40);
        let packet = (any::<u8>(), kinds, body).prop_map(|(head, kind, mut body)| {
            body.resize(body.len().next_multiple_of(4), 0);
            let words = (body.len() / 4) as u8;
            [&[VERSION | head & 0x1f, kind, 0, words][..], &body].concat()
        });
        proptest::collection::vec(packet, 1..6).prop_map(|packets| packets.concat())
    }

    proptest! {
        #[test]
        fn results_are_compounds_and_stay_the_same(compound in compounds()) {
            let once = hidden(&compound);
            prop_assert!(is_compound(&once));
            prop_assert!(once.len() <= compound.len());
            prop_assert_eq!(Compound::new(&once).count(), Compound::new(&compound).count());
            prop_assert_eq!(hidden(&once), once.clone());
            for packet in Compound::new(&once) {
                prop_assert_eq!(packet.goodbye_reason().unwrap_or_default(), b"");
                for (_, kind, text) in packet.descriptions() {
                    let is_pseudonym = text.len() <= 4 && text.iter().all(|byte| *byte == b'x');
                    prop_assert!(STREAM_IDS.contains(&kind) || kind == CNAME && is_pseudonym);
                }
            }
        }
    }
}
