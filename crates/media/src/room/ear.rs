//! The receiving half of a seat: from what was agreed about its voice to a turn's samples at the rate of the room.

use super::buffer::{Buffer, Content, Step};
use super::plan::Voice;
use super::talk::Talk;
use super::{MAX_TURN, TURN_MS};
use codec::dtmf::{Detector, Heard};
use codec::g729::GainFollower;
use codec::{CodecError, Kind, Resampler, Unpacker};
use core::time::Duration;
use engine::{DropReason, Time};

/// Octets of a payload that are taken at most. G.711 and G.722 have 80 an each 10 ms.
const PAYLOAD: usize = 1275;
const PAYLOAD_G729: usize = 122;
const PAYLOAD_64K: usize = 960;
/// Payloads that were not decoded are kept, so that a decoder knows what was before when somebody begins to speak.
const KEPT: usize = 6;
/// Samples that a payload may leave behind for later turns: 120 ms at 48 kHz.
const LEFT: usize = codec::coder::MAX_SAMPLES;

/// What a receiving half has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeardFigures {
    /// Payloads decoded.
    pub decoded: u64,
    /// Payloads of G.729 whose gain said that nobody speaks, which were not decoded.
    pub passed_over: u64,
    /// Samples made up for what did not come, at the codec's rate.
    pub concealed: u64,
    /// How long packets are waited for at present, in microseconds.
    pub wait_us: u64,
}

/// Payloads of the last moments.
#[derive(Debug)]
struct Kept {
    payloads: [([u8; PAYLOAD_G729], u8); KEPT],
    count: usize,
}

impl Kept {
    fn push(&mut self, payload: &[u8]) {
        if self.count == KEPT {
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

/// See the module's text.
pub(super) struct Ear {
    unpacker: Unpacker,
    /// Only for G.729: tells who speaks without decoding.
    follower: Option<(GainFollower, Box<Kept>)>,
    pub(super) buffer: Buffer,
    /// Decoded, or told to be silence, and not played yet; at the codec's rate.
    queue: Vec<i16>,
    scratch: Box<[i16]>,
    up: Resampler,
    talk: Talk,
    /// In the last turn the decoder was fed.
    fed: bool,
    figures: HeardFigures,
    /// Hears digits in sound, where the participant has no other way to tell of them.
    digits: Option<Box<Detector>>,
}

impl core::fmt::Debug for Ear {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ear").finish_non_exhaustive()
    }
}

/// Whether digits are listened for: not where telephone events were agreed upon, for whoever has these has no digits in his sound, and
/// not in G.729, which leaves too little of them.
fn hears_digits(voice: &Voice) -> bool {
    voice.events.is_none() && voice.sends.kind() != Kind::G729
}

/// Rates between which [`Resampler`] always works: those of our codecs.
fn resampler(from: u32, to: u32) -> Result<Resampler, CodecError> {
    Resampler::new(from, to).map_err(|_| CodecError::Library("no filter between these rates"))
}

impl Ear {
    pub(super) fn new(
        voice: &Voice,
        room_rate: u32,
        most: Duration,
        seed: u64,
    ) -> Result<Ear, CodecError> {
        let kind = voice.sends.kind();
        let rate = super::rate_of(kind);
        let payload = match kind {
            Kind::G729 => PAYLOAD_G729,
            Kind::Opus => PAYLOAD,
            Kind::Pcma | Kind::Pcmu | Kind::G722 => PAYLOAD_64K,
        };
        let kept = || {
            Box::new(Kept {
                payloads: [([0; PAYLOAD_G729], 0); KEPT],
                count: 0,
            })
        };
        Ok(Ear {
            unpacker: Unpacker::new(&voice.sends, rate, seed)?,
            follower: (kind == Kind::G729).then(|| (GainFollower::new(), kept())),
            buffer: Buffer::new(payload, kind.rtp_clock(), most),
            queue: Vec::with_capacity(LEFT + MAX_TURN),
            scratch: vec![0; LEFT].into_boxed_slice(),
            up: resampler(rate, room_rate)?,
            talk: Talk::new(),
            fed: true,
            figures: HeardFigures::default(),
            digits: hears_digits(voice).then(|| Box::new(Detector::new(rate))),
        })
    }

    /// The room has another rate from now on.
    pub(super) fn set_room_rate(&mut self, rate: u32) -> Result<(), CodecError> {
        self.up = resampler(self.unpacker.sample_rate(), rate)?;
        Ok(())
    }

    /// Listens for digits as a changed agreement about the same codec wants it.
    pub(super) fn listen_for_digits(&mut self, voice: &Voice) {
        let rate = self.unpacker.sample_rate();
        match hears_digits(voice) {
            true if self.digits.is_none() => self.digits = Some(Box::new(Detector::new(rate))),
            true => {}
            false => self.digits = None,
        }
    }

    pub(super) fn talk(&self) -> &Talk {
        &self.talk
    }

    pub(super) fn figures(&self) -> HeardFigures {
        HeardFigures {
            wait_us: self.buffer.wait_us().max(0) as u64,
            ..self.figures
        }
    }

    /// Takes a payload in.
    pub(super) fn insert(
        &mut self,
        arrived: Time,
        timestamp: u32,
        noise: bool,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let clock = self.unpacker.kind().rtp_clock();
        let (units, content) = match noise {
            // It lasts until something else comes.
            true => (0, Content::Noise),
            false => {
                let samples = self
                    .unpacker
                    .samples_of(payload)
                    .ok()
                    .filter(|&samples| samples > 0)
                    .ok_or(DropReason::RoomPayload)?;
                let rate = u64::from(self.unpacker.sample_rate());
                let units = samples as u64 * u64::from(clock) / rate;
                (units as u32, Content::Audio)
            }
        };
        self.buffer
            .insert(arrived, timestamp, units, content, payload)
    }

    /// The next turn of the participant's voice at the room's rate, appended to `out`, where he is to be heard. `wanted`: not
    /// where he is mute or held; what comes is used up nevertheless. `pressed` is told of digits that begin in the sound.
    pub(super) fn turn(
        &mut self,
        now: Time,
        wanted: bool,
        out: &mut Vec<i16>,
        pressed: &mut dyn FnMut(char),
    ) -> bool {
        let rate = self.unpacker.sample_rate();
        let samples = (rate / 1000 * TURN_MS) as usize;
        let clock = self.unpacker.kind().rtp_clock();
        let mut level: Option<f32> = None;
        let quiet = !self.talk.is_speaking();
        if self.buffer.begin(now, TURN_MS, quiet) {
            let (mut have, mut steps) = (self.queue.len(), 0);
            while have < samples && steps < 64 {
                steps += 1;
                let missing = (samples - have) as u64 * u64::from(clock) / u64::from(rate);
                match self.buffer.step((missing as u32).max(1)) {
                    Step::Play(index, Content::Noise) => {
                        self.unpacker.noise(self.buffer.payload(index));
                        self.fed = true;
                    }
                    Step::Play(index, Content::Audio) => {
                        let played = self.play(index);
                        level = match (level, played) {
                            (Some(a), Some(b)) => Some(f32::max(a, b)),
                            (a, b) => a.or(b),
                        };
                    }
                    Step::Gap(units) => self.gap(units),
                }
                have = self.queue.len();
            }
        }
        // What no step has given is silence: the stream has not begun, or makes a pause.
        if self.queue.len() < samples {
            self.queue.resize(samples, 0);
        }
        let turn = self.queue.get(..samples).unwrap_or_default();
        if self.follower.is_none() {
            level = Some(codec::level::dbov(turn) as f32);
        }
        if let Some(detector) = &mut self.digits {
            detector.push(turn, &mut |heard| {
                if let Heard::Begin { digit, .. } = heard {
                    pressed(digit);
                }
            });
        }
        let speaks = self.talk.take(level);
        let heard = speaks && wanted;
        if heard {
            self.up.process(turn, out);
        }
        self.queue.drain(..samples);
        heard
    }

    /// Plays a payload; for G.729, its level.
    fn play(&mut self, index: usize) -> Option<f32> {
        let payload = self.buffer.payload(index);
        let mut level = None;
        if let Some((follower, kept)) = &mut self.follower {
            level = follower.level(payload);
            // Who is not taken for a speaker in this turn is not heard in it: just then nothing has to be decoded.
            let before = self.fed;
            self.fed =
                self.talk.is_speaking() || level.is_some_and(|level| self.talk.exceeds(level));
            if !self.fed {
                kept.push(payload);
                self.figures.passed_over += 1;
                let samples = self.unpacker.samples_of(payload).unwrap_or(0);
                self.queue.resize(self.queue.len() + samples, 0);
                return level;
            }
            if !before {
                // The decoder catches up with what it was not given; nobody hears that.
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
        if let Ok(made) = self.unpacker.audio(payload, &mut self.scratch) {
            self.figures.decoded += 1;
            let made = self.scratch.get(..made).unwrap_or_default();
            self.queue.extend_from_slice(made);
        }
        level
    }

    /// Something is to be heard for `units` of which nothing came.
    fn gap(&mut self, units: u32) {
        let samples = self.unpacker.samples_in(units).clamp(1, LEFT);
        let from = self.queue.len();
        self.queue.resize(from + samples, 0);
        if !self.fed {
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
