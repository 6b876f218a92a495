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
