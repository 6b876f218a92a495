//! Fuzzing entry: arbitrary bytes as commands to an ng server with an active call.

use super::NgServer;
use config::{Config, parse};
use core::time::Duration;
use engine::{
    Control, Datagram, Engine, Entropy, Forward, HashKey, Input, Output, SocketId, SocketKind, Time,
};
use media::{Forwarder, ForwarderLimits};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use wire::ng::{NgMessage, Value};

const CONFIG: &str = "[ng_server]\nlisten=['udp:192.0.2.1:2223']\nallow='0.0.0.0/0'\nsounds='/sounds'\n\
    [[ng_server.interface]]\nname='a'\nmedia={address='192.0.2.1',ports='20000-20039'}\n";
const CODECS: &str =
    "0 8 9 18 111\r\na=rtpmap:9 G722/8000\r\na=rtpmap:111 opus/48000/2\r\na=ptime:30\r\n";
/// Commands per input at most.
const COMMANDS: usize = 16;

struct NgServerHarness {
    node: NgServer,
    forwarder: Forwarder,
    now: Time,
    listener: Option<SocketId>,
    replies: usize,
}

fn configuration() -> Arc<Config> {
    static CONFIGURATION: OnceLock<Arc<Config>> = OnceLock::new();
    let make = || match parse(CONFIG, "fuzz.toml") {
        Ok(config) => Arc::new(config),
        Err(mistakes) => panic!("{mistakes:?}"),
    };
    CONFIGURATION.get_or_init(make).clone()
}

/// The only file of the folder: 100 ms.
fn file() -> Arc<[u8]> {
    let samples: Vec<i16> = (0..1_600).map(|n: i16| n.wrapping_mul(41)).collect();
    codec::wav::write(codec::wav::Encoding::Pcm16, 16_000, 1, &samples)
        .unwrap_or_default()
        .into()
}

impl NgServerHarness {
    fn drain(&mut self) {
        loop {
            let mut opened = Vec::new();
            while let Some(output) = self.node.next_output() {
                match output {
                    Output::OpenSocket {
                        socket,
                        kind,
                        local,
                    } => opened.push((socket, kind, local)),
                    Output::Datagram { socket, bytes, .. } if Some(socket) == self.listener => {
                        assert!(NgMessage::parse(bytes).is_ok(), "an invalid reply");
                        self.replies += 1;
                    }
                    _ => {}
                }
            }
            let mut idle = opened.is_empty();
            while let Some(command) = self.node.next_command() {
                self.forwarder.command(command, self.now);
                idle = false;
            }
            while let Some((_, _, bytes)) = self.forwarder.next_packet() {
                assert!(wire::rtp::RtpView::parse(bytes).is_some(), "no RTP");
            }
            while let Some(requested) = self.node.next_sound_request() {
                let found = match requested.name.len() % 2 {
                    1 => Ok(file()),
                    _ => Err("No such file".to_owned()),
                };
                self.node.sound_read(requested.number, found, self.now);
                idle = false;
            }
            for (socket, kind, local) in opened {
                if kind == SocketKind::UdpSignalling {
                    self.listener = Some(socket);
                }
                self.node.handle(Input::Opened { socket, local }, self.now);
            }
            while let Some(report) = self.forwarder.next_report() {
                self.node.report(report, self.now);
                idle = false;
            }
            if idle {
                return;
            }
        }
    }

    fn command(&mut self, bytes: &[u8]) {
        let Some(socket) = self.listener else { return };
        let mut bytes = bytes.to_vec();
        self.node.handle(
            Input::Datagram(Datagram {
                socket,
                source: SocketAddr::from(([192, 0, 2, 7], 5_000)),
                arrived: self.now,
                bytes: &mut bytes,
            }),
            self.now,
        );
        self.drain();
    }

    fn send(&mut self, cookie: &str, pairs: &[(&str, &str)]) {
        let mut body = Value::dictionary();
        for (key, value) in pairs {
            body.set(key, *value);
        }
        let mut bytes = Vec::new();
        NgMessage::write(cookie.as_bytes(), &body, &mut bytes);
        self.command(&bytes);
    }

    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let node = self.node.next_deadline().map(|deadline| deadline.at);
            let forwarder = self.forwarder.next_deadline().map(|deadline| deadline.at);
            let next = [node, forwarder].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            self.forwarder.timeout(self.now);
            self.node.handle(Input::Timeout, self.now);
            self.drain();
        }
        self.now = end;
    }
}

/// Processes the parts of `data` between `|||` as commands. Returns the number of replies.
///
/// # Panics
/// A broken invariant is the finding.
pub fn fuzz_ng_server(data: &[u8]) -> usize {
    let key = HashKey::default();
    let entropy = Entropy::from_number(1);
    let Some(node) = NgServer::new(configuration(), 1 << 60, entropy) else {
        return 0;
    };
    let mut harness = NgServerHarness {
        node,
        forwarder: Forwarder::new(ForwarderLimits::default(), key),
        now: Time::from_secs(1),
        listener: None,
        replies: 0,
    };
    harness.drain();
    let sdp = |host: u8| {
        format!(
            "v=0\r\no=- 1 1 IN IP4 192.0.2.{host}\r\ns=-\r\nc=IN IP4 192.0.2.{host}\r\nt=0 0\r\nm=audio 4000 RTP/AVP {CODECS}"
        )
    };
    let offer = sdp(7);
    harness.send(
        "-1",
        &[
            ("command", "offer"),
            ("call-id", "c"),
            ("from-tag", "a"),
            ("sdp", &offer),
        ],
    );
    let answer = sdp(8);
    harness.send(
        "-2",
        &[
            ("command", "answer"),
            ("call-id", "c"),
            ("from-tag", "a"),
            ("to-tag", "b"),
            ("sdp", &answer),
        ],
    );
    assert_eq!(harness.replies, 2, "the call is active");
    let mut rest = data;
    for _ in 0..COMMANDS {
        let end = rest.windows(3).position(|three| three == b"|||");
        let (bytes, behind) = rest.split_at(end.unwrap_or(rest.len()));
        harness.command(bytes);
        harness.advance(Duration::from_millis(70));
        rest = behind.get(3..).unwrap_or_default();
    }
    harness.node.drain(Duration::ZERO, harness.now);
    harness.drain();
    harness.advance(Duration::from_secs(1));
    let census = harness.node.census();
    let left = (
        census.calls,
        census.ports,
        census.sounds,
        census.sockets_busy,
    );
    assert_eq!(left, (0, 0, 0, 0), "{census:?}");
    assert_eq!(harness.forwarder.sessions(), 0);
    harness.replies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_play_sounds() {
        assert_eq!(fuzz_ng_server(b""), 2);
        let play =
            b"1 d7:call-id1:c7:command10:play media4:file5:a.wav8:from-tag1:a12:repeat-timesi9ee";
        let stop = b"2 d7:call-id1:c7:command10:stop media8:from-tag1:ae";
        let both = [&play[..], b"|||", &stop[..]].concat();
        assert_eq!(fuzz_ng_server(&both), 4);
    }
}
