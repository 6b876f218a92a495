//! Playing: a sound goes to a side of a line, in the place of what the other side sends.
//!
//! A side that was ever played to has a stream of ours (RFC 3550 section 5.1): one source, whose numbers and timestamps go on from sound
//! to sound, so that receivers and SRTP contexts see one stream with pauses. Packets are due by the media clock, one packet time after
//! the other, whenever the sound's own samples were recorded; whoever could not be served in time is not flooded afterwards.

use super::flow::Side;
use super::made::{Outbox, head};
use codec::packet::Packing;
use codec::{CodecError, Format, Packetiser, Resampler, Sound};
use core::fmt;
use core::time::Duration;
use engine::{Packet, Time};

/// How a party wants what is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayVoice {
    /// Payload type.
    pub payload_type: u8,
    /// Codec.
    pub format: Format,
    /// Milliseconds of a packet; one of [`codec::Kind::packet_times`].
    pub packet_ms: u32,
}

/// What is played to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayPlan {
    /// Control's number of the session.
    pub session: u64,
    /// Media line.
    pub line: u8,
    /// The side that hears it, 0 or 1.
    pub side: u8,
    /// Control's number of this playing; reports have it.
    pub number: u64,
    /// The sound.
    pub sound: Sound,
    /// How it is sent.
    pub voice: PlayVoice,
    /// The first sample that is played; where it comes again, it begins at its beginning.
    pub start: usize,
    /// How often it is played; 0 counts as 1.
    pub times: u32,
    /// How long it is played at most.
    pub span: Option<Duration>,
    /// Random: source, first number and first timestamp of the side's stream, where it has none yet.
    pub seed: u64,
}

/// Why a sound is played no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlayEnd {
    /// It was played as often, or as long, as it was meant to be.
    Finished,
    /// Control wanted so.
    Stopped,
    /// Another sound is played instead.
    Replaced,
    /// The session, the line or the side is not there (any more).
    Gone,
    /// Its codec cannot be used.
    Failed,
}

impl PlayEnd {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            PlayEnd::Finished => "finished",
            PlayEnd::Stopped => "stopped",
            PlayEnd::Replaced => "replaced",
            PlayEnd::Gone => "gone",
            PlayEnd::Failed => "failed",
        }
    }
}

/// A playing that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Its number.
    pub number: u64,
    /// Why it ended.
    pub end: PlayEnd,
    /// Up to which sample of the sound it came.
    pub position: u64,
    /// Packets that were sent.
    pub packets: u64,
}

/// A packet that is later than this takes the clock with it: those behind it follow at their pace, and nothing of the sound is lost.
const LATE: Duration = Duration::from_millis(60);

/// A sound on its way.
struct Playing {
    plan: Box<PlayPlan>,
    packetiser: Packetiser,
    resampler: Resampler,
    /// The next sample.
    at: usize,
    /// How often it is still played, this time included.
    left: u32,
    /// Samples of silence that push the last ones out of the filter.
    tail: usize,
    read: Vec<i16>,
    /// Samples at the codec's rate that wait for a packet.
    ready: Vec<i16>,
    due: Time,
    played: Duration,
    /// Something was sent: until then it waits for an address, or for keys.
    begun: bool,
    marker: bool,
    packets: u64,
}

/// What a side is played, and the stream that carries it.
pub(crate) struct Player {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    /// To when the timestamp belongs.
    at: Time,
    playing: Option<Playing>,
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player")
            .field("ssrc", &self.ssrc)
            .field("playing", &self.playing.as_ref().map(|p| &p.plan.sound))
            .finish_non_exhaustive()
    }
}

/// The encoder of a voice, and the way to its rate.
fn coder(sound: &Sound, voice: &PlayVoice) -> Result<(Packetiser, Resampler), CodecError> {
    let rate = voice.format.kind().rate_near(sound.rate());
    let packing = Packing {
        packet_ms: voice.packet_ms,
        suppress_silence: false,
    };
    let packetiser = Packetiser::new(&voice.format, rate, packing)?;
    let resampler = Resampler::new(sound.rate(), rate)
        .map_err(|_| CodecError::Library("no filter between these rates"))?;
    Ok((packetiser, resampler))
}

/// Whether a sound can be played so.
pub fn can_play(sound: &Sound, voice: &PlayVoice) -> bool {
    sound.frames() > 0 && coder(sound, voice).is_ok()
}

impl Playing {
    fn new(plan: Box<PlayPlan>, now: Time) -> Result<Playing, CodecError> {
        let (packetiser, resampler) = coder(&plan.sound, &plan.voice)?;
        let mut playing = Playing {
            at: plan.start.min(plan.sound.frames()),
            left: plan.times.max(1),
            tail: 0,
            read: Vec::with_capacity(plan.sound.rate() as usize / 50),
            ready: Vec::with_capacity(4 * packetiser.packet_samples()),
            due: now,
            played: Duration::ZERO,
            begun: false,
            marker: true,
            packets: 0,
            packetiser,
            resampler,
            plan,
        };
        playing.set_tail();
        Ok(playing)
    }

    fn rate(&mut self) -> u32 {
        self.packetiser.encoder().sample_rate()
    }

    fn set_tail(&mut self) {
        let (from, to) = (self.plan.sound.rate(), self.rate());
        self.tail = match from == to {
            true => 0,
            false => self.resampler.delay() * from as usize / to as usize,
        };
    }

    fn packet_time(&self) -> Duration {
        Duration::from_millis(self.plan.voice.packet_ms.into())
    }

    /// Units of the stream's clock in a span.
    fn units(&self, span: Duration) -> u32 {
        let clock = u128::from(self.plan.voice.format.kind().rtp_clock());
        (span.as_nanos() * clock / 1_000_000_000) as u32
    }

    /// Has the samples of a packet; `false`: the sound is over.
    fn fill(&mut self) -> bool {
        let wanted = self.packetiser.packet_samples();
        let sound = &self.plan.sound;
        let step = (sound.rate() as usize / 100).max(1);
        while self.ready.len() < wanted {
            self.read.clear();
            let read = sound.read(self.at, step, &mut self.read);
            self.at += read;
            if read == 0 {
                if self.left > 1 && sound.frames() > 0 {
                    self.left -= 1;
                    self.at = 0;
                    continue;
                }
                let silence = self.tail.min(step);
                if silence == 0 {
                    break;
                }
                self.tail -= silence;
                self.read.resize(silence, 0);
            }
            self.resampler.process(&self.read, &mut self.ready);
        }
        if self.ready.is_empty() {
            return false;
        }
        if self.ready.len() < wanted {
            self.ready.resize(wanted, 0);
        }
        true
    }

    fn ended(&mut self, end: PlayEnd) -> Played {
        let rate = self.rate() as usize;
        let waiting = self.ready.len() * self.plan.sound.rate() as usize / rate.max(1);
        Played {
            number: self.plan.number,
            end,
            position: self.at.saturating_sub(waiting) as u64,
            packets: self.packets,
        }
    }
}

impl Player {
    /// A stream of random beginnings. The first number leaves room before the first turn of the rollover counter (RFC 3711 section
    /// 3.3.1).
    pub(crate) fn new(seed: u64, now: Time) -> Player {
        Player {
            ssrc: seed as u32,
            sequence: (seed >> 32) as u16 & 0x7fff,
            timestamp: seed.rotate_left(16) as u32,
            at: now,
            playing: None,
        }
    }

    /// Whether a sound is being played.
    pub(crate) fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    /// The number of what is being played.
    pub(crate) fn number(&self) -> Option<u64> {
        self.playing.as_ref().map(|playing| playing.plan.number)
    }

    /// Plays a sound from now on; gives what was played until now.
    ///
    /// # Errors
    /// Its codec cannot be used; what was played goes on.
    pub(crate) fn begin(
        &mut self,
        plan: Box<PlayPlan>,
        now: Time,
    ) -> Result<Option<Played>, CodecError> {
        let playing = Playing::new(plan, now)?;
        let before = self.end(PlayEnd::Replaced);
        // The pause counts, too.
        let pause = playing.units(now.since(self.at));
        self.timestamp = self.timestamp.wrapping_add(pause);
        self.at = now;
        self.playing = Some(playing);
        Ok(before)
    }

    /// Goes on with another codec.
    ///
    /// # Errors
    /// It cannot be used; then the playing has ended so.
    pub(crate) fn tune(&mut self, voice: PlayVoice) -> Result<(), Option<Played>> {
        let Some(playing) = &mut self.playing else {
            return Ok(());
        };
        let Ok((packetiser, resampler)) = coder(&playing.plan.sound, &voice) else {
            return Err(self.end(PlayEnd::Failed));
        };
        // What waits at the old rate is played again: it is less than a packet.
        let position = playing.ended(PlayEnd::Stopped).position;
        playing.at = position as usize;
        playing.ready.clear();
        playing.ready.reserve(4 * packetiser.packet_samples());
        playing.packetiser = packetiser;
        playing.resampler = resampler;
        playing.plan.voice = voice;
        playing.set_tail();
        Ok(())
    }

    /// Ends what is being played.
    pub(crate) fn end(&mut self, end: PlayEnd) -> Option<Played> {
        let mut playing = self.playing.take()?;
        Some(playing.ended(end))
    }

    /// Sends what is due to a side. `keyed`: packets for it can be sealed, or need not be.
    ///
    /// # Errors
    /// The playing has ended.
    pub(crate) fn run(
        &mut self,
        now: Time,
        keyed: bool,
        side: &mut Side,
        outbox: &mut Outbox,
    ) -> Result<Option<Time>, Played> {
        let Some(playing) = &mut self.playing else {
            return Ok(None);
        };
        while playing.due <= now {
            let late = now.since(playing.due);
            if late > LATE {
                self.timestamp = self.timestamp.wrapping_add(playing.units(late));
                playing.due = now;
                playing.marker = true;
            }
            self.at = playing.due;
            let packet_time = playing.packet_time();
            let (timestamp, step) = (self.timestamp, playing.units(packet_time));
            let way = side.way().filter(|_| keyed);
            let over = playing.plan.span.is_some_and(|span| playing.played >= span);
            if playing.begun || way.is_some() {
                if over || !playing.fill() {
                    let ended = playing.ended(PlayEnd::Finished);
                    self.playing = None;
                    return Err(ended);
                }
                playing.begun = true;
                playing.played += packet_time;
                let (number, marker) = (playing.plan.voice.payload_type, playing.marker);
                let (ssrc, sequence) = (self.ssrc, &mut self.sequence);
                let (sent, marked) = (&mut playing.packets, &mut playing.marker);
                let wanted = playing.packetiser.packet_samples();
                let samples = playing.ready.get(..wanted).unwrap_or_default();
                let pushed = playing.packetiser.push(samples, &mut |packet| {
                    let Some(way) = way else { return };
                    outbox.begin(
                        &head(number, marker, *sequence, timestamp, ssrc),
                        packet.payload,
                    );
                    *sequence = sequence.wrapping_add(1);
                    match outbox.finish(way, |packet: &mut Packet<'_>| side.seal(packet, false)) {
                        Ok(length) => {
                            side.count_sent(length, false);
                            *sent += 1;
                            *marked = false;
                        }
                        Err(reason) => side.dropped(reason),
                    }
                });
                if pushed.is_err() {
                    let ended = playing.ended(PlayEnd::Failed);
                    self.playing = None;
                    return Err(ended);
                }
                playing.ready.drain(..wanted);
            }
            playing.due += packet_time;
            self.timestamp = self.timestamp.wrapping_add(step);
            self.at = playing.due;
        }
        Ok(Some(playing.due))
    }
}
