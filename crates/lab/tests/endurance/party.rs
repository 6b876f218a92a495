//! Telephones that do everything at once: one on either side of the border, each with any number of calls, in which they do
//! whatever comes to their minds.

use engine::{Deadline, Engine, Entropy, Input, Output, SocketId, SocketKind, Time, Transport};
use sip::{
    Content, DialogId, Endpoint, EndpointConfig, Flow, Indication, Invite, LegId, Local, LocalId,
    Outside, ServerTransaction, Target, User,
};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Calls that each has open at a time; more it begins no new one.
const OPEN: usize = 6;
/// The mean time from one idea to the next.
const IDEA: f64 = 3.0;

/// A party's telephone.
pub struct Party {
    endpoint: Endpoint,
    mind: Mind,
    opened: bool,
    /// The next idea; `None`: it rests.
    next: Option<Time>,
}

/// Everything but the endpoint, which lends itself to its user.
struct Mind {
    address: SocketAddr,
    local: LocalId,
    border: SocketAddr,
    entropy: Entropy,
    /// Whom it calls.
    friends: &'static [&'static str],
    legs: Vec<LegId>,
    /// Calls that ring here.
    ringing: Vec<LegId>,
    /// Calls of ours whose offer is left to the other side.
    late: Vec<LegId>,
    /// Subscriptions, and until when we know of them.
    watched: Vec<(Time, DialogId)>,
    /// Requests in calls that wait for their answer.
    asked: Vec<ServerTransaction>,
    version: u64,
    did: Did,
}

/// What a party has done, so that a test sees that it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Calls begun.
    pub calls: u64,
    /// Calls that stood, on either side.
    pub stood: u64,
    /// Offers in calls: re-INVITE and UPDATE.
    pub offers: u64,
    /// REFERs.
    pub refers: u64,
    /// REFERs that were accepted.
    pub accepted: u64,
    /// Calls cancelled.
    pub cancels: u64,
    /// Subscriptions and messages outside of calls.
    pub outside: u64,
}

impl Did {
    /// The same of two.
    pub fn and(self, other: Did) -> Did {
        Did {
            calls: self.calls + other.calls,
            stood: self.stood + other.stood,
            offers: self.offers + other.offers,
            refers: self.refers + other.refers,
            accepted: self.accepted + other.accepted,
            cancels: self.cancels + other.cancels,
            outside: self.outside + other.outside,
        }
    }
}

impl Party {
    /// One that calls `friends` through `border`, and rests until [`Party::begin`].
    pub fn new(
        address: SocketAddr,
        border: SocketAddr,
        friends: &'static [&'static str],
        mut entropy: Entropy,
    ) -> Party {
        let mut endpoint = Endpoint::new(EndpointConfig::default(), entropy.fork());
        let local = endpoint.add_local(Local {
            name: "party".to_owned(),
            socket: SocketId(0),
            transport: Transport::Udp,
            address,
            advertised: String::new(),
        });
        Party {
            endpoint,
            mind: Mind {
                address,
                local,
                border,
                entropy,
                friends,
                legs: Vec::new(),
                ringing: Vec::new(),
                late: Vec::new(),
                watched: Vec::new(),
                asked: Vec::new(),
                version: 0,
                did: Did::default(),
            },
            opened: false,
            next: None,
        }
    }

    /// It has ideas from `at` on.
    pub fn begin(&mut self, at: Time) {
        self.next = Some(at);
    }

    /// It hangs up everything, and rests.
    pub fn rest(&mut self, now: Time) {
        self.next = None;
        let mind = &mut self.mind;
        for leg in mind.legs.drain(..).chain(mind.ringing.drain(..)) {
            let _ = self.endpoint.hang_up(leg, &Content::default(), now);
        }
        for (_, dialog) in mind.watched.drain(..) {
            self.endpoint.close_dialog(dialog);
        }
        mind.late.clear();
        for transaction in mind.asked.drain(..) {
            let _ = self
                .endpoint
                .respond(transaction, 500, &Content::default(), now);
        }
    }

    /// What it has done so far.
    pub fn did(&self) -> Did {
        self.mind.did
    }

    /// What its own endpoint holds.
    pub fn census(&self) -> sip::Census {
        self.endpoint.census()
    }
}

impl Engine for Party {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.endpoint.feed(input, now, &mut self.mind);
        while self.next.is_some_and(|next| next <= now) {
            let gap = Duration::from_secs_f64(self.mind.entropy.exponential(IDEA));
            self.next = Some(now + gap.max(Duration::from_millis(1)));
            self.mind.idea(&mut self.endpoint, now);
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if !std::mem::replace(&mut self.opened, true) {
            return Some(Output::Open {
                socket: SocketId(0),
                kind: SocketKind::UdpSignalling,
                local: self.mind.address,
            });
        }
        self.endpoint.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let idea = self.next.map(|at| Deadline::new(at, "an idea"));
        Deadline::earlier(self.endpoint.next_deadline(), idea)
    }
}

impl Mind {
    fn draw<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.entropy.below(from.len() as u64) as usize;
        from.get(index).copied()
    }

    fn sdp(&mut self, direction: &str) -> Vec<u8> {
        self.version += 1;
        let (ip, version) = (self.address.ip(), self.version);
        format!(
            "v=0\r\no=- 7 {version} IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\n\
             m=audio 7000 RTP/AVP 8\r\na=rtpmap:8 PCMA/8000\r\na={direction}\r\n"
        )
        .into_bytes()
    }

    fn flow(&self) -> Flow {
        Flow {
            local: self.local,
            transport: Transport::Udp,
            remote: self.border,
            connection: None,
        }
    }

    fn uri(&mut self) -> String {
        let friend = self.draw(self.friends).unwrap_or("nobody");
        format!("sip:{friend}@{}", self.border)
    }

    /// One thing, drawn.
    fn idea(&mut self, endpoint: &mut Endpoint, now: Time) {
        // Every other ringing call is decided upon.
        if self.entropy.unit() < 0.5 && !self.ringing.is_empty() {
            let leg = self.ringing.remove(0);
            return self.decide(endpoint, leg, now);
        }
        if let Some(transaction) = self.asked.pop() {
            let sdp = self.sdp("sendrecv");
            let _ = endpoint.respond(transaction, 200, &Content::sdp(&sdp), now);
        }
        if self.legs.len() < OPEN && self.entropy.unit() < 0.5 {
            return self.call(endpoint, now);
        }
        let legs = std::mem::take(&mut self.legs);
        let drawn = self.draw(&legs);
        self.legs = legs;
        let Some(leg) = drawn else {
            return self.call(endpoint, now);
        };
        match self.entropy.below(10) {
            0 => {
                if endpoint.cancel(leg, &Content::default(), now).is_ok() {
                    self.did.cancels += 1;
                }
            }
            1 => {
                let _ = endpoint.bye(leg, &Content::default(), now);
            }
            2 | 3 => self.offer(endpoint, leg, Method::Invite, now),
            4 => self.offer(endpoint, leg, Method::Update, now),
            5 => {
                let _ = endpoint.request(leg, Method::Info, &Content::default(), now);
            }
            6 | 7 => self.refer(endpoint, leg, now),
            8 => self.subscribe(endpoint, now),
            _ => self.ask(endpoint, now),
        }
    }

    fn call(&mut self, endpoint: &mut Endpoint, now: Time) {
        let uri = self.uri();
        let from = format!("<sip:party@{}>", self.address);
        let sdp = self.sdp("sendrecv");
        let mut invite = Invite::new(Target::new(uri.as_bytes(), self.flow()));
        invite.from = Some(from.as_bytes());
        // One in five leaves the offer to the other side.
        let late = self.entropy.unit() < 0.2;
        if !late {
            invite.content = Content::sdp(&sdp);
        }
        if let Ok(leg) = endpoint.invite(&invite, now) {
            self.did.calls += 1;
            if late {
                self.late.push(leg);
            }
            self.legs.push(leg);
        }
    }

    fn offer(&mut self, endpoint: &mut Endpoint, leg: LegId, method: Method<'_>, now: Time) {
        let direction = self.draw(&["sendrecv", "sendonly", "inactive"]);
        let sdp = self.sdp(direction.unwrap_or("sendrecv"));
        if endpoint
            .request(leg, method, &Content::sdp(&sdp), now)
            .is_ok()
        {
            self.did.offers += 1;
        }
    }

    /// To somebody else, or into the place of another call of ours.
    fn refer(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let mut uri = self.uri();
        let legs = std::mem::take(&mut self.legs);
        let other = self.draw(&legs).filter(|other| *other != leg);
        self.legs = legs;
        if let Some((id, (own, theirs))) = other
            .and_then(|other| Some((endpoint.call_id_of(other)?, endpoint.tags_of(other)?)))
            .filter(|_| self.version.is_multiple_of(2))
        {
            let [id, own, theirs] = [id, &own[..], theirs]
                .map(|part| String::from_utf8_lossy(part).replace('@', "%40"));
            uri = format!("{uri}?Replaces={id}%3Bto-tag%3D{theirs}%3Bfrom-tag%3D{own}");
        }
        let value = format!("<{uri}>");
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: value.as_bytes(),
        }];
        let content = Content::default().with(&edits);
        if endpoint.request(leg, Method::Refer, &content, now).is_ok() {
            self.did.refers += 1;
        }
    }

    fn subscribe(&mut self, endpoint: &mut Endpoint, now: Time) {
        let uri = self.uri();
        let edits = [
            Edit::Add {
                id: HeaderId::Event,
                value: b"dialog",
            },
            Edit::Add {
                id: HeaderId::Expires,
                value: b"120",
            },
        ];
        let outside = Outside {
            content: Content::default().with(&edits),
            ..Outside::new(Method::Subscribe, Target::new(uri.as_bytes(), self.flow()))
        };
        // It asks once and never listens again: the border has to forget the subscription by itself.
        if let Ok((dialog, _)) = endpoint.subscribe(&outside, 0, now) {
            self.did.outside += 1;
            self.watched.push((now + Duration::from_secs(20), dialog));
        }
        let over = |(until, _): &(Time, DialogId)| *until <= now;
        while self.watched.first().is_some_and(over) {
            endpoint.close_dialog(self.watched.remove(0).1);
        }
    }

    fn ask(&mut self, endpoint: &mut Endpoint, now: Time) {
        let uri = self.uri();
        let method = match self.entropy.below(2) {
            0 => Method::Options,
            _ => Method::Message,
        };
        let outside = Outside::new(method, Target::new(uri.as_bytes(), self.flow()));
        if endpoint.send(&outside, now).is_ok() {
            self.did.outside += 1;
        }
    }

    fn decide(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let sdp = self.sdp("sendrecv");
        match self.entropy.below(10) {
            0 => {
                let _ = endpoint.reject(leg, 486, &Content::default(), now);
            }
            1 => {
                let _ = endpoint.progress(leg, 183, &Content::sdp(&sdp), false, now);
                self.ringing.push(leg);
            }
            _ => {
                if endpoint.answer(leg, 200, &Content::sdp(&sdp), now).is_ok() {
                    self.legs.push(leg);
                }
            }
        }
    }

    fn forget(&mut self, leg: LegId) {
        self.legs.retain(|other| *other != leg);
        self.ringing.retain(|other| *other != leg);
        self.late.retain(|other| *other != leg);
    }
}

fn has_sdp(message: &Message<'_>) -> bool {
    message.body().starts_with(b"v=0")
}

impl User for Mind {
    fn indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let none = Content::default();
        match indication {
            Indication::Offered { leg, .. } => {
                let _ = endpoint.progress(leg, 180, &none, false, now);
                self.ringing.push(leg);
            }
            Indication::Answered { leg, response } => {
                self.did.stood += 1;
                let sdp = self.sdp("sendrecv");
                let late = self.late.contains(&leg) && has_sdp(response);
                let content = if late { Content::sdp(&sdp) } else { none };
                let _ = endpoint.ack(leg, &content, now);
            }
            Indication::Acked { .. } => self.did.stood += 1,
            Indication::Response { leg, response, .. } => {
                let method = response.cseq().map(|cseq| cseq.method);
                match (method, response.status()) {
                    (Ok(Method::Invite), 200..300) => {
                        let _ = endpoint.ack(leg, &none, now);
                    }
                    (Ok(Method::Refer), 200..300) => self.did.accepted += 1,
                    _ => {}
                }
            }
            Indication::Request {
                transaction,
                request,
                ..
            } => {
                let offers = has_sdp(request) || request.method() == Method::Invite;
                // One in four is answered when there is time for it.
                if offers && self.entropy.unit() < 0.25 {
                    return self.asked.push(transaction);
                }
                let sdp = self.sdp("sendrecv");
                let content = if offers { Content::sdp(&sdp) } else { none };
                let status = match request.method() {
                    Method::Refer => 202,
                    _ => 200,
                };
                let _ = endpoint.respond(transaction, status, &content, now);
            }
            Indication::Pracked {
                transaction,
                request,
                ..
            } => {
                let sdp = self.sdp("sendrecv");
                let content = if has_sdp(request) {
                    Content::sdp(&sdp)
                } else {
                    none
                };
                let _ = endpoint.respond(transaction, 200, &content, now);
            }
            Indication::OutOfDialog {
                transaction,
                request,
                flow,
            } => {
                let edit = [Edit::Add {
                    id: HeaderId::Expires,
                    value: b"120",
                }];
                if request.method() == Method::Subscribe {
                    let founded = endpoint.found_dialog(transaction, request, flow, true, 0);
                    let _ = endpoint.respond(transaction, 200, &none.with(&edit), now);
                    if let Ok(dialog) = founded {
                        endpoint.close_dialog(dialog);
                    }
                } else {
                    let _ = endpoint.respond(transaction, 200, &none, now);
                }
            }
            Indication::InDialog { transaction, .. } => {
                let _ = endpoint.respond(transaction, 200, &none, now);
            }
            Indication::Cancelled { leg, .. }
            | Indication::Failed { leg, .. }
            | Indication::Ended { leg, .. } => self.forget(leg),
            _ => {}
        }
    }
}
