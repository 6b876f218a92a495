//! Conference control over HTTP: real requests at a border with real calls, their responses and effects on the
//! participants, and hostile requests.

use crate::common;
use crate::common::callers;

use border::conferences::worker_of;
use callers::{Caller, eventually};
use common::{Process, free_port, installed, media_ports, root, scratch};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TOKEN: &str = "a-token-of-the-tests-own";

struct Rig {
    sip: u16,
    http: u16,
    token: PathBuf,
    border: Process,
}

fn write_token(path: &Path, token: &str, mode: u32) {
    std::fs::write(path, format!("{token}\n")).expect("token");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
}

fn configuration(sip: u16, control: &str, conference: &str) -> String {
    let (first, last) = media_ports(200);
    format!(
        "[[interface]]\nname = \"loopback\"\nkind = \"access\"\nlisten = [\"udp:127.0.0.1:{sip}\"]\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n\
         [[conference]]\nname = \"meetings\"\nregex = '8\\d\\d'\ntones = \"none\"\ncodecs = [\"PCMA\"]\n{conference}\n{control}\n"
    )
}

impl Rig {
    fn new(name: &str, more: &str, conference: &str) -> Rig {
        let folder = scratch(name);
        let (sip, http) = (free_port(), free_port());
        let token = folder.join("token");
        write_token(&token, TOKEN, 0o600);
        let control = format!("[control]\nlisten = \"http:127.0.0.1:{http}\"\n{more}")
            .replace("TOKEN", &token.display().to_string());
        let border = common::border(&folder, &configuration(sip, &control, conference), sip);
        Rig {
            sip,
            http,
            token,
            border,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.http)).expect("control");
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).expect("timeout");
        stream.set_write_timeout(limit).expect("timeout");
        stream
    }

    /// The response to these octets: status, headers, body.
    fn raw(&self, request: &str) -> (u16, String, String) {
        let mut stream = self.connect();
        // A server that responds before it has read everything may close meanwhile.
        let _ = stream.write_all(request.as_bytes());
        let mut log = Vec::new();
        let _ = stream.read_to_end(&mut log);
        let log = String::from_utf8_lossy(&log).into_owned();
        let status = log.get(9..12).and_then(|status| status.parse().ok());
        let (head, body) = log.split_once("\r\n\r\n").unwrap_or_default();
        (
            status.unwrap_or(0),
            head.to_ascii_lowercase(),
            body.to_owned(),
        )
    }

    /// A request with additional headers.
    fn with(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
        let (status, head, answer) = self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            self.http,
            body.len()
        ));
        assert!(head.contains("content-type: application/json"), "{head}");
        (status, serde_json::from_str(&answer).expect("JSON"))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.with("GET", path, &authorised(), "")
    }

    fn delete(&self, path: &str) -> (u16, Value) {
        self.with("DELETE", path, &authorised(), "")
    }

    fn patch(&self, path: &str, body: &str) -> (u16, Value) {
        let headers = format!("{}Content-Type: application/json\r\n", authorised());
        self.with("PATCH", path, &headers, body)
    }

    /// Identifiers of the participants in the order of joining.
    fn participants(&self, number: &str) -> Vec<u64> {
        let (status, conference) = self.get(&format!("/v1/conferences/meetings/{number}"));
        assert_eq!(status, 200, "{conference}");
        let participants = conference["participants"].as_array();
        participants
            .expect("participants")
            .iter()
            .filter_map(|participant| participant["id"].as_u64())
            .collect()
    }

    fn expect_log(&self, what: &str) {
        eventually(what, || self.border.log().contains(what));
    }
}

fn authorised() -> String {
    format!("Authorization: Bearer {TOKEN}\r\n")
}

fn three(rig: &Rig) -> Vec<Caller> {
    let callers: Vec<Caller> = [440.0, 1_000.0, 1_800.0]
        .into_iter()
        .map(|hz| {
            let caller = Caller::dial(rig.sip, "800", hz);
            assert_eq!(caller.status(), 200, "{}", rig.border.log());
            caller
        })
        .collect();
    for caller in &callers {
        for other in callers.iter().filter(|other| other.hz != caller.hz) {
            caller.wait_for_tone(other.hz, true);
        }
    }
    callers
}

#[test]
fn operator_mutes_removes_locks_and_ends() {
    let rig = Rig::new("control", "token_file = \"TOKEN\"", "");
    assert_eq!(
        rig.get("/v1/conferences"),
        (200, serde_json::json!({"conferences": []}))
    );
    let callers = three(&rig);
    let (_, list) = rig.get("/v1/conferences");
    let conference = &list["conferences"][0];
    assert_eq!(
        (
            &conference["conference"],
            &conference["number"],
            &conference["participant_count"],
            &conference["locked"]
        ),
        (&"meetings".into(), &"800".into(), &3.into(), &false.into()),
    );
    let ids = rig.participants("800");
    assert_eq!(ids.len(), 3);
    let path = |id: u64| format!("/v1/conferences/meetings/800/participants/{id}");
    let (status, first) = rig.get(&path(ids[0]));
    assert_eq!(status, 200);
    assert!(
        first["from"]
            .as_str()
            .is_some_and(|from| from.starts_with("sip:caller"))
    );
    assert!(
        first["call_id"]
            .as_str()
            .is_some_and(|id| id.starts_with("call"))
    );
    assert_eq!(
        (&first["codec"], &first["packet_ms"]),
        (&"PCMA".into(), &20.into())
    );
    assert!(
        first["received"].as_u64() > Some(10) && first["sent"].as_u64() > Some(10),
        "{first}"
    );
    assert_eq!(
        (&first["muted"], &first["muted_by"]),
        (&false.into(), &Value::Null)
    );
    assert!(
        first["jitter_ms"].is_number() && first["lost"].is_number(),
        "{first}"
    );
    let since = first["since"].as_str().expect("a time");
    assert!(since.starts_with("20") && since.ends_with('Z'), "{since}");

    // Muted: the others do not receive this participant any more, but each other.
    let (status, muted) = rig.patch(&path(ids[0]), "{\"muted\": true}");
    assert_eq!(
        (status, &muted["muted"], &muted["muted_by"]),
        (200, &true.into(), &"control".into())
    );
    callers[1].wait_for_tone(callers[0].hz, false);
    callers[2].wait_for_tone(callers[0].hz, false);
    callers[1].wait_for_tone(callers[2].hz, true);
    let (status, heard) = rig.patch(&path(ids[0]), "{\"muted\": false}");
    assert_eq!((status, &heard["muted"]), (200, &false.into()));
    callers[1].wait_for_tone(callers[0].hz, true);

    // Locked: no call can join until it is unlocked.
    let (status, locked) = rig.patch("/v1/conferences/meetings/800", "{\"locked\": true}");
    assert_eq!((status, &locked["locked"]), (200, &true.into()));
    assert_eq!(Caller::dial(rig.sip, "800", 700.0).status(), 403);
    assert_eq!(
        rig.patch("/v1/conferences/meetings/800", "{\"locked\": false}")
            .0,
        200
    );

    // Removed: only this participant gets BYE.
    assert_eq!(
        rig.delete(&path(ids[0])),
        (200, serde_json::json!({"ended": 1}))
    );
    eventually("BYE", || callers[0].ended());
    assert_eq!(rig.get(&path(ids[0])).0, 404);
    assert_eq!(rig.participants("800"), ids[1..]);
    callers[1].wait_for_tone(callers[2].hz, true);
    assert!(!callers[1].ended() && !callers[2].ended());

    // Ended: all get BYE.
    assert_eq!(
        rig.delete("/v1/conferences/meetings/800"),
        (200, serde_json::json!({"ended": 2}))
    );
    eventually("BYE", || callers[1].ended() && callers[2].ended());
    assert_eq!(rig.get("/v1/conferences/meetings/800").0, 404);
    for log in [
        "control_command source=127.0.0.1",
        "request=\"PATCH /v1/conferences/meetings/800/participants/",
        "value=\"muted=true\" status=200",
        "value=\"locked=true\" status=200",
        "request=\"DELETE /v1/conferences/meetings/800\" value=\"\" status=200",
        "requested_by=control",
        "removed by control",
    ] {
        rig.expect_log(log);
    }
}

/// The former path has the former keys, for one release; the log has one warning about it.
#[test]
fn former_path_is_accepted_with_one_warning() {
    let rig = Rig::new("control-former", "token_file = \"TOKEN\"", "");
    let caller = Caller::dial(rig.sip, "800", 440.0);
    assert_eq!(caller.status(), 200, "{}", rig.border.log());
    let warning = "/v1/rooms is now /v1/conferences";
    eventually("the conference", || {
        rig.get("/v1/conferences/meetings/800").0 == 200
    });
    assert!(!rig.border.log().contains(warning));
    // Without a token nothing is served, and nothing is logged about the path.
    assert_eq!(rig.with("GET", "/v1/rooms", "", "").0, 401);
    assert!(!rig.border.log().contains(warning));
    let (status, list) = rig.get("/v1/rooms");
    assert_eq!(
        (status, &list["rooms"][0]["room"]),
        (200, &"meetings".into()),
        "{list}"
    );
    assert_eq!(list["rooms"][0]["waiting"], 0);
    let path = "/v1/rooms/meetings/800";
    let (status, locked) = rig.patch(path, "{\"locked\": true}");
    assert_eq!((status, &locked["locked"]), (200, &true.into()));
    let (_, shown) = rig.get("/v1/conferences/meetings/800");
    assert_eq!(
        (&shown["conference"], &shown["locked"]),
        (&"meetings".into(), &true.into())
    );
    let participant = format!("{path}/participants/{}", rig.participants("800")[0]);
    let (status, shown) = rig.get(&participant);
    assert_eq!((status, &shown["waiting"]), (200, &false.into()));
    // Errors are those of the current path.
    let (status, error) = rig.get("/v1/rooms/other/800");
    assert_eq!(
        (status, &error["error"]),
        (404, &"no such conference".into())
    );
    assert_eq!(rig.with("POST", path, &authorised(), "").0, 405);
    assert_eq!(rig.delete(path), (200, serde_json::json!({"ended": 1})));
    eventually("BYE", || caller.ended());
    rig.expect_log(warning);
    assert_eq!(rig.border.log().matches(warning).count(), 1);
}

/// Wrong tokens are limited per source; a source that has presented the right one is never locked out.
#[test]
fn wrong_tokens_are_rate_limited() {
    let settings = "token_file = \"TOKEN\"\ntoken_failures = 5\ntoken_failure_delay_s = 3600";
    for knows in [false, true] {
        let rig = Rig::new(&format!("control-guess-{knows}"), settings, "");
        let own = format!("Host: 127.0.0.1:{}\r\n", rig.http);
        let ask = |token: &str| {
            let (status, head, _) = rig.raw(&format!(
                "GET /v1/conferences HTTP/1.1\r\n{own}Authorization: Bearer {token}\r\n\r\n"
            ));
            (status, head)
        };
        if knows {
            assert_eq!(ask(TOKEN).0, 200);
        }
        let statuses: Vec<u16> = (0..20)
            .map(|number| ask(&format!("{TOKEN}{number}")).0)
            .collect();
        let judged = statuses.iter().filter(|status| **status == 401).count();
        let (last, head) = ask(TOKEN);
        match knows {
            true => assert_eq!((judged, last), (20, 200), "{statuses:?}"),
            false => {
                assert_eq!((judged, last), (5, 429), "{statuses:?}");
                assert!(head.contains("retry-after: 3"), "{head}");
            }
        }
        rig.expect_log("control_refused");
    }
}

#[test]
fn hostile_requests_are_refused_while_calls_go_on() {
    let rig = Rig::new(
        "control-hostile",
        "token_file = \"TOKEN\"\nconnections = 8",
        "",
    );
    let callers = three(&rig);
    let list = "/v1/conferences";
    let own = format!("Host: 127.0.0.1:{}\r\n", rig.http);
    let good = authorised();
    let asked = |headers: &str| rig.raw(&format!("GET {list} HTTP/1.1\r\n{headers}\r\n")).0;
    assert_eq!(asked(&format!("{own}{good}")), 200);
    // Authorization.
    let (status, head, body) = rig.raw(&format!("GET {list} HTTP/1.1\r\n{own}\r\n"));
    assert_eq!(
        (status, body.as_str()),
        (401, "{\"error\":\"no token in Authorization\"}\n")
    );
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    for (headers, status) in [
        (format!("{own}Authorization: Bearer {TOKEN}x\r\n"), 401),
        (format!("{own}Authorization: Basic {TOKEN}\r\n"), 401),
        (format!("Host: evil.example\r\n{good}"), 403),
        (format!("{own}Origin: http://evil.example\r\n{good}"), 403),
        (format!("{own}Origin: null\r\n{good}"), 403),
        (format!("{own}Sec-Fetch-Site: cross-site\r\n{good}"), 403),
        (good.clone(), 400),
    ] {
        assert_eq!(asked(&headers), status, "{headers}");
    }
    // Requests.
    let id = rig.participants("800")[0];
    let participant = format!("/v1/conferences/meetings/800/participants/{id}");
    let conference = "/v1/conferences/meetings/800";
    for (path, body, status) in [
        (participant.as_str(), "{\"muted\": true", 400),
        (&participant, "", 400),
        (&participant, "{}", 400),
        (&participant, "{\"muted\": 1}", 400),
        (&participant, "{\"muted\": true, \"x\": 1}", 400),
        (&participant, "{\"locked\": true}", 400),
        (&participant, "\u{feff}{\"muted\": true}", 400),
        (conference, "{\"muted\": true}", 400),
        (conference, &"x".repeat(9_000), 413),
        ("/v1/conferences/meetings/801", "{\"locked\": true}", 404),
        ("/v1/conferences/other/800", "{\"locked\": true}", 404),
        (
            "/v1/conferences/meetings/800/participants/99999",
            "{\"muted\": true}",
            404,
        ),
        (
            "/v1/conferences/meetings/800/participants/x",
            "{\"muted\": true}",
            404,
        ),
        (
            "/v1/conferences/meetings/%38%30%30/participants/-1",
            "{\"muted\": true}",
            404,
        ),
        (list, "{\"locked\": true}", 405),
    ] {
        let (got, answer) = rig.patch(path, body);
        assert_eq!(got, status, "{path} {body}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    assert_eq!(rig.get("/").0, 404);
    assert_eq!(rig.get("/v1/conferences/meetings/%ff").0, 404);
    assert_eq!(rig.with("POST", conference, &good, "").0, 405);
    let (_, head, _) = rig.raw(&format!("DELETE {list} HTTP/1.1\r\n{own}{good}\r\n"));
    assert!(head.contains("allow: get"), "{head}");
    let text = format!("{good}Content-Type: text/plain\r\n");
    assert_eq!(
        rig.with("PATCH", conference, &text, "{\"locked\": true}").0,
        415
    );
    // A chunked body has no announced length.
    let pieces = format!(
        "PATCH {conference} HTTP/1.1\r\n{own}{good}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2328\r\n{}\r\n0\r\n\r\n",
        "x".repeat(9_000)
    );
    assert_eq!(rig.raw(&pieces).0, 413);
    // Invalid and oversized request heads.
    assert_eq!(rig.raw("\u{1}\u{2}\r\n\r\n").0, 400);
    let many = "a: b\r\n".repeat(1_000);
    assert_eq!(
        rig.raw(&format!("GET {list} HTTP/1.1\r\n{own}{good}{many}\r\n"))
            .0,
        431
    );
    let long = "x".repeat(100_000);
    assert_eq!(
        rig.raw(&format!("GET {list} HTTP/1.1\r\n{own}X: {long}\r\n\r\n"))
            .0,
        431
    );
    // None of these requests had an effect.
    let (_, shown) = rig.get(&participant);
    assert_eq!(shown["muted"], false);

    // Connections: more than the limit, silent or sending bit by bit.
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..100).map(|_| rig.connect()).collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"GET /v1/conferences HTTP/1.1\r\nX: ");
    }
    let before: Vec<u64> = callers.iter().map(Caller::packets).collect();
    let mut refused = 0;
    for mut stream in slow {
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("timeout");
        let mut log = Vec::new();
        while begun.elapsed() < Duration::from_secs(120) {
            // Further octets do not extend the timeout.
            let _ = stream.write_all(b"x");
            let mut part = [0; 1024];
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => log.extend_from_slice(&part[..length]),
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {}
                    _ => break,
                },
            }
        }
        refused += usize::from(log.starts_with(b"HTTP/1.1 503"));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(100),
        "slow clients were not cut off"
    );
    // A refused connection may be reset before its response is read, so not all of the 92 are counted.
    assert!(refused > 0, "no connection was too many");
    // Calls went on meanwhile, and valid requests are served again.
    for (caller, before) in callers.iter().zip(before) {
        eventually("packets", || caller.packets() > before + 50);
        assert!(!caller.ended());
    }
    callers[0].wait_for_tone(callers[1].hz, true);
    eventually("an answer", || asked(&format!("{own}{good}")) == 200);
    rig.expect_log("control_refused source=127.0.0.1");
    assert!(!rig.border.log().contains(TOKEN), "the token is in the log");
}

#[test]
fn token_is_reloaded_and_must_be_private() {
    let rig = Rig::new("control-token", "token_file = \"TOKEN\"", "");
    assert_eq!(rig.get("/v1/conferences").0, 200);
    write_token(&rig.token, "another-token-of-the-tests", 0o600);
    rig.border.signal("HUP");
    eventually("the new token", || rig.get("/v1/conferences").0 == 401);
    let new = "Authorization: Bearer another-token-of-the-tests\r\n";
    assert_eq!(rig.with("GET", "/v1/conferences", new, "").0, 200);
    // A file readable by others changes nothing, and is reported with its line.
    write_token(&rig.token, TOKEN, 0o644);
    rig.border.signal("HUP");
    rig.expect_log("configuration_refused");
    assert_eq!(rig.with("GET", "/v1/conferences", new, "").0, 200);
    let file = rig.token.with_file_name("hornwork.toml");
    let check = || {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["check", "-c"])
            .arg(&file)
            .output()
            .expect("the program");
        let log = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&log).into_owned(),
        )
    };
    let (code, log) = check();
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("by others than its owner") && log.contains("chmod 600"),
        "{log}"
    );
    assert!(log.contains("token_file = "), "{log}");
    write_token(&rig.token, TOKEN, 0o600);
    let (code, log) = check();
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains(&format!(
            "control: http:127.0.0.1:{}, with a token",
            rig.http
        )),
        "{log}"
    );
}

/// If the port is in use, the border reports it and does not run.
#[test]
fn port_in_use_is_reported() {
    let folder = scratch("control-taken");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("address").port();
    let control = format!("[control]\nlisten = \"http:127.0.0.1:{port}\"");
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, configuration(free_port(), &control, "")).expect("file");
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["run", "-c"])
        .arg(&file)
        .output()
        .expect("the program");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{log}");
    assert!(
        log.contains("cannot listen on 127.0.0.1") && log.contains("[control]"),
        "{log}"
    );
}

#[test]
fn pin_is_entered_over_sockets() {
    let rig = Rig::new("control-pin", "", "pin = \"2468\"");
    let callers: Vec<Caller> = [440.0, 1_000.0]
        .into_iter()
        .map(|hz| Caller::dial(rig.sip, "800", hz))
        .collect();
    let dial = |caller: &Caller, digits: &str| {
        for digit in digits.chars() {
            caller.press(digit);
        }
    };
    for caller in &callers {
        assert_eq!(caller.status(), 200);
    }
    let waiting = |count: u64| {
        let (_, list) = rig.with("GET", "/v1/conferences", "", "");
        list["conferences"][0]["lobby_count"] == count
    };
    eventually("both wait", || waiting(2));
    callers[0].wait_for_tone(callers[1].hz, false);
    dial(&callers[0], "2468");
    eventually("one waits", || waiting(1));
    dial(&callers[1], "1#2468");
    eventually("the lobby is empty", || waiting(0));
    callers[0].wait_for_tone(callers[1].hz, true);
    callers[1].wait_for_tone(callers[0].hz, true);
    let third = Caller::dial(rig.sip, "800", 1_800.0);
    assert_eq!(third.status(), 200);
    eventually("the third waits", || waiting(1));
    dial(&third, "111122223333");
    eventually("BYE", || third.ended());
    assert!(callers.iter().all(|caller| !caller.ended()));
    rig.expect_log("outcome=wrong wrong_pins=3");
}

/// Extension of a conference that this one of two workers owns.
fn number_at(worker: u8) -> String {
    let mut numbers = (800..900).map(|number: u16| number.to_string());
    let found = numbers.find(|number| worker_of(number, 2) == worker);
    found.expect("a number")
}

/// Each conference belongs to one worker, regardless of the sockets that receive its callers' datagrams; control
/// reaches all.
#[test]
fn conferences_of_two_workers_are_controlled_at_one_address() {
    let rig = Rig::new(
        "control-workers",
        "token_file = \"TOKEN\"\n[sip]\nworkers = 2",
        "",
    );
    let numbers = [0, 1].map(number_at);
    let tones = [[440.0, 1_000.0], [1_300.0, 1_900.0]];
    let conferences: Vec<Vec<Caller>> = numbers
        .iter()
        .zip(tones)
        .map(|(number, tones)| {
            // One after the other, since they are listed in the order of joining.
            tones
                .into_iter()
                .map(|hz| {
                    let caller = Caller::dial(rig.sip, number, hz);
                    assert_eq!(caller.status(), 200);
                    caller
                })
                .collect()
        })
        .collect();
    for callers in &conferences {
        callers[0].wait_for_tone(callers[1].hz, true);
        callers[1].wait_for_tone(callers[0].hz, true);
    }
    let listed = || {
        let (status, list) = rig.get("/v1/conferences");
        assert_eq!(status, 200);
        let conferences = list["conferences"].as_array().expect("conferences");
        conferences
            .iter()
            .map(|conference| {
                let number = conference["number"].as_str().unwrap_or_default().to_owned();
                (
                    number,
                    conference["participant_count"].as_u64().unwrap_or_default(),
                )
            })
            .collect::<Vec<_>>()
    };
    let mut all: Vec<(String, u64)> = numbers.iter().map(|number| (number.clone(), 2)).collect();
    all.sort();
    assert_eq!(listed(), all);
    // Both workers apply a new configuration, and no participant is removed.
    rig.border.signal("HUP");
    rig.expect_log("configuration_reloaded");
    for (worker, (number, callers)) in numbers.iter().zip(&conferences).enumerate() {
        let ids = rig.participants(number);
        assert_eq!(ids.len(), 2);
        // The numbers of calls identify their workers.
        assert!(
            ids.iter().all(|id| (id - 1) % 2 == worker as u64),
            "{worker}: {ids:?}"
        );
        let conference = format!("/v1/conferences/meetings/{number}");
        let participant = format!("{conference}/participants/{}", ids[0]);
        let (status, muted) = rig.patch(&participant, "{\"muted\": true}");
        assert_eq!((status, &muted["muted_by"]), (200, &"control".into()));
        // Muted: nothing is received from this participant, nor from the other conference.
        callers[1].wait_for_tone(callers[0].hz, false);
        for stranger in &conferences[1 - worker] {
            callers[1].wait_for_tone(stranger.hz, false);
        }
        assert_eq!(rig.patch(&participant, "{\"muted\": false}").0, 200);
        callers[1].wait_for_tone(callers[0].hz, true);
        let (status, locked) = rig.patch(&conference, "{\"locked\": true}");
        assert_eq!((status, &locked["locked"]), (200, &true.into()));
        for _ in 0..4 {
            assert_eq!(Caller::dial(rig.sip, number, 2_200.0).status(), 403);
        }
        let other = &numbers[1 - worker];
        let elsewhere = format!("/v1/conferences/meetings/{other}/participants/{}", ids[0]);
        assert_eq!(rig.get(&elsewhere).0, 404);
        assert_eq!(
            rig.delete(&participant),
            (200, serde_json::json!({"ended": 1}))
        );
        eventually("BYE", || callers[0].ended());
        assert!(!callers[1].ended());
    }
    for (number, callers) in numbers.iter().zip(&conferences) {
        let conference = format!("/v1/conferences/meetings/{number}");
        assert_eq!(
            rig.delete(&conference),
            (200, serde_json::json!({"ended": 1}))
        );
        eventually("BYE", || callers.iter().all(Caller::ended));
        assert_eq!(rig.get(&conference).0, 404);
    }
    assert_eq!(listed(), []);
}

/// A connection from an address of this machine's loopback network.
fn from_address(source: [u8; 4], port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let own = SocketAddrV4::new(Ipv4Addr::from(source), 0);
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&fd, &own).expect("an address");
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    connect(&fd, &server).expect("control");
    let stream = TcpStream::from(fd);
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("timeout");
    stream
}

#[test]
fn one_client_cannot_use_all_connections() {
    let rig = Rig::new(
        "control-sources",
        "connections = 6\nconnections_per_source = 3",
        "",
    );
    let asked = |source: [u8; 4]| {
        let mut stream = from_address(source, rig.http);
        let request = format!(
            "GET /v1/conferences HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
            rig.http
        );
        let _ = stream.write_all(request.as_bytes());
        let mut log = String::new();
        let _ = stream.read_to_string(&mut log);
        log.get(9..12).unwrap_or_default().to_owned()
    };
    // They keep their connections for five seconds; on a stalled machine they may be closed before the check.
    eventually("places that are taken", || {
        let held: Vec<TcpStream> = (0..10)
            .map(|_| {
                let mut stream = from_address([127, 0, 0, 1], rig.http);
                let _ = stream.write_all(b"GET /v1/conferences HTTP/1.1\r\nX: ");
                stream
            })
            .collect();
        let (same, other) = (asked([127, 0, 0, 1]), asked([127, 0, 0, 2]));
        assert_eq!(other, "200", "ten of one client leave a place");
        drop(held);
        same == "503"
    });
    rig.expect_log("too many connections of one source");
    eventually("places again", || asked([127, 0, 0, 1]) == "200");
}

/// The examples of docs/control.md, unchanged except for port, token and participant.
#[test]
fn examples_of_the_documentation_work() {
    if !installed(&["curl"]) {
        return;
    }
    let rig = Rig::new("control-docs", "token_file = \"TOKEN\"", "");
    let _callers = three(&rig);
    let page = std::fs::read_to_string(root().join("docs/control.md")).expect("docs/control.md");
    let id = rig.participants("800")[1];
    let mut shown = 0;
    for line in page.lines().filter(|line| line.starts_with("curl ")) {
        let line = line
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", rig.http))
            .replace(
                "/etc/hornwork/control.token",
                &rig.token.display().to_string(),
            )
            .replace("participants/7", &format!("participants/{id}"));
        let output = Command::new("sh").args(["-c", &line]).output().expect("sh");
        let log = String::from_utf8_lossy(&output.stdout).into_owned();
        let value: Value = serde_json::from_str(&log).unwrap_or_else(|error| {
            let error = format!("{error}: {}", String::from_utf8_lossy(&output.stderr));
            panic!("{line}: {log}: {error}")
        });
        assert!(
            output.status.success() && value.get("error").is_none(),
            "{line}: {log}"
        );
        shown += 1;
    }
    assert!(shown >= 8, "{shown} examples");
}
