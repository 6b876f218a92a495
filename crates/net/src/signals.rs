//! Signals as flags: a handler does nothing but raise one; the program looks at them between two turns.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

static RELOAD: AtomicBool = AtomicBool::new(false);
static STOP: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    match signal {
        libc::SIGHUP => RELOAD.store(true, Relaxed),
        libc::SIGTERM | libc::SIGINT => {
            STOP.fetch_add(1, Relaxed);
        }
        _ => {}
    }
}

/// SIGHUP (reload), SIGTERM and SIGINT (stop). A signal also ends the wait of [`crate::Driver::turn`]; one that comes just
/// before the wait is seen after it, so wait no longer than the answer to a signal may take.
#[derive(Debug)]
pub struct Signals {
    _private: (),
}

impl Signals {
    /// Takes over the signals of the process.
    ///
    /// # Errors
    /// Where the kernel refuses a handler.
    pub fn install() -> io::Result<Signals> {
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
            // SAFETY: all zero is a valid sigaction; the handler only stores to atomics, which is safe in a handler. Without
            // SA_RESTART a wait is interrupted, as wanted.
            let done = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, std::ptr::null_mut())
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Signals { _private: () })
    }

    /// Whether SIGHUP came since the last question.
    pub fn take_reload(&self) -> bool {
        RELOAD.swap(false, Relaxed)
    }

    /// How often a stop was asked for: once means in order, twice at once.
    pub fn stops(&self) -> u32 {
        STOP.load(Relaxed)
    }
}

/// How often a stop was asked for since [`Signals::install`]; zero without it.
pub fn stops() -> u32 {
    STOP.load(Relaxed)
}

/// Lets a closed pipe end the process quietly, as it does the system's own tools: for commands that print and do nothing else.
/// A program with sockets must not call it.
pub fn end_on_closed_pipe() {
    // SAFETY: the default action of a signal, set before any other thread is there.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Keeps the process's signals away from the calling thread.
///
/// # Errors
/// Where the kernel refuses.
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
