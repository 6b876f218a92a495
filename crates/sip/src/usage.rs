//! Dialogs that are not calls, created by SUBSCRIBE or REFER (RFC 6665, RFC 3515), with NOTIFY and refreshes.
//!
//! The endpoint keeps tags, CSeqs, targets and routes. The handler interprets the requests and decides when a dialog
//! ends.

use crate::Endpoint;
use crate::api::{
    DialogId, Flow, Handler, Indication, LegId, MessageContent, OutOfDialogRequest, Refused,
    ServerTransaction, TransactionId,
};
use crate::compose::{Lines, check_edits, remote_identity};
use crate::credentials::StoredLogin;
use crate::dialog::{Own, Peer};
use crate::dialog_request::DialogRequest;
use crate::received::Received;
use crate::tokens::IdToken;
use crate::transaction::Owner;
use engine::Time;
use wire::sip::{HeaderId, Message, Method, NameAddr};

/// Bit in the slots of these dialogs' tags, to distinguish them from legs.
const MARK: u32 = 1 << 31;

/// A dialog that is not a call.
#[derive(Debug)]
pub(crate) struct Usage {
    cookie: u64,
    /// Our tag, if the dialog's first request repeats a challenged one; otherwise it is made of slot and cookie.
    tag: Option<IdToken>,
    user: u64,
    own: Own,
    peer: Peer,
    pinned: bool,
    tcp_when_large: bool,
    /// The peer's tag and target are set.
    established: bool,
    cseq: u32,
}

/// Whether the method exists only in calls.
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
    /// Our tag in the dialog, whose slot is `slot`.
    fn name(&self, slot: u32) -> IdToken {
        self.tag.unwrap_or_else(|| IdToken::new(slot, self.cookie))
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.peer.len()
    }

    /// Destination of its requests.
    pub(crate) fn flow(&self) -> Flow {
        self.peer.flow
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

    /// The dialog with this local tag.
    pub(crate) fn usage_of_tag(&self, tag: &[u8]) -> Option<DialogId> {
        let (slot, cookie) = IdToken::decode(tag)?;
        if slot & MARK == 0 {
            return None;
        }
        match self.usages.get((slot & !MARK) as usize) {
            Some(usage) if usage.cookie == cookie && usage.tag.is_none() => Some(DialogId(LegId {
                slot,
                check: cookie as u32,
            })),
            _ => self.adopted_usages.get(&(slot, cookie)).copied(),
        }
    }

    /// The local tag of a dialog, if `id` belongs to one of these dialogs.
    pub(crate) fn usage_tag(&self, id: LegId) -> Option<IdToken> {
        if id.slot & MARK == 0 {
            return None;
        }
        Some(self.usage(DialogId(id))?.name(id.slot))
    }

    /// Gives a new dialog the tag of the challenged request that it repeats, unless that tag is in use.
    fn continue_usage(&mut self, id: DialogId, tag: &[u8]) {
        let Some(name) = IdToken::decode(tag).filter(|(slot, _)| slot & MARK != 0) else {
            return;
        };
        if self.usage_of_tag(tag).is_some() {
            return;
        }
        if let Some(usage) = self.usage_mut(id) {
            usage.tag = Some(IdToken::new(name.0, name.1));
            self.adopted_usages.insert(name, id);
        }
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
        let cookie = self.new_cookie();
        let slot = self.usages.insert(Usage {
            cookie,
            tag: None,
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

    /// Creates a dialog for a SUBSCRIBE or REFER received outside of any dialog, before it is answered: responses carry
    /// the dialog's tag, a 2xx our Contact and the route set. `pinned`: requests are sent to `flow`, not to the
    /// Contact.
    ///
    /// # Errors
    /// [`Refused::Gone`] if the request was answered, [`Refused::Value`] without a Contact, [`Refused::Full`].
    pub fn open_dialog(
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
        peer.flow = self.next_hop_flow(&peer, pinned);
        let id = self.open_usage(own, peer, user, true)?;
        if let Some(usage) = self.usage_mut(id) {
            usage.pinned = pinned;
        }
        if let Some(server) = self.servers.get_mut(transaction.slot as usize) {
            server.leg = Some(id.0);
        }
        Ok(id)
    }

    /// Sends a SUBSCRIBE or REFER that creates a dialog when it is accepted. Its responses are indicated as
    /// [`Indication::OutOfDialogResponse`] with `outside.user`; requests within the dialog, which may arrive before
    /// them, as [`Indication::InDialog`] with `user`.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; [`Refused::Value`] for other methods.
    pub fn subscribe(
        &mut self,
        outside: &OutOfDialogRequest<'_>,
        user: u64,
        now: Time,
    ) -> Result<(DialogId, TransactionId), Refused> {
        self.now = now;
        check_edits(&outside.content)?;
        let target = &outside.target;
        self.net.check_flow(&target.flow)?;
        let creates_dialog = matches!(outside.method, Method::Subscribe | Method::Refer);
        if !creates_dialog || target.uri.is_empty() || target.uri.iter().any(|byte| *byte <= b' ') {
            return Err(Refused::Value);
        }
        let own = self.local_identity(
            outside.call_id,
            outside.from,
            &outside.content,
            target.flow.local,
        );
        let remote = remote_identity(outside.to, &outside.content, target.uri);
        let routes = target.routes.iter().copied();
        let peer = Peer::new(&remote, target.uri, routes, target.flow);
        let id = self.open_usage(own, peer, user, false)?;
        if let Some(usage) = self.usage_mut(id) {
            usage.pinned = target.pinned;
            usage.tcp_when_large = target.tcp_when_large;
            usage.cseq = outside.cseq.unwrap_or(1).saturating_sub(1);
        }
        if let Some(tag) = outside.tag {
            self.continue_usage(id, tag);
        }
        let (content, login) = (&outside.content, outside.login.as_ref());
        match self.send_in_dialog(id, outside.method, content, outside.user, login) {
            Ok(transaction) => Ok((id, transaction)),
            Err(refused) => {
                self.close_dialog(id);
                Err(refused)
            }
        }
    }

    /// Sends a request within the dialog. Its responses are indicated as [`Indication::OutOfDialogResponse`] with
    /// the number `user`.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] before the peer has accepted; [`Refused::Value`] for methods of calls;
    /// [`Refused::Edit`], [`Refused::TooLarge`], [`Refused::Transport`], [`Refused::Full`].
    pub fn dialog_request(
        &mut self,
        dialog: DialogId,
        method: Method<'_>,
        content: &MessageContent<'_>,
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
        self.send_in_dialog(dialog, method, content, user, login)
    }

    fn send_in_dialog(
        &mut self,
        id: DialogId,
        method: Method<'_>,
        content: &MessageContent<'_>,
        user: u64,
        login: Option<&crate::api::Login<'_>>,
    ) -> Result<TransactionId, Refused> {
        let (slot, cookie) = self.open_client(Owner::OutOfDialog(user), method)?;
        let start = self.net.out.begin();
        let branch = IdToken::new(slot, cookie);
        let composed = self
            .usages
            .get_mut((id.0.slot & !MARK) as usize)
            .and_then(|usage| {
                let listener = self
                    .net
                    .listeners
                    .get(usize::from(usage.peer.flow.local.0))?;
                usage.cseq += 1;
                let tag = usage.name(id.0.slot);
                let mut lines = Lines {
                    out: &mut self.net.out.arena,
                };
                let request = DialogRequest {
                    listener,
                    own: &usage.own,
                    peer: &usage.peer,
                    tag,
                    method,
                    cseq: usage.cseq,
                    branch,
                };
                request.write(&mut lines);
                Some((usage.peer.flow, usage.tcp_when_large))
            });
        let Some((flow, tcp)) = composed else {
            self.close_client(slot);
            return Err(Refused::Transport);
        };
        self.request_headers(flow.local, method, content);
        self.write_body(content);
        self.start_client(slot, start, flow, tcp)?;
        if let Some(active) = self
            .clients
            .get_mut(slot as usize)
            .and_then(|client| client.active.as_mut())
        {
            active.login = login.map(|login| Box::new(StoredLogin::new(login)));
        }
        Ok(self.client_id(slot))
    }

    /// Removes a dialog: later requests within it are answered with 481. Pending transactions end by themselves.
    pub fn close_dialog(&mut self, dialog: DialogId) {
        if self.usage(dialog).is_none() {
            return;
        }
        let usage = self.usages.try_remove((dialog.0.slot & !MARK) as usize);
        let tag = usage.and_then(|usage| usage.tag);
        if let Some(name) = tag.and_then(|tag| IdToken::decode(tag.as_bytes())) {
            self.adopted_usages.remove(&name);
        }
    }

    /// Whether the peer has accepted a dialog that we requested.
    pub fn is_established(&self, dialog: DialogId) -> bool {
        self.usage(dialog).is_some_and(|usage| usage.established)
    }

    /// Destination of a dialog's next request.
    pub fn flow_of_dialog(&self, dialog: DialogId) -> Option<Flow> {
        Some(self.usage(dialog)?.peer.flow)
    }

    /// Processes a response within one of these dialogs: the first 2xx to the creating request sets the peer's side.
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
        // A retry with credentials has incremented CSeq.
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
        let flow = self.next_hop_flow(&usage.peer, usage.pinned);
        if let Some(usage) = self.usage_mut(id) {
            usage.peer.flow = flow;
        }
    }

    /// A request within one of these dialogs.
    pub(crate) fn usage_request(
        &mut self,
        slot: u32,
        id: DialogId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let Received {
            message: request,
            flow,
        } = received;
        let now = self.now;
        if of_calls(request.method()) {
            // Calls cannot share one of these dialogs (RFC 5057 advises against it), so there is none.
            return self.final_response(slot, 481, &MessageContent::default());
        }
        let number = request.cseq().map_or(0, |cseq| cseq.number);
        let from = request.from().ok().and_then(|from| from.tag());
        let Some(usage) = self.usage(id).filter(|usage| {
            let from_peer = !usage.established || from.unwrap_or_default() == usage.peer.tag();
            from_peer && request.call_id().ok() == Some(usage.own.call_id())
        }) else {
            return self.final_response(slot, 481, &MessageContent::default());
        };
        if usage.peer.cseq.is_some_and(|last| number <= last) {
            return self.final_response(slot, 500, &MessageContent::default());
        }
        let of_user = usage.user;
        let contact = request.contact().ok().filter(|contact| !contact.is_star());
        // A target refresh shows where the peer is now, as in calls.
        let target = contact.as_ref().map(NameAddr::parse_uri);
        let followed =
            target.and_then(|uri| self.followed_flow(&usage.peer.flow, usage.pinned, uri, flow));
        let Some(usage) = self.usage_mut(id) else {
            return;
        };
        if !usage.established {
            // A NOTIFY before the 2xx (RFC 6665 section 4.4.1).
            let (Some(contact), Method::Notify, Some(_)) = (contact, request.method(), from) else {
                return self.final_response(slot, 481, &MessageContent::default());
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
        usage.peer.cseq = Some(number);
        if usage.pinned && usage.peer.flow.connection.is_some() {
            usage.peer.flow.connection = flow.connection.or(usage.peer.flow.connection);
        }
        if let Some(followed) = followed {
            usage.peer.flow = followed;
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
        handler.on_indication(self, indication, now);
        self.arm_unless_answered(slot);
    }
}
