//! Settings of a run, besides the scenario.

use crate::pace::ArrivalProcess;
use crate::sipp::render::{decimal, ip};
use crate::sipp::schedule::CallLimits;
use engine::{ClientTls, Time, Transport};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Default behaviour of a call beyond its scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviours {
    /// An aborted call is ended by BYE or CANCEL; an unexpected BYE or CANCEL is answered.
    pub bye: bool,
    /// An unexpected message aborts the call.
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
pub struct ScenarioSettings {
    /// `[service]`
    pub service: String,
    /// `[remote_host]`
    pub remote_host: String,
    /// Destination of calls; none if they come from the peer.
    pub remote: Option<SocketAddr>,
    /// Destination of the messages of calls, in place of `remote`.
    pub send_to: Option<SocketAddr>,
    /// Local address; port 0 lets the kernel choose.
    pub local: SocketAddr,
    /// Address for media.
    pub media_ip: IpAddr,
    /// First port for media.
    pub media_port: u16,
    /// UDP, TCP or TLS.
    pub transport: Transport,
    /// Name that the peer's certificate must contain.
    pub peer_name: String,
    /// Each call has its own socket or connection.
    pub per_call: bool,
    /// Length of pauses without a length.
    pub hold: Duration,
    /// User name for digest.
    pub username: String,
    /// Password for digest.
    pub password: String,
    /// The `uri` of digest, in place of the request's.
    pub digest_uri: Option<String>,
    /// Behaviour that the scenario does not define.
    pub behaviours: Behaviours,
    /// INFO, NOTIFY, OPTIONS and UPDATE are answered if they are not expected.
    pub auto_answer: bool,
    /// Longest wait for a message.
    pub receive_timeout: Option<Duration>,
    /// Most retransmissions of an INVITE, and of other messages.
    pub retransmissions: [u32; 2],
    /// Longest retransmission interval of messages other than INVITE.
    pub t2: Duration,
    /// Whether messages are retransmitted.
    pub retransmits: bool,
    /// First `[cseq]`.
    pub base_cseq: u32,
    /// Call-ID: `%u` number of the call, `%p` `[pid]`, `%s` our address.
    pub call_id: String,
    /// Number of users that make calls, one at a time each; 0: calls follow the plan.
    pub users: u64,
    /// Received media is sent back.
    pub echo: bool,
    /// Share of the packets of an audio and of a video pattern whose payload did not come back from which on it has
    /// failed.
    pub tolerances: [f64; 2],
    /// Time for which a server remembers ended calls, so that late messages start no new ones.
    pub remember: Duration,
    /// Loss of messages, both ways, percent.
    pub lost: f64,
    /// `[pid]`
    pub pid: u32,
    /// Index of this generator, and number of generators.
    pub share: (u64, u64),
    /// The rate of calls.
    pub pace: ArrivalProcess,
    /// Limits of the calls.
    pub limits: CallLimits,
    /// Start of the plan.
    pub start: Time,
    /// Batching delay: calls due within it start together.
    pub batch: Duration,
    /// Most concurrent calls, including lingering ones.
    pub room: usize,
    /// Wall clock at time zero, nanoseconds since 1970.
    pub wall: u64,
    /// Records lateness at the start of a call, as in virtual time; otherwise at
    /// [`super::engine::ScenarioGenerator::settle`].
    pub at_once: bool,
    /// Whether every message is reported as an effect.
    pub trace: bool,
    /// Preset variables.
    pub preset: Vec<(String, String)>,
}

impl Default for ScenarioSettings {
    fn default() -> Self {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        ScenarioSettings {
            service: "service".to_owned(),
            remote_host: String::new(),
            remote: None,
            send_to: None,
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
            tolerances: [1.0; 2],
            remember: Duration::from_secs(4),
            lost: 0.0,
            pid: 1,
            share: (0, 1),
            pace: ArrivalProcess::Constant { rate: 10.0 },
            limits: CallLimits::default(),
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

/// TLS parameters of an outgoing connection.
pub(super) fn secure(settings: &ScenarioSettings) -> Option<ClientTls<'_>> {
    (settings.transport == Transport::Tls).then_some(ClientTls {
        server_name: &settings.peer_name,
        profile: "",
    })
}

/// Appends the Call-ID of an outgoing call.
pub(super) fn call_id(settings: &ScenarioSettings, number: u64, out: &mut Vec<u8>) {
    let mut characters = settings.call_id.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match characters.next() {
            Some('u') => decimal(number, out),
            Some('p') => decimal(u64::from(settings.pid), out),
            Some('s') => match settings.local.ip() {
                IpAddr::V4(_) => ip(settings.local.ip(), out),
                IpAddr::V6(v6) => out.extend_from_slice(v6.to_string().as_bytes()),
            },
            Some('%') | None => out.push(b'%'),
            Some(other) => {
                out.push(b'%');
                out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}
