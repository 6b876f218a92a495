//! Declared events: one vocabulary for logs, console, laboratory and tests.

use crate::time::Time;
use core::fmt;

/// Declares the events once; enum, names, texts and the written form come from this list.
macro_rules! events {
    ($($(#[doc = $text:literal])* $variant:ident $name:literal { $($(#[doc = $ftext:literal])* $field:ident : $type:ty),* $(,)? })*) => {
        /// What happened.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Note {
            $($(#[doc = $text])* $variant { $($(#[doc = $ftext])* $field: $type,)* },)*
        }

        impl Note {
            /// The name used in logs, metrics and JSON.
            pub const fn name(&self) -> &'static str {
                match self { $(Note::$variant { .. } => $name,)* }
            }

            /// Every event: name, text, fields with their texts. The reference page is made from this.
            pub const REFERENCE: &'static [EventReference] = &[
                $(EventReference {
                    name: $name,
                    text: concat!($($text),*),
                    fields: &[$((stringify!($field), concat!($($ftext),*)),)*],
                },)*
            ];

            /// Calls `each` with the name and the written form of each field that has a value, in order.
            pub fn fields(&self, each: &mut dyn FnMut(&'static str, &dyn fmt::Display)) {
                match self {
                    $(Note::$variant { $($field,)* } => {
                        let _ = &each;
                        $(if let Some(value) = Field::value($field) {
                            each(stringify!($field), value);
                        })*
                    })*
                }
            }
        }
    };
}

/// A field of an event.
trait Field {
    /// Its written form; `None` where it is absent.
    fn value(&self) -> Option<&dyn fmt::Display>;
}

macro_rules! fields {
    ($($type:ty)*) => {
        $(impl Field for $type {
            fn value(&self) -> Option<&dyn fmt::Display> {
                Some(self)
            }
        })*
    };
}

fields! { u16 u32 u64 bool String Hundredths }

impl<T: fmt::Display> Field for Option<T> {
    fn value(&self) -> Option<&dyn fmt::Display> {
        self.as_ref().map(|value| value as &dyn fmt::Display)
    }
}

/// A figure with two decimals: events compare exactly, which floating-point numbers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hundredths(pub u64);

impl Hundredths {
    /// The nearest one; zero for what is below, and for no number.
    pub fn of(value: f64) -> Hundredths {
        // A cast from a float saturates.
        Hundredths((value * 100.0).round() as u64)
    }
}

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// One row of the reference of events.
#[derive(Debug)]
pub struct EventReference {
    /// Name in logs and JSON.
    pub name: &'static str,
    /// What it tells.
    pub text: &'static str,
    /// Fields and what they mean.
    pub fields: &'static [(&'static str, &'static str)],
}

events! {
    /// A call was offered to us.
    CallOffered "call_offered" {
        /// Number of the call.
        call: u64,
        /// Name of the interface on which it came.
        interface: String,
        /// Call-ID of the first leg.
        call_id: String,
        /// Caller's address of record.
        from: String,
        /// Number or address called.
        to: String,
    }
    /// A call was sent on to a target; told for each target that is tried.
    CallRouted "call_routed" {
        /// Number of the call.
        call: u64,
        /// What decided: the name of the route; `default` (no route did), `registration` (a contact under our own name for it), `rule` (a
        /// header rule), `redirect` (a 3xx response), `transfer` (REFER).
        route: String,
        /// Trunk, registration or domain to which it goes.
        target: String,
        /// Transport and address to which the INVITE was sent.
        address: String,
        /// Call-ID of the second leg.
        call_id: String,
    }
    /// The called side rings or plays early media.
    CallProgressed "call_progressed" {
        /// Number of the call.
        call: u64,
        /// Status code passed on.
        status: u16,
    }
    /// The call was answered.
    CallAnswered "call_answered" {
        /// Number of the call.
        call: u64,
    }
    /// The call has ended: BYE was sent or received, or the final response that refuses it. Its last transactions may go on for 32 s.
    /// Figures that were not measured are absent.
    CallEnded "call_ended" {
        /// Number of the call.
        call: u64,
        /// Which side ended it: caller, callee or us.
        by: String,
        /// Why, in a word or two.
        why: String,
        /// The final status where it was never answered, else 200.
        status: u16,
        /// Milliseconds from the answer to the end; absent where it was never answered.
        duration_ms: Option<u64>,
        /// The way of its media: sockets, kernel (the kernel has relayed some of it), af_xdp (as far as the interfaces allow it), conference, node
        /// (a media node), or bypass (not through us); absent where it had none.
        path: Option<String>,
        /// Codec of the first media line with one that has a quality model, by its name in SDP; caller's/callee's where they differ.
        codec: Option<String>,
        /// RTP packets of the caller's that were lost before they came to us, percent of those that it sent. Of a media node: as the node reports.
        caller_loss_percent: Option<Hundredths>,
        /// Mean interarrival jitter (RFC 3550) of the caller's main source where it came to us, milliseconds.
        caller_jitter_ms: Option<Hundredths>,
        /// Voice quality of the caller's main source where it came to us, by the E-model (G.107, G.107.1): MOS-CQE, 1 to 4.5.
        caller_mos: Option<Hundredths>,
        /// The same as `caller_loss_percent`, of the callee's packets.
        callee_loss_percent: Option<Hundredths>,
        /// The same as `caller_jitter_ms`, of the callee's main source.
        callee_jitter_ms: Option<Hundredths>,
        /// The same as `caller_mos`, of the callee's main source.
        callee_mos: Option<Hundredths>,
    }
    /// A registration was taken in or passed on.
    RegistrationStored "registration_stored" {
        /// Address of record.
        aor: String,
        /// Number of contacts that it now has.
        contacts: u64,
        /// Seconds until it ends.
        expires: u64,
    }
    /// A registration ended.
    RegistrationEnded "registration_ended" {
        /// Address of record.
        aor: String,
        /// Why: removed, expired, flow failed.
        why: String,
    }
    /// A request was refused by us.
    RequestRefused "request_refused" {
        /// Method.
        method: String,
        /// Status that we answered.
        status: u16,
        /// Why.
        why: String,
        /// Who asked.
        source: String,
    }
    /// A request without credentials was challenged; no failure, its client comes again with them.
    AuthenticationRequired "authentication_required" {
        /// Method.
        method: String,
        /// Status that we answered: 401 or 407.
        status: u16,
        /// Who asked.
        source: String,
    }
    /// A challenge was answered: the source has authenticated by digest.
    Authenticated "authenticated" {
        /// Method.
        method: String,
        /// The address of record that it is.
        user: String,
        /// Where it came from.
        source: String,
    }
    /// Authentication failed; at most 20 are told in ten seconds.
    AuthenticationFailed "authentication_failed" {
        /// Where the request came from.
        source: String,
        /// The address of record that it claimed.
        aor: String,
        /// The user that its credentials name.
        user: String,
        /// Why: wrong password, unknown user, credentials that cannot be read or are for another target, an address of record that is
        /// none of the user's, or too many failures before, so that the credentials were not judged.
        reason: String,
        /// Failures that were not told since the last one that was.
        untold: u64,
    }
    /// More came than the rates let in; told at most each ten seconds for one interface or trunk.
    RateExceeded "rate_exceeded" {
        /// Name of the interface or trunk.
        place: String,
        /// Method of the last one.
        method: String,
        /// Requests refused since this was last told.
        refused: u64,
        /// Where the last one came from.
        source: String,
    }
    /// Calls did not fit into the machine; told at most each ten seconds.
    AdmissionRefused "admission_refused" {
        /// memory or processor: what is taken.
        what: String,
        /// Calls that stand.
        calls: u64,
        /// Calls like the last one refused that fit at most.
        calls_max: u64,
        /// The way of that one's media by which it is counted: sockets, kernel, af_xdp; absent where it has none that is anchored.
        path: Option<String>,
        /// Calls refused since this was last told.
        refused: u64,
        /// KiB that are taken, by what for (call, connection, media, srtp, transcoding, conference, registrations), and of how many.
        memory: String,
        /// Microseconds of processor time in each second that are taken, by what for (the same, and handshakes of the last second), and of how
        /// many.
        processor: String,
    }
    /// The border has more to do than it can: new calls and registrations are refused until it is over.
    Overload "overload" {
        /// began or ended.
        state: String,
        /// Milliseconds that the first refused request had waited.
        waited: u64,
        /// Requests refused meanwhile.
        refused: u64,
        /// New calls dropped unread meanwhile.
        unread: u64,
    }
    /// The kernel does not drop new calls unread under overload; they are read and refused.
    SieveRefused "sieve_refused" {
        /// The operating system's words.
        error: String,
    }
    /// How media is served, chosen by what the machine and the rights allow: told at the start for each of the choices, and
    /// again when interfaces begin or cease to send what the kernel relays.
    MediaPath "media_path" {
        /// one_socket (one for all ports of a thread) or socket_per_port; kernel (streams that are only sent on are relayed there)
        /// or no_kernel; af_xdp (media comes and leaves past the kernel's network) or no_af_xdp.
        path: String,
        /// Of af_xdp, how each interface does it: driver mode, or generic mode and why; without copies, or in copies and why; by how many of its queues. Otherwise why not the faster one, or for which addresses not (streams that leave there go through sockets); empty where it is the faster one, or another was asked for.
        why: String,
    }
    /// What the threads were to have by `[threads]`, and whether they have it; told once for each at the start.
    ThreadsSet "threads_set" {
        /// realtime (SCHED_FIFO), memory (locked) or processors (pinned).
        what: String,
        /// Whether it is so.
        done: bool,
        /// The priority or the processors, or why it is not so.
        why: String,
    }
    /// How much of a call's media the kernel relayed, where it can relay at all; told at the end of the call for each media line that
    /// had media. The rest went through sockets.
    MediaPassed "media_passed" {
        /// Number of the call.
        call: u64,
        /// Number of the media line.
        line: u64,
        /// RTP packets received from the caller.
        caller: u64,
        /// Those among them that the kernel relayed.
        caller_passed: u64,
        /// Packets of the caller's that were lost before they came here, of all its sources.
        caller_lost: u64,
        /// Mean interarrival jitter (RFC 3550) of the caller's main source, microseconds.
        caller_jitter: u64,
        /// RTP packets received from the callee.
        callee: u64,
        /// Those among them that the kernel relayed.
        callee_passed: u64,
        /// Packets of the callee's that were lost before they came here.
        callee_lost: u64,
        /// Mean interarrival jitter of the callee's main source, microseconds.
        callee_jitter: u64,
    }
    /// How much media AF_XDP carried, where it is in use; told once, when the program ends.
    MediaCarried "media_carried" {
        /// Datagrams that came by AF_XDP.
        received: u64,
        /// Datagrams that left by it.
        sent: u64,
        /// Datagrams that left by sockets all the same: their way was not known or leads elsewhere, they are too large, or a ring was full.
        aside: u64,
        /// Datagrams that came and found no room, in AF_XDP's rings or in the sockets that are still open.
        dropped: u64,
        /// Datagrams that came by each receive queue, in the order of the queues, by interface: eth0: 1200 1187; eth1: 2380.
        queues: String,
    }
    /// A trunk has begun to ask for fewer new calls (RFC 7339).
    TrunkThrottled "trunk_throttled" {
        /// Name of the trunk.
        trunk: String,
        /// loss or rate.
        algorithm: String,
        /// Percent to be held back, or calls a second that may be sent.
        value: u32,
    }
    /// A trunk answers again.
    TrunkUp "trunk_up" {
        /// Name of the trunk.
        trunk: String,
    }
    /// A trunk does not answer.
    TrunkDown "trunk_down" {
        /// Name of the trunk.
        trunk: String,
        /// What told us.
        why: String,
    }
    /// Our own registration at a carrier changed.
    CarrierRegistration "carrier_registration" {
        /// Name of the trunk.
        trunk: String,
        /// registered, refused, expired or removed.
        state: String,
    }
    /// A flow is locked to the address from which media came.
    MediaLatched "media_latched" {
        /// Number of the call.
        call: u64,
        /// caller or callee.
        side: String,
        /// The address.
        address: String,
    }
    /// A call's media stopped for too long.
    MediaTimeout "media_timeout" {
        /// Number of the call.
        call: u64,
    }
    /// A participant has come to a conference.
    RoomJoined "room_joined" {
        /// Number of the call.
        call: u64,
        /// Name of the room in the configuration.
        room: String,
        /// The number that was called, which tells its conferences from each other.
        number: String,
        /// Participants now.
        seats: u64,
        /// The codec, with the milliseconds of the packets that he is sent.
        codec: String,
    }
    /// A participant has left a conference.
    RoomLeft "room_left" {
        /// Number of the call.
        call: u64,
        /// Name of the room in the configuration.
        room: String,
        /// The number that was called.
        number: String,
        /// Participants who are left.
        seats: u64,
    }
    /// A participant was silenced in a conference, or is heard again.
    RoomMuted "room_muted" {
        /// Number of the call.
        call: u64,
        /// Name of the room in the configuration.
        room: String,
        /// Whether he is silenced now.
        muted: bool,
        /// Who did it: `participant`, by digits, or `control`.
        by: String,
    }
    /// A conference was locked, so that nobody comes in any more, or opened again, by control.
    RoomLocked "room_locked" {
        /// Name of the room in the configuration.
        room: String,
        /// The number that was called.
        number: String,
        /// Whether it is locked now.
        locked: bool,
    }
    /// A caller was asked for the PIN of a conference, or what came of that.
    RoomPin "room_pin" {
        /// Number of the call.
        call: u64,
        /// Name of the room in the configuration.
        room: String,
        /// The number that was called.
        number: String,
        /// `asked`, `right`, `wrong`, `late`: it was not given in time, or `gave_way`: the place was another caller's.
        outcome: String,
        /// Wrong PINs of this call so far.
        wrong: u64,
    }
    /// Somebody commanded conferences over HTTP.
    ControlCommand "control_command" {
        /// Who, by address.
        source: String,
        /// What: method and path.
        what: String,
        /// What of it, where the path does not say.
        value: String,
        /// The status that was answered.
        status: u16,
    }
    /// Requests to control were refused; told at most each ten seconds.
    ControlRefused "control_refused" {
        /// Who asked last, by address.
        source: String,
        /// Why the last one was refused.
        why: String,
        /// The status that it was answered.
        status: u16,
        /// Requests refused since this was last told.
        count: u64,
    }
    /// A conference, or all that may be, is full, or it is locked: a call to it was refused, or ended where the PIN was given too late.
    RoomFull "room_full" {
        /// Name of the room in the configuration.
        room: String,
        /// The number that was called.
        number: String,
        /// What is full: `seats`, `rooms`, or `waiting`: as many callers as may wait to give the PIN; or `lock`.
        what: String,
        /// With which status the call was refused, or would have been.
        status: u16,
    }
    /// There was no media port left.
    MediaPortsExhausted "media_ports_exhausted" {
        /// Name of the interface.
        interface: String,
    }
    /// The media of one side of a call has keys now, new ones perhaps (RFC 3711).
    MediaKeyed "media_keyed" {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// How they were agreed on: `sdes` (RFC 4568) or `dtls` (RFC 5764).
        keying: String,
        /// The crypto suite.
        suite: String,
    }
    /// The media of one side of a call cannot be protected, or left in the clear, as policy demands.
    MediaNotKeyed "media_not_keyed" {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// Why.
        why: String,
    }
    /// The sides of a call have no codec in common, or policy has it so: their speech is transcoded.
    MediaTranscoded "media_transcoded" {
        /// Number of the call.
        call: u64,
        /// The media line, from 0.
        line: u64,
        /// What the caller speaks.
        caller: String,
        /// What the callee speaks.
        callee: String,
    }
    /// A pair of ICE candidates was nominated: the media of this side goes there, and comes from there.
    MediaPairNominated "media_pair_nominated" {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
        /// The peer's address, as it is seen here.
        address: String,
    }
    /// Of a side's ICE candidates no pair works, 39.5 s after they were exchanged (RFC 8863): there is no media.
    MediaIceFailed "media_ice_failed" {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
    }
    /// A peer's ICE agent has sent no check for 30 s, or answered none where we are a full agent: nothing is sent to it until a pair
    /// is nominated again (RFC 7675).
    MediaConsentLost "media_consent_lost" {
        /// Number of the call.
        call: u64,
        /// The side, `caller` or `callee`.
        side: String,
        /// The media line, from 0.
        line: u64,
    }
    /// Somebody else holds a media port that a call was to use: the call takes another pair.
    MediaPortTaken "media_port_taken" {
        /// Number of the call.
        call: u64,
        /// The port's address.
        address: String,
        /// The address of the RTP port that takes its place.
        instead: String,
    }
    /// A commander of a media node has begun a call.
    NodeCallBegun "node_call_begun" {
        /// Number of the call.
        call: u64,
        /// Its Call-ID, as the commander said.
        call_id: String,
        /// Tag of whoever offered.
        from_tag: String,
    }
    /// A call of a media node has ended.
    NodeCallEnded "node_call_ended" {
        /// Number of the call.
        call: u64,
        /// Why: deleted, media timeout, media port, media keys, media refused, offer refused, drained.
        why: String,
    }
    /// A media node answers again.
    MediaNodeUp "media_node_up" {
        /// Its name in the configuration.
        node: String,
    }
    /// A media node does not answer: it gets no new calls. Those that it has are moved to other nodes, or ended, as the configuration says.
    MediaNodeDown "media_node_down" {
        /// Its name in the configuration.
        node: String,
        /// Calls that it has.
        calls: u64,
        /// Why: no answer, unreachable.
        why: String,
    }
    /// The last call of a media node that is taken out of service has ended.
    MediaNodeDrained "media_node_drained" {
        /// Its name in the configuration.
        node: String,
    }
    /// A call's media goes through this media node.
    MediaNodeChosen "media_node_chosen" {
        /// Number of the call.
        call: u64,
        /// The node's name.
        node: String,
        /// The call's name there.
        call_id: String,
    }
    /// A media node did not do what a call needs; before the first answer another node is tried.
    MediaNodeFailed "media_node_failed" {
        /// Number of the call.
        call: u64,
        /// The node's name.
        node: String,
        /// What was wanted: offer, answer.
        command: String,
        /// Its words, or: no answer, unreachable.
        why: String,
    }
    /// A media node answers and does not know calls that it had: it was started anew. Its other calls are looked after, too.
    MediaNodeRestarted "media_node_restarted" {
        /// Its name in the configuration.
        node: String,
        /// Calls of ours that it should have.
        calls: u64,
    }
    /// A call ends because its media node has failed: it is not to be moved to another one, or could not be.
    MediaNodeLost "media_node_lost" {
        /// Number of the call.
        call: u64,
        /// The name of the node that failed.
        node: String,
        /// The node's words, or: no answer, unreachable, no other node, re-INVITE not answered, and the like.
        why: String,
    }
    /// A call whose media node has failed has its media at a node that works: both sides have agreed by re-INVITE.
    CallReanchored "call_reanchored" {
        /// Number of the call.
        call: u64,
        /// The name of the node that failed.
        from: String,
        /// The name of the node that has the call now.
        to: String,
        /// Milliseconds since the failure was noticed.
        took_ms: u64,
    }
    /// What a media node counted in a call, told when it has ended.
    MediaNodeFigures "media_node_figures" {
        /// Number of the call.
        call: u64,
        /// The node's name.
        node: String,
        /// RTP packets from the caller.
        caller: u64,
        /// RTP packets from the callee.
        callee: u64,
        /// All octets of RTP.
        octets: u64,
        /// Errors and drops.
        errors: u64,
    }
    /// A call is being recorded from now on.
    RecordingBegun "recording_begun" {
        /// Number of the call.
        call: u64,
        /// Name of the file in the folder for recordings.
        file: String,
    }
    /// A recording came to nothing, or ends before its time.
    RecordingFailed "recording_failed" {
        /// Name of the file.
        file: String,
        /// The operating system's words.
        error: String,
    }
    /// Registrations of before the start were read from their file: their phones are reachable.
    RegistrationsRestored "registrations_restored" {
        /// The file.
        store: String,
        /// Addresses of record.
        registrations: u64,
        /// Their contacts.
        contacts: u64,
        /// Contacts that were left out: ended meanwhile, or their listening address is no longer configured.
        left_out: u64,
    }
    /// Registrations cannot be written to their file: the border goes on with those in memory, and tries again.
    RegistrationsNotStored "registrations_not_stored" {
        /// The file.
        store: String,
        /// Why.
        why: String,
        /// What to do.
        remedy: String,
    }
    /// Registrations are written to their file again, first of all those that waited.
    RegistrationsStoredAgain "registrations_stored_again" {
        /// The file.
        store: String,
        /// For how long they were not, seconds.
        seconds: u64,
        /// Changes that found no room in memory meanwhile: the file was written anew because of them.
        lost: u64,
    }
    /// The file of registrations could not be read and was moved aside; a new one was begun with the registrations in memory.
    RegistrationStoreReplaced "registration_store_replaced" {
        /// The file.
        store: String,
        /// Where the old one is now.
        moved_to: String,
        /// Why.
        why: String,
    }
    /// Lines of the log were lost: standard error did not take them. It takes lines again.
    LogLost "log_lost" {
        /// How many.
        lines: u64,
    }
    /// A sound is played to a party of a call from now on.
    PlayBegun "play_begun" {
        /// Number of the call.
        call: u64,
        /// The party that hears it: caller, callee.
        side: String,
        /// Name of the file in the folder for sounds; empty where the command brought the sound itself.
        file: String,
    }
    /// A sound is played no more.
    PlayEnded "play_ended" {
        /// Number of the call.
        call: u64,
        /// The party that heard it: caller, callee.
        side: String,
        /// Why: finished, stopped, replaced, gone (the party's media has ended), failed (its codec).
        why: String,
        /// Up to which sample of the file it was played.
        position: u64,
        /// Packets that were sent.
        packets: u64,
    }
    /// Media ports lie among those that the kernel lends to other programs for a while, which may then have one that a call needs. Told
    /// where `[media] sockets` is `per-port`, or /proc/sys is hidden; else such a configuration is refused.
    MediaPortsLent "media_ports_lent" {
        /// The address.
        address: String,
        /// The media ports.
        ports: String,
        /// The ports that the kernel lends (net.ipv4.ip_local_port_range).
        lent: String,
        /// What to do about it.
        remedy: String,
    }
    /// A socket is open.
    SocketOpened "socket_opened" {
        /// What it is for.
        what: String,
        /// Its address.
        address: String,
    }
    /// A socket could not be opened.
    SocketFailed "socket_failed" {
        /// What it is for.
        what: String,
        /// Its address.
        address: String,
        /// The operating system's words.
        error: String,
    }
    /// A new configuration is in force.
    ConfigurationReloaded "configuration_reloaded" {
        /// What changed, in a word or two.
        changes: String,
    }
    /// A new configuration was refused; the old one stays.
    ConfigurationRefused "configuration_refused" {
        /// Why.
        why: String,
    }
    /// We take no new calls and end when the last one has ended.
    DrainStarted "drain_started" {
        /// Calls that are still up.
        calls: u64,
    }
    /// The last call has ended.
    DrainFinished "drain_finished" {
        /// Calls that were ended by the drain's own time limit.
        cut: u64,
    }
    /// A stream connection ended.
    ConnectionClosed "connection_closed" {
        /// The peer.
        peer: String,
        /// Why.
        why: String,
    }
    /// TLS on a connection came to nothing.
    TlsRefused "tls_refused" {
        /// The peer's address.
        peer: String,
        /// accepted where the peer opened the connection, opened where we did.
        side: String,
        /// Our listening address, or the name that the peer's certificate should have.
        place: String,
        /// Why: certificate, name, version, cipher, time.
        why: String,
    }
    /// A WebSocket was refused, by us or by the peer, or closed for a breach of its rules.
    WebsocketRefused "websocket_refused" {
        /// The peer's address.
        peer: String,
        /// Our listening address, or the name that was asked for where we opened the connection (empty where an address was).
        place: String,
        /// Why.
        why: String,
    }
    /// A certificate of ours is in use from now on.
    CertificateLoaded "certificate_loaded" {
        /// Its file.
        certificate: String,
        /// The domains that it stands for.
        names: String,
        /// Until when it is valid (UTC).
        until: String,
    }
    /// A certificate of ours must be renewed: it ends within 30 days, or within 7, or has ended.
    CertificateExpires "certificate_expires" {
        /// Its file.
        certificate: String,
        /// The domains that it stands for.
        names: String,
        /// Until when it is valid (UTC).
        until: String,
        /// Whole days that are left; 0 on the last one.
        days: u64,
        /// soon (30 days), urgent (7 days) or expired.
        state: String,
    }
    /// A header rule kept a value with a call.
    CallTagged "call_tagged" {
        /// Number of the call.
        call: u64,
        /// Name of the value.
        tag: String,
        /// The value.
        value: String,
    }
    /// A header rule says something.
    RuleLogged "rule_logged" {
        /// Name of the rule.
        rule: String,
        /// Number of the call; 0 where the message belongs to none.
        call: u64,
        /// What it says.
        text: String,
    }
    /// An attempt of the laboratory has its outcome.
    AttemptEnded "attempt_ended" {
        /// Number of the attempt.
        attempt: u64,
        /// What it was: call, registration.
        kind: String,
        /// Its outcome.
        outcome: String,
    }
}

/// An event: what happened, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// What.
    pub note: Note,
}

impl Event {
    /// An event at `at`.
    pub fn new(at: Time, note: Note) -> Event {
        Event { at, note }
    }
}

impl fmt::Display for Event {
    /// `time name field=value ...`; values with spaces or quotes are quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.note.name())?;
        let mut result = Ok(());
        self.note.fields(&mut |name, value| {
            if result.is_ok() {
                let text = value.to_string();
                let plain = !text.is_empty()
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_graphic() && b != b'"' && b != b'=');
                result = if plain {
                    write!(f, " {name}={text}")
                } else {
                    write!(f, " {name}={text:?}")
                };
            }
        });
        result
    }
}
