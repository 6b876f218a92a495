//! ESP security associations (RFC 4303): counted, and decapsulated where encryption is NULL (RFC 2410, as IMS uses it).

use super::keys::FlowKey;
use super::report::EspReport;
use engine::{BoundedMap, HashKey};
use std::net::{IpAddr, SocketAddr};
use wire::ip::{IpPacket, protocol};

/// Lengths of integrity check values: none, 96 bits, 128, 192, 256.
const CHECK_VALUES: [usize; 5] = [12, 16, 24, 32, 0];

#[derive(Debug)]
struct EspAssociation {
    source: IpAddr,
    destination: IpAddr,
    spi: u32,
    packets: u64,
    lowest: u32,
    highest: u32,
    first_at: u64,
    last_at: u64,
    /// Length of the check value, once packets have shown NULL encryption.
    plain: Option<usize>,
    plain_packets: u64,
}

#[derive(Debug)]
pub(super) struct EspAssociations {
    index: BoundedMap<FlowKey, usize>,
    list: Vec<EspAssociation>,
}

impl EspAssociations {
    pub(super) fn new(limit: usize, key: HashKey) -> EspAssociations {
        EspAssociations {
            index: BoundedMap::new(limit, key),
            list: Vec::new(),
        }
    }

    /// Counts a packet; returns protocol and payload of an unencrypted one.
    pub(super) fn receive<'a>(
        &mut self,
        time: u64,
        packet: &IpPacket<'a>,
    ) -> Option<(u8, &'a [u8])> {
        let header = packet.payload.first_chunk::<8>()?;
        let [a, b, c, d, e, f, g, h] = *header;
        let (spi, sequence) = (
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
        );
        let key = FlowKey::new(
            SocketAddr::new(packet.source, 0),
            SocketAddr::new(packet.destination, 0),
            spi,
        );
        let index = match self.index.get(&key) {
            Some(index) => *index,
            None => {
                self.index.insert(key, self.list.len()).ok()?;
                self.list.push(EspAssociation {
                    source: packet.source,
                    destination: packet.destination,
                    spi,
                    packets: 0,
                    lowest: sequence,
                    highest: sequence,
                    first_at: time,
                    last_at: time,
                    plain: None,
                    plain_packets: 0,
                });
                self.list.len() - 1
            }
        };
        let association = self.list.get_mut(index)?;
        association.packets += 1;
        association.lowest = association.lowest.min(sequence);
        association.highest = association.highest.max(sequence);
        association.last_at = time;
        if packet.is_truncated() {
            return None;
        }
        let body = packet.payload.get(8..)?;
        let (length, inner) = match association.plain {
            Some(length) => (length, plain_inner(packet, body, length)?),
            None => CHECK_VALUES
                .iter()
                .find_map(|length| Some((*length, plain_inner(packet, body, *length)?)))?,
        };
        association.plain = Some(length);
        association.plain_packets += 1;
        Some(inner)
    }

    pub(super) fn report(&self) -> Vec<EspReport> {
        self.list
            .iter()
            .map(|association| EspReport {
                src: association.source.to_string(),
                dst: association.destination.to_string(),
                spi: format!("0x{:08x}", association.spi),
                packets: association.packets,
                lowest_seq: association.lowest,
                highest_seq: association.highest,
                duration_s: association.last_at.saturating_sub(association.first_at) as f64 / 1e9,
                encrypted: association.plain_packets * 2 < association.packets,
            })
            .collect()
    }
}

/// Protocol and payload of a body whose trailer and transport header are valid without decryption: the padding counts
/// 1, 2, 3 ..., and a UDP length, a TCP checksum or the header of an inner IP packet fits.
fn plain_inner<'a>(
    packet: &IpPacket<'_>,
    body: &'a [u8],
    check_value: usize,
) -> Option<(u8, &'a [u8])> {
    let body = body.get(..body.len().checked_sub(check_value)?)?;
    let [rest @ .., padding, next] = body else {
        return None;
    };
    let (payload, pad) = rest.split_at_checked(rest.len().checked_sub(usize::from(*padding))?)?;
    let counts = pad.iter().zip(1u8..).all(|(byte, count)| *byte == count);
    if !counts || body.len() % 4 != 0 {
        return None;
    }
    let fits = match *next {
        protocol::UDP => wire::udp::UdpView::parse(payload)?.length() == payload.len(),
        protocol::TCP => {
            // The other fields of a TCP header fit by chance too often.
            wire::tcp::TcpView::parse(payload)?;
            tcp_checksum_is_right(packet, payload)
        }
        protocol::IPIP | protocol::IPV6 => {
            let inner = IpPacket::parse(payload)?;
            !inner.is_truncated()
                && matches!((next, inner.source.is_ipv4()), (4, true) | (41, false))
        }
        _ => false,
    };
    fits.then_some((*next, payload))
}

/// RFC 9293 section 3.1: the sum over pseudo header and segment is all ones.
fn tcp_checksum_is_right(packet: &IpPacket<'_>, segment: &[u8]) -> bool {
    let sum_of = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => u64::from(*high) << 8 | u64::from(*low),
                [high] => u64::from(*high) << 8,
                _ => 0,
            })
            .sum()
    };
    let addresses = |address: IpAddr| match address {
        IpAddr::V4(v4) => sum_of(&v4.octets()),
        IpAddr::V6(v6) => sum_of(&v6.octets()),
    };
    let mut sum = addresses(packet.source)
        + addresses(packet.destination)
        + u64::from(protocol::TCP)
        + segment.len() as u64
        + sum_of(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}
