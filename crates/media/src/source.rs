//! An RTP sender: audio on an absolute timeline, and telephone events.

use crate::dtmf::{DtmfError, EventSender};
use crate::live::{LiveEncoder, LiveReader};
use crate::shared_tone::{SharedTone, ToneReader};
use codec::g711::Law;
use codec::{Format, ToneGenerator};
use core::fmt;
use core::time::Duration;
use engine::{Deadline, Entropy, Time};
use std::sync::Arc;
use wire::rtp::{RtpHeader, RtpView};

/// Packets that are later than this are skipped instead of sent in a burst.
pub const MAX_LATENESS: Duration = Duration::from_millis(500);

/// Content of a stream.
#[derive(Clone, Debug)]
pub enum SourceContent {
    /// Linear samples at 8 kHz, encoded once and repeated without end.
    Loop(Arc<[i16]>),
    /// G.711 codes of the law in use, repeated without end. They can be shared by many sources.
    Codes(Arc<[u8]>),
    /// Encoded frames of any codec, one per packet, repeated without end.
    Frames(Arc<[Vec<u8>]>),
    /// Prepared packets of any codec by packet time, repeated without end. A packet time in which the speaker is silent
    /// may have no packet. The first packet time sent is `first`; `repeat_from` follows the last one.
    Ready {
        /// Packets of each packet time.
        slots: Arc<[Vec<ReadyPacket>]>,
        /// Index of the first packet time.
        first: usize,
        /// Index of the first packet time of the repeated part; 0 repeats all.
        repeat_from: usize,
    },
    /// Samples of a sound card, encoded when they are sent.
    Live {
        /// Where the samples come from.
        reader: LiveReader,
        /// Their codec.
        format: Format,
    },
    /// A tone.
    Tone(ToneGenerator),
    /// A tone in G.711 of the law in use, from its beginning, whose codes many sources share.
    SharedTone(SharedTone),
    /// Silence.
    Silence,
}

/// A packet that was encoded beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyPacket {
    /// Timestamp offset of the packet from the beginning of its packet time.
    pub offset: u32,
    /// Whether it is the first packet of speech after silence (RFC 3551 section 4.1).
    pub marker: bool,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Settings of a source.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Law of G.711.
    pub law: Law,
    /// Payload type.
    pub payload_type: u8,
    /// Clock rate in Hz.
    pub clock_rate: u32,
    /// Packet time in milliseconds: 10 to 60.
    pub ptime_ms: u32,
    /// Payload type of telephone events, if negotiated.
    pub event_payload_type: Option<u8>,
    /// Content of the stream.
    pub content: SourceContent,
    /// Due time of the first packet.
    pub start: Time,
}

impl SourceConfig {
    /// G.711 in packets of 20 ms from `start` on.
    pub fn g711(law: Law, content: SourceContent, start: Time) -> SourceConfig {
        SourceConfig {
            law,
            payload_type: law.payload_type(),
            clock_rate: 8000,
            ptime_ms: 20,
            event_payload_type: None,
            content,
            start,
        }
    }
}

/// Reason why settings cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// Packet time outside of 10 to 60 ms.
    PacketTime(u32),
    /// A clock rate that is zero, above 192 kHz or not a whole number per millisecond; or one other than 8 kHz with
    /// G.711.
    ClockRate(u32),
    /// Nothing to send, a frame of more than 1,400 bytes, or live audio at a rate that the codec cannot have.
    Content,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::PacketTime(ms) => write!(f, "packet time {ms} ms is not from 10 to 60 ms"),
            SourceError::ClockRate(hz) => write!(f, "clock rate {hz} Hz does not fit the content"),
            SourceError::Content => f.write_str("there is nothing to send, or a frame is too long"),
        }
    }
}

impl core::error::Error for SourceError {}

/// Content in the form that is sent.
#[derive(Debug)]
enum Audio {
    Codes { codes: Arc<[u8]>, at: usize },
    Frames { frames: Arc<[Vec<u8>]>, at: usize },
    Ready(Ready),
    Live(Box<LiveEncoder>),
    Tone(ToneGenerator),
    SharedTone(ToneReader),
    Silence,
}

/// Prepared packets.
#[derive(Clone, Debug)]
struct Ready {
    slots: Arc<[Vec<ReadyPacket>]>,
    first: usize,
    repeat_from: usize,
    /// Packets of the present packet time that were already sent.
    sent: usize,
}

impl Ready {
    fn packets_at(&self, slot: u64) -> &[ReadyPacket] {
        let (count, from) = (self.slots.len() as u64, self.repeat_from as u64);
        let at = self.first as u64 + slot;
        let at = match at.checked_sub(count) {
            None => at,
            Some(beyond) => from + beyond % (count - from),
        };
        self.slots.get(at as usize).map_or(&[], Vec::as_slice)
    }
}

/// Counters of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Packets.
    pub packets: u64,
    /// Payload bytes.
    pub octets: u64,
    /// Packets that were skipped because they were later than [`MAX_LATENESS`].
    pub skipped: u64,
}

/// An RTP sender. Packet `n` is due at `start + n * ptime`, regardless of earlier packets.
#[derive(Debug)]
pub struct RtpSource {
    law: Law,
    payload_type: u8,
    event_payload_type: Option<u8>,
    clock_rate: u32,
    ptime: Duration,
    step: u32,
    start: Time,
    /// Index of the present packet time.
    slot: u64,
    ssrc: u32,
    sequence: u16,
    first_timestamp: u32,
    marker: bool,
    stopped: bool,
    audio: Audio,
    events: EventSender,
    counts: SentCounts,
    packet: Vec<u8>,
    /// Payload of live audio, whose marker is known after it was encoded.
    payload: Vec<u8>,
    samples: Vec<i16>,
}

impl RtpSource {
    /// A source with random SSRC, sequence number and timestamp (RFC 3550 section 5.1).
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn new(config: SourceConfig, entropy: &mut Entropy) -> Result<RtpSource, SourceError> {
        if !(10..=60).contains(&config.ptime_ms) {
            return Err(SourceError::PacketTime(config.ptime_ms));
        }
        let is_frames = matches!(
            config.content,
            SourceContent::Frames(_) | SourceContent::Ready { .. } | SourceContent::Live { .. }
        );
        let rate = config.clock_rate;
        if rate == 0 || rate > 192_000 || !rate.is_multiple_of(1000) || (!is_frames && rate != 8000)
        {
            return Err(SourceError::ClockRate(rate));
        }
        let step = rate / 1000 * config.ptime_ms;
        Ok(RtpSource {
            law: config.law,
            payload_type: config.payload_type & 0x7f,
            event_payload_type: config.event_payload_type,
            clock_rate: rate,
            ptime: Duration::from_millis(config.ptime_ms.into()),
            step,
            start: config.start,
            slot: 0,
            ssrc: entropy.u32(),
            sequence: entropy.u32() as u16,
            first_timestamp: entropy.u32(),
            marker: true,
            stopped: false,
            audio: prepare(config.content, config.law, config.ptime_ms)?,
            events: EventSender::new(rate / 1000 * 50, 10),
            counts: SentCounts::default(),
            packet: Vec::with_capacity(RtpView::HEADER + 480),
            payload: Vec::new(),
            samples: Vec::new(),
        })
    }

    /// Changes the content, from the next packet on.
    ///
    /// # Errors
    /// [`SourceError::Content`]; the previous content continues.
    pub fn set_content(&mut self, content: SourceContent) -> Result<(), SourceError> {
        self.audio = prepare(content, self.law, self.ptime.as_millis() as u32)?;
        self.marker = true;
        Ok(())
    }

    /// Sends DTMF digits as telephone events of `duration` each, 50 ms apart. Returns false if no payload type was
    /// negotiated.
    ///
    /// # Errors
    /// [`DtmfError`]; nothing is sent then.
    pub fn send_digits(&mut self, digits: &str, duration: Duration) -> Result<bool, DtmfError> {
        if self.event_payload_type.is_none() {
            return Ok(false);
        }
        let units = duration.as_millis() * u128::from(self.clock_rate / 1000);
        let units = u32::try_from(units).map_err(|_| DtmfError::Duration)?;
        if units < self.step {
            return Err(DtmfError::Duration);
        }
        self.events.push(digits, units).map(|()| true)
    }

    /// Digits that were sent.
    pub fn digits_sent(&self) -> u64 {
        self.events.sent()
    }

    /// Whether digits are still being sent.
    pub fn is_sending_digits(&self) -> bool {
        !self.events.is_idle()
    }

    /// Sets the percentage of packets that are expected to be lost, for the redundancy of live audio. Other content is
    /// encoded beforehand.
    pub fn set_expected_loss(&mut self, percent: u8) {
        if let Audio::Live(live) = &mut self.audio {
            live.set_expected_loss(percent);
        }
    }

    /// Pauses sending (hold, end); the timeline continues.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Resumes sending at `now`.
    pub fn resume(&mut self, now: Time) {
        if self.stopped {
            self.stopped = false;
            self.marker = true;
            let slot = self.slot.max(self.slot_after(now));
            self.seek(slot);
        }
    }

    /// Continues with this packet time, from its beginning if it is another one.
    fn seek(&mut self, slot: u64) {
        if let Audio::Ready(ready) = &mut self.audio
            && slot != self.slot
        {
            ready.sent = 0;
        }
        self.slot = slot;
    }

    /// The synchronisation source.
    pub fn ssrc(&self) -> u32 {
        self.ssrc
    }

    /// Counters so far.
    pub fn counts(&self) -> SentCounts {
        self.counts
    }

    /// The RTP timestamp of the instant `now`, for sender reports.
    pub fn timestamp_at(&self, now: Time) -> u32 {
        let span = now.since(self.start).as_nanos() * u128::from(self.clock_rate) / 1_000_000_000;
        self.first_timestamp.wrapping_add(span as u32)
    }

    /// Due time of the next packet.
    pub fn next_deadline(&self) -> Option<Deadline> {
        (!self.stopped).then(|| Deadline::new(self.due(self.slot), "rtp packet"))
    }

    /// The next packet that is due at `now`, and its due time; `None` if there is none. To be called until then.
    pub fn next_packet(&mut self, now: Time) -> Option<(Time, &[u8])> {
        if self.stopped || self.due(self.slot) > now {
            return None;
        }
        let oldest = Time(now.0.saturating_sub(MAX_LATENESS.as_nanos() as u64));
        if self.due(self.slot) < oldest {
            let next = self.slot_after(oldest);
            self.counts.skipped += next - self.slot;
            self.seek(next);
            self.marker = true;
        }
        if self.is_silent() {
            self.skip_silence();
            if self.due(self.slot) > now {
                return None;
            }
        }
        let due = self.due(self.slot);
        if self.build() {
            self.slot += 1;
        }
        self.skip_silence();
        Some((due, &self.packet))
    }

    /// Whether the prepared content has no packet in this packet time.
    fn is_silent(&self) -> bool {
        match &self.audio {
            Audio::Ready(ready) if self.events.is_idle() => ready.packets_at(self.slot).is_empty(),
            _ => false,
        }
    }

    /// Advances to the next packet time with a packet, to save a wake-up.
    fn skip_silence(&mut self) {
        while self.is_silent() {
            self.slot += 1;
        }
    }

    fn due(&self, slot: u64) -> Time {
        Time(
            self.start
                .0
                .saturating_add(slot.saturating_mul(self.ptime.as_nanos() as u64)),
        )
    }

    /// The first packet time that is due at `at` or later.
    fn slot_after(&self, at: Time) -> u64 {
        (at.0.saturating_sub(self.start.0)).div_ceil(self.ptime.as_nanos() as u64)
    }

    /// Builds the next packet. Returns false if more packets of the same packet time follow.
    fn build(&mut self) -> bool {
        let timestamp = self
            .first_timestamp
            .wrapping_add((self.slot as u32).wrapping_mul(self.step));
        let mut header = RtpHeader {
            marker: self.marker,
            payload_type: self.payload_type,
            sequence: self.sequence,
            timestamp,
            ssrc: self.ssrc,
            ..RtpHeader::default()
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.packet.clear();
        let mut whole = true;
        let event = self.event_payload_type.and_then(|payload_type| {
            let event = self.events.next(timestamp, self.step)?;
            Some((payload_type, event))
        });
        if let Some((payload_type, event)) = event {
            header.payload_type = payload_type;
            header.timestamp = event.timestamp;
            header.marker = event.marker;
            header.write(&mut self.packet);
            self.packet.extend_from_slice(&event.event.to_bytes());
            self.skip_audio();
        } else if let Audio::Ready(ready) = &mut self.audio {
            let sent = ready.sent;
            let packets = ready.packets_at(self.slot);
            let last = sent + 1 >= packets.len();
            if let Some(packet) = packets.get(sent) {
                header.timestamp = timestamp.wrapping_add(packet.offset);
                header.marker |= packet.marker;
                header.write(&mut self.packet);
                self.packet.extend_from_slice(&packet.payload);
            }
            ready.sent = if last { 0 } else { sent + 1 };
            self.marker = false;
            whole = last;
        } else if let Audio::Live(live) = &mut self.audio {
            self.payload.clear();
            header.marker |= live.append(&mut self.payload);
            header.write(&mut self.packet);
            self.packet.extend_from_slice(&self.payload);
            self.marker = false;
        } else {
            header.write(&mut self.packet);
            self.append_audio();
            self.marker = false;
        }
        self.counts.packets += 1;
        self.counts.octets += (self.packet.len() - RtpView::HEADER) as u64;
        whole
    }

    /// Appends the audio of one packet time.
    fn append_audio(&mut self) {
        let step = self.step as usize;
        match &mut self.audio {
            Audio::Codes { codes, at } => {
                let mut left = step;
                while left > 0 {
                    let part = codes.get(*at..).unwrap_or_default();
                    let part = part.get(..left).unwrap_or(part);
                    self.packet.extend_from_slice(part);
                    left -= part.len();
                    *at = (*at + part.len()) % codes.len();
                }
            }
            Audio::Frames { frames, at } => {
                if let Some(frame) = frames.get(*at) {
                    self.packet.extend_from_slice(frame);
                }
                *at = (*at + 1) % frames.len();
            }
            // These were written with their header above.
            Audio::Ready(_) | Audio::Live(_) => {}
            Audio::Tone(generator) => {
                self.samples.resize(step, 0);
                generator.fill(&mut self.samples);
                let law = self.law;
                self.packet
                    .extend(self.samples.iter().map(|&sample| law.encode_sample(sample)));
            }
            Audio::SharedTone(reader) => reader.append(step, &mut self.packet),
            Audio::Silence => {
                let length = self.packet.len() + step;
                self.packet.resize(length, self.law.silence());
            }
        }
    }

    /// Advances the audio while an event is sent in its place.
    fn skip_audio(&mut self) {
        match &mut self.audio {
            Audio::Codes { codes, at } => *at = (*at + self.step as usize) % codes.len(),
            Audio::Frames { frames, at } => *at = (*at + 1) % frames.len(),
            Audio::Ready(ready) => ready.sent = 0,
            Audio::Live(live) => live.skip(),
            Audio::Tone(generator) => {
                self.samples.resize(self.step as usize, 0);
                generator.fill(&mut self.samples);
            }
            Audio::SharedTone(reader) => {
                self.payload.clear();
                reader.append(self.step as usize, &mut self.payload);
            }
            Audio::Silence => {}
        }
    }
}

/// Converts content to the form that is sent.
fn prepare(content: SourceContent, law: Law, ptime_ms: u32) -> Result<Audio, SourceError> {
    match content {
        SourceContent::Live { reader, format } => LiveEncoder::new(reader, format, ptime_ms)
            .map(|live| Audio::Live(Box::new(live)))
            .map_err(|_| SourceError::Content),
        SourceContent::Loop(samples) if !samples.is_empty() => Ok(Audio::Codes {
            codes: samples
                .iter()
                .map(|&sample| law.encode_sample(sample))
                .collect(),
            at: 0,
        }),
        SourceContent::Codes(codes) if !codes.is_empty() => Ok(Audio::Codes { codes, at: 0 }),
        SourceContent::Frames(frames)
            if !frames.is_empty() && frames.iter().all(|frame| frame.len() <= 1400) =>
        {
            Ok(Audio::Frames { frames, at: 0 })
        }
        SourceContent::Ready {
            slots,
            first,
            repeat_from,
        } if repeat_from < slots.len()
            && is_sendable(slots.get(repeat_from..).unwrap_or_default()) =>
        {
            Ok(Audio::Ready(Ready {
                first: first % slots.len(),
                repeat_from,
                slots,
                sent: 0,
            }))
        }
        SourceContent::Tone(generator) => Ok(Audio::Tone(generator)),
        SourceContent::SharedTone(tone) => Ok(Audio::SharedTone(ToneReader::new(tone))),
        SourceContent::Silence => Ok(Audio::Silence),
        SourceContent::Loop(_)
        | SourceContent::Codes(_)
        | SourceContent::Frames(_)
        | SourceContent::Ready { .. } => Err(SourceError::Content),
    }
}

/// Whether the repeated part has packets, and none is too long.
fn is_sendable(slots: &[Vec<ReadyPacket>]) -> bool {
    let mut packets = slots.iter().flatten().peekable();
    packets.peek().is_some() && packets.all(|packet| packet.payload.len() <= 1400)
}
