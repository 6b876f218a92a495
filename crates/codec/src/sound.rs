//! A WAV file in memory for playback, unmodified and shared by all playbacks.

use crate::wav::{Encoding, Wav, WavError};
use core::fmt;
use core::ops::Range;
use std::sync::Arc;

/// A recorded sound. Clones share its samples.
#[derive(Clone, PartialEq, Eq)]
pub struct Sound {
    file: Arc<[u8]>,
    data: Range<usize>,
    encoding: Encoding,
    rate: u32,
    channels: u16,
}

impl fmt::Debug for Sound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sound")
            .field("rate", &self.rate)
            .field("channels", &self.channels)
            .field("frames", &self.frames())
            .finish_non_exhaustive()
    }
}

impl Sound {
    /// Parses a WAV file.
    ///
    /// # Errors
    /// As [`Wav::parse`].
    pub fn parse(file: Arc<[u8]>) -> Result<Sound, WavError> {
        let wav = Wav::parse(&file)?;
        // The samples are a range of the file.
        let start = wav.data.as_ptr() as usize - file.as_ptr() as usize;
        let data = start..start + wav.data.len();
        let (encoding, rate, channels) = (wav.encoding, wav.rate, wav.channels);
        Ok(Sound {
            data,
            encoding,
            rate,
            channels,
            file,
        })
    }

    /// Samples per second and channel.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    fn frame(&self) -> usize {
        self.encoding.bytes_per_sample() * usize::from(self.channels)
    }

    /// Number of samples per channel.
    pub fn frames(&self) -> usize {
        self.data.len() / self.frame()
    }

    /// Duration, in whole milliseconds.
    pub fn duration_ms(&self) -> u64 {
        self.frames() as u64 * 1000 / u64::from(self.rate)
    }

    /// Appends `count` samples from `at` on, the mean of all channels; fewer at the end. Returns their number.
    pub fn read(&self, at: usize, count: usize, samples: &mut Vec<i16>) -> usize {
        let frame = self.frame();
        let end = self.frames().min(at.saturating_add(count));
        let (from, to) = (at.min(end) * frame, end * frame);
        let bytes = self.file.get(self.data.start + from..self.data.start + to);
        let wav = Wav {
            encoding: self.encoding,
            rate: self.rate,
            channels: self.channels,
            data: bytes.unwrap_or_default(),
        };
        let before = samples.len();
        wav.mix_into(samples);
        samples.len() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::g711::Law;
    use crate::wav::write;

    #[test]
    fn any_range_equals_the_whole_file() {
        let samples: Vec<i16> = (0..2_000)
            .map(|n| (n * 31 % 9_001) as i16 - 4_500)
            .collect();
        for (encoding, channels) in [
            (Encoding::Pcm16, 1),
            (Encoding::Pcm16, 2),
            (Encoding::G711(Law::A), 1),
            (Encoding::G711(Law::Mu), 4),
        ] {
            let file = write(encoding, 16_000, channels, &samples).unwrap();
            let whole = Wav::parse(&file).unwrap().mono();
            let sound = Sound::parse(file.into()).unwrap();
            assert_eq!((sound.rate(), sound.frames()), (16_000, whole.len()));
            assert_eq!(sound.duration_ms(), whole.len() as u64 / 16);
            let mut read = Vec::new();
            while sound.read(read.len(), 37, &mut read) > 0 {}
            assert_eq!(read, whole);
            assert_eq!(sound.read(usize::MAX, usize::MAX, &mut read), 0);
            assert_eq!(sound.read(whole.len(), 1, &mut read), 0);
        }
        assert_eq!(Sound::parse(b"no".to_vec().into()), Err(WavError::NotWav));
    }
}
