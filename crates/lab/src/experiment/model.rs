//! The data model of an experiment file. Times are in seconds unless the name has another unit.

use super::bound::{FigureBound, PeakPlan};
use super::codec_name::CodecName;
use super::esp_load::EspLoad;
use super::network::NetworkSettings;
use super::phone_load::PhoneLoad;
use super::protection::Protection;
use super::search_plan::SearchPlan;
use super::study::Study;
use crate::pace::{ArrivalProcess, HoldTime};
use crate::tls::TlsSettings;
use codec::Kind;
use engine::Transport;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One experiment, at one level of its sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name.
    pub name: String,
    /// One line.
    pub title: String,
    /// The question that the experiment answers, and how to read the result.
    #[serde(default)]
    pub about: String,
    /// Repetitions of each level.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Seed of all random values.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// Longest time that a trial may take after its last attempt was due, seconds.
    #[serde(default = "default_settle")]
    pub settle_seconds: f64,
    /// The system under test (SUT).
    #[serde(default)]
    pub sut: Sut,
    /// Measurement before the levels: the peak that they are compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<PeakPlan>,
    /// The sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<Levels>,
    /// Outgoing calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<Callers>,
    /// Incoming calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callees: Option<Callees>,
    /// Registrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registrations: Option<Registrations>,
    /// Media streams without signalling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamLoad>,
    /// The link between the two ends of `[streams]`, if it is not the loopback interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSettings>,
    /// Conferences of the SUT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conference: Option<ConferenceLoad>,
    /// A telephone whose stream is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone: Option<PhoneLoad>,
    /// Protection between callers and border.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Protection>,
    /// A measurement of ESP itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp: Option<EspLoad>,
    /// Certificates and trust of callers and callees, towards an external SUT or a border in a process of its own. For
    /// the border in this process they are generated for the trial.
    #[serde(default, skip_serializing_if = "TlsSettings::is_default")]
    pub tls: TlsSettings,
    /// Figures of a published study, shown beside the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<Study>,
    /// Parameters of the search for the capacity.
    #[serde(default)]
    pub search: SearchPlan,
    /// The load generator.
    #[serde(default, skip_serializing_if = "GeneratorSettings::is_default")]
    pub generator: GeneratorSettings,
    /// The network between hosts and SUT.
    #[serde(default)]
    pub network: NetworkSettings,
    /// Pass criteria.
    #[serde(default)]
    pub thresholds: Thresholds,
}

/// Whether the number is zero; serde passes a reference.
fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

/// Whether the share is zero; serde passes a reference.
fn is_zero_f64(percent: &f64) -> bool {
    *percent <= 0.0
}

/// Whether the option is off; serde passes a reference.
fn is_false(option: &bool) -> bool {
    !option
}

/// Whether it is one connection; serde passes a reference.
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Whether the number is zero; serde passes a reference.
fn is_zero_u8(number: &u8) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

fn one_u64() -> u64 {
    1
}

fn default_settle() -> f64 {
    40.0
}

/// Media path in the SUT, if the SUT is the border of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SutMedia {
    /// Through the border.
    #[default]
    Anchored,
    /// Media bypass: SDP addresses stay.
    Bypass,
    /// Through the border, whose kernel relay (XDP) forwards plain RTP. Callers, border and called side are each in a
    /// network namespace of its own, with pairs of virtual interfaces between them. On sockets only.
    KernelRelay,
}

/// IP versions of the border: towards callers, and towards the called side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpVersions {
    /// IPv4 on both sides.
    #[default]
    Ipv4,
    /// IPv6 on both sides.
    Ipv6,
    /// Callers use IPv4, the called side IPv6.
    Ipv4ToIpv6,
    /// Callers use IPv6, the called side IPv4.
    Ipv6ToIpv4,
}

impl IpVersions {
    /// Whether each side uses IPv6: callers, called side.
    pub fn sides(self) -> [bool; 2] {
        match self {
            IpVersions::Ipv4 => [false, false],
            IpVersions::Ipv6 => [true, true],
            IpVersions::Ipv4ToIpv6 => [false, true],
            IpVersions::Ipv6ToIpv4 => [true, false],
        }
    }
}

/// The system under test (SUT).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sut {
    /// SIP address of an external SUT that runs already; without it, a border is started in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Subject that each trial starts as an external SUT: the name or the path of a subject file, or
    /// `NAME@ADDRESS:PORT` for one that an agent starts on its host. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// File with the token of the agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agent_token_file: String,
    /// File with the authorities (PEM) of the agent's certificate, which contains its IP address: TLS. Empty: without
    /// TLS.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agent_ca_file: String,
    /// Path that WebSocket clients request from an external SUT; empty: the root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub websocket_path: String,
    /// Callers and callees exchange messages directly: measures the test lab itself.
    pub direct: bool,
    /// Media path of the border.
    pub media: SutMedia,
    /// IP versions of the border.
    pub ip: IpVersions,
    /// 1: the border has header rules that change two headers and add two in every relayed message, on both sides;
    /// 0: it has none. A number, so that a sweep can set it.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub header_rules: u8,
    /// Workers of the border, at most 64; 0: one. Several workers need virtual time: a border on sockets in this
    /// process has one thread.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub workers: u8,
    /// Calls per second that the border accepts from the access side (`rates`); calls above it get 486. 0: no limit.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub call_limit_per_second: u32,
    /// Memory for which the border admits calls and registrations, MiB (`[limits] memory_mib`). 0: no limit.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub memory_mib: u32,
    /// Interval after which the border passes a refresh on to the registrar behind it, seconds (`[registrar]
    /// refresh_interval_s`). 0: the default, 1,800.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub refresh_interval_seconds: u32,
    /// Media nodes that a trial starts beside the border, at most 16, each on its own thread; they relay the media of
    /// the calls, and the border relays none. 0: the border anchors media itself. On sockets only.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub media_nodes: u8,
    /// Number of media nodes that are taken out of service (`drain`): they get no calls.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub media_nodes_drained: u8,
    /// Share of one core that the border may use, percent; 0: all of it. Each datagram, in or out, then costs 4
    /// microseconds of a whole core, which is 52 for a call of seven messages: in simulation exactly; on sockets at
    /// least, and time that the machine withheld from its thread is made up for, for 100 ms at most. With several
    /// `workers` each has this share, and a datagram that one hands to another costs as much again.
    #[serde(skip_serializing_if = "is_zero_f64")]
    pub cpu_percent: f64,
    /// CPU to which the thread of the border is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Priority under SCHED_FIFO of the border's threads on sockets, 1 to 99; 0: the default scheduler. If the system
    /// does not permit it, the default scheduler is used and a remark is added.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub realtime_priority: u8,
    /// Process number of an external SUT on this machine, for reading its CPU time (and that of its children).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_id: Option<u32>,
}

impl Sut {
    /// Whether it is another program: one that runs already, or a subject that the trial starts.
    pub fn is_external(&self) -> bool {
        self.address.is_some() || !self.subject.is_empty()
    }

    /// Address of the agent that starts the subject.
    pub fn agent(&self) -> Option<SocketAddr> {
        let (_, agent) = self.subject.split_once('@')?;
        agent.parse().ok()
    }
}

/// The load generator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeneratorSettings {
    /// Threads on each side, at most 64. Callers share one plan: with `n` threads each starts every n-th attempt at its
    /// planned time. The called sides take turns; the border selects them at random; an external SUT finds them at
    /// `callees.address` and the ports after it. On sockets only.
    pub workers: u16,
    /// Batching delay in microseconds: actions due within it start together, and under load received messages wait as
    /// long for more. A thread that wakes for every message spends most of its time on waking. Response times count
    /// from the kernel's receive time; the cost shows as lateness against the plan. At most 10,000; 0: none. On sockets
    /// only; virtual time does not need it.
    pub batch_us: u32,
    /// Priority under SCHED_FIFO of the generator's threads on sockets, 1 to 99; 0: the default scheduler. If the
    /// system does not permit it, the default scheduler is used and a remark is added. Below `sut.realtime_priority`
    /// the threads act like separate machines: they never delay the SUT.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub realtime_priority: u8,
    /// Microseconds before a deadline in which the generator's threads poll instead of sleeping: sends are more exact,
    /// and each thread may keep a processor busy. At most 200; 0: threads sleep. On sockets only.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub spin_us: u32,
}

impl Default for GeneratorSettings {
    fn default() -> Self {
        GeneratorSettings {
            workers: 1,
            batch_us: 750,
            realtime_priority: 0,
            spin_us: 0,
        }
    }
}

impl GeneratorSettings {
    /// Whether all values are defaults; serde passes a reference.
    fn is_default(&self) -> bool {
        *self == GeneratorSettings::default()
    }
}

/// Location of the registrar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistrarLocation {
    /// The SUT: the border requires digest authentication of users that have passwords.
    #[default]
    Border,
    /// A registrar of the test lab behind the border. The border passes registrations on to it and answers unchanged
    /// refreshes. It accepts every user.
    Core,
}

impl RegistrarLocation {
    /// Whether it is the SUT; serde passes a reference.
    fn is_border(&self) -> bool {
        *self == RegistrarLocation::Border
    }
}

/// A sweep: the keys in `set` take each value in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// Dotted paths of the keys that take the value.
    pub set: Vec<String>,
    /// Label of the value, for tables and axes.
    pub label: String,
    /// First value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
    /// Increment between values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The values, instead of the three keys above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
}

/// Arrival process of the attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaceKind {
    /// At a constant rate.
    #[default]
    Constant,
    /// As a Poisson process.
    Poisson,
    /// From `rate` to `ramp_to` within `ramp_seconds`.
    Ramp,
}

/// Distribution of hold times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// Constant.
    #[default]
    Fixed,
    /// Exponential, with `hold_seconds` as the mean.
    Exponential,
}

/// The side that sends BYE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HangUp {
    /// The caller.
    #[default]
    Caller,
    /// The called side, after the same hold time.
    Callee,
}

/// Media that a side sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaKind {
    /// Nothing: SDP is exchanged, no packet is sent.
    #[default]
    None,
    /// The built-in voice of its side.
    Speech,
    /// A sine of 1004 Hz.
    Tone,
    /// Received audio, sent back (called side only).
    Echo,
    /// Speech and silence in turns with the other participants of a conference. Set by `[conference]`, not by a key.
    #[serde(skip)]
    Turns,
}

/// Transport of SIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportName {
    /// UDP.
    #[default]
    Udp,
    /// TCP.
    Tcp,
    /// TLS (on sockets only).
    Tls,
    /// WebSocket (RFC 7118), opened as by a browser; for callers and registrations, on sockets only.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl TransportName {
    /// Whether it is UDP; serde passes a reference.
    fn is_udp(&self) -> bool {
        *self == TransportName::Udp
    }

    /// Whether it uses TLS.
    pub fn is_secure(self) -> bool {
        matches!(self, TransportName::Tls | TransportName::Wss)
    }

    /// Whether it uses WebSocket.
    pub fn is_websocket(self) -> bool {
        matches!(self, TransportName::Ws | TransportName::Wss)
    }
}

impl From<TransportName> for Transport {
    fn from(name: TransportName) -> Transport {
        match name {
            TransportName::Udp => Transport::Udp,
            TransportName::Tcp => Transport::Tcp,
            TransportName::Tls => Transport::Tls,
            TransportName::Ws => Transport::Ws,
            TransportName::Wss => Transport::Wss,
        }
    }
}

/// Message flow of call set-up. A number in a file is accepted too, so that a sweep can set it: 0 is `plain`, 1 is
/// `volte`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "FlowName")]
pub enum CallFlow {
    /// INVITE, 100, 180, 200, ACK, BYE, 200.
    #[default]
    Plain,
    /// Twenty messages: preconditions (RFC 3312), reliable provisional responses, UPDATE both ways, early media.
    Volte,
}

/// A flow as written in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum FlowName {
    Number(u64),
    Text(String),
}

impl TryFrom<FlowName> for CallFlow {
    type Error = String;

    fn try_from(name: FlowName) -> Result<CallFlow, String> {
        match name {
            FlowName::Number(0) => Ok(CallFlow::Plain),
            FlowName::Number(1) => Ok(CallFlow::Volte),
            FlowName::Text(text) if text == "plain" => Ok(CallFlow::Plain),
            FlowName::Text(text) if text == "volte" => Ok(CallFlow::Volte),
            FlowName::Number(number) => Err(format!(
                "{number} is not a flow: expected plain (0) or volte (1)"
            )),
            FlowName::Text(text) => Err(format!(
                "{text:?} is not a flow: expected plain (0) or volte (1)"
            )),
        }
    }
}

/// Outgoing calls. `rate`, `limit`, `total`, `hold_seconds` and `dial` are SIPp's -r, -l, -m, -d and -s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callers {
    /// Attempts per second.
    pub rate: f64,
    /// Arrival process.
    pub pace: PaceKind,
    /// Rate at the end of a ramp.
    pub ramp_to: f64,
    /// Length of a ramp.
    pub ramp_seconds: f64,
    /// Attempts in total; 0: as many as are due within `duration_seconds`.
    pub total: u64,
    /// Most calls open at a time; 0: no limit.
    pub limit: u64,
    /// End of arrivals, seconds after the start; 0: when `total` is reached.
    pub duration_seconds: f64,
    /// Time between answer and BYE, seconds.
    pub hold_seconds: f64,
    /// Distribution of the hold time.
    pub hold: HoldKind,
    /// Number dialled; a template.
    pub dial: String,
    /// The number of the caller; a template.
    pub from: String,
    /// Number of callers that take turns: templates get the attempt's number modulo this; 0: the number itself.
    pub users: u64,
    /// User for digest authentication; a template; empty: none.
    pub user: String,
    /// Password; a template.
    pub password: String,
    /// The side that hangs up.
    pub hang_up: HangUp,
    /// Media that the callers send.
    pub media: MediaKind,
    /// Codec of the callers.
    pub codec: CodecName,
    /// Each side pauses as long as it speaks, and sends almost no packets meanwhile (G.729 Annex B).
    #[serde(skip_serializing_if = "is_false")]
    pub silence_suppression: bool,
    /// SRTP on the callers' side (AES_CM_128_HMAC_SHA1_80, keys in the session description). The border requires it
    /// there and sends RTP to the called side.
    #[serde(skip_serializing_if = "is_false")]
    pub srtp: bool,
    /// Measures the delay of each packet, from sending to the kernel's receive time at the other end. Takes 8 bytes of
    /// memory for every 10 ms of a stream.
    #[serde(skip_serializing_if = "is_false")]
    pub time_packets: bool,
    /// SIP transport.
    pub transport: TransportName,
    /// TCP, TLS or WebSocket connections, used in turn by the calls; at most 60,000.
    #[serde(skip_serializing_if = "is_one")]
    pub connections: u32,
    /// Share of the calls that the caller cancels while they ring, percent.
    pub cancel_percent: f64,
    /// Share of the calls that are put on hold and resumed half-way, percent.
    pub hold_percent: f64,
    /// Share of the calls whose audio is compared (correlation and level), percent.
    pub listen_percent: f64,
    /// Longest ringing; after it the caller cancels and the attempt has timed out.
    pub ring_seconds: f64,
    /// Message flow of call set-up.
    pub flow: CallFlow,
    /// Time that the caller needs to reserve resources in the flow `volte`, milliseconds.
    pub reserve_ms: f64,
}

impl Default for Callers {
    fn default() -> Self {
        Callers {
            rate: 10.0,
            pace: PaceKind::Constant,
            ramp_to: 0.0,
            ramp_seconds: 0.0,
            total: 0,
            limit: 0,
            duration_seconds: 0.0,
            hold_seconds: 10.0,
            hold: HoldKind::Fixed,
            dial: "5555".to_owned(),
            from: "caller-{number}".to_owned(),
            users: 0,
            user: String::new(),
            password: String::new(),
            hang_up: HangUp::Caller,
            media: MediaKind::None,
            codec: CodecName(Kind::Pcma),
            silence_suppression: false,
            srtp: false,
            time_packets: false,
            transport: TransportName::Udp,
            connections: 1,
            cancel_percent: 0.0,
            hold_percent: 0.0,
            listen_percent: 0.0,
            ring_seconds: 60.0,
            flow: CallFlow::Plain,
            reserve_ms: 0.0,
        }
    }
}

impl Callers {
    /// The arrival process.
    pub fn pace(&self) -> ArrivalProcess {
        pace(self.pace, self.rate, self.ramp_to, self.ramp_seconds)
    }

    /// The distribution of the hold time.
    pub fn hold(&self) -> HoldTime {
        match self.hold {
            HoldKind::Fixed => HoldTime::Fixed(self.hold_seconds),
            HoldKind::Exponential => HoldTime::Exponential(self.hold_seconds),
        }
    }
}

fn pace(kind: PaceKind, rate: f64, to: f64, over: f64) -> ArrivalProcess {
    match kind {
        PaceKind::Constant => ArrivalProcess::Constant { rate },
        PaceKind::Poisson => ArrivalProcess::Poisson { rate },
        PaceKind::Ramp => ArrivalProcess::Ramp {
            from: rate,
            to,
            over,
        },
    }
}

/// Incoming calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callees {
    /// Address of their listener; without it a free port of 127.0.0.1. Required for an external SUT that calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// SIP transport between border and callees. They listen on UDP and, at the same port, TCP; with `tls` on TLS
    /// instead.
    #[serde(skip_serializing_if = "TransportName::is_udp")]
    pub transport: TransportName,
    /// INVITE to 180, milliseconds.
    pub ring_ms: f64,
    /// INVITE to 200, milliseconds; the mean with `answer_random`.
    pub answer_ms: f64,
    /// The answer delay is exponentially distributed, with `answer_ms` as the mean.
    pub answer_random: bool,
    /// Share refused with 486, percent.
    pub busy_percent: f64,
    /// Share that rings without an answer, percent.
    pub no_answer_percent: f64,
    /// Media that the callees send.
    pub media: MediaKind,
    /// The only codec of the callees, if it is not the callers': the border transcodes then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecName>,
    /// Message flow of call set-up; `volte` needs a caller that supports it.
    pub flow: CallFlow,
    /// Time that the callees need to reserve resources in the flow `volte` after those of the caller, milliseconds.
    pub reserve_ms: f64,
}

impl Default for Callees {
    fn default() -> Self {
        Callees {
            address: None,
            transport: TransportName::Udp,
            ring_ms: 0.0,
            answer_ms: 0.0,
            answer_random: false,
            busy_percent: 0.0,
            no_answer_percent: 0.0,
            media: MediaKind::None,
            codec: None,
            flow: CallFlow::Plain,
            reserve_ms: 0.0,
        }
    }
}

/// Registrations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registrations {
    /// First registrations per second.
    pub rate: f64,
    /// Arrival process.
    pub pace: PaceKind,
    /// Rate at the end of a ramp.
    pub ramp_to: f64,
    /// Length of a ramp.
    pub ramp_seconds: f64,
    /// Users, each registered once; more if `duration_seconds` needs them.
    pub users: u64,
    /// Shortest duration of the measured load, seconds: at a high rate more users register, or, with `refresh_rate`,
    /// each refreshes more often. 0: `users` and `refreshes` are the numbers.
    #[serde(skip_serializing_if = "is_zero_f64")]
    pub duration_seconds: f64,
    /// Their names; a template.
    pub user: String,
    /// Their passwords; a template; empty: no authentication.
    pub password: String,
    /// Requested expiry, seconds.
    pub expires_seconds: u32,
    /// Interval between an answer and the next refresh; 0: no refresh.
    pub refresh_seconds: f64,
    /// Refreshes of each user; more if `duration_seconds` needs them.
    pub refreshes: u32,
    /// Re-registrations per second, by users in turn, from two seconds after the last first registration was due; 0:
    /// each user refreshes after `refresh_seconds`. If set, they are the attempts whose rate and response time count,
    /// and the CPU time of the SUT is read during them.
    #[serde(skip_serializing_if = "is_zero_f64")]
    pub refresh_rate: f64,
    /// Location of the registrar.
    #[serde(skip_serializing_if = "RegistrarLocation::is_border")]
    pub registrar: RegistrarLocation,
    /// Bindings are removed at the end.
    pub remove: bool,
    /// SIP transport.
    pub transport: TransportName,
    /// TCP, TLS or WebSocket connections, used in turn by the users; 0: one for each user, within this process's file
    /// descriptors.
    #[serde(skip_serializing_if = "is_one")]
    pub connections: u32,
}

/// File descriptors reserved for listeners, media, results and other files.
pub(crate) const SPARE_DESCRIPTORS: u64 = 512;

impl Default for Registrations {
    fn default() -> Self {
        Registrations {
            rate: 100.0,
            pace: PaceKind::Constant,
            ramp_to: 0.0,
            ramp_seconds: 0.0,
            users: 100,
            duration_seconds: 0.0,
            user: "{number:4}".to_owned(),
            password: "secret-{user}".to_owned(),
            expires_seconds: 3600,
            refresh_seconds: 0.0,
            refreshes: 0,
            refresh_rate: 0.0,
            registrar: RegistrarLocation::Border,
            remove: true,
            transport: TransportName::Udp,
            connections: 1,
        }
    }
}

/// Most registrations that `registrations.duration_seconds` adds up to: a search has no bound of its own.
const MAX_USERS: f64 = 20_000_000.0;

impl Registrations {
    /// The registrations with the users and refreshes that `duration_seconds` needs at their rate.
    #[must_use]
    pub(super) fn resolved(mut self) -> Registrations {
        let seconds = self.duration_seconds;
        if !seconds.is_finite() || seconds <= 0.0 {
            return self;
        }
        if self.refresh_rate > 0.0 {
            let each = (self.refresh_rate * seconds).min(MAX_USERS) / self.users.max(1) as f64;
            self.refreshes = self.refreshes.max(each.ceil() as u32);
        } else {
            self.users = self
                .users
                .max((self.rate * seconds).min(MAX_USERS).ceil() as u64);
        }
        self
    }

    /// Checks the duration; the error names the key.
    pub(super) fn check_duration(&self) -> Result<(), String> {
        let seconds = self.duration_seconds;
        if !(0.0..=86_400.0).contains(&seconds) {
            return Err("registrations.duration_seconds: expected 0 to 86400".to_owned());
        }
        if seconds > 0.0 && self.pace == PaceKind::Ramp {
            return Err(
                "registrations.duration_seconds: the rate of a ramp is not constant: remove the key, or change registrations.pace"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Duration of first registrations and refreshes, seconds.
    pub(super) fn expected_seconds(&self) -> f64 {
        let over = |total: f64, rate: f64| if rate > 0.0 { total / rate } else { 0.0 };
        let again = self.users as f64 * f64::from(self.refreshes);
        over(self.users as f64, self.rate)
            + self.refresh_seconds * f64::from(self.refreshes)
            + over(again, self.refresh_rate)
    }

    /// File descriptors that all wanted connections need, of which each takes `ends`.
    pub fn descriptors(&self, ends: u64) -> u64 {
        let connections = u64::from(self.connections_within(u64::MAX, 1));
        connections
            .saturating_mul(ends)
            .saturating_add(SPARE_DESCRIPTORS)
    }

    /// Connections of a trial within a limit of file descriptors, of which each connection takes `ends`.
    pub fn connections_within(&self, descriptors: u64, ends: u64) -> u32 {
        let wanted = match self.connections {
            0 => self.users,
            stated => u64::from(stated),
        };
        let room = descriptors.saturating_sub(SPARE_DESCRIPTORS) / ends.max(1);
        wanted.min(room.max(1)).try_into().unwrap_or(u32::MAX)
    }

    /// The arrival process.
    pub fn pace(&self) -> ArrivalProcess {
        pace(self.pace, self.rate, self.ramp_to, self.ramp_seconds)
    }
}

/// Media streams without signalling, from one host of the test lab to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamLoad {
    /// Concurrent streams.
    pub count: u64,
    /// Duration of each stream.
    pub duration_seconds: f64,
    /// Streams started per second.
    pub rate: f64,
    /// Media of the streams.
    pub media: MediaKind,
    /// Codec of the streams.
    pub codec: CodecName,
    /// Share of the streams whose audio is compared (correlation and level), percent.
    pub listen_percent: f64,
}

impl Default for StreamLoad {
    fn default() -> Self {
        StreamLoad {
            count: 10,
            duration_seconds: 10.0,
            rate: 100.0,
            media: MediaKind::Tone,
            codec: CodecName(Kind::Pcma),
            listen_percent: 0.0,
        }
    }
}

/// A kernel link of this machine between two network namespaces (root; veth, TBF, HTB), filled by bulk traffic: it is
/// sent unmarked at the same time as the streams, which are marked as voice (DSCP 46).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSettings {
    /// Capacity, Mbit/s.
    pub rate_mbit: f64,
    /// 1: `hornwork isolate` divides it; 0: one queue for all traffic, and loss is shown but not judged. A number, so
    /// that a sweep can set it.
    pub isolated: u8,
    /// Bulk traffic, percent of the capacity; 0: none.
    pub bulk_percent: f64,
    /// Payload of a bulk packet, bytes, 64 to 1,472.
    pub bulk_bytes: u32,
    /// Queue length of the undivided link, packets.
    pub queue_packets: u32,
}

impl Default for LinkSettings {
    fn default() -> Self {
        LinkSettings {
            rate_mbit: 100.0,
            isolated: 1,
            bulk_percent: 110.0,
            bulk_bytes: 1_000,
            queue_packets: 100,
        }
    }
}

/// Conferences of the SUT, and one more, the probe, at which jitter is measured. Participants speak in turns of four
/// seconds; each turn begins half a second before the end of the previous one. Beside them a few streams bypass the
/// SUT, from a separate thread: their jitter is the noise of the host. Figures count for `duration_seconds`, after all
/// participants are connected and the warm-up is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConferenceLoad {
    /// Conferences under load at each instance, at most 999; the probe is one more, at the first instance. Their
    /// numbers are 8000 and following.
    pub count: u64,
    /// Participants of each conference, 2 to 16.
    pub participants: u64,
    /// Borders, each on its own thread, at most 64.
    pub instances: u64,
    /// Codec of the participants.
    pub codec: CodecName,
    /// Participants that call per second at each instance, as a Poisson process.
    pub rate: f64,
    /// Warm-up after the planned arrival of the last participant, seconds.
    pub warm_up_seconds: f64,
    /// Measured time, seconds.
    pub duration_seconds: f64,
}

impl Default for ConferenceLoad {
    fn default() -> Self {
        ConferenceLoad {
            count: 5,
            participants: 4,
            instances: 1,
            codec: CodecName(Kind::G729),
            rate: 50.0,
            warm_up_seconds: 4.0,
            duration_seconds: 300.0,
        }
    }
}

impl Experiment {
    /// The codec of the called side, if the callers have another one: the call needs transcoding.
    pub fn transcodes_to(&self) -> Option<CodecName> {
        let callers = self.callers.as_ref()?.codec;
        let callees = self.callees.as_ref()?.codec?;
        let alike = callers == callees || (callers.is_g711() && callees.is_g711());
        (!alike).then_some(callees)
    }

    /// Transports of callers and registrations.
    pub fn transports(&self) -> impl Iterator<Item = TransportName> {
        let callers = self.callers.iter().map(|callers| callers.transport);
        let registrations = self.registrations.iter().map(|users| users.transport);
        callers.chain(registrations)
    }

    /// Whether any part of the experiment uses TLS.
    pub fn uses_tls(&self) -> bool {
        let callees = self.callees.iter().map(|callees| callees.transport);
        self.transports()
            .chain(callees)
            .any(TransportName::is_secure)
    }

    /// Whether any part of the experiment opens WebSockets.
    pub fn uses_websockets(&self) -> bool {
        self.transports().any(TransportName::is_websocket)
    }
}

/// Pass criteria; an absent key is not judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// Calls or registrations with an outcome other than the planned ones, percent of those attempted, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_percent: Option<f64>,
    /// Attempts that could not start, percent, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_started_percent: Option<f64>,
    /// Median response time, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_p50_ms: Option<f64>,
    /// 99th percentile of the response time, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_p99_ms: Option<f64>,
    /// Media packets lost, percent, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    /// 99th percentile of the jitter, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_p99_ms: Option<f64>,
    /// Mean of the jitter less that of the host's own, milliseconds, at most (`[conference]`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_mean_above_noise_ms: Option<f64>,
    /// 99th percentile of the jitter less that of the host's own, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_p99_above_noise_ms: Option<f64>,
    /// CPU use of this machine, all processors, percent, at most (`[conference]`, on sockets).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cpu_percent: Option<f64>,
    /// Median delay of single packets, milliseconds, at most (`callers.time_packets`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_p50_ms: Option<f64>,
    /// 99th percentile of that delay, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_p99_ms: Option<f64>,
    /// One-way delay of media (mean of the worst stream), milliseconds, at most (G.114: 150).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_ms: Option<f64>,
    /// Round trip of media, both ways added, milliseconds, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
    /// Mean opinion score, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mos: Option<f64>,
    /// Correlation of received with sent speech, on each compared call, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation: Option<f64>,
    /// Attempts without a final answer, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// 99th percentile of the generator's own lateness, milliseconds, at most: above it the trial is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_p99_ms: Option<f64>,
    /// Calls, transactions and ports that the SUT still holds at the end, at most (border of this process only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<u64>,
    /// Bounds of figures over the levels, judged when all of them have run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figure: Vec<FigureBound>,
}
