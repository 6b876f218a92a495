//! CPU per call of header rules.

use super::load::beside;
use super::{Bench, Bound, Subject, median, subjects};
use crate::process::root;

/// Two headers changed and two added in every message that is passed on, towards callers and towards the called side.
const HEADER_RULES: &str = r#"
[[rules]]
trunk = "server"
direction = "out"
do = [{ set = "User-Agent", value = "Border" }, { set = "Subject", value = "Changed" },
  { add = "X-Border", value = "one" }, { add = "X-Caller", value = "${from.user}" }]
[[rules]]
kind = "access"
direction = "out"
do = [{ set = "Server", value = "Border" }, { set = "User-Agent", value = "Border" },
  { add = "X-Border", value = "one" }, { add = "X-Called", value = "${to.user}" }]
"#;

/// CPU per call with header rules, in that without them.
const BAR: f64 = 1.03;
/// Calls a second at each of both.
const RATES: [u32; 2] = [1_000, 2_000];
/// The difference is smaller than the variation between two runs: both run at once, many times.
const MORE: usize = 4;
const SECONDS: u32 = 6;
/// Where both listen.
const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The border with and without header rules at once, media bypass.
pub(super) fn header_rules(bench: &mut Bench) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join("examples/loopback-bypass.toml"))
        .map_err(|error| error.to_string())?;
    let names = ["without header rules", "2 changed, 2 added"];
    // Each at each address: where it listens makes no difference then.
    let mut ways = Vec::new();
    for address in ADDRESSES {
        for (name, rules) in names.into_iter().zip(["", HEADER_RULES]) {
            let file = format!("rules-{address}-{}.toml", rules.len());
            let path = bench.scratch.join(file);
            let text = text.replace(ADDRESSES[0], address);
            std::fs::write(&path, format!("{text}{rules}")).map_err(|error| error.to_string())?;
            let border = subjects(bench)?.into_iter().next();
            let border = border.ok_or("no border to measure")?;
            ways.push(Subject {
                name,
                ..border.with("loopback-bypass.toml", &path)
            });
        }
    }
    println!("header rules, CPU per 7-message call, both at once on one core");
    for rate in RATES {
        let mut ratios = Vec::new();
        for round in 0..bench.rounds * MORE {
            let turned = round % 2;
            let pair = [0, 1].map(|which| {
                let place = which ^ turned;
                (&ways[place * names.len() + which], ADDRESSES[place])
            });
            let [without, with] = beside(pair, rate, SECONDS, &bench.scratch)?;
            without.print(&format!("{rate}/s {}", names[0]));
            with.print(&format!("{rate}/s {}", names[1]));
            ratios.push(with.micros_per_call / without.micros_per_call);
        }
        bench.bar(
            &format!(
                "header rules (2 changed, 2 added), {rate}/s beside {rate}/s without: CPU in that"
            ),
            median(ratios),
            Bound::AtMost(BAR),
        );
    }
    Ok(())
}
