//! `[traces]`: OpenTelemetry traces of calls.

use super::http_url::HttpUrl;
use super::sink::{Sink, one_line, seconds};
use super::tls::{FilePath, Trust, trust};
use core::time::Duration;
use schemars::JsonSchema;
use serde::Deserialize;

/// OpenTelemetry traces of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesSpec {
    /// Resource of the collector.
    pub url: HttpUrl,
    /// Authorities for https.
    pub ca: Trust,
    /// File with the bearer token.
    pub token: Option<FilePath>,
    /// `service.name`.
    pub service: String,
    /// Share of the calls that are traced, percent.
    pub percent: u8,
    /// Ended calls that may wait for the collector.
    pub queue: usize,
    /// Longest duration of a request.
    pub timeout: Duration,
}

/// OpenTelemetry traces: one for each ended call, sent to a collector by OTLP over HTTP with JSON; docs/traces.md
/// describes the spans. Off if the table is absent. Takes effect at the next start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTraces {
    /// Resource of the collector: `http://HOST[:PORT]/PATH` or the same with `https`, usually
    /// `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Trusted certificate authorities of https: a PEM file, or `system`.
    #[serde(default = "system")]
    pub ca: String,
    /// File with a token in one line; only its owner may have access. Requests then have `Authorization: Bearer TOKEN`.
    pub token_file: Option<String>,
    /// Name of this service in traces (`service.name`).
    #[serde(default = "service")]
    #[schemars(length(min = 1))]
    pub service: String,
    /// Share of the calls that are traced, in percent.
    #[serde(default = "percent")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: u8,
    /// Ended calls that may wait for the collector. Further ones are lost and counted.
    #[serde(default = "queue")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queue: u32,
    /// Longest duration of a request in seconds, with its connection.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_s: u32,
}

fn system() -> String {
    "system".to_owned()
}

fn service() -> String {
    "hornwork".to_owned()
}

fn percent() -> u8 {
    100
}

fn queue() -> u32 {
    10_000
}

fn timeout() -> u32 {
    10
}

/// The traces of a file.
pub(super) fn traces(raw: Option<&RawTraces>, sink: &mut Sink<'_>) -> Option<TracesSpec> {
    let written = raw?;
    let url =
        match HttpUrl::parse(&written.url) {
            Ok(url) => url,
            Err(problem) => {
                sink.report(
                "traces.url",
                format!("\"{}\" is not the URL of a collector: {problem}", written.url),
                "write http://HOST[:PORT]/PATH, for example \"http://127.0.0.1:4318/v1/traces\"",
            );
                return None;
            }
        };
    if !url.is_secure && written.token_file.is_some() {
        sink.report(
            "traces.token_file",
            "the token would be sent without TLS",
            "use an https URL",
        );
    }
    if !one_line(&written.service) {
        sink.report(
            "traces.service",
            "a name has no control characters",
            "write a name such as \"hornwork\"",
        );
    }
    let token = written.token_file.as_ref();
    Some(TracesSpec {
        url,
        ca: trust(&written.ca, "traces.ca", sink),
        token: token.map(|name| FilePath::new(name, "traces.token_file", sink)),
        service: written.service.clone(),
        percent: written.percent,
        queue: written.queue as usize,
        timeout: seconds(written.timeout_s),
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn traces_need_the_url_of_a_collector() {
        let with = |more: &str| {
            let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
            parse(&text, "f")
                .map(|config| config.traces)
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        assert_eq!(with("").unwrap(), None);
        let spec = with("[traces]\nurl=\"http://127.0.0.1:4318/v1/traces\"\n");
        let spec = spec.unwrap().unwrap();
        assert_eq!((spec.percent, spec.service.as_str()), (100, "hornwork"));
        for (more, expected) in [
            ("", "`url` is missing"),
            ("url=\"localhost:4318\"", "does not begin with"),
            ("url=\"http://h/\"\ntoken_file=\"/t\"", "without TLS"),
            ("url=\"http://h/\"\npercent=0", "percent"),
        ] {
            let said = with(&format!("[traces]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
