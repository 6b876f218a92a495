//! The WAV file of received audio: written as it arrives, completed at the end.

use crate::error::LabError;
use codec::wav::{self, Encoding};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes of the header that [`wav::write`] gives 16-bit samples.
const HEADER: u32 = 44;

/// A recording.
#[derive(Debug)]
pub(super) struct WavRecording {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u32,
    rate: Option<u32>,
}

impl WavRecording {
    /// Creates the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn create(path: &Path) -> Result<WavRecording, LabError> {
        let file = File::create(path).map_err(|error| cannot(path, &error))?;
        Ok(WavRecording {
            path: path.to_owned(),
            file: BufWriter::new(file),
            bytes: 0,
            rate: None,
        })
    }

    /// Appends samples; all have the rate of the first.
    ///
    /// # Errors
    /// The file cannot be written, or would have more than 4 GiB.
    pub(super) fn append(&mut self, samples: &[i16], rate: u32) -> Result<(), LabError> {
        self.begin(rate)?;
        let length = u32::try_from(samples.len() * 2).unwrap_or(u32::MAX);
        let total = self
            .bytes
            .checked_add(length)
            .filter(|total| *total < u32::MAX - HEADER);
        self.bytes = total.ok_or_else(|| {
            LabError::cannot_run(
                format!("{}: a WAV file holds at most 4 GiB", self.path.display()),
                "end the call earlier with --seconds",
            )
        })?;
        let written = samples
            .iter()
            .try_for_each(|sample| self.file.write_all(&sample.to_le_bytes()));
        written.map_err(|error| cannot(&self.path, &error))
    }

    fn begin(&mut self, rate: u32) -> Result<(), LabError> {
        if self.rate.replace(rate).is_some() {
            return Ok(());
        }
        let header = wav::write(Encoding::Pcm16, rate, 1, &[])
            .map_err(|error| LabError::bad_input(error.to_string()))?;
        self.file
            .write_all(&header)
            .map_err(|error| cannot(&self.path, &error))
    }

    /// Writes the lengths into the header; a call without media gives a file without samples.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn finish(mut self) -> Result<(), LabError> {
        self.begin(self.rate.unwrap_or(8_000))?;
        let lengths = [
            (4, self.bytes + HEADER - 8),
            (u64::from(HEADER) - 4, self.bytes),
        ];
        let written = lengths.iter().try_for_each(|(at, length)| {
            self.file.seek(SeekFrom::Start(*at))?;
            self.file.write_all(&length.to_le_bytes())
        });
        written
            .and_then(|()| self.file.flush())
            .map_err(|error| cannot(&self.path, &error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("{}: {error}", path.display()),
        "name a writable file with --wav-out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::wav::Wav;

    #[test]
    fn file_that_was_written_in_parts_is_valid() {
        let path =
            std::env::temp_dir().join(format!("hornwork-recording-{}.wav", std::process::id()));
        let mut recording = WavRecording::create(&path).unwrap();
        recording.append(&[1, -2, 3], 16_000).unwrap();
        recording.append(&[i16::MIN], 16_000).unwrap();
        recording.finish().unwrap();
        let file = std::fs::read(&path).unwrap();
        assert_eq!(
            file,
            wav::write(Encoding::Pcm16, 16_000, 1, &[1, -2, 3, i16::MIN]).unwrap()
        );
        WavRecording::create(&path).unwrap().finish().unwrap();
        assert_eq!(
            Wav::parse(&std::fs::read(&path).unwrap()).unwrap().frames(),
            0
        );
        std::fs::remove_file(&path).unwrap();
    }
}
