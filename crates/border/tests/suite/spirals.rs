//! A proxy in the core, which sends requests of phones back to the border: spirals, forks, and loops (RFC 5393).

use crate::virtual_network;

use engine::Transport;
use sip::{Failure, Flow, MessageContent, OutOfDialogRequest, Target};
use std::net::SocketAddr;
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";
const PROXY: &str = "10.2.0.1:5060";

/// A phone and the proxy, which answers nothing by itself.
fn network(config: &str) -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut silent = PhoneBehaviour::answering("");
    silent.silent = true;
    silent.outside = None;
    let proxy = net.phone(PROXY, silent);
    (net, alice, proxy)
}

fn forwarding() -> String {
    PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n")
}

fn run(net: &mut VirtualNetwork) {
    net.run(Duration::from_millis(100));
}

/// Sends a request outside of dialogs from a phone to the border.
fn send(net: &mut VirtualNetwork, phone: usize, method: Method<'static>, to: &str, contact: &str) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    let (edits, uri) = match method {
        Method::Register => (&edits[..], "sip:192.0.2.1"),
        _ => (&edits[..0], to),
    };
    let to = format!("<{to}>");
    net.command(phone, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(to.as_bytes()),
            to: Some(to.as_bytes()),
            content: MessageContent::default().with(edits),
            ..OutOfDialogRequest::new(method, Target::new(uri.as_bytes(), flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    run(net);
}

/// A new phone of user 1001, registered at the proxy. Returns the URI by which the proxy reaches it.
fn registered(net: &mut VirtualNetwork, proxy: usize, address: &str) -> (usize, String) {
    let phone = net.phone(address, PhoneBehaviour::answering(SDP_B));
    let contact = format!("<sip:1001@{address}>");
    send(net, phone, Method::Register, "sip:1001@192.0.2.1", &contact);
    let request = net.last(proxy, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    let contact = request.header("Contact");
    let PhoneEvent::OutOfDialog(transaction) = request.event else {
        unreachable!()
    };
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.command(proxy, |endpoint, now| {
        let content = MessageContent::default();
        endpoint
            .respond(transaction, 200, &content.with(&edits), now)
            .unwrap();
    });
    run(net);
    assert!(net.has(phone, |event| *event
        == PhoneEvent::OutOfDialogResponse(200)));
    let uri = contact.trim_start_matches('<').split('>').next().unwrap();
    (phone, uri.to_owned())
}

/// Sends a call or a MESSAGE to the border.
fn request(net: &mut VirtualNetwork, phone: usize, method: Method<'static>, uri: &str) {
    match method {
        Method::Invite => {
            net.call(phone, uri, OUT, &MessageContent::sdp(SDP_A.as_bytes()));
            run(net);
        }
        method => send(net, phone, method, uri, ""),
    }
}

fn is_request(event: &PhoneEvent) -> bool {
    matches!(event, PhoneEvent::Offered | PhoneEvent::OutOfDialog(_))
}

fn requests(net: &VirtualNetwork, phone: usize) -> usize {
    let events = net.phone_events(phone);
    events.iter().filter(|event| is_request(event)).count()
}

/// The proxy forwards its last request to the border, with another Request-URI or unchanged.
fn forward(net: &mut VirtualNetwork, proxy: usize, uri: Option<&str>, branch: &str) {
    let text = net.last(proxy, is_request).text();
    let hops = Message::parse(text.as_bytes())
        .unwrap()
        .max_forwards()
        .unwrap();
    let (line, rest) = text.split_once("\r\n").unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let rest = rest.replace(
        &format!("Max-Forwards: {hops}\r\n"),
        &format!("Max-Forwards: {}\r\n", hops - 1),
    );
    let text = format!(
        "{} {} SIP/2.0\r\nVia: SIP/2.0/UDP {PROXY};branch=z9hG4bK{branch}\r\n{rest}",
        words[0],
        uri.unwrap_or(words[1])
    );
    net.send_raw(PROXY, IN, text.as_bytes());
    run(net);
}

/// The responses with this status that the border has sent to the proxy.
fn answers(net: &VirtualNetwork, status: u16) -> Vec<String> {
    let proxy: SocketAddr = PROXY.parse().unwrap();
    let start = format!("SIP/2.0 {status} ");
    let sent = net.wire.iter().filter(|(to, _)| *to == proxy);
    sent.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
        .filter(|text| text.starts_with(&start))
        .collect()
}

/// The proxy returns the last response with this status, without its Via.
fn return_answer(net: &mut VirtualNetwork, status: u16) {
    let mut text = answers(net, status).pop().expect("a response");
    let from = text.find("Via: ").unwrap();
    let end = from + text[from..].find("\r\n").unwrap() + 2;
    text.replace_range(from..end, "");
    net.send_raw(PROXY, IN, text.as_bytes());
    run(net);
}

#[test]
fn phones_reach_each_other_through_a_proxy_of_the_core() {
    for method in [Method::Invite, Method::Message] {
        let (mut net, alice, proxy) = network(&forwarding());
        let (bob, uri) = registered(&mut net, proxy, "10.1.0.2:5060");
        net.wire.clear();
        request(&mut net, alice, method, "sip:1001@192.0.2.1");
        forward(&mut net, proxy, Some(&uri), "one");
        assert_eq!(answers(&net, 482), [""; 0]);
        // Each passage, through the border twice and through the proxy, is a hop.
        let received = net.last(bob, is_request);
        assert_eq!(received.header("Max-Forwards"), "67", "{}", received.text());
        return_answer(&mut net, 200);
        let answered = match method {
            Method::Invite => PhoneEvent::Answered,
            _ => PhoneEvent::OutOfDialogResponse(200),
        };
        assert!(
            net.has(alice, |event| *event == answered),
            "{:?}",
            net.phone_events(alice)
        );
    }
}

/// The proxy selects the next hop and leaves the Request-URI as it is.
#[test]
fn call_goes_through_a_proxy_of_the_core_to_a_carrier() {
    let config = format!(
        "{PLAIN}[[trunk]]\nname='carrier'\ninterface='in'\ntarget='udp:10.2.0.5:5060'\n\
         [[route]]\nfrom_trunk='pbx'\ntrunk='carrier'\n[[route]]\ntrunk='pbx'\n"
    );
    let (mut net, alice, proxy) = network(&config);
    let carrier = net.phone("10.2.0.5:5060", PhoneBehaviour::answering(SDP_B));
    request(&mut net, alice, Method::Invite, "sip:+4930123456@192.0.2.1");
    forward(&mut net, proxy, None, "one");
    assert_eq!(answers(&net, 482), [""; 0]);
    assert_eq!(requests(&net, carrier), 1);
    return_answer(&mut net, 200);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// RFC 3261 section 8.2.2.2 is for one user agent: the phones behind the border are several.
#[test]
fn forks_of_a_proxy_ring_several_phones_of_a_user() {
    let (mut net, alice, proxy) = network(&forwarding());
    let phones =
        ["10.1.0.2:5060", "10.1.0.3:5060"].map(|address| registered(&mut net, proxy, address));
    for (phone, _) in &phones {
        net.phones[*phone].log.behaviour.answer = None;
    }
    request(&mut net, alice, Method::Invite, "sip:1001@192.0.2.1");
    for (phone, uri) in &phones {
        forward(&mut net, proxy, Some(uri), &format!("fork{phone}"));
    }
    for (phone, _) in &phones {
        assert_eq!(requests(&net, *phone), 1);
    }
    assert_eq!(answers(&net, 482), [""; 0]);
    // The same branch by another path is a merged request.
    forward(&mut net, proxy, Some(&phones[0].1), "again");
    assert_eq!(answers(&net, 482).len(), 1);
    assert_eq!(requests(&net, phones[0].0), 1);
}

/// A route leads requests of the proxy back to it.
#[test]
fn loop_through_a_proxy_is_detected() {
    for method in [Method::Invite, Method::Message] {
        let (mut net, alice, proxy) = network(&format!("{PLAIN}[[route]]\ntrunk='pbx'\n"));
        request(&mut net, alice, method, "sip:1001@192.0.2.1");
        for round in 0..10 {
            if !answers(&net, 482).is_empty() {
                break;
            }
            forward(&mut net, proxy, None, &format!("round{round}"));
        }
        // The first time it comes from the phone, then from the proxy.
        assert_eq!(answers(&net, 482).len(), 1);
        assert_eq!(requests(&net, proxy), 2);
    }
}

/// The last INVITE of a phone is redirected to this contact.
fn redirect(net: &mut VirtualNetwork, phone: usize, contact: &str) {
    let leg = net.last(phone, |event| *event == PhoneEvent::Offered).leg;
    let edits = [Edit::Add {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.command(phone, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.reject(leg.unwrap(), 302, &content, now).unwrap();
    });
    run(net);
}

/// RFC 3261 section 8.3: a redirect server answers with the Contacts that it has. Those of our phones are ours.
#[test]
fn redirect_server_in_the_core_reaches_registered_phones() {
    let config = format!("{}redirect='follow'\n", forwarding());
    let (mut net, alice, proxy) = network(&config);
    let (phone, uri) = registered(&mut net, proxy, "10.1.0.2:5060");
    request(&mut net, alice, Method::Invite, "sip:1001@192.0.2.1");
    redirect(&mut net, proxy, &format!("<{uri}>"));
    net.run(seconds(1));
    let offered = net.find(phone, |event| *event == PhoneEvent::Offered);
    let start = "INVITE sip:1001@10.1.0.2:5060 ";
    assert!(offered.text().starts_with(start), "{}", offered.text());
    assert!(net.has(phone, |event| *event == PhoneEvent::Acked));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// A redirect to our address is a call of the trunk to another user. It ends where the target would be the same.
#[test]
fn redirects_to_our_address_follow_the_routes_of_the_trunk() {
    let config = format!(
        "{PLAIN}redirect='follow'\n[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={{user='carol'}}\ntrunk='other'\n[[route]]\nto={{user='barred'}}\nreject=403\n\
         [[route]]\ntrunk='pbx'\n"
    );
    let call = |foreign: bool, contact: &str| {
        let (mut net, alice, proxy) = network(&config);
        let carol = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
        request(&mut net, alice, Method::Invite, "sip:bob@192.0.2.1");
        let redirecting = match foreign {
            true => {
                let mut silent = PhoneBehaviour::answering("");
                silent.silent = true;
                let host = net.phone("10.2.0.9:5060", silent);
                redirect(&mut net, proxy, "<sip:bob@10.2.0.9:5060>");
                host
            }
            false => proxy,
        };
        redirect(&mut net, redirecting, contact);
        net.run(seconds(1));
        let calls = [proxy, carol].map(|phone| requests(&net, phone));
        let is_refused = net.has(alice, |event| {
            *event == PhoneEvent::Failed(Failure::Response, 302)
        });
        (calls, is_refused)
    };
    // Another trunk; the trunk itself with another number.
    assert_eq!(
        call(false, "<sip:carol@198.51.100.1:5060>"),
        ([1, 1], false)
    );
    assert_eq!(call(false, "<sip:carol@192.0.2.1>"), ([1, 1], false));
    assert_eq!(call(false, "<sip:dave@198.51.100.1>"), ([2, 0], false));
    // The same target again, and one that the routes refuse.
    assert_eq!(call(false, "<sip:bob@198.51.100.1>"), ([1, 0], true));
    assert_eq!(call(false, "<sip:barred@198.51.100.1>"), ([1, 0], true));
    // Another host has no rights of the trunk.
    assert_eq!(call(true, "<sip:carol@198.51.100.1>"), ([1, 0], true));
}

/// RFC 3261 section 8.1.3.4: a contact that refuses does not end the list, also where a route has its target. The other
/// trunk of that route is for outages.
#[test]
fn contacts_at_our_address_are_called_one_after_the_other() {
    let config = format!(
        "{PLAIN}redirect='follow'\n[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.3:5060'\n\
         [[route]]\nto={{user='carol'}}\ntrunk=['other','spare']\n[[route]]\ntrunk='pbx'\n"
    );
    let contacts = [
        "<sip:carol@198.51.100.1>;q=0.9, <sip:dave@198.51.100.1>;q=0.1",
        "<sip:x@10.2.0.2>;q=0.9, <sip:dave@198.51.100.1>;q=0.1",
    ];
    for contact in contacts {
        for (status, dave_is_called) in [(486, true), (404, true), (603, false)] {
            let (mut net, alice, proxy) = network(&config);
            let mut busy = PhoneBehaviour::answering(SDP_B);
            busy.answer = Some(status);
            let carol = net.phone("10.2.0.2:5060", busy);
            let spare = net.phone("10.2.0.3:5060", PhoneBehaviour::answering(SDP_B));
            request(&mut net, alice, Method::Invite, "sip:bob@192.0.2.1");
            redirect(&mut net, proxy, contact);
            net.run(seconds(1));
            let calls = [carol, spare, proxy].map(|phone| requests(&net, phone));
            let expected = [1, 0, 1 + usize::from(dave_is_called)];
            assert_eq!(calls, expected, "{contact} {status}");
        }
    }
}

/// Trunks of one domain have the same Request-URI, and are different targets.
#[test]
fn redirect_server_reaches_another_trunk_of_its_domain() {
    let config = format!(
        "{PLAIN}redirect='follow'\ndomain='example.com'\n\
         [[trunk]]\nname='gateway'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\ndomain='example.com'\n\
         [[route]]\nfrom_trunk='pbx'\ntrunk='gateway'\n[[route]]\ntrunk='pbx'\n"
    );
    let (mut net, alice, proxy) = network(&config);
    let gateway = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    request(&mut net, alice, Method::Invite, "sip:bob@192.0.2.1");
    redirect(&mut net, proxy, "<sip:bob@198.51.100.1>");
    net.run(seconds(1));
    assert_eq!(requests(&net, gateway), 1);
    let uris = [proxy, gateway].map(|phone| {
        let offered = net.find(phone, |event| *event == PhoneEvent::Offered);
        offered.text().split(' ').nth(1).map(str::to_owned)
    });
    assert_eq!(uris[0], uris[1]);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// The media of a redirect server bypasses the border; that of the target has to be anchored.
#[test]
fn redirected_call_is_anchored_as_the_route_of_its_target_demands() {
    let routes = "[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={user='carol'}\ntrunk='other'\n[[route]]\ntrunk='pbx'\nmedia='bypass'\n";
    let redirected = |config: &str| {
        let target = "target='udp:10.2.0.1:5060'\n";
        let config = config.replace(target, &format!("{target}redirect='follow'\n"));
        let (mut net, alice, proxy) = network(&format!("{config}{routes}"));
        let carol = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
        request(&mut net, alice, Method::Invite, "sip:bob@192.0.2.1");
        let offered = net.find(proxy, |event| *event == PhoneEvent::Offered);
        assert_eq!(offered.body(), SDP_A);
        redirect(&mut net, proxy, "<sip:carol@198.51.100.1>");
        net.run(seconds(1));
        (net, alice, carol)
    };
    let (net, alice, carol) = redirected(PLAIN);
    for (phone, event, address) in [
        (carol, PhoneEvent::Offered, "c=IN IP4 198.51.100.1\r\n"),
        (alice, PhoneEvent::Answered, "c=IN IP4 192.0.2.1\r\n"),
    ] {
        let body = net.find(phone, |logged| *logged == event).body();
        assert!(body.contains(address), "{body}");
    }
    // A call has its media node from the beginning.
    let (net, alice, carol) = redirected(&crate::ng_client::config(""));
    assert_eq!(requests(&net, carol), 0);
    assert!(net.has(alice, |event| {
        *event == PhoneEvent::Failed(Failure::Response, 302)
    }));
}
