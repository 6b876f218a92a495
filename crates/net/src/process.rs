//! What a program asks of its own process and threads.

use crate::clock::nanos;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::ClockId;
use std::io;
use std::time::Duration;

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(nanos(ClockId::ThreadCPUTime))
}

/// CPU time that the process has used, all threads together.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(nanos(ClockId::ProcessCPUTime))
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// Where the machine (or this process's share of it) has no such CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no CPU {cpu}"),
        ));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    Ok(())
}

/// The CPUs on which the calling thread may run, in order; none where the kernel does not tell.
pub fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None);
    set.map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect()
        },
    )
}

/// Lets the calling thread sleep; a signal ends that early.
pub(crate) fn sleep(span: Duration) {
    let span = rustix::time::Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    };
    // How much of it was left does not matter: who asked looks at the clock.
    let _ = rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &span);
}

/// Puts the calling thread under SCHED_FIFO with `priority` (1 to 99).
///
/// # Errors
/// Where that is not allowed (CAP_SYS_NICE, RLIMIT_RTPRIO) or the priority is out of range.
pub fn realtime(priority: u32) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: i32::try_from(priority).unwrap_or(i32::MAX),
    };
    // SAFETY: the structure lives through the call; 0 names the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Tries [`realtime`] on a thread that ends at once, so that the calling one goes on sharing its processor.
///
/// # Errors
/// As [`realtime`].
pub fn may_be_realtime(priority: u32) -> io::Result<()> {
    std::thread::Builder::new()
        .spawn(move || realtime(priority))?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Lets the calling thread's timers fire on time: the kernel otherwise groups them within 50 us.
///
/// # Errors
/// Where the kernel refuses (a sandbox).
pub fn tight_timers() -> io::Result<()> {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Keeps memory of this process from being swapped out: what it uses now, and whatever it will use once it does.
///
/// # Errors
/// Where it is not allowed for all of it: neither CAP_IPC_LOCK nor an unlimited RLIMIT_MEMLOCK. With less, memory asked for later
/// would be refused at a moment when nobody can help it.
pub fn lock_memory() -> io::Result<()> {
    if getrlimit(Resource::Memlock).current.is_some() && !has_capability(IPC_LOCK)? {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "neither CAP_IPC_LOCK nor an unlimited RLIMIT_MEMLOCK",
        ));
    }
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: it changes what the kernel may do with pages, and none of them.
    if unsafe { libc::mlockall(flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Number of CAP_IPC_LOCK (capabilities(7)).
const IPC_LOCK: u32 = 14;

/// Whether a capability is in force for the calling thread.
fn has_capability(number: u32) -> io::Result<bool> {
    let text = std::fs::read_to_string("/proc/thread-self/status")?;
    let set = text
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|word| u64::from_str_radix(word.trim(), 16).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/status"))?;
    Ok(set >> number & 1 == 1)
}

/// File descriptors that the process may have: the limit in force and the highest it may ask for (`u64::MAX`: none).
pub fn open_files() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    )
}

/// Raises the limit of file descriptors as far as allowed, and gives it.
///
/// # Errors
/// Where the kernel refuses.
pub fn raise_open_files() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(open_files().0)
}

/// Bytes of memory that the process holds at present (resident set).
///
/// # Errors
/// Where `/proc` is not mounted or has another form.
pub fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm"))?;
    Ok(pages * page_bytes())
}

/// What a page of memory has, bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}
