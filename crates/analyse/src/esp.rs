//! ESP security associations (RFC 4303): counted, and decapsulated where encryption is NULL (RFC 2410, as IMS uses it).

use super::keys::FlowKey;
use super::report::EspReport;
use engine::{BoundedMap, HashKey};
use std::net::{IpAddr, SocketAddr};
use wire::esp::{EspView, unencrypted_payload};
use wire::ip::IpPacket;

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
        let esp = EspView::parse(packet.payload)?;
        let (spi, sequence) = (esp.spi(), esp.sequence());
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
        let (length, inner) = match association.plain {
            Some(length) => (length, unencrypted_payload(packet, &esp, length)?),
            None => CHECK_VALUES
                .iter()
                .find_map(|length| Some((*length, unencrypted_payload(packet, &esp, *length)?)))?,
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
