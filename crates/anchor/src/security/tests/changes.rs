//! Changes within a call: fax in place of audio, another party on a side, offers of a conference, refused offers.

use super::*;
use crate::participant::ParticipantSettings;
use codec::{Format, Kind};
use media::conference::{ConferenceSettings, VoiceFormat};

const SUITE: Suite = Suite::AesCm128HmacSha1_80;

fn image(host: u8, port: u16) -> String {
    format!(
        "v=0\r\no=x 1 2 IN IP4 10.0.0.{host}\r\ns=-\r\nc=IN IP4 10.0.0.{host}\r\nt=0 0\r\nm=image {port} udptl t38\r\na=T38FaxVersion:0\r\n"
    )
}

/// Changes the first line to T.38 and relays datagrams in both directions.
fn fax(rig: &mut MediaRig, from: Side) {
    let description = |side: Side| match side {
        Side::Caller => image(1, 4000),
        Side::Callee => image(2, 5000),
    };
    let offer = rig.offer(from, &description(from)).unwrap();
    let answer = rig.answer(from.other(), &description(from.other()), false);
    for text in [offer, answer.unwrap()] {
        let port = port_of(&text);
        assert_eq!(media_line(&text), format!("m=image {port} udptl t38"));
        assert_eq!(lines(&text, "T38FaxVersion"), ["0"]);
        assert_eq!(lines(&text, "").len(), 1, "no other attribute: {text}");
    }
    for side in Side::BOTH {
        // The first byte is that of DTLS, by chance.
        let datagram = [22, 1, side.index() as u8, 3, 3];
        let (_, out) = rig.send(side, &datagram).unwrap();
        assert_eq!(out, datagram);
    }
}

#[test]
fn fax_has_no_media_security_and_audio_continues_with_its_keys() {
    for from in Side::BOTH {
        let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Prefer), None);
        let mut phone = SdesPhone::new(1, SUITE);
        let audio = sdp(1, 4000, "RTP/SAVP", &[&phone.offer(), "rtcp-mux"]);
        let plain = sdp(2, 5000, "RTP/AVP", &[]);
        rig.offer(Side::Caller, &audio).unwrap();
        let first = rig.answer(Side::Callee, &plain, false).unwrap();
        let mut caller = contexts(&phone.accept(&first));
        talk(&mut rig, &mut caller, 1);
        fax(&mut rig, from);
        rig.offer(Side::Caller, &audio).unwrap();
        let again = rig.answer(Side::Callee, &plain, false).unwrap();
        assert_eq!(lines(&first, "crypto"), lines(&again, "crypto"));
        talk(&mut rig, &mut caller, 2);
        assert_eq!(rig.statuses(), [format!("caller Sdes {SUITE}")]);
    }
}

#[test]
fn fax_beside_ice_uses_the_signalled_address_and_audio_the_nominated_one() {
    for from in Side::BOTH {
        let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, true), None);
        let mut browser = WebRtcPeer::new();
        let attributes = browser.attributes("actpass", "brow");
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        let audio = sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes);
        let plain = sdp(2, 5000, "RTP/AVP", &[]);
        rig.offer(Side::Caller, &audio).unwrap();
        let first = rig.answer(Side::Callee, &plain, false).unwrap();
        browser.check(&mut rig, Side::Caller, &first, "brow");
        browser.handshake(&mut rig, Side::Caller, &first);
        browser.talk(&mut rig, Side::Caller, 1);
        fax(&mut rig, from);
        rig.offer(Side::Caller, &audio).unwrap();
        let again = rig.answer(Side::Callee, &plain, false).unwrap();
        for name in ["ice-ufrag", "fingerprint", "setup"] {
            assert_eq!(lines(&first, name), lines(&again, name));
        }
        browser.talk(&mut rig, Side::Caller, 2);
    }
}

/// Without answers to its checks of consent (RFC 7675), a browser would stop sending to the ports in force.
#[test]
fn replaced_ports_answer_checks_until_the_answer() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, true), None);
    let mut browser = WebRtcPeer::new();
    let attributes = browser.attributes("actpass", "brow");
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let audio = sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes);
    rig.offer(Side::Caller, &audio).unwrap();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.handshake(&mut rig, Side::Caller, &answer);
    browser.talk(&mut rig, Side::Caller, 1);
    let moved = MediaSide {
        pool: 1,
        advertised: IpAddr::from([192, 0, 2, 2]),
        ..rig.call.side(Side::Caller).clone()
    };
    let sides = [moved, rig.call.side(Side::Callee).clone()];
    rig.call.update_sides(&mut rig.plane, sides).unwrap();
    rig.offer(Side::Caller, &audio).unwrap();
    assert!(rig.call.is_changing());
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.talk(&mut rig, Side::Caller, 2);
    // The offer is refused.
    rig.call.abandon(&mut rig.plane);
    rig.call.restore_side(&mut rig.plane);
    rig.drain();
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.talk(&mut rig, Side::Caller, 3);
}

#[test]
fn audio_in_a_line_that_began_as_fax_follows_the_policy() {
    let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Require), None);
    fax(&mut rig, Side::Caller);
    let refused = rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]));
    assert_eq!(refused, Err(AnchorError::Protection));
    assert!(rig.send(Side::Caller, b"t38").is_ok(), "the fax continues");
    let mut phone = SdesPhone::new(1, SUITE);
    let audio = sdp(1, 4000, "RTP/SAVP", &[&phone.offer()]);
    let forward = rig.offer(Side::Caller, &audio).unwrap();
    assert!(media_line(&forward).contains(" RTP/AVP 0"), "{forward}");
    assert!(!forward.contains("crypto"), "{forward}");
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    assert!(media_line(&answer).contains(" RTP/SAVP 0"), "{answer}");
    talk(&mut rig, &mut contexts(&phone.accept(&answer)), 1);
    let required = "caller SRTP is required, but RTP was offered".to_owned();
    assert_eq!(rig.statuses(), [required, format!("caller Sdes {SUITE}")]);
}

/// The keys in the `a=crypto` lines of a description.
fn keys_of(text: &str) -> Vec<&str> {
    let values = lines(text, "crypto").into_iter();
    values.filter_map(|value| value.split(' ').nth(2)).collect()
}

/// A call whose caller has no media security, with the contexts of the callee, after a wrap of the caller's sequence
/// numbers; and our offer to the callee.
fn wrapped_call() -> (MediaRig, Contexts, String) {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let plain = sdp(1, 4000, "RTP/AVP", &[]);
    let forward = rig.offer(Side::Caller, &plain).unwrap();
    let (crypto, agreed) = SdesPhone::new(2, SUITE).answer(&forward);
    let answer = sdp(2, 5000, "RTP/SAVP", &[&crypto]);
    rig.answer(Side::Callee, &answer, false).unwrap();
    let mut callee = contexts(&agreed);
    for sequence in (65_530..=65_535).chain(0..=20) {
        hears(&mut rig, &mut callee, sequence);
    }
    (rig, callee, forward)
}

/// A packet of the caller reaches the callee.
fn hears(rig: &mut MediaRig, callee: &mut Contexts, sequence: u16) {
    let plain = rtp(7, sequence);
    let (_, out) = rig.send(Side::Caller, &plain).unwrap();
    assert_eq!(unprotected(callee, &out), plain);
}

/// A transfer to another party in the same pool: until its answer the former party has media on the port that both
/// share, and its checks of consent (RFC 7675) are answered.
#[test]
fn former_party_keeps_its_consent_until_the_answer_of_another_one() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, true), None);
    let mut browser = WebRtcPeer::new();
    let audio = |peer: &WebRtcPeer, ufrag: &str| {
        let attributes = peer.attributes("actpass", ufrag);
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes)
    };
    rig.offer(Side::Caller, &audio(&browser, "brow")).unwrap();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Callee, &plain, false).unwrap();
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.handshake(&mut rig, Side::Caller, &answer);
    browser.talk(&mut rig, Side::Caller, 1);
    let mut other = WebRtcPeer::new();
    other.address = addr("10.9.9.8:6000");
    let media = rig.call.side(Side::Caller).clone();
    let change = |rig: &mut MediaRig, other: &WebRtcPeer| {
        rig.call
            .try_side(&mut rig.plane, Side::Caller, media.clone())
            .unwrap();
        rig.offer(Side::Caller, &audio(other, "othr")).unwrap();
    };
    change(&mut rig, &other);
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.talk(&mut rig, Side::Caller, 2);
    // The offer is refused.
    rig.call.abandon(&mut rig.plane);
    rig.call.restore_side(&mut rig.plane);
    rig.drain();
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    browser.talk(&mut rig, Side::Caller, 3);
    // The next one is answered.
    change(&mut rig, &other);
    browser.check(&mut rig, Side::Caller, &answer, "brow");
    let second = rig.answer(Side::Callee, &plain, false).unwrap();
    rig.call.keep_side(&mut rig.plane);
    rig.drain();
    rig.wire.clear();
    other.check(&mut rig, Side::Caller, &second, "othr");
    other.handshake(&mut rig, Side::Caller, &second);
    other.talk(&mut rig, Side::Caller, 4);
    rig.call.release(&mut rig.plane);
    assert_eq!((rig.plane.ports_in_use(), rig.plane.sockets.busy()), (0, 0));
}

#[test]
fn another_party_gets_new_keys_and_new_rollover_counters() {
    for (pool, suite) in [
        (1, SUITE),
        (1, Suite::AeadAes256Gcm),
        (0, SUITE),
        (0, Suite::AeadAes256Gcm),
    ] {
        let (mut rig, mut first, forward) = wrapped_call();
        let media = MediaSide {
            pool,
            advertised: IpAddr::from([192, 0, 2, pool as u8 + 1]),
            ..rig.call.side(Side::Callee).clone()
        };
        rig.call
            .try_side(&mut rig.plane, Side::Callee, media)
            .unwrap();
        let mut phone = SdesPhone::new(3, suite);
        let offer = sdp(2, 5000, "RTP/SAVP", &[&phone.offer()]);
        rig.offer(Side::Callee, &offer).unwrap();
        hears(&mut rig, &mut first, 21);
        let answer = rig
            .answer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]), false)
            .unwrap();
        rig.call.keep_side(&mut rig.plane);
        rig.drain();
        let [key] = keys_of(&answer)[..] else {
            panic!("one key: {answer}");
        };
        assert!(!keys_of(&forward).contains(&key), "known to another party");
        let mut second = contexts(&phone.accept(&answer));
        for sequence in 22..=30 {
            hears(&mut rig, &mut second, sequence);
        }
        let secret = protect_packet(&mut second, &rtp(3, 1));
        assert_eq!(rig.send(Side::Callee, &secret).unwrap().1, rtp(3, 1));
        let secret = protect_packet(&mut first, &rtp(9, 1));
        assert_eq!(
            rig.send(Side::Callee, &secret),
            Err(DropReason::SrtpAuthentication),
            "the key of the previous party"
        );
        rig.call.release(&mut rig.plane);
        assert_eq!((rig.plane.ports_in_use(), rig.plane.sockets.busy()), (0, 0));
    }
}

#[test]
fn failed_change_of_the_party_keeps_keys_and_rollover_counters() {
    let (mut rig, mut callee, forward) = wrapped_call();
    let media = rig.call.side(Side::Callee).clone();
    rig.call
        .try_side(&mut rig.plane, Side::Callee, media)
        .unwrap();
    let mut other = SdesPhone::new(3, SUITE);
    let offer = sdp(2, 5000, "RTP/SAVP", &[&other.offer()]);
    rig.offer(Side::Callee, &offer).unwrap();
    rig.call.abandon(&mut rig.plane);
    rig.call.restore_side(&mut rig.plane);
    hears(&mut rig, &mut callee, 21);
    let plain = sdp(1, 4000, "RTP/AVP", &[]);
    let again = rig.offer(Side::Caller, &plain).unwrap();
    assert_eq!(keys_of(&again)[0], keys_of(&forward)[0]);
    let (crypto, _) = SdesPhone::new(2, SUITE).answer(&again);
    let answer = sdp(2, 5000, "RTP/SAVP", &[&crypto]);
    rig.answer(Side::Callee, &answer, false).unwrap();
    hears(&mut rig, &mut callee, 22);
}

/// The key of the first session is not offered again after one in the clear: its indices would begin anew.
#[test]
fn keys_of_an_offer_that_was_answered_without_them_are_not_offered_again() {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Prefer));
    let plain = sdp(1, 4000, "RTP/AVP", &[]);
    let mut known: Vec<String> = Vec::new();
    for (sequence, has_key) in [(1, true), (2, false), (3, true)] {
        let forward = rig.offer(Side::Caller, &plain).unwrap();
        let keys = keys_of(&forward);
        assert_eq!(keys.len(), 5, "{forward}");
        let is_known = keys
            .iter()
            .any(|key| known.iter().any(|other| other == key));
        // The second offer keeps the key that is in use.
        assert_eq!(is_known, !has_key, "{forward}");
        known.extend(keys.iter().map(|key| (*key).to_owned()));
        let (crypto, agreed) = SdesPhone::new(2, SUITE).answer(&forward);
        let attributes: &[&str] = if has_key { &[&crypto] } else { &[] };
        let answer = sdp(2, 5000, "RTP/AVP", attributes);
        rig.answer(Side::Callee, &answer, false).unwrap();
        let packet = rtp(7, sequence);
        match has_key {
            true => hears(&mut rig, &mut contexts(&agreed), sequence),
            false => assert_eq!(rig.send(Side::Caller, &packet).unwrap().1, packet),
        }
    }
}

#[test]
fn updated_side_of_the_same_party_keeps_its_keys() {
    let (mut rig, mut callee, forward) = wrapped_call();
    let media = MediaSide {
        latching: Latching::Anywhere,
        ..rig.call.side(Side::Callee).clone()
    };
    let sides = [rig.call.side(Side::Caller).clone(), media];
    rig.call.update_sides(&mut rig.plane, sides).unwrap();
    assert!(!rig.call.is_changing());
    let again = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    assert_eq!(keys_of(&again)[0], keys_of(&forward)[0]);
    hears(&mut rig, &mut callee, 21);
}

/// Browsers cannot answer an offer that takes the line out of the group of their own offer, and with `max-bundle` a
/// first offer without a group.
#[test]
fn offers_to_a_browser_have_its_line_in_a_group() {
    let policy = || security(SrtpPolicy::Require, Keying::Dtls, true);
    let plain = |host, attributes: &[&str]| sdp(host, 4000, "RTP/AVP", attributes);
    let mut rig = with_dtls(policy(), None);
    let attributes = WebRtcPeer::new().attributes("actpass", "brow");
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let audio = sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes);
    let audio = audio.replace("t=0 0\r\n", "t=0 0\r\na=group:BUNDLE 0\r\n");
    let forward = rig.offer(Side::Caller, &audio).unwrap();
    assert!(lines(&forward, "mid").is_empty(), "{forward}");
    rig.answer(Side::Callee, &plain(2, &[]), false).unwrap();
    let hold = rig.offer(Side::Callee, &plain(2, &["sendonly"])).unwrap();
    assert_eq!(lines(&hold, "group"), ["BUNDLE 0"], "{hold}");
    assert_eq!(lines(&hold, "mid"), ["0"], "{hold}");
    // A browser that is called: the line keeps its identification.
    let mut rig = with_dtls(None, policy());
    let offers = [1, 2].map(|_| {
        let offer = rig.offer(Side::Caller, &plain(1, &[])).unwrap();
        let attributes = WebRtcPeer::new().attributes("active", "brow");
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        let answer = sdp(2, 9, "UDP/TLS/RTP/SAVPF", &attributes);
        let back = rig.answer(Side::Callee, &answer, false).unwrap();
        assert!(lines(&back, "mid").is_empty(), "{back}");
        offer
    });
    for offer in offers {
        assert_eq!(lines(&offer, "group"), ["BUNDLE 1"], "{offer}");
        assert_eq!(lines(&offer, "mid"), ["1"], "{offer}");
    }
    // Two browsers: the header extension for the MID passes from end to end.
    let mut rig = with_dtls(policy(), policy());
    let forward = rig.offer(Side::Caller, &audio).unwrap();
    assert!(lines(&forward, "extmap").len() == 1 && lines(&forward, "mid") == ["0"]);
    // Telephones need none.
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let offer = rig.offer(Side::Caller, &plain(1, &[])).unwrap();
    assert!(!offer.contains("BUNDLE") && !offer.contains("a=mid"));
}

/// A proxy has forked our offer to a telephone and a browser.
#[test]
fn browser_of_another_fork_may_answer_with_ice_and_dtls() {
    for early_key in [false, true] {
        let policy = MediaSecurity {
            srtp: SrtpPolicy::Prefer,
            keying: vec![Keying::Sdes, Keying::Dtls],
            ice: Ice::Lite,
            ..MediaSecurity::default()
        };
        let mut rig = with_dtls(None, Some(Arc::new(policy)));
        let offer = sdp(1, 4000, "RTP/AVP", &[]);
        let forward = rig.offer(Side::Caller, &offer).unwrap();
        let (crypto, _) = SdesPhone::new(2, SUITE).answer(&forward);
        let attributes: &[&str] = if early_key { &[&crypto] } else { &[] };
        let early = sdp(2, 5000, "RTP/AVP", attributes);
        rig.answer(Side::Callee, &early, true).unwrap();
        let (to, _) = rig.send(Side::Caller, &rtp(3, 1)).unwrap();
        assert_eq!(to, addr("10.0.0.2:5000"), "the signalled address");
        let mut browser = WebRtcPeer::new();
        let attributes = browser.attributes("active", "brow");
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        let answer = sdp(2, 9, "RTP/AVP", &attributes);
        rig.answer(Side::Callee, &answer, false).unwrap();
        browser.check(&mut rig, Side::Callee, &forward, "brow");
        browser.handshake(&mut rig, Side::Callee, &forward);
        browser.talk(&mut rig, Side::Callee, 2);
    }
}

/// A peer that changes the role keeps its certificate, and begins another handshake (RFC 8842 section 3.1).
#[test]
fn changed_role_is_another_association() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
    let mut phone = WebRtcPeer::new();
    phone.address = addr("10.0.0.1:4000");
    let certificate = phone.endpoint.certificate();
    let fingerprint = certificate.fingerprint(HashFunction::Sha256).to_string();
    for (sequence, setup, ours) in [
        (1, "passive", "active"),
        (2, "actpass", "active"),
        (3, "active", "passive"),
    ] {
        let attributes = [
            format!("fingerprint:{fingerprint}"),
            format!("setup:{setup}"),
            "rtcp-mux".into(),
        ];
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
            .unwrap();
        let answer = rig
            .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        assert_eq!(lines(&answer, "setup"), [ours]);
        if setup != "actpass" {
            phone.contexts = None;
            phone.handshake(&mut rig, Side::Caller, &answer);
        }
        phone.talk(&mut rig, Side::Caller, sequence);
    }
}

/// Telephones behind a proxy that has forked our offer: both shake hands for early media, and the first one answers.
#[test]
fn final_answer_returns_to_the_association_of_an_early_dialog() {
    let mut rig = with_dtls(None, security(SrtpPolicy::Require, Keying::Dtls, false));
    let plain = sdp(1, 4000, "RTP/AVP", &[]);
    let forward = rig.offer(Side::Caller, &plain).unwrap();
    let mut phones = ["10.0.0.2:5000", "10.0.0.2:5002"].map(|address| WebRtcPeer {
        address: addr(address),
        ..WebRtcPeer::new()
    });
    let answers = [0, 1].map(|at| {
        let certificate = phones[at].endpoint.certificate();
        let fingerprint = certificate.fingerprint(HashFunction::Sha256);
        let fingerprint = format!("fingerprint:{fingerprint}");
        let attributes = [fingerprint.as_str(), "setup:active", "rtcp-mux"];
        let port = phones[at].address.port();
        sdp(2, port, "UDP/TLS/RTP/SAVP", &attributes)
    });
    for (at, sequence) in [(0, 65_535), (1, 0)] {
        rig.answer(Side::Callee, &answers[at], true).unwrap();
        phones[at].handshake(&mut rig, Side::Callee, &forward);
        phones[at].talk(&mut rig, Side::Callee, sequence);
        rig.wire.clear();
    }
    rig.answer(Side::Callee, &answers[0], false).unwrap();
    phones[0].talk(&mut rig, Side::Callee, 1);
}

/// Contacts in different networks ring at the same time, and each has keys and rollover counters of its own.
#[test]
fn contacts_that_ring_together_have_their_own_rollover_counters() {
    let mut rig = MediaRig::new(None, sdes_side(SrtpPolicy::Require));
    let plain = sdp(1, 4000, "RTP/AVP", &[]);
    let first = rig.call.side(Side::Callee).clone();
    let second = MediaSide {
        pool: 0,
        ..first.clone()
    };
    let mut offers = vec![rig.offer(Side::Caller, &plain).unwrap()];
    rig.call.add_branch(&mut rig.plane, second.clone()).unwrap();
    let mut out = Vec::new();
    rig.call
        .offer_again(&mut rig.plane, plain.as_bytes(), &mut out);
    offers.push(String::from_utf8(out).unwrap());
    assert_ne!(keys_of(&offers[0]), keys_of(&offers[1]));
    let mut phones: Vec<(String, Contexts)> = (offers.iter().zip(2..))
        .map(|(offer, number)| {
            let (crypto, agreed) = SdesPhone::new(number, SUITE).answer(offer);
            (crypto, contexts(&agreed))
        })
        .collect();
    for (at, early, sequences) in [
        (0, true, vec![65_534, 65_535, 0, 1]),
        (1, true, vec![2]),
        (0, false, vec![3]),
    ] {
        let (crypto, contact) = &mut phones[at];
        let media = [&first, &second][at];
        assert!(rig.call.select_branch(&mut rig.plane, media));
        let answer = sdp(2, 5000, "RTP/SAVP", &[crypto.as_str()]);
        rig.answer(Side::Callee, &answer, early).unwrap();
        for sequence in sequences {
            hears(&mut rig, contact, sequence);
        }
    }
}

/// A peer closes its association, and offers the same certificate again.
#[test]
fn closed_association_is_followed_by_another_one() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
    let mut phone = WebRtcPeer::new();
    phone.address = addr("10.0.0.1:4000");
    let certificate = phone.endpoint.certificate();
    let fingerprint = certificate.fingerprint(HashFunction::Sha256);
    let attributes = [
        format!("fingerprint:{fingerprint}"),
        "setup:actpass".into(),
        "rtcp-mux".into(),
    ];
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    for sequence in [1, 2] {
        rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
            .unwrap();
        let answer = rig
            .answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
            .unwrap();
        phone.contexts = None;
        phone.handshake(&mut rig, Side::Caller, &answer);
        phone.talk(&mut rig, Side::Caller, sequence);
        let session = phone.session.as_mut().unwrap();
        session.close();
        let mut sends = Vec::new();
        while let Some(event) = session.next_event() {
            if let DtlsEvent::Send(bytes) = event {
                sends.push(bytes.to_vec());
            }
        }
        for bytes in sends {
            let _ = rig.send_from(Side::Caller, phone.address, &bytes);
        }
        rig.wire.clear();
        assert_eq!(
            rig.send(Side::Callee, &rtp(3, 9)),
            Err(DropReason::SrtpNoKey),
            "closed"
        );
    }
}

/// The datagram that finds the handshake timed out is dropped, and the call ends nevertheless.
#[test]
fn handshake_that_timed_out_is_reported_with_the_next_datagram() {
    let mut rig = with_dtls(security(SrtpPolicy::Require, Keying::Dtls, false), None);
    let fingerprint = endpoint().certificate().fingerprint(HashFunction::Sha256);
    let attributes = [format!("fingerprint:{fingerprint}"), "setup:passive".into()];
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    rig.offer(Side::Caller, &sdp(1, 4000, "UDP/TLS/RTP/SAVP", &attributes))
        .unwrap();
    rig.answer(Side::Callee, &sdp(2, 5000, "RTP/AVP", &[]), false)
        .unwrap();
    rig.plane.keying.now = NOW + Duration::from_secs(60);
    let stray = [22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let _ = rig.send_from(Side::Caller, addr("10.0.0.1:4000"), &stray);
    assert_eq!(rig.statuses(), ["caller the DTLS handshake timed out"]);
}

#[test]
fn target_after_an_early_answer_is_offered_all_kinds_of_keying() {
    let policy = MediaSecurity {
        srtp: SrtpPolicy::Require,
        keying: vec![Keying::Sdes, Keying::Dtls],
        ..MediaSecurity::default()
    };
    let mut rig = with_dtls(None, Some(Arc::new(policy)));
    let offer = sdp(1, 4000, "RTP/AVP", &[]);
    let first = rig.offer(Side::Caller, &offer).unwrap();
    let (crypto, _) = SdesPhone::new(2, SUITE).answer(&first);
    let early = sdp(2, 5000, "RTP/SAVP", &[&crypto]);
    rig.answer(Side::Callee, &early, true).unwrap();
    let media = rig.call.side(Side::Callee).clone();
    rig.call
        .change_side(&mut rig.plane, Side::Callee, media)
        .unwrap();
    let mut second = Vec::new();
    rig.call
        .offer_again(&mut rig.plane, offer.as_bytes(), &mut second);
    let second = String::from_utf8(second).unwrap();
    assert_eq!(lines(&second, "fingerprint").len(), 1, "{second}");
    assert_eq!(keys_of(&second).len(), keys_of(&first).len(), "{second}");
    let known = keys_of(&first);
    assert!(!keys_of(&second).iter().any(|key| known.contains(key)));
    let (crypto, agreed) = SdesPhone::new(3, SUITE).answer(&second);
    let answer = sdp(2, 5000, "RTP/SAVP", &[&crypto]);
    rig.answer(Side::Callee, &answer, false).unwrap();
    hears(&mut rig, &mut contexts(&agreed), 1);
}

#[test]
fn party_without_a_policy_in_place_of_one_with_srtp() {
    let (mut rig, ..) = wrapped_call();
    let media = MediaSide {
        security: None,
        ..rig.call.side(Side::Callee).clone()
    };
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    for keeps in [false, true] {
        rig.call
            .try_side(&mut rig.plane, Side::Callee, media.clone())
            .unwrap();
        let offer = rig.offer(Side::Callee, &plain).unwrap();
        assert!(media_line(&offer).contains(" RTP/AVP 0"), "{offer}");
        if !keeps {
            rig.call.abandon(&mut rig.plane);
            rig.call.restore_side(&mut rig.plane);
        }
    }
    let answer = sdp(1, 4000, "RTP/AVP", &[]);
    let answer = rig.answer(Side::Caller, &answer, false).unwrap();
    assert!(!answer.contains("crypto"), "{answer}");
    rig.call.keep_side(&mut rig.plane);
    rig.drain();
    assert_eq!(rig.send(Side::Caller, &rtp(7, 21)).unwrap().1, rtp(7, 21));
}

/// Media of a conference participant, before the first description.
fn participant(security: Option<Arc<MediaSecurity>>) -> MediaRig {
    let mut rig = with_dtls(security, None);
    let side = rig.call.side(Side::Caller).clone();
    let settings = ParticipantSettings {
        conference: 1,
        settings: ConferenceSettings::default(),
        voice: Some((0, VoiceFormat::new(Format::new(Kind::Pcmu)))),
        seed: 1,
        in_lobby: false,
    };
    rig.call = CallMedia::for_participant(1, side, settings).with_number(5);
    rig.call.reserve(&mut rig.plane).unwrap();
    rig
}

fn participant_keys(rig: &MediaRig) -> Arc<media::Keys> {
    let line = rig.call.lines[0].as_ref().unwrap();
    match line.sides[0].security.as_ref().unwrap().protection() {
        Protection::Srtp(keys) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_to_a_conference_puts_sdes_keys_into_force() {
    for (policy, profile) in [
        (SrtpPolicy::Require, "RTP/SAVP"),
        (SrtpPolicy::Prefer, "RTP/AVP"),
    ] {
        let mut rig = participant(sdes_side(policy));
        let own = sdp(9, 9, "RTP/AVP", &[]);
        let mut remote = Vec::new();
        // The session, and a refresh that is answered with another key.
        for number in [2, 3] {
            let offer = rig.offer(Side::Callee, &own).unwrap();
            assert!(media_line(&offer).contains(&format!(" {profile} 0")));
            let (crypto, _) = SdesPhone::new(number, SUITE).answer(&offer);
            let answer = sdp(1, 4000, profile, &[&crypto]);
            rig.answer(Side::Caller, &answer, false).unwrap();
            assert_eq!(rig.statuses(), [format!("caller Sdes {SUITE}")]);
            let keys = participant_keys(&rig);
            assert!(!remote.contains(&keys.remote[0]), "the key of this answer");
            remote.push(keys.remote[0].clone());
        }
        let offer = rig.offer(Side::Callee, &own).unwrap();
        assert!(offer.contains("crypto"));
        let unacceptable = sdp(1, 4000, "RTP/SAVP", &["crypto:99 x inline:x"]);
        let refused = rig.answer(Side::Caller, &unacceptable, false);
        assert_eq!(refused, Err(AnchorError::Protection));
    }
}

#[test]
fn answer_to_a_conference_puts_dtls_and_ice_into_force() {
    let mut rig = participant(security(SrtpPolicy::Require, Keying::Dtls, true));
    let own = sdp(9, 9, "RTP/AVP", &[]);
    let offer = rig.offer(Side::Callee, &own).unwrap();
    let mut browser = WebRtcPeer::new();
    let attributes = browser.attributes("active", "brow");
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let answer = sdp(1, 9, "UDP/TLS/RTP/SAVPF", &attributes);
    rig.answer(Side::Caller, &answer, false).unwrap();
    browser.check(&mut rig, Side::Caller, &offer, "brow");
    browser.handshake(&mut rig, Side::Caller, &offer);
    let words = rig.statuses();
    assert!(words[1].starts_with("caller Dtls"), "{words:?}");
    participant_keys(&rig);
}

#[test]
fn refused_offer_leaves_the_profile_of_the_side() {
    let mut rig = MediaRig::new(sdes_side(SrtpPolicy::Prefer), None);
    let mut phone = SdesPhone::new(1, SUITE);
    let crypto = phone.offer();
    let plain = sdp(2, 5000, "RTP/AVP", &[]);
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/SAVP", &[&crypto]))
        .unwrap();
    rig.answer(Side::Callee, &plain, false).unwrap();
    // Refused by the other side, and by the policy.
    rig.offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[&crypto]))
        .unwrap();
    rig.call.abandon(&mut rig.plane);
    let dtls = sdp(1, 4000, "UDP/TLS/RTP/SAVPF", &["setup:actpass"]);
    rig.offer(Side::Caller, &dtls).unwrap_err();
    let forward = rig.offer(Side::Callee, &plain).unwrap();
    assert!(media_line(&forward).contains(" RTP/SAVP 0"), "{forward}");
}

/// Without ICE the handshake does not wait for the final answer: after a reliable early answer there may be none with a
/// description.
#[test]
fn early_answer_with_dtls_and_without_ice_is_keyed() {
    let mut rig = with_dtls(None, security(SrtpPolicy::Require, Keying::Dtls, true));
    let forward = rig
        .offer(Side::Caller, &sdp(1, 4000, "RTP/AVP", &[]))
        .unwrap();
    let mut phone = WebRtcPeer::new();
    phone.address = addr("10.0.0.2:5000");
    let certificate = phone.endpoint.certificate();
    let fingerprint = certificate.fingerprint(HashFunction::Sha256);
    let attributes = [
        format!("fingerprint:{fingerprint}"),
        "setup:active".into(),
        "rtcp-mux".into(),
    ];
    let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
    let early = sdp(2, 5000, "UDP/TLS/RTP/SAVP", &attributes);
    rig.answer(Side::Callee, &early, true).unwrap();
    phone.handshake(&mut rig, Side::Callee, &forward);
    phone.talk(&mut rig, Side::Callee, 1);
}
