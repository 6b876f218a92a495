//! OpenTelemetry traces of calls (docs/traces.md). Packet threads put the events of calls into a bounded queue, as for
//! call records; one thread builds the traces of ended calls, another one sends them to a collector. A collector that
//! does not answer delays neither: calls that find no room are counted.

mod spans;

use crate::http_client::{HttpCredentials, HttpLimits, exchange};
use crate::log::EventLog;
use crate::records::{CollectedEvents, RecordSink};
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request};
use config::{Config, TracesSpec};
use engine::record::{RecordBuilder, RecordChange};
use engine::{Event, EventKind, Time};
use net::Clock;
use spans::{CallSteps, RoutedTarget, SpanWriter, TracedCall, span_count};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Time for which events and ended calls are collected.
const COLLECT_TIME: Duration = Duration::from_millis(200);
/// Most calls in one request.
const BATCH: usize = 256;
/// Targets of a call that are in its trace.
const MAX_TARGETS: usize = 16;
/// Pauses between the attempts for one request: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time after which a request is given up.
const RETRY_LIMIT: Duration = Duration::from_secs(300);
/// Interval of the reports of losses.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Largest response, octets.
const MAX_RESPONSE: usize = 64 << 10;
/// Longest wait at the end of the program for the last traces.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct TraceCounters {
    /// Spans that the collector accepted.
    pub(crate) sent: AtomicU64,
    /// Spans lost: no room, given up, or refused. A call whose events found no room counts as one.
    pub(crate) lost: AtomicU64,
    /// Calls that wait for the collector.
    waiting: AtomicU64,
    ending: AtomicBool,
}

/// One line about the collector; empty without one.
pub(crate) fn summary(config: &Config) -> String {
    config.traces.as_ref().map_or_else(String::new, |traces| {
        let share = match traces.percent {
            100 => String::new(),
            percent => format!(" of {percent} % of the calls"),
        };
        format!("traces{share} to {}\n", traces.url.origin())
    })
}

/// The traces of a running border.
pub(crate) struct CallTraces {
    sink: RecordSink,
    counters: Arc<TraceCounters>,
    clock: Clock,
}

impl CallTraces {
    /// Starts the threads if a collector is configured.
    ///
    /// # Errors
    /// If a thread or its epoll set cannot be created, or the system has no randomness.
    pub(crate) fn start(
        config: &Config,
        files: &HttpCredentials,
        log: &EventLog,
        clock: Clock,
    ) -> io::Result<Option<CallTraces>> {
        let Some(spec) = &config.traces else {
            return Ok(None);
        };
        let (sink, counters) = (RecordSink::new(), Arc::<TraceCounters>::default());
        let (calls, ended) = mpsc::channel(spec.queue);
        let mut key = [0; 32];
        net::entropy()?.fill(&mut key);
        let writer = Arc::new(SpanWriter {
            key,
            clock,
            service: spec.service.clone(),
        });
        let run = (clock.unix_nanos(Time::ZERO) / 1_000).to_string();
        let builder = TraceBuilder {
            sink: sink.clone(),
            counters: counters.clone(),
            records: RecordBuilder::new(run),
            steps: BTreeMap::new(),
            writer: writer.clone(),
            percent: spec.percent,
            calls,
        };
        let export = TraceExport {
            name: format!("collector {}", spec.url.origin()),
            spec: spec.clone(),
            files: files.clone(),
            counters: counters.clone(),
            writer,
            ended,
            failing_since: None,
            reported: (0, Time::ZERO),
            log: log.clone(),
            clock,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()?;
        std::thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                builder.run();
            })?;
        std::thread::Builder::new()
            .name("trace-export".to_owned())
            .spawn(move || {
                let _ = net::block_signals();
                runtime.block_on(export.run());
            })?;
        Ok(Some(CallTraces {
            sink,
            counters,
            clock,
        }))
    }

    /// A sink for one of the packet threads.
    pub(crate) fn sink(&self) -> RecordSink {
        self.sink.clone()
    }

    /// Counts since the start.
    pub(crate) fn counters(&self) -> Arc<TraceCounters> {
        self.counters.clone()
    }

    /// Waits for a limited time until the traces of ended calls are sent.
    pub(crate) fn end(self) {
        self.counters.ending.store(true, Relaxed);
        self.sink.end();
        let until = self.clock.now() + END_TIMEOUT;
        while self.counters.waiting.load(Relaxed) > 0 && self.clock.now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Builds the traces of ended calls.
struct TraceBuilder {
    sink: RecordSink,
    counters: Arc<TraceCounters>,
    records: RecordBuilder,
    /// Steps of running calls.
    steps: BTreeMap<u64, CallSteps>,
    writer: Arc<SpanWriter>,
    percent: u8,
    calls: mpsc::Sender<TracedCall>,
}

impl TraceBuilder {
    fn run(mut self) {
        loop {
            let CollectedEvents {
                events,
                lost_ends,
                lost,
                ending,
                ..
            } = self.sink.collect(COLLECT_TIME);
            for event in events {
                self.add(event);
            }
            for call in &lost_ends {
                self.records.forget(*call);
                self.steps.remove(call);
            }
            let lost = lost + lost_ends.len() as u64;
            self.counters.lost.fetch_add(lost, Relaxed);
            if ending {
                self.sink.ended();
                return;
            }
        }
    }

    fn add(&mut self, event: Event) {
        match &event.kind {
            EventKind::CallRouted {
                call,
                route,
                address,
                call_id,
                trunk,
                ..
            } => {
                let targets = &mut self.steps.entry(*call).or_default().targets;
                if targets.len() >= MAX_TARGETS {
                    targets.pop();
                }
                targets.push(RoutedTarget {
                    at: event.at,
                    route: route.clone(),
                    address: address.clone(),
                    call_id: call_id.clone(),
                    trunk: trunk.clone(),
                });
            }
            EventKind::LegReplaced { call, side, .. } => {
                let [caller, callee] = &mut self.steps.entry(*call).or_default().replaced;
                let replaced = if side == "caller" { caller } else { callee };
                *replaced = Some(event.at);
            }
            _ => {}
        }
        let ended = match &event.kind {
            EventKind::CallEnded { call, .. } => Some(*call),
            _ => None,
        };
        match self.records.add(event) {
            Some(RecordChange::Ended(record)) => {
                let steps = self.steps.remove(&record.call).unwrap_or_default();
                if !self.writer.is_sampled(&record, self.percent) {
                    return;
                }
                let spans = span_count(&record);
                self.counters.waiting.fetch_add(1, Relaxed);
                let call = TracedCall { record, steps };
                if self.calls.try_send(call).is_err() {
                    self.counters.waiting.fetch_sub(1, Relaxed);
                    self.counters.lost.fetch_add(spans, Relaxed);
                }
            }
            Some(RecordChange::Challenged(record)) => {
                self.steps.remove(&record.call);
            }
            Some(RecordChange::Lost) => {
                // The events of its begin were lost, those of its routing perhaps not.
                if let Some(call) = ended {
                    self.steps.remove(&call);
                }
                self.counters.lost.fetch_add(1, Relaxed);
            }
            Some(RecordChange::Running(_)) | None => {}
        }
    }
}

/// Sends traces to the collector.
struct TraceExport {
    name: String,
    spec: TracesSpec,
    files: HttpCredentials,
    counters: Arc<TraceCounters>,
    writer: Arc<SpanWriter>,
    ended: mpsc::Receiver<TracedCall>,
    failing_since: Option<Time>,
    /// Losses that were reported, and the time of the last report.
    reported: (u64, Time),
    log: EventLog,
    clock: Clock,
}

impl TraceExport {
    async fn run(mut self) {
        let mut calls = Vec::with_capacity(BATCH);
        loop {
            let more = timeout(REPORT_INTERVAL, self.ended.recv_many(&mut calls, BATCH)).await;
            if more == Ok(0) {
                // The builder has ended, and everything is sent.
                return;
            }
            if !calls.is_empty() {
                let spans: u64 = calls.iter().map(|call| span_count(&call.record)).sum();
                let body = self.writer.request(&calls);
                let rejected = self.send(body).await.unwrap_or(spans).min(spans);
                self.counters.lost.fetch_add(rejected, Relaxed);
                self.counters.sent.fetch_add(spans - rejected, Relaxed);
                self.counters.waiting.fetch_sub(calls.len() as u64, Relaxed);
                calls.clear();
            }
            self.report_losses();
            if !self.counters.ending.load(Relaxed) {
                // Requests of one call each would cost more than their content.
                sleep(COLLECT_TIME).await;
            }
        }
    }

    /// Sends a request, again and again if need be; returns the number of rejected spans, `None` if it was given up or
    /// refused.
    async fn send(&mut self, body: String) -> Option<u64> {
        let begun = self.clock.now();
        let mut pause = FIRST_PAUSE;
        loop {
            let (reason, is_final) = match self.post(body.clone()).await {
                Ok(rejected) => {
                    self.recovered();
                    return Some(rejected);
                }
                Err(failure) => failure,
            };
            self.failed(reason);
            let ending = self.counters.ending.load(Relaxed);
            if is_final || ending || self.clock.now().since(begun) + pause > RETRY_LIMIT {
                return None;
            }
            self.report_losses();
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One attempt; returns the number of rejected spans.
    ///
    /// # Errors
    /// The reason, and whether a further attempt is useless.
    async fn post(&self, body: String) -> Result<u64, (String, bool)> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = self.files.bearer() {
            headers.insert(AUTHORIZATION, token);
        }
        let limits = HttpLimits {
            time: self.spec.timeout,
            body: MAX_RESPONSE,
        };
        let tls = self.files.tls.as_ref();
        let response = exchange(&self.spec.url, tls, request, limits).await;
        let response = response.map_err(|reason| (reason, false))?;
        if response.status.is_success() {
            return Ok(rejected(response.body.as_deref().unwrap_or_default()));
        }
        // OTLP: these are temporary, all others are not.
        let again = [429, 502, 503, 504].contains(&response.status.as_u16());
        Err((format!("status {}", response.status.as_u16()), !again))
    }

    fn tell(&self, kind: EventKind) {
        self.log.event(&Event::new(self.clock.now(), kind));
        self.log.flush();
    }

    fn failed(&mut self, reason: String) {
        if self.failing_since.is_none() {
            self.failing_since = Some(self.clock.now());
            self.tell(EventKind::ReceiverFailed {
                receiver: self.name.clone(),
                reason,
            });
        }
    }

    fn recovered(&mut self) {
        if let Some(since) = self.failing_since.take() {
            self.tell(EventKind::ReceiverRecovered {
                receiver: self.name.clone(),
                outage_s: self.clock.now().since(since).as_secs(),
            });
        }
    }

    fn report_losses(&mut self) {
        let (before, at) = self.reported;
        let (lost, now) = (self.counters.lost.load(Relaxed), self.clock.now());
        if lost > before && (before == 0 || now.since(at) >= REPORT_INTERVAL) {
            self.reported = (lost, now);
            self.tell(EventKind::ReceiverLost {
                receiver: self.name.clone(),
                lost: lost - before,
            });
        }
    }
}

/// Spans that a response rejects (`partialSuccess`); 64-bit numbers are texts in JSON, numbers in some collectors.
fn rejected(body: &[u8]) -> u64 {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let rejected = body.pointer("/partialSuccess/rejectedSpans");
    rejected.map_or(0, |rejected| {
        let text = rejected.as_str().and_then(|text| text.parse().ok());
        text.or(rejected.as_u64()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_read_as_text_and_number() {
        assert_eq!(rejected(b"{}"), 0);
        assert_eq!(rejected(b"not JSON"), 0);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":"3"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":2}}"#), 2);
    }
}
