//! Tests of a shared database only: several nodes, a server that goes away, TLS, passwords, versions.

use super::postgres::Server;
use super::{
    DAY, Place, SECOND, START, address, call, database_settings, end, found, open, put, reader,
    request, response, settings,
};
use console::{
    CallFilter, CallState, DatabaseHost, DatabaseSettings, HistoryReader, HistoryWriter,
    LadderStyle, StoreLocation, StoreNote, StoreSettings, ladder,
};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Variable for the test that runs itself with a name server that does not answer.
const SILENT_NAME_SERVER: &str = "HORNWORK_TEST_SILENT_NAME_SERVER";

fn notes(writer: &mut HistoryWriter) -> Vec<StoreNote> {
    std::iter::from_fn(|| writer.next_note()).collect()
}

#[test]
fn calls_that_a_crash_cut_are_marked() {
    let Some(place) = Place::database() else {
        return;
    };
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    call(&mut writer, 2, START + 1, "101", "601");
    end(&mut writer, 2, START + SECOND, 400);
    writer.tick(START + SECOND);
    // Without `end`: all that is not in the last transaction is lost.
    call(&mut writer, 3, START + SECOND + 1, "102", "602");
    drop(writer);
    let mut writer = open(&place, START + 60 * SECOND);
    let completed = StoreNote::Completed {
        messages: 0,
        interrupted: 1,
    };
    assert_eq!(notes(&mut writer), [completed]);
    let reader = reader(&place);
    let cut = reader.find("a-1").unwrap().unwrap();
    assert_eq!(cut.state, CallState::Interrupted);
    // It ended with its last message.
    assert_eq!(cut.ended, Some(START + 3_000));
    let whole = reader.find("b-2").unwrap().unwrap();
    assert_eq!((whole.state, whole.messages), (CallState::Ended, 4));
    assert_eq!(reader.find("a-3").unwrap(), None);
    // A late message belongs to the old call.
    let bye = request("BYE", "a-1", "<sip:100@x>", "600", "");
    let at = START + 61 * SECOND;
    put(&mut writer, at, false, "192.0.2.10:5060", &bye);
    call(&mut writer, 9, at, "102", "603");
    writer.tick(START + 62 * SECOND);
    assert_eq!(reader.messages(cut.id).unwrap().len(), 5);
    assert_eq!(place.psql("SELECT count(*) FROM hornwork.calls"), "3");
    assert_eq!(place.psql("SELECT count(*) FROM hornwork.messages"), "13");
}

#[test]
fn several_nodes_have_one_history() {
    let Some(place) = Place::database() else {
        return;
    };
    let mut first = open(&place, START);
    let second = StoreSettings {
        node: "edge-2".into(),
        ..settings(&place)
    };
    let again = HistoryWriter::open(settings(&place), START).unwrap_err();
    assert!(again.to_string().contains("edge-1"), "{again}");
    let mut second = HistoryWriter::open(second, START).unwrap();
    // The call of the first node goes on to the second one, which knows it by the Call-ID of the leg between them.
    call(&mut first, 1, START, "100", "600");
    let caller = "<sip:100@example.net>";
    let invite = request("INVITE", "b-1", caller, "600", "");
    let answer = response("200 OK", "INVITE", "b-1", caller, "600");
    let (ours, theirs) = (address("192.0.2.1:5060"), address("192.0.2.20:5060"));
    for (sent, source, destination, text) in [
        (false, ours, theirs, &invite),
        (true, theirs, ours, &answer),
    ] {
        let message = console::StoredMessage {
            time: (START as u64 + 1_200 + u64::from(sent)) * 1_000,
            direction: match sent {
                true => console::StoredDirection::Sent,
                false => console::StoredDirection::Received,
            },
            transport: engine::Transport::Udp,
            source,
            destination,
            bytes: text.as_bytes(),
        };
        second.message(&message, b"");
    }
    call(&mut second, 7, START + 10 * SECOND, "100", "700");
    first.tick(START + SECOND);
    second.tick(START + 11 * SECOND);
    let reader = reader(&place);
    let of = |node: &str| CallFilter {
        node: Some(node.into()),
        number: Some("100".into()),
        ..CallFilter::default()
    };
    let nodes = |filter: &CallFilter| {
        let page = reader.search(filter, None, 10).unwrap();
        let calls = page.calls.into_iter();
        calls.map(|call| call.node).collect::<Vec<_>>()
    };
    assert_eq!(
        nodes(&CallFilter::default()),
        ["edge-2", "edge-2", "edge-1"]
    );
    assert_eq!(nodes(&of("edge-1")), ["edge-1"]);
    assert_eq!(nodes(&of("edge-2")), ["edge-2", "edge-2"]);
    assert_eq!(nodes(&of("edge-3")), [""; 0]);
    let one = reader.find("a-1").unwrap().unwrap();
    let others = reader.correlated(&one).unwrap();
    assert_eq!(others.len(), 1);
    assert_eq!(others[0].node, "edge-2");
    assert_eq!(
        reader.correlated(&others[0]).unwrap(),
        std::slice::from_ref(&one)
    );
    // The INVITE between them is in both records and one in the ladder, whose columns are the nodes.
    let messages = reader.messages_of(&[one.id, others[0].id]).unwrap();
    assert_eq!(messages.len(), 4);
    let text = ladder(&one, &messages, &[], LadderStyle::default());
    let head = text.lines().find(|line| line.contains("edge-2")).unwrap();
    let at = |name: &str| head.find(name).unwrap();
    assert!(
        at("192.0.2.10:5060") < at("edge-1") && at("edge-1") < at("edge-2"),
        "{text}"
    );
    assert!(!head.contains("192.0.2.20"), "{text}");
}

#[test]
fn partitions_are_made_ahead_and_removed_by_age_while_calls_go_on() {
    let Some(place) = Place::database() else {
        return;
    };
    let days = || {
        place.psql("SELECT string_agg(substring(relname from 7), ' ' ORDER BY relname) FROM pg_class WHERE relname LIKE 'calls_2%' AND relkind = 'r'")
    };
    let mut writer = open(&place, START);
    call(&mut writer, 1, START, "100", "600");
    call(&mut writer, 2, START, "101", "601");
    end(&mut writer, 2, START + SECOND, 400);
    writer.tick(START + SECOND);
    assert_eq!(days(), "20251124 20251125");
    // A search that reads the old day delays its removal, and neither blocks the other for long.
    for day in 1..=7 {
        writer.tick(START + day * DAY);
    }
    assert!(days().starts_with("20251124 "), "{}", days());
    writer.tick(START + 8 * DAY);
    assert!(days().starts_with("20251125 "), "{}", days());
    assert!(days().ends_with(" 20251203"), "{}", days());
    assert_eq!(found(&place, &CallFilter::default()), [""; 0]);
    // The call that is still up is written anew.
    end(&mut writer, 1, START + 8 * DAY + SECOND, 300);
    writer.tick(START + 8 * DAY + 2 * SECOND);
    let all = found(&place, &CallFilter::default());
    assert_eq!(all, ["a-1"]);
    assert_eq!(
        found(
            &place,
            &CallFilter {
                number: Some("600".into()),
                ..CallFilter::default()
            }
        ),
        all
    );
    assert_eq!(notes(&mut writer), []);
}

#[test]
fn records_above_the_memory_limit_are_lost_while_the_server_is_away() {
    let Some(server) = Server::new(&[], "") else {
        return;
    };
    let database = server.database();
    let place = Place {
        location: StoreLocation::Database(database_settings(&server, &database)),
        server: None,
    };
    server.crash();
    // A border starts without its server.
    let mut now = START;
    let mut writer = open(&place, now);
    assert!(matches!(
        &notes(&mut writer)[..],
        [StoreNote::Failed { .. }]
    ));
    call(&mut writer, 1, now, "100", "600");
    server.run();
    now += 2 * SECOND;
    writer.tick(now);
    assert_eq!(notes(&mut writer), [StoreNote::Resumed { outage_s: 2 }]);
    server.crash();
    let padding = format!("X-Padding: {}\r\n", "x".repeat(60_000));
    let text = request("OPTIONS", "long", "<sip:1@x>", "2", &padding);
    for _ in 0..600 {
        now += 1_000;
        put(&mut writer, now, false, "192.0.2.10:5060", &text);
    }
    now += SECOND;
    writer.tick(now);
    // The loss is reported during the outage.
    let all = notes(&mut writer);
    let [StoreNote::Failed { .. }, StoreNote::Lost(lost)] = &all[..] else {
        panic!("{all:?}");
    };
    let messages = lost.messages;
    assert_eq!(lost.total(), messages);
    assert!(writer.losses().is_failing());
    server.run();
    now += 30 * SECOND;
    writer.tick(now);
    assert!(matches!(
        &notes(&mut writer)[..],
        [StoreNote::Resumed { .. }]
    ));
    assert!(!writer.losses().is_failing());
    assert_eq!(writer.losses().counts().messages, messages);
    let stored = server.psql(&database, "SELECT count(*) FROM hornwork.messages");
    let stored: u64 = stored.unwrap().parse().unwrap();
    // Four messages are those of the call before.
    assert_eq!(stored - 4 + messages, 600);
    assert!((400..600).contains(&(stored - 4)), "{stored}");
    // The reader connects again too.
    let mut reader = reader(&place);
    server.crash();
    server.run();
    assert!(reader.find("a-1").is_err());
    reader.refresh().unwrap();
    assert!(reader.find("a-1").unwrap().is_some());
}

/// A file in the folder of a server.
fn file(server: &Server, name: &str, contents: &str) -> PathBuf {
    let path = server.folder.join(name);
    std::fs::write(&path, contents).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// An authority and a certificate for `localhost` with its key, in PEM.
fn certificates() -> (String, String, String) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    (issuer.pem(), server.pem(), key.serialize_pem())
}

#[test]
fn the_server_is_verified_and_passwords_come_from_a_file() {
    let Some(server) = Server::new(&[], "hostssl all all 127.0.0.1/32 scram-sha-256") else {
        return;
    };
    let database = server.database();
    server.psql(
        &database,
        "CREATE ROLE border LOGIN PASSWORD 'geheim:1'; CREATE ROLE viewer LOGIN PASSWORD 'v'",
    );
    let allowed = server.psql(
        &database,
        &format!("GRANT CREATE ON DATABASE {database} TO border"),
    );
    allowed.unwrap();
    let (authority, certificate, key) = certificates();
    server.crash();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let authority = file(&server, "ca.pem", &authority);
    let other = file(&server, "other.pem", &certificates().0);
    let more = format!(
        "ssl = on\nssl_cert_file = '{}'\nssl_key_file = '{}'\nlisten_addresses = '127.0.0.1'\n",
        server.share("server.pem", &certificate).display(),
        server.share("server.key", &key).display(),
    );
    server.configure(&more, port);
    let password = file(
        &server,
        "pass",
        "localhost:*:*:border:geheim\\:1\n*:*:*:viewer:v\n",
    );
    let good = DatabaseSettings {
        host: DatabaseHost::Network("localhost".into()),
        port,
        user: "border".into(),
        database: database.clone(),
        authorities: Some(authority),
        password_file: Some(password),
    };
    let try_open = |database: DatabaseSettings| {
        let settings = StoreSettings {
            location: StoreLocation::Database(database),
            node: "edge-1".into(),
            retention_days: 7,
            size: 1 << 30,
            secure_content: false,
            full_text: true,
        };
        HistoryWriter::open(settings, START)
    };
    let mut writer = try_open(good.clone()).unwrap();
    call(&mut writer, 1, START, "100", "600");
    writer.tick(START + SECOND);
    assert_eq!(notes(&mut writer), []);
    let used = server.psql(&database, "SELECT bool_and(ssl) AND count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'border'");
    assert_eq!(used.as_deref(), Some("t"));
    let wrong = |name: &str, contents: &str| Some(file(&server, name, contents));
    let readable = file(&server, "readable", "*:*:*:*:geheim:1");
    std::fs::set_permissions(&readable, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (settings, expected) in [
        (
            DatabaseSettings {
                authorities: Some(other),
                ..good.clone()
            },
            "certificate",
        ),
        (
            DatabaseSettings {
                host: DatabaseHost::Network("127.0.0.1".into()),
                ..good.clone()
            },
            "certificate",
        ),
        (
            DatabaseSettings {
                password_file: wrong("wrong", "*:*:*:*:geheim-2"),
                ..good.clone()
            },
            "28P01",
        ),
        (
            DatabaseSettings {
                password_file: None,
                ..good.clone()
            },
            "password",
        ),
        (
            DatabaseSettings {
                password_file: Some(readable),
                ..good.clone()
            },
            "chmod 600",
        ),
        (
            DatabaseSettings {
                authorities: None,
                ..good.clone()
            },
            "28000",
        ),
        (
            DatabaseSettings {
                database: "absent".into(),
                ..good.clone()
            },
            "3D000",
        ),
        (
            DatabaseSettings {
                authorities: wrong("empty.pem", ""),
                ..good.clone()
            },
            "no certificate",
        ),
    ] {
        let shown = StoreLocation::Database(settings.clone()).to_string();
        let error = try_open(settings).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!format!("{error}{shown}").contains("geheim"), "{error}");
    }
    // A role that may only read is sufficient for searches.
    let viewer = StoreLocation::Database(DatabaseSettings {
        user: "viewer".into(),
        ..good.clone()
    });
    let denied = HistoryReader::open(&viewer).unwrap_err();
    assert!(denied.0.contains("42501"), "{denied}");
    let granted = server.psql(&database, "GRANT USAGE ON SCHEMA hornwork TO viewer; GRANT SELECT ON ALL TABLES IN SCHEMA hornwork TO viewer");
    granted.unwrap();
    let reader = HistoryReader::open(&viewer).unwrap();
    let found = reader.find("a-1").unwrap().unwrap();
    assert_eq!(reader.messages(found.id).unwrap().len(), 4);
    // A newer layout is left alone.
    drop(writer);
    server
        .psql(&database, "UPDATE hornwork.layout SET version = 99")
        .unwrap();
    let newer = try_open(good).unwrap_err().to_string();
    assert!(newer.contains("version 99"), "{newer}");
}

#[test]
fn a_name_server_that_does_not_answer_holds_no_attempt_beyond_its_limit() {
    if std::env::var_os(SILENT_NAME_SERVER).is_some() {
        let _silent = std::net::UdpSocket::bind("127.0.0.1:53").unwrap();
        let begun = Instant::now();
        let location = StoreLocation::Database(DatabaseSettings {
            host: DatabaseHost::Network("db.example.net".into()),
            port: 5432,
            user: "hornwork".into(),
            database: "calls".into(),
            authorities: None,
            password_file: None,
        });
        let error = HistoryReader::open(&location).unwrap_err().to_string();
        assert!(error.contains("no answer within"), "{error}");
        // The look-up takes a minute.
        assert!(begun.elapsed() < Duration::from_secs(30));
        return;
    }
    let may = Command::new("unshare").args(["-mn", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to make namespaces");
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("silent-resolv.conf");
    std::fs::write(
        &file,
        "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n",
    )
    .unwrap();
    let script = "ip link set lo up && mount --bind \"$0\" /etc/resolv.conf && exec \"$1\" --exact \"$2\" --nocapture";
    let output = Command::new("unshare")
        .args(["-mn", "sh", "-c", script])
        .arg(&file)
        .arg(std::env::current_exe().unwrap())
        .arg("database::a_name_server_that_does_not_answer_holds_no_attempt_beyond_its_limit")
        .env(SILENT_NAME_SERVER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
}
