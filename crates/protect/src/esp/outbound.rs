//! Sealing of packets that are sent.

use super::lifetime::LifetimeCounter;
use super::packet::{
    Extensions, InnerHeader, OuterHeader, PayloadPlace, outer_traffic_class, rewrite_header,
    write_udp,
};
use super::shortcut::DIRECT;
use super::{
    EspFailure, EspTransform, LifetimeStatus, PacketFacts, PacketRoom, RekeyReason, SaError,
    SaMode, SaSpec, SaUsage,
};
use crate::cipher::{CounterKey, PacketCipher};
use core::net::IpAddr;
use core::ops::Range;
use engine::{Entropy, Time};
use serde::{Deserialize, Serialize};
use wire::esp::{DUMMY, EspView};
use wire::ip::{IpPacket, protocol};
use zeroize::Zeroizing;

/// Initialisation vectors that are made together.
const IVS: usize = 8;
/// Largest IP packet.
const MAX_PACKET: usize = 65_535;

/// A packet that was sealed; its place is in the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedPacket {
    /// Its sequence number; 64 bits with extended sequence numbers.
    pub sequence: u64,
    /// Traffic class of the outer header, for a socket that writes it.
    pub traffic_class: u8,
    /// A new association is due; said once.
    pub rekey: Option<RekeyReason>,
}

/// State of an association that seals, to be written out; it has no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundState {
    /// SPI of the association.
    pub spi: u32,
    /// The next sequence number.
    pub next_sequence: u64,
    /// Consumption.
    pub usage: SaUsage,
}

/// A security association that seals packets (RFC 4303 section 3.3).
pub struct OutboundSa {
    transform: EspTransform,
    /// Encrypts the sequence number to an unpredictable initialisation vector for CBC (RFC 3602 section 3; method of
    /// NIST SP 800-38A appendix C with a key of its own).
    iv_key: CounterKey,
    /// Initialisation vectors of the sequence numbers that begin with a multiple of eight: made together, they cost a
    /// fraction.
    ivs: [u8; 16 * IVS],
    ivs_from: u64,
    next: u64,
    /// Last sequence number of the association.
    last: u64,
    /// Last sequence number that may be used until more are reserved.
    reserved: u64,
    lifetime: LifetimeCounter,
    outer: Option<OuterHeader>,
    path_mtu: Option<usize>,
    spec: Box<SaSpec>,
}

impl OutboundSa {
    /// A new association, whose first packet has sequence number 1. `entropy` gives the key of initialisation vectors.
    ///
    /// # Errors
    /// The description is invalid.
    pub fn new(spec: SaSpec, entropy: &mut Entropy, now: Time) -> Result<OutboundSa, SaError> {
        spec.check()?;
        let transform = EspTransform::new(spec.suite, &spec.keys)?;
        let mut key = Zeroizing::new([0u8; 16]);
        entropy.fill(&mut *key);
        let iv_key = CounterKey::new(&*key).map_err(|_| SaError::State)?;
        let outer = match spec.mode {
            SaMode::Tunnel {
                source,
                destination,
            } => Some(OuterHeader::new(&spec, source, destination)),
            SaMode::Transport => None,
        };
        Ok(OutboundSa {
            transform,
            iv_key,
            ivs: [0; 16 * IVS],
            // No number is that of made vectors yet.
            ivs_from: u64::MAX,
            next: 1,
            last: if spec.extended_sequence {
                u64::MAX
            } else {
                u64::from(u32::MAX)
            },
            reserved: u64::MAX,
            lifetime: LifetimeCounter::new(spec.lifetime, SaUsage::default(), now),
            outer,
            path_mtu: None,
            spec: Box::new(spec),
        })
    }

    /// An association that continues from a written state. `skip` sequence numbers are left out: more than were sealed
    /// after the state was written, for a repeated number would repeat a nonce.
    ///
    /// # Errors
    /// The description is invalid, or the state is of another association.
    pub fn resume(
        spec: SaSpec,
        state: &OutboundState,
        skip: u64,
        entropy: &mut Entropy,
        now: Time,
    ) -> Result<OutboundSa, SaError> {
        if spec.spi != state.spi || state.next_sequence == 0 {
            return Err(SaError::State);
        }
        let mut sa = OutboundSa::new(spec, entropy, now)?;
        sa.next = state.next_sequence.saturating_add(skip);
        sa.lifetime = LifetimeCounter::new(sa.spec.lifetime, state.usage, now);
        Ok(sa)
    }

    /// The state to be written out.
    pub fn state(&self, now: Time) -> OutboundState {
        OutboundState {
            spi: self.spec.spi,
            next_sequence: self.next,
            usage: self.lifetime.usage(now),
        }
    }

    /// The description.
    pub fn spec(&self) -> &SaSpec {
        &self.spec
    }

    /// Where the association stands in its lifetime.
    pub fn lifetime(&self, now: Time) -> LifetimeStatus {
        self.lifetime.status(self.sequence_due(), now)
    }

    /// Whether the next packet is sealed: the lifetime has not ended, and sequence numbers are left.
    pub fn can_seal(&self, now: Time) -> bool {
        self.next <= self.last.min(self.reserved) && self.lifetime(now) != LifetimeStatus::Expired
    }

    /// The next bound of time.
    pub fn next_bound(&self, now: Time) -> Option<Time> {
        self.lifetime.next_bound(now)
    }

    /// Nothing has taken the notice that new keys are due: the next packet gives it again.
    pub(super) fn report_again(&mut self) {
        self.lifetime.report_again();
    }

    /// Limits sealed packets to the path MTU that an ICMP error reported (RFC 4301 section 8.2); less than 68 bytes
    /// (IPv4) or 1,280 (IPv6) is not believed. `None` lifts the limit.
    pub fn set_path_mtu(&mut self, mtu: Option<usize>) {
        let least = match &self.spec.mode {
            SaMode::Tunnel {
                source: IpAddr::V6(_),
                ..
            } => 1_280,
            _ => 68,
        };
        self.path_mtu = mtu.map(|mtu| mtu.max(least));
    }

    /// The longest packet that fits the path MTU when sealed, for the ICMP error to its sender; `None` without a known
    /// path MTU.
    pub fn inner_mtu(&self) -> Option<usize> {
        let mtu = self.path_mtu?;
        let suite = self.spec.suite;
        let fixed = self.outer_length()
            + EspView::HEADER
            + suite.encryption.iv_length()
            + suite.icv_length();
        let plain = mtu.saturating_sub(fixed);
        let aligned = plain - plain % suite.encryption.alignment();
        Some(aligned.saturating_sub(2))
    }

    /// Refuses sequence numbers beyond `last`: those up to it are reserved in a file, so that no restart repeats one. A
    /// later call with a greater number allows more.
    pub fn limit_sequence(&mut self, last: u64) {
        self.reserved = last;
    }

    fn outer_length(&self) -> usize {
        match &self.outer {
            Some(outer) => outer.length(),
            None => self.spec.encapsulation.map_or(0, |_| 8),
        }
    }

    fn sequence_due(&self) -> bool {
        self.next > self.last - (self.last >> 4)
    }

    /// Whether a packet is to be sealed with this association.
    pub fn selects(&self, facts: &PacketFacts) -> bool {
        let selectors = &self.spec.selectors;
        selectors.is_empty() || selectors.iter().any(|selector| selector.matches(facts))
    }

    /// Seals a complete IP packet: in tunnel mode with a new header around it, in transport mode behind its own. On
    /// success the room holds the complete packet for the wire; on an error it is as it was.
    ///
    /// # Errors
    /// Any but those of opening.
    #[inline]
    pub fn seal_packet(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let inner = InnerHeader::read(room.packet()).ok_or(EspFailure::Malformed)?;
        let end = room.start + inner.length;
        if !self.spec.selectors.is_empty() {
            let packet = IpPacket::parse(room.packet()).ok_or(EspFailure::Malformed)?;
            if !self.selects(&PacketFacts::of(&packet)) {
                return Err(EspFailure::Selector);
            }
        }
        if self.outer.is_some() {
            self.seal_in_tunnel(room, &inner, end, now)
        } else {
            self.seal_behind_header(room, &inner, now)
        }
    }

    #[inline]
    fn seal_in_tunnel(
        &mut self,
        room: &mut PacketRoom<'_>,
        inner: &InnerHeader,
        end: usize,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let length = self.outer_length();
        if inner.dont_fragment {
            self.check_path_mtu(length, inner.length)?;
        }
        let sealed = self.seal_esp(room, room.start..end, inner.next_header(), length, now)?;
        let start = sealed.esp.start - length;
        let outer = self.outer.as_mut().ok_or(EspFailure::Malformed)?;
        let packet = room.buffer.get_mut(start..sealed.esp.end);
        outer.write(packet.ok_or(EspFailure::NoRoom)?, inner)?;
        let traffic_class = outer.traffic_class(inner);
        (room.start, room.end) = (start, sealed.esp.end);
        Ok(sealed.finish(traffic_class))
    }

    fn seal_behind_header(
        &mut self,
        room: &mut PacketRoom<'_>,
        inner: &InnerHeader,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let place = PayloadPlace::find(room.packet(), Extensions::OfRouters)
            .ok_or(EspFailure::Malformed)?;
        if place.is_fragment {
            return Err(EspFailure::Fragment);
        }
        let payload = room.start + place.offset..room.start + place.end;
        let udp = self.outer_length();
        let before = udp + place.offset;
        if inner.dont_fragment {
            self.check_path_mtu(before, payload.len())?;
        }
        // The header is moved first, because the ESP header takes its place.
        let added = udp + EspView::HEADER + self.spec.suite.encryption.iv_length();
        let start = room.start.checked_sub(added).ok_or(EspFailure::NoRoom)?;
        let mut header = [0u8; 1_024];
        let header = header
            .get_mut(..place.offset)
            .ok_or(EspFailure::Malformed)?;
        header.copy_from_slice(room.packet().get(..place.offset).unwrap_or_default());
        let sealed = self.seal_esp(room, payload, place.protocol, before, now)?;
        let packet = room
            .buffer
            .get_mut(start..sealed.esp.end)
            .ok_or(EspFailure::NoRoom)?;
        packet
            .get_mut(..place.offset)
            .ok_or(EspFailure::NoRoom)?
            .copy_from_slice(header);
        let protocol = self
            .spec
            .encapsulation
            .map_or(protocol::ESP, |_| protocol::UDP);
        rewrite_header(packet, &place, protocol)?;
        if let Some(udp) = self.spec.encapsulation {
            let facts = IpPacket::parse(packet).ok_or(EspFailure::Malformed)?;
            let (source, destination) = (facts.source, facts.destination);
            let datagram = packet.get_mut(place.offset..).ok_or(EspFailure::NoRoom)?;
            write_udp(datagram, udp, source, destination)?;
        }
        (room.start, room.end) = (start, sealed.esp.end);
        Ok(sealed.finish(inner.traffic_class))
    }

    /// Seals a payload for a socket that writes the outer header itself: in tunnel mode a complete IP packet, in
    /// transport mode a payload of protocol `next_header`, whose selectors the caller has checked. On success the room
    /// holds the ESP packet from the SPI on.
    ///
    /// # Errors
    /// As [`OutboundSa::seal_packet`].
    pub fn seal_payload(
        &mut self,
        room: &mut PacketRoom<'_>,
        next_header: u8,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let mut range = room.start..room.end;
        let mut traffic_class = self.spec.dscp.map_or(0, |dscp| dscp << 2);
        if self.outer.is_some() {
            let inner = InnerHeader::read(room.packet()).ok_or(EspFailure::Malformed)?;
            if next_header != inner.next_header() {
                return Err(EspFailure::Malformed);
            }
            let packet = IpPacket::parse(room.packet()).ok_or(EspFailure::Malformed)?;
            if !self.selects(&PacketFacts::of(&packet)) {
                return Err(EspFailure::Selector);
            }
            if inner.dont_fragment {
                self.check_path_mtu(self.outer_length(), inner.length)?;
            }
            range.end = range.start + inner.length;
            traffic_class = outer_traffic_class(self.spec.dscp, self.spec.ecn, inner.traffic_class);
        }
        let sealed = self.seal_esp(room, range, next_header, 0, now)?;
        (room.start, room.end) = (sealed.esp.start, sealed.esp.end);
        Ok(sealed.finish(traffic_class))
    }

    /// Seals a payload that is no IP packet, in either mode, for the shortcuts between two ends of this program. On
    /// success the room holds the ESP packet from the SPI on.
    ///
    /// # Errors
    /// As [`OutboundSa::seal_packet`].
    pub(super) fn seal_direct(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let range = room.start..room.end;
        let sealed = self.seal_esp(room, range, DIRECT, 0, now)?;
        (room.start, room.end) = (sealed.esp.start, sealed.esp.end);
        Ok(sealed.finish(self.spec.dscp.map_or(0, |dscp| dscp << 2)))
    }

    /// Writes a dummy packet of `length` payload bytes from the SPI on into the room, at its start; the receiver
    /// discards it (RFC 4303 section 2.6).
    ///
    /// # Errors
    /// As [`OutboundSa::seal_packet`].
    pub fn seal_dummy(
        &mut self,
        room: &mut PacketRoom<'_>,
        length: usize,
        now: Time,
    ) -> Result<SealedPacket, EspFailure> {
        let payload = room.start..room.start.saturating_add(length);
        room.buffer
            .get_mut(payload.clone())
            .ok_or(EspFailure::NoRoom)?
            .fill(0);
        let sealed = self.seal_esp(room, payload, DUMMY, 0, now)?;
        (room.start, room.end) = (sealed.esp.start, sealed.esp.end);
        Ok(sealed.finish(self.spec.dscp.map_or(0, |dscp| dscp << 2)))
    }

    /// Seals packets one after the other; `done` receives the index and the outcome of each.
    pub fn seal_batch(
        &mut self,
        packets: &mut [PacketRoom<'_>],
        now: Time,
        mut done: impl FnMut(usize, Result<SealedPacket, EspFailure>),
    ) {
        for (index, room) in packets.iter_mut().enumerate() {
            done(index, self.seal_packet(room, now));
        }
    }

    fn check_path_mtu(&self, outer: usize, payload: usize) -> Result<(), EspFailure> {
        let sealed = outer + self.spec.suite.packet_length(payload);
        match self.path_mtu {
            Some(mtu) if sealed > mtu => Err(EspFailure::TooLarge),
            _ => Ok(()),
        }
    }

    /// Seals the payload at `range` of the room's buffer; `before` bytes of headers must fit before the ESP packet.
    #[inline]
    fn seal_esp(
        &mut self,
        room: &mut PacketRoom<'_>,
        range: Range<usize>,
        next_header: u8,
        before: usize,
        now: Time,
    ) -> Result<SealedEsp, EspFailure> {
        let length = range.len();
        if self.next > self.last.min(self.reserved) {
            return Err(EspFailure::SequenceExhausted);
        }
        if self.lifetime.is_expired(length, now) {
            return Err(EspFailure::Expired);
        }
        let place = self.place(&range, before)?;
        let packet = room
            .buffer
            .get_mut(place.esp.clone())
            .ok_or(EspFailure::NoRoom)?;
        let sequence = self.next;
        self.write_clear(packet, length, &place, next_header);
        let high = self
            .spec
            .extended_sequence
            .then_some((sequence >> 32) as u32);
        // Counted before sealing: a number is never used again, whatever follows.
        self.next = sequence.saturating_add(1);
        if sequence == u64::MAX {
            self.last = 0;
        }
        self.transform.seal(packet, high)?;
        let due = self.sequence_due();
        Ok(SealedEsp {
            esp: place.esp,
            sequence,
            rekey: self.lifetime.count(length, due, now),
        })
    }

    /// Where the parts of a packet are; checks its length.
    #[inline]
    fn place(&self, range: &Range<usize>, before: usize) -> Result<EspPlace, EspFailure> {
        let suite = &self.spec.suite;
        let head = EspView::HEADER + suite.encryption.iv_length();
        let start = range.start.checked_sub(head).ok_or(EspFailure::NoRoom)?;
        if start < before {
            return Err(EspFailure::NoRoom);
        }
        let extended = range.len().max(self.spec.tfc_length);
        // RFC 4303 section 2.4: padding to the alignment of cipher and ICV.
        let align = suite.encryption.alignment();
        let plain = (extended + 2).next_multiple_of(align);
        let end = range.start + plain + suite.icv_length();
        if before + end - start > MAX_PACKET {
            return Err(EspFailure::TooLarge);
        }
        Ok(EspPlace {
            esp: start..end,
            padding: plain - extended - 2,
            tfc: extended - range.len(),
        })
    }

    /// Writes header, initialisation vector, TFC padding, padding and trailer.
    #[inline]
    fn write_clear(&mut self, packet: &mut [u8], length: usize, place: &EspPlace, next_header: u8) {
        let sequence = self.next;
        let iv_length = self.spec.suite.encryption.iv_length();
        let (header, rest) = packet.split_at_mut(EspView::HEADER);
        header[..4].copy_from_slice(&self.spec.spi.to_be_bytes());
        header[4..].copy_from_slice(&(sequence as u32).to_be_bytes());
        let (iv, rest) = rest.split_at_mut(iv_length);
        match (self.spec.suite.encryption.alignment(), iv_length) {
            (_, 0) => {}
            // Counter modes: a number that never repeats (RFC 4106 section 3.1).
            (4, _) => iv.copy_from_slice(&sequence.to_be_bytes()),
            _ => {
                let from = sequence - sequence % IVS as u64;
                if from != self.ivs_from {
                    self.ivs = [0; 16 * IVS];
                    let counter = u128::from(from).to_be_bytes();
                    self.iv_key.encrypt(&counter, &mut self.ivs);
                    self.ivs_from = from;
                }
                let at = 16 * (sequence - from) as usize;
                let block = self.ivs.get(at..at + iv_length).unwrap_or_default();
                iv.copy_from_slice(block);
            }
        }
        let mut at = length;
        let tfc = rest.get_mut(at..at + place.tfc).unwrap_or_default();
        tfc.fill(0);
        at += place.tfc;
        let padding = rest.get_mut(at..at + place.padding).unwrap_or_default();
        for (byte, value) in padding.iter_mut().zip(1..=u8::MAX) {
            *byte = value;
        }
        at += place.padding;
        if let Some(trailer) = rest.get_mut(at..at + 2) {
            trailer.copy_from_slice(&[place.padding as u8, next_header]);
        }
    }
}

impl core::fmt::Debug for OutboundSa {
    /// Omits the keys.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OutboundSa")
            .field("spec", &self.spec)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Where the parts of a packet are in the buffer.
struct EspPlace {
    esp: Range<usize>,
    padding: usize,
    tfc: usize,
}

/// A sealed packet before its outer header is written.
struct SealedEsp {
    esp: Range<usize>,
    sequence: u64,
    rekey: Option<RekeyReason>,
}

impl SealedEsp {
    fn finish(&self, traffic_class: u8) -> SealedPacket {
        SealedPacket {
            sequence: self.sequence,
            traffic_class,
            rekey: self.rekey,
        }
    }
}
