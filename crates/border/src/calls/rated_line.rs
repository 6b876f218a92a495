//! The media line of a call whose quality is reported, and its round-trip time.

use anchor::encodings::{encoding_of, main_of};
use anchor::{Encodings, Side};
use media::forward::{FlowStats, SessionStats, SideStats};
use media::quality::codec_quality;

/// Default packet time of speech in milliseconds (RFC 3551 section 4.5).
pub(crate) const PACKET_MS: f64 = 20.0;

fn sides_of(flow: &FlowStats) -> [(Side, &SideStats); 2] {
    let [caller, callee] = &flow.sides;
    [(Side::Caller, caller), (Side::Callee, callee)]
}

/// The line whose quality is reported: the first one whose codec has a quality model, otherwise the first one with
/// packets.
pub(crate) fn rated_line(stats: &SessionStats, encodings: &Encodings) -> Option<u8> {
    let lines = || {
        let received = |flow: &&FlowStats| flow.sides.iter().any(|side| !side.sources.is_empty());
        stats.flows.iter().filter(received)
    };
    let rated = lines().find(|flow| {
        sides_of(flow).iter().any(|(side, own)| {
            main_of(core::iter::once(*own))
                .and_then(|source| encoding_of(source, flow.line, *side, encodings))
                .is_some_and(|name| codec_quality(name).is_some())
        })
    });
    rated.or_else(|| lines().next()).map(|flow| flow.line)
}

/// Round-trip time of both sides of a line together, milliseconds; 0 where it was not measured.
pub(crate) fn round_trip_of(stats: &SessionStats, line: u8) -> f64 {
    let flows = stats.flows.iter().filter(|flow| flow.line == line);
    let measured = flows
        .flat_map(|flow| &flow.sides)
        .filter_map(|side| side.round_trip);
    measured.map(|span| span.as_secs_f64() * 1e3).sum()
}
