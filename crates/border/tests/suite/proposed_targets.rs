//! Targets that one side proposes to the other, by redirects and REFER: systems of the core are reached through the
//! border only.

use crate::virtual_network;

use engine::Transport;
use sip::{LegId, MessageContent};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// Address of the border for phones over a transport.
fn border_over(transport: Transport) -> &'static str {
    match transport {
        Transport::Tls => "192.0.2.1:5061",
        _ => OUT,
    }
}

/// Contact as the caller gets it, of a call that the called phone redirects to `contact`.
fn redirected(config: &str, from_core: bool, contact: &str) -> String {
    redirected_over(Transport::Udp, config, from_core, contact)
}

/// The same with a phone at the access side over this transport.
fn redirected_over(transport: Transport, config: &str, from_core: bool, contact: &str) -> String {
    let mut net = VirtualNetwork::new(config, 3);
    let silent = |sdp| PhoneBehaviour {
        progress: Vec::new(),
        answer: None,
        ..PhoneBehaviour::answering(sdp)
    };
    let alice = net.phone_over("10.1.0.1:5060", transport, silent(SDP_A));
    let bob = net.phone("10.2.0.1:5060", silent(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let (caller, callee) = match from_core {
        true => (bob, alice),
        false => (alice, bob),
    };
    match from_core {
        true => net.call(bob, "sip:99@198.51.100.1", "198.51.100.1:5060", &offer),
        false => {
            let hop = border_over(transport);
            net.call_with(alice, "sip:205@192.0.2.1", hop, &offer, |invite| {
                invite.target.flow.transport = transport;
            })
        }
    };
    net.run(seconds(1));
    let leg = net.find(callee, |event| *event == PhoneEvent::Offered).leg;
    let edits = [Edit::Add {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.command(callee, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.reject(leg.unwrap(), 302, &content, now).unwrap();
    });
    net.run(seconds(1));
    let refused = net.find(caller, |event| matches!(event, PhoneEvent::Failed(_, 302)));
    refused.header("Contact")
}

/// A trunk for the phone, so that the core calls it.
fn with_phone() -> String {
    format!(
        "{PLAIN}[[trunk]]\nname='phone'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n\
         [[route]]\nto={{regex='^99$'}}\ntrunk='phone'\n[[route]]\ntrunk='pbx'\n"
    )
}

/// RFC 3261 section 8.1.3.4: the caller calls the contacts of a redirect itself. Those in the core have no address
/// that it reaches.
#[test]
fn redirects_to_the_core_lead_callers_to_the_border() {
    let named = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:10.2.0.1:5060'\ndomain='pbx.example'",
    );
    for (contact, expected) in [
        (
            "<sip:bob@10.2.0.8:5070;transport=tcp;x=node7?Diversion=%3Csip:b@10.2.0.9%3E>;q=0.5;node=\"10.2.0.8\"",
            "<sip:bob@192.0.2.1:5060>;q=0.5",
        ),
        (
            "\"Node\" <sips:voicemail@[2001:db8::7]>, <sip:bob@10.2.0.8>;q=0.1, <sip:bob@10.2.0.9>",
            "<sips:voicemail@192.0.2.1:5060>, <sip:bob@192.0.2.1:5060>;q=0.1",
        ),
        ("<sip:bob@PBX.example>", "<sip:bob@192.0.2.1:5060>"),
        // Our own address on the other side.
        ("<sip:bob@198.51.100.1:5060>", "<sip:bob@192.0.2.1:5060>"),
        // Other systems are reached directly, but nothing is told about the core.
        (
            "<sip:bob@other.example:5070;transport=tcp;maddr=10.2.0.7?X=10.2.0.7>;expires=60",
            "<sip:bob@other.example:5070;transport=tcp>;expires=60",
        ),
        ("<tel:+4312>;q=1", "<tel:+4312>;q=1"),
        ("<urn:service:sos.police>", "<urn:service:sos.police>"),
        ("<http://10.2.0.7/>, <mailto:bob@10.2.0.7>", ""),
    ] {
        assert_eq!(redirected(&named, false, contact), expected, "{contact}");
    }
}

/// Where nothing is hidden, only our own address differs.
#[test]
fn redirects_of_phones_name_our_address_on_the_side_of_the_core() {
    for (contact, expected) in [
        (
            "<sip:205@192.0.2.1:5060>;q=0.5",
            "<sip:205@198.51.100.1:5060>;q=0.5",
        ),
        (
            "\"Bob\" <sip:bob@10.1.0.8;x=y>;q=0.5",
            "\"Bob\" <sip:bob@10.1.0.8;x=y>;q=0.5",
        ),
    ] {
        assert_eq!(redirected(&with_phone(), true, contact), expected);
    }
}

/// The interface of phones with a TLS listener.
fn with_tls() -> String {
    PLAIN.replace(
        "'tcp:192.0.2.1:5060']",
        "'tls:192.0.2.1:5061']\ntls={certificate={chain='c.pem',key='c.key'}}",
    )
}

/// RFC 3263 section 4.1: without a parameter, an address in a sip URI is reached over UDP.
#[test]
fn targets_at_the_border_name_the_transport_of_the_phone() {
    let tls = with_tls();
    for (transport, config, contact, expected) in [
        (
            Transport::Tcp,
            PLAIN,
            "<sip:bob@10.2.0.8;transport=udp>;q=0.5",
            "<sip:bob@192.0.2.1:5060;transport=tcp>;q=0.5",
        ),
        (
            Transport::Tls,
            &tls,
            "<sip:bob@198.51.100.1>",
            "<sip:bob@192.0.2.1:5061;transport=tls>",
        ),
        (
            Transport::Tls,
            &tls,
            "<sips:bob@10.2.0.8>",
            "<sips:bob@192.0.2.1:5061>",
        ),
    ] {
        let relayed = redirected_over(transport, config, false, contact);
        assert_eq!(relayed, expected, "{contact}");
    }
    for (transport, config, expected) in [
        (
            Transport::Tcp,
            PLAIN,
            "<sip:205@192.0.2.1:5060;user=phone;transport=tcp>",
        ),
        (
            Transport::Tls,
            &tls,
            "<sip:205@192.0.2.1:5061;user=phone;transport=tls>",
        ),
    ] {
        // A system of the core, and our address on its side.
        for host in ["10.2.0.1", "198.51.100.1"] {
            let target = format!("<sip:205@{host};transport=udp;user=phone>");
            assert_eq!(referred_over(transport, config, &target), expected);
        }
    }
}

/// Refer-To as a phone gets it from the core.
fn referred(config: &str, target: &str) -> String {
    referred_over(Transport::Udp, config, target)
}

fn referred_over(transport: Transport, config: &str, target: &str) -> String {
    let mut net = VirtualNetwork::new(config, 3);
    let phone = PhoneBehaviour::answering(SDP_A);
    let alice = net.phone_over("10.1.0.1:5060", transport, phone);
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let hop = border_over(transport);
    net.call_with(alice, "sip:bob@192.0.2.1", hop, &offer, |invite| {
        invite.target.flow.transport = transport;
    });
    net.run(seconds(1));
    let leg: LegId = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: target.as_bytes(),
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.request(leg, Method::Refer, &content, now).unwrap();
    });
    net.run(seconds(1));
    let refer = net.find(alice, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(refer.method(), "REFER");
    refer.header("Refer-To")
}

/// A PBX writes its own address in Refer-To of a blind transfer: the phone reaches it through the border only.
#[test]
fn transfers_of_the_core_lead_phones_to_the_border() {
    for (target, expected) in [
        ("<sip:205@10.2.0.1>", "<sip:205@192.0.2.1:5060>"),
        (
            "\"Carol\" <sip:205@10.2.0.7:5070;transport=tcp;user=phone?Replaces=a%40h%3Bto-tag%3D1%3Bfrom-tag%3D2>",
            "\"Carol\" <sip:205@192.0.2.1:5060;user=phone?Replaces=a%40h%3Bto-tag%3D1%3Bfrom-tag%3D2>",
        ),
        (
            "<sip:carol@elsewhere.example>",
            "<sip:carol@elsewhere.example>",
        ),
        ("<tel:+4312>", "<tel:+4312>"),
    ] {
        assert_eq!(referred(PLAIN, target), expected, "{target}");
    }
    let passed = PLAIN.replace(
        "kind='access'\n",
        "kind='access'\npass_headers=['Refer-To']\n",
    );
    assert_eq!(
        referred(&passed, "<sip:205@10.2.0.1>"),
        "<sip:205@10.2.0.1>"
    );
    let trusted = PLAIN.replace("kind='access'\n", "kind='access'\nheaders='all'\n");
    assert_eq!(
        referred(&trusted, "<sip:205@10.2.0.1>"),
        "<sip:205@10.2.0.1>"
    );
}

/// The claims of a phone about its network and identity, in REGISTER as in every other request.
#[test]
fn registers_cross_the_boundary_of_trust() {
    let claims: [(&[u8], &[u8]); 7] = [
        (
            b"P-Access-Network-Info",
            b"3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=1, 3GPP-GERAN;network-provided",
        ),
        (b"P-Charging-Vector", b"icid-value=1;orig-ioi=other.example"),
        (b"P-Visited-Network-ID", b"\"visited.example\""),
        (b"P-Asserted-Identity", b"<sip:ceo@core.example>"),
        (b"Warning", b"399 10.1.0.1 \"odd\""),
        (b"Subject", b"kept"),
        (b"X-Node", b"10.1.0.1"),
    ];
    let edits = claims.map(|(name, value)| Edit::AddNamed { name, value });
    let pass = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let registered = |config: &str| {
        let mut net = VirtualNetwork::new(config, 3);
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        let flow = net.flow(alice, OUT, Transport::Udp);
        let user: &[u8] = b"<sip:1000@10.1.0.1>";
        net.command(alice, |endpoint, now| {
            let contact = Edit::Replace {
                id: HeaderId::Contact,
                value: user,
            };
            let edits: Vec<Edit<'_>> = edits.iter().copied().chain([contact]).collect();
            let outside = sip::OutOfDialogRequest {
                from: Some(user),
                to: Some(user),
                content: MessageContent::default().with(&edits),
                ..sip::OutOfDialogRequest::new(
                    Method::Register,
                    sip::Target::new(b"sip:192.0.2.1", flow),
                )
            };
            endpoint.send(&outside, now).unwrap();
        });
        net.run(seconds(1));
        let is_request = |event: &PhoneEvent| matches!(event, PhoneEvent::OutOfDialog(_));
        let register = net.find(bob, is_request);
        claims.map(|(name, _)| register.header(std::str::from_utf8(name).unwrap()))
    };
    let cell = "3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=1";
    let warning = "399 hornwork \"odd\"";
    assert_eq!(
        registered(&pass),
        [cell, "", "", "", warning, "kept", "10.1.0.1"]
    );
    // A core that gets known headers only.
    let known = pass.replace("kind='core'\n", "kind='core'\nheaders='known'\n");
    let standard = "399 hornwork \"Miscellaneous warning\"";
    assert_eq!(registered(&known), [cell, "", "", "", standard, "kept", ""]);
    // Proxies of the same network in front of us are believed.
    let trusted = pass.replace("kind='access'\n", "kind='access'\ntrusted=true\n");
    let mut expected = claims.map(|(_, value)| String::from_utf8(value.to_vec()).unwrap());
    expected[3] = "<sip:ceo@198.51.100.1:5060>".to_owned();
    assert_eq!(registered(&trusted), expected);
}
