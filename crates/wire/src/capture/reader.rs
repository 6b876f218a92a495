//! The incremental reader of pcap and pcapng.

use crate::ethernet::{LinkType, array};
use core::fmt;

/// Maximum length of a record; with a longer one the file is corrupt.
pub const MAX_RECORD: usize = 16 << 20;
/// Maximum number of interfaces of a pcapng section; packets of further ones are counted as of an unknown interface.
const MAX_INTERFACES: usize = 4096;

/// A frame and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// The link layer of the frame.
    pub link: LinkType,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Length on the wire.
    pub original_length: usize,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A frame.
    Frame {
        /// Number of consumed bytes.
        used: usize,
        /// The frame.
        frame: CapturedFrame<'a>,
    },
    /// No frame.
    Skip {
        /// Number of consumed bytes, at least one.
        used: usize,
    },
    /// At least `total` bytes of input are needed at this position.
    More {
        /// Number of bytes.
        total: usize,
    },
    /// The end of the input, at a record boundary.
    End,
    /// The input is corrupt; `used` is the position to continue at, `None` if reading cannot continue.
    Damaged {
        /// The error.
        error: CaptureError,
        /// Number of bytes to skip.
        used: Option<usize>,
    },
}

/// The reason why a capture cannot be read, or not further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureError {
    /// Shorter than the header of any capture format.
    Empty,
    /// No magic number of a capture format.
    NotACapture,
    /// Compressed with gzip, zstd or xz.
    Compressed,
    /// The input ends inside a record.
    Truncated,
    /// A record with an impossible length.
    BadLength(u32),
    /// A pcapng packet of an interface that was not described.
    UnknownInterface(u32),
    /// The two length fields of a pcapng block differ.
    LengthsDiffer,
    /// A pcapng section with an invalid byte-order magic.
    BadByteOrder,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Empty => {
                f.write_str("the file is empty or shorter than a capture's header")
            }
            CaptureError::NotACapture => f.write_str("not a capture: neither pcap nor pcapng"),
            CaptureError::Compressed => f.write_str("the file is compressed: decompress it first"),
            CaptureError::Truncated => f.write_str("the capture ends inside a record"),
            CaptureError::BadLength(length) => {
                write!(f, "a record has an invalid length of {length} bytes")
            }
            CaptureError::UnknownInterface(id) => {
                write!(
                    f,
                    "a packet refers to interface {id}, which is not described"
                )
            }
            CaptureError::LengthsDiffer => f.write_str("a block's two length fields differ"),
            CaptureError::BadByteOrder => f.write_str("a section's byte-order magic is wrong"),
        }
    }
}

impl core::error::Error for CaptureError {}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    snap_length: u32,
    /// Resolution of timestamps: 10^-n s, or 2^-n s if the top bit is set (if_tsresol).
    resolution: u8,
    /// Seconds to add (if_tsoffset).
    offset: i64,
}

impl Interface {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let nanoseconds = if self.resolution & 0x80 != 0 {
            if exponent >= 64 {
                0
            } else {
                (u128::from(ticks) * 1_000_000_000) >> exponent
            }
        } else if exponent <= 9 {
            u128::from(ticks) * 10u128.pow(9 - exponent)
        } else {
            10u128
                .checked_pow(exponent - 9)
                .map_or(0, |divisor| u128::from(ticks) / divisor)
        };
        let offset = i128::from(self.offset) * 1_000_000_000;
        let time = i128::try_from(nanoseconds)
            .unwrap_or(i128::MAX)
            .saturating_add(offset);
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }
}

#[derive(Clone, Debug)]
enum FileFormat {
    Unknown,
    Pcap {
        big_endian: bool,
        nanoseconds: bool,
        link: LinkType,
        /// The "modified" pcap of old Linux kernels has eight more bytes in each record header.
        record_header: usize,
    },
    Pcapng {
        big_endian: bool,
        interfaces: Vec<Interface>,
    },
}

/// Incremental reader of a capture.
///
/// ```
/// # use wire::capture::{Reader, Step};
/// # let file = wire::capture::PcapWriter::new(wire::ethernet::LinkType::Raw).finish();
/// let (mut reader, mut input) = (Reader::new(), &file[..]);
/// loop {
///     match reader.step(input, true) {
///         Step::Frame { used, frame } => { let _ = frame.data; input = &input[used..]; }
///         Step::Skip { used } | Step::Damaged { used: Some(used), .. } => input = &input[used..],
///         Step::End | Step::More { .. } | Step::Damaged { used: None, .. } => break,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    format: FileFormat,
}

impl Default for Reader {
    fn default() -> Self {
        Reader::new()
    }
}

impl Reader {
    /// A reader at the start of a file.
    pub fn new() -> Reader {
        Reader {
            format: FileFormat::Unknown,
        }
    }

    /// Reads the next record at the start of `input`. `last`: no more input follows; [`Step::More`] is not returned
    /// then.
    pub fn step<'a>(&mut self, input: &'a [u8], last: bool) -> Step<'a> {
        let step = match &mut self.format {
            FileFormat::Unknown => self.begin(input, last),
            FileFormat::Pcap {
                big_endian,
                nanoseconds,
                link,
                record_header,
            } => pcap_record(input, *big_endian, *nanoseconds, *link, *record_header),
            FileFormat::Pcapng {
                big_endian,
                interfaces,
            } => block(input, big_endian, interfaces),
        };
        match step {
            Step::More { .. } if input.is_empty() && last => Step::End,
            Step::More { .. } if last => Step::Damaged {
                error: CaptureError::Truncated,
                used: None,
            },
            step => step,
        }
    }

    fn begin<'a>(&mut self, input: &'a [u8], last: bool) -> Step<'a> {
        let fatal = |error| Step::Damaged { error, used: None };
        let Some(magic) = input.first_chunk::<4>() else {
            return if last {
                fatal(CaptureError::Empty)
            } else {
                Step::More { total: 24 }
            };
        };
        let (big_endian, nanoseconds, record_header) = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, false, 16),
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, false, 16),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, true, 16),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, true, 16),
            [0xa1, 0xb2, 0xcd, 0x34] => (true, false, 24),
            [0x34, 0xcd, 0xb2, 0xa1] => (false, false, 24),
            [0x0a, 0x0d, 0x0d, 0x0a] => {
                self.format = FileFormat::Pcapng {
                    big_endian: false,
                    interfaces: Vec::new(),
                };
                return self.step(input, last);
            }
            [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] | [0xfd, b'7', b'z', b'X'] => {
                return fatal(CaptureError::Compressed);
            }
            _ => return fatal(CaptureError::NotACapture),
        };
        let Some(header) = input.get(..24) else {
            return if last {
                fatal(CaptureError::Empty)
            } else {
                Step::More { total: 24 }
            };
        };
        // The upper bits contain the length of the frame check sequence.
        let link = word(header, 20, big_endian) as u16;
        self.format = FileFormat::Pcap {
            big_endian,
            nanoseconds,
            link: LinkType::from_number(link),
            record_header,
        };
        Step::Skip { used: 24 }
    }
}

fn pcap_record(
    input: &[u8],
    big_endian: bool,
    nanoseconds: bool,
    link: LinkType,
    record_header: usize,
) -> Step<'_> {
    let Some(header) = input.get(..record_header) else {
        return Step::More {
            total: record_header,
        };
    };
    let length = word(header, 8, big_endian);
    let total = record_header + length as usize;
    if length as usize > MAX_RECORD {
        return Step::Damaged {
            error: CaptureError::BadLength(length),
            used: None,
        };
    }
    let Some(data) = input.get(record_header..total) else {
        return Step::More { total };
    };
    let unit = if nanoseconds { 1 } else { 1000 };
    let time = u64::from(word(header, 0, big_endian)) * 1_000_000_000
        + u64::from(word(header, 4, big_endian)) * unit;
    Step::Frame {
        used: total,
        frame: CapturedFrame {
            time,
            link,
            data,
            original_length: (word(header, 12, big_endian) as usize).max(data.len()),
        },
    }
}

fn block<'a>(input: &'a [u8], big_endian: &mut bool, interfaces: &mut Vec<Interface>) -> Step<'a> {
    let fatal = |error| Step::Damaged { error, used: None };
    let Some(header) = input.get(..12) else {
        return Step::More { total: 12 };
    };
    if header.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        *big_endian = match array::<4>(header, 8) {
            [0x1a, 0x2b, 0x3c, 0x4d] => true,
            [0x4d, 0x3c, 0x2b, 0x1a] => false,
            _ => return fatal(CaptureError::BadByteOrder),
        };
        interfaces.clear();
    }
    let kind = word(header, 0, *big_endian);
    let length = word(header, 4, *big_endian);
    let total = length as usize;
    if total < 12 || !total.is_multiple_of(4) || total > MAX_RECORD {
        return fatal(CaptureError::BadLength(length));
    }
    let Some(block) = input.get(..total) else {
        return Step::More { total };
    };
    if word(block, total - 4, *big_endian) != length {
        return fatal(CaptureError::LengthsDiffer);
    }
    let body = block.get(8..total - 4).unwrap_or_default();
    let found = match kind {
        1 => {
            if interfaces.len() < MAX_INTERFACES {
                interfaces.push(interface(body, *big_endian));
            }
            return Step::Skip { used: total };
        }
        2 | 6 => packet(kind, body, *big_endian, interfaces),
        3 => simple_packet(body, *big_endian, interfaces),
        _ => return Step::Skip { used: total },
    };
    match found {
        Ok(frame) => Step::Frame { used: total, frame },
        Err(error) => Step::Damaged {
            error,
            used: Some(total),
        },
    }
}

fn interface(body: &[u8], big_endian: bool) -> Interface {
    let mut interface = Interface {
        link: LinkType::from_number(half(body, 0, big_endian)),
        snap_length: word(body, 4, big_endian),
        resolution: 6,
        offset: 0,
    };
    let mut options = body.get(8..).unwrap_or_default();
    while let Some(header) = options.get(..4) {
        let (code, length) = (
            half(header, 0, big_endian),
            usize::from(half(header, 2, big_endian)),
        );
        let Some(value) = options.get(4..4 + length) else {
            break;
        };
        match (code, value) {
            (0, _) => break,
            (9, [resolution]) => interface.resolution = *resolution,
            (14, value) if value.len() == 8 => {
                let bytes = array::<8>(value, 0);
                interface.offset = if big_endian {
                    i64::from_be_bytes(bytes)
                } else {
                    i64::from_le_bytes(bytes)
                };
            }
            _ => {}
        }
        options = options
            .get(4 + length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    interface
}

/// An enhanced packet block, or the obsolete packet block (type 2), which differs in its first four bytes only.
fn packet<'a>(
    kind: u32,
    body: &'a [u8],
    big_endian: bool,
    interfaces: &[Interface],
) -> Result<CapturedFrame<'a>, CaptureError> {
    let header = body
        .get(..20)
        .ok_or(CaptureError::BadLength(body.len() as u32))?;
    let id = if kind == 2 {
        u32::from(half(header, 0, big_endian))
    } else {
        word(header, 0, big_endian)
    };
    let interface = interfaces
        .get(id as usize)
        .ok_or(CaptureError::UnknownInterface(id))?;
    let ticks =
        u64::from(word(header, 4, big_endian)) << 32 | u64::from(word(header, 8, big_endian));
    let captured = word(header, 12, big_endian);
    let data = body
        .get(20..20 + captured as usize)
        .ok_or(CaptureError::BadLength(captured))?;
    Ok(CapturedFrame {
        time: interface.nanoseconds(ticks),
        link: interface.link,
        data,
        original_length: (word(header, 16, big_endian) as usize).max(data.len()),
    })
}

fn simple_packet<'a>(
    body: &'a [u8],
    big_endian: bool,
    interfaces: &[Interface],
) -> Result<CapturedFrame<'a>, CaptureError> {
    let interface = interfaces
        .first()
        .ok_or(CaptureError::UnknownInterface(0))?;
    let header = body
        .get(..4)
        .ok_or(CaptureError::BadLength(body.len() as u32))?;
    let original = word(header, 0, big_endian);
    let limit = match interface.snap_length {
        0 => original,
        snap => original.min(snap),
    } as usize;
    let rest = body.get(4..).unwrap_or_default();
    let data = rest.get(..limit).ok_or(CaptureError::BadLength(original))?;
    Ok(CapturedFrame {
        time: 0,
        link: interface.link,
        data,
        original_length: (original as usize).max(data.len()),
    })
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = array::<4>(bytes, at);
    if big_endian {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    }
}

fn half(bytes: &[u8], at: usize, big_endian: bool) -> u16 {
    let bytes = array::<2>(bytes, at);
    if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    }
}
