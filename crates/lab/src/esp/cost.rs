//! Processing time of a packet in and out, by algorithm and mode, in memory (study row B3).

use super::computed::{EspCarriage, EspCase};
use super::packets::{IpInput, VoiceStream, damage, damaged_every, write_udp_packet};
use super::second::SecondLibrary;
use super::{EspEnds, carriages, cases, figure_name, openssl};
use crate::error::LabError;
use crate::experiment::EspLoad;
use crate::measure::MeasureSamples;
use engine::{Entropy, Time};
use net::Clock;
use protect::esp::{MAX_HEADROOM, MAX_TAILROOM, PacketRoom};
use std::hint::black_box;

/// Times of a round of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RoundTimes {
    /// Microseconds a packet.
    out_us: f64,
    in_us: f64,
    /// Packets that were refused or changed.
    wrong: u64,
}

/// Buffers of a timed stretch: the packets lie behind room for headers.
struct Stretch {
    buffers: Vec<Vec<u8>>,
    stream: VoiceStream,
    length: usize,
}

impl Stretch {
    fn new(plan: &EspLoad) -> Stretch {
        let voice = plan.voice_bytes();
        let length = super::clear_packet_bytes(voice);
        Stretch {
            buffers: vec![vec![0; MAX_HEADROOM + length + MAX_TAILROOM]; plan.packets as usize],
            stream: VoiceStream::new(voice),
            length,
        }
    }

    /// Microseconds a packet between two times.
    fn each_us(&self, from: Time, to: Time) -> f64 {
        to.since(from).as_nanos() as f64 / 1e3 / self.buffers.len().max(1) as f64
    }
}

/// Processing without ESP: headers written with checksums, and read with their checks.
fn clear_round(stretch: &mut Stretch, input: &IpInput, clock: &Clock) -> RoundTimes {
    let rtp: Vec<Vec<u8>> = (0..stretch.buffers.len())
        .map(|_| stretch.stream.next_rtp().to_vec())
        .collect();
    let start = clock.now();
    for (buffer, rtp) in stretch.buffers.iter_mut().zip(&rtp) {
        black_box(write_udp_packet(&mut buffer[MAX_HEADROOM..], rtp));
    }
    let middle = clock.now();
    let mut right = 0;
    for buffer in &stretch.buffers {
        let packet = buffer.get(MAX_HEADROOM..MAX_HEADROOM + stretch.length);
        right += u64::from(black_box(input.rtp(packet.unwrap_or_default())).is_some());
    }
    let end = clock.now();
    RoundTimes {
        out_us: stretch.each_us(start, middle),
        in_us: stretch.each_us(middle, end),
        wrong: stretch.buffers.len() as u64 - right,
    }
}

/// Sealing and opening of a stretch of packets.
fn esp_round(
    ends: &mut EspEnds,
    stretch: &mut Stretch,
    damaged: Option<usize>,
    clock: &Clock,
) -> RoundTimes {
    let length = stretch.length;
    let mut sent = Vec::with_capacity(stretch.buffers.len());
    for buffer in &mut stretch.buffers {
        write_udp_packet(&mut buffer[MAX_HEADROOM..], stretch.stream.next_rtp());
        sent.push(buffer[MAX_HEADROOM..MAX_HEADROOM + length].to_vec());
    }
    let mut rooms: Vec<PacketRoom<'_>> = stretch
        .buffers
        .iter_mut()
        .map(|buffer| PacketRoom::new(buffer, MAX_HEADROOM, length))
        .collect();
    let mut refused = 0u64;
    let start = clock.now();
    ends.outbound
        .seal_batch(&mut rooms, Time::ZERO, |_, sealed| {
            refused += u64::from(black_box(sealed).is_err());
        });
    let sealed = clock.now();
    if let Some(every) = damaged {
        for room in rooms.iter_mut().step_by(every) {
            let (start, end) = (room.start, room.end);
            damage(room.buffer.get_mut(start..end).unwrap_or_default());
        }
    }
    let middle = clock.now();
    ends.inbound
        .open_batch(&mut rooms, Time::ZERO, |_, opened| {
            refused += u64::from(black_box(opened).is_err());
        });
    let end = clock.now();
    let pairs = rooms.iter().zip(&sent);
    let changed = pairs.filter(|(room, sent)| room.packet() != sent.as_slice());
    let wrong = (changed.count() as u64).max(refused);
    let count = rooms.len().max(1) as f64;
    let each_us = |from: Time, to: Time| to.since(from).as_nanos() as f64 / 1e3 / count;
    RoundTimes {
        out_us: each_us(start, sealed),
        in_us: each_us(middle, end),
        wrong,
    }
}

/// A case with its association.
struct CostCase {
    case: &'static EspCase,
    carriage: EspCarriage,
    ends: EspEnds,
    second: Option<SecondLibrary>,
}

/// Measures all cases of a plan in turn; returns samples, one of each round, and remarks.
///
/// # Errors
/// An association that cannot be made.
pub(crate) fn packet_cost(
    plan: &EspLoad,
    seed: u64,
) -> Result<(MeasureSamples, Vec<String>), LabError> {
    let mut entropy = Entropy::from_number(seed);
    let clock = Clock::new();
    let input = IpInput::new();
    let damaged = damaged_every(plan.damaged_percent);
    let mut measured: Vec<CostCase> = Vec::new();
    for case in cases(plan) {
        for carriage in carriages(plan) {
            measured.push(CostCase {
                case,
                carriage,
                ends: EspEnds::new(case, carriage, &mut entropy)?,
                second: SecondLibrary::of(case),
            });
        }
    }
    let mut samples = MeasureSamples::new("rounds");
    let mut stretch = Stretch::new(plan);
    let mut wrong = 0;
    for round in 0..plan.rounds as usize {
        if net::stops() > 0 {
            break;
        }
        let clear = clear_round(&mut stretch, &input, &clock);
        wrong += clear.wrong;
        samples.add(figure_name("out_us", "clear", None), clear.out_us);
        samples.add(figure_name("in_us", "clear", None), clear.in_us);
        // Each case comes at every place of a round, because the one before it leaves its data in the caches.
        let count = measured.len().max(1);
        let mut times = vec![RoundTimes::default(); measured.len()];
        for turn in 0..measured.len() {
            let at = (round + turn) % count;
            let one = &mut measured[at];
            times[at] = esp_round(&mut one.ends, &mut stretch, damaged, &clock);
            wrong += times[at].wrong;
            if let Some(second) = &mut one.second {
                let sealed = one.carriage;
                let [out_us, in_us] = second.round(plan, sealed, &clock)?;
                let name = |figure| figure_name(figure, one.case.name, Some(one.carriage));
                samples.add(name("awslc_out_us"), out_us);
                samples.add(name("awslc_in_us"), in_us);
            }
        }
        add_round(&mut samples, &measured, &times, clear);
    }
    samples.add("esp.wrong_packets".to_owned(), wrong as f64);
    let mut remarks = vec![
        "measured in memory with this machine's clock: computing takes no virtual time".to_owned(),
    ];
    remarks.extend(second_remark(&measured));
    remarks.extend(openssl::measure(plan, &mut samples));
    Ok((samples, remarks))
}

/// Adds the figures of a round; differences and ratios are those of the same round.
fn add_round(
    samples: &mut MeasureSamples,
    measured: &[CostCase],
    times: &[RoundTimes],
    clear: RoundTimes,
) {
    for (one, time) in measured.iter().zip(times) {
        let name = |figure| figure_name(figure, one.case.name, Some(one.carriage));
        samples.add(name("out_us"), time.out_us);
        samples.add(name("in_us"), time.in_us);
        for (figure, part, whole) in [
            ("in_over_out_percent", time.in_us - time.out_us, time.out_us),
            ("out_over_clear_percent", time.out_us, clear.out_us),
            ("in_over_clear_percent", time.in_us, clear.in_us),
        ] {
            if whole > 0.0 {
                samples.add(name(figure), part * 100.0 / whole);
            }
        }
        let is_other = |(other, _): &(&CostCase, &RoundTimes)| {
            other.case == one.case && other.carriage == EspCarriage::Transport
        };
        let transport = measured.iter().zip(times).find(is_other);
        if let (EspCarriage::Tunnel, Some((_, transport))) = (one.carriage, transport) {
            let name = |figure| figure_name(figure, one.case.name, None);
            samples.add(
                name("tunnel_minus_transport_out_us"),
                time.out_us - transport.out_us,
            );
            samples.add(
                name("tunnel_minus_transport_in_us"),
                time.in_us - transport.in_us,
            );
        }
    }
}

fn second_remark(measured: &[CostCase]) -> Option<String> {
    let mut without: Vec<&str> = measured
        .iter()
        .filter(|one| one.second.is_none())
        .map(|one| one.case.name)
        .collect();
    without.dedup();
    (!without.is_empty()).then(|| {
        format!(
            "primitives of AWS-LC: not measured for {}, which this build of it does not have",
            without.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::summarise;

    fn plan() -> EspLoad {
        EspLoad {
            suites: ["aes-cbc", "aes-cbc-sha1", "aes-gcm", "3des-sha1"]
                .map(str::to_owned)
                .to_vec(),
            rounds: 4,
            packets: 8,
            openssl_seconds: 0,
            ..EspLoad::default()
        }
    }

    fn figure(plan: &EspLoad, name: &str) -> Option<f64> {
        let (samples, _) = packet_cost(plan, 1).unwrap();
        let all = summarise(&samples.records(0));
        let found = all.into_iter().find(|case| case.figure == name);
        found.map(|case| case.value)
    }

    #[test]
    fn every_case_is_measured_both_ways() {
        let (samples, remarks) = packet_cost(&plan(), 1).unwrap();
        let all = summarise(&samples.records(0));
        let value = |name: &str| all.iter().find(|case| case.figure == name).map(|c| c.value);
        for suite in plan().suites {
            for mode in ["transport", "tunnel"] {
                for figure in ["out_us", "in_us"] {
                    let name = format!("esp.{figure}.{suite}.{mode}");
                    assert!(value(&name).unwrap() > 0.0, "{name}");
                }
            }
        }
        assert!(all.iter().all(|case| super::super::is_figure(&case.figure)));
        assert!(value("esp.awslc_out_us.aes-gcm.tunnel").unwrap() > 0.0);
        assert_eq!(value("esp.awslc_out_us.3des-sha1.tunnel"), None);
        assert_eq!(value("esp.wrong_packets"), Some(0.0));
        assert!(remarks.iter().any(|text| text.contains("3des-sha1")));
        assert!(remarks.iter().any(|text| text.contains("OpenSSL")));
    }

    #[test]
    fn damaged_packets_are_wrong() {
        let damaged = EspLoad {
            damaged_percent: 50.0,
            ..plan()
        };
        // Half of 8 packets, in 4 rounds, in 8 cases; CBC without integrity opens them, with another content.
        assert_eq!(figure(&damaged, "esp.wrong_packets"), Some(128.0));
    }
}
