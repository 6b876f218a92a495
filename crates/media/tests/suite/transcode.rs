//! Transcoding in the forwarder: resulting packets, losses, late packets, events, RTCP, SRTP.

use codec::format::Format;
use codec::kind::Kind;
use codec::packet::Unpacker;
use engine::{DropReason, Entropy, Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use media::{
    Carriage, EventMapping, Forwarder, ForwarderLimits, Keys, Latching, MediaCommand, Protection,
    SessionPlan, SidePlan, TranscodePlan,
};
use protect::srtp::{ContextLimits, Inbound, MasterKey, Outbound, Suite};
use std::net::SocketAddr;
use std::sync::Arc;
use wire::rtcp::{Compound, CompoundBuilder, ReportBlock, SenderInfo};
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};

pub(crate) const A: SocketId = SocketId(70_000);
pub(crate) const B: SocketId = SocketId(70_001);
const FROM: &str = "192.0.2.1:4000";
const TO: &str = "192.0.2.2:5000";
pub(crate) const EVENT: (u8, u32) = (101, 8000);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// One direction of a line, from codec `from` to codec `to`.
pub(crate) fn plan(
    from: (u8, Kind),
    to: (u8, Kind),
    packet_ms: u32,
    events: EventMapping,
) -> TranscodePlan {
    TranscodePlan {
        from: [(from.0, Format::new(from.1))].into_iter().collect(),
        to: (to.0, Format::new(to.1)),
        packet_ms,
        events: [(EVENT, events)].into_iter().collect(),
        noise: None,
        digits: None,
    }
}

pub(crate) fn session(
    a: Option<TranscodePlan>,
    b: Option<TranscodePlan>,
    keys: Protection,
) -> SessionPlan {
    let mut sides = [SidePlan::new(A), SidePlan::new(B)];
    for (side, (address, transcoding)) in sides.iter_mut().zip([(FROM, a), (TO, b)]) {
        side.mux = true;
        side.signalled_rtp = Some(addr(address));
        side.latching = Latching::Signalled;
        side.transcode = transcoding.map(Arc::new);
    }
    sides[1].protection = keys;
    SessionPlan::single(1, Carriage::Rtp, sides)
}

pub(crate) struct Line {
    pub(crate) forwarder: Forwarder,
    pub(crate) now: Time,
}

/// A packet that was sent: RTP or RTCP.
pub(crate) type Sent = Vec<u8>;

impl Line {
    pub(crate) fn new(plan: SessionPlan) -> Line {
        let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
        forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
        Line {
            forwarder,
            now: Time::from_secs(1),
        }
    }

    /// The packets that are sent for a packet, or the drop reason.
    pub(crate) fn pass(&mut self, socket: SocketId, bytes: &[u8]) -> Result<Vec<Sent>, DropReason> {
        let source = addr(if socket == A { FROM } else { TO });
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len() + MediaPacket::TAILROOM, 0);
        let mut packet = MediaPacket {
            length: bytes.len(),
            ..MediaPacket::new(socket, source, self.now, &mut buffer)
        };
        let verdict = self.forwarder.forward(&mut packet, self.now);
        self.now += core::time::Duration::from_millis(20);
        let mut sent = match verdict {
            PacketVerdict::Forward { .. } => vec![packet.bytes().to_vec()],
            PacketVerdict::Consumed => Vec::new(),
            PacketVerdict::Drop(reason) => return Err(reason),
            other => panic!("{other:?}"),
        };
        while let Some((from, to, bytes)) = self.forwarder.next_packet() {
            assert_eq!(
                (from, to),
                if socket == A {
                    (B, addr(TO))
                } else {
                    (A, addr(FROM))
                }
            );
            sent.push(bytes.to_vec());
        }
        Ok(sent)
    }
}

/// Tone packets of 20 ms in a codec, in sequence.
pub(crate) struct Speaker {
    packets: codec::packet::Packetiser,
    generator: codec::tone::ToneGenerator,
    kind: (u8, Kind),
    pub(crate) sequence: u16,
    pub(crate) start: u32,
}

impl Speaker {
    pub(crate) fn new(kind: (u8, Kind), hertz: f64) -> Speaker {
        let rate = kind.1.sample_rates()[0];
        let format = Format::new(kind.1);
        Speaker {
            packets: codec::packet::Packetiser::new(&format, rate, Default::default()).unwrap(),
            generator: codec::tone::ToneGenerator::new(codec::tone::Tone::sine(hertz, -10.0), rate),
            kind,
            sequence: 65_530,
            start: 0xffff_f000,
        }
    }

    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut samples = vec![0; self.packets.packet_samples()];
        self.generator.fill(&mut samples);
        let mut made = Vec::new();
        let (kind, sequence, start) = (self.kind, self.sequence, self.start);
        self.packets
            .push(&samples, &mut |packet| {
                made = RtpHeader {
                    payload_type: kind.0,
                    ssrc: 7,
                    sequence,
                    timestamp: start.wrapping_add(packet.timestamp),
                    marker: packet.marker,
                    ..RtpHeader::default()
                }
                .packet(packet.payload);
            })
            .unwrap();
        self.sequence = sequence.wrapping_add(1);
        made
    }
}

/// Share of a frequency in the power of samples.
fn share(samples: &[i16], hertz: f64, rate: u32) -> f64 {
    let step = core::f64::consts::TAU * hertz / f64::from(rate);
    let (mut real, mut imaginary, mut all) = (0.0, 0.0, 0.0);
    for (at, &sample) in samples.iter().enumerate() {
        let (sample, angle) = (f64::from(sample), step * at as f64);
        real += sample * angle.cos();
        imaginary += sample * angle.sin();
        all += sample * sample;
    }
    2.0 * (real * real + imaginary * imaginary) / (all * samples.len() as f64)
}

/// The decoded samples of the packets sent; checks their headers, too.
pub(crate) fn decode(sent: &[Sent], kind: (u8, Kind)) -> (Vec<i16>, u32) {
    let format = Format::new(kind.1);
    let rate = kind.1.sample_rates()[0];
    let mut unpacker = Unpacker::new(&format, rate, 1).unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 5760]);
    let mut before: Option<(u16, u32)> = None;
    for packet in sent {
        let view = RtpView::parse(packet).unwrap();
        assert_eq!((view.payload_type(), view.ssrc()), (kind.0, 7));
        if let Some((sequence, timestamp)) = before {
            assert_eq!(view.sequence(), sequence.wrapping_add(1));
            assert_eq!(view.timestamp(), timestamp);
        }
        let count = unpacker
            .audio(view.payload().unwrap(), &mut buffer)
            .unwrap();
        let units = count as u32 * kind.1.rtp_clock() / rate;
        before = Some((view.sequence(), view.timestamp().wrapping_add(units)));
        all.extend_from_slice(&buffer[..count]);
    }
    (all, rate)
}

pub(crate) fn available() -> Vec<(u8, Kind)> {
    [
        (0, Kind::Pcmu),
        (8, Kind::Pcma),
        (9, Kind::G722),
        (18, Kind::G729),
        (111, Kind::Opus),
    ]
    .into_iter()
    .filter(|(_, kind)| kind.is_available())
    .collect()
}

#[test]
fn every_codec_becomes_every_other() {
    for from in available() {
        for to in available().into_iter().filter(|to| *to != from) {
            let transcoding = plan(from, to, 20, EventMapping::Tones);
            let mut line = Line::new(session(Some(transcoding), None, Protection::None));
            let mut speaker = Speaker::new(from, 600.0);
            let mut sent = Vec::new();
            for _ in 0..50 {
                sent.extend(line.pass(A, &speaker.next()).unwrap());
            }
            // The resampler may retain a part of a packet.
            assert!(
                (48..=50).contains(&sent.len()),
                "{from:?} {to:?} {}",
                sent.len()
            );
            let (samples, rate) = decode(&sent, to);
            // Without the settling of codecs at the beginning.
            let settled = &samples[samples.len() / 5..];
            let found = share(settled, 600.0, rate);
            assert!(found > 0.8, "{from:?} {to:?}: {found}");
            let stats = line.forwarder.stats(1).unwrap();
            assert_eq!(stats.flows[0].sides[0].received.packets, 50);
            assert_eq!(stats.flows[0].sides[1].sent.packets, sent.len() as u64);
        }
    }
}

#[test]
fn packet_time_is_the_receivers() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    for (packet_ms, expected) in [(10, 60), (20, 30), (30, 20), (60, 10)] {
        let transcoding = plan(from, to, packet_ms, EventMapping::Tones);
        let mut line = Line::new(session(Some(transcoding), None, Protection::None));
        let mut speaker = Speaker::new(from, 600.0);
        let mut sent = Vec::new();
        for _ in 0..30 {
            sent.extend(line.pass(A, &speaker.next()).unwrap());
        }
        assert_eq!(sent.len(), expected, "{packet_ms} ms");
        decode(&sent, to);
    }
}

#[test]
fn losses_are_concealed_and_late_packets_dropped() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let transcoding = plan(from, to, 20, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let packets: Vec<Vec<u8>> = (0..20).map(|_| speaker.next()).collect();
    let mut sent = Vec::new();
    for (at, packet) in packets.iter().enumerate() {
        if at != 7 && at != 8 {
            sent.extend(line.pass(A, packet).unwrap());
        }
    }
    assert_eq!(sent.len(), 20, "two packets are concealed");
    decode(&sent, to);
    assert_eq!(line.pass(A, &packets[8]), Err(DropReason::MediaTooLate));
    assert_eq!(line.pass(A, &packets[19]), Err(DropReason::MediaTooLate));
}

#[test]
fn suppressed_silence_advances_the_timestamp() {
    let (from, to) = ((0, Kind::Pcmu), (9, Kind::G722));
    let transcoding = plan(from, to, 20, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let first = line.pass(A, &speaker.next()).unwrap();
    // Half a second without packets: sequence numbers continue, the timestamp jumps.
    for _ in 0..25 {
        speaker.next();
    }
    speaker.sequence = 65_531;
    let second = line.pass(A, &speaker.next()).unwrap();
    let views = [&first[0], &second[0]].map(|packet| RtpView::parse(packet).unwrap());
    assert_eq!(views[1].sequence(), views[0].sequence().wrapping_add(1));
    let passed = views[1].timestamp().wrapping_sub(views[0].timestamp());
    assert_eq!(passed, 26 * 160);
    assert!(views[1].marker());
}

#[test]
fn payload_types_outside_the_plan_are_dropped() {
    let transcoding = plan((0, Kind::Pcmu), (8, Kind::Pcma), 20, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut stranger = Speaker::new((9, Kind::G722), 600.0);
    assert_eq!(
        line.pass(A, &stranger.next()),
        Err(DropReason::MediaNotTranscoded)
    );
    let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
    assert_eq!(line.pass(A, &speaker.next()).unwrap().len(), 1);
    // A source that changes with every packet must not create a codec each time.
    let mut other = speaker.next();
    other[8] = 1;
    assert_eq!(line.pass(A, &other), Err(DropReason::MediaNotTranscoded));
    // The other direction has no plan and is relayed unchanged.
    let back = stranger.next();
    assert_eq!(line.pass(B, &back).unwrap(), vec![back]);
}

#[test]
fn packet_longer_than_240_ms_is_dropped() {
    let plan = plan((8, Kind::Pcma), (0, Kind::Pcmu), 10, EventMapping::Tones);
    let mut line = Line::new(session(Some(plan), None, Protection::default()));
    let packet = |sequence: u16, timestamp: u32, octets: usize| {
        let mut bytes = vec![0x80, 8];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(timestamp.to_be_bytes());
        bytes.extend(7_u32.to_be_bytes());
        bytes.resize(bytes.len() + octets, 0xd5);
        bytes
    };
    assert_eq!(line.pass(A, &packet(1, 0, 1_920)).unwrap().len(), 24);
    let longer = line.pass(A, &packet(2, 1_920, 1_921));
    assert_eq!(longer.unwrap_err(), DropReason::MediaNotTranscoded);
    // The next packet finds the dropped one concealed, and audio continues.
    assert!(!line.pass(A, &packet(3, 2_080, 160)).unwrap().is_empty());
}

pub(crate) fn event(sequence: u16, timestamp: u32, duration: u16, end: bool) -> Vec<u8> {
    RtpHeader {
        payload_type: EVENT.0,
        ssrc: 7,
        sequence,
        timestamp,
        marker: duration == 160,
        ..RtpHeader::default()
    }
    .packet(
        &TelephoneEvent {
            event: 5,
            end,
            volume: 10,
            duration,
        }
        .to_bytes(),
    )
}

#[test]
fn event_packet_adds_one_second_of_tone_at_most() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let transcoding = plan(from, to, 10, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    line.pass(A, &speaker.next()).unwrap();
    let begin = speaker.start.wrapping_add(160);
    // 65,535 units at 8,000 Hz are 8.2 s.
    let sent = line.pass(A, &event(65_531, begin, u16::MAX, false));
    assert_eq!(sent.unwrap().len(), 100);
}

#[test]
fn events_are_relayed_in_the_other_clock_rate() {
    let to = (111, Kind::Opus);
    let transcoding = plan(
        (0, Kind::Pcmu),
        to,
        20,
        EventMapping::Relayed((110, 48_000)),
    );
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
    let first = line.pass(A, &speaker.next()).unwrap();
    let first = RtpView::parse(&first[0]).unwrap().timestamp();
    let begin = speaker.start.wrapping_add(160);
    let mut seen = Vec::new();
    for (count, (duration, end)) in [(160, false), (320, false), (480, true), (480, true)]
        .into_iter()
        .enumerate()
    {
        let sequence = 65_531u16.wrapping_add(count as u16);
        let sent = line
            .pass(A, &event(sequence, begin, duration, end))
            .unwrap();
        let view = RtpView::parse(&sent[0]).unwrap();
        assert_eq!(view.payload_type(), 110);
        assert_eq!(view.timestamp(), first.wrapping_add(960));
        seen.push(TelephoneEvent::parse(view.payload().unwrap()).unwrap());
    }
    let durations: Vec<u16> = seen.iter().map(|event| event.duration).collect();
    assert_eq!(durations, [960, 1920, 2880, 2880]);
    assert!(seen.iter().all(|event| event.event == 5) && seen[3].end);
}

#[test]
fn events_become_tones_without_events_on_the_other_side() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let mut line = Line::new(session(
        Some(plan(from, to, 20, EventMapping::Tones)),
        None,
        Protection::None,
    ));
    let mut speaker = Speaker::new(from, 600.0);
    let mut sent = line.pass(A, &speaker.next()).unwrap();
    let begin = speaker.start.wrapping_add(160);
    for count in 0..8u16 {
        let duration = 160 * (count + 1);
        let sequence = 65_531u16.wrapping_add(count);
        let end = count >= 5;
        let packet = event(sequence, begin, duration.min(960), end);
        sent.extend(line.pass(A, &packet).unwrap());
    }
    // 120 ms of the digit 5: 770 and 1336 Hz.
    let (samples, rate) = decode(&sent, to);
    assert_eq!(samples.len(), 160 + 960);
    let tone = &samples[160..];
    let (low, high) = (share(tone, 770.0, rate), share(tone, 1336.0, rate));
    assert!(low > 0.2 && high > 0.2 && low + high > 0.7, "{low} {high}");
    // Audio continues behind it at the present time of its clock.
    for _ in 0..6 {
        speaker.next();
    }
    speaker.sequence = 65_531u16.wrapping_add(8);
    let next = line.pass(A, &speaker.next()).unwrap();
    let (last, next) = (sent.last().unwrap(), &next[0]);
    let (last, next) = (RtpView::parse(last).unwrap(), RtpView::parse(next).unwrap());
    assert_eq!(next.timestamp().wrapping_sub(last.timestamp()), 160);
    assert_eq!(next.sequence(), last.sequence().wrapping_add(1));
}

#[test]
fn rtcp_is_rewritten_for_its_receiver() {
    let (a, b) = ((0, Kind::Pcmu), (111, Kind::Opus));
    let mut line = Line::new(session(
        Some(plan(a, b, 20, EventMapping::Tones)),
        Some(plan(b, a, 20, EventMapping::Tones)),
        Protection::None,
    ));
    let mut speaker = Speaker::new(a, 600.0);
    let mut last = Vec::new();
    for _ in 0..10 {
        last = line.pass(A, &speaker.next()).unwrap();
    }
    let last = RtpView::parse(&last[0]).unwrap().timestamp();
    let info = SenderInfo {
        ntp: 77 << 32,
        rtp_timestamp: speaker.start.wrapping_add(9 * 160 + 80),
        packets: 10,
        octets: 1600,
    };
    let report = CompoundBuilder::new()
        .sender_report(7, &info, &[])
        .cname(7, "a@b")
        .finish();
    let sent = line.pass(A, &report).unwrap();
    let reported = Compound::new(&sent[0])
        .next()
        .unwrap()
        .sender_info()
        .unwrap();
    assert_eq!(
        reported.rtp_timestamp,
        last.wrapping_add(480),
        "timestamp half a packet later"
    );
    assert_eq!((reported.ntp, reported.packets), (77 << 32, 10));
    assert_ne!(reported.octets, 1600);
    // The receiver's report about it, in the other direction.
    let block = ReportBlock {
        ssrc: 7,
        fraction_lost: 3,
        cumulative_lost: 2,
        highest_sequence: 9,
        jitter: 4800,
        last_sr: 5,
        delay_since_last_sr: 6,
    };
    let report = CompoundBuilder::new()
        .receiver_report(8, &[block])
        .cname(8, "b@a")
        .finish();
    let sent = line.pass(B, &report).unwrap();
    let part = Compound::new(&sent[0]).next().unwrap();
    let reported = part.reports().next().unwrap();
    assert_eq!(
        reported.highest_sequence,
        65_530 + 9,
        "extended by its cycle"
    );
    assert_eq!(reported.jitter, 800, "in the clock rate of the receiver");
    assert_eq!(
        (
            reported.fraction_lost,
            reported.cumulative_lost,
            reported.last_sr
        ),
        (3, 2, 5)
    );
}

#[test]
fn transcoded_packets_are_protected() {
    let to = (8, Kind::Pcma);
    let transcoding = plan((0, Kind::Pcmu), to, 10, EventMapping::Tones);
    let (protection, mut inbound) = srtp_keys();
    let mut line = Line::new(session(Some(transcoding), None, protection));
    let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
    let mut opened = Vec::new();
    for _ in 0..5 {
        for mut packet in line.pass(A, &speaker.next()).unwrap() {
            let length = inbound.unprotect_rtp(&mut packet).unwrap();
            packet.truncate(length);
            opened.push(packet);
        }
    }
    assert_eq!(opened.len(), 10);
    decode(&opened, to);
}

fn master_key(number: u64) -> MasterKey {
    MasterKey::generate(
        Suite::AesCm128HmacSha1_80,
        &mut Entropy::from_number(number),
    )
}

/// Keys of a side, and the context that opens its packets.
fn srtp_keys() -> (Protection, Inbound) {
    let keys = Keys {
        association: 0,
        local: master_key(1),
        remote: vec![master_key(2)],
        window: 0,
    };
    let inbound = Inbound::new(&master_key(1), ContextLimits::default()).unwrap();
    (Protection::Srtp(Arc::new(keys)), inbound)
}

/// Transcoding from PCMU to PCMA begins and ends within a call whose other side has SRTP.
struct ChangingLine {
    line: Line,
    protection: Protection,
    inbound: Inbound,
    /// Numbers of the packets that the other side has opened.
    opened: Vec<u16>,
}

impl ChangingLine {
    fn new() -> ChangingLine {
        let (protection, inbound) = srtp_keys();
        ChangingLine {
            line: Line::new(ChangingLine::plan(None, &protection)),
            protection,
            inbound,
            opened: Vec::new(),
        }
    }

    fn plan(transcoding: Option<TranscodePlan>, protection: &Protection) -> SessionPlan {
        let mut plan = session(transcoding, None, protection.clone());
        for side in &mut plan.flows[0].sides {
            side.plain_rtcp = true;
        }
        plan
    }

    fn change(&mut self, transcodes: bool) {
        let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
        let transcoding = transcodes.then(|| plan(from, to, 10, EventMapping::Tones));
        let plan = ChangingLine::plan(transcoding, &self.protection);
        let command = MediaCommand::Update(Box::new(plan));
        self.line.forwarder.command(command, self.line.now);
    }

    /// Passes packets of a source.
    fn speak(&mut self, speaker: &mut Speaker, ssrc: u32, packets: usize) {
        for _ in 0..packets {
            let mut packet = speaker.next();
            packet[8..12].copy_from_slice(&ssrc.to_be_bytes());
            let sent = self.line.pass(A, &packet).unwrap();
            assert!(!sent.is_empty(), "after {:?}", self.opened.last());
            for mut packet in sent {
                let length = self.inbound.unprotect_rtp(&mut packet).unwrap();
                let view = RtpView::parse(&packet[..length]).unwrap();
                assert_eq!(view.ssrc(), ssrc);
                self.opened.push(view.sequence());
            }
        }
    }

    /// The numbers since the last call, which follow each other.
    fn numbers(&mut self) -> (u16, u16) {
        let numbers = std::mem::take(&mut self.opened);
        let follow = |pair: &[u16]| pair[1] == pair[0].wrapping_add(1);
        assert!(numbers.windows(2).all(follow), "{numbers:?}");
        (numbers[0], *numbers.last().unwrap())
    }
}

#[test]
fn sequence_numbers_continue_when_transcoding_begins_and_ends() {
    for first in [20_000, 40_000, 65_530] {
        let mut call = ChangingLine::new();
        let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
        speaker.sequence = first;
        for (transcodes, packets) in [(false, 10), (true, 10), (false, 10), (true, 10), (false, 1)]
        {
            call.change(transcodes);
            call.speak(&mut speaker, 7, packets);
        }
        // Of 10 packets of 20 ms, 20 of 10 ms were made.
        let last = first.wrapping_add(10 + 20 + 10 + 20);
        assert_eq!(call.numbers(), (first, last));
        let drops = call.line.forwarder.stats(1).unwrap().flows[0].sides[1]
            .drops
            .clone();
        assert_eq!(drops, []);
        // A report of the other side has the sender's numbers.
        let block = ReportBlock {
            ssrc: 7,
            highest_sequence: u32::from(last) - 1,
            ..ReportBlock::default()
        };
        let report = CompoundBuilder::new()
            .receiver_report(8, &[block])
            .cname(8, "b@a")
            .finish();
        let mut bytes = report.clone();
        bytes.resize(report.len() + MediaPacket::TAILROOM, 0);
        let mut outbound = Outbound::new(&master_key(2), ContextLimits::default()).unwrap();
        let length = outbound.protect_rtcp(&mut bytes, report.len()).unwrap();
        let sent = call.line.pass(B, &bytes[..length]).unwrap();
        let part = Compound::new(&sent[0]).next().unwrap();
        let reported = part.reports().next().unwrap().highest_sequence;
        assert_eq!(reported as u16, speaker.sequence.wrapping_sub(2));
    }
}

#[test]
fn each_source_has_its_own_sequence_numbers() {
    let mut call = ChangingLine::new();
    let mut speakers = [(7, 20_000), (8, 60_000)].map(|(ssrc, first)| {
        let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
        speaker.sequence = first;
        (ssrc, speaker, first)
    });
    // Changes of the codec may be 100 ms apart.
    for transcodes in [false, true, true, false, true] {
        call.change(transcodes);
        for (ssrc, speaker, expected) in &mut speakers {
            call.speak(speaker, *ssrc, 10);
            let (first, last) = call.numbers();
            assert_eq!(first, *expected);
            *expected = last.wrapping_add(1);
        }
    }
}

#[test]
fn transcoded_stream_begins_with_the_number_of_its_sender() {
    let mut call = ChangingLine::new();
    call.change(true);
    let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
    speaker.sequence = 31_000;
    call.speak(&mut speaker, 7, 5);
    assert_eq!(call.numbers(), (31_000, 31_009));
}

/// A sender without telephone events, whose digits are converted to events if the other side has them.
fn listening(from: (u8, Kind), to: (u8, Kind), digits: Option<(u8, u32)>) -> TranscodePlan {
    TranscodePlan {
        events: Default::default(),
        digits,
        ..plan(from, to, 20, EventMapping::Tones)
    }
}

/// The packets sent while a caller without telephone events entered digits: speech at -10 dBm0, digits with pauses of
/// 600 Hz between them.
fn send_digits(
    from: (u8, Kind),
    to: (u8, Kind),
    events: (u8, u32),
    keys: &[(char, u32)],
    digits: bool,
) -> Vec<Sent> {
    let transcoding = listening(from, to, digits.then_some(events));
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let rate = from.1.sample_rates()[0];
    let mut sent = Vec::new();
    for (key, milliseconds) in keys {
        for (tone, milliseconds) in [
            (codec::tone::Tone::sine(600.0, -10.0), 200),
            (codec::tone::Tone::dtmf(*key, -10.0).unwrap(), *milliseconds),
        ] {
            speaker.generator = codec::tone::ToneGenerator::new(tone, rate);
            for _ in 0..milliseconds / 20 {
                sent.extend(line.pass(A, &speaker.next()).unwrap());
            }
        }
    }
    speaker.generator =
        codec::tone::ToneGenerator::new(codec::tone::Tone::sine(600.0, -10.0), rate);
    for _ in 0..10 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    sent
}

/// Events by their timestamps: code, durations, number of end packets, marker of the first.
type Event = (u8, Vec<u16>, usize, bool);

/// Separates events and audio; sequence numbers must continue across both.
fn split_events(sent: &[Sent], events: (u8, u32), speech: u8) -> (Vec<(u32, Event)>, Vec<Sent>) {
    let (mut reported, mut audio): (Vec<(u32, Event)>, _) = (Vec::new(), Vec::new());
    let mut next = None;
    for packet in sent {
        let view = RtpView::parse(packet).unwrap();
        assert!(next.is_none_or(|next| view.sequence() == next));
        next = Some(view.sequence().wrapping_add(1));
        if view.payload_type() == speech {
            audio.push(packet.clone());
            continue;
        }
        assert_eq!((view.payload_type(), view.ssrc()), (events.0, 7));
        let event = TelephoneEvent::parse(view.payload().unwrap()).unwrap();
        assert!((8..=12).contains(&event.volume), "{}", event.volume);
        let known = reported.iter_mut().find(|(at, _)| *at == view.timestamp());
        match known {
            Some((_, (code, durations, ends, _))) => {
                assert_eq!(*code, event.event);
                assert!(*ends == 0 || event.end, "no event packet follows the end");
                durations.push(event.duration);
                *ends += usize::from(event.end);
            }
            None => reported.push((
                view.timestamp(),
                (
                    event.event,
                    vec![event.duration],
                    usize::from(event.end),
                    view.marker(),
                ),
            )),
        }
    }
    (reported, audio)
}

pub(crate) fn digits_in(packets: &[Sent], kind: Kind) -> Vec<char> {
    let rate = kind.sample_rates()[0];
    let mut unpacker = Unpacker::new(&Format::new(kind), rate, 1).unwrap();
    let mut detector = codec::dtmf::Detector::new(rate);
    let (mut digits, mut buffer) = (Vec::new(), vec![0; 5760]);
    for packet in packets {
        let view = RtpView::parse(packet).unwrap();
        let count = unpacker
            .audio(view.payload().unwrap(), &mut buffer)
            .unwrap();
        detector.push(&buffer[..count], &mut |event| {
            if let codec::dtmf::DetectorEvent::Begin { digit, .. } = event {
                digits.push(digit);
            }
        });
    }
    digits
}

#[test]
fn digits_in_audio_become_events_of_the_other_side() {
    let keys = [('1', 100), ('5', 60), ('#', 40), ('D', 200)];
    for from in available() {
        // G.729 distorts digits too much.
        for to in available().into_iter().filter(|to| *to != from) {
            if from.1 == Kind::G729 {
                continue;
            }
            let clock = to.1.rtp_clock();
            let events = (101, clock);
            let sent = send_digits(from, to, events, &keys, true);
            let (reported, audio) = split_events(&sent, events, to.0);
            let codes: Vec<u8> = reported.iter().map(|(_, event)| event.0).collect();
            assert_eq!(codes, [1, 5, 11, 15], "{from:?} {to:?}");
            for ((_, (_, durations, ends, marker)), (key, milliseconds)) in
                reported.iter().zip(keys)
            {
                assert!(*marker && *ends == 3, "{key}: {ends} ends");
                assert!(durations.is_sorted(), "{durations:?}");
                let last = u32::from(*durations.last().unwrap()) * 1_000 / clock;
                let off = last.abs_diff(milliseconds);
                assert!(off <= 25, "{from:?} {to:?} {key}: {last} ms");
            }
            assert_eq!(digits_in(&audio, to.1), [], "{from:?} {to:?}");
            // Audio is replaced by events only.
            let most = sent.len() - 4 * 3;
            assert!(
                audio.len() < most && audio.len() >= most - 24,
                "{} of {most}",
                audio.len()
            );
        }
    }
}

#[test]
fn digits_remain_audio_without_events() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let sent = send_digits(from, to, EVENT, &[('1', 100), ('5', 60)], false);
    let (reported, audio) = split_events(&sent, EVENT, to.0);
    assert!(reported.is_empty());
    assert_eq!(digits_in(&audio, to.1), ['1', '5']);
}

/// At 48,000 Hz an event can state 1.36 s (RFC 4733 section 2.5.1.3).
#[test]
fn long_digit_continues_in_segments() {
    let (from, to) = ((0, Kind::Pcmu), (111, Kind::Opus));
    if !to.1.is_available() {
        println!("skipped: built without Opus");
        return;
    }
    let events = (110, 48_000);
    let sent = send_digits(from, to, events, &[('7', 3_000)], true);
    let (reported, _) = split_events(&sent, events, to.0);
    assert_eq!(reported.len(), 3, "{reported:?}");
    let (mut all, mut at) = (0, reported[0].0);
    for (count, (timestamp, (code, durations, ends, marker))) in reported.iter().enumerate() {
        assert_eq!((*code, *timestamp), (7, at));
        assert_eq!(
            (*marker, *ends),
            (count == 0, if count == 2 { 3 } else { 0 })
        );
        let last = *durations.last().unwrap();
        assert!(count == 2 || last == u16::MAX);
        at = at.wrapping_add(u32::from(last));
        all += u32::from(last);
    }
    assert!((all / 48).abs_diff(3_000) <= 25, "{all}");
}

/// A packet lost within a digit does not split the digit.
#[test]
fn loss_within_a_digit_is_no_pause() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let transcoding = listening(from, to, Some(EVENT));
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let mut sent = Vec::new();
    for at in 0..40 {
        if at == 10 || at == 25 {
            let tone = match at {
                10 => codec::tone::Tone::dtmf('9', -10.0).unwrap(),
                _ => codec::tone::Tone::sine(600.0, -10.0),
            };
            speaker.generator = codec::tone::ToneGenerator::new(tone, 8_000);
        }
        let packet = speaker.next();
        if at != 17 {
            sent.extend(line.pass(A, &packet).unwrap());
        }
    }
    let (reported, _) = split_events(&sent, EVENT, to.0);
    let codes: Vec<u8> = reported.iter().map(|(_, event)| event.0).collect();
    assert_eq!(codes, [9]);
}

/// A sender whose clock jumps during a digit does not cause a flood of segments.
#[test]
fn clock_jump_ends_a_digit() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    for jump in [8_000, 1 << 24, 1 << 30, 0x7fff_0000u32] {
        let transcoding = listening(from, to, Some(EVENT));
        let mut line = Line::new(session(Some(transcoding), None, Protection::None));
        let mut speaker = Speaker::new(from, 600.0);
        let tone = codec::tone::Tone::dtmf('9', -10.0).unwrap();
        speaker.generator = codec::tone::ToneGenerator::new(tone, 8_000);
        let mut sent = Vec::new();
        for at in 0..20 {
            if at == 10 {
                speaker.start = speaker.start.wrapping_add(jump);
            }
            let made = line.pass(A, &speaker.next()).unwrap();
            assert!(made.len() <= 2, "{jump}: {}", made.len());
            sent.extend(made);
        }
        let (reported, _) = split_events(&sent, EVENT, to.0);
        let ends: Vec<usize> = reported.iter().map(|(_, event)| event.2).collect();
        assert_eq!(ends, [3, 0], "{jump}: {reported:?}");
    }
}

/// Digit detection does not change speech.
#[test]
fn digit_detection_leaves_speech_unchanged() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    for voice in [codec::speech::speech(), codec::speech::answer()] {
        let lines = [None, Some(EVENT)].map(|digits| {
            let transcoding = listening(from, to, digits);
            Line::new(session(Some(transcoding), None, Protection::None))
        });
        let sent = lines.map(|mut line| {
            let mut packets =
                codec::packet::Packetiser::new(&Format::new(from.1), 8_000, Default::default())
                    .unwrap();
            let (mut sequence, mut sent) = (0, Vec::new());
            packets
                .push(voice, &mut |packet| {
                    let packet = RtpHeader {
                        payload_type: from.0,
                        ssrc: 7,
                        sequence,
                        timestamp: packet.timestamp,
                        ..RtpHeader::default()
                    }
                    .packet(packet.payload);
                    sequence += 1;
                    sent.extend(line.pass(A, &packet).unwrap());
                })
                .unwrap();
            sent
        });
        assert!(sent[0].len() > 100);
        let different = sent[0].iter().zip(&sent[1]).filter(|(a, b)| a != b).count();
        assert_eq!((different, sent[0].len()), (0, sent[1].len()));
    }
}
