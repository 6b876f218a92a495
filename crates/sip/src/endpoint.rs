//! The endpoint.

use crate::api::*;
use crate::config::EndpointConfig;
use core::time::Duration;
use engine::{Deadline, Drops, Entropy, Input, Output, Time};
use wire::sip::Method;

/// A SIP element without IO. See the crate's page.
#[derive(Debug)]
pub struct Endpoint {
    drops: Drops,
}

#[allow(unused_variables)]
impl Endpoint {
    /// An endpoint without listening points.
    pub fn new(config: EndpointConfig, entropy: Entropy) -> Endpoint {
        todo!()
    }

    /// Adds a listening point; the host opens its socket.
    pub fn add_local(&mut self, local: Local) -> LocalId {
        todo!()
    }

    /// Takes one input. Drain [`Endpoint::next_output`] afterwards, then ask for [`Endpoint::next_deadline`].
    pub fn feed(&mut self, input: Input<'_>, now: Time, user: &mut dyn User) {
        todo!()
    }

    /// The next output, in order. Slices live until the next call.
    pub fn next_output(&mut self) -> Option<Output<'_>> {
        todo!()
    }

    /// When [`Input::Timeout`] is next wanted.
    pub fn next_deadline(&self) -> Option<Deadline> {
        todo!()
    }

    /// Opens a call.
    pub fn invite(&mut self, invite: &Invite<'_>, now: Time) -> Result<LegId, Refused> {
        todo!()
    }

    /// Sends a provisional response (101 to 199) on an offered leg; `reliable` as RFC 3262.
    pub fn progress(
        &mut self,
        leg: LegId,
        status: u16,
        content: &Content<'_>,
        reliable: bool,
        now: Time,
    ) -> Result<(), Refused> {
        todo!()
    }

    /// Answers an offered leg with a 2xx.
    pub fn answer(
        &mut self,
        leg: LegId,
        status: u16,
        content: &Content<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        todo!()
    }

    /// Refuses (400 to 699) or redirects (300 to 399) an offered leg, which is gone then.
    pub fn reject(
        &mut self,
        leg: LegId,
        status: u16,
        content: &Content<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        todo!()
    }

    /// Sends ACK for the 2xx of our INVITE or re-INVITE (repeated by the endpoint whenever the 2xx is).
    pub fn ack(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        todo!()
    }

    /// Gives up a call that we opened and that is not answered; `Failed` follows. Only header edits of `content` count.
    pub fn cancel(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        todo!()
    }

    /// Ends a leg that was answered; `Ended` follows.
    pub fn bye(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        todo!()
    }

    /// Ends a leg whatever its state: cancel, reject with 480, or bye.
    pub fn hang_up(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        todo!()
    }

    /// Sends a request inside the dialog: INVITE (a re-INVITE), UPDATE, INFO, REFER, NOTIFY, OPTIONS, MESSAGE, others.
    pub fn request(
        &mut self,
        leg: LegId,
        method: Method<'_>,
        content: &Content<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        todo!()
    }

    /// Sends PRACK for the last reliable provisional response of an early dialog ([`Prack::User`]).
    pub fn prack(
        &mut self,
        leg: LegId,
        fork: Fork,
        content: &Content<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        todo!()
    }

    /// Sends NOTIFY about a REFER that came in this dialog, with the status line as message/sipfrag (RFC 3515 section
    /// 2.4.5); 200 and above end the implicit subscription.
    pub fn notify_refer(
        &mut self,
        leg: LegId,
        status: u16,
        reason: &[u8],
        now: Time,
    ) -> Result<TransactionId, Refused> {
        todo!()
    }

    /// Answers a request, in or out of a dialog.
    pub fn respond(
        &mut self,
        transaction: ServerTransaction,
        status: u16,
        content: &Content<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        todo!()
    }

    /// Sends a request outside of any dialog: OPTIONS, REGISTER, MESSAGE, SUBSCRIBE, PUBLISH, NOTIFY ...
    pub fn send(&mut self, outside: &Outside<'_>, now: Time) -> Result<TransactionId, Refused> {
        todo!()
    }

    /// The user's number of a leg.
    pub fn user_of(&self, leg: LegId) -> Option<u64> {
        todo!()
    }

    /// Gives a leg the user's number (an offered one has 0).
    pub fn set_user(&mut self, leg: LegId, user: u64) {
        todo!()
    }

    /// The state of a leg.
    pub fn state_of(&self, leg: LegId) -> Option<LegState> {
        todo!()
    }

    /// Where a leg's next request goes, unless its dialog names an address.
    pub fn flow_of(&self, leg: LegId) -> Option<Flow> {
        todo!()
    }

    /// Sends a leg's further requests to `flow`, whatever host its route set or remote target names (after the user has
    /// located it, or behind NAT).
    pub fn pin(&mut self, leg: LegId, flow: Flow) -> Result<(), Refused> {
        todo!()
    }

    /// The Call-ID of a leg.
    pub fn call_id_of(&self, leg: LegId) -> Option<&[u8]> {
        todo!()
    }

    /// Our tag and the peer's: for Replaces (RFC 3891). The peer's is empty where there is no dialog yet.
    pub fn tags_of(&self, leg: LegId) -> Option<(Vec<u8>, &[u8])> {
        todo!()
    }

    /// The leg that a Replaces header means (RFC 3891 section 3).
    pub fn find_leg(&self, call_id: &[u8], local_tag: &[u8], remote_tag: &[u8]) -> Option<LegId> {
        todo!()
    }

    /// The peer's Contact URI: the remote target (RFC 3261 section 12).
    pub fn remote_target_of(&self, leg: LegId) -> Option<&[u8]> {
        todo!()
    }

    /// A random time to wait after a 491 before trying again (RFC 3261 section 14.1).
    pub fn glare_wait(&mut self, leg: LegId) -> Option<Duration> {
        todo!()
    }

    /// How much is held.
    pub fn census(&self) -> Census {
        todo!()
    }

    /// What was dropped, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
}
