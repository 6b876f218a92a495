//! Configuration of a driver.

use std::time::Duration;

/// Sockets of media ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaSockets {
    /// One socket per port.
    #[default]
    PerPort,
    /// One shared-port socket per address family; the start fails if it is not possible. It needs kernel 5.9 or
    /// later, CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, and the forwarder, if there is one, on the driver's own thread.
    One,
    /// The shared-port socket if possible, else one socket per port; [`engine::EventKind::MediaPath`] reports the
    /// choice.
    Auto,
}

/// Settings of a [`crate::Driver`].
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Run the forwarder and its media sockets on a separate thread.
    pub media_thread: bool,
    /// CPU to which the thread that calls [`crate::Driver::turn`] is pinned at its first turn.
    pub pin: Option<usize>,
    /// CPU to which the media thread is pinned.
    pub media_pin: Option<usize>,
    /// SCHED_FIFO priority (1 to 99) of the driver's threads; the first turn fails if it is not permitted.
    pub realtime: Option<u32>,
    /// Busy-poll instead of sleeping this long before a deadline: it lowers the lateness of a load generator at the
    /// cost of CPU time. Zero: always sleep. Applies to the thread that calls [`crate::Driver::turn`]; the media
    /// thread always sleeps.
    pub spin: Duration,
    /// Longest batching delay of signalling, so that one turn processes a batch: like the interrupt coalescing of a
    /// network card, it trades latency for capacity. The delay grows with the share of time in which the thread is
    /// busy with signalling, from zero at a fifth to this value at two fifths, and counts from the last turn that
    /// received signalling. Media and deadlines are not delayed. Zero: no delay.
    pub signalling_batching_delay: Duration,
    /// Longest batching delay of media, so that one turn processes packets of many streams: the delay grows with the
    /// packet rate, up to this value at eight packets per delay; a few streams are not delayed. The thread sleeps
    /// meanwhile, so signalling is delayed by the rest of it, too. Zero: no delay.
    pub media_batching_delay: Duration,
    /// Whether media ports share one socket per address family.
    pub media_sockets: MediaSockets,
    /// Number of addresses with media ports on the shared-port socket; ports of further addresses get one socket
    /// each.
    pub media_addresses: u8,
    /// The kernel relay, for streams that are forwarded without change; only with a forwarder on the driver's own
    /// thread.
    pub relay: Option<crate::KernelRelay>,
    /// AF_XDP for media, in addition to its sockets; only with a forwarder on the driver's own thread, without the
    /// kernel relay, and for one driver.
    pub af_xdp: Option<crate::AfXdp>,
    /// Send signalling datagrams of one length to one destination as a GSO burst, which the kernel segments at the
    /// end of its transmit path (UDP_SEGMENT): it costs less than half. The function maps a datagram to an order
    /// number: datagrams of one number keep their order, 0 keeps its order with all. A capture on the loopback
    /// interface shows a burst as one long packet. `None`: no GSO.
    pub gso_order: Option<fn(&[u8]) -> u32>,
    /// Signalling bytes sent at once to one peer (address and port) over UDP. Datagrams above it are held and sent at
    /// twice the average rate of that peer, at least at 12 MB/s, so that a backlog does not overflow the receive
    /// buffer of the peer. Zero: no bound.
    pub pacing_burst: usize,
    /// Report signalling datagrams that the network could not deliver (ICMP, IP_RECVERR) to the engine:
    /// [`engine::Input::Unreachable`].
    pub report_unreachable: bool,
    /// Use the kernel's receive time of each datagram (SO_TIMESTAMPNS) as `arrived`; otherwise `arrived` is the time
    /// of the batch.
    pub receive_timestamps: bool,
    /// The same for signalling only.
    pub signalling_timestamps: bool,
    /// Largest datagram accepted on a signalling socket, bytes; larger ones are counted as `sip_too_large`.
    pub signalling_datagram: usize,
    /// Largest datagram accepted on a media socket, bytes; larger ones are counted as `media_too_large`.
    pub media_datagram: usize,
    /// Receive and send buffer requested for each signalling socket, bytes.
    pub signalling_buffer: usize,
    /// Receive and send buffer requested for each media socket, bytes.
    pub media_buffer: usize,
    /// Differentiated services code point (RFC 2474; 0 to 63) of signalling, TCP included.
    pub signalling_dscp: u8,
    /// Differentiated services code point of media.
    pub media_dscp: u8,
    /// Simultaneous accepted stream connections, and as many opened ones; further ones are refused.
    pub connections: usize,
    /// Simultaneous accepted stream connections from one source address.
    pub connections_per_source: usize,
    /// Bytes queued for a slow reader on one connection; above it the connection is closed with
    /// [`engine::CloseReason::Backpressure`].
    pub stream_buffer: usize,
    /// Timeout of opening a TCP connection.
    pub connect_timeout: Duration,
    /// Timeout of all handshakes on a connection (TLS, WebSocket) together, from the moment at which TCP is
    /// established.
    pub handshake_timeout: Duration,
    /// TLS handshakes of accepted connections per second; the bytes of further ones are read later. One source network
    /// gets at most half of them. Zero: no limit.
    pub handshakes_per_second: u32,
    /// Largest message accepted on a WebSocket, bytes; a larger one closes it.
    pub websocket_message: usize,
    /// Time in which a closed connection may send its queued data and receive the peer's end.
    pub linger: Duration,
    /// Idle time after which TCP keep-alive probes are sent on accepted connections. A peer that has acknowledged
    /// nothing for twice this time is dead (TCP_USER_TIMEOUT). Zero: neither.
    pub keepalive: Duration,
    /// Time in which the peer of an opened connection has to acknowledge data or keep-alive probes; these begin after
    /// half of it. It is short, because a new connection can be opened. Zero: as accepted connections.
    pub unacknowledged: Duration,
    /// Datagrams read from one socket before the others are served.
    pub datagram_budget: usize,
    /// Bytes read from one connection before the others are served.
    pub stream_budget: usize,
    /// Share signalling ports with other drivers of this program that open the same ones (SO_REUSEPORT): the kernel
    /// distributes peers among them. Only programs of the same user can join.
    pub shared_ports: bool,
    /// Interface of all UDP and TCP sockets (SO_BINDTODEVICE): their packets pass it also to destinations that the
    /// routes would send elsewhere. Not for the shared-port socket and AF_XDP. `None`: the routes decide.
    pub device: Option<String>,
    /// Wait up to a quarter of a second for an ephemeral port while all are in use. The packets of the thread wait as
    /// well.
    pub waits_for_ports: bool,
    /// Events queued until the program reads them with [`crate::Driver::next_event`]; later ones are counted as lost.
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
            signalling_batching_delay: Duration::ZERO,
            media_batching_delay: Duration::ZERO,
            media_sockets: MediaSockets::PerPort,
            media_addresses: 1,
            relay: None,
            af_xdp: None,
            gso_order: None,
            pacing_burst: 0,
            report_unreachable: false,
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
            handshakes_per_second: 0,
            websocket_message: 65_535,
            linger: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
            unacknowledged: Duration::from_secs(32),
            datagram_budget: 256,
            stream_budget: 256 << 10,
            shared_ports: false,
            device: None,
            waits_for_ports: true,
            events: 65_536,
        }
    }
}
