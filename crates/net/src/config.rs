//! What a driver can be told.

use std::time::Duration;

/// How media ports are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaSockets {
    /// Each has a socket.
    #[default]
    PerPort,
    /// All share one socket of each family; an error at the start where that cannot be. It needs a kernel of version 5.9 or later,
    /// CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, and a forwarder on the driver's own thread.
    One,
    /// One where that can be, each its own otherwise; [`engine::Note::MediaPath`] tells.
    Auto,
}

/// Settings of a [`crate::Driver`].
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Run the forwarder and its media sockets on a thread of their own.
    pub media_thread: bool,
    /// CPU to which the thread that calls [`crate::Driver::turn`] is pinned at its first turn.
    pub pin: Option<usize>,
    /// CPU to which the media thread is pinned.
    pub media_pin: Option<usize>,
    /// SCHED_FIFO priority (1 to 99) of the driver's threads; an error at the first turn where that is not allowed.
    pub realtime: Option<u32>,
    /// Busy-poll instead of sleeping where a deadline is nearer than this: a generator's lateness stays tiny, at the price
    /// of CPU time. Zero: always sleep. The thread that calls [`crate::Driver::turn`] does so; the media thread always sleeps.
    pub spin: Duration,
    /// Longest time that signalling may wait for more of it, so that one turn deals with a batch: as with a network card's
    /// interrupt coalescing, latency is spent where it buys capacity. The wait grows with the share of time for which the
    /// thread is busy with signalling, from nothing at a fifth to all of this at two fifths, counted from the last turn that had any. Media
    /// and deadlines do not wait. Zero: never.
    pub coalesce: Duration,
    /// Longest time that media may wait for more of it, so that one turn deals with packets of many streams: the wait grows with
    /// the rate, up to all of this where that brings eight packets together; a few streams do not wait. The thread sleeps
    /// meanwhile: signalling that comes then waits for the rest of it, too. Zero: never.
    pub gather: Duration,
    /// Whether all media ports share one socket of each family.
    pub media_sockets: MediaSockets,
    /// Addresses that media ports are opened on, where they share a socket; ports of further ones have sockets of their own.
    pub media_addresses: u8,
    /// The relay in the kernel, for streams to which nothing is to be done but to send them on; only with a forwarder on the driver's own
    /// thread.
    pub relay: Option<crate::KernelRelay>,
    /// AF_XDP for media, beside its sockets; only with a forwarder on the driver's own thread, without the relay in the kernel, and for one
    /// driver.
    pub af_xdp: Option<crate::AfXdp>,
    /// Let signalling datagrams of one length to one destination leave as one train, which the kernel takes apart at the
    /// end of its own way (UDP_SEGMENT): it costs less than half. The function tells of a datagram what it must stay in
    /// order with: those of one number keep their order, 0 keeps its order with all. A capture on the loopback interface
    /// shows a train as one long packet. `None`: no trains.
    pub order: Option<fn(&[u8]) -> u32>,
    /// Bytes of signalling that leave at once to one peer (address and port) over UDP. What exceeds them is held and follows at twice the
    /// average rate of that peer, at least at 12 MB/s, so that a backlog does not overflow the receive buffer of the peer. Zero: no bound.
    pub burst: usize,
    /// Tell the engine which signalling datagrams the network could not deliver, as ICMP says (IP_RECVERR):
    /// [`engine::Input::Unreachable`].
    pub unreachable: bool,
    /// Ask the kernel when it took in each datagram (SO_TIMESTAMPNS) and give that as `arrived`; else `arrived` is the time
    /// of the batch.
    pub receive_timestamps: bool,
    /// The same for signalling alone.
    pub signalling_timestamps: bool,
    /// Largest datagram taken on a signalling socket, bytes; larger ones are counted as `sip_too_large`.
    pub signalling_datagram: usize,
    /// Largest datagram taken on a media socket, bytes; larger ones are counted as `media_too_large`.
    pub media_datagram: usize,
    /// Receive and send buffer asked of the kernel for each signalling socket, bytes.
    pub signalling_buffer: usize,
    /// Receive and send buffer asked of the kernel for each media socket, bytes.
    pub media_buffer: usize,
    /// Differentiated services code point (RFC 2474; 0 to 63) of signalling, TCP included.
    pub signalling_dscp: u8,
    /// Differentiated services code point of media.
    pub media_dscp: u8,
    /// Stream connections at a time, both directions; further ones are refused.
    pub connections: usize,
    /// Accepted stream connections at a time from one source address.
    pub connections_per_source: usize,
    /// Bytes that may wait for a slow reader on one connection; more, and it is closed with
    /// [`engine::CloseWhy::Backpressure`].
    pub stream_buffer: usize,
    /// How long a connection may take to be opened.
    pub connect_timeout: Duration,
    /// How long the handshakes on a connection (TLS, WebSocket) may take together, from when TCP stands.
    pub handshake_timeout: Duration,
    /// Largest message taken on a WebSocket, bytes; a larger one ends it.
    pub websocket_message: usize,
    /// How long a closed connection may take to send what is left and to see the peer's end.
    pub linger: Duration,
    /// Idle time after which TCP asks whether the peer is still there.
    pub keepalive: Duration,
    /// Datagrams taken from one socket before the others have their turn.
    pub datagram_budget: usize,
    /// Bytes read from one connection before the others have their turn.
    pub stream_budget: usize,
    /// Signalling ports are shared with other drivers of this program that open the same (SO_REUSEPORT): the kernel spreads
    /// peers among them. Only programs of the same user can join.
    pub shared_ports: bool,
    /// Events kept until the program takes them with [`crate::Driver::next_event`]; later ones are counted as lost.
    pub events: usize,
}

impl Default for DriverConfig {
    fn default() -> Self {
        DriverConfig {
            media_thread: false,
            pin: None,
            media_pin: None,
            realtime: None,
            spin: Duration::ZERO,
            coalesce: Duration::ZERO,
            gather: Duration::ZERO,
            media_sockets: MediaSockets::PerPort,
            media_addresses: 1,
            relay: None,
            af_xdp: None,
            order: None,
            burst: 0,
            unreachable: false,
            receive_timestamps: false,
            signalling_timestamps: false,
            signalling_datagram: 65_535,
            media_datagram: 2_048,
            signalling_buffer: 8 << 20,
            media_buffer: 512 << 10,
            signalling_dscp: 0,
            media_dscp: 0,
            connections: 10_000,
            connections_per_source: 1_000,
            stream_buffer: 512 << 10,
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            websocket_message: 65_535,
            linger: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
            datagram_budget: 256,
            stream_budget: 256 << 10,
            shared_ports: false,
            events: 65_536,
        }
    }
}
