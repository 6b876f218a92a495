//! Calls with a full ICE agent on one side. The peers are agents of `protect`, which others judge there; whole telephones and a browser
//! judge this in `crates/hornwork/tests/peer_phones.rs`.

use super::secure_tests::{NOW, Rig, addr, lines, rtp, sdp};
use super::*;
use crate::config::Ice;
use core::time::Duration;
use engine::{DropReason, Drops, Time};
use protect::ice::{Agent, Candidate, Credentials, Lite, Role};

const PEER: &str = "10.9.9.9:6000";

fn full() -> Option<Arc<MediaSecurity>> {
    Some(Arc::new(MediaSecurity {
        ice: Ice::Full,
        ..MediaSecurity::default()
    }))
}

fn drops(rig: &mut Rig) -> Drops {
    let mut drops = Drops::new();
    rig.plane.keyer.count_drops(&mut drops);
    drops
}

/// A full agent beyond the border.
struct Peer {
    agent: Agent,
    place: SocketAddr,
}

impl Peer {
    fn new(number: u64, role: Role) -> Peer {
        let mut entropy = Entropy::from_number(number);
        let local = Credentials::generate(&mut entropy);
        let mut agent = Agent::new(local, role, entropy);
        agent.add_local(addr(PEER)).unwrap();
        Peer {
            agent,
            place: addr(PEER),
        }
    }

    fn attributes(&self) -> Vec<String> {
        let local = self.agent.local();
        let mut all = vec![
            format!("ice-ufrag:{}", local.fragment()),
            format!("ice-pwd:{}", local.password()),
            "rtcp-mux".into(),
        ];
        let candidates = self.agent.candidates();
        all.extend(candidates.map(|candidate| format!("candidate:{candidate}")));
        all
    }

    fn describe(&self, host: u8, port: u16) -> String {
        let attributes = self.attributes();
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        sdp(host, port, "RTP/AVP", &attributes)
    }

    fn take(&mut self, text: &str, now: Time) -> SocketAddr {
        let (fragment, password) = (lines(text, "ice-ufrag")[0], lines(text, "ice-pwd")[0]);
        let credentials = Credentials::parse(fragment, password).unwrap();
        let lite = text.contains("a=ice-lite");
        self.agent.set_remote(credentials, lite, now);
        let candidates = lines(text, "candidate");
        assert_eq!(candidates.len(), 1);
        let candidate = Candidate::parse(candidates[0].as_bytes()).unwrap();
        let address = candidate.address;
        self.agent.add_remote(candidate).unwrap();
        self.agent.begin(now);
        address
    }

    /// Lets time pass for the call and for the peer, whose datagrams come from `border` and from its own place; with `deaf` nothing
    /// reaches it.
    fn pass(&mut self, rig: &mut Rig, side: Side, border: SocketAddr, span: Duration, deaf: bool) {
        let end = rig.plane.keyer.now + span;
        for _ in 0..100_000 {
            rig.drain();
            let now = rig.plane.keyer.now;
            let mut busy = false;
            for (to, bytes) in std::mem::take(&mut rig.wire) {
                if to == self.place && !deaf {
                    let _ = self.agent.feed(0, &bytes, border, now);
                    busy = true;
                }
            }
            while let Some((_, to, bytes)) = self.agent.next_datagram() {
                if to == border {
                    let _ = rig.send_from(side, self.place, &bytes);
                    busy = true;
                }
            }
            if busy {
                continue;
            }
            let due = self.agent.next_deadline().into_iter().chain(rig.call.wake);
            let Some(due) = due.min().filter(|due| *due <= end) else {
                rig.plane.keyer.now = end;
                return;
            };
            rig.plane.keyer.now = now.max(due);
            let now = rig.plane.keyer.now;
            self.agent.timeout(now);
            if rig.call.wake.is_some_and(|wake| wake <= now) {
                rig.call.keying_due(&mut rig.plane);
            }
        }
        panic!("no end");
    }
}

const SOON: Duration = Duration::from_secs(3);

/// Media goes to the nominated pair, and comes from there alone.
fn talks(rig: &mut Rig, side: Side, sequence: u16) {
    let (to, out) = rig
        .send_from(side.other(), addr("10.0.0.1:4000"), &rtp(3, sequence))
        .unwrap();
    assert_eq!((to, out), (addr(PEER), rtp(3, sequence)));
    let (_, out) = rig.send_from(side, addr(PEER), &rtp(7, sequence)).unwrap();
    assert_eq!(out, rtp(7, sequence));
    let stranger = rig.send_from(side, addr("10.0.0.2:5000"), &rtp(7, sequence + 1));
    assert_eq!(stranger, Err(DropReason::MediaStranger));
}

#[test]
fn a_full_agent_offers_and_leads() {
    let mut rig = Rig::new(None, full());
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    assert!(!forward.contains("a=ice-lite"), "{forward}");
    for wanted in ["a=ice-options:ice2\r\n", "a=rtcp-mux\r\n", "a=ice-ufrag:"] {
        assert!(forward.contains(wanted), "{forward}");
    }
    let mut peer = Peer::new(20, Role::Controlled);
    let border = peer.take(&forward, NOW);
    // The peer may begin before its answer is here.
    peer.pass(
        &mut rig,
        Side::Callee,
        border,
        Duration::from_secs(1),
        false,
    );
    assert_eq!(rig.words(), Vec::<String>::new());
    // Where it says that it receives media is another place than where ICE finds it.
    let answer = peer.describe(2, 5000);
    rig.answer(Side::Callee, &answer, false).unwrap();
    let none = rig.send_from(Side::Caller, addr("10.0.0.1:4000"), &rtp(3, 1));
    assert!(none.is_err(), "nothing is sent before a pair is nominated");
    peer.pass(&mut rig, Side::Callee, border, SOON, false);
    assert_eq!(rig.words(), [format!("callee nominated {PEER}")]);
    let path = peer.agent.selected().unwrap();
    assert_eq!((path.remote, path.mapped), (border, addr(PEER)));
    talks(&mut rig, Side::Callee, 2);
    // The same agent goes on after a second offer, and consent is kept up.
    let again = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &["sendonly"]))
        .unwrap();
    assert_eq!(lines(&again, "ice-ufrag"), lines(&forward, "ice-ufrag"));
    rig.answer(Side::Callee, &answer, false).unwrap();
    peer.pass(
        &mut rig,
        Side::Callee,
        border,
        Duration::from_secs(120),
        false,
    );
    assert_eq!(rig.words(), Vec::<String>::new());
}

#[test]
fn a_full_agent_answers_and_is_led() {
    let mut rig = Rig::new(full(), None);
    let mut peer = Peer::new(21, Role::Controlling);
    let offer = peer.describe(1, 4000);
    let forward = rig.offer(Side::Caller, &offer).unwrap();
    assert!(!forward.contains("ice"), "{forward}");
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    assert!(!answer.contains("a=ice-lite"), "{answer}");
    let border = peer.take(&answer, NOW);
    peer.pass(&mut rig, Side::Caller, border, SOON, false);
    assert_eq!(rig.words(), [format!("caller nominated {PEER}")]);
    let (to, _) = rig
        .send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(3, 1))
        .unwrap();
    assert_eq!(to, addr(PEER));
    // Whoever hears nothing more of the peer stops sending, and says so once; then that there is no other way.
    peer.pass(
        &mut rig,
        Side::Caller,
        border,
        Duration::from_secs(20),
        true,
    );
    assert_eq!(rig.words(), Vec::<String>::new());
    let gone = Duration::from_secs(100);
    peer.place = addr("10.8.8.8:1");
    peer.pass(&mut rig, Side::Caller, border, gone, true);
    peer.place = addr(PEER);
    assert_eq!(rig.words(), ["caller consent", "caller no pair"]);
    assert!(
        rig.send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(3, 2))
            .is_err()
    );
    // A restart brings it back: new credentials on both sides.
    let mut anew = Peer::new(22, Role::Controlling);
    rig.offer(Side::Caller, &anew.describe(1, 4000)).unwrap();
    let renewed = rig.answer(Side::Callee, &plain, false).unwrap();
    assert_ne!(lines(&renewed, "ice-ufrag"), lines(&answer, "ice-ufrag"));
    let now = rig.plane.keyer.now;
    anew.take(&renewed, now);
    anew.pass(&mut rig, Side::Caller, border, SOON, false);
    assert_eq!(rig.words(), [format!("caller nominated {PEER}")]);
}

#[test]
fn a_lite_peer_that_offers_is_led() {
    let mut rig = Rig::new(full(), None);
    let local = Credentials::generate(&mut Entropy::from_number(30));
    let offer = sdp(
        1,
        4000,
        "RTP/AVP",
        &[
            &format!("ice-ufrag:{}", local.fragment()),
            &format!("ice-pwd:{}", local.password()),
            &format!(
                "candidate:1 1 UDP 2130706431 {} 6000 typ host",
                addr(PEER).ip()
            ),
            "rtcp-mux",
        ],
    )
    .replacen("m=", "a=ice-lite\r\nm=", 1);
    rig.offer(Side::Caller, &offer).unwrap();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    let ours = Credentials::parse(lines(&answer, "ice-ufrag")[0], lines(&answer, "ice-pwd")[0]);
    let mut lite = Lite::new(local, ours);
    let border = Candidate::parse(lines(&answer, "candidate")[0].as_bytes());
    let border = border.unwrap().address;
    for _ in 0..100 {
        rig.drain();
        for (to, bytes) in std::mem::take(&mut rig.wire) {
            assert_eq!(to, addr(PEER));
            lite.feed(&bytes, border, rig.plane.keyer.now).unwrap();
        }
        while let Some((_, bytes)) = lite.next_answer() {
            rig.send_from(Side::Caller, addr(PEER), &bytes).unwrap();
        }
        if let Some(wake) = rig.call.wake.filter(|_| rig.wire.is_empty()) {
            rig.plane.keyer.now = rig.plane.keyer.now.max(wake);
            rig.call.keying_due(&mut rig.plane);
        }
    }
    assert_eq!(rig.words(), [format!("caller nominated {PEER}")]);
    assert_eq!(lite.selected(), Some(border));
    assert!(lite.consents(rig.plane.keyer.now) && rig.plane.keyer.now > Time::from_secs(100));
}

#[test]
fn a_flood_of_candidates_is_counted() {
    let mut rig = Rig::new(full(), None);
    let peer = Peer::new(23, Role::Controlling);
    let mut offer = peer.describe(1, 4000);
    for number in 0..10_000 {
        let (a, b) = (number / 250, number % 250);
        offer.push_str(&format!(
            "a=candidate:{number} 1 udp 5 10.7.{a}.{b} 9 typ host\r\n"
        ));
    }
    rig.offer(Side::Caller, &offer).unwrap();
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    let dropped = drops(&mut rig).get(DropReason::IceCandidate);
    assert_eq!(dropped, 10_001 - protect::ice::MAX_REMOTE as u64);
    // What is kept is checked in its time, and no more than seven times each.
    let end = NOW + Duration::from_secs(200);
    let mut sent = 0;
    while let Some(wake) = rig.call.wake.filter(|wake| *wake < end) {
        rig.plane.keyer.now = rig.plane.keyer.now.max(wake);
        rig.call.keying_due(&mut rig.plane);
        rig.drain();
        sent += std::mem::take(&mut rig.wire).len();
    }
    assert!(sent <= 7 * protect::ice::MAX_REMOTE, "{sent}");
    assert_eq!(rig.words(), ["caller no pair"]);
}

#[test]
fn without_ice_in_the_answer_media_goes_as_it_says() {
    let mut rig = Rig::new(None, full());
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    let (to, _) = rig
        .send_from(Side::Caller, addr("10.0.0.1:4000"), &rtp(3, 1))
        .unwrap();
    assert_eq!(to, addr("10.0.0.2:5000"));
    assert!(rig.wire.is_empty() && rig.words().is_empty());
}
