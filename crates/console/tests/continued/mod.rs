//! Searches for calls that go on from one partition to the next: their last state counts, by each condition.

use super::{DAY, SECOND, START, call, end, found, open, places, put, reader, request};
use console::{CallFilter, CallState};

/// In the INVITEs of the first day, in a request of the second one, and in no message.
const TEXTS: [&str; 3] = ["Acme Phone 7", "second-day", "nowhere"];

#[test]
fn calls_that_go_on_at_midnight_are_found_by_their_last_state() {
    for place in places("continued") {
        let mut writer = open(&place, START);
        // Both are up at midnight; only the second one goes on.
        call(&mut writer, 1, START, "100", "600");
        call(&mut writer, 2, START + SECOND, "100", "600");
        // Words of calls in progress are indexed after half a minute.
        for id in ["a-1", "a-2"] {
            let info = request("INFO", id, "<sip:100@x>", "600", "");
            put(
                &mut writer,
                START + 40 * SECOND,
                false,
                "192.0.2.10:5060",
                &info,
            );
        }
        writer.tick(START + 42 * SECOND);
        writer.tick(START + DAY);
        writer.tick(START + DAY + SECOND);
        let note = "X-Note: second-day\r\n";
        let later = request("INFO", "a-1", "<sip:100@x>", "600", note);
        let at = START + DAY + 2 * SECOND;
        put(&mut writer, at, false, "192.0.2.10:5060", &later);
        end(&mut writer, 1, at, 400);
        // A call of the second day, with other values.
        call(&mut writer, 3, at, "100", "601");
        writer.tick(at + 2 * SECOND);
        let all = CallFilter::default;
        let state = |state| CallFilter {
            state: Some(state),
            ..all()
        };
        assert_eq!(found(&place, &state(CallState::Answered)), ["a-3", "a-2"]);
        assert_eq!(found(&place, &state(CallState::Ended)), ["a-1"]);
        // The period ends before the second day begins.
        let first_day = || CallFilter {
            from: Some(START),
            until: Some(START + 60 * SECOND),
            ..all()
        };
        let number = CallFilter {
            number: Some("600".into()),
            ..first_day()
        };
        let words = CallFilter {
            words: Some("Acme".into()),
            ..first_day()
        };
        for filter in [first_day(), number, words] {
            let page = reader(&place).search(&filter, None, 100).unwrap();
            let states = page.calls.iter().map(|call| (call.state, call.mos()));
            assert_eq!(
                states.collect::<Vec<_>>(),
                [(CallState::Answered, None), (CallState::Ended, Some(400))],
                "{filter:?}"
            );
        }
        for filter in [
            CallFilter {
                state: Some(CallState::Ended),
                ..first_day()
            },
            CallFilter {
                duration_min: Some(1),
                ..first_day()
            },
            CallFilter {
                mos_max: Some(400),
                ..first_day()
            },
        ] {
            assert_eq!(found(&place, &filter), ["a-1"], "{filter:?}");
        }
        // Pages have each call once.
        let mut before = None;
        let mut pages = Vec::new();
        loop {
            let page = reader(&place).search(&all(), before, 1).unwrap();
            pages.extend(page.calls.into_iter().map(|call| call.call_ids[0].clone()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(pages, ["a-3", "a-2", "a-1"]);
        // The messages of both days are searched.
        let with_text = |text: &str| CallFilter {
            text: Some(text.into()),
            number: Some("600".into()),
            ..all()
        };
        let by_text = TEXTS.map(|text| found(&place, &with_text(text)));
        assert_eq!(by_text[0], ["a-2", "a-1"]);
        assert_eq!(by_text[1], ["a-1"]);
        assert!(by_text[2].is_empty());
    }
}

#[test]
fn a_call_id_of_digits_does_not_hide_the_call_of_that_number() {
    for place in places("numbers-as-call-ids") {
        let mut writer = open(&place, START);
        call(&mut writer, 1, START, "100", "600");
        writer.tick(START + 2 * SECOND);
        let number = reader(&place).find("a-1").unwrap().unwrap().id;
        for id in [number.to_string(), "17".to_owned()] {
            let options = request("OPTIONS", &id, "<sip:9@x>", "600", "");
            let at = START + 4 * SECOND;
            put(&mut writer, at, false, "192.0.2.66:5060", &options);
        }
        writer.tick(START + 6 * SECOND);
        let first_id = |id: &str| {
            let call = reader(&place).find(id).unwrap();
            call.and_then(|call| call.call_ids.first().cloned())
        };
        assert_eq!(first_id(&number.to_string()).as_deref(), Some("a-1"));
        // No call has this number.
        assert_eq!(first_id("17").as_deref(), Some("17"));
        assert_eq!((first_id("18"), first_id("+17")), (None, None));
    }
}

/// Borders that hide the topology encode Call-IDs of others in their own.
#[test]
fn a_long_call_id_is_found_and_has_its_leg() {
    for place in places("long-call-ids") {
        let mut writer = open(&place, START);
        let [one, other] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(300)));
        for id in [&one, &other] {
            let options = request("OPTIONS", id, "<sip:9@x>", "600", "");
            put(&mut writer, START, false, "192.0.2.66:5060", &options);
        }
        writer.tick(START + 2 * SECOND);
        let reader = reader(&place);
        let call = reader.find(&one).unwrap().unwrap();
        let joined = reader.joined(call.clone(), 10).unwrap();
        assert_eq!((joined.messages().count(), joined.leg(&one)), (1, Some(0)));
        let second = reader.find(&other).unwrap().unwrap();
        assert_ne!(call.id, second.id);
        assert!(reader.find(&"x".repeat(299)).unwrap().is_none());
    }
}
