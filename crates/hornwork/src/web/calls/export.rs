//! A call as a file: pcapng, or text. A file that lacks messages or events of the call says so in its name, and in its
//! text or comment: the file outlives the page that says it.

use super::super::api::{PathPart, Shared};
use super::super::problem::Answer;
use super::loaded;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use console::{
    JoinedCall, LadderStyle, LoadedMessage, StoredCall, StoredEvent, export, ladder,
    messages_in_full,
};

/// A file for the disk of the browser.
fn file(kind: &'static str, name: &str, bytes: Vec<u8>) -> Response {
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let mut response = (headers, bytes).into_response();
    if let Ok(value) = HeaderValue::from_str(&disposition) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    response
}

/// The parts that a file about this call lacks; empty if it has all.
fn missing_parts(joined: &JoinedCall) -> String {
    let of_messages = joined.is_truncated().then(|| {
        let count = joined.messages().count();
        format!("only the first {count} messages of the call")
    });
    let of_events = joined.has_more_events().then(|| {
        let counts = joined.records().iter().map(|record| record.events.len());
        let most = counts.max().unwrap_or_default();
        format!("only the first {most} events of a border")
    });
    let parts: Vec<String> = of_messages.into_iter().chain(of_events).collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(
            "INCOMPLETE: {}; \"hornwork trace\" reads more",
            parts.join(", ")
        ),
    }
}

fn name_of(call: &StoredCall, is_complete: bool, ending: &str) -> String {
    let incomplete = if is_complete { "" } else { "-incomplete" };
    format!("call-{}{incomplete}.{ending}", call.id)
}

/// Name and content of a pcapng file.
fn capture_file(call: &StoredCall, joined: &JoinedCall) -> (String, Vec<u8>) {
    let messages: Vec<LoadedMessage> = joined.messages().cloned().collect();
    let note = match joined.is_truncated() {
        true => missing_parts(joined),
        // It has no events in any case.
        false => String::new(),
    };
    let name = name_of(call, note.is_empty(), "pcapng");
    (name, export(&messages, &note))
}

/// Name and content of a text file.
fn text_file(call: &StoredCall, joined: &JoinedCall) -> (String, Vec<u8>) {
    let messages: Vec<LoadedMessage> = joined.messages().cloned().collect();
    let events = joined.records().iter().flat_map(|record| &record.events);
    let events: Vec<StoredEvent> = events.cloned().collect();
    let text = ladder(call, &messages, &events, LadderStyle::default());
    let text = format!("{text}\n{}", messages_in_full(&messages));
    let note = missing_parts(joined);
    let name = name_of(call, note.is_empty(), "txt");
    let text = match note.is_empty() {
        true => text,
        // At the end, too, where a reader looks for the end of the call.
        false => format!("{note}\n\n{text}\n{note}\n"),
    };
    (name, text.into_bytes())
}

/// `GET /calls/{id}/pcap`.
pub(in crate::web) async fn export_pcap(state: Shared, PathPart(id): PathPart<String>) -> Answer {
    let (call, joined) = loaded(&state, id).await?;
    let (name, bytes) = capture_file(&call, &joined);
    Ok(file("application/octet-stream", &name, bytes))
}

/// `GET /calls/{id}/text`.
pub(in crate::web) async fn export_text(state: Shared, PathPart(id): PathPart<String>) -> Answer {
    let (call, joined) = loaded(&state, id).await?;
    let (name, bytes) = text_file(&call, &joined);
    Ok(file("text/plain; charset=utf-8", &name, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::{CallRecord, StoredDirection};

    #[test]
    fn file_that_lacks_messages_says_so() {
        let call = StoredCall {
            id: 7,
            ..StoredCall::default()
        };
        let message = |time: u64| LoadedMessage {
            time,
            direction: StoredDirection::Received,
            transport: engine::Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: format!("INFO sip:{time}@x SIP/2.0\r\n\r\n").into_bytes(),
            node: String::new(),
        };
        let files = |limit: usize| {
            let record = CallRecord {
                call: call.clone(),
                messages: (1..=3).map(message).collect(),
                events: Vec::new(),
            };
            let joined = JoinedCall::new(vec![record], limit);
            let texts = [text_file(&call, &joined), capture_file(&call, &joined)];
            texts.map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let note =
            "INCOMPLETE: only the first 2 messages of the call; \"hornwork trace\" reads more";
        let [text, capture] = files(2);
        assert_eq!(text.0, "call-7-incomplete.txt");
        assert!(
            text.1.starts_with(note) && text.1.trim_end().ends_with(note),
            "{}",
            text.1
        );
        assert!(text.1.contains("sip:2@x") && !text.1.contains("sip:3@x"));
        assert_eq!(capture.0, "call-7-incomplete.pcapng");
        assert!(capture.1.contains(note));
        let [text, capture] = files(3);
        assert_eq!((&*text.0, &*capture.0), ("call-7.txt", "call-7.pcapng"));
        assert!(!text.1.contains("INCOMPLETE") && !capture.1.contains("INCOMPLETE"));
    }
}
