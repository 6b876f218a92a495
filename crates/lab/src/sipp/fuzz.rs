//! Fuzzing of scenarios: a program compiled from any bytes runs without a network. It must terminate, independent of
//! its content.

use super::compile::compile;
use super::engine::{GeneratorParts, ScenarioGenerator};
use super::settings::ScenarioSettings;
use super::template::NameTable;
use super::{inject::Injection, schedule::CallLimits, xml};
use engine::{Datagram, Engine, Entropy, Input, Output, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Most inputs of one generator.
const MAX_INPUTS: usize = 200;

/// Reads, compiles and runs a scenario.
pub(super) fn scenario(data: &[u8]) {
    let Ok(root) = xml::read(data) else { return };
    let Ok(injection) = Injection::read("a.csv", b"SEQUENTIAL\na;[authentication];c\n".to_vec())
    else {
        return;
    };
    let files = vec![injection];
    let mut names = NameTable {
        users: true,
        ..NameTable::default()
    }
    .with_files(&files);
    let Ok(program) = compile(&root, &mut names) else {
        return;
    };
    let server = program.server;
    let settings = ScenarioSettings {
        remote: Some(SocketAddr::from(([127, 0, 0, 1], 5060))),
        limits: CallLimits {
            total: Some(2),
            ..CallLimits::default()
        },
        room: 16,
        ..ScenarioSettings::default()
    };
    let parts = GeneratorParts {
        program,
        settings,
        files,
        recordings: Vec::new(),
        sounds: BTreeMap::new(),
    };
    exchange(
        ScenarioGenerator::new(parts, Entropy::from_number(1)),
        server,
    );
}

/// Returns the generator's own messages to it, unchanged and as responses, until it is idle.
fn exchange(mut generator: ScenarioGenerator, server: bool) {
    let mut now = Time::ZERO;
    let mut waiting: Vec<Vec<u8>> = Vec::new();
    if server {
        let method = generator.program().methods.first().cloned();
        let method = method.unwrap_or_else(|| b"INVITE".to_vec());
        waiting.push([&method[..], b" sip:a SIP/2.0\r\nVia: SIP/2.0/UDP b;branch=c\r\nFrom: d;tag=e\r\nTo: f\r\nCall-ID: g\r\nCSeq: 1 ", &method, b"\r\n\r\n"].concat());
    }
    generator.handle(Input::Timeout, now);
    for _ in 0..MAX_INPUTS {
        let mut opened = Vec::new();
        while let Some(output) = generator.next_output() {
            match output {
                Output::OpenSocket { socket, local, .. } => opened.push((socket, local)),
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

/// A response to a request: its headers after another start line.
fn answer(request: &[u8]) -> Vec<u8> {
    let end = memchr::memchr(b'\n', request).map_or(request.len(), |at| at + 1);
    let status: &[u8] = match request.len() % 3 {
        0 => b"SIP/2.0 180 Ringing\r\n",
        1 => b"SIP/2.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"a\", nonce=\"b\"\r\n",
        _ => b"SIP/2.0 200 OK\r\n",
    };
    [status, request.get(end..).unwrap_or_default()].concat()
}
