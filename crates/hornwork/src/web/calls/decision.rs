//! The decision of a border about a call, in steps.

use super::*;
use wire::sip::Method;

/// Collects steps with their times.
struct Decisions<'a> {
    caller: &'a Caller,
    node: &'a str,
    /// Time, order among steps of the same time, step.
    steps: Vec<(i64, u8, DecisionBody)>,
    /// Call-IDs of legs whose INVITE was cancelled.
    cancelled: Vec<Vec<u8>>,
}

/// Order of steps of the same microsecond; other steps are between the first two.
const STEP_ORDER: [&str; 7] = [
    "received",
    "",
    "routed",
    "sent",
    "target_refused",
    "answered",
    "ended",
];

impl Decisions<'_> {
    fn add(&mut self, at: i64, what: &str, detail: &str, values: &[(&str, &str)]) {
        if self.steps.len() >= MAX_DECISIONS {
            return;
        }
        let values = values.iter().filter(|(_, value)| !value.is_empty());
        let values = values.map(|(name, value)| {
            let value = masked_field(name, value, self.caller);
            ((*name).to_owned(), Value::from(value))
        });
        let body = DecisionBody {
            node: node_name(self.node),
            at: precise(at),
            what: what.to_owned(),
            detail: masked(detail, self.caller),
            values: values.collect(),
        };
        let order = STEP_ORDER.iter().position(|known| *known == what);
        self.steps.push((at, order.unwrap_or(1) as u8, body));
    }

    fn message(&mut self, message: &LoadedMessage, call: &StoredCall, is_first: bool) {
        let Ok(parsed) = Message::parse_datagram(&message.bytes) else {
            return;
        };
        let at = micros(message);
        let transport = message.transport.uri_name();
        let is_caller = parsed.call_id().ok().map(<[u8]>::to_vec)
            == call.call_ids.first().map(|id| id.as_bytes().to_vec());
        let is_invite = parsed
            .cseq()
            .is_ok_and(|cseq| cseq.method.as_bytes() == b"INVITE");
        if is_first && message.direction == StoredDirection::Received && parsed.is_request() {
            let source = message.source.to_string();
            let detail = format!(
                "{} received from {source} ({transport})",
                String::from_utf8_lossy(parsed.method().as_bytes())
            );
            let values = [
                ("interface", call.interface.as_str()),
                ("source", &source),
                ("transport", transport),
                ("from", &call.from),
            ];
            self.add(at, "received", &detail, &values);
        } else if message.direction == StoredDirection::Sent
            && parsed.is_request()
            && is_invite
            && parsed.method().as_bytes() == b"INVITE"
            && !is_caller
            && parsed.to().is_ok_and(|to| to.tag().is_none())
        {
            let target = message.destination.to_string();
            let detail = format!("INVITE sent to {target} ({transport})");
            let uri = String::from_utf8_lossy(parsed.request_uri()).into_owned();
            let values = [
                ("address", target.as_str()),
                ("transport", transport),
                ("request_uri", &uri),
            ];
            self.add(at, "sent", &detail, &values);
        } else if message.direction == StoredDirection::Sent
            && parsed.is_request()
            && parsed.method() == Method::Cancel
        {
            let id = parsed.call_id().unwrap_or_default();
            self.cancelled.push(id.to_vec());
        } else if message.direction == StoredDirection::Received
            && !parsed.is_request()
            && is_invite
            && !is_caller
            && parsed.status() >= 300
        {
            // 487 is the end of an INVITE that we cancelled.
            let id = parsed.call_id().unwrap_or_default();
            if parsed.status() == 487 && self.cancelled.iter().any(|known| known == id) {
                return;
            }
            let source = message.source.to_string();
            let line = first_line(message);
            let status = line.strip_prefix("SIP/2.0 ").unwrap_or(&line);
            let detail = format!("{source} refused: {status}");
            let values = [("address", source.as_str()), ("status", status)];
            self.add(at, "target_refused", &detail, &values);
        }
    }
}

/// A route in a sentence; one without a name is called `route N`.
fn route_text(name: &str) -> String {
    match name.starts_with("route ") {
        true => name.to_owned(),
        false => format!("route {name}"),
    }
}

/// The steps by which a border decided, in order of time.
pub(in crate::web) fn decision(record: &CallRecord, caller: &Caller) -> Vec<DecisionBody> {
    let CallRecord {
        call,
        messages,
        events,
    } = record;
    let mut all = Decisions {
        caller,
        node: &call.node,
        steps: Vec::new(),
        cancelled: Vec::new(),
    };
    // The kernel sets times of received messages, the program those of sent ones: a 100 can precede its request.
    let first = messages.iter().position(|message| {
        message.direction == StoredDirection::Received && !message.bytes.starts_with(b"SIP/2.0 ")
    });
    for (index, message) in messages.iter().enumerate() {
        all.message(message, call, first == Some(index));
    }
    let mut is_refused = false;
    for event in events {
        if FIGURES.contains(&event.name.as_str()) {
            continue;
        }
        let fields = serde_json::from_str::<Map<String, Value>>(&event.fields).unwrap_or_default();
        let values: Vec<(&str, &str)> = fields
            .iter()
            .filter(|(name, _)| *name != "call")
            .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
            .collect();
        let value = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        match event.name.as_str() {
            "call_routed" => {
                let target = match value("trunk") {
                    "" => value("target").to_owned(),
                    trunk => format!("trunk {trunk}"),
                };
                let detail = format!(
                    "{} chose {target} ({})",
                    route_text(value("route")),
                    value("address")
                );
                all.add(event.at, "routed", &detail, &values);
                continue;
            }
            "trunk_skipped" => {
                let detail = format!(
                    "{} skipped trunk {}: {}",
                    route_text(value("route")),
                    value("trunk"),
                    value("reason")
                );
                all.add(event.at, "trunk_skipped", &detail, &values);
                continue;
            }
            "call_refused" => {
                is_refused = true;
                let by = match (value("rule"), value("route")) {
                    ("", "") => "the border".to_owned(),
                    ("", route) => route_text(route),
                    (rule, _) => format!("header rule {rule}"),
                };
                let detail = format!(
                    "{by} refused the call: {} {}",
                    value("status"),
                    value("reason")
                );
                all.add(event.at, "refused", &detail, &values);
                continue;
            }
            "rule_refused" => {
                let (rule, status) = (value("rule"), value("status"));
                let detail =
                    format!("header rule {rule} refused the call towards its target: {status}");
                all.add(event.at, "refused", &detail, &values);
                continue;
            }
            _ => {}
        }
        let detail: Vec<String> = values
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let detail = match (event.name.as_str(), values.as_slice()) {
            ("rule_logged", [("rule", rule), ("text", text)]) => format!("rule {rule}: {text}"),
            ("call_tagged", [("tag", tag), ("value", value)]) => {
                format!("a rule stored {tag} = {value}")
            }
            _ => detail.join(", "),
        };
        all.add(event.at, &event.name, &detail, &values);
    }
    if let Some(at) = call.answered {
        let values = [
            ("codec", call.codec.as_str()),
            ("protection", &call.protection),
            ("path", &call.path),
        ];
        all.add(at, "answered", "the call was answered", &values);
    }
    // The refusal is the end, too, unless that of a repeated INVITE.
    if let Some(at) = call.ended.filter(|_| !is_refused || call.call.is_some()) {
        let status = call.status.map(|status| status.to_string());
        let status = status.unwrap_or_default();
        let by = match call.ended_by.as_str() {
            "" => String::new(),
            by => format!(" by the {by}"),
        };
        let detail = format!("ended{by}: {} {status}", call.reason);
        let values = [
            ("ended_by", call.ended_by.as_str()),
            ("reason", &call.reason),
            ("status", &status),
        ];
        all.add(at, "ended", detail.trim_end(), &values);
    }
    all.steps.sort_by_key(|(at, order, _)| (*at, *order));
    all.steps.into_iter().map(|(_, _, step)| step).collect()
}
