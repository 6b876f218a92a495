//! Recordings: what the forwarder took from a call, as a capture of its own (pcap), piece by piece to the driver's folder.

use super::Node;
use super::carry::Outcome;
use super::replies::ok;
use super::wishes::{Refusal, Wishes};
use engine::{Note, Output, Record, Time};
use media::MediaCommand;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;
use wire::ng::Value;

/// Letters of a Call-ID in a file's name at most.
const MAX_NAME: usize = 64;
/// Recordings at a time: each has a file open.
const MAX_RECORDS: usize = 1_000;

#[derive(Debug)]
enum Piece {
    Begin(String),
    Append(Vec<u8>),
    End,
}

/// Recordings that are going on, and pieces on their way to the driver.
#[derive(Debug, Default)]
pub(super) struct Records {
    going: usize,
    last: u64,
    pieces: VecDeque<(u64, Piece)>,
    saying: Option<(u64, Piece)>,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.going
    }

    fn begin(&mut self, name: String) -> Option<u64> {
        if self.going >= MAX_RECORDS {
            return None;
        }
        self.going += 1;
        self.last += 1;
        let header = PcapWriter::new(LinkType::Raw).finish();
        self.pieces.push_back((self.last, Piece::Begin(name)));
        self.pieces.push_back((self.last, Piece::Append(header)));
        Some(self.last)
    }

    pub(super) fn end(&mut self, file: u64) {
        self.going = self.going.saturating_sub(1);
        self.pieces.push_back((file, Piece::End));
    }

    pub(super) fn has_output(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(super) fn next_output(&mut self) -> Option<Output<'_>> {
        let piece = self.pieces.pop_front()?;
        let (file, piece) = self.saying.insert(piece);
        Some(Output::Record {
            file: *file,
            record: match piece {
                Piece::Begin(name) => Record::Begin { name },
                Piece::Append(bytes) => Record::Append { bytes },
                Piece::End => Record::End,
            },
        })
    }
}

/// A file's name: what is not a letter, a digit or one of `-_.` is a `_`, and it never begins with a dot.
fn file_name(call: &[u8], seconds: u64, number: u64) -> String {
    let safe: String = call
        .iter()
        .take(MAX_NAME)
        .map(|&byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte),
            _ => '_',
        })
        .collect();
    format!("{seconds}-{number}-{safe}.pcap")
}

impl Node {
    /// `start recording`, `stop recording`.
    pub(super) fn record(&mut self, wishes: &Wishes<'_>, start: bool) -> Result<Outcome, Refusal> {
        if start && self.spec.recordings.is_none() {
            return Err("there is no folder for recordings in the configuration".to_owned());
        }
        let sessions = self.chosen(wishes)?;
        if sessions.is_empty() {
            return Err("Unknown call-id".to_owned());
        }
        for session in sessions {
            if start {
                if !self.start_recording(session) {
                    return Err("too many recordings".to_owned());
                }
                continue;
            }
            let Some(branch) = self.branches.get_mut(session) else {
                continue;
            };
            if let Some(file) = branch.recording.take() {
                self.records.end(file);
                let command = MediaCommand::Record(session, false);
                self.plane.commands.push_back(command);
            }
        }
        Ok(Outcome::Now(ok(Value::dictionary())))
    }

    /// Records a branch from now on, where it is not yet; `false`: there are too many.
    pub(super) fn start_recording(&mut self, session: u64) -> bool {
        let Some(branch) = self.branches.get_mut(session) else {
            return true;
        };
        if branch.recording.is_some() {
            return true;
        }
        let seconds = self.epoch.nanos(self.now) / 1_000_000_000;
        let name = file_name(&branch.call, seconds, branch.number);
        let Some(file) = self.records.begin(name.clone()) else {
            return false;
        };
        branch.recording = Some(file);
        let call = branch.number;
        self.plane
            .commands
            .push_back(MediaCommand::Record(session, true));
        self.tell(Note::RecordingBegun { call, file: name });
        true
    }

    /// The forwarder took a packet for a recording.
    pub(super) fn taken(
        &mut self,
        session: u64,
        (line, side, rtcp): (u8, u8, bool),
        source: SocketAddr,
        at: Time,
        bytes: &[u8],
    ) {
        let Some(branch) = self.branches.get(session) else {
            return;
        };
        let Some(file) = branch.recording else { return };
        let place = branch
            .media
            .places()
            .find(|(index, _)| *index == usize::from(line))
            .map(|(_, [caller, callee])| if side == 0 { caller } else { callee });
        let Some(place) = place else { return };
        let local = match rtcp {
            true => place.rtcp.unwrap_or(place.rtp),
            false => place.rtp,
        };
        let Some(packet) = packet(source, local, bytes) else {
            return;
        };
        // A capture without its header: that went in front.
        let mut writer = PcapWriter::new(LinkType::Raw);
        let _ = writer.take();
        writer.frame(self.epoch.nanos(at), &packet);
        self.records
            .pieces
            .push_back((file, Piece::Append(writer.take())));
    }
}

/// An IP packet with a UDP datagram, as it would have been in the clear; `None`: of two families, or too large.
fn packet(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len() + 8).ok()?;
    let mut udp = Vec::with_capacity(payload.len() + 8);
    udp.extend(source.port().to_be_bytes());
    udp.extend(destination.port().to_be_bytes());
    udp.extend(length.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend_from_slice(payload);
    let mut out = Vec::with_capacity(udp.len() + 40);
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend([0x45, 0]);
            out.extend(length.checked_add(20)?.to_be_bytes());
            out.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
            out.extend(from.octets());
            out.extend(to.octets());
            let sum = folded(&out);
            if let Some(slot) = out.get_mut(10..12) {
                slot.copy_from_slice(&(!sum).to_be_bytes());
            }
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // A checksum of zero is not allowed over IPv6 (RFC 8200 section 8.1).
            let mut pseudo = Vec::with_capacity(udp.len() + 40);
            pseudo.extend(from.octets());
            pseudo.extend(to.octets());
            pseudo.extend(u32::from(length).to_be_bytes());
            pseudo.extend([0, 0, 0, 17]);
            pseudo.extend_from_slice(&udp);
            let sum = match !folded(&pseudo) {
                0 => 0xffff,
                sum => sum,
            };
            if let Some(slot) = udp.get_mut(6..8) {
                slot.copy_from_slice(&sum.to_be_bytes());
            }
            out.extend([0x60, 0, 0, 0]);
            out.extend(length.to_be_bytes());
            out.extend([17, 64]);
            out.extend(from.octets());
            out.extend(to.octets());
        }
        _ => return None,
    }
    out.extend_from_slice(&udp);
    Some(out)
}

/// The ones' complement sum (RFC 1071).
fn folded(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        let word = [
            pair.first().copied().unwrap_or(0),
            pair.get(1).copied().unwrap_or(0),
        ];
        sum += u64::from(u16::from_be_bytes(word));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ip::IpPacket;

    #[test]
    fn names_of_files_lead_nowhere() {
        let name = file_name(b"../../etc/pass wd\0\n\xff@h", 7, 3);
        assert_eq!(name, "7-3-.._.._etc_pass_wd____h.pcap");
        assert!(file_name(&[b'a'; 5_000], 1, 1).len() < 100);
    }

    #[test]
    fn packets_are_as_the_network_would_have_had_them() {
        for (from, to) in [
            ("192.0.2.1:4000", "192.0.2.2:5000"),
            ("[2001:db8::1]:4000", "[2001:db8::2]:5000"),
        ] {
            let bytes = packet(from.parse().unwrap(), to.parse().unwrap(), b"payload").unwrap();
            assert!(IpPacket::parse(&bytes).is_some());
            if from.starts_with('1') {
                assert_eq!(folded(&bytes[..20]), 0xffff);
            }
        }
        let mixed = packet(
            "192.0.2.1:1".parse().unwrap(),
            "[::1]:1".parse().unwrap(),
            b"x",
        );
        assert_eq!(mixed, None);
    }
}
