//! The conferences of this worker, and the participant of a call.

use crate::calls::Call;
use crate::calls::conference::describe::ConferenceDescription;
use crate::calls::conference::lobby::{Lobby, NewCaller};
use crate::calls::conference::pin_entry::PinEntry;
use crate::calls::conference::pin_lockout::PinLockout;
use crate::calls::key::CallKey;
use crate::conferences::{ConferenceName, ConferenceReply, ConferenceView, ParticipantView};
use crate::request::RequestRefusal;
use crate::shared::Ctx;
use config::ConferenceSpec;
use engine::{EventKind, MaybeShared, Reason, Time};
use serde::{Deserialize, Serialize};
use sip::{ServerTransaction, TransactionId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::sip::HeaderId;

/// Identity of a conference: table of the configuration, and called number.
pub(super) type ConferenceKey = (String, String);

#[derive(Debug)]
pub(super) struct Conference {
    /// Number in the forwarder.
    pub(super) number: u64,
    /// Participants in the mix.
    pub(super) participants: u16,
    /// Callers in the lobby.
    pub(super) in_lobby: u16,
    /// New callers are refused.
    pub(super) locked: bool,
    pub(super) since: Time,
    /// Calls of participants and callers in the lobby, by number.
    pub(super) calls: BTreeMap<u64, CallKey>,
}

/// A refusal to join a conference.
pub(super) struct JoinRefusal {
    /// Name of the limit in the event.
    pub(super) limit: &'static str,
    pub(super) reason: Reason,
}

/// Active conferences per table, of all workers. A conference that has only callers in the lobby does not count.
#[derive(Debug, Default)]
pub(crate) struct ActiveConferences(BTreeMap<String, u32>);

impl ActiveConferences {
    pub(super) fn is_full(&self, spec: &ConferenceSpec) -> bool {
        self.0.get(&spec.name).copied().unwrap_or_default() >= spec.max_conferences
    }

    /// Counts a new conference, unless the limit is reached; returns whether it was counted.
    pub(super) fn begin(&mut self, spec: &ConferenceSpec) -> bool {
        let full = self.is_full(spec);
        if !full {
            *self.0.entry(spec.name.clone()).or_default() += 1;
        }
        !full
    }

    pub(super) fn end(&mut self, spec: &str) {
        if let Some(count) = self.0.get_mut(spec) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(spec);
            }
        }
    }
}

/// Conferences of this worker, within the limits of their tables.
#[derive(Debug)]
pub(crate) struct Conferences {
    pub(super) table: BTreeMap<ConferenceKey, Conference>,
    pub(super) last_number: u64,
    pub(super) active: MaybeShared<ActiveConferences>,
    pub(super) lobby: Lobby,
    pub(super) pin_lockout: MaybeShared<PinLockout>,
    /// Pending queries of the control interface.
    pub(crate) queries: ConferenceQueries,
}

impl Conferences {
    pub(crate) fn new(
        active: MaybeShared<ActiveConferences>,
        pin_lockout: MaybeShared<PinLockout>,
    ) -> Conferences {
        Conferences {
            table: BTreeMap::new(),
            last_number: 0,
            active,
            lobby: Lobby::default(),
            pin_lockout,
            queries: ConferenceQueries::default(),
        }
    }

    /// Participants of all conferences, with the lobbies.
    pub(crate) fn participants(&self) -> usize {
        let calls = self.table.values().map(|conference| conference.calls.len());
        calls.sum()
    }

    pub(super) fn participants_of(&self, name: &ConferenceKey) -> u16 {
        self.table
            .get(name)
            .map_or(0, |conference| conference.participants)
    }

    /// The reason to refuse a participant in a conference of `spec`, if any.
    pub(super) fn join_refusal(
        &self,
        spec: &ConferenceSpec,
        name: &ConferenceKey,
    ) -> Option<JoinRefusal> {
        let conference = self.table.get(name);
        let participants = conference.map_or(0, |conference| conference.participants);
        if conference.is_some_and(|conference| conference.locked) {
            return Some(JoinRefusal {
                limit: "locked",
                reason: Reason::ConferenceLocked,
            });
        }
        match participants {
            0 if self.active.read(|active| active.is_full(spec)) => Some(JoinRefusal::CONFERENCES),
            participants if participants >= spec.settings.max_participants => {
                Some(JoinRefusal::PARTICIPANTS)
            }
            _ => None,
        }
    }

    /// Counts a new participant's conference if it is the first. The limit is checked again: another worker may have
    /// begun a conference since the first check.
    pub(super) fn reserve_participant(
        &mut self,
        spec: &ConferenceSpec,
        name: &ConferenceKey,
    ) -> Result<(), JoinRefusal> {
        if let Some(refusal) = self.join_refusal(spec, name) {
            return Err(refusal);
        }
        match self.participants_of(name) == 0 && !self.active.lock().begin(spec) {
            true => Err(JoinRefusal::CONFERENCES),
            false => Ok(()),
        }
    }

    /// Adds a participant, or a caller in the lobby. Returns the number of the conference.
    pub(super) fn add(&mut self, name: &ConferenceKey, caller: NewCaller, in_lobby: bool) -> u64 {
        let last_number = &mut self.last_number;
        let conference = self.table.entry(name.clone()).or_insert_with(|| {
            *last_number += 1;
            Conference {
                number: *last_number,
                participants: 0,
                in_lobby: 0,
                locked: false,
                since: caller.at,
                calls: BTreeMap::new(),
            }
        });
        match in_lobby {
            true => conference.in_lobby += 1,
            false => conference.participants += 1,
        }
        conference.calls.insert(caller.number, caller.call);
        conference.number
    }

    /// Moves a caller from the lobby to the participants.
    pub(super) fn admit(
        &mut self,
        spec: &ConferenceSpec,
        name: &ConferenceKey,
        number: u64,
    ) -> Result<(), JoinRefusal> {
        self.reserve_participant(spec, name)?;
        self.lobby.leave(number);
        if let Some(conference) = self.table.get_mut(name) {
            conference.in_lobby = conference.in_lobby.saturating_sub(1);
            conference.participants += 1;
        }
        Ok(())
    }

    /// Removes a participant or a caller in the lobby. Returns the number of participants left.
    pub(super) fn remove(&mut self, name: &ConferenceKey, number: u64, was_in_lobby: bool) -> u16 {
        let Some(conference) = self.table.get_mut(name) else {
            return 0;
        };
        let count = match was_in_lobby {
            true => &mut conference.in_lobby,
            false => &mut conference.participants,
        };
        *count = count.saturating_sub(1);
        conference.calls.remove(&number);
        let left = conference.participants;
        match was_in_lobby {
            true => self.lobby.leave(number),
            false if left == 0 => self.active.lock().end(&name.0),
            false => {}
        }
        if conference.calls.is_empty() {
            self.table.remove(name);
        }
        left
    }

    /// Removes the participant of a call, once.
    pub(crate) fn leave(&mut self, ctx: &mut Ctx, call: &mut Call) {
        let Some(mut participant) = call.kind.take_participant() else {
            return;
        };
        let was_in_lobby = participant.pin_entry.is_some();
        let entry = participant.pin_entry.as_mut();
        if let Some(timer) = entry.and_then(PinEntry::take_timer) {
            ctx.timers.cancel(timer);
        }
        let participants = self.remove(&participant.name, call.number, was_in_lobby);
        if participant.joined_at.is_some() && !was_in_lobby {
            ctx.events.tell(ctx.now, || EventKind::ConferenceLeft {
                call: call.number,
                conference: participant.name.0.clone(),
                number: participant.name.1.clone(),
                participants: participants.into(),
            });
        }
    }
}

impl JoinRefusal {
    pub(super) const CONFERENCES: JoinRefusal = JoinRefusal {
        limit: "conferences",
        reason: Reason::TooManyConferences,
    };
    pub(super) const LOBBY: JoinRefusal = JoinRefusal {
        limit: "lobby",
        reason: Reason::LobbyFull,
    };
    /// Too many wrong PINs of the source of the call.
    pub(super) const PIN: JoinRefusal = JoinRefusal {
        limit: "pin",
        reason: Reason::WrongPin,
    };
    pub(super) const PARTICIPANTS: JoinRefusal = JoinRefusal {
        limit: "participants",
        reason: Reason::ConferenceFull,
    };

    /// Refuses the call, and logs the limit.
    pub(super) fn refuse(&self, ctx: &mut Ctx, name: &ConferenceKey) -> RequestRefusal {
        self.report(ctx, name);
        let mut refused = RequestRefusal::new(self.reason);
        if refused.status == 503 {
            refused.headers.push((HeaderId::RetryAfter, b"10".to_vec()));
        }
        refused
    }

    pub(super) fn report(&self, ctx: &mut Ctx, name: &ConferenceKey) {
        ctx.events.tell(ctx.now, || EventKind::ConferenceFull {
            conference: name.0.clone(),
            number: name.1.clone(),
            limit: self.limit.to_owned(),
            status: self.reason.status(),
        });
    }
}

/// An answer that waits for media sockets to be opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PendingAnswer {
    /// The in-dialog request; `None` for the first INVITE.
    pub(super) server: Option<ServerTransaction>,
    /// The offer; `None` where we make it.
    pub(super) offer: Option<Box<[u8]>>,
}

/// State of a call to a conference.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ParticipantState {
    pub(super) spec: Arc<ConferenceSpec>,
    pub(super) name: ConferenceKey,
    pub(super) description: ConferenceDescription,
    pub(super) pending: Option<PendingAnswer>,
    /// Our offer in a 2xx waits for the answer in the ACK.
    pub(super) offer_sent: bool,
    /// Our session refresh.
    pub(super) refreshing: Option<TransactionId>,
    /// From URI of the call.
    pub(super) from: Box<str>,
    /// Time of the first agreement about audio.
    pub(super) joined_at: Option<Time>,
    /// PIN entry while in the lobby.
    pub(super) pin_entry: Option<PinEntry>,
}

impl ParticipantState {
    /// Shares the entry of the conference with the configuration, if it was not changed. Entries have no comparison;
    /// their name and text decide.
    pub(crate) fn share_settings(&mut self, conferences: &[Arc<ConferenceSpec>]) {
        let equal =
            |entry: &&Arc<ConferenceSpec>| format!("{entry:?}") == format!("{:?}", self.spec);
        if let Some(entry) = conferences.iter().find(equal) {
            self.spec = Arc::clone(entry);
        }
    }

    /// Takes the pending in-dialog request of an ending call, to be refused.
    pub(crate) fn take_pending_transaction(&mut self) -> Option<ServerTransaction> {
        self.pending.take()?.server
    }
}

/// A conference that is called.
pub(crate) struct CalledConference {
    pub(super) spec: Arc<ConferenceSpec>,
    pub(crate) number: String,
}

/// A request whose figures are being collected.
#[derive(Debug)]
pub(super) struct ConferenceQuery {
    pub(super) name: ConferenceKey,
    /// Whether a single participant is requested.
    pub(super) single: bool,
    /// Participants that have not been queried.
    pub(super) remaining: VecDeque<CallKey>,
    /// Queries without an answer.
    pub(super) outstanding: usize,
    pub(super) participants: Vec<(CallKey, ParticipantView)>,
}

/// Pending requests, and replies that have not been read.
#[derive(Debug, Default)]
pub(crate) struct ConferenceQueries {
    pub(super) table: BTreeMap<u64, ConferenceQuery>,
    /// Sessions that were queried and their requests, in the order in which the forwarder answers.
    pub(super) outstanding: VecDeque<(u64, u64)>,
    pub(crate) replies: VecDeque<(u64, ConferenceReply)>,
}

impl Conferences {
    pub(super) fn view(&self, name: &ConferenceKey) -> Option<ConferenceView> {
        let conference = self.table.get(name)?;
        Some(ConferenceView {
            name: ConferenceName {
                conference: name.0.clone(),
                number: name.1.clone(),
            },
            participants: conference.participants,
            in_lobby: conference.in_lobby,
            locked: conference.locked,
            since: conference.since,
        })
    }

    pub(super) fn calls(&self, name: &ConferenceKey) -> impl Iterator<Item = CallKey> {
        let conference = self.table.get(name);
        conference
            .into_iter()
            .flat_map(|conference| conference.calls.values().copied())
    }

    pub(super) fn call(&self, name: &ConferenceKey, number: u64) -> Option<CallKey> {
        self.table.get(name)?.calls.get(&number).copied()
    }

    /// Sets the lock. Returns whether it changed.
    pub(super) fn lock(&mut self, name: &ConferenceKey, locked: bool) -> bool {
        self.table
            .get_mut(name)
            .is_some_and(|conference| std::mem::replace(&mut conference.locked, locked) != locked)
    }
}
