//! G.711, tones, DTMF, WAV files, the built-in speech sample.
#![forbid(unsafe_code)]
