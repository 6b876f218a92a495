//! Memory that the allocator (mimalloc) returns to the kernel.
//!
//! By default the thread that frees a page returns all memory that has been free for a second: 12 to 21 ms at a time
//! where a thread frees 250,000 blocks a second (decision 88), in which a packet thread carries no packet. Here a
//! thread of its own does it.

use std::io;
use std::os::raw::{c_int, c_long};
use std::sync::Once;
use std::time::Duration;
// The allocator of the program is this library, too, through the crate `mimalloc`.
use libmimalloc_sys as _;

/// `mi_option_purge_delay` of mimalloc 3: milliseconds until free memory is returned by the thread that notices it.
const PURGE_DELAY: c_int = 15;
/// A value that is never reached, because memory is returned before.
const NEVER_MS: c_long = 86_400_000;
/// Time between two returns: that of mimalloc's default.
const INTERVAL: Duration = Duration::from_secs(1);

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// From now on a thread returns free memory to the kernel once a second, and the threads that free memory do not. The
/// second call and later ones have no effect. Without mimalloc as the global allocator there is no effect.
///
/// # Errors
/// The thread cannot be started.
pub fn free_memory_in_background() -> io::Result<()> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("memory".to_owned());
        started = thread.spawn(return_memory).map(|_| {
            // SAFETY: an option of the library, stored atomically; any value is valid.
            unsafe { mi_option_set(PURGE_DELAY, NEVER_MS) }
        });
    });
    started
}

fn return_memory() {
    // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
    let _ = crate::block_signals();
    loop {
        std::thread::sleep(INTERVAL);
        // A thread that has allocated nothing has no heap, and without one `mi_collect` does nothing.
        drop(std::hint::black_box(Box::new(0_u64)));
        // SAFETY: may be called by any thread at any time; it collects the heap of this one, and returns the free
        // memory of all.
        unsafe { mi_collect(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    /// The number of the option is that of the library in use: it has the default of its documentation.
    #[test]
    fn threads_that_free_memory_do_not_return_it() {
        // SAFETY: reads an option.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1_000, "default of mimalloc 3");
        free_memory_in_background().expect("thread");
        free_memory_in_background().expect("no second thread");
        assert_eq!(delay(), NEVER_MS);
    }
}
