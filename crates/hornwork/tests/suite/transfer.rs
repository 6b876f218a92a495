//! `hornwork run` with two workers handles transfers: three phones on sockets, with calls of one worker and of two.

use crate::common;

use common::{border, free_port, media_ports, scratch};
use engine::{Datagram, Entropy, Input, Output, SocketId, Time, Transport};
use sip::{
    Endpoint, EndpointConfig, Flow, Handler, Indication, Invite, LegId, ListenerConfig, ListenerId,
    MessageContent, Target,
};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use wire::sip::{Edit, HeaderId, Message, Method};

/// State of a phone.
#[derive(Default)]
struct PhoneState {
    sdp: String,
    /// Legs of incoming calls.
    offered: Vec<LegId>,
    /// Statuses of responses to its requests.
    answers: Vec<u16>,
    /// First lines of the bodies of NOTIFY requests.
    notifies: Vec<String>,
    /// Other received requests.
    received: Vec<String>,
    acked: usize,
    ended: usize,
    /// Media address of its peer.
    far: Option<SocketAddr>,
}

impl PhoneState {
    fn note_media_address(&mut self, message: &Message<'_>) {
        let body = String::from_utf8_lossy(message.body()).into_owned();
        let port = body.lines().find_map(|line| line.strip_prefix("m=audio "));
        let port = port.and_then(|rest| rest.split(' ').next()?.parse().ok());
        if let Some(port) = port {
            self.far = Some(SocketAddr::from(([127, 0, 0, 1], port)));
        }
    }
}

impl Handler for PhoneState {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let sdp = self.sdp.clone();
        let (sdp, none) = (
            MessageContent::sdp(sdp.as_bytes()),
            MessageContent::default(),
        );
        match indication {
            Indication::Offered { leg, request, .. } => {
                self.note_media_address(request);
                self.offered.push(leg);
                endpoint.answer(leg, 200, &sdp, now).unwrap();
            }
            Indication::Answered { leg, response, .. } => {
                self.note_media_address(response);
                self.answers.push(response.status());
                endpoint.ack(leg, &none, now).unwrap();
            }
            Indication::Acked { request, .. } => {
                self.note_media_address(request);
                self.acked += 1;
            }
            Indication::Request {
                transaction,
                request,
                ..
            } => {
                self.note_media_address(request);
                let body = String::from_utf8_lossy(request.body()).into_owned();
                match request.method() {
                    Method::Notify => {
                        let line = body.lines().next().unwrap_or_default();
                        self.notifies.push(line.to_owned());
                    }
                    method => {
                        let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
                        self.received.push(name);
                    }
                }
                let content = match request.method() {
                    Method::Invite => sdp,
                    _ => none,
                };
                let _ = endpoint.respond(transaction, 200, &content, now);
            }
            Indication::Response { leg, response, .. } => {
                self.answers.push(response.status());
                if response.method() == Method::Invite && response.status() == 200 {
                    self.note_media_address(response);
                    endpoint.ack(leg, &none, now).unwrap();
                }
            }
            Indication::Ended { .. } | Indication::Failed { .. } => self.ended += 1,
            _ => {}
        }
    }
}

struct Phone {
    endpoint: Endpoint,
    state: PhoneState,
    local: ListenerId,
    socket: UdpSocket,
    rtp: UdpSocket,
    begun: Instant,
    sequence: u16,
}

impl Phone {
    fn new(port: u16, seed: u64) -> Phone {
        let open = |port: u16| {
            let socket = UdpSocket::bind(("127.0.0.1", port)).expect("a socket");
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (socket, rtp) = (open(port), open(free_port()));
        let mut endpoint = Endpoint::new(EndpointConfig::default(), Entropy::from_number(seed));
        let local = endpoint.add_listener(ListenerConfig {
            name: "phone".into(),
            socket: SocketId(1),
            transport: Transport::Udp,
            address: socket.local_addr().unwrap(),
            advertised: String::new(),
        });
        let sdp = format!(
            "v=0\r\no=x {seed} 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} RTP/AVP 8\r\n",
            rtp.local_addr().unwrap().port()
        );
        Phone {
            endpoint,
            state: PhoneState {
                sdp,
                ..PhoneState::default()
            },
            local,
            socket,
            rtp,
            begun: Instant::now(),
            sequence: 0,
        }
    }

    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }

    fn pump(&mut self) {
        let mut bytes = [0; 8_192];
        while let Ok((length, source)) = self.socket.recv_from(&mut bytes) {
            let now = self.now();
            let datagram = Datagram {
                socket: SocketId(1),
                source,
                arrived: now,
                bytes: &mut bytes[..length],
            };
            self.endpoint
                .feed(Input::Datagram(datagram), now, &mut self.state);
        }
        let now = self.now();
        self.endpoint.feed(Input::Timeout, now, &mut self.state);
        while let Some(output) = self.endpoint.next_output() {
            if let Output::Datagram {
                destination, bytes, ..
            } = output
            {
                let _ = self.socket.send_to(bytes, destination);
            }
        }
    }

    /// Calls a user of the border, in a call of this worker.
    fn call(&mut self, user: &str, border: u16, worker: u8, number: u32) -> LegId {
        let remote = SocketAddr::from(([127, 0, 0, 1], border));
        let flow = Flow {
            local: self.local,
            transport: Transport::Udp,
            remote,
            connection: None,
        };
        let uri = format!("sip:{user}@127.0.0.1");
        // A Call-ID as long as the border's own determines its worker.
        let call_id = format!("{worker:02x}{number:046x}");
        let sdp = self.state.sdp.clone();
        let mut invite = Invite::new(Target::new(uri.as_bytes(), flow));
        invite.call_id = Some(call_id.as_bytes());
        invite.content = MessageContent::sdp(sdp.as_bytes());
        let now = self.now();
        self.endpoint.invite(&invite, now).unwrap()
    }

    fn request(&mut self, leg: LegId, method: Method<'_>, edits: &[Edit<'_>]) {
        let now = self.now();
        let content = MessageContent::default().with(edits);
        self.endpoint.request(leg, method, &content, now).unwrap();
    }

    fn worker_of(&self, leg: LegId) -> u8 {
        let (_, tag) = self.endpoint.tags_of(leg).unwrap();
        let digits = std::str::from_utf8(&tag[8..10]).unwrap();
        u8::from_str_radix(digits, 16).unwrap()
    }

    /// Sends a packet of speech to its peer.
    fn send_audio(&mut self) {
        let mut packet = vec![0xd5; 172];
        self.sequence += 1;
        packet[..2].copy_from_slice(&[0x80, 8]);
        packet[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        packet[4..8].copy_from_slice(&(u32::from(self.sequence) * 160).to_be_bytes());
        packet[8..12].copy_from_slice(&7u32.to_be_bytes());
        if let Some(far) = self.state.far {
            let _ = self.rtp.send_to(&packet, far);
        }
    }

    /// Whether speech was received since the last check.
    fn take_received_audio(&mut self) -> bool {
        let mut bytes = [0; 2_048];
        let mut received = false;
        while self.rtp.recv(&mut bytes).is_ok() {
            received = true;
        }
        received
    }
}

/// Alice, Bob and Carol.
type Phones = [Phone; 3];

/// Runs all phones until a condition holds.
fn until(phones: &mut Phones, what: &str, mut holds: impl FnMut(&mut Phones) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        for phone in phones.iter_mut() {
            phone.pump();
        }
        if holds(phones) {
            return;
        }
        let notifies: Vec<_> = phones
            .iter()
            .map(|phone| {
                (
                    &phone.state.answers,
                    &phone.state.notifies,
                    &phone.state.received,
                )
            })
            .collect();
        assert!(Instant::now() < end, "timeout: {what}; {notifies:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Alice and Carol receive each other.
fn assert_two_way_audio(phones: &mut Phones) {
    for [from, to] in [[0, 2], [2, 0]] {
        phones[to].take_received_audio();
        let mut next = Instant::now();
        until(phones, "speech", |phones| {
            if Instant::now() >= next {
                phones[from].send_audio();
                next = Instant::now() + Duration::from_millis(20);
            }
            phones[to].take_received_audio()
        });
    }
}

/// Bob transfers Alice to Carol, attended or blind.
fn transfer(name: &str, first: u8, consulted: Option<u8>) {
    let folder = scratch(name);
    let [sip, bob, carol, alice] = [(); 4].map(|()| free_port());
    let (low, high) = media_ports(1_000);
    let mut text = format!(
        "[[interface]]\nname = \"loopback\"\nkind = \"access\"\nlisten = [\"udp:127.0.0.1:{sip}\"]\nallow = \"127.0.0.0/8\"\n\
         media = {{ address = \"127.0.0.1\", ports = \"{low}-{high}\" }}\n[sip]\nworkers = 2\n"
    );
    for (user, port) in [("bob", bob), ("carol", carol)] {
        text += &format!(
            "[[trunk]]\nname = \"{user}\"\ntarget = \"udp:127.0.0.1:{port}\"\nrefer = \"act\"\n\
             [[route]]\nto = {{ user = \"{user}\" }}\ntrunk = \"{user}\"\n"
        );
    }
    let mut process = border(&folder, &text, sip);
    let mut phones = [(alice, 1), (bob, 2), (carol, 3)].map(|(port, seed)| Phone::new(port, seed));
    let calling = phones[0].call("bob", sip, first, 1);
    until(&mut phones, "Bob's ACK", |phones| {
        phones[1].state.acked == 1
    });
    assert_eq!(phones[0].worker_of(calling), first);
    let referring = phones[1].state.offered[0];
    let mut refer_to = "<sip:carol@127.0.0.1>".to_owned();
    if let Some(second) = consulted {
        let consulting = phones[1].call("carol", sip, second, 2);
        until(&mut phones, "Carol's ACK", |phones| {
            phones[2].state.acked == 1
        });
        assert_eq!(phones[1].worker_of(consulting), second);
        let endpoint = &phones[1].endpoint;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (own, theirs) = endpoint.tags_of(consulting).unwrap();
        let call_id = text(endpoint.call_id_of(consulting).unwrap());
        refer_to = format!(
            "<sip:carol@127.0.0.1?Replaces={call_id}%3Bto-tag%3D{}%3Bfrom-tag%3D{}>",
            text(theirs),
            text(&own)
        );
    }
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: refer_to.as_bytes(),
    }];
    phones[1].request(referring, Method::Refer, &edits);
    let legs = if consulted.is_some() { 2 } else { 1 };
    until(&mut phones, "the transfer", |phones| {
        phones[1].state.ended == legs
    });
    until(&mut phones, "word of it", |phones| {
        let notifies = &phones[1].state.notifies;
        notifies
            .last()
            .is_some_and(|notifies| notifies == "SIP/2.0 200 OK")
    });
    assert!(phones[1].state.answers.contains(&202));
    assert_two_way_audio(&mut phones);
    // A request in Alice's dialog reaches Carol.
    let carols = phones[2].state.offered[0];
    phones[2].request(carols, Method::Info, &[]);
    until(&mut phones, "INFO", |phones| {
        phones[0]
            .state
            .received
            .iter()
            .any(|received| received == "INFO")
    });
    phones[0].request(calling, Method::Info, &[]);
    until(&mut phones, "INFO", |phones| {
        phones[2]
            .state
            .received
            .iter()
            .any(|received| received == "INFO")
    });
    let now = phones[2].now();
    let bye = phones[2]
        .endpoint
        .bye(carols, &MessageContent::default(), now);
    bye.unwrap();
    until(&mut phones, "the end", |phones| {
        phones[0].state.ended == 1 && phones[2].state.ended == 1
    });
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(30)), Some(true));
}

#[test]
fn attended_transfer_with_calls_of_two_workers() {
    transfer("transfer-01", 0, Some(1));
    transfer("transfer-10", 1, Some(0));
}

#[test]
fn attended_transfer_with_calls_of_one_worker() {
    transfer("transfer-11", 1, Some(1));
}

#[test]
fn blind_transfer() {
    for (name, worker) in [("transfer-0", 0), ("transfer-1", 1)] {
        transfer(name, worker, None);
    }
}
