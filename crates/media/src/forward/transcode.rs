//! Transcoding at packet time: decodes the packets of one side and encodes them for the other.
//!
//! There is no jitter buffer: the receiver has one, and a second one would only add delay. A packet is decoded on
//! arrival. Lost packets are replaced by the codec's concealment. Late packets are dropped and counted, because
//! concealment has taken their place. The synchronisation source remains the sender's, so that RTCP refers to the same
//! source on both sides. Sequence numbers and timestamps are generated here, and RTCP is rewritten to match. The
//! sequence numbers continue those of packets that were relayed before.

use super::digits::{DigitEvents, SpeechSlot};
use super::generated::{PacketOutbox, rtp_header};
use super::numbering::{NumberedSource, Numbering, Timeline};
use super::statistics::{MAX_SOURCES, Sources};
use crate::expected_loss::ExpectedLoss;
use codec::dtmf::Inserter;
use codec::format::Format;
use codec::packet::{Content, PacketiserSettings};
use codec::transcode::Transcoder;
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Time};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;
use wire::rtcp::ReportBlock;
use wire::rtp::{RtpView, TelephoneEvent};

/// A payload type and its clock rate in Hz.
pub type PayloadClock = (u8, u32);

/// Handling of a side's telephone events (RFC 4733).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventMapping {
    /// Relayed as events, under this payload type and clock rate of the other side.
    Relayed(PayloadClock),
    /// Converted to tones in the audio.
    Tones,
}

/// How the audio of a side is transcoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscodePlan {
    /// Formats that the side may send, by payload type.
    pub from: SmallVec<[(u8, Format); 2]>,
    /// Payload type and format towards the other side.
    pub to: (u8, Format),
    /// Packet time towards the other side, in milliseconds.
    pub packet_ms: u32,
    /// Payload type and clock rate of the side's telephone events, and their handling.
    pub events: SmallVec<[(PayloadClock, EventMapping); 2]>,
    /// Payload type of the side's comfort noise (RFC 3389).
    pub noise: Option<u8>,
    /// Payload type and clock rate of the other side's telephone events, if digits in the audio are converted to
    /// events; `None` if they remain audio.
    pub digits: Option<PayloadClock>,
}

/// Larger differences of sequence numbers indicate a new stream (RFC 3550 appendix A.1, MAX_DROPOUT).
const MAX_DROPOUT: i16 = 3_000;
/// Packets that are later than this begin a new sequence if two follow each other (RFC 3550 appendix A.1,
/// MAX_MISORDER).
const MAX_MISORDER: i16 = 100;
/// Minimum time between two codec instances of a side: creating one costs as much as a hundred packets.
const MIN_RECREATE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest audio of one packet, in milliseconds. RFC 3551 section 4.2 asks receivers to accept 200. A longer packet
/// would cause a burst towards the other side: 1,275 octets of G.729 are 127 packets of 10 ms.
const MAX_PACKET_MS: u64 = 240;
/// Segments of an event that one packet ends at most. Durations become six times longer from 8 to 48 kHz.
const MAX_SEGMENTS: u64 = 8;
/// Audio of an event's time may arrive this long before the next report of its duration, in milliseconds: reports are
/// sent each 50 ms, or with each packet time (RFC 4733 section 2.5.1.2).
const REPORT_INTERVAL_MS: u32 = 100;
/// Samples of tone that are generated at a time: 10 ms at 48 kHz.
const TONE_CHUNK: usize = 480;

/// State of a stream that is being transcoded.
struct TranscodedStream {
    payload_type: u8,
    ssrc: u32,
    transcoder: Transcoder,
    inserter: Option<Inserter>,
    digits: Option<DigitEvents>,
    next_sequence: u16,
    next_timestamp: u32,
    timeline: Timeline,
}

/// The event that is being converted to a tone.
#[derive(Clone, Copy)]
struct EventProgress {
    timestamp: u32,
    /// In units of this clock rate.
    duration: u16,
    clock: u32,
    ended: bool,
}

impl EventProgress {
    /// Whether a packet of audio with this timestamp, in units of `clock`, belongs to the event's time.
    fn covers(&self, timestamp: u32, clock: u32) -> bool {
        let reported = u64::from(self.duration) * u64::from(clock) / u64::from(self.clock.max(1));
        let ahead = match self.ended {
            true => 0,
            false => u64::from(clock) * u64::from(REPORT_INTERVAL_MS) / 1_000,
        };
        u64::from(timestamp.wrapping_sub(self.timestamp)) < reported + ahead
    }
}

/// Transcodes one direction of a media line.
pub(crate) struct StreamTranscoder {
    plan: Arc<TranscodePlan>,
    stream: Option<TranscodedStream>,
    /// When a codec instance was created last.
    created_at: Option<Time>,
    /// Sequence numbers of the present source.
    numbers: NumberedSource,
    /// Those of the sources before, and of the present one before a change of the plan.
    others: Numbering,
    /// Packets of each source that were lost before transcoding began: receivers count them in their reports.
    lost_before: SmallVec<[(u32, i32); MAX_SOURCES]>,
    /// Counts of the present source.
    packets: u32,
    octets: u32,
    progress: Option<EventProgress>,
    /// Loss of our packets, as their receiver reports it.
    loss: ExpectedLoss,
    /// Timestamp of the event that was relayed last, and its segment.
    relayed_event: Option<(u32, u64)>,
    /// The number that would confirm a new sequence after a packet that was much too late.
    restart_candidate: Option<u16>,
}

impl fmt::Debug for StreamTranscoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTranscoder")
            .field("plan", &self.plan)
            .field("numbers", &self.numbers)
            .finish_non_exhaustive()
    }
}

/// Writes RTP packets and counts them.
struct RtpWriter<'s> {
    sequence: &'s mut u16,
    packets: &'s mut u32,
    octets: &'s mut u32,
    ssrc: u32,
}

impl RtpWriter<'_> {
    /// Passes a packet to `send` as header and payload.
    fn write(
        &mut self,
        number: u8,
        marker: bool,
        timestamp: u32,
        payload: &[u8],
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) {
        let header = rtp_header(number, marker, *self.sequence, timestamp, self.ssrc);
        *self.sequence = self.sequence.wrapping_add(1);
        *self.packets = self.packets.wrapping_add(1);
        *self.octets = self.octets.wrapping_add(payload.len() as u32);
        send(&header, payload);
    }
}

impl StreamTranscoder {
    /// A transcoder whose packets continue the numbers of `relayed`.
    pub(crate) fn new(plan: Arc<TranscodePlan>, relayed: Numbering) -> StreamTranscoder {
        StreamTranscoder {
            plan,
            stream: None,
            created_at: None,
            numbers: NumberedSource::new(0, 0),
            others: relayed,
            lost_before: SmallVec::new(),
            packets: 0,
            octets: 0,
            progress: None,
            loss: ExpectedLoss::default(),
            relayed_event: None,
            restart_candidate: None,
        }
    }

    /// Applies a new plan. Sequence numbers, timestamps and counters continue.
    pub(crate) fn apply(&mut self, plan: &Arc<TranscodePlan>) {
        if self.plan != *plan {
            self.plan = plan.clone();
            self.store_source();
            self.stream = None;
            self.created_at = None;
        }
    }

    /// Transcoding has ended: the numbers of all sources.
    pub(crate) fn into_numbering(mut self) -> Numbering {
        self.store_source();
        self.others
    }

    /// Stores numbers, timestamps and counts of the present source.
    fn store_source(&mut self) {
        if let Some(stream) = &self.stream {
            self.others.store(NumberedSource {
                timeline: stream.timeline,
                timestamp: stream.next_timestamp,
                sent: Some((self.packets, self.octets)),
                ..self.numbers
            });
        }
    }

    /// Transcodes a packet. `send` receives the resulting packets as header and payload, none or several.
    ///
    /// # Errors
    /// [`DropReason::MediaNotTranscoded`] if the payload type was not negotiated or the payload cannot be decoded,
    /// [`DropReason::MediaTooLate`], and [`DropReason::MediaMalformed`] for invalid padding.
    pub(crate) fn transcode(
        &mut self,
        view: &RtpView<'_>,
        arrived: Time,
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DropReason> {
        let number = view.payload_type();
        let payload = view.payload().ok_or(DropReason::MediaMalformed)?;
        let plan = self.plan.clone();
        let event = plan.events.iter().find(|(own, _)| own.0 == number);
        let format = plan.from.iter().find(|(own, _)| *own == number);
        let noise = plan.noise == Some(number);
        let first = plan.from.first().ok_or(DropReason::MediaNotTranscoded)?;
        // Events and comfort noise belong to the codec in use.
        let codec = match (event.is_some() || noise, format) {
            (true, _) => self
                .stream
                .as_ref()
                .filter(|stream| stream.ssrc == view.ssrc())
                .map_or(*first, |stream| {
                    let used = plan
                        .from
                        .iter()
                        .find(|(own, _)| *own == stream.payload_type);
                    *used.unwrap_or(first)
                }),
            (false, Some(format)) => *format,
            (false, None) => return Err(DropReason::MediaNotTranscoded),
        };
        let ahead = self.select_codec(view, codec, arrived)?;
        if ahead < 0 {
            return Err(DropReason::MediaTooLate);
        }
        let step = view.sequence().wrapping_sub(self.numbers.highest as u16);
        // The first packet may be late, behind one that was relayed.
        if !(-MAX_DROPOUT..=0).contains(&(step as i16)) {
            self.numbers.highest = self.numbers.highest.wrapping_add(u32::from(step));
        }
        match event {
            Some(((_, clock), EventMapping::Relayed(to))) => {
                self.relay_event(view, payload, (*clock, *to), send)
            }
            Some(((_, clock), EventMapping::Tones)) => {
                self.event_to_tone(view, payload, (*clock, ahead), send)
            }
            None if self.is_replaced_by_tone(view.timestamp()) => {
                if let Some(stream) = &mut self.stream {
                    stream.next_sequence = view.sequence().wrapping_add(1);
                }
                Ok(())
            }
            None => self.transcode_audio(view, payload, noise, ahead, send),
        }
    }

    /// Whether audio with this timestamp is replaced by the tone of an event: a sender may send both for the same time
    /// (RFC 4733).
    fn is_replaced_by_tone(&self, timestamp: u32) -> bool {
        let (Some(progress), Some(stream)) = (&self.progress, &self.stream) else {
            return false;
        };
        stream.inserter.is_some() && progress.covers(timestamp, stream.timeline.clocks.0)
    }

    /// Selects the codec for a packet. Returns the number of packets missing before it, which is negative for a late
    /// packet.
    fn select_codec(
        &mut self,
        view: &RtpView<'_>,
        (number, format): (u8, Format),
        arrived: Time,
    ) -> Result<i16, DropReason> {
        let same = self
            .stream
            .as_ref()
            .filter(|stream| stream.ssrc == view.ssrc() && stream.payload_type == number);
        let ahead = same.map(|stream| view.sequence().wrapping_sub(stream.next_sequence) as i16);
        let mut restarts = false;
        if let Some(ahead) = ahead.filter(|ahead| (-MAX_DROPOUT..MAX_DROPOUT).contains(ahead)) {
            if ahead >= -MAX_MISORDER {
                self.restart_candidate = None;
                return Ok(ahead);
            }
            let following = view.sequence().wrapping_add(1);
            restarts = self.restart_candidate.replace(following) == Some(view.sequence());
            if !restarts {
                return Ok(ahead);
            }
        }
        if self
            .created_at
            .is_some_and(|created_at| arrived.since(created_at) < MIN_RECREATE_INTERVAL)
        {
            return Err(DropReason::MediaNotTranscoded);
        }
        self.created_at = Some(arrived);
        let (_, to) = self.plan.to;
        let packing = PacketiserSettings {
            packet_ms: self.plan.packet_ms,
            suppress_silence: false,
        };
        let mut transcoder = Transcoder::new(&format, &to, packing, u64::from(view.ssrc()))
            .map_err(|_| DropReason::MediaNotTranscoded)?;
        let loss = self.loss.percent();
        if loss > 0 {
            let set = transcoder.packetiser().encoder().set_expected_loss(loss);
            set.map_err(|_| DropReason::MediaNotTranscoded)?;
        }
        let tones = self
            .plan
            .events
            .iter()
            .any(|(_, mapping)| *mapping == EventMapping::Tones);
        let decoded_rate = transcoder.unpacker().sample_rate();
        let mut digits = self
            .plan
            .digits
            .map(|to| DigitEvents::new(decoded_rate, to));
        let begin = view.timestamp();
        // Another codec or plan of the same source continues its timeline; a new sequence has a new timeline, which
        // continues ours.
        let present = self.stream.as_ref();
        let local = match present.filter(|stream| stream.ssrc == view.ssrc()) {
            Some(stream) if restarts => stream.timeline.mapped(stream.next_timestamp),
            Some(stream) => stream.timeline.mapped(begin),
            None => self
                .others
                .get(view.ssrc())
                .map_or(begin, |known| known.timeline.mapped(begin)),
        };
        self.restart_candidate = None;
        if present.is_some_and(|stream| stream.ssrc != view.ssrc()) {
            self.store_source();
        }
        match self.stream.take() {
            Some(stream) if stream.ssrc == view.ssrc() => {
                if restarts {
                    self.numbers.highest = u32::from(view.sequence());
                    self.progress = None;
                }
                if let (Some(digits), Some(before)) = (&mut digits, stream.digits) {
                    digits.resume(before);
                }
            }
            _ => {
                self.progress = None;
                let known = self.others.get(view.ssrc());
                let new = || NumberedSource::new(view.ssrc(), view.sequence());
                self.numbers = known.unwrap_or_else(new);
                // The counts are those of a source (RFC 3550 section 6.4.1).
                (self.packets, self.octets) = self.numbers.sent.unwrap_or_default();
            }
        }
        self.stream = Some(TranscodedStream {
            payload_type: number,
            ssrc: view.ssrc(),
            transcoder,
            inserter: tones.then(|| Inserter::new(decoded_rate)),
            digits,
            next_sequence: view.sequence(),
            next_timestamp: begin,
            timeline: Timeline {
                origin: (begin, local),
                clocks: (format.kind().rtp_clock(), to.kind().rtp_clock()),
            },
        });
        Ok(0)
    }

    /// Takes a report of the receiver about our packets: the encoder adds redundancy for losses (RFC 7587 section 3.3).
    pub(crate) fn receive_report(&mut self, block: &ReportBlock) {
        if let Some(stream) = &mut self.stream
            && stream.ssrc == block.ssrc
            && let Some(percent) = self.loss.receive(block)
        {
            // A codec without redundancy has no use for it.
            let _ = stream
                .transcoder
                .packetiser()
                .encoder()
                .set_expected_loss(percent);
        }
    }

    /// Transcodes audio or comfort noise. `missing` is the number of packets lost before it, which are concealed.
    fn transcode_audio(
        &mut self,
        view: &RtpView<'_>,
        payload: &[u8],
        noise: bool,
        missing: i16,
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DropReason> {
        let to = self.plan.to.0;
        let Some(stream) = &mut self.stream else {
            return Err(DropReason::MediaNotTranscoded);
        };
        let mut writer = RtpWriter {
            sequence: &mut self.numbers.next,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let origin = stream.timeline.origin.1;
        let clock = stream.timeline.clocks.1;
        let units = (u64::from(clock) * u64::from(self.plan.packet_ms) / 1_000) as u32;
        let mut emit = |packet: codec::packet::Packet<'_>, digits: &mut Option<DigitEvents>| {
            // Comfort noise is not encoded: silence is sent as quiet audio.
            if packet.content != Content::Audio {
                return;
            }
            let timestamp = origin.wrapping_add(packet.timestamp);
            let relay_audio = digits.as_mut().is_none_or(|digits| {
                let slot = SpeechSlot {
                    timestamp,
                    units,
                    clock,
                };
                digits.emit(slot, &mut |number, marker, timestamp, payload| {
                    writer.write(number, marker, timestamp, payload, send);
                })
            });
            if relay_audio {
                writer.write(to, packet.marker, timestamp, packet.payload, send);
            }
        };
        let gap = view.timestamp().wrapping_sub(stream.next_timestamp);
        let failed = |_| DropReason::MediaNotTranscoded;
        if gap as i32 > 0 {
            match missing {
                // The sender paused (silence suppression), although that was not agreed. The receiver sees the gap in
                // the timestamps and fills it; it gets the begin of the silence, which a descriptor may have announced.
                0 => {
                    let digits = &mut stream.digits;
                    let transcoder = &mut stream.transcoder;
                    let paused = transcoder.pause(gap, &mut |packet| emit(packet, digits));
                    paused.map_err(failed)?;
                }
                // The next packet may have a copy of the lost one (Opus).
                1 if !noise => {
                    let digits = &mut stream.digits;
                    let transcoder = &mut stream.transcoder;
                    let emit = &mut |packet: codec::packet::Packet<'_>| emit(packet, digits);
                    transcoder.recover(gap, payload, emit).map_err(failed)?;
                }
                _ => {
                    let digits = &mut stream.digits;
                    let transcoder = &mut stream.transcoder;
                    let filled = transcoder.gap(gap, &mut |packet| emit(packet, digits));
                    filled.map_err(failed)?;
                }
            }
        }
        stream.next_sequence = view.sequence().wrapping_add(1);
        stream.next_timestamp = view.timestamp();
        if noise {
            let digits = &mut stream.digits;
            let transcoder = &mut stream.transcoder;
            return transcoder
                .noise(payload, 0, &mut |packet| emit(packet, digits))
                .map_err(failed);
        }
        let unpacker = stream.transcoder.unpacker();
        let samples = unpacker.samples_of(payload).map_err(failed)?;
        let rate = u64::from(unpacker.sample_rate().max(1));
        if samples as u64 * 1_000 > rate * MAX_PACKET_MS {
            return Err(DropReason::MediaNotTranscoded);
        }
        let units = (samples as u64 * u64::from(stream.timeline.clocks.0) / rate) as u32;
        let samples = stream.transcoder.decode(payload).map_err(failed)?;
        let count = samples.len();
        if let Some(digits) = &mut stream.digits {
            digits.detect(samples);
        }
        // The rest of a short digit, and the pause after it.
        if let Some(inserter) = &mut stream.inserter
            && inserter.is_ending()
        {
            inserter.apply(samples);
        }
        let digits = &mut stream.digits;
        let transcoder = &mut stream.transcoder;
        let encoded = transcoder.encode(count, &mut |packet| emit(packet, digits));
        encoded.map_err(failed)?;
        stream.next_timestamp = view.timestamp().wrapping_add(units);
        Ok(())
    }

    /// Relays an event with its duration in the other side's clock.
    fn relay_event(
        &mut self,
        view: &RtpView<'_>,
        payload: &[u8],
        (clock, to): (u32, PayloadClock),
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DropReason> {
        let mut event = TelephoneEvent::parse(payload).ok_or(DropReason::MediaNotTranscoded)?;
        let Some(stream) = &mut self.stream else {
            return Err(DropReason::MediaNotTranscoded);
        };
        stream.next_sequence = view.sequence().wrapping_add(1);
        let scaled = u64::from(event.duration) * u64::from(to.1) / u64::from(clock.max(1));
        // A duration beyond the field continues in another segment (RFC 4733 section 2.5.1.3).
        let full = u64::from(u16::MAX);
        let segment = scaled.saturating_sub(1) / full;
        let known = self
            .relayed_event
            .filter(|known| known.0 == view.timestamp());
        let first = known.map_or(0, |known| known.1).min(segment);
        self.relayed_event = Some((view.timestamp(), segment.max(first)));
        let mut writer = RtpWriter {
            sequence: &mut self.numbers.next,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let begin = stream.timeline.mapped(view.timestamp());
        let (_, audio_clock) = stream.timeline.clocks;
        let begin_of = |segment: u64| {
            let units = segment * full * u64::from(audio_clock) / u64::from(to.1.max(1));
            begin.wrapping_add(units as u32)
        };
        let last = TelephoneEvent {
            end: false,
            duration: u16::MAX,
            ..event
        };
        for ended in first.max(segment.saturating_sub(MAX_SEGMENTS))..segment {
            writer.write(to.0, false, begin_of(ended), &last.to_bytes(), send);
        }
        event.duration = (scaled - segment * full) as u16;
        let marker = view.marker() && segment == 0;
        writer.write(to.0, marker, begin_of(segment), &event.to_bytes(), send);
        Ok(())
    }

    /// Converts the new part of an event to a tone in the audio. `missing` packets were lost before it.
    fn event_to_tone(
        &mut self,
        view: &RtpView<'_>,
        payload: &[u8],
        (clock, missing): (u32, i16),
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DropReason> {
        let event = TelephoneEvent::parse(payload).ok_or(DropReason::MediaNotTranscoded)?;
        let to = self.plan.to.0;
        let Some(stream) = &mut self.stream else {
            return Err(DropReason::MediaNotTranscoded);
        };
        stream.next_sequence = view.sequence().wrapping_add(1);
        let Some(inserter) = &mut stream.inserter else {
            return Err(DropReason::MediaNotTranscoded);
        };
        let known = self
            .progress
            .filter(|progress| progress.timestamp == view.timestamp());
        if known.is_some_and(|known| known.ended) {
            // The end of an event is sent three times (RFC 4733 section 2.5.1.4).
            return Ok(());
        }
        if known.is_none() && !inserter.begin(event.event, event.volume) {
            return Err(DropReason::MediaNotTranscoded);
        }
        let failed = |_| DropReason::MediaNotTranscoded;
        let audio_clock = stream.timeline.clocks.0;
        let mut writer = RtpWriter {
            sequence: &mut self.numbers.next,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let origin = stream.timeline.origin.1;
        let mut emit = |packet: codec::packet::Packet<'_>| {
            let timestamp = origin.wrapping_add(packet.timestamp);
            writer.write(to, packet.marker, timestamp, packet.payload, send);
        };
        let before = match known {
            Some(known) => known.duration,
            None => {
                // Audio of the event's first part, which was sent already, or the time between audio and event.
                let sent = stream.next_timestamp.wrapping_sub(view.timestamp()) as i32;
                let gap = sent.min(0).unsigned_abs();
                match missing {
                    _ if gap == 0 => {}
                    0 => stream.transcoder.pause(gap, &mut emit).map_err(failed)?,
                    _ => stream.transcoder.gap(gap, &mut emit).map_err(failed)?,
                }
                let most = audio_clock / 1_000 * REPORT_INTERVAL_MS;
                let sent = sent.max(0).unsigned_abs();
                let sent = if sent <= most { sent } else { 0 };
                stream.next_timestamp = view.timestamp().wrapping_add(sent);
                (u64::from(sent) * u64::from(clock) / u64::from(audio_clock.max(1))) as u16
            }
        };
        self.progress = Some(EventProgress {
            timestamp: view.timestamp(),
            duration: event.duration.max(before),
            clock,
            ended: event.end,
        });
        // One packet adds one second of tone at most, as concealment does: the 16-bit duration is controlled by the
        // sender.
        let units = u32::from(event.duration.saturating_sub(before)).min(clock);
        let rate = stream.transcoder.unpacker().sample_rate();
        let mut left = (u64::from(units) * u64::from(rate) / u64::from(clock.max(1))) as usize;
        while left > 0 {
            let count = left.min(TONE_CHUNK);
            left -= count;
            let mut fill = |samples: &mut [i16]| inserter.apply(samples);
            let inserted = stream.transcoder.insert(count, &mut fill, &mut emit);
            inserted.map_err(failed)?;
        }
        if event.end {
            // The rest of the shortest tone, and the pause after it, replace the audio that follows.
            inserter.end();
        }
        // The tone covers the event's part of the sender's timeline.
        let passed = u64::from(units) * u64::from(audio_clock) / u64::from(clock.max(1));
        stream.next_timestamp = stream.next_timestamp.wrapping_add(passed as u32);
        Ok(())
    }
}

/// Rewrites relayed RTCP in place, if one or both sides are transcoded or renumbered. Sender reports get our timestamps
/// and counts. Reception reports get the sequence numbers of the stream that their receiver sent, and its losses before
/// us. `from` changes the stream of the RTCP's sender, `to` the stream that it reports on, which was `received` here.
pub(crate) fn rewrite_rtcp(
    from: Option<&StreamRewriter>,
    (to, received): (Option<&StreamRewriter>, &mut Sources),
    compound: &mut [u8],
) {
    let mut at = 0;
    while let Some(&[head, kind, high, low]) = compound.get(at..at + 4) {
        let length = 4 * (usize::from(u16::from_be_bytes([high, low])) + 1);
        let Some(packet) = compound.get_mut(at..at + length) else {
            return;
        };
        at += length;
        let blocks = match kind {
            wire::rtcp::packet_type::SR => {
                let sender = packet.get(4..8).and_then(<[u8]>::first_chunk);
                let sender = sender.map(|bytes| u32::from_be_bytes(*bytes));
                match (from, sender, packet.get_mut(16..28)) {
                    (Some(StreamRewriter::Transcode(transcoder)), Some(ssrc), Some(info)) => {
                        transcoder.sender_info(ssrc, info);
                    }
                    (Some(StreamRewriter::Renumber(numbers)), Some(ssrc), Some(info)) => {
                        if let Some(known) = numbers.get(ssrc) {
                            move_timestamp(&known.timeline, info);
                        }
                    }
                    _ => {}
                }
                28
            }
            wire::rtcp::packet_type::RR => 8,
            _ => continue,
        };
        let Some(rewriter) = to else { continue };
        let blocks = packet.get_mut(blocks..).unwrap_or_default();
        for block in blocks.chunks_exact_mut(24).take(usize::from(head & 31)) {
            match rewriter {
                StreamRewriter::Transcode(transcoder) => transcoder.report_block(block, received),
                StreamRewriter::Renumber(numbers) => renumber_report_block(numbers, block),
            }
        }
    }
}

impl StreamTranscoder {
    /// Rewrites timestamp, packet count and octet count of a report of this source (RFC 3550 section 6.4.1).
    fn sender_info(&self, ssrc: u32, info: &mut [u8]) {
        let present = self.stream.as_ref().filter(|stream| stream.ssrc == ssrc);
        let known = match present {
            Some(stream) => Some((stream.timeline, Some((self.packets, self.octets)))),
            None => self
                .others
                .get(ssrc)
                .map(|known| (known.timeline, known.sent)),
        };
        let Some((timeline, sent)) = known else {
            return;
        };
        move_timestamp(&timeline, info);
        let Some((packets, octets)) = sent else {
            return;
        };
        let counts = [packets, octets];
        let counts = counts.into_iter().flat_map(u32::to_be_bytes);
        for (byte, new) in info.iter_mut().skip(4).zip(counts) {
            *byte = new;
        }
    }

    /// Rewrites losses, highest sequence number and jitter of a block about a stream that we sent. The losses are those
    /// on both ways: the ones before us were concealed here, and the sender would not learn of them.
    fn report_block(&self, block: &mut [u8], received: &mut Sources) {
        let Some(stream) = &self.stream else { return };
        let Some(mut report) = ReportBlock::parse(block) else {
            return;
        };
        if report.ssrc != stream.ssrc || report.highest_sequence == 0 {
            return;
        }
        if let Some(before) = received.report_block_of(stream.ssrc) {
            let arriving = |block: &ReportBlock| 256 - u32::from(block.fraction_lost);
            let arrived = arriving(&before) * arriving(&report) / 256;
            report.fraction_lost = (256 - arrived).min(255) as u8;
            let mut relayed = self.lost_before.iter();
            let relayed = relayed.find(|(ssrc, _)| *ssrc == stream.ssrc);
            let relayed = relayed.map_or(0, |(_, lost)| *lost);
            let lost = before.cumulative_lost.saturating_sub(relayed);
            report.cumulative_lost = report.cumulative_lost.saturating_add(lost);
        }
        report.highest_sequence = self.numbers.highest;
        let (remote, local) = stream.timeline.clocks;
        let jitter = u64::from(report.jitter) * u64::from(remote) / u64::from(local.max(1));
        report.jitter = jitter as u32;
        let bytes = report.to_bytes();
        block
            .iter_mut()
            .zip(bytes)
            .for_each(|(byte, new)| *byte = new);
    }
}

/// Changes the timestamp at the begin of sender information to ours.
fn move_timestamp(timeline: &Timeline, info: &mut [u8]) {
    if let Some(place) = info.first_chunk_mut::<4>() {
        *place = timeline.mapped(u32::from_be_bytes(*place)).to_be_bytes();
    }
}

/// Changes the highest sequence number of a block about a renumbered stream to the sender's number.
fn renumber_report_block(numbers: &Numbering, block: &mut [u8]) {
    let (Some(source), Some(highest)) = (block.first_chunk::<4>(), block.get(8..12)) else {
        return;
    };
    let (source, highest) = (u32::from_be_bytes(*source), highest.first_chunk::<4>());
    let highest = highest.map_or(0, |bytes| u32::from_be_bytes(*bytes));
    if highest != 0
        && let Some(new) = numbers.reported(source, highest)
        && let Some(bytes) = block.get_mut(8..12)
    {
        bytes.copy_from_slice(&new.to_be_bytes());
    }
}

/// Changes to the packets of one side for the other.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is boxed as a whole")]
pub(crate) enum StreamRewriter {
    /// Audio is transcoded.
    Transcode(StreamTranscoder),
    /// Packets are relayed, after transcoding or a restart, with other sequence numbers than those of their sender.
    Renumber(Numbering),
}

impl StreamRewriter {
    /// Applies a plan to the rewriter of a side that has received these sources. `renumbers`: packets are readable
    /// here, so that their numbers may be changed.
    pub(crate) fn apply(
        this: &mut Option<Box<StreamRewriter>>,
        plan: Option<&Arc<TranscodePlan>>,
        received: &Sources,
        renumbers: bool,
    ) {
        let before = this.take();
        *this = match (plan, before) {
            (Some(plan), Some(mut before)) if before.is_transcoding() => {
                if let StreamRewriter::Transcode(transcoder) = &mut *before {
                    transcoder.apply(plan);
                }
                Some(before)
            }
            (Some(plan), before) => {
                let mut numbers = match before.map(|before| *before) {
                    Some(StreamRewriter::Renumber(numbers)) => numbers,
                    _ => Numbering::default(),
                };
                numbers.begin_transcoding(received);
                let mut transcoder = StreamTranscoder::new(plan.clone(), numbers);
                transcoder.lost_before = received.losses().collect();
                Some(Box::new(StreamRewriter::Transcode(transcoder)))
            }
            (None, Some(before)) if renumbers => match *before {
                StreamRewriter::Transcode(transcoder) => {
                    let mut numbers = transcoder.into_numbering();
                    let changed = numbers.end_transcoding(received);
                    changed.then(|| Box::new(StreamRewriter::Renumber(numbers)))
                }
                StreamRewriter::Renumber(_) => Some(before),
            },
            (None, _) => None,
        };
    }

    /// A source whose packets are relayed to a side with SRTP has begun a new sequence, or its numbers went on while
    /// nothing was relayed: no keystream may be used again (RFC 3711 section 3.3.1). `sent` is the last number that was
    /// sent.
    pub(crate) fn restart(
        this: &mut Option<Box<StreamRewriter>>,
        ssrc: u32,
        sequence: u16,
        sent: u16,
    ) {
        match this.as_deref_mut() {
            Some(StreamRewriter::Renumber(numbers)) => numbers.restart(ssrc, sequence, sent),
            // Transcoded packets have numbers of their own.
            Some(StreamRewriter::Transcode(_)) => {}
            None => {
                let mut numbers = Numbering::default();
                numbers.restart(ssrc, sequence, sent);
                if !numbers.is_empty() {
                    *this = Some(Box::new(StreamRewriter::Renumber(numbers)));
                }
            }
        }
    }

    fn is_transcoding(&self) -> bool {
        matches!(self, StreamRewriter::Transcode(_))
    }
}

/// Transcodes a packet into the outbox. `finish` applies SRTP to each resulting packet and counts it.
pub(crate) fn transcode(
    transcoder: &mut StreamTranscoder,
    view: &RtpView<'_>,
    arrived: Time,
    outbox: &mut PacketOutbox,
    finish: &mut dyn FnMut(&mut PacketOutbox),
) -> Result<(), DropReason> {
    transcoder.transcode(view, arrived, &mut |head, payload| {
        outbox.begin(head, payload);
        finish(outbox);
    })
}
