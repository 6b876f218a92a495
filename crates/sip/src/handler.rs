//! The owner of an endpoint: it receives the indications and decides on new requests.

use crate::Endpoint;
use crate::api::{Flow, Indication, NewRequestAction};
use crate::mismatch::{RequestOwner, ResponseMismatch};
use engine::{ConnectionId, Time};
use wire::sip::Message;

/// The part that an endpoint calls with requests and responses.
pub trait Handler {
    /// Decides about a request that would create a dialog or a transaction: it is out of dialog, matches no transaction
    /// and is not a CANCEL.
    fn on_new_request(
        &mut self,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
    ) -> NewRequestAction {
        let _ = (request, flow, now);
        NewRequestAction::Process
    }

    /// The worker that has to process an out-of-dialog INVITE, or its CANCEL; `None`: the worker that its Call-ID
    /// selects. The received message is in `bytes`. All workers must give the same result for the same bytes and flow,
    /// because retransmissions are routed by it. For a CANCEL the result may differ, because
    /// it is passed to all workers in turn.
    fn select_worker(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        let _ = (bytes, flow);
        None
    }

    /// A message was received for a dialog that another worker has handed off to us ([`crate::DetachedDialog`]) and
    /// that we have not adopted yet. Adopt it now.
    fn on_parked_dialog(&mut self, endpoint: &mut Endpoint, now: Time) {
        let _ = (endpoint, now);
    }

    /// Whether an idle connection that no dialog uses must stay open, because a client can be reached only by it.
    fn needs_connection(&self, connection: ConnectionId) -> bool {
        let _ = connection;
        false
    }

    /// Whether responses are compared with their requests ([`Handler::on_mismatch`]).
    fn compares_responses(&self) -> bool {
        false
    }

    /// A field of a response is not that of the request whose branch it has. It is processed as others nevertheless,
    /// unless the method of CSeq is another one.
    fn on_mismatch(&mut self, owner: RequestOwner, field: ResponseMismatch) {
        let _ = (owner, field);
    }

    /// Reports an event. Commands to `endpoint` are allowed at once; they never call the handler from within.
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time);
}
