//! Analysis of captures from memory, from readers and from files.

use super::{Analysis, CaptureAnalyser};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use wire::capture::{CaptureError, Reader, Step};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Error of [`analyse_file`].
#[derive(Debug)]
pub enum AnalyseError {
    /// The file cannot be read.
    Read {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a capture.
    Capture {
        /// Its path.
        path: PathBuf,
        /// The error of the capture reader.
        source: CaptureError,
        /// Bytes that were read.
        bytes: usize,
    },
}

impl fmt::Display for AnalyseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnalyseError::Read { path, source } => {
                write!(f, "{}: cannot be read: {source}", path.display())
            }
            AnalyseError::Capture {
                path,
                source: source @ (CaptureError::Empty | CaptureError::Truncated),
                bytes,
            } => write!(
                f,
                "{}: {source}: 0 packets were read, the file ends at byte {bytes}",
                path.display()
            ),
            AnalyseError::Capture { path, source, .. } => {
                write!(f, "{}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for AnalyseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AnalyseError::Read { source, .. } => Some(source),
            AnalyseError::Capture { source, .. } => Some(source),
        }
    }
}

/// Analyses a capture in memory.
///
/// # Errors
/// The bytes are not a capture. A capture with later damage is analysed as far as it is readable, with
/// [`Analysis::errors`] and [`Analysis::damage`].
pub fn analyse_bytes(bytes: &[u8]) -> Result<Analysis, CaptureError> {
    let mut analyser = CaptureAnalyser::default();
    let mut run = CaptureReading::default();
    let mut rest = bytes;
    while let Some(used) = run.step(&mut analyser, rest, true)? {
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(analyser.finish())
}

/// Analyses a capture file of any size in constant memory.
///
/// # Errors
/// The file cannot be opened or is not a capture.
pub fn analyse_file(path: &Path) -> Result<Analysis, AnalyseError> {
    analyse_file_with(CaptureAnalyser::default(), path)
}

/// As [`analyse_file`], with an analyser that has its limits and keys.
///
/// # Errors
/// As [`analyse_file`].
pub fn analyse_file_with(analyser: CaptureAnalyser, path: &Path) -> Result<Analysis, AnalyseError> {
    let read_error = |source| AnalyseError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(read_error)?;
    match read_all(analyser, file) {
        Ok(analysis) => Ok(analysis),
        Err(AnalyseReaderError::Read(source)) => Err(read_error(source)),
        Err(AnalyseReaderError::Capture { source, bytes }) => Err(AnalyseError::Capture {
            path: path.to_owned(),
            source,
            bytes,
        }),
    }
}

/// Error of [`analyse_reader`].
#[derive(Debug)]
pub enum AnalyseReaderError {
    /// Reading failed before anything was read.
    Read(io::Error),
    /// The input is not a capture.
    Capture {
        /// The error of the capture reader.
        source: CaptureError,
        /// Bytes that were read.
        bytes: usize,
    },
}

/// Analyses a capture from a reader (a pipe, standard input).
///
/// # Errors
/// Nothing is readable, or the input is not a capture. A later read error ends the analysis and is added to its errors.
pub fn analyse_reader(reader: impl Read) -> Result<Analysis, AnalyseReaderError> {
    read_all(CaptureAnalyser::default(), reader)
}

fn read_all(
    mut analyser: CaptureAnalyser,
    mut reader: impl Read,
) -> Result<Analysis, AnalyseReaderError> {
    let mut run = CaptureReading::default();
    let mut buffer = vec![0; CHUNK];
    let (mut start, mut end, mut last) = (0, 0, false);
    loop {
        let input = buffer.get(start..end).unwrap_or_default();
        let bytes = input.len();
        let step = run.step(&mut analyser, input, last);
        match step.map_err(|source| AnalyseReaderError::Capture { source, bytes })? {
            Some(0) => {
                // The record is incomplete: move it to the front and read on, in a larger buffer if needed. The capture
                // reader refuses records beyond its limit, which bounds the buffer.
                buffer.copy_within(start..end, 0);
                end -= start;
                start = 0;
                if end == buffer.len() {
                    buffer.resize(buffer.len() * 2, 0);
                }
                let space = buffer.get_mut(end..).unwrap_or_default();
                match reader.read(space) {
                    Ok(0) => last = true,
                    Ok(count) => end += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if !run.is_started() => return Err(AnalyseReaderError::Read(error)),
                    Err(error) => {
                        let reason = format!("reading the capture failed: {error}");
                        analyser.damaged(&reason, run.at, None);
                        last = true;
                    }
                }
            }
            Some(used) => start += used,
            None => return Ok(analyser.finish()),
        }
    }
}

#[derive(Default)]
struct CaptureReading {
    reader: Reader,
    started: bool,
    /// Position of the next record, bytes from the begin of the input.
    at: u64,
}

impl CaptureReading {
    fn is_started(&self) -> bool {
        self.started
    }

    /// Returns the number of bytes consumed (zero: more input is needed), or `None` at the end.
    fn step(
        &mut self,
        analyser: &mut CaptureAnalyser,
        input: &[u8],
        last: bool,
    ) -> Result<Option<usize>, CaptureError> {
        let step = self.reader.step(input, last);
        let first = !self.started;
        self.started |= !matches!(step, Step::More { .. });
        let used = match step {
            Step::Frame { used, frame } => {
                analyser.frame(frame.time, frame.link, frame.data, frame.original_length);
                used
            }
            Step::Skip { used } => used,
            Step::More { .. } => 0,
            Step::End => return Ok(None),
            Step::Damaged { error, .. } if first => return Err(error),
            Step::Damaged { error, used } => {
                // Only then the rest of the file was read.
                let is_cut = error == CaptureError::Truncated;
                let end = is_cut.then_some(self.at + input.len() as u64);
                analyser.damaged(&error.to_string(), self.at, end);
                let Some(used) = used else {
                    return Ok(None);
                };
                used
            }
        };
        self.at += used as u64;
        Ok(Some(used))
    }
}
