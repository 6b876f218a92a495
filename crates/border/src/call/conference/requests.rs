//! Requests about conferences. Figures come from the forwarder, which is queried for a few participants at a time, so
//! that a query of a large conference delays no packet.

use super::ConferenceKey;
use crate::border::{Alarm, Core};
use crate::call::CallKey;
use crate::conferences::{
    ConferenceName, ConferenceReply, ConferenceRequest, ConferenceView, MAX_CONFERENCE_REQUESTS,
    ParticipantView,
};
use core::time::Duration;
use engine::{EventKind, Time};
use media::MediaCommand;
use media::conference::ParticipantCommand;
use media::forward::SessionStats;
use sip::Endpoint;
use std::collections::{BTreeMap, VecDeque};

/// Participants per batch of queries, and the interval between batches.
const BATCH: usize = 16;
const BATCH_INTERVAL: Duration = Duration::from_millis(2);

/// A request whose figures are being collected.
#[derive(Debug)]
struct ConferenceQuery {
    name: ConferenceKey,
    /// Whether a single participant is requested.
    single: bool,
    /// Participants that have not been queried.
    remaining: VecDeque<CallKey>,
    /// Queries without an answer.
    outstanding: usize,
    participants: Vec<(CallKey, ParticipantView)>,
}

/// Pending requests, and replies that have not been read.
#[derive(Debug, Default)]
pub(crate) struct ConferenceQueries {
    table: BTreeMap<u64, ConferenceQuery>,
    /// Sessions that were queried and their requests, in the order in which the forwarder answers.
    outstanding: VecDeque<(u64, u64)>,
    pub(crate) replies: VecDeque<(u64, ConferenceReply)>,
}

impl Core {
    /// Processes a request about a conference.
    pub(crate) fn handle_conference_request(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        name: &ConferenceName,
        request: &ConferenceRequest,
        now: Time,
    ) {
        let name: ConferenceKey = (name.conference.clone(), name.number.clone());
        let reply = match *request {
            ConferenceRequest::List => {
                let conferences = self.conferences.table.keys();
                let conferences = conferences.filter_map(|name| self.conferences.view(name));
                Some(ConferenceReply::Conferences(conferences.collect()))
            }
            _ if self.conferences.view(&name).is_none() => Some(ConferenceReply::NoConference),
            ConferenceRequest::Lock(locked) => {
                self.lock_conference(&name, locked, now);
                self.start_query(endpoint, number, name, None, now)
            }
            ConferenceRequest::Show => self.start_query(endpoint, number, name, None, now),
            ConferenceRequest::End => {
                let calls: Vec<CallKey> = self.conferences.calls(&name).collect();
                Some(ConferenceReply::Ended(
                    self.remove_participants(endpoint, &calls, now),
                ))
            }
            ConferenceRequest::ShowParticipant(call)
            | ConferenceRequest::Mute(call, _)
            | ConferenceRequest::Remove(call) => {
                let key = self.conferences.call(&name, call);
                match (key.filter(|&key| self.has_joined(key)), request) {
                    (None, _) => Some(ConferenceReply::NoParticipant),
                    (Some(key), ConferenceRequest::Remove(_)) => Some(ConferenceReply::Ended(
                        self.remove_participants(endpoint, &[key], now),
                    )),
                    (Some(key), request) => {
                        if let ConferenceRequest::Mute(_, muted) = *request {
                            self.mute_participant(key, muted, now);
                        }
                        self.start_query(endpoint, number, name, Some(key), now)
                    }
                }
            }
        };
        self.conference_queries
            .replies
            .extend(reply.map(|reply| (number, reply)));
    }

    /// Whether a participant has an agreed audio format; others are not shown.
    fn has_joined(&self, key: CallKey) -> bool {
        let call = self.slot_of(key).and_then(|slot| self.calls.get(slot));
        call.and_then(|call| call.participant.as_deref())
            .is_some_and(|participant| participant.joined_at.is_some())
    }

    fn lock_conference(&mut self, name: &ConferenceKey, locked: bool, now: Time) {
        if self.conferences.lock(name, locked) {
            self.events.tell(now, || EventKind::ConferenceLocked {
                conference: name.0.clone(),
                number: name.1.clone(),
                locked,
            });
        }
    }

    fn mute_participant(&mut self, key: CallKey, muted: bool, now: Time) {
        let command = match muted {
            true => ParticipantCommand::Mute,
            false => ParticipantCommand::Unmute,
        };
        self.plane
            .commands
            .push_back(MediaCommand::ControlParticipant(key.0, command));
        self.report_muted(key, muted, "control", now);
    }

    /// Ends calls. Returns their number.
    fn remove_participants(
        &mut self,
        endpoint: &mut Endpoint,
        calls: &[CallKey],
        now: Time,
    ) -> u64 {
        let slots: Vec<usize> = calls.iter().filter_map(|&key| self.slot_of(key)).collect();
        for &slot in &slots {
            let reason = b"SIP;cause=480;text=\"Removed from the conference\"";
            self.give_up(endpoint, slot, "removed by control", reason, now);
        }
        slots.len() as u64
    }

    /// Starts to collect the figures of all participants, or of `only` one.
    fn start_query(
        &mut self,
        endpoint: &Endpoint,
        number: u64,
        name: ConferenceKey,
        only: Option<CallKey>,
        now: Time,
    ) -> Option<ConferenceReply> {
        if self.conference_queries.table.len() >= MAX_CONFERENCE_REQUESTS {
            return Some(ConferenceReply::Busy);
        }
        let mut remaining: VecDeque<CallKey> = match only {
            Some(key) => [key].into(),
            None => self.conferences.calls(&name).collect(),
        };
        remaining.retain(|&key| self.has_joined(key));
        let query = ConferenceQuery {
            name,
            single: only.is_some(),
            remaining,
            outstanding: 0,
            participants: Vec::new(),
        };
        self.conference_queries.table.insert(number, query);
        self.query_next_participants(endpoint, number, now);
        None
    }

    /// Queries the next batch of participants, or replies if none is left.
    pub(crate) fn query_next_participants(&mut self, endpoint: &Endpoint, number: u64, now: Time) {
        let Some(query) = self.conference_queries.table.get_mut(&number) else {
            return;
        };
        let count = query.remaining.len().min(BATCH);
        let next: Vec<CallKey> = query.remaining.drain(..count).collect();
        for key in next {
            if let Some(view) = self.participant_view(endpoint, key)
                && let Some(query) = self.conference_queries.table.get_mut(&number)
            {
                query.outstanding += 1;
                query.participants.push((key, view));
                self.conference_queries
                    .outstanding
                    .push_back((key.0, number));
                self.plane.commands.push_back(MediaCommand::Query(key.0));
            }
        }
        self.finish_query(number, now);
    }

    /// The view of a participant without figures.
    fn participant_view(&self, endpoint: &Endpoint, key: CallKey) -> Option<ParticipantView> {
        let call = self.calls.get(self.slot_of(key)?)?;
        let participant = call.participant.as_deref()?;
        let (_, voice) = call.media.as_deref()?.voice()?;
        let call_id = call
            .leg(crate::call::Side::Caller)
            .and_then(|leg| endpoint.call_id_of(leg));
        Some(ParticipantView {
            call: call.number,
            call_id: String::from_utf8_lossy(call_id.unwrap_or_default()).into_owned(),
            from: participant.from.to_string(),
            codec: voice.format.kind().name(),
            packet_ms: voice.packet_ms,
            since: participant.joined_at?,
            in_lobby: participant.pin_entry.is_some(),
            muted: media::conference::MuteState::Unmuted,
            in_mix: false,
            received: 0,
            sent: 0,
            lost: 0,
            jitter_ms: None,
        })
    }

    /// Stores the figures of a session, `last` if it has ended; `None` if the forwarder has no such session.
    pub(crate) fn participant_stats(
        &mut self,
        session: u64,
        last: bool,
        stats: Option<&SessionStats>,
        now: Time,
    ) {
        while let Some(at) = self
            .conference_queries
            .outstanding
            .iter()
            .position(|entry| entry.0 == session)
        {
            let Some((_, number)) = self.conference_queries.outstanding.remove(at) else {
                return;
            };
            if let Some(query) = self.conference_queries.table.get_mut(&number) {
                query.outstanding -= 1;
                let mut participants = query.participants.iter_mut();
                match stats.filter(|_| !last) {
                    Some(stats) => {
                        if let Some((_, view)) = participants.find(|(key, _)| key.0 == session) {
                            fill(view, stats);
                        }
                    }
                    // The participant has left in the meantime.
                    None => query.participants.retain(|(key, _)| key.0 != session),
                }
            }
            self.finish_query(number, now);
            // The final figures answer all outstanding queries.
            if !last {
                return;
            }
        }
    }

    /// Replies when all figures are collected; schedules the next batch otherwise.
    fn finish_query(&mut self, number: u64, now: Time) {
        let Some(query) = self.conference_queries.table.get(&number) else {
            return;
        };
        if query.outstanding > 0 {
            return;
        }
        if !query.remaining.is_empty() {
            self.timers
                .schedule(now + BATCH_INTERVAL, Alarm::ConferenceQueryStep(number));
            return;
        }
        let Some(query) = self.conference_queries.table.remove(&number) else {
            return;
        };
        let mut participants = query.participants.into_iter().map(|(_, view)| view);
        let reply = match (query.single, self.conferences.view(&query.name)) {
            (true, _) => participants
                .next()
                .map_or(ConferenceReply::NoParticipant, ConferenceReply::Participant),
            (false, None) => ConferenceReply::NoConference,
            (false, Some(view)) => ConferenceReply::Conference(view, participants.collect()),
        };
        self.conference_queries.replies.push_back((number, reply));
    }
}

fn fill(view: &mut ParticipantView, stats: &SessionStats) {
    if let Some(participant) = stats.participant {
        view.muted = participant.muted;
        view.in_mix = participant.in_mix;
    }
    let Some(flow) = stats.flows.first() else {
        return;
    };
    let [side, _] = &flow.sides;
    view.received = side.received.packets;
    view.sent = side.sent.packets;
    view.lost = side
        .sources
        .iter()
        .map(|source| source.summary.lost_unique)
        .sum();
    view.jitter_ms = side
        .sources
        .iter()
        .rev()
        .find_map(|source| Some(source.summary.jitter_ms.as_ref()?.mean));
}

impl super::Conferences {
    fn view(&self, name: &ConferenceKey) -> Option<ConferenceView> {
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

    fn calls(&self, name: &ConferenceKey) -> impl Iterator<Item = CallKey> {
        let conference = self.table.get(name);
        conference
            .into_iter()
            .flat_map(|conference| conference.calls.values().copied())
    }

    fn call(&self, name: &ConferenceKey, number: u64) -> Option<CallKey> {
        self.table.get(name)?.calls.get(&number).copied()
    }

    /// Sets the lock. Returns whether it changed.
    fn lock(&mut self, name: &ConferenceKey, locked: bool) -> bool {
        self.table
            .get_mut(name)
            .is_some_and(|conference| std::mem::replace(&mut conference.locked, locked) != locked)
    }
}
