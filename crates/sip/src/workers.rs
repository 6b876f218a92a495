//! Several endpoints that share their addresses. What one of them began it alone continues: its number stands in every branch
//! and tag of its making. What is new belongs to whom the keyed hash of its Call-ID says, whichever way it comes; so INVITE,
//! CANCEL and the ACK of a refusal find each other. An INVITE belongs to another one where the user says so
//! ([`User::owner`]). What comes to another one is handed to its owner, messages of
//! connections together with the connection, by which the owner answers through the one who holds it.

use crate::api::{Flow, LocalId, User};
use crate::endpoint::Endpoint;
use crate::names::{MAGIC, Name};
use crate::outbox::Item;
use core::hash::BuildHasher as _;
use engine::{
    CloseWhy, ConnectionId, Datagram, DropReason, Parcel, ParcelHead, Time, Transport, Worker,
};
use std::net::SocketAddr;
use wire::sip::{Glance, Message};

/// Length of Call-IDs of our making whose first two digits are their owner's number: see [`Endpoint::owned`].
const CALL_ID_LEN: usize = 48;

/// The worker whose number a name of our making has in it.
pub(crate) fn named(worker: &Worker, name: &[u8]) -> Option<u8> {
    let (_, cookie) = Name::decode(name)?;
    Some((cookie >> 56) as u8).filter(|number| *number < worker.of)
}

fn of_branch(worker: &Worker, branch: &[u8]) -> Option<u8> {
    let (magic, name) = branch.split_at_checked(MAGIC.len())?;
    named(worker, name).filter(|_| magic.eq_ignore_ascii_case(MAGIC))
}

fn of_call_id(worker: &Worker, call_id: &[u8]) -> u8 {
    let ours = || {
        let digits = call_id.get(..2).filter(|_| call_id.len() == CALL_ID_LEN)?;
        let number = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        (number < worker.of).then_some(number)
    };
    // Whose it is by chance matters to nobody: it is one and the same for all that carries it.
    ours().unwrap_or_else(|| (worker.key.hash_one(call_id) % u64::from(worker.of)) as u8)
}

/// The worker whose message this is; `None`: whoever has it. `wanted`: who is to have the INVITE that it is, or that it cancels.
pub(crate) fn owner(
    worker: &Worker,
    bytes: &[u8],
    wanted: impl FnOnce() -> Option<u8>,
) -> Option<u8> {
    // Line ends in front of a message are nothing (RFC 3261 section 7.5); alone they keep a way open.
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let bytes = bytes.get(skipped..)?;
    match bytes.first()? {
        // An answer to a STUN request of ours begins its transaction's number with ours (RFC 8489 section 5).
        1 if bytes.get(1) == Some(&1) => return bytes.get(8).copied().filter(|n| *n < worker.of),
        ..4 => return None,
        _ => {}
    }
    let glance = Glance::at(bytes);
    if !glance.request {
        return of_branch(worker, glance.branch?);
    }
    let begins = || {
        let invite = bytes.starts_with(b"INVITE ") || bytes.starts_with(b"CANCEL ");
        (invite && glance.to_tag.is_none()).then(wanted)?
    };
    glance
        .to_tag
        .or(glance.replaces)
        .and_then(|tag| named(worker, tag))
        .or_else(|| begins().filter(|number| *number < worker.of))
        .or_else(|| Some(of_call_id(worker, glance.call_id?)))
}

impl Endpoint {
    /// A secret for what is ours, with our number in it where there are others.
    pub(crate) fn cookie(&mut self) -> u64 {
        let cookie = self.entropy.u64();
        self.owned(cookie)
    }

    /// A number with ours in its highest byte, where others share our addresses: what begins with its hexadecimal digits, as
    /// Call-IDs of 48 do, leads to us.
    pub fn owned(&self, cookie: u64) -> u64 {
        let worker = &self.config.worker;
        match worker.is_alone() {
            true => cookie,
            false => cookie & (u64::MAX >> 8) | u64::from(worker.number) << 56,
        }
    }

    /// Which one we are of those that share our addresses.
    pub fn worker(&self) -> &Worker {
        &self.config.worker
    }

    /// The other worker whose message this is.
    fn elsewhere(
        &self,
        bytes: &[u8],
        flow: impl FnOnce() -> Option<Flow>,
        user: &dyn User,
    ) -> Option<u8> {
        let worker = &self.config.worker;
        if worker.is_alone() {
            return None;
        }
        let owner = owner(worker, bytes, || user.owner(bytes, &flow()?));
        owner.filter(|owner| *owner != worker.number)
    }

    /// The other worker whose a datagram is; `None`: it is ours.
    pub fn other_owner(&self, datagram: &Datagram<'_>, user: &dyn User) -> Option<u8> {
        let flow = || {
            Some(Flow {
                local: self.net.local_of(datagram.socket, None)?,
                transport: Transport::Udp,
                remote: datagram.source,
                connection: None,
            })
        };
        self.elsewhere(datagram.bytes, flow, user)
    }

    /// Hands a datagram to the worker whose it is; `false`: where it came is no listening point.
    pub fn hand_datagram(&mut self, datagram: &Datagram<'_>, worker: u8, now: Time) -> bool {
        let Some(local) = self.net.local_of(datagram.socket, None) else {
            return false;
        };
        let head = ParcelHead::Datagram {
            local: local.0,
            source: datagram.source,
            arrived: datagram.arrived,
            handed: now,
            passed: 0,
        };
        let item = Item::Hand { worker, head };
        self.net.out.push_copy(item, datagram.bytes);
        true
    }

    /// The same for what the network says about a datagram that one of us sent.
    pub(crate) fn hand_unreachable(
        &mut self,
        local: LocalId,
        destination: SocketAddr,
        quoted: &[u8],
    ) -> bool {
        let worker = self.config.worker;
        if worker.is_alone() {
            return false;
        }
        let owner = crate::endpoint::branch_in(quoted).and_then(|b| of_branch(&worker, b));
        let Some(owner) = owner.filter(|owner| *owner != worker.number) else {
            return false;
        };
        let head = ParcelHead::Unreachable {
            local: local.0,
            destination,
        };
        let item = Item::Hand {
            worker: owner,
            head,
        };
        self.net.out.push_copy(item, quoted);
        true
    }

    /// The same for a whole message of a connection that we hold.
    pub(crate) fn hand_message(&mut self, bytes: &[u8], flow: &Flow, user: &dyn User) -> bool {
        let Some(worker) = self.elsewhere(bytes, || Some(*flow), user) else {
            return false;
        };
        self.lend(bytes, flow, worker, 0)
    }

    fn lend(&mut self, bytes: &[u8], flow: &Flow, worker: u8, passed: u8) -> bool {
        let Some(connection) = flow.connection else {
            return false;
        };
        self.lent_to(connection, worker);
        let head = ParcelHead::Message {
            connection,
            local: flow.local.0,
            remote: flow.remote,
            passed,
        };
        self.net.out.push_copy(Item::Hand { worker, head }, bytes);
        true
    }

    fn lent_to(&mut self, connection: ConnectionId, worker: u8) {
        if let Some(slot) = self.net.connection(connection)
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.lent |= 1 << (worker % Worker::MOST);
        }
    }

    /// A CANCEL that means nothing here may mean an INVITE that was handed elsewhere for what it replaces, of which the CANCEL
    /// says nothing: it goes round once. `true`: it goes on.
    pub(crate) fn pass_cancel(&mut self, request: &Message<'_>, flow: &Flow) -> bool {
        let worker = self.config.worker;
        if self.passed + 1 >= worker.of {
            return false;
        }
        self.pass_on(request, flow, (worker.number + 1) % worker.of)
    }

    /// Hands a message on that is another worker's although it was led to us; `false`: it went round already.
    pub(crate) fn pass_on(&mut self, request: &Message<'_>, flow: &Flow, worker: u8) -> bool {
        let passed = self.passed + 1;
        if passed > self.config.worker.of {
            return false;
        }
        if flow.connection.is_some() {
            return self.lend(request.bytes(), flow, worker, passed);
        }
        let head = ParcelHead::Datagram {
            local: flow.local.0,
            source: flow.remote,
            arrived: self.now,
            handed: self.now,
            passed,
        };
        self.net
            .out
            .push_copy(Item::Hand { worker, head }, request.bytes());
        true
    }

    /// Tells another worker a word that is between the users alone.
    pub fn tell_worker(&mut self, worker: u8, head: ParcelHead) {
        self.net.out.push_bare(Item::Hand { worker, head });
    }

    /// Takes what another worker hands over.
    pub(crate) fn handed(&mut self, parcel: Parcel<'_>, now: Time, user: &mut dyn User) {
        let known = |local: u16| usize::from(local) < self.net.points.len();
        match parcel.head {
            ParcelHead::Datagram { local, .. }
            | ParcelHead::Unreachable { local, .. }
            | ParcelHead::Message { local, .. }
                if !known(local) =>
            {
                self.drops.count(DropReason::SipNotHanded);
            }
            ParcelHead::Datagram {
                local,
                source,
                passed,
                ..
            } => {
                let flow = Flow {
                    local: LocalId(local),
                    transport: Transport::Udp,
                    remote: source,
                    connection: None,
                };
                self.passed = passed;
                self.datagram(parcel.bytes, &flow, now, user);
                self.passed = 0;
            }
            ParcelHead::Unreachable { local, destination } => {
                self.unreachable(LocalId(local), destination, parcel.bytes, now, user);
            }
            ParcelHead::Message {
                connection,
                local,
                remote,
                passed,
            } => {
                let local = LocalId(local);
                let transport = self.net.point(local).map(|point| point.transport);
                let idle = self.config.timers.idle;
                let net = &mut self.net;
                let slot = net.borrow(connection, local, remote, now, &mut self.wheel, idle);
                let (Some(slot), Some(transport)) = (slot, transport) else {
                    self.drops.count(DropReason::SipTableFull);
                    return;
                };
                if let Some(connection) = self.net.connections.get_mut(slot as usize) {
                    connection.used = now;
                }
                let flow = Flow {
                    local,
                    transport,
                    remote,
                    connection: Some(connection),
                };
                self.passed = passed;
                let parsed = match transport {
                    Transport::Ws | Transport::Wss => Message::parse_datagram(parcel.bytes),
                    _ => Message::parse_framed(parcel.bytes),
                };
                match parsed {
                    Ok(message) => self.message(&message, &flow, now, user),
                    Err(_) => self.drops.count(DropReason::SipUnparsable),
                }
                self.passed = 0;
            }
            ParcelHead::Send { connection, from } => match self.net.connection(connection) {
                Some(slot) => {
                    self.lent_to(connection, from);
                    if let Some(connection) = self.net.connections.get_mut(slot as usize) {
                        connection.used = now;
                    }
                    let item = Item::Stream { connection };
                    self.net.out.push_copy(item, parcel.bytes);
                }
                None => self.tell_closed(connection, 1 << (from % Worker::MOST)),
            },
            ParcelHead::Close { connection } => {
                if self.net.connection(connection).is_some() {
                    self.shut(connection, now, user);
                }
            }
            ParcelHead::Closed { connection } => {
                self.closed(connection, CloseWhy::Peer, now, user);
            }
            // The user's.
            ParcelHead::Transfer { .. } => {}
        }
    }

    /// Tells the workers of these bits that a connection of ours has ended.
    pub(crate) fn tell_closed(&mut self, connection: ConnectionId, mut lent: u64) {
        while lent != 0 {
            let worker = lent.trailing_zeros() as u8;
            lent &= lent - 1;
            let head = ParcelHead::Closed { connection };
            self.net.out.push_bare(Item::Hand { worker, head });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Entropy, HashKey};

    fn worker(number: u8, of: u8) -> Worker {
        let key = HashKey::new(&mut Entropy::from_number(5));
        Worker { number, of, key }
    }

    #[test]
    fn what_is_new_is_spread_evenly_and_all_agree() {
        let mut counts = [0; 4];
        for call in 0..4_000 {
            let text =
                format!("INVITE sip:a@b SIP/2.0\r\nTo: <sip:a@b>\r\nCall-ID: {call}@phone\r\n\r\n");
            let owners =
                [0, 3].map(|number| owner(&worker(number, 4), text.as_bytes(), || None).unwrap());
            assert_eq!(owners[0], owners[1]);
            counts[usize::from(owners[0])] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn what_is_ours_comes_back_to_us() {
        let mine = worker(2, 3);
        let name = Name::new(77, 0x02ff_0000_0000_0001);
        let name = std::str::from_utf8(name.as_bytes()).unwrap();
        for text in [
            format!("SIP/2.0 180 R\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{name}\r\n\r\n"),
            format!("BYE sip:h SIP/2.0\r\nCall-ID: x\r\nTo: <sip:a>;tag={name}\r\n\r\n"),
            format!(
                "INVITE sip:h SIP/2.0\r\nTo: <sip:a>\r\ni: x\r\nReplaces: y;to-tag={name};from-tag=1\r\n\r\n"
            ),
            format!(
                "INVITE sip:h SIP/2.0\r\nTo: <sip:a>\r\ni: 02{}\r\n\r\n",
                "0".repeat(46)
            ),
        ] {
            // Whatever is wanted of what begins something: this is ours already.
            let wanted = || {
                assert!(!text.contains("to-tag") && !text.starts_with("BYE"));
                None
            };
            assert_eq!(owner(&mine, text.as_bytes(), wanted), Some(2), "{text}");
        }
        let far = Name::new(77, 0x03ff_0000_0000_0001);
        let far = std::str::from_utf8(far.as_bytes()).unwrap();
        let text = format!("SIP/2.0 180 R\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{far}\r\n\r\n");
        assert_eq!(
            owner(&mine, text.as_bytes(), || None),
            None,
            "there is no such worker"
        );
        assert_eq!(owner(&mine, b"\r\n\r\n", || None), None);
        assert_eq!(owner(&mine, &[1, 1, 0, 0, 0, 0, 0, 0, 2], || None), Some(2));
    }

    #[test]
    fn an_invite_is_whose_the_user_says() {
        let mine = worker(2, 3);
        let text = |method: &str, tag: &str| {
            format!("{method} sip:800@h SIP/2.0\r\nTo: <sip:800@h>{tag}\r\nCall-ID: x\r\n\r\n")
        };
        let by_call_id = owner(&mine, text("INVITE", "").as_bytes(), || None).unwrap();
        let other = (by_call_id + 1) % 3;
        for (method, tag, wanted, owns) in [
            ("INVITE", "", Some(other), other),
            ("CANCEL", "", Some(other), other),
            ("INVITE", "", Some(3), by_call_id),
            ("OPTIONS", "", Some(other), by_call_id),
            ("INVITE", ";tag=strange", Some(other), by_call_id),
            ("\r\n\r\nINVITE", "", Some(other), other),
            ("\r\nOPTIONS", "", Some(other), by_call_id),
        ] {
            let owner = owner(&mine, text(method, tag).as_bytes(), || wanted);
            assert_eq!(owner, Some(owns), "{method}{tag}");
        }
    }
}
