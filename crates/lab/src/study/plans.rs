//! The studies U, V, S and B.

use super::plan::{AbsentRow, Action, BarSpec, Part, PlotSpec, RowSpec, StudyPlan};
use super::record::Reading;
use crate::experiment::{BUILT_IN, CAPACITY, File};

pub use crate::study_names::NAMES;

/// The study of this name.
pub fn find(name: &str) -> Option<StudyPlan> {
    match name {
        "study-u" => Some(study_u()),
        "study-v" => Some(study_v()),
        "study-s" => Some(study_s()),
        "study-b" => Some(study_b()),
        _ => None,
    }
}

fn number(value: f64) -> Reading {
    Reading::Number(value)
}

fn words(text: &str) -> Reading {
    Reading::Words(text.to_owned())
}

/// A row of a level.
fn row(
    row: &'static str,
    what: &'static str,
    study: Reading,
    unit: &'static str,
    (figure, at): (&'static str, Option<f64>),
) -> RowSpec {
    RowSpec {
        row,
        what,
        study,
        unit,
        figure,
        at,
    }
}

fn absent(
    row: &'static str,
    what: &'static str,
    study: Reading,
    unit: &'static str,
    cause: &str,
) -> AbsentRow {
    AbsentRow {
        row,
        what,
        study,
        unit,
        cause: cause.to_owned(),
    }
}

const fn bar(name: &'static str, part: &'static str, figure: &'static str) -> BarSpec {
    BarSpec {
        name,
        part,
        figure,
        level: None,
    }
}

const fn bar_at(
    name: &'static str,
    part: &'static str,
    figure: &'static str,
    level: f64,
) -> BarSpec {
    BarSpec {
        name,
        part,
        figure,
        level: Some(level),
    }
}

/// Parts for the built-in experiments whose name begins with `esp-` and that belong to this study, with durations
/// shortened in the quick setting.
fn esp_parts(study: char) -> Vec<Part> {
    let names = BUILT_IN.iter().filter(|(name, _)| name.starts_with("esp-"));
    names
        .filter_map(|(name, text)| {
            let file = File::parse(name, text).ok()?;
            let row = file.experiment().study.as_ref()?.row.clone();
            row.starts_with(study)
                .then(|| Part::of(name, "", Action::Run).quick_from(&file))
        })
        .collect()
}

/// Longest time that a shortened experiment measures, seconds.
const SHORT_SECONDS: f64 = 4.0;

impl Part {
    /// The quick setting of an experiment without one of its own: one repetition, three levels and those with figures
    /// of the study, and durations of a few seconds.
    fn quick_from(mut self, file: &File) -> Part {
        let experiment = file.experiment();
        let mut sets = vec!["repeat=1".to_owned()];
        let levels: Vec<f64> = file
            .levels()
            .map(|levels| levels.iter().filter_map(|level| level.value).collect())
            .unwrap_or_default();
        if levels.len() > 3 {
            let study = experiment.study.as_ref();
            let of_study = |level: f64| {
                study.is_some_and(|study| {
                    study.at == Some(level) || study.level.iter().any(|known| known.at == level)
                })
            };
            let middle = match levels.iter().any(|level| of_study(*level)) {
                true => 0,
                false => levels.len() / 2,
            };
            let places = [0, middle, levels.len() - 1];
            let some: Vec<String> = levels
                .iter()
                .enumerate()
                .filter(|(place, level)| places.contains(place) || of_study(**level))
                .map(|(_, level)| level.to_string())
                .collect();
            sets.push(format!("levels.values=[{}]", some.join(", ")));
        }
        if file.text().contains("\nrounds = ") {
            sets.push("esp.rounds=40".to_owned());
        }
        let durations = [
            (
                "callers.duration_seconds",
                experiment
                    .callers
                    .as_ref()
                    .map(|load| load.duration_seconds),
            ),
            (
                "callers.hold_seconds",
                experiment.callers.as_ref().map(|load| load.hold_seconds),
            ),
            (
                "streams.duration_seconds",
                experiment
                    .streams
                    .as_ref()
                    .map(|load| load.duration_seconds),
            ),
            (
                "conference.duration_seconds",
                experiment
                    .conference
                    .as_ref()
                    .map(|load| load.duration_seconds),
            ),
            (
                "phone.duration_seconds",
                experiment.phone.as_ref().map(|load| load.duration_seconds),
            ),
        ];
        for (key, value) in durations {
            if value.is_some_and(|seconds| seconds > SHORT_SECONDS) {
                sets.push(format!("{key}={SHORT_SECONDS:.1}"));
            }
        }
        self.quick = sets;
        self
    }
}

/// A row that an experiment over ESP would measure, with the cause if the build has none for it.
fn esp_rows(parts: &[Part], rows: Vec<AbsentRow>) -> Vec<AbsentRow> {
    let has = |row: &str| {
        parts.iter().any(|part| {
            let text = crate::experiment::built_in(&part.experiment).unwrap_or_default();
            File::parse(&part.experiment, text).is_ok_and(|file| {
                let study = file.experiment().study.as_ref();
                study.is_some_and(|study| study.row.split([',', ' ']).any(|known| known == row))
            })
        })
    };
    rows.into_iter().filter(|absent| !has(absent.row)).collect()
}

const NO_ESP: &str = "not available: this build has no experiment with ESP for this row";

/// Conferences in G.722 at rising levels, with ESP on the callers' side (protection 15) or without (0).
fn g722_in_conferences(name: &str, protection: u8, what: &'static str, study: &str) -> Part {
    let why = "six levels of up to 1,200 calls: not in the quick setting";
    let mut part = Part::of("call-capacity-ipsec", "U5", Action::FullRun(why)).named(name);
    let sets = ["conference.codec=G722", "study=", "thresholds.figure="];
    part.full = sets.map(str::to_owned).to_vec();
    part.full.push(format!("protection.kind={protection}"));
    part.quick = part.full.clone();
    part.with(row(
        "U5",
        what,
        words(study),
        "conferences of four",
        ("capacity", None),
    ))
}

fn study_u() -> StudyPlan {
    let parts = vec![
        Part::of("call-capacity", "U4", Action::Run)
            .quick(&[
                "repeat=1",
                "levels.values=[100, 900, 1200]",
                "callers.rate=150",
                "callers.hold_seconds=7",
                "callers.media=none",
                "callers.listen_percent=0",
                "callees.media=none",
                "settle_seconds=12",
                "thresholds.one_way_ms=",
                "thresholds.round_trip_ms=",
            ])
            .with(row(
                "U3",
                "calls generated of 100 (-r 30 -l 100 -m 100 -d 30000 -s 5555)",
                number(100.0),
                "calls",
                ("attempted", Some(100.0)),
            )),
        Part::of("call-capacity", "U4", Action::Run)
            .named("call-delay")
            .only(&[50.0])
            .quick(&[
                "repeat=1",
                "levels.values=[50]",
                "callers.rate=50",
                "callers.hold_seconds=5",
                "settle_seconds=12",
                "thresholds.figure=",
            ])
            .full(&["levels.values=[50]", "thresholds.figure="])
            .with(row(
                "U6",
                "one-way delay of the worst stream at 50 calls; the study's limit (G.114)",
                number(150.0),
                "ms",
                ("one_way_ms", None),
            ))
            .with(row(
                "U6",
                "round trip of the worst stream at 50 calls; the study's limit",
                number(250.0),
                "ms",
                ("round_trip_ms", None),
            )),
        Part::of("call-capacity-g722", "U5", Action::Run).quick(&[
            "repeat=1",
            "levels.values=[50, 100]",
            "callers.rate=50",
            "callers.hold_seconds=4",
            "settle_seconds=12",
            "thresholds.figure=",
        ]),
        Part::of("call-capacity-ipsec", "U5", Action::Run).quick(&[
            "levels.values=[225]",
            "conference.rate=150",
            "conference.warm_up_seconds=1",
            "conference.duration_seconds=3",
            "settle_seconds=12",
            "thresholds.figure=",
        ]),
        g722_in_conferences(
            "ipsec-g722",
            15,
            "conferences in G.722 with IPsec",
            "100 calls (25 conferences) fewer than without",
        ),
        g722_in_conferences("clear-g722", 0, "conferences in G.722 without IPsec", ""),
    ];
    StudyPlan {
        name: "study-u",
        title: "Study U: response times and capacity of a UC server, with and without IPsec",
        source: "UCaaS over IPsec (2015): Asterisk in a virtual machine, called by SIPp, with and without an IPsec gateway",
        about: "Calls arrive at one rate and are held while their number rises to the level. The response time is the time \
                from INVITE to 200; the distribution over its classes is drawn for the study's levels, the study's bars beside ours.",
        parts,
        absent: Vec::new(),
        plots: vec![
            PlotSpec::Distribution {
                part: "call-capacity",
            },
            PlotSpec::Levels {
                title: "Response time over the level",
                part: "call-capacity",
                x: "calls",
                scale: 1.0,
                y: "response time, ms",
                figures: &[
                    ("response_p50_ms", "median"),
                    ("response_p99_ms", "99th percentile"),
                ],
            },
            PlotSpec::Levels {
                title: "Calls that failed",
                part: "call-capacity",
                x: "calls",
                scale: 1.0,
                y: "calls not established",
                figures: &[("dropped", "not established")],
            },
            PlotSpec::Levels {
                title: "Response time over the level, G.722",
                part: "call-capacity-g722",
                x: "calls",
                scale: 1.0,
                y: "response time, ms",
                figures: &[
                    ("response_p50_ms", "median"),
                    ("response_p99_ms", "99th percentile"),
                ],
            },
            PlotSpec::Rows {
                title: "Delay against the limits of the study",
                y: "ms",
                bars: vec![
                    bar("one way", "call-delay", "one_way_ms"),
                    bar("round trip", "call-delay", "round_trip_ms"),
                ],
            },
        ],
        compares: true,
        publish_more: None,
    }
}

fn study_v() -> StudyPlan {
    StudyPlan {
        name: "study-v",
        title: "Study V: jitter of a conference server, instances on one host, isolation of voice",
        source: "VoIP on vSphere 5 (2011): a commercial media server in virtual machines, G.729, conferences of four",
        about: "Participants call conferences of four; a separate probe conference measures jitter (RFC 3550). Then instances are \
                added on one host, and voice shares its link with bulk traffic, with and without shares.",
        parts: vec![
            Part::of("conference-jitter", "V2", Action::Run)
                .quick(&[
                    "repeat=1",
                    "levels.values=[5, 15, 30]",
                    "conference.duration_seconds=6",
                    "settle_seconds=12",
                ])
                .with(row(
                    "V1",
                    "G.729 packets lost at one instance with 120 streams, 30 conferences of four",
                    number(0.0),
                    "%",
                    ("lost_percent", Some(30.0)),
                )),
            Part::of("conference-instances", "V3", Action::Run).quick(&[
                "levels.values=[1, 2]",
                "conference.duration_seconds=6",
                "settle_seconds=12",
            ]),
            Part::of("isolation", "V4", Action::Run).quick(&["streams.duration_seconds=8"]),
        ],
        absent: Vec::new(),
        plots: vec![
            PlotSpec::Levels {
                title: "Jitter against streams",
                part: "conference-jitter",
                x: "streams at one instance",
                scale: 4.0,
                y: "jitter, ms",
                figures: &[
                    ("jitter_trimmed_mean_ms", "mean"),
                    ("jitter_trimmed_p99_ms", "99th percentile"),
                    ("noise_jitter_mean_ms", "mean of the host itself"),
                ],
            },
            PlotSpec::Levels {
                title: "Jitter against instances",
                part: "conference-instances",
                x: "instances of 120 streams",
                scale: 1.0,
                y: "jitter, ms",
                figures: &[
                    ("jitter_mean_ms", "mean"),
                    ("jitter_p99_ms", "99th percentile"),
                ],
            },
            PlotSpec::Levels {
                title: "CPU against instances",
                part: "conference-instances",
                x: "instances of 120 streams",
                scale: 1.0,
                y: "CPU of the host, %",
                figures: &[("host_cpu_percent", "all processors")],
            },
            PlotSpec::LossOverTime {
                title: "Loss of voice over time beside bulk traffic",
                part: "isolation",
                levels: &[(0.0, "without shares"), (1.0, "with shares")],
                study: (500.0, "study without shares: over 500"),
            },
            PlotSpec::Rows {
                title: "Voice lost beside bulk traffic",
                y: "packets lost, %",
                bars: vec![
                    bar_at("without shares", "isolation", "lost_percent", 0.0),
                    bar_at("with shares", "isolation", "lost_percent", 1.0),
                ],
            },
            PlotSpec::Rows {
                title: "Jitter of voice beside bulk traffic, 99th percentile",
                y: "jitter, ms",
                bars: vec![
                    bar_at("without shares", "isolation", "jitter_p99_ms", 0.0),
                    bar_at("with shares", "isolation", "jitter_p99_ms", 1.0),
                ],
            },
        ],
        compares: true,
        publish_more: None,
    }
}

/// Signalling parts of study S.
fn signalling_parts() -> Vec<Part> {
    vec![
        Part::of("call-rate", "S5", Action::Search).quick(&[
            "levels.values=[350, 700]",
            "callers.duration_seconds=3",
            "callers.hold_seconds=2",
            "settle_seconds=10",
        ]),
        Part::of("call-rate-tls", "S5", Action::Search).quick(&[
            "levels.values=[600]",
            "callers.duration_seconds=3",
            "callers.hold_seconds=2",
            "settle_seconds=10",
        ]),
        Part::of("call-rate-volte", "S5", Action::Search).quick(&[
            "levels.values=[240]",
            "callers.duration_seconds=3",
            "callers.hold_seconds=2",
            "settle_seconds=10",
        ]),
        Part::of("volte-call-rate", "S5", Action::Run).quick(&[
            "repeat=1",
            "callers.duration_seconds=2",
            "settle_seconds=10",
        ]),
        Part::of("header-rules", "S11", Action::Run).quick(&[
            "repeat=1",
            "callers.duration_seconds=2",
            "settle_seconds=10",
        ]),
        Part::of("shielding", "S12", Action::Run)
            .quick(&["levels.values=[300, 700]", "callers.duration_seconds=5"])
            .with(row(
                "S12",
                "calls refused with 486, of the calls of the trial",
                words("300 of 700 each second"),
                "calls",
                ("refused", Some(700.0)),
            )),
        Part::of("registration-rate", "S7", Action::Search).quick(&[
            "registrations.duration_seconds=2",
            "levels.values=[1300, 2600]",
            "settle_seconds=10",
        ]),
        Part::of("registration-rate-tls", "S7", Action::Search).quick(&[
            "registrations.users=900",
            "registrations.duration_seconds=2",
            "levels.values=[720]",
            "settle_seconds=10",
        ]),
        Part::of("re-registration-rate", "S7", Action::Search).quick(&[
            "registrations.users=8000",
            "registrations.duration_seconds=2",
            "levels.values=[14000]",
            "settle_seconds=10",
        ]),
        Part::of("re-registration-rate-tls", "S7", Action::Search).quick(&[
            "registrations.users=2500",
            "registrations.duration_seconds=2",
            "levels.values=[4400]",
            "settle_seconds=10",
        ]),
        Part::of(
            "re-registrations-420k",
            "S7",
            Action::FullRun("420,000 subscribers take five minutes: not in the quick setting"),
        ),
        Part::of(
            "re-registrations-132k-tls",
            "S7",
            Action::FullRun(
                "132,000 subscribers over TLS take four minutes: not in the quick setting",
            ),
        ),
        Part::of(
            "registrations-million",
            "S7",
            Action::FullRun("a million subscribers take four minutes: not in the quick setting"),
        ),
        Part::of("standing-calls", "S8", Action::Run).quick(&[
            "levels.values=[8]",
            "callers.rate=300",
            "callers.duration_seconds=4.5",
            "callers.hold_seconds=6",
            "thresholds.figure=",
        ]),
        Part::of("standing-call-capacity", "S8", Action::Search).quick(&[
            "levels.values=[2000]",
            "callers.rate=500",
            "callers.hold_seconds=5",
            "thresholds.figure=",
        ]),
        Part::of(
            "standing-call-capacity-tls",
            "S8",
            Action::FullSearch("a search of up to 12 trials of 4 min: not in the quick setting"),
        ),
        Part::of(
            "standing-call-capacity-volte",
            "S8",
            Action::FullSearch("a search of up to 12 trials of 7 min: not in the quick setting"),
        ),
    ]
}

/// Media parts and overload of study S.
fn media_parts() -> Vec<Part> {
    vec![
        Part::of("media-nodes", "S1", Action::Run)
            .quick(&[
                "levels.values=[60]",
                "callers.hold_seconds=3",
                "settle_seconds=10",
            ])
            .with(row(
                "S1",
                "spread of the calls over three media nodes, percent of their mean",
                words("shared evenly"),
                "%",
                ("node_spread_percent", None),
            )),
        Part::of("media-capacity", "S9", Action::Search).quick(&[
            "levels.values=[50, 100]",
            "callers.hold_seconds=3",
            "settle_seconds=10",
            "thresholds.figure=",
        ]),
        Part::of("media-capacity-srtp", "S9", Action::Search).quick(&[
            "levels.values=[100]",
            "callers.hold_seconds=4",
            "settle_seconds=10",
            "thresholds.figure=",
        ]),
        Part::of("media-capacity-silence", "S9", Action::Search).quick(&[
            "levels.values=[100]",
            "callers.hold_seconds=4",
            "settle_seconds=10",
            "thresholds.figure=",
        ]),
        Part::of("transcoding-capacity", "S14", Action::Search)
            .quick(&[
                "levels.values=[10]",
                "callers.rate=40",
                "callers.hold_seconds=2",
                "settle_seconds=10",
                "thresholds.figure=",
            ])
            .with(row(
                "S14",
                "calls at a time, transcoded from G.711 to G.729",
                words("no figure"),
                "calls",
                (CAPACITY, None),
            )),
        Part::of("overload", "S6", Action::Run).quick(&[
            "peak.start=720",
            "peak.trial_seconds=3",
            "peak.trials=3",
            "levels.values=[1530]",
            "callers.duration_seconds=8",
            "settle_seconds=10",
            "thresholds.leaks=",
        ]),
        Part::of(
            "overload-volte",
            "S6",
            Action::FullRun("its peak alone takes a minute: not in the quick setting"),
        ),
    ]
}

fn study_s() -> StudyPlan {
    let mut parts = signalling_parts();
    parts.extend(media_parts());
    let aka = "not available: the generator has no IMS-AKA";
    let flood = "not available: the generator sends no attack traffic";
    StudyPlan {
        name: "study-s",
        title: "Study S: a virtual session border controller, signalling and media",
        source: "Virtual SBC tests (2016): signalling and media components with 8 virtual CPUs each, three media components",
        about: "Call rates, registrations, standing calls, media, transcoding, overload, shielding and header rules of the study. In the full \
                setting rates and capacities are searched (bracket; terms of RFC 7501); the quick setting only tries the study's own load, so that a \
                result at the highest value tried says that the limit is higher.",
        parts,
        absent: vec![
            absent(
                "S5",
                "VoLTE calls/s with IMS-AKA (ESP)",
                number(228.0),
                "calls/s",
                aka,
            ),
            absent(
                "S7",
                "registrations/s with IMS-AKA",
                number(810.0),
                "registrations/s",
                aka,
            ),
            absent(
                "S8",
                "VoLTE calls at a time with IMS-AKA",
                number(50_000.0),
                "calls at a time",
                aka,
            ),
            absent(
                "S10",
                "packets lost in a call while one component fails over, 75,000 calls at a time",
                words("at most 13, below 1 s"),
                "packets",
                "not available: the border has no high availability",
            ),
            absent(
                "S13",
                "calls/s held under 6,550 Mbit/s of INVITEs from forged addresses",
                number(700.0),
                "calls/s",
                flood,
            ),
            absent(
                "S13",
                "calls/s held under 470 Mbit/s of REGISTERs; about 20 % of the calls failed in the first 30 s",
                number(700.0),
                "calls/s",
                flood,
            ),
            absent(
                "S13",
                "calls/s held under 246 Mbit/s of ICMP echo requests",
                number(700.0),
                "calls/s",
                flood,
            ),
            absent(
                "S13",
                "calls/s held under 115 Mbit/s of TCP SYN",
                number(700.0),
                "calls/s",
                flood,
            ),
        ],
        plots: vec![
            PlotSpec::Rows {
                title: "Call rate with media bypass",
                y: "calls/s",
                bars: vec![
                    bar("SIP", "call-rate", "capacity"),
                    bar("SIP over TLS", "call-rate-tls", "capacity"),
                    bar("VoLTE", "call-rate-volte", "capacity"),
                ],
            },
            PlotSpec::Rows {
                title: "Registrations",
                y: "registrations/s",
                bars: vec![
                    bar("full", "registration-rate", "capacity"),
                    bar("full, TLS", "registration-rate-tls", "capacity"),
                    bar("cached", "re-registration-rate", "capacity"),
                    bar("cached, TLS", "re-registration-rate-tls", "capacity"),
                ],
            },
            PlotSpec::Levels {
                title: "CPU of a call against the rate",
                part: "call-rate",
                x: "calls/s",
                scale: 1.0,
                y: "CPU time of the SUT for a call, us",
                figures: &[("cpu_us_each", "CPU time")],
            },
            PlotSpec::Rows {
                title: "Price of a call",
                y: "% of a plain call",
                bars: vec![
                    bar("VoLTE", "volte-call-rate", "cpu_us_each"),
                    bar("header rules", "header-rules", "cpu_us_each"),
                ],
            },
            PlotSpec::Rows {
                title: "Overload: calls/s kept at twice the peak",
                y: "% of the peak",
                bars: vec![
                    bar("SIP", "overload", "in_time_per_second"),
                    bar("VoLTE", "overload-volte", "in_time_per_second"),
                ],
            },
            PlotSpec::Rows {
                title: "Calls at a time through the media path",
                y: "calls",
                bars: vec![
                    bar("RTP", "media-capacity", "capacity"),
                    bar("SRTP", "media-capacity-srtp", "capacity"),
                    bar("SRTP, silence", "media-capacity-silence", "capacity"),
                ],
            },
            PlotSpec::Levels {
                title: "Loss against calls, RTP",
                part: "media-capacity",
                x: "calls at a time",
                scale: 1.0,
                y: "packets lost, %",
                figures: &[("lost_percent", "lost")],
            },
            PlotSpec::Levels {
                title: "Delay through the border against calls, RTP",
                part: "media-capacity",
                x: "calls at a time",
                scale: 1.0,
                y: "delay of a packet, ms",
                figures: &[
                    ("relay_p50_ms", "median"),
                    ("relay_p99_ms", "99th percentile"),
                ],
            },
        ],
        compares: true,
        publish_more: None,
    }
}

fn study_b() -> StudyPlan {
    let phone = |name: &str, program: f64, says: &'static str| {
        let level = format!("levels.values=[{program}]");
        Part::of("phone-jitter", "B6", Action::Run)
            .named(name)
            .only(&[program])
            .saying(says)
            .quick(&["repeat=1", "phone.duration_seconds=5", &level])
            .full(&[&level])
    };
    // The bounds of the experiment are those of level 1.
    let unbounded = |mut part: Part| {
        for sets in [&mut part.quick, &mut part.full] {
            sets.push("thresholds.figure=".to_owned());
        }
        part
    };
    let esp = esp_parts('B');
    let absent = esp_rows(
        &esp,
        vec![
            absent(
                "B2",
                "packets/s of a call at 20 ms",
                number(50.0),
                "packets/s",
                NO_ESP,
            ),
            absent(
                "B3",
                "processing time of a packet, tunnel minus transport mode",
                number(0.02),
                "ms",
                NO_ESP,
            ),
            absent(
                "B4",
                "incoming throughput with RTP directly in ESP, without UDP",
                words("+6 to 14 %"),
                "%",
                NO_ESP,
            ),
            absent(
                "B5",
                "throughput with ESP handing packets straight to the media handler",
                words("+8 to 15 %"),
                "%",
                NO_ESP,
            ),
        ],
    );
    let mut parts = vec![
        phone("phone-jitter", 1.0, "this softphone in real-time mode"),
        unbounded(phone("phone-jitter-baresip", 2.0, "baresip")),
        unbounded(phone("phone-jitter-linphone", 3.0, "linphone")),
        unbounded(phone(
            "phone-jitter-normal",
            4.0,
            "this softphone without real-time mode",
        ))
        .with(row(
            "B6",
            "mean jitter of this softphone without real-time mode",
            number(8.0),
            "ms",
            ("jitter_mean_ms", None),
        )),
    ];
    parts.extend(esp);
    StudyPlan {
        name: "study-b",
        title: "Study B: IPsec overhead of a softphone, and its jitter beside ordinary softphones",
        source: "IPsec overhead of VoIP on a bare PC (2010): a softphone without an operating system, with ESP in the same program",
        about: "Each telephone calls a receiver of the generator and plays speech while other streams load the machine; jitter and the \
                longest time between two packets are measured at the receiver. The experiments with ESP of this build follow.",
        parts,
        absent,
        plots: vec![
            PlotSpec::Rows {
                title: "Mean jitter of telephones",
                y: "jitter, ms",
                bars: vec![
                    bar("this, real-time", "phone-jitter", "jitter_mean_ms"),
                    bar("this, normal", "phone-jitter-normal", "jitter_mean_ms"),
                    bar("baresip", "phone-jitter-baresip", "jitter_mean_ms"),
                    bar("linphone", "phone-jitter-linphone", "jitter_mean_ms"),
                ],
            },
            PlotSpec::Rows {
                title: "Longest time between two packets",
                y: "ms",
                bars: vec![
                    bar("this, real-time", "phone-jitter", "delta_max_ms"),
                    bar("baresip", "phone-jitter-baresip", "delta_max_ms"),
                    bar("linphone", "phone-jitter-linphone", "delta_max_ms"),
                ],
            },
            PlotSpec::Levels {
                title: "Cost against packet time, in",
                part: "esp-packet-cost",
                x: "packet time, ms",
                scale: 1.0,
                y: "opening a packet, us",
                figures: &[
                    ("esp.in_us.aes-cbc.transport", "AES, transport"),
                    ("esp.in_us.aes-cbc.tunnel", "AES, tunnel"),
                    ("esp.in_us.aes-cbc-sha1.transport", "AES, SHA-1, transport"),
                    ("esp.in_us.aes-cbc-sha1.tunnel", "AES, SHA-1, tunnel"),
                    ("esp.in_us.aes-cbc-md5.transport", "AES, MD5, transport"),
                    ("esp.in_us.aes-cbc-md5.tunnel", "AES, MD5, tunnel"),
                ],
            },
            PlotSpec::Levels {
                title: "Cost against packet time, out",
                part: "esp-packet-cost",
                x: "packet time, ms",
                scale: 1.0,
                y: "sealing a packet, us",
                figures: &[
                    ("esp.out_us.aes-cbc.transport", "AES, transport"),
                    ("esp.out_us.aes-cbc.tunnel", "AES, tunnel"),
                    ("esp.out_us.aes-cbc-sha1.transport", "AES, SHA-1, transport"),
                    ("esp.out_us.aes-cbc-sha1.tunnel", "AES, SHA-1, tunnel"),
                    ("esp.out_us.aes-cbc-md5.transport", "AES, MD5, transport"),
                    ("esp.out_us.aes-cbc-md5.tunnel", "AES, MD5, tunnel"),
                ],
            },
            PlotSpec::Levels {
                title: "Tunnel less transport mode, in",
                part: "esp-packet-cost",
                x: "packet time, ms",
                scale: 1.0,
                y: "us a packet",
                figures: &[
                    ("esp.tunnel_minus_transport_in_us.aes-cbc", "AES"),
                    (
                        "esp.tunnel_minus_transport_in_us.aes-cbc-sha1",
                        "AES, SHA-1",
                    ),
                    ("esp.tunnel_minus_transport_in_us.aes-cbc-md5", "AES, MD5"),
                ],
            },
        ],
        compares: true,
        publish_more: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::built_in;
    use crate::report::LevelSummary;
    use crate::study::Setting;

    #[test]
    fn every_override_fits_its_experiment() {
        for name in NAMES {
            let plan = find(name).unwrap();
            let mut names = Vec::new();
            for part in &plan.parts {
                assert!(!names.contains(&part.name), "{}", part.name);
                names.push(part.name.clone());
                let text = built_in(&part.experiment).unwrap();
                for sets in [&part.quick, &part.full] {
                    File::parse_with(&part.name, text, sets)
                        .unwrap_or_else(|error| panic!("{name} {}: {error}", part.name));
                }
                for row in &part.rows {
                    let is_known = LevelSummary::has_figure(row.figure) || row.figure == CAPACITY;
                    assert!(is_known, "{}", row.figure);
                }
            }
            for plot in &plan.plots {
                let parts: Vec<&str> = match plot {
                    PlotSpec::Distribution { part }
                    | PlotSpec::Levels { part, .. }
                    | PlotSpec::LossOverTime { part, .. } => vec![part],
                    PlotSpec::Rows { bars, .. } => bars.iter().map(|bar| bar.part).collect(),
                };
                for part in parts {
                    assert!(names.iter().any(|known| known == part), "{name}: {part}");
                }
            }
        }
        assert!(find("study-x").is_none());
    }

    #[test]
    fn study_s_names_every_row_of_the_study_that_is_measured_or_not() {
        let plan = find("study-s").unwrap();
        let absent = plan.absent.iter().map(|row| row.row);
        let codes: Vec<&str> = absent
            .chain(plan.parts.iter().map(|part| part.row))
            .collect();
        for code in ["S1", "S5", "S6", "S7", "S8", "S9"] {
            assert!(codes.contains(&code), "{code}");
        }
        for code in ["S10", "S11", "S12", "S13", "S14"] {
            assert!(codes.contains(&code), "{code}");
        }
        let floods = plan.absent.iter().filter(|row| row.row == "S13");
        let floods: Vec<&str> = floods.map(|row| row.what).collect();
        for load in ["6,550", "470", "246", "115"] {
            assert!(floods.iter().any(|what| what.contains(load)), "{load}");
        }
    }

    #[test]
    fn text_of_study_b_has_no_time_of_a_packet() {
        // Only the difference of the modes is in the text of the paper.
        let text = built_in("esp-packet-cost").unwrap();
        assert!(text.contains("about 0.02 ms for each packet in"));
        assert!(!text.contains("0.1 ms") && !text.contains("The study's shortest"));
        // It measured one telephone on Linux, beside which two stand here.
        let text = built_in("phone-jitter").unwrap();
        assert!(text.contains("was Linphone 2.1.1; its figures stand beside baresip"));
    }

    #[test]
    fn quick_setting_is_planned_within_three_minutes() {
        for name in NAMES {
            let seconds: f64 = find(name)
                .unwrap()
                .parts
                .iter()
                .filter(|part| !matches!(part.action, Action::FullRun(_) | Action::FullSearch(_)))
                .map(|part| super::super::expected(part, true))
                .sum();
            let limit = Setting::quick().limit_s.unwrap();
            assert!(seconds <= limit, "{name}: {seconds} s of {limit}");
        }
    }
}
