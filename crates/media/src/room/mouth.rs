//! The sending half of a seat: a mix to packets. Listeners who hear the same mix by the same codec share what is encoded.

use super::plan::Voice;
use super::{MAX_TURN, TURN_MS};
use codec::packet::{Content, Packing};
use codec::{CodecError, Format, Kind, Packetiser, Resampler};
use wire::rtp::RtpHeader;

/// What listeners must have in common to be given the same payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Likeness {
    format: Format,
    packet_ms: u32,
    suppress: bool,
}

impl Likeness {
    pub(super) fn of(voice: &Voice) -> Likeness {
        Likeness {
            format: voice.sends,
            packet_ms: voice.packet_ms,
            suppress: voice.suppress_silence,
        }
    }

    pub(super) fn packet_ms(&self) -> u32 {
        self.packet_ms
    }

    /// About how long it takes to encode a turn, in nanoseconds; rather too little.
    pub(super) fn cost(&self) -> u64 {
        match self.format.kind() {
            Kind::G729 => 120_000,
            Kind::Opus => 150_000,
            Kind::Pcma | Kind::Pcmu => 4_000,
            Kind::G722 => 20_000,
        }
    }
}

/// A packet's payload, before it has a header.
pub(super) struct Made<'a> {
    pub(super) noise: bool,
    pub(super) payload: &'a [u8],
    /// In units of the room's clock.
    pub(super) timestamp: u32,
    pub(super) duration: u32,
    /// It ends with the turn where packets end in the midst of turns too: it leaves half a turn later, so that all are equally late.
    pub(super) later: bool,
}

/// An encoder with what is before it.
pub(super) struct Mouth {
    likeness: Likeness,
    packetiser: Packetiser,
    down: Resampler,
    narrow: Vec<i16>,
    /// The turn in which it was last fed.
    fed: u64,
    /// When packets began without a pause: packet times count from there.
    began_ms: u64,
}

impl core::fmt::Debug for Mouth {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mouth")
            .field("likeness", &self.likeness)
            .finish_non_exhaustive()
    }
}

impl Mouth {
    pub(super) fn new(likeness: Likeness, room_rate: u32) -> Result<Mouth, CodecError> {
        let rate = super::rate_of(likeness.format.kind());
        let packing = Packing {
            packet_ms: likeness.packet_ms,
            suppress_silence: likeness.suppress,
        };
        Ok(Mouth {
            likeness,
            packetiser: Packetiser::new(&likeness.format, rate, packing)?,
            down: down(room_rate, rate)?,
            narrow: Vec::with_capacity(2 * MAX_TURN),
            fed: 0,
            began_ms: 0,
        })
    }

    pub(super) fn likeness(&self) -> &Likeness {
        &self.likeness
    }

    /// The room has another rate from now on.
    pub(super) fn set_room_rate(&mut self, rate: u32) -> Result<(), CodecError> {
        self.down = down(rate, super::rate_of(self.likeness.format.kind()))?;
        Ok(())
    }

    /// Encodes the mix of a turn, which begins at `clock_ms` of the room; hands on the packets that it completes.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub(super) fn feed(
        &mut self,
        turn: u64,
        clock_ms: u64,
        mix: &[i16],
        send: &mut dyn FnMut(Made<'_>),
    ) -> Result<(), CodecError> {
        let units = self.likeness.format.kind().rtp_clock() / 1000;
        if self.fed + 1 != turn {
            // It was idle: it takes up the room's clock again, and nothing that was heard then may be left.
            let wanted = (clock_ms as u32).wrapping_mul(units);
            let behind = wanted.wrapping_sub(self.packetiser.timestamp());
            self.packetiser.skip(behind);
            self.down.reset();
            self.began_ms = clock_ms;
        }
        self.fed = turn;
        self.narrow.clear();
        self.down.process(mix, &mut self.narrow);
        let packet_ms = u64::from(self.likeness.packet_ms);
        let halves = !packet_ms.is_multiple_of(u64::from(TURN_MS));
        let began_ms = self.began_ms;
        let turn_ends = clock_ms + u64::from(TURN_MS);
        self.packetiser.push(&self.narrow, &mut |packet| {
            // In which of the packet times it lies.
            let begin = clock_ms as u32;
            let ahead = packet.timestamp.wrapping_sub(begin.wrapping_mul(units)) as i32;
            let at = clock_ms as i64 + i64::from(ahead / units as i32) - began_ms as i64;
            let slot_ends = began_ms + (at.max(0) as u64 / packet_ms + 1) * packet_ms;
            send(Made {
                noise: packet.content == Content::Noise,
                payload: packet.payload,
                timestamp: packet.timestamp,
                duration: packet.duration,
                later: halves && slot_ends >= turn_ends,
            });
        })
    }
}

fn down(from: u32, to: u32) -> Result<Resampler, CodecError> {
    Resampler::new(from, to).map_err(|_| CodecError::Library("no filter between these rates"))
}

/// The RTP stream towards a participant (RFC 3550 section 5.1).
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) ssrc: u32,
    sequence: u16,
    offset: u32,
    /// Where the packet before ended, in units of the room's clock; none before the first.
    ends: Option<u32>,
    pub(super) packets: u32,
    pub(super) octets: u32,
}

impl Stream {
    pub(super) fn new(ssrc: u32, sequence: u16, offset: u32) -> Stream {
        Stream {
            ssrc,
            sequence,
            offset,
            ends: None,
            packets: 0,
            octets: 0,
        }
    }

    /// The timestamp of a moment of the room's clock.
    pub(super) fn timestamp(&self, units: u32) -> u32 {
        self.offset.wrapping_add(units)
    }

    /// Another codec, with another clock, goes on where this one is.
    pub(super) fn change_codec(&mut self) {
        self.ends = None;
    }

    /// Appends a packet to `bytes`.
    pub(super) fn write(&mut self, voice: &Voice, made: &Made<'_>, bytes: &mut Vec<u8>) -> bool {
        let payload_type = match (made.noise, voice.noise) {
            (false, _) => voice.payload_type,
            (true, Some(noise)) => noise,
            // Not agreed: never made.
            (true, None) => return false,
        };
        let marker = !made.noise && self.ends != Some(made.timestamp);
        self.ends = Some(made.timestamp.wrapping_add(made.duration));
        RtpHeader {
            marker,
            payload_type,
            sequence: self.sequence,
            timestamp: self.timestamp(made.timestamp),
            ssrc: self.ssrc,
            ..RtpHeader::default()
        }
        .write(bytes);
        bytes.extend_from_slice(made.payload);
        self.sequence = self.sequence.wrapping_add(1);
        self.packets = self.packets.wrapping_add(1);
        self.octets = self.octets.wrapping_add(made.payload.len() as u32);
        true
    }
}
