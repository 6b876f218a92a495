//! The HTTP side of the console, at a border with real calls: search, call pages, live state, operator commands, roles,
//! sessions, TLS, and hostile clients.

use crate::common;
use crate::common::certificates::Authority;

use common::{Process, example, installed, media_ports, scratch};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const TOKENS: [(&str, &str); 3] = [
    ("viewer", "token-of-the-viewer"),
    ("operator", "token-of-the-operator"),
    ("admin", "token-of-the-admin"),
];
const PASSWORD: &str = "correct horse battery";

/// A border with store and console.
pub(crate) struct Rig {
    pub(crate) folder: PathBuf,
    pub(crate) sip: u16,
    pub(crate) trunk: u16,
    pub(crate) http: u16,
    pub(crate) border: Process,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Lower-case head.
    head: String,
    /// The head as it is.
    pub(crate) raw_head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// The body of a response without its chunks' sizes.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || body.len() < end + 2 + size {
            break;
        }
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = body.get(end + 2 + size + 2..).unwrap_or_default();
    }
    out
}

fn parsed(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = bytes.split_at(end.map_or(bytes.len(), |end| end + 4));
    let raw_head = String::from_utf8_lossy(head).into_owned();
    let head = raw_head.to_ascii_lowercase();
    let body = match head.contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_vec(),
    };
    Answer {
        status: head
            .get(9..12)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0),
        head,
        raw_head,
        body,
    }
}

/// The hash that `hornwork console hash-password` prints.
fn password_hash(password: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["console", "hash-password"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("hornwork console");
    let mut input = child.stdin.take().expect("input");
    input
        .write_all(format!("{password}\n").as_bytes())
        .expect("written");
    drop(input);
    let output = child.wait_with_output().expect("output");
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// Users of all roles, each with a token; the viewer and the operator also with a password.
pub(crate) fn users() -> String {
    use sha2::Digest as _;
    let hash = password_hash(PASSWORD);
    let mut text = "redact_numbers = true\n".to_owned();
    for (role, token) in TOKENS {
        let digest: [u8; 32] = sha2::Sha256::digest(token).into();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!(
            "[[console.user]]\nname = \"{role}\"\nrole = \"{role}\"\ntoken_hash = \"{hex}\"\n"
        ));
        if role != "admin" {
            text.push_str(&format!("password_hash = \"{hash}\"\n"));
        }
    }
    text
}

impl Rig {
    /// `more` are further keys of `[console]`; FOLDER stands for the folder of the test.
    pub(crate) fn new(name: &str, more: &str) -> Rig {
        let folder = scratch(name);
        let (sip, trunk, http) = (
            common::free_port(),
            common::free_port(),
            common::free_port(),
        );
        let shown = folder.display().to_string();
        let more = more.replace("FOLDER", &shown);
        let tables = format!(
            "[store]\nfolder = \"{shown}/store\"\n[control]\nsocket = \"{shown}/control.sock\"\n[console]\nlisten = \"127.0.0.1:{http}\"\naudit = \"{shown}/audit.ndjson\"\n{more}\n"
        );
        let text = example("loopback.toml", sip, trunk, media_ports(400), &tables);
        let border = common::border(&folder, &text, sip);
        Rig {
            folder,
            sip,
            trunk,
            http,
            border,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.http)).expect("console");
        let limit = Some(Duration::from_secs(40));
        stream.set_read_timeout(limit).expect("timeout");
        stream.set_write_timeout(limit).expect("timeout");
        stream
    }

    /// The response to these octets.
    fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that responds before it has read everything may close meanwhile.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        parsed(&bytes)
    }

    /// A request with additional headers.
    pub(crate) fn with(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let kind = match body {
            "" => "",
            _ => "Content-Type: application/json\r\n",
        };
        self.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{kind}{headers}Content-Length: {}\r\n\r\n{body}",
                self.http,
                body.len()
            )
            .as_bytes(),
        )
    }

    /// A request of the API with the token of a role.
    pub(crate) fn of(&self, role: &str, method: &str, path: &str, body: &str) -> Answer {
        let token = TOKENS.iter().find(|(name, _)| *name == role).expect("role");
        let header = format!("Authorization: Bearer {}\r\n", token.1);
        self.with(method, &format!("/api/v1{path}"), &header, body)
    }

    /// A request of the API without login.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.with("GET", &format!("/api/v1{path}"), "", "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// A request that changes something, without login.
    fn change(&self, method: &str, path: &str, body: &str) -> Answer {
        let csrf = self.get("/session")["csrf"]
            .as_str()
            .expect("csrf")
            .to_owned();
        let header = format!("X-CSRF-Token: {csrf}\r\n");
        self.with(method, &format!("/api/v1{path}"), &header, body)
    }

    fn sipp(&self, name: &str, port: u16, arguments: &[&str]) -> Process {
        let port = port.to_string();
        Process::start(
            Command::new("sipp")
                .current_dir(&self.folder)
                .args(["-i", "127.0.0.1", "-p", &port, "-nostdin"])
                .args(arguments)
                .stdin(Stdio::null()),
            &self.folder.join(format!("{name}.log")),
        )
    }

    pub(crate) fn callee(&self) -> Process {
        self.sipp("uas", self.trunk, &["-sn", "uas"])
            .at_port(self.trunk)
    }

    /// Calls of SIPp to 4930600, each of this many milliseconds.
    pub(crate) fn calls(&self, count: u32, ms: u32) -> Process {
        let target = format!("127.0.0.1:{}", self.sip);
        let (count, ms) = (count.to_string(), ms.to_string());
        let arguments = [
            "-sn", "uac", &target, "-s", "4930600", "-r", "20", "-m", &count, "-d", &ms,
        ];
        self.sipp("uac", self.sip + 1, &arguments)
    }
}

pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn entries(value: &Value, key: &str) -> Vec<Value> {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no {key} in {value}"))
        .clone()
}

#[test]
fn refused_calls_are_explained() {
    let rig = Rig::new("web-refused", "");
    let out = rig.change("PUT", "/trunks/server", "{\"enabled\":false}");
    assert_eq!(out.status, 200);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let _ = socket.set_read_timeout(Some(Duration::from_secs(10)));
    let local = socket.local_addr().expect("address");
    let sip = rig.sip;
    let invite = format!(
        "INVITE sip:4930600@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKrefused\r\nMax-Forwards: 70\r\n\
         From: <sip:100@{local}>;tag=1\r\nTo: <sip:4930600@127.0.0.1:{sip}>\r\nCall-ID: refused-1\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:100@{local}>\r\nContent-Length: 0\r\n\r\n"
    );
    let target = ("127.0.0.1", sip);
    socket.send_to(invite.as_bytes(), target).expect("sent");
    let mut answer = [0; 4_096];
    loop {
        let length = socket.recv(&mut answer).expect("an answer");
        if answer[..length].starts_with(b"SIP/2.0 503") {
            break;
        }
    }
    let page = until("the call is in the store", || {
        let found = rig.get("/calls?call_id=refused-1");
        let call = entries(&found, "calls").first().cloned()?;
        (call["ended_by"] == "border").then(|| rig.get("/calls/refused-1"))
    });
    assert_eq!(page["call"]["reason"], "all trunks are out of service");
    let decision = entries(&page, "decision");
    let steps: Vec<(&str, &str)> = decision
        .iter()
        .filter_map(|step| Some((step["what"].as_str()?, step["detail"].as_str()?)))
        .collect();
    assert_eq!(
        steps[1..],
        [
            (
                "trunk_skipped",
                "route 1 skipped trunk server: out of service"
            ),
            (
                "refused",
                "route 1 refused the call: 503 all trunks are out of service"
            ),
        ],
        "{page}"
    );
    assert_eq!(steps[0].0, "received");
}

#[test]
fn calls_are_found_shown_explained_and_exported() {
    if !installed(&["sipp"]) {
        return;
    }
    let rig = Rig::new("web-history", "");
    let _uas = rig.callee();
    let mut uac = rig.calls(12, 300);
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uac.log()
    );
    let found = until("all calls are in the store", || {
        let page = rig.get("/calls?number=4930600&outcome=answered&limit=1000");
        // Its last message may follow in another transaction.
        let over = |call: &&Value| call["state"] == "ended" && call["messages"].as_u64() > Some(12);
        (entries(&page, "calls").iter().filter(over).count() == 12).then_some(page)
    });
    assert_eq!(
        (&found["next"], &found["incomplete"]),
        (&Value::Null, &json!(false))
    );
    // The same as the command line finds.
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["trace", "--number", "4930600", "--json", "--store"])
        .arg(rig.folder.join("store"))
        .output()
        .expect("hornwork trace");
    let traced: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(traced, found["calls"]);
    // Pages.
    let mut cursor = String::new();
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let page = rig.get(&format!("/calls?number=4930*&limit=5{cursor}"));
        for call in entries(&page, "calls") {
            assert!(ids.insert(call["id"].as_str().expect("id").to_owned()));
        }
        cursor = match page["next"].as_str() {
            Some(next) => format!("&cursor={next}"),
            None => break,
        };
    }
    assert_eq!(ids.len(), 12);
    for (query, count) in [
        ("address=127.0.0.1&limit=1000", 12),
        ("trunk=server", 12),
        ("number=77", 0),
        ("outcome=failed", 0),
        ("text=AVP", 12),
        ("min_duration=3600", 0),
        // SQL is a value.
        ("number=x'%20OR%201=1;--", 0),
        ("words=%22%20OR%20x:*", 0),
    ] {
        let page = rig.get(&format!("/calls?{query}"));
        assert_eq!(entries(&page, "calls").len(), count, "{query}");
    }
    // The page of a call, also by the Call-ID of the callee's leg.
    let call = &found["calls"][0];
    let id = call["id"].as_str().expect("id");
    let page = rig.get(&format!("/calls/{id}"));
    let other_leg = call["call_ids"][1].as_str().expect("a second leg");
    assert_eq!(
        rig.get(&format!("/calls/{other_leg}"))["call"],
        page["call"]
    );
    let messages = entries(&page, "messages");
    assert_eq!(
        messages.len() as u64,
        call["messages"].as_u64().expect("count")
    );
    let invite = |leg: u64| {
        messages
            .iter()
            .find(|message| message["method"] == "INVITE" && message["leg"] == leg)
            .unwrap_or_else(|| panic!("no INVITE of leg {leg} in {page}"))
    };
    let (first, second) = (invite(0), invite(1));
    assert_eq!(
        (&first["direction"], &second["direction"]),
        (&json!("in"), &json!("out"))
    );
    assert_eq!(first["has_sdp"], true);
    assert!(
        first["summary"]
            .as_str()
            .is_some_and(|text| text.starts_with("INVITE sip:4930600@"))
    );
    let steps: Vec<String> = entries(&page, "decision")
        .iter()
        .map(|step| step["what"].as_str().expect("what").to_owned())
        .collect();
    for step in ["received", "routed", "sent", "answered", "ended"] {
        assert!(steps.iter().any(|known| known == step), "{step}: {steps:?}");
    }
    // A message with the edits of the border.
    let shown = rig.get(&format!("/calls/{id}/messages/{}", second["index"]));
    let raw = shown["raw"].as_str().expect("text");
    assert!(
        raw.starts_with("INVITE sip:") && raw.contains("m=audio"),
        "{raw}"
    );
    assert_eq!(shown["counterpart"], first["index"]);
    let lines: Vec<&str> = raw.lines().collect();
    let edits = entries(&shown, "edits");
    for name in ["Via", "Call-ID", "Contact", "m=audio"] {
        let edit = edits.iter().find(|edit| {
            edit["after"]
                .as_str()
                .is_some_and(|after| after.starts_with(name))
        });
        let edit = edit.unwrap_or_else(|| panic!("no edit of {name}: {edits:?}"));
        let line = edit["line"].as_u64().expect("line") as usize;
        assert_eq!(edit["after"].as_str(), lines.get(line - 1).copied());
        assert_ne!(edit["before"], edit["after"]);
    }
    // Exports.
    let capture = rig.with("GET", &format!("/api/v1/calls/{id}/pcap"), "", "");
    assert_eq!(capture.status, 200);
    assert!(capture.body.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    assert!(
        capture
            .header("content-disposition")
            .is_some_and(|value| value.contains(".pcapng"))
    );
    if installed(&["tshark"]) {
        let file = rig.folder.join("call.pcapng");
        std::fs::write(&file, &capture.body).expect("file");
        let output = Command::new("tshark")
            .arg("-r")
            .arg(&file)
            .args(["-Y", "sip", "-T", "fields", "-e", "frame.number"])
            .output()
            .expect("tshark");
        assert_eq!(
            output.stdout.split(|b| *b == b'\n').count() - 1,
            messages.len()
        );
    }
    let text = rig.with("GET", &format!("/api/v1/calls/{id}/text"), "", "");
    let text = String::from_utf8_lossy(&text.body).into_owned();
    assert!(
        text.contains("INVITE (SDP)") && text.contains("m=audio"),
        "{text}"
    );
    for (path, status) in [
        ("/calls/none", 404),
        (&format!("/calls/{id}/messages/999"), 404),
        (&format!("/calls/{id}/messages/x"), 404),
        ("/calls?limit=0", 400),
        ("/calls?limit=1&limit=2", 400),
        ("/calls?cursor=x", 400),
        ("/calls?nonsense=1", 400),
        ("/calls?from=yesterday", 400),
        ("/overview?seconds=1", 400),
    ] {
        let answer = rig.with("GET", &format!("/api/v1{path}"), "", "");
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.json()["error"].is_string() && answer.json()["code"].is_string());
    }
}

#[test]
fn operators_see_and_change_the_border() {
    if !installed(&["sipp"]) {
        return;
    }
    let rig = Rig::new("web-live", "");
    let _uas = rig.callee();
    assert_eq!(rig.get("/session")["role"], "operator");
    assert_eq!(rig.get("/session")["login"], false);
    // A stream gets the changes of a call.
    let mut stream = rig.connect();
    let request = format!(
        "GET /api/v1/live/stream HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        rig.http
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut events = String::new();
    let mut buffer = [0; 4_096];
    let mut read_until = |text: &str| {
        until(text, || {
            let count = stream.read(&mut buffer).unwrap_or(0);
            events.push_str(&String::from_utf8_lossy(&buffer[..count]));
            events.contains(text).then_some(())
        });
    };
    read_until("event: overview");
    let _uac = rig.calls(4, 60_000);
    read_until("\"state\":\"answered\"");
    let live = until("four calls", || {
        let live = rig.get("/live/calls");
        let answered = |call: &&Value| call["state"] == "answered";
        let calls = entries(&live, "calls");
        (calls.iter().filter(answered).count() == 4).then_some(live)
    });
    assert_eq!((&live["total"], &live["next"]), (&json!(4), &Value::Null));
    assert_eq!(live["calls"][0]["trunk"], "server");
    let first = rig.get("/live/calls?limit=3");
    assert_eq!(entries(&first, "calls").len(), 3);
    let next = first["next"].as_str().expect("a cursor");
    let rest = rig.get(&format!("/live/calls?limit=3&cursor={next}"));
    assert_eq!(entries(&rest, "calls").len(), 1);
    assert_eq!(rest["calls"][0]["id"], live["calls"][3]["id"]);
    let overview = until("a point with calls", || {
        let overview = rig.get("/overview?seconds=60");
        (overview["now"]["calls_active"] == 4).then_some(overview)
    });
    let points = entries(&overview["series"], "at").len();
    assert!(points > 0 && points == entries(&overview["series"], "mos").len());
    assert!(overview["now"]["memory_mib"].as_f64() > Some(1.0));
    // Without CSRF token nothing changes.
    let id = live["calls"][0]["id"].as_str().expect("id");
    let path = format!("/live/calls/{id}");
    let forged = rig.with("DELETE", &format!("/api/v1{path}"), "", "");
    assert_eq!(
        (forged.status, &forged.json()["code"]),
        (403, &json!("csrf"))
    );
    assert_eq!(rig.change("DELETE", &path, "").status, 200);
    read_until("\"reason\":\"ended by operator\"");
    assert_eq!(rig.change("DELETE", "/live/calls/none", "").status, 404);
    let by_call_id = live["calls"][1]["call_id"].as_str().expect("Call-ID");
    assert_eq!(
        rig.change("DELETE", &format!("/live/calls/{by_call_id}"), "")
            .status,
        200
    );
    until("two calls", || {
        (rig.get("/live/calls")["total"] == 2).then_some(())
    });
    // Trunks, limits, bans, as `hornwork ctl` sees them.
    let out = rig.change("PUT", "/trunks/server", "{\"enabled\":false}");
    assert_eq!((out.status, &out.json()["state"]), (200, &json!("out")));
    let ctl = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["ctl", "--json", "--socket"])
            .arg(rig.folder.join("control.sock"))
            .args(arguments)
            .output()
            .expect("hornwork ctl");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    assert_eq!(ctl(&["trunks", "list"])[0]["enabled"], false);
    let back = rig.change("PUT", "/trunks/server", "{\"enabled\":true}");
    assert_eq!(back.json()["state"], "in");
    assert_eq!(
        rig.change("PUT", "/trunks/none", "{\"enabled\":true}")
            .status,
        404
    );
    let limits = rig.change("PUT", "/limits", "{\"calls\":7}");
    assert_eq!(limits.json()["calls"], 7);
    assert_eq!(ctl(&["limits", "show"])["calls"], 7);
    assert_eq!(entries(&rig.get("/bans"), "bans").len(), 0);
    assert_eq!(rig.change("DELETE", "/bans/nobody", "").status, 400);
    assert_eq!(rig.change("DELETE", "/bans/192.0.2.1", "").status, 404);
    assert_eq!(
        entries(&rig.get("/registrations"), "registrations").len(),
        0
    );
    assert_eq!(
        rig.change("DELETE", "/registrations/nobody", "").status,
        404
    );
    assert_eq!(entries(&rig.get("/nodes"), "nodes").len(), 0);
    assert!(rig.get("/drops")["drops"].is_array());
    // Commands of administrators need a user.
    for (method, path, body) in [
        ("POST", "/reload", ""),
        ("POST", "/drain", "{}"),
        ("PUT", "/log-level", "{\"level\":\"debug\"}"),
        ("GET", "/audit", ""),
    ] {
        let answer = rig.change(method, path, body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("role")),
            "{path}"
        );
    }
    let health = rig.get("/health");
    assert_eq!(
        (&health["status"], &health["checks"]["store"]),
        (&json!("ok"), &json!("ok"))
    );
    assert_eq!(rig.get("/ready")["status"], "ok");
    // The audit log has the commands, with their outcome.
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    let entries: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let has = |action: &str, outcome: &str| {
        entries
            .iter()
            .any(|entry| entry["action"] == action && entry["outcome"] == outcome)
    };
    assert!(
        has("PUT /trunks/server", "200") && has("POST /reload", "403"),
        "{log}"
    );
    assert!(
        has(&format!("DELETE {path}"), "403") && has(&format!("DELETE {path}"), "200"),
        "{log}"
    );
}

#[test]
fn alarms_are_seen_and_acknowledged() {
    let rig = Rig::new("web-alarms", &users());
    let file = rig.folder.join("hornwork.toml");
    let text = std::fs::read_to_string(&file).expect("configuration");
    // No server answers OPTIONS at this trunk.
    std::fs::write(
        &file,
        text.replace("[[route]]", "ping_interval_s = 1\n[[route]]"),
    )
    .expect("file");
    assert_eq!(rig.of("operator", "POST", "/reload", "").status, 403);
    assert_eq!(rig.of("admin", "POST", "/reload", "").status, 200);
    let alarm = until("an alarm", || {
        let alarms = rig.of("viewer", "GET", "/alarms", "").json();
        entries(&alarms, "alarms").first().cloned()
    });
    assert_eq!(
        (&alarm["name"], &alarm["object"]),
        (&json!("trunk_down"), &json!("server"))
    );
    let trunks = rig.of("viewer", "GET", "/trunks", "").json();
    assert_eq!(trunks["trunks"][0]["state"], "down");
    assert_eq!(trunks["trunks"][0]["reason"], alarm["text"]);
    let path = format!("/alarms/{}/acknowledge", alarm["id"]);
    assert_eq!(rig.of("viewer", "POST", &path, "").status, 403);
    assert_eq!(rig.of("operator", "POST", &path, "").status, 200);
    assert_eq!(
        rig.of("operator", "POST", "/alarms/99/acknowledge", "")
            .status,
        404
    );
    let alarms = rig.of("viewer", "GET", "/alarms", "").json();
    assert_eq!(alarms["alarms"][0]["acknowledged_by"], "operator");
    let health = rig.with("GET", "/api/v1/health", "", "");
    assert_eq!(
        (health.status, &health.json()["status"]),
        (200, &json!("degraded"))
    );
    // A faulty configuration is refused, and changes nothing.
    std::fs::write(&file, "nonsense = 1\n").expect("file");
    assert_eq!(rig.of("admin", "POST", "/reload", "").status, 409);
    let level = rig.of("admin", "PUT", "/log-level", "{\"level\":\"debug\"}");
    assert_eq!(level.json()["level"], "debug");
    assert_eq!(
        rig.of("admin", "PUT", "/log-level", "{\"level\":\"loud\"}")
            .status,
        400
    );
    let audit = rig.of("admin", "GET", "/audit?limit=2", "").json();
    assert_eq!(audit["entries"][0]["action"], "PUT /log-level");
    assert_eq!(audit["entries"][0]["user"], "admin");
    let next = audit["next"].as_str().expect("a cursor");
    let older = rig
        .of("admin", "GET", &format!("/audit?limit=1&cursor={next}"), "")
        .json();
    assert_eq!(older["entries"][0]["action"], "POST /reload");
    assert_eq!(rig.of("operator", "GET", "/audit", "").status, 403);
    // Drained: not ready, and the program ends.
    assert_eq!(
        rig.of("admin", "POST", "/drain", "{\"timeout_s\":0}")
            .status,
        200
    );
}

/// Sends an INVITE with a key and a script to the border; its Call-ID.
fn hostile_call(rig: &Rig) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = socket.local_addr().expect("address");
    let id = format!("hostile-{}", local.port());
    let body = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9000 RTP/SAVP 0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\r\n";
    let invite = format!(
        "INVITE sip:4930123456@127.0.0.1:{} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKhostile\r\nMax-Forwards: 70\r\n\
         From: \"<script>alert(1)</script>\" <sip:4930777777@127.0.0.1>;tag=1\r\nTo: <sip:4930123456@127.0.0.1>\r\nCall-ID: {id}\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:4930777777@{local}>\r\nProxy-Authorization: Digest response=\"c0ffee\"\r\n\
         Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        rig.sip,
        body.len()
    );
    socket
        .send_to(invite.as_bytes(), ("127.0.0.1", rig.sip))
        .expect("sent");
    id
}

#[test]
fn viewers_see_no_bodies_keys_and_numbers() {
    let rig = Rig::new("web-roles", &users());
    let id = hostile_call(&rig);
    until("the call is in the store", || {
        (rig.of("operator", "GET", &format!("/calls/{id}"), "")
            .status
            == 200)
            .then_some(())
    });
    let page = rig
        .of("operator", "GET", &format!("/calls/{id}"), "")
        .json();
    assert_eq!(page["call"]["to"], "4930123456");
    let of = |role: &str, path: &str| rig.of(role, "GET", path, "");
    let message = of("operator", &format!("/calls/{id}/messages/0")).json();
    assert!(
        message["raw"]
            .as_str()
            .is_some_and(|raw| raw.contains("inline:") && raw.contains("<script>"))
    );
    // Everything that a viewer can read about this call.
    let mut seen = String::new();
    let mut paths = vec![
        format!("/calls/{id}"),
        "/calls?number=4930123456".to_owned(),
        "/live/calls".to_owned(),
    ];
    for index in 0..entries(&page, "messages").len() {
        paths.push(format!("/calls/{id}/messages/{index}"));
    }
    for path in &paths {
        let answer = of("viewer", path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        seen.push_str(&String::from_utf8_lossy(&answer.body));
    }
    for secret in [
        "inline:",
        "c2VjcmV0",
        "c0ffee",
        "m=audio",
        "4930123456",
        "4930777777",
        "alert(",
    ] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    assert!(seen.contains("********56"), "{seen}");
    for path in [
        format!("/calls/{id}/pcap"),
        format!("/calls/{id}/text"),
        "/calls?text=inline".to_owned(),
        "/audit".to_owned(),
    ] {
        let answer = of("viewer", &path);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("role")),
            "{path}"
        );
    }
    for (method, path, body) in [
        ("DELETE", "/live/calls/1", ""),
        ("DELETE", "/registrations/1", ""),
        ("DELETE", "/bans/127.0.0.1", ""),
        ("PUT", "/trunks/server", "{\"enabled\":false}"),
        ("PUT", "/limits", "{\"calls\":1}"),
        ("PUT", "/log-level", "{\"level\":\"debug\"}"),
        ("POST", "/alarms/1/acknowledge", ""),
        ("POST", "/reload", ""),
        ("POST", "/drain", "{}"),
    ] {
        let answer = rig.of("viewer", method, path, body);
        assert_eq!(answer.status, 403, "{method} {path}");
    }
    assert_eq!(of("operator", &format!("/calls/{id}/pcap")).status, 200);
    // Without login every path but three is refused.
    let document = rig.with("GET", "/api/v1/openapi.json", "", "").json();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let path = path.replace("{id}", "1").replace("{index}", "0");
            let path = path
                .replace("{aor}", "x")
                .replace("{name}", "x")
                .replace("{source}", "x");
            let open = operation["security"].as_array().is_some_and(Vec::is_empty);
            let answer = rig.with(&method.to_uppercase(), &path, "", "");
            match open {
                true => assert_ne!(answer.status, 401, "{method} {path}"),
                false => assert_eq!(answer.status, 401, "{method} {path}"),
            }
            // Every route of the document exists.
            assert!(![0, 405].contains(&answer.status), "{method} {path}");
            let status = answer.status.to_string();
            assert!(
                operation["responses"].get(&status).is_some(),
                "{method} {path}: {status}"
            );
        }
    }
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    assert!(!log.contains("token-of-the"), "{log}");
}

#[test]
fn sessions_need_passwords_and_tokens_against_forgery() {
    let rig = Rig::new("web-sessions", &users());
    let session = "/api/v1/session";
    let before = rig.with("GET", session, "", "").json();
    assert_eq!(
        (&before["user"], &before["login"]),
        (&Value::Null, &json!(true))
    );
    let login = |user: &str, password: &str| {
        let body = json!({ "user": user, "password": password }).to_string();
        rig.with("POST", session, "", &body)
    };
    let good = login("operator", PASSWORD);
    assert_eq!(good.status, 200, "{good:?}");
    let cookie = good.header("set-cookie").expect("a cookie").to_owned();
    assert!(
        cookie.contains("httponly; samesite=strict") && cookie.contains("path=/"),
        "{cookie}"
    );
    // The head was made lower-case; the cookie is read from the original.
    let bytes = {
        let body = json!({ "user": "operator", "password": PASSWORD }).to_string();
        let mut stream = rig.connect();
        let request = format!(
            "POST {session} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            rig.http,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("answer");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let cookie = bytes
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next())
        .expect("a cookie")
        .to_owned();
    let csrf = parsed(bytes.as_bytes()).json()["csrf"]
        .as_str()
        .expect("csrf")
        .to_owned();
    let with_cookie = format!("Cookie: {cookie}\r\n");
    let put = |headers: &str| {
        let all = format!("{with_cookie}{headers}");
        rig.with("PUT", "/api/v1/limits", &all, "{\"calls\":9}")
            .status
    };
    assert_eq!(
        rig.with("GET", "/api/v1/limits", &with_cookie, "").status,
        200
    );
    assert_eq!(put(""), 403);
    assert_eq!(put("X-CSRF-Token: wrong\r\n"), 403);
    assert_eq!(
        put(&format!(
            "X-CSRF-Token: {csrf}\r\nOrigin: http://evil.example\r\n"
        )),
        403
    );
    assert_eq!(
        put(&format!(
            "X-CSRF-Token: {csrf}\r\nSec-Fetch-Site: cross-site\r\n"
        )),
        403
    );
    assert_eq!(
        put(&format!(
            "X-CSRF-Token: {csrf}\r\nOrigin: http://127.0.0.1:{}\r\n",
            rig.http
        )),
        200
    );
    let out = format!("{with_cookie}X-CSRF-Token: {csrf}\r\n");
    let ended = rig.with("DELETE", session, &out, "");
    assert_eq!(ended.status, 200);
    assert!(
        ended
            .header("set-cookie")
            .is_some_and(|value| value.contains("max-age=0"))
    );
    assert_eq!(
        rig.with("GET", "/api/v1/limits", &with_cookie, "").status,
        401
    );
    // An administrator without password cannot log in with one; neither can unknown users.
    assert_eq!(login("admin", PASSWORD).status, 401);
    // The account of the viewer is locked after five failures, the operator's is not.
    let codes: Vec<u16> = (0..6)
        .map(|_| login("viewer", "wrong password").status)
        .collect();
    assert!(
        codes.starts_with(&[401]) && codes.ends_with(&[429]),
        "{codes:?}"
    );
    let locked = login("viewer", PASSWORD);
    assert_eq!(locked.status, 429);
    assert!(
        locked
            .header("retry-after")
            .and_then(|s| s.parse::<u64>().ok())
            > Some(1)
    );
    assert_eq!(
        login("operator", PASSWORD).status,
        200,
        "known from this source"
    );
    assert_eq!(login("nobody", "x").status, 429, "the source is locked");
    let wrong = rig.with(
        "GET",
        "/api/v1/calls",
        "Authorization: Bearer wrong\r\n",
        "",
    );
    assert!([401, 429].contains(&wrong.status));
    for body in [
        "",
        "{}",
        "{\"user\":1}",
        "[",
        "{\"user\":\"a\",\"password\":\"b\",\"role\":\"admin\"}",
    ] {
        let answer = rig.with("POST", session, "", body);
        assert!([400, 415].contains(&answer.status), "{body}: {answer:?}");
    }
    let log = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    assert!(
        log.contains("\"action\":\"login\",\"outcome\":\"429\""),
        "{log}"
    );
    assert!(!log.contains(PASSWORD) && !log.contains("wrong password"));
    assert!(!rig.border.log().contains(PASSWORD));
}

#[test]
fn hostile_requests_are_refused_or_harmless() {
    let rig = Rig::new("web-hostile", "reports = \"FOLDER/reports\"");
    let report = rig.folder.join("reports/run-1");
    std::fs::create_dir_all(&report).expect("folder");
    std::fs::write(report.join("report.html"), "<p>report").expect("file");
    std::fs::write(
        report.join("run.json"),
        "{\"title\":\"A run\",\"verdict\":\"passed\",\"started\":1}",
    )
    .expect("file");
    std::fs::write(rig.folder.join("reports/secret.txt"), "secret").expect("file");
    let reports = rig.get("/reports");
    assert_eq!(
        (
            &reports["reports"][0]["name"],
            &reports["reports"][0]["title"]
        ),
        (&json!("run-1"), &json!("A run"))
    );
    let page = rig.with("GET", "/api/v1/reports/run-1/", "", "");
    assert_eq!(page.body, b"<p>report");
    assert!(
        page.header("content-security-policy")
            .is_some_and(|value| value.ends_with("sandbox"))
    );
    let head = format!("Host: 127.0.0.1:{}\r\nConnection: close\r\n", rig.http);
    let long = "x".repeat(40_000);
    let many: String = (0..200)
        .map(|number| format!("X-{number}: x\r\n"))
        .collect();
    for (request, statuses) in [
        ("nonsense\r\n\r\n".to_owned(), vec![400]),
        (
            format!("GET /api/v1/../../etc/passwd HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /api/v1/reports/..%2f..%2fsecret/ HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /api/v1/reports/%2e%2e/ HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /api/v1/reports/secret.txt/ HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /../../../etc/passwd.txt HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /assets/..%2f..%2fCargo.toml HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("POST /index.html HTTP/1.1\r\n{head}\r\n"),
            vec![405],
        ),
        (
            format!("PATCH /api/v1/limits HTTP/1.1\r\n{head}\r\n"),
            vec![405],
        ),
        (
            format!("GET /api/v2/calls HTTP/1.1\r\n{head}\r\n"),
            vec![404],
        ),
        (
            format!("GET /{long} HTTP/1.1\r\n{head}\r\n"),
            vec![414, 431],
        ),
        (
            format!("GET / HTTP/1.1\r\n{head}X: {long}\r\n\r\n"),
            vec![431],
        ),
        (format!("GET / HTTP/1.1\r\n{head}{many}\r\n"), vec![431]),
        (
            "GET /api/v1/calls HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
                .to_owned(),
            vec![403],
        ),
        (
            "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".to_owned(),
            vec![403],
        ),
        (
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            vec![400],
        ),
        (
            format!("GET /api/v1/calls HTTP/1.1\r\n{head}Origin: http://evil.example\r\n\r\n"),
            vec![403],
        ),
        (
            format!("GET /api/v1/calls?number=%00%ff HTTP/1.1\r\n{head}\r\n"),
            vec![200, 400],
        ),
        (
            format!("GET /api/v1/calls/%ff%fe HTTP/1.1\r\n{head}\r\n"),
            vec![400, 404],
        ),
        (
            format!(
                "PUT /api/v1/limits HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: 104857600\r\n\r\n{long}"
            ),
            vec![403, 413],
        ),
    ] {
        let answer = rig.raw(request.as_bytes());
        let shown: String = request.chars().take(90).collect();
        assert!(
            statuses.contains(&answer.status),
            "{shown}: {}",
            answer.status
        );
    }
    let csrf = rig.get("/session")["csrf"]
        .as_str()
        .expect("csrf")
        .to_owned();
    let large = format!("{{\"calls\":{}1}}", " ".repeat(200_000));
    let header = format!("X-CSRF-Token: {csrf}\r\n");
    assert_eq!(
        rig.with("PUT", "/api/v1/limits", &header, &large).status,
        413
    );
    let text = format!(
        "PUT /api/v1/limits HTTP/1.1\r\n{head}{header}Content-Type: text/plain\r\nContent-Length: 11\r\n\r\n{{\"calls\":1}}"
    );
    assert_eq!(rig.raw(text.as_bytes()).status, 415);
    for body in [
        "{\"calls\":-1}",
        "{\"calls\":1,\"x\":2}",
        "{\"calls\":\"1\"}",
        "[]",
        "{",
    ] {
        assert_eq!(
            rig.with("PUT", "/api/v1/limits", &header, body).status,
            400,
            "{body}"
        );
    }
    // A body that never comes, and heads that never end.
    let mut slow = rig.connect();
    let request = format!(
        "PUT /api/v1/limits HTTP/1.1\r\n{head}{header}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    slow.write_all(request.as_bytes()).expect("sent");
    let mut heads: Vec<TcpStream> = (0..10).map(|_| rig.connect()).collect();
    for stream in &mut heads {
        stream.write_all(b"GET / HT").expect("sent");
    }
    // Others are served meanwhile.
    let begun = Instant::now();
    assert_eq!(rig.get("/health")["status"], "ok");
    assert!(begun.elapsed() < Duration::from_secs(4));
    let mut bytes = Vec::new();
    let _ = slow.read_to_end(&mut bytes);
    assert_eq!(parsed(&bytes).status, 408);
    for stream in &mut heads {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    // No more connections than allowed from one source; the border itself is not concerned.
    let many: Vec<TcpStream> = (0..40)
        .filter_map(|_| TcpStream::connect(("127.0.0.1", rig.http)).ok())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.raw(b"").status, 503);
    assert!(common::serves(rig.sip));
    drop(many);
    until("connections are free", || {
        (rig.with("GET", "/api/v1/health", "", "").status == 200).then_some(())
    });
    let page = rig.with("GET", "/", "", "");
    assert_eq!(page.status, 200);
    let policy = page
        .header("content-security-policy")
        .expect("a policy")
        .to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(page.header("x-frame-options"), Some("deny"));
    assert!(
        page.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/html"))
    );
    assert!(!rig.border.log().contains("panicked"));
}

#[test]
fn requests_beyond_the_rate_are_refused() {
    let rig = Rig::new("web-rate", "");
    let mut stream = rig.connect();
    let one = format!(
        "GET /api/v1/limits HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        rig.http
    );
    // Pipelined on one connection.
    stream.write_all(one.repeat(400).as_bytes()).expect("sent");
    let last = one.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    stream.write_all(last.as_bytes()).expect("sent");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    assert!(
        text.contains("HTTP/1.1 200") && text.contains("HTTP/1.1 429"),
        "{}",
        text.len()
    );
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(rig.with("GET", "/api/v1/limits", "", "").status, 200);
}

#[test]
fn tls_serves_the_console() {
    if !installed(&["curl"]) {
        return;
    }
    let folder = scratch("web-tls-files");
    let authority = Authority::new(&folder, "authority");
    authority.issue("console", "console.example");
    let path = |name: &str| folder.join(name).display().to_string();
    let more = format!(
        "hosts = [\"console.example\"]\ncertificate = {{ chain = \"{}\", key = \"{}\" }}\n{}",
        path("console.pem"),
        path("console.key"),
        users()
    );
    let rig = Rig::new("web-tls", &more);
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args([
                "-sS",
                "-i",
                "--max-time",
                "20",
                "--cacert",
                &path("authority.pem"),
            ])
            .args([
                "--connect-to",
                &format!("console.example:443:127.0.0.1:{}", rig.http),
            ])
            .args(arguments)
            .output()
            .expect("curl");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let body = json!({ "user": "viewer", "password": PASSWORD }).to_string();
    let answer = curl(&[
        "-H",
        "Content-Type: application/json",
        "-d",
        &body,
        "https://console.example/api/v1/session",
    ]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let lower = answer.to_ascii_lowercase();
    assert!(
        lower.contains("set-cookie: __host-hornwork=") && lower.contains("; secure"),
        "{answer}"
    );
    assert!(lower.contains("strict-transport-security"), "{answer}");
    // Clear text at the TLS port is not answered as HTTP.
    assert_eq!(rig.with("GET", "/", "", "").status, 0);
    // A renewed certificate is used after a reload, without restart.
    let other = Authority::new(&folder, "other");
    other.issue("console", "console.example");
    std::fs::copy(path("other.pem"), path("authority.pem")).expect("copied");
    let token = format!("Authorization: Bearer {}", TOKENS[2].1);
    rig.border.signal("HUP");
    until("the new certificate", || {
        let answer = curl(&["-H", &token, "https://console.example/api/v1/limits"]);
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
}

/// Exit code and output of `hornwork check` about a `[console]`.
fn check(folder: &Path, console: &str) -> (Option<i32>, String) {
    let file = folder.join("check.toml");
    let text = example(
        "loopback.toml",
        5060,
        5080,
        (20_000, 20_399),
        &format!("[console]\n{console}\n"),
    );
    std::fs::write(&file, text).expect("file");
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["check", "-c"])
        .arg(&file)
        .output()
        .expect("hornwork check");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), text)
}

#[test]
fn unprotected_consoles_are_refused() {
    let folder = scratch("web-check");
    for (console, expected) in [
        ("listen = \"192.0.2.1:8080\"", "there are no users"),
        ("listen = \"192.0.2.1:8080\"", "without TLS"),
        ("listen = \"127.0.0.1\"", "not a listening address"),
        (
            "listen = \"127.0.0.1:1\"\ncertificate = { chain = \"/nonexistent\", key = \"/nonexistent\" }",
            "/nonexistent",
        ),
        (
            "listen = \"127.0.0.1:1\"\ncolour = 1",
            "unknown key `colour`",
        ),
    ] {
        let (code, text) = check(&folder, console);
        assert_eq!(code, Some(2), "{console}: {text}");
        assert!(text.contains(expected), "{console}: {text}");
    }
    let (code, text) = check(&folder, "listen = \"127.0.0.1:8080\"");
    assert_eq!(code, Some(0), "{text}");
    let short = Command::new("sh")
        .args([
            "-c",
            &format!(
                "echo short | {} console hash-password",
                env!("CARGO_BIN_EXE_hornwork")
            ),
        ])
        .output()
        .expect("sh");
    assert_eq!(short.status.code(), Some(2));
}
