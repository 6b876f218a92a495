//! A phone against a scripted peer, in virtual time.

use super::plan::{AnswerPlan, HostPlan, LoginTemplates, MediaKind, RegistrationPlan};
use super::{LabHost, PhoneOccurrence};
use crate::link;
use crate::pace::ArrivalProcess;
use crate::phone::voice_call;
use crate::record::{AttemptOutcome, StreamRecord};
use codec::Format;
use engine::{
    CloseReason, ConnectionId, Datagram, DropReason, Engine as _, Entropy, Input, Output, SocketId,
    Time, Transport,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const PHONE: &str = "192.0.2.1:5060";
const PEER: &str = "192.0.2.9:5060";
/// The address of the peer's media.
const PEER_MEDIA: &str = "192.0.2.9:7000";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A description of the peer.
fn sdp(direction: &str) -> String {
    format!(
        "v=0\r\no=- 1 1 IN IP4 192.0.2.9\r\ns=-\r\nc=IN IP4 192.0.2.9\r\nt=0 0\r\nm=audio 7000 RTP/AVP 8\r\na={direction}\r\n"
    )
}

/// The value of the first header of this name.
fn header<'m>(message: &'m str, name: &str) -> &'m str {
    let mut lines = message.split("\r\n");
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("{name}: {message}"))
}

fn with_body(head: &str, body: &str) -> String {
    let kind = match body.is_empty() {
        true => "",
        false => "Content-Type: application/sdp\r\n",
    };
    format!("{head}{kind}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// The response of the peer to a request of the phone, with further headers.
fn response(request: &str, status: &str, more: &str, body: &str) -> String {
    let to = header(request, "To");
    let tag = if to.contains("tag=") { "" } else { ";tag=peer" };
    let head = format!(
        "SIP/2.0 {status}\r\nVia: {}\r\nFrom: {}\r\nTo: {to}{tag}\r\nCall-ID: {}\r\nCSeq: {}\r\nContact: <sip:peer@{PEER}>\r\n{more}",
        header(request, "Via"),
        header(request, "From"),
        header(request, "Call-ID"),
        header(request, "CSeq"),
    );
    with_body(&head, body)
}

/// A request of the peer: `of` has the names of its dialog from the peer's view, and `number` is its CSeq.
fn request(method: &str, number: u32, of: &PeerDialog, body: &str) -> String {
    let kind = match method {
        "ACK" => "INVITE",
        method => method,
    };
    let head = format!(
        "{method} sip:phone@{PHONE} SIP/2.0\r\nVia: SIP/2.0/UDP {PEER};branch=z9hG4bK{kind}{number}{}{}\r\nMax-Forwards: 70\r\n\
         From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {number} {method}\r\nContact: <sip:peer@{PEER}>\r\n",
        of.id,
        if method == "ACK" { "a" } else { "" },
        of.own,
        of.phone,
        of.id,
    );
    with_body(&head, body)
}

/// The names of a dialog from the peer's view.
struct PeerDialog {
    own: String,
    phone: String,
    id: String,
}

/// A phone with its outputs.
struct Bench {
    host: LabHost,
    now: Time,
    /// SIP that the phone has sent.
    sent: Vec<String>,
    /// RTP packets that it has sent.
    packets: usize,
    /// Media sockets by their ports.
    media: BTreeMap<u16, SocketId>,
    /// Connections that it has opened.
    connections: Vec<ConnectionId>,
}

impl Bench {
    fn new(plan: HostPlan) -> Bench {
        let mut bench = Bench {
            host: LabHost::new(plan, Entropy::from_number(1)),
            now: Time::from_millis(1_000),
            sent: Vec::new(),
            packets: 0,
            media: BTreeMap::new(),
            connections: Vec::new(),
        };
        bench.drain();
        assert!(bench.host.is_ready());
        bench.host.begin(address(PEER), bench.now);
        bench.wait(seconds(0.001));
        bench
    }

    fn drain(&mut self) {
        loop {
            let mut opened = None;
            match self.host.next_output() {
                None => return,
                Some(Output::OpenSocket { socket, local, .. }) => {
                    let mut local = local;
                    if local.port() == 0 {
                        local.set_port(6_000 + socket.0 as u16);
                        self.media.insert(local.port(), socket);
                    }
                    opened = Some((socket, local));
                }
                Some(Output::Datagram { socket, bytes, .. }) if socket.0 < 16 => {
                    self.sent.push(String::from_utf8_lossy(bytes).into_owned());
                }
                Some(Output::Datagram { destination, .. }) => {
                    self.packets += usize::from(destination == address(PEER_MEDIA));
                }
                Some(Output::Connect { connection, .. }) => self.connections.push(connection),
                Some(Output::Stream { bytes, .. }) => {
                    self.sent.push(String::from_utf8_lossy(bytes).into_owned());
                }
                Some(_) => {}
            }
            if let Some((socket, local)) = opened {
                self.host.handle(Input::Opened { socket, local }, self.now);
            }
        }
    }

    fn input(&mut self, input: Input<'_>) {
        self.host.handle(input, self.now);
        self.drain();
    }

    /// Lets this time pass.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(deadline) = self.host.next_deadline().filter(|next| next.at <= until) {
            self.now = self.now.max(deadline.at);
            self.input(Input::Timeout);
        }
        self.now = until;
    }

    fn receive(&mut self, message: &str) {
        let mut bytes = message.as_bytes().to_vec();
        let arrived = self.now;
        self.input(Input::Datagram(Datagram {
            socket: SocketId(0),
            source: address(PEER),
            arrived,
            bytes: &mut bytes,
        }));
    }

    /// An RTP packet of the peer in PCMA, at the media socket that the phone's description names.
    fn receive_packet(&mut self, description: &str, number: u16) {
        let mut packet = vec![0x80, 8];
        packet.extend(number.to_be_bytes());
        packet.extend((u32::from(number) * 160).to_be_bytes());
        packet.extend([0, 0, 0, 9]);
        packet.resize(172, 0xd5);
        let port = description.split_once("m=audio ").unwrap().1;
        let port: u16 = port.split(' ').next().unwrap().parse().unwrap();
        let (socket, arrived) = (self.media[&port], self.now);
        self.input(Input::Datagram(Datagram {
            socket,
            source: address(PEER_MEDIA),
            arrived,
            bytes: &mut packet,
        }));
    }

    /// The message with this beginning, the last one that the phone has sent.
    fn last(&self, beginning: &str) -> String {
        let mut sent = self.sent.iter().rev();
        let found = sent.find(|message| message.starts_with(beginning));
        found
            .unwrap_or_else(|| panic!("{beginning}: {:#?}", self.sent))
            .clone()
    }

    fn count(&self, beginning: &str) -> usize {
        let sent = self.sent.iter();
        sent.filter(|message| message.starts_with(beginning))
            .count()
    }

    /// RTP packets that the phone sends within this time.
    fn packets_in(&mut self, time: Duration) -> usize {
        let before = self.packets;
        self.wait(time);
        self.packets - before
    }

    fn events(&mut self) -> Vec<PhoneOccurrence> {
        std::iter::from_fn(|| self.host.next_phone_event()).collect()
    }

    fn streams(&mut self) -> Vec<StreamRecord> {
        link::complete(self.host.finish(self.now).streams)
    }

    /// A phone in a call that it has begun, the peer's answer has this direction. Returns the INVITE and the dialog.
    fn in_call(direction: &str) -> (Bench, String, PeerDialog) {
        let mut bench = Bench::new(calling());
        let invite = bench.last("INVITE");
        let answer = response(&invite, "200 OK", "", &sdp(direction));
        bench.receive(&answer);
        bench.last("ACK");
        let dialog = PeerDialog {
            own: header(&answer, "To").to_owned(),
            phone: header(&answer, "From").to_owned(),
            id: header(&answer, "Call-ID").to_owned(),
        };
        (bench, invite, dialog)
    }

    /// The answer to the last registration of the phone.
    fn registered(&mut self, contacts: &str) -> String {
        let register = self.last("REGISTER");
        let head = format!("Contact: {contacts}\r\n");
        response(&register, "200 OK", "", "")
            .replace(&format!("Contact: <sip:peer@{PEER}>\r\n"), &head)
    }
}

fn calling() -> HostPlan {
    voice_call(address(PHONE), address(PEER), Duration::from_secs(60)).unwrap()
}

fn answering() -> HostPlan {
    let mut plan = calling();
    plan.calls.clear();
    let mut answers = AnswerPlan::new("phone", MediaKind::Speech);
    answers.expects = MediaKind::Speech;
    plan.answers = Some(answers);
    plan
}

fn registering(transport: Transport) -> HostPlan {
    let mut plan = calling();
    plan.calls.clear();
    plan.stream = (transport != Transport::Udp).then_some(transport);
    plan.listens = false;
    plan.registrations = Some(RegistrationPlan {
        name: "phone".to_owned(),
        pace: ArrivalProcess::Constant { rate: 1.0 },
        users: 1,
        login: LoginTemplates {
            user: "1000".to_owned(),
            password: String::new(),
        },
        domain: "example.net".to_owned(),
        expires: 600,
        refresh: None,
        follows_expiry: true,
        refreshes: u32::MAX,
        refresh_rate: 0.0,
        remove: false,
        transport,
        connections: 1,
    });
    plan
}

/// A dialog that the peer opens.
fn from_peer(number: u32) -> PeerDialog {
    PeerDialog {
        own: format!("<sip:a@{PEER}>;tag={number}"),
        phone: format!("<sip:600@{PHONE}>"),
        id: format!("call-{number}"),
    }
}

#[test]
fn answer_in_a_reliable_provisional_response_gives_media() {
    let mut bench = Bench::new(calling());
    let invite = bench.last("INVITE");
    let reliable = "Require: 100rel\r\nRSeq: 1\r\n";
    bench.receive(&response(
        &invite,
        "183 Session Progress",
        reliable,
        &sdp("sendrecv"),
    ));
    let prack = bench.last("PRACK");
    bench.receive(&response(&prack, "200 OK", "", ""));
    // The answer was given: there is none in the 2xx (RFC 6337 section 3.1.1).
    bench.receive(&response(&invite, "200 OK", "", ""));
    bench.last("ACK");
    let events = bench.events();
    let established = events
        .iter()
        .find(|event| matches!(event, PhoneOccurrence::Established { .. }));
    let Some(PhoneOccurrence::Established { format, .. }) = established else {
        panic!("{events:?}");
    };
    assert_eq!(*format, Some(Format::Pcma));
    assert!(bench.packets_in(seconds(1.0)) > 40);
}

/// The border sends RTCP to the port above that of RTP, which may be that of SIP.
#[test]
fn rtcp_at_the_sip_port_is_no_malformed_message() {
    let mut bench = Bench::new(answering());
    let mut unparsable = |mut bytes: Vec<u8>| {
        let arrived = bench.now;
        bench.input(Input::Datagram(Datagram {
            socket: SocketId(0),
            source: address(PEER_MEDIA),
            arrived,
            bytes: &mut bytes,
        }));
        bench.host.drops().get(DropReason::SipUnparsable)
    };
    // A sender report and a receiver report without blocks (RFC 3550 section 6.4).
    let report = |kind: u8, words: u8| {
        let mut report = vec![0x80, kind, 0, words];
        report.resize(4 + 4 * usize::from(words), 7);
        report
    };
    assert_eq!(unparsable(report(200, 6)), 0);
    assert_eq!(unparsable(report(201, 1)), 0);
    assert_eq!(unparsable(b"no SIP".to_vec()), 1);
}

/// A caller of the load generator; a phone takes such answers as other phones do.
#[test]
fn answer_to_another_request_is_a_failure_of_its_own() {
    let judged = |is_phone: bool, from: &str, to: &str| {
        let mut plan = calling();
        if !is_phone {
            plan.phone = None;
        }
        let mut bench = Bench::new(plan);
        let invite = bench.last("INVITE");
        let answer = response(&invite, "200 OK", "", &sdp("sendrecv"));
        let changed = answer.replacen(from, to, 1);
        assert!(from == to || changed != answer, "{from}: {answer}");
        bench.receive(&changed);
        bench.last("ACK");
        let results = bench.host.finish(bench.now);
        let attempt = results.attempts.first().unwrap().clone();
        (attempt, results.mismatched)
    };
    let (attempt, mismatched) = judged(false, "", "");
    assert_eq!(
        (attempt.outcome, mismatched),
        (AttemptOutcome::Unfinished, 0)
    );
    assert!(attempt.established.is_some());
    for (from, to, field) in [
        ("Call-ID: ", "Call-ID: x", "Call-ID of a response"),
        ("CSeq: ", "CSeq: 7", "CSeq of a response"),
        (";tag=", ";tag=x", "From tag of a response"),
    ] {
        let (attempt, mismatched) = judged(false, from, to);
        assert_eq!(
            (attempt.outcome, mismatched),
            (AttemptOutcome::Mismatched, 1)
        );
        assert!(attempt.why.contains(field), "{}", attempt.why);
        assert_eq!(attempt.established, None);
    }
    assert_eq!(judged(true, "Call-ID: ", "Call-ID: x").1, 0);
}

#[test]
fn refused_hold_changes_nothing() {
    let (mut bench, _, dialog) = Bench::in_call("sendrecv");
    bench.host.hold(true, bench.now).unwrap();
    bench.drain();
    let hold = bench.last("INVITE");
    assert!(hold.contains("a=sendonly"), "{hold}");
    bench.receive(&response(&hold, "488 Not Acceptable Here", "", ""));
    assert!(!bench.host.is_holding());
    // A session refresh of the peer.
    bench.receive(&request("INVITE", 7, &dialog, &sdp("sendrecv")));
    let answer = bench.last("SIP/2.0 200");
    assert!(answer.contains("a=sendrecv"), "{answer}");
    bench.receive(&request("ACK", 7, &dialog, ""));
    assert!(bench.packets_in(seconds(1.0)) > 40);
}

#[test]
fn offer_on_request_of_the_peer_does_not_end_a_hold() {
    let (mut bench, _, dialog) = Bench::in_call("sendrecv");
    bench.host.hold(true, bench.now).unwrap();
    bench.drain();
    let hold = bench.last("INVITE");
    bench.receive(&response(&hold, "200 OK", "", &sdp("recvonly")));
    assert_eq!(bench.packets_in(seconds(1.0)), 0);
    bench.receive(&request("INVITE", 7, &dialog, ""));
    let offer = bench.last("SIP/2.0 200");
    assert!(offer.contains("a=sendonly"), "{offer}");
    bench.receive(&request("ACK", 7, &dialog, &sdp("recvonly")));
    assert_eq!(bench.packets_in(seconds(1.0)), 0);
    assert!(bench.host.is_holding());
}

#[test]
fn second_call_is_refused_and_reported_with_its_own_number() {
    let mut bench = Bench::new(answering());
    let first = from_peer(1);
    bench.receive(&request("INVITE", 1, &first, &sdp("sendrecv")));
    let answer = bench.last("SIP/2.0 200");
    // It takes over no other call (RFC 3891).
    assert!(
        !header(&answer, "Supported").contains("replaces"),
        "{answer}"
    );
    let first = PeerDialog {
        phone: header(&answer, "To").to_owned(),
        ..first
    };
    bench.receive(&request("ACK", 1, &first, ""));
    let events = bench.events();
    let [
        PhoneOccurrence::Incoming { call: offered, .. },
        PhoneOccurrence::Established { call, .. },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(offered, call);
    bench.receive(&request("INVITE", 1, &from_peer(2), &sdp("sendrecv")));
    bench.last("SIP/2.0 486");
    let events = bench.events();
    let [
        PhoneOccurrence::Ended {
            call: other,
            status: 486,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_ne!(other, call);
    assert!(bench.packets_in(seconds(1.0)) > 40);
    // It answers one call.
    bench.receive(&request("BYE", 2, &first, ""));
    bench.receive(&request("INVITE", 1, &from_peer(3), &sdp("sendrecv")));
    bench.last("SIP/2.0 480");
}

#[test]
fn audio_that_stops_is_lost() {
    for (direction, received, lost) in [
        ("sendrecv", 100, true),
        ("sendrecv", 0, true),
        ("recvonly", 0, false),
    ] {
        let (mut bench, invite, dialog) = Bench::in_call(direction);
        for number in 0..received {
            bench.receive_packet(&invite, number);
            bench.wait(seconds(0.02));
        }
        bench.wait(seconds(6.0));
        bench.receive(&request("BYE", 7, &dialog, ""));
        let events = bench.events();
        let no_media = events.iter().any(|event| {
            matches!(event, PhoneOccurrence::Ended { outcome, .. } if outcome.name() == "no_media")
        });
        assert_eq!(no_media, received == 0 && lost, "{events:?}");
        let stream = bench.streams().remove(0);
        assert_eq!(
            stream.lost > 200,
            lost,
            "{direction}, {received}: {stream:?}"
        );
    }
}

#[test]
fn registration_is_refreshed_by_the_lifetime_of_its_own_binding() {
    let mut bench = Bench::new(registering(Transport::Udp));
    let contacts = format!(
        "<sip:1000@{PHONE};ob>;Expires=100, \"x;expires=9\" <sip:1000@192.0.2.7:5060>;expires=4"
    );
    let answer = bench.registered(&contacts);
    bench.receive(&answer);
    let registered = PhoneOccurrence::Registration {
        removal: false,
        status: 200,
        expires_s: 100,
        reason: String::new(),
    };
    assert_eq!(bench.events(), [registered]);
    bench.wait(seconds(49.9));
    assert_eq!(bench.count("REGISTER"), 1);
    bench.wait(seconds(0.2));
    assert_eq!(bench.count("REGISTER"), 2);
}

#[test]
fn longer_lifetime_is_requested_once() {
    let mut bench = Bench::new(registering(Transport::Udp));
    for (status, least) in [
        ("423 Interval Too Brief", 900),
        ("423 Interval Too Brief", 1_000),
    ] {
        let register = bench.last("REGISTER");
        let more = format!("Min-Expires: {least}\r\n");
        bench.receive(&response(&register, status, &more, ""));
    }
    assert_eq!(header(&bench.last("REGISTER"), "Expires"), "900");
    assert_eq!(bench.count("REGISTER"), 2);
    let events = bench.events();
    let [PhoneOccurrence::Registration { status: 423, .. }] = &events[..] else {
        panic!("{events:?}");
    };
}

#[test]
fn removal_during_a_refresh_follows_its_answer() {
    let mut bench = Bench::new(registering(Transport::Udp));
    let answer = bench.registered(&format!("<sip:1000@{PHONE}>;expires=10"));
    bench.receive(&answer);
    bench.wait(seconds(5.1));
    assert_eq!(bench.count("REGISTER"), 2, "a refresh");
    bench.host.deregister(bench.now);
    bench.drain();
    bench.events();
    let answer = bench.registered(&format!("<sip:1000@{PHONE}>;expires=10"));
    bench.receive(&answer);
    let removal = bench.last("REGISTER");
    assert_eq!(header(&removal, "Expires"), "0");
    bench.receive(&response(&removal, "200 OK", "", ""));
    let removals: Vec<bool> = bench
        .events()
        .iter()
        .filter_map(|event| match event {
            PhoneOccurrence::Registration {
                removal,
                status: 200,
                ..
            } => Some(*removal),
            _ => None,
        })
        .collect();
    assert_eq!(removals, [false, true]);
    bench.wait(seconds(30.0));
    assert_eq!(bench.count("REGISTER"), 3);
}

/// The server closes the connection, refuses the next one, and takes the third.
#[test]
fn phone_registers_again_after_its_connection_has_ended() {
    let mut bench = Bench::new(registering(Transport::Tcp));
    let connected = |bench: &mut Bench| {
        let (connection, local) = (
            *bench.connections.last().unwrap(),
            address("192.0.2.1:40000"),
        );
        bench.input(Input::Connected { connection, local });
    };
    let answered = |bench: &mut Bench| {
        let answer = bench.registered(&format!("<sip:1000@{PHONE}>;expires=4000"));
        let (connection, bytes) = (*bench.connections.last().unwrap(), answer.as_bytes());
        bench.input(Input::Stream { connection, bytes });
    };
    let closed = |bench: &mut Bench, reason| {
        let connection = *bench.connections.last().unwrap();
        bench.input(Input::Closed { connection, reason });
    };
    let lost = |seconds| PhoneOccurrence::RegistrationLost {
        retry_after: Duration::from_secs(seconds),
    };
    connected(&mut bench);
    answered(&mut bench);
    assert_eq!(bench.events().len(), 1);
    closed(&mut bench, CloseReason::Peer);
    assert_eq!(bench.events(), [lost(1)]);
    bench.wait(seconds(1.1));
    assert_eq!((bench.connections.len(), bench.count("REGISTER")), (2, 2));
    closed(&mut bench, CloseReason::ConnectFailed);
    assert_eq!(bench.events(), [lost(2)]);
    bench.wait(seconds(2.1));
    connected(&mut bench);
    answered(&mut bench);
    let events = bench.events();
    let [PhoneOccurrence::Registration { status: 200, .. }] = &events[..] else {
        panic!("{events:?}");
    };
    // A server that closes each connection is not asked again and again.
    closed(&mut bench, CloseReason::Peer);
    assert_eq!(bench.events(), [lost(4)]);
    bench.wait(seconds(4.1));
    connected(&mut bench);
    answered(&mut bench);
    bench.events();
    bench.wait(seconds(100.0));
    closed(&mut bench, CloseReason::Peer);
    assert_eq!(bench.events(), [lost(1)]);
    bench.wait(seconds(1.1));
    connected(&mut bench);
    answered(&mut bench);
    bench.events();
    // The phone is reached by the connection, so it stays open without traffic.
    let count = bench.connections.len();
    bench.wait(seconds(1_900.0));
    assert_eq!(bench.connections.len(), count);
    assert!(bench.events().is_empty());
}
