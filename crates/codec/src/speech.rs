//! Built-in speech for calls of the test lab and of the demo: two voices, one for each side of a call. Their origin:
//! `assets/README.md`.

use crate::wav::{Encoding, Wav};
use std::sync::LazyLock;

/// Rate of the samples in Hz.
pub const RATE: u32 = 8000;

static CALLER_FILE: &[u8] = include_bytes!("../assets/caller.wav");
static CALLEE_FILE: &[u8] = include_bytes!("../assets/callee.wav");
static CALLER: LazyLock<Vec<i16>> = LazyLock::new(|| read(CALLER_FILE));
static CALLEE: LazyLock<Vec<i16>> = LazyLock::new(|| read(CALLEE_FILE));

fn read(file: &[u8]) -> Vec<i16> {
    // A test parses both files, so that an absent or malformed one fails the build's tests.
    Wav::parse(file).map(|wav| wav.mono()).unwrap_or_default()
}

/// The caller's speech, 8 kHz: three sentences of a woman's voice.
pub fn speech() -> &'static [i16] {
    &CALLER
}

/// The callee's speech, 8 kHz: three other sentences of a man's voice.
pub fn answer() -> &'static [i16] {
    &CALLEE
}

/// Both built-in files, in the order of [`speech`] and [`answer`].
pub fn files() -> [&'static [u8]; 2] {
    [CALLER_FILE, CALLEE_FILE]
}

/// Whether a file has the format that this module requires.
pub fn is_usable(file: &[u8]) -> bool {
    Wav::parse(file).is_ok_and(|wav| {
        wav.rate == RATE && wav.channels == 1 && matches!(wav.encoding, Encoding::G711(_))
    })
}
