//! `[media]`: anchored media.

use super::ng_client::NodeFailure;
use super::sink::{Sink, optional_seconds};
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Anchored media.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMedia {
    /// Place of anchored media: `here`, or `nodes`: each call at one `[[media_node]]`. Conferences are always here.
    pub anchor: RawMediaAnchor,
    /// Milliseconds between two `ping` commands to a media node.
    #[schemars(range(min = 50, max = 3_600_000))]
    pub node_check_ms: u32,
    /// Milliseconds after which an unanswered `ping` marks a media node as down; the `ping` is sent three times in that
    /// time. A dead node is detected within `node_check_ms` + `node_timeout_ms`, and at once if its host sends ICMP
    /// port unreachable.
    #[schemars(range(min = 100, max = 60_000))]
    pub node_timeout_ms: u32,
    /// Treatment of calls whose media node is down or has lost them. `reanchor`: each call moves to another media node
    /// by re-INVITE to both sides. `end`: calls are ended by BYE with Reason.
    pub node_failure: NodeFailure,
    /// Maximum number of calls of this border per second that are moved or ended after a failure of a media node;
    /// several workers share it evenly. With the default, 5,000 calls of a node take 2 s.
    #[schemars(range(min = 1, max = 100_000))]
    pub node_failure_calls_per_s: u32,
    /// Seconds that a call waits for a media node if none is up or has capacity; then it is ended. 0: it waits until it
    /// ends.
    #[schemars(range(max = 86400))]
    pub node_failure_wait_s: u32,
    /// Seconds without media after which a call is ended. 0: never. Media nodes have their own limits.
    #[schemars(range(max = 86400))]
    pub timeout_s: u32,
    /// Seconds without media after which a call on hold is ended. 0: never.
    #[schemars(range(max = 86400))]
    pub hold_timeout_s: u32,
    /// Differentiated services code point of media packets (46 is expedited forwarding).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Longest batching delay of media in milliseconds: under load, packets of many streams are processed together at
    /// less cost for each. The delay grows with the packet rate and reaches this value at 8 packets per delay; a few
    /// streams are not delayed. A relayed packet is delayed by up to this time, and its jitter grows; measured with 1,
    /// the median delay grows by 0.6 ms. 0: no batching.
    #[schemars(range(max = 10))]
    pub batching_delay_ms: u32,
    /// Sockets of media ports. `auto`: all media ports of a thread share one socket if kernel and privileges allow it,
    /// otherwise each port has its own; the log states which. `shared`: a shared socket, or the program does not start.
    /// `per-port`: a socket for each port, also for ports in the ephemeral range of the kernel. Media addresses that a
    /// reload adds have a socket for each port until the next start; with `shared` the reload is refused.
    pub sockets: MediaSocketMode,
    /// Relaying of plain RTP in the kernel, before packets reach a socket, for streams that are only relayed. `never`;
    /// `auto`: if kernel (6.3), privileges (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) and drivers (XDP) allow it; the log
    /// states the result. `require`: for all media addresses, with network interfaces that support redirection, or the
    /// program does not start. A firewall on this host does not see these packets. Loading the XDP program may
    /// interrupt traffic of a network interface for a moment.
    pub kernel_relay: OffloadMode,
    /// Media over AF_XDP sockets, bypassing the network stack of the kernel; other traffic uses sockets. `never`;
    /// `auto`: if kernel (5.11), privileges (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW) and locked memory (8 MiB
    /// per queue of a network interface, or CAP_IPC_LOCK) allow it; the log states the result. `require`: for all media
    /// addresses, or the program does not start. The log also states whether the network interface works without
    /// copies, its number of queues (64 at most), and whether its driver supports XDP; otherwise the kernel uses the
    /// slower generic mode. The loopback interface is not served; a firewall on this host does not see these packets.
    /// Cannot be combined with `kernel_relay`, or with several `workers` of `[sip]`.
    pub af_xdp: OffloadMode,
}

impl Default for RawMedia {
    fn default() -> Self {
        RawMedia {
            anchor: RawMediaAnchor::Here,
            node_check_ms: 250,
            node_timeout_ms: 600,
            node_failure: NodeFailure::Reanchor,
            node_failure_calls_per_s: 2500,
            node_failure_wait_s: 60,
            timeout_s: 60,
            hold_timeout_s: 1800,
            dscp: 46,
            batching_delay_ms: 0,
            sockets: MediaSocketMode::Auto,
            kernel_relay: OffloadMode::Never,
            af_xdp: OffloadMode::Never,
        }
    }
}

/// Place of anchored media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaAnchor {
    /// At the border.
    #[default]
    Here,
    /// At media nodes.
    Nodes,
}

/// Use of an optional path for media packets that kernel or privileges may not allow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadMode {
    /// Not used.
    #[default]
    Never,
    /// Used if possible.
    Auto,
    /// Used for all media addresses, or the program does not start.
    Require,
}

/// Sockets of media ports.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum MediaSocketMode {
    /// A shared socket if possible.
    #[default]
    Auto,
    /// A shared socket, or the program does not start.
    Shared,
    /// A socket per port.
    PerPort,
}

/// Anchored media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSpec {
    /// Whether calls are anchored at media nodes instead of the border.
    pub at_nodes: bool,
    /// Time without media after which a call is ended; `None`: never.
    pub timeout: Option<Duration>,
    /// The same for a call on hold.
    pub hold_timeout: Option<Duration>,
    /// Differentiated services code point of media packets.
    pub dscp: u8,
    /// Longest batching delay of media.
    pub batching_delay: Duration,
    /// Sockets of media ports.
    pub sockets: MediaSocketMode,
    /// Use of the kernel relay.
    pub kernel_relay: OffloadMode,
    /// Use of AF_XDP.
    pub af_xdp: OffloadMode,
}

pub(super) fn media(raw: &RawMedia, sink: &mut Sink<'_>) -> MediaSpec {
    if raw.kernel_relay != OffloadMode::Never && raw.af_xdp != OffloadMode::Never {
        sink.report(
            "media.af_xdp",
            "a network interface supports either AF_XDP or the kernel relay",
            "set `kernel_relay` or `af_xdp` of [media] to \"never\"",
        );
    }
    MediaSpec {
        at_nodes: raw.anchor == RawMediaAnchor::Nodes,
        timeout: optional_seconds(raw.timeout_s),
        hold_timeout: optional_seconds(raw.hold_timeout_s),
        dscp: raw.dscp,
        batching_delay: Duration::from_millis(raw.batching_delay_ms.into()),
        sockets: raw.sockets,
        kernel_relay: raw.kernel_relay,
        af_xdp: raw.af_xdp,
    }
}
