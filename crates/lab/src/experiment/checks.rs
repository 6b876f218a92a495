//! Checks of the system under test against the other tables of an experiment, and of its rates, times and bounds.

use super::{
    Callers, Experiment, IpVersions, PaceKind, Registrations, StreamLoad, SutMedia, Thresholds,
};
use crate::subject::{self, SubjectPlace};

/// Most media nodes beside the border.
const MAX_NODES: u8 = 16;
/// Longest time of a setting: ten days, seconds.
const MAX_SECONDS: f64 = 864_000.0;
/// Highest rate of a workload, attempts per second: of a mistyped one, all attempts would be due at the same time.
const MAX_RATE: f64 = 1e6;
/// Most streams: each has two ports at the receiver, from 31,000 on in virtual time.
const MAX_STREAMS: u64 = 17_000;
/// Least share of a core that the border may have, percent: below it a datagram takes more than 4 ms.
const LEAST_CPU_PERCENT: f64 = 0.1;

/// Checks media nodes.
pub(super) fn check_nodes(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    if sut.media_nodes > MAX_NODES || sut.media_nodes_drained > sut.media_nodes {
        return Err(format!(
            "sut.media_nodes = {}, sut.media_nodes_drained = {}: at most {MAX_NODES} nodes, and at most as many drained",
            sut.media_nodes, sut.media_nodes_drained
        ));
    }
    let others = sut.is_external()
        || sut.direct
        || sut.media == SutMedia::Bypass
        || experiment.conference.is_some()
        || sut.ip != IpVersions::Ipv4;
    if sut.media_nodes > 0 && others {
        return Err(
            "sut.media_nodes needs the built-in border with IPv4, anchored media and no conference"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks the kernel relay, which needs namespaces that only trials of calls and registrations set up.
pub(super) fn check_kernel_relay(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    let others = sut.is_external()
        || sut.direct
        || sut.media_nodes > 0
        || experiment.conference.is_some()
        || experiment.streams.is_some()
        || experiment.phone.is_some();
    if sut.media == SutMedia::KernelRelay && others {
        return Err(
            "sut.media = \"kernel_relay\" needs the built-in border, without media nodes, [conference], [streams] and [phone]"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks a subject, which trials of calls and registrations start on this machine.
pub(super) fn check_subject(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    if sut.agent().is_some() == sut.agent_token_file.is_empty() {
        return Err(
            "sut.agent_token_file names the token for a subject at an agent (sut.subject = \"NAME@ADDRESS:PORT\"): set both or none"
                .to_owned(),
        );
    }
    if sut.agent().is_none() && !sut.agent_ca_file.is_empty() {
        return Err(
            "sut.agent_ca_file needs a subject at an agent (sut.subject = \"NAME@ADDRESS:PORT\")"
                .to_owned(),
        );
    }
    if sut.subject.is_empty() {
        return Ok(());
    }
    match subject::place(&sut.subject).map_err(|error| error.to_string())? {
        SubjectPlace::Here(_) | SubjectPlace::Agent(..) => {}
        SubjectPlace::Address(address) => {
            return Err(format!(
                "sut.subject = \"{address}\": an address is set with sut.address"
            ));
        }
    }
    if sut.address.is_some() {
        return Err("sut.subject and sut.address exclude each other".to_owned());
    }
    let of_our_border = [
        ("workers", sut.workers > 0),
        ("header_rules", sut.header_rules > 0),
        ("call_limit_per_second", sut.call_limit_per_second > 0),
        ("memory_mib", sut.memory_mib > 0),
        ("refresh_interval_seconds", sut.refresh_interval_seconds > 0),
        ("cpu_percent", sut.cpu_percent > 0.0),
        ("cpu", sut.cpu.is_some()),
        ("process_id", sut.process_id.is_some()),
    ];
    if let Some((key, _)) = of_our_border.into_iter().find(|(_, set)| *set) {
        return Err(format!(
            "sut.{key} does not apply to a subject (sut.subject): remove it with --set sut.{key}="
        ));
    }
    let others = experiment.conference.is_some()
        || experiment.streams.is_some()
        || experiment.phone.is_some()
        || experiment.esp.is_some();
    if others {
        return Err(
            "sut.subject takes calls and registrations: [conference], [streams], [phone] and [esp] do not use it"
                .to_owned(),
        );
    }
    if experiment.uses_tls() || experiment.uses_websockets() {
        return Err(
            "sut.subject is called over UDP or TCP; for TLS and WebSocket start the system yourself and name its address (sut.address)"
                .to_owned(),
        );
    }
    Ok(())
}

/// The rate of a workload, with its table for errors.
struct WorkloadRate {
    table: &'static str,
    pace: PaceKind,
    rate: f64,
    /// End and length of a ramp.
    ramp: [f64; 2],
}

impl WorkloadRate {
    fn check(&self) -> Result<(), String> {
        let WorkloadRate {
            table, pace, rate, ..
        } = self;
        let [to, seconds] = self.ramp;
        if *pace != PaceKind::Ramp {
            return match *rate > 0.0 && *rate <= MAX_RATE {
                true => Ok(()),
                false => Err(format!(
                    "{table}.rate = {rate}: expected more than 0, at most {MAX_RATE}"
                )),
            };
        }
        for (key, value, most) in [
            ("rate", *rate, MAX_RATE),
            ("ramp_to", to, MAX_RATE),
            ("ramp_seconds", seconds, MAX_SECONDS),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(format!("{table}.{key} = {value}: expected 0 to {most}"));
            }
        }
        // A ramp may begin or end at 0, but not both.
        match to > 0.0 || (*rate > 0.0 && seconds > 0.0) {
            true => Ok(()),
            false => Err(format!(
                "{table}.rate = {rate}, ramp_to = {to}, ramp_seconds = {seconds}: no attempt would be due: set {table}.ramp_to"
            )),
        }
    }
}

/// Checks rates, times, bounds, and values of the sweep.
pub(super) fn check_numbers(experiment: &Experiment) -> Result<(), String> {
    check_rates(experiment)?;
    check_times(experiment)?;
    check_bounds(&experiment.thresholds)?;
    let cpu = experiment.sut.cpu_percent;
    if cpu != 0.0 && !(LEAST_CPU_PERCENT..=100.0).contains(&cpu) {
        return Err(format!(
            "sut.cpu_percent = {cpu}: expected {LEAST_CPU_PERCENT} to 100, or 0 for all of a core"
        ));
    }
    if let Some(streams) = &experiment.streams
        && !(1..=MAX_STREAMS).contains(&streams.count)
    {
        return Err(format!(
            "streams.count = {}: expected 1 to {MAX_STREAMS}",
            streams.count
        ));
    }
    let mut levels = experiment.levels.iter().flat_map(|levels| &levels.values);
    match levels.find(|value| !value.is_finite()) {
        Some(value) => Err(format!("levels.values: {value} is no level")),
        None => Ok(()),
    }
}

/// Checks times: of one that is below 0 or no number there would be nothing, and an endless one would not end.
fn check_times(experiment: &Experiment) -> Result<(), String> {
    let mut times = vec![("settle_seconds", experiment.settle_seconds)];
    if let Some(plan) = &experiment.callers {
        times.extend([
            ("callers.duration_seconds", plan.duration_seconds),
            ("callers.hold_seconds", plan.hold_seconds),
            ("callers.ring_seconds", plan.ring_seconds),
            ("callers.reserve_ms", plan.reserve_ms),
        ]);
    }
    if let Some(plan) = &experiment.callees {
        times.extend([
            ("callees.ring_ms", plan.ring_ms),
            ("callees.answer_ms", plan.answer_ms),
            ("callees.reserve_ms", plan.reserve_ms),
        ]);
    }
    if let Some(plan) = &experiment.registrations {
        times.push(("registrations.refresh_seconds", plan.refresh_seconds));
    }
    if let Some(plan) = &experiment.streams {
        times.push(("streams.duration_seconds", plan.duration_seconds));
    }
    if let Some(plan) = &experiment.conference {
        times.extend([
            ("conference.warm_up_seconds", plan.warm_up_seconds),
            ("conference.duration_seconds", plan.duration_seconds),
        ]);
    }
    let most = |key: &str| match key.ends_with("_ms") {
        true => MAX_SECONDS * 1e3,
        false => MAX_SECONDS,
    };
    let mut times = times.into_iter();
    match times.find(|(key, value)| !(0.0..=most(key)).contains(value)) {
        Some((key, value)) => Err(format!("{key} = {value}: expected 0 to {}", most(key))),
        None => Ok(()),
    }
}

/// Checks pass criteria: one that is no number would never hold, and an endless one always.
fn check_bounds(thresholds: &Thresholds) -> Result<(), String> {
    let bounds = [
        ("failed_percent", thresholds.failed_percent),
        ("not_started_percent", thresholds.not_started_percent),
        ("response_p50_ms", thresholds.response_p50_ms),
        ("response_p99_ms", thresholds.response_p99_ms),
        ("lost_percent", thresholds.lost_percent),
        ("jitter_p99_ms", thresholds.jitter_p99_ms),
        (
            "jitter_mean_above_noise_ms",
            thresholds.jitter_mean_above_noise_ms,
        ),
        (
            "jitter_p99_above_noise_ms",
            thresholds.jitter_p99_above_noise_ms,
        ),
        ("host_cpu_percent", thresholds.host_cpu_percent),
        ("relay_p50_ms", thresholds.relay_p50_ms),
        ("relay_p99_ms", thresholds.relay_p99_ms),
        ("one_way_ms", thresholds.one_way_ms),
        ("round_trip_ms", thresholds.round_trip_ms),
        ("mos", thresholds.mos),
        ("correlation", thresholds.correlation),
        ("lateness_p99_ms", thresholds.lateness_p99_ms),
    ];
    for (key, bound) in bounds {
        if let Some(bound) = bound.filter(|bound| !(bound.is_finite() && *bound >= 0.0)) {
            return Err(format!("thresholds.{key} = {bound}: expected 0 or more"));
        }
    }
    for figure in &thresholds.figure {
        let ends = [("least", figure.least), ("most", figure.most)];
        for (key, end) in ends {
            if let Some(end) = end.filter(|end| !end.is_finite()) {
                let name = &figure.name;
                return Err(format!(
                    "thresholds.figure {name:?}: {key} = {end}: expected a number"
                ));
            }
        }
    }
    Ok(())
}

/// Checks the rates of calls, registrations and streams: without any attempt a trial would measure nothing.
fn check_rates(experiment: &Experiment) -> Result<(), String> {
    let calls = |plan: &Callers| WorkloadRate {
        table: "callers",
        pace: plan.pace,
        rate: plan.rate,
        ramp: [plan.ramp_to, plan.ramp_seconds],
    };
    let registrations = |plan: &Registrations| WorkloadRate {
        table: "registrations",
        pace: plan.pace,
        rate: plan.rate,
        ramp: [plan.ramp_to, plan.ramp_seconds],
    };
    let streams = |plan: &StreamLoad| WorkloadRate {
        table: "streams",
        pace: PaceKind::Constant,
        rate: plan.rate,
        ramp: [0.0; 2],
    };
    let all = [
        experiment.callers.as_ref().map(calls),
        experiment.registrations.as_ref().map(registrations),
        experiment.streams.as_ref().map(streams),
    ];
    all.iter().flatten().try_for_each(WorkloadRate::check)?;
    let refresh = experiment.registrations.as_ref();
    let others = [
        (
            "registrations.refresh_rate",
            refresh.map(|plan| plan.refresh_rate),
        ),
        (
            "conference.rate",
            experiment.conference.as_ref().map(|plan| plan.rate),
        ),
    ];
    match others
        .iter()
        .find(|(_, rate)| rate.is_some_and(|rate| rate > MAX_RATE))
    {
        Some((key, rate)) => Err(format!(
            "{key} = {}: expected at most {MAX_RATE}",
            rate.unwrap_or_default()
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{File, built_in};

    #[test]
    fn rates_without_any_attempt_are_refused() {
        let parse = |name: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
            File::parse_with(name, built_in(name).unwrap(), &sets)
                .map_err(|error| error.to_string())
        };
        for (name, set, words) in [
            (
                "standing-call-capacity",
                "callers.rate=0",
                "callers.rate = 0: expected more than 0",
            ),
            (
                "standing-call-capacity",
                "callers.rate=-5",
                "callers.rate = -5: expected more than 0",
            ),
            ("media-nodes", "callers.rate=nan", "callers.rate = NaN"),
            ("media-nodes", "callers.rate=inf", "callers.rate = inf"),
            (
                "media-nodes",
                "callers.rate=1e300",
                "expected more than 0, at most 1000000",
            ),
            (
                "conference-jitter",
                "conference.rate=1e9",
                "conference.rate = 1000000000: expected at most 1000000",
            ),
            (
                "small-network",
                "registrations.rate=0",
                "registrations.rate = 0",
            ),
            ("rtp-streams", "streams.rate=0", "streams.rate = 0"),
        ] {
            let error = parse(name, &[set]).unwrap_err();
            assert!(error.contains(words), "{set}: {error}");
        }
        let ramp = |sets: &[&str]| {
            let sets = [sets, &["callers.pace=ramp"]].concat();
            parse("small-network", &sets)
        };
        let rising = [
            "callers.rate=0",
            "callers.ramp_to=5",
            "callers.ramp_seconds=2",
        ];
        let falling = [
            "callers.rate=5",
            "callers.ramp_to=0",
            "callers.ramp_seconds=2",
        ];
        assert!(ramp(&rising).is_ok() && ramp(&falling).is_ok());
        for (sets, words) in [
            (
                ["callers.rate=0", "callers.ramp_to=0"],
                "no attempt would be due",
            ),
            (
                ["callers.rate=-1", "callers.ramp_to=5"],
                "callers.rate = -1",
            ),
            (
                ["callers.rate=1", "callers.ramp_to=-5"],
                "callers.ramp_to = -5",
            ),
            (
                ["callers.rate=1", "callers.ramp_to=1e12"],
                "expected 0 to 1000000",
            ),
        ] {
            let error = ramp(&sets).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn times_and_bounds_that_are_no_numbers_are_refused() {
        let parse = |name: &str, set: &str| {
            File::parse_with(name, built_in(name).unwrap(), &[set.to_owned()])
                .map_err(|error| error.to_string())
        };
        for (name, set, words) in [
            (
                "call-rate",
                "callers.hold_seconds=-5",
                "expected 0 to 864000",
            ),
            (
                "call-rate",
                "callers.hold_seconds=nan",
                "hold_seconds = NaN",
            ),
            ("call-rate", "callers.duration_seconds=inf", "= inf"),
            (
                "call-rate",
                "settle_seconds=1e9",
                "settle_seconds = 1000000000",
            ),
            ("call-rate", "callees.ring_ms=-1", "callees.ring_ms = -1"),
            (
                "call-rate",
                "callees.answer_ms=inf",
                "expected 0 to 864000000",
            ),
            ("rtp-streams", "streams.duration_seconds=-1", "= -1"),
            (
                "conference-jitter",
                "conference.warm_up_seconds=1e300",
                "expected 0 to 864000",
            ),
            (
                "rtp-streams",
                "levels.values=[0]",
                "streams.count = 0: expected 1 to 17000",
            ),
            (
                "rtp-streams",
                "levels.values=[20000]",
                "expected 1 to 17000",
            ),
            ("overload", "sut.cpu_percent=1e-300", "sut.cpu_percent ="),
            ("overload", "sut.cpu_percent=-4", "sut.cpu_percent = -4"),
            ("overload", "sut.cpu_percent=nan", "expected 0.1 to 100"),
            (
                "call-rate",
                "thresholds.response_p99_ms=nan",
                "expected 0 or more",
            ),
            (
                "call-rate",
                "thresholds.failed_percent=inf",
                "failed_percent = inf",
            ),
            (
                "call-rate",
                "levels.values=[100, inf]",
                "levels.values: inf is no level",
            ),
            (
                "isolation",
                "thresholds.figure=[{ name = \"lost_percent\", at = 1, most = nan }]",
                "most = NaN: expected a number",
            ),
        ] {
            let error = parse(name, set).map(|_| ()).unwrap_err();
            assert!(error.contains(words), "{set}: {error}");
        }
        assert!(parse("call-rate", "callers.hold_seconds=0").is_ok());
    }
}
