//! The border: one engine that combines the SIP endpoint, calls, policy, trunks, the registrar and the control of
//! media.

mod core;
mod keepalive;
mod listeners;
pub(crate) mod out_of_dialog;
mod report;
mod resolve;
mod subscriptions;

pub(crate) use self::core::{ALLOW, Alarm, Core, HopHosts, MEDIA_SOCKETS, identities};
pub(crate) use listeners::BorderListener;
pub(crate) use out_of_dialog::address_of_record;
pub use report::{BorderCensus, BorderCounters, CallInfo, CallOutcome};

use crate::admission::{MediaOffload, Price};
use crate::call::CallKey;
use crate::worker_pool::WorkerParts;
use anchor::sockets::{MEDIA_BASE, SocketWork};
use config::Config;
use engine::{
    Control, Deadline, DropReason, Drops, Engine, Entropy, Event, HandoffKind, Input, Output,
    SocketId, Time,
};
use media::{MediaCommand, MediaEvent};
use sip::{Endpoint, Flow, Handler, Indication, ListenerId, NewRequestAction};
use std::sync::Arc;
use wire::sip::Message;

/// A session border controller without IO: an [`Engine`] for signalling that controls a media forwarder
/// ([`media::Forwarder`]).
#[derive(Debug)]
pub struct Border {
    pub(crate) endpoint: Endpoint,
    pub(crate) core: Core,
}

impl Border {
    /// A border with this configuration. Its first outputs open its sockets.
    pub fn new(config: impl Into<Arc<Config>>, mut entropy: Entropy) -> Border {
        let config = config.into();
        let endpoint = entropy.fork();
        let share = WorkerParts::single(&config, &mut entropy);
        Border::with(config, share, endpoint, entropy)
    }

    pub(crate) fn with(
        config: Arc<Config>,
        share: WorkerParts,
        endpoint: Entropy,
        entropy: Entropy,
    ) -> Border {
        let settings = core::endpoint_config(&config, share.worker, share.moves.clone());
        let mut endpoint = Endpoint::new(settings, endpoint);
        let core = Core::new(config, share, &mut endpoint, entropy);
        Border { endpoint, core }
    }

    /// Enables DTLS in media paths (RFC 5764) with a certificate, settings and the clock of the driver. Without it,
    /// calls that require DTLS are refused.
    pub fn set_dtls(&mut self, endpoint: protect::dtls::DtlsEndpoint) {
        self.core.plane.keying.dtls = Some(endpoint);
    }

    /// Sets the path of anchored media, when the program has activated a path other than sockets, or lost it.
    pub fn set_media_offload(&mut self, carrier: MediaOffload) {
        self.core.set_media_offload(carrier);
    }

    /// Hands a datagram off if another worker owns its call. Returns whether it was handed off.
    fn hand_off_if_foreign(&mut self, input: &Input<'_>, now: Time) -> bool {
        match input {
            Input::Datagram(datagram)
                if datagram.socket.0 < MEDIA_BASE && !self.endpoint.worker().is_alone() =>
            {
                if self.core.is_resolver(datagram.socket) || self.core.is_for_nodes(datagram.socket)
                {
                    return false;
                }
                let Some(owner) = self.endpoint.other_owner(datagram, &self.core) else {
                    return false;
                };
                let hands = self.absorb_ack_for_owner(datagram)
                    || self.endpoint.hand_off_datagram(datagram, owner, now);
                if hands {
                    self.core.record_handed_on(datagram.arrived, now);
                }
                hands
            }
            _ => false,
        }
    }

    /// Enables or disables events; they are enabled initially. Disabled events are not composed.
    pub fn set_events_wanted(&mut self, wanted: bool) {
        self.core.events.wanted = wanted;
    }

    /// Reserves memory for this number of transactions of each kind, within the limits, because growing a table moves
    /// its entries while calls wait. Unused memory is not touched, except one byte per slot of the index.
    pub fn reserve(&mut self, transactions: usize) {
        self.endpoint.reserve(transactions, transactions);
    }

    /// All packets dropped by signalling, by reason.
    pub fn drops(&self) -> Drops {
        let mut drops = self.core.drops.clone();
        drops.merge(self.endpoint.drops());
        drops
    }

    /// The active configuration.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    pub(crate) fn is_source_allowed(
        &mut self,
        socket: SocketId,
        source: std::net::SocketAddr,
        bytes: &[u8],
    ) -> bool {
        // Responses and keep-alives are not subject to source checks; they are dropped unless a transaction or flow
        // expects them.
        if bytes.first().is_none_or(|byte| !byte.is_ascii_uppercase()) || bytes.starts_with(b"SIP/")
        {
            return true;
        }
        self.core.is_source_allowed(socket, source)
    }

    /// Input on a connection to a DNS server.
    fn dns_stream_input(&mut self, stream: u32, input: Input<'_>, now: Time) {
        match input {
            Input::Stream { bytes, .. } => self.core.resolver_stream(stream, bytes, now),
            Input::Closed { .. } => self.core.resolver_ended(stream, now),
            _ => {}
        }
    }

    fn process_input(&mut self, input: Input<'_>, now: Time) {
        if matches!(input, Input::Stream { .. }) {
            self.core.record_no_queue();
        }
        match input {
            Input::Datagram(datagram) if datagram.socket.0 >= MEDIA_BASE => {
                // Media datagrams belong to the forwarder, which passes STUN and DTLS to us. Without a forwarder, or
                // with a faulty driver, any packet may arrive here.
                let done = self.core.handle_media_datagram(
                    datagram.socket,
                    datagram.source,
                    datagram.bytes,
                );
                if let Err(reason) = done {
                    self.core.drops.count(reason);
                }
            }
            Input::Datagram(datagram) if self.core.is_for_nodes(datagram.socket) => {
                let (source, endpoint) = (datagram.source, &mut self.endpoint);
                self.core
                    .handle_node_datagram(endpoint, source, datagram.bytes, now);
            }
            Input::Unreachable {
                socket,
                destination,
                ..
            } if self.core.is_for_nodes(socket) => {
                self.core
                    .node_unreachable(&mut self.endpoint, destination, now);
            }
            Input::Datagram(datagram) if self.core.is_resolver(datagram.socket) => {
                self.core
                    .resolver_answer(datagram.source, datagram.bytes, now);
            }
            Input::Datagram(datagram) => {
                let waited = now.since(datagram.arrived);
                self.core.record_queue_delay(datagram.socket, waited, now);
                if !self.is_source_allowed(datagram.socket, datagram.source, datagram.bytes) {
                    self.core.drops.count(DropReason::SipSourceNotAllowed);
                } else if !self.handle_on_fast_path(
                    datagram.socket,
                    datagram.source,
                    datagram.bytes,
                    now,
                ) {
                    self.endpoint
                        .feed(Input::Datagram(datagram), now, &mut self.core);
                }
            }
            Input::Handoff(parcel) => {
                match parcel.kind {
                    HandoffKind::Datagram {
                        listener: local,
                        source,
                        arrived,
                        handed_off: handed,
                        ..
                    } => {
                        let point = self.core.point(ListenerId(local));
                        if let Some(socket) = point.map(|point| point.socket) {
                            self.core.record_handoff(socket, arrived, handed, now);
                            if !self.is_source_allowed(socket, source, parcel.bytes) {
                                self.core.drops.count(DropReason::SipSourceNotAllowed);
                                return;
                            }
                            if self.handle_on_fast_path(socket, source, parcel.bytes, now) {
                                return;
                            }
                        }
                    }
                    HandoffKind::Message { .. } => self.core.record_no_queue(),
                    HandoffKind::Transfer { number, step } => {
                        let endpoint = &mut self.endpoint;
                        self.core.transfer_handoff(endpoint, number, step, now);
                        return;
                    }
                    _ => {}
                }
                self.endpoint
                    .feed(Input::Handoff(parcel), now, &mut self.core);
            }
            Input::Shed { dropped, .. } => self.core.record_shed(dropped),
            Input::Accepted {
                connection,
                socket,
                remote,
                ..
            } if !self.core.is_source_allowed(socket, remote) => {
                if self
                    .core
                    .interface_with_client_certificates(socket)
                    .is_none()
                {
                    self.core.drops.count(DropReason::SipSourceNotAllowed);
                    self.core.rejected_connections.push_back(connection);
                    return;
                }
                self.endpoint.feed(input, now, &mut self.core);
                if self.endpoint.has_connection(connection)
                    && !self
                        .core
                        .await_client_certificate(connection, socket, remote)
                {
                    self.core.drops.count(DropReason::SipSourceNotAllowed);
                    self.endpoint
                        .close_connection(connection, now, &mut self.core);
                }
            }
            Input::Secured { connection, names } => {
                let known = self.core.accept_client_certificate(connection, names);
                self.core
                    .reservations
                    .record_handshake(Price::TLS_HANDSHAKE, now);
                self.endpoint.feed(input, now, &mut self.core);
                if !known {
                    self.core.drops.count(DropReason::SipSourceNotAllowed);
                    self.endpoint
                        .close_connection(connection, now, &mut self.core);
                }
            }
            Input::Opened { socket, local } => {
                if socket.0 >= MEDIA_BASE {
                    self.core.media_opened(&mut self.endpoint, socket, now);
                } else {
                    self.core.opened(socket, local, now);
                    self.endpoint
                        .feed(Input::Opened { socket, local }, now, &mut self.core);
                }
            }
            Input::OpenFailed { socket, error } => {
                self.core
                    .open_failed(&mut self.endpoint, socket, error, now);
                if socket.0 < MEDIA_BASE {
                    self.endpoint
                        .feed(Input::OpenFailed { socket, error }, now, &mut self.core);
                }
            }
            input => match stream_of(&input).and_then(resolve::resolver_stream_of) {
                Some(stream) => self.dns_stream_input(stream, input, now),
                None => self.endpoint.feed(input, now, &mut self.core),
            },
        }
    }
}

/// The connection of an input.
fn stream_of(input: &Input<'_>) -> Option<engine::ConnectionId> {
    match *input {
        Input::Stream { connection, .. }
        | Input::Connected { connection, .. }
        | Input::Closed { connection, .. } => Some(connection),
        _ => None,
    }
}

impl Engine for Border {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        if self.hand_off_if_foreign(&input, now) {
            return;
        }
        let timeout = matches!(input, Input::Timeout);
        self.core.begin(now);
        self.process_input(input, now);
        if timeout {
            self.core.process_timers(&mut self.endpoint, now);
        }
        self.core.replay_deferred(&mut self.endpoint, now);
        self.core.process_media_notices(&mut self.endpoint, now);
        self.core.deliver_lookups(&mut self.endpoint, now);
        self.core.apply_rule_output(now);
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(work) = self.core.plane.work.pop_front() {
            return Some(match work {
                SocketWork::Open {
                    socket,
                    kind,
                    local,
                } => Output::OpenSocket {
                    socket,
                    kind,
                    local,
                },
                SocketWork::Shut(socket) => Output::CloseSocket { socket },
            });
        }
        if let Some((socket, destination, bytes)) = self.core.plane.keying.next_datagram() {
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if self.core.media_nodes.has_output() {
            let (socket, destination, bytes) = self.core.media_nodes.next_datagram()?;
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if let Some(connection) = self.core.rejected_connections.pop_front() {
            return Some(Output::Close { connection });
        }
        if let Some(event) = self.core.events.queue.pop_front() {
            return Some(Output::Event(event));
        }
        if let Some((socket, sieve)) = self.core.overload.next_socket_filter() {
            return Some(Output::SocketFilter {
                socket,
                filter: sieve,
            });
        }
        if let Some(query) = self.core.queries.pop_front() {
            let question = self.core.current_query.insert(query);
            return Some(Output::Datagram {
                socket: question.socket,
                destination: question.server,
                bytes: &question.bytes,
            });
        }
        if self.core.resolver.has_output() {
            return self.core.resolver.next_output();
        }
        self.endpoint.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        Deadline::earlier(self.endpoint.next_deadline(), self.core.next_deadline())
    }
}

impl Control for Border {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn next_command(&mut self) -> Option<MediaCommand> {
        self.core.plane.commands.pop_front()
    }

    fn report(&mut self, report: MediaEvent, now: Time) {
        self.core.begin(now);
        match report {
            MediaEvent::Timeout { session, .. } => {
                self.core
                    .media_timed_out(&mut self.endpoint, CallKey(session), now);
            }
            MediaEvent::Latched {
                session,
                side,
                address,
                ..
            } => self
                .core
                .media_latched(CallKey(session), side, address, now),
            MediaEvent::Stats {
                session,
                last,
                stats,
            } => {
                if last {
                    self.core.counters.media_sessions_ended += 1;
                    self.core.media_passed(CallKey(session), &stats, now);
                    let number = CallKey(session).number();
                    self.core
                        .record_session_statistics(number, Some(&stats), now);
                }
                self.core
                    .participant_stats(session, last, Some(&stats), now);
                self.core.last_stats = Some((session, stats));
            }
            // Calls of the border are not recorded.
            MediaEvent::Recorded { .. } | MediaEvent::PlaybackEnded { .. } => {}
            MediaEvent::Participant { session, event } => {
                self.core
                    .participant_event(&mut self.endpoint, CallKey(session), event, now);
            }
            MediaEvent::Refused { session, .. } => {
                let number = CallKey(session).number();
                self.core.record_session_statistics(number, None, now);
                if self.core.slot_of(CallKey(session)).is_none() {
                    // The participant had left before the forwarder reported its statistics.
                    self.core.participant_stats(session, false, None, now);
                }
                self.core
                    .media_refused(&mut self.endpoint, CallKey(session), now);
            }
        }
        self.core.replay_deferred(&mut self.endpoint, now);
        self.core.process_media_notices(&mut self.endpoint, now);
        self.core.deliver_lookups(&mut self.endpoint, now);
    }
}

impl Handler for Core {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        self.apply_rules(endpoint, indication, now);
    }

    fn on_new_request(
        &mut self,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
    ) -> NewRequestAction {
        self.screen_request(request, *flow, now)
    }

    fn select_worker(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        self.conference_owner(bytes, flow)
    }

    fn on_parked_dialog(&mut self, endpoint: &mut Endpoint, now: Time) {
        self.take_over_given_legs(endpoint, now);
    }
}

impl Core {
    /// Processes an indication after header rules were applied.
    pub(crate) fn dispatch(
        &mut self,
        endpoint: &mut Endpoint,
        indication: Indication<'_>,
        now: Time,
    ) {
        if self.uses_trunk_feedback {
            self.apply_feedback(endpoint, &indication, now);
        }
        if self.defer_for_node(endpoint, &indication, now) {
            return;
        }
        match indication {
            Indication::Offered { leg, request, flow } => {
                self.offered(endpoint, leg, request, flow, now);
            }
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.progressed(endpoint, slot, leg, fork, response, reliable, now);
                }
            }
            Indication::Answered { leg, response } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.answered(endpoint, slot, leg, response, now);
                } else {
                    self.end_stray_dialog(endpoint, leg, now);
                }
            }
            Indication::Failed {
                leg,
                reason: why,
                response,
            } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.failed(endpoint, slot, leg, why, response, now);
                }
            }
            Indication::Acked { leg, request } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.acked(endpoint, slot, leg, request, now);
                }
            }
            Indication::Cancelled { leg, request } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.cancelled(endpoint, slot, leg, request, now);
                }
            }
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => match self.slot_of_leg(endpoint, leg) {
                Some(slot) => self.pracked(endpoint, slot, transaction, request, now),
                None => crate::call::in_dialog::refuse(endpoint, transaction, 200, now),
            },
            Indication::Request {
                leg,
                transaction,
                request,
            } => match self.slot_of_leg(endpoint, leg) {
                Some(slot) => self.requested(endpoint, slot, leg, transaction, request, now),
                None => crate::call::in_dialog::refuse(endpoint, transaction, 481, now),
            },
            Indication::RequestCancelled { leg, transaction } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.request_cancelled(slot, transaction);
                    self.relay_cancelled(endpoint, slot, transaction, now);
                }
            }
            Indication::Response {
                leg,
                transaction,
                response,
            } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.responded(endpoint, slot, leg, transaction, response, now);
                }
            }
            Indication::TimedOut { leg, transaction } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.request_timed_out(endpoint, slot, transaction, now);
                }
            }
            Indication::OutOfDialog {
                transaction,
                request,
                flow,
            } => self.out_of_dialog(endpoint, transaction, request, flow, now),
            Indication::InDialog {
                dialog,
                user,
                transaction,
                request,
            } => self.in_dialog(endpoint, (dialog, user), transaction, request, now),
            Indication::OutOfDialogResponse {
                user,
                response,
                flow,
                ..
            } => self.out_of_dialog_response(endpoint, user, response, flow, now),
            Indication::OutOfDialogTimedOut { user, .. } => {
                self.out_of_dialog_timed_out(endpoint, user, now);
            }
            Indication::Ended {
                leg,
                reason: why,
                message,
            } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.ended(endpoint, slot, leg, why, message, now);
                }
            }
            Indication::RefreshDue { leg } => {
                if let Some(slot) = self.slot_of_leg(endpoint, leg) {
                    self.refresh(endpoint, slot, leg, now);
                }
            }
            Indication::SessionExpired { leg } => self.session_expired(endpoint, leg, now),
            Indication::FlowFailed { flow } => {
                if let Some(connection) = flow.connection {
                    self.connection_ended(connection);
                }
                self.flow_failed(flow, now);
            }
        }
    }
}

/// Queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) wanted: bool,
    pub(crate) queue: std::collections::VecDeque<Event>,
}

impl EventQueue {
    /// Queues the event that `make` composes, if events are enabled.
    pub(crate) fn tell(&mut self, now: Time, make: impl FnOnce() -> engine::EventKind) {
        if self.wanted {
            self.queue.push_back(Event::new(now, make()));
        }
    }
}
