//! The border: one engine that combines the SIP endpoint, calls, policy, trunks, the registrar and the control of
//! media.

pub use crate::counters::{BorderCounters, CallOutcome};
pub use crate::report::{BorderCensus, CallInfo, LiveMedia};

use crate::admission::{MediaOffload, Price};
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::CallKey;
use crate::calls::media::log_kernel_relay;
use crate::calls::transfer::TransferControl;
use crate::components::{Calls, Components};
use crate::endpoint_settings::endpoint_config;
use crate::ng_client::control::NodeControl;
use crate::workers::WorkerParts;
use anchor::sockets::{MEDIA_BASE, SocketWork};
use config::Config;
use engine::{
    Control, Deadline, DropReason, Drops, Engine, Entropy, HandoffKind, Input, MessageBatch,
    Output, SocketId, Time,
};
use media::{MediaCommand, MediaEvent};
use sip::{Endpoint, ListenerId};
use std::sync::Arc;

/// A session border controller without IO: an [`Engine`] for signalling that controls a media forwarder
/// ([`media::Forwarder`]).
#[derive(Debug)]
pub struct Border {
    pub(crate) endpoint: Endpoint,
    pub(crate) parts: Components,
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
        let settings = endpoint_config(&config, share.worker, share.moves.clone());
        let mut endpoint = Endpoint::new(settings, endpoint);
        let parts = Components::new(config, share, &mut endpoint, entropy);
        Border { endpoint, parts }
    }

    /// Lends the endpoint and the components for the processing of an input.
    pub(crate) fn lend(&mut self) -> Calls<'_> {
        Calls {
            endpoint: &mut self.endpoint,
            parts: &mut self.parts,
        }
    }

    /// Enables DTLS in media paths (RFC 5764) with a certificate, settings and the clock of the driver. Without it,
    /// calls that require DTLS are refused.
    pub fn set_dtls(&mut self, endpoint: protect::dtls::DtlsEndpoint) {
        self.parts.media.plane.keying.dtls = Some(endpoint);
    }

    /// Sets the wall-clock time of [`Time::ZERO`] since 1970, before the first input: sequence numbers of overload
    /// feedback exceed those before a restart (RFC 7339 section 4.4).
    pub fn set_wall_clock(&mut self, start: core::time::Duration) {
        self.endpoint.set_wall_clock(start);
        let parts = &mut self.parts;
        parts
            .admission
            .reset_feedback(&parts.ctx, &mut self.endpoint);
    }

    /// Sets the path of anchored media, when the program has activated a path other than sockets, or lost it.
    pub fn set_media_offload(&mut self, offload: MediaOffload) {
        self.parts.set_media_offload(offload);
    }

    /// Sets the number of files that this worker may have open, its share of those of the process: idle media sockets
    /// take a part of them at most.
    pub fn set_open_files(&mut self, files: u64) {
        self.parts.media.plane.sockets.set_open_files(files);
    }

    /// Sets whether all media ports of this worker share a socket, once its driver is made; without it each port counts
    /// as a socket of its own.
    pub fn set_shared_ports(&mut self, shared_ports: bool) {
        self.parts.set_shared_ports(shared_ports);
    }

    /// Sets whether this worker's thread carries packets of the IPsec gateway's tunnels, before the first call.
    pub fn set_direct_tunnels(&mut self, direct_tunnels: bool) {
        self.parts.set_direct_tunnels(direct_tunnels);
    }

    /// Hands a datagram off if another worker owns its call. Returns whether it was handed off.
    fn hand_off_if_foreign(&mut self, input: &Input<'_>, now: Time) -> bool {
        match input {
            Input::Datagram(datagram)
                if datagram.socket.0 < MEDIA_BASE && !self.endpoint.worker().is_alone() =>
            {
                if self.parts.resolver.is_resolver(datagram.socket)
                    || self.parts.is_for_nodes(datagram.socket)
                {
                    return false;
                }
                let Some(owner) = self.endpoint.other_owner(datagram, &self.parts) else {
                    return false;
                };
                let hands = self.absorb_ack_for_owner(datagram)
                    || self.endpoint.hand_off_datagram(datagram, owner, now);
                if hands {
                    self.parts
                        .admission
                        .overload
                        .record_handed_on(&self.parts.ctx, datagram.arrived);
                }
                hands
            }
            _ => false,
        }
    }

    /// Enables or disables events; they are enabled initially. Disabled events are not composed.
    pub fn set_events_wanted(&mut self, wanted: bool) {
        self.parts.ctx.events.wanted = wanted;
    }

    /// Enables or disables the events of refused requests (`request_refused`, `authentication_required`), which an
    /// attack causes in large numbers; they are enabled initially.
    pub fn set_debug_events(&mut self, wanted: bool) {
        self.parts.ctx.events.debug = wanted;
    }

    /// Records the SIP messages that are processed and sent into `batch` from now on; `None`: no recording. Malformed
    /// datagrams, keep-alives and messages of sources that are not allowed are not recorded; their drops are counted.
    pub fn record_messages(&mut self, batch: Option<MessageBatch>) {
        self.parts.ctx.events.edits = batch.is_some();
        self.endpoint.record_messages(batch);
    }

    /// The recorded messages. The program exchanges the batch for an empty one.
    pub fn recorded_messages(&mut self) -> Option<&mut MessageBatch> {
        self.endpoint.recorded_messages()
    }

    /// Enables or disables the events that only call records and the store need: `call_refused` and `trunk_skipped`.
    /// Initially disabled.
    pub fn set_call_records(&mut self, wanted: bool) {
        self.parts.ctx.events.records = wanted;
    }

    /// All packets dropped by signalling, by reason.
    pub fn drops(&self) -> Drops {
        let mut drops = self.parts.ctx.drops.clone();
        drops.merge(self.endpoint.drops());
        drops
    }

    /// The active configuration.
    pub fn config(&self) -> &Config {
        &self.parts.ctx.config
    }

    /// Whether input of `source` is processed on this socket.
    pub(crate) fn is_source_allowed(
        &self,
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
        self.parts
            .listeners
            .is_source_allowed(&self.parts.ctx, socket, source)
    }

    /// Input on a connection to a DNS server.
    fn dns_stream_input(&mut self, stream: u32, input: Input<'_>) {
        match input {
            Input::Stream { bytes, .. } => {
                self.parts
                    .resolver
                    .resolver_stream(&mut self.parts.ctx, stream, bytes)
            }
            Input::Closed { .. } => self.parts.resolver.resolver_ended(&self.parts.ctx, stream),
            _ => {}
        }
    }

    fn process_input(&mut self, input: Input<'_>, now: Time) {
        if matches!(input, Input::Stream { .. }) {
            self.parts.admission.overload.record_no_queue();
        }
        match input {
            Input::Datagram(datagram) if datagram.socket.0 >= MEDIA_BASE => {
                // Media datagrams belong to the forwarder, which passes STUN and DTLS to us. Without a forwarder, or
                // with a faulty driver, any packet may arrive here.
                let done = self.lend().handle_media_datagram(
                    datagram.socket,
                    datagram.source,
                    datagram.bytes,
                );
                if let Err(reason) = done {
                    self.parts.ctx.drops.count(reason);
                }
            }
            Input::Datagram(datagram) if self.parts.is_for_nodes(datagram.socket) => {
                NodeControl::new(&mut self.lend())
                    .handle_node_datagram(datagram.source, datagram.bytes);
            }
            Input::Unreachable {
                socket,
                destination,
                ..
            } if self.parts.is_for_nodes(socket) => {
                NodeControl::new(&mut self.lend()).node_unreachable(destination);
            }
            Input::Datagram(datagram) if self.parts.resolver.is_resolver(datagram.socket) => {
                self.parts.resolver.resolver_answer(
                    &mut self.parts.ctx,
                    datagram.source,
                    datagram.bytes,
                );
            }
            Input::Datagram(datagram) => {
                let waited = now.since(datagram.arrived);
                self.parts.admission.overload.record_queue_delay(
                    &self.parts.ctx,
                    datagram.socket,
                    waited,
                );
                if !self.is_source_allowed(datagram.socket, datagram.source, datagram.bytes) {
                    self.parts.ctx.drops.count(DropReason::SipSourceNotAllowed);
                } else if !self.handle_on_fast_path(
                    datagram.socket,
                    datagram.source,
                    datagram.bytes,
                    now,
                ) {
                    self.endpoint
                        .feed(Input::Datagram(datagram), now, &mut self.parts);
                }
            }
            Input::Handoff(message) => {
                match message.kind {
                    HandoffKind::Datagram {
                        listener: local,
                        source,
                        arrived,
                        handed_off: handed,
                        ..
                    } => {
                        let point = self.parts.listeners.point(ListenerId(local));
                        if let Some(socket) = point.map(|point| point.socket) {
                            self.parts.admission.overload.record_handoff(
                                &self.parts.ctx,
                                socket,
                                arrived,
                                handed,
                            );
                            if !self.is_source_allowed(socket, source, message.bytes) {
                                self.parts.ctx.drops.count(DropReason::SipSourceNotAllowed);
                                return;
                            }
                            if self.handle_on_fast_path(socket, source, message.bytes, now) {
                                return;
                            }
                        }
                    }
                    HandoffKind::Message { .. } => self.parts.admission.overload.record_no_queue(),
                    HandoffKind::Transfer { number, step } => {
                        TransferControl::new(&mut self.lend()).transfer_handoff(number, step);
                        return;
                    }
                    _ => {}
                }
                self.endpoint
                    .feed(Input::Handoff(message), now, &mut self.parts);
            }
            Input::Shed { dropped, .. } => self
                .parts
                .admission
                .overload
                .record_shed(&mut self.parts.ctx, dropped),
            Input::Accepted {
                connection,
                socket,
                remote,
                ..
            } if !self
                .parts
                .listeners
                .is_source_allowed(&self.parts.ctx, socket, remote) =>
            {
                if self
                    .parts
                    .listeners
                    .interface_with_client_certificates(&self.parts.ctx, socket)
                    .is_none()
                {
                    self.parts.ctx.drops.count(DropReason::SipSourceNotAllowed);
                    self.parts
                        .listeners
                        .rejected_connections
                        .push_back(connection);
                    return;
                }
                self.endpoint.feed(input, now, &mut self.parts);
                if self.endpoint.has_connection(connection)
                    && !self
                        .parts
                        .listeners
                        .await_client_certificate(connection, socket, remote)
                {
                    self.parts.ctx.drops.count(DropReason::SipSourceNotAllowed);
                    self.endpoint
                        .close_connection(connection, now, &mut self.parts);
                }
            }
            Input::Secured { connection, names } => {
                let known = self.parts.listeners.accept_client_certificate(
                    &self.parts.ctx,
                    connection,
                    names,
                );
                self.parts
                    .admission
                    .reservations
                    .record_handshake(Price::TLS_HANDSHAKE, now);
                self.endpoint.feed(input, now, &mut self.parts);
                if !known {
                    self.parts.ctx.drops.count(DropReason::SipSourceNotAllowed);
                    self.endpoint
                        .close_connection(connection, now, &mut self.parts);
                }
            }
            Input::Opened { socket, local } => {
                if socket.0 >= MEDIA_BASE {
                    self.lend().media_opened(socket);
                } else {
                    self.parts.media_nodes.socket_opened(socket);
                    self.parts.resolver.socket_opened(socket);
                    let is_first = self.parts.worker.is_first();
                    self.parts
                        .listeners
                        .opened(&mut self.parts.ctx, socket, local, is_first);
                    self.endpoint
                        .feed(Input::Opened { socket, local }, now, &mut self.parts);
                }
            }
            Input::OpenFailed { socket, error } => {
                self.lend().open_failed(socket, error);
                if socket.0 < MEDIA_BASE {
                    self.endpoint
                        .feed(Input::OpenFailed { socket, error }, now, &mut self.parts);
                }
            }
            input => match stream_of(&input).and_then(crate::resolve::resolver_stream_of) {
                Some(stream) => self.dns_stream_input(stream, input),
                None => self.endpoint.feed(input, now, &mut self.parts),
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
        self.parts.ctx.now = now;
        if self.hand_off_if_foreign(&input, now) {
            return;
        }
        let timeout = matches!(input, Input::Timeout);
        self.parts.begin(now);
        self.process_input(input, now);
        if timeout {
            self.lend().process_timers();
        }
        NodeControl::new(&mut self.lend()).replay_deferred();
        self.lend().process_media_notices();
        self.lend().deliver_lookups();
        self.parts.apply_rule_output();
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(work) = self.parts.media.plane.work.pop_front() {
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
        if let Some((socket, destination, bytes)) = self.parts.media.plane.keying.next_datagram() {
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if let Some(socket) = self.parts.media_nodes.next_socket() {
            let (destination, bytes) = self.parts.media_nodes.next_datagram()?;
            return Some(Output::Datagram {
                socket,
                destination,
                bytes,
            });
        }
        if let Some(connection) = self.parts.listeners.rejected_connections.pop_front() {
            return Some(Output::Close { connection });
        }
        if let Some(event) = self.parts.ctx.events.queue.pop_front() {
            return Some(Output::Event(event));
        }
        if let Some((socket, filter)) = self.parts.admission.overload.next_socket_filter() {
            return Some(Output::SocketFilter { socket, filter });
        }
        if self.parts.resolver.has_query() {
            let query = self.parts.resolver.next_query()?;
            return Some(Output::Datagram {
                socket: query.socket,
                destination: query.server,
                bytes: &query.bytes,
            });
        }
        if self.parts.resolver.has_output() {
            return self.parts.resolver.next_output();
        }
        self.endpoint.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        Deadline::earlier(self.endpoint.next_deadline(), self.parts.next_deadline())
    }
}

impl Control for Border {
    type Command = MediaCommand;
    type Report = MediaEvent;

    fn next_command(&mut self) -> Option<MediaCommand> {
        self.parts.media.plane.commands.pop_front()
    }

    fn report(&mut self, report: MediaEvent, now: Time) {
        self.parts.begin(now);
        match report {
            MediaEvent::Timeout { session, .. } => {
                self.lend().media_timed_out(CallKey(session));
            }
            MediaEvent::Latched {
                session,
                side,
                address,
                ..
            } => {
                self.parts
                    .calls
                    .media_latched(&mut self.parts.ctx, CallKey(session), side, address)
            }
            MediaEvent::Stats {
                session,
                last,
                stats,
            } => {
                let Components {
                    ctx,
                    quality_intervals,
                    ..
                } = &mut self.parts;
                quality_intervals.report(ctx, CallKey(session), last, &stats);
                if last {
                    self.parts.ctx.counters.media_sessions_ended += 1;
                    log_kernel_relay(&mut self.parts.ctx, CallKey(session), &stats);
                    let number = CallKey(session).number();
                    self.parts.record_session_statistics(number, Some(&stats));
                }
                ConferenceCalls::new(&mut self.lend()).participant_stats(
                    session,
                    last,
                    Some(&stats),
                );
                self.parts.media.last_stats = Some((session, stats));
            }
            // Calls of the border are not recorded.
            MediaEvent::Recorded { .. } | MediaEvent::PlaybackEnded { .. } => {}
            MediaEvent::Participant { session, event } => {
                ConferenceCalls::new(&mut self.lend()).participant_event(CallKey(session), event);
            }
            MediaEvent::Refused { session, .. } => {
                self.parts.quality_intervals.remove(session);
                let number = CallKey(session).number();
                self.parts.record_session_statistics(number, None);
                if self.parts.calls.slot_of(CallKey(session)).is_none() {
                    // The participant had left before the forwarder reported its statistics.
                    ConferenceCalls::new(&mut self.lend()).participant_stats(session, false, None);
                }
                self.lend().media_refused(CallKey(session));
            }
        }
        NodeControl::new(&mut self.lend()).replay_deferred();
        self.lend().process_media_notices();
        self.lend().deliver_lookups();
    }
}
