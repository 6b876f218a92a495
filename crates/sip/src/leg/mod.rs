//! Legs: INVITE dialogs from the first INVITE to the end (RFC 3261 sections 12 to 15).

pub(crate) mod in_dialog;
pub(crate) mod responses;
pub(crate) mod uac;
pub(crate) mod uas;

use crate::Endpoint;
use crate::api::{Flow, Fork, LegId, LegState, MessageContent, Prack, Refused, ServerTransaction};
use crate::compose::Lines;
use crate::credentials::StoredLogin;
use crate::dialog::{LegDialog, Own, Peer, numeric_hop};
use crate::dialog_request::DialogRequest;
use crate::reliable::Reliable;
use crate::session_state::SessionState;
use crate::timer::Timer;
use crate::tokens::IdToken;
use crate::transaction::{ClientState, NONE, Owner};
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Time, Transport};
use serde::{Deserialize, Serialize};
use wire::sip::Method;

/// Our offer has no answer yet.
pub(crate) const OFFER_OUT: u8 = 1;
/// The peer's offer has no answer of ours yet.
pub(crate) const OFFER_IN: u8 = 2;

/// One side of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Leg {
    pub(crate) cookie: u64,
    /// Our tag, if another worker began the dialog, or if the leg repeats a challenged INVITE; otherwise it is made of
    /// slot and cookie.
    pub(crate) tag: Option<Box<IdToken>>,
    pub(crate) user: u64,
    pub(crate) own: Own,
    pub(crate) peer: Peer,
    pub(crate) sending: LegSending,
    /// We opened it (and own its Call-ID).
    pub(crate) uac: bool,
    pub(crate) state: LegState,
    pub(crate) features: PeerFeatures,
    pub(crate) pending: PendingRequests,
    pub(crate) cseq: u32,
    pub(crate) session: SessionState,
    pub(crate) login: Option<Box<StoredLogin>>,
    /// Present until the first INVITE is confirmed.
    pub(crate) setup: Option<Box<LegSetup>>,
    pub(crate) answer: SentAnswer,
}

/// Choice of destination and transport for requests of a leg.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LegSending {
    /// Requests are sent to `peer.flow`, not to the address in the dialog's URIs.
    pub(crate) pinned: bool,
    pub(crate) tcp_when_large: bool,
}

/// Extensions that the peer of a leg has announced.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PeerFeatures {
    /// UPDATE (RFC 3311), by Allow.
    pub(crate) update: bool,
    /// Session timers (RFC 4028).
    pub(crate) timer: bool,
    /// Reliable provisional responses (RFC 3262).
    pub(crate) reliable: bool,
}

/// Requests and offers of a leg in progress.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PendingRequests {
    /// [`OFFER_OUT`] and [`OFFER_IN`].
    pub(crate) offers: u8,
    /// The peer's UPDATE has no final response of ours yet (RFC 3311 section 5.2).
    pub(crate) peer_update: bool,
    /// Our UPDATE has no final response yet.
    pub(crate) our_update: bool,
    /// Slot of the client transaction of the INVITE whose 2xx the handler has to acknowledge, and its CSeq.
    pub(crate) owed_ack: u32,
    pub(crate) owed_cseq: u32,
    /// Our re-INVITE without final response.
    pub(crate) our_invite: u32,
    /// The peer's INVITE without final response of ours.
    pub(crate) peer_invite: Option<ServerTransaction>,
}

impl Default for PendingRequests {
    fn default() -> PendingRequests {
        PendingRequests {
            offers: 0,
            peer_update: false,
            our_update: false,
            owed_ack: NONE,
            owed_cseq: 0,
            our_invite: NONE,
            peer_invite: None,
        }
    }
}

impl PendingRequests {
    /// Whether an INVITE of either side, or our ACK of its 2xx, is in progress.
    pub(crate) fn has_invite(&self) -> bool {
        self.our_invite != NONE || self.peer_invite.is_some() || self.owed_ack != NONE
    }
}

/// Our 2xx to INVITE until its ACK.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SentAnswer {
    /// The 2xx without ACK.
    pub(crate) unacked: Option<Box<Unacked>>,
    /// Header lines of a BYE that waits for the ACK (section 15: the callee must not send BYE before).
    pub(crate) pending_bye: Option<Box<[u8]>>,
}

/// State of a leg until it is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LegSetup {
    /// Client transaction of the INVITE; [`NONE`] for an incoming leg.
    pub(crate) invite: u32,
    /// CSeq of that INVITE, for RAck.
    pub(crate) cseq: u32,
    /// The handler has cancelled; CANCEL was sent, or waits for a provisional response.
    pub(crate) cancelled: bool,
    /// Header lines for the waiting CANCEL.
    pub(crate) cancel_headers: Vec<u8>,
    pub(crate) prack: Prack,
    pub(crate) forks: Vec<Early>,
    pub(crate) reliable: Reliable,
    pub(crate) offer: InviteOffer,
}

/// The offer in the INVITE that opens a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InviteOffer {
    /// The INVITE has none: the callee offers.
    Absent,
    /// It has no answer yet.
    Open,
    /// It was answered. Further session descriptions in responses are repetitions, or answers of other forks, and never
    /// offers (RFC 3261 section 13.2.1, RFC 3262 section 5).
    Answered,
}

impl InviteOffer {
    pub(crate) fn of_invite(has_sdp: bool) -> InviteOffer {
        match has_sdp {
            true => InviteOffer::Open,
            false => InviteOffer::Absent,
        }
    }
}

/// An early dialog of a forked INVITE of ours.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Early {
    pub(crate) peer: Peer,
    /// Highest RSeq received in order (RFC 3262 section 4); 0: none.
    pub(crate) rseq: u32,
    /// RSeq of those that need a PRACK from the handler, in order: the peer may send one while others have none (RFC
    /// 3262 section 3).
    pub(crate) owed: Vec<u32>,
    pub(crate) peer_allows_update: bool,
}

/// Our 2xx, retransmitted until its ACK (section 13.3.1.4).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unacked {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flow: Flow,
    pub(crate) cseq: u32,
    pub(crate) interval: Duration,
    pub(crate) next: Time,
    pub(crate) deadline: Time,
    pub(crate) timer: Option<TimerKey>,
    /// It answers the INVITE that opened the leg (not a re-INVITE).
    pub(crate) opening: bool,
}

impl Leg {
    /// Our tag in the leg's dialog.
    pub(crate) fn name(&self, slot: u32) -> IdToken {
        match self.tag.as_deref() {
            Some(tag) => *tag,
            None => IdToken::new(slot, self.cookie),
        }
    }

    pub(crate) fn new(cookie: u64, own: Own, peer: Peer, uac: bool) -> Leg {
        Leg {
            cookie,
            tag: None,
            user: 0,
            own,
            peer,
            sending: LegSending::default(),
            uac,
            state: if uac {
                LegState::Calling
            } else {
                LegState::Offered
            },
            features: PeerFeatures::default(),
            pending: PendingRequests::default(),
            cseq: 0,
            session: SessionState::default(),
            login: None,
            setup: None,
            answer: SentAnswer::default(),
        }
    }

    /// A response to the INVITE that opens the leg has a session description: the answer to the offer marked by
    /// `answered`, or an offer, which `offered` marks.
    pub(crate) fn response_has_sdp(&mut self, answered: u8, offered: u8) {
        let offer = self.setup.as_mut().map(|setup| &mut setup.offer);
        match offer {
            Some(InviteOffer::Answered) => {}
            Some(offer @ InviteOffer::Open) => {
                *offer = InviteOffer::Answered;
                self.pending.offers &= !answered;
            }
            Some(InviteOffer::Absent) | None => {
                self.pending.offers = match self.pending.offers & answered {
                    0 => self.pending.offers | offered,
                    _ => self.pending.offers & !answered,
                };
            }
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
            + self.answer.unacked.as_ref().map_or(0, |u| u.bytes.len())
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

    /// The leg with this local tag.
    pub(crate) fn leg_of_tag(&self, tag: &[u8]) -> Option<LegId> {
        let (slot, cookie) = IdToken::decode(tag)?;
        match self.legs.get(slot as usize) {
            // A moved leg has the tag of another worker, so its own cookie does not match.
            Some(leg) if leg.cookie == cookie && leg.tag.is_none() => Some(LegId {
                slot,
                check: cookie as u32,
            }),
            _ => self.adopted.get(&(slot, cookie)).copied(),
        }
    }

    pub(crate) fn tag_of(&self, id: LegId) -> Option<IdToken> {
        match self.leg(id) {
            Some(leg) => Some(leg.name(id.slot)),
            None => self.usage_tag(id),
        }
    }

    /// Adds a leg to the table.
    pub(crate) fn open_leg(&mut self, own: Own, peer: Peer, uac: bool) -> Result<LegId, Refused> {
        if self.legs.len() >= self.config.limits.calls.saturating_mul(2) {
            return Err(Refused::Full);
        }
        let cookie = self.new_cookie();
        let slot = self.legs.insert(Leg::new(cookie, own, peer, uac)) as u32;
        Ok(LegId {
            slot,
            check: cookie as u32,
        })
    }

    /// Removes a leg and its timers. Its transactions end by themselves.
    pub(crate) fn close_leg(&mut self, id: LegId) {
        if self.leg(id).is_none() {
            return;
        }
        let Some(mut leg) = self.legs.try_remove(id.slot as usize) else {
            return;
        };
        self.remember_unacknowledged(&leg);
        self.moved_dialog_ended(&leg);
        let timers = [
            leg.session.timer.take(),
            leg.answer.unacked.as_mut().and_then(|u| u.timer.take()),
            leg.setup.as_mut().and_then(|s| s.reliable.timer.take()),
        ];
        for timer in timers.into_iter().flatten() {
            self.wheel.cancel(timer);
        }
        // After a provisional response our INVITEs have no timer. From now on they have a limit.
        let opening = leg.setup.as_ref().map_or(NONE, |setup| setup.invite);
        for slot in [leg.pending.our_invite, opening] {
            self.limit_invite_wait(id, slot);
        }
        // The peer's INVITE cannot be answered by the handler any more.
        if let Some(peer_invite) = leg
            .pending
            .peer_invite
            .filter(|&peer_invite| self.server(peer_invite).is_some())
        {
            self.final_response(peer_invite.slot, 487, &MessageContent::default());
        }
    }

    /// Limits the wait for the final response to an INVITE of a removed leg to 64*T1.
    pub(crate) fn limit_invite_wait(&mut self, id: LegId, slot: u32) {
        let deadline = self.now + self.transaction_timeout();
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let ours =
            matches!(client.owner, Owner::InitialInvite(leg) | Owner::InDialog(leg) if leg == id);
        if !ours || client.state != ClientState::Proceeding {
            return;
        }
        if let Some(active) = client.active.as_mut() {
            active.deadline = deadline;
        }
        self.arm_client(slot, deadline);
    }

    /// Destination of in-dialog requests: the numeric address of the first route or of the target, otherwise the
    /// dialog's previous destination (RFC 3261 section 12.2.1.1 with RFC 3263).
    pub(crate) fn next_hop_flow(&self, peer: &Peer, pinned: bool) -> Flow {
        let flow = peer.flow;
        if pinned {
            return flow;
        }
        let Some((transport, remote)) = peer.next_hop().as_ref().and_then(numeric_hop) else {
            return flow;
        };
        // A URI without transport of a peer on a stream names the stream's own address: stay on the stream.
        if (transport, remote) == (flow.transport, flow.remote) {
            return flow;
        }
        let Some(local) = self.net.sibling(flow.local, transport) else {
            return Flow { remote, ..flow };
        };
        let same_family = self
            .net
            .listener(local)
            .is_some_and(|listener| listener.address.is_ipv4() == remote.is_ipv4());
        if !same_family || remote.port() == 0 {
            return flow;
        }
        // A TLS peer at the same address stays on its connection while that is open, and keeps the name that its
        // certificate must contain: its connection comes from another port than the one that it announces.
        let stays =
            transport == Transport::Tls && (flow.local, flow.remote.ip()) == (local, remote.ip());
        Flow {
            local,
            transport,
            remote,
            connection: flow.connection.filter(|_| stays),
        }
    }

    /// Updates the destination of a leg's in-dialog requests.
    pub(crate) fn reroute(&mut self, id: LegId) {
        let Some(leg) = self.leg(id) else {
            return;
        };
        let flow = self.next_hop_flow(&leg.peer, leg.sending.pinned);
        if let Some(leg) = self.leg_mut(id) {
            leg.peer.flow = flow;
        }
    }

    /// Composes an in-dialog request up to its own headers: request line, Via, Route, From, To, Call-ID, CSeq. Returns
    /// its start and its destination.
    pub(crate) fn begin_leg_request(
        &mut self,
        dialog: LegDialog,
        method: Method<'_>,
        cseq: u32,
        branch: IdToken,
    ) -> Option<(usize, Flow)> {
        let LegDialog { leg: id, fork } = dialog;
        let start = self.net.out.begin();
        let leg = self.legs.get(id.slot as usize)?;
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        let peer = early.map_or(&leg.peer, |early| &early.peer);
        let listener = self.net.listeners.get(usize::from(peer.flow.local.0))?;
        let tag = leg.name(id.slot);
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        let request = DialogRequest {
            listener,
            own: &leg.own,
            peer,
            tag,
            method,
            cseq,
            branch,
        };
        request.write(&mut lines);
        Some((start, peer.flow))
    }

    pub(crate) fn schedule_unacked(&mut self, id: LegId, at: Time) -> TimerKey {
        self.wheel.schedule(at, Timer::Unacked(id.slot))
    }
}
