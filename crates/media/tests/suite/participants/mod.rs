//! Participants for tests of conferences: each sends a tone in a codec and decodes the mix.
#![allow(dead_code)] // Not every test needs everything.

use codec::packet::PacketiserSettings;
use codec::{Format, Kind, Packetiser, Tone, ToneGenerator, Unpacker};
use engine::{DropReason, Forward, MediaPacket, PacketVerdict, SocketId, Time};
use media::conference::{ParticipantPlan, VoiceFormat};
use media::{Forwarder, MediaCommand, SidePlan};
use std::net::SocketAddr;
use wire::rtp::{RtpHeader, RtpView};

/// A participant.
pub struct Participant {
    pub number: u32,
    pub plan: ParticipantPlan,
    pub rate: u32,
    packetiser: Packetiser,
    unpacker: Unpacker,
    tone: Option<ToneGenerator>,
    sequence: u16,
    pub sent: u32,
    /// Received samples since the last clear.
    pub received: Vec<i16>,
    /// Arrival, timestamp, sequence number and marker of received packets.
    pub arrivals: Vec<(Time, u32, u16, bool)>,
    /// Received RTCP.
    pub reports: u32,
    pub noise: u32,
}

pub fn address(number: u32) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4000 + 2 * number as u16))
}

pub fn socket(number: u32) -> SocketId {
    SocketId(70_000 + 2 * number)
}

impl Participant {
    /// In conference 1, with the static payload type of its codec.
    pub fn new(number: u32, kind: Kind, packet_ms: u32, hz: f64) -> Participant {
        let mut voice = VoiceFormat::new(Format::new(kind));
        voice.packet_ms = packet_ms;
        voice.events = Some(101);
        Participant::with(number, voice, hz)
    }

    pub fn with(number: u32, voice: VoiceFormat, hz: f64) -> Participant {
        let kind = voice.format.kind();
        let mut side = SidePlan::new(socket(number));
        side.signalled_rtp = Some(address(number));
        side.mux = true;
        let rate = kind.sample_rates()[0];
        let packing = PacketiserSettings {
            packet_ms: voice.packet_ms,
            suppress_silence: false,
        };
        Participant {
            number,
            plan: ParticipantPlan::new(u64::from(number), 1, side, voice),
            rate,
            packetiser: Packetiser::new(&voice.format, rate, packing).unwrap(),
            unpacker: Unpacker::new(&voice.format, rate, 1).unwrap(),
            tone: (hz > 0.0).then(|| ToneGenerator::new(Tone::sine(hz, -16.0), rate)),
            sequence: 7,
            sent: 0,
            received: Vec::with_capacity(1 << 21),
            arrivals: Vec::with_capacity(1 << 16),
            reports: 0,
            noise: 0,
        }
    }

    pub fn set_tone(&mut self, hz: f64) {
        self.tone = (hz > 0.0).then(|| ToneGenerator::new(Tone::sine(hz, -16.0), self.rate));
    }

    /// Sends the tones of a digit from now on; `None` for silence.
    pub fn sound(&mut self, digit: Option<char>) {
        let tone = digit.map(|digit| Tone::dtmf(digit, -12.0).unwrap());
        self.tone = tone.map(|tone| ToneGenerator::new(tone, self.rate));
    }

    pub fn join(&self, forwarder: &mut Forwarder, now: Time) {
        forwarder.command(
            MediaCommand::AddParticipant(Box::new(self.plan.clone())),
            now,
        );
    }

    /// Generates 10 ms of audio. Completed packets are passed to the forwarder, except those selected by `lost`.
    pub fn speak(
        &mut self,
        forwarder: &mut Forwarder,
        now: Time,
        lost: impl Fn(u32) -> bool,
    ) -> Vec<DropReason> {
        let mut samples = vec![0; (self.rate / 100) as usize];
        if let Some(tone) = &mut self.tone {
            tone.fill(&mut samples);
        }
        let mut drops = Vec::new();
        let (sequence, sent) = (&mut self.sequence, &mut self.sent);
        let payload_type = self.plan.voice.payload_type;
        let number = self.number;
        self.packetiser
            .push(&samples, &mut |packet| {
                let header = RtpHeader {
                    payload_type,
                    sequence: *sequence,
                    timestamp: packet.timestamp,
                    ssrc: number + 100,
                    ..RtpHeader::default()
                };
                *sequence = sequence.wrapping_add(1);
                *sent += 1;
                if lost(*sent) {
                    return;
                }
                let mut bytes = header.packet(packet.payload);
                drops.extend(send(forwarder, number, &mut bytes, now));
            })
            .unwrap();
        drops
    }

    /// Sends a packet of a telephone event.
    pub fn event(&mut self, forwarder: &mut Forwarder, digit: char, timestamp: u32, now: Time) {
        let event = wire::rtp::TelephoneEvent {
            event: wire::rtp::TelephoneEvent::code(digit).unwrap(),
            end: true,
            volume: 10,
            duration: 800,
        };
        let header = RtpHeader {
            payload_type: 101,
            sequence: self.sequence,
            timestamp,
            ssrc: self.number + 100,
            ..RtpHeader::default()
        };
        self.sequence += 1;
        send(
            forwarder,
            self.number,
            &mut header.packet(&event.to_bytes()),
            now,
        );
    }

    /// Receives a packet of the conference.
    pub fn take(&mut self, bytes: &[u8], now: Time) {
        if wire::rtcp::is_rtcp(bytes) {
            assert!(wire::rtcp::is_compound(bytes));
            self.reports += 1;
            return;
        }
        let view = RtpView::parse(bytes).unwrap();
        self.arrivals
            .push((now, view.timestamp(), view.sequence(), view.marker()));
        let payload = view.payload().unwrap();
        if Some(view.payload_type()) == self.plan.voice.noise {
            assert!(self.unpacker.noise(payload));
            self.noise += 1;
            return;
        }
        assert_eq!(view.payload_type(), self.plan.voice.payload_type);
        let mut samples = [0; codec::coder::MAX_SAMPLES];
        let made = self.unpacker.audio(payload, &mut samples).unwrap();
        self.received.extend_from_slice(&samples[..made]);
    }

    /// Level of a frequency in the last half second received, in dB relative to the level of the tones.
    pub fn level(&self, hz: f64) -> f64 {
        let samples = &self.received[self.received.len().saturating_sub(self.rate as usize / 2)..];
        goertzel(samples, hz, self.rate)
    }
}

/// Power of a frequency, in dB against a tone of -16 dBm0.
pub fn goertzel(samples: &[i16], hz: f64, rate: u32) -> f64 {
    let step = core::f64::consts::TAU * hz / f64::from(rate);
    let (mut re, mut im) = (0.0, 0.0);
    for (index, &sample) in samples.iter().enumerate() {
        // A Hann window suppresses neighbouring frequencies.
        let window =
            0.5 - 0.5 * (core::f64::consts::TAU * index as f64 / samples.len() as f64).cos();
        re += window * f64::from(sample) * (step * index as f64).cos();
        im += window * f64::from(sample) * (step * index as f64).sin();
    }
    let amplitude = 4.0 * re.hypot(im) / samples.len().max(1) as f64;
    let reference = 32_767.0 * 10f64.powf((-16.0 - 314.0 / 100.0) / 20.0);
    20.0 * (amplitude.max(1e-3) / reference).log10()
}

fn send(forwarder: &mut Forwarder, number: u32, bytes: &mut [u8], now: Time) -> Option<DropReason> {
    let mut packet = MediaPacket::new(socket(number), address(number), now, bytes);
    match forwarder.forward(&mut packet, now) {
        PacketVerdict::Drop(reason) => Some(reason),
        PacketVerdict::Consumed => None,
        other => panic!("{other:?}"),
    }
}

/// Runs the forwarder until `end` and delivers its packets to `participants`.
pub fn run(forwarder: &mut Forwarder, participants: &mut [Participant], end: Time) {
    while let Some(deadline) = forwarder
        .next_deadline()
        .filter(|deadline| deadline.at <= end)
    {
        forwarder.timeout(deadline.at);
        deliver(forwarder, participants, deadline.at);
    }
}

pub fn deliver(forwarder: &mut Forwarder, participants: &mut [Participant], now: Time) {
    while let Some((from, to, bytes)) = forwarder.next_packet() {
        let participant = participants
            .iter_mut()
            .find(|participant| socket(participant.number) == from)
            .unwrap();
        assert_eq!(to, address(participant.number));
        participant.take(bytes, now);
    }
}

/// All participants send from `from` to `to`, in steps of 10 ms.
pub fn talk(
    forwarder: &mut Forwarder,
    participants: &mut [Participant],
    from: Time,
    to: Time,
    lost: impl Fn(u32) -> bool,
) {
    let mut now = from;
    while now < to {
        run(forwarder, participants, now);
        for participant in &mut *participants {
            participant.speak(forwarder, now, &lost);
        }
        now += core::time::Duration::from_millis(10);
    }
    run(forwarder, participants, to);
}
