//! Phones in conferences of the border. Each sends a tone of its own; the levels of the others' tones in the received
//! audio show the mix.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::virtual_network::*;
use codec::packet::PacketiserSettings;
use codec::{Format, Kind, Packetiser, Tone, ToneGenerator, Unpacker};
use sip::{LegId, MessageContent};
use std::net::SocketAddr;
use std::time::Duration;
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};

pub fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A phone with a codec and a tone.
pub struct ConferencePhone {
    pub phone: usize,
    pub leg: LegId,
    pub own: SocketAddr,
    pub kind: Kind,
    pub payload_type: u8,
    pub packetiser: Packetiser,
    pub unpacker: Unpacker,
    pub rate: u32,
    pub tone: ToneGenerator,
    pub hz: f64,
    pub silent: bool,
    pub sequence: u16,
    /// The border's address for its media.
    pub to: SocketAddr,
    pub received: Vec<i16>,
    /// Arrival of packets in milliseconds, and their timestamps.
    pub came: Vec<(u64, u32)>,
}

pub fn sdp(own: SocketAddr, kind: Kind, packet_ms: u32, more: &str) -> String {
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

pub fn port_of(body: &str) -> u16 {
    let line = body.split("m=audio ").nth(1).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

impl ConferencePhone {
    pub fn dial(
        net: &mut VirtualNetwork,
        number: u8,
        uri: &str,
        kind: Kind,
        packet_ms: u32,
        hz: f64,
    ) -> ConferencePhone {
        let phone = net.phone(
            &format!("10.1.0.{number}:5060"),
            PhoneBehaviour::answering(SDP_A),
        );
        let own: SocketAddr = format!("10.1.0.{number}:4000").parse().unwrap();
        let offer = sdp(own, kind, packet_ms, "");
        let leg = net.call(phone, uri, OUT, &MessageContent::sdp(offer.as_bytes()));
        net.run(millis(200));
        let body = net
            .find(phone, |event| *event == PhoneEvent::Answered)
            .body();
        assert!(body.contains(&format!("a=ptime:{packet_ms}\r\n")), "{body}");
        let rate = kind.sample_rates()[0];
        let packing = PacketiserSettings {
            packet_ms,
            suppress_silence: false,
        };
        ConferencePhone {
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
            received: Vec::new(),
            came: Vec::new(),
        }
    }

    pub fn speak(&mut self, net: &mut VirtualNetwork) {
        let mut samples = vec![0; (self.rate / 100) as usize];
        self.tone.fill(&mut samples);
        if self.silent {
            samples.fill(0);
        }
        let (sequence, payload_type, own, to) =
            (&mut self.sequence, self.payload_type, self.own, self.to);
        let lossy = net.link_conditions.loss > 0.0;
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
                // Raw datagrams are not lost: loss is simulated by omitting every tenth packet.
                if !lossy || *sequence % 10 != 3 {
                    net.send_raw(
                        &own.to_string(),
                        &to.to_string(),
                        &header.packet(packet.payload),
                    );
                }
            })
            .unwrap();
    }

    pub fn press(&mut self, net: &mut VirtualNetwork, digit: char, timestamp: u32) {
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
        net.send_raw(&self.own.to_string(), &self.to.to_string(), &packet);
    }

    pub fn take(&mut self, bytes: &[u8], now: u64) {
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
        self.received.extend_from_slice(&samples[..made]);
    }

    /// Level of a frequency in the last half second, in dB relative to a phone's tone.
    pub fn level(&self, hz: f64) -> f64 {
        let half = self.rate as usize / 2;
        let samples = &self.received[self.received.len().saturating_sub(half)..];
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

/// All phones send audio for `span`, and receive the border's.
pub fn talk(net: &mut VirtualNetwork, talkers: &mut [ConferencePhone], span: u64) {
    // Packets received during the set-up of other calls have no defined timing.
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

pub fn assert_hears(talkers: &[ConferencePhone], absent: &[usize]) {
    for (by, listener) in talkers.iter().enumerate() {
        // G.729 models one voice: several tones at once leave traces at other frequencies.
        let (silent, received) = match listener.kind {
            Kind::G729 => (-15.0, -11.0),
            _ => (-30.0, -7.0),
        };
        for (of, speaker) in talkers.iter().enumerate() {
            let level = listener.level(speaker.hz);
            if of == by || absent.contains(&of) {
                assert!(level < silent, "{by} hears {of} at {level:.1} dB");
            } else {
                assert!(
                    level > received && level < 4.0,
                    "{by} hears {of} at {level:.1} dB"
                );
            }
        }
    }
}

/// Four phones with different codecs and packet times, as far as this build supports them.
pub fn four_phones(net: &mut VirtualNetwork) -> Vec<ConferencePhone> {
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
    .map(|((kind, ms, hz), number)| {
        ConferencePhone::dial(net, number, "sip:800@192.0.2.1", kind, ms, hz)
    })
    .collect()
}

pub fn hang_up(net: &mut VirtualNetwork, talker: &ConferencePhone) {
    let leg = talker.leg;
    net.command(talker.phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(millis(200));
}
