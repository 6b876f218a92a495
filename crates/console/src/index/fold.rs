//! Folds messages and events into the entry of their call.

use super::{CallEntry, MAX_TEXT, MAX_WORDS, text_of, user_of};
use crate::call::{CallKind, CallState, SideQuality};
use crate::segment::{StoredDirection, StoredMessage};
use engine::{EventKind, Hundredths, ReportedJitter};
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

/// The figures of a side: loss, jitter, MOS.
fn quality(
    loss: &Option<Hundredths>,
    jitter: Option<ReportedJitter>,
    mos: &Option<Hundredths>,
) -> SideQuality {
    SideQuality {
        loss: hundredths(loss),
        jitter: jitter.map(|jitter| jitter.hundredths().0),
        jitter_whole_ms: matches!(jitter, Some(ReportedJitter::Whole(_))),
        mos: hundredths(mos),
    }
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
            (entry.call.answered, entry.call.ended) = (None, None);
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
        // After the answer it is the target of a transfer, which is not connected yet.
        EventKind::CallRouted { .. } if entry.call.answered.is_some() => {}
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
        EventKind::LegReplaced {
            side, cause, trunk, ..
        } => {
            if cause == "transfer" {
                entry.call.route = "transfer".to_owned();
            }
            if let (Some(trunk), "callee") = (trunk, side.as_str()) {
                entry.call.trunk.clone_from(trunk);
            }
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
        trunk,
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
        // The event waits for the statistics of the media; the duration was taken at the end.
        match duration_ms {
            Some(ms) => {
                let span = i64::try_from(*ms).unwrap_or(0).saturating_mul(1_000);
                let answered = call.answered.unwrap_or(at.saturating_sub(span));
                call.answered = Some(answered);
                call.ended = Some(answered.saturating_add(span));
            }
            None => call.ended = call.ended.or(Some(at)),
        }
        if let Some(trunk) = trunk {
            call.trunk = trunk.to_string();
        }
        call.ended_by.clone_from(ended_by);
        call.reason.clone_from(reason);
        call.status = Some(*status);
        call.path = path.clone().unwrap_or_default();
        call.codec = codec.clone().unwrap_or_default();
        call.caller = quality(caller_loss_percent, *caller_jitter_ms, caller_mos);
        call.callee = quality(callee_loss_percent, *callee_jitter_ms, callee_mos);
        entry.add_words(reason.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn routed(route: &str, trunk: &str) -> EventKind {
        EventKind::CallRouted {
            call: 1,
            route: route.into(),
            target: trunk.into(),
            address: "udp:192.0.2.2:5060".into(),
            call_id: "b".into(),
            interface: "core".into(),
            trunk: Some(trunk.into()),
        }
    }

    fn ended(duration_ms: Option<u64>) -> EventKind {
        EventKind::CallEnded {
            call: 1,
            ended_by: "caller".into(),
            reason: "BYE".into(),
            status: 200,
            duration_ms,
            trunk: Some("pbx".into()),
            path: None,
            codec: None,
            caller_loss_percent: None,
            caller_jitter_ms: None,
            caller_mos: None,
            callee_loss_percent: None,
            callee_jitter_ms: None,
            callee_mos: None,
        }
    }

    /// A call whose events came at these times.
    fn entry(events: &[(i64, EventKind)]) -> CallEntry {
        let mut entry = CallEntry::default();
        let offered = EventKind::CallOffered {
            call: 1,
            interface: "access".into(),
            call_id: "a".into(),
            from: "sip:1@x".into(),
            to: "2".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
        };
        fold_event(&mut entry, &offered, 0);
        for (at, kind) in events {
            fold_event(&mut entry, kind, *at);
        }
        entry
    }

    fn answered() -> EventKind {
        EventKind::CallAnswered {
            call: 1,
            setup_ms: Some(1_000),
            call_id: Some("b".into()),
        }
    }

    /// A media node that does not reply delays the event of the end.
    #[test]
    fn end_of_a_call_is_its_answer_and_its_duration() {
        let late = 5 * SECOND + 750_000;
        let known = entry(&[(SECOND, answered()), (late, ended(Some(2_000)))]);
        let times = (known.call.answered, known.call.ended);
        assert_eq!(times, (Some(SECOND), Some(3 * SECOND)));
        // The event of the answer was lost.
        let unknown = entry(&[(late, ended(Some(2_000)))]);
        let times = (unknown.call.answered, unknown.call.ended);
        assert_eq!(times, (Some(late - 2 * SECOND), Some(late)));
        let refused = entry(&[(late, ended(None))]);
        assert_eq!(
            (refused.call.answered, refused.call.ended),
            (None, Some(late))
        );
    }

    #[test]
    fn jitter_keeps_the_decimals_of_its_source() {
        let with = |jitter: ReportedJitter| {
            let mut kind = ended(Some(2_000));
            if let EventKind::CallEnded {
                caller_jitter_ms, ..
            } = &mut kind
            {
                *caller_jitter_ms = Some(jitter);
            }
            entry(&[(SECOND, answered()), (3 * SECOND, kind)]).call
        };
        let rtpengine = with(ReportedJitter::Whole(2));
        let side = &rtpengine.caller;
        assert_eq!((side.jitter, side.jitter_whole_ms), (Some(200), true));
        assert_eq!(side.json()["jitter_ms"].to_string(), "2");
        assert!(crate::ladder::header(&rtpengine).contains("jitter 2 ms"));
        // It is read back from the row of the store; rows of former versions do not have the field.
        let row = serde_json::to_string(side).unwrap();
        assert_eq!(serde_json::from_str::<SideQuality>(&row).unwrap(), *side);
        let former: SideQuality = serde_json::from_str(r#"{"jitter":200}"#).unwrap();
        assert!(!former.jitter_whole_ms);
        let measured = with(ReportedJitter::measured(2.0));
        assert_eq!(measured.caller.json()["jitter_ms"].to_string(), "2.0");
        assert!(crate::ladder::header(&measured).contains("jitter 2.00 ms"));
    }

    #[test]
    fn target_of_a_failed_transfer_is_not_that_of_the_call() {
        let transfer = routed("transfer", "busy");
        let call = [
            (1, routed("main", "pbx")),
            (2, answered()),
            (3, transfer.clone()),
        ];
        let entry_of = |more: &[(i64, EventKind)]| entry(&[&call[..], more].concat()).call;
        let failed = entry_of(&[]);
        assert_eq!(
            (failed.route.as_str(), failed.trunk.as_str()),
            ("main", "pbx")
        );
        let replaced = EventKind::LegReplaced {
            call: 1,
            side: "callee".into(),
            cause: "transfer".into(),
            call_id: "c".into(),
            interface: "core".into(),
            address: "udp:192.0.2.3:5060".into(),
            trunk: Some("third".into()),
        };
        let done = entry_of(&[(4, replaced)]);
        assert_eq!(
            (done.route.as_str(), done.trunk.as_str()),
            ("transfer", "third")
        );
        // The event of the end names the trunk.
        let ended = entry_of(&[(4, ended(Some(1)))]);
        assert_eq!(ended.trunk, "pbx");
    }
}
