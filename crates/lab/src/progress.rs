//! Progress of long work: a bar on a terminal, plain lines otherwise.

use crate::host::Progress;
use crate::raw::TrialRecord;
use crate::report::plain;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Seconds between two plain lines.
const LINE_EVERY: f64 = 5.0;

/// Shows how far a run is, on standard error.
#[derive(Debug)]
pub struct Display {
    bar: Option<ProgressBar>,
    total: u32,
    now: String,
    last_line: f64,
    /// About how long the run takes, seconds, where that is known.
    expected: Option<f64>,
    /// Trials that are over.
    over: u32,
}

/// Seconds in words: `45 s`, `12 min`, `1 h 20 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=3_599 => format!("{} min", whole.div_ceil(60)),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}

impl Display {
    /// For a run of `total` trials that takes about `expected` seconds.
    pub fn new(title: &str, total: u32, expected: Option<f64>) -> Display {
        let about = expected.map_or(String::new(), |seconds| {
            format!(", about {}", duration(seconds))
        });
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::from(total));
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{pos}/{len}] {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        eprintln!("{title}: {total} trials{about}");
        Display {
            bar,
            total,
            now: String::new(),
            last_line: 0.0,
            expected,
            over: 0,
        }
    }

    /// About how long is left, `seconds` into the trial that runs.
    fn remaining(&self, seconds: f64) -> String {
        let Some(expected) = self.expected.filter(|expected| *expected > 0.0) else {
            return String::new();
        };
        let each = expected / f64::from(self.total.max(1));
        let left = expected - each * f64::from(self.over) - seconds.min(each);
        format!(", about {} left", duration(left))
    }

    /// A trial begins.
    pub fn begin(&mut self, number: u32, level: Option<f64>, repetition: u32) {
        let level = level
            .map(|level| format!(" at {}", plain(level)))
            .unwrap_or_default();
        self.now = format!(
            "trial {} of {}{level}, run {}",
            number + 1,
            self.total,
            repetition + 1
        );
        self.last_line = 0.0;
        match &self.bar {
            Some(bar) => bar.set_message(self.now.clone()),
            None => eprintln!("{}", self.now),
        }
    }

    /// How the trial goes.
    pub fn update(&mut self, seconds: f64, progress: &Progress) {
        let text = format!(
            "{}: {} s, {} due, {} up, {} good, {} failed{}",
            self.now,
            plain(seconds.round()),
            progress.due,
            progress.up,
            progress.good,
            progress.failed,
            self.remaining(seconds)
        );
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None if seconds - self.last_line >= LINE_EVERY => {
                self.last_line = seconds;
                eprintln!("{text}");
            }
            None => {}
        }
    }

    /// A trial is over.
    pub fn done(&mut self, trial: &TrialRecord) {
        self.over += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        } else {
            eprintln!("{}: {}", self.now, trial.verdict.name());
        }
    }

    /// What a search knows after a trial.
    pub fn searched(&mut self, value: f64, missed: &str, best: Option<f64>, failed: Option<f64>) {
        let known = |value: Option<f64>| value.map_or("none yet".to_owned(), plain);
        let verdict = match missed {
            "" => "good".to_owned(),
            failed => format!("failed: {failed}"),
        };
        let text = format!(
            "{} {verdict}; best {}, failed above it {}",
            plain(value),
            known(best),
            known(failed)
        );
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// The run is over.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows how the demo goes, on standard error.
#[derive(Debug)]
pub struct DemoDisplay {
    bar: Option<ProgressBar>,
    all: f64,
    last_line: f64,
}

impl DemoDisplay {
    /// For a demo of `all` seconds.
    pub fn new(all: f64) -> DemoDisplay {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((all * 10.0) as u64);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        DemoDisplay {
            bar,
            all,
            last_line: -LINE_EVERY,
        }
    }

    /// How it goes.
    pub fn update(&mut self, seconds: f64, phones: &Progress, pbx: &Progress) {
        // Each call has one end at the phones and one at the PBX.
        let completed = (phones.good.saturating_sub(phones.registered) + pbx.good) / 2;
        let text = format!(
            "{:>3.0} s  {} phones registered, {} calls up, {} calls completed, {} failed, {} packets",
            seconds,
            phones.registered,
            (phones.up + pbx.up).div_ceil(2),
            completed,
            phones.failed + pbx.failed,
            phones.packets_in + pbx.packets_in
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position((seconds.min(self.all) * 10.0) as u64);
                bar.set_message(text);
            }
            None if seconds - self.last_line >= LINE_EVERY => {
                self.last_line = seconds;
                eprintln!("{text}");
            }
            None => {}
        }
    }

    /// It is over.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
