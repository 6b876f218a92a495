//! Transcoded streams that restart, with long and short events, and with redundancy for losses.

use crate::transcode::{
    A, B, Line, Sent, Speaker, available, decode, digits_in, event, plan, session,
};

use codec::format::Format;
use codec::kind::Kind;
use engine::{DropReason, Forward};
use media::{EventMapping, MediaCommand, Protection};
use wire::rtcp::{Compound, CompoundBuilder, ReportBlock, SenderInfo};
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};

/// A phone begins its numbers and timestamps again under the same source: two packets in sequence are a new sequence.
#[test]
fn restarted_sequence_is_transcoded() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let transcoding = plan(from, to, 20, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let mut sent = Vec::new();
    for _ in 0..200 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    let mut speaker = Speaker::new(from, 600.0);
    assert_eq!(line.pass(A, &speaker.next()), Err(DropReason::MediaTooLate));
    for _ in 1..100 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    assert_eq!(sent.len(), 299);
    // Numbers and timestamps continue.
    decode(&sent, to);
}

/// From 8 to 48 kHz a duration is six times longer, and no longer fits into its field after 1.37 s.
#[test]
fn long_relayed_event_continues_in_segments() {
    let to = (111, Kind::Opus);
    let relayed = EventMapping::Relayed((110, 48_000));
    let transcoding = plan((0, Kind::Pcmu), to, 20, relayed);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new((0, Kind::Pcmu), 600.0);
    line.pass(A, &speaker.next()).unwrap();
    let begin = speaker.start.wrapping_add(160);
    let mut durations: Vec<(u32, u16)> = Vec::new();
    for count in 0..102u16 {
        let (duration, end) = (160 * (count + 1).min(100), count >= 99);
        let packet = event(65_531u16.wrapping_add(count), begin, duration, end);
        for sent in line.pass(A, &packet).unwrap() {
            let view = RtpView::parse(&sent).unwrap();
            let sent = TelephoneEvent::parse(view.payload().unwrap()).unwrap();
            match durations.last_mut() {
                Some(last) if last.0 == view.timestamp() => last.1 = sent.duration,
                _ => durations.push((view.timestamp(), sent.duration)),
            }
        }
    }
    assert_eq!(durations.len(), 2, "{durations:?}");
    assert_eq!(durations[1].0.wrapping_sub(durations[0].0), 65_535);
    let sum: u32 = durations.iter().map(|segment| u32::from(segment.1)).sum();
    assert_eq!(sum, 96_000);
}

/// A digit of one packet gets the duration and the pause that receivers need (ITU-T Q.24).
#[test]
fn shortest_event_becomes_a_detectable_tone() {
    for to in available()
        .into_iter()
        .filter(|to| to.1.spec().carries_tones)
    {
        let from = (0, Kind::Pcmu);
        if to == from {
            continue;
        }
        let transcoding = plan(from, to, 20, EventMapping::Tones);
        let mut line = Line::new(session(Some(transcoding), None, Protection::None));
        let mut speaker = Speaker::new(from, 600.0);
        let mut sent = Vec::new();
        for _ in 0..5 {
            sent.extend(line.pass(A, &speaker.next()).unwrap());
        }
        let begin = speaker.start.wrapping_add(5 * 160);
        let packet = event(speaker.sequence, begin, 160, true);
        sent.extend(line.pass(A, &packet).unwrap());
        speaker.sequence = speaker.sequence.wrapping_add(1);
        speaker.start = speaker.start.wrapping_add(160);
        for _ in 0..10 {
            sent.extend(line.pass(A, &speaker.next()).unwrap());
        }
        assert_eq!(digits_in(&sent, to.1), ['5'], "{to:?}");
    }
}

/// A sender may send audio beside the events of the same time (RFC 4733): the tone takes its place.
#[test]
fn audio_beside_events_is_replaced_by_the_tone() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    for event_first in [false, true] {
        let transcoding = plan(from, to, 20, EventMapping::Tones);
        let mut line = Line::new(session(Some(transcoding), None, Protection::None));
        let mut speaker = Speaker::new(from, 600.0);
        let mut sent = Vec::new();
        for _ in 0..5 {
            sent.extend(line.pass(A, &speaker.next()).unwrap());
        }
        let begin = speaker.start.wrapping_add(5 * 160);
        let press = |speaker: &mut Speaker, count: u16| {
            let packet = event(speaker.sequence, begin, 160 * count.min(6), count >= 6);
            speaker.sequence = speaker.sequence.wrapping_add(1);
            packet
        };
        for count in 1..=6 {
            let packets = match event_first {
                true => [press(&mut speaker, count), speaker.next()],
                false => [speaker.next(), press(&mut speaker, count)],
            };
            for packet in packets {
                sent.extend(line.pass(A, &packet).unwrap());
            }
        }
        for count in 7..=8 {
            let repeated = press(&mut speaker, count);
            sent.extend(line.pass(A, &repeated).unwrap());
        }
        for _ in 0..10 {
            sent.extend(line.pass(A, &speaker.next()).unwrap());
        }
        assert_eq!(digits_in(&sent, to.1), ['5']);
        // As much audio as the time has.
        assert_eq!(decode(&sent, to).0.len(), (5 + 6 + 10) * 160);
    }
}

/// A digit after a pause of the sender: the packets behind it keep their time.
#[test]
fn pause_before_an_event_advances_the_timestamp() {
    let (from, to) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let transcoding = plan(from, to, 20, EventMapping::Tones);
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let mut speaker = Speaker::new(from, 600.0);
    let first = line.pass(A, &speaker.next()).unwrap();
    // Five seconds without packets, and a digit of 120 ms.
    let begin = speaker.start.wrapping_add(40_160);
    let mut sent = Vec::new();
    for count in 1..=6 {
        let packet = event(speaker.sequence, begin, 160 * count, count == 6);
        speaker.sequence = speaker.sequence.wrapping_add(1);
        sent.extend(line.pass(A, &packet).unwrap());
    }
    speaker.start = begin.wrapping_add(960).wrapping_sub(160);
    sent.extend(line.pass(A, &speaker.next()).unwrap());
    let times: Vec<u32> = first
        .iter()
        .chain(&sent)
        .map(|packet| RtpView::parse(packet).unwrap().timestamp())
        .collect();
    let since: Vec<u32> = times
        .iter()
        .map(|time| time.wrapping_sub(times[0]))
        .collect();
    let expected: Vec<u32> = core::iter::once(0)
        .chain((0..7).map(|packet| 40_160 + packet * 160))
        .collect();
    assert_eq!(since, expected);
}

/// Losses before us are concealed here; the sender learns of them together with those behind us.
#[test]
fn reports_have_the_losses_of_both_ways() {
    let (a, b) = ((0, Kind::Pcmu), (8, Kind::Pcma));
    let mut line = Line::new(session(
        Some(plan(a, b, 20, EventMapping::Tones)),
        Some(plan(b, a, 20, EventMapping::Tones)),
        Protection::None,
    ));
    let mut speaker = Speaker::new(a, 600.0);
    // In each interval a quarter of the packets to the receiver is lost.
    let mut cumulative_lost = 0;
    for (lost, expected) in [(10, (112, 20)), (0, (64, 30)), (29, (203, 69))] {
        for packet in 0..40 {
            let sent = speaker.next();
            if !(10..10 + lost).contains(&packet) {
                line.pass(A, &sent).unwrap();
            }
        }
        cumulative_lost += 10;
        let block = ReportBlock {
            ssrc: 7,
            fraction_lost: 64,
            cumulative_lost,
            highest_sequence: 1,
            ..ReportBlock::default()
        };
        let report = CompoundBuilder::new()
            .receiver_report(8, &[block])
            .cname(8, "b@a")
            .finish();
        let sent = line.pass(B, &report).unwrap();
        let block = Compound::new(&sent[0]).next().unwrap();
        let block = block.reports().next().unwrap();
        let (fraction, cumulative) = expected;
        assert!(block.fraction_lost.abs_diff(fraction) < 8, "{block:?}");
        assert!(block.cumulative_lost.abs_diff(cumulative) <= 1, "{block:?}");
    }
}

/// Packets of speech at 8 kHz in a codec, in sequence.
fn speech_packets(kind: (u8, Kind), count: usize) -> Vec<Vec<u8>> {
    let format = Format::new(kind.1);
    let mut packets = codec::packet::Packetiser::new(&format, 8_000, Default::default()).unwrap();
    let mut made = Vec::new();
    for (index, samples) in codec::speech::speech()
        .chunks_exact(160)
        .take(count)
        .enumerate()
    {
        packets
            .push(samples, &mut |packet| {
                let header = RtpHeader {
                    payload_type: kind.0,
                    ssrc: 7,
                    sequence: index as u16,
                    timestamp: packet.timestamp,
                    ..RtpHeader::default()
                };
                made.push(header.packet(packet.payload));
            })
            .unwrap();
    }
    made
}

/// RFC 7587 section 3.3: redundancy is sent if the receiver asks for it and reports losses.
#[test]
fn reported_loss_adds_redundancy_and_recovers_a_packet() {
    let (from, to) = ((9, Kind::G722), (111, Kind::Opus));
    if !to.1.is_available() {
        return;
    }
    let mut transcoding = plan((0, Kind::Pcmu), to, 20, EventMapping::Tones);
    transcoding.to.1 = Format::parse(Kind::Opus, Some(b"useinbandfec=1"));
    let mut line = Line::new(session(Some(transcoding), None, Protection::None));
    let redundant = |packets: &[Sent]| {
        let views = packets.iter().map(|packet| RtpView::parse(packet).unwrap());
        views
            .filter(|view| codec::opus::has_redundancy(view.payload().unwrap()))
            .count()
    };
    let packets = speech_packets((0, Kind::Pcmu), 200);
    let mut sent = Vec::new();
    for packet in &packets[..100] {
        sent.extend(line.pass(A, packet).unwrap());
    }
    assert_eq!(redundant(&sent), 0);
    let block = ReportBlock {
        ssrc: 7,
        fraction_lost: 51,
        ..ReportBlock::default()
    };
    let report = CompoundBuilder::new()
        .receiver_report(8, &[block])
        .cname(8, "b@a")
        .finish();
    line.pass(B, &report).unwrap();
    let mut protected = Vec::new();
    for packet in &packets[100..] {
        protected.extend(line.pass(A, packet).unwrap());
    }
    let count = redundant(&protected);
    assert!(count > 20, "{count} of {}", protected.len());
    // A packet that is lost on its way to a transcoder is recovered from the next one.
    let at = (10..protected.len() - 1).find(|&at| redundant(&protected[at + 1..at + 2]) == 1);
    let lost = at.unwrap();
    let back = plan(to, from, 20, EventMapping::Tones);
    let outputs: Vec<Vec<i16>> = [None, Some(lost)]
        .map(|lost| {
            let mut line = Line::new(session(Some(back.clone()), None, Protection::None));
            let mut sent = Vec::new();
            for (index, packet) in protected.iter().enumerate() {
                if Some(index) != lost {
                    sent.extend(line.pass(A, packet).unwrap());
                }
            }
            decode(&sent, from).0
        })
        .into();
    let frame = 320 * lost..320 * (lost + 1);
    let energy = |samples: &mut dyn Iterator<Item = i32>| -> f64 {
        samples.map(|sample| f64::from(sample).powi(2)).sum()
    };
    let (whole, repaired) = (&outputs[0][frame.clone()], &outputs[1][frame]);
    let signal = energy(&mut whole.iter().map(|&sample| i32::from(sample)));
    let error = energy(
        &mut whole
            .iter()
            .zip(repaired)
            .map(|(&one, &other)| i32::from(one) - i32::from(other)),
    );
    println!("error {:.1} dB", 10.0 * (error / signal).log10());
    assert!(error < signal, "{error} of {signal}");
}

/// Music on hold comes from another source, and a re-INVITE changes the packet time: the source that the receiver knows
/// keeps its timestamps and the counts of its reports (RFC 3550 sections 5.1 and 6.4.1).
#[test]
fn timestamps_and_counts_of_a_source_continue() {
    let (from, to) = ((0, Kind::Pcmu), (111, Kind::Opus));
    if !to.1.is_available() {
        return;
    }
    let planned = |packet_ms| {
        session(
            Some(plan(from, to, packet_ms, EventMapping::Tones)),
            None,
            Protection::None,
        )
    };
    let mut line = Line::new(planned(20));
    let mut speaker = Speaker::new(from, 600.0);
    let mut sent = Vec::new();
    for _ in 0..50 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    // The source is silent for 200 ms, and its clock goes on.
    for _ in 0..10 {
        let mut music = speaker.next();
        music[8..12].copy_from_slice(&9u32.to_be_bytes());
        for packet in line.pass(A, &music).unwrap() {
            assert_eq!(RtpView::parse(&packet).unwrap().ssrc(), 9);
        }
    }
    speaker.sequence = speaker.sequence.wrapping_sub(10);
    for _ in 0..50 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    line.forwarder
        .command(MediaCommand::Update(Box::new(planned(40))), line.now);
    for _ in 0..50 {
        sent.extend(line.pass(A, &speaker.next()).unwrap());
    }
    let (music, plans) = (50, 100);
    assert_eq!(sent.len(), plans + 25);
    let times: Vec<u32> = sent
        .iter()
        .map(|packet| RtpView::parse(packet).unwrap().timestamp())
        .collect();
    for (at, pair) in times.windows(2).enumerate() {
        let step = match at + 1 {
            next if next == music => 11 * 960,
            next if next <= plans => 960,
            _ => 1_920,
        };
        assert_eq!(pair[1].wrapping_sub(pair[0]), step, "{at}");
    }
    let end = times[plans + 24].wrapping_add(1_920);
    let report = |line: &mut Line, timestamp: u32| {
        let info = SenderInfo {
            rtp_timestamp: timestamp,
            packets: 150,
            ..SenderInfo::default()
        };
        let report = CompoundBuilder::new()
            .sender_report(7, &info, &[])
            .cname(7, "a@a")
            .finish();
        let report = line.pass(A, &report).unwrap().remove(0);
        let info = Compound::new(&report).next().unwrap().sender_info();
        info.map(|info| (info.packets, info.rtp_timestamp))
    };
    let last = speaker.start.wrapping_add(160 * 160);
    assert_eq!(report(&mut line, last), Some((125, end)));
    // Without transcoding the packets are the sender's, and go on where ours have ended.
    let mut relayed = session(None, None, Protection::None);
    relayed.flows[0].sides[0].plain_rtcp = true;
    line.forwarder
        .command(MediaCommand::Update(Box::new(relayed)), line.now);
    for packet in 0..3u32 {
        let relayed = line.pass(A, &speaker.next()).unwrap().remove(0);
        let timestamp = RtpView::parse(&relayed).unwrap().timestamp();
        assert_eq!(timestamp, end.wrapping_add(160 * packet));
    }
    let next = end.wrapping_add(3 * 160);
    assert_eq!(
        report(&mut line, last.wrapping_add(3 * 160)),
        Some((150, next))
    );
    line.forwarder
        .command(MediaCommand::Update(Box::new(planned(20))), line.now);
    let again = line.pass(A, &speaker.next()).unwrap().remove(0);
    assert_eq!(RtpView::parse(&again).unwrap().timestamp(), next);
}
