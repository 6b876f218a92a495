//! Computation of each figure of a level: the rule in words, and the records.

use super::level_summary::LevelSummary;
use crate::figures::CLASS_NAMES;

/// The rule of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// Combination of values of the trials, each at this pointer below its trial in `run.json`.
    Trials(&'static str, &'static str),
    /// The same of a list's element.
    Element(&'static str, &'static str, usize),
    /// Computed from several values of each trial.
    Several(&'static str, &'static [&'static str]),
    /// A quantile of the response times in `attempts.ndjson`.
    Response(f64),
    /// Computed from the attempts of all trials.
    Attempts(&'static str),
    /// Computed from the attempts of all trials and a value of each.
    AttemptsAnd(&'static str, &'static str),
    /// Computed from the streams of all trials.
    Streams(&'static str),
    /// Computed from samples in `measures.ndjson`.
    Samples,
}

pub(super) const MEAN: &str = "mean";
pub(super) const LARGEST: &str = "largest";
pub(super) const SMALLEST: &str = "smallest";
pub(super) const FARTHEST: &str = "farthest from zero";
pub(super) const TRIMMED: &str = "mean without the smallest and the largest";
pub(super) const SUM: &str = "sum";

/// The rule of the figure with this name.
pub(super) fn rule(name: &str) -> Rule {
    if let Some(rule) = of_attempts(name) {
        return rule;
    }
    if let Some(metric) = name.strip_prefix("sip.") {
        return Rule::Attempts(match metric.ends_with("percent") {
            true => "share of the attempts as RFC 6076 defines it",
            false => "mean over the attempts as RFC 6076 defines it",
        });
    }
    let class = name.strip_suffix(" ms");
    if let Some(class) = class.and_then(|bare| CLASS_NAMES.iter().position(|n| *n == bare)) {
        return Rule::Element(MEAN, "/details/response_classes", class);
    }
    match LevelSummary::FIGURES.contains(&name) {
        true => of_media(name),
        false => Rule::Samples,
    }
}

/// Figures of calls and registrations.
fn of_attempts(name: &str) -> Option<Rule> {
    Some(match name {
        "attempted" => Rule::Trials(MEAN, "/figures/calls/attempted"),
        "established" => Rule::Trials(MEAN, "/figures/calls/established"),
        "completed" => Rule::Trials(MEAN, "/figures/calls/completed"),
        "failed" => Rule::Trials(MEAN, "/figures/calls/failed"),
        "peak_calls" => Rule::Trials(MEAN, "/details/peak_calls"),
        "registrations" => Rule::Trials(MEAN, "/details/registrations/attempted"),
        "registered" => Rule::Trials(MEAN, "/details/registrations/established"),
        "registrations_failed" => Rule::Trials(MEAN, "/details/registrations/failed"),
        "dropped" => Rule::Several(
            "mean of: attempted less not started less established (calls; registrations if there are no calls)",
            &[
                "/figures/calls/attempted",
                "/figures/calls/established",
                "/details/registrations/attempted",
                "/details/registrations/established",
                "/details/not_started",
            ],
        ),
        "refused" => Rule::Several(
            "mean of the number of outcomes refused",
            &["/details/outcomes"],
        ),
        "response_p50_ms" => Rule::Response(0.5),
        "response_p99_ms" => Rule::Response(0.99),
        "response_max_ms" => Rule::Response(1.0),
        "cpu_us_each" => Rule::AttemptsAnd(
            "sum of the seconds, times 1,000,000, by the number of answered attempts",
            "/surroundings/subject_cpu_seconds",
        ),
        "established_per_second" => Rule::Trials(MEAN, "/details/established_per_second"),
        "in_time_per_second" => Rule::Trials(MEAN, "/details/in_time_per_second"),
        _ => return None,
    })
}

/// Figures of media and of the SUT's cost.
fn of_media(name: &str) -> Rule {
    match name {
        "streams" => Rule::Trials(MEAN, "/details/streams"),
        "packets" => Rule::Trials(MEAN, "/details/packets"),
        "lost_percent" => Rule::Streams("lost packets of all streams in percent of those expected"),
        "jitter_mean_ms" => Rule::Streams("mean of jitter_mean_ms, weighted by received packets"),
        "jitter_p99_ms" => Rule::Streams("99th percentile of jitter_p99_ms"),
        "mos" => Rule::Streams("mean of mos"),
        "jitter_max_ms" => Rule::Trials(LARGEST, "/figures/jitter_ms/max"),
        "delta_max_ms" => Rule::Trials(LARGEST, "/figures/jitter_ms/delta_max"),
        "jitter_trimmed_mean_ms" => Rule::Trials(TRIMMED, "/figures/jitter_ms/mean"),
        "jitter_trimmed_p99_ms" => Rule::Trials(TRIMMED, "/figures/jitter_ms/p99"),
        "noise_jitter_mean_ms" => Rule::Trials(TRIMMED, "/details/noise_jitter_ms/mean"),
        "noise_jitter_p99_ms" => Rule::Trials(TRIMMED, "/details/noise_jitter_ms/p99"),
        "host_noise_mean_ms" => Rule::Several(
            "mean, divided by 1000",
            &["/surroundings/own_noise/mean_us"],
        ),
        "host_noise_max_ms" => Rule::Several(
            "largest, divided by 1000",
            &["/surroundings/own_noise/max_us"],
        ),
        "subject_cores" => Rule::Trials(MEAN, "/details/subject_cores"),
        "host_cpu_percent" => Rule::Trials(MEAN, "/details/host_cpu_percent"),
        "one_way_ms" => Rule::Trials(LARGEST, "/details/one_way_ms"),
        "relay_p50_ms" => Rule::Streams("median of relay_p50_ms"),
        "relay_p99_ms" => Rule::Streams("99th percentile of relay_p99_ms"),
        "relay_max_ms" => Rule::Element(LARGEST, "/details/relay_ms", 2),
        "cpu_us_per_packet" => Rule::Trials(MEAN, "/details/cpu_us_per_packet"),
        "signalling_us_per_call" => Rule::Trials(MEAN, "/details/planes/signalling_us_per_call"),
        "media_us_per_packet" => Rule::Trials(MEAN, "/details/planes/media_us_per_packet"),
        "node_spread_percent" => Rule::Several(
            "largest of: most calls of a node less fewest, in percent of their mean",
            &["/details/node_calls"],
        ),
        "kernel_relay_percent" => Rule::Trials(SMALLEST, "/details/kernel_relay_percent"),
        "connections" => Rule::Trials(SMALLEST, "/details/connections"),
        "connections_lost" => Rule::Trials(LARGEST, "/details/connections_lost"),
        "passed_on" => Rule::Trials(MEAN, "/details/passed_on"),
        "round_trip_ms" => Rule::Trials(LARGEST, "/details/round_trip_ms"),
        "correlation" => Rule::Trials(SMALLEST, "/figures/audio/correlation"),
        "level_db" => Rule::Trials(FARTHEST, "/figures/audio/level_db"),
        _ => Rule::Samples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_a_level_has_a_rule_of_its_own() {
        for name in LevelSummary::FIGURES {
            assert_ne!(rule(name), Rule::Samples, "{name}");
        }
        assert_eq!(
            rule("10-20 ms"),
            Rule::Element(MEAN, "/details/response_classes", 1)
        );
        assert_eq!(rule("esp.seal_us"), Rule::Samples);
    }
}
