//! Searches of a folder with partitions that cannot be read.

use super::{DAY, Place, SECOND, START, call, end, found, open, partition_of, reader};
use console::{CallFilter, HistoryReader};
use std::path::Path;

/// Damages an index.
type Damage = fn(&Path);

/// A store with a call of the user 100 to 600 on each of two days, of which the index of the first one is damaged.
fn with_damage(name: &str, damage: Damage) -> Place {
    let place = Place::folder(name);
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    end(&mut writer, 1, START + SECOND, 410);
    writer.end(START + 2 * SECOND);
    let index = partition_of(&place).join("index.db");
    let mut writer = open(&place, START + DAY);
    call(&mut writer, 2, START + DAY, "100", "600");
    end(&mut writer, 2, START + DAY + SECOND, 410);
    writer.end(START + DAY + 2 * SECOND);
    damage(&index);
    place
}

#[test]
fn a_damaged_older_partition_hides_no_call_of_the_others() {
    let garbage = |index: &Path| std::fs::write(index, b"this is no database at all").unwrap();
    let other_layout = |index: &Path| {
        let index = rusqlite::Connection::open(index).unwrap();
        index.pragma_update(None, "user_version", 9).unwrap();
    };
    // The first page is whole, so that the index can be opened.
    let overwritten = |index: &Path| {
        let mut bytes = std::fs::read(index).unwrap();
        bytes[4_096..].fill(0xff);
        std::fs::write(index, bytes).unwrap();
    };
    let all = CallFilter::default;
    let filters = [
        all(),
        CallFilter {
            number: Some("600".into()),
            ..all()
        },
        CallFilter {
            words: Some("Acme".into()),
            ..all()
        },
        CallFilter {
            address: Some("192.0.2.20".into()),
            ..all()
        },
    ];
    let damages: [(&str, Damage); 3] = [
        ("garbage", garbage),
        ("other-layout", other_layout),
        ("overwritten", overwritten),
    ];
    for (name, damage) in damages {
        let place = with_damage(&format!("older-{name}"), damage);
        for filter in &filters {
            assert_eq!(found(&place, filter), ["a-2"], "{name}: {filter:?}");
        }
        let reader = reader(&place);
        let call = reader.find("b-2").unwrap().unwrap();
        assert_eq!(reader.messages(call.id).unwrap().len(), 4, "{name}");
        assert_eq!(reader.find("a-1").unwrap(), None, "{name}");
        let period = (START, START + 2 * DAY);
        reader.events_between(period, 3, 10).unwrap();
        reader.drops_between(period.0, period.1).unwrap();
        let unread = reader.unread();
        assert_eq!(unread.len(), 1, "{name}: {unread:?}");
        assert!(unread[0].name.starts_with("202511"), "{unread:?}");
        assert!(!unread[0].reason.is_empty());
        // The damage is noticed anew: the partition may have been repaired, or moved out of the folder.
        let partition = place.path().join(&unread[0].name);
        std::fs::rename(partition, place.path().join("aside")).unwrap();
        let mut reader = reader;
        reader.refresh().unwrap();
        reader.search(&all(), None, 10).unwrap();
        assert_eq!(reader.unread(), [], "{name}");
    }
}

#[test]
fn a_damaged_table_hides_the_calls_that_are_found_by_it_only() {
    let place = with_damage("older-numbers", |index| {
        let connection = rusqlite::Connection::open(index).unwrap();
        let query = "SELECT rootpage FROM sqlite_master WHERE name = 'numbers'";
        let page: u32 = connection.query_row(query, [], |row| row.get(0)).unwrap();
        let page = page as usize;
        drop(connection);
        let mut bytes = std::fs::read(index).unwrap();
        bytes[(page - 1) * 4_096..page * 4_096].fill(0xff);
        std::fs::write(index, bytes).unwrap();
    });
    let by_number = CallFilter {
        number: Some("600".into()),
        ..CallFilter::default()
    };
    let reader = reader(&place);
    assert_eq!(found(&place, &CallFilter::default()), ["a-2", "a-1"]);
    assert_eq!(reader.unread(), []);
    assert_eq!(found(&place, &by_number), ["a-2"]);
    reader.search(&by_number, None, 10).unwrap();
    assert_eq!(reader.unread().len(), 1);
}

#[test]
fn a_store_without_a_readable_partition_is_an_error() {
    let place = Place::folder("unreadable");
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    writer.end(START + SECOND);
    let index = partition_of(&place).join("index.db");
    std::fs::write(index, b"this is no database at all").unwrap();
    let error = HistoryReader::open(&place.location)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a database"), "{error}");
}
