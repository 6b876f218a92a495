//! Ethernet frames with UDP datagrams, for AF_XDP sockets.

use crate::plain_datagram::{self, PlainDatagram};
use crate::raw::IpMarks;
use std::net::SocketAddr;

const MAC_ADDRESSES: usize = 12;
const ETHERNET: usize = 14;
const V4: [u8; 2] = [8, 0];
const V6: [u8; 2] = [0x86, 0xdd];

/// Sender, receiver and payload of a frame with one complete UDP datagram in a packet without options; `None` for any
/// other. The BPF program has verified the checksums.
pub(crate) fn read(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let kind = frame.get(MAC_ADDRESSES..ETHERNET)?;
    let packet = PlainDatagram::read(frame.get(ETHERNET..)?)?;
    let expected = if packet.source.is_ipv4() { V4 } else { V6 };
    (*kind == expected).then_some((packet.source, packet.local, packet.payload))
}

/// Link-layer addresses of the interface and of the next hop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MacAddresses {
    pub(crate) own: [u8; 6],
    pub(crate) next: [u8; 6],
}

/// Writes a frame into `room` and returns its length; `None` if the packet has more than `mtu` bytes or does not
/// fit. `identification`: for an IPv4 packet that may be fragmented.
pub(crate) fn write(
    room: &mut [u8],
    macs: MacAddresses,
    (source, destination): (SocketAddr, SocketAddr),
    marks: IpMarks,
    mtu: u16,
    identification: u16,
    payload: &[u8],
) -> Option<usize> {
    let (head, rest) = room.split_at_mut_checked(ETHERNET)?;
    let ends = (source, destination);
    let length = plain_datagram::write(rest, ends, marks, mtu.into(), identification, payload)?;
    head[..6].copy_from_slice(&macs.next);
    head[6..MAC_ADDRESSES].copy_from_slice(&macs.own);
    head[MAC_ADDRESSES..].copy_from_slice(if source.is_ipv4() { &V4 } else { &V6 });
    Some(ETHERNET + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_MACS: MacAddresses = MacAddresses {
        own: [2, 0, 0, 0, 0, 1],
        next: [2, 0, 0, 0, 0, 2],
    };
    const MARKS: IpMarks = IpMarks {
        class: 46 << 2,
        hops: 64,
    };

    fn written(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let mut room = [0xff; 2_048];
        let ends = (source.parse().unwrap(), destination.parse().unwrap());
        let length = write(&mut room, TEST_MACS, ends, MARKS, 1_500, 77, payload).unwrap();
        room[..length].to_vec()
    }

    #[test]
    fn ipv4_frame_follows_rfc_791_and_768() {
        let frame = written("192.0.2.1:4000", "198.51.100.2:5002", b"odd");
        // The header's checksum, calculated by hand: 0x45b8 + 31 + 1 + 0x4000 + 0x4011 + 0xc000 + 0x0201 + 0xc633 +
        // 0x6402 = 0x2b21f.
        let expected = [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0xb8, 0, 31, 0, 1, 0x40, 0, 64, 17,
            0x4d, 0xde, 192, 0, 2, 1, 198, 51, 100, 2, 0x0f, 0xa0, 0x13, 0x8a, 0, 11,
        ];
        assert_eq!(frame[..40], expected);
        assert_eq!(&frame[42..], b"odd");
        // A packet that may be fragmented has a unique identification.
        let large = written("192.0.2.1:4000", "198.51.100.2:5002", &[7; 1_400]);
        assert_eq!(large[18..22], [0, 77, 0, 0]);
    }

    #[test]
    fn written_frames_are_read_back() {
        for (source, destination) in [
            ("192.0.2.1:4000", "198.51.100.2:5002"),
            ("[2001:db8::1]:4000", "[2001:db8::2]:5002"),
        ] {
            for length in [0, 1, 172, 1_400] {
                let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let mut frame = written(source, destination, &payload);
                // The padding of a short frame is not part of the packet.
                frame.resize(frame.len().max(60), 0);
                let (from, to, read) = read(&frame).unwrap();
                assert_eq!(
                    (from, to),
                    (source.parse().unwrap(), destination.parse().unwrap())
                );
                assert_eq!(read, payload);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_read_or_rejected() {
        for (source, destination) in [
            ("192.0.2.1:4000", "198.51.100.2:5002"),
            ("[2001:db8::1]:4000", "[2001:db8::2]:5002"),
        ] {
            let frame = written(source, destination, &[1; 20]);
            for length in 0..frame.len() {
                assert!(read(&frame[..length]).is_none(), "{length}");
            }
            for at in 0..62 {
                for value in 0..=255 {
                    let mut broken = frame.clone();
                    broken[at] = value;
                    if let Some((_, _, payload)) = read(&broken) {
                        assert!(payload.len() <= 20);
                    }
                }
            }
        }
    }

    #[test]
    fn oversized_packets_are_not_written() {
        let ends = (
            "192.0.2.1:4000".parse().unwrap(),
            "198.51.100.2:5002".parse().unwrap(),
        );
        let mut room = [0; 2_048];
        let mut try_out = |mtu: u16, size: usize| {
            write(&mut room, TEST_MACS, ends, MARKS, mtu, 0, &vec![0; size])
        };
        assert_eq!(try_out(1_500, 1_472), Some(1_514));
        assert_eq!(try_out(1_500, 1_473), None);
        assert_eq!(try_out(65_535, 2_048), None);
        assert_eq!(try_out(65_535, 65_535), None);
        let mixed = (ends.0, "[2001:db8::2]:5002".parse().unwrap());
        assert!(write(&mut room, TEST_MACS, mixed, MARKS, 1_500, 0, b"x").is_none());
    }
}
