//! Calls whose sides have no common codec: descriptions and audio.

use crate::virtual_network;

use codec::format::Format;
use codec::kind::Kind;
use codec::packet::{Packetiser, Unpacker};
use codec::tone::{Tone, ToneGenerator};
use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::rtp::{RtpHeader, RtpView};

const BOTH: [(&str, &str); 2] = [
    ("10.1.0.1:4000", "192.0.2.1"),
    ("10.2.0.1:5000", "198.51.100.1"),
];

fn sdp(host: &str, port: u16, formats: &str, attributes: &[&str]) -> String {
    let mut text = format!(
        "v=0\r\no=x 1 1 IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\nm=audio {port} RTP/AVP {formats}\r\n"
    );
    for attribute in attributes {
        text.push_str(&format!("a={attribute}\r\n"));
    }
    text
}

/// A caller on the access side and a callee on the core side.
struct Call {
    net: VirtualNetwork,
    alice: usize,
    bob: usize,
    leg: LegId,
}

impl Call {
    /// `towards` are keys of the core interface.
    fn new(towards: &str, offer: &str, answer: &str) -> Call {
        let config = PLAIN.replace("kind='core'", &format!("kind='core'\n{towards}"));
        let mut net = VirtualNetwork::new(&config, 1);
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(offer));
        let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(answer));
        let leg = net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(offer.as_bytes()),
        );
        net.run(seconds(1));
        Call {
            net,
            alice,
            bob,
            leg,
        }
    }

    fn offered(&self) -> String {
        self.net
            .find(self.bob, |event| *event == PhoneEvent::Offered)
            .body()
    }

    fn answered(&self) -> String {
        self.net
            .find(self.alice, |event| *event == PhoneEvent::Answered)
            .body()
    }

    /// Sends a second of a tone from one side (0: the caller). Returns the samples that the other side receives, all in
    /// one codec.
    fn received_samples(&mut self, from: usize, speaks: (u8, Kind), hears: (u8, Kind)) -> Vec<i16> {
        let body = if from == 0 {
            self.answered()
        } else {
            self.offered()
        };
        let (source, ours) = BOTH[from];
        let to = format!("{ours}:{}", port_of(&body));
        let rate = speaks.1.sample_rates()[0];
        let format = Format::new(speaks.1);
        let mut packets = Packetiser::new(&format, rate, Default::default()).unwrap();
        let mut tone = ToneGenerator::new(Tone::sine(600.0, -10.0), rate);
        let before = self.net.media.len();
        // Each time another source, because sequence numbers start again.
        let ssrc = before as u32 + 5;
        for sequence in 0..50 {
            let mut samples = vec![0; packets.packet_samples()];
            tone.fill(&mut samples);
            let mut bytes = Vec::new();
            packets
                .push(&samples, &mut |packet| {
                    bytes = RtpHeader {
                        payload_type: speaks.0,
                        ssrc,
                        sequence,
                        timestamp: packet.timestamp,
                        ..RtpHeader::default()
                    }
                    .packet(packet.payload);
                })
                .unwrap();
            self.net.send_raw(source, &to, &bytes);
            self.net.run(Duration::from_millis(20));
        }
        self.net.run(seconds(1));
        let destination = BOTH[1 - from].0.parse().unwrap();
        let rate = hears.1.sample_rates()[0];
        let mut unpacker = Unpacker::new(&Format::new(hears.1), rate, 1).unwrap();
        let (mut all, mut buffer) = (Vec::new(), vec![0; 5760]);
        for (to, _, bytes) in &self.net.media[before..] {
            if *to == destination {
                let view = RtpView::parse(bytes).unwrap();
                assert_eq!(view.payload_type(), hears.0);
                let count = unpacker
                    .audio(view.payload().unwrap(), &mut buffer)
                    .unwrap();
                all.extend_from_slice(&buffer[..count]);
            }
        }
        assert!(all.len() as u32 > rate * 19 / 20, "{} samples", all.len());
        // Periods of 600 Hz by their zero crossings.
        let settled = &all[all.len() / 5..];
        let crossings = settled
            .windows(2)
            .filter(|two| (two[0] < 0) != (two[1] < 0))
            .count();
        let hertz = crossings as f64 / 2.0 * f64::from(rate) / settled.len() as f64;
        assert!((590.0..610.0).contains(&hertz), "{hertz} Hz");
        all
    }

    fn end(mut self) -> VirtualNetwork {
        let (leg, alice) = (self.leg, self.alice);
        self.net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        self.net.run(seconds(1));
        self.net.assert_quiet();
        self.net
    }
}

fn port_of(body: &str) -> u16 {
    let rest = body.split("m=audio ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// The media line and the lines after it.
fn media_of(body: &str) -> &str {
    let (_, rest) = body.split_once("m=audio ").unwrap();
    rest.split_once(" RTP/").unwrap().1
}

#[test]
fn sides_without_a_common_codec_are_transcoded() {
    let mut call = Call::new(
        "transcode=['G722','PCMA']",
        &sdp(
            "10.1.0.1",
            4000,
            "0 101",
            &["rtpmap:101 telephone-event/8000", "ptime:20"],
        ),
        &sdp(
            "10.2.0.1",
            5000,
            "9 101",
            &["rtpmap:101 telephone-event/8000", "ptime:40"],
        ),
    );
    assert_eq!(
        media_of(&call.offered()),
        "AVP 0 101 9 8\r\na=rtpmap:101 telephone-event/8000\r\na=ptime:20\r\na=rtpmap:9 G722/8000\r\na=rtpmap:8 PCMA/8000\r\n"
    );
    assert_eq!(
        media_of(&call.answered()),
        "AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n"
    );
    call.received_samples(0, (0, Kind::Pcmu), (9, Kind::G722));
    call.received_samples(1, (9, Kind::G722), (0, Kind::Pcmu));
    let net = call.end();
    assert!(
        net.names().contains(&"media_transcoded"),
        "{:?}",
        net.names()
    );
}

#[test]
fn common_codec_avoids_transcoding() {
    let mut call = Call::new(
        "transcode=['G722','PCMA']",
        &sdp("10.1.0.1", 4000, "0", &[]),
        // The callee lists our codecs, too, behind the common one.
        &sdp("10.2.0.1", 5000, "0 9", &["rtpmap:9 G722/8000"]),
    );
    assert_eq!(
        media_of(&call.offered()),
        "AVP 0 9 8 127\r\na=rtpmap:9 G722/8000\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:127 telephone-event/8000\r\na=fmtp:127 0-16\r\n",
        "events are added for our codec"
    );
    assert_eq!(media_of(&call.answered()), "AVP 0\r\n");
    call.received_samples(0, (0, Kind::Pcmu), (0, Kind::Pcmu));
    let net = call.end();
    assert!(!net.names().contains(&"media_transcoded"));
}

/// RFC 3264 section 6.1: the answerer sends the first codec of its answer, which the offerer does not have.
#[test]
fn answer_that_prefers_an_added_codec_is_transcoded() {
    for (answer, attribute) in [
        ("9 0", "rtpmap:9 G722/8000"),
        ("9 98", "rtpmap:98 red/8000"),
    ] {
        let mut call = Call::new(
            "transcode='G722'",
            &sdp("10.1.0.1", 4000, "0 98", &["rtpmap:98 red/8000"]),
            &sdp("10.2.0.1", 5000, answer, &[attribute]),
        );
        assert_eq!(
            media_of(&call.answered()),
            "AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
        );
        call.received_samples(0, (0, Kind::Pcmu), (9, Kind::G722));
        call.received_samples(1, (9, Kind::G722), (0, Kind::Pcmu));
        if answer == "9 0" {
            call.received_samples(1, (0, Kind::Pcmu), (0, Kind::Pcmu));
        }
        let net = call.end();
        assert!(net.names().contains(&"media_transcoded"));
    }
}

#[test]
fn packets_of_an_added_codec_do_not_reach_an_offerer_without_it() {
    let mut call = Call::new(
        "transcode='G722'",
        &sdp("10.1.0.1", 4000, "0", &[]),
        &sdp("10.2.0.1", 5000, "0 9", &[]),
    );
    let to = format!("{}:{}", BOTH[1].1, port_of(&call.offered()));
    for sequence in 0..10 {
        let header = RtpHeader {
            payload_type: if sequence < 5 { 9 } else { 0 },
            sequence,
            timestamp: u32::from(sequence) * 160,
            ..RtpHeader::default()
        };
        call.net
            .send_raw(BOTH[1].0, &to, &header.packet(&[0x55; 160]));
        call.net.run(Duration::from_millis(20));
    }
    call.net.run(seconds(1));
    let destination = BOTH[0].0.parse().unwrap();
    let received = call.net.media.iter().filter(|(to, ..)| *to == destination);
    let types: Vec<u8> = received
        .map(|(_, _, bytes)| RtpView::parse(bytes).unwrap().payload_type())
        .collect();
    assert_eq!(types, [0; 5]);
    call.end();
}

/// Of a side that pauses the other one would get no packets, although it agreed to no pauses.
#[test]
fn silence_suppression_is_not_agreed_for_transcoded_sides() {
    let call = Call::new(
        "transcode='G722'",
        &sdp("10.1.0.1", 4000, "0 13", &[]),
        &sdp("10.2.0.1", 5000, "9", &[]),
    );
    assert_eq!(
        media_of(&call.answered()),
        "AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
    );
    call.end();
    let call = Call::new(
        "transcode='PCMA'\ntranscode_when='always'",
        &sdp("10.1.0.1", 4000, "0 13", &[]),
        &sdp("10.2.0.1", 5000, "8", &[]),
    );
    assert!(media_of(&call.offered()).starts_with("AVP 8 "));
    call.end();
    if !Kind::G729.is_available() {
        return;
    }
    let call = Call::new(
        "transcode='G729'",
        &sdp("10.1.0.1", 4000, "0", &[]),
        &sdp("10.2.0.1", 5000, "18", &[]),
    );
    let offered = call.offered();
    assert!(offered.contains("a=fmtp:18 annexb=no\r\n"), "{offered}");
    call.end();
    let call = Call::new(
        "transcode='G722'",
        &sdp("10.1.0.1", 4000, "18", &[]),
        &sdp("10.2.0.1", 5000, "9", &[]),
    );
    let answered = call.answered();
    assert!(answered.contains("a=fmtp:18 annexb=no\r\n"), "{answered}");
    call.end();
}

/// Our decoder uses it, and senders leave it out unless it is requested (RFC 7587 section 6.1).
#[test]
fn redundancy_of_opus_is_requested_for_transcoded_sides() {
    let opus = |ip: &str, port| sdp(ip, port, "111", &["rtpmap:111 opus/48000/2"]);
    let call = Call::new(
        "transcode='G722'",
        &opus("10.1.0.1", 4000),
        &sdp("10.2.0.1", 5000, "9", &[]),
    );
    let answered = call.answered();
    assert!(
        answered.contains("a=fmtp:111 useinbandfec=1\r\n"),
        "{answered}"
    );
    call.end();
    let call = Call::new(
        "transcode='opus'",
        &sdp("10.1.0.1", 4000, "8", &[]),
        &opus("10.2.0.1", 5000),
    );
    let offered = call.offered();
    assert!(offered.contains(" useinbandfec=1\r\n"), "{offered}");
    call.end();
}

#[test]
fn policy_may_replace_the_whole_offer() {
    let mut call = Call::new(
        "transcode='PCMA'\ntranscode_when='always'",
        &sdp(
            "10.1.0.1",
            4000,
            "111 9 110",
            &[
                "rtpmap:111 opus/48000/2",
                "fmtp:111 useinbandfec=1",
                "rtpmap:110 telephone-event/48000",
            ],
        ),
        &sdp("10.2.0.1", 5000, "8", &[]),
    );
    let offered = call.offered();
    assert!(
        offered.contains(" RTP/AVP 110 8 127\r\n")
            && !offered.contains("opus")
            && !offered.contains("G722"),
        "{offered}"
    );
    assert!(
        offered.contains("a=rtpmap:127 telephone-event/8000\r\na=fmtp:127 0-16\r\n"),
        "{offered}"
    );
    let answered = call.answered();
    assert!(
        answered.contains(" RTP/AVP 111 110\r\na=rtpmap:111 opus/48000/2\r\n"),
        "{answered}"
    );
    call.received_samples(0, (111, Kind::Opus), (8, Kind::Pcma));
    call.received_samples(1, (8, Kind::Pcma), (111, Kind::Opus));
    call.end();
}

#[test]
fn offer_is_unchanged_without_a_policy() {
    let call = Call::new(
        "",
        &sdp(
            "10.1.0.1",
            4000,
            "0 101",
            &["rtpmap:101 telephone-event/8000"],
        ),
        &sdp("10.2.0.1", 5000, "0", &[]),
    );
    assert_eq!(
        media_of(&call.offered()),
        "AVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\n"
    );
    call.end();
}

#[test]
fn re_offer_keeps_the_call_transcoded() {
    let mut call = Call::new(
        "transcode='G722'",
        &sdp("10.1.0.1", 4000, "0", &[]),
        &sdp("10.2.0.1", 5000, "9", &[]),
    );
    call.received_samples(0, (0, Kind::Pcmu), (9, Kind::G722));
    // The callee offers only its own codec; the caller is offered the codec in use, although the configuration does not
    // list it.
    let bob = call.bob;
    let leg = call
        .net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let offer = sdp("10.2.0.1", 5000, "9", &[]).replace("o=x 1 1", "o=x 1 2");
    call.net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(offer.as_bytes());
        endpoint
            .request(leg, wire::sip::Method::Invite, &content, now)
            .unwrap()
    });
    call.net.run(seconds(1));
    call.received_samples(0, (0, Kind::Pcmu), (9, Kind::G722));
    call.received_samples(1, (9, Kind::G722), (0, Kind::Pcmu));
    call.end();
}

#[test]
fn digits_reach_a_side_without_events_as_tones() {
    let mut call = Call::new(
        "transcode='PCMA'",
        &sdp(
            "10.1.0.1",
            4000,
            "0 101",
            &["rtpmap:101 telephone-event/8000"],
        ),
        &sdp("10.2.0.1", 5000, "8", &[]),
    );
    call.received_samples(0, (0, Kind::Pcmu), (8, Kind::Pcma));
    let to = format!("192.0.2.1:{}", port_of(&call.answered()));
    let before = call.net.media.len();
    for count in 0..8u16 {
        let event = wire::rtp::TelephoneEvent {
            event: 1,
            end: count >= 5,
            volume: 10,
            duration: (160 * (count + 1)).min(960),
        };
        let packet = RtpHeader {
            payload_type: 101,
            ssrc: 5,
            sequence: 50 + count,
            timestamp: 50 * 160,
            marker: count == 0,
            ..RtpHeader::default()
        }
        .packet(&event.to_bytes());
        call.net.send_raw("10.1.0.1:4000", &to, &packet);
        call.net.run(Duration::from_millis(20));
    }
    let mut detector = codec::dtmf::Detector::new(8000);
    let mut unpacker = Unpacker::new(&Format::Pcma, 8000, 1).unwrap();
    let (mut pressed, mut buffer) = (Vec::new(), vec![0; 5760]);
    for (_, _, bytes) in &call.net.media[before..] {
        let view = RtpView::parse(bytes).unwrap();
        let count = unpacker
            .audio(view.payload().unwrap(), &mut buffer)
            .unwrap();
        detector.push(&buffer[..count], &mut |received| pressed.push(received));
    }
    assert_eq!(detector.digit(), Some('1'), "{pressed:?}");
    call.end();
}

#[test]
fn digits_of_a_side_without_events_reach_the_other_as_events() {
    let lone = |host: &str, port, formats: &str| sdp(host, port, formats, &[]);
    let both = |host: &str, port, formats: &str| {
        sdp(host, port, formats, &["rtpmap:101 telephone-event/8000"])
    };
    for (from, offer, answer, speaks, hears) in [
        (
            0,
            lone("10.1.0.1", 4000, "0"),
            both("10.2.0.1", 5000, "8 101"),
            (0, Kind::Pcmu),
            8,
        ),
        (
            1,
            both("10.1.0.1", 4000, "0 101"),
            lone("10.2.0.1", 5000, "8"),
            (8, Kind::Pcma),
            0,
        ),
    ] {
        let mut call = Call::new("transcode='PCMA'", &offer, &answer);
        let body = match from {
            0 => call.answered(),
            _ => call.offered(),
        };
        let (source, ours) = BOTH[from];
        let to = format!("{ours}:{}", port_of(&body));
        // The other side sends first, so that its address is latched.
        let silent = Kind::Pcma;
        let other = if from == 0 {
            (8, silent)
        } else {
            (0, Kind::Pcmu)
        };
        call.received_samples(1 - from, other, speaks);
        let before = call.net.media.len();
        let mut packets =
            Packetiser::new(&Format::new(speaks.1), 8_000, Default::default()).unwrap();
        let mut generator = ToneGenerator::new(Tone::sine(600.0, -12.0), 8_000);
        for sequence in 0..40u16 {
            match sequence {
                10 => generator = ToneGenerator::new(Tone::dtmf('3', -12.0).unwrap(), 8_000),
                15 => generator = ToneGenerator::new(Tone::sine(600.0, -12.0), 8_000),
                _ => {}
            }
            let mut samples = vec![0; packets.packet_samples()];
            generator.fill(&mut samples);
            let mut bytes = Vec::new();
            packets
                .push(&samples, &mut |packet| {
                    bytes = RtpHeader {
                        payload_type: speaks.0,
                        ssrc: 99,
                        sequence,
                        timestamp: packet.timestamp,
                        ..RtpHeader::default()
                    }
                    .packet(packet.payload);
                })
                .unwrap();
            call.net.send_raw(source, &to, &bytes);
            call.net.run(Duration::from_millis(20));
        }
        let mut receiver = media::dtmf::EventReceiver::default();
        let destination = BOTH[1 - from].0.parse().unwrap();
        let mut spoken = 0;
        for (to, _, bytes) in &call.net.media[before..] {
            if *to != destination {
                continue;
            }
            let view = RtpView::parse(bytes).unwrap();
            match view.payload_type() {
                101 => {
                    let event = wire::rtp::TelephoneEvent::parse(view.payload().unwrap()).unwrap();
                    receiver.receive(view.timestamp(), event);
                }
                number => {
                    assert_eq!(number, hears);
                    spoken += 1;
                }
            }
        }
        assert_eq!(receiver.text(), "3");
        assert!(receiver.digits().all(|digit| digit.ended));
        assert!((34..=37).contains(&spoken), "{spoken}");
        call.end();
    }
}
