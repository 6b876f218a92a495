//! `[[media_node]]`: media nodes that relay media for this border, commanded by the ng protocol; and settings that
//! cannot be combined with them.

use super::interfaces::RawEarlyMedia;
use super::media::{RawMedia, RawMediaAnchor};
use super::model::Config;
use super::raw::Raw;
use super::security::{Keying, MediaSecurity, SrtpPolicy};
use super::sink::{Sink, optional_seconds};
use super::trunks::Refer;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A media node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaNodeSpec {
    /// Name.
    pub name: String,
    /// Address of its ng server, over UDP.
    pub control: SocketAddr,
    /// Its share of calls among the nodes that are up; at least 1.
    pub weight: u32,
    /// Maximum number of our calls there; `None`: unlimited.
    pub max_calls: Option<u32>,
    /// Draining: no new calls.
    pub drain: bool,
    /// The measure of its load.
    pub load: NodeLoad,
}

/// The measure of the load of a media node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeLoad {
    /// The calls of this border at the node.
    #[default]
    Calls,
    /// The sessions that the node reports, including those of other borders, plus calls since the report.
    Reported,
}

/// Treatment of the calls of a failed media node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeFailure {
    /// They are moved to another media node.
    #[default]
    Reanchor,
    /// They are ended.
    End,
}

/// Settings common to all media nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaNodePolicy {
    /// Time between two pings of a node.
    pub ping_interval: Duration,
    /// A node that does not answer a ping within this time is down.
    pub timeout: Duration,
    /// Treatment of the calls of a failed node.
    pub failure: NodeFailure,
    /// Maximum number of calls moved or ended per second.
    pub failure_rate: u32,
    /// Longest time that a call waits for another node; `None`: until it ends.
    pub keep: Option<Duration>,
}

/// A media node: `hornwork run --role media`, or rtpengine. It is commanded by the ng protocol over UDP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMediaNode {
    /// Name, unique among media nodes.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Address of its ng server: `udp:ADDRESS:PORT`.
    pub control: String,
    /// Share of calls: a node of weight 2 gets twice the calls of a node of weight 1. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// Maximum number of calls of this border at the node; several workers share it evenly. 0: unlimited.
    #[serde(default)]
    pub max_calls: u32,
    /// `true`: the node gets no new calls; its calls continue, and an event reports the end of the last one. This takes
    /// a node out of service by a reload. A node that is removed from the file is drained too.
    #[serde(default)]
    pub drain: bool,
    /// Measure of load for the choice of a node: `calls` of this border, or `reported`: the sessions that the node
    /// reports, including those of other borders. Default: `calls`.
    #[serde(default)]
    pub load: NodeLoad,
}

fn one() -> u32 {
    1
}

/// The media nodes of a file.
pub(super) fn nodes(raw: &[RawMediaNode], sink: &mut Sink<'_>) -> Vec<MediaNodeSpec> {
    let mut nodes: Vec<MediaNodeSpec> = Vec::new();
    for (index, node) in raw.iter().enumerate() {
        let path = format!("media_node[{index}]");
        let at = format!("{path}.control");
        let control = match node.control.split_once(':') {
            Some(("udp", address)) => address.parse::<SocketAddr>().ok(),
            Some((transport @ ("tcp" | "tls" | "ws" | "wss" | "http" | "https"), _)) => {
                sink.report(
                    &at,
                    format!("media nodes are commanded over udp, not {transport}"),
                    "write udp:ADDRESS:PORT",
                );
                continue;
            }
            _ => None,
        };
        let control =
            control.filter(|control| control.port() != 0 && !control.ip().is_unspecified());
        let Some(control) = control else {
            sink.report(
                &at,
                format!("\"{}\" is not an address of an ng server", node.control),
                "write udp:ADDRESS:PORT with an IP address and a port",
            );
            continue;
        };
        if let Some(known) = nodes.iter().find(|known| known.name == node.name) {
            sink.report(
                &format!("{path}.name"),
                format!("media node \"{}\" exists already", known.name),
                "give each media node its own name",
            );
        }
        if let Some(known) = nodes.iter().find(|known| known.control == control) {
            sink.report(
                &at,
                format!("media node \"{}\" has the same address", known.name),
                "give each media node its own address",
            );
        }
        nodes.push(MediaNodeSpec {
            name: node.name.clone(),
            control,
            weight: node.weight,
            max_calls: (node.max_calls != 0).then_some(node.max_calls),
            drain: node.drain,
            load: node.load,
        });
    }
    nodes
}

/// Settings common to all media nodes.
pub(super) fn policy(raw: &RawMedia) -> MediaNodePolicy {
    MediaNodePolicy {
        ping_interval: Duration::from_millis(raw.node_check_ms.into()),
        timeout: Duration::from_millis(raw.node_timeout_ms.into()),
        failure: raw.node_failure,
        failure_rate: raw.node_failure_calls_per_s,
        keep: optional_seconds(raw.node_failure_wait_s),
    }
}

/// Refuses settings that cannot be combined with media nodes.
pub(super) fn check(config: &Config, raw: &Raw, sink: &mut Sink<'_>) {
    if raw.media.anchor == RawMediaAnchor::Here {
        if !raw.media_node.is_empty() {
            sink.report(
                "media_node[0]",
                "media nodes are configured, but not used",
                "set anchor = \"nodes\" in [media], or remove the media nodes",
            );
        }
        return;
    }
    if raw.media_node.is_empty() {
        sink.report(
            "media.anchor",
            "`anchor` is \"nodes\", but there is no media node",
            "add a [[media_node]] with name and control, or remove `anchor`",
        );
    }
    let named = raw.interface.iter().filter(|i| i.node_interface.is_some());
    let named = named.count();
    for (index, interface) in raw.interface.iter().enumerate() {
        let path = format!("interface[{index}]");
        if named != 0 && interface.node_interface.is_none() {
            sink.report(
                &path,
                format!(
                    "interface \"{}\" has no `node_interface`, but others have one",
                    interface.name
                ),
                "set it for all interfaces or for none: media nodes get the interfaces of both sides or of neither",
            );
        }
        if interface.early_media == RawEarlyMedia::Gate {
            not_there(
                "early_media = \"gate\"",
                &format!("{path}.early_media"),
                sink,
            );
        }
        if !interface.transcode.as_slice().is_empty() {
            not_there("transcoding", &format!("{path}.transcode"), sink);
        }
        if let Some(checked) = config.interfaces.get(index) {
            security(&checked.security, &path, sink);
        }
    }
    for (index, trunk) in raw.trunk.iter().enumerate() {
        let path = format!("trunk[{index}]");
        if trunk.refer == Refer::Act {
            not_there("refer = \"act\"", &format!("{path}.refer"), sink);
        }
        if !trunk.transcode.as_slice().is_empty() {
            not_there("transcoding", &format!("{path}.transcode"), sink);
        }
        if let Some(checked) = config.trunks.get(index) {
            security(&checked.security, &path, sink);
        }
    }
}

/// A key without effect is a mistake.
pub(super) fn without_nodes(raw: &Raw, sink: &mut Sink<'_>) {
    if raw.media.anchor == RawMediaAnchor::Nodes {
        return;
    }
    for (index, interface) in raw.interface.iter().enumerate() {
        if interface.node_interface.is_some() {
            sink.report(
                &format!("interface[{index}].node_interface"),
                "`node_interface` has no effect without media nodes",
                "remove it, or set anchor = \"nodes\" in [media]",
            );
        }
    }
}

fn security(security: &MediaSecurity, path: &str, sink: &mut Sink<'_>) {
    if security.srtp == SrtpPolicy::Prefer {
        not_there("srtp = \"prefer\"", &format!("{path}.srtp"), sink);
    }
    let usual = MediaSecurity::default();
    if security.suites != usual.suites {
        not_there("`srtp_suites`", &format!("{path}.srtp_suites"), sink);
    }
    if security.srtp == SrtpPolicy::Require && security.keying.len() > 1 {
        not_there("a choice of keyings", &format!("{path}.srtp_keying"), sink);
    }
    if security.srtp == SrtpPolicy::Require
        && security.keying.contains(&Keying::Sdes)
        && security.ice.is_on()
    {
        not_there("ICE beside SDES", &format!("{path}.ice"), sink);
    }
}

fn not_there(what: &str, path: &str, sink: &mut Sink<'_>) {
    sink.report(
        path,
        format!("{what} is not supported with media nodes"),
        "remove it, or set anchor = \"here\" in [media]",
    );
}
