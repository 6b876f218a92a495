//! The request of a plan, and its limits.

use super::erlang::MOST_ERLANGS;
use super::estimate::Estimate;
use crate::error::LabError;
use serde::Serialize;

/// Longest packet time, ms.
const MOST_PACKET_MS: f64 = 200.0;
/// Longest IP packet in an Ethernet frame, bytes.
const MTU: f64 = 1_500.0;

/// Transport of SIP on the access side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalling {
    /// UDP.
    Udp,
    /// TLS.
    Tls,
}

impl Signalling {
    /// Its name in the identifiers of costs.
    pub const fn name(self) -> &'static str {
        match self {
            Signalling::Udp => "udp",
            Signalling::Tls => "tls",
        }
    }
}

/// Declares an enumeration whose values have names on the command line.
macro_rules! named {
    ($(#[$about:meta])* $name:ident, $what:literal { $($(#[$doc:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $value,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[$name] = &[$($name::$value,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$value => $text,)*
                }
            }

            /// The value of this name.
            ///
            /// # Errors
            /// If there is none; the error lists all names.
            pub fn from_name(name: &str) -> Result<$name, LabError> {
                let found = $name::ALL.iter().find(|value| value.name().eq_ignore_ascii_case(name));
                found.copied().ok_or_else(|| {
                    let names: Vec<&str> = $name::ALL.iter().map(|value| value.name()).collect();
                    LabError::bad_input(format!(
                        "{} {name:?}: expected one of {}", $what, names.join(", ")
                    ))
                })
            }
        }
    };
}

named! {
    /// Protection on the access side.
    Protection, "--protection" {
        /// SIP over UDP, RTP.
        None = "none",
        /// SIP over TLS, RTP.
        Tls = "tls",
        /// SIP over UDP, SRTP (keys in the session description).
        Srtp = "srtp",
        /// SIP over TLS, SRTP.
        TlsSrtp = "tls-srtp",
        /// RTP in ESP, tunnel mode, AES-128-CBC with HMAC-SHA1-96.
        Esp = "esp",
    }
}

named! {
    /// Path of media.
    MediaPath, "--path" {
        /// Through the nodes.
        Anchored = "anchored",
        /// From end to end.
        Bypass = "bypass",
    }
}

named! {
    /// Redundancy of nodes.
    Redundancy, "--redundancy" {
        /// None.
        None = "none",
        /// One spare node.
        Spare = "n+1",
        /// A standby node for each.
        Pair = "2n",
    }
}

named! {
    /// Codec of all calls.
    Codec, "--codec" {
        /// G.711 mu-law.
        Pcmu = "PCMU",
        /// G.711 A-law.
        Pcma = "PCMA",
        /// G.722.
        G722 = "G722",
        /// G.729.
        G729 = "G729",
        /// Opus for speech, 16 to 32 kbit/s.
        Opus = "Opus",
    }
}

impl Codec {
    /// Rate of its payload, kbit/s.
    pub const fn kbit(self) -> Estimate {
        match self {
            Codec::Pcmu | Codec::Pcma | Codec::G722 => Estimate::exact(64.0),
            Codec::G729 => Estimate::exact(8.0),
            Codec::Opus => Estimate {
                value: 24.0,
                low: 16.0,
                high: 32.0,
            },
        }
    }
}

impl Codec {
    /// Packet times are multiples of it, ms: the frame of G.729, the usual smallest packet of the others.
    const fn frame_ms(self) -> f64 {
        match self {
            Codec::G729 => 10.0,
            Codec::Pcmu | Codec::Pcma | Codec::G722 | Codec::Opus => 5.0,
        }
    }
}

impl Codec {
    /// Longest packet time, ms: that of Opus by RFC 7587 section 6.1, that of the option for others.
    const fn most_ms(self) -> f64 {
        match self {
            Codec::Opus => 120.0,
            Codec::Pcmu | Codec::Pcma | Codec::G722 | Codec::G729 => MOST_PACKET_MS,
        }
    }
}

impl Protection {
    /// Transport of SIP.
    pub const fn signalling(self) -> Signalling {
        match self {
            Protection::Tls | Protection::TlsSrtp => Signalling::Tls,
            Protection::None | Protection::Srtp | Protection::Esp => Signalling::Udp,
        }
    }

    /// Protection of media, as in the identifiers of costs.
    pub const fn media(self) -> &'static str {
        match self {
            Protection::None | Protection::Tls => "none",
            Protection::Srtp | Protection::TlsSrtp => "srtp",
            Protection::Esp => "esp",
        }
    }
}

/// The request of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanRequest {
    /// Subscribers.
    pub subscribers: u64,
    /// Calls of a subscriber in the busy hour.
    pub busy_hour_calls: f64,
    /// Mean duration of a call, seconds.
    pub hold_s: f64,
    /// Protection on the access side.
    pub protection: Protection,
    /// Path of media.
    pub path: MediaPath,
    /// Codec.
    pub codec: Codec,
    /// Packet time, ms.
    pub packet_ms: f64,
    /// Share of the time in which a party sends, percent: below 100 with silence suppression.
    pub activity_percent: f64,
    /// IPv6 on both sides.
    pub ipv6: bool,
    /// Share of calls that may find no line.
    pub blocking: f64,
    /// Interval between registrations of a subscriber, seconds.
    pub registration_interval_s: f64,
    /// Registrations that are answered from the cache, percent.
    pub cached_percent: f64,
    /// Share of each core, of memory and of bandwidth that stays free in the busy hour, percent.
    pub headroom_percent: f64,
    /// Redundancy.
    pub redundancy: Redundancy,
    /// Cores of a node.
    pub node_cores: u32,
    /// Memory of a node, GiB.
    pub node_memory_gib: f64,
    /// Rate of a node's network interface, Mbit/s.
    pub node_mbit: f64,
    /// Addresses of a node on each side.
    pub node_addresses: u32,
    /// Simulate this number of seconds of calls, too.
    pub simulate_seconds: Option<f64>,
    /// Seed of the simulation.
    pub seed: u64,
}

impl Default for PlanRequest {
    fn default() -> Self {
        PlanRequest {
            subscribers: 1,
            busy_hour_calls: 1.0,
            hold_s: 120.0,
            protection: Protection::None,
            path: MediaPath::Anchored,
            codec: Codec::Pcma,
            packet_ms: 20.0,
            activity_percent: 100.0,
            ipv6: false,
            blocking: 0.001,
            registration_interval_s: 1_800.0,
            cached_percent: 0.0,
            headroom_percent: 30.0,
            redundancy: Redundancy::Spare,
            node_cores: 8,
            node_memory_gib: 16.0,
            node_mbit: 10_000.0,
            node_addresses: 1,
            simulate_seconds: None,
            seed: 1,
        }
    }
}

impl PlanRequest {
    /// Checks every value; the error names the option.
    ///
    /// # Errors
    /// A value out of range.
    pub fn check(&self) -> Result<(), LabError> {
        let within = |option: &str, value: f64, low: f64, high: f64| match value.is_finite()
            && value >= low
            && value <= high
        {
            true => Ok(()),
            false => Err(LabError::bad_input(format!(
                "--{option} {value}: expected {low} to {high}"
            ))),
        };
        within("subscribers", self.subscribers as f64, 1.0, 1e10)?;
        within("busy-hour-calls", self.busy_hour_calls, 1e-6, 3_600.0)?;
        within("hold", self.hold_s, 0.1, 86_400.0)?;
        within("packet-ms", self.packet_ms, 5.0, MOST_PACKET_MS)?;
        within("activity", self.activity_percent, 1.0, 100.0)?;
        within("blocking", self.blocking, 1e-9, 0.5)?;
        within(
            "registration-interval",
            self.registration_interval_s,
            1.0,
            1e7,
        )?;
        within("cached", self.cached_percent, 0.0, 100.0)?;
        within("headroom", self.headroom_percent, 0.0, 95.0)?;
        within("node-cores", f64::from(self.node_cores), 1.0, 4_096.0)?;
        within("node-memory-gib", self.node_memory_gib, 0.25, 1e6)?;
        within("node-mbit", self.node_mbit, 1.0, 1e7)?;
        within(
            "node-addresses",
            f64::from(self.node_addresses),
            1.0,
            65_536.0,
        )?;
        if let Some(seconds) = self.simulate_seconds {
            within("simulate", seconds, 1.0, 86_400.0)?;
        }
        let each = self.busy_hour_calls * self.hold_s / 3_600.0;
        if each > 1.0 {
            return Err(LabError::bad_input(format!(
                "--busy-hour-calls {} --hold {}: a subscriber would be in {each:.2} calls at once; expected at most 1",
                self.busy_hour_calls, self.hold_s
            )));
        }
        let erlangs = each * self.subscribers as f64;
        if erlangs > MOST_ERLANGS {
            return Err(LabError::bad_input(format!(
                "--subscribers {}: {erlangs:.0} erlangs; expected at most {MOST_ERLANGS:.0}: plan for a part of them",
                self.subscribers
            )));
        }
        self.check_packets()?;
        match self.path {
            MediaPath::Anchored => Ok(()),
            MediaPath::Bypass => self.check_bypass(),
        }
    }

    /// A packet has whole frames, at most as many as the codec and an Ethernet frame take: the fragments of a longer
    /// one would be packets of their own.
    fn check_packets(&self) -> Result<(), LabError> {
        let (packet, frame) = (self.packet_ms, self.codec.frame_ms());
        let bad = |why: String| {
            let codec = self.codec.name();
            let text = format!("--packet-ms {packet}: {why} with --codec {codec}");
            Err(LabError::bad_input(text))
        };
        if packet % frame != 0.0 {
            return bad(format!("expected a multiple of {frame}"));
        }
        if packet > self.codec.most_ms() {
            return bad(format!("expected at most {}", self.codec.most_ms()));
        }
        let bytes = super::access_packet_bytes(self).high;
        match bytes > MTU {
            true => bad(format!(
                "a packet of {bytes} bytes, expected at most {MTU} of an Ethernet frame,"
            )),
            false => Ok(()),
        }
    }

    /// Options of media have no effect on nodes that media do not pass.
    fn check_bypass(&self) -> Result<(), LabError> {
        let instead = match self.protection {
            Protection::Esp => {
                return Err(LabError::bad_input(
                    "--protection esp needs --path anchored: the nodes end the tunnels",
                ));
            }
            Protection::Srtp => Some(Protection::None),
            Protection::TlsSrtp => Some(Protection::Tls),
            Protection::None | Protection::Tls => None,
        };
        let usual = PlanRequest::default();
        let without_effect = [
            (
                instead.is_some(),
                format!("--protection {}", self.protection.name()),
            ),
            (
                self.codec != usual.codec,
                format!("--codec {}", self.codec.name()),
            ),
            (
                self.packet_ms != usual.packet_ms,
                format!("--packet-ms {}", self.packet_ms),
            ),
            (
                self.activity_percent != usual.activity_percent,
                format!("--activity {}", self.activity_percent),
            ),
            (self.ipv6, "--ipv6".to_owned()),
            (
                self.node_addresses != usual.node_addresses,
                format!("--node-addresses {}", self.node_addresses),
            ),
        ];
        let first = without_effect.into_iter().find(|(is_set, _)| *is_set);
        let Some((_, option)) = first else {
            return Ok(());
        };
        let remedy = match instead {
            Some(instead) => format!("use --protection {}", instead.name()),
            None => "leave it out".to_owned(),
        };
        Err(LabError::bad_input(format!(
            "{option} has no effect with --path bypass, where media do not pass the nodes: {remedy}"
        )))
    }
}
