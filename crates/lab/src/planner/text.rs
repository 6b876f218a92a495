//! The plan as text: results, and each figure with its formula.

use super::loss::HOLD_TIMES;
use super::{Estimate, NodeCheck, NodePhase, Plan, plain_small};
use crate::error::RunVerdict;
use std::fmt::Write;

/// A number with thousands separated.
pub(super) fn grouped(value: f64) -> String {
    if value.abs() < 1_000.0 {
        return plain_small(value);
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn shown(estimate: Estimate, unit: &str) -> String {
    let unit = match unit {
        "" => String::new(),
        unit if unit.starts_with('/') => unit.to_owned(),
        unit => format!(" {unit}"),
    };
    let ends = match estimate.low < estimate.high {
        true => format!(" ({} to {})", grouped(estimate.low), grouped(estimate.high)),
        false => String::new(),
    };
    format!("{}{unit}{ends}", grouped(estimate.value))
}

impl Plan {
    /// The plan as text.
    pub fn text(&self) -> String {
        let request = &self.request;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} subscribers, {} calls each in the busy hour, {} s, protection {}, media {}, {} in packets of {} ms",
            grouped(request.subscribers as f64),
            plain_small(request.busy_hour_calls),
            plain_small(request.hold_s),
            request.protection.name(),
            request.path.name(),
            request.codec.name(),
            plain_small(request.packet_ms),
        );
        let _ = writeln!(out, "costs measured on: {}\n", self.measured_on);
        for (name, estimate, unit) in [
            ("nodes", self.nodes, ""),
            ("cores", self.cores, ""),
            ("memory", self.memory_gib, "GiB"),
            ("bandwidth", self.bandwidth_mbit, "Mbit/s"),
        ] {
            let _ = writeln!(out, "{name:<10} {}", shown(estimate, unit));
        }
        for rate in &self.node_rates {
            let _ = writeln!(out, "{}", rate.text());
        }
        out.push_str("\nEach figure, with its interval and formula:\n");
        for step in &self.steps {
            let _ = writeln!(
                out,
                "{:<10} {}: {}\n             {}",
                step.symbol,
                step.what,
                shown(step.estimate, &step.unit),
                step.formula
            );
        }
        if let Some(check) = &self.check {
            let _ = writeln!(
                out,
                "\nSimulation of {} s with {} lines: {} calls arrived, {} found no line ({}; Erlang B: {}), {} standing calls on average, {} at most{}",
                plain_small(check.seconds),
                grouped(check.lines as f64),
                grouped(check.arrived as f64),
                grouped(check.blocked as f64),
                plain_small(check.blocking),
                plain_small(check.formula_blocking),
                grouped(check.mean_calls),
                grouped(check.most_calls as f64),
                match check.cut_short {
                    true => "; ended early, because the most calls were simulated",
                    false => "",
                }
            );
        }
        if let Some(check) = self.check.as_ref().filter(|check| !check.shows_blocking) {
            let hold = self.request.hold_s;
            let _ = writeln!(
                out,
                "  {} s show no blocking: they are less than ten hold times, in which the number of standing calls hardly changes; use --simulate {} or more",
                plain_small(check.seconds),
                plain_small(HOLD_TIMES * hold)
            );
        }
        if let Some(check) = &self.node_check {
            out.push_str(&nodes_text(check, self.request.blocking));
        }
        if let Some(check) = &self.real_check {
            out.push_str(&check.text());
        }
        out
    }
}

fn nodes_text(check: &NodeCheck, blocking: f64) -> String {
    let phase = |phase: &NodePhase| {
        let peak = phase.peak_percent;
        format!(
            "{} nodes: {} calls arrived, {} refused; busiest node: cores {}, memory {}, bandwidth {}",
            phase.nodes,
            grouped(phase.arrived as f64),
            grouped(phase.refused as f64),
            shown(peak.cores, "%"),
            shown(peak.memory, "%"),
            shown(peak.bandwidth, "%"),
        )
    };
    let mut out = format!(
        "\nSimulation of the nodes, {} s each half, room for {} calls in a node:\n  all in service, {}\n",
        plain_small(check.seconds),
        grouped(check.calls_of_a_node as f64),
        phase(&check.before)
    );
    let after = match &check.after {
        Some(after) => format!(
            "after a failure, {}; {} calls ended with it",
            phase(after),
            grouped(check.cut_calls as f64)
        ),
        None => "no node fails: there is no redundancy".to_owned(),
    };
    let verdict = match check.verdict(blocking) {
        RunVerdict::Passed | RunVerdict::NotJudged => "the plan holds",
        RunVerdict::NotMeasured => {
            "not decided: ended early, because the most calls were simulated"
        }
        RunVerdict::Failed => "the plan does NOT hold",
    };
    let _ = writeln!(out, "  {after}\n  {verdict}");
    out
}
