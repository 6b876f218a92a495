//! Telling the service manager how far we are: systemd's notification socket, where there is one.

use engine::Time;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends `state` (`READY=1`, `STOPPING=1`, ...) to the socket that NOTIFY_SOCKET names; without one nothing happens.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&path, state) {
        tracing::warn!("the service manager cannot be told {state:?}: {error}");
    }
}

fn send(path: &std::ffi::OsStr, state: &str) -> std::io::Result<()> {
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read holds up no packet.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// Tells systemd's watchdog (`WatchdogSec=`) that all threads that carry packets get on. The first of them does it, after turns of its own,
/// and only where all others have made turns since the last time.
#[derive(Debug)]
pub struct Watchdog {
    every: Option<Duration>,
    fed: Option<Time>,
}

impl Watchdog {
    /// As the environment says (`WATCHDOG_USEC`, `WATCHDOG_PID`: sd_watchdog_enabled(3)): it is fed three times in each period.
    pub fn from_environment() -> Watchdog {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let period = number("WATCHDOG_USEC").filter(|_| ours);
        Watchdog {
            every: period.map(|micros| Duration::from_micros(micros) / 3),
            fed: None,
        }
    }

    /// Feeds it where it is time and `all_turn` says that the other threads get on.
    pub fn feed(&mut self, now: Time, all_turn: impl FnOnce() -> bool) {
        if self.is_due(now) && all_turn() {
            self.fed = Some(now);
            notify("WATCHDOG=1");
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.every
            .is_some_and(|every| self.fed.is_none_or(|fed| now.since(fed) >= every))
    }
}
