//! Operator commands over the Unix socket, metrics and call records, against real calls: they agree with each other and
//! with SIPp.

use crate::common;
use crate::peer_sipp::sipp;
use crate::records::wait_for_records;

use common::{border, example, free_port, installed, media_ports, scratch};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub fn ctl(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["ctl", "--socket"])
        .arg(folder.join("control.sock"))
        .args(arguments)
        .output()
        .expect("hornwork ctl")
}

pub fn ctl_json(folder: &Path, arguments: &[&str]) -> Value {
    let output = ctl(folder, &[arguments, &["--json"]].concat());
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The text of `/metrics`.
pub fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("metrics");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("body");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

pub fn metric(text: &str, name: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value
        .unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .expect("a number")
}

/// With `media` ports, for an anchored call at each four of them.
fn configuration(
    folder: &Path,
    [sip, trunk, metrics]: [u16; 3],
    media: u16,
    workers: u8,
) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    // Without overload control: where the host stops the border for a moment, no call is to be refused.
    let more = format!(
        "[sip]\nworkers={workers}\nqueueing_delay_ms=0\n[records]\nfolder=\"{}\"\nrotate_mib=1000\n[control]\nsocket=\"{}\"\n[metrics]\nlisten=\"127.0.0.1:{metrics}\"\ncsv=\"{}\"\ncsv_interval_s=1\n",
        path("records"),
        path("control.sock"),
        path("statistics.csv"),
    );
    example("loopback.toml", sip, trunk, media_ports(media), &more)
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    // An alarm is cleared 15 to 20 s after its condition.
    let end = Instant::now() + Duration::from_secs(40);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Number of answered calls; see CONTRIBUTING.md.
const CALLS: &str = "HORNWORK_METRICS_CALLS";
/// Calls per second.
const RATE: u64 = 400;

#[test]
fn metrics_records_and_sipp_agree_to_the_unit() {
    if !installed(&["sipp"]) {
        return;
    }
    let answered: u64 = std::env::var(CALLS)
        .map_or(Ok(4_000), |text| text.parse())
        .expect(CALLS);
    let all = answered + 20;
    for workers in [1, 2] {
        let folder = scratch(&format!("operators-{workers}"));
        let (sip, trunk, scrape) = (free_port(), free_port(), free_port());
        let _border = border(
            &folder,
            &configuration(&folder, [sip, trunk, scrape], 4_000, workers),
            sip,
        );
        let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-l", "8000"]).at_port(trunk);
        let target = format!("127.0.0.1:{sip}");
        let (rate, most) = (RATE.to_string(), answered.to_string());
        let calls = [
            "-sn", "uac", &target, "-r", &rate, "-m", &most, "-l", "4000",
        ];
        let mut uac = sipp(&folder, "uac", sip + 1, &calls);
        assert_eq!(
            uac.wait(Duration::from_secs(50 + answered / RATE)),
            Some(true),
            "{}",
            uac.log()
        );
        ctl(&folder, &["trunks", "disable", "server"]);
        let refused = ["-sn", "uac", &target, "-r", "50", "-m", "20"];
        sipp(&folder, "refused", sip + 2, &refused).wait(Duration::from_secs(30));
        let written = wait_for_records(&folder.join("records"), all as usize);
        let failed = written
            .iter()
            .filter(|record| record["status"] == 503)
            .count();
        assert_eq!(failed, 20);
        until("all calls end", || {
            metric(&metrics(scrape), "hornwork_calls_active") == 0
        });
        let text = metrics(scrape);
        assert_eq!(
            metric(&text, "hornwork_calls_total{result=\"completed\"}"),
            answered
        );
        assert_eq!(metric(&text, "hornwork_calls_total{result=\"failed\"}"), 20);
        assert_eq!(metric(&text, "hornwork_calls_offered_total"), all);
        assert_eq!(
            metric(&text, "hornwork_records_total{result=\"written\"}"),
            all
        );
        assert_eq!(
            metric(
                &text,
                "hornwork_trunk_calls_total{trunk=\"server\",result=\"completed\"}"
            ),
            answered
        );
        assert_eq!(metric(&text, "hornwork_call_setup_seconds_count"), answered);
        assert_eq!(metric(&text, "hornwork_trunk_enabled{trunk=\"server\"}"), 0);
        if installed(&["promtool"]) {
            let mut check = Command::new("promtool")
                .args(["check", "metrics"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("promtool");
            check
                .stdin
                .take()
                .expect("input")
                .write_all(text.as_bytes())
                .expect("written");
            let checked = check.wait_with_output().expect("promtool");
            assert!(
                checked.status.success(),
                "{}",
                String::from_utf8_lossy(&checked.stderr)
            );
        }
        let counted = format!(",{all},{answered},{answered},");
        until("statistics are written", || {
            let text = std::fs::read_to_string(folder.join("statistics.csv")).unwrap_or_default();
            text.lines()
                .last()
                .is_some_and(|line| line.contains(&counted))
        });
    }
}

/// The value of the first header of this name.
fn header<'a>(message: &'a str, name: &str) -> &'a str {
    let mut lines = message.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name}: {message}"))
}

/// A call to the border at `sip` that sends RTP packets with these sequence numbers and ends after `meanwhile`.
fn call_with_media(sip: u16, sequence: impl Iterator<Item = u16>, meanwhile: impl FnOnce()) {
    let [signalling, media] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("socket"));
    let limit = Some(Duration::from_secs(20));
    signalling.set_read_timeout(limit).expect("timeout");
    signalling.connect(("127.0.0.1", sip)).expect("address");
    let local = signalling.local_addr().expect("address");
    let send = |method: &str, uri: &str, to: &str, body: &str| {
        // An ACK has the number of its INVITE.
        let number = if method == "BYE" { 2 } else { 1 };
        let text = format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKmedia{method}\r\nMax-Forwards: 70\r\n\
             From: <sip:100@{local}>;tag=1\r\nTo: {to}\r\nCall-ID: media-{local}\r\nCSeq: {number} {method}\r\n\
             Contact: <sip:100@{local}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        signalling.send(text.as_bytes()).expect("sent");
    };
    let answer = |method: &str| {
        let mut bytes = [0; 4_096];
        loop {
            let length = signalling.recv(&mut bytes).expect("a response");
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.starts_with("SIP/2.0 200 ") && header(&text, "CSeq").ends_with(method) {
                return text;
            }
            assert!(text.starts_with("SIP/2.0 1"), "{text}");
        }
    };
    let uri = format!("sip:600@127.0.0.1:{sip}");
    let port = media.local_addr().expect("address").port();
    let offer = format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n"
    );
    send("INVITE", &uri, &format!("<{uri}>"), &offer);
    let answered = answer("INVITE");
    let (contact, to) = (header(&answered, "Contact"), header(&answered, "To"));
    let target = contact.trim_matches(['<', '>']);
    send("ACK", target, to, "");
    let line = answered
        .lines()
        .find_map(|line| line.strip_prefix("m=audio "));
    let port = line.and_then(|line| line.split(' ').next()?.parse::<u16>().ok());
    let border = ("127.0.0.1", port.expect("a media port"));
    for number in sequence {
        let mut packet = vec![0x80, 0];
        packet.extend(number.to_be_bytes());
        packet.extend((u32::from(number) * 160).to_be_bytes());
        packet.extend([1, 2, 3, 4]);
        packet.resize(172, 0xff);
        media.send_to(&packet, border).expect("sent");
        std::thread::sleep(Duration::from_millis(2));
    }
    meanwhile();
    send("BYE", target, to, "");
    answer("BYE");
}

#[test]
fn packets_of_calls_are_counted_to_the_unit() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("operators-media");
    let (sip, trunk, scrape) = (free_port(), free_port(), free_port());
    let text = configuration(&folder, [sip, trunk, scrape], 400, 1);
    let _border = border(&folder, &text, sip);
    let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas"]).at_port(trunk);
    let count = |name: &str| metric(&metrics(scrape), &format!("hornwork_rtp_packets_{name}"));
    // Two calls: 400 packets, and 300 between which 20 are missing.
    call_with_media(sip, 1_000..1_400, || {
        until("packets of the call count", || count("total") == 400);
        assert_eq!((count("ended_total"), count("lost_total")), (0, 0));
    });
    until("the call has ended", || count("ended_total") == 400);
    call_with_media(sip, (65_500..=u16::MAX).chain(20..284), || {
        until("packets of both calls count", || count("total") == 700);
    });
    until("both calls have ended", || count("ended_total") == 700);
    assert_eq!((count("total"), count("lost_total")), (700, 20));
}

#[test]
fn alert_rules_pass_their_tests() {
    if !installed(&["promtool"]) {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");
    let output = Command::new("promtool")
        .current_dir(folder)
        .args(["test", "rules", "hornwork.rules.test.yml"])
        .output()
        .expect("promtool");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
}

#[test]
fn operator_ends_calls_and_takes_a_trunk_out_of_service() {
    if !installed(&["sipp"]) {
        return;
    }
    for workers in [1, 2] {
        let folder = scratch(&format!("ctl-{workers}"));
        let (sip, trunk, scrape) = (free_port(), free_port(), free_port());
        let _border = border(
            &folder,
            &configuration(&folder, [sip, trunk, scrape], 400, workers),
            sip,
        );
        let mode = std::fs::metadata(folder.join("control.sock"))
            .expect("socket")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o660);
        let mut uas = sipp(&folder, "uas", trunk, &["-sn", "uas", "-m", "4"]).at_port(trunk);
        let target = format!("127.0.0.1:{sip}");
        let standing = [
            "-sn", "uac", &target, "-r", "10", "-m", "4", "-l", "4", "-d", "60000",
        ];
        let _uac = sipp(&folder, "uac", sip + 1, &standing);
        let answered = || {
            let calls = ctl_json(&folder, &["calls", "list"]);
            let calls = calls.as_array().expect("an array").clone();
            calls
                .iter()
                .filter(|call| call["state"] == "answered")
                .count()
        };
        until("calls are up", || answered() == 4);
        let calls = ctl_json(&folder, &["calls", "list"]);
        let first = &calls[0];
        assert!(
            first["from"]
                .as_str()
                .is_some_and(|from| from.contains("sip:sipp@")),
            "{first}"
        );
        assert_eq!(first["legs"][1]["trunk"], "server");
        let shown = ctl_json(
            &folder,
            &["calls", "show", first["call_id"].as_str().expect("Call-ID")],
        );
        assert_eq!(shown["id"], first["id"]);
        // In pages; the rest is told on standard error.
        let part = ctl(&folder, &["calls", "list", "--json", "--limit", "3"]);
        let page: Value = serde_json::from_slice(&part.stdout).expect("an array");
        assert_eq!(page.as_array().map(Vec::len), Some(3), "{page}");
        let last = page[2]["id"].to_string();
        let output = String::from_utf8_lossy(&part.stderr).into_owned();
        let more = format!("3 of 4 calls; more: --after {last}");
        assert!(part.status.success() && output.contains(&more), "{output}");
        let rest = ctl(&folder, &["calls", "list", "--json", "--after", &last]);
        assert!(rest.stderr.is_empty(), "{rest:?}");
        let rest: Value = serde_json::from_slice(&rest.stdout).expect("an array");
        assert_eq!(rest.as_array().map(Vec::len), Some(1), "{rest}");
        assert_eq!(rest[0]["id"], calls[3]["id"]);
        // By number, and by the Call-ID of either leg.
        let id = first["id"].to_string();
        let by = [
            id.as_str(),
            calls[1]["legs"][0]["call_id"].as_str().expect("Call-ID"),
            calls[2]["legs"][1]["call_id"].as_str().expect("Call-ID"),
            calls[3]["legs"][1]["call_id"].as_str().expect("Call-ID"),
        ];
        for id in by {
            assert!(ctl(&folder, &["calls", "hangup", id]).status.success());
        }
        let again = ctl(&folder, &["calls", "hangup", &id]);
        assert!(
            again.status.code() == Some(2)
                || ctl_json(&folder, &["calls", "list"]) != Value::Array(Vec::new())
        );
        // SIPp's UAS ends when each of its calls has got BYE.
        assert_eq!(
            uas.wait(Duration::from_secs(30)),
            Some(true),
            "{}",
            uas.log()
        );
        let written = wait_for_records(&folder.join("records"), 4);
        for record in &written {
            assert_eq!(
                (&record["ended_by"], &record["reason"]),
                (&"border".into(), &"ended by operator".into())
            );
        }
        let disabled = ctl_json(&folder, &["trunks", "disable", "server"]);
        assert_eq!(
            (&disabled["enabled"], &disabled["up"]),
            (&false.into(), &true.into())
        );
        let refused = ["-sn", "uac", &target, "-r", "20", "-m", "5"];
        sipp(&folder, "refused", sip + 2, &refused).wait(Duration::from_secs(20));
        let written = wait_for_records(&folder.join("records"), 9);
        assert!(
            written
                .iter()
                .skip(4)
                .all(|record| record["status"] == 503 && record["targets"] == 0)
        );
        assert_eq!(
            ctl_json(&folder, &["trunks", "enable", "server"])["enabled"],
            true
        );
        assert_eq!(
            ctl(&folder, &["trunks", "disable", "nowhere"])
                .status
                .code(),
            Some(2)
        );
    }
}

#[test]
fn commands_report_state_and_refuse_mistakes() {
    let folder = scratch("ctl-commands");
    let (sip, trunk, scrape) = (free_port(), free_port(), free_port());
    let text = configuration(&folder, [sip, trunk, scrape], 400, 1);
    let mut process = border(&folder, &text, sip);
    assert_eq!(ctl_json(&folder, &["health"])["status"], "ok");
    assert_eq!(
        ctl_json(&folder, &["version"])["version"],
        env!("CARGO_PKG_VERSION")
    );
    for empty in ["calls", "registrations", "nodes", "bans", "alarms"] {
        assert_eq!(
            ctl_json(&folder, &[empty, "list"]),
            Value::Array(Vec::new()),
            "{empty}"
        );
    }
    assert!(ctl_json(&folder, &["drops"]).is_array());
    assert_eq!(
        ctl_json(&folder, &["limits", "set", "--calls", "7"])["calls"],
        7
    );
    assert_eq!(
        ctl_json(&folder, &["log", "level", "debug"])["level"],
        "debug"
    );
    let bad = ctl(&folder, &["log", "level", "loud"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&bad.stderr).contains("error, warn, info"),
        "{bad:?}"
    );
    assert_eq!(
        ctl(&folder, &["bans", "remove", "nobody"]).status.code(),
        Some(2)
    );
    assert_eq!(ctl_json(&folder, &["reload"])["reloaded"], true);
    // A mistake is named, and changes nothing.
    let file = folder.join("hornwork.toml");
    let good = std::fs::read_to_string(&file).expect("configuration");
    std::fs::write(&file, format!("blurb = 1\n{good}")).expect("configuration");
    let refused = ctl(&folder, &["reload"]);
    std::fs::write(&file, &good).expect("configuration");
    assert_eq!(refused.status.code(), Some(2));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        why.contains("1 mistake: ") && why.contains("unknown key `blurb`"),
        "{why}"
    );
    assert!(ctl_json(&folder, &["limits", "show"])["calls"].as_u64() > Some(7));
    // So is a listener that cannot be opened; the others stay.
    let busy = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let listen = format!("\"udp:127.0.0.1:{sip}\"");
    let address = busy.local_addr().expect("address");
    let more = good.replacen(&listen, &format!("{listen}, \"udp:{address}\""), 1);
    assert_ne!(more, good);
    std::fs::write(&file, &more).expect("configuration");
    let refused = ctl(&folder, &["reload"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{why}");
    let failed = format!("the configuration is in force, except: cannot listen on {address}");
    assert!(why.contains(&failed), "{why}");
    drop(busy);
    assert_eq!(ctl_json(&folder, &["reload"])["reloaded"], true);
    std::fs::write(&file, &good).expect("configuration");
    assert_eq!(ctl_json(&folder, &["reload"])["reloaded"], true);
    let table = ctl(&folder, &["trunks", "list"]);
    let table = String::from_utf8_lossy(&table.stdout);
    assert!(
        table.starts_with("NAME") && table.contains("server"),
        "{table}"
    );
    let top = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["top", "--count", "1", "--socket"])
        .arg(folder.join("control.sock"))
        .output()
        .expect("hornwork top");
    let text = String::from_utf8_lossy(&top.stdout);
    assert!(text.contains("calls ") && text.contains("server"), "{text}");
    // Malformed requests are refused, and the border goes on.
    for (request, status) in [
        (
            "GET /v1/calls?limit=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "400",
        ),
        (
            "GET /v1/calls?limit=18446744073709551615 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "400",
        ),
        (
            "GET /v1/registrations?limit=0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "400",
        ),
        (
            "GET /v1/calls?limit=10000&after=7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "200",
        ),
        (
            "GET /v1/../etc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "404",
        ),
        (
            "PUT /v1/calls HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "405",
        ),
        (
            "PATCH /v1/trunks/server HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            "400",
        ),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let mut stream = UnixStream::connect(folder.join("control.sock")).expect("socket");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
    // Clients that send or read nothing delay no other.
    let silent: Vec<UnixStream> = (0..8)
        .map(|_| UnixStream::connect(folder.join("control.sock")).expect("socket"))
        .collect();
    assert!(common::serves(sip));
    assert_eq!(ctl_json(&folder, &["health"])["status"], "ok");
    drop(silent);
    let drain = ["drain", "--timeout", "7"];
    assert!(ctl(&folder, &drain).status.success());
    assert_eq!(
        process.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        process.log()
    );
    let logged = "request=\"POST /v1/drain\" value=\"timeout_s=7\" status=200";
    assert!(process.log().contains(logged), "{}", process.log());
    let gone = ctl(&folder, &["health"]);
    assert_eq!(gone.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&gone.stderr).contains("remedy"),
        "{gone:?}"
    );
}
