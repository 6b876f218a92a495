//! What an experiment file may say. Times are in seconds where the name does not say otherwise.

use super::bound::{FigureBound, PeakPlan};
use super::search_plan::SearchPlan;
use super::study::Study;
use crate::pace::{Hold, Pace};
use crate::tls::TlsSettings;
use codec::Format;
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
    /// What it answers, and how to read it.
    #[serde(default)]
    pub about: String,
    /// Times that each level is run.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Seed of everything that is drawn.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// Longest time that a trial may take after its last attempt was due, seconds.
    #[serde(default = "default_settle")]
    pub settle_seconds: f64,
    /// What is measured.
    #[serde(default)]
    pub subject: Subject,
    /// What is measured before the levels: the peak that they are compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<PeakPlan>,
    /// The sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<Levels>,
    /// Calls made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<Callers>,
    /// Calls taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callees: Option<Callees>,
    /// Registrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registrations: Option<Registrations>,
    /// Media streams without signalling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// The link between the two ends of `[streams]`, where it is not the loopback interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Conferences of the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conference: Option<Conference>,
    /// Certificates and trust of callers and callees, towards a foreign subject or a border that runs by itself. With our own
    /// border in this process they are made for the trial.
    #[serde(default, skip_serializing_if = "TlsSettings::is_default")]
    pub tls: TlsSettings,
    /// What a study measured, to be shown beside our figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<Study>,
    /// How its capacity is searched.
    #[serde(default)]
    pub search: SearchPlan,
    /// The generator itself.
    #[serde(default, skip_serializing_if = "Generator::is_default")]
    pub generator: Generator,
    /// The network, in simulation.
    #[serde(default)]
    pub network: Network,
    /// What must hold.
    #[serde(default)]
    pub thresholds: Thresholds,
}

/// Whether a number says none; serde asks by reference.
fn nothing(number: &u32) -> bool {
    *number == 0
}

/// The same of a share.
fn is_whole(percent: &f64) -> bool {
    *percent <= 0.0
}

/// Whether it is not wanted; serde asks by reference.
fn is_not(wanted: &bool) -> bool {
    !wanted
}

/// Whether it is one connection; serde asks by reference.
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Whether a number says none; serde asks by reference.
fn is_none(number: &u8) -> bool {
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

/// What becomes of media in the subject, where the subject is our border.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectMedia {
    /// Through the border.
    #[default]
    Anchored,
    /// Past it: SDP addresses stay.
    Bypass,
}

/// IP versions around our border: towards callers, and towards the called side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpVersions {
    /// IPv4 on both sides.
    #[default]
    Ipv4,
    /// IPv6 on both sides.
    Ipv6,
    /// Callers speak IPv4, the called side IPv6.
    Ipv4ToIpv6,
    /// Callers speak IPv6, the called side IPv4.
    Ipv6ToIpv4,
}

impl IpVersions {
    /// Whether it is IPv6: towards callers, and towards the called side.
    pub fn sides(self) -> [bool; 2] {
        match self {
            IpVersions::Ipv4 => [false, false],
            IpVersions::Ipv6 => [true, true],
            IpVersions::Ipv4ToIpv6 => [false, true],
            IpVersions::Ipv6ToIpv4 => [true, false],
        }
    }
}

/// What is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Subject {
    /// SIP address of a foreign subject; without one, our border is started in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What path WebSockets ask a foreign subject for; empty: the root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub websocket_path: String,
    /// Nothing stands between callers and callees: measures the laboratory itself.
    pub none: bool,
    /// Media of our border.
    pub media: SubjectMedia,
    /// IP versions around our border.
    pub ip: IpVersions,
    /// 1: our border has header rules that change two headers and add two in every message that it passes on, on both
    /// sides; 0: it has none. A number, so that a sweep can set it.
    #[serde(skip_serializing_if = "is_none")]
    pub header_rules: u8,
    /// Workers of our border, at most 64; 0: one. More than one run in virtual time only: a border of its own in this process
    /// has one thread.
    #[serde(skip_serializing_if = "is_none")]
    pub workers: u8,
    /// Calls a second that our border lets in from outside (`rates`); the others get 486. 0: all.
    #[serde(skip_serializing_if = "nothing")]
    pub call_limit: u32,
    /// Memory for which our border admits calls and registrations, MiB (`[limits] memory`). 0: any.
    #[serde(skip_serializing_if = "nothing")]
    pub memory_mib: u32,
    /// Media nodes of ours that a trial starts beside our border, at most 16, each on a thread of its own; the calls' media goes through
    /// them, and the border has none. 0: the border anchors media itself. On sockets only.
    #[serde(skip_serializing_if = "is_none")]
    pub nodes: u8,
    /// So many of the nodes are taken out of service (`drain`): they get no calls.
    #[serde(skip_serializing_if = "is_none")]
    pub nodes_drained: u8,
    /// Share of one core that our border may use, percent; 0: all of it. Each datagram that it gets then takes 9 microseconds of
    /// a whole core, which is a seven-message call in 63: in simulation exactly; on sockets at least, and what the machine kept its
    /// thread from running is made up for, for 100 ms at most. Of several `workers` each may
    /// use so much, and a datagram that one hands to another takes as long again.
    #[serde(skip_serializing_if = "is_whole")]
    pub processor_percent: f64,
    /// CPU to which our border's thread is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Priority under SCHED_FIFO of our border's threads on sockets, 1 to 99; 0: they share as all do. Where the system does not
    /// allow it they share, and a remark says so.
    #[serde(skip_serializing_if = "is_none")]
    pub realtime: u8,
    /// Process number of a foreign subject on this machine, so that its CPU time (and its children's) can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

/// The generator itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Generator {
    /// Threads on each side, at most 64. Callers share one plan: each makes every so-manieth attempt, at the time that the plan
    /// says. As many called sides take turns, behind our border by lot; with a foreign subject they listen at
    /// `callees.address` and the ports after it. On sockets only.
    pub workers: u16,
    /// What is due within so many microseconds of each other is begun together, and what is received may wait as long for
    /// more of it while much comes: a thread that wakes for every message spends most of its time on waking. Response times count from
    /// when the kernel had a datagram; lateness, from the plan, is what this costs. At most 10,000; 0: never. On sockets only; virtual
    /// time has no need of it.
    pub batch_us: u32,
    /// Priority under SCHED_FIFO of the generator's threads on sockets, 1 to 99; 0: they share as all do. Where the system does not
    /// allow it they share, and a remark says so. Below `subject.realtime` they stand for machines of their own: what they do holds up
    /// nothing in the subject.
    #[serde(skip_serializing_if = "is_none")]
    pub realtime: u8,
}

impl Default for Generator {
    fn default() -> Self {
        Generator {
            workers: 1,
            batch_us: 750,
            realtime: 0,
        }
    }
}

impl Generator {
    /// Whether nothing is said; serde asks by reference.
    fn is_default(&self) -> bool {
        *self == Generator::default()
    }
}

/// Who keeps registrations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistrarPlace {
    /// The subject: our border asks for digest where users have passwords.
    #[default]
    Border,
    /// A registrar of the laboratory's behind our border, which passes registrations on to it and answers those that only
    /// repeat themselves. It takes whoever comes.
    Core,
}

impl RegistrarPlace {
    /// Whether it is the subject; serde asks by reference.
    fn is_border(&self) -> bool {
        *self == RegistrarPlace::Border
    }
}

/// A sweep: the keys in `set` take each value in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// Dotted paths of the keys that take the value.
    pub set: Vec<String>,
    /// What the value is, for tables and axes.
    pub label: String,
    /// First value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
    /// From one value to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The values themselves, instead of the three above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
}

/// How attempts arrive.
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

/// How hold times are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// All the same.
    #[default]
    Fixed,
    /// Exponentially, with `hold_seconds` as the mean.
    Exponential,
}

/// Who sends BYE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HangUp {
    /// The caller.
    #[default]
    Caller,
    /// The called side, after the same hold time.
    Callee,
}

/// What a side sends as media.
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
    /// What it receives, sent back (called side only).
    Echo,
    /// Speech and silence in turns with the others of the same conference. `[conference]` has it; no file asks for it.
    #[serde(skip)]
    Turns,
}

/// Codecs that the laboratory speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodecName {
    /// G.711 A-law.
    #[default]
    #[serde(rename = "PCMA")]
    Pcma,
    /// G.711 mu-law.
    #[serde(rename = "PCMU")]
    Pcmu,
    /// G.722 at 64 kbit/s.
    G722,
    /// G.729 Annex A.
    G729,
}

impl CodecName {
    /// The codec with its parameters; with its own silence suppression where `suppress` says so and it has one.
    pub fn format(self, suppress: bool) -> Format {
        match self {
            CodecName::Pcma => Format::Pcma,
            CodecName::Pcmu => Format::Pcmu,
            CodecName::G722 => Format::G722,
            CodecName::G729 => Format::G729 { annex_b: suppress },
        }
    }

    /// Whether it is one of G.711's laws: their audio is what is listened to.
    pub fn is_g711(self) -> bool {
        matches!(self, CodecName::Pcma | CodecName::Pcmu)
    }
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
    /// WebSocket (RFC 7118), opened as a browser does; for callers and registrations, on sockets only.
    Ws,
    /// The same over TLS.
    Wss,
}

impl TransportName {
    /// Whether it is UDP; serde asks by reference.
    fn is_udp(&self) -> bool {
        *self == TransportName::Udp
    }

    /// Whether there is TLS in it.
    pub fn is_secure(self) -> bool {
        matches!(self, TransportName::Tls | TransportName::Wss)
    }

    /// Whether there is a WebSocket in it.
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

/// Which messages set a call up. A number in a file says the same, so that a sweep can set it: 0 is `plain`, 1 is `volte`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "FlowName")]
pub enum CallFlow {
    /// INVITE, 100, 180, 200, ACK, BYE, 200.
    #[default]
    Plain,
    /// Twenty messages: preconditions (RFC 3312), reliable provisional responses, UPDATE both ways, early media.
    Volte,
}

/// A flow as files name it.
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
            FlowName::Number(number) => Err(format!("{number} is no flow: plain (0) or volte (1)")),
            FlowName::Text(text) => Err(format!("{text:?} is no flow: plain (0) or volte (1)")),
        }
    }
}

/// Calls made. `rate`, `limit`, `total`, `hold_seconds` and `dial` are SIPp's -r, -l, -m, -d and -s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callers {
    /// Attempts per second.
    pub rate: f64,
    /// How they arrive.
    pub pace: PaceKind,
    /// Rate at the end of a ramp.
    pub ramp_to: f64,
    /// Length of a ramp.
    pub ramp_seconds: f64,
    /// Attempts in total; 0: as many as fall into `seconds`.
    pub total: u64,
    /// Calls open at a time; 0: no limit.
    pub limit: u64,
    /// No attempt is due after this; 0: until `total`.
    pub seconds: f64,
    /// Answer to BYE.
    pub hold_seconds: f64,
    /// Distribution of the hold time.
    pub hold: HoldKind,
    /// Number dialled; a template.
    pub dial: String,
    /// The caller's own number; a template.
    pub from: String,
    /// Callers that take turns: templates get the attempt's number modulo this; 0: the number itself.
    pub users: u64,
    /// User for digest authentication; a template; empty: none.
    pub user: String,
    /// Password; a template.
    pub password: String,
    /// Who hangs up.
    pub hang_up: HangUp,
    /// What the callers send.
    pub media: MediaKind,
    /// In which codec.
    pub codec: CodecName,
    /// Each side is silent for as long as it speaks, and sends next to nothing meanwhile (G.729 Annex B).
    #[serde(skip_serializing_if = "is_not")]
    pub silence_suppression: bool,
    /// The callers' side has SRTP (AES_CM_128_HMAC_SHA1_80, keys in the session description), which our border requires of
    /// it and takes off.
    #[serde(skip_serializing_if = "is_not")]
    pub srtp: bool,
    /// Each packet is timed, from when it was sent to when the kernel took it in at the other end. It takes 8 bytes of memory
    /// for every 10 ms of a stream.
    #[serde(skip_serializing_if = "is_not")]
    pub time_packets: bool,
    /// SIP transport.
    pub transport: TransportName,
    /// TCP, TLS or WebSocket connections that take turns, call by call; at most 1,000.
    #[serde(skip_serializing_if = "is_one")]
    pub connections: u32,
    /// Share of the calls that the caller cancels while they ring, percent.
    pub cancel_percent: f64,
    /// Share of the calls that are put on hold and taken back half-way, percent.
    pub hold_percent: f64,
    /// Share of the calls that are listened to (correlation and level), percent.
    pub listen_percent: f64,
    /// Longest ringing; then the caller cancels and the attempt has timed out.
    pub ring_seconds: f64,
    /// Which messages set a call up.
    pub flow: CallFlow,
    /// How long the caller's resources take to be reserved in the flow `volte`, milliseconds.
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
            seconds: 0.0,
            hold_seconds: 10.0,
            hold: HoldKind::Fixed,
            dial: "5555".to_owned(),
            from: "caller-{number}".to_owned(),
            users: 0,
            user: String::new(),
            password: String::new(),
            hang_up: HangUp::Caller,
            media: MediaKind::None,
            codec: CodecName::Pcma,
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
    /// The arrivals.
    pub fn pace(&self) -> Pace {
        pace(self.pace, self.rate, self.ramp_to, self.ramp_seconds)
    }

    /// The hold time.
    pub fn hold(&self) -> Hold {
        match self.hold {
            HoldKind::Fixed => Hold::Fixed(self.hold_seconds),
            HoldKind::Exponential => Hold::Exponential(self.hold_seconds),
        }
    }
}

fn pace(kind: PaceKind, rate: f64, to: f64, over: f64) -> Pace {
    match kind {
        PaceKind::Constant => Pace::Constant { rate },
        PaceKind::Poisson => Pace::Poisson { rate },
        PaceKind::Ramp => Pace::Ramp {
            from: rate,
            to,
            over,
        },
    }
}

/// Calls taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callees {
    /// Where they listen; a free port of 127.0.0.1 where not given. Needed where a foreign subject has to find them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// SIP transport over which our border reaches them. They listen on UDP and, at the same port, TCP; with `tls` on TLS instead.
    #[serde(skip_serializing_if = "TransportName::is_udp")]
    pub transport: TransportName,
    /// INVITE to 180, milliseconds.
    pub ring_ms: f64,
    /// INVITE to 200, milliseconds; exponentially distributed where `answer_random` says so.
    pub answer_ms: f64,
    /// The answer delay is drawn, with `answer_ms` as the mean.
    pub answer_random: bool,
    /// Share refused with 486, percent.
    pub busy_percent: f64,
    /// Share that only rings, percent.
    pub no_answer_percent: f64,
    /// What they send.
    pub media: MediaKind,
    /// The one codec that they have, where it is not the callers': our border transcodes where the callers have another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecName>,
    /// Which messages set a call up; `volte` where the caller supports it, too.
    pub flow: CallFlow,
    /// How long their resources take to be reserved in the flow `volte`, milliseconds, once the caller's are there.
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
    /// How they arrive.
    pub pace: PaceKind,
    /// Rate at the end of a ramp.
    pub ramp_to: f64,
    /// Length of a ramp.
    pub ramp_seconds: f64,
    /// Users, each registered once.
    pub users: u64,
    /// Their names; a template.
    pub user: String,
    /// Their passwords; a template; empty: no authentication.
    pub password: String,
    /// Seconds asked for.
    pub expires: u32,
    /// Each registration is refreshed this long after the last answer; 0: never.
    pub refresh_seconds: f64,
    /// Refreshes of each.
    pub refreshes: u32,
    /// Re-registrations per second, users in turn, from two seconds after the last first registration was due; 0: each user by
    /// itself, as `refresh_seconds` says. They are the attempts whose rate and response time count then, and the subject's
    /// processor time is read while they go on.
    #[serde(skip_serializing_if = "is_whole")]
    pub refresh_rate: f64,
    /// Who keeps them.
    #[serde(skip_serializing_if = "RegistrarPlace::is_border")]
    pub at: RegistrarPlace,
    /// Taken back at the end.
    pub remove: bool,
    /// SIP transport.
    pub transport: TransportName,
    /// TCP, TLS or WebSocket connections that take turns, user by user; 0: one for each user, as far as the descriptors of this process go.
    #[serde(skip_serializing_if = "is_one")]
    pub connections: u32,
}

/// Descriptors that are left for listening sockets, media, results and whatever else is open.
const SPARE_DESCRIPTORS: u64 = 512;

impl Default for Registrations {
    fn default() -> Self {
        Registrations {
            rate: 100.0,
            pace: PaceKind::Constant,
            ramp_to: 0.0,
            ramp_seconds: 0.0,
            users: 100,
            user: "{number:4}".to_owned(),
            password: "secret-{user}".to_owned(),
            expires: 3600,
            refresh_seconds: 0.0,
            refreshes: 0,
            refresh_rate: 0.0,
            at: RegistrarPlace::Border,
            remove: true,
            transport: TransportName::Udp,
            connections: 1,
        }
    }
}

impl Registrations {
    /// Connections of a trial in a process that may have so many descriptors, of which each connection takes `ends`.
    pub fn connections_within(&self, descriptors: u64, ends: u64) -> u32 {
        let wanted = match self.connections {
            0 => self.users,
            stated => u64::from(stated),
        };
        let room = descriptors.saturating_sub(SPARE_DESCRIPTORS) / ends.max(1);
        wanted.min(room.max(1)).try_into().unwrap_or(u32::MAX)
    }

    /// The arrivals.
    pub fn pace(&self) -> Pace {
        pace(self.pace, self.rate, self.ramp_to, self.ramp_seconds)
    }
}

/// Media streams without signalling, from one laboratory host to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Streams {
    /// Streams at a time.
    pub count: u64,
    /// How long each lasts.
    pub seconds: f64,
    /// Streams started per second.
    pub rate: f64,
    /// What is sent.
    pub media: MediaKind,
    /// In which codec.
    pub codec: CodecName,
    /// Share of the streams that are listened to (correlation and level), percent.
    pub listen_percent: f64,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            count: 10,
            seconds: 10.0,
            rate: 100.0,
            media: MediaKind::Tone,
            codec: CodecName::Pcma,
            listen_percent: 0.0,
        }
    }
}

/// A link of this machine's kernel between two networks of their own (root; veth, TBF, HTB), which bulk traffic fills: it is sent
/// at the same time as the streams, unmarked, while these are marked as voice (DSCP 46).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// What it carries, Mbit/s.
    pub mbit: f64,
    /// 1: `hornwork isolate` divides it; 0: one queue for all, and what is lost then is shown, not judged. A number, so that a sweep
    /// can set it.
    pub shares: u8,
    /// Bulk traffic, percent of what the link carries; 0: none.
    pub bulk_percent: f64,
    /// Payload of a bulk packet, bytes, 64 to 1,472.
    pub bulk_bytes: u32,
    /// Packets that wait where nothing divides the link.
    pub queue: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            mbit: 100.0,
            shares: 1,
            bulk_percent: 110.0,
            bulk_bytes: 1_000,
            queue: 100,
        }
    }
}

/// Conferences of the subject, and one more, the probe, at which jitter is measured. Participants speak in turns of four seconds,
/// the next one half a second before the one before him ends. Beside them a few streams go past the subject, from a thread of their
/// own: their jitter is the host's. All of it is counted for `seconds`, from when everybody is there and has been for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conference {
    /// Conferences under load at each instance, at most 999; the probe is one more, at the first instance. They are called at 8000
    /// and the numbers after it.
    pub rooms: u64,
    /// Participants of each, 2 to 16.
    pub seats: u64,
    /// Borders, each on a thread of its own, at most 64.
    pub instances: u64,
    /// In which codec.
    pub codec: CodecName,
    /// Participants who call a second, at each instance, at random.
    pub rate: f64,
    /// Seconds from when everybody should be there to when counting begins.
    pub warm_up_seconds: f64,
    /// Seconds that are counted.
    pub seconds: f64,
}

impl Default for Conference {
    fn default() -> Self {
        Conference {
            rooms: 5,
            seats: 4,
            instances: 1,
            codec: CodecName::G729,
            rate: 50.0,
            warm_up_seconds: 4.0,
            seconds: 300.0,
        }
    }
}

/// Links of a simulated network, each way between any host and the subject. Ignored on real sockets, and said so there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// One-way delay, milliseconds.
    pub delay_ms: f64,
    /// Spread of the delay, milliseconds: uniform, added.
    pub jitter_ms: f64,
    /// Lost, percent.
    pub loss_percent: f64,
    /// Sent twice, percent.
    pub duplicate_percent: f64,
    /// Held back so that later ones overtake, percent.
    pub reorder_percent: f64,
    /// The faults end after this many seconds; 0: never.
    pub heal_seconds: f64,
}

impl Experiment {
    /// The codec that the called side has by itself, where the callers have another one: it takes somebody who transcodes.
    pub fn transcodes_to(&self) -> Option<CodecName> {
        let callers = self.callers.as_ref()?.codec;
        let callees = self.callees.as_ref()?.codec?;
        let alike = callers == callees || (callers.is_g711() && callees.is_g711());
        (!alike).then_some(callees)
    }

    /// What callers and registrations speak.
    pub fn transports(&self) -> impl Iterator<Item = TransportName> {
        let callers = self.callers.iter().map(|callers| callers.transport);
        let registrations = self.registrations.iter().map(|users| users.transport);
        callers.chain(registrations)
    }

    /// Whether anything in it goes over TLS.
    pub fn speaks_tls(&self) -> bool {
        let callees = self.callees.iter().map(|callees| callees.transport);
        self.transports()
            .chain(callees)
            .any(TransportName::is_secure)
    }

    /// Whether anything in it opens WebSockets.
    pub fn opens_websockets(&self) -> bool {
        self.transports().any(TransportName::is_websocket)
    }
}

/// What must hold; a key that is not given is not judged.
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
    /// How busy all processors of this machine are, percent, at most (`[conference]`, on sockets).
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
    /// Correlation of speech heard with speech said, on each call listened to, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation: Option<f64>,
    /// Attempts that never had an answer, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// 99th percentile of the generator's own lateness, milliseconds, at most: above it the trial says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_p99_ms: Option<f64>,
    /// Calls, transactions and ports that the subject still holds when all is over, at most (our border only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<u64>,
    /// Bounds of what the experiment is about, judged over its levels when all are run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figure: Vec<FigureBound>,
}
