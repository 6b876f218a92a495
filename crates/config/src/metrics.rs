//! `[metrics]`: the Prometheus endpoint and the statistics file.

use super::sink::Sink;
use core::time::Duration;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Metrics for Prometheus and statistics as CSV; docs/metrics.md has the names. Off if the table is absent. Takes
/// effect at the next start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetrics {
    /// Listening address of `/metrics`: `ADDRESS:PORT`, for example `127.0.0.1:9464`. There is no authentication: the
    /// metrics have names of trunks, but no numbers, users or addresses of callers.
    pub listen: Option<String>,
    /// File to which statistics are appended as CSV, with a header line.
    pub csv: Option<String>,
    /// Seconds between two lines of that file.
    #[serde(default = "csv_interval")]
    #[schemars(range(min = 1, max = 86_400))]
    pub csv_interval_s: u32,
    /// Size in MiB from which that file is rotated: renamed to `FILE.1`, with higher numbers for older ones.
    #[serde(default = "csv_rotate_mib")]
    #[schemars(range(min = 1, max = 100_000))]
    pub csv_rotate_mib: u32,
    /// Rotated files that are kept.
    #[serde(default = "csv_keep")]
    #[schemars(range(min = 1, max = 1_000))]
    pub csv_keep: u32,
}

fn csv_rotate_mib() -> u32 {
    10
}

fn csv_keep() -> u32 {
    10
}

fn csv_interval() -> u32 {
    60
}

/// Metrics and statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSpec {
    /// Listening address.
    pub listen: Option<SocketAddr>,
    /// File of the statistics.
    pub csv: Option<PathBuf>,
    /// Interval of its lines.
    pub csv_interval: Duration,
    /// Size in bytes from which it is rotated.
    pub csv_rotate_bytes: u64,
    /// Rotated files that are kept.
    pub csv_keep: u32,
}

/// The metrics of a file.
pub(super) fn metrics(raw: Option<&RawMetrics>, sink: &mut Sink<'_>) -> Option<MetricsSpec> {
    let written = raw?;
    let remedy = "write ADDRESS:PORT, for example \"127.0.0.1:9464\"";
    let listen = written.listen.as_deref().and_then(|text| {
        let address = text.strip_prefix("http:").unwrap_or(text);
        let address = address.parse::<SocketAddr>().ok().filter(|a| a.port() != 0);
        if address.is_none() {
            let message = format!("\"{text}\" is not a listening address");
            sink.report("metrics.listen", message, remedy);
        }
        address
    });
    if written.listen.is_none() && written.csv.is_none() {
        sink.report("metrics", "`listen` and `csv` are missing", remedy);
    }
    Some(MetricsSpec {
        listen,
        csv: written.csv.as_deref().map(|text| sink.path(text)),
        csv_interval: super::sink::seconds(written.csv_interval_s),
        csv_rotate_bytes: u64::from(written.csv_rotate_mib) << 20,
        csv_keep: written.csv_keep,
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn metrics_need_an_address_or_a_file() {
        let with = |more: &str| {
            let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
            parse(&text, "f")
                .map(|config| config.metrics)
                .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
        };
        assert_eq!(with("").unwrap(), None);
        let spec = with("[metrics]\nlisten=\"127.0.0.1:9464\"\n").unwrap();
        assert_eq!(spec.unwrap().listen.unwrap().port(), 9464);
        for (more, expected) in [
            ("", "`listen` and `csv` are missing"),
            ("listen=\"localhost\"", "not a listening address"),
            ("listen=\"127.0.0.1:0\"", "not a listening address"),
            ("csv=\"/x\"\ncsv_interval_s=0", "csv_interval_s"),
        ] {
            let said = with(&format!("[metrics]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
