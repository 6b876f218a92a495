//! Targets of transfers that the border carries out: they are called as any call by policy, and rung at most for the
//! ring timeout; the transferor may leave at once.

use crate::virtual_network;

use protect::sdes::CryptoAttribute;
use protect::srtp::{ContextLimits, Inbound};
use sip::{Ending, Failure, LegId, MessageContent};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// Transfers of `pbx` are carried out by the border; `carol` is reached by the trunk `other` with these keys.
fn config(target: &str, keys: &str) -> String {
    format!(
        "{PLAIN}refer='act'\n[[trunk]]\nname='other'\ninterface='in'\ntarget='{target}'\n{keys}\n\
         [[route]]\nto={{user='carol'}}\ntrunk='other'\n[[route]]\nto={{user='1000'}}\nregistered=true\n[[route]]\ntrunk='pbx'\n"
    )
}

struct Rig {
    net: VirtualNetwork,
    alice: usize,
    bob: usize,
    carol: usize,
    legs: [LegId; 2],
    /// The last sequence number of Alice's audio.
    sequence: u16,
}

/// Alice talks with Bob; Carol neither rings nor answers by herself.
fn established(config: &str) -> Rig {
    connected(config, [SDP_B, &SDP_B.replace("10.2.0.1", "10.2.0.2")])
}

/// The same with these descriptions of Bob and Carol.
fn connected(config: &str, [of_bob, of_carol]: [&str; 2]) -> Rig {
    let mut net = VirtualNetwork::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(of_bob));
    let behaviour = PhoneBehaviour {
        sdp: of_carol.to_owned(),
        ..waiting()
    };
    let carol = net.phone("10.2.0.2:5060", behaviour);
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let other = leg_of(&net, bob);
    Rig {
        net,
        alice,
        bob,
        carol,
        legs: [leg, other],
        sequence: 0,
    }
}

fn waiting() -> PhoneBehaviour {
    PhoneBehaviour {
        progress: Vec::new(),
        answer: None,
        ..PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2"))
    }
}

/// The leg of the last INVITE at a phone.
fn leg_of(net: &VirtualNetwork, phone: usize) -> LegId {
    let offered = net.last(phone, |event| *event == PhoneEvent::Offered);
    offered.leg.unwrap()
}

impl Rig {
    /// Bob asks the border to connect Alice with this user.
    fn refer(&mut self, to: &str) {
        self.refer_to(&format!("<sip:{to}@198.51.100.1>"));
    }

    /// The same with the value of Refer-To.
    fn refer_to(&mut self, target: &str) {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: target.as_bytes(),
        }];
        let other = self.legs[1];
        self.net.command(self.bob, |endpoint, now| {
            let content = MessageContent::default().with(&edits);
            endpoint
                .request(other, Method::Refer, &content, now)
                .unwrap();
        });
        self.net.run(seconds(1));
    }

    fn answer(&mut self, phone: usize) {
        let leg = leg_of(&self.net, phone);
        let sdp = self.net.phones[phone].log.behaviour.sdp.clone();
        self.net.command(phone, |endpoint, now| {
            let content = MessageContent::sdp(sdp.as_bytes());
            endpoint.answer(leg, 200, &content, now).unwrap();
        });
        self.net.run(seconds(1));
    }

    fn reject(&mut self, phone: usize, status: u16, edits: &[Edit<'_>]) {
        let leg = leg_of(&self.net, phone);
        self.net.command(phone, |endpoint, now| {
            let content = MessageContent::default().with(edits);
            endpoint.reject(leg, status, &content, now).unwrap();
        });
        self.net.run(seconds(1));
    }

    fn bob_hangs_up(&mut self) {
        let other = self.legs[1];
        self.net.command(self.bob, |endpoint, now| {
            let content = MessageContent::default();
            endpoint.bye(other, &content, now).unwrap();
        });
        self.net.run(seconds(1));
    }

    fn invites(&self, phone: usize) -> usize {
        let offered = |entry: &&LogEntry| entry.event == PhoneEvent::Offered;
        self.net.log(phone).iter().filter(offered).count()
    }

    /// The status line in the last NOTIFY to Bob.
    fn notified(&self) -> String {
        let notify = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
        let body = self.net.last(self.bob, notify).body();
        body.lines().next().unwrap_or_default().to_owned()
    }

    fn has_ended(&self, phone: usize) -> bool {
        let ended = |event: &PhoneEvent| matches!(event, PhoneEvent::Ended(_));
        self.net.has(phone, ended)
    }

    /// Alice is connected with this phone alone, and ends the call.
    fn end_with(&mut self, phone: usize) {
        assert!(
            self.net.has(phone, |event| *event == PhoneEvent::Acked),
            "{:?}",
            self.net.phone_events(phone)
        );
        assert!(!self.has_ended(self.alice));
        assert_eq!(self.net.border.calls().len(), 1);
        let leg = self.legs[0];
        self.net.command(self.alice, |endpoint, now| {
            let content = MessageContent::default();
            endpoint.bye(leg, &content, now).unwrap();
        });
        self.net.run(seconds(1));
        assert!(
            self.net
                .has(phone, |event| *event == PhoneEvent::Ended(Ending::Peer))
        );
        self.net.assert_quiet();
    }
}

#[test]
fn target_gets_identity_and_credentials_of_its_trunk() {
    let keys = "username='us'\npassword='pw'\nfrom_user='4910'\ndomain='carrier.example'";
    let mut rig = established(&config("udp:10.2.0.2:5060", keys));
    rig.refer("carol");
    let first = rig
        .net
        .last(rig.carol, |event| *event == PhoneEvent::Offered);
    assert!(
        first
            .header("From")
            .starts_with("<sip:4910@carrier.example>"),
        "{}",
        first.text()
    );
    assert!(
        first.header("To").contains("sip:carol@carrier.example"),
        "{}",
        first.text()
    );
    let challenge = [Edit::Add {
        id: HeaderId::ProxyAuthenticate,
        value: b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5",
    }];
    rig.reject(rig.carol, 407, &challenge);
    assert_eq!(rig.invites(rig.carol), 2);
    let second = rig
        .net
        .last(rig.carol, |event| *event == PhoneEvent::Offered);
    assert!(
        second
            .header("Proxy-Authorization")
            .contains("username=\"us\""),
        "{}",
        second.text()
    );
    rig.answer(rig.carol);
    assert_eq!(rig.notified(), "SIP/2.0 200 OK");
    rig.end_with(rig.carol);
}

/// An offer in a reliable response would have to be answered in PRACK, before the transferee has answered it, and
/// nothing confirms preconditions.
#[test]
fn target_is_offered_only_extensions_of_the_border() {
    let mut rig = established(&config("udp:10.2.0.2:5060", ""));
    rig.refer("carol");
    let invite = rig
        .net
        .find(rig.carol, |event| *event == PhoneEvent::Offered);
    assert_eq!(invite.header("Supported"), "timer, replaces");
    let leg = leg_of(&rig.net, rig.carol);
    let sdp = rig.net.phones[rig.carol].log.behaviour.sdp.clone();
    rig.net.command(rig.carol, |endpoint, now| {
        let early = MessageContent::sdp(sdp.as_bytes());
        let refused = endpoint.progress(leg, 183, &early, true, now);
        assert_eq!(refused, Err(sip::Refused::NotSupported));
        endpoint.progress(leg, 183, &early, false, now).unwrap();
    });
    rig.answer(rig.carol);
    assert_eq!(rig.notified(), "SIP/2.0 200 OK");
    let reinvite = rig
        .net
        .last(rig.alice, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(reinvite.header("Supported"), "timer, replaces");
    rig.end_with(rig.carol);
}

#[test]
fn target_may_be_a_telephone_number() {
    let route = "[[route]]\nto={prefix='+49'}\ntrunk='other'\n[[route]]\nto={user='carol'}";
    let text = config("udp:10.2.0.2:5060", "").replace("[[route]]\nto={user='carol'}", route);
    let mut rig = established(&text);
    rig.refer_to("<tel:+49-30-1>");
    let invite = rig
        .net
        .find(rig.carol, |event| *event == PhoneEvent::Offered);
    assert!(
        invite.text().starts_with("INVITE sip:+49301@10.2.0.2"),
        "{}",
        invite.text()
    );
    rig.answer(rig.carol);
    rig.end_with(rig.carol);
}

/// The transferor names a target of its own: Teams describes a user by parameters, without a number, and requires the
/// call with exactly this URI. Routes for numbers do not apply.
#[test]
fn target_at_the_transferor_is_called_there_with_its_uri() {
    let routes = "[[route]]\nto={user='bob'}\ntrunk='pbx'\n[[route]]\ntrunk='other'\n";
    let text = config("udp:10.2.0.2:5060", "").replace("[[route]]\ntrunk='pbx'\n", routes);
    for target in [
        "sip:10.2.0.1:5060;transport=udp;x-m=8:orgid:fce2;x-t=2d88",
        "sip:200@10.2.0.1",
        "sip:another.example:5061;x-m=8:orgid:fce2",
    ] {
        let mut rig = established(&text);
        rig.refer_to(&format!("<{target}>"));
        assert_eq!((rig.invites(rig.bob), rig.invites(rig.carol)), (2, 0));
        let invite = rig.net.last(rig.bob, |event| *event == PhoneEvent::Offered);
        let start = format!("INVITE {target} SIP/2.0\r\n");
        assert!(invite.text().starts_with(&start), "{}", invite.text());
        rig.net.run(seconds(1));
        assert_eq!(rig.notified(), "SIP/2.0 200 OK");
        rig.end_with(rig.bob);
    }
}

/// RFC 5589 section 7: the transferor has consulted the target within its system. The border has no such dialog: the
/// system gets the INVITE with Replaces and connects them.
#[test]
fn dialog_inside_the_system_of_the_transferor_is_replaced_there() {
    const DIALOG: &str = "abc%40h%3Bto-tag%3D1%3Bfrom-tag%3D2";
    let text = config("udp:10.2.0.2:5060", "");
    let mut rig = established(&text);
    rig.refer_to(&format!("<sip:200@10.2.0.1?Replaces={DIALOG}>"));
    assert_eq!((rig.invites(rig.bob), rig.invites(rig.carol)), (2, 0));
    let invite = rig.net.last(rig.bob, |event| *event == PhoneEvent::Offered);
    let start = "INVITE sip:200@10.2.0.1 SIP/2.0\r\n";
    assert!(invite.text().starts_with(start), "{}", invite.text());
    assert_eq!(invite.header("Replaces"), "abc@h;to-tag=1;from-tag=2");
    rig.net.run(seconds(1));
    assert_eq!(rig.notified(), "SIP/2.0 200 OK");
    rig.end_with(rig.bob);
    for (target, status) in [
        // Another system: it would get a call that it cannot relate to any other.
        (format!("<sip:carol@10.2.0.2?Replaces={DIALOG}>"), 481),
        // Our own dialogs are known.
        (format!("<sip:carol@198.51.100.1?Replaces={DIALOG}>"), 481),
        // It would add a header to the INVITE.
        (
            format!("<sip:200@10.2.0.1?Replaces={DIALOG}%0D%0ASubject%3A%20x>"),
            400,
        ),
    ] {
        let mut rig = established(&text);
        rig.refer_to(&target);
        let refused =
            |event: &PhoneEvent| matches!(event, PhoneEvent::Response(got, _) if *got == status);
        assert!(rig.net.has(rig.bob, refused), "{target}");
        assert_eq!((rig.invites(rig.bob), rig.invites(rig.carol)), (1, 0));
    }
}

/// Its author identifies the call by Referred-By; other systems do not get its network.
#[test]
fn referred_by_returns_unchanged_to_the_transferor() {
    const REFERRED_BY: &str = "<sip:10.2.0.1:5060;x-m=8:orgid:bdc0;x-ti=9cfa>";
    let text =
        config("udp:10.2.0.2:5060", "").replace("name='in'\n", "name='in'\nheaders='known'\n");
    for (target, kept) in [
        ("<sip:10.2.0.1:5060;x-m=8:orgid:fce2>", true),
        ("<sip:carol@198.51.100.1>", false),
    ] {
        let mut rig = established(&text);
        let edits = [
            Edit::Add {
                id: HeaderId::ReferTo,
                value: target.as_bytes(),
            },
            Edit::Add {
                id: HeaderId::ReferredBy,
                value: REFERRED_BY.as_bytes(),
            },
        ];
        let other = rig.legs[1];
        rig.net.command(rig.bob, |endpoint, now| {
            let content = MessageContent::default().with(&edits);
            endpoint
                .request(other, Method::Refer, &content, now)
                .unwrap();
        });
        rig.net.run(seconds(1));
        let called = if kept { rig.bob } else { rig.carol };
        let invite = rig.net.last(called, |event| *event == PhoneEvent::Offered);
        assert_eq!(
            invite.header("Referred-By") == REFERRED_BY,
            kept,
            "{target}"
        );
        assert!(!invite.header("Referred-By").is_empty(), "{target}");
    }
}

/// RFC 6665 section 4.1.2.4: the subscription of the transferor outlasts the time in which the target may ring.
#[test]
fn subscription_of_the_transferor_outlasts_the_ringing() {
    let mut rig = established(&config("udp:10.2.0.2:5060", ""));
    rig.net.phones[rig.carol].log.behaviour.progress = vec![(180, false)];
    rig.refer("carol");
    let notify = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
    let state = rig.net.last(rig.bob, notify).header("Subscription-State");
    let (_, lifetime) = state.split_once("active;expires=").unwrap();
    let lifetime: u64 = lifetime.parse().unwrap();
    assert!(lifetime > 3_600, "{state}: the longest ring_timeout_s");
    rig.answer(rig.carol);
    rig.end_with(rig.carol);
}

/// The transferor announces the reason, not an unknown number for everything.
#[test]
fn refer_is_refused_with_the_status_of_policy() {
    let route = "[[route]]\nto={user='denied'}\nreject=603\n[[route]]\nto={user='carol'}";
    let text = config("udp:10.2.0.2:5060", "").replace("[[route]]\nto={user='carol'}", route);
    let mut rig = established(&text);
    for (target, expected) in [
        ("<sip:denied@198.51.100.1>", 603),
        ("<mailto:carol@example.org>", 416),
        ("<sip:carol@198.51.100.1;method=BYE>", 400),
    ] {
        rig.refer_to(target);
        let refused = |event: &PhoneEvent| matches!(event, PhoneEvent::Response(..));
        let response = rig.net.last(rig.bob, refused);
        assert!(
            matches!(response.event, PhoneEvent::Response(status, _) if status == expected),
            "{target}: {}",
            response.text()
        );
    }
    assert!(!rig.has_ended(rig.alice) && !rig.has_ended(rig.bob));
}

#[test]
fn target_with_a_host_name_is_located() {
    let text = config("udp:carol.example:5060", "") + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut rig = established(&text);
    rig.net.zone = vec![("carol.example", 1, vec![10, 2, 0, 2])];
    rig.refer("carol");
    rig.answer(rig.carol);
    rig.end_with(rig.carol);
    // A name without an address.
    let mut rig = established(&text);
    rig.net.zone = vec![("other.example", 1, vec![10, 2, 0, 2])];
    rig.refer("carol");
    rig.net.run(seconds(30));
    assert!(
        rig.notified().starts_with("SIP/2.0 503"),
        "{}",
        rig.notified()
    );
    assert!(!rig.has_ended(rig.alice) && !rig.has_ended(rig.bob));
}

#[test]
fn target_rings_at_most_for_the_ring_timeout() {
    let text = config("udp:10.2.0.2:5060", "") + "[sip]\nring_timeout_s=5\n";
    let mut rig = established(&text);
    rig.net.phones[rig.carol].log.behaviour.progress = vec![(180, false)];
    rig.refer("carol");
    assert_eq!(rig.notified(), "SIP/2.0 180 Ringing");
    rig.net.run(seconds(5));
    assert!(
        rig.net
            .has(rig.carol, |event| *event == PhoneEvent::Cancelled)
    );
    assert!(
        rig.notified().starts_with("SIP/2.0 480"),
        "{}",
        rig.notified()
    );
    // The call continues, and a target that answers in time stays.
    rig.refer("carol");
    rig.answer(rig.carol);
    rig.net.run(seconds(10));
    rig.end_with(rig.carol);
}

/// As for a call: the first response is awaited for `answer_timeout_s`.
#[test]
fn silent_target_is_followed_by_the_next_one() {
    let targets = "[{address='udp:10.2.0.99:5060'},{address='udp:10.2.0.2:5060',priority=1}]";
    let text = config("TARGETS", "answer_timeout_s=3").replace("'TARGETS'", targets);
    let mut rig = established(&text);
    rig.refer("carol");
    assert_eq!(rig.invites(rig.carol), 0);
    rig.net.run(seconds(3));
    assert_eq!(rig.invites(rig.carol), 1);
    rig.answer(rig.carol);
    assert_eq!(rig.notified(), "SIP/2.0 200 OK");
    rig.net.run(seconds(40));
    rig.end_with(rig.carol);
    // None is left.
    let text = config("udp:10.2.0.99:5060", "answer_timeout_s=3");
    let mut rig = established(&text);
    rig.refer("carol");
    rig.net.run(seconds(3));
    assert!(
        rig.notified().starts_with("SIP/2.0 408"),
        "{}",
        rig.notified()
    );
    assert!(!rig.has_ended(rig.alice) && !rig.has_ended(rig.bob));
}

#[test]
fn header_rules_of_the_trunk_apply_to_the_target() {
    let rule = |action: &str| {
        config("udp:10.2.0.2:5060", "")
            + &format!(
                "[[rules]]\nname='tolls'\ntrunk='other'\ndirection='out'\nmethod='INVITE'\ndo=[{action}]\n"
            )
    };
    let mut rig = established(&rule("{ reject = 403 }"));
    rig.refer("carol");
    assert_eq!(rig.invites(rig.carol), 0);
    assert!(
        rig.notified().starts_with("SIP/2.0 403"),
        "{}",
        rig.notified()
    );
    assert!(rig.net.names().contains(&"rule_refused"));
    let mut rig = established(&rule("{ add = 'X-Line', value = '7' }"));
    rig.refer("carol");
    let invite = rig
        .net
        .last(rig.carol, |event| *event == PhoneEvent::Offered);
    assert_eq!(invite.header("X-Line"), "7");
}

#[test]
fn all_contacts_of_a_user_are_tried() {
    let text = config("udp:10.2.0.2:5060", "").replacen(
        "kind='access'\n",
        "kind='access'\nregister='local'\n",
        1,
    ) + "[[user]]\nname='1000'\npassword='secret'\n";
    let mut rig = established(&text);
    let phones = ["10.1.0.2:5060", "10.1.0.3:5060"].map(|address| {
        let phone = rig.net.phone(address, waiting());
        register(&mut rig.net, phone);
        phone
    });
    rig.refer("1000");
    // The phone that registered last is called first.
    let [older, newer] = phones;
    rig.reject(newer, 486, &[]);
    rig.answer(older);
    rig.net.run(seconds(1));
    assert_eq!(rig.notified(), "SIP/2.0 200 OK");
    assert!(rig.net.has(older, |event| *event == PhoneEvent::Acked));
}

fn register(net: &mut VirtualNetwork, phone: usize) {
    let contact = format!("<sip:1000@{}>", net.phones[phone].address);
    net.send_register(phone, &RegisterRequest::new("1000", &contact));
    net.run(seconds(1));
    let answered = |event: &PhoneEvent| *event == PhoneEvent::OutOfDialogResponse(200);
    assert!(net.has(phone, answered), "{:?}", net.phone_events(phone));
}

#[test]
fn transferor_may_hang_up_before_the_target_answers() {
    let mut rig = established(&config("udp:10.2.0.2:5060", ""));
    rig.refer("carol");
    rig.bob_hangs_up();
    rig.net.run(seconds(1));
    assert!(!rig.has_ended(rig.alice));
    assert!(
        !rig.net
            .has(rig.carol, |event| *event == PhoneEvent::Cancelled)
    );
    rig.answer(rig.carol);
    rig.end_with(rig.carol);
}

/// Without the transferor there is no call to return to.
#[test]
fn failed_transfer_without_its_transferor_ends_the_call() {
    let mut rig = established(&config("udp:10.2.0.2:5060", ""));
    rig.refer("carol");
    rig.bob_hangs_up();
    rig.reject(rig.carol, 486, &[]);
    assert!(
        rig.net
            .has(rig.alice, |event| *event == PhoneEvent::Ended(Ending::Peer)),
        "{:?}",
        rig.net.phone_events(rig.alice)
    );
    rig.net.assert_quiet();
    // The transferee hangs up, too: the target is cancelled.
    let mut rig = established(&config("udp:10.2.0.2:5060", ""));
    rig.net.phones[rig.carol].log.behaviour.progress = vec![(180, false)];
    rig.refer("carol");
    rig.bob_hangs_up();
    let leg = rig.legs[0];
    rig.net.command(rig.alice, |endpoint, now| {
        let content = MessageContent::default();
        endpoint.bye(leg, &content, now).unwrap();
    });
    rig.net.run(seconds(1));
    assert!(
        rig.net
            .has(rig.carol, |event| *event == PhoneEvent::Cancelled)
    );
    assert!(!rig.net.has(rig.alice, |event| matches!(
        event,
        PhoneEvent::Failed(Failure::Response, _)
    )));
    rig.net.assert_quiet();
}

const CRYPTO_SUITE: &str = "AES_CM_128_HMAC_SHA1_80";

/// A description with SRTP and this key.
fn with_key(sdp: &str, key: char) -> String {
    let sdp = sdp.replace("RTP/AVP", "RTP/SAVP");
    let key = key.to_string().repeat(40);
    format!("{sdp}a=crypto:1 {CRYPTO_SUITE} inline:{key}\r\n")
}

/// The context for packets of the sender of a description.
fn inbound(body: &str) -> Inbound {
    let value = body.split("a=crypto:").nth(1).unwrap();
    let value = value.lines().next().unwrap();
    let attribute = CryptoAttribute::parse(value.as_bytes()).unwrap();
    Inbound::new(&attribute.keys[0], ContextLimits::default()).unwrap()
}

/// Without it the target could not know how often the sequence numbers of the stream have wrapped, and the transferor
/// would know the key.
#[test]
fn target_with_srtp_gets_its_own_key_and_rollover_counter() {
    let config = config("udp:10.2.0.2:5060", "").replace(
        "kind='core'",
        &format!("kind='core'\nsrtp='require'\nsrtp_suites='{CRYPTO_SUITE}'"),
    );
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.2");
    let mut rig = connected(&config, [&with_key(SDP_B, 'B'), &with_key(&sdp, 'C')]);
    let answer = rig
        .net
        .find(rig.alice, |event| *event == PhoneEvent::Answered);
    let answer = answer.body();
    let port = answer.split("m=audio ").nth(1).unwrap().split(' ').next();
    let local = format!("192.0.2.1:{}", port.unwrap());
    let hears = |rig: &mut Rig, at: &str, context: &mut Inbound, count: u16| {
        rig.net.media.clear();
        for _ in 0..count {
            rig.sequence = rig.sequence.wrapping_add(1);
            let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
            packet[2..4].copy_from_slice(&rig.sequence.to_be_bytes());
            packet.extend([0x55; 160]);
            rig.net.send_raw("10.1.0.1:4000", &local, &packet);
        }
        rig.net.run(seconds(1));
        let to_phone = rig.net.media.iter().filter(|(to, ..)| to.to_string() == at);
        let mut packets: Vec<Vec<u8>> = to_phone.map(|(.., bytes)| bytes.clone()).collect();
        assert_eq!(packets.len(), usize::from(count));
        for packet in &mut packets {
            let length = context.unprotect_rtp(packet).unwrap();
            assert_eq!(packet[12..length], [0x55; 160]);
        }
    };
    let offer = rig.net.find(rig.bob, |event| *event == PhoneEvent::Offered);
    let mut bob = inbound(&offer.body());
    rig.sequence = 65_500;
    hears(&mut rig, "10.2.0.1:5000", &mut bob, 100);
    rig.refer("carol");
    rig.answer(rig.carol);
    assert!(rig.notified().starts_with("SIP/2.0 200"));
    assert!(rig.has_ended(rig.bob));
    let acked = rig.net.last(rig.carol, |event| *event == PhoneEvent::Acked);
    let mut carol = inbound(&acked.body());
    hears(&mut rig, "10.2.0.2:5000", &mut carol, 100);
}
