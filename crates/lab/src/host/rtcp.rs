//! RTCP of a phone's session: reports beside the media, on a port of their own or on that of RTP (rtcp-mux, RFC 5761),
//! and the round-trip time and the reception that the peer reports.

use super::sdp::PeerRtcp;
use codec::Format;
use engine::{Entropy, Time};
use media::rtcp::{MIN_INTERVAL, RtcpConfig, RtcpEndpoint};
use media::sink::RtpSink;
use media::source::RtpSource;
use std::net::SocketAddr;

/// Bandwidth of a session, bits per second: more than any codec at 20 ms, so that the interval is the smallest one, 5
/// s.
const BANDWIDTH: u32 = 100_000;

/// Reception of our stream as the peer reports it, and round-trip times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PeerReport {
    /// Mean round-trip time, milliseconds.
    pub(super) round_trip_ms: Option<f64>,
    /// Lost packets since the beginning; duplicates make it negative (RFC 3550 section 6.4.1).
    pub(super) lost: Option<i64>,
    /// Interarrival jitter, milliseconds.
    pub(super) jitter_ms: Option<f64>,
}

/// RTCP of one session.
#[derive(Debug)]
pub(super) struct SessionRtcp {
    /// Its own socket; `None`: only that of RTP.
    pub(super) socket: Option<u32>,
    peer: Option<PeerRtcp>,
    endpoint: Option<(u32, RtcpEndpoint)>,
    /// Sum in milliseconds, and number of round-trip times.
    round_trips: (f64, u32),
}

impl SessionRtcp {
    /// Before offer and answer.
    pub(super) fn new(socket: Option<u32>) -> SessionRtcp {
        SessionRtcp {
            socket,
            peer: None,
            endpoint: None,
            round_trips: (0.0, 0),
        }
    }

    /// Begins the reports of a source, or goes on with them; `peer` is the RTCP of the peer. Returns the time of the
    /// next one.
    pub(super) fn agree(
        &mut self,
        peer: Option<PeerRtcp>,
        ssrc: Option<u32>,
        entropy: &mut Entropy,
        now: Time,
    ) -> Option<Time> {
        self.peer = peer;
        let known = self.endpoint.as_ref().map(|(ssrc, _)| *ssrc);
        let is_new = known.is_none() || (ssrc.is_some() && ssrc != known);
        if is_new {
            // A phone that may only receive has an identifier for its reports alone.
            let ssrc = ssrc.unwrap_or_else(|| entropy.u64() as u32);
            let config = RtcpConfig {
                ssrc,
                cname: format!("{:016x}", entropy.u64()),
                bandwidth: BANDWIDTH,
                min_interval: MIN_INTERVAL,
                ntp_at_zero: 0,
                start: now,
            };
            self.endpoint = Some((ssrc, RtcpEndpoint::new(config, entropy.fork())));
        }
        self.next_at().filter(|_| is_new)
    }

    /// Time of the next report.
    pub(super) fn next_at(&self) -> Option<Time> {
        let (_, endpoint) = self.endpoint.as_ref()?;
        endpoint.next_deadline().map(|deadline| deadline.at)
    }

    /// Number of the socket that sends, with the destination; `rtp` is the socket of RTP. `None`: the peer has no RTCP
    /// that this session can reach.
    pub(super) fn path(&self, rtp: u32) -> Option<(u32, SocketAddr)> {
        let peer = self.peer?;
        let socket = if peer.is_mux { Some(rtp) } else { self.socket };
        Some((socket?, peer.address))
    }

    /// The report that is due; with `ends` a last one with a BYE.
    pub(super) fn report(
        &mut self,
        now: Time,
        source: Option<&RtpSource>,
        sink: &mut RtpSink,
        ends: bool,
    ) -> Option<Vec<u8>> {
        let (_, endpoint) = self.endpoint.as_mut()?;
        match ends {
            true => Some(endpoint.goodbye(now, source, sink, "")),
            false => endpoint.next_packet(now, source, sink),
        }
    }

    /// Takes a packet of the peer.
    pub(super) fn receive(&mut self, packet: &[u8], now: Time) {
        let Some((_, endpoint)) = &mut self.endpoint else {
            return;
        };
        let before = endpoint.remote().reports;
        endpoint.receive(packet, now);
        let remote = endpoint.remote();
        // A report that names no sender report of ours (LSR 0, RFC 3550 section 6.4.1) has no round trip.
        let measured =
            remote.reports > before && remote.report.is_some_and(|report| report.last_sr != 0);
        if let Some(time) = remote.round_trip.filter(|_| measured) {
            self.round_trips.0 += time.as_secs_f64() * 1e3;
            self.round_trips.1 += 1;
        }
    }

    /// Percentage of our packets that an encoder expects to be lost.
    pub(super) fn expected_loss(&self) -> u8 {
        let endpoint = self.endpoint.as_ref();
        endpoint.map_or(0, |(_, endpoint)| endpoint.expected_loss())
    }

    /// The peer's reports so far.
    pub(super) fn peer_report(&self, format: Format) -> PeerReport {
        let report = self
            .endpoint
            .as_ref()
            .and_then(|(_, endpoint)| endpoint.remote().report);
        let clock_rate = f64::from(format.kind().rtp_clock());
        let (sum, count) = self.round_trips;
        PeerReport {
            round_trip_ms: (count > 0).then(|| sum / f64::from(count)),
            lost: report.map(|report| report.cumulative_lost.into()),
            jitter_ms: report.map(|report| f64::from(report.jitter) * 1e3 / clock_rate),
        }
    }
}
