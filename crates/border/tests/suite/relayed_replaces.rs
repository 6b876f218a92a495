//! Attended transfers that the border relays: Refer-To names the dialog of the transferor, and the other side has
//! another one.

use crate::virtual_network;

use engine::Transport;
use sip::{Ending, LegId, MessageContent, OutOfDialogRequest, Target};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message, Method, Replaces, percent_decode};

const CORE: &str = "198.51.100.1:5060";

/// Alice has two calls to the PBX.
struct Rig {
    net: VirtualNetwork,
    alice: usize,
    pbx: usize,
    /// Those of Alice.
    legs: [LegId; 2],
    /// Those of the PBX.
    far_legs: [LegId; 2],
}

fn established(config: &str) -> Rig {
    let (mut net, alice, pbx) = pair(config);
    let mut call = |uri: &str| {
        let leg = net.call(alice, uri, OUT, &offer());
        net.run(seconds(1));
        let offered = net.last(pbx, |event| *event == PhoneEvent::Offered);
        (leg, offered.leg.unwrap())
    };
    let (first, first_far) = call("sip:bob@192.0.2.1");
    let (second, second_far) = call("sip:carol@192.0.2.1");
    Rig {
        net,
        alice,
        pbx,
        legs: [first, second],
        far_legs: [first_far, second_far],
    }
}

/// Call-ID, remote tag and local tag of a leg.
fn dialog(net: &mut VirtualNetwork, phone: usize, leg: LegId) -> [String; 3] {
    net.command(phone, |endpoint, _| {
        let (own, theirs) = endpoint.tags_of(leg).unwrap();
        let call_id = endpoint.call_id_of(leg).unwrap();
        [call_id, theirs, &own].map(|text| String::from_utf8(text.to_vec()).unwrap())
    })
}

impl Rig {
    /// Alice sends REFER in her first call. Returns the URI of Refer-To as it arrives at the PBX.
    fn refer(&mut self, refer_to: &str) -> String {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: refer_to.as_bytes(),
        }];
        let leg = self.legs[0];
        self.net.command(self.alice, |endpoint, now| {
            let content = MessageContent::default().with(&edits);
            endpoint.request(leg, Method::Refer, &content, now).unwrap();
        });
        self.net.run(seconds(1));
        let refer = self
            .net
            .last(self.pbx, |event| matches!(event, PhoneEvent::Request(_)));
        assert_eq!(refer.method(), "REFER");
        let message = Message::parse(&refer.bytes).unwrap();
        String::from_utf8(message.refer_to().unwrap().uri.to_vec()).unwrap()
    }
}

impl Rig {
    /// The PBX calls a user with this Replaces and is answered. Returns the leg of Alice that has ended.
    fn replaced_by(&mut self, user: &str, replaces: &str) -> Option<LegId> {
        let edits = [Edit::Add {
            id: HeaderId::Replaces,
            value: replaces.as_bytes(),
        }];
        let content = MessageContent::sdp(SDP_B.as_bytes()).with(&edits);
        let uri = format!("sip:{user}@198.51.100.1");
        let new = self.net.call(self.pbx, &uri, CORE, &content);
        self.net.run(seconds(2));
        let answered = |event: &PhoneEvent| *event == PhoneEvent::Answered;
        assert_eq!(self.net.last(self.pbx, answered).leg, Some(new));
        let ended = |event: &PhoneEvent| *event == PhoneEvent::Ended(Ending::Peer);
        self.net.find(self.alice, ended).leg
    }
}

/// Call-ID, `to-tag` and `from-tag` of Replaces in a URI.
fn replaces_of(uri: &str) -> [String; 3] {
    let (_, value) = uri.split_once("Replaces=").unwrap();
    let value = value.split('&').next().unwrap();
    let value = percent_decode(value.as_bytes()).into_owned();
    let replaces = Replaces::parse(&value).unwrap();
    [replaces.call_id, replaces.to_tag, replaces.from_tag]
        .map(|text| String::from_utf8(text.to_vec()).unwrap())
}

/// The PBX finds its own dialog with the consulted party, and no address or identifier of the phone's side.
#[test]
fn relayed_refer_names_the_dialog_of_its_receiver() {
    let mut rig = established(PLAIN);
    let [_, consulted] = rig.legs;
    let [call_id, theirs, own] = dialog(&mut rig.net, rig.alice, consulted);
    // Tags in both orders, because some phones swap them.
    for [to_tag, from_tag] in [[&theirs, &own], [&own, &theirs]] {
        let uri = rig.refer(&format!(
            "<sip:carol@{OUT}?Subject=x%20y&Replaces={call_id}%3Bto-tag%3D{to_tag}%3Bfrom-tag%3D{from_tag}>"
        ));
        let start = format!("sip:carol@{CORE}?Subject=x%20y&Replaces=");
        assert!(uri.starts_with(&start), "{uri}");
        // For the PBX its own tag is that of the target, the border's that of the transferor.
        let [far_id, border, pbx] = dialog(&mut rig.net, rig.pbx, rig.far_legs[1]);
        assert_eq!(replaces_of(&uri), [far_id, pbx, border]);
        assert!(!uri.contains(&call_id), "{uri}");
    }
    // A dialog of another system.
    let uri = rig.refer(&format!(
        "<sip:carol@{OUT}?Replaces=other%40h%3Bto-tag%3D1%3Bfrom-tag%3D2>"
    ));
    assert_eq!(
        uri,
        format!("sip:carol@{CORE}?Replaces=other%40h%3Bto-tag%3D1%3Bfrom-tag%3D2")
    );
}

/// The consulted party is behind another trunk: the receiver reaches it through the border, which knows the dialog of
/// the transferor.
#[test]
fn dialog_at_another_trunk_keeps_its_name() {
    let config = format!(
        "{PLAIN}[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={{user='dora'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    );
    let mut rig = established(&config);
    let dora = PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2"));
    rig.net.phone("10.2.0.2:5060", dora);
    let consulted = rig.net.call(rig.alice, "sip:dora@192.0.2.1", OUT, &offer());
    rig.net.run(seconds(1));
    let [call_id, theirs, own] = dialog(&mut rig.net, rig.alice, consulted);
    let uri = rig.refer(&format!(
        "<sip:dora@{OUT}?Replaces={call_id}%3Bto-tag%3D{theirs}%3Bfrom-tag%3D{own}>"
    ));
    assert_eq!(replaces_of(&uri), [call_id, theirs, own]);
}

/// A receiver that does not connect the parties itself calls the target with the dialog in Refer-To. It returns to the
/// border, and takes the place of the transferor.
#[test]
fn invite_with_the_dialog_of_the_far_side_replaces_the_transferor() {
    let mut rig = established(PLAIN);
    let [call_id, border, own] = dialog(&mut rig.net, rig.pbx, rig.far_legs[1]);
    let replaces = format!("{call_id};to-tag={own};from-tag={border}");
    assert_eq!(rig.replaced_by("carol", &replaces), Some(rig.legs[1]));
    assert_eq!(rig.net.border.calls().len(), 2);
}

/// A phone has written the tags in the other order, and the target is behind another trunk: its dialog is the one that
/// lasts.
#[test]
fn swapped_tags_from_another_trunk_replace_the_transferor() {
    let config = format!(
        "{PLAIN}[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={{user='dora'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    );
    let mut rig = established(&config);
    let dora = PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2"));
    let dora = rig.net.phone("10.2.0.2:5060", dora);
    let consulted = rig.net.call(rig.alice, "sip:dora@192.0.2.1", OUT, &offer());
    rig.net.run(seconds(1));
    let [call_id, theirs, own] = dialog(&mut rig.net, rig.alice, consulted);
    let replaces = format!("{call_id};to-tag={own};from-tag={theirs}");
    assert_eq!(rig.replaced_by("dora", &replaces), Some(consulted));
    let has_ended = |event: &PhoneEvent| matches!(event, PhoneEvent::Ended(_));
    assert!(!rig.net.has(dora, has_ended), "the consulted party");
}

/// The same for a REFER outside of the transferor's dialogs.
#[test]
fn refer_outside_of_dialogs_names_the_dialog_of_its_receiver() {
    let mut rig = established(&PLAIN.replacen("kind='access'", "kind='access'\nrefer='pass'", 1));
    let [call_id, theirs, own] = dialog(&mut rig.net, rig.alice, rig.legs[1]);
    let refer_to =
        format!("<sip:carol@{OUT}?Replaces={call_id}%3Bto-tag%3D{theirs}%3Bfrom-tag%3D{own}>");
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: refer_to.as_bytes(),
    }];
    let flow = rig.net.flow(rig.alice, OUT, Transport::Udp);
    let refer = OutOfDialogRequest {
        content: MessageContent::default().with(&edits),
        ..OutOfDialogRequest::new(Method::Refer, Target::new(b"sip:bob@192.0.2.1", flow))
    };
    rig.net.command(rig.alice, |endpoint, now| {
        endpoint.subscribe(&refer, 1, now).unwrap();
    });
    rig.net.run(seconds(1));
    let received = rig
        .net
        .find(rig.pbx, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    let uri = received.header("Refer-To");
    let start = format!("<sip:carol@{CORE}?Replaces=");
    assert!(uri.starts_with(&start), "{uri}");
    let uri = uri.trim_end_matches('>').to_owned();
    let [far_id, border, pbx] = dialog(&mut rig.net, rig.pbx, rig.far_legs[1]);
    assert_eq!(replaces_of(&uri), [far_id, pbx, border]);
}
