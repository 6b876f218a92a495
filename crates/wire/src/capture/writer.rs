//! Writers of pcap (little-endian, nanoseconds) and pcapng, into memory.

use crate::ethernet::LinkType;

/// Writes a pcap file of one link type.
#[derive(Clone, Debug)]
pub struct PcapWriter {
    bytes: Vec<u8>,
    nanoseconds: bool,
}

impl PcapWriter {
    /// A file with nanosecond times.
    pub fn new(link: LinkType) -> PcapWriter {
        PcapWriter::with_resolution(link, true)
    }

    /// A file with nanosecond or microsecond times.
    pub fn with_resolution(link: LinkType, nanoseconds: bool) -> PcapWriter {
        let magic: u32 = if nanoseconds {
            0xa1b2_3c4d
        } else {
            0xa1b2_c3d4
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&magic.to_le_bytes());
        bytes.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0]);
        bytes.extend_from_slice(&u32::from(link.number()).to_le_bytes());
        PcapWriter { bytes, nanoseconds }
    }

    /// Appends a frame captured at `time` (nanoseconds since the Unix epoch). `original_length` is its length on the
    /// wire.
    pub fn truncated_frame(&mut self, time: u64, frame: &[u8], original_length: usize) {
        let unit = if self.nanoseconds { 1 } else { 1000 };
        for word in [
            (time / 1_000_000_000) as u32,
            (time % 1_000_000_000 / unit) as u32,
            frame.len() as u32,
            original_length as u32,
        ] {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes.extend_from_slice(frame);
    }

    /// Appends an untruncated frame.
    pub fn frame(&mut self, time: u64, frame: &[u8]) {
        self.truncated_frame(time, frame, frame.len());
    }

    /// Returns and removes the written bytes, so that a long capture can be written to its file in parts.
    pub fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.bytes)
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Writes a pcapng file of one section with any number of interfaces.
#[derive(Clone, Debug)]
pub struct PcapngWriter {
    bytes: Vec<u8>,
    big_endian: bool,
    resolutions: Vec<u8>,
}

impl PcapngWriter {
    /// A section in the given byte order.
    pub fn new(big_endian: bool) -> PcapngWriter {
        let mut writer = PcapngWriter {
            bytes: Vec::new(),
            big_endian,
            resolutions: Vec::new(),
        };
        let mut body = writer.words(&[0x1a2b_3c4d]);
        body.extend(if big_endian {
            [0, 1, 0, 0]
        } else {
            [1, 0, 0, 0]
        });
        body.extend([0xff; 8]);
        writer.block(0x0a0d_0d0a, &body);
        writer
    }

    /// Describes an interface with timestamps in units of `10^-resolution` s; returns its number.
    pub fn interface(&mut self, link: LinkType, resolution: u8) -> u32 {
        let number = link.number();
        let mut body = if self.big_endian {
            number.to_be_bytes().to_vec()
        } else {
            number.to_le_bytes().to_vec()
        };
        body.extend([0, 0]);
        body.extend(self.words(&[262_144]));
        // Option if_tsresol (9), one byte, padded; then the end-of-options option.
        body.extend(if self.big_endian {
            [0, 9, 0, 1]
        } else {
            [9, 0, 1, 0]
        });
        body.extend([resolution, 0, 0, 0, 0, 0, 0, 0]);
        self.block(1, &body);
        self.resolutions.push(resolution);
        (self.resolutions.len() - 1) as u32
    }

    /// Appends a frame of `interface` captured at `time` (nanoseconds since the Unix epoch).
    pub fn frame(&mut self, interface: u32, time: u64, frame: &[u8]) {
        let resolution = self
            .resolutions
            .get(interface as usize)
            .copied()
            .unwrap_or(6);
        let ticks = match resolution {
            0..=9 => time / 10u64.pow(9 - u32::from(resolution)),
            more => time.saturating_mul(10u64.saturating_pow(u32::from(more) - 9)),
        };
        let length = frame.len() as u32;
        let mut body = self.words(&[
            interface,
            (ticks >> 32) as u32,
            ticks as u32,
            length,
            length,
        ]);
        body.extend_from_slice(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        self.block(6, &body);
    }

    /// Appends a block of any type.
    pub fn block(&mut self, kind: u32, body: &[u8]) {
        let length = body.len() as u32 + 12;
        let head = self.words(&[kind, length]);
        let tail = self.words(&[length]);
        self.bytes.extend(head);
        self.bytes.extend_from_slice(body);
        self.bytes.extend(tail);
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn words(&self, words: &[u32]) -> Vec<u8> {
        words
            .iter()
            .flat_map(|word| {
                if self.big_endian {
                    word.to_be_bytes()
                } else {
                    word.to_le_bytes()
                }
            })
            .collect()
    }
}
