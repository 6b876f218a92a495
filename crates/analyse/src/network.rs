//! IP packets to datagrams and segments: tunnels, fragments, ESP.

use super::datagram::CapturedDatagram;
use super::report::{Messages, seconds};
use super::{CaptureAnalyser, connections};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::esp::{EspView, NAT_TRAVERSAL_PORT, NatTraversalDatagram};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, LinkType};
use wire::ip::{IpPacket, gre_inner, protocol, skip_extensions};
use wire::tcp::TcpView;
use wire::udp::UdpView;

/// Nested IP packets deeper than this are not followed.
const MAX_TUNNELS: usize = 6;
/// EtherTypes of MPLS, unicast and multicast (RFC 3032 section 5).
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// Labels of one stack.
const MAX_LABELS: usize = 16;
/// Protocol types of GRE: bridged Ethernet (RFC 1701), ERSPAN of types I and II, and of type III
/// (draft-foschiano-erspan).
const BRIDGED: u16 = 0x6558;
const ERSPAN: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;
/// Ports of VXLAN (RFC 7348), and of Linux before its assignment.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
/// EtherTypes counted apart.
const MAX_TYPES: usize = 16;

/// Counters of the link and network layers.
#[derive(Debug, Default)]
pub(super) struct CaptureCounters {
    pub frames: u64,
    cut: u64,
    malformed: u64,
    backwards: u64,
    untimed: u64,
    first: Option<u64>,
    last: u64,
    newest: u64,
    ip: u64,
    /// Frames of other protocols, by EtherType.
    others: BTreeMap<u16, u64>,
}

impl CaptureCounters {
    pub(super) fn frame(&mut self, time: u64, captured: usize, original: usize) {
        self.frames += 1;
        self.cut += u64::from(captured < original);
        // More than a minute back is not reordering by the capture but a clock set back, or joined files.
        self.backwards += u64::from(time.saturating_add(60_000_000_000) < self.last);
        self.untimed += u64::from(time == 0);
        self.first.get_or_insert(time);
        self.newest = self.newest.max(time);
        self.last = time;
    }

    pub(super) fn first_at(&self) -> Option<f64> {
        self.first.map(seconds)
    }

    pub(super) fn last_at(&self) -> Option<f64> {
        self.first.map(|_| seconds(self.newest))
    }

    pub(super) fn notes(&self, notes: &mut Messages) {
        notes.add_counted("frames truncated by the capture", self.cut);
        notes.add_counted("IP packets with a malformed header", self.malformed);
        notes.add_counted("jumps back in time of more than a minute", self.backwards);
        // Simple packet blocks of pcapng. One frame can be at zero in a capture that counts from its start.
        if self.untimed > 1 {
            notes.add(format!(
                "{} frames without a time of reception: their jitter, delta, rate and duration have no meaning",
                self.untimed
            ));
        }
        // Beside IP, other protocols (ARP) are in every capture.
        if self.ip == 0 && !self.others.is_empty() {
            let types = self.others.iter();
            let types: Vec<String> = types
                .map(|(ethertype, frames)| format!("{ethertype:#06x} ({frames})"))
                .collect();
            notes.add(format!(
                "no frame contains an IP packet; frames by EtherType: {}",
                types.join(", ")
            ));
        }
    }

    fn other(&mut self, ethertype: u16) {
        if self.others.len() < MAX_TYPES || self.others.contains_key(&ethertype) {
            *self.others.entry(ethertype).or_default() += 1;
        }
    }
}

/// The packet below a stack of MPLS labels (RFC 3032 section 2.1).
fn below_labels(mut stack: &[u8]) -> Option<&[u8]> {
    for _ in 0..MAX_LABELS {
        let (label, rest) = stack.split_first_chunk::<4>()?;
        stack = rest;
        if label[2] & 1 != 0 {
            return Some(stack);
        }
    }
    None
}

/// The Ethernet frame in a GRE packet, behind the header of ERSPAN; `inner` follows the GRE header.
fn mirrored<'a>(gre: &[u8], protocol: u16, inner: &'a [u8]) -> Option<&'a [u8]> {
    let has_sequence = gre.first()? & 0x10 != 0;
    let header = match protocol {
        BRIDGED => 0,
        // Type I has no header and no sequence number.
        ERSPAN if !has_sequence => 0,
        ERSPAN => 8,
        // With the platform specific subheader, if its flag is set.
        ERSPAN_III => 12 + usize::from(inner.get(11)? & 1) * 8,
        _ => return None,
    };
    inner.get(header..)
}

/// The Ethernet frame in a VXLAN datagram (RFC 7348 section 5).
fn vxlan_frame<'a>(packet: &IpPacket<'a>) -> Option<&'a [u8]> {
    let udp = UdpView::parse(packet.payload)?;
    if !VXLAN_PORTS.contains(&udp.destination_port()) {
        return None;
    }
    let payload = packet.payload.get(UdpView::HEADER..)?;
    match payload.split_first_chunk::<8>()? {
        ([0x08, 0, 0, 0, _, _, _, 0], frame) => Some(frame),
        _ => None,
    }
}

impl CaptureAnalyser {
    pub(super) fn network(&mut self, time: u64, ethertype: u16, payload: &[u8], depth: usize) {
        match ethertype {
            _ if depth > MAX_TUNNELS => {}
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => self.ip(time, payload, depth),
            ethertype if MPLS.contains(&ethertype) => self.labelled(time, payload, depth),
            other => self.counters.other(other),
        }
    }

    /// Takes a packet with MPLS labels: IP, or Ethernet behind a control word (RFC 4448 section 4.6).
    fn labelled(&mut self, time: u64, stack: &[u8], depth: usize) {
        let Some(inner) = below_labels(stack) else {
            return;
        };
        match inner.first().map(|first| first >> 4) {
            Some(4 | 6) => self.ip(time, inner, depth),
            Some(0) => self.bridged(time, inner.get(4..).unwrap_or_default(), depth),
            _ => {}
        }
    }

    /// Takes an Ethernet frame inside a tunnel.
    fn bridged(&mut self, time: u64, frame: &[u8], depth: usize) {
        if let Some(inner) = wire::ethernet::network_packet(LinkType::Ethernet, frame) {
            self.network(time, inner.ethertype, inner.payload, depth + 1);
        }
    }

    pub(super) fn ip(&mut self, time: u64, bytes: &[u8], depth: usize) {
        if depth > MAX_TUNNELS {
            return;
        }
        self.counters.ip += 1;
        let Some(packet) = IpPacket::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(fragment) = packet.fragment else {
            self.transport(time, &packet, depth);
            return;
        };
        let Some((protocol, whole)) = self.fragments.push(&packet, fragment, time) else {
            return;
        };
        let upper = if packet.source.is_ipv6() {
            skip_extensions(protocol, &whole)
        } else {
            Some((protocol, &whole[..]))
        };
        if let Some((protocol, payload)) = upper {
            let packet = IpPacket {
                protocol,
                payload,
                payload_length: payload.len(),
                fragment: None,
                ..packet
            };
            self.transport(time, &packet, depth);
        }
    }

    fn transport(&mut self, time: u64, packet: &IpPacket<'_>, depth: usize) {
        match packet.protocol {
            protocol::UDP if self.is_encapsulated_esp(packet) => {
                let esp = packet.payload.get(UdpView::HEADER..).unwrap_or_default();
                let packet = IpPacket {
                    protocol: protocol::ESP,
                    payload: esp,
                    payload_length: packet.payload_length.saturating_sub(UdpView::HEADER),
                    ..*packet
                };
                self.esp_of(time, &packet, depth);
            }
            protocol::UDP => match vxlan_frame(packet) {
                Some(frame) => self.bridged(time, frame, depth),
                None => self.udp_of(time, packet),
            },
            protocol::TCP => self.tcp_of(time, packet),
            protocol::IPIP | protocol::IPV6 => self.ip(time, packet.payload, depth + 1),
            protocol::GRE => {
                if let Some((protocol, inner)) = gre_inner(packet.payload) {
                    match mirrored(packet.payload, protocol, inner) {
                        Some(frame) => self.bridged(time, frame, depth),
                        None => self.network(time, protocol, inner, depth + 1),
                    }
                }
            }
            protocol::ESP => self.esp_of(time, packet, depth),
            _ => {}
        }
    }

    /// Whether a datagram is ESP for which there are keys (RFC 3948). Without keys nothing tells it from RTP on that
    /// port.
    fn is_encapsulated_esp(&self, packet: &IpPacket<'_>) -> bool {
        let Some(udp) = UdpView::parse(packet.payload) else {
            return false;
        };
        if ![udp.source_port(), udp.destination_port()].contains(&NAT_TRAVERSAL_PORT) {
            return false;
        }
        match NatTraversalDatagram::parse(udp.payload()) {
            NatTraversalDatagram::Esp(esp) => EspView::parse(esp).is_some_and(|esp| {
                self.esp
                    .has_key(packet.source, packet.destination, esp.spi())
            }),
            _ => false,
        }
    }

    fn udp_of(&mut self, time: u64, packet: &IpPacket<'_>) {
        let Some(udp) = UdpView::parse(packet.payload) else {
            return;
        };
        self.udp(&CapturedDatagram {
            time,
            source: SocketAddr::new(packet.source, udp.source_port()),
            destination: SocketAddr::new(packet.destination, udp.destination_port()),
            payload: udp.payload(),
            sent_length: udp.payload_length(),
        });
    }

    fn tcp_of(&mut self, time: u64, packet: &IpPacket<'_>) {
        let Some(tcp) = TcpView::parse(packet.payload) else {
            return;
        };
        let segment = connections::TcpSegment {
            time,
            source: SocketAddr::new(packet.source, tcp.source_port()),
            destination: SocketAddr::new(packet.destination, tcp.destination_port()),
            sequence: tcp.sequence(),
            acknowledged: tcp.ack().then(|| tcp.acknowledgement()),
            begins: tcp.syn(),
            ends: tcp.fin() || tcp.rst(),
            payload: tcp.payload(),
            missing: packet.payload_length - packet.payload.len().min(packet.payload_length),
        };
        self.connections
            .segment(&segment, &mut self.calls, &mut self.sdp_index);
    }

    fn esp_of(&mut self, time: u64, packet: &IpPacket<'_>, depth: usize) {
        let inner = self.esp.receive(time, packet);
        if let Some((protocol, payload)) = inner {
            let packet = IpPacket {
                protocol,
                payload: &payload,
                payload_length: payload.len(),
                ..*packet
            };
            if depth < MAX_TUNNELS {
                self.transport_inside(time, &packet, depth + 1);
            }
        }
    }

    /// The transport in unencrypted ESP; a separate function makes the recursion visible.
    fn transport_inside(&mut self, time: u64, packet: &IpPacket<'_>, depth: usize) {
        if packet.protocol != protocol::ESP {
            self.transport(time, packet, depth);
        }
    }
}
