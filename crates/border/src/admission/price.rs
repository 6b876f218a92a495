//! Memory and CPU time of calls, by part.
//!
//! The comment of a measured price names the measurement; the price is twice the measured value, because the machine
//! was quiet and processors differ. Packets through sockets are an exception: at a low rate, where each packet wakes
//! the thread, one costs twice as much as near the limit of a thread, where it is read with others. Their price is the
//! cost at the low rate, so it is an upper bound with the same reserve at the limit.
//! `cargo run --release -p protect --example srtp_speed` measures the cost of SRTP on a machine.

use crate::admission::MediaPath;
use anchor::Side;
use codec::kind::Kind;
use config::{Keying, MediaSecurity};
use core::ops::{AddAssign, SubAssign};
use engine::Transport;
use protect::srtp::{CipherKind, Suite};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Memory and CPU time that are needed continuously.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Memory of the border and the kernel, KiB.
    pub memory: u64,
    /// CPU time, microseconds per second.
    pub processor: u64,
}

impl Price {
    /// A call with media bypass: two legs.
    pub const CALL: Price = Price {
        memory: 8,
        processor: 1,
    };

    /// Anchored media by path, in addition: two flows with their reports, four ports, and 50 packets per second each
    /// way, received and sent.
    ///
    /// At 10,000 packets per second a packet takes 18.1 microseconds through the shared-port socket and 20.3 through a
    /// socket for each port; at 50,000 it takes 9.5 (docs/benchmarks.md). AF_XDP takes 2.7 microseconds of the border's
    /// thread with copied frames where the shared-port socket takes 4.8 (`path_cost`), which is 56 % of its price;
    /// zero-copy was not measured. The kernel relay takes 0.44 microseconds (XDP redirect between veths), without a
    /// thread to wake: its price is twice that.
    pub const fn of_media(path: MediaPath) -> Price {
        let processor = match path {
            MediaPath::SocketPerPort => 2_030,
            MediaPath::SharedPortSocket => 1_810,
            MediaPath::AfXdp => 1_020,
            MediaPath::Kernel => 90,
        };
        Price {
            memory: 40,
            processor,
        }
    }
    /// A side with signalling over TLS, in addition: its share of a connection, with buffers for a record each way.
    /// Not measured: a message is assumed to take some 10 microseconds more than in the clear, and the memory is an
    /// estimate.
    pub const TLS: Price = Price {
        memory: 16,
        processor: 2,
    };
    /// A side with signalling over WebSocket, in addition: its share of a connection, and the masking of frames. Not
    /// measured.
    pub const WEBSOCKET: Price = Price {
        memory: 4,
        processor: 1,
    };
    /// One end of a TLS handshake: 450 microseconds, with a P-256 certificate and without resumption.
    pub const TLS_HANDSHAKE: Price = Price {
        memory: 0,
        processor: 900,
    };
    /// One end of a DTLS handshake: 540 microseconds, with P-256 certificates on both sides.
    pub const DTLS_HANDSHAKE: Price = Price {
        memory: 0,
        processor: 1_100,
    };
    /// A participant of a conference, in addition to a call: jitter buffer, codecs and filters, and packets both
    /// ways.
    pub const PARTICIPANT: Price = Price {
        memory: 160,
        processor: 1_500,
    };
    /// A participant with a speech-model codec (G.729, Opus), in addition, with one of four participants speaking:
    /// `make bench` (part `conference`) shows some 5 ms per second for a participant in all.
    pub const VOCODER: Price = Price {
        memory: 40,
        processor: 4_000,
    };
    /// A participant of a conference by its codec, in addition to a call.
    pub fn of_participant(kind: Kind) -> Price {
        let mut price = Price::PARTICIPANT;
        if kind.spec().speech_model {
            price += Price::VOCODER;
        }
        price
    }

    /// A line with transcoding, in addition, by the codecs of its sides: each is decoded and encoded, 50 packets per
    /// second.
    pub fn of_transcoding(kinds: [Kind; 2]) -> Price {
        // In units of half a microsecond per second.
        let processor = kinds.map(|kind| 2 * kind.spec().transcoding_us_per_s);
        Price {
            memory: 64,
            processor: processor.iter().sum(),
        }
    }

    /// CPU time of the IPsec gateway's thread for a side of a call behind a tunnel, microseconds per second: 50 packets
    /// per second each way. At 20,000 packets per second, below the limit of the thread, sealing and opening of short
    /// packets took 15.6 and 10.1 microseconds (docs/benchmarks.md).
    pub const GATEWAY_SIDE: u64 = 1_290;
    /// CPU time of that thread for established calls, microseconds per second.
    pub const GATEWAY: u64 = 700_000;
    /// CPU time of the worker's thread for a side of a call whose media passes directly between a tunnel and the
    /// forwarder, in addition, microseconds per second: 50 packets per second each way. Calls of 10 s took 2,200 to
    /// 5,200 microseconds more than calls in the clear, by suite, and 3,100 in the middle (docs/benchmarks.md).
    pub const DIRECT_TUNNEL_SIDE: u64 = 310;

    /// Sides of a call behind tunnels that the worker's thread carries, in addition. Media that is not anchored passes
    /// the TUN device, on this thread as well.
    pub const fn of_tunnel_sides(sides: u8, anchored: bool) -> Price {
        let side = match anchored {
            true => Price::DIRECT_TUNNEL_SIDE,
            false => Price::GATEWAY_SIDE,
        };
        Price {
            memory: 0,
            processor: side * sides as u64,
        }
    }

    /// A registered contact.
    pub const REGISTRATION: Price = Price {
        memory: 1,
        processor: 0,
    };

    /// A side of a line with SRTP, in addition, by its suite: 50 packets per second in each direction, at
    /// 0.5 microseconds for AES in counter mode with HMAC-SHA1, 0.3 for AES-GCM, 0.4 for HMAC-SHA1 alone, with a cold
    /// cache; and the memory that DTLS keeps for retransmissions.
    pub fn of_srtp(keying: Keying, suite: Suite) -> Price {
        let (memory, processor) = match suite.cipher() {
            CipherKind::Counter => (4, 100),
            CipherKind::Gcm => (6, 60),
            CipherKind::Null => (4, 80),
        };
        let association = match keying {
            Keying::Sdes => 0,
            Keying::Dtls => 20,
        };
        Price {
            memory: memory + association,
            processor,
        }
    }

    /// The highest price of SRTP that these settings allow for a side.
    pub fn of_security(security: &MediaSecurity) -> Price {
        let mut max = Price::default();
        for &keying in &security.keying {
            for &suite in &security.suites {
                let price = Price::of_srtp(keying, suite);
                max.memory = max.memory.max(price.memory);
                max.processor = max.processor.max(price.processor);
            }
        }
        max
    }

    /// A side, in addition, by the transport of its signalling.
    pub fn of_transport(transport: Transport) -> Price {
        let mut price = Price::default();
        if matches!(transport, Transport::Tls | Transport::Wss) {
            price += Price::TLS;
        }
        if matches!(transport, Transport::Ws | Transport::Wss) {
            price += Price::WEBSOCKET;
        }
        price
    }

    /// A new call, by the path of its media, if that is anchored, and by the transports of its sides.
    pub fn of_call(media: Option<MediaPath>, sides: [Option<Transport>; 2]) -> Price {
        Reservation::of_call(media, sides).total()
    }

    /// The price multiplied by `count`.
    pub fn times(self, count: u64) -> Price {
        Price {
            memory: self.memory.saturating_mul(count),
            processor: self.processor.saturating_mul(count),
        }
    }

    /// How often `each` fits into this; `u64::MAX` where it needs nothing of either resource.
    pub fn capacity_for(self, each: Price) -> u64 {
        let fits = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        fits(self.memory, each.memory).min(fits(self.processor, each.processor))
    }

    /// The resource of `limit` that would be exceeded with `more`.
    pub(super) fn exceeded(self, more: Price, limit: Price) -> Option<&'static str> {
        if self.memory.saturating_add(more.memory) > limit.memory {
            return Some("memory");
        }
        (self.processor.saturating_add(more.processor) > limit.processor).then_some("processor")
    }
}

impl AddAssign for Price {
    fn add_assign(&mut self, other: Price) {
        self.memory = self.memory.saturating_add(other.memory);
        self.processor = self.processor.saturating_add(other.processor);
    }
}

impl SubAssign for Price {
    fn sub_assign(&mut self, other: Price) {
        self.memory = self.memory.saturating_sub(other.memory);
        self.processor = self.processor.saturating_sub(other.processor);
    }
}

/// Part of a price, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostPart {
    /// Dialogs and transactions.
    Call,
    /// Connections of the sides: TLS, WebSocket.
    Connection,
    /// Anchored media.
    Media,
    /// SRTP.
    Srtp,
    /// Transcoding.
    Transcoding,
    /// Participation in a conference.
    Conference,
    /// Registered contacts.
    Registrations,
    /// Handshakes of the last second (TLS, DTLS): their work counts for one second.
    Handshakes,
}

impl CostPart {
    /// All parts, in order.
    pub const ALL: [CostPart; 8] = [
        CostPart::Call,
        CostPart::Connection,
        CostPart::Media,
        CostPart::Srtp,
        CostPart::Transcoding,
        CostPart::Conference,
        CostPart::Registrations,
        CostPart::Handshakes,
    ];
    /// Parts that a call can have: the first ones.
    const CALL_PARTS: usize = 6;

    /// Name in events.
    pub const fn name(self) -> &'static str {
        match self {
            CostPart::Call => "call",
            CostPart::Connection => "connection",
            CostPart::Media => "media",
            CostPart::Srtp => "srtp",
            CostPart::Transcoding => "transcoding",
            CostPart::Conference => "conference",
            CostPart::Registrations => "registrations",
            CostPart::Handshakes => "handshakes",
        }
    }
}

/// A price within a call, which is kept for as long as the call lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KeptPrice {
    memory: u32,
    processor: u32,
}

impl From<Price> for KeptPrice {
    fn from(price: Price) -> KeptPrice {
        let kept = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        KeptPrice {
            memory: kept(price.memory),
            processor: kept(price.processor),
        }
    }
}

impl From<KeptPrice> for Price {
    fn from(kept: KeptPrice) -> Price {
        Price {
            memory: kept.memory.into(),
            processor: kept.processor.into(),
        }
    }
}

/// Price of SRTP of one side of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SrtpPrice {
    line: u8,
    side: Side,
    price: KeptPrice,
}

/// Prices of SRTP of a call.
type SrtpPrices = SmallVec<[SrtpPrice; 2]>;

/// Capacity that is reserved for a call, by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    parts: [KeptPrice; CostPart::CALL_PARTS],
    /// Prices of SRTP, which most calls do not have.
    srtp: Option<Box<SrtpPrices>>,
    /// Path of the media, if anchored.
    pub(super) path: Option<MediaPath>,
    /// Sides behind a tunnel of the IPsec gateway.
    pub(super) gateway_sides: u8,
    /// Whether transcoding is included.
    pub(super) is_transcoded: bool,
}

impl Reservation {
    /// Reservation of a new call; keys and codecs are not known yet.
    pub(crate) fn of_call(media: Option<MediaPath>, sides: [Option<Transport>; 2]) -> Reservation {
        let mut reservation = Reservation::default();
        reservation.add(CostPart::Call, Price::CALL);
        reservation.path = media;
        if let Some(path) = media {
            reservation.add(CostPart::Media, Price::of_media(path));
        }
        for side in sides.into_iter().flatten() {
            reservation.add(CostPart::Connection, Price::of_transport(side));
        }
        reservation
    }

    /// Reservation of a conference participant, by codec and signalling transport.
    pub(crate) fn of_participant(kind: Kind, transport: Transport) -> Reservation {
        let mut reservation = Reservation::of_call(None, [Some(transport), None]);
        reservation.add(CostPart::Conference, Price::of_participant(kind));
        reservation
    }

    /// Sets the codec of a conference participant. Returns the price of the participation before and after.
    pub(super) fn set_participant_codec(&mut self, kind: Kind) -> (Price, Price) {
        let before = self.part(CostPart::Conference);
        let after = Price::of_participant(kind);
        self.set_part(CostPart::Conference, after);
        (before, after)
    }

    /// Sum of all parts.
    pub(crate) fn total(&self) -> Price {
        let mut total = Price::default();
        for &part in &self.parts {
            total += part.into();
        }
        total
    }

    /// All parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (CostPart, Price)> {
        CostPart::ALL.into_iter().zip(self.parts.map(Price::from))
    }

    /// Adds to a part that a call can have.
    pub(crate) fn add(&mut self, part: CostPart, price: Price) {
        let mut sum = self.part(part);
        sum += price;
        self.set_part(part, sum);
    }

    /// The price of a part.
    pub(super) fn part(&self, part: CostPart) -> Price {
        let kept = self.parts.get(part as usize).copied();
        kept.unwrap_or_default().into()
    }

    /// Sets the price of a part that a call can have.
    pub(super) fn set_part(&mut self, part: CostPart, price: Price) {
        if let Some(kept) = self.parts.get_mut(part as usize) {
            *kept = price.into();
        }
    }

    /// Sets the price of SRTP for a side of a line. Returns the price that it replaces.
    pub(crate) fn protect(&mut self, line: usize, side: Side, price: Price) -> Price {
        let line = u8::try_from(line).unwrap_or(u8::MAX);
        let kept = price.into();
        let entries = self.srtp.get_or_insert_default();
        let mut all = entries.iter_mut();
        let existing = all.find(|entry| entry.line == line && entry.side == side);
        let before = match existing {
            Some(entry) => core::mem::replace(&mut entry.price, kept).into(),
            None => {
                entries.push(SrtpPrice {
                    line,
                    side,
                    price: kept,
                });
                Price::default()
            }
        };
        let mut sum = self.part(CostPart::Srtp);
        sum -= before;
        sum += price;
        self.set_part(CostPart::Srtp, sum);
        before
    }

    /// Path of the media, if anchored.
    pub(crate) fn path(&self) -> Option<MediaPath> {
        self.path
    }

    /// Whether this path can process the media: the kernel relays plain RTP only, which is not encrypted or transcoded
    /// here.
    pub(super) fn is_supported_by(&self, path: MediaPath) -> bool {
        let plain = self.srtp.is_none() && self.part(CostPart::Transcoding) == Price::default();
        plain || path != MediaPath::Kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_a_call_depends_on_its_kind() {
        let plain = Price::of_call(None, [Some(Transport::Udp), Some(Transport::Tcp)]);
        assert_eq!(plain, Price::CALL);
        let sides = [Some(Transport::Tls), Some(Transport::Wss)];
        let mut sum = Price::CALL;
        let path = MediaPath::SocketPerPort;
        sum += Price::of_media(path);
        sum += Price::TLS.times(2);
        sum += Price::WEBSOCKET;
        assert_eq!(Price::of_call(Some(path), sides), sum);
        let reservation = Reservation::of_call(Some(path), sides);
        let parts: Vec<(CostPart, Price)> = reservation
            .parts()
            .filter(|part| part.1 != Price::default())
            .collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[0], (CostPart::Call, Price::CALL));
        assert_eq!(parts[1].0, CostPart::Connection);
        assert_eq!(parts[2], (CostPart::Media, Price::of_media(path)));
        assert_eq!(
            Price::of_call(None, [Some(Transport::Ws), None]).memory,
            Price::CALL.memory + 4
        );
        assert_eq!(
            Price::of_call(None, [Some(Transport::Udp), None]),
            Price::CALL
        );
        let participant = Reservation::of_participant(Kind::Opus, Transport::Tls);
        let mut sum = Price::CALL;
        for more in [Price::TLS, Price::PARTICIPANT, Price::VOCODER] {
            sum += more;
        }
        assert_eq!(participant.total(), sum);
    }

    #[test]
    fn srtp_is_counted_once_per_side() {
        let counter = Price::of_srtp(Keying::Sdes, Suite::AesCm128HmacSha1_80);
        let gcm = Price::of_srtp(Keying::Dtls, Suite::AeadAes256Gcm);
        assert!(counter.processor > gcm.processor && counter.memory < gcm.memory);
        let mut reservation = Reservation::of_call(Some(MediaPath::SocketPerPort), [None, None]);
        let before = reservation.total();
        assert_eq!(
            reservation.protect(0, Side::Caller, counter),
            Price::default()
        );
        assert_eq!(reservation.protect(0, Side::Callee, gcm), Price::default());
        // New keys replace earlier ones.
        assert_eq!(reservation.protect(0, Side::Caller, gcm), counter);
        let mut sum = before;
        sum += gcm.times(2);
        assert_eq!(reservation.total(), sum);
        assert_eq!(
            reservation.protect(1, Side::Caller, counter),
            Price::default()
        );
        sum += counter;
        assert_eq!(reservation.total(), sum);
    }
}
