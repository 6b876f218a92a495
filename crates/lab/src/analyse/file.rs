//! Captures from memory, from readers and from files.

use super::{Analyser, Analysis};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use wire::capture::{CaptureError, Reader, Step};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Why there is no analysis.
#[derive(Debug)]
pub enum AnalyseError {
    /// The file cannot be read.
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no capture.
    Capture {
        /// Which.
        path: PathBuf,
        /// Why.
        source: CaptureError,
    },
}

impl fmt::Display for AnalyseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnalyseError::Read { path, source } => {
                write!(f, "{}: cannot be read: {source}", path.display())
            }
            AnalyseError::Capture { path, source } => write!(f, "{}: {source}", path.display()),
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
/// Where the bytes are no capture. A capture that is damaged further on gives what could be read, with
/// [`Analysis::errors`].
pub fn analyse_bytes(bytes: &[u8]) -> Result<Analysis, CaptureError> {
    let mut analyser = Analyser::default();
    let mut run = Run::default();
    let mut rest = bytes;
    while let Some(used) = run.step(&mut analyser, rest, true)? {
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(analyser.finish())
}

/// Analyses a capture file of any size in constant memory.
///
/// # Errors
/// Where the file cannot be opened or is no capture.
pub fn analyse_file(path: &Path) -> Result<Analysis, AnalyseError> {
    let read_error = |source| AnalyseError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(read_error)?;
    match analyse_reader(file) {
        Ok(analysis) => Ok(analysis),
        Err(Failure::Read(source)) => Err(read_error(source)),
        Err(Failure::Capture(source)) => Err(AnalyseError::Capture {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Why a reader gives no analysis.
#[derive(Debug)]
pub enum Failure {
    /// Reading failed before anything was read.
    Read(io::Error),
    /// It is no capture.
    Capture(CaptureError),
}

/// Analyses a capture from a reader (a pipe, standard input).
///
/// # Errors
/// Where nothing can be read or it is no capture. A read error later on ends the analysis and is stated in its errors.
pub fn analyse_reader(mut reader: impl Read) -> Result<Analysis, Failure> {
    let mut analyser = Analyser::default();
    let mut run = Run::default();
    let mut buffer = vec![0; CHUNK];
    let (mut start, mut end, mut last) = (0, 0, false);
    loop {
        let input = buffer.get(start..end).unwrap_or_default();
        match run
            .step(&mut analyser, input, last)
            .map_err(Failure::Capture)?
        {
            Some(0) => {
                // A record is not complete: move it to the front and read on, in a larger buffer if need be. The reader
                // refuses records beyond its limit, which bounds the buffer.
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
                    Err(error) if !run.is_started() => return Err(Failure::Read(error)),
                    Err(error) => {
                        analyser.error(format!("reading the capture failed: {error}"));
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
struct Run {
    reader: Reader,
    started: bool,
}

impl Run {
    fn is_started(&self) -> bool {
        self.started
    }

    /// Bytes done with (zero: more are needed), or `None` at the end.
    fn step(
        &mut self,
        analyser: &mut Analyser,
        input: &[u8],
        last: bool,
    ) -> Result<Option<usize>, CaptureError> {
        let step = self.reader.step(input, last);
        let first = !self.started;
        self.started |= !matches!(step, Step::More { .. });
        match step {
            Step::Frame { used, frame } => {
                analyser.frame(frame.time, frame.link, frame.data, frame.original_length);
                Ok(Some(used))
            }
            Step::Skip { used } => Ok(Some(used)),
            Step::More { .. } => Ok(Some(0)),
            Step::End => Ok(None),
            Step::Damaged { error, .. } if first => Err(error),
            Step::Damaged { error, used } => {
                analyser.error(error.to_string());
                Ok(used)
            }
        }
    }
}
