//! What is asked of conferences from outside. Figures are the forwarder's: it is asked for a few seats at a time, so that a large
//! conference that somebody looks at holds up no packet.

use super::Name;
use crate::border::{Alarm, Core};
use crate::call::CallKey;
use crate::rooms::{MAX_QUESTIONS, RoomName, RoomReply, RoomView, RoomWish, SeatView};
use core::time::Duration;
use engine::{Note, Time};
use media::MediaCommand;
use media::forward::SessionStats;
use media::room::SeatOrder;
use sip::Endpoint;
use std::collections::{BTreeMap, VecDeque};

/// Seats that the forwarder is asked about at a time, and how long lies between.
const AT_A_TIME: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);

/// A question whose figures are being gathered.
#[derive(Debug)]
struct Question {
    name: Name,
    /// A single participant is asked for.
    single: bool,
    /// The forwarder has not been asked about these.
    left: VecDeque<CallKey>,
    /// The forwarder has not answered about so many.
    asked: usize,
    seats: Vec<(CallKey, SeatView)>,
}

/// Questions that wait, and replies that nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    table: BTreeMap<u64, Question>,
    /// Of which session the forwarder was asked, for which question; in the order in which it answers.
    asked: VecDeque<(u64, u64)>,
    pub(crate) replies: VecDeque<(u64, RoomReply)>,
}

impl Core {
    /// Somebody outside wants something of a conference.
    pub(crate) fn room_asked(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        name: &RoomName,
        wish: &RoomWish,
        now: Time,
    ) {
        let name: Name = (name.room.clone(), name.number.clone());
        let reply = match *wish {
            RoomWish::List => {
                let rooms = self.conferences.table.keys();
                let rooms = rooms.filter_map(|name| self.conferences.view(name));
                Some(RoomReply::Rooms(rooms.collect()))
            }
            _ if self.conferences.view(&name).is_none() => Some(RoomReply::NoRoom),
            RoomWish::Lock(locked) => {
                self.lock_room(&name, locked, now);
                self.gather(endpoint, number, name, None, now)
            }
            RoomWish::Show => self.gather(endpoint, number, name, None, now),
            RoomWish::End => {
                let calls: Vec<CallKey> = self.conferences.calls(&name).collect();
                Some(RoomReply::Ended(self.end_seats(endpoint, &calls, now)))
            }
            RoomWish::ShowSeat(call) | RoomWish::Mute(call, _) | RoomWish::EndSeat(call) => {
                let key = self.conferences.call(&name, call);
                match (key.filter(|&key| self.has_come(key)), wish) {
                    (None, _) => Some(RoomReply::NoSeat),
                    (Some(key), RoomWish::EndSeat(_)) => {
                        Some(RoomReply::Ended(self.end_seats(endpoint, &[key], now)))
                    }
                    (Some(key), wish) => {
                        if let RoomWish::Mute(_, muted) = *wish {
                            self.mute_seat(key, muted, now);
                        }
                        self.gather(endpoint, number, name, Some(key), now)
                    }
                }
            }
        };
        self.questions
            .replies
            .extend(reply.map(|reply| (number, reply)));
    }

    /// Whether a participant's voice is agreed upon, so that he is somebody to be shown.
    fn has_come(&self, key: CallKey) -> bool {
        let call = self.slot_of(key).and_then(|slot| self.calls.get(slot));
        call.and_then(|call| call.seat.as_deref())
            .is_some_and(|seat| seat.came.is_some())
    }

    fn lock_room(&mut self, name: &Name, locked: bool, now: Time) {
        if self.conferences.lock(name, locked) {
            self.events.tell(now, || Note::RoomLocked {
                room: name.0.clone(),
                number: name.1.clone(),
                locked,
            });
        }
    }

    fn mute_seat(&mut self, key: CallKey, muted: bool, now: Time) {
        let order = match muted {
            true => SeatOrder::Mute,
            false => SeatOrder::Unmute,
        };
        self.plane
            .commands
            .push_back(MediaCommand::Seat(key.0, order));
        self.tell_muted(key, muted, "control", now);
    }

    /// Ends calls; how many of them there were.
    fn end_seats(&mut self, endpoint: &mut Endpoint, calls: &[CallKey], now: Time) -> u64 {
        let slots: Vec<usize> = calls.iter().filter_map(|&key| self.slot_of(key)).collect();
        for &slot in &slots {
            let reason = b"SIP;cause=480;text=\"Removed from the conference\"";
            self.give_up(endpoint, slot, "removed by control", reason, now);
        }
        slots.len() as u64
    }

    /// Begins to gather the figures of all participants, or of `only` one.
    fn gather(
        &mut self,
        endpoint: &Endpoint,
        number: u64,
        name: Name,
        only: Option<CallKey>,
        now: Time,
    ) -> Option<RoomReply> {
        if self.questions.table.len() >= MAX_QUESTIONS {
            return Some(RoomReply::Busy);
        }
        let mut left: VecDeque<CallKey> = match only {
            Some(key) => [key].into(),
            None => self.conferences.calls(&name).collect(),
        };
        left.retain(|&key| self.has_come(key));
        let question = Question {
            name,
            single: only.is_some(),
            left,
            asked: 0,
            seats: Vec::new(),
        };
        self.questions.table.insert(number, question);
        self.look_at_seats(endpoint, number, now);
        None
    }

    /// The next few seats of a question; the reply where none is left.
    pub(crate) fn look_at_seats(&mut self, endpoint: &Endpoint, number: u64, now: Time) {
        let Some(question) = self.questions.table.get_mut(&number) else {
            return;
        };
        let count = question.left.len().min(AT_A_TIME);
        let next: Vec<CallKey> = question.left.drain(..count).collect();
        for key in next {
            if let Some(view) = self.seat_view(endpoint, key)
                && let Some(question) = self.questions.table.get_mut(&number)
            {
                question.asked += 1;
                question.seats.push((key, view));
                self.questions.asked.push_back((key.0, number));
                self.plane.commands.push_back(MediaCommand::Query(key.0));
            }
        }
        self.settle_question(number, now);
    }

    /// What is known of a participant without his figures.
    fn seat_view(&self, endpoint: &Endpoint, key: CallKey) -> Option<SeatView> {
        let call = self.calls.get(self.slot_of(key)?)?;
        let seat = call.seat.as_deref()?;
        let (_, voice) = call.media.as_deref()?.voice()?;
        let call_id = call
            .leg(crate::call::Side::Caller)
            .and_then(|leg| endpoint.call_id_of(leg));
        Some(SeatView {
            call: call.number,
            call_id: String::from_utf8_lossy(call_id.unwrap_or_default()).into_owned(),
            from: seat.from.to_string(),
            codec: voice.sends.kind().name(),
            packet_ms: voice.packet_ms,
            since: seat.came?,
            waits: seat.entry.is_some(),
            muted: media::room::Muted::No,
            speaks: false,
            received: 0,
            sent: 0,
            lost: 0,
            jitter_ms: None,
        })
    }

    /// The forwarder told the figures of a session, the `last` ones perhaps; `None`: it has none of that name.
    pub(crate) fn seat_counted(
        &mut self,
        session: u64,
        last: bool,
        stats: Option<&SessionStats>,
        now: Time,
    ) {
        while let Some(at) = self
            .questions
            .asked
            .iter()
            .position(|asked| asked.0 == session)
        {
            let Some((_, number)) = self.questions.asked.remove(at) else {
                return;
            };
            if let Some(question) = self.questions.table.get_mut(&number) {
                question.asked -= 1;
                let mut seats = question.seats.iter_mut();
                match stats.filter(|_| !last) {
                    Some(stats) => {
                        if let Some((_, view)) = seats.find(|(key, _)| key.0 == session) {
                            fill(view, stats);
                        }
                    }
                    // He has gone meanwhile.
                    None => question.seats.retain(|(key, _)| key.0 != session),
                }
            }
            self.settle_question(number, now);
            // The last word answers all that was asked.
            if !last {
                return;
            }
        }
    }

    /// Replies where everything is there; goes on a little later where it is not.
    fn settle_question(&mut self, number: u64, now: Time) {
        let Some(question) = self.questions.table.get(&number) else {
            return;
        };
        if question.asked > 0 {
            return;
        }
        if !question.left.is_empty() {
            self.timers.schedule(now + PAUSE, Alarm::RoomLook(number));
            return;
        }
        let Some(question) = self.questions.table.remove(&number) else {
            return;
        };
        let mut seats = question.seats.into_iter().map(|(_, view)| view);
        let reply = match (question.single, self.conferences.view(&question.name)) {
            (true, _) => seats.next().map_or(RoomReply::NoSeat, RoomReply::Seat),
            (false, None) => RoomReply::NoRoom,
            (false, Some(room)) => RoomReply::Room(room, seats.collect()),
        };
        self.questions.replies.push_back((number, reply));
    }
}

fn fill(view: &mut SeatView, stats: &SessionStats) {
    if let Some(seat) = stats.seat {
        view.muted = seat.muted;
        view.speaks = seat.speaks;
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
    fn view(&self, name: &Name) -> Option<RoomView> {
        let conference = self.table.get(name)?;
        Some(RoomView {
            name: RoomName {
                room: name.0.clone(),
                number: name.1.clone(),
            },
            seats: conference.seats,
            waiting: conference.waiting,
            locked: conference.locked,
            since: conference.since,
        })
    }

    fn calls(&self, name: &Name) -> impl Iterator<Item = CallKey> {
        let conference = self.table.get(name);
        conference
            .into_iter()
            .flat_map(|conference| conference.calls.values().copied())
    }

    fn call(&self, name: &Name, number: u64) -> Option<CallKey> {
        self.table.get(name)?.calls.get(&number).copied()
    }

    /// Whether that was news.
    fn lock(&mut self, name: &Name, locked: bool) -> bool {
        self.table
            .get_mut(name)
            .is_some_and(|conference| std::mem::replace(&mut conference.locked, locked) != locked)
    }
}
