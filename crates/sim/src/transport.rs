//! Connections in the simulated network.

use crate::host::HostId;
use crate::link::Fate;
use crate::log::{Detail, Short};
use crate::queued::InTransit;
use crate::stream::{
    End, KEEPALIVE, RETRY, SEGMENT, Segment, Side, Stream, StreamId, TCP_HEADER, TRIES, WINDOW,
};
use crate::tap::{TapPoint, TapTransport};
use crate::world::{HostInput, World, WorldEvent};
use engine::{CloseReason, ConnectionId, DropReason};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

impl World {
    pub(crate) fn connect(
        &mut self,
        id: HostId,
        connection: ConnectionId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) {
        let host = &mut self.hosts[id.0 as usize];
        if host.connections.contains_key(&connection) {
            self.counts.strays += 1;
            debug_assert!(false, "connection number {} is in use", connection.0);
            return;
        }
        let any: IpAddr = if remote.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let local = local.unwrap_or(SocketAddr::new(any, 0));
        let address = host.source(local, remote).and_then(|source| {
            if !host.addresses.contains(&source.ip()) {
                None
            } else if source.port() == 0 {
                host.free_port(source.ip(), true)
            } else {
                Some(source)
            }
        });
        let Some(address) = address else {
            self.plan_input(
                id,
                HostInput::Closed(connection, CloseReason::ConnectFailed),
            );
            return;
        };
        let stream = self.next_stream;
        self.next_stream += 1;
        host.connections.insert(connection, (stream, Side::Opener));
        let opener = End::new(id, host.life, connection, address, false);
        self.streams.insert(
            stream,
            Stream {
                opener,
                listener: None,
                remote,
                under_way: 0,
            },
        );
        self.send_segment(stream, Side::Opener, Segment::Syn);
    }

    /// Sends a segment at once.
    fn send_segment(&mut self, id: StreamId, from: Side, segment: Segment) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.under_way += 1;
        self.agenda.push(
            self.now,
            WorldEvent::Attempt {
                stream: id,
                from,
                segment,
                tries: 0,
            },
        );
    }

    pub(crate) fn write(&mut self, host: HostId, connection: ConnectionId, bytes: &[u8]) {
        let found = self.hosts[host.0 as usize].connections.get(&connection);
        let Some(&(id, side)) = found else {
            self.counts.strays += 1;
            self.counts.drops.count(DropReason::SendFailed);
            return;
        };
        let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
            return;
        };
        if end.outstanding + end.waiting.len() + bytes.len() > WINDOW {
            self.counts.drops.count(DropReason::StreamBackpressure);
            self.end_side(id, side, CloseReason::Backpressure);
            self.send_segment(id, side, Segment::Rst);
        } else if end.connected {
            self.send_bytes(id, side, bytes);
        } else {
            end.waiting.extend_from_slice(bytes);
        }
    }

    /// Divides bytes into segments of sizes drawn from the seed: receivers must not rely on any size.
    fn send_bytes(&mut self, id: StreamId, side: Side, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let most = bytes.len().min(SEGMENT);
            let length = if self.entropy.below(4) == 0 {
                1 + self.entropy.below(most as u64) as usize
            } else {
                most
            };
            let (piece, rest) = bytes.split_at(length.min(bytes.len()));
            bytes = rest;
            let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
                return;
            };
            let offset = end.next;
            end.next += piece.len() as u64;
            end.outstanding += piece.len();
            let bytes = piece.to_vec();
            self.send_segment(id, side, Segment::Data { offset, bytes });
        }
    }

    pub(crate) fn close(&mut self, host: HostId, connection: ConnectionId) {
        let found = self.hosts[host.0 as usize].connections.get(&connection);
        let Some(&(id, side)) = found else {
            return;
        };
        self.end_side(id, side, CloseReason::Engine);
        self.send_fin(id, side);
    }

    /// Sends the FIN after all data.
    fn send_fin(&mut self, id: StreamId, side: Side) {
        if let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side))
            && end.connected
        {
            let offset = end.next;
            self.send_segment(id, side, Segment::Fin { offset });
        }
    }

    /// Ends one side and reports the reason to its engine.
    fn end_side(&mut self, id: StreamId, side: Side, reason: CloseReason) {
        let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
            return;
        };
        if !end.alive {
            return;
        }
        end.alive = false;
        let (host, life, connection) = (end.host, end.life, end.connection);
        if self.hosts[host.0 as usize].life == life {
            self.hosts[host.0 as usize].connections.remove(&connection);
            self.plan_input(host, HostInput::Closed(connection, reason));
        }
        self.remove_if_over(id);
    }

    fn remove_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(Stream::is_over) {
            self.streams.remove(&id);
        }
    }

    /// Resets both ends, as a firewall in the path does.
    pub(crate) fn reset(&mut self, id: StreamId) {
        let connected = self
            .streams
            .get(&id)
            .is_some_and(|stream| stream.opener.connected);
        let reason = if connected {
            CloseReason::Error
        } else {
            CloseReason::ConnectFailed
        };
        self.end_side(id, Side::Opener, reason);
        self.end_side(id, Side::Listener, CloseReason::Error);
    }

    /// Removes the ends of a crashed host. The other ends detect it when they send, or by keep-alive.
    pub(crate) fn crash_streams(&mut self, host: HostId) {
        let held: Vec<(StreamId, Side)> = self.hosts[host.0 as usize]
            .connections
            .values()
            .copied()
            .collect();
        for (id, side) in held {
            if let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) {
                end.alive = false;
            }
            self.expect_vanished(id, side);
            self.remove_if_over(id);
        }
    }

    /// Schedules the detection of a vanished end at its peer.
    fn expect_vanished(&mut self, id: StreamId, side: Side) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let side = side.other();
        if stream.end(side).is_some_and(|end| end.alive) {
            stream.under_way += 1;
            let at = self.now + KEEPALIVE;
            self.agenda
                .push(at, WorldEvent::Vanished { stream: id, side });
        }
    }

    pub(crate) fn vanished(&mut self, id: StreamId, side: Side) {
        self.transit_done(id);
        let connected = self
            .streams
            .get(&id)
            .is_some_and(|stream| stream.opener.connected);
        let reason = if connected {
            CloseReason::Error
        } else {
            CloseReason::ConnectFailed
        };
        self.end_side(id, side, reason);
        self.remove_if_over(id);
    }

    fn transit_done(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.under_way = stream.under_way.saturating_sub(1);
        }
    }

    pub(crate) fn stream_line(&mut self, what: &str, id: StreamId, from: Side, segment: &Segment) {
        if self.log.detail < Detail::Packets {
            return;
        }
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let (source, to) = stream.addresses(from);
        let (now, name, bytes) = (self.now, segment.name(), segment.bytes());
        let (length, short) = (bytes.len(), Short(bytes));
        self.log.line(
            Detail::Packets,
            format_args!("{now} {what} {name} {source} {to} {length} {short}"),
        );
        self.log.payload(bytes);
    }

    fn tap_segment(&mut self, point: TapPoint, id: StreamId, from: Side, segment: &Segment) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let (source, to) = stream.addresses(from);
        // Numbers start at 0 with the SYN; offsets count the bytes after it.
        let number = |offset: u64| (offset as u32).wrapping_add(1);
        let opening = matches!(segment, Segment::Syn);
        let acknowledgement = stream
            .end(from)
            .filter(|_| !opening)
            .map(|end| number(end.expected));
        let sequence = match segment {
            Segment::Syn | Segment::SynAck => 0,
            Segment::Data { offset, .. } | Segment::Fin { offset } => number(*offset),
            Segment::Rst => stream.end(from).map_or(0, |end| number(end.next)),
        };
        let transport = TapTransport::Tcp {
            sequence,
            acknowledgement,
            syn: opening || matches!(segment, Segment::SynAck),
            fin: matches!(segment, Segment::Fin { .. }),
            rst: matches!(segment, Segment::Rst),
        };
        self.tap(point, source, to, transport, segment.bytes());
    }

    pub(crate) fn attempt(&mut self, id: StreamId, from: Side, segment: Segment, tries: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let remote = stream.remote;
        let sender = match stream.end(from) {
            Some(end) => (end.host, Some(end.life)),
            // A reset from an address without listener.
            None => match self.host_at(remote.ip()) {
                Some(host) => (host, None),
                None => return self.transit_done(id),
            },
        };
        // Segments in transit from a host end with its life.
        if sender
            .1
            .is_some_and(|life| life != self.hosts[sender.0.0 as usize].life)
        {
            self.transit_done(id);
            self.remove_if_over(id);
            return;
        }
        if tries > 0 {
            self.counts.retransmissions += 1;
        }
        self.tap_segment(TapPoint::Sent(sender.0), id, from, &segment);
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let target = self.host_at(stream.addresses(from).1.ip());
        let target = target.filter(|to| !self.is_partitioned(sender.0, *to));
        let length = segment.bytes().len() + TCP_HEADER;
        let fate = match target.map(|to| (sender.0, to)) {
            Some(pair) if self.is_queued(pair) => {
                self.stream_line("tcp", id, from, &segment);
                let stream = id;
                let packet = InTransit::Segment {
                    stream,
                    from,
                    segment,
                    tries,
                };
                return self.enqueue(pair, packet, length);
            }
            Some(pair) => {
                let now = self.now;
                self.link(pair).offer_segment(length, now)
            }
            None => Fate::Lost(DropReason::LinkLost),
        };
        match fate {
            Fate::Arrives(at, _) => {
                self.stream_line("tcp", id, from, &segment);
                let stream = id;
                self.agenda.push(
                    at,
                    WorldEvent::Segment {
                        stream,
                        from,
                        segment,
                    },
                );
            }
            Fate::Lost(reason) => {
                self.counts.drops.count(reason);
                self.stream_line("tcp-lost", id, from, &segment);
                self.retry(id, from, segment, tries);
            }
        }
    }

    pub(crate) fn retry(&mut self, id: StreamId, from: Side, segment: Segment, tries: u32) {
        // A reset is sent once, like a datagram.
        if !matches!(segment, Segment::Rst) && tries + 1 < TRIES {
            let at = self.now + RETRY * (1 << tries);
            self.agenda.push(
                at,
                WorldEvent::Attempt {
                    stream: id,
                    from,
                    segment,
                    tries: tries + 1,
                },
            );
            return;
        }
        self.transit_done(id);
        if !matches!(segment, Segment::Rst) {
            let reason = if matches!(segment, Segment::Syn) {
                CloseReason::ConnectFailed
            } else {
                CloseReason::Error
            };
            self.end_side(id, from, reason);
        }
        self.expect_vanished(id, from);
        self.remove_if_over(id);
    }

    pub(crate) fn segment(&mut self, id: StreamId, from: Side, segment: Segment) {
        self.transit_done(id);
        if !self.streams.contains_key(&id) {
            return;
        }
        self.counts.segments += 1;
        self.stream_line("tcp-delivered", id, from, &segment);
        let side = from.other();
        if matches!(segment, Segment::Syn) {
            self.accept(id, &segment);
            self.remove_if_over(id);
            return;
        }
        let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
            return self.remove_if_over(id);
        };
        let (host, life) = (end.host, end.life);
        self.tap_segment(TapPoint::Delivered(host), id, from, &segment);
        if self.hosts[host.0 as usize].life != life {
            if !matches!(segment, Segment::Rst) {
                // The host has no state of this connection any more.
                let reset = Segment::Rst;
                self.send_segment(id, side, reset.clone());
                self.reset_from_new_life(id, side);
            }
            self.remove_if_over(id);
            return;
        }
        match segment {
            Segment::Rst => self.on_reset(id, side),
            Segment::SynAck => self.established(id),
            Segment::Data { offset, bytes } => self.receive_data(id, side, offset, Some(bytes)),
            Segment::Fin { offset } => self.receive_data(id, side, offset, None),
            Segment::Syn => {}
        }
        self.remove_if_over(id);
    }

    /// Lets the new life of the host at `side` send a reset for a connection of its previous life.
    fn reset_from_new_life(&mut self, id: StreamId, side: Side) {
        let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
            return;
        };
        let host = end.host;
        let life = self.hosts[host.0 as usize].life;
        if self.hosts[host.0 as usize].node.is_some()
            && let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side))
        {
            end.life = life;
        }
    }

    fn on_reset(&mut self, id: StreamId, side: Side) {
        let connected = self
            .streams
            .get_mut(&id)
            .and_then(|stream| stream.end(side))
            .is_some_and(|end| end.connected);
        let reason = if connected {
            CloseReason::Error
        } else {
            CloseReason::ConnectFailed
        };
        self.end_side(id, side, reason);
    }

    fn accept(&mut self, id: StreamId, syn: &Segment) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let (local, remote) = (stream.remote, stream.opener.address);
        let Some(to) = self.host_at(local.ip()) else {
            return;
        };
        self.tap_segment(TapPoint::Delivered(to), id, Side::Opener, syn);
        let host = &mut self.hosts[to.0 as usize];
        if host.node.is_none() {
            // A host that is down sends nothing; the opener times out.
            return self.expect_vanished(id, Side::Listener);
        }
        let Some(socket) = host.socket_at(local, true) else {
            return self.send_segment(id, Side::Listener, Segment::Rst);
        };
        let connection = ConnectionId(host.next_accepted);
        host.next_accepted = (host.next_accepted + 1) | ConnectionId::ACCEPTED;
        host.connections.insert(connection, (id, Side::Listener));
        let end = End::new(to, host.life, connection, local, true);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.listener = Some(end);
        }
        self.plan_input(
            to,
            HostInput::Accepted {
                connection,
                socket,
                local,
                remote,
            },
        );
        self.send_segment(id, Side::Listener, Segment::SynAck);
    }

    /// The opener's connection is established.
    fn established(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let end = &mut stream.opener;
        end.connected = true;
        if !end.alive {
            // Closed before it was established: the listener's end gets a reset.
            return self.send_segment(id, Side::Opener, Segment::Rst);
        }
        let (host, connection, local) = (end.host, end.connection, end.address);
        let waiting = std::mem::take(&mut end.waiting);
        self.plan_input(host, HostInput::Connected(connection, local));
        self.send_bytes(id, Side::Opener, &waiting);
        self.deliver_in_order(id, Side::Opener);
    }

    /// Receives data (or, with `None`, the FIN) at `offset`.
    fn receive_data(&mut self, id: StreamId, side: Side, offset: u64, piece: Option<Vec<u8>>) {
        if let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) {
            end.early.insert(offset, piece);
        }
        self.deliver_in_order(id, side);
    }

    fn deliver_in_order(&mut self, id: StreamId, side: Side) {
        loop {
            let Some(end) = self.streams.get_mut(&id).and_then(|s| s.end(side)) else {
                return;
            };
            if !end.connected {
                return;
            }
            let Some(piece) = end.early.remove(&end.expected) else {
                return;
            };
            let (host, connection, alive) = (end.host, end.connection, end.alive);
            let Some(bytes) = piece else {
                self.end_side(id, side, CloseReason::Peer);
                return;
            };
            end.expected += bytes.len() as u64;
            if let Some(other) = self.streams.get_mut(&id).and_then(|s| s.end(side.other())) {
                other.outstanding = other.outstanding.saturating_sub(bytes.len());
            }
            if alive {
                self.plan_input(host, HostInput::Stream(connection, bytes));
            }
        }
    }
}
