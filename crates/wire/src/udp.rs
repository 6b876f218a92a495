//! UDP (RFC 768).

use crate::ethernet::be16;

/// A UDP datagram; the length was checked once at [`UdpView::parse`].
#[derive(Clone, Copy, Debug)]
pub struct UdpView<'a> {
    datagram: &'a [u8],
}

impl<'a> UdpView<'a> {
    /// The header's length.
    pub const HEADER: usize = 8;

    /// A view; `None` for a truncated header or a length field below eight (zero, a jumbogram, is accepted).
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let view = UdpView {
            datagram: datagram.get(..Self::HEADER).map(|_| datagram)?,
        };
        (view.length() == 0 || view.length() >= Self::HEADER).then_some(view)
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        be16(self.datagram, 0)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.datagram, 2)
    }

    /// The length field: header and payload, as sent.
    pub fn length(&self) -> usize {
        usize::from(be16(self.datagram, 4))
    }

    /// The checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.datagram, 6)
    }

    /// Length of the payload as sent; more than `payload().len()` if the capture truncated the packet.
    pub fn payload_length(&self) -> usize {
        match self.length() {
            0 => self.datagram.len() - Self::HEADER,
            length => length - Self::HEADER,
        }
    }

    /// The payload, without padding of the link layer.
    pub fn payload(&self) -> &'a [u8] {
        let rest = self.datagram.get(Self::HEADER..).unwrap_or_default();
        rest.get(..self.payload_length()).unwrap_or(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_padding_and_truncation() {
        let bytes = [0x13, 0xc4, 0x13, 0xc5, 0, 10, 0xab, 0xcd, 1, 2, 0, 0];
        let view = UdpView::parse(&bytes).unwrap();
        assert_eq!((view.source_port(), view.destination_port()), (5060, 5061));
        assert_eq!((view.checksum(), view.length()), (0xabcd, 10));
        assert_eq!(view.payload(), [1, 2]);
        let cut = UdpView::parse(&bytes[..9]).unwrap();
        assert_eq!((cut.payload(), cut.payload_length()), (&[1][..], 2));
        assert!(UdpView::parse(&bytes[..7]).is_none());
        assert!(UdpView::parse(&[0, 1, 0, 2, 0, 7, 0, 0]).is_none());
    }
}
