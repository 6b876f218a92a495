//! Reports the service state to the service manager through systemd's notification socket, if there is one.

use engine::Time;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends `state` (`READY=1`, `STOPPING=1`, ...) to the socket in NOTIFY_SOCKET; without one it does nothing.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&path, state) {
        tracing::warn!("cannot notify the service manager of {state:?}: {error}");
    }
}

fn send(path: &std::ffi::OsStr, state: &str) -> std::io::Result<()> {
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block packets.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// Time that is requested with each message.
const EXTENSION: Duration = Duration::from_secs(30);
/// Time between two messages.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);
/// Time for the end of the program after its last call.
const END: Duration = Duration::from_secs(5);

/// Requests more time from the service manager while a drain goes on (EXTEND_TIMEOUT_USEC, sd_notify(3)): without it,
/// systemd kills the program after `TimeoutStopSec=`, although calls are up.
#[derive(Debug, Default)]
pub struct StopExtension {
    /// End of the drain; `None` if there is none.
    until: Option<Time>,
    last_notified: Option<Time>,
}

impl StopExtension {
    /// A stop begins, whose drain lasts at most `limit`.
    pub fn begin(&mut self, limit: Duration, now: Time) {
        *self = StopExtension {
            until: Some(now + limit + END),
            last_notified: None,
        };
    }

    /// Sends a message if one is due.
    pub fn notify_if_due(&mut self, now: Time) {
        if let Some(time) = self.due(now) {
            self.last_notified = Some(now);
            notify(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
        }
    }

    /// The time to request, if a message is due.
    fn due(&self, now: Time) -> Option<Duration> {
        let left = self.until?.since(now);
        let waited = self.last_notified.map(|last| now.since(last));
        let due = waited.is_none_or(|waited| waited >= EXTENSION_INTERVAL);
        (due && !left.is_zero()).then(|| left.min(EXTENSION))
    }
}

/// Notifies systemd's watchdog (`WatchdogSec=`) while all packet threads make progress. The first thread does it after
/// turns of its own, and only if all others have made turns since the last time.
#[derive(Debug)]
pub struct Watchdog {
    interval: Option<Duration>,
    last_notified: Option<Time>,
}

impl Watchdog {
    /// From the environment (`WATCHDOG_USEC`, `WATCHDOG_PID`: sd_watchdog_enabled(3)): three notifications per period.
    pub fn from_environment() -> Watchdog {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let period = number("WATCHDOG_USEC").filter(|_| ours);
        Watchdog {
            interval: period.map(|micros| Duration::from_micros(micros) / 3),
            last_notified: None,
        }
    }

    /// Notifies the watchdog if it is due and `all_turn` confirms progress of the other threads.
    pub fn notify_if_due(&mut self, now: Time, all_turn: impl FnOnce() -> bool) {
        if self.is_due(now) && all_turn() {
            self.last_notified = Some(now);
            notify("WATCHDOG=1");
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.interval.is_some_and(|interval| {
            self.last_notified
                .is_none_or(|last| now.since(last) >= interval)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_is_extended_until_the_end_of_the_drain() {
        let at = |seconds: u64| Time::from_millis(1_000 * seconds);
        let mut extension = StopExtension::default();
        assert_eq!(extension.due(at(0)), None);
        extension.begin(Duration::from_secs(900), at(100));
        let mut requested = Vec::new();
        for now in 100..1_200 {
            if let Some(time) = extension.due(at(now)) {
                extension.last_notified = Some(at(now));
                requested.push(now + time.as_secs());
            }
        }
        assert_eq!(requested.first(), Some(&130));
        // Each message arrives before the time of the one before has passed.
        assert_eq!(requested.len(), 91);
        assert_eq!(requested.last(), Some(&1_005));
        // A second signal ends the drain at once.
        extension.begin(Duration::ZERO, at(2_000));
        assert_eq!(extension.due(at(2_000)), Some(END));
        assert_eq!(extension.due(at(2_005)), None);
    }
}
