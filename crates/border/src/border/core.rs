//! The state of the border, except the endpoint.

use super::keepalive::RegistrationKeepAlive;
use super::listeners::BorderListener;
use super::out_of_dialog::PendingRequest;
use super::resolve::DnsClient;
use super::subscriptions::Subscription;
use super::{BorderCounters, EventQueue};
use crate::admission::{MediaOffload, Reservations};
use crate::call::challenge::Challenged;
use crate::call::quality::EndedCall;
use crate::call::setup::RequestOrigin;
use crate::call::{Call, CallKey, HopStep};
use crate::carrier::Carriers;
use crate::ng_client::MediaNodes;
use crate::operate::DrainState;
use crate::overload::Overload;
use crate::overload::feedback::Throttles;
use crate::policy::{Contact, RoutingState};
use crate::rate_limit::RateLimiter;
use crate::registrar::{Authority, RegistrationLimiter, Registry};
use crate::rules::RuleOutput;
use crate::trunks::{PingResult, Trunks};
use crate::worker_pool::{Siblings, WorkerParts};
use anchor::Side;
use anchor::sockets::{MEDIA_BASE, SocketWork};
use anchor::{MediaPlane, MediaPool, MediaSide, PortReplacement};
use config::{Config, InterfaceId, MediaSecurity, Trunk, TrunkId};
use engine::timers::TimerWheel;
use engine::{
    BoundedMap, ConnectionId, Deadline, Drops, Entropy, EventKind, HashKey, MaybeShared, SocketId,
    Time, Transport, Worker,
};
use media::Latching;
use media::ports::PortPool;
use sip::{
    Endpoint, EndpointConfig, Failure, Flow, LegId, ListenerId, MessageContent, MovedDialogs,
    SessionConfig, TimerConfig, TransactionId,
};
use siphasher::sip::SipHasher13;
use slab::Slab;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::sip::{HeaderId, Host, Message, NameAddr, Uri};

/// Maximum number of open media sockets: below the limit of descriptors that systems grant.
pub(crate) const MEDIA_SOCKETS: usize = 16_000;

/// Maximum number of TLS connections from addresses that are not allowed, pending the client certificate.
const MAX_PENDING_CERTIFICATES: usize = 1_024;

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A call rang for too long.
    RingTimeout(CallKey),
    /// A target sent no response.
    AnswerTimeout(CallKey, LegId),
    /// The waiting time after glare is over.
    TransferRetry(CallKey),
    /// A re-INVITE of a transfer was not answered in time.
    ReinviteTimeout(CallKey, TransactionId),
    /// The time for draining is over.
    DrainTimeout,
    /// A listener that was removed from the configuration may be closed; whether calls used it at the last check.
    CloseListener(ListenerId, bool),
    /// Check whether an overload is over.
    OverloadCheck,
    /// Update the load shedding of the socket filter.
    SheddingUpdate,
    /// A subscription expired.
    Subscription(u64),
    /// Send a keep-alive on a flow of our registration.
    KeepAlive(u32),
    /// A timeout of media security in a call is due.
    Keying(CallKey),
    /// Query whether a media node still has a call.
    NodeQuery(CallKey),
    /// Retry a call whose media node failed.
    FailoverRetry(CallKey),
    /// A caller did not enter the PIN of a conference in time.
    PinTimeout(CallKey),
    /// Continue a query about a conference with its next participants.
    ConferenceQueryStep(u64),
    /// Check the state of a transfer whose other call belongs to another worker.
    TransferPoll(u64, CallKey),
}

/// Buffers for composing messages, reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) sdp: Vec<u8>,
}

/// A DNS query to send.
#[derive(Debug)]
pub(crate) struct DnsQuery {
    pub(crate) socket: SocketId,
    pub(crate) server: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The state of the border.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Arc<Config>,
    pub(crate) calls: Slab<Call>,
    pub(crate) call_sequence: u64,
    pub(crate) plane: MediaPlane,
    /// The index of the port pool of each range in the configuration.
    pub(crate) pools: Vec<u16>,
    pub(crate) timers: TimerWheel<Alarm>,
    pub(crate) events: EventQueue,
    pub(crate) counters: BorderCounters,
    pub(crate) drops: Drops,
    pub(crate) buffers: Buffers,
    pub(crate) entropy: Entropy,
    pub(crate) hash_key: HashKey,
    pub(crate) listeners: Vec<BorderListener>,
    pub(crate) next_socket: u32,
    pub(crate) rejected_connections: VecDeque<ConnectionId>,
    pub(crate) trunks: Trunks,
    pub(crate) authority: MaybeShared<Authority>,
    pub(crate) location: Registry,
    /// Rate limits of registrations, without and with credentials.
    pub(crate) register_limiter: MaybeShared<RegistrationLimiter>,
    pub(crate) authenticated_register_limiter: MaybeShared<RegistrationLimiter>,
    /// Rate limits of interfaces, trunks and sources.
    pub(crate) rate_limiter: MaybeShared<RateLimiter>,
    /// Origin and user of the current request, determined when it arrived.
    pub(crate) authorized: Option<(RequestOrigin, Option<Box<str>>)>,
    /// Memory and CPU time of calls in progress.
    pub(crate) reservations: Reservations,
    /// Overload control reported by trunks, and whether any trunk uses it.
    pub(crate) throttles: Throttles,
    pub(crate) uses_trunk_feedback: bool,
    /// Queueing delay and load shedding.
    pub(crate) overload: Overload,
    pub(crate) carriers: Carriers,
    pub(crate) pending_requests: Slab<PendingRequest>,
    pub(crate) request_serial: u32,
    pub(crate) subscriptions: Slab<Subscription>,
    pub(crate) keep_alive_flows: Vec<RegistrationKeepAlive>,
    /// Call-IDs of challenged calls.
    pub(crate) challenged: Challenged,
    pub(crate) draining: Option<DrainState>,
    pub(crate) located_peers: MaybeShared<BoundedMap<IpAddr, ()>>,
    /// Domains of the client certificates of accepted connections.
    pub(crate) certificate_domains: MaybeShared<crate::worker_pool::CertificateDomains>,
    /// TLS connections that are allowed only if their client certificate is accepted.
    pub(crate) pending_certificates: BoundedMap<ConnectionId, (SocketId, SocketAddr)>,
    /// The other workers, if there are several.
    pub(crate) siblings: Option<Siblings>,
    pub(crate) resolver: DnsClient,
    pub(crate) queries: VecDeque<DnsQuery>,
    pub(crate) current_query: Option<DnsQuery>,
    /// Log lines of header rules while a message is forwarded.
    pub(crate) rule_output: RefCell<Vec<RuleOutput>>,
    /// Conferences with their participants.
    pub(crate) conferences: crate::call::conference::Conferences,
    /// Pending queries of the control interface about conferences.
    pub(crate) conference_queries: crate::call::conference::requests::ConferenceQueries,
    /// Media nodes that relay the media of calls.
    pub(crate) media_nodes: MediaNodes,
    /// Messages that waited for a media node in calls that have ended.
    pub(crate) deferred_messages: VecDeque<crate::ng_client::relay::DeferredMessage>,
    /// Whether the indication being dispatched had waited for its media node.
    pub(crate) replaying: bool,
    /// Ended calls whose statistics are pending, by call number.
    pub(crate) ended_calls: BTreeMap<u64, Box<EndedCall>>,
    /// Path of media that is anchored here.
    pub(crate) media_offload: MediaOffload,
    pub(crate) last_stats: Option<(u64, Box<media::forward::SessionStats>)>,
    pub(crate) now: Time,
}

/// Supported methods.
pub(crate) const ALLOW: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, SUBSCRIBE, NOTIFY, MESSAGE, REGISTER, PUBLISH";

/// Settings of the endpoint, derived from a configuration.
pub(crate) fn endpoint_config(
    config: &Config,
    worker: Worker,
    moves: Option<MovedDialogs>,
) -> EndpointConfig {
    EndpointConfig {
        user_agent: config.sip.agent.clone(),
        allow: String::from(ALLOW),
        // In addition to its own option tags, the border passes those that both ends negotiate with each other.
        supported: [
            "100rel",
            "timer",
            "replaces",
            "norefersub",
            "precondition",
            "histinfo",
            "join",
            "answermode",
            "early-session",
            "path",
            "outbound",
            "gruu",
            "uui",
            "199",
            "eventlist",
        ]
        .map(String::from)
        .to_vec(),
        session: config.session_timer.expires.map(|expires| SessionConfig {
            expires: seconds(expires),
            min_se: seconds(config.session_timer.min_se).max(90),
        }),
        timers: TimerConfig {
            trying: core::time::Duration::ZERO,
            idle: config.limits.connection_idle,
            ..TimerConfig::default()
        },
        limits: engine::Limits {
            transactions: worker.share(config.limits.transactions),
            ..config.limits.clone()
        },
        opens_websockets: false,
        worker,
        moved_dialogs: moves,
        check_max_forwards: true,
        symmetric_responses: true,
        bounded_answers: true,
    }
}

fn seconds(span: core::time::Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}

impl Core {
    pub(crate) fn new(
        config: Arc<Config>,
        share: WorkerParts,
        endpoint: &mut Endpoint,
        mut entropy: Entropy,
    ) -> Core {
        let worker = share.worker;
        let sockets = worker.share(MEDIA_SOCKETS);
        let plane = MediaPlane::new(sockets, share.sockets, entropy.fork());
        let ours = worker.number == 0;
        let carriers = Carriers::new(&config, ours, share.carriers, Time::ZERO);
        let resolver = DnsClient::new(&config, share.resolver);
        let media_nodes = MediaNodes::new(&config, worker, entropy.fork());
        let mut core = Core {
            config: config.clone(),
            calls: Slab::new(),
            call_sequence: 0,
            plane,
            pools: Vec::new(),
            timers: TimerWheel::new(),
            events: EventQueue {
                wanted: true,
                queue: VecDeque::new(),
            },
            counters: BorderCounters::default(),
            drops: Drops::new(),
            buffers: Buffers::default(),
            hash_key: share.hash_key,
            listeners: Vec::new(),
            next_socket: 0,
            rejected_connections: VecDeque::new(),
            trunks: share.trunks,
            authority: share.authority,
            location: share.location,
            register_limiter: share.register_limiter,
            authenticated_register_limiter: share.authenticated_register_limiter,
            rate_limiter: share.rate_limiter,
            authorized: None,
            reservations: Reservations::default(),
            throttles: Throttles::default(),
            uses_trunk_feedback: false,
            overload: Overload::new(share.shed_lists, share.worker.count),
            carriers,
            pending_requests: Slab::new(),
            request_serial: 0,
            subscriptions: Slab::new(),
            keep_alive_flows: Vec::new(),
            challenged: Challenged::new(share.hash_key),
            draining: None,
            located_peers: share.located_peers,
            certificate_domains: share.certificate_domains,
            pending_certificates: BoundedMap::new(MAX_PENDING_CERTIFICATES, share.hash_key),
            siblings: share.siblings,
            resolver,
            queries: VecDeque::new(),
            current_query: None,
            rule_output: RefCell::default(),
            conferences: crate::call::conference::Conferences::new(share.conferences),
            conference_queries: Default::default(),
            media_nodes,
            deferred_messages: VecDeque::new(),
            replaying: false,
            ended_calls: BTreeMap::new(),
            media_offload: MediaOffload::default(),
            last_stats: None,
            now: Time::ZERO,
            entropy,
        };
        core.open_listeners(endpoint, &config);
        core.open_pools(&config, &worker);
        core.reset_feedback(endpoint, Time::ZERO);
        core
    }

    /// Starts the processing of an input.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
        self.plane.keying.now = now;
        self.current_query = None;
        self.publish_call_count();
    }

    /// Publishes our number of calls to the other workers.
    pub(crate) fn publish_call_count(&self) {
        if let Some(siblings) = &self.siblings {
            siblings.publish_calls(self.calls.len());
        }
    }

    /// Number of calls of all workers.
    pub(crate) fn total_calls(&self) -> usize {
        self.siblings
            .as_ref()
            .map_or(self.calls.len(), |siblings| siblings.total_calls())
    }

    /// A new call number, unique among all workers.
    pub(crate) fn next_number(&mut self, endpoint: &Endpoint) -> u64 {
        let worker = endpoint.worker();
        let number = self.call_sequence * u64::from(worker.count) + u64::from(worker.number) + 1;
        self.call_sequence += 1;
        number
    }

    /// Opens the port pools of a configuration. Existing pools are kept with the ports that calls hold.
    pub(crate) fn open_pools(&mut self, config: &Config, worker: &Worker) {
        self.pools.clear();
        for range in &config.media_ranges {
            let (first, last) = range.part(worker);
            let known = self.plane.pools.iter().position(|pool| {
                (pool.ports.address(), pool.first, pool.last) == (range.address, first, last)
            });
            let index = match known {
                Some(index) => index,
                None => {
                    let entropy = self.entropy.fork();
                    match PortPool::new(range.address, first, last, entropy) {
                        Ok(ports) => {
                            self.plane.pools.push(MediaPool { first, last, ports });
                            self.plane.pools.len() - 1
                        }
                        // Checked configurations have at least one pair per range. An index beyond all pools refuses
                        // calls.
                        Err(_) => usize::from(u16::MAX),
                    }
                }
            };
            self.pools.push(u16::try_from(index).unwrap_or(u16::MAX));
        }
        self.plane.inactivity = config.media.timeout;
        self.plane.hold_inactivity = config.media.hold_timeout;
    }

    /// The media side of an interface towards a peer whose signalling address is `remote`.
    pub(crate) fn media_side(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        remote: IpAddr,
    ) -> Option<MediaSide> {
        let media = &self.config.interface(interface)?.media;
        let same = |at: &&config::MediaAddress| at.address.is_ipv4() == remote.is_ipv4();
        let address = media.iter().find(same).or(media.first())?;
        Some(MediaSide {
            pool: *self.pools.get(address.range)?,
            advertised: address.signalled(),
            latching: Latching::SameAddress(remote),
            dscp: self.config.media.dscp,
            hides: self.config.hiding(interface).is_some(),
            transcoding: self
                .config
                .transcoding(interface, trunk)
                .filter(|transcoding| !transcoding.codecs.is_empty())
                .cloned(),
            security: self
                .config
                .security(interface, trunk)
                .filter(|security| ***security != MediaSecurity::default())
                .cloned(),
        })
    }

    pub(crate) fn ports_exhausted(&mut self, pool: u16, now: Time) {
        self.counters.ports_exhausted += 1;
        let config = self.config.clone();
        let pools = &self.pools;
        self.events.tell(now, || {
            let interface = config.interfaces.iter().find(|interface| {
                interface
                    .media
                    .iter()
                    .any(|media| pools.get(media.range) == Some(&pool))
            });
            EventKind::MediaPortsExhausted {
                interface: interface.map_or_else(String::new, |interface| interface.name.clone()),
            }
        });
    }

    /// The key of the call in a slot.
    pub(crate) fn key_of(&self, slot: usize) -> CallKey {
        CallKey::new(slot, self.calls.get(slot).map_or(0, |call| call.number))
    }

    /// The slot of a call, if the call still exists.
    pub(crate) fn slot_of(&self, key: CallKey) -> Option<usize> {
        let slot = key.slot()?;
        (self.calls.contains(slot) && self.key_of(slot) == key).then_some(slot)
    }

    pub(crate) fn slot_of_leg(&self, endpoint: &Endpoint, leg: LegId) -> Option<usize> {
        self.slot_of(CallKey(endpoint.user_of(leg)?))
    }

    /// A keyed hash of a Request-URI.
    pub(crate) fn mark_of(&self, uri: &[u8]) -> u64 {
        let mut hasher: SipHasher13 = self.hash_key.build_hasher();
        hasher.write(uri);
        hasher.finish()
    }

    /// Composes a Call-ID for a leg of the call. [`Core::call_of_id`] recognises it.
    pub(crate) fn call_id(&mut self, endpoint: &Endpoint, key: CallKey, out: &mut Vec<u8>) {
        let random = endpoint.with_worker_number(self.entropy.u64());
        let masked = key.0 ^ self.hash_of(&[random, 1]);
        let proof = self.hash_of(&[random, key.0, 2]);
        for part in [random, masked, proof] {
            out.extend_from_slice(&sip::hex_digits(part));
        }
    }

    /// The call of a Call-ID that we composed.
    pub(crate) fn call_of_id(&self, call_id: &[u8]) -> Option<CallKey> {
        let text = std::str::from_utf8(call_id)
            .ok()
            .filter(|id| id.len() == 48)?;
        let number = |range| u64::from_str_radix(text.get(range)?, 16).ok();
        let (random, masked, proof) = (number(0..16)?, number(16..32)?, number(32..48)?);
        let key = masked ^ self.hash_of(&[random, 1]);
        (self.hash_of(&[random, key, 2]) == proof).then_some(CallKey(key))
    }

    fn hash_of(&self, values: &[u64]) -> u64 {
        let mut hasher: SipHasher13 = self.hash_key.build_hasher();
        for value in values {
            hasher.write_u64(*value);
        }
        hasher.finish()
    }

    pub(crate) fn count_trunk_call(&mut self, trunk: Option<TrunkId>) {
        if let Some(trunk) = trunk {
            self.trunks.call_began(trunk);
        }
    }

    pub(crate) fn trunk_call_ended(&mut self, trunk: Option<TrunkId>) {
        if let Some(trunk) = trunk {
            self.trunks.call_ended(trunk);
        }
    }

    pub(crate) fn trunk_calls(&self) -> u64 {
        (0..self.config.trunks.len())
            .map(|index| u64::from(self.trunks.calls(TrunkId(index as u16))))
            .sum()
    }

    /// Updates the state of a trunk from the failure of a hop.
    pub(crate) fn record_hop_result(
        &mut self,
        slot: usize,
        hop: u16,
        why: Failure,
        status: u16,
        heard: bool,
        now: Time,
    ) {
        let Some((trunk, target)) = self
            .calls
            .get(slot)
            .and_then(|call| call.set_up.as_deref())
            .and_then(|set_up| set_up.hops.get(usize::from(hop)))
            .and_then(|hop| Some((hop.trunk?, hop.target)))
        else {
            return;
        };
        let result = match why {
            Failure::TimedOut | Failure::Transport if !heard => PingResult::TimedOut,
            Failure::Response if status == 503 => PingResult::Response(503),
            _ => return,
        };
        if let Some(note) = self.trunks.call_failed(trunk, target, result) {
            self.events.tell(now, || note);
        }
    }

    /// Whether a side is trusted with asserted identities (RFC 3325).
    pub(crate) fn trusts_side(&self, call: &Call, side: Side) -> bool {
        self.config
            .trusts(*call.interfaces.get(side), *call.trunks.get(side))
    }

    /// Whether digest credentials in requests of this side are consumed by us.
    pub(crate) fn consumes_credentials(&self, call: &Call, side: Side) -> bool {
        call.trunks.get(side).is_none()
            && self
                .config
                .interface(*call.interfaces.get(side))
                .is_some_and(|interface| interface.authenticate == config::Authenticate::Digest)
    }

    /// Our host towards a side: the domain of the trunk, otherwise our address there.
    pub(crate) fn own_host(&self, call: &Call, side: Side, endpoint: &Endpoint) -> Vec<u8> {
        let domain = call
            .trunks
            .get(side)
            .and_then(|trunk| self.config.trunk(trunk))
            .and_then(|trunk| trunk.domain.as_ref());
        if let Some(domain) = domain {
            return domain.to_string().into_bytes();
        }
        call.leg(side)
            .and_then(|leg| endpoint.flow_of(leg))
            .map(|flow| self.advertised_host(flow.local))
            .unwrap_or_default()
    }

    /// Registrations, trunk states and transports as seen by policy.
    pub(crate) fn view(&self) -> RoutingSnapshot<'_> {
        RoutingSnapshot {
            trunks: &self.trunks,
            throttles: &self.throttles,
            now: self.now,
            location: &self.location,
            listeners: &self.listeners,
            config: &self.config,
        }
    }

    pub(crate) fn media_latched(&mut self, key: CallKey, side: u8, address: SocketAddr, now: Time) {
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get(slot)) else {
            return;
        };
        let number = call.number;
        let side = if side == 0 {
            Side::Caller
        } else {
            Side::Callee
        };
        self.events.tell(now, || EventKind::MediaLatched {
            call: number,
            side: side.name().to_owned(),
            address: address.to_string(),
        });
    }

    /// Logs the packets of a session that were relayed by the kernel, if any.
    pub(crate) fn media_passed(
        &mut self,
        key: CallKey,
        stats: &media::forward::SessionStats,
        now: Time,
    ) {
        for flow in &stats.flows {
            let [caller, callee] = &flow.sides;
            let reception = [caller, callee].map(reception_of);
            if stats.offload_allowed && caller.received.packets + callee.received.packets > 0 {
                self.events.tell(now, || EventKind::MediaRelayedInKernel {
                    call: key.number(),
                    line: flow.line.into(),
                    caller_packets: caller.received.packets,
                    caller_relayed: caller.offloaded.packets,
                    caller_lost: reception[0].0,
                    caller_jitter_us: reception[0].1,
                    callee_packets: callee.received.packets,
                    callee_relayed: callee.offloaded.packets,
                    callee_lost: reception[1].0,
                    callee_jitter_us: reception[1].1,
                });
            }
        }
    }

    /// The forwarder refused a session: the call is ended, because it would have no audio.
    pub(crate) fn media_refused(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        if let Some(slot) = self.slot_of(key) {
            let reason = b"SIP;cause=503;text=\"Media refused\"";
            self.give_up(endpoint, slot, "media refused", reason, now);
        }
    }

    /// A media socket is open: resumes the call that waited for it.
    pub(crate) fn media_opened(&mut self, endpoint: &mut Endpoint, socket: SocketId, now: Time) {
        let plane = &mut self.plane;
        let waiter = plane.sockets.opened(socket, now, &mut plane.work);
        if let Some(slot) = waiter.and_then(|key| self.slot_of(CallKey(key))) {
            self.resume_call(endpoint, slot, now);
        }
    }

    /// Sends the messages of a call that waited for its media sockets.
    fn resume_call(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let plane = &mut self.plane;
        if call
            .media
            .as_deref_mut()
            .is_none_or(|media| media.defer_until_open(plane))
        {
            return;
        }
        if call.participant.is_some() {
            return self.participant_sockets_opened(endpoint, slot, now);
        }
        if let Some(held) = call.held.take() {
            self.pass_held(endpoint, slot, &held, now);
        }
        self.call_opened_hops(endpoint, slot, now);
    }

    /// A media socket could not be opened: the call uses another port pair, or is ended.
    fn media_failed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        (socket, address): (SocketId, Option<SocketAddr>),
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let plane = &mut self.plane;
        let replaced = call
            .media
            .as_deref_mut()
            .map_or(PortReplacement::Foreign, |media| {
                media.replace_pair(plane, socket)
            });
        match replaced {
            PortReplacement::Foreign => {}
            PortReplacement::By(instead) => {
                self.counters.ports_taken += 1;
                self.events.tell(now, || EventKind::MediaPortInUse {
                    call: number,
                    address: address.map_or_else(String::new, |address| address.to_string()),
                    replacement: instead.to_string(),
                });
                self.resume_call(endpoint, slot, now);
            }
            PortReplacement::WithoutRtcp => {}
            PortReplacement::Exhausted | PortReplacement::Announced => {
                let reason = b"SIP;cause=503;text=\"Media port\"";
                self.give_up(endpoint, slot, "media port", reason, now);
            }
        }
    }

    /// A socket could not be opened: a call that waits for it uses another one, or is ended.
    pub(crate) fn open_failed(
        &mut self,
        endpoint: &mut Endpoint,
        socket: SocketId,
        error: &str,
        now: Time,
    ) {
        let (address, waiter) = match socket.0 >= MEDIA_BASE {
            true => self.plane.sockets.failed(socket).unzip(),
            false => {
                let mut locals = self.listeners.iter();
                let point = locals.find(|point| point.socket == socket);
                (point.map(|point| point.address), None)
            }
        };
        self.events.tell(now, || EventKind::SocketFailed {
            purpose: if socket.0 >= MEDIA_BASE {
                "media"
            } else {
                "sip"
            }
            .to_owned(),
            address: address.map_or_else(String::new, |address| address.to_string()),
            error: error.to_owned(),
        });
        if socket.0 < MEDIA_BASE {
            return;
        }
        let waiting = waiter.flatten().and_then(|key| self.slot_of(CallKey(key)));
        let user = waiting.or_else(|| {
            let mut calls = self.calls.iter();
            let uses = |call: &Call| call.media.as_ref().is_some_and(|media| media.uses(socket));
            calls.find(|(_, call)| uses(call)).map(|(slot, _)| slot)
        });
        if let Some(slot) = user {
            self.media_failed(endpoint, slot, (socket, address), now);
        }
    }

    /// Ends the dialog of a 2xx that belongs to no call any more.
    pub(crate) fn end_stray_dialog(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let _ = endpoint.ack(leg, &MessageContent::default(), now);
        let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
    }

    /// The session timer of a leg expired.
    pub(crate) fn session_expired(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        if let Some(slot) = self.slot_of_leg(endpoint, leg) {
            let reason = b"SIP;cause=408;text=\"Session expired\"";
            self.end_call(
                endpoint,
                slot,
                "border",
                "session expired",
                Some(reason),
                now,
            );
        }
    }

    /// Processes timers that are due.
    pub(crate) fn process_timers(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(alarm) = self.timers.pop_due(now) {
            match alarm {
                Alarm::RingTimeout(key) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.ring_timed_out(endpoint, slot, now);
                    }
                }
                Alarm::AnswerTimeout(key, leg) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.answer_timed_out(endpoint, slot, leg, now);
                    }
                }
                Alarm::TransferRetry(key) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.retry_transfer(endpoint, slot, now);
                    }
                }
                Alarm::ReinviteTimeout(key, sent) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.reinvite_timed_out(endpoint, slot, sent, now);
                    }
                }
                Alarm::DrainTimeout => self.expire_drain(endpoint, now),
                Alarm::Subscription(key) => self.end_subscription(endpoint, key),
                Alarm::KeepAlive(serial) => self.keep_alive(endpoint, serial, now),
                Alarm::CloseListener(local, used) => {
                    self.close_listener(endpoint, local, used, now)
                }
                Alarm::Keying(key) => self.handle_keying_timeout(key),
                Alarm::NodeQuery(key) => self.query_node_about_call(key, now),
                Alarm::FailoverRetry(key) => self.requeue_failover(key),
                Alarm::PinTimeout(key) => self.pin_timeout(endpoint, key, now),
                Alarm::ConferenceQueryStep(number) => {
                    self.query_next_participants(endpoint, number, now)
                }
                Alarm::TransferPoll(number, call) => {
                    self.poll_transfer(endpoint, number, call, now);
                }
                Alarm::OverloadCheck => self.check_overload_end(now),
                Alarm::SheddingUpdate => self.update_shedding(endpoint, now),
            }
        }
        self.plane.close_idle(now);
        self.handle_node_timeouts(endpoint, now);
        self.dns_timeout(now);
        self.ping_trunks(endpoint, now);
        self.register_at_carriers(endpoint, now);
        self.expire_registrations(now);
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let timers = self.timers.next_at().map(|at| Deadline::new(at, "calls"));
        let ports = self.plane.next_deadline();
        let trunks = self.trunks.next_deadline();
        let location = self.location.next_deadline();
        let carriers = self.carriers.next_deadline();
        let names = self.resolver.next_deadline();
        let nodes = self.media_nodes.next_deadline();
        [trunks, location, carriers, names, nodes, ports]
            .into_iter()
            .fold(timers, Deadline::earlier)
    }

    /// Closes unused media sockets outside of the configured ranges.
    pub(crate) fn close_unused_media_sockets(&mut self) {
        let config = self.config.clone();
        let wanted = |address: SocketAddr| {
            config.media_ranges.iter().any(|range| {
                range.address == address.ip()
                    && (range.first..=range.last).contains(&address.port())
            })
        };
        let mut work: VecDeque<SocketWork> = VecDeque::new();
        self.plane.sockets.close_outside_ranges(wanted, &mut work);
        self.plane.work.append(&mut work);
    }
}

/// The state of the border as seen by policy.
#[derive(Debug)]
pub(crate) struct RoutingSnapshot<'a> {
    trunks: &'a Trunks,
    throttles: &'a Throttles,
    now: Time,
    location: &'a Registry,
    listeners: &'a [BorderListener],
    config: &'a Config,
}

impl RoutingState for RoutingSnapshot<'_> {
    fn target_up(&self, trunk: TrunkId, target: usize) -> bool {
        self.trunks.target_up(trunk, target)
    }

    fn trunk_takes(&self, trunk: TrunkId, random: u64) -> bool {
        self.throttles.admits(trunk, random, self.now)
    }

    fn trunk_calls(&self, trunk: TrunkId) -> u32 {
        self.trunks.calls(trunk)
    }

    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        // A contact belongs to the listener of its flow, even if a reload changed that listener.
        let placed = |mut contact: Contact| {
            let point = self
                .listeners
                .iter()
                .find(|point| point.local == contact.flow.local)?;
            contact.interface = point.interface?;
            let interface = self.config.interface(contact.interface)?;
            if interface.contacts_by_address {
                contact.lead_to_address();
            }
            Some(contact)
        };
        let contacts = self.location.contacts(user, token).into_iter();
        contacts.filter_map(placed).collect()
    }
}

/// Our host and the host of the target at one hop.
#[derive(Debug)]
pub(crate) struct HopHosts {
    /// Host of From.
    pub(crate) from_host: Vec<u8>,
    to_host: Vec<u8>,
    /// Whether the target also accepts TCP at the same address and port.
    pub(crate) takes_tcp: bool,
}

impl HopHosts {
    pub(crate) fn new(core: &Core, hop: &HopStep, trunk: Option<&Trunk>, flow: Flow) -> HopHosts {
        let own = core.advertised_host(flow.local);
        let domain = trunk
            .and_then(|trunk| trunk.domain.as_ref())
            .map(|domain| domain.to_string().into_bytes());
        let to_host = match (trunk, &domain) {
            (_, Some(domain)) => domain.clone(),
            (Some(_), None) => Uri::parse(&hop.uri)
                .map(|uri| uri.raw_host_port().to_vec())
                .unwrap_or_default(),
            // The address of record of a registered user is in our domain.
            (None, None) => own.clone(),
        };
        let takes_tcp = flow.transport == Transport::Udp
            && trunk.is_some_and(|trunk| {
                trunk.targets.iter().any(|target| {
                    target.transport == Some(Transport::Tcp)
                        && target.address(Transport::Tcp) == Some(flow.remote)
                })
            });
        HopHosts {
            from_host: domain.unwrap_or(own),
            to_host,
            takes_tcp,
        }
    }

    /// The host for From; `None`: unchanged (anonymous callers, RFC 3323 section 4.1).
    pub(crate) fn caller_host(&self, caller: &NameAddr<'_>) -> Option<&[u8]> {
        let anonymous = caller.parse_uri().is_some_and(
            |uri| matches!(uri.host, Host::Name(name) if name.to_ascii_lowercase().ends_with(b".invalid")),
        );
        (!anonymous).then_some(self.from_host.as_slice())
    }

    /// Appends To.
    pub(crate) fn to(&self, called: &NameAddr<'_>, out: &mut Vec<u8>) {
        crate::call::headers::address_with_host(called, Some(&self.to_host), out);
    }
}

/// Appends the P-Asserted-Identity values of a message, with `host` in them.
pub(crate) fn identities(message: &Message<'_>, host: &[u8], out: &mut Vec<u8>) {
    for identity in message.name_addrs(HeaderId::PAssertedIdentity).flatten() {
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        crate::call::headers::address_with_host(&identity, Some(host), out);
    }
}

/// Packets lost by the sources of a side, and the mean jitter of its main source in microseconds.
fn reception_of(side: &media::forward::SideStats) -> (u64, u64) {
    let lost = side
        .sources
        .iter()
        .map(|source| source.summary.lost_unique)
        .sum();
    let main = side
        .sources
        .iter()
        .max_by_key(|source| source.summary.received);
    let jitter = main.and_then(|main| main.summary.jitter_ms.as_ref());
    (
        lost,
        jitter.map_or(0, |jitter| (jitter.mean * 1_000.0) as u64),
    )
}
