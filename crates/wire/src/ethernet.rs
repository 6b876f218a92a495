//! Link layers: Ethernet with stacked VLAN tags, Linux cooked (v1, v2), BSD null/loop, raw IP. Each yields an IP
//! packet.

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Maximum number of tags that are skipped (real frames have few; the limit bounds the work).
const MAX_TAGS: usize = 8;

/// The link layer of a captured frame, by the LINKTYPE numbers of the capture formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// BSD null (0): address family in the byte order of the capturing host.
    Null,
    /// Ethernet (1).
    Ethernet,
    /// Raw IP (12, 14 and 101), version by the first nibble.
    Raw,
    /// BSD loop (108): address family in network order.
    Loop,
    /// Linux cooked v1 (113).
    LinuxSll,
    /// Raw IPv4 (228).
    Ipv4,
    /// Raw IPv6 (229).
    Ipv6,
    /// Linux cooked v2 (276).
    LinuxSll2,
    /// An unsupported number.
    Other(u16),
}

impl LinkType {
    /// The link type of a number in a capture file.
    pub const fn from_number(number: u16) -> LinkType {
        match number {
            0 => LinkType::Null,
            1 => LinkType::Ethernet,
            12 | 14 | 101 => LinkType::Raw,
            108 => LinkType::Loop,
            113 => LinkType::LinuxSll,
            228 => LinkType::Ipv4,
            229 => LinkType::Ipv6,
            276 => LinkType::LinuxSll2,
            other => LinkType::Other(other),
        }
    }

    /// The number to write into a capture file.
    pub const fn number(self) -> u16 {
        match self {
            LinkType::Null => 0,
            LinkType::Ethernet => 1,
            LinkType::Raw => 101,
            LinkType::Loop => 108,
            LinkType::LinuxSll => 113,
            LinkType::Ipv4 => 228,
            LinkType::Ipv6 => 229,
            LinkType::LinuxSll2 => 276,
            LinkType::Other(number) => number,
        }
    }
}

/// An Ethernet II header; the length was checked once at [`EthernetView::parse`].
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<'a> {
    frame: &'a [u8],
}

impl<'a> EthernetView<'a> {
    /// The header's length without tags.
    pub const HEADER: usize = 14;

    /// A view of `frame`; `None` if it is shorter than a header.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        (frame.len() >= Self::HEADER).then_some(EthernetView { frame })
    }

    /// Destination address.
    pub fn destination(&self) -> [u8; 6] {
        array(self.frame, 0)
    }

    /// Source address.
    pub fn source(&self) -> [u8; 6] {
        array(self.frame, 6)
    }

    /// The type field of the header, which may be that of a tag.
    pub fn ethertype(&self) -> u16 {
        be16(self.frame, 12)
    }

    /// The inner EtherType, the outermost VLAN identifier if any, and the payload after the tags. `None` for a
    /// truncated tag.
    pub fn inner(&self) -> Option<Inner<'a>> {
        untag(self.ethertype(), self.frame.get(Self::HEADER..)?)
    }
}

/// A network packet found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner<'a> {
    /// EtherType of the payload.
    pub ethertype: u16,
    /// Identifier of the outermost VLAN tag.
    pub vlan: Option<u16>,
    /// The bytes after the link layer.
    pub payload: &'a [u8],
}

/// Skips VLAN tags (802.1Q, 802.1ad and the older 0x9100), but not MPLS, and the PPPoE session header.
fn untag(mut ethertype: u16, mut payload: &[u8]) -> Option<Inner<'_>> {
    let mut vlan = None;
    for _ in 0..MAX_TAGS {
        match ethertype {
            0x8100 | 0x88a8 | 0x9100 | 0x9200 => {
                let tag = payload.get(..4)?;
                vlan = vlan.or(Some(be16(tag, 0) & 0x0fff));
                ethertype = be16(tag, 2);
                payload = payload.get(4..)?;
            }
            // PPPoE session (RFC 2516): six bytes, then the PPP protocol number.
            0x8864 => {
                ethertype = match be16(payload.get(..8)?, 6) {
                    0x0021 => ETHERTYPE_IPV4,
                    0x0057 => ETHERTYPE_IPV6,
                    _ => return None,
                };
                payload = payload.get(8..)?;
            }
            _ => {
                return Some(Inner {
                    ethertype,
                    vlan,
                    payload,
                });
            }
        }
    }
    None
}

/// The network packet in `frame` of the given link type; `None` if there is none or the link header is truncated.
pub fn network_packet(link: LinkType, frame: &[u8]) -> Option<Inner<'_>> {
    match link {
        LinkType::Ethernet => EthernetView::parse(frame)?.inner(),
        LinkType::LinuxSll => untag(be16(frame.get(..16)?, 14), frame.get(16..)?),
        LinkType::LinuxSll2 => untag(be16(frame.get(..20)?, 0), frame.get(20..)?),
        LinkType::Null | LinkType::Loop => null_or_loop(frame),
        LinkType::Raw | LinkType::Ipv4 | LinkType::Ipv6 => raw(frame),
        LinkType::Other(_) => None,
    }
}

fn raw(frame: &[u8]) -> Option<Inner<'_>> {
    let ethertype = match frame.first()? >> 4 {
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => return None,
    };
    Some(Inner {
        ethertype,
        vlan: None,
        payload: frame,
    })
}

/// The family may be in either byte order, and AF_INET6 differs between systems (10, 24, 28, 30): the IP version
/// decides.
fn null_or_loop(frame: &[u8]) -> Option<Inner<'_>> {
    let family: [u8; 4] = frame.get(..4)?.try_into().ok()?;
    let family = u32::from_be_bytes(family).min(u32::from_le_bytes(family));
    let packet = raw(frame.get(4..)?)?;
    let fits = match packet.ethertype {
        ETHERTYPE_IPV4 => family == 2,
        _ => matches!(family, 10 | 24 | 28 | 30),
    };
    fits.then_some(packet)
}

/// Two bytes in network order; the caller has checked the length.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// Four bytes in network order; the caller has checked the length.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// `N` bytes from `at`, zeros beyond the end (which the length checks of the views exclude).
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 4] = [0x45, 1, 2, 3];

    fn frame(header: &[u8]) -> Vec<u8> {
        let mut frame = header.to_vec();
        frame.extend_from_slice(&IP);
        frame
    }

    #[test]
    fn ethernet_with_and_without_tags() {
        let mut header = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x00];
        let bytes = frame(&header);
        let view = EthernetView::parse(&bytes).unwrap();
        assert_eq!(view.destination(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(view.source(), [7, 8, 9, 10, 11, 12]);
        assert_eq!(view.inner().unwrap().payload, IP);
        header.truncate(12);
        header.extend([0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07, 0x08, 0x00]);
        let bytes = frame(&header);
        let inner = network_packet(LinkType::Ethernet, &bytes).unwrap();
        assert_eq!((inner.vlan, inner.ethertype), (Some(100), ETHERTYPE_IPV4));
        assert_eq!(inner.payload, IP);
        assert!(network_packet(LinkType::Ethernet, &bytes[..15]).is_none());
    }

    #[test]
    fn cooked_null_loop_and_raw() {
        let mut sll = [0u8; 16];
        sll[14] = 8;
        let mut sll2 = [0u8; 20];
        sll2[0] = 8;
        for (link, header) in [
            (LinkType::LinuxSll, &sll[..]),
            (LinkType::LinuxSll2, &sll2[..]),
            (LinkType::Null, &[2, 0, 0, 0]),
            (LinkType::Null, &[0, 0, 0, 2]),
            (LinkType::Loop, &[0, 0, 0, 2]),
            (LinkType::Raw, &[]),
            (LinkType::Ipv4, &[]),
        ] {
            let bytes = frame(header);
            let inner = network_packet(link, &bytes).unwrap();
            assert_eq!((inner.ethertype, inner.payload), (ETHERTYPE_IPV4, &IP[..]));
            for cut in 0..header.len() {
                assert!(network_packet(link, &bytes[..cut]).is_none());
            }
        }
        assert!(network_packet(LinkType::Null, &[9, 0, 0, 0, 0x45]).is_none());
        assert!(network_packet(LinkType::Other(147), &IP).is_none());
    }

    #[test]
    fn numbers_round_trip() {
        for number in 0..400 {
            let link = LinkType::from_number(number);
            assert_eq!(LinkType::from_number(link.number()), link);
        }
    }
}
