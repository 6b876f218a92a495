//! Converts a WAV file of any rate to a sample for `assets/`: 8 kHz, mono, mu-law, peak at -6 dB, silence trimmed.
//!
//! `cargo run -p codec --example narrow -- in.wav out.wav`

use codec::g711::Law;
use codec::wav::{Encoding, Wav, write};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(input), Some(output)) = (arguments.next(), arguments.next()) else {
        return Err("usage: narrow IN.wav OUT.wav".into());
    };
    let file = std::fs::read(&input)?;
    let wav = Wav::parse(&file)?;
    let mut samples = codec::Resampler::whole(&wav.mono(), wav.rate, 8000)?;
    let loud = |sample: &i16| sample.unsigned_abs() > 200;
    let first = samples
        .iter()
        .position(loud)
        .unwrap_or(0)
        .saturating_sub(400);
    let last = samples.iter().rposition(loud).unwrap_or(0) + 1200;
    samples.truncate(last);
    samples.drain(..first);
    let peak = samples.iter().map(|s| s.unsigned_abs()).max().unwrap_or(1);
    for sample in &mut samples {
        *sample = (i32::from(*sample) * 16_384 / i32::from(peak.max(1))) as i16;
    }
    std::fs::write(&output, write(Encoding::G711(Law::Mu), 8000, 1, &samples)?)?;
    println!("{output}: {:.2} s", samples.len() as f64 / 8000.0);
    Ok(())
}
