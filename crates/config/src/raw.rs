//! The configuration file as a whole: its tables. Each table has a file of its own with its keys (description, unit,
//! bounds, default), its checks and its checked form. The JSON Schema and docs/configuration.md are generated from
//! these types.

use schemars::JsonSchema;
use serde::Deserialize;

/// Configuration of a Hornwork border.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Hornwork configuration")]
pub(super) struct Raw {
    /// Listeners with one policy each. At least one, except in a file with `[ng_server]` or `[gateway]` alone.
    #[serde(default)]
    pub interface: Vec<super::interfaces::RawInterface>,
    /// Media for other systems, controlled by the ng protocol.
    pub ng_server: Option<super::ng_server::RawNgServer>,
    /// Media nodes that relay media for this border. Used with `anchor = "nodes"` in `[media]`.
    #[serde(default)]
    pub media_node: Vec<super::ng_client::RawMediaNode>,
    /// Systems that calls are sent to and come from: PBXs, softswitches, carriers.
    #[serde(default)]
    pub trunk: Vec<super::trunks::RawTrunk>,
    /// Routes of calls, tried in order; the first whose conditions hold is used. A call that matches no route goes to
    /// the contacts of the called user if the user is registered: a registration forwarded to a trunk is reachable from
    /// that trunk, a registration kept here is reachable from trunks and authenticated sources. Otherwise a call from
    /// an interface that forwards registrations goes to the trunk of those registrations. Otherwise, if the file has no
    /// route, it goes to any trunk except the one it came from. Otherwise it is refused with 404. MESSAGE, SUBSCRIBE
    /// and out-of-dialog REFER are routed in the same way.
    #[serde(default)]
    pub route: Vec<super::routes::RawRoute>,
    /// Conferences. A call to the number of a conference is answered by the border. Conferences are matched before
    /// routes.
    #[serde(default)]
    pub conference: Vec<super::conferences::RawConference>,
    /// Header rules, tried in order.
    #[serde(default)]
    pub rules: Vec<super::rules::RawRule>,
    /// Identities at the boundary of the trust domain (RFC 3325, RFC 3323).
    #[serde(default)]
    pub identity: super::rules::RawIdentityPolicy,
    /// Users of the embedded registrar. They authenticate by digest.
    #[serde(default)]
    pub user: Vec<super::users::RawUser>,
    /// Digest authentication of requests.
    #[serde(default)]
    pub realm: super::realm::RawRealm,
    /// The embedded registrar.
    #[serde(default)]
    pub registrar: super::registrar::RawRegistrar,
    /// Anchored media.
    #[serde(default)]
    pub media: super::media::RawMedia,
    /// SIP behaviour that is common to all interfaces.
    #[serde(default)]
    pub sip: super::sip::Sip,
    /// Scheduling of the threads that process signalling and media. Takes effect at the next start.
    #[serde(default)]
    pub threads: super::threads::Threads,
    /// Session timers (RFC 4028).
    #[serde(default)]
    pub session_timer: super::session_timer::SessionTimer,
    /// Capacities. Requests above them are refused and counted.
    #[serde(default)]
    pub limits: super::limits::RawLimits,
    /// DNS servers.
    #[serde(default)]
    pub dns: super::dns::RawDns,
    /// Operator commands and control of conferences, over HTTP and a Unix socket. Off if the table is absent.
    pub control: Option<super::control::RawControl>,
    /// The history of calls, messages and events. Off if the table is absent.
    pub store: Option<super::store::RawStore>,
    /// Call records. Off if the table is absent.
    pub records: Option<super::records::RawRecords>,
    /// Metrics for Prometheus, statistics as CSV. Off if the table is absent.
    pub metrics: Option<super::metrics::RawMetrics>,
    /// Receivers of alarms outside of the border. Off if the table is absent.
    pub alarms: Option<super::alarms::RawAlarms>,
    /// OpenTelemetry traces of calls. Off if the table is absent.
    pub traces: Option<super::traces::RawTraces>,
    /// The web console and its HTTP API. Off if the table is absent.
    pub console: Option<super::console::RawConsole>,
    /// The IPsec gateway. Off if the table is absent.
    pub gateway: Option<super::gateway::RawGateway>,
    /// Graceful shutdown.
    #[serde(default)]
    pub drain: super::drain::Drain,
    /// Logging.
    #[serde(default)]
    pub log: super::log::RawLog,
}
