//! Services of a system behind the border: emergency calls and others (RFC 5031) from SIPp through the example
//! configuration to SIPp; calls, messages and subscriptions that Kamailio authenticates.

use crate::common;

use common::{Process, border, free_port, installed, root, scratch};
use engine::Entropy;
use protect::digest::{Challenge, ClientSession, Secret, answer_header};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wire::sip::{HeaderId, Message};

fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args(["-i", "127.0.0.1", "-p", &port.to_string(), "-nostdin"])
            .args(["-trace_msg", "-message_file", &format!("{name}.msg")])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// Messages received by a called side.
fn seen(folder: &Path, name: &str) -> String {
    let file = folder.join(format!("{name}.msg"));
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}

#[test]
fn emergency_calls_reach_the_trunk_of_the_example() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("services");
    let (outside, inside) = (free_port(), free_port());
    let mut text = std::fs::read_to_string(root().join("examples/services.toml")).expect("example");
    let mut called = Vec::new();
    for (name, address) in [
        ("core", "10.0.0.20:5060"),
        ("psap", "10.0.0.112:5060"),
        ("psap-2", "10.0.1.112:5060"),
        ("fire", "10.0.0.113:5060"),
    ] {
        let port = free_port();
        text = text.replace(address, &format!("127.0.0.1:{port}"));
        called.push((name, port));
    }
    let text = text
        .replace("192.0.2.10:5060", &format!("127.0.0.1:{outside}"))
        .replace("10.0.0.10:5060", &format!("127.0.0.1:{inside}"));
    let (first, last) = common::media_ports(40);
    let media = format!("media = {{ ports = \"{first}-{last}\" }}\n");
    let text = text.replace("[[interface]]\n", &format!("[[interface]]\n{media}"));
    let _border = border(&folder, &text, outside);
    let _called: Vec<Process> = called
        .iter()
        .map(|(name, port)| sipp(&folder, name, *port, &["-sn", "uas"]).at_port(*port))
        .collect();
    let target = format!("127.0.0.1:{outside}");
    let scenario = |file: &str, uri: &str, name: &str| {
        let text = std::fs::read_to_string(root().join(file)).expect("scenario");
        let text = text
            .replace("sip:[service]@[remote_ip]:[remote_port]", uri)
            .replace("STATUS", "404");
        std::fs::write(folder.join(format!("{name}.xml")), text).expect("scenario");
    };
    let plain = "scenarios/sipp/uac.xml";
    let refused = "crates/hornwork/tests/sipp/uac-expect.xml";
    for (name, file, uri) in [
        ("to-fire", plain, "urn:service:sos.fire"),
        ("to-police", plain, "urn:service:sos.police"),
        ("to-counselor", refused, "urn:service:counseling"),
    ] {
        scenario(file, uri, name);
        let xml = format!("{name}.xml");
        let arguments = ["-sf", &xml, &target, "-m", "1", "-d", "200"];
        let mut caller = sipp(&folder, name, free_port(), &arguments);
        let ended = caller.wait(Duration::from_secs(60));
        assert_eq!(ended, Some(true), "{name}: {}", seen(&folder, name));
    }
    let invites = |name: &str| {
        let seen = seen(&folder, name);
        let lines = seen.lines().filter(|line| line.starts_with("INVITE "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (fire, police) = (invites("fire"), invites("psap"));
    assert!(!fire.is_empty() && !police.is_empty());
    for line in &fire {
        assert!(line.starts_with("INVITE urn:service:sos.fire "), "{line}");
    }
    for line in &police {
        assert!(line.starts_with("INVITE sip:112@"), "{line}");
    }
    assert!(invites("core").is_empty() && invites("psap-2").is_empty());
}

/// Longest wait for a message on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// A phone whose messages are written by the test.
struct RawPhone {
    user: &'static str,
    socket: UdpSocket,
    border: u16,
    count: u32,
}

/// A header of a message.
fn header(message: &str, id: HeaderId) -> String {
    let parsed = Message::parse(message.as_bytes()).expect("a message");
    let value = parsed.header(id).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

impl RawPhone {
    fn new(user: &'static str, border: u16) -> RawPhone {
        let socket = UdpSocket::bind(("127.0.0.1", common::free_port())).expect("socket");
        let timeout = Some(Duration::from_millis(500));
        socket.set_read_timeout(timeout).expect("timeout");
        RawPhone {
            user,
            socket,
            border,
            count: 0,
        }
    }

    fn send(&self, text: &str) {
        let sent = self
            .socket
            .send_to(text.as_bytes(), ("127.0.0.1", self.border));
        sent.expect("sent");
    }

    /// The next message that begins so. Other messages are passed over. `again` is repeated, as over a lossy network.
    fn receive(&self, start: &str, again: Option<&str>) -> String {
        let end = Instant::now() + PATIENCE;
        let mut bytes = [0; 4_096];
        while Instant::now() < end {
            match self.socket.recv(&mut bytes) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    if text.starts_with(start) && !text.starts_with("SIP/2.0 1") {
                        return text;
                    }
                }
                Err(_) => again.into_iter().for_each(|text| self.send(text)),
            }
        }
        panic!("{}: no {start}", self.user);
    }

    /// A request with these lines and body, with credentials of `password` once it is challenged. Returns the last
    /// response.
    fn request(
        &mut self,
        (method, to): (&str, &str),
        password: &str,
        lines: &str,
        body: &str,
    ) -> String {
        self.count += 1;
        let (user, count, border) = (self.user, self.count, self.border);
        let local = self.socket.local_addr().expect("address");
        let uri = match method {
            "REGISTER" => format!("sip:127.0.0.1:{border}"),
            _ => format!("sip:{to}@127.0.0.1:{border}"),
        };
        let mut credentials = String::new();
        let mut response = String::new();
        for cseq in 1..3 {
            let text = format!(
                "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{user}{count}x{cseq};rport\r\n\
                 Max-Forwards: 70\r\nFrom: <sip:{user}@127.0.0.1:{border}>;tag=t{count}\r\n\
                 To: <sip:{to}@127.0.0.1:{border}>\r\nCall-ID: {user}-{count}\r\nCSeq: {cseq} {method}\r\n\
                 Contact: <sip:{user}@{local}>\r\n{lines}{credentials}Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            self.send(&text);
            // Responses to earlier requests that were repeated.
            response = loop {
                let response = self.receive("SIP/2.0", Some(&text));
                let is_ours = header(&response, HeaderId::CallId) == format!("{user}-{count}")
                    && header(&response, HeaderId::CSeq) == format!("{cseq} {method}");
                if is_ours {
                    break response;
                }
            };
            let challenge = Message::parse(response.as_bytes()).expect("a response");
            if cseq == 2 || !matches!(challenge.status(), 401 | 407) {
                break;
            }
            let secret = Secret::Password(password.as_bytes().to_vec());
            for id in [HeaderId::WwwAuthenticate, HeaderId::ProxyAuthenticate] {
                for chosen in Challenge::choose(&challenge, id, &secret) {
                    let mut value = Vec::new();
                    let mut entropy = Entropy::from_number(u64::from(count));
                    ClientSession::new(chosen, user.as_bytes(), &secret, &mut entropy)
                        .expect("a session")
                        .write_credentials(
                            method.as_bytes(),
                            uri.as_bytes(),
                            body.as_bytes(),
                            &mut value,
                        );
                    let name = match answer_header(id) {
                        HeaderId::ProxyAuthorization => "Proxy-Authorization",
                        _ => "Authorization",
                    };
                    credentials += &format!("{name}: {}\r\n", String::from_utf8_lossy(&value));
                }
            }
            assert!(!credentials.is_empty(), "no challenge in {response}");
        }
        response
    }

    /// Answers a request with 200 and these lines.
    fn accept(&self, request: &str, lines: &str) {
        self.answer(request, "200 OK", lines);
    }

    /// Answers a request with this status and these lines.
    fn answer(&self, request: &str, status: &str, lines: &str) {
        let copied: String = request
            .lines()
            .take_while(|line| !line.is_empty())
            .filter(|line| {
                ["Via:", "Record-Route:", "From:", "Call-ID:", "CSeq:"]
                    .iter()
                    .any(|name| line.starts_with(name))
            })
            .map(|line| format!("{line}\r\n"))
            .collect();
        let mut to = header(request, HeaderId::To);
        if !to.contains(";tag=") {
            to += ";tag=notifier";
        }
        self.send(&format!(
            "SIP/2.0 {status}\r\n{copied}To: {to}\r\n{lines}Content-Length: 0\r\n\r\n"
        ));
    }
}

/// Kamailio with the users of the guides, over UDP and TCP.
fn kamailio(folder: &Path, port: u16) -> Process {
    let file = root().join("crates/hornwork/tests/kamailio_pbx.cfg");
    let text = std::fs::read_to_string(file).expect("configuration of Kamailio");
    let listen = format!("listen=udp:127.0.0.1:{port}\nlisten=tcp:127.0.0.1:{port}");
    let text = text
        .replace("disable_tcp=yes", "disable_tcp=no")
        .replace("listen=udp:10.0.0.20:5060", &listen);
    let cfg = folder.join("kamailio.cfg");
    std::fs::write(&cfg, text).expect("configuration");
    let process = Process::start(
        Command::new("kamailio")
            .arg("-f")
            .arg(&cfg)
            .args(["-DD", "-E", "-x", "fm", "-X", "fm", "-Y"])
            .arg(folder)
            .arg("-w")
            .arg(folder)
            .stdin(Stdio::null()),
        &folder.join("kamailio.log"),
    )
    .at_port(port);
    // It listens over TCP a moment later.
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "{}", process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

/// A phone registers with this password.
fn register(phone: &mut RawPhone, password: &str, border: &Process) {
    let user = phone.user;
    let answer = phone.request(("REGISTER", user), password, "Expires: 600\r\n", "");
    assert!(
        answer.starts_with("SIP/2.0 200 "),
        "{answer}\n{}",
        border.log()
    );
}

/// Kamailio, a border in front of it that reaches it by `transport`, and two phones that have registered through the
/// border.
fn phones_of_kamailio(name: &str, transport: &str) -> (Process, Process, [RawPhone; 2]) {
    let folder = scratch(name);
    let (outside, inside, pbx) = (free_port(), free_port(), free_port());
    let server = kamailio(&folder, pbx);
    let (first, last) = common::media_ports(40);
    let border = border(
        &folder,
        &format!(
            "[[interface]]\nname='outside'\nlisten='udp:127.0.0.1:{outside}'\nregister='pass:pbx'\n\
             authenticate='trunk'\nmedia={{ports='{first}-{last}'}}\n\
             [[interface]]\nname='inside'\nkind='core'\nlisten='{transport}:127.0.0.1:{inside}'\n\
             media={{ports='{first}-{last}'}}\n\
             [[trunk]]\nname='pbx'\ninterface='inside'\ntarget='{transport}:127.0.0.1:{pbx}'\n"
        ),
        outside,
    );
    let mut alice = RawPhone::new("1000", outside);
    let mut bob = RawPhone::new("1001", outside);
    register(&mut alice, "change-me-1000", &border);
    register(&mut bob, "change-me-1001", &border);
    (server, border, [alice, bob])
}

/// Kamailio sends a request for another phone of the border back to it, over TCP with the border's Via unchanged: a
/// spiral, not a loop.
#[test]
fn phones_reach_each_other_through_kamailio_over_tcp() {
    if !installed(&["kamailio"]) {
        return;
    }
    let (_kamailio, border, [mut alice, bob]) = phones_of_kamailio("kamailio-tcp", "tcp");
    let sdp = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n\
               m=audio 4000 RTP/AVP 0\r\n";
    for (method, kind, body, status) in [
        ("MESSAGE", "text/plain", "good morning", "200 OK"),
        ("INVITE", "application/sdp", sdp, "486 Busy Here"),
    ] {
        let lines = format!("Content-Type: {kind}\r\n");
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = bob.receive(method, None);
                bob.answer(&request, status, "");
            });
            alice.request((method, "1001"), "change-me-1000", &lines, body)
        });
        assert!(
            answer.starts_with(&format!("SIP/2.0 {} ", &status[..3])),
            "{answer}\n{}",
            border.log()
        );
    }
}

/// Kamailio challenges each request outside of a dialog. With `authenticate = "trunk"` a phone registers, sends a
/// message, and subscribes to another phone of Kamailio, whose notifications reach it; a wrong password is an event.
#[test]
fn kamailio_authenticates_messages_and_subscriptions() {
    if !installed(&["kamailio"]) {
        return;
    }
    let (_kamailio, border, [mut alice, mut bob]) = phones_of_kamailio("kamailio-messages", "udp");
    let text = "Content-Type: text/plain\r\n";
    // The called phone answers on its own thread: its 200 ends the request of the caller.
    let (answer, message) = std::thread::scope(|scope| {
        let called = scope.spawn(|| {
            let message = bob.receive("MESSAGE ", None);
            bob.accept(&message, "");
            message
        });
        let answer = alice.request(("MESSAGE", "1001"), "change-me-1000", text, "good morning");
        (answer, called.join().expect("the called phone"))
    });
    assert!(
        answer.starts_with("SIP/2.0 200 "),
        "{answer}\n{}",
        border.log()
    );
    assert!(message.ends_with("\r\n\r\ngood morning"), "{message}");
    // Kamailio has consumed them.
    assert_eq!(header(&message, HeaderId::ProxyAuthorization), "");
    // Kamailio's nonces are those of a second: one with which a phone was accepted counts as expired.
    let refused = bob.request(("MESSAGE", "1000"), "wrong", text, "bad morning");
    assert!(refused.starts_with("SIP/2.0 407 "), "{refused}");
    // The log is written by a thread of its own.
    common::phones::until(&border, "authentication_failed", Duration::from_secs(30));
    let log = border.log();
    let failed = log
        .lines()
        .find(|line| line.contains("authentication_failed"));
    assert!(
        failed.is_some_and(|line| line.contains("refused by trunk pbx")),
        "{log}"
    );
    let lines = "Event: presence\r\nAccept: application/pidf+xml\r\nExpires: 600\r\n";
    let (answer, subscribe) = std::thread::scope(|scope| {
        let called = scope.spawn(|| {
            let subscribe = bob.receive("SUBSCRIBE ", None);
            let local = bob.socket.local_addr().expect("address");
            bob.accept(
                &subscribe,
                &format!("Contact: <sip:1001@{local}>\r\nExpires: 600\r\n"),
            );
            subscribe
        });
        let answer = alice.request(("SUBSCRIBE", "1001"), "change-me-1000", lines, "");
        (answer, called.join().expect("the called phone"))
    });
    assert!(
        answer.starts_with("SIP/2.0 200 "),
        "{answer}\n{}",
        border.log()
    );
    let contact = header(&subscribe, HeaderId::Contact);
    let uri = contact.split(['<', '>']).nth(1).expect("a URI");
    let local = bob.socket.local_addr().expect("address");
    let notify = format!(
        "NOTIFY {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKnotify;rport\r\nMax-Forwards: 70\r\n\
         From: {};tag=notifier\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 1 NOTIFY\r\nContact: <sip:1001@{local}>\r\n\
         Event: presence\r\nSubscription-State: active;expires=590\r\nContent-Type: application/pidf+xml\r\n\
         Content-Length: 11\r\n\r\n<presence/>",
        header(&subscribe, HeaderId::To),
        header(&subscribe, HeaderId::From),
        header(&subscribe, HeaderId::CallId),
    );
    bob.send(&notify);
    let arrived = alice.receive("NOTIFY ", None);
    assert!(arrived.ends_with("\r\n\r\n<presence/>"), "{arrived}");
    alice.accept(&arrived, "");
    let answered = bob.receive("SIP/2.0", Some(&notify));
    assert!(answered.starts_with("SIP/2.0 200 "), "{answered}");
}
