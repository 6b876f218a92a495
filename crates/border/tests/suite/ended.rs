//! The end of calls: when it is told, and the figures that it is told with.

use crate::neighbourhood;

use engine::{Hundredths, Note};
use neighbourhood::*;
use sip::{Content, LegId};
use std::time::Duration;

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn pair(config: &str) -> (Neighbourhood, usize, usize) {
    let mut net = Neighbourhood::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    (net, alice, bob)
}

fn call(net: &mut Neighbourhood, alice: usize) -> LegId {
    let offer = Content::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    leg
}

fn hang_up(net: &mut Neighbourhood, phone: usize, leg: LegId) {
    net.tell(phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
}

/// The one end of a call that was told.
fn ended(net: &Neighbourhood) -> Note {
    let notes = net.events.iter().map(|event| &event.note);
    let mut ends = notes.filter(|note| note.name() == "call_ended");
    let end = ends.next().expect("call_ended").clone();
    assert!(ends.next().is_none(), "told once");
    end
}

/// Its fields but the number of the call, as they are written.
fn fields(note: &Note) -> Vec<String> {
    let mut fields = Vec::new();
    note.fields(&mut |name, value| fields.push(format!("{name}={value}")));
    fields.remove(0);
    fields
}

fn port_of(body: &str) -> u16 {
    let rest = body.split("m=audio ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn rtp(sequence: u16, ssrc: u8) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 0, ssrc, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet[4..8].copy_from_slice(&(u32::from(sequence) * 160).to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

/// Two seconds of speech of both sides; every tenth packet of the caller's is lost on its way to us.
fn speak(net: &mut Neighbourhood, alice: usize, bob: usize) {
    let towards_alice = port_of(&net.find(alice, |told| *told == Told::Answered).body());
    let towards_bob = port_of(&net.find(bob, |told| *told == Told::Offered).body());
    for sequence in 0..100 {
        if sequence % 10 != 5 {
            let to = format!("192.0.2.1:{towards_alice}");
            net.throw("10.1.0.1:4000", &to, &rtp(sequence, 1));
        }
        let to = format!("198.51.100.1:{towards_bob}");
        net.throw("10.2.0.1:5000", &to, &rtp(sequence, 9));
        net.run(Duration::from_millis(20));
    }
}

#[test]
fn the_end_is_told_with_the_figures_of_both_sides_and_before_the_bye_is_answered() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = call(&mut net, alice);
    speak(&mut net, alice, bob);
    // Our BYE is not answered: for 32 s the call's leg lingers.
    net.silence("10.2.0.1:5060");
    hang_up(&mut net, alice, leg);
    net.run(Duration::from_millis(50));
    let end = ended(&net);
    assert_eq!(
        fields(&end),
        [
            "by=caller",
            "why=bye",
            "status=200",
            "duration_ms=2998",
            "path=sockets",
            "codec=PCMU",
            "caller_loss_percent=10.00",
            "caller_jitter_ms=0.00",
            "caller_mos=3.41",
            "callee_loss_percent=0.00",
            "callee_jitter_ms=0.00",
            "callee_mos=4.41",
        ]
    );
    net.assert_quiet();
    ended(&net);
}

#[test]
fn a_refused_call_has_ended_with_its_final_response() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.answer = Some(486);
    let offer = Content::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(Duration::from_millis(10));
    assert_eq!(
        fields(&ended(&net)),
        ["by=callee", "why=refused", "status=486", "path=sockets"]
    );
    net.assert_quiet();
}

#[test]
fn media_that_is_passed_by_has_no_figures() {
    let config = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let (mut net, alice, _) = pair(&config);
    let leg = call(&mut net, alice);
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    assert_eq!(
        fields(&ended(&net)),
        [
            "by=caller",
            "why=bye",
            "status=200",
            "duration_ms=998",
            "path=bypass"
        ]
    );
}

#[test]
fn a_call_without_packets_has_no_figures_either() {
    let (mut net, alice, _) = pair(PLAIN);
    let leg = call(&mut net, alice);
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    let Note::CallEnded {
        path,
        caller_mos,
        callee_loss_percent,
        codec,
        ..
    } = ended(&net)
    else {
        panic!();
    };
    assert_eq!(path.as_deref(), Some("sockets"));
    assert_eq!((caller_mos, callee_loss_percent, codec), (None, None, None));
}

#[test]
fn the_dynamic_payload_type_of_a_transcoded_side_is_named() {
    let opus = SDP_A
        .replace("RTP/AVP 0 101", "RTP/AVP 96")
        .replace("a=rtpmap:0 PCMU/8000", "a=rtpmap:96 opus/48000/2")
        .replace("a=rtpmap:101 telephone-event/8000\r\n", "");
    let config = PLAIN.replace("kind='core'", "kind='core'\ntranscode='PCMU'");
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(&opus));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let offer = Content::sdp(opus.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let towards_alice = port_of(&net.find(alice, |told| *told == Told::Answered).body());
    let towards_bob = port_of(&net.find(bob, |told| *told == Told::Offered).body());
    for sequence in 0..10 {
        let mut packet = rtp(sequence, 1);
        packet[1] = 96;
        net.throw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &packet,
        );
        let to = format!("198.51.100.1:{towards_bob}");
        net.throw("10.2.0.1:5000", &to, &rtp(sequence, 9));
        net.run(Duration::from_millis(20));
    }
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    let Note::CallEnded {
        codec, callee_mos, ..
    } = ended(&net)
    else {
        panic!();
    };
    assert_eq!(codec.as_deref(), Some("opus/PCMU"));
    assert!(callee_mos > Some(Hundredths(400)), "{callee_mos:?}");
}

#[test]
fn the_route_and_the_address_are_told_where_a_call_is_sent_on() {
    let config = format!("{PLAIN}[[route]]\nname='all of them'\ntrunk='pbx'\n");
    let (mut net, alice, _) = pair(&config);
    call(&mut net, alice);
    let routed = net.events.iter().find_map(|event| match &event.note {
        Note::CallRouted {
            route,
            target,
            address,
            ..
        } => Some([route.clone(), target.clone(), address.clone()]),
        _ => None,
    });
    assert_eq!(routed.unwrap(), ["all of them", "pbx", "udp:10.2.0.1:5060"]);
}
