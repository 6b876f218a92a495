//! What header rules cost.

use super::load::played;
use super::{Bench, Bound, RATES, Subject, interleaved, subjects};
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
/// The difference is smaller than what the machine does between two runs: many short ones, next to each other.
const MORE: usize = 3;
const SECONDS: u32 = 4;

/// The border with and without header rules in turn, media passed by.
pub(super) fn header_rules(bench: &mut Bench) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join("examples/loopback-bypass.toml"))
        .map_err(|error| error.to_string())?;
    let names = ["without header rules", "2 changed, 2 added"];
    let mut ways = Vec::new();
    for (name, file, rules) in [
        (names[0], "plain.toml", ""),
        (names[1], "rules.toml", HEADER_RULES),
    ] {
        let path = bench.scratch.join(file);
        std::fs::write(&path, format!("{text}{rules}")).map_err(|error| error.to_string())?;
        let border = subjects(bench).into_iter().next();
        let border = border.ok_or("no border to measure")?;
        ways.push(Subject {
            name,
            ..border.with("loopback-bypass.toml", &path)
        });
    }
    println!("header rules, CPU per 7-message call");
    for rate in RATES {
        let medians = interleaved(bench.rounds * MORE, &names, |way| {
            let (uac, uas) = (["-sn", "uac"], ["-sn", "uas"]);
            let run = played(&ways[way], rate, SECONDS, &uac, &uas, &bench.scratch)?;
            run.print(&format!("{rate}/s {}", names[way]));
            Ok(run.micros_per_call)
        })?;
        bench.bar(
            &format!("header rules (2 changed, 2 added), {rate}/s: CPU in that without"),
            medians[1] / medians[0],
            Bound::AtMost(BAR),
        );
    }
    Ok(())
}
