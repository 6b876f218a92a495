//! Recorded media for playback by calls.

use engine::{Entropy, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::capture::{Reader, Step};
use wire::ethernet::{Inner, network_packet};

/// Most digits of one playback.
const MAX_DIGITS: usize = 256;
/// Clock rate of telephone events.
const EVENT_CLOCK: u32 = 8_000;
/// Most packets of one recording.
const MAX_PACKETS: usize = 1_000_000;

/// UDP payloads with their send times, relative to the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Time and payload.
    pub packets: Vec<(Duration, Vec<u8>)>,
    /// Packetization of a stream of octets.
    pub packing: Option<Packetization>,
    /// Clock rate of generated packets, which get the numbers of their call when they are sent; `None`: those of a
    /// capture are sent unchanged.
    pub clock: Option<u32>,
    /// The octet of a pattern.
    pub pattern: Option<u8>,
}

/// Numbers of the RTP packets that a call sends on one of its lines: they are of one source, whatever is played (RFC
/// 3550 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpNumbering {
    /// Synchronisation source.
    pub ssrc: u32,
    /// The next sequence number.
    pub sequence: u16,
    /// Timestamp at `origin`.
    pub timestamp: u32,
    /// Begin of the first playback.
    pub origin: Time,
}

impl RtpNumbering {
    /// Random numbers from `now` on.
    pub fn drawn(entropy: &mut Entropy, now: Time) -> RtpNumbering {
        RtpNumbering {
            ssrc: entropy.u32(),
            sequence: entropy.u32() as u16,
            timestamp: entropy.u32(),
            origin: now,
        }
    }

    /// The timestamp of a time: the clock goes on between playbacks.
    fn timestamp_at(&self, at: Time, clock: u32) -> u32 {
        let units = at.since(self.origin).as_nanos() * u128::from(clock) / 1_000_000_000;
        self.timestamp.wrapping_add(units as u32)
    }

    /// Numbers a packet of a playback that started at `started`, whose own timestamp counts from there.
    fn number(&mut self, header: &mut [u8; 12], started: Time, clock: u32) {
        let [.., a, b, c, d, _, _, _, _] = *header;
        let own = u32::from_be_bytes([a, b, c, d]);
        let timestamp = self.timestamp_at(started, clock).wrapping_add(own);
        header[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        header[4..8].copy_from_slice(&timestamp.to_be_bytes());
        header[8..12].copy_from_slice(&self.ssrc.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(1);
    }
}

impl Recording {
    /// Reads a capture: the payloads of all its UDP packets.
    ///
    /// # Errors
    /// Not a capture, or one without UDP packets.
    pub fn read(file: &[u8]) -> Result<Recording, String> {
        let (mut reader, mut input) = (Reader::new(), file);
        let mut packets = Vec::new();
        let mut first = None;
        loop {
            let used = match reader.step(input, true) {
                Step::Frame { used, frame } => {
                    if let Some(payload) = udp_payload(network_packet(frame.link, frame.data)) {
                        let start = *first.get_or_insert(frame.time);
                        let at = Duration::from_nanos(frame.time.saturating_sub(start));
                        packets.push((at, payload.to_vec()));
                    }
                    used
                }
                Step::Skip { used } => used,
                Step::Damaged { error, .. } if packets.is_empty() => {
                    return Err(format!("not a capture: {error}"));
                }
                Step::Damaged { .. } => break,
                Step::End | Step::More { .. } => break,
            };
            if packets.len() > MAX_PACKETS {
                return Err(format!("more than {MAX_PACKETS} packets"));
            }
            input = input.get(used..).unwrap_or_default();
        }
        match packets.is_empty() {
            true => Err("no UDP packets in the capture".to_owned()),
            false => Ok(Recording {
                packets,
                ..Recording::default()
            }),
        }
    }

    /// The packets of a sound: raw samples or frames, or a WAV file that contains them.
    ///
    /// # Errors
    /// A file shorter than one packet, or with too many.
    pub fn of_sound(file: &[u8], packing: Packetization) -> Result<Recording, String> {
        let samples = wav_data(file).unwrap_or(file);
        let packets: Vec<_> = samples
            .chunks_exact(packing.octets)
            .take(MAX_PACKETS)
            .enumerate()
            .map(|(number, chunk)| packing.packet(number as u32, chunk))
            .collect();
        match packets.is_empty() {
            true => Err("shorter than one packet".to_owned()),
            false => Ok(Recording {
                packets,
                packing: Some(packing),
                clock: Some(packing.clock()),
                pattern: None,
            }),
        }
    }

    /// A packet of one repeated octet.
    pub fn of_pattern(octet: u8, packing: Packetization) -> Recording {
        Recording {
            packets: vec![packing.packet(0, &vec![octet; packing.octets])],
            packing: Some(packing),
            clock: Some(packing.clock()),
            pattern: Some(octet),
        }
    }

    /// Digits as telephone events (RFC 4733): each for `tone`, followed by equal silence. Other characters are ignored.
    pub fn of_digits(digits: &[u8], tone: Duration, payload_type: u8) -> Recording {
        const STEP_MS: u64 = 20;
        let known = digits.iter().filter_map(|digit| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'*' => Some(10),
            b'#' => Some(11),
            b'A'..=b'D' => Some(12 + digit - b'A'),
            b'a'..=b'd' => Some(12 + digit - b'a'),
            _ => None,
        });
        let tone_ms = tone.as_millis() as u64;
        let mut packets = Vec::new();
        for (number, event) in known.take(MAX_DIGITS).enumerate() {
            let started = number as u64 * 2 * tone_ms;
            let updates = (STEP_MS..tone_ms).step_by(STEP_MS as usize);
            // The last packet is sent three times (RFC 4733 section 2.5.1.4).
            let all = updates.map(|at| (at, false)).chain([(tone_ms, true); 3]);
            for (index, (at, last)) in all.enumerate() {
                let mut packet = vec![0x80, payload_type & 0x7f];
                if index == 0 {
                    packet[1] |= 0x80;
                }
                packet.extend_from_slice(&[0, 0]);
                packet.extend_from_slice(&((started * 8) as u32).to_be_bytes());
                packet.extend_from_slice(&[0; 4]);
                packet.extend_from_slice(&[event, 10 | (u8::from(last) << 7)]);
                packet.extend_from_slice(&((at * 8) as u16).to_be_bytes());
                packets.push((Duration::from_millis(started + at), packet));
            }
        }
        Recording {
            packets,
            clock: Some(EVENT_CLOCK),
            ..Recording::default()
        }
    }

    /// From the first packet to one packet time after the last.
    pub fn length(&self) -> Duration {
        let last = self.packets.last().map_or(Duration::ZERO, |(at, _)| *at);
        let step = self.packing.map_or(20, |packing| packing.milliseconds);
        last + Duration::from_millis(step)
    }
}

/// Packetization of a stream of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packetization {
    /// RTP payload type.
    pub payload_type: u8,
    /// Whether it is video.
    pub video: bool,
    octets: usize,
    milliseconds: u64,
    /// Timestamp units of a packet; G.722 counts at 8 kHz (RFC 3551 section 4.5.2).
    units: u32,
}

impl Packetization {
    /// By payload type, and by the name in `rtpmap` for a dynamic one; as in SIPp.
    pub fn of(payload_type: u8, format: &str) -> Option<Packetization> {
        let format = format.to_ascii_uppercase();
        let (octets, milliseconds, units) = match (payload_type, format.as_str()) {
            (0, "" | "PCMU/8000") | (8, "" | "PCMA/8000") | (9, "" | "G722/8000") => (160, 20, 160),
            (18, "" | "G729/8000") => (20, 20, 160),
            (13, "CN/8000") => (1, 150, 1_200),
            (96..=127, "ILBC/8000") => (50, 30, 240),
            (96..=127, "H264/90000") => (1_280, 160, 14_400),
            _ => return None,
        };
        Some(Packetization {
            payload_type,
            video: format.starts_with("H264"),
            octets,
            milliseconds,
            units,
        })
    }

    /// RTP clock rate.
    fn clock(&self) -> u32 {
        self.units * 1_000 / self.milliseconds as u32
    }

    /// The packet of this number; sequence number and source are those of the call that sends it.
    fn packet(&self, number: u32, chunk: &[u8]) -> (Duration, Vec<u8>) {
        let mut packet = vec![0x80, self.payload_type & 0x7f, 0, 0];
        packet.extend_from_slice(&number.wrapping_mul(self.units).to_be_bytes());
        packet.extend_from_slice(&[0; 4]);
        packet.extend_from_slice(chunk);
        (Duration::from_millis(self.milliseconds) * number, packet)
    }
}

fn udp_payload<'a>(inner: Option<Inner<'a>>) -> Option<&'a [u8]> {
    let packet = inner?.payload;
    let udp = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 15) * 4;
            (*packet.get(9)? == 17).then_some(packet.get(header..)?)?
        }
        6 => (*packet.get(6)? == 17).then_some(packet.get(40..)?)?,
        _ => return None,
    };
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    udp.get(8..length.min(udp.len()))
}

/// The samples of a WAV file.
fn wav_data(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file
        .strip_prefix(b"RIFF")?
        .get(4..)?
        .strip_prefix(b"WAVE")?;
    loop {
        let (name, tail) = rest.split_first_chunk::<4>()?;
        let (length, tail) = tail.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        if name == b"data" {
            return Some(tail.get(..length).unwrap_or(tail));
        }
        rest = tail.get(length + (length & 1)..)?;
    }
}

/// A recording in playback.
#[derive(Clone, Debug)]
pub struct RecordingPlayback {
    recording: Arc<Recording>,
    destination: SocketAddr,
    video: bool,
    /// Start of the current pass.
    started: Time,
    next: usize,
    /// Passes left; `None`: endless.
    left: Option<u32>,
}

impl RecordingPlayback {
    /// Playback from `now` on; `times` passes, endless if negative.
    pub fn new(
        recording: Arc<Recording>,
        destination: SocketAddr,
        video: bool,
        times: i32,
        now: Time,
    ) -> RecordingPlayback {
        RecordingPlayback {
            recording,
            destination,
            video,
            started: now,
            next: 0,
            left: u32::try_from(times)
                .ok()
                .map(|times| times.saturating_sub(1)),
        }
    }

    /// Due time of its next packet; `None` at the end.
    pub fn next_at(&self) -> Option<Time> {
        let (at, _) = self.recording.packets.get(self.next)?;
        Some(self.started + *at)
    }

    /// Whether packets use the socket for video.
    pub fn is_video(&self) -> bool {
        self.video
    }

    /// Delays the playback by the length of a pause.
    pub fn shift(&mut self, by: Duration) {
        self.started += by;
    }

    /// The octet of a pattern in playback.
    pub fn pattern(&self) -> Option<u8> {
        self.recording.pattern
    }

    /// Appends the next packet, numbered if it is a generated one; returns its destination.
    pub fn write_next(
        &mut self,
        numbering: &mut RtpNumbering,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        let (_, packet) = self.recording.packets.get(self.next)?;
        let start = out.len();
        out.extend_from_slice(packet);
        if let Some(clock) = self.recording.clock
            && let Some(header) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut)
        {
            numbering.number(header, self.started, clock);
        }
        self.next += 1;
        if self.next == self.recording.packets.len() && self.left != Some(0) {
            self.left = self.left.map(|left| left - 1);
            self.started += self.recording.length();
            self.next = 0;
        }
        Some(self.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_sound_continue_over_passes() {
        let mut wav = b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0ab".to_vec();
        wav.extend_from_slice(b"data\x40\x01\0\0");
        wav.extend_from_slice(&[7; 320]);
        let packing = Packetization::of(8, "PCMA/8000").unwrap();
        let recording = Arc::new(Recording::of_sound(&wav, packing).unwrap());
        assert_eq!(recording.packets.len(), 2);
        let to = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut playing = RecordingPlayback::new(recording, to, false, 2, Time::from_secs(1));
        let mut sent = Vec::new();
        let mut numbering = RtpNumbering {
            ssrc: 5,
            sequence: 0,
            timestamp: 0,
            origin: Time::from_secs(1),
        };
        while let Some(at) = playing.next_at() {
            let mut packet = Vec::new();
            assert_eq!(playing.write_next(&mut numbering, &mut packet), Some(to));
            assert_eq!(packet[8..12], [0, 0, 0, 5]);
            sent.push((at.as_millis(), packet[3], packet[7], packet.len()));
        }
        assert_eq!(
            sent,
            [
                (1_000, 0, 0, 172),
                (1_020, 1, 160, 172),
                (1_040, 2, 64, 172),
                (1_060, 3, 224, 172)
            ]
        );
        assert!(Recording::of_sound(&[0; 10], packing).is_err());
        assert!(Recording::read(b"nothing").is_err());
    }

    #[test]
    fn digits_become_telephone_events() {
        let digits = Recording::of_digits(b"7x#", Duration::from_millis(100), 101);
        // At 20, 40, 60 and 80 ms, and the end three times; the second digit 200 ms later.
        assert_eq!(digits.packets.len(), 14);
        let (at, packet) = &digits.packets[0];
        assert_eq!((at.as_millis(), packet[1], packet[12]), (20, 0x80 | 101, 7));
        let (at, packet) = &digits.packets[4];
        assert_eq!((at.as_millis(), packet[1], packet[13]), (100, 101, 0x8a));
        assert_eq!(packet[14..], 800u16.to_be_bytes());
        let (at, packet) = &digits.packets[13];
        assert_eq!((at.as_millis(), packet[12]), (300, 11));
        assert_eq!(packet[4..8], 1_600u32.to_be_bytes());
    }
}
