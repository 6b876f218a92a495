//! The commanding side of the "ng" protocol over UDP: cookies, commands that are sent again, replies, time.
//!
//! A command is sent again with the same cookie until its reply comes, so that the node carries it out once. What comes too late is
//! known for a while, lest a call be left at a node that nobody believes in any more.

use core::time::Duration;
use engine::{Entropy, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use wire::ng::{Item, Message, Value};

/// Times between the sendings of a command; after the last one it is given up.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_000),
];
/// How often a check is sent in its time.
const CHECKS: u32 = 3;
/// A command that is found due so late was not waited for: we stood still ourselves.
const STALLED: Duration = Duration::from_millis(100);
/// Commands under way at most.
const MAX_ASKED: usize = 16_384;
/// Commands that were given up and are still known.
const MAX_LATE: usize = 1_024;

/// Names a command; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AskId(pub(crate) u64);

/// A command under way.
#[derive(Debug)]
struct Asked<W> {
    to: SocketAddr,
    cookie: String,
    what: W,
    bytes: Vec<u8>,
    sent: usize,
    due: Time,
    /// It is given up after so long, where that is not as long as for others.
    within: Option<Duration>,
    /// It was sent once more because we stood still ourselves.
    stalled: bool,
}

impl<W> Asked<W> {
    /// How long to wait after the sending with this number; `None`: it is given up.
    fn wait(&self, sending: usize) -> Option<Duration> {
        match self.within {
            None => AGAIN.get(sending).copied(),
            Some(within) => (sending < CHECKS as usize).then(|| within / CHECKS),
        }
    }
}

/// What came of a datagram.
#[derive(Debug)]
pub(crate) enum Heard<W> {
    /// The reply to a command.
    Reply(AskId, W, Value),
    /// The reply to a command that was given up.
    Late(W),
    /// Nothing that was asked for.
    Unasked,
}

/// See the module's text. `W` says what a command was for.
#[derive(Debug)]
pub(crate) struct Client<W> {
    entropy: Entropy,
    next: u64,
    asked: BTreeMap<AskId, Asked<W>>,
    due: BTreeSet<(Time, AskId)>,
    late: VecDeque<(SocketAddr, String, W)>,
    going: VecDeque<AskId>,
}

impl<W> Client<W> {
    pub(crate) fn new(entropy: Entropy) -> Client<W> {
        Client {
            entropy,
            next: 0,
            asked: BTreeMap::new(),
            due: BTreeSet::new(),
            late: VecDeque::new(),
            going: VecDeque::new(),
        }
    }

    /// Commands under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Those of them for which `which` is true.
    pub(crate) fn count(&self, which: impl Fn(&W) -> bool) -> usize {
        self.asked
            .values()
            .filter(|asked| which(&asked.what))
            .count()
    }

    /// Sends a command; `None` where too many are under way.
    pub(crate) fn ask(
        &mut self,
        to: SocketAddr,
        what: W,
        body: &Value,
        now: Time,
    ) -> Option<AskId> {
        self.ask_within(to, what, body, None, now)
    }

    /// The same for a command that is given up `within` a time of its own.
    pub(crate) fn ask_within(
        &mut self,
        to: SocketAddr,
        what: W,
        body: &Value,
        within: Option<Duration>,
        now: Time,
    ) -> Option<AskId> {
        if self.asked.len() >= MAX_ASKED {
            return None;
        }
        self.next += 1;
        let id = AskId(self.next);
        // Nobody who does not see the command can make up its reply.
        let cookie = format!("{:x}_{:016x}", self.next, self.entropy.u64());
        let mut bytes = Vec::new();
        Message::write(cookie.as_bytes(), body, &mut bytes);
        let mut asked = Asked {
            to,
            cookie,
            what,
            bytes,
            sent: 1,
            due: now,
            within,
            stalled: false,
        };
        asked.due = now + asked.wait(0).unwrap_or_default();
        self.due.insert((asked.due, id));
        self.asked.insert(id, asked);
        self.going.push_back(id);
        Some(id)
    }

    fn take(&mut self, id: AskId) -> Option<Asked<W>> {
        let asked = self.asked.remove(&id)?;
        self.due.remove(&(asked.due, id));
        Some(asked)
    }

    /// Nobody waits for this any more; its reply is still one that was asked for.
    pub(crate) fn forget(&mut self, id: AskId) {
        if let Some(asked) = self.take(id) {
            self.remember(asked);
        }
    }

    fn remember(&mut self, asked: Asked<W>) {
        if self.late.len() >= MAX_LATE {
            self.late.pop_front();
        }
        self.late.push_back((asked.to, asked.cookie, asked.what));
    }

    /// A datagram from a node.
    pub(crate) fn hear(&mut self, source: SocketAddr, bytes: &[u8]) -> Heard<W> {
        let Ok(message) = Message::parse(bytes) else {
            return Heard::Unasked;
        };
        let cookie = std::str::from_utf8(message.cookie).unwrap_or_default();
        let number = cookie.split('_').next();
        let id = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        let id = AskId(id.unwrap_or_default());
        let fits = |asked: &Asked<W>| asked.to == source && asked.cookie == cookie;
        if self.asked.get(&id).is_some_and(fits)
            && let Some(asked) = self.take(id)
        {
            let body = Value::from(Item::Dictionary(message.body));
            return Heard::Reply(id, asked.what, body);
        }
        let known = |late: &(SocketAddr, String, W)| late.0 == source && late.1 == cookie;
        match self.late.iter().position(known) {
            Some(at) => match self.late.remove(at) {
                Some((_, _, what)) => Heard::Late(what),
                None => Heard::Unasked,
            },
            None => Heard::Unasked,
        }
    }

    /// Sends again what is due; gives the commands that are given up.
    pub(crate) fn timeout(&mut self, now: Time) -> Vec<(AskId, SocketAddr, W)>
    where
        W: Clone,
    {
        let mut over = Vec::new();
        while let Some(&(due, id)) = self.due.first() {
            if due > now {
                break;
            }
            self.due.remove(&(due, id));
            let Some(asked) = self.asked.get_mut(&id) else {
                continue;
            };
            let mut wait = asked.wait(asked.sent);
            if wait.is_none() && !asked.stalled && now > due + STALLED {
                // Its reply may lie unread.
                asked.stalled = true;
                wait = asked.wait(asked.sent.saturating_sub(1));
            }
            match wait {
                Some(wait) => {
                    asked.sent += 1;
                    // From now on, not from when it was due: whoever stood still himself gives nobody up for that.
                    asked.due = now + wait;
                    self.due.insert((asked.due, id));
                    self.going.push_back(id);
                }
                None => {
                    if let Some(asked) = self.asked.remove(&id) {
                        over.push((id, asked.to, asked.what.clone()));
                        self.remember(asked);
                    }
                }
            }
        }
        over
    }

    /// Gives up everything that was asked there.
    pub(crate) fn give_up(&mut self, to: SocketAddr) -> Vec<(AskId, W)>
    where
        W: Clone,
    {
        let of_node = self.asked.iter().filter(|(_, asked)| asked.to == to);
        let ids: Vec<AskId> = of_node.map(|(id, _)| *id).collect();
        let mut over = Vec::new();
        for id in ids {
            if let Some(asked) = self.take(id) {
                over.push((id, asked.what.clone()));
                self.remember(asked);
            }
        }
        over
    }

    /// When [`Client::timeout`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Whether a datagram may be to leave.
    pub(crate) fn has_output(&self) -> bool {
        self.going.iter().any(|id| self.asked.contains_key(id))
    }

    /// The next datagram: where to, and its bytes.
    pub(crate) fn next_datagram(&mut self) -> Option<(SocketAddr, &[u8])> {
        let id = loop {
            let id = self.going.pop_front()?;
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

    fn client() -> Client<u8> {
        Client::new(Entropy::from_number(5))
    }

    fn sent(client: &mut Client<u8>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some((to, bytes)) = client.next_datagram() {
            assert_eq!(to, node());
            all.push(bytes.to_vec());
        }
        all
    }

    fn reply_to(command: &[u8]) -> Vec<u8> {
        let cookie = Message::parse(command).unwrap().cookie;
        let mut reply = Vec::new();
        Message::write(
            cookie,
            &Value::dictionary().with("result", "pong"),
            &mut reply,
        );
        reply
    }

    fn ping(client: &mut Client<u8>, now: Time) -> Vec<u8> {
        let body = Value::dictionary().with("command", "ping");
        client.ask(node(), 7, &body, now).unwrap();
        sent(client).pop().unwrap()
    }

    #[test]
    fn a_command_is_sent_again_until_its_reply_comes() {
        let mut client = client();
        let command = ping(&mut client, Time::ZERO);
        assert!(command.ends_with(b" d7:command4:pinge"));
        let at = client.next_deadline().unwrap();
        assert_eq!(at, Time::from_millis(250));
        assert!(client.timeout(at).is_empty());
        assert_eq!(sent(&mut client), std::slice::from_ref(&command));
        let reply = reply_to(&command);
        assert!(matches!(
            client.hear("192.0.2.6:2223".parse().unwrap(), &reply),
            Heard::Unasked
        ));
        match client.hear(node(), &reply) {
            Heard::Reply(_, 7, body) => {
                assert_eq!(body, Value::dictionary().with("result", "pong"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.next_deadline(), None);
        assert!(matches!(client.hear(node(), &reply), Heard::Unasked));
    }

    #[test]
    fn a_node_that_says_nothing_is_given_up_and_its_late_reply_is_known() {
        let mut client = client();
        let command = ping(&mut client, Time::ZERO);
        let mut sendings = 1;
        let (over, at) = loop {
            let at = client.next_deadline().unwrap();
            let over = client.timeout(at);
            sendings += sent(&mut client).len();
            if !over.is_empty() {
                break (over, at);
            }
        };
        assert_eq!((sendings, at), (4, Time::from_millis(2_750)));
        assert!(matches!(over.as_slice(), [(_, to, 7)] if *to == node()));
        let reply = reply_to(&command);
        assert!(matches!(client.hear(node(), &reply), Heard::Late(7)));
        assert!(matches!(client.hear(node(), &reply), Heard::Unasked));
        assert_eq!(client.len(), 0);
    }

    #[test]
    fn whoever_stood_still_gives_nobody_up_for_that() {
        let mut client = client();
        ping(&mut client, Time::ZERO);
        let now = Time::from_secs(30);
        assert!(client.timeout(now).is_empty(), "sent again, not given up");
        assert_eq!(sent(&mut client).len(), 1);
        assert_eq!(client.next_deadline(), Some(now + AGAIN[1]));
    }

    #[test]
    fn a_check_is_given_up_within_its_time_unless_we_stood_still() {
        let mut client = client();
        let body = Value::dictionary().with("command", "ping");
        let within = Some(Duration::from_millis(600));
        let ask = |client: &mut Client<u8>, at| {
            client.ask_within(node(), 7, &body, within, at).unwrap();
            sent(client);
        };
        ask(&mut client, Time::ZERO);
        for millis in [200, 400] {
            let at = Time::from_millis(millis);
            assert_eq!(client.next_deadline(), Some(at));
            assert!(client.timeout(at).is_empty());
            assert_eq!(sent(&mut client).len(), 1);
        }
        assert_eq!(client.timeout(Time::from_millis(600)).len(), 1);
        ask(&mut client, Time::from_secs(1));
        client.timeout(Time::from_millis(1_200));
        client.timeout(Time::from_millis(1_400));
        sent(&mut client);
        let late = Time::from_millis(3_000);
        assert!(client.timeout(late).is_empty(), "nothing was read for long");
        assert_eq!(sent(&mut client).len(), 1);
        assert_eq!(client.timeout(Time::from_millis(3_200)).len(), 1);
    }

    #[test]
    fn as_many_as_are_allowed() {
        let mut client = client();
        let body = Value::dictionary();
        for _ in 0..MAX_ASKED {
            assert!(client.ask(node(), 1, &body, Time::ZERO).is_some());
        }
        assert_eq!(client.ask(node(), 1, &body, Time::ZERO), None);
        assert_eq!(client.give_up(node()).len(), MAX_ASKED);
        assert_eq!(client.late.len(), MAX_LATE);
        assert_eq!(client.next_deadline(), None);
    }
}
