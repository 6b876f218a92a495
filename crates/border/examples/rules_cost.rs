//! What header rules cost: the border's own time per 7-message call in memory, without rules, with rules that look at every
//! message and change nothing, and with rules that change two headers and add two in every message that leaves.
//! `rules_cost [BLOCKS [CASE]]`, by default 60 blocks of 1,000 calls each, interleaved; the least and the middle of each are told.
//! With CASE, counted from 0, that case alone: for whoever counts instructions.

mod seven;

use seven::{Bench, set_up, tear_down};
use std::time::Duration;

const CONFIG: &str = "[[interface]]\nname='a'\nkind='core'\nlisten='udp:192.0.2.1:5060'\n\
    [[trunk]]\nname='b'\ninterface='a'\ntarget='udp:198.51.100.1:5060'\n\
    [[route]]\ntrunk='b'\nmedia='bypass'\n";

/// Every message is looked at, on its way in and out.
const LOOK: &str = "[[rules]]\ndirection='in'\nwhen='from.user == \"nobody\" || uri.host.startsWith(\"x\")'\n\
    do=[{set='Subject', value='x'}]\n\
    [[rules]]\ndirection='out'\nwhen='\"X-Never\" in header && status in [180, 200]'\ndo=[{set='Subject', value='x'}]\n";

/// Rules of a method that no call has.
const ELSEWHERE: &str = "[[rules]]\ndirection='in'\nmethod='REGISTER'\nwhen='from.user == \"nobody\"'\n\
    do=[{set='Subject', value='x'}]\n\
    [[rules]]\ndirection='out'\nmethod=['REGISTER', 'MESSAGE']\ndo=[{set='Subject', value='x'}]\n";

/// Two changed, two added, towards both sides.
const CHANGE: &str = "[[rules]]\nname='to the caller'\ndirection='out'\nkind='core'\nwhen='trunk == \"\"'\n\
    do=[{set='Server', value='Switch'}, {set='User-Agent', value='Phone'}, {add='X-Border', value='one'}, \
    {add='X-Side', value='caller'}]\n\
    [[rules]]\nname='to the callee'\ndirection='out'\ntrunk='b'\n\
    do=[{set='User-Agent', value='Border'}, {set='Subject', value='Changed'}, {add='X-Border', value='one'}, \
    {add='X-Side', value='callee'}]\n";

/// The same in messages that come: they are written anew before anyone looks at them.
const CHANGE_IN: &str = "[[rules]]\ndirection='in'\n\
    do=[{set='User-Agent', value='Border'}, {set='Subject', value='Changed'}, {add='X-Border', value='one'}, \
    {add='X-Side', value='callee'}]\n";

fn main() {
    let blocks: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(60);
    let only: Option<usize> = std::env::args().nth(2).and_then(|text| text.parse().ok());
    let mut cases = vec![
        ("without rules", ""),
        ("rules of other methods", ELSEWHERE),
        ("every message looked at", LOOK),
        ("2 changed, 2 added, out", CHANGE),
        ("2 changed, 2 added, in", CHANGE_IN),
    ];
    if let Some(only) = only {
        cases = vec![cases[only.min(cases.len() - 1)]];
    }
    let warm = if only.is_some() { 0 } else { 10 };
    let mut benches: Vec<Bench> = cases
        .iter()
        .map(|(_, rules)| Bench::new(&format!("{CONFIG}{rules}")))
        .collect();
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); cases.len()];
    let mut call = 0;
    for block in 0..blocks + warm {
        for (bench, times) in benches.iter_mut().zip(&mut times) {
            bench.spent = Duration::ZERO;
            for number in call..call + 1_000 {
                bench.now += Duration::from_micros(500);
                bench.tick();
                let ok = set_up(bench, number);
                tear_down(bench, number, &ok);
            }
            // The first blocks only warm.
            if block >= warm {
                times.push(bench.spent.as_nanos() as u64 / 1_000);
            }
        }
        call += 1_000;
    }
    for list in &mut times {
        list.sort_unstable();
    }
    let of = |list: &[u64]| (list[0], list[list.len() / 2]);
    let (least, middle) = of(&times[0]);
    for ((name, _), list) in cases.iter().zip(&times) {
        let (a, b) = of(list);
        println!(
            "{name:<26} least {a:>6} ns/call ({:+5.1} %), middle {b:>6} ns/call ({:+5.1} %)",
            (a as f64 / least as f64 - 1.0) * 100.0,
            (b as f64 / middle as f64 - 1.0) * 100.0,
        );
    }
}
