//! The analyser: finds calls and media streams in captures or in live packets, without configured ports.
//!
//! ```no_run
//! let analysis = analyse::analyse_file("call.pcapng".as_ref())?;
//! println!("{}", analyse::render_text(&analysis));
//! # Ok::<(), analyse::AnalyseError>(())
//! ```
//!
//! Memory is bounded by [`AnalyseLimits`]; everything beyond a limit is counted in [`Analysis::notes`].
#![forbid(unsafe_code)]

mod calls;
mod connections;
mod datagram;
mod dtmf;
mod esp;
mod file;
mod keys;
mod network;
mod report;
mod rtcp;
mod rtp;
mod sdp;
mod stream;
mod stream_report;
mod text;
mod types;

pub use file::{
    AnalyseError, AnalyseReaderError, analyse_bytes, analyse_file, analyse_file_with,
    analyse_reader,
};
pub use report::{
    Analysis, CallReport, CaptureDamage, DtmfEvent, EspReport, JitterReport, MinMeanMaxReport,
    QualityReport, RtcpReport, SdpMediaReport, StreamReport, VoipMetricsReport,
};
pub use text::render_text;
pub use types::TypeSource;

use datagram::CapturedDatagram;
use engine::{Entropy, HashKey};
use wire::ethernet::LinkType;
use wire::ip::Reassembler;

/// Limits on the memory of an analysis.
#[derive(Clone, Copy, Debug)]
pub struct AnalyseLimits {
    /// Media streams reported.
    pub streams: usize,
    /// Candidate streams followed at one time.
    pub candidates: usize,
    /// Calls reported.
    pub calls: usize,
    /// Media addresses learned from SDP.
    pub endpoints: usize,
    /// TCP directions followed at one time.
    pub connections: usize,
    /// Security associations reported.
    pub associations: usize,
}

impl Default for AnalyseLimits {
    fn default() -> Self {
        AnalyseLimits {
            streams: 100_000,
            candidates: 20_000,
            calls: 100_000,
            endpoints: 200_000,
            connections: 4_096,
            associations: 10_000,
        }
    }
}

/// The analyser as a sink: takes packets one by one; [`CaptureAnalyser::finish`] returns the result.
#[derive(Debug)]
pub struct CaptureAnalyser {
    fragments: Reassembler,
    sdp_index: sdp::SdpIndex,
    rtp: rtp::StreamFinder,
    rtcp: rtcp::RtcpReports,
    calls: calls::CallTable,
    connections: connections::Connections,
    esp: esp::EspAssociations,
    counters: network::CaptureCounters,
    errors: report::Messages,
    damage: Option<CaptureDamage>,
}

impl Default for CaptureAnalyser {
    fn default() -> Self {
        CaptureAnalyser::new(AnalyseLimits::default())
    }
}

impl CaptureAnalyser {
    /// An analyser without packets.
    pub fn new(limits: AnalyseLimits) -> CaptureAnalyser {
        // The key only keeps hostile captures from choosing collisions; no order in the result depends on it.
        let mut entropy =
            net::entropy().unwrap_or_else(|_| Entropy::from_number(u64::from(std::process::id())));
        let key = HashKey::new(&mut entropy);
        CaptureAnalyser {
            fragments: Reassembler::default(),
            sdp_index: sdp::SdpIndex::new(limits.endpoints, key),
            rtp: rtp::StreamFinder::new(limits.streams, limits.candidates, key),
            rtcp: rtcp::RtcpReports::new(limits.streams, key),
            calls: calls::CallTable::new(limits.calls, key),
            connections: connections::Connections::new(limits.connections, key),
            esp: esp::EspAssociations::new(limits.associations, key),
            counters: network::CaptureCounters::default(),
            errors: report::Messages::default(),
            damage: None,
        }
    }

    /// Opens ESP packets with these keys ([`protect::esp::parse_esp_sa_file`]).
    pub fn with_esp_keys(mut self, lines: Vec<protect::esp::EspSaLine>) -> CaptureAnalyser {
        self.esp.set_keys(lines);
        self
    }

    /// Takes a frame of the given link type, captured at `time` (nanoseconds, any epoch). `original_length` is its
    /// length on the wire.
    pub fn frame(&mut self, time: u64, link: LinkType, data: &[u8], original_length: usize) {
        self.counters.frame(time, data.len(), original_length);
        if let LinkType::Other(number) = link {
            self.errors
                .add(format!("frames of unsupported link type {number}"));
            return;
        }
        if let Some(inner) = wire::ethernet::network_packet(link, data) {
            self.network(time, inner.ethertype, inner.payload, 0);
        }
    }

    /// Takes an IP packet.
    pub fn packet(&mut self, time: u64, ip: &[u8]) {
        self.counters.frame(time, ip.len(), ip.len());
        self.ip(time, ip, 0);
    }

    /// Takes the payload of a UDP datagram, for sinks that read sockets.
    pub fn datagram(
        &mut self,
        time: u64,
        source: std::net::SocketAddr,
        destination: std::net::SocketAddr,
        payload: &[u8],
    ) {
        self.counters.frame(time, payload.len(), payload.len());
        self.udp(&CapturedDatagram {
            time,
            source,
            destination,
            payload,
            sent_length: payload.len(),
        });
    }

    /// Adds an error to the result: the record at a position of the capture cannot be read. The first one is also its
    /// [`Analysis::damage`].
    pub fn damaged(&mut self, reason: &str, at_byte: u64, file_ends_at: Option<u64>) {
        self.errors.add(reason.to_owned());
        self.damage.get_or_insert_with(|| CaptureDamage {
            reason: reason.to_owned(),
            frames_before: self.counters.frames,
            at_byte,
            file_ends_at,
        });
    }

    /// Packets seen and streams confirmed so far.
    pub fn progress(&self) -> (u64, usize) {
        (self.counters.frames, self.rtp.confirmed())
    }

    fn udp(&mut self, datagram: &CapturedDatagram<'_>) {
        let first = datagram.payload.first().copied().unwrap_or(0);
        if first >> 6 == 2 {
            if wire::rtcp::is_rtcp(datagram.payload) {
                if rtcp::looks_whole(datagram) || self.rtp.knows_flow_of(datagram) {
                    self.rtcp.receive(datagram);
                }
                return;
            }
            self.rtp.receive(datagram, &self.sdp_index);
        } else if wire::stun::is_dtls_handshake(datagram.payload) {
            self.sdp_index.dtls_seen(datagram);
        } else if calls::is_sip_start(datagram.payload) {
            self.calls.message(datagram, false, &mut self.sdp_index);
        }
    }

    /// Completes the analysis. It may be called at any time; packets received so far are evaluated.
    pub fn finish(mut self) -> Analysis {
        self.connections
            .finish(&mut self.calls, &mut self.sdp_index);
        let mut notes = report::Messages::default();
        self.counters.notes(&mut notes);
        let incomplete = self.fragments.abandoned() + self.fragments.waiting() as u64;
        notes.add_counted(
            "fragmented IP packets that could not be reassembled",
            incomplete,
        );
        notes.add_counted(
            "ESP packets that the keys of their association do not open",
            self.esp.failed(),
        );
        self.esp
            .one_way()
            .into_iter()
            .for_each(|note| notes.add(note));
        notes.add_counted(
            "gaps in SIP over TCP: segments that the capture does not contain",
            self.connections.gaps(),
        );
        notes.add_counted("TCP streams beyond the limit", self.connections.refused());
        notes.add_counted(
            "SIP messages beyond the limit of calls",
            self.calls.refused(),
        );
        notes.add_counted("packets of streams beyond the limit", self.rtp.refused());
        notes.add_counted(
            "media lines of session descriptions beyond the limit",
            self.sdp_index.refused(),
        );
        notes.add_counted(
            "packets of DTLS handshakes beyond the limit",
            self.sdp_index.unmarked(),
        );
        notes.add_counted(
            "RTCP reports of sources beyond the limit",
            self.rtcp.refused(),
        );
        notes.add_counted(
            "ESP packets of associations beyond the limit",
            self.esp.refused(),
        );
        let (calls, sip_messages) = self.calls.report();
        let identifiers = self.calls.identifiers();
        let streams = self.rtp.finish(&self.sdp_index, &self.rtcp, &identifiers);
        Analysis {
            streams,
            calls,
            errors: self.errors.into_list(),
            damage: self.damage,
            esp: self.esp.report(),
            notes: notes.into_list(),
            frames: self.counters.frames,
            sip_messages,
            rtcp_packets: self.rtcp.packets(),
            first_at: self.counters.first_at(),
            last_at: self.counters.last_at(),
        }
    }
}

/// Takes any bytes as a capture, for fuzzing.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn fuzz_capture(data: &[u8]) {
    if let Ok(analysis) = analyse_bytes(data) {
        let _ = (analysis.to_json(), render_text(&analysis));
    }
    // The raw bytes too, as IP packets and as SIP datagrams, independent of the capture container.
    let mut analyser = CaptureAnalyser::default();
    for (time, chunk) in data.chunks(97).enumerate() {
        analyser.packet(time as u64 * 20_000_000, chunk);
        analyser.datagram(
            time as u64 * 20_000_000,
            ([192, 0, 2, 1], 5060).into(),
            ([192, 0, 2, 2], 5060).into(),
            chunk,
        );
    }
    let _ = analyser.finish().to_json();
}
