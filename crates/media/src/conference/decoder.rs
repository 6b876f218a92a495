//! The receiving half of a participant: jitter buffer, decoder, speech and digit detection, resampling to the mixing
//! rate.

use super::jitter_buffer::{JitterBuffer, PlayoutStep, SlotContent};
use super::messages::DecoderFigures;
use super::plan::VoiceFormat;
use super::speech::SpeechDetector;
use super::{MAX_TURN, TURN_MS};
use codec::dtmf::{Detector, DetectorEvent};
use codec::g729::{GainFollower, MAX_PAYLOAD as MAX_PAYLOAD_G729};
use codec::{CodecError, Kind, Resampler, Unpacker};
use core::time::Duration;
use engine::{DropReason, Time};

/// Payloads that were not decoded but are kept: the decoder is fed with them when speech begins, to have its state.
const HISTORY: usize = 6;
/// Samples that a payload may leave for later turns: 120 ms at 48 kHz.
const MAX_QUEUED: usize = codec::coder::MAX_SAMPLES;

/// Octets of a payload that announces a pause, at most.
const MAX_PAUSE_PAYLOAD: usize = 2;

/// The origin of samples, rising by their value for the detection of speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SampleOrigin {
    /// Comfort noise, or silence in place of absent packets.
    Pause,
    /// Concealment of an absent payload.
    Concealed,
    /// A payload with audio.
    Received,
}

/// The last payloads that were not decoded.
#[derive(Debug)]
struct UndecodedHistory {
    payloads: [([u8; MAX_PAYLOAD_G729], u8); HISTORY],
    count: usize,
}

impl UndecodedHistory {
    /// Stores a payload in place of the oldest one.
    fn push(&mut self, payload: &[u8]) {
        if self.count == HISTORY {
            self.payloads.copy_within(1.., 0);
            self.count -= 1;
        }
        if let Some((bytes, length)) = self.payloads.get_mut(self.count)
            && let Some(place) = bytes.get_mut(..payload.len())
        {
            place.copy_from_slice(payload);
            *length = payload.len() as u8;
            self.count += 1;
        }
    }
}

/// See the module's documentation.
pub(crate) struct ParticipantDecoder {
    unpacker: Unpacker,
    /// All audio is decoded and played, that without speech too.
    plays_silence: bool,
    /// Only for G.729: estimates the level without decoding.
    follower: Option<(GainFollower, Box<UndecodedHistory>)>,
    pub(super) buffer: JitterBuffer,
    /// Samples that were decoded or replaced by silence and are not played yet, at the codec's rate.
    queue: Vec<i16>,
    /// Origin of the last samples in the queue, and with G.729 their level in dBov.
    queued: SampleOrigin,
    queued_level: Option<f32>,
    scratch: Box<[i16]>,
    resampler: Resampler,
    speech: SpeechDetector,
    /// Whether the decoder was fed with the last payload.
    decoder_fed: bool,
    figures: DecoderFigures,
    /// Detects digits in the audio of participants without telephone events.
    digits: Option<Box<Detector>>,
}

impl core::fmt::Debug for ParticipantDecoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ParticipantDecoder").finish_non_exhaustive()
    }
}

/// Whether digits are detected in the audio. Not if telephone events were negotiated, and not with G.729, which
/// distorts the tones too much.
fn detects_digits(voice: &VoiceFormat) -> bool {
    voice.events.is_none() && voice.format.kind().spec().carries_tones
}

/// Whether a payload announces a pause in silence: a descriptor of G.729 Annex B, or a payload of Opus without a frame.
fn announces_pause(kind: Kind, payload: &[u8]) -> bool {
    kind.has_own_silence() && payload.len() <= MAX_PAUSE_PAYLOAD
}

/// Creates a resampler; all rates of our codecs are supported.
fn new_resampler(from: u32, to: u32) -> Result<Resampler, CodecError> {
    Resampler::new(from, to).map_err(|_| CodecError::Library("no filter between these rates"))
}

impl ParticipantDecoder {
    /// A decoder with a jitter buffer of at most `max_delay`. `seed` is for the decoder's comfort noise.
    pub(super) fn new(
        voice: &VoiceFormat,
        mix_rate: u32,
        max_delay: Duration,
        seed: u64,
    ) -> Result<ParticipantDecoder, CodecError> {
        let kind = voice.format.kind();
        let rate = super::rate_of(kind);
        let kept = || {
            Box::new(UndecodedHistory {
                payloads: [([0; MAX_PAYLOAD_G729], 0); HISTORY],
                count: 0,
            })
        };
        Ok(ParticipantDecoder {
            unpacker: Unpacker::new(&voice.format, rate, seed)?,
            plays_silence: false,
            follower: (kind == Kind::G729).then(|| (GainFollower::new(), kept())),
            buffer: JitterBuffer::new(kind.spec().max_payload, kind.rtp_clock(), max_delay),
            queue: Vec::with_capacity(MAX_QUEUED + MAX_TURN),
            queued: SampleOrigin::Pause,
            queued_level: None,
            scratch: vec![0; MAX_QUEUED].into_boxed_slice(),
            resampler: new_resampler(rate, mix_rate)?,
            speech: SpeechDetector::new(),
            decoder_fed: true,
            figures: DecoderFigures::default(),
            digits: detects_digits(voice).then(|| Box::new(Detector::new(rate))),
        })
    }

    /// A decoder that plays all audio, for one listener, without digit detection.
    pub(crate) fn for_playout(
        voice: &VoiceFormat,
        rate: u32,
        max_delay: Duration,
        seed: u64,
    ) -> Result<ParticipantDecoder, CodecError> {
        let mut decoder = ParticipantDecoder::new(voice, rate, max_delay, seed)?;
        decoder.plays_silence = true;
        decoder.follower = None;
        decoder.digits = None;
        Ok(decoder)
    }

    /// Sets another mixing rate.
    pub(super) fn set_mix_rate(&mut self, rate: u32) -> Result<(), CodecError> {
        self.resampler = new_resampler(self.unpacker.sample_rate(), rate)?;
        Ok(())
    }

    /// Adapts digit detection to changed terms of the same codec.
    pub(super) fn set_digit_detection(&mut self, voice: &VoiceFormat) {
        let rate = self.unpacker.sample_rate();
        match detects_digits(voice) {
            true if self.digits.is_none() => self.digits = Some(Box::new(Detector::new(rate))),
            true => {}
            false => self.digits = None,
        }
    }

    pub(super) fn speech(&self) -> &SpeechDetector {
        &self.speech
    }

    pub(crate) fn figures(&self) -> DecoderFigures {
        DecoderFigures {
            wait_us: self.buffer.wait_us().max(0) as u64,
            ..self.figures
        }
    }

    /// Inserts a payload into the jitter buffer.
    pub(crate) fn insert(
        &mut self,
        arrived: Time,
        timestamp: u32,
        noise: bool,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let clock = self.unpacker.kind().rtp_clock();
        let (units, content) = match noise {
            // Comfort noise lasts until the next payload.
            true => (0, SlotContent::Noise),
            false => {
                let samples = self
                    .unpacker
                    .samples_of(payload)
                    .ok()
                    .filter(|&samples| samples > 0)
                    .ok_or(DropReason::ConferencePayload)?;
                let rate = u64::from(self.unpacker.sample_rate());
                let units = samples as u64 * u64::from(clock) / rate;
                (units as u32, SlotContent::Audio)
            }
        };
        self.buffer
            .insert(arrived, timestamp, units, content, payload)
    }

    /// Plays the next turn and appends its samples at the mixing rate to `out` if the participant speaks. `wanted` is
    /// false while the participant is muted or on hold; the audio is consumed nevertheless. `on_digit` receives the
    /// digits that begin in the audio. Returns whether samples were appended.
    pub(crate) fn turn(
        &mut self,
        now: Time,
        wanted: bool,
        out: &mut Vec<i16>,
        on_digit: &mut dyn FnMut(char),
    ) -> bool {
        let rate = self.unpacker.sample_rate();
        let samples = (rate / 1000 * TURN_MS) as usize;
        let clock = self.unpacker.kind().rtp_clock();
        // A payload that is longer than a turn has left samples.
        let (mut origin, mut level) = match self.queue.is_empty() {
            true => (SampleOrigin::Pause, None),
            false => (self.queued, self.queued_level),
        };
        let quiet = !self.speech.is_speaking();
        if self.buffer.begin(now, TURN_MS, quiet) {
            let (mut have, mut steps) = (self.queue.len(), 0);
            while have < samples && steps < 64 {
                steps += 1;
                let missing = (samples - have) as u64 * u64::from(clock) / u64::from(rate);
                match self.buffer.step((missing as u32).max(1)) {
                    PlayoutStep::Play(index, SlotContent::Noise) => {
                        self.unpacker.noise(self.buffer.payload(index));
                        self.decoder_fed = true;
                        (self.queued, self.queued_level) = (SampleOrigin::Pause, None);
                    }
                    PlayoutStep::Play(index, SlotContent::Audio) => {
                        self.play(index);
                        level = match (level, self.queued_level) {
                            (Some(a), Some(b)) => Some(f32::max(a, b)),
                            (a, b) => a.or(b),
                        };
                    }
                    PlayoutStep::Gap(units) => self.gap(units),
                }
                origin = origin.max(self.queued);
                have = self.queue.len();
            }
        }
        // The remaining samples are silence: the stream has not begun, or pauses.
        if self.queue.len() < samples {
            self.queue.resize(samples, 0);
        }
        let turn = self.queue.get(..samples).unwrap_or_default();
        if self.follower.is_none() {
            let is_audio = origin > SampleOrigin::Pause;
            level = is_audio.then(|| codec::level::dbov(turn) as f32);
        }
        if let Some(detector) = &mut self.digits {
            detector.push(turn, &mut |event| {
                if let DetectorEvent::Begin { digit, .. } = event {
                    on_digit(digit);
                }
            });
        }
        let received = origin == SampleOrigin::Received;
        let speaks = self.speech.update(level, received);
        let audible = (speaks || self.plays_silence) && wanted;
        if audible {
            self.resampler.process(turn, out);
        }
        self.queue.drain(..samples);
        audible
    }

    /// Plays a payload.
    fn play(&mut self, index: usize) {
        let payload = self.buffer.payload(index);
        let is_pause = announces_pause(self.unpacker.kind(), payload);
        self.queued = match is_pause {
            true => SampleOrigin::Pause,
            false => SampleOrigin::Received,
        };
        self.queued_level = None;
        if let Some((follower, kept)) = &mut self.follower {
            let level = follower.level(payload).filter(|_| !is_pause);
            self.queued_level = level;
            // A participant without speech is not in this turn's mix, so the payload need not be decoded.
            let was_fed = self.decoder_fed;
            self.decoder_fed =
                self.speech.is_speaking() || level.is_some_and(|level| self.speech.exceeds(level));
            if !self.decoder_fed {
                kept.push(payload);
                self.figures.skipped += 1;
                let samples = self.unpacker.samples_of(payload).unwrap_or(0);
                self.queue.resize(self.queue.len() + samples, 0);
                return;
            }
            if !was_fed {
                // Feed the skipped payloads, so that the decoder's state is right; their samples are discarded.
                for (bytes, length) in kept.payloads.iter().take(kept.count) {
                    let payload = bytes.get(..usize::from(*length)).unwrap_or_default();
                    if self.unpacker.audio(payload, &mut self.scratch).is_err() {
                        break;
                    }
                    self.figures.decoded += 1;
                }
            }
            kept.count = 0;
        }
        if let Ok(packet) = self.unpacker.audio(payload, &mut self.scratch) {
            self.figures.decoded += 1;
            let packet = self.scratch.get(..packet).unwrap_or_default();
            self.queue.extend_from_slice(packet);
        }
    }

    /// Conceals `units` for which no payload was received.
    fn gap(&mut self, units: u32) {
        let samples = self.unpacker.samples_in(units).clamp(1, MAX_QUEUED);
        let from = self.queue.len();
        self.queue.resize(from + samples, 0);
        // A gap after a description of silence is part of the pause.
        self.queued = self.queued.min(SampleOrigin::Concealed);
        self.queued_level = None;
        if !self.decoder_fed {
            return;
        }
        self.figures.concealed += samples as u64;
        let place = self.queue.get_mut(from..).unwrap_or_default();
        match self.buffer.following() {
            Some(following) => {
                self.unpacker.recover(following, place);
            }
            None => self.unpacker.gap(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Format;

    /// A frame whose gains give a level of -48 dBov.
    const NOISE: [u8; 10] = [0, 0, 0, 0, 0, 0x02, 0x80, 0, 0, 0x14];

    /// Whether constant noise in packets of this time still counts as speech after 20 s.
    fn is_speech(packet_ms: u64) -> bool {
        let voice = VoiceFormat::new(Format::new(Kind::G729));
        let mut decoder =
            ParticipantDecoder::new(&voice, 8000, Duration::from_millis(200), 1).unwrap();
        let payload = NOISE.repeat(packet_ms as usize / 10);
        let (mut sent_ms, mut spoke) = (0, false);
        for turn in 0..1_000u64 {
            while sent_ms <= turn * 20 + 15 {
                let arrived = Time::from_millis(1_000 + sent_ms);
                let timestamp = sent_ms as u32 * 8;
                decoder.insert(arrived, timestamp, false, &payload).unwrap();
                sent_ms += packet_ms;
            }
            let now = Time::from_millis(1_015 + turn * 20);
            let audible = decoder.turn(now, true, &mut Vec::new(), &mut |_| {});
            spoke |= audible && turn >= 900;
        }
        spoke
    }

    #[test]
    fn noise_is_no_speech_at_any_packet_time() {
        if Kind::G729.is_available() {
            assert_eq!([20, 30, 40, 60].map(is_speech), [false; 4]);
        }
    }
}
