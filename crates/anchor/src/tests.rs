//! Anchoring without a border: ports, sockets and commands.

use super::*;
use engine::Entropy;
use media::MediaCommand;

const OFFER: &[u8] = b"v=0\r\no=a 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\nm=video 4002 RTP/AVP 31\r\n";
const ANSWER: &[u8] = b"v=0\r\no=b 1 1 IN IP4 10.0.0.2\r\ns=-\r\nc=IN IP4 10.0.0.2\r\nt=0 0\r\nm=audio 5000 RTP/AVP 0\r\nm=video 0 RTP/AVP 31\r\n";

fn plane(pairs: u16) -> MediaPlane {
    let mut entropy = Entropy::from_number(7);
    let mut plane = MediaPlane::new(100, HashKey::new(&mut entropy), entropy.fork());
    for (octet, first) in [(1, 20_000u16), (2, 30_000)] {
        let address = IpAddr::from([192, 0, 2, octet]);
        plane.pools.push(MediaPool {
            first,
            last: first + 2 * pairs - 1,
            ports: PortPool::new(address, first, first + 2 * pairs - 1, entropy.fork()).unwrap(),
        });
    }
    plane
}

fn call() -> CallMedia {
    let side = |pool| MediaSide {
        hides: false,
        transcoding: None,
        pool,
        advertised: IpAddr::from([192, 0, 2, pool as u8 + 1]),
        latching: Latching::Anywhere,
        dscp: 0,
        security: None,
    };
    CallMedia::new(1, [side(0), side(1)])
}

fn last_plan(plane: &MediaPlane) -> &SessionPlan {
    match plane.commands.back() {
        Some(MediaCommand::Add(plan) | MediaCommand::Update(plan)) => plan,
        other => panic!("no plan: {other:?}"),
    }
}

/// A description without its video line.
fn audio(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split("m=video").next().unwrap().to_owned()
}

#[test]
fn offer_answer_and_release() {
    let (mut plane, mut call) = (plane(10), call());
    let mut out = Vec::new();
    call.offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
    assert!(
        text.contains("c=IN IP4 192.0.2.2") && !text.contains("10.0.0.1"),
        "{text}"
    );
    assert_eq!(plane.ports_in_use(), 4);
    assert_eq!(last_plan(&plane).flows.len(), 2, "early media has a way");
    call.answer(&mut plane, Side::Callee, ANSWER, false, &mut out)
        .unwrap();
    let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
    assert!(
        text.contains("c=IN IP4 192.0.2.1") && text.contains("m=video 0 "),
        "{text}"
    );
    assert_eq!(
        plane.ports_in_use(),
        2,
        "the rejected line's ports are free again"
    );
    let plan = last_plan(&plane);
    assert_eq!(
        plan.flows[0].sides[0].signalled_rtp,
        Some("10.0.0.1:4000".parse().unwrap())
    );
    assert_eq!(
        plan.flows[0].sides[1].signalled_rtcp,
        Some("10.0.0.2:5001".parse().unwrap())
    );
    assert!(plan.flows[0].sides[0].rtcp.is_some());
    call.release(&mut plane);
    assert_eq!(
        (plane.ports_in_use(), plane.sockets.busy(), plane.sessions),
        (0, 0, 0)
    );
    assert_eq!(plane.commands.back(), Some(&MediaCommand::Remove(1)));
}

#[test]
fn a_refused_offer_releases_its_ports() {
    let (mut plane, mut call) = (plane(10), call());
    let mut out = Vec::new();
    let one = &OFFER[..OFFER.len() - b"m=video 4002 RTP/AVP 31\r\n".len()];
    call.offer(&mut plane, Side::Caller, one, &mut out).unwrap();
    call.answer(&mut plane, Side::Callee, ANSWER, false, &mut out)
        .unwrap();
    let commands = plane.commands.len();
    call.offer(&mut plane, Side::Callee, OFFER, &mut out)
        .unwrap();
    assert_eq!(plane.ports_in_use(), 4);
    assert_eq!(call.open_offer(), Some(Side::Callee));
    call.abandon(&mut plane);
    assert_eq!((plane.ports_in_use(), plane.commands.len()), (2, commands));
    call.release(&mut plane);
    assert_eq!(plane.ports_in_use(), 0);
}

/// Music on hold comes from where media came before, also where that is another address than that of the signalling.
#[test]
fn hold_by_zero_address_keeps_the_source_of_media() {
    let (mut plane, mut call) = (plane(10), call());
    let (offer, answer) = (audio(OFFER), audio(ANSWER));
    let held = offer.replace("c=IN IP4 10.0.0.1", "c=IN IP4 0.0.0.0");
    for (offer, receives) in [(&offer, true), (&held, false), (&offer, true)] {
        let mut out = Vec::new();
        call.offer(&mut plane, Side::Caller, offer.as_bytes(), &mut out)
            .unwrap();
        let answer = answer.as_bytes();
        call.answer(&mut plane, Side::Callee, answer, false, &mut out)
            .unwrap();
        let side = &last_plan(&plane).flows[0].sides[0];
        assert_eq!(side.signalled_rtp, Some("10.0.0.1:4000".parse().unwrap()));
        assert_eq!(side.signalled_rtcp, Some("10.0.0.1:4001".parse().unwrap()));
        assert_eq!((side.sends, side.receives), (true, receives));
    }
}

/// A party on hold that replaces another one names no address, and does not get that of the other one.
#[test]
fn zero_address_of_another_party_is_none() {
    for tentative in [true, false] {
        let (mut plane, mut call) = (plane(10), call());
        let (offer, answer) = (audio(OFFER), audio(ANSWER));
        let held = answer.replace("c=IN IP4 10.0.0.2", "c=IN IP4 0.0.0.0");
        for (answer, named) in [(&answer, true), (&held, false)] {
            let mut out = Vec::new();
            call.offer(&mut plane, Side::Caller, offer.as_bytes(), &mut out)
                .unwrap();
            call.answer(&mut plane, Side::Callee, answer.as_bytes(), false, &mut out)
                .unwrap();
            let side = &last_plan(&plane).flows[0].sides[1];
            assert_eq!(side.signalled_rtp.is_some(), named, "{tentative}");
            assert_eq!(side.signalled_rtcp.is_some(), named, "{tentative}");
            call.keep_side(&mut plane);
            let media = call.side(Side::Callee).clone();
            match tentative {
                true => call.try_side(&mut plane, Side::Callee, media).unwrap(),
                false => call.change_side(&mut plane, Side::Callee, media).unwrap(),
            }
        }
        call.release(&mut plane);
    }
}

/// The parties move to other interfaces: media has its ports until the answer, and keeps them after a refusal.
#[test]
fn other_ports_of_both_sides_are_in_force_with_the_answer() {
    let (mut plane, mut call) = (plane(2), call());
    let (offer, answer) = (audio(OFFER), audio(ANSWER));
    let swapped = [1u8, 0].map(|pool| MediaSide {
        pool: pool.into(),
        advertised: IpAddr::from([192, 0, 2, pool + 1]),
        ..call.side(Side::Caller).clone()
    });
    let initial = Side::BOTH.map(|side| call.side(side).clone());
    let mut out = Vec::new();
    let mut offers = |call: &mut CallMedia, plane: &mut MediaPlane| {
        call.offer(plane, Side::Caller, offer.as_bytes(), &mut out)
            .unwrap();
    };
    let answers = |call: &mut CallMedia, plane: &mut MediaPlane| {
        call.answer(
            plane,
            Side::Callee,
            answer.as_bytes(),
            false,
            &mut Vec::new(),
        )
        .unwrap();
    };
    offers(&mut call, &mut plane);
    // Before any answer, nothing needs the previous ports.
    call.update_sides(&mut plane, swapped.clone()).unwrap();
    assert!(!call.is_changing());
    call.update_sides(&mut plane, initial.clone()).unwrap();
    offers(&mut call, &mut plane);
    answers(&mut call, &mut plane);
    let sockets = |plane: &MediaPlane| {
        let flow = &last_plan(plane).flows[0];
        flow.sides.each_ref().map(|side| side.rtp)
    };
    let first = sockets(&plane);
    let ports = |call: &CallMedia| {
        let (_, views) = call.line_views().next().unwrap();
        views.map(|view| view.rtp)
    };
    let first_ports = ports(&call);
    for refused in [true, false] {
        call.update_sides(&mut plane, swapped.clone()).unwrap();
        offers(&mut call, &mut plane);
        call.send_plan(&mut plane);
        assert_eq!((sockets(&plane), plane.ports_in_use()), (first, 4));
        // Recordings and queries have the ports that media has.
        assert_eq!(ports(&call), first_ports);
        if refused {
            call.abandon(&mut plane);
            call.restore_side(&mut plane);
            call.send_plan(&mut plane);
            assert_eq!((sockets(&plane), plane.ports_in_use()), (first, 2));
            assert_eq!(Side::BOTH.map(|side| call.side(side).clone()), initial);
        }
    }
    answers(&mut call, &mut plane);
    assert!(sockets(&plane).iter().all(|socket| !first.contains(socket)));
    assert!(ports(&call).iter().all(|port| !first_ports.contains(port)));
    call.keep_side(&mut plane);
    assert_eq!(plane.ports_in_use(), 2);
    // The callee's new pool is exhausted: the caller keeps its ports, too.
    let taken = plane.pools[1].ports.allocate(engine::Time::from_secs(1));
    let now = Side::BOTH.map(|side| call.side(side).clone());
    assert_eq!(
        call.update_sides(&mut plane, initial),
        Err(AnchorError::Exhausted(1))
    );
    assert!(!call.is_changing());
    assert_eq!(Side::BOTH.map(|side| call.side(side).clone()), now);
    assert_eq!(plane.ports_in_use(), 3);
    assert!(plane.pools[1].ports.release(taken.unwrap()).is_ok());
    call.release(&mut plane);
    assert_eq!((plane.ports_in_use(), plane.sockets.busy()), (0, 0));
}

#[test]
fn a_call_without_free_ports_allocates_none() {
    let (mut plane, mut first, mut second) = (plane(3), call(), call());
    let mut out = Vec::new();
    first
        .offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    let refused = second.offer(&mut plane, Side::Caller, OFFER, &mut out);
    assert!(matches!(refused, Err(AnchorError::Exhausted(_))));
    assert_eq!(plane.ports_in_use(), 4);
    first.release(&mut plane);
    second.release(&mut plane);
    assert_eq!((plane.ports_in_use(), plane.sockets.busy()), (0, 0));
}

#[test]
fn streams_are_offered_as_rejected_and_refused_alone() {
    let (mut plane, mut call) = (plane(10), call());
    let mut out = Vec::new();
    let both = b"v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\nc=IN IP4 10.0.0.1\r\nm=audio 4000 RTP/AVP 0\r\nm=message 2855 TCP/MSRP *\r\n";
    call.offer(&mut plane, Side::Caller, both, &mut out)
        .unwrap();
    assert!(String::from_utf8_lossy(&out).contains("m=message 0 TCP/MSRP *"));
    let alone =
        b"v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\nc=IN IP4 10.0.0.1\r\nm=message 2855 TCP/MSRP *\r\n";
    assert_eq!(
        call.offer(&mut plane, Side::Caller, alone, &mut out),
        Err(AnchorError::Unanchorable)
    );
    call.release(&mut plane);
    assert_eq!(plane.ports_in_use(), 0);
}

#[test]
fn forks_answer_one_offer_in_turn() {
    let (mut plane, mut call) = (plane(10), call());
    let mut out = Vec::new();
    call.offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    call.answer(&mut plane, Side::Callee, ANSWER, true, &mut out)
        .unwrap();
    assert_eq!(
        plane.ports_in_use(),
        4,
        "another fork may still take the video"
    );
    assert!(call.has_rejected_lines());
    assert_eq!(last_plan(&plane).flows.len(), 1, "it is not relayed");
    let second = String::from_utf8_lossy(ANSWER)
        .replace("10.0.0.2", "10.0.0.3")
        .replace("video 0", "video 6000");
    call.answer(&mut plane, Side::Callee, second.as_bytes(), false, &mut out)
        .unwrap();
    assert_eq!(
        last_plan(&plane).flows[0].sides[1].signalled_rtp,
        Some("10.0.0.3:5000".parse().unwrap())
    );
    assert_eq!(plane.ports_in_use(), 4);
    assert_eq!(last_plan(&plane).flows.len(), 2);
    call.release(&mut plane);
}

/// The package's unit permits 262,144 open files, four of which a call takes; `hornwork check` counts them.
#[test]
fn sockets_are_bounded_by_open_files_only() {
    let (mut plane, mut sockets) = (plane(1), 0);
    plane.sockets = MediaSocketPool::new(sockets::MEDIA_SOCKETS, HashKey::default());
    for port in 1_024..=u16::MAX {
        let address = SocketAddr::from(([192, 0, 2, 1], port));
        sockets += usize::from(plane.sockets.acquire(address, &mut plane.work).is_some());
    }
    assert_eq!(sockets, 64_512, "all ports of an address");
}

/// At the limit of open files, and without the address, no port is in use by another program: the pairs stay free for
/// other calls.
#[test]
fn failure_of_all_ports_leaves_no_pair_out() {
    // EMFILE, EADDRNOTAVAIL.
    for number in [24, 99] {
        let (mut plane, mut call) = (plane(2), call());
        let mut out = Vec::new();
        call.offer(&mut plane, Side::Caller, OFFER, &mut out)
            .unwrap();
        let [caller, _] = last_plan(&plane).flows[0].sides.clone();
        assert!(call.defer_until_open(&mut plane));
        plane.sockets.failed(caller.rtp).unwrap();
        let error = std::io::Error::from_raw_os_error(number).to_string();
        assert_eq!(
            call.replace_pair(&mut plane, caller.rtp, &error),
            PortReplacement::AllFail
        );
        call.release(&mut plane);
        // Both pairs of each pool can be allocated.
        for pool in &mut plane.pools {
            let now = plane.keying.now;
            let pairs = [pool.ports.allocate(now), pool.ports.allocate(now)];
            assert!(pairs.iter().all(Option::is_some), "{pairs:?}");
        }
    }
}

/// Contacts that ring at the same time: each keeps the ports of its offer until one of them has answered.
#[test]
fn contacts_with_different_pools_keep_their_ports() {
    let (mut plane, mut call) = (plane(10), call());
    let mut out = Vec::new();
    call.offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    let first = call.side(Side::Callee).clone();
    let socket = last_plan(&plane).flows[0].sides[1].rtp;
    let second = MediaSide {
        latching: Latching::SameAddress(IpAddr::from([10, 0, 0, 9])),
        ..call.side(Side::Caller).clone()
    };
    call.add_branch(&mut plane, second.clone()).unwrap();
    out.clear();
    call.offer_again(&mut plane, OFFER, &mut out);
    assert!(String::from_utf8_lossy(&out).contains("c=IN IP4 192.0.2.1"));
    assert_eq!(plane.ports_in_use(), 6);
    // The ports of the first contact are still known.
    assert!(call.uses(socket));
    plane.sockets.failed(socket);
    let PortReplacement::Reannounced(replaced) = call.replace_pair(&mut plane, socket, "in use")
    else {
        panic!("the first contact knows its port");
    };
    assert_eq!(call.side(Side::Callee), &second);
    assert!(!call.has_former_ports(), "not of the set in force");
    // A third one shares the ports of the second.
    let third = MediaSide {
        latching: Latching::Anywhere,
        ..second
    };
    call.add_branch(&mut plane, third).unwrap();
    assert_eq!(plane.ports_in_use(), 6);
    assert!(call.select_branch(&mut plane, &first));
    call.answer(&mut plane, Side::Callee, ANSWER, false, &mut out)
        .unwrap();
    call.keep_branch(&mut plane);
    let ports: Vec<SocketAddr> = call
        .line_views()
        .map(|(_, [_, callee])| callee.rtp)
        .collect();
    assert_eq!(ports, [replaced]);
    assert!(call.has_former_ports());
    call.forget_former_ports();
    assert!(call.has_former_ports(), "no description names the new one");
    call.offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    call.answer(&mut plane, Side::Callee, ANSWER, false, &mut out)
        .unwrap();
    call.forget_former_ports();
    assert!(!call.has_former_ports());
    assert_eq!(plane.ports_in_use(), 2);
    call.release(&mut plane);
    assert_eq!((plane.ports_in_use(), plane.sockets.busy()), (0, 0));
}

#[test]
fn contact_without_free_ports_leaves_the_others_unchanged() {
    let (mut plane, mut call) = (plane(2), call());
    let mut out = Vec::new();
    call.offer(&mut plane, Side::Caller, OFFER, &mut out)
        .unwrap();
    let before = call.side(Side::Callee).clone();
    let same_pool = call.side(Side::Caller).clone();
    let refused = call.add_branch(&mut plane, same_pool);
    assert_eq!(refused, Err(AnchorError::Exhausted(0)));
    assert_eq!(call.side(Side::Callee), &before);
    assert_eq!(plane.ports_in_use(), 4);
    call.release(&mut plane);
    assert_eq!(plane.ports_in_use(), 0);
}

#[test]
fn offer_without_a_supported_codec_ends_transcoding() {
    let (mut plane, mut call) = (plane(10), call());
    call.sides[1].transcoding = Some(Arc::new(Transcoding {
        codecs: vec![codec::kind::Kind::Pcma],
        ..Transcoding::default()
    }));
    let description = |host: u8, formats: &str| {
        format!(
            "v=0\r\no=a 1 1 IN IP4 10.0.0.{host}\r\ns=-\r\nc=IN IP4 10.0.0.{host}\r\nt=0 0\r\nm=audio 4000 RTP/AVP {formats}\r\n"
        )
    };
    let amr = "96\r\na=rtpmap:96 AMR/8000";
    for (offered, answered, transcodes) in [("0", "8", true), (amr, amr, false)] {
        let mut out = Vec::new();
        let (offer, answer) = (description(1, offered), description(2, answered));
        call.offer(&mut plane, Side::Caller, offer.as_bytes(), &mut out)
            .unwrap();
        let answer = answer.as_bytes();
        call.answer(&mut plane, Side::Callee, answer, false, &mut out)
            .unwrap();
        for side in &last_plan(&plane).flows[0].sides {
            assert_eq!(side.transcode.is_some(), transcodes, "{offered}");
        }
    }
}

/// RFC 3264 section 8.3.2: a payload type keeps its meaning in the session, whichever side offers.
#[test]
fn further_offer_has_the_payload_types_of_its_receiver() {
    use codec::kind::Kind;
    let description = |host: u8, formats: &str, attributes: &[&str]| {
        let mut text = format!(
            "v=0\r\no=a 1 1 IN IP4 10.0.0.{host}\r\ns=-\r\nc=IN IP4 10.0.0.{host}\r\nt=0 0\r\nm=audio 4000 RTP/AVP {formats}\r\n"
        );
        for attribute in attributes {
            text.push_str(&format!("a=rtpmap:{attribute}\r\n"));
        }
        text
    };
    let policy = |kind: Kind, when| {
        Some(Arc::new(Transcoding {
            codecs: vec![kind],
            when,
        }))
    };
    let (isac, events) = ("127 ISAC/32000", "126 telephone-event/8000");
    let browser = description(
        1,
        "111 127 110 126",
        &[
            "111 opus/48000/2",
            isac,
            "110 telephone-event/48000",
            events,
        ],
    );
    let phone = description(1, "0 127 126", &[isac, events]);
    for (first, opus_towards_caller, formats, attributes) in [
        (
            browser,
            false,
            "8 101 111 110",
            ["111 opus/48000/2", "110 telephone-event/48000"],
        ),
        // Without a number of its own, the side gets one that it does not know.
        (
            phone,
            true,
            "8 101 125 0 124",
            ["125 opus/48000/2", "124 telephone-event/48000"],
        ),
    ] {
        let (mut plane, mut call) = (plane(10), call());
        call.sides[1].transcoding = policy(Kind::Pcma, config::TranscodeWhen::Always);
        if opus_towards_caller {
            call.sides[0].transcoding = policy(Kind::Opus, config::TranscodeWhen::default());
        }
        let mut out = Vec::new();
        call.offer(&mut plane, Side::Caller, first.as_bytes(), &mut out)
            .unwrap();
        let answer = description(2, "8", &[]);
        call.answer(&mut plane, Side::Callee, answer.as_bytes(), false, &mut out)
            .unwrap();
        out.clear();
        let offer = description(2, "8 101", &["101 telephone-event/8000"]);
        call.offer(&mut plane, Side::Callee, offer.as_bytes(), &mut out)
            .unwrap();
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains(&format!(" RTP/AVP {formats}\r\n")), "{text}");
        for attribute in attributes {
            assert!(
                text.contains(&format!("a=rtpmap:{attribute}\r\n")),
                "{text}"
            );
        }
    }
}
