//! Limits of a node: its rates with the limit that binds, and those whose default does not suffice for its share of a
//! plan, which the user has to raise.

use super::{MediaPath, PlanRequest, Signalling};
use serde::Serialize;

/// Open files of a border by its systemd unit (`packaging/hornwork.service`).
const FILES_OF_THE_UNIT: u64 = 262_144;
/// Most open files of a process unless `fs.nr_open` is raised (Linux).
const FILES_OF_THE_KERNEL: u64 = 1_048_576;
/// Open files of an anchored call: RTP and RTCP of both sides.
const FILES_OF_A_CALL: u64 = 4;
/// Seconds for which an ended transaction stays: 64*T1 (RFC 3261 section 17, RFC 6026).
const ENDED_S: f64 = 32.0;
/// Timer K of a client transaction that is no INVITE, seconds (RFC 3261 section 17.1.2.2).
const TIMER_K_S: f64 = 5.0;
/// Seconds from INVITE to answer: an assumption.
const RINGING_S: f64 = 20.0;
/// Transactions of a call, each for the seconds that it takes over UDP: INVITE and BYE on both sides.
const CALL_TRANSACTIONS_S: f64 = 2.0 * (RINGING_S + ENDED_S) + ENDED_S + TIMER_K_S;
/// The same for a registration that is passed on.
const REGISTRATION_TRANSACTIONS_S: f64 = ENDED_S + TIMER_K_S;
const HANDSHAKES: &str = "[limits] handshakes_per_s";

/// A limit that has to be raised in each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RaisedLimit {
    /// Name of the setting.
    pub name: String,
    /// Its default.
    pub default: u64,
    /// The least value of a node; `null` where it depends on the network.
    pub needed: Option<u64>,
    /// The reason.
    pub reason: String,
}

impl RaisedLimit {
    fn text(&self) -> String {
        let needed = self
            .needed
            .map_or(String::new(), |needed| format!(" to {needed}"));
        format!(
            "{}{needed} (default {}): {}",
            self.name, self.default, self.reason
        )
    }
}

/// The share of one node in the load of the busy hour.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeShare {
    pub(super) subscribers: f64,
    /// Standing calls.
    pub(super) calls: f64,
    pub(super) calls_per_s: f64,
    pub(super) registrations_per_s: f64,
}

impl NodeShare {
    /// SIP transactions at a time, with headroom.
    pub(super) fn transactions(&self, request: &PlanRequest) -> f64 {
        let mean = self.calls_per_s * CALL_TRANSACTIONS_S
            + self.registrations_per_s * REGISTRATION_TRANSACTIONS_S;
        mean / (1.0 - request.headroom_percent / 100.0)
    }

    /// New TLS connections per second, with headroom: all phones of the node connect again within a registration
    /// interval, as after its restart.
    pub(super) fn connections_per_s(&self, request: &PlanRequest) -> f64 {
        match request.protection.signalling() {
            Signalling::Tls => self.registrations_per_s / (1.0 - request.headroom_percent / 100.0),
            Signalling::Udp => 0.0,
        }
    }
}

/// The formula of [`NodeShare::transactions`].
pub(super) fn transactions_formula(headroom: &str) -> String {
    format!(
        "(rate / n x {CALL_TRANSACTIONS_S} s + R / n x {REGISTRATION_TRANSACTIONS_S} s) / (1 - {headroom} %): those of INVITE and BYE on both sides of a call and of a REGISTER; ended ones stay for up to {ENDED_S} s (RFC 3261, Timers J and K; RFC 6026, Timers L and M), and {RINGING_S} s of ringing are assumed"
    )
}

/// A setting with its default, and the value that a node needs.
struct LimitSetting {
    name: &'static str,
    default: u64,
    needed: u64,
    reason: String,
}

/// The settings that bound the load of a node.
fn settings(request: &PlanRequest, load: &NodeShare) -> [LimitSetting; 6] {
    let (subscribers, calls) = (load.subscribers.ceil() as u64, load.calls.ceil() as u64);
    let defaults = engine::Limits::default();
    // Calls to and from a phone use the connection over which it is registered.
    let connections = match request.protection.signalling() {
        Signalling::Tls => subscribers,
        Signalling::Udp => 0,
    };
    let ports = match request.path {
        MediaPath::Anchored => calls.saturating_mul(FILES_OF_A_CALL),
        MediaPath::Bypass => 0,
    };
    let files = connections.saturating_add(ports);
    let kernel = match files > FILES_OF_THE_KERNEL {
        true => ", and sysctl fs.nr_open",
        false => "",
    };
    [
        LimitSetting {
            name: "[limits] calls",
            default: defaults.calls as u64,
            needed: calls,
            reason: "standing calls".to_owned(),
        },
        LimitSetting {
            name: "[limits] transactions",
            default: defaults.transactions as u64,
            needed: load.transactions(request).ceil() as u64,
            reason: "transactions of calls and registrations, ended ones for up to 32 s".to_owned(),
        },
        LimitSetting {
            name: "[limits] registrations",
            default: defaults.registrations as u64,
            needed: subscribers,
            reason: "a contact for each subscriber".to_owned(),
        },
        LimitSetting {
            name: "[limits] connections",
            default: defaults.connections as u64,
            needed: connections,
            reason: "a TLS connection for each registered phone".to_owned(),
        },
        LimitSetting {
            name: HANDSHAKES,
            default: defaults.handshakes_per_second as u64,
            needed: load.connections_per_s(request).ceil() as u64,
            reason: "after a restart of a node its phones connect again within a registration interval; one source address gets half of them"
                .to_owned(),
        },
        LimitSetting {
            name: "open files (LimitNOFILE)",
            default: FILES_OF_THE_UNIT,
            needed: files,
            reason: format!("one for each connection and media port{kernel}"),
        },
    ]
}

/// The limits that a node needs above their defaults.
pub(super) fn raised_limits(request: &PlanRequest, load: &NodeShare) -> Vec<RaisedLimit> {
    let all = settings(request, load);
    let connections = all
        .iter()
        .find(|setting| setting.name == "[limits] connections");
    let connections = connections.map_or(0, |setting| setting.needed);
    let mut raised: Vec<RaisedLimit> = all
        .into_iter()
        .filter(|setting| setting.needed > setting.default)
        .map(|setting| RaisedLimit {
            name: setting.name.to_owned(),
            default: setting.default,
            needed: Some(setting.needed),
            reason: setting.reason,
        })
        .collect();
    let per_source = engine::Limits::default().connections_per_source as u64;
    if connections > per_source {
        raised.push(RaisedLimit {
            name: "[limits] connections_per_source".to_owned(),
            default: per_source,
            needed: None,
            reason: "where more phones have one source address (NAT)".to_owned(),
        });
    }
    raised
}

/// A rate of a node, and the most that it takes with the limits at their defaults.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRate {
    /// Calls or new TLS connections.
    pub what: String,
    /// Per second in the busy hour.
    pub planned_per_s: f64,
    /// The most per second.
    pub most_per_s: f64,
    /// The part of the node or the setting that bounds it.
    pub limited_by: String,
}

impl NodeRate {
    /// One line of the plan.
    pub(super) fn text(&self) -> String {
        format!(
            "a node takes up to {} {}/s (planned: {}), limited by {}",
            super::text::grouped(self.most_per_s),
            self.what,
            super::text::grouped(self.planned_per_s),
            self.limited_by
        )
    }
}

/// Calls per second of a node, and with TLS the new connections per second. `parts` are the used shares of the parts of
/// a node: more calls with the same traffic use all of them in proportion.
pub(super) fn node_rates(
    request: &PlanRequest,
    load: &NodeShare,
    parts: &[(&str, f64)],
) -> Vec<NodeRate> {
    let all = settings(request, load);
    let of_setting = |setting: &LimitSetting| {
        let used = setting.needed as f64 / setting.default.max(1) as f64;
        (setting.name.to_owned(), used)
    };
    let bounds_calls = all.iter().filter(|setting| setting.name != HANDSHAKES);
    let mut shares: Vec<(String, f64)> = bounds_calls.map(of_setting).collect();
    shares.extend(parts.iter().map(|(name, used)| ((*name).to_owned(), *used)));
    if request.path == MediaPath::Anchored {
        let calls = super::CALLS_OF_DEFAULT_PORTS * f64::from(request.node_addresses);
        let name = "media ports (default 20000-26999)".to_owned();
        shares.push((name, load.calls / calls));
    }
    let most_used = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let calls = most_used.filter(|(_, used)| *used > 0.0);
    let calls = calls.map(|(limited_by, used)| NodeRate {
        what: "calls".to_owned(),
        planned_per_s: load.calls_per_s,
        most_per_s: load.calls_per_s / used,
        limited_by,
    });
    let connections = all.iter().find(|setting| setting.name == HANDSHAKES);
    let connections = connections.filter(|setting| setting.needed > 0);
    let connections = connections.map(|setting| NodeRate {
        what: "new TLS connections".to_owned(),
        planned_per_s: load.connections_per_s(request),
        most_per_s: setting.default as f64,
        limited_by: setting.name.to_owned(),
    });
    calls.into_iter().chain(connections).collect()
}

/// The limits as an addition to the formula of the nodes; empty without any.
pub(super) fn limits_text(raised: &[RaisedLimit]) -> String {
    match raised {
        [] => String::new(),
        raised => {
            let all: Vec<String> = raised.iter().map(RaisedLimit::text).collect();
            format!("; raise in each node: {}", all.join("; "))
        }
    }
}
