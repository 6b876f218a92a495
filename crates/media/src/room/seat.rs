//! A participant of a conference: the side towards him, what is heard from him and what he hears.

use super::ear::{Ear, HeardFigures};
use super::mouth::{Likeness, Mouth, Stream};
use super::plan::{SeatPlan, Voice};
use super::tones::Jingle;
use crate::forward::flow::{self, Kind, Opened, Side};
use crate::forward::{Component, MediaEvent};
use codec::CodecError;
use core::time::Duration;
use engine::{DropReason, Entropy, Packet, Time, Verdict};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::rtcp::{Compound, CompoundBuilder, SenderInfo};
use wire::rtp::{RtpView, TelephoneEvent};

/// Digits further apart are no command.
const TYPING: Duration = Duration::from_secs(3);
/// Packets of an event come this close to one another; what is heard with them is the digit's sound.
const EVENT_HANG: Duration = Duration::from_millis(120);
/// Between reports on average (RFC 3550 section 6.2); each time half of it to one and a half.
const REPORT_EVERY: u64 = 5_000;

/// What a participant did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatEvent {
    /// He silenced himself.
    Muted,
    /// He is heard again.
    Unmuted,
    /// While he waits to be admitted: he pressed this digit, `0` to `9`, `*`, `#`, `A` to `D`.
    Digit(u8),
}

/// What control wants of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatOrder {
    /// He is not heard any more, and cannot change that by digits.
    Mute,
    /// He is heard again, whoever silenced him.
    Unmute,
    /// He who waits takes part from now on.
    Admit,
    /// A tone tells him who waits that what he dialled was wrong, and that he is asked again.
    AskAgain,
}

/// Who silenced a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Muted {
    /// Nobody: he is heard.
    #[default]
    No,
    /// He himself, by digits.
    ByDigits,
    /// Control.
    ByOrder,
}

/// What a seat has heard and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeatFigures {
    /// Its receiving half.
    pub heard: HeardFigures,
    /// Whether it is in the mix.
    pub speaks: bool,
    /// Whether, and by whom, it is silenced.
    pub muted: Muted,
    /// Whether it waits to be admitted.
    pub waits: bool,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) session: u64,
    /// Index of its room.
    pub(super) room: u32,
    pub(super) side: Side,
    pub(super) voice: Voice,
    pub(super) ear: Ear,
    pub(super) own: Mouth,
    pub(super) stream: Stream,
    /// The turn's voice at the room's rate, where it is to be heard.
    pub(super) frame: Vec<i16>,
    /// It is to be heard in this turn, and among the loudest.
    pub(super) speaks: bool,
    pub(super) in_mix: bool,
    /// It was in the turn before.
    pub(super) was_in_mix: bool,
    /// A tone for this participant alone.
    pub(super) signal: Option<Jingle>,
    muted: Muted,
    /// He hears nobody and is heard by nobody until control admits him.
    pub(super) waits: bool,
    typed: SmallVec<[u8; 16]>,
    typed_at: Time,
    /// Timestamp of the last event, and until when its sound is kept out.
    event: Option<u32>,
    event_until: Time,
    heard_ssrc: Option<u32>,
    pub(super) last_packet: Time,
    inactivity: Option<Duration>,
    /// Middle bits of the last sender report's time, and its arrival.
    last_report: Option<(u32, Time)>,
    report_due: Time,
    reported: u32,
    entropy: Entropy,
    cname: String,
}

/// What is made anew where the voice changes. Nothing is changed where it cannot be made.
pub(super) struct Parts {
    ear: Ear,
    own: Mouth,
}

impl Parts {
    pub(super) fn new(plan: &SeatPlan, room_rate: u32) -> Result<Parts, CodecError> {
        Ok(Parts {
            ear: Ear::new(&plan.voice, room_rate, plan.terms.max_delay, plan.seed)?,
            own: Mouth::new(Likeness::of(&plan.voice), room_rate)?,
        })
    }
}

fn side_of(plan: &SeatPlan) -> crate::SidePlan {
    let mut side = plan.side.clone();
    let clock = plan.voice.sends.kind().rtp_clock();
    side.clock_rates = SmallVec::from_iter([(plan.voice.payload_type, clock)]);
    side.clock_rates
        .extend(plan.voice.events.map(|events| (events, 8000)));
    side
}

impl Seat {
    pub(super) fn new(plan: &SeatPlan, room: u32, parts: Parts, now: Time) -> Seat {
        let mut entropy = Entropy::from_number(plan.seed);
        let side_plan = side_of(plan);
        let mut side = Side::new(&side_plan);
        side.apply(&side_plan);
        let mut seat = Seat {
            session: plan.session,
            room,
            side,
            voice: plan.voice,
            ear: parts.ear,
            own: parts.own,
            stream: Stream::new(entropy.u32(), entropy.u32() as u16, entropy.u32()),
            frame: Vec::with_capacity(2 * super::MAX_TURN),
            speaks: false,
            in_mix: false,
            was_in_mix: false,
            signal: plan.waits.then(Jingle::ask),
            muted: Muted::No,
            waits: plan.waits,
            typed: SmallVec::new(),
            typed_at: now,
            event: None,
            event_until: Time::ZERO,
            heard_ssrc: None,
            last_packet: now,
            inactivity: None,
            last_report: None,
            report_due: now,
            reported: 0,
            cname: format!("{:016x}", entropy.u64()),
            entropy,
        };
        seat.report_due = now + seat.report_interval();
        seat.set_inactivity(plan, now);
        seat
    }

    fn set_inactivity(&mut self, plan: &SeatPlan, now: Time) {
        self.inactivity = match plan.side.sends {
            true => plan.inactivity,
            false => plan.hold_inactivity,
        };
        self.last_packet = now;
    }

    /// Takes a changed plan; with `parts` where the voice is another.
    pub(super) fn apply(&mut self, plan: &SeatPlan, parts: Option<Parts>, now: Time) {
        self.side.apply(&side_of(plan));
        self.voice = plan.voice;
        self.ear.buffer.set_most(plan.terms.max_delay);
        match parts {
            Some(parts) => {
                self.ear = parts.ear;
                self.own = parts.own;
                self.stream.change_codec();
            }
            None => self.ear.listen_for_digits(&plan.voice),
        }
        self.set_inactivity(plan, now);
    }

    pub(super) fn figures(&self) -> SeatFigures {
        SeatFigures {
            heard: self.ear.figures(),
            speaks: self.in_mix,
            muted: self.muted,
            waits: self.waits,
        }
    }

    /// Does what control wants; whether he takes part who waited before.
    pub(super) fn order(&mut self, order: SeatOrder) -> bool {
        match order {
            SeatOrder::Mute => {
                self.muted = Muted::ByOrder;
                self.signal = Some(Jingle::muted());
            }
            SeatOrder::Unmute if self.muted == Muted::No => {}
            SeatOrder::Unmute => {
                self.muted = Muted::No;
                self.signal = Some(Jingle::unmuted());
            }
            SeatOrder::AskAgain => self.signal = Some(Jingle::ask_again()),
            SeatOrder::Admit => {
                self.typed.clear();
                self.signal = Some(Jingle::unmuted());
                return core::mem::take(&mut self.waits);
            }
        }
        false
    }

    /// Whether listeners like this one may be given the same payloads: where packets begin with every turn.
    pub(super) fn shares(&self) -> bool {
        self.voice.packet_ms <= super::TURN_MS
    }

    /// Whether it is given a mix of its own in this turn.
    pub(super) fn is_alone(&self) -> bool {
        !self.shares() || self.in_mix || self.signal.is_some() || self.waits
    }

    /// A packet of the participant.
    pub(super) fn take(
        &mut self,
        component: Component,
        packet: &mut Packet<'_>,
        now: Time,
        mute: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) -> Result<Verdict, DropReason> {
        let carriage = crate::Carriage::Rtp;
        let wire = packet.length;
        let proved = match flow::open(&mut self.side, carriage, component, packet)? {
            Opened::Punt(why) => return Ok(Verdict::Punt(why)),
            Opened::Clear => None,
            Opened::Proved(latched) => Some(latched),
        };
        let arrived = packet.arrived;
        let admitted = flow::admit(&mut self.side, carriage, component, packet, proved)?;
        let Some((kind, latched)) = admitted else {
            return Ok(Verdict::Punt("stun"));
        };
        self.last_packet = now;
        if let Some(address) = latched {
            reports.push_back(MediaEvent::Latched {
                session: self.session,
                line: 0,
                side: 0,
                component: flow::locked_component(component, &kind),
                address,
            });
        }
        match kind {
            Kind::Rtcp => {
                let bytes = packet.bytes();
                self.side.heard_rtcp(wire, bytes, arrived);
                for part in Compound::new(bytes) {
                    if let Some(info) = part.sender_info() {
                        self.last_report = Some(((info.ntp >> 16) as u32, arrived));
                    }
                }
                Ok(Verdict::Consumed)
            }
            Kind::Rtp(view) => {
                self.side.heard(wire, &view, arrived);
                self.voice_of(&view, arrived, mute, reports)
            }
            Kind::Stun | Kind::Datagram => Err(DropReason::MediaMalformed),
        }
    }

    fn voice_of(
        &mut self,
        view: &RtpView<'_>,
        arrived: Time,
        mute: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) -> Result<Verdict, DropReason> {
        if !self.side.sends() {
            return Err(DropReason::MediaHeld);
        }
        if self.heard_ssrc != Some(view.ssrc()) {
            if self.heard_ssrc.replace(view.ssrc()).is_some() {
                self.ear.buffer.restart();
            }
            self.event = None;
        }
        let payload = view.payload().ok_or(DropReason::MediaMalformed)?;
        let payload_type = view.payload_type();
        if self.voice.events == Some(payload_type) {
            let event = TelephoneEvent::parse(payload).ok_or(DropReason::RoomPayload)?;
            self.digit(view.timestamp(), event, arrived, mute, reports);
            return Ok(Verdict::Consumed);
        }
        let noise = self.voice.noise == Some(payload_type);
        if !noise && payload_type != self.voice.payload_type {
            return Err(DropReason::RoomPayload);
        }
        self.ear
            .insert(arrived, view.timestamp(), noise, payload)
            .map(|()| Verdict::Consumed)
    }

    /// A packet of a telephone event: all of one event have its timestamp (RFC 4733 section 2.3.5).
    fn digit(
        &mut self,
        timestamp: u32,
        event: TelephoneEvent,
        now: Time,
        mute: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) {
        self.event_until = now + EVENT_HANG;
        let fresh = self
            .event
            .is_none_or(|last| (timestamp.wrapping_sub(last) as i32) > 0);
        if !fresh {
            return;
        }
        self.event = Some(timestamp);
        if let Some(digit) = event.digit() {
            self.pressed(digit, now, mute, reports);
        }
    }

    /// He pressed a digit, of which an event or the sound itself has told.
    fn pressed(&mut self, digit: char, now: Time, mute: &[u8], reports: &mut VecDeque<MediaEvent>) {
        if self.waits {
            reports.push_back(MediaEvent::Seat {
                session: self.session,
                event: SeatEvent::Digit(digit as u8),
            });
            return;
        }
        if self.typed_at + TYPING < now || self.typed.len() == self.typed.inline_size() {
            self.typed.clear();
        }
        self.typed_at = now;
        self.typed.push(digit as u8);
        if !mute.is_empty() && self.typed.ends_with(mute) {
            self.typed.clear();
            let event = match self.muted {
                Muted::No => {
                    self.muted = Muted::ByDigits;
                    self.signal = Some(Jingle::muted());
                    SeatEvent::Muted
                }
                Muted::ByDigits => {
                    self.muted = Muted::No;
                    self.signal = Some(Jingle::unmuted());
                    SeatEvent::Unmuted
                }
                // He is told that he stays silenced.
                Muted::ByOrder => {
                    self.signal = Some(Jingle::muted());
                    return;
                }
            };
            reports.push_back(MediaEvent::Seat {
                session: self.session,
                event,
            });
        }
    }

    /// The next turn of what comes from him, with the digits that begin in it.
    pub(super) fn hear(&mut self, at: Time, mute: &[u8], reports: &mut VecDeque<MediaEvent>) {
        let heard = self.muted == Muted::No && !self.waits;
        let wanted = heard && self.side.sends() && self.event_until <= at;
        self.frame.clear();
        let mut digits: SmallVec<[char; 2]> = SmallVec::new();
        let pressed = &mut |digit| digits.push(digit);
        self.speaks = self.ear.turn(at, wanted, &mut self.frame, pressed);
        for digit in digits {
            self.pressed(digit, at, mute, reports);
        }
    }

    /// Whether he has been silent for as long as is allowed; told once each such span.
    pub(super) fn timed_out(&mut self, now: Time) -> Option<Time> {
        let since = self.last_packet;
        let span = self.inactivity?;
        if since + span > now {
            return None;
        }
        self.last_packet = now;
        Some(since)
    }

    fn report_interval(&mut self) -> Duration {
        Duration::from_millis(REPORT_EVERY / 2 + self.entropy.below(REPORT_EVERY))
    }

    /// Writes a report where one is due; gives the buffer back.
    pub(super) fn report(
        &mut self,
        now: Time,
        clock_ms: u64,
        last: bool,
        buffer: Vec<u8>,
    ) -> (Vec<u8>, bool) {
        if !last && now < self.report_due {
            return (buffer, false);
        }
        self.report_due = now + self.report_interval();
        let block = self.side.report_block().map(|mut block| {
            if let Some((middle, arrived)) = self.last_report {
                let nanos = u128::from(now.since(arrived).as_nanos() as u64);
                block.last_sr = middle;
                block.delay_since_last_sr = ((nanos << 16) / 1_000_000_000) as u32;
            }
            block
        });
        let ssrc = self.stream.ssrc;
        let builder = CompoundBuilder::reusing(buffer);
        let units = self.voice.sends.kind().rtp_clock() / 1000;
        let builder = if self.stream.packets == self.reported {
            builder.receiver_report(ssrc, block.as_slice())
        } else {
            // No wall clock is known here: this one serves for round trips, which is what it is for (RFC 3550 section 4).
            let nanos = u128::from(now.as_nanos());
            let info = SenderInfo {
                ntp: ((nanos << 32) / 1_000_000_000) as u64,
                rtp_timestamp: self.stream.timestamp((clock_ms as u32).wrapping_mul(units)),
                packets: self.stream.packets,
                octets: self.stream.octets,
            };
            self.side.reported(&info, now);
            builder.sender_report(ssrc, &info, block.as_slice())
        };
        self.reported = self.stream.packets;
        let mut builder = builder.cname(ssrc, &self.cname);
        if last {
            builder = builder.goodbye(&[ssrc], "");
        }
        (builder.finish(), true)
    }
}
