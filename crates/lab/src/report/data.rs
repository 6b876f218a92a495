//! Raw results sorted into levels, and what is counted over one level or one trial.

use crate::error::LabError;
use crate::figures::{self, Details, Figures, quantile};
use crate::planes::Planes;
use crate::raw::{RawResults, TrialRecord};
use crate::record::{Attempt, Kind, Outcome, StreamRecord};
use std::collections::BTreeMap;
use std::path::Path;

/// The results of a run, in the order of the levels.
#[derive(Debug)]
pub(super) struct Results {
    /// The records; trials, attempts and streams in order of their levels.
    pub raw: RawResults,
    /// Of each trial, in the same order: the ends of its attempts and of its streams.
    ends: Vec<(usize, usize)>,
}

impl Results {
    /// Reads `dir`.
    ///
    /// # Errors
    /// Where a file is missing or broken, or a record belongs to no trial.
    pub fn read(dir: &Path) -> Result<Results, LabError> {
        let RawResults {
            mut run,
            mut attempts,
            mut streams,
        } = RawResults::read(dir)?;
        let mut values: Vec<Option<u64>> = Vec::new();
        for trial in &run.trials {
            let value = trial.level.map(f64::to_bits);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let level_of = |trial: &TrialRecord| {
            let value = trial.level.map(f64::to_bits);
            values.iter().position(|known| *known == value)
        };
        run.trials.sort_by_key(level_of);
        let mut ranks = BTreeMap::new();
        for (rank, trial) in run.trials.iter().enumerate() {
            if ranks.insert(trial.trial, rank).is_some() {
                let path = dir.join("run.json");
                let text = format!("{}: trial {} stands twice", path.display(), trial.trial);
                return Err(LabError::bad(text));
            }
        }
        let rank = |trial: u32| ranks.get(&trial).copied().unwrap_or(usize::MAX);
        check_trials(
            dir,
            "attempts.ndjson",
            attempts.iter().map(|a| a.trial),
            &ranks,
        )?;
        check_trials(
            dir,
            "streams.ndjson",
            streams.iter().map(|s| s.trial),
            &ranks,
        )?;
        attempts.sort_by_key(|attempt| rank(attempt.trial));
        streams.sort_by_key(|stream| rank(stream.trial));
        let ends = (0..run.trials.len())
            .map(|place| {
                (
                    attempts.partition_point(|attempt| rank(attempt.trial) <= place),
                    streams.partition_point(|stream| rank(stream.trial) <= place),
                )
            })
            .collect();
        Ok(Results {
            raw: RawResults {
                run,
                attempts,
                streams,
            },
            ends,
        })
    }

    /// The trials `from` to before `to`, together.
    fn part(&self, from: usize, to: usize) -> Part<'_> {
        let end = |place: usize| match place.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or_default(),
            None => (0, 0),
        };
        let (first, last) = (end(from), end(to));
        Part {
            trials: self.raw.run.trials.get(from..to).unwrap_or_default(),
            attempts: self.raw.attempts.get(first.0..last.0).unwrap_or_default(),
            streams: self.raw.streams.get(first.1..last.1).unwrap_or_default(),
        }
    }

    /// The levels, in the order in which they were run.
    pub fn levels(&self) -> Vec<Level<'_>> {
        let mut levels: Vec<Level<'_>> = Vec::new();
        let mut from = 0;
        for group in self
            .raw
            .run
            .trials
            .chunk_by(|a, b| a.level.map(f64::to_bits) == b.level.map(f64::to_bits))
        {
            let to = from + group.len();
            levels.push(Level {
                value: group.first().and_then(|trial| trial.level),
                all: self.part(from, to),
                trials: (from..to)
                    .map(|place| self.part(place, place + 1))
                    .collect(),
            });
            from = to;
        }
        levels
    }

    /// Which kinds of attempts there are.
    pub fn groups(&self) -> Vec<Group> {
        let there = |group: &Group| self.raw.attempts.iter().any(|a| group.holds(a.kind));
        Group::ALL.into_iter().filter(there).collect()
    }
}

fn check_trials(
    dir: &Path,
    file: &str,
    trials: impl Iterator<Item = u32>,
    known: &BTreeMap<u32, usize>,
) -> Result<(), LabError> {
    for (line, trial) in trials.enumerate() {
        if !known.contains_key(&trial) {
            return Err(LabError::bad(format!(
                "{}:{}: trial {trial} is not in run.json",
                dir.join(file).display(),
                line + 1
            )));
        }
    }
    Ok(())
}

/// A level of the sweep.
#[derive(Debug)]
pub(super) struct Level<'a> {
    /// Value of the sweep.
    pub value: Option<f64>,
    /// All its trials together.
    pub all: Part<'a>,
    /// Each trial.
    pub trials: Vec<Part<'a>>,
}

impl Level<'_> {
    /// The level in words.
    pub fn name(&self) -> String {
        self.value
            .map_or_else(|| "all".to_owned(), |value| value.to_string())
    }

    /// Figures over all trials: quantiles over all their attempts, the peak as the largest of any trial.
    pub fn summary(&self) -> Summary {
        let mut summary = self.all.summary();
        let peaks = self.trials.iter().map(|part| part.compute().1.peak_calls);
        summary.details.peak_calls = peaks.max().unwrap_or(0);
        summary
    }
}

/// One trial, or some together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// What `run.json` says of them.
    pub trials: &'a [TrialRecord],
    /// Their attempts.
    pub attempts: &'a [Attempt],
    /// Their streams.
    pub streams: &'a [StreamRecord],
}

impl Part<'_> {
    fn compute(&self) -> (Figures, Details) {
        let cpu = self
            .trials
            .iter()
            .map(|trial| trial.surroundings.as_ref()?.subject_cpu_seconds)
            .sum::<Option<f64>>()
            .filter(|_| !self.trials.is_empty());
        figures::compute(self.attempts, self.streams, cpu)
    }

    fn mean(&self, read: fn(&Planes) -> Option<f64>) -> Option<f64> {
        let planes = self.trials.iter().map(|trial| &trial.details.planes);
        let values: Vec<f64> = planes.filter_map(read).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Figures of the part as if it were one trial.
    pub fn summary(&self) -> Summary {
        let (figures, mut details) = self.compute();
        // The samples of CPU time are not among the records: the trials' own divisions stand.
        details.planes.signalling_us_per_call = self.mean(|planes| planes.signalling_us_per_call);
        details.planes.media_us_per_packet = self.mean(|planes| planes.media_us_per_packet);
        Summary {
            figures,
            details,
            tallies: Group::ALL.map(|group| Tally::of(group, self.attempts)),
            receive_buffer_errors: self
                .trials
                .iter()
                .map(|trial| trial.surroundings.as_ref().map(receive_buffer_errors))
                .sum::<Option<u64>>()
                .filter(|_| !self.trials.is_empty()),
        }
    }
}

/// What the kernel dropped during the trial, datagrams.
pub(super) fn receive_buffer_errors(around: &crate::raw::Surroundings) -> u64 {
    around
        .receive_buffer_errors_after
        .saturating_sub(around.receive_buffer_errors_before)
}

/// What is counted.
#[derive(Debug)]
pub(super) struct Summary {
    /// Figures as in `run.json`.
    pub figures: Figures,
    /// Further ones.
    pub details: Details,
    /// Attempts, by [`Group::ALL`].
    pub tallies: [Tally; 3],
    /// Datagrams dropped by the kernel; `None` in a simulation.
    pub receive_buffer_errors: Option<u64>,
}

impl Summary {
    /// Calls; where there are none, registrations.
    pub fn main(&self) -> &Tally {
        let [calls, registrations, _] = &self.tallies;
        if calls.attempted > 0 {
            calls
        } else {
            registrations
        }
    }

    /// The attempts of a group.
    pub fn tally(&self, group: Group) -> &Tally {
        let [calls, registrations, streams] = &self.tallies;
        match group {
            Group::Calls => calls,
            Group::Registrations => registrations,
            Group::Streams => streams,
        }
    }
}

/// Kinds of attempts that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Calls as their callers saw them.
    Calls,
    /// First registrations, refreshes and removals.
    Registrations,
    /// Streams without signalling.
    Streams,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 3] = [Group::Calls, Group::Registrations, Group::Streams];

    /// In headings and names of columns.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Calls => "calls",
            Group::Registrations => "registrations",
            Group::Streams => "streams",
        }
    }

    /// Whether an attempt of this kind is counted here.
    pub fn holds(self, kind: Kind) -> bool {
        match kind {
            Kind::Call => self == Group::Calls,
            Kind::Registration | Kind::Refresh | Kind::Reregistration | Kind::Deregistration => {
                self == Group::Registrations
            }
            Kind::Stream => self == Group::Streams,
            Kind::Answer => false,
        }
    }
}

/// Attempts of a group, counted, with their response times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tally {
    /// Due.
    pub attempted: u64,
    /// Answered with 2xx.
    pub established: u64,
    /// Ended as planned.
    pub completed: u64,
    /// Neither completed nor cancelled as planned.
    pub failed: u64,
    /// Never left the generator; they are among the failed.
    pub not_started: u64,
    /// Response times in rising order, milliseconds.
    pub responses: Vec<f64>,
}

impl Tally {
    fn of(group: Group, attempts: &[Attempt]) -> Tally {
        let mut tally = Tally::default();
        for attempt in attempts.iter().filter(|a| group.holds(a.kind)) {
            tally.attempted += 1;
            tally.established += u64::from(attempt.established.is_some());
            tally.completed += u64::from(attempt.outcome == Outcome::Completed);
            tally.failed += u64::from(!attempt.outcome.is_good());
            tally.not_started += u64::from(!attempt.outcome.was_started());
            tally.responses.extend(attempt.response_ms());
        }
        tally.responses.sort_by(f64::total_cmp);
        tally
    }

    /// Quantile of the response time, milliseconds.
    pub fn response(&self, q: f64) -> Option<f64> {
        quantile(&self.responses, q)
    }

    /// Mean response time, milliseconds.
    pub fn response_mean(&self) -> Option<f64> {
        let count = self.responses.len();
        (count > 0).then(|| self.responses.iter().sum::<f64>() / count as f64)
    }
}
