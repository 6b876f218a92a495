//! The media of a call: packets in memory, and their times.

use super::model::StudyCodec;
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
