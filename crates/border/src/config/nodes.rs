//! `[[media_node]]`: programs that relay media for this border, commanded by the "ng" protocol; and what does not go together with them.

use super::check::{Sink, optional_seconds, seconds};
use super::raw::{Raw, RawEarlyMedia, RawMediaAnchor, RawRefer};
use super::security::{Keying, SrtpPolicy};
use super::{Config, MediaSecurity};
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A program that relays media for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteNode {
    /// Its name.
    pub name: String,
    /// Where it takes commands, over UDP.
    pub control: SocketAddr,
    /// Its share of calls among those that are up; at least 1.
    pub weight: u32,
    /// Calls of ours at a time; `None`: as many as come.
    pub max_calls: Option<u32>,
    /// It gets no new calls.
    pub drain: bool,
    /// By what its load is told.
    pub load: NodeLoad,
}

/// By what the load of a node is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeLoad {
    /// The calls that this border has there.
    #[default]
    Calls,
    /// The sessions that the node itself reports, which are those of other borders, too; beside the calls that came since.
    Reported,
}

/// What becomes of the calls of a media node that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeFailure {
    /// They are moved to another media node.
    #[default]
    Reanchor,
    /// They are ended.
    End,
}

/// What is the same for all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCare {
    /// How long between two checks of a node.
    pub check: Duration,
    /// That was said by the key's former name.
    pub former_key: bool,
    /// A node that leaves a check unanswered for so long is down.
    pub timeout: Duration,
    /// What becomes of the calls of a node that has failed.
    pub failure: NodeFailure,
    /// Calls that are re-anchored, or ended for that, in a second at most.
    pub failure_rate: u32,
    /// How long a call waits for a node that takes it; `None`: until it ends by itself.
    pub keep: Option<Duration>,
}

/// A program that relays media for this border: `hornwork run --role media`, or rtpengine. It is commanded by the "ng" protocol over UDP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRemoteNode {
    /// Its name, unique among the nodes.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Where it takes commands: `udp:ADDRESS:PORT`.
    pub control: String,
    /// Its share of the calls: a node of weight 2 has twice the calls of a node of weight 1. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// Calls of this border there at a time; of several workers each has its part. 0: as many as come.
    #[serde(default)]
    pub max_calls: u32,
    /// `true`: it gets no new calls; those that it has go on until they end, and an event says when the last one has. So a node is
    /// taken out of service by a reload. A node that is taken out of the file is drained, too.
    #[serde(default)]
    pub drain: bool,
    /// By what its load is told: `calls` that this border has there, or `reported`: the sessions that the node itself reports, those of
    /// other borders included. Default: `calls`.
    #[serde(default)]
    pub load: NodeLoad,
}

fn one() -> u32 {
    1
}

/// Nodes that a file describes.
pub(super) fn nodes(raw: &Raw, sink: &mut Sink<'_>) -> Vec<RemoteNode> {
    let mut nodes: Vec<RemoteNode> = Vec::new();
    for (index, node) in raw.media_node.iter().enumerate() {
        let path = format!("media_node[{index}]");
        let at = format!("{path}.control");
        let control = match node.control.split_once(':') {
            Some(("udp", address)) => address.parse::<SocketAddr>().ok(),
            Some((transport @ ("tcp" | "tls" | "ws" | "wss" | "http" | "https"), _)) => {
                sink.report(
                    &at,
                    format!("media nodes are commanded over udp, not over {transport}"),
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
                format!("\"{}\" does not say where commands are taken", node.control),
                "write udp:ADDRESS:PORT, with an IP address",
            );
            continue;
        };
        if let Some(known) = nodes.iter().find(|known| known.name == node.name) {
            sink.report(
                &format!("{path}.name"),
                format!("media node \"{}\" is there already", known.name),
                "give each media node a name of its own",
            );
        }
        if let Some(known) = nodes.iter().find(|known| known.control == control) {
            sink.report(
                &at,
                format!("media node \"{}\" takes commands there", known.name),
                "each media node has an address of its own",
            );
        }
        nodes.push(RemoteNode {
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

/// What is the same for all nodes.
pub(super) fn care(raw: &Raw) -> NodeCare {
    NodeCare {
        check: match raw.media.node_check {
            Some(check) => seconds(check),
            None => Duration::from_millis(raw.media.node_check_ms.into()),
        },
        former_key: raw.media.node_check.is_some(),
        timeout: Duration::from_millis(raw.media.node_timeout_ms.into()),
        failure: raw.media.node_failure,
        failure_rate: raw.media.node_failure_rate,
        keep: optional_seconds(raw.media.node_keep),
    }
}

/// What cannot be had where media goes through nodes.
pub(super) fn check(config: &Config, raw: &Raw, sink: &mut Sink<'_>) {
    if raw.media.anchor == RawMediaAnchor::Here {
        if !raw.media_node.is_empty() {
            sink.report(
                "media_node[0]",
                "media nodes are described, but no call uses them",
                "write anchor = \"nodes\" under [media], or take them out",
            );
        }
        return;
    }
    if raw.media_node.is_empty() {
        sink.report(
            "media.anchor",
            "there is no media node",
            "add a [[media_node]] with name and control, or leave `anchor` out",
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
                    "interface \"{}\" has no `node_interface`, others have one",
                    interface.name
                ),
                "name one for each interface, or for none: media nodes are told both sides of a call or neither",
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
        if trunk.refer == RawRefer::Act {
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

/// A name without effect is a mistake of whoever wrote it.
pub(super) fn without_nodes(raw: &Raw, sink: &mut Sink<'_>) {
    if raw.media.anchor == RawMediaAnchor::Nodes {
        return;
    }
    for (index, interface) in raw.interface.iter().enumerate() {
        if interface.node_interface.is_some() {
            sink.report(
                &format!("interface[{index}].node_interface"),
                "`node_interface` has no effect without media nodes",
                "take it out, or write anchor = \"nodes\" under [media]",
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
        format!("{what} is not there for calls whose media goes through media nodes"),
        "take it out, or anchor media here (anchor = \"here\" under [media])",
    );
}
