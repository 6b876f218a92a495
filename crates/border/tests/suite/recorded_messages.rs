//! Recorded messages: every message that is processed or sent, of each transport, with its addresses.

use border::border::Border;
use engine::{
    ConnectionId, Datagram, Engine, Entropy, Input, MessageBatch, Output, SocketId, SocketKind,
    Time, Transport,
};
use std::net::SocketAddr;

const FILE: &str = "[[interface]]\nname = \"a\"\nlisten = [\"udp:192.0.2.1:5060\", \"tcp:192.0.2.1:5060\", \"ws:192.0.2.1:8080\"]\n";

fn options(transport: &str) -> Vec<u8> {
    format!(
        "OPTIONS sip:192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/{transport} 192.0.2.9;rport;branch=z9hG4bK{transport}\r\nMax-Forwards: 70\r\n\
         From: <sip:a@192.0.2.9>;tag=1\r\nTo: <sip:192.0.2.1>\r\nCall-ID: {transport}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// Opens the sockets; returns that of each kind.
fn opened(border: &mut Border) -> Vec<(SocketKind, SocketId, SocketAddr)> {
    let mut sockets = Vec::new();
    while let Some(output) = border.next_output() {
        if let Output::OpenSocket {
            socket,
            kind,
            local,
        } = output
        {
            sockets.push((kind, socket, local));
        }
    }
    for &(_, socket, local) in &sockets {
        border.handle(Input::Opened { socket, local }, Time(1));
        while border.next_output().is_some() {}
    }
    sockets
}

#[test]
fn requests_and_responses_of_each_transport_are_recorded() {
    let config = config::parse(FILE, "file").expect("a configuration");
    let mut border = Border::new(config, Entropy::from_number(1));
    let sockets = opened(&mut border);
    assert!(border.recorded_messages().is_none(), "off without a batch");
    border.record_messages(Some(MessageBatch::new(1 << 16)));
    let remote: SocketAddr = "192.0.2.9:40000".parse().expect("an address");
    let mut expected = Vec::new();
    for (number, (kind, socket, local)) in sockets.iter().enumerate() {
        let (transport, name) = match kind {
            SocketKind::UdpSignalling => (Transport::Udp, "UDP"),
            SocketKind::TcpListener => (Transport::Tcp, "TCP"),
            SocketKind::WsListener => (Transport::Ws, "WS"),
            _ => continue,
        };
        let now = Time::from_secs(number as u64 + 1);
        let mut bytes = options(name);
        if transport == Transport::Udp {
            let datagram = Datagram {
                socket: *socket,
                source: remote,
                arrived: now,
                bytes: &mut bytes,
            };
            border.handle(Input::Datagram(datagram), now);
        } else {
            let connection = ConnectionId(ConnectionId::ACCEPTED | number as u64);
            let accepted = Input::Accepted {
                connection,
                socket: *socket,
                local: *local,
                remote,
            };
            border.handle(accepted, now);
            let bytes = bytes.as_slice();
            border.handle(Input::Stream { connection, bytes }, now);
        }
        while border.next_output().is_some() {}
        expected.push((false, transport, *local, remote, format!("OPTIONS {name}")));
        expected.push((true, transport, *local, remote, format!("SIP/2.0 {name}")));
    }
    assert_eq!(expected.len(), 6);
    let batch = border.recorded_messages().expect("on");
    let recorded: Vec<_> = batch
        .iter()
        .map(|(message, bytes)| {
            let text = String::from_utf8_lossy(bytes);
            let id = text
                .split("Call-ID: ")
                .nth(1)
                .and_then(|rest| rest.lines().next());
            let first = text.split(' ').next().unwrap_or_default();
            let facts = format!("{first} {}", id.unwrap_or_default());
            (
                message.sent,
                message.transport,
                message.local,
                message.remote,
                facts,
            )
        })
        .collect();
    assert_eq!(recorded, expected);
    assert_eq!(batch.lost(), 0);
}
