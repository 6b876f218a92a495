//! The clock of a run, and random numbers of the operating system.

use engine::{Entropy, Time};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Engine time of a run: monotonic nanoseconds since the clock was created, with the wall-clock time of that moment
/// for dates in logs and captures. Copies share the start; all parts of a run use copies of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: u64,
    wall: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

impl Clock {
    /// A clock that starts now at [`Time::ZERO`].
    pub fn new() -> Clock {
        Clock {
            start: nanos(ClockId::Monotonic),
            wall: nanos(ClockId::Realtime),
        }
    }

    /// A clock that starts now at [`Time::ZERO`], at this wall-clock time (nanoseconds since 1970): as on a machine
    /// whose clock was wrong at the start and has been set since.
    pub fn dated(unix_nanos: u64) -> Clock {
        Clock {
            wall: unix_nanos,
            ..Clock::new()
        }
    }

    /// [`Time::ZERO`] as an `Instant`, for libraries that take such.
    pub fn zero(&self) -> std::time::Instant {
        let now = std::time::Instant::now();
        let since = Duration::from_nanos(self.now().0);
        now.checked_sub(since).unwrap_or(now)
    }

    /// Nanoseconds since the start; monotonic, not affected by changes of the wall clock.
    pub fn now(&self) -> Time {
        Time(nanos(ClockId::Monotonic).saturating_sub(self.start))
    }

    /// `time` on the system's monotonic clock, nanoseconds.
    pub(crate) fn monotonic(&self, time: Time) -> u64 {
        self.start.saturating_add(time.0)
    }

    /// The wall-clock time of `time`, counted from the reading at the start.
    pub fn wall(&self, time: Time) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.wall.saturating_add(time.0))
    }

    /// Nanoseconds since 1970 (UTC) at `time`.
    pub fn unix_nanos(&self, time: Time) -> u64 {
        self.wall.saturating_add(time.0)
    }

    /// Nanoseconds since 1970 (UTC) by the present wall clock, which may have been set since the start: for dates
    /// that must be valid across restarts of the program.
    pub fn unix_nanos_now(&self) -> u64 {
        nanos(ClockId::Realtime)
    }

    /// Waits until `time`: sleeps, then spins for the last `spin`.
    pub fn sleep_until(&self, time: Time, spin: Duration) {
        loop {
            let remaining = time.since(self.now());
            if remaining.is_zero() {
                return;
            }
            if remaining > spin {
                std::thread::sleep(remaining - spin);
            } else {
                core::hint::spin_loop();
            }
        }
    }
}

/// A generator seeded by the operating system's `getrandom`.
///
/// # Errors
/// The system gives no randomness (a kernel without `getrandom`, or a sandbox that forbids it).
pub fn entropy() -> io::Result<Entropy> {
    let mut seed = [0; 32];
    let mut filled = 0;
    while filled < seed.len() {
        filled += rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty())
        })?;
    }
    Ok(Entropy::from_seed(seed))
}
