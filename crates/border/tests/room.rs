//! Conferences of the border: calls that it answers itself, who hears whom, and what becomes of errors.

mod neighbourhood;

use codec::packet::Packing;
use codec::{Format, Kind, Packetiser, Tone, ToneGenerator, Unpacker};
use neighbourhood::*;
use sip::{Content, Ending, Failure, LegId};
use std::net::SocketAddr;
use std::time::Duration;
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};
use wire::sip::Method;

const OUT: &str = "192.0.2.1:5060";
const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[room]]\nname='meeting'\nnumber=['800','801']\nseats=4\nrooms=2\ntones='none'\n";

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A telephone with a codec and a tone for a voice.
struct Talker {
    phone: usize,
    leg: LegId,
    own: SocketAddr,
    kind: Kind,
    payload_type: u8,
    packetiser: Packetiser,
    unpacker: Unpacker,
    rate: u32,
    tone: ToneGenerator,
    hz: f64,
    silent: bool,
    sequence: u16,
    /// Where the border takes its media.
    to: SocketAddr,
    heard: Vec<i16>,
    /// When packets came, in milliseconds, and their timestamps.
    came: Vec<(u64, u32)>,
}

fn sdp(own: SocketAddr, kind: Kind, packet_ms: u32, more: &str) -> String {
    let number = kind.payload_type().unwrap_or(111);
    let channels = if kind == Kind::Opus { "/2" } else { "" };
    format!(
        "v=0\r\no=x 1 1 IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\nm=audio {port} RTP/AVP {number} 101\r\n\
         a=rtpmap:{number} {name}/{clock}{channels}\r\na=rtpmap:101 telephone-event/8000\r\na=ptime:{packet_ms}\r\n{more}",
        ip = own.ip(),
        port = own.port(),
        name = kind.name(),
        clock = kind.rtp_clock(),
    )
}

fn port_of(body: &str) -> u16 {
    let line = body.split("m=audio ").nth(1).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

impl Talker {
    fn dial(
        net: &mut Neighbourhood,
        number: u8,
        uri: &str,
        kind: Kind,
        packet_ms: u32,
        hz: f64,
    ) -> Talker {
        let phone = net.phone(&format!("10.1.0.{number}:5060"), Manners::answering(SDP_A));
        let own: SocketAddr = format!("10.1.0.{number}:4000").parse().unwrap();
        let offer = sdp(own, kind, packet_ms, "");
        let leg = net.call(phone, uri, OUT, &Content::sdp(offer.as_bytes()));
        net.run(millis(200));
        let body = net.find(phone, |told| *told == Told::Answered).body();
        assert!(body.contains(&format!("a=ptime:{packet_ms}\r\n")), "{body}");
        let rate = kind.sample_rates()[0];
        let packing = Packing {
            packet_ms,
            suppress_silence: false,
        };
        Talker {
            phone,
            leg,
            own,
            kind,
            payload_type: kind.payload_type().unwrap_or(111),
            packetiser: Packetiser::new(&Format::new(kind), rate, packing).unwrap(),
            unpacker: Unpacker::new(&Format::new(kind), rate, 1).unwrap(),
            rate,
            tone: ToneGenerator::new(Tone::sine(hz, -16.0), rate),
            hz,
            silent: false,
            sequence: 1,
            to: format!("192.0.2.1:{}", port_of(&body)).parse().unwrap(),
            heard: Vec::new(),
            came: Vec::new(),
        }
    }

    fn speak(&mut self, net: &mut Neighbourhood) {
        let mut samples = vec![0; (self.rate / 100) as usize];
        self.tone.fill(&mut samples);
        if self.silent {
            samples.fill(0);
        }
        let (sequence, payload_type, own, to) =
            (&mut self.sequence, self.payload_type, self.own, self.to);
        let lossy = net.weather.loss > 0.0;
        self.packetiser
            .push(&samples, &mut |packet| {
                let header = RtpHeader {
                    payload_type,
                    sequence: *sequence,
                    timestamp: packet.timestamp,
                    ssrc: u32::from(own.port()),
                    ..RtpHeader::default()
                };
                *sequence += 1;
                // What is thrown arrives for certain: a lossy network is one where every tenth packet is not thrown.
                if !lossy || *sequence % 10 != 3 {
                    net.throw(
                        &own.to_string(),
                        &to.to_string(),
                        &header.packet(packet.payload),
                    );
                }
            })
            .unwrap();
    }

    fn press(&mut self, net: &mut Neighbourhood, digit: char, timestamp: u32) {
        let event = TelephoneEvent {
            event: TelephoneEvent::code(digit).unwrap(),
            end: true,
            volume: 10,
            duration: 800,
        };
        let header = RtpHeader {
            payload_type: 101,
            sequence: self.sequence,
            timestamp,
            ssrc: u32::from(self.own.port()),
            ..RtpHeader::default()
        };
        self.sequence += 1;
        let packet = header.packet(&event.to_bytes());
        net.throw(&self.own.to_string(), &self.to.to_string(), &packet);
    }

    fn take(&mut self, bytes: &[u8], now: u64) {
        if wire::rtcp::is_rtcp(bytes) {
            return;
        }
        let view = RtpView::parse(bytes).unwrap();
        assert_eq!(view.payload_type(), self.payload_type);
        self.came.push((now, view.timestamp()));
        let mut samples = [0; codec::coder::MAX_SAMPLES];
        let made = self
            .unpacker
            .audio(view.payload().unwrap(), &mut samples)
            .unwrap();
        self.heard.extend_from_slice(&samples[..made]);
    }

    /// How loud a frequency is in the last half second, in dB against a talker's tone.
    fn level(&self, hz: f64) -> f64 {
        let half = self.rate as usize / 2;
        let samples = &self.heard[self.heard.len().saturating_sub(half)..];
        let step = core::f64::consts::TAU * hz / f64::from(self.rate);
        let (mut re, mut im) = (0.0, 0.0);
        for (index, &sample) in samples.iter().enumerate() {
            let place = index as f64 / samples.len() as f64;
            let window = 0.5 - 0.5 * (core::f64::consts::TAU * place).cos();
            re += window * f64::from(sample) * (step * index as f64).cos();
            im += window * f64::from(sample) * (step * index as f64).sin();
        }
        let amplitude = 4.0 * f64::hypot(re, im) / samples.len().max(1) as f64;
        let reference = 32_767.0 * 10f64.powf((-16.0 - 314.0 / 100.0) / 20.0);
        20.0 * (amplitude.max(1e-3) / reference).log10()
    }
}

/// All speak for as long; what the border sends them is heard.
fn talk(net: &mut Neighbourhood, talkers: &mut [Talker], span: u64) {
    // What came while others dialled is nobody's to time.
    net.media.clear();
    talkers.iter_mut().for_each(|talker| talker.came.clear());
    for ms in 0..span {
        if ms % 10 == 0 {
            talkers.iter_mut().for_each(|talker| talker.speak(net));
        }
        net.run(millis(1));
        let now = net.now.as_millis();
        for (to, _, bytes) in net.media.drain(..) {
            if let Some(talker) = talkers.iter_mut().find(|talker| talker.own == to) {
                talker.take(&bytes, now);
            }
        }
    }
}

fn assert_hears(talkers: &[Talker], absent: &[usize]) {
    for (by, listener) in talkers.iter().enumerate() {
        // G.729 is made for one voice: several tones at once leave traces elsewhere.
        let (silent, heard) = match listener.kind {
            Kind::G729 => (-15.0, -11.0),
            _ => (-30.0, -7.0),
        };
        for (of, speaker) in talkers.iter().enumerate() {
            let level = listener.level(speaker.hz);
            if of == by || absent.contains(&of) {
                assert!(level < silent, "{by} hears {of} at {level:.1} dB");
            } else {
                assert!(
                    level > heard && level < 4.0,
                    "{by} hears {of} at {level:.1} dB"
                );
            }
        }
    }
}

/// Four with different codecs and packet times, as far as this build has them.
fn company(net: &mut Neighbourhood) -> Vec<Talker> {
    let g729 = if Kind::G729.is_available() {
        Kind::G729
    } else {
        Kind::Pcmu
    };
    [
        (Kind::Pcma, 20, 440.0),
        (g729, 20, 700.0),
        (Kind::Opus, 20, 1050.0),
        (Kind::G722, 30, 1600.0),
    ]
    .into_iter()
    .zip(1..)
    .map(|((kind, ms, hz), number)| Talker::dial(net, number, "sip:800@192.0.2.1", kind, ms, hz))
    .collect()
}

fn hang_up(net: &mut Neighbourhood, talker: &Talker) {
    let leg = talker.leg;
    net.tell(talker.phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap();
    });
    net.run(millis(200));
}

#[test]
fn callers_hear_all_others_and_leave_nothing_behind() {
    let mut net = Neighbourhood::new(BORDER, 1);
    let mut talkers = company(&mut net);
    assert_eq!(net.border.census().seats, 4);
    talk(&mut net, &mut talkers, 2_500);
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        // In virtual time nothing of what the border sends varies.
        let clock = u64::from(talker.kind.rtp_clock()) / 1000;
        for pair in talker.came.windows(2) {
            let stamps = u64::from(pair[1].1.wrapping_sub(pair[0].1));
            assert_eq!((pair[1].0 - pair[0].0) * clock, stamps);
        }
    }
    // Further ones find it full, and the others go on.
    let late = net.phone("10.1.0.9:5060", Manners::answering(SDP_A));
    net.call(
        late,
        "sip:800@192.0.2.1",
        OUT,
        &Content::sdp(SDP_A.as_bytes()),
    );
    talk(&mut net, &mut talkers, 500);
    assert!(net.has(late, |told| *told == Told::Failed(Failure::Response, 486)));
    assert!(net.names().contains(&"room_full"));
    assert_eq!(net.border.census().seats, 4);
    // One leaves.
    let left = talkers.remove(0);
    hang_up(&mut net, &left);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        let silent = if talker.kind == Kind::G729 {
            -15.0
        } else {
            -30.0
        };
        assert!(talker.level(left.hz) < silent);
    }
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    assert_eq!((count("room_joined"), count("room_left")), (4, 4));
    assert_eq!((count("call_answered"), count("call_ended")), (4, 4));
    assert_eq!(net.border.counters().completed, 4);
    assert_eq!(net.forwarder.rooms().rooms(), 0);
}

#[test]
fn digits_mute_and_unmute() {
    let mut net = Neighbourhood::new(BORDER, 2);
    let mut talkers = company(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    talkers[0].press(&mut net, '*', 90_000);
    talkers[0].press(&mut net, '6', 91_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    talkers[0].press(&mut net, '*', 120_000);
    talkers[0].press(&mut net, '6', 121_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    let muted = net
        .names()
        .iter()
        .filter(|name| **name == "room_muted")
        .count();
    assert_eq!(muted, 2);
}

#[test]
fn loss_and_jitter_are_concealed() {
    let mut net = Neighbourhood::new(BORDER, 3);
    let mut talkers = company(&mut net);
    net.weather.jitter = millis(35);
    net.weather.loss = 0.01;
    talk(&mut net, &mut talkers, 5_000);
    assert_hears(&talkers, &[]);
    let sessions: u64 = net.forwarder.rooms().figures().turns;
    assert!(sessions >= 250, "{sessions}");
}

#[test]
fn hold_resumption_and_another_codec() {
    let mut net = Neighbourhood::new(BORDER, 4);
    let mut talkers = company(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    let change =
        |net: &mut Neighbourhood, talker: &Talker, offer: String, method: Method<'static>| {
            let leg = talker.leg;
            net.tell(talker.phone, |endpoint, now| {
                endpoint
                    .request(leg, method, &Content::sdp(offer.as_bytes()), now)
                    .unwrap();
            });
            net.run(millis(200));
            let seen = net.last(talker.phone, |told| matches!(told, Told::Response(200, _)));
            seen.body()
        };
    let held = sdp(talkers[0].own, Kind::Pcma, 20, "a=sendonly\r\n");
    let body = change(&mut net, &talkers[0], held, Method::Invite);
    assert!(body.contains("a=recvonly"), "{body}");
    assert_eq!(port_of(&body), talkers[0].to.port());
    talk(&mut net, &mut talkers, 1_500);
    assert_eq!(talkers[0].came, []);
    assert!(talkers[2].level(talkers[0].hz) > -7.0);
    let resumed = sdp(talkers[0].own, Kind::Pcma, 20, "a=sendrecv\r\n");
    let body = change(&mut net, &talkers[0], resumed, Method::Update);
    assert!(body.contains("a=sendrecv"), "{body}");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // A codec that the room does not take: refused, and all stays.
    let leg = talkers[0].leg;
    let strange = sdp(talkers[0].own, Kind::Pcma, 20, "")
        .replace("8 101", "97 101")
        .replace("rtpmap:8 PCMA", "rtpmap:97 GSM");
    net.tell(talkers[0].phone, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::sdp(strange.as_bytes()), now)
            .unwrap();
    });
    talk(&mut net, &mut talkers, 1_000);
    assert!(net.has(talkers[0].phone, |told| matches!(
        told,
        Told::Response(488, _)
    )));
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

#[test]
fn an_offer_of_ours_is_answered_in_the_ack() {
    let mut net = Neighbourhood::new(BORDER, 5);
    let phone = net.phone(
        "10.1.0.1:5060",
        Manners {
            acks: false,
            ..Manners::answering(SDP_A)
        },
    );
    let leg = net.call(phone, "sip:801@192.0.2.1", OUT, &Content::default());
    net.run(millis(300));
    let body = net.find(phone, |told| *told == Told::Answered).body();
    for name in [
        "opus/48000/2",
        "G722/8000",
        "PCMA/8000",
        "PCMU/8000",
        "telephone-event/8000",
    ] {
        assert!(body.contains(name), "{body}");
    }
    net.tell(phone, |endpoint, now| {
        endpoint
            .ack(leg, &Content::sdp(SDP_A.as_bytes()), now)
            .unwrap();
    });
    net.run(millis(300));
    assert!(net.names().contains(&"room_joined"));
    assert_eq!(net.forwarder.rooms().seats(), 1);
    net.tell(phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap();
    });
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let config = BORDER.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='30000-30003'}",
    );
    let mut net = Neighbourhood::new(&config, 6);
    let call = |net: &mut Neighbourhood, number: u8, uri: &str, offer: &str| {
        let phone = net.phone(&format!("10.1.0.{number}:5060"), Manners::answering(SDP_A));
        let leg = net.call(phone, uri, OUT, &Content::sdp(offer.as_bytes()));
        net.run(millis(300));
        (phone, leg)
    };
    let failed = |net: &Neighbourhood, phone: usize, status: u16| {
        assert!(
            net.has(phone, |told| *told
                == Told::Failed(Failure::Response, status)),
            "{:?}",
            net.told(phone)
        );
    };
    // No codec in common; only SRTP, which no policy lets us take; no session description.
    let (phone, _) = call(
        &mut net,
        1,
        "sip:800@192.0.2.1",
        &SDP_A
            .replace("0 101", "97")
            .replace("rtpmap:0 PCMU", "rtpmap:97 GSM"),
    );
    failed(&net, phone, 488);
    let (phone, _) = call(
        &mut net,
        2,
        "sip:800@192.0.2.1",
        &SDP_A.replace("RTP/AVP", "RTP/SAVP"),
    );
    failed(&net, phone, 488);
    let (phone, _) = call(&mut net, 3, "sip:800@192.0.2.1", "hello");
    failed(&net, phone, 488);
    // A number that is no conference's, and no route takes.
    let (phone, _) = call(&mut net, 4, "sip:8000@192.0.2.1", SDP_A);
    failed(&net, phone, 404);
    // Two pairs of ports, and no more.
    let first = call(&mut net, 5, "sip:800@192.0.2.1", SDP_A);
    let second = call(&mut net, 6, "sip:801@192.0.2.1", SDP_A);
    let (phone, _) = call(&mut net, 7, "sip:800@192.0.2.1", SDP_A);
    failed(&net, phone, 503);
    assert!(net.names().contains(&"media_ports_exhausted"));
    assert_eq!(
        (net.border.census().seats, net.forwarder.rooms().rooms()),
        (2, 2)
    );
    for (phone, leg) in [first, second] {
        net.tell(phone, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

#[test]
fn as_many_conferences_as_allowed() {
    let config = BORDER.replace("number=['800','801']", "regex='8\\d\\d'");
    let mut net = Neighbourhood::new(&config, 7);
    let statuses: Vec<bool> = [800, 801, 802]
        .into_iter()
        .zip(1..)
        .map(|(number, host)| {
            let phone = net.phone(&format!("10.1.0.{host}:5060"), Manners::answering(SDP_A));
            net.call(
                phone,
                &format!("sip:{number}@192.0.2.1"),
                OUT,
                &Content::sdp(SDP_A.as_bytes()),
            );
            net.run(millis(300));
            net.has(phone, |told| *told == Told::Failed(Failure::Response, 503))
        })
        .collect();
    assert_eq!(statuses, [false, false, true]);
}

#[test]
fn a_phone_that_falls_silent_is_let_go() {
    let mut net = Neighbourhood::new(&format!("{BORDER}[media]\ntimeout=10\n"), 8);
    let mut talkers = company(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    net.run(Duration::from_secs(60));
    assert!(net.names().contains(&"media_timeout"));
    for talker in &talkers {
        assert!(net.has(talker.phone, |told| *told == Told::Ended(Ending::Peer)));
    }
    net.assert_quiet();
    assert_eq!(net.forwarder.rooms().rooms(), 0);
}
