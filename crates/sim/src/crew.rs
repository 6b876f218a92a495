//! A host with several workers: engines that listen at the same addresses. As with a kernel, what comes is given to one of
//! them by who sent it; what they hand to each other is carried between them.

use crate::HostId;
use crate::host::{Handed, Node, Pair};
use crate::world::World;
use engine::io::Checked;
use engine::{
    ConnectionId, Control, Deadline, Engine, Event, Forward, Input, Output, Packet, Parcel, Sieve,
    SocketId, SocketKind, Time, Verdict,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Bits of a socket's number in the world that say whose it is.
const BITS: u32 = 6;

/// An output on its way to the world.
enum Out {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Datagram(SocketId, SocketAddr),
    Connect(ConnectionId, Option<SocketAddr>, SocketAddr, bool),
    Stream(ConnectionId),
    Close(ConnectionId),
    Event(Event),
}

/// What a member is told of a socket of its own.
enum Told {
    /// It stands already, at this address.
    Opened(SocketAddr),
    /// Its sieve has dropped so many.
    Sifted(u64),
}

/// A socket of the world's that several members have: address, whether it is for streams, each member's number for it.
type Point = (SocketAddr, bool, Vec<(usize, SocketId)>);

/// The workers of a host.
pub(crate) struct Crew<C, F> {
    members: Vec<Pair<C, F>>,
    parcels: VecDeque<Handed>,
    /// Sockets of several: the address and kind, and each member's number for it; the first one's is the world's.
    points: Vec<Point>,
    /// What members have to be told of their sockets.
    told: VecDeque<(usize, SocketId, Told)>,
    /// What members have before their sockets, and what it dropped since that was last told.
    sieves: BTreeMap<(usize, SocketId), (Sieve, u64)>,
    /// Who holds which accepted connection.
    accepted: BTreeMap<u64, usize>,
    out: Option<Out>,
    bytes: Vec<u8>,
    /// Who said what came out last.
    speaker: usize,
    /// Parcels carried so far.
    carried: u64,
}

/// The bits of an accepted connection's number that say who holds it.
const HOLDER: u64 = ConnectionId::of_worker(u8::MAX);

impl<C, F> Crew<C, F>
where
    C: Control<Command = F::Command, Report = F::Report> + 'static,
    F: Forward + 'static,
{
    fn new(members: Vec<(C, F)>) -> Crew<C, F> {
        let pair = |(control, forwarder)| Pair {
            control: Checked::new(control),
            forwarder,
        };
        Crew {
            members: members.into_iter().map(pair).collect(),
            parcels: VecDeque::new(),
            points: Vec::new(),
            told: VecDeque::new(),
            sieves: BTreeMap::new(),
            accepted: BTreeMap::new(),
            out: None,
            bytes: Vec::new(),
            speaker: 0,
            carried: 0,
        }
    }

    fn world_id(member: usize, id: SocketId) -> SocketId {
        SocketId(id.0 << BITS | member as u32)
    }

    /// Which of the members gets what comes from `peer` at a socket of the world's, and its own number for it.
    fn at(&self, socket: SocketId, peer: SocketAddr) -> (usize, SocketId) {
        let first = (
            (socket.0 & ((1 << BITS) - 1)) as usize,
            SocketId(socket.0 >> BITS),
        );
        let point = self
            .points
            .iter()
            .find(|(.., members)| members.first() == Some(&first));
        match point {
            Some((.., members)) if members.len() > 1 => {
                // Any choice will do that stays the same for a peer.
                let ip = match peer.ip() {
                    IpAddr::V4(ip) => u32::from(ip),
                    IpAddr::V6(ip) => (u128::from(ip) % 65_521) as u32,
                };
                let mixed = (ip ^ u32::from(peer.port()) << 8).wrapping_mul(0x9e37_79b1) >> 16;
                members[mixed as usize % members.len()]
            }
            _ => first,
        }
    }

    /// The socket of the world's through which a member's sends.
    fn leaves_by(&self, member: usize, id: SocketId) -> SocketId {
        let own = (member, id);
        let point = self
            .points
            .iter()
            .find(|(.., members)| members.contains(&own));
        let (member, id) = point
            .and_then(|(.., all)| all.first().copied())
            .unwrap_or(own);
        Self::world_id(member, id)
    }

    fn holder(&self, connection: ConnectionId) -> usize {
        match self.accepted.get(&connection.0) {
            Some(member) => *member,
            None => usize::from(connection.worker()),
        }
    }

    /// A connection's number as its holder has it.
    fn inner(&self, connection: ConnectionId) -> ConnectionId {
        match self.accepted.get(&connection.0) {
            Some(member) => ConnectionId(connection.0 | ConnectionId::of_worker(*member as u8)),
            None => connection,
        }
    }

    /// And as the world has it.
    fn outer(connection: ConnectionId) -> ConnectionId {
        match connection.0 & ConnectionId::ACCEPTED {
            0 => connection,
            _ => ConnectionId(connection.0 & !HOLDER),
        }
    }

    /// Takes an output of a member's; `None`: it stays within the host.
    fn take(&mut self, member: usize) -> Option<bool> {
        let count = self.members.len();
        let output = self.members[member].control.next_output()?;
        self.speaker = member;
        let mut copy = |bytes: &[u8]| {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
        };
        let out = match output {
            Output::Open {
                socket,
                kind,
                local,
            } => Out::Open(socket, kind, local),
            Output::Shut { socket } => Out::Shut(socket),
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => {
                copy(bytes);
                Out::Datagram(socket, destination)
            }
            Output::Connect {
                connection,
                local,
                remote,
                websocket,
                ..
            } => Out::Connect(connection, local, remote, websocket),
            Output::Stream { connection, bytes } => {
                copy(bytes);
                Out::Stream(Self::outer(connection))
            }
            Output::Close { connection } => Out::Close(Self::outer(connection)),
            Output::Hand { worker, parcel } => {
                let to = usize::from(worker);
                assert!(to != member && to < count, "to nobody: {worker}");
                self.parcels.push_back(Handed {
                    to,
                    head: parcel.head,
                    bytes: parcel.bytes.to_vec(),
                });
                return Some(false);
            }
            // Members share the world's sockets: one's sieve drops what would have been that one's.
            Output::Sieve { socket, sieve } => {
                let own = (member, socket);
                let dropped = self.sieves.remove(&own).map_or(0, |(_, dropped)| dropped);
                self.told.push_back((member, socket, Told::Sifted(dropped)));
                if let Some(sieve) = sieve {
                    self.sieves.insert(own, (sieve, 0));
                }
                return Some(false);
            }
            // There is no disk.
            Output::Record { .. } => return Some(false),
            Output::Event(event) => Out::Event(event),
        };
        self.out = match out {
            Out::Open(id, kind, local) if kind != SocketKind::UdpMedia && local.port() != 0 => {
                let stream = kind.stream().is_some();
                let same = |(at, is, _): &&mut Point| *at == local && *is == stream;
                match self.points.iter_mut().find(same) {
                    Some((.., members)) => {
                        members.push((member, id));
                        self.told.push_back((member, id, Told::Opened(local)));
                        None
                    }
                    None => {
                        self.points.push((local, stream, vec![(member, id)]));
                        Some(Out::Open(Self::world_id(member, id), kind, local))
                    }
                }
            }
            Out::Open(id, kind, local) => Some(Out::Open(Self::world_id(member, id), kind, local)),
            // A socket of several stays until the last of them shuts it.
            Out::Shut(id) => {
                let by = self.leaves_by(member, id);
                let own = (member, id);
                let at = self.points.iter().position(|(.., all)| all.contains(&own));
                match at {
                    Some(at) if self.points[at].2.len() > 1 && self.points[at].2[0] != own => {
                        self.points[at].2.retain(|other| *other != own);
                        None
                    }
                    Some(at) => {
                        self.points.remove(at);
                        Some(Out::Shut(by))
                    }
                    None => Some(Out::Shut(by)),
                }
            }
            Out::Datagram(id, to) => Some(Out::Datagram(self.leaves_by(member, id), to)),
            out => Some(out),
        };
        Some(self.out.is_some())
    }
}

impl<C, F> Node for Crew<C, F>
where
    C: Control<Command = F::Command, Report = F::Report> + 'static,
    F: Forward + 'static,
{
    fn handle(&mut self, input: Input<'_>, now: Time) {
        let (member, input) = match input {
            Input::Timeout => {
                for member in &mut self.members {
                    let due = member.control.next_deadline();
                    if due.is_some_and(|due| due.at <= now) {
                        member.control.handle(Input::Timeout, now);
                    }
                }
                return;
            }
            Input::Datagram(mut datagram) => {
                let (member, socket) = self.at(datagram.socket, datagram.source);
                datagram.socket = socket;
                (member, Input::Datagram(datagram))
            }
            Input::Accepted {
                connection,
                socket,
                local,
                remote,
            } => {
                let (member, socket) = self.at(socket, remote);
                self.accepted.insert(connection.0, member);
                let input = Input::Accepted {
                    connection: self.inner(connection),
                    socket,
                    local,
                    remote,
                };
                (member, input)
            }
            Input::Connected { connection, local } => (
                self.holder(connection),
                Input::Connected { connection, local },
            ),
            Input::Secured { connection, names } => {
                let (member, connection) = (self.holder(connection), self.inner(connection));
                (member, Input::Secured { connection, names })
            }
            Input::Stream { connection, bytes } => {
                let (member, connection) = (self.holder(connection), self.inner(connection));
                (member, Input::Stream { connection, bytes })
            }
            Input::Closed { connection, why } => {
                let (member, inner) = (self.holder(connection), self.inner(connection));
                self.accepted.remove(&connection.0);
                let connection = inner;
                (member, Input::Closed { connection, why })
            }
            Input::Unreachable {
                socket,
                destination,
                bytes,
            } => {
                let (member, socket) = self.at(socket, destination);
                let input = Input::Unreachable {
                    socket,
                    destination,
                    bytes,
                };
                (member, input)
            }
            Input::Opened { socket, local } => {
                let (member, socket) = (
                    (socket.0 & ((1 << BITS) - 1)) as usize,
                    SocketId(socket.0 >> BITS),
                );
                (member, Input::Opened { socket, local })
            }
            Input::OpenFailed { socket, error } => {
                let (member, socket) = (
                    (socket.0 & ((1 << BITS) - 1)) as usize,
                    SocketId(socket.0 >> BITS),
                );
                (member, Input::OpenFailed { socket, error })
            }
            Input::Handed(_) | Input::Sifted { .. } => return,
        };
        if let Some(member) = self.members.get_mut(member) {
            member.control.handle(input, now);
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let mut member = 0;
        while member < self.members.len() {
            match self.take(member) {
                None => member += 1,
                Some(false) => {}
                Some(true) => break,
            }
        }
        let bytes = self.bytes.as_slice();
        Some(match self.out.take()? {
            Out::Open(socket, kind, local) => Output::Open {
                socket,
                kind,
                local,
            },
            Out::Shut(socket) => Output::Shut { socket },
            Out::Datagram(socket, destination) => Output::Datagram {
                socket,
                destination,
                bytes,
            },
            Out::Connect(connection, local, remote, websocket) => Output::Connect {
                connection,
                local,
                remote,
                secure: None,
                websocket,
            },
            Out::Stream(connection) => Output::Stream { connection, bytes },
            Out::Close(connection) => Output::Close { connection },
            Out::Event(event) => Output::Event(event),
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let deadlines = self
            .members
            .iter()
            .map(|member| member.control.next_deadline());
        deadlines.fold(None, Deadline::earlier)
    }

    fn forward(&mut self, packet: &mut Packet<'_>, now: Time) -> Option<Verdict> {
        let (member, socket) = self.at(packet.socket, packet.source);
        let world = std::mem::replace(&mut packet.socket, socket);
        let verdict = self.members.get_mut(member)?.forwarder.forward(packet, now);
        packet.socket = world;
        Some(match verdict {
            Verdict::Forward {
                socket,
                destination,
            } => Verdict::Forward {
                socket: Self::world_id(member, socket),
                destination,
            },
            other => other,
        })
    }

    fn forward_deadline(&self) -> Option<Deadline> {
        let deadlines = self
            .members
            .iter()
            .map(|member| member.forwarder.next_deadline());
        deadlines.fold(None, Deadline::earlier)
    }

    fn forward_timeout(&mut self, now: Time) {
        for member in &mut self.members {
            member.forwarder.timeout(now);
        }
    }

    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let mut found = None;
        for (index, member) in self.members.iter_mut().enumerate() {
            if let Some((socket, to, bytes)) = member.forwarder.next_packet() {
                self.bytes.clear();
                self.bytes.extend_from_slice(bytes);
                found = Some((Self::world_id(index, socket), to));
                break;
            }
        }
        let (socket, to) = found?;
        Some((socket, to, &self.bytes))
    }

    /// Beside commands and reports: one word of a socket.
    fn shuttle(&mut self, now: Time) -> bool {
        if let Some((member, socket, told)) = self.told.pop_front() {
            let input = match told {
                Told::Opened(local) => Input::Opened { socket, local },
                Told::Sifted(dropped) => Input::Sifted { socket, dropped },
            };
            self.members[member].control.handle(input, now);
            return true;
        }
        let reported = self.members.iter_mut().map(|member| member.shuttle(now));
        reported.fold(false, |any, one| any | one)
    }

    fn member_at(&self, socket: SocketId, source: SocketAddr) -> usize {
        self.at(socket, source).0
    }

    fn speaker(&self) -> usize {
        self.speaker
    }

    fn sifts(&mut self, socket: SocketId, source: SocketAddr, bytes: &[u8]) -> bool {
        let own = self.at(socket, source);
        match self.sieves.get_mut(&own) {
            Some((sieve, dropped)) if !sieve.passes(bytes) => {
                *dropped += 1;
                true
            }
            _ => false,
        }
    }

    fn next_parcel(&mut self) -> Option<Handed> {
        let handed = self.parcels.pop_front()?;
        self.carried += 1;
        Some(handed)
    }

    fn hand(&mut self, handed: &Handed, now: Time) {
        let parcel = Parcel {
            head: handed.head,
            bytes: &handed.bytes,
        };
        self.members[handed.to]
            .control
            .handle(Input::Handed(parcel), now);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl World {
    /// Adds a host with several workers, each with its forwarder.
    ///
    /// # Panics
    /// Where another host has one of the addresses.
    pub fn add_crew<C, F>(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        members: Vec<(C, F)>,
    ) -> HostId
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.add(name, addresses, Box::new(Crew::new(members)))
    }

    /// Lends control plane and forwarder of one of a host's workers, as [`World::with_engine`].
    pub fn with_member<C, F, R>(
        &mut self,
        host: HostId,
        member: usize,
        work: impl FnOnce(&mut C, &mut F, Time) -> R,
    ) -> Option<R>
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.step(host, |node, now| {
            let crew = node.as_any().downcast_mut::<Crew<C, F>>()?;
            let pair = crew.members.get_mut(member)?;
            Some(work(pair.control.get(), &mut pair.forwarder, now))
        })?
    }

    /// What the workers of a host have handed to each other.
    pub fn carried<C, F>(&mut self, host: HostId) -> Option<u64>
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.step(host, |node, _| {
            Some(node.as_any().downcast_mut::<Crew<C, F>>()?.carried)
        })?
    }
}
