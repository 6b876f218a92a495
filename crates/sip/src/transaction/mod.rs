//! Transactions (RFC 3261 section 17, RFC 6026, RFC 4320): what is kept for each, and what all four kinds share.
//!
//! An ended transaction outlives its call by up to 32 s, so its record is small; what only a living one needs stands in
//! a box that is given back (and used again) when it ends.

pub(crate) mod bound;
pub(crate) mod client_invite;
pub(crate) mod client_other;
pub(crate) mod server_invite;
pub(crate) mod server_other;

use crate::Endpoint;
use crate::api::{Flow, LegId, Refused, ServerTransaction, TransactionId};
use crate::credentials::StoredLogin;
use crate::names::{MAGIC, Name};
use crate::skeleton::Skeleton;
use crate::timer::Timer;
use core::hash::Hasher;
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Time, Transport};
use siphasher::sip128::{Hasher128, SipHasher13};
use wire::sip::{Message, Method, Via};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;
/// Boxes kept for the next transaction.
const SPARE: usize = 64;
/// Requests above this go over TCP where the peer takes it (RFC 3261 section 18.1.1).
const LARGE: usize = 1_300;

/// Who a client transaction works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The INVITE that opens this leg.
    Opening(LegId),
    /// A request inside this leg's dialog.
    Inside(LegId),
    /// A request outside of any dialog, with the user's number.
    Outside(u64),
    /// The endpoint itself: nobody waits for it.
    Nobody,
}

/// States of a client transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// Calling (INVITE) or Trying.
    Calling,
    Proceeding,
    Completed,
    /// INVITE answered 2xx (RFC 6026 section 7.2).
    Accepted,
}

/// A request that we sent.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) cookie: u64,
    pub(crate) owner: Owner,
    pub(crate) timer: Option<TimerKey>,
    pub(crate) cancel: u32,
    pub(crate) state: ClientState,
    pub(crate) method: Option<Method<'static>>,
    pub(crate) reliable: bool,
    /// It carried an offer.
    pub(crate) offer: bool,
    /// The early dialog inside which it was sent.
    pub(crate) fork: u8,
    /// A refresh of the endpoint's own (RFC 4028).
    pub(crate) refresh: bool,
    /// An accepted INVITE: the user has sent ACK.
    pub(crate) acked: bool,
    /// An INVITE: its leg is pinned, so ACK goes where the leg's requests go whatever the 2xx says.
    pub(crate) pinned: bool,
    /// An accepted INVITE: print of the To tag of the fork that won.
    pub(crate) winner: u64,
    pub(crate) active: Option<Box<ClientActive>>,
    pub(crate) accepted: Option<Box<Accepted>>,
}

/// What a client transaction needs until its final response; a failed INVITE's holds the ACK afterwards.
#[derive(Debug)]
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
    /// Where it would have gone but for its size.
    pub(crate) small: Option<Flow>,
}

/// What an accepted INVITE needs beyond its record.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// Prints of the To tags of forks that lost, which have had their BYE.
    pub(crate) late: Vec<u64>,
    /// Authorization and Proxy-Authorization of the INVITE, as lines: they go into the ACK too (RFC 3261 section
    /// 13.2.2.4).
    pub(crate) credentials: Vec<u8>,
    /// The ACK with its body and extra headers, where it cannot be made anew from the 2xx, and where it went.
    pub(crate) ack: Option<(Vec<u8>, Flow)>,
}

/// States of a server transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// Nothing was sent.
    Trying,
    Proceeding,
    Completed,
    Confirmed,
    /// INVITE answered 2xx (RFC 6026 section 7.1).
    Accepted,
}

/// A request that came.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) key: u128,
    /// Key of the INVITE without its branch, for merged requests; 0 where it is in no table.
    pub(crate) merged: u128,
    pub(crate) check: u32,
    pub(crate) leg: Option<LegId>,
    pub(crate) timer: Option<TimerKey>,
    pub(crate) state: ServerState,
    pub(crate) method: Option<Method<'static>>,
    /// It carried an offer.
    pub(crate) offer: bool,
    /// It asked for a sips URI.
    pub(crate) sips: bool,
    /// Status of the final response of a request other than INVITE, where the response can be made anew from the request
    /// when that comes again; 0: no.
    pub(crate) plain: u16,
    /// That response where it cannot, while it may be asked for again.
    pub(crate) last: Option<Box<[u8]>>,
    pub(crate) active: Option<Box<ServerActive>>,
}

/// What a server transaction needs until its final response (INVITE refused: until ACK).
#[derive(Debug)]
pub(crate) struct ServerActive {
    pub(crate) skeleton: Skeleton,
    pub(crate) flow: Flow,
    /// The last response of an INVITE.
    pub(crate) last: Vec<u8>,
    pub(crate) interval: Duration,
    pub(crate) next: Time,
    pub(crate) deadline: Time,
    pub(crate) cseq: u32,
    /// Bytes that may still be sent over UDP to a source that is not known.
    pub(crate) bound: Option<usize>,
    /// Session-Expires that the request asked for, see `session_timer`.
    pub(crate) session: Option<crate::session_timer::Asked>,
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

/// Keys of the fingerprints under which server transactions are found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrintKey(pub(crate) u64, pub(crate) u64);

impl PrintKey {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }

    /// The key of RFC 3261 section 17.2.3: branch, sent-by and method; for clients of RFC 2543, which set no magic branch,
    /// Request-URI, tags, Call-ID, CSeq number and the whole Via. ACK and CANCEL are looked up as the INVITE they mean.
    pub(crate) fn of(self, message: &Message<'_>, method: Method<'_>) -> Option<u128> {
        let via = message.via().ok()?;
        if let Some(print) = self.of_branch(&via, method) {
            return Some(print);
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

    /// The key of a request whose topmost Via has the magic branch.
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

    /// What a merged request shares with its twin (RFC 3261 section 8.2.2.2): From tag, Call-ID, CSeq.
    pub(crate) fn merged(self, message: &Message<'_>) -> Option<u128> {
        let mut hasher = self.hasher();
        let mut part = |bytes: &[u8]| {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        };
        part(b"merged");
        part(message.from().ok()?.tag()?);
        part(message.call_id().ok()?);
        part(&message.cseq().ok()?.number.to_be_bytes());
        Some(hasher.finish128().as_u128())
    }

    /// Stands for a tag where only equality matters.
    pub(crate) fn tag(self, tag: &[u8]) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(tag);
        hasher.finish128().h1
    }

    /// A tag for a response that leaves no state: the same for every copy of the request (RFC 3261 section 8.2.7), and
    /// known again in its ACK, which has the same branch and Call-ID.
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

/// `at` or up to 67 ms (2^26 ns) after it, the same for all whose time comes in between. Timers D, I, J, K, L and M are least
/// times, and under load thousands of them end in a second: together they cost one waking of the thread.
fn later(at: Time) -> Time {
    const SHIFT: u64 = 1 << 26;
    Time(at.0.saturating_add(SHIFT - 1) & !(SHIFT - 1))
}

impl Endpoint {
    pub(crate) fn t1(&self) -> Duration {
        self.config.timers.t1
    }

    /// The patience of Timers B, F, H, J, L and M.
    pub(crate) fn patience(&self) -> Duration {
        self.config.timers.t1 * 64
    }

    /// A record for a new client transaction, still without its request.
    pub(crate) fn open_client(
        &mut self,
        owner: Owner,
        method: Method<'_>,
    ) -> Result<(u32, u64), Refused> {
        if self.clients.len() + self.servers.len() >= self.config.limits.transactions {
            return Err(Refused::Full);
        }
        let cookie = self.cookie();
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
            winner: 0,
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

    /// Sends the request that was composed since `start` and starts its timers (A and B, or E and F). Gives the slot back
    /// where it cannot be sent.
    pub(crate) fn launch(
        &mut self,
        slot: u32,
        start: usize,
        mut flow: Flow,
        tcp_when_large: bool,
        now: Time,
    ) -> Result<(), Refused> {
        let wanted = flow;
        if tcp_when_large && flow.transport == Transport::Udp {
            self.move_to_tcp(start, &mut flow);
        }
        let sent = self
            .net
            .send(&flow, start, now, &mut self.wheel, self.config.timers.idle);
        let connection = match sent {
            Ok(connection) => connection,
            Err(refused) => {
                self.close_client(slot);
                return Err(refused);
            }
        };
        let t1 = self.t1();
        let patience = self.patience();
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
            })
        });
        active.bytes.clear();
        active.bytes.extend_from_slice(self.net.out.composed(start));
        active.flow = flow;
        active.interval = t1;
        active.deadline = now + patience;
        active.next = now + t1;
        active.login = None;
        active.tries = 0;
        active.small = (flow != wanted).then_some(wanted);
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

    fn wait_on(&mut self, connection: u32, slot: u32) {
        if let Some(connection) = self.net.connections.get_mut(connection as usize) {
            connection.waiting.insert(slot);
        }
    }

    /// A request above 1,300 bytes gets the Via of the TCP listening point (RFC 3261 section 18.1.1).
    fn move_to_tcp(&mut self, start: usize, flow: &mut Flow) {
        let length = self.net.out.composed(start).len();
        let Some(tcp) = self.net.sibling(flow.local, Transport::Tcp) else {
            return;
        };
        let (Some(from), Some(to)) = (self.net.point(flow.local), self.net.point(tcp)) else {
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

    /// A request that went over TCP for its size alone, and could not: it goes over UDP after all (RFC 3261 section
    /// 18.1.1). `true`: it does.
    pub(crate) fn back_to_udp(&mut self, slot: u32, now: Time) -> bool {
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
            self.net.point(active.flow.local),
            self.net.point(flow.local),
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
        self.resend_client(slot, now);
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

    /// The transaction is over and only absorbs repetitions until `at` or a moment later: see [`later`].
    pub(crate) fn linger_client(&mut self, slot: u32, at: Time) {
        self.arm_client(slot, later(at));
    }

    pub(crate) fn disarm_client(&mut self, slot: u32) {
        if let Some(client) = self.clients.get_mut(slot as usize)
            && let Some(old) = client.timer.take()
        {
            self.wheel.cancel(old);
        }
    }

    /// Gives back what only a living transaction needs.
    pub(crate) fn quiet_client(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let Some(mut active) = client.active.take() else {
            return;
        };
        if let Some(connection) = self.net.connections.get_mut(active.connection as usize) {
            connection.waiting.remove(&slot);
        }
        active.login = None;
        if self.spare_clients.len() < SPARE {
            self.spare_clients.push(active);
        }
    }

    /// Ends a client transaction, and the CANCEL that belongs to it.
    pub(crate) fn close_client(&mut self, slot: u32) {
        self.disarm_client(slot);
        self.quiet_client(slot);
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

    /// Sends a copy of the kept request again.
    pub(crate) fn resend_client(&mut self, slot: u32, now: Time) {
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
        // What could be sent once is lost where it cannot be sent now; the transaction's timeout tells.
        let _ = self.transmit(&flow, start, now);
    }

    pub(crate) fn transmit(
        &mut self,
        flow: &Flow,
        start: usize,
        now: Time,
    ) -> Result<Option<u32>, Refused> {
        self.net
            .send(flow, start, now, &mut self.wheel, self.config.timers.idle)
    }

    /// The client transaction whose branch this is.
    pub(crate) fn client_of_branch(&self, branch: &[u8]) -> Option<u32> {
        let (slot, cookie) = Name::decode_branch(branch)?;
        self.clients
            .get(slot as usize)
            .filter(|client| client.cookie == cookie && client.method != Some(Method::Cancel))
            .map(|_| slot)
    }

    /// A record for a request that came. `None`: full.
    /// Whether the request of a server transaction asked for a sips URI.
    pub(crate) fn is_sips(&self, slot: u32) -> bool {
        self.servers
            .get(slot as usize)
            .is_some_and(|server| server.sips)
    }

    pub(crate) fn open_server(
        &mut self,
        key: u128,
        request: &Message<'_>,
        flow: &Flow,
    ) -> Option<u32> {
        if self.clients.len() + self.servers.len() >= self.config.limits.transactions {
            return None;
        }
        let reply = request.via().map_or(*flow, |via| {
            crate::transport::reply_flow(&via, flow, self.config.symmetric_responses)
        });
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
        let check = (self.owned(random) >> 32) as u32;
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
        self.arm_server(slot, later(at));
    }

    pub(crate) fn quiet_server(&mut self, slot: u32) {
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.take())
        {
            self.spare_server(active);
        }
    }

    fn spare_server(&mut self, mut active: Box<ServerActive>) {
        if self.spare_servers.len() < SPARE {
            active.skeleton.clear();
            active.last.clear();
            self.spare_servers.push(active);
        }
    }

    pub(crate) fn close_server(&mut self, slot: u32) {
        self.quiet_server(slot);
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

    /// Composes the beginning of a response to the request of `slot`; gives where it starts and where it goes.
    pub(crate) fn begin_response(
        &mut self,
        slot: u32,
        status: u16,
        reason: &[u8],
        record_route: bool,
        tag: Option<Name>,
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

    /// Ended transactions outlive calls by 32 s: at thousands of calls a second their size decides about memory.
    #[test]
    fn records_of_ended_transactions_are_small() {
        assert!(size_of::<Client>() <= 120, "{}", size_of::<Client>());
        assert!(size_of::<Server>() <= 144, "{}", size_of::<Server>());
    }
}
