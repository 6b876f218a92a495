//! What an experiment does, in words: the introduction of a report says what was run, not only what its file is meant for.

use crate::experiment::{Experiment, File, HoldKind, MediaKind, PaceKind, RegistrarPlace};
use crate::report::plain;

/// The workload of a file with its overrides, its levels and repetitions, in sentences.
pub fn words(file: &File) -> String {
    let experiment = file.experiment();
    let mut sentences: Vec<String> = Vec::new();
    let subject = &experiment.subject;
    sentences.push(match (&subject.address, subject.none) {
        (Some(address), _) => format!("System under test: {address}."),
        (None, true) => "Nothing stands between callers and called side.".to_owned(),
        (None, false) => {
            let media = format!("{:?}", subject.media).to_lowercase();
            let mut words = format!("System under test: our border, media {media}");
            if subject.call_limit > 0 {
                words.push_str(&format!(", {} calls/s let in", subject.call_limit));
            }
            if subject.memory_mib > 0 {
                words.push_str(&format!(", {} MiB for calls", subject.memory_mib));
            }
            if subject.nodes > 0 {
                words.push_str(&format!(" by {} media nodes", subject.nodes));
            }
            if subject.nodes_drained > 0 {
                words.push_str(&format!(", {} of them drained", subject.nodes_drained));
            }
            if subject.processor_percent > 0.0 {
                words.push_str(&format!(
                    ", {} % of a core",
                    plain(subject.processor_percent)
                ));
            }
            words.push('.');
            words
        }
    });
    sentences.extend(calls(experiment));
    sentences.extend(registrations(experiment));
    if let Some(streams) = &experiment.streams {
        sentences.push(format!(
            "{} streams of {} for {} s.",
            streams.count,
            streams.codec.format(false).kind().name(),
            plain(streams.seconds)
        ));
    }
    if let Some(plan) = &experiment.conference {
        sentences.push(format!(
            "{} conferences of {} in {} at each of {} instances, counted for {} s.",
            plan.rooms,
            plan.seats,
            plan.codec.format(false).kind().name(),
            plan.instances,
            plain(plan.seconds)
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
    let many = match (callers.total, callers.seconds > 0.0) {
        (0, _) => format!("for {} s", plain(callers.seconds)),
        (total, false) => format!("{total} in all"),
        (total, true) => format!("{total} in all, for {} s at most", plain(callers.seconds)),
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
        0 => "each from a number of its own".to_owned(),
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
    let place = match plan.at {
        RegistrarPlace::Border => "kept by the subject",
        RegistrarPlace::Core => "passed on to a registrar behind it",
    };
    let connections = match plan.transport {
        crate::experiment::TransportName::Udp => String::new(),
        _ if plan.connections == 0 => " on a connection each as far as descriptors go".to_owned(),
        _ => format!(" on {} connections", plan.connections),
    };
    let again = match plan.refresh_rate > 0.0 {
        true => format!(
            ", then {} re-registrations of each at {}/s",
            plan.refreshes,
            plain(plan.refresh_rate)
        ),
        false => String::new(),
    };
    Some(format!(
        "{} users register over {transport}{connections} at {}/s {digest}, {place}{again}.",
        plan.users,
        plain(plan.rate)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{BUILT_IN, built_in};

    #[test]
    fn what_was_changed_is_what_is_told() {
        let sets = [
            "callers.hold_seconds=2.5",
            "levels.values=[7, 9]",
            "subject.call_limit=5",
        ];
        let sets = sets.map(str::to_owned);
        let file = File::parse_with("x", built_in("shielding").unwrap(), &sets).unwrap();
        let words = words(&file);
        for part in [
            "held 2.5 s",
            "calls per second: 7, 9.",
            "5 calls/s let in",
            "run once",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("400"), "{words}");
    }

    #[test]
    fn every_built_in_experiment_is_told() {
        for (name, text) in BUILT_IN {
            let file = File::parse(name, text).unwrap();
            assert!(words(&file).len() > 60, "{name}");
        }
    }
}
