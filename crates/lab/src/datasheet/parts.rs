//! Parts of the data sheet, with durations that fit the available time.

use crate::study::{Action, BarSpec, Part, PlotSpec, Reading, RowSpec, StudyPlan};

/// Name of the data sheet in its record.
pub const NAME: &str = crate::study::DATASHEET;
/// Default duration, minutes.
pub const MINUTES: f64 = 20.0;

fn row(what: &'static str, unit: &'static str, figure: &'static str) -> RowSpec {
    RowSpec {
        row: "X1",
        what,
        study: Reading::Words(String::new()),
        unit,
        figure,
        at: None,
    }
}

/// A searched experiment: `start` is the only level of the quick setting; the search begins there with short trials.
struct Searched<'a> {
    name: &'a str,
    experiment: &'a str,
    start: &'a str,
    quick: &'a [&'a str],
    full: Vec<String>,
}

fn searched(spec: Searched<'_>) -> Part {
    let mut part = Part::of(spec.experiment, "X1", Action::Search).named(spec.name);
    let common = ["settle_seconds=10", "thresholds.figure="];
    let owned = |sets: &[&str]| -> Vec<String> { sets.iter().map(|&set| set.to_owned()).collect() };
    part.quick = owned(spec.quick);
    part.quick.push(format!("levels.values=[{}]", spec.start));
    part.quick.extend(owned(&common));
    part.full = spec.full;
    part.full.extend(owned(&common));
    part
}

/// The CPU time of single calls, registrations or packets at a fixed load in five short runs: that of different loads
/// cannot be compared, because a batching delay makes high load cheaper. One run of three that is not judged leaves
/// two: their interval (Student's t) is seven times as wide as that of five.
fn cost(name: &str, experiment: &str, full: &[&str], row: RowSpec) -> Part {
    let why = "five runs at a fixed load: not in the quick setting";
    let mut part = Part::of(experiment, "X1", Action::FullRun(why)).named(name);
    part.full = full.iter().map(|&set| set.to_owned()).collect();
    let common = [
        "repeat=5",
        "study=",
        "settle_seconds=10",
        "thresholds.figure=",
    ];
    part.full.extend(common.map(str::to_owned));
    part.quick = part.full.clone();
    part.with(row)
}

/// Parts with the CPU time of a call, a registration and a packet.
fn costs() -> Vec<Part> {
    let of_call = || row("CPU time of a call, at 500 calls/s", "us", "cpu_us_each");
    let calls = [
        "levels.values=[500]",
        "callers.duration_seconds=2",
        "callers.hold_seconds=0.5",
    ];
    let anchored = [&calls[..], &ANCHORED].concat();
    let of_registration = || {
        row(
            "CPU time of a registration, at 1,000 registrations/s",
            "us",
            "cpu_us_each",
        )
    };
    let registrations = [
        "levels.values=[1000]",
        "registrations.users=1000",
        "registrations.duration_seconds=2",
    ];
    let of_packet = || {
        row(
            "CPU time of a relayed packet at 50 calls, signalling included",
            "us",
            "cpu_us_per_packet",
        )
    };
    let media = ["levels.values=[50]", "callers.hold_seconds=4"];
    vec![
        cost("calls-cost", "call-rate", &calls, of_call()),
        cost("calls-anchored-cost", "call-rate", &anchored, of_call()),
        cost("calls-tls-cost", "call-rate-tls", &calls, of_call()),
        cost("calls-volte-cost", "call-rate-volte", &calls, of_call()),
        cost(
            "registrations-cost",
            "registration-rate",
            &registrations,
            of_registration(),
        ),
        cost(
            "registrations-tls-cost",
            "registration-rate-tls",
            &registrations,
            of_registration(),
        ),
        cost(
            "re-registrations-cost",
            "re-registration-rate",
            &registrations,
            of_registration(),
        ),
        cost(
            "re-registrations-tls-cost",
            "re-registration-rate-tls",
            &registrations,
            of_registration(),
        ),
        cost("media-cost", "media-capacity", &media, of_packet()),
        cost(
            "media-srtp-cost",
            "media-capacity-srtp",
            &media,
            of_packet(),
        ),
    ]
}

/// Calls whose media ports are open, but carry nothing. Where their rate is searched they are shorter than others: each
/// has two ports on both sides, of which a network namespace has 11,384.
const ANCHORED: [&str; 2] = [
    "sut.media=anchored",
    "title=Calls per second with anchored media, without packets",
];

/// Three trials at the result instead of two, where the time permits: the CPU time there has an interval then.
const MORE_TRIALS: &str = "search.confirm=2";

/// The data sheet for this number of minutes.
pub fn plan(minutes: f64) -> StudyPlan {
    let scale = (minutes / MINUTES).clamp(0.05, 30.0);
    let seconds = |of_default: f64, least: f64| (of_default * scale).clamp(least, 300.0);
    // A search may need more trials than expected; the others have their time, too.
    let limit = |of_default: f64| format!("search.limit_seconds={:.0}", of_default * scale);
    let calls = |start: u32, more: &[&str]| -> Vec<String> {
        let mut sets = vec![
            format!("callers.duration_seconds={:.1}", seconds(5.0, 2.0)),
            "callers.hold_seconds=1.5".to_owned(),
            format!("search.start={start}"),
            "search.coarse_seconds=2".to_owned(),
            limit(45.0),
        ];
        sets.extend(more.iter().map(|&set| set.to_owned()));
        sets
    };
    let short = ["callers.duration_seconds=4", "callers.hold_seconds=2"];
    let registrations = |users: u32, more: &[&str]| -> Vec<String> {
        let mut sets = vec![
            format!("registrations.users={users}"),
            format!("registrations.duration_seconds={:.1}", seconds(5.0, 2.0)),
            "search.coarse_seconds=2".to_owned(),
            limit(37.0),
        ];
        sets.extend(more.iter().map(|&set| set.to_owned()));
        sets
    };
    let media = |more: &[&str]| -> Vec<String> {
        let mut sets = vec![
            format!("callers.hold_seconds={:.1}", seconds(10.0, 6.0)),
            "search.coarse_seconds=3".to_owned(),
            // Fast processors carry thousands of calls, which must begin in a short time.
            "callers.rate=400".to_owned(),
            "search.start=200".to_owned(),
            limit(58.0),
        ];
        sets.extend(more.iter().map(|&set| set.to_owned()));
        sets
    };
    let cpu_call = || {
        row(
            "CPU time of a call, at the highest load that passed",
            "us",
            "cpu_us_each",
        )
    };
    let cpu_registration = || {
        row(
            "CPU time of a registration, at the highest load that passed",
            "us",
            "cpu_us_each",
        )
    };
    let response = || {
        row(
            "response time at the highest load that passed, 99th percentile",
            "ms",
            "response_p99_ms",
        )
    };
    let packet = || {
        row(
            "CPU time of a relayed packet, signalling included",
            "us",
            "cpu_us_per_packet",
        )
    };
    let delay = || {
        row(
            "delay of a packet through the border, median",
            "ms",
            "relay_p50_ms",
        )
    };
    let part = |name, experiment, start, quick: &[&str], full| {
        searched(Searched {
            name,
            experiment,
            start,
            quick,
            full,
        })
    };
    let mut parts = vec![
        part(
            "calls",
            "call-rate",
            "400",
            &short,
            // Callers on the same two cores cannot offer more: their overload would take the time of the trials that
            // count.
            calls(3_200, &["search.highest=40000"]),
        )
        .with(cpu_call())
        .with(response()),
        part(
            "calls-anchored",
            "call-rate",
            "400",
            &[&short[..], &ANCHORED].concat(),
            calls(
                1_600,
                &[&ANCHORED[..], &["callers.hold_seconds=0.5", MORE_TRIALS]].concat(),
            ),
        )
        .with(cpu_call()),
        part(
            "calls-tls",
            "call-rate-tls",
            "300",
            &short,
            // Above 20,000 calls/s, the highest value of the experiment.
            calls(6_400, &["search.highest=60000", MORE_TRIALS]),
        )
        .with(cpu_call()),
        part(
            "calls-volte",
            "call-rate-volte",
            "120",
            &short,
            // Above 5,000 calls/s, the highest value of the experiment.
            calls(400, &["search.highest=10000"]),
        )
        .with(cpu_call()),
        part(
            "registrations",
            "registration-rate",
            "1500",
            &["registrations.duration_seconds=4"],
            registrations(1_000, &[]),
        )
        .with(cpu_registration()),
        part(
            "registrations-tls",
            "registration-rate-tls",
            "500",
            &[
                "registrations.users=1500",
                "registrations.duration_seconds=3",
            ],
            registrations(1_000, &[MORE_TRIALS]),
        )
        .with(cpu_registration()),
        part(
            "re-registrations",
            "re-registration-rate",
            "5000",
            &[
                "registrations.users=10000",
                "registrations.duration_seconds=3",
            ],
            // The first registrations take a part of each trial, so that a short one needs a shorter load than others.
            registrations(10_000, &["search.start=40000", "search.coarse_seconds=1.5"]),
        )
        .with(cpu_registration()),
        part(
            "re-registrations-tls",
            "re-registration-rate-tls",
            "2000",
            &[
                "registrations.users=3000",
                "registrations.duration_seconds=3",
            ],
            registrations(5_000, &["search.start=20000", "search.coarse_seconds=1.5"]),
        )
        .with(cpu_registration()),
        part(
            "media",
            "media-capacity",
            "50",
            &["callers.hold_seconds=5"],
            media(&[]),
        )
        .with(packet())
        .with(delay()),
        part(
            "media-srtp",
            "media-capacity-srtp",
            "50",
            &["callers.hold_seconds=5"],
            media(&[]),
        )
        .with(packet())
        .with(delay()),
        part(
            "transcoding",
            "transcoding-capacity",
            "10",
            &["callers.hold_seconds=5"],
            media(&["search.start=40"]),
        )
        .with(row(
            "transcoded calls at a time (G.711 to G.729)",
            "calls",
            "capacity",
        )),
        Part::own("memory", "X1", super::memory::measure, 24.0).lasting(78.0),
        full_only(part(
            "standing",
            "standing-call-capacity",
            "5000",
            &[],
            vec![
                // The highest load first: a border that carries it needs two trials.
                "search.start=20000".to_owned(),
                "search.highest=20000".to_owned(),
                "callers.rate=2000".to_owned(),
                "callers.hold_seconds=12".to_owned(),
                "search.trials=4".to_owned(),
                "thresholds.leaks=".to_owned(),
                limit(44.0),
            ],
        )),
    ];
    parts.extend(costs());
    parts.extend([
        Part::own("peers", "X1", super::peers::measure, 25.0).lasting(115.0),
        overload(scale),
        full_only(
            part(
                "media-kernel",
                "media-capacity-kernel",
                "50",
                &[],
                // Above, the generator beside the relay cannot keep up on small machines.
                media(&["search.start=400", "search.highest=2000"]),
            )
            .with(delay()),
        ),
    ]);
    StudyPlan {
        name: NAME,
        title: "Data sheet of this machine",
        source: "",
        about: "Call rates, registrations, standing calls, media calls, overload and memory of one border thread on this \
                machine, which the generator shares. The CPU time of a call, a registration or a packet falls with the \
                load, as a busy border takes several messages at a time: rows at a fixed load and at the highest one \
                differ. A capacity was searched (bracket; terms of RFC 7501) between the highest load that passed and \
                the lowest that failed; in the quick setting it is the one load that was tried, so that the limit is \
                higher. For the overload the border is slowed to 765 calls/s. costs.toml beside this page has the costs \
                for hornwork lab plan --from.",
        parts,
        absent: Vec::new(),
        plots: plots(),
        compares: false,
        publish_more: Some(super::costs::write),
    }
}

/// A part whose search takes longer than the quick setting.
fn full_only(mut part: Part) -> Part {
    part.action = Action::FullSearch("its shortest trial does not fit into the quick setting");
    part
}

fn overload(scale: f64) -> Part {
    let mut part = Part::of("overload", "X1", Action::Run);
    let owned = |sets: &[&str]| sets.iter().map(|&set| set.to_owned()).collect::<Vec<_>>();
    part.quick = owned(&[
        "peak.start=720",
        "peak.trial_seconds=3",
        "peak.trials=3",
        "levels.values=[1530]",
        "callers.duration_seconds=8",
        "settle_seconds=10",
        "thresholds.leaks=",
        "thresholds.figure=",
    ]);
    part.full = owned(&[
        "peak.start=720",
        "peak.trial_seconds=3",
        "peak.trials=5",
        "levels.values=[1530]",
        "thresholds.figure=",
        "thresholds.leaks=",
    ]);
    let duration = (20.0 * scale).clamp(8.0, 60.0);
    part.full
        .push(format!("callers.duration_seconds={duration:.1}"));
    part.full.push("settle_seconds=35".to_owned());
    part
}

fn plots() -> Vec<PlotSpec> {
    let bar = |name, part, figure| BarSpec {
        name,
        part,
        figure,
        level: None,
    };
    let rows = |title, y, bars| PlotSpec::Rows { title, y, bars };
    vec![
        rows(
            "Calls per second",
            "calls/s",
            vec![
                bar("SIP", "calls", "capacity"),
                bar("anchored", "calls-anchored", "capacity"),
                bar("TLS", "calls-tls", "capacity"),
                bar("VoLTE", "calls-volte", "capacity"),
            ],
        ),
        rows(
            "Registrations per second",
            "registrations/s",
            vec![
                bar("digest", "registrations", "capacity"),
                bar("digest, TLS", "registrations-tls", "capacity"),
                bar("cached", "re-registrations", "capacity"),
                bar("cached, TLS", "re-registrations-tls", "capacity"),
            ],
        ),
        rows(
            "Calls at a time through the media path",
            "calls",
            vec![
                bar("RTP", "media", "capacity"),
                bar("SRTP", "media-srtp", "capacity"),
                bar("RTP, kernel", "media-kernel", "capacity"),
                bar("transcoded", "transcoding", "capacity"),
            ],
        ),
        PlotSpec::Levels {
            title: "CPU of a call against the rate",
            part: "calls",
            x: "calls/s",
            scale: 1.0,
            y: "CPU time of the border for a call, us",
            figures: &[("cpu_us_each", "CPU time")],
        },
        PlotSpec::Levels {
            title: "Response time against the rate",
            part: "calls",
            x: "calls/s",
            scale: 1.0,
            y: "response time, ms",
            figures: &[
                ("response_p50_ms", "median"),
                ("response_p99_ms", "99th percentile"),
            ],
        },
        PlotSpec::Levels {
            title: "Delay through the border against calls, RTP",
            part: "media",
            x: "calls at a time",
            scale: 1.0,
            y: "delay of a packet, ms",
            figures: &[
                ("relay_p50_ms", "median"),
                ("relay_p99_ms", "99th percentile"),
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{File, built_in};

    #[test]
    fn every_override_fits_its_experiment() {
        for minutes in [1.0, 20.0, 600.0] {
            for part in plan(minutes).parts {
                let Some(text) = built_in(&part.experiment) else {
                    assert!(part.experiment.is_empty(), "{}", part.experiment);
                    continue;
                };
                for sets in [&part.quick, &part.full] {
                    File::parse_with(&part.name, text, sets)
                        .unwrap_or_else(|error| panic!("{}: {error}", part.name));
                }
            }
        }
    }

    #[test]
    fn measurements_fit_the_default_time_and_costs_have_five_runs() {
        let plan = plan(MINUTES);
        let place = |name: &str| plan.parts.iter().position(|part| part.name == name);
        assert_eq!(place("standing"), place("memory").map(|place| place + 1));
        // All parts, each search up to its limit.
        let each: Vec<(String, f64)> = plan
            .parts
            .iter()
            .map(|part| (part.name.clone(), crate::study::expected(part, false)))
            .collect();
        let seconds: f64 = each.iter().map(|(_, seconds)| seconds).sum();
        assert!(seconds < MINUTES * 60.0, "{seconds}: {each:?}");
        let last = place("media-srtp-cost").unwrap();
        for part in &plan.parts[..=last] {
            if part.name.ends_with("-cost") {
                let text = built_in(&part.experiment).unwrap();
                let file = File::parse_with(&part.name, text, &part.full).unwrap();
                assert_eq!(file.experiment().repeat, 5, "{}", part.name);
                assert_eq!(file.levels().unwrap().len(), 1, "{}", part.name);
            }
        }
    }

    /// The file of a part in the full setting.
    fn full(name: &str) -> File {
        let part = plan(MINUTES)
            .parts
            .into_iter()
            .find(|part| part.name == name)
            .unwrap();
        File::parse_with(name, built_in(&part.experiment).unwrap(), &part.full).unwrap()
    }

    #[test]
    fn searched_rates_have_short_trials_and_room_above() {
        for name in ["re-registrations", "re-registrations-tls"] {
            let file = full(name);
            let start = file.experiment().search.start.unwrap();
            let found = crate::search::coarse_seconds(&file, &file.experiment().search, start);
            assert_eq!(found.unwrap(), Some(1.5), "{name}");
        }
        let file = full("calls-tls");
        assert_eq!(file.experiment().search.highest, Some(60_000.0));
        assert_eq!(
            file.level_at(60_000.0)
                .unwrap()
                .experiment
                .callers
                .unwrap()
                .rate,
            60_000.0
        );
    }

    #[test]
    fn packets_of_media_have_a_bound_of_their_late_ones() {
        for name in ["media", "media-srtp", "media-kernel", "transcoding"] {
            let thresholds = full(name).experiment().thresholds.clone();
            assert_eq!(thresholds.relay_p99_ms, Some(20.0), "{name}");
        }
    }
}
