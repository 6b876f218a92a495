//! Declared events: one vocabulary for logs, test lab and tests. Each event is declared once, with name, level, text
//! and fields.

use crate::figures::{Hundredths, ReportedJitter};
use crate::time::{Time, push_digits};
use core::fmt::{self, Write as _};

/// Declares the events once; enum, names, levels, texts and the written form are generated from this list.
macro_rules! events {
    ($($(#[doc = $text:literal])* $variant:ident $name:literal $level:ident { $($(#[doc = $ftext:literal])* $field:ident : $type:ty),* $(,)? })*) => {
        /// An event without its time.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($(#[doc = $text])* $variant { $($(#[doc = $ftext])* $field: $type,)* },)*
        }

        impl EventKind {
            /// The name used in logs, metrics and JSON.
            pub const fn name(&self) -> &'static str {
                match self { $(EventKind::$variant { .. } => $name,)* }
            }

            /// The level at which the event is logged.
            pub const fn level(&self) -> EventLevel {
                match self { $(EventKind::$variant { .. } => EventLevel::$level,)* }
            }

            /// Every event: name, level, text, fields with their texts. The reference page is generated from this.
            pub const REFERENCE: &'static [EventReference] = &[
                $(EventReference {
                    name: $name,
                    level: EventLevel::$level,
                    text: concat!($($text),*),
                    fields: &[$((stringify!($field), concat!($($ftext),*)),)*],
                },)*
            ];

            /// Calls `each` with the name and the written form of each field that has a value, in order of declaration.
            pub fn fields(&self, each: &mut dyn FnMut(&'static str, &dyn fmt::Display)) {
                match self {
                    $(EventKind::$variant { $($field,)* } => {
                        let _ = &each;
                        $(if let Some(value) = Field::value($field) {
                            each(stringify!($field), value);
                        })*
                    })*
                }
            }

            /// As [`EventKind::fields`], with values of the declared types.
            pub fn typed_fields(&self, each: &mut dyn FnMut(&'static str, FieldValue<'_>)) {
                match self {
                    $(EventKind::$variant { $($field,)* } => {
                        let _ = &each;
                        $(if let Some(value) = Field::typed($field) {
                            each(stringify!($field), value);
                        })*
                    })*
                }
            }
        }
    };
}

/// The level of an event, as in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLevel {
    /// A function of the program is unavailable until an operator acts.
    Error,
    /// A fault, or a condition that an operator should look at.
    Warn,
    /// Normal operation.
    Info,
    /// Details, several for each call.
    Debug,
}

/// A field of an event.
trait Field {
    /// The written form; `None` for an absent value.
    fn value(&self) -> Option<&dyn fmt::Display>;
    /// The value; `None` for an absent one.
    fn typed(&self) -> Option<FieldValue<'_>>;
}

/// The value of a field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'e> {
    /// A text, which may consist of digits: names of users and trunks, numbers dialled.
    Text(&'e str),
    /// An integer.
    Integer(u64),
    /// A figure with decimals.
    Decimal(Hundredths),
    /// Yes or no.
    Flag(bool),
}

macro_rules! fields {
    ($($type:ty: $own:ident => $value:expr,)*) => {
        $(impl Field for $type {
            fn value(&self) -> Option<&dyn fmt::Display> {
                Some(self)
            }

            fn typed(&self) -> Option<FieldValue<'_>> {
                let $own = self;
                Some($value)
            }
        })*
    };
}

fields! {
    u16: own => FieldValue::Integer(u64::from(*own)),
    u32: own => FieldValue::Integer(u64::from(*own)),
    u64: own => FieldValue::Integer(*own),
    bool: own => FieldValue::Flag(*own),
    String: own => FieldValue::Text(own),
    Box<str>: own => FieldValue::Text(own),
    Hundredths: own => FieldValue::Decimal(*own),
    ReportedJitter: own => match own {
        ReportedJitter::Measured(jitter) => FieldValue::Decimal(*jitter),
        ReportedJitter::Whole(ms) => FieldValue::Integer(*ms),
    },
}

impl<T: Field> Field for Option<T> {
    fn value(&self) -> Option<&dyn fmt::Display> {
        self.as_ref().and_then(Field::value)
    }

    fn typed(&self) -> Option<FieldValue<'_>> {
        self.as_ref().and_then(Field::typed)
    }
}

/// One entry of the reference of events.
#[derive(Debug)]
pub struct EventReference {
    /// Name in logs and JSON.
    pub name: &'static str,
    /// Level in the log.
    pub level: EventLevel,
    /// Meaning.
    pub text: &'static str,
    /// Names and meanings of the fields.
    pub fields: &'static [(&'static str, &'static str)],
}

events! {
    /// An INVITE for a new call was received.
    CallOffered "call_offered" Info {
        /// Number of the call.
        call: u64,
        /// Name of the interface that received it.
        interface: String,
        /// Call-ID of the first leg.
        call_id: String,
        /// Caller's address of record.
        from: String,
        /// Number or address called.
        to: String,
        /// Transport and address of the caller.
        source: String,
        /// Trunk of the caller.
        trunk: Option<String>,
    }
    /// An INVITE was refused before it became a call. Composed only if calls are recorded or stored.
    CallRefused "call_refused" Debug {
        /// Name of the interface that received it.
        interface: String,
        /// Call-ID.
        call_id: String,
        /// Caller's address of record.
        from: String,
        /// Number or address called.
        to: String,
        /// Transport and address of the caller.
        source: String,
        /// Trunk of the caller.
        trunk: Option<String>,
        /// Status of the response.
        status: u16,
        /// Reason.
        reason: String,
        /// The route that decided.
        route: Option<String>,
        /// The header rule that refused it.
        rule: Option<String>,
    }
    /// A trunk of the route gets no INVITE of this call. Composed only if calls are recorded or stored.
    TrunkSkipped "trunk_skipped" Debug {
        /// Call-ID of the first leg.
        call_id: String,
        /// Name of the route.
        route: String,
        /// Name of the trunk.
        trunk: String,
        /// Reason, with the figures that decided.
        reason: String,
    }
    /// The INVITE of a call was sent to a target; logged for each target that is tried.
    CallRouted "call_routed" Info {
        /// Number of the call.
        call: u64,
        /// Source of the routing decision: the name of the route; `default` (no route matched), `registration` (a
        /// registered contact of a local domain), `rule` (a header rule), `redirect` (a 3xx response), `transfer`
        /// (REFER).
        route: String,
        /// Trunk, registration or domain of the target.
        target: String,
        /// Transport and address to which the INVITE was sent.
        address: String,
        /// Call-ID of the second leg.
        call_id: String,
        /// Name of the interface that sent it.
        interface: String,
        /// Trunk of the target.
        trunk: Option<String>,
    }
    /// A provisional response of the called side was passed on: ringing or early media.
    CallProgressed "call_progressed" Debug {
        /// Number of the call.
        call: u64,
        /// Status code passed on.
        status: u16,
    }
    /// The call was answered; reported once for a call, or for each branch of a call of the ng server.
    CallAnswered "call_answered" Info {
        /// Number of the call.
        call: u64,
        /// Milliseconds from the INVITE to the answer; absent for a call of the ng server.
        setup_ms: Option<u64>,
        /// Call-ID of the answered second leg, of several that rang; absent for conferences and calls of the ng server.
        call_id: Option<String>,
    }
    /// A leg has taken the place of another one in an answered call.
    LegReplaced "leg_replaced" Info {
        /// Number of the call.
        call: u64,
        /// The side whose leg was replaced: caller or callee.
        side: String,
        /// Cause: `transfer` (REFER carried out by the border) or `replaces` (INVITE with Replaces).
        cause: String,
        /// Call-ID of the new leg.
        call_id: String,
        /// Name of its interface.
        interface: String,
        /// Transport and address of its peer.
        address: String,
        /// Its trunk.
        trunk: Option<String>,
    }
    /// Media of a call that has ended, of all its media lines; it precedes `call_ended`.
    CallMedia "call_media" Debug {
        /// Number of the call.
        call: u64,
        /// RTP packets received from the caller, of all its sources.
        caller_packets: Option<u64>,
        /// Packets of the caller lost before they arrived here.
        caller_lost: Option<u64>,
        /// RTP packets sent to the caller.
        caller_sent: Option<u64>,
        /// Packets sent to the caller that were lost on the way, by its last RTCP report.
        caller_remote_lost: Option<u64>,
        /// One-way delay between border and caller, milliseconds: half the round-trip time measured by RTCP.
        caller_delay_ms: Option<Hundredths>,
        /// Protection of the media with the caller: none, or srtp and the crypto suite.
        caller_protection: Option<String>,
        /// RTP packets received from the callee, of all its sources.
        callee_packets: Option<u64>,
        /// Packets of the callee lost before they arrived here.
        callee_lost: Option<u64>,
        /// RTP packets sent to the callee.
        callee_sent: Option<u64>,
        /// Packets sent to the callee that were lost on the way, by its last RTCP report.
        callee_remote_lost: Option<u64>,
        /// One-way delay between border and callee, milliseconds: half the round-trip time measured by RTCP.
        callee_delay_ms: Option<Hundredths>,
        /// Protection of the media with the callee: none, or srtp and the crypto suite.
        callee_protection: Option<String>,
    }
    /// Media of a call in an interval: the difference of its figures to those at the end of the interval before. Only
    /// while calls are stored (`[store] quality_interval_s`), and for media that is relayed here or by a media node.
    /// The figures of a side are those of packets received from it, of the media line that `call_ended` rates; at a
    /// node, of its first media line, with rtpengine's last RTCP report in the interval.
    CallMediaInterval "call_media_interval" Debug {
        /// Number of the call.
        call: u64,
        /// Length of the interval, milliseconds; it ends at the time of the event.
        interval_ms: u64,
        /// RTP packets received from the caller.
        caller_packets: Option<u64>,
        /// Packets of the caller lost before they arrived here.
        caller_lost: Option<u64>,
        /// The same in percent of those sent.
        caller_loss_percent: Option<Hundredths>,
        /// Mean interarrival jitter (RFC 3550) of the source with most packets, milliseconds; without decimals where a
        /// media node reports whole milliseconds, as rtpengine does.
        caller_jitter_ms: Option<ReportedJitter>,
        /// Voice quality by the E-model: MOS-CQE, 1 to 4.5. The jitter buffer is taken for four times the mean jitter,
        /// at least a packet.
        caller_mos: Option<Hundredths>,
        /// As `caller_packets`, for the callee.
        callee_packets: Option<u64>,
        /// As `caller_lost`, for the callee.
        callee_lost: Option<u64>,
        /// As `caller_loss_percent`, for the callee.
        callee_loss_percent: Option<Hundredths>,
        /// As `caller_jitter_ms`, for the callee.
        callee_jitter_ms: Option<ReportedJitter>,
        /// As `caller_mos`, for the callee.
        callee_mos: Option<Hundredths>,
    }
    /// The call has ended: a BYE or a refusing final response was sent or received. Its last transactions may last for
    /// 32 s more. Figures that were not measured are absent.
    CallEnded "call_ended" Info {
        /// Number of the call.
        call: u64,
        /// The side that ended it: caller, callee (by BYE or a refusal) or border (also if no target has responded).
        ended_by: String,
        /// Reason; docs/reasons.md has them.
        reason: String,
        /// The final status of a call that was not answered, else 200.
        status: u16,
        /// Milliseconds from the answer to the end; absent for a call that was not answered.
        duration_ms: Option<u64>,
        /// Trunk to which the call was sent last; otherwise the trunk from which it came.
        trunk: Option<Box<str>>,
        /// Media path: sockets, kernel (at least a part was relayed by the kernel), af_xdp (as far as the interfaces
        /// support it), conference, node (a media node), or bypass (the sides send media to each other); absent for a
        /// call without media.
        path: Option<String>,
        /// Codec of the first media line with a codec that has a quality model, by its name in SDP; caller/callee where
        /// they differ. Without media packets, and for media bypass: the one that the last answer has chosen.
        codec: Option<String>,
        /// RTP packets of the caller lost before they arrived here, percent of those sent. With a media node: as
        /// reported by the node.
        caller_loss_percent: Option<Hundredths>,
        /// Mean interarrival jitter (RFC 3550) of the main source of the caller, measured here, milliseconds. With a
        /// media node: as reported by the node; without decimals where that is in whole milliseconds, as at rtpengine.
        caller_jitter_ms: Option<ReportedJitter>,
        /// Voice quality of the main source of the caller, measured here, by the E-model (G.107, G.107.1): MOS-CQE, 1
        /// to 4.5.
        caller_mos: Option<Hundredths>,
        /// As `caller_loss_percent`, for packets of the callee.
        callee_loss_percent: Option<Hundredths>,
        /// As `caller_jitter_ms`, for the main source of the callee.
        callee_jitter_ms: Option<ReportedJitter>,
        /// As `caller_mos`, for the main source of the callee.
        callee_mos: Option<Hundredths>,
    }
    /// A registration was stored or passed on.
    RegistrationStored "registration_stored" Info {
        /// Address of record.
        aor: String,
        /// Number of its contacts.
        contacts: u64,
        /// Seconds until it expires.
        expires: u64,
    }
    /// A registration ended.
    RegistrationEnded "registration_ended" Info {
        /// Address of record.
        aor: String,
        /// Reason: removed, expired, flow failed.
        reason: String,
    }
    /// The border refused a request.
    RequestRefused "request_refused" Debug {
        /// Method.
        method: String,
        /// Request-URI, at most 200 bytes of it.
        to: String,
        /// Call-ID, at most 200 bytes of it.
        call_id: String,
        /// Name of the interface on which it arrived.
        interface: String,
        /// Status of the response.
        status: u16,
        /// Reason.
        reason: String,
        /// Source address of the request.
        source: String,
    }
    /// An INVITE of a new call was refused by the border; at most 20 are logged in ten seconds by a worker, the others
    /// as `request_refused`. Refusals by overload control and rate limits have events of their own.
    InviteRefused "invite_refused" Info {
        /// Request-URI, at most 200 bytes of it.
        to: String,
        /// Call-ID, at most 200 bytes of it.
        call_id: String,
        /// Name of the interface on which it arrived.
        interface: String,
        /// Status of the response.
        status: u16,
        /// Reason.
        reason: String,
        /// Source address of the request.
        source: String,
        /// Refusals that were not logged by this event since the last one that was.
        suppressed: u64,
    }
    /// A request without credentials was challenged. This is no failure: the client repeats the request with
    /// credentials.
    AuthenticationRequired "authentication_required" Debug {
        /// Method.
        method: String,
        /// Status of the response: 401 or 407.
        status: u16,
        /// Source address of the request.
        source: String,
        /// The trunk that challenged the request; absent for challenges of the border.
        trunk: Option<String>,
    }
    /// A source has authenticated by digest.
    Authenticated "authenticated" Debug {
        /// Method.
        method: String,
        /// The authenticated address of record.
        user: String,
        /// Source address of the request.
        source: String,
    }
    /// Authentication failed; at most 20 are logged in ten seconds.
    AuthenticationFailed "authentication_failed" Warn {
        /// Source address of the request.
        source: String,
        /// The claimed address of record.
        aor: String,
        /// The user name in the credentials.
        user: String,
        /// Reason: wrong password, unknown user, credentials that are malformed or for another target, an address of
        /// record that does not belong to the user, credentials not judged because of too many failures before, or
        /// refused by trunk NAME (with authenticate = "trunk").
        reason: String,
        /// Failures that were not logged since the last one that was.
        suppressed: u64,
    }
    /// Requests exceeded a rate limit and were refused; logged at most every ten seconds for one interface or trunk.
    RateLimited "rate_limited" Info {
        /// Name of the interface or trunk.
        scope: String,
        /// Method of the last one.
        method: String,
        /// Requests refused since the last such event.
        refused: u64,
        /// Source address of the last one.
        source: String,
    }
    /// Admission control refused calls because memory or CPU time is exhausted; logged at most every ten seconds.
    AdmissionRefused "admission_refused" Info {
        /// The exhausted resource: memory, processor, or gateway (CPU time of the IPsec gateway's thread).
        resource: String,
        /// Calls that are up.
        calls: u64,
        /// Maximum number of calls like the last one refused.
        calls_max: u64,
        /// Media path by which the last refused call was priced: socket_per_port, shared_port_socket, kernel, af_xdp;
        /// absent for a call without anchored media.
        path: Option<String>,
        /// Calls refused since the last such event.
        refused: u64,
        /// KiB reserved, by use (call, connection, media, srtp, transcoding, conference, registrations), and the total
        /// available.
        memory: String,
        /// Microseconds of CPU time in each second reserved, by use (as for memory, and handshakes of the last second),
        /// and the total available.
        processor: String,
    }
    /// Overload: requests exceed the capacity, and new calls and registrations are refused until it ends.
    Overload "overload" Info {
        /// started or ended.
        state: String,
        /// Queueing delay of the first refused request, milliseconds.
        queue_delay_ms: u64,
        /// Requests refused during the overload.
        refused: u64,
        /// New calls shed by the socket filter during the overload.
        shed: u64,
    }
    /// The socket filter could not be installed: under overload new calls are read and refused, not shed by the kernel.
    SocketFilterFailed "socket_filter_failed" Info {
        /// Error of the operating system.
        error: String,
    }
    /// The media path, chosen by the capabilities and permissions of the machine: logged at the start for each of the
    /// choices, and again when interfaces gain or lose the ability to send packets of the kernel relay.
    MediaPath "media_path" Info {
        /// shared_port_socket (one for all ports of a thread) or socket_per_port; kernel_relay (unchanged streams are
        /// relayed by the kernel) or no_kernel_relay; af_xdp (media bypasses the network stack of the kernel) or
        /// no_af_xdp.
        path: String,
        /// With af_xdp, the mode of each interface: driver mode, or generic mode and its reason; zero-copy, or copy
        /// mode and its reason; number of queues in use. Otherwise the reason why the faster path is not in use, or the
        /// addresses that it does not serve (streams sent there use sockets); empty if the faster path is in use or
        /// another was configured.
        reason: String,
    }
    /// Settings of `[threads]` and whether they could be applied; logged once for each at the start.
    ThreadsSet "threads_set" Info {
        /// realtime (SCHED_FIFO), memory (locked) or processors (pinned).
        setting: String,
        /// Whether it was applied.
        applied: bool,
        /// The priority or the processors, or the reason why it could not be applied.
        detail: String,
    }
    /// Share of a call's media that the kernel relayed, with the kernel relay in use; logged at the end of the call for
    /// each media line that had media. All other packets went through sockets.
    MediaRelayedInKernel "media_relayed_in_kernel" Info {
        /// Number of the call.
        call: u64,
        /// Number of the media line.
        line: u64,
        /// RTP packets received from the caller.
        caller_packets: u64,
        /// Packets of the caller relayed by the kernel.
        caller_relayed: u64,
        /// Packets of the caller lost before they arrived here, of all its sources.
        caller_lost: u64,
        /// Mean interarrival jitter (RFC 3550) of the main source of the caller, microseconds.
        caller_jitter_us: u64,
        /// RTP packets received from the callee.
        callee_packets: u64,
        /// Packets of the callee relayed by the kernel.
        callee_relayed: u64,
        /// Packets of the callee lost before they arrived here.
        callee_lost: u64,
        /// Mean interarrival jitter of the main source of the callee, microseconds.
        callee_jitter_us: u64,
    }
    /// Statistics of the AF_XDP path, if it is in use; logged once, at the end of the program.
    AfXdpStatistics "af_xdp_statistics" Info {
        /// Datagrams received by AF_XDP.
        received: u64,
        /// Datagrams sent by AF_XDP.
        sent: u64,
        /// Datagrams sent by sockets instead: their route was not known or leads to another interface, they were too
        /// large, or a ring was full.
        sent_by_sockets: u64,
        /// Datagrams received and dropped because a ring of AF_XDP or the buffer of an open socket was full.
        dropped: u64,
        /// Datagrams received by each queue, in the order of the queues, by interface: eth0: 1200 1187; eth1: 2380.
        received_by_queue: String,
    }
    /// A target of a trunk has requested fewer new calls (RFC 7339).
    TrunkThrottled "trunk_throttled" Info {
        /// Name of the trunk.
        trunk: String,
        /// Host of the target.
        target: String,
        /// loss or rate.
        algorithm: String,
        /// Percent of new calls to hold back (loss), or calls a second that may be sent (rate).
        value: u32,
    }
    /// A trunk answers again.
    TrunkUp "trunk_up" Info {
        /// Name of the trunk.
        trunk: String,
    }
    /// A trunk does not answer.
    TrunkDown "trunk_down" Warn {
        /// Name of the trunk.
        trunk: String,
        /// The response or error that showed it.
        reason: String,
    }
    /// The state of the border's registration at a carrier changed.
    CarrierRegistration "carrier_registration" Info {
        /// Name of the trunk.
        trunk: String,
        /// registered, failed (the last attempt; the registration may still exist), expired or removed.
        state: String,
        /// The response or error of a failed attempt, or why the Service-Route of the carrier (RFC 3608) is not used.
        reason: Option<String>,
    }
    /// Media was latched to the source address of received packets.
    MediaLatched "media_latched" Debug {
        /// Number of the call.
        call: u64,
        /// caller or callee.
        side: String,
        /// The address.
        address: String,
    }
    /// A call ends because no media was received for the configured time.
    MediaTimeout "media_timeout" Warn {
        /// Number of the call.
        call: u64,
    }
    /// A participant has joined a conference.
    ConferenceJoined "conference_joined" Info {
        /// Number of the call.
        call: u64,
        /// Name of the conference in the configuration.
        conference: String,
        /// The number that was called; it identifies one of several conferences of the same configuration.
        number: String,
        /// Participants at present.
        participants: u64,
        /// The codec, with the packet time of packets sent to the participant, milliseconds.
        codec: String,
    }
    /// A participant has left a conference.
    ConferenceLeft "conference_left" Info {
        /// Number of the call.
        call: u64,
        /// Name of the conference in the configuration.
        conference: String,
        /// The number that was called.
        number: String,
        /// Remaining participants.
        participants: u64,
    }
    /// A participant of a conference was muted or unmuted.
    ConferenceMuted "conference_muted" Info {
        /// Number of the call.
        call: u64,
        /// Name of the conference in the configuration.
        conference: String,
        /// Whether the participant is muted now.
        muted: bool,
        /// Source of the request: `participant`, by digits, or `control`.
        requested_by: String,
    }
    /// A conference was locked or unlocked by control; a locked one accepts no further participants.
    ConferenceLocked "conference_locked" Info {
        /// Name of the conference in the configuration.
        conference: String,
        /// The number that was called.
        number: String,
        /// Whether it is locked now.
        locked: bool,
    }
    /// The PIN of a conference was requested from a caller, or that request has an outcome.
    ConferencePin "conference_pin" Info {
        /// Number of the call.
        call: u64,
        /// Name of the conference in the configuration.
        conference: String,
        /// The number that was called.
        number: String,
        /// `requested`, `accepted`, `wrong`, `timeout` (not entered in time), or `displaced` (another caller took the
        /// place in the lobby).
        outcome: String,
        /// Wrong PINs entered in this call so far.
        wrong_pins: u64,
    }
    /// A command of the HTTP control interface was executed.
    ControlCommand "control_command" Info {
        /// Address of the client.
        source: String,
        /// Method and path.
        request: String,
        /// The requested change, if the path does not contain it.
        value: String,
        /// Status of the response.
        status: u16,
    }
    /// Requests to the HTTP control interface were refused; logged at most every ten seconds.
    ControlRefused "control_refused" Warn {
        /// Address of the last client refused.
        source: String,
        /// Reason of the last refusal.
        reason: String,
        /// Status of the last refusal.
        status: u16,
        /// Requests refused since the last such event.
        refused: u64,
    }
    /// A call to a conference was refused, or ended where the PIN was entered too late, because the conference is full
    /// or locked, the maximum of conferences is reached, or its source has entered too many wrong PINs.
    ConferenceFull "conference_full" Info {
        /// Name of the conference in the configuration.
        conference: String,
        /// The number that was called.
        number: String,
        /// The limit reached: `participants`, `conferences`, `lobby` (callers that have not entered the PIN), `pin`
        /// (wrong PINs of a source); or `locked`.
        limit: String,
        /// Status of the refusal; also given where the call had been answered before.
        status: u16,
    }
    /// No free media port was left: calls or other programs use all. Set a larger range, `ports` of `media`.
    MediaPortsExhausted "media_ports_exhausted" Warn {
        /// Name of the interface.
        interface: String,
        /// Address of the media ports.
        address: String,
        /// Their range: of several workers, the part of this one.
        ports: String,
    }
    /// Keys were agreed for the media of one side of a call, for the first time or anew (RFC 3711).
    MediaSecurityAgreed "media_security_agreed" Info {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// Keying: `sdes` (RFC 4568) or `dtls` (RFC 5764).
        keying: String,
        /// The crypto suite.
        suite: String,
    }
    /// The media of one side of a call cannot be encrypted, or cannot be unencrypted, as the configuration requires.
    MediaSecurityFailed "media_security_failed" Warn {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// Reason.
        reason: String,
    }
    /// A media line is transcoded: the sides have no codec in common, or the configuration requires it.
    MediaTranscoded "media_transcoded" Info {
        /// Number of the call.
        call: u64,
        /// The media line, from 0.
        line: u64,
        /// Codec of the caller.
        caller_codec: String,
        /// Codec of the callee.
        callee_codec: String,
    }
    /// A pair of ICE candidates was nominated for the media of one side.
    MediaPairNominated "media_pair_nominated" Info {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// Address of the peer, as received.
        address: String,
    }
    /// No pair of ICE candidates of a side works, 39.5 s after they were exchanged (RFC 8863): the call has no media on
    /// this side.
    MediaIceFailed "media_ice_failed" Warn {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
    }
    /// The ICE agent of a peer that repeats its checks has sent none for 30 s, or, with the border as full agent,
    /// answered none: no media is sent to it until a pair is nominated again (RFC 7675).
    MediaConsentLost "media_consent_lost" Warn {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
    }
    /// Another program uses a media port that was assigned to a call: the call gets another port pair, and the pair is
    /// left out for 60 s. Further ports that fail in the same call are not logged.
    MediaPortInUse "media_port_in_use" Warn {
        /// Number of the call.
        call: u64,
        /// Address and number of the port.
        address: String,
        /// Error of the operating system.
        error: String,
        /// Address and number of the RTP port used instead.
        replacement: String,
    }
    /// An ng client has started a call.
    NgCallStarted "ng_call_started" Info {
        /// Number of the call.
        call: u64,
        /// Call-ID in the command.
        call_id: String,
        /// Tag of the offering side.
        from_tag: String,
    }
    /// A call of the ng server has ended.
    NgCallEnded "ng_call_ended" Info {
        /// Number of the call.
        call: u64,
        /// Reason: deleted, media timeout, media port, media keys, media refused, offer refused, drained.
        reason: String,
    }
    /// A media node answers again.
    MediaNodeUp "media_node_up" Info {
        /// Name of the node in the configuration.
        node: String,
    }
    /// A media node does not answer: it gets no new calls. Its calls are moved to other nodes or ended, as configured.
    MediaNodeDown "media_node_down" Warn {
        /// Name of the node in the configuration.
        node: String,
        /// Calls that it has.
        calls: u64,
        /// Reason: no answer, unreachable.
        reason: String,
    }
    /// The last call of a media node that is taken out of service has ended.
    MediaNodeDrained "media_node_drained" Info {
        /// Name of the node in the configuration.
        node: String,
    }
    /// A media node was chosen for the media of a call.
    MediaNodeChosen "media_node_chosen" Debug {
        /// Number of the call.
        call: u64,
        /// Name of the node.
        node: String,
        /// Call-ID of the call at the node.
        call_id: String,
    }
    /// A media node did not execute a command for a call; before the first answer another node is tried.
    MediaNodeFailed "media_node_failed" Warn {
        /// Number of the call.
        call: u64,
        /// Name of the node.
        node: String,
        /// The command: offer, answer.
        command: String,
        /// Error text of the node, or: no answer, unreachable.
        reason: String,
    }
    /// A media node answers but has lost calls: it was restarted. Its other calls are checked as well.
    MediaNodeRestarted "media_node_restarted" Warn {
        /// Name of the node in the configuration.
        node: String,
        /// Calls of this border that it should have.
        calls: u64,
    }
    /// A call ends because its media node has failed and the call was not moved to another node, as configured or
    /// because that failed.
    CallNotReanchored "call_not_reanchored" Warn {
        /// Number of the call.
        call: u64,
        /// Name of the node that failed.
        node: String,
        /// Error text of the node, or: no answer, unreachable, no other node, re-INVITE not answered, and similar.
        reason: String,
    }
    /// A call was moved from a failed media node to another one: both sides have accepted a re-INVITE.
    CallReanchored "call_reanchored" Info {
        /// Number of the call.
        call: u64,
        /// Name of the node that failed.
        from_node: String,
        /// Name of the node that has the call now.
        to_node: String,
        /// Milliseconds since the failure was detected.
        duration_ms: u64,
    }
    /// Statistics of a media node about a call, logged when the call has ended.
    MediaNodeStatistics "media_node_statistics" Info {
        /// Number of the call.
        call: u64,
        /// Name of the node.
        node: String,
        /// RTP packets from the caller.
        caller_packets: u64,
        /// RTP packets from the callee.
        callee_packets: u64,
        /// Octets of RTP, both directions.
        octets: u64,
        /// Errors and drops.
        errors: u64,
    }
    /// The recording of a call was started.
    RecordingStarted "recording_started" Info {
        /// Number of the call.
        call: u64,
        /// Name of the file in the folder for recordings.
        file: String,
    }
    /// A recording could not be started, or ended by an error or the removal of its folder; it can be started again.
    RecordingFailed "recording_failed" Warn {
        /// Name of the file.
        file: String,
        /// Error of the operating system, or the change of the configuration.
        error: String,
    }
    /// Parts of recordings were lost: a recording failed, or the disk was too slow (logged when it takes data again).
    RecordingLost "recording_lost" Warn {
        /// Bytes lost.
        bytes: u64,
    }
    /// Registrations were read from their file at the start, or later if it could not be read then: their phones are
    /// reachable.
    RegistrationsRestored "registrations_restored" Info {
        /// The file.
        store: String,
        /// Addresses of record.
        registrations: u64,
        /// Their contacts.
        contacts: u64,
        /// Contacts not restored: expired, or of a listener that is no longer configured.
        discarded: u64,
    }
    /// An alarm was raised: a condition that an operator should look at.
    AlarmRaised "alarm_raised" Warn {
        /// Kind of the alarm; docs/metrics.md has the list.
        alarm: String,
        /// Number of the alarm, for acknowledging.
        id: u64,
        /// critical, major or minor.
        severity: String,
        /// The trunk, node, folder, file or certificate; empty for the border.
        object: String,
        /// Details.
        detail: String,
    }
    /// The condition of an alarm is over.
    AlarmCleared "alarm_cleared" Info {
        /// Kind of the alarm.
        alarm: String,
        /// Number of the alarm.
        id: u64,
        /// The object of the alarm.
        object: String,
        /// Seconds for which it was active.
        duration_s: u64,
    }
    /// An operator has acknowledged an alarm.
    AlarmAcknowledged "alarm_acknowledged" Info {
        /// Kind of the alarm.
        alarm: String,
        /// Number of the alarm.
        id: u64,
        /// The object of the alarm.
        object: String,
        /// The user, or the source of the request.
        by: String,
    }
    /// A receiver of alarms or traces cannot be reached or refuses them: calls go on, notices and spans wait in a
    /// bounded queue, and sending is retried. Or the name of the HEP collector cannot be resolved.
    ReceiverFailed "receiver_failed" Warn {
        /// Kind and address of the receiver.
        receiver: String,
        /// Reason.
        reason: String,
    }
    /// A receiver accepts notices or spans again, or the name of the HEP collector is resolved.
    ReceiverRecovered "receiver_recovered" Info {
        /// Kind and address of the receiver.
        receiver: String,
        /// Duration of the outage in seconds.
        outage_s: u64,
    }
    /// Notices or spans for a receiver were lost: the queue was full, they were retried for too long, or the receiver
    /// refused them for good.
    ReceiverLost "receiver_lost" Warn {
        /// Kind and address of the receiver.
        receiver: String,
        /// Number of lost notices or spans since the last such event.
        lost: u64,
    }
    /// Statistics cannot be appended to their file; logged once until it works again.
    StatisticsFailed "statistics_failed" Warn {
        /// The file.
        file: String,
        /// Reason.
        reason: String,
    }
    /// Call records cannot be written: calls go on, records wait in a bounded queue, and writing is retried.
    RecordsFailed "records_failed" Warn {
        /// The folder.
        folder: String,
        /// Reason.
        reason: String,
        /// Remedy.
        remedy: String,
    }
    /// Call records are written again.
    RecordsRecovered "records_recovered" Info {
        /// The folder.
        folder: String,
        /// Duration of the outage, seconds.
        outage_s: u64,
        /// Records that did not fit into the queue and are lost.
        lost: u64,
    }
    /// Call records were lost, because the disk was too slow and the queue full.
    RecordsLost "records_lost" Warn {
        /// The folder.
        folder: String,
        /// Number of lost records.
        lost: u64,
    }
    /// The border stopped without ending these calls; their records were written at this start, marked as cut.
    CallsCut "calls_cut" Warn {
        /// The folder.
        folder: String,
        /// Number of calls.
        calls: u64,
    }
    /// Registrations cannot be written to their file: the border continues with those in memory, and retries.
    RegistrationStoreFailed "registration_store_failed" Warn {
        /// The file.
        store: String,
        /// Reason.
        reason: String,
        /// Remedy.
        remedy: String,
    }
    /// Registrations are written to their file again, queued changes first.
    RegistrationStoreRecovered "registration_store_recovered" Info {
        /// The file.
        store: String,
        /// Duration of the outage, seconds.
        outage_s: u64,
        /// Changes that did not fit into the queue: the file was rewritten because of them.
        overflowed: u64,
    }
    /// The file of registrations could not be read and was moved aside; a new one was created with the registrations in
    /// memory.
    RegistrationStoreReplaced "registration_store_replaced" Warn {
        /// The file.
        store: String,
        /// New name of the old file.
        moved_to: String,
        /// Reason.
        reason: String,
    }
    /// The store of calls and messages cannot be written: calls go on, and messages are counted instead of stored.
    StoreFailed "store_failed" Warn {
        /// Folder or database of the store.
        folder: String,
        /// Reason.
        reason: String,
        /// Remedy.
        remedy: String,
    }
    /// The store of calls and messages is written again.
    StoreResumed "store_resumed" Info {
        /// Folder or database of the store.
        folder: String,
        /// Duration of the outage, seconds.
        outage_s: u64,
    }
    /// The store of calls and messages lost part of its input: a queue was full, the disk or the database was too slow,
    /// full or failed, or the database refused the rows. Logged at most every ten seconds, also during an outage.
    StoreMessagesLost "store_messages_lost" Warn {
        /// Folder or database of the store.
        folder: String,
        /// Messages not stored since the last such event.
        messages: u64,
        /// Events not stored since the last such event.
        events: u64,
        /// Drops whose counts were not stored since the last such event.
        drops: u64,
        /// Calls whose record, or the last change of it, was not stored since the last such event.
        calls: u64,
    }
    /// The index of the store was completed at the start, because the program had not ended regularly.
    StoreCompleted "store_completed" Info {
        /// Folder or database of the store.
        folder: String,
        /// Messages that were added to the index.
        messages: u64,
        /// Calls in progress when the program ended.
        interrupted: u64,
    }
    /// A part of the store could not be read and was moved aside.
    StorePartReplaced "store_part_replaced" Warn {
        /// New name of the part.
        moved_to: String,
        /// Reason.
        reason: String,
    }
    /// HEP packets were dropped; logged at most every ten seconds.
    HepPacketsDropped "hep_packets_dropped" Info {
        /// received or sent.
        direction: String,
        /// Reason: malformed, no SIP (nor RTCP), no report (RTCP without a report block), unknown call (RTCP of a call
        /// that is not stored), rate limit, queue full, socket (the network did not accept it, or the name of the
        /// collector is not resolved), too long.
        reason: String,
        /// Packets since the last such event.
        packets: u64,
    }
    /// Log lines were dropped because standard error did not accept them; it accepts lines again.
    LogLinesDropped "log_lines_dropped" Warn {
        /// Number of lines.
        lines: u64,
    }
    /// Playback of a sound to one side of a call was started.
    PlaybackStarted "playback_started" Info {
        /// Number of the call.
        call: u64,
        /// The side that receives it: caller, callee.
        side: String,
        /// Name of the file in the folder for sounds; empty for a sound contained in the command.
        file: String,
    }
    /// Playback of a sound has ended.
    PlaybackEnded "playback_ended" Info {
        /// Number of the call.
        call: u64,
        /// The side that received it: caller, callee.
        side: String,
        /// Reason: finished, stopped, replaced, media_ended (the media of the side has ended), failed (its codec).
        reason: String,
        /// Samples of the file that were played.
        position_samples: u64,
        /// Packets that were sent.
        packets: u64,
    }
    /// Media ports lie within the ephemeral ports of the kernel, so that another program may occupy one that a call
    /// needs. Logged with `[media] sockets` set to `per-port`, or with /proc/sys hidden; otherwise such a configuration
    /// is refused.
    MediaPortsEphemeral "media_ports_ephemeral" Warn {
        /// The address.
        address: String,
        /// The media ports.
        ports: String,
        /// The ephemeral ports (net.ipv4.ip_local_port_range).
        ephemeral_ports: String,
        /// Remedy.
        remedy: String,
    }
    /// A socket was opened.
    SocketOpened "socket_opened" Info {
        /// Purpose of the socket.
        purpose: String,
        /// Its address.
        address: String,
    }
    /// A socket could not be opened. Tried again: a listener every 40 s and at each reload, `ng client` and `dns` soon.
    SocketFailed "socket_failed" Error {
        /// Purpose of the socket. `ng client`: commands to media nodes, `dns`: queries of names; both are logged once.
        purpose: String,
        /// Its address; with `ng client` the `control` address of a node.
        address: String,
        /// Error of the operating system.
        error: String,
    }
    /// A new configuration is in force.
    ConfigurationReloaded "configuration_reloaded" Info {
        /// The changes, in a few words.
        changes: String,
    }
    /// A new configuration was refused; the current one stays in effect.
    ConfigurationRefused "configuration_refused" Error {
        /// Reason.
        reason: String,
    }
    /// Draining was started: new calls are refused, and the program ends after the last call.
    DrainStarted "drain_started" Info {
        /// Calls that are up.
        calls: u64,
    }
    /// Draining has finished: the last call has ended.
    DrainFinished "drain_finished" Info {
        /// Calls terminated by the time limit of draining.
        terminated: u64,
    }
    /// A stream connection was closed.
    ConnectionClosed "connection_closed" Debug {
        /// Address of the peer.
        peer: String,
        /// Reason.
        reason: String,
    }
    /// A TLS handshake failed.
    TlsHandshakeFailed "tls_handshake_failed" Warn {
        /// Address of the peer.
        peer: String,
        /// accepted (the peer opened the connection) or opened (the border opened it).
        side: String,
        /// The local listener, or the name expected in the certificate of the peer.
        endpoint: String,
        /// Reason: certificate, name, version, cipher, time.
        reason: String,
    }
    /// A WebSocket handshake was refused by either side, or a WebSocket was closed because of a protocol error.
    WebsocketFailed "websocket_failed" Warn {
        /// Address of the peer.
        peer: String,
        /// The local listener, or, for a connection opened by the border, the name requested (empty for a plain
        /// address).
        endpoint: String,
        /// Reason.
        reason: String,
    }
    /// A certificate of this host was loaded and is in use.
    CertificateLoaded "certificate_loaded" Info {
        /// Its file.
        certificate: String,
        /// Its domains.
        names: String,
        /// End of its validity (UTC).
        valid_until: String,
    }
    /// A certificate of this host must be renewed: it expires within 30 days, or within 7, or has expired.
    CertificateExpires "certificate_expires" Warn {
        /// Its file.
        certificate: String,
        /// Its domains.
        names: String,
        /// End of its validity (UTC).
        valid_until: String,
        /// Whole days left; 0 on the last one.
        days_left: u64,
        /// soon (30 days), urgent (7 days) or expired.
        state: String,
    }
    /// A header rule stored a value with a call.
    CallTagged "call_tagged" Info {
        /// Number of the call.
        call: u64,
        /// Name of the value.
        tag: String,
        /// The value.
        value: String,
    }
    /// A header rule refused the INVITE of a call towards its target.
    RuleRefused "rule_refused" Info {
        /// Name of the rule.
        rule: String,
        /// Number of the call.
        call: u64,
        /// Status of the refusal.
        status: u16,
    }
    /// A header rule logged a text.
    RuleLogged "rule_logged" Info {
        /// Name of the rule.
        rule: String,
        /// Number of the call; 0 for a message that belongs to none.
        call: u64,
        /// The text.
        text: String,
    }
    /// A header rule changed a message; emitted only while messages are stored.
    RuleEdited "rule_edited" Debug {
        /// Name of the rule.
        rule: String,
        /// Number of the call; 0 for a message that belongs to none yet.
        call: u64,
        /// Call-ID of the message that was received.
        call_id: String,
        /// in: the received message was changed before it was processed; out: the message that is sent.
        direction: String,
        /// Method of the request, or status and method of the response.
        message: String,
        /// Headers that the actions of the rule change, and Request-URI, separated by commas.
        headers: String,
    }
    /// The IPsec gateway carries packets.
    GatewayStarted "gateway_started" Info {
        /// TUN device.
        device: String,
        /// Outer address of this host.
        local: String,
        /// Carrier of ESP packets: udp, or ip (protocol 50).
        encapsulation: String,
        /// Place where packets are sealed and opened: user, or kernel (XFRM).
        data_path: String,
        /// Path of media of calls: direct (between tunnel and forwarder), or kernel (through the TUN device).
        media: String,
        /// Number of tunnels.
        tunnels: u64,
        /// Number of security associations.
        associations: u64,
    }
    /// The IPsec gateway has ended; its packets are no longer carried.
    GatewayFailed "gateway_failed" Error {
        /// Reason.
        reason: String,
    }
    /// The IPsec gateway uses algorithms that must not be used any more (RFC 8221), by `allow_weak`.
    GatewayWeakAlgorithms "gateway_weak_algorithms" Warn {
        /// The algorithms.
        algorithms: String,
    }
    /// The key file of the IPsec gateway was read again.
    GatewayKeysLoaded "gateway_keys_loaded" Info {
        /// New security associations that seal.
        outbound_added: u64,
        /// New security associations that open.
        inbound_added: u64,
        /// Security associations that are no longer in the file; they open for `rekey_grace_s`.
        inbound_removed: u64,
    }
    /// The key file of the IPsec gateway was refused; the keys in use stay.
    GatewayKeysRefused "gateway_keys_refused" Error {
        /// Reason.
        reason: String,
    }
    /// A tunnel of the IPsec gateway needs new keys: a lifetime or the sequence numbers are nearly used up.
    GatewayRekeyDue "gateway_rekey_due" Warn {
        /// Name of the tunnel.
        tunnel: String,
        /// SPI of the security association.
        spi: String,
        /// bytes, time or sequence.
        reason: String,
    }
    /// A tunnel of the IPsec gateway seals with a new security association.
    GatewayRekeyed "gateway_rekeyed" Info {
        /// Name of the tunnel.
        tunnel: String,
        /// SPI of the security association.
        spi: String,
        /// peer_ready (the peer uses its new one), delay, lifetime (the old one has ended), or key_exchange.
        reason: String,
    }
    /// A tunnel of the IPsec gateway has keys from the key exchange.
    GatewayTunnelUp "gateway_tunnel_up" Info {
        /// Name of the tunnel.
        tunnel: String,
        /// Outer address of the peer.
        peer: String,
        /// Identity of the peer.
        identity: String,
        /// Algorithms.
        algorithms: String,
        /// SPI of the security association that seals.
        spi: String,
    }
    /// A tunnel of the IPsec gateway has no keys any more: one end has deleted them, or the peer does not answer.
    GatewayTunnelDown "gateway_tunnel_down" Warn {
        /// Name of the tunnel.
        tunnel: String,
    }
    /// The key exchange of the IPsec gateway has a problem with a peer or a message; at most ten in ten seconds.
    GatewayIkeProblem "gateway_ike_problem" Warn {
        /// Name of the tunnel; empty if the peer is unknown.
        tunnel: String,
        /// The words of the daemon.
        problem: String,
        /// Further problems since the last event.
        suppressed: u64,
    }
    /// The key exchange of the IPsec gateway has failed; tunnels keep their keys until their lifetimes end.
    GatewayIkeFailed "gateway_ike_failed" Error {
        /// Reason.
        reason: String,
    }
    /// A peer has an outer address that is routed into a tunnel itself: its packets would be sealed again. It gets
    /// none, so that its tunnel is not set up; at most one event in ten seconds. Remedy: a longer route to the peer
    /// outside of the tunnels, or remote networks without its address.
    GatewayPeerLoop "gateway_peer_loop" Warn {
        /// Name of the tunnel; empty if the peer is not known yet.
        tunnel: String,
        /// Outer address of the peer.
        peer: String,
        /// The remote network that contains it.
        network: String,
        /// Further packets since the last event.
        suppressed: u64,
    }
    /// The outer address of a peer behind a NAT has changed.
    GatewayPeerMoved "gateway_peer_moved" Info {
        /// Name of the tunnel.
        tunnel: String,
        /// The new address.
        address: String,
    }
    /// The MTU of the path to a peer has changed.
    GatewayPathMtu "gateway_path_mtu" Info {
        /// Name of the tunnel.
        tunnel: String,
        /// Bytes of an outer packet.
        mtu: u64,
    }
    /// Statistics of the IPsec gateway since its start, periodically and at its end.
    GatewayStatistics "gateway_statistics" Info {
        /// Packets sealed.
        sealed: u64,
        /// Packets opened.
        opened: u64,
        /// Packets dropped.
        dropped: u64,
        /// Their number by reason.
        reasons: String,
        /// Security associations.
        associations: u64,
    }
    /// An attempt of the test lab has ended.
    AttemptEnded "attempt_ended" Info {
        /// Number of the attempt.
        attempt: u64,
        /// Kind: call, registration.
        kind: String,
        /// Its outcome.
        outcome: String,
    }
    /// A capture agent has sent an RTCP report about a call (HEP). In the store only.
    RtcpReport "rtcp_report" Debug {
        /// Call-ID, or correlation id of the agent.
        call_id: String,
        /// Number of the agent.
        agent: u32,
        /// Address from which the RTCP packet came.
        source: String,
        /// Address to which it was sent.
        destination: String,
        /// SSRC of the reporter.
        ssrc: u32,
        /// SSRC of the stream that the reporter received.
        media_ssrc: u32,
        /// Loss since the report before, percent (fraction lost).
        loss_percent: Hundredths,
        /// Packets lost since the beginning of the stream.
        packets_lost: u32,
        /// Interarrival jitter in units of the RTP timestamp: the report does not have the clock rate.
        jitter_units: u32,
    }
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time of the event.
    pub at: Time,
    /// Name and fields.
    pub kind: EventKind,
}

impl Event {
    /// An event at `at`.
    pub fn new(at: Time, kind: EventKind) -> Event {
        Event { at, kind }
    }

    /// Appends `time name field=value ...` to a line; values with spaces or quotes are quoted.
    pub fn append_to(&self, line: &mut String) {
        push_digits(line, self.at.0 / 1_000_000_000, 1);
        line.push('.');
        push_digits(line, self.at.0 % 1_000_000_000, 9);
        line.push(' ');
        line.push_str(self.kind.name());
        self.kind.fields(&mut |name, value| {
            line.push(' ');
            line.push_str(name);
            line.push('=');
            let start = line.len();
            // Writing to a String cannot fail.
            let _ = write!(line, "{value}");
            let text = line.get(start..).unwrap_or_default();
            let is_special = |byte: u8| !byte.is_ascii_graphic() || byte == b'"' || byte == b'=';
            if text.is_empty() || text.bytes().any(is_special) {
                // The debug form escapes control characters: a terminal must not obey a value from the network.
                let text = line.split_off(start);
                let _ = write!(line, "{text:?}");
            }
        });
    }
}

impl fmt::Display for Event {
    /// As [`Event::append_to`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        self.append_to(&mut line);
        f.write_str(&line)
    }
}
