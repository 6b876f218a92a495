//! A trunk with an invalid certificate: the call fails over to the next target, and the trunk is down.

use border::border::Border;
use engine::{
    CloseReason, ConnectionId, Datagram, Engine, Entropy, EventKind, Input, Output, SocketId,
    SocketKind, Time,
};
use std::net::SocketAddr;

const CONFIG: &str = r#"
[[interface]]
name = "both"
listen = ["udp:192.0.2.1:5060", "tls:192.0.2.1:5061"]
tls = { certificate = { chain = "c.pem", key = "c.key" } }

[[trunk]]
name = "carrier"
target = [{ address = "tls:192.0.2.50" }, { address = "udp:192.0.2.51", priority = 1 }]
ping_interval_s = 3600
tls = { ca = "ca.pem", name = "sip.carrier.example" }

[[route]]
trunk = "carrier"
media = "bypass"
"#;

#[derive(Debug)]
enum Out {
    Open(SocketId, SocketKind, SocketAddr),
    Datagram(SocketAddr, String),
    Connect(ConnectionId, SocketAddr, Option<(String, String)>),
    Stream(String),
    Event(EventKind),
    Other,
}

fn drain(border: &mut Border) -> Vec<Out> {
    let mut all = Vec::new();
    while let Some(output) = border.next_output() {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        all.push(match output {
            Output::OpenSocket {
                socket,
                kind,
                local,
            } => Out::Open(socket, kind, local),
            Output::Datagram {
                destination, bytes, ..
            } => Out::Datagram(destination, text(bytes)),
            Output::Connect {
                connection,
                remote,
                tls: secure,
                ..
            } => {
                let secure = secure.map(|s| (s.server_name.to_owned(), s.profile.to_owned()));
                Out::Connect(connection, remote, secure)
            }
            Output::Stream { bytes, .. } => Out::Stream(text(bytes)),
            Output::Event(event) => Out::Event(event.kind),
            _ => Out::Other,
        });
    }
    all
}

#[test]
fn target_with_a_wrong_certificate_is_skipped() {
    let config = config::parse(CONFIG, "t").expect("configuration");
    let mut border = Border::new(config, Entropy::from_number(1));
    let mut udp = None;
    for out in drain(&mut border) {
        let Out::Open(socket, kind, local) = out else {
            continue;
        };
        if kind == SocketKind::UdpSignalling {
            udp = Some(socket);
        } else {
            assert_eq!((kind, local.port()), (SocketKind::TlsListener, 5061));
        }
        border.handle(Input::Opened { socket, local }, Time::ZERO);
    }
    drain(&mut border);
    let invite = "INVITE sip:1@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 198.51.100.5;branch=z9hG4bKa\r\nMax-Forwards: 70\r\nFrom: <sip:a@198.51.100.5>;tag=1\r\nTo: <sip:1@192.0.2.1>\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nContact: <sip:a@198.51.100.5>\r\nContent-Length: 0\r\n\r\n";
    let mut bytes = invite.as_bytes().to_vec();
    let datagram = Datagram {
        socket: udp.expect("a UDP socket"),
        source: "198.51.100.5:5060".parse().expect("address"),
        arrived: Time::ZERO,
        bytes: &mut bytes,
    };
    border.handle(Input::Datagram(datagram), Time::ZERO);
    // The ping or the call requested the connection, with the configured name and the trunk's settings.
    let out = drain(&mut border);
    let connects: Vec<_> = out
        .iter()
        .filter_map(|out| match out {
            Out::Connect(id, remote, secure) => Some((*id, *remote, secure.clone())),
            _ => None,
        })
        .collect();
    let wanted = Some(("sip.carrier.example".to_owned(), "carrier".to_owned()));
    let remote: SocketAddr = "192.0.2.50:5061".parse().expect("address");
    assert_eq!(connects.len(), 1, "{out:?}");
    assert_eq!((connects[0].1, &connects[0].2), (remote, &wanted));
    let sent = |out: &[Out]| {
        out.iter()
            .any(|out| matches!(out, Out::Stream(text) if text.starts_with("INVITE ")))
    };
    assert!(sent(&out), "the call waits for the handshake: {out:?}");
    let closed = Input::Closed {
        connection: connects[0].0,
        reason: CloseReason::TlsFailed,
    };
    border.handle(closed, Time(1_000_000));
    let out = drain(&mut border);
    let next: SocketAddr = "192.0.2.51:5060".parse().expect("address");
    assert!(
        out.iter().any(|out| matches!(out, Out::Datagram(to, text) if *to == next && text.starts_with("INVITE "))),
        "{out:?}"
    );
    let routed = |out: &Out| matches!(out, Out::Event(EventKind::CallRouted { target, .. }) if target == "carrier");
    assert!(out.iter().any(routed), "{out:?}");
}
