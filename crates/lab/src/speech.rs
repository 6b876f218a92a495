//! Full-reference comparison of recorded speech (`media::speech_quality`) for files at any usual rate.

use crate::error::LabError;
use codec::resample::Resampler;
use codec::wav::Wav;
use media::speech_quality::{self, MAX_SECONDS, RATE, SpeechQuality};
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;

/// Largest file that is read, bytes: four hours of telephone speech, or 60 s in any usual form.
const MOST_BYTES: u64 = 256 << 20;

/// Name of the method on pages and in records.
pub const METHOD: &str = "ViSQOL v3, speech mode, 16 kHz, exponential mapping";

/// Two files and the result of their comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechComparison {
    /// Path of the reference.
    pub reference: String,
    /// Path of the degraded file.
    pub degraded: String,
    /// Sample rates of both files.
    pub rates: [u32; 2],
    /// The result.
    pub quality: SpeechQuality,
}

impl SpeechComparison {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "reference": self.reference,
            "degraded": self.degraded,
            "method": METHOD,
            "speech_mos": self.quality.mos,
            "similarity": self.quality.similarity,
            "delay_ms": self.quality.delay_s * 1e3,
            "level_db": self.quality.level_db,
            "patches": self.quality.patches,
            "lost_patches": self.quality.lost,
            "reference_hz": self.rates[0],
            "degraded_hz": self.rates[1],
        })
    }

    /// As text in 80 columns.
    pub fn text(&self) -> String {
        let quality = &self.quality;
        let level = match quality.level_db {
            Some(level) => format!("{level:+.1} dB"),
            None => "silent".to_owned(),
        };
        let rates = match self.rates == [RATE; 2] {
            true => String::new(),
            false => format!(" (from {} and {} Hz)", self.rates[0], self.rates[1]),
        };
        format!(
            "speech MOS       {:.2} (MOS-LQO, {METHOD}){rates}\n\
             similarity       {:.4} over {} patches with speech, {} of them not found\n\
             delay            {:.1} ms, removed before the comparison\n\
             level            {level}, removed before the comparison\n",
            quality.mos,
            quality.similarity,
            quality.patches,
            quality.lost,
            quality.delay_s * 1e3,
        )
    }
}

/// Compares two WAV files.
///
/// # Errors
/// A file cannot be read, is no WAV file, has a rate that cannot be converted, or the signals cannot be compared.
pub fn compare_files(reference: &Path, degraded: &Path) -> Result<SpeechComparison, LabError> {
    let (sent, sent_rate) = read(reference)?;
    let (heard, heard_rate) = read(degraded)?;
    let quality = speech_quality::compare(&sent, &heard).map_err(|error| {
        LabError::bad_input(format!(
            "{} and {}: {error}",
            reference.display(),
            degraded.display()
        ))
    })?;
    Ok(SpeechComparison {
        reference: reference.display().to_string(),
        degraded: degraded.display().to_string(),
        rates: [sent_rate, heard_rate],
        quality,
    })
}

/// The recording of a call, compared with the file that the peer has played. A call ends when it likes: of both the
/// part that the shorter one has is compared, at most [`MAX_SECONDS`].
///
/// # Errors
/// As for [`compare_files`].
pub(crate) fn compare_call(reference: &Path, recording: &Path) -> Result<SpeechQuality, LabError> {
    let (mut sent, _) = read(reference)?;
    let (mut heard, _) = read(recording)?;
    let most = MAX_SECONDS * RATE as usize;
    heard.truncate(most);
    sent.truncate(heard.len());
    speech_quality::compare(&sent, &heard).map_err(|error| LabError::bad_input(error.to_string()))
}

/// Samples at [`RATE`], both channels of a stereo file mixed, and the rate of the file.
///
/// # Errors
/// The file cannot be read, is no WAV file, or has a rate that cannot be converted.
pub(crate) fn read(path: &Path) -> Result<(Vec<i16>, u32), LabError> {
    let bad = |error: String| LabError::bad_input(format!("{}: {error}", path.display()));
    let mut file = Vec::new();
    std::fs::File::open(path)
        .and_then(|opened| opened.take(MOST_BYTES + 1).read_to_end(&mut file))
        .map_err(|error| bad(error.to_string()))?;
    if file.len() as u64 > MOST_BYTES {
        return Err(bad(format!("longer than {} MiB", MOST_BYTES >> 20)));
    }
    let wav = Wav::parse(&file).map_err(|error| bad(error.to_string()))?;
    let samples = match wav.rate {
        RATE => wav.mono(),
        rate => {
            Resampler::whole(&wav.mono(), rate, RATE).map_err(|error| bad(error.to_string()))?
        }
    };
    Ok((samples, wav.rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_file_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("longer than 256 MiB"), "{error}");
    }
}
