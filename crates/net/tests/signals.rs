//! Signals set flags. In a separate process, because signal handlers are per process.

use rustix::process::{Signal, getpid, kill_process};
use std::time::{Duration, Instant};

#[test]
fn signals_raise_flags() {
    let signals = net::Signals::install().unwrap();
    assert!(!signals.take_reload());
    assert_eq!(signals.stops(), 0);
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        kill_process(getpid(), signal).unwrap();
    }
    let start = Instant::now();
    // Any thread may receive each of them, in any order.
    let mut reload = false;
    while signals.stops() < 2 || !reload {
        assert!(start.elapsed() < Duration::from_secs(10));
        reload |= signals.take_reload();
    }
    assert!(!signals.take_reload());
}
