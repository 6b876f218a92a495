//! Trunk names resolved by a name server of the test; truncated answers are requested again over TCP.

use crate::common;

use common::{border, example, free_port, media_ports, scratch};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn question_end(query: &[u8]) -> usize {
    let mut at = 12;
    while query[at] != 0 {
        at += 1 + usize::from(query[at]);
    }
    at + 5
}

/// The answer to a query: 127.0.0.1 for A, empty for other types.
fn answer(query: &[u8]) -> Vec<u8> {
    let end = question_end(query);
    let mut answer = query[..end].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[6..12].fill(0);
    if query[end - 4..end - 2] == [0, 1] {
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    answer
}

/// A name server that answers every datagram with "truncated" and the records over TCP; returns its port and counts
/// streams.
fn name_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let port = listener.local_addr().expect("address").port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).expect("socket");
    let streams = Arc::new(AtomicUsize::new(0));
    let counted = streams.clone();
    // Both threads end with the test process.
    std::thread::spawn(move || {
        let mut query = [0; 2048];
        while let Ok((length, from)) = datagrams.recv_from(&mut query) {
            let query = &query[..length];
            let mut cut = query[..question_end(query)].to_vec();
            cut[2..4].copy_from_slice(&[0x83, 0x80]);
            cut[6..12].fill(0);
            let _ = datagrams.send_to(&cut, from);
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            counted.fetch_add(1, Ordering::Relaxed);
            let mut length = [0; 2];
            if stream.read_exact(&mut length).is_err() {
                continue;
            }
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            if stream.read_exact(&mut query).is_err() {
                continue;
            }
            let answer = answer(&query);
            let mut bytes = (answer.len() as u16).to_be_bytes().to_vec();
            bytes.extend(&answer);
            // In two writes, as a stream may deliver it.
            let (front, back) = bytes.split_at(5);
            let _ = stream.write_all(front);
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(back);
            // Until the border closes.
            let _ = stream.read(&mut length);
        }
    });
    (port, streams)
}

#[test]
fn truncated_answer_is_requested_over_tcp() {
    let folder = scratch("names");
    let (dns, streams) = name_server();
    let trunk = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let port = trunk.local_addr().expect("address").port();
    trunk
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("timeout");
    let sip = free_port();
    let configuration = example(
        "loopback.toml",
        sip,
        port,
        media_ports(100),
        &format!("[dns]\nservers = [\"127.0.0.1:{dns}\"]\n"),
    )
    .replace(
        &format!("udp:127.0.0.1:{port}"),
        &format!("udp:pbx.example:{port}"),
    );
    let border = border(&folder, &configuration, sip);
    let caller = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let local = caller.local_addr().expect("address");
    let invite = format!(
        "INVITE sip:bob@127.0.0.1:{sip} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKnames;rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:alice@{local}>;tag=a\r\nTo: <sip:bob@127.0.0.1>\r\nCall-ID: names@{local}\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:alice@{local}>\r\nContent-Length: 0\r\n\r\n"
    );
    caller
        .send_to(invite.as_bytes(), ("127.0.0.1", sip))
        .expect("sent");
    let mut buffer = [0; 4096];
    let (length, _) = trunk
        .recv_from(&mut buffer)
        .unwrap_or_else(|error| panic!("{error}: {}", border.log()));
    let text = String::from_utf8_lossy(&buffer[..length]);
    assert!(
        text.starts_with(&format!("INVITE sip:bob@pbx.example:{port}")),
        "{text}"
    );
    assert!(streams.load(Ordering::Relaxed) >= 1);
}
