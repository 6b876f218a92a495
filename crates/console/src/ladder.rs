//! The ladder diagram of a call, as text.

use crate::call::StoredCall;
use crate::found::{LoadedMessage, StoredEvent};
use crate::segment::StoredDirection;
use crate::text::{clock_time, escape_controls, rfc3339};
use core::fmt::Write as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::sip::Message;

/// Width of the column of times.
const TIME_WIDTH: usize = 17;
/// Narrowest and widest distance of the columns of participants.
const COLUMN: (usize, usize) = (22, 36);
/// Participants in a ladder, at most; the messages of further ones are in a list.
const MAX_PARTICIPANTS: usize = 12;
/// Addresses of a border in the header; of more only the number is written.
const MAX_ADDRESSES: usize = 4;

/// Appearance of a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LadderStyle {
    /// Width in characters; the ladder may need more.
    pub width: usize,
    /// Whether the header with the facts of the call is written.
    pub header: bool,
    /// Messages at the beginning that were drawn before: they only define the columns.
    pub skip: usize,
}

impl Default for LadderStyle {
    fn default() -> Self {
        LadderStyle {
            width: 80,
            header: true,
            skip: 0,
        }
    }
}

/// An end of arrows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LadderColumn {
    /// A border, by the name of its node.
    Border(String),
    Peer(SocketAddr),
}

/// The node of each address of a border, in a ladder of several.
type NodeAddresses = BTreeMap<SocketAddr, String>;

fn node_addresses(messages: &[LoadedMessage]) -> NodeAddresses {
    let mut addresses = NodeAddresses::new();
    for message in messages {
        let local = match message.direction {
            StoredDirection::Received => message.destination,
            StoredDirection::Sent => message.source,
            StoredDirection::Observed => continue,
        };
        addresses.insert(local, message.node.clone());
    }
    addresses
}

/// The addresses of a border in the order of their first messages: it has one on each interface.
fn addresses_of(one: &LadderColumn, messages: &[LoadedMessage]) -> Vec<String> {
    let LadderColumn::Border(node) = one else {
        return Vec::new();
    };
    let mut found: Vec<SocketAddr> = Vec::new();
    for message in messages.iter().filter(|message| message.node == *node) {
        let local = match message.direction {
            StoredDirection::Received => message.destination,
            StoredDirection::Sent => message.source,
            StoredDirection::Observed => continue,
        };
        if !found.contains(&local) {
            found.push(local);
        }
    }
    match found.len() > MAX_ADDRESSES {
        true => vec![format!("{} addresses", found.len())],
        false => found.iter().map(ToString::to_string).collect(),
    }
}

/// The names of the columns, and below them the addresses of borders.
fn heading(all: &[LadderColumn], messages: &[LoadedMessage], column: usize) -> Vec<String> {
    let addresses: Vec<Vec<String>> = all.iter().map(|one| addresses_of(one, messages)).collect();
    let names = all.iter().map(|one| match one {
        LadderColumn::Border(node) if node.is_empty() => centered("hornwork", column),
        LadderColumn::Border(node) => centered(&escape_controls(node.as_bytes()), column),
        LadderColumn::Peer(address) => centered(&address.to_string(), column),
    });
    let mut lines = vec![names.collect::<String>()];
    for row in 0..addresses.iter().map(Vec::len).max().unwrap_or(0) {
        let cells = addresses.iter().map(|addresses| {
            let text = addresses.get(row).map_or("", String::as_str);
            centered(text, column)
        });
        lines.push(cells.collect());
    }
    lines
}

/// A line of a ladder with its time in microseconds.
enum LadderItem<'a> {
    Message(&'a LoadedMessage),
    Event(&'a StoredEvent),
}

fn ends(message: &LoadedMessage, nodes: &NodeAddresses) -> (LadderColumn, LadderColumn) {
    let border = || LadderColumn::Border(message.node.clone());
    // A border that sends to itself has two columns: it is its own peer.
    let peer = |address: SocketAddr| match nodes.get(&address) {
        Some(node) if *node != message.node => LadderColumn::Border(node.clone()),
        _ => LadderColumn::Peer(address),
    };
    match message.direction {
        StoredDirection::Received => (peer(message.source), border()),
        StoredDirection::Sent => (border(), peer(message.destination)),
        StoredDirection::Observed => (peer(message.source), peer(message.destination)),
    }
}

/// Participants from left to right: the caller's side, the border, the others.
fn participants(messages: &[LoadedMessage], nodes: &NodeAddresses) -> Vec<LadderColumn> {
    let mut all: Vec<LadderColumn> = Vec::new();
    for message in messages {
        let (from, to) = ends(message, nodes);
        for end in [from, to] {
            if !all.contains(&end) && all.len() < MAX_PARTICIPANTS {
                all.push(end);
            }
        }
    }
    // The border stands between the first peer and the others, also if it sent the first message.
    let is_border = |one: &LadderColumn| matches!(one, LadderColumn::Border(_));
    if let Some(at) = all.iter().position(is_border)
        && all.len() > 1
    {
        let border = all.remove(at);
        all.insert(1, border);
    }
    all
}

/// The text of an arrow: method or status, and a mark for a session description.
fn label(message: &LoadedMessage) -> String {
    let Ok(parsed) = Message::parse_datagram(&message.bytes) else {
        return "unparsable".to_owned();
    };
    let mut text = match parsed.is_request() {
        true => escape_controls(parsed.method().as_bytes()),
        false => format!("{} {}", parsed.status(), escape_controls(parsed.reason())),
    };
    let is_sdp = parsed
        .content_type()
        .is_ok_and(|kind| kind.is("application", "sdp"));
    if is_sdp && !parsed.body().is_empty() {
        text.push_str(" (SDP)");
    }
    text
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('~');
    short
}

fn centered(text: &str, width: usize) -> String {
    let text = shorten(text, width);
    format!("{text:^width$}")
}

pub(crate) fn header(call: &StoredCall) -> String {
    let mut out = String::new();
    let safe = |text: &str| escape_controls(text.as_bytes());
    let (from, to) = (safe(&call.from), safe(&call.to));
    // Writing into a String cannot fail.
    let _ = writeln!(
        out,
        "{} {}: {from} -> {to}, {}",
        call.kind.name(),
        call.id,
        outcome(call)
    );
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "  {name:<11}{}", safe(value));
        }
    };
    line("node", &call.node);
    line("started", &rfc3339(call.started));
    line("answered", &call.answered.map(rfc3339).unwrap_or_default());
    line("ended", &call.ended.map(rfc3339).unwrap_or_default());
    let by = match call.ended_by.as_str() {
        "" => call.reason.clone(),
        by => format!("{} (by {by})", call.reason),
    };
    line("reason", &by);
    for id in &call.call_ids {
        line("Call-ID", id);
    }
    line("route", &call.route);
    line("trunk", &call.trunk);
    line("codec", &call.codec);
    line("protection", &call.protection);
    for (name, side) in [("caller", &call.caller), ("callee", &call.callee)] {
        let figure = |value: Option<u64>| value.map(|value| value as f64 / 100.0);
        let figures = [
            figure(side.mos).map(|value| format!("MOS {value:.2}")),
            figure(side.loss).map(|value| format!("loss {value:.2} %")),
            figure(side.jitter).map(|value| match side.jitter_whole_ms {
                true => format!("jitter {value:.0} ms"),
                false => format!("jitter {value:.2} ms"),
            }),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        line(name, &figures.join(", "));
    }
    out
}

/// The outcome in a few words.
pub(crate) fn outcome(call: &StoredCall) -> String {
    let mut text = call.state.name().to_owned();
    if let Some(status) = call.status {
        let _ = write!(text, ", status {status}");
    }
    if let Some(ms) = call.duration_ms() {
        let _ = write!(text, ", {:.1} s", ms as f64 / 1_000.0);
    }
    text
}

/// The ladder of a call: header, messages and events in order of time. All values from the network are escaped.
pub fn ladder(
    call: &StoredCall,
    messages: &[LoadedMessage],
    events: &[StoredEvent],
    style: LadderStyle,
) -> String {
    let mut out = match style.header {
        true => header(call),
        false => String::new(),
    };
    let nodes = node_addresses(messages);
    let all = participants(messages, &nodes);
    let gaps = all.len().saturating_sub(1).max(1);
    let free = style.width.saturating_sub(TIME_WIDTH + COLUMN.0);
    let column = (free / gaps).clamp(COLUMN.0, COLUMN.1);
    // The first line stands in the middle of its name.
    let margin = COLUMN.0 / 2;
    if style.header && !all.is_empty() {
        let shift = (TIME_WIDTH + margin).saturating_sub(column / 2);
        out.push('\n');
        for line in heading(&all, messages, column) {
            let _ = writeln!(out, "{:shift$}{}", "", line.trim_end());
        }
    }
    for (at, item) in in_order(messages.get(style.skip..).unwrap_or_default(), events) {
        let time = clock_time(at, 6);
        match item {
            LadderItem::Message(message) => {
                let line = arrow(message, (&all, &nodes), column, margin);
                let _ = writeln!(out, "{time:<TIME_WIDTH$}{line}");
            }
            LadderItem::Event(event) => {
                let _ = writeln!(out, "{time:<TIME_WIDTH$}* {}", event_text(event));
            }
        }
    }
    out
}

/// Messages and events in order of time. The border stamps all outputs of one input with the same time: events of that
/// microsecond stand between the received message and the sent ones that they explain. The web pages do the same
/// (`web/src/lib/ladder.ts`).
fn in_order<'a>(
    messages: &'a [LoadedMessage],
    events: &'a [StoredEvent],
) -> Vec<(i64, LadderItem<'a>)> {
    let mut items: Vec<((i64, u8), LadderItem<'_>)> = Vec::new();
    let mut last = (i64::MIN, 0);
    for message in messages {
        let at = (message.time / 1_000) as i64;
        let is_sent = message.direction == StoredDirection::Sent;
        last = match last {
            (time, order) if time == at && !is_sent => (at, order),
            _ => (at, if is_sent { 2 } else { 0 }),
        };
        items.push((last, LadderItem::Message(message)));
    }
    let events = events.iter();
    items.extend(events.map(|event| ((event.at, 1), LadderItem::Event(event))));
    items.sort_by_key(|(key, _)| *key);
    items
        .into_iter()
        .map(|((at, _), item)| (at, item))
        .collect()
}

fn event_text(event: &StoredEvent) -> String {
    let mut text = escape_controls(event.name.as_bytes());
    if let Ok(Value::Object(fields)) = serde_json::from_str(&event.fields) {
        for (name, value) in &fields {
            if let Some(value) = value.as_str().filter(|_| name != "call") {
                let _ = write!(text, " {name}={}", escape_controls(value.as_bytes()));
            }
        }
    }
    text
}

/// A line with an arrow between two columns.
fn arrow(
    message: &LoadedMessage,
    (all, nodes): (&[LadderColumn], &NodeAddresses),
    column: usize,
    margin: usize,
) -> String {
    let (from, to) = ends(message, nodes);
    let position = |end: &LadderColumn| all.iter().position(|one| one == end);
    let label = label(message);
    let (Some(from), Some(to)) = (position(&from), position(&to)) else {
        return format!("{} -> {}  {label}", message.source, message.destination);
    };
    let (left, right) = (from.min(to), from.max(to));
    let mut line = " ".repeat(margin);
    let mut at = 0;
    loop {
        line.push('|');
        if at + 1 >= all.len() {
            break;
        }
        // The shaft crosses the lines between its ends.
        let span = if at == left { (right - left).max(1) } else { 1 };
        match at == left && right > left {
            true => line.push_str(&shaft(&label, span * column - 1, from < to)),
            false => line.push_str(&" ".repeat(column - 1)),
        }
        at += span;
    }
    if left == right {
        line.push_str(&label);
    }
    line
}

/// The shaft of an arrow with its text.
fn shaft(label: &str, width: usize, rightwards: bool) -> String {
    let text = shorten(label, width.saturating_sub(4));
    let body = format!("{text:-^inner$}", inner = width - 1);
    match rightwards {
        true => format!("{body}>"),
        false => format!("<{body}"),
    }
}

/// The messages of a call with all their text.
pub fn messages_in_full(messages: &[LoadedMessage]) -> String {
    let mut out = String::new();
    for message in messages {
        let at = (message.time / 1_000) as i64;
        let _ = writeln!(
            out,
            "--- {} {} -> {} {} {}",
            rfc3339(at),
            message.source,
            message.destination,
            message.transport,
            message.direction.name()
        );
        for line in message.bytes.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let _ = writeln!(out, "{}", escape_controls(line));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Transport;

    fn message(time: u64, sent: bool, peer: &str, bytes: &str) -> LoadedMessage {
        let (peer, ours) = (peer.parse().unwrap(), "192.0.2.1:5060".parse().unwrap());
        let (source, destination) = if sent { (ours, peer) } else { (peer, ours) };
        LoadedMessage {
            node: String::new(),
            time,
            direction: match sent {
                true => StoredDirection::Sent,
                false => StoredDirection::Received,
            },
            transport: Transport::Udp,
            source,
            destination,
            bytes: bytes.as_bytes().to_vec(),
        }
    }

    #[test]
    fn header_has_the_addresses_of_both_sides_and_events_precede_their_messages() {
        let (a, b) = ("192.0.2.10:5060", "198.51.100.20:5080");
        let text = "INVITE sip:b@x SIP/2.0\r\nCall-ID: 1\r\n\r\n";
        let mut messages = [
            message(1_000_000_000, false, a, text),
            message(1_000_000_000, true, b, text),
            message(1_000_000_900, true, b, text),
        ];
        for sent in &mut messages[1..] {
            sent.source = "198.51.100.1:5070".parse().unwrap();
        }
        let events = [StoredEvent {
            at: 1_000_000,
            name: "call_routed".into(),
            fields: r#"{"rule":"to b"}"#.into(),
        }];
        let drawn = ladder(
            &StoredCall::default(),
            &messages,
            &events,
            LadderStyle::default(),
        );
        let lines: Vec<&str> = drawn.lines().collect();
        let heading = lines
            .iter()
            .position(|line| line.contains("hornwork"))
            .unwrap();
        assert!(
            lines[heading].contains(a) && lines[heading].contains(b),
            "{drawn}"
        );
        // One below the other, in the column of the border.
        let column = lines[heading].find("hornwork").unwrap() + 4;
        for (line, address) in [(1, "192.0.2.1:5060"), (2, "198.51.100.1:5070")] {
            let line = lines[heading + line];
            let at = line.find(address).unwrap_or_else(|| panic!("{drawn}"));
            assert!((at..at + address.len()).contains(&column), "{drawn}");
        }
        let at = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
        assert_eq!(at("call_routed"), at("INVITE") + 1, "{drawn}");
        assert_eq!(drawn.matches("INVITE").count(), 3, "{drawn}");
        assert!(lines.last().unwrap().contains("INVITE"), "{drawn}");
        // Only the last message is news.
        let style = LadderStyle {
            header: false,
            skip: 2,
            ..LadderStyle::default()
        };
        let news = ladder(&StoredCall::default(), &messages, &events, style);
        assert_eq!(news.lines().count(), 2, "{news}");
    }

    #[test]
    fn both_legs_are_drawn_around_the_border() {
        let (a, b) = ("192.0.2.10:5060", "192.0.2.20:5080");
        let text = "INVITE sip:b@x SIP/2.0\r\nCall-ID: 1\r\n\r\n";
        let messages = [
            message(1_000_000_000, false, a, text),
            message(1_001_000_000, true, b, text),
            message(
                1_002_000_000,
                false,
                b,
                "SIP/2.0 180 Ri\u{1b}ng\r\nCall-ID: 1\r\n\r\n",
            ),
            message(
                1_003_000_000,
                true,
                a,
                "SIP/2.0 180 Ringing\r\nCall-ID: 1\r\n\r\n",
            ),
        ];
        let events = [StoredEvent {
            at: 1_001_500,
            name: "call_tagged".into(),
            fields: r#"{"call":"1","tag":"x","value":"\u001b[2J"}"#.into(),
        }];
        let style = LadderStyle {
            header: false,
            ..LadderStyle::default()
        };
        let drawn = ladder(&StoredCall::default(), &messages, &events, style);
        let expected = "\
00:00:01.000000             |-------INVITE------->|                     |
00:00:01.001000             |                     |-------INVITE------->|
00:00:01.001500  * call_tagged tag=x value=\\x1b[2J
00:00:01.002000             |                     |<----180 Ri\\x1bng----|
00:00:01.003000             |<----180 Ringing-----|                     |
";
        assert_eq!(drawn, expected);
        assert!(drawn.lines().all(|line| line.len() <= 80));
        let full = messages_in_full(&messages[2..3]);
        assert!(full.contains("180 Ri\\x1bng\n"), "{full}");
    }
}
