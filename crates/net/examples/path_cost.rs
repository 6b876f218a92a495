//! What a relayed packet costs the border's thread on each path between two veths: sockets, one socket, AF_XDP. Run in rounds, path after path, so
//! that the machine's better and worse moments meet all of them. What the kernel does on receipt is done in the sender's time, which is
//! not counted; what it does on sending, up to the far end's socket, is.
//!
//! `cargo run --release -p net --example path_cost -- [rounds] [packets in a burst] [bursts in a round]`; it takes root.

#[path = "../tests/suite/rig/mod.rs"]
mod rig;

use rig::{Path, Rig, World, call, private_network, rtp};
use std::time::{Duration, Instant};

const PATHS: [Path; 4] = [Path::PerPort, Path::One, Path::Express, Path::ExpressOne];
/// Calls among which packets are spread.
const CALLS: u16 = 32;

/// Processor time of this thread and elapsed time for each packet, and how many went aside.
fn measure(path: Path, burst: u16, bursts: u16) -> Option<(f64, f64, u64)> {
    let world = World::wired_as(false, false);
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
    // A neighbour that is not known at once is looked for again after a second.
    let begun = Instant::now();
    while path.is_express() && rig.driver.counters().express_out == 0 {
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
    let aside = rig.driver.counters().express_aside - before.express_aside;
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
                // A network of its own each time: nothing of an earlier one is left.
                let one = move || {
                    if private_network("path_cost")
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
