//! Signals as flags: the handler only sets a flag, and the program checks the flags between two turns.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

static RELOAD: AtomicBool = AtomicBool::new(false);
static STOP: AtomicU32 = AtomicU32::new(0);
static TERMINATED: AtomicBool = AtomicBool::new(false);
/// SIGHUP was ignored before the first handler was installed (nohup(1)).
static HANG_UP_IGNORED: AtomicBool = AtomicBool::new(false);
/// SIGHUP stops the program in place of a reload.
static HANG_UP_STOPS: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    match signal {
        libc::SIGHUP if !HANG_UP_STOPS.load(Relaxed) => RELOAD.store(true, Relaxed),
        libc::SIGTERM | libc::SIGINT | libc::SIGHUP => {
            if signal != libc::SIGINT {
                TERMINATED.store(true, Relaxed);
            }
            STOP.fetch_add(1, Relaxed);
        }
        _ => {}
    }
}

/// SIGHUP (reload), SIGTERM and SIGINT (stop). A signal also ends the wait of [`crate::Driver::turn`]. One that
/// arrives just before the wait is noticed after it, so the wait must not be longer than the acceptable response
/// time.
#[derive(Debug)]
pub struct Signals {
    _private: (),
}

impl Signals {
    /// Installs the handlers of the process.
    ///
    /// # Errors
    /// The kernel refuses a handler.
    pub fn install() -> io::Result<Signals> {
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
            // SAFETY: all zero is a valid sigaction; the handler only stores to atomics, which is async-signal-safe.
            // Without SA_RESTART a wait is interrupted, as intended.
            let done = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
                libc::sigemptyset(&raw mut action.sa_mask);
                let done = libc::sigaction(signal, &raw const action, &raw mut before);
                if done == 0 && signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
                    HANG_UP_IGNORED.store(true, Relaxed);
                }
                done
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Signals { _private: () })
    }

    /// From now on SIGHUP stops the program, as SIGTERM does, in place of a reload: a command that has nothing to
    /// reload ends with its terminal, unless it was started with SIGHUP ignored (nohup(1)).
    pub fn stop_on_hang_up(&self) {
        let is_ignored = HANG_UP_IGNORED.load(Relaxed);
        HANG_UP_STOPS.store(!is_ignored, Relaxed);
    }

    /// Whether SIGHUP arrived since the last call.
    pub fn take_reload(&self) -> bool {
        RELOAD.swap(false, Relaxed)
    }

    /// Whether SIGTERM arrived. Programs that wait without a limit after a first SIGINT do not wait after SIGTERM,
    /// which `timeout` and service managers send once.
    pub fn is_terminated(&self) -> bool {
        TERMINATED.load(Relaxed)
    }

    /// Number of stop signals: one requests an orderly stop, two an immediate one.
    pub fn stops(&self) -> u32 {
        STOP.load(Relaxed)
    }
}

/// Number of stop signals since [`Signals::install`]; zero without it.
pub fn stops() -> u32 {
    STOP.load(Relaxed)
}

/// Restores the default action of SIGPIPE, so that a closed pipe ends the process silently, as with the system's own
/// tools. For commands that only print. A program with sockets must not call it.
pub fn end_on_closed_pipe() {
    // SAFETY: the default action of a signal, set before other threads are started.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Blocks all signals in the calling thread.
///
/// # Errors
/// The kernel refuses.
pub fn block_all() -> io::Result<()> {
    // SAFETY: the set is initialised by sigfillset before it is used.
    let done = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
    };
    if done != 0 {
        return Err(io::Error::from_raw_os_error(done));
    }
    Ok(())
}
