//! `hornwork trace`: finds calls in the store of a border, and prints ladders and messages.

use crate::history::location;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use console::{
    CallFilter, CallKind, CallPage, CallState, HistoryReader, LadderStyle, LoadedMessage,
    MAX_MESSAGES, StoreError, StoreLocation, StoredCall, StoredEvent, escape_controls, ladder,
    messages_in_full, parse_time, rfc3339,
};
use lab::output::print;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Interval at which `--live` looks for news.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Calls that `--live` reads at once.
const LIVE_CALLS: usize = 200;
/// Reads of `--live` in a row, until it reaches a call that it knows.
const LIVE_PAGES: usize = 50;
/// Exit code: nothing was found.
const NOT_FOUND: u8 = 1;

/// Options of `hornwork trace`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork trace --store /var/lib/hornwork/store --number 600")]
pub struct Trace {
    /// Folder or database of the store: `folder` or `database` of [store] in the configuration.
    #[arg(long, value_name = "DIR|URL", value_parser = OsStringValueParser::new().try_map(location::parse))]
    store: StoreLocation,
    /// A Call-ID of any leg, or the number of a call in the list: prints the ladder of this call.
    call: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
    /// Print JSON: an array of calls, or one call with its messages and events.
    #[arg(long)]
    json: bool,
    /// Print all messages in full.
    #[arg(long)]
    full: bool,
    /// Print news until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// Write the messages of the calls to this pcapng file, for Wireshark and others.
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    pcapng: Option<PathBuf>,
    /// Calls per page, newest first.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Cursor: print calls before this one. The end of a page names it.
    #[arg(long, value_name = "CURSOR")]
    before: Option<i64>,
    /// Width of the ladder in characters.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(80..=500))]
    width: u16,
}

/// Conditions; all that are given must hold.
#[derive(Debug, Args)]
struct Conditions {
    /// User of From, To or the Request-URI; with * at the end: its beginning.
    #[arg(long, visible_alias = "user")]
    number: Option<String>,
    /// Call-ID of any leg.
    #[arg(long)]
    call_id: Option<String>,
    /// Name of the border that recorded it, in a store of several.
    #[arg(long)]
    node: Option<String>,
    /// IP address of a peer.
    #[arg(long, value_parser = address)]
    address: Option<std::net::IpAddr>,
    /// Begun at this time or later: YYYY-MM-DD[THH:MM[:SS]], UTC.
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<i64>,
    /// Begun before this time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<i64>,
    /// Kind: call, registration, subscription, message, options, other, any.
    #[arg(long, default_value = "call", value_parser = kind)]
    kind: KindCondition,
    /// Final status: 486, a class such as 5xx, or a range such as 400-499.
    #[arg(long, value_parser = status)]
    status: Option<(u16, u16)>,
    /// State: offered, answered, ended, interrupted.
    #[arg(long, value_parser = state)]
    state: Option<CallState>,
    /// Shortest duration in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    min_duration: Option<i64>,
    /// Longest duration in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_duration: Option<i64>,
    /// Lowest MOS of the worse direction.
    #[arg(long, value_name = "MOS", value_parser = mos)]
    min_mos: Option<u64>,
    /// Highest MOS of the worse direction.
    #[arg(long, value_name = "MOS", value_parser = mos)]
    max_mos: Option<u64>,
    /// Trunk, or domain of the target.
    #[arg(long)]
    trunk: Option<String>,
    /// Codec of either side.
    #[arg(long)]
    codec: Option<String>,
    /// Media security of either side: sdes, dtls; none: neither.
    #[arg(long)]
    protection: Option<String>,
    /// Words in display names, user agents and reasons; all of them.
    #[arg(long)]
    words: Option<String>,
    /// Text in any message, exactly. Slower than the other conditions: give a time or a number too.
    #[arg(long)]
    text: Option<String>,
}

/// A kind, or any.
type KindCondition = Box<[CallKind]>;

fn time(text: &str) -> Result<i64, String> {
    parse_time(text).ok_or_else(|| "write YYYY-MM-DD[THH:MM[:SS]] in UTC".to_owned())
}

pub(crate) fn kind(text: &str) -> Result<KindCondition, String> {
    if text == "any" {
        return Ok(Box::default());
    }
    let kind = CallKind::from_name(text);
    kind.map(|kind| Box::from([kind])).ok_or_else(|| {
        "write call, registration, subscription, message, options, other or any".to_owned()
    })
}

pub(crate) fn status(text: &str) -> Result<(u16, u16), String> {
    let class = text
        .strip_suffix("xx")
        .and_then(|class| class.parse::<u16>().ok())
        .filter(|class| *class < 7);
    let bounds = match (class, text.split_once('-')) {
        (Some(class), _) => Some((class * 100, class * 100 + 99)),
        (None, Some((low, high))) => {
            let (low, high) = low.parse().ok().zip(high.parse().ok()).unwrap_or_default();
            Some((std::cmp::min(low, high), std::cmp::max(low, high)))
        }
        (None, None) => text.parse().ok().map(|status| (status, status)),
    };
    bounds
        .filter(|(low, high)| *low >= 100 && *high < 700)
        .ok_or_else(|| "write a status such as 486, 5xx or 400-499".to_owned())
}

pub(crate) fn state(text: &str) -> Result<CallState, String> {
    let all = [
        CallState::Offered,
        CallState::Answered,
        CallState::Ended,
        CallState::Interrupted,
    ];
    let mut all = all.into_iter();
    all.find(|state| state.name() == text)
        .ok_or_else(|| "write offered, answered, ended or interrupted".to_owned())
}

pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    let seconds = text.parse::<f64>().ok().and_then(milliseconds);
    seconds.ok_or_else(|| "write a number of seconds below 1000000000".to_owned())
}

/// The milliseconds of a number of seconds that is a duration.
pub(crate) fn milliseconds(seconds: f64) -> Option<i64> {
    let is_duration = (0.0..1e9).contains(&seconds);
    is_duration.then(|| (seconds * 1_000.0).round() as i64)
}

pub(crate) fn mos(text: &str) -> Result<u64, String> {
    let mos = text.parse::<f64>().ok().and_then(hundredths);
    mos.ok_or_else(|| "write a number from 0 to 5".to_owned())
}

/// An IP address; of version 6 also in brackets, as in a URI.
pub(crate) fn address(text: &str) -> Result<std::net::IpAddr, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().map(Into::into),
        None => text.parse(),
    };
    address.map_err(|_| format!("write an IP address, not \"{text}\""))
}

/// The hundredths of a MOS.
pub(crate) fn hundredths(mos: f64) -> Option<u64> {
    let is_mos = (0.0..=5.0).contains(&mos);
    is_mos.then(|| (mos * 100.0).round() as u64)
}

impl Conditions {
    fn filter(&self) -> CallFilter {
        CallFilter {
            node: self.node.clone(),
            kind: self.kind.first().copied(),
            number: self.number.clone(),
            call_id: self.call_id.clone(),
            address: self.address.map(|address| address.to_string()),
            from: self.from,
            until: self.until,
            status: self.status,
            state: self.state,
            duration_min: self.min_duration,
            duration_max: self.max_duration,
            mos_min: self.min_mos,
            mos_max: self.max_mos,
            trunk: self.trunk.clone(),
            codec: self.codec.clone(),
            protection: self.protection.clone(),
            words: self.words.clone(),
            text: self.text.clone().map(String::into_bytes),
        }
    }
}

/// `hornwork trace`.
pub fn run(options: &Trace) -> ExitCode {
    let done = HistoryReader::open(&options.store).and_then(|reader| match &options.call {
        Some(id) => one(options, reader, id),
        None if options.live => live(options, reader),
        None => list(options, &reader),
    });
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hornwork: cannot read the store: {error}");
            let remedy = match options.store {
                StoreLocation::Folder(_) => {
                    "name the folder of [store] in the configuration with --store"
                }
                StoreLocation::Database(_) => {
                    "check the URL, the password file (passfile or PGPASSFILE) and the server"
                }
            };
            eprintln!("  remedy: {remedy}");
            ExitCode::from(3)
        }
    }
}

/// Names the parts of the store that results lack.
fn warn_unread(reader: &HistoryReader) {
    for part in reader.unread() {
        eprintln!("hornwork: {part}; its calls are missing");
        eprintln!(
            "  remedy: move the partition out of the folder; its pcapng files open in Wireshark"
        );
    }
}

fn list(options: &Trace, reader: &HistoryReader) -> Result<ExitCode, StoreError> {
    let filter = options.conditions.filter();
    let page = reader.search(&filter, options.before, options.limit as usize)?;
    warn_unread(reader);
    if let Some(file) = &options.pcapng {
        let mut messages = Vec::new();
        let mut is_cut = false;
        for call in &page.calls {
            let of_call = reader.messages(call.id)?;
            is_cut |= is_at_limit(&of_call);
            messages.extend(of_call);
        }
        messages.sort_by_key(|message| message.time);
        if let Some(code) = write_capture(file, &messages, is_cut) {
            return Ok(code);
        }
    }
    if options.json {
        let calls: Vec<Value> = page.calls.iter().map(StoredCall::json).collect();
        print(&format!("{}\n", Value::from(calls)));
    } else if !page.calls.is_empty() {
        print(&format!("{TABLE_HEAD}\n"));
        for call in &page.calls {
            print(&row(call));
            if options.full {
                print(&messages_in_full(&reader.messages(call.id)?));
            }
        }
    }
    if let Some(next) = page.next {
        eprintln!("more: --before {next}");
    }
    if page.calls.is_empty() && page.next.is_none() {
        eprintln!("hornwork: no call found");
        return Ok(ExitCode::from(NOT_FOUND));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the limit of the reader was reached, so that the call may have more messages.
fn is_at_limit(messages: &[LoadedMessage]) -> bool {
    messages.len() >= MAX_MESSAGES
}

/// The note about calls of which messages may be missing.
fn note_of_limit() -> String {
    format!("INCOMPLETE: only the first {MAX_MESSAGES} messages of a call are read")
}

/// Writes a capture, with a comment if messages may be missing; `Some`: it failed.
fn write_capture(file: &PathBuf, messages: &[LoadedMessage], is_cut: bool) -> Option<ExitCode> {
    let comment = if is_cut {
        note_of_limit()
    } else {
        String::new()
    };
    let written = std::fs::write(file, console::export(messages, &comment));
    written.err().map(|error| {
        eprintln!("hornwork: {}: {error}", file.display());
        eprintln!("  remedy: name a file in an existing folder with --pcapng");
        ExitCode::from(3)
    })
}

const TABLE_HEAD: &str = "started                   from             to               state        status  seconds   MOS  trunk         Call-ID";

fn row(call: &StoredCall) -> String {
    let safe = |text: &str| escape_controls(text.as_bytes());
    let status = call.status.map(|status| status.to_string());
    let seconds = call
        .duration_ms()
        .map(|ms| format!("{:.1}", ms as f64 / 1_000.0));
    let mos = call.mos().map(|mos| format!("{:.2}", mos as f64 / 100.0));
    let first = call.call_ids.first().map_or("", String::as_str);
    format!(
        "{:<25} {:<16} {:<16} {:<12} {:>6} {:>8} {:>5}  {:<13} {}\n",
        rfc3339(call.started),
        safe(&call.from),
        safe(&call.to),
        call.state.name(),
        status.unwrap_or_default(),
        seconds.unwrap_or_default(),
        mos.unwrap_or_default(),
        safe(&call.trunk),
        safe(first)
    )
}

/// Prints one call.
fn one(options: &Trace, mut reader: HistoryReader, id: &str) -> Result<ExitCode, StoreError> {
    let mut found = reader.find(id)?;
    while found.is_none() && options.live {
        std::thread::sleep(LIVE_INTERVAL);
        reader.refresh()?;
        found = reader.find(id)?;
    }
    warn_unread(&reader);
    let Some(call) = found else {
        eprintln!("hornwork: no call {}", escape_controls(id.as_bytes()));
        return Ok(ExitCode::from(NOT_FOUND));
    };
    let (messages, events, related) = whole(&reader, &call)?;
    let is_cut = is_at_limit(&messages);
    if is_cut {
        eprintln!("hornwork: {}", note_of_limit());
    }
    if let Some(file) = &options.pcapng
        && let Some(code) = write_capture(file, &messages, is_cut)
    {
        return Ok(code);
    }
    if options.json {
        print(&format!(
            "{}\n",
            call_json(&call, &related, &messages, &events)
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let mut style = LadderStyle {
        width: options.width.into(),
        ..LadderStyle::default()
    };
    print(&ladder(&call, &messages, &events, style));
    for other in &related {
        print(&format!(
            "also {}: {}",
            escape_controls(other.node.as_bytes()),
            row(other)
        ));
    }
    if options.full {
        print(&format!("\n{}", messages_in_full(&messages)));
    }
    style.header = false;
    if !options.live {
        return Ok(ExitCode::SUCCESS);
    }
    let (mut known, mut known_events) = (BTreeSet::new(), BTreeSet::new());
    unseen(&events, &mut known_events, event_key);
    let mut shown = unseen(&messages, &mut known, message_key);
    loop {
        std::thread::sleep(LIVE_INTERVAL);
        reader.refresh()?;
        // It may have got further legs, by which the records of other borders are found.
        let present = reader.find(&call.id.to_string())?;
        let (all, events, _) = whole(&reader, present.as_ref().unwrap_or(&call))?;
        let new = unseen(&all, &mut known, message_key);
        let new_events = unseen(&events, &mut known_events, event_key);
        if new.is_empty() && new_events.is_empty() {
            continue;
        }
        style.skip = shown.len();
        shown.extend(new.iter().cloned());
        print(&ladder(&call, &shown, &new_events, style));
        if options.full {
            print(&messages_in_full(&new));
        }
    }
}

/// Time, direction, addresses and a hash of a message: no other message of a call has the same.
fn message_key(message: &LoadedMessage) -> (u64, &'static str, SocketAddr, SocketAddr, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(&message.bytes);
    let direction = message.direction.name();
    let ends = (message.source, message.destination);
    (message.time, direction, ends.0, ends.1, hasher.finish())
}

fn event_key(event: &StoredEvent) -> (i64, String, String) {
    (event.at, event.name.clone(), event.fields.clone())
}

/// The entries that are not known, in their order; they are known then. Those of another border or worker may come
/// later than those after them.
fn unseen<T: Clone, K: Ord>(all: &[T], known: &mut BTreeSet<K>, key: impl Fn(&T) -> K) -> Vec<T> {
    let new = all.iter().filter(|one| known.insert(key(one)));
    new.cloned().collect()
}

/// Messages and events of a call in order of time, and its records at other nodes.
type WholeCall = (Vec<LoadedMessage>, Vec<StoredEvent>, Vec<StoredCall>);

fn whole(reader: &HistoryReader, call: &StoredCall) -> Result<WholeCall, StoreError> {
    let related = reader.correlated(call)?;
    let ids: Vec<i64> = [call]
        .into_iter()
        .chain(&related)
        .map(|one| one.id)
        .collect();
    let messages = reader.messages_of(&ids)?;
    let mut events = Vec::new();
    for id in ids {
        events.extend(reader.events(id)?);
    }
    events.sort_by_key(|event| event.at);
    Ok((messages, events, related))
}

fn call_json(
    call: &StoredCall,
    related: &[StoredCall],
    messages: &[LoadedMessage],
    events: &[StoredEvent],
) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| {
            json!({
                "node": (!message.node.is_empty()).then_some(&message.node),
                "time": rfc3339((message.time / 1_000) as i64),
                "time_us": message.time / 1_000,
                "direction": message.direction.name(),
                "transport": message.transport.uri_name(),
                "source": message.source.to_string(),
                "destination": message.destination.to_string(),
                "message": String::from_utf8_lossy(&message.bytes),
            })
        })
        .collect();
    let events: Vec<Value> = events
        .iter()
        .map(|event| {
            let fields = serde_json::from_str::<Value>(&event.fields).unwrap_or_default();
            json!({ "time": rfc3339(event.at), "event": event.name, "fields": fields })
        })
        .collect();
    let mut json = call.json();
    if let Value::Object(object) = &mut json {
        object.insert("messages".to_owned(), messages.into());
        object.insert("events".to_owned(), events.into());
        let related: Vec<Value> = related.iter().map(StoredCall::json).collect();
        object.insert("related".to_owned(), related.into());
    }
    json
}

/// The newest calls, back to one that is known, oldest first; whether calls before them were left out.
fn newest(
    mut search: impl FnMut(Option<i64>) -> Result<CallPage, StoreError>,
    is_known: impl Fn(i64) -> bool,
    page_size: usize,
) -> Result<(Vec<StoredCall>, bool), StoreError> {
    let (mut calls, mut before) = (Vec::new(), None);
    for _ in 0..LIVE_PAGES {
        let page = search(before)?;
        // A page that is not full ended at the number of calls that a search examines.
        let is_last = page.calls.len() < page_size || page.next.is_none();
        let reaches = page.calls.iter().any(|call| is_known(call.id));
        calls.extend(page.calls);
        before = page.next;
        if reaches || is_last {
            calls.reverse();
            return Ok((calls, false));
        }
    }
    calls.reverse();
    Ok((calls, true))
}

/// Prints calls as they begin and change.
fn live(options: &Trace, mut reader: HistoryReader) -> Result<ExitCode, StoreError> {
    let filter = options.conditions.filter();
    let mut known: BTreeMap<i64, String> = BTreeMap::new();
    print(&format!("{TABLE_HEAD}\n"));
    let mut first = true;
    loop {
        let search = |before| reader.search(&filter, before, LIVE_CALLS);
        // At first one page is enough: its calls are no news.
        let (calls, left_out) = newest(search, |id| first || known.contains_key(&id), LIVE_CALLS)?;
        if first {
            warn_unread(&reader);
        }
        if left_out {
            eprintln!("hornwork: calls come faster than they are read; some are not shown");
        }
        for call in &calls {
            let text = row(call);
            let is_new = known.get(&call.id) != Some(&text);
            // The calls of the past are not news.
            if is_new && (!first || call.ended.is_none()) {
                print(&text);
            }
            known.insert(call.id, text);
        }
        while known.len() > LIVE_CALLS * (LIVE_PAGES + 4) {
            known.pop_first();
        }
        first = false;
        std::thread::sleep(LIVE_INTERVAL);
        reader.refresh()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_reads_back_to_a_known_call() {
        // Numbers from 1; a page has the ten below its cursor.
        let pages = |last: i64| {
            move |before: Option<i64>| {
                let top = before.unwrap_or(last + 1);
                let low = (top - 10).max(1);
                let calls = (low..top).rev().map(|id| StoredCall {
                    id,
                    ..StoredCall::default()
                });
                Ok(CallPage {
                    calls: calls.collect(),
                    next: (low > 1).then_some(low),
                })
            }
        };
        let ids = |last, known: i64| {
            let (calls, left_out) = newest(pages(last), |id| id <= known, 10).unwrap();
            let ids: Vec<i64> = calls.iter().map(|call| call.id).collect();
            (ids[0], ids.len(), left_out)
        };
        assert_eq!(ids(35, 34), (26, 10, false));
        assert_eq!(ids(35, 12), (6, 30, false), "more than a page is new");
        assert_eq!(ids(35, 0), (1, 35, false), "all of them");
        let most = LIVE_PAGES as i64 * 10;
        assert_eq!(ids(most + 20, 5), (21, most as usize, true));
    }

    /// Two borders write a call to one database, one of them later.
    #[test]
    fn live_prints_messages_that_come_late_once() {
        let message = |time: u64, node: &str, text: &str| LoadedMessage {
            node: node.to_owned(),
            time,
            direction: console::StoredDirection::Sent,
            transport: engine::Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: text.as_bytes().to_vec(),
        };
        let (first, late, second) = (
            message(1, "a", "INVITE"),
            message(2, "b", "INVITE"),
            message(3, "a", "180"),
        );
        // At the same time to the same peer.
        let third = message(3, "a", "183");
        let mut known = BTreeSet::new();
        let mut new = |all: &[&LoadedMessage]| {
            let all: Vec<LoadedMessage> = all.iter().map(|one| (*one).clone()).collect();
            unseen(&all, &mut known, message_key)
        };
        assert_eq!(new(&[&first, &second]), [first.clone(), second.clone()]);
        assert_eq!(new(&[&first, &second]), []);
        let all = [&first, &late, &second, &third];
        assert_eq!(new(&all), [late.clone(), third.clone()]);
    }

    #[test]
    fn conditions_are_parsed() {
        assert_eq!(status("486"), Ok((486, 486)));
        assert_eq!(status("5xx"), Ok((500, 599)));
        assert_eq!(status("400-499"), Ok((400, 499)));
        assert_eq!(status("499-400"), Ok((400, 499)));
        for bad in ["", "9xx", "656xx", "99", "400-700", "a-b", "x", "700"] {
            assert!(status(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("1.5"), Ok(1_500));
        assert!(seconds("-1").is_err() && seconds("NaN").is_err());
        assert_eq!(mos("3.605"), Ok(361));
        assert_eq!(kind("any"), Ok(Box::default()));
        assert!(kind("calls").is_err());
        assert_eq!(state("interrupted"), Ok(CallState::Interrupted));
    }
}
