//! Contacts of a user that ring at the same time: the one that answers gets its own media parameters, whichever was
//! called last.

use crate::ng_client;
use crate::virtual_network;

use engine::record::{RecordBuilder, RecordChange};
use ng_client::World;
use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;

const WEB: &str = "192.0.2.2:5060";

fn second() -> Duration {
    Duration::from_secs(1)
}

/// Interfaces for phones: in the clear, and with SRTP whose media is at this address.
fn config(web_media: &str) -> String {
    format!(
        "[[interface]]\nname='out'\nkind='access'\nlisten='udp:{OUT}'\nregister='local'\nmedia={{address='192.0.2.1'}}\n\
         [[interface]]\nname='web'\nkind='access'\nlisten='udp:{WEB}'\nregister='local'\nsrtp='require'\nmedia={{address='{web_media}'}}\n\
         [[user]]\nname='1001'\npassword='secret-1001'\n[[route]]\nregistered=true\n"
    )
}

/// A phone that neither rings nor answers by itself.
fn waiting() -> PhoneBehaviour {
    PhoneBehaviour {
        progress: Vec::new(),
        answer: None,
        ..PhoneBehaviour::answering(SDP_B)
    }
}

fn register(net: &mut VirtualNetwork, phone: usize, at: &str) {
    let contact = format!("<sip:1001@{}>", net.phones[phone].address);
    let request = RegisterRequest {
        to: at,
        ..RegisterRequest::new("1001", &contact)
    };
    net.send_register(phone, &request);
    net.run(second());
    let answered = |event: &PhoneEvent| *event == PhoneEvent::OutOfDialogResponse(200);
    assert!(net.has(phone, answered), "{:?}", net.phone_events(phone));
}

/// Alice has called the user of both phones: network, Alice, her leg. The phone that registered last is called first.
fn ringing(config: &str, phones: [(&str, &str); 2]) -> (VirtualNetwork, usize, LegId, [usize; 2]) {
    let mut net = VirtualNetwork::new(config, 5);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let phones = phones.map(|(address, at)| {
        let phone = net.phone(address, waiting());
        register(&mut net, phone, at);
        phone
    });
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:1001@192.0.2.1", OUT, &offer);
    net.run(second());
    for phone in phones {
        offered(&net, phone);
    }
    (net, alice, leg, phones)
}

fn offered(net: &VirtualNetwork, phone: usize) -> &LogEntry {
    net.find(phone, |event| *event == PhoneEvent::Offered)
}

fn answer(net: &mut VirtualNetwork, phone: usize, sdp: &str) {
    let leg = offered(net, phone).leg.unwrap();
    net.command(phone, |endpoint, now| {
        let content = MessageContent::sdp(sdp.as_bytes());
        endpoint.answer(leg, 200, &content, now).unwrap();
    });
    net.run(second());
}

/// Port and address of the first line.
fn media_of(body: &str) -> String {
    let after = |name: &str| body.split(name).nth(1).unwrap().to_owned();
    let address = after("c=IN IP4 ");
    let port = after("m=audio ");
    format!(
        "{}:{}",
        address.lines().next().unwrap(),
        port.split(' ').next().unwrap()
    )
}

fn rtp(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

/// Whether packets reach Alice and the phone, each sending from this address.
fn media_passes(net: &mut VirtualNetwork, alice: (&str, &str), phone: (&str, &str)) -> [bool; 2] {
    net.media.clear();
    for sequence in 0..6 {
        net.send_raw(phone.0, phone.1, &rtp(sequence));
        net.run(Duration::from_millis(20));
        net.send_raw(alice.0, alice.1, &rtp(sequence));
        net.run(Duration::from_millis(20));
    }
    [alice.0, phone.0].map(|to| {
        let to = to.parse().unwrap();
        net.media.iter().any(|(there, _, _)| *there == to)
    })
}

/// Header rules see the interface of the phone that responds, not of the one that was called last.
#[test]
fn rules_for_responses_see_the_interface_of_their_phone() {
    let rule = |interface: &str| {
        format!(
            "[[rules]]\ndirection='in'\non='response'\ninterface='{interface}'\ndo=[{{add='X-From',value='{interface}'}}]\n"
        )
    };
    let config = config("192.0.2.2")
        .replace("kind='access'", "kind='access'\npass_headers='X-From'")
        .replace("srtp='require'\n", "")
        + &rule("out")
        + &rule("web");
    let (mut net, alice, leg, phones) =
        ringing(&config, [("10.2.0.1:5060", OUT), ("10.3.0.1:5060", WEB)]);
    for (phone, status, interface) in [(phones[0], 180, "out"), (phones[1], 183, "web")] {
        let leg = offered(&net, phone).leg.unwrap();
        net.command(phone, |endpoint, now| {
            let content = MessageContent::default();
            endpoint
                .progress(leg, status, &content, false, now)
                .unwrap();
        });
        net.run(second());
        let progressed = net.find(
            alice,
            |event| matches!(event, PhoneEvent::Progressed(found, ..) if *found == status),
        );
        assert_eq!(progressed.header("X-From"), interface);
    }
    answer(&mut net, phones[0], SDP_B);
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert_eq!(answered.header("X-From"), "out");
    end(&mut net, alice, leg);
}

fn end(net: &mut VirtualNetwork, alice: usize, leg: LegId) {
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(second());
}

/// A phone behind NAT announces its private address: media comes from the address of its signalling.
#[test]
fn contact_called_first_answers_with_its_own_address() {
    let (mut net, alice, leg, [fixed, mobile]) = ringing(
        &config("192.0.2.2"),
        [("10.2.0.1:5060", OUT), ("10.3.0.1:5060", OUT)],
    );
    let towards_mobile = media_of(&offered(&net, mobile).body());
    assert_eq!(towards_mobile, media_of(&offered(&net, fixed).body()));
    let private = SDP_B.replace("10.2.0.1", "192.168.7.7");
    answer(&mut net, mobile, &private);
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    let towards_alice = media_of(&answered.body());
    let passes = media_passes(
        &mut net,
        ("10.1.0.1:4000", &towards_alice),
        ("10.3.0.1:6000", &towards_mobile),
    );
    assert_eq!(passes, [true, true]);
    assert!(net.has(fixed, |event| *event == PhoneEvent::Cancelled));
    end(&mut net, alice, leg);
}

/// The one that is called first, and the last one.
#[test]
fn record_of_a_call_names_the_contact_that_answered() {
    let addresses = ["10.2.0.1:5060", "10.3.0.1:5060"];
    for (index, address) in addresses.into_iter().enumerate() {
        let (mut net, alice, leg, phones) = ringing(
            &config("192.0.2.2"),
            addresses.map(|address| (address, OUT)),
        );
        let phone = phones[index];
        answer(&mut net, phone, SDP_B);
        let call_id = offered(&net, phone).header("Call-ID").to_owned();
        end(&mut net, alice, leg);
        let mut records = RecordBuilder::new("1".to_owned());
        let events = net.events.iter();
        let changes = events.filter_map(|event| records.add(event.clone()));
        let ended = changes.filter_map(|change| match change {
            RecordChange::Ended(record) => Some(record),
            _ => None,
        });
        let [record] = &ended.collect::<Vec<_>>()[..] else {
            panic!("one record");
        };
        let callee = &record.legs[1].leg;
        assert_eq!(callee.call_id, Some(call_id));
        assert_eq!(callee.address, Some(format!("udp:{address}")));
        assert_eq!(record.fields.targets, 2);
    }
}

/// The answer of a contact is evaluated by the media security of its interface, and its ports stay open, in both orders
/// of the calls and with one port pool or two.
#[test]
fn contacts_on_interfaces_with_different_security_answer() {
    for (web_media, plain_is_first, plain_answers) in [
        ("192.0.2.1", true, true),
        ("192.0.2.1", false, true),
        ("192.0.2.1", true, false),
        ("192.0.2.1", false, false),
        ("192.0.2.2", true, true),
        ("192.0.2.2", false, true),
        ("192.0.2.2", true, false),
        ("192.0.2.2", false, false),
    ] {
        let (plain, web) = (("10.2.0.1:5060", OUT), ("10.3.0.1:5060", WEB));
        let order = match plain_is_first {
            true => [web, plain],
            false => [plain, web],
        };
        let (mut net, alice, leg, mut phones) = ringing(&config(web_media), order);
        if plain_is_first {
            phones.reverse();
        }
        let [fixed, browser] = phones;
        let case = format!("{web_media}, plain first: {plain_is_first}, answers: {plain_answers}");
        let offers = [fixed, browser].map(|phone| offered(&net, phone).body());
        assert!(
            offers[0].contains(" RTP/AVP 0") && !offers[0].contains("a=crypto"),
            "{case}"
        );
        assert!(offers[1].contains(" RTP/SAVP 0"), "{case}: {}", offers[1]);
        match plain_answers {
            true => answer(&mut net, fixed, SDP_B),
            false => {
                let tag = offers[1]
                    .lines()
                    .filter_map(|line| line.strip_prefix("a=crypto:"))
                    .find(|line| line.contains(" AES_CM_128_HMAC_SHA1_80 "))
                    .and_then(|line| line.split(' ').next())
                    .unwrap();
                let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
                let sdp = SDP_B
                    .replace("10.2.0.1", "10.3.0.1")
                    .replace("RTP/AVP", "RTP/SAVP")
                    + &format!("a=crypto:{tag} AES_CM_128_HMAC_SHA1_80 inline:{key}\r\n");
                answer(&mut net, browser, &sdp);
            }
        }
        assert!(
            net.has(alice, |event| *event == PhoneEvent::Answered),
            "{case}: {:?}",
            net.phone_events(alice)
        );
        let answered = net
            .find(alice, |event| *event == PhoneEvent::Answered)
            .body();
        assert!(answered.contains(" RTP/AVP 0"), "{case}: {answered}");
        // Only the ports of the call are left.
        assert_eq!(net.border.census().ports, 2, "{case}");
        if plain_answers {
            let passes = media_passes(
                &mut net,
                ("10.1.0.1:4000", &media_of(&answered)),
                ("10.2.0.1:5000", &media_of(&offers[0])),
            );
            assert_eq!(passes, [true, true], "{case}");
        } else {
            assert!(net.names().contains(&"media_security_agreed"), "{case}");
        }
        end(&mut net, alice, leg);
        assert_eq!(net.border.census().ports, 0, "{case}");
    }
}

/// Both contacts answer while the answer of the first one is at the media node. The second is too late: its dialog
/// ends, and the call goes on.
#[test]
fn late_answer_of_a_contact_ends_without_the_call() {
    let text = ng_client::config("")
        .replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[user]]\nname='1001'\npassword='secret-1001'\n[[route]]\nregistered=true\n";
    let mut world = World::new(&text);
    let phones = ["10.1.0.2:5060", "10.1.0.3:5060"].map(|address| {
        let phone = world.net.phone(address, waiting());
        register(&mut world.net, phone, OUT);
        phone
    });
    let alice = world.alice;
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = world.net.call(alice, "sip:1001@192.0.2.1", OUT, &offer);
    world.net.run(second());
    for node in &world.nodes {
        node.0.borrow_mut().mute = true;
    }
    for phone in phones {
        let leg = offered(&world.net, phone).leg.unwrap();
        world.net.command(phone, |endpoint, now| {
            let content = MessageContent::sdp(SDP_B.as_bytes());
            endpoint.answer(leg, 200, &content, now).unwrap();
        });
    }
    world.net.run(Duration::from_millis(50));
    for node in &world.nodes {
        let kept = {
            let mut machine = node.0.borrow_mut();
            machine.mute = false;
            std::mem::take(&mut machine.kept)
        };
        for (from, to, bytes) in kept {
            world
                .net
                .send_raw(&from.to_string(), &to.to_string(), &bytes);
        }
    }
    world.net.run(second());
    let has_ended = |net: &VirtualNetwork, phone: usize| {
        net.has(phone, |event| matches!(event, PhoneEvent::Ended(_)))
    };
    assert!(world.net.has(alice, |event| *event == PhoneEvent::Answered));
    assert!(!has_ended(&world.net, alice));
    assert_eq!(
        phones.map(|phone| has_ended(&world.net, phone)),
        [false, true]
    );
    assert_eq!(world.net.border.calls().len(), 1);
    world.bye(leg);
    assert!(has_ended(&world.net, phones[0]));
    world.assert_quiet();
}

/// The INVITE is kept until all contacts have ended, not for the whole call.
#[test]
fn late_end_of_another_contact_releases_the_set_up() {
    let phones = [("10.1.0.2:5060", OUT), ("10.1.0.3:5060", OUT)];
    let (mut net, alice, leg, [first, _]) = ringing(&config("192.0.2.2"), phones);
    // The other phone has left its network, and does not answer CANCEL.
    net.silence("10.1.0.3:5060");
    answer(&mut net, first, SDP_B);
    let number = net.border.call_numbers()[0];
    let keeps_invite = |net: &VirtualNetwork| {
        let saved = net.border.save_call(number).expect("a call");
        saved.windows(11).any(|part| part == b"INVITE sip:")
    };
    assert!(keeps_invite(&net));
    net.run(Duration::from_secs(40));
    assert!(!keeps_invite(&net));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(second());
    net.assert_quiet();
}
