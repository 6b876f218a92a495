//! RTCP (RFC 3550 section 6, RFC 4585, RFC 3611): parsing and writing of compound packets, and their distinction from
//! RTP (RFC 5761).

mod names;

pub use names::hide_names;

use crate::ethernet::{array, be16, be32};

/// Packet types.
pub mod packet_type {
    /// Sender report.
    pub const SR: u8 = 200;
    /// Receiver report.
    pub const RR: u8 = 201;
    /// Source description.
    pub const SDES: u8 = 202;
    /// Goodbye.
    pub const BYE: u8 = 203;
    /// Application-defined.
    pub const APP: u8 = 204;
    /// Transport layer feedback (RFC 4585).
    pub const RTPFB: u8 = 205;
    /// Payload-specific feedback (RFC 4585).
    pub const PSFB: u8 = 206;
    /// Extended report (RFC 3611).
    pub const XR: u8 = 207;
}

/// Whether a datagram of version two is RTCP instead of RTP (RFC 5761 section 4: second byte 192 to 223).
pub fn is_rtcp(datagram: &[u8]) -> bool {
    datagram.len() >= 8
        && matches!(datagram, [first, kind, ..] if first >> 6 == 2 && (192..=223).contains(kind))
}

/// Whether the datagram is a well-formed compound packet: all lengths are valid and the last packet ends with the
/// datagram. Stricter than [`is_rtcp`], for finding RTCP in unknown traffic; SRTCP is not accepted.
pub fn is_compound(datagram: &[u8]) -> bool {
    let mut compound = Compound::new(datagram);
    let mut packets = 0;
    for packet in compound.by_ref() {
        if !(192..=223).contains(&packet.packet_type) {
            return false;
        }
        packets += 1;
    }
    packets > 0 && compound.is_exhausted()
}

/// One packet of a compound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtcpPacket<'a> {
    /// Report count, source count, subtype or feedback message type.
    pub count: u8,
    /// Packet type.
    pub packet_type: u8,
    /// The bytes after the first four, without padding.
    pub body: &'a [u8],
}

/// Iterator over the packets of a compound, in order; ends at the first malformed packet.
#[derive(Clone, Copy, Debug)]
pub struct Compound<'a> {
    rest: &'a [u8],
}

impl<'a> Compound<'a> {
    /// The packets of a datagram.
    pub fn new(datagram: &'a [u8]) -> Compound<'a> {
        Compound { rest: datagram }
    }

    /// Whether all bytes were parsed.
    pub fn is_exhausted(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Compound<'a> {
    type Item = RtcpPacket<'a>;

    fn next(&mut self) -> Option<RtcpPacket<'a>> {
        let header = self.rest.get(..4)?;
        let first = *header.first()?;
        if first >> 6 != 2 {
            return None;
        }
        let length = 4 + 4 * usize::from(be16(header, 2));
        let mut body = self.rest.get(4..length)?;
        if first & 0x20 != 0 {
            let padding = usize::from(*body.last()?);
            body = body.get(..body.len().checked_sub(padding)?)?;
        }
        self.rest = self.rest.get(length..)?;
        Some(RtcpPacket {
            count: first & 0x1f,
            packet_type: array::<1>(header, 1)[0],
            body,
        })
    }
}

/// Sender information (RFC 3550 section 6.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderInfo {
    /// NTP timestamp, 32.32 fixed point.
    pub ntp: u64,
    /// RTP timestamp of the same instant.
    pub rtp_timestamp: u32,
    /// Packets sent.
    pub packets: u32,
    /// Payload bytes sent.
    pub octets: u32,
}

/// A reception report block (RFC 3550 section 6.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportBlock {
    /// The source reported on.
    pub ssrc: u32,
    /// Fraction lost since the last report, in 1/256.
    pub fraction_lost: u8,
    /// Packets lost since the beginning, 24 bits signed.
    pub cumulative_lost: i32,
    /// Extended highest sequence number received.
    pub highest_sequence: u32,
    /// Interarrival jitter in timestamp units.
    pub jitter: u32,
    /// Middle 32 bits of the last sender report's NTP timestamp.
    pub last_sr: u32,
    /// Delay since then, in 1/65536 s.
    pub delay_since_last_sr: u32,
}

impl ReportBlock {
    /// Bytes of a block.
    pub const LENGTH: usize = 24;

    /// Reads a block; `None` if there are not enough bytes.
    pub fn parse(bytes: &[u8]) -> Option<ReportBlock> {
        let bytes = bytes.get(..Self::LENGTH)?;
        let lost = be32(bytes, 4);
        Some(ReportBlock {
            ssrc: be32(bytes, 0),
            fraction_lost: (lost >> 24) as u8,
            // Sign extension of 24 bits.
            cumulative_lost: ((lost << 8) as i32) >> 8,
            highest_sequence: be32(bytes, 8),
            jitter: be32(bytes, 12),
            last_sr: be32(bytes, 16),
            delay_since_last_sr: be32(bytes, 20),
        })
    }

    /// The bytes of the block.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let lost = self.cumulative_lost.clamp(-0x80_0000, 0x7f_ffff) as u32 & 0x00ff_ffff;
        let words = [
            self.ssrc,
            u32::from(self.fraction_lost) << 24 | lost,
            self.highest_sequence,
            self.jitter,
            self.last_sr,
            self.delay_since_last_sr,
        ];
        let mut bytes = [0; Self::LENGTH];
        let (places, _) = bytes.as_chunks_mut::<4>();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        bytes
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Round-trip time in 1/65536 s at NTP middle-32 time `now` (RFC 3550 section 6.4.1); `None` if the block refers to
    /// no sender report or the result is negative.
    pub fn round_trip(&self, now: u32) -> Option<u32> {
        if self.last_sr == 0 {
            return None;
        }
        let round = now
            .wrapping_sub(self.last_sr)
            .wrapping_sub(self.delay_since_last_sr);
        (round < 0x8000_0000).then_some(round)
    }
}

impl<'a> RtcpPacket<'a> {
    /// The sender of a packet (absent in SDES, and in BYE without sources).
    pub fn sender(&self) -> Option<u32> {
        self.body.get(..4).map(|word| be32(word, 0))
    }

    /// Sender information of a sender report.
    pub fn sender_info(&self) -> Option<SenderInfo> {
        let info = self.body.get(4..24)?;
        (self.packet_type == packet_type::SR).then(|| SenderInfo {
            ntp: u64::from(be32(info, 0)) << 32 | u64::from(be32(info, 4)),
            rtp_timestamp: be32(info, 8),
            packets: be32(info, 12),
            octets: be32(info, 16),
        })
    }

    /// The report blocks of a sender or receiver report.
    pub fn reports(&self) -> impl Iterator<Item = ReportBlock> + use<'a> {
        let blocks = match self.packet_type {
            packet_type::SR => self.body.get(24..),
            packet_type::RR => self.body.get(4..),
            _ => None,
        };
        blocks
            .unwrap_or_default()
            .chunks_exact(ReportBlock::LENGTH)
            .take(usize::from(self.count))
            .filter_map(ReportBlock::parse)
    }

    /// The items of a source description: source, item type (1 is CNAME), text.
    pub fn descriptions(&self) -> Descriptions<'a> {
        let is_sdes = self.packet_type == packet_type::SDES;
        Descriptions {
            rest: if is_sdes { self.body } else { &[] },
            source: None,
            chunks: self.count,
        }
    }

    /// The sources that a BYE removes.
    pub fn goodbye_sources(&self) -> impl Iterator<Item = u32> + use<'a> {
        let is_bye = self.packet_type == packet_type::BYE;
        let list = if is_bye { self.body } else { &[] };
        list.chunks_exact(4)
            .take(usize::from(self.count))
            .map(|word| be32(word, 0))
    }

    /// The reason of a BYE.
    pub fn goodbye_reason(&self) -> Option<&'a [u8]> {
        if self.packet_type != packet_type::BYE {
            return None;
        }
        let rest = self.body.get(4 * usize::from(self.count)..)?;
        rest.get(1..1 + usize::from(*rest.first()?))
    }

    /// The blocks of an extended report (RFC 3611 section 3): block type, type-specific byte, contents.
    pub fn extended_blocks(&self) -> ExtendedBlocks<'a> {
        let is_xr = self.packet_type == packet_type::XR;
        ExtendedBlocks {
            rest: if is_xr {
                self.body.get(4..).unwrap_or_default()
            } else {
                &[]
            },
        }
    }

    /// The media source to which feedback refers (RFC 4585 section 6.1), and the feedback control information.
    pub fn feedback(&self) -> Option<(u32, &'a [u8])> {
        let is_feedback = matches!(self.packet_type, packet_type::RTPFB | packet_type::PSFB);
        let body = if is_feedback { self.body } else { &[] };
        Some((be32(body.get(..8)?, 4), body.get(8..)?))
    }
}

/// Iterator of [`RtcpPacket::descriptions`].
#[derive(Clone, Debug)]
pub struct Descriptions<'a> {
    rest: &'a [u8],
    source: Option<u32>,
    chunks: u8,
}

impl<'a> Iterator for Descriptions<'a> {
    type Item = (u32, u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(source) = self.source else {
                self.chunks = self.chunks.checked_sub(1)?;
                self.source = Some(be32(self.rest.get(..4)?, 0));
                self.rest = self.rest.get(4..)?;
                continue;
            };
            let kind = *self.rest.first()?;
            if kind == 0 {
                // The item list ends with one to four zero bytes, up to a word boundary relative to the packet's start.
                let boundary = if self.rest.len().is_multiple_of(4) {
                    4
                } else {
                    self.rest.len() % 4
                };
                self.rest = self.rest.get(boundary..)?;
                self.source = None;
                continue;
            }
            let length = usize::from(*self.rest.get(1)?);
            let text = self.rest.get(2..2 + length)?;
            self.rest = self.rest.get(2 + length..)?;
            return Some((source, kind, text));
        }
    }
}

/// Iterator of [`RtcpPacket::extended_blocks`].
#[derive(Clone, Debug)]
pub struct ExtendedBlocks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for ExtendedBlocks<'a> {
    type Item = (u8, u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header: [u8; 4] = self.rest.get(..4)?.try_into().ok()?;
        let length = 4 + 4 * usize::from(be16(&header, 2));
        let block = self.rest.get(4..length)?;
        self.rest = self.rest.get(length..)?;
        Some((header[0], header[1], block))
    }
}

/// Writes compound packets, in the order of the calls. The first must be a report (RFC 3550 section 6.1).
#[derive(Clone, Debug, Default)]
pub struct CompoundBuilder {
    bytes: Vec<u8>,
}

impl CompoundBuilder {
    /// An empty builder.
    pub fn new() -> CompoundBuilder {
        CompoundBuilder::default()
    }

    /// Reuses the buffer of an earlier packet, to avoid an allocation.
    pub fn reusing(mut buffer: Vec<u8>) -> CompoundBuilder {
        buffer.clear();
        CompoundBuilder { bytes: buffer }
    }

    /// A sender report with the first 31 of `blocks`.
    pub fn sender_report(mut self, sender: u32, info: &SenderInfo, blocks: &[ReportBlock]) -> Self {
        let blocks = blocks.get(..31).unwrap_or(blocks);
        let start = self.begin(packet_type::SR, blocks.len() as u8);
        self.bytes.extend_from_slice(&sender.to_be_bytes());
        self.bytes.extend_from_slice(&info.ntp.to_be_bytes());
        for word in [info.rtp_timestamp, info.packets, info.octets] {
            self.bytes.extend_from_slice(&word.to_be_bytes());
        }
        for block in blocks {
            block.write(&mut self.bytes);
        }
        self.end(start);
        self
    }

    /// A receiver report with the first 31 of `blocks`.
    pub fn receiver_report(mut self, sender: u32, blocks: &[ReportBlock]) -> Self {
        let blocks = blocks.get(..31).unwrap_or(blocks);
        let start = self.begin(packet_type::RR, blocks.len() as u8);
        self.bytes.extend_from_slice(&sender.to_be_bytes());
        for block in blocks {
            block.write(&mut self.bytes);
        }
        self.end(start);
        self
    }

    /// A source description with one CNAME of at most 255 bytes.
    pub fn cname(mut self, source: u32, cname: &str) -> Self {
        let text = cname.as_bytes();
        let text = text.get(..255).unwrap_or(text);
        let start = self.begin(packet_type::SDES, 1);
        self.bytes.extend_from_slice(&source.to_be_bytes());
        self.bytes.extend_from_slice(&[1, text.len() as u8]);
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
        self.end(start);
        self
    }

    /// A goodbye of the first 31 of `sources`, with a reason of at most 255 bytes.
    pub fn goodbye(mut self, sources: &[u32], reason: &str) -> Self {
        let sources = sources.get(..31).unwrap_or(sources);
        let start = self.begin(packet_type::BYE, sources.len() as u8);
        for source in sources {
            self.bytes.extend_from_slice(&source.to_be_bytes());
        }
        let reason = reason.as_bytes();
        let reason = reason.get(..255).unwrap_or(reason);
        if !reason.is_empty() {
            self.bytes.push(reason.len() as u8);
            self.bytes.extend_from_slice(reason);
        }
        self.end(start);
        self
    }

    /// The datagram.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn begin(&mut self, packet_type: u8, count: u8) -> usize {
        let start = self.bytes.len();
        self.bytes
            .extend_from_slice(&[0x80 | count, packet_type, 0, 0]);
        start
    }

    /// Pads to a word and writes the length field.
    fn end(&mut self, start: usize) {
        let length = (self.bytes.len() - start).div_ceil(4);
        self.bytes.resize(start + length * 4, 0);
        if let Some(field) = self.bytes.get_mut(start + 2..start + 4) {
            field.copy_from_slice(&((length - 1) as u16).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> ReportBlock {
        ReportBlock {
            ssrc: 0x0a0b_0c0d,
            fraction_lost: 64,
            cumulative_lost: -3,
            highest_sequence: 0x0001_fffe,
            jitter: 17,
            last_sr: 0x1234_5678,
            delay_since_last_sr: 65_536,
        }
    }

    #[test]
    fn a_compound_round_trip() {
        let info = SenderInfo {
            ntp: 0x1122_3344_5566_7788,
            rtp_timestamp: 160,
            packets: 9,
            octets: 1440,
        };
        let bytes = CompoundBuilder::new()
            .sender_report(7, &info, &[block()])
            .cname(7, "alice@192.0.2.1")
            .goodbye(&[7], "done")
            .finish();
        assert!(is_rtcp(&bytes) && is_compound(&bytes));
        let packets: Vec<_> = Compound::new(&bytes).collect();
        assert_eq!(packets.len(), 3);
        assert_eq!(packets[0].sender(), Some(7));
        assert_eq!(packets[0].sender_info(), Some(info));
        assert_eq!(packets[0].reports().collect::<Vec<_>>(), [block()]);
        let items: Vec<_> = packets[1].descriptions().collect();
        assert_eq!(items, [(7, 1, &b"alice@192.0.2.1"[..])]);
        assert_eq!(packets[2].goodbye_sources().collect::<Vec<_>>(), [7]);
        assert_eq!(packets[2].goodbye_reason(), Some(&b"done"[..]));
        for cut in 1..bytes.len() {
            assert!(Compound::new(&bytes[..cut]).count() < 3);
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(!is_compound(&long));
    }

    #[test]
    fn receiver_report_limits_its_blocks() {
        let blocks = [block(); 40];
        let bytes = CompoundBuilder::new().receiver_report(1, &blocks).finish();
        assert_eq!(Compound::new(&bytes).next().unwrap().reports().count(), 31);
        assert_eq!(bytes.len(), 8 + 31 * 24);
    }

    #[test]
    fn round_trip_time() {
        // The figure of RFC 3550 section 6.4.1: 0xb710:8000 - 0x0005:4000 - 0xb705:2000 = 6.125 s.
        let block = ReportBlock {
            last_sr: 0xb705_2000,
            delay_since_last_sr: 0x0005_4000,
            ..ReportBlock::default()
        };
        assert_eq!(block.round_trip(0xb710_8000), Some(0x0006_2000));
        assert_eq!(block.round_trip(0xb705_2000), None);
        assert_eq!(ReportBlock::default().round_trip(1), None);
    }

    #[test]
    fn feedback_extended_and_padding() {
        let nack = [0x81, 205, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 5, 0, 0];
        let packet = Compound::new(&nack).next().unwrap();
        assert_eq!(packet.feedback(), Some((2, &[0, 5, 0, 0][..])));
        let extended = [0x80, 207, 0, 3, 0, 0, 0, 1, 4, 9, 0, 1, 1, 2, 3, 4];
        let packet = Compound::new(&extended).next().unwrap();
        let blocks: Vec<_> = packet.extended_blocks().collect();
        assert_eq!(blocks, [(4, 9, &[1, 2, 3, 4][..])]);
        let padded = [0xa0, 201, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4];
        assert_eq!(Compound::new(&padded).next().unwrap().body.len(), 4);
        let bad = [0xa0, 201, 0, 1, 0, 0, 0, 9];
        assert!(Compound::new(&bad).next().is_none());
    }

    #[test]
    fn several_sdes_chunks() {
        let body = [
            0x82, 202, 0, 6, 0, 0, 0, 1, 1, 1, b'a', 0, 0, 0, 0, 2, 1, 2, b'b', b'c', 2, 0, 0, 0,
            0, 0, 0, 0,
        ];
        let packet = Compound::new(&body).next().unwrap();
        let items: Vec<_> = packet.descriptions().collect();
        assert_eq!(
            items,
            [(1, 1, &b"a"[..]), (2, 1, &b"bc"[..]), (2, 2, &b""[..])]
        );
    }
}
