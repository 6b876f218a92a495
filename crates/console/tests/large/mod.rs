//! Calls whose peers send a lot: the memory of a reader that joins their records is bounded.

use super::{SECOND, START, call, open, places, put, reader, request};
use engine::{Event, EventKind, Time};

#[test]
fn a_joined_call_has_bounded_bytes_and_events() {
    for place in places("large") {
        let mut writer = open(&place, START);
        let mut at = START;
        call(&mut writer, 1, at, "100", "600");
        for number in 0..21_000 {
            let tagged = EventKind::CallTagged {
                call: 1,
                tag: "site".into(),
                value: number.to_string(),
            };
            writer.event(&Event::new(Time(0), tagged), at);
        }
        // 80 MB of one Call-ID, as any source may send them.
        let padding = format!("X-Padding: {}\r\n", "x".repeat(60_000));
        let text = request("INFO", "a-1", "<sip:100@x>", "600", &padding);
        for number in 0..1_350 {
            at += 10_000;
            put(&mut writer, at, false, "192.0.2.10:5060", &text);
            if number % 50 == 0 {
                writer.tick(at);
            }
        }
        writer.end(at + SECOND);
        let reader = reader(&place);
        let found = reader.find("a-1").unwrap().unwrap();
        assert_eq!(reader.messages(found.id).unwrap().len(), 1_354);
        assert!(reader.events(found.id).unwrap().len() >= 21_000);
        let joined = reader.joined(found, 20_000).unwrap();
        assert!(joined.is_truncated() && joined.has_more_events());
        let bytes: usize = joined.messages().map(|one| one.bytes.len()).sum();
        assert!((64 << 20..65 << 20).contains(&bytes), "{bytes}");
        assert_eq!(joined.records()[0].events.len(), 20_000);
    }
}
