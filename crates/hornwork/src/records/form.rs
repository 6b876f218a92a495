//! Written forms of call records: JSON and CSV, both from the fields declared in `engine::record`.

use crate::log::timestamp;
use engine::record::{CallFields, CallRecord, LegFields, LegRecord, MediaFields, RecordValue};
use net::Clock;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

/// Names of the legs as prefixes of CSV columns.
const LEGS: [&str; 2] = ["caller", "callee"];

fn json_of(value: RecordValue<'_>, clock: &Clock) -> Value {
    match value {
        RecordValue::Absent => Value::Null,
        RecordValue::Text(text) => text.into(),
        RecordValue::Integer(number) => number.into(),
        RecordValue::Decimal(figure) => (figure.0 as f64 / 100.0).into(),
        RecordValue::Milliseconds(ms) => (ms as f64 / 1000.0).into(),
        RecordValue::At(time) => timestamp(clock.unix_nanos(time)).into(),
        RecordValue::Flag(flag) => flag.into(),
    }
}

fn leg_json(leg: &LegRecord, clock: &Clock) -> Value {
    let mut object = Map::new();
    leg.leg.fields(&mut |name, value| {
        object.insert(name.to_owned(), json_of(value, clock));
    });
    // Readers find the same fields in every record; without media that the border sees all are null.
    let none = MediaFields::default();
    let mut media = Map::new();
    leg.media
        .as_ref()
        .unwrap_or(&none)
        .fields(&mut |name, value| {
            media.insert(name.to_owned(), json_of(value, clock));
        });
    object.insert("media".to_owned(), Value::Object(media));
    Value::Object(object)
}

/// A record as JSON object. A `running` call has no end yet.
pub(super) fn json(record: &CallRecord, running: bool, clock: &Clock) -> Map<String, Value> {
    let mut object = Map::new();
    record.fields.fields(&mut |name, value| {
        let value = match running && name == "ended" {
            true => Value::Null,
            false => json_of(value, clock),
        };
        object.insert(name.to_owned(), value);
    });
    let legs = record.legs.iter().map(|leg| leg_json(leg, clock)).collect();
    object.insert("legs".to_owned(), Value::Array(legs));
    let tags = record.tags.iter();
    let tags = tags.map(|(name, value)| (name.clone(), value.as_str().into()));
    object.insert("tags".to_owned(), Value::Object(tags.collect()));
    object
}

/// A record as one line of JSON without its end, as [`json`] writes it, without building the object.
pub(super) fn line(record: &CallRecord, running: bool, clock: &Clock) -> String {
    let form = LineForm { running, clock };
    serde_json::to_string(&CallLine { record, form }).unwrap_or_default()
}

/// How values of a line are written.
#[derive(Clone, Copy)]
struct LineForm<'c> {
    running: bool,
    clock: &'c Clock,
}

impl LineForm<'_> {
    /// Writes a field; `result` is the first error of the object.
    fn field<M: SerializeMap>(
        self,
        map: &mut M,
        (name, value): (&'static str, RecordValue<'_>),
        result: &mut Result<(), M::Error>,
    ) {
        if result.is_err() {
            return;
        }
        *result = match value {
            RecordValue::At(_) if self.running && name == "ended" => map.serialize_entry(name, &()),
            RecordValue::Absent => map.serialize_entry(name, &()),
            RecordValue::Text(text) => map.serialize_entry(name, text),
            RecordValue::Integer(number) => map.serialize_entry(name, &number),
            RecordValue::Decimal(figure) => map.serialize_entry(name, &(figure.0 as f64 / 100.0)),
            RecordValue::Milliseconds(ms) => map.serialize_entry(name, &(ms as f64 / 1000.0)),
            RecordValue::At(time) => {
                map.serialize_entry(name, &timestamp(self.clock.unix_nanos(time)))
            }
            RecordValue::Flag(flag) => map.serialize_entry(name, &flag),
        };
    }
}

struct CallLine<'r> {
    record: &'r CallRecord,
    form: LineForm<'r>,
}

impl Serialize for CallLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (record, form) = (self.record, self.form);
        let mut map = serializer.serialize_map(None)?;
        let mut result = Ok(());
        let each = &mut |name, value| form.field(&mut map, (name, value), &mut result);
        record.fields.fields(each);
        result?;
        let legs = record.legs.each_ref().map(|leg| LegLine { leg, form });
        map.serialize_entry("legs", &legs)?;
        map.serialize_entry("tags", &TagsLine(&record.tags))?;
        map.end()
    }
}

struct LegLine<'r> {
    leg: &'r LegRecord,
    form: LineForm<'r>,
}

impl Serialize for LegLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = LineForm {
            running: false,
            ..self.form
        };
        let mut map = serializer.serialize_map(None)?;
        let mut result = Ok(());
        let each = &mut |name, value| form.field(&mut map, (name, value), &mut result);
        self.leg.leg.fields(each);
        result?;
        let media = self.leg.media.as_ref();
        map.serialize_entry("media", &MediaLine { media, form })?;
        map.end()
    }
}

struct MediaLine<'r> {
    media: Option<&'r MediaFields>,
    form: LineForm<'r>,
}

impl Serialize for MediaLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let none = MediaFields::default();
        let mut map = serializer.serialize_map(None)?;
        let mut result = Ok(());
        let each = &mut |name, value| self.form.field(&mut map, (name, value), &mut result);
        self.media.unwrap_or(&none).fields(each);
        result?;
        map.end()
    }
}

/// Tags have distinct names ([`engine::record::RecordBuilder`]).
struct TagsLine<'r>(&'r [(String, String)]);

impl Serialize for TagsLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The header line of CSV files.
pub(super) fn csv_header() -> String {
    let mut columns: Vec<String> = Vec::new();
    columns.extend(
        CallFields::REFERENCE
            .iter()
            .map(|(name, _)| (*name).to_owned()),
    );
    for leg in LEGS {
        let fields = LegFields::REFERENCE.iter().chain(MediaFields::REFERENCE);
        columns.extend(fields.map(|(name, _)| format!("{leg}_{name}")));
    }
    columns.push("tags".to_owned());
    columns.join(",") + "\n"
}

/// First characters of cells that spreadsheets take for formulas.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// A cell as in RFC 4180. An apostrophe before a text that a spreadsheet would take for a formula makes it a text
/// there, too: a caller chooses Call-ID and From.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) if text.starts_with(FORMULA) => format!("'{text}"),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// The CSV line of a record in JSON.
pub(super) fn csv(record: &Map<String, Value>) -> String {
    let absent = Value::Null;
    let mut cells: Vec<String> = Vec::new();
    let calls = CallFields::REFERENCE.iter();
    cells.extend(calls.map(|(name, _)| cell(record.get(*name).unwrap_or(&absent))));
    for index in 0..LEGS.len() {
        let leg = record.get("legs").and_then(|legs| legs.get(index));
        let leg = leg.unwrap_or(&absent);
        let of = |object: &Value, name: &str| cell(object.get(name).unwrap_or(&absent));
        cells.extend(LegFields::REFERENCE.iter().map(|(name, _)| of(leg, name)));
        let media = leg.get("media").unwrap_or(&absent);
        cells.extend(
            MediaFields::REFERENCE
                .iter()
                .map(|(name, _)| of(media, name)),
        );
    }
    let tags = record
        .get("tags")
        .filter(|tags| **tags != Value::Object(Map::new()));
    cells.push(cell(tags.unwrap_or(&absent)));
    cells.join(",") + "\n"
}

/// Turns the journal's entry of a running call into its record after a crash; `alive` is the time at which the border
/// was last seen running.
pub(super) fn cut(record: &mut Map<String, Value>, alive: &str) {
    let text = |record: &Map<String, Value>, name: &str| {
        record.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    let answered = text(record, "answered");
    let started = text(record, "started").unwrap_or_default();
    let ended = alive
        .max(answered.as_deref().unwrap_or(&started))
        .to_owned();
    let span = answered
        .and_then(|answered| Some(micros(&ended)?.saturating_sub(micros(&answered)?) as f64 / 1e6));
    let duration = (span.unwrap_or(0.0) * 1e3).round() / 1e3;
    record.insert("duration_s".to_owned(), duration.into());
    record.insert("ended".to_owned(), ended.into());
    record.insert("ended_by".to_owned(), "border".into());
    record.insert("reason".to_owned(), "border stopped".into());
    record.insert("cut".to_owned(), true.into());
}

/// Microseconds since 1970 of a time written by [`timestamp`].
fn micros(text: &str) -> Option<u64> {
    let number = |range: core::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (year, month) = match month {
        1 | 2 => (year.checked_sub(1)?, month + 9),
        _ => (year, month.checked_sub(3)?),
    };
    // Days since 1 March of year 0.
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days.checked_sub(1 + 719_468)?;
    let seconds = days * 86_400 + number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?;
    Some(seconds * 1_000_000 + number(20..26)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Hundredths, ReportedJitter, Time};

    fn record() -> CallRecord {
        let mut record = CallRecord::default();
        record.fields.id = "5-7".into();
        record.fields.from = "\"A, B\" <sip:1@x>".into();
        record.fields.answered = Some(Time::from_millis(500));
        record.fields.duration_s = engine::record::RecordedSpan(61_500);
        record.legs[0].leg.codec = Some("PCMA".into());
        record.legs[0].media = Some(MediaFields {
            packets_received: Some(3_000),
            lost: Some(12),
            jitter_ms: Some(ReportedJitter::Measured(Hundredths(125))),
            mos: Some(Hundredths(441)),
            ..MediaFields::default()
        });
        record
    }

    #[test]
    fn json_has_the_declared_fields() {
        let object = json(&record(), false, &Clock::new());
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let declared: Vec<&str> = CallFields::REFERENCE
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(names[..declared.len()], declared);
        assert_eq!(names[declared.len()..], ["legs", "tags"]);
        assert_eq!(object["duration_s"], 61.5);
        assert_eq!(object["legs"][0]["media"]["packets_received"], 3_000);
        assert_eq!(object["legs"][0]["media"]["jitter_ms"], 1.25);
        assert_eq!(object["legs"][1]["media"]["packets_received"], Value::Null);
        // rtpengine reports whole milliseconds.
        let mut record = record();
        record.legs[0].media.as_mut().expect("media").jitter_ms = Some(ReportedJitter::Whole(1));
        let object = json(&record, false, &Clock::new());
        assert_eq!(object["legs"][0]["media"]["jitter_ms"].to_string(), "1");
    }

    #[test]
    fn line_is_the_object() {
        let clock = Clock::new();
        let mut tagged = record();
        tagged.tags = vec![
            ("a \"b\"".into(), "1\n".into()),
            ("c".into(), String::new()),
        ];
        tagged.fields.trunk = Some("pbx".into());
        for record in [CallRecord::default(), record(), tagged] {
            for running in [false, true] {
                let object = Value::Object(json(&record, running, &clock));
                assert_eq!(line(&record, running, &clock), object.to_string());
            }
        }
    }

    #[test]
    fn csv_has_a_cell_for_each_column() {
        let line = csv(&json(&record(), false, &Clock::new()));
        assert!(line.contains("\"\"\"A, B\"\" <sip:1@x>\""), "{line}");
        // Two commas are inside of the quoted cell's text: one there, none elsewhere.
        let commas = csv_header().matches(',').count();
        assert_eq!(line.matches(',').count(), commas + 1);
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn csv_has_no_formulas() {
        for (text, expected) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("=1,\"2\"", "\"'=1,\"\"2\"\"\""),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@x", "'@x"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("sip:=1@x", "sip:=1@x"),
        ] {
            assert_eq!(cell(&text.into()), expected);
        }
        // Figures are none.
        assert_eq!(cell(&(-1).into()), "-1");
        let mut record = record();
        record.fields.call_id = "=1+1".into();
        let object = json(&record, false, &Clock::new());
        assert_eq!(object["call_id"], "=1+1", "JSON as received");
        assert!(csv(&object).contains(",'=1+1,"));
    }

    #[test]
    fn times_are_read_back() {
        for nanos in [0, 951_782_400_000_001_000, 1_709_251_199_999_999_000] {
            assert_eq!(micros(&timestamp(nanos)), Some(nanos / 1_000));
        }
        assert_eq!(micros("yesterday"), None);
    }

    #[test]
    fn cut_call_ends_when_the_border_was_last_seen() {
        let clock = Clock::new();
        let mut running = json(&record(), true, &clock);
        assert_eq!(running["ended"], Value::Null);
        let alive = timestamp(clock.unix_nanos(Time::from_millis(10_500)));
        cut(&mut running, &alive);
        assert_eq!(running["duration_s"], 10.0);
        assert_eq!(
            (&running["cut"], &running["ended"]),
            (&true.into(), &alive.into())
        );
    }
}
