//! Inputs and outputs of engines, and the interfaces of control plane and forwarder.

use crate::event::Event;
use crate::socket_filter::SocketFilter;
use crate::time::{Deadline, Time};
use crate::worker::HandoffMessage;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A socket; the engine assigns the number when it requests the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SocketId(pub u32);

/// A stream connection. The engine assigns numbers below `1 << 63` ([`Output::Connect`]), the driver the others
/// ([`Input::Accepted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The bit that is set in the number of every accepted connection.
    pub const ACCEPTED: u64 = 1 << 63;
    /// Position of the worker's number in the connection's number: eight bits from this one on.
    const WORKER_SHIFT: u32 = 48;

    /// The bits of a connection's number that identify the worker that owns it.
    pub const fn of_worker(number: u8) -> u64 {
        (number as u64) << ConnectionId::WORKER_SHIFT
    }

    /// The worker that owns an accepted connection.
    pub const fn worker(self) -> u8 {
        (self.0 >> ConnectionId::WORKER_SHIFT) as u8
    }
}

/// SIP transports (RFC 3261 section 18, RFC 7118).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// The name in a Via header.
    pub const fn via_name(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
            Transport::Ws => "WS",
            Transport::Wss => "WSS",
        }
    }

    /// The value of a `transport=` URI parameter.
    pub const fn uri_name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            Transport::Ws => "ws",
            Transport::Wss => "wss",
        }
    }

    /// The default port (RFC 3261 section 19.1.2, RFC 7118 section 5.2.4).
    pub const fn default_port(self) -> u16 {
        match self {
            Transport::Udp | Transport::Tcp => 5060,
            Transport::Tls => 5061,
            Transport::Ws => 80,
            Transport::Wss => 443,
        }
    }

    /// Whether the transport delivers reliably and in order (RFC 3261: "reliable").
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Transport::Udp)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri_name())
    }
}

/// The purpose of a socket. It determines its buffers, and the plane that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketKind {
    /// SIP or DNS datagrams, read by the control plane.
    UdpSignalling,
    /// RTP and RTCP, read by the forwarder of the host, or by the engine on a host without one.
    UdpMedia,
    /// ESP packets from the SPI on, in IP protocol 50 without UDP; ports are 0. The IP headers are those of the driver.
    Esp,
    /// A listening TCP socket; its connections arrive as [`Input::Accepted`].
    TcpListener,
    /// A TCP listener with TLS on every connection; the engine exchanges plain text with the driver.
    TlsListener,
    /// A TCP listener with WebSocket (RFC 6455) on every connection: each [`Input::Stream`] is a complete message, and
    /// each [`Output::Stream`] is sent as one.
    WsListener,
    /// A TCP listener with WebSocket over TLS on every connection.
    WssListener,
}

impl SocketKind {
    /// The kind of socket that receives SIP over `transport`.
    pub const fn signalling(transport: Transport) -> SocketKind {
        match transport {
            Transport::Udp => SocketKind::UdpSignalling,
            Transport::Tcp => SocketKind::TcpListener,
            Transport::Tls => SocketKind::TlsListener,
            Transport::Ws => SocketKind::WsListener,
            Transport::Wss => SocketKind::WssListener,
        }
    }

    /// The transport of a stream listener; `None` for datagram sockets.
    pub const fn stream_transport(self) -> Option<Transport> {
        match self {
            SocketKind::UdpSignalling | SocketKind::UdpMedia | SocketKind::Esp => None,
            SocketKind::TcpListener => Some(Transport::Tcp),
            SocketKind::TlsListener => Some(Transport::Tls),
            SocketKind::WsListener => Some(Transport::Ws),
            SocketKind::WssListener => Some(Transport::Wss),
        }
    }
}

/// TLS settings of a connection that the engine opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTls<'a> {
    /// The name that the peer's certificate must contain: the domain that was resolved (RFC 5922 section 7.3), or an IP
    /// address.
    pub server_name: &'a str,
    /// Name of the driver's settings (trust anchors, own certificate); empty for the default settings.
    pub profile: &'a str,
}

/// A datagram for the control plane.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The socket that received it.
    pub socket: SocketId,
    /// Address of the sender.
    pub source: SocketAddr,
    /// When the kernel received it; the time of the batch with drivers without kernel timestamps.
    pub arrived: Time,
    /// The payload. Engines may modify it in place.
    pub bytes: &'a mut [u8],
}

/// The reason for which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseReason {
    /// The peer closed it.
    Peer,
    /// Reset, or another error of the network.
    Error,
    /// It could not be opened.
    ConnectFailed,
    /// The peer reads too slowly: the send queue of its connection is full.
    Backpressure,
    /// The engine requested it.
    Engine,
    /// The TLS handshake failed: certificate, name, version or cipher. The driver reports the reason by an event.
    TlsFailed,
}

/// One input to an engine with network access.
#[derive(Debug)]
pub enum Input<'a> {
    /// A deadline is due.
    Timeout,
    /// A datagram.
    Datagram(Datagram<'a>),
    /// A peer opened a connection to the listener `socket`.
    Accepted {
        /// The connection; the driver assigns the number.
        connection: ConnectionId,
        /// The listener.
        socket: SocketId,
        /// Local address.
        local: SocketAddr,
        /// Address of the peer.
        remote: SocketAddr,
    },
    /// A connection that the engine requested is established.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Local address.
        local: SocketAddr,
    },
    /// The TLS handshake of a connection is complete. Precedes all bytes of the connection.
    Secured {
        /// The connection.
        connection: ConnectionId,
        /// The SIP domains of the peer's verified certificate (RFC 5922 section 7.1), in lower case; empty if it
        /// presented no certificate.
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
        /// Reason.
        reason: CloseReason,
    },
    /// An ICMP error: a datagram could not be delivered. ICMP errors can be forged.
    Unreachable {
        /// The socket that sent it.
        socket: SocketId,
        /// Its destination.
        destination: SocketAddr,
        /// Its beginning, as quoted in the ICMP message.
        bytes: &'a [u8],
    },
    /// A socket that the engine requested is open.
    Opened {
        /// The socket.
        socket: SocketId,
        /// Its address; the port is the one chosen by the kernel if the engine requested port 0.
        local: SocketAddr,
    },
    /// Datagrams dropped by the filter of a socket ([`Output::SocketFilter`]) since the last report. Reported at each
    /// change of the filter.
    Shed {
        /// The socket.
        socket: SocketId,
        /// Number of datagrams.
        dropped: u64,
    },
    /// A socket could not be opened.
    OpenFailed {
        /// The socket.
        socket: SocketId,
        /// Error of the operating system.
        error: &'a str,
    },
    /// A recording could not be begun or continued: its file takes no more data. The driver has logged the reason.
    RecordingFailed {
        /// Number of the recording.
        file: u64,
    },
    /// A message handed off by another worker.
    Handoff(HandoffMessage<'a>),
}

/// An operation on a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingCommand<'a> {
    /// Create a file of this name in the folder for recordings. The name contains no path.
    Create {
        /// The name.
        name: &'a str,
        /// The first bytes of the file: unlike later ones they are never dropped.
        header: &'a [u8],
    },
    /// Append bytes.
    Append {
        /// The bytes. If the disk is too slow they are dropped as a whole, and counted.
        bytes: &'a [u8],
    },
    /// Close the file.
    Close,
}

/// One output of an engine with network access. Byte slices are valid until the next call into the engine.
#[derive(Debug)]
pub enum Output<'a> {
    /// Open a socket. Answered by [`Input::Opened`] or [`Input::OpenFailed`].
    OpenSocket {
        /// The socket; the engine assigns the number.
        socket: SocketId,
        /// Its purpose.
        kind: SocketKind,
        /// Local address; with port 0 the driver chooses the port.
        local: SocketAddr,
    },
    /// Close a socket; connections accepted by a listener stay open.
    CloseSocket {
        /// The socket.
        socket: SocketId,
    },
    /// Set or remove the filter of a signalling socket: it drops datagrams before they are read. Answered by
    /// [`Input::Shed`]; a driver without such filters reports zero datagrams dropped.
    SocketFilter {
        /// The socket.
        socket: SocketId,
        /// The filter; `None` removes it.
        filter: Option<SocketFilter>,
    },
    /// Send a datagram.
    Datagram {
        /// The sending socket.
        socket: SocketId,
        /// Destination address.
        destination: SocketAddr,
        /// The payload.
        bytes: &'a [u8],
    },
    /// Open a TCP connection. Answered by [`Input::Connected`] or [`Input::Closed`].
    Connect {
        /// The connection; the engine assigns the number.
        connection: ConnectionId,
        /// The local address to use; with port 0 the driver chooses the port.
        local: Option<SocketAddr>,
        /// The peer.
        remote: SocketAddr,
        /// TLS; `None` for plain TCP.
        tls: Option<ClientTls<'a>>,
        /// WebSocket for SIP: each [`Output::Stream`] is sent as one message, and each [`Input::Stream`] is one.
        websocket: bool,
    },
    /// Send bytes on a connection; allowed before it is established.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Close a connection after all pending bytes have been sent.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// Hand off a message to another worker of the host. The other worker receives the messages of this one in order,
    /// as [`Input::Handoff`].
    HandOff {
        /// Number of the worker.
        worker: u8,
        /// The message.
        message: HandoffMessage<'a>,
    },
    /// Write to a recording. A driver without a folder for recordings drops and counts it. Answered by
    /// [`Input::RecordingFailed`] if the file cannot be created or written.
    Recording {
        /// Number of the recording, assigned by the engine.
        file: u64,
        /// The operation.
        command: RecordingCommand<'a>,
    },
    /// Log an event.
    Event(Event),
}

/// A state machine without IO, driven by inputs and time.
///
/// After every [`Engine::handle`], drain [`Engine::next_output`] until it returns `None`, then read
/// [`Engine::next_deadline`]. At the deadline, call `handle(Input::Timeout, now)`; an engine accepts a timeout at any
/// time.
pub trait Engine {
    /// Processes one input at the time `now`. Time never runs backwards.
    fn handle(&mut self, input: Input<'_>, now: Time);
    /// The next output, in order, or `None` if there is none left.
    fn next_output(&mut self) -> Option<Output<'_>>;
    /// The earliest time at which the engine has to be called.
    fn next_deadline(&self) -> Option<Deadline>;
    /// Due time of the next packet of an engine that sends media itself and leaves its clock to the driver, which calls
    /// [`Engine::send_media`] then: before and between received packets, so that reception makes no packet late.
    /// `None`: there is none, or the engine sends media at its deadlines.
    fn media_deadline(&self) -> Option<Time> {
        None
    }
    /// Puts the media packets that are due at `now` among the outputs, a bounded number of them, and runs no other
    /// timer.
    fn send_media(&mut self, _now: Time) {}
    /// The outputs read so far have been passed to the operating system by `now`. Called by drivers of sockets, for
    /// engines without a forwarder.
    fn flushed(&mut self, _now: Time) {}
}

/// A control plane: an engine that also controls a forwarder.
pub trait Control: Engine {
    /// Commands to the forwarder: plain values.
    type Command: Send;
    /// Reports of the forwarder.
    type Report: Send;
    /// The next command to the forwarder; drained after the outputs.
    fn next_command(&mut self) -> Option<Self::Command>;
    /// Processes a report of the forwarder; the driver then drains outputs and commands and reads the deadline.
    fn report(&mut self, report: Self::Report, now: Time);
}

/// A packet that the forwarder processes.
#[derive(Debug)]
pub struct MediaPacket<'a> {
    /// The socket that received it.
    pub socket: SocketId,
    /// Address of the sender.
    pub source: SocketAddr,
    /// When the kernel received it; the time of the batch with drivers without kernel timestamps.
    pub arrived: Time,
    /// The payload and its tailroom.
    pub buffer: &'a mut [u8],
    /// Length of the payload in bytes; the driver sends this many. At most the length of `buffer`.
    pub length: usize,
}

impl<'a> MediaPacket<'a> {
    /// Minimum of free bytes behind a received packet, for the growth by media security (SRTP: 148 at most).
    pub const TAILROOM: usize = 160;

    /// A packet without tailroom: it cannot grow.
    pub fn new(
        socket: SocketId,
        source: SocketAddr,
        arrived: Time,
        bytes: &'a mut [u8],
    ) -> MediaPacket<'a> {
        MediaPacket {
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

    /// The payload, for modification in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.length).unwrap_or_default()
    }
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketVerdict {
    /// Send the modified packet from `socket` to `destination`.
    Forward {
        /// The sending socket.
        socket: SocketId,
        /// Destination address.
        destination: SocketAddr,
    },
    /// The packet was processed; nothing is sent.
    Consumed,
    /// The control plane has to process it, for this reason.
    Punt(&'static str),
    /// Drop it and count the reason.
    Drop(crate::DropReason),
}

/// A forwarder: moves packets by table. It never queries the control plane, never allocates in the steady state, never
/// waits.
pub trait Forward {
    /// Commands of the control plane.
    type Command: Send;
    /// Reports to the control plane.
    type Report: Send;
    /// Executes a command.
    fn command(&mut self, command: Self::Command, now: Time);
    /// Prefetches the table entries of these sockets, whose packets are processed next, in this order. The cache misses
    /// of a batch then overlap instead of adding up packet by packet. No decision is made here.
    fn prefetch(&mut self, _sockets: &[Option<SocketId>]) {}
    /// Decides about one packet and modifies it in place.
    fn forward(&mut self, packet: &mut MediaPacket<'_>, now: Time) -> PacketVerdict;
    /// Runs timers (inactivity, statistics).
    fn timeout(&mut self, now: Time);
    /// The next generated packet (RTCP, keep-alive) to send; `None` if there is none left.
    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        None
    }
    /// The next report to the control plane.
    fn next_report(&mut self) -> Option<Self::Report>;
    /// The earliest time at which [`Forward::timeout`] has to be called.
    fn next_deadline(&self) -> Option<Deadline>;
    /// Enables offload: the driver has a kernel relay. Without this call no stream is offloaded.
    fn allow_offload(&mut self, _allowed: bool) {}
    /// The next change of offloaded streams. The driver calls this after every command, every packet or batch of
    /// packets, and every timeout. The forwarder may defer commands until [`Forward::offload_closed`].
    fn next_offload_change(&mut self) -> Option<crate::OffloadChange> {
        None
    }
    /// The offload of the stream received at `socket` has ended, on request or because the socket received a packet
    /// that the kernel cannot relay; in the latter case this call precedes [`Forward::forward`] for that packet.
    fn offload_closed(
        &mut self,
        _socket: SocketId,
        _statistics: &crate::OffloadStatistics,
        _now: Time,
    ) {
    }
}

/// Wraps an engine and panics if the caller breaks the order of calls; for tests and debug builds.
#[derive(Debug)]
pub struct Checked<E> {
    engine: E,
    draining: bool,
    last: Time,
}

impl<E: Engine> Checked<E> {
    /// Wraps `engine`.
    pub fn new(engine: E) -> Self {
        Checked {
            engine,
            draining: false,
            last: Time::ZERO,
        }
    }

    /// The wrapped engine.
    pub fn get(&mut self) -> &mut E {
        &mut self.engine
    }
}

impl<E: Engine> Engine for Checked<E> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        assert!(
            !self.draining,
            "an input was given before the outputs were drained"
        );
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
            "the deadline was read before the outputs were drained"
        );
        self.engine.next_deadline()
    }

    fn media_deadline(&self) -> Option<Time> {
        self.engine.media_deadline()
    }

    fn send_media(&mut self, now: Time) {
        self.engine.send_media(now);
    }

    fn flushed(&mut self, now: Time) {
        self.engine.flushed(now);
    }
}
