//! Sources, sinks, telephone events, RTCP and the comparison of audio in virtual time.

use codec::g711::Law;
use codec::{Tone, ToneGenerator, speech};
use core::time::Duration;
use engine::{Entropy, Time};
use media::audio::compare;
use media::dtmf::{DtmfError, END_PACKETS, EventReceiver};
use media::echo::Echo;
use media::rtcp::{RtcpConfig, RtcpEndpoint};
use media::sink::{Received, RtpSink, SinkConfig};
use media::source::{ReadyPacket, RtpSource, SourceConfig, SourceContent, SourceError};
use proptest::prelude::*;
use std::sync::Arc;
use wire::rtcp::{Compound, packet_type};
use wire::rtp::{RtpView, TelephoneEvent};

const MS: Duration = Duration::from_millis(1);

fn source(law: Law, content: SourceContent) -> RtpSource {
    let mut config = SourceConfig::g711(law, content, Time::from_secs(1));
    config.event_payload_type = Some(101);
    RtpSource::new(config, &mut Entropy::from_number(5)).unwrap()
}

fn speech_loop() -> SourceContent {
    SourceContent::Loop(Arc::from(speech::speech()))
}

/// All packets that are due until `end`, fetched at each deadline.
fn run(source: &mut RtpSource, end: Time) -> Vec<(Time, Vec<u8>)> {
    let mut packets = Vec::new();
    while let Some(deadline) = source.next_deadline() {
        if deadline.at >= end {
            break;
        }
        while let Some((due, packet)) = source.next_packet(deadline.at) {
            assert_eq!(due, deadline.at);
            packets.push((due, packet.to_vec()));
        }
    }
    packets
}

#[test]
fn a_source_keeps_its_timeline() {
    let mut source = source(Law::A, speech_loop());
    let packets = run(&mut source, Time::from_secs(31));
    assert_eq!(packets.len(), 1500);
    let views: Vec<RtpView> = packets
        .iter()
        .map(|p| RtpView::parse(&p.1).unwrap())
        .collect();
    assert!(views[0].marker() && !views[1..].iter().any(RtpView::marker));
    for (n, pair) in views.windows(2).enumerate() {
        assert_eq!(pair[1].sequence(), pair[0].sequence().wrapping_add(1));
        assert_eq!(pair[1].timestamp(), pair[0].timestamp().wrapping_add(160));
        assert_eq!(pair[1].ssrc(), source.ssrc());
        assert_eq!(
            (pair[1].payload_type(), pair[1].payload().unwrap().len()),
            (8, 160)
        );
        assert_eq!(packets[n].0, Time::from_millis(1000 + 20 * n as u64));
    }
    // The loop is seamless: sample n of the stream is sample n of the repeated speech.
    let sent: Vec<u8> = views
        .iter()
        .flat_map(|view| view.payload().unwrap().to_vec())
        .collect();
    let expected = speech::speech()
        .iter()
        .cycle()
        .map(|&s| Law::A.encode_sample(s));
    assert!(sent.iter().copied().eq(expected.take(1500 * 160)));
    assert_eq!(
        (source.counts().packets, source.counts().octets),
        (1500, 240_000)
    );
    // A late sender skips packets; its timestamps include them.
    let late = Time::from_secs(41);
    let mut burst = 0;
    let mut first = None;
    while let Some((_, packet)) = source.next_packet(late) {
        first.get_or_insert_with(|| packet.to_vec());
        burst += 1;
    }
    assert_eq!((burst, source.counts().skipped), (26, 475));
    let last = &views[1499];
    let first = first.unwrap();
    let view = RtpView::parse(&first).unwrap();
    assert!(view.marker());
    assert_eq!(view.timestamp(), last.timestamp().wrapping_add(476 * 160));
    assert_eq!(
        view.sequence(),
        last.sequence().wrapping_add(1),
        "sequence numbers show no loss"
    );
    source.stop();
    assert!(source.next_deadline().is_none() && source.next_packet(Time::from_secs(50)).is_none());
    source.resume(Time::from_secs(50));
    assert_eq!(source.next_deadline().unwrap().at, Time::from_secs(50));
}

/// Prepared packets by packet time: offset, marker and payload of each.
fn ready(slots: Vec<Vec<(u32, bool, Vec<u8>)>>) -> SourceContent {
    let packet = |(offset, marker, payload)| ReadyPacket {
        offset,
        marker,
        payload,
    };
    let slots = slots
        .into_iter()
        .map(|slot| slot.into_iter().map(packet).collect())
        .collect();
    SourceContent::Ready {
        slots,
        first: 0,
        repeat_from: 0,
    }
}

#[test]
fn prepared_content_skips_silence() {
    let slots = vec![
        vec![],
        vec![(0, true, vec![1])],
        vec![(0, false, vec![2]), (80, true, vec![3])],
        vec![],
        vec![],
    ];
    let config = SourceConfig {
        payload_type: 18,
        ..SourceConfig::g711(Law::A, ready(slots), Time::ZERO)
    };
    let mut source = RtpSource::new(config, &mut Entropy::from_number(3)).unwrap();
    let packets = run(&mut source, Time::from_millis(159));
    let views: Vec<_> = packets
        .iter()
        .map(|(at, bytes)| (*at, RtpView::parse(bytes).unwrap()))
        .collect();
    let first = views[0].1;
    let seen: Vec<_> = views
        .iter()
        .map(|(at, view)| {
            let units = view.timestamp().wrapping_sub(first.timestamp());
            let number = view.sequence().wrapping_sub(first.sequence());
            let payload = view.payload().unwrap()[0];
            (at.0 / 1_000_000, number, units, view.marker(), payload)
        })
        .collect();
    let expected = [
        (20, 0, 0, true, 1),
        (40, 1, 160, false, 2),
        (40, 2, 240, true, 3),
        (120, 3, 800, true, 1),
        (140, 4, 960, false, 2),
        (140, 5, 1040, true, 3),
    ];
    assert_eq!(seen, expected);
    // No wake-up during silence.
    assert_eq!(source.next_deadline().unwrap().at, Time::from_millis(220));
    assert_eq!(source.counts().packets, 6);
}

#[test]
fn invalid_sources_are_refused() {
    let mut entropy = Entropy::from_number(1);
    let good = SourceConfig::g711(Law::Mu, SourceContent::Silence, Time::ZERO);
    for ptime_ms in [0, 9, 61] {
        let config = SourceConfig {
            ptime_ms,
            ..good.clone()
        };
        assert_eq!(
            RtpSource::new(config, &mut entropy).err(),
            Some(SourceError::PacketTime(ptime_ms))
        );
    }
    let config = SourceConfig {
        clock_rate: 16_000,
        ..good.clone()
    };
    assert_eq!(
        RtpSource::new(config, &mut entropy).err(),
        Some(SourceError::ClockRate(16_000))
    );
    for content in [
        SourceContent::Codes(Arc::from([])),
        SourceContent::Frames(Arc::from([])),
        SourceContent::Frames(Arc::from([vec![0; 1401]])),
        ready(vec![vec![], vec![]]),
        ready(vec![vec![(0, false, vec![0; 1401])]]),
    ] {
        let config = SourceConfig {
            content,
            ..good.clone()
        };
        assert_eq!(
            RtpSource::new(config, &mut entropy).err(),
            Some(SourceError::Content)
        );
    }
    let frames = SourceContent::Frames(Arc::from([vec![1], vec![2, 2], vec![3]]));
    let config = SourceConfig {
        content: frames,
        clock_rate: 48_000,
        payload_type: 111,
        ..good
    };
    let mut source = RtpSource::new(config, &mut entropy).unwrap();
    let packets = run(&mut source, Time::from_millis(80));
    let payloads: Vec<_> = packets.iter().map(|p| p.1[12..].to_vec()).collect();
    assert_eq!(payloads, [vec![1], vec![2, 2], vec![3], vec![1]]);
    let times: Vec<u32> = packets
        .iter()
        .map(|p| RtpView::parse(&p.1).unwrap().timestamp())
        .collect();
    assert_eq!(times[1].wrapping_sub(times[0]), 960);
}

#[test]
fn digits_are_sent_per_rfc_4733() {
    let mut source = source(Law::Mu, speech_loop());
    let mut packets = run(&mut source, Time::from_millis(1100));
    assert!(source.send_digits("15", 100 * MS).unwrap());
    packets.extend(run(&mut source, Time::from_millis(2000)));
    assert!(!source.is_sending_digits());
    assert_eq!(packets.len(), 50, "a packet per packet time");
    let views: Vec<RtpView> = packets
        .iter()
        .map(|p| RtpView::parse(&p.1).unwrap())
        .collect();
    assert!(
        views
            .windows(2)
            .all(|pair| pair[1].sequence() == pair[0].sequence().wrapping_add(1))
    );
    let events: Vec<(&RtpView, TelephoneEvent)> = views
        .iter()
        .filter(|view| view.payload_type() == 101)
        .map(|view| {
            (
                view,
                TelephoneEvent::parse(view.payload().unwrap()).unwrap(),
            )
        })
        .collect();
    let (one, five) = events.split_at(7);
    assert_eq!(
        events.len(),
        14,
        "five packets of 20 ms, the last one three times, for each digit"
    );
    for (digit, list) in [('1', one), ('5', five)] {
        let durations: Vec<u16> = list.iter().map(|event| event.1.duration).collect();
        assert_eq!(durations, [160, 320, 480, 640, 800, 800, 800]);
        let ends = list.iter().filter(|event| event.1.end).count();
        assert_eq!(ends, usize::from(END_PACKETS));
        assert!(list[0].0.marker() && !list[1..].iter().any(|event| event.0.marker()));
        assert!(list.iter().all(|event| event.1.digit() == Some(digit)));
        assert!(
            list.iter()
                .all(|event| event.0.timestamp() == list[0].0.timestamp())
        );
    }
    assert!(
        five[0].0.timestamp().wrapping_sub(one[0].0.timestamp()) >= 800 + 400,
        "a pause of 50 ms"
    );
    // Audio after the event continues as if there had been no event.
    let audio = views.iter().rfind(|view| view.payload_type() == 0).unwrap();
    let at = audio.timestamp().wrapping_sub(views[0].timestamp()) as usize;
    let expected: Vec<u8> = speech::speech()[at..at + 160]
        .iter()
        .map(|&s| Law::Mu.encode_sample(s))
        .collect();
    assert_eq!(audio.payload().unwrap(), expected);

    assert_eq!(
        source.send_digits("1x", 100 * MS),
        Err(DtmfError::NotADigit('x'))
    );
    assert_eq!(source.send_digits("1", 9000 * MS), Err(DtmfError::Duration));
    assert_eq!(source.send_digits("1", 10 * MS), Err(DtmfError::Duration));
    assert_eq!(
        source.send_digits(&"1".repeat(65), 100 * MS),
        Err(DtmfError::QueueFull)
    );
    assert!(!source.is_sending_digits());
    let config = SourceConfig::g711(Law::A, SourceContent::Silence, Time::ZERO);
    let mut without = RtpSource::new(config, &mut Entropy::from_number(1)).unwrap();
    assert_eq!(without.send_digits("1", 100 * MS), Ok(false));
}

#[test]
fn sink_receives_digits_despite_loss() {
    for lost in 0..7 {
        let mut sink = RtpSink::new(SinkConfig {
            event_payload_type: Some(101),
            ..SinkConfig::default()
        });
        let mut source = source(Law::A, SourceContent::Silence);
        source.send_digits("4711", 100 * MS).unwrap();
        for (n, (due, packet)) in run(&mut source, Time::from_secs(3)).iter().enumerate() {
            if n % 7 != lost {
                sink.receive(packet, *due);
            }
        }
        assert_eq!(sink.events().text(), "4711");
        assert!(
            sink.events()
                .digits()
                .all(|digit| digit.ended && digit.duration == 800)
        );
    }
    let mut receiver = EventReceiver::default();
    for n in 0..1000u32 {
        let event = TelephoneEvent {
            event: 1,
            end: true,
            volume: 10,
            duration: 160,
        };
        assert!(receiver.receive(n * 1000, event));
    }
    assert_eq!(
        (receiver.digits().count(), receiver.forgotten()),
        (256, 744)
    );
}

/// An event that lasts longer than its field can state has several segments (RFC 4733 section 2.5.1.3).
#[test]
fn segments_of_a_long_digit_are_one_digit() {
    let mut receiver = EventReceiver::default();
    let segment = u32::from(u16::MAX);
    let begin = 0xffff_0000u32;
    let packets = [
        (0, 9_600, false, true),
        (0, u16::MAX, false, false),
        (segment, 4_000, false, false),
        // Late, and the end three times.
        (0, u16::MAX, false, false),
        (segment, 30_465, true, false),
        (segment, 30_465, true, false),
        (segment, 30_465, true, false),
        (100_000, 4_800, true, true),
    ];
    for (after, duration, end, begins) in packets {
        let event = TelephoneEvent {
            event: 1,
            end,
            volume: 10,
            duration,
        };
        let timestamp = begin.wrapping_add(after);
        assert_eq!(receiver.receive(timestamp, event), begins, "{after}");
    }
    let durations: Vec<u32> = receiver.digits().map(|digit| digit.duration).collect();
    assert_eq!(durations, [96_000, 4_800]);
    assert!(receiver.digits().all(|digit| digit.ended));
}

/// Sends `seconds` of a source's audio to a sink; `keep` selects the packets that arrive.
fn through(
    law: Law,
    content: SourceContent,
    seconds: u64,
    mut keep: impl FnMut() -> bool,
) -> Vec<i16> {
    let mut sink = RtpSink::new(SinkConfig::default());
    for (due, packet) in run(&mut source(law, content), Time::from_secs(1 + seconds)) {
        if keep() {
            sink.receive(&packet, due + 7 * MS);
        }
    }
    sink.audio()
}

#[test]
fn comparison_recognises_only_the_sent_speech() {
    let reference = speech::speech();
    let mut entropy = Entropy::from_number(9);
    for law in [Law::A, Law::Mu] {
        let clean = compare(reference, &through(law, speech_loop(), 10, || true)).unwrap();
        assert!(clean.correlation > 0.999, "{clean:?}");
        assert!(clean.level_db.abs() < 0.1 && clean.offset == 0, "{clean:?}");
        let lossy = through(law, speech_loop(), 10, || entropy.unit() >= 0.05);
        let lossy = compare(reference, &lossy).unwrap();
        assert!(
            lossy.correlation > 0.93 && lossy.correlation < 0.999,
            "{lossy:?}"
        );
        assert!(lossy.level_db.abs() < 0.5, "{lossy:?}");
    }
    let others = [
        SourceContent::Loop(Arc::from(speech::answer())),
        SourceContent::Tone(ToneGenerator::new(Tone::sine(1000.0, -10.0), 8000)),
        SourceContent::Tone(ToneGenerator::new(Tone::dtmf('5', -10.0).unwrap(), 8000)),
        SourceContent::Loop((0..80_000).map(|_| entropy.u32() as i16 >> 3).collect()),
    ];
    for content in others {
        let other = compare(reference, &through(Law::A, content.clone(), 10, || true)).unwrap();
        assert!(other.correlation.abs() < 0.25, "{other:?}");
    }
    assert_eq!(compare(reference, &[0; 80_000]), None);
    assert_eq!(compare(reference, &reference[..3000]), None);
}

#[test]
fn comparison_finds_offset_and_level() {
    let reference = speech::speech();
    for offset in [1usize, 79, 4321, 50_000, reference.len() - 1] {
        let quieter: Vec<i16> = reference
            .iter()
            .cycle()
            .skip(offset)
            .take(100_000)
            .map(|s| s / 2)
            .collect();
        let found = compare(reference, &quieter).unwrap();
        assert_eq!(found.offset, offset);
        assert!(
            found.correlation > 0.999 && (found.level_db + 6.02).abs() < 0.1,
            "{found:?}"
        );
    }
    let turned: Vec<i16> = reference.iter().map(|s| s.saturating_neg()).collect();
    assert!(compare(reference, &turned).unwrap().correlation < -0.999);
}

#[test]
fn playout_follows_timestamps() {
    let mut sink = RtpSink::new(SinkConfig {
        capture_s: 1,
        ..SinkConfig::default()
    });
    let ramp: Vec<i16> = (0..16_000).map(|n| (n as i16 % 2000) * 8 + 8).collect();
    let mut packets = run(
        &mut source(Law::A, SourceContent::Loop(ramp.clone().into())),
        Time::from_millis(1400),
    );
    packets.swap(3, 4);
    packets.remove(10);
    let last = packets.remove(12);
    for (_, packet) in &packets {
        sink.receive(packet, Time::from_secs(2));
        sink.receive(packet, Time::from_secs(2));
    }
    // All packets arrived at once, before their playout times, so all audio is in place.
    let expected: Vec<i16> = ramp[..20 * 160]
        .iter()
        .enumerate()
        .map(|(n, &s)| match n / 160 {
            10 | 13 => 0,
            _ => Law::A.decode_sample(Law::A.encode_sample(s)),
        })
        .collect();
    assert_eq!(sink.audio(), expected);
    // Packet 13 is played 60 + 260 ms after the first arrival.
    assert_eq!(
        sink.receive(&last.1, Time::from_millis(2321)),
        Received::Late
    );
    assert_eq!(
        sink.receive(&last.1, Time::from_millis(2320)),
        Received::Audio
    );
    assert_ne!(sink.audio()[13 * 160..14 * 160], [0; 160]);
    assert_eq!(
        (sink.counts().late, sink.statistics().summary().duplicates),
        (1, 18 + 1)
    );
    assert_eq!(
        sink.receive(&[1, 2, 3], Time::from_secs(3)),
        Received::NotRtp
    );
}

#[test]
fn drifting_clocks_keep_the_ring_bounded() {
    let mut sink = RtpSink::new(SinkConfig {
        capture_s: 2,
        ..SinkConfig::default()
    });
    let mut source = source(Law::Mu, speech_loop());
    let packets = run(&mut source, Time::from_secs(601));
    for (due, packet) in &packets {
        // The sender's clock is 0.05 % slow.
        sink.receive(packet, Time(due.0 + due.0 / 2000));
    }
    assert_eq!(sink.audio().len(), 16_000);
    assert!(
        sink.counts().late > 0 && sink.counts().late < 100,
        "{:?}",
        sink.counts()
    );
    assert!(sink.statistics().summary().skew_ppm.unwrap() < -400.0);
    let whole = compare(speech::speech(), &sink.audio()).unwrap();
    assert!(whole.correlation > 0.99, "{whole:?}");
}

#[test]
fn echo_returns_the_audio_from_another_source() {
    let mut echo = Echo::new(&mut Entropy::from_number(3));
    let mut sink = RtpSink::new(SinkConfig::default());
    let mut sent = source(Law::A, speech_loop());
    for (due, mut packet) in run(&mut sent, Time::from_secs(6)) {
        assert!(echo.turn(&mut packet));
        sink.receive(&packet, due);
    }
    assert_eq!(sink.ssrc(), Some(echo.ssrc()));
    assert_ne!(sink.ssrc(), Some(sent.ssrc()));
    let summary = sink.statistics().summary();
    assert_eq!(
        (summary.unique, summary.lost_unique, summary.out_of_order),
        (250, 0, 0)
    );
    assert!(
        compare(speech::speech(), &sink.audio())
            .unwrap()
            .correlation
            > 0.999
    );
    let mut other = [0x40; 20];
    assert!(!echo.turn(&mut other) && other == [0x40; 20]);
}

fn endpoint(ssrc: u32, seed: u64) -> RtcpEndpoint {
    let config = RtcpConfig {
        ssrc,
        cname: format!("{ssrc:x}@hornwork.invalid"),
        bandwidth: 80_000,
        min_interval: media::rtcp::MIN_INTERVAL,
        ntp_at_zero: 0xe000_0000_0000_0000,
        start: Time::from_secs(1),
    };
    RtcpEndpoint::new(config, Entropy::from_number(seed))
}

#[test]
fn rtcp_intervals_and_round_trip_time() {
    let one_way = 35 * MS;
    let mut source = source(Law::A, speech_loop());
    let (mut a, mut b) = (endpoint(source.ssrc(), 1), endpoint(77, 2));
    let (mut a_sink, mut b_sink) = (
        RtpSink::new(SinkConfig::default()),
        RtpSink::new(SinkConfig::default()),
    );
    let mut gaps = Vec::new();
    let mut last = Time::from_secs(1);
    let mut lost = 0u32;
    let mut in_flight: Vec<(Time, bool, Vec<u8>)> = Vec::new();
    for ms in 1000..400_000u64 {
        let now = Time::from_millis(ms);
        while let Some((_, packet)) = source.next_packet(now) {
            lost += 1;
            if !lost.is_multiple_of(10) {
                b_sink.receive(packet, now + one_way);
            }
        }
        if let Some(report) = a.next_packet(now, Some(&source), &mut a_sink) {
            gaps.push(now.since(last));
            last = now;
            assert_eq!(
                Compound::new(&report).next().unwrap().packet_type,
                packet_type::SR
            );
            in_flight.push((now + one_way, true, report));
        }
        if let Some(report) = b.next_packet(now, None, &mut b_sink) {
            let first = Compound::new(&report).next().unwrap();
            assert_eq!(first.packet_type, packet_type::RR);
            in_flight.push((now + one_way, false, report));
        }
        in_flight.retain(|(due, to_b, report)| {
            if *due > now {
                return true;
            }
            assert!(if *to_b {
                b.receive(report, *due)
            } else {
                a.receive(report, *due)
            });
            false
        });
    }
    // Half of the minimum for the first, then 0.5 to 1.5 times 5 s (RFC 3550 section 6.3.1).
    let bounds = |minimum: f64| (minimum * 0.5 - 0.01)..(minimum * 1.5 + 0.01);
    assert!(bounds(2.5).contains(&gaps[0].as_secs_f64()), "{gaps:?}");
    assert!(
        gaps[1..]
            .iter()
            .all(|gap| bounds(5.0).contains(&gap.as_secs_f64())),
        "{gaps:?}"
    );
    assert!(gaps.len() > 70 && gaps.iter().collect::<std::collections::BTreeSet<_>>().len() > 60);
    let remote = a.remote();
    let round_trip = remote.round_trip.unwrap();
    assert!(round_trip.abs_diff(70 * MS) < MS, "{remote:?}");
    assert!(remote.round_trip_max.unwrap().abs_diff(70 * MS) < MS);
    let report = remote.report.unwrap();
    assert!(
        (22..=29).contains(&report.fraction_lost),
        "a tenth, in 1/256: {report:?}"
    );
    assert!(report.cumulative_lost > 1900 && report.jitter < 8);
    let bye = a.goodbye(Time::from_secs(401), Some(&source), &mut a_sink, "done");
    assert!(b.receive(&bye, Time::from_secs(401)) && b.remote().goodbye);
    assert!(
        a.next_deadline().is_none()
            && a.next_packet(Time::from_secs(999), None, &mut a_sink)
                .is_none()
    );
    assert!(!a.receive(&[0x80, 200, 0, 9], Time::from_secs(402)));
    assert_eq!(a.remote().malformed, 1);
}

#[test]
fn mean_of_rtcp_intervals_is_the_minimum() {
    let mut sink = RtpSink::new(SinkConfig::default());
    let mut rtcp = endpoint(1, 1);
    let first = rtcp.next_deadline().unwrap().at;
    let mut last = first;
    for _ in 0..2_000 {
        last = rtcp.next_deadline().unwrap().at;
        assert!(rtcp.next_packet(last, None, &mut sink).is_some());
    }
    let mean = last.since(first).as_secs_f64() / 1_999.0;
    assert!((4.9..5.1).contains(&mean), "{mean} s");
}

proptest! {
    #[test]
    fn sink_accepts_arbitrary_bytes(datagrams in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..60), rtp: bool) {
        let mut sink = RtpSink::new(SinkConfig { capture_s: 1, event_payload_type: Some(101), ..SinkConfig::default() });
        let mut rtcp = endpoint(1, 1);
        let mut echo = Echo::new(&mut Entropy::from_number(1));
        let mut now = Time::ZERO;
        let mut received = 0;
        for (step, mut bytes) in datagrams {
            now = Time(now.0 + u64::from(step));
            if rtp && bytes.len() > 12 {
                // Valid headers of one source with arbitrary numbers.
                bytes[0] = 0x80;
                bytes[1] &= 0x08;
                bytes[8..12].fill(1);
            }
            received += u64::from(sink.receive(&bytes, now) != Received::NotRtp);
            rtcp.receive(&bytes, now);
            echo.turn(&mut bytes);
            prop_assert!(sink.audio().len() <= 8000);
        }
        let counts = sink.counts();
        prop_assert!(counts.played + counts.late + counts.undecoded <= received);
        rtcp.goodbye(now, None, &mut sink, "");
    }
}
