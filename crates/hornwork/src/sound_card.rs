//! Sound cards for the softphone, by cpal (ALSA on Linux).
//!
//! The callbacks of a card only move samples between the card and a [`media::live`] ring; the phone's thread is at the
//! other end.

use clap::Args;
use lab::LabError;
#[cfg(not(feature = "sound"))]
use lab::phone::PhoneOptions;

/// Microphone and loudspeaker.
#[derive(Clone, Debug, Default, Args)]
pub struct SoundOptions {
    /// Send the audio of a sound card: its name in `hornwork phone sound`, or default.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "default", conflicts_with = "wav_in")]
    sound_in: Option<String>,
    /// Play the received audio on a sound card: its name in `hornwork phone sound`, or default.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "default")]
    sound_out: Option<String>,
}

/// Open sound cards; they work until this value is dropped.
#[cfg(feature = "sound")]
pub use card::Cards;

/// Without the feature there are none.
#[cfg(not(feature = "sound"))]
#[derive(Debug)]
pub struct Cards;

#[cfg(not(feature = "sound"))]
fn missing() -> LabError {
    LabError::cannot_run(
        "this build has no sound cards",
        "build it with the headers of ALSA: install libasound2-dev, then `make build SOUND=yes`; or use --wav-in and --wav-out",
    )
}

#[cfg(not(feature = "sound"))]
impl Cards {
    /// # Errors
    /// If any sound card is named.
    pub fn open(options: &SoundOptions, _phone: &mut PhoneOptions) -> Result<Cards, LabError> {
        match (&options.sound_in, &options.sound_out) {
            (None, None) => Ok(Cards),
            _ => Err(missing()),
        }
    }
}

/// Lists the sound cards of this machine.
///
/// # Errors
/// They cannot be listed, or this build has none.
pub fn list() -> Result<String, LabError> {
    #[cfg(feature = "sound")]
    return card::list();
    #[cfg(not(feature = "sound"))]
    Err(missing())
}

#[cfg(feature = "sound")]
mod card {
    use super::SoundOptions;
    use cpal::traits::{DeviceTrait as _, HostTrait as _, StreamTrait as _};
    use cpal::{
        BufferSize, Device, ErrorKind, SampleFormat, StreamConfig, SupportedBufferSize,
        SupportedStreamConfigRange,
    };
    use lab::LabError;
    use lab::phone::PhoneOptions;
    use media::live::{LiveReader, LiveWriter, live_audio};
    use std::fmt::Write as _;

    /// Sample rates in order of preference: those of Opus and G.722 first.
    const RATES: [u32; 5] = [48_000, 16_000, 32_000, 44_100, 8_000];
    /// Periods of a card in a second: 10 ms.
    const PERIODS: u32 = 100;

    /// See [`super::Cards`].
    #[derive(Default)]
    pub struct Cards {
        _streams: Vec<cpal::Stream>,
    }

    impl Cards {
        /// Opens the named sound cards and connects the phone with them.
        ///
        /// # Errors
        /// A card is missing, busy, or has no usable format.
        pub fn open(options: &SoundOptions, phone: &mut PhoneOptions) -> Result<Cards, LabError> {
            let mut cards = Cards::default();
            if let Some(name) = &options.sound_in {
                let device = device(name, "--sound-in", Direction::In)?;
                let (format, config) = configuration(&device, name, Direction::In)?;
                let (writer, reader) = live_audio(config.sample_rate);
                let stream = match format {
                    SampleFormat::F32 => record::<f32>(&device, config, writer, to_i16),
                    _ => record::<i16>(&device, config, writer, |sample| sample),
                };
                cards.start(stream, name)?;
                phone.sound_in = Some(reader);
            }
            if let Some(name) = &options.sound_out {
                let device = device(name, "--sound-out", Direction::Out)?;
                let (format, config) = configuration(&device, name, Direction::Out)?;
                let (writer, reader) = live_audio(config.sample_rate);
                let stream = match format {
                    SampleFormat::F32 => play::<f32>(&device, config, reader, |sample| {
                        f32::from(sample) / 32_768.0
                    }),
                    _ => play::<i16>(&device, config, reader, |sample| sample),
                };
                cards.start(stream, name)?;
                phone.sound_out = Some(writer);
            }
            Ok(cards)
        }

        fn start(
            &mut self,
            stream: Result<cpal::Stream, cpal::Error>,
            name: &str,
        ) -> Result<(), LabError> {
            let stream = stream.map_err(|error| unusable(name, &error))?;
            stream.play().map_err(|error| unusable(name, &error))?;
            self._streams.push(stream);
            Ok(())
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Direction {
        In,
        Out,
    }

    impl Direction {
        fn ranges(self, device: &Device) -> Result<Vec<SupportedStreamConfigRange>, cpal::Error> {
            match self {
                Direction::In => device.supported_input_configs().map(Iterator::collect),
                Direction::Out => device.supported_output_configs().map(Iterator::collect),
            }
        }
    }

    fn unusable(name: &str, error: &cpal::Error) -> LabError {
        LabError::cannot_run(
            format!("sound card {name}: {error}"),
            "`hornwork phone sound` lists the sound cards of this machine",
        )
    }

    fn identifier(device: &Device) -> String {
        device.id().map(|id| id.id().to_owned()).unwrap_or_default()
    }

    fn device(name: &str, option: &str, direction: Direction) -> Result<Device, LabError> {
        let host = cpal::default_host();
        let found = match (name, direction) {
            ("default", Direction::In) => host.default_input_device(),
            ("default", Direction::Out) => host.default_output_device(),
            _ => host
                .devices()
                .map_err(|error| unusable(name, &error))?
                .find(|device| identifier(device) == name),
        };
        found.ok_or_else(|| {
            LabError::cannot_run(
                format!("{option} {name}: there is no such sound card"),
                "`hornwork phone sound` lists the sound cards of this machine",
            )
        })
    }

    /// The format and settings of a card: one channel and 16 bits if it has them.
    fn configuration(
        device: &Device,
        name: &str,
        direction: Direction,
    ) -> Result<(SampleFormat, StreamConfig), LabError> {
        let ranges = direction
            .ranges(device)
            .map_err(|error| unusable(name, &error))?;
        let usable = |range: &SupportedStreamConfigRange| {
            let rate = RATES.iter().position(|&rate| range.contains_rate(rate))?;
            let format = [SampleFormat::I16, SampleFormat::F32]
                .iter()
                .position(|&format| format == range.sample_format())?;
            Some((rate, range.channels(), format, *range))
        };
        let best = ranges
            .iter()
            .filter_map(usable)
            .min_by_key(|(rate, channels, format, _)| (*rate, *channels, *format));
        let Some((rate, channels, _, range)) = best else {
            return Err(LabError::cannot_run(
                format!(
                    "sound card {name}: it has none of 8, 16, 32, 44.1 and 48 kHz with samples of 16 bits or floating point"
                ),
                "name another one",
            ));
        };
        let sample_rate = RATES[rate];
        let period = sample_rate / PERIODS;
        let buffer_size = match range.buffer_size() {
            SupportedBufferSize::Range { min, max } if (*min..=*max).contains(&period) => {
                BufferSize::Fixed(period)
            }
            _ => BufferSize::Default,
        };
        let config = StreamConfig {
            channels,
            sample_rate,
            buffer_size,
        };
        Ok((range.sample_format(), config))
    }

    fn to_i16(sample: f32) -> i16 {
        (sample * 32_768.0).clamp(-32_768.0, 32_767.0) as i16
    }

    /// Reports an error other than a gap: gaps are in the figures of the ring.
    fn report(error: cpal::Error) {
        if error.kind() != ErrorKind::Xrun {
            eprintln!("sound card: {error}");
        }
    }

    fn record<T: cpal::SizedSample + 'static>(
        device: &Device,
        config: StreamConfig,
        writer: LiveWriter,
        convert: fn(T) -> i16,
    ) -> Result<cpal::Stream, cpal::Error> {
        let channels = usize::from(config.channels.max(1));
        device.build_input_stream(
            config,
            move |samples: &[T], _| {
                for frame in samples.chunks_exact(channels) {
                    let sum: i32 = frame.iter().map(|&sample| i32::from(convert(sample))).sum();
                    writer.push((sum / channels as i32) as i16);
                }
            },
            report,
            None,
        )
    }

    fn play<T: cpal::SizedSample + 'static>(
        device: &Device,
        config: StreamConfig,
        reader: LiveReader,
        convert: fn(i16) -> T,
    ) -> Result<cpal::Stream, cpal::Error> {
        let channels = usize::from(config.channels.max(1));
        let mut mono = Vec::new();
        device.build_output_stream(
            config,
            move |samples: &mut [T], _| {
                mono.resize(samples.len() / channels, 0);
                reader.fill(&mut mono);
                for (frame, &sample) in samples.chunks_exact_mut(channels).zip(&mono) {
                    frame.fill(convert(sample));
                }
            },
            report,
            None,
        )
    }

    /// See [`super::list`].
    pub(super) fn list() -> Result<String, LabError> {
        let devices = cpal::default_host()
            .devices()
            .map_err(|error| unusable("list", &error))?;
        let mut out = String::new();
        for device in devices {
            let has = |direction: Direction| {
                direction
                    .ranges(&device)
                    .is_ok_and(|ranges| !ranges.is_empty())
            };
            let directions = match (has(Direction::In), has(Direction::Out)) {
                (true, true) => "in, out",
                (true, false) => "in",
                (false, true) => "out",
                (false, false) => continue,
            };
            let description = device
                .description()
                .map(|description| description.name().to_owned())
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "{:<32} {directions:<8} {description}",
                identifier(&device)
            );
        }
        if out.is_empty() {
            out.push_str("no sound cards\n");
        }
        Ok(out)
    }
}
