//! Statistics as CSV: a file that is rotated by size. A thread of its own writes, because metrics and alarms must not
//! wait for a disk.

use crate::cpu_time::cpu_seconds;
use crate::event_output::outcomes;
use crate::full_disk::{append_whole, is_full};
use crate::log::timestamp;
use crate::operators::{Operators, Statistics};
use config::MetricsSpec;
use engine::{Event, EventKind};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

/// Columns of the file.
const CSV_HEADER: &str = "time,calls_active,calls_offered,calls_answered,calls_completed,calls_cancelled,calls_declined,calls_unanswered,calls_refused,calls_redirected,calls_failed,registrations,rtp_packets,rtp_packets_lost,drops,cpu_s\n";
/// Longest wait for a line to be written. Until it is, further ones are left out.
const LONGEST_WRITE: Duration = Duration::from_secs(1);

/// A line that is being written.
type PendingLine = Option<JoinHandle<io::Result<()>>>;

/// The file of the statistics.
#[derive(Clone)]
pub(super) struct StatisticsFile {
    path: PathBuf,
    interval: Duration,
    /// Size in bytes from which it is rotated.
    rotate_bytes: u64,
    /// Rotated files that are kept.
    keep: u32,
}

impl StatisticsFile {
    pub(super) fn of(spec: &MetricsSpec) -> Option<StatisticsFile> {
        Some(StatisticsFile {
            path: spec.csv.clone()?,
            interval: spec.csv_interval,
            rotate_bytes: spec.csv_rotate_bytes,
            keep: spec.csv_keep,
        })
    }

    /// The name of a rotated file.
    fn rotated(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Renames the file to the first rotated one, and those before to the next; the last one is replaced.
    fn rotate(&self) -> io::Result<()> {
        for number in (1..self.keep).rev() {
            let from = self.rotated(number);
            if from.exists() {
                std::fs::rename(from, self.rotated(number + 1))?;
            }
        }
        std::fs::rename(&self.path, self.rotated(1))
    }

    /// Appends a line; a new file begins with the header.
    fn append(&self, line: &str) -> io::Result<()> {
        let size = std::fs::metadata(&self.path).map_or(0, |about| about.len());
        if size >= self.rotate_bytes {
            self.rotate()?;
        }
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)?;
        let length = file.metadata()?.len();
        let header = match length {
            0 => CSV_HEADER,
            _ => "",
        };
        append_whole(&file, length, &format!("{header}{line}"))
    }

    /// Opens the file at the start.
    ///
    /// # Errors
    /// It cannot be written. A full disk is logged, as later on.
    pub(super) fn begin(&self, operators: &Operators) -> io::Result<()> {
        match self.append("") {
            Ok(()) => Ok(()),
            Err(error) if is_full(&error) => {
                self.tell(&error, operators);
                Ok(())
            }
            Err(error) => Err(io::Error::other(format!(
                "cannot write statistics to {}: {error}\n  remedy: correct `csv` in [metrics]",
                self.path.display()
            ))),
        }
    }

    /// Logs that a line was not written.
    fn tell(&self, error: &io::Error, operators: &Operators) {
        let event = EventKind::StatisticsFailed {
            file: self.path.display().to_string(),
            reason: error.to_string(),
        };
        let event = Event::new(operators.clock.now(), event);
        operators.log.event(&event);
        operators.log.flush();
    }

    /// Appends a line in each interval, until the program ends.
    pub(super) async fn write(self, operators: Operators) {
        let (mut failing, mut pending) = (false, None);
        loop {
            sleep(self.interval).await;
            let Ok(statistics) = operators.statistics().await else {
                continue;
            };
            let time = timestamp(operators.clock.unix_nanos_now());
            let line = csv_line(&statistics, &time);
            let written = self.write_line(line, &mut pending).await;
            if let Err(error) = &written
                && !failing
            {
                self.tell(error, &operators);
            }
            failing = written.is_err();
        }
    }

    /// Writes a line, unless that before it is still being written.
    async fn write_line(&self, line: String, pending: &mut PendingLine) -> io::Result<()> {
        if let Some(before) = pending.take() {
            wait_for(before, pending).await?;
        }
        let file = self.clone();
        wait_for(spawn_blocking(move || file.append(&line)), pending).await
    }
}

/// The outcome of writing a line, for a limited time.
async fn wait_for(
    mut task: JoinHandle<io::Result<()>>,
    pending: &mut PendingLine,
) -> io::Result<()> {
    match timeout(LONGEST_WRITE, &mut task).await {
        Ok(written) => written.unwrap_or_else(|ended| Err(io::Error::other(ended))),
        Err(_) => {
            *pending = Some(task);
            let seconds = LONGEST_WRITE.as_secs();
            let why = format!("its disk has not responded for {seconds} s");
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
    }
}

fn csv_line(statistics: &Statistics, time: &str) -> String {
    let counters = &statistics.counters;
    let outcomes = outcomes(counters).map(|count| count.to_string()).join(",");
    let cpu: f64 = cpu_seconds().values().sum();
    format!(
        "{time},{},{},{},{outcomes},{},{},{},{},{cpu:.2}\n",
        statistics.calls,
        counters.offered,
        counters.answered,
        statistics.registrations,
        statistics.packets,
        statistics.counts.media_lost,
        statistics.drops.total(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::Command;

    #[test]
    fn statistics_are_rotated_by_size_and_bounded_in_number() {
        let name = format!("hornwork-statistics-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let file = StatisticsFile {
            path: folder.join("s.csv"),
            interval: Duration::from_secs(1),
            rotate_bytes: CSV_HEADER.len() as u64 + 2,
            keep: 2,
        };
        for line in ["1\n", "2\n", "3\n", "4\n"] {
            file.append(line).unwrap();
        }
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(text(file.path.clone()), format!("{CSV_HEADER}4\n"));
        assert_eq!(text(file.rotated(1)), format!("{CSV_HEADER}3\n"));
        assert_eq!(text(file.rotated(2)), format!("{CSV_HEADER}2\n"));
        assert!(!file.rotated(3).exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_line_of_statistics_has_the_columns_of_the_header() {
        let line = csv_line(&Statistics::default(), "now");
        assert_eq!(line.matches(',').count(), CSV_HEADER.matches(',').count());
    }

    #[test]
    fn a_disk_that_does_not_respond_delays_nothing_else() {
        let name = format!("hornwork-statistics-fifo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let file = StatisticsFile {
            path: path.clone(),
            interval: Duration::from_secs(1),
            rotate_bytes: 1 << 20,
            keep: 1,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut pending = None;
        // Opening a FIFO waits for its reader, as opening a file does for a server that is gone.
        for line in ["1\n", "2\n"] {
            let written = runtime.block_on(file.write_line(line.into(), &mut pending));
            assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        let mut reader = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        while runtime
            .block_on(file.write_line("3\n".into(), &mut pending))
            .is_err()
        {}
        // The second line was left out, and the header is that of an empty file.
        let expected = format!("{CSV_HEADER}1\n{CSV_HEADER}3\n");
        let mut text = vec![0; expected.len()];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        std::fs::remove_file(&path).unwrap();
    }
}
