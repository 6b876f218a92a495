//! RTP (RFC 3550 section 5.1) packets, header extensions (RFC 8285) and telephone events (RFC 4733).

use crate::ethernet::{array, be16, be32};

/// An RTP packet; the lengths of header, CSRC list and extension were checked once at [`RtpView::parse`].
#[derive(Clone, Copy, Debug)]
pub struct RtpView<'a> {
    packet: &'a [u8],
    payload_at: usize,
}

impl<'a> RtpView<'a> {
    /// The fixed header's length.
    pub const HEADER: usize = 12;

    /// A view; `None` for another version or a truncated header, CSRC list or extension.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let first = *packet.get(..Self::HEADER)?.first()?;
        if first >> 6 != 2 {
            return None;
        }
        let mut payload_at = Self::HEADER + 4 * usize::from(first & 0x0f);
        if first & 0x10 != 0 {
            let header = packet.get(payload_at..payload_at + 4)?;
            payload_at += 4 + 4 * usize::from(be16(header, 2));
        }
        (packet.len() >= payload_at).then_some(RtpView { packet, payload_at })
    }

    /// The whole packet.
    pub fn bytes(&self) -> &'a [u8] {
        self.packet
    }

    /// Length of header, CSRC list and extension.
    pub fn header_length(&self) -> usize {
        self.payload_at
    }

    /// The padding bit.
    pub fn has_padding(&self) -> bool {
        self.byte(0) & 0x20 != 0
    }

    /// The marker bit.
    pub fn marker(&self) -> bool {
        self.byte(1) & 0x80 != 0
    }

    /// Payload type.
    pub fn payload_type(&self) -> u8 {
        self.byte(1) & 0x7f
    }

    /// Sequence number.
    pub fn sequence(&self) -> u16 {
        be16(self.packet, 2)
    }

    /// Timestamp.
    pub fn timestamp(&self) -> u32 {
        be32(self.packet, 4)
    }

    /// Synchronisation source.
    pub fn ssrc(&self) -> u32 {
        be32(self.packet, 8)
    }

    /// Contributing sources.
    pub fn csrcs(&self) -> impl Iterator<Item = u32> + use<'a> {
        let count = usize::from(self.byte(0) & 0x0f);
        let list = self.packet.get(Self::HEADER..Self::HEADER + 4 * count);
        list.unwrap_or_default()
            .chunks_exact(4)
            .map(|csrc| be32(csrc, 0))
    }

    /// The header extension: its profile word and its data.
    pub fn extension(&self) -> Option<(u16, &'a [u8])> {
        if self.byte(0) & 0x10 == 0 {
            return None;
        }
        let at = Self::HEADER + 4 * usize::from(self.byte(0) & 0x0f);
        let data = self.packet.get(at + 4..self.payload_at)?;
        Some((be16(self.packet, at), data))
    }

    /// Elements of a one-byte or two-byte header extension (RFC 8285): identifier and data. Ends at the first malformed
    /// element.
    pub fn extension_elements(&self) -> ExtensionElements<'a> {
        let (two_byte, rest) = match self.extension() {
            Some((0xbede, data)) => (false, data),
            Some((profile, data)) if profile & 0xfff0 == 0x1000 => (true, data),
            _ => (false, &[][..]),
        };
        ExtensionElements { two_byte, rest }
    }

    /// Payload including padding; in SRTP the padding is encrypted and its length unknown.
    pub fn payload_and_padding(&self) -> &'a [u8] {
        self.packet.get(self.payload_at..).unwrap_or_default()
    }

    /// Payload without padding; `None` if the padding count is zero or larger than the payload.
    pub fn payload(&self) -> Option<&'a [u8]> {
        let payload = self.payload_and_padding();
        if !self.has_padding() {
            return Some(payload);
        }
        let padding = usize::from(*payload.last()?);
        if padding == 0 {
            return None;
        }
        payload.get(..payload.len().checked_sub(padding)?)
    }

    fn byte(&self, at: usize) -> u8 {
        array::<1>(self.packet, at)[0]
    }
}

/// Iterator of [`RtpView::extension_elements`].
#[derive(Clone, Debug)]
pub struct ExtensionElements<'a> {
    two_byte: bool,
    rest: &'a [u8],
}

impl<'a> Iterator for ExtensionElements<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while let [0, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (id, length, header) = if self.two_byte {
            (*self.rest.first()?, usize::from(*self.rest.get(1)?), 2)
        } else {
            let first = *self.rest.first()?;
            // Identifier 15 ends the list (RFC 8285 section 4.2).
            if first >> 4 == 15 {
                self.rest = &[];
                return None;
            }
            (first >> 4, usize::from(first & 0x0f) + 1, 1)
        };
        let element = self.rest.get(header..header + length);
        self.rest = self.rest.get(header + length..).unwrap_or_default();
        element.map(|data| (id, data))
    }
}

/// The fields of an RTP header to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtpHeader<'a> {
    /// Marker bit.
    pub marker: bool,
    /// Payload type, 0 to 127.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp.
    pub timestamp: u32,
    /// Synchronisation source.
    pub ssrc: u32,
    /// Contributing sources; at most fifteen are written.
    pub csrcs: &'a [u32],
    /// Header extension: profile and data, padded to a multiple of four with zeros.
    pub extension: Option<(u16, &'a [u8])>,
}

impl RtpHeader<'_> {
    /// Length of the written header.
    pub fn length(&self) -> usize {
        let extension = self
            .extension
            .map_or(0, |(_, data)| 4 + data.len().div_ceil(4) * 4);
        RtpView::HEADER + 4 * self.csrcs.len().min(15) + extension
    }

    /// Appends the header to `packet`.
    pub fn write(&self, packet: &mut Vec<u8>) {
        let csrcs = self.csrcs.get(..15).unwrap_or(self.csrcs);
        let extension_bit = if self.extension.is_some() { 0x10 } else { 0 };
        packet.push(0x80 | extension_bit | csrcs.len() as u8);
        packet.push(u8::from(self.marker) << 7 | (self.payload_type & 0x7f));
        packet.extend_from_slice(&self.sequence.to_be_bytes());
        packet.extend_from_slice(&self.timestamp.to_be_bytes());
        packet.extend_from_slice(&self.ssrc.to_be_bytes());
        for csrc in csrcs {
            packet.extend_from_slice(&csrc.to_be_bytes());
        }
        if let Some((profile, data)) = self.extension {
            let words = data.len().div_ceil(4);
            packet.extend_from_slice(&profile.to_be_bytes());
            packet.extend_from_slice(&(words as u16).to_be_bytes());
            packet.extend_from_slice(data);
            packet.resize(packet.len() + words * 4 - data.len(), 0);
        }
    }

    /// A packet of this header and `payload`.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(self.length() + payload.len());
        self.write(&mut packet);
        packet.extend_from_slice(payload);
        packet
    }
}

/// A telephone event (RFC 4733 section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelephoneEvent {
    /// Event code: 0 to 9, 10 `*`, 11 `#`, 12 to 15 A to D, 16 hook flash, others by registry.
    pub event: u8,
    /// End of event.
    pub end: bool,
    /// Power in -dBm0, 0 to 63.
    pub volume: u8,
    /// Duration so far, in timestamp units.
    pub duration: u16,
}

impl TelephoneEvent {
    /// The first event of a payload; `None` if the payload is shorter than four bytes.
    pub fn parse(payload: &[u8]) -> Option<TelephoneEvent> {
        let bytes = payload.first_chunk::<4>()?;
        Some(TelephoneEvent {
            event: bytes[0],
            end: bytes[1] & 0x80 != 0,
            volume: bytes[1] & 0x3f,
            duration: u16::from_be_bytes([bytes[2], bytes[3]]),
        })
    }

    /// The payload.
    pub fn to_bytes(self) -> [u8; 4] {
        let duration = self.duration.to_be_bytes();
        [
            self.event,
            u8::from(self.end) << 7 | (self.volume & 0x3f),
            duration[0],
            duration[1],
        ]
    }

    /// The DTMF digit; `None` for other events. 16 (hook flash) is `!`.
    pub fn digit(self) -> Option<char> {
        "0123456789*#ABCD!".chars().nth(usize::from(self.event))
    }

    /// The event code of a DTMF digit.
    pub fn code(digit: char) -> Option<u8> {
        "0123456789*#ABCD!"
            .find(digit.to_ascii_uppercase())
            .map(|at| at as u8)
    }
}

/// Encoding name, clock rate and channels of the static payload types (RFC 3551 section 6, tables 4 and 5).
pub fn static_payload_type(payload_type: u8) -> Option<(&'static str, u32, u8)> {
    Some(match payload_type {
        0 => ("PCMU", 8000, 1),
        3 => ("GSM", 8000, 1),
        4 => ("G723", 8000, 1),
        5 => ("DVI4", 8000, 1),
        6 => ("DVI4", 16000, 1),
        7 => ("LPC", 8000, 1),
        8 => ("PCMA", 8000, 1),
        9 => ("G722", 8000, 1),
        10 => ("L16", 44100, 2),
        11 => ("L16", 44100, 1),
        12 => ("QCELP", 8000, 1),
        13 => ("CN", 8000, 1),
        14 => ("MPA", 90000, 1),
        15 => ("G728", 8000, 1),
        16 => ("DVI4", 11025, 1),
        17 => ("DVI4", 22050, 1),
        18 => ("G729", 8000, 1),
        25 => ("CelB", 90000, 1),
        26 => ("JPEG", 90000, 1),
        28 => ("nv", 90000, 1),
        31 => ("H261", 90000, 1),
        32 => ("MPV", 90000, 1),
        33 => ("MP2T", 90000, 1),
        34 => ("H263", 90000, 1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_and_read_everything() {
        let header = RtpHeader {
            marker: true,
            payload_type: 101,
            sequence: 65_535,
            timestamp: 0xdead_beef,
            ssrc: 0x0102_0304,
            csrcs: &[1, 2],
            extension: Some((0xbede, &[0x10, 0xaa, 0x00, 0x21, 0xbb, 0xcc])),
        };
        let bytes = header.packet(&[7, 7]);
        assert_eq!(bytes[..4], [0x92, 0xe5, 0xff, 0xff]);
        let view = RtpView::parse(&bytes).unwrap();
        assert!(view.marker() && !view.has_padding());
        assert_eq!(view.payload_type(), 101);
        assert_eq!(
            (view.sequence(), view.timestamp(), view.ssrc()),
            (65_535, 0xdead_beef, 0x0102_0304)
        );
        assert_eq!(view.csrcs().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(view.payload(), Some(&[7, 7][..]));
        let elements: Vec<_> = view.extension_elements().collect();
        assert_eq!(elements, [(1, &[0xaa][..]), (2, &[0xbb, 0xcc][..])]);
        assert_eq!(view.header_length(), header.length());
        for cut in 0..header.length() {
            assert!(RtpView::parse(&bytes[..cut]).is_none());
        }
    }

    #[test]
    fn padding() {
        let mut bytes = RtpHeader::default().packet(&[1, 2, 0, 0, 3]);
        bytes[0] |= 0x20;
        assert_eq!(RtpView::parse(&bytes).unwrap().payload(), Some(&[1, 2][..]));
        *bytes.last_mut().unwrap() = 6;
        assert_eq!(RtpView::parse(&bytes).unwrap().payload(), None);
        *bytes.last_mut().unwrap() = 0;
        assert_eq!(RtpView::parse(&bytes).unwrap().payload(), None);
    }

    #[test]
    fn two_byte_extension_elements() {
        let header = RtpHeader {
            extension: Some((0x1000, &[5, 0, 6, 1, 9, 0, 7, 200])),
            ..RtpHeader::default()
        };
        let bytes = header.packet(&[]);
        let elements: Vec<_> = RtpView::parse(&bytes)
            .unwrap()
            .extension_elements()
            .collect();
        assert_eq!(elements, [(5, &[][..]), (6, &[9][..])]);
    }

    #[test]
    fn telephone_events() {
        let event = TelephoneEvent::parse(&[11, 0x8a, 0x08, 0xc0]).unwrap();
        assert_eq!(
            (event.digit(), event.end, event.volume, event.duration),
            (Some('#'), true, 10, 2240)
        );
        assert_eq!(event.to_bytes(), [11, 0x8a, 0x08, 0xc0]);
        assert_eq!(TelephoneEvent::code('d'), Some(15));
        assert_eq!(TelephoneEvent::code('x'), None);
        assert!(TelephoneEvent::parse(&[1, 2, 3]).is_none());
    }
}
