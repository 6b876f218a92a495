//! Transcoding at packet time: what a side sends becomes what the other side understands.
//!
//! There is no jitter buffer here: the receiver has one, and a second one would only add delay. A packet is decoded when it comes; for
//! what was lost before it the codec's concealment is encoded; what comes late is dropped and counted, because its place was filled.
//! Source and sequence of its making: the synchronisation source stays the sender's, so that RTCP means the same to both; numbers and
//! timestamps are ours, and RTCP is rewritten to them.

use super::digits::{Digits, Place};
use super::made::{Outbox, head};
use codec::dtmf::Inserter;
use codec::format::Format;
use codec::packet::{Content, Packing};
use codec::transcode::Transcoder;
use core::fmt;
use core::time::Duration;
use engine::{DropReason, Time};
use smallvec::SmallVec;
use std::sync::Arc;
use wire::rtp::{RtpView, TelephoneEvent};

/// A payload type and the clock of its timestamps in Hz.
pub type Clocked = (u8, u32);

/// How telephone events (RFC 4733) of a side go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// The other side has them too: under which payload type and clock.
    Passed(Clocked),
    /// As tones in its speech.
    Tones,
}

/// What becomes of the speech of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecodePlan {
    /// What it may send, by payload type.
    pub from: SmallVec<[(u8, Format); 2]>,
    /// What the other side gets.
    pub to: (u8, Format),
    /// Milliseconds of a packet towards the other side.
    pub packet_ms: u32,
    /// Payload type and clock of its telephone events, and what becomes of them.
    pub events: SmallVec<[(Clocked, Events); 2]>,
    /// Payload type of its comfort noise (RFC 3389).
    pub noise: Option<u8>,
    /// Digits in its sound become telephone events of the other side, under this payload type and clock; `None`: they stay sound.
    pub digits: Option<Clocked>,
}

/// Sequence numbers further apart than this are another stream's (RFC 3550 appendix A.1, MAX_DROPOUT).
const FAR: i16 = 3_000;
/// A side may have its codec made anew this often; each costs what a hundred packets cost.
const ANEW: Duration = Duration::from_millis(100);
/// Longest sound of one packet, milliseconds: RFC 3551 section 4.2 asks receivers to accept 200. A longer one is a burst towards the other
/// side: 1,275 octets of G.729 are 127 packets of 10 ms.
const LONGEST_MS: u64 = 240;
/// Samples of a stretch of tone that is made at once: 10 ms at 48 kHz.
const STRETCH: usize = 480;

/// A stream that is being transcoded.
struct Stream {
    payload_type: u8,
    ssrc: u32,
    transcoder: Transcoder,
    inserter: Option<Inserter>,
    digits: Option<Digits>,
    next_sequence: u16,
    next_timestamp: u32,
    /// A moment in the sender's timestamps and in ours.
    origin: (u32, u32),
    clocks: (u32, u32),
}

impl Stream {
    /// Units of our clock in as many of the sender's.
    fn scaled(&self, units: u32) -> u32 {
        let (from, to) = self.clocks;
        (u64::from(units) * u64::from(to) / u64::from(from.max(1))) as u32
    }

    /// Our timestamp for one of the sender's.
    fn mapped(&self, timestamp: u32) -> u32 {
        let since = timestamp.wrapping_sub(self.origin.0);
        // Before the origin the difference counts backwards.
        let ours = match since as i32 >= 0 {
            true => self.scaled(since),
            false => self.scaled(since.wrapping_neg()).wrapping_neg(),
        };
        self.origin.1.wrapping_add(ours)
    }
}

/// An event that is being passed on or heard as a tone.
#[derive(Clone, Copy, Default)]
struct Pressed {
    timestamp: u32,
    duration: u16,
    ended: bool,
}

/// Transcodes one direction of a line.
pub(crate) struct Recoder {
    plan: Arc<RecodePlan>,
    stream: Option<Stream>,
    /// When a codec was made last.
    made: Option<Time>,
    sequence: u16,
    /// Highest sequence number that came, extended by the number of its cycles (RFC 3550 section 6.4.1).
    highest: u32,
    packets: u32,
    octets: u32,
    pressed: Option<Pressed>,
}

impl fmt::Debug for Recoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recoder")
            .field("plan", &self.plan)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// What leaves, with the header that it gets.
struct Sending<'s> {
    sequence: &'s mut u16,
    packets: &'s mut u32,
    octets: &'s mut u32,
    ssrc: u32,
}

impl Sending<'_> {
    /// Makes a packet and gives it to `send` as header and payload.
    fn put(
        &mut self,
        number: u8,
        marker: bool,
        timestamp: u32,
        payload: &[u8],
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) {
        let head = head(number, marker, *self.sequence, timestamp, self.ssrc);
        *self.sequence = self.sequence.wrapping_add(1);
        *self.packets = self.packets.wrapping_add(1);
        *self.octets = self.octets.wrapping_add(payload.len() as u32);
        send(&head, payload);
    }
}

impl Recoder {
    pub(crate) fn new(plan: Arc<RecodePlan>) -> Recoder {
        Recoder {
            plan,
            stream: None,
            made: None,
            sequence: 0,
            highest: 0,
            packets: 0,
            octets: 0,
            pressed: None,
        }
    }

    /// Takes a new plan; what has been sent so far is continued.
    pub(crate) fn apply(&mut self, plan: &Arc<RecodePlan>) {
        if self.plan != *plan {
            self.plan = plan.clone();
            self.stream = None;
            self.made = None;
        }
    }

    /// Takes a packet; what becomes of it goes to `send`, as header and payload, none or several.
    ///
    /// # Errors
    /// [`DropReason::MediaNotTranscoded`] where its payload is none that was agreed on or cannot be decoded,
    /// [`DropReason::MediaTooLate`], [`DropReason::MediaMalformed`] for padding that does not fit.
    pub(crate) fn take(
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
        // Events and noise belong to whatever codec is in use.
        let wanted = match (event.is_some() || noise, format) {
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
        let ahead = self.follow(view, wanted, arrived)?;
        if ahead < 0 {
            return Err(DropReason::MediaTooLate);
        }
        let step = view.sequence().wrapping_sub(self.highest as u16);
        self.highest = self.highest.wrapping_add(u32::from(step));
        match event {
            Some(((_, clock), Events::Passed(to))) => {
                self.pass_event(view, payload, (*clock, *to), send)
            }
            Some(((_, clock), Events::Tones)) => self.sound_event(view, payload, *clock, send),
            None => self.speech(view, payload, noise, ahead, send),
        }
    }

    /// Has the right codec for a packet; gives how many packets are missing before it, below 0 where it comes late.
    fn follow(
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
        if let Some(ahead) = ahead.filter(|ahead| (-FAR..FAR).contains(ahead)) {
            return Ok(ahead);
        }
        if self.made.is_some_and(|made| arrived.since(made) < ANEW) {
            return Err(DropReason::MediaNotTranscoded);
        }
        self.made = Some(arrived);
        let (_, to) = self.plan.to;
        let packing = Packing {
            packet_ms: self.plan.packet_ms,
            suppress_silence: false,
        };
        let mut transcoder = Transcoder::new(&format, &to, packing, u64::from(view.ssrc()))
            .map_err(|_| DropReason::MediaNotTranscoded)?;
        let tones = self
            .plan
            .events
            .iter()
            .any(|(_, what)| *what == Events::Tones);
        let rate = transcoder.packetiser().encoder().sample_rate();
        let hears = transcoder.unpacker().sample_rate();
        let mut digits = self.plan.digits.map(|to| Digits::new(hears, to));
        let begin = view.timestamp();
        // Another codec of the same source goes on where the last one was.
        let ours = match &self.stream {
            Some(stream) if stream.ssrc == view.ssrc() => stream.mapped(begin),
            _ => begin,
        };
        match self.stream.take() {
            Some(stream) if stream.ssrc == view.ssrc() => {
                if let (Some(digits), Some(before)) = (&mut digits, stream.digits) {
                    digits.follow(before);
                }
            }
            _ => self.highest = u32::from(view.sequence()),
        }
        self.stream = Some(Stream {
            payload_type: number,
            ssrc: view.ssrc(),
            transcoder,
            inserter: tones.then(|| Inserter::new(rate)),
            digits,
            next_sequence: view.sequence(),
            next_timestamp: begin,
            origin: (begin, ours),
            clocks: (format.kind().rtp_clock(), to.kind().rtp_clock()),
        });
        Ok(0)
    }

    fn speech(
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
        let mut sending = Sending {
            sequence: &mut self.sequence,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let origin = stream.origin.1;
        let clock = stream.clocks.1;
        let units = (u64::from(clock) * u64::from(self.plan.packet_ms) / 1_000) as u32;
        let mut put = |packet: codec::packet::Packet<'_>, digits: &mut Option<Digits>| {
            // Comfort noise is not asked for: silence towards the other side is speech that is quiet.
            if packet.content != Content::Audio {
                return;
            }
            let timestamp = origin.wrapping_add(packet.timestamp);
            let spoken = digits.as_mut().is_none_or(|digits| {
                let place = Place {
                    timestamp,
                    units,
                    clock,
                };
                digits.tell(place, &mut |number, marker, timestamp, payload| {
                    sending.put(number, marker, timestamp, payload, send);
                })
            });
            if spoken {
                sending.put(to, packet.marker, timestamp, packet.payload, send);
            }
        };
        let gap = view.timestamp().wrapping_sub(stream.next_timestamp);
        let failed = |_| DropReason::MediaNotTranscoded;
        if gap as i32 > 0 {
            match missing {
                // The sender said nothing: the receiver knows by the timestamp, and makes its own silence.
                0 => {
                    let units = stream.scaled(gap);
                    stream.transcoder.packetiser().skip(units);
                }
                _ => {
                    let digits = &mut stream.digits;
                    let transcoder = &mut stream.transcoder;
                    let filled = transcoder.gap(gap, &mut |packet| put(packet, digits));
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
                .noise(payload, 0, &mut |packet| put(packet, digits))
                .map_err(failed);
        }
        let unpacker = stream.transcoder.unpacker();
        let samples = unpacker.samples_of(payload).map_err(failed)?;
        let rate = u64::from(unpacker.sample_rate().max(1));
        if samples as u64 * 1_000 > rate * LONGEST_MS {
            return Err(DropReason::MediaNotTranscoded);
        }
        let units = (samples as u64 * u64::from(stream.clocks.0) / rate) as u32;
        let samples = stream.transcoder.decode(payload).map_err(failed)?;
        let count = samples.len();
        if let Some(digits) = &mut stream.digits {
            digits.listen(samples);
        }
        let digits = &mut stream.digits;
        let transcoder = &mut stream.transcoder;
        let spoken = transcoder.encode(count, &mut |packet| put(packet, digits));
        spoken.map_err(failed)?;
        stream.next_timestamp = view.timestamp().wrapping_add(units);
        Ok(())
    }

    /// An event for an event; the duration in the other side's clock.
    fn pass_event(
        &mut self,
        view: &RtpView<'_>,
        payload: &[u8],
        (clock, to): (u32, Clocked),
        send: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DropReason> {
        let mut event = TelephoneEvent::parse(payload).ok_or(DropReason::MediaNotTranscoded)?;
        let Some(stream) = &mut self.stream else {
            return Err(DropReason::MediaNotTranscoded);
        };
        stream.next_sequence = view.sequence().wrapping_add(1);
        let scaled = u64::from(event.duration) * u64::from(to.1) / u64::from(clock.max(1));
        event.duration = scaled.min(u64::from(u16::MAX)) as u16;
        let mut sending = Sending {
            sequence: &mut self.sequence,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let timestamp = stream.mapped(view.timestamp());
        sending.put(to.0, view.marker(), timestamp, &event.to_bytes(), send);
        Ok(())
    }

    /// An event as a tone in the speech, as far as it has come.
    fn sound_event(
        &mut self,
        view: &RtpView<'_>,
        payload: &[u8],
        clock: u32,
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
            .pressed
            .filter(|pressed| pressed.timestamp == view.timestamp());
        let before = known.unwrap_or_default();
        if before.ended {
            // The end is said three times (RFC 4733 section 2.5.1.4).
            return Ok(());
        }
        if known.is_none() && !inserter.begin(event.event, event.volume) {
            return Err(DropReason::MediaNotTranscoded);
        }
        if event.end {
            inserter.end();
        }
        self.pressed = Some(Pressed {
            timestamp: view.timestamp(),
            duration: event.duration,
            ended: event.end,
        });
        // One packet brings one second of tone at most, as concealment does: a duration is 16 bits that anyone can write.
        let units = u32::from(event.duration.saturating_sub(before.duration)).min(clock);
        let rate = stream.transcoder.packetiser().encoder().sample_rate();
        let mut left = (u64::from(units) * u64::from(rate) / u64::from(clock.max(1))) as usize;
        let mut sending = Sending {
            sequence: &mut self.sequence,
            packets: &mut self.packets,
            octets: &mut self.octets,
            ssrc: view.ssrc(),
        };
        let origin = stream.origin.1;
        while left > 0 {
            let mut samples = [0; STRETCH];
            let count = left.min(STRETCH);
            left -= count;
            let stretch = samples.get_mut(..count).unwrap_or_default();
            inserter.apply(stretch);
            let mut put = |packet: codec::packet::Packet<'_>| {
                let timestamp = origin.wrapping_add(packet.timestamp);
                sending.put(to, packet.marker, timestamp, packet.payload, send);
            };
            let pushed = stream.transcoder.packetiser().push(stretch, &mut put);
            pushed.map_err(|_| DropReason::MediaNotTranscoded)?;
        }
        // What the sender's clock says of the event is said by the tone.
        let passed = u64::from(units) * u64::from(stream.clocks.0) / u64::from(clock.max(1));
        stream.next_timestamp = match known {
            None => view.timestamp(),
            Some(_) => stream.next_timestamp,
        }
        .wrapping_add(passed as u32);
        Ok(())
    }
}

/// Rewrites RTCP that passes between sides of which one or both are transcoded, in place: a sender's report speaks of our timestamps
/// and counts, a receiver's of the sequence numbers that its reader sent. `from`: what transcodes the packets of whoever sent the
/// RTCP; `to`: what transcodes those that it reports about.
pub(crate) fn translate(from: Option<&Recoder>, to: Option<&Recoder>, compound: &mut [u8]) {
    let mut at = 0;
    while let Some(&[head, kind, high, low]) = compound.get(at..at + 4) {
        let length = 4 * (usize::from(u16::from_be_bytes([high, low])) + 1);
        let Some(packet) = compound.get_mut(at..at + length) else {
            return;
        };
        at += length;
        let blocks = match kind {
            wire::rtcp::packet_type::SR => {
                if let (Some(recoder), Some(info)) = (from, packet.get_mut(16..28)) {
                    recoder.sender_info(info);
                }
                28
            }
            wire::rtcp::packet_type::RR => 8,
            _ => continue,
        };
        let Some(recoder) = to else { continue };
        let blocks = packet.get_mut(blocks..).unwrap_or_default();
        for block in blocks.chunks_exact_mut(24).take(usize::from(head & 31)) {
            recoder.report_block(block);
        }
    }
}

impl Recoder {
    /// Timestamp, packet count, octet count (RFC 3550 section 6.4.1).
    fn sender_info(&self, info: &mut [u8]) {
        let Some(stream) = &self.stream else { return };
        let (Some(timestamp), Some(counts)) =
            (info.first_chunk::<4>().copied(), info.get_mut(4..12))
        else {
            return;
        };
        let ours = stream.mapped(u32::from_be_bytes(timestamp));
        counts
            .iter_mut()
            .zip(
                self.packets
                    .to_be_bytes()
                    .into_iter()
                    .chain(self.octets.to_be_bytes()),
            )
            .for_each(|(byte, new)| *byte = new);
        info.iter_mut()
            .zip(ours.to_be_bytes())
            .for_each(|(byte, new)| *byte = new);
    }

    /// Highest sequence number and jitter of a block about what we sent; losses are those of the way behind us.
    fn report_block(&self, block: &mut [u8]) {
        let Some(stream) = &self.stream else { return };
        let (Some(highest), Some(source)) = (block.get(8..12), block.first_chunk::<4>()) else {
            return;
        };
        if u32::from_be_bytes(*source) != stream.ssrc || highest == [0; 4] {
            return;
        }
        let jitter = block.get(12..16).and_then(|four| four.first_chunk::<4>());
        let jitter = jitter.map_or(0, |four| u32::from_be_bytes(*four));
        let (theirs, ours) = stream.clocks;
        let jitter = u64::from(jitter) * u64::from(theirs) / u64::from(ours.max(1));
        let new = self.highest.to_be_bytes();
        let new = new.into_iter().chain((jitter as u32).to_be_bytes());
        let place = block.get_mut(8..16).unwrap_or_default();
        place
            .iter_mut()
            .zip(new)
            .for_each(|(byte, new)| *byte = new);
    }
}

/// What a recoder makes of a packet, into the outbox; `finish` seals and counts each.
pub(crate) fn recode(
    recoder: &mut Recoder,
    view: &RtpView<'_>,
    arrived: Time,
    outbox: &mut Outbox,
    finish: &mut dyn FnMut(&mut Outbox),
) -> Result<(), DropReason> {
    recoder.take(view, arrived, &mut |head, payload| {
        outbox.begin(head, payload);
        finish(outbox);
    })
}
