//! The edits of the border: the differences, line by line, between a message that was sent on one leg and the one
//! received on another leg.

use crate::found::{LoadedMessage, StoredEvent};
use crate::segment::StoredDirection;
use std::borrow::Cow;
use std::collections::BTreeMap;
use wire::sip::Message;

/// Lines of a body that are compared, at most.
const MAX_BODY_LINES: usize = 400;

/// A line that differs between a received message and the one sent for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Line in the shown message, from 1; `None`: the line is in the other message only.
    pub line: Option<usize>,
    /// The line as received; `None`: it was added.
    pub before: Option<String>,
    /// The line as sent; `None`: it was removed.
    pub after: Option<String>,
    /// The header rule that made it; otherwise the function of the border that makes such edits.
    pub rule: Cow<'static, str>,
    /// Whether `rule` was recorded when it was applied.
    pub recorded: bool,
}

/// A header rule that was applied to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// Its name.
    name: String,
    /// Headers that its actions change, in lower case, and `request-uri`.
    headers: Vec<String>,
}

/// The rules that changed a message between its receipt and its sending, in their order, of the events of its call.
pub fn applied_rules(
    events: &[StoredEvent],
    received: &LoadedMessage,
    sent: &LoadedMessage,
) -> Vec<AppliedRule> {
    let Ok(parsed) = Message::parse_datagram(&received.bytes) else {
        return Vec::new();
    };
    let method = parsed.cseq().map(|cseq| cseq.method.to_string());
    let label = match parsed.is_request() {
        true => parsed.method().to_string(),
        false => format!("{} {}", parsed.status(), method.unwrap_or_default()),
    };
    let micros = |message: &LoadedMessage| (message.time / 1_000) as i64;
    let events = events.iter().filter(|event| event.name == "rule_edited");
    let applied = events.filter_map(|event| {
        let fields: serde_json::Value = serde_json::from_str(&event.fields).ok()?;
        let text = |name: &str| fields.get(name).and_then(|field| field.as_str());
        // Rules for `in` are applied at receipt, those for `out` when the forwarded message is composed, once for each
        // target.
        let here = match text("direction")? {
            "in" => event.at == micros(received),
            _ => event.at == micros(sent),
        };
        let headers = text("headers")?.split(',').map(str::to_ascii_lowercase);
        (here && text("message")? == label).then(|| AppliedRule {
            name: text("rule").unwrap_or_default().to_owned(),
            headers: headers.collect(),
        })
    });
    applied.collect()
}

/// Names in each edit the rules that made it.
pub fn attribute(edits: &mut [Edit], rules: &[AppliedRule]) {
    for edit in edits {
        let line = edit.after.as_deref().or(edit.before.as_deref());
        let name = line
            .and_then(|line| line.split_once(':'))
            .map(|(name, _)| name);
        // Lines of bodies are `a=...`: rules do not change them.
        let name = match edit.line {
            Some(1) => "request-uri".to_owned(),
            _ => full_name(name.unwrap_or_default().trim_end()),
        };
        let made = rules.iter().filter(|rule| rule.headers.contains(&name));
        let names: Vec<String> = made.map(|rule| format!("\"{}\"", rule.name)).collect();
        if !names.is_empty() {
            edit.rule = format!("header rule {}", names.join(", ")).into();
            edit.recorded = true;
        }
    }
}

/// The identity of a message on all legs: method or status, and the method in CSeq.
fn essence(message: &Message<'_>) -> (bool, Vec<u8>, u16, Vec<u8>) {
    let cseq = message.cseq().ok();
    let cseq = cseq.map_or_else(Vec::new, |cseq| cseq.method.as_bytes().to_vec());
    match message.is_request() {
        true => (true, message.method().as_bytes().to_vec(), 0, cseq),
        false => (false, Vec::new(), message.status(), cseq),
    }
}

/// The index of the message on another leg that belongs to the one at `index`: the newest one received before a sent
/// message, the first one sent after a received message. `None`: the border made the message itself, or ended its way.
pub fn counterpart(messages: &[LoadedMessage], index: usize) -> Option<usize> {
    let shown = messages.get(index)?;
    let own = Message::parse_datagram(&shown.bytes).ok()?;
    let (essence_of_own, own_id) = (essence(&own), own.call_id().ok());
    let wanted = match shown.direction {
        StoredDirection::Sent => StoredDirection::Received,
        StoredDirection::Received => StoredDirection::Sent,
        StoredDirection::Observed => return None,
    };
    let fits = |other: &&(usize, &LoadedMessage)| {
        if other.1.direction != wanted {
            return false;
        }
        Message::parse_datagram(&other.1.bytes).is_ok_and(|parsed| {
            parsed.call_id().ok() != own_id && essence(&parsed) == essence_of_own
        })
    };
    let all: Vec<(usize, &LoadedMessage)> = messages.iter().enumerate().collect();
    let (earlier, later) = all.split_at(index);
    let found = match shown.direction {
        StoredDirection::Sent => earlier.iter().rev().find(fits),
        _ => later.iter().skip(1).find(fits),
    };
    found.map(|(at, _)| *at)
}

/// A line of a message with its number, from 1.
type NumberedLine = (usize, String);

/// Start line, headers by their full names in lower case, and lines of the body.
#[derive(Default)]
struct Lines {
    start: String,
    headers: Vec<(String, NumberedLine)>,
    body: Vec<NumberedLine>,
}

fn full_name(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let long = match lower.as_str() {
        "v" => "via",
        "f" => "from",
        "t" => "to",
        "i" => "call-id",
        "m" => "contact",
        "c" => "content-type",
        "l" => "content-length",
        "e" => "content-encoding",
        "k" => "supported",
        "s" => "subject",
        "x" => "session-expires",
        "r" => "refer-to",
        "b" => "referred-by",
        "o" => "event",
        "u" => "allow-events",
        "y" => "identity",
        _ => return lower,
    };
    long.to_owned()
}

fn lines_of(message: &[u8]) -> Lines {
    let mut lines = Lines::default();
    let mut in_body = false;
    for (at, line) in message.split(|byte| *byte == b'\n').enumerate() {
        let number = at + 1;
        let folded = line.starts_with(b" ") || line.starts_with(b"\t");
        let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        if at == 0 {
            lines.start = text;
        } else if in_body {
            if !text.is_empty() && lines.body.len() < MAX_BODY_LINES {
                lines.body.push((number, text));
            }
        } else if text.is_empty() {
            in_body = true;
        } else if folded && let Some((_, (_, last))) = lines.headers.last_mut() {
            last.push(' ');
            last.push_str(text.trim_start());
        } else {
            let name = text.split(':').next().unwrap_or_default().trim_end();
            lines.headers.push((full_name(name), (number, text)));
        }
    }
    lines
}

/// The value of a header line.
fn value(line: &str) -> &str {
    line.split_once(':').map_or("", |(_, value)| value).trim()
}

/// The function of the border that changes this header.
fn rule_of_header(name: &str) -> &'static str {
    match name {
        "via" => "each leg has transactions of its own (RFC 3261 section 17)",
        "call-id" | "cseq" | "from" | "to" => "each leg is a dialog of its own (RFC 7092)",
        "contact" => "requests of this leg return to the border",
        "record-route" | "route" | "path" | "service-route" => "routing of this leg",
        "max-forwards" => "one less at each hop (RFC 3261 section 16.6)",
        "content-length" | "content-type" => "length and type of the new body",
        "authorization" | "proxy-authorization" | "www-authenticate" | "proxy-authenticate" => {
            "authentication at the border"
        }
        "p-asserted-identity" | "p-preferred-identity" | "privacy" | "remote-party-id" => {
            "identity at the boundary of the trust domain (RFC 3325)"
        }
        "history-info" | "diversion" => "history at the boundary of the trust domain",
        "user-agent" | "server" | "organization" | "subject" | "call-info" | "alert-info"
        | "in-reply-to" | "reply-to" | "warning" => "topology hiding",
        "allow" | "supported" | "require" | "session-expires" | "min-se" => {
            "capabilities of the border"
        }
        _ => "topology hiding or trust",
    }
}

/// The function of the border that changes this line of a session description.
fn rule_of_body(line: &str) -> &'static str {
    let attribute = line.split([':', ' ']).next().unwrap_or_default();
    match attribute {
        "a=crypto" | "a=fingerprint" | "a=setup" => "media security of this side",
        "a=candidate"
        | "a=ice-ufrag"
        | "a=ice-pwd"
        | "a=ice-options"
        | "a=ice-lite"
        | "a=end-of-candidates" => "ICE of this side",
        "a=rtpmap" | "a=fmtp" | "a=ptime" | "a=maxptime" => "codec policy of this side",
        _ if line.starts_with("o=") || line.starts_with("s=") => "session of this leg",
        _ => "media anchoring",
    }
}

/// The differences between the message received and the one sent; `shows_sent`: lines are numbered in the sent one.
/// With `body`, bodies are compared too.
pub fn edits(received: &[u8], sent: &[u8], shows_sent: bool, body: bool) -> Vec<Edit> {
    let (before, after) = (lines_of(received), lines_of(sent));
    let mut all = Vec::new();
    let number = |old: Option<&NumberedLine>, new: Option<&NumberedLine>| {
        let shown = if shows_sent { new } else { old };
        shown.map(|(number, _)| *number)
    };
    if before.start != after.start {
        all.push(Edit {
            line: Some(1),
            before: Some(before.start.clone()),
            after: Some(after.start.clone()),
            rule: "routing: the target of this leg".into(),
            recorded: false,
        });
    }
    let mut names: BTreeMap<&str, [Vec<&NumberedLine>; 2]> = BTreeMap::new();
    for (side, lines) in [&before, &after].into_iter().enumerate() {
        for (name, line) in &lines.headers {
            if let Some(list) = names.entry(name).or_default().get_mut(side) {
                list.push(line);
            }
        }
    }
    for (name, [old, new]) in &names {
        let same =
            |(one, other): (&&NumberedLine, &&NumberedLine)| value(&one.1) == value(&other.1);
        if old.len() == new.len() && old.iter().zip(new).all(same) {
            continue;
        }
        for at in 0..old.len().max(new.len()) {
            let (old, new) = (old.get(at).copied(), new.get(at).copied());
            if old.map(|line| value(&line.1)) == new.map(|line| value(&line.1)) {
                continue;
            }
            all.push(Edit {
                line: number(old, new),
                before: old.map(|line| line.1.clone()),
                after: new.map(|line| line.1.clone()),
                rule: rule_of_header(name).into(),
                recorded: false,
            });
        }
    }
    if body {
        edits_of_bodies(&before.body, &after.body, shows_sent, &mut all);
    }
    all.sort_by_key(|edit| edit.line.unwrap_or(usize::MAX));
    all
}

/// The longest common subsequence of lines stays; neighbouring removed and added lines of one kind are one edit.
fn edits_of_bodies(
    old: &[NumberedLine],
    new: &[NumberedLine],
    shows_sent: bool,
    all: &mut Vec<Edit>,
) {
    let width = new.len() + 1;
    let mut lengths = vec![0_u16; (old.len() + 1) * width];
    let at = |lengths: &[u16], row: usize, column: usize| {
        lengths.get(row * width + column).copied().unwrap_or(0)
    };
    for row in (0..old.len()).rev() {
        for column in (0..new.len()).rev() {
            let length = match old[row].1 == new[column].1 {
                true => at(&lengths, row + 1, column + 1) + 1,
                false => at(&lengths, row + 1, column).max(at(&lengths, row, column + 1)),
            };
            lengths[row * width + column] = length;
        }
    }
    let (mut row, mut column) = (0, 0);
    let (mut removed, mut added): (Vec<&NumberedLine>, Vec<&NumberedLine>) = Default::default();
    loop {
        let (one, other) = (old.get(row), new.get(column));
        let is_same = one.is_some() && one.map(|line| &line.1) == other.map(|line| &line.1);
        if is_same || one.is_none() && other.is_none() {
            for index in 0..removed.len().max(added.len()) {
                let (before, after) = (removed.get(index), added.get(index));
                let shown = if shows_sent { after } else { before };
                let text = after.or(before).map_or("", |line| &line.1);
                all.push(Edit {
                    line: shown.map(|line| line.0),
                    before: before.map(|line| line.1.clone()),
                    after: after.map(|line| line.1.clone()),
                    rule: rule_of_body(text).into(),
                    recorded: false,
                });
            }
            (removed, added) = Default::default();
            if one.is_none() && other.is_none() {
                return;
            }
            (row, column) = (row + 1, column + 1);
            continue;
        }
        let goes_down = match (one, other) {
            (Some(_), None) => true,
            (None, _) => false,
            _ => at(&lengths, row + 1, column) >= at(&lengths, row, column + 1),
        };
        match (goes_down, one, other) {
            (true, Some(line), _) => {
                removed.push(line);
                row += 1;
            }
            (_, _, Some(line)) => {
                added.push(line);
                column += 1;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Transport;

    const RECEIVED: &str = "INVITE sip:600@b SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nf: <sip:a@x>;tag=1\r\nTo: <sip:600@b>\r\nCall-ID: one\r\nCSeq: 1 INVITE\r\nX-Site: 7\r\nContent-Type: application/sdp\r\n\r\nv=0\r\no=- 1 1 IN IP4 192.0.2.1\r\nc=IN IP4 192.0.2.1\r\nm=audio 4000 RTP/AVP 0 8\r\na=rtpmap:0 PCMU/8000\r\n";
    const SENT: &str = "INVITE sip:600@pbx SIP/2.0\r\nVia: SIP/2.0/UDP b;branch=z9hG4bK2\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:600@b>\r\nCall-ID: two\r\nCSeq: 1 INVITE\r\nContent-Type: application/sdp\r\nP-Asserted-Identity: <sip:a@x>\r\n\r\nv=0\r\no=- 9 9 IN IP4 198.51.100.1\r\nc=IN IP4 198.51.100.1\r\nm=audio 20000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

    fn loaded(time: u64, direction: StoredDirection, text: &str) -> LoadedMessage {
        LoadedMessage {
            node: String::new(),
            time,
            direction,
            transport: Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn counterparts_are_on_the_other_leg() {
        let trying = "SIP/2.0 100 Trying\r\nCall-ID: one\r\nCSeq: 1 INVITE\r\n\r\n";
        let messages = [
            loaded(1, StoredDirection::Received, RECEIVED),
            loaded(2, StoredDirection::Sent, trying),
            loaded(3, StoredDirection::Sent, SENT),
            loaded(4, StoredDirection::Received, RECEIVED),
            loaded(5, StoredDirection::Sent, SENT),
        ];
        assert_eq!(counterpart(&messages, 2), Some(0));
        assert_eq!(counterpart(&messages, 4), Some(3));
        assert_eq!(counterpart(&messages, 0), Some(2));
        assert_eq!(counterpart(&messages, 1), None, "made by the border");
        assert_eq!(counterpart(&messages, 9), None);
    }

    #[test]
    fn edits_name_lines_and_functions() {
        let all = edits(RECEIVED.as_bytes(), SENT.as_bytes(), true, true);
        let find = |text: &str| {
            let has = |line: &Option<String>| line.as_ref().is_some_and(|l| l.starts_with(text));
            all.iter()
                .find(|edit| has(&edit.before) || has(&edit.after))
                .unwrap_or_else(|| panic!("no {text} in {all:?}"))
        };
        assert_eq!(find("INVITE").line, Some(1));
        assert_eq!((find("Via").line, find("Call-ID").line), (Some(2), Some(5)));
        assert_eq!((find("X-Site").line, &find("X-Site").after), (None, &None));
        assert_eq!(find("P-Asserted").before, None);
        assert_eq!(
            find("m=audio").after.as_deref(),
            Some("m=audio 20000 RTP/AVP 0")
        );
        assert_eq!(find("c=").rule, "media anchoring");
        // The compact form is no edit, and neither are equal lines.
        assert!(all.iter().all(|edit| {
            let before = edit.before.as_deref().unwrap_or_default();
            !before.starts_with("f:") && !before.starts_with("a=rtpmap") && before != "v=0"
        }));
        let head = edits(RECEIVED.as_bytes(), SENT.as_bytes(), false, false);
        assert!(head.iter().all(|edit| edit.rule != "media anchoring"));
        assert_eq!(edits(SENT.as_bytes(), SENT.as_bytes(), true, true), []);
    }

    #[test]
    fn recorded_rules_are_named_in_their_edits() {
        let event = |at, direction: &str, message: &str, rule: &str, headers: &str| StoredEvent {
            at,
            name: "rule_edited".to_owned(),
            fields: serde_json::json!({
                "rule": rule, "call": "1", "call_id": "one", "direction": direction,
                "message": message, "headers": headers,
            })
            .to_string(),
        };
        let events = [
            event(1, "in", "INVITE", "site", "X-Site,From"),
            event(2, "out", "INVITE", "identity", "P-Asserted-Identity"),
            event(1, "in", "ACK", "other message", "P-Asserted-Identity"),
            event(9, "out", "INVITE", "other time", "P-Asserted-Identity"),
        ];
        let received = loaded(1_500, StoredDirection::Received, RECEIVED);
        let sent = loaded(2_900, StoredDirection::Sent, SENT);
        let rules = applied_rules(&events, &received, &sent);
        assert_eq!(rules.len(), 2);
        let mut all = edits(RECEIVED.as_bytes(), SENT.as_bytes(), true, true);
        attribute(&mut all, &rules);
        let rule_of = |text: &str| {
            let has = |line: &Option<String>| line.as_ref().is_some_and(|l| l.starts_with(text));
            let edit = all
                .iter()
                .find(|edit| has(&edit.before) || has(&edit.after));
            edit.map(|edit| (edit.rule.to_string(), edit.recorded))
        };
        let named = |rule: &str| Some((format!("header rule \"{rule}\""), true));
        assert_eq!(rule_of("X-Site"), named("site"));
        assert_eq!(rule_of("P-Asserted"), named("identity"));
        assert!(rule_of("Via").is_some_and(|(_, recorded)| !recorded));
        assert!(rule_of("m=audio").is_some_and(|(_, recorded)| !recorded));
    }
}
