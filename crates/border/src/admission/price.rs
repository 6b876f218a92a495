//! What calls take of the machine, by what for.
//!
//! Where a price was measured, the comment says how; it is twice of that, because the machine was quiet and one processor is not like another.
//! `cargo run --release -p protect --example srtp_speed` measures what protection takes on a machine.

use super::carrier::MediaWay;
use crate::call::Side;
use crate::config::{Keying, MediaSecurity};
use codec::kind::Kind;
use core::ops::{AddAssign, SubAssign};
use engine::Transport;
use protect::srtp::{CipherKind, Suite};

/// What something takes while it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Memory, KiB: ours and the kernel's.
    pub memory: u64,
    /// Processor time, microseconds in each second.
    pub processor: u64,
}

impl Cost {
    /// A call whose media passes us by: two legs.
    pub const CALL: Cost = Cost {
        memory: 8,
        processor: 1,
    };
    /// What anchored media adds: two flows with their reports, four sockets, and 50 packets a second each way, received and
    /// sent at 5 microseconds.
    pub const ANCHORED: Cost = Cost {
        memory: 40,
        processor: 500,
    };

    /// The same by the way that it goes. The kernel's relay takes 0.44 microseconds a packet (XDP redirect between veths), of which the price
    /// is twice. AF_XDP takes 2.7 of the border's thread where frames are copied, against 4.8 by sockets: 3; without copies nothing was measured.
    pub const fn of_media(way: MediaWay) -> Cost {
        let processor = match way {
            MediaWay::Sockets => Cost::ANCHORED.processor,
            MediaWay::AfXdp => 300,
            MediaWay::Kernel => 90,
        };
        Cost {
            memory: Cost::ANCHORED.memory,
            processor,
        }
    }
    /// What a side adds whose signalling comes by TLS: its connection's share, with room for a record each way. Not measured: a
    /// message is assumed to take some 10 microseconds more than one in the clear, and the memory is an estimate.
    pub const TLS: Cost = Cost {
        memory: 16,
        processor: 2,
    };
    /// What a side adds whose signalling comes by WebSocket: its connection's share, and the masks of its frames. Not measured.
    pub const WEBSOCKET: Cost = Cost {
        memory: 4,
        processor: 1,
    };
    /// Work of one end of a TLS handshake: 450 microseconds, with a certificate of P-256 and without resumption.
    pub const TLS_HANDSHAKE: Cost = Cost {
        memory: 0,
        processor: 900,
    };
    /// Work of one end of a DTLS handshake: 540 microseconds, with certificates of P-256 on both sides.
    pub const DTLS_HANDSHAKE: Cost = Cost {
        memory: 0,
        processor: 1_100,
    };
    /// What a seat in a conference adds to a call: its jitter buffer, coders and filters, and packets both ways.
    pub const SEAT: Cost = Cost {
        memory: 160,
        processor: 1_500,
    };
    /// What a codec adds to a seat that models the voice (G.729, Opus), where one of four speaks at a time: `make bench` (part
    /// `conference`) shows some 5 ms a second for a seat in all.
    pub const VOCODER: Cost = Cost {
        memory: 40,
        processor: 4_000,
    };
    /// What a line adds whose speech is transcoded, by what its two sides speak: each is decoded and encoded, 50 packets a second.
    pub fn of_transcoding(kinds: [Kind; 2]) -> Cost {
        let processor = kinds.map(|kind| match kind {
            Kind::Pcmu | Kind::Pcma => 200,
            Kind::G722 => 2_000,
            Kind::G729 => 8_000,
            Kind::Opus => 12_000,
        });
        Cost {
            memory: 64,
            processor: processor.iter().sum(),
        }
    }

    /// A registered contact.
    pub const REGISTRATION: Cost = Cost {
        memory: 1,
        processor: 0,
    };

    /// What a side of a line adds that is protected by SRTP, by its suite: 50 packets a second are opened and as many sealed, at 0.5 microseconds
    /// for AES in counter mode with HMAC-SHA1, 0.3 for AES-GCM, 0.4 for HMAC-SHA1 alone, where memory is not at hand; and what DTLS keeps for
    /// as long as it may be asked again.
    pub fn of_srtp(keying: Keying, suite: Suite) -> Cost {
        let (memory, processor) = match suite.cipher() {
            CipherKind::Counter => (4, 100),
            CipherKind::Gcm => (6, 60),
            CipherKind::Null => (4, 80),
        };
        let association = match keying {
            Keying::Sdes => 0,
            Keying::Dtls => 20,
        };
        Cost {
            memory: memory + association,
            processor,
        }
    }

    /// The most that a side can add by its protection, where this is what it may use.
    pub fn of_security(security: &MediaSecurity) -> Cost {
        let mut most = Cost::default();
        for &keying in &security.keying {
            for &suite in &security.suites {
                let cost = Cost::of_srtp(keying, suite);
                most.memory = most.memory.max(cost.memory);
                most.processor = most.processor.max(cost.processor);
            }
        }
        most
    }

    /// What a side adds by what its signalling comes by.
    pub fn of_transport(transport: Transport) -> Cost {
        let mut cost = Cost::default();
        if matches!(transport, Transport::Tls | Transport::Wss) {
            cost += Cost::TLS;
        }
        if matches!(transport, Transport::Ws | Transport::Wss) {
            cost += Cost::WEBSOCKET;
        }
        cost
    }

    /// What a call costs when it begins, by what becomes of its media and over which transports its sides come.
    pub fn of_call(anchored: bool, sides: [Option<Transport>; 2]) -> Cost {
        Bill::of_call(anchored.then_some(MediaWay::Sockets), sides).total()
    }

    /// The same of a call whose media is anchored and goes this way.
    pub fn of_call_by(way: MediaWay, sides: [Option<Transport>; 2]) -> Cost {
        Bill::of_call(Some(way), sides).total()
    }

    /// The same `count` times.
    pub fn times(self, count: u64) -> Cost {
        Cost {
            memory: self.memory.saturating_mul(count),
            processor: self.processor.saturating_mul(count),
        }
    }

    /// How many of `each` fit into this; `None` where nothing is limited that it needs.
    pub fn holds(self, each: Cost) -> u64 {
        let fits = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        fits(self.memory, each.memory).min(fits(self.processor, each.processor))
    }

    /// What of `limit` would be exceeded with `more`.
    pub(super) fn beyond(self, more: Cost, limit: Cost) -> Option<&'static str> {
        if self.memory.saturating_add(more.memory) > limit.memory {
            return Some("memory");
        }
        (self.processor.saturating_add(more.processor) > limit.processor).then_some("processor")
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.memory = self.memory.saturating_add(other.memory);
        self.processor = self.processor.saturating_add(other.processor);
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Cost) {
        self.memory = self.memory.saturating_sub(other.memory);
        self.processor = self.processor.saturating_sub(other.processor);
    }
}

/// What a price is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Dialogs and transactions.
    Call,
    /// Connections of its sides: TLS, WebSocket.
    Connection,
    /// Media that is anchored.
    Media,
    /// Its protection.
    Srtp,
    /// Speech from one codec into another.
    Transcoding,
    /// A seat in a conference.
    Conference,
    /// Contacts that are registered.
    Registrations,
    /// Handshakes of the last second (TLS, DTLS): what work they were is taken for a second.
    Handshakes,
}

impl Part {
    /// All of them, in order.
    pub const ALL: [Part; 8] = [
        Part::Call,
        Part::Connection,
        Part::Media,
        Part::Srtp,
        Part::Transcoding,
        Part::Conference,
        Part::Registrations,
        Part::Handshakes,
    ];
    /// Those that a call can have: the first ones.
    const OF_CALLS: usize = 6;

    /// As events say it.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Call => "call",
            Part::Connection => "connection",
            Part::Media => "media",
            Part::Srtp => "srtp",
            Part::Transcoding => "transcoding",
            Part::Conference => "conference",
            Part::Registrations => "registrations",
            Part::Handshakes => "handshakes",
        }
    }
}

/// What keys of a side were counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keys {
    line: u8,
    side: Side,
    cost: Cost,
}

/// What a call takes, by what for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bill {
    parts: [Cost; Part::OF_CALLS],
    /// What is counted for protection. Empty for most calls.
    keys: Vec<Keys>,
    /// The way of its media, where that is anchored.
    pub(super) way: Option<MediaWay>,
}

impl Bill {
    /// Of a call when it begins, without what it may come to need: keys and codecs are known later.
    pub(crate) fn of_call(media: Option<MediaWay>, sides: [Option<Transport>; 2]) -> Bill {
        let mut bill = Bill::default();
        bill.add(Part::Call, Cost::CALL);
        bill.way = media;
        if let Some(way) = media {
            bill.add(Part::Media, Cost::of_media(way));
        }
        for side in sides.into_iter().flatten() {
            bill.add(Part::Connection, Cost::of_transport(side));
        }
        bill
    }

    /// Of a participant of a conference, by his codec and what his signalling comes by.
    pub(crate) fn of_seat(kind: Kind, transport: Transport) -> Bill {
        let mut bill = Bill::of_call(None, [Some(transport), None]);
        bill.add(Part::Conference, Cost::SEAT);
        if matches!(kind, Kind::G729 | Kind::Opus) {
            bill.add(Part::Conference, Cost::VOCODER);
        }
        bill
    }

    /// What it comes to.
    pub(crate) fn total(&self) -> Cost {
        let mut total = Cost::default();
        for &part in &self.parts {
            total += part;
        }
        total
    }

    /// Each part of it.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Part, Cost)> {
        Part::ALL.into_iter().zip(self.parts)
    }

    /// Adds to a part that calls can have.
    pub(crate) fn add(&mut self, part: Part, cost: Cost) {
        if let Some(sum) = self.parts.get_mut(part as usize) {
            *sum += cost;
        }
    }

    /// A side of a line has such keys, or is to have them; gives what it was counted for before, which this takes the place of.
    pub(crate) fn protect(&mut self, line: usize, side: Side, cost: Cost) -> Cost {
        let line = u8::try_from(line).unwrap_or(u8::MAX);
        let mut all = self.keys.iter_mut();
        let known = all.find(|keys| keys.line == line && keys.side == side);
        let before = match known {
            Some(keys) => core::mem::replace(&mut keys.cost, cost),
            None => {
                self.keys.push(Keys { line, side, cost });
                Cost::default()
            }
        };
        let sum = &mut self.parts[Part::Srtp as usize];
        *sum -= before;
        *sum += cost;
        before
    }

    /// The way of its media, where that is anchored.
    pub(crate) fn way(&self) -> Option<MediaWay> {
        self.way
    }

    /// This way, where the media is neither encrypted nor transcoded here: the kernel relays plain RTP alone.
    pub(super) fn possible(&self, way: MediaWay) -> MediaWay {
        let [.., transcoding, _] = self.parts;
        let plain = self.keys.is_empty() && transcoding == Cost::default();
        match way {
            MediaWay::Kernel if !plain => MediaWay::Sockets,
            way => way,
        }
    }

    pub(super) fn part_mut(&mut self, part: Part) -> Option<&mut Cost> {
        self.parts.get_mut(part as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cost_by_their_kind() {
        let plain = Cost::of_call(false, [Some(Transport::Udp), Some(Transport::Tcp)]);
        assert_eq!(plain, Cost::CALL);
        let sides = [Some(Transport::Tls), Some(Transport::Wss)];
        let mut sum = Cost::CALL;
        sum += Cost::ANCHORED;
        sum += Cost::TLS.times(2);
        sum += Cost::WEBSOCKET;
        assert_eq!(Cost::of_call(true, sides), sum);
        let bill = Bill::of_call(Some(MediaWay::Sockets), sides);
        let parts: Vec<(Part, Cost)> = bill
            .parts()
            .filter(|part| part.1 != Cost::default())
            .collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[0], (Part::Call, Cost::CALL));
        assert_eq!(parts[1].0, Part::Connection);
        assert_eq!(parts[2], (Part::Media, Cost::ANCHORED));
        assert_eq!(
            Cost::of_call(false, [Some(Transport::Ws), None]).memory,
            Cost::CALL.memory + 4
        );
        assert_eq!(
            Cost::of_call(false, [Some(Transport::Udp), None]),
            Cost::CALL
        );
        let seat = Bill::of_seat(Kind::Opus, Transport::Tls);
        let mut sum = Cost::CALL;
        for more in [Cost::TLS, Cost::SEAT, Cost::VOCODER] {
            sum += more;
        }
        assert_eq!(seat.total(), sum);
    }

    #[test]
    fn keys_are_counted_once_for_a_side() {
        let counter = Cost::of_srtp(Keying::Sdes, Suite::AesCm128HmacSha1_80);
        let gcm = Cost::of_srtp(Keying::Dtls, Suite::AeadAes256Gcm);
        assert!(counter.processor > gcm.processor && counter.memory < gcm.memory);
        let mut bill = Bill::of_call(Some(MediaWay::Sockets), [None, None]);
        let before = bill.total();
        assert_eq!(bill.protect(0, Side::Caller, counter), Cost::default());
        assert_eq!(bill.protect(0, Side::Callee, gcm), Cost::default());
        // Other keys take the place of those before.
        assert_eq!(bill.protect(0, Side::Caller, gcm), counter);
        let mut sum = before;
        sum += gcm.times(2);
        assert_eq!(bill.total(), sum);
        assert_eq!(bill.protect(1, Side::Caller, counter), Cost::default());
        sum += counter;
        assert_eq!(bill.total(), sum);
    }
}
