//! Phones with random activity: one on either side of the border, each with several calls and random actions in them.

use engine::{Deadline, Engine, Entropy, Input, Output, SocketId, SocketKind, Time, Transport};
use sip::{
    DialogId, Endpoint, EndpointConfig, Flow, Handler, Indication, Invite, LegId, ListenerConfig,
    ListenerId, MessageContent, OutOfDialogRequest, ServerTransaction, Target,
};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Most open calls of a phone; at this number it starts no new one.
const MAX_CALLS: usize = 6;
/// Mean time between two actions, seconds.
const MEAN_PAUSE_S: f64 = 3.0;

/// A phone with random activity.
pub struct RandomPhone {
    endpoint: Endpoint,
    state: PhoneState,
    opened: bool,
    /// Time of the next action; `None`: idle.
    next: Option<Time>,
}

/// State of the phone apart from its endpoint, since the endpoint is passed to its handler.
struct PhoneState {
    address: SocketAddr,
    local: ListenerId,
    border: SocketAddr,
    entropy: Entropy,
    /// Users that it calls.
    users: &'static [&'static str],
    legs: Vec<LegId>,
    /// Incoming calls that ring.
    ringing: Vec<LegId>,
    /// Outgoing calls without an offer in the INVITE.
    late_offers: Vec<LegId>,
    /// Subscriptions with their expiry.
    subscriptions: Vec<(Time, DialogId)>,
    /// In-dialog requests to be answered later.
    unanswered: Vec<ServerTransaction>,
    version: u64,
    counts: ActionCounts,
}

/// Counts of the phone's actions, so that a test can check that each kind occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionCounts {
    /// Calls begun.
    pub calls: u64,
    /// Calls established, on either side.
    pub established: u64,
    /// Offers within calls: re-INVITE and UPDATE.
    pub offers: u64,
    /// REFERs.
    pub refers: u64,
    /// REFERs that were accepted.
    pub accepted: u64,
    /// Calls cancelled.
    pub cancels: u64,
    /// Out-of-dialog subscriptions and messages.
    pub out_of_dialog: u64,
}

impl ActionCounts {
    /// Sum of two counts.
    pub fn and(self, other: ActionCounts) -> ActionCounts {
        ActionCounts {
            calls: self.calls + other.calls,
            established: self.established + other.established,
            offers: self.offers + other.offers,
            refers: self.refers + other.refers,
            accepted: self.accepted + other.accepted,
            cancels: self.cancels + other.cancels,
            out_of_dialog: self.out_of_dialog + other.out_of_dialog,
        }
    }
}

impl RandomPhone {
    /// A phone that calls `users` through `border`, idle until [`RandomPhone::begin`].
    pub fn new(
        address: SocketAddr,
        border: SocketAddr,
        users: &'static [&'static str],
        mut entropy: Entropy,
    ) -> RandomPhone {
        let mut endpoint = Endpoint::new(EndpointConfig::default(), entropy.fork());
        let local = endpoint.add_listener(ListenerConfig {
            name: "party".to_owned(),
            socket: SocketId(0),
            transport: Transport::Udp,
            address,
            advertised: String::new(),
        });
        RandomPhone {
            endpoint,
            state: PhoneState {
                address,
                local,
                border,
                entropy,
                users,
                legs: Vec::new(),
                ringing: Vec::new(),
                late_offers: Vec::new(),
                subscriptions: Vec::new(),
                unanswered: Vec::new(),
                version: 0,
                counts: ActionCounts::default(),
            },
            opened: false,
            next: None,
        }
    }

    /// Starts its actions at `at`.
    pub fn begin(&mut self, at: Time) {
        self.next = Some(at);
    }

    /// Ends all calls; the phone becomes idle.
    pub fn stop(&mut self, now: Time) {
        self.next = None;
        let state = &mut self.state;
        for leg in state.legs.drain(..).chain(state.ringing.drain(..)) {
            let _ = self.endpoint.hang_up(leg, &MessageContent::default(), now);
        }
        for (_, dialog) in state.subscriptions.drain(..) {
            self.endpoint.close_dialog(dialog);
        }
        state.late_offers.clear();
        for transaction in state.unanswered.drain(..) {
            let _ = self
                .endpoint
                .respond(transaction, 500, &MessageContent::default(), now);
        }
    }

    /// Counts of its actions so far.
    pub fn counts(&self) -> ActionCounts {
        self.state.counts
    }

    /// Census of its own endpoint.
    pub fn census(&self) -> sip::Census {
        self.endpoint.census()
    }
}

impl Engine for RandomPhone {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.endpoint.feed(input, now, &mut self.state);
        while self.next.is_some_and(|next| next <= now) {
            let gap = Duration::from_secs_f64(self.state.entropy.exponential(MEAN_PAUSE_S));
            self.next = Some(now + gap.max(Duration::from_millis(1)));
            self.state.act(&mut self.endpoint, now);
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if !std::mem::replace(&mut self.opened, true) {
            return Some(Output::OpenSocket {
                socket: SocketId(0),
                kind: SocketKind::UdpSignalling,
                local: self.state.address,
            });
        }
        self.endpoint.next_output()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let action = self.next.map(|at| Deadline::new(at, "action"));
        Deadline::earlier(self.endpoint.next_deadline(), action)
    }
}

impl PhoneState {
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
        let user = self.draw(self.users).unwrap_or("nobody");
        format!("sip:{user}@{}", self.border)
    }

    /// One random action.
    fn act(&mut self, endpoint: &mut Endpoint, now: Time) {
        // Every other ringing call is answered or rejected.
        if self.entropy.unit() < 0.5 && !self.ringing.is_empty() {
            let leg = self.ringing.remove(0);
            return self.decide(endpoint, leg, now);
        }
        if let Some(transaction) = self.unanswered.pop() {
            let sdp = self.sdp("sendrecv");
            let _ = endpoint.respond(transaction, 200, &MessageContent::sdp(&sdp), now);
        }
        if self.legs.len() < MAX_CALLS && self.entropy.unit() < 0.5 {
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
                if endpoint
                    .cancel(leg, &MessageContent::default(), now)
                    .is_ok()
                {
                    self.counts.cancels += 1;
                }
            }
            1 => {
                let _ = endpoint.bye(leg, &MessageContent::default(), now);
            }
            2 | 3 => self.offer(endpoint, leg, Method::Invite, now),
            4 => self.offer(endpoint, leg, Method::Update, now),
            5 => {
                let _ = endpoint.request(leg, Method::Info, &MessageContent::default(), now);
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
        // One in five calls has no offer in the INVITE.
        let late = self.entropy.unit() < 0.2;
        if !late {
            invite.content = MessageContent::sdp(&sdp);
        }
        if let Ok(leg) = endpoint.invite(&invite, now) {
            self.counts.calls += 1;
            if late {
                self.late_offers.push(leg);
            }
            self.legs.push(leg);
        }
    }

    fn offer(&mut self, endpoint: &mut Endpoint, leg: LegId, method: Method<'_>, now: Time) {
        let direction = self.draw(&["sendrecv", "sendonly", "inactive"]);
        let sdp = self.sdp(direction.unwrap_or("sendrecv"));
        if endpoint
            .request(leg, method, &MessageContent::sdp(&sdp), now)
            .is_ok()
        {
            self.counts.offers += 1;
        }
    }

    /// Transfers to another user, or replaces another call of this phone.
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
        let content = MessageContent::default().with(&edits);
        if endpoint.request(leg, Method::Refer, &content, now).is_ok() {
            self.counts.refers += 1;
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
        let request = OutOfDialogRequest {
            content: MessageContent::default().with(&edits),
            ..OutOfDialogRequest::new(Method::Subscribe, Target::new(uri.as_bytes(), self.flow()))
        };
        // Its notifications are never answered: the border has to remove the subscription by itself.
        if let Ok((dialog, _)) = endpoint.subscribe(&request, 0, now) {
            self.counts.out_of_dialog += 1;
            self.subscriptions
                .push((now + Duration::from_secs(20), dialog));
        }
        let over = |(until, _): &(Time, DialogId)| *until <= now;
        while self.subscriptions.first().is_some_and(over) {
            endpoint.close_dialog(self.subscriptions.remove(0).1);
        }
    }

    fn ask(&mut self, endpoint: &mut Endpoint, now: Time) {
        let uri = self.uri();
        let method = match self.entropy.below(2) {
            0 => Method::Options,
            _ => Method::Message,
        };
        let request = OutOfDialogRequest::new(method, Target::new(uri.as_bytes(), self.flow()));
        if endpoint.send(&request, now).is_ok() {
            self.counts.out_of_dialog += 1;
        }
    }

    fn decide(&mut self, endpoint: &mut Endpoint, leg: LegId, now: Time) {
        let sdp = self.sdp("sendrecv");
        match self.entropy.below(10) {
            0 => {
                let _ = endpoint.reject(leg, 486, &MessageContent::default(), now);
            }
            1 => {
                let _ = endpoint.progress(leg, 183, &MessageContent::sdp(&sdp), false, now);
                self.ringing.push(leg);
            }
            _ => {
                if endpoint
                    .answer(leg, 200, &MessageContent::sdp(&sdp), now)
                    .is_ok()
                {
                    self.legs.push(leg);
                }
            }
        }
    }

    fn forget(&mut self, leg: LegId) {
        self.legs.retain(|other| *other != leg);
        self.ringing.retain(|other| *other != leg);
        self.late_offers.retain(|other| *other != leg);
    }
}

fn has_sdp(message: &Message<'_>) -> bool {
    message.body().starts_with(b"v=0")
}

impl Handler for PhoneState {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let none = MessageContent::default();
        match indication {
            Indication::Offered { leg, .. } => {
                let _ = endpoint.progress(leg, 180, &none, false, now);
                self.ringing.push(leg);
            }
            Indication::Answered { leg, response, .. } => {
                self.counts.established += 1;
                let sdp = self.sdp("sendrecv");
                let late = self.late_offers.contains(&leg) && has_sdp(response);
                let content = if late {
                    MessageContent::sdp(&sdp)
                } else {
                    none
                };
                let _ = endpoint.ack(leg, &content, now);
            }
            Indication::Acked { .. } => self.counts.established += 1,
            Indication::Response { leg, response, .. } => {
                let method = response.cseq().map(|cseq| cseq.method);
                match (method, response.status()) {
                    (Ok(Method::Invite), 200..300) => {
                        let _ = endpoint.ack(leg, &none, now);
                    }
                    (Ok(Method::Refer), 200..300) => self.counts.accepted += 1,
                    _ => {}
                }
            }
            Indication::Request {
                transaction,
                request,
                ..
            } => {
                let offers = has_sdp(request) || request.method() == Method::Invite;
                // One in four requests is answered later.
                if offers && self.entropy.unit() < 0.25 {
                    return self.unanswered.push(transaction);
                }
                let sdp = self.sdp("sendrecv");
                let content = if offers {
                    MessageContent::sdp(&sdp)
                } else {
                    none
                };
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
                    MessageContent::sdp(&sdp)
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
                    let founded = endpoint.open_dialog(transaction, request, flow, true, 0);
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
