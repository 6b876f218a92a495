//! Kamailio with its rtpengine module commands our media node: the test's calls pass Kamailio, their media the node.

use crate::common;

use common::{Process, free_port, installed, media_ports, scratch};
use protect::sdes;
use protect::srtp::ContextLimits;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wire::ng::{BencodeItem, NgMessage, Value};

/// Longest wait on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn module() -> Option<PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/kamailio/modules",
        "/usr/lib/aarch64-linux-gnu/kamailio/modules",
        "/usr/lib64/kamailio/modules",
        "/usr/lib/kamailio/modules",
    ];
    let found = places
        .iter()
        .map(|folder| Path::new(folder).join("rtpengine.so"))
        .find(|file| file.is_file());
    if found.is_none() {
        eprintln!("skipped: not installed: the rtpengine module of Kamailio");
    }
    found
}

struct NodeUnderTest {
    process: Process,
    udp: SocketAddr,
    tcp: SocketAddr,
    web: SocketAddr,
    folder: PathBuf,
    media: (u16, u16),
}

fn node(name: &str) -> NodeUnderTest {
    node_started(name, |file, _| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_hornwork"));
        program.args(["run", "--role", "media", "-c"]).arg(file);
        program
    })
}

/// `program` makes the command from the configuration and the folder for recordings.
fn node_started(name: &str, program: impl FnOnce(&Path, &Path) -> Command) -> NodeUnderTest {
    let folder = scratch(name);
    let recordings = folder.join("recordings");
    let sounds = folder.join("sounds");
    for folder in [&recordings, &sounds] {
        std::fs::create_dir_all(folder).expect("folder");
    }
    let (port, web) = (free_port(), free_port());
    let (first, last) = media_ports(80);
    let text = format!(
        "[ng_server]\nlisten=['udp:127.0.0.1:{port}','tcp:127.0.0.1:{port}','ws:127.0.0.1:{web}']\n\
         recordings='{}'\nsounds='{}'\n[[ng_server.interface]]\nname='default'\n\
         media={{address='127.0.0.1',ports='{first}-{last}'}}\n[media]\nsockets='per-port'\n",
        recordings.display(),
        sounds.display()
    );
    let file = folder.join("node.toml");
    std::fs::write(&file, text).expect("configuration");
    let process = Process::start(
        program(&file, &recordings).stdin(Stdio::null()),
        &folder.join("node.log"),
    );
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let node = NodeUnderTest {
        process,
        udp: at(port),
        tcp: at(port),
        web: at(web),
        folder,
        media: (first, last),
    };
    let end = Instant::now() + PATIENCE;
    while node.try_command("ping", &[]).is_none() {
        assert!(
            Instant::now() < end,
            "the node does not answer: {}",
            node.process.log()
        );
    }
    node
}

fn encode_command(cookie: &str, command: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Value::dictionary().with("command", command);
    for (key, value) in pairs {
        body.set(key, *value);
    }
    let mut bytes = Vec::new();
    NgMessage::write(cookie.as_bytes(), &body, &mut bytes);
    bytes
}

fn value_of(bytes: &[u8]) -> Value {
    Value::from(BencodeItem::Dictionary(
        NgMessage::parse(bytes).expect("a reply").body,
    ))
}

fn number(value: &Value, path: &[&str]) -> i64 {
    let found = path.iter().try_fold(value, |value, key| match value {
        Value::Dictionary(entries) => entries.get(key.as_bytes()),
        _ => None,
    });
    match found {
        Some(Value::Integer(number)) => *number,
        other => panic!("{path:?}: {other:?} in {value:?}"),
    }
}

impl NodeUnderTest {
    fn try_command(&self, command: &str, pairs: &[(&str, &str)]) -> Option<Value> {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .expect("timeout");
        // The reply to a repeated command is the one to the first.
        for _ in 0..4 {
            let _ = socket.send_to(&encode_command("probe", command, pairs), self.udp);
            let mut bytes = [0; 65_535];
            if let Ok(length) = socket.recv(&mut bytes) {
                return Some(value_of(&bytes[..length]));
            }
        }
        None
    }

    fn command(&self, command: &str, pairs: &[(&str, &str)]) -> Value {
        self.try_command(command, pairs)
            .unwrap_or_else(|| panic!("no reply: {}", self.process.log()))
    }

    fn calls(&self) -> i64 {
        let reply = self.command("statistics", &[]);
        number(
            &reply,
            &["statistics", "currentstatistics", "sessionstotal"],
        )
    }

    fn until_calls(&self, calls: i64) {
        let end = Instant::now() + PATIENCE;
        while self.calls() != calls {
            assert!(Instant::now() < end, "{}", self.process.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// One side of a call: SIP and media, implemented by hand.
struct CallSide {
    sip: UdpSocket,
    media: UdpSocket,
}

fn bind_socket() -> UdpSocket {
    // Below the ephemeral ports, since another program may receive packets for one of those.
    let socket = UdpSocket::bind(("127.0.0.1", free_port())).expect("socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(250)))
        .expect("timeout");
    socket
}

fn header<'m>(message: &'m str, name: &str) -> Vec<&'m str> {
    message
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| {
            line.split(':')
                .next()
                .is_some_and(|own| own.eq_ignore_ascii_case(name))
        })
        .collect()
}

fn body(message: &str) -> &str {
    message.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

impl CallSide {
    fn new() -> CallSide {
        CallSide {
            sip: bind_socket(),
            media: bind_socket(),
        }
    }

    fn port(socket: &UdpSocket) -> u16 {
        socket.local_addr().expect("address").port()
    }

    fn sdp(&self, profile: &str, more: &str) -> String {
        format!(
            "v=0\r\no=x 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} {profile} 0\r\n{more}",
            CallSide::port(&self.media)
        )
    }

    /// The next message that begins with one of these; others are ignored.
    fn wait(&self, beginnings: &[&str]) -> (String, SocketAddr) {
        let end = Instant::now() + PATIENCE;
        let mut bytes = [0; 8_192];
        let mut seen = Vec::new();
        while Instant::now() < end {
            let Ok((length, from)) = self.sip.recv_from(&mut bytes) else {
                continue;
            };
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if beginnings.iter().any(|start| text.starts_with(start)) {
                return (text, from);
            }
            seen.push(text);
        }
        panic!("waited in vain for {beginnings:?}; came: {seen:?}");
    }

    fn request(&self, method: &str, to: &str, proxy: SocketAddr, dialog: &Dialog, sdp: &str) {
        let own = CallSide::port(&self.sip);
        let routes = dialog.routes.join("");
        let kind = match sdp.is_empty() {
            true => "",
            false => "Content-Type: application/sdp\r\n",
        };
        let text = format!(
            "{method} {to} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{own};branch=z9hG4bK{}{method}{}\r\n\
             Max-Forwards: 70\r\n{routes}From: <sip:a@127.0.0.1>;tag=ta\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {} {method}\r\n\
             Contact: <sip:a@127.0.0.1:{own}>\r\n{kind}Content-Length: {}\r\n\r\n{sdp}",
            dialog.call_id,
            dialog.cseq,
            dialog.to,
            dialog.call_id,
            dialog.cseq,
            sdp.len()
        );
        self.sip.send_to(text.as_bytes(), proxy).expect("sent");
    }

    fn respond(&self, request: &str, to: SocketAddr, status: &str, sdp: &str) {
        let mut text = format!("SIP/2.0 {status}\r\n");
        for name in ["Via", "Record-Route", "From", "Call-ID", "CSeq"] {
            for line in header(request, name) {
                text.push_str(line);
                text.push_str("\r\n");
            }
        }
        let own_to = header(request, "To")[0];
        text.push_str(own_to);
        if !own_to.contains("tag=") {
            text.push_str(";tag=tb");
        }
        let kind = match sdp.is_empty() {
            true => "",
            false => "Content-Type: application/sdp\r\n",
        };
        text.push_str(&format!(
            "\r\nContact: <sip:b@127.0.0.1:{}>\r\n{kind}Content-Length: {}\r\n\r\n{sdp}",
            CallSide::port(&self.sip),
            sdp.len()
        ));
        self.sip.send_to(text.as_bytes(), to).expect("sent");
    }
}

/// Dialog state of a caller.
struct Dialog {
    call_id: String,
    to: String,
    cseq: u32,
    routes: Vec<String>,
}

fn media_port(sdp: &str) -> u16 {
    let line = sdp.split("m=audio ").nth(1).expect("a line of audio");
    line.split(' ').next().expect("port").parse().expect("port")
}

fn rtp(ssrc: u32, sequence: u16) -> Vec<u8> {
    wire::rtp::RtpHeader {
        ssrc,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ..wire::rtp::RtpHeader::default()
    }
    .packet(&[sequence as u8; 160])
}

/// Sends packets until enough of them have arrived at the other side; returns these.
fn exchange_media(
    from: &UdpSocket,
    port: u16,
    to: &UdpSocket,
    mut packet: impl FnMut(u16) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    const ENOUGH: usize = 25;
    let mut came = Vec::new();
    let mut bytes = [0; 2_048];
    let end = Instant::now() + PATIENCE;
    for sequence in 1..=2_000 {
        from.send_to(&packet(sequence), ("127.0.0.1", port))
            .expect("sent");
        if let Ok((length, source)) = to.recv_from(&mut bytes) {
            assert_ne!(source.port(), from.local_addr().expect("address").port());
            came.push(bytes[..length].to_vec());
        }
        if came.len() >= ENOUGH {
            return came;
        }
        assert!(Instant::now() < end, "{} packets came", came.len());
    }
    panic!("{} packets came", came.len());
}

struct NodeCalls {
    node: NodeUnderTest,
    kamailio: Process,
    proxy: SocketAddr,
    caller: CallSide,
    called: CallSide,
}

fn setup(name: &str) -> Option<NodeCalls> {
    if !installed(&["kamailio"]) && !Path::new("/usr/sbin/kamailio").is_file() {
        return None;
    }
    module()?;
    let node = node(name);
    let (caller, called) = (CallSide::new(), CallSide::new());
    let proxy = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = include_str!("../kamailio_node.cfg")
        .replace("LISTEN", &proxy.to_string())
        .replace(
            "TARGET",
            &format!("127.0.0.1:{}", CallSide::port(&called.sip)),
        )
        .replace("NODE", &node.udp.to_string());
    let file = node.folder.join("kamailio.cfg");
    std::fs::write(&file, text).expect("configuration");
    let program = match Path::new("/usr/sbin/kamailio").is_file() {
        true => "/usr/sbin/kamailio",
        false => "kamailio",
    };
    let kamailio = Process::start(
        Command::new(program)
            .args([
                "-DD", "-E", "-x", "fm", "-X", "fm", "-m", "64", "-M", "8", "-f",
            ])
            .arg(&file)
            .arg("-Y")
            .arg(&node.folder)
            .arg("-P")
            .arg(node.folder.join("pid")),
        &node.folder.join("kamailio.log"),
    );
    let end = Instant::now() + PATIENCE;
    while !common::answers_options(proxy.port()) {
        assert!(Instant::now() < end, "no Kamailio: {}", kamailio.log());
    }
    Some(NodeCalls {
        node,
        kamailio,
        proxy,
        caller,
        called,
    })
}

impl NodeCalls {
    /// A call whose callee answers with the result of `answer` for the offer; returns the offer at the callee, and the
    /// answer at the caller.
    fn call(
        &self,
        number: &str,
        id: &str,
        offer: &str,
        answer: impl FnOnce(&str) -> String,
    ) -> (Dialog, String, String) {
        let mut dialog = Dialog {
            call_id: format!("{id}{}", std::process::id()),
            to: format!("<sip:{number}@127.0.0.1>"),
            cseq: 1,
            routes: Vec::new(),
        };
        let uri = format!("sip:{number}@{}", self.proxy);
        self.caller
            .request("INVITE", &uri, self.proxy, &dialog, offer);
        let (invite, from) = self.called.wait(&["INVITE"]);
        let offered = body(&invite).to_owned();
        self.called
            .respond(&invite, from, "200 OK", &answer(&offered));
        let (ok, _) = self.caller.wait(&["SIP/2.0 200", "SIP/2.0 4", "SIP/2.0 5"]);
        assert!(
            ok.starts_with("SIP/2.0 200"),
            "{ok}\n{}",
            self.kamailio.log()
        );
        dialog.to = header(&ok, "To")[0][3..].trim().to_owned();
        dialog.routes = header(&ok, "Record-Route")
            .iter()
            .map(|line| format!("{}\r\n", line.replace("Record-Route", "Route")))
            .collect();
        self.caller
            .request("ACK", &self.target(), self.proxy, &dialog, "");
        self.called.wait(&["ACK"]);
        (dialog, offered, body(&ok).to_owned())
    }

    fn target(&self) -> String {
        format!("sip:b@127.0.0.1:{}", CallSide::port(&self.called.sip))
    }

    fn hang_up(&self, mut dialog: Dialog) {
        dialog.cseq += 10;
        self.caller
            .request("BYE", &self.target(), self.proxy, &dialog, "");
        let (bye, from) = self.called.wait(&["BYE"]);
        self.called.respond(&bye, from, "200 OK", "");
        self.caller.wait(&["SIP/2.0 200"]);
    }
}

#[test]
fn kamailio_commands_the_node() {
    let Some(setup) = setup("peer-node") else {
        return;
    };
    let offer = setup.caller.sdp("RTP/AVP", "");
    let (mut dialog, offered, answered) =
        setup.call("plain", "one", &offer, |_| setup.called.sdp("RTP/AVP", ""));
    let (first, last) = setup.node.media;
    let (towards_b, towards_a) = (media_port(&offered), media_port(&answered));
    for port in [towards_a, towards_b] {
        assert!((first..=last).contains(&port), "{offered}\n{answered}");
    }
    let came = exchange_media(&setup.caller.media, towards_a, &setup.called.media, |n| {
        rtp(7, n)
    });
    assert!(
        came.iter()
            .all(|packet| packet.len() == 172 && packet[8..12] == [0, 0, 0, 7])
    );
    let back = exchange_media(&setup.called.media, towards_b, &setup.caller.media, |n| {
        rtp(9, n)
    });
    assert!(back.iter().all(|packet| packet[8..12] == [0, 0, 0, 9]));
    // A re-offer in the call keeps its ports.
    dialog.cseq += 1;
    let hold = setup.caller.sdp("RTP/AVP", "a=sendonly\r\n");
    setup
        .caller
        .request("INVITE", &setup.target(), setup.proxy, &dialog, &hold);
    let (invite, from) = setup.called.wait(&["INVITE"]);
    assert_eq!(media_port(body(&invite)), towards_b);
    assert!(body(&invite).contains("a=sendonly"));
    let answer = setup.called.sdp("RTP/AVP", "a=recvonly\r\n");
    setup.called.respond(&invite, from, "200 OK", &answer);
    let (ok, _) = setup.caller.wait(&["SIP/2.0 200"]);
    assert_eq!(media_port(body(&ok)), towards_a);
    setup
        .caller
        .request("ACK", &setup.target(), setup.proxy, &dialog, "");
    setup.called.wait(&["ACK"]);
    setup.node.until_calls(1);
    setup.hang_up(dialog);
    setup.node.until_calls(0);
    // Kamailio has read our figures.
    let end = Instant::now() + PATIENCE;
    let figures = loop {
        let log = setup.kamailio.log();
        if let Some(line) = log.lines().find(|line| line.contains("figures: RTP:")) {
            break line.to_owned();
        }
        assert!(Instant::now() < end, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let packets: u64 = figures
        .split(" packets")
        .next()
        .and_then(|text| text.rsplit(' ').next())
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{figures}"));
    assert!(packets >= 50, "{figures}");
    assert!(figures.contains(" 0 errors"), "{figures}");
}

#[test]
fn kamailio_requests_srtp_and_unsupported_options() {
    let Some(setup) = setup("peer-node-srtp") else {
        return;
    };
    let offer = setup.caller.sdp("RTP/AVP", "");
    let mut agreed = None;
    let (dialog, offered, answered) = setup.call("srtp", "two", &offer, |offered| {
        let values = offered
            .lines()
            .filter_map(|line| line.strip_prefix("a=crypto:"));
        let ours = sdes::answer(
            &sdes::Policy::default(),
            values.map(str::as_bytes),
            &mut engine::Entropy::from_number(5),
        )
        .expect("keys");
        let crypto = format!("a=crypto:{}\r\n", ours.local.value().as_str());
        agreed = Some(ours);
        setup.called.sdp("RTP/SAVP", &crypto)
    });
    assert!(offered.contains(" RTP/SAVP 0"), "{offered}");
    assert!(
        answered.contains(" RTP/AVP 0") && !answered.contains("crypto"),
        "{answered}"
    );
    let mut contexts = agreed
        .expect("keys")
        .contexts(ContextLimits::default())
        .expect("contexts");
    let (towards_b, towards_a) = (media_port(&offered), media_port(&answered));
    for mut packet in exchange_media(&setup.caller.media, towards_a, &setup.called.media, |n| {
        rtp(7, n)
    }) {
        let length = contexts
            .inbound
            .unprotect_rtp(&mut packet)
            .expect("a packet encrypted by the node can be decrypted");
        assert_eq!(length, 172);
    }
    let back = exchange_media(&setup.called.media, towards_b, &setup.caller.media, |n| {
        let mut packet = rtp(9, n);
        packet.resize(256, 0);
        let length = contexts
            .outbound
            .protect_rtp(&mut packet, 172)
            .expect("sealed");
        packet.truncate(length);
        packet
    });
    assert!(back.iter().all(|packet| packet.len() == 172));
    setup.hang_up(dialog);
    setup.node.until_calls(0);

    let dialog = Dialog {
        call_id: format!("three{}", std::process::id()),
        to: "<sip:refused@127.0.0.1>".to_owned(),
        cseq: 1,
        routes: Vec::new(),
    };
    let uri = format!("sip:refused@{}", setup.proxy);
    setup
        .caller
        .request("INVITE", &uri, setup.proxy, &dialog, &offer);
    let (refused, _) = setup.caller.wait(&["SIP/2.0 4"]);
    assert!(refused.starts_with("SIP/2.0 488"), "{refused}");
    assert!(
        setup.kamailio.log().contains("always-transcode"),
        "Kamailio logs which flag it was: {}",
        setup.kamailio.log()
    );
}

#[test]
fn commands_over_tcp_and_websocket_recordings_and_shutdown() {
    let mut node = node("node-ways");
    let mut stream = TcpStream::connect(node.tcp).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
        .write_all(&encode_command("t1", "ping", &[]))
        .expect("written");
    let mut bytes = [0; 100];
    let length = stream.read(&mut bytes).expect("a reply");
    assert_eq!(&bytes[..length], b"t1 d6:result4:ponge");

    let mut web = TcpStream::connect(node.web).expect("connected");
    web.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let opening = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Protocol: ng.rtpengine.com\r\n\r\n";
    web.write_all(opening.as_bytes()).expect("written");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        web.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(
        head.starts_with("HTTP/1.1 101") && head.contains("ng.rtpengine.com"),
        "{head}"
    );
    // A masked frame (RFC 6455 section 5.2); the mask is zero.
    let message = encode_command("w1", "ping", &[]);
    let mut frame = vec![0x81, 0x80 | message.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(&message);
    web.write_all(&frame).expect("written");
    let mut reply = [0; 21];
    web.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply[2..], b"w1 d6:result4:ponge");

    // A call by hand, recorded.
    let (a, b) = (CallSide::new(), CallSide::new());
    let offer = a.sdp("RTP/AVP", "");
    let tags = [("call-id", "by hand"), ("from-tag", "a")];
    let with = |more: &[(&'static str, &str)], command: &str| {
        let mut pairs: Vec<(&str, &str)> = tags.to_vec();
        pairs.extend_from_slice(more);
        node.command(command, &pairs)
    };
    let text = |value: &Value, key: &str| match value {
        Value::Dictionary(entries) => match entries.get(key.as_bytes()) {
            Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{key}: {other:?} in {value:?}"),
        },
        other => panic!("{other:?}"),
    };
    let offered = text(&with(&[("sdp", &offer)], "offer"), "sdp");
    let answer = b.sdp("RTP/AVP", "");
    let answered = text(&with(&[("sdp", &answer), ("to-tag", "b")], "answer"), "sdp");
    assert_eq!(text(&with(&[], "start recording"), "result"), "ok");
    exchange_media(&a.media, media_port(&answered), &b.media, |n| rtp(7, n));
    exchange_media(&b.media, media_port(&offered), &a.media, |n| rtp(9, n));
    let figures = with(&[], "delete");
    assert!(
        number(&figures, &["totals", "RTP", "packets"]) >= 50,
        "{figures:?}"
    );
    node.process.signal("TERM");
    assert_eq!(
        node.process.wait(PATIENCE),
        Some(true),
        "{}",
        node.process.log()
    );
    let log = node.process.log();
    assert!(log.contains("drain_finished terminated=0"), "{log}");
    let files: Vec<PathBuf> = std::fs::read_dir(node.folder.join("recordings"))
        .expect("folder")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    let [file] = &files[..] else {
        panic!("{files:?}")
    };
    let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["lab", "analyse"])
        .arg(file)
        .args(["--json"])
        .arg(node.folder.join("figures.json"))
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    let json = std::fs::read_to_string(node.folder.join("figures.json")).expect("figures");
    let json: serde_json::Value = serde_json::from_str(&json).expect("json");
    let streams = json["streams"].as_array().expect("streams");
    assert_eq!(streams.len(), 2, "{json}");
}

/// A full disk ends the recording with an event. It delays neither media nor commands.
#[test]
fn recording_on_a_full_disk_delays_nothing() {
    let may = Command::new("unshare").args(["-m", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: no right to make a mount namespace");
        return;
    }
    let mut node = node_started("node-full-disk", |file, recordings| {
        let script = format!(
            "mount -t tmpfs -o size=64k none '{}' && exec '{}' run --role media -c '{}'",
            recordings.display(),
            env!("CARGO_BIN_EXE_hornwork"),
            file.display()
        );
        let mut program = Command::new("unshare");
        program.args(["-m", "sh", "-c", &script]);
        program
    });
    let (a, b) = (CallSide::new(), CallSide::new());
    let (offer, answer) = (a.sdp("RTP/AVP", ""), b.sdp("RTP/AVP", ""));
    let tags = [("call-id", "full"), ("from-tag", "a")];
    let with = |node: &NodeUnderTest, more: &[(&'static str, &str)], command: &str| {
        let pairs = [&tags[..], more].concat();
        node.command(command, &pairs)
    };
    with(&node, &[("sdp", &offer)], "offer");
    let answered = with(&node, &[("sdp", &answer), ("to-tag", "b")], "answer");
    let Value::Dictionary(answered) = answered else {
        panic!("{answered:?}");
    };
    let Some(Value::Bytes(sdp)) = answered.get(&b"sdp"[..]) else {
        panic!("{answered:?}");
    };
    let port = media_port(&String::from_utf8_lossy(sdp));
    with(&node, &[], "start recording");
    let end = Instant::now() + PATIENCE;
    while !node.process.log().contains("recording_failed") {
        assert!(Instant::now() < end, "{}", node.process.log());
        exchange_media(&a.media, port, &b.media, |n| rtp(7, n));
    }
    while b.media.recv(&mut [0; 2_048]).is_ok() {}
    // Fifty packets and fifty commands while the disk is full.
    let limit = Some(PATIENCE);
    b.media.set_read_timeout(limit).expect("timeout");
    let mut bytes = [0; 2_048];
    for number in 0..50 {
        let packet = rtp(7, 5_000 + number);
        a.media.send_to(&packet, ("127.0.0.1", port)).expect("sent");
        let length = b.media.recv(&mut bytes);
        assert_eq!(length.ok(), Some(packet.len()), "packet {number}");
        assert!(node.try_command("ping", &[]).is_some());
    }
    with(&node, &[], "delete");
    node.process.signal("TERM");
    assert_eq!(
        node.process.wait(PATIENCE),
        Some(true),
        "{}",
        node.process.log()
    );
    let log = node.process.log();
    assert_eq!(log.matches("recording_failed").count(), 1, "{log}");
    assert!(log.contains("No space left on device"), "{log}");
}

#[test]
fn file_must_match_the_role() {
    let folder = scratch("node-roles");
    let file = folder.join("f.toml");
    let run = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).expect("file");
        let output = Command::new(env!("CARGO_BIN_EXE_hornwork"))
            .args(["run", "-c"])
            .arg(&file)
            .args(more)
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), log)
    };
    let (first, last) = media_ports(4);
    let node = format!(
        "[ng_server]\nlisten='udp:127.0.0.1:2223'\n[[ng_server.interface]]\nname='x'\nmedia={{address='127.0.0.1',ports='{first}-{last}'}}\n"
    );
    let (code, log) = run(&node, &[]);
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("use --role media"), "{log}");
    let border = "[[interface]]\nname='x'\nlisten='udp:127.0.0.1:5060'\n";
    let (code, log) = run(border, &["--role", "media"]);
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("has no media node"), "{log}");
    let (code, log) = run(border, &["--role", "signalling"]);
    assert_eq!(code, Some(3), "{log}");
    let folder = format!("recordings='{}/none'\n", folder.display());
    let lost = node.replacen("\n", &format!("\n{folder}"), 1);
    let (code, log) = run(&lost, &["--role", "media"]);
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("cannot write recordings"), "{log}");
}

/// Synthetic speech at 16 kHz: a tone with varying pitch and level.
fn voice(seconds: u32) -> Vec<i16> {
    let mut phase = 0.0;
    (0..seconds * 16_000)
        .map(|n| {
            let at = f64::from(n) / 16_000.0;
            let hz = 600.0 + 250.0 * (at * 3.0).sin();
            phase += hz * std::f64::consts::TAU / 16_000.0;
            (phase.sin() * (6_000.0 + 3_000.0 * (at * 7.0).sin())) as i16
        })
        .collect()
}

fn sound_file(samples: &[i16]) -> Vec<u8> {
    codec::wav::write(codec::wav::Encoding::Pcm16, 16_000, 1, samples).expect("a file")
}

/// Receives packets until `some` have arrived and none for two seconds; with arrival times relative to the first.
fn listen(socket: &UdpSocket, some: usize) -> Vec<(Duration, Vec<u8>)> {
    let mut came: Vec<(Duration, Vec<u8>)> = Vec::new();
    let mut bytes = [0; 2_048];
    let begun = Instant::now();
    let mut last = Instant::now();
    while begun.elapsed() < 2 * PATIENCE {
        if let Ok((length, _)) = socket.recv_from(&mut bytes) {
            last = Instant::now();
            came.push((begun.elapsed(), bytes[..length].to_vec()));
        } else if came.len() >= some && last.elapsed() > Duration::from_secs(2) {
            return came;
        }
    }
    panic!("{} packets came", came.len());
}

/// Maximum correlation of received with sent audio over delays below 100 ms at 8 kHz; 1 for identical audio.
fn correlation(log: &[i16], heard: &[i16]) -> f64 {
    let product = |a: &[i16], b: &[i16]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    (0..800)
        .filter_map(|delay| {
            let heard = heard.get(delay..)?;
            let length = heard.len().min(log.len());
            let (log, heard) = (&log[..length], &heard[..length]);
            Some(product(log, heard) / (product(log, log) * product(heard, heard)).sqrt())
        })
        .fold(0.0, f64::max)
}

/// Payloads decoded by ffmpeg, at 8 kHz.
fn decoded(folder: &Path, format: &[&str], payloads: &[u8]) -> Vec<i16> {
    let (raw, out) = (folder.join("heard.raw"), folder.join("heard.s16"));
    std::fs::write(&raw, payloads).expect("written");
    let done = Command::new("ffmpeg")
        .args(["-y", "-loglevel", "error"])
        .args(format)
        .arg("-i")
        .arg(&raw)
        .args(["-f", "s16le", "-ar", "8000", "-ac", "1"])
        .arg(&out)
        .stdin(Stdio::null())
        .status()
        .expect("ffmpeg");
    assert!(done.success(), "ffmpeg cannot decode the playback");
    let bytes = std::fs::read(&out).expect("decoded");
    bytes
        .chunks_exact(2)
        .map(|two| i16::from_le_bytes([two[0], two[1]]))
        .collect()
}

/// tshark's figures of a stream: packets, lost packets.
fn tshark(folder: &Path, to: u16, packets: &[(Duration, Vec<u8>)]) -> Option<(u64, i64)> {
    if !installed(&["tshark"]) {
        return None;
    }
    let mut writer = wire::capture::PcapWriter::new(wire::ethernet::LinkType::Raw);
    for (at, payload) in packets {
        let length = (payload.len() + 28) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        packet.extend(4_000u16.to_be_bytes());
        packet.extend(to.to_be_bytes());
        packet.extend((length - 20).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend_from_slice(payload);
        writer.frame(at.as_nanos() as u64, &packet);
    }
    let file = folder.join("heard.pcap");
    std::fs::write(&file, writer.finish()).expect("written");
    let done = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .args(["-q", "-d"])
        .arg(format!("udp.port=={to},rtp"))
        .args(["-z", "rtp,streams"])
        .output()
        .expect("tshark");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains("0x"))
        .unwrap_or_else(|| panic!("no stream: {text}"));
    // ... SSRC, payload (may contain blanks), packets, lost (percent).
    let (before, _) = line.split_once('(').expect("lost");
    let mut words = before.split_whitespace().rev();
    let lost = words.next().expect("lost").parse().expect("lost");
    let packets = words.next().expect("packets").parse().expect("packets");
    Some((packets, lost))
}

#[test]
fn kamailio_playback_is_received_and_decoded_by_other_programs() {
    let Some(setup) = setup("peer-node-sound") else {
        return;
    };
    let voice = voice(1);
    std::fs::write(
        setup.node.folder.join("sounds/voice.wav"),
        sound_file(&voice),
    )
    .expect("file");
    let offer = setup.caller.sdp("RTP/AVP", "");
    let (mut dialog, _, _) = setup.call("plain", "sound", &offer, |_| {
        setup.called.sdp("RTP/AVP", "")
    });
    let mut ask = |sound: &str, status: &str| {
        dialog.cseq += 1;
        let mut with = Dialog {
            call_id: dialog.call_id.clone(),
            to: dialog.to.clone(),
            cseq: dialog.cseq,
            routes: dialog.routes.clone(),
        };
        with.routes.push(format!("Sound: {sound}\r\n"));
        let target = setup.target();
        setup
            .caller
            .request("INFO", &target, setup.proxy, &with, "");
        let (reply, _) = setup.caller.wait(&["SIP/2.0"]);
        let log = setup.kamailio.log();
        assert!(
            reply.starts_with(&format!("SIP/2.0 {status}")),
            "{reply}{log}"
        );
    };
    ask("nothing.wav", "404");
    ask("voice.wav", "200");
    // Played twice.
    let came = listen(&setup.caller.media, 100);
    assert!((100..=101).contains(&came.len()), "{}", came.len());
    let port = CallSide::port(&setup.caller.media);
    if let Some((packets, lost)) = tshark(&setup.node.folder, port, &came) {
        assert_eq!((packets, lost), (came.len() as u64, 0));
    }
    let payloads: Vec<u8> = came.iter().flat_map(|(_, p)| p[12..].to_vec()).collect();
    if installed(&["ffmpeg"]) {
        let heard = decoded(
            &setup.node.folder,
            &["-f", "mulaw", "-ar", "8000", "-ac", "1"],
            &payloads,
        );
        let log = codec::Resampler::whole(&voice, 16_000, 8_000).expect("rates");
        let log = [log.clone(), log].concat();
        let alike = correlation(&log, &heard);
        assert!(alike > 0.99, "{alike}");
    }
    ask("voice.wav", "200");
    let mut bytes = [0; 2_048];
    let end = Instant::now() + PATIENCE;
    while setup.caller.media.recv_from(&mut bytes).is_err() {
        assert!(Instant::now() < end, "nothing is played");
    }
    ask("stop", "200");
    setup.hang_up(dialog);
    setup.node.until_calls(0);
}

#[test]
fn ffmpeg_decodes_played_g722() {
    if !installed(&["ffmpeg"]) {
        return;
    }
    let node = node("peer-node-g722");
    let (a, b) = (CallSide::new(), CallSide::new());
    let sdp = |party: &CallSide| party.sdp("RTP/AVP", "").replace("RTP/AVP 0", "RTP/AVP 9");
    let call = [("call-id", "wide"), ("from-tag", "a")];
    let offer = sdp(&a);
    node.command("offer", &[&call[..], &[("sdp", &offer)]].concat());
    let answer = sdp(&b);
    let answer = [("to-tag", "b"), ("sdp", answer.as_str())];
    node.command("answer", &[&call[..], &answer].concat());
    let voice = voice(2);
    let file = node.folder.join("sounds/voice.wav");
    std::fs::write(&file, sound_file(&voice)).expect("file");
    let whole = file.display().to_string();
    let reply = node.command("play media", &[&call[..], &[("file", &whole)]].concat());
    assert_eq!(number(&reply, &["duration"]), 2_000, "{reply:?}");
    let came = listen(&a.media, 100);
    let payloads: Vec<u8> = came.iter().flat_map(|(_, p)| p[12..].to_vec()).collect();
    let heard = decoded(&node.folder, &["-f", "g722"], &payloads);
    let log = codec::Resampler::whole(&voice, 16_000, 8_000).expect("rates");
    let alike = correlation(&log, &heard);
    assert!(alike > 0.98, "{alike}");
}
