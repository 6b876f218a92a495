//! A participant of a conference: its side, decoder, encoder, digits and RTCP.

use super::decoder::ParticipantDecoder;
use super::messages::{MuteState, ParticipantCommand, ParticipantEvent, ParticipantFigures};
use super::mix_encoder::{EncodingKey, MixEncoder, ParticipantStream};
use super::plan::{ParticipantPlan, VoiceFormat};
use super::tones::ToneSequence;
use crate::dtmf::is_next_segment;
use crate::expected_loss::ExpectedLoss;
use crate::forward::flow::{self, FlowSide, PacketKind, Unprotected};
use crate::forward::{Component, MediaEvent};
use codec::CodecError;
use core::time::Duration;
use engine::{DropReason, Entropy, MediaPacket, PacketVerdict, Time};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::rtcp::{Compound, CompoundBuilder, ReportBlock, SenderInfo};
use wire::rtp::{RtpView, TelephoneEvent};

/// A longer pause ends the input of a digit sequence.
const DIGIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after an event packet during which the audio is suppressed: it contains the digit's tone.
const EVENT_HANG: Duration = Duration::from_millis(120);
/// A timestamp below that of the last event by less than this number of seconds is that of a late packet of an earlier
/// event; any other is a new event. A sender that restarts its timestamps keeps no order (RFC 3550).
const LATE_EVENT_S: u32 = 2;
/// Mean interval between RTCP reports (RFC 3550 section 6.2); each interval is between half of it and one and a half
/// times.
const REPORT_INTERVAL_MS: u64 = 5_000;

#[derive(Debug)]
pub(super) struct Participant {
    pub(super) session: u64,
    /// Index of its conference.
    pub(super) conference: u32,
    pub(super) side: FlowSide,
    pub(super) voice: VoiceFormat,
    pub(super) decoder: ParticipantDecoder,
    pub(super) own_encoder: MixEncoder,
    pub(super) stream: ParticipantStream,
    /// Audio of this turn at the mixing rate, if it speaks.
    pub(super) frame: Vec<i16>,
    /// Whether it speaks in this turn, and whether it is among the loudest.
    pub(super) audible: bool,
    pub(super) in_mix: bool,
    /// Whether it was in the mix of the last turn.
    pub(super) was_in_mix: bool,
    /// A tone for this participant alone.
    pub(super) private_tone: Option<ToneSequence>,
    muted: MuteState,
    /// In the lobby it neither receives nor contributes to the mix.
    pub(super) in_lobby: bool,
    digits: SmallVec<[u8; 16]>,
    last_digit_at: Time,
    /// Timestamp and code of the last event, and the time until which audio is suppressed.
    event: Option<(u32, u8)>,
    event_until: Time,
    received_ssrc: Option<u32>,
    pub(super) last_packet: Time,
    inactivity: Option<Duration>,
    /// Source, middle bits of the NTP timestamp and arrival of the last sender report.
    last_report: Option<(u32, u32, Time)>,
    report_due: Time,
    reported: u32,
    /// Loss of our packets, as the participant reports it.
    loss: ExpectedLoss,
    entropy: Entropy,
    cname: String,
}

/// The parts that are replaced when the codec changes, created before anything is changed.
pub(super) struct CodecState {
    decoder: ParticipantDecoder,
    own_encoder: MixEncoder,
}

impl CodecState {
    pub(super) fn new(plan: &ParticipantPlan, mix_rate: u32) -> Result<CodecState, CodecError> {
        Ok(CodecState {
            decoder: ParticipantDecoder::new(
                &plan.voice,
                mix_rate,
                plan.settings.max_delay,
                plan.seed,
            )?,
            own_encoder: MixEncoder::new(EncodingKey::of(&plan.voice), mix_rate)?,
        })
    }
}

fn side_of(plan: &ParticipantPlan) -> crate::SidePlan {
    let mut side = plan.side.clone();
    let clock = plan.voice.format.kind().rtp_clock();
    side.clock_rates = SmallVec::from_iter([(plan.voice.payload_type, clock)]);
    let events = plan.voice.events;
    side.clock_rates
        .extend(events.map(|events| (events, plan.voice.events_clock)));
    side
}

/// The first sequence number of our stream: below 2^15, because a receiver that misses the first packets of an SRTP
/// stream must not miss a wrap with them (RFC 3711 section 3.3.1).
fn first_sequence(entropy: &mut Entropy) -> u16 {
    entropy.u32() as u16 & 0x7fff
}

impl Participant {
    /// A participant of the conference with this index. All random values derive from the plan's seed.
    pub(super) fn new(
        plan: &ParticipantPlan,
        conference: u32,
        codecs: CodecState,
        now: Time,
    ) -> Participant {
        let mut entropy = Entropy::from_number(plan.seed);
        let side_plan = side_of(plan);
        let mut side = FlowSide::new(&side_plan);
        side.apply(&side_plan);
        let mut participant = Participant {
            session: plan.session,
            conference,
            side,
            voice: plan.voice,
            decoder: codecs.decoder,
            own_encoder: codecs.own_encoder,
            stream: ParticipantStream::new(
                entropy.u32(),
                first_sequence(&mut entropy),
                entropy.u32(),
            ),
            frame: Vec::with_capacity(2 * super::MAX_TURN),
            audible: false,
            in_mix: false,
            was_in_mix: false,
            private_tone: plan.in_lobby.then(ToneSequence::pin_prompt),
            muted: MuteState::Unmuted,
            in_lobby: plan.in_lobby,
            digits: SmallVec::new(),
            last_digit_at: now,
            event: None,
            event_until: Time::ZERO,
            received_ssrc: None,
            last_packet: now,
            inactivity: None,
            last_report: None,
            report_due: now,
            reported: 0,
            loss: ExpectedLoss::default(),
            cname: format!("{:016x}", entropy.u64()),
            entropy,
        };
        participant.report_due = now + participant.report_interval();
        participant.set_inactivity(plan, now);
        participant
    }

    fn set_inactivity(&mut self, plan: &ParticipantPlan, now: Time) {
        self.inactivity = match plan.side.is_held() {
            false => plan.inactivity,
            true => plan.hold_inactivity,
        };
        self.last_packet = now;
    }

    /// Applies a changed plan. `codecs` replaces decoder and encoder if the codec changed.
    pub(super) fn apply(&mut self, plan: &ParticipantPlan, codecs: Option<CodecState>, now: Time) {
        self.side.apply(&side_of(plan));
        self.voice = plan.voice;
        self.decoder.buffer.set_max_delay(plan.settings.max_delay);
        match codecs {
            Some(codecs) => {
                self.decoder = codecs.decoder;
                self.own_encoder = codecs.own_encoder;
                self.own_encoder.set_expected_loss(self.loss.percent());
                self.stream.change_codec();
            }
            None => self.decoder.set_digit_detection(&plan.voice),
        }
        self.set_inactivity(plan, now);
    }

    pub(super) fn figures(&self) -> ParticipantFigures {
        ParticipantFigures {
            decoder: self.decoder.figures(),
            in_mix: self.in_mix,
            muted: self.muted,
            in_lobby: self.in_lobby,
        }
    }

    /// Executes a command. Returns whether the participant was admitted by it.
    pub(super) fn control(&mut self, command: ParticipantCommand) -> bool {
        match command {
            ParticipantCommand::Mute => {
                self.muted = MuteState::ByControl;
                self.private_tone = Some(ToneSequence::muted());
            }
            ParticipantCommand::Unmute if self.muted == MuteState::Unmuted => {}
            ParticipantCommand::Unmute => {
                self.muted = MuteState::Unmuted;
                self.private_tone = Some(ToneSequence::unmuted());
            }
            ParticipantCommand::RejectPin => self.private_tone = Some(ToneSequence::wrong_pin()),
            ParticipantCommand::Admit => {
                self.digits.clear();
                self.private_tone = Some(ToneSequence::unmuted());
                return core::mem::take(&mut self.in_lobby);
            }
        }
        false
    }

    /// Whether it may share an encoder, which requires that packets begin with every turn.
    pub(super) fn can_share_mix(&self) -> bool {
        self.voice.packet_ms <= super::TURN_MS
    }

    /// Whether it needs a mix of its own in this turn.
    pub(super) fn needs_own_mix(&self) -> bool {
        !self.can_share_mix() || self.in_mix || self.private_tone.is_some() || self.in_lobby
    }

    /// Whether packets can be sent to it: its address is known, and its SRTP keys if it uses SRTP.
    pub(super) fn can_receive(&self) -> bool {
        self.side.destination().is_some() && self.side.can_protect()
    }

    /// Handles a packet of the participant.
    pub(super) fn receive(
        &mut self,
        component: Component,
        packet: &mut MediaPacket<'_>,
        now: Time,
        mute_digits: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) -> Result<PacketVerdict, DropReason> {
        let carriage = crate::Carriage::Rtp;
        let wire = packet.length;
        let authenticated = match flow::unprotect(&mut self.side, carriage, component, packet)? {
            Unprotected::Punt(reason) => return Ok(PacketVerdict::Punt(reason)),
            Unprotected::Clear => None,
            Unprotected::Authenticated(latched) => Some(latched),
        };
        let arrived = packet.arrived;
        let admitted = flow::admit(&mut self.side, carriage, component, packet, authenticated)?;
        let Some((kind, latched)) = admitted else {
            return Ok(PacketVerdict::Punt("stun"));
        };
        self.last_packet = now;
        if let Some(address) = latched {
            reports.push_back(MediaEvent::Latched {
                session: self.session,
                line: 0,
                side: 0,
                component: flow::latched_component(component, &kind),
                address,
            });
        }
        match kind {
            PacketKind::Rtcp => {
                let bytes = packet.bytes();
                self.side.receive_rtcp(wire, bytes, arrived);
                for part in Compound::new(bytes) {
                    let own = |block: &ReportBlock| block.ssrc == self.stream.ssrc;
                    if let Some(block) = part.reports().find(own)
                        && let Some(percent) = self.loss.receive(&block)
                    {
                        self.own_encoder.set_expected_loss(percent);
                    }
                    if let (Some(sender), Some(info)) = (part.sender(), part.sender_info()) {
                        self.last_report = Some((sender, (info.ntp >> 16) as u32, arrived));
                    }
                }
                Ok(PacketVerdict::Consumed)
            }
            PacketKind::Rtp(view) => {
                self.side.receive_rtp(wire, &view, arrived);
                self.receive_voice(&view, arrived, mute_digits, reports)
            }
            PacketKind::Stun | PacketKind::Zrtp | PacketKind::Datagram => {
                Err(DropReason::MediaMalformed)
            }
        }
    }

    /// Handles accepted RTP: events become digits, audio goes to the jitter buffer.
    fn receive_voice(
        &mut self,
        view: &RtpView<'_>,
        arrived: Time,
        mute_digits: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) -> Result<PacketVerdict, DropReason> {
        if !self.side.sends() {
            return Err(DropReason::MediaDirectionClosed);
        }
        if self.received_ssrc != Some(view.ssrc()) {
            if self.received_ssrc.replace(view.ssrc()).is_some() {
                self.decoder.buffer.restart();
            }
            self.event = None;
        }
        let payload = view.payload().ok_or(DropReason::MediaMalformed)?;
        let payload_type = view.payload_type();
        if self.voice.events == Some(payload_type) {
            let event = TelephoneEvent::parse(payload).ok_or(DropReason::ConferencePayload)?;
            self.digit(view.timestamp(), event, arrived, mute_digits, reports);
            return Ok(PacketVerdict::Consumed);
        }
        let noise = self.voice.noise == Some(payload_type);
        if !noise && payload_type != self.voice.payload_type {
            return Err(DropReason::ConferencePayload);
        }
        self.decoder
            .insert(arrived, view.timestamp(), noise, payload)
            .map(|()| PacketVerdict::Consumed)
    }

    /// Handles a packet of a telephone event; all packets of one event have its timestamp (RFC 4733 section 2.3.5), and
    /// a long event has several segments.
    fn digit(
        &mut self,
        timestamp: u32,
        event: TelephoneEvent,
        now: Time,
        mute_digits: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) {
        self.event_until = now + EVENT_HANG;
        let late = self.voice.events_clock.saturating_mul(LATE_EVENT_S);
        let fresh = self
            .event
            .is_none_or(|(last, _)| last.wrapping_sub(timestamp) >= late);
        if !fresh {
            return;
        }
        let (last, code) = self.event.replace((timestamp, event.event)).unzip();
        if code == Some(event.event) && last.is_some_and(|last| is_next_segment(timestamp, last)) {
            return;
        }
        if let Some(digit) = event.digit() {
            self.on_digit(digit, now, mute_digits, reports);
        }
    }

    /// Handles a digit that was received as an event or in the audio.
    fn on_digit(
        &mut self,
        digit: char,
        now: Time,
        mute_digits: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) {
        if self.in_lobby {
            reports.push_back(MediaEvent::Participant {
                session: self.session,
                event: ParticipantEvent::Digit(digit as u8),
            });
            return;
        }
        if self.last_digit_at + DIGIT_TIMEOUT < now
            || self.digits.len() == self.digits.inline_size()
        {
            self.digits.clear();
        }
        self.last_digit_at = now;
        self.digits.push(digit as u8);
        if !mute_digits.is_empty() && self.digits.ends_with(mute_digits) {
            self.digits.clear();
            let event = match self.muted {
                MuteState::Unmuted => {
                    self.muted = MuteState::ByParticipant;
                    self.private_tone = Some(ToneSequence::muted());
                    ParticipantEvent::Muted
                }
                MuteState::ByParticipant => {
                    self.muted = MuteState::Unmuted;
                    self.private_tone = Some(ToneSequence::unmuted());
                    ParticipantEvent::Unmuted
                }
                // The tone indicates that the participant stays muted.
                MuteState::ByControl => {
                    self.private_tone = Some(ToneSequence::muted());
                    return;
                }
            };
            reports.push_back(MediaEvent::Participant {
                session: self.session,
                event,
            });
        }
    }

    /// Decodes the next turn, and handles the digits that begin in it.
    pub(super) fn decode_turn(
        &mut self,
        at: Time,
        mute_digits: &[u8],
        reports: &mut VecDeque<MediaEvent>,
    ) {
        let unmuted = self.muted == MuteState::Unmuted && !self.in_lobby;
        let wanted = unmuted && self.side.sends() && self.event_until <= at;
        self.frame.clear();
        let mut digits: SmallVec<[char; 2]> = SmallVec::new();
        let on_digit = &mut |digit| digits.push(digit);
        self.audible = self.decoder.turn(at, wanted, &mut self.frame, on_digit);
        for digit in digits {
            self.on_digit(digit, at, mute_digits, reports);
        }
    }

    /// Whether the inactivity timeout has expired; reported once per period.
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
        Duration::from_millis(REPORT_INTERVAL_MS / 2 + self.entropy.below(REPORT_INTERVAL_MS))
    }

    /// Writes an RTCP report if one is due, and returns the buffer.
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
            if let Some((sender, middle, arrived)) = self.last_report
                && sender == block.ssrc
            {
                let nanos = u128::from(now.since(arrived).as_nanos() as u64);
                block.last_sr = middle;
                block.delay_since_last_sr = ((nanos << 16) / 1_000_000_000) as u32;
            }
            block
        });
        let ssrc = self.stream.ssrc;
        let builder = CompoundBuilder::reusing(buffer);
        let units = self.voice.format.kind().rtp_clock() / 1000;
        let builder = if self.stream.packets == self.reported {
            builder.receiver_report(ssrc, block.as_slice())
        } else {
            // An engine has no wall clock. The local clock serves for round-trip times (RFC 3550 section 4).
            let nanos = u128::from(now.as_nanos());
            let info = SenderInfo {
                ntp: ((nanos << 32) / 1_000_000_000) as u64,
                rtp_timestamp: self.stream.timestamp((clock_ms as u32).wrapping_mul(units)),
                packets: self.stream.packets,
                octets: self.stream.octets,
            };
            self.side.record_sender_report(&info, now);
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
