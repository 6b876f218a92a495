//! Speech that is built in, so that every call of the laboratory and of the demo carries some: two voices, one for each
//! side of a call. How they were made: `assets/README.md`.

use crate::wav::{Encoding, Wav};
use std::sync::LazyLock;

/// Rate of the samples in Hz.
pub const RATE: u32 = 8000;

static CALLER_FILE: &[u8] = include_bytes!("../assets/caller.wav");
static CALLEE_FILE: &[u8] = include_bytes!("../assets/callee.wav");
static CALLER: LazyLock<Vec<i16>> = LazyLock::new(|| read(CALLER_FILE));
static CALLEE: LazyLock<Vec<i16>> = LazyLock::new(|| read(CALLEE_FILE));

fn read(file: &[u8]) -> Vec<i16> {
    // A test reads both files; one that is not there or broken does not pass it.
    Wav::parse(file).map(|wav| wav.mono()).unwrap_or_default()
}

/// The calling side's speech, 8 kHz: three sentences of a woman's voice.
pub fn speech() -> &'static [i16] {
    &CALLER
}

/// The called side's speech, 8 kHz: three other sentences of a man's voice.
pub fn answer() -> &'static [i16] {
    &CALLEE
}

/// Both files as they are built in, in the order of [`speech`] and [`answer`].
pub fn files() -> [&'static [u8]; 2] {
    [CALLER_FILE, CALLEE_FILE]
}

/// Whether a file is in the form that this module needs.
pub fn is_usable(file: &[u8]) -> bool {
    Wav::parse(file).is_ok_and(|wav| {
        wav.rate == RATE && wav.channels == 1 && matches!(wav.encoding, Encoding::G711(_))
    })
}
