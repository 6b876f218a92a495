//! Configuration of an endpoint.

use crate::moved_table::MovedDialogs;
use core::time::Duration;
use engine::{Limits, Worker};

/// The base values of RFC 3261 section 17.1.1.1 (table 4 in its appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// Round-trip time estimate; 500 ms.
    pub t1: Duration,
    /// Longest interval between retransmissions of non-INVITE requests and INVITE responses; 4 s.
    pub t2: Duration,
    /// Longest time that a message remains in the network; 5 s.
    pub t4: Duration,
    /// Time that the handler has to answer the INVITE of a new call before a 100 is sent; 200 ms (section 17.2.1).
    /// Zero: at once. For a re-INVITE it is at least 200 ms.
    pub trying: Duration,
    /// Stream connections without traffic for this long are closed (an incomplete message is not traffic), unless a
    /// dialog or the handler needs them; 15 minutes.
    pub idle: Duration,
    /// Longest time from the first to the last byte of a message on a stream, and until the first message on an
    /// accepted connection; 30 seconds.
    pub message: Duration,
}

impl TimerConfig {
    /// Time after which an accepted connection without a SIP message is closed, also if its peer sends keep-alives.
    pub(crate) fn unspoken(&self) -> Duration {
        self.message.min(self.idle)
    }
}

impl Default for TimerConfig {
    fn default() -> Self {
        TimerConfig {
            t1: Duration::from_millis(500),
            t2: Duration::from_secs(4),
            t4: Duration::from_secs(5),
            trying: Duration::from_millis(200),
            idle: Duration::from_secs(900),
            message: Duration::from_secs(30),
        }
    }
}

/// Session timers (RFC 4028) of our legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Requested Session-Expires in seconds; the RFC recommends 1800 (section 4).
    pub expires: u32,
    /// Smallest accepted interval (Min-SE) in seconds; at least 90 (section 5).
    pub min_se: u32,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            expires: 1_800,
            min_se: 90,
        }
    }
}

/// Configuration of an [`crate::Endpoint`].
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Value of User-Agent in requests and Server in responses; empty: neither header is written.
    pub user_agent: String,
    /// Methods in Allow, also of an in-dialog 405.
    pub allow: String,
    /// Supported option tags. They are written as Supported, and a Require or Proxy-Require with any other is answered
    /// with 420 (RFC 3261 section 8.2.2.3). `timer` is written only if `session` is given.
    pub supported: Vec<String>,
    /// Option tags that are accepted in Proxy-Require alone, for services of a proxy, for example `privacy` (RFC 3323
    /// section 4.2). They are not written as Supported.
    pub proxy_services: Vec<String>,
    /// Session timers; `None`: none is requested, but the peer's is accepted.
    pub session: Option<SessionConfig>,
    /// Base timers.
    pub timers: TimerConfig,
    /// Capacities: twice `calls` legs, `transactions`, `connections`, `connections_per_source`, `message_bytes`.
    pub limits: Limits,
    /// This element forwards requests: out-of-dialog requests with Max-Forwards 0 are answered with 483 (RFC 3261
    /// section 16.3; except OPTIONS, which ends here), and INVITEs are merged (section 8.2.2.2) only if their
    /// Request-URI is the same.
    pub forwards: bool,
    /// Responses over UDP to a request from behind NAT are sent to its source port, as if it had rport (RFC 3581): this
    /// reaches phones that do not use rport. The request shows a NAT if sent-by has another address than its source, or
    /// a name (see [`crate::Endpoint::set_nat_expected`]).
    pub symmetric_responses: bool,
    /// Over UDP an untrusted source (see [`crate::Handler::on_new_request`]) gets at most twice the bytes of its
    /// requests, so that a forged source address gives no amplification (RFC 3261 section 26.3.2.4).
    pub bounded_answers: bool,
    /// WebSocket connections are opened too, as a phone in a browser does (RFC 7118): sending to a WS or WSS flow
    /// without a connection opens one. Peers cannot connect to such a listener, so give it a name that ends in
    /// `.invalid` as [`crate::ListenerConfig::advertised`] (section 5.1); messages of a dialog use the connection. If
    /// false, sending to a WebSocket flow without a connection is refused, because a server waits for clients.
    pub opens_websockets: bool,
    /// This endpoint's number among the workers that share the addresses of its listeners.
    pub worker: Worker,
    /// Dialogs that moved between workers; the same table for all workers. `None`: dialogs do not move.
    pub moved_dialogs: Option<MovedDialogs>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            user_agent: String::from("Hornwork"),
            allow: String::from(
                "INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, NOTIFY, MESSAGE",
            ),
            supported: ["100rel", "timer", "replaces"].map(String::from).to_vec(),
            proxy_services: Vec::new(),
            session: None,
            timers: TimerConfig::default(),
            limits: Limits::default(),
            forwards: false,
            symmetric_responses: false,
            bounded_answers: false,
            opens_websockets: false,
            worker: Worker::default(),
            moved_dialogs: None,
        }
    }
}
