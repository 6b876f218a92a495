//! A call to a conference of ours: the border answers it, and a seat in the forwarder is its other side.

mod describe;
mod lobby;
mod owner;
mod pin;
pub(crate) mod questions;

use super::inside::{refuse, refuse_with};
use super::offered::{Origin, Refused};
use super::pass::{has_sdp, session_of};
use super::{Call, CallKey, Phase, Side, Sides};
use crate::admission::Bill;
use crate::anchor::seat::SeatFacts;
use crate::anchor::{AnchorError, CallMedia};
use crate::border::Core;
use crate::config::Room;
use crate::policy::{Facts, called_number};
use crate::rules::Tags;
use codec::Kind;
use describe::Description;
use engine::{Held, Note, Time};
use lobby::Lobby;
use media::room::SeatEvent;
use sip::{Content, Endpoint, Flow, LegId, ServerTransaction, TransactionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::sdp::Sdp;
use wire::sip::{HeaderId, Message, Method};

/// Which conference: the room of the configuration, and the number that was called.
type Name = (String, String);

#[derive(Debug)]
struct Conference {
    /// Towards the forwarder.
    number: u64,
    /// Those who take part.
    seats: u16,
    /// Those who have yet to give the PIN.
    waiting: u16,
    /// Nobody comes in any more.
    locked: bool,
    since: Time,
    /// All of them, by the numbers of their calls.
    calls: BTreeMap<u64, CallKey>,
}

/// Why nobody may come in.
struct Full {
    /// For the event.
    what: &'static str,
    status: u16,
    why: &'static str,
    /// Reason for who is in a call already.
    reason: &'static [u8],
}

/// How many conferences of each room take place, of several workers at all of them. In one in which everybody waits nothing does.
#[derive(Debug, Default)]
pub(crate) struct TakingPlace(BTreeMap<String, u32>);

impl TakingPlace {
    fn is_full(&self, room: &Room) -> bool {
        self.0.get(&room.name).copied().unwrap_or_default() >= room.rooms
    }

    /// One begins; `false`: no further one may.
    fn begin(&mut self, room: &Room) -> bool {
        let full = self.is_full(room);
        if !full {
            *self.0.entry(room.name.clone()).or_default() += 1;
        }
        !full
    }

    fn end(&mut self, room: &str) {
        if let Some(count) = self.0.get_mut(room) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(room);
            }
        }
    }
}

/// Our conferences, bounded by what their rooms allow.
#[derive(Debug)]
pub(crate) struct Conferences {
    table: BTreeMap<Name, Conference>,
    numbers: u64,
    taking_place: Held<TakingPlace>,
    lobby: Lobby,
}

impl Conferences {
    pub(crate) fn new(taking_place: Held<TakingPlace>) -> Conferences {
        Conferences {
            table: BTreeMap::new(),
            numbers: 0,
            taking_place,
            lobby: Lobby::default(),
        }
    }

    /// Participants of all.
    pub(crate) fn seats(&self) -> usize {
        let calls = self.table.values().map(|conference| conference.calls.len());
        calls.sum()
    }

    fn seats_of(&self, name: &Name) -> u16 {
        self.table
            .get(name)
            .map_or(0, |conference| conference.seats)
    }

    /// Why nobody may take a seat in a conference of `room`; none where somebody may.
    fn full(&self, room: &Room, name: &Name) -> Option<Full> {
        let conference = self.table.get(name);
        let seats = conference.map_or(0, |conference| conference.seats);
        if conference.is_some_and(|conference| conference.locked) {
            return Some(Full {
                what: "lock",
                status: 403,
                why: "the conference is locked",
                reason: b"SIP;cause=403;text=\"Conference locked\"",
            });
        }
        match seats {
            0 if self.taking_place.look(|places| places.is_full(room)) => Some(Full::ROOMS),
            seats if seats >= room.terms.seats => Some(Full::SEATS),
            _ => None,
        }
    }

    /// Somebody is about to take a seat. Another worker may have begun a conference since it was asked whether there may be one more.
    fn sit_down(&mut self, room: &Room, name: &Name) -> Result<(), Full> {
        if let Some(full) = self.full(room, name) {
            return Err(full);
        }
        match self.seats_of(name) == 0 && !self.taking_place.hold().begin(room) {
            true => Err(Full::ROOMS),
            false => Ok(()),
        }
    }

    /// One more participant, for whom there is a seat, or one who waits; the conference's number.
    fn enter(&mut self, name: &Name, call: CallKey, number: u64, waits: bool, now: Time) -> u64 {
        let numbers = &mut self.numbers;
        let conference = self.table.entry(name.clone()).or_insert_with(|| {
            *numbers += 1;
            Conference {
                number: *numbers,
                seats: 0,
                waiting: 0,
                locked: false,
                since: now,
                calls: BTreeMap::new(),
            }
        });
        match waits {
            true => conference.waiting += 1,
            false => conference.seats += 1,
        }
        conference.calls.insert(number, call);
        conference.number
    }

    /// One of those who waited takes part.
    fn admit(&mut self, room: &Room, name: &Name, number: u64) -> Result<(), Full> {
        self.sit_down(room, name)?;
        self.lobby.leave(number);
        if let Some(conference) = self.table.get_mut(name) {
            conference.waiting = conference.waiting.saturating_sub(1);
            conference.seats += 1;
        }
        Ok(())
    }

    /// One less, who `waited` to the end; how many take part.
    fn leave(&mut self, name: &Name, number: u64, waited: bool) -> u16 {
        let Some(conference) = self.table.get_mut(name) else {
            return 0;
        };
        let count = match waited {
            true => &mut conference.waiting,
            false => &mut conference.seats,
        };
        *count = count.saturating_sub(1);
        conference.calls.remove(&number);
        let left = conference.seats;
        match waited {
            true => self.lobby.leave(number),
            false if left == 0 => self.taking_place.hold().end(&name.0),
            false => {}
        }
        if conference.calls.is_empty() {
            self.table.remove(name);
        }
        left
    }
}

impl Full {
    const ROOMS: Full = Full {
        what: "rooms",
        status: 503,
        why: "as many conferences as allowed take place",
        reason: b"SIP;cause=503;text=\"No conference left\"",
    };
    const WAITING: Full = Full {
        what: "waiting",
        status: 486,
        why: "as many callers as allowed wait to give the PIN",
        reason: b"SIP;cause=486;text=\"Too many wait\"",
    };
    const SEATS: Full = Full {
        what: "seats",
        status: 486,
        why: "the conference is full",
        reason: b"SIP;cause=486;text=\"Conference full\"",
    };
}

/// What waits until media sockets are open.
#[derive(Debug)]
struct Waiting {
    /// The request inside the call; none for the INVITE that began it.
    server: Option<ServerTransaction>,
    /// The offer; none where we make one.
    offer: Option<Box<[u8]>>,
}

/// A call's seat.
#[derive(Debug)]
pub(crate) struct Seat {
    room: Arc<Room>,
    name: Name,
    description: Description,
    waiting: Option<Waiting>,
    /// An offer of ours in a 2xx waits for its answer in the ACK.
    offered: bool,
    /// Our refresh.
    refreshing: Option<TransactionId>,
    /// From whom the call is, as it says.
    from: Box<str>,
    /// When his voice was agreed upon.
    came: Option<Time>,
    /// He has yet to give the PIN.
    entry: Option<pin::Entry>,
}

impl Seat {
    /// The call ends: what waits inside it is to be refused.
    pub(crate) fn give_up_waiting(&mut self) -> Option<ServerTransaction> {
        self.waiting.take()?.server
    }
}

/// What is called.
pub(crate) struct Called {
    room: Arc<Room>,
    pub(crate) number: String,
}

impl Core {
    /// The room whose number is called.
    pub(crate) fn room_called(&self, uri: &[u8], origin: Origin) -> Option<Called> {
        if self.config.rooms.is_empty() {
            return None;
        }
        // Whether it may be taken is asked later.
        let facts = Facts {
            draining: false,
            calls: 0,
            ..self.facts_of_room(uri, origin)
        };
        let number = called_number(&self.config, &facts).ok().flatten()?;
        let mut rooms = self.config.rooms.iter();
        let room = rooms.find(|room| room.takes(&number, origin.interface, origin.trunk))?;
        Some(Called {
            room: room.clone(),
            number,
        })
    }

    fn facts_of_room<'f>(&self, uri: &'f [u8], origin: Origin) -> Facts<'f> {
        Facts {
            interface: origin.interface,
            trunk: origin.trunk,
            authenticated: origin.authenticated,
            located: origin.located,
            from: b"",
            to: uri,
            random: 0,
            calls: self.calls_of_all(),
            draining: self.draining.is_some(),
        }
    }

    /// A call to a conference comes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn seat_offered(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        origin: Origin,
        (tags, user, called): (Tags, Option<Box<str>>, Called),
        now: Time,
    ) {
        let admitted = self.admit_to_room(request, flow, origin, &called, now);
        let bill = match admitted {
            Ok(bill) => bill,
            Err(refused) => return self.refuse_call(endpoint, leg, request, flow, &refused, now),
        };
        let number = self.next_number(endpoint);
        let seed = self.entropy.u64();
        let session = self.entropy.u64() >> 2;
        let Some(side) = self.media_side(origin.interface, origin.trunk, flow.remote.ip()) else {
            self.give_cost_back(&bill);
            let refused = Refused::new(488, "the interface has no media");
            return self.refuse_call(endpoint, leg, request, flow, &refused, now);
        };
        let Called {
            room,
            number: called,
        } = called;
        let name = (room.name.clone(), called);
        let from = super::try_next::text(request.from().map(|from| from.uri).unwrap_or_default());
        let source = lobby::Source::of(user, origin.trunk, request, flow.remote.ip());
        let waits = room.pin.is_some();
        let space = match waits {
            true => self.space_to_wait(endpoint, &room, &source, now),
            false => self.conferences.sit_down(&room, &name),
        };
        if let Err(full) = space {
            self.give_cost_back(&bill);
            let refused = self.full_for(&name, &full, now);
            return self.refuse_call(endpoint, leg, request, flow, &refused, now);
        }
        let entry = self.calls.vacant_entry();
        let slot = entry.key();
        let key = CallKey::new(slot, number);
        if waits {
            self.conferences
                .lobby
                .enter(number, key, &room.name, source, now);
        }
        let conference = self.conferences.enter(&name, key, number, waits, now);
        let facts = SeatFacts {
            room: conference,
            terms: room.terms.clone(),
            voice: None,
            seed,
            waits,
        };
        entry.insert(Call {
            number,
            phase: Phase::SetUp,
            legs: Sides::new(Some(leg), None),
            interfaces: Sides::new(origin.interface, origin.interface),
            trunks: Sides::new(origin.trunk, None),
            set_up: None,
            relay: None,
            media: Some(Box::new(
                CallMedia::seated(key.0, side, facts).numbered(number),
            )),
            links: Vec::new(),
            held: None,
            join: None,
            ack_due: None,
            ack_sent: false,
            early_request: None,
            mark: 0,
            bill,
            offered_at: now,
            answered_at: None,
            end: None,
            tags,
            status: 0,
            counted: false,
            end_told: false,
            charging: None,
            transcoded: false,
            seat: Some(Box::new(Seat {
                room,
                name,
                description: Description::new(session),
                waiting: None,
                offered: false,
                refreshing: None,
                from: from.clone().into(),
                came: None,
                entry: waits.then(pin::Entry::default),
            })),
        });
        self.tell_crew();
        endpoint.set_user(leg, key.0);
        self.locate_dialog(endpoint, leg, None, now);
        self.trunk_call_began(origin.trunk);
        let config = self.config.clone();
        self.events.tell(now, || Note::CallOffered {
            call: number,
            interface: config
                .interface(origin.interface)
                .map_or_else(String::new, |interface| interface.name.clone()),
            call_id: super::try_next::text(request.call_id().unwrap_or_default()),
            from,
            to: super::try_next::text(request.request_uri()),
        });
        self.tell_first_tags(slot, now);
        self.negotiate_seat(endpoint, slot, None, offer_of(request), now);
    }

    /// Whether a call may take a seat, and what that costs.
    fn admit_to_room(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        origin: Origin,
        called: &Called,
        now: Time,
    ) -> Result<Bill, Refused> {
        let uri = request.request_uri();
        let facts = self.facts_of_room(uri, origin);
        called_number(&self.config, &facts).map_err(Refused::from)?;
        let room = &called.room;
        let name = (room.name.clone(), called.number.clone());
        if let Some(full) = self.conferences.full(room, &name) {
            return Err(self.full_for(&name, &full, now));
        }
        // By the codec that will be chosen; by the first of the room where the offer is ours to make.
        let kind = match offer_of(request) {
            Some(Ok(offer)) => describe::preferred(room, offer),
            _ => None,
        };
        let kind = kind.or(room.codecs.first().copied()).unwrap_or(Kind::Pcma);
        self.take(uri, Bill::of_seat(kind, flow.transport), now)
    }

    /// The refusal of a call for which there is no place.
    fn full_for(&mut self, name: &Name, full: &Full, now: Time) -> Refused {
        self.tell_full(name, full, now);
        let mut refused = Refused::new(full.status, full.why);
        if full.status == 503 {
            refused.headers.push((HeaderId::RetryAfter, b"10".to_vec()));
        }
        refused
    }

    fn tell_full(&mut self, name: &Name, full: &Full, now: Time) {
        self.events.tell(now, || Note::RoomFull {
            room: name.0.clone(),
            number: name.1.clone(),
            what: full.what.to_owned(),
            status: full.status,
        });
    }

    /// Takes an offer, or makes one; answers as soon as the sockets are open.
    fn negotiate_seat(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        offer: Option<Result<&[u8], AnchorError>>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (Some(media), Some(seat)) = (call.media.as_deref_mut(), call.seat.as_deref_mut())
        else {
            return;
        };
        let plane = &mut self.plane;
        let mut unused = Vec::new();
        let (taken, offer) = match offer {
            None => (media.reserve(plane), None),
            Some(Err(error)) => (Err(error), None),
            Some(Ok(offer)) => (
                media.offer(plane, Side::Caller, offer, &mut unused),
                Some(offer),
            ),
        };
        match taken {
            Err(error) => self.refuse_seat(endpoint, slot, server, error, now),
            Ok(()) if media.hold_back(plane) => {
                seat.waiting = Some(Waiting {
                    server,
                    offer: offer.map(Box::from),
                });
            }
            Ok(()) => self.answer_seat(endpoint, slot, server, offer, now),
        }
    }

    /// The sockets are open that a seat waited for.
    pub(crate) fn seat_opened(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let call = self.calls.get_mut(slot);
        let waiting = call
            .and_then(|call| call.seat.as_deref_mut())
            .and_then(|seat| seat.waiting.take());
        if let Some(Waiting { server, offer }) = waiting {
            self.answer_seat(endpoint, slot, server, offer.as_deref(), now);
        }
    }

    /// Answers, with the answer to `offer` or with an offer of ours.
    fn answer_seat(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        offer: Option<&[u8]>,
        now: Time,
    ) {
        let mut sdp = Vec::new();
        let described = match offer {
            Some(offer) => self.describe_answer(slot, offer, &mut sdp),
            None => self.describe_offer(slot, &mut sdp),
        };
        if let Err(error) = described {
            return self.refuse_seat(endpoint, slot, server, error, now);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(leg) = call.leg(Side::Caller) else {
            return;
        };
        if let Some(seat) = call.seat.as_deref_mut() {
            seat.offered = offer.is_none();
        }
        let content = Content::sdp(&sdp);
        if let Some(server) = server {
            // A transaction that is over has been answered for us.
            let _ = endpoint.respond(server, 200, &content, now);
            return;
        }
        if endpoint.answer(leg, 200, &content, now).is_err() {
            return self.end_call(endpoint, slot, "us", "answer cannot be sent", None, now);
        }
        let number = call.number;
        call.phase = Phase::Answered;
        call.answered_at = Some(now);
        call.status = 200;
        self.counters.answered += 1;
        self.events
            .tell(now, || Note::CallAnswered { call: number });
        self.tell_joined(slot, now);
    }

    /// He has come, once his voice is agreed upon; where there is a PIN, he is asked for it.
    fn tell_joined(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call
            .media
            .as_ref()
            .and_then(|media| media.voice())
            .is_none()
        {
            return;
        }
        let Some(seat) = call.seat.as_deref_mut().filter(|seat| seat.came.is_none()) else {
            return;
        };
        seat.came = Some(now);
        match seat.entry {
            Some(_) => self.ask_pin(slot, now),
            None => self.tell_in(slot, now),
        }
    }

    /// Tells that he takes part.
    fn tell_in(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let number = call.number;
        let voice = call.media.as_ref().and_then(|media| media.voice());
        let (Some((_, voice)), Some(seat)) = (voice, call.seat.as_deref()) else {
            return;
        };
        let seats = self.conferences.seats_of(&seat.name);
        let name = &seat.name;
        self.events.tell(now, || Note::RoomJoined {
            call: number,
            room: name.0.clone(),
            number: name.1.clone(),
            seats: seats.into(),
            codec: format!("{} {} ms", voice.sends.kind().name(), voice.packet_ms),
        });
    }

    /// Our answer to an offer of the caller's, which the media has taken; appended to `out`.
    fn describe_answer(
        &mut self,
        slot: usize,
        offer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(seat)) = (call.media.as_deref_mut(), call.seat.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let sealed = media.is_protected();
        let sdp = Sdp::parse(offer).map_err(|_| AnchorError::Unanchorable)?;
        let choice = describe::choose(&seat.room, &sdp, sealed);
        let choice = choice.filter(|choice| media.has_line(choice.line));
        let choice = choice.ok_or(AnchorError::NoCodec);
        let plane = &mut self.plane;
        let choice = choice.inspect_err(|_| media.abandon(plane))?;
        let answer = seat.description.answer(&sdp, &choice);
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        media
            .answer(plane, Side::Callee, &answer, false, out)
            .inspect_err(|_| {
                media.agree_voice(before);
                media.abandon(plane);
            })
    }

    /// An offer of ours, appended to `out`.
    fn describe_offer(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(seat)) = (call.media.as_deref_mut(), call.seat.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let line = media.voice().map_or(0, |voice| voice.0);
        let offer = seat.description.offer(&seat.room, line);
        media.offer(&mut self.plane, Side::Callee, &offer, out)
    }

    /// The caller's answer to an offer of ours.
    fn take_answer(&mut self, slot: usize, answer: &[u8]) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(seat)) = (call.media.as_deref_mut(), call.seat.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let plane = &mut self.plane;
        let sealed = media.is_protected();
        let sdp = Sdp::parse(answer).ok();
        // It has chosen: what it named first counts.
        let choice = sdp.and_then(|sdp| describe::chosen(&seat.room, &sdp, sealed));
        let Some(choice) = choice.filter(|choice| media.has_line(choice.line)) else {
            media.abandon(plane);
            return Err(AnchorError::NoCodec);
        };
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        let mut unused = Vec::new();
        media
            .answer(plane, Side::Caller, answer, false, &mut unused)
            .inspect_err(|_| {
                media.agree_voice(before);
            })
    }

    /// What was offered cannot be: the call is refused, or stays as it was.
    fn refuse_seat(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        error: AnchorError,
        now: Time,
    ) {
        if let AnchorError::Exhausted(pool) = error {
            self.ports_exhausted(pool, now);
        }
        let status = error.status();
        match server {
            Some(server) => refuse_with(endpoint, server, status, Some(error.text()), now),
            None => {
                self.reject_caller_for(endpoint, slot, status, Some(error.text()), now);
                self.end_call(endpoint, slot, "us", error.text(), None, now);
            }
        }
    }

    /// ACK of a 2xx that a seat sent.
    pub(crate) fn seat_acked(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        ack: &Message<'_>,
        now: Time,
    ) {
        let call = self.calls.get_mut(slot);
        let Some(seat) = call.and_then(|call| call.seat.as_deref_mut()) else {
            return;
        };
        if !std::mem::take(&mut seat.offered) {
            return;
        }
        let taken = match offer_of(ack) {
            Some(Ok(answer)) => self.take_answer(slot, answer),
            Some(Err(error)) => Err(error),
            None => Err(AnchorError::NoCodec),
        };
        match taken {
            Ok(()) => self.tell_joined(slot, now),
            Err(error) => {
                let reason = b"SIP;cause=488;text=\"No answer that can be taken\"";
                self.end_call(endpoint, slot, "us", error.text(), Some(reason), now);
            }
        }
    }

    /// A request inside a participant's dialog.
    pub(crate) fn seat_requested(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let method = request.method();
        let busy = self
            .calls
            .get(slot)
            .and_then(|call| call.seat.as_deref())
            .is_none_or(|seat| seat.waiting.is_some() || seat.offered || seat.refreshing.is_some());
        match method {
            Method::Invite | Method::Update => {
                // Its Contact may name another host.
                self.locate_dialog(endpoint, leg, None, now);
                if method == Method::Update && !has_sdp(request) {
                    let _ = endpoint.respond(transaction, 200, &Content::default(), now);
                } else if busy {
                    refuse(endpoint, transaction, 491, now);
                } else {
                    let offer = offer_of(request);
                    self.negotiate_seat(endpoint, slot, Some(transaction), offer, now);
                }
            }
            Method::Options => refuse(endpoint, transaction, 200, now),
            // Digits come as telephone events only.
            Method::Info if request.body().is_empty() => refuse(endpoint, transaction, 200, now),
            Method::Info => refuse(endpoint, transaction, 415, now),
            Method::Subscribe => refuse(endpoint, transaction, 489, now),
            _ => refuse(endpoint, transaction, 405, now),
        }
    }

    /// Our turn to refresh the session of a participant whose phone takes no UPDATE.
    pub(crate) fn seat_refresh(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        now: Time,
    ) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let busy = call
            .seat
            .as_deref()
            .is_none_or(|seat| seat.waiting.is_some() || seat.offered || seat.refreshing.is_some());
        if busy || call.phase != Phase::Confirmed {
            return;
        }
        let mut sdp = Vec::new();
        if self.describe_offer(slot, &mut sdp).is_err() {
            return;
        }
        let sent = endpoint.request(leg, Method::Invite, &Content::sdp(&sdp), now);
        match (
            sent,
            self.calls
                .get_mut(slot)
                .and_then(|call| call.seat.as_deref_mut()),
        ) {
            (Ok(transaction), Some(seat)) => seat.refreshing = Some(transaction),
            // Glare: the other request refreshes the session just as well.
            _ => self.abandon_offer(slot),
        }
    }

    /// A final response to our refresh; none where it timed out.
    pub(crate) fn seat_refreshed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: TransactionId,
        response: Option<&Message<'_>>,
        now: Time,
    ) {
        let call = self.calls.get_mut(slot);
        let Some(seat) = call.and_then(|call| call.seat.as_deref_mut()) else {
            return;
        };
        let ours = seat.refreshing == Some(transaction);
        if ours {
            seat.refreshing = None;
        }
        let accepted = response.filter(|response| response.status() < 300);
        if let Some(response) = accepted.filter(|response| response.method() == Method::Invite) {
            let _ = endpoint.ack(leg, &Content::default(), now);
            let taken = match offer_of(response) {
                Some(Ok(answer)) if ours => self.take_answer(slot, answer),
                _ => Err(AnchorError::NoCodec),
            };
            if let Err(error) = taken {
                self.end_call(endpoint, slot, "us", error.text(), None, now);
            }
        } else if ours {
            self.abandon_offer(slot);
            let status = response.map_or(408, Message::status);
            // 491 and the like leave the session as it is; its timer decides.
            if matches!(status, 408 | 481) {
                self.end_call(endpoint, slot, "us", "refresh failed", None, now);
            }
        }
    }

    /// A participant did something in the media.
    pub(crate) fn seat_event(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        event: SeatEvent,
        now: Time,
    ) {
        match event {
            SeatEvent::Muted => self.tell_muted(key, true, "participant", now),
            SeatEvent::Unmuted => self.tell_muted(key, false, "participant", now),
            SeatEvent::Digit(digit) => {
                if let Some(slot) = self.slot_of(key) {
                    self.pin_digit(endpoint, slot, digit, now);
                }
            }
        }
    }

    fn tell_muted(&mut self, key: CallKey, muted: bool, by: &str, now: Time) {
        let call = self.slot_of(key).and_then(|slot| self.calls.get(slot));
        let Some((call, seat)) = call.and_then(|call| Some((call, call.seat.as_deref()?))) else {
            return;
        };
        let number = call.number;
        self.events.tell(now, || Note::RoomMuted {
            call: number,
            room: seat.name.0.clone(),
            muted,
            by: by.to_owned(),
        });
    }

    /// The seat goes back; once.
    pub(crate) fn leave_room(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(mut seat) = call.seat.take() else {
            return;
        };
        let number = call.number;
        let waited = seat.entry.is_some();
        if let Some(timer) = seat.entry.as_mut().and_then(pin::Entry::end) {
            self.timers.cancel(timer);
        }
        let seats = self.conferences.leave(&seat.name, number, waited);
        if seat.came.is_some() && !waited {
            let now = self.now;
            self.events.tell(now, || Note::RoomLeft {
                call: number,
                room: seat.name.0.clone(),
                number: seat.name.1.clone(),
                seats: seats.into(),
            });
        }
    }
}

/// The session description of a message; an error where it is there and cannot be read in place.
fn offer_of<'m>(message: &'m Message<'m>) -> Option<Result<&'m [u8], AnchorError>> {
    match session_of(message) {
        wire::sip::Session::None => None,
        wire::sip::Session::Encoded => Some(Err(AnchorError::Encoded)),
        session => session.bytes(message.body()).map(Ok),
    }
}
