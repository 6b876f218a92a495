//! Segments: files of raw messages in pcapng (draft-ietf-opsawg-pcapng), little-endian, with nanoseconds. Each message
//! is in a UDP packet with its real addresses, also one of TCP, TLS or WebSocket, so that every tool can open the file;
//! the name of the packet's interface is the transport.

use engine::Transport;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Maximum size of a segment in bytes; offsets have 32 bits.
pub(crate) const MAX_SEGMENT: u64 = 128 << 20;
/// Maximum bytes of a message that fit into a UDP packet; the rest of a longer one is not stored.
pub(crate) const MAX_MESSAGE: usize = 65_000;
/// Maximum length of a block that is read.
const MAX_BLOCK: usize = 70_000;
/// Buffered bytes above which the buffer is written.
const WRITE_SIZE: usize = 256 << 10;
/// Block type of a packet.
const ENHANCED_PACKET: u32 = 6;
/// Transports in the order of the interfaces.
pub(crate) const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp,
    Transport::Tls,
    Transport::Ws,
    Transport::Wss,
];
/// Link type of raw IP packets.
const LINK_RAW: u16 = 101;

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredDirection {
    /// Received by the border.
    Received,
    /// Sent by the border.
    Sent,
    /// Seen by a capture agent.
    Observed,
}

impl StoredDirection {
    /// The word in texts and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            StoredDirection::Received => "received",
            StoredDirection::Sent => "sent",
            StoredDirection::Observed => "observed",
        }
    }
}

/// A message with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMessage<'a> {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// Direction.
    pub direction: StoredDirection,
    /// Transport.
    pub transport: Transport,
    /// Sender.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
    /// The message.
    pub bytes: &'a [u8],
}

impl StoredMessage<'_> {
    /// Microseconds since the Unix epoch.
    pub fn micros(&self) -> i64 {
        (self.time / 1_000) as i64
    }
}

/// The blocks before the first message.
pub(crate) fn header() -> Vec<u8> {
    header_with("")
}

/// The same with a comment about the file, if it is not empty.
pub(crate) fn header_with(comment: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut body = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend([0xff; 8]);
    if let Ok(length) = u16::try_from(comment.len())
        && length > 0
    {
        // opt_comment (1), and the end of options.
        body.extend([1, 0]);
        body.extend(length.to_le_bytes());
        body.extend_from_slice(comment.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([0; 4]);
    }
    block(&mut out, 0x0a0d_0d0a, &body);
    for transport in TRANSPORTS {
        let mut body = LINK_RAW.to_le_bytes().to_vec();
        body.extend([0, 0]);
        body.extend(262_144_u32.to_le_bytes());
        // if_name (2) and if_tsresol (9): nanoseconds.
        let name = transport.uri_name().as_bytes();
        body.extend([2, 0, name.len() as u8, 0]);
        body.extend_from_slice(name);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        block(&mut out, 1, &body);
    }
    out
}

fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.extend(kind.to_le_bytes());
    out.extend(length);
    out.extend_from_slice(body);
    out.extend(length);
}

fn checksum(words: impl Iterator<Item = u16>) -> u16 {
    let sum: u64 = words.map(u64::from).sum();
    let folded = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let folded = (folded & 0xffff) + (folded >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u16::from_be_bytes([pair.first().copied().unwrap_or(0), low])
    })
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The IP and UDP headers of a message.
fn headers(message: &StoredMessage<'_>, payload: &[u8]) -> ([u8; 48], usize) {
    let mut bytes = [0; 48];
    let udp_length = (payload.len() + 8) as u16;
    let mut udp = [0; 8];
    udp[..2].copy_from_slice(&message.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&message.destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    if let (IpAddr::V4(source), IpAddr::V4(destination)) =
        (message.source.ip(), message.destination.ip())
    {
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&(udp_length + 20).to_be_bytes());
        bytes[8..10].copy_from_slice(&[64, 17]);
        bytes[12..16].copy_from_slice(&source.octets());
        bytes[16..20].copy_from_slice(&destination.octets());
        let sum = checksum(words(&bytes[..20]));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        // A UDP checksum of zero is none, which IPv4 allows.
        bytes[20..28].copy_from_slice(&udp);
        return (bytes, 28);
    }
    let (source, destination) = (
        mapped(message.source.ip()),
        mapped(message.destination.ip()),
    );
    bytes[0] = 0x60;
    bytes[4..6].copy_from_slice(&udp_length.to_be_bytes());
    bytes[6..8].copy_from_slice(&[17, 64]);
    bytes[8..24].copy_from_slice(&source.octets());
    bytes[24..40].copy_from_slice(&destination.octets());
    let pseudo = words(&bytes[8..40]).chain([udp_length, 17]);
    let sum = checksum(pseudo.chain(words(&udp)).chain(words(payload)));
    let sum = if sum == 0 { 0xffff } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    bytes[40..48].copy_from_slice(&udp);
    (bytes, 48)
}

/// Appends the block of a message.
pub(crate) fn append(out: &mut Vec<u8>, message: &StoredMessage<'_>) {
    let payload = message.bytes.get(..MAX_MESSAGE).unwrap_or(message.bytes);
    let (headers, length) = headers(message, payload);
    let interface = TRANSPORTS.iter().position(|one| *one == message.transport);
    let captured = length + payload.len();
    let padding = captured.next_multiple_of(4) - captured;
    // Header, packet, the option epb_flags, the end of options, and the length again.
    let total = (28 + captured + padding + 8 + 4 + 4) as u32;
    let original = (length + message.bytes.len()) as u32;
    for word in [
        ENHANCED_PACKET,
        total,
        interface.unwrap_or(0) as u32,
        (message.time >> 32) as u32,
        message.time as u32,
        captured as u32,
        original,
    ] {
        out.extend(word.to_le_bytes());
    }
    out.extend_from_slice(headers.get(..length).unwrap_or_default());
    out.extend_from_slice(payload);
    out.extend_from_slice([0; 4].get(..padding).unwrap_or_default());
    let direction = match message.direction {
        StoredDirection::Observed => 0,
        StoredDirection::Received => 1,
        StoredDirection::Sent => 2,
    };
    out.extend([2, 0, 4, 0, direction, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(total.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

/// The message of the block at the beginning of `bytes`, and the block's length. `None`: there is no complete block of
/// a message as [`append`] writes it.
pub(crate) fn message_at(bytes: &[u8]) -> Option<(StoredMessage<'_>, usize)> {
    if word(bytes, 0)? != ENHANCED_PACKET {
        return None;
    }
    let total = word(bytes, 4)? as usize;
    if !(48..=MAX_BLOCK).contains(&total) || word(bytes, total.checked_sub(4)?)? as usize != total {
        return None;
    }
    let transport = *TRANSPORTS.get(word(bytes, 8)? as usize)?;
    let time = u64::from(word(bytes, 12)?) << 32 | u64::from(word(bytes, 16)?);
    let captured = word(bytes, 20)? as usize;
    let packet = bytes.get(28..28_usize.checked_add(captured)?)?;
    if 28 + captured.next_multiple_of(4) + 16 != total {
        return None;
    }
    let (source, destination, udp) = match packet.first()? >> 4 {
        4 => (
            IpAddr::V4(Ipv4Addr::from(
                <[u8; 4]>::try_from(packet.get(12..16)?).ok()?,
            )),
            IpAddr::V4(Ipv4Addr::from(
                <[u8; 4]>::try_from(packet.get(16..20)?).ok()?,
            )),
            packet.get(20..)?,
        ),
        _ => (
            IpAddr::from(<[u8; 16]>::try_from(packet.get(8..24)?).ok()?).to_canonical(),
            IpAddr::from(<[u8; 16]>::try_from(packet.get(24..40)?).ok()?).to_canonical(),
            packet.get(40..)?,
        ),
    };
    let port = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
    let flags = bytes.get(total - 16 + 4)?;
    let message = StoredMessage {
        time,
        direction: match flags & 3 {
            1 => StoredDirection::Received,
            2 => StoredDirection::Sent,
            _ => StoredDirection::Observed,
        },
        transport,
        source: SocketAddr::new(source, port(0)?),
        destination: SocketAddr::new(destination, port(2)?),
        bytes: udp.get(8..)?,
    };
    Some((message, total))
}

/// The path of a segment.
pub(crate) fn path_of(partition: &Path, number: u32) -> PathBuf {
    partition.join(format!("messages-{number:06}.pcapng"))
}

/// Numbers of the segments of a partition, ascending.
pub(crate) fn numbers(partition: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(partition)? {
        let name = entry?.file_name();
        let name = name.to_str().unwrap_or_default();
        let digits = name
            .strip_prefix("messages-")
            .and_then(|rest| rest.strip_suffix(".pcapng"));
        numbers.extend(digits.and_then(|digits| digits.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Appends messages to a segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    file: File,
    pub(crate) number: u32,
    buffer: Vec<u8>,
    /// Messages in the buffer.
    waiting: u64,
    /// Bytes in the file.
    written: u64,
    /// Whether the end of the file is unknown, because a part of a message could not be removed.
    is_broken: bool,
}

impl SegmentWriter {
    /// Creates a segment.
    pub(crate) fn create(partition: &Path, number: u32) -> io::Result<SegmentWriter> {
        let path = path_of(partition, number);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        let mut writer = SegmentWriter {
            file,
            number,
            buffer: header(),
            waiting: 0,
            written: 0,
            is_broken: false,
        };
        if let Err(error) = writer.flush() {
            // An empty file would be no capture; its number is used again.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(writer)
    }

    /// Appends a message; returns its offset.
    pub(crate) fn append(&mut self, message: &StoredMessage<'_>) -> u32 {
        let offset = self.length();
        append(&mut self.buffer, message);
        self.waiting += 1;
        offset as u32
    }

    /// Messages that are not written to the file yet.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Bytes in the file and in the buffer.
    pub(crate) fn length(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Bytes in the file.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether it takes no further message.
    pub(crate) fn is_full(&self) -> bool {
        self.is_broken || self.length() >= MAX_SEGMENT
    }

    pub(crate) fn is_due(&self) -> bool {
        self.buffer.len() >= WRITE_SIZE
    }

    /// Writes the buffer. On failure the buffer is discarded, and the file ends with the last complete message.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let done = self.file.write_all(&self.buffer);
        match &done {
            Ok(()) => self.written += self.buffer.len() as u64,
            Err(_) => {
                let cut = self.file.set_len(self.written);
                let cut = cut.and_then(|()| self.file.seek(SeekFrom::Start(self.written)));
                self.is_broken |= cut.is_err();
            }
        }
        self.buffer.clear();
        self.waiting = 0;
        done
    }
}

/// Reads messages of a segment by their offsets.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    file: File,
    buffer: Vec<u8>,
}

impl SegmentReader {
    pub(crate) fn open(partition: &Path, number: u32) -> io::Result<SegmentReader> {
        Ok(SegmentReader {
            file: File::open(path_of(partition, number))?,
            buffer: Vec::new(),
        })
    }

    /// The message at `offset`; `None` if there is none.
    pub(crate) fn read(&mut self, offset: u32) -> io::Result<Option<StoredMessage<'_>>> {
        self.file.seek(SeekFrom::Start(offset.into()))?;
        let mut head = [0; 8];
        match self.file.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            done => done?,
        }
        let total = word(&head, 4).unwrap_or(0) as usize;
        if !(48..=MAX_BLOCK).contains(&total) {
            return Ok(None);
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(&head);
        let rest = (total - head.len()) as u64;
        (&mut self.file).take(rest).read_to_end(&mut self.buffer)?;
        Ok(message_at(&self.buffer).map(|(message, _)| message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::capture::{Reader, Step};

    fn message(bytes: &[u8], v6: bool) -> StoredMessage<'_> {
        let source = if v6 {
            "[2001:db8::1]:5061"
        } else {
            "192.0.2.1:5060"
        };
        StoredMessage {
            time: 1_764_000_123_456_789_012,
            direction: StoredDirection::Sent,
            transport: if v6 { Transport::Tls } else { Transport::Udp },
            source: source.parse().unwrap(),
            destination: "192.0.2.2:5080".parse().unwrap(),
            bytes,
        }
    }

    #[test]
    fn blocks_are_read_by_us_and_by_the_capture_reader() {
        let mut file = header();
        let start = file.len();
        let long = vec![b'x'; MAX_MESSAGE + 7];
        for bytes in [&b"a"[..], b"four", b"", &long] {
            append(&mut file, &message(bytes, false));
            append(&mut file, &message(bytes, true));
        }
        let mut at = start;
        let mut count = 0;
        while let Some((read, used)) = message_at(&file[at..]) {
            assert_eq!(read.direction, StoredDirection::Sent);
            assert_eq!(read.time, 1_764_000_123_456_789_012);
            assert_eq!(read.transport == Transport::Tls, count % 2 == 1);
            assert_eq!(read.destination.port(), 5080);
            at += used;
            count += 1;
        }
        assert_eq!((at, count), (file.len(), 8));
        let (mut reader, mut rest, mut frames) = (Reader::new(), &file[..], Vec::new());
        loop {
            match reader.step(rest, true) {
                Step::Frame { used, frame } => {
                    let packet = wire::ip::IpPacket::parse(frame.data).unwrap();
                    frames.push((frame.time, frame.original_length, packet.protocol));
                    rest = &rest[used..];
                }
                Step::Skip { used } => rest = &rest[used..],
                Step::End => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(frames.len(), 8);
        assert_eq!(frames[6].1, 28 + MAX_MESSAGE + 7);
        assert!(
            frames
                .iter()
                .all(|frame| frame.0 == 1_764_000_123_456_789_012 && frame.2 == 17)
        );
    }

    #[test]
    fn cut_and_damaged_blocks_are_no_messages() {
        let mut bytes = Vec::new();
        append(&mut bytes, &message(b"some text", true));
        for end in 0..bytes.len() {
            assert!(message_at(&bytes[..end]).is_none(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            // No panic; the content itself has no checksum.
            let _ = message_at(&damaged);
        }
    }

    #[test]
    fn a_segment_whose_end_is_unknown_takes_no_message() {
        // Writing there fails as on a full disk, and the file cannot be cut.
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = SegmentWriter {
            file,
            number: 1,
            buffer: Vec::new(),
            waiting: 0,
            written: 0,
            is_broken: false,
        };
        writer.append(&message(b"one", false));
        writer.append(&message(b"two", true));
        assert_eq!((writer.waiting(), writer.is_full()), (2, false));
        let error = writer.flush().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!((writer.waiting(), writer.length()), (0, 0));
        assert!(writer.is_full() && writer.flush().is_ok());
    }
}
