//! Everything of the border but the endpoint.

use super::keep::KeptFlow;
use super::locals::LocalPoint;
use super::outside::Asked;
use super::resolve::Names;
use super::sockets::{MEDIA_BASE, SocketWork};
use super::subscriptions::Subscription;
use super::{Counters, Events};
use crate::admission::{Admitted, MediaCarrier};
use crate::anchor::{MediaPlane, MediaPool, MediaSide, Replaced};
use crate::call::challenged::Challenged;
use crate::call::figures::Ended;
use crate::call::offered::Origin;
use crate::call::{Call, CallKey, Side, Step};
use crate::carrier::Carriers;
use crate::config::{Config, InterfaceId, MediaSecurity, Trunk, TrunkId};
use crate::crew::{Crew, Share};
use crate::feedback::Throttles;
use crate::gate::Gate;
use crate::nodes::Nodes;
use crate::operate::Draining;
use crate::overload::Overload;
use crate::policy::{Contact, View};
use crate::registrar::{Admission, Authority, Registry};
use crate::rules::Said;
use crate::trunks::{PingResult, Trunks};
use engine::timers::Wheel;
use engine::{
    BoundedMap, ConnectionId, Deadline, Drops, Entropy, HashKey, Held, Note, SocketId, Time,
    Transport, Worker,
};
use media::Latching;
use media::ports::PortPool;
use sip::{
    Content, Endpoint, EndpointConfig, Failure, Flow, LegId, LocalId, Moves, SessionConfig,
    TimerConfig, TransactionId,
};
use siphasher::sip::SipHasher13;
use slab::Slab;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::sip::{HeaderId, Host, Message, NameAddr, Uri};

/// Media sockets open at a time: below the limit of descriptors that systems grant.
pub(crate) const MEDIA_SOCKETS: usize = 16_000;

/// TLS connections from addresses that are not welcome, whose peers have not shown their certificates yet.
const TO_PROVE: usize = 1_024;

/// What a timer of the border's is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A call rang for too long.
    RingTimeout(CallKey),
    /// A target has not said anything.
    AnswerTimeout(CallKey, LegId),
    /// Glare is waited out.
    JoinAgain(CallKey),
    /// A re-INVITE by which legs are brought together was to be answered by now.
    JoinLate(CallKey, TransactionId),
    /// The time for draining is over.
    DrainOver,
    /// A listening point that the configuration no longer has may be closed; whether calls used it when last looked.
    ShutLocal(LocalId, bool),
    /// Whether an overload is over is to be looked at.
    Calm,
    /// How much of an overload is to be read at all is to be looked at.
    Sift,
    /// A subscription's time is over.
    Subscription(u64),
    /// A flow of ours is to be kept alive.
    KeepAlive(u32),
    /// Keying in a call's media path wants to be told the time.
    Keying(CallKey),
    /// Whether a media node still knows a call is to be asked.
    NodeLook(CallKey),
    /// A call whose media node has failed is to be looked after again.
    NodeFailed(CallKey),
    /// A caller has not given a conference's PIN.
    PinLate(CallKey),
    /// A question about a conference goes on with its next seats.
    RoomLook(u64),
    /// What became of a transfer for which another worker has the far end of this call is to be looked at.
    TransferLook(u64, CallKey),
}

/// Buffers that messages are written in, kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) sdp: Vec<u8>,
}

/// A DNS query to be sent.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) socket: SocketId,
    pub(crate) server: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The border's state.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Arc<Config>,
    pub(crate) calls: Slab<Call>,
    pub(crate) numbers: u64,
    pub(crate) plane: MediaPlane,
    /// The pool of each of the configuration's ranges.
    pub(crate) pools: Vec<u16>,
    pub(crate) timers: Wheel<Alarm>,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    pub(crate) drops: Drops,
    pub(crate) buffers: Buffers,
    pub(crate) entropy: Entropy,
    pub(crate) marks: HashKey,
    pub(crate) locals: Vec<LocalPoint>,
    pub(crate) next_socket: u32,
    pub(crate) unwelcome: VecDeque<ConnectionId>,
    pub(crate) trunks: Trunks,
    pub(crate) authority: Held<Authority>,
    pub(crate) location: Registry,
    /// Lets those in who come to register, and apart from them those who come with proof.
    pub(crate) registering: Held<Admission>,
    pub(crate) proving: Held<Admission>,
    /// Rates of interfaces, trunks and sources.
    pub(crate) gate: Held<Gate>,
    /// Where the request that is being dealt with came from, and its user: found when it was greeted.
    pub(crate) authorized: Option<(Origin, Option<Box<str>>)>,
    /// What the calls that stand take of the machine.
    pub(crate) admitted: Admitted,
    /// What trunks have told of how much they can take, and whether any is asked.
    pub(crate) throttles: Throttles,
    pub(crate) asks_trunks: bool,
    /// How long messages wait before their turn.
    pub(crate) overload: Overload,
    pub(crate) carriers: Carriers,
    pub(crate) asked: Slab<Asked>,
    pub(crate) asked_serial: u32,
    pub(crate) subscriptions: Slab<Subscription>,
    pub(crate) kept: Vec<KeptFlow>,
    /// Call-IDs of calls that were challenged.
    pub(crate) challenged: Challenged,
    pub(crate) draining: Option<Draining>,
    pub(crate) located_peers: Held<BoundedMap<IpAddr, ()>>,
    /// What peers on connections that they opened have proven by their certificates.
    pub(crate) proven: Held<crate::crew::Proven>,
    /// TLS connections of which only the certificate can say whether they are welcome.
    pub(crate) to_prove: BoundedMap<ConnectionId, (SocketId, SocketAddr)>,
    /// The other workers, where there are some.
    pub(crate) crew: Option<Crew>,
    pub(crate) names: Names,
    pub(crate) queries: VecDeque<Query>,
    pub(crate) question: Option<Query>,
    /// What header rules said while the message was being passed on.
    pub(crate) said: RefCell<Vec<Said>>,
    /// Conferences with their participants.
    pub(crate) conferences: crate::call::room::Conferences,
    /// What is asked of them from outside.
    pub(crate) questions: crate::call::room::questions::Questions,
    /// Media nodes that relay calls' media.
    pub(crate) nodes: Nodes,
    /// What has waited for a node's word in calls that have ended.
    pub(crate) flushing: VecDeque<crate::nodes::relay::Waiting>,
    /// What is dispatched has waited for its node.
    pub(crate) resuming: bool,
    /// Calls that have ended and whose figures are awaited, by their numbers.
    pub(crate) ended: BTreeMap<u64, Box<Ended>>,
    /// What carries media that is anchored here.
    pub(crate) media_carrier: MediaCarrier,
    pub(crate) last_stats: Option<(u64, Box<media::forward::SessionStats>)>,
    pub(crate) now: Time,
}

/// Methods that the border takes.
pub(crate) const ALLOW: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, SUBSCRIBE, NOTIFY, MESSAGE, REGISTER, PUBLISH";

/// What the endpoint is told by a configuration.
pub(crate) fn endpoint_config(
    config: &Config,
    worker: Worker,
    moves: Option<Moves>,
) -> EndpointConfig {
    EndpointConfig {
        user_agent: config.sip.agent.clone(),
        allow: String::from(ALLOW),
        // Beyond its own, the border passes what both ends agree upon between themselves.
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
            min_se: seconds(config.session_timer.min).max(90),
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
        moves,
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
        share: Share,
        endpoint: &mut Endpoint,
        mut entropy: Entropy,
    ) -> Core {
        let worker = share.worker;
        let sockets = worker.share(MEDIA_SOCKETS);
        let plane = MediaPlane::new(sockets, share.sockets, entropy.fork());
        let ours = worker.number == 0;
        let carriers = Carriers::new(&config, ours, share.carriers, Time::ZERO);
        let names = Names::new(&config, share.names);
        let nodes = Nodes::new(&config, worker, entropy.fork());
        let mut core = Core {
            config: config.clone(),
            calls: Slab::new(),
            numbers: 0,
            plane,
            pools: Vec::new(),
            timers: Wheel::new(),
            events: Events {
                wanted: true,
                queue: VecDeque::new(),
            },
            counters: Counters::default(),
            drops: Drops::new(),
            buffers: Buffers::default(),
            marks: share.marks,
            locals: Vec::new(),
            next_socket: 0,
            unwelcome: VecDeque::new(),
            trunks: share.trunks,
            authority: share.authority,
            location: share.location,
            registering: share.registering,
            proving: share.proving,
            gate: share.gate,
            authorized: None,
            admitted: Admitted::default(),
            throttles: Throttles::default(),
            asks_trunks: false,
            overload: Overload::new(share.rows, share.worker.of),
            carriers,
            asked: Slab::new(),
            asked_serial: 0,
            subscriptions: Slab::new(),
            kept: Vec::new(),
            challenged: Challenged::new(share.marks),
            draining: None,
            located_peers: share.located_peers,
            proven: share.proven,
            to_prove: BoundedMap::new(TO_PROVE, share.marks),
            crew: share.crew,
            names,
            queries: VecDeque::new(),
            question: None,
            said: RefCell::default(),
            conferences: crate::call::room::Conferences::new(share.conferences),
            questions: Default::default(),
            nodes,
            flushing: VecDeque::new(),
            resuming: false,
            ended: BTreeMap::new(),
            media_carrier: MediaCarrier::default(),
            last_stats: None,
            now: Time::ZERO,
            entropy,
        };
        core.open_locals(endpoint, &config);
        core.open_pools(&config, &worker);
        core.begin_feedback(endpoint, Time::ZERO);
        core
    }

    /// An input comes.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
        self.plane.keyer.now = now;
        self.question = None;
        self.tell_crew();
    }

    /// Tells the other workers how many calls we have.
    pub(crate) fn tell_crew(&self) {
        if let Some(crew) = &self.crew {
            crew.tell(self.calls.len());
        }
    }

    /// Calls of all workers.
    pub(crate) fn calls_of_all(&self) -> usize {
        self.crew
            .as_ref()
            .map_or(self.calls.len(), |crew| crew.calls())
    }

    /// A number for a call; no other worker's call has it.
    pub(crate) fn next_number(&mut self, endpoint: &Endpoint) -> u64 {
        let worker = endpoint.worker();
        let number = self.numbers * u64::from(worker.of) + u64::from(worker.number) + 1;
        self.numbers += 1;
        number
    }

    /// The pools of a configuration: those that are there stay as they are, with the ports that calls hold.
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
                        // The configuration was checked: a range has a pair. An index beyond all pools refuses calls.
                        Err(_) => usize::from(u16::MAX),
                    }
                }
            };
            self.pools.push(u16::try_from(index).unwrap_or(u16::MAX));
        }
        self.plane.inactivity = config.media.timeout;
        self.plane.hold_inactivity = config.media.hold_timeout;
    }

    /// How media goes through an interface towards a peer whose signalling is at `remote`.
    pub(crate) fn media_side(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        remote: IpAddr,
    ) -> Option<MediaSide> {
        let media = &self.config.interface(interface)?.media;
        let same = |at: &&crate::config::MediaAddress| at.address.is_ipv4() == remote.is_ipv4();
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
            Note::MediaPortsExhausted {
                interface: interface.map_or_else(String::new, |interface| interface.name.clone()),
            }
        });
    }

    /// The key of the call in a slot.
    pub(crate) fn key_of(&self, slot: usize) -> CallKey {
        CallKey::new(slot, self.calls.get(slot).map_or(0, |call| call.number))
    }

    /// The slot of a key, where that call is still there.
    pub(crate) fn slot_of(&self, key: CallKey) -> Option<usize> {
        let slot = key.slot()?;
        (self.calls.contains(slot) && self.key_of(slot) == key).then_some(slot)
    }

    pub(crate) fn slot_of_leg(&self, endpoint: &Endpoint, leg: LegId) -> Option<usize> {
        self.slot_of(CallKey(endpoint.user_of(leg)?))
    }

    /// A keyed hash of a Request-URI.
    pub(crate) fn mark_of(&self, uri: &[u8]) -> u64 {
        let mut hasher: SipHasher13 = self.marks.build_hasher();
        hasher.write(uri);
        hasher.finish()
    }

    /// A Call-ID for a leg of the call: whoever sends it back to us is recognised.
    pub(crate) fn call_id(&mut self, endpoint: &Endpoint, key: CallKey, out: &mut Vec<u8>) {
        let random = endpoint.owned(self.entropy.u64());
        let masked = key.0 ^ self.hash_of(&[random, 1]);
        let proof = self.hash_of(&[random, key.0, 2]);
        for part in [random, masked, proof] {
            out.extend_from_slice(&sip::hex_digits(part));
        }
    }

    /// The call to which a Call-ID of ours belongs.
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
        let mut hasher: SipHasher13 = self.marks.build_hasher();
        for value in values {
            hasher.write_u64(*value);
        }
        hasher.finish()
    }

    pub(crate) fn trunk_call_began(&mut self, trunk: Option<TrunkId>) {
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

    /// What a failed hop says of its trunk.
    pub(crate) fn hop_ended(
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
    pub(crate) fn believes(&self, call: &Call, side: Side) -> bool {
        self.config
            .trusts(*call.interfaces.get(side), *call.trunks.get(side))
    }

    /// Whether digest credentials in requests of this side are for us.
    pub(crate) fn consumes_credentials(&self, call: &Call, side: Side) -> bool {
        call.trunks.get(side).is_none()
            && self
                .config
                .interface(*call.interfaces.get(side))
                .is_some_and(|interface| {
                    interface.authenticate == crate::config::Authenticate::Digest
                })
    }

    /// The name under which we write ourselves towards a side: the trunk's domain, else our address there.
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

    /// The registration store, trunk states and transports as policy looks at them.
    pub(crate) fn view(&self) -> World<'_> {
        World {
            trunks: &self.trunks,
            throttles: &self.throttles,
            now: self.now,
            location: &self.location,
            locals: &self.locals,
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
        self.events.tell(now, || Note::MediaLatched {
            call: number,
            side: side.name().to_owned(),
            address: address.to_string(),
        });
    }

    /// Tells what of a session the kernel relayed, where it can.
    pub(crate) fn media_passed(
        &mut self,
        key: CallKey,
        stats: &media::forward::SessionStats,
        now: Time,
    ) {
        for flow in &stats.flows {
            let [caller, callee] = &flow.sides;
            let heard = [caller, callee].map(heard);
            if stats.shortcuts && caller.received.packets + callee.received.packets > 0 {
                self.events.tell(now, || Note::MediaPassed {
                    call: key.number(),
                    line: flow.line.into(),
                    caller: caller.received.packets,
                    caller_passed: caller.passed.packets,
                    caller_lost: heard[0].0,
                    caller_jitter: heard[0].1,
                    callee: callee.received.packets,
                    callee_passed: callee.passed.packets,
                    callee_lost: heard[1].0,
                    callee_jitter: heard[1].1,
                });
            }
        }
    }

    /// The forwarder could not take a session: the call would be silent.
    pub(crate) fn media_refused(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        if let Some(slot) = self.slot_of(key) {
            let reason = b"SIP;cause=503;text=\"Media refused\"";
            self.give_up(endpoint, slot, "media refused", reason, now);
        }
    }

    /// A media socket is open: the call that waited for it may go on.
    pub(crate) fn media_opened(&mut self, endpoint: &mut Endpoint, socket: SocketId, now: Time) {
        let plane = &mut self.plane;
        let waiter = plane.sockets.opened(socket, now, &mut plane.work);
        if let Some(slot) = waiter.and_then(|key| self.slot_of(CallKey(key))) {
            self.go_on(endpoint, slot, now);
        }
    }

    /// Goes on with what a call could not send before its media sockets were open.
    fn go_on(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let plane = &mut self.plane;
        if call
            .media
            .as_deref_mut()
            .is_none_or(|media| media.hold_back(plane))
        {
            return;
        }
        if call.seat.is_some() {
            return self.seat_opened(endpoint, slot, now);
        }
        if let Some(held) = call.held.take() {
            self.pass_held(endpoint, slot, &held, now);
        }
        self.call_opened_hops(endpoint, slot, now);
    }

    /// A media socket could not be opened: its call takes another pair, or ends.
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
            .map_or(Replaced::Foreign, |media| media.replace(plane, socket));
        match replaced {
            Replaced::Foreign => {}
            Replaced::By(instead) => {
                self.counters.ports_taken += 1;
                self.events.tell(now, || Note::MediaPortTaken {
                    call: number,
                    address: address.map_or_else(String::new, |address| address.to_string()),
                    instead: instead.to_string(),
                });
                self.go_on(endpoint, slot, now);
            }
            Replaced::Without => {}
            Replaced::Exhausted | Replaced::Told => {
                let reason = b"SIP;cause=503;text=\"Media port\"";
                self.give_up(endpoint, slot, "media port", reason, now);
            }
        }
    }

    /// A socket could not be opened: a call that was to use it takes others, or ends.
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
                let mut locals = self.locals.iter();
                let point = locals.find(|point| point.socket == socket);
                (point.map(|point| point.address), None)
            }
        };
        self.events.tell(now, || Note::SocketFailed {
            what: if socket.0 >= MEDIA_BASE {
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

    /// An INVITE of ours was answered that belongs to nothing any more.
    pub(crate) fn stray_answer(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let _ = endpoint.ack(leg, &Content::default(), now);
        let _ = endpoint.hang_up(leg, &Content::default(), now);
    }

    /// The session of a leg ran out.
    pub(crate) fn session_expired(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        if let Some(slot) = self.slot_of_leg(endpoint, leg) {
            let reason = b"SIP;cause=408;text=\"Session expired\"";
            self.end_call(endpoint, slot, "us", "session expired", Some(reason), now);
        }
    }

    /// What is due by time.
    pub(crate) fn alarms(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(alarm) = self.timers.pop_due(now) {
            match alarm {
                Alarm::RingTimeout(key) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.rang_too_long(endpoint, slot, now);
                    }
                }
                Alarm::AnswerTimeout(key, leg) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.said_nothing(endpoint, slot, leg, now);
                    }
                }
                Alarm::JoinAgain(key) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.join_alarm(endpoint, slot, now);
                    }
                }
                Alarm::JoinLate(key, sent) => {
                    if let Some(slot) = self.slot_of(key) {
                        self.join_late(endpoint, slot, sent, now);
                    }
                }
                Alarm::DrainOver => self.drain_over(endpoint, now),
                Alarm::Subscription(key) => self.end_subscription(endpoint, key),
                Alarm::KeepAlive(serial) => self.keep_alive(endpoint, serial, now),
                Alarm::ShutLocal(local, used) => self.shut_local(endpoint, local, used, now),
                Alarm::Keying(key) => self.keying_due(key),
                Alarm::NodeLook(key) => self.node_look(key, now),
                Alarm::NodeFailed(key) => self.node_failed_again(key),
                Alarm::PinLate(key) => self.pin_late(endpoint, key, now),
                Alarm::RoomLook(number) => self.look_at_seats(endpoint, number, now),
                Alarm::TransferLook(number, call) => {
                    self.look_at_transfer(endpoint, number, call, now);
                }
                Alarm::Calm => self.calm(now),
                Alarm::Sift => self.sift(endpoint, now),
            }
        }
        self.plane.close_idle(now);
        self.nodes_due(endpoint, now);
        self.names_timeout(now);
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
        let names = self.names.next_deadline();
        let nodes = self.nodes.next_deadline();
        [trunks, location, carriers, names, nodes, ports]
            .into_iter()
            .fold(timers, Deadline::earlier)
    }

    /// Sockets that are no longer used by anybody and belong to no range of the configuration.
    pub(crate) fn shut_old_media(&mut self) {
        let config = self.config.clone();
        let wanted = |address: SocketAddr| {
            config.media_ranges.iter().any(|range| {
                range.address == address.ip()
                    && (range.first..=range.last).contains(&address.port())
            })
        };
        let mut work: VecDeque<SocketWork> = VecDeque::new();
        self.plane.sockets.shut_unwanted(wanted, &mut work);
        self.plane.work.append(&mut work);
    }
}

/// The state of the world for policy.
#[derive(Debug)]
pub(crate) struct World<'a> {
    trunks: &'a Trunks,
    throttles: &'a Throttles,
    now: Time,
    location: &'a Registry,
    locals: &'a [LocalPoint],
    config: &'a Config,
}

impl View for World<'_> {
    fn target_up(&self, trunk: TrunkId, target: usize) -> bool {
        self.trunks.target_up(trunk, target)
    }

    fn trunk_takes(&self, trunk: TrunkId, random: u64) -> bool {
        self.throttles.takes(trunk, random, self.now)
    }

    fn trunk_calls(&self, trunk: TrunkId) -> u32 {
        self.trunks.calls(trunk)
    }

    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        // A contact is behind the listening point of its flow, whatever became of that in a reload.
        let placed = |mut contact: Contact| {
            let point = self
                .locals
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

/// How we write ourselves and the target at one hop.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Host of From.
    pub(crate) from_host: Vec<u8>,
    to_host: Vec<u8>,
    /// The target takes TCP, too, at the same address and port.
    pub(crate) takes_tcp: bool,
}

impl Placed {
    pub(crate) fn new(core: &Core, hop: &Step, trunk: Option<&Trunk>, flow: Flow) -> Placed {
        let own = core.advertised_host(flow.local);
        let domain = trunk
            .and_then(|trunk| trunk.domain.as_ref())
            .map(|domain| domain.to_string().into_bytes());
        let to_host = match (trunk, &domain) {
            (_, Some(domain)) => domain.clone(),
            (Some(_), None) => Uri::parse(&hop.uri)
                .map(|uri| uri.written_target().to_vec())
                .unwrap_or_default(),
            // A registered user's address of record is ours.
            (None, None) => own.clone(),
        };
        let takes_tcp = flow.transport == Transport::Udp
            && trunk.is_some_and(|trunk| {
                trunk.targets.iter().any(|target| {
                    target.transport == Some(Transport::Tcp)
                        && target.address(Transport::Tcp) == Some(flow.remote)
                })
            });
        Placed {
            from_host: domain.unwrap_or(own),
            to_host,
            takes_tcp,
        }
    }

    /// The host in the place of the caller's; `None`: it stays (anonymous callers, RFC 3323 section 4.1).
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

/// The P-Asserted-Identity values of a message with `host` as theirs.
pub(crate) fn identities(message: &Message<'_>, host: &[u8], out: &mut Vec<u8>) {
    for identity in message.name_addrs(HeaderId::PAssertedIdentity).flatten() {
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        crate::call::headers::address_with_host(&identity, Some(host), out);
    }
}

/// Packets that a side's sources lost, and the mean jitter of the one that sent most, in microseconds.
fn heard(side: &media::forward::SideStats) -> (u64, u64) {
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
