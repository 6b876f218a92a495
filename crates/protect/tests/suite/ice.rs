//! The ICE agents: interoperability with another full agent in both roles, and robustness against arbitrary input.
//!
//! The peer is Python's aioice, run by `HORNWORK_PYTHON` or `python3`; skipped, with a message, if it cannot be
//! imported.

use crate::common::python;
use engine::{Entropy, Time};
use proptest::prelude::*;
use protect::ice::{Agent, IceCandidate, IceCredentials, IceRole, LiteAgent, host_candidate};
use protect::stun::StunMessage;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments: our fragment, password, candidate, kind (`lite`, `controlled`, `controlling`). Prints its credentials
/// and candidate, connects, and sends datagrams over the pair.
const JUDGE: &str = r#"
import asyncio, sys
import aioice
from aioice import ice
ice.get_host_addresses = lambda *a, **k: ["127.0.0.1"]
async def main():
    agent = aioice.Connection(ice_controlling=sys.argv[4] != "controlling")
    agent.remote_is_lite = sys.argv[4] == "lite"
    await agent.gather_candidates()
    agent.remote_username, agent.remote_password = sys.argv[1:3]
    print(agent.local_username, agent.local_password, agent.local_candidates[0].to_sdp(), flush=True)
    await agent.add_remote_candidate(aioice.Candidate.from_sdp(sys.argv[3]))
    await agent.add_remote_candidate(None)
    await agent.connect()
    print("connected", flush=True)
    for _ in range(20):
        await agent.send(b"\x80media")
        await asyncio.sleep(0.02)
    await agent.close()
asyncio.run(asyncio.wait_for(main(), 20))
"#;

/// One of our agents.
enum OurAgent {
    Lite(Box<LiteAgent>),
    Full(Box<Agent>),
}

impl OurAgent {
    fn feed(&mut self, datagram: &[u8], from: SocketAddr, now: Time) {
        match self {
            OurAgent::Lite(lite) => lite.feed(datagram, from, now).unwrap(),
            OurAgent::Full(agent) => agent.feed(0, datagram, from, now).unwrap(),
        }
    }

    fn next(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        match self {
            OurAgent::Lite(lite) => lite.next_answer(),
            OurAgent::Full(agent) => agent.next_datagram().map(|(_, to, bytes)| (to, bytes)),
        }
    }

    fn selected(&self) -> Option<SocketAddr> {
        match self {
            OurAgent::Lite(lite) => lite.selected(),
            OurAgent::Full(agent) => agent.selected().map(|path| path.remote),
        }
    }
}

/// Connects one of our agents, of this kind, with aioice.
fn with_aioice(kind: &str) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let address = socket.local_addr().unwrap();
    let mut entropy = Entropy::from_number(11);
    let local = IceCredentials::generate(&mut entropy);
    let Some(python) = python("aioice") else {
        return;
    };
    let mut child = Command::new(python)
        .args(["-c", JUDGE, local.fragment(), local.password()])
        .args([&host_candidate(1, 1, 65_535, address), kind])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter has just run");
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.trim_end().splitn(3, ' ').collect();
    let [fragment, password, candidate] = words.as_slice() else {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        panic!("the judge ended: {text}");
    };
    let remote = IceCredentials::parse(fragment, password);
    let start = Instant::now();
    let now = || Time::ZERO + start.elapsed();
    let mut ours = match kind {
        "lite" => OurAgent::Lite(Box::new(LiteAgent::new(local, remote))),
        _ => {
            let role = match kind {
                "controlling" => IceRole::Controlling,
                _ => IceRole::Controlled,
            };
            let mut agent = Agent::new(local, role, entropy);
            agent.add_local(address).unwrap();
            agent.set_remote(remote.unwrap(), false, now());
            let candidate = IceCandidate::parse(candidate.as_bytes()).unwrap();
            agent.add_remote(candidate).unwrap();
            OurAgent::Full(Box::new(agent))
        }
    };
    let mut media = None;
    let mut buffer = [0; 2_048];
    while start.elapsed() < Duration::from_secs(20) && media.is_none() {
        if let OurAgent::Full(agent) = &mut ours {
            agent.timeout(now());
        }
        while let Some((to, datagram)) = ours.next() {
            socket.send_to(&datagram, to).unwrap();
        }
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let datagram = &buffer[..length];
        if datagram.ends_with(b"media") {
            let admitted = match &ours {
                OurAgent::Lite(lite) => lite.admits(from),
                OurAgent::Full(agent) => agent.admits(from),
            };
            assert!(admitted, "media from a source without a valid check");
            media = Some(from);
            continue;
        }
        ours.feed(datagram, from, now());
        while let Some((to, answer)) = ours.next() {
            socket.send_to(&answer, to).unwrap();
        }
    }
    let selected = ours.selected();
    let _ = child.kill();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(rest.starts_with("connected"), "{errors}");
    assert!(
        selected.is_some() && selected == media,
        "{selected:?} {media:?}"
    );
    println!("judged by aioice: {kind}, nominated {selected:?}");
}

#[test]
fn aioice_nominates_a_pair_with_our_lite_agent() {
    with_aioice("lite");
}

#[test]
fn aioice_nominates_a_pair_with_our_full_agent() {
    with_aioice("controlled");
}

#[test]
fn our_full_agent_nominates_a_pair_with_aioice() {
    with_aioice("controlling");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary steps of a full agent: see the function.
    #[test]
    fn arbitrary_steps_of_a_full_agent(steps in prop::collection::vec(any::<u8>(), 0..1200)) {
        protect::fuzz_ice(&steps);
    }

    /// Arbitrary bytes, and bytes that resemble STUN: no panic, every response is STUN, no source is admitted.
    #[test]
    fn arbitrary_stun_is_handled_safely(
        kind in prop::sample::select(vec![0u16, 1, 0x11, 0x101, 0x111]),
        attributes in prop::collection::vec((prop::sample::select(vec![6u16, 8, 9, 0x20, 0x24, 0x25, 0x8028, 0x8029, 0x7777]), prop::collection::vec(any::<u8>(), 0..24)), 0..8),
        raw in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut body = Vec::new();
        for (kind, value) in &attributes {
            body.extend_from_slice(&kind.to_be_bytes());
            body.extend_from_slice(&(value.len() as u16).to_be_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut like = kind.to_be_bytes().to_vec();
        like.extend_from_slice(&(body.len() as u16).to_be_bytes());
        like.extend_from_slice(&[0x21, 0x12, 0xa4, 0x42]);
        like.extend_from_slice(&[7; 12]);
        like.extend_from_slice(&body);
        let from = SocketAddr::from(([192, 0, 2, 1], 9));
        let mut lite = LiteAgent::new(IceCredentials::generate(&mut Entropy::from_number(1)), None);
        for datagram in [&raw, &like] {
            if let Some(message) = StunMessage::parse(datagram) {
                let _ = (message.mapped_address(), message.error_code(), message.unknown_attributes().count());
                let _ = (message.number(0x24), message.attribute(6), message.has_integrity());
            }
            let _ = lite.feed(datagram, from, Time::ZERO);
            while let Some((to, answer)) = lite.next_answer() {
                prop_assert_eq!(to, from);
                prop_assert!(StunMessage::parse(&answer).is_some());
            }
        }
        prop_assert!(!lite.admits(from) && lite.selected().is_none());
    }
}
