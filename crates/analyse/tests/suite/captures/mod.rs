//! Generated frames, for captures of every kind.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::{IpAddr, SocketAddr};
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;
use wire::rtp::RtpHeader;

pub const MS: u64 = 1_000_000;
/// A time in 2023, in nanoseconds.
pub const EPOCH: u64 = 1_700_000_000_000_000_000;

pub fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 packet; `fragment` is the flags and offset field.
pub fn ipv4(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    id: u16,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else {
        panic!("IPv4 addresses");
    };
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

pub fn ipv6(from: IpAddr, to: IpAddr, next: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (from, to) else {
        panic!("IPv6 addresses");
    };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend_from_slice(payload);
    packet
}

/// An IP packet of the addresses' version.
pub fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    if from.is_ipv4() {
        ipv4(from, to, protocol, 1, 0, payload)
    } else {
        ipv6(from, to, protocol, payload)
    }
}

pub fn udp_segment(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend_from_slice(payload);
    segment
}

/// UDP in IP.
pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    ip(from.ip(), to.ip(), 17, &udp_segment(from, to, payload))
}

pub fn tcp(from: SocketAddr, to: SocketAddr, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend([0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend_from_slice(payload);
    ip(from.ip(), to.ip(), 6, &segment)
}

/// An Ethernet frame with any number of VLAN tags.
pub fn ethernet(tags: &[(u16, u16)], ip: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (kind, tag) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    let ethertype: u16 = if ip[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    frame.extend(ethertype.to_be_bytes());
    frame.extend_from_slice(ip);
    frame
}

/// A run of RTP packets, one every `ptime_ms`, as sent: (nanoseconds, packet).
#[derive(Clone)]
pub struct Talk {
    pub ssrc: u32,
    pub payload_type: u8,
    pub clock: u32,
    pub ptime_ms: u64,
    pub first_sequence: u16,
    pub first_timestamp: u32,
    pub bytes: usize,
}

impl Default for Talk {
    fn default() -> Self {
        Talk {
            ssrc: 0x1234_5678,
            payload_type: 0,
            clock: 8000,
            ptime_ms: 20,
            first_sequence: 100,
            first_timestamp: 5000,
            bytes: 160,
        }
    }
}

impl Talk {
    pub fn packets(&self, count: u64) -> Vec<(u64, Vec<u8>)> {
        (0..count)
            .map(|at| {
                let step = self.ptime_ms * u64::from(self.clock) / 1000;
                let header = RtpHeader {
                    marker: at == 0,
                    payload_type: self.payload_type,
                    sequence: self.first_sequence.wrapping_add(at as u16),
                    timestamp: self.first_timestamp.wrapping_add((at * step) as u32),
                    ssrc: self.ssrc,
                    ..RtpHeader::default()
                };
                (
                    EPOCH + at * self.ptime_ms * MS,
                    header.packet(&vec![0xd5; self.bytes]),
                )
            })
            .collect()
    }
}

/// A small deterministic random generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Loses, duplicates and delays packets; sorted by arrival.
pub fn impair(
    packets: Vec<(u64, Vec<u8>)>,
    dice: &mut Dice,
    loss: u64,
    double: u64,
    late: u64,
    jitter_us: u64,
) -> Vec<(u64, Vec<u8>)> {
    let mut out = Vec::new();
    for (time, packet) in packets {
        if dice.roll(1000) < loss {
            continue;
        }
        let mut at = time + dice.roll(jitter_us + 1) * 1000;
        if dice.roll(1000) < late {
            at += (25 + dice.roll(60)) * MS;
        }
        if dice.roll(1000) < double {
            out.push((at + dice.roll(30_000) * 1000, packet.clone()));
        }
        out.push((at, packet));
    }
    out.sort_by_key(|(time, _)| *time);
    out
}

pub fn sdp(address: SocketAddr, formats: &str, maps: &str) -> String {
    let family = if address.is_ipv4() { "IP4" } else { "IP6" };
    format!(
        "v=0\r\no=- 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\nm=audio {port} RTP/AVP {formats}\r\n{maps}",
        ip = address.ip(),
        port = address.port(),
    )
}

/// A SIP message with the usual headers.
pub fn sip(start: &str, call_id: &str, cseq: &str, to_tag: &str, body: &str) -> String {
    let kind = if body.is_empty() {
        ""
    } else {
        "Content-Type: application/sdp\r\n"
    };
    format!(
        "{start}\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK{call_id}{number}\r\nMax-Forwards: 70\r\n\
         From: \"Alice\" <sip:alice@example.org>;tag=a1\r\nTo: <sip:bob@example.net>{to_tag}\r\nCall-ID: {call_id}\r\n\
         CSeq: {cseq}\r\nContact: <sip:alice@192.0.2.1>\r\n{kind}Content-Length: {length}\r\n\r\n{body}",
        number = cseq.split(' ').next().unwrap_or_default(),
        length = body.len(),
    )
}

pub const UA: &str = "192.0.2.1:5062";

pub const UB: &str = "198.51.100.2:7777";

/// A pcap file of IP packets, each wrapped.
pub fn file_of(
    link: LinkType,
    packets: &[(u64, Vec<u8>)],
    wrap: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let mut writer = PcapWriter::new(link);
    for (time, packet) in packets {
        writer.frame(*time, &wrap(packet));
    }
    writer.finish()
}

/// SIP messages over UDP: milliseconds, from, to, text.
pub fn sip_frames(messages: &[(u64, &str, &str, String)]) -> Vec<(u64, Vec<u8>)> {
    messages
        .iter()
        .map(|(ms, from, to, text)| (EPOCH + ms * MS, udp(addr(from), addr(to), text.as_bytes())))
        .collect()
}
