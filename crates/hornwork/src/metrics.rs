//! Metrics in the text format of Prometheus, statistics as CSV, and the periodic check of alarms. Every metric is
//! declared once, in [`METRICS`]; docs/metrics.md is generated from it.

mod alarm_check;
mod statistics;

use crate::alarms::{AlarmKind, WrittenFolders};
use crate::cpu_time::cpu_seconds;
use crate::event_output::{OUTCOMES, SETUP_BOUNDS_MS, TrunkOutcomes, outcomes};
use crate::gateway::GatewayFigures;
use crate::log::EventLog;
use crate::operators::{Operators, Statistics, StoreState};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use border::border::CallOutcome;
use border::views::{NodeView, TrunkView};
use config::{Config, MetricsSpec};
use engine::{DropReason, Event, EventKind};
use net::Clock;
use statistics::StatisticsFile;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only grows, until a restart.
    Counter,
    /// It grows and falls.
    Gauge,
    /// Distribution in cumulative buckets.
    Histogram,
}

impl MetricKind {
    /// The name in the text format.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// A declared metric.
#[derive(Debug)]
pub(crate) struct MetricSpec {
    /// Name; the unit is its last word before `_total`.
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// Names of its labels.
    pub(crate) labels: &'static [&'static str],
    /// Meaning.
    pub(crate) help: &'static str,
}

const fn spec(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricSpec {
    MetricSpec {
        name,
        kind,
        labels,
        help,
    }
}

use MetricKind::{Counter, Gauge, Histogram};

/// All metrics, in the order of writing. Labels have bounded values: reasons and results are declared, trunks, nodes
/// and threads are those of the configuration.
pub(crate) const METRICS: &[MetricSpec] = &[
    spec(
        "hornwork_build_info",
        Gauge,
        &["version"],
        "1, with the version of the program.",
    ),
    spec(
        "hornwork_calls_active",
        Gauge,
        &[],
        "Calls in progress, from the INVITE to the end of the last leg.",
    ),
    spec(
        "hornwork_calls_offered_total",
        Counter,
        &[],
        "Calls received; an INVITE that is only challenged is none.",
    ),
    spec(
        "hornwork_calls_answered_total",
        Counter,
        &[],
        "Calls answered.",
    ),
    spec(
        "hornwork_calls_total",
        Counter,
        &["result"],
        "Calls ended since the start, by result; their sum is the number of call records of this run, without those of calls that a crash cut.",
    ),
    spec(
        "hornwork_call_setup_seconds",
        Histogram,
        &[],
        "Time from the INVITE to the answer, of answered calls.",
    ),
    spec(
        "hornwork_media_timeouts_total",
        Counter,
        &[],
        "Calls ended because their media stopped.",
    ),
    spec(
        "hornwork_media_ports_exhausted_total",
        Counter,
        &[],
        "Calls or media lines refused for lack of ports.",
    ),
    spec(
        "hornwork_registrations_active",
        Gauge,
        &[],
        "Registered contacts.",
    ),
    spec(
        "hornwork_requests_refused_total",
        Counter,
        &["reason"],
        "Requests refused: rate_limit, overload (queueing delay), unread (shed without reading), admission (memory or CPU time), authentication (wrong credentials).",
    ),
    spec(
        "hornwork_rtp_packets_total",
        Counter,
        &[],
        "RTP packets received and accepted from any side of a call.",
    ),
    spec(
        "hornwork_rtp_packets_kernel_total",
        Counter,
        &[],
        "RTP packets relayed by the kernel, counted when a stream leaves the kernel relay.",
    ),
    spec(
        "hornwork_rtp_packets_lost_total",
        Counter,
        &[],
        "RTP packets of ended calls that were lost before they arrived.",
    ),
    spec(
        "hornwork_rtp_packets_ended_total",
        Counter,
        &[],
        "RTP packets of ended calls that arrived, those at media nodes included: the loss is hornwork_rtp_packets_lost_total in relation to the sum of both.",
    ),
    spec(
        "hornwork_drops_total",
        Counter,
        &["reason"],
        "Input discarded, by reason; docs/events.md has the reasons.",
    ),
    spec(
        "hornwork_trunk_up",
        Gauge,
        &["trunk"],
        "1 if a target of the trunk is up.",
    ),
    spec(
        "hornwork_trunk_enabled",
        Gauge,
        &["trunk"],
        "0 if an operator has taken the trunk out of service.",
    ),
    spec(
        "hornwork_trunk_calls_active",
        Gauge,
        &["trunk"],
        "Calls from and to the trunk.",
    ),
    spec(
        "hornwork_trunk_calls_total",
        Counter,
        &["trunk", "result"],
        "Ended calls of the trunk, by result: of calls sent to several trunks, the last.",
    ),
    spec(
        "hornwork_media_node_up",
        Gauge,
        &["node"],
        "1 if the media node answers.",
    ),
    spec(
        "hornwork_media_node_calls_active",
        Gauge,
        &["node"],
        "Calls of this border at the media node.",
    ),
    spec(
        "hornwork_overload_active",
        Gauge,
        &[],
        "1 while requests are refused because of the queueing delay.",
    ),
    spec(
        "hornwork_queue_delay_seconds",
        Gauge,
        &[],
        "Queueing delay of the last signalling message; of several workers the longest.",
    ),
    spec(
        "hornwork_draining",
        Gauge,
        &[],
        "1 while new calls are refused because of a drain.",
    ),
    spec(
        "hornwork_cpu_seconds_total",
        Counter,
        &["thread"],
        "CPU time by thread, that of ended ones included: hornwork and worker carry packets, the others serve records, control and log.",
    ),
    spec("hornwork_memory_bytes", Gauge, &[], "Resident memory."),
    spec(
        "hornwork_records_total",
        Counter,
        &["result"],
        "Call records: written, lost (the queue was full), incomplete (the queue was full for a time, so that they lack a route, a tag, or figures of the set-up or the media; included in written), cut (written at the start for calls that a crash cut; included in written).",
    ),
    spec(
        "hornwork_records_failing",
        Gauge,
        &[],
        "1 while call records cannot be written.",
    ),
    spec(
        "hornwork_store_lost_total",
        Counter,
        &["kind"],
        "Items that the store of calls and messages could not keep, by kind: messages, events, drops (the sum of their counts), calls (their record, or the last change of it).",
    ),
    spec(
        "hornwork_store_unindexed_total",
        Counter,
        &[],
        "Messages that are in the files of the store and that no search finds: without SIP, without Call-ID, or beyond the calls that fit into the memory.",
    ),
    spec(
        "hornwork_store_failing",
        Gauge,
        &[],
        "1 while the store of calls and messages cannot be written.",
    ),
    spec(
        "hornwork_hep_packets_total",
        Counter,
        &["direction", "result"],
        "HEP packets: sent to the collector (ok, socket: refused by the socket, too long) and received from capture agents (ok, malformed, no SIP: neither SIP nor RTCP, no report: RTCP without a report block, unknown call: RTCP of a call that is not stored, rate limit, queue full: the store is too slow).",
    ),
    spec(
        "hornwork_gateway_packets_total",
        Counter,
        &["direction"],
        "Packets of the IPsec gateway: sealed (sent to peers), opened (received from them).",
    ),
    spec(
        "hornwork_gateway_bytes_total",
        Counter,
        &["direction"],
        "Bytes of their inner packets.",
    ),
    spec(
        "hornwork_gateway_direct_packets_total",
        Counter,
        &["direction"],
        "Of the packets of the IPsec gateway, media of calls that passed directly, without the TUN device and the kernel (`media` in `[gateway]`): sealed, opened.",
    ),
    spec(
        "hornwork_gateway_drops_total",
        Counter,
        &["reason"],
        "Packets that the IPsec gateway has dropped, by reason; docs/events.md has the reasons.",
    ),
    spec(
        "hornwork_gateway_associations",
        Gauge,
        &[],
        "Security associations of the IPsec gateway.",
    ),
    spec(
        "hornwork_gateway_tunnels_up",
        Gauge,
        &[],
        "Tunnels of the IPsec gateway with a security association that seals.",
    ),
    spec(
        "hornwork_gateway_notices_lost_total",
        Counter,
        &[],
        "Log lines of the IPsec gateway for which there was no room.",
    ),
    spec(
        "hornwork_events_lost_total",
        Counter,
        &[],
        "Events dropped because the program did not read them in time.",
    ),
    spec(
        "hornwork_alarms_active",
        Gauge,
        &["severity"],
        "Active alarms.",
    ),
    spec(
        "hornwork_trace_spans_total",
        Counter,
        &["result"],
        "Spans of traces: sent, lost (no room, or the collector did not accept them).",
    ),
    spec(
        "hornwork_alarm_notices_total",
        Counter,
        &["receiver", "result"],
        "Notices about alarms, by receiver: sent, lost (the queue was full, or the receiver did not accept them).",
    ),
    spec(
        "hornwork_alarm_notices_waiting",
        Gauge,
        &["receiver"],
        "Notices about alarms that wait for the receiver.",
    ),
    spec(
        "hornwork_alarm_receiver_failing",
        Gauge,
        &["receiver"],
        "1 if the last attempt to send a notice to the receiver failed.",
    ),
];

/// The reference page of metrics and alarms.
pub(crate) fn markdown() -> String {
    let mut page = String::from(
        "# Metrics and alarms\n\nGenerated by `cargo xtask docs` from `crates/hornwork/src/metrics.rs` and `alarms.rs`. `[metrics] listen` serves them at `/metrics` in the text format of Prometheus; [monitoring](how-to/monitoring.md) has the set-up.\n\n## Metrics\n\n| name | type | labels | meaning |\n| --- | --- | --- | --- |\n",
    );
    for spec in METRICS {
        let labels: Vec<String> = spec
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            spec.name,
            spec.kind.name(),
            labels.join(", "),
            spec.help
        );
    }
    page.push_str("\n## Results of calls\n\n`result` of `hornwork_calls_total` and `hornwork_trunk_calls_total`, by the final status that the caller got:\n\n| result | meaning |\n| --- | --- |\n");
    for (name, text) in CallOutcome::REFERENCE {
        let _ = writeln!(page, "| `{name}` | {} |", text.trim());
    }
    page.push_str("\nCounters begin at 0 with each start. After a crash the calls that it cut are in none of them: their records are written at the next start, with `cut` set, and counted in `hornwork_records_total{result=\"cut\"}`. So the results of a run add up to its records without the cut ones, as long as none are lost.\n\n## Alarms\n\n`alarm_raised` and `alarm_cleared` are logged, and `hornwork ctl alarms list` shows them.\n\n| name | severity | meaning |\n| --- | --- | --- |\n");
    for (name, severity, text) in AlarmKind::REFERENCE {
        let _ = writeln!(page, "| `{name}` | {severity} | {} |", text.trim());
    }
    page
}

/// Values of the metrics of one scrape.
#[derive(Debug, Default)]
pub(crate) struct MetricValues {
    values: BTreeMap<&'static str, Vec<(Vec<String>, String)>>,
}

impl MetricValues {
    fn set(&mut self, name: &'static str, labels: &[&str], value: impl ToString) {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let values = self.values.entry(name).or_default();
        values.push((labels, value.to_string()));
    }

    /// The text format, version 0.0.4.
    fn text(&self) -> String {
        let mut out = String::new();
        for spec in METRICS {
            let Some(values) = self.values.get(spec.name) else {
                continue;
            };
            let (name, kind) = (spec.name, spec.kind.name());
            // Writing to a String cannot fail.
            let _ = write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n", spec.help);
            for (labels, value) in values {
                match spec.kind {
                    MetricKind::Histogram => histogram_line(&mut out, name, labels, value),
                    MetricKind::Counter | MetricKind::Gauge => {
                        let pairs: Vec<String> = spec
                            .labels
                            .iter()
                            .zip(labels)
                            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                            .collect();
                        let pairs = match pairs.is_empty() {
                            true => String::new(),
                            false => format!("{{{}}}", pairs.join(",")),
                        };
                        let _ = writeln!(out, "{name}{pairs} {value}");
                    }
                }
            }
        }
        out
    }
}

/// A line of a histogram: the label is `sum`, `count`, or an upper bound.
fn histogram_line(out: &mut String, name: &str, labels: &[String], value: &str) {
    let _ = match labels.first().map(String::as_str) {
        Some(part @ ("sum" | "count")) => writeln!(out, "{name}_{part} {value}"),
        bound => writeln!(
            out,
            "{name}_bucket{{le=\"{}\"}} {value}",
            bound.unwrap_or("+Inf")
        ),
    };
}

/// A label value, escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn flag(value: bool) -> u8 {
    u8::from(value)
}

/// Resident memory of this process; 0 without `/proc`.
pub(crate) fn memory_bytes() -> u64 {
    net::resident_bytes().unwrap_or(0)
}

/// The values of a scrape.
fn values(
    statistics: &Statistics,
    (trunks, outcomes_of_trunks): (&[TrunkView], &TrunkOutcomes),
    operators: &Operators,
) -> MetricValues {
    let mut out = MetricValues::default();
    let counters = &statistics.counters;
    out.set("hornwork_build_info", &[env!("CARGO_PKG_VERSION")], 1);
    out.set("hornwork_calls_active", &[], statistics.calls);
    out.set("hornwork_calls_offered_total", &[], counters.offered);
    out.set("hornwork_calls_answered_total", &[], counters.answered);
    for (result, count) in OUTCOMES.iter().zip(outcomes(counters)) {
        out.set("hornwork_calls_total", &[result], count);
    }
    set_setup_times(&mut out, statistics);
    out.set(
        "hornwork_media_timeouts_total",
        &[],
        counters.media_timeouts,
    );
    out.set(
        "hornwork_media_ports_exhausted_total",
        &[],
        counters.ports_exhausted,
    );
    out.set(
        "hornwork_registrations_active",
        &[],
        statistics.registrations,
    );
    for (reason, count) in [
        ("rate_limit", counters.shielded),
        ("overload", counters.shed),
        ("unread", counters.unread),
        ("admission", counters.not_admitted),
        ("authentication", counters.authentication_failed),
    ] {
        out.set("hornwork_requests_refused_total", &[reason], count);
    }
    out.set("hornwork_rtp_packets_total", &[], statistics.packets);
    out.set(
        "hornwork_rtp_packets_kernel_total",
        &[],
        statistics.relayed_in_kernel,
    );
    out.set(
        "hornwork_rtp_packets_lost_total",
        &[],
        statistics.counts.media_lost,
    );
    out.set(
        "hornwork_rtp_packets_ended_total",
        &[],
        statistics.counts.media_packets,
    );
    for reason in DropReason::ALL {
        out.set(
            "hornwork_drops_total",
            &[reason.name()],
            statistics.drops.get(*reason),
        );
    }
    set_trunks(&mut out, trunks, outcomes_of_trunks);
    set_nodes(&mut out, &statistics.nodes);
    out.set(
        "hornwork_overload_active",
        &[],
        flag(statistics.overload.active),
    );
    let delay = statistics.overload.queue_delay.as_secs_f64();
    out.set("hornwork_queue_delay_seconds", &[], delay);
    out.set("hornwork_draining", &[], flag(statistics.draining));
    for (thread, seconds) in cpu_seconds() {
        out.set("hornwork_cpu_seconds_total", &[&thread], seconds);
    }
    out.set("hornwork_memory_bytes", &[], memory_bytes());
    if let Some(records) = &operators.records {
        for (result, count) in [
            ("written", &records.written),
            ("lost", &records.lost),
            ("incomplete", &records.incomplete),
            ("cut", &records.cut),
        ] {
            out.set("hornwork_records_total", &[result], count.load(Relaxed));
        }
        out.set(
            "hornwork_records_failing",
            &[],
            records.failing.load(Relaxed),
        );
    }
    if let Some(store) = &statistics.store {
        set_store(&mut out, store);
    }
    if let Some(hep) = &operators.hep {
        for (direction, result, packets) in hep.counts() {
            out.set("hornwork_hep_packets_total", &[direction, result], packets);
        }
    }
    if let Some(gateway) = &operators.gateway {
        set_gateway(&mut out, gateway);
    }
    out.set("hornwork_events_lost_total", &[], statistics.events_lost);
    for severity in ["critical", "major", "minor"] {
        out.set(
            "hornwork_alarms_active",
            &[severity],
            operators.alarms.active(severity),
        );
    }
    if let Some(traces) = &operators.traces {
        let (sent, lost) = (traces.sent.load(Relaxed), traces.lost.load(Relaxed));
        out.set("hornwork_trace_spans_total", &["sent"], sent);
        out.set("hornwork_trace_spans_total", &["lost"], lost);
    }
    set_receivers(&mut out, operators);
    out
}

fn set_receivers(out: &mut MetricValues, operators: &Operators) {
    for queue in operators.alarms.receivers() {
        let (name, counters) = (&*queue.receiver, &queue.counters);
        let sent = counters.sent.load(Relaxed);
        out.set("hornwork_alarm_notices_total", &[name, "sent"], sent);
        let lost = counters.lost.load(Relaxed);
        out.set("hornwork_alarm_notices_total", &[name, "lost"], lost);
        let waiting = counters.waiting.load(Relaxed);
        out.set("hornwork_alarm_notices_waiting", &[name], waiting);
        let failing = flag(counters.failing.load(Relaxed));
        out.set("hornwork_alarm_receiver_failing", &[name], failing);
    }
}

fn set_store(out: &mut MetricValues, store: &StoreState) {
    for (kind, count) in store.lost.kinds() {
        out.set("hornwork_store_lost_total", &[kind], count);
    }
    out.set("hornwork_store_unindexed_total", &[], store.unindexed);
    out.set("hornwork_store_failing", &[], flag(store.failing));
}

fn set_gateway(out: &mut MetricValues, gateway: &GatewayFigures) {
    for (direction, packets, bytes, direct) in [
        (
            "sealed",
            &gateway.sealed,
            &gateway.sealed_bytes,
            &gateway.direct_sealed,
        ),
        (
            "opened",
            &gateway.opened,
            &gateway.opened_bytes,
            &gateway.direct_opened,
        ),
    ] {
        let label = &[direction];
        out.set(
            "hornwork_gateway_direct_packets_total",
            label,
            direct.load(Relaxed),
        );
        out.set(
            "hornwork_gateway_packets_total",
            label,
            packets.load(Relaxed),
        );
        out.set("hornwork_gateway_bytes_total", label, bytes.load(Relaxed));
    }
    for (reason, count) in gateway.drops() {
        out.set("hornwork_gateway_drops_total", &[reason.name()], count);
    }
    let associations = gateway.associations.load(Relaxed);
    out.set("hornwork_gateway_associations", &[], associations);
    let up = gateway.tunnels_up.load(Relaxed);
    out.set("hornwork_gateway_tunnels_up", &[], up);
    let lost = gateway.notices_lost.load(Relaxed);
    out.set("hornwork_gateway_notices_lost_total", &[], lost);
}

fn set_setup_times(out: &mut MetricValues, statistics: &Statistics) {
    let counts = &statistics.counts;
    let mut total = 0;
    for (bound, count) in SETUP_BOUNDS_MS.iter().zip(counts.setup) {
        total += count;
        let bound = (*bound as f64 / 1_000.0).to_string();
        out.set("hornwork_call_setup_seconds", &[&bound], total);
    }
    let total: u64 = counts.setup.iter().sum();
    out.set("hornwork_call_setup_seconds", &["+Inf"], total);
    out.set(
        "hornwork_call_setup_seconds",
        &["sum"],
        counts.setup_sum_ms as f64 / 1_000.0,
    );
    out.set("hornwork_call_setup_seconds", &["count"], total);
}

fn set_trunks(out: &mut MetricValues, trunks: &[TrunkView], ended: &TrunkOutcomes) {
    for trunk in trunks {
        let name = &[trunk.name.as_str()];
        out.set("hornwork_trunk_up", name, flag(trunk.up));
        out.set("hornwork_trunk_enabled", name, flag(trunk.enabled));
        out.set("hornwork_trunk_calls_active", name, trunk.calls);
    }
    for (trunk, counts) in ended {
        for (result, count) in OUTCOMES.iter().zip(counts) {
            out.set("hornwork_trunk_calls_total", &[trunk, result], count);
        }
    }
}

fn set_nodes(out: &mut MetricValues, nodes: &[NodeView]) {
    for node in nodes {
        out.set("hornwork_media_node_up", &[&node.name], flag(node.up));
        out.set(
            "hornwork_media_node_calls_active",
            &[&node.name],
            node.calls,
        );
    }
}

/// `GET /metrics`.
async fn scrape(State(operators): State<Operators>) -> Response {
    let figures = async {
        let statistics = operators.statistics().await?;
        // In pages: thousands of trunks must not delay packets.
        let trunks = operators.trunks().await?;
        let ended = operators.trunk_outcomes().await?;
        Ok::<_, &'static str>((statistics, trunks, ended))
    };
    match figures.await {
        Ok((statistics, trunks, ended)) => {
            let text = values(&statistics, (&trunks, &ended), &operators).text();
            (
                [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
                text,
            )
                .into_response()
        }
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// The routes of the metrics listener.
pub(crate) fn router(operators: Operators) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(operators)
}

/// The values of a scrape of a gateway alone.
async fn scrape_gateway(State(gateway): State<Arc<GatewayFigures>>) -> String {
    let mut out = MetricValues::default();
    set_gateway(&mut out, &gateway);
    for (thread, seconds) in cpu_seconds() {
        out.set("hornwork_cpu_seconds_total", &[&thread], seconds);
    }
    out.set("hornwork_memory_bytes", &[], memory_bytes());
    out.text()
}

/// Starts the thread that serves the metrics of a gateway alone.
///
/// # Errors
/// If the address cannot be bound, or the thread not started.
pub(crate) fn start_gateway(
    spec: Option<&MetricsSpec>,
    gateway: Arc<GatewayFigures>,
    (log, clock): (&EventLog, Clock),
) -> io::Result<()> {
    let Some(listen) = spec.and_then(|spec| spec.listen) else {
        return Ok(());
    };
    let listener = bind(listen)?;
    report_listener(listen, log, clock);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let router = Router::new()
        .route("/metrics", get(scrape_gateway))
        .with_state(gateway);
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
            let _ = net::block_signals();
            runtime.block_on(async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => crate::http::serve_metrics(listener, router).await,
                    Err(error) => tracing::error!("metrics: {error}"),
                }
            });
        })?;
    Ok(())
}

/// Starts the thread that serves metrics, appends statistics and checks alarms.
///
/// # Errors
/// If the address cannot be bound, the file not written, or the thread not started.
pub(crate) fn start(config: &Config, operators: Operators) -> io::Result<()> {
    let spec = config.metrics.as_ref();
    let folders = WrittenFolders::of(config, crate::store::path_of(config));
    let listener = spec.and_then(|spec| spec.listen).map(bind).transpose()?;
    let csv = spec.and_then(StatisticsFile::of);
    if let Some(file) = &csv {
        file.begin(&operators)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        listener
            .map(tokio::net::TcpListener::from_std)
            .transpose()?
    };
    if let Some(listen) = spec.and_then(|spec| spec.listen) {
        report_listener(listen, &operators.log, operators.clock);
    }
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
            let _ = net::block_signals();
            runtime.block_on(async move {
                if let Some(listener) = listener {
                    let router = router(operators.clone());
                    tokio::spawn(crate::http::serve_metrics(listener, router));
                }
                if let Some(file) = csv {
                    tokio::spawn(file.write(operators.clone()));
                }
                alarm_check::check_alarms(operators, folders).await;
            });
        })?;
    Ok(())
}

fn report_listener(listen: std::net::SocketAddr, log: &EventLog, clock: Clock) {
    let note = EventKind::SocketOpened {
        purpose: "metrics".to_owned(),
        address: format!("http://{listen}"),
    };
    log.event(&Event::new(clock.now(), note));
}

fn bind(listen: std::net::SocketAddr) -> io::Result<std::net::TcpListener> {
    let bound = std::net::TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        io::Error::other(format!(
            "cannot listen on {listen} (metrics): {error}\n  remedy: stop the program that uses the port, or correct `listen` in [metrics]"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_declared_once() {
        let mut names: Vec<&str> = METRICS.iter().map(|spec| spec.name).collect();
        for spec in METRICS {
            assert!(spec.name.starts_with("hornwork_"), "{}", spec.name);
            let total = spec.name.ends_with("_total");
            assert_eq!(total, spec.kind == MetricKind::Counter, "{}", spec.name);
            assert!(spec.help.ends_with('.') && !spec.help.contains('\n'));
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn dashboard_and_alert_rules_use_declared_metrics() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");
        for file in ["grafana.json", "hornwork.rules.yml"] {
            let text = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
            let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
            let used: Vec<&str> = words.filter(|word| word.starts_with("hornwork_")).collect();
            assert!(used.len() > 5, "{file}");
            for name in used {
                let is_declared = METRICS.iter().any(|spec| {
                    let rest = name.strip_prefix(spec.name);
                    rest == Some("")
                        || spec.kind == MetricKind::Histogram
                            && matches!(rest, Some("_bucket" | "_sum" | "_count"))
                });
                assert!(is_declared, "{file} uses {name}");
            }
        }
    }

    #[test]
    fn text_has_help_type_and_escaped_labels() {
        let mut out = MetricValues::default();
        out.set("hornwork_trunk_up", &["a\"b\\c"], 1);
        out.set("hornwork_call_setup_seconds", &["0.01"], 2);
        out.set("hornwork_call_setup_seconds", &["+Inf"], 3);
        out.set("hornwork_call_setup_seconds", &["sum"], 0.5);
        let text = out.text();
        assert!(
            text.contains(
                "# TYPE hornwork_trunk_up gauge\nhornwork_trunk_up{trunk=\"a\\\"b\\\\c\"} 1\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("hornwork_call_setup_seconds_bucket{le=\"+Inf\"} 3\n"),
            "{text}"
        );
        assert!(
            text.contains("hornwork_call_setup_seconds_sum 0.5\n"),
            "{text}"
        );
    }
}
