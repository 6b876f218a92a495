//! The media of a call: packets in memory, their times, and their SRTP.

use super::model::StudyCodec;
use super::record::PacketCount;
use engine::Entropy;
use protect::srtp::{ContextLimits, Inbound, KeyError, MAX_OVERHEAD, MasterKey, Outbound, Suite};
use std::time::Duration;
use wire::rtp::RtpHeader;

/// Synchronisation sources of both directions.
pub const SSRC: [u32; 2] = [0x0c0a_0001, 0x0c0a_0002];
/// Port of RTP; RTCP has the next one.
pub const RTP: u16 = 5_004;
/// Time between two RTCP reports (RFC 3550 section 6.2).
const RTCP: Duration = Duration::from_secs(5);
/// Time before the first packet.
pub const LEAD: Duration = Duration::from_millis(150);

/// The media of one host, packet by packet.
#[derive(Clone, Debug)]
pub struct MediaSource {
    codec: StudyCodec,
    side: usize,
    payload: Vec<u8>,
}

impl MediaSource {
    /// The media of the first (0) or second (1) host.
    pub fn new(codec: StudyCodec, side: usize) -> MediaSource {
        MediaSource {
            codec,
            side,
            payload: (0..codec.bytes).map(|n| (n * 37) as u8 ^ 0x5a).collect(),
        }
    }

    /// Time of a packet after the begin of the call.
    pub fn due(&self, number: u32) -> Duration {
        let interval = Duration::from_millis(u64::from(self.codec.packet_ms));
        // Both sides do not send at the same moment, as two clocks would not.
        interval / 2 * self.side as u32 + interval * number
    }

    fn timestamp(&self, number: u32) -> u32 {
        (self.codec.clock_hz / 1_000 * self.codec.packet_ms).wrapping_mul(number)
    }

    /// The RTP packet of this number, from 0.
    pub fn packet(&self, number: u32) -> Vec<u8> {
        let header = RtpHeader {
            marker: number == 0,
            payload_type: self.codec.payload_type,
            sequence: number as u16,
            timestamp: self.timestamp(number),
            ssrc: SSRC[self.side],
            ..RtpHeader::default()
        };
        header.packet(&self.payload)
    }

    /// The RTCP report that follows the packet of this number; `None` if none is due.
    pub fn report(&self, number: u32) -> Option<Vec<u8>> {
        // Reports are due 2.5 s after the begin of the call, then each 5 s.
        let reports = |due: Duration| (due + RTCP / 2).as_nanos() / RTCP.as_nanos();
        let before = match number.checked_sub(1) {
            Some(before) => reports(self.due(before)),
            None => 0,
        };
        (reports(self.due(number)) > before)
            .then(|| report(SSRC[self.side], self.timestamp(number), number))
    }
}

/// SRTP of a host: AES-128 in counter mode and HMAC-SHA1-80 (RFC 3711), with a master key for each direction.
pub struct MediaSrtp {
    outbound: Outbound,
    inbound: Inbound,
    /// Packets that have arrived.
    pub count: PacketCount,
}

impl MediaSrtp {
    /// That of both hosts of a cell; the keys follow from its seed.
    ///
    /// # Errors
    /// The library refuses a key.
    pub fn pair(seed: u64) -> Result<[MediaSrtp; 2], String> {
        let mut entropy = Entropy::from_number(!seed);
        let mut key = || MasterKey::generate(Suite::AesCm128HmacSha1_80, &mut entropy);
        let [first, second] = [key(), key()];
        let text = |error: KeyError| error.to_string();
        let host = |own: &MasterKey, other: &MasterKey| -> Result<MediaSrtp, String> {
            let limits = ContextLimits::default();
            Ok(MediaSrtp {
                outbound: Outbound::new(own, limits).map_err(text)?,
                inbound: Inbound::new(other, limits).map_err(text)?,
                count: PacketCount::default(),
            })
        };
        Ok([host(&first, &second)?, host(&second, &first)?])
    }

    /// Protects a packet of RTP, or of RTCP.
    ///
    /// # Errors
    /// A packet of this number was protected before.
    pub fn seal(&mut self, mut packet: Vec<u8>, is_rtcp: bool) -> Result<Vec<u8>, String> {
        let length = packet.len();
        packet.resize(length + MAX_OVERHEAD, 0);
        let sealed = match is_rtcp {
            true => self.outbound.protect_rtcp(&mut packet, length),
            false => self.outbound.protect_rtp(&mut packet, length),
        };
        packet.truncate(sealed.map_err(|failure| failure.to_string())?);
        Ok(packet)
    }

    /// Checks and decrypts a packet that has arrived, and counts it.
    pub fn open(&mut self, packet: &mut [u8], is_rtcp: bool) {
        let opened = match is_rtcp {
            true => self.inbound.unprotect_rtcp(packet),
            false => self.inbound.unprotect_rtp(packet),
        };
        match opened {
            Ok(_) => self.count.accepted += 1,
            Err(_) => self.count.refused += 1,
        }
    }
}

/// A sender report with a canonical name (RFC 3550 sections 6.4.1 and 6.5).
fn report(ssrc: u32, timestamp: u32, packets: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, 200, 0, 6];
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(timestamp.to_be_bytes());
    bytes.extend(packets.to_be_bytes());
    bytes.extend([0; 4]);
    // One chunk: source, CNAME "hornwork@lab", padding.
    bytes.extend([0x81, 202, 0, 5]);
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([1, 12]);
    bytes.extend(b"hornwork@lab");
    bytes.extend([0, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_c::model::CODECS;

    #[test]
    fn media_is_protected_and_a_changed_packet_refused() {
        let source = MediaSource::new(CODECS[0], 0);
        let [mut first, mut second] = MediaSrtp::pair(7).unwrap();
        let clear = source.packet(3);
        let mut sealed = first.seal(clear.clone(), false).unwrap();
        // The header stays, the payload does not, and the tag has 80 bits.
        assert_eq!(sealed.len(), clear.len() + 10);
        assert_eq!(sealed[..12], clear[..12]);
        assert_ne!(sealed[12..clear.len()], clear[12..]);
        second.open(&mut sealed, false);
        assert_eq!(sealed[..clear.len()], clear);
        let report = report(SSRC[0], 0, 4);
        let mut sealed = first.seal(report.clone(), true).unwrap();
        assert_eq!(sealed.len(), report.len() + 14);
        second.open(&mut sealed, true);
        let mut changed = first.seal(source.packet(4), false).unwrap();
        changed[20] ^= 1;
        second.open(&mut changed, false);
        let count = second.count;
        assert_eq!((count.accepted, count.refused), (2, 1));
        // The other direction has another key.
        let mut back = second.seal(source.packet(5), false).unwrap();
        second.open(&mut back, false);
        assert_eq!(second.count.refused, 2);
    }

    #[test]
    fn reports_are_valid_compounds_each_five_seconds() {
        let source = MediaSource::new(CODECS[0], 1);
        let reports: Vec<(u32, Vec<u8>)> = (0..1_000)
            .filter_map(|number| Some((number, source.report(number)?)))
            .collect();
        // 30 s of packets of 30 ms: at 2.5, 7.5, 12.5, 17.5, 22.5 and 27.5 s, less the shift of 15 ms.
        let numbers: Vec<u32> = reports.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [83, 250, 417, 583, 750, 917]);
        for (_, bytes) in &reports {
            assert!(wire::rtcp::is_compound(bytes), "{bytes:?}");
            assert_eq!(bytes.len(), 28 + 24);
        }
        assert_eq!(source.packet(3).len(), 12 + 24);
    }
}
