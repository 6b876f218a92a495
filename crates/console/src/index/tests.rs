//! Calls in memory: bounds, keys, and their end.

use super::*;
use crate::segment::StoredDirection;
use engine::{Time, Transport};

#[test]
fn calls_beyond_the_room_are_counted() {
    let losses = Arc::new(Losses::default());
    let mut calls = OpenCalls::new(true, String::new(), losses.clone());
    calls.room = 1;
    let message = |calls: &mut OpenCalls, id: &str| {
        let text = format!("OPTIONS sip:a@b SIP/2.0\r\nCall-ID: {id}\r\n\r\n");
        let stored = StoredMessage {
            time: 1_000,
            direction: StoredDirection::Received,
            transport: Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: text.as_bytes(),
        };
        let offset = calls.entries.len() as u32;
        calls.message(&stored, 1, offset, b"")
    };
    assert!(message(&mut calls, "one") && message(&mut calls, "one"));
    assert!(!message(&mut calls, "two"));
    assert_eq!(calls.last_call_id(), None);
    let offered = |call: u64, id: &str| {
        let kind = EventKind::CallOffered {
            call,
            interface: "access".into(),
            call_id: id.into(),
            from: "sip:1@x".into(),
            to: "2".into(),
            source: "udp:192.0.2.1:5060".into(),
            trunk: None,
        };
        Event::new(Time(0), kind)
    };
    let edited = |id: &str| {
        let kind = EventKind::RuleEdited {
            rule: "site".into(),
            call: 0,
            call_id: id.into(),
            direction: "in".into(),
            message: "INVITE".into(),
            headers: "X-Site".into(),
        };
        Event::new(Time(0), kind)
    };
    calls.event(&offered(1, "one"), 1);
    calls.event(&edited("one"), 1);
    assert_eq!((losses.counts().total(), calls.events.len()), (0, 1));
    calls.event(&edited("two"), 1);
    calls.event(&offered(2, "two"), 1);
    let waiting = calls.discard_waiting();
    let lost = losses.counts();
    assert_eq!((lost.calls, lost.events, lost.total()), (1, 1, 2));
    assert_eq!((waiting.messages, waiting.events), (2, 1));
    assert_eq!((waiting.calls, waiting.drops), (1, 0));
    let kept = calls.entries.iter().next().unwrap().1;
    assert_eq!((kept.call.messages, kept.is_dirty), (0, false));
}

#[test]
fn calls_that_repeat_a_call_id_without_end_take_bounded_memory() {
    let mut calls = OpenCalls::new(true, String::new(), Arc::new(Losses::default()));
    let offered = |call| EventKind::CallOffered {
        call,
        interface: "access".into(),
        call_id: "repeated".into(),
        from: "sip:1@x".into(),
        to: "2".into(),
        source: "udp:192.0.2.1:5060".into(),
        trunk: None,
    };
    for call in 1..=10_000 {
        calls.event(&Event::new(Time(0), offered(call)), 1);
    }
    assert_eq!(calls.entries.len(), 1);
    assert_eq!(calls.by_call.len(), MAX_EARLIER + 1);
    // The newest one, and those shortly before.
    assert!((10_000 - MAX_EARLIER as u64..=10_000).all(|call| calls.by_call.contains_key(&call)));
    let slot = calls.by_call[&10_000];
    calls.remove_entry(slot).unwrap();
    assert!(calls.by_call.is_empty());
}

/// The clock of an agent, or that of the machine, is hours ahead; later the machine's is set back.
#[test]
fn ended_calls_leave_the_memory_by_any_clock() {
    const HOUR: i64 = 3_600_000_000;
    let mut calls = OpenCalls::new(true, String::new(), Arc::new(Losses::default()));
    let start = 100 * HOUR;
    calls.now = start;
    let exchange = |calls: &mut OpenCalls, id: &str, at: i64| {
        observed(calls, ("OPTIONS sip:b SIP/2.0", "OPTIONS"), id, at);
        observed(calls, ("SIP/2.0 200 OK", "OPTIONS"), id, at);
        calls.written();
    };
    exchange(&mut calls, "ahead", start + 8 * HOUR);
    exchange(&mut calls, "behind", start - 8 * HOUR);
    calls.sweep(start + SHORT_LINGER / 2);
    assert_eq!(calls.entries.len(), 2, "late messages may follow");
    calls.sweep(start + SHORT_LINGER + 1);
    assert!(calls.entries.is_empty());
    exchange(&mut calls, "before the step", start);
    for second in 0..40 {
        calls.sweep(start - 8 * HOUR + second * 1_000_000);
    }
    assert!(calls.entries.is_empty());
}

const INVITE: (&str, &str) = ("INVITE sip:a@b SIP/2.0", "INVITE");

/// A message of a capture agent that correlates by the Call-ID, as Asterisk with `uuid_type = call-id`.
fn observed(calls: &mut OpenCalls, (line, method): (&str, &str), call_id: &str, at: i64) {
    let text = format!("{line}\r\nCall-ID: {call_id}\r\nCSeq: 1 {method}\r\n\r\n");
    let stored = StoredMessage {
        time: at as u64 * 1_000,
        direction: StoredDirection::Received,
        transport: Transport::Udp,
        source: "192.0.2.1:5060".parse().unwrap(),
        destination: "192.0.2.2:5060".parse().unwrap(),
        bytes: text.as_bytes(),
    };
    assert!(calls.message(&stored, 1, 0, call_id.as_bytes()));
}

/// A phone refreshes its registration with the same Call-ID, hours after the first exchange has left the memory.
#[test]
fn correlation_ids_do_not_outlive_their_exchange() {
    let mut calls = OpenCalls::new(true, String::new(), Arc::new(Losses::default()));
    let register = ("REGISTER sip:b SIP/2.0", "REGISTER");
    observed(&mut calls, register, "r", 1_000_000);
    observed(&mut calls, ("SIP/2.0 200 OK", "REGISTER"), "r", 1_100_000);
    calls.written();
    calls.sweep(1_100_000 + SHORT_LINGER + 1);
    assert!(calls.entries.is_empty() && !calls.knows("r"));
    assert!(calls.by_call_id.is_empty() && calls.by_correlation.is_empty());
    observed(&mut calls, INVITE, "i", 9_000_000);
    observed(&mut calls, register, "r", 9_100_000);
    assert_eq!(calls.last_call_id(), Some("r"));
    let ids: Vec<_> = calls
        .entries
        .iter()
        .map(|(_, entry)| &entry.call.call_ids)
        .collect();
    assert_eq!(ids, [&["i".to_owned()], &["r".to_owned()]]);
}

/// The messages of a leg came before the event about it, and were an entry of their own.
#[test]
fn keys_of_a_leg_move_to_its_call() {
    let mut calls = OpenCalls::new(true, String::new(), Arc::new(Losses::default()));
    observed(&mut calls, INVITE, "a", 1_000_000);
    observed(&mut calls, INVITE, "b", 1_100_000);
    let slot = calls.by_call_id[&key_of(CALL_ID_KEY, b"a")];
    calls.add_leg(slot, "b");
    assert_eq!(calls.entries.len(), 1);
    observed(&mut calls, INVITE, "c", 1_200_000);
    let keys = [&calls.by_call_id, &calls.by_correlation];
    for (id, owner) in [("a", slot), ("b", slot)] {
        let kinds = [CALL_ID_KEY, b'x'];
        for (table, kind) in keys.iter().zip(kinds) {
            assert_eq!(
                table.get(&key_of(kind, id.as_bytes())),
                Some(&owner),
                "{id}"
            );
        }
    }
    let first = calls.entries.get(slot).unwrap();
    assert_eq!(first.call.call_ids, ["a", "b"]);
    assert_eq!(first.call.messages, 2);
    // The end of an answered call that was not seen.
    calls.written();
    calls.sweep(1_200_000 + IDLE_LINGER + 1);
    calls.written();
    calls.sweep(1_200_000 + IDLE_LINGER + 2);
    assert!(calls.entries.is_empty(), "{:?}", calls.entries);
    assert!(calls.by_call_id.is_empty() && calls.by_correlation.is_empty());
}

/// A call of the border that was answered, and the time of the store then.
fn answered(calls: &mut OpenCalls, call: u64, id: &str) {
    let offered = EventKind::CallOffered {
        call,
        interface: "access".into(),
        call_id: id.into(),
        from: "sip:1@x".into(),
        to: "2".into(),
        source: "udp:192.0.2.1:5060".into(),
        trunk: None,
    };
    let answered = EventKind::CallAnswered {
        call,
        setup_ms: None,
        call_id: None,
    };
    for kind in [offered, answered] {
        calls.event(&Event::new(Time(0), kind), calls.now);
    }
    calls.written();
}

#[test]
fn call_whose_end_was_lost_leaves_the_memory() {
    let losses = Arc::new(Losses::default());
    let mut calls = OpenCalls::new(true, String::new(), losses.clone());
    calls.now = 1_000_000;
    answered(&mut calls, 1, "a");
    answered(&mut calls, 2, "b");
    // The next call with the same Call-ID goes on.
    answered(&mut calls, 3, "b");
    for call in [1, 2, 9] {
        calls.lost_end(call);
    }
    let state = |calls: &OpenCalls, call: u64| {
        let entry = &calls.entries[calls.by_call[&call]];
        (entry.call.state, entry.call.ended)
    };
    let interrupted = (CallState::Interrupted, Some(1_000_000));
    assert_eq!(state(&calls, 1), interrupted);
    assert_eq!(state(&calls, 3), (CallState::Answered, None));
    assert_eq!(losses.counts().calls, 1);
    calls.written();
    calls.sweep(1_000_000 + ENDED_LINGER + 1);
    assert_eq!(calls.entries.len(), 1);
    assert!(!calls.by_call.contains_key(&1));
}

/// Nothing tells the end of the second call; events of the first one go on.
#[test]
fn silent_call_expires_and_is_counted() {
    let losses = Arc::new(Losses::default());
    let mut calls = OpenCalls::new(true, String::new(), losses.clone());
    answered(&mut calls, 1, "a");
    answered(&mut calls, 2, "b");
    calls.now = SILENT_LINGER;
    let tagged = EventKind::CallTagged {
        call: 1,
        tag: "site".into(),
        value: "x".into(),
    };
    calls.event(&Event::new(Time(0), tagged), SILENT_LINGER);
    calls.written();
    calls.sweep(SILENT_LINGER);
    assert_eq!(losses.counts().total(), 0);
    calls.sweep(SILENT_LINGER + 1);
    let expired = &calls.entries[calls.by_call[&2]];
    assert_eq!(expired.call.state, CallState::Interrupted);
    assert_eq!(losses.counts().calls, 1);
    calls.written();
    calls.sweep(SILENT_LINGER + 2);
    assert_eq!((calls.entries.len(), losses.counts().calls), (1, 1));
    assert!(calls.by_call.contains_key(&1));
}
