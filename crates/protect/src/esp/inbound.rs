//! Opening of packets that are received.

use super::lifetime::LifetimeCounter;
use super::packet::{Extensions, InnerHeader, PayloadPlace, open_ecn, rewrite_header};
use super::shortcut::DIRECT;
use super::{
    EspFailure, EspTransform, LifetimeStatus, PacketFacts, PacketRoom, RekeyReason, SaError,
    SaMode, SaSpec, SaUsage,
};
use crate::replay::Window;
use core::net::IpAddr;
use core::ops::Range;
use engine::Time;
use serde::{Deserialize, Serialize};
use wire::esp::{DUMMY, EspView};
use wire::ip::{IpPacket, protocol};

/// The outer header of an ESP packet that a socket has read without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedEsp {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Traffic class, for congestion marks.
    pub traffic_class: u8,
}

impl ArrivedEsp {
    #[inline]
    pub(super) fn of(packet: &[u8], place: &PayloadPlace) -> Option<ArrivedEsp> {
        Some(if place.is_v4 {
            let header = packet.first_chunk::<20>()?;
            let [.., a, b, c, d, e, f, g, h] = *header;
            ArrivedEsp {
                source: IpAddr::from([a, b, c, d]),
                destination: IpAddr::from([e, f, g, h]),
                traffic_class: header[1],
            }
        } else {
            let addresses = packet.get(8..40)?;
            let (source, destination) = addresses.split_first_chunk::<16>()?;
            ArrivedEsp {
                source: IpAddr::from(*source),
                destination: IpAddr::from(*destination.first_chunk::<16>()?),
                traffic_class: packet.first()? << 4 | packet.get(1)? >> 4,
            }
        })
    }
}

/// An opened packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPacket {
    /// Its place: a whole IP packet in tunnel mode, else a payload.
    pub range: Range<usize>,
    /// Its protocol: 4 or 41 in tunnel mode, else that of the payload.
    pub next_header: u8,
    /// Its sequence number; 64 bits with extended sequence numbers.
    pub sequence: u64,
    /// Its number is higher than all before: it is no replayed or delayed packet. False without replay protection.
    pub is_newest: bool,
    /// A new association is due; said once.
    pub rekey: Option<RekeyReason>,
}

/// State of an association that opens, to be written out; it has no keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundState {
    /// SPI of the association.
    pub spi: u32,
    /// The highest sequence number that was opened.
    pub highest_sequence: u64,
    /// Bitmap of the replay window: a bit for each number modulo the window's size. Empty without replay protection.
    pub received: Vec<u64>,
    /// Consumption.
    pub usage: SaUsage,
}

/// A security association that opens packets (RFC 4303 section 3.4).
pub struct InboundSa {
    transform: EspTransform,
    window: Option<Window>,
    lifetime: LifetimeCounter,
    spec: Box<SaSpec>,
}

impl InboundSa {
    /// A new association, that has received nothing.
    ///
    /// # Errors
    /// The description is invalid.
    pub fn new(spec: SaSpec, now: Time) -> Result<InboundSa, SaError> {
        spec.check()?;
        let transform = EspTransform::new(spec.suite, &spec.keys)?;
        // No packet has number zero: it counts as received.
        let window = (spec.replay_window > 0).then(|| Window::new(spec.replay_window, 0));
        Ok(InboundSa {
            transform,
            window,
            lifetime: LifetimeCounter::new(spec.lifetime, SaUsage::default(), now),
            spec: Box::new(spec),
        })
    }

    /// An association that continues from a written state. With `skip` above zero it refuses all numbers up to that
    /// many beyond the highest: packets that were opened after the state was written are not opened again.
    ///
    /// # Errors
    /// The description is invalid, or the state is of another association.
    pub fn resume(
        spec: SaSpec,
        state: &InboundState,
        skip: u64,
        now: Time,
    ) -> Result<InboundSa, SaError> {
        if spec.spi != state.spi {
            return Err(SaError::State);
        }
        let mut sa = InboundSa::new(spec, now)?;
        sa.lifetime = LifetimeCounter::new(sa.spec.lifetime, state.usage, now);
        if let Some(window) = &mut sa.window {
            let size = window.size();
            let highest = state.highest_sequence.saturating_add(skip);
            let fits = state.received.len() as u64 * 64 == size;
            *window = match (skip, fits) {
                (0, true) => Window::from_parts(highest, &state.received).ok_or(SaError::State)?,
                (0, false) => return Err(SaError::State),
                _ => Window::restored(size as usize, highest),
            };
        }
        Ok(sa)
    }

    /// The state to be written out.
    pub fn state(&self, now: Time) -> InboundState {
        let (highest_sequence, received) = self.window.as_ref().map_or((0, &[][..]), Window::parts);
        InboundState {
            spi: self.spec.spi,
            highest_sequence,
            received: received.to_vec(),
            usage: self.lifetime.usage(now),
        }
    }

    /// Packets that were opened.
    pub fn packets(&self) -> u64 {
        self.lifetime.packets()
    }

    /// The description.
    pub fn spec(&self) -> &SaSpec {
        &self.spec
    }

    /// Where the association stands in its lifetime.
    pub fn lifetime(&self, now: Time) -> LifetimeStatus {
        self.lifetime.status(self.sequence_due(), now)
    }

    /// The next bound of time.
    pub fn next_bound(&self, now: Time) -> Option<Time> {
        self.lifetime.next_bound(now)
    }

    /// Nothing has taken the notice that new keys are due: the next packet gives it again.
    pub(super) fn report_again(&mut self) {
        self.lifetime.report_again();
    }

    fn sequence_due(&self) -> bool {
        let last = if self.spec.extended_sequence {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        self.window
            .as_ref()
            .is_some_and(|window| window.highest() > last - (last >> 4))
    }

    /// Opens a complete IP packet with ESP, or with ESP in UDP. On success the room holds a complete IP packet: the
    /// inner one in tunnel mode, else the same one without ESP. On an error its contents are undefined.
    ///
    /// # Errors
    /// Any but those of sealing.
    #[inline]
    pub fn open_packet(
        &mut self,
        room: &mut PacketRoom<'_>,
        now: Time,
    ) -> Result<OpenedPacket, EspFailure> {
        let packet = room.packet_mut();
        let place = PayloadPlace::find(packet, Extensions::All).ok_or(EspFailure::Malformed)?;
        if place.is_fragment {
            return Err(EspFailure::Fragment);
        }
        let arrived = ArrivedEsp::of(packet, &place).ok_or(EspFailure::Malformed)?;
        let esp_at = match place.protocol {
            protocol::ESP => place.offset,
            protocol::UDP => place.offset + 8,
            _ => return Err(EspFailure::Malformed),
        };
        let esp = packet
            .get_mut(esp_at..place.end)
            .ok_or(EspFailure::Malformed)?;
        let mut opened = self.open_payload(esp, &arrived, now)?;
        opened.range.start += esp_at;
        opened.range.end += esp_at;
        if self.spec.mode == SaMode::Transport {
            self.join_header(packet, &place, &mut opened)?;
        }
        opened.range.start += room.start;
        opened.range.end += room.start;
        (room.start, room.end) = (opened.range.start, opened.range.end);
        Ok(opened)
    }

    /// Moves the IP header to the payload that it heads.
    fn join_header(
        &self,
        packet: &mut [u8],
        place: &PayloadPlace,
        opened: &mut OpenedPacket,
    ) -> Result<(), EspFailure> {
        let start = opened
            .range
            .start
            .checked_sub(place.offset)
            .ok_or(EspFailure::Malformed)?;
        packet.copy_within(..place.offset, start);
        let whole = packet
            .get_mut(start..opened.range.end)
            .ok_or(EspFailure::Malformed)?;
        rewrite_header(whole, place, opened.next_header)?;
        // A NAT has changed the addresses that the UDP checksum covers (RFC 3948 section 3.1.2).
        if place.is_v4
            && place.protocol == protocol::UDP
            && opened.next_header == protocol::UDP
            && let Some(checksum) = whole.get_mut(place.offset + 6..place.offset + 8)
        {
            checksum.fill(0);
        }
        opened.range.start = start;
        Ok(())
    }

    /// Opens a packet from the SPI on, as a socket reads it; `arrived` is its outer header. On an error the contents of
    /// `esp` are undefined.
    ///
    /// # Errors
    /// As [`InboundSa::open_packet`].
    #[inline]
    pub fn open_payload(
        &mut self,
        esp: &mut [u8],
        arrived: &ArrivedEsp,
        now: Time,
    ) -> Result<OpenedPacket, EspFailure> {
        let view = EspView::parse(esp).ok_or(EspFailure::Malformed)?;
        if view.spi() != self.spec.spi {
            return Err(EspFailure::UnknownSpi);
        }
        if self.lifetime.is_expired(0, now) {
            return Err(EspFailure::Expired);
        }
        let sequence = self.full_sequence(view.sequence())?;
        let mut is_newest = false;
        if let Some(window) = &self.window {
            window.check(sequence)?;
            is_newest = sequence > window.highest();
        }
        let high = self
            .spec
            .extended_sequence
            .then_some((sequence >> 32) as u32);
        let opened = self.transform.open(esp, high);
        // With bad padding, too, the packet was authenticated: it may not come again.
        if let (Some(window), Ok(_) | Err(EspFailure::Padding)) = (&mut self.window, &opened) {
            window.accept(sequence);
        }
        let payload = opened?;
        let length = payload.range.len();
        if self.lifetime.is_expired(length, now) {
            return Err(EspFailure::Expired);
        }
        let due = self.sequence_due();
        let rekey = self.lifetime.count(length, due, now);
        let range = self.check_payload(esp, payload.range, payload.next_header, arrived)?;
        Ok(OpenedPacket {
            range,
            next_header: payload.next_header,
            sequence,
            is_newest,
            rekey,
        })
    }

    /// Opens packets one after the other; `done` receives the index and the outcome of each.
    pub fn open_batch(
        &mut self,
        packets: &mut [PacketRoom<'_>],
        now: Time,
        mut done: impl FnMut(usize, Result<OpenedPacket, EspFailure>),
    ) {
        for (index, room) in packets.iter_mut().enumerate() {
            done(index, self.open_packet(room, now));
        }
    }

    /// The sequence number with its inferred upper half (RFC 4303 appendix A2.1).
    #[inline]
    fn full_sequence(&self, low: u32) -> Result<u64, EspFailure> {
        let window = match &self.window {
            Some(window) if self.spec.extended_sequence => window,
            _ => return Ok(u64::from(low)),
        };
        let (highest, size) = (window.highest(), window.size());
        let (top, bottom) = (highest >> 32, highest & u64::from(u32::MAX));
        let low = u64::from(low);
        let high = if bottom >= size - 1 {
            // The window lies within one cycle of the lower half.
            if low >= bottom - (size - 1) {
                Some(top)
            } else {
                top.checked_add(1)
            }
        } else if low >= (1 << 32) + bottom - (size - 1) {
            top.checked_sub(1)
        } else {
            Some(top)
        };
        match high {
            Some(high) if high <= u64::from(u32::MAX) => Ok(high << 32 | low),
            _ => Err(EspFailure::TooOld),
        }
    }

    /// Checks the decrypted payload against mode and selectors (RFC 4301 section 5.2); returns its range without TFC
    /// padding.
    #[inline]
    fn check_payload(
        &self,
        esp: &mut [u8],
        range: Range<usize>,
        next_header: u8,
        arrived: &ArrivedEsp,
    ) -> Result<Range<usize>, EspFailure> {
        if next_header == DUMMY {
            return Err(EspFailure::Dummy);
        }
        if next_header == DIRECT && self.spec.accepts_direct {
            return Ok(range);
        }
        let payload = esp.get_mut(range.clone()).ok_or(EspFailure::Malformed)?;
        if self.spec.mode == SaMode::Transport {
            let facts = PacketFacts::of_payload(
                arrived.source,
                arrived.destination,
                Some(next_header),
                payload,
            );
            return self.check_selectors(&facts).map(|()| range);
        }
        if !matches!(next_header, protocol::IPIP | protocol::IPV6) {
            return Err(EspFailure::Selector);
        }
        let inner = InnerHeader::read(payload).ok_or(EspFailure::Malformed)?;
        if inner.next_header() != next_header {
            return Err(EspFailure::Malformed);
        }
        if !self.spec.selectors.is_empty() {
            let packet = payload.get(..inner.length).and_then(IpPacket::parse);
            self.check_selectors(&PacketFacts::of(&packet.ok_or(EspFailure::Malformed)?))?;
        }
        open_ecn(payload, &inner, arrived.traffic_class)?;
        // RFC 4303 section 2.7: the rest is padding for traffic flow confidentiality.
        Ok(range.start..range.start + inner.length)
    }

    fn check_selectors(&self, facts: &PacketFacts) -> Result<(), EspFailure> {
        let selectors = &self.spec.selectors;
        if selectors.is_empty() || selectors.iter().any(|selector| selector.matches(facts)) {
            Ok(())
        } else {
            Err(EspFailure::Selector)
        }
    }
}

impl core::fmt::Debug for InboundSa {
    /// Omits the keys.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("InboundSa")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
