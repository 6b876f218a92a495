//! Playback of a sound to one side of a media line, in place of the other side's media.
//!
//! All playbacks to a side share one RTP stream (RFC 3550 section 5.1). Its sequence numbers and timestamps continue
//! from sound to sound, so that receivers and SRTP contexts see one stream with pauses. Packets are due by the media
//! clock, one per packet time. After a delay the schedule moves on instead of sending a burst.

use super::flow::FlowSide;
use super::generated::{PacketOutbox, rtp_header};
use codec::packet::PacketiserSettings;
use codec::{CodecError, Format, Packetiser, Resampler, Sound};
use core::fmt;
use core::time::Duration;
use engine::{MediaPacket, Time};

/// How a playback is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaybackEncoding {
    /// Payload type.
    pub payload_type: u8,
    /// Codec.
    pub format: Format,
    /// Packet time in milliseconds; one of [`codec::Kind::packet_times`].
    pub packet_ms: u32,
}

/// A playback request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaybackPlan {
    /// Session number.
    pub session: u64,
    /// Number of the media line.
    pub line: u8,
    /// The side that receives the sound, 0 or 1.
    pub side: u8,
    /// Control's number of this playback; reports contain it.
    pub number: u64,
    /// The sound.
    pub sound: Sound,
    /// Codec and packet time.
    pub encoding: PlaybackEncoding,
    /// Index of the first sample that is played. Repetitions begin at the first sample of the sound.
    pub start: usize,
    /// Number of times that it is played; 0 counts as 1.
    pub repetitions: u32,
    /// Maximum duration; `None` for no limit.
    pub max_duration: Option<Duration>,
    /// Random number for source, first sequence number and first timestamp of the side's stream, if it has none yet.
    pub seed: u64,
}

/// Reason for the end of a playback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaybackEnd {
    /// All repetitions were played, or the maximum duration is reached.
    Finished,
    /// Stopped by control.
    Stopped,
    /// Replaced by another playback.
    Replaced,
    /// The session, the line or the side does not exist (any more).
    Gone,
    /// The codec cannot be used.
    Failed,
}

impl PlaybackEnd {
    /// The reason as a word for logs.
    pub fn name(self) -> &'static str {
        match self {
            PlaybackEnd::Finished => "finished",
            PlaybackEnd::Stopped => "stopped",
            PlaybackEnd::Replaced => "replaced",
            PlaybackEnd::Gone => "media_ended",
            PlaybackEnd::Failed => "failed",
        }
    }
}

/// Result of a playback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaybackResult {
    /// Number of the playback.
    pub number: u64,
    /// Reason for the end.
    pub end: PlaybackEnd,
    /// Index of the first sample that was not played.
    pub position: u64,
    /// Packets sent.
    pub packets: u64,
}

/// If a packet is later than this, the schedule moves: the following packets keep their distance, and no part of the
/// sound is lost.
const MAX_LATENESS: Duration = Duration::from_millis(60);

/// A playback in progress.
struct ActivePlayback {
    plan: Box<PlaybackPlan>,
    packetiser: Packetiser,
    resampler: Resampler,
    /// Index of the next sample.
    position: usize,
    /// Remaining repetitions, the current one included.
    remaining: u32,
    /// Samples of silence that flush the resampling filter at the end.
    flush_samples: usize,
    source: Vec<i16>,
    /// Samples at the codec's rate for the next packets.
    encodable: Vec<i16>,
    due: Time,
    played: Duration,
    /// Whether sending has begun. Until then the playback waits for an address or SRTP keys.
    started: bool,
    marker: bool,
    packets: u64,
}

/// The playback stream of a side.
pub(crate) struct Player {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    /// The instant of `timestamp`.
    timestamp_at: Time,
    active: Option<ActivePlayback>,
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player")
            .field("ssrc", &self.ssrc)
            .field("active", &self.active.as_ref().map(|p| &p.plan.sound))
            .finish_non_exhaustive()
    }
}

/// Creates the encoder, and the resampler to its rate.
fn new_encoder(
    sound: &Sound,
    encoding: &PlaybackEncoding,
) -> Result<(Packetiser, Resampler), CodecError> {
    let rate = encoding.format.kind().rate_near(sound.rate());
    let packing = PacketiserSettings {
        packet_ms: encoding.packet_ms,
        suppress_silence: false,
    };
    let packetiser = Packetiser::new(&encoding.format, rate, packing)?;
    let resampler = Resampler::new(sound.rate(), rate)
        .map_err(|_| CodecError::Library("no filter between these rates"))?;
    Ok((packetiser, resampler))
}

/// Whether a sound can be played with this encoding.
pub fn can_play(sound: &Sound, encoding: &PlaybackEncoding) -> bool {
    sound.frames() > 0 && new_encoder(sound, encoding).is_ok()
}

impl ActivePlayback {
    /// Prepares a playback; fails if its codec cannot be used.
    fn new(plan: Box<PlaybackPlan>, now: Time) -> Result<ActivePlayback, CodecError> {
        let (packetiser, resampler) = new_encoder(&plan.sound, &plan.encoding)?;
        let mut active = ActivePlayback {
            position: plan.start.min(plan.sound.frames()),
            remaining: plan.repetitions.max(1),
            flush_samples: 0,
            source: Vec::with_capacity(plan.sound.rate() as usize / 50),
            encodable: Vec::with_capacity(4 * packetiser.packet_samples()),
            due: now,
            played: Duration::ZERO,
            started: false,
            marker: true,
            packets: 0,
            packetiser,
            resampler,
            plan,
        };
        active.set_flush_samples();
        Ok(active)
    }

    fn rate(&mut self) -> u32 {
        self.packetiser.encoder().sample_rate()
    }

    fn set_flush_samples(&mut self) {
        let (from, to) = (self.plan.sound.rate(), self.rate());
        self.flush_samples = match from == to {
            true => 0,
            false => self.resampler.delay() * from as usize / to as usize,
        };
    }

    fn packet_time(&self) -> Duration {
        Duration::from_millis(self.plan.encoding.packet_ms.into())
    }

    /// Converts a duration to units of the stream's clock.
    fn units(&self, span: Duration) -> u32 {
        let clock = u128::from(self.plan.encoding.format.kind().rtp_clock());
        (span.as_nanos() * clock / 1_000_000_000) as u32
    }

    /// Prepares the samples of the next packet. Returns `false` at the end of the sound.
    fn prepare_packet(&mut self) -> bool {
        let packet_samples = self.packetiser.packet_samples();
        let sound = &self.plan.sound;
        let step = (sound.rate() as usize / 100).max(1);
        while self.encodable.len() < packet_samples {
            self.source.clear();
            let read = sound.read(self.position, step, &mut self.source);
            self.position += read;
            if read == 0 {
                if self.remaining > 1 && sound.frames() > 0 {
                    self.remaining -= 1;
                    self.position = 0;
                    continue;
                }
                let silence = self.flush_samples.min(step);
                if silence == 0 {
                    break;
                }
                self.flush_samples -= silence;
                self.source.resize(silence, 0);
            }
            self.resampler.process(&self.source, &mut self.encodable);
        }
        if self.encodable.is_empty() {
            return false;
        }
        if self.encodable.len() < packet_samples {
            self.encodable.resize(packet_samples, 0);
        }
        true
    }

    fn result(&mut self, end: PlaybackEnd) -> PlaybackResult {
        let rate = self.rate() as usize;
        let waiting = self.encodable.len() * self.plan.sound.rate() as usize / rate.max(1);
        PlaybackResult {
            number: self.plan.number,
            end,
            position: self.position.saturating_sub(waiting) as u64,
            packets: self.packets,
        }
    }
}

impl Player {
    /// A stream with random initial values. The first sequence number is below 2^15, so that the rollover counter does
    /// not advance early (RFC 3711 section 3.3.1).
    pub(crate) fn new(seed: u64, now: Time) -> Player {
        Player {
            ssrc: seed as u32,
            sequence: (seed >> 32) as u16 & 0x7fff,
            timestamp: seed.rotate_left(16) as u32,
            timestamp_at: now,
            active: None,
        }
    }

    /// Whether a playback is in progress.
    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Number of the playback in progress.
    pub(crate) fn number(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.plan.number)
    }

    /// Starts a playback. Returns the result of the one that it replaces.
    ///
    /// # Errors
    /// The codec cannot be used; the previous playback continues.
    pub(crate) fn start(
        &mut self,
        plan: Box<PlaybackPlan>,
        now: Time,
    ) -> Result<Option<PlaybackResult>, CodecError> {
        let active = ActivePlayback::new(plan, now)?;
        let before = self.stop(PlaybackEnd::Replaced);
        // The timestamp advances during the pause, too.
        let pause = active.units(now.since(self.timestamp_at));
        self.timestamp = self.timestamp.wrapping_add(pause);
        self.timestamp_at = now;
        self.active = Some(active);
        Ok(before)
    }

    /// Continues with another encoding.
    ///
    /// # Errors
    /// The encoding cannot be used and the playback has ended; the error is its result.
    pub(crate) fn change_encoding(
        &mut self,
        encoding: PlaybackEncoding,
    ) -> Result<(), Option<PlaybackResult>> {
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let Ok((packetiser, resampler)) = new_encoder(&active.plan.sound, &encoding) else {
            return Err(self.stop(PlaybackEnd::Failed));
        };
        // Samples at the old rate are discarded and played again: it is less than a packet.
        let position = active.result(PlaybackEnd::Stopped).position;
        active.position = position as usize;
        active.encodable.clear();
        active.encodable.reserve(4 * packetiser.packet_samples());
        active.packetiser = packetiser;
        active.resampler = resampler;
        active.plan.encoding = encoding;
        active.set_flush_samples();
        Ok(())
    }

    /// Stops the playback.
    pub(crate) fn stop(&mut self, end: PlaybackEnd) -> Option<PlaybackResult> {
        let mut active = self.active.take()?;
        Some(active.result(end))
    }

    /// Sends the packets that are due. `can_protect`: the side has SRTP keys or needs none.
    ///
    /// # Errors
    /// The playback has ended; the error is its result.
    pub(crate) fn run(
        &mut self,
        now: Time,
        can_protect: bool,
        side: &mut FlowSide,
        outbox: &mut PacketOutbox,
    ) -> Result<Option<Time>, PlaybackResult> {
        let Some(active) = &mut self.active else {
            return Ok(None);
        };
        while active.due <= now {
            let late = now.since(active.due);
            if late > MAX_LATENESS {
                self.timestamp = self.timestamp.wrapping_add(active.units(late));
                active.due = now;
                active.marker = true;
            }
            self.timestamp_at = active.due;
            let packet_time = active.packet_time();
            let (timestamp, step) = (self.timestamp, active.units(packet_time));
            let route = side.destination().filter(|_| can_protect);
            let over = active
                .plan
                .max_duration
                .is_some_and(|limit| active.played >= limit);
            if active.started || route.is_some() {
                if over || !active.prepare_packet() {
                    let result = active.result(PlaybackEnd::Finished);
                    self.active = None;
                    return Err(result);
                }
                active.started = true;
                active.played += packet_time;
                let (number, marker) = (active.plan.encoding.payload_type, active.marker);
                let (ssrc, sequence) = (self.ssrc, &mut self.sequence);
                let (sent, marked) = (&mut active.packets, &mut active.marker);
                let packet_samples = active.packetiser.packet_samples();
                let samples = active.encodable.get(..packet_samples).unwrap_or_default();
                let pushed = active.packetiser.push(samples, &mut |packet| {
                    let Some(route) = route else { return };
                    outbox.begin(
                        &rtp_header(number, marker, *sequence, timestamp, ssrc),
                        packet.payload,
                    );
                    *sequence = sequence.wrapping_add(1);
                    match outbox.finish(route, |packet: &mut MediaPacket<'_>| {
                        side.protect(packet, false)
                    }) {
                        Ok(length) => {
                            side.count_sent(length, false);
                            *sent += 1;
                            *marked = false;
                        }
                        Err(reason) => side.count_drop(reason),
                    }
                });
                if pushed.is_err() {
                    let result = active.result(PlaybackEnd::Failed);
                    self.active = None;
                    return Err(result);
                }
                active.encodable.drain(..packet_samples);
            }
            active.due += packet_time;
            self.timestamp = self.timestamp.wrapping_add(step);
            self.timestamp_at = active.due;
        }
        Ok(Some(active.due))
    }
}
