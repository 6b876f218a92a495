//! Several endpoints (workers) that share their addresses.
//!
//! Every branch and tag contains the number of the worker that created it; that worker processes all later messages of
//! the dialog. A new request belongs to the worker that the keyed hash of its Call-ID selects, whichever socket
//! received it, so that INVITE, CANCEL and the ACK of a refusal meet. The handler can select another worker for an
//! INVITE ([`Handler::select_worker`]). Other messages are handed off to their owner, those of connections together
//! with the connection: the owner then sends through the worker that holds it.

use crate::api::{Flow, Handler, ListenerId};
use crate::endpoint::Endpoint;
use crate::outbox::OutboxItem;
use crate::tokens::{IdToken, MAGIC};
use crate::transport::IdleTimers;
use core::hash::BuildHasher as _;
use engine::{
    CloseReason, ConnectionId, Datagram, DropReason, HandoffKind, HandoffMessage, Time, Transport,
    Worker,
};
use std::net::SocketAddr;
use wire::sip::{Message, RoutingKeys};

/// Length of Call-IDs of ours whose first two digits are the owner's number, see [`Endpoint::with_worker_number`].
const CALL_ID_LEN: usize = 48;

/// The worker whose number is in a token.
pub(crate) fn worker_of_token(worker: &Worker, token: &[u8]) -> Option<u8> {
    let (_, cookie) = IdToken::decode(token)?;
    Some((cookie >> 56) as u8).filter(|number| *number < worker.count)
}

fn worker_of_branch(worker: &Worker, branch: &[u8]) -> Option<u8> {
    let (magic, token) = branch.split_at_checked(MAGIC.len())?;
    worker_of_token(worker, token).filter(|_| magic.eq_ignore_ascii_case(MAGIC))
}

fn worker_of_call_id(worker: &Worker, call_id: &[u8]) -> u8 {
    let by_prefix = || {
        let digits = call_id.get(..2).filter(|_| call_id.len() == CALL_ID_LEN)?;
        let number = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        (number < worker.count).then_some(number)
    };
    // The worker is arbitrary, but the same for all messages with this Call-ID.
    by_prefix().unwrap_or_else(|| (worker.key.hash_one(call_id) % u64::from(worker.count)) as u8)
}

/// The worker that owns a message; `None`: any. `select` gives the worker for an INVITE or its CANCEL.
pub(crate) fn owner_of(
    worker: &Worker,
    bytes: &[u8],
    select: impl FnOnce() -> Option<u8>,
) -> Option<u8> {
    // Line ends before a message are ignored (RFC 3261 section 7.5); alone they are a keep-alive.
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let bytes = bytes.get(skipped..)?;
    match bytes.first()? {
        // A response to our STUN request has our worker number in the first byte of its transaction ID (RFC 8489
        // section 5).
        1 if bytes.get(1) == Some(&1) => {
            return bytes.get(8).copied().filter(|n| *n < worker.count);
        }
        ..4 => return None,
        _ => {}
    }
    let keys = RoutingKeys::parse(bytes);
    if !keys.is_request {
        return worker_of_branch(worker, keys.branch?);
    }
    let selected = || {
        let invite = bytes.starts_with(b"INVITE ") || bytes.starts_with(b"CANCEL ");
        (invite && keys.to_tag.is_none()).then(select)?
    };
    let far_tag = || keys.replaces_from.filter(|_| keys.to_tag.is_none());
    keys.to_tag
        .or(keys.replaces)
        .and_then(|tag| worker_of_token(worker, tag))
        // After a relayed REFER the dialog is named from its far side.
        .or_else(|| worker_of_token(worker, far_tag()?))
        .or_else(|| selected().filter(|number| *number < worker.count))
        .or_else(|| Some(worker_of_call_id(worker, keys.call_id?)))
}

impl Endpoint {
    /// A random number that is kept secret, with our worker number if there are several workers.
    pub(crate) fn new_cookie(&mut self) -> u64 {
        let cookie = self.entropy.u64();
        self.with_worker_number(cookie)
    }

    /// Writes our worker number into the highest byte, if workers share our addresses. A Call-ID of 48 hexadecimal
    /// digits that begins with the number is routed to us.
    pub fn with_worker_number(&self, cookie: u64) -> u64 {
        let worker = &self.config.worker;
        match worker.is_alone() {
            true => cookie,
            false => cookie & (u64::MAX >> 8) | u64::from(worker.number) << 56,
        }
    }

    /// This endpoint's number among the workers that share its addresses.
    pub fn worker(&self) -> &Worker {
        &self.config.worker
    }

    /// The other worker that owns a message.
    fn other_worker(
        &self,
        bytes: &[u8],
        flow: impl FnOnce() -> Option<Flow>,
        handler: &dyn Handler,
    ) -> Option<u8> {
        let worker = &self.config.worker;
        if worker.is_alone() {
            return None;
        }
        let owner = owner_of(worker, bytes, || handler.select_worker(bytes, &flow()?));
        owner.filter(|owner| *owner != worker.number)
    }

    /// The other worker that owns a datagram; `None`: it is ours.
    pub fn other_owner(&self, datagram: &Datagram<'_>, handler: &dyn Handler) -> Option<u8> {
        let flow = || {
            Some(Flow {
                local: self.net.local_of(datagram.socket, None)?,
                transport: Transport::Udp,
                remote: datagram.source,
                connection: None,
            })
        };
        self.other_worker(datagram.bytes, flow, handler)
    }

    /// Hands off a datagram to its owner. `false`: its socket is not a listener's.
    pub fn hand_off_datagram(&mut self, datagram: &Datagram<'_>, worker: u8, now: Time) -> bool {
        self.now = now;
        let Some(local) = self.net.local_of(datagram.socket, None) else {
            return false;
        };
        let kind = HandoffKind::Datagram {
            listener: local.0,
            source: datagram.source,
            arrived: datagram.arrived,
            handed_off: now,
            hops: 0,
        };
        let item = OutboxItem::HandOff { worker, kind };
        self.net.out.push_copy(item, datagram.bytes);
        true
    }

    /// Hands off an ICMP error for a datagram that a worker sent.
    pub(crate) fn hand_off_unreachable(
        &mut self,
        local: ListenerId,
        destination: SocketAddr,
        quoted: &[u8],
    ) -> bool {
        let worker = self.config.worker;
        if worker.is_alone() {
            return false;
        }
        let owner = crate::endpoint::branch_in(quoted).and_then(|b| worker_of_branch(&worker, b));
        let Some(owner) = owner.filter(|owner| *owner != worker.number) else {
            return false;
        };
        let kind = HandoffKind::Unreachable {
            listener: local.0,
            destination,
        };
        let item = OutboxItem::HandOff {
            worker: owner,
            kind,
        };
        self.net.out.push_copy(item, quoted);
        true
    }

    /// Hands off a complete message of a connection that we hold.
    pub(crate) fn hand_off_message(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        handler: &dyn Handler,
    ) -> bool {
        let Some(worker) = self.other_worker(bytes, || Some(*flow), handler) else {
            return false;
        };
        self.hand_off_with_connection(bytes, flow, worker, 0)
    }

    fn hand_off_with_connection(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        worker: u8,
        hops: u8,
    ) -> bool {
        let Some(connection) = flow.connection else {
            return false;
        };
        self.add_borrower(connection, worker);
        let kind = HandoffKind::Message {
            connection,
            listener: flow.local.0,
            remote: flow.remote,
            hops,
        };
        self.net
            .out
            .push_copy(OutboxItem::HandOff { worker, kind }, bytes);
        true
    }

    fn add_borrower(&mut self, connection: ConnectionId, worker: u8) {
        if let Some(slot) = self.net.connection(connection)
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.borrowers |= 1 << (worker % Worker::MAX);
        }
    }

    /// A CANCEL without a matching INVITE may belong to an INVITE that was handed off because of its Replaces, which a
    /// CANCEL does not have. It visits each worker once. `true`: it was handed off.
    pub(crate) fn hand_off_cancel(&mut self, request: &Message<'_>, flow: &Flow) -> bool {
        let worker = self.config.worker;
        if self.hops + 1 >= worker.count {
            return false;
        }
        self.hand_off_again(request, flow, (worker.number + 1) % worker.count)
    }

    /// Hands off a message that was routed to us but belongs to another worker. `false`: it has visited all workers.
    pub(crate) fn hand_off_again(
        &mut self,
        request: &Message<'_>,
        flow: &Flow,
        worker: u8,
    ) -> bool {
        let hops = self.hops + 1;
        if hops > self.config.worker.count {
            return false;
        }
        if flow.connection.is_some() {
            return self.hand_off_with_connection(request.bytes(), flow, worker, hops);
        }
        let kind = HandoffKind::Datagram {
            listener: flow.local.0,
            source: flow.remote,
            arrived: self.now,
            handed_off: self.now,
            hops,
        };
        self.net
            .out
            .push_copy(OutboxItem::HandOff { worker, kind }, request.bytes());
        true
    }

    /// Sends a handoff message between the handlers of two workers.
    pub fn send_to_worker(&mut self, worker: u8, kind: HandoffKind) {
        self.net.out.push_bare(OutboxItem::HandOff { worker, kind });
    }

    /// Processes a handoff message from another worker.
    pub(crate) fn on_handoff(&mut self, handoff: HandoffMessage<'_>, handler: &mut dyn Handler) {
        let now = self.now;
        let is_listener = |local: u16| usize::from(local) < self.net.listeners.len();
        match handoff.kind {
            HandoffKind::Datagram {
                listener: local, ..
            }
            | HandoffKind::Unreachable {
                listener: local, ..
            }
            | HandoffKind::Message {
                listener: local, ..
            } if !is_listener(local) => {
                self.drops.count(DropReason::SipHandoffFailed);
            }
            HandoffKind::Datagram {
                listener: local,
                source,
                hops,
                ..
            } => {
                let flow = Flow {
                    local: ListenerId(local),
                    transport: Transport::Udp,
                    remote: source,
                    connection: None,
                };
                self.hops = hops;
                self.on_datagram(handoff.bytes, &flow, handler);
                self.hops = 0;
            }
            HandoffKind::Unreachable {
                listener: local,
                destination,
            } => {
                self.on_unreachable(ListenerId(local), destination, handoff.bytes, handler);
            }
            HandoffKind::Message {
                connection,
                listener: local,
                remote,
                hops,
            } => {
                let local = ListenerId(local);
                let transport = self.net.listener(local).map(|listener| listener.transport);
                let timers = &mut IdleTimers::new(now, &mut self.wheel, &self.config.timers);
                let slot = self
                    .net
                    .add_foreign_connection(connection, local, remote, timers);
                let (Some(slot), Some(transport)) = (slot, transport) else {
                    self.drops.count(DropReason::SipTableFull);
                    return;
                };
                if let Some(connection) = self.net.connections.get_mut(slot as usize) {
                    connection.last_used = now;
                }
                let flow = Flow {
                    local,
                    transport,
                    remote,
                    connection: Some(connection),
                };
                self.hops = hops;
                let parsed = match transport {
                    Transport::Ws | Transport::Wss => Message::parse_datagram(handoff.bytes),
                    _ => Message::parse_framed(handoff.bytes),
                };
                match parsed {
                    Ok(message) => self.on_message(&message, &flow, handler),
                    Err(_) => self.drops.count(DropReason::SipUnparsable),
                }
                self.hops = 0;
            }
            HandoffKind::Send { connection, from } => match self.net.connection(connection) {
                Some(slot) => {
                    self.add_borrower(connection, from);
                    if let Some(connection) = self.net.connections.get_mut(slot as usize) {
                        connection.last_used = now;
                    }
                    let item = OutboxItem::Stream { connection };
                    self.net.out.push_copy(item, handoff.bytes);
                }
                None => self.notify_borrowers(connection, 1 << (from % Worker::MAX)),
            },
            HandoffKind::Close { connection } => {
                if self.net.connection(connection).is_some() {
                    self.close_locally(connection, handler);
                }
            }
            HandoffKind::Closed { connection } => {
                self.on_closed(connection, CloseReason::Peer, handler);
            }
            // For the handler.
            HandoffKind::Transfer { .. } => {}
        }
    }

    /// Notifies the workers of these bits that a connection of ours has ended.
    pub(crate) fn notify_borrowers(&mut self, connection: ConnectionId, mut borrowers: u64) {
        while borrowers != 0 {
            let worker = borrowers.trailing_zeros() as u8;
            borrowers &= borrowers - 1;
            let kind = HandoffKind::Closed { connection };
            self.net.out.push_bare(OutboxItem::HandOff { worker, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Entropy, HashKey};

    fn worker(number: u8, count: u8) -> Worker {
        let key = HashKey::new(&mut Entropy::from_number(5));
        Worker { number, count, key }
    }

    #[test]
    fn new_requests_are_distributed_evenly_and_consistently() {
        let mut counts = [0; 4];
        for call in 0..4_000 {
            let text =
                format!("INVITE sip:a@b SIP/2.0\r\nTo: <sip:a@b>\r\nCall-ID: {call}@phone\r\n\r\n");
            let owners = [0, 3]
                .map(|number| owner_of(&worker(number, 4), text.as_bytes(), || None).unwrap());
            assert_eq!(owners[0], owners[1]);
            counts[usize::from(owners[0])] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn messages_with_our_tokens_are_routed_to_us() {
        let mine = worker(2, 3);
        let token = IdToken::new(77, 0x02ff_0000_0000_0001);
        let token = std::str::from_utf8(token.as_bytes()).unwrap();
        for text in [
            format!("SIP/2.0 180 R\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{token}\r\n\r\n"),
            format!("BYE sip:h SIP/2.0\r\nCall-ID: x\r\nTo: <sip:a>;tag={token}\r\n\r\n"),
            format!(
                "INVITE sip:h SIP/2.0\r\nTo: <sip:a>\r\ni: x\r\nReplaces: y;to-tag={token};from-tag=1\r\n\r\n"
            ),
            format!(
                "INVITE sip:h SIP/2.0\r\nTo: <sip:a>\r\ni: x\r\nReplaces: y;to-tag=1;from-tag={token}\r\n\r\n"
            ),
            format!(
                "INVITE sip:h SIP/2.0\r\nTo: <sip:a>\r\ni: 02{}\r\n\r\n",
                "0".repeat(46)
            ),
        ] {
            // `select` is not called for messages that already belong to us.
            let select = || {
                assert!(!text.contains("to-tag") && !text.starts_with("BYE"));
                None
            };
            assert_eq!(owner_of(&mine, text.as_bytes(), select), Some(2), "{text}");
        }
        let far = IdToken::new(77, 0x03ff_0000_0000_0001);
        let far = std::str::from_utf8(far.as_bytes()).unwrap();
        let text = format!("SIP/2.0 180 R\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{far}\r\n\r\n");
        assert_eq!(
            owner_of(&mine, text.as_bytes(), || None),
            None,
            "there is no such worker"
        );
        assert_eq!(owner_of(&mine, b"\r\n\r\n", || None), None);
        assert_eq!(
            owner_of(&mine, &[1, 1, 0, 0, 0, 0, 0, 0, 2], || None),
            Some(2)
        );
    }

    #[test]
    fn handler_selects_the_worker_of_an_invite() {
        let mine = worker(2, 3);
        let text = |method: &str, tag: &str| {
            format!("{method} sip:800@h SIP/2.0\r\nTo: <sip:800@h>{tag}\r\nCall-ID: x\r\n\r\n")
        };
        let by_call_id = owner_of(&mine, text("INVITE", "").as_bytes(), || None).unwrap();
        let other = (by_call_id + 1) % 3;
        for (method, tag, selected, owns) in [
            ("INVITE", "", Some(other), other),
            ("CANCEL", "", Some(other), other),
            ("INVITE", "", Some(3), by_call_id),
            ("OPTIONS", "", Some(other), by_call_id),
            ("INVITE", ";tag=strange", Some(other), by_call_id),
            ("\r\n\r\nINVITE", "", Some(other), other),
            ("\r\nOPTIONS", "", Some(other), by_call_id),
        ] {
            let owner = owner_of(&mine, text(method, tag).as_bytes(), || selected);
            assert_eq!(owner, Some(owns), "{method}{tag}");
        }
    }
}
