//! Folds messages and events into the entry of their call.

use super::{CallEntry, MAX_TEXT, MAX_WORDS, text_of, user_of};
use crate::call::{CallKind, CallState, SideQuality};
use crate::segment::{StoredDirection, StoredMessage};
use engine::{EventKind, Hundredths};
use wire::sip::{HeaderId, Message, NameAddr};

pub(super) fn fold_addresses(entry: &mut CallEntry, stored: &StoredMessage<'_>) {
    match stored.direction {
        StoredDirection::Received => entry.add_peer(stored.source),
        StoredDirection::Sent => entry.add_peer(stored.destination),
        StoredDirection::Observed => {
            entry.add_peer(stored.source);
            entry.add_peer(stored.destination);
        }
    }
    let transport = stored.transport.uri_name();
    if !entry.call.transports.iter().any(|known| known == transport) {
        entry.call.transports.push(transport.to_owned());
    }
}

pub(super) fn fold_message(entry: &mut CallEntry, message: &Message<'_>, call_id: &[u8], now: i64) {
    let first_leg = entry
        .call
        .call_ids
        .first()
        .is_some_and(|id| id.as_bytes() == call_id);
    if message.is_request() {
        let is_first = entry.call.method.is_empty();
        let method = message.method();
        let method = method.as_bytes();
        if is_first {
            entry.call.method = text_of(method);
            entry.call.kind = match entry.call.call {
                Some(_) => CallKind::Call,
                None => CallKind::of_method(method),
            };
        }
        let user = |address: Option<NameAddr<'_>>| address.map(|address| user_of(address.uri));
        // Later requests of a dialog have the same users, or those of the other direction.
        if is_first || method == b"INVITE" {
            let (from, to) = (message.from().ok(), message.to().ok());
            if is_first {
                let tag = from.as_ref().and_then(NameAddr::tag).unwrap_or_default();
                entry.caller_tag = tag.get(..MAX_TEXT).unwrap_or(tag).to_vec();
                entry.call.from = user(from).unwrap_or_default();
                entry.call.to = user(to).unwrap_or_default();
            }
            let numbers = [user(from), user(to), Some(user_of(message.request_uri()))];
            for number in numbers.into_iter().flatten() {
                entry.add_number(number);
            }
        }
        if first_leg && method == b"BYE" && entry.call.state == CallState::Answered {
            let tag = message.from().ok().and_then(|from| from.tag());
            let by_caller = tag == Some(entry.caller_tag.as_slice());
            entry.call.ended_by = if by_caller { "caller" } else { "callee" }.to_owned();
            entry.call.ended = Some(now);
            entry.call.state = CallState::Ended;
        }
        return;
    }
    if entry.call.from.is_empty()
        && let (Ok(from), Ok(to)) = (message.from(), message.to())
    {
        (entry.call.from, entry.call.to) = (user_of(from.uri), user_of(to.uri));
        let numbers = [entry.call.from.clone(), entry.call.to.clone()];
        numbers
            .into_iter()
            .for_each(|number| entry.add_number(number));
        // An agent may report the response alone.
        if entry.call.method.is_empty()
            && let Ok(cseq) = message.cseq()
        {
            entry.call.kind = CallKind::of_method(cseq.method.as_bytes());
        }
    }
    let status = message.status();
    if first_leg && status >= 200 {
        fold_final(entry, message, status, now);
    }
}

/// A final response on the first leg.
fn fold_final(entry: &mut CallEntry, message: &Message<'_>, status: u16, now: i64) {
    let Ok(cseq) = message.cseq() else { return };
    let call = &mut entry.call;
    // A response alone, without its request, answers no call that is known here.
    if call.kind != CallKind::Call || call.method.is_empty() {
        call.status = Some(status);
        if !matches!(status, 401 | 407) {
            call.state = CallState::Ended;
            call.ended = Some(now);
        }
        return;
    }
    if cseq.method.as_bytes() != b"INVITE" || !matches!(call.state, CallState::Offered) {
        return;
    }
    call.status = Some(if status < 300 { 200 } else { status });
    match status {
        ..300 => {
            call.state = CallState::Answered;
            call.answered = Some(now);
        }
        // The caller sends the request again, with credentials.
        401 | 407 => {}
        _ => {
            call.state = CallState::Ended;
            call.ended = Some(now);
            call.reason = text_of(message.reason());
        }
    }
}

pub(super) fn fold_words(entry: &mut CallEntry, message: &Message<'_>) {
    if entry.words.len() >= MAX_WORDS || entry.words_written {
        return;
    }
    let headers = [
        HeaderId::UserAgent,
        HeaderId::Server,
        HeaderId::Reason,
        HeaderId::Warning,
        HeaderId::Subject,
    ];
    for value in headers.into_iter().filter_map(|id| message.header(id)) {
        entry.add_words(value);
    }
    if message.is_request() {
        for address in [message.from(), message.to()].into_iter().flatten() {
            if !address.display.is_empty() {
                entry.add_words(address.display);
            }
        }
    }
}

fn hundredths(value: &Option<Hundredths>) -> Option<u64> {
    value.as_ref().map(|value| value.0)
}

pub(super) fn fold_event(entry: &mut CallEntry, kind: &EventKind, at: i64) {
    match kind {
        EventKind::CallOffered {
            call,
            interface,
            from,
            to,
            trunk,
            ..
        } => {
            entry.call.trunk = trunk.clone().unwrap_or_default();
            entry.call.kind = CallKind::Call;
            entry.call.call = Some(*call);
            entry.call.state = CallState::Offered;
            entry.call.ended = None;
            entry.call.interface.clone_from(interface);
            if entry.call.from.is_empty() {
                (entry.call.from, entry.call.to) =
                    (user_of(from.as_bytes()), user_of(to.as_bytes()));
            }
            for number in [user_of(from.as_bytes()), user_of(to.as_bytes())] {
                entry.add_number(number);
            }
        }
        // One with a number has begun: the refusal is that of a repeated or looped INVITE.
        EventKind::CallRefused {
            interface,
            trunk,
            status,
            reason,
            route,
            ..
        } if entry.call.call.is_none() => {
            let call = &mut entry.call;
            call.kind = CallKind::Call;
            call.state = CallState::Ended;
            call.ended = Some(at);
            call.status = Some(*status);
            call.ended_by = "border".to_owned();
            call.reason.clone_from(reason);
            call.interface.clone_from(interface);
            call.trunk = trunk.clone().unwrap_or_default();
            call.route = route.clone().unwrap_or_default();
            entry.add_words(reason.as_bytes());
        }
        EventKind::CallRouted { route, trunk, .. } => {
            // The target that is tried last is the one that counts; a user has no trunk.
            entry.call.route.clone_from(route);
            if let Some(trunk) = trunk {
                entry.call.trunk.clone_from(trunk);
            }
        }
        EventKind::CallAnswered { .. } => {
            entry.call.state = CallState::Answered;
            entry.call.answered = Some(at);
            entry.call.status = Some(200);
        }
        EventKind::CallEnded { .. } => fold_end(entry, kind, at),
        EventKind::MediaSecurityAgreed { side, keying, .. } => {
            let index = usize::from(side == "callee");
            entry.keying[index].clone_from(keying);
            let [caller, callee] = &entry.keying;
            let named = |keying: &String| match keying.is_empty() {
                true => "none".to_owned(),
                false => keying.clone(),
            };
            entry.call.protection = match caller == callee {
                true => caller.clone(),
                false => format!("{}/{}", named(caller), named(callee)),
            };
        }
        _ => {}
    }
}

fn fold_end(entry: &mut CallEntry, kind: &EventKind, at: i64) {
    if let EventKind::CallEnded {
        ended_by,
        reason,
        status,
        duration_ms,
        path,
        codec,
        caller_loss_percent,
        caller_jitter_ms,
        caller_mos,
        callee_loss_percent,
        callee_jitter_ms,
        callee_mos,
        ..
    } = kind
    {
        let call = &mut entry.call;
        call.state = CallState::Ended;
        call.ended = Some(at);
        if let Some(ms) = duration_ms {
            call.answered = Some(at - i64::try_from(*ms).unwrap_or(0) * 1_000);
        }
        call.ended_by.clone_from(ended_by);
        call.reason.clone_from(reason);
        call.status = Some(*status);
        call.path = path.clone().unwrap_or_default();
        call.codec = codec.clone().unwrap_or_default();
        call.caller = SideQuality {
            loss: hundredths(caller_loss_percent),
            jitter: hundredths(caller_jitter_ms),
            mos: hundredths(caller_mos),
        };
        call.callee = SideQuality {
            loss: hundredths(callee_loss_percent),
            jitter: hundredths(callee_jitter_ms),
            mos: hundredths(callee_mos),
        };
        entry.add_words(reason.as_bytes());
    }
}
