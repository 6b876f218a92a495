//! Calls in progress, folded from messages and events until they are written to the index of a partition.

mod fold;
mod reports;
#[cfg(test)]
mod tests;

use crate::call::{CallKind, CallState, StoredCall};
use crate::losses::{LossCounts, Losses};
use crate::segment::StoredMessage;
use engine::{Event, EventKind, EventLevel};
use fold::{fold_addresses, fold_event, fold_message, fold_words};
use siphasher::sip::SipHasher13;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::hash::Hasher as _;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::sip::{HeaderId, Message, Uri};

/// Maximum number of calls in memory. Messages of further ones are in their segments, but cannot be searched.
const MAX_ENTRIES: usize = 400_000;
/// Calls of one slice: keys are sorted within slices, so that new keys touch few pages of the index.
pub(crate) const SLICE_CALLS: u32 = 16_384;
/// The slice of calls that began in an earlier partition.
pub(crate) const CONTINUED_SLICE: i64 = 0;
/// Legs, addresses, numbers and transports of one call, at most.
const MAX_LIST: usize = 16;
/// Further keys and correlation ids of one call, at most.
const MAX_ALIASES: usize = 64;
/// Numbers of earlier calls with the Call-ID of a call, at most; events about the oldest one find it no longer.
const MAX_EARLIER: usize = 64;
/// Longest text of a call, bytes.
const MAX_TEXT: usize = 256;
/// Longest collection of words of a call, bytes.
const MAX_WORDS: usize = 1_024;
/// Time after its last message until an ended call leaves the memory: retransmissions end after 32 s (RFC 3261 section
/// 17), microseconds.
const ENDED_LINGER: i64 = 35_000_000;
/// As [`ENDED_LINGER`], for exchanges that are no calls: there may be many thousands per second.
const SHORT_LINGER: i64 = 2_000_000;
/// As [`ENDED_LINGER`], for messages that belong to no call of the border and have no known end.
const IDLE_LINGER: i64 = 120_000_000;
/// As [`IDLE_LINGER`], for answered calls that capture agents report: their BYE may have been missed.
const OBSERVED_LINGER: i64 = 4 * 3_600 * 1_000_000;
/// As [`IDLE_LINGER`], for calls of the border: the event of their end may have been lost. Longer than the silence of a
/// call without media here and without session timers (RFC 4028).
const SILENT_LINGER: i64 = 30 * 24 * 3_600 * 1_000_000;
/// Entries examined per sweep.
const SWEEP: usize = 100_000;
/// Time after which the words of a call are indexed although it has not ended, microseconds.
const WORDS_DELAY: i64 = 30_000_000;
/// Maximum number of events that wait for the index.
const MAX_EVENTS: usize = 200_000;

/// The key of a value in the index. Collisions are harmless: results are compared with the value itself.
pub(crate) fn key_of(kind: u8, value: &[u8]) -> i64 {
    let mut hasher = SipHasher13::new_with_keys(0x686f_726e_776f_726b, 1);
    hasher.write_u8(kind);
    hasher.write(value);
    hasher.finish() as i64
}

/// Kind of a key: a Call-ID.
pub(crate) const CALL_ID_KEY: u8 = b'c';
/// Kind of a key: an IP address.
pub(crate) const ADDRESS_KEY: u8 = b'a';

/// The IP address in the text of a socket address.
pub(crate) fn ip_text(address: &str) -> &str {
    let ip = address.rsplit_once(':').map_or(address, |(ip, _)| ip);
    ip.trim_start_matches('[').trim_end_matches(']')
}

/// A text of at most [`MAX_TEXT`] bytes.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..MAX_TEXT).unwrap_or(bytes)).into_owned()
}

/// The user of a URI, or its host without one.
fn user_of(uri: &[u8]) -> String {
    match Uri::parse(uri) {
        Some(uri) => match uri.user {
            Some(user) => text_of(user),
            None => uri.host.to_string(),
        },
        None => text_of(uri),
    }
}

/// An event for the index.
#[derive(Debug)]
pub(crate) struct PendingEvent {
    pub(crate) at: i64,
    pub(crate) level: EventLevel,
    pub(crate) name: &'static str,
    pub(crate) call: Option<i64>,
    /// The fields as a JSON object.
    pub(crate) fields: String,
}

/// A call in memory.
#[derive(Debug, Default)]
pub(crate) struct CallEntry {
    pub(crate) call: StoredCall,
    /// Whether the index has it.
    pub(crate) inserted: bool,
    pub(crate) is_dirty: bool,
    pub(crate) slice: i64,
    pub(crate) keys: Vec<i64>,
    /// Number of keys and numbers that the index has.
    pub(crate) keys_written: usize,
    pub(crate) numbers: Vec<String>,
    pub(crate) numbers_written: usize,
    /// Segments and offsets of messages that the index does not have.
    pub(crate) chunks: Vec<(u32, Vec<u32>)>,
    words: String,
    pub(crate) words_written: bool,
    /// Addresses of the peers.
    peers: Vec<SocketAddr>,
    /// Keys of further Call-IDs by which its messages are found, and its correlation ids: slots are reused, so that
    /// none may outlive the entry.
    aliases: Vec<i64>,
    correlations: Vec<i64>,
    /// Numbers of earlier calls with the same Call-ID, the oldest first.
    earlier_calls: VecDeque<u64>,
    /// Tag of the caller.
    caller_tag: Vec<u8>,
    /// Keying of the media security of caller and callee.
    keying: [String; 2],
    /// Time of its last message or event.
    last: i64,
    /// The time of the store when that came: the clock of a capture agent may differ.
    touched: i64,
}

impl CallEntry {
    fn add_key(&mut self, key: i64) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    fn add_number(&mut self, number: String) {
        if !number.is_empty() && self.numbers.len() < MAX_LIST && !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
    }

    fn add_call_id(&mut self, id: String, key: i64) {
        if self.call.call_ids.len() < MAX_LIST && !self.call.call_ids.contains(&id) {
            self.call.call_ids.push(id);
            self.add_key(key);
        }
    }

    fn add_peer(&mut self, peer: SocketAddr) {
        if self.peers.len() < MAX_LIST && !self.peers.contains(&peer) {
            self.peers.push(peer);
            let text = peer.to_string();
            self.add_key(key_of(ADDRESS_KEY, ip_text(&text).as_bytes()));
            if !self.call.addresses.contains(&text) {
                self.call.addresses.push(text);
            }
        }
    }

    fn add_words(&mut self, words: &[u8]) {
        let words = text_of(words);
        if self.words.len() + words.len() < MAX_WORDS && !self.words.contains(&words) {
            self.words.push_str(&words);
            self.words.push('\n');
        }
    }

    /// Messages that the index does not have.
    fn waiting_messages(&self) -> u64 {
        let counts = self.chunks.iter().map(|(_, offsets)| offsets.len() as u64);
        counts.sum()
    }

    /// The words that are to be written to the index now.
    pub(crate) fn due_words(&self) -> Option<&str> {
        let due = !self.call.state.is_open() || self.last - self.call.started > WORDS_DELAY;
        (!self.words_written && due && !self.words.is_empty()).then_some(&self.words)
    }

    /// Ends it with its last message or event: when it really ended is unknown.
    fn interrupt(&mut self, reason: &str) {
        self.call.state = CallState::Interrupted;
        self.call.ended = Some(self.last.max(self.call.started));
        self.call.reason = reason.to_owned();
    }

    /// Whether it may leave the memory at `now`.
    fn is_over(&self, now: i64) -> bool {
        let idle = now - self.touched;
        if self.is_dirty {
            return false;
        }
        match (self.call.state.is_open(), self.call.call.is_some()) {
            (false, _) if self.call.kind == CallKind::Call => idle > ENDED_LINGER,
            (false, _) => idle > SHORT_LINGER,
            (true, true) => idle > SILENT_LINGER,
            (true, false) => match self.call.state {
                CallState::Answered => idle > OBSERVED_LINGER,
                _ => idle > IDLE_LINGER,
            },
        }
    }
}

/// The calls in memory.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    pub(crate) entries: Slab<CallEntry>,
    by_call_id: HashMap<i64, usize>,
    by_call: HashMap<u64, usize>,
    by_correlation: HashMap<i64, usize>,
    pub(crate) dirty: Vec<usize>,
    pub(crate) events: Vec<PendingEvent>,
    pub(crate) last_id: i64,
    /// Time of the store, of its last tick.
    pub(crate) now: i64,
    pub(crate) slice: i64,
    /// Calls of the current slice.
    slice_calls: u32,
    /// First calls of slices that the index does not have.
    pub(crate) new_slices: Vec<(i64, i64)>,
    full_text: bool,
    /// Name of the border in the records.
    node: String,
    swept: usize,
    /// The entry of the last message.
    last_entry: Option<usize>,
    losses: Arc<Losses>,
    /// Maximum number of entries: [`MAX_ENTRIES`].
    room: usize,
}

impl OpenCalls {
    pub(crate) fn new(full_text: bool, node: String, losses: Arc<Losses>) -> OpenCalls {
        OpenCalls {
            entries: Slab::new(),
            by_call_id: HashMap::default(),
            by_call: HashMap::default(),
            by_correlation: HashMap::default(),
            dirty: Vec::new(),
            events: Vec::new(),
            last_id: 0,
            now: 0,
            slice: CONTINUED_SLICE,
            slice_calls: SLICE_CALLS,
            new_slices: Vec::new(),
            full_text,
            node,
            swept: 0,
            last_entry: None,
            losses,
            room: MAX_ENTRIES,
        }
    }

    fn mark(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at)
            && !entry.is_dirty
        {
            entry.is_dirty = true;
            self.dirty.push(at);
        }
    }

    /// Adds an entry; `None` if there are too many.
    fn create(&mut self, started: i64) -> Option<usize> {
        if self.entries.len() >= self.room {
            return None;
        }
        self.last_id = started.max(self.last_id + 1);
        if self.slice_calls >= SLICE_CALLS {
            self.slice += 1;
            self.slice_calls = 0;
            self.new_slices.push((self.slice, self.last_id));
        }
        self.slice_calls += 1;
        Some(self.entries.insert(CallEntry {
            call: StoredCall {
                id: self.last_id,
                node: self.node.clone(),
                started,
                ..StoredCall::default()
            },
            slice: self.slice,
            last: started,
            touched: self.clock(started),
            ..CallEntry::default()
        }))
    }

    /// Takes a call of the index back into memory, after a restart. `last`: time of its last message or event.
    pub(crate) fn restore(&mut self, call: StoredCall, slice: i64, last: Option<i64>) {
        let (ids, number) = (call.call_ids.clone(), call.call);
        let known = [last, call.answered].into_iter().flatten().max();
        let last = known.map_or(call.started, |known| known.max(call.started));
        let at = self.entries.insert(CallEntry {
            call,
            inserted: true,
            slice,
            last,
            touched: last,
            ..CallEntry::default()
        });
        for id in ids {
            self.link(key_of(CALL_ID_KEY, id.as_bytes()), at);
        }
        if let Some(number) = number {
            self.by_call.insert(number, at);
        }
    }

    /// Has messages with the key of a Call-ID belong to an entry.
    fn link(&mut self, key: i64, at: usize) {
        let Some(entry) = self.entries.get_mut(at) else {
            return;
        };
        if !entry.keys.contains(&key) && !entry.aliases.contains(&key) {
            if entry.aliases.len() >= MAX_ALIASES {
                return;
            }
            entry.aliases.push(key);
        }
        self.by_call_id.insert(key, at);
    }

    /// Has messages with a correlation id belong to an entry.
    fn correlate(&mut self, group: i64, at: usize) {
        let Some(entry) = self.entries.get_mut(at) else {
            return;
        };
        if !entry.correlations.contains(&group) {
            if entry.correlations.len() >= MAX_ALIASES {
                return;
            }
            entry.correlations.push(group);
        }
        self.by_correlation.insert(group, at);
    }

    /// Removes an entry with all its keys: its slot will be that of another call.
    fn remove_entry(&mut self, at: usize) -> Option<CallEntry> {
        let entry = self.entries.try_remove(at)?;
        for key in entry.keys.iter().chain(&entry.aliases) {
            if self.by_call_id.get(key) == Some(&at) {
                self.by_call_id.remove(key);
            }
        }
        for group in &entry.correlations {
            if self.by_correlation.get(group) == Some(&at) {
                self.by_correlation.remove(group);
            }
        }
        for call in entry.call.call.iter().chain(&entry.earlier_calls) {
            if self.by_call.get(call) == Some(&at) {
                self.by_call.remove(call);
            }
        }
        self.last_entry = self.last_entry.filter(|last| *last != at);
        Some(entry)
    }

    /// Marks all open calls as interrupted, and leaves only those in memory that are to be written.
    pub(crate) fn interrupt_open(&mut self) -> u64 {
        let mut interrupted = 0;
        let open: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.call.state.is_open() && entry.call.kind == CallKind::Call)
            .map(|(at, _)| at)
            .collect();
        for at in open {
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            entry.interrupt("the border was interrupted");
            entry.call.ended_by = "border".to_owned();
            interrupted += 1;
            self.mark(at);
        }
        // Numbers of calls begin anew with each start of the border.
        self.by_call.clear();
        interrupted
    }

    /// Gives new numbers to calls with numbers below `bound`, because their records are being removed. They are written
    /// anew.
    pub(crate) fn renumber_before(&mut self, bound: i64, now: i64) {
        let old = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.call.id < bound);
        let old: Vec<usize> = old.map(|(at, _)| at).collect();
        for at in old {
            self.last_id = now.max(self.last_id + 1);
            if let Some(entry) = self.entries.get_mut(at) {
                entry.call.id = self.last_id;
                entry.inserted = false;
                (entry.keys_written, entry.numbers_written) = (0, 0);
                entry.words_written = false;
            }
            self.mark(at);
        }
    }

    /// Forgets messages of segment 0 with offsets below `count`, because they are stored.
    pub(crate) fn forget_stored(&mut self, count: u32) {
        for &at in &self.dirty {
            if let Some(entry) = self.entries.get_mut(at) {
                for (_, offsets) in &mut entry.chunks {
                    offsets.retain(|offset| *offset >= count);
                }
            }
        }
    }

    /// Prepares for a new partition: calls in progress are written there too.
    pub(crate) fn begin_partition(&mut self) {
        self.slice = CONTINUED_SLICE;
        self.slice_calls = SLICE_CALLS;
        self.new_slices = vec![(CONTINUED_SLICE, 0)];
        let open: Vec<usize> = self.entries.iter().map(|(at, _)| at).collect();
        for at in open {
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            entry.inserted = false;
            (entry.keys_written, entry.numbers_written) = (0, 0);
            entry.words_written = false;
            entry.slice = CONTINUED_SLICE;
            if entry.call.state.is_open() && entry.call.call.is_some() {
                self.mark(at);
            }
        }
    }

    /// Folds a message; `segment` and `offset` say where it is. `correlation` is that of a capture agent. Returns
    /// whether it belongs to a call now: not without a Call-ID, and not beyond [`MAX_ENTRIES`].
    pub(crate) fn message(
        &mut self,
        stored: &StoredMessage<'_>,
        segment: u32,
        offset: u32,
        correlation: &[u8],
    ) -> bool {
        self.last_entry = None;
        let Ok(message) = Message::parse_datagram(stored.bytes) else {
            return false;
        };
        // A malformed value is kept too: malformed requests are often searched for.
        let Some(call_id) = message.header(HeaderId::CallId) else {
            return false;
        };
        let key = key_of(CALL_ID_KEY, call_id);
        let now = stored.micros();
        let Some(at) = self.entry_for(call_id, key, correlation, now) else {
            return false;
        };
        let full_text = self.full_text;
        let touched = self.clock(now);
        if let Some(entry) = self.entries.get_mut(at) {
            entry.last = entry.last.max(now);
            entry.touched = touched;
            entry.call.messages += 1;
            match entry.chunks.last_mut() {
                Some((number, offsets)) if *number == segment => offsets.push(offset),
                _ => entry.chunks.push((segment, vec![offset])),
            }
            fold_addresses(entry, stored);
            fold_message(entry, &message, call_id, now);
            if full_text {
                fold_words(entry, &message);
            }
        }
        self.mark(at);
        self.last_entry = Some(at);
        true
    }

    /// Notes that the last message was not folded.
    pub(crate) fn skip_message(&mut self) {
        self.last_entry = None;
    }

    /// The first Call-ID of the call of the last message.
    pub(crate) fn last_call_id(&self) -> Option<&str> {
        let entry = self.entries.get(self.last_entry?)?;
        entry.call.call_ids.first().map(String::as_str)
    }

    fn entry_for(
        &mut self,
        call_id: &[u8],
        key: i64,
        correlation: &[u8],
        now: i64,
    ) -> Option<usize> {
        if let Some(&at) = self.by_call_id.get(&key) {
            return Some(at);
        }
        let group = key_of(b'x', correlation);
        let known = match correlation.is_empty() {
            true => None,
            // Agents often correlate by the Call-ID of the first leg.
            false => self
                .by_correlation
                .get(&group)
                .or_else(|| self.by_call_id.get(&key_of(CALL_ID_KEY, correlation)))
                .copied(),
        };
        let at = match known {
            Some(at) => at,
            None => self.create(now)?,
        };
        if let Some(entry) = self.entries.get_mut(at) {
            entry.add_call_id(text_of(call_id), key);
        }
        self.link(key, at);
        if !correlation.is_empty() {
            self.correlate(group, at);
            // An agent may correlate by the Call-ID of the other leg.
            let other = key_of(CALL_ID_KEY, correlation);
            if !self.by_call_id.contains_key(&other) {
                self.link(other, at);
            }
        }
        Some(at)
    }

    /// Folds an event; `at` is its time in microseconds since the Unix epoch.
    pub(crate) fn event(&mut self, event: &Event, at: i64) {
        match &event.kind {
            EventKind::CallOffered { call, call_id, .. } => {
                let key = key_of(CALL_ID_KEY, call_id.as_bytes());
                match self.entry_for(call_id.as_bytes(), key, b"", at) {
                    Some(slot) => {
                        self.by_call.insert(*call, slot);
                        self.keep_earlier_call(slot, *call);
                        self.fold_event(slot, &event.kind, at);
                    }
                    None => self.losses.add_calls(1),
                }
            }
            EventKind::CallRouted { call, call_id, .. } => {
                if let Some(&slot) = self.by_call.get(call) {
                    self.add_leg(slot, call_id);
                    self.fold_event(slot, &event.kind, at);
                    let id = self.entries.get(slot).map(|entry| entry.call.id);
                    self.keep_event(&event.kind, at, id);
                }
            }
            EventKind::CallAnswered { call, .. } | EventKind::CallEnded { call, .. } => {
                if let Some(&slot) = self.by_call.get(call) {
                    self.fold_event(slot, &event.kind, at);
                }
            }
            // Visible in the messages.
            EventKind::CallProgressed { .. } => {}
            EventKind::RtcpReport { call_id, .. } => self.report(call_id, &event.kind, at),
            kind => {
                let slot = match call_id_of(kind) {
                    Some(call_id) => {
                        let key = key_of(CALL_ID_KEY, call_id.as_bytes());
                        self.entry_for(call_id.as_bytes(), key, b"", at)
                    }
                    None => call_of(kind).and_then(|call| self.by_call.get(&call).copied()),
                };
                if let Some(slot) = slot {
                    self.fold_event(slot, kind, at);
                }
                let id = slot
                    .and_then(|slot| self.entries.get(slot))
                    .map(|entry| entry.call.id);
                self.keep_event(kind, at, id);
            }
        }
    }

    /// Ends a call whose `call_ended` found no room in the queue: nothing else would.
    pub(crate) fn lost_end(&mut self, call: u64) {
        let Some(&slot) = self.by_call.get(&call) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        // Not a later call with the same Call-ID, and not one whose BYE was stored.
        if entry.call.call == Some(call) && entry.call.state.is_open() {
            entry.interrupt("the event of its end was lost");
            self.losses.add_calls(1);
            self.mark(slot);
        }
    }

    /// Keeps the number of the call that an entry had before, which begins anew with this one: its end may come later.
    fn keep_earlier_call(&mut self, slot: usize, call: u64) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let Some(earlier) = entry.call.call.filter(|old| *old != call) else {
            return;
        };
        entry.earlier_calls.push_back(earlier);
        // A source may repeat its Call-ID without end.
        if entry.earlier_calls.len() > MAX_EARLIER
            && let Some(oldest) = entry.earlier_calls.pop_front()
            && self.by_call.get(&oldest) == Some(&slot)
        {
            self.by_call.remove(&oldest);
        }
    }

    fn keep_event(&mut self, kind: &EventKind, at: i64, call: Option<i64>) {
        if call.is_none() && kind.level() == EventLevel::Debug {
            // Stored with its call only, which may have found no room.
            let of_call = call_id_of(kind).is_some() || call_of(kind).is_some();
            if of_call && self.entries.len() >= self.room {
                self.losses.add_events(1);
            }
            return;
        }
        if self.events.len() >= MAX_EVENTS {
            self.losses.add_events(1);
            return;
        }
        let level = match kind {
            // One for each call: found with the call, not in the list of all events.
            EventKind::CallRouted { .. } => EventLevel::Debug,
            kind => kind.level(),
        };
        let mut fields = serde_json::Map::new();
        kind.fields(&mut |name, value| {
            fields.insert(name.to_owned(), value.to_string().into());
        });
        self.events.push(PendingEvent {
            at,
            level,
            name: kind.name(),
            call,
            fields: serde_json::Value::Object(fields).to_string(),
        });
    }

    /// Adds the Call-ID of a further leg to a call.
    fn add_leg(&mut self, slot: usize, call_id: &str) {
        let key = key_of(CALL_ID_KEY, call_id.as_bytes());
        let other = self.by_call_id.get(&key).copied();
        let mut moved = CallEntry::default();
        if let Some(other) = other.filter(|other| *other != slot)
            && self.entries.get(other).is_some_and(|entry| !entry.inserted)
        {
            // Its messages came before the event.
            self.dirty.retain(|dirty| *dirty != other);
            moved = self.remove_entry(other).unwrap_or_default();
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            let count: usize = moved.chunks.iter().map(|(_, offsets)| offsets.len()).sum();
            entry.call.messages += count as u64;
            entry.chunks.append(&mut moved.chunks);
            entry.add_call_id(text_of(call_id.as_bytes()), key);
        }
        self.link(key, slot);
        for group in moved.correlations {
            self.correlate(group, slot);
        }
    }

    /// The time of this machine, or before the first sweep that of the message or event.
    fn clock(&self, at: i64) -> i64 {
        match self.now {
            0 => at,
            now => now,
        }
    }

    fn fold_event(&mut self, slot: usize, kind: &EventKind, at: i64) {
        let touched = self.clock(at);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.last = entry.last.max(at);
            entry.touched = touched;
            fold_event(entry, kind, at);
            self.mark(slot);
        }
    }

    /// The index has all additions.
    pub(crate) fn written(&mut self) {
        for at in self.dirty.drain(..) {
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            entry.words_written |= entry.due_words().is_some();
            entry.inserted = true;
            entry.is_dirty = false;
            entry.keys_written = entry.keys.len();
            entry.numbers_written = entry.numbers.len();
            entry.chunks.clear();
        }
        self.events.clear();
        self.new_slices.clear();
    }

    /// Removes everything that waits for the database; returns the numbers of these items, without drops. Calls stay in
    /// memory and are written with their next change.
    pub(crate) fn discard_waiting(&mut self) -> LossCounts {
        let mut lost = LossCounts {
            events: self.events.len() as u64,
            ..LossCounts::default()
        };
        for at in self.dirty.drain(..) {
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            let messages = entry.waiting_messages();
            entry.chunks.clear();
            entry.call.messages = entry.call.messages.saturating_sub(messages);
            entry.is_dirty = false;
            lost.messages += messages;
            lost.calls += 1;
        }
        self.events.clear();
        self.new_slices.clear();
        lost
    }

    /// Corrects the numbers of messages of these calls, one message for each entry: the database refused them. The
    /// corrected calls are written with the next transaction.
    pub(crate) fn uncount_messages(&mut self, calls: &[i64]) {
        for id in calls {
            let mut all = self.entries.iter();
            let Some((at, _)) = all.find(|(_, entry)| entry.call.id == *id) else {
                continue;
            };
            if let Some(entry) = self.entries.get_mut(at) {
                entry.call.messages = entry.call.messages.saturating_sub(1);
            }
            self.mark(at);
        }
    }

    /// Removes the messages of a segment from the offset `from` on, which were not written.
    pub(crate) fn discard(&mut self, segment: u32, from: u32) {
        for &at in &self.dirty {
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            let before = entry.waiting_messages();
            for (number, offsets) in &mut entry.chunks {
                if *number == segment {
                    offsets.retain(|offset| *offset < from);
                }
            }
            entry.chunks.retain(|(_, offsets)| !offsets.is_empty());
            let lost = before - entry.waiting_messages();
            entry.call.messages = entry.call.messages.saturating_sub(lost);
        }
    }

    /// Removes entries that are over from the memory; a part of them per call.
    pub(crate) fn sweep(&mut self, now: i64) {
        self.now = now;
        let capacity = self.entries.capacity();
        for _ in 0..SWEEP.min(capacity) {
            self.swept = (self.swept + 1) % capacity.max(1);
            let at = self.swept;
            let Some(entry) = self.entries.get_mut(at) else {
                continue;
            };
            if entry.touched > now {
                // The clock was set back: that keeps no entry in memory.
                entry.touched = now;
            }
            if !entry.is_over(now) {
                continue;
            }
            if entry.call.state.is_open() {
                entry.interrupt("no end was seen");
                if entry.call.call.is_some() {
                    self.losses.add_calls(1);
                }
                self.mark(at);
                continue;
            }
            self.remove_entry(at);
        }
    }
}

/// The Call-ID of the call that an event is about, where it is told before the call has a number: rules, and decisions
/// about a new call. The messages follow these events.
fn call_id_of(kind: &EventKind) -> Option<&str> {
    match kind {
        EventKind::RuleEdited { call_id, .. }
        | EventKind::TrunkSkipped { call_id, .. }
        | EventKind::CallRefused { call_id, .. } => (!call_id.is_empty()).then_some(call_id),
        _ => None,
    }
}

/// The number of the call that an event is about.
fn call_of(kind: &EventKind) -> Option<u64> {
    let mut call = None;
    kind.fields(&mut |name, value| {
        if name == "call" {
            call = value.to_string().parse().ok();
        }
    });
    call
}
