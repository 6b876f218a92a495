//! The store of calls and messages in PostgreSQL: a border with SIPp, kill -9, and a server that goes away.

#[path = "../../../console/tests/common/postgres.rs"]
mod postgres;

use crate::common::{Process, free_port, installed, scratch};
use crate::history::{Rig, await_log, text, tshark};
use crate::operators::{metric, metrics};
use postgres::Server;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// A border that writes as this node, with call records and these further tables.
fn rig(name: &str, node: &str, (server, database): (&Server, &str), more: &str) -> Rig {
    let folder = scratch(&format!("{name}-{node}"));
    let url = server.url(database);
    let records = folder.join("records");
    let tables = format!(
        "[store]\ndatabase = \"{url}\"\nnode = \"{node}\"\n[records]\nfolder = \"{}\"\n{more}",
        records.display()
    );
    Rig::with(folder, "loopback.toml", url.into(), &tables)
}

fn count(server: &Server, database: &str, statement: &str) -> i64 {
    let text = server.psql(database, statement).expect("psql");
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Records of calls that were cut by a crash.
fn cut_records(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("records/cdr.ndjson")).expect("records");
    let records = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    records
        .filter(|record: &Value| record["cut"] == true)
        .collect()
}

/// Runs calls that end.
fn calls(rig: &Rig, number: u32, rate: u32) {
    let mut callers = rig.callers(number, rate);
    let done = callers.wait(Duration::from_secs(60));
    assert_eq!(done, Some(true), "{}", callers.log());
}

fn killed(rig: &Rig, mut border: Process, (server, database): (&Server, &str)) {
    // Calls are being set up.
    let more = rig.callers(3_000, 500);
    std::thread::sleep(Duration::from_millis(1_700));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("a time after 1970").as_micros() as i64;
    border.signal("KILL");
    assert_eq!(border.wait(Duration::from_secs(30)), Some(false));
    drop(more);
    let newest = "SELECT max(at) / 1000 FROM hornwork.messages";
    let newest = now - count(server, database, newest);
    assert!(newest < 1_000_000, "the newest message is {newest} us old");
    // Each message has its call, and each call has the messages that it counts.
    let lonely = "SELECT count(*) FROM hornwork.messages m WHERE NOT EXISTS (SELECT FROM hornwork.calls c WHERE c.id = m.call)";
    assert_eq!(count(server, database, lonely), 0);
    let different = "SELECT count(*) FROM hornwork.texts t WHERE (details::json->>'messages')::bigint <> \
        (SELECT count(*) FROM hornwork.messages m WHERE m.call = t.id)";
    assert_eq!(count(server, database, different), 0);
}

#[test]
fn a_database_has_the_calls_of_a_border_that_is_killed() {
    if !installed(&["sipp", "pgrep"]) {
        return;
    }
    let Some(server) = Server::new(&[], "") else {
        return;
    };
    let database = server.database();
    let rig = rig("store-killed-shared", "edge-1", (&server, &database), "");
    let border = rig.border();
    let _callee = rig.callee();
    calls(&rig, 100, 200);
    let found = rig.await_calls(&["--number", "600", "--state", "ended"], 100);
    for call in &found {
        assert_eq!(
            (&call["node"], &call["messages"]),
            (&"edge-1".into(), &13.into())
        );
        assert_eq!(
            (&call["status"], &call["trunk"]),
            (&200.into(), &"server".into())
        );
    }
    // Another program counts the same.
    let stored =
        "SELECT count(*) FROM hornwork.messages JOIN hornwork.calls ON id = call WHERE kind = 0";
    assert_eq!(count(&server, &database, stored), 1_300);
    let leg = found[0]["call_ids"][1].as_str().expect("a Call-ID");
    let ladder = text(&rig.trace(&[leg]).stdout);
    assert_eq!(ladder.matches("INVITE (SDP)").count(), 2, "{ladder}");
    assert!(ladder.contains("edge-1"), "{ladder}");
    if installed(&["tshark"]) {
        let file = rig.folder.join("call.pcapng");
        let done = rig.trace(&[leg, "--pcapng", &file.display().to_string()]);
        assert!(done.status.success());
        assert_eq!(tshark(&file), 13);
    }
    killed(&rig, border, (&server, &database));
    let border = rig.border();
    await_log(&border, "store_completed");
    let open = "SELECT count(*) FROM hornwork.calls WHERE state < 2 AND kind = 0";
    assert_eq!(count(&server, &database, open), 0);
    assert!(!cut_records(&rig.folder).is_empty());
    assert!(!rig.calls(&["--state", "interrupted"]).is_empty());
    // Calls go on without the server, and those of a short time wait in memory.
    // A response of a killed call that comes late has no trunk.
    let ended = ["--state", "ended", "--trunk", "server"];
    let before = rig.calls(&ended).len();
    server.crash();
    calls(&rig, 100, 200);
    let log = await_log(&border, "store_failed");
    await_log(&border, "alarm_raised");
    assert!(!log.contains("store_messages_lost"), "{log}");
    server.run();
    await_log(&border, "store_resumed");
    await_log(&border, "alarm_cleared");
    rig.await_calls(&ended, before + 100);
}

#[test]
fn losses_during_a_database_outage_are_counted_exactly() {
    if !installed(&["sipp", "pgrep"]) {
        return;
    }
    let Some(server) = Server::new(&[], "") else {
        return;
    };
    let database = server.database();
    let (url, scrape) = (server.url(&database), free_port());
    let tables = format!(
        "[sip]\nqueueing_delay_ms = 0\n[store]\ndatabase = \"{url}\"\nnode = \"edge-1\"\nqueue_mib = 4\n[metrics]\nlisten = \"127.0.0.1:{scrape}\"\n"
    );
    let folder = scratch("store-stopped-server");
    let rig = Rig::with(folder, "loopback-bypass.toml", url.into(), &tables);
    let border = rig.border();
    let _callee = rig.callee();
    calls(&rig, 20, 100);
    server.signal_all("STOP");
    // About 25 MB of messages for a queue of 4 MiB.
    calls(&rig, 4_000, 500);
    let name = "hornwork_store_lost_total{kind=\"messages\"}";
    let lost = metric(&metrics(scrape), name);
    server.signal_all("CONT");
    assert!(lost > 1_000, "{lost} while the server does not answer");
    await_log(&border, "store_messages_lost");
    // Each message of these calls is stored or counted as lost; there are some more: retransmissions and OPTIONS.
    let handed_in = 13 * 4_020;
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        let lost = metric(&metrics(scrape), name);
        let stored = count(&server, &database, "SELECT count(*) FROM hornwork.messages");
        let sum = stored.unsigned_abs() + lost;
        if (handed_in..handed_in + handed_in / 20).contains(&sum) {
            println!("at least {handed_in} handed in, {stored} stored, {lost} lost");
            assert!(stored > 1_000, "{stored}");
            break;
        }
        assert!(
            Instant::now() < until,
            "{stored} + {lost}: {}",
            border.log()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A response of the console's API.
fn api(port: u16, path: &str) -> Value {
    let url = format!("http://127.0.0.1:{port}/api/v1/{path}");
    let output = Command::new("curl").args(["-sS", &url]).output();
    let output = output.expect("curl");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

#[test]
fn a_call_through_two_borders_is_one_ladder() {
    if !installed(&["sipp", "curl"]) {
        return;
    }
    let Some(server) = Server::new(&[], "") else {
        return;
    };
    let database = server.database();
    let port = crate::common::free_port();
    let console = format!("[console]\nlisten = \"127.0.0.1:{port}\"\n");
    let second = rig("store-ladder", "edge-2", (&server, &database), &console);
    let mut first = rig("store-ladder", "edge-1", (&server, &database), "");
    let target = format!(":{}", first.trunk);
    first.configuration = first
        .configuration
        .replace(&target, &format!(":{}", second.sip));
    let _borders = (second.border(), first.border());
    let _callee = second.callee();
    calls(&first, 20, 50);
    let ended = ["--number", "600", "--state", "ended", "--node"];
    let of = |node: &'static str| [&ended[..], &[node]].concat();
    let at_first = first.await_calls(&of("edge-1"), 20);
    let at_second = first.await_calls(&of("edge-2"), 20);
    let leg = unrepeated(&at_first, &at_second);
    let ladder = text(&first.trace(&[leg]).stdout);
    let head = ladder.lines().find(|line| {
        let at = |name| line.find(name);
        at("edge-1")
            .zip(at("edge-2"))
            .is_some_and(|(one, two)| one < two)
    });
    assert!(head.is_some(), "{ladder}");
    assert!(ladder.contains("also edge-2: "), "{ladder}");
    let json: Value = serde_json::from_slice(&first.trace(&[leg, "--json"]).stdout).expect("JSON");
    assert_eq!(json["related"][0]["node"], "edge-2");
    // Fourteen and thirteen messages; seven between the borders are in both records.
    assert_eq!(
        json["messages"].as_array().map(Vec::len),
        Some(20),
        "{ladder}"
    );
    // The console of one border has the calls of the other.
    let found = api(port, "calls?number=600&node=edge-1&limit=1000");
    assert_eq!(found["calls"].as_array().map(Vec::len), Some(20), "{found}");
    let ours = found["calls"].as_array().into_iter().flatten();
    let mut ours = ours.filter(|call| call["call_ids"][0] == leg);
    let id = ours.next().and_then(|call| call["id"].as_str());
    let id = id.unwrap_or_else(|| panic!("{leg}: {found}"));
    let page = api(port, &format!("calls/{id}"));
    assert_eq!(page["related"][0]["node"], "edge-2", "{page}");
    one_ladder(&page);
    // The same by the record of the second border.
    let other = page["related"][0]["id"].as_str().expect("a number");
    let same = api(port, &format!("calls/{other}"));
    assert_eq!(same["messages"], page["messages"]);
    assert_eq!(same["related"][0]["id"], id);
    edits_at_each_border(port, id, &page);
    let text = Command::new("curl")
        .args([
            "-sS",
            &format!("http://127.0.0.1:{port}/api/v1/calls/{id}/text"),
        ])
        .output()
        .expect("curl");
    let exported = String::from_utf8_lossy(&text.stdout).into_owned();
    assert_eq!(exported.matches("INVITE (SDP)").count(), 3, "{exported}");
    page_in_chromium(port, id, &first.folder);
}

/// The first Call-ID of a call whose messages have their usual number at both borders: a machine that stalls makes
/// SIPp and the borders repeat some.
fn unrepeated<'c>(at_first: &'c [Value], at_second: &[Value]) -> &'c str {
    let is_usual = |call: &&Value| {
        let mut others = at_second.iter();
        let other = others.find(|other| other["call_ids"][0] == call["call_ids"][1]);
        call["messages"] == 14 && other.is_some_and(|other| other["messages"] == 13)
    };
    let call = at_first.iter().find(is_usual);
    let call = call.unwrap_or_else(|| panic!("a call without retransmissions: {at_first:?}"));
    call["call_ids"][0].as_str().expect("a Call-ID")
}

/// The page of a call has each message at its border, the legs from the caller to the callee, and the decisions of both
/// borders.
fn one_ladder(page: &Value) {
    assert_eq!(page["nodes"], serde_json::json!(["edge-1", "edge-2"]));
    let messages = page["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 20, "{page}");
    let invites = messages.iter().filter(|one| one["method"] == "INVITE");
    let invites: Vec<(&Value, &Value, &Value)> = invites
        .map(|one| (&one["node"], &one["direction"], &one["leg"]))
        .collect();
    let expected = [
        ("edge-1", "in", 0),
        ("edge-1", "out", 1),
        ("edge-2", "out", 2),
    ];
    assert_eq!(invites.len(), expected.len(), "{page}");
    for (invite, (node, direction, leg)) in invites.iter().zip(expected) {
        assert_eq!(*invite, (&node.into(), &direction.into(), &leg.into()));
    }
    let steps = page["decision"].as_array().expect("decisions");
    for node in ["edge-1", "edge-2"] {
        let of_node: Vec<&str> = steps
            .iter()
            .filter(|step| step["node"] == node)
            .filter_map(|step| step["what"].as_str())
            .collect();
        for what in ["received", "routed", "sent", "answered", "ended"] {
            assert!(of_node.contains(&what), "{node}: {of_node:?}");
        }
        let events = page["events"].as_array().expect("events");
        assert!(events.iter().any(|event| event["node"] == node));
    }
    // The steps of one border are together.
    let changes = steps
        .windows(2)
        .filter(|two| two[0]["node"] != two[1]["node"]);
    assert_eq!(changes.count(), 1, "{steps:?}");
}

/// The INVITE that a border sent is compared with the one that the same border received.
fn edits_at_each_border(port: u16, id: &str, page: &Value) {
    let messages = page["messages"].as_array().expect("messages");
    let invites: Vec<&Value> = messages
        .iter()
        .filter(|one| one["method"] == "INVITE")
        .collect();
    for (sent, received) in [(1, 0), (2, 1)] {
        let index = &invites[sent]["index"];
        let shown = api(port, &format!("calls/{id}/messages/{index}"));
        assert_eq!(shown["counterpart"], invites[received]["index"], "{shown}");
        let edits = shown["edits"].as_array().expect("edits");
        let of_call_id = edits.iter().find(|edit| {
            let after = edit["after"].as_str();
            after.is_some_and(|after| after.starts_with("Call-ID"))
        });
        assert!(of_call_id.is_some(), "{shown}");
    }
}

/// The page shows both borders between caller and callee, and the decisions under their names.
fn page_in_chromium(port: u16, id: &str, folder: &Path) {
    let Some(sources) = crate::pages::sources() else {
        return;
    };
    let output = Command::new("node")
        .current_dir(sources)
        .arg("tests/borders.mjs")
        .env("CONSOLE_URL", format!("http://127.0.0.1:{port}"))
        .env("CONSOLE_CALL", id)
        .env("CONSOLE_FOLDER", folder)
        .output()
        .expect("node");
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}
