//! Dialogs that are no calls: founded by SUBSCRIBE or REFER (RFC 6665, RFC 3515), with NOTIFY and refreshes inside. The
//! endpoint keeps tags, CSeqs, targets and routes; what the requests mean, and when a dialog ends, is the user's.

use crate::Endpoint;
use crate::api::{
    Content, DialogId, Flow, Indication, LegId, Outside, Refused, ServerTransaction, TransactionId,
    User,
};
use crate::compose::{Lines, check_edits};
use crate::credentials::StoredLogin;
use crate::dialog::{Own, Peer};
use crate::leg::uac::remote_side;
use crate::leg::write_inside;
use crate::names::Name;
use crate::transaction::Owner;
use engine::Time;
use wire::sip::{HeaderId, Message, Method};

/// Set in the slots that the tags of these dialogs name, so that they are never taken for those of legs.
const MARK: u32 = 1 << 31;

/// A dialog that is no call.
#[derive(Debug)]
pub(crate) struct Usage {
    cookie: u64,
    user: u64,
    own: Own,
    peer: Peer,
    pinned: bool,
    tcp_when_large: bool,
    /// The peer's tag and target are known.
    established: bool,
    cseq: u32,
}

/// Whether only calls have such requests.
fn of_calls(method: Method<'_>) -> bool {
    matches!(
        method,
        Method::Invite
            | Method::Ack
            | Method::Cancel
            | Method::Bye
            | Method::Prack
            | Method::Update
    )
}

impl Usage {
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.peer.len()
    }
}

impl Endpoint {
    fn usage(&self, id: DialogId) -> Option<&Usage> {
        self.usages
            .get((id.0.slot & !MARK) as usize)
            .filter(|usage| usage.cookie as u32 == id.0.check)
    }

    fn usage_mut(&mut self, id: DialogId) -> Option<&mut Usage> {
        self.usages
            .get_mut((id.0.slot & !MARK) as usize)
            .filter(|usage| usage.cookie as u32 == id.0.check)
    }

    /// The dialog whose tag this is.
    pub(crate) fn usage_of_tag(&self, tag: &[u8]) -> Option<DialogId> {
        let (slot, cookie) = Name::decode(tag)?;
        let usage = self.usages.get((slot & !MARK) as usize)?;
        (slot & MARK != 0 && usage.cookie == cookie).then_some(DialogId(LegId {
            slot,
            check: cookie as u32,
        }))
    }

    /// The tag of a dialog, where the name is one of these dialogs'.
    pub(crate) fn usage_tag(&self, id: LegId) -> Option<Name> {
        if id.slot & MARK == 0 {
            return None;
        }
        Some(Name::new(id.slot, self.usage(DialogId(id))?.cookie))
    }

    fn open_usage(
        &mut self,
        own: Own,
        peer: Peer,
        user: u64,
        established: bool,
    ) -> Result<DialogId, Refused> {
        if self.usages.len() >= self.config.limits.calls.saturating_mul(2) {
            return Err(Refused::Full);
        }
        let cookie = self.cookie();
        let slot = self.usages.insert(Usage {
            cookie,
            user,
            own,
            peer,
            pinned: false,
            tcp_when_large: false,
            established,
            cseq: 0,
        }) as u32;
        Ok(DialogId(LegId {
            slot: slot | MARK,
            check: cookie as u32,
        }))
    }

    /// Founds a dialog with whoever sent a SUBSCRIBE or REFER outside of any dialog, before it is answered: responses carry
    /// the dialog's tag, a 2xx our Contact and the route set. `pinned`: requests go to `flow` whatever Contact says.
    ///
    /// # Errors
    /// [`Refused::Gone`] where the request was answered, [`Refused::Value`] without a Contact, [`Refused::Full`].
    pub fn found_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        pinned: bool,
        user: u64,
    ) -> Result<DialogId, Refused> {
        self.server(transaction).ok_or(Refused::Gone)?;
        let contact = request.contact().ok().filter(|contact| !contact.is_star());
        let contact = contact.ok_or(Refused::Value)?;
        let own = Own::new(
            request.call_id().unwrap_or_default(),
            request.header(HeaderId::To).unwrap_or_default(),
        );
        let mut peer = Peer::new(
            request.header(HeaderId::From).unwrap_or_default(),
            contact.uri,
            request.values(HeaderId::RecordRoute),
            flow,
        );
        peer.cseq = request.cseq().ok().map(|cseq| cseq.number);
        peer.flow = self.hop(&peer, pinned);
        let id = self.open_usage(own, peer, user, true)?;
        if let Some(usage) = self.usage_mut(id) {
            usage.pinned = pinned;
        }
        if let Some(server) = self.servers.get_mut(transaction.slot as usize) {
            server.leg = Some(id.0);
        }
        Ok(id)
    }

    /// Sends a SUBSCRIBE or REFER that founds a dialog with whoever accepts it. Its responses come as
    /// [`Indication::OutOfDialogResponse`] with `outside.user`; requests inside the dialog, which may come before them, as
    /// [`Indication::InDialog`] with `user`.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; [`Refused::Value`] for other methods.
    pub fn subscribe(
        &mut self,
        outside: &Outside<'_>,
        user: u64,
        now: Time,
    ) -> Result<(DialogId, TransactionId), Refused> {
        self.now = now;
        check_edits(&outside.content)?;
        let target = &outside.target;
        self.net.check(&target.flow)?;
        let founds = matches!(outside.method, Method::Subscribe | Method::Refer);
        if !founds || target.uri.is_empty() || target.uri.iter().any(|byte| *byte <= b' ') {
            return Err(Refused::Value);
        }
        let own = self.own_side(
            outside.call_id,
            outside.from,
            &outside.content,
            target.flow.local,
        );
        let remote = remote_side(outside.to, &outside.content, target.uri);
        let routes = target.routes.iter().copied();
        let peer = Peer::new(&remote, target.uri, routes, target.flow);
        let id = self.open_usage(own, peer, user, false)?;
        if let Some(usage) = self.usage_mut(id) {
            usage.pinned = target.pinned;
            usage.tcp_when_large = target.tcp_when_large;
            usage.cseq = outside.cseq.unwrap_or(1).saturating_sub(1);
        }
        let (content, login) = (&outside.content, outside.login.as_ref());
        match self.send_in_dialog(id, outside.method, content, outside.user, login, now) {
            Ok(transaction) => Ok((id, transaction)),
            Err(refused) => {
                self.close_dialog(id);
                Err(refused)
            }
        }
    }

    /// Sends a request inside the dialog. Its responses come as [`Indication::OutOfDialogResponse`] with the number
    /// `user`.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] where the peer has not accepted yet; [`Refused::Value`] for the methods of
    /// calls; [`Refused::Edit`], [`Refused::TooLarge`], [`Refused::Transport`], [`Refused::Full`].
    pub fn dialog_request(
        &mut self,
        dialog: DialogId,
        method: Method<'_>,
        content: &Content<'_>,
        user: u64,
        login: Option<&crate::api::Login<'_>>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(content)?;
        let usage = self.usage(dialog).ok_or(Refused::Gone)?;
        if !usage.established {
            return Err(Refused::State);
        }
        if of_calls(method) {
            return Err(Refused::Value);
        }
        self.send_in_dialog(dialog, method, content, user, login, now)
    }

    fn send_in_dialog(
        &mut self,
        id: DialogId,
        method: Method<'_>,
        content: &Content<'_>,
        user: u64,
        login: Option<&crate::api::Login<'_>>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        let (slot, cookie) = self.open_client(Owner::Outside(user), method)?;
        let start = self.net.out.begin();
        let branch = Name::new(slot, cookie);
        let composed = self
            .usages
            .get_mut((id.0.slot & !MARK) as usize)
            .and_then(|usage| {
                let point = self.net.points.get(usize::from(usage.peer.flow.local.0))?;
                usage.cseq += 1;
                let tag = Name::new(id.0.slot, usage.cookie);
                let mut lines = Lines {
                    out: &mut self.net.out.arena,
                };
                let (own, peer) = (&usage.own, &usage.peer);
                write_inside(
                    &mut lines, point, own, peer, tag, method, usage.cseq, branch,
                );
                Some((usage.peer.flow, usage.tcp_when_large))
            });
        let Some((flow, tcp)) = composed else {
            self.close_client(slot);
            return Err(Refused::Transport);
        };
        self.request_headers(flow.local, method, content);
        self.write_body(content);
        self.launch(slot, start, flow, tcp, now)?;
        if let Some(active) = self
            .clients
            .get_mut(slot as usize)
            .and_then(|client| client.active.as_mut())
        {
            active.login = login.map(|login| Box::new(StoredLogin::new(login)));
        }
        Ok(self.client_id(slot))
    }

    /// Forgets a dialog: requests inside it get 481 from now on. What is under way ends by itself.
    pub fn close_dialog(&mut self, dialog: DialogId) {
        if self.usage(dialog).is_some() {
            self.usages.try_remove((dialog.0.slot & !MARK) as usize);
        }
    }

    /// Whether the peer has accepted a dialog that we founded.
    pub fn is_established(&self, dialog: DialogId) -> bool {
        self.usage(dialog).is_some_and(|usage| usage.established)
    }

    /// Where a dialog's next request goes.
    pub fn flow_of_dialog(&self, dialog: DialogId) -> Option<Flow> {
        Some(self.usage(dialog)?.peer.flow)
    }

    /// A response to a request of one of these dialogs: the first 2xx to what founds it tells of the peer.
    pub(crate) fn usage_response(&mut self, response: &Message<'_>) {
        let Some(id) = response
            .from()
            .ok()
            .and_then(|from| from.tag())
            .and_then(|tag| self.usage_of_tag(tag))
        else {
            return;
        };
        let number = response.cseq().map_or(0, |cseq| cseq.number);
        let Some(usage) = self.usage_mut(id) else {
            return;
        };
        // A second try with credentials has counted up.
        usage.cseq = usage.cseq.max(number);
        if !(200..300).contains(&response.status()) {
            return;
        }
        if !usage.established {
            if response.to().ok().and_then(|to| to.tag()).is_none() {
                return;
            }
            usage.peer = Peer::from_response(response, &usage.peer);
            usage.established = true;
        } else if let Some(contact) = response.contact().ok().filter(|c| !c.is_star()) {
            usage.peer.refresh_target(contact.uri);
        }
        self.reroute_usage(id);
    }

    fn reroute_usage(&mut self, id: DialogId) {
        let Some(usage) = self.usage(id) else {
            return;
        };
        let flow = self.hop(&usage.peer, usage.pinned);
        if let Some(usage) = self.usage_mut(id) {
            usage.peer.flow = flow;
        }
    }

    /// A request inside one of these dialogs.
    pub(crate) fn usage_request(
        &mut self,
        slot: u32,
        id: DialogId,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        if of_calls(request.method()) {
            // No call is founded inside of these dialogs (RFC 5057 advises against it), so there is none.
            return self.final_response(slot, 481, &Content::default(), now);
        }
        let number = request.cseq().map_or(0, |cseq| cseq.number);
        let from = request.from().ok().and_then(|from| from.tag());
        let Some(usage) = self.usage_mut(id).filter(|usage| {
            let known = !usage.established || from.unwrap_or_default() == usage.peer.tag();
            known && request.call_id().ok() == Some(usage.own.call_id())
        }) else {
            return self.final_response(slot, 481, &Content::default(), now);
        };
        let of_user = usage.user;
        let contact = request.contact().ok().filter(|contact| !contact.is_star());
        if !usage.established {
            // The NOTIFY that comes before the 2xx (RFC 6665 section 4.4.1).
            let (Some(contact), Method::Notify, Some(_)) = (contact, request.method(), from) else {
                return self.final_response(slot, 481, &Content::default(), now);
            };
            let old = usage.peer.flow;
            usage.peer = Peer::new(
                request.header(HeaderId::From).unwrap_or_default(),
                contact.uri,
                request.values(HeaderId::RecordRoute),
                old,
            );
            usage.established = true;
        } else if let Some(contact) = contact {
            usage.peer.refresh_target(contact.uri);
        }
        if usage.peer.cseq.is_some_and(|last| number <= last) {
            return self.final_response(slot, 500, &Content::default(), now);
        }
        usage.peer.cseq = Some(number);
        if usage.pinned && usage.peer.flow.connection.is_some() {
            usage.peer.flow.connection = flow.connection.or(usage.peer.flow.connection);
        }
        self.reroute_usage(id);
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = Some(id.0);
        }
        let transaction = self.server_id(slot);
        let indication = Indication::InDialog {
            dialog: id,
            user: of_user,
            transaction,
            request,
        };
        user.indication(self, indication, now);
        self.waits_unless_answered(slot, now);
    }
}
