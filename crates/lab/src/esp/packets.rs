//! Voice packets in memory: RTP in UDP and IPv4, with checksums, written and read as an IP stack does.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use wire::ip::{Ipv4View, internet_checksum, protocol};
use wire::rtp::{RtpHeader, RtpView};
use wire::udp::UdpView;

/// Ends of the stream.
pub(super) const SOURCE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 20_000);
/// The receiver.
pub(super) const DESTINATION: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 30_000);
/// Source address of the stream in RTP.
const SSRC: u32 = 0x5eed_0001;
/// IP and UDP header.
pub(super) const HEADERS: usize = 28;
/// Other sockets of the receiver's host: the table of ports is not empty on a real one.
const OTHER_SOCKETS: u16 = 256;

/// A stream of G.711 packets.
#[derive(Clone, Debug)]
pub(super) struct VoiceStream {
    voice: Vec<u8>,
    sequence: u16,
    timestamp: u32,
    rtp: Vec<u8>,
}

impl VoiceStream {
    /// A stream whose packets hold this many bytes of voice.
    pub(super) fn new(voice: usize) -> VoiceStream {
        VoiceStream {
            voice: (0..voice).map(|at| (at * 37) as u8).collect(),
            sequence: 1,
            timestamp: 0,
            rtp: Vec::with_capacity(RtpView::HEADER + voice),
        }
    }

    /// The next RTP packet.
    pub(super) fn next_rtp(&mut self) -> &[u8] {
        let header = RtpHeader {
            payload_type: 8,
            sequence: self.sequence,
            timestamp: self.timestamp,
            ssrc: SSRC,
            ..RtpHeader::default()
        };
        self.rtp.clear();
        header.write(&mut self.rtp);
        self.rtp.extend_from_slice(&self.voice);
        self.sequence = self.sequence.wrapping_add(1);
        self.timestamp = self.timestamp.wrapping_add(self.voice.len() as u32);
        &self.rtp
    }
}

/// Writes an RTP packet into the buffer with UDP and IP headers and checksums; returns the packet's length, 0 without
/// room.
#[inline]
pub(super) fn write_udp_packet(buffer: &mut [u8], rtp: &[u8]) -> usize {
    let total = HEADERS + rtp.len();
    let Some(packet) = buffer.get_mut(..total) else {
        return 0;
    };
    let (header, datagram) = packet.split_at_mut(20);
    write_ip_header(header, total, protocol::UDP);
    let (udp, payload) = datagram.split_at_mut(8);
    udp[..2].copy_from_slice(&SOURCE.port().to_be_bytes());
    udp[2..4].copy_from_slice(&DESTINATION.port().to_be_bytes());
    udp[4..6].copy_from_slice(&((8 + rtp.len()) as u16).to_be_bytes());
    udp[6..8].fill(0);
    payload.copy_from_slice(rtp);
    let sum = match udp_checksum(SOURCE.ip(), DESTINATION.ip(), datagram) {
        // RFC 768: zero says that there is none.
        0 => u16::MAX,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    total
}

/// Writes an RTP packet directly behind an IP header of this protocol.
pub(super) fn write_bare_packet(buffer: &mut [u8], rtp: &[u8], protocol: u8) -> usize {
    let total = 20 + rtp.len();
    let Some(packet) = buffer.get_mut(..total) else {
        return 0;
    };
    let (header, payload) = packet.split_at_mut(20);
    write_ip_header(header, total, protocol);
    payload.copy_from_slice(rtp);
    total
}

#[inline]
fn write_ip_header(header: &mut [u8], total: usize, protocol: u8) {
    header.fill(0);
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&SOURCE.ip().octets());
    header[16..20].copy_from_slice(&DESTINATION.ip().octets());
    let sum = internet_checksum(&[header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum over pseudo-header and datagram: zero if the datagram holds a valid one.
#[inline]
fn udp_checksum(source: &Ipv4Addr, destination: &Ipv4Addr, datagram: &[u8]) -> u16 {
    let mut pseudo = [0u8; 12];
    pseudo[..4].copy_from_slice(&source.octets());
    pseudo[4..8].copy_from_slice(&destination.octets());
    pseudo[9] = protocol::UDP;
    pseudo[10..].copy_from_slice(&(datagram.len() as u16).to_be_bytes());
    internet_checksum(&[&pseudo, datagram])
}

/// The receiving side of an IP stack: checks of IP and UDP, and the table of sockets.
#[derive(Clone, Debug)]
pub(super) struct IpInput {
    sockets: HashMap<SocketAddrV4, usize>,
}

impl IpInput {
    /// A stack with the receiver's socket among others.
    pub(super) fn new() -> IpInput {
        let address = *DESTINATION.ip();
        let ports = DESTINATION.port()..DESTINATION.port() + OTHER_SOCKETS;
        let sockets = ports.zip(0..);
        IpInput {
            sockets: sockets
                .map(|(port, socket)| (SocketAddrV4::new(address, port), socket))
                .collect(),
        }
    }

    /// IP: the header is checked, and the payload of this protocol returned.
    #[inline]
    pub(super) fn ip<'a>(
        &self,
        packet: &'a [u8],
        protocol: u8,
    ) -> Option<(Ipv4View<'a>, &'a [u8])> {
        let view = Ipv4View::parse(packet)?;
        let whole = view.total_length() == packet.len() && view.fragment_offset() == 0;
        let mine = view.destination() == *DESTINATION.ip() && view.protocol() == protocol;
        (whole && mine && !view.more_fragments() && view.has_valid_checksum())
            .then(|| (view, view.payload()))
    }

    /// UDP: checksum and socket; returns its payload and the number of the socket.
    #[inline]
    pub(super) fn udp<'a>(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        datagram: &'a [u8],
    ) -> Option<(usize, &'a [u8])> {
        let view = UdpView::parse(datagram)?;
        if view.length() != datagram.len() {
            return None;
        }
        if view.checksum() != 0 && udp_checksum(&source, &destination, datagram) != 0 {
            return None;
        }
        let socket = SocketAddrV4::new(destination, view.destination_port());
        Some((*self.sockets.get(&socket)?, view.payload()))
    }

    /// Both, and RTP: the payload of a packet in the clear.
    #[inline]
    pub(super) fn rtp<'a>(&self, packet: &'a [u8]) -> Option<RtpView<'a>> {
        let (view, datagram) = self.ip(packet, protocol::UDP)?;
        let (_, payload) = self.udp(view.source(), view.destination(), datagram)?;
        RtpView::parse(payload)
    }
}

/// Damages a sealed packet: changes a bit, for tests of the thresholds.
pub(super) fn damage(packet: &mut [u8]) {
    let middle = packet.len() / 2;
    if let Some(byte) = packet.get_mut(middle) {
        *byte ^= 1;
    }
}

/// Every n-th packet is damaged for a share in percent; `None`: none.
pub(super) fn damaged_every(percent: f64) -> Option<usize> {
    (percent > 0.0).then(|| (100.0 / percent).round().max(1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_packets_are_accepted_and_damaged_ones_are_not() {
        let mut stream = VoiceStream::new(160);
        let mut buffer = [0u8; 300];
        let input = IpInput::new();
        let rtp = stream.next_rtp().to_vec();
        let length = write_udp_packet(&mut buffer, &rtp);
        assert_eq!(length, 200);
        assert_eq!(input.rtp(&buffer[..200]).unwrap().bytes(), rtp);
        assert!(stream.next_rtp() != rtp);
        for at in [3, 9, 18, 23, 24, 26, 199] {
            let mut copy = buffer;
            copy[at] ^= 1;
            assert!(input.rtp(&copy[..200]).is_none(), "byte {at}");
        }
        assert!(input.rtp(&buffer[..199]).is_none());
        let bare = write_bare_packet(&mut buffer, &rtp, 253);
        assert_eq!(bare, 192);
        assert_eq!(input.ip(&buffer[..192], 253).unwrap().1, rtp);
        assert!(input.ip(&buffer[..192], 17).is_none());
        assert_eq!((damaged_every(0.0), damaged_every(50.0)), (None, Some(2)));
    }
}
