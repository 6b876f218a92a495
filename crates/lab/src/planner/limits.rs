//! Limits of a node whose default does not suffice for its share of a plan: the user has to raise them.

use super::{MediaPath, PlanRequest, Signalling};
use serde::Serialize;

/// Open files of a border by its systemd unit (`packaging/hornwork.service`).
const FILES_OF_THE_UNIT: u64 = 262_144;
/// Most open files of a process unless `fs.nr_open` is raised (Linux).
const FILES_OF_THE_KERNEL: u64 = 1_048_576;
/// Open files of an anchored call: RTP and RTCP of both sides.
const FILES_OF_A_CALL: u64 = 4;

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

/// The limits that a node with so many subscribers and standing calls needs above their defaults.
pub(super) fn raised_limits(
    request: &PlanRequest,
    subscribers: f64,
    calls: f64,
) -> Vec<RaisedLimit> {
    let (subscribers, calls) = (subscribers.ceil() as u64, calls.ceil() as u64);
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
    let limits = [
        (
            "[limits] calls",
            defaults.calls as u64,
            calls,
            "standing calls".to_owned(),
        ),
        (
            "[limits] registrations",
            defaults.registrations as u64,
            subscribers,
            "a contact for each subscriber".to_owned(),
        ),
        (
            "[limits] connections",
            defaults.connections as u64,
            connections,
            "a TLS connection for each registered phone".to_owned(),
        ),
        (
            "open files (LimitNOFILE)",
            FILES_OF_THE_UNIT,
            files,
            format!("one for each connection and media port{kernel}"),
        ),
    ];
    let mut raised: Vec<RaisedLimit> = limits
        .into_iter()
        .filter(|(_, default, needed, _)| needed > default)
        .map(|(name, default, needed, reason)| RaisedLimit {
            name: name.to_owned(),
            default,
            needed: Some(needed),
            reason,
        })
        .collect();
    let per_source = defaults.connections_per_source as u64;
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
