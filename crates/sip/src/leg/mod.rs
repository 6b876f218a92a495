//! Legs: INVITE dialogs from the first INVITE to the end (RFC 3261 sections 12 to 15).

pub(crate) mod answers;
pub(crate) mod inside;
pub(crate) mod uac;
pub(crate) mod uas;

use crate::Endpoint;
use crate::api::{Content, Flow, Fork, LegId, LegState, Prack, Refused, ServerTransaction};
use crate::compose::Lines;
use crate::credentials::StoredLogin;
use crate::dialog::{Own, Peer, numeric_hop};
use crate::names::{MAGIC, Name};
use crate::reliable::Reliable;
use crate::session_timer::Session;
use crate::timer::Timer;
use crate::transaction::{ClientState, NONE, Owner};
use crate::transport::Point;
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Time, Transport};
use wire::sip::{HeaderId, Method};

/// We have an offer out that has no answer yet.
pub(crate) const OFFER_OUT: u8 = 1;
/// The peer has an offer out that we have not answered.
pub(crate) const OFFER_IN: u8 = 2;

/// One side of a call.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) cookie: u64,
    /// Our tag, where another worker began the dialog; else slot and cookie are.
    pub(crate) tag: Option<Box<Name>>,
    pub(crate) user: u64,
    pub(crate) own: Own,
    pub(crate) peer: Peer,
    /// Requests go to `peer.flow` whatever the dialog says.
    pub(crate) pinned: bool,
    pub(crate) tcp_when_large: bool,
    /// We opened it (and own its Call-ID).
    pub(crate) uac: bool,
    pub(crate) state: LegState,
    pub(crate) peer_update: bool,
    pub(crate) peer_timer: bool,
    pub(crate) peer_reliable: bool,
    pub(crate) offers: u8,
    /// Their UPDATE has no final response of ours yet (RFC 3311 section 5.2).
    pub(crate) updating: bool,
    /// Our UPDATE has no final response yet.
    pub(crate) update_out: bool,
    pub(crate) cseq: u32,
    /// Slot of the INVITE's client transaction whose 2xx is to be acknowledged by the user, and its CSeq.
    pub(crate) owed_ack: u32,
    pub(crate) owed_cseq: u32,
    /// Our re-INVITE without final response.
    pub(crate) ours: u32,
    /// Their INVITE without final response of ours.
    pub(crate) theirs: Option<ServerTransaction>,
    pub(crate) session: Session,
    pub(crate) login: Option<Box<StoredLogin>>,
    /// Only until the first INVITE is confirmed.
    pub(crate) setup: Option<Box<Setup>>,
    /// Our 2xx until its ACK.
    pub(crate) unacked: Option<Box<Unacked>>,
    /// BYE waits for the ACK of our 2xx (section 15: the callee must not send BYE before).
    /// Its header lines.
    pub(crate) bye_waits: Option<Box<[u8]>>,
}

/// What a leg needs until it is answered.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Client transaction of the INVITE; of a UAS leg [`NONE`].
    pub(crate) invite: u32,
    /// CSeq of that INVITE, for RAck.
    pub(crate) cseq: u32,
    /// The user gave up; CANCEL was sent, or waits for a provisional response.
    pub(crate) cancelled: bool,
    /// Header lines for the CANCEL that waits.
    pub(crate) cancel_headers: Vec<u8>,
    pub(crate) prack: Prack,
    pub(crate) forks: Vec<Early>,
    pub(crate) reliable: Reliable,
}

/// An early dialog of a forked INVITE of ours.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) peer: Peer,
    /// Highest RSeq received in order (RFC 3262 section 4); 0: none.
    pub(crate) rseq: u32,
    /// That one awaits PRACK by the user.
    pub(crate) prack_owed: bool,
    pub(crate) peer_update: bool,
}

/// A 2xx of ours that is repeated until its ACK comes (section 13.3.1.4).
#[derive(Debug)]
pub(crate) struct Unacked {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flow: Flow,
    pub(crate) cseq: u32,
    pub(crate) interval: Duration,
    pub(crate) next: Time,
    pub(crate) deadline: Time,
    pub(crate) timer: Option<TimerKey>,
    /// The INVITE that opened the leg (not a re-INVITE).
    pub(crate) opening: bool,
}

impl Leg {
    /// Our tag in its dialog.
    pub(crate) fn name(&self, slot: u32) -> Name {
        match self.tag.as_deref() {
            Some(tag) => *tag,
            None => Name::new(slot, self.cookie),
        }
    }

    pub(crate) fn new(cookie: u64, own: Own, peer: Peer, uac: bool) -> Leg {
        Leg {
            cookie,
            tag: None,
            user: 0,
            own,
            peer,
            pinned: false,
            tcp_when_large: false,
            uac,
            state: if uac {
                LegState::Calling
            } else {
                LegState::Offered
            },
            peer_update: false,
            peer_timer: false,
            peer_reliable: false,
            offers: 0,
            updating: false,
            update_out: false,
            cseq: 0,
            owed_ack: NONE,
            owed_cseq: 0,
            ours: NONE,
            theirs: None,
            session: Session::default(),
            login: None,
            setup: None,
            unacked: None,
            bye_waits: None,
        }
    }

    pub(crate) fn early(&mut self, fork: Fork) -> Option<&mut Early> {
        self.setup.as_mut()?.forks.get_mut(usize::from(fork.0))
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        let setup = self.setup.as_ref().map_or(0, |setup| {
            setup.forks.iter().map(|f| f.peer.len()).sum::<usize>() + setup.reliable.kept_bytes()
        });
        self.own.len()
            + self.peer.len()
            + setup
            + self.unacked.as_ref().map_or(0, |u| u.bytes.len())
            + self.login.as_ref().map_or(0, |login| login.len())
    }
}

impl Endpoint {
    pub(crate) fn leg(&self, id: LegId) -> Option<&Leg> {
        self.legs
            .get(id.slot as usize)
            .filter(|leg| leg.cookie as u32 == id.check)
    }

    pub(crate) fn leg_mut(&mut self, id: LegId) -> Option<&mut Leg> {
        self.legs
            .get_mut(id.slot as usize)
            .filter(|leg| leg.cookie as u32 == id.check)
    }

    /// The leg whose tag this is.
    pub(crate) fn leg_of_tag(&self, tag: &[u8]) -> Option<LegId> {
        let (slot, cookie) = Name::decode(tag)?;
        match self.legs.get(slot as usize) {
            // One that goes on by another worker's tag is not meant by its own cookie.
            Some(leg) if leg.cookie == cookie && leg.tag.is_none() => Some(LegId {
                slot,
                check: cookie as u32,
            }),
            _ => self.adopted.get(&(slot, cookie)).copied(),
        }
    }

    pub(crate) fn tag_of(&self, id: LegId) -> Option<Name> {
        match self.leg(id) {
            Some(leg) => Some(leg.name(id.slot)),
            None => self.usage_tag(id),
        }
    }

    /// Takes a leg into the table.
    pub(crate) fn open_leg(&mut self, own: Own, peer: Peer, uac: bool) -> Result<LegId, Refused> {
        if self.legs.len() >= self.config.limits.calls.saturating_mul(2) {
            return Err(Refused::Full);
        }
        let cookie = self.cookie();
        let slot = self.legs.insert(Leg::new(cookie, own, peer, uac)) as u32;
        Ok(LegId {
            slot,
            check: cookie as u32,
        })
    }

    /// Forgets a leg with its timers. Transactions that work for it end by themselves.
    pub(crate) fn close_leg(&mut self, id: LegId) {
        if self.leg(id).is_none() {
            return;
        }
        let Some(mut leg) = self.legs.try_remove(id.slot as usize) else {
            return;
        };
        self.keep_late(&leg);
        self.adopted_ended(&leg);
        let timers = [
            leg.session.timer.take(),
            leg.unacked.as_mut().and_then(|u| u.timer.take()),
            leg.setup.as_mut().and_then(|s| s.reliable.timer.take()),
        ];
        for timer in timers.into_iter().flatten() {
            self.wheel.cancel(timer);
        }
        // INVITEs of ours that have had a provisional response run without a timer: from now on they have one.
        let opening = leg.setup.as_ref().map_or(NONE, |setup| setup.invite);
        for slot in [leg.ours, opening] {
            self.limit_invite(id, slot);
        }
        // An INVITE of theirs that nobody will answer any more.
        if let Some(theirs) = leg.theirs.filter(|&theirs| self.server(theirs).is_some()) {
            self.final_response(theirs.slot, 487, &Content::default(), self.now);
        }
    }

    /// An INVITE of a leg that is gone is waited for no longer than 64*T1.
    pub(crate) fn limit_invite(&mut self, id: LegId, slot: u32) {
        let deadline = self.now + self.patience();
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let ours = matches!(client.owner, Owner::Opening(leg) | Owner::Inside(leg) if leg == id);
        if !ours || client.state != ClientState::Proceeding {
            return;
        }
        if let Some(active) = client.active.as_mut() {
            active.deadline = deadline;
        }
        self.arm_client(slot, deadline);
    }

    /// Where requests inside a dialog go: the first route's or the target's own address where it is numeric, else where
    /// the dialog went before (RFC 3261 section 12.2.1.1 with RFC 3263).
    pub(crate) fn hop(&self, peer: &Peer, pinned: bool) -> Flow {
        let flow = peer.flow;
        if pinned {
            return flow;
        }
        let Some((transport, remote)) = peer.next_hop().as_ref().and_then(numeric_hop) else {
            return flow;
        };
        // A peer that came over a stream and names no transport is reached over that stream where we have no UDP.
        if (transport, remote) == (flow.transport, flow.remote) {
            return flow;
        }
        let Some(local) = self.net.sibling(flow.local, transport) else {
            return Flow { remote, ..flow };
        };
        let same_family = self
            .net
            .point(local)
            .is_some_and(|point| point.address.is_ipv4() == remote.is_ipv4());
        if !same_family || remote.port() == 0 {
            return flow;
        }
        Flow {
            local,
            transport,
            remote,
            connection: None,
        }
    }

    /// Sets where the requests of a leg's dialog go from now on.
    pub(crate) fn reroute(&mut self, id: LegId) {
        let Some(leg) = self.leg(id) else {
            return;
        };
        let flow = self.hop(&leg.peer, leg.pinned);
        if let Some(leg) = self.leg_mut(id) {
            leg.peer.flow = flow;
        }
    }

    /// Composes a request inside the dialog up to the headers of its own: request line, Via, Route, From, To,
    /// Call-ID, CSeq. Gives where it begins and where it goes.
    pub(crate) fn begin_inside(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        cseq: u32,
        branch: Name,
    ) -> Option<(usize, Flow)> {
        let start = self.net.out.begin();
        let leg = self.legs.get(id.slot as usize)?;
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        let peer = early.map_or(&leg.peer, |early| &early.peer);
        let point = self.net.points.get(usize::from(peer.flow.local.0))?;
        let tag = leg.name(id.slot);
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        write_inside(&mut lines, point, &leg.own, peer, tag, method, cseq, branch);
        Some((start, peer.flow))
    }

    pub(crate) fn schedule_unacked(&mut self, id: LegId, at: Time) -> TimerKey {
        self.wheel.schedule(at, Timer::Unacked(id.slot))
    }
}

/// Writes a request inside a dialog up to the headers of its own: request line, Via, Route, From, To, Call-ID, CSeq.
#[allow(clippy::too_many_arguments)] // what a request inside a dialog consists of
pub(crate) fn write_inside(
    lines: &mut Lines<'_>,
    point: &Point,
    own: &Own,
    peer: &Peer,
    tag: Name,
    method: Method<'_>,
    cseq: u32,
    branch: Name,
) {
    let mut routes = wire::sip::Values::list(peer.routes());
    // A strict router's URI goes into the request line and the target to the end of the routes (section 12.2.1.1).
    let strict = peer
        .strict
        .then(|| routes.next().and_then(wire::sip::NameAddr::parse))
        .flatten();
    lines.request_line(method, strict.map_or(peer.target(), |route| route.uri));
    lines
        .raw(b"Via: ")
        .raw(&point.via)
        .raw(MAGIC)
        .raw(branch.as_bytes());
    if point.transport == Transport::Udp {
        lines.raw(b";rport");
    }
    lines.end();
    match strict {
        None => {
            if !peer.routes().is_empty() {
                lines.header(HeaderId::Route, peer.routes());
            }
        }
        Some(_) => {
            for route in routes {
                lines.header(HeaderId::Route, route);
            }
            lines
                .name(HeaderId::Route)
                .raw(b"<")
                .text(peer.target())
                .raw(b">")
                .end();
        }
    }
    lines
        .name(HeaderId::From)
        .text(own.local())
        .raw(b";tag=")
        .raw(tag.as_bytes())
        .end()
        .header(HeaderId::To, peer.remote())
        .header(HeaderId::CallId, own.call_id())
        .cseq(cseq, method.as_bytes());
}
