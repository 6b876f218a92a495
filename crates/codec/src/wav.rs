//! WAV files (RIFF) with 16-bit PCM, A-law or mu-law, on byte slices.

use crate::g711::Law;
use core::fmt;

/// Encoding of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// 16-bit linear, little-endian (format tag 1).
    Pcm16,
    /// G.711 (format tags 6 and 7).
    G711(Law),
}

impl Encoding {
    pub(crate) fn bytes_per_sample(self) -> usize {
        match self {
            Encoding::Pcm16 => 2,
            Encoding::G711(_) => 1,
        }
    }

    fn tag(self) -> u16 {
        match self {
            Encoding::Pcm16 => 1,
            Encoding::G711(Law::A) => 6,
            Encoding::G711(Law::Mu) => 7,
        }
    }
}

/// The reason why a file cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WavError {
    /// It does not begin with `RIFF....WAVE`.
    NotWav,
    /// It ends within the chunk of this name.
    Truncated([u8; 4]),
    /// There is no `fmt ` chunk before the samples, or it is too short.
    NoFormat,
    /// There is no `data` chunk.
    NoData,
    /// A format tag other than 1, 6 or 7, or a number of bits per sample that does not match it.
    Unsupported {
        /// The format tag (that of the sub-format in the extensible form).
        tag: u16,
        /// Bits per sample.
        bits: u16,
    },
    /// No channel, more than [`MAX_CHANNELS`], or a rate outside of 1 kHz to 384 kHz.
    OutOfRange {
        /// Channels.
        channels: u16,
        /// Samples per second.
        rate: u32,
    },
    /// More samples than a WAV file can hold (4 GiB).
    TooLong,
}

impl fmt::Display for WavError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WavError::NotWav => f.write_str("not a WAV file (no RIFF/WAVE header)"),
            WavError::Truncated(name) => {
                write!(
                    f,
                    "the WAV file ends within its chunk \"{}\"",
                    name.escape_ascii()
                )
            }
            WavError::NoFormat => {
                f.write_str("the WAV file has no usable \"fmt \" chunk before its samples")
            }
            WavError::NoData => f.write_str("the WAV file has no \"data\" chunk"),
            WavError::Unsupported { tag, bits } => write!(
                f,
                "WAV format {tag} with {bits} bits per sample is not supported; use 16-bit PCM, A-law or mu-law"
            ),
            WavError::OutOfRange { channels, rate } => {
                write!(
                    f,
                    "a WAV file with {channels} channels at {rate} Hz is not supported"
                )
            }
            WavError::TooLong => f.write_str("more samples than a WAV file can hold"),
        }
    }
}

impl core::error::Error for WavError {}

/// Maximum number of channels of a file.
pub const MAX_CHANNELS: u16 = 8;

/// A parsed WAV file, without a copy of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wav<'a> {
    /// How the samples are stored.
    pub encoding: Encoding,
    /// Samples per second and channel.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
    /// The stored samples, complete frames only.
    pub data: &'a [u8],
}

impl<'a> Wav<'a> {
    /// Parses a file. Unknown chunks are skipped; a `data` chunk of length 0 or 0xffffffff (from a recorder that was
    /// not closed) extends to the end.
    pub fn parse(file: &'a [u8]) -> Result<Wav<'a>, WavError> {
        let mut rest = match file {
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'A',
                b'V',
                b'E',
                rest @ ..,
            ] => rest,
            _ => return Err(WavError::NotWav),
        };
        let mut format: Option<(Encoding, u16, u32)> = None;
        while let Some((name, length, body)) = chunk(rest) {
            if &name == b"data" {
                let (encoding, channels, rate) = format.ok_or(WavError::NoFormat)?;
                let data = data_chunk(length, body)?;
                let frame = encoding.bytes_per_sample() * usize::from(channels);
                let data = data.get(..data.len() / frame * frame).unwrap_or(data);
                return Ok(Wav {
                    encoding,
                    rate,
                    channels,
                    data,
                });
            }
            let contents = body.get(..length).ok_or(WavError::Truncated(name))?;
            if &name == b"fmt " {
                format = Some(parse_format(contents)?);
            }
            // Chunks begin at even offsets; the last one may lack its padding byte.
            rest = body.get(length + length % 2..).unwrap_or_default();
        }
        Err(WavError::NoData)
    }

    /// All samples, channels interleaved.
    pub fn samples(&self) -> impl Iterator<Item = i16> + use<'a> {
        let encoding = self.encoding;
        self.data
            .chunks_exact(encoding.bytes_per_sample())
            .map(move |bytes| match (encoding, bytes) {
                (Encoding::Pcm16, &[low, high]) => i16::from_le_bytes([low, high]),
                (Encoding::G711(law), &[code]) => law.decode_sample(code),
                _ => 0,
            })
    }

    /// Number of samples per channel.
    pub fn frames(&self) -> usize {
        self.data.len() / (self.encoding.bytes_per_sample() * usize::from(self.channels))
    }

    /// The mean of all channels.
    pub fn mono(&self) -> Vec<i16> {
        let mut mono = Vec::with_capacity(self.frames());
        self.mix_into(&mut mono);
        mono
    }

    /// Appends the mean of all channels.
    pub(crate) fn mix_into(&self, mono: &mut Vec<i16>) {
        let channels = i32::from(self.channels);
        let (mut sum, mut count) = (0i32, 0);
        for sample in self.samples() {
            sum += i32::from(sample);
            count += 1;
            if count == channels {
                mono.push((sum / channels) as i16);
                (sum, count) = (0, 0);
            }
        }
    }
}

/// Name, stated length and the bytes after the header.
fn chunk(bytes: &[u8]) -> Option<([u8; 4], usize, &[u8])> {
    let (name, rest) = bytes.split_first_chunk::<4>()?;
    let (length, body) = rest.split_first_chunk::<4>()?;
    Some((*name, u32::from_le_bytes(*length) as usize, body))
}

fn data_chunk(length: usize, body: &[u8]) -> Result<&[u8], WavError> {
    if length == 0 || length == u32::MAX as usize {
        return Ok(body);
    }
    body.get(..length).ok_or(WavError::Truncated(*b"data"))
}

fn parse_format(chunk: &[u8]) -> Result<(Encoding, u16, u32), WavError> {
    let fixed = chunk.first_chunk::<16>().ok_or(WavError::NoFormat)?;
    let word = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
    let (mut tag, channels, bits) = (word(0), word(2), word(14));
    let rate = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    if tag == 0xfffe {
        // WAVE_FORMAT_EXTENSIBLE: the first two bytes of the sub-format's GUID are the format tag.
        let sub = chunk.get(24..26).ok_or(WavError::NoFormat)?;
        tag = u16::from_le_bytes([sub[0], sub[1]]);
    }
    let encoding = match (tag, bits) {
        (1, 16) => Encoding::Pcm16,
        (6, 8) => Encoding::G711(Law::A),
        (7, 8) => Encoding::G711(Law::Mu),
        _ => return Err(WavError::Unsupported { tag, bits }),
    };
    if channels == 0 || channels > MAX_CHANNELS || !(1000..=384_000).contains(&rate) {
        return Err(WavError::OutOfRange { channels, rate });
    }
    Ok((encoding, channels, rate))
}

/// A file of `samples` (channels interleaved; an incomplete last frame is dropped).
///
/// # Errors
/// [`WavError::OutOfRange`] and [`WavError::TooLong`].
pub fn write(
    encoding: Encoding,
    rate: u32,
    channels: u16,
    samples: &[i16],
) -> Result<Vec<u8>, WavError> {
    if channels == 0 || channels > MAX_CHANNELS || !(1000..=384_000).contains(&rate) {
        return Err(WavError::OutOfRange { channels, rate });
    }
    let whole = samples.len() / usize::from(channels) * usize::from(channels);
    let samples = samples.get(..whole).unwrap_or(samples);
    let width = encoding.bytes_per_sample();
    let length = samples.len() * width;
    let padding = length % 2;
    let riff = u32::try_from(length + padding + 38).map_err(|_| WavError::TooLong)?;
    let frame = width as u32 * u32::from(channels);
    let mut file = Vec::with_capacity(length + 52);
    file.extend_from_slice(b"RIFF");
    // PCM has a format chunk of 16 bytes, all other tags one with an (empty) extension of 18.
    let extension = usize::from(encoding != Encoding::Pcm16) * 2;
    file.extend_from_slice(&(riff - 2 + extension as u32).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    file.extend_from_slice(&(16 + extension as u32).to_le_bytes());
    file.extend_from_slice(&encoding.tag().to_le_bytes());
    file.extend_from_slice(&channels.to_le_bytes());
    file.extend_from_slice(&rate.to_le_bytes());
    file.extend_from_slice(&(rate * frame).to_le_bytes());
    file.extend_from_slice(&(frame as u16).to_le_bytes());
    file.extend_from_slice(&(width as u16 * 8).to_le_bytes());
    file.resize(file.len() + extension, 0);
    file.extend_from_slice(b"data");
    file.extend_from_slice(&(length as u32).to_le_bytes());
    match encoding {
        Encoding::Pcm16 => samples
            .iter()
            .for_each(|sample| file.extend_from_slice(&sample.to_le_bytes())),
        Encoding::G711(law) => file.extend(samples.iter().map(|&sample| law.encode_sample(sample))),
    }
    file.resize(file.len() + padding, 0);
    Ok(file)
}
