//! What an endpoint is told once.

use crate::moves::Moves;
use core::time::Duration;
use engine::{Limits, Worker};

/// The base values of RFC 3261 section 17.1.1.1 (table 4 in its appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// Round trip estimate; 500 ms.
    pub t1: Duration,
    /// Longest interval between retransmissions of non-INVITE requests and INVITE responses; 4 s.
    pub t2: Duration,
    /// Longest life of a message in the network; 5 s.
    pub t4: Duration,
    /// How long the user may take to answer the INVITE of a new call before a 100 goes out; 200 ms (section 17.2.1).
    /// Zero: at once. A re-INVITE's waits for 200 ms at least.
    pub trying: Duration,
    /// Stream connections without traffic for so long are closed (half a message counts as no traffic); 15 minutes.
    pub idle: Duration,
    /// How long a message on a stream may take from its first byte to its last; 30 seconds.
    pub message: Duration,
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
    /// Session-Expires that we ask for, in seconds; 1800 is the RFC's advice (section 4).
    pub expires: u32,
    /// Smallest interval that we take (Min-SE), in seconds; at least 90 (section 5).
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

/// What an [`crate::Endpoint`] is told once.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Written as User-Agent in requests and Server in responses; empty: neither header.
    pub user_agent: String,
    /// Methods of Allow; also what an in-dialog 405 names.
    pub allow: String,
    /// Option tags that we understand: written as Supported, and a Require or Proxy-Require of any other is answered
    /// with 420 (RFC 3261 section 8.2.2.3). `timer` is written only where `session` is given.
    pub supported: Vec<String>,
    /// Session timers; `None`: we ask for none, yet follow a peer that does.
    pub session: Option<SessionConfig>,
    /// Base timers.
    pub timers: TimerConfig,
    /// Capacities: `calls` legs times two, `transactions`, `connections`, `connections_per_source`, `message_bytes`.
    pub limits: Limits,
    /// Out-of-dialog requests (not OPTIONS, which ends here) with Max-Forwards 0 are answered 483: for elements that
    /// pass requests on (RFC 3261 section 16.3).
    pub check_max_forwards: bool,
    /// Responses over UDP always go to the port from which the request came, as if the peer had asked for rport
    /// (RFC 3581): the way to reach phones behind NAT that do not ask.
    pub symmetric_responses: bool,
    /// Over UDP a source that [`crate::User::greet`] does not know gets at most twice the bytes of its requests: whoever writes
    /// another's address into a datagram must not find an amplifier (RFC 3261 section 26.3.2.4).
    pub bounded_answers: bool,
    /// Connections over WebSocket are opened too, as a phone in a browser does (RFC 7118): what we send to a flow over WS or WSS
    /// that has no connection opens one. Nobody can connect to such a listening point, so give it a name of its own that
    /// ends in `.invalid` as [`crate::Local::advertised`] (section 5.1); what belongs to a dialog comes and goes by the
    /// connection. Where not, flows over WebSocket without a connection are refused: a server waits for clients.
    pub opens_websockets: bool,
    /// Which one it is of several that share the addresses of their listening points.
    pub worker: Worker,
    /// Dialogs that the workers have taken over from each other: one and the same for all of them; `None`: they take none.
    pub moves: Option<Moves>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            user_agent: String::from("Hornwork"),
            allow: String::from(
                "INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, NOTIFY, MESSAGE",
            ),
            supported: ["100rel", "timer", "replaces"].map(String::from).to_vec(),
            session: None,
            timers: TimerConfig::default(),
            limits: Limits::default(),
            check_max_forwards: false,
            symmetric_responses: false,
            bounded_answers: false,
            opens_websockets: false,
            worker: Worker::default(),
            moves: None,
        }
    }
}
