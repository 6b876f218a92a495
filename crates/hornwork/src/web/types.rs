//! Bodies of requests and responses. The OpenAPI document is generated from these types.

use super::jitter::JitterMs;
use config::ConsoleRole;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// An error.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ErrorBody {
    /// The mistake, in words.
    error: String,
    /// A word for programs: bad_request, login, password, token, role, csrf, origin, not_found, method, too_many,
    /// too_large, content_type, timeout, failed, busy.
    code: String,
}

/// The user of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionBody {
    /// Name; null before the login.
    pub(super) user: Option<String>,
    /// Role; null before the login.
    #[schemars(with = "Option<String>")]
    pub(super) role: Option<ConsoleRole>,
    /// Value for X-CSRF-Token in requests that change something; null with a token, or before the login.
    pub(super) csrf: Option<String>,
    /// Whether numbers are masked.
    pub(super) redact: bool,
    /// Version of the program.
    pub(super) version: &'static str,
    /// Whether there are users, who have to log in.
    pub(super) login: bool,
    /// Whether login by OpenID Connect is possible.
    pub(super) oidc: bool,
    /// Whether there is a store, so that calls can be searched.
    pub(super) store: bool,
}

/// A login.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginBody {
    /// Name.
    #[schemars(length(min = 1, max = 256))]
    pub(super) user: String,
    /// Password.
    #[schemars(length(min = 1, max = 256))]
    pub(super) password: String,
}

/// A whole number of JSON, which may be written with decimals (`3.0`).
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    // Each u32 is exact as f64.
    let number = f64::deserialize(deserializer)?;
    match number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        true => Ok(number as u32),
        false => Err(D::Error::custom(format!(
            "{number} is no whole number from 0 to {}",
            u32::MAX
        ))),
    }
}

/// As [`whole`], of a field that may be null.
fn whole_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole")] u32);
    let number = Option::<Whole>::deserialize(deserializer)?;
    Ok(number.map(|Whole(number)| number))
}

/// Conditions of a search; all that are given must hold.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CallQuery {
    /// User of From, To or the Request-URI; with `*` at the end: its beginning. The name `user` is accepted as well.
    #[serde(alias = "user")]
    #[schemars(length(min = 1, max = 1024))]
    pub(super) number: Option<String>,
    /// Call-ID of any leg.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) call_id: Option<String>,
    /// Name of the border that recorded it, in a store of several.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) node: Option<String>,
    /// IP address of a peer.
    #[schemars(extend("anyOf" = [{ "format": "ipv4" }, { "format": "ipv6" }]))]
    pub(super) address: Option<String>,
    /// Begun at this time or later: RFC 3339, or a date in UTC.
    #[schemars(extend("anyOf" = [{ "format": "date-time" }, { "format": "date" }]))]
    pub(super) from: Option<String>,
    /// Begun before this time.
    #[schemars(extend("anyOf" = [{ "format": "date-time" }, { "format": "date" }]))]
    pub(super) to: Option<String>,
    /// answered, failed, offered (goes on, without answer), active (goes on, answered), ended, interrupted; or a final
    /// status such as 486, 5xx or 400-499.
    #[schemars(regex(
        pattern = r"^(answered|failed|offered|active|ended|interrupted|[1-6]xx|[1-6][0-9]{2}(-[1-6][0-9]{2})?)$"
    ))]
    pub(super) outcome: Option<String>,
    /// Shortest duration in seconds.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1_000_000_000))]
    pub(super) min_duration: Option<f64>,
    /// Longest duration in seconds.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1_000_000_000))]
    pub(super) max_duration: Option<f64>,
    /// MOS of the worse direction at least this, 0 to 5.
    #[schemars(range(min = 0, max = 5))]
    pub(super) min_mos: Option<f64>,
    /// MOS of the worse direction below this, 0 to 5.
    #[schemars(range(min = 0, max = 5))]
    pub(super) mos_below: Option<f64>,
    /// Trunk, or domain of the target.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) trunk: Option<String>,
    /// Codec of either side.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) codec: Option<String>,
    /// Media security of either side: sdes, dtls; none: neither.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) protection: Option<String>,
    /// Words in display names, user agents and reasons.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) words: Option<String>,
    /// Text in any message, exactly; not for viewers.
    #[schemars(length(min = 1, max = 1024))]
    pub(super) text: Option<String>,
    /// call (default), registration, subscription, message, options, other, any.
    #[schemars(extend("enum" = ["call", "registration", "subscription", "message", "options", "other", "any"]))]
    pub(super) kind: Option<String>,
    /// Calls of a page, 1 to 1000; default 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<u32>,
    /// `next` of the page before.
    #[schemars(regex(pattern = r"^[0-9]{1,18}$"))]
    pub(super) cursor: Option<String>,
}

/// Media received from one side.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SideBody {
    /// Packets lost before they arrived, percent.
    loss_percent: Option<f64>,
    /// Mean interarrival jitter, milliseconds.
    jitter_ms: Option<f64>,
    /// The source reports jitter in whole milliseconds (rtpengine).
    jitter_whole_ms: bool,
    /// MOS-CQE by the E-model.
    mos: Option<f64>,
}

/// A stored call: the fields of `hornwork trace --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CallBody {
    /// Number in the store.
    id: String,
    /// Name of the border that recorded it.
    node: Option<String>,
    /// call, registration, subscription, message, options, other.
    kind: String,
    /// offered, answered, ended, interrupted.
    state: String,
    /// Call-ID of the caller's leg.
    call_id: Option<String>,
    /// Call-IDs of all legs.
    call_ids: Vec<String>,
    /// Number in the log of the border.
    call: Option<u64>,
    /// Method of the first request.
    method: Option<String>,
    /// User of the caller.
    from: String,
    /// User called.
    to: String,
    /// Time of the first message.
    started: String,
    /// Time of the answer.
    answered: Option<String>,
    /// Time of the end.
    ended: Option<String>,
    /// Seconds from answer to end.
    duration_s: Option<f64>,
    /// Final status.
    status: Option<u16>,
    /// caller, callee, border.
    ended_by: Option<String>,
    /// Reason of the end.
    reason: Option<String>,
    /// Interface that received it.
    interface: Option<String>,
    /// Route.
    route: Option<String>,
    /// Trunk, registration or domain of the target.
    trunk: Option<String>,
    /// Addresses of the peers.
    addresses: Vec<String>,
    /// Transports.
    transports: Vec<String>,
    /// Codec; caller/callee where they differ.
    codec: Option<String>,
    /// Media security; caller/callee where they differ.
    protection: Option<String>,
    /// Media path.
    path: Option<String>,
    /// MOS of the worse direction.
    mos: Option<f64>,
    /// Media from the caller.
    caller: SideBody,
    /// Media from the callee.
    callee: SideBody,
    /// Number of messages.
    messages: u64,
}

/// A page of a search, newest call first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CallsBody {
    /// The calls.
    #[schemars(with = "Vec<CallBody>")]
    pub(super) calls: Vec<Value>,
    /// Cursor of the next page.
    pub(super) next: Option<String>,
    /// Whether the search stopped before the page was full, because it examined many calls; `next` continues it.
    pub(super) incomplete: bool,
    /// Parts of the store that cannot be read, with the reason: their calls are missing.
    pub(super) unread: Vec<String>,
}

/// A message of a call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageBody {
    /// Position in the call.
    pub(super) index: usize,
    /// Border that recorded it, in a store of several: of a message between two of them the one that sent it.
    pub(super) node: Option<String>,
    /// Time with microseconds.
    pub(super) at: String,
    /// Leg: 0 of the caller, 1 behind the first border, 2 behind the second one of a store of several, and so on; null:
    /// a Call-ID of none.
    pub(super) leg: Option<u8>,
    /// in, out, or observed by a capture agent.
    pub(super) direction: &'static str,
    /// Address of the sender.
    pub(super) from: String,
    /// Address of the destination.
    pub(super) to: String,
    /// Transport.
    pub(super) transport: &'static str,
    /// Method and Request-URI, or status and reason.
    pub(super) summary: String,
    /// Method of a request, else null.
    pub(super) method: Option<String>,
    /// Status of a response, else null.
    pub(super) status: Option<u16>,
    /// CSeq.
    pub(super) cseq: Option<String>,
    /// Whether it has a session description.
    pub(super) has_sdp: bool,
    /// Octets.
    pub(super) size: usize,
}

/// Media received from one side of a call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StreamBody {
    /// Border that received it, in a store of several.
    pub(super) node: Option<String>,
    /// caller, callee.
    pub(super) side: &'static str,
    /// Begin of the media: the answer.
    pub(super) started: Option<String>,
    /// End of the call.
    pub(super) ended: Option<String>,
    /// Codec.
    pub(super) codec: Option<String>,
    /// Media security.
    pub(super) protection: Option<String>,
    /// Media path.
    pub(super) path: Option<String>,
    /// RTP packets received from this side. Of a call that is in progress or was interrupted: sum of the intervals.
    pub(super) packets_received: Option<u64>,
    /// Packets of this side lost before they arrived. Of a call in progress or interrupted: sum of the intervals.
    pub(super) lost: Option<u64>,
    /// RTP packets sent to this side.
    pub(super) packets_sent: Option<u64>,
    /// Packets sent to this side that were lost on the way, by its RTCP reports.
    pub(super) remote_lost: Option<u64>,
    /// One-way delay between the border and this side, milliseconds.
    pub(super) delay_ms: Option<f64>,
    /// Packets of this side lost, percent. Of a call in progress or interrupted: by the sums of the intervals.
    pub(super) loss_percent: Option<f64>,
    /// Mean interarrival jitter, milliseconds. Of a call in progress or interrupted: mean of the intervals, weighted by
    /// their packets.
    #[schemars(with = "Option<f64>")]
    pub(super) jitter_ms: Option<JitterMs>,
    /// The source reports jitter in whole milliseconds (rtpengine).
    pub(super) jitter_whole_ms: bool,
    /// MOS-CQE by the E-model. Of a call in progress or interrupted: mean of the intervals, weighted by their packets.
    pub(super) mos: Option<f64>,
    /// The same in intervals, in order of time; empty if they were not recorded.
    pub(super) intervals: Vec<IntervalBody>,
}

/// Media received from one side in an interval.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct IntervalBody {
    /// End of the interval.
    pub(super) at: String,
    /// Its length, milliseconds.
    pub(super) interval_ms: u64,
    /// RTP packets received from this side.
    pub(super) packets_received: Option<u64>,
    /// Packets of this side lost before they arrived.
    pub(super) lost: Option<u64>,
    /// The same in percent.
    pub(super) loss_percent: Option<f64>,
    /// Mean interarrival jitter, milliseconds.
    #[schemars(with = "Option<f64>")]
    pub(super) jitter_ms: Option<JitterMs>,
    /// The source reports jitter in whole milliseconds (rtpengine).
    pub(super) jitter_whole_ms: bool,
    /// MOS-CQE by the E-model.
    pub(super) mos: Option<f64>,
}

/// A step by which a border decided about the call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DecisionBody {
    /// The border, in a store of several.
    pub(super) node: Option<String>,
    /// Time.
    pub(super) at: String,
    /// received, trunk_skipped, routed, refused, sent, target_refused, answered, ended, or the name of an event.
    pub(super) what: String,
    /// In a sentence.
    pub(super) detail: String,
    /// The values that decided.
    pub(super) values: Map<String, Value>,
}

/// An event of the call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventBody {
    /// Border that recorded it, in a store of several.
    pub(super) node: Option<String>,
    /// Time.
    pub(super) at: String,
    /// Name, as in docs/events.md.
    pub(super) name: String,
    /// Fields.
    pub(super) fields: Map<String, Value>,
}

/// A call with all that is known about it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CallPageBody {
    /// The call.
    #[schemars(with = "CallBody")]
    pub(super) call: Value,
    /// Names of the borders that recorded it, in the order in which they got the call; empty in a store of one.
    pub(super) nodes: Vec<String>,
    /// Its messages at all borders in order of time, each once; at most 20000.
    pub(super) messages: Vec<MessageBody>,
    /// Whether it has more messages.
    pub(super) truncated: bool,
    /// Its media, by border in the order of `nodes`.
    pub(super) streams: Vec<StreamBody>,
    /// How the borders decided: by border in the order of `nodes`, those of one in order of time.
    pub(super) decision: Vec<DecisionBody>,
    /// Its events at all borders in order of time.
    pub(super) events: Vec<EventBody>,
    /// The records of other borders about the same call, in a store of several.
    #[schemars(with = "Vec<CallBody>")]
    pub(super) related: Vec<Value>,
}

/// A line that the border changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EditBody {
    /// Line in `raw`, from 1; null: the line is in the other message only.
    pub(super) line: Option<usize>,
    /// As received; null: added.
    pub(super) before: Option<String>,
    /// As sent; null: removed.
    pub(super) after: Option<String>,
    /// The header rule that made the edit; otherwise the function of the border that makes such edits.
    pub(super) rule: String,
    /// Whether `rule` was recorded when it was applied.
    pub(super) recorded: bool,
}

/// A message in full; for viewers without body and credentials.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessagePageBody {
    /// Time.
    pub(super) at: String,
    /// The text; octets that are not UTF-8 are replaced.
    pub(super) raw: String,
    /// Differences to the message on the other leg.
    pub(super) edits: Vec<EditBody>,
    /// Index of that message; null: the border made the message itself.
    pub(super) counterpart: Option<usize>,
    /// Whether body, credentials or numbers are not shown.
    pub(super) redacted: bool,
}

/// A page of a list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// `next` of the page before.
    #[schemars(regex(pattern = r"^[0-9]{1,18}$"))]
    pub(super) cursor: Option<String>,
    /// Entries of a page, 1 to 1000; default 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<u32>,
}

/// A call in progress.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LiveCallBody {
    /// Number in the log of the border.
    pub(super) id: String,
    /// Call-ID of the caller's leg.
    pub(super) call_id: Option<String>,
    /// Caller's address.
    pub(super) from: String,
    /// Called address.
    pub(super) to: String,
    /// Time of the INVITE.
    pub(super) started: String,
    /// Time of the answer.
    pub(super) answered: Option<String>,
    /// Seconds since the answer.
    pub(super) duration_s: Option<u64>,
    /// setup, answered, ending.
    pub(super) state: &'static str,
    /// Interface of the caller.
    pub(super) interface: String,
    /// Trunk of the callee, otherwise that of the caller.
    pub(super) trunk: Option<String>,
    /// Transports and addresses of caller and callee.
    pub(super) addresses: Vec<Option<String>>,
    /// Whether media is anchored.
    pub(super) anchored: bool,
    /// Media received from caller and callee in the last interval of quality.
    pub(super) media: Vec<LiveMediaBody>,
}

/// Media received from one side of a call in progress, in its last interval of quality; figures that were not measured
/// are null.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LiveMediaBody {
    /// Codec.
    pub(super) codec: Option<String>,
    /// Lost packets, percent of those sent.
    pub(super) loss_percent: Option<f64>,
    /// Mean interarrival jitter, milliseconds.
    #[schemars(with = "Option<f64>")]
    pub(super) jitter_ms: Option<JitterMs>,
    /// The source reports jitter in whole milliseconds (rtpengine).
    pub(super) jitter_whole_ms: bool,
    /// MOS-CQE, 1 to 4.5.
    pub(super) mos: Option<f64>,
}

/// Calls in progress.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LiveCallsBody {
    /// A page, by number.
    pub(super) calls: Vec<LiveCallBody>,
    /// Number of all calls.
    pub(super) total: usize,
    /// Cursor of the next page.
    pub(super) next: Option<String>,
}

/// A change of a call in progress; fields that did not change are absent.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(default)]
pub(super) struct CallChange {
    /// Number in the log of the border.
    pub(super) id: String,
    /// setup, answered, ended.
    pub(super) state: &'static str,
    /// Time.
    pub(super) at: String,
    /// Call-ID of the caller's leg.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call_id: Option<String>,
    /// Caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    /// Called user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<String>,
    /// Interface of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) interface: Option<String>,
    /// Route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route: Option<String>,
    /// Trunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trunk: Option<String>,
    /// Final status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    /// Reason of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// caller, callee, border.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended_by: Option<String>,
}

/// Conditions of a list of registrations.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegistrationQuery {
    /// User part of the address of record.
    pub(super) aor: Option<String>,
    /// `next` of the page before.
    pub(super) cursor: Option<String>,
    /// Users of a page, 1 to 1000; default 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<u32>,
}

/// A registered contact.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RegistrationBody {
    /// User part of the address of record.
    pub(super) aor: String,
    /// Contact URI.
    pub(super) contact: String,
    /// Address of the phone.
    pub(super) source: String,
    /// Transport.
    pub(super) transport: String,
    /// Seconds until it expires.
    pub(super) expires_s: u64,
    /// Interface.
    pub(super) interface: String,
    /// Time of the last REGISTER.
    pub(super) registered: String,
}

/// Registered contacts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RegistrationsBody {
    /// A page, by user.
    pub(super) registrations: Vec<RegistrationBody>,
    /// Number of all contacts.
    pub(super) total: usize,
    /// Cursor of the next page.
    pub(super) next: Option<String>,
}

/// A target of a trunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TargetBody {
    /// As configured.
    pub(super) address: String,
    /// Whether it answers.
    pub(super) up: bool,
}

/// A trunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TrunkBody {
    /// Name.
    pub(super) name: String,
    /// in (of service), out (taken out by an operator), down (no target answers).
    pub(super) state: &'static str,
    /// Why it is not in service.
    pub(super) reason: Option<String>,
    /// Calls from and to it.
    pub(super) calls: u32,
    /// Most calls.
    pub(super) calls_max: Option<u32>,
    /// First target.
    pub(super) address: Option<String>,
    /// All targets.
    pub(super) targets: Vec<TargetBody>,
}

/// Trunks.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TrunksBody {
    /// In the order of the configuration.
    pub(super) trunks: Vec<TrunkBody>,
}

/// A change of a trunk.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TrunkChange {
    /// Whether it gets calls.
    pub(super) enabled: bool,
}

/// A media node.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodeBody {
    /// Name.
    pub(super) name: String,
    /// Address of its ng server.
    pub(super) control: String,
    /// Whether it answers.
    pub(super) up: bool,
    /// Whether it gets no new calls.
    pub(super) drain: bool,
    /// Calls there.
    pub(super) calls: u32,
    /// Sessions that it reported last.
    pub(super) sessions: Option<u64>,
}

/// Media nodes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodesBody {
    /// In the order of the configuration.
    pub(super) nodes: Vec<NodeBody>,
}

/// A tunnel of the IPsec gateway.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TunnelBody {
    /// Name.
    pub(super) name: String,
    /// Whether it has keys.
    pub(super) up: bool,
    /// Since when it is up or down.
    pub(super) since: String,
    /// Outer address of the peer, where it is known.
    pub(super) peer: Option<String>,
    /// Identity of the peer; empty with manual keys.
    pub(super) identity: String,
    /// Algorithms of the association that seals.
    pub(super) algorithms: String,
    /// Packets sealed since the start.
    pub(super) sealed: u64,
    /// Packets opened since the start.
    pub(super) opened: u64,
}

/// Tunnels of the IPsec gateway.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TunnelsBody {
    /// In the order of the configuration; none without a gateway.
    pub(super) tunnels: Vec<TunnelBody>,
}

/// Capacities.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LimitsBody {
    /// Calls.
    pub(super) calls: usize,
    /// Registrations.
    pub(super) registrations: usize,
    /// Transactions.
    pub(super) transactions: usize,
    /// Stream connections.
    pub(super) connections: usize,
}

/// A change of capacities, until the next reload or restart.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitChange {
    /// Most calls.
    #[serde(deserialize_with = "whole")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(super) calls: u32,
}

/// A source or a user whose credentials are not checked.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BanBody {
    /// Address, or /64 of IPv6; of a user, `user:` and the name.
    pub(super) source: String,
    /// Reason.
    pub(super) reason: &'static str,
    /// Seconds until its credentials are checked again.
    pub(super) remaining_s: u64,
}

/// Sources and users whose credentials are not checked.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BansBody {
    /// Sources by address, then users by name.
    pub(super) bans: Vec<BanBody>,
}

/// The level of the log.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogLevelBody {
    /// error, warn, info, debug or trace.
    #[schemars(extend("enum" = ["error", "warn", "info", "debug", "trace"]))]
    pub(super) level: String,
}

/// Number of objects that a command concerned.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DoneBody {
    /// Number.
    pub(super) done: usize,
}

/// A drain.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainBody {
    /// Seconds after which the remaining calls are ended; default: as configured.
    #[serde(default, deserialize_with = "whole_or_null")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(super) timeout_s: Option<u32>,
}

/// Length of the series.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OverviewQuery {
    /// Seconds, 5 to 3600; default 3600.
    #[schemars(range(min = 5, max = 3600))]
    pub(super) seconds: Option<u32>,
}

/// Figures of the last five seconds.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OverviewNow {
    /// Seconds since 1970, as in the series; null: nothing was measured yet.
    pub(super) at: Option<i64>,
    /// Calls in progress.
    pub(super) calls_active: u64,
    /// New calls per second.
    pub(super) calls_per_s: f64,
    /// Registered contacts.
    pub(super) registrations: u64,
    /// Registrations stored or refreshed per second.
    pub(super) registrations_per_s: f64,
    /// RTP packets per second, relayed by the kernel included.
    pub(super) rtp_packets_per_s: f64,
    /// Mean of the lower MOS of each call that ended; null: none had a MOS.
    pub(super) mos: Option<f64>,
    /// CPU time of the program, percent of one CPU.
    pub(super) cpu: f64,
    /// Memory, MiB.
    pub(super) memory_mib: f64,
    /// Discarded inputs per second.
    pub(super) drops_per_s: f64,
    /// Calls answered, as a share of those offered in the last minute; null: none.
    pub(super) answered_ratio: Option<f64>,
    /// Messages, events, drops and calls that the store lost since the start of the border; null: there is no store.
    pub(super) store_lost: Option<u64>,
    /// Whether the store cannot be written.
    pub(super) store_failing: bool,
}

/// Figures over time, a point every five seconds.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct OverviewSeries {
    /// Seconds since 1970.
    pub(super) at: Vec<i64>,
    /// See `now`.
    pub(super) calls_active: Vec<u64>,
    /// See `now`.
    pub(super) calls_per_s: Vec<f64>,
    /// See `now`.
    pub(super) registrations: Vec<u64>,
    /// See `now`.
    pub(super) rtp_packets_per_s: Vec<f64>,
    /// See `now`.
    pub(super) mos: Vec<Option<f64>>,
    /// See `now`.
    pub(super) cpu: Vec<f64>,
    /// See `now`.
    pub(super) memory_mib: Vec<f64>,
    /// See `now`.
    pub(super) drops_per_s: Vec<f64>,
}

/// Figures now and over time.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Overview {
    /// Now.
    pub(super) now: OverviewNow,
    /// Over time.
    pub(super) series: OverviewSeries,
}

/// A reason for discarding input.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DropRate {
    /// Name, as in docs/events.md.
    pub(super) reason: &'static str,
    /// Number since the start.
    pub(super) total: u64,
    /// Per second, of the last five.
    pub(super) per_s: f64,
    /// Meaning.
    pub(super) help: &'static str,
}

/// Discarded input, the most frequent reason first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DropsBody {
    /// Reasons with drops.
    pub(super) drops: Vec<DropRate>,
}

/// An alarm.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct AlarmBody {
    /// Number.
    pub(super) id: u64,
    /// Name, as in docs/metrics.md.
    pub(super) name: &'static str,
    /// critical, major, minor.
    pub(super) severity: &'static str,
    /// The trunk, node, folder or certificate; empty for the border.
    pub(super) object: String,
    /// Details.
    pub(super) text: String,
    /// Meaning of alarms of this name.
    pub(super) help: &'static str,
    /// When it was raised.
    pub(super) since: String,
    /// When it was cleared; null: it is active.
    pub(super) cleared: Option<String>,
    /// User who acknowledged it.
    pub(super) acknowledged_by: Option<String>,
    /// When.
    pub(super) acknowledged_at: Option<String>,
}

/// Active alarms, then cleared ones.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AlarmsBody {
    /// Newest first.
    pub(super) alarms: Vec<AlarmBody>,
}

/// A report of the test lab.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReportBody {
    /// Name of its folder.
    pub(super) name: String,
    /// Title.
    pub(super) title: String,
    /// Time of the report.
    pub(super) started: String,
    /// Verdict of the run.
    pub(super) verdict: Option<String>,
}

/// Reports, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReportsBody {
    /// At most 1000.
    pub(super) reports: Vec<ReportBody>,
}

/// A page of the audit log, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditBody {
    /// Entries.
    pub(super) entries: Vec<super::audit::AuditEntry>,
    /// Cursor of the next page.
    pub(super) next: Option<String>,
}

/// Health of the border.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HealthBody {
    /// ok, degraded (a critical alarm is active, or the store cannot be read), draining, failed.
    pub(super) status: &'static str,
    /// Parts: border, store, store_losses (with a store), alarms; each ok or its failure.
    pub(super) checks: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_may_have_decimals() {
        let calls = |text: &str| serde_json::from_str::<LimitChange>(text).map(|it| it.calls);
        for (text, number) in [("3", 3), ("3.0", 3), ("4294967295", u32::MAX), ("-0.0", 0)] {
            assert_eq!(calls(&format!("{{\"calls\":{text}}}")).unwrap(), number);
        }
        for text in ["3.5", "-1", "4294967296", "1e400", "null", "\"3\"", "true"] {
            assert!(calls(&format!("{{\"calls\":{text}}}")).is_err(), "{text}");
        }
        let limit = |text: &str| serde_json::from_str::<DrainBody>(text).map(|it| it.timeout_s);
        assert_eq!(limit("{}").unwrap(), None);
        assert_eq!(limit("{\"timeout_s\":null}").unwrap(), None);
        assert_eq!(limit("{\"timeout_s\":60.0}").unwrap(), Some(60));
        assert!(limit("{\"timeout_s\":0.5}").is_err());
    }

    #[test]
    fn schema_of_calls_has_the_fields_of_calls() {
        let schema = schemars::schema_for!(CallBody).to_value();
        let known: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let call = console::StoredCall::default().json();
        let mut written: Vec<&String> = call.as_object().unwrap().keys().collect();
        let mut known = known;
        known.sort();
        written.sort();
        assert_eq!(known, written);
        let side = schemars::schema_for!(SideBody).to_value();
        let sides = call["caller"].as_object().unwrap();
        assert_eq!(side["properties"].as_object().unwrap().len(), sides.len());
    }
}
