//! Calls with a full ICE agent on one side. The peers are agents of `protect`, which has tests of its own;
//! interoperability with telephones and a browser is tested in `crates/hornwork/tests/suite/peer_phones.rs`.

use super::tests::{MediaRig, NOW, addr, lines, rtp, sdp};
use crate::*;
use config::Ice;
use core::time::Duration;
use engine::{DropReason, Drops, Time};
use protect::ice::{Agent, IceCandidate, IceCredentials, IceRole, LiteAgent};

const PEER: &str = "10.9.9.9:6000";

fn full() -> Option<Arc<MediaSecurity>> {
    Some(Arc::new(MediaSecurity {
        ice: Ice::Full,
        ..MediaSecurity::default()
    }))
}

fn drops(rig: &mut MediaRig) -> Drops {
    let mut drops = Drops::new();
    rig.plane.keying.count_drops(&mut drops);
    drops
}

/// A full agent as the peer of the border.
struct FullIcePeer {
    agent: Agent,
    local: SocketAddr,
}

impl FullIcePeer {
    fn new(number: u64, role: IceRole) -> FullIcePeer {
        let mut entropy = Entropy::from_number(number);
        let local = IceCredentials::generate(&mut entropy);
        let mut agent = Agent::new(local, role, entropy);
        agent.add_local(addr(PEER)).unwrap();
        FullIcePeer {
            agent,
            local: addr(PEER),
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

    fn description(&self, host: u8, port: u16) -> String {
        let attributes = self.attributes();
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        sdp(host, port, "RTP/AVP", &attributes)
    }

    fn apply_description(&mut self, text: &str, now: Time) -> SocketAddr {
        let (ice_ufrag, ice_pwd) = (lines(text, "ice-ufrag")[0], lines(text, "ice-pwd")[0]);
        let credentials = IceCredentials::parse(ice_ufrag, ice_pwd).unwrap();
        let lite = text.contains("a=ice-lite");
        self.agent.set_remote(credentials, lite, now);
        let candidates = lines(text, "candidate");
        assert_eq!(candidates.len(), 1);
        let candidate = IceCandidate::parse(candidates[0].as_bytes()).unwrap();
        let address = candidate.address;
        self.agent.add_remote(candidate).unwrap();
        self.agent.begin(now);
        address
    }

    /// Runs call and peer for `span`; the peer's datagrams come from `border`'s peer address and go to `border`. With
    /// `is_deaf` the peer receives nothing.
    fn run(
        &mut self,
        rig: &mut MediaRig,
        side: Side,
        border: SocketAddr,
        span: Duration,
        is_deaf: bool,
    ) {
        let end = rig.plane.keying.now + span;
        for _ in 0..100_000 {
            rig.drain();
            let now = rig.plane.keying.now;
            let mut busy = false;
            for (to, bytes) in std::mem::take(&mut rig.wire) {
                if to == self.local && !is_deaf {
                    let _ = self.agent.feed(0, &bytes, border, now);
                    busy = true;
                }
            }
            while let Some((_, to, bytes)) = self.agent.next_datagram() {
                if to == border {
                    let _ = rig.send_from(side, self.local, &bytes);
                    busy = true;
                }
            }
            if busy {
                continue;
            }
            let due = self
                .agent
                .next_deadline()
                .into_iter()
                .chain(rig.call.timeout_at);
            let Some(due) = due.min().filter(|due| *due <= end) else {
                rig.plane.keying.now = end;
                return;
            };
            rig.plane.keying.now = now.max(due);
            let now = rig.plane.keying.now;
            self.agent.timeout(now);
            if rig.call.timeout_at.is_some_and(|due| due <= now) {
                rig.call.handle_keying_timeout(&mut rig.plane);
            }
        }
        panic!("no end");
    }
}

const SOON: Duration = Duration::from_secs(3);

/// Media goes to the nominated pair, and is accepted from there only.
fn assert_media_flows(rig: &mut MediaRig, side: Side, sequence: u16) {
    let (to, out) = rig
        .send_from(side.other(), addr("10.0.0.1:4000"), &rtp(3, sequence))
        .unwrap();
    assert_eq!((to, out), (addr(PEER), rtp(3, sequence)));
    let (_, out) = rig.send_from(side, addr(PEER), &rtp(7, sequence)).unwrap();
    assert_eq!(out, rtp(7, sequence));
    let unknown_source = rig.send_from(side, addr("10.0.0.2:5000"), &rtp(7, sequence + 1));
    assert_eq!(unknown_source, Err(DropReason::MediaUnexpectedSource));
}

#[test]
fn a_full_agent_that_offers_is_controlling() {
    let mut rig = MediaRig::new(None, full());
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    assert!(!forward.contains("a=ice-lite"), "{forward}");
    for attribute in ["a=ice-options:ice2\r\n", "a=rtcp-mux\r\n", "a=ice-ufrag:"] {
        assert!(forward.contains(attribute), "{forward}");
    }
    let mut peer = FullIcePeer::new(20, IceRole::Controlled);
    let border = peer.apply_description(&forward, NOW);
    // The peer may send checks before its answer arrives.
    peer.run(
        &mut rig,
        Side::Callee,
        border,
        Duration::from_secs(1),
        false,
    );
    assert_eq!(rig.statuses(), Vec::<String>::new());
    // The signalled address differs from the one found by ICE.
    let answer = peer.description(2, 5000);
    rig.answer(Side::Callee, &answer, false).unwrap();
    let none = rig.send_from(Side::Caller, addr("10.0.0.1:4000"), &rtp(3, 1));
    assert!(none.is_err(), "nothing is sent before a pair is nominated");
    peer.run(&mut rig, Side::Callee, border, SOON, false);
    assert_eq!(rig.statuses(), [format!("callee nominated {PEER}")]);
    let path = peer.agent.selected().unwrap();
    assert_eq!((path.remote, path.mapped), (border, addr(PEER)));
    assert_media_flows(&mut rig, Side::Callee, 2);
    // The agent is kept after a second offer, and consent is refreshed.
    let again = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &["sendonly"]))
        .unwrap();
    assert_eq!(lines(&again, "ice-ufrag"), lines(&forward, "ice-ufrag"));
    rig.answer(Side::Callee, &answer, false).unwrap();
    peer.run(
        &mut rig,
        Side::Callee,
        border,
        Duration::from_secs(120),
        false,
    );
    assert_eq!(rig.statuses(), Vec::<String>::new());
}

#[test]
fn a_full_agent_that_answers_is_controlled() {
    let mut rig = MediaRig::new(full(), None);
    let mut peer = FullIcePeer::new(21, IceRole::Controlling);
    let offer = peer.description(1, 4000);
    let forward = rig.offer(Side::Caller, &offer).unwrap();
    assert!(!forward.contains("ice"), "{forward}");
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    assert!(!answer.contains("a=ice-lite"), "{answer}");
    let border = peer.apply_description(&answer, NOW);
    peer.run(&mut rig, Side::Caller, border, SOON, false);
    assert_eq!(rig.statuses(), [format!("caller nominated {PEER}")]);
    let (to, _) = rig
        .send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(3, 1))
        .unwrap();
    assert_eq!(to, addr(PEER));
    // Without responses from the peer the agent stops sending and reports lost consent, then that there is no other
    // pair.
    peer.run(
        &mut rig,
        Side::Caller,
        border,
        Duration::from_secs(20),
        true,
    );
    assert_eq!(rig.statuses(), Vec::<String>::new());
    let gone = Duration::from_secs(100);
    peer.local = addr("10.8.8.8:1");
    peer.run(&mut rig, Side::Caller, border, gone, true);
    peer.local = addr(PEER);
    assert_eq!(rig.statuses(), ["caller consent", "caller no pair"]);
    assert!(
        rig.send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(3, 2))
            .is_err()
    );
    // A restart recovers: new credentials on both sides.
    let mut anew = FullIcePeer::new(22, IceRole::Controlling);
    rig.offer(Side::Caller, &anew.description(1, 4000)).unwrap();
    let renewed = rig.answer(Side::Callee, &plain, false).unwrap();
    assert_ne!(lines(&renewed, "ice-ufrag"), lines(&answer, "ice-ufrag"));
    let now = rig.plane.keying.now;
    anew.apply_description(&renewed, now);
    anew.run(&mut rig, Side::Caller, border, SOON, false);
    assert_eq!(rig.statuses(), [format!("caller nominated {PEER}")]);
}

#[test]
fn a_full_agent_is_controlling_towards_an_offering_lite_peer() {
    let mut rig = MediaRig::new(full(), None);
    let local = IceCredentials::generate(&mut Entropy::from_number(30));
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
    let ours = IceCredentials::parse(lines(&answer, "ice-ufrag")[0], lines(&answer, "ice-pwd")[0]);
    let mut lite = LiteAgent::new(local, ours);
    let border = IceCandidate::parse(lines(&answer, "candidate")[0].as_bytes());
    let border = border.unwrap().address;
    for _ in 0..100 {
        rig.drain();
        for (to, bytes) in std::mem::take(&mut rig.wire) {
            assert_eq!(to, addr(PEER));
            lite.feed(&bytes, border, rig.plane.keying.now).unwrap();
        }
        while let Some((_, bytes)) = lite.next_answer() {
            rig.send_from(Side::Caller, addr(PEER), &bytes).unwrap();
        }
        if let Some(due) = rig.call.timeout_at.filter(|_| rig.wire.is_empty()) {
            rig.plane.keying.now = rig.plane.keying.now.max(due);
            rig.call.handle_keying_timeout(&mut rig.plane);
        }
    }
    assert_eq!(rig.statuses(), [format!("caller nominated {PEER}")]);
    assert_eq!(lite.selected(), Some(border));
    assert!(lite.consents(rig.plane.keying.now) && rig.plane.keying.now > Time::from_secs(100));
}

#[test]
fn candidates_above_the_limit_are_counted() {
    let mut rig = MediaRig::new(full(), None);
    let peer = FullIcePeer::new(23, IceRole::Controlling);
    let mut offer = peer.description(1, 4000);
    for number in 0..10_000 {
        let (a, b) = (number / 250, number % 250);
        offer.push_str(&format!(
            "a=candidate:{number} 1 udp 5 10.7.{a}.{b} 9 typ host\r\n"
        ));
    }
    rig.offer(Side::Caller, &offer).unwrap();
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    let dropped = drops(&mut rig).get(DropReason::IceTooManyCandidates);
    assert_eq!(dropped, 10_001 - protect::ice::MAX_REMOTE as u64);
    // Each kept candidate is checked, at most seven times.
    let end = NOW + Duration::from_secs(200);
    let mut sent = 0;
    while let Some(due) = rig.call.timeout_at.filter(|due| *due < end) {
        rig.plane.keying.now = rig.plane.keying.now.max(due);
        rig.call.handle_keying_timeout(&mut rig.plane);
        rig.drain();
        sent += std::mem::take(&mut rig.wire).len();
    }
    assert!(sent <= 7 * protect::ice::MAX_REMOTE, "{sent}");
    assert_eq!(rig.statuses(), ["caller no pair"]);
}

#[test]
fn further_offer_with_ice_changes_nothing_until_it_is_answered() {
    for ice in [Ice::Lite, Ice::Full] {
        let policy = MediaSecurity {
            ice,
            ..MediaSecurity::default()
        };
        let mut rig = MediaRig::new(None, Some(Arc::new(policy)));
        rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
            .unwrap();
        // A phone without ICE.
        rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        for (sequence, is_refused) in [(1, false), (2, true)] {
            let again = rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &["sendonly"]));
            assert_eq!(lines(&again.unwrap(), "ice-ufrag").len(), 1);
            if is_refused {
                rig.call.abandon(&mut rig.plane);
            }
            // Another event of the call.
            rig.call.send_plan(&mut rig.plane);
            rig.drain();
            let caller = rig.send_from(Side::Caller, addr("10.0.0.1:4000"), &rtp(3, sequence));
            assert_eq!(caller.unwrap().0, addr("10.0.0.2:5000"));
            let callee = rig.send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(7, sequence));
            assert_eq!(callee.unwrap().0, addr("10.0.0.1:4000"));
        }
    }
}

#[test]
fn without_ice_in_the_answer_signalled_addresses_are_used() {
    let mut rig = MediaRig::new(None, full());
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    let (to, _) = rig
        .send_from(Side::Caller, addr("10.0.0.1:4000"), &rtp(3, 1))
        .unwrap();
    assert_eq!(to, addr("10.0.0.2:5000"));
    assert!(rig.wire.is_empty() && rig.statuses().is_empty());
}

/// A phone of RFC 5245 (pjsip, linphone) sends no checks after its nomination: a lite agent does not take that for a
/// lost consent.
#[test]
fn phone_without_consent_checks_keeps_its_media() {
    let policy = MediaSecurity {
        ice: Ice::Lite,
        ..MediaSecurity::default()
    };
    let mut rig = MediaRig::new(Some(Arc::new(policy)), None);
    let mut phone = FullIcePeer::new(24, IceRole::Controlling);
    rig.offer(Side::Caller, &phone.description(1, 4000))
        .unwrap();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    let border = phone.apply_description(&answer, NOW);
    phone.run(&mut rig, Side::Caller, border, SOON, false);
    assert_eq!(rig.statuses(), [format!("caller nominated {PEER}")]);
    for _ in 0..60 {
        rig.plane.keying.now += Duration::from_secs(5);
        rig.call.handle_keying_timeout(&mut rig.plane);
    }
    rig.drain();
    assert_eq!(rig.statuses(), Vec::<String>::new());
    let from_callee = rig.send_from(Side::Callee, addr("10.0.0.2:5000"), &rtp(3, 1));
    assert_eq!(from_callee.unwrap().0, addr(PEER));
    let from_phone = rig.send_from(Side::Caller, addr(PEER), &rtp(7, 1));
    assert_eq!(from_phone.unwrap().1, rtp(7, 1));
}
