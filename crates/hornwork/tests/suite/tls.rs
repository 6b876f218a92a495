//! TLS of the running border, checked with OpenSSL and Python's ssl.

use crate::common;
use crate::common::certificates;

use certificates::Authority;
use common::{Process, border, free_port, installed, media_ports, scratch};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn options(port: u16, branch: &str) -> String {
    format!(
        "OPTIONS sip:127.0.0.1:{port};transport=tls SIP/2.0\r\nVia: SIP/2.0/TLS 127.0.0.1:9;branch=z9hG4bK{branch}\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@c>\r\nCall-ID: {branch}@test\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    )
}

/// An interactive `openssl s_client`.
struct Client {
    child: Child,
    output: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Client {
    fn start(folder: &Path, port: u16, more: &[&str]) -> Client {
        let mut child = Command::new("openssl")
            .args(["s_client", "-connect", &format!("127.0.0.1:{port}")])
            .args(["-CAfile", "ca.pem", "-verify_return_error", "-ign_eof"])
            .args(more)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl starts");
        let mut out = child.stdout.take().expect("piped");
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(n @ 1..) = out.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Client {
            child,
            output,
            text: String::new(),
        }
    }

    fn send(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        // If the client has ended, its output contains the reason.
        let _ = stdin.write_all(text.as_bytes());
        let _ = stdin.flush();
    }

    /// The output once it contains `wanted`; `None` if the client ends, or stays silent, without it.
    fn until(&mut self, wanted: &str) -> Option<String> {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if self.text.contains(wanted) {
                return Some(std::mem::take(&mut self.text));
            }
            match self
                .output
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An interface with TLS and two names; more lines for its `tls` table.
fn one_interface(port: u16, more: &str) -> String {
    let (first, last) = media_ports(100);
    format!(
        "[[interface]]\nname = \"access\"\nlisten = [\"udp:127.0.0.1:{port}\", \"tls:127.0.0.1:{port}\"]\nmedia = {{ ports = \"{first}-{last}\" }}\n[interface.tls]\ncertificate = [{{ chain = \"first.pem\", key = \"first.key\" }}, {{ chain = \"second.pem\", key = \"second.key\" }}]\n{more}\n"
    )
}

/// Runs the border in a folder: file names are relative to it.
fn in_folder(folder: &Path, text: &str) -> String {
    ["first", "second", "ca", "trunk", "client", "other"]
        .iter()
        .flat_map(|name| [format!("{name}.pem"), format!("{name}.key")])
        .fold(text.to_owned(), |text, name| {
            let absolute = format!("\"{}/{name}\"", folder.display());
            text.replace(&format!("\"{name}\""), &absolute)
        })
}

#[test]
fn openssl_verifies_versions_names_alpn_and_tickets() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("tls-openssl");
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "first.example.com");
    authority.issue("second", "second.example.com");
    let port = free_port();
    let text = in_folder(&folder, &one_interface(port, ""));
    let process = border(&folder, &text, port);
    for (version, protocol) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        for name in ["first.example.com", "second.example.com"] {
            let session = format!("{version}-{name}.session");
            let arguments = [
                version,
                "-servername",
                name,
                "-verify_hostname",
                name,
                "-alpn",
                "sip/2",
            ];
            let mut client = Client::start(
                &folder,
                port,
                &[&arguments[..], &["-sess_out", &session]].concat(),
            );
            client.send(&options(port, "a"));
            let text = client.until("SIP/2.0 200").expect("an answer");
            assert!(text.contains(&format!("New, {protocol}")), "{text}");
            assert!(text.contains("Verification: OK"), "{text}");
            assert!(text.contains("ALPN protocol: sip/2"), "{text}");
            assert!(text.contains(&format!("CN = {name}")), "{text}");
            drop(client);
            let mut client = Client::start(
                &folder,
                port,
                &[&arguments[..], &["-sess_in", &session]].concat(),
            );
            client.send(&options(port, "b"));
            let text = client.until("SIP/2.0 200").expect("an answer");
            assert!(text.contains(&format!("Reused, {protocol}")), "{text}");
        }
    }
    // Old versions and other protocols are refused, and the log contains the reason.
    for (arguments, why) in [
        (&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..], "TLS"),
        (&["-alpn", "h2"][..], "no protocol in common"),
        (
            &["-tls1_2", "-cipher", "AES256-SHA:@SECLEVEL=0"][..],
            "in common",
        ),
    ] {
        let mut client = Client::start(&folder, port, arguments);
        client.send(&options(port, "c"));
        assert_eq!(client.until("SIP/2.0 200"), None, "{arguments:?}");
        // The log is written by a thread of its own, after the connection is closed.
        let refused = || {
            let messages = process.log();
            let mut lines = messages
                .lines()
                .filter(|line| line.contains("tls_handshake_failed"));
            lines.any(|line| line.contains(why))
        };
        let end = Instant::now() + Duration::from_secs(30);
        while !refused() {
            assert!(Instant::now() < end, "{arguments:?}: {}", process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(process.log().contains("certificate_loaded"));
}

#[test]
fn certificates_are_reloaded_while_connections_stay() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("tls-reload");
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "old.example.com");
    authority.issue("second", "second.example.com");
    let port = free_port();
    let text = in_folder(&folder, &one_interface(port, ""));
    let process = border(&folder, &text, port);
    let mut old = Client::start(&folder, port, &["-servername", "old.example.com"]);
    old.send(&options(port, "a"));
    assert!(
        old.until("SIP/2.0 200")
            .expect("an answer")
            .contains("CN = old.example.com")
    );
    // A key that does not match changes nothing.
    std::fs::copy(folder.join("second.key"), folder.join("first.key")).expect("copy");
    process.signal("HUP");
    common_until(&process, "configuration_refused");
    assert!(
        process.log().contains("is not the key of the certificate"),
        "{}",
        process.log()
    );
    authority.issue("first", "new.example.com");
    process.signal("HUP");
    common_until(&process, "names=new.example.com");
    let mut new = Client::start(&folder, port, &["-servername", "new.example.com"]);
    new.send(&options(port, "b"));
    assert!(
        new.until("SIP/2.0 200")
            .expect("an answer")
            .contains("CN = new.example.com")
    );
    old.send(&options(port, "c"));
    assert!(
        old.until("SIP/2.0 200").is_some(),
        "the old connection stands"
    );
}

/// After a crash or a power failure: calls without TLS need no certificate, and the border before it went on as well.
#[test]
fn expired_certificate_does_not_keep_the_border_down() {
    let folder = scratch("tls-start");
    let authority = Authority::new(&folder, "ca");
    authority.issue_until("first", "first.example.com", 2001);
    authority.issue("second", "second.example.com");
    let port = free_port();
    let text = in_folder(&folder, &one_interface(port, ""));
    // OPTIONS over UDP is answered.
    let process = border(&folder, &text, port);
    common_until(&process, "the certificate expired on 2001-12-31");
    let messages = process.log();
    assert!(messages.contains("state=expired"), "{messages}");
    assert!(messages.contains("alarm=certificate"), "{messages}");
    // Other changes take effect: `systemctl reload` checks the file before it sends SIGHUP.
    let file = folder.join("hornwork.toml");
    for (arguments, code) in [(&["check"][..], 0), (&["check", "--strict"], 2)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hornwork"));
        let output = command.args(arguments).arg(&file).output().expect("check");
        let found = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let mut warnings = found.lines().filter(|line| line.starts_with("WARNING: "));
        let names_it =
            |line: &str| line.contains("first.pem: the certificate expired on 2001-12-31");
        assert!(warnings.any(names_it), "{found}");
    }
    process.signal("HUP");
    common_until(&process, "configuration_reloaded");
    // A valid one takes its place, and is not replaced by an expired one.
    authority.issue("first", "first.example.com");
    process.signal("HUP");
    let end = Instant::now() + Duration::from_secs(10);
    while process.log().matches("configuration_reloaded").count() < 2 {
        assert!(Instant::now() < end, "not reloaded: {}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    authority.issue_until("first", "first.example.com", 2002);
    process.signal("HUP");
    common_until(&process, "configuration_refused");
    let messages = process.log();
    assert!(messages.contains("expired on 2002-12-31"), "{messages}");
}

fn common_until(process: &Process, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while !process.log().contains(wanted) {
        assert!(Instant::now() < end, "no {wanted}: {}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn client_certificate_is_required_if_configured() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("tls-mutual");
    let authority = Authority::new(&folder, "ca");
    let other = Authority::new(&folder, "other");
    authority.issue("first", "first.example.com");
    authority.issue("second", "second.example.com");
    authority.issue("client", "client.example.com");
    authority.issue_until("old", "client.example.com", 2020);
    other.issue("stranger", "client.example.com");
    let port = free_port();
    let more = "clients = \"require\"\nclient_ca = \"ca.pem\"";
    let text = in_folder(&folder, &one_interface(port, more));
    let process = border(&folder, &text, port);
    for (certificate, taken) in [
        (Some("client"), true),
        (Some("stranger"), false),
        (Some("old"), false),
        (None, false),
    ] {
        let files = certificate.map(|name| [format!("{name}.pem"), format!("{name}.key")]);
        let arguments: Vec<&str> = match &files {
            Some([chain, key]) => vec!["-cert", chain, "-key", key],
            None => Vec::new(),
        };
        let mut client = Client::start(&folder, port, &arguments);
        client.send(&options(port, "a"));
        assert_eq!(
            client.until("SIP/2.0 200").is_some(),
            taken,
            "{certificate:?}"
        );
    }
    let messages = process.log();
    for why in [
        "not trusted here",
        "shows no certificate",
        "certificate expired on 2020-12-31",
    ] {
        assert!(messages.contains(why), "no {why:?}: {messages}");
    }
}

fn invite(port: u16, call: &str) -> String {
    format!(
        "INVITE sip:1@127.0.0.1:{port};transport=tls SIP/2.0\r\nVia: SIP/2.0/TLS 127.0.0.1:9;branch=z9hG4bK{call}\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:1@c>\r\nCall-ID: {call}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:a@127.0.0.1:9;transport=tls>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Two trunks at one address, distinguished by their certificates (RFC 5922), regardless of the worker with the
/// connection.
#[test]
fn trunk_is_identified_by_its_certificate() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("tls-known");
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "first.example.com");
    authority.issue("second", "second.example.com");
    authority.issue("client", "client.example.com");
    authority.issue("other", "other.example.com");
    let port = free_port();
    let more = "clients = \"request\"\nclient_ca = \"ca.pem\"";
    let trunk = |name: &str, reject: u16| {
        format!(
            "[[trunk]]\nname = \"{name}\"\ntarget = \"tls:127.0.0.1:1\"\ntls = {{ ca = \"ca.pem\", client_names = \"{name}.example.com\" }}\n[[route]]\nfrom_trunk = \"{name}\"\nreject = {reject}\n"
        )
    };
    for workers in [1, 3] {
        let text = one_interface(port, more)
            + &trunk("client", 410)
            + &trunk("other", 413)
            + &format!("[[route]]\nreject = 404\n[sip]\nworkers = {workers}\n");
        let process = border(&folder, &in_folder(&folder, &text), port);
        for (certificate, status) in [("client", "410"), ("other", "413"), ("", "404")] {
            let files = [format!("{certificate}.pem"), format!("{certificate}.key")];
            let arguments: Vec<&str> = match certificate {
                "" => Vec::new(),
                _ => vec!["-cert", &files[0], "-key", &files[1]],
            };
            let mut client = Client::start(&folder, port, &arguments);
            for call in 0..4 {
                client.send(&invite(port, &format!("{workers}{certificate}{call}")));
                let messages = client.until(&format!("SIP/2.0 {status}"));
                assert!(
                    messages.is_some(),
                    "{workers} {certificate}: {}",
                    process.log()
                );
            }
        }
    }
}

/// A trunk's system and a phone in one: the phone's call goes through the border with TLS on both sides.
const CALL: &str = r#"
import socket, ssl, sys, threading
border, trunk = int(sys.argv[1]), int(sys.argv[2])
# Two threads speak: whole lines only.
speaking = threading.Lock()
def print(*words, flush=True):
    with speaking:
        sys.stdout.write(" ".join(str(word) for word in words) + "\n")
        sys.stdout.flush()

class Messages:
    def __init__(self, stream): self.stream, self.buffer = stream, b""
    def next(self):
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if found:
                lines = head.decode().split("\r\n")
                names = [line.partition(":") for line in lines[1:]]
                length = next((int(v) for n, _, v in names if n.lower() == "content-length"), 0)
                if len(rest) >= length:
                    self.buffer = rest[length:]
                    return lines[0], [(n.strip().lower(), v.strip()) for n, _, v in names], rest[:length]
            data = self.stream.recv(65536)
            if not data: raise SystemExit("closed")
            self.buffer += data

def get(headers, name): return next(v for n, v in headers if n == name)

def answer(stream, headers, more=""):
    keep = "".join(f"{n}: {v}\r\n" for n, v in headers if n in ("via", "from", "call-id", "cseq", "record-route"))
    to = get(headers, "to")
    if "tag=" not in to: to += ";tag=trunk"
    contact = f"Contact: <sip:trunk@127.0.0.1:{trunk};transport=tls>\r\n"
    stream.sendall(f"SIP/2.0 200 OK\r\n{keep}To: {to}\r\n{contact}{more}Content-Length: 0\r\n\r\n".encode())

def serve(listener, context):
    raw, _ = listener.accept()
    stream = context.wrap_socket(raw, server_side=True)
    names = [v for k, v in stream.getpeercert()["subjectAltName"]]
    print("client certificate", names, flush=True)
    messages = Messages(stream)
    while True:
        line, headers, body = messages.next()
        print("trunk got", line, flush=True)
        print("trunk via", get(headers, "via"), flush=True)
        if line.startswith("INVITE"): print("trunk contact", get(headers, "contact"), flush=True)
        if not line.startswith("ACK"): answer(stream, headers)
        if line.startswith("BYE"): return

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("trunk.pem", "trunk.key")
context.load_verify_locations("ca.pem")
context.verify_mode = ssl.CERT_REQUIRED
asked = []
context.sni_callback = lambda stream, name, _: print("asked for", name, flush=True)
listener = socket.create_server(("127.0.0.1", trunk))
server = threading.Thread(target=serve, args=(listener, context), daemon=True)
server.start()

ours = ssl.create_default_context(cafile="ca.pem")
stream = ours.wrap_socket(socket.create_connection(("127.0.0.1", border)), server_hostname="first.example.com")
messages = Messages(stream)
own = stream.getsockname()
scheme = sys.argv[3]
def request(method, uri, cseq, to, branch):
    text = (f"{method} {uri} SIP/2.0\r\nVia: SIP/2.0/TLS {own[0]}:{own[1]};branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\n"
            f"From: <{scheme}:phone@example.com>;tag=phone\r\nTo: {to}\r\nCall-ID: call@phone\r\nCSeq: {cseq} {method}\r\n"
            f"Contact: <{scheme}:phone@{own[0]}:{own[1]};transport=tls>\r\nContent-Length: 0\r\n\r\n")
    stream.sendall(text.encode())
target = f"{scheme}:5000@127.0.0.1:{border}"
request("INVITE", target, 1, f"<{target}>", "1")
while True:
    line, headers, body = messages.next()
    print("phone got", line, flush=True)
    status = int(line.split()[1])
    if status >= 200: break
if status >= 300: raise SystemExit(0)
to, contact = get(headers, "to"), get(headers, "contact")
print("phone contact", contact, flush=True)
uri = contact.partition("<")[2].partition(">")[0]
request("ACK", uri, 1, to, "2")
request("BYE", uri, 2, to, "3")
print("phone got", messages.next()[0], flush=True)
server.join(10)
print("over", flush=True)
"#;

fn python(folder: &Path, script: &str, arguments: &[&str]) -> Output {
    let python = std::env::var("HORNWORK_PYTHON").unwrap_or_else(|_| "python3".into());
    Command::new("timeout")
        .args(["30", &python, "-c", script])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("python starts")
}

fn call_folder(name: &str) -> std::path::PathBuf {
    let folder = scratch(name);
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "first.example.com");
    authority.issue("trunk", "trunk.example.com");
    authority.issue("client", "border.example.com");
    folder
}

/// A border between a phone with TLS and a trunk with TLS.
fn between(access: u16, core: u16, trunk: u16, name: &str) -> String {
    format!(
        "[[interface]]\nname = \"access\"\nlisten = [\"udp:127.0.0.1:{access}\", \"tls:127.0.0.1:{access}\"]\ntls = {{ certificate = {{ chain = \"first.pem\", key = \"first.key\" }} }}\n\n[[interface]]\nname = \"core\"\nkind = \"core\"\nlisten = \"tls:127.0.0.1:{core}\"\ntls = {{ certificate = {{ chain = \"first.pem\", key = \"first.key\" }} }}\n\n[[trunk]]\nname = \"server\"\ninterface = \"core\"\ntarget = \"tls:127.0.0.1:{trunk}\"\n\n[trunk.tls]\nca = \"ca.pem\"\nname = \"{name}\"\ncertificate = {{ chain = \"client.pem\", key = \"client.key\" }}\n\n[[route]]\ntrunk = \"server\"\nmedia = \"bypass\"\n"
    )
}

#[test]
fn python_call_uses_tls_on_both_sides() {
    if !installed(&["python3", "timeout"]) {
        return;
    }
    for (scheme, workers) in [("sip", 1), ("sips", 1), ("sip", 3), ("sips", 2)] {
        let folder = call_folder(&format!("tls-call-{scheme}-{workers}"));
        let (access, core, trunk) = (free_port(), free_port(), free_port());
        let text = between(access, core, trunk, "trunk.example.com")
            + &format!("[sip]\nworkers = {workers}\n");
        let process = border(&folder, &in_folder(&folder, &text), access);
        let (access, trunk) = (access.to_string(), trunk.to_string());
        let output = python(&folder, CALL, &[&access, &trunk, scheme]);
        let messages = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        for wanted in [
            "asked for trunk.example.com",
            "client certificate ['sip:border.example.com', 'border.example.com']",
            &format!("trunk got INVITE {scheme}:5000@"),
            "trunk via SIP/2.0/TLS 127.0.0.1:",
            "phone got SIP/2.0 200 OK",
            "trunk got ACK",
            "trunk got BYE",
            "over",
        ] {
            assert!(
                messages.contains(wanted),
                "no {wanted:?}: {messages}\n{}",
                process.log()
            );
        }
        // A dialog with a sips URI has contacts with sips URIs (RFC 3261 sections 8.1.1.8 and 12.1.1).
        for side in ["trunk contact <", "phone contact <"] {
            let wanted = format!("{side}{scheme}:");
            assert!(messages.contains(&wanted), "no {wanted:?}: {messages}");
        }
    }
}

#[test]
fn trunk_with_wrong_name_gets_no_call_and_reason_is_logged() {
    if !installed(&["python3", "timeout"]) {
        return;
    }
    let folder = call_folder("tls-wrong-name");
    let (access, core, trunk) = (free_port(), free_port(), free_port());
    let text = between(access, core, trunk, "another.example.com");
    let process = border(&folder, &in_folder(&folder, &text), access);
    let (access, trunk) = (access.to_string(), trunk.to_string());
    let output = python(&folder, CALL, &[&access, &trunk, "sip"]);
    let messages = String::from_utf8_lossy(&output.stdout);
    assert!(messages.contains("phone got SIP/2.0 503"), "{messages}");
    assert!(!messages.contains("trunk got"), "{messages}");
    common_until(
        &process,
        "the peer's certificate is not for another.example.com but for trunk.example.com",
    );
}

#[test]
fn invalid_files_are_reported_with_line_and_remedy() {
    let folder = scratch("tls-check");
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "first.example.com");
    authority.issue("second", "second.example.com");
    authority.issue_until("expired", "expired.example.com", 2001);
    std::fs::write(folder.join("empty.pem"), "").expect("file");
    let check = |tls: &str| {
        let text = format!(
            "[[interface]]\nname = \"x\"\nlisten = \"tls:127.0.0.1:5061\"\n[interface.tls]\n{tls}\n"
        );
        std::fs::write(folder.join("hornwork.toml"), text).expect("file");
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["check", "-c", "hornwork.toml"])
            .current_dir(&folder)
            .output()
            .expect("the program starts");
        let messages = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), messages)
    };
    let pair = |chain: &str, key: &str| {
        format!("[interface.tls.certificate]\nchain = \"{chain}\"\nkey = \"{key}\"")
    };
    let (code, messages) = check(&pair("first.pem", "first.key"));
    assert_eq!(code, Some(0), "{messages}");
    for (tls, line, what, remedy) in [
        (
            pair("absent.pem", "first.key"),
            6,
            "No such file",
            "check the path",
        ),
        (
            pair("first.pem", "absent.key"),
            7,
            "No such file",
            "check the path",
        ),
        (
            pair("empty.pem", "first.key"),
            6,
            "it contains no certificate",
            "BEGIN CERTIFICATE",
        ),
        (
            pair("first.pem", "first.pem"),
            7,
            "it contains no private key",
            "PRIVATE KEY",
        ),
        (
            pair("first.pem", "second.key"),
            7,
            "not the key of the certificate",
            "belongs to the certificate",
        ),
        (
            "clients = \"require\"\nclient_ca = \"empty.pem\"\n".to_owned()
                + &pair("first.pem", "first.key"),
            6,
            "it contains no certificate",
            "BEGIN CERTIFICATE",
        ),
    ] {
        let (code, messages) = check(&tls);
        assert_eq!(code, Some(2), "{tls}: {messages}");
        assert!(
            messages.contains(&format!("hornwork.toml:{line}:")),
            "{tls}: {messages}"
        );
        assert!(messages.contains(what), "{tls}: {messages}");
        assert!(messages.contains(remedy), "{tls}: {messages}");
    }
    // The border starts with it.
    let (code, messages) = check(&pair("expired.pem", "expired.key"));
    assert_eq!(code, Some(0), "{messages}");
    for part in [
        "WARNING: hornwork.toml:6:",
        "expired on 2001-12-31",
        "valid certificate",
    ] {
        assert!(messages.contains(part), "no {part:?}: {messages}");
    }
}

/// A browser's WebSocket, in Node: it registers, and is called over its own connection (RFC 7118 section 8, RFC 5626).
const BROWSER: &str = r#"
const [url, port] = process.argv.slice(1);
const socket = new WebSocket(url, "sip");
const host = "df7jal23ls0d.invalid";
const say = (text) => console.log(text);
const header = (text, name) => text.split("\r\n").filter((l) => l.toLowerCase().startsWith(name + ":"));
const send = (lines, body = "") => socket.send(lines.concat([`Content-Length: ${body.length}`, "", body]).join("\r\n"));
const own = process.pid;
const via = (branch) => `Via: SIP/2.0/WSS ${host};branch=z9hG4bK${own}x${branch}`;
socket.onopen = () => {
  say(`open with ${socket.protocol}`);
  socket.send("\r\n\r\n");
  send([`REGISTER sip:127.0.0.1:${port} SIP/2.0`, via("1"), "Max-Forwards: 70", "From: <sip:web@127.0.0.1>;tag=w",
    "To: <sip:web@127.0.0.1>", `Call-ID: register${own}@web`, "CSeq: 1 REGISTER", "Supported: path, outbound",
    `Contact: <sip:web@${host};transport=ws>;+sip.instance="<urn:uuid:00000000-0000-1000-8000-000000000001>";reg-id=1`]);
};
socket.onerror = (event) => { say(`error ${event.message}`); process.exit(1); };
socket.onclose = () => { say("closed"); process.exit(1); };
socket.onmessage = (event) => {
  const text = typeof event.data === "string" ? event.data : "binary";
  if (text === "\r\n") return say("pong");
  const first = text.split("\r\n")[0];
  say(`got ${first}`);
  const same = ["via", "from", "call-id", "cseq", "record-route"].flatMap((name) => header(text, name));
  const to = header(text, "to")[0];
  if (first.startsWith("SIP/2.0 200") && header(text, "cseq")[0].includes("REGISTER")) {
    // Another phone calls us: by the same connection, as it happens.
    send([`INVITE sip:web@127.0.0.1:${port} SIP/2.0`, via("2"), "Max-Forwards: 70", "From: <sip:other@127.0.0.1>;tag=o",
      "To: <sip:web@127.0.0.1>", `Call-ID: call${own}@web`, "CSeq: 1 INVITE", `Contact: <sip:other@${host};transport=ws>`]);
  } else if (first.startsWith("INVITE")) {
    say(`via ${header(text, "via")[0]}`);
    send(["SIP/2.0 200 OK", ...same, to + ";tag=web", `Contact: <sip:web@${host};transport=ws>`]);
  } else if (first.startsWith("SIP/2.0 200") && header(text, "cseq")[0].includes("INVITE")) {
    const uri = header(text, "contact")[0].match(/<(.*)>/)[1];
    for (const [method, cseq, branch] of [["ACK", 1, "3"], ["BYE", 2, "4"]]) {
      send([`${method} ${uri} SIP/2.0`, via(branch), "Max-Forwards: 70", "From: <sip:other@127.0.0.1>;tag=o", to,
        `Call-ID: call${own}@web`, `CSeq: ${cseq} ${method}`]);
    }
  } else if (first.startsWith("BYE")) {
    send(["SIP/2.0 200 OK", ...same, to]);
    setTimeout(() => { say("over"); process.exit(0); }, 300);
  }
};
setTimeout(() => { say("waited in vain"); process.exit(1); }, 15000);
"#;

#[test]
fn node_websocket_registers_and_is_called_over_its_own_connection() {
    if !installed(&["node"]) {
        return;
    }
    let flag = "--experimental-websocket";
    let has = Command::new("node")
        .args([
            flag,
            "-e",
            "process.exit(typeof WebSocket === 'function' ? 0 : 1)",
        ])
        .stderr(Stdio::null())
        .status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this Node has no WebSocket");
        return;
    }
    let folder = scratch("tls-browser");
    let authority = Authority::new(&folder, "ca");
    authority.issue("first", "localhost");
    let (port, wss, ws) = (free_port(), free_port(), free_port());
    let (first, last) = media_ports(20);
    let text = format!(
        "[[interface]]\nname = \"access\"\nregister = \"local\"\nlisten = [\"udp:127.0.0.1:{port}\", \"wss:127.0.0.1:{wss}\", \"ws:127.0.0.1:{ws}\"]\nmedia = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\ntls = {{ certificate = {{ chain = \"first.pem\", key = \"first.key\" }} }}\n\n[[user]]\nname = \"web\"\npassword = \"x\"\n\n[[route]]\nregistered = true\nmedia = \"bypass\"\n"
    );
    let mut process = border(&folder, &in_folder(&folder, &text), port);
    for (workers, url) in [
        (1, format!("wss://localhost:{wss}")),
        (1, format!("ws://127.0.0.1:{ws}")),
        (3, format!("wss://localhost:{wss}")),
        (3, format!("ws://127.0.0.1:{ws}")),
    ] {
        if workers > 1 {
            drop(process);
            let text = format!("{text}[sip]\nworkers = {workers}\n");
            process = border(&folder, &in_folder(&folder, &text), port);
        }
        let output = Command::new("node")
            .args([flag, "-e", BROWSER, "--", &url, &port.to_string()])
            .env("NODE_EXTRA_CA_CERTS", folder.join("ca.pem"))
            .output()
            .expect("node starts");
        let messages = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let via = if url.starts_with("wss") {
            "SIP/2.0/WSS"
        } else {
            "SIP/2.0/WS "
        };
        for wanted in [
            "open with sip",
            "pong",
            "got SIP/2.0 200",
            "got INVITE sip:web@df7jal23ls0d.invalid;transport=ws SIP/2.0",
            via,
            "got BYE sip:web@df7jal23ls0d.invalid",
            "over",
        ] {
            assert!(
                messages.contains(wanted),
                "{url}: no {wanted:?}: {messages}\n{}",
                process.log()
            );
        }
    }
}

/// A headless baresip that uses TLS only and trusts our authority.
fn baresip(folder: &Path, user: u16, tls: u16, more: &[&str]) -> Process {
    std::fs::create_dir_all(folder).expect("folder");
    let modules = [
        "/usr/lib/baresip/modules",
        "/usr/lib/x86_64-linux-gnu/baresip/modules",
    ]
    .into_iter()
    .find(|path| Path::new(path).is_dir())
    .unwrap_or("/usr/lib/baresip/modules");
    let (own, rtp) = (free_port(), free_port() + 1_000);
    let config = format!(
        "net_interface 127.0.0.1\nsip_listen 127.0.0.1:{own}\nsip_cafile {0}/../ca.pem\naudio_player aufile,{0}/player.wav\n\
         audio_source aufile,{0}/voice.wav\naudio_alert aufile,/dev/null\nausrc_srate 8000\nauplay_srate 8000\n\
         rtp_ports {1}-{2}\nmodule_path {modules}\nmodule g711.so\nmodule aufile.so\n\
         module_app account.so\nmodule_app menu.so\n",
        folder.display(),
        rtp / 2 * 2,
        rtp / 2 * 2 + 100,
    );
    std::fs::write(folder.join("config"), config).expect("configuration");
    let speech = codec::wav::write(
        codec::wav::Encoding::Pcm16,
        8_000,
        1,
        codec::speech::speech(),
    );
    std::fs::write(folder.join("voice.wav"), speech.expect("a file")).expect("voice");
    let account = format!(
        "<sip:{user}@127.0.0.1:{tls};transport=tls>;auth_user={user};auth_pass=secret-{user};answermode=auto;regint=60;audio_codecs=PCMA\n"
    );
    std::fs::write(folder.join("accounts"), account).expect("account");
    Process::start(
        Command::new("baresip")
            .args(["-f", &folder.display().to_string(), "-v"])
            .args(more)
            .stdin(Stdio::null()),
        &folder.join("log"),
    )
}

#[test]
fn baresip_registers_and_calls_over_tls() {
    if !installed(&["baresip"]) {
        return;
    }
    for workers in [1, 3] {
        baresip_calls(workers);
    }
}

fn baresip_calls(workers: u8) {
    let folder = scratch(&format!("tls-baresip-{workers}"));
    Authority::new(&folder, "ca").issue("first", "sip.example.com");
    let (port, tls) = (free_port(), free_port());
    let (first, last) = media_ports(100);
    let users: String = [1000, 1001]
        .map(|user| format!("[[user]]\nname = \"{user}\"\npassword = \"secret-{user}\"\n\n"))
        .concat();
    let text = format!(
        "[[interface]]\nname = \"phones\"\nlisten = [\"udp:127.0.0.1:{port}\", \"tls:127.0.0.1:{tls}\"]\nauthenticate = \"digest\"\nmedia = {{ ports = \"{first}-{last}\" }}\ntls = {{ certificate = {{ chain = \"first.pem\", key = \"first.key\" }} }}\n\n{users}[sip]\nworkers = {workers}\n"
    );
    let border = border(&folder, &in_folder(&folder, &text), port);
    let callee = baresip(&folder.join("b"), 1001, tls, &["-t", "40"]);
    common_until(&border, "stored aor=1001 ");
    let dial = format!("/dial sip:1001@127.0.0.1:{tls}");
    let caller = baresip(&folder.join("a"), 1000, tls, &["-e", &dial, "-t", "12"]);
    common_until(&border, "stored aor=1000 ");
    common_until(&border, "call_answered");
    assert!(
        !border.log().contains("tls_handshake_failed"),
        "{}",
        border.log()
    );
    drop((caller, callee));
}
