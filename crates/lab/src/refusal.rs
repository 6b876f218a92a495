//! Trials in which the SUT refused every attempt with one status, or answered none: credentials, a dial plan or the
//! system are missing, and higher loads cannot change that. The run ends with the remedy.

use crate::experiment::Experiment;
use crate::raw::TrialRecord;
use crate::record::AttemptOutcome;

/// Statuses that come and go with the load or with the state of the called side.
const PASSING: [u16; 7] = [408, 482, 486, 487, 491, 600, 603];

/// Every attempt of a trial was refused with the same status, or got no final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UniformRefusal {
    /// 0: no final response.
    status: u16,
    attempts: u64,
}

impl UniformRefusal {
    /// The refusal of a trial at a system that was set up by others; `None` if an attempt had another result, or if the
    /// status is one of overload.
    pub(crate) fn of(experiment: &Experiment, trial: &TrialRecord) -> Option<UniformRefusal> {
        let sut = &experiment.sut;
        if sut.address.is_none() && sut.subject.is_empty() {
            return None;
        }
        let details = &trial.details;
        let started = || {
            let outcomes = details.outcomes.iter();
            outcomes.filter(|(outcome, count)| outcome.was_started() && *count > 0)
        };
        if started().all(|(outcome, _)| *outcome == AttemptOutcome::TimedOut) {
            let attempts = started().map(|(_, count)| count).sum();
            return (attempts > 0).then_some(UniformRefusal {
                status: 0,
                attempts,
            });
        }
        let [(status, attempts)] = details.statuses.as_slice() else {
            return None;
        };
        let (status, attempts) = (*status, *attempts);
        let others = details
            .outcomes
            .iter()
            .any(|(outcome, _)| outcome.was_started() && *outcome != AttemptOutcome::Refused);
        let lasting = matches!(status, 300..500 | 600..700) && !PASSING.contains(&status);
        (lasting && !others).then_some(UniformRefusal { status, attempts })
    }

    /// Whether there was no final response at all.
    pub(crate) fn is_silence(self) -> bool {
        self.status == 0
    }

    /// As a sentence.
    pub(crate) fn text(self) -> String {
        let UniformRefusal { status, attempts } = self;
        match status {
            0 => format!("no attempt ({attempts}) had a final response"),
            _ => format!("every attempt ({attempts}) was refused with {status}"),
        }
    }

    /// The keys that change it.
    pub(crate) fn remedy(self, experiment: &Experiment) -> String {
        let callers = experiment.callers.as_ref();
        let registrations = experiment.registrations.as_ref();
        let table = match (callers, registrations) {
            (None, Some(_)) => "registrations",
            _ => "callers",
        };
        let has_password = match table {
            "callers" => callers.is_some_and(|callers| !callers.user.is_empty()),
            _ => registrations.is_some_and(|users| !users.password.is_empty()),
        };
        let dialled = callers.map_or("", |callers| callers.dial.as_str());
        match self.status {
            0 => "start the system, correct sut.address, or open the firewalls in between".to_owned(),
            401 | 407 if has_password => format!(
                "the system refuses the credentials: correct {table}.user and {table}.password"
            ),
            401 | 407 if table == "callers" => "the system requires credentials: --set callers.user=NAME --set callers.password=PASSWORD --set callers.from=NUMBER, or accept calls from this host without authentication there".to_owned(),
            401 | 407 => "the system requires credentials: --set registrations.user=NAME --set registrations.password=PASSWORD".to_owned(),
            403 if table == "registrations" => "the system does not let these users register: correct registrations.user, or add them there".to_owned(),
            403 => "the system does not permit these calls: allow this host or the caller there (--set callers.from=NUMBER), or give credentials (--set callers.user=NAME --set callers.password=PASSWORD)".to_owned(),
            404 | 410 | 480 | 484 | 604 if table == "callers" => format!(
                "the dial plan of the system leads {dialled} nowhere: add a route from it to the called side of the test lab (callees.address), or call another number (--set callers.dial=NUMBER)"
            ),
            404 => "the system does not know these users or their domain: correct registrations.user, or add them there".to_owned(),
            415 | 488 | 606 => "the system accepts no codec of the offer: --set callers.codec=CODEC, or allow that codec there".to_owned(),
            _ => "the log of the system has the reason".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RunVerdict;
    use crate::experiment::File;
    use crate::figures::{Details, Figures};

    fn refusal(more: &str, outcomes: &[(AttemptOutcome, u64)], statuses: &[(u16, u64)]) -> String {
        let text = format!(
            "name = \"t\"\ntitle = \"t\"\n[sut]\naddress = \"127.0.0.1:5060\"\n[callers]\nrate = 1.0\ntotal = 2\ndial = \"5555\"\n{more}"
        );
        let file = File::parse("t", &text).unwrap();
        let trial = TrialRecord {
            trial: 0,
            level: None,
            repetition: 0,
            seed: 1,
            plan: String::new(),
            seconds: 1.0,
            figures: Figures::default(),
            details: Details {
                outcomes: outcomes.to_vec(),
                statuses: statuses.to_vec(),
                ..Details::default()
            },
            checks: Vec::new(),
            leaks: None,
            verdict: RunVerdict::Failed,
            remarks: Vec::new(),
            short: false,
            surroundings: None,
            digest: None,
            links: Vec::new(),
        };
        UniformRefusal::of(file.experiment(), &trial).map_or(String::new(), |refusal| {
            format!("{}: {}", refusal.text(), refusal.remedy(file.experiment()))
        })
    }

    #[test]
    fn remedies_name_the_keys() {
        let all = [(AttemptOutcome::Refused, 7)];
        for (more, status, words) in [
            ("", 407, "--set callers.user=NAME"),
            (
                "user = \"a\"\npassword = \"b\"\n",
                401,
                "refuses the credentials",
            ),
            ("", 403, "allow this host"),
            ("", 404, "leads 5555 nowhere"),
            ("", 488, "--set callers.codec"),
            ("", 420, "log of the system"),
        ] {
            let shown = refusal(more, &all, &[(status, 7)]);
            assert!(
                shown.starts_with(&format!("every attempt (7) was refused with {status}: "))
                    && shown.contains(words),
                "{shown}"
            );
        }
    }

    #[test]
    fn silence_ends_a_run() {
        use AttemptOutcome::{Completed, TimedOut};
        let shown = refusal("", &[(TimedOut, 7)], &[]);
        assert!(shown.starts_with("no attempt (7) had a final response: start the system"));
        assert_eq!(refusal("", &[(TimedOut, 7), (Completed, 1)], &[]), "");
    }

    #[test]
    fn other_results_and_overload_do_not_end_a_run() {
        use AttemptOutcome::{Completed, LimitReached, Refused, TimedOut};
        assert_ne!(
            refusal("", &[(Refused, 7), (LimitReached, 1)], &[(404, 7)]),
            ""
        );
        for (outcomes, statuses) in [
            (&[(Completed, 1), (Refused, 7)][..], &[(404, 7)][..]),
            (&[(Refused, 7), (TimedOut, 1)], &[(404, 7)]),
            (&[(Refused, 7)], &[(404, 3), (407, 4)]),
            (&[(Refused, 7)], &[(503, 7)]),
            (&[(Refused, 7)], &[(486, 7)]),
            (&[(Completed, 7)], &[]),
        ] {
            assert_eq!(
                refusal("", outcomes, statuses),
                "",
                "{outcomes:?} {statuses:?}"
            );
        }
    }
}
