//! Telephone events (RFC 4733) over time: sends digits as event packets, and assembles digits from received event
//! packets.

use std::collections::VecDeque;
use wire::rtp::TelephoneEvent;

/// Transmissions of the end packet of an event (RFC 4733 section 2.5.1.4).
pub const END_PACKETS: u8 = 3;
/// Duration of a whole segment of an event, in timestamp units.
const SEGMENT: u32 = u16::MAX as u32;
/// Maximum number of queued digits.
pub const MAX_QUEUE: usize = 64;
/// Maximum number of digits that an [`EventReceiver`] stores.
const MAX_DIGITS: usize = 256;

/// Reason for refusing digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtmfError {
    /// Not one of `0123456789*#ABCD!`.
    NotADigit(char),
    /// The queue would exceed [`MAX_QUEUE`].
    QueueFull,
    /// Shorter than a packet, or longer than the duration field can state (65,535 timestamp units: 8.19 s at 8 kHz).
    Duration,
}

impl core::fmt::Display for DtmfError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DtmfError::NotADigit(digit) => write!(f, "{digit:?} is no DTMF digit"),
            DtmfError::QueueFull => write!(f, "more than {MAX_QUEUE} digits wait to be sent"),
            DtmfError::Duration => {
                f.write_str("a digit lasts from one packet time to 65535 timestamp units")
            }
        }
    }
}

impl core::error::Error for DtmfError {}

/// An event packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPacket {
    /// The payload.
    pub event: TelephoneEvent,
    /// The timestamp: that of the beginning of the event, in all its packets.
    pub timestamp: u32,
    /// The marker bit, set in the first packet of an event.
    pub marker: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    code: u8,
    timestamp: u32,
    duration: u32,
    total: u32,
    ends: u8,
}

/// Sends digits: one packet per packet time while a digit lasts, with its duration so far, then three end packets, then
/// a pause.
#[derive(Clone, Debug)]
pub struct EventSender {
    queue: VecDeque<(u8, u32)>,
    running: Option<Running>,
    pause: u32,
    gap: u32,
    volume: u8,
    sent: u64,
}

impl EventSender {
    /// A sender that pauses for at least `gap` timestamp units between digits, at `volume` -dBm0.
    pub fn new(gap: u32, volume: u8) -> EventSender {
        EventSender {
            queue: VecDeque::new(),
            running: None,
            pause: 0,
            gap,
            volume: volume.min(63),
            sent: 0,
        }
    }

    /// Digits of which the first end packet was sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Queues `digits`, each to last `duration` timestamp units.
    ///
    /// # Errors
    /// [`DtmfError`]; nothing is queued then.
    pub fn push(&mut self, digits: &str, duration: u32) -> Result<(), DtmfError> {
        if duration == 0 || duration > u32::from(u16::MAX) {
            return Err(DtmfError::Duration);
        }
        let codes = digits
            .chars()
            .map(|digit| TelephoneEvent::code(digit).ok_or(DtmfError::NotADigit(digit)))
            .collect::<Result<Vec<u8>, _>>()?;
        if self.queue.len() + codes.len() > MAX_QUEUE {
            return Err(DtmfError::QueueFull);
        }
        self.queue
            .extend(codes.into_iter().map(|code| (code, duration)));
        Ok(())
    }

    /// Whether no digit is being sent or queued.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.queue.is_empty()
    }

    /// The event for the packet at `timestamp` that covers `step` timestamp units; `None` for audio.
    pub fn next(&mut self, timestamp: u32, step: u32) -> Option<EventPacket> {
        if self.running.is_none() {
            if self.pause > 0 {
                self.pause = self.pause.saturating_sub(step);
                return None;
            }
            let (code, total) = self.queue.pop_front()?;
            self.running = Some(Running {
                code,
                timestamp,
                duration: 0,
                total,
                ends: 0,
            });
        }
        let running = self.running.as_mut()?;
        let marker = running.duration == 0;
        running.duration = (running.duration + step).min(running.total);
        let end = running.duration >= running.total;
        let packet = EventPacket {
            event: TelephoneEvent {
                event: running.code,
                end,
                volume: self.volume,
                duration: running.duration as u16,
            },
            timestamp: running.timestamp,
            marker,
        };
        self.sent += u64::from(end && running.ends == 0);
        running.ends += u8::from(end);
        if running.ends >= END_PACKETS {
            self.running = None;
            self.pause = self.gap;
        }
        Some(packet)
    }
}

/// A digit that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit {
    /// Event code (RFC 4733 section 3.2).
    pub code: u8,
    /// Timestamp at its beginning.
    pub timestamp: u32,
    /// Duration in timestamp units, as received so far.
    pub duration: u32,
    /// Whether an end packet was received.
    pub ended: bool,
}

/// Whether an event with this timestamp is the next segment of one of the same code that began at `before`: an event
/// that lasts longer than its field can state is continued by another one (RFC 4733 section 2.5.1.3).
pub(crate) fn is_next_segment(timestamp: u32, before: u32) -> bool {
    timestamp.wrapping_sub(before) == SEGMENT
}

impl Digit {
    /// The character; `None` for events that are not DTMF digits.
    pub fn character(&self) -> Option<char> {
        TelephoneEvent {
            event: self.code,
            end: false,
            volume: 0,
            duration: 0,
        }
        .digit()
    }
}

/// Assembles digits from event packets. All packets of an event have its timestamp, or of a long one that of its
/// segment, so loss, duplication and reordering are harmless.
#[derive(Clone, Debug, Default)]
pub struct EventReceiver {
    digits: VecDeque<Digit>,
    forgotten: u64,
}

impl EventReceiver {
    /// Takes timestamp and payload of a packet. Returns whether a new digit begins.
    pub fn receive(&mut self, timestamp: u32, event: TelephoneEvent) -> bool {
        let known = self.digits.iter_mut().rev().take(8).find_map(|digit| {
            let since = timestamp.wrapping_sub(digit.timestamp);
            // Another digit may begin a multiple of a segment after one that has ended.
            let within = match digit.ended {
                true => since == 0 || since < digit.duration,
                false => since <= digit.duration.saturating_add(SEGMENT),
            };
            let fits = digit.code == event.event && since.is_multiple_of(SEGMENT) && within;
            fits.then_some((digit, since))
        });
        if let Some((digit, since)) = known {
            let duration = since.saturating_add(u32::from(event.duration));
            digit.duration = digit.duration.max(duration);
            digit.ended |= event.end;
            return false;
        }
        if self.digits.len() >= MAX_DIGITS {
            self.digits.pop_front();
            self.forgotten += 1;
        }
        self.digits.push_back(Digit {
            code: event.event,
            timestamp,
            duration: event.duration.into(),
            ended: event.end,
        });
        true
    }

    /// The digits, the oldest first.
    pub fn digits(&self) -> impl Iterator<Item = &Digit> {
        self.digits.iter()
    }

    /// The DTMF digits as text.
    pub fn text(&self) -> String {
        self.digits.iter().filter_map(Digit::character).collect()
    }

    /// Digits that were discarded for later ones.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
