//! Recordings: packets that the forwarder copies are written as a capture file (pcap) in the driver's folder.

use super::NgServer;
use super::commands::CommandResult;
use super::options::{CommandError, CommandOptions};
use super::replies::ok;
use engine::{EventKind, Output, RecordingCommand, Time};
use media::MediaCommand;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;
use wire::ng::Value;

/// Characters of the Call-ID in a file name at most.
const MAX_NAME: usize = 64;

#[derive(Debug)]
enum RecordingPiece {
    /// Name and file header.
    Begin(String, Vec<u8>),
    Append(Vec<u8>),
    End,
}

/// A recording that has not ended.
#[derive(Debug)]
struct ActiveRecording {
    session: u64,
    /// Name of its file.
    file: String,
}

/// Active recordings, and output for the driver.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    /// By number.
    active: BTreeMap<u64, ActiveRecording>,
    last: u64,
    pieces: VecDeque<(u64, RecordingPiece)>,
    output: Option<(u64, RecordingPiece)>,
}

impl Recordings {
    pub(super) fn len(&self) -> usize {
        self.active.len()
    }

    /// Begins a recording of a session of this call; returns its number and the name of its file.
    fn begin(&mut self, session: u64, call: &[u8], seconds: u64) -> (u64, String) {
        self.last += 1;
        // By its own number: a call may be recorded twice within a second.
        let name = file_name(call, seconds, self.last);
        let recording = ActiveRecording {
            session,
            file: name.clone(),
        };
        self.active.insert(self.last, recording);
        let header = PcapWriter::new(LinkType::Raw).finish();
        self.pieces
            .push_back((self.last, RecordingPiece::Begin(name.clone(), header)));
        (self.last, name)
    }

    pub(super) fn end(&mut self, file: u64) {
        self.active.remove(&file);
        self.pieces.push_back((file, RecordingPiece::End));
    }

    /// Ends all recordings; returns them in order of their start.
    fn end_all(&mut self) -> Vec<ActiveRecording> {
        let active = core::mem::take(&mut self.active);
        let ends = active.keys().map(|file| (*file, RecordingPiece::End));
        self.pieces.extend(ends);
        active.into_values().collect()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(super) fn next_output(&mut self) -> Option<Output<'_>> {
        let piece = self.pieces.pop_front()?;
        let (file, piece) = self.output.insert(piece);
        Some(Output::Recording {
            file: *file,
            command: match piece {
                RecordingPiece::Begin(name, header) => RecordingCommand::Create { name, header },
                RecordingPiece::Append(bytes) => RecordingCommand::Append { bytes },
                RecordingPiece::End => RecordingCommand::Close,
            },
        })
    }
}

/// The name of a file: characters other than letters, digits and `-_.` become `_`, and the first one is never a dot.
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

impl NgServer {
    /// The commands `start recording` and `stop recording`.
    pub(super) fn record(
        &mut self,
        options: &CommandOptions<'_>,
        start: bool,
    ) -> Result<CommandResult, CommandError> {
        if start && self.settings.recordings.is_none() {
            return Err("no folder for recordings is configured".to_owned());
        }
        let sessions = self.select_branches(options)?;
        if sessions.is_empty() {
            return Err("Unknown call-id".to_owned());
        }
        for session in sessions {
            if start {
                self.check_recordings(Some(session))?;
            }
            self.set_recording(session, Some(start));
        }
        Ok(CommandResult::Now(ok(Value::dictionary())))
    }

    /// Whether a branch, or a new one, can be recorded; to be called before a command changes anything.
    ///
    /// # Errors
    /// The limit is reached, or there is no folder for recordings.
    pub(super) fn check_recordings(&self, session: Option<u64>) -> Result<(), CommandError> {
        if self.settings.recordings.is_none() {
            return Err("no folder for recordings is configured".to_owned());
        }
        let branch = session.and_then(|session| self.branches.get(session));
        let is_recorded = branch.is_some_and(|branch| branch.recording.is_some());
        let limit = usize::try_from(self.settings.max_recordings).unwrap_or(usize::MAX);
        match is_recorded || self.recordings.len() < limit {
            true => Ok(()),
            false => Err("too many recordings".to_owned()),
        }
    }

    /// Starts or stops the recording of a branch, if a command requests it.
    pub(super) fn set_recording(&mut self, session: u64, record: Option<bool>) {
        match record {
            Some(true) => self.start_recording(session),
            Some(false) => {
                let branch = self.branches.get_mut(session);
                if let Some(file) = branch.and_then(|branch| branch.recording.take()) {
                    self.recordings.end(file);
                    self.stop_copying(session);
                }
            }
            None => {}
        }
    }

    /// Starts to record a branch unless it is recorded.
    fn start_recording(&mut self, session: u64) {
        let Some(branch) = self.branches.get_mut(session) else {
            return;
        };
        if branch.recording.is_some() {
            return;
        }
        let seconds = self.clock.nanos(self.now) / 1_000_000_000;
        let (file, name) = self.recordings.begin(session, &branch.call, seconds);
        branch.recording = Some(file);
        let call = branch.number;
        self.plane
            .commands
            .push_back(MediaCommand::Record(session, true));
        self.tell(EventKind::RecordingStarted { call, file: name });
    }

    /// The file of a recording takes no more data, as the driver has logged: the recording ends, so that another one
    /// can be started.
    pub(super) fn recording_failed(&mut self, file: u64) {
        // Otherwise it has ended in the meantime.
        if let Some(failed) = self.recordings.active.remove(&file) {
            self.stop_copying(failed.session);
        }
    }

    fn stop_copying(&mut self, session: u64) {
        if let Some(branch) = self.branches.get_mut(session) {
            branch.recording = None;
            let command = MediaCommand::Record(session, false);
            self.plane.commands.push_back(command);
        }
    }

    /// Continues all recordings in the new folder, each in another file: the driver ends the files of a folder with its
    /// use. Without a new folder the recordings end.
    pub(super) fn move_recordings(&mut self) {
        let continues = self.settings.recordings.is_some();
        for ActiveRecording { session, file } in self.recordings.end_all() {
            if continues {
                if let Some(branch) = self.branches.get_mut(session) {
                    branch.recording = None;
                }
                self.start_recording(session);
                continue;
            }
            self.stop_copying(session);
            self.tell(EventKind::RecordingFailed {
                file,
                error: "the configuration has no folder for recordings any more".to_owned(),
            });
        }
    }

    /// Writes a copied packet to its recording.
    pub(super) fn record_packet(
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
        let line_view = branch
            .media
            .line_views()
            .find(|(index, _)| *index == usize::from(line))
            .map(|(_, [caller, callee])| if side == 0 { caller } else { callee });
        let Some(line_view) = line_view else { return };
        let local = match rtcp {
            true => line_view.rtcp.unwrap_or(line_view.rtp),
            false => line_view.rtp,
        };
        let Some(packet) = packet(source, local, bytes) else {
            return;
        };
        // The file header was written before: discard the writer's own.
        let mut writer = PcapWriter::new(LinkType::Raw);
        let _ = writer.take();
        writer.frame(self.clock.nanos(at), &packet);
        self.recordings
            .pieces
            .push_back((file, RecordingPiece::Append(writer.take())));
    }
}

/// An IP packet with the payload as a UDP datagram, unencrypted; `None` for mixed address families, or if too large.
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
            let sum = ones_complement_sum(&out);
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
            let sum = match !ones_complement_sum(&pseudo) {
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
fn ones_complement_sum(bytes: &[u8]) -> u16 {
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
    fn file_names_contain_no_path() {
        let name = file_name(b"../../etc/pass wd\0\n\xff@h", 7, 3);
        assert_eq!(name, "7-3-.._.._etc_pass_wd____h.pcap");
        assert!(file_name(&[b'a'; 5_000], 1, 1).len() < 100);
    }

    #[test]
    fn recorded_packets_have_valid_headers() {
        for (from, to) in [
            ("192.0.2.1:4000", "192.0.2.2:5000"),
            ("[2001:db8::1]:4000", "[2001:db8::2]:5000"),
        ] {
            let bytes = packet(from.parse().unwrap(), to.parse().unwrap(), b"payload").unwrap();
            assert!(IpPacket::parse(&bytes).is_some());
            if from.starts_with('1') {
                assert_eq!(ones_complement_sum(&bytes[..20]), 0xffff);
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
