//! Calls of mobile networks beside plain ones.

use super::load::played;
use super::{Bench, Bound, SECONDS, interleaved, subjects};
use crate::process::root;

/// Calls a second of both flows where they are compared: SIPp reads the answers of the longer one with regular
/// expressions.
const RATE: u32 = 1_000;
/// CPU time of a VoLTE call at most, in plain calls.
const BAR: f64 = 2.6;

/// CPU per call of twenty messages beside that of seven, interleaved, at one rate, media bypass.
pub(super) fn volte(bench: &mut Bench) -> Result<(), String> {
    let subjects = subjects(bench)?;
    let border = subjects.first().ok_or("no border to measure")?;
    let scenario = |name: &str| {
        let path = root().join("scenarios/sipp").join(name);
        path.display().to_string()
    };
    let (uac, uas) = (scenario("volte-uac.xml"), scenario("volte-uas.xml"));
    println!("VoLTE calls (20 messages) beside plain ones (7), {RATE}/s, media bypass");
    let flows = [
        ("plain", ["-sn", "uac"], ["-sn", "uas"]),
        ("VoLTE", ["-sf", &uac], ["-sf", &uas]),
    ];
    let medians = interleaved(bench.rounds, &["plain", "VoLTE"], |flow| {
        let (name, uac, uas) = &flows[flow];
        let run = played(border, RATE, SECONDS, uac, uas, &bench.scratch)?;
        run.print(&format!("{RATE}/s {name}"));
        Ok(run.micros_per_call)
    })?;
    bench.bar(
        &format!("VoLTE call, {RATE}/s: CPU in that of a plain call"),
        medians[1] / medians[0],
        Bound::AtMost(BAR),
    );
    Ok(())
}
