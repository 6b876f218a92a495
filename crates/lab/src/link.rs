//! Combines the sent and received streams of a trial and computes delay, quality and speech figures from them.

use crate::conversation::{MAX_DELAY, TalkOver};
use crate::decimal::counted;
use crate::figures::quantile;
use crate::host::{DueMedia, PacketTimes, SentStream, StreamResult, Transit, VoiceSide, media_ns};
use crate::record::StreamRecord;
use engine::Time;
use media::audio;
use media::quality::{self, Observation, codec_quality};
use media::sink::EndedSources;
use std::collections::BTreeMap;
use std::time::Duration;

/// Packet time plus playout buffer, milliseconds: added to the network delay for the quality rating.
const MOUTH_TO_EAR_MS: f64 = 20.0 + 60.0;
/// Time in which media was due, and none arrived at all, from which on it counts as lost.
const ALL_MISSING: Duration = Duration::from_millis(500);
/// Time without media at an end of a call from which on its packets count as lost: media begins after the answer, and
/// stops while the BYE is on its way.
const END_MISSING: Duration = Duration::from_secs(1);
/// The same if the number of sent packets is unknown, as the SUT changes the SSRC: a BYE that was lost twice comes 1.5
/// s late (RFC 3261 section 17.1.2).
const UNKNOWN_END_MISSING: Duration = Duration::from_secs(2);

/// Packet time of all streams, nanoseconds.
const PACKET_NS: u64 = 20_000_000;
/// Packets missing before the first one from which on a stream is clipped.
const CLIPPED_FROM: u64 = 3;

/// The effect of the delay on a conversation: the network delays of the streams, and the delay of the ends that the
/// quality rating has. `None` without one-way delays of both directions.
pub(crate) fn talk_over(streams: &[&StreamRecord], seed: u64) -> Option<TalkOver> {
    let mean = |side: &str| {
        let delays = streams.iter().filter(|stream| stream.side == side);
        let delays: Vec<f64> = delays.filter_map(|stream| stream.one_way_mean_ms).collect();
        let sum: f64 = delays.iter().sum();
        (!delays.is_empty()).then(|| sum / delays.len() as f64)
    };
    let delays = [mean("caller")?, mean("callee")?];
    let to_ear = |network: f64| {
        let seconds = (network.max(0.0) + MOUTH_TO_EAR_MS) / 1e3;
        Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DELAY)
    };
    Some(TalkOver::simulate(delays.map(to_ear), seed))
}

/// A point of a sender's media clock: the packet with `timestamp` was due at `at`.
#[derive(Clone, Copy, Debug)]
struct ClockPoint {
    timestamp: u32,
    at: Time,
    /// Timestamp units per second.
    clock_rate: u32,
    /// The stream is an echo: it went to the other side and came back.
    echo: bool,
}

/// Completes the records of a trial. Delays are valid only if all hosts used the same clock.
pub fn complete(results: Vec<StreamResult>) -> Vec<StreamRecord> {
    let clock_points = clock_points(&results);
    let sent = sent_times(&results);
    let counts = sent_counts(&results);
    let mut one_ways: BTreeMap<u32, f64> = BTreeMap::new();
    let mut records: Vec<(StreamRecord, Option<u32>)> = Vec::with_capacity(results.len());
    for result in results {
        let own = result.sent.map(|sent| ssrc_of(&sent));
        let point = clock_points.get(&result.record.ssrc).copied();
        let mut record = compare_speech(&result);
        if let Some(point) = point.filter(|_| result.transit.count > 0) {
            let delay = StreamDelay::of(&result, point);
            // An echo of our own stream.
            if point.echo || own == Some(record.ssrc) {
                record.round_trip_ms = Some(delay.mean);
            } else {
                record.one_way_mean_ms = Some(delay.mean);
                record.one_way_max_ms = Some(delay.max);
                one_ways.insert(record.ssrc, delay.mean);
                if let Some(came) = &result.times[1] {
                    let delays = came.delays_from_ms(point.timestamp, point.at);
                    record.one_way_p50_ms = quantile(&delays, 0.5);
                    record.one_way_p99_ms = quantile(&delays, 0.99);
                }
            }
        }
        if let (Some(sent), Some(came)) = (sent.get(&record.ssrc), &result.times[1]) {
            let delays = came.delays_ms(sent);
            let count = delays.len().max(1) as f64;
            record.relay_mean_ms = (!delays.is_empty()).then(|| delays.iter().sum::<f64>() / count);
            record.relay_p50_ms = quantile(&delays, 0.5);
            record.relay_p99_ms = quantile(&delays, 0.99);
            record.relay_max_ms = delays.last().copied();
        }
        if let Some(due) = &result.due {
            let sent = counts.get(&result.record.ssrc).copied();
            count_ends(&mut record, due, sent);
            let point = point.filter(|point| !point.echo && !due.pauses);
            record.clipped = match (point, sent) {
                (Some(point), Some(sent)) => clipped(&record, &result.transit, (point, due, sent)),
                _ => 0,
            };
        }
        add_ended(&mut record, &result.ended);
        record.burst_ratio = (record.lost > 0).then_some(result.burst_ratio);
        rate_quality(&mut record, result.burst_ratio);
        records.push((record, own));
    }
    for (record, own) in &mut records {
        let back = own.and_then(|own| one_ways.get(&own));
        if let (None, Some(there), Some(back)) =
            (record.round_trip_ms, record.one_way_mean_ms, back)
        {
            record.round_trip_ms = Some(there + back);
        }
    }
    records.into_iter().map(|(record, _)| record).collect()
}

fn ssrc_of(sent: &SentStream) -> u32 {
    match sent {
        SentStream::Source { ssrc, .. } | SentStream::Echo { ssrc, .. } => *ssrc,
    }
}

fn clock_points(results: &[StreamResult]) -> BTreeMap<u32, ClockPoint> {
    let mut clock_points = BTreeMap::new();
    for sent in results.iter().filter_map(|result| result.sent) {
        if let SentStream::Source {
            ssrc,
            timestamp,
            at,
            clock_rate,
        } = sent
        {
            let echo = false;
            clock_points.insert(
                ssrc,
                ClockPoint {
                    timestamp,
                    at,
                    clock_rate,
                    echo,
                },
            );
        }
    }
    for sent in results.iter().filter_map(|result| result.sent) {
        if let SentStream::Echo { ssrc, of, shift } = sent
            && let Some(source) = clock_points.get(&of).copied()
        {
            let point = ClockPoint {
                timestamp: source.timestamp.wrapping_add(shift),
                at: source.at,
                clock_rate: source.clock_rate,
                echo: true,
            };
            clock_points.insert(ssrc, point);
        }
    }
    clock_points
}

/// Send times of the packets of each source.
fn sent_times(results: &[StreamResult]) -> BTreeMap<u32, PacketTimes> {
    let timed = results.iter().filter_map(|result| {
        let ssrc = ssrc_of(&result.sent?);
        Some((ssrc, result.times[0].clone()?))
    });
    timed.collect()
}

/// Number of packets of each sent stream.
fn sent_counts(results: &[StreamResult]) -> BTreeMap<u32, u64> {
    let counts = results
        .iter()
        .filter_map(|result| Some((ssrc_of(&result.sent?), result.record.sent)));
    counts.collect()
}

/// Adds the packets that are missing before the first and after the last one that arrived, which sequence numbers do
/// not show. `sent`: the number of packets that the peer sent, if its stream is known; it bounds them.
fn count_ends(record: &mut StreamRecord, due: &DueMedia, sent: Option<u64>) {
    let (from, to) = due.span;
    let Some((first, last)) = due.arrived else {
        let missing = all_missing(to.since(from), due.pauses);
        if missing > 0 {
            (record.expected, record.lost) = (missing, missing);
        }
        return;
    };
    if sent.is_none() && (due.pauses || !is_continuous(record)) {
        return;
    }
    let slack = match sent {
        Some(_) => END_MISSING,
        None => UNKNOWN_END_MISSING,
    };
    let missing = [first.since(from), to.since(last)]
        .into_iter()
        .filter(|gap| *gap > slack)
        .map(DueMedia::packets_in)
        .sum::<u64>();
    let most = sent.map_or(u64::MAX, |sent| sent.saturating_sub(record.expected));
    // A few packets before a pause may be missing, as others at the begin of a call.
    if most < DueMedia::packets_in(slack) {
        return;
    }
    let missing = missing.min(most);
    record.expected += missing;
    record.lost += missing;
}

/// Adds the sources before the last one of the stream: a SUT may change the SSRC within a call.
fn add_ended(record: &mut StreamRecord, ended: &EndedSources) {
    record.received += ended.received;
    record.expected += ended.expected;
    record.lost += ended.lost;
    record.duplicates += ended.duplicates;
    record.out_of_order += ended.out_of_order;
    record.first = ended.first.map(|first| first.0).or(record.first);
}

/// Packets that were sent before the first one that arrived, by the sender's clock, if there are several, and if they
/// do not count as lost. `sent`: all packets of the sender.
fn clipped(
    record: &StreamRecord,
    transit: &Transit,
    (point, due, sent): (ClockPoint, &DueMedia, u64),
) -> u64 {
    let is_counted = |first: Time| first.since(due.span.0) > END_MISSING;
    if transit.count == 0 || due.arrived.is_none_or(|(first, _)| is_counted(first)) {
        return 0;
    }
    let units = transit.first_timestamp.wrapping_sub(point.timestamp) as i32;
    let packets = media_ns(units, point.clock_rate).max(0) as u64 / PACKET_NS;
    match packets.min(sent.saturating_sub(record.expected)) {
        0..CLIPPED_FROM => 0,
        packets => packets,
    }
}

/// Packets that count as lost where none arrived within `span`.
fn all_missing(span: Duration, pauses: bool) -> u64 {
    let (least, share) = match pauses {
        false => (ALL_MISSING, 1),
        // Of a shorter call the only packet before its pause may be missing. Speech and silence are equally long, and
        // half of the packets are sent.
        true => (VoiceSide::longest_pause() + 2 * END_MISSING, 2),
    };
    match span >= least {
        true => DueMedia::packets_in(span) / share,
        false => 0,
    }
}

/// The streams of a trial whose first packets are missing, in words.
pub(crate) fn clipped_remark(streams: &[StreamRecord]) -> Option<String> {
    let clipped = streams.iter().map(|stream| stream.clipped);
    let clipped: Vec<u64> = clipped.filter(|packets| *packets > 0).collect();
    let most = clipped.iter().max()?;
    Some(format!(
        "the first packets of {} of {} are missing, up to {} ms; less than a second does not count as lost",
        clipped.len(),
        counted(streams.len(), "stream"),
        most * PACKET_NS / 1_000_000
    ))
}

/// Whether the sender sent a packet in nearly every packet time between its first and its last one.
fn is_continuous(record: &StreamRecord) -> bool {
    let (Some(first), Some(last)) = (record.first, record.last) else {
        return false;
    };
    let packets = DueMedia::packets_in(Duration::from_nanos(last.saturating_sub(first)));
    record.expected.saturating_mul(10) >= packets.saturating_mul(9)
}

/// Delay of the packets of a stream, milliseconds.
struct StreamDelay {
    mean: f64,
    max: f64,
}

impl StreamDelay {
    fn of(result: &StreamResult, point: ClockPoint) -> StreamDelay {
        let transit = &result.transit;
        let units = transit.first_timestamp.wrapping_sub(point.timestamp) as i32;
        let media = media_ns(units, point.clock_rate) as f64;
        let first = transit.first_arrival.0 as f64 - point.at.0 as f64 - media;
        StreamDelay {
            mean: (first + transit.sum / transit.count as f64) / 1e6,
            max: (first + transit.max) / 1e6,
        }
    }
}

fn compare_speech(result: &StreamResult) -> StreamRecord {
    let mut record = result.record.clone();
    if let Some(received_speech) = &result.received_speech {
        // Silence in place of speech has no correlation; that is a result of 0, not a missing one.
        let comparison = audio::compare(received_speech.voice.samples(), &received_speech.audio);
        let long_enough = received_speech.audio.len() >= audio::MIN_SAMPLES;
        record.correlation = comparison
            .map(|c| c.correlation)
            .or(long_enough.then_some(0.0));
        record.level_db = comparison.map(|c| c.level_db);
    }
    record
}

fn rate_quality(record: &mut StreamRecord, burst_ratio: f64) {
    let Some(codec) = codec_quality(&record.codec).filter(|_| record.expected > 0) else {
        return;
    };
    let network = record
        .one_way_mean_ms
        .or(record.round_trip_ms.map(|round| round / 2.0))
        .unwrap_or(0.0);
    let quality = quality::rate(
        codec,
        &Observation {
            loss_percent: record.lost as f64 * 100.0 / record.expected as f64,
            burst_ratio,
            delay_ms: network.max(0.0) + MOUTH_TO_EAR_MS,
        },
    );
    record.r = Some(quality.r);
    record.mos = Some(quality.mos);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ReceivedSpeech;

    /// A stream of 50 packets with a delay of `delay_ms` each, sent from `at_ms` on.
    fn received(
        ssrc: u32,
        first_timestamp: u32,
        at_ms: u64,
        delay_ms: u64,
        sent: Option<SentStream>,
    ) -> StreamResult {
        StreamResult {
            record: StreamRecord {
                ssrc,
                codec: "PCMA".to_owned(),
                received: 50,
                expected: 50,
                ..StreamRecord::default()
            },
            transit: Transit {
                first_timestamp,
                first_arrival: Time::from_millis(at_ms + delay_ms),
                count: 50,
                sum: 50.0 * 500_000.0,
                max: 2e6,
            },
            sent,
            received_speech: None,
            burst_ratio: 1.0,
            ended: EndedSources::default(),
            times: [None, None],
            due: None,
        }
    }

    /// The stream of 50 packets in a call of 10 s; `sent` packets were sent, if that is known.
    fn in_call(arrived_ms: Option<(u64, u64)>, sent: Option<u64>) -> Vec<StreamRecord> {
        let mut stream = received(2, 0, 1_000, 0, None);
        stream.due = Some(DueMedia {
            span: (Time::from_millis(1_000), Time::from_millis(11_000)),
            arrived: arrived_ms.map(|(from, to)| (Time::from_millis(from), Time::from_millis(to))),
            pauses: false,
        });
        let record = &mut stream.record;
        record.first = arrived_ms.map(|(from, _)| from * 1_000_000);
        record.last = arrived_ms.map(|(_, to)| to * 1_000_000);
        if arrived_ms.is_none() {
            (record.ssrc, record.received, record.expected) = (0, 0, 0);
            stream.transit = Transit::default();
        }
        let mut peer = received(1, 0, 1_000, 0, Some(source(2, 0, 1_000)));
        peer.record.sent = sent.unwrap_or_default();
        let peer = sent.map(|_| peer);
        complete([stream].into_iter().chain(peer).collect())
    }

    #[test]
    fn media_that_stops_or_never_comes_is_lost() {
        // 1 s of 10 s arrived, with the sender's SSRC and without it.
        for sent in [Some(500), None] {
            let record = in_call(Some((1_000, 2_000)), sent).remove(0);
            let percent = record.lost as f64 * 100.0 / record.expected as f64;
            assert!((85.0..91.0).contains(&percent), "{record:?}");
            assert!(record.mos.unwrap() < 2.0, "{record:?}");
        }
        // Only the last second.
        let record = in_call(Some((10_000, 11_000)), Some(500)).remove(0);
        assert_eq!((record.expected, record.lost), (499, 449));
        // None at all.
        for sent in [Some(500), None] {
            let record = in_call(None, sent).remove(0);
            assert_eq!((record.expected, record.lost), (499, 499));
            assert!(record.mos.unwrap() < 1.2, "{record:?}");
        }
    }

    #[test]
    fn missing_media_with_silence_suppression_is_lost_after_the_longest_pause() {
        let record = |seconds: u64| {
            let mut stream = received(0, 0, 0, 0, None);
            (stream.record.received, stream.record.expected) = (0, 0);
            stream.transit = Transit::default();
            stream.due = Some(DueMedia {
                span: (Time::from_secs(1), Time::from_secs(1 + seconds)),
                arrived: None,
                pauses: true,
            });
            complete(vec![stream]).remove(0)
        };
        let silent = record(60);
        // Half of the packet times have a packet.
        assert_eq!((silent.expected, silent.lost), (1_499, 1_499));
        assert!(silent.mos.unwrap() < 2.0, "{silent:?}");
        assert!(silent.is_incoming(), "it is a stream of the trial");
        // Within one pause nothing is due.
        let pause = VoiceSide::longest_pause();
        assert!((10..14).contains(&pause.as_secs()), "{pause:?}");
        let short = record(pause.as_secs() + 1);
        assert_eq!((short.expected, short.lost, short.mos), (0, 0, None));
        assert!(record(pause.as_secs() + 3).lost > 0);
    }

    #[test]
    fn losses_before_a_change_of_the_source_count() {
        let mut stream = received(2, 0, 1_000, 0, None);
        stream.ended = EndedSources {
            first: Some(Time::from_millis(500)),
            received: 60,
            expected: 100,
            lost: 50,
            duplicates: 10,
            out_of_order: 1,
        };
        let record = complete(vec![stream]).remove(0);
        let counts = (record.received, record.expected, record.lost);
        assert_eq!(counts, (110, 150, 50));
        assert_eq!((record.duplicates, record.out_of_order), (10, 1));
        assert_eq!(record.first, Some(500_000_000));
        assert!(record.mos.unwrap() < 2.5, "{record:?}");
    }

    #[test]
    fn ends_of_a_call_are_no_loss() {
        let lost = |arrived_ms, sent| in_call(Some(arrived_ms), sent).remove(0).lost;
        // The sender hung up after a second, and its BYE was late.
        assert_eq!(lost((1_000, 2_000), Some(50)), 0);
        // All packets were sent within a part of the call: silence suppression.
        assert_eq!(lost((4_000, 9_000), Some(50)), 0);
        // The first packets are missing, and a pause follows.
        assert_eq!(lost((4_000, 9_000), Some(55)), 0);
        // An unknown sender that pauses.
        assert_eq!(lost((1_000, 8_000), None), 0);
        // Late begin, BYE on its way.
        assert_eq!(lost((1_900, 10_100), Some(500)), 0);
        let mut pausing = received(2, 0, 1_000, 0, None);
        pausing.due = Some(DueMedia {
            span: (Time::from_millis(1_000), Time::from_millis(11_000)),
            arrived: Some((Time::from_millis(1_000), Time::from_millis(2_000))),
            pauses: true,
        });
        (pausing.record.first, pausing.record.last) = (Some(1_000_000_000), Some(2_000_000_000));
        assert_eq!(complete(vec![pausing]).remove(0).lost, 0);
    }

    #[test]
    fn first_packets_that_are_missing_are_shown() {
        let record = |first_timestamp: u32, pauses: bool| {
            let mut stream = received(2, first_timestamp, 1_900, 0, None);
            stream.record.expected = 455;
            stream.due = Some(DueMedia {
                span: (Time::from_millis(1_000), Time::from_millis(11_000)),
                arrived: Some((Time::from_millis(1_900), Time::from_millis(11_000))),
                pauses,
            });
            let mut peer = received(1, 0, 1_000, 0, Some(source(2, 0, 1_000)));
            peer.record.sent = 500;
            complete(vec![stream, peer]).remove(0)
        };
        let clipped = record(45 * 160, false);
        assert_eq!((clipped.clipped, clipped.lost), (45, 0));
        assert_eq!(record(2 * 160, false).clipped, 0);
        assert_eq!(record(45 * 160, true).clipped, 0);
        let remark = clipped_remark(&[clipped, StreamRecord::default()]).unwrap();
        assert!(
            remark.contains("1 of 2 streams are missing, up to 900 ms"),
            "{remark}"
        );
        assert_eq!(clipped_remark(&[StreamRecord::default()]), None);
    }

    fn source(ssrc: u32, timestamp: u32, at_ms: u64) -> SentStream {
        SentStream::Source {
            ssrc,
            timestamp,
            at: Time::from_millis(at_ms),
            clock_rate: 8_000,
        }
    }

    #[test]
    fn one_way_delays_of_both_directions_give_round_trip() {
        // The callee missed the first ten packets; the timestamp wraps.
        let first = u32::MAX - 100;
        let caller = received(2, 50, 1000, 30, Some(source(1, first, 900)));
        let callee = received(
            1,
            first.wrapping_add(1600),
            1100,
            20,
            Some(source(2, 50, 1000)),
        );
        let records = complete(vec![caller, callee]);
        assert_eq!(records[0].one_way_mean_ms, Some(30.5));
        assert_eq!(records[1].one_way_mean_ms, Some(20.5));
        assert_eq!(records[1].one_way_max_ms, Some(22.0));
        assert_eq!(records[0].round_trip_ms, Some(51.0));
        assert!(records[0].mos.unwrap() > 4.3);
    }

    #[test]
    fn echo_gives_round_trip_directly() {
        let echo = SentStream::Echo {
            ssrc: 9,
            of: 1,
            shift: 1_000,
        };
        let caller = received(9, 1_500, 100, 40, Some(source(1, 500, 100)));
        let callee = received(1, 500, 100, 15, Some(echo));
        let records = complete(vec![caller, callee]);
        assert_eq!(records[0].round_trip_ms, Some(40.5));
        assert_eq!(records[0].one_way_mean_ms, None);
        assert_eq!(records[1].one_way_mean_ms, Some(15.5));
    }

    #[test]
    fn streams_of_unknown_senders_have_no_delay() {
        let records = complete(vec![received(7, 0, 0, 5, None)]);
        assert_eq!(
            (records[0].one_way_mean_ms, records[0].round_trip_ms),
            (None, None)
        );
        assert!(records[0].mos.is_some());
    }

    #[test]
    fn speech_is_compared_and_silence_has_no_correlation() {
        let received_speech = |audio: Vec<i16>| {
            let mut result = received(7, 0, 0, 5, None);
            result.received_speech = Some(ReceivedSpeech {
                audio,
                voice: VoiceSide::Caller,
            });
            complete(vec![result]).remove(0)
        };
        let speech = VoiceSide::Caller.samples();
        let good = received_speech(speech.iter().skip(4000).take(24_000).copied().collect());
        assert!(good.correlation.unwrap() > 0.99 && good.level_db.unwrap().abs() < 0.1);
        let other = received_speech(
            VoiceSide::Callee
                .samples()
                .iter()
                .take(24_000)
                .copied()
                .collect(),
        );
        assert!(other.correlation.unwrap() < 0.6);
        assert_eq!(received_speech(vec![0; 24_000]).correlation, Some(0.0));
    }
}
