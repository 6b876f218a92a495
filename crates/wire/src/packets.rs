//! Fuzz entry: all packet parsers of this crate.

use crate::capture::{Reader, Step};
use crate::ethernet::{LinkType, network_packet};
use crate::hep::HepPacket;
use crate::ip::{IpPacket, Reassembler, gre_inner};
use crate::rtcp::Compound;
use crate::rtp::{RtpView, TelephoneEvent};
use crate::stun::{StunHeader, media_protocol};
use crate::tcp::{StreamReassembler, TcpView};
use crate::udp::UdpView;

/// Parses `data` as a capture and as a packet of every layer.
pub fn fuzz(data: &[u8]) {
    if let Ok(packet) = HepPacket::parse(data) {
        let mut again = Vec::new();
        assert!(!packet.write(&mut again) || HepPacket::parse(&again).is_ok());
    }
    let mut reassembler = Reassembler::default();
    let mut stream = StreamReassembler::new(4096, 8);
    let mut reader = Reader::new();
    let mut input = data;
    loop {
        let used = match reader.step(input, true) {
            Step::Frame { used, frame } => {
                assert!(frame.data.len() <= frame.original_length);
                link(frame.link, frame.data, &mut reassembler, &mut stream);
                used
            }
            Step::Skip { used }
            | Step::Damaged {
                used: Some(used), ..
            } => used,
            Step::End | Step::More { .. } | Step::Damaged { used: None, .. } => break,
        };
        assert!(used > 0 && used <= input.len(), "a reader always advances");
        input = input.get(used..).unwrap_or_default();
    }
    for number in [0, 1, 101, 108, 113, 276] {
        link(
            LinkType::from_number(number),
            data,
            &mut reassembler,
            &mut stream,
        );
    }
    datagram(data);
}

fn link(
    kind: LinkType,
    frame: &[u8],
    reassembler: &mut Reassembler,
    stream: &mut StreamReassembler,
) {
    let Some(inner) = network_packet(kind, frame) else {
        return;
    };
    let Some(packet) = IpPacket::parse(inner.payload) else {
        return;
    };
    let whole = packet
        .fragment
        .and_then(|fragment| reassembler.push(&packet, fragment, 1));
    let payload = whole
        .as_ref()
        .map_or(packet.payload, |(_, whole)| &whole[..]);
    assert!(reassembler.waiting() <= 512);
    if let Some(udp) = UdpView::parse(payload) {
        datagram(udp.payload());
    }
    if let Some(tcp) = TcpView::parse(payload) {
        stream.push(1, tcp.sequence(), tcp.payload(), &mut |_, _| {});
    }
    let _ = gre_inner(payload);
}

fn datagram(bytes: &[u8]) {
    let _ = (
        media_protocol(bytes),
        StunHeader::parse(bytes),
        TelephoneEvent::parse(bytes),
    );
    if let Some(view) = RtpView::parse(bytes) {
        assert!(view.header_length() <= bytes.len());
        let _ = (
            view.payload(),
            view.csrcs().count(),
            view.extension_elements().count(),
        );
    }
    for packet in Compound::new(bytes) {
        let _ = (
            packet.sender_info(),
            packet.feedback(),
            packet.goodbye_reason(),
        );
        assert!(packet.reports().count() <= 31);
        let _ = packet.descriptions().count() + packet.extended_blocks().count();
    }
}
