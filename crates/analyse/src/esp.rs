//! ESP security associations (RFC 4303): counted, decapsulated where encryption is NULL (RFC 2410, as IMS uses it), and
//! opened with the keys of an `esp_sa` file.

use super::keys::FlowKey;
use super::report::EspReport;
use engine::{BoundedMap, HashKey};
use protect::esp::{EspEncryption, EspFailure, EspSaLine, EspTransform};
use std::borrow::Cow;
use std::collections::BTreeMap;
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
    /// Index of its keys.
    key: Option<usize>,
    opened: u64,
    failed: u64,
}

/// A line of the key file, prepared.
struct AssociationKey {
    line: EspSaLine,
    transform: EspTransform,
}

/// Keys for the packets from one address to another.
#[derive(Default)]
struct DirectionKeys {
    /// A key has opened packets.
    opens: bool,
    /// An association has a key, or is not encrypted.
    is_readable: bool,
    /// SPI of the first association without a key.
    unknown: Option<u32>,
}

/// A payload with its protocol.
type InnerPayload<'a> = (u8, Cow<'a, [u8]>);

pub(super) struct EspAssociations {
    index: BoundedMap<FlowKey, usize>,
    list: Vec<EspAssociation>,
    keys: Vec<AssociationKey>,
    refused: u64,
}

impl std::fmt::Debug for EspAssociations {
    /// Omits the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EspAssociations")
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

impl EspAssociations {
    pub(super) fn new(limit: usize, key: HashKey) -> EspAssociations {
        EspAssociations {
            index: BoundedMap::new(limit, key),
            list: Vec::new(),
            keys: Vec::new(),
            refused: 0,
        }
    }

    /// Packets of associations beyond the limit, which were not opened.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Opens packets with these keys; the first line that matches an association counts, as in Wireshark.
    pub(super) fn set_keys(&mut self, lines: Vec<EspSaLine>) {
        let prepare = |line: EspSaLine| {
            let transform = line.transform().ok()?;
            Some(AssociationKey { line, transform })
        };
        self.keys = lines.into_iter().filter_map(prepare).collect();
    }

    /// Whether there are keys for a packet.
    pub(super) fn has_key(&self, source: IpAddr, destination: IpAddr, spi: u32) -> bool {
        self.key_of(source, destination, spi).is_some()
    }

    fn key_of(&self, source: IpAddr, destination: IpAddr, spi: u32) -> Option<usize> {
        self.keys
            .iter()
            .position(|key| key.line.matches(source, destination, spi))
    }

    /// Packets with keys that did not open them.
    pub(super) fn failed(&self) -> u64 {
        self.list.iter().map(|association| association.failed).sum()
    }

    /// Counts a packet; returns protocol and payload of an unencrypted one, and of one that keys open.
    pub(super) fn receive<'a>(
        &mut self,
        time: u64,
        packet: &IpPacket<'a>,
    ) -> Option<InnerPayload<'a>> {
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
                if self.index.insert(key, self.list.len()).is_err() {
                    self.refused += 1;
                    return None;
                }
                let key = self.key_of(packet.source, packet.destination, spi);
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
                    key,
                    opened: 0,
                    failed: 0,
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
        if let Some(key) = association.key.and_then(|key| self.keys.get(key)) {
            let opened = key.open(packet.payload);
            match &opened {
                Ok(_) => association.opened += 1,
                Err(_) => association.failed += 1,
            }
            // A wrong key of the integrity protection hides nothing.
            let is_plain = key.line.suite.encryption == EspEncryption::Null
                && (opened.is_ok()
                    || CHECK_VALUES
                        .iter()
                        .any(|length| unencrypted_payload(packet, &esp, *length).is_some()));
            association.plain_packets += u64::from(is_plain);
            let (protocol, payload) = opened.ok()?;
            return Some((protocol, Cow::Owned(payload)));
        }
        let (length, inner) = match association.plain {
            Some(length) => (length, unencrypted_payload(packet, &esp, length)?),
            None => CHECK_VALUES
                .iter()
                .find_map(|length| Some((*length, unencrypted_payload(packet, &esp, *length)?)))?,
        };
        association.plain = Some(length);
        association.plain_packets += 1;
        let (protocol, payload) = inner;
        Some((protocol, Cow::Borrowed(payload)))
    }

    /// Directions without a key while packets of the other direction are opened, as texts.
    pub(super) fn one_way(&self) -> Vec<String> {
        let mut directions: BTreeMap<(IpAddr, IpAddr), DirectionKeys> = BTreeMap::new();
        for association in &self.list {
            let ends = (association.source, association.destination);
            let keys = directions.entry(ends).or_default();
            keys.opens |= association.opened > 0;
            match association.key.is_some() || association.plain.is_some() {
                true => keys.is_readable = true,
                false => keys.unknown = keys.unknown.or(Some(association.spi)),
            }
        }
        let opened = directions.iter().filter(|(_, keys)| keys.opens);
        let notes = opened.filter_map(|((source, destination), _)| {
            let back = directions.get(&(*destination, *source))?;
            let spi = back.unknown.filter(|_| !back.is_readable)?;
            Some(format!(
                "ESP from {destination} to {source}, SPI {spi:#010x}: no key fits, while the other direction is opened"
            ))
        });
        notes.collect()
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
                opened: association.opened,
                failed: association.failed,
            })
            .collect()
    }
}

impl AssociationKey {
    /// Opens an ESP packet from the SPI on; protocol and payload.
    fn open(&self, esp: &[u8]) -> Result<(u8, Vec<u8>), EspFailure> {
        let unverified = self.line.unverified_icv.unwrap_or(0);
        let length = esp.len().checked_sub(unverified);
        let esp = length
            .and_then(|length| esp.get(..length))
            .ok_or(EspFailure::Malformed)?;
        let Some(upper) = self.line.extended_sequence else {
            return self.open_once(esp, None);
        };
        // The upper half is that of the first packets; a long capture passes into the next cycle.
        self.open_once(esp, Some(upper))
            .or_else(|_| self.open_once(esp, Some(upper.wrapping_add(1))))
    }

    fn open_once(&self, esp: &[u8], upper: Option<u32>) -> Result<(u8, Vec<u8>), EspFailure> {
        let mut bytes = esp.to_vec();
        let opened = self.transform.open(&mut bytes, upper)?;
        let payload = bytes.get(opened.range).ok_or(EspFailure::Malformed)?;
        Ok((opened.next_header, payload.to_vec()))
    }
}
