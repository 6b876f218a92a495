//! The store as a whole: writing, searching, crashes, damage, retention, untrusted values.

#[path = "continued/mod.rs"]
mod continued;
#[path = "damage/mod.rs"]
mod damage;
#[path = "database/mod.rs"]
mod database;
#[path = "large/mod.rs"]
mod large;
#[path = "losses/mod.rs"]
mod losses;
#[path = "common/postgres.rs"]
mod postgres;

use console::{
    CallFilter, CallKind, CallState, DatabaseHost, DatabaseSettings, HistoryReader, HistoryWriter,
    LadderStyle, StoreLocation, StoreNote, StoreSettings, StoredDirection, StoredMessage, ladder,
    messages_in_full,
};
use engine::{Event, EventKind, Hundredths, ReportedJitter, Time, Transport};
use postgres::Server;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// 24 November 2025, 16:00 UTC, microseconds.
const START: i64 = 1_763_999_999_000_000 / 1_000_000 * 1_000_000;
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// A place for a store; everything in it is removed with it.
struct Place {
    location: StoreLocation,
    server: Option<(Arc<Server>, String)>,
}

impl Place {
    fn folder(name: &str) -> Place {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        Place {
            location: StoreLocation::Folder(folder),
            server: None,
        }
    }

    /// `None`, with a printed reason, without PostgreSQL.
    fn database() -> Option<Place> {
        let server = Server::shared()?;
        let database = server.database();
        Some(Place {
            location: StoreLocation::Database(database_settings(&server, &database)),
            server: Some((server, database)),
        })
    }

    fn path(&self) -> &Path {
        match &self.location {
            StoreLocation::Folder(folder) => folder,
            StoreLocation::Database(_) => panic!("no folder"),
        }
    }

    /// The output of a statement.
    fn psql(&self, statement: &str) -> String {
        let (server, database) = self.server.as_ref().expect("a database");
        server.psql(database, statement).expect("psql")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let StoreLocation::Folder(folder) = &self.location {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn database_settings(server: &Server, database: &str) -> DatabaseSettings {
    DatabaseSettings {
        host: DatabaseHost::Socket(server.folder.clone()),
        port: postgres::PORT,
        user: "postgres".into(),
        database: database.into(),
        authorities: None,
        password_file: None,
    }
}

/// A folder, and a database if PostgreSQL is installed: a test must have the same results in both.
fn places(name: &str) -> impl Iterator<Item = Place> {
    [Some(Place::folder(name)), Place::database()]
        .into_iter()
        .flatten()
}

fn settings(place: &Place) -> StoreSettings {
    StoreSettings {
        location: place.location.clone(),
        node: "edge-1".into(),
        retention_days: 7,
        size: 1 << 30,
        secure_content: false,
        full_text: true,
    }
}

fn open(place: &Place, now: i64) -> HistoryWriter {
    HistoryWriter::open(settings(place), now).unwrap()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A received (`sent` false) or sent message of a peer.
fn put(writer: &mut HistoryWriter, at: i64, sent: bool, peer: &str, text: &str) {
    let (peer, ours) = (address(peer), address("192.0.2.1:5060"));
    let (source, destination) = if sent { (ours, peer) } else { (peer, ours) };
    writer.message(
        &StoredMessage {
            time: at as u64 * 1_000,
            direction: match sent {
                true => StoredDirection::Sent,
                false => StoredDirection::Received,
            },
            transport: Transport::Udp,
            source,
            destination,
            bytes: text.as_bytes(),
        },
        b"",
    );
}

fn request(method: &str, id: &str, from: &str, to: &str, more: &str) -> String {
    format!(
        "{method} sip:{to}@example.net SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\nFrom: {from};tag=1\r\nTo: <sip:{to}@example.net>\r\nCall-ID: {id}\r\nCSeq: 1 {method}\r\n{more}Content-Length: 0\r\n\r\n"
    )
}

fn response(status: &str, method: &str, id: &str, from: &str, to: &str) -> String {
    format!(
        "SIP/2.0 {status}\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\nFrom: {from};tag=1\r\nTo: <sip:{to}@example.net>;tag=2\r\nCall-ID: {id}\r\nCSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// One answered call through the border, with both legs and its events.
fn call(writer: &mut HistoryWriter, number: u64, at: i64, from: &str, to: &str) {
    let event = |kind| Event::new(Time(0), kind);
    let (a, b) = (format!("a-{number}"), format!("b-{number}"));
    let caller = format!("<sip:{from}@example.net>");
    let offered = EventKind::CallOffered {
        call: number,
        interface: "access".into(),
        call_id: a.clone(),
        from: format!("sip:{from}@example.net"),
        to: to.into(),
        source: "udp:192.0.2.10:5060".into(),
        trunk: None,
    };
    writer.event(&event(offered), at);
    let routed = EventKind::CallRouted {
        call: number,
        route: "main".into(),
        target: "pbx".into(),
        address: "udp:192.0.2.20:5060".into(),
        call_id: b.clone(),
        interface: "core".into(),
        trunk: Some("pbx".into()),
    };
    writer.event(&event(routed), at);
    let agent = "User-Agent: Acme Phone 7\r\n";
    put(
        writer,
        at,
        false,
        "192.0.2.10:5060",
        &request("INVITE", &a, &caller, to, agent),
    );
    put(
        writer,
        at + 1_000,
        true,
        "192.0.2.20:5060",
        &request("INVITE", &b, &caller, to, ""),
    );
    put(
        writer,
        at + 2_000,
        false,
        "192.0.2.20:5060",
        &response("200 OK", "INVITE", &b, &caller, to),
    );
    put(
        writer,
        at + 3_000,
        true,
        "192.0.2.10:5060",
        &response("200 OK", "INVITE", &a, &caller, to),
    );
}

fn end(writer: &mut HistoryWriter, number: u64, at: i64, mos: u64) {
    let kind = EventKind::CallEnded {
        call: number,
        ended_by: "caller".into(),
        reason: "BYE".into(),
        status: 200,
        duration_ms: Some(4_000),
        trunk: Some("pbx".into()),
        path: Some("sockets".into()),
        codec: Some("PCMA".into()),
        caller_loss_percent: Some(Hundredths(12)),
        caller_jitter_ms: Some(ReportedJitter::Measured(Hundredths(34))),
        caller_mos: Some(Hundredths(mos)),
        callee_loss_percent: None,
        callee_jitter_ms: None,
        callee_mos: None,
    };
    writer.event(&Event::new(Time(0), kind), at);
}

fn reader(place: &Place) -> HistoryReader {
    HistoryReader::open(&place.location).unwrap()
}

fn found(place: &Place, filter: &CallFilter) -> Vec<String> {
    let page = reader(place).search(filter, None, 100).unwrap();
    let ids = page.calls.into_iter();
    ids.map(|call| call.call_ids.first().cloned().unwrap_or_default())
        .collect()
}

#[test]
fn calls_are_found_by_every_condition() {
    for place in places("conditions") {
        calls_are_found_by_every_condition_in(&place);
    }
}

fn calls_are_found_by_every_condition_in(place: &Place) {
    let mut writer = open(place, START);
    call(&mut writer, 1, START, "100", "600");
    call(&mut writer, 2, START + SECOND, "101", "601");
    end(&mut writer, 1, START + 5 * SECOND, 410);
    end(&mut writer, 2, START + 6 * SECOND, 250);
    let agreed = EventKind::MediaSecurityAgreed {
        call: 2,
        side: "caller".into(),
        line: 0,
        keying: "dtls".into(),
        suite: "AES".into(),
    };
    writer.event(&Event::new(Time(0), agreed), START + 2 * SECOND);
    writer.drops(START, "sip_unparsable", 3);
    writer.tick(START + 7 * SECOND);
    let all = CallFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let both = vec!["a-2", "a-1"];
    for (filter, expected) in [
        (all(), both.clone()),
        (
            CallFilter {
                number: text("600"),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                number: text("101"),
                ..all()
            },
            vec!["a-2"],
        ),
        (
            CallFilter {
                number: text("60*"),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                number: text("60"),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                call_id: text("b-2"),
                ..all()
            },
            vec!["a-2"],
        ),
        (
            CallFilter {
                address: text("192.0.2.20"),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                address: text("192.0.2.2"),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                address: text("192.0.2.20"),
                number: text("600"),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                mos_max: Some(300),
                ..all()
            },
            vec!["a-2"],
        ),
        (
            CallFilter {
                codec: text("pcma"),
                mos_min: Some(400),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                protection: text("dtls"),
                ..all()
            },
            vec!["a-2"],
        ),
        (
            CallFilter {
                protection: text("none"),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                trunk: text("PBX"),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                trunk: text("other"),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                status: Some((200, 299)),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                status: Some((486, 486)),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                duration_min: Some(4_000),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                duration_max: Some(3_999),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                from: Some(START + 1),
                ..all()
            },
            vec!["a-2"],
        ),
        (
            CallFilter {
                until: Some(START + SECOND),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                words: text("acme phone"),
                ..all()
            },
            both.clone(),
        ),
        (
            CallFilter {
                words: text("acme softphone"),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                text: Some(b"Call-ID: b-1\r\n".to_vec()),
                ..all()
            },
            vec!["a-1"],
        ),
        (
            CallFilter {
                kind: Some(CallKind::Registration),
                ..all()
            },
            vec![],
        ),
        (
            CallFilter {
                state: Some(CallState::Ended),
                ..all()
            },
            both.clone(),
        ),
    ] {
        assert_eq!(found(place, &filter), expected, "{filter:?}");
    }
    let reader = reader(place);
    let call = reader.find("b-1").unwrap().unwrap();
    assert_eq!((call.trunk.as_str(), call.route.as_str()), ("pbx", "main"));
    assert_eq!((call.mos(), call.duration_ms()), (Some(410), Some(4_000)));
    assert_eq!(call.call_ids, ["a-1", "b-1"]);
    assert_eq!(call.addresses, ["192.0.2.10:5060", "192.0.2.20:5060"]);
    assert_eq!(reader.find(&call.id.to_string()).unwrap().unwrap(), call);
    assert_eq!(reader.messages(call.id).unwrap().len(), 4);
    let second = reader.find("a-2").unwrap().unwrap();
    // The route and the media security.
    assert_eq!(reader.events(second.id).unwrap().len(), 2);
    let drops = reader.drops_between(START, START + 1).unwrap();
    assert_eq!(drops.get("sip_unparsable"), Some(&3));
}

#[test]
fn pages_have_every_call_once() {
    for place in places("pages") {
        pages_have_every_call_once_in(&place);
    }
}

fn pages_have_every_call_once_in(place: &Place) {
    let mut writer = open(place, START);
    for number in 0..250 {
        call(
            &mut writer,
            number,
            START + number as i64 * 10_000,
            "7",
            &number.to_string(),
        );
        if number == 120 {
            writer.tick(START + 3 * SECOND);
        }
    }
    writer.tick(START + 20 * SECOND);
    let reader = reader(place);
    for filter in [
        CallFilter::default(),
        CallFilter {
            number: Some("7".into()),
            ..CallFilter::default()
        },
    ] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = reader.search(&filter, before, 40).unwrap();
            seen.extend(page.calls.iter().map(|call| call.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        let mut sorted = seen.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        sorted.dedup();
        assert_eq!((seen.len(), &seen), (250, &sorted), "{filter:?}");
    }
}

#[test]
fn refused_calls_keep_the_decision() {
    for place in places("refused") {
        let mut writer = open(&place, START);
        let event = |kind| Event::new(Time(0), kind);
        let skipped = EventKind::TrunkSkipped {
            call_id: "a".into(),
            route: "main".into(),
            trunk: "pbx".into(),
            reason: "out of service".into(),
        };
        let refused = EventKind::CallRefused {
            interface: "access".into(),
            call_id: "a".into(),
            from: "sip:100@example.net".into(),
            to: "sip:600@example.net".into(),
            source: "udp:192.0.2.10:5060".into(),
            trunk: None,
            status: 503,
            reason: "all trunks are out of service".into(),
            route: Some("main".into()),
            rule: None,
        };
        writer.event(&event(skipped), START);
        writer.event(&event(refused.clone()), START);
        let peer = "192.0.2.10:5060";
        let invite = request("INVITE", "a", "<sip:100@example.net>", "600", "");
        put(&mut writer, START, false, peer, &invite);
        let unavailable = "503 Service Unavailable";
        let answer = response(unavailable, "INVITE", "a", "<sip:100@example.net>", "600");
        put(&mut writer, START + 1, true, peer, &answer);
        // A looped INVITE of a call in progress is no end of that call.
        call(&mut writer, 7, START + SECOND, "101", "601");
        let mut looped = refused;
        if let EventKind::CallRefused {
            call_id, status, ..
        } = &mut looped
        {
            (*call_id, *status) = ("a-7".into(), 482);
        }
        writer.event(&event(looped), START + 2 * SECOND);
        writer.tick(START + 3 * SECOND);
        let reader = reader(&place);
        let stored = reader.find("a").unwrap().unwrap();
        assert_eq!((stored.state, stored.status), (CallState::Ended, Some(503)));
        assert_eq!(
            (
                stored.route.as_str(),
                stored.interface.as_str(),
                stored.ended_by.as_str()
            ),
            ("main", "access", "border")
        );
        assert_eq!(stored.reason, "all trunks are out of service");
        let names = |id| {
            let events = reader.events(id).unwrap();
            events.into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        assert_eq!(names(stored.id), ["trunk_skipped", "call_refused"]);
        let up = reader.find("a-7").unwrap().unwrap();
        assert_eq!((up.state, up.status), (CallState::Answered, Some(200)));
        assert_eq!(names(up.id), ["call_routed", "call_refused"]);
    }
}

#[test]
fn a_crash_loses_nothing_that_was_written() {
    let place = Place::folder("crash");
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    let interval = EventKind::CallMediaInterval {
        call: 1,
        interval_ms: 900,
        caller_packets: Some(45),
        caller_lost: Some(0),
        caller_loss_percent: None,
        caller_jitter_ms: None,
        caller_mos: None,
        callee_packets: None,
        callee_lost: None,
        callee_loss_percent: None,
        callee_jitter_ms: None,
        callee_mos: None,
    };
    writer.event(&Event::new(Time(0), interval), START + 900_000);
    call(&mut writer, 3, START + 10_000, "103", "603");
    writer.tick(START + SECOND);
    // Written to the segment, but not to the index.
    call(&mut writer, 2, START + SECOND, "101", "601");
    writer.tick(START + SECOND + 300_000);
    // A copy of the folder is the state that kill -9 leaves.
    let copy = Place::folder("crash-copy");
    let done = std::process::Command::new("cp")
        .arg("-a")
        .args([place.path(), copy.path()])
        .status();
    assert!(done.unwrap().success());
    drop(writer);
    // The beginning of a message that was being written.
    let partition = partition_of(&copy);
    let segment = partition.join("messages-000001.pcapng");
    let mut bytes = std::fs::read(&segment).unwrap();
    let complete = bytes.len();
    bytes.extend([6, 0, 0, 0, 0xf0, 0, 0, 0, 1]);
    std::fs::write(&segment, bytes).unwrap();
    let mut writer = open(&copy, START + 60 * SECOND);
    let note = writer.next_note();
    // The call without events has two legs that nothing connects.
    assert_eq!(
        note,
        Some(StoreNote::Completed {
            messages: 4,
            interrupted: 4
        })
    );
    assert_eq!(std::fs::metadata(&segment).unwrap().len(), complete as u64);
    let reader = reader(&copy);
    let first = reader.find("a-1").unwrap().unwrap();
    assert_eq!(
        (first.state, first.trunk.as_str()),
        (CallState::Interrupted, "pbx")
    );
    // The end is the last event or message that was seen.
    assert_eq!(first.ended, Some(START + 900_000));
    let third = reader.find("a-3").unwrap().unwrap();
    assert_eq!(third.ended, Some(START + 10_000 + 3_000));
    let second = reader.find("b-2").unwrap().unwrap();
    assert_eq!((second.messages, second.to.as_str()), (2, "601"));
    assert_eq!(reader.messages(second.id).unwrap().len(), 2);
    // Numbers of calls begin anew, and do not belong to the old calls.
    call(&mut writer, 1, START + 61 * SECOND, "102", "602");
    writer.tick(START + 62 * SECOND);
    let mut writer_ids = found(
        &copy,
        &CallFilter {
            number: Some("602".into()),
            ..CallFilter::default()
        },
    );
    writer_ids.sort();
    assert_eq!(writer_ids, ["a-1"]);
    assert!(
        open_again(&copy).is_err(),
        "the folder has one writer at a time"
    );
}

/// The only partition of a store.
fn partition_of(place: &Place) -> PathBuf {
    let mut entries = std::fs::read_dir(place.path()).unwrap().flatten();
    let partition = entries.find(|entry| entry.path().is_dir());
    partition.unwrap().path()
}

fn open_again(place: &Place) -> std::io::Result<HistoryWriter> {
    HistoryWriter::open(settings(place), START)
}

#[test]
fn partitions_are_removed_by_age_and_size_and_calls_go_on() {
    let place = Place::folder("retention");
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    writer.tick(START + SECOND);
    // The call is up at midnight: it is in both partitions, and found once.
    writer.tick(START + DAY);
    writer.tick(START + DAY + SECOND);
    end(&mut writer, 1, START + DAY + 2 * SECOND, 400);
    writer.tick(START + DAY + 3 * SECOND);
    let filter = CallFilter {
        number: Some("600".into()),
        ..CallFilter::default()
    };
    assert_eq!(found(&place, &filter), ["a-1"]);
    let of_call = reader(&place).find("a-1").unwrap().unwrap();
    assert_eq!(of_call.state, CallState::Ended);
    assert_eq!(reader(&place).messages(of_call.id).unwrap().len(), 4);
    // The first partition ended a day after the start; it is kept for seven days.
    writer.tick(START + 7 * DAY);
    assert_eq!(partitions(&place), 3);
    writer.tick(START + 9 * DAY);
    writer.tick(START + 9 * DAY + 11 * SECOND);
    assert!(partitions(&place) <= 3, "{}", partitions(&place));
    drop(writer);
    let small = StoreSettings {
        size: 64 << 20,
        ..settings(&place)
    };
    let mut writer = HistoryWriter::open(small, START + 20 * DAY).unwrap();
    let padding = format!("X-Padding: {}\r\n", "x".repeat(8_000));
    let mut at = START + 20 * DAY;
    for number in 0..12_000 {
        let text = request(
            "OPTIONS",
            &format!("o-{number}"),
            "<sip:1@x>",
            "2",
            &padding,
        );
        at += 5_000;
        put(&mut writer, at, false, "192.0.2.10:5060", &text);
        if number % 100 == 0 {
            writer.tick(at);
        }
    }
    writer.tick(at + 20 * SECOND);
    // A thread removes the files.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while size(place.path()) > 72 << 20 && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(size(place.path()) <= 72 << 20, "{}", size(place.path()));
    assert_eq!(
        found(
            &place,
            &CallFilter {
                call_id: Some("o-0".into()),
                ..CallFilter::default()
            }
        )
        .len(),
        0
    );
    let last = CallFilter {
        call_id: Some("o-11999".into()),
        ..CallFilter::default()
    };
    assert_eq!(found(&place, &last), ["o-11999"]);
}

fn partitions(place: &Place) -> usize {
    let entries = std::fs::read_dir(place.path()).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("2025"))
        .count()
}

fn size(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(data) if data.is_dir() => sum += size(&entry.path()),
            Ok(data) => sum += data.len(),
            Err(_) => {}
        }
    }
    sum
}

#[test]
fn values_from_the_network_are_data() {
    for place in places("untrusted") {
        values_from_the_network_are_data_in(&place);
    }
}

fn values_from_the_network_are_data_in(place: &Place) {
    let mut writer = open(place, START);
    let id = "x'; DROP TABLE calls; --";
    let from = "\"<script>alert(1)</script> \x1b]0;title\x07\" <sip:a'b%22*@example.net>";
    put(
        &mut writer,
        START,
        false,
        "192.0.2.10:5060",
        &request(
            "INVITE",
            id,
            from,
            "600",
            "Subject: \x1b[2J\" OR * a\0b\r\n",
        ),
    );
    put(
        &mut writer,
        START,
        false,
        "192.0.2.10:5060",
        "no SIP at all",
    );
    writer.tick(START + SECOND);
    for (filter, count) in [
        (
            CallFilter {
                call_id: Some(id.into()),
                ..CallFilter::default()
            },
            1,
        ),
        (
            CallFilter {
                number: Some("a' OR 1=1 --".into()),
                ..CallFilter::default()
            },
            0,
        ),
        (
            CallFilter {
                trunk: Some("x' OR 1=1 --".into()),
                ..CallFilter::default()
            },
            0,
        ),
        (
            CallFilter {
                words: Some("\" OR * NEAR(".into()),
                ..CallFilter::default()
            },
            0,
        ),
    ] {
        assert_eq!(found(place, &filter).len(), count, "{filter:?}");
    }
    let reader = reader(place);
    let call = reader.find(id).unwrap().unwrap();
    let messages = reader.messages(call.id).unwrap();
    for text in [
        ladder(&call, &messages, &[], LadderStyle::default()),
        messages_in_full(&messages),
    ] {
        assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text}");
    }
    assert!(messages_in_full(&messages).contains("\\x1b]0;title\\x07"));
    // The message that is no SIP is counted: a database has no row for it, a folder has it in its segment.
    let losses = writer.losses();
    assert_eq!(losses.counts().messages + losses.unindexed(), 1);
}

#[test]
fn content_of_secure_transports_is_stored_on_request_only() {
    for (place, stored) in places("secure")
        .zip([false; 2])
        .chain(places("secure").zip([true; 2]))
    {
        let settings = StoreSettings {
            secure_content: stored,
            ..settings(&place)
        };
        let mut writer = HistoryWriter::open(settings, START).unwrap();
        let text = request("INVITE", "s", "<sip:1@x>", "2", "Authorization: secret\r\n");
        writer.message(
            &StoredMessage {
                time: START as u64 * 1_000,
                direction: StoredDirection::Received,
                transport: Transport::Wss,
                source: address("[2001:db8::2]:40000"),
                destination: address("[2001:db8::1]:443"),
                bytes: text.as_bytes(),
            },
            b"",
        );
        writer.tick(START + SECOND);
        let reader = reader(&place);
        let call = reader.find("s").unwrap().unwrap();
        assert_eq!(call.transports, ["wss"]);
        let message = reader.messages(call.id).unwrap().remove(0);
        let has = message.bytes.windows(6).any(|bytes| bytes == b"secret");
        assert_eq!(has, stored);
        assert_eq!(message.source, address("[2001:db8::2]:40000"));
    }
}

#[test]
fn a_damaged_index_is_moved_aside() {
    let place = Place::folder("damaged");
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    writer.end(START + SECOND);
    let partition = partition_of(&place);
    std::fs::write(
        partition.join("index.db"),
        b"this is no database at all, not even nearly",
    )
    .unwrap();
    let mut writer = open(&place, START + 2 * SECOND);
    assert!(matches!(
        writer.next_note(),
        Some(StoreNote::Replaced { .. })
    ));
    call(&mut writer, 1, START + 3 * SECOND, "100", "601");
    writer.tick(START + 4 * SECOND);
    assert_eq!(found(&place, &CallFilter::default()), ["a-1"]);
}

#[test]
fn control_characters_separate_words() {
    for place in places("words") {
        let mut writer = open(&place, START);
        call(&mut writer, 1, START, "100", "600");
        end(&mut writer, 1, START + SECOND, 410);
        writer.tick(START + 2 * SECOND);
        for (words, expected) in [
            ("Acme\0Phone", 1),
            ("\0Acme\x01", 1),
            ("Acme\0Fax", 0),
            ("\0", 0),
            ("\0 \u{85} \"", 0),
        ] {
            let filter = CallFilter {
                words: Some(words.into()),
                ..CallFilter::default()
            };
            assert_eq!(found(&place, &filter).len(), expected, "{words:?}");
        }
    }
}

/// A carrier has the number dialled in the Request-URI, and its main number in To.
#[test]
fn number_dialled_is_found_together_with_words_and_call_ids() {
    for place in places("dialled") {
        let mut writer = open(&place, START);
        for (id, dialled) in [("c-1", "600"), ("c-2", "800")] {
            let agent = "User-Agent: Yealink\r\n";
            let text = request("INVITE", id, "<sip:100@x>", dialled, agent);
            let text = text.replace(&format!("To: <sip:{dialled}@"), "To: <sip:700@");
            put(&mut writer, START, false, "192.0.2.10:5060", &text);
            let busy = response("486 Busy Here", "INVITE", id, "<sip:100@x>", "700");
            put(&mut writer, START + 1_000, true, "192.0.2.10:5060", &busy);
        }
        writer.tick(START + 2 * SECOND);
        for (number, words, call_id, expected) in [
            ("600", None, None, &["c-1"][..]),
            ("600", Some("yealink"), None, &["c-1"]),
            ("60*", Some("yealink"), None, &["c-1"]),
            ("70*", Some("yealink"), None, &["c-2", "c-1"]),
            ("600", None, Some("c-1"), &["c-1"]),
            ("60*", None, Some("c-1"), &["c-1"]),
            ("600", None, Some("c-2"), &[]),
            ("601", Some("yealink"), None, &[]),
            ("9*", Some("yealink"), None, &[]),
        ] {
            let filter = CallFilter {
                number: Some(number.into()),
                words: words.map(str::to_owned),
                call_id: call_id.map(str::to_owned),
                ..CallFilter::default()
            };
            assert_eq!(found(&place, &filter), expected, "{filter:?}");
        }
    }
}

#[test]
fn legs_of_a_capture_agent_are_joined_by_its_correlation() {
    for place in places("agent") {
        legs_of_a_capture_agent_are_joined_by_its_correlation_in(&place);
    }
}

fn legs_of_a_capture_agent_are_joined_by_its_correlation_in(place: &Place) {
    let mut writer = open(place, START);
    for (id, correlation) in [("leg-1", ""), ("leg-2", "leg-1")] {
        let text = request("INVITE", id, "<sip:1@x>", "2", "");
        writer.message(
            &StoredMessage {
                time: START as u64 * 1_000,
                direction: StoredDirection::Observed,
                transport: Transport::Tcp,
                source: address("192.0.2.7:5060"),
                destination: address("192.0.2.8:5060"),
                bytes: text.as_bytes(),
            },
            correlation.as_bytes(),
        );
    }
    writer.tick(START + SECOND);
    assert_eq!(found(place, &CallFilter::default()), ["leg-1"]);
    let joined = reader(place).find("leg-2").unwrap().unwrap();
    assert_eq!(joined.call_ids, ["leg-1", "leg-2"]);
}

#[test]
fn exchanges_without_end_are_closed_after_a_while() {
    for place in places("no-end") {
        exchanges_without_end_are_closed_after_a_while_in(&place);
    }
}

fn exchanges_without_end_are_closed_after_a_while_in(place: &Place) {
    let mut writer = open(place, START);
    let text = request("BYE", "stray", "<sip:1@x>", "2", "");
    put(&mut writer, START, false, "192.0.2.10:5060", &text);
    call(&mut writer, 1, START, "100", "600");
    let mut now = START;
    while now < START + 130 * SECOND {
        now += SECOND;
        writer.tick(now);
    }
    let reader = reader(place);
    let stray = reader.find("stray").unwrap().unwrap();
    assert_eq!(stray.state, CallState::Interrupted);
    // The border has not reported the end of its call.
    let up = reader.find("a-1").unwrap().unwrap();
    assert_eq!(up.state, CallState::Answered);
}
