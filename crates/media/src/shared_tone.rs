//! A tone in G.711 that many sources send, each from its beginning: every code is computed once.

use codec::ToneGenerator;
use codec::g711::Law;
use std::sync::{Arc, Mutex, PoisonError};

/// Codes that are kept: ten minutes. A source that sends for longer computes the rest itself.
const MAX_CODES: usize = 600 * 8_000;
/// Samples that are computed at a time.
const PIECE: usize = 160;

#[derive(Debug)]
struct ToneCodes {
    law: Law,
    /// Its position is the number of codes.
    generator: ToneGenerator,
    codes: Vec<u8>,
}

impl ToneCodes {
    fn extend_to(&mut self, length: usize) {
        let mut samples = [0; PIECE];
        while self.codes.len() < length {
            let count = PIECE.min(length - self.codes.len());
            let samples = samples.get_mut(..count).unwrap_or_default();
            self.generator.fill(samples);
            let law = self.law;
            self.codes
                .extend(samples.iter().map(|&sample| law.encode_sample(sample)));
        }
    }
}

/// The codes of a tone; copies share them.
#[derive(Clone, Debug)]
pub struct SharedTone(Arc<Mutex<ToneCodes>>);

impl SharedTone {
    /// The tone of a generator from its present position on.
    pub fn new(generator: ToneGenerator, law: Law) -> SharedTone {
        SharedTone(Arc::new(Mutex::new(ToneCodes {
            law,
            generator,
            codes: Vec::new(),
        })))
    }
}

/// A position in a shared tone.
#[derive(Debug)]
pub(crate) struct ToneReader {
    tone: SharedTone,
    at: usize,
    /// Beyond the kept codes.
    own: Option<(Law, ToneGenerator)>,
}

impl ToneReader {
    pub(crate) fn new(tone: SharedTone) -> ToneReader {
        ToneReader {
            tone,
            at: 0,
            own: None,
        }
    }

    /// Appends the next `count` codes.
    pub(crate) fn append(&mut self, count: usize, out: &mut Vec<u8>) {
        let shared = count.min(MAX_CODES - self.at);
        if shared > 0 {
            let mut tone = self.tone.0.lock().unwrap_or_else(PoisonError::into_inner);
            let end = self.at + shared;
            tone.extend_to(end);
            out.extend_from_slice(tone.codes.get(self.at..end).unwrap_or_default());
            self.at = end;
            if end == MAX_CODES {
                self.own = Some((tone.law, tone.generator.clone()));
            }
        }
        let Some((law, generator)) = &mut self.own else {
            return;
        };
        for _ in shared..count {
            let mut sample = [0];
            generator.fill(&mut sample);
            out.extend(sample.map(|sample| law.encode_sample(sample)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Tone;

    #[test]
    fn shared_tone_has_the_codes_of_its_generator() {
        for law in [Law::A, Law::Mu] {
            let generator = || ToneGenerator::new(Tone::sine(1004.0, -10.0), 8_000);
            let tone = SharedTone::new(generator(), law);
            let mut own = generator();
            let mut readers = [ToneReader::new(tone.clone()), ToneReader::new(tone)];
            // The second one lags behind, and reads in other pieces.
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for _ in 0..500 {
                readers[0].append(160, &mut first);
            }
            for _ in 0..250 {
                readers[1].append(240, &mut second);
            }
            let mut samples = vec![0; 80_000];
            own.fill(&mut samples);
            let codes: Vec<u8> = samples.iter().map(|s| law.encode_sample(*s)).collect();
            assert!(first == codes);
            assert!(second == codes[..60_000]);
        }
    }

    #[test]
    fn source_beyond_the_kept_codes_continues_the_tone() {
        let generator = ToneGenerator::new(Tone::sine(1004.0, -10.0), 8_000);
        let mut own = generator.clone();
        let mut reader = ToneReader::new(SharedTone::new(generator, Law::A));
        let mut codes = Vec::new();
        // The end of the kept codes lies within a packet.
        for _ in 0..MAX_CODES / 700 + 3 {
            reader.append(700, &mut codes);
        }
        assert!(codes.len() > MAX_CODES + 700);
        let mut samples = vec![0; codes.len()];
        own.fill(&mut samples);
        let same = codes
            .iter()
            .zip(&samples)
            .all(|(code, sample)| *code == Law::A.encode_sample(*sample));
        assert!(same);
    }
}
