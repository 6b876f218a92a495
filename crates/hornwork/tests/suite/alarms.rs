//! Alarms told to receivers outside of the border: plain receivers over HTTP, TCP and UDP, and the receivers of others
//! (snmptrapd, rsyslogd).

use crate::common;
use crate::operators::{ctl, ctl_json, metric, metrics, until};

use common::certificates::Authority;
use common::{Process, border, example, free_port, installed, media_ports, root, scratch};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A trunk that answers OPTIONS while it is on; otherwise its port is closed.
struct Trunk {
    on: Arc<AtomicBool>,
}

impl Trunk {
    fn start(port: u16) -> Trunk {
        let on = Arc::new(AtomicBool::new(false));
        let is_on = on.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(50));
                if is_on.load(Ordering::Relaxed) {
                    answer_options(port, &is_on);
                }
            }
        });
        Trunk { on }
    }

    fn set(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }
}

fn answer_options(port: u16, is_on: &AtomicBool) {
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("trunk");
    let limit = Duration::from_millis(50);
    socket.set_read_timeout(Some(limit)).expect("timeout");
    let mut bytes = [0; 4_096];
    while is_on.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let kept = text.lines().filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            ["Via", "From", "To", "Call-ID", "CSeq"].contains(&name)
        });
        let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
        let answer = format!("SIP/2.0 200 OK\r\n{kept}Content-Length: 0\r\n\r\n");
        let _ = socket.send_to(answer.as_bytes(), from);
    }
}

fn configuration(folder: &Path, ports: (u16, u16, u16), receivers: &str) -> String {
    let (sip, trunk, scrape) = ports;
    let more = format!(
        "[control]\nsocket=\"{}\"\n[metrics]\nlisten=\"127.0.0.1:{scrape}\"\n{receivers}",
        folder.join("control.sock").display(),
    );
    example("loopback.toml", sip, trunk, media_ports(20), &more).replace(
        "[[route]]",
        "ping_interval_s = 1\nping_failures = 1\n[[route]]",
    )
}

fn secret_file(folder: &Path) -> String {
    let path = folder.join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).expect("secret");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
    path.display().to_string()
}

/// Requests that an HTTP server got, as heads and bodies.
type Requests = Arc<Mutex<Vec<(String, String)>>>;

/// An HTTP server that answers with `statuses` in order, and with 204 behind them.
fn http_server(port: u16, statuses: &'static [u16]) -> Requests {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("HTTP server");
    let requests = Requests::default();
    let got = requests.clone();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let mut text = String::new();
            let mut bytes = [0; 4_096];
            let complete = |text: &str| {
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head
                    .lines()
                    .find_map(|line| {
                        line.to_ascii_lowercase()
                            .strip_prefix("content-length: ")?
                            .parse()
                            .ok()
                    })
                    .unwrap_or(0_usize);
                (body.len() >= length).then(|| (head.to_owned(), body.to_owned()))
            };
            let request = loop {
                let length = stream.read(&mut bytes).expect("a request");
                text.push_str(&String::from_utf8_lossy(&bytes[..length]));
                if let Some(request) = complete(&text) {
                    break request;
                }
                assert!(length > 0, "cut off: {text}");
            };
            got.lock().unwrap().push(request);
            let status = statuses.get(at).copied().unwrap_or(204);
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).expect("an answer");
        }
    });
    requests
}

/// HMAC-SHA256 of a body, computed by openssl.
fn openssl_hmac(folder: &Path, body: &str) -> String {
    let file = folder.join("body");
    std::fs::write(&file, body).expect("body");
    let output = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", SECRET])
        .arg(&file)
        .output()
        .expect("openssl");
    let text = String::from_utf8(output.stdout).expect("text");
    text.rsplit(' ').next().expect("digest").trim().to_owned()
}

#[test]
fn webhook_gets_each_change_once_signed_and_after_an_error_again() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("alarms-webhook");
    let ports = (free_port(), free_port(), free_port());
    let (hook, dead) = (free_port(), free_port());
    let requests = http_server(hook, &[503]);
    let trunk = Trunk::start(ports.1);
    let receivers = format!(
        "[alarms]\nsource=\"border-1\"\n[[alarms.webhook]]\nurl=\"http://localhost:{hook}/hooks/a?b=c\"\nsecret_file=\"{}\"\n[[alarms.webhook]]\nurl=\"http://127.0.0.1:{dead}/\"\nseverity=\"critical\"\n",
        secret_file(&folder),
    );
    let border = border(&folder, &configuration(&folder, ports, &receivers), ports.0);
    let bodies = || -> Vec<Value> {
        let requests = requests.lock().unwrap();
        let parsed = requests.iter().map(|(_, body)| serde_json::from_str(body));
        parsed.map(|body| body.expect("JSON")).collect()
    };
    let has = |alarm: &str, change: &str| {
        let fits = |body: &Value| body["alarm"] == alarm && body["change"] == change;
        bodies().into_iter().find(fits)
    };
    until("the trunk is down", || {
        has("trunk_down", "raised").is_some()
    });
    let id = has("trunk_down", "raised").expect("raised")["id"].clone();
    assert!(
        ctl(&folder, &["alarms", "acknowledge", &id.to_string()])
            .status
            .success()
    );
    until("it is acknowledged", || {
        has("trunk_down", "acknowledged").is_some()
    });
    // A second acknowledgement changes nothing, so that it is not told.
    assert!(
        ctl(&folder, &["alarms", "acknowledge", &id.to_string()])
            .status
            .success()
    );
    trunk.set(true);
    until("it is cleared", || has("trunk_down", "cleared").is_some());
    let acknowledged = has("trunk_down", "acknowledged").expect("acknowledged");
    assert_eq!(acknowledged["acknowledged_by"], "local socket");
    let cleared = has("trunk_down", "cleared").expect("cleared");
    assert_eq!(
        (&cleared["object"], &cleared["severity"]),
        (&"server".into(), &"critical".into())
    );
    assert_eq!(
        (&cleared["id"], &cleared["source"]),
        (&id, &"border-1".into())
    );
    assert!(cleared["cleared"].is_string());
    // The first request was refused with 503; the same notice came again. No other came twice.
    let mut numbers: Vec<u64> = bodies()
        .iter()
        .map(|body| body["notice"].as_u64().expect("number"))
        .collect();
    assert_eq!(numbers[0], numbers[1]);
    numbers.remove(0);
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(numbers, distinct);
    for (head, body) in requests.lock().unwrap().iter() {
        assert!(head.starts_with("POST /hooks/a?b=c HTTP/1.1\r\n"), "{head}");
        let signature = format!(
            "x-hornwork-signature: sha256={}",
            openssl_hmac(&folder, body)
        );
        assert!(head.to_ascii_lowercase().contains(&signature), "{head}");
        assert!(
            head.to_ascii_lowercase()
                .contains(&format!("host: localhost:{hook}\r\n"))
        );
    }
    // The other receiver refuses connections: that is an alarm of its own, and its notices wait.
    let down = has("receiver_down", "raised").expect("an alarm about the dead receiver");
    assert_eq!(down["object"], format!("webhook http://127.0.0.1:{dead}"));
    let text = metrics(ports.2);
    let dead = format!("receiver=\"webhook http://127.0.0.1:{dead}\"");
    assert!(
        text.contains(&format!("hornwork_alarm_receiver_failing{{{dead}}} 1")),
        "{text}"
    );
    assert!(
        text.contains(&format!("hornwork_alarm_notices_waiting{{{dead}}} 3")),
        "{text}"
    );
    assert!(text.contains(&format!(
        "hornwork_alarm_notices_total{{{dead},result=\"sent\"}} 0"
    )));
    assert!(!border.log().contains(SECRET));
}

#[test]
fn full_queue_of_a_silent_receiver_is_counted_and_calls_go_on() {
    let folder = scratch("alarms-silent");
    let ports = (free_port(), free_port(), free_port());
    // A server that accepts connections, and never reads or answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("listener");
    let port = silent.local_addr().expect("address").port();
    let trunk = Trunk::start(ports.1);
    let receivers = format!(
        "[alarms]\nqueue=1\nretry_s=2\n[[alarms.webhook]]\nurl=\"http://127.0.0.1:{port}/\"\ntimeout_s=1\n"
    );
    let _border = border(&folder, &configuration(&folder, ports, &receivers), ports.0);
    let lost = || {
        let text = metrics(ports.2);
        let name = format!(
            "hornwork_alarm_notices_total{{receiver=\"webhook http://127.0.0.1:{port}\",result=\"lost\"}} "
        );
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        line.expect("a count")
    };
    for _ in 0..2 {
        until("the trunk is down", || active(&folder, "trunk_down"));
        trunk.set(true);
        until("the trunk is up", || !active(&folder, "trunk_down"));
        trunk.set(false);
    }
    until("losses are counted", || lost() >= 3);
    assert!(common::serves(ports.0));
    until("the loss is logged", || {
        let log = std::fs::read_to_string(folder.join("border.log")).unwrap_or_default();
        log.contains("receiver_lost") && log.contains("receiver_failed")
    });
}

#[test]
fn the_alarm_of_a_removed_trunk_ends_with_the_reload() {
    let folder = scratch("alarms-removed");
    let ports = (free_port(), free_port(), free_port());
    Trunk::start(ports.1).set(true);
    let text = configuration(&folder, ports, "");
    // Nothing listens at its port.
    let old = "[[trunk]]\nname = \"old\"\ntarget = \"udp:127.0.0.1:9\"\nping_interval_s = 1\nping_failures = 1\n";
    let _border = border(&folder, &format!("{text}\n{old}"), ports.0);
    let is_healthy = || ctl(&folder, &["health"]).status.success();
    until("the alarm of the trunk", || {
        active(&folder, "trunk_down") && !is_healthy()
    });
    std::fs::write(folder.join("hornwork.toml"), text).expect("configuration");
    assert!(ctl(&folder, &["reload"]).status.success());
    until("the reload has ended it", || {
        !active(&folder, "trunk_down") && is_healthy()
    });
    let name = "hornwork_alarms_active{severity=\"critical\"}";
    assert_eq!(metric(&metrics(ports.2), name), 0);
}

fn active(folder: &Path, name: &str) -> bool {
    let alarms = ctl_json(folder, &["alarms", "list"]);
    let alarms = alarms.as_array().expect("alarms").clone();
    alarms
        .iter()
        .any(|alarm| alarm["alarm"] == name && alarm["cleared"].is_null())
}

/// Minimal forms of the standard's modules that the MIB imports: Debian has none of them, because the licence of the
/// RFCs does not permit it. The macros are part of the parser.
fn standard_modules(folder: &Path) {
    for (name, text) in [
        (
            "SNMPv2-SMI",
            "org OBJECT IDENTIFIER ::= { iso 3 }\ndod OBJECT IDENTIFIER ::= { org 6 }\ninternet OBJECT IDENTIFIER ::= { dod 1 }\nprivate OBJECT IDENTIFIER ::= { internet 4 }\nenterprises OBJECT IDENTIFIER ::= { private 1 }\n",
        ),
        ("SNMPv2-CONF", ""),
        (
            "SNMPv2-TC",
            "DateAndTime ::= TEXTUAL-CONVENTION\n DISPLAY-HINT \"2d-1d-1d,1d:1d:1d.1d,1a1d:1d\"\n STATUS current\n DESCRIPTION \"x\"\n SYNTAX OCTET STRING (SIZE (8 | 11))\n",
        ),
        (
            "SNMP-FRAMEWORK-MIB",
            "SnmpAdminString ::= TEXTUAL-CONVENTION\n DISPLAY-HINT \"255t\"\n STATUS current\n DESCRIPTION \"x\"\n SYNTAX OCTET STRING (SIZE (0..255))\n",
        ),
    ] {
        let text = format!("{name} DEFINITIONS ::= BEGIN\n{text}END\n");
        std::fs::write(folder.join(format!("{name}.txt")), text).expect("module");
    }
}

#[test]
fn snmptrapd_prints_traps_and_acknowledges_informs() {
    if !installed(&["snmptrapd", "snmptranslate"]) {
        return;
    }
    let folder = scratch("alarms-snmp");
    standard_modules(&folder);
    let modules = format!(
        "{}:{}",
        folder.display(),
        root().join("packaging/snmp").display()
    );
    let translated = Command::new("snmptranslate")
        .args([
            "-M",
            &modules,
            "-m",
            "HORNWORK-MIB",
            "-Pu",
            "-On",
            "HORNWORK-MIB::hornworkAlarmRaised",
        ])
        .env("HOME", &folder)
        .output()
        .expect("snmptranslate");
    let said = String::from_utf8_lossy(&translated.stderr).into_owned();
    assert!(
        said.is_empty() || said.starts_with("Created directory"),
        "{said}"
    );
    let said = String::from_utf8_lossy(&translated.stdout).into_owned();
    assert_eq!(said.trim(), ".1.3.6.1.4.1.32473.5060.0.1");
    let ports = (free_port(), free_port(), free_port());
    let (port, absent) = (free_port(), free_port());
    let rules = folder.join("snmptrapd.conf");
    std::fs::write(&rules, "authCommunity log secretive\n").expect("configuration");
    let trapd = Process::start(
        Command::new("snmptrapd")
            .args(["-f", "-Lo", "-n", "-C", "-c"])
            .arg(&rules)
            .args(["-M", &modules, "-m", "HORNWORK-MIB"])
            .arg(format!("udp:127.0.0.1:{port}"))
            .env("SNMP_PERSISTENT_DIR", folder.join("state"))
            .env("HOME", &folder),
        &folder.join("snmptrapd.log"),
    )
    .at_port(port);
    let trunk = Trunk::start(ports.1);
    let receivers = format!(
        "[[alarms.snmp]]\ntarget=\"udp:127.0.0.1:{port}\"\ncommunity=\"secretive\"\n[[alarms.snmp]]\ntarget=\"udp:127.0.0.1:{port}\"\ncommunity=\"secretive\"\ninform=true\n[[alarms.snmp]]\ntarget=\"udp:127.0.0.1:{absent}\"\n"
    );
    let _border = border(&folder, &configuration(&folder, ports, &receivers), ports.0);
    let of = |kind: &str| {
        let log = trapd.log();
        let kind = format!("OID: HORNWORK-MIB::{kind}\t");
        let name = "HORNWORK-MIB::hornworkAlarmName.0 = STRING: trunk_down";
        let lines = log
            .lines()
            .filter(|line| line.contains(&kind) && line.contains(name));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    // As a trap and as an inform. The alarm about the absent receiver may come before that about the trunk.
    until("the alarm is there", || {
        of("hornworkAlarmRaised").len() == 2
    });
    trunk.set(true);
    until("the end is there", || of("hornworkAlarmCleared").len() == 2);
    let raised = of("hornworkAlarmRaised");
    assert_eq!(
        raised.len(),
        2,
        "an inform that was acknowledged is not repeated"
    );
    for part in [
        "HORNWORK-MIB::hornworkAlarmSeverity.0 = INTEGER: critical(1)",
        "HORNWORK-MIB::hornworkAlarmObject.0 = STRING: server",
        "HORNWORK-MIB::hornworkAlarmRaisedAt.0 = STRING: 20",
    ] {
        assert!(raised[0].contains(part), "{part} in {raised:?}");
    }
    let text = metrics(ports.2);
    let count = |receiver: &str, result: &str| {
        let name = format!(
            "hornwork_alarm_notices_total{{receiver=\"snmp udp:127.0.0.1:{receiver}\",result=\"{result}\"}} "
        );
        text.lines()
            .find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
    };
    assert!(count(&port.to_string(), "sent") >= Some(2), "{text}");
    assert!(count(&format!("{port} #2"), "sent") >= Some(2), "{text}");
    assert_eq!(
        count(&absent.to_string(), "sent"),
        Some(0),
        "its port is closed"
    );
}

/// Octet-counted messages on a TCP listener.
fn syslog_server(port: u16) -> Arc<Mutex<String>> {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("syslog server");
    let got = Arc::<Mutex<String>>::default();
    let text = got.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut frame = String::new();
            stream
                .expect("a connection")
                .read_to_string(&mut frame)
                .expect("text");
            let (length, message) = frame.split_once(' ').expect("a length");
            assert_eq!(length.parse(), Ok(message.len()), "{frame}");
            text.lock().unwrap().push_str(&format!("{message}\n"));
        }
    });
    got
}

#[test]
fn syslog_servers_get_alarms_over_udp_tcp_and_tls() {
    let folder = scratch("alarms-syslog");
    let ports = (free_port(), free_port(), free_port());
    let (udp, tcp, tls) = (free_port(), free_port(), free_port());
    let datagrams = UdpSocket::bind(("127.0.0.1", udp)).expect("syslog server");
    datagrams
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("timeout");
    let stream = syslog_server(tcp);
    let authority = Authority::new(&folder, "ca");
    authority.issue("server", "localhost");
    authority.issue("border", "border.example.com");
    let path = |name: &str| folder.join(name).display().to_string();
    // rsyslogd with the usual driver for TLS, where Debian's package of it is installed.
    let driver = Path::new("/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so");
    let exists = Path::new("/usr/sbin/rsyslogd").exists() || installed(&["rsyslogd"]);
    let rsyslogd = exists && driver.exists();
    if !rsyslogd {
        eprintln!("skipped: not installed: rsyslogd with rsyslog-gnutls");
    }
    let _server = rsyslogd.then(|| {
        let text = format!(
            "global(workDirectory=\"{}\" defaultNetstreamDriverCAFile=\"{}\" defaultNetstreamDriverCertFile=\"{}\" defaultNetstreamDriverKeyFile=\"{}\")\nmodule(load=\"imtcp\" StreamDriver.Name=\"gtls\" StreamDriver.Mode=\"1\" StreamDriver.AuthMode=\"x509/certvalid\")\ninput(type=\"imtcp\" port=\"{tls}\" address=\"127.0.0.1\")\ntemplate(name=\"t\" type=\"string\" string=\"%syslogfacility-text%.%syslogseverity-text% %hostname% %app-name% %msgid% %structured-data% %msg%\\n\")\n*.* action(type=\"omfile\" file=\"{}\" template=\"t\")\n",
            folder.display(), path("ca.pem"), path("server.pem"), path("server.key"), path("messages"),
        );
        std::fs::write(folder.join("rsyslog.conf"), text).expect("configuration");
        Process::start(
            Command::new("/usr/sbin/rsyslogd").args(["-n", "-f"]).arg(folder.join("rsyslog.conf")).arg("-i").arg(folder.join("pid")),
            &folder.join("rsyslogd.log"),
        )
        .at_port(tls)
    });
    let secure = match rsyslogd {
        true => format!(
            "[[alarms.syslog]]\ntarget=\"tls:localhost:{tls}\"\nfacility=\"local3\"\nca=\"{}\"\ncertificate={{chain=\"{}\",key=\"{}\"}}\n",
            path("ca.pem"),
            path("border.pem"),
            path("border.key"),
        ),
        false => String::new(),
    };
    let trunk = Trunk::start(ports.1);
    let receivers = format!(
        "[alarms]\nsource=\"border-1\"\n[[alarms.syslog]]\ntarget=\"udp:127.0.0.1:{udp}\"\n[[alarms.syslog]]\ntarget=\"tcp:127.0.0.1:{tcp}\"\nfacility=\"local3\"\n{secure}"
    );
    let _border = border(&folder, &configuration(&folder, ports, &receivers), ports.0);
    let mut bytes = [0; 2_048];
    let length = datagrams.recv(&mut bytes).expect("a datagram");
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    // daemon (3) and alert (1): RFC 5674 has critical alarms there.
    assert!(message.starts_with("<25>1 20"), "{message}");
    assert!(message.contains("Z border-1 hornwork "), "{message}");
    assert!(
        message.contains(" trunk_down [hornwork@32473 notice=\"1\" change=\"raised\""),
        "{message}"
    );
    trunk.set(true);
    until("the end is there over TCP", || {
        stream
            .lock()
            .unwrap()
            .contains("trunk_down server cleared after")
    });
    assert!(
        stream.lock().unwrap().contains("<153>1 "),
        "local3 and alert"
    );
    if rsyslogd {
        let read = || std::fs::read_to_string(folder.join("messages")).unwrap_or_default();
        until("rsyslogd has both", || {
            let text = read();
            text.contains("local3.alert border-1 hornwork trunk_down [hornwork@32473 ")
                && text.contains("local3.notice border-1 hornwork trunk_down [hornwork@32473 ")
        });
    }
}

#[test]
fn https_webhook_verifies_the_server() {
    if !installed(&["python3"]) {
        return;
    }
    let folder = scratch("alarms-https");
    let ports = (free_port(), free_port(), free_port());
    let (good, wrong) = (free_port(), free_port());
    let authority = Authority::new(&folder, "ca");
    authority.issue("server", "localhost");
    let other = Authority::new(&folder, "other");
    other.issue("stranger", "localhost");
    let path = |name: &str| folder.join(name).display().to_string();
    let script = "import http.server, ssl, sys\nclass H(http.server.BaseHTTPRequestHandler):\n def do_POST(self):\n  self.rfile.read(int(self.headers['Content-Length']))\n  self.send_response(200)\n  self.end_headers()\ns = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H)\nc = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\nc.load_cert_chain(sys.argv[2], sys.argv[3])\ns.socket = c.wrap_socket(s.socket, server_side=True)\ns.serve_forever()\n";
    let server = |port: u16, name: &str| {
        Process::start(
            Command::new("python3")
                .args(["-c", script, &port.to_string()])
                .args([path(&format!("{name}.pem")), path(&format!("{name}.key"))]),
            &folder.join(format!("{name}.log")),
        )
        .at_port(port)
    };
    let _servers = (server(good, "server"), server(wrong, "stranger"));
    let _trunk = Trunk::start(ports.1);
    let receivers: String = [good, wrong]
        .iter()
        .map(|port| {
            format!(
                "[[alarms.webhook]]\nurl=\"https://localhost:{port}/\"\nca=\"{}\"\n",
                path("ca.pem")
            )
        })
        .collect();
    let _border = border(&folder, &configuration(&folder, ports, &receivers), ports.0);
    let count = |port: u16, name: &str| {
        let text = metrics(ports.2);
        let line = format!("{name}{{receiver=\"webhook https://localhost:{port}\"");
        let line = text
            .lines()
            .find(|found| found.starts_with(&line))
            .map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    until("the known server got it", || {
        count(good, "hornwork_alarm_notices_total") >= Some(1)
    });
    until("the other failed", || {
        count(wrong, "hornwork_alarm_receiver_failing") == Some(1)
    });
    assert_eq!(count(wrong, "hornwork_alarm_notices_total"), Some(0));
    // Python ends TLS without close_notify: a response whose length is not told is accepted by its status.
    let posts = std::fs::read_to_string(folder.join("server.log")).unwrap_or_default();
    let posts = posts.matches("POST / HTTP/1.1\" 200").count() as u64;
    assert!(posts <= count(good, "hornwork_alarm_notices_total").unwrap_or(0) + 1);
    let log = std::fs::read_to_string(folder.join("border.log")).unwrap_or_default();
    assert!(
        log.contains("invalid peer certificate: UnknownIssuer"),
        "{log}"
    );
}
