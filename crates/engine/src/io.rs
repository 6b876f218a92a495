//! What goes into an engine and what comes out of it.

use crate::event::Event;
use crate::sieve::Sieve;
use crate::time::{Deadline, Time};
use crate::worker::Parcel;
use core::fmt;
use std::net::SocketAddr;

/// A socket, by the number that the engine gave it when it asked for it to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// A stream connection. Numbers below `1 << 63` are given by the engine ([`Output::Connect`]), the others by the driver
/// ([`Input::Accepted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The bit that is set in every number that a driver gives to an accepted connection.
    pub const ACCEPTED: u64 = 1 << 63;
    /// Where the number of the worker stands that holds a connection: eight bits from this one on.
    const WORKER: u32 = 48;

    /// The bits of a connection's number that say which worker holds it.
    pub const fn of_worker(number: u8) -> u64 {
        (number as u64) << ConnectionId::WORKER
    }

    /// The worker that holds a connection of a peer's.
    pub const fn worker(self) -> u8 {
        (self.0 >> ConnectionId::WORKER) as u8
    }
}

/// SIP transports (RFC 3261 section 18, RFC 7118).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket.
    Ws,
    /// Secure WebSocket.
    Wss,
}

impl Transport {
    /// As written in a Via header.
    pub const fn via_name(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
            Transport::Ws => "WS",
            Transport::Wss => "WSS",
        }
    }

    /// As written in a `transport=` URI parameter.
    pub const fn uri_name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            Transport::Ws => "ws",
            Transport::Wss => "wss",
        }
    }

    /// Whether the transport itself delivers everything in order (RFC 3261: "reliable").
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Transport::Udp)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri_name())
    }
}

/// What a socket is for: the driver chooses its buffers, and the plane that reads it, by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketKind {
    /// SIP or DNS datagrams: read by the control plane.
    UdpSignalling,
    /// RTP and RTCP: read by the forwarder where the host has one, else by the engine itself.
    UdpMedia,
    /// A listening TCP socket; its connections arrive as [`Input::Accepted`].
    TcpListener,
    /// The same with TLS on every connection: bytes are given and taken in the clear.
    TlsListener,
    /// The same with WebSocket (RFC 6455) on every connection: each [`Input::Stream`] is one whole message, and each
    /// [`Output::Stream`] is sent as one.
    WsListener,
    /// The same with WebSocket over TLS.
    WssListener,
}

impl SocketKind {
    /// The socket that takes in SIP over `transport`.
    pub const fn signalling(transport: Transport) -> SocketKind {
        match transport {
            Transport::Udp => SocketKind::UdpSignalling,
            Transport::Tcp => SocketKind::TcpListener,
            Transport::Tls => SocketKind::TlsListener,
            Transport::Ws => SocketKind::WsListener,
            Transport::Wss => SocketKind::WssListener,
        }
    }

    /// What a listener of streams takes in; `None` for datagrams.
    pub const fn stream(self) -> Option<Transport> {
        match self {
            SocketKind::UdpSignalling | SocketKind::UdpMedia => None,
            SocketKind::TcpListener => Some(Transport::Tcp),
            SocketKind::TlsListener => Some(Transport::Tls),
            SocketKind::WsListener => Some(Transport::Ws),
            SocketKind::WssListener => Some(Transport::Wss),
        }
    }
}

/// What a connection that the engine opens is protected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secure<'a> {
    /// Whom the peer's certificate must name: the domain that was looked up (RFC 5922 section 7.3), or an IP address.
    pub name: &'a str,
    /// By which settings of the driver's (trust anchors, our own certificate); empty: those for anyone.
    pub profile: &'a str,
}

/// A datagram as the driver hands it to the control plane.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The socket on which it came.
    pub socket: SocketId,
    /// Who sent it.
    pub source: SocketAddr,
    /// When the kernel took it in, where the driver can tell; else the time of the batch.
    pub arrived: Time,
    /// The payload. Engines may change it in place.
    pub bytes: &'a mut [u8],
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseWhy {
    /// The peer closed it in order.
    Peer,
    /// Reset or another error of the network.
    Error,
    /// It could not be opened.
    Refused,
    /// The peer reads too slowly: its share of the send buffer is full.
    Backpressure,
    /// The engine asked for it.
    Engine,
    /// TLS came to nothing: the certificate, its name, versions or ciphers. The driver told why by an event.
    Untrusted,
}

/// One input to an engine that stands at the network.
#[derive(Debug)]
pub enum Input<'a> {
    /// Nothing but time: a deadline has come.
    Timeout,
    /// A datagram.
    Datagram(Datagram<'a>),
    /// A peer opened a connection to the listener `socket`.
    Accepted {
        /// The connection's number, given by the driver.
        connection: ConnectionId,
        /// The listener.
        socket: SocketId,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// A connection that the engine asked for stands.
    Connected {
        /// The engine's number of it.
        connection: ConnectionId,
        /// Our end.
        local: SocketAddr,
    },
    /// TLS stands on a connection, before any of its bytes are told.
    Secured {
        /// The connection.
        connection: ConnectionId,
        /// The SIP domains that the peer's verified certificate stands for (RFC 5922 section 7.1), in lower case; none
        /// where it showed no certificate.
        names: &'a [String],
    },
    /// Bytes of a connection, in order.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A connection has ended, or could not be opened.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        why: CloseWhy,
    },
    /// The network says that a datagram of ours could not be delivered (ICMP). Anybody can forge that.
    Unreachable {
        /// The socket from which it was sent.
        socket: SocketId,
        /// Where it was sent.
        destination: SocketAddr,
        /// Its beginning, as far as the network quotes it.
        bytes: &'a [u8],
    },
    /// A socket that the engine asked for is open.
    Opened {
        /// The socket.
        socket: SocketId,
        /// The address that it has (with the port that the kernel chose, where the engine asked for port 0).
        local: SocketAddr,
    },
    /// What a sieve ([`Output::Sieve`]) has dropped at a socket since that was last told; told whenever it is changed.
    Sifted {
        /// The socket.
        socket: SocketId,
        /// Datagrams.
        dropped: u64,
    },
    /// A socket could not be opened.
    OpenFailed {
        /// The socket.
        socket: SocketId,
        /// The operating system's words.
        error: &'a str,
    },
    /// Another worker hands this over.
    Handed(Parcel<'a>),
}

/// What is done with a recording of an engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// It begins: a new file of this name in the folder for recordings. The name has no path in it.
    Begin {
        /// The name.
        name: &'a str,
    },
    /// These bytes are appended.
    Append {
        /// The bytes; a piece that the disk does not take in time is left out as a whole, and counted.
        bytes: &'a [u8],
    },
    /// It is over.
    End,
}

/// One output of an engine that stands at the network. Byte slices are valid until the next call into the engine.
#[derive(Debug)]
pub enum Output<'a> {
    /// Open a socket. Answered by [`Input::Opened`] or [`Input::OpenFailed`].
    Open {
        /// The engine's number for it.
        socket: SocketId,
        /// What it is for.
        kind: SocketKind,
        /// Where; port 0 lets the driver choose.
        local: SocketAddr,
    },
    /// Close a socket; a listener's connections stay.
    Shut {
        /// The socket.
        socket: SocketId,
    },
    /// Drop datagrams at a signalling socket before they are read, from now on. Answered by [`Input::Sifted`]; a driver that
    /// cannot do it answers with nothing dropped, and drops nothing.
    Sieve {
        /// The socket.
        socket: SocketId,
        /// Which; `None`: none any more.
        sieve: Option<Sieve>,
    },
    /// Send a datagram.
    Datagram {
        /// From this socket.
        socket: SocketId,
        /// To this address.
        destination: SocketAddr,
        /// The payload.
        bytes: &'a [u8],
    },
    /// Open a TCP connection. Answered by [`Input::Connected`] or [`Input::Closed`].
    Connect {
        /// The engine's number for it.
        connection: ConnectionId,
        /// The local address to use; port 0 lets the driver choose.
        local: Option<SocketAddr>,
        /// The peer.
        remote: SocketAddr,
        /// TLS over it; `None`: in the clear.
        secure: Option<Secure<'a>>,
        /// A WebSocket in it, for SIP: each [`Output::Stream`] is sent as one message, and each [`Input::Stream`] is one.
        websocket: bool,
    },
    /// Send bytes on a connection. They may be given before it is connected.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Close a connection, after what was given before has been sent.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// Hand this to another worker of the host: [`Input::Handed`] there, in the order of what is handed from here.
    Hand {
        /// Which one.
        worker: u8,
        /// What.
        parcel: Parcel<'a>,
    },
    /// Something for a file. A driver without a folder for recordings drops it, and counts that.
    Record {
        /// The engine's number for the recording.
        file: u64,
        /// What.
        record: Record<'a>,
    },
    /// Something worth telling.
    Event(Event),
}

/// Anything that has behaviour and stands at the network.
///
/// After every [`Engine::handle`], drain [`Engine::next_output`] until it gives `None`, then ask for
/// [`Engine::next_deadline`]. When the deadline comes, call `handle(Input::Timeout, now)`; an engine accepts a timeout
/// at any time.
pub trait Engine {
    /// Take one input at the time `now`. Time never runs backwards.
    fn handle(&mut self, input: Input<'_>, now: Time);
    /// The next output, in order, or `None` where there is none left.
    fn next_output(&mut self) -> Option<Output<'_>>;
    /// When the engine next wants to be called.
    fn next_deadline(&self) -> Option<Deadline>;
}

/// A control plane: an engine that also commands a forwarder.
pub trait Control: Engine {
    /// What it tells the forwarder: plain values.
    type Command: Send;
    /// What the forwarder tells it.
    type Report: Send;
    /// The next command for the forwarder; drained after the outputs.
    fn next_command(&mut self) -> Option<Self::Command>;
    /// Take a report of the forwarder; then outputs, commands and deadline are asked for again.
    fn report(&mut self, report: Self::Report, now: Time);
}

/// A packet in the hands of the forwarder.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The socket on which it came.
    pub socket: SocketId,
    /// Who sent it.
    pub source: SocketAddr,
    /// When the kernel took it in, where the driver can tell; else the time of the batch.
    pub arrived: Time,
    /// The payload, and room behind it into which it may grow.
    pub buffer: &'a mut [u8],
    /// Length of the payload in bytes; what the driver sends. At most that of `buffer`.
    pub length: usize,
}

impl<'a> Packet<'a> {
    /// Bytes that a driver leaves behind a received packet at least, for what protection adds (SRTP: 148 at most).
    pub const ROOM: usize = 160;

    /// A packet that fills its buffer: it cannot grow.
    pub fn new(
        socket: SocketId,
        source: SocketAddr,
        arrived: Time,
        bytes: &'a mut [u8],
    ) -> Packet<'a> {
        Packet {
            socket,
            source,
            arrived,
            length: bytes.len(),
            buffer: bytes,
        }
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }

    /// The payload, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.length).unwrap_or_default()
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the packet, as it now is, from `socket` to `destination`.
    Forward {
        /// The socket to send from.
        socket: SocketId,
        /// Where to.
        destination: SocketAddr,
    },
    /// It has served its purpose here.
    Consumed,
    /// Control has to look at it, for this reason.
    Punt(&'static str),
    /// Dropped, and counted under this reason.
    Drop(crate::DropReason),
}

/// A forwarder: moves packets by table. It never asks a question, never allocates in the steady state, never waits.
pub trait Forward {
    /// What control tells it.
    type Command: Send;
    /// What it tells control.
    type Report: Send;
    /// Take a command.
    fn command(&mut self, command: Self::Command, now: Time);
    /// Packets that came to these sockets are next, in this order. What will be looked up for them may be read ahead, so that the
    /// memory it lies in is waited for once and not packet by packet. Nothing is decided here.
    fn expect(&mut self, _sockets: &[Option<SocketId>]) {}
    /// Decide about one packet, changing it in place.
    fn forward(&mut self, packet: &mut Packet<'_>, now: Time) -> Verdict;
    /// Do what is due by time alone (inactivity, statistics).
    fn timeout(&mut self, now: Time);
    /// A packet of its own making (RTCP, keep-alive), to be sent; `None` where there is none left.
    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        None
    }
    /// The next report to control.
    fn next_report(&mut self) -> Option<Self::Report>;
    /// When [`Forward::timeout`] is next wanted.
    fn next_deadline(&self) -> Option<Deadline>;
    /// Whether the driver can let streams pass by on a faster way. Where it does not say so, none is proposed.
    fn allow_shortcuts(&mut self, _allowed: bool) {}
    /// What is to be done about shortcuts: asked for after every command, every packet or batch of packets, and every timeout. What
    /// the forwarder was told to do meanwhile may wait for the answers.
    fn next_shortcut(&mut self) -> Option<crate::ShortcutChange> {
        None
    }
    /// The shortcut of the stream that comes to `socket` is closed, because that was asked for, or because a packet came to the socket
    /// that could not take it: then before [`Forward::forward`] sees that packet.
    fn shortcut_closed(&mut self, _socket: SocketId, _passed: &crate::Passed, _now: Time) {}
}

/// Wraps an engine and panics where the caller breaks the order of calls; for tests and debug builds.
#[derive(Debug)]
pub struct Checked<E> {
    engine: E,
    draining: bool,
    last: Time,
}

impl<E: Engine> Checked<E> {
    /// Watches over `engine`.
    pub fn new(engine: E) -> Self {
        Checked {
            engine,
            draining: false,
            last: Time::ZERO,
        }
    }

    /// The engine inside.
    pub fn get(&mut self) -> &mut E {
        &mut self.engine
    }
}

impl<E: Engine> Engine for Checked<E> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        assert!(!self.draining, "outputs were left when an input came");
        assert!(now >= self.last, "time ran backwards");
        self.last = now;
        self.draining = true;
        self.engine.handle(input, now);
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let output = self.engine.next_output();
        if output.is_none() {
            self.draining = false;
        }
        output
    }

    fn next_deadline(&self) -> Option<Deadline> {
        assert!(
            !self.draining,
            "the deadline was asked for before the outputs"
        );
        self.engine.next_deadline()
    }
}
