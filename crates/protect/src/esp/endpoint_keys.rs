//! The associations of an endpoint: two with manual keys, or those of a key exchange, which come and go.

use super::{
    ArrivedEsp, EspFailure, InboundSa, InboundState, NegotiatedPair, OpenedPacket, OutboundSa,
    OutboundState, SaError, SaMode,
};
use core::time::Duration;
use engine::Time;
use wire::esp::EspView;

/// Most negotiated associations of each direction. A key exchange has two while keys change, and four if both ends
/// begin; with new keys every few seconds the deleted ones are the first to make room.
const MAX_NEGOTIATED: usize = 8;
/// A deleted association opens packets on their way for this time.
const GRACE: Duration = Duration::from_secs(10);

/// The keys of an endpoint.
#[derive(Debug)]
pub enum EndpointKeys {
    /// Manual keys: the association that seals, and the one that opens, of the same mode.
    Manual(Box<(OutboundSa, InboundSa)>),
    /// Keys of a key exchange, in tunnel mode. There are none at first: see [`super::EspEndpoint::install`].
    Negotiated,
}

impl EndpointKeys {
    /// Manual keys.
    pub fn manual(outbound: OutboundSa, inbound: InboundSa) -> EndpointKeys {
        EndpointKeys::Manual(Box::new((outbound, inbound)))
    }
}

#[derive(Debug)]
struct OpeningSa {
    sa: InboundSa,
    /// It was deleted, and opens until this time.
    until: Option<Time>,
}

/// The associations of an endpoint.
#[derive(Debug)]
pub(super) struct EndpointAssociations {
    negotiates: bool,
    is_tunnel: bool,
    sealing: Option<OutboundSa>,
    /// Negotiated associations that do not seal.
    idle: Vec<OutboundSa>,
    opening: Vec<OpeningSa>,
}

impl EndpointAssociations {
    pub(super) fn new(keys: EndpointKeys) -> EndpointAssociations {
        let mut this = EndpointAssociations {
            negotiates: true,
            is_tunnel: true,
            sealing: None,
            idle: Vec::new(),
            opening: Vec::new(),
        };
        if let EndpointKeys::Manual(pair) = keys {
            let (outbound, sa) = *pair;
            this.negotiates = false;
            this.is_tunnel = outbound.spec().mode != SaMode::Transport;
            this.sealing = Some(outbound);
            this.opening.push(OpeningSa { sa, until: None });
        }
        this
    }

    /// Whether they are those of a key exchange.
    pub(super) fn negotiates(&self) -> bool {
        self.negotiates
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel
    }

    /// The association that seals.
    pub(super) fn sealing(&mut self) -> Result<&mut OutboundSa, EspFailure> {
        self.sealing.as_mut().ok_or(EspFailure::NoAssociation)
    }

    /// SPI of sent packets.
    pub(super) fn sealing_spi(&self) -> Option<u32> {
        self.sealing.as_ref().map(|sa| sa.spec().spi)
    }

    /// Number of associations that open.
    pub(super) fn opening(&self) -> usize {
        self.opening.len()
    }

    /// Opens a packet with the association of its SPI. Packets of a deleted one are never the newest.
    pub(super) fn open(
        &mut self,
        bytes: &mut [u8],
        arrived: &ArrivedEsp,
        now: Time,
    ) -> Result<OpenedPacket, EspFailure> {
        self.forget(now);
        let spi = EspView::parse(bytes).ok_or(EspFailure::Malformed)?.spi();
        let of_spi = |opening: &&mut OpeningSa| opening.sa.spec().spi == spi;
        let opening = self.opening.iter_mut().find(of_spi);
        let opening = opening.ok_or(EspFailure::UnknownSpi)?;
        let mut opened = opening.sa.open_payload(bytes, arrived, now)?;
        opened.is_newest &= opening.until.is_none();
        Ok(opened)
    }

    /// Takes a negotiated association: it opens at once.
    pub(super) fn install(&mut self, pair: NegotiatedPair, now: Time) -> Result<(), SaError> {
        self.forget(now);
        let spi = pair.inbound.spec().spi;
        if !self.negotiates || pair.outbound.spec().mode == SaMode::Transport {
            return Err(SaError::State);
        }
        if self.opening.iter().any(|known| known.sa.spec().spi == spi) {
            return Err(SaError::DuplicateSpi(spi));
        }
        if self.opening.len() >= MAX_NEGOTIATED && !self.make_room() {
            return Err(SaError::TableFull);
        }
        self.opening.push(OpeningSa {
            sa: pair.inbound,
            until: None,
        });
        self.idle.push(pair.outbound);
        Ok(())
    }

    /// Forgets the deleted association whose grace time ends first; false if none was deleted.
    fn make_room(&mut self) -> bool {
        let places = self.opening.iter().enumerate();
        let deleted = places.filter_map(|(place, one)| Some((one.until?, place)));
        let Some((_, place)) = deleted.min() else {
            return false;
        };
        self.opening.remove(place);
        true
    }

    /// Seals with the negotiated association of this SPI; the one before stays until it is removed. Whether there is
    /// one.
    pub(super) fn seal_with(&mut self, spi: u32) -> bool {
        if self.sealing_spi() == Some(spi) {
            return true;
        }
        let found = self.idle.iter().position(|sa| sa.spec().spi == spi);
        let Some(place) = found else {
            return false;
        };
        let before = self.sealing.replace(self.idle.remove(place));
        self.idle.extend(before);
        true
    }

    /// Removes a negotiated association by its SPIs of received and of sent packets. It opens for the grace time; with
    /// `at_once`, no more.
    pub(super) fn remove(&mut self, spis: [u32; 2], at_once: bool, now: Time) {
        if !self.negotiates {
            return;
        }
        let [spi_in, spi_out] = spis;
        for opening in &mut self.opening {
            if opening.sa.spec().spi == spi_in {
                opening.until = Some(if at_once { now } else { now + GRACE });
            }
        }
        self.forget(now);
        self.idle.retain(|sa| sa.spec().spi != spi_out);
        if self.sealing_spi() == Some(spi_out) {
            self.sealing = None;
        }
    }

    /// Forgets deleted associations whose time has ended.
    pub(super) fn forget(&mut self, now: Time) {
        self.opening
            .retain(|opening| opening.until.is_none_or(|until| now < until));
    }

    /// When the next deleted association is to be forgotten.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.opening.iter().filter_map(|one| one.until).min()
    }

    /// The states of manual keys, to be written out; negotiated keys are used by one run only.
    pub(super) fn states(&self, now: Time) -> Option<(OutboundState, InboundState)> {
        let opening = self.opening.first().filter(|_| !self.negotiates)?;
        Some((self.sealing.as_ref()?.state(now), opening.sa.state(now)))
    }
}
