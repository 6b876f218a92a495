//! After a trial: who sent what each side received, and what that says about delay, quality and speech.

use crate::figures::quantile;
use crate::host::{PacketTimes, SentStream, StreamResult};
use crate::record::StreamRecord;
use engine::Time;
use media::audio;
use media::quality::{self, Observation, codec_quality};
use std::collections::BTreeMap;

/// Packet time and playout buffer, milliseconds: added to the network's delay where quality is rated.
const MOUTH_TO_EAR_MS: f64 = 20.0 + 60.0;

/// A point of a sender's media clock: the packet with `timestamp` was due at `at`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    timestamp: u32,
    at: Time,
    /// It went to the other side and came back.
    echo: bool,
}

/// Completes the records of a trial. The hosts that sent and received must have run on one clock.
pub fn complete(results: Vec<StreamResult>) -> Vec<StreamRecord> {
    let anchors = anchors(&results);
    let sent = sent_times(&results);
    let mut one_ways: BTreeMap<u32, f64> = BTreeMap::new();
    let mut records: Vec<(StreamRecord, Option<u32>)> = Vec::with_capacity(results.len());
    for result in results {
        let own = result.sent.map(|sent| ssrc_of(&sent));
        let anchor = anchors.get(&result.record.ssrc).copied();
        let mut record = judge(&result);
        if let Some(anchor) = anchor.filter(|_| result.transit.count > 0) {
            let delay = Delay::of(&result, anchor);
            // What we sent ourselves has come back.
            if anchor.echo || own == Some(record.ssrc) {
                record.round_trip_ms = Some(delay.mean);
            } else {
                record.one_way_mean_ms = Some(delay.mean);
                record.one_way_max_ms = Some(delay.max);
                one_ways.insert(record.ssrc, delay.mean);
            }
        }
        if let (Some(sent), Some(came)) = (sent.get(&record.ssrc), &result.times[1]) {
            let delays = came.delays_ms(sent);
            record.relay_p50_ms = quantile(&delays, 0.5);
            record.relay_p99_ms = quantile(&delays, 0.99);
            record.relay_max_ms = delays.last().copied();
        }
        rate(&mut record, result.burst_ratio);
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

fn anchors(results: &[StreamResult]) -> BTreeMap<u32, Anchor> {
    let mut anchors = BTreeMap::new();
    for sent in results.iter().filter_map(|result| result.sent) {
        if let SentStream::Source {
            ssrc,
            timestamp,
            at,
        } = sent
        {
            let echo = false;
            anchors.insert(
                ssrc,
                Anchor {
                    timestamp,
                    at,
                    echo,
                },
            );
        }
    }
    for sent in results.iter().filter_map(|result| result.sent) {
        if let SentStream::Echo { ssrc, of, shift } = sent
            && let Some(source) = anchors.get(&of).copied()
        {
            let anchor = Anchor {
                timestamp: source.timestamp.wrapping_add(shift),
                at: source.at,
                echo: true,
            };
            anchors.insert(ssrc, anchor);
        }
    }
    anchors
}

/// When the packets of each source were sent.
fn sent_times(results: &[StreamResult]) -> BTreeMap<u32, PacketTimes> {
    let timed = results.iter().filter_map(|result| {
        let ssrc = ssrc_of(&result.sent?);
        Some((ssrc, result.times[0].clone()?))
    });
    timed.collect()
}

/// Delay of the packets of a stream, milliseconds.
struct Delay {
    mean: f64,
    max: f64,
}

impl Delay {
    fn of(result: &StreamResult, anchor: Anchor) -> Delay {
        let transit = &result.transit;
        let media =
            f64::from(transit.first_timestamp.wrapping_sub(anchor.timestamp) as i32) * 125_000.0;
        let first = transit.first_arrival.0 as f64 - anchor.at.0 as f64 - media;
        Delay {
            mean: (first + transit.sum / transit.count as f64) / 1e6,
            max: (first + transit.max) / 1e6,
        }
    }
}

fn judge(result: &StreamResult) -> StreamRecord {
    let mut record = result.record.clone();
    if let Some(heard) = &result.heard {
        // Silence instead of speech correlates with nothing; that is a result, not an absence of one.
        let comparison = audio::compare(heard.voice.samples(), &heard.audio);
        let long_enough = heard.audio.len() >= audio::MIN_SAMPLES;
        record.correlation = comparison
            .map(|c| c.correlation)
            .or(long_enough.then_some(0.0));
        record.level_db = comparison.map(|c| c.level_db);
    }
    record
}

fn rate(record: &mut StreamRecord, burst_ratio: f64) {
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
    use crate::host::{Heard, Transit, Voice};

    /// A stream of 50 packets that needs `delay_ms` each, sent from `at`.
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
            heard: None,
            burst_ratio: 1.0,
            times: [None, None],
        }
    }

    fn source(ssrc: u32, timestamp: u32, at_ms: u64) -> SentStream {
        SentStream::Source {
            ssrc,
            timestamp,
            at: Time::from_millis(at_ms),
        }
    }

    #[test]
    fn two_ways_make_a_round_trip() {
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
    fn an_echo_is_a_round_trip_by_itself() {
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
    fn unknown_senders_leave_delays_open() {
        let records = complete(vec![received(7, 0, 0, 5, None)]);
        assert_eq!(
            (records[0].one_way_mean_ms, records[0].round_trip_ms),
            (None, None)
        );
        assert!(records[0].mos.is_some());
    }

    #[test]
    fn speech_is_compared_and_silence_is_found_out() {
        let heard = |audio: Vec<i16>| {
            let mut result = received(7, 0, 0, 5, None);
            result.heard = Some(Heard {
                audio,
                voice: Voice::Caller,
            });
            complete(vec![result]).remove(0)
        };
        let speech = Voice::Caller.samples();
        let good = heard(speech.iter().skip(4000).take(24_000).copied().collect());
        assert!(good.correlation.unwrap() > 0.99 && good.level_db.unwrap().abs() < 0.1);
        let other = heard(
            Voice::Callee
                .samples()
                .iter()
                .take(24_000)
                .copied()
                .collect(),
        );
        assert!(other.correlation.unwrap() < 0.6);
        assert_eq!(heard(vec![0; 24_000]).correlation, Some(0.0));
    }
}
