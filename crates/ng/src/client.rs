//! Client transactions of the "ng" protocol over UDP: cookies, retransmission, replies, timeouts.
//!
//! A command is retransmitted with the same cookie until its reply arrives, so that the node carries it out once.
//! Abandoned commands are kept for a while, so that a late reply can be matched and its call deleted at the node.

use core::time::Duration;
use engine::{Entropy, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use wire::ng::{BencodeItem, NgMessage, Value};

/// Times between the transmissions of a command; after the last one it is abandoned.
const RETRANSMIT_AFTER: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_000),
];
/// Transmissions of a check within its timeout.
const CHECK_TRANSMISSIONS: u32 = 3;
/// A command found due this late was not awaited: this thread was stalled.
const STALLED: Duration = Duration::from_millis(100);
/// Pending commands at most.
const MAX_PENDING: usize = 16_384;
/// Abandoned commands at most.
const MAX_LATE: usize = 1_024;

/// Identifies a command; numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CommandId(u64);

/// A pending command.
#[derive(Debug)]
struct PendingCommand<W> {
    to: SocketAddr,
    cookie: String,
    purpose: W,
    bytes: Vec<u8>,
    sent: usize,
    due: Time,
    /// Total timeout, if it differs from the default.
    timeout: Option<Duration>,
    /// It was retransmitted once more because of a stall.
    was_stalled: bool,
}

impl<W> PendingCommand<W> {
    /// The wait after this transmission; `None`: it is abandoned.
    fn wait(&self, sending: usize) -> Option<Duration> {
        match self.timeout {
            None => RETRANSMIT_AFTER.get(sending).copied(),
            Some(timeout) => {
                (sending < CHECK_TRANSMISSIONS as usize).then(|| timeout / CHECK_TRANSMISSIONS)
            }
        }
    }
}

/// Match of a datagram to a command.
#[derive(Debug)]
pub enum ReplyMatch<W> {
    /// The reply to a pending command.
    Reply(CommandId, W, Value),
    /// The reply to an abandoned command.
    Late(W),
    /// No matching command.
    Unexpected,
}

/// See the module's documentation. `W` is the purpose of a command.
#[derive(Debug)]
pub struct NgClient<W> {
    entropy: Entropy,
    next: u64,
    asked: BTreeMap<CommandId, PendingCommand<W>>,
    due: BTreeSet<(Time, CommandId)>,
    late: VecDeque<(SocketAddr, String, W)>,
    outgoing: VecDeque<CommandId>,
}

impl<W> NgClient<W> {
    /// A client without commands. `entropy` makes the cookies unpredictable.
    pub fn new(entropy: Entropy) -> NgClient<W> {
        NgClient {
            entropy,
            next: 0,
            asked: BTreeMap::new(),
            due: BTreeSet::new(),
            late: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Number of pending commands.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.asked.len()
    }

    /// Number of pending commands with a purpose for which `which` is true.
    pub fn count(&self, which: impl Fn(&W) -> bool) -> usize {
        self.asked
            .values()
            .filter(|asked| which(&asked.purpose))
            .count()
    }

    /// Sends a command; `None` at the limit of pending commands.
    pub fn send(
        &mut self,
        to: SocketAddr,
        purpose: W,
        body: &Value,
        now: Time,
    ) -> Option<CommandId> {
        self.send_with_timeout(to, purpose, body, None, now)
    }

    /// Sends a command with its own timeout.
    pub fn send_with_timeout(
        &mut self,
        to: SocketAddr,
        purpose: W,
        body: &Value,
        timeout: Option<Duration>,
        now: Time,
    ) -> Option<CommandId> {
        if self.asked.len() >= MAX_PENDING {
            return None;
        }
        self.next += 1;
        let id = CommandId(self.next);
        // The cookie is unpredictable, so that a reply cannot be forged without seeing the command.
        let cookie = format!("{:x}_{:016x}", self.next, self.entropy.u64());
        let mut bytes = Vec::new();
        NgMessage::write(cookie.as_bytes(), body, &mut bytes);
        let mut asked = PendingCommand {
            to,
            cookie,
            purpose,
            bytes,
            sent: 1,
            due: now,
            timeout,
            was_stalled: false,
        };
        asked.due = now + asked.wait(0).unwrap_or_default();
        self.due.insert((asked.due, id));
        self.asked.insert(id, asked);
        self.outgoing.push_back(id);
        Some(id)
    }

    fn take(&mut self, id: CommandId) -> Option<PendingCommand<W>> {
        let asked = self.asked.remove(&id)?;
        self.due.remove(&(asked.due, id));
        Some(asked)
    }

    /// Cancels a command; its reply is still matched as a late one.
    pub fn cancel(&mut self, id: CommandId) {
        if let Some(asked) = self.take(id) {
            self.keep_late(asked);
        }
    }

    fn keep_late(&mut self, asked: PendingCommand<W>) {
        if self.late.len() >= MAX_LATE {
            self.late.pop_front();
        }
        self.late.push_back((asked.to, asked.cookie, asked.purpose));
    }

    /// Matches a datagram from a node.
    pub fn match_reply(&mut self, source: SocketAddr, bytes: &[u8]) -> ReplyMatch<W> {
        let Ok(message) = NgMessage::parse(bytes) else {
            return ReplyMatch::Unexpected;
        };
        let cookie = std::str::from_utf8(message.cookie).unwrap_or_default();
        let number = cookie.split('_').next();
        let id = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        let id = CommandId(id.unwrap_or_default());
        let fits = |asked: &PendingCommand<W>| asked.to == source && asked.cookie == cookie;
        if self.asked.get(&id).is_some_and(fits)
            && let Some(asked) = self.take(id)
        {
            let body = Value::from(BencodeItem::Dictionary(message.body));
            return ReplyMatch::Reply(id, asked.purpose, body);
        }
        let existing = |late: &(SocketAddr, String, W)| late.0 == source && late.1 == cookie;
        match self.late.iter().position(existing) {
            Some(at) => match self.late.remove(at) {
                Some((_, _, purpose)) => ReplyMatch::Late(purpose),
                None => ReplyMatch::Unexpected,
            },
            None => ReplyMatch::Unexpected,
        }
    }

    /// Retransmits due commands; returns the commands that are abandoned.
    pub fn handle_timeout(&mut self, now: Time) -> Vec<(CommandId, SocketAddr, W)>
    where
        W: Clone,
    {
        let mut expired = Vec::new();
        while let Some(&(due, id)) = self.due.first() {
            if due > now {
                break;
            }
            self.due.remove(&(due, id));
            let Some(asked) = self.asked.get_mut(&id) else {
                continue;
            };
            let mut wait = asked.wait(asked.sent);
            if wait.is_none() && !asked.was_stalled && now > due + STALLED {
                // Its reply may be in the socket, unread.
                asked.was_stalled = true;
                wait = asked.wait(asked.sent.saturating_sub(1));
            }
            match wait {
                Some(wait) => {
                    asked.sent += 1;
                    // From now, not from the due time: a stall of this thread must not abandon commands.
                    asked.due = now + wait;
                    self.due.insert((asked.due, id));
                    self.outgoing.push_back(id);
                }
                None => {
                    if let Some(asked) = self.asked.remove(&id) {
                        expired.push((id, asked.to, asked.purpose.clone()));
                        self.keep_late(asked);
                    }
                }
            }
        }
        expired
    }

    /// Abandons all commands to a node.
    pub fn abandon_node(&mut self, to: SocketAddr) -> Vec<(CommandId, W)>
    where
        W: Clone,
    {
        let of_node = self.asked.iter().filter(|(_, asked)| asked.to == to);
        let ids: Vec<CommandId> = of_node.map(|(id, _)| *id).collect();
        let mut expired = Vec::new();
        for id in ids {
            if let Some(asked) = self.take(id) {
                expired.push((id, asked.purpose.clone()));
                self.keep_late(asked);
            }
        }
        expired
    }

    /// Time of the next [`NgClient::handle_timeout`].
    pub fn next_deadline(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Destination of the next datagram.
    pub fn next_destination(&mut self) -> Option<SocketAddr> {
        loop {
            let id = self.outgoing.front()?;
            if let Some(asked) = self.asked.get(id) {
                return Some(asked.to);
            }
            self.outgoing.pop_front();
        }
    }

    /// The next datagram: destination and bytes.
    pub fn next_datagram(&mut self) -> Option<(SocketAddr, &[u8])> {
        let id = loop {
            let id = self.outgoing.pop_front()?;
            if self.asked.contains_key(&id) {
                break id;
            }
        };
        let asked = self.asked.get(&id)?;
        Some((asked.to, &asked.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> SocketAddr {
        "192.0.2.5:2223".parse().unwrap()
    }

    fn client() -> NgClient<u8> {
        NgClient::new(Entropy::from_number(5))
    }

    fn sent(client: &mut NgClient<u8>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some((to, bytes)) = client.next_datagram() {
            assert_eq!(to, node());
            all.push(bytes.to_vec());
        }
        all
    }

    fn reply_to(command: &[u8]) -> Vec<u8> {
        let cookie = NgMessage::parse(command).unwrap().cookie;
        let mut reply = Vec::new();
        NgMessage::write(
            cookie,
            &Value::dictionary().with("result", "pong"),
            &mut reply,
        );
        reply
    }

    fn ping(client: &mut NgClient<u8>, now: Time) -> Vec<u8> {
        let body = Value::dictionary().with("command", "ping");
        client.send(node(), 7, &body, now).unwrap();
        sent(client).pop().unwrap()
    }

    #[test]
    fn a_command_is_retransmitted_until_its_reply() {
        let mut client = client();
        let command = ping(&mut client, Time::ZERO);
        assert!(command.ends_with(b" d7:command4:pinge"));
        let at = client.next_deadline().unwrap();
        assert_eq!(at, Time::from_millis(250));
        assert!(client.handle_timeout(at).is_empty());
        assert_eq!(sent(&mut client), std::slice::from_ref(&command));
        let reply = reply_to(&command);
        assert!(matches!(
            client.match_reply("192.0.2.6:2223".parse().unwrap(), &reply),
            ReplyMatch::Unexpected
        ));
        match client.match_reply(node(), &reply) {
            ReplyMatch::Reply(_, 7, body) => {
                assert_eq!(body, Value::dictionary().with("result", "pong"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.next_deadline(), None);
        assert!(matches!(
            client.match_reply(node(), &reply),
            ReplyMatch::Unexpected
        ));
    }

    #[test]
    fn a_command_without_reply_is_abandoned_and_a_late_reply_is_matched() {
        let mut client = client();
        let command = ping(&mut client, Time::ZERO);
        let mut sendings = 1;
        let (expired, at) = loop {
            let at = client.next_deadline().unwrap();
            let expired = client.handle_timeout(at);
            sendings += sent(&mut client).len();
            if !expired.is_empty() {
                break (expired, at);
            }
        };
        assert_eq!((sendings, at), (4, Time::from_millis(2_750)));
        assert!(matches!(expired.as_slice(), [(_, to, 7)] if *to == node()));
        let reply = reply_to(&command);
        assert!(matches!(
            client.match_reply(node(), &reply),
            ReplyMatch::Late(7)
        ));
        assert!(matches!(
            client.match_reply(node(), &reply),
            ReplyMatch::Unexpected
        ));
        assert_eq!(client.len(), 0);
    }

    #[test]
    fn a_stall_of_the_thread_abandons_no_command() {
        let mut client = client();
        ping(&mut client, Time::ZERO);
        let now = Time::from_secs(30);
        assert!(
            client.handle_timeout(now).is_empty(),
            "sent again, not given up"
        );
        assert_eq!(sent(&mut client).len(), 1);
        assert_eq!(client.next_deadline(), Some(now + RETRANSMIT_AFTER[1]));
    }

    #[test]
    fn a_check_times_out_unless_the_thread_stalled() {
        let mut client = client();
        let body = Value::dictionary().with("command", "ping");
        let timeout = Some(Duration::from_millis(600));
        let ask = |client: &mut NgClient<u8>, at| {
            client
                .send_with_timeout(node(), 7, &body, timeout, at)
                .unwrap();
            sent(client);
        };
        ask(&mut client, Time::ZERO);
        for millis in [200, 400] {
            let at = Time::from_millis(millis);
            assert_eq!(client.next_deadline(), Some(at));
            assert!(client.handle_timeout(at).is_empty());
            assert_eq!(sent(&mut client).len(), 1);
        }
        assert_eq!(client.handle_timeout(Time::from_millis(600)).len(), 1);
        ask(&mut client, Time::from_secs(1));
        client.handle_timeout(Time::from_millis(1_200));
        client.handle_timeout(Time::from_millis(1_400));
        sent(&mut client);
        let late = Time::from_millis(3_000);
        assert!(
            client.handle_timeout(late).is_empty(),
            "nothing was read for long"
        );
        assert_eq!(sent(&mut client).len(), 1);
        assert_eq!(client.handle_timeout(Time::from_millis(3_200)).len(), 1);
    }

    #[test]
    fn pending_and_late_commands_are_limited() {
        let mut client = client();
        let body = Value::dictionary();
        for _ in 0..MAX_PENDING {
            assert!(client.send(node(), 1, &body, Time::ZERO).is_some());
        }
        assert_eq!(client.send(node(), 1, &body, Time::ZERO), None);
        assert_eq!(client.abandon_node(node()).len(), MAX_PENDING);
        assert_eq!(client.late.len(), MAX_LATE);
        assert_eq!(client.next_deadline(), None);
    }
}
