//! Associations by their SPI, with a limit, and drops that are counted.

use super::packet::{Extensions, PayloadPlace};
use super::{EspFailure, InboundSa, OpenedPacket, OutboundSa, PacketRoom, SaError};
use engine::{BoundedMap, Drops, Entropy, HashKey, Time};
use wire::esp::{EspView, LAST_RESERVED_SPI};
use wire::ip::protocol;

/// A value that is stored by its SPI.
pub trait SecurityAssociation {
    /// Its security parameter index.
    fn spi(&self) -> u32;
}

impl SecurityAssociation for InboundSa {
    fn spi(&self) -> u32 {
        self.spec().spi
    }
}

impl SecurityAssociation for OutboundSa {
    fn spi(&self) -> u32 {
        self.spec().spi
    }
}

/// Associations of one direction by their SPI. Unicast packets are assigned by the SPI alone (RFC 4301 section 4.1),
/// which the receiver has chosen. A packet with an unknown SPI is counted and costs no memory.
#[derive(Debug)]
pub struct SaTable<S> {
    by_spi: BoundedMap<u32, S>,
}

impl<S: SecurityAssociation> SaTable<S> {
    /// An empty table of at most `limit` associations.
    pub fn new(limit: usize, key: HashKey) -> SaTable<S> {
        SaTable {
            by_spi: BoundedMap::new(limit, key),
        }
    }

    /// Adds an association.
    ///
    /// # Errors
    /// [`SaError::DuplicateSpi`], [`SaError::TableFull`].
    pub fn insert(&mut self, sa: S) -> Result<(), SaError> {
        let spi = sa.spi();
        if self.by_spi.get(&spi).is_some() {
            return Err(SaError::DuplicateSpi(spi));
        }
        match self.by_spi.insert(spi, sa) {
            Ok(_) => Ok(()),
            Err(_) => Err(SaError::TableFull),
        }
    }

    /// Removes an association; its keys are wiped when it is dropped.
    pub fn remove(&mut self, spi: u32) -> Option<S> {
        self.by_spi.remove(&spi)
    }

    /// The association with an SPI.
    pub fn get(&self, spi: u32) -> Option<&S> {
        self.by_spi.get(&spi)
    }

    /// The association with an SPI.
    #[inline]
    pub fn get_mut(&mut self, spi: u32) -> Option<&mut S> {
        self.by_spi.get_mut(&spi)
    }

    /// Number of associations.
    pub fn len(&self) -> usize {
        self.by_spi.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_spi.is_empty()
    }

    /// All associations, in no order.
    pub fn iter_unordered(&self) -> impl Iterator<Item = &S> {
        self.by_spi.iter_unordered().map(|(_, sa)| sa)
    }

    /// Calls `each` with every association, in no order.
    pub fn for_each_mut(&mut self, each: impl FnMut(&mut S)) {
        self.by_spi.values_mut_unordered().for_each(each);
    }

    /// Keeps the associations for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        self.by_spi.retain(|_, sa| keep(sa));
    }

    /// A random SPI that is not in use and not reserved.
    pub fn unused_spi(&self, entropy: &mut Entropy) -> u32 {
        loop {
            let spi = entropy.u32();
            if spi > LAST_RESERVED_SPI && self.by_spi.get(&spi).is_none() {
                return spi;
            }
        }
    }
}

impl SaTable<InboundSa> {
    /// Opens a complete IP packet with the association of its SPI; see [`InboundSa::open_packet`]. A packet that is
    /// not opened is counted.
    #[inline]
    pub fn open_packet(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
        drops: &mut Drops,
    ) -> Option<OpenedPacket> {
        let opened = match spi_of(room.packet()) {
            Ok(spi) => match self.by_spi.get_mut(&spi) {
                Some(sa) => sa.open_packet(room, now),
                None => Err(EspFailure::UnknownSpi),
            },
            Err(failure) => Err(failure),
        };
        opened
            .inspect_err(|failure| drops.count(failure.reason()))
            .ok()
    }

    /// Opens packets one after the other; `opened` receives the index of each that was opened, others are counted.
    pub fn open_batch(
        &mut self,
        packets: &mut [PacketRoom<'_>],
        now: Time,
        drops: &mut Drops,
        mut opened: impl FnMut(usize, OpenedPacket),
    ) {
        for (index, room) in packets.iter_mut().enumerate() {
            if let Some(packet) = self.open_packet(room, now, drops) {
                opened(index, packet);
            }
        }
    }
}

/// The SPI of an IP packet with ESP, or with ESP in UDP.
#[inline]
fn spi_of(packet: &[u8]) -> Result<u32, EspFailure> {
    let place = PayloadPlace::find(packet, Extensions::All).ok_or(EspFailure::Malformed)?;
    if place.is_fragment {
        return Err(EspFailure::Fragment);
    }
    let at = match place.protocol {
        protocol::ESP => place.offset,
        protocol::UDP => place.offset + 8,
        _ => return Err(EspFailure::Malformed),
    };
    packet
        .get(at..place.end)
        .and_then(EspView::parse)
        .map(|view| view.spi())
        .ok_or(EspFailure::Malformed)
}
