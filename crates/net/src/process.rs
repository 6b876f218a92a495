//! Settings and figures of the process and its threads: CPU time, pinning, priority, memory, limits.

use crate::clock::nanos;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::ClockId;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

/// CPU time used by the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(nanos(ClockId::ThreadCPUTime))
}

/// Time in which the calling thread was ready to run and had no processor (run queue, `schedstat` of proc(5)); `None`
/// where the kernel does not count it.
pub fn thread_cpu_wait() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let waited = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited))
}

/// CPU time used by all threads of the process.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(nanos(ClockId::ProcessCPUTime))
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// The machine (or this process's share of it) has no such CPU.
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

/// The CPUs on which the calling thread may run, in ascending order; empty if the kernel does not report them.
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

/// Makes the kernel send SIGTERM to the program of `command` once the thread that started it has ended, so that no
/// program outlives a run that was killed (prctl(2), PR_SET_PDEATHSIG).
pub fn end_with_parent(command: &mut Command) {
    let request = || set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(request);
    }
}

/// Requests the end of a child (SIGTERM).
///
/// # Errors
/// It has ended.
pub fn request_end(child: &Child) -> io::Result<()> {
    Ok(kill_process(process_of(child.id())?, Signal::TERM)?)
}

/// Signals that end processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGQUIT.
    Quit,
    /// SIGKILL.
    Kill,
}

/// Signals all processes of the group that a child leads. It needs no other program: a machine may have no kill(1), and
/// a wait for the end of the child would be endless then.
///
/// # Errors
/// All of them have ended.
pub fn signal_group(leader: &Child, signal: EndSignal) -> io::Result<()> {
    let signal = match signal {
        EndSignal::Terminate => Signal::TERM,
        EndSignal::Interrupt => Signal::INT,
        EndSignal::Quit => Signal::QUIT,
        EndSignal::Kill => Signal::KILL,
    };
    Ok(kill_process_group(process_of(leader.id())?, signal)?)
}

/// Ends a process at once (SIGKILL).
///
/// # Errors
/// It has ended, or may not be ended.
pub fn kill(process: u32) -> io::Result<()> {
    Ok(kill_process(process_of(process)?, Signal::KILL)?)
}

fn process_of(number: u32) -> io::Result<Pid> {
    let process = i32::try_from(number).ok().and_then(Pid::from_raw);
    Ok(process.ok_or(io::ErrorKind::NotFound)?)
}

/// Suspends the calling thread; a signal ends the sleep early.
pub(crate) fn sleep(span: Duration) {
    let span = rustix::time::Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    };
    // The remaining time is not needed: the caller reads the clock.
    let _ = rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &span);
}

/// Sets the calling thread to SCHED_FIFO with `priority` (1 to 99). Threads that it starts have the usual scheduling:
/// one that reads files must not delay packets.
///
/// # Errors
/// Not permitted (CAP_SYS_NICE, RLIMIT_RTPRIO), or the priority is out of range.
pub fn realtime(priority: u32) -> io::Result<()> {
    let priority = i32::try_from(priority).unwrap_or(i32::MAX);
    // musl's function of this name always fails, so the kernel is called directly; its structure is the number alone.
    // SAFETY: the number outlives the call; 0 is the calling thread.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            libc::c_long::from(0),
            libc::c_long::from(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK),
            &raw const priority,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Tries [`realtime`] on a short-lived thread, so that the calling thread keeps its scheduling policy.
///
/// # Errors
/// As [`realtime`].
pub fn may_be_realtime(priority: u32) -> io::Result<()> {
    std::thread::Builder::new()
        .spawn(move || realtime(priority))?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Disables the timer slack of the calling thread: by default the kernel groups timers within 50 us.
///
/// # Errors
/// The kernel refuses (a sandbox).
pub fn tight_timers() -> io::Result<()> {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Slice that packet threads request, nanoseconds: the shortest that the kernel grants.
const SHORT_SLICE: u64 = 100_000;

/// `struct sched_attr` of linux/sched/types.h, in its first version.
#[derive(Debug, Default)]
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// With SCHED_OTHER: the slice in nanoseconds, 0 for the kernel's own (3 ms).
    runtime: u64,
    deadline: u64,
    period: u64,
}

const ATTRIBUTES_SIZE: u32 = size_of::<SchedulingAttributes>() as u32;

/// The attributes of the calling thread (sched_getattr(2)).
fn scheduling_attributes() -> io::Result<SchedulingAttributes> {
    let mut attributes = SchedulingAttributes::default();
    // SAFETY: the kernel writes at most the size that is passed; 0 is the calling thread.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            libc::c_long::from(0),
            &raw mut attributes,
            ATTRIBUTES_SIZE,
            0u32,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes)
}

/// Requests the shortest slice for the calling thread, so that it preempts other threads of its priority when it wakes,
/// in place of waiting up to 3 ms for the end of theirs: those of this program that write records, the store and the
/// log, and other programs. Linux 6.12 and later; earlier kernels ignore it. Only with SCHED_OTHER, and without any
/// right.
///
/// # Errors
/// The kernel refuses (a sandbox).
pub(crate) fn short_slice() -> io::Result<()> {
    let mut attributes = scheduling_attributes()?;
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.runtime = SHORT_SLICE;
    set_scheduling_attributes(attributes)
}

/// Sets the attributes of the calling thread (sched_setattr(2)).
fn set_scheduling_attributes(mut attributes: SchedulingAttributes) -> io::Result<()> {
    attributes.size = ATTRIBUTES_SIZE;
    // SAFETY: the kernel reads the size that the structure states; 0 is the calling thread.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            libc::c_long::from(0),
            &raw const attributes,
            0u32,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Locks the memory of the process: pages in use now, and future pages at their first use.
///
/// # Errors
/// Permission for all of it is missing: neither CAP_IPC_LOCK nor an unlimited RLIMIT_MEMLOCK. With a limit, later
/// allocations would fail in the middle of operation.
pub fn lock_memory() -> io::Result<()> {
    if getrlimit(Resource::Memlock).current.is_some() && !has_capability(IPC_LOCK)? {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "neither CAP_IPC_LOCK nor an unlimited RLIMIT_MEMLOCK",
        ));
    }
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: it changes the kernel's handling of pages, not their content.
    if unsafe { libc::mlockall(flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Number of CAP_IPC_LOCK (capabilities(7)).
const IPC_LOCK: u32 = 14;

/// Whether the calling thread has a capability in its effective set.
fn has_capability(number: u32) -> io::Result<bool> {
    let text = std::fs::read_to_string("/proc/thread-self/status")?;
    let set = text
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|word| u64::from_str_radix(word.trim(), 16).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/status"))?;
    Ok(set >> number & 1 == 1)
}

/// Limit of open file descriptors: the soft and the hard one (`u64::MAX`: unlimited).
pub fn open_files() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    )
}

/// Raises the soft limit of open file descriptors to the hard one, and returns it.
///
/// # Errors
/// The kernel refuses.
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

/// Raises the limit of open file descriptors so that `wanted` are possible, above the hard limit where the process may
/// (CAP_SYS_RESOURCE, up to `fs.nr_open`). Returns the limit, which is lower than `wanted` if it is refused.
pub fn raise_open_files_to(wanted: u64) -> u64 {
    let (_, hard) = open_files();
    if wanted > hard {
        let limit = Rlimit {
            current: Some(wanted),
            maximum: Some(wanted),
        };
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return open_files().0;
        }
    }
    raise_open_files().unwrap_or_else(|_| open_files().0)
}

/// Resident set size of this process, bytes.
///
/// # Errors
/// `/proc` is not mounted or has another format.
pub fn resident_bytes() -> io::Result<u64> {
    resident_in("/proc/self/statm")
}

/// Resident set size of a process, bytes.
///
/// # Errors
/// There is no such process, or as [`resident_bytes`].
pub fn resident_bytes_of(process_id: u32) -> io::Result<u64> {
    resident_in(&format!("/proc/{process_id}/statm"))
}

fn resident_in(path: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let pages: u64 = text
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, path))?;
    Ok(pages * page_bytes())
}

/// Page size, bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The effective user of this process.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Waits; a signal ends the wait.
pub fn pause(time: std::time::Duration) {
    crate::packet::wait_readable(&[], time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_a_child_ends_without_another_program() {
        let start = || {
            let mut command = Command::new("sh");
            // The child of the shell is in its group.
            command.args(["-c", "sleep 600 & wait"]).process_group(0);
            command.spawn().unwrap()
        };
        for signal in [EndSignal::Terminate, EndSignal::Kill] {
            let mut leader = start();
            signal_group(&leader, signal).unwrap();
            assert!(!leader.wait().unwrap().success(), "{signal:?}");
        }
        let mut one = start();
        kill(one.id()).unwrap();
        assert!(!one.wait().unwrap().success());
        // Its descendant is left, if it had one already.
        let _ = signal_group(&one, EndSignal::Kill);
        // Beyond the largest process number of Linux.
        assert!(kill(4_194_305).is_err());
    }

    #[test]
    fn memory_of_a_process_is_read_by_its_number() {
        let (this, own) = (
            resident_bytes_of(std::process::id()).unwrap(),
            resident_bytes().unwrap(),
        );
        assert!(this > 0 && this < 4 * own && own < 4 * this, "{this} {own}");
        // Beyond the largest process number of Linux.
        assert!(resident_bytes_of(4_194_305).is_err());
    }

    #[test]
    fn thread_without_a_processor_waits_for_it() {
        // Two threads on one processor: while one computes, the other waits.
        let compute = || {
            pin(0).unwrap();
            let before = thread_cpu_wait()?;
            while thread_cpu() < Duration::from_millis(60) {}
            Some(thread_cpu_wait()? - before)
        };
        let both = [(); 2].map(|()| std::thread::spawn(compute));
        let [one, other] = both.map(|thread| thread.join().unwrap());
        match (one, other) {
            (Some(one), Some(other)) => assert!(one.max(other) > Duration::ZERO),
            _ => eprintln!("skipped: the kernel does not count the time in run queues"),
        }
    }

    #[test]
    fn slice_is_shortened_and_other_policies_are_kept() {
        let before = scheduling_attributes().unwrap();
        let as_it_is = || {
            short_slice().unwrap();
            scheduling_attributes().unwrap()
        };
        let attributes = std::thread::spawn(as_it_is).join().unwrap();
        assert_eq!(
            (attributes.policy, attributes.nice),
            (before.policy, before.nice)
        );
        // The tests may run at idle priority, which only root may leave.
        let ordinary = || {
            let mut attributes = scheduling_attributes().unwrap();
            attributes.policy = libc::SCHED_OTHER as u32;
            let able = set_scheduling_attributes(attributes).is_ok();
            short_slice().unwrap();
            able.then(|| scheduling_attributes().unwrap())
        };
        let Some(attributes) = std::thread::spawn(ordinary).join().unwrap() else {
            eprintln!("skipped: no right to leave idle priority");
            return;
        };
        match attributes.runtime {
            // Kernels before 6.12 report none.
            0 => eprintln!("skipped: the kernel has no slices of threads"),
            runtime => assert_eq!(runtime, SHORT_SLICE),
        }
        let realtime = || {
            let able = realtime(1).is_ok();
            short_slice().unwrap();
            (able, scheduling_attributes().unwrap().policy)
        };
        let (able, policy) = std::thread::spawn(realtime).join().unwrap();
        assert_eq!(policy == libc::SCHED_FIFO as u32, able);
    }
}
