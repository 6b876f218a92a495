//! Progress display of long runs: a bar on a terminal, plain lines otherwise.

use crate::decimal::{counted, plain};
use crate::host::HostProgress;
use crate::raw::TrialRecord;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Seconds between two plain lines.
const LINE_INTERVAL_S: f64 = 5.0;

/// Progress of a run, on standard error.
#[derive(Debug)]
pub struct Display {
    bar: Option<ProgressBar>,
    total: u32,
    now: String,
    last_line: f64,
    /// Estimated duration of the run, seconds, if known.
    expected: Option<f64>,
    /// Completed trials.
    completed: u32,
    /// Trials begun since the start or [`Display::restart`].
    begun: u32,
    /// Time of the last count of due attempts, and the count.
    last_count: (f64, u64),
    last_rate: f64,
}

/// Formats seconds: `45 s`, `12 min`, `1 h 20 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=3_599 => format!("{} min", whole.div_ceil(60)),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}

/// Largest width of the live view, columns.
const MAX_COLUMNS: usize = 80;

/// Two lines for a terminal: position in the run, and its current figures.
fn live_view(now: &str, rate: f64, progress: &HostProgress, remaining: &str) -> String {
    let figure = |value: Option<f64>, digits: usize| match value {
        Some(value) if value >= 1_000.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let live = &progress.live;
    let head = format!("{now}{remaining}");
    let figures = format!(
        "  {}/s  {} up  {} failed  p50 {} p99 {} ms  jitter {} ms  MOS {}",
        figure(Some(rate), 0),
        progress.up,
        progress.failed,
        figure(live.response_ms(0.5), 1),
        figure(live.response_ms(0.99), 1),
        figure(live.jitter_ms(), 2),
        figure(live.mos(), 2),
    );
    // Spinner and trial number take room on the first line.
    let cut = |text: &str, room: usize| text.chars().take(room).collect::<String>();
    format!(
        "{}\n{}",
        cut(&head, MAX_COLUMNS - 14),
        cut(&figures, MAX_COLUMNS - 1)
    )
}

impl Display {
    /// For a run of `total` trials with an estimated duration of `expected` seconds.
    pub fn new(title: &str, total: u32, expected: Option<f64>) -> Display {
        let about = expected.map_or(String::new(), |seconds| {
            format!(", about {}", duration(seconds))
        });
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::from(total));
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}") {
                bar.set_style(style);
            }
            bar
        });
        eprintln!("{title}: {}{about}", counted(total, "trial"));
        Display {
            bar,
            total,
            now: String::new(),
            last_line: 0.0,
            expected,
            completed: 0,
            begun: 0,
            last_count: (0.0, 0),
            last_rate: 0.0,
        }
    }

    /// Estimated remaining time, `seconds` into the current trial.
    fn remaining(&self, seconds: f64) -> String {
        let Some(expected) = self.expected.filter(|expected| *expected > 0.0) else {
            return String::new();
        };
        let each = expected / f64::from(self.total.max(1));
        let left = expected - each * f64::from(self.completed) - seconds.min(each);
        format!(", about {} left", duration(left))
    }

    /// The trials that follow are counted from one.
    pub fn restart(&mut self) {
        self.begun = 0;
    }

    /// A trial begins.
    pub fn begin(&mut self, level: Option<f64>, repetition: u32) {
        self.begun += 1;
        let level = level
            .map(|level| format!(" at {}", plain(level)))
            .unwrap_or_default();
        self.now = format!(
            "trial {} of {}{level}, run {}",
            self.begun,
            self.total,
            repetition + 1
        );
        self.last_line = 0.0;
        match &self.bar {
            Some(bar) => bar.set_message(self.now.clone()),
            None => eprintln!("{}", self.now),
        }
    }

    /// Updates the figures of the current trial.
    pub fn update(&mut self, seconds: f64, progress: &HostProgress) {
        let remaining = self.remaining(seconds);
        let rate = self.rate(seconds, progress.due);
        if let Some(bar) = &self.bar {
            bar.set_message(live_view(&self.now, rate, progress, &remaining));
            bar.tick();
            return;
        }
        let text = format!(
            "{}: {} s, {} due, {} up, {} good, {} failed{}",
            self.now,
            plain(seconds.round()),
            progress.due,
            progress.up,
            progress.good,
            progress.failed,
            remaining
        );
        if seconds - self.last_line >= LINE_INTERVAL_S {
            self.last_line = seconds;
            eprintln!("{text}");
        }
    }

    /// Attempts per second over the last second.
    fn rate(&mut self, seconds: f64, due: u64) -> f64 {
        let (since, before) = self.last_count;
        if seconds < since {
            self.last_count = (0.0, 0);
            self.last_rate = 0.0;
        } else if seconds - since >= 1.0 {
            self.last_rate = due.saturating_sub(before) as f64 / (seconds - since);
            self.last_count = (seconds, due);
        }
        self.last_rate
    }

    /// A trial is complete.
    pub fn done(&mut self, trial: &TrialRecord) {
        self.completed += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        } else if net::stops() > 0 {
            // The run marks this trial as interrupted; its verdict is none.
            eprintln!("{}: not judged (cut short)", self.now);
        } else {
            eprintln!("{}: {}", self.now, trial.verdict.name());
        }
    }

    /// State of a search after a trial.
    pub fn search_step(
        &mut self,
        label: &str,
        missed: &str,
        best: Option<f64>,
        failed: Option<f64>,
    ) {
        let known = |value: Option<f64>| value.map_or("none yet".to_owned(), plain);
        let verdict = match missed {
            "" => "good".to_owned(),
            failed => format!("failed: {failed}"),
        };
        let text = format!(
            "{label} {verdict}; highest passed {}, lowest failed above it {}",
            known(best),
            known(failed)
        );
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// The run is complete.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Progress of the demo, on standard error.
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
            last_line: -LINE_INTERVAL_S,
        }
    }

    /// Updates the figures.
    pub fn update(&mut self, seconds: f64, phones: &HostProgress, pbx: &HostProgress) {
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
            None if seconds - self.last_line >= LINE_INTERVAL_S => {
                self.last_line = seconds;
                eprintln!("{text}");
            }
            None => {}
        }
    }

    /// The demo is complete.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_view_fits_a_terminal_of_80_columns() {
        let progress = HostProgress {
            due: 1_234_567,
            up: 123_456,
            failed: 99_999,
            ..HostProgress::default()
        };
        let text = live_view(
            "trial 12 of 30 at 12000, run 3",
            12_345.6,
            &progress,
            ", about 1 h 20 min left",
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].chars().count() <= 66 && lines[0].contains("left"),
            "{text}"
        );
        assert!(lines[1].chars().count() < 80, "{text}");
        for figure in ["12346/s", "p50 - p99 - ms", "jitter - ms", "MOS -"] {
            assert!(text.contains(figure), "{figure}: {text}");
        }
    }
}
