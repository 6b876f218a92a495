//! What a run of a scenario was told besides the scenario.

use crate::pace::Pace;
use crate::sipp::schedule::Limits;
use engine::{Time, Transport};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// What a call does by itself where its scenario says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviours {
    /// An aborted call is ended by BYE or CANCEL; an unexpected BYE or CANCEL is answered.
    pub bye: bool,
    /// A message that was not expected aborts the call.
    pub abort: bool,
    /// PING is answered.
    pub ping: bool,
}

impl Default for Behaviours {
    fn default() -> Self {
        Behaviours {
            bye: true,
            abort: true,
            ping: true,
        }
    }
}

/// Settings of one generator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[service]`
    pub service: String,
    /// `[remote_host]`
    pub remote_host: String,
    /// Where calls go; none where they come from the peer.
    pub remote: Option<SocketAddr>,
    /// Our address; port 0 lets the kernel choose.
    pub local: SocketAddr,
    /// Address for media.
    pub media_ip: IpAddr,
    /// First port for media.
    pub media_port: u16,
    /// UDP, TCP or TLS.
    pub transport: Transport,
    /// Whom the peer's certificate must stand for.
    pub peer_name: String,
    /// A socket or connection of its own for each call.
    pub per_call: bool,
    /// Pauses without a length of their own last as long.
    pub hold: Duration,
    /// User name for digest.
    pub username: String,
    /// Password for digest.
    pub password: String,
    /// The `uri` of digest, instead of the request's.
    pub digest_uri: Option<String>,
    /// Behaviour where the scenario says nothing.
    pub behaviours: Behaviours,
    /// INFO, NOTIFY, OPTIONS and UPDATE are answered where they are not expected.
    pub auto_answer: bool,
    /// Longest wait for a message.
    pub receive_timeout: Option<Duration>,
    /// Retransmissions of an INVITE, and of other messages, before a call fails.
    pub retransmissions: [u32; 2],
    /// Longest time between two retransmissions of what is no INVITE.
    pub t2: Duration,
    /// Messages are retransmitted at all.
    pub retransmits: bool,
    /// First `[cseq]`.
    pub base_cseq: u32,
    /// Call-ID: `%u` number of the call, `%p` `[pid]`, `%s` our address.
    pub call_id: String,
    /// Calls are made by so many users, one after the other each; 0: by the plan.
    pub users: u64,
    /// Media is sent back to where it came from.
    pub echo: bool,
    /// How long a server remembers the calls that are over, so that late messages open no new ones.
    pub remember: Duration,
    /// Percent of the messages that are lost, both ways.
    pub lost: f64,
    /// `[pid]`
    pub pid: u32,
    /// This generator's index, and how many there are.
    pub share: (u64, u64),
    /// The rate of calls.
    pub pace: Pace,
    /// What limits them.
    pub limits: Limits,
    /// When the plan begins.
    pub start: Time,
    /// Calls due within this time of each other are made together.
    pub batch: Duration,
    /// Calls that exist at a time, those that linger included.
    pub room: usize,
    /// Nanoseconds since 1970 at the beginning of time.
    pub wall: u64,
    /// A call's lateness is known when it begins, as in virtual time; else when [`super::engine::Generator::settle`] is told.
    pub at_once: bool,
    /// Every message is told.
    pub trace: bool,
    /// Variables set beforehand.
    pub preset: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        Settings {
            service: "service".to_owned(),
            remote_host: String::new(),
            remote: None,
            local,
            media_ip: local.ip(),
            media_port: 6_000,
            transport: Transport::Udp,
            peer_name: String::new(),
            per_call: false,
            hold: Duration::ZERO,
            username: "service".to_owned(),
            password: "password".to_owned(),
            digest_uri: None,
            behaviours: Behaviours::default(),
            auto_answer: false,
            receive_timeout: None,
            retransmissions: [5, 7],
            t2: Duration::from_secs(4),
            retransmits: true,
            base_cseq: 1,
            call_id: "%u-%p@%s".to_owned(),
            users: 0,
            echo: false,
            remember: Duration::from_secs(4),
            lost: 0.0,
            pid: 1,
            share: (0, 1),
            pace: Pace::Constant { rate: 10.0 },
            limits: Limits::default(),
            start: Time::ZERO,
            batch: Duration::ZERO,
            room: 1_000_000,
            wall: 0,
            at_once: false,
            trace: false,
            preset: Vec::new(),
        }
    }
}
