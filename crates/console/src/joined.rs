//! A call that passed several borders: their records as one, in a store of several.

use crate::call::StoredCall;
use crate::edits::counterpart;
use crate::found::{LoadedMessage, StoredEvent};
use crate::segment::StoredDirection;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Time within which the copies of a message at its sender and at its receiver are one message, nanoseconds.
const SAME_MESSAGE: u64 = 2_000_000_000;

/// The record of one border.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRecord {
    /// The call.
    pub call: StoredCall,
    /// Its messages in order of time.
    pub messages: Vec<LoadedMessage>,
    /// Its events in order of time.
    pub events: Vec<StoredEvent>,
}

/// A call with the records of all borders that it passed. Each of its messages has a position in order of time; a
/// message from one border to another is in both records and has one position.
#[derive(Clone, Debug)]
pub struct JoinedCall {
    records: Vec<CallRecord>,
    /// Record and place in it of each message.
    order: Vec<(usize, usize)>,
    /// The position of each message of each record; `None` beyond the limit.
    positions: Vec<Vec<Option<usize>>>,
    legs: BTreeMap<String, u8>,
    truncated: bool,
    events_truncated: bool,
}

impl JoinedCall {
    /// Joins the records of a call; `limit` is the number of messages at most.
    pub fn new(records: Vec<CallRecord>, limit: usize) -> JoinedCall {
        let records = in_order(records);
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (record, one) in records.iter().enumerate() {
            all.extend((0..one.messages.len()).map(|place| (record, place)));
        }
        let message = |(record, place): (usize, usize)| {
            let record: Option<&CallRecord> = records.get(record);
            record.and_then(|record| record.messages.get(place))
        };
        all.sort_by_key(|at| message(*at).map_or(0, |message| message.time));
        let messages: Vec<&LoadedMessage> = all.iter().filter_map(|at| message(*at)).collect();
        let copies = match records.len() {
            1 => vec![None; messages.len()],
            _ => copies(&messages),
        };
        let mut order = Vec::new();
        let mut position_of = vec![None; all.len()];
        for (at, place) in all.iter().enumerate() {
            if copies.get(at).is_some_and(Option::is_none) && order.len() < limit {
                if let Some(position) = position_of.get_mut(at) {
                    *position = Some(order.len());
                }
                order.push(*place);
            }
        }
        let mut positions: Vec<Vec<Option<usize>>> = records
            .iter()
            .map(|record| vec![None; record.messages.len()])
            .collect();
        let mut kept = 0;
        for (at, (record, place)) in all.iter().enumerate() {
            let copy = copies.get(at).copied().flatten();
            kept += usize::from(copy.is_none());
            let position = position_of.get(copy.unwrap_or(at)).copied().flatten();
            if let Some(slot) = positions
                .get_mut(*record)
                .and_then(|all| all.get_mut(*place))
            {
                *slot = position;
            }
        }
        JoinedCall {
            truncated: kept > order.len(),
            events_truncated: false,
            legs: legs(&records),
            records,
            order,
            positions,
        }
    }

    /// The call of which some messages were not read.
    pub(crate) fn truncated(self) -> JoinedCall {
        JoinedCall {
            truncated: true,
            ..self
        }
    }

    /// The call of which some events were not read.
    pub(crate) fn events_truncated(self) -> JoinedCall {
        JoinedCall {
            events_truncated: true,
            ..self
        }
    }

    /// The records in the order in which the borders got the call.
    pub fn records(&self) -> &[CallRecord] {
        &self.records
    }

    /// Whether there are more messages than the limit.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Whether a record has more events than were read.
    pub fn has_more_events(&self) -> bool {
        self.events_truncated
    }

    /// The messages in order of time.
    pub fn messages(&self) -> impl Iterator<Item = &LoadedMessage> {
        (0..self.order.len()).filter_map(|at| self.message(at))
    }

    /// The message at this position.
    pub fn message(&self, position: usize) -> Option<&LoadedMessage> {
        let (record, place) = self.order.get(position)?;
        self.records.get(*record)?.messages.get(*place)
    }

    /// The record that has the message at this position: that of its sender, if both ends have one.
    pub fn record_of(&self, position: usize) -> Option<&CallRecord> {
        self.records.get(self.order.get(position)?.0)
    }

    /// The position of the message on the other leg of the same border, and this message: see [`counterpart`].
    pub fn counterpart(&self, position: usize) -> Option<(usize, &LoadedMessage)> {
        let (record, place) = *self.order.get(position)?;
        let messages = &self.records.get(record)?.messages;
        let other = counterpart(messages, place)?;
        let position = (*self.positions.get(record)?.get(other)?)?;
        Some((position, messages.get(other)?))
    }

    /// The leg of a Call-ID: 0 that of the caller, 1 behind the first border, 2 behind the second one.
    pub fn leg(&self, call_id: &str) -> Option<u8> {
        // Records have the beginning of long ones.
        let stored = crate::index::text_of(call_id.as_bytes());
        self.legs.get(&stored).copied()
    }
}

/// A record comes after the one that has its first Call-ID on a further leg; records without such a relation are in
/// order of time.
fn in_order(mut rest: Vec<CallRecord>) -> Vec<CallRecord> {
    rest.sort_by_key(|record| (record.call.started, record.call.id));
    let mut ordered = Vec::new();
    while !rest.is_empty() {
        let follows = |at: usize, record: &CallRecord| {
            let first = record.call.call_ids.first();
            let mut others = rest.iter().enumerate().filter(|(other, _)| *other != at);
            let leads_to = |other: &CallRecord| {
                let mut further = other.call.call_ids.iter().skip(1);
                further.any(|id| Some(id) == first)
            };
            first.is_some() && others.any(|(_, other)| leads_to(other))
        };
        let mut all = rest.iter().enumerate();
        let next = all.position(|(at, record)| !follows(at, record));
        // A call that returns to a border on the way has no first one.
        ordered.push(rest.remove(next.unwrap_or(0)));
    }
    ordered
}

fn legs(records: &[CallRecord]) -> BTreeMap<String, u8> {
    let mut legs = BTreeMap::new();
    for record in records {
        let mut ids = record.call.call_ids.iter();
        let Some(first) = ids.next() else { continue };
        let leg: u8 = *legs.entry(first.clone()).or_insert(0);
        for id in ids {
            legs.entry(id.clone()).or_insert(leg.saturating_add(1));
        }
    }
    legs
}

/// For each message the one of which it is a copy: a received message that another node recorded as sent. Each sent one
/// has one copy. Clocks may differ, so that the copy at the receiver may be the earlier one.
pub(crate) fn copies<'m>(all: &[&'m LoadedMessage]) -> Vec<Option<usize>> {
    let mut sent: BTreeMap<(SocketAddr, &'m [u8]), Vec<usize>> = BTreeMap::new();
    for (at, &message) in all.iter().enumerate() {
        if message.direction == StoredDirection::Sent {
            let key = (message.destination, &*message.bytes);
            sent.entry(key).or_default().push(at);
        }
    }
    let copy_of = |message: &&'m LoadedMessage| {
        let message = *message;
        if message.direction != StoredDirection::Received {
            return None;
        }
        let originals = sent.get_mut(&(message.destination, &*message.bytes))?;
        let found = originals.iter().position(|at| {
            all.get(*at).is_some_and(|other| {
                other.node != message.node && message.time.abs_diff(other.time) <= SAME_MESSAGE
            })
        });
        found.map(|found| originals.remove(found))
    };
    all.iter().map(copy_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use StoredDirection::{Received, Sent};
    use engine::Transport;

    fn message(node: &str, time: u64, direction: StoredDirection, bytes: &[u8]) -> LoadedMessage {
        LoadedMessage {
            node: node.into(),
            time,
            direction,
            transport: Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn a_message_between_nodes_is_one() {
        let all = [
            message("a", 1, Sent, b"INVITE"),
            message("b", 2, Received, b"INVITE"),
            // A retransmission of which the second copy was lost, and one that arrived twice.
            message("a", 3, Sent, b"INVITE"),
            message("b", 4, Received, b"BYE"),
            message("b", SAME_MESSAGE + 10, Received, b"INVITE"),
        ];
        let all: Vec<&LoadedMessage> = all.iter().collect();
        assert_eq!(copies(&all), [None, Some(0), None, None, None]);
    }

    /// The record of a node with a request on each of its legs: received on the first one, sent on the others.
    fn record(node: &str, started: i64, call_ids: &[&str]) -> CallRecord {
        let request =
            |id: &str| format!("INVITE sip:a@b SIP/2.0\r\nCall-ID: {id}\r\nCSeq: 1 INVITE\r\n\r\n");
        let start = started as u64 * 1_000_000;
        let messages = call_ids.iter().zip(0_u64..).map(|(id, at)| {
            let direction = if at == 0 { Received } else { Sent };
            message(node, start + at, direction, request(id).as_bytes())
        });
        CallRecord {
            messages: messages.collect(),
            call: StoredCall {
                id: started,
                started,
                node: node.into(),
                call_ids: call_ids.iter().map(|id| (*id).to_owned()).collect(),
                ..StoredCall::default()
            },
            events: Vec::new(),
        }
    }

    #[test]
    fn records_of_three_borders_are_one_call() {
        // The clock of the first border is fast.
        let last = record("c", 1, &["3", "4", "5"]);
        let joined = JoinedCall::new(
            vec![
                last,
                record("a", 3, &["1", "2"]),
                record("b", 2, &["2", "3"]),
            ],
            100,
        );
        let nodes = joined.records().iter().map(|record| &*record.call.node);
        assert_eq!(nodes.collect::<Vec<_>>(), ["a", "b", "c"]);
        let legs = ["1", "2", "3", "4", "5", "6"].map(|id| joined.leg(id));
        assert_eq!(legs, [Some(0), Some(1), Some(2), Some(3), Some(3), None]);
        // Seven messages, of which two are at both ends.
        let nodes: Vec<&str> = joined.messages().map(|message| &*message.node).collect();
        assert_eq!(nodes, ["c", "c", "b", "a", "a"]);
        let sent_by = |node: &str| nodes.iter().position(|one| *one == node).unwrap();
        // The first border received the counterpart itself; that of the second one is recorded as sent by the first.
        assert_eq!(joined.counterpart(4).map(|(at, _)| at), Some(3));
        let (at, counterpart) = joined.counterpart(sent_by("b")).unwrap();
        assert_eq!((at, &*counterpart.node), (4, "b"));
        assert_eq!(joined.record_of(2).unwrap().call.node, "b");
        assert!(!joined.is_truncated());
        let short = JoinedCall::new(vec![record("a", 3, &["1", "2"])], 1);
        assert!(short.is_truncated());
        assert_eq!((short.messages().count(), short.counterpart(0)), (1, None));
        // A call without end: two borders send it to each other.
        let circle = vec![record("a", 1, &["1", "2"]), record("b", 2, &["2", "1"])];
        assert_eq!(JoinedCall::new(circle, 100).records().len(), 2);
    }
}
