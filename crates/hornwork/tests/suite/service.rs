//! `hornwork run` under a supervisor: readiness, reload, drain, exit codes.

use crate::common;

use common::{
    Process, answers_options, border, example, free_port, installed, media_ports, root, scratch,
    serves,
};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Waits at most thirty seconds until `condition` holds; panics with the output of the process.
fn until(process: &Process, condition: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition(&process.log()) {
        assert!(Instant::now() < end, "waited in vain: {}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn run(file: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["run", "-c"])
        .arg(file)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn service_is_ready_reloads_and_stops() {
    let folder = scratch("service");
    let socket = folder.join("notify");
    let notified = UnixDatagram::bind(&socket).expect("socket");
    notified
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("timeout");
    let file = folder.join("hornwork.toml");
    let (old, new) = (free_port(), free_port());
    let more = "[drain]\ntimeout_s = 900\n";
    let good = example("loopback.toml", old, free_port(), media_ports(100), more);
    std::fs::write(&file, &good).expect("file");
    let mut process = Process::start(
        Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["run", "-c"])
            .arg(&file)
            .env("NOTIFY_SOCKET", &socket)
            .stdin(Stdio::null()),
        &folder.join("log"),
    );
    let notified = || {
        let mut bytes = [0; 100];
        let length = notified.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!(notified(), "READY=1");
    assert!(serves(old), "ready means ready");
    let messages = process.log();
    assert!(
        messages.contains(&format!(
            "listens on udp:127.0.0.1:{old}, tcp:127.0.0.1:{old}"
        )),
        "{messages}"
    );

    // A file with a mistake changes nothing, and the log contains the reason.
    std::fs::write(&file, good.replace("allow", "alow")).expect("file");
    process.signal("HUP");
    until(&process, |messages| {
        messages.contains("configuration_refused")
    });
    assert!(
        process.log().contains("did you mean `allow`?"),
        "{}",
        process.log()
    );
    assert!(serves(old));

    // Another public address changes no socket.
    let advertised = good.replace(
        "kind = \"access\"\n",
        "kind = \"access\"\nadvertise = \"127.0.0.2\"\n",
    );
    assert_ne!(advertised, good);
    std::fs::write(&file, advertised).expect("file");
    process.signal("HUP");
    until(&process, |messages| {
        messages.contains("configuration_reloaded")
    });
    assert!(serves(old));
    assert!(
        !process.log().contains("socket_failed"),
        "{}",
        process.log()
    );

    // A valid one changes the listener.
    std::fs::write(&file, good.replace(&format!(":{old}"), &format!(":{new}"))).expect("file");
    process.signal("HUP");
    until(&process, |messages| {
        messages.matches("configuration_reloaded").count() == 2
    });
    until(&process, |_| answers_options(new));
    assert!(
        TcpStream::connect(("127.0.0.1", old)).is_err(),
        "the old listening point is closed"
    );

    process.signal("TERM");
    assert_eq!(notified(), "STOPPING=1");
    // More time than TimeoutStopSec= for the calls of the drain.
    assert_eq!(notified(), "EXTEND_TIMEOUT_USEC=30000000");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    assert!(
        process.log().contains("drain_finished terminated=0"),
        "{}",
        process.log()
    );
}

#[test]
fn refused_reload_keeps_the_json_log_readable() {
    let folder = scratch("service-json-reload");
    let sip = free_port();
    let more = "[log]\nformat = \"json\"\n";
    let text = example("loopback.toml", sip, free_port(), media_ports(100), more);
    let mut process = border(&folder, &text, sip);
    let before = process.log().len();
    std::fs::write(
        folder.join("hornwork.toml"),
        text.replace("allow", "alow") + "key = 1\n",
    )
    .expect("file");
    process.signal("HUP");
    until(&process, |messages| {
        messages.contains("configuration_refused")
    });
    process.signal("INT");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    let messages = process.log();
    let mut reason = None;
    for line in messages[before..].lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if value["event"] == "configuration_refused" {
            reason = value["reason"].as_str().map(str::to_owned);
        }
    }
    let reason = reason.unwrap_or_else(|| panic!("{messages}"));
    for part in [
        "2 mistakes: ",
        "hornwork.toml:",
        "unknown key `alow` in `interface`; did you mean `allow`?",
        "the current configuration stays in effect",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

#[test]
fn log_can_be_json_and_contains_no_secret() {
    let folder = scratch("service-json");
    let sip = free_port();
    let more = "[log]\nformat = \"json\"\nlevel = \"debug\"\n";
    let text = example("loopback-uc.toml", sip, free_port(), media_ports(100), more);
    let mut process = border(&folder, &text, sip);
    until(&process, |messages| messages.contains("socket_opened"));
    process.signal("INT");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    let messages = process.log();
    assert!(!messages.contains("secret-1000"), "{messages}");
    let mut events = 0;
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let value: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        assert!(
            value["timestamp"].is_string() && value["level"].is_string(),
            "{line}"
        );
        events += usize::from(value["event"].is_string());
    }
    assert!(events >= 4, "{messages}");
}

#[test]
fn start_failures_are_reported_with_reason_and_remedy() {
    let folder = scratch("service-refused");
    let file = folder.join("hornwork.toml");
    assert_eq!(run(&file, &[]).status.code(), Some(2), "no such file");

    std::fs::write(&file, "[[interface]]\nname = 1\n").expect("file");
    let output = run(&file, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error(&output).contains("hornwork.toml:2:8:"),
        "{}",
        error(&output)
    );

    let taken = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let port = taken.local_addr().expect("address").port();
    let text = example("loopback.toml", port, free_port(), media_ports(100), "");
    std::fs::write(&file, text).expect("file");
    let output = run(&file, &[]);
    assert_eq!(output.status.code(), Some(3));
    let messages = error(&output);
    assert!(
        messages.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{messages}"
    );
    assert!(messages.contains("remedy:"), "{messages}");

    let output = run(&root().join("examples/loopback.toml"), &["--role", "media"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("remedy:"));
    let output = run(
        &root().join("examples/loopback.toml"),
        &["--role", "nothing"],
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn unknown_commands_are_refused() {
    for command in ["console", "gateway", "tops"] {
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .arg(command)
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
}

#[test]
fn packaged_configuration_and_unit_match() {
    let packaging = root().join("packaging");
    let check = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["check", "-c"])
        .arg(packaging.join("hornwork.toml"))
        .output()
        .expect("the program starts");
    assert!(check.status.success(), "{}", error(&check));
    let unit = std::fs::read_to_string(packaging.join("hornwork.service")).expect("unit");
    let user = std::fs::read_to_string(packaging.join("hornwork.sysusers")).expect("user");
    assert!(unit.contains("User=hornwork\n") && user.contains("\nu hornwork "));
    assert!(unit.contains("Type=notify\n") && unit.contains("NoNewPrivileges=yes\n"));
    // A drop-in with another command removes that of the unit (systemd.service(5)).
    let page = std::fs::read_to_string(packaging.join("README.md")).expect("page");
    let drop_ins = page.split("```ini\n").skip(1);
    let roles = drop_ins.filter_map(|rest| rest.split("```").next());
    let roles: Vec<&str> = roles.filter(|text| text.contains("ExecStart=")).collect();
    assert_eq!(roles.len(), 2, "{roles:?}");
    for text in roles {
        assert!(text.starts_with("[Service]\nExecStart=\nExecStart=/usr/bin/hornwork run --role "));
    }
    // The daemon of a key exchange outlives the beginning of the drain.
    assert!(unit.contains("\nKillMode=mixed\n"), "{unit}");
}

/// systemd ignores RestartPreventExitStatus= for the commands before ExecStart= (systemd.service(5)): a mistake in the
/// configuration would be an endless restart.
#[test]
fn mistake_in_the_configuration_is_not_restarted() {
    let packaging = root().join("packaging");
    let unit = std::fs::read_to_string(packaging.join("hornwork.service")).expect("unit");
    let setting = |key: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(key));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(setting("Restart="), ["on-failure"]);
    assert_eq!(setting("RestartPreventExitStatus="), ["2"]);
    assert!(setting("ExecStartPre=").is_empty() && setting("ExecCondition=").is_empty());
    let folder = scratch("service-mistake");
    let file = folder.join("hornwork.toml");
    std::fs::write(&file, "[[interface]]\nname = \"x\"\nalow = 1\n").expect("file");
    let output = run(&file, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("unknown key `alow`"));
}

/// Permitted exposure levels of the unit, in tenths of systemd's points from 0 to 100, without and with the
/// capabilities for the faster media paths: 1.7 is typical of a network service; loading BPF programs and access to
/// interfaces need more.
const EXPOSURES: [(&str, &[&str]); 3] = [
    ("20", &[]),
    ("22", &["fast.conf"]),
    ("26", &["fast.conf", "xdp.conf"]),
];

#[test]
fn systemd_accepts_the_unit_and_rates_it_confined() {
    if !installed(&["systemd-analyze"]) {
        return;
    }
    for (exposure, additions) in EXPOSURES {
        let folder = scratch(&format!("service-unit-{exposure}"));
        let packaging = root().join("packaging");
        let unit = std::fs::read_to_string(packaging.join("hornwork.service")).expect("unit");
        let file = folder.join("hornwork.service");
        // Without an installation, the program just built is used.
        let unit = unit.replace("/usr/bin/hornwork", env!("CARGO_BIN_EXE_hornwork"));
        std::fs::write(&file, unit).expect("unit");
        for addition in additions {
            let beside = folder.join("hornwork.service.d");
            std::fs::create_dir_all(&beside).expect("folder");
            let from = packaging.join(format!("hornwork-{addition}"));
            std::fs::copy(from, beside.join(addition)).expect("addition");
        }
        confined(&file, exposure);
    }
}

fn confined(file: &Path, exposure: &str) {
    for arguments in [
        &["verify"][..],
        &["security", "--offline=true", "--threshold", exposure],
    ] {
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .arg(file)
            .output()
            .expect("systemd-analyze starts");
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            error(&output)
        );
    }
    let messages = Command::new("systemd-analyze")
        .arg("verify")
        .arg(file)
        .output()
        .expect("systemd-analyze starts");
    assert!(messages.stderr.is_empty(), "{}", error(&messages));
}

/// A SIP peer implemented by hand.
struct Peer(UdpSocket);

impl Peer {
    fn new(port: u16) -> Peer {
        let socket = UdpSocket::bind(("127.0.0.1", port)).expect("socket");
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("timeout");
        Peer(socket)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("address").port()
    }

    fn send(&self, to: u16, text: &str) {
        self.0
            .send_to(text.as_bytes(), ("127.0.0.1", to))
            .expect("sent");
    }

    /// The next message that begins like this; others are ignored.
    fn expect(&self, start: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let length = self
                .0
                .recv(&mut bytes)
                .unwrap_or_else(|e| panic!("no {start}: {e}"));
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.starts_with(start) {
                return text;
            }
        }
    }
}

/// All header lines of this name.
fn lines(message: &str, name: &str) -> String {
    message
        .lines()
        .filter(|line| line.starts_with(&format!("{name}:")))
        .map(|line| format!("{line}\r\n"))
        .collect()
}

fn value(message: &str, name: &str) -> String {
    lines(message, name)
        .trim()
        .split_once(": ")
        .map_or_else(String::new, |(_, v)| v.to_owned())
}

#[test]
fn media_port_in_use_by_another_program_is_skipped() {
    let folder = scratch("service-ports");
    let (sip, trunk) = (free_port(), free_port());
    let (first, last) = media_ports(8);
    let text = example("loopback.toml", sip, trunk, (first, last), "");
    let text = text.replace("level = \"warn\"", "level = \"info\"");
    // Two of the four pairs have one port in use.
    let _taken =
        [first + 1, first + 6].map(|port| UdpSocket::bind(("127.0.0.1", port)).expect("port"));
    let process = border(&folder, &text, sip);
    let (caller, callee) = (Peer::new(0), Peer::new(trunk));
    let port = caller.port();
    let sdp = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 31500 RTP/AVP 0\r\n";
    caller.send(
        sip,
        &format!(
            "INVITE sip:1@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKports\r\nMax-Forwards: 70\r\n\
             From: <sip:a@127.0.0.1>;tag=f\r\nTo: <sip:1@127.0.0.1>\r\nCall-ID: ports\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@127.0.0.1:{port}>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
            sdp.len()
        ),
    );
    let offered = callee.expect("INVITE");
    let media = offered
        .split("m=audio ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a media line");
    let free = [first + 2, first + 4].map(|port| port.to_string());
    assert!(free.iter().any(|port| port == media), "{offered}");
    until(&process, |messages| {
        let taken = messages.matches("media_port_in_use").count();
        // Each of the two was either found in use or not needed.
        taken <= 2
    });
    assert!(
        UdpSocket::bind(("127.0.0.1", first)).is_ok(),
        "the other half is free"
    );
}

#[test]
fn reload_keeps_calls_first_stop_waits_and_second_does_not() {
    let folder = scratch("service-drain");
    let (sip, trunk) = (free_port(), free_port());
    let text = example("loopback-bypass.toml", sip, trunk, media_ports(100), "");
    let text = text.replace("level = \"warn\"", "level = \"info\"");
    let mut process = border(&folder, &text, sip);
    let (caller, callee) = (Peer::new(0), Peer::new(trunk));
    let port = caller.port();
    let invite = |call: &str| {
        format!(
            "INVITE sip:1@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bK{call}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@127.0.0.1>;tag=f{call}\r\nTo: <sip:1@127.0.0.1>\r\nCall-ID: {call}\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@127.0.0.1:{port}>\r\nContent-Length: 0\r\n\r\n"
        )
    };
    caller.send(sip, &invite("one"));
    let offered = callee.expect("INVITE");
    let contact = format!("Contact: <sip:b@127.0.0.1:{trunk}>\r\n");
    let answer = |status: &str, request: &str, more: &str| {
        format!(
            "SIP/2.0 {status}\r\n{}{}To: {};tag=t\r\n{}{}{more}Content-Length: 0\r\n\r\n",
            lines(request, "Via"),
            lines(request, "From"),
            value(request, "To")
                .split(";tag")
                .next()
                .unwrap_or_default(),
            lines(request, "Call-ID"),
            lines(request, "CSeq"),
        )
    };
    callee.send(sip, &answer("200 OK", &offered, &contact));
    let answered = caller.expect("SIP/2.0 200");
    let ack = format!(
        "ACK sip:1@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKack\r\nMax-Forwards: 70\r\n\
         From: <sip:a@127.0.0.1>;tag=fone\r\nTo: {}\r\nCall-ID: one\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n",
        value(&answered, "To")
    );
    caller.send(sip, &ack);
    callee.expect("ACK");

    // A reload does not affect the call.
    let changed = format!("{text}\n[sip]\nagent = \"Changed\"\nring_timeout_s = 20\n");
    std::fs::write(folder.join("hornwork.toml"), changed).expect("file");
    process.signal("HUP");
    until(&process, |messages| {
        messages.contains("configuration_reloaded")
    });
    until(&process, |messages| {
        messages.contains("changes in [sip] take effect at the next start")
    });

    process.signal("TERM");
    until(&process, |messages| messages.contains("drain_started"));
    caller.send(sip, &invite("two"));
    let refused = caller.expect("SIP/2.0 503");
    assert!(
        refused.contains("Call-ID: two") && refused.contains("Retry-After:"),
        "{refused}"
    );
    assert_eq!(
        process.wait(Duration::from_millis(500)),
        None,
        "the call is still up"
    );

    process.signal("TERM");
    let bye = callee.expect("BYE");
    callee.send(sip, &answer("200 OK", &bye, ""));
    let bye = caller.expect("BYE");
    caller.send(sip, &answer("200 OK", &bye, ""));
    assert_eq!(
        process.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        process.log()
    );
}

fn md5(text: &str) -> String {
    use md5::Digest as _;
    let hash = md5::Md5::digest(text);
    hash.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// A parameter of a challenge or of credentials.
fn parameter(header: &str, name: &str) -> String {
    header
        .split([',', ' '])
        .filter_map(|part| part.split_once('='))
        .find(|(key, _)| *key == name)
        .map_or_else(String::new, |(_, value)| value.trim_matches('"').to_owned())
}

/// A REGISTER of user 1000, with credentials for the challenge computed by hand from RFC 2617 section 3.2.2.
fn register(sip: u16, port: u16, number: u32, challenge: Option<(&str, &str)>) -> (String, String) {
    let uri = format!("sip:127.0.0.1:{sip}");
    let mut response = String::new();
    let authorization = challenge.map_or_else(String::new, |(challenge, password)| {
        let (realm, nonce) = (parameter(challenge, "realm"), parameter(challenge, "nonce"));
        let secret = md5(&format!("1000:{realm}:{password}"));
        let what = md5(&format!("REGISTER:{uri}"));
        response = md5(&format!("{secret}:{nonce}:00000001:0a4f113b:auth:{what}"));
        format!(
            "Authorization: Digest username=\"1000\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{uri}\", response=\"{response}\", \
             algorithm=MD5, cnonce=\"0a4f113b\", qop=auth, nc=00000001\r\n"
        )
    });
    let request = format!(
        "REGISTER {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKsecret{number}\r\nMax-Forwards: 70\r\n\
         From: <sip:1000@127.0.0.1>;tag=s\r\nTo: <sip:1000@127.0.0.1>\r\nCall-ID: secrets\r\nCSeq: {number} REGISTER\r\n\
         Contact: <sip:1000@127.0.0.1:{port}>\r\n{authorization}Content-Length: 0\r\n\r\n"
    );
    (request, response)
}

#[test]
fn log_contains_no_passwords_or_credentials() {
    let folder = scratch("service-secrets");
    let (sip, trunk) = (free_port(), free_port());
    let carrier = Peer::new(trunk);
    let more = format!(
        "[log]\nlevel = \"trace\"\n[[trunk]]\nname = \"carrier\"\ntarget = \"udp:127.0.0.1:{trunk}\"\n\
                username = \"4711\"\npassword = \"carrier-password\"\nregister = {{}}\n"
    );
    let text = example("loopback-uc.toml", sip, trunk, media_ports(100), &more);
    let mut process = border(&folder, &text, sip);

    // As server: challenged, challenged again with a wrong password, accepted with the right one.
    let phone = Peer::new(0);
    phone.send(sip, &register(sip, phone.port(), 1, None).0);
    let challenge = value(&phone.expect("SIP/2.0 401"), "WWW-Authenticate");
    let (wrong, wrong_response) =
        register(sip, phone.port(), 2, Some((&challenge, "wrong-password")));
    phone.send(sip, &wrong);
    let refused = phone.expect("SIP/2.0 401");
    assert!(refused.contains("CSeq: 2 REGISTER"), "{refused}");
    let challenge = value(&refused, "WWW-Authenticate");
    let (right, right_response) = register(sip, phone.port(), 3, Some((&challenge, "secret-1000")));
    phone.send(sip, &right);
    phone.expect("SIP/2.0 200");

    // As client: the carrier's challenge is answered.
    let asked = carrier.expect("REGISTER");
    let head = |status: &str, request: &str, more: &str| {
        format!(
            "SIP/2.0 {status}\r\n{}{}To: {};tag=c\r\n{}{}{more}Content-Length: 0\r\n\r\n",
            lines(request, "Via"),
            lines(request, "From"),
            value(request, "To"),
            lines(request, "Call-ID"),
            lines(request, "CSeq"),
        )
    };
    let demand = "WWW-Authenticate: Digest realm=\"carrier\", nonce=\"f00f\", algorithm=MD5, qop=\"auth\"\r\n";
    carrier.send(sip, &head("401 Unauthorized", &asked, demand));
    let proved = loop {
        let request = carrier.expect("REGISTER");
        if request.contains("Authorization:") {
            break request;
        }
    };
    let contact = format!("{}Expires: 600\r\n", lines(&proved, "Contact"));
    carrier.send(sip, &head("200 OK", &proved, &contact));
    let carrier_response = parameter(&value(&proved, "Authorization"), "response");
    assert_eq!(carrier_response.len(), 32, "{proved}");

    until(&process, |messages| {
        messages.contains("registration_stored aor=1000")
            && messages.contains("carrier_registration trunk=carrier state=registered")
    });
    process.signal("HUP");
    until(&process, |messages| {
        messages.contains("configuration_reloaded")
    });
    process.signal("INT");
    process.signal("INT");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
    let messages = process.log();
    for secret in [
        "secret-1000",
        "wrong-password",
        "carrier-password",
        &wrong_response,
        &right_response,
        &carrier_response,
    ] {
        assert!(
            !messages.contains(secret),
            "{secret:?} is in the log:\n{messages}"
        );
    }
}
