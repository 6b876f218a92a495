//! Raw results sorted by level, and the counts over one level or one trial.

use super::level_summary::LoadFault;
use crate::error::LabError;
use crate::figures::{self, Details, Figures};
use crate::measure::{self, MeasureRecord, MeasuredCase};
use crate::planes::Planes;
use crate::raw::{RawResults, TrialRecord};
use crate::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
use crate::statistics::quantile;
use std::collections::BTreeMap;
use std::path::Path;

/// The results of a run, in the order of the levels.
#[derive(Debug)]
pub(super) struct RunResults {
    /// The records; trials, attempts and streams in order of their levels.
    pub raw: RawResults,
    /// For each trial, in the same order, the end indices of its attempts and of its streams.
    ends: Vec<(usize, usize)>,
    /// For each trial, in the same order, its place in `run.json`.
    places: Vec<usize>,
    /// For each attempt, in the same order, its line in `attempts.ndjson`, from 1.
    attempt_lines: Vec<usize>,
    /// For each stream, in the same order, its line in `streams.ndjson`, from 1.
    stream_lines: Vec<usize>,
}

/// Sorts records by their trial's rank, each with its line in the file, from 1.
fn sort_with_lines<T>(records: Vec<T>, rank: impl Fn(&T) -> usize) -> (Vec<T>, Vec<usize>) {
    let mut numbered: Vec<(T, usize)> = records.into_iter().zip(1..).collect();
    numbered.sort_by_key(|(record, _)| rank(record));
    numbered.into_iter().unzip()
}

/// Level of a trial, for sorting; a short trial has none that counts.
fn level_key(trial: &TrialRecord) -> (bool, Option<u64>) {
    (trial.short, trial.level.map(f64::to_bits))
}

impl RunResults {
    /// Reads `dir`.
    ///
    /// # Errors
    /// If a file is missing or broken, or a record belongs to no trial.
    pub fn read(dir: &Path) -> Result<RunResults, LabError> {
        let RawResults {
            mut run,
            attempts,
            streams,
            measures,
        } = RawResults::read(dir)?;
        // Short trials of a search belong to no level: they are the last.
        let mut values: Vec<(bool, Option<u64>)> = Vec::new();
        let mut by_length: Vec<&TrialRecord> = run.trials.iter().collect();
        by_length.sort_by_key(|trial| trial.short);
        for trial in by_length {
            let value = level_key(trial);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let level_of = |trial: &TrialRecord| {
            let value = level_key(trial);
            values.iter().position(|known| *known == value)
        };
        let mut placed: Vec<(TrialRecord, usize)> = run.trials.drain(..).zip(0..).collect();
        // Trials without the planned load are the last of their level, which leaves them out.
        placed.sort_by_key(|(trial, _)| (level_of(trial), trial.is_load_invalid()));
        let places;
        (run.trials, places) = placed.into_iter().unzip();
        let mut ranks = BTreeMap::new();
        for (rank, trial) in run.trials.iter().enumerate() {
            if ranks.insert(trial.trial, rank).is_some() {
                let path = dir.join("run.json");
                let text = format!("{}: trial {} occurs twice", path.display(), trial.trial);
                return Err(LabError::bad_input(text));
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
        check_trials(
            dir,
            "measures.ndjson",
            measures.iter().map(|m| m.trial),
            &ranks,
        )?;
        let (attempts, attempt_lines) = sort_with_lines(attempts, |attempt| rank(attempt.trial));
        let (streams, stream_lines) = sort_with_lines(streams, |stream| rank(stream.trial));
        let ends = (0..run.trials.len())
            .map(|place| {
                (
                    attempts.partition_point(|attempt| rank(attempt.trial) <= place),
                    streams.partition_point(|stream| rank(stream.trial) <= place),
                )
            })
            .collect();
        Ok(RunResults {
            raw: RawResults {
                run,
                attempts,
                streams,
                measures,
            },
            ends,
            places,
            attempt_lines,
            stream_lines,
        })
    }

    /// The place in `run.json` of the trial with this number.
    pub fn place(&self, trial: u32) -> Option<usize> {
        let mut numbered = self.raw.run.trials.iter().zip(&self.places);
        numbered.find_map(|(record, place)| (record.trial == trial).then_some(*place))
    }

    /// The attempts, each with its line in `attempts.ndjson`.
    pub fn numbered_attempts(&self) -> impl Iterator<Item = (&Attempt, usize)> {
        let lines = self.attempt_lines.iter().copied();
        self.raw.attempts.iter().zip(lines)
    }

    /// The streams, each with its line in `streams.ndjson`.
    pub fn numbered_streams(&self) -> impl Iterator<Item = (&StreamRecord, usize)> {
        let lines = self.stream_lines.iter().copied();
        self.raw.streams.iter().zip(lines)
    }

    /// The trials `from..to`, combined.
    fn slice(&self, from: usize, to: usize) -> TrialSlice<'_> {
        let end = |place: usize| match place.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or_default(),
            None => (0, 0),
        };
        let (first, last) = (end(from), end(to));
        TrialSlice {
            trials: self.raw.run.trials.get(from..to).unwrap_or_default(),
            attempts: self.raw.attempts.get(first.0..last.0).unwrap_or_default(),
            streams: self.raw.streams.get(first.1..last.1).unwrap_or_default(),
            places: self.places.get(from..to).unwrap_or_default(),
            attempt_lines: self.attempt_lines.get(first.0..last.0).unwrap_or_default(),
            stream_lines: self.stream_lines.get(first.1..last.1).unwrap_or_default(),
        }
    }

    /// The levels, in the order of execution, without short trials, and without trials that had not the planned load if
    /// there are others.
    pub fn levels(&self) -> Vec<LevelRecords<'_>> {
        let mut levels: Vec<LevelRecords<'_>> = Vec::new();
        let mut from = 0;
        for group in self
            .raw
            .run
            .trials
            .chunk_by(|a, b| level_key(a) == level_key(b))
        {
            let to = from + group.len();
            if group.first().is_some_and(|trial| trial.short) {
                break;
            }
            let fault = LoadFault::of(group.iter().map(TrialRecord::load_fault));
            let counted = match &fault {
                Some(fault) if !fault.is_whole_level() => to - fault.trials,
                _ => to,
            };
            levels.push(LevelRecords {
                value: group.first().and_then(|trial| trial.level),
                fault,
                all: self.slice(from, counted),
                trials: (from..counted)
                    .map(|place| self.slice(place, place + 1))
                    .collect(),
            });
            from = to;
        }
        levels
    }

    /// The figures that the trials of a level measured themselves.
    pub fn measures(&self, level: &LevelRecords<'_>) -> Vec<MeasuredCase> {
        let of_level =
            |record: &&MeasureRecord| level.all.trials.iter().any(|t| t.trial == record.trial);
        measure::summarise(self.raw.measures.iter().filter(of_level))
    }

    /// The kinds of attempts that occur.
    pub fn groups(&self) -> Vec<AttemptGroup> {
        let there = |group: &AttemptGroup| self.raw.attempts.iter().any(|a| group.contains(a.kind));
        AttemptGroup::ALL.into_iter().filter(there).collect()
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
            return Err(LabError::bad_input(format!(
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
pub(super) struct LevelRecords<'a> {
    /// Value of the sweep.
    pub value: Option<f64>,
    /// Its trials without the planned load.
    pub fault: Option<LoadFault>,
    /// All its trials combined.
    pub all: TrialSlice<'a>,
    /// Its single trials.
    pub trials: Vec<TrialSlice<'a>>,
}

impl LevelRecords<'_> {
    /// The level as text.
    pub fn name(&self) -> String {
        self.value
            .map_or_else(|| "all".to_owned(), |value| value.to_string())
    }

    /// Figures over all trials: quantiles over all their attempts, the peak as the largest of any trial.
    pub fn summary(&self) -> TrialSummary {
        let mut summary = self.all.summary();
        let peaks = self.trials.iter().map(|part| part.compute().1.peak_calls);
        summary.details.peak_calls = peaks.max().unwrap_or(0);
        summary
    }
}

/// One trial, or several combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialSlice<'a> {
    /// Their entries in `run.json`.
    pub trials: &'a [TrialRecord],
    /// Their attempts.
    pub attempts: &'a [Attempt],
    /// Their streams.
    pub streams: &'a [StreamRecord],
    /// The places of the trials in `run.json`.
    pub places: &'a [usize],
    /// The lines of the attempts in `attempts.ndjson`, from 1.
    pub attempt_lines: &'a [usize],
    /// The lines of the streams in `streams.ndjson`, from 1.
    pub stream_lines: &'a [usize],
}

impl TrialSlice<'_> {
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

    /// Figures of the slice as if it were one trial.
    pub fn summary(&self) -> TrialSummary {
        let (figures, mut details) = self.compute();
        // Samples of CPU time are not among the records, so the division by plane is the mean over the trials.
        details.planes.signalling_us_per_call = self.mean(|planes| planes.signalling_us_per_call);
        details.planes.media_us_per_packet = self.mean(|planes| planes.media_us_per_packet);
        if let [trial] = self.trials {
            details.measures.clone_from(&trial.details.measures);
        } else {
            let names = self.trials.iter().flat_map(|trial| &trial.details.measures);
            details.measures = measure::mean_of(names);
        }
        TrialSummary {
            figures,
            details,
            tallies: AttemptGroup::ALL.map(|group| Tally::of(group, self.attempts)),
            receive_buffer_errors: self
                .trials
                .iter()
                .map(|trial| trial.surroundings.as_ref().map(receive_buffer_errors))
                .sum::<Option<u64>>()
                .filter(|_| !self.trials.is_empty()),
        }
    }
}

/// Datagrams dropped by the kernel during the trial.
pub(super) fn receive_buffer_errors(around: &crate::raw::Surroundings) -> u64 {
    around
        .receive_buffer_errors_after
        .saturating_sub(around.receive_buffer_errors_before)
}

/// Figures and counts of a slice.
#[derive(Debug)]
pub(super) struct TrialSummary {
    /// Figures as in `run.json`.
    pub figures: Figures,
    /// Further figures.
    pub details: Details,
    /// Attempts, in the order of [`AttemptGroup::ALL`].
    pub tallies: [Tally; 3],
    /// Datagrams dropped by the kernel; `None` in a simulation.
    pub receive_buffer_errors: Option<u64>,
}

impl TrialSummary {
    /// Calls; without calls, registrations.
    pub fn main(&self) -> &Tally {
        let [calls, registrations, _] = &self.tallies;
        if calls.attempted > 0 {
            calls
        } else {
            registrations
        }
    }

    /// The attempts of a group.
    pub fn tally(&self, group: AttemptGroup) -> &Tally {
        let [calls, registrations, streams] = &self.tallies;
        match group {
            AttemptGroup::Calls => calls,
            AttemptGroup::Registrations => registrations,
            AttemptGroup::Streams => streams,
        }
    }
}

/// Kinds of attempts that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptGroup {
    /// Calls, recorded at their callers.
    Calls,
    /// First registrations, refreshes and removals.
    Registrations,
    /// Streams without signalling.
    Streams,
}

impl AttemptGroup {
    /// All of them.
    pub const ALL: [AttemptGroup; 3] = [
        AttemptGroup::Calls,
        AttemptGroup::Registrations,
        AttemptGroup::Streams,
    ];

    /// Its name in headings and columns.
    pub const fn name(self) -> &'static str {
        match self {
            AttemptGroup::Calls => "calls",
            AttemptGroup::Registrations => "registrations",
            AttemptGroup::Streams => "streams",
        }
    }

    /// Whether attempts of this kind belong to the group.
    pub fn contains(self, kind: AttemptKind) -> bool {
        match kind {
            AttemptKind::Call => self == AttemptGroup::Calls,
            AttemptKind::Registration
            | AttemptKind::Refresh
            | AttemptKind::Reregistration
            | AttemptKind::Deregistration => self == AttemptGroup::Registrations,
            AttemptKind::Stream => self == AttemptGroup::Streams,
            AttemptKind::Answer => false,
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
    /// Never sent; included in `failed`.
    pub not_started: u64,
    /// Response times in ascending order, milliseconds.
    pub responses: Vec<f64>,
}

impl Tally {
    fn of(group: AttemptGroup, attempts: &[Attempt]) -> Tally {
        let mut tally = Tally::default();
        let mine = || attempts.iter().filter(|a| group.contains(a.kind));
        // Registrations before and after a phase of re-registrations only set up and clean up
        // (`figures::main_attempts`).
        let has_phase = mine().any(|a| a.kind == AttemptKind::Reregistration);
        let is_timed = |a: &Attempt| !has_phase || a.kind == AttemptKind::Reregistration;
        for attempt in mine() {
            tally.attempted += 1;
            tally.established += u64::from(attempt.established.is_some());
            tally.completed += u64::from(attempt.outcome == AttemptOutcome::Completed);
            tally.failed += u64::from(!attempt.outcome.is_good());
            tally.not_started += u64::from(!attempt.outcome.was_started());
            tally
                .responses
                .extend(attempt.response_ms().filter(|_| is_timed(attempt)));
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
