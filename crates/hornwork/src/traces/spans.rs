//! The trace of a call in OTLP with JSON (OpenTelemetry protocol 1.x): a span of the call, and one of each leg.

use engine::record::{CallRecord, LegRecord, RecordValue};
use engine::{ReportedJitter, Time};
use net::Clock;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Kinds of spans.
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// Status of a span with an error.
const ERROR: u8 = 2;
/// Fields of legs and media that are attributes, with their names.
const LEG_ATTRIBUTES: [(&str, &str); 6] = [
    ("call_id", "sip.call_id"),
    ("interface", "hornwork.interface"),
    ("address", "hornwork.peer_address"),
    ("trunk", "hornwork.trunk"),
    ("codec", "rtp.codec"),
    ("protection", "rtp.protection"),
];
const MEDIA_ATTRIBUTES: [(&str, &str); 8] = [
    ("packets_received", "rtp.packets_received"),
    ("lost", "rtp.packets_lost"),
    ("loss_percent", "rtp.loss_percent"),
    ("jitter_ms", "rtp.jitter_ms"),
    ("mos", "rtp.mos"),
    ("packets_sent", "rtp.packets_sent"),
    ("remote_lost", "rtp.remote_packets_lost"),
    ("delay_ms", "rtp.delay_ms"),
];

/// A target to which a call was sent.
#[derive(Clone, Debug)]
pub(super) struct RoutedTarget {
    pub(super) at: Time,
    pub(super) route: String,
    pub(super) address: String,
    /// Call-ID of its leg.
    pub(super) call_id: String,
    pub(super) trunk: Option<String>,
}

/// The steps of a call that its record does not have.
#[derive(Clone, Debug, Default)]
pub(super) struct CallSteps {
    /// Its targets, in the order of trying; of many the first ones and the last one.
    pub(super) targets: Vec<RoutedTarget>,
    /// When the legs of caller and callee were replaced last.
    pub(super) replaced: [Option<Time>; 2],
}

/// An ended call.
#[derive(Clone, Debug)]
pub(super) struct TracedCall {
    pub(super) record: Box<CallRecord>,
    pub(super) steps: CallSteps,
}

impl TracedCall {
    /// The begin of a leg: its INVITE, or the replacement of the leg before it.
    fn begin_of(&self, number: usize, leg: &LegRecord) -> Time {
        let mut targets = self.steps.targets.iter();
        let target = targets.find(|target| leg.leg.call_id.as_ref() == Some(&target.call_id));
        let replaced = self.steps.replaced.get(number).copied().flatten();
        let fields = &self.record.fields;
        let begun = target.map(|target| target.at).or(replaced);
        begun.unwrap_or(match number {
            0 => fields.started,
            // Of more targets than are remembered.
            _ => fields.answered.unwrap_or(fields.started),
        })
    }
}

/// Composes spans.
pub(super) struct SpanWriter {
    /// Key of the identifiers, random for each run of the program.
    pub(super) key: [u8; 32],
    pub(super) clock: Clock,
    pub(super) service: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute; `None` for a value that is not known.
fn attribute(name: &str, value: RecordValue<'_>) -> Option<Value> {
    let value = match value {
        RecordValue::Absent | RecordValue::At(_) => return None,
        RecordValue::Text(text) => json!({ "stringValue": text }),
        // 64-bit numbers are texts in JSON.
        RecordValue::Integer(number) | RecordValue::Milliseconds(number) => {
            json!({ "intValue": number.to_string() })
        }
        RecordValue::Decimal(value) => json!({ "doubleValue": value.0 as f64 / 100.0 }),
        RecordValue::Flag(flag) => json!({ "boolValue": flag }),
    };
    Some(json!({ "key": name, "value": value }))
}

fn text(name: &str, value: &str) -> Option<Value> {
    (!value.is_empty()).then(|| json!({ "key": name, "value": { "stringValue": value } }))
}

fn renamed(names: &[(&str, &str)], field: &str, value: RecordValue<'_>) -> Option<Value> {
    let (_, name) = names.iter().find(|(own, _)| *own == field)?;
    let value = match value {
        // An attribute has one type in the store of traces: a media node reports jitter in whole milliseconds.
        RecordValue::Integer(ms) if field == "jitter_ms" => {
            RecordValue::Decimal(ReportedJitter::Whole(ms).hundredths())
        }
        value => value,
    };
    attribute(name, value)
}

/// Legs that exist, with their numbers.
fn legs(record: &CallRecord) -> impl Iterator<Item = (usize, &LegRecord)> {
    let legs = record.legs.iter().enumerate();
    legs.filter(|(_, leg)| leg.leg.call_id.is_some())
}

/// Number of spans of a call.
pub(super) fn span_count(record: &CallRecord) -> u64 {
    1 + legs(record).count() as u64
}

impl SpanWriter {
    fn digest(&self, record: &CallRecord) -> [u8; 32] {
        let keyed = [&self.key[..], record.fields.id.as_bytes()].concat();
        Sha256::digest(keyed).into()
    }

    /// Whether a call is among the share of `percent` that is traced.
    pub(super) fn is_sampled(&self, record: &CallRecord, percent: u8) -> bool {
        let digest = self.digest(record);
        let number = u16::from_be_bytes([digest[30], digest[31]]);
        u32::from(number) * 100 < u32::from(percent) << 16
    }

    fn nanos(&self, at: Time) -> Value {
        self.clock.unix_nanos(at).to_string().into()
    }

    /// The body of a request with these calls.
    pub(super) fn request(&self, calls: &[TracedCall]) -> String {
        let spans: Vec<Value> = calls.iter().flat_map(|call| self.spans(call)).collect();
        let version = env!("CARGO_PKG_VERSION");
        let resource: Vec<Value> = [
            text("service.name", &self.service),
            text("service.version", version),
        ]
        .into_iter()
        .flatten()
        .collect();
        json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{
                "scope": { "name": "hornwork", "version": version },
                "spans": spans,
            }],
        }] })
        .to_string()
    }

    fn spans(&self, call: &TracedCall) -> Vec<Value> {
        let record = &*call.record;
        let digest = self.digest(record);
        let trace = hex(digest.get(..16).unwrap_or_default());
        // The identifier of the call's span ends with 0, those of legs with their numbers.
        let span = |number: u8| {
            let id = digest.get(16..23).unwrap_or_default();
            hex(&[id, &[number]].concat())
        };
        let fields = &record.fields;
        let mut spans = vec![json!({
            "traceId": trace,
            "spanId": span(0),
            "name": "call",
            "kind": SERVER,
            "startTimeUnixNano": self.nanos(fields.started),
            "endTimeUnixNano": self.nanos(fields.ended),
            "attributes": call_attributes(record),
            "events": self.events(call),
            "status": status(record),
        })];
        for (number, leg) in legs(record) {
            let begun = call.begin_of(number, leg);
            let (name, kind) = match number {
                0 => ("caller leg", SERVER),
                _ => ("callee leg", CLIENT),
            };
            spans.push(json!({
                "traceId": trace,
                "spanId": span(number as u8 + 1),
                "parentSpanId": span(0),
                "name": name,
                "kind": kind,
                "startTimeUnixNano": self.nanos(begun),
                "endTimeUnixNano": self.nanos(fields.ended.max(begun)),
                "attributes": leg_attributes(leg),
            }));
        }
        spans
    }

    fn events(&self, call: &TracedCall) -> Vec<Value> {
        let targets = call.steps.targets.iter().map(|target| {
            let attributes = [
                text("hornwork.route", &target.route),
                text("hornwork.peer_address", &target.address),
                text(
                    "hornwork.trunk",
                    target.trunk.as_deref().unwrap_or_default(),
                ),
            ];
            let attributes: Vec<Value> = attributes.into_iter().flatten().collect();
            json!({
                "timeUnixNano": self.nanos(target.at),
                "name": "routed",
                "attributes": attributes,
            })
        });
        let answered = call.record.fields.answered;
        let answered =
            answered.map(|at| json!({ "timeUnixNano": self.nanos(at), "name": "answered" }));
        targets.chain(answered).collect()
    }
}

/// Server errors and calls that a crash cut are errors; a busy or absent user is none.
fn status(record: &CallRecord) -> Value {
    let is_error = record.fields.cut || (500..600).contains(&record.fields.status);
    match is_error {
        true => json!({ "code": ERROR, "message": record.fields.reason }),
        false => json!({}),
    }
}

fn call_attributes(record: &CallRecord) -> Vec<Value> {
    let mut attributes = Vec::new();
    record.fields.fields(&mut |name, value| {
        let name = match name {
            "id" => "hornwork.record_id",
            "call_id" => "sip.call_id",
            "from" => "sip.from",
            "to" => "sip.to",
            "status" => "sip.status_code",
            "ended_by" => "hornwork.ended_by",
            "reason" => "hornwork.reason",
            "trunk" => "hornwork.trunk",
            "route" => "hornwork.route",
            "path" => "hornwork.media_path",
            "targets" => "hornwork.targets",
            "setup_ms" => "hornwork.setup_ms",
            "cut" => "hornwork.cut",
            // The times of the span.
            _ => return,
        };
        attributes.extend(attribute(name, value));
    });
    for (name, value) in &record.tags {
        attributes.extend(text(&format!("hornwork.tag.{name}"), value));
    }
    attributes
}

fn leg_attributes(leg: &LegRecord) -> Vec<Value> {
    let mut attributes = Vec::new();
    leg.leg.fields(&mut |name, value| {
        attributes.extend(renamed(&LEG_ATTRIBUTES, name, value));
    });
    if let Some(media) = &leg.media {
        media.fields(&mut |name, value| {
            attributes.extend(renamed(&MEDIA_ATTRIBUTES, name, value));
        });
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::record::{CallFields, LegFields};

    #[test]
    fn share_of_sampled_calls_is_that_of_the_configuration() {
        let writer = SpanWriter {
            key: [7; 32],
            clock: Clock::new(),
            service: "x".to_owned(),
        };
        let sampled = |percent| {
            let calls = (0..2_000).filter(|number| {
                let record = CallRecord {
                    fields: CallFields {
                        id: format!("1-{number}"),
                        ..CallFields::default()
                    },
                    ..CallRecord::default()
                };
                writer.is_sampled(&record, percent)
            });
            calls.count()
        };
        assert_eq!(sampled(100), 2_000);
        assert!((350..450).contains(&sampled(20)), "{}", sampled(20));
    }

    #[test]
    fn span_of_a_leg_begins_with_its_invite_or_with_the_replacement() {
        let target = |ms, call_id: &str| RoutedTarget {
            at: Time::from_millis(ms),
            route: "registration".to_owned(),
            address: String::new(),
            call_id: call_id.to_owned(),
            trunk: None,
        };
        let mut call = TracedCall {
            record: Box::default(),
            steps: CallSteps {
                targets: vec![
                    target(10, "first"),
                    target(20, "last"),
                    target(90, "transfer"),
                ],
                replaced: [None; 2],
            },
        };
        call.record.fields.started = Time::from_millis(5);
        let begin = |call: &TracedCall, number: usize, call_id: &str| {
            let mut leg = LegRecord::default();
            leg.leg.call_id = Some(call_id.to_owned());
            call.begin_of(number, &leg)
        };
        assert_eq!(begin(&call, 0, "caller"), Time::from_millis(5));
        assert_eq!(begin(&call, 1, "first"), Time::from_millis(10));
        // A transfer of the caller, and one with a consultation call.
        assert_eq!(begin(&call, 0, "transfer"), Time::from_millis(90));
        call.steps.replaced = [None, Some(Time::from_millis(95))];
        assert_eq!(begin(&call, 1, "consulted"), Time::from_millis(95));
    }

    #[test]
    fn jitter_in_whole_milliseconds_is_a_floating_point_number_as_others() {
        let attribute = renamed(&MEDIA_ATTRIBUTES, "jitter_ms", RecordValue::Integer(2));
        let value = json!({ "key": "rtp.jitter_ms", "value": { "doubleValue": 2.0 } });
        assert_eq!(attribute, Some(value));
        let lost = renamed(&MEDIA_ATTRIBUTES, "lost", RecordValue::Integer(2));
        let value = json!({ "key": "rtp.packets_lost", "value": { "intValue": "2" } });
        assert_eq!(lost, Some(value));
    }

    #[test]
    fn leg_that_does_not_exist_has_no_span() {
        let mut record = CallRecord::default();
        record.legs[0].leg = LegFields {
            call_id: Some("a".to_owned()),
            ..LegFields::default()
        };
        assert_eq!(span_count(&record), 2);
        let writer = SpanWriter {
            key: [7; 32],
            clock: Clock::new(),
            service: "x".to_owned(),
        };
        let call = TracedCall {
            record: Box::new(record),
            steps: CallSteps::default(),
        };
        let spans = writer.spans(&call);
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
        let ids = [
            &spans[0]["traceId"],
            &spans[0]["spanId"],
            &spans[1]["spanId"],
        ];
        let lengths = ids.map(|id| id.as_str().map(str::len));
        assert_eq!(lengths, [Some(32), Some(16), Some(16)]);
    }
}
