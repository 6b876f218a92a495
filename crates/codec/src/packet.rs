//! Packetisation and its reverse: packet times, timestamps, marker bits, silence suppression, comfort noise, gaps.

use crate::coder::{AudioDecoder, AudioEncoder, CodecError, EncodedFrame, MAX_PAYLOAD};
use crate::format::Format;
use crate::kind::Kind;
use crate::noise::{self, Generator, Noise};
use crate::vad::{Suppressor, Verdict};

/// The content of a packet; it determines the payload type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A payload of the codec.
    Audio,
    /// Comfort noise (RFC 3389).
    Noise,
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Content.
    pub content: Content,
    /// The payload.
    pub payload: &'a [u8],
    /// Timestamp relative to the packetiser's first sample, modulo 2^32.
    pub timestamp: u32,
    /// Duration in timestamp units.
    pub duration: u32,
    /// Marker: the first packet of speech after silence (RFC 3551 section 4.1).
    pub marker: bool,
}

/// Settings of a packetiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketiserSettings {
    /// Packet time in milliseconds.
    pub packet_ms: u32,
    /// Whether silence is suppressed: by the codec itself if it can, else with comfort noise packets, which the
    /// receiver must have accepted.
    pub suppress_silence: bool,
}

impl Default for PacketiserSettings {
    fn default() -> Self {
        PacketiserSettings {
            packet_ms: 20,
            suppress_silence: false,
        }
    }
}

/// Splits a stream of samples into packets.
pub struct Packetiser {
    encoder: Box<dyn AudioEncoder>,
    suppressor: Option<Suppressor>,
    pending: Vec<i16>,
    packet_samples: usize,
    payload: Box<[u8]>,
    timestamp: u32,
    /// Whether the previous packet was speech.
    speaking: bool,
}

impl Packetiser {
    /// A packetiser of `format` for samples at `rate` Hz.
    ///
    /// # Errors
    /// As [`Format::encoder`].
    pub fn new(
        format: &Format,
        rate: u32,
        packing: PacketiserSettings,
    ) -> Result<Packetiser, CodecError> {
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
    pub fn encoder(&mut self) -> &mut dyn AudioEncoder {
        &mut *self.encoder
    }

    /// Samples of a packet.
    pub fn packet_samples(&self) -> usize {
        self.packet_samples
    }

    /// The timestamp of the next packet, relative to the first sample.
    pub fn timestamp(&self) -> u32 {
        self.timestamp
    }

    /// Adds any number of samples; passes each completed packet to `send`.
    ///
    /// # Errors
    /// [`CodecError::Library`] if the codec's library fails; the samples of that packet are lost.
    pub fn push(
        &mut self,
        mut samples: &[i16],
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        // Complete packets are encoded in place, without a copy.
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

    /// Samples that complete the packet that has begun; 0 if none has.
    pub fn missing_samples(&self) -> usize {
        match self.pending.len() {
            0 => 0,
            pending => self.packet_samples.saturating_sub(pending),
        }
    }

    /// Skips `units` of the timestamp, for a pause of the source. Buffered samples are dropped.
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
            match suppressor.classify(samples, frame) {
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

    /// Encodes frame by frame. A packet ends early at a frame that is not sent, or after a silence insertion
    /// descriptor.
    fn frames(
        &mut self,
        samples: &[i16],
        begin: u32,
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let frame = self.encoder.frame_samples();
        let units = self.units(frame);
        let mut open = OpenPacket::default();
        for (index, samples) in samples.chunks_exact(frame).enumerate() {
            let at = begin.wrapping_add(index as u32 * units);
            let room = self.payload.get_mut(open.length..).unwrap_or_default();
            // A frame is encoded at its presumed position; it is moved to the front if the packet turns out to end
            // before it.
            let encoded = self.encoder.encode(samples, room)?;
            let (length, is_speech) = match encoded {
                EncodedFrame::Speech(length) => (length, true),
                EncodedFrame::Noise(length) => (length, false),
                EncodedFrame::Nothing => {
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

    fn close(&self, open: &mut OpenPacket, send: &mut dyn FnMut(Packet<'_>)) {
        if open.length > 0 {
            send(Packet {
                content: Content::Audio,
                payload: self.payload.get(..open.length).unwrap_or_default(),
                timestamp: open.timestamp,
                duration: open.duration,
                marker: open.marker,
            });
        }
        *open = OpenPacket::default();
    }
}

/// A packet under construction.
#[derive(Default)]
struct OpenPacket {
    length: usize,
    timestamp: u32,
    duration: u32,
    marker: bool,
    /// It contains a silence insertion descriptor: nothing may follow.
    ended: bool,
}

/// Converts received payloads into samples without gaps: decoding, comfort noise and concealment. The caller's jitter
/// buffer decides which packet is late or lost; the calls are in the order of playout.
pub struct Unpacker {
    decoder: Box<dyn AudioDecoder>,
    generator: Generator,
    /// Comfort noise is active: no speech was received since its description.
    in_noise: bool,
}

impl Unpacker {
    /// An unpacker of `format` to samples at `rate` Hz. `seed` is that of the noise generator.
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

    /// The number of samples of a payload.
    ///
    /// # Errors
    /// [`CodecError::Payload`].
    pub fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        self.decoder.samples_of(payload)
    }

    /// The number of samples in this many timestamp units.
    pub fn samples_in(&self, units: u32) -> usize {
        let (rate, clock) = (self.sample_rate(), self.kind().rtp_clock());
        (u64::from(units) * u64::from(rate) / u64::from(clock)) as usize
    }

    /// Decodes a payload; returns the number of samples.
    ///
    /// # Errors
    /// As [`AudioDecoder::decode`].
    pub fn audio(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let count = self.decoder.decode(payload, samples)?;
        self.in_noise = false;
        Ok(count)
    }

    /// Processes a comfort noise payload; returns false if it is malformed. [`Unpacker::gap`] generates that noise from
    /// then on.
    pub fn noise(&mut self, payload: &[u8]) -> bool {
        let Some(noise) = Noise::parse(payload) else {
            return false;
        };
        self.generator.describe(noise);
        self.in_noise = true;
        true
    }

    /// Fills `samples` for an absent packet: with noise if the sender has described some and no speech followed, else
    /// by concealment.
    pub fn gap(&mut self, samples: &mut [i16]) {
        if self.in_noise {
            self.generator.fill(samples);
        } else {
            self.decoder.conceal(samples);
        }
    }

    /// Fills `samples`, lost directly before `following`, from the redundancy in it; returns true if there is some.
    pub fn recover(&mut self, following: &[u8], samples: &mut [i16]) -> bool {
        if self.in_noise {
            self.generator.fill(samples);
            return false;
        }
        self.decoder.recover(following, samples)
    }
}
