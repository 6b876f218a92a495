//! A media node with its forwarder in virtual time, a commander, and parties on the network.
#![allow(dead_code)]

use config::parse;
use engine::{
    ConnectionId, Control, Datagram, Engine, Entropy, Event, Forward, HashKey, Input, MediaPacket,
    Output, PacketVerdict, RecordingCommand, SocketId, SocketKind, Time,
};
use media::{Forwarder, ForwarderLimits};
use ng::server::NgServer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use wire::ng::{BencodeItem, NgMessage, Value};

pub const CONFIG: &str = "[ng_server]\nlisten=['udp:192.0.2.1:2223','tcp:192.0.2.1:2223','ws:192.0.2.1:2224']\n\
    allow='192.0.2.0/24'\nrecordings='/recordings'\nsounds='/sounds'\n\
    [[ng_server.interface]]\nname='outside'\nmedia={address='192.0.2.1',ports='20000-20039'}\n\
    [[ng_server.interface]]\nname='inside'\nmedia=[{address='198.51.100.1',ports='30000-30039'},\
    {address='2001:db8::1',ports='30000-30039'}]\n";

/// Address of the commander.
pub const PROXY: &str = "192.0.2.77:5000";

/// Wall clock at the start, in seconds since 1970.
pub const EPOCH: u64 = 1_700_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Datagram(SocketAddr),
    Stream(ConnectionId),
}

pub struct Rig {
    pub node: NgServer,
    pub forwarder: Forwarder,
    pub now: Time,
    /// Open sockets.
    pub sockets: BTreeMap<SocketId, (SocketKind, SocketAddr)>,
    /// Datagrams that the node sent to commanders.
    pub said: Vec<(To, Vec<u8>)>,
    /// Datagrams sent from media ports: source, destination.
    pub media: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    pub closed: Vec<ConnectionId>,
    pub events: Vec<Event>,
    /// Recordings by name.
    pub files: BTreeMap<String, Vec<u8>>,
    open_files: BTreeMap<u64, String>,
    /// Contents of the sound directory.
    pub sounds: BTreeMap<String, Vec<u8>>,
    /// Addresses in use by another program.
    pub occupied: Vec<SocketAddr>,
    cookies: u32,
}

pub fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn sdp(address: &str, port: u16, profile: &str, more: &str) -> String {
    let family = if address.contains(':') { "IP6" } else { "IP4" };
    format!(
        "v=0\r\no=bob 1 1 IN {family} {address}\r\ns=-\r\nc=IN {family} {address}\r\nt=0 0\r\n\
         m=audio {port} {profile} 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\n{more}"
    )
}

pub fn rtp(ssrc: u32, sequence: u16) -> Vec<u8> {
    wire::rtp::RtpHeader {
        ssrc,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ..wire::rtp::RtpHeader::default()
    }
    .packet(&[sequence as u8; 160])
}

pub fn port_of(sdp: &str) -> u16 {
    let line = sdp.split("m=audio ").nth(1).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

/// A command from texts; a bracketed value with commas is a list.
pub fn command(pairs: &[(&str, &str)]) -> Value {
    let mut body = Value::dictionary();
    for (key, value) in pairs {
        match value
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            Some(list) => {
                let items: Vec<Value> = list.split(',').map(Value::from).collect();
                body.set(key, items);
            }
            None => body.set(key, *value),
        }
    }
    body
}

/// The value under nested keys.
pub fn get<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Dictionary(entries) => entries.get(key.as_bytes()),
        Value::List(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

pub fn text(value: &Value, key: &str) -> String {
    match get(value, &[key]) {
        Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{key}: {other:?} in {value:?}"),
    }
}

pub fn number(value: &Value, path: &[&str]) -> i64 {
    match get(value, path) {
        Some(Value::Integer(number)) => *number,
        other => panic!("{path:?}: {other:?} in {value:?}"),
    }
}

impl Rig {
    pub fn new(config: &str) -> Rig {
        Rig::seeded(config, 1)
    }

    pub fn seeded(config: &str, seed: u64) -> Rig {
        let config = parse(config, "test").unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        let node =
            NgServer::new(config, EPOCH * 1_000_000_000, Entropy::from_number(seed)).unwrap();
        let mut rig = Rig {
            node,
            forwarder: Forwarder::new(ForwarderLimits::default(), HashKey::default()),
            now: Time::from_secs(1),
            sockets: BTreeMap::new(),
            said: Vec::new(),
            media: Vec::new(),
            closed: Vec::new(),
            events: Vec::new(),
            files: BTreeMap::new(),
            open_files: BTreeMap::new(),
            sounds: BTreeMap::new(),
            occupied: Vec::new(),
            cookies: 0,
        };
        rig.drain();
        rig
    }

    /// Acts as the driver: handles outputs, commands and reports until there are none.
    pub fn drain(&mut self) {
        for _ in 0..10_000 {
            let mut opened = Vec::new();
            while let Some(output) = self.node.next_output() {
                match output {
                    Output::OpenSocket {
                        socket,
                        kind,
                        local,
                    } => opened.push((socket, kind, local)),
                    Output::CloseSocket { socket } => {
                        assert!(self.sockets.remove(&socket).is_some(), "shut, not open");
                    }
                    Output::Datagram {
                        socket,
                        destination,
                        bytes,
                    } => {
                        let (kind, local) = self.sockets[&socket];
                        match kind {
                            SocketKind::UdpMedia => {
                                self.media.push((local, destination, bytes.to_vec()));
                            }
                            _ => self.said.push((To::Datagram(destination), bytes.to_vec())),
                        }
                    }
                    Output::Stream { connection, bytes } => {
                        self.said.push((To::Stream(connection), bytes.to_vec()));
                    }
                    Output::Close { connection } => self.closed.push(connection),
                    Output::Recording {
                        file,
                        command: record,
                    } => match record {
                        RecordingCommand::Create { name, header } => {
                            self.open_files.insert(file, name.to_owned());
                            self.files.insert(name.to_owned(), header.to_vec());
                        }
                        RecordingCommand::Append { bytes } => {
                            let name = &self.open_files[&file];
                            self.files.get_mut(name).unwrap().extend_from_slice(bytes);
                        }
                        RecordingCommand::Close => {
                            self.open_files.remove(&file).unwrap();
                        }
                    },
                    Output::Event(event) => self.events.push(event),
                    other => panic!("{other:?}"),
                }
            }
            while let Some(command) = self.node.next_command() {
                self.forwarder.command(command, self.now);
            }
            while let Some((socket, to, bytes)) = self.forwarder.next_packet() {
                let (_, from) = self.sockets[&socket];
                self.media.push((from, to, bytes.to_vec()));
            }
            let mut idle = opened.is_empty();
            while let Some(wanted) = self.node.next_sound_request() {
                let file = self.sounds.get(&wanted.name).cloned();
                let file = file.map(Into::into).ok_or("No such file".to_owned());
                self.node.sound_read(wanted.number, file, self.now);
                idle = false;
            }
            for (socket, kind, local) in opened {
                if self.occupied.contains(&local) {
                    let error = "Address already in use";
                    self.node
                        .handle(Input::OpenFailed { socket, error }, self.now);
                } else {
                    self.sockets.insert(socket, (kind, local));
                    self.node.handle(Input::Opened { socket, local }, self.now);
                }
            }
            while let Some(report) = self.forwarder.next_report() {
                self.node.report(report, self.now);
                idle = false;
            }
            if idle {
                return;
            }
        }
        panic!("one input, endless outputs");
    }

    pub fn handle(&mut self, input: Input<'_>) {
        self.node.handle(input, self.now);
        self.drain();
    }

    /// Advances the time, with all timers that are due.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let node = self.node.next_deadline().map(|deadline| deadline.at);
            let forwarder = self.forwarder.next_deadline().map(|deadline| deadline.at);
            let next = [node, forwarder].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            self.forwarder.timeout(self.now);
            self.handle(Input::Timeout);
        }
        self.now = end;
    }

    /// The socket with this address.
    pub fn socket(&self, address: &str) -> SocketId {
        let address = addr(address);
        let mut sockets = self.sockets.iter();
        *sockets
            .find(|(_, (_, local))| *local == address)
            .unwrap_or_else(|| panic!("{address} is not open"))
            .0
    }

    /// Sends bytes to the command port.
    pub fn send_command(&mut self, source: &str, bytes: &[u8]) {
        let mut sockets = self.sockets.iter();
        let (socket, _) = sockets
            .find(|(_, (kind, _))| *kind == SocketKind::UdpSignalling)
            .expect("a command port");
        let socket = *socket;
        let mut bytes = bytes.to_vec();
        self.handle(Input::Datagram(Datagram {
            socket,
            source: addr(source),
            arrived: self.now,
            bytes: &mut bytes,
        }));
    }

    /// The reply to a command.
    pub fn ask(&mut self, body: &Value) -> Value {
        let reply = self.try_ask(body);
        reply.unwrap_or_else(|| panic!("no reply to {body:?}"))
    }

    pub fn try_ask(&mut self, body: &Value) -> Option<Value> {
        self.cookies += 1;
        let cookie = format!("c{}", self.cookies);
        let mut bytes = Vec::new();
        NgMessage::write(cookie.as_bytes(), body, &mut bytes);
        self.send_command(PROXY, &bytes);
        let (to, bytes) = self.said.pop()?;
        assert_eq!(to, To::Datagram(addr(PROXY)));
        assert!(self.said.is_empty(), "one command, one reply");
        let reply = NgMessage::parse(&bytes).unwrap();
        assert_eq!(reply.cookie, cookie.as_bytes());
        Some(Value::from(BencodeItem::Dictionary(reply.body)))
    }

    /// Sends an offer that succeeds. Returns the resulting description.
    pub fn offer(&mut self, sdp: &str, more: &[(&str, &str)]) -> String {
        let mut pairs = vec![
            ("command", "offer"),
            ("call-id", "call"),
            ("from-tag", "a"),
            ("sdp", sdp),
        ];
        pairs.retain(|(key, _)| !more.iter().any(|(other, _)| other == key));
        pairs.extend_from_slice(more);
        let reply = self.ask(&command(&pairs));
        assert_eq!(text(&reply, "result"), "ok", "{reply:?}");
        text(&reply, "sdp")
    }

    /// Sends an answer that succeeds.
    pub fn answer(&mut self, sdp: &str, more: &[(&str, &str)]) -> String {
        let mut all = vec![("command", "answer"), ("to-tag", "b")];
        all.retain(|(key, _)| !more.iter().any(|(other, _)| other == key));
        all.extend_from_slice(more);
        self.offer(sdp, &all)
    }

    /// The error text of a command that fails.
    pub fn refusal(&mut self, pairs: &[(&str, &str)]) -> String {
        let reply = self.ask(&command(pairs));
        assert_eq!(text(&reply, "result"), "error", "{reply:?}");
        text(&reply, "error-reason")
    }

    /// Sends a packet to a media port. Returns the relayed packet.
    pub fn send(&mut self, from: &str, to: &str, bytes: &[u8]) -> Option<(SocketAddr, Vec<u8>)> {
        let socket = self.socket(to);
        let source = addr(from);
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len() + MediaPacket::TAILROOM, 0);
        let mut packet = MediaPacket {
            length: bytes.len(),
            ..MediaPacket::new(socket, source, self.now, &mut buffer)
        };
        let sent = match self.forwarder.forward(&mut packet, self.now) {
            PacketVerdict::Forward { destination, .. } => {
                Some((destination, packet.bytes().to_vec()))
            }
            PacketVerdict::Punt(_) => {
                let mut bytes = bytes.to_vec();
                self.node.handle(
                    Input::Datagram(Datagram {
                        socket,
                        source,
                        arrived: self.now,
                        bytes: &mut bytes,
                    }),
                    self.now,
                );
                None
            }
            _ => None,
        };
        self.drain();
        sent
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|event| event.kind.name()).collect()
    }

    /// Nothing of any call is left.
    pub fn assert_quiet(&self) {
        let census = self.node.census();
        let kept = ng::server::NgCensus {
            replies: census.replies,
            connections: census.connections,
            timers: census.timers,
            ..ng::server::NgCensus::default()
        };
        assert_eq!(census, kept);
        assert_eq!(self.forwarder.sessions(), 0);
    }
}
