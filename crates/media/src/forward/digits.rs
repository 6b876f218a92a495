//! Digits in a side's sound as telephone events (RFC 4733) towards the other side, where that takes events and this one has none.
//!
//! While a digit is heard, events leave in the place of speech, one for each packet; its end is said three times, beside the speech that
//! goes on. What is heard before it is known for a digit, some 20 ms, leaves as sound, which is too short for anybody to take it
//! for a digit (Q.24); the end is known as much later as the beginning was, so that the duration is right.

use super::recode::Clocked;
use crate::dtmf::END_PACKETS;
use codec::dtmf::{Detector, Heard, event_code, event_volume};
use smallvec::SmallVec;
use wire::rtp::TelephoneEvent;

/// Digits whose ends are said at the same time; more do not fit into a packet of speech.
const ENDING: usize = 4;
/// The longest duration that an event can tell (RFC 4733 section 2.3.5).
const LONGEST: u32 = u16::MAX as u32;

/// An event that leaves: payload type, marker, timestamp, payload.
pub(super) type Send<'s> = &'s mut dyn FnMut(u8, bool, u32, &[u8]);

/// A digit that is told of.
#[derive(Clone, Copy, Debug)]
struct Sounding {
    code: u8,
    volume: u8,
    /// Timestamp of the event, or of its last segment, once it has been told.
    begin: Option<u32>,
    /// Where the packet of speech ends at which it was told of last.
    until: u32,
    /// Duration that was told of that, and of the segments before, in units of the events.
    told: u32,
    before: u32,
    /// Packets that said its end.
    ends: u8,
}

impl Sounding {
    fn payload(&self, end: bool, duration: u32) -> [u8; 4] {
        let event = TelephoneEvent {
            event: self.code,
            end,
            volume: self.volume,
            duration: duration.min(LONGEST) as u16,
        };
        event.to_bytes()
    }
}

/// A packet of speech in whose place, or beside which, events leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its timestamp.
    pub(super) timestamp: u32,
    /// How long it lasts, in units of the timestamp.
    pub(super) units: u32,
    /// Units a second.
    pub(super) clock: u32,
}

/// Listens to the sound of a stream.
#[derive(Debug)]
pub(super) struct Digits {
    detector: Detector,
    rate: u32,
    to: Clocked,
    sounding: Option<Sounding>,
    ending: SmallVec<[Sounding; ENDING]>,
}

impl Digits {
    /// Sound at `rate` Hz; `to` is the payload type of the events, and their clock.
    pub(super) fn new(rate: u32, to: Clocked) -> Digits {
        Digits {
            detector: Detector::new(rate),
            rate: rate.max(1),
            to,
            sounding: None,
            ending: SmallVec::new(),
        }
    }

    /// The same source goes on in another codec: what was being told of ends.
    pub(super) fn follow(&mut self, before: Digits) {
        self.ending = before.ending;
        if let Some(sounding) = before.sounding {
            self.ends(sounding);
        }
    }

    fn ends(&mut self, sounding: Sounding) {
        if self.ending.len() == ENDING {
            self.ending.remove(0);
        }
        self.ending.push(sounding);
    }

    /// Takes samples on their way to the encoder, and silences them where they may be a digit.
    pub(super) fn listen(&mut self, samples: &mut [i16]) {
        let mut heard: SmallVec<[Heard; 4]> = SmallVec::new();
        self.detector.push(samples, &mut |what| heard.push(what));
        for what in heard {
            match what {
                Heard::Begin {
                    digit, level_dbm0, ..
                } => {
                    self.sounding = event_code(digit).map(|code| Sounding {
                        code,
                        volume: event_volume(level_dbm0),
                        begin: None,
                        until: 0,
                        told: 0,
                        before: 0,
                        ends: 0,
                    });
                }
                Heard::End { duration, .. } => {
                    if let Some(mut sounding) = self.sounding.take() {
                        let units = duration * u64::from(self.to.1) / u64::from(self.rate);
                        let units = u32::try_from(units).unwrap_or(u32::MAX);
                        let last = units.saturating_sub(sounding.before).min(LONGEST);
                        // What has been told is not taken back.
                        sounding.told = sounding.told.max(last);
                        self.ends(sounding);
                    }
                }
            }
        }
        if self.detector.suspects() {
            samples.fill(0);
        }
    }

    /// Tells of digits at a packet of speech; whether that one leaves, too.
    pub(super) fn tell(&mut self, place: Place, send: Send<'_>) -> bool {
        let (number, clock) = self.to;
        // Nobody holds a key through silence: a timestamp that jumps is no duration, and would take any number of segments.
        if let Some(sounding) = self.sounding
            && sounding.begin.is_some()
            && place.timestamp.wrapping_sub(sounding.until) > place.clock / 2
        {
            self.sounding = None;
            self.ends(sounding);
            self.detector = Detector::new(self.rate);
        }
        for ending in &mut self.ending {
            let marker = ending.begin.is_none();
            let begin = *ending.begin.get_or_insert(place.timestamp);
            send(number, marker, begin, &ending.payload(true, ending.told));
            ending.ends += 1;
        }
        self.ending.retain(|ending| ending.ends < END_PACKETS);
        let Some(sounding) = &mut self.sounding else {
            return true;
        };
        let scaled = |units: u32, from: u32, to: u32| {
            (u64::from(units) * u64::from(to) / u64::from(from.max(1))) as u32
        };
        let marker = sounding.begin.is_none();
        let mut begin = *sounding.begin.get_or_insert(place.timestamp);
        sounding.until = place.timestamp.wrapping_add(place.units);
        let since = sounding.until.wrapping_sub(begin);
        let mut duration = scaled(since, place.clock, clock);
        // What lasts longer than a packet can tell goes on in another segment (RFC 4733 section 2.5.1.3).
        while duration > LONGEST {
            send(number, false, begin, &sounding.payload(false, LONGEST));
            begin = begin.wrapping_add(scaled(LONGEST, clock, place.clock));
            sounding.begin = Some(begin);
            sounding.before = sounding.before.saturating_add(LONGEST);
            duration -= LONGEST;
        }
        sounding.told = duration;
        send(number, marker, begin, &sounding.payload(false, duration));
        false
    }
}
