//! Calls of the store: search, the page of a call with its messages, the edits of the border, its decisions, and
//! exports.

mod decision;
mod export;

use super::access::Caller;
use super::api::{Parameters, PathPart, Shared, cursor_of, limit_of};
use super::jitter::JitterMs;
use super::masking::{exact_numbers, users_of};
use super::problem::{Answer, Problem, accepted, ok};
use super::types::{
    CallPageBody, CallQuery, CallsBody, DecisionBody, EditBody, EventBody, IntervalBody,
    MessageBody, MessagePageBody, StreamBody,
};
use crate::trace;
use axum::extract::{Extension, State};
use console::{
    CallFilter, CallRecord, CallState, HistoryReader, JoinedCall, LoadedMessage, MaskedUsers,
    StoreError, StoredCall, StoredDirection, StoredEvent, UnreadPart, applied_rules, attribute,
    edits, mask, mask_numbers, parse_time, redact, rfc3339,
};
pub(super) use decision::decision;
pub(super) use export::{export_pcap, export_text};
use serde_json::{Map, Value};
use wire::sip::Message;

/// Messages of a call that are read, at most.
const MAX_MESSAGES: usize = 20_000;
/// Longest summary of a message, characters.
const MAX_SUMMARY: usize = 300;
/// Steps of a decision, at most.
const MAX_DECISIONS: usize = 500;
/// Longest text of a condition, characters.
const MAX_CONDITION: usize = 1_024;
/// Events about media, which are no decisions.
const FIGURES: [&str; 6] = [
    "rtcp_report",
    INTERVAL,
    "call_media",
    "media_relayed_in_kernel",
    "media_latched",
    "media_node_statistics",
];

/// The filter of a query.
pub(super) fn filter_of(query: &CallQuery, caller: &Caller) -> Result<CallFilter, Problem> {
    let texts = [
        &query.number,
        &query.call_id,
        &query.node,
        &query.trunk,
        &query.codec,
        &query.protection,
        &query.words,
        &query.text,
    ];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.is_empty() || text.chars().count() > MAX_CONDITION)
    {
        let why = format!("a condition has 1 to {MAX_CONDITION} characters");
        return Err(Problem::bad(why));
    }
    if query.text.is_some() && !caller.sees_bodies() {
        return Err(Problem::forbidden(
            "viewers must not search the text of messages",
        ));
    }
    if caller.redact {
        exact_numbers(query)?;
    }
    let parse = |name: &'static str, text: &Option<String>| {
        let parse = |text: &String| {
            parse_time(text)
                .ok_or_else(|| Problem::bad(format!("{name}: write YYYY-MM-DD[THH:MM[:SS]Z]")))
        };
        text.as_ref().map(parse).transpose()
    };
    let of = |name: &str, why: String| Problem::bad(format!("{name}: {why}"));
    let duration = |name: &'static str, seconds: Option<f64>| {
        let of_one = |seconds| {
            let why = || {
                Problem::bad(format!(
                    "{name}: write a number of seconds below 1000000000"
                ))
            };
            trace::milliseconds(seconds).ok_or_else(why)
        };
        seconds.map(of_one).transpose()
    };
    let kind = query.kind.as_deref().unwrap_or("call");
    let kind = trace::kind(kind).map_err(|why| of("kind", why))?;
    let address = query
        .address
        .as_deref()
        .map(|text| trace::address(text).map_err(|why| of("address", why)));
    let mos = |name: &'static str, mos: Option<f64>| {
        let of_one = |mos| {
            let why = || Problem::bad(format!("{name}: write a number from 0 to 5"));
            trace::hundredths(mos).ok_or_else(why)
        };
        mos.map(of_one).transpose()
    };
    let (state, status) = outcome_of(query.outcome.as_deref())?;
    Ok(CallFilter {
        node: query.node.clone(),
        kind: kind.first().copied(),
        number: query.number.clone(),
        call_id: query.call_id.clone(),
        address: address.transpose()?.map(|address| address.to_string()),
        from: parse("from", &query.from)?,
        until: parse("to", &query.to)?,
        status,
        state,
        duration_min: duration("min_duration", query.min_duration)?,
        duration_max: duration("max_duration", query.max_duration)?,
        mos_min: mos("min_mos", query.min_mos)?,
        // Below, not equal.
        mos_max: mos("mos_below", query.mos_below)?.map(|mos| mos.saturating_sub(1)),
        trunk: query.trunk.clone(),
        codec: query.codec.clone(),
        protection: query.protection.clone(),
        words: query.words.clone(),
        text: query.text.clone().map(String::into_bytes),
    })
}

/// State and final status of an outcome.
type OutcomeFilter = (Option<CallState>, Option<(u16, u16)>);

fn outcome_of(text: Option<&str>) -> Result<OutcomeFilter, Problem> {
    let Some(text) = text else {
        return Ok((None, None));
    };
    Ok(match text {
        "answered" => (None, Some((200, 299))),
        "failed" => (None, Some((300, 699))),
        "active" => (Some(CallState::Answered), None),
        "offered" | "ended" | "interrupted" => (trace::state(text).ok(), None),
        status => {
            let status = trace::status(status).map_err(|_| {
                Problem::bad("outcome: write answered, failed, offered, active, ended, interrupted, or a status such as 486, 5xx or 400-499")
            })?;
            (None, Some(status))
        }
    })
}

/// A call as JSON, as this caller may see it.
pub(super) fn call_json(mut call: StoredCall, caller: &Caller) -> Value {
    if caller.redact {
        let mut users = MaskedUsers::default();
        users.add(&call.from);
        users.add(&call.to);
        call.reason = users.mask(&call.reason);
        call.from = mask(&call.from);
        call.to = mask(&call.to);
    }
    call.json()
}

/// `GET /calls`.
pub(super) async fn search(
    State(state): Shared,
    Extension(caller): Extension<Caller>,
    Parameters(query): Parameters<CallQuery>,
) -> Answer {
    let filter = filter_of(&query, &caller)?;
    let limit = limit_of(query.limit)?;
    let before = cursor_of(query.cursor.as_deref())?;
    let store = state.store()?;
    let masked_search = query.number.filter(|_| caller.redact);
    if masked_search.is_some() {
        state.admit_number_search(&caller)?;
    }
    let read = store.read(move |reader| {
        let page = reader.search(&filter, before, limit)?;
        Ok((page, reader.unread()))
    });
    let (page, unread) = read.await?;
    let incomplete = page.next.is_some() && page.calls.len() < limit;
    let calls = page.calls.into_iter();
    let body = CallsBody {
        calls: calls.map(|call| call_json(call, &caller)).collect(),
        next: page.next.map(|next| next.to_string()),
        incomplete,
        unread: unread.iter().map(UnreadPart::to_string).collect(),
    };
    match masked_search {
        Some(number) => accepted(format!("number={number}"), &body),
        None => ok(&body),
    }
}

/// The call that was asked for, and all records of it.
type LoadedCall = (StoredCall, JoinedCall);

fn load(reader: &HistoryReader, id: &str) -> Result<Option<LoadedCall>, StoreError> {
    let Some(call) = reader.find(id)? else {
        // It may be in a part that cannot be read.
        return match reader.unread().first() {
            Some(unread) => Err(StoreError(unread.to_string())),
            None => Ok(None),
        };
    };
    let joined = reader.joined(call.clone(), MAX_MESSAGES)?;
    Ok(Some((call, joined)))
}

async fn loaded(state: &Shared, id: String) -> Result<LoadedCall, Problem> {
    let read = state.store()?.read(move |reader| load(reader, &id));
    read.await?.ok_or_else(|| Problem::missing("call"))
}

/// The name of a border in a store of several.
fn node_name(node: &str) -> Option<String> {
    (!node.is_empty()).then(|| node.to_owned())
}

/// A text, masked for callers that must not see numbers.
fn masked(text: &str, caller: &Caller) -> String {
    match caller.redact {
        true => mask_numbers(text),
        false => text.to_owned(),
    }
}

/// The value of a field, masked for callers that must not see numbers.
fn masked_field(name: &str, value: &str, caller: &Caller) -> String {
    match name {
        "call" => value.to_owned(),
        // Users without URI may be short.
        "from" | "to" | "user" | "aor" | "number" if caller.redact && !value.contains(':') => {
            mask(value)
        }
        _ => masked(value, caller),
    }
}

fn micros(message: &LoadedMessage) -> i64 {
    i64::try_from(message.time / 1_000).unwrap_or(i64::MAX)
}

/// A time with microseconds.
fn precise(micros: i64) -> String {
    let nanos = u64::try_from(micros).unwrap_or(0).saturating_mul(1_000);
    crate::log::timestamp(nanos)
}

fn first_line(message: &LoadedMessage) -> String {
    let line = message.bytes.split(|byte| *byte == b'\n').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default().trim_ascii_end()).into_owned();
    line.chars().take(MAX_SUMMARY).collect()
}

pub(super) fn message_body(
    index: usize,
    message: &LoadedMessage,
    joined: &JoinedCall,
    caller: &Caller,
) -> MessageBody {
    let parsed = Message::parse_datagram(&message.bytes).ok();
    let parsed = parsed.as_ref();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let id = parsed.and_then(|parsed| parsed.call_id().ok()).map(text);
    let leg = id.and_then(|id| joined.leg(&id));
    let line = first_line(message);
    let summary = match parsed.is_some_and(Message::is_request) {
        true => line.strip_suffix(" SIP/2.0").unwrap_or(&line),
        false => line.strip_prefix("SIP/2.0 ").unwrap_or(&line),
    };
    let cseq = parsed.and_then(|parsed| parsed.cseq().ok());
    let has_sdp = parsed.is_some_and(|parsed| {
        let is_sdp = |kind: &wire::sip::MediaType<'_>| kind.is("application", "sdp");
        !parsed.body().is_empty() && parsed.content_type().is_ok_and(|kind| is_sdp(&kind))
    });
    MessageBody {
        index,
        node: node_name(&message.node),
        at: precise(micros(message)),
        leg,
        direction: match message.direction {
            StoredDirection::Received => "in",
            StoredDirection::Sent => "out",
            StoredDirection::Observed => "observed",
        },
        from: message.source.to_string(),
        to: message.destination.to_string(),
        transport: message.transport.uri_name(),
        summary: masked(summary, caller),
        method: parsed
            .filter(|parsed| parsed.is_request())
            .map(|parsed| text(parsed.method().as_bytes())),
        status: parsed
            .filter(|parsed| !parsed.is_request())
            .map(Message::status),
        cseq: cseq.map(|cseq| format!("{} {}", cseq.number, text(cseq.method.as_bytes()))),
        has_sdp,
        size: message.bytes.len(),
    }
}

pub(super) fn fields_of(event: &StoredEvent, caller: &Caller) -> Map<String, Value> {
    let fields = serde_json::from_str::<Map<String, Value>>(&event.fields).unwrap_or_default();
    let fields = fields.into_iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => masked_field(&name, &text, caller).into(),
            value => value,
        };
        (name, value)
    });
    fields.collect()
}

/// Event with the quality of an interval, which the page draws and does not list.
const INTERVAL: &str = "call_media_interval";

/// Quality of the media received from a side in intervals.
fn intervals(side: &str, events: &[StoredEvent]) -> Vec<IntervalBody> {
    let events = events.iter().filter(|event| event.name == INTERVAL);
    let bodies = events.filter_map(|event| {
        let fields: Map<String, Value> = serde_json::from_str(&event.fields).ok()?;
        let number = |name: &str| fields.get(name)?.as_str()?.parse::<f64>().ok();
        let of_side = |name: &str| number(&format!("{side}_{name}"));
        let jitter = fields.get(&format!("{side}_jitter_ms"));
        let jitter = jitter.and_then(Value::as_str).and_then(JitterMs::of_field);
        let body = IntervalBody {
            at: rfc3339(event.at),
            interval_ms: number("interval_ms")? as u64,
            packets_received: of_side("packets").map(|value| value as u64),
            lost: of_side("lost").map(|value| value as u64),
            loss_percent: of_side("loss_percent"),
            jitter_ms: jitter,
            jitter_whole_ms: jitter.is_some_and(JitterMs::is_whole),
            mos: of_side("mos"),
        };
        body.packets_received.is_some().then_some(body)
    });
    bodies.collect()
}

/// Quality of a stream as far as its intervals tell.
#[derive(Default)]
struct IntervalTotals {
    packets_received: Option<u64>,
    lost: Option<u64>,
    loss_percent: Option<f64>,
    jitter_ms: Option<JitterMs>,
    mos: Option<f64>,
}

impl IntervalTotals {
    /// Sums of the packets; means of jitter and MOS, weighted by the packets of each interval.
    fn of(intervals: &[IntervalBody]) -> IntervalTotals {
        let sum = |value: fn(&IntervalBody) -> Option<u64>| {
            let values = intervals.iter().filter_map(value);
            values.reduce(u64::saturating_add)
        };
        let mean = |value: fn(&IntervalBody) -> Option<f64>| {
            let known = intervals.iter().filter_map(|one| {
                let packets = one.packets_received.filter(|packets| *packets > 0)?;
                Some((value(one)?, packets as f64))
            });
            let (total, weight) = known.fold((0.0, 0.0), |(total, weight), (value, packets)| {
                (total + value * packets, weight + packets)
            });
            // Two decimals, as the quality of a call that ended.
            (weight > 0.0).then(|| (total / weight * 100.0).round() / 100.0)
        };
        let (packets_received, lost) = (sum(|one| one.packets_received), sum(|one| one.lost));
        let loss_percent = packets_received.zip(lost).and_then(|(packets, lost)| {
            let sent = packets.saturating_add(lost);
            let loss = lost as f64 * 100.0 / sent as f64;
            (sent > 0).then(|| (loss * 100.0).round() / 100.0)
        });
        let mut jitter = intervals.iter().filter_map(|one| one.jitter_ms);
        let in_whole_ms = jitter.all(JitterMs::is_whole);
        IntervalTotals {
            packets_received,
            lost,
            loss_percent,
            jitter_ms: mean(|one| one.jitter_ms.map(JitterMs::value))
                .map(|mean| JitterMs::of_mean(mean, in_whole_ms)),
            mos: mean(|one| one.mos),
        }
    }
}

/// The media of both sides. The figures of the whole call are in an event at its end; before, and after an
/// interruption, the intervals have them.
fn streams(call: &StoredCall, events: &[StoredEvent]) -> Vec<StreamBody> {
    let media = events.iter().rev().find(|event| event.name == "call_media");
    let is_measured = media.is_some();
    let media = media.map(|event| &*event.fields).unwrap_or("{}");
    let media: Map<String, Value> = serde_json::from_str(media).unwrap_or_default();
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    // Where both sides agree, the value is written once.
    let side_of = |value: &str, side: usize| {
        let mut sides = value.split('/');
        let first = sides.next().unwrap_or_default().to_owned();
        match side {
            0 => text(&first),
            _ => text(sides.next().unwrap_or(&first)),
        }
    };
    let sides = [("caller", &call.caller), ("callee", &call.callee)];
    let sides = sides.into_iter().enumerate();
    let all = sides.map(|(index, (side, quality))| {
        let field = |name: &str| media.get(&format!("{side}_{name}")).and_then(Value::as_str);
        let count = |name: &str| field(name).and_then(|text| text.parse().ok());
        let hundredths = |value: Option<u64>| value.map(|value| value as f64 / 100.0);
        let intervals = intervals(side, events);
        let totals = match is_measured {
            true => IntervalTotals::default(),
            false => IntervalTotals::of(&intervals),
        };
        let jitter_ms = JitterMs::of_side(quality).or(totals.jitter_ms);
        StreamBody {
            node: node_name(&call.node),
            side,
            started: call.answered.map(rfc3339),
            ended: call.ended.map(rfc3339),
            codec: side_of(&call.codec, index),
            protection: field("protection")
                .map(str::to_owned)
                .or_else(|| side_of(&call.protection, index)),
            path: text(&call.path),
            packets_received: count("packets").or(totals.packets_received),
            lost: count("lost").or(totals.lost),
            packets_sent: count("sent"),
            remote_lost: count("remote_lost"),
            delay_ms: field("delay_ms").and_then(|text| text.parse().ok()),
            loss_percent: hundredths(quality.loss).or(totals.loss_percent),
            jitter_ms,
            jitter_whole_ms: jitter_ms.is_some_and(JitterMs::is_whole),
            mos: hundredths(quality.mos).or(totals.mos),
            intervals,
        }
    });
    all.filter(|stream| {
        stream.packets_received.is_some()
            || stream.packets_sent.is_some()
            || stream.mos.is_some()
            || !stream.intervals.is_empty()
    })
    .collect()
}

/// `GET /calls/{id}`.
pub(super) async fn show(
    state: Shared,
    Extension(caller): Extension<Caller>,
    PathPart(id): PathPart<String>,
) -> Answer {
    let (call, joined) = loaded(&state, id).await?;
    let messages = joined.messages().enumerate();
    let messages = messages.map(|(index, message)| message_body(index, message, &joined, &caller));
    let records = joined.records();
    let others = records.iter().map(|record| &record.call);
    let others = others.filter(|other| other.id != call.id).cloned();
    let mut related: Vec<StoredCall> = others.collect();
    related.sort_by_key(|other| other.id);
    let nodes = records.iter().map(|record| &record.call.node);
    let mut events: Vec<(i64, EventBody)> = Vec::new();
    for record in records {
        let shown = record.events.iter().filter(|event| event.name != INTERVAL);
        events.extend(shown.map(|event| {
            let body = EventBody {
                node: node_name(&record.call.node),
                at: precise(event.at),
                name: event.name.clone(),
                fields: fields_of(event, &caller),
            };
            (event.at, body)
        }));
    }
    events.sort_by_key(|(at, _)| *at);
    let streams = records.iter().map(|one| streams(&one.call, &one.events));
    let decision = records.iter().map(|record| decision(record, &caller));
    let mut body = CallPageBody {
        nodes: nodes.filter(|node| !node.is_empty()).cloned().collect(),
        messages: messages.collect(),
        truncated: joined.is_truncated(),
        streams: streams.flatten().collect(),
        decision: decision.flatten().collect(),
        events: events.into_iter().map(|(_, body)| body).collect(),
        related: related
            .into_iter()
            .map(|other| call_json(other, &caller))
            .collect(),
        call: call_json(call, &caller),
    };
    if caller.redact {
        body.mask_users(&users_of(&joined));
    }
    ok(&body)
}

/// `GET /calls/{id}/messages/{index}`.
pub(super) async fn show_message(
    state: Shared,
    Extension(caller): Extension<Caller>,
    PathPart((id, index)): PathPart<(String, usize)>,
) -> Answer {
    let (_, joined) = loaded(&state, id).await?;
    let found = joined.message(index).zip(joined.record_of(index));
    let (message, record) = found.ok_or_else(|| Problem::missing("message of this call"))?;
    let other = joined.counterpart(index);
    let shows_sent = message.direction == StoredDirection::Sent;
    let full = caller.sees_bodies();
    let users = caller.redact.then(|| users_of(&joined));
    let text = |message: &LoadedMessage| match full {
        true => String::from_utf8_lossy(&message.bytes).into_owned(),
        false => redact(&message.bytes, users.as_ref()),
    };
    let raw = text(message);
    let changes = other.map(|(_, other)| {
        let (shown, own) = (text(other), raw.as_str());
        let (received, sent, rules) = match shows_sent {
            true => (
                shown.as_str(),
                own,
                applied_rules(&record.events, other, message),
            ),
            false => (
                own,
                shown.as_str(),
                applied_rules(&record.events, message, other),
            ),
        };
        let mut changes = edits(received.as_bytes(), sent.as_bytes(), shows_sent, full);
        attribute(&mut changes, &rules);
        changes
    });
    let changes = changes.unwrap_or_default().into_iter();
    ok(&MessagePageBody {
        at: precise(micros(message)),
        raw,
        edits: changes
            .map(|edit| EditBody {
                line: edit.line,
                before: edit.before,
                after: edit.after,
                rule: edit.rule.into_owned(),
                recorded: edit.recorded,
            })
            .collect(),
        counterpart: other.map(|(at, _)| at),
        redacted: !full,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::ConsoleRole;
    use console::SideQuality;

    fn caller(role: ConsoleRole) -> Caller {
        Caller {
            user: "ann".into(),
            role,
            redact: role == ConsoleRole::Viewer,
            csrf: None,
            session: None,
        }
    }

    #[test]
    fn conditions_are_checked() {
        let operator = caller(ConsoleRole::Operator);
        let query = CallQuery {
            number: Some("600".into()),
            outcome: Some("4xx".into()),
            mos_below: Some(3.5),
            min_mos: Some(2.25),
            from: Some("2026-11-25".into()),
            ..CallQuery::default()
        };
        let filter = filter_of(&query, &operator).unwrap();
        assert_eq!(filter.number.as_deref(), Some("600"));
        assert_eq!(
            (filter.status, filter.mos_min, filter.mos_max),
            (Some((400, 499)), Some(225), Some(349))
        );
        let text = CallQuery {
            text: Some("x".into()),
            ..CallQuery::default()
        };
        assert!(filter_of(&text, &operator).is_ok());
        let refused = filter_of(&text, &caller(ConsoleRole::Viewer)).unwrap_err();
        assert_eq!(refused.status().as_u16(), 403);
        let bad = |change: &dyn Fn(&mut CallQuery)| {
            let mut query = CallQuery::default();
            change(&mut query);
            filter_of(&query, &operator).unwrap_err().status().as_u16()
        };
        assert_eq!(bad(&|query| query.from = Some("yesterday".into())), 400);
        assert_eq!(bad(&|query| query.address = Some("host".into())), 400);
        assert_eq!(bad(&|query| query.outcome = Some("good".into())), 400);
        assert_eq!(bad(&|query| query.number = Some(String::new())), 400);
        assert_eq!(bad(&|query| query.trunk = Some("x".repeat(2_000))), 400);
        assert_eq!(bad(&|query| query.mos_below = Some(f64::NAN)), 400);
        assert_eq!(bad(&|query| query.min_mos = Some(5.1)), 400);
        assert_eq!(bad(&|query| query.max_duration = Some(-1.0)), 400);
        // The longest condition has characters of four octets.
        let long = CallQuery {
            node: Some("\u{1f4de}".repeat(MAX_CONDITION)),
            ..CallQuery::default()
        };
        assert!(filter_of(&long, &operator).is_ok());
        // A class of no status.
        assert_eq!(bad(&|query| query.outcome = Some("656xx".into())), 400);
        let uri: axum::http::Uri = "/calls?user=600".parse().unwrap();
        let query = axum::extract::Query::<CallQuery>::try_from_uri(&uri).unwrap();
        assert_eq!(query.number.as_deref(), Some("600"));
    }

    #[test]
    fn decisions_and_streams_are_those_of_the_store() {
        let call = StoredCall {
            call_ids: vec!["1".into(), "2".into()],
            route: "default".into(),
            trunk: "pbx".into(),
            from: "4930123456".into(),
            interface: "phones".into(),
            answered: Some(3_000_000),
            ended: Some(5_000_000),
            ended_by: "caller".into(),
            reason: "BYE".into(),
            status: Some(200),
            codec: "PCMU/G722".into(),
            ..StoredCall::default()
        };
        let message = |time: u64, direction, text: &str| LoadedMessage {
            time,
            direction,
            transport: engine::Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: text.as_bytes().to_vec(),
            node: String::new(),
        };
        let head = "Via: SIP/2.0/UDP x;branch=z9hG4bK1\r\nFrom: <sip:4930123456@x>;tag=1\r\nCSeq: 1 INVITE\r\n";
        let messages = [
            message(
                1_000_000_000,
                StoredDirection::Received,
                &format!("INVITE sip:600@x SIP/2.0\r\n{head}To: <sip:600@x>\r\nCall-ID: 1\r\n\r\n"),
            ),
            message(
                2_000_000_000,
                StoredDirection::Sent,
                &format!(
                    "INVITE sip:600@pbx SIP/2.0\r\n{head}To: <sip:600@x>\r\nCall-ID: 2\r\n\r\n"
                ),
            ),
            message(
                2_100_000_000,
                StoredDirection::Received,
                &format!(
                    "SIP/2.0 486 Busy Here\r\n{head}To: <sip:600@x>;tag=2\r\nCall-ID: 2\r\n\r\n"
                ),
            ),
        ];
        let events = [
            StoredEvent {
                at: 1_500_000,
                name: "rule_logged".into(),
                fields: r#"{"rule":"night","call":"7","text":"closed"}"#.into(),
            },
            StoredEvent {
                at: 1_999_000,
                name: "trunk_skipped".into(),
                fields: r#"{"call_id":"1","route":"default","trunk":"backup","reason":"out of service"}"#.into(),
            },
            // At the same time as the INVITE that it led to.
            StoredEvent {
                at: 2_000_000,
                name: "call_routed".into(),
                fields: r#"{"call":"7","route":"default","target":"pbx","address":"udp:192.0.2.2:5060","trunk":"pbx"}"#.into(),
            },
            StoredEvent {
                at: 4_999_000,
                name: "call_media".into(),
                fields: r#"{"call":"7","caller_packets":"100","caller_lost":"3","caller_protection":"none"}"#.into(),
            },
        ];
        let operator = caller(ConsoleRole::Operator);
        // The program timed its response earlier than the kernel the request.
        let trying = message(
            999_999_000,
            StoredDirection::Sent,
            &format!("SIP/2.0 100 Trying\r\n{head}To: <sip:600@x>\r\nCall-ID: 1\r\n\r\n"),
        );
        let record = CallRecord {
            call,
            messages: [vec![trying], messages.to_vec()].concat(),
            events: events.to_vec(),
        };
        let steps = decision(&record, &operator);
        let names: Vec<&str> = steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(
            names,
            [
                "received",
                "rule_logged",
                "trunk_skipped",
                "routed",
                "sent",
                "target_refused",
                "answered",
                "ended"
            ]
        );
        assert_eq!(steps[1].detail, "rule night: closed");
        assert_eq!(
            steps[2].detail,
            "route default skipped trunk backup: out of service"
        );
        assert_eq!(
            steps[3].detail,
            "route default chose trunk pbx (udp:192.0.2.2:5060)"
        );
        assert_eq!(steps[0].values["from"], "4930123456");
        let viewer = caller(ConsoleRole::Viewer);
        let steps = decision(&record, &viewer);
        assert_eq!(steps[0].values["from"], "********56");
        let streams = streams(&record.call, &record.events);
        assert_eq!(streams.len(), 1, "the callee has no figures");
        assert_eq!(
            (streams[0].packets_received, streams[0].lost),
            (Some(100), Some(3))
        );
        assert_eq!(streams[0].codec.as_deref(), Some("PCMU"));
        let joined = JoinedCall::new(vec![record], 100);
        let body = message_body(1, &messages[1], &joined, &viewer);
        assert_eq!(
            (body.leg, body.summary.as_str()),
            (Some(1), "INVITE sip:*00@pbx")
        );
    }

    #[test]
    fn streams_of_a_running_call_have_the_figures_of_their_intervals() {
        let call = StoredCall {
            answered: Some(1_000_000),
            ..StoredCall::default()
        };
        let event = |at: i64, name: &str, fields: &str| StoredEvent {
            at,
            name: name.into(),
            fields: fields.into(),
        };
        let mut events = vec![
            event(
                11_000_000,
                INTERVAL,
                r#"{"interval_ms":"10000","caller_packets":"300","caller_lost":"0","caller_jitter_ms":"1.00","caller_mos":"4.40"}"#,
            ),
            event(
                21_000_000,
                INTERVAL,
                r#"{"interval_ms":"10000","caller_packets":"100","caller_lost":"100","caller_jitter_ms":"5.00","caller_mos":"2.00"}"#,
            ),
            // Silence has neither jitter nor MOS.
            event(
                31_000_000,
                INTERVAL,
                r#"{"interval_ms":"10000","caller_packets":"0","caller_lost":"0"}"#,
            ),
        ];
        let all = streams(&call, &events);
        assert_eq!(all.len(), 1, "the callee has no intervals");
        let one = &all[0];
        assert_eq!((one.packets_received, one.lost), (Some(400), Some(100)));
        assert_eq!(one.loss_percent, Some(20.0));
        assert_eq!(
            (one.jitter_ms, one.mos),
            (Some(JitterMs::Measured(2.0)), Some(3.8))
        );
        assert!(!one.jitter_whole_ms);
        assert_eq!(one.intervals.len(), 3);
        // The figures of the whole call replace the sums.
        let whole = r#"{"call":"7","caller_packets":"401","caller_lost":"99"}"#;
        events.push(event(31_500_000, "call_media", whole));
        let all = streams(&call, &events);
        assert_eq!(
            (all[0].packets_received, all[0].lost),
            (Some(401), Some(99))
        );
        assert_eq!((all[0].jitter_ms, all[0].mos), (None, None));
    }

    #[test]
    fn jitter_of_rtpengine_has_whole_milliseconds_in_intervals_and_streams() {
        let event = |at: i64, packets: u64, jitter: &str| StoredEvent {
            at,
            name: INTERVAL.into(),
            fields: format!(
                r#"{{"interval_ms":"10000","caller_packets":"{packets}","caller_jitter_ms":"{jitter}"}}"#
            ),
        };
        let of = |call: &StoredCall, second: &str| {
            let events = [event(11_000_000, 300, "1"), event(21_000_000, 100, second)];
            streams(call, &events).remove(0)
        };
        let running = StoredCall::default();
        let stream = of(&running, "4");
        assert!(stream.intervals.iter().all(|one| one.jitter_whole_ms));
        // The mean is 1.75 ms.
        assert_eq!(stream.jitter_ms, Some(JitterMs::Whole(2)));
        assert!(stream.jitter_whole_ms);
        let json = serde_json::to_value(&stream).unwrap();
        assert_eq!(json["jitter_ms"].to_string(), "2");
        assert_eq!(json["intervals"][0]["jitter_ms"].to_string(), "1");
        // One that was measured at packets among them.
        let mixed = of(&running, "4.00");
        assert_eq!(mixed.jitter_ms, Some(JitterMs::Measured(1.75)));
        assert!(!mixed.jitter_whole_ms && mixed.intervals[0].jitter_whole_ms);
        let ended = StoredCall {
            caller: SideQuality {
                jitter: Some(300),
                jitter_whole_ms: true,
                ..SideQuality::default()
            },
            ..StoredCall::default()
        };
        let stream = of(&ended, "4");
        assert_eq!(stream.jitter_ms, Some(JitterMs::Whole(3)));
        assert!(stream.jitter_whole_ms);
    }
}
