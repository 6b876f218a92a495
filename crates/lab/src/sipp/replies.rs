//! Messages beyond the scenario: answers to unexpected requests, and the end of aborted calls.

use super::call::ScenarioCall;
use super::incoming::{HeaderLines, Incoming, uri, values};
use super::receive::contact;
use super::render::branch;
use std::io::Write as _;

/// Appends a response to a request.
pub fn response(request: &Incoming<'_>, line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(line);
    for name in [&b"Via"[..], b"From", b"To", b"Call-ID", b"CSeq"] {
        for value in values(request.bytes, name) {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            if name == b"To" && request.to_tag.is_empty() {
                out.extend_from_slice(b";tag=hw");
            }
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
}

/// The branch of a message's topmost Via.
pub fn branch_of(message: &[u8]) -> &[u8] {
    let via = values(message, b"Via").next().unwrap_or_default();
    via.split(|byte| matches!(byte, b';' | b','))
        .find_map(|part| part.trim_ascii().strip_prefix(b"branch="))
        .unwrap_or_default()
}

/// The value of a Route header, and the request URI, for requests after a message with Record-Route (RFC 3261 sections
/// 12.1 and 12.2.1.1).
pub fn route_set(incoming: &Incoming<'_>, routes: &mut Vec<u8>, next_url: &mut Vec<u8>) {
    let mut set: Vec<&[u8]> = values(incoming.bytes, b"Record-Route")
        .flat_map(|value| split_addresses(value))
        .collect();
    if incoming.status.is_some() {
        set.reverse();
    }
    let target = contact(incoming.bytes);
    next_url.clear();
    let strict = set.first().is_some_and(|first| !is_loose(uri(first)));
    let last;
    if strict {
        next_url.extend_from_slice(uri(set.remove(0)));
        last = [b"<", target, b">"].concat();
        set.push(&last);
    } else {
        next_url.extend_from_slice(target);
    }
    routes.clear();
    routes.extend_from_slice(&set.join(&b", "[..]));
}

fn is_loose(uri: &[u8]) -> bool {
    uri.split(|byte| *byte == b';').skip(1).any(|part| {
        part.eq_ignore_ascii_case(b"lr") || part.to_ascii_lowercase().starts_with(b"lr=")
    })
}

/// Splits addresses at commas, except in brackets or quotes.
fn split_addresses(value: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut start) = (Vec::new(), 0);
    let (mut angle, mut quoted) = (false, false);
    for (at, byte) in value.iter().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'<' if !quoted => angle = true,
            b'>' if !quoted => angle = false,
            b',' if !quoted && !angle => {
                found.extend(value.get(start..at).map(<[u8]>::trim_ascii));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.extend(value.get(start..).map(<[u8]>::trim_ascii));
    found.retain(|address| !address.is_empty());
    found
}

/// The messages that end an outgoing call: none before a message of the peer, CANCEL before its answer, ACK for a
/// refusal, BYE (with a missing ACK) after acceptance.
pub fn ending(call: &ScenarioCall, pid: u32, messages: &mut Vec<Vec<u8>>) {
    let sent = &call.sent.bytes;
    let start = HeaderLines::of(sent).start;
    let mut words = start.split(|byte| *byte == b' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return;
    };
    // If the last sent message is a response, there is no request to take the dialog from.
    let nothing_heard = call.last.is_empty() && call.last_status == 0;
    if nothing_heard || method == b"SIP/2.0" {
        return;
    }
    let from_last = call.last.starts_with(b"SIP/2.0");
    let derive = |method: &[u8], target: &[u8], own_branch: bool, to_peer: bool, rise: u32| {
        let mut out = Vec::with_capacity(sent.len());
        out.extend_from_slice(method);
        out.push(b' ');
        out.extend_from_slice(target);
        out.extend_from_slice(b" SIP/2.0\r\n");
        let via = values(sent, b"Via").next().unwrap_or_default();
        out.extend_from_slice(b"Via: ");
        if own_branch {
            let head = via.split(|byte| *byte == b';').next().unwrap_or_default();
            out.extend_from_slice(head);
            out.extend_from_slice(b";branch=");
            branch(pid, call.number, 90_000 + i64::from(rise), &mut out);
        } else {
            out.extend_from_slice(via);
        }
        out.extend_from_slice(b"\r\n");
        let to = match to_peer && from_last {
            true => values(&call.last, b"To").next(),
            false => values(sent, b"To").next(),
        };
        for (name, value) in [
            (&b"From"[..], values(sent, b"From").next()),
            (b"To", to),
            (b"Call-ID", values(sent, b"Call-ID").next()),
        ] {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.unwrap_or_default());
            out.extend_from_slice(b"\r\n");
        }
        for route in values(sent, b"Route") {
            out.extend_from_slice(b"Route: ");
            out.extend_from_slice(route);
            out.extend_from_slice(b"\r\n");
        }
        let number = values(sent, b"CSeq")
            .next()
            .and_then(|value| value.split(|byte| *byte == b' ').next())
            .and_then(|word| std::str::from_utf8(word).ok()?.parse::<u32>().ok())
            .unwrap_or(1)
            .wrapping_add(rise);
        // Writing to memory cannot fail.
        let _ = write!(out, "CSeq: {number} ");
        out.extend_from_slice(method);
        out.extend_from_slice(b"\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n");
        out
    };
    let peer = match contact(&call.last) {
        b"" => target,
        contact => contact,
    };
    if call.established {
        messages.push(derive(b"BYE", peer, true, true, 1));
    } else if call.accepted {
        messages.push(derive(b"ACK", peer, true, true, 0));
        messages.push(derive(b"BYE", peer, true, true, 1));
    } else if call.sent.invite && call.last_status >= 300 {
        messages.push(derive(b"ACK", target, false, true, 0));
    } else if call.sent.invite && call.last_status >= 100 {
        messages.push(derive(b"CANCEL", target, false, false, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_sets() {
        let response = b"SIP/2.0 200 OK\r\nCall-ID: a\r\nCSeq: 1 INVITE\r\nRecord-Route: <sip:p1;lr>, \"a,b\" <sip:p2;lr>\r\n\
            Record-Route: <sip:p3;lr>\r\nm: <sip:bob@c>\r\n\r\n";
        let incoming = Incoming::read(response).unwrap();
        let (mut routes, mut next) = (Vec::new(), Vec::new());
        route_set(&incoming, &mut routes, &mut next);
        assert_eq!(
            String::from_utf8(routes.clone()).unwrap(),
            "<sip:p3;lr>, \"a,b\" <sip:p2;lr>, <sip:p1;lr>"
        );
        assert_eq!(next, b"sip:bob@c");
        let strict = b"INVITE sip:x SIP/2.0\r\nCall-ID: a\r\nCSeq: 1 INVITE\r\nRecord-Route: <sip:p1>\r\nContact: sip:al@c;x\r\n\r\n";
        route_set(&Incoming::read(strict).unwrap(), &mut routes, &mut next);
        assert_eq!(routes, b"<sip:al@c>");
        assert_eq!(next, b"sip:p1");
    }

    #[test]
    fn ending_messages_by_state() {
        let mut call = ScenarioCall::new();
        call.sent.bytes = b"INVITE sip:b@h SIP/2.0\r\nVia: SIP/2.0/UDP 1.2.3.4;branch=z9hG4bK-7\r\nFrom: a;tag=1\r\nTo: b\r\nCall-ID: c\r\nCSeq: 4 INVITE\r\n\r\n".to_vec();
        call.sent.invite = true;
        let of = |call: &ScenarioCall| {
            let mut messages = Vec::new();
            ending(call, 9, &mut messages);
            messages
                .into_iter()
                .map(|message| String::from_utf8(message).unwrap())
                .collect::<Vec<_>>()
        };
        assert!(of(&call).is_empty(), "no message of the peer");
        // Provisional responses are not kept if no text refers to them.
        call.last_status = 180;
        let messages = of(&call);
        assert!(messages[0].starts_with(
            "CANCEL sip:b@h SIP/2.0\r\nVia: SIP/2.0/UDP 1.2.3.4;branch=z9hG4bK-7\r\n"
        ));
        assert!(messages[0].contains("To: b\r\n") && messages[0].contains("CSeq: 4 CANCEL\r\n"));
        call.last = b"SIP/2.0 486 B\r\nTo: b;tag=2\r\n\r\n".to_vec();
        call.last_status = 486;
        let messages = of(&call);
        assert!(messages[0].starts_with("ACK ") && messages[0].contains("branch=z9hG4bK-7"));
        assert!(messages[0].contains("To: b;tag=2\r\n"));
        call.last = b"SIP/2.0 200 OK\r\nTo: b;tag=2\r\nContact: <sip:b@i>\r\n\r\n".to_vec();
        call.last_status = 200;
        call.accepted = true;
        let messages = of(&call);
        assert!(messages[0].starts_with("ACK sip:b@i ") && !messages[0].contains("bK-7\r"));
        assert!(messages[1].starts_with("BYE sip:b@i ") && messages[1].contains("CSeq: 5 BYE"));
    }
}
