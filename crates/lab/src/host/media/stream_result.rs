//! The result of a session: its received stream, and the times in which media was due.

use super::{HostMediaSession, PACKET_TIME, VoiceSide};
use crate::host::packet_times::{PacketTimes, Transit};
use crate::host::rtcp::PeerReport;
use crate::record::StreamRecord;
use engine::Time;
use media::sink::EndedSources;
use std::time::Duration;

/// Identity of a sent stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SentStream {
    /// An original stream: the packet with `timestamp` was due at `at`.
    Source {
        /// Synchronisation source.
        ssrc: u32,
        /// Timestamp of the first packet.
        timestamp: u32,
        /// Due time of the first packet.
        at: Time,
        /// Timestamp units per second.
        clock_rate: u32,
    },
    /// The stream of `of`, sent back with its timestamps moved by `shift`.
    Echo {
        /// Synchronisation source of the echo.
        ssrc: u32,
        /// Synchronisation source of the original.
        of: u32,
        /// Added to the timestamps.
        shift: u32,
    },
}

/// Received speech, for comparison after the timed part of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedSpeech {
    /// Samples at 8 kHz.
    pub audio: Vec<i16>,
    /// The expected voice.
    pub voice: VoiceSide,
}

/// The time in which media of the peer was due at a session. Sequence numbers show no packet that is missing before the
/// first and after the last one that arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DueMedia {
    /// Begin and end: answer and BYE, as this side has seen them.
    pub span: (Time, Time),
    /// Arrival of the first and of the last packet, of any source.
    pub arrived: Option<(Time, Time)>,
    /// The sender may pause: silence suppression.
    pub pauses: bool,
}

impl DueMedia {
    /// Packets that are sent in this time; the last one may be on its way.
    pub(crate) fn packets_in(time: Duration) -> u64 {
        let packets = time.as_millis() / PACKET_TIME.as_millis();
        u64::try_from(packets.saturating_sub(1)).unwrap_or(u64::MAX)
    }
}

/// Result of an ended session.
#[derive(Clone, Debug)]
pub struct StreamResult {
    /// The record so far.
    pub record: StreamRecord,
    /// The time in which media was due; `None` if it is not known, or if the record has all packets that were due.
    pub due: Option<DueMedia>,
    /// Transit of the received packets.
    pub transit: Transit,
    /// The sent stream.
    pub sent: Option<SentStream>,
    /// The received speech of a compared call.
    pub received_speech: Option<ReceivedSpeech>,
    /// Burst ratio of the losses.
    pub burst_ratio: f64,
    /// Sums over the sources before the last one, which the record does not have yet.
    pub ended: EndedSources,
    /// Send and arrival time of each packet, if recorded.
    pub times: [Option<PacketTimes>; 2],
}

/// `least`: packets expected within a window, independent of sequence numbers.
pub(super) fn result(
    name: &str,
    entry: HostMediaSession,
    least: u64,
    due: Option<DueMedia>,
) -> Option<StreamResult> {
    let summary = entry.sink.statistics().summary();
    let source = entry.source.as_ref();
    let sent = source.map_or(entry.echoed, |source| source.counts().packets);
    // A stream of which nothing arrived is a record, too: all of it is lost.
    if sent == 0 && summary.received == 0 && due.is_none() {
        return None;
    }
    let jitter = summary.jitter_ms;
    // Where the ends of the call are counted, too, these are added behind them.
    let (ended, counted) = match least {
        0 => (entry.sink.ended_sources(), EndedSources::default()),
        _ => (EndedSources::default(), entry.sink.ended_sources()),
    };
    let expected = (summary.expected + counted.expected).max(least);
    let unique = summary.unique + counted.expected - counted.lost;
    let rtcp = entry.rtcp.as_ref();
    let reported = rtcp.map_or_else(PeerReport::default, |rtcp| rtcp.peer_report(entry.format));
    let record = StreamRecord {
        workload: name.to_owned(),
        number: entry.plan.number,
        side: entry.plan.side.to_owned(),
        ssrc: entry.sink.ssrc().unwrap_or(0),
        codec: entry.format.kind().name().to_owned(),
        sent,
        received: summary.received + counted.received,
        expected,
        lost: expected.saturating_sub(unique),
        lost_by_second: entry.losses.seconds(),
        duplicates: summary.duplicates + counted.duplicates,
        out_of_order: summary.out_of_order + counted.out_of_order,
        first: entry.sink.statistics().first_at().map(|at| at.0),
        last: entry.sink.statistics().last_at().map(|at| at.0),
        jitter_mean_ms: jitter.map(|jitter| jitter.mean),
        jitter_p99_ms: jitter.map(|jitter| jitter.p99),
        jitter_max_ms: jitter.map(|jitter| jitter.max),
        delta_max_ms: summary.delta_ms.map(|delta| delta.max),
        round_trip_ms: reported.round_trip_ms,
        peer_lost: reported.lost,
        peer_jitter_ms: reported.jitter_ms,
        ..StreamRecord::default()
    };
    Some(StreamResult {
        record,
        due: due.filter(|_| least == 0),
        transit: entry.transit,
        sent: sent_stream(&entry),
        received_speech: entry.plan.listen.map(|voice| ReceivedSpeech {
            audio: entry.sink.audio(),
            voice,
        }),
        burst_ratio: summary.burst_ratio,
        ended,
        times: entry.times,
    })
}

fn sent_stream(entry: &HostMediaSession) -> Option<SentStream> {
    match (&entry.source, entry.started, &entry.echo) {
        (Some(source), Some(start), _) => Some(SentStream::Source {
            ssrc: source.ssrc(),
            timestamp: start.timestamp,
            at: start.at,
            clock_rate: start.clock_rate,
        }),
        (_, _, Some((echo, Some((of, shift))))) => Some(SentStream::Echo {
            ssrc: echo.ssrc(),
            of: *of,
            shift: *shift,
        }),
        _ => None,
    }
}
