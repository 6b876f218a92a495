//! Cost of a standing call: many calls through the border in memory, media passed by, its caller and callee played
//! by ready-made messages. Prints bytes per standing call (of the heap, counted, and of the process) and the
//! border's own time per 7-message call. `standing_cost [CALLS]`, by default 100,000.

mod seven;

use seven::{Bench, CALLEE, CALLER, find, inside, reply, set_up, tear_down};
use std::time::Duration;

const CONFIG: &str = "[[interface]]\nname='a'\nkind='core'\nlisten='udp:192.0.2.1:5060'\nallow='203.0.113.0/24'\n\
    [[trunk]]\nname='b'\ninterface='a'\ntarget='udp:198.51.100.1:5060'\n\
    [[route]]\ntrunk='b'\nmedia='bypass'\n";

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * 4096
}

fn main() {
    let calls: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(100_000);
    let mut bench = Bench::new(CONFIG);
    // The standing calls first: in a fresh process, so that nothing is hidden in memory that was used before.
    let before = resident();
    let mut standing = Vec::with_capacity(calls);
    for call in 0..calls {
        bench.now += Duration::from_micros(500);
        bench.tick();
        let ok = set_up(&mut bench, call);
        standing.push(inside(call, "BYE", 2, &ok));
    }
    let kept: usize = standing.iter().map(|bye| bye.capacity() + 24).sum();
    for _ in 0..40_000 {
        bench.now += Duration::from_millis(1);
        bench.tick();
    }
    let grown = resident().saturating_sub(before);
    let census = bench.border.census();
    assert_eq!(census.calls, calls, "{census:?}");
    for bye in standing {
        bench.give(CALLER, bye);
        let bye = find(&bench.out, "BYE");
        bench.give(CALLEE, reply(&bye, "200 OK", "", ""));
    }
    for _ in 0..100_000 {
        bench.now += Duration::from_millis(1);
        bench.tick();
    }
    let left = bench.border.census();
    assert!(left.is_quiet(), "{left:?}");
    // Whole calls at 2,000 a second, ended transactions lingering as in service; the first half only warms.
    let timed = 50_000;
    for call in calls..calls + timed {
        bench.now += Duration::from_micros(500);
        bench.tick();
        let ok = set_up(&mut bench, call);
        tear_down(&mut bench, call, &ok);
        if call == calls + timed / 2 {
            bench.spent = Duration::ZERO;
        }
    }
    let per_call = bench.spent.as_nanos() / (timed as u128 / 2);
    println!("calls {calls}");
    println!("ns_per_call {per_call}");
    println!(
        "bytes_per_call {}",
        grown.saturating_sub(kept as u64) / calls as u64
    );
    println!("kept_bytes_per_call {}", census.sip.kept_bytes / calls);
    println!("{census:?}");
}
