//! The sending half of a participant: encodes a mix to packets. Participants with equal encoding keys share one
//! encoder.

use super::plan::VoiceFormat;
use super::{MAX_TURN, TURN_MS};
use codec::packet::{Content, PacketiserSettings};
use codec::{CodecError, Format, Packetiser, Resampler};
use wire::rtp::RtpHeader;

/// Cost of header, copy and SRTP of a packet to one participant.
const PACKET_NS: u64 = 700;

/// Parameters that participants must have in common to share encoded packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncodingKey {
    format: Format,
    packet_ms: u32,
    suppress: bool,
}

impl EncodingKey {
    pub(super) fn of(voice: &VoiceFormat) -> EncodingKey {
        EncodingKey {
            format: voice.format,
            packet_ms: voice.packet_ms,
            suppress: voice.suppress_silence,
        }
    }

    pub(super) fn packet_ms(&self) -> u32 {
        self.packet_ms
    }

    /// Estimated cost of encoding a turn for so many participants in nanoseconds, rather too low.
    pub(super) fn estimated_cost_ns(&self, participants: usize) -> u64 {
        self.format.kind().spec().encoding_ns + PACKET_NS * participants as u64
    }
}

/// An encoded packet without RTP header.
pub(super) struct MixPacket<'a> {
    pub(super) noise: bool,
    pub(super) payload: &'a [u8],
    /// Timestamp in units of the conference's clock.
    pub(super) timestamp: u32,
    pub(super) duration: u32,
    /// Whether it is sent half a turn later. If packet times end in the middle of turns, the packets that end with a
    /// turn are delayed, so that all packets have the same distance.
    pub(super) half_turn_late: bool,
}

/// An encoder with the resampler before it.
pub(super) struct MixEncoder {
    key: EncodingKey,
    packetiser: Packetiser,
    down: Resampler,
    resampled: Vec<i16>,
    /// The turn that was encoded last.
    last_turn: u64,
    /// Start of the present run of turns, from which packet times are counted.
    started_ms: u64,
}

impl core::fmt::Debug for MixEncoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MixEncoder")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl MixEncoder {
    /// An encoder for a mix at `mix_rate` Hz.
    pub(super) fn new(key: EncodingKey, mix_rate: u32) -> Result<MixEncoder, CodecError> {
        let rate = super::rate_of(key.format.kind());
        let packing = PacketiserSettings {
            packet_ms: key.packet_ms,
            suppress_silence: key.suppress,
        };
        Ok(MixEncoder {
            key,
            packetiser: Packetiser::new(&key.format, rate, packing)?,
            down: down(mix_rate, rate)?,
            resampled: Vec::with_capacity(2 * MAX_TURN),
            last_turn: 0,
            started_ms: 0,
        })
    }

    pub(super) fn key(&self) -> &EncodingKey {
        &self.key
    }

    /// Sets the packet loss to protect against, in percent.
    pub(super) fn set_expected_loss(&mut self, percent: u8) {
        // A codec without redundancy has no use for it.
        let _ = self.packetiser.encoder().set_expected_loss(percent);
    }

    /// Sets another mixing rate.
    pub(super) fn set_mix_rate(&mut self, rate: u32) -> Result<(), CodecError> {
        self.down = down(rate, super::rate_of(self.key.format.kind()))?;
        Ok(())
    }

    /// Encodes the mix of a turn that begins at `clock_ms` of the conference. `send` receives the completed packets.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub(super) fn feed(
        &mut self,
        turn: u64,
        clock_ms: u64,
        mix: &[i16],
        send: &mut dyn FnMut(MixPacket<'_>),
    ) -> Result<(), CodecError> {
        let units = self.key.format.kind().rtp_clock() / 1000;
        if self.last_turn + 1 != turn {
            // It was idle: synchronise with the conference's clock and discard old filter state.
            let wanted = (clock_ms as u32).wrapping_mul(units);
            let behind = wanted.wrapping_sub(self.packetiser.timestamp());
            self.packetiser.skip(behind);
            self.down.reset();
            self.started_ms = clock_ms;
        }
        self.last_turn = turn;
        self.resampled.clear();
        self.down.process(mix, &mut self.resampled);
        let packet_ms = u64::from(self.key.packet_ms);
        let splits_turns = !packet_ms.is_multiple_of(u64::from(TURN_MS));
        let started_ms = self.started_ms;
        let turn_ends = clock_ms + u64::from(TURN_MS);
        self.packetiser.push(&self.resampled, &mut |packet| {
            // Index of the packet time in which the packet begins.
            let begin = clock_ms as u32;
            let ahead = packet.timestamp.wrapping_sub(begin.wrapping_mul(units)) as i32;
            let at = clock_ms as i64 + i64::from(ahead / units as i32) - started_ms as i64;
            let slot_ends = started_ms + (at.max(0) as u64 / packet_ms + 1) * packet_ms;
            send(MixPacket {
                noise: packet.content == Content::Noise,
                payload: packet.payload,
                timestamp: packet.timestamp,
                duration: packet.duration,
                half_turn_late: splits_turns && slot_ends >= turn_ends,
            });
        })
    }
}

fn down(from: u32, to: u32) -> Result<Resampler, CodecError> {
    Resampler::new(from, to).map_err(|_| CodecError::Library("no filter between these rates"))
}

/// RTP stream to a participant (RFC 3550 section 5.1).
#[derive(Clone, Debug)]
pub(super) struct ParticipantStream {
    pub(super) ssrc: u32,
    sequence: u16,
    offset: u32,
    /// Timestamp at the end of the last packet, in units of the conference's clock; none before the first.
    expected_timestamp: Option<u32>,
    pub(super) packets: u32,
    pub(super) octets: u32,
}

impl ParticipantStream {
    pub(super) fn new(ssrc: u32, sequence: u16, offset: u32) -> ParticipantStream {
        ParticipantStream {
            ssrc,
            sequence,
            offset,
            expected_timestamp: None,
            packets: 0,
            octets: 0,
        }
    }

    /// RTP timestamp of an instant of the conference's clock.
    pub(super) fn timestamp(&self, units: u32) -> u32 {
        self.offset.wrapping_add(units)
    }

    /// Prepares for another codec: the next packet has the marker bit.
    pub(super) fn change_codec(&mut self) {
        self.expected_timestamp = None;
    }

    /// Appends a packet to `bytes`. Returns whether there is one.
    pub(super) fn write(
        &mut self,
        voice: &VoiceFormat,
        packet: &MixPacket<'_>,
        bytes: &mut Vec<u8>,
    ) -> bool {
        let payload_type = match (packet.noise, voice.noise) {
            (false, _) => voice.payload_type,
            (true, Some(noise)) => noise,
            // Comfort noise was not negotiated, so the encoder makes none.
            (true, None) => return false,
        };
        let marker = !packet.noise && self.expected_timestamp != Some(packet.timestamp);
        self.expected_timestamp = Some(packet.timestamp.wrapping_add(packet.duration));
        RtpHeader {
            marker,
            payload_type,
            sequence: self.sequence,
            timestamp: self.timestamp(packet.timestamp),
            ssrc: self.ssrc,
            ..RtpHeader::default()
        }
        .write(bytes);
        bytes.extend_from_slice(packet.payload);
        self.sequence = self.sequence.wrapping_add(1);
        self.packets = self.packets.wrapping_add(1);
        self.octets = self.octets.wrapping_add(packet.payload.len() as u32);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step is started only if it ends before the next deadline, which may be that of another conference.
    #[test]
    fn cost_of_a_shared_mix_includes_the_packets_of_its_listeners() {
        let key = EncodingKey::of(&VoiceFormat::new(Format::Pcma));
        let (one, all) = (key.estimated_cost_ns(1), key.estimated_cost_ns(500));
        assert!(all - one > 300_000, "{one} {all}");
    }
}
