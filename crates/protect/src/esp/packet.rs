//! IP headers around ESP: read, written and changed in place.

use super::EspFailure;
use super::spec::{DfPolicy, EcnPolicy, SaSpec, UdpEncapsulation};
use core::net::IpAddr;
use wire::ip::{internet_checksum, protocol};

/// Time to live of outer headers.
const OUTER_TTL: u8 = 64;
const UDP_HEADER: usize = 8;

/// A packet in a buffer that has room before and behind it, so that headers and trailer can be added in place.
#[derive(Debug)]
pub struct PacketRoom<'a> {
    /// The buffer.
    pub buffer: &'a mut [u8],
    /// Start of the packet.
    pub start: usize,
    /// End of the packet.
    pub end: usize,
}

impl<'a> PacketRoom<'a> {
    /// A packet of `length` bytes that begins at `start`.
    pub fn new(buffer: &'a mut [u8], start: usize, length: usize) -> PacketRoom<'a> {
        PacketRoom {
            buffer,
            start,
            end: start.saturating_add(length),
        }
    }

    /// The packet; empty if its bounds lie outside of the buffer.
    pub fn packet(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn packet_mut(&mut self) -> &mut [u8] {
        self.buffer
            .get_mut(self.start..self.end)
            .unwrap_or_default()
    }
}

/// The fields of an IP header that tunnels look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct InnerHeader {
    pub is_v4: bool,
    /// Length of the packet by its header.
    pub length: usize,
    pub traffic_class: u8,
    pub dont_fragment: bool,
}

impl InnerHeader {
    /// `None` if it is no IP packet, or its header contradicts the length.
    #[inline]
    pub fn read(packet: &[u8]) -> Option<InnerHeader> {
        let header = match packet.first()? >> 4 {
            4 => {
                let [first, tos, l1, l0, _, _, flags, ..] = *packet.first_chunk::<20>()?;
                let length = usize::from(u16::from_be_bytes([l1, l0]));
                let ihl = usize::from(first & 15) * 4;
                if ihl < 20 || length < ihl {
                    return None;
                }
                InnerHeader {
                    is_v4: true,
                    length,
                    traffic_class: tos,
                    dont_fragment: flags & 0x40 != 0,
                }
            }
            6 => {
                let [first, second, _, _, l1, l0, ..] = *packet.first_chunk::<40>()?;
                InnerHeader {
                    is_v4: false,
                    length: 40 + usize::from(u16::from_be_bytes([l1, l0])),
                    traffic_class: first << 4 | second >> 4,
                    dont_fragment: true,
                }
            }
            _ => return None,
        };
        (header.length <= packet.len()).then_some(header)
    }

    /// The destination of the packet, which was read before.
    #[inline]
    pub fn destination(&self, packet: &[u8]) -> Option<IpAddr> {
        if self.is_v4 {
            Some(IpAddr::from(*packet.get(16..20)?.first_chunk::<4>()?))
        } else {
            Some(IpAddr::from(*packet.get(24..40)?.first_chunk::<16>()?))
        }
    }

    pub fn next_header(&self) -> u8 {
        if self.is_v4 {
            protocol::IPIP
        } else {
            protocol::IPV6
        }
    }
}

/// Where the payload of an IP packet begins, and which byte names its protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct PayloadPlace {
    pub is_v4: bool,
    pub offset: usize,
    pub end: usize,
    pub protocol: u8,
    pub protocol_at: usize,
    pub is_fragment: bool,
}

/// Which IPv6 extension headers stay before the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extensions {
    /// Those that routers read: ESP of transport mode stands behind them (RFC 4303 section 3.1.1).
    OfRouters,
    /// All.
    All,
}

impl PayloadPlace {
    #[inline]
    pub fn find(packet: &[u8], extensions: Extensions) -> Option<PayloadPlace> {
        let inner = InnerHeader::read(packet)?;
        if inner.is_v4 {
            let header = packet.first_chunk::<20>()?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
            return Some(PayloadPlace {
                is_v4: true,
                offset: usize::from(header[0] & 15) * 4,
                end: inner.length,
                protocol: header[9],
                protocol_at: 9,
                is_fragment: fragment != 0,
            });
        }
        PayloadPlace::find_v6(packet, inner.length, extensions)
    }

    fn find_v6(packet: &[u8], end: usize, extensions: Extensions) -> Option<PayloadPlace> {
        let mut place = PayloadPlace {
            is_v4: false,
            offset: 40,
            end,
            protocol: *packet.get(6)?,
            protocol_at: 6,
            is_fragment: false,
        };
        let mut stop = place;
        // A packet has few of them; an attacker's many are refused.
        for _ in 0..8 {
            let header = packet.get(place.offset..end)?;
            let length = match place.protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => (usize::from(*header.get(1)?) + 1) * 8,
                44 => 8,
                _ => {
                    return Some(match extensions {
                        Extensions::All => place,
                        Extensions::OfRouters => PayloadPlace {
                            is_fragment: place.is_fragment,
                            ..stop
                        },
                    });
                }
            };
            place.is_fragment |= place.protocol == 44;
            // Destination options before a routing header are read on the way, others at the end.
            let of_routers = place.protocol != 60;
            place.protocol_at = place.offset;
            place.protocol = *header.first()?;
            place.offset += length;
            if place.offset > end {
                return None;
            }
            if of_routers {
                stop = place;
            }
        }
        None
    }
}

/// Writes length and protocol of a header that was moved, and its checksum. `place` is relative to `packet`.
pub(super) fn rewrite_header(
    packet: &mut [u8],
    place: &PayloadPlace,
    protocol: u8,
) -> Result<(), EspFailure> {
    let length = u16::try_from(packet.len() - if place.is_v4 { 0 } else { 40 })
        .map_err(|_| EspFailure::TooLarge)?
        .to_be_bytes();
    if let Some(byte) = packet.get_mut(place.protocol_at) {
        *byte = protocol;
    }
    let at = if place.is_v4 { 2 } else { 4 };
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&length);
    }
    if place.is_v4 {
        write_v4_checksum(packet.get_mut(..place.offset).unwrap_or_default());
    }
    Ok(())
}

fn write_v4_checksum(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
    }
    let sum = internet_checksum(&[header]).to_be_bytes();
    if let Some(field) = header.get_mut(10..12) {
        field.copy_from_slice(&sum);
    }
}

/// Outer headers of a tunnel, UDP included.
#[derive(Clone, Debug)]
pub(super) struct OuterHeader {
    source: IpAddr,
    destination: IpAddr,
    udp: Option<UdpEncapsulation>,
    dscp: Option<u8>,
    ecn: EcnPolicy,
    df: DfPolicy,
    /// Identification of the next packet that may be fragmented.
    identification: u16,
}

impl OuterHeader {
    pub fn new(spec: &SaSpec, source: IpAddr, destination: IpAddr) -> OuterHeader {
        OuterHeader {
            source,
            destination,
            udp: spec.encapsulation,
            dscp: spec.dscp,
            ecn: spec.ecn,
            df: spec.df,
            identification: spec.spi as u16,
        }
    }

    pub fn length(&self) -> usize {
        let ip = if self.source.is_ipv4() { 20 } else { 40 };
        ip + self.udp.map_or(0, |_| UDP_HEADER)
    }

    /// The traffic class of the outer header: DSCP copied or set, ECN by RFC 6040 section 4.1.
    #[inline]
    pub fn traffic_class(&self, inner: &InnerHeader) -> u8 {
        outer_traffic_class(self.dscp, self.ecn, inner.traffic_class)
    }

    /// Writes the headers to the start of `packet`, whose ESP packet is complete.
    #[inline]
    pub fn write(&mut self, packet: &mut [u8], inner: &InnerHeader) -> Result<(), EspFailure> {
        let total = u16::try_from(packet.len()).map_err(|_| EspFailure::TooLarge)?;
        let traffic_class = self.traffic_class(inner);
        let dont_fragment = match self.df {
            DfPolicy::Copy => inner.dont_fragment,
            DfPolicy::Set => true,
            DfPolicy::Clear => false,
        };
        let protocol = self.udp.map_or(protocol::ESP, |_| protocol::UDP);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = packet.first_chunk_mut::<20>().ok_or(EspFailure::NoRoom)?;
                *header = [0; 20];
                header[0] = 0x45;
                header[1] = traffic_class;
                header[2..4].copy_from_slice(&total.to_be_bytes());
                if dont_fragment {
                    header[6] = 0x40;
                } else {
                    // RFC 6864: only packets that may be fragmented need an identification.
                    self.identification = self.identification.wrapping_add(1);
                    header[4..6].copy_from_slice(&self.identification.to_be_bytes());
                }
                header[8] = OUTER_TTL;
                header[9] = protocol;
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&destination.octets());
                let checksum = internet_checksum(&[&header[..]]);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = packet.first_chunk_mut::<40>().ok_or(EspFailure::NoRoom)?;
                *header = [0; 40];
                header[0] = 0x60 | traffic_class >> 4;
                header[1] = traffic_class << 4;
                let length = total.checked_sub(40).ok_or(EspFailure::NoRoom)?;
                header[4..6].copy_from_slice(&length.to_be_bytes());
                header[6] = protocol;
                header[7] = OUTER_TTL;
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&destination.octets());
            }
            _ => return Err(EspFailure::Malformed),
        }
        if let Some(udp) = self.udp {
            let ip = self.length() - UDP_HEADER;
            let datagram = packet.get_mut(ip..).ok_or(EspFailure::NoRoom)?;
            write_udp(datagram, udp, self.source, self.destination)?;
        }
        Ok(())
    }
}

#[inline]
pub(super) fn outer_traffic_class(dscp: Option<u8>, ecn: EcnPolicy, inner: u8) -> u8 {
    let dscp = dscp.map_or(inner & 0xfc, |dscp| dscp << 2);
    match ecn {
        EcnPolicy::Normal => dscp | inner & 3,
        EcnPolicy::Compatibility => dscp,
    }
}

/// Writes a UDP header to the start of `datagram`. Its checksum is zero in IPv4 (RFC 3948 section 2.1); IPv6 requires
/// one.
pub(super) fn write_udp(
    datagram: &mut [u8],
    udp: UdpEncapsulation,
    source: IpAddr,
    destination: IpAddr,
) -> Result<(), EspFailure> {
    let length = u16::try_from(datagram.len()).map_err(|_| EspFailure::TooLarge)?;
    let header = datagram.first_chunk_mut::<8>().ok_or(EspFailure::NoRoom)?;
    header[..2].copy_from_slice(&udp.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&udp.destination_port.to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6..].fill(0);
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
        let mut pseudo = [0u8; 8];
        pseudo[2..4].copy_from_slice(&length.to_be_bytes());
        pseudo[7] = protocol::UDP;
        let sum = internet_checksum(&[&source.octets(), &destination.octets(), &pseudo, datagram]);
        let sum = if sum == 0 { u16::MAX } else { sum };
        if let Some(field) = datagram.get_mut(6..8) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    }
    Ok(())
}

/// Carries congestion marks of the outer header into the inner one (RFC 6040 section 4.2).
///
/// # Errors
/// [`EspFailure::CongestionLost`]: the inner packet has no ECN; a drop is its mark.
#[inline]
pub(super) fn open_ecn(
    packet: &mut [u8],
    inner: &InnerHeader,
    outer: u8,
) -> Result<(), EspFailure> {
    const NOT_ECT: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const CE: u8 = 3;
    let ecn = match (inner.traffic_class & 3, outer & 3) {
        (NOT_ECT, CE) => return Err(EspFailure::CongestionLost),
        (ECT_0 | ECT_1, CE) => CE,
        (ECT_0, ECT_1) => ECT_1,
        _ => return Ok(()),
    };
    if inner.is_v4 {
        if let Some(tos) = packet.get_mut(1) {
            *tos = *tos & 0xfc | ecn;
        }
        let length = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
        write_v4_checksum(packet.get_mut(..length).unwrap_or_default());
    } else if let Some(byte) = packet.get_mut(1) {
        // The field is the middle of the second byte's upper half.
        *byte = *byte & 0xcf | ecn << 4;
    }
    Ok(())
}
