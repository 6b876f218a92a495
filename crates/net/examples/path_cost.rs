//! Measures the cost of a relayed packet on the border's thread for each path between two veths: sockets, the
//! shared-port socket, AF_XDP. Runs rounds over all paths, so that changes of the machine's speed affect all of them.
//! The kernel's receive processing runs in the sender's time and is not counted; its send processing, up to the far
//! end's socket, is.
//!
//! `cargo run --release -p net --example path_cost -- [rounds] [packets in a burst] [bursts in a round]`; it needs
//! root.

#[path = "../tests/suite/rig/mod.rs"]
mod rig;

use rig::{Path, Rig, TestWorld, call, enter_private_network, rtp};
use std::time::{Duration, Instant};

const PATHS: [Path; 4] = [
    Path::PerPort,
    Path::SharedPort,
    Path::AfXdp,
    Path::AfXdpSharedPort,
];
/// Number of calls over which packets are distributed.
const CALLS: u16 = 32;

/// CPU time of this thread and elapsed time per packet, and the number of packets that bypassed AF_XDP.
fn measure(path: Path, burst: u16, bursts: u16) -> Option<(f64, f64, u64)> {
    let world = TestWorld::wired_with(false, false);
    let mut rig = Rig::start(path, &world, "path_cost")?;
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ends = [a, a_rtcp, b, b_rtcp];
            let ours = call(&mut rig, number.into(), &world, 20_000 + number * 4, ends);
            (phones, ours[0])
        })
        .collect();
    // An unknown neighbour is looked up again after a second.
    let begun = Instant::now();
    while path.is_af_xdp() && rig.driver.counters().af_xdp_out == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "no way to the far end"
        );
        let (phones, to) = &calls[0];
        phones[0].send(&rtp(7, 0, 160), *to);
        rig.run(20);
    }
    let (mut spent, mut elapsed, mut sent) = (Duration::ZERO, Duration::ZERO, 0u64);
    let mut before = rig.driver.counters();
    let warm = bursts / 5 + 10;
    for number in 0..warm + bursts {
        if number == warm {
            before = rig.driver.counters();
            (spent, elapsed, sent) = (Duration::ZERO, Duration::ZERO, 0);
        }
        let out = rig.driver.counters().datagrams_out;
        for packet in 0..burst {
            let ((phones, to), turn) = (&calls[usize::from(packet % CALLS)], packet / CALLS);
            let sequence = number.wrapping_mul(burst / CALLS + 1).wrapping_add(turn);
            phones[0].send(&rtp(7, sequence, 160), *to);
        }
        let (cpu, begun) = (net::thread_cpu(), Instant::now());
        while rig.driver.counters().datagrams_out < out + u64::from(burst) {
            assert!(begun.elapsed() < Duration::from_secs(5), "packets are lost");
            rig.turn();
        }
        spent += net::thread_cpu().saturating_sub(cpu);
        elapsed += begun.elapsed();
        sent += u64::from(burst);
        for (phones, _) in &calls {
            while phones[2].0.recv(&mut [0; 256]).is_ok() {}
        }
    }
    let aside = rig.driver.counters().af_xdp_bypassed - before.af_xdp_bypassed;
    let each = |span: Duration| span.as_nanos() as f64 / sent as f64;
    Some((each(spent), each(elapsed), aside))
}

fn main() {
    let word = |at: usize, default: u16| match std::env::args().nth(at) {
        Some(text) => text.parse().unwrap_or(default),
        None => default,
    };
    let (rounds, burst, bursts) = (word(1, 5), word(2, 64), word(3, 500));
    let work = move || {
        for round in 0..rounds {
            for path in PATHS {
                // A new namespace each time, without state of an earlier one.
                let one = move || {
                    if enter_private_network("path_cost")
                        && let Some((cpu, time, aside)) = measure(path, burst, bursts)
                    {
                        let rate = 1e9 / time;
                        println!(
                            "round {round} {path:?}: {cpu:.0} ns of processor a packet, {rate:.0} packets/s, aside {aside}"
                        );
                    }
                };
                if std::thread::spawn(one).join().is_err() {
                    std::process::exit(1);
                }
            }
        }
    };
    work();
}
