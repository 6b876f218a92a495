//! Fuzzing entry: arbitrary bytes as replies of media nodes, while calls are set up, changed and ended.
//!
//! A border with two nodes in virtual time. The input is a list of steps: a kind, a length, that many octets.
//! Messages of parties and nodes are built from the last output of the border, so that they match existing state;
//! then the input modifies them.

use crate::border::Border;
use config::{Config, parse};
use core::time::Duration;
use engine::{Datagram, Engine, Entropy, Input, Output, SocketId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use wire::ng::{NgMessage as Command, Value};

const CONFIG: &str = "[[interface]]\nname='out'\nlisten='udp:192.0.2.1:5060'\n\
    [[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\n\
    [[trunk]]\nname='pbx'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n\
    [media]\nanchor='nodes'\n\
    [[media_node]]\nname='one'\ncontrol='udp:192.0.2.101:2223'\n\
    [[media_node]]\nname='two'\ncontrol='udp:192.0.2.102:2223'\nload='reported'\n";
const SDP: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.101\r\ns=-\r\nc=IN IP4 192.0.2.101\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";
/// Control port of the nodes.
const CONTROL: u16 = 2_223;
/// Steps per input at most; the rest is ignored.
const STEPS: usize = 64;
/// Messages kept for answers.
const KEPT_MESSAGES: usize = 16;

struct NgClientHarness {
    border: Border,
    now: Time,
    sockets: BTreeMap<SocketId, SocketAddr>,
    /// Commands: socket, destination, bytes.
    commands: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    /// SIP messages: socket, destination, bytes.
    sent: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    calls: u32,
}

fn configuration() -> Arc<Config> {
    static CONFIGURATION: OnceLock<Arc<Config>> = OnceLock::new();
    let make = || match parse(CONFIG, "fuzz.toml") {
        Ok(config) => Arc::new(config),
        Err(mistakes) => panic!("{mistakes:?}"),
    };
    CONFIGURATION.get_or_init(make).clone()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| unreachable!("an address"))
}

/// Lines of a message with one of these names.
fn lines<'m>(message: &'m str, names: &'m [&str]) -> impl Iterator<Item = &'m str> {
    message.split("\r\n").filter(move |line| {
        let name = line.split(':').next().unwrap_or_default();
        names
            .iter()
            .any(|existing| existing.eq_ignore_ascii_case(name))
    })
}

impl NgClientHarness {
    fn new() -> NgClientHarness {
        let mut harness = NgClientHarness {
            border: Border::new(configuration(), Entropy::from_number(1)),
            now: Time::from_millis(1),
            sockets: BTreeMap::new(),
            commands: VecDeque::new(),
            sent: VecDeque::new(),
            calls: 0,
        };
        harness.feed(Input::Timeout);
        harness
    }

    fn feed(&mut self, input: Input<'_>) {
        self.border.handle(input, self.now);
        loop {
            let mut opened = Vec::new();
            while let Some(output) = self.border.next_output() {
                match output {
                    Output::OpenSocket { socket, local, .. } => opened.push((socket, local)),
                    Output::Datagram {
                        socket,
                        destination,
                        bytes,
                    } => {
                        let queue = match destination.port() {
                            CONTROL => &mut self.commands,
                            _ => &mut self.sent,
                        };
                        queue.push_back((socket, destination, bytes.to_vec()));
                        while queue.len() > KEPT_MESSAGES {
                            queue.pop_front();
                        }
                    }
                    _ => {}
                }
            }
            if opened.is_empty() {
                return;
            }
            for (socket, local) in opened {
                self.sockets.insert(socket, local);
                self.border
                    .handle(Input::Opened { socket, local }, self.now);
            }
        }
    }

    fn datagram(&mut self, socket: SocketId, source: SocketAddr, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let arrived = self.now;
        self.feed(Input::Datagram(Datagram {
            socket,
            source,
            arrived,
            bytes: &mut bytes,
        }));
    }

    fn socket_at(&self, local: &str) -> Option<SocketId> {
        let local = address(local);
        let mut sockets = self.sockets.iter();
        sockets
            .find(|(_, at)| **at == local)
            .map(|(socket, _)| *socket)
    }

    fn invite(&mut self, sdp: &[u8]) {
        self.calls += 1;
        let number = self.calls;
        let mut text = format!(
            "INVITE sip:bob@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bK{number}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@10.1.0.1>;tag=a{number}\r\nTo: <sip:bob@192.0.2.1>\r\nCall-ID: {number}\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@10.1.0.1>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n",
            sdp.len()
        )
        .into_bytes();
        text.extend_from_slice(sdp);
        if let Some(socket) = self.socket_at("192.0.2.1:5060") {
            self.datagram(socket, address("10.1.0.1:5060"), &text);
        }
    }

    /// Cancels the last call.
    fn cancel(&mut self) {
        let number = self.calls;
        let text = format!(
            "CANCEL sip:bob@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bK{number}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@10.1.0.1>;tag=a{number}\r\nTo: <sip:bob@192.0.2.1>\r\nCall-ID: {number}\r\nCSeq: 1 CANCEL\r\nContent-Length: 0\r\n\r\n"
        );
        if let Some(socket) = self.socket_at("192.0.2.1:5060") {
            self.datagram(socket, address("10.1.0.1:5060"), text.as_bytes());
        }
    }

    /// A response to the border's last request.
    fn respond(&mut self, status: u16, sdp: &[u8]) {
        let found = self
            .sent
            .iter()
            .rev()
            .find(|sent| !sent.2.starts_with(b"SIP/"));
        let Some((socket, peer, request)) = found.cloned() else {
            return;
        };
        let request = String::from_utf8_lossy(&request).into_owned();
        let mut text = format!("SIP/2.0 {status} X\r\n");
        for line in lines(
            &request,
            &["Via", "From", "To", "Call-ID", "CSeq", "Record-Route"],
        ) {
            let to = line
                .get(..3)
                .is_some_and(|name| name.eq_ignore_ascii_case("to:"));
            let tag = if to && !line.contains("tag=") {
                ";tag=b"
            } else {
                ""
            };
            text.push_str(&format!("{line}{tag}\r\n"));
        }
        text.push_str(&format!(
            "Contact: <sip:b@10.2.0.1>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n",
            sdp.len()
        ));
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(sdp);
        self.datagram(socket, peer, &bytes);
    }

    /// An in-dialog request of the caller, by the border's last 2xx.
    fn in_dialog_request(&mut self, method: &str, cseq: u8, sdp: &[u8]) {
        let is = |sent: &&(SocketId, SocketAddr, Vec<u8>)| sent.2.starts_with(b"SIP/2.0 200");
        let Some((socket, peer, answer)) = self.sent.iter().rev().find(is).cloned() else {
            return;
        };
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let mut text = format!(
            "{method} sip:192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.1:5060;branch=z9hG4bK{method}{cseq}\r\nMax-Forwards: 70\r\n"
        );
        for line in lines(&answer, &["From", "To", "Call-ID"]) {
            text.push_str(&format!("{line}\r\n"));
        }
        text.push_str(&format!(
            "CSeq: {cseq} {method}\r\nContact: <sip:a@10.1.0.1>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n",
            sdp.len()
        ));
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(sdp);
        self.datagram(socket, peer, &bytes);
    }

    /// A reply to a command: its cookie and the input's octets.
    fn reply(&mut self, which: usize, body: &[u8]) {
        let Some((socket, node, command)) = self.commands.iter().rev().nth(which).cloned() else {
            return;
        };
        let mut bytes = Command::cookie_of(&command).unwrap_or_default().to_vec();
        bytes.push(b' ');
        bytes.extend_from_slice(body);
        self.datagram(socket, node, &bytes);
    }

    fn accept(&mut self, which: usize, sdp: &[u8]) {
        let reply = Value::dictionary().with("result", "ok").with("sdp", sdp);
        let mut body = Vec::new();
        reply.write(&mut body);
        self.reply(which, &body);
    }

    /// Advances virtual time, with all timeouts in it.
    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        let mut turns = 0;
        while let Some(deadline) = self.border.next_deadline().filter(|due| due.at <= end) {
            self.now = self.now.max(deadline.at);
            self.feed(Input::Timeout);
            turns += 1;
            assert!(turns < 20_000, "time stands still for {}", deadline.reason);
        }
        self.now = end;
    }

    fn step(&mut self, kind: u8, bytes: &[u8]) {
        let which = usize::from(kind >> 5);
        let sdp: &[u8] = if bytes.is_empty() {
            SDP.as_bytes()
        } else {
            bytes
        };
        match kind % 16 {
            0 => self.invite(sdp),
            1 => self.invite(SDP.as_bytes()),
            2 => self.accept(which, sdp),
            3 => self.accept(which, SDP.as_bytes()),
            4 => self.reply(which, bytes),
            5 => self.respond(180 + u16::from(kind >> 7) * 3, sdp),
            6 => self.respond(200, sdp),
            7 => self.respond(486, &[]),
            8 => self.in_dialog_request("ACK", 1, if kind < 128 { &[] } else { sdp }),
            9 => self.in_dialog_request("INVITE", kind, sdp),
            10 => self.in_dialog_request("UPDATE", kind, sdp),
            11 => self.in_dialog_request("BYE", kind, &[]),
            12 => self.cancel(),
            13 => self.advance(Duration::from_millis(1 << (which * 2))),
            14 => {
                if let Some((socket, node, _)) = self.commands.back().cloned() {
                    self.datagram(socket, node, bytes);
                }
            }
            _ => {
                if let Some((socket, destination, _)) = self.commands.back().cloned() {
                    self.feed(Input::Unreachable {
                        socket,
                        destination,
                        bytes,
                    });
                }
            }
        }
    }
}

/// Runs the input. Returns the largest number of pending commands about calls.
///
/// # Panics
/// State of a call that is left after all have ended is the finding.
pub fn fuzz_ng_client(data: &[u8]) -> usize {
    let mut harness = NgClientHarness::new();
    let mut rest = data;
    let mut pending = 0;
    for _ in 0..STEPS {
        let [kind, length, more @ ..] = rest else {
            break;
        };
        let length = (usize::from(*length) * 2).min(more.len());
        let (bytes, left) = more.split_at(length);
        harness.step(*kind, bytes);
        pending = pending.max(harness.border.parts.media_nodes.pending_commands());
        rest = left;
    }
    harness.border.drain(Duration::ZERO, harness.now);
    harness.advance(Duration::from_secs(300));
    let census = harness.border.census();
    assert!(census.is_quiet(), "left over: {census:#?}");
    pending
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps without octets.
    fn steps(kinds: &[u8]) -> Vec<u8> {
        kinds.iter().flat_map(|kind| [*kind, 0]).collect()
    }

    #[test]
    fn steps_reach_media_nodes() {
        assert_eq!(fuzz_ng_client(&[]), 0);
        assert!(fuzz_ng_client(&steps(&[1, 3, 5, 3, 6, 3, 8, 9, 3, 6, 3, 11])) > 0);
        assert!(fuzz_ng_client(&steps(&[1, 12])) > 0);
        assert!(fuzz_ng_client(&steps(&[1, 15, 15, 3, 13])) > 0);
        // An answer deferred for its node when the caller cancels: the call must be removed from its trunk as well.
        assert!(fuzz_ng_client(&steps(&[1, 3, 6, 12])) > 0);
        let mut refusal = vec![1, 0, 4, 20];
        refusal.extend_from_slice(b"d6:result5:error12:error-reason4:oopse");
        assert!(fuzz_ng_client(&refusal) > 0);
    }
}
