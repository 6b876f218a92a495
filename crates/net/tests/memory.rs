//! Memory that is returned to the kernel, with the allocator of the program.

use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Without a thread of its own, memory would be returned by the next thread that frees a page: here there is none.
#[test]
fn free_memory_is_returned_while_all_threads_sleep() {
    net::free_memory_in_background().expect("thread");
    let blocks: Vec<Vec<u8>> = (0..200_000).map(|_| vec![1; 500]).collect();
    let held = net::resident_bytes().expect("/proc");
    assert!(held > 100_000_000, "{held}");
    drop(blocks);
    let begun = Instant::now();
    loop {
        let left = net::resident_bytes().expect("/proc");
        if left < 40_000_000 {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{left} of {held}"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}
