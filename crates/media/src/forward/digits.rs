//! Converts digits in a side's audio to telephone events (RFC 4733), if the other side negotiated events and this side
//! did not.
//!
//! While a digit sounds, events replace the audio, one per packet. The end of a digit is sent three times, beside the
//! audio that follows. The audio until a digit is detected, some 20 ms, is relayed; it is too short to be recognised as
//! a digit (ITU-T Q.24). The end is detected as much later as the beginning was, so that the duration is correct.

use super::transcode::PayloadClock;
use crate::dtmf::END_PACKETS;
use codec::dtmf::{Detector, DetectorEvent, event_code, event_volume};
use smallvec::SmallVec;
use wire::rtp::TelephoneEvent;

/// Digits whose end is being sent at the same time. Each adds an event packet to a packet of audio.
const MAX_ENDING: usize = 4;
/// The longest duration that an event can state (RFC 4733 section 2.3.5), in timestamp units.
const MAX_DURATION: u32 = u16::MAX as u32;

/// Receives an event: payload type, marker, timestamp, payload.
pub(super) type SendEvent<'s> = &'s mut dyn FnMut(u8, bool, u32, &[u8]);

/// A digit that is being sent as an event.
#[derive(Clone, Copy, Debug)]
struct ActiveDigit {
    code: u8,
    volume: u8,
    /// Timestamp of the event, or of its last segment, once one was sent.
    begin: Option<u32>,
    /// Timestamp at the end of the last audio packet that was replaced.
    reported_until: u32,
    /// Duration that was sent for the current segment, and that of the earlier segments, in units of the event clock.
    reported: u32,
    earlier_segments: u32,
    /// Number of end packets sent.
    end_packets: u8,
}

impl ActiveDigit {
    fn payload(&self, end: bool, duration: u32) -> [u8; 4] {
        let event = TelephoneEvent {
            event: self.code,
            end,
            volume: self.volume,
            duration: duration.min(MAX_DURATION) as u16,
        };
        event.to_bytes()
    }
}

/// The packet of audio that events replace or accompany.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpeechSlot {
    /// Its timestamp.
    pub(super) timestamp: u32,
    /// Its duration in timestamp units.
    pub(super) units: u32,
    /// Clock rate in Hz.
    pub(super) clock: u32,
}

/// Detects digits in the audio of a stream and sends them as events.
#[derive(Debug)]
pub(super) struct DigitEvents {
    detector: Detector,
    rate: u32,
    to: PayloadClock,
    active: Option<ActiveDigit>,
    ending: SmallVec<[ActiveDigit; MAX_ENDING]>,
}

impl DigitEvents {
    /// For audio at `rate` Hz. `to` is payload type and clock rate of the events.
    pub(super) fn new(rate: u32, to: PayloadClock) -> DigitEvents {
        DigitEvents {
            detector: Detector::new(rate),
            rate: rate.max(1),
            to,
            active: None,
            ending: SmallVec::new(),
        }
    }

    /// Continues after a codec change of the same source: the digit in progress ends.
    pub(super) fn resume(&mut self, previous: DigitEvents) {
        self.ending = previous.ending;
        if let Some(active) = previous.active {
            self.finish(active);
        }
    }

    fn finish(&mut self, active: ActiveDigit) {
        if self.ending.len() == MAX_ENDING {
            self.ending.remove(0);
        }
        self.ending.push(active);
    }

    /// Examines samples before they are encoded, and silences them while they may belong to a digit.
    pub(super) fn detect(&mut self, samples: &mut [i16]) {
        let mut detected: SmallVec<[DetectorEvent; 4]> = SmallVec::new();
        self.detector
            .push(samples, &mut |event| detected.push(event));
        for event in detected {
            match event {
                DetectorEvent::Begin {
                    digit, level_dbm0, ..
                } => {
                    self.active = event_code(digit).map(|code| ActiveDigit {
                        code,
                        volume: event_volume(level_dbm0),
                        begin: None,
                        reported_until: 0,
                        reported: 0,
                        earlier_segments: 0,
                        end_packets: 0,
                    });
                }
                DetectorEvent::End { duration, .. } => {
                    if let Some(mut active) = self.active.take() {
                        let units = duration * u64::from(self.to.1) / u64::from(self.rate);
                        let units = u32::try_from(units).unwrap_or(u32::MAX);
                        let last = units
                            .saturating_sub(active.earlier_segments)
                            .min(MAX_DURATION);
                        // A duration that was sent must not become shorter.
                        active.reported = active.reported.max(last);
                        self.finish(active);
                    }
                }
            }
        }
        if self.detector.may_be_digit() {
            samples.fill(0);
        }
    }

    /// Sends the events that are due at a packet of audio. Returns whether the audio is sent, too.
    pub(super) fn emit(&mut self, slot: SpeechSlot, send: SendEvent<'_>) -> bool {
        let (payload_type, clock) = self.to;
        // A jump of the timestamp is not part of a digit, and would be split into any number of segments.
        if let Some(active) = self.active
            && active.begin.is_some()
            && slot.timestamp.wrapping_sub(active.reported_until) > slot.clock / 2
        {
            self.active = None;
            self.finish(active);
            self.detector = Detector::new(self.rate);
        }
        for ending in &mut self.ending {
            let marker = ending.begin.is_none();
            let begin = *ending.begin.get_or_insert(slot.timestamp);
            send(
                payload_type,
                marker,
                begin,
                &ending.payload(true, ending.reported),
            );
            ending.end_packets += 1;
        }
        self.ending
            .retain(|ending| ending.end_packets < END_PACKETS);
        let Some(active) = &mut self.active else {
            return true;
        };
        let scaled = |units: u32, from: u32, to: u32| {
            (u64::from(units) * u64::from(to) / u64::from(from.max(1))) as u32
        };
        let marker = active.begin.is_none();
        let mut begin = *active.begin.get_or_insert(slot.timestamp);
        active.reported_until = slot.timestamp.wrapping_add(slot.units);
        let since = active.reported_until.wrapping_sub(begin);
        let mut duration = scaled(since, slot.clock, clock);
        // A longer event continues in another segment (RFC 4733 section 2.5.1.3).
        while duration > MAX_DURATION {
            send(
                payload_type,
                false,
                begin,
                &active.payload(false, MAX_DURATION),
            );
            begin = begin.wrapping_add(scaled(MAX_DURATION, clock, slot.clock));
            active.begin = Some(begin);
            active.earlier_segments = active.earlier_segments.saturating_add(MAX_DURATION);
            duration -= MAX_DURATION;
        }
        active.reported = duration;
        send(
            payload_type,
            marker,
            begin,
            &active.payload(false, duration),
        );
        false
    }
}
