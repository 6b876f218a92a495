//! Signals set flags. In a separate process, because signal handlers are per process.

use rustix::process::{Signal, getpid, kill_process};
use std::time::{Duration, Instant};

/// Whether this process was started with SIGHUP ignored (nohup).
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    // SIGHUP is number 1.
    ignored & 1 == 1
}

#[test]
fn signals_raise_flags() {
    let is_ignored = ignores_hang_up();
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
    // A command without a reload ends with its terminal, unless nohup started it.
    signals.stop_on_hang_up();
    let before = signals.stops();
    kill_process(getpid(), Signal::HUP).unwrap();
    let start = Instant::now();
    let mut reload = false;
    while signals.stops() == before && !reload {
        assert!(start.elapsed() < Duration::from_secs(10));
        reload = signals.take_reload();
    }
    assert_eq!(reload, is_ignored);
    assert_eq!(signals.stops() > before, !is_ignored);
}
