//! Description of an experiment in sentences: the introduction of a report states the actual workload, with overrides.

use crate::decimal::plain;
use crate::experiment::{Experiment, File, HoldKind, MediaKind, PaceKind, RegistrarLocation};

/// The workload of a file with its overrides, its levels and repetitions, in sentences.
pub fn description(file: &File) -> String {
    let experiment = file.experiment();
    let mut sentences: Vec<String> = Vec::new();
    let sut = &experiment.sut;
    sentences.push(match (&sut.address, sut.direct) {
        _ if experiment.esp.is_some() => "No calls and no border.".to_owned(),
        _ if !sut.subject.is_empty() => format!("System under test: the subject {}.", sut.subject),
        (Some(address), _) => format!("System under test: {address}."),
        (None, true) => "Callers and called side exchange messages directly.".to_owned(),
        (None, false) => {
            let media = format!("{:?}", sut.media).to_lowercase();
            let mut border = format!("System under test: Hornwork, media {media}");
            if sut.call_limit_per_second > 0 {
                border.push_str(&format!(", at most {} calls/s", sut.call_limit_per_second));
            }
            if sut.memory_mib > 0 {
                border.push_str(&format!(", {} MiB for calls", sut.memory_mib));
            }
            if sut.refresh_interval_seconds > 0 {
                let interval = sut.refresh_interval_seconds;
                border.push_str(&format!(", refreshes passed on every {interval} s"));
            }
            if sut.media_nodes > 0 {
                border.push_str(&format!(" by {} media nodes", sut.media_nodes));
            }
            if sut.media_nodes_drained > 0 {
                border.push_str(&format!(", {} of them drained", sut.media_nodes_drained));
            }
            if sut.cpu_percent > 0.0 {
                border.push_str(&format!(", {} % of a core", plain(sut.cpu_percent)));
            }
            border.push('.');
            border
        }
    });
    sentences.extend(calls(experiment));
    sentences.extend(registrations(experiment));
    if let Some(streams) = &experiment.streams {
        sentences.push(format!(
            "{} streams of {} for {} s.",
            streams.count,
            streams.codec.format(false).kind().name(),
            plain(streams.duration_seconds)
        ));
    }
    if let Some(plan) = &experiment.conference {
        sentences.push(format!(
            "{} conferences of {} in {} at each of {} instances, measured for {} s.",
            plan.count,
            plan.participants,
            plan.codec.format(false).kind().name(),
            plan.instances,
            plain(plan.duration_seconds)
        ));
    }
    if let Some(plan) = &experiment.phone {
        sentences.push(format!(
            "A telephone program calls a receiver, whose kernel times its packets for {} s; {} streams load the machine.",
            plain(plan.duration_seconds),
            plan.load_streams
        ));
    }
    if let Some(protection) = experiment.protection.as_ref() {
        sentences.push(format!(
            "Between callers and border: {}.",
            protection.name()
        ));
    }
    if let Some(plan) = &experiment.esp {
        sentences.push(format!(
            "Packets of {} ms of G.711 in ESP with {}, {} rounds of {} packets of each case.",
            plan.packet_ms,
            plan.suites.join(", "),
            plan.rounds,
            plan.packets
        ));
    }
    if let Some(levels) = &experiment.levels {
        let values = file.levels().unwrap_or_default();
        let values: Vec<String> = values.iter().filter_map(|l| l.value).map(plain).collect();
        sentences.push(format!(
            "The levels set {}: {}.",
            levels.label,
            values.join(", ")
        ));
    }
    sentences.push(match experiment.repeat {
        1 => "Each level is run once.".to_owned(),
        times => format!("Each level is run {times} times."),
    });
    sentences.join(" ")
}

fn calls(experiment: &Experiment) -> Option<String> {
    let callers = experiment.callers.as_ref()?;
    let pace = match callers.pace {
        PaceKind::Constant => String::new(),
        PaceKind::Poisson => " as a Poisson process".to_owned(),
        PaceKind::Ramp => format!(
            " rising to {} within {} s",
            plain(callers.ramp_to),
            plain(callers.ramp_seconds)
        ),
    };
    let many = match (callers.total, callers.duration_seconds > 0.0) {
        (0, _) => format!("for {} s", plain(callers.duration_seconds)),
        (total, false) => format!("{total} in all"),
        (total, true) => format!(
            "{total} in all, for {} s at most",
            plain(callers.duration_seconds)
        ),
    };
    let hold = match callers.hold {
        HoldKind::Fixed => String::new(),
        HoldKind::Exponential => " on average".to_owned(),
    };
    let media = match callers.media {
        MediaKind::None => "no media packets".to_owned(),
        _ => format!(
            "{}{} both ways",
            callers.codec.format(false).kind().name(),
            if callers.srtp {
                " with SRTP of the callers"
            } else {
                ""
            }
        ),
    };
    let pool = match callers.users {
        0 => "each from its own number".to_owned(),
        users => format!("from a pool of {users} numbers"),
    };
    let transport = engine::Transport::from(callers.transport).via_name();
    let flow = format!("{:?}", callers.flow).to_lowercase();
    Some(format!(
        "Calls over {transport} ({flow} flow) at {}/s{pace}, {many}, held {} s{hold}, {pool}, {media}.",
        plain(callers.rate),
        plain(callers.hold_seconds)
    ))
}

fn registrations(experiment: &Experiment) -> Option<String> {
    let plan = experiment.registrations.as_ref()?;
    let transport = engine::Transport::from(plan.transport).via_name();
    let digest = match plan.password.is_empty() {
        true => "without authentication",
        false => "with digest",
    };
    let location = match plan.registrar {
        RegistrarLocation::Border => "to the SUT",
        RegistrarLocation::Core => "passed on to a registrar behind the SUT",
    };
    let connections = match plan.transport {
        crate::experiment::TransportName::Udp => String::new(),
        _ if plan.connections == 0 => {
            " on one connection each, within the limit of file descriptors".to_owned()
        }
        _ => format!(" on {} connections", plan.connections),
    };
    let refreshes = match plan.refresh_rate > 0.0 {
        true => format!(
            ", then {} re-registrations of each at {}/s",
            plan.refreshes,
            plain(plan.refresh_rate)
        ),
        false => String::new(),
    };
    Some(format!(
        "{} users register over {transport}{connections} at {}/s {digest}, {location}{refreshes}.",
        plan.users,
        plain(plan.rate)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{BUILT_IN, built_in};

    #[test]
    fn description_contains_overrides() {
        let sets = [
            "callers.hold_seconds=2.5",
            "levels.values=[7, 9]",
            "sut.call_limit_per_second=5",
        ];
        let sets = sets.map(str::to_owned);
        let file = File::parse_with("x", built_in("shielding").unwrap(), &sets).unwrap();
        let description = description(&file);
        for part in [
            "held 2.5 s",
            "calls per second: 7, 9.",
            "at most 5 calls/s",
            "run once",
        ] {
            assert!(description.contains(part), "{part}: {description}");
        }
        assert!(!description.contains("400"), "{description}");
    }

    #[test]
    fn every_built_in_experiment_has_a_description() {
        for (name, text) in BUILT_IN {
            let file = File::parse(name, text).unwrap();
            assert!(description(&file).len() > 60, "{name}");
        }
    }
}
