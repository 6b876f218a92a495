//! From samples to packets and back: packet times, timestamps, marker bits, silence suppression, comfort noise, gaps.

use crate::coder::{CodecError, Decoder, Encoded, Encoder, MAX_PAYLOAD};
use crate::format::Format;
use crate::kind::Kind;
use crate::noise::{self, Generator, Noise};
use crate::vad::{Suppressor, Verdict};

/// What a packet carries, and with it under which payload type it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The codec's own payload.
    Audio,
    /// Comfort noise (RFC 3389).
    Noise,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it carries.
    pub content: Content,
    /// The payload.
    pub payload: &'a [u8],
    /// Timestamp units since the packetiser's first sample, modulo 2^32.
    pub timestamp: u32,
    /// Timestamp units that it lasts.
    pub duration: u32,
    /// The first packet of speech after silence (RFC 3551 section 4.1).
    pub marker: bool,
}

/// How packets are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Milliseconds of a packet.
    pub packet_ms: u32,
    /// Whether nothing is sent while there is nothing but noise: by the codec itself where it can, else by comfort noise
    /// packets, which the receiver must have agreed to.
    pub suppress_silence: bool,
}

impl Default for Packing {
    fn default() -> Self {
        Packing {
            packet_ms: 20,
            suppress_silence: false,
        }
    }
}

/// Cuts a stream of samples into packets.
pub struct Packetiser {
    encoder: Box<dyn Encoder>,
    suppressor: Option<Suppressor>,
    pending: Vec<i16>,
    packet_samples: usize,
    payload: Box<[u8]>,
    timestamp: u32,
    /// Whether the packet before was speech.
    speaking: bool,
}

impl Packetiser {
    /// A packetiser of `format` for samples at `rate` Hz.
    ///
    /// # Errors
    /// As [`Format::encoder`].
    pub fn new(format: &Format, rate: u32, packing: Packing) -> Result<Packetiser, CodecError> {
        let encoder = format.encoder(rate, packing.packet_ms, packing.suppress_silence)?;
        let suppress = packing.suppress_silence && !format.kind().has_own_silence();
        let packet_samples = (rate / 1000 * packing.packet_ms) as usize;
        Ok(Packetiser {
            encoder,
            suppressor: suppress.then(Suppressor::new),
            pending: Vec::with_capacity(packet_samples),
            packet_samples,
            payload: vec![0; MAX_PAYLOAD].into_boxed_slice(),
            timestamp: 0,
            speaking: false,
        })
    }

    /// The encoder.
    pub fn encoder(&mut self) -> &mut dyn Encoder {
        &mut *self.encoder
    }

    /// Samples of a packet.
    pub fn packet_samples(&self) -> usize {
        self.packet_samples
    }

    /// Timestamp units from the first sample to the beginning of the next packet.
    pub fn timestamp(&self) -> u32 {
        self.timestamp
    }

    /// Takes samples, any number; hands every packet that they complete to `send`.
    ///
    /// # Errors
    /// [`CodecError::Library`] where the codec's library fails; the samples of that packet are gone.
    pub fn push(
        &mut self,
        mut samples: &[i16],
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        // Whole packets are encoded where they lie.
        while self.pending.len() + samples.len() >= self.packet_samples {
            let missing = self.packet_samples - self.pending.len();
            let (now, later) = samples.split_at(missing);
            samples = later;
            if self.pending.is_empty() {
                self.packet(now, send)?;
            } else {
                let mut pending = core::mem::take(&mut self.pending);
                pending.extend_from_slice(now);
                let result = self.packet(&pending, send);
                pending.clear();
                self.pending = pending;
                result?;
            }
        }
        self.pending.extend_from_slice(samples);
        Ok(())
    }

    /// Leaves `units` of the timestamp out: the source was silent or gone for so long. Samples that wait are dropped.
    pub fn skip(&mut self, units: u32) {
        self.pending.clear();
        self.timestamp = self.timestamp.wrapping_add(units);
        self.speaking = false;
    }

    fn units(&self, samples: usize) -> u32 {
        let clock = self.encoder.kind().rtp_clock();
        (samples as u64 * u64::from(clock) / u64::from(self.encoder.sample_rate())) as u32
    }

    fn packet(
        &mut self,
        samples: &[i16],
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let begin = self.timestamp;
        let duration = self.units(samples.len());
        self.timestamp = begin.wrapping_add(duration);
        if let Some(suppressor) = &mut self.suppressor {
            let frame = self.encoder.sample_rate() as usize / 100;
            match suppressor.judge(samples, frame) {
                Verdict::Speech => {}
                verdict => {
                    self.speaking = false;
                    if let Verdict::Describe(description) = verdict {
                        let mut payload = [0; noise::MAX_PAYLOAD];
                        let length = description.write(&mut payload);
                        send(Packet {
                            content: Content::Noise,
                            payload: &payload[..length],
                            timestamp: begin,
                            duration,
                            marker: false,
                        });
                    }
                    return Ok(());
                }
            }
        }
        self.frames(samples, begin, send)
    }

    /// Encodes frame by frame. A packet ends early where a frame is left out, or behind a description of noise.
    fn frames(
        &mut self,
        samples: &[i16],
        begin: u32,
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let frame = self.encoder.frame_samples();
        let units = self.units(frame);
        let mut open = Open::default();
        for (index, samples) in samples.chunks_exact(frame).enumerate() {
            let at = begin.wrapping_add(index as u32 * units);
            let room = self.payload.get_mut(open.length..).unwrap_or_default();
            // A frame is tried where it would stand; it moves to the front where the packet turns out to end before it.
            let encoded = self.encoder.encode(samples, room)?;
            let (length, is_speech) = match encoded {
                Encoded::Speech(length) => (length, true),
                Encoded::Noise(length) => (length, false),
                Encoded::Nothing => {
                    self.close(&mut open, send);
                    self.speaking = false;
                    continue;
                }
            };
            if open.ended {
                let from = open.length;
                self.close(&mut open, send);
                self.payload.copy_within(from..from + length, 0);
            }
            if open.length == 0 {
                open.timestamp = at;
                open.marker = is_speech && !self.speaking;
            }
            open.length += length;
            open.duration += units;
            open.ended = !is_speech;
            self.speaking = is_speech;
        }
        self.close(&mut open, send);
        Ok(())
    }

    fn close(&self, open: &mut Open, send: &mut dyn FnMut(Packet<'_>)) {
        if open.length > 0 {
            send(Packet {
                content: Content::Audio,
                payload: self.payload.get(..open.length).unwrap_or_default(),
                timestamp: open.timestamp,
                duration: open.duration,
                marker: open.marker,
            });
        }
        *open = Open::default();
    }
}

/// A packet in the making.
#[derive(Default)]
struct Open {
    length: usize,
    timestamp: u32,
    duration: u32,
    marker: bool,
    /// A description of noise is in it: nothing may follow.
    ended: bool,
}

/// Turns what arrives into samples without gaps: payloads, comfort noise, and what is made up for what is missing. When
/// packets are late or lost is the jitter buffer's business; this is told what is to be played next.
pub struct Unpacker {
    decoder: Box<dyn Decoder>,
    generator: Generator,
    /// Comfort noise was described and no speech came since.
    in_noise: bool,
}

impl Unpacker {
    /// An unpacker of `format` to samples at `rate` Hz. Noise is made from `seed`.
    ///
    /// # Errors
    /// As [`Format::decoder`].
    pub fn new(format: &Format, rate: u32, seed: u64) -> Result<Unpacker, CodecError> {
        Ok(Unpacker {
            decoder: format.decoder(rate)?,
            generator: Generator::new(seed),
            in_noise: false,
        })
    }

    /// The codec.
    pub fn kind(&self) -> Kind {
        self.decoder.kind()
    }

    /// Rate of the samples in Hz.
    pub fn sample_rate(&self) -> u32 {
        self.decoder.sample_rate()
    }

    /// How many samples a payload gives.
    ///
    /// # Errors
    /// [`CodecError::Payload`].
    pub fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        self.decoder.samples_of(payload)
    }

    /// Samples of as many timestamp units.
    pub fn samples_in(&self, units: u32) -> usize {
        let (rate, clock) = (self.sample_rate(), self.kind().rtp_clock());
        (u64::from(units) * u64::from(rate) / u64::from(clock)) as usize
    }

    /// Decodes a payload; gives the number of samples.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn audio(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let made = self.decoder.decode(payload, samples)?;
        self.in_noise = false;
        Ok(made)
    }

    /// Takes a comfort noise payload; false where it is none. Noise is made by [`Unpacker::gap`] from then on.
    pub fn noise(&mut self, payload: &[u8]) -> bool {
        let Some(noise) = Noise::parse(payload) else {
            return false;
        };
        self.generator.describe(noise);
        self.in_noise = true;
        true
    }

    /// Fills `samples` where nothing is there to be played: with noise where the sender described some and has said nothing
    /// since, else with the codec's concealment.
    pub fn gap(&mut self, samples: &mut [i16]) {
        if self.in_noise {
            self.generator.fill(samples);
        } else {
            self.decoder.conceal(samples);
        }
    }

    /// Fills `samples`, lost just before `following`, from redundancy in it where there is some; true then.
    pub fn recover(&mut self, following: &[u8], samples: &mut [i16]) -> bool {
        if self.in_noise {
            self.generator.fill(samples);
            return false;
        }
        self.decoder.recover(following, samples)
    }
}
