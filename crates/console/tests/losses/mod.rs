//! Losses: each item that is handed to the store is stored or counted as lost, per kind, and none is both.

use super::{
    CallFilter, DAY, Place, SECOND, START, call, database_settings, end, open, put, reader, request,
};
use console::{HistoryReader, HistoryWriter, LossCounts, StoreLocation, StoreNote};
use engine::{Event, EventKind, Time};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable with the folder of a small file system, for the test that runs itself in a mount namespace.
const SMALL_DISK: &str = "HORNWORK_TEST_SMALL_DISK";

fn notes(writer: &mut HistoryWriter) -> Vec<StoreNote> {
    std::iter::from_fn(|| writer.next_note()).collect()
}

/// The sum of the reports about losses.
fn reported<'a>(notes: impl IntoIterator<Item = &'a StoreNote>) -> LossCounts {
    let mut sum = LossCounts::default();
    for note in notes {
        if let StoreNote::Lost(lost) = note {
            sum.messages += lost.messages;
            sum.events += lost.events;
            sum.drops += lost.drops;
            sum.calls += lost.calls;
        }
    }
    sum
}

/// Hands in an event that belongs to no call.
fn put_event(writer: &mut HistoryWriter, at: i64) {
    let trunk = "pbx".to_owned();
    writer.event(&Event::new(Time(0), EventKind::TrunkUp { trunk }), at);
}

/// Everything in a store; `events` are those of [`put_event`].
fn stored(reader: &HistoryReader) -> LossCounts {
    let period = (START - DAY, START + 100 * DAY);
    let events = reader.events_between(period, 3, 10_000_000).unwrap();
    let drops = reader.drops_between(period.0, period.1).unwrap();
    let mut sum = LossCounts {
        events: events.iter().filter(|one| one.name == "trunk_up").count() as u64,
        drops: drops.values().sum(),
        ..LossCounts::default()
    };
    let mut before = None;
    loop {
        let page = reader
            .search(&CallFilter::default(), before, 1_000)
            .unwrap();
        for call in &page.calls {
            let messages = reader.messages(call.id).unwrap().len() as u64;
            assert_eq!(call.messages, messages, "{:?}", call.call_ids);
            sum.messages += messages;
            sum.calls += 1;
        }
        before = page.next;
        if before.is_none() {
            return sum;
        }
    }
}

/// Runs the calling test again as a process with a file system of 12 MiB of its own; `None`: without the right to it.
fn with_small_disk(test: &str, folder: &Path) -> Option<()> {
    let may = Command::new("unshare").args(["-m", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no right to make a mount namespace");
        return None;
    }
    std::fs::create_dir_all(folder).unwrap();
    let script = "mount -t tmpfs -o size=12m none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(folder)
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(SMALL_DISK, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
    Some(())
}

#[test]
fn losses_of_a_full_disk_are_counted_exactly() {
    match std::env::var_os(SMALL_DISK) {
        Some(folder) => fill_the_disk(&PathBuf::from(folder)),
        None => {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small-disk");
            let _ = with_small_disk("losses::losses_of_a_full_disk_are_counted_exactly", &folder);
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

fn fill_the_disk(folder: &Path) {
    const MESSAGES: u64 = 12_000;
    let place = Place {
        location: StoreLocation::Folder(folder.join("store")),
        server: None,
    };
    let filler = folder.join("filler");
    std::fs::write(&filler, vec![0; 8 << 20]).unwrap();
    let mut writer = open(&place, START);
    let losses = writer.losses();
    let padding = format!("X-Padding: {}\r\n", "x".repeat(400));
    let (mut now, mut all, mut failing) = (START, Vec::new(), 0);
    let mut handed = LossCounts::default();
    for number in 0..MESSAGES {
        now += 2_000;
        let text = request(
            "OPTIONS",
            &format!("o-{number}"),
            "<sip:1@x>",
            "2",
            &padding,
        );
        put(&mut writer, now, false, "192.0.2.10:5060", &text);
        handed.messages += 1;
        if number % 10 == 0 {
            put_event(&mut writer, now);
            writer.drops(now, "sip_unparsable", 3);
            (handed.events, handed.drops) = (handed.events + 1, handed.drops + 3);
        }
        if number % 50 == 0 {
            writer.tick(now);
            failing += u64::from(losses.is_failing());
            all.extend(notes(&mut writer));
        }
        if number == 9_000 {
            assert!(losses.is_failing(), "{all:?}");
            std::fs::remove_file(&filler).unwrap();
        }
    }
    now += 3 * SECOND;
    writer.tick(now);
    all.extend(notes(&mut writer));
    assert!(!losses.is_failing());
    all.extend(writer.end(now));
    let position = |wanted: fn(&StoreNote) -> bool| all.iter().position(wanted);
    let failed = position(|note| matches!(note, StoreNote::Failed { .. })).unwrap();
    let resumed = position(|note| matches!(note, StoreNote::Resumed { .. })).unwrap();
    let lost = position(|note| matches!(note, StoreNote::Lost(_))).unwrap();
    // The loss is reported while the disk is full, and the outage is one.
    assert!(failed < lost && lost < resumed, "{all:?}");
    let outages = all
        .iter()
        .filter(|note| matches!(note, StoreNote::Failed { .. }));
    assert_eq!(outages.count(), 1, "{all:?}");
    assert!(failing > 10, "{failing}");
    let (lost, stored) = (losses.counts(), stored(&reader(&place)));
    assert_eq!(reported(&all), lost);
    assert!(
        lost.messages > 1_000 && stored.messages > 3_000,
        "{lost:?} {stored:?}"
    );
    assert_eq!(stored.messages + lost.messages, handed.messages);
    assert_eq!(stored.events + lost.events, handed.events);
    assert_eq!(stored.drops + lost.drops, handed.drops);
    println!("handed in {handed:?}, stored {stored:?}, lost {lost:?}");
}

#[test]
fn a_start_with_a_full_disk_keeps_the_partitions_and_stores_later() {
    match std::env::var_os(SMALL_DISK) {
        Some(folder) => start_with_a_full_disk(&PathBuf::from(folder)),
        None => {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("full-at-start");
            let name = "losses::a_start_with_a_full_disk_keeps_the_partitions_and_stores_later";
            let _ = with_small_disk(name, &folder);
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

fn start_with_a_full_disk(folder: &Path) {
    let place = Place {
        location: StoreLocation::Folder(folder.join("store")),
        server: None,
    };
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    end(&mut writer, 1, START + SECOND, 410);
    writer.end(START + 2 * SECOND);
    let filler = folder.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write(&mut file, &[0; 4_096]).is_ok() {}
    // A removed file that is open keeps its space.
    drop(file);
    // On the same day, and on a later one; the first start does not spoil the second.
    for now in [START + 60 * SECOND, START + DAY] {
        let mut writer = open(&place, now);
        let losses = writer.losses();
        assert!(losses.is_failing());
        let all = notes(&mut writer);
        assert!(matches!(&all[..], [StoreNote::Failed { .. }]), "{all:?}");
        call(&mut writer, 2, now, "100", "601");
        writer.tick(now + 3 * SECOND);
        assert!(losses.is_failing());
        let names = std::fs::read_dir(place.path()).unwrap().flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        let is_whole = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("2025");
        assert_eq!(names.iter().filter(|name| is_whole(name)).count(), 1);
        assert!(
            names.iter().all(|name| is_whole(name) || name == "lock"),
            "{names:?}"
        );
        if now == START + DAY {
            std::fs::remove_file(&filler).unwrap();
            writer.tick(now + 6 * SECOND);
            assert!(!losses.is_failing());
            let all = notes(&mut writer);
            let is_resumed = |note: &StoreNote| matches!(note, StoreNote::Resumed { .. });
            assert!(all.iter().any(is_resumed), "{all:?}");
            call(&mut writer, 3, now + 7 * SECOND, "100", "602");
            assert_eq!(losses.counts().messages, 4);
        }
        writer.end(now + 8 * SECOND);
    }
    // The record of the second call comes from its events.
    let all = CallFilter::default();
    assert_eq!(super::found(&place, &all), ["a-3", "a-2", "a-1"]);
    let reader = reader(&place);
    for (id, messages) in [("a-1", 4), ("a-2", 0), ("a-3", 4)] {
        let call = reader.find(id).unwrap().unwrap();
        assert_eq!(reader.messages(call.id).unwrap().len(), messages, "{id}");
    }
}

#[test]
fn a_search_during_a_start_does_not_make_a_partition_damaged() {
    let place = Place::folder("searched");
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    end(&mut writer, 1, START + SECOND, 410);
    writer.end(START + 2 * SECOND);
    let index = super::partition_of(&place).join("index.db");
    let search = rusqlite::Connection::open(index).unwrap();
    search.execute_batch("BEGIN; SELECT * FROM calls").unwrap();
    let mut writer = open(&place, START + 60 * SECOND);
    assert!(notes(&mut writer).is_empty());
    call(&mut writer, 2, START + 61 * SECOND, "100", "601");
    writer.tick(START + 62 * SECOND);
    search.execute_batch("ROLLBACK").unwrap();
    let all = CallFilter::default();
    assert_eq!(super::found(&place, &all), ["a-2", "a-1"]);
}

#[test]
fn records_above_the_memory_limit_are_lost_while_the_index_is_locked() {
    let place = Place::folder("locked");
    let mut writer = open(&place, START);
    let losses = writer.losses();
    call(&mut writer, 1, START, "100", "600");
    writer.tick(START + SECOND);
    let partition = super::partition_of(&place);
    let lock = rusqlite::Connection::open(partition.join("index.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let at = START + 2 * SECOND;
    for _ in 0..200_100 {
        put_event(&mut writer, at);
    }
    for _ in 0..10_050 {
        writer.drops(at, "sip_unparsable", 2);
    }
    // 200,000 events and 10,000 counts of drops wait in the memory.
    writer.tick(at);
    let all = notes(&mut writer);
    let expected = LossCounts {
        events: 100,
        drops: 100,
        ..LossCounts::default()
    };
    let [StoreNote::Failed { reason }, StoreNote::Lost(lost)] = &all[..] else {
        panic!("{all:?}");
    };
    assert!(reason.contains("locked"), "{reason}");
    assert_eq!((*lost, losses.is_failing()), (expected, true));
    // Messages are not kept during an outage.
    for number in 2..7 {
        call(&mut writer, number, at, "101", "601");
    }
    assert_eq!(losses.counts().messages, 20);
    lock.execute_batch("ROLLBACK").unwrap();
    writer.tick(at + 3 * SECOND);
    assert!(!losses.is_failing());
    assert_eq!(writer.end(at + 4 * SECOND).map(|note| reported([&note])), {
        // Each call has an event: its route.
        Some(LossCounts {
            messages: 20,
            events: 5,
            ..LossCounts::default()
        })
    });
    let stored = stored(&reader(&place));
    let lost = losses.counts();
    assert_eq!(stored.events + lost.events, 200_105);
    assert_eq!(stored.drops + lost.drops, 20_100);
    assert_eq!(stored.messages + lost.messages, 24);
    // The records of calls come from their events.
    assert_eq!(stored.calls + lost.calls, 6);
}

#[test]
fn messages_without_a_call_are_stored_in_files_only() {
    let folder = Place::folder("no-call");
    for (place, unindexed) in [(Some(folder), 3), (Place::database(), 0)] {
        let Some(place) = place else { continue };
        let mut writer = open(&place, START);
        let losses = writer.losses();
        for text in [
            "no SIP",
            "OPTIONS sip:a@b SIP/2.0\r\nCSeq: 1 OPTIONS\r\n\r\n",
            "SIP/2.0 200 OK\r\n\r\n",
        ] {
            put(&mut writer, START, false, "192.0.2.10:5060", text);
        }
        writer.tick(START + SECOND);
        let lost = LossCounts {
            messages: 3 - unindexed,
            ..LossCounts::default()
        };
        assert_eq!(losses.unindexed(), unindexed);
        assert_eq!(losses.counts(), lost);
        assert_eq!(reported(&notes(&mut writer)), lost);
        if unindexed > 0 {
            let segment = super::partition_of(&place).join("messages-000001.pcapng");
            let bytes = std::fs::read(segment).unwrap();
            assert!(bytes.windows(6).any(|window| window == b"no SIP"));
        } else {
            assert_eq!(place.psql("SELECT count(*) FROM hornwork.messages"), "0");
        }
    }
}

/// Ticks until the outage after a refusal is over; returns the time afterwards.
fn tick_until_stored(writer: &mut HistoryWriter, mut now: i64) -> i64 {
    let losses = writer.losses();
    for _ in 0..5 {
        now += 20 * SECOND;
        writer.tick(now);
        if !losses.is_failing() {
            return now;
        }
    }
    panic!("the store fails: {:?}", notes(writer));
}

#[test]
fn of_a_transaction_only_the_refused_row_is_lost() {
    let Some(place) = Place::database() else {
        return;
    };
    let mut writer = open(&place, START);
    let losses = writer.losses();
    call(&mut writer, 1, START, "100", "600");
    writer.tick(START + SECOND);
    place.psql("ALTER TABLE hornwork.drops ADD CONSTRAINT refused CHECK (count <> 5)");
    place
        .psql("ALTER TABLE hornwork.events ADD CONSTRAINT refused CHECK (fields NOT LIKE '%bad%')");
    place.psql("ALTER TABLE hornwork.numbers ADD CONSTRAINT refused CHECK (number <> '107')");
    // A function of the administrator, with an error of its own.
    place.psql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF position('sip:613@'::bytea IN NEW.bytes) > 0 AND NEW.direction = 1 THEN RAISE EXCEPTION 'no'; END IF; \
         RETURN NEW; END $$",
    );
    place.psql("CREATE TRIGGER refuse BEFORE INSERT ON hornwork.messages FOR EACH ROW EXECUTE FUNCTION refuse()");
    // At the end of a transaction, where no row can be left out.
    place.psql(
        "CREATE FUNCTION refuse_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.details LIKE '%\"119\"%' THEN RAISE EXCEPTION 'late'; END IF; RETURN NEW; END $$",
    );
    for day in place
        .psql("SELECT relname FROM pg_class WHERE relname LIKE 'texts\\_%' AND relkind = 'r'")
        .lines()
    {
        place.psql(&format!(
            "CREATE CONSTRAINT TRIGGER refuse_late AFTER INSERT ON hornwork.{day} DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION refuse_late()"
        ));
    }
    let at = START + 2 * SECOND;
    for number in 2..30 {
        let (from, to) = (format!("{}", 100 + number), format!("{}", 600 + number));
        call(&mut writer, number, at, &from, &to);
        put_event(&mut writer, at);
        writer.drops(at, "sip_unparsable", number);
    }
    let trunk = "bad".to_owned();
    writer.event(&Event::new(Time(0), EventKind::TrunkUp { trunk }), at);
    writer.tick(at);
    assert!(losses.is_failing());
    assert_eq!(losses.counts().total(), 0);
    let now = tick_until_stored(&mut writer, at);
    let lost = losses.counts();
    assert_eq!((lost.events, lost.drops), (1, 5));
    // The number of one call, and the record of another.
    assert_eq!(lost.calls, 2);
    assert!(lost.messages > 0);
    assert_eq!(
        place.psql("SELECT count(*) FROM hornwork.drops"),
        "27",
        "28 rows but one"
    );
    // The numbers of messages are those that are stored.
    writer.tick(now + SECOND);
    let all = stored(&reader(&place));
    assert_eq!((all.events, all.calls), (28, 28));
    assert_eq!(all.messages + lost.messages, 4 * 28);
    for (number, count) in [("107", 0), ("108", 1), ("112", 1), ("119", 0)] {
        let filter = CallFilter {
            number: Some(number.to_owned()),
            ..CallFilter::default()
        };
        let found = reader(&place).search(&filter, None, 10).unwrap().calls;
        assert_eq!(found.len(), count, "{number}");
    }
    // Later rows are stored at once.
    call(&mut writer, 50, now + 2 * SECOND, "150", "650");
    writer.tick(now + 3 * SECOND);
    assert!(!losses.is_failing());
    assert_eq!(losses.counts(), lost);
}

#[test]
fn a_table_that_refuses_all_rows_loses_only_these() {
    let Some(place) = Place::database() else {
        return;
    };
    let mut writer = open(&place, START);
    let losses = writer.losses();
    writer.tick(START);
    place.psql("ALTER TABLE hornwork.events ADD CONSTRAINT refused CHECK (level > 5)");
    let at = START + SECOND;
    call(&mut writer, 1, at, "100", "600");
    for _ in 0..10_000 {
        put_event(&mut writer, at);
    }
    writer.tick(at);
    tick_until_stored(&mut writer, at);
    let lost = losses.counts();
    assert_eq!((lost.messages, lost.drops, lost.calls), (0, 0, 0));
    // Those of the call too.
    assert!(lost.events >= 10_000, "{lost:?}");
    let all = stored(&reader(&place));
    assert_eq!((all.messages, all.events, all.calls), (4, 0, 1));
}

#[test]
fn a_transaction_that_is_always_refused_is_counted_by_kind() {
    let Some(place) = Place::database() else {
        return;
    };
    let mut writer = open(&place, START);
    let losses = writer.losses();
    call(&mut writer, 1, START, "100", "600");
    put_event(&mut writer, START);
    writer.drops(START, "sip_unparsable", 7);
    writer.tick(START + SECOND);
    // The row of the node is no row that can be left out.
    place.psql("ALTER TABLE hornwork.nodes ADD CONSTRAINT refused CHECK (batch < 2)");
    let mut now = START + 2 * SECOND;
    call(&mut writer, 2, now, "101", "601");
    put_event(&mut writer, now);
    put_event(&mut writer, now);
    writer.drops(now, "sip_unparsable", 5);
    let mut all = Vec::new();
    for _ in 0..4 {
        assert_eq!(losses.counts().total(), 0);
        writer.tick(now);
        assert!(losses.is_failing());
        all.extend(notes(&mut writer));
        now += 20 * SECOND;
    }
    let expected = LossCounts {
        messages: 4,
        events: 3,
        drops: 5,
        calls: 1,
    };
    assert_eq!(losses.counts(), expected);
    assert_eq!(all.last(), Some(&StoreNote::Lost(expected)));
    let before = stored(&reader(&place));
    let handed = [before.messages + 4, before.events + 3, before.drops + 5, 2];
    assert_eq!(handed, [8, 4, 12, 2]);
    assert_eq!(before.calls, 1);
    // The next change of the call writes its record with all keys, and later drops are stored.
    place.psql("ALTER TABLE hornwork.nodes DROP CONSTRAINT refused");
    writer.tick(now);
    end(&mut writer, 2, now, 400);
    writer.drops(now, "sip_unparsable", 1);
    writer.tick(now + SECOND);
    assert!(!losses.is_failing());
    for id in ["a-2", "b-2"] {
        let call = reader(&place).find(id).unwrap().unwrap();
        assert_eq!((call.messages, call.call_ids.len()), (0, 2), "{id}");
    }
    assert_eq!(losses.counts(), expected);
    assert_eq!(stored(&reader(&place)).drops, 8);
}

#[test]
fn the_end_without_a_server_counts_waiting_records() {
    let Some(server) = super::Server::new(&[], "") else {
        return;
    };
    let database = server.database();
    let place = Place {
        location: StoreLocation::Database(database_settings(&server, &database)),
        server: None,
    };
    let mut writer = open(&place, START);
    let losses = writer.losses();
    call(&mut writer, 1, START, "100", "600");
    writer.tick(START + SECOND);
    server.crash();
    let at = START + 2 * SECOND;
    call(&mut writer, 2, at, "101", "601");
    put_event(&mut writer, at);
    writer.drops(at, "sip_unparsable", 9);
    writer.tick(at);
    assert_eq!(losses.counts().total(), 0, "the memory holds all of it");
    let note = writer.end(at + SECOND);
    let expected = LossCounts {
        messages: 4,
        events: 2,
        drops: 9,
        calls: 1,
    };
    assert_eq!(note, Some(StoreNote::Lost(expected)));
    assert_eq!(losses.counts(), expected);
    server.run();
    let stored = stored(&reader(&place));
    assert_eq!((stored.messages, stored.calls), (4, 1));
    // Details of calls are not among the events that are listed.
    assert_eq!((stored.events, stored.drops), (0, 0));
}
