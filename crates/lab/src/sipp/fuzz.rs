//! Any bytes as a scenario. What comes out as a program is played in a little world without a network: it must end, whatever
//! it says.

use super::compile::compile;
use super::engine::{Generator, Parts};
use super::settings::Settings;
use super::template::Names;
use super::{inject::Injection, schedule::Limits, xml};
use engine::{Datagram, Engine, Entropy, Input, Output, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Inputs to one generator, at most.
const INPUTS: usize = 200;

/// Reads, compiles, plays.
pub(super) fn scenario(data: &[u8]) {
    let Ok(root) = xml::read(data) else { return };
    let Ok(injection) = Injection::read("a.csv", b"SEQUENTIAL\na;[authentication];c\n".to_vec())
    else {
        return;
    };
    let files = vec![injection];
    let mut names = Names {
        users: true,
        ..Names::default()
    }
    .with_files(&files);
    let Ok(program) = compile(&root, &mut names) else {
        return;
    };
    let server = program.server;
    let settings = Settings {
        remote: Some(SocketAddr::from(([127, 0, 0, 1], 5060))),
        limits: Limits {
            total: Some(2),
            ..Limits::default()
        },
        room: 16,
        ..Settings::default()
    };
    let parts = Parts {
        program,
        settings,
        files,
        recordings: Vec::new(),
        sounds: BTreeMap::new(),
    };
    play(Generator::new(parts, Entropy::from_number(1)), server);
}

/// Gives the generator its own messages back, as they are and as answers, until nothing happens any more.
fn play(mut generator: Generator, server: bool) {
    let mut now = Time::ZERO;
    let mut waiting: Vec<Vec<u8>> = Vec::new();
    if server {
        let method = generator.program().methods.first().cloned();
        let method = method.unwrap_or_else(|| b"INVITE".to_vec());
        waiting.push([&method[..], b" sip:a SIP/2.0\r\nVia: SIP/2.0/UDP b;branch=c\r\nFrom: d;tag=e\r\nTo: f\r\nCall-ID: g\r\nCSeq: 1 ", &method, b"\r\n\r\n"].concat());
    }
    generator.handle(Input::Timeout, now);
    for _ in 0..INPUTS {
        let mut opened = Vec::new();
        while let Some(output) = generator.next_output() {
            match output {
                Output::Open { socket, local, .. } => opened.push((socket, local)),
                Output::Datagram { bytes, .. } if waiting.len() < 16 => {
                    waiting.push(answer(bytes));
                    waiting.push(bytes.to_vec());
                }
                _ => {}
            }
        }
        let mut message = None;
        let input = if let Some((socket, local)) = opened.pop() {
            Input::Opened { socket, local }
        } else if let Some(bytes) = waiting.pop() {
            Input::Datagram(Datagram {
                socket: super::engine::MAIN,
                source: SocketAddr::from(([127, 0, 0, 1], 5060)),
                arrived: now,
                bytes: message.insert(bytes),
            })
        } else {
            let Some(deadline) = generator.next_deadline() else {
                return;
            };
            now = deadline.at.max(now).max(now + Duration::from_nanos(1));
            Input::Timeout
        };
        generator.handle(input, now);
        for (socket, local) in opened {
            while generator.next_output().is_some() {}
            generator.handle(Input::Opened { socket, local }, now);
        }
    }
    generator.end(now);
    while generator.next_output().is_some() {}
    assert_eq!(
        generator.statistics().open,
        0,
        "calls are left when all has ended"
    );
}

/// A response to a request: its own headers behind another start line.
fn answer(request: &[u8]) -> Vec<u8> {
    let end = memchr::memchr(b'\n', request).map_or(request.len(), |at| at + 1);
    let status: &[u8] = match request.len() % 3 {
        0 => b"SIP/2.0 180 Ringing\r\n",
        1 => b"SIP/2.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"a\", nonce=\"b\"\r\n",
        _ => b"SIP/2.0 200 OK\r\n",
    };
    [status, request.get(end..).unwrap_or_default()].concat()
}
