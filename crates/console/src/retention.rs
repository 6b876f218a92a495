//! Removal by age waits while the clock may be wrong: one that is years ahead at the start, as on a machine that has
//! lost its time, would make everything too old.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Microseconds per day.
const DAY: i64 = 86_400_000_000;
/// Time by which the clock may be ahead of the newest file of the last run, or of another clock. A border that was off
/// for longer removes nothing for a day more than is necessary.
const MAX_AHEAD: i64 = DAY;
/// Time from the start after which a clock that is further ahead is believed: until then it can be corrected.
const WAIT: i64 = DAY;
/// Name of the file that keeps the wait over further starts, which find files of the wrong time.
const FILE: &str = "clock-ahead";

/// Decides whether the time is believed, so that items may be removed for their age. Times are microseconds since the
/// Unix epoch.
#[derive(Debug, Default)]
pub struct RetentionClock {
    file: Option<PathBuf>,
    wait: Option<RemovalWait>,
    is_reported: bool,
}

/// The clock was ahead at the start.
#[derive(Clone, Copy, Debug)]
struct RemovalWait {
    /// Time of the newest file before.
    newest: i64,
    /// The start.
    since: i64,
}

impl RetentionClock {
    /// The clock of a store in a folder that begins `now`; `newest` is the time of the last change before.
    pub fn in_folder(folder: &Path, newest: Option<i64>, now: i64) -> RetentionClock {
        let file = folder.join(FILE);
        let kept = std::fs::read_to_string(&file).ok();
        let kept = kept.and_then(|text| RemovalWait::parse(&text));
        let ahead = |newest: &i64| now.saturating_sub(*newest) > MAX_AHEAD;
        let begun = newest
            .filter(ahead)
            .map(|newest| RemovalWait { newest, since: now });
        let wait = kept.or(begun);
        if let (None, Some(RemovalWait { newest, since })) = (kept, begun) {
            // Without it this run waits nevertheless.
            let _ = std::fs::write(&file, format!("{newest} {since}\n"));
        }
        RetentionClock {
            file: Some(file),
            wait,
            is_reported: false,
        }
    }

    /// The days by which the clock is ahead, if nothing may be removed for its age `now`. `other` is the least time of
    /// other clocks: that of the machine, which may have been set since the start, and of a database server.
    pub fn days_ahead(&mut self, now: i64, other: i64) -> Option<u64> {
        let days = |ahead: i64| u64::try_from(ahead / DAY).unwrap_or(0);
        let ahead = now.saturating_sub(other);
        if ahead > MAX_AHEAD {
            return Some(days(ahead));
        }
        let wait = self.wait.as_mut()?;
        if now < wait.since {
            // The clock was set back: the wait begins anew, for further starts as well.
            wait.since = now;
            if let Some(file) = &self.file {
                let _ = std::fs::write(file, format!("{} {now}\n", wait.newest));
            }
        }
        let ahead = now.saturating_sub(wait.newest);
        if ahead > MAX_AHEAD && now.saturating_sub(wait.since) < WAIT {
            return Some(days(ahead));
        }
        self.wait = None;
        self.is_reported = false;
        if let Some(file) = &self.file {
            // Otherwise the next start waits as well.
            let _ = std::fs::remove_file(file);
        }
        None
    }

    /// Whether the wait has to be reported: once.
    pub fn take_report(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reported, true)
    }
}

impl RemovalWait {
    fn parse(text: &str) -> Option<RemovalWait> {
        let (newest, since) = text.trim().split_once(' ')?;
        Some(RemovalWait {
            newest: newest.parse().ok()?,
            since: since.parse().ok()?,
        })
    }
}

/// Time of the last change of a file in a folder; `None` without files.
pub fn newest_change(folder: &Path) -> Option<i64> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let files = entries.filter(|entry| entry.file_name() != FILE);
    let changes = files.filter_map(|file| {
        let metadata = file.metadata().ok()?;
        let changed = metadata.modified().ok().filter(|_| metadata.is_file())?;
        i64::try_from(changed.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
    });
    changes.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{StoreLocation, StoreNote, StoreSettings};
    use crate::store::HistoryWriter;
    use crate::writer::partitions;

    const YEAR: i64 = 365 * DAY;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("hornwork-retention-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The present time, of the file system.
    fn present(folder: &Path) -> i64 {
        let file = folder.join("now");
        std::fs::write(&file, "").unwrap();
        let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::remove_file(&file).unwrap();
        let since = modified.duration_since(UNIX_EPOCH).unwrap();
        since.as_micros() as i64
    }

    #[test]
    fn clock_that_is_years_ahead_is_believed_after_a_day() {
        let folder = scratch("ahead");
        let newest = 50 * YEAR;
        let open = |now| RetentionClock::in_folder(&folder, Some(newest), now);
        assert_eq!(open(newest + DAY).days_ahead(newest + DAY, i64::MAX), None);
        let wrong = newest + 10 * YEAR;
        let mut clock = open(wrong);
        assert_eq!(clock.days_ahead(wrong, i64::MAX), Some(3_650));
        assert!(clock.take_report() && !clock.take_report());
        // The next start finds files of the wrong time.
        let mut clock = RetentionClock::in_folder(&folder, Some(wrong), wrong + DAY / 2);
        assert!(clock.days_ahead(wrong + DAY - 1, i64::MAX).is_some());
        assert_eq!(clock.days_ahead(wrong + DAY, i64::MAX), None);
        assert!(!folder.join(FILE).exists());
        // The clock of the machine was set since.
        assert!(clock.days_ahead(wrong + DAY, newest).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn clock_that_was_corrected_ends_the_wait() {
        let folder = scratch("corrected");
        let newest = 50 * YEAR;
        let wrong = newest + 10 * YEAR;
        RetentionClock::in_folder(&folder, Some(newest), wrong);
        let mut clock = RetentionClock::in_folder(&folder, Some(wrong), newest + DAY);
        assert_eq!(clock.days_ahead(newest + DAY, i64::MAX), None);
        // The machine was off for a month: a day after its start, not in ten years.
        RetentionClock::in_folder(&folder, Some(newest), wrong);
        let now = newest + 30 * DAY;
        let mut clock = RetentionClock::in_folder(&folder, Some(wrong), now);
        assert!(clock.days_ahead(now, i64::MAX).is_some());
        let mut restarted = RetentionClock::in_folder(&folder, Some(now), now + DAY);
        assert_eq!(restarted.days_ahead(now + DAY, i64::MAX), None);
        assert_eq!(clock.days_ahead(now + DAY, i64::MAX), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn wrong_clock_at_the_start_removes_no_partition() {
        let folder = scratch("store");
        let settings = StoreSettings {
            location: StoreLocation::Folder(folder.clone()),
            node: String::new(),
            retention_days: 7,
            size: 1 << 30,
            secure_content: false,
            full_text: false,
        };
        let open = |now| HistoryWriter::open(settings.clone(), now).unwrap();
        let right = present(&folder);
        for now in [right - 3 * DAY, right] {
            open(now).end(now);
        }
        let oldest = partitions(&folder).unwrap().remove(0);
        let wrong = right + 10 * YEAR;
        let mut writer = open(wrong);
        let note = writer.next_note();
        assert!(
            matches!(
                note,
                Some(StoreNote::ClockAhead {
                    days: 3_640..=3_660
                })
            ),
            "{note:?}"
        );
        assert!(oldest.exists());
        // The clock of the machine was set since: the border knows that its own is wrong.
        writer.set_wall_clock(right);
        writer.tick(wrong + 2 * DAY);
        assert!(oldest.exists());
        assert_eq!(writer.next_note(), None, "once");
        // No other clock tells it.
        writer.set_wall_clock(i64::MAX);
        writer.tick(wrong + 2 * DAY + 20_000_000);
        assert!(!oldest.exists());
        drop(writer);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
