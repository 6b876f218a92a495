//! Transactions (RFC 3261 section 17, RFC 6026, RFC 4320): their records, and functions common to all four kinds.
//!
//! An ended transaction outlives its call by up to 32 s, so its record is small. State of running transactions only is
//! in a box that is released (and reused) when the transaction ends.

pub(crate) mod amplification;
pub(crate) mod client_invite;
pub(crate) mod client_other;
pub(crate) mod server_invite;
pub(crate) mod server_other;

use crate::Endpoint;
use crate::api::{EarlierRequest, Flow, Handler, LegId, Refused, ServerTransaction, TransactionId};
use crate::credentials::StoredLogin;
use crate::endpoint::branch_in;
use crate::mismatch::{RequestOwner, mismatch};
use crate::skeleton::Skeleton;
use crate::timer::Timer;
use crate::tokens::{IdToken, MAGIC};
use crate::transport::IdleTimers;
use core::hash::Hasher;
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Time, Transport};
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};
use wire::sip::{HeaderId, Message, Method, Via};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;
/// Boxes kept for reuse.
const SPARE: usize = 64;
/// Requests larger than this (bytes) are sent over TCP if the peer accepts it (RFC 3261 section 18.1.1).
const LARGE: usize = 1_300;

/// Owner of a client transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Owner {
    /// The INVITE that opens this leg.
    InitialInvite(LegId),
    /// A request within this leg's dialog.
    InDialog(LegId),
    /// A request outside of any dialog, with the handler's number.
    OutOfDialog(u64),
    /// A request of the endpoint itself; its result is not reported.
    Unowned,
}

/// States of a client transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ClientState {
    /// Calling (INVITE) or Trying.
    Calling,
    Proceeding,
    Completed,
    /// INVITE answered 2xx (RFC 6026 section 7.2).
    Accepted,
}

/// A sent request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) cookie: u64,
    pub(crate) owner: Owner,
    pub(crate) timer: Option<TimerKey>,
    pub(crate) cancel: u32,
    pub(crate) state: ClientState,
    #[serde(with = "crate::method_name")]
    pub(crate) method: Option<Method<'static>>,
    pub(crate) reliable: bool,
    /// It contained an offer.
    pub(crate) offer: bool,
    /// The early dialog in which it was sent.
    pub(crate) fork: u8,
    /// A session refresh by the endpoint (RFC 4028).
    pub(crate) refresh: bool,
    /// An accepted INVITE: the handler has sent ACK.
    pub(crate) acked: bool,
    /// An INVITE: its leg is pinned, so ACK is sent to the leg's destination, not to the address in the 2xx.
    pub(crate) pinned: bool,
    /// An accepted INVITE: fingerprint of the To tag of the first 2xx.
    pub(crate) first_2xx_tag: u64,
    pub(crate) active: Option<Box<ClientActive>>,
    pub(crate) accepted: Option<Box<Accepted>>,
}

/// State of a client transaction until its final response; afterwards the ACK of a failed INVITE.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClientActive {
    /// The request, or the ACK of a failed INVITE.
    pub(crate) bytes: Vec<u8>,
    pub(crate) flow: Flow,
    pub(crate) connection: u32,
    pub(crate) interval: Duration,
    pub(crate) next: Time,
    pub(crate) deadline: Time,
    pub(crate) login: Option<Box<StoredLogin>>,
    pub(crate) tries: u8,
    /// The UDP flow that was replaced by TCP because of the size.
    pub(crate) small: Option<Flow>,
    /// Whether a repetition that is too large for UDP is sent over TCP.
    pub(crate) tcp_when_large: bool,
    /// Whether it was sent again over a new connection.
    pub(crate) repeated: bool,
    /// Header lines of the CANCEL of a re-INVITE, which waits for the first provisional response.
    pub(crate) waiting_cancel: Option<Vec<u8>>,
}

/// State of an accepted INVITE beyond its record.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Accepted {
    /// Fingerprints of the To tags of other forks, to which BYE was sent.
    pub(crate) late: Vec<u64>,
    /// Authorization and Proxy-Authorization of the INVITE as header lines; the ACK has them too (RFC 3261 section
    /// 13.2.2.4).
    pub(crate) credentials: Vec<u8>,
    /// The ACK and its destination, if it has a body or headers that cannot be composed from the 2xx.
    pub(crate) ack: Option<(Vec<u8>, Flow)>,
}

/// States of a server transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ServerState {
    /// Nothing was sent.
    Trying,
    Proceeding,
    Completed,
    Confirmed,
    /// INVITE answered 2xx (RFC 6026 section 7.1).
    Accepted,
}

/// A received request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) key: u128,
    /// Fingerprint of the INVITE without its branch, for merged requests; 0 if it is in no table.
    pub(crate) merged: u128,
    pub(crate) check: u32,
    pub(crate) leg: Option<LegId>,
    pub(crate) timer: Option<TimerKey>,
    pub(crate) state: ServerState,
    #[serde(with = "crate::method_name")]
    pub(crate) method: Option<Method<'static>>,
    /// It contained an offer.
    pub(crate) offer: bool,
    /// Its Request-URI is a sips URI.
    pub(crate) sips: bool,
    /// Status of the final response to a request other than INVITE, if the response can be composed again from a
    /// retransmission; 0: no.
    pub(crate) plain: u16,
    /// That response, if it cannot, while retransmissions are expected.
    pub(crate) last: Option<Box<[u8]>>,
    pub(crate) active: Option<Box<ServerActive>>,
}

/// State of a server transaction until its final response (a refused INVITE: until ACK).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServerActive {
    pub(crate) skeleton: Skeleton,
    pub(crate) flow: Flow,
    /// The last response of an INVITE.
    pub(crate) last: Vec<u8>,
    pub(crate) interval: Duration,
    pub(crate) next: Time,
    pub(crate) deadline: Time,
    pub(crate) cseq: u32,
    /// Bytes that may still be sent over UDP to an untrusted source.
    pub(crate) bound: Option<usize>,
    /// Session timer headers of the request, see `session_timer`.
    pub(crate) session: Option<crate::session_state::SessionRequest>,
}

impl ServerActive {
    fn new(flow: Flow) -> ServerActive {
        ServerActive {
            skeleton: Skeleton::default(),
            flow,
            last: Vec::new(),
            interval: Duration::ZERO,
            next: Time::ZERO,
            deadline: Time::ZERO,
            cseq: 0,
            bound: None,
            session: None,
        }
    }
}

/// Key of the fingerprints that identify server transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FingerprintKey(pub(crate) u64, pub(crate) u64);

impl FingerprintKey {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }

    /// The transaction's fingerprint (RFC 3261 section 17.2.3): branch, sent-by and method; for clients of RFC 2543,
    /// without the magic cookie, Request-URI, tags, Call-ID, CSeq number and the whole Via. ACK and CANCEL are looked
    /// up as their INVITE.
    pub(crate) fn of(self, message: &Message<'_>, method: Method<'_>) -> Option<u128> {
        let via = message.via().ok()?;
        if let Some(fingerprint) = self.of_branch(&via, method) {
            return Some(fingerprint);
        }
        let mut hasher = self.hasher();
        let mut part = |bytes: &[u8]| {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        part(message.request_uri());
        part(message.from().ok()?.tag().unwrap_or_default());
        part(message.call_id().ok()?);
        part(&message.cseq().ok()?.number.to_be_bytes());
        part(via.raw);
        part(method.as_bytes());
        Some(hasher.finish128().as_u128())
    }

    /// The fingerprint of a request whose topmost Via has the magic cookie.
    pub(crate) fn of_branch(self, via: &Via<'_>, method: Method<'_>) -> Option<u128> {
        let branch = via.branch();
        let magic = branch.len() > MAGIC.len()
            && branch
                .get(..MAGIC.len())
                .is_some_and(|magic| magic.eq_ignore_ascii_case(MAGIC));
        if !magic {
            return None;
        }
        let mut hasher = self.hasher();
        let mut part = |bytes: &[u8]| {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        part(branch);
        match via.host {
            wire::sip::Host::V4(address) => part(&address.octets()),
            wire::sip::Host::V6(address) => part(&address.octets()),
            wire::sip::Host::Name(name) => part(&name.to_ascii_lowercase()),
        }
        part(&via.port.unwrap_or(0).to_be_bytes());
        part(method.as_bytes());
        Some(hasher.finish128().as_u128())
    }

    /// The fingerprint that merged requests share (RFC 3261 section 8.2.2.2): From tag, Call-ID, CSeq, and `uri`.
    pub(crate) fn merged(self, message: &Message<'_>, uri: &[u8]) -> Option<u128> {
        let mut hasher = self.hasher();
        let mut part = |bytes: &[u8]| {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        part(b"merged");
        part(message.from().ok()?.tag()?);
        part(message.call_id().ok()?);
        part(&message.cseq().ok()?.number.to_be_bytes());
        part(uri);
        Some(hasher.finish128().as_u128())
    }

    /// The fingerprint of a tag, for comparison.
    pub(crate) fn tag(self, tag: &[u8]) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(tag);
        hasher.finish128().h1
    }

    /// The tag of a stateless response: equal for every copy of the request (RFC 3261 section 8.2.7), and verifiable in
    /// its ACK, which has the same branch and Call-ID.
    pub(crate) fn stateless_tag(self, branch: &[u8], call_id: &[u8]) -> [u8; 16] {
        let mut hasher = self.hasher();
        hasher.write_usize(branch.len());
        hasher.write(branch);
        hasher.write(call_id);
        let text = hasher.finish128().as_u128() as u64;
        let mut tag = [0; 16];
        for (at, digit) in tag.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(text >> (4 * at) & 15) as usize];
        }
        tag
    }
}

/// Rounds `at` up to a multiple of 67 ms (2^26 ns). Timers D, I, J, K, L and M are minimum times, and under load
/// thousands of them expire in a second: rounded, they share one wakeup of the thread.
fn round_up(at: Time) -> Time {
    const SHIFT: u64 = 1 << 26;
    Time(at.0.saturating_add(SHIFT - 1) & !(SHIFT - 1))
}

impl Endpoint {
    /// Reports a response with this branch whose other fields are not those of the request.
    pub(crate) fn report_mismatch(
        &self,
        slot: u32,
        response: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        if !handler.compares_responses() {
            return;
        }
        let client = self.clients.get(slot as usize);
        // Afterwards the request is gone, and the response a repeated one.
        let client = client.filter(|client| {
            matches!(client.state, ClientState::Calling | ClientState::Proceeding)
        });
        let Some((client, active)) = client.and_then(|client| {
            let active = client.active.as_ref()?;
            Some((client, active))
        }) else {
            return;
        };
        let Some(field) = mismatch(&active.bytes, response) else {
            return;
        };
        let owner = match client.owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => {
                self.user_of(leg).map(RequestOwner::Leg)
            }
            Owner::OutOfDialog(number) => Some(RequestOwner::OutOfDialog(number)),
            Owner::Unowned => None,
        };
        handler.on_mismatch(owner.unwrap_or(RequestOwner::Endpoint), field);
    }

    pub(crate) fn t1(&self) -> Duration {
        self.config.timers.t1
    }

    /// 64*T1: the duration of Timers B, F, H, J, L and M.
    pub(crate) fn transaction_timeout(&self) -> Duration {
        self.config.timers.t1 * 64
    }

    /// Creates a record for a new client transaction, without its request.
    pub(crate) fn open_client(
        &mut self,
        owner: Owner,
        method: Method<'_>,
    ) -> Result<(u32, u64), Refused> {
        if self.clients.len() + self.servers.len() >= self.config.limits.transactions {
            return Err(Refused::Full);
        }
        let cookie = self.new_cookie();
        let slot = self.clients.insert(Client {
            cookie,
            owner,
            timer: None,
            cancel: NONE,
            state: ClientState::Calling,
            method: method.known(),
            reliable: false,
            offer: false,
            fork: 0,
            refresh: false,
            acked: false,
            pinned: false,
            first_2xx_tag: 0,
            active: None,
            accepted: None,
        }) as u32;
        Ok((slot, cookie))
    }

    pub(crate) fn client_id(&self, slot: u32) -> TransactionId {
        let cookie = self.clients.get(slot as usize).map_or(0, |c| c.cookie);
        TransactionId {
            slot,
            check: cookie as u32,
        }
    }

    pub(crate) fn is_invite(method: Option<Method<'_>>) -> bool {
        method == Some(Method::Invite)
    }

    /// Sends the request composed since `start` and starts its timers (A and B, or E and F). If sending fails, the slot
    /// is released.
    pub(crate) fn start_client(
        &mut self,
        slot: u32,
        start: usize,
        mut flow: Flow,
        tcp_when_large: bool,
    ) -> Result<(), Refused> {
        let now = self.now;
        let requested = flow;
        if tcp_when_large && flow.transport == Transport::Udp {
            self.move_to_tcp(start, &mut flow);
        }
        let sent = self.transmit(&flow, start);
        let connection = match sent {
            Ok(connection) => connection,
            Err(refused) => {
                self.close_client(slot);
                return Err(refused);
            }
        };
        let t1 = self.t1();
        let transaction_timeout = self.transaction_timeout();
        let mut active = self.spare_clients.pop().unwrap_or_else(|| {
            Box::new(ClientActive {
                bytes: Vec::new(),
                flow,
                connection: NONE,
                interval: t1,
                next: now,
                deadline: now,
                login: None,
                tries: 0,
                small: None,
                tcp_when_large,
                repeated: false,
                waiting_cancel: None,
            })
        });
        active.bytes.clear();
        active.bytes.extend_from_slice(self.net.out.composed(start));
        active.flow = flow;
        active.interval = t1;
        active.deadline = now + transaction_timeout;
        active.next = now + t1;
        active.login = None;
        active.tries = 0;
        active.small = (flow != requested).then_some(requested);
        active.tcp_when_large = tcp_when_large;
        active.repeated = false;
        active.waiting_cancel = None;
        active.connection = connection.unwrap_or(NONE);
        let reliable = flow.transport.is_reliable();
        let at = if reliable {
            active.deadline
        } else {
            active.next
        };
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.reliable = reliable;
            client.active = Some(active);
        }
        if let Some(connection) = connection {
            self.wait_on(connection, slot);
        }
        self.arm_client(slot, at);
        Ok(())
    }

    pub(super) fn wait_on(&mut self, connection: u32, slot: u32) {
        if let Some(connection) = self.net.connections.get_mut(connection as usize) {
            connection.waiting_clients.insert(slot);
        }
    }

    /// Replaces the Via of a request above 1,300 bytes by that of the TCP listener (RFC 3261 section 18.1.1).
    fn move_to_tcp(&mut self, start: usize, flow: &mut Flow) {
        let length = self.net.out.composed(start).len();
        let Some(tcp) = self.net.sibling(flow.local, Transport::Tcp) else {
            return;
        };
        let (Some(from), Some(to)) = (self.net.listener(flow.local), self.net.listener(tcp)) else {
            return;
        };
        if length <= LARGE {
            return;
        }
        let message = self.net.out.composed(start);
        let Some(at) = message
            .windows(from.via.len())
            .position(|window| window == from.via)
        else {
            return;
        };
        let via = to.via.clone();
        let range = start + at..start + at + from.via.len();
        self.net.out.arena.splice(range, via);
        *flow = Flow {
            local: tcp,
            transport: Transport::Tcp,
            connection: None,
            ..*flow
        };
    }

    /// Sends a request over UDP that was moved to TCP because of its size and failed there (RFC 3261 section 18.1.1).
    /// Returns whether it was sent.
    pub(crate) fn back_to_udp(&mut self, slot: u32) -> bool {
        let now = self.now;
        let Some(client) = self
            .clients
            .get_mut(slot as usize)
            .filter(|client| client.state == ClientState::Calling)
        else {
            return false;
        };
        let Some((active, flow)) = client
            .active
            .as_mut()
            .and_then(|active| active.small.take().map(|flow| (active, flow)))
        else {
            return false;
        };
        let (Some(from), Some(to)) = (
            self.net.listener(active.flow.local),
            self.net.listener(flow.local),
        ) else {
            return false;
        };
        let Some(at) = active
            .bytes
            .windows(from.via.len())
            .position(|window| window == from.via)
        else {
            return false;
        };
        active
            .bytes
            .splice(at..at + from.via.len(), to.via.iter().copied());
        active.flow = flow;
        active.connection = NONE;
        active.tcp_when_large = false;
        client.reliable = false;
        let t1 = self.config.timers.t1;
        if let Some(active) = self
            .clients
            .get_mut(slot as usize)
            .and_then(|client| client.active.as_mut())
        {
            active.interval = t1;
            active.next = now + t1;
        }
        self.resend_client(slot);
        self.arm_client(slot, now + t1);
        true
    }

    pub(crate) fn arm_client(&mut self, slot: u32, at: Time) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        if let Some(old) = client.timer.take() {
            self.wheel.cancel(old);
        }
        client.timer = Some(self.wheel.schedule(at, Timer::Client(slot)));
    }

    /// Keeps an ended transaction, which only absorbs retransmissions, until `at` or slightly later: see [`round_up`].
    pub(crate) fn linger_client(&mut self, slot: u32, at: Time) {
        self.arm_client(slot, round_up(at));
    }

    pub(crate) fn disarm_client(&mut self, slot: u32) {
        if let Some(client) = self.clients.get_mut(slot as usize)
            && let Some(old) = client.timer.take()
        {
            self.wheel.cancel(old);
        }
    }

    /// Releases the state that only a running transaction needs.
    pub(crate) fn release_client(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let Some(mut active) = client.active.take() else {
            return;
        };
        if let Some(connection) = self.net.connections.get_mut(active.connection as usize) {
            connection.waiting_clients.remove(&slot);
        }
        active.login = None;
        if self.spare_clients.len() < SPARE {
            self.spare_clients.push(active);
        }
    }

    /// Removes a client transaction, and the CANCEL that belongs to it.
    pub(crate) fn close_client(&mut self, slot: u32) {
        self.disarm_client(slot);
        self.release_client(slot);
        if let Some(client) = self.clients.try_remove(slot as usize)
            && client.cancel != NONE
        {
            let same = |other: &Client| {
                other.cookie == client.cookie && other.method == Some(Method::Cancel)
            };
            if self.clients.get(client.cancel as usize).is_some_and(same) {
                self.close_client(client.cancel);
            }
        }
    }

    /// Retransmits the request.
    pub(crate) fn resend_client(&mut self, slot: u32) {
        let Some(active) = self
            .clients
            .get(slot as usize)
            .and_then(|client| client.active.as_ref())
        else {
            return;
        };
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&active.bytes);
        let flow = active.flow;
        // A failure to send a retransmission is like a loss in the network; the transaction's timeout reports it.
        let _ = self.transmit(&flow, start);
    }

    pub(crate) fn transmit(&mut self, flow: &Flow, start: usize) -> Result<Option<u32>, Refused> {
        let timers = IdleTimers::new(self.now, &mut self.wheel, &self.config.timers);
        self.net.send(flow, start, timers)
    }

    /// The client transaction with this branch.
    pub(crate) fn client_of_branch(&self, branch: &[u8]) -> Option<u32> {
        let (slot, cookie) = IdToken::decode_branch(branch)?;
        self.clients
            .get(slot as usize)
            .filter(|client| client.cookie == cookie && client.method != Some(Method::Cancel))
            .map(|_| slot)
    }

    /// The running request of ours that has come back as `request`: one of its Vias is that of a client transaction. It
    /// has looped or is a legitimate spiral (RFC 3261 section 16.3 item 4): the handler knows the facts of its routing.
    pub fn earlier_request(&self, request: &Message<'_>) -> Option<EarlierRequest> {
        request.values(HeaderId::Via).find_map(|via| {
            // The branch is secret, so that the rest of the Via need not be compared: proxies add parameters to it.
            let slot = branch_in(via).and_then(|branch| self.client_of_branch(branch))?;
            match self.clients.get(slot as usize)?.owner {
                Owner::InitialInvite(leg) | Owner::InDialog(leg) => Some(EarlierRequest::Leg(leg)),
                Owner::OutOfDialog(number) => Some(EarlierRequest::OutOfDialog(number)),
                Owner::Unowned => None,
            }
        })
    }

    /// Whether the request of a server transaction has a sips Request-URI.
    pub(crate) fn is_sips(&self, slot: u32) -> bool {
        self.servers
            .get(slot as usize)
            .is_some_and(|server| server.sips)
    }

    /// Creates a record for a received request. `None`: the table is full.
    pub(crate) fn open_server(
        &mut self,
        key: u128,
        request: &Message<'_>,
        flow: &Flow,
    ) -> Option<u32> {
        if self.clients.len() + self.servers.len() >= self.config.limits.transactions {
            return None;
        }
        let reply = request
            .via()
            .map_or(*flow, |via| self.reply_flow(&via, flow));
        let mut active = self
            .spare_servers
            .pop()
            .unwrap_or_else(|| Box::new(ServerActive::new(reply)));
        active.skeleton.render(request, flow.remote, &self.feedback);
        active.flow = reply;
        active.last.clear();
        active.interval = Duration::ZERO;
        active.cseq = request.cseq().map_or(0, |cseq| cseq.number);
        active.bound = None;
        active.session = None;
        let random = u64::from(self.entropy.u32()) << 32;
        let check = (self.with_worker_number(random) >> 32) as u32;
        let slot = self.servers.insert(Server {
            key,
            merged: 0,
            check,
            leg: None,
            timer: None,
            state: ServerState::Trying,
            method: request.method().known(),
            offer: crate::compose::message_has_sdp(request),
            sips: crate::transport::is_sips(request.request_uri()),
            plain: 0,
            last: None,
            active: Some(active),
        }) as u32;
        if self.index.insert(key, slot).is_err() {
            self.close_server(slot);
            return None;
        }
        Some(slot)
    }

    pub(crate) fn server_id(&self, slot: u32) -> ServerTransaction {
        ServerTransaction {
            slot,
            check: self.servers.get(slot as usize).map_or(0, |s| s.check),
        }
    }

    pub(crate) fn server(&self, id: ServerTransaction) -> Option<&Server> {
        self.servers
            .get(id.slot as usize)
            .filter(|server| server.check == id.check)
    }

    pub(crate) fn arm_server(&mut self, slot: u32, at: Time) {
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        if let Some(old) = server.timer.take() {
            self.wheel.cancel(old);
        }
        server.timer = Some(self.wheel.schedule(at, Timer::Server(slot)));
    }

    /// As [`Endpoint::linger_client`].
    pub(crate) fn linger_server(&mut self, slot: u32, at: Time) {
        self.arm_server(slot, round_up(at));
    }

    pub(crate) fn release_server(&mut self, slot: u32) {
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.take())
        {
            self.recycle_server(active);
        }
    }

    fn recycle_server(&mut self, mut active: Box<ServerActive>) {
        if self.spare_servers.len() < SPARE {
            active.skeleton.clear();
            active.last.clear();
            self.spare_servers.push(active);
        }
    }

    pub(crate) fn close_server(&mut self, slot: u32) {
        self.release_server(slot);
        let Some(server) = self.servers.try_remove(slot as usize) else {
            return;
        };
        if let Some(timer) = server.timer {
            self.wheel.cancel(timer);
        }
        if self.index.get(&server.key) == Some(&slot) {
            self.index.remove(&server.key);
        }
        if server.merged != 0 && self.merged.get(&server.merged) == Some(&slot) {
            self.merged.remove(&server.merged);
        }
    }

    /// Composes the beginning of a response to the request of `slot`; returns its start and its destination.
    pub(crate) fn begin_response(
        &mut self,
        slot: u32,
        status: u16,
        reason: &[u8],
        record_route: bool,
        tag: Option<IdToken>,
    ) -> Option<(usize, Flow)> {
        let active = self.servers.get(slot as usize)?.active.as_ref()?;
        let start = self.net.out.begin();
        let out = &mut self.net.out.arena;
        crate::compose::Lines { out }.status_line(status, reason);
        active.skeleton.write(record_route, tag, out);
        Some((start, active.flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ended transactions outlive calls by 32 s: at thousands of calls per second their size determines the memory use.
    #[test]
    fn records_of_ended_transactions_are_small() {
        assert!(size_of::<Client>() <= 120, "{}", size_of::<Client>());
        assert!(size_of::<Server>() <= 144, "{}", size_of::<Server>());
    }
}
