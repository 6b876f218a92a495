//! IP packets to datagrams and segments: tunnels, fragments, ESP.

use super::datagram::CapturedDatagram;
use super::report::{Messages, seconds};
use super::{CaptureAnalyser, connections};
use std::net::SocketAddr;
use wire::esp::{EspView, NAT_TRAVERSAL_PORT, NatTraversalDatagram};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, LinkType};
use wire::ip::{IpPacket, gre_inner, protocol, skip_extensions};
use wire::tcp::TcpView;
use wire::udp::UdpView;

/// Nested IP packets deeper than this are not followed.
const MAX_TUNNELS: usize = 6;

/// Counters of the link and network layers.
#[derive(Debug, Default)]
pub(super) struct CaptureCounters {
    pub frames: u64,
    cut: u64,
    malformed: u64,
    backwards: u64,
    first: Option<u64>,
    last: u64,
    newest: u64,
}

impl CaptureCounters {
    pub(super) fn frame(&mut self, time: u64, captured: usize, original: usize) {
        self.frames += 1;
        self.cut += u64::from(captured < original);
        // More than a minute back is not reordering by the capture but a clock set back, or joined files.
        self.backwards += u64::from(time.saturating_add(60_000_000_000) < self.last);
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
    }
}

impl CaptureAnalyser {
    pub(super) fn network(&mut self, time: u64, ethertype: u16, payload: &[u8], depth: usize) {
        if matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
            self.ip(time, payload, depth);
        }
    }

    pub(super) fn ip(&mut self, time: u64, bytes: &[u8], depth: usize) {
        if depth > MAX_TUNNELS {
            return;
        }
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
            protocol::UDP => self.udp_of(time, packet),
            protocol::TCP => self.tcp_of(time, packet),
            protocol::IPIP | protocol::IPV6 => self.ip(time, packet.payload, depth + 1),
            protocol::GRE => match gre_inner(packet.payload) {
                // Bridged Ethernet.
                Some((0x6558, frame)) => {
                    if let Some(inner) = wire::ethernet::network_packet(LinkType::Ethernet, frame) {
                        self.network(time, inner.ethertype, inner.payload, depth + 1);
                    }
                }
                Some((ethertype, inner)) => self.network(time, ethertype, inner, depth + 1),
                None => {}
            },
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
