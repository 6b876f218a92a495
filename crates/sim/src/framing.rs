//! Line framing: the bytes that a packet occupies on a line beside its own.

/// Preamble and start delimiter (8), addresses and type (14), check sequence (4), gap (12): IEEE 802.3 clauses 3.1.1
/// and 4.4.2, bytes.
const ETHERNET: usize = 8 + 14 + 4 + 12;
/// Shortest payload of an Ethernet frame; shorter packets are padded.
const ETHERNET_PAYLOAD: usize = 46;
/// Address, control, protocol (4), check sequence (2), and the flag that two frames share (1): ISO/IEC 13239 with
/// the header of serial lines of Cisco routers.
const HDLC: usize = 4 + 2 + 1;
/// Flag, address, control, protocol (2), check sequence (2): RFC 1662 section 3.1, without compressed fields.
const PPP: usize = 1 + 1 + 1 + 2 + 2;
/// Trailer of AAL5 (ITU-T I.363.5), in the last cell.
const AAL5_TRAILER: usize = 8;
const CELL: usize = 53;
const CELL_PAYLOAD: usize = 48;
/// LLC and SNAP of routed packets (RFC 2684 section 5.1).
const LLC_ROUTED: usize = 8;
/// Protocol field of PPP over AAL5 with virtual-channel multiplexing (RFC 2364 section 5).
const PPP_OVER_ATM: usize = 2;
/// LLC, SNAP and padding of bridged frames (RFC 2684 section 5.2), Ethernet header, PPPoE header and PPP protocol (RFC
/// 2516 section 4), without the Ethernet check sequence.
const PPP_OVER_ETHERNET_OVER_ATM: usize = 10 + 14 + 6 + 2;

/// The framing of a line. Bit or byte stuffing depends on the content and is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// The packet alone.
    #[default]
    None,
    /// Ethernet: 38 bytes, and padding to 46 bytes of payload.
    Ethernet,
    /// HDLC of serial lines: 7 bytes.
    Hdlc,
    /// PPP in HDLC-like framing: 7 bytes.
    Ppp,
    /// ATM cells, AAL5 with LLC and SNAP for routed packets.
    Atm,
    /// ATM cells with PPP over AAL5 (PPPoA).
    PppoA,
    /// ATM cells with PPP over Ethernet (PPPoE), as on many ADSL lines.
    PppoE,
}

impl Framing {
    /// All framings with their names.
    pub const NAMES: [(&'static str, Framing); 8] = [
        ("none", Framing::None),
        ("ethernet", Framing::Ethernet),
        ("hdlc", Framing::Hdlc),
        ("ppp", Framing::Ppp),
        ("atm", Framing::Atm),
        ("pppoa", Framing::PppoA),
        ("pppoe", Framing::PppoE),
        ("adsl", Framing::PppoE),
    ];

    /// The framing of a name; `adsl` is another name of `pppoe`.
    pub fn from_name(name: &str) -> Option<Framing> {
        let mut names = Framing::NAMES.iter();
        names
            .find(|(known, _)| *known == name)
            .map(|(_, framing)| *framing)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let mut names = Framing::NAMES.iter();
        names
            .find(|(_, framing)| *framing == self)
            .map_or("none", |(name, _)| name)
    }

    /// Bytes on the line of an IP packet of `packet` bytes.
    pub const fn line_bytes(self, packet: usize) -> usize {
        match self {
            Framing::None => packet,
            Framing::Ethernet if packet < ETHERNET_PAYLOAD => ETHERNET_PAYLOAD + ETHERNET,
            Framing::Ethernet => packet + ETHERNET,
            Framing::Hdlc => packet + HDLC,
            Framing::Ppp => packet + PPP,
            Framing::Atm => cells(packet + LLC_ROUTED),
            Framing::PppoA => cells(packet + PPP_OVER_ATM),
            Framing::PppoE => cells(packet + PPP_OVER_ETHERNET_OVER_ATM),
        }
    }
}

const fn cells(payload: usize) -> usize {
    (payload + AAL5_TRAILER).div_ceil(CELL_PAYLOAD) * CELL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_line_follow_the_standards() {
        // A G.711 packet of 20 ms is 200 bytes, computed by hand for each line.
        let bytes = |name| Framing::from_name(name).map(|framing| framing.line_bytes(200));
        assert_eq!(bytes("none"), Some(200));
        assert_eq!(bytes("ethernet"), Some(238));
        assert_eq!(bytes("hdlc"), Some(207));
        assert_eq!(bytes("ppp"), Some(207));
        // 216 bytes in 5 cells; 210 in 5; 240 in 5, and one byte more needs a sixth.
        assert_eq!(bytes("atm"), Some(5 * 53));
        assert_eq!(bytes("pppoa"), Some(5 * 53));
        assert_eq!(bytes("adsl"), Some(5 * 53));
        assert_eq!(Framing::PppoE.line_bytes(201), 6 * 53);
        // The shortest Ethernet frame: 64 bytes with header and check sequence, 84 on the line.
        assert_eq!(Framing::Ethernet.line_bytes(1), 84);
        assert_eq!(Framing::from_name("token ring"), None);
    }
}
