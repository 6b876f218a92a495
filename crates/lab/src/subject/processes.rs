//! CPU time and memory of a process with its descendants, from `/proc` (proc(5)).

/// Clock ticks per second in /proc (USER_HZ, the same on every supported Linux).
const TICKS_PER_S: f64 = 100.0;

/// Figures of a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Family {
    /// CPU time, including that of descendants that have ended and were waited for, seconds.
    pub cpu_seconds: f64,
    /// Time in which its threads that run were ready to run and had no processor, seconds. Threads that have ended do
    /// not count.
    pub waited_seconds: f64,
    /// Resident memory, bytes. Shared pages count once in proportion (PSS); where the kernel does not give that, each
    /// process counts them.
    pub memory_bytes: u64,
}

/// The figures of a process and its descendants: the main process of a server with child processes does nearly nothing
/// itself.
///
/// # Errors
/// If the process does not exist, or /proc cannot be read.
pub(crate) fn family(process: u32, with_memory: bool) -> std::io::Result<Family> {
    let own = stat(process)?;
    let mut members = vec![process];
    let (mut cpu_seconds, mut waited_seconds) = cpu_of(process, &own);
    let mut memory = if with_memory {
        memory_of(process, &own)
    } else {
        0
    };
    // A child may have a lower number than its parent, so this repeats until no further child is found.
    let mut others = processes()?;
    loop {
        let before = members.len();
        others.retain(|(number, stat)| {
            let ours = members.contains(&stat.parent);
            if ours {
                members.push(*number);
                let (ran, waited) = cpu_of(*number, stat);
                cpu_seconds += ran;
                waited_seconds += waited;
                if with_memory {
                    memory += memory_of(*number, stat);
                }
            }
            !ours
        });
        if members.len() == before {
            return Ok(Family {
                cpu_seconds,
                waited_seconds,
                memory_bytes: memory,
            });
        }
    }
}

/// CPU time of a process and of its children that were waited for, and the time in which its threads waited for a
/// processor, seconds. The scheduler counts the threads that run in nanoseconds; the ticks, rounded down, also have
/// threads that have ended.
fn cpu_of(process: u32, stat: &Stat) -> (f64, f64) {
    let (mut nanos, mut waited) = (0, 0);
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let mut fields = text.split_whitespace();
        let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
        nanos += next().unwrap_or(0);
        waited += next().unwrap_or(0);
    }
    let own = (stat.ticks as f64 / TICKS_PER_S).max(nanos as f64 / 1e9);
    let ran = own + stat.waited_ticks as f64 / TICKS_PER_S;
    (ran, waited as f64 / 1e9)
}

/// CPU time of the threads of a process that have this name, seconds; `None` without one.
pub(crate) fn thread_cpu(process: u32, name: &str) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum: Option<u64> = None;
    for thread in threads.flatten() {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
        if read("comm").is_some_and(|comm| comm.trim_end() == name) {
            let text = read("schedstat")?;
            let ran: u64 = text.split_whitespace().next()?.parse().ok()?;
            sum = Some(sum.unwrap_or(0) + ran);
        }
    }
    sum.map(|nanos| nanos as f64 / 1e9)
}

fn memory_of(process: u32, stat: &Stat) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"));
    let kib = text.ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    kib.map_or(stat.pages * net::page_bytes(), |kib| kib * 1_024)
}

/// Values of `/proc/N/stat`.
struct Stat {
    parent: u32,
    ticks: u64,
    waited_ticks: u64,
    pages: u64,
}

/// Fields 4, 14 to 17 and 24 of `stat` (proc(5)).
fn stat(process: u32) -> std::io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in parentheses, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let parent = number(1).and_then(|parent| u32::try_from(parent).ok());
    let ticks = |from: usize| Some(number(from)? + number(from + 1)?);
    match (parent, ticks(11), ticks(13), number(21)) {
        (Some(parent), Some(ticks), Some(waited_ticks), Some(pages)) => Ok(Stat {
            parent,
            ticks,
            waited_ticks,
            pages,
        }),
        _ => Err(std::io::Error::other("not in the format of proc(5)")),
    }
}

/// All processes; those that end meanwhile are left out.
fn processes() -> std::io::Result<Vec<(u32, Stat)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        if let Some((number, stat)) = number.and_then(|n| Some((n, stat(n).ok()?))) {
            all.push((number, stat));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_thread_is_found_by_its_name() {
        let name = "cpu-by-name";
        let worker = std::thread::Builder::new().name(name.to_owned());
        let (ready, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let numbers = (0..2_000_000_u64).map(std::hint::black_box);
            let _ = ready.send(numbers.sum::<u64>());
            let _ = ended.recv();
        };
        let worker = worker.spawn(work).unwrap();
        wait.recv().unwrap();
        let own = std::process::id();
        let seconds = thread_cpu(own, name).unwrap();
        assert!(seconds > 0.0, "{seconds}");
        assert!(seconds <= family(own, false).unwrap().cpu_seconds);
        assert_eq!(thread_cpu(own, "no-such-thread"), None);
        drop(end);
        worker.join().unwrap();
        assert_eq!(thread_cpu(u32::MAX, name), None);
    }
}
