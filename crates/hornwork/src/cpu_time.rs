//! CPU time of this process by the names of its threads. These counters never fall: the time of a thread that has ended
//! stays with its name, as far as it was read.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};

/// Clock ticks of /proc in a second (USER_HZ, constant on Linux).
const TICKS_PER_S: f64 = 100.0;
/// Error number of a read about a thread that has ended meanwhile.
const ESRCH: i32 = 3;

static TIMES: Mutex<CpuTimes> = Mutex::new(CpuTimes::new());

/// CPU seconds by name of thread since the start.
pub(crate) fn cpu_seconds() -> BTreeMap<String, f64> {
    // Locked while reading: an older read must not come after a newer one.
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    // Without a read, for example without free files, the last values stay.
    if let Ok(mut threads) = read_threads() {
        add_left_out(&mut threads, &times.living);
        times.update(threads);
    }
    times.seconds()
}

/// A thread by its number, and its start in clock ticks: numbers are used again.
type ThreadId = (u32, u64);

/// A thread as read.
#[derive(Debug)]
struct ThreadTime {
    id: ThreadId,
    name: String,
    ticks: u64,
}

impl ThreadTime {
    /// Of the number and the text of `stat` (proc_pid_stat(5)).
    fn parse(number: u32, stat: &str) -> Option<ThreadTime> {
        let (_, rest) = stat.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        // The rest begins with field 3; utime and stime are 14 and 15, the start is 22.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(ThreadTime {
            id: (number, field(22)?),
            name: name.to_owned(),
            ticks: field(14)? + field(15)?,
        })
    }
}

/// # Errors
/// The living threads are not known as a whole.
fn read_threads() -> io::Result<Vec<ThreadTime>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        match std::fs::read_to_string(entry.path().join("stat")) {
            Ok(stat) => threads.extend(ThreadTime::parse(number, &stat)),
            Err(error)
                if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(threads)
}

/// The kernel leaves out a thread if another one ends while the folder is read: it is asked for each known thread that
/// is not there. A thread that counted as ended would count twice from the next read on.
fn add_left_out(threads: &mut Vec<ThreadTime>, known: &BTreeMap<ThreadId, LivingThread>) {
    for id in known.keys() {
        if threads.iter().any(|thread| thread.id == *id) {
            continue;
        }
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", id.0));
        let thread = stat.ok().and_then(|stat| ThreadTime::parse(id.0, &stat));
        threads.extend(thread.filter(|thread| thread.id == *id));
    }
}

/// A living thread.
#[derive(Debug)]
struct LivingThread {
    name: String,
    ticks: u64,
    /// Those of them that count for its earlier names.
    earlier: u64,
}

impl LivingThread {
    fn own_ticks(&self) -> u64 {
        self.ticks.saturating_sub(self.earlier)
    }
}

/// Times of all threads since the start.
#[derive(Debug)]
struct CpuTimes {
    living: BTreeMap<ThreadId, LivingThread>,
    /// Ticks by name of threads that have ended or have another name now. Names are a few of the program's own.
    ended: BTreeMap<String, u64>,
}

impl CpuTimes {
    const fn new() -> CpuTimes {
        CpuTimes {
            living: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// Applies a read of all living threads.
    fn update(&mut self, threads: Vec<ThreadTime>) {
        let mut gone = std::mem::take(&mut self.living);
        for ThreadTime { id, name, ticks } in threads {
            let earlier = match gone.remove(&id) {
                None => 0,
                Some(before) if before.name == name => before.earlier,
                // A thread has the name of its parent until it sets its own.
                Some(before) => {
                    let counted = before.ticks;
                    self.keep(before);
                    counted
                }
            };
            let thread = LivingThread {
                name,
                ticks,
                earlier,
            };
            self.living.insert(id, thread);
        }
        for thread in gone.into_values() {
            self.keep(thread);
        }
    }

    fn keep(&mut self, thread: LivingThread) {
        let ticks = thread.own_ticks();
        *self.ended.entry(thread.name).or_insert(0) += ticks;
    }

    fn seconds(&self) -> BTreeMap<String, f64> {
        let mut all = self.ended.clone();
        for thread in self.living.values() {
            *all.entry(thread.name.clone()).or_insert(0) += thread.own_ticks();
        }
        let all = all.into_iter();
        all.map(|(name, ticks)| (name, ticks as f64 / TICKS_PER_S))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: u32, start: u64, name: &str, ticks: u64) -> ThreadTime {
        ThreadTime {
            id: (number, start),
            name: name.to_owned(),
            ticks,
        }
    }

    #[test]
    fn time_of_ended_threads_stays() {
        let mut times = CpuTimes::new();
        let of = |times: &CpuTimes, name: &str| times.seconds().get(name).copied();
        times.update(vec![thread(1, 10, "a", 100), thread(2, 11, "b", 300)]);
        times.update(vec![thread(1, 10, "a", 150)]);
        assert_eq!((of(&times, "a"), of(&times, "b")), (Some(1.5), Some(3.0)));
        // Another thread of the same number and name begins at nothing.
        times.update(vec![thread(1, 10, "a", 150), thread(2, 99, "b", 20)]);
        assert_eq!(of(&times, "b"), Some(3.2));
        // A thread that has set its name counts for the former one no more.
        times.update(vec![thread(1, 10, "c", 170), thread(2, 99, "b", 20)]);
        times.update(vec![thread(1, 10, "c", 200), thread(2, 99, "b", 20)]);
        assert_eq!((of(&times, "a"), of(&times, "c")), (Some(1.5), Some(0.5)));
        times.update(Vec::new());
        assert_eq!((of(&times, "b"), of(&times, "c")), (Some(3.2), Some(0.5)));
    }

    #[test]
    fn a_living_thread_that_the_folder_leaves_out_is_asked_for() {
        let read = read_threads().unwrap();
        let mut times = CpuTimes::new();
        let ended = thread(u32::MAX, 1, "ended", 5);
        times.update(read.into_iter().chain([ended]).collect());
        let own = times.living.len() - 1;
        let mut none = Vec::new();
        add_left_out(&mut none, &times.living);
        // Other tests may have ended threads meanwhile.
        assert!((1..=own).contains(&none.len()), "{none:?}");
    }

    #[test]
    fn names_may_contain_parentheses() {
        let stat = "7 (a) (b)) S 1 2 3 4 5 6 7 8 9 10 41 2 13 14 15 16 17 18 555 20";
        let parsed = ThreadTime::parse(7, stat).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.ticks), ("a) (b)", 43));
        assert_eq!(parsed.id, (7, 555));
        assert!(!cpu_seconds().is_empty());
    }
}
