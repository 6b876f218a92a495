//! Requests about conferences. Figures come from the forwarder, which is queried for a few participants at a time, so
//! that a query of a large conference delays no packet.

use crate::calls::conference::ConferenceCalls;
use crate::calls::conference::state::{ConferenceKey, ConferenceQuery};
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::table::OngoingCalls;
use crate::conferences::{
    ConferenceName, ConferenceReply, ConferenceRequest, MAX_CONFERENCE_REQUESTS, ParticipantView,
};
use crate::shared::Alarm;
use core::time::Duration;
use engine::{EventKind, Reason};
use media::MediaCommand;
use media::conference::ParticipantCommand;
use media::forward::SessionStats;
use std::collections::VecDeque;

/// Participants per batch of queries, and the interval between batches.
const BATCH: usize = 16;
const BATCH_INTERVAL: Duration = Duration::from_millis(2);

impl ConferenceCalls<'_> {
    /// Processes a request about a conference.
    pub(crate) fn handle_conference_request(
        &mut self,
        number: u64,
        name: &ConferenceName,
        request: &ConferenceRequest,
    ) {
        let name: ConferenceKey = (name.conference.clone(), name.number.clone());
        let reply = match *request {
            ConferenceRequest::List => {
                let conferences = self.parts.conferences.table.keys();
                let conferences = conferences.filter_map(|name| self.parts.conferences.view(name));
                Some(ConferenceReply::Conferences(conferences.collect()))
            }
            _ if self.parts.conferences.view(&name).is_none() => {
                Some(ConferenceReply::NoConference)
            }
            ConferenceRequest::Lock(locked) => {
                self.lock_conference(&name, locked);
                self.start_query(number, name, None)
            }
            ConferenceRequest::Show => self.start_query(number, name, None),
            ConferenceRequest::End => {
                let calls: Vec<CallKey> = self.parts.conferences.calls(&name).collect();
                Some(ConferenceReply::Ended(self.remove_participants(&calls)))
            }
            ConferenceRequest::ShowParticipant(call)
            | ConferenceRequest::Mute(call, _)
            | ConferenceRequest::Remove(call) => {
                let key = self.parts.conferences.call(&name, call);
                match (key.filter(|&key| self.parts.calls.has_joined(key)), request) {
                    (None, _) => Some(ConferenceReply::NoParticipant),
                    (Some(key), ConferenceRequest::Remove(_)) => {
                        Some(ConferenceReply::Ended(self.remove_participants(&[key])))
                    }
                    (Some(key), request) => {
                        if let ConferenceRequest::Mute(_, muted) = *request {
                            self.mute_participant(key, muted);
                        }
                        self.start_query(number, name, Some(key))
                    }
                }
            }
        };
        self.parts
            .conferences
            .queries
            .replies
            .extend(reply.map(|reply| (number, reply)));
    }

    /// Ends calls. Returns their number.
    fn remove_participants(&mut self, calls: &[CallKey]) -> u64 {
        let slots: Vec<CallSlot> = calls
            .iter()
            .filter_map(|&key| self.parts.calls.slot_of(key))
            .collect();
        for &slot in &slots {
            self.calls().give_up(slot, Reason::RemovedByControl);
        }
        slots.len() as u64
    }

    /// Starts to collect the figures of all participants, or of `only` one.
    fn start_query(
        &mut self,
        number: u64,
        name: ConferenceKey,
        only: Option<CallKey>,
    ) -> Option<ConferenceReply> {
        if self.parts.conferences.queries.table.len() >= MAX_CONFERENCE_REQUESTS {
            return Some(ConferenceReply::Busy);
        }
        let mut remaining: VecDeque<CallKey> = match only {
            Some(key) => [key].into(),
            None => self.parts.conferences.calls(&name).collect(),
        };
        remaining.retain(|&key| self.parts.calls.has_joined(key));
        let query = ConferenceQuery {
            name,
            single: only.is_some(),
            remaining,
            outstanding: 0,
            participants: Vec::new(),
        };
        self.parts.conferences.queries.table.insert(number, query);
        self.query_next_participants(number);
        None
    }

    /// Queries the next batch of participants, or replies if none is left.
    pub(crate) fn query_next_participants(&mut self, number: u64) {
        let Some(query) = self.parts.conferences.queries.table.get_mut(&number) else {
            return;
        };
        let count = query.remaining.len().min(BATCH);
        let next: Vec<CallKey> = query.remaining.drain(..count).collect();
        for key in next {
            if let Some(view) = self.participant_view(key)
                && let Some(query) = self.parts.conferences.queries.table.get_mut(&number)
            {
                query.outstanding += 1;
                query.participants.push((key, view));
                self.parts
                    .conferences
                    .queries
                    .outstanding
                    .push_back((key.0, number));
                self.parts
                    .media
                    .plane
                    .commands
                    .push_back(MediaCommand::Query(key.0));
            }
        }
        self.finish_query(number);
    }

    /// The view of a participant without figures.
    fn participant_view(&self, key: CallKey) -> Option<ParticipantView> {
        let call = self.parts.calls.get(self.parts.calls.slot_of(key)?)?;
        let participant = call.kind.participant()?;
        let (_, voice) = call.media.anchored()?.voice()?;
        let call_id = call
            .leg(crate::calls::Side::Caller)
            .and_then(|leg| self.endpoint.call_id_of(leg));
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

    fn lock_conference(&mut self, name: &ConferenceKey, locked: bool) {
        let now = self.parts.ctx.now;
        if self.parts.conferences.lock(name, locked) {
            self.parts
                .ctx
                .events
                .tell(now, || EventKind::ConferenceLocked {
                    conference: name.0.clone(),
                    number: name.1.clone(),
                    locked,
                });
        }
    }

    fn mute_participant(&mut self, key: CallKey, muted: bool) {
        let command = match muted {
            true => ParticipantCommand::Mute,
            false => ParticipantCommand::Unmute,
        };
        self.parts
            .media
            .plane
            .commands
            .push_back(MediaCommand::ControlParticipant(key.0, command));
        self.parts
            .calls
            .report_muted(&mut self.parts.ctx, key, muted, "control");
    }

    /// Stores the figures of a session, `last` if it has ended; `None` if the forwarder has no such session.
    pub(crate) fn participant_stats(
        &mut self,
        session: u64,
        last: bool,
        stats: Option<&SessionStats>,
    ) {
        while let Some(at) = self
            .parts
            .conferences
            .queries
            .outstanding
            .iter()
            .position(|entry| entry.0 == session)
        {
            let Some((_, number)) = self.parts.conferences.queries.outstanding.remove(at) else {
                return;
            };
            if let Some(query) = self.parts.conferences.queries.table.get_mut(&number) {
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
            self.finish_query(number);
            // The final figures answer all outstanding queries.
            if !last {
                return;
            }
        }
    }

    /// Replies when all figures are collected; schedules the next batch otherwise.
    fn finish_query(&mut self, number: u64) {
        let now = self.parts.ctx.now;
        let Some(query) = self.parts.conferences.queries.table.get(&number) else {
            return;
        };
        if query.outstanding > 0 {
            return;
        }
        if !query.remaining.is_empty() {
            self.parts
                .ctx
                .timers
                .schedule(now + BATCH_INTERVAL, Alarm::ConferenceQueryStep(number));
            return;
        }
        let Some(query) = self.parts.conferences.queries.table.remove(&number) else {
            return;
        };
        let mut participants = query.participants.into_iter().map(|(_, view)| view);
        let reply = match (query.single, self.parts.conferences.view(&query.name)) {
            (true, _) => participants
                .next()
                .map_or(ConferenceReply::NoParticipant, ConferenceReply::Participant),
            (false, None) => ConferenceReply::NoConference,
            (false, Some(view)) => ConferenceReply::Conference(view, participants.collect()),
        };
        self.parts
            .conferences
            .queries
            .replies
            .push_back((number, reply));
    }
}

impl OngoingCalls {
    /// Whether a participant has an agreed audio format; others are not shown.
    fn has_joined(&self, key: CallKey) -> bool {
        let call = self.slot_of(key).and_then(|slot| self.get(slot));
        call.and_then(|call| call.kind.participant())
            .is_some_and(|participant| participant.joined_at.is_some())
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
